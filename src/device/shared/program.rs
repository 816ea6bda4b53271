//! Which mailbox each channel of a plan is, and where the plan's ranks are.
//!
//! Invariant: the same on both ranks of a mailbox, as both plans name the same channels. Absent: which plan runs.

use consort_algorithms::plan::{CounterId, Plan};
use consort_algorithms::{Channel, Rank as Relative};

use crate::communicator::Communicator;
use crate::engine::Bearings;
use consort_types::call::{Call, Kind};

use super::MESSAGES;

/// The mailboxes that a plan uses, as far as the rank that it is for fills or empties them.
///
/// A plan names a mailbox by its owner, its writer and a channel. A device has [`BOXES`] of them for each ordered pair
/// of ranks: the pair's channels, in ascending order, are its first mailbox and its second. Both ranks of a pair see
/// the same channels of it in their plans.
pub(super) struct Boxes {
    /// Owner, writer and channel, sorted.
    all: Vec<(Relative, Relative, Channel)>,
    /// The class of a pair's first mailbox.
    first: usize,
}

impl Boxes {
    /// Those of a plan for a call of this kind.
    pub(super) fn of(plan: &Plan, kind: Kind) -> Self {
        Boxes { all: plan.mailboxes(), first: if kind.is_message() { MESSAGES } else { 0 } }
    }

    /// Which of the mailboxes between its ranks a mailbox is.
    pub(super) fn class(&self, owner: Relative, writer: Relative, channel: Channel) -> usize {
        let of_pair = self.all.iter().filter(|(of, by, _)| (*of, *by) == (owner, writer));
        self.first + of_pair.take_while(|(_, _, known)| *known < channel).count()
    }

    /// The same of the mailbox that a counter belongs to.
    pub(super) fn class_of(&self, counter: &CounterId) -> usize {
        let (owner, writer, channel) = counter.mailbox();
        self.class(owner, writer, channel)
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
