//! Numbers that follow from a seed.

pub(crate) use consort_testing::mix as hash;

/// The draws of a simulated job.
#[derive(Clone, Debug)]
pub(crate) struct Random(consort_testing::Random);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(consort_testing::Random(hash(seed ^ 0x6a09_e667_f3bc_c908)))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.draw()
    }

    /// Below `limit`, which is not 0.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0.below(limit)
    }

    pub(crate) fn once_in(&mut self, times: usize) -> bool {
        self.0.one_in(times)
    }
}
