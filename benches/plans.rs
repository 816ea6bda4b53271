//! How long a call takes to be planned: the choice of an algorithm, the plans of all ranks, and first and repeated calls of
//! two ranks, each a thread of this process.
//!
//! What a first call has to do depends on what is known. The plans that were proved are the process's, for as long as it has a
//! communicator; choices and what calls are bound to are the communicator's.

mod sides;

use std::hint::black_box;
use std::time::Duration;

use consort::planning::{Collective, Planning};
use consort::{Communicator, Options, ReduceOp};
use criterion::{BatchSize, BenchmarkId, Criterion, SamplingMode, criterion_group, criterion_main};

use sides::{Data, all_reduces};

/// Elements of the buffers: 8 bytes, which travel in packets, and 128 KiB, which take a plan over links.
const CALLS: [(&str, usize); 2] = [("8 bytes", 2), ("128 KiB", 32 << 10)];

fn choices(criterion: &mut Criterion) {
    let (collective, block_bytes) = (Collective::AllReduce, 128 << 10);
    for ranks in [2, 8, 64] {
        let planning = || Planning::for_host(ranks, ranks, &Options::default()).expect("a host");
        let known = planning();
        let algorithm = known.algorithm(collective, block_bytes).expect("something is possible");
        let mut group = criterion.benchmark_group(format!("all-reduce of {ranks} ranks"));
        group.bench_function("choice worked out", |bencher| {
            bencher.iter_batched_ref(
                planning,
                |planning| planning.algorithm(collective, block_bytes),
                BatchSize::SmallInput,
            );
        });
        group.bench_function("choice known", |bencher| {
            bencher.iter(|| black_box(&known).algorithm(collective, black_box(block_bytes)));
        });
        group.bench_function(BenchmarkId::new("plans of all ranks", algorithm), |bencher| {
            bencher.iter(|| black_box(&known).plans(algorithm, collective).map(|plans| plans.len()));
        });
    }
}

fn local() -> Vec<Communicator> {
    Communicator::local(2).expect("two ranks")
}

fn calls(criterion: &mut Criterion) {
    for (name, count) in CALLS {
        let data = Data::new(count);
        let sum = |ranks: &[Communicator]| all_reduces(ranks, &data, ReduceOp::Sum, 1);
        let mut group = criterion.benchmark_group(format!("call of {name}"));
        group.sampling_mode(SamplingMode::Flat);
        group.bench_function("first, nothing proved", |bencher| {
            bencher.iter_custom(|times| (0..times).map(|_| sum(&local())).sum());
        });
        let other = local();
        sum(&other);
        group.bench_function("first of a communicator", |bencher| {
            bencher.iter_custom(|times| (0..times).map(|_| sum(&local())).sum());
        });
        group.bench_function("first of a shape", |bencher| {
            let shape = |_| {
                let ranks = local();
                sum(&ranks);
                all_reduces(&ranks, &data, ReduceOp::Max, 1)
            };
            bencher.iter_custom(|times| (0..times).map(shape).sum());
        });
        group.bench_function("repeated", |bencher| {
            bencher.iter_custom(|times| all_reduces(&other, &data, ReduceOp::Sum, times));
        });
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .nresamples(2000)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800));
    targets = choices, calls
}
criterion_main!(benches);
