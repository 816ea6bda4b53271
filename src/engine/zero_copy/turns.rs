//! Which buffers take turns: they are broadcast from by this rank, and broadcast into by others.
//!
//! A rank that pulls from a buffer leaves its lines clean in two caches. A store to such a line waits for the other core (ADR-16): 7 ns
//! where the cores share a cache, 30 ns where they do not. Where the root of a broadcast stays the same, its buffer is
//! read by others and written by the program alone, and pulling costs least. Where roots take turns on one buffer, each rank
//! writes what others have read, and slots that migrate are two to four times as fast, as long as the buffers fit into caches.
//!
//! So a rank offers no buffer whose turns have changed lately. All ranks see that in the round of offers, whatever each of
//! them knows, and take the way through slots.

use std::collections::VecDeque;

use consort_types::call::{Call, Kind};

use crate::Rank;

/// The longest buffers, in bytes, whose turns matter: longer ones have left a core's second cache by the next call, and then
/// pulling costs less again (`docs/measurements/crossing.md`).
const BYTES_MAX: usize = 1 << 20;
/// How many buffers are known; the one that was used first is forgotten first.
const KNOWN: usize = 8;
/// Meetings with the same turn after which a buffer is offered again.
const STEADY: u8 = 4;

/// A buffer that was met with.
#[derive(Clone, Copy)]
struct Turn {
    start: usize,
    /// Whether this rank was the root.
    gives: bool,
    /// Meetings until it is offered.
    left: u8,
}

/// The buffers of one rank.
#[derive(Default)]
pub(super) struct Turns {
    known: VecDeque<Turn>,
}

impl Turns {
    /// Whether a call's buffers take turns among `ranks` ranks, for rank `me`. It is asked once for each meeting, with the
    /// addresses of input and output.
    pub(super) fn change(&mut self, call: &Call, me: Rank, ranks: usize, starts: [usize; 2]) -> bool {
        let bytes = call.count * call.data_type.size();
        if call.kind != Kind::Broadcast || ranks != 2 || bytes > BYTES_MAX {
            return false;
        }
        let gives = call.root == me;
        self.note(starts[usize::from(!gives)], gives)
    }

    fn note(&mut self, start: usize, gives: bool) -> bool {
        let at = self.known.iter().position(|turn| turn.start == start);
        let mut turn = at.and_then(|at| self.known.remove(at)).unwrap_or(Turn { start, gives, left: 0 });
        turn.left = if turn.gives == gives { turn.left.saturating_sub(1) } else { STEADY };
        turn.gives = gives;
        self.known.push_back(turn);
        if self.known.len() > KNOWN {
            self.known.pop_front();
        }
        turn.left != 0
    }

    /// Bytes of the table.
    pub(super) fn bytes(&self) -> usize {
        self.known.capacity() * size_of::<Turn>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of the calls of a buffer are offered, where this rank is the root as `gives` says.
    fn offered(turns: &mut Turns, calls: u32, gives: impl Fn(u32) -> bool) -> u32 {
        (0..calls).map(|nth| u32::from(!turns.note(64, gives(nth)))).sum()
    }

    #[test]
    fn a_buffer_of_one_root_is_always_offered() {
        for gives in [false, true] {
            assert_eq!(offered(&mut Turns::default(), 50, |_| gives), 50);
        }
    }

    #[test]
    fn a_buffer_whose_roots_take_turns_is_offered_once() {
        assert_eq!(offered(&mut Turns::default(), 50, |nth| nth % 2 == 0), 1);
    }

    #[test]
    fn a_buffer_is_offered_again_when_its_root_stays() {
        let mut turns = Turns::default();
        offered(&mut turns, 10, |nth| nth % 2 == 0);
        assert_eq!(offered(&mut turns, 20, |_| true), 20 - u32::from(STEADY));
    }

    #[test]
    fn buffers_do_not_act_for_each_other_and_old_ones_are_forgotten() {
        let mut turns = Turns::default();
        for start in 0..100 {
            assert!(!turns.note(start, start % 2 == 0), "{start}");
        }
        assert_eq!(turns.known.len(), KNOWN);
        assert!(!turns.note(0, false), "it was forgotten");
        assert!(turns.note(99, true), "it is known");
    }
}
