//! One rank's part of a measurement: every candidate in turn, round after round, on the same data.
//!
//! Invariant: all ranks make the same calls in the same order; what is decided while running (calls, rounds,
//! candidates, the end of the time) is decided from numbers that all ranks have gathered. Every candidate's
//! result is checked once per size before it is timed. Candidates are measured out of place: inputs do not
//! change from call to call. Absent: files and tables; only rank 0 has results.

use std::time::Instant;

use consort::DataType;
use consort::planning::{self, Algorithm, Explanation};

use crate::backend::Member;
use crate::bounds;
use crate::buffers::Guarded;
use crate::collective::{Collective, Work};
use crate::data::{Data, Pair, Placement};
use crate::failure::{Exit, Failure};
use crate::group::{Group, gather_numbers};
use crate::operator::Operator;
use crate::planned;
use crate::samples::{Sample, Samples};
use crate::sizes::{Sweep, human};
use crate::statistics::percentile;

/// Calls follow each other without a barrier for about this long, seconds.
const BATCH_S: f64 = 1e-3;
/// The most of them.
const CALLS_MOST: f64 = 1000.0;
/// What one candidate and size may take, seconds, unless that is too little for [`ROUNDS_LEAST`].
const CANDIDATE_S: f64 = 0.4;
/// The fewest rounds, and the fewest where the time is limited.
const ROUNDS_LEAST: [u64; 2] = [7, 3];
/// The most, of batches and of single calls.
const ROUNDS_MOST: [u64; 2] = [51, 201];
/// What is measured: the type and the operator that training uses most.
const DATA_TYPE: DataType = DataType::Float32;

/// What is to be measured.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) collectives: Vec<Collective>,
    pub(crate) sweep: Sweep,
    /// Whether a barrier follows each call, so that no rank is ahead of the others.
    pub(crate) blocking: bool,
    /// Rounds; `None` for as many as fit.
    pub(crate) repeats: Option<u64>,
    /// Also candidates that fold in another order than the planner's choice.
    pub(crate) any_bits: bool,
    /// Seconds for everything.
    pub(crate) budget_s: Option<f64>,
    pub(crate) seed: u64,
}

/// One collective and size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Point {
    measured: Collective,
    planned: planning::Collective,
    block_bytes: u64,
    /// Of a rank's larger buffer.
    size: u64,
}

impl Order {
    /// Blocks are powers of two, since a choice is made once for all sizes between two of them.
    fn points(&self, ranks: u32) -> Vec<Point> {
        let point = |measured: Collective, size: u64| {
            let planned = planned::of(measured)?;
            let bytes = planned::block_bytes(planned, size, ranks);
            let block_bytes = 1 << bytes.checked_ilog2()?;
            let size = block_bytes * planned::blocks(planned, ranks);
            (block_bytes >= DATA_TYPE.size() as u64).then_some(Point { measured, planned, block_bytes, size })
        };
        let collectives = self.collectives.iter();
        let all = collectives.flat_map(|one| self.sweep.sizes().filter_map(move |size| point(*one, size)));
        let mut points: Vec<Point> = all.collect();
        points.dedup();
        points
    }

    fn work(&self, point: Point, ranks: u32) -> Work {
        let Point { measured, size, .. } = point;
        let shape = measured.shape(size, DATA_TYPE.size(), ranks);
        Work { collective: measured, data_type: DATA_TYPE, op: Operator::Sum, root: 0, shape }
    }

    /// The largest send and receive buffers, in bytes.
    fn buffer_bytes(&self, ranks: u32) -> (usize, usize) {
        let shapes = self.points(ranks).into_iter().map(|point| self.work(point, ranks).shape);
        let largest =
            shapes.fold((0, 0), |(send, receive), shape| (shape.send.max(send), shape.receive.max(receive)));
        (largest.0 * DATA_TYPE.size(), largest.1 * DATA_TYPE.size())
    }

    /// Calls without a barrier, and rounds, for a candidate that takes `call_s`.
    fn effort(&self, call_s: f64, allowed_s: f64) -> (u64, u64) {
        let blocking = self.blocking;
        let most = if blocking { 1.0 } else { CALLS_MOST };
        let calls = (BATCH_S / call_s.max(1e-9)).clamp(1.0, most).floor();
        let fit = allowed_s / (calls * call_s.max(1e-9));
        let least = ROUNDS_LEAST[usize::from(self.budget_s.is_some())];
        let rounds = self.repeats.unwrap_or((fit as u64).clamp(least, ROUNDS_MOST[usize::from(blocking)]));
        (calls as u64, rounds)
    }

    /// What a rank needs in memory.
    pub(crate) fn rank_bytes(&self, ranks: u32) -> u64 {
        let (send, receive) = self.buffer_bytes(ranks);
        let footprint = |bytes: usize| Guarded::footprint(bytes as u64, 0);
        bounds::rank_bytes(footprint(send).saturating_add(footprint(receive)))
    }
}

/// Measures everything. `say` takes rank 0's lines as they come.
pub(crate) fn run(order: &Order, member: &Member, say: &mut dyn FnMut(&str)) -> Result<Samples, Failure> {
    let (send, receive) = order.buffer_bytes(member.size());
    let pair = Pair { send: Guarded::new(send, 0, false)?, receive: Guarded::new(receive, 0, false)? };
    let mut run = Run { order, member, pair, round: 0, begun: Instant::now() };
    let mut samples = Samples { machine: member.planning().machine(), all: Vec::new() };
    let points = order.points(member.size());
    for (index, point) in points.iter().enumerate() {
        let left_s = run.left_s()?;
        if left_s <= 0.0 {
            let left_out = points.len() - index;
            say(&format!(
                "# the time is used up: the last {left_out} of {} sizes are left out",
                points.len()
            ));
            break;
        }
        let measured = run.point(*point, left_s / (points.len() - index) as f64)?;
        if member.rank() == 0 {
            say(&line(&measured));
            samples.all.extend(measured);
        }
    }
    Ok(samples)
}

/// The names of the columns of [`line()`].
pub(super) fn heading() -> String {
    let [collective, ranks, size, best, time] = ["collective", "ranks", "size", "fastest", "us"];
    format!(
        "# {collective:<14} {ranks:>5} {size:>9}  {best:<24} {time:>10}  {:<24} {time:>10} {:>6}",
        "chosen", "ratio"
    )
}

/// One size for people: the fastest, what the planner chose, and how much slower that is.
fn line(samples: &[Sample]) -> String {
    let Some(fastest) = super::fastest(samples) else { return "# nothing was measured".into() };
    let Sample { collective, ranks, size, algorithm, median_us, .. } = fastest;
    let (chosen, time, ratio) = match samples.iter().find(|sample| sample.chosen) {
        Some(chosen) => (chosen.algorithm.to_string(), chosen.median_us, super::ratio(samples)),
        None => ("-".into(), f64::NAN, f64::NAN),
    };
    let mark = if super::is_far(samples) { " <" } else { "" };
    let noise = if super::is_noisy(samples) { " ~" } else { "" };
    format!(
        "# {:<14} {ranks:>5} {:>9}  {:<24} {median_us:>10.2}  {chosen:<24} {time:>10.2} {ratio:>6.2}{mark}{noise}",
        collective.name(),
        human(*size),
        algorithm.to_string(),
    )
}

struct Run<'a> {
    order: &'a Order,
    member: &'a Member,
    pair: Pair,
    /// Counts the times that data was written, so that each has its own.
    round: u64,
    begun: Instant,
}

/// One algorithm and what it took, seconds a call.
struct Candidate {
    member: Member,
    algorithm: Algorithm,
    calls: u64,
    rounds: u64,
    times: Vec<f64>,
}

impl Run<'_> {
    /// Rank 0's numbers.
    fn agree(&self, mine: &[f64]) -> Result<Vec<f64>, Failure> {
        Ok(gather_numbers(self.member, mine)?.swap_remove(0))
    }

    /// The slowest rank's.
    fn slowest(&self, mine: &[f64]) -> Result<Vec<f64>, Failure> {
        let all = gather_numbers(self.member, mine)?;
        let slowest = |index: usize| all.iter().map(|numbers| numbers[index]).fold(0.0, f64::max);
        Ok((0..mine.len()).map(slowest).collect())
    }

    fn left_s(&self) -> Result<f64, Failure> {
        let elapsed = self.agree(&[self.begun.elapsed().as_secs_f64()])?[0];
        Ok(self.order.budget_s.map_or(f64::INFINITY, |budget| budget - elapsed))
    }

    fn candidates(&self, point: Point) -> Result<Vec<Candidate>, Failure> {
        let planning = self.member.planning();
        let mut all = planning.candidates(point.planned).map_err(planned::refused)?;
        // Other processes do not know the names of what was found on this machine, and would take none of the table.
        all.retain(|algorithm| !planning.is_searched(*algorithm, point.planned));
        let chosen = planning.algorithm(point.planned, point.block_bytes).map_err(planned::refused)?;
        let mut kept = vec![1.0; all.len()];
        if !self.order.any_bits && point.planned.reduces() {
            // Proofs take time, so one rank makes them for all.
            let fold = |algorithm: Algorithm| planning.fold_hash(algorithm, point.planned);
            let same = |algorithm: &Algorithm| *algorithm == chosen || fold(*algorithm) == fold(chosen);
            let mine =
                if self.member.rank() == 0 { all.iter().map(same).collect() } else { vec![false; all.len()] };
            let mine: Vec<f64> = mine.into_iter().map(|same| f64::from(u8::from(same))).collect();
            kept = self.agree(&mine)?;
        }
        let kept = all.into_iter().zip(kept).filter(|(_, kept)| *kept > 0.0);
        let candidate = |algorithm| Candidate {
            member: self.member.by(algorithm),
            algorithm,
            calls: 1,
            rounds: 1,
            times: Vec::new(),
        };
        Ok(kept.map(|(algorithm, _)| candidate(algorithm)).collect())
    }

    /// Measures one point within about `allowed_s` seconds; only rank 0 gets samples.
    fn point(&mut self, point: Point, allowed_s: f64) -> Result<Vec<Sample>, Failure> {
        let (rank, ranks) = (self.member.rank(), self.member.size());
        let work = self.order.work(point, ranks);
        let data = Data::new(point.measured, DATA_TYPE, Operator::Sum, rank, ranks, self.order.seed);
        let mut candidates = self.candidates(point)?;
        for candidate in &candidates {
            self.check(candidate, &data, &work)?;
        }
        let allowed_s = CANDIDATE_S.min(allowed_s / candidates.len() as f64);
        for candidate in &mut candidates {
            self.batch(candidate, &data, &work)?;
            let call_s = self.slowest(&candidate.times)?[0];
            candidate.times.clear();
            (candidate.calls, candidate.rounds) = self.order.effort(call_s, allowed_s);
        }
        let rounds = candidates.iter().map(|candidate| candidate.rounds).max().unwrap_or(0);
        for round in 0..rounds {
            for index in turns(round as usize, candidates.len()) {
                let candidate = &mut candidates[index];
                if round < candidate.rounds {
                    self.batch(candidate, &data, &work)?;
                }
            }
        }
        for candidate in &mut candidates {
            candidate.times = self.slowest(&candidate.times)?;
        }
        if rank != 0 {
            return Ok(Vec::new());
        }
        let explanation =
            self.member.planning().explain(point.planned, point.block_bytes).map_err(planned::refused)?;
        Ok(candidates
            .into_iter()
            .filter_map(|candidate| sample(point, ranks, candidate, &explanation))
            .collect())
    }

    fn batch(&mut self, candidate: &mut Candidate, data: &Data, work: &Work) -> Result<(), Failure> {
        let (member, calls) = (self.member, candidate.calls);
        let buffers = data.buffers(work, Placement::OutOfPlace, &mut self.pair);
        let mut seconds = 0.0;
        candidate.member.ready(work, buffers, &mut |repeat| {
            member.barrier()?;
            let begun = Instant::now();
            repeat(calls)?;
            seconds = begun.elapsed().as_secs_f64();
            Ok(())
        })?;
        candidate.times.push(seconds / calls as f64);
        Ok(())
    }

    /// Runs once on new data and looks at every element. The first call also makes plans and connections.
    fn check(&mut self, candidate: &Candidate, data: &Data, work: &Work) -> Result<(), Failure> {
        self.round += 1;
        data.fill(work, Placement::OutOfPlace, self.round, &mut self.pair);
        self.member.barrier()?;
        let buffers = data.buffers(work, Placement::OutOfPlace, &mut self.pair);
        candidate.member.ready(work, buffers, &mut |repeat| repeat(1))?;
        let finding = data.check(work, Placement::OutOfPlace, self.round, &mut self.pair);
        let wrong = gather_numbers(self.member, &[finding.wrong as f64])?.into_iter().flatten().sum::<f64>();
        if wrong > 0.0 {
            let what = format!("{} by {}: {wrong} wrong elements", work.collective, candidate.algorithm);
            return Err(Failure::new(Exit::WrongData, [&[what], &*finding.text].concat().join("; ")));
        }
        Ok(())
    }
}

/// The order of a round: forwards and backwards in turn, from ever other places, so that what one candidate
/// leaves behind does not always hit the same other.
fn turns(round: usize, count: usize) -> Vec<usize> {
    let mut turns: Vec<usize> = (0..count).map(|index| (index + round) % count).collect();
    if round % 2 == 1 {
        turns.reverse();
    }
    turns
}

/// What rank 0 writes of a candidate.
fn sample(point: Point, ranks: u32, candidate: Candidate, explanation: &Explanation) -> Option<Sample> {
    let Candidate { algorithm, mut times, .. } = candidate;
    times.sort_by(f64::total_cmp);
    let time_us = |percent| percentile(&times, percent).map(|seconds| seconds * 1e6);
    let of = explanation.candidates.iter().find(|of| of.algorithm == algorithm)?;
    Some(Sample {
        collective: point.planned,
        ranks,
        bytes: point.block_bytes,
        size: point.size,
        algorithm,
        median_us: time_us(50)?,
        p10_us: time_us(10)?,
        p90_us: time_us(90)?,
        predicted_us: of.predicted_s * 1e6,
        chosen: of.chosen,
        slot_bytes: if of.chosen { explanation.slot_bytes } else { of.slot_bytes },
        fold_hash: of.fold_hash.filter(|_| point.planned.reduces()).unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sizes::Step;

    fn order(collectives: &[Collective], smallest: u64, largest: u64) -> Order {
        Order {
            collectives: collectives.to_vec(),
            sweep: Sweep::new(smallest, largest, Step::Factor(2)).unwrap(),
            blocking: false,
            repeats: None,
            any_bits: true,
            budget_s: None,
            seed: 1,
        }
    }

    #[test]
    fn blocks_are_powers_of_two_that_fit_and_none_comes_twice() {
        let points = |collective, smallest, largest, ranks| -> Vec<(u64, u64)> {
            let points = order(&[collective], smallest, largest).points(ranks);
            points.iter().map(|point| (point.block_bytes, point.size)).collect()
        };
        assert_eq!(points(Collective::AllReduce, 1, 20, 3), [(4, 4), (8, 8), (16, 16)]);
        assert_eq!(points(Collective::AllReduce, 100, 300, 3), [(64, 64), (128, 128)]);
        assert_eq!(points(Collective::AllGather, 8, 256, 3), [(16, 48), (32, 96), (64, 192)]);
        for (ranks, collective) in [(3, Collective::AllGather), (8, Collective::ReduceScatter)] {
            let order = order(&[collective], 8, 1 << 16);
            for point in order.points(ranks) {
                let shape = order.work(point, ranks).shape;
                assert_eq!(shape.count as u64 * 4, point.block_bytes);
                assert_eq!(shape.elements() as u64 * 4, point.size);
            }
        }
    }

    #[test]
    fn calls_fill_a_batch_and_rounds_the_time() {
        let order = order(&[Collective::AllReduce], 8, 8);
        assert_eq!(order.effort(1e-9, 0.4), (1000, 51));
        assert_eq!(order.effort(1e-5, 0.4), (100, 51));
        assert_eq!(order.effort(0.02, 0.4), (1, 20));
        assert_eq!(order.effort(0.3, 0.4), (1, 7));
        assert_eq!(Order { budget_s: Some(1.0), ..order.clone() }.effort(0.3, 0.1), (1, 3));
        assert_eq!(Order { repeats: Some(2), ..order.clone() }.effort(0.3, 0.4), (1, 2));
        assert_eq!(Order { blocking: true, ..order }.effort(1e-5, 0.4), (1, 201));
    }

    #[test]
    fn every_candidate_has_its_turn_in_every_round() {
        for (round, count) in (0..20).flat_map(|round| (1..10).map(move |count| (round, count))) {
            let mut turns = turns(round, count);
            turns.sort_unstable();
            assert!(turns.into_iter().eq(0..count));
        }
        assert_ne!(turns(0, 3), turns(1, 3));
        assert_ne!(turns(0, 3), turns(2, 3));
    }

    #[test]
    fn the_chosen_one_is_compared_with_the_fastest() {
        use crate::samples::tests::of;
        let samples = [of("tree", 64, 10.0, false), of("ring", 64, 12.0, true)];
        let text = line(&samples);
        assert!(text.starts_with("# all_reduce") && text.contains(" 1.20 <"), "{text}");
        assert!(!line(&[of("tree", 64, 10.0, false), of("ring", 64, 11.0, true)]).contains('<'));
    }
}
