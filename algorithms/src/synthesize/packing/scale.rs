//! How fast each tree is: from bytes a second to whole trees.
//!
//! Trees of `y` bytes a second need `floor(capacity / y)` of an edge. With the optimum's own number of trees nothing is
//! lost by that; with fewer, the fastest `y` with which the floors suffice is searched for. Invariant: exact.

use std::collections::BTreeSet;

use super::TREES_MAX;
use crate::bounds::Ratio;
use crate::bounds::network::Network;
use crate::bounds::ratio::gcd;

/// The capacities of a machine and what trees of a root can carry together.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    /// Different ones, bytes a second.
    capacities: Vec<u128>,
    /// Bytes a second of all trees of a root.
    root: Ratio,
}

/// Halvings of a speed that is too fast.
const HALVINGS_MAX: u32 = 40;

/// The most speeds that are listed.
const SPEEDS_MAX: usize = 1 << 16;

impl Scale {
    /// None where nothing reaches every rank.
    pub(super) fn new(network: &Network, root: Ratio) -> Option<Scale> {
        let capacities: BTreeSet<u128> = network.arcs.iter().map(|arc| arc.capacity).collect();
        (!root.is_zero()).then(|| Scale { capacities: capacities.into_iter().collect(), root })
    }

    /// The trees of a root with which every capacity is a whole number of trees at the optimum; none where these are
    /// too many.
    pub(super) fn optimal_trees(&self) -> Option<u32> {
        let common = self.capacities.iter().copied().reduce(gcd)?;
        let trees = self.root.checked_mul(Ratio::new(1, common))?.numerator();
        u32::try_from(trees).ok().filter(|trees| *trees <= TREES_MAX)
    }

    /// Speeds of `trees` trees a root, the fastest for which `carries` first.
    pub(super) fn speeds(&self, trees: u32, carries: impl Fn(Ratio) -> bool) -> Vec<Ratio> {
        let Some(most) = self.root.checked_mul(Ratio::new(1, trees.into())) else { return Vec::new() };
        let half = Ratio::new(1, 2);
        let slower = |speed: &Ratio| speed.checked_mul(half);
        let enough =
            std::iter::successors(Some(most), slower).take(HALVINGS_MAX as usize).find(|y| carries(*y));
        let Some(enough) = enough.and_then(|speed| speed.checked_mul(Ratio::new(1, 2))) else {
            return Vec::new();
        };
        // Floors change where a capacity is a whole number of trees.
        let mut speeds = BTreeSet::from([most, enough]);
        for &capacity in &self.capacities {
            let first = whole(capacity, most);
            let mut number = if Ratio::new(capacity, first.max(1)) > most { first + 1 } else { first.max(1) };
            while Ratio::new(capacity, number) >= enough && speeds.len() < SPEEDS_MAX {
                speeds.insert(Ratio::new(capacity, number));
                number += 1;
            }
        }
        let speeds: Vec<Ratio> = speeds.into_iter().rev().filter(|speed| *speed <= most).collect();
        let first = speeds.partition_point(|speed| !carries(*speed));
        speeds[first..].to_vec()
    }
}

/// `floor(capacity / speed)`.
fn whole(capacity: u128, speed: Ratio) -> u128 {
    capacity * speed.denominator() / speed.numerator()
}
