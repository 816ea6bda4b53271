//! An all-to-all that fills a cut: a flow that shows a bound by pairs across a cut to be exact.
//!
//! Every pair on both sides of the cut sends over each link that crosses it, in proportion to the links' capacities, so
//! that all of them are full at once. What is left are demands within the sides, with room to spare: they are routed in
//! many equal rounds, each over the paths that were used least, and the sums are checked in whole numbers.
//!
//! Invariant: `true` is proved by the flow that was found; `false` means only that none was found.

use std::collections::BTreeMap;

use super::network::Network;
use super::ratio::{Ratio, gcd};
use super::weights::Weights;

/// Rounds in which each demand is routed once.
const ROUNDS: u32 = 1200;
/// Rounds after which the sums start anew: the first paths are taken before it is known what is narrow.
const WARM: u32 = 100;
/// Rounds between two checks.
const CHECK: u32 = 50;
/// The growth of the fullest link in a round; the sums come as near to the best as it is small.
const GROWTH: f64 = 0.03;

/// Whether a flow was found in which every ordered pair of ranks has `rate`; `sending` is one side of a cut.
pub(super) fn fills(network: &Network, sending: &[bool], rate: Ratio) -> bool {
    attempt(network, sending, rate).unwrap_or(false)
}

/// None where a number does not fit.
fn attempt(network: &Network, sending: &[bool], rate: Ratio) -> Option<bool> {
    let common = network.arcs.iter().fold(0, |common, arc| gcd(common, arc.capacity)).max(1);
    let other: Vec<bool> = sending.iter().map(|inside| !inside).collect();
    let (out, into) = (network.out_of(sending) / common, network.out_of(&other) / common);
    let inside = u128::from(network.ranks_in(sending));
    let outside = u128::from(network.ranks) - inside;
    // The links that cross must carry all pairs, either way.
    let narrow = out.min(into).checked_mul(common)?.checked_mul(rate.denominator())?;
    if narrow < rate.numerator().checked_mul(inside * outside)? {
        return Some(false);
    }
    // Demands are in parts of a pair's rate, `out * into` of them.
    let whole = out.checked_mul(into)?;
    let mut demands: BTreeMap<u32, Vec<u128>> = BTreeMap::new();
    let mut demand = |from: usize, to: usize, amount: u128| {
        demands.entry(from as u32).or_insert_with(|| vec![0; network.nodes()])[to] += amount;
    };
    let ranks = 0..network.ranks as usize;
    for from in ranks.clone() {
        for to in ranks.clone().filter(|to| sending[*to] == sending[from] && *to != from) {
            demand(from, to, whole);
        }
    }
    for (side, back, near, far) in [(sending, into, inside, outside), (&other[..], out, outside, inside)] {
        for arc in network.crossing(side) {
            let share = (arc.capacity / common).checked_mul(back)?;
            for rank in ranks.clone() {
                if side[rank] {
                    demand(rank, arc.from as usize, share.checked_mul(far)?);
                } else {
                    demand(arc.to as usize, rank, share.checked_mul(near)?);
                }
            }
        }
    }
    let apart = network.merged(|arc| sending[arc.from as usize] == sending[arc.to as usize]);
    let mut weights = Weights::new(&apart, GROWTH)?;
    let mut total = vec![0u128; apart.arcs.len()];
    for round in 1..=ROUNDS {
        if round == WARM {
            total.fill(0);
        }
        let load = weights.round(&apart, |source| demands.get(&source).map(Vec::as_slice))?;
        total.iter_mut().zip(&load).for_each(|(total, load)| *total += load);
        if round % CHECK == 0 {
            let rounds = if round < WARM { round } else { round - WARM + 1 };
            let parts = whole.checked_mul(rounds.into())?.checked_mul(rate.denominator())?;
            let mut fits = true;
            for (arc, total) in apart.arcs.iter().zip(&total) {
                fits &= total.checked_mul(rate.numerator())? <= arc.capacity.checked_mul(parts)?;
            }
            if fits {
                return Some(true);
            }
        }
    }
    Some(false)
}
