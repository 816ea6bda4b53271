//! How bytes go into memory that another rank reads: through the caches or past them, whichever is faster here and now.
//!
//! Where two cores share a cache, lines that one wrote are read quickly by the other, and written again quickly. Where they
//! do not, every line has to be fetched from the other core before it can be written, and stores that go past the caches
//! are several times faster. Virtual machines move from one state to the other while a job runs, so it is measured: each
//! piece that is long enough is timed, and now and then the other way is tried for a while. The choice is this rank's own:
//! the bytes are the same.
//!
//! What counts is what both sides take: this one to write a piece, and the other to read it, which it says with its credits.
//!
//! Invariant: deciding costs no more than two looks at the clock a piece. Absent: what is written.

use consort_kernels::Store;
use consort_memory::ticks;

/// Shorter pieces are written through the caches and not timed.
pub(super) const TIMED_BYTES_MIN: usize = 4 << 10;
/// Pieces of a try: of the last third the peer has said what they took, when all slots were written so.
const TRY_PIECES: u32 = 192;
/// Between two tries lie so many times the pieces of one.
const TRIES_APART: u32 = 32;
/// How much faster, of 16, the other way must be to be taken.
const FASTER: u64 = 14;
/// A piece that takes more than this many times what pieces took is a sign that the cores have moved.
const SLOWER: u64 = 2;
/// Nothing takes as long: what a peer says is cut to it, so that sums and products of costs have room.
const COST_MAX: u64 = 1 << 40;
/// A sign that comes so often in a row is believed.
const SIGNS: u32 = 4;
/// Times are of so many bytes, as a power of two.
const UNIT: u32 = 16;

/// What is known of the two ways.
#[derive(Clone, Debug)]
pub(crate) struct Staging {
    way: usize,
    /// Ticks for 2^[`UNIT`] bytes to write and to read them, smoothed; 0 before any.
    write: [u64; 2],
    read: [u64; 2],
    /// Pieces until the next change of state, and since the last one.
    left: u32,
    since: u32,
    /// Whether the other way is being tried.
    tries: bool,
    signs: u32,
}

const WAYS: [Store; 2] = [Store::Cached, Store::Streaming];

impl Default for Staging {
    fn default() -> Self {
        // The first way is timed for as long as a try takes, then the other one is tried.
        Staging {
            way: 0,
            write: [0; 2],
            read: [0; 2],
            left: 2 * TRY_PIECES,
            since: 0,
            tries: false,
            signs: 0,
        }
    }
}

/// What pieces of so many bytes together took.
#[inline]
pub(super) fn cost(bytes: u64, ticks: u64) -> u64 {
    ((ticks << UNIT) / bytes.max(1)).max(1)
}

/// Mixes a cost into what is known, as one of `parts`. A thread that lost its core for a while says nothing about memory.
fn smooth(known: &mut u64, cost: u64, parts: u64) {
    *known = if *known == 0 { cost } else { (*known * (parts - 1) + cost.min(*known * 4)) / parts };
}

impl Staging {
    /// Writes a piece of so many bytes by `write`, in the way that is the faster one.
    #[inline]
    pub(crate) fn write<R>(&mut self, bytes: usize, write: impl FnOnce(Store) -> R) -> R {
        if bytes < TIMED_BYTES_MIN {
            return write(Store::Cached);
        }
        let start = ticks();
        let result = write(WAYS[self.present()]);
        self.note(cost(bytes as u64, ticks().wrapping_sub(start)));
        result
    }

    fn present(&self) -> usize {
        self.way ^ usize::from(self.tries)
    }

    /// The peer took so long to read pieces of which the first was this many pieces ago.
    pub(crate) fn was_read(&mut self, pieces: u32, cost: u64) {
        // Not of pieces that were written otherwise.
        if cost != 0 && self.since >= pieces {
            let present = self.present();
            // It comes seldom, and at first it is of memory that was never touched.
            smooth(&mut self.read[present], cost.min(COST_MAX), 2);
        }
    }

    /// A piece was written in so long.
    fn note(&mut self, cost: u64) {
        let present = self.present();
        let settles = self.tries && self.since < TRY_PIECES / 3;
        let is_sign = !self.tries && self.write[present] != 0 && cost > SLOWER * self.write[present];
        if !settles {
            smooth(&mut self.write[present], cost, 8);
        }
        self.signs = if is_sign { self.signs + 1 } else { 0 };
        self.since = self.since.saturating_add(1);
        self.left = self.left.saturating_sub(1);
        if self.signs == SIGNS {
            // The cores have moved: what was known of this way is no longer true. It is timed anew, then the other is.
            (self.write[present], self.read[present]) = (0, 0);
            (self.signs, self.since, self.left) = (0, 0, TRY_PIECES);
        }
        if self.left == 0 {
            self.turn();
        }
    }

    /// The end of a try, or the time for one.
    fn turn(&mut self) {
        (self.signs, self.since) = (0, 0);
        if self.tries {
            let total = |way: usize| self.write[way] + self.read[way];
            let both_read = self.read.iter().all(|cost| *cost != 0);
            let (mine, other) = (total(self.way), total(self.way ^ 1));
            if both_read && other * 16 < mine * FASTER {
                self.way ^= 1;
            }
            (self.tries, self.left) = (false, TRY_PIECES * TRIES_APART);
        } else {
            // What was true at the last try may not be so now.
            (self.write[self.way ^ 1], self.read[self.way ^ 1]) = (0, 0);
            (self.tries, self.left) = (true, TRY_PIECES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces on a machine where writing and reading cost so much by each way; how many of them went past the caches.
    fn run(staging: &mut Staging, count: u32, write: [u64; 2], read: [u64; 2]) -> u32 {
        let mut past = 0;
        for nth in 0..count {
            let way = staging.present();
            past += way as u32;
            if nth % 32 == 31 {
                staging.was_read(32, read[way]);
            }
            staging.note(write[way]);
        }
        past
    }

    #[test]
    fn the_faster_way_is_taken_and_tries_are_rare() {
        let mut staging = Staging::default();
        run(&mut staging, 1000, [1000, 900], [500, 3000]);
        assert!(run(&mut staging, 20_000, [1000, 900], [500, 3000]) < 1000, "{staging:?}");
        // The cores have moved apart: writing through the caches shows it.
        run(&mut staging, 1000, [5000, 1000], [5000, 2500]);
        assert!(run(&mut staging, 20_000, [5000, 1000], [5000, 2500]) > 19_000, "{staging:?}");
        // And back: what goes past the caches takes as long as before, so only the next try shows it.
        run(&mut staging, 2 * TRY_PIECES * TRIES_APART, [1000, 900], [500, 2500]);
        assert!(run(&mut staging, 20_000, [1000, 900], [500, 2500]) < 1000, "{staging:?}");
    }

    #[test]
    fn what_is_about_as_fast_or_is_not_known_is_not_changed() {
        let mut staging = Staging::default();
        assert!(run(&mut staging, 20_000, [1000, 950], [1000, 950]) < 1000, "{staging:?}");
        let mut staging = Staging::default();
        assert!(run(&mut staging, 20_000, [1000, 100], [0, 0]) < 1000, "{staging:?}");
    }

    #[test]
    fn whatever_a_peer_says_it_took_is_a_cost() {
        for said in [u64::MAX, u64::MAX / 2, 1 << 62, COST_MAX + 1] {
            let mut staging = Staging::default();
            // Both ways are as slow as can be, so neither is the faster one.
            assert!(run(&mut staging, 20_000, [1000, 900], [said, said - 1]) < 1000, "{said}: {staging:?}");
            assert!(staging.read.iter().all(|cost| *cost <= COST_MAX), "{said}: {staging:?}");
            // Only one of them is, first the one that is not taken, then the other.
            assert!(run(&mut staging, 20_000, [1000, 900], [500, said]) < 1000, "{said}: {staging:?}");
            run(&mut staging, 2 * TRY_PIECES * TRIES_APART, [1000, 900], [said, 500]);
            assert!(run(&mut staging, 20_000, [1000, 900], [said, 500]) > 19_000, "{said}: {staging:?}");
        }
    }

    #[test]
    fn a_single_slow_piece_says_nothing() {
        let mut staging = Staging::default();
        run(&mut staging, 1000, [1000, 3000], [1000, 3000]);
        let (way, left) = (staging.way, staging.left);
        staging.note(1_000_000);
        assert_eq!((staging.way, staging.left, staging.tries), (way, left - 1, false));
    }
}
