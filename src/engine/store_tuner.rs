//! Whether bytes that another rank reads go through the caches or past them, found out while they are moved.
//!
//! Where two cores share a cache, lines that one wrote are read and written again quickly by the other. Where they do not,
//! every line has to be fetched from the other core before it can be written, and stores past the caches are several times
//! faster. Virtual machines move cores from one state to the other while a job runs. So both kinds of stores are tried: one
//! is kept, and the other runs for a window of samples now and then, and at once when the kept one has become slow.
//!
//! ```text
//!          windows between two tries are over, or the kept store has become slow
//!   Keeps ─────────────────────────────────────────────────────────────────────► Tries the other
//!     ▲                                                                               │
//!     └── its window is over: the faster one is kept; tries of a slower one grow rare ┘
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

/// Samples of a window; the first ones of a try settle (slots are in other caches) and do not count.
const WINDOW: [u32; 2] = [6, 2];
/// The same of operations of at least [`LONG_BYTES`], which others disturb less and whose bytes are in no cache: a store
/// that is plainly slower ends its try.
const LONG_WINDOW: [u32; 2] = [3, 0];
const LONG_BYTES: usize = 4 << 20;
/// How much slower, of 16, is plainly slower.
const PLAINLY: u64 = 20;
/// Windows before the first try, which is not for the first few calls of a program to pay.
const FIRST: u32 = 4;
/// Windows between two tries, at first and at most.
const APART_MIN: u32 = 8;
const APART_MAX: u32 = 256;
/// A new size class begins with what a class at most this many powers of two shorter has found.
const CLASSES_NEAR: u32 = 6;
/// How much faster, of 16, the other store must be to be kept.
const FASTER: u64 = 14;
/// How much slower than it was, of 16, the kept store must be to try the other at once.
const SLOWER: u64 = 24;

/// Samples carry times in units of 2^6 ticks: some 30 ns. A minute fits 32 bits.
const SAMPLE_TICKS: u32 = 6;

/// Zero-copy folds and long messages write outputs of at least this many bytes past the caches: a fold writes other ranks'
/// outputs too, whose lines a cached store would first fetch from another core. Plans write only their own, and lose by
/// streaming below `STREAMING_BYTES_MIN` of `planner/choice` (`docs/measurements/host.md`).
pub(super) const STREAMING_OUTPUT_BYTES_MIN: usize = 4 << 20;

/// How an output of `bytes` bytes is written.
#[inline]
pub(super) fn output_store(bytes: usize) -> Store {
    if bytes >= STREAMING_OUTPUT_BYTES_MIN { Store::Streaming } else { Store::Cached }
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
    window: [u32; 2],
    kept: Store,
    tries: bool,
    /// Whether the other store has been tried since the machine was another.
    is_settled: bool,
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
            window: WINDOW,
            kept: Store::Cached,
            tries: false,
            is_settled: false,
            least: u64::MAX,
            count: 0,
            known: 0,
            left: FIRST,
            apart: APART_MIN,
        }
    }
}

impl Trial {
    /// Of operations of about `bytes` bytes, where shorter ones have `found` a store; the other one is tried later then.
    fn of(bytes: usize, found: Option<Store>) -> Self {
        let window = if bytes >= LONG_BYTES { LONG_WINDOW } else { WINDOW };
        let begins = Trial { window, ..Trial::default() };
        match found {
            Some(kept) => Trial { kept, left: APART_MIN, is_settled: true, ..begins },
            None => begins,
        }
    }

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
        let [window, settling] = self.window;
        if !self.tries || self.count > settling {
            self.least = self.least.min(cost.max(1));
        }
        let is_lost = settling == 0 && self.tries && self.least * 16 > self.known * PLAINLY;
        if self.count >= window || is_lost {
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
        (self.tries, self.is_settled, self.left) = (false, true, self.apart);
    }

    fn end_window(&mut self, least: u64) {
        let was = self.known;
        if was != 0 && least * 16 > was * SLOWER {
            // The machine has changed.
            (self.known, self.apart, self.is_settled, self.left) = (least, APART_MIN, false, 0);
        } else {
            // It drifts down at once and up slowly.
            self.known = if was == 0 { least } else { least.min(was + was / 32 + 1) };
            self.left = self.left.saturating_sub(1);
        }
        self.tries = self.left == 0;
    }
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

    fn trial(&mut self, call: &Call) -> &mut Trial {
        let bytes = (call.count * call.data_type.size()).max(1);
        let class: Class = (call.kind, call.algorithm, bytes.ilog2());
        let found = if self.trials.contains_key(&class) { None } else { self.found_near(class) };
        self.trials.entry(class).or_insert_with(|| Trial::of(bytes, found))
    }

    /// What a class of somewhat shorter calls has found, once both stores were tried there.
    fn found_near(&self, (kind, algorithm, class): Class) -> Option<Store> {
        let near = (kind, algorithm, class.saturating_sub(CLASSES_NEAR))..(kind, algorithm, class);
        let mut shorter = self.trials.range(near).rev();
        shorter.find(|(_, trial)| trial.known != 0 && trial.is_settled).map(|(_, trial)| trial.kept)
    }

    /// What this rank says with its entry of a call: of rank 0 the call's store, and of each how long its part of the
    /// operation before took.
    pub(crate) fn sample(&mut self, call: &Call) -> u64 {
        let store = if self.decides { self.trial(call).store() } else { Store::Cached };
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
            let bytes = (call.count * call.data_type.size()).max(1) as u64;
            let longest = parts.max().unwrap_or(0);
            // Calls of a class differ in length.
            self.trial(&call).note(store, (longest << (SAMPLE_TICKS + 12)) / bytes);
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
        run(&mut trial, 4 * APART_MAX * WINDOW[0], [500, 200]);
        let [_, streaming] = run(&mut trial, 10_000, [500, 200]);
        assert!(streaming > 9_700, "{trial:?}");
    }

    #[test]
    fn the_first_calls_try_nothing() {
        for window in [WINDOW, LONG_WINDOW] {
            let mut trial = Trial { window, ..Trial::default() };
            assert_eq!(run(&mut trial, FIRST * window[0], [3000, 700]), [FIRST * window[0], 0], "{trial:?}");
            assert_eq!(run(&mut trial, 1, [3000, 700]), [0, 1], "{trial:?}");
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
    fn a_class_begins_with_what_shorter_calls_have_found() {
        let mut tuner = StoreTuner::new(true);
        (0..100).for_each(|_| _ = call(&mut tuner, &all_gather(1 << 16), [20_000, 10_000]));
        assert_eq!(tuner.trial(&all_gather(1 << 20)).store(), Store::Streaming);
        assert_eq!(tuner.trial(&all_gather(1 << 25)).store(), Store::Cached, "too long");
        assert_eq!(tuner.trial(&all_gather(1 << 20)).left, APART_MIN, "the other is tried later");
        let named = Call { algorithm: Some(Algorithm::Tree), ..all_gather(1 << 20) };
        assert_eq!(tuner.trial(&named).store(), Store::Cached, "another algorithm");
    }

    #[test]
    fn what_has_not_been_tried_was_not_found() {
        let mut tuner = StoreTuner::new(true);
        (0..8).for_each(|nth| _ = call(&mut tuner, &all_gather(1 << 16 << (nth / 7)), [20_000; 2]));
        let trial = tuner.trial(&all_gather(1 << 17));
        assert_eq!((trial.is_settled, trial.left), (false, FIRST), "{trial:?}");
    }

    #[test]
    fn the_slowest_rank_counts_and_rank_0_decides() {
        let call = Call::new(Kind::Broadcast, DataType::Float32, None, 0, 1 << 16);
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
        assert!((1..200).contains(&tries.count()));
        let trial = ranks[0].trial(&call);
        assert_eq!(trial.kept, Store::Cached, "{trial:?}");
        assert!(trial.known > (24_000 << 12) / (4 << 16), "{trial:?}");
        assert!(ranks[1].trials.is_empty(), "the others only do as rank 0 says");
        // A rank that says no time ends no window.
        let before = ranks[0].trial(&call).count;
        ranks[0].ended(&call, Store::Cached, 1);
        ranks[0].agree([1 << 32, 0].into_iter());
        assert_eq!(ranks[0].trial(&call).count, before);
    }

    #[test]
    fn any_word_of_a_peer_is_a_store_and_a_time() {
        let mut tuner = StoreTuner::new(true);
        for word in [u64::MAX, 1 << 63, 0xffff_ffff, 2] {
            tuner.ended(&all_gather(1), Store::Cached, u64::MAX);
            let _ = tuner.agree([word, u64::MAX].into_iter());
        }
    }
}
