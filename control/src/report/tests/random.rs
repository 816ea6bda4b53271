//! Evidence that makes no sense: there is a report all the same.

use std::time::{Duration, Instant};

use consort_testing::Random;

use super::world::{HOME, OTHER, THIRD, World, call, position, process, waiting};
use crate::report::evidence::{Position, Reach, SlowWire, Traffic, Want};
use crate::report::{Guilty, analyse};
use consort_types::Rank;
use consort_types::call::Descriptor;
use consort_types::call::Kind;

/// What the evidence is made of: the same in every run.
struct Dice(Random);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0.below(limit as usize) as u64
    }

    fn descriptor(&mut self, size: u64) -> Descriptor {
        Descriptor {
            count: self.0.seed(),
            ..call(Kind::ALL[self.below(Kind::ALL.len() as u64) as usize], self.rank(size))
        }
    }

    /// Mostly a rank, sometimes none that exists.
    fn rank(&mut self, size: u64) -> Rank {
        if self.below(20) == 0 { Rank::MAX - self.below(2) as u32 } else { self.below(size + 1) as Rank }
    }

    fn sequence(&mut self) -> u64 {
        if self.below(30) == 0 { u64::MAX - self.below(2) } else { self.below(4) }
    }

    fn position(&mut self, communicator: u64, rank: Rank, size: u64) -> Position {
        let open = (self.below(4) != 0).then(|| {
            let (sequence, descriptor) = (self.sequence(), self.descriptor(size));
            let mut open = waiting(sequence, descriptor, self.rank(size));
            let stuck = open.stuck.as_mut().expect("it waits");
            let wants = [Want::Link, Want::Connection, Want::Data, Want::Room];
            stuck.want = wants[self.below(4) as usize];
            stuck.peer_process = process(self.below(size + 2) as Rank % 200);
            (stuck.step, stuck.steps) = (self.rank(4), self.rank(4));
            stuck.algorithm = "\u{1b}[31m\u{e9}".repeat(self.below(300) as usize);
            if self.below(5) == 0 {
                (open.stuck, open.age) = (None, Duration::MAX);
            }
            open
        });
        let traffic = (0..self.below(3)).map(|_| {
            let [filled, arrived, returned, credited] = [(); 4].map(|()| self.below(3));
            Traffic { peer: self.rank(size), channel: 0, filled, arrived, returned, credited }
        });
        let traffic = traffic.collect();
        let last = (self.below(2) == 0).then(|| (self.sequence(), self.descriptor(size), Duration::MAX));
        let (entered, finished, job_rank) = (self.sequence(), self.sequence(), self.rank(size));
        let base = position(communicator, size as u32, rank, job_rank);
        let messages = (0..self.below(3)).map(|_| (self.sequence(), self.descriptor(size))).collect();
        let passed =
            (0..self.below(3)).map(|_| (self.rank(size), self.sequence(), self.sequence())).collect();
        let caller = self.below(3);
        let slow = (0..self.below(2)).map(|_| SlowWire {
            peer: self.rank(size),
            from: "\u{1b}[31m".repeat(self.below(300) as usize),
            to: String::new(),
            usual: self.sequence(),
            now: self.sequence(),
            age: Duration::MAX,
        });
        let slow = slow.collect();
        Position { caller, entered, finished, last, open, messages, passed, traffic, slow, ..base }
    }
}

#[test]
fn no_evidence_makes_it_panic() {
    let mut dice = Dice(Random(2_024));
    let mut kinds = [0; 6];
    for round in 0..2_000 {
        let size = if round % 50 == 0 { 40 } else { dice.below(7) };
        let mut world = World::new(size as u32);
        for rank in 0..size as Rank {
            let off = dice.below(30) == 0;
            let position = dice.position(HOME, rank + Rank::from(off), size);
            let witness = &mut world.0.ranks[rank as usize];
            witness.host = "h\u{f6}st\n".repeat(dice.below(60) as usize);
            witness.job_rank = dice.rank(size);
            let reaches = [Reach::Silent, Reach::Lost("gone \u{fc} ".repeat(90)), Reach::Left];
            witness.reach = reaches.into_iter().nth(dice.below(30) as usize).unwrap_or(Reach::Answered);
            witness.position = (dice.below(10) != 0).then_some(position);
        }
        for _ in 0..dice.below(2 * size + 2) {
            let name = [HOME, OTHER, THIRD][dice.below(3) as usize];
            let rank = dice.rank(3);
            let position = dice.position(name, rank, 3);
            world = world.also(process(dice.below(size + 2) as Rank), position);
        }
        let (sequence, descriptor) = (dice.sequence(), dice.descriptor(size));
        world = world.ask(dice.rank(size), sequence, descriptor);
        if dice.below(4) == 0 {
            world.0.operation = None;
        }
        let report = analyse(&world.0);
        assert!(!report.verdict.is_empty() && !report.verdict.contains('\n'), "{round}: {report}");
        assert!(report.verdict.chars().count() < 700, "{}", report.verdict);
        assert!(!report.to_string().is_empty());
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).expect("valid JSON");
        assert_eq!(json["verdict"], report.verdict.as_str());
        kinds[match report.guilty {
            Guilty::Nobody => 0,
            Guilty::Ranks(_) => 1,
            Guilty::Unreachable(_) => 2,
            Guilty::Link { .. } => 3,
            Guilty::Cycle(_) => 4,
            Guilty::Elsewhere { .. } => 5,
        }] += 1;
    }
    assert!(kinds.iter().all(|count| *count > 10), "the rounds reach every kind of verdict: {kinds:?}");
}

#[test]
fn large_jobs_and_long_chains_take_little_time() {
    let begin = Instant::now();
    let size = 4096;
    let half = World::new(size).ring((0..size).filter(|rank| rank % 2 == 0)).report();
    assert!(matches!(&half.guilty, Guilty::Ranks(ranks) if ranks.len() == 2048), "{}", half.verdict);
    assert!(half.verdict.len() < 500 && half.to_string().len() < 100_000, "{}", half.verdict);
    assert_eq!(World::new(size).ring(0..size).report().guilty, Guilty::Nobody);
    // Rank 1 waits on one communicator for a rank that waits on the next, and so on, to one that is idle.
    let mut world = World::new(2).ring([0]);
    world.at(1).caller = 0;
    let links = 50_000;
    for link in 0..links {
        let open = waiting(1, call(Kind::Barrier, 0), 1);
        let ends = [(0, link + 1, Some(open)), (1, link + 2, None)];
        for (rank, job_rank, open) in ends {
            let (caller, entered) = (0, u64::from(open.is_some()));
            let base = position(OTHER + u64::from(link), 2, rank, job_rank);
            world = world.also(process(9), Position { caller, entered, finished: 0, open, ..base });
        }
    }
    let report = world.report();
    let communicator = format!("{:016x}", OTHER + u64::from(links - 1));
    assert!(
        matches!(&report.guilty, Guilty::Elsewhere { communicator: end, .. } if *end == communicator),
        "{report}"
    );
    assert!(begin.elapsed() < Duration::from_secs(20), "it took {:?}", begin.elapsed());
}
