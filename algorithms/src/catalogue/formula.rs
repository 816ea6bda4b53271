//! The cost of algorithms by formulas, for numbers of ranks whose schedules are too long to build.
//!
//! Invariant: steps and bytes are those of the schedule wherever one is built (a test compares them). Between powers
//! of two they are the next power's where the exact value has no short form. Algorithms that know boxes have figures
//! inside and between them; all others count as crossing boxes at every step. Absent: contention, which the simulator
//! and [`crossing`](super::crossing()) have.

use super::Algorithm;
use crate::Collective;

/// Steps that follow each other and bytes over the busiest port, on one kind of links.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Level {
    /// Messages that follow each other.
    pub steps: f64,
    /// Bytes over the busiest port, in units of the largest buffer of a rank.
    pub volume: f64,
}

/// The price of an algorithm as `steps * alpha + bytes * beta` on two kinds of links.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Formula {
    /// Within a box.
    pub inside: Level,
    /// Between boxes, or between any ranks where an algorithm knows no boxes.
    pub between: Level,
    /// Messages that the busiest rank sends or receives besides the steps; each costs time of that rank.
    pub besides: f64,
}

impl Formula {
    /// All steps.
    pub fn steps(&self) -> f64 {
        self.inside.steps + self.between.steps
    }

    /// All bytes over the busiest port, in units of the largest buffer of a rank.
    pub fn volume(&self) -> f64 {
        self.inside.volume + self.between.volume
    }
}

fn flat(steps: f64, volume: f64) -> Option<Formula> {
    Some(Formula { between: Level { steps, volume }, ..Formula::default() })
}

/// One step in which the busiest rank has `messages`.
fn at_once(steps: f64, messages: f64, volume: f64) -> Option<Formula> {
    flat(steps, volume).map(|formula| Formula { besides: messages - steps, ..formula })
}

fn levels(inside: (f64, f64), between: (f64, f64)) -> Option<Formula> {
    let level = |(steps, volume)| Level { steps, volume };
    Some(Formula { inside: level(inside), between: level(between), besides: 0.0 })
}

/// Digits of the numbers below `ranks` to the base 2: rounds of halving and doubling.
fn log2(ranks: f64) -> f64 {
    f64::from(u32::BITS - ((ranks as u32).max(1) - 1).leading_zeros())
}

/// Over `n` ranks in groups: parts between groups, one group after the other, and the last part within a group.
fn coordinated(n: f64, group: f64) -> Option<Formula> {
    let others = n / group - 1.0;
    let gathers = if group > 1.0 && others > 0.0 { 1.0 } else { 0.0 };
    levels((gathers, others * (group - 1.0) / n), (others, others / n))
}

/// The formula of `algorithm`; `None` where it is not defined.
pub fn formula(algorithm: Algorithm, collective: Collective, ranks: u32) -> Option<Formula> {
    use Collective::{
        AllGather, AllReduce, AllToAll, AllToAllReplicated, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
    };
    if !algorithm.is_defined(collective, ranks) {
        return None;
    }
    let n = f64::from(ranks);
    let log = log2(n);
    let share = (n - 1.0) / n;
    let phases = if collective == AllReduce { 2.0 } else { 1.0 };
    match (algorithm, collective) {
        (Algorithm::Pair, _) => flat(1.0, 1.0),
        (Algorithm::Ring { .. }, Broadcast | Reduce) => flat(n - 1.0, 1.0),
        (Algorithm::Ring { .. }, _) => flat(phases * (n - 1.0), phases * share),
        (Algorithm::Tree, AllReduce) => flat(2.0 * log, 2.0),
        (Algorithm::Tree, _) => flat(log, 1.0),
        (Algorithm::Doubling, _) => flat(log, log),
        (Algorithm::HalvingDoubling | Algorithm::Swing, _) => flat(phases * log, phases * share),
        (Algorithm::Bruck { radix }, AllToAll) => {
            let base = f64::from(radix);
            // In whole numbers: a logarithm may differ from machine to machine.
            let powers = std::iter::successors(Some(1u64), |power| Some(power * u64::from(radix)));
            let digits = powers.take_while(|&power| power < u64::from(ranks)).count() as f64;
            flat((base - 1.0) * digits, (base - 1.0) / base * digits)
        }
        (Algorithm::Bruck { .. } | Algorithm::Pat, _) => flat(log, share),
        (Algorithm::Pairwise, _) => flat(n - 1.0, share),
        (Algorithm::Spread, _) => at_once(1.0, n - 1.0, share),
        (Algorithm::Binomial, Gather | Scatter) => flat(log, share),
        (Algorithm::Binomial, _) => flat(log, log),
        (Algorithm::ScatterAllGather, _) => flat(log + n - 1.0, 2.0 * share),
        (Algorithm::Direct { .. }, AllReduce | Broadcast | Reduce) => at_once(1.0, n - 1.0, n - 1.0),
        (Algorithm::Direct { .. }, _) => at_once(1.0, n - 1.0, share),
        (Algorithm::TwoShot, _) => at_once(2.0, 2.0 * (n - 1.0), 2.0 * share),
        (Algorithm::Hierarchical { per_box }, AllReduce | ReduceScatter | AllGather) => {
            let (inside, boxes) = (f64::from(per_box), n / f64::from(per_box));
            levels(
                (phases * (inside - 1.0), phases * (inside - 1.0) / inside),
                (phases * (boxes - 1.0), phases * (boxes - 1.0) / n),
            )
        }
        (Algorithm::Hierarchical { per_box }, _) => {
            let (inside, boxes) = (f64::from(per_box), n / f64::from(per_box));
            levels((inside - 1.0, if per_box > 1 { 1.0 } else { 0.0 }), (boxes - 1.0, 1.0))
        }
        (Algorithm::Rails { per_box, .. }, _) => {
            let (inside, boxes) = (f64::from(per_box), n / f64::from(per_box));
            levels((0.0, phases * (inside - 1.0) / inside), (phases * boxes, phases * (boxes - 1.0) / n))
        }
        (Algorithm::RailTrees { .. } | Algorithm::Switched { .. }, _) => None,
        (Algorithm::Coordinated, AllToAllReplicated { group }) => coordinated(n, group.into()),
        (Algorithm::Coordinated, _) => None,
        (Algorithm::BlueConnect { dimensions }, _) => {
            let steps: f64 = dimensions.iter().map(|&along| f64::from(along) - 1.0).sum();
            flat(phases * steps, phases * share)
        }
        (Algorithm::BoxTree { per_box }, _) => {
            let (inside, boxes) = (f64::from(per_box), n / f64::from(per_box));
            // A leader's share of two trees over few boxes.
            let volume = match ranks / per_box {
                1 => 0.0,
                2 => 1.0,
                3 => 1.5,
                _ => 2.0,
            };
            levels((2.0 * (inside - 1.0), if per_box > 1 { 1.0 } else { 0.0 }), (2.0 * log2(boxes), volume))
        }
        (Algorithm::BoxChain { per_box, .. }, _) => {
            let (inside, boxes) = (f64::from(per_box), n / f64::from(per_box));
            let volume = |level: f64| if level > 1.0 { 1.0 } else { 0.0 };
            levels((inside - 1.0, volume(inside)), (boxes - 1.0, volume(boxes)))
        }
        (Algorithm::Imported(of), _) => {
            let cost = of.schedule().cost();
            let busiest = f64::from(cost.out_pieces.max(cost.into_pieces));
            flat(f64::from(cost.depth), busiest / f64::from(cost.largest_pieces))
        }
        (Algorithm::TwoLevel { per_box }, _) => {
            let (inside, boxes) = (f64::from(per_box), n / f64::from(per_box));
            levels((inside - 1.0, (inside - 1.0) / inside), (boxes - 1.0, (boxes - 1.0) / boxes))
        }
    }
}
