//! The bound, added up from its witness.
//!
//! | argument | collective | no schedule is faster because |
//! |---|---|---|
//! | `gather-cut` | all-gather | each rank in the set must push its block out of it |
//! | | reduce-scatter | each rank outside of the set must get its folded block from it |
//! | `cut` | broadcast, reduce, all-reduce | the whole vector must leave the set |
//! | `counting` | all-reduce without switches that fold | each element needs `2 (b - 1)` messages between `b` parts of the ranks |
//! | `pairs-cut` | all-to-all | every rank in the set sends a block to every rank outside |
//! | `distance` | all-to-all | each block uses up at least the distance it travels of the sum of capacities, each times its length |

use crate::network::Network;
use crate::number::Fraction;
use crate::parse::{Certificate, Side};
use crate::{Refused, refused};

/// Ranks times links, at most, where each rank needs a look at each link.
const WORK_MAX: usize = 1 << 30;

/// The rate that the witness proves, in bytes of the vector a second.
pub(crate) fn bound(certificate: &Certificate, network: &Network) -> Result<Fraction, Refused> {
    let (argument, line) = (certificate.witness.argument.0.as_str(), certificate.witness.argument.1);
    let fits = match (argument, certificate.collective.0) {
        ("gather-cut", "all_gather" | "reduce_scatter") | ("cut", "all_reduce" | "broadcast" | "reduce") => {
            true
        }
        ("counting", "all_reduce") => {
            !certificate.transfers().any(|of| of.from.max(of.to) >= certificate.ranks)
        }
        ("pairs-cut" | "distance", "all_to_all") => true,
        _ => false,
    };
    if !fits {
        return refused(line, "this argument proves nothing of this collective");
    }
    let work = network.arcs.len().saturating_mul(network.ranks);
    if work > WORK_MAX && matches!(argument, "counting" | "distance") {
        return refused(line, "too many ranks and links to be added up");
    }
    let found = match argument {
        "counting" => counting(certificate, network)?,
        "distance" => distance(certificate, network),
        _ => cut(certificate, network)?,
    };
    found.map_or_else(|| refused(line, "the witness proves no number, or one that is too large"), Ok)
}

fn cut(certificate: &Certificate, network: &Network) -> Result<Option<Fraction>, Refused> {
    let [side @ Side { counts: "sends", .. }] = &certificate.witness.sides[..] else {
        return refused(certificate.witness.argument.1, "a cut is one set that sends");
    };
    let sending = network.inside(side);
    let within = sending[..network.ranks].iter().filter(|inside| **inside).count() as u128;
    let (ranks, outside) = (network.ranks as u128, network.ranks as u128 - within);
    if within == 0 || outside == 0 {
        return refused(side.line, "all ranks are on one side");
    }
    let (times, through) = match (certificate.collective.0, sending[certificate.root as usize]) {
        ("all_gather", _) => (ranks, within),
        ("reduce_scatter", _) => (ranks, outside),
        ("all_to_all", _) => (ranks, within * outside),
        ("all_reduce", _) | ("broadcast", true) | ("reduce", false) => (1, 1),
        _ => return refused(side.line, "the root is on the wrong side"),
    };
    let out = network.out_of(&sending).and_then(|out| out.checked_mul(times));
    Ok(out.and_then(|out| Fraction::new(out, through)))
}

fn counting(certificate: &Certificate, network: &Network) -> Result<Option<Fraction>, Refused> {
    let sides = &certificate.witness.sides;
    let mut of_part = vec![false; network.ranks];
    let mut sum = Some(0u128);
    for side in sides {
        let mut inside = network.inside(side);
        let ranks: Vec<usize> = (0..network.ranks).filter(|rank| inside[*rank]).collect();
        let is_taken = ranks.iter().any(|rank| std::mem::replace(&mut of_part[*rank], true));
        if ranks.is_empty() || is_taken || side.counts != sides[0].counts || side.counts == "sends" {
            return refused(side.line, "no part with ranks of its own, or not counted as the others");
        }
        if side.counts == "enters" {
            inside.iter_mut().for_each(|inside| *inside = !*inside);
        }
        sum = sum.and_then(|sum| sum.checked_add(network.out_of(&inside)?));
    }
    if of_part.contains(&false) || sides.len() < 2 {
        return refused(certificate.witness.argument.1, "a rank is in no part, or there is one part");
    }
    Ok(sum.and_then(|sum| Fraction::new(sum, 2 * (sides.len() as u128 - 1))))
}

/// None where a rank is not reached, all distances are 0, or a number does not fit.
fn distance(certificate: &Certificate, network: &Network) -> Option<Fraction> {
    let length = |part| certificate.witness.lengths.get(&part).copied().unwrap_or(0);
    let lengths: Vec<u64> = network.arcs.iter().map(|arc| length(arc.part)).collect();
    let mut volume = 0u128;
    let mut leaving = vec![Vec::new(); network.nodes];
    for (number, (arc, length)) in network.arcs.iter().zip(&lengths).enumerate() {
        leaving[arc.from].push(number);
        if *length > 0 {
            volume = volume.checked_add(arc.capacity.checked_mul(u128::from(*length))?)?;
        }
    }
    let mut sum = 0u128;
    for source in 0..network.ranks {
        for far in &network.distances(&leaving, &lengths, source)[..network.ranks] {
            sum = sum.checked_add(Some(*far).filter(|far| *far != u128::MAX)?)?;
        }
    }
    Fraction::new(volume.checked_mul(network.ranks as u128)?, sum)
}
