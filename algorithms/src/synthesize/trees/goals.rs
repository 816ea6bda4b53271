//! What a number of trees may reach: whole shares, and the rates at which one more of them fits into a limit.
//!
//! Invariant: goals come with the fastest first; one that lengths rule out is not there. Absent: trees.

use super::fixed::Wanted;
use super::program::Lengths;
use super::wires::Wires;
use crate::bounds::Ratio;

/// A rate with the shares that may reach it.
#[derive(Clone, Debug)]
pub(super) struct Goal {
    pub(super) rate: Ratio,
    pub(super) wanted: Wanted,
}

/// Shares of `trees` trees: all equal, in two sizes, or as [`MIXED`].
pub(super) fn shares(trees: usize) -> Vec<Vec<u64>> {
    let mut all = vec![vec![1; trees]];
    if trees > EQUAL_ABOVE {
        return all;
    }
    for (more, less) in [(2, 1), (3, 2), (4, 3), (3, 1)] {
        all.extend((1..trees).map(|large| {
            let mut of = vec![more; large];
            of.resize(trees, less);
            of
        }));
    }
    all.extend(MIXED.iter().filter(|of| of.len() == trees).map(|of| of.to_vec()));
    all
}

/// Shares in more sizes. Seventeen eighths of what a limit of equal links carries are the first; where each tree ends
/// 30 times at 128 limits, as over 16 boxes of 8 doors, the second leave 2 of 512 quarters.
pub(super) const MIXED: [[u64; 8]; 2] = [[5, 3, 3, 2, 1, 1, 1, 1], [4, 2, 2, 2, 2, 2, 2, 1]];

/// More trees than this have equal shares.
const EQUAL_ABOVE: usize = 8;
/// What lengths prove is taken to be wrong by this part, since they are rounded.
const SLACK: u128 = 1_000_000;

/// The goals of these shares from `least` to `most` bytes a second, `most` not counted in where it is reached.
pub(super) fn goals(
    wires: &Wires,
    lengths: &Lengths,
    shares: &[u64],
    [least, most]: [Ratio; 2],
) -> Vec<Goal> {
    let total: u64 = shares.iter().sum();
    let mut sizes = shares.to_vec();
    sizes.sort_unstable();
    sizes.dedup();
    let mut rates: Vec<Ratio> = vec![most];
    let mut capacities = wires.capacity.clone();
    capacities.sort_unstable();
    capacities.dedup();
    for capacity in capacities {
        let volume = u128::from(capacity) * u128::from(total);
        // A limit takes `load` shares at volume / load.
        let first = floor(volume, most).max(1);
        let end = if least.is_zero() { 4 * first } else { floor(volume, least).min(first + LOADS) };
        rates.extend(
            (first..=end).map(|load| Ratio::new(volume, load)).filter(|rate| (least..most).contains(rate)),
        );
    }
    rates.sort_unstable_by(|one, other| other.cmp(one));
    rates.dedup();
    let goal = |rate: Ratio| {
        let allowed =
            |capacity: &u64| reachable(floor(u128::from(*capacity) * u128::from(total), rate) as u64, &sizes);
        let allowed: Vec<u64> = wires.capacity.iter().map(allowed).collect();
        Goal { rate, wanted: Wanted { shares: shares.to_vec(), allowed } }
    };
    rates.into_iter().map(goal).filter(|goal| is_open(lengths, goal, total)).collect()
}

/// Loads that are tried beyond the least one of a limit.
const LOADS: u128 = 64;

/// `volume / rate`, rounded down.
fn floor(volume: u128, rate: Ratio) -> u128 {
    match volume.checked_mul(rate.denominator()) {
        Some(volume) => volume / rate.numerator().max(1),
        None => volume / (rate.numerator() / rate.denominator()).max(1),
    }
}

/// The largest sum of sizes, each as often as one likes, up to `most`.
fn reachable(most: u64, sizes: &[u64]) -> u64 {
    let is_sum = |sum: u64| match sizes {
        [size] => sum.is_multiple_of(*size),
        [less, more] => (0..=sum / more).any(|times| (sum - times * more).is_multiple_of(*less)),
        // More sizes have 1 among them.
        _ => true,
    };
    // Sizes are small, so that a sum is near.
    (0..=most).rev().find(|sum| is_sum(*sum)).unwrap_or(0)
}

/// Whether allowances hold as much of the lengths as trees take.
fn is_open(lengths: &Lengths, goal: &Goal, total: u64) -> bool {
    let volume: u128 = goal
        .wanted
        .allowed
        .iter()
        .zip(&lengths.of)
        .map(|(load, length)| u128::from(*load) * u128::from(*length))
        .sum();
    let taken = u128::from(lengths.shortest) * u128::from(total);
    volume + volume / SLACK >= taken
}
