//! Whether slots are [touched](crate::SpanMut::touch) before they go back, found out by the party that fills them next.
//!
//! Where the read of a modified line moves it with the right to write it, a touch by the reader saves the writer the wait for
//! each line. Where the read leaves the line shared, a touch is one more transaction. So the writer has slots touched and not
//! touched in turn, times how it fills either, and has the better kind from then on. It looks again after [`AGAIN`] slots.
//!
//! ```text
//!                   SAMPLES of both kinds are timed, and it is as it was found before
//!   both kinds in turn ───────────────────────────────────────────────────────────────► the better kind
//!     │    ▲    ▲                                                                              │
//!     └────┘    └────────────────────── AGAIN slots have come back ────────────────────────────┘
//!   it is otherwise: another look
//! ```
//!
//! The least time of a kind counts: what else took time only adds. Lines that have left the reader's caches are alike in both
//! kinds, so a change needs two looks. Invariant: no clock is read outside of `both kinds in turn`, and no word of the peer is
//! used: the writer remembers what it has asked for. Absent: the touch.

use super::{Name, RECENT};

/// Samples of each kind.
const SAMPLES: u32 = 6;
/// The shortest fill that is timed, in bytes: the stores of shorter ones are still under way when the clock is read.
const TIMED_BYTES_MIN: usize = 4 << 10;
/// Slots that come back between two looks.
const AGAIN: u32 = 4096;
/// How much of the time of an untouched slot, of 16, a touched one may take: the touch is not for nothing.
const FASTER: u64 = 15;
/// Binary places of a cost, in ticks by byte.
const PLACES: u32 = 10;

/// What a party wants done with the slots that come back to it, and what it knows of them.
#[derive(Debug)]
pub(super) struct Touching {
    wants: bool,
    /// Whether the last look has found that a touch is better.
    found: bool,
    /// For which messages it has wanted it, by number.
    asked: u8,
    /// Slots that are here, untouched and touched, by name, while both kinds are timed.
    here: [u64; 2],
    samples: [u32; 2],
    /// The least cost of each kind.
    least: [u64; 2],
    /// Slots that come back before both kinds are timed again; 0 while they are.
    left: u32,
    /// The fill that is timed: its kind, bytes and beginning.
    timed: Option<(usize, usize, u64)>,
}

impl Touching {
    pub(super) fn new() -> Self {
        Touching {
            wants: true,
            found: true,
            asked: 0,
            here: [0; 2],
            samples: [0; 2],
            least: [u64::MAX; 2],
            left: 0,
            timed: None,
        }
    }

    /// Whether the slot that goes back for message `number`, which is sent now, shall be touched.
    #[inline]
    pub(super) fn ask(&mut self, number: u64) -> bool {
        let at = number as usize % RECENT;
        self.asked = self.asked & !(1 << at) | u8::from(self.wants) << at;
        self.wants
    }

    /// A slot has come back for message `number`.
    #[inline]
    pub(super) fn returned(&mut self, number: u64, name: Name) {
        if self.left == 0 {
            let is_touched = self.asked >> (number as usize % RECENT) & 1;
            self.here[usize::from(is_touched)] |= 1 << name;
            return;
        }
        self.left -= 1;
    }

    /// A slot is filled from now on, with `bytes` bytes through the caches.
    #[inline]
    pub(super) fn begin(&mut self, name: Name, bytes: usize, now: impl FnOnce() -> u64) {
        let kinds = self.here.map(|slots| slots >> name & 1);
        if kinds == [0; 2] {
            return;
        }
        self.here = self.here.map(|slots| slots & !(1 << name));
        self.timed = (bytes >= TIMED_BYTES_MIN).then(|| (usize::from(kinds[1] != 0), bytes, now()));
    }

    #[cfg(test)]
    pub(super) fn is_timing(&self) -> bool {
        self.timed.is_some()
    }

    /// What was filled is sent.
    #[inline]
    pub(super) fn end(&mut self, now: impl FnOnce() -> u64) {
        if let Some((kind, bytes, since)) = self.timed.take() {
            self.note(kind, (now().saturating_sub(since) << PLACES) / bytes as u64);
        }
    }

    #[cold]
    fn note(&mut self, kind: usize, cost: u64) {
        self.samples[kind] += 1;
        self.least[kind] = self.least[kind].min(cost);
        let [untouched, touched] = self.samples;
        self.wants = touched <= untouched;
        if untouched >= SAMPLES && touched >= SAMPLES {
            let [untouched, touched] = self.least;
            let is_better = touched * 16 <= untouched * FASTER;
            if is_better == self.found {
                (self.wants, self.here, self.left) = (is_better, [0; 2], AGAIN);
            }
            self.found = is_better;
            (self.samples, self.least) = ([0; 2], [u64::MAX; 2]);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A writer all of whose slots come back.
    struct Writer {
        touching: Touching,
        number: u64,
        clock: Cell<u64>,
        looks: Cell<u32>,
    }

    impl Writer {
        fn new() -> Self {
            Writer { touching: Touching::new(), number: 0, clock: Cell::new(1 << 40), looks: Cell::new(0) }
        }

        /// A message whose slot comes back and is filled: `takes` so long untouched or touched. Whether it was to be touched.
        fn pass(&mut self, bytes: usize, takes: [u64; 2]) -> bool {
            let now = || {
                self.looks.set(self.looks.get() + 1);
                self.clock.get()
            };
            self.number += 1;
            let is_touched = self.touching.ask(self.number);
            let name = (self.number * 5 % 64) as Name;
            self.touching.returned(self.number, name);
            self.touching.begin(name, bytes, now);
            self.clock.set(self.clock.get() + takes[usize::from(is_touched)]);
            self.touching.end(now);
            is_touched
        }

        fn touched(&mut self, count: u32, bytes: usize, takes: [u64; 2]) -> u32 {
            (0..count).map(|_| u32::from(self.pass(bytes, takes))).sum()
        }
    }

    #[test]
    fn the_better_kind_is_had_after_both_were_timed() {
        // As measured where a touch pays, where it costs, and where it does little.
        for (takes, touches) in [([6000, 2000], true), ([4000, 6000], false), ([4000, 3900], false)] {
            let mut writer = Writer::new();
            assert_eq!(writer.touched(2 * SAMPLES, 16 << 10, takes), SAMPLES, "in turn");
            if !touches {
                assert_eq!(writer.touched(2 * SAMPLES, 16 << 10, takes), SAMPLES, "another look");
            }
            let looks = writer.looks.get();
            let touched = writer.touched(AGAIN, 16 << 10, takes);
            assert_eq!(touched, if touches { AGAIN } else { 0 }, "{takes:?}");
            assert_eq!(writer.looks.get(), looks, "no clock is read");
        }
    }

    #[test]
    fn it_looks_again_and_twice_before_it_changes() {
        let mut writer = Writer::new();
        writer.touched(2 * SAMPLES + AGAIN, 16 << 10, [6000, 2000]);
        // It was for once that a touched slot took longer, and now it is for good.
        assert_eq!(writer.touched(2 * SAMPLES, 16 << 10, [2000, 6000]), SAMPLES);
        assert_eq!(writer.touched(2 * SAMPLES, 16 << 10, [6000, 2000]), SAMPLES);
        assert_eq!(writer.touched(2 * SAMPLES, 16 << 10, [6000, 2000]), SAMPLES);
        assert_eq!(writer.touched(AGAIN, 16 << 10, [2000, 6000]), AGAIN);
        assert_eq!(writer.touched(4 * SAMPLES, 16 << 10, [2000, 6000]), 2 * SAMPLES);
        assert_eq!(writer.touched(AGAIN, 16 << 10, [2000, 6000]), 0);
    }

    #[test]
    fn the_least_cost_of_a_byte_counts() {
        let mut writer = Writer::new();
        for nth in 0..4 * SAMPLES {
            // Touched slots are filled with more, and half of those fills wait.
            let bytes = if writer.touching.wants { 64 << 10 } else { 4 << 10 };
            let waits = if nth % 4 < 2 { 9_000_000 } else { 0 };
            writer.pass(bytes, [4 << 10, (32 << 10) + waits]);
        }
        assert!(writer.touching.left != 0, "{:?}", writer.touching);
        assert_eq!(writer.touched(100, 16 << 10, [1; 2]), 100);
    }

    #[test]
    fn short_fills_are_not_timed() {
        let mut writer = Writer::new();
        assert_eq!(writer.touched(1000, TIMED_BYTES_MIN - 1, [100, 900]), 1000, "as at the beginning");
        assert_eq!(writer.looks.get(), 0);
    }

    #[test]
    fn a_slot_is_of_the_kind_that_was_asked_for_with_its_message() {
        let mut touching = Touching::new();
        let cost = |kind: bool| if kind { 1 << 14 } else { 4 << 14 };
        // Seven messages are under way, and what is wanted changes meanwhile.
        let mut asked = std::collections::VecDeque::new();
        for number in 1..=200u64 {
            asked.push_back(touching.ask(number));
            if number > 6 {
                touching.returned(number - 6, 9);
                let kind = asked.pop_front().expect("seven");
                touching.begin(9, 1 << 14, || 0);
                touching.end(|| cost(kind));
                for (least, cost) in touching.least.into_iter().zip([4 << PLACES, 1 << PLACES]) {
                    assert!([u64::MAX, cost].contains(&least), "{touching:?}");
                }
            }
        }
        assert!(touching.left != 0 && touching.wants, "{touching:?}");
    }
}
