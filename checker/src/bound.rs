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

use crate::collective::Collective;
use crate::network::Network;
use crate::number::Fraction;
use crate::parse::Certificate;
use crate::{Refused, refused};

/// The rate that the witness proves, in bytes of the vector a second.
pub(crate) fn bound(certificate: &Certificate) -> Result<Fraction, Refused> {
    let network = Network::new(certificate);
    let (argument, line) = (certificate.argument.0.as_str(), certificate.argument.1);
    let collective = certificate.collective;
    let fits = match argument {
        "gather-cut" => matches!(collective, Collective::AllGather | Collective::ReduceScatter),
        "cut" => collective.is_rooted() || collective == Collective::AllReduce,
        "counting" => {
            let folds =
                certificate.transfers().any(|transfer| transfer.from.max(transfer.to) >= certificate.ranks);
            collective == Collective::AllReduce && !folds
        }
        "pairs-cut" | "distance" => collective == Collective::AllToAll,
        _ => false,
    };
    if !fits {
        return refused(line, format!("this argument proves nothing of this {collective}"));
    }
    let found = match argument {
        "counting" => counting(certificate, &network)?,
        "distance" => distance(certificate, &network),
        _ => cut(certificate, &network)?,
    };
    found.map_or_else(|| refused(line, "the witness proves no number, or one that is too large"), Ok)
}

fn cut(certificate: &Certificate, network: &Network) -> Result<Option<Fraction>, Refused> {
    let [side] = &certificate.sides[..] else {
        return refused(certificate.argument.1, "a cut is one set");
    };
    if side.counts != "sends" {
        return refused(side.line, "a cut is a set that sends");
    }
    let sending = network.inside(side);
    let (ranks, within) = (network.ranks as u128, network.ranks_in(&sending));
    let outside = ranks - within;
    if within == 0 || outside == 0 {
        return refused(side.line, "all ranks are on one side");
    }
    let root_sends = sending[certificate.root as usize];
    let (times, through) = match certificate.collective {
        Collective::AllGather => (ranks, within),
        Collective::ReduceScatter => (ranks, outside),
        Collective::AllToAll => (ranks, within * outside),
        Collective::AllReduce => (1, 1),
        Collective::Broadcast if root_sends => (1, 1),
        Collective::Reduce if !root_sends => (1, 1),
        _ => return refused(side.line, "the root is on the wrong side"),
    };
    let out = network.out_of(&sending).and_then(|out| out.checked_mul(times));
    Ok(out.and_then(|out| Fraction::new(out, through)))
}

fn counting(certificate: &Certificate, network: &Network) -> Result<Option<Fraction>, Refused> {
    let sides = &certificate.sides;
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
        return refused(certificate.argument.1, "a rank is in no part, or there is one part");
    }
    Ok(sum.and_then(|sum| Fraction::new(sum, 2 * (sides.len() as u128 - 1))))
}

/// None where a rank is not reached, all distances are 0, or a number does not fit.
fn distance(certificate: &Certificate, network: &Network) -> Option<Fraction> {
    let length = |part| certificate.lengths.get(&part).copied().unwrap_or(0);
    let lengths: Vec<u64> = network.arcs.iter().map(|arc| length(arc.part)).collect();
    let mut volume = 0u128;
    let mut leaving = vec![Vec::new(); network.nodes];
    for (number, (arc, length)) in network.arcs.iter().zip(&lengths).enumerate() {
        leaving[arc.from].push(number);
        if *length > 0 {
            volume = volume.checked_add(arc.capacity?.checked_mul(u128::from(*length))?)?;
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
