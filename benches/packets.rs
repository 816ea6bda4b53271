//! How long short calls take between two ranks, each a thread of this process: what travels in messages that carry their flag.
//!
//! Both threads make the same number of calls; rank 0 measures, from when both are there. Half a round trip of the cores' caches is
//! the least that a call can take, and a machine whose two cores are not free adds what its scheduler does.

mod sides;

use std::time::{Duration, Instant};

use consort::{Communicator, ReduceOp};
use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use sides::{Data, all_reduces, on_both};

/// Elements of the buffers: 8 bytes and 1 KiB of floats.
const COUNTS: [usize; 2] = [2, 256];

fn together(criterion: &mut Criterion, ranks: &[Communicator]) {
    let mut group = criterion.benchmark_group("all-reduce of two threads");
    for count in COUNTS {
        let data = Data::new(count);
        let bytes = 4 * count as u64;
        group.sampling_mode(SamplingMode::Flat).throughput(Throughput::Bytes(bytes));
        group.bench_function(BenchmarkId::from_parameter(format!("{bytes} bytes")), |bencher| {
            bencher.iter_custom(|calls| all_reduces(ranks, &data, ReduceOp::Sum, calls));
        });
    }
}

fn ping_pong(criterion: &mut Criterion, ranks: &[Communicator]) {
    let data = Data::new(COUNTS[0]);
    let mut group = criterion.benchmark_group("there and back between two threads");
    group.sampling_mode(SamplingMode::Flat).throughput(Throughput::Bytes(8));
    group.bench_function("8 bytes", |bencher| {
        bencher.iter_custom(|calls| {
            on_both(ranks, |comm, meeting| {
                let (own, mut other) = (data.of(comm), vec![0.0; COUNTS[0]]);
                meeting.meet();
                let start = Instant::now();
                for _ in 0..calls {
                    if comm.rank() == 0 {
                        comm.send(own, 1).expect("rank 1 receives");
                        comm.receive(&mut other, 1).expect("rank 1 sends");
                    } else {
                        comm.receive(&mut other, 0).expect("rank 0 sends");
                        comm.send(own, 0).expect("rank 0 receives");
                    }
                }
                let took = start.elapsed();
                assert_eq!(other, data.of_rank(1 - comm.rank()));
                took
            })
        });
    });
}

fn all(criterion: &mut Criterion) {
    let ranks = Communicator::local(2).expect("two ranks");
    together(criterion, &ranks);
    ping_pong(criterion, &ranks);
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(100)
        .nresamples(2000)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1500));
    targets = all
}
criterion_main!(benches);
