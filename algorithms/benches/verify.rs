//! Time of the verifier's proofs: the fused plans of all ranks, and one plan of a regular schedule.
//!
//! A case is an algorithm with its number of ranks. The throughput counts the steps of the plans that are proved.

use std::hint::black_box;
use std::time::Duration;

use consort_algorithms::catalogue::Algorithm;
use consort_algorithms::passes::fuse;
use consort_algorithms::{
    Collective, LowerOptions, Plan, Rank, lower_all, lower_one, verify, verify_regular,
};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const OPTIONS: LowerOptions = LowerOptions { slots: 4 };

const RANKS: [u32; 3] = [4, 16, 64];

const RING: Algorithm = Algorithm::Ring { channels: 1, bidirectional: false };

const ALGORITHMS: [(Algorithm, Collective); 5] = [
    (RING, Collective::AllReduce),
    (Algorithm::Tree, Collective::AllReduce),
    (Algorithm::Doubling, Collective::AllReduce),
    (Algorithm::TwoShot, Collective::AllReduce),
    (Algorithm::Spread, Collective::AllToAll),
];

fn of_all_ranks(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("verify");
    for (algorithm, collective) in ALGORITHMS {
        for ranks in RANKS {
            let lowered = lower_all(&algorithm.schedule(collective, ranks), &OPTIONS).expect("it lowers");
            let plans: Vec<Plan> = lowered.iter().map(|plan| fuse(plan, &|_| true)).collect();
            let proof = verify(&plans).expect("the catalogue's plans are right");
            assert_eq!(proof.steps, plans.iter().map(|plan| plan.steps.len()).sum::<usize>());
            group.throughput(Throughput::Elements(proof.steps as u64));
            group.bench_function(BenchmarkId::new(algorithm.to_string(), ranks), |bencher| {
                bencher.iter(|| verify(black_box(&plans)));
            });
        }
    }
}

fn of_one_rank(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("verify_regular");
    for algorithm in [RING, Algorithm::Doubling] {
        for ranks in RANKS {
            let regular = algorithm.regular(Collective::AllReduce, ranks).expect("it is regular");
            let plan = lower_one(&*regular, Rank(ranks - 1), &OPTIONS).expect("it lowers");
            let plan = fuse(&plan, &|_| true);
            let proof = verify_regular(&*regular, &plan).expect("the catalogue's plans are right");
            let all =
                lower_all(&algorithm.schedule(Collective::AllReduce, ranks), &OPTIONS).expect("it lowers");
            let all: Vec<Plan> = all.iter().map(|plan| fuse(plan, &|_| true)).collect();
            assert_eq!(verify(&all).map(|full| full.fold_hash), Ok(proof.fold_hash));
            group.throughput(Throughput::Elements(plan.steps.len() as u64));
            group.bench_function(BenchmarkId::new(algorithm.to_string(), ranks), |bencher| {
                bencher.iter(|| verify_regular(black_box(&*regular), black_box(&plan)));
            });
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .nresamples(2000)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(500));
    targets = of_all_ranks, of_one_rank
}
criterion_main!(benches);
