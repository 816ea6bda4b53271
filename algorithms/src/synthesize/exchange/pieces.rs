//! Flows rounded to pieces: every pair's block is cut into the same number of pieces, and each piece takes one way.
//!
//! Pieces begin as the flow divides them, by largest remainders. Then single pieces move to other ways of their pair
//! while that makes the sum of `(load / capacity)^k` smaller, for growing `k`, so that full wires weigh more and
//! more.
//!
//! Source: the potential is that of B. Awerbuch, Y. Azar, S. Plotkin and others for routing on line (1993), with
//! powers for exponentials. Invariant: sums and products of floating point in one order; `2^i`-th powers by squaring;
//! ties go to the way with fewer hops, then to the earlier one. Absent: ways that the flow did not take.

use super::flow::Pair;
use super::hops::Hops;

/// Passes over all pairs for each power.
const PASSES_MAX: usize = 24;
/// Powers, as the number of squarings.
const SQUARINGS: [u32; 4] = [3, 5, 6, 7];
/// The cost of a hop beside the cost of wires that are far from full.
const HOP: f64 = 1e-9;

/// Which way each piece of each pair takes.
#[derive(Clone, Debug)]
pub(super) struct Division {
    /// Pieces of a block.
    pub(super) pieces: u32,
    /// For each pair the number of pieces on each of its ways.
    pub(super) counts: Vec<Vec<u32>>,
    /// The rate of a pair as a part of what was asked for.
    pub(super) reached: f64,
}

/// The wires of a way, each once with how often it is used.
type Uses = Vec<(u32, f64)>;

/// Divides blocks among the ways of their pairs.
pub(super) struct Divider<'a> {
    pairs: &'a [Pair],
    uses: Vec<Vec<Uses>>,
    /// What one whole block takes of a wire.
    block: Vec<f64>,
}

impl<'a> Divider<'a> {
    pub(super) fn new(hops: &Hops, pairs: &'a [Pair], rate: f64) -> Divider<'a> {
        let uses = |hops_of: &[u32]| {
            let mut wires: Vec<u32> =
                hops_of.iter().flat_map(|hop| &hops.wires[*hop as usize]).copied().collect();
            wires.sort_unstable();
            wires.chunk_by(|one, other| one == other).map(|same| (same[0], same.len() as f64)).collect()
        };
        Divider {
            pairs,
            uses: pairs.iter().map(|pair| pair.ways.iter().map(|way| uses(&way.hops)).collect()).collect(),
            block: hops.capacity.iter().map(|capacity| rate / capacity).collect(),
        }
    }

    /// The division of every block into `pieces` pieces.
    pub(super) fn divide(&self, pieces: u32) -> Division {
        let unit: Vec<f64> = self.block.iter().map(|block| block / f64::from(pieces)).collect();
        let mut counts: Vec<Vec<u32>> = self.pairs.iter().map(|pair| by_flow(pair, pieces)).collect();
        let mut load = self.load(&counts, &unit);
        let fullest = |load: &[f64]| load.iter().copied().fold(0.0, f64::max);
        let mut best = (fullest(&load), counts.clone());
        for squarings in SQUARINGS {
            for _ in 0..PASSES_MAX {
                let moved = self.pass(&mut counts, &mut load, &unit, squarings);
                // Anew, so that rounding does not add up.
                load = self.load(&counts, &unit);
                let now = fullest(&load);
                if now < best.0 {
                    best = (now, counts.clone());
                }
                if !moved {
                    break;
                }
            }
        }
        Division { pieces, counts: best.1, reached: 1.0 / best.0 }
    }

    fn load(&self, counts: &[Vec<u32>], unit: &[f64]) -> Vec<f64> {
        let mut load = vec![0.0f64; unit.len()];
        for (uses, counts) in self.uses.iter().flatten().zip(counts.iter().flatten()) {
            add(&mut load, uses, unit, f64::from(*counts));
        }
        load
    }

    /// Moves one piece of every way of every pair where that helps; whether any moved.
    fn pass(&self, counts: &mut [Vec<u32>], load: &mut [f64], unit: &[f64], squarings: u32) -> bool {
        let mut moved = false;
        for ((pair, uses), counts) in self.pairs.iter().zip(&self.uses).zip(counts) {
            if uses.len() < 2 {
                continue;
            }
            for from in 0..uses.len() {
                if counts[from] == 0 {
                    continue;
                }
                add(load, &uses[from], unit, -1.0);
                let cost = |way: usize| {
                    let hops = pair.ways[way].hops.len() as f64;
                    let of_wire = |&(wire, times): &(u32, f64)| {
                        let (before, wire) = (load[wire as usize], wire as usize);
                        power(before + times * unit[wire], squarings) - power(before, squarings)
                    };
                    HOP * hops + uses[way].iter().map(of_wire).sum::<f64>()
                };
                let here = cost(from);
                let mut best = (from, here);
                for way in (0..uses.len()).filter(|way| *way != from) {
                    let there = cost(way);
                    // A gain that is not mere rounding, so that passes end.
                    if there < best.1 * (1.0 - 1e-9) {
                        best = (way, there);
                    }
                }
                add(load, &uses[best.0], unit, 1.0);
                if best.0 != from {
                    counts[from] -= 1;
                    counts[best.0] += 1;
                    moved = true;
                }
            }
        }
        moved
    }
}

fn add(load: &mut [f64], uses: &Uses, unit: &[f64], pieces: f64) {
    for &(wire, times) in uses {
        load[wire as usize] += pieces * times * unit[wire as usize];
    }
}

/// `value` to the power of `2^squarings`.
pub(super) fn power(value: f64, squarings: u32) -> f64 {
    (0..squarings).fold(value, |value, _| value * value)
}

/// Pieces in proportion to the flow of each way, the rest by the largest remainders.
fn by_flow(pair: &Pair, pieces: u32) -> Vec<u32> {
    let all: f64 = pair.ways.iter().map(|way| way.flow).sum();
    let exact: Vec<f64> = pair.ways.iter().map(|way| way.flow / all * f64::from(pieces)).collect();
    let mut counts: Vec<u32> = exact.iter().map(|exact| *exact as u32).collect();
    let missing = pieces.saturating_sub(counts.iter().sum());
    let mut order: Vec<usize> = (0..exact.len()).collect();
    let rest = |way: usize| exact[way] - f64::from(counts[way]);
    order.sort_by(|one, other| rest(*other).total_cmp(&rest(*one)).then(one.cmp(other)));
    order.iter().cycle().take(missing as usize).for_each(|way| counts[*way] += 1);
    counts
}
