//! Swing: recursive halving and doubling whose partners stay close on a ring or torus.
//!
//! Source: D. De Sensi, T. Bonato, D. Saam and T. Hoefler, "Swing: Short-cutting rings for higher bandwidth
//! allreduce", NSDI 2024.
//!
//! In step `s` a rank at an even position of a ring exchanges with the one `(1 - (-2)^(s+1)) / 3` positions on, a
//! rank at an odd position with the one as far back: 1 on, 1 back, 3 on, 5 back, … where recursive doubling goes 1,
//! 2, 4, 8. On a torus the steps go through the dimensions in turn.
//!
//! An all-gather goes through the steps from the last to the first and sends everything that the partner does not
//! have yet; the data that goes far is small. A reduce-scatter is its reversal, an all-reduce the one after the
//! other. Cost over `n` ranks, with `M` the bytes of the largest buffer of a rank and `k` the sum of
//! `⌈log2 d⌉` over the dimensions `d`, which is `log2 n` for powers of two:
//!
//! | collective | rounds | bytes out of and into every port | scratch places |
//! |---|---|---|---|
//! | reduce-scatter | `k` | `(n-1)/n M` | `n/2` |
//! | all-gather | `k` | `(n-1)/n M` | 0 |
//! | all-reduce | `2k` | `2(n-1)/n M` | `n/2` |
//!
//! Two ranks need no scratch, and no more than `n/2` places are needed where `n` is not a power of two. Two slots are
//! enough, fused or not. Defined for rings and tori whose dimensions are even (or 1). Where a dimension is not a
//! power of two, two paths may lead to one rank, and only the first is used.
//!
//! Fold order: own contribution first, then the arrivals in the order of the steps.
//!
//! Deliberately absent: the latency-optimal form, in which partners exchange all they have. On 8 ranks, rank 0 has
//! then folded ranks 0, 1, 6, 7 after two steps and rank 1 ranks 0, 1, 2, 3: in either order of two values, ranks
//! bracket differently and their bits differ. Absent too: the use of several ports of a torus at the same time.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::moves::{alone, bits, copy, own_part, schedule};
use crate::{Chunk, Collective, Place, Round, Schedule, Transfer};

/// Whether there is a Swing of `collective` on a torus of these dimensions (one for a ring): reduce-scatter,
/// all-gather and all-reduce, where every dimension is 1 or even.
pub fn swing_is_defined(collective: Collective, dimensions: &[u32]) -> bool {
    matches!(collective, Collective::AllReduce | Collective::ReduceScatter | Collective::AllGather)
        && !dimensions.is_empty()
        && dimensions.iter().all(|&length| length == 1 || (length > 0 && length.is_multiple_of(2)))
        && dimensions.iter().try_fold(1u32, |ranks, &length| ranks.checked_mul(length)).is_some()
}

/// The Swing of `collective` on a torus; rank `r` is at position `r % d` of the first dimension `d`, and so on.
///
/// # Panics
///
/// When the collective is not defined on these dimensions ([`swing_is_defined`]).
pub fn swing(collective: Collective, dimensions: &[u32]) -> Schedule {
    assert!(
        swing_is_defined(collective, dimensions),
        "there is no Swing of {collective} over the dimensions {dimensions:?}"
    );
    let ranks = dimensions.iter().product();
    let lengths: Vec<String> = dimensions.iter().map(u32::to_string).collect();
    let name = if lengths.len() == 1 { "swing".into() } else { format!("swing({})", lengths.join("x")) };
    if ranks == 1 {
        return alone(name, collective);
    }
    let mut away = spread(ranks, dimensions);
    let turned = |hop: &Hop| Hop { from: hop.to, to: hop.from, ..*hop };
    let mut back: Vec<Vec<Hop>> = away.iter().rev().map(|hops| hops.iter().map(turned).collect()).collect();
    newest_first(&mut away);
    newest_first(&mut back);
    let (rounds, parts) = match collective {
        Collective::ReduceScatter => (scatter_rounds(collective, &back), 1),
        Collective::AllGather => (gather_rounds(collective, ranks, &away), 1),
        _ => {
            let both = [scatter_rounds(collective, &back), gather_rounds(collective, ranks, &away)];
            (both.concat(), ranks)
        }
    };
    schedule(name, collective, ranks, parts, rounds)
}

/// A block on its way from one rank to another.
#[derive(Clone, Copy)]
struct Hop {
    from: u32,
    to: u32,
    block: u32,
}

/// One step of a rank: the dimension of its partner and the step within it.
struct SwingStep {
    stride: u32,
    length: u32,
    distance: i64,
}

impl SwingStep {
    fn partner(&self, rank: u32) -> u32 {
        let position = rank / self.stride % self.length;
        let offset = if position.is_multiple_of(2) { self.distance } else { -self.distance };
        let other = (i64::from(position) + offset).rem_euclid(i64::from(self.length)) as u32;
        rank - position * self.stride + other * self.stride
    }
}

/// All steps, through the dimensions in turn.
fn steps(dimensions: &[u32]) -> Vec<SwingStep> {
    let mut ordered: Vec<(u32, usize, SwingStep)> = Vec::new();
    let mut stride = 1;
    for (dimension, &length) in dimensions.iter().enumerate() {
        for turn in 0..bits(length) {
            let distance = (1 - (-2i64).pow(turn + 1)) / 3;
            ordered.push((turn, dimension, SwingStep { stride, length, distance }));
        }
        stride *= length;
    }
    ordered.sort_by_key(|&(turn, dimension, _)| (turn, dimension));
    ordered.into_iter().map(|(_, _, step)| step).collect()
}

/// The hops of an all-gather, from the last step to the first.
fn spread(ranks: u32, dimensions: &[u32]) -> Vec<Vec<Hop>> {
    let mut held: Vec<Vec<bool>> =
        (0..ranks).map(|rank| (0..ranks).map(|block| rank == block).collect()).collect();
    let mut rounds = Vec::new();
    for step in steps(dimensions).iter().rev() {
        let hops = |from: u32| {
            let (to, held) = (step.partner(from), &held);
            let missing =
                move |&block: &u32| held[from as usize][block as usize] && !held[to as usize][block as usize];
            (0..ranks).filter(missing).map(move |block| Hop { from, to, block })
        };
        let round: Vec<Hop> = (0..ranks).flat_map(hops).collect();
        for hop in &round {
            held[hop.to as usize][hop.block as usize] = true;
        }
        rounds.push(round);
    }
    rounds
}

/// Makes a rank send the last arrival first. In the order of arrival, fusion would join every arrival with its next
/// hop, and two partners would each wait for more slots than the other has; in this order it joins one.
fn newest_first(rounds: &mut [Vec<Hop>]) {
    let mut arrived = 0u64;
    let mut arrivals: HashMap<(u32, u32), u64> = HashMap::new();
    for hops in rounds {
        hops.sort_by_key(|hop| Reverse(arrivals.get(&(hop.from, hop.block)).copied()));
        for hop in hops {
            arrived += 1;
            arrivals.insert((hop.to, hop.block), arrived);
        }
    }
}

/// Every block from its rank to all others.
fn gather_rounds(collective: Collective, ranks: u32, away: &[Vec<Hop>]) -> Vec<Round> {
    let moved = |&Hop { from, to, block }: &Hop| {
        let output = Place::Output(Chunk(block));
        let fresh = collective == Collective::AllGather && from == block;
        copy(from, to, 0, if fresh { Place::Input(Chunk(0)) } else { output }, output)
    };
    let mut rounds: Vec<Round> =
        away.iter().map(|hops| Round { transfers: hops.iter().map(moved).collect() }).collect();
    if collective == Collective::AllGather {
        rounds[0].transfers.extend((0..ranks).map(|rank| own_part(collective, rank, 0)));
    }
    rounds
}

/// The reduce-scatter: every rank's contributions travel to the rank that owns the block and are folded where they
/// meet.
fn scatter_rounds(collective: Collective, back: &[Vec<Hop>]) -> Vec<Round> {
    let mut partial: HashMap<(u32, u32), Place> = HashMap::new();
    let mut rounds = Vec::new();
    for hops in back {
        let last = rounds.len() + 1 == back.len();
        let folded = |&Hop { from, to, block }: &Hop| {
            let at = |rank| partial.get(&(rank, block)).copied().unwrap_or(Place::Input(Chunk(block)));
            let target = match collective {
                _ if !last => Place::Scratch(Chunk(block)),
                Collective::AllReduce => Place::Output(Chunk(block)),
                _ => Place::Output(Chunk(0)),
            };
            Transfer { fold: Some(at(to)), own_first: true, ..copy(from, to, 0, at(from), target) }
        };
        let round = Round { transfers: hops.iter().map(folded).collect() };
        for (hop, transfer) in hops.iter().zip(&round.transfers) {
            partial.insert((hop.to, hop.block), transfer.target);
        }
        rounds.push(round);
    }
    rounds
}

#[cfg(test)]
mod tests {
    use super::super::proving::{proved, scratch, sizes, tally};
    use super::*;

    const ALL: [Collective; 3] = [Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather];

    const TORI: [&[u32]; 9] =
        [&[2, 2], &[4, 4], &[2, 8], &[8, 4], &[4, 1, 2], &[4, 4, 4], &[6, 4], &[2, 2, 2, 2], &[8, 8, 2]];

    fn all() -> impl Iterator<Item = Vec<u32>> {
        let rings = (1..=64).filter(|&n| swing_is_defined(Collective::AllReduce, &[n]));
        rings.map(|ranks| vec![ranks]).chain(TORI.iter().map(|torus| torus.to_vec()))
    }

    #[test]
    fn the_cost_is_the_formula() {
        for dimensions in all().chain([vec![128], vec![250], vec![256], vec![16, 16]]) {
            let n: u32 = dimensions.iter().product();
            let k: u32 = dimensions.iter().map(|&length| bits(length)).sum();
            if n == 1 {
                continue;
            }
            let cost = |collective| {
                let tally = tally(&swing(collective, &dimensions));
                assert!(tally.depth == tally.rounds || !n.is_power_of_two(), "{dimensions:?}");
                (tally.rounds, tally.out, tally.into, tally.largest)
            };
            assert_eq!(cost(Collective::AllReduce), (2 * k, 2 * (n - 1), 2 * (n - 1), n), "{dimensions:?}");
            assert_eq!(cost(Collective::ReduceScatter), (k, n - 1, n - 1, n), "{dimensions:?}");
            assert_eq!(cost(Collective::AllGather), (k, n - 1, n - 1, n), "{dimensions:?}");
        }
    }

    #[test]
    fn every_ring_up_to_64_ranks_and_some_tori_are_proved() {
        let sizes = sizes(&[128]);
        for dimensions in all() {
            let n: u32 = dimensions.iter().product();
            if !sizes.contains(&n) {
                continue;
            }
            for collective in ALL {
                let (plans, _) = proved(&swing(collective, &dimensions), 4);
                let folds = collective != Collective::AllGather;
                let places = if folds && n > 2 { n / 2 } else { 0 };
                let exact = n.is_power_of_two();
                let held = scratch(&plans);
                assert!(
                    held == places || !exact && held < places,
                    "{collective} over {dimensions:?}: {held}"
                );
            }
        }
        for (ranks, collective) in [96, 128, 256].into_iter().flat_map(|ranks| ALL.map(|of| (ranks, of))) {
            proved(&swing(collective, &[ranks]), 4);
        }
    }

    #[test]
    fn two_slots_are_enough() {
        for dimensions in all().filter(|dimensions| dimensions.iter().product::<u32>() <= 32) {
            for collective in ALL {
                proved(&swing(collective, &dimensions), 2);
            }
        }
    }

    #[test]
    fn partners_are_as_far_as_the_paper_says() {
        let steps = steps(&[64]);
        let distances: Vec<i64> = steps.iter().map(|step| step.distance).collect();
        assert_eq!(distances, [1, -1, 3, -5, 11, -21]);
        for step in steps {
            for rank in 0..64 {
                assert_eq!(step.partner(step.partner(rank)), rank);
            }
        }
    }

    #[test]
    fn odd_rings_and_other_collectives_are_refused() {
        for (collective, dimensions) in [
            (Collective::AllReduce, vec![3]),
            (Collective::AllReduce, vec![4, 5]),
            (Collective::AllReduce, vec![]),
            (Collective::AllReduce, vec![0]),
            (Collective::AllReduce, vec![1 << 31, 2]),
            (Collective::Broadcast, vec![4]),
        ] {
            assert!(!swing_is_defined(collective, &dimensions), "{collective} over {dimensions:?}");
        }
    }
}
