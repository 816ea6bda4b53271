//! A repeated small call between spinning threads allocates nothing, on any thread of the process.

use std::sync::Barrier;

use consort::planning::Algorithm;
use consort::{Communicator, ReduceOp, Result};
use consort_tests::counting;
use consort_tests::own_process::in_own_process;

type Call = fn(&Communicator, &mut [f32]) -> Result<()>;

/// The allocations of each call, the best of thirty rounds of `repeats` calls: a rank without a core for long gets an
/// inquiry, which allocates.
fn allocations(size: u32, repeats: usize, calls: &[(&'static str, Call)]) -> Vec<(&'static str, u64)> {
    let ranks = Communicator::local(size).expect("ranks");
    let gate = Barrier::new(size as usize);
    let run = |comm: &Communicator| -> Vec<u64> {
        let mut values = [1.0f32; 8];
        let count = |(_, call): &(&str, Call)| {
            (0..2).for_each(|_| call(comm, &mut values).expect("the first calls"));
            let round = |_| {
                gate.wait();
                let before = counting::calls();
                gate.wait();
                for _ in 0..repeats {
                    call(comm, &mut values).expect("a repeated call");
                }
                gate.wait();
                counting::calls() - before
            };
            (0..30).map(round).min().expect("thirty rounds")
        };
        calls.iter().map(count).collect()
    };
    let counts: Vec<Vec<u64>> = std::thread::scope(|threads| {
        let threads: Vec<_> = ranks.iter().map(|comm| threads.spawn(|| run(comm))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let most = |at: usize| counts.iter().map(|counts| counts[at]).max().unwrap_or(0);
    calls.iter().enumerate().map(|(at, (name, _))| (*name, most(at))).filter(|(_, most)| *most > 0).collect()
}

#[test]
fn a_repeated_small_call_between_threads_allocates_nothing() {
    let calls: [(&str, Call); 5] = [
        ("all_reduce", |comm, values| comm.all_reduce(&mut values[..2], ReduceOp::Max)),
        ("exchange", |comm, values| {
            comm.exchange_into(&[1.0], 1 - comm.rank(), &mut values[..1], 1 - comm.rank())
        }),
        ("all_to_all", |comm, values| comm.all_to_all(&[1.0, 2.0], &mut values[..2])),
        ("gather", |comm, values| comm.gather(&[1.0], &mut values[..2], 1)),
        ("all_gather_v", |comm, values| {
            comm.all_gather_v(&[1.0, 2.0][..2 * comm.rank() as usize], &mut values[..2], &[0, 2])
        }),
    ];
    in_own_process("allocations::a_repeated_small_call_between_threads_allocates_nothing", &[], || {
        assert_eq!(allocations(2, 1000, &calls), []);
    });
}

/// On three ranks some steps have more than two targets.
#[test]
fn a_repeated_call_that_names_its_algorithm_allocates_nothing() {
    fn sum(comm: &Communicator, values: &mut [f32], algorithm: Algorithm) -> Result<()> {
        comm.with_algorithm(algorithm).all_reduce(values, ReduceOp::Avg)
    }
    let calls: [(&str, Call); 12] = [
        ("tree", |comm, values| sum(comm, values, Algorithm::Tree)),
        ("doubling", |comm, values| sum(comm, values, Algorithm::Doubling)),
        ("two-shot", |comm, values| sum(comm, values, Algorithm::TwoShot)),
        ("one-shot", |comm, values| sum(comm, values, Algorithm::Direct { first: 0 })),
        ("ring", |comm, values| sum(comm, values, Algorithm::Ring { channels: 2, bidirectional: true })),
        ("hierarchical", |comm, values| sum(comm, values, Algorithm::Hierarchical { per_box: 3 })),
        ("direct reduce", |comm, values| {
            comm.with_algorithm(Algorithm::Direct { first: 0 }).reduce(values, ReduceOp::Sum, 1)
        }),
        ("direct all-gather", |comm, values| {
            comm.with_algorithm(Algorithm::Direct { first: 0 }).all_gather(&[1.0, 2.0], &mut values[..6])
        }),
        ("direct broadcast", |comm, values| {
            comm.with_algorithm(Algorithm::Direct { first: 0 }).broadcast(values, 2)
        }),
        ("pairwise", |comm, values| {
            comm.with_algorithm(Algorithm::Pairwise).all_to_all(&[1.0, 2.0, 3.0], &mut values[..3])
        }),
        ("bruck", |comm, values| {
            comm.with_algorithm(Algorithm::Bruck { radix: 3 }).all_to_all(&[1.0, 2.0, 3.0], &mut values[..3])
        }),
        ("reduce_scatter_v", |comm, values| {
            let own = comm.rank() as usize;
            let named = comm.with_algorithm(Algorithm::Direct { first: 0 });
            named.reduce_scatter_v(&[1.0, 2.0, 3.0], &mut values[..own], &[0, 1, 2], ReduceOp::Sum)
        }),
    ];
    in_own_process("allocations::a_repeated_call_that_names_its_algorithm_allocates_nothing", &[], || {
        assert_eq!(allocations(3, 200, &calls), []);
    });
}
