//! Which mailbox each channel of a plan is, and where the plan's ranks are.
//!
//! Invariant: the same on both ranks of a mailbox, as both plans name the same channels. Absent: which plan runs.

use consort_algorithms::plan::{CounterId, CounterRole, Plan, Region};
use consort_algorithms::{Channel, Rank as Relative};

use crate::communicator::Communicator;
use crate::engine::Bearings;
use crate::planner::part_of;
use consort_types::call::{Call, Kind};

use super::{Counter, MESSAGES, Mailbox};

/// The mailboxes that a plan uses, as far as the rank that it is for fills or empties them.
///
/// A plan names a mailbox by its owner, its writer and a channel. A device has [`BOXES`](crate::planner::BOXES) of them for each ordered pair
/// of ranks: the pair's channels, in ascending order, are its first mailbox and its second. Where plans have more
/// channels than that, as many as need be share a mailbox, each with an equal part of its blocks. Both ranks of a pair
/// see the same channels of it in their plans, and share alike, as the most that any two ranks have says how many.
pub(super) struct Boxes {
    /// Owner, writer and channel, sorted.
    all: Vec<(Relative, Relative, Channel)>,
    /// The class of a pair's first mailbox.
    first: usize,
    /// The most channels from a rank to another in the plans of all ranks.
    channels: usize,
    rank: Relative,
    bearings: Bearings,
}

impl Boxes {
    /// Those of a plan for a call of this kind, where the plans of all ranks have up to `channels` channels from one to
    /// another.
    pub(super) fn of(plan: &Plan, kind: Kind, bearings: Bearings, channels: usize) -> Self {
        let first = if kind.is_message() { MESSAGES } else { 0 };
        Boxes { all: plan.mailboxes(), first, channels, rank: plan.rank, bearings }
    }

    fn find(&self, (owner, writer, channel): (Relative, Relative, Channel)) -> Option<Mailbox> {
        let is_here = owner == self.rank;
        if !is_here && writer != self.rank {
            return None;
        }
        let of_pair = self.all.iter().filter(|(of, by, _)| (*of, *by) == (owner, writer));
        let nth = of_pair.take_while(|(_, _, known)| *known < channel).count();
        let (class, part) = part_of(nth, self.channels);
        let peer = self.bearings.rank(if is_here { writer } else { owner });
        Some(Mailbox { peer, class: self.first + class, part, is_here })
    }

    /// The mailbox that a region is, if it is one that this rank fills or empties.
    pub(super) fn of_region(&self, region: Region) -> Option<Mailbox> {
        let Region::Mailbox { owner, writer, channel } = region else { return None };
        self.find((owner, writer, channel))
    }

    /// The mailbox that a counter belongs to, and which of its two it is.
    pub(super) fn of_counter(&self, id: &CounterId) -> Option<(Mailbox, Counter)> {
        let counter = match id.role {
            CounterRole::Ready => Counter::Ready,
            CounterRole::Credit => Counter::Credit,
            CounterRole::Flag(_) => return None,
        };
        Some((self.find(id.mailbox())?, counter))
    }
}

/// Where the ranks of a call's plan are.
pub(super) fn bearings(communicator: &Communicator, call: &Call) -> Bearings {
    let (me, size) = (communicator.rank(), communicator.size());
    match call.kind {
        Kind::Send => Bearings::Pair { sender: me, receiver: call.root },
        Kind::Receive => Bearings::Pair { sender: call.root, receiver: me },
        _ => Bearings::Rotated { root: call.root, size },
    }
}
