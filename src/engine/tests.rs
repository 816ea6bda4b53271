//! Whole jobs in one thread under a seed: the real planner's plans, run by the real executor on vectors.
//!
//! Invariant: what is expected is computed by hand from the documents of the builders (which rank's value comes
//! when), never from a plan. Every failure prints its seed and what was run; a seed is always the same run.

mod binding;
mod lanes;
mod pools;
mod values;
mod world;

use std::fmt::Write;
use std::ops::Range;
use std::time::Duration;

use consort_algorithms::catalogue::Algorithm;
use consort_algorithms::{Collective, Partition};
use consort_kernels::DataType;
use consort_types::call::{Call, Kind};

use super::bound::Bearings;
use super::executor::Sizes;
use super::links::{Links, WokenBy};
use super::task::{Request, Task};
use crate::Rank;
use crate::planner::{Planner, Program};
use values::{Fold, Random, hash, words};
use world::{Mismatch, Part, Shape, World};

const ELEMENT_BYTES: usize = 8;

/// Which ranks can store to each other's mailboxes.
const MAPPINGS: [fn(Rank, Rank) -> bool; 3] = [
    |_, _| true,
    |_, _| false,
    // Two ranks on every host.
    |one, other| one / 2 == other / 2,
];

/// What all ranks do at one turn.
#[derive(Clone, Copy, Debug)]
struct Operation {
    what: What,
    count: usize,
    slot_bytes: usize,
    /// In place where the collective has such a form.
    in_place: bool,
    fold: Fold,
    tag: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Collective {
        program: Program,
        root: Rank,
    },
    /// One message.
    Pair {
        sender: Rank,
        receiver: Rank,
    },
    /// Every rank sends to the one `by` further and receives from the one `by` before, at the same time.
    Shift {
        by: u32,
    },
}

const PAIR: Program = Program { collective: Collective::SendReceive, ranks: 2, algorithm: Algorithm::Pair };

/// A job: its ranks, who is mapped, and what they do.
struct Job {
    ranks: u32,
    mapped: fn(Rank, Rank) -> bool,
    operations: Vec<Operation>,
}

impl Operation {
    /// What `rank` puts in at an index of its input.
    fn contribution(&self, rank: Rank, index: usize) -> u64 {
        hash(self.tag ^ (rank as u64) << 40 ^ index as u64)
    }

    /// The shares of a rank: program, where its ranks are, and its own relative rank.
    fn shares(&self, me: Rank, ranks: u32) -> Vec<(Program, Bearings, u32)> {
        let message = |sender, receiver| (PAIR, Bearings::Pair { sender, receiver }, (me == receiver) as u32);
        match self.what {
            What::Collective { program, root } => {
                let bearings = Bearings::Rotated { root, size: ranks };
                vec![(program, bearings, (me + ranks - root) % ranks)]
            }
            What::Pair { sender, receiver } if me == sender || me == receiver => {
                vec![message(sender, receiver)]
            }
            What::Pair { .. } => Vec::new(),
            What::Shift { by } => {
                vec![message(me, (me + by) % ranks), message((me + ranks - by) % ranks, me)]
            }
        }
    }

    fn parts(&self, planner: &Planner, job: &Job, me: Rank, tag: u64) -> Vec<Part> {
        let part = |(program, bearings, relative): (Program, Bearings, u32)| {
            let mapped = |rank| (job.mapped)(me, bearings.rank(consort_algorithms::Rank(rank)));
            let mapped = (0..program.ranks).map(mapped).collect();
            let plan = planner.plan(program, relative, mapped).expect("a proved plan").plan;
            let extents = plan.partition.extents(self.count, ELEMENT_BYTES);
            let extents = match bearings {
                Bearings::Rotated { root, size } if rotates(program.collective) => {
                    extents.from_root(root, size)
                }
                _ => extents,
            };
            let sizes = Sizes { extents, slot_bytes: self.slot_bytes, tag };
            let (buffer, input, output) = self.buffers(program, me, relative);
            let channel_base = channel_base(program);
            Part::new(Shape { plan, bearings, sizes, fold: self.fold, channel_base }, buffer, input, output)
        };
        self.shares(me, job.ranks).into_iter().map(part).collect()
    }

    /// A rank's memory with its input filled, and where in it input and output are.
    fn buffers(&self, program: Program, me: Rank, relative: u32) -> (Vec<u8>, Range<usize>, Range<usize>) {
        let Program { collective, ranks, .. } = program;
        let rank = consort_algorithms::Rank(relative);
        let block = self.count * ELEMENT_BYTES;
        let has = |has: bool, blocks: u32| if has { blocks as usize * block } else { 0 };
        let inputs = has(collective.has_input(rank), collective.input_blocks(ranks));
        let outputs = has(collective.has_output(rank), collective.output_blocks(ranks));
        let own = me as usize * block;
        let (input, output) = match collective {
            Collective::AllToAll => (0..inputs, inputs..inputs + outputs),
            _ if !self.in_place || inputs == 0 || outputs == 0 => (0..inputs, inputs..inputs + outputs),
            Collective::AllGather | Collective::Gather => (own..own + block, 0..outputs),
            Collective::ReduceScatter | Collective::Scatter => (0..inputs, own..own + block),
            _ => (0..inputs, 0..outputs),
        };
        let mut buffer = vec![0x77; input.end.max(output.end)];
        for (index, word) in buffer[input.clone()].chunks_exact_mut(ELEMENT_BYTES).enumerate() {
            word.copy_from_slice(&self.contribution(me, index).to_le_bytes());
        }
        (buffer, input, output)
    }

    /// What a rank's share must have put out.
    fn expected(&self, program: Program, bearings: Bearings, me: Rank) -> Vec<u64> {
        let (count, ranks) = (self.count, program.ranks);
        let at = |relative: u32| bearings.rank(consort_algorithms::Rank(relative));
        match program.collective {
            Collective::Broadcast | Collective::SendReceive => {
                (0..count).map(|index| self.contribution(at(0), index)).collect()
            }
            Collective::AllToAll => (0..ranks as usize * count)
                .map(|index| self.contribution((index / count) as Rank, me as usize * count + index % count))
                .collect(),
            Collective::AllToAllReplicated { .. } => unreachable!("inputs are not alike here"),
            Collective::Scatter => {
                (0..count).map(|index| self.contribution(at(0), me as usize * count + index)).collect()
            }
            Collective::AllGather | Collective::Gather => (0..ranks as usize * count)
                .map(|index| self.contribution((index / count) as Rank, index % count))
                .collect(),
            Collective::AllReduce | Collective::Reduce | Collective::ReduceScatter => {
                let scatter = program.collective == Collective::ReduceScatter;
                let first = if scatter { me as usize * count } else { 0 };
                if self.fold == Fold::Sum {
                    let sum = |index| {
                        let values = (0..ranks).map(|rank| self.contribution(rank, first + index));
                        values.fold(0, u64::wrapping_add)
                    };
                    return (0..count).map(sum).collect();
                }
                let mut result = Vec::with_capacity(count);
                let parts = parts(program);
                let extents = Partition { parts }.extents(count, ELEMENT_BYTES);
                for piece in 0..parts {
                    let order = order(program, piece, me);
                    let words = extents.length(consort_algorithms::Chunk(piece)) / ELEMENT_BYTES;
                    for _ in 0..words {
                        let index = first + result.len();
                        let value = |rank: Rank| self.fold.scale(self.contribution(at(rank), index));
                        result.push(self.fold.finish(self.bracket(program, &order, &value)));
                    }
                }
                result
            }
        }
    }

    /// The left fold in a ring, the balanced tree in recursive doubling.
    fn bracket(&self, program: Program, order: &[Rank], value: &dyn Fn(Rank) -> u64) -> u64 {
        match (program.algorithm, order) {
            (_, [only]) => value(*only),
            (Algorithm::Doubling, _) => {
                let (low, high) = order.split_at(order.len() / 2);
                self.fold.join(self.bracket(program, low, value), self.bracket(program, high, value))
            }
            (_, [before @ .., last]) => self.fold.join(self.bracket(program, before, value), value(*last)),
            (_, []) => unreachable!("nobody contributes"),
        }
    }
}

/// Links of its own for each kind of program, as the planner gives them.
pub(super) fn channel_base(program: Program) -> u16 {
    match program.algorithm {
        Algorithm::Ring { .. } => 0,
        Algorithm::Pair => 0xc000,
        _ => 0x8000,
    }
}

/// Whether the buffer of the root holds the blocks of all ranks, which a plan counts from the root.
fn rotates(collective: Collective) -> bool {
    matches!(collective, Collective::Gather | Collective::Scatter)
}

/// Into how many pieces a program cuts a block.
fn parts(program: Program) -> u32 {
    program.algorithm.parts(program.collective, program.ranks)
}

/// In which order the (relative) ranks' values of a piece are folded on the way to rank `me`.
fn order(program: Program, piece: u32, me: Rank) -> Vec<Rank> {
    let ranks = program.ranks;
    let Algorithm::Ring { channels, bidirectional } = program.algorithm else {
        return (0..ranks).collect();
    };
    let (channels, directions) = (channels as u32, if bidirectional { 2 } else { 1 });
    let backwards = piece / channels % directions == 1;
    let mirror = |rank: u32| if backwards { (ranks - rank) % ranks } else { rank };
    // Ranks after the one where the block ends, around the ring, and that one last.
    let end = match program.collective {
        Collective::AllReduce => piece / (channels * directions),
        Collective::ReduceScatter => mirror(me),
        _ => 0,
    };
    (1..=ranks).map(|step| mirror((end + step) % ranks)).collect()
}

/// Prints what failed.
struct OnPanic(String);

impl Drop for OnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed: {}", self.0);
        }
    }
}

impl Job {
    /// Runs it; with a `deviant` (rank, turn), that rank has another tag at that turn.
    fn run(
        &self,
        planner: &Planner,
        random: Random,
        deviant: Option<(Rank, usize)>,
    ) -> (World, Vec<Mismatch>) {
        let mut world = World::new(self.ranks, self.mapped, random);
        for (turn, operation) in self.operations.iter().enumerate() {
            for rank in 0..self.ranks {
                let tag = if deviant == Some((rank, turn)) { !operation.tag } else { operation.tag };
                world.push(rank, operation.parts(planner, self, rank, tag));
            }
        }
        let mismatches = world.run();
        (world, mismatches)
    }

    /// Runs it and checks every element.
    fn check(&self, planner: &Planner, seed: u64) {
        let mut text = format!("seed {seed}, {} ranks", self.ranks);
        self.operations.iter().for_each(|operation| write!(text, "\n  {operation:?}").expect("to a string"));
        let _on_panic = OnPanic(text);
        let (mut world, mismatches) = self.run(planner, Random::new(seed), None);
        assert_eq!(mismatches, []);
        world.check_links();
        for (turn, operation) in self.operations.iter().enumerate() {
            for rank in 0..self.ranks {
                let shares = operation.shares(rank, self.ranks);
                for (part, (program, bearings, relative)) in world.parts(rank, turn).iter().zip(shares) {
                    let (before, input, output) = operation.buffers(program, rank, relative);
                    let apart = input.end <= output.start || output.is_empty();
                    assert!(!apart || part.buffer[input.clone()] == before[input], "an input was written");
                    if !output.is_empty() {
                        let result: Vec<u64> = words(&part.buffer[output]).collect();
                        assert!(
                            result == operation.expected(program, bearings, rank),
                            "turn {turn}: rank {rank} has a wrong result"
                        );
                    }
                }
            }
        }
    }
}

/// Every collective that a ring of this shape does, and what else the planner has for as many ranks.
fn programs(ranks: u32, channels: u16, bidirectional: bool) -> Vec<Program> {
    let ring = Algorithm::Ring { channels, bidirectional };
    let collectives = [
        Collective::AllReduce,
        Collective::Reduce,
        Collective::Broadcast,
        Collective::AllGather,
        Collective::ReduceScatter,
    ];
    let mut programs = collectives.map(|collective| Program { collective, ranks, algorithm: ring }).to_vec();
    if ranks.is_power_of_two() && ranks > 1 {
        let collective = Collective::AllReduce;
        programs.push(Program { collective, ranks, algorithm: Algorithm::Doubling });
    }
    programs.push(Program { collective: Collective::AllToAll, ranks, algorithm: Algorithm::Pairwise });
    let direct = [Collective::Gather, Collective::Scatter];
    programs.extend(direct.map(|collective| Program {
        collective,
        ranks,
        algorithm: Algorithm::Direct { first: 0 },
    }));
    programs
}

/// The job of a seed. One shape of ring and one mapping, as in a communicator.
fn random_job(seed: u64, ranks_min: u32) -> Job {
    let random = Random::new(!seed);
    let ranks = ranks_min + random.below(9 - ranks_min as usize) as u32;
    // More than eight ranks now and then.
    let large = random.once_in(40);
    let ranks = if large { random.pick(&[11, 16]) } else { ranks };
    let channels = if large { 1 } else { random.pick(&[1, 1, 2, 3]) };
    let programs = programs(ranks, channels, random.once_in(2));
    let operation = |turn: usize| {
        let root = random.below(ranks as usize) as Rank;
        let what = match random.below(8) {
            0 if ranks > 1 => What::Shift { by: 1 + random.below(ranks as usize - 1) as u32 },
            1 if ranks > 1 => {
                let receiver = (root + 1 + random.below(ranks as usize - 1) as u32) % ranks;
                What::Pair { sender: root, receiver }
            }
            _ => {
                let program = random.pick(&programs);
                let rooted = matches!(program.collective, Collective::Reduce | Collective::Broadcast)
                    || rotates(program.collective);
                What::Collective { program, root: if rooted { root } else { 0 } }
            }
        };
        let counts = [0, 1, 2, 7, 63, 64, 65, 1 + random.below(100), 1 + random.below(700)];
        Operation {
            what,
            count: random.pick(&counts),
            slot_bytes: random.pick(&[8, 64, 64, 128, world::SLOT_BYTES_MAX]),
            in_place: random.once_in(3),
            fold: random.pick(&[Fold::Sum, Fold::Mix]),
            tag: hash(seed << 8 | turn as u64),
        }
    };
    let operations = (0..1 + random.below(4)).map(operation).collect();
    Job { ranks, mapped: random.pick(&MAPPINGS), operations }
}

#[test]
fn every_program_gives_what_its_builder_documents() {
    let planner = Planner::default();
    let mut seed = 0;
    for ranks in 1..=8 {
        for (channels, bidirectional) in [(1, false), (1, true), (3, false), (2, true)] {
            for program in programs(ranks, channels, bidirectional) {
                for mapped in [MAPPINGS[0], MAPPINGS[1]] {
                    seed += 1;
                    let operation = |turn: u64, count, slot_bytes, in_place| Operation {
                        what: What::Collective { program, root: 0 },
                        count,
                        slot_bytes,
                        in_place,
                        fold: Fold::Mix,
                        tag: hash(seed << 8 | turn),
                    };
                    // One element; five slices and a bit of every chunk; longer slots on the same links.
                    let pieces = parts(program) as usize;
                    let long = 5 * 8 * pieces + 3;
                    let operations = vec![
                        operation(0, 1, 64, false),
                        operation(1, long, 64, true),
                        operation(2, 77, 128, false),
                    ];
                    Job { ranks, mapped, operations }.check(&planner, seed);
                }
            }
        }
    }
}

#[test]
fn random_jobs_on_random_schedules() {
    let planner = Planner::default();
    for seed in 0..400 {
        random_job(seed, 1).check(&planner, seed);
    }
}

#[test]
fn another_tag_names_the_peer_that_sent_it() {
    let planner = Planner::default();
    for seed in 1000..1150 {
        let job = random_job(seed, 2);
        let random = Random::new(seed);
        let turn = random.below(job.operations.len());
        let deviant = match job.operations[turn].what {
            What::Pair { sender, receiver } => random.pick(&[sender, receiver]),
            _ => random.below(job.ranks as usize) as Rank,
        };
        let _on_panic =
            OnPanic(format!("seed {seed}: rank {deviant} deviates in {:?}", job.operations[turn]));
        let (_, mismatches) = job.run(&planner, random, Some((deviant, turn)));
        assert!(!mismatches.is_empty(), "nobody noticed");
        for Mismatch { rank, peer, turn: at } in mismatches {
            assert_eq!(at, turn);
            assert_ne!(rank, peer);
            assert!((rank == deviant) != (peer == deviant), "rank {rank} blames rank {peer}");
        }
    }
}

/// A part that waits for an earlier one of its task waits for nothing else: a group sleeps by what wakes those before.
#[test]
fn a_part_behind_another_does_not_shorten_sleeps() {
    let call = Call::new(Kind::Receive, DataType::Int8, None, 0, 8);
    let request = |sequence| Request { call, sequence, history: 0, record: 0 };
    let links = Links::new(Box::new(binding::NoRoutes));
    let mut task = Task::default();
    task.prepare(Duration::from_secs(1));
    task.add(request(1), None).adopt_message(0);
    task.push(request(2), None);
    assert_eq!(task.wants(&links, &mut Vec::new()), WokenBy::Doorbells);
    task.push(Request { call: Call::new(Kind::Receive, DataType::Int8, None, 1, 8), ..request(1) }, None);
    assert_eq!(task.wants(&links, &mut Vec::new()), WokenBy::Limit, "it has not looked at what it waits for");
}
