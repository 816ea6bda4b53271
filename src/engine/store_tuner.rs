//! Whether the bytes of long blocks go through the caches to other ranks or past them, found out while they are moved.
//!
//! Slots migrate to their readers, so a store to a slot is cheap where the slot's lines are still in a cache of the core that
//! fills it. Blocks of several megabytes drive them out. Which kind of stores is the faster one then depends on whether two
//! cores share a cache, and virtual machines move cores from one state to the other while a job runs. So both kinds are tried
//! for blocks of at least [`TRIED_BYTES_MIN`]: one is kept, and the other runs for a window of samples now and then, and at
//! once when the kept one has become slow. Shorter blocks go through the caches.
//!
//! ```text
//!          windows between two tries are over, or the kept store has become slow
//!   Keeps ─────────────────────────────────────────────────────────────────────► Tries the other
//!     ▲                                                                               │
//!     └── its window is over, or it is plainly slower: the faster one is kept; ───────┘
//!         tries of a slower one grow rare
//! ```
//!
//! The least cost of a window counts: what else took time (ranks that came late, threads that lost their core) only adds.
//!
//! | who decides | of what | cost of a sample |
//! |---|---|---|
//! | rank 0, by [`StoreTuner`] | collectives that begin with an entry | the slowest rank's part |
//!
//! Invariant: the bits of a result do not depend on the store, and all ranks of a collective use the one that rank 0 says
//! in a [sample](StoreTuner::sample), whose bits no other module reads. Absent: the copies.

use std::collections::BTreeMap;

use consort_algorithms::catalogue::Algorithm;
use consort_kernels::Store;

use consort_types::call::{Call, Kind};

/// The shortest blocks, in bytes, on which the other store is tried.
const TRIED_BYTES_MIN: usize = 8 << 20;
/// Samples of a window.
const WINDOW: u32 = 3;
/// How much slower than the kept store, of 16, a try is plainly slower and ends at once.
const PLAINLY: u64 = 20;
/// Windows before the first try, which is not for the first few calls of a program to pay.
const FIRST: u32 = 4;
/// Windows between two tries, at first and at most.
const APART_MIN: u32 = 8;
const APART_MAX: u32 = 256;
/// How much faster, of 16, the other store must be to be kept.
const FASTER: u64 = 14;
/// How much slower than it was, of 16, the kept store must be to try the other at once.
const SLOWER: u64 = 24;

/// Samples carry times in units of 2^6 ticks: some 30 ns. A minute fits 32 bits.
const SAMPLE_TICKS: u32 = 6;

/// Zero-copy folds write outputs of at least this many bytes past the caches: a fold writes other ranks'
/// outputs too, whose lines a cached store would first fetch from another core. Plans write only their own, and lose by
/// streaming below `STREAMING_BYTES_MIN` of `planner/choice` (`docs/measurements/host.md`).
const STREAMING_FOLD_BYTES_MIN: usize = 4 << 20;
/// The same of a message. Its reader writes its own output alone, which then is where the program reads it
/// (`docs/measurements/crossing.md`).
const STREAMING_MESSAGE_BYTES_MIN: usize = 12 << 20;

fn store_above(least: usize, bytes: usize) -> Store {
    if bytes >= least { Store::Streaming } else { Store::Cached }
}

/// How a zero-copy fold writes an output of `bytes` bytes.
#[inline]
pub(super) fn fold_store(bytes: usize) -> Store {
    store_above(STREAMING_FOLD_BYTES_MIN, bytes)
}

/// How a message of `bytes` bytes is written to where its reader wants it.
#[inline]
pub(super) fn message_store(bytes: usize) -> Store {
    store_above(STREAMING_MESSAGE_BYTES_MIN, bytes)
}

/// A store as ranks say it to each other.
#[inline]
pub(super) fn word_of(store: Store) -> u64 {
    u64::from(store == Store::Streaming)
}

/// The inverse of [`word_of`], of any word that a peer sent.
#[inline]
pub(super) fn store_of(word: u64) -> Store {
    if word & 1 != 0 { Store::Streaming } else { Store::Cached }
}

fn other(store: Store) -> Store {
    store_of(word_of(store) ^ 1)
}

/// What is known of the two stores, for work that is alike.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    kept: Store,
    tries: bool,
    /// The least cost of the present window, and samples in it.
    least: u64,
    count: u32,
    /// What the kept store cost when it was taken, or since; 0 before the first window.
    known: u64,
    /// Windows until the next try, and between tries.
    left: u32,
    apart: u32,
}

impl Default for Trial {
    fn default() -> Self {
        Trial {
            kept: Store::Cached,
            tries: false,
            least: u64::MAX,
            count: 0,
            known: 0,
            left: FIRST,
            apart: APART_MIN,
        }
    }
}

impl Trial {
    /// The store of the next operation.
    #[inline]
    pub(crate) fn store(&self) -> Store {
        if self.tries { other(self.kept) } else { self.kept }
    }

    /// An operation by `store` cost so much, in any unit that is the same for all.
    pub(crate) fn note(&mut self, store: Store, cost: u64) {
        if store != self.store() {
            return;
        }
        self.count += 1;
        self.least = self.least.min(cost.max(1));
        let is_lost = self.tries && self.least * 16 > self.known * PLAINLY;
        if self.count >= WINDOW || is_lost {
            let least = std::mem::replace(&mut self.least, u64::MAX);
            self.count = 0;
            if self.tries { self.end_try(least) } else { self.end_window(least) }
        }
    }

    fn end_try(&mut self, least: u64) {
        if least * 16 < self.known * FASTER {
            (self.kept, self.known, self.apart) = (self.store(), least, APART_MIN);
        } else {
            self.apart = (self.apart * 2).min(APART_MAX);
        }
        (self.tries, self.left) = (false, self.apart);
    }

    fn end_window(&mut self, least: u64) {
        let was = self.known;
        if was != 0 && least * 16 > was * SLOWER {
            // The machine has changed.
            (self.known, self.apart, self.left) = (least, APART_MIN, 0);
        } else {
            // It drifts down at once and up slowly.
            self.known = if was == 0 { least } else { least.min(was + was / 32 + 1) };
            self.left = self.left.saturating_sub(1);
        }
        self.tries = self.left == 0;
    }
}

fn block_bytes(call: &Call) -> usize {
    call.count * call.data_type.size()
}

/// A collective, the algorithm if the call names one, and the size class.
type Class = (Kind, Option<Algorithm>, u32);

/// The stores of a communicator's collectives by class: rank 0 tries them, from what all ranks say.
///
/// An operation is over when the last rank is done, which rank 0 cannot see: the root of a broadcast has sent everything well
/// before. So every rank says with its next call how long its part of the last one took since all had come.
pub(crate) struct StoreTuner {
    decides: bool,
    trials: BTreeMap<Class, Trial>,
    /// The last operation that all ranks will tell the time of.
    last: Option<(Call, Store)>,
    /// How long this rank's part of it took, until that is said; 0 if there is nothing to say.
    took: u32,
}

impl StoreTuner {
    /// The tuner of a rank, which `decides` for all or does as another one says.
    pub(crate) fn new(decides: bool) -> Self {
        StoreTuner { decides, trials: BTreeMap::new(), last: None, took: 0 }
    }

    /// The trial of calls like this one; none where the block is too short for one.
    fn trial(&mut self, call: &Call) -> Option<&mut Trial> {
        let bytes = block_bytes(call);
        (bytes >= TRIED_BYTES_MIN)
            .then(|| self.trials.entry((call.kind, call.algorithm, bytes.ilog2())).or_default())
    }

    /// What this rank says with its entry of a call: of rank 0 the call's store, and of each how long its part of the
    /// operation before took.
    pub(crate) fn sample(&mut self, call: &Call) -> u64 {
        let trial = if self.decides { self.trial(call) } else { None };
        let store = trial.map_or(Store::Cached, |trial| trial.store());
        word_of(store) | u64::from(std::mem::take(&mut self.took)) << 32
    }

    /// The store of a call whose entry is over; `samples` are all ranks', in their order.
    pub(crate) fn agree(&mut self, mut samples: impl Iterator<Item = u64> + Clone) -> Store {
        let parts = samples.clone().map(|sample| sample >> 32);
        let store = store_of(samples.next().unwrap_or(0));
        if let Some((call, store)) = self.last.take()
            && self.decides
            && parts.clone().all(|part| part != 0)
        {
            let longest = parts.max().unwrap_or(0);
            if let Some(trial) = self.trial(&call) {
                // Calls of a class differ in length.
                trial.note(store, (longest << (SAMPLE_TICKS + 12)) / block_bytes(&call) as u64);
            }
        }
        store
    }

    /// This rank's part of a call took `ticks` ticks, from when all ranks had come.
    pub(crate) fn ended(&mut self, call: &Call, store: Store, ticks: u64) {
        self.last = Some((*call, store));
        self.took = u32::try_from(ticks >> SAMPLE_TICKS).unwrap_or(u32::MAX).max(1);
    }
}

#[cfg(test)]
mod tests {
    use consort_kernels::DataType;

    use super::*;

    /// Operations on a machine where the two stores cost so much; how many went each way.
    fn run(trial: &mut Trial, count: u32, costs: [u64; 2]) -> [u32; 2] {
        let mut went = [0; 2];
        for nth in 0..count {
            let store = trial.store();
            let which = word_of(store) as usize;
            went[which] += 1;
            // Every third operation waits for a rank.
            trial.note(store, costs[which] + if nth % 3 == 0 { 5000 } else { 0 });
        }
        went
    }

    fn all_gather(count: usize) -> Call {
        Call::new(Kind::AllGather, DataType::Float32, None, 0, count)
    }

    /// A call by one rank, whose part takes so long by each store; the store that it took.
    fn call(tuner: &mut StoreTuner, call: &Call, took: [u64; 2]) -> Store {
        let sample = tuner.sample(call);
        let store = tuner.agree([sample].into_iter());
        tuner.ended(call, store, took[word_of(store) as usize]);
        store
    }

    #[test]
    fn the_faster_store_is_kept_and_tries_become_rare() {
        let mut trial = Trial::default();
        run(&mut trial, 300, [3000, 700]);
        let [_, streaming] = run(&mut trial, 10_000, [3000, 700]);
        assert!(streaming > 9_700, "{trial:?}");
        // The machine changes so that the kept store becomes slow.
        run(&mut trial, 200, [500, 2000]);
        let [cached, _] = run(&mut trial, 10_000, [500, 2000]);
        assert!(cached > 9_700, "{trial:?}");
        // And so that the other becomes faster, which only a try shows.
        run(&mut trial, 4 * APART_MAX * WINDOW, [500, 200]);
        let [_, streaming] = run(&mut trial, 10_000, [500, 200]);
        assert!(streaming > 9_700, "{trial:?}");
    }

    #[test]
    fn the_first_calls_try_nothing_and_a_plainly_slower_try_is_one_call() {
        for (costs, tries) in [([3000, 3100], WINDOW), ([3000, 700], WINDOW), ([700, 3000], 1)] {
            let mut trial = Trial::default();
            let mut operation = || {
                let store = trial.store();
                trial.note(store, costs[word_of(store) as usize]);
                store
            };
            assert!((0..FIRST * WINDOW).all(|_| operation() == Store::Cached), "{costs:?}");
            assert!((0..tries).all(|_| operation() == Store::Streaming), "{costs:?}");
            let kept = store_of(u64::from(costs[1] < costs[0]));
            assert!((0..APART_MIN * WINDOW).all(|_| operation() == kept), "{costs:?}");
        }
    }

    #[test]
    fn equals_are_not_changed() {
        let mut trial = Trial::default();
        let [cached, streaming] = run(&mut trial, 20_000, [1000, 950]);
        assert!(streaming < cached / 20, "{trial:?}");
    }

    #[test]
    fn what_the_other_store_cost_is_not_noted() {
        let mut trial = Trial::default();
        (0..100).for_each(|_| trial.note(Store::Streaming, 1));
        assert_eq!((trial.store(), trial.known), (Store::Cached, 0));
    }

    #[test]
    fn short_blocks_go_through_the_caches_without_a_trial() {
        let mut tuner = StoreTuner::new(true);
        let took = [20_000, 10_000];
        for count in [0, 1, 1 << 16, TRIED_BYTES_MIN / 4 - 1] {
            assert!((0..100).all(|_| call(&mut tuner, &all_gather(count), took) == Store::Cached), "{count}");
        }
        assert!(tuner.trials.is_empty(), "{:?}", tuner.trials);
        let tried = |tuner: &mut StoreTuner, of: &Call| {
            (0..100).filter(|_| call(tuner, of, took) == Store::Streaming).count()
        };
        assert!(tried(&mut tuner, &all_gather(TRIED_BYTES_MIN / 4)) > 80);
        // Other lengths and algorithms have trials of their own.
        let named = Call { algorithm: Some(Algorithm::Tree), ..all_gather(TRIED_BYTES_MIN / 4) };
        for other in [all_gather(TRIED_BYTES_MIN / 2), named] {
            assert_eq!(call(&mut tuner, &other, took), Store::Cached);
            assert!(tried(&mut tuner, &other) > 80);
        }
        assert_eq!(tuner.trials.len(), 3);
    }

    #[test]
    fn the_slowest_rank_counts_and_rank_0_decides() {
        let call = Call::new(Kind::Broadcast, DataType::Float32, None, 0, TRIED_BYTES_MIN / 4);
        let mut ranks = [StoreTuner::new(true), StoreTuner::new(false)];
        let operation = |ranks: &mut [StoreTuner; 2], took: [[u64; 2]; 2]| {
            let samples = ranks.each_mut().map(|rank| rank.sample(&call));
            let stores = ranks.each_mut().map(|rank| rank.agree(samples.into_iter()));
            assert_eq!(stores[0], stores[1], "all ranks use the same");
            for (rank, took) in ranks.iter_mut().zip(took) {
                rank.ended(&call, stores[0], took[word_of(stores[0]) as usize]);
            }
            stores[0]
        };
        // The root is done sooner by the second store, and all of them by the first.
        let tries = (0..2_000)
            .filter(|_| operation(&mut ranks, [[20_000, 15_000], [25_000, 40_000]]) == Store::Streaming);
        assert!((1..20).contains(&tries.count()), "a few short tries");
        let trial = ranks[0].trial(&call).expect("it is long").clone();
        assert_eq!(trial.kept, Store::Cached, "{trial:?}");
        let slowest = 25_000 >> SAMPLE_TICKS << SAMPLE_TICKS;
        assert_eq!(trial.known, (slowest << 12) / TRIED_BYTES_MIN as u64, "{trial:?}");
        assert!(ranks[1].trials.is_empty(), "the others only do as rank 0 says");
        // A rank that says no time ends no window.
        ranks[0].ended(&call, Store::Cached, 1);
        ranks[0].agree([1 << 32, 0].into_iter());
        assert_eq!(ranks[0].trial(&call).expect("as above").count, trial.count);
    }

    #[test]
    fn any_word_of_a_peer_is_a_store_and_a_time() {
        let mut tuner = StoreTuner::new(true);
        for word in [u64::MAX, 1 << 63, 0xffff_ffff, 2] {
            tuner.ended(&all_gather(TRIED_BYTES_MIN), Store::Cached, u64::MAX);
            let _ = tuner.agree([word, u64::MAX].into_iter());
        }
    }
}
