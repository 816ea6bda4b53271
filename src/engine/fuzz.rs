//! An executor whose peers store what they like into its counters, tags and mailboxes.
//!
//! Invariant of what is tested: whatever the counters say, no step reaches outside of the memory that the plan bounds, and
//! the operation ends, waits or finds a mismatch.

use std::collections::HashMap;
use std::task::Poll;

use consort_algorithms::Collective;
use consort_algorithms::catalogue::Algorithm;
use consort_algorithms::plan::{Plan, Region};
use consort_transports::fuzzing::{Input, Seen, Target, fuzz};

use super::executor::{Executor, Io, Piece, Progress, Sizes, Stop};
use super::tests::channel_base;
use crate::planner::{Planner, Program, Slots};
use consort_settings::options::SLOTS;

/// The executor's tables: a few words for each lane, counter and region of a plan.
const TARGET: Target = Target {
    name: "engine-counters",
    command: "-p consort --lib engine::fuzz",
    bytes_max: 256 << 10,
    inputs: 20_000,
};

const SLOT_BYTES: usize = 16 << 10;

/// Memory that is only measured, and links that the input drives.
struct Hostile<'a> {
    plan: &'a Plan,
    sizes: Sizes<'static>,
    ranks: usize,
    count: usize,
    channel_base: u16,
    values: Vec<u64>,
    tags: Vec<u64>,
    raised: HashMap<u32, u64>,
    /// Whether links take signals and bytes now.
    takes: u8,
    steps: u64,
}

impl Hostile<'_> {
    fn check(&self, piece: Piece, bytes: usize) {
        let room = match self.plan.regions[piece.region as usize].region {
            Region::Input(_) | Region::Output(_) => self.ranks * self.count * 8,
            Region::Scratch => self.plan.scratch as usize * self.sizes.slot_bytes,
            Region::Mailbox { channel, .. } => {
                Slots::of(self.channel_base + channel.0, false).bytes.min(self.sizes.slot_bytes)
                    * SLOTS as usize
            }
            other => panic!("nobody binds {other:?}"),
        };
        assert!(piece.offset + bytes <= room, "{piece:?} and {bytes} bytes in {room}");
    }
}

impl Io for Hostile<'_> {
    type Fault = ();

    fn reached(&mut self, counter: u32, value: u64) -> Result<bool, ()> {
        Ok(self.values[counter as usize] >= value)
    }

    fn tag(&mut self, counter: u32, _value: u64) -> u64 {
        self.tags[counter as usize]
    }

    fn signal(&mut self, counter: u32, value: u64, _tag: u64) -> Result<Poll<()>, ()> {
        self.steps += 1;
        match self.takes % 8 {
            0 => return Ok(Poll::Pending),
            1 => return Err(()),
            _ => {}
        }
        let before = self.raised.insert(counter, value).unwrap_or(0);
        assert!(value > before, "an own counter goes down");
        Ok(Poll::Ready(()))
    }

    fn fold(
        &mut self,
        targets: &[Piece],
        sources: &[Piece],
        bytes: usize,
        _finish: bool,
    ) -> Result<Poll<()>, ()> {
        self.steps += 1;
        targets.iter().chain(sources).for_each(|piece| self.check(*piece, bytes));
        match self.takes % 64 {
            3 => Err(()),
            // What is written is still read.
            5 => Ok(Poll::Pending),
            _ => Ok(Poll::Ready(())),
        }
    }

    fn put(
        &mut self,
        target: Piece,
        source: Piece,
        bytes: usize,
        _finish: bool,
        done: &mut usize,
    ) -> Result<Poll<()>, ()> {
        self.steps += 1;
        self.check(target, bytes);
        self.check(source, bytes);
        match self.takes >> 3 & 3 {
            0 => return Ok(Poll::Pending),
            1 => *done = (*done + 1000).min(bytes),
            _ => *done = bytes,
        }
        Ok(if *done == bytes { Poll::Ready(()) } else { Poll::Pending })
    }
}

const PROGRAMS: [(Collective, Algorithm); 9] = [
    (Collective::AllReduce, Algorithm::Ring { channels: 1, bidirectional: false }),
    (Collective::AllReduce, Algorithm::Ring { channels: 2, bidirectional: true }),
    (Collective::AllReduce, Algorithm::Doubling),
    (Collective::Broadcast, Algorithm::Ring { channels: 1, bidirectional: false }),
    (Collective::AllGather, Algorithm::Ring { channels: 1, bidirectional: false }),
    (Collective::ReduceScatter, Algorithm::Ring { channels: 1, bidirectional: false }),
    (Collective::AllToAll, Algorithm::Pairwise),
    (Collective::Gather, Algorithm::Direct { first: 0 }),
    (Collective::Scatter, Algorithm::Direct { first: 0 }),
];

/// The first piece chooses the plan and what was there before; each other stores into one counter and its tag.
fn counters(planner: &Planner, input: &Input, seen: &mut Seen) {
    let first = |at: usize| input.first().and_then(|piece| piece.get(at)).copied().unwrap_or(0);
    let (collective, algorithm) = PROGRAMS[usize::from(first(0)) % PROGRAMS.len()];
    let program = Program { collective, ranks: 4, algorithm };
    let mapped = vec![first(2) & 1 == 0; 4];
    let plan = planner.plan(program, u32::from(first(1)) % 4, mapped).expect("a proved plan").plan;
    // As the planner would: what is not sliced fits into a slot.
    let elements = if plan.sliced { 10_000 } else { 64 };
    let extents = plan.partition.extents(elements, 8);
    let sizes = Sizes { extents, slot_bytes: SLOT_BYTES, tag: 77 };
    let base = u64::from(first(3)) << (first(4) % 40);
    let mut executor = Executor::default();
    executor.start(&plan, &sizes, |_| base, |_| base);
    executor.limit_turns(u32::from(first(5)));
    let count = plan.counters.len();
    let mut io = Hostile {
        plan: &plan,
        sizes,
        ranks: 4,
        count: elements,
        channel_base: channel_base(program),
        values: vec![base; count],
        tags: vec![77; count],
        raised: HashMap::new(),
        takes: 255,
        steps: 0,
    };
    for piece in input.iter().skip(1) {
        let [which, takes, rest @ ..] = piece.as_slice() else { continue };
        io.takes = *takes;
        if let Some((value, rest)) = rest.split_first_chunk::<8>() {
            let value = u64::from_le_bytes(*value);
            let tag = rest.first_chunk().map_or(77, |tag| u64::from_le_bytes(*tag));
            let at = usize::from(*which);
            // All of them, or one.
            for counter in 0..count {
                if at >= 128 || at % count == counter {
                    (io.values[counter], io.tags[counter]) = (value, tag);
                }
            }
        }
        let outcome = executor.advance(&plan, &sizes, &mut io);
        // A step of a lane each, in each of its iterations, at most.
        let most = (plan.steps.len() as u64) * u64::from(executor.iterations()) * (input.len() as u64 + 1);
        assert!(io.steps <= most, "{} steps of {most}", io.steps);
        match outcome {
            Ok(progress) => {
                seen.note((
                    usize::from(first(0)) % PROGRAMS.len(),
                    format!("{progress:?}"),
                    io.steps.max(1).ilog2(),
                ));
                seen.note(executor.standing(&plan));
                if progress == Progress::Done {
                    break;
                }
            }
            Err(Stop::Mismatch { peer }) => {
                seen.note(("mismatch", peer.0));
                break;
            }
            Err(Stop::Fault(())) => {
                seen.note("fault");
                break;
            }
        }
    }
}

#[test]
fn counters_that_jump_go_back_or_wrap_lead_nowhere_outside() {
    let planner = Planner::default();
    planner.expect_many();
    // Proved once, so that no input pays for it.
    for (collective, algorithm) in PROGRAMS {
        for rank in 0..4 {
            for mapped in [true, false] {
                let program = Program { collective, ranks: 4, algorithm };
                planner.plan(program, rank, vec![mapped; 4]).expect("a proved plan");
            }
        }
    }
    let store = |which: u8, takes: u8, value: u64, tag: u64| {
        [&[which, takes][..], &value.to_le_bytes(), &tag.to_le_bytes()].concat()
    };
    let mut originals = Vec::new();
    for program in 0..PROGRAMS.len() as u8 {
        for value in [1, 4, 1000, u64::MAX, 1 << 63] {
            let chosen = vec![program, 1, program & 1, 0, 0, 0];
            originals.push(vec![
                chosen,
                store(255, 255, value, 77),
                store(255, 24, 0, 77),
                store(0, 2, value, 7),
            ]);
        }
    }
    fuzz(&TARGET, originals, |input, seen| counters(&planner, input, seen));
}
