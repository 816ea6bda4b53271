//! How long control messages take to be written as frames and read again: a query, the answer of a rank that is stuck, and
//! the failure that carries a hang report on 64 ranks. The throughput counts the bytes of the frame.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use consort_algorithms::catalogue::Algorithm;
use consort_control::membership::group::Failure;
use consort_control::membership::wire::{Message, decode, encode};
use consort_control::recorder::{AgedEntry, Snapshot};
use consort_control::report::analyse;
use consort_control::report::evidence::{Evidence, Open, Position, Reach, Stuck, Traffic, Want, Witness};
use consort_kernels::{DataType, ReduceOp};
use consort_testing::Random;
use consort_types::call::{Descriptor, Kind, Named, Operator};
use consort_types::error::{Error, Operation};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const COMMUNICATOR: u64 = 0x1a2b_3c4d;

const RANKS: u32 = 64;

/// Operations that an answer lists.
const RECENT: u64 = 16;

const SECOND: Duration = Duration::from_secs(1);

fn process(rank: u32) -> [u8; 16] {
    [rank as u8 + 1; 16]
}

fn descriptor(random: &mut Random) -> Descriptor {
    Descriptor {
        kind: Kind::AllReduce,
        data_type: DataType::Bfloat16,
        op: Some(Operator::Plain(ReduceOp::Sum)),
        root: 0,
        count: 1 + random.draw() % (1 << 30),
        named: Named::new(Algorithm::Doubling),
    }
}

/// A rank in a ring that waits for bytes of the rank before it.
fn position(random: &mut Random, rank: u32, sequence: u64) -> Position {
    let before = (rank + RANKS - 1) % RANKS;
    let stuck = Stuck {
        want: Want::Data,
        peer: before,
        peer_process: process(before),
        step: random.below(126) as u32,
        steps: 126,
        slice: random.below(8) as u32,
        slices: 8,
        algorithm: "ring".into(),
        age: random.duration(SECOND),
    };
    let signals = random.draw() >> 32;
    let traffic = |peer| Traffic {
        peer,
        channel: 0,
        filled: signals,
        arrived: signals,
        returned: signals - 1,
        credited: signals - 1,
    };
    Position {
        communicator: COMMUNICATOR,
        size: RANKS,
        rank,
        job: [5; 16],
        job_rank: rank,
        caller: 1,
        entered: sequence,
        finished: sequence - 1,
        last: Some((sequence - 1, descriptor(random), random.duration(SECOND))),
        open: Some(Open { sequence, descriptor: descriptor(random), age: SECOND, stuck: Some(stuck) }),
        messages: Vec::new(),
        passed: Vec::new(),
        traffic: vec![traffic(before), traffic((rank + 1) % RANKS)],
        slow: Vec::new(),
    }
}

fn answer(random: &mut Random) -> Message {
    let sequence = RECENT + random.draw() % (1 << 20);
    let recent = (sequence - RECENT..sequence).map(|sequence| AgedEntry {
        sequence,
        descriptor: descriptor(random),
        entered: random.duration(SECOND),
        ended: Some(random.duration(SECOND)),
        failed: false,
    });
    let snapshot = Snapshot { entered: sequence, finished: sequence - 1, recent: recent.collect() };
    let positions = vec![position(random, 3, sequence)];
    Message::State { token: random.draw(), clock: random.draw(), snapshot, positions }
}

/// Every rank but one answers, all of them stuck; that one is silent.
fn hang_report(random: &mut Random) -> Message {
    let sequence = 2 + random.draw() % (1 << 20);
    let silent = random.below(RANKS as usize) as u32;
    let positions: Vec<Position> = (0..RANKS).map(|rank| position(random, rank, sequence)).collect();
    let witness = |rank: u32| Witness {
        host: format!("host{}", rank / 8),
        pid: 4000 + rank,
        process: process(rank),
        job: [5; 16],
        job_rank: rank,
        reach: if rank == silent { Reach::Silent } else { Reach::Answered },
        position: (rank != silent).then(|| positions[rank as usize].clone()),
    };
    let answered = positions.iter().filter(|position| position.rank != silent);
    let report = analyse(&Evidence {
        communicator: COMMUNICATOR,
        by: 0,
        operation: Some((sequence, descriptor(random))),
        waited: 12 * SECOND,
        ranks: (0..RANKS).map(witness).collect(),
        processes: answered.map(|position| (process(position.rank), vec![position.clone()])).collect(),
        places: Default::default(),
    });
    let operation = Operation { name: "all_reduce".into(), sequence };
    let error = Error::Timeout { operation, waited: 12 * SECOND, verdict: report.verdict.clone() };
    Message::Poison { failure: Failure { origin: 0, error, report: Some(Arc::new(report)) } }
}

fn frames(criterion: &mut Criterion) {
    let mut random = Random::announced("frames");
    let cases = [
        ("query", Message::Query { token: random.draw() }),
        ("answer", answer(&mut random)),
        ("hang report of 64 ranks", hang_report(&mut random)),
    ];
    for (name, message) in cases {
        let mut frame = Vec::new();
        encode(COMMUNICATOR, &message, &mut frame);
        let read = decode(&mut frame.as_slice()).expect("a frame of this protocol").expect("a whole frame");
        assert_eq!(format!("{read:?}"), format!("{:?}", (COMMUNICATOR, &message)));
        let mut group = criterion.benchmark_group(name);
        group.throughput(Throughput::Bytes(frame.len() as u64));
        let mut out = Vec::with_capacity(frame.len());
        group.bench_function("encode", |bencher| {
            bencher.iter(|| {
                out.clear();
                encode(COMMUNICATOR, black_box(&message), &mut out);
                black_box(out.len())
            });
        });
        group.bench_function("decode", |bencher| {
            bencher.iter(|| decode(&mut black_box(frame.as_slice())));
        });
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .nresamples(2000)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(500));
    targets = frames
}
criterion_main!(benches);
