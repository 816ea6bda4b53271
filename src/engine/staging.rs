//! How bytes go into memory that another rank reads: through the caches or past them, whichever is faster here and now.
//!
//! Where two cores share a cache, lines that one wrote are read quickly by the other, and written again quickly. Where they
//! do not, every line has to be fetched from the other core before it can be written, and stores that go past the caches
//! are several times faster. Virtual machines move from one state to the other while a job runs, so it is measured: each
//! piece that is long enough is timed, and now and then the other way is tried for a while. The choice is this rank's own:
//! the bytes are the same.
//!
//! Invariant: deciding costs no more than two looks at the clock a piece. Absent: what is written.

use consort_kernels::Store;
use consort_memory::ticks;

/// Shorter pieces are written through the caches and not timed.
const TIMED_BYTES_MIN: usize = 4 << 10;
/// Of a try, so many pieces settle and as many are timed.
const TRY_PIECES: u32 = 8;
/// Between two tries lie so many times the pieces of one.
const TRIES_APART: u32 = 48;
/// How much faster, of 16, the other way must be to be taken.
const FASTER: u64 = 14;
/// A piece that takes more than this many times what pieces took is a sign that the cores have moved.
const SLOWER: u64 = 2;
/// A sign that comes so often in a row is believed.
const SIGNS: u32 = 4;
/// Times are of so many bytes, as a power of two.
const UNIT: u32 = 16;

/// What is known of the two ways.
#[derive(Clone, Debug)]
pub(crate) struct Staging {
    way: usize,
    /// Ticks for 2^[`UNIT`] bytes, smoothed; 0 before any.
    cost: [u64; 2],
    /// Pieces until the next change of state.
    left: u32,
    /// Whether the other way is being tried.
    tries: bool,
    signs: u32,
}

const WAYS: [Store; 2] = [Store::Cached, Store::Streaming];

impl Default for Staging {
    fn default() -> Self {
        // The first way is timed for as long as a try takes, then the other one is tried.
        Staging { way: 0, cost: [0; 2], left: 2 * TRY_PIECES, tries: false, signs: 0 }
    }
}

impl Staging {
    /// Writes a piece of so many bytes by `write`, in the way that is the faster one.
    #[inline]
    pub(crate) fn write<R>(&mut self, bytes: usize, write: impl FnOnce(Store) -> R) -> R {
        if bytes < TIMED_BYTES_MIN {
            return write(Store::Cached);
        }
        let way = self.way ^ usize::from(self.tries);
        let start = ticks();
        let result = write(WAYS[way]);
        self.note(way, bytes, ticks().wrapping_sub(start));
        result
    }

    /// A piece took so many ticks.
    fn note(&mut self, way: usize, bytes: usize, ticks: u64) {
        let cost = ((ticks << UNIT) / bytes as u64).max(1);
        let known = &mut self.cost[way];
        let settles = self.tries && self.left > TRY_PIECES;
        if *known == 0 {
            *known = cost;
        } else if !settles {
            // A thread that lost its core for a while says nothing about stores.
            let capped = cost.min(*known * 4);
            *known = (*known * 7 + capped) / 8;
        }
        let is_sign = !self.tries && cost > SLOWER * self.cost[way];
        self.signs = if is_sign { self.signs + 1 } else { 0 };
        self.left = self.left.saturating_sub(1);
        if self.signs == SIGNS {
            self.left = self.left.min(1);
        }
        if self.left == 0 {
            self.turn();
        }
    }

    /// The end of a try, or the time for one.
    fn turn(&mut self) {
        self.signs = 0;
        if self.tries {
            let (other, mine) = (self.cost[self.way ^ 1], self.cost[self.way]);
            if other * 16 < mine * FASTER {
                self.way ^= 1;
            }
            (self.tries, self.left) = (false, 2 * TRY_PIECES * TRIES_APART);
        } else {
            // What was true at the last try may not be so now.
            self.cost[self.way ^ 1] = 0;
            (self.tries, self.left) = (true, 2 * TRY_PIECES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces of 64 KiB on a machine where the ways cost so much; how many of the last `count` went past the caches.
    fn run(staging: &mut Staging, count: u32, costs: [u64; 2]) -> u32 {
        let mut past = 0;
        for _ in 0..count {
            let way = staging.way ^ usize::from(staging.tries);
            past += way as u32;
            staging.note(way, 1 << UNIT, costs[way]);
        }
        past
    }

    #[test]
    fn the_faster_way_is_taken_and_tries_are_rare() {
        let mut staging = Staging::default();
        run(&mut staging, 100, [1000, 3000]);
        assert!(run(&mut staging, 10_000, [1000, 3000]) < 300, "{staging:?}");
        // The cores have moved apart.
        run(&mut staging, 100, [5000, 2500]);
        assert!(run(&mut staging, 10_000, [5000, 2500]) > 9_700, "{staging:?}");
        // And back: what goes past the caches takes as long as before, so only the next try shows it.
        run(&mut staging, 2_000, [1000, 2500]);
        assert!(run(&mut staging, 10_000, [1000, 2500]) < 300, "{staging:?}");
    }

    #[test]
    fn what_is_about_as_fast_is_not_changed() {
        let mut staging = Staging::default();
        assert!(run(&mut staging, 10_000, [1000, 950]) < 400, "{staging:?}");
    }

    #[test]
    fn a_single_slow_piece_says_nothing() {
        let mut staging = Staging::default();
        run(&mut staging, 200, [1000, 3000]);
        let (way, left) = (staging.way, staging.left);
        staging.note(0, 1 << UNIT, 1_000_000);
        assert_eq!((staging.way, staging.left, staging.tries), (way, left - 1, false));
        assert!(run(&mut staging, 200, [1000, 3000]) < 20);
    }
}
