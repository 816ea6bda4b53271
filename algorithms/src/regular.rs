//! Schedules that let a rank make its own part without the others'.
//!
//! Invariant: a regular schedule is a function of the rank. [`whole`] puts the parts of all ranks together, so the
//! symbolic form that users read and the plan of a rank among thousands have one source. The symmetry is only a
//! claim: [`verify_regular`](crate::verify_regular) checks it. Absent: irregular schedules, and rooted ones, whose
//! ranks have different roles; those go through the schedule of all ranks.

use crate::{Rank, Round, Schedule, Transfer};

/// A transfer that a rank takes part in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Own {
    /// Index of the round.
    pub round: u32,
    /// The transfer; the rank is one of its ends.
    pub transfer: Transfer,
    /// Whether its result is the complete fold for the first time on its path.
    pub complete: bool,
}

/// A schedule by ranks.
pub trait Regular {
    /// The schedule without its rounds.
    fn head(&self) -> Schedule;

    /// Passes the transfers of `rank` to `take`, round after round, each once. Two ranks that exchange several
    /// transfers in a round on one channel name them in the same order.
    fn own(&self, rank: Rank, take: &mut dyn FnMut(Own));

    /// The symmetry of the ranks; `None` where there is none.
    fn symmetry(&self) -> Option<Symmetry>;

    /// The piece of an all-reduce that piece `piece` becomes when the ranks move so that rank 0 comes to the place of
    /// `by`. Blocks of other collectives move with the ranks they belong to.
    fn piece(&self, by: Rank, piece: u32) -> u32;
}

/// A claim: a move of all ranks by the same distance along the dimensions turns every rank's part of the schedule
/// into that of the rank it moves to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Symmetry {
    /// Lengths, the first dimension fastest, as ranks are numbered. Their product is the number of ranks.
    pub dimensions: Vec<u32>,
    /// Whether, where two ranks meet, the value of the lower one comes first. Otherwise the order moves along with
    /// the ranks. All dimensions are 2 long then.
    pub lower_first: bool,
}

/// The schedule of all ranks.
pub fn whole(regular: &dyn Regular) -> Schedule {
    let mut schedule = regular.head();
    for rank in (0..schedule.ranks).map(Rank) {
        regular.own(rank, &mut |own| {
            let round = own.round as usize;
            if schedule.rounds.len() <= round {
                schedule.rounds.resize(round + 1, Round::default());
            }
            if own.transfer.from == rank {
                schedule.rounds[round].transfers.push(own.transfer);
            }
        });
    }
    for round in &mut schedule.rounds {
        // In the order for readers: channel by channel, local copies last.
        round.transfers.sort_by_key(|transfer| (transfer.channel, transfer.from == transfer.to));
    }
    schedule
}
