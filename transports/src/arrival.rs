//! Order on wires that keep none: writes land in the peer's memory in any order and in pieces, and so do signals.
//!
//! The writer numbers what it sends ([`Departures`]). The wires tell the reader of each write once all of it has landed, as
//! a completion with immediate data does, and carry the signals. The reader counts ([`Arrivals`]) and holds a signal back
//! until it is that signal's turn and the writes before it have landed.
//!
//! ```text
//!  signal ──► early ── the signals before it were released ──► in turn ── the writes before it landed ──► released
//!  write ──► landed out of order ── the writes before it landed ──► counted
//! ```
//!
//! Invariant: signals of a kind are released in the order of sending, each once; a released ready signal has all writes
//! before it behind it. A repeated notice changes nothing. A peer can make the reader keep [`WINDOW`] entries of each sort,
//! not more. Absent: wires, memory, counters; order between ready signals and credits, which publish no writes.

use std::collections::VecDeque;

use crate::CounterKind;

/// How far ahead of the first one that is missing a notice may be.
pub(crate) const WINDOW: u64 = 1024;

/// The place of a signal among what its side sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    /// Signals of the same kind before it.
    number: u64,
    /// Writes that must have landed.
    after: u64,
}

/// What a side has sent.
#[derive(Debug, Default)]
pub(crate) struct Departures {
    writes: u64,
    signals: [u64; 2],
}

impl Departures {
    /// The number of the next write.
    pub(crate) fn write(&mut self) -> u64 {
        self.writes += 1;
        self.writes - 1
    }

    /// The place of the next signal.
    pub(crate) fn signal(&mut self, kind: CounterKind) -> Place {
        let signals = &mut self.signals[kind as usize];
        *signals += 1;
        Place { number: *signals - 1, after: if kind == CounterKind::Ready { self.writes } else { 0 } }
    }
}

/// A signal with what it carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Signal {
    pub(crate) kind: CounterKind,
    pub(crate) value: u64,
    pub(crate) tag: u64,
}

/// Entries by number, from the first that is missing on.
#[derive(Debug)]
struct Queue<T> {
    first: u64,
    entries: VecDeque<Option<T>>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { first: 0, entries: VecDeque::new() }
    }
}

impl<T> Queue<T> {
    /// Keeps an entry, unless it has been there.
    fn insert(&mut self, number: u64, entry: T) -> Result<(), &'static str> {
        let Some(ahead) = number.checked_sub(self.first) else { return Ok(()) };
        if ahead >= WINDOW {
            return Err("it is further ahead than it may be");
        }
        let at = ahead as usize;
        self.entries.resize_with(self.entries.len().max(at + 1), || None);
        self.entries[at].get_or_insert(entry);
        Ok(())
    }

    /// Takes the first entry, if it is there and may go.
    fn take_if(&mut self, may_go: impl FnOnce(&T) -> bool) -> Option<T> {
        let first = self.entries.front_mut()?.take_if(|entry| may_go(entry))?;
        self.entries.pop_front();
        self.first += 1;
        Some(first)
    }
}

/// What has reached a side.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    writes: Queue<()>,
    signals: [Queue<(u64, Signal)>; 2],
}

impl Arrivals {
    /// All of this write has landed.
    ///
    /// # Errors
    /// What is wrong with the notice.
    pub(crate) fn landed(&mut self, number: u64) -> Result<(), &'static str> {
        self.writes.insert(number, ())?;
        while self.writes.take_if(|()| true).is_some() {}
        Ok(())
    }

    /// A signal has come.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn signalled(&mut self, place: Place, signal: Signal) -> Result<(), &'static str> {
        if place.after > self.writes.first + WINDOW {
            return Err("it publishes writes that cannot be under way");
        }
        self.signals[signal.kind as usize].insert(place.number, (place.after, signal))
    }

    /// The next signal that may be seen.
    pub(crate) fn release(&mut self) -> Option<Signal> {
        let landed = self.writes.first;
        let next = |queue: &mut Queue<(u64, Signal)>| queue.take_if(|(after, _)| *after <= landed);
        self.signals.iter_mut().find_map(next).map(|(_, signal)| signal)
    }
}

#[cfg(all(test, feature = "conformance"))]
mod tests {
    use super::*;
    use crate::conformance::Random;

    /// What is under way.
    #[derive(Clone, Copy)]
    enum Notice {
        Landed(u64),
        Signalled(Place, Signal),
    }

    /// Sends at random, delivers at random, some of it twice. The value of a signal is how many of its kind were sent,
    /// its tag how many writes were.
    fn play(seed: u64) {
        let mut random = Random::new(seed);
        let (mut departures, mut arrivals) = (Departures::default(), Arrivals::default());
        let (mut under_way, mut has_landed) = (Vec::new(), Vec::new());
        let (mut sent, mut released) = ([0u64; 2], [0u64; 2]);
        let turns = 50 + random.below(500);
        let crowd = 1 + random.below(60);
        let mut turn = 0;
        while turn < turns || !under_way.is_empty() {
            turn += 1;
            if turn < turns && under_way.len() < crowd {
                under_way.push(match random.below(5) {
                    0..=2 => {
                        has_landed.push(false);
                        Notice::Landed(departures.write())
                    }
                    kind => {
                        let kind = if kind == 3 { CounterKind::Ready } else { CounterKind::Credit };
                        sent[kind as usize] += 1;
                        let signal =
                            Signal { kind, value: sent[kind as usize], tag: has_landed.len() as u64 };
                        Notice::Signalled(departures.signal(kind), signal)
                    }
                });
            }
            if !under_way.is_empty() && random.below(2) == 0 {
                let at = random.below(under_way.len());
                let notice = if random.below(8) == 0 { under_way[at] } else { under_way.swap_remove(at) };
                match notice {
                    Notice::Landed(number) => {
                        has_landed[number as usize] = true;
                        arrivals.landed(number).expect("in the window");
                    }
                    Notice::Signalled(place, signal) => {
                        arrivals.signalled(place, signal).expect("in the window");
                    }
                }
            }
            while let Some(Signal { kind, value, tag }) = arrivals.release() {
                released[kind as usize] += 1;
                assert_eq!(value, released[kind as usize], "seed {seed}: a signal out of turn");
                let writes = if kind == CounterKind::Ready { tag as usize } else { 0 };
                assert!(has_landed[..writes].iter().all(|landed| *landed), "seed {seed}: an early signal");
            }
        }
        assert_eq!(released, sent, "seed {seed}: a signal was kept");
    }

    #[test]
    fn signals_are_released_in_turn_behind_their_writes() {
        (0..2000).for_each(play);
    }

    #[test]
    fn what_no_writer_sends_is_refused_and_not_kept() {
        let mut arrivals = Arrivals::default();
        let signal = Signal { kind: CounterKind::Ready, value: 1, tag: 0 };
        assert!(arrivals.landed(WINDOW).is_err() && arrivals.landed(u64::MAX).is_err());
        assert!(arrivals.signalled(Place { number: WINDOW, after: 0 }, signal).is_err());
        assert!(arrivals.signalled(Place { number: 0, after: WINDOW + 1 }, signal).is_err());
        arrivals.landed(WINDOW - 1).expect("just in the window");
        assert!(arrivals.writes.entries.len() as u64 == WINDOW && arrivals.release().is_none());
        arrivals.landed(0).expect("the first");
        arrivals.landed(0).expect("again");
        assert_eq!(arrivals.writes.first, 1);
    }
}
