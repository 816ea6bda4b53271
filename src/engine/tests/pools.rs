//! Plans on connections through memory, whose slots migrate: ranks in one thread that take turns at random, and a rank whose peer
//! stores what it likes.

use std::collections::HashMap;
use std::sync::Arc;

use consort_algorithms::catalogue::Algorithm;
use consort_kernels::{DataType, ReduceOp, Reducer, Store};
use consort_memory::pool::{Ends, POOL_BITS};
use consort_memory::{Counter, Pool, Row, Span, SpanMut};
use consort_testing::Random;
use consort_transports::fuzzing::{Input, Seen, Target, fuzz};
use consort_transports::{Connection, CounterKind};

use super::super::bound::{Bearings, Bound};
use super::super::executor::{Executor, Progress, Sizes, Stop};
use super::super::lent::Lent;
use super::super::links::Links;
use super::super::packets::sides::connected;
use super::super::pairing::Pairing;
use super::super::real_io::RealIo;
use super::binding::{NoRoutes, SLOT_BYTES, by_plan};
use crate::Rank;
use crate::planner::{Planner, Program};
use consort_settings::options::SLOTS;
use consort_types::call::{Call, Kind};

const RING: Algorithm = Algorithm::Ring { channels: 1, bidirectional: false };
const PROGRAMS: [(Kind, Algorithm); 9] = [
    (Kind::AllReduce, Algorithm::TwoShot),
    (Kind::AllReduce, Algorithm::Tree),
    (Kind::AllReduce, RING),
    (Kind::AllReduce, Algorithm::Ring { channels: 2, bidirectional: true }),
    (Kind::AllGather, Algorithm::Direct { first: 0 }),
    (Kind::Broadcast, RING),
    (Kind::Broadcast, Algorithm::Tree),
    (Kind::ReduceScatter, Algorithm::Direct { first: 0 }),
    (Kind::AllToAll, Algorithm::Spread),
];

fn call(kind: Kind, count: usize) -> Call {
    let op = matches!(kind, Kind::AllReduce | Kind::ReduceScatter).then_some(ReduceOp::Sum);
    Call::new(kind, DataType::Int32, op, 0, count)
}

/// A rank with its plan, bound to its links.
struct Side {
    bound: Bound,
    links: Links,
    executor: Executor,
    scratch: Vec<u8>,
}

type Other = Box<dyn Connection>;

/// The ranks of a program, and the ends of their links that belong to none of them: where `me` is given, only that rank is made.
fn sides(planner: &Planner, program: Program, me: Option<Rank>) -> (Vec<Side>, Vec<Other>) {
    let ranks = program.ranks;
    let mut ends: HashMap<(Rank, Rank, u16), Other> = HashMap::new();
    let mut make = |rank: Rank| {
        let proved = planner.plan(program, rank, vec![true; ranks as usize]).expect("a proved plan");
        let bearings = Bearings::Rotated { root: 0, size: ranks };
        let pairing = Pairing::new(&proved.plan, bearings, 0, &|_| true);
        let keys = pairing.keys();
        let mut end = |(peer, channel): (Rank, u16)| {
            ends.remove(&(rank, peer, channel)).unwrap_or_else(|| {
                let [ours, theirs] = connected(Row::bytes(SLOTS as usize, SLOT_BYTES));
                ends.insert((peer, rank, channel), theirs);
                ours
            })
        };
        let links = keys.iter().map(|key| (*key, end(*key))).collect();
        let links = Links::established(Box::new(NoRoutes), links);
        let choice = by_plan(program);
        let numbers: Vec<usize> = (0..keys.len()).collect();
        let bound = Bound::new(&proved, &choice, &pairing, &links, &numbers).expect("it is bound");
        let scratch = vec![0; bound.scratch_bytes()];
        Side { bound, links, executor: Executor::default(), scratch }
    };
    let sides = match me {
        Some(rank) => vec![make(rank)],
        None => (0..ranks).map(&mut make).collect(),
    };
    (sides, ends.into_values().collect())
}

impl Side {
    fn start(&mut self, call: &Call, ranks: u32, tag: u64) -> Sizes<'static> {
        let Side { bound, links, executor, .. } = self;
        let extents = call.extents(bound.plan.partition, ranks);
        let sizes = Sizes { extents, slot_bytes: SLOT_BYTES, tag: tag << POOL_BITS };
        let plan = Arc::clone(&bound.plan);
        executor.start(
            &plan,
            &sizes,
            |counter| bound.counter_base(counter, links),
            |region| bound.slot_base(region, links),
        );
        sizes
    }

    /// A turn.
    fn advance(
        &mut self,
        sizes: &Sizes<'_>,
        reducer: &Reducer,
        input: Span<'_>,
        output: SpanMut<'_>,
    ) -> Result<Progress, Option<Rank>> {
        let Side { bound, links, executor, scratch } = self;
        let plan = Arc::clone(&bound.plan);
        let scratch = SpanMut::of(scratch.as_mut_slice());
        let lent = &mut Lent::default();
        let mut io = RealIo { bound, reducer, links, lent, input, output, scratch, staged: Store::Cached };
        match executor.advance(&plan, sizes, &mut io) {
            Ok(progress) => Ok(progress),
            Err(Stop::Mismatch { peer }) => Err(Some(bound.bearings.rank(peer))),
            Err(Stop::Fault(broken)) => Err(Some(broken.peer)),
        }
    }
}

/// What a rank's output is, where rank `r` gives `value(r, i)` as its element `i`.
fn meant(kind: Kind, me: usize, ranks: usize, count: usize, value: impl Fn(usize, usize) -> i32) -> Vec<i32> {
    let sum = |at: usize| (0..ranks).fold(0i32, |sum, rank| sum.wrapping_add(value(rank, at)));
    match kind {
        Kind::AllReduce => (0..count).map(sum).collect(),
        Kind::ReduceScatter => (0..count).map(|at| sum(me * count + at)).collect(),
        Kind::Broadcast => (0..count).map(|at| value(0, at)).collect(),
        Kind::AllGather => (0..ranks * count).map(|at| value(at / count, at % count)).collect(),
        _ => (0..ranks * count).map(|at| value(at / count, me * count + at % count)).collect(),
    }
}

#[test]
fn plans_over_pools_are_right_whoever_comes_first() {
    let planner = Planner::default();
    let mut random = Random::announced("plans_over_pools_are_right_whoever_comes_first");
    for (kind, algorithm) in PROGRAMS {
        for ranks in [2u32, 3] {
            if !algorithm.is_defined(kind.collective(), ranks) {
                continue;
            }
            let program = Program { collective: kind.collective(), ranks, algorithm };
            let (mut sides, rest) = sides(&planner, program, None);
            assert!(rest.is_empty(), "both ranks of a link count alike");
            let reducer = Reducer::new(DataType::Int32, ReduceOp::Sum, ranks);
            for operation in 1..=30u64 {
                let count = [0, 1, 100, 128, 1000, 3000][random.below(6)];
                let (call, size) = (call(kind, count), ranks as usize);
                let value =
                    |rank: usize, at: usize| (operation as i32) * 1_000_003 + (rank * 70_001 + at) as i32;
                let elements =
                    |rank: usize| (0..call.input_bytes(rank as Rank, ranks) / 4).map(move |at| (rank, at));
                let inputs: Vec<Vec<i32>> = (0..size)
                    .map(|rank| elements(rank).map(|(rank, at)| value(rank, at)).collect())
                    .collect();
                let mut outputs: Vec<Vec<i32>> =
                    (0..size).map(|rank| vec![-1; call.output_bytes(rank as Rank, ranks) / 4]).collect();
                let sizes: Vec<_> =
                    sides.iter_mut().map(|side| side.start(&call, ranks, operation)).collect();
                let mut is_over = vec![false; size];
                let mut idle = 0;
                while !is_over.iter().all(|is_over| *is_over) {
                    let me = random.below(size);
                    if is_over[me] {
                        continue;
                    }
                    sides[me].executor.limit_turns(random.below(4) as u32);
                    let output = SpanMut::of(&mut outputs[me]);
                    let progress = sides[me].advance(&sizes[me], &reducer, Span::of(&inputs[me]), output);
                    match progress
                        .unwrap_or_else(|peer| panic!("{kind:?} by {algorithm}: {peer:?} is blamed"))
                    {
                        Progress::Done => {
                            let Side { bound, links, executor, .. } = &mut sides[me];
                            bound.settle(executor.iterations(), links);
                            is_over[me] = true;
                        }
                        Progress::Moved => idle = 0,
                        Progress::Blocked => idle += 1,
                    }
                    assert!(idle < 10_000, "{kind:?} by {algorithm} over {ranks}: all wait");
                }
                for (me, output) in outputs.iter().enumerate() {
                    let meant = meant(kind, me, size, count, value);
                    assert!(
                        output.is_empty() || *output == meant,
                        "{kind:?} by {algorithm}, rank {me} of {ranks}"
                    );
                }
            }
        }
    }
}

const TARGET: Target = Target {
    name: "engine-pools",
    command: "-p consort --lib engine::tests::pools",
    bytes_max: 1 << 20,
    inputs: 10_000,
};

/// The other end of a link: a side that keeps to the protocol, until a counter is raised by itself.
struct Peer {
    connection: Other,
    pool: Pool,
    is_spoiled: bool,
}

impl Peer {
    fn over(connection: Other) -> Self {
        let ends = |kind| Ends {
            there: connection.peer_counter(kind).expect("it is mapped").clone(),
            here: connection.counter(kind).clone(),
        };
        let rows = connection.rows(0, SLOTS as usize, SLOT_BYTES).expect("it is as long as agreed");
        let pool = Pool::new(ends(CounterKind::Ready), ends(CounterKind::Credit), rows, SLOTS.into());
        Peer { connection, pool, is_spoiled: false }
    }

    fn act(&mut self, what: u8, rest: &[u8], tag: u64) {
        let word = |at: usize| {
            let bytes = std::array::from_fn(|byte| rest.get(at + byte).copied().unwrap_or(0));
            u64::from_le_bytes(bytes)
        };
        let (sent, emptied) = self.pool.counts();
        match what % 5 {
            0 | 1 if self.is_spoiled => {}
            0 => {
                // With a slot, or without one.
                if self.pool.has_room() == Ok(true)
                    && (word(0) & 7 == 7 || self.pool.fill(sent + 1, 0).is_ok())
                {
                    let _ = self.pool.post(sent + 1, if word(8) & 7 == 7 { word(16) } else { tag });
                }
            }
            1 => {
                if self.pool.is_here(emptied + 1) == Ok(true) {
                    let _ = self.pool.empty(emptied + 1, 0, 1);
                }
            }
            2 => {
                let at = word(0) as usize % Row::bytes(SLOTS as usize, SLOT_BYTES);
                let _ = self.connection.put(at, Span::of(rest), &mut 0);
            }
            kind => {
                let kind = if kind == 3 { CounterKind::Ready } else { CounterKind::Credit };
                let counter: &Counter = self.connection.peer_counter(kind).expect("it is mapped");
                if word(0) > counter.value() {
                    counter.raise(word(0), word(8));
                    self.is_spoiled = true;
                }
            }
        }
    }
}

/// The first piece chooses the program and the length; each other is what the peer does on a link.
fn pools(planner: &Planner, input: &Input, seen: &mut Seen) {
    let first =
        |at: usize| input.first().and_then(|piece| piece.get(at)).map_or(0, |byte| usize::from(*byte));
    let (kind, algorithm) = PROGRAMS[first(0) % PROGRAMS.len()];
    let program = Program { collective: kind.collective(), ranks: 2, algorithm };
    let me = first(1) as Rank % 2;
    let (mut sides, others) = sides(planner, program, Some(me));
    let mut peers: Vec<Peer> = others.into_iter().map(Peer::over).collect();
    let reducer = Reducer::new(DataType::Int32, ReduceOp::Sum, 2);
    let mut actions = input.iter().skip(1);
    for operation in 1..=3u64 {
        let call = call(kind, [0, 1, 100, 1000, 3000][first(1 + operation as usize) % 5]);
        let given = vec![1i32; call.input_bytes(me, 2) / 4];
        let mut taken = vec![2i32; call.output_bytes(me, 2) / 4];
        let sizes = sides[0].start(&call, 2, operation);
        loop {
            let outcome = sides[0].advance(&sizes, &reducer, Span::of(&given), SpanMut::of(&mut taken));
            seen.note((first(0) % PROGRAMS.len(), operation, format!("{outcome:?}")));
            seen.note(sides[0].executor.standing(&sides[0].bound.plan));
            match outcome {
                Ok(Progress::Done) => break,
                Ok(_) => {}
                Err(peer) => return assert_eq!(peer, Some(1 - me), "the only other rank is blamed"),
            }
            let Some([what, link, rest @ ..]) = actions.next().map(Vec::as_slice) else { return };
            if !peers.is_empty() {
                let link = usize::from(*link) % peers.len();
                peers[link].act(*what, rest, operation << POOL_BITS);
            }
        }
        let Side { bound, links, executor, .. } = &mut sides[0];
        bound.settle(executor.iterations(), links);
    }
}

#[test]
fn slots_that_a_peer_names_lead_nowhere_outside() {
    let planner = Planner::default();
    let mut originals = Vec::new();
    for program in 0..PROGRAMS.len() as u8 {
        for length in 0..5u8 {
            let mut input = vec![vec![program, length, length, length, length]];
            for nth in 0..24u8 {
                input.extend([0, 1].map(|what| vec![what, nth % 3]));
                input.extend([0, 1].map(|what| vec![what, (nth + 1) % 3]));
            }
            for kind in [3u8, 4] {
                input.push([&[kind, 0][..], &2u64.to_le_bytes(), &u64::from(length).to_le_bytes()].concat());
            }
            originals.push(input);
        }
    }
    fuzz(&TARGET, originals, |input, seen| pools(&planner, input, seen));
}
