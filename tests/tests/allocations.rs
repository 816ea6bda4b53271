//! A repeated small all-reduce between spinning threads allocates nothing, on any thread of the process.

use std::sync::Barrier;

use consort::{Communicator, ReduceOp};
use consort_tests::counting::{self, Counting};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_repeated_small_call_between_threads_allocates_nothing() {
    let ranks = Communicator::local(2).expect("two ranks");
    let gate = Barrier::new(2);
    // A rank without a core for long is asked what it is doing, which allocates: the best of some rounds counts.
    let run = |comm: &Communicator| {
        let mut value = [1.0f32, 2.0];
        comm.all_reduce(&mut value, ReduceOp::Max).expect("the first call");
        comm.all_reduce(&mut value, ReduceOp::Max).expect("the second call");
        let round = |_| {
            gate.wait();
            let before = counting::calls();
            gate.wait();
            for _ in 0..1000 {
                comm.all_reduce(&mut value, ReduceOp::Max).expect("a repeated call");
            }
            gate.wait();
            counting::calls() - before
        };
        (0..10).map(round).min().expect("ten rounds")
    };
    let counts: Vec<u64> = std::thread::scope(|threads| {
        let threads: Vec<_> = ranks.iter().map(|comm| threads.spawn(|| run(comm))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert_eq!(counts, [0, 0], "allocations in 1000 calls, the best of ten rounds");
}
