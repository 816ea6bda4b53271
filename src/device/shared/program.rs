//! Which verified plan runs a call over mailboxes on devices, and which mailbox each of its channels is.
//!
//! Invariant: the same on all ranks, as it follows from the call, the number of ranks and what they have agreed on.
//! Absent: where it runs.

use consort_algorithms::Collective;
use consort_algorithms::catalogue::Algorithm;
use consort_algorithms::plan::{CounterId, Plan};
use consort_algorithms::{Channel, Rank as Relative};

use crate::call::{Call, Kind};
use crate::communicator::Communicator;
use crate::engine::Bearings;
use crate::error::{Error, Result};
use crate::planner::{Planner, Program, Proved};

use super::{BOXES, MESSAGES};

/// The longest all-reduce, in bytes, that every rank folds whole; in longer ones each rank folds its share.
const DIRECT_BYTES_MAX: usize = 256 << 10;

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

/// The program for a call, the same on all ranks; of at most `lanes_max` lanes.
///
/// # Errors
/// Where no algorithm has so few.
pub(super) fn program(communicator: &Communicator, call: &Call, lanes_max: usize) -> Result<Proved> {
    let (rank, ranks) = (communicator.rank(), communicator.size());
    let collective = call.kind.collective();
    let bytes = call.count * call.data_type.size();
    let ring = Algorithm::Ring { channels: 1, bidirectional: false };
    let direct = Algorithm::Direct { first: call.first_folded(ranks) };
    let mut candidates = match collective {
        Collective::SendReceive => vec![Algorithm::Pair],
        Collective::AllReduce if bytes <= DIRECT_BYTES_MAX => vec![direct],
        Collective::AllReduce => vec![Algorithm::TwoShot],
        Collective::AllToAll => vec![Algorithm::Spread, Algorithm::Pairwise],
        _ => vec![direct],
    };
    if let Some(asked) = call.algorithm {
        candidates.insert(0, asked);
    }
    candidates.push(ring);
    let size = if collective == Collective::SendReceive { 2 } else { ranks };
    let relative = match call.kind {
        Kind::Send => 0,
        Kind::Receive => 1,
        _ => (rank + ranks - call.root) % ranks,
    };
    let planner = Planner::of_process();
    for algorithm in candidates.into_iter().filter(|algorithm| algorithm.is_defined(collective, size)) {
        let program = Program { collective, ranks: size, algorithm };
        let proved = planner.plan(program, relative, vec![true; size as usize])?;
        // Of all ranks: one that chose alone might choose another plan than its peers.
        if proved.lanes_max <= lanes_max && proved.mailboxes_max <= BOXES {
            return Ok(proved);
        }
    }
    Err(Error::internal(format!("no plan of few lanes for {collective} over {size} ranks")))
}
