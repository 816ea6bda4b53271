//! All-gather over equal boxes: a ring along each rail, and what arrives at a box goes to all of its ranks.
//!
//! In round `t` a rank sends the block that came `t` boxes far on to the next box, and to the other ranks of its box:
//! what is between boxes and what is inside run side by side. Cost over `b` boxes of `g` ranks, with `M` the gathered
//! vector: `b` rounds, `(b-1)/b M/g` bytes through each door and `(g-1)/g M` into each rank inside of its box.
//!
//! Source: M. Cho et al., "BlueConnect", MLSys 2019, for rings along rails; here the two dimensions overlap.
//! Invariant: ranks move along both dimensions. Absent: boxes that differ.

use crate::{Channel, Chunk, Collective, Own, Partition, Place, Rank, Regular, Schedule, Symmetry, Transfer};

/// The all-gather over `boxes` boxes of `per_box` ranks; rank = box * `per_box` + local.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RailGather {
    boxes: u32,
    per_box: u32,
}

impl RailGather {
    /// Over that many boxes and ranks of a box.
    ///
    /// # Panics
    ///
    /// When a number is 0.
    pub fn new(boxes: u32, per_box: u32) -> RailGather {
        assert!(boxes > 0 && per_box > 0, "an all-gather needs a box and ranks in it");
        RailGather { boxes, per_box }
    }

    /// The block that came `far` boxes far when it is in box `at`, on a rail.
    fn block(self, at: u32, far: u32, rail: u32) -> u32 {
        (at + self.boxes - far) % self.boxes * self.per_box + rail
    }

    /// Block `block` from one rank to another; `far` is how many boxes it came.
    fn copy(self, [from, to]: [u32; 2], channel: u16, block: u32, far: u32) -> Transfer {
        Transfer {
            from: Rank(from),
            to: Rank(to),
            channel: Channel(channel),
            source: if far == 0 { Place::Input(Chunk(0)) } else { Place::Output(Chunk(block)) },
            target: Place::Output(Chunk(block)),
            fold: None,
            own_first: false,
        }
    }
}

impl Regular for RailGather {
    fn head(&self) -> Schedule {
        Schedule {
            name: format!("rails({}x{})", self.boxes, self.per_box),
            collective: Collective::AllGather,
            ranks: self.boxes * self.per_box,
            switches: 0,
            partition: Partition { parts: 1 },
            rounds: Vec::new(),
        }
    }

    fn own(&self, rank: Rank, take: &mut dyn FnMut(Own)) {
        let (at, rail) = (rank.0 / self.per_box, rank.0 % self.per_box);
        let mut pass = |round: u32, transfer: Transfer| take(Own { round, transfer, complete: false });
        for round in 0..self.boxes {
            if round + 1 < self.boxes {
                let (next, last) = ((at + 1) % self.boxes, (at + self.boxes - 1) % self.boxes);
                let onward = [rank.0, next * self.per_box + rail];
                pass(round, self.copy(onward, 0, self.block(at, round, rail), round));
                let here = [last * self.per_box + rail, rank.0];
                pass(round, self.copy(here, 0, self.block(last, round, rail), round));
            }
            if round == 0 {
                pass(round, self.copy([rank.0; 2], 0, rank.0, 0));
            }
            // To the ranks behind it in turn, so that all ranks receive one block at a time.
            for distance in 1..self.per_box {
                let to = (rail + distance) % self.per_box;
                let from = (rail + self.per_box - distance) % self.per_box;
                let first = at * self.per_box;
                pass(round, self.copy([rank.0, first + to], 0, self.block(at, round, rail), round));
                pass(round, self.copy([first + from, rank.0], 0, self.block(at, round, from), round));
            }
        }
    }

    fn symmetry(&self) -> Option<Symmetry> {
        Some(Symmetry { dimensions: vec![self.per_box, self.boxes], lower_first: false })
    }

    fn piece(&self, _by: Rank, piece: u32) -> u32 {
        piece
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LowerOptions, lower_all, lower_one, verify, verify_regular, whole};

    #[test]
    fn all_ranks_and_one_prove_it() {
        for (boxes, per_box) in [(1, 1), (1, 3), (2, 1), (2, 2), (3, 2), (4, 4), (5, 3), (8, 8)] {
            let regular = RailGather::new(boxes, per_box);
            let options = LowerOptions { slots: 4 };
            let plans = lower_all(&whole(&regular), &options).expect("it lowers");
            verify(&plans).unwrap_or_else(|refusal| panic!("{boxes}x{per_box}: {refusal}"));
            let one = lower_one(&regular, Rank(0), &options).expect("it lowers");
            verify_regular(&regular, &one).unwrap_or_else(|refusal| panic!("{boxes}x{per_box}: {refusal}"));
        }
    }
}
