//! Two ranks, each a thread, and what they bring.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use consort::{Communicator, ReduceOp};
use consort_testing::Random;

/// A different vector for each of two ranks. No element is 0, and all sums are exact.
pub(crate) struct Data([Vec<f32>; 2]);

impl Data {
    pub(crate) fn new(count: usize) -> Self {
        let mut random = Random::announced("benches");
        Self([0; 2].map(|_| (0..count).map(|_| (1 + random.below(1 << 20)) as f32 / 8.0).collect()))
    }

    pub(crate) fn of_rank(&self, rank: u32) -> &[f32] {
        &self.0[rank as usize]
    }

    pub(crate) fn of(&self, comm: &Communicator) -> &[f32] {
        self.of_rank(comm.rank())
    }

    /// What an all-reduce of both gives; of sums and maxima.
    pub(crate) fn folded(&self, op: ReduceOp) -> Vec<f32> {
        let fold =
            |(left, right): (&f32, &f32)| if op == ReduceOp::Max { left.max(*right) } else { left + right };
        self.0[0].iter().zip(&self.0[1]).map(fold).collect()
    }
}

/// Where two threads meet without a call of the library. It lets other threads run, but does not sleep: a thread that has to
/// be woken would start late.
#[derive(Default)]
pub(crate) struct Meeting(AtomicU32);

impl Meeting {
    pub(crate) fn meet(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
        while self.0.load(Ordering::Acquire) < 2 {
            std::thread::yield_now();
        }
    }
}

/// Runs the same on both ranks, one of them on a thread of its own; what rank 0 measured.
pub(crate) fn on_both(
    ranks: &[Communicator],
    run: impl Fn(&Communicator, &Meeting) -> Duration + Sync,
) -> Duration {
    let meeting = Meeting::default();
    std::thread::scope(|threads| {
        let other = threads.spawn(|| run(&ranks[1], &meeting));
        let took = run(&ranks[0], &meeting);
        other.join().expect("the other rank's thread");
        took
    })
}

/// Both ranks meet and make `calls` all-reduces; returns the time that these take rank 0.
pub(crate) fn all_reduces(ranks: &[Communicator], data: &Data, op: ReduceOp, calls: u64) -> Duration {
    on_both(ranks, |comm, meeting| {
        let (input, expected) = (data.of(comm), data.folded(op));
        let mut output = vec![0.0; input.len()];
        meeting.meet();
        let start = Instant::now();
        for _ in 0..calls {
            comm.all_reduce_into(input, &mut output, op).expect("both ranks call it");
        }
        let took = start.elapsed();
        assert_eq!(output, expected);
        took
    })
}
