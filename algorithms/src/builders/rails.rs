//! Reduce-scatter, all-gather and all-reduce over boxes: rings along rails, and exchanges inside of the boxes beside them.
//!
//! A rail is the ranks of one number in all boxes. All-gather: in round `t` a rank sends the block that came `t` boxes far on to the
//! next box, and to the other ranks of its box, so that what is between boxes and what is inside run side by side.
//! Reduce-scatter is its mirror image in time: the ranks of a box hand their values of a block to the rank on the block's
//! rail, which folds them with what came from the next box and sends the sum on to the box before. All-reduce is one after the other.
//!
//! Source: M. Cho et al., "BlueConnect: decomposing all-reduce for deep learning on heterogeneous network hierarchy", MLSys 2019, for
//! rings along rails; here the two dimensions overlap. Cost over `b` boxes of `g` ranks, with `M` the bytes of the whole vector:
//! `(b-1)/b M/g` bytes through each door and `(g-1)/g M` into each rank inside of its box, in `bg-1` rounds for a reduce-scatter
//! and `b` for an all-gather, or `bg-1` with `g` channels and more (`g` on one box); an all-reduce is both, its gather in `b` rounds.
//!
//! A lane goes on when what it sent has left, and lanes that are alike wait at the same time. So channels have what is between boxes at
//! different places among what is inside of one: while some send along the rail, others send inside of the box, and others copy or fold.
//!
//! Fold order: own value, then those of the box in the order of their distance, with what came from the next box after the first
//! [`turn`](Lane::turn) of them; arriving value first.
//!
//! Invariant: ranks move along both dimensions. Absent: boxes that differ.

use crate::{Channel, Chunk, Collective, Own, Partition, Place, Rank, Regular, Schedule, Symmetry, Transfer};

/// The collectives that run along rails.
pub const fn rails_are_defined(collective: Collective) -> bool {
    matches!(collective, Collective::AllReduce | Collective::ReduceScatter | Collective::AllGather)
}

/// The schedule over boxes of equal size; rank = box * `per_box` + local.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rails {
    collective: Collective,
    boxes: u32,
    per_box: u32,
    channels: u16,
}

/// One of the channels of a rank.
#[derive(Clone, Copy)]
struct Lane {
    of: Rails,
    at: u32,
    rail: u32,
    channel: u16,
    /// The round in which its phase starts.
    start: u32,
}

impl Rails {
    /// Over that many boxes and ranks of a box, with each block cut among `channels` channels.
    ///
    /// # Panics
    ///
    /// When a number is 0, or the collective has no rails ([`rails_are_defined`]).
    pub fn new(collective: Collective, boxes: u32, per_box: u32, channels: u16) -> Rails {
        assert!(rails_are_defined(collective), "there are no rails for {collective}");
        assert!(boxes > 0 && per_box > 0 && channels > 0, "rails need a box, ranks in it and a channel");
        Rails { collective, boxes, per_box, channels }
    }

    /// The block of the rank on a rail that is `far` boxes after box `at`.
    const fn block(self, at: u32, far: u32, rail: u32) -> u32 {
        (at + far) % self.boxes * self.per_box + rail
    }
}

impl Lane {
    /// A piece of block `block` among those of all blocks.
    fn piece(self, block: u32) -> Chunk {
        Chunk(block * u32::from(self.of.channels) + u32::from(self.channel))
    }

    /// The piece of a buffer that holds one block.
    fn own_piece(self) -> Chunk {
        Chunk(self.channel.into())
    }

    fn transfer(self, [from, to]: [u32; 2], source: Place, target: Place) -> Transfer {
        let channel = Channel(self.channel);
        Transfer { from: Rank(from), to: Rank(to), channel, source, target, fold: None, own_first: false }
    }

    fn rank(self, at: u32, rail: u32) -> u32 {
        at % self.of.boxes * self.of.per_box + rail
    }

    /// Where a rank has its sum of a block before `arrived` values were folded into it, and after.
    fn sum(self, block: u32, arrived: u32, all: u32) -> Place {
        match arrived {
            0 => Place::Input(self.piece(block)),
            _ if arrived < all => Place::Scratch(self.piece(block)),
            _ if self.of.collective == Collective::ReduceScatter => Place::Output(self.own_piece()),
            _ => Place::Output(self.piece(block)),
        }
    }

    /// A value that a rank folds into its sum of a block, as the `arrived`-th of `all` before the sum is complete for all boxes.
    fn fold(self, ends: [u32; 2], source: Place, block: u32, [arrived, all]: [u32; 2]) -> Transfer {
        let (target, fold) = (self.sum(block, arrived + 1, all), Some(self.sum(block, arrived, all)));
        Transfer { fold, ..self.transfer(ends, source, target) }
    }

    /// How many messages inside of the box a lane has before the one between boxes, so that channels differ in it.
    fn turn(self) -> u32 {
        let Rails { per_box, channels, .. } = self.of;
        u32::from(self.channel) * per_box.div_ceil(channels.into()) % per_box
    }

    /// Folds up to the complete sum of the own block.
    fn reduce(self, take: &mut dyn FnMut(Own)) {
        let Rails { boxes, per_box, .. } = self.of;
        let (at, rail) = (self.at, self.rail);
        let me = self.rank(at, rail);
        if boxes * per_box == 1 {
            let (source, target) = (self.sum(0, 0, 1), self.sum(0, 1, 1));
            take(Own { round: 0, transfer: self.transfer([0; 2], source, target), complete: true });
            return;
        }
        for step in 0..boxes {
            // The last block is the own one; what comes from the next box is one value more.
            let here = step + 1;
            let is_passed_on = step > 0;
            let arrivals = u32::from(is_passed_on) + per_box - 1;
            let all = if here == boxes { arrivals } else { u32::MAX };
            // Each value in a round of its own, so that all ranks fold in one order.
            let mut fold = |transfer: Transfer, arrived: u32| {
                let round = self.start + (step * per_box + arrived).saturating_sub(u32::from(is_passed_on));
                take(Own { round, transfer, complete: arrived + 1 == all });
            };
            let turn = if is_passed_on { self.turn() } else { u32::MAX };
            for arrived in 0..arrivals {
                if arrived == turn {
                    // What was folded in the step before goes on.
                    let folded = u32::from(step > 1) + per_box - 1;
                    for ends in [[at, at + boxes - 1], [at + 1, at]] {
                        let block = self.of.block(ends[0], step, rail);
                        let source = self.sum(block, folded, u32::MAX);
                        let ends = ends.map(|at| self.rank(at, rail));
                        fold(self.fold(ends, source, block, [arrived, all]), arrived);
                    }
                    continue;
                }
                let distance = arrived + u32::from(arrived < turn);
                let (to, from) = ((rail + distance) % per_box, (rail + per_box - distance) % per_box);
                for (ends, block) in [
                    ([me, self.rank(at, to)], self.of.block(at, here, to)),
                    ([self.rank(at, from), me], self.of.block(at, here, rail)),
                ] {
                    let source = Place::Input(self.piece(block));
                    fold(self.fold(ends, source, block, [arrived, all]), arrived);
                }
            }
        }
    }

    /// Sends the own block to all ranks. With a channel for each place, a message has a round of its own in an all-gather, so
    /// that some channels copy while others send; with fewer, a round has all messages of a block.
    fn gather(self, take: &mut dyn FnMut(Own)) {
        let Rails { boxes, per_box, collective, .. } = self.of;
        let (at, rail) = (self.at, self.rail);
        let me = self.rank(at, rail);
        let is_after_folds = collective == Collective::AllReduce;
        let copy = |ends: [u32; 2], block: u32, is_own: bool| {
            let target = Place::Output(self.piece(block));
            let source = if is_own && !is_after_folds { Place::Input(self.own_piece()) } else { target };
            self.transfer(ends, source, target)
        };
        // Behind folds, channels are at different places already.
        let is_turned = !is_after_folds && per_box > 1 && u32::from(self.of.channels) >= per_box;
        // In one box nothing tells channels apart but the copy of the own block: half of them make it first, the others last.
        let is_halved = is_turned && boxes == 1;
        let lead = u32::from(is_halved && self.channel % 2 == 1);
        let mut pass = |round: u32, transfer: Transfer| {
            take(Own { round: self.start + round, transfer, complete: false });
        };
        if !is_after_folds {
            let round = if is_halved && lead == 0 { per_box - 2 } else { 0 };
            pass(round, copy([me; 2], me, true));
        }
        for step in 0..boxes {
            let far = boxes - step;
            let is_passed_on = step + 1 < boxes;
            let turn = if is_passed_on { self.turn() } else { u32::MAX };
            let round = |place: u32| lead + if is_turned { step * per_box + place } else { step };
            if is_passed_on {
                let next = [me, self.rank(at + 1, rail)];
                pass(round(turn), copy(next, self.of.block(at, far, rail), step == 0));
                let last = [self.rank(at + boxes - 1, rail), me];
                pass(round(turn), copy(last, self.of.block(at + boxes - 1, far, rail), step == 0));
            }
            // To the ranks behind it in turn, so that all ranks receive one block at a time.
            for distance in 1..per_box {
                let round = round(distance - 1 + u32::from(distance > turn));
                let (to, from) = ((rail + distance) % per_box, (rail + per_box - distance) % per_box);
                pass(round, copy([me, self.rank(at, to)], self.of.block(at, far, rail), step == 0));
                pass(round, copy([self.rank(at, from), me], self.of.block(at, far, from), step == 0));
            }
        }
    }
}

impl Regular for Rails {
    fn head(&self) -> Schedule {
        let Rails { collective, boxes, per_box, channels } = *self;
        let ranks = boxes * per_box;
        let blocks = if collective == Collective::AllReduce { ranks } else { 1 };
        Schedule {
            name: format!("rails({boxes}x{per_box}, {channels})"),
            collective,
            ranks,
            switches: 0,
            partition: Partition { parts: blocks * u32::from(channels) },
            rounds: Vec::new(),
        }
    }

    fn own(&self, rank: Rank, take: &mut dyn FnMut(Own)) {
        let (at, rail) = (rank.0 / self.per_box, rank.0 % self.per_box);
        let lane = |channel: u16, start: u32| Lane { of: *self, at, rail, channel, start };
        let is_alone = self.boxes * self.per_box == 1;
        let gathers =
            self.collective == Collective::AllGather || self.collective == Collective::AllReduce && !is_alone;
        let mut all: Vec<Own> = Vec::new();
        for channel in 0..self.channels {
            if self.collective.reduces() {
                lane(channel, 0).reduce(&mut |own| all.push(own));
            }
            if gathers {
                let start = if self.collective.reduces() { self.boxes * self.per_box - 1 } else { 0 };
                lane(channel, start).gather(&mut |own| all.push(own));
            }
        }
        // Each channel has its rounds in their order.
        all.sort_by_key(|own| own.round);
        all.into_iter().for_each(take);
    }

    fn symmetry(&self) -> Option<Symmetry> {
        Some(Symmetry { dimensions: vec![self.per_box, self.boxes], lower_first: false })
    }

    fn piece(&self, by: Rank, piece: u32) -> u32 {
        let (block, channel) = (piece / u32::from(self.channels), piece % u32::from(self.channels));
        let at = (block / self.per_box + by.0 / self.per_box) % self.boxes;
        let rail = (block % self.per_box + by.0 % self.per_box) % self.per_box;
        (at * self.per_box + rail) * u32::from(self.channels) + channel
    }
}

#[cfg(test)]
mod tests {
    use super::super::proving::tally;
    use super::*;
    use crate::{LowerOptions, lower_all, lower_one, verify, verify_regular, whole};

    const COLLECTIVES: [Collective; 3] =
        [Collective::AllGather, Collective::ReduceScatter, Collective::AllReduce];

    #[test]
    fn all_ranks_and_one_prove_it() {
        for (boxes, per_box) in [(1, 1), (1, 3), (2, 1), (2, 2), (3, 2), (4, 1), (4, 4), (5, 3), (8, 8)] {
            for collective in COLLECTIVES {
                for channels in [1, 3] {
                    let regular = Rails::new(collective, boxes, per_box, channels);
                    let what = format!("{collective} over {boxes}x{per_box}, {channels}");
                    let options = LowerOptions { slots: 4 };
                    let plans = lower_all(&whole(&regular), &options)
                        .unwrap_or_else(|error| panic!("{what}: {error}"));
                    let whole = verify(&plans).unwrap_or_else(|refusal| panic!("{what}: {refusal}"));
                    let one = lower_one(&regular, Rank(0), &options).expect("it lowers");
                    let of_one = verify_regular(&regular, &one)
                        .unwrap_or_else(|refusal| panic!("{what}, by symmetry: {refusal}"));
                    assert_eq!(of_one.fold_hash, whole.fold_hash, "{what}");
                }
            }
        }
    }

    #[test]
    fn the_cost_is_the_formula() {
        for (boxes, per_box) in [(1, 8), (2, 4), (4, 8), (3, 5)] {
            for collective in COLLECTIVES {
                let found = tally(&whole(&Rails::new(collective, boxes, per_box, 1)));
                let (n, phases) = (boxes * per_box, if collective == Collective::AllReduce { 2 } else { 1 });
                let what = format!("{collective} over {boxes}x{per_box}");
                let folding = if collective.reduces() { n - 1 } else { 0 };
                let gathering = if collective == Collective::ReduceScatter { 0 } else { boxes };
                assert_eq!(found.rounds, folding + gathering, "{what}");
                // All blocks inside of the box but the own rail's, and those of the own rail over the door.
                assert_eq!(found.out, phases * ((boxes - 1) + boxes * (per_box - 1)), "{what}");
                assert_eq!(found.out, found.into, "{what}");
                assert_eq!(found.largest, n, "{what}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "no rails for broadcast")]
    fn a_broadcast_has_no_rails() {
        Rails::new(Collective::Broadcast, 2, 2, 1);
    }
}
