//! The bytes that the ranks of a box send out of it, or take into it, together: they share its wires.
//!
//! Invariant: the result is exact for the schedule wherever boxes and ranks are powers of two; elsewhere it is
//! between half and twice the exact one (a test counts). Absent: seconds, and how many wires a box has.

use super::Algorithm;
use crate::{Collective, Schedule};

/// Bytes over the busier direction of the busiest box's wires, in units of the largest buffer of a rank, where ranks
/// are grouped in boxes of `per_box`, in order. 0 where one box holds all ranks; `None` where the algorithm is not
/// defined.
pub fn crossing(algorithm: Algorithm, collective: Collective, ranks: u32, per_box: u32) -> Option<f64> {
    use Collective::{AllGather, AllReduce, Broadcast, Gather, Reduce, ReduceScatter, Scatter};
    if !algorithm.is_defined(collective, ranks) {
        return None;
    }
    if per_box >= ranks || per_box == 0 {
        return Some(0.0);
    }
    let (n, p) = (f64::from(ranks), f64::from(per_box));
    let phases = if collective == AllReduce { 2.0 } else { 1.0 };
    let share = (n - 1.0) / n;
    // Every rank has `each` for every other.
    let everywhere = |each: f64| each * p * (n - p);
    // The ranks of a box whose partner is outside it, in a round whose partners are this far away.
    let outside = |distance: u32| f64::from(distance.min(per_box).min(ranks - distance));
    let aligned = |distance: u32| {
        // Partners differ in one bit: a box of a power of two holds both or none.
        if per_box.is_power_of_two() && distance < per_box { 0.0 } else { outside(distance) }
    };
    let distances = || std::iter::successors(Some(1u32), |distance| distance.checked_mul(2));
    let distances = || distances().take_while(|distance| *distance < ranks);
    Some(match (algorithm, collective) {
        (Algorithm::Pair, _) => 1.0,
        (Algorithm::Ring { .. }, Broadcast | Reduce) => 1.0,
        (Algorithm::Ring { .. }, _) => phases * share,
        (Algorithm::Tree | Algorithm::RailTrees { .. } | Algorithm::Imported(_), _) => {
            counted(&algorithm.schedule(collective, ranks), per_box)
        }
        (Algorithm::Doubling, _) => distances().map(aligned).sum(),
        (Algorithm::HalvingDoubling, AllGather) => {
            distances().map(|distance| aligned(distance) * f64::from(distance) / n).sum()
        }
        (Algorithm::HalvingDoubling, _) => {
            let halves = distances().map(|distance| aligned(distance) / f64::from(2 * distance));
            phases * halves.sum::<f64>()
        }
        (Algorithm::Swing, _) => {
            // 1, 1, 3, 5, 11, …: half of the data to the nearest, then half of the rest.
            let hops = std::iter::successors(Some((1u32, 1u32)), |(now, next)| Some((*next, next + 2 * now)));
            let hops = hops.take(distances().count()).zip(distances());
            let volume =
                |((hop, _), halving): ((u32, u32), u32)| outside(hop.min(ranks / 2)) / f64::from(2 * halving);
            phases * hops.map(volume).sum::<f64>()
        }
        (Algorithm::Bruck { radix }, Collective::AllToAll) => {
            let radix = u32::from(radix);
            let powers = std::iter::successors(Some(1u32), |power| power.checked_mul(radix));
            let powers = powers.take_while(|power| *power < ranks);
            // A block for the rank `away` makes a hop for each of its digits.
            let of = |power: u32| {
                let hops = (1..ranks).map(move |away| away / power % radix * power).filter(|hop| *hop > 0);
                hops.map(outside).sum::<f64>() / n
            };
            powers.map(of).sum()
        }
        (Algorithm::Bruck { .. }, _) => {
            distances().map(|distance| outside(distance) * f64::from(distance) / n).sum()
        }
        (Algorithm::Pat, _) => {
            // In the opposite order: the data that goes far is small.
            let volume = |distance: u32| f64::from(ranks.next_power_of_two() / (2 * distance)) / n;
            distances().map(|distance| outside(distance) * volume(distance)).sum()
        }
        (Algorithm::Pairwise | Algorithm::Spread, _) => everywhere(1.0 / n),
        (Algorithm::Binomial, Gather | Scatter) => (n - p) / n,
        (Algorithm::Binomial, _) => distances().filter(|distance| *distance >= per_box).count() as f64,
        (Algorithm::ScatterAllGather, _) => (n - p) / n + share,
        (Algorithm::Direct { .. }, Broadcast | Reduce) => n - p,
        (Algorithm::Direct { .. }, Gather | Scatter) => (n - p) / n,
        (Algorithm::Direct { .. }, AllReduce) => everywhere(1.0),
        (Algorithm::Direct { .. }, _) => everywhere(1.0 / n),
        (Algorithm::TwoShot, _) => everywhere(2.0 / n),
        (
            Algorithm::Hierarchical { per_box: inside } | Algorithm::Rails { per_box: inside, .. },
            AllReduce | ReduceScatter | AllGather,
        ) if inside == per_box => phases * (n / p - 1.0) * p / n,
        (Algorithm::BoxTree { per_box: inside }, _) if inside == per_box => match ranks / per_box {
            2 => 1.0,
            3 => 1.5,
            _ => 2.0,
        },
        (Algorithm::BoxChain { per_box: inside, .. }, _) if inside == per_box => 1.0,
        (Algorithm::TwoLevel { per_box: inside }, _) if inside == per_box => everywhere(1.0 / n),
        (Algorithm::BlueConnect { dimensions }, _) => {
            let (mut stride, mut all) = (1u32, 0.0);
            for along in dimensions.map(u32::from) {
                let volume = f64::from(along - 1) / f64::from(along * stride);
                let within = per_box.is_multiple_of(stride * along);
                all += if within { 0.0 } else { volume * f64::from(stride.min(per_box)) };
                stride *= along;
            }
            phases * all
        }
        (Algorithm::Coordinated, Collective::AllToAllReplicated { group }) => {
            let group = f64::from(group);
            // Boxes hold whole groups, or a group is on several boxes.
            let parts = if group <= p { (n - p) / group } else { (n / group - 1.0) * (1.0 + group - p) };
            p * parts / n
        }
        // As many as there can be.
        (_, Broadcast | Reduce) => p.min(n - p),
        (_, Collective::AllToAll) => everywhere(1.0 / n),
        _ => phases * share * p,
    })
}

/// The same, counted from a schedule.
fn counted(schedule: &Schedule, per_box: u32) -> f64 {
    let boxes = schedule.ranks.div_ceil(per_box) as usize;
    let (mut out, mut into) = (vec![0u64; boxes], vec![0u64; boxes]);
    for transfer in schedule.rounds.iter().flat_map(|round| &round.transfers) {
        let [from, to] = [transfer.from, transfer.to].map(|rank| (rank.0 / per_box) as usize);
        if from != to {
            out[from] += 1;
            into[to] += 1;
        }
    }
    let chunks = [
        schedule.partition.input_chunks(schedule.collective, schedule.ranks),
        schedule.partition.output_chunks(schedule.collective, schedule.ranks),
    ];
    let largest = f64::from(chunks[0].max(chunks[1]).max(1));
    out.into_iter().chain(into).max().unwrap_or(0) as f64 / largest
}

#[cfg(test)]
mod tests {
    use super::super::{Shape, candidates};
    use super::*;

    #[test]
    fn what_is_said_to_cross_is_what_the_schedules_send() {
        let shapes =
            [(8, 2), (8, 4), (16, 4), (16, 8), (32, 8), (64, 8), (64, 16), (12, 3), (24, 8), (40, 8)];
        let (mut compared, mut wrong) = (0, Vec::new());
        for (ranks, per_box) in shapes {
            let shape = Shape {
                per_box,
                channels: 2,
                bidirectional: true,
                all_pairs: false,
                rails: per_box,
                ..Shape::default()
            };
            let replicated = [1, 2, 4, 8, 16, 32].map(|group| Collective::AllToAllReplicated { group });
            let replicated = replicated.into_iter().filter(|collective| collective.fits(ranks));
            for collective in Collective::ALL.into_iter().chain(replicated) {
                for algorithm in candidates(collective, ranks, &shape) {
                    let said = crossing(algorithm, collective, ranks, per_box).expect("it is defined");
                    let is = counted(&algorithm.schedule(collective, ranks), per_box);
                    let rounded = matches!(algorithm, Algorithm::Swing | Algorithm::ScatterAllGather);
                    let exact = ranks.is_power_of_two() && !rounded;
                    let is_right =
                        if exact { (said - is).abs() < 1e-9 } else { said >= is / 2.0 && said <= is * 2.0 };
                    if !is_right {
                        wrong.push(format!(
                            "{algorithm} of {collective}, boxes of {per_box} of {ranks}: {said}, is {is}"
                        ));
                    }
                    compared += 1;
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(compared > 200, "{compared}");
    }
}
