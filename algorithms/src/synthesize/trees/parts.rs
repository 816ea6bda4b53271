//! Few trees over parts of a machine, such as its boxes, that are joined by more than one pair each.
//!
//! Invariant: as in the whole search; a pair is an edge on one rail. Absent: what is inside of a part.

use super::program::Lengths;
use super::span;
use super::wires::Wires;
use super::{COUNTS, Packing};
use crate::bounds::Ratio;

/// Steps of a search for each pair.
const STEPS_PAIR: u64 = 20_000;

/// A pair of parts that may be an edge, and the two limits that it loads once each way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) struct Between {
    pub(in super::super) parts: (u32, u32),
    pub(in super::super) limits: (u32, u32),
}

/// A tree over parts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in super::super) struct Joined {
    pub(in super::super) share: u32,
    /// The parts, parents first, each with its parent and the number of the pair between them; none for the first.
    pub(in super::super) order: Vec<(u32, Option<(u32, u32)>)>,
}

/// The fastest trees over `parts` parts that are found with at most eight trees; none where pairs do not join them.
pub(in super::super) fn joined(parts: usize, capacity: Vec<u64>, between: &[Between]) -> Option<Vec<Joined>> {
    let pairs: Vec<(u32, u32)> = between.iter().map(|of| of.parts).collect();
    let loads = between.iter().map(|of| vec![(of.limits.0, 1), (of.limits.1, 1)]).collect();
    let wires = Wires::of(parts, capacity, pairs, loads);
    // Every edge takes of two limits, so that all limits as lengths of 1 prove something.
    let lengths = Lengths { of: vec![1; wires.capacity.len()], shortest: 2 * (parts as u64 - 1) };
    let limit = lengths.limit(&wires);
    let packing = Packing { wires, lengths, limit, bound: limit };
    let (counts, _) = COUNTS[FEW].clone();
    let mut steps = STEPS_PAIR * between.len() as u64;
    let found = packing.fastest(counts, Ratio::ZERO, &mut steps)?;
    let tree = |(pairs, share): (&Vec<u32>, &u64)| hung(parts, between, pairs, *share as u32);
    found.pairs.iter().zip(&found.shares).map(tree).collect()
}

/// The tree of these pairs from its centre; none where they do not join all parts.
pub(in super::super) fn hung(parts: usize, between: &[Between], pairs: &[u32], share: u32) -> Option<Joined> {
    let mut near = vec![Vec::new(); parts];
    for (one, other) in pairs.iter().map(|pair| between[*pair as usize].parts) {
        near[one as usize].push(other);
        near[other as usize].push(one);
    }
    let reached = span::reached(&near, span::centre(&near));
    let above = |part: u32, parent: u32| {
        let ends = (part.min(parent), part.max(parent));
        let pair = pairs.iter().find(|pair| between[**pair as usize].parts == ends)?;
        Some((parent, *pair))
    };
    let is_whole = reached.len() == parts && pairs.len() + 1 == parts;
    let order =
        reached.into_iter().map(|(part, parent, _)| (part, parent.and_then(|parent| above(part, parent))));
    is_whole.then(|| Joined { share, order: order.collect() })
}

/// The step of the frontier with five to eight trees.
const FEW: usize = 3;
