//! Schedules that a rank can make its own part of, without the others'.
//!
//! Invariant: a regular schedule is a function of the rank. [`whole`] puts the parts of all ranks together, so
//! the symbolic form that people read and the plan of a rank among thousands have one source. What is claimed
//! of symmetry is only a claim: [`verify_regular`](crate::verify_regular) checks it. Absent: irregular
//! schedules, and rooted ones, whose ranks have different parts to play; those go through the schedule of all.

use crate::{Rank, Round, Schedule, Transfer};

/// A transfer that a rank takes part in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Own {
    /// Index of the round.
    pub round: u32,
    /// What travels; the rank is one of its ends.
    pub transfer: Transfer,
    /// Whether its result is the complete fold for the first time on its path.
    pub complete: bool,
}

/// A schedule by ranks.
pub trait Regular {
    /// The schedule without its rounds.
    fn head(&self) -> Schedule;

    /// What `rank` takes part in, round after round, each transfer once. Two ranks that exchange several
    /// transfers in a round on one channel name them in the same order.
    fn own(&self, rank: Rank, take: &mut dyn FnMut(Own));

    /// How the ranks are alike; none when they are not.
    fn symmetry(&self) -> Option<Symmetry>;

    /// What piece `piece` of an all-reduce becomes when the ranks move so that rank 0 comes to where `by` was.
    /// Blocks of other collectives move with the ranks they belong to.
    fn piece(&self, by: Rank, piece: u32) -> u32;
}

/// A claim: moving all ranks by the same way along the dimensions turns every rank's part of the schedule into
/// that of the rank it moves to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Symmetry {
    /// Lengths, the first dimension fastest, as ranks are numbered. Their product is the number of ranks.
    pub dimensions: Vec<u32>,
    /// Whether of two ranks that meet the value of the lower one comes first, instead of in the order that
    /// moves along. All dimensions are 2 long then.
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
        // As people read it: channel by channel, what is copied locally last.
        round.transfers.sort_by_key(|transfer| (transfer.channel, transfer.from == transfer.to));
    }
    schedule
}
