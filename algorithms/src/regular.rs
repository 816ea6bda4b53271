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
    /// transfers in a round on one channel name them in the same order. What a rank receives in a round is taken in its order here.
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

/// The schedule of all ranks. In a round, channel by channel, transfers are in the order in which their receivers name them: a
/// receiver folds in that order. What is named as early comes in the order of its senders.
pub fn whole(regular: &dyn Regular) -> Schedule {
    let mut schedule = regular.head();
    let mut rounds: Vec<Vec<(u32, Transfer)>> = Vec::new();
    for rank in (0..schedule.ranks).map(Rank) {
        let mut named: Vec<u32> = Vec::new();
        regular.own(rank, &mut |own| {
            let round = own.round as usize;
            if rounds.len() <= round {
                rounds.resize(round + 1, Vec::new());
            }
            if named.len() <= round {
                named.resize(round + 1, 0);
            }
            if own.transfer.to == rank {
                rounds[round].push((named[round], own.transfer));
            }
            named[round] += 1;
        });
    }
    let in_order = |mut named: Vec<(u32, Transfer)>| {
        // Local copies come last.
        named.sort_by_key(|(at, transfer)| {
            (transfer.channel, transfer.from == transfer.to, *at, transfer.from)
        });
        Round { transfers: named.into_iter().map(|(_, transfer)| transfer).collect() }
    };
    schedule.rounds = rounds.into_iter().map(in_order).collect();
    schedule
}
