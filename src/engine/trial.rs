//! Which of several ways is the fastest here and now, found out while they are used.
//!
//! How bytes should cross between two cores depends on whether they share a cache, and virtual machines move them while a
//! job runs. So ways are tried: for a window of operations now and then, and at once when the present one has become slow.
//! The least time of a window counts: what else took time in an operation (ranks that came late, threads that lost their
//! core) only ever adds.
//!
//! What counts is when the last rank is done: of a broadcast that is not the root, which has sent it all well before. So
//! each rank tells with its next call how long its part of the last one took, since it saw that all had come. (Who lost its
//! core meanwhile begins late and tells too little; with two ranks on their own cores that is rare.)
//!
//! Invariant: all ways give the same bits. One rank tries for all, and tells them. Absent: clocks, and what the ways are.

use std::collections::BTreeMap;

use consort_algorithms::catalogue::Algorithm;
use consort_kernels::Store;

use crate::call::{Call, Kind};

/// Operations of a window; the first ones of a try settle (slots are in other caches), and are not counted.
const WINDOW: [u32; 2] = [6, 2];
/// The same of operations that take so long that others disturb them less, and whose bytes are in no cache: one that is
/// plainly slower ends its try.
const LONG_WINDOW: [u32; 2] = [3, 0];
/// So many bytes they have.
const LONG_BYTES: usize = 4 << 20;
/// How much slower, of 16, is plainly slower.
const PLAINLY: u64 = 20;
/// Windows between two tries, at first and at most: what was found to be slow is tried less and less often.
const APART_MIN: u32 = 8;
const APART_MAX: u32 = 256;
/// So many classes shorter is somewhat shorter.
const CLASSES_NEAR: u32 = 6;
/// How much faster, of 16, another way must be to be taken.
const FASTER: u64 = 14;
/// How much slower than it was, of 16, the present one must be to try the others at once.
const SLOWER: u64 = 24;

/// Ranks tell times in units of so many ticks, as a power of two: some 30 ns, of which 32 bits hold a minute.
const TOLD_TICKS: u32 = 6;

/// How the bytes of a planned operation are staged: through the caches, or past them.
pub(crate) const STAGED: [Store; 2] = [Store::Cached, Store::Streaming];

/// The way after those: ranks read the others' memory through the system.
pub(crate) const PULLED: u8 = STAGED.len() as u8;

/// The trials of a communicator, by collective and size class; kept by rank 0, which tells the others.
#[derive(Default)]
pub(crate) struct Trials {
    known: BTreeMap<Key, Trial>,
    /// The last operation of which all will tell, and whether ranks could read each other's memory in it; its way.
    last: Option<(Call, bool, u8)>,
    /// How long this rank's part of it took, until that is told.
    took: u32,
}

/// A collective, the algorithm if the call names one, whether ranks may read each other's memory (then there is a way
/// more), and the size class.
type Key = (Kind, Option<Algorithm>, bool, u32);

impl Trials {
    fn of(&mut self, call: &Call, may_pull: bool) -> &mut Trial {
        let bytes = call.count * call.data_type.size();
        let key = (call.kind, call.algorithm, may_pull, bytes.max(1).ilog2());
        let begins = if self.known.contains_key(&key) { None } else { self.begins(key) };
        self.known.entry(key).or_insert_with(|| {
            let window = if bytes >= LONG_BYTES { LONG_WINDOW } else { WINDOW };
            let ways = STAGED.len() as u8 + u8::from(may_pull);
            Trial { window, ..begins.map_or_else(|| Trial::new(ways), |way| Trial::with(ways, way)) }
        })
    }

    /// With which way calls of a class begin: what those that are somewhat shorter have found, once they have tried all.
    fn begins(&self, (kind, algorithm, may_pull, class): Key) -> Option<u8> {
        let key = |class| (kind, algorithm, may_pull, class);
        let mut shorter = self.known.range(key(class.saturating_sub(CLASSES_NEAR))..key(class)).rev();
        let like = shorter.find(|(_, trial)| trial.known != 0 && trial.untried == 0);
        like.map(|(_, trial)| trial.taken)
    }

    /// The way of the next call like this one, which may be [`PULLED`] only if `may_pull`.
    pub(crate) fn way(&mut self, call: &Call, may_pull: bool) -> u8 {
        self.of(call, may_pull).way()
    }

    /// This rank's part of a call took so many ticks since all ranks had come.
    pub(crate) fn ended(&mut self, call: &Call, may_pull: bool, way: u8, ticks: u64) {
        self.last = Some((*call, may_pull, way));
        self.took = u32::try_from(ticks >> TOLD_TICKS).unwrap_or(u32::MAX).max(1);
    }

    /// What this rank tells, with its next call, of the last one: told once, and 0 if there is nothing to tell.
    pub(crate) fn told(&mut self) -> u32 {
        std::mem::take(&mut self.took)
    }

    /// What all ranks told, for the one that tries.
    pub(crate) fn heard(&mut self, told: impl Iterator<Item = u32> + Clone) {
        let Some((call, may_pull, way)) = self.last.take() else { return };
        let (Some(longest), true) = (told.clone().max(), told.into_iter().all(|took| took != 0)) else {
            return;
        };
        let bytes = (call.count * call.data_type.size()).max(1) as u64;
        // Calls of a class differ in length.
        self.of(&call, may_pull).note(way, (u64::from(longest) << (TOLD_TICKS + 12)) / bytes);
    }
}

/// Ways 0, 1, … of which one is taken.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    ways: u8,
    window: [u32; 2],
    taken: u8,
    /// Ways that have not been tried since the machine was another.
    untried: u8,
    /// The one that is being tried.
    tried: Option<u8>,
    /// The one that is tried next.
    next: u8,
    /// The least time of the present window, and operations in it.
    least: u64,
    count: u32,
    /// What the way that is taken took when it was taken, or since; 0 before the first window.
    known: u64,
    /// Windows until the next try, and between tries.
    left: u32,
    apart: u32,
}

impl Trial {
    /// Of so many ways; the first is taken at first.
    pub(crate) fn new(ways: u8) -> Self {
        Trial {
            ways,
            window: WINDOW,
            taken: 0,
            untried: ways.saturating_sub(1),
            tried: None,
            next: 1,
            least: u64::MAX,
            count: 0,
            known: 0,
            left: 1,
            apart: APART_MIN,
        }
    }

    /// The same where calls that are somewhat shorter have found a way: it is taken, and others are tried later.
    fn with(ways: u8, taken: u8) -> Self {
        Trial { taken, left: APART_MIN, untried: 0, ..Trial::new(ways) }
    }

    /// The way of the next operation.
    #[inline]
    pub(crate) fn way(&self) -> u8 {
        self.tried.unwrap_or(self.taken)
    }

    /// An operation by `way` took so long, in any unit that is the same for all (of the same size).
    pub(crate) fn note(&mut self, way: u8, time: u64) {
        if way != self.way() || self.ways < 2 {
            return;
        }
        self.count += 1;
        let [window, settling] = self.window;
        let settles = self.tried.is_some() && self.count <= settling;
        if !settles {
            self.least = self.least.min(time.max(1));
        }
        let is_lost = settling == 0 && self.tried.is_some() && self.least * 16 > self.known * PLAINLY;
        if self.count >= window || is_lost {
            let least = std::mem::replace(&mut self.least, u64::MAX);
            self.count = 0;
            self.end_window(least);
        }
    }

    fn end_window(&mut self, least: u64) {
        match self.tried.take() {
            Some(tried) => {
                self.untried = self.untried.saturating_sub(1);
                if least * 16 < self.known * FASTER {
                    (self.taken, self.known) = (tried, least);
                    self.apart = APART_MIN;
                } else {
                    self.apart = (self.apart * 2).min(APART_MAX);
                }
                self.left = self.apart;
                if self.untried != 0 {
                    self.tried = Some(self.alternative());
                }
            }
            None => {
                let was = self.known;
                // It drifts down at once and up slowly.
                self.known = if was == 0 { least } else { least.min(was + was / 32 + 1) };
                let is_slow = was != 0 && least * 16 > was * SLOWER;
                self.left = if is_slow { 0 } else { self.left.saturating_sub(1) };
                if is_slow {
                    // The machine has changed.
                    (self.known, self.apart, self.untried) = (least, APART_MIN, self.ways - 1);
                }
                if self.left == 0 {
                    self.tried = Some(self.alternative());
                }
            }
        }
    }

    /// The next of the ways that is not taken.
    fn alternative(&mut self) -> u8 {
        if self.next % self.ways == self.taken {
            self.next = (self.next + 1) % self.ways;
        }
        let way = self.next % self.ways;
        self.next = (way + 1) % self.ways;
        way
    }
}

#[cfg(test)]
mod tests {
    use consort_kernels::DataType;

    use super::*;

    /// Operations on a machine where the ways take so long; how many went each way.
    fn run<const N: usize>(trial: &mut Trial, count: u32, times: [u64; N]) -> [u32; N] {
        let mut went = [0; N];
        for nth in 0..count {
            let way = trial.way();
            went[way as usize] += 1;
            // Every third operation waits for somebody.
            trial.note(way, times[way as usize] + if nth % 3 == 0 { 5000 } else { 0 });
        }
        went
    }

    #[test]
    fn the_fastest_is_taken_and_tries_become_rare() {
        let mut trial = Trial::new(3);
        run(&mut trial, 300, [1000, 3000, 700]);
        let [_, _, third] = run(&mut trial, 10_000, [1000, 3000, 700]);
        assert!(third > 9_700, "{trial:?}");
        // The machine changes so that it becomes slow.
        run(&mut trial, 200, [500, 3000, 2000]);
        let [first, _, _] = run(&mut trial, 10_000, [500, 3000, 2000]);
        assert!(first > 9_700, "{trial:?}");
        // And so that another one becomes faster, which only a try shows.
        run(&mut trial, 4 * APART_MAX * WINDOW[0], [500, 200, 2000]);
        let [_, second, _] = run(&mut trial, 10_000, [500, 200, 2000]);
        assert!(second > 9_700, "{trial:?}");
    }

    #[test]
    fn equals_are_not_changed_and_one_way_is_no_choice() {
        let mut trial = Trial::new(2);
        let [first, second] = run(&mut trial, 20_000, [1000, 950]);
        assert!(second < first / 20, "{trial:?}");
        let mut trial = Trial::new(1);
        assert_eq!(run(&mut trial, 1000, [7]), [1000]);
    }

    #[test]
    fn a_class_begins_with_what_shorter_calls_have_found() {
        let mut trials = Trials::default();
        let call = |count| Call::new(Kind::AllGather, DataType::Float32, None, 0, count);
        for _ in 0..100 {
            let way = trials.way(&call(1 << 16), false);
            trials.ended(&call(1 << 16), false, way, [20_000, 10_000][way as usize]);
            let told = trials.told();
            trials.heard([told].into_iter());
        }
        assert_eq!(trials.way(&call(1 << 20), false), 1);
        assert_eq!(trials.way(&call(1 << 25), false), 0, "too long");
        assert_eq!(trials.way(&call(1 << 20), true), 0, "other ways");
        assert_eq!(trials.of(&call(1 << 20), false).left, APART_MIN, "others are tried later");
        let mut named = call(1 << 20);
        named.algorithm = Some(Algorithm::Tree);
        assert_eq!(trials.way(&named, false), 0, "another algorithm");
    }

    #[test]
    fn what_has_not_been_tried_was_not_found() {
        let mut trials = Trials::default();
        for nth in 0..8 {
            let call = Call::new(Kind::AllGather, DataType::Float32, None, 0, 1 << 16 << (nth / 7));
            let way = trials.way(&call, false);
            trials.ended(&call, false, way, 20_000);
            let told = trials.told();
            trials.heard([told].into_iter());
        }
        let longer = Call::new(Kind::AllGather, DataType::Float32, None, 0, 1 << 17);
        let trial = trials.of(&longer, false);
        assert_eq!((trial.untried, trial.left), (1, 1), "{trial:?}");
    }

    #[test]
    fn the_last_rank_counts() {
        let call = Call::new(Kind::Broadcast, DataType::Float32, None, 0, 1 << 16);
        let mut ranks = [Trials::default(), Trials::default()];
        for _ in 0..2_000 {
            // The way of a call is said before anything is heard of the one before it.
            let way = ranks[0].way(&call, false);
            let told = ranks.each_mut().map(Trials::told);
            ranks[0].heard(told.into_iter());
            // The root is done sooner by the second way, and all of them by the first.
            let took = [[20_000, 25_000], [15_000, 40_000]][way as usize];
            for (rank, took) in ranks.iter_mut().zip(took) {
                rank.ended(&call, false, way, took);
            }
        }
        let trial = ranks[0].of(&call, false);
        assert_eq!(trial.taken, 0, "{trial:?}");
        assert!(trial.known > (24_000 << 12) / (4 << 16), "{trial:?}");
        // Who has nothing to tell, as it did not take part in that way, ends no window.
        let before = trial.count;
        ranks[0].ended(&call, false, 0, 1);
        ranks[0].heard([1, 0].into_iter());
        assert_eq!(ranks[0].of(&call, false).count, before);
    }

    #[test]
    fn what_others_did_is_not_noted() {
        let mut trial = Trial::new(2);
        (0..100).for_each(|_| trial.note(1, 1));
        assert_eq!((trial.way(), trial.known), (0, 0));
    }
}
