//! Slots that two parties pass to each other: a message hands its slot over to the reader, who fills it next.
//!
//! A store to a line that another core has read and not written waits for that core, several times as long as one to a line
//! that is modified wherever it lies (ADR-2 has the figures). So the reader of a message keeps the slot, whose lines its core
//! holds with the right to write them, and sends its own next message in it: one move of each line a message, the least
//! that staged bytes can have. Where one party sends more than the other, the reader gives surplus slots back. It
//! [touches](SpanMut::touch) their lines first where that makes the writer faster, which the writer measures (`pool/touching.rs`).
//!
//! ```text
//!            fill                    post                    learn
//!   Free ───────────► being filled ─────────► at the peer: posted ─────────► being read
//!    ▲                     ▲                                                     │
//!    │                     └───────────────── forward ───────────────────────────┤
//!    ├──────────────────────── empty: the reader keeps it ───────────────────────┤
//!    └─ collect: the sender has it back ◄─ returned with the credit ◄── empty ───┘
//! ```
//!
//! Both parties have two [counters](Counter) in each direction. The tag of *ready* names the message's slot, and the tag of
//! *credit* the slot that goes back, if one does. A bit of the former says whether the writer wants the slot touched that goes back
//! for that message. So nothing is shared beside the slots and four lines. A message says beside its slot how many the sender has
//! emptied: while both send and keep what they read, no line of credit is read or written.
//!
//! Invariant: each slot has one owner at any time, who alone may access it. Of `total` slots a party never owns more than
//! `total - window`, counting what it has sent and knows no credit of: so whenever fewer than `window` of the other's messages
//! are under way, the other has a free slot, and no party waits for a slot but by waiting for credit. Slot names that a peer
//! sends are checked: a name that cannot be is [`Foreign`]. Deliberately absent: waiting, peers, what messages mean.

#[cfg(all(any(test, feature = "testing"), not(loom)))]
pub mod driver;
mod touching;

use self::touching::Touching;
#[cfg(not(loom))]
use crate::ticks;
use crate::{Counter, Row, SpanMut};

/// The slots of each party at the beginning, at most.
pub const SLOTS_MAX: usize = 32;

/// The low bits of a tag that are the pool's: the name of a slot, how many messages have been emptied, and whether all of their
/// slots were kept.
pub const POOL_BITS: u32 = KEPT_BIT + 1;
const EMPTIED_BIT: u32 = 8;
const EMPTIED_MASK: u64 = 0xf;
const KEPT_BIT: u32 = EMPTIED_BIT + 4;

/// A slot, as one party names it: where in its half of the memory it lies, and in whose half.
type Name = u8;

/// The slot lies in the other party's half; each party calls the other's half so.
const THEIRS: Name = SLOTS_MAX as u8;
/// No slot.
const NONE: Name = 0x80;
/// Beside the name of a message's slot: the slot that goes back for it shall be touched.
const TOUCH: Name = 0x40;

/// The messages under way that are remembered: a power of two above the longest window.
const RECENT: usize = 8;

/// A peer said what no party to the protocol says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Foreign;

/// One party's side.
#[derive(Debug)]
pub struct Pool {
    /// Raised here, read by the peer; and the other way round.
    ready: Ends,
    credit: Ends,
    /// The slots that lie in this party's memory, and in the peer's.
    halves: [Row; 2],
    window: u64,
    /// The most slots that this party may own.
    owns_max: usize,
    /// What may be filled next, the latest last.
    free: Free,
    /// How many slots are being filled.
    filled: usize,
    /// Which slots this party owns, by name.
    owned: u64,
    /// By message: what is being filled, and what is being read.
    filling: [Name; RECENT],
    reading: [Name; RECENT],
    /// The words of the messages that are being read.
    words: [u64; RECENT],
    /// Which slots that are being read are filled again, a bit each.
    forwarded: u8,
    /// Which of the last messages emptied have sent a slot back, the latest in the lowest bit.
    returned: u8,
    /// For which messages the peer wants a slot that goes back touched, a bit each.
    touches: u8,
    touching: Touching,
    /// Messages posted, and of how many of them the credit was seen.
    sent: u64,
    collected: u64,
    /// Messages learned of and emptied, and of how many of them the peer heard.
    learned: u64,
    emptied: u64,
    said: u64,
}

/// A counter in each direction.
#[derive(Debug)]
pub struct Ends {
    /// The peer's, which is raised here.
    pub there: Counter,
    /// The own one, which the peer raises.
    pub here: Counter,
}

/// Slots that may be filled: first those that were read here, the latest first, as their lines are at hand; then those that came
/// back, in the order in which they did.
#[derive(Debug)]
struct Free {
    names: [Name; FREE_MAX],
    first: u8,
    count: u8,
}

const FREE_MAX: usize = 2 * SLOTS_MAX;

impl Free {
    #[inline]
    fn at(&self, nth: u8) -> usize {
        self.first.wrapping_add(nth) as usize % FREE_MAX
    }

    /// A slot that was read here.
    #[inline]
    fn keep(&mut self, name: Name) {
        self.names[self.at(self.count)] = name;
        self.count += 1;
    }

    /// A slot that came back.
    #[inline]
    fn take_back(&mut self, name: Name) {
        self.first = self.first.wrapping_sub(1);
        self.names[self.at(0)] = name;
        self.count += 1;
    }

    #[inline]
    fn pop(&mut self) -> Option<Name> {
        self.count = self.count.checked_sub(1)?;
        Some(self.names[self.at(self.count)])
    }
}

impl Pool {
    /// The most messages of one party that are under way at once.
    pub const WINDOW_MAX: u64 = Counter::TAGS_MAX as u64;

    /// One party's side of slots that were never used; `halves` are the slots in this party's memory and in the peer's, and the
    /// peer has them the other way round. At most `window` messages of each party are under way at once.
    ///
    /// # Panics
    /// If the halves differ in their number of slots, or have more than [`SLOTS_MAX`] or fewer than `window`, or `window` is 0 or
    /// above [`Pool::WINDOW_MAX`].
    pub fn new(ready: Ends, credit: Ends, halves: [Row; 2], window: u64) -> Self {
        let slots = halves[0].slots();
        assert!(slots == halves[1].slots() && slots <= SLOTS_MAX, "a pool of {slots} slots");
        assert!((1..=Self::WINDOW_MAX).contains(&window) && slots as u64 >= window, "a window of {window}");
        let mut free = Free { names: [NONE; FREE_MAX], first: 0, count: 0 };
        (0..slots as Name).rev().for_each(|name| free.keep(name));
        Pool {
            ready,
            credit,
            window,
            owns_max: 2 * slots - (window as usize).max(slots / 2),
            owned: (1 << slots) - 1,
            halves,
            free,
            filled: 0,
            filling: [NONE; RECENT],
            reading: [NONE; RECENT],
            words: [0; RECENT],
            forwarded: 0,
            returned: 0,
            touches: u8::MAX,
            touching: Touching::new(),
            sent: 0,
            collected: 0,
            learned: 0,
            emptied: 0,
            said: 0,
        }
    }

    /// Messages sent so far, and emptied.
    #[inline]
    pub fn counts(&self) -> (u64, u64) {
        (self.sent, self.emptied)
    }

    /// The longest message, in bytes.
    #[inline]
    pub fn slot_bytes(&self) -> usize {
        self.halves[0].payload_bytes()
    }

    /// Whether the next message may be filled.
    ///
    /// # Errors
    /// [`Foreign`].
    #[inline]
    pub fn has_room(&mut self) -> Result<bool, Foreign> {
        if self.sent - self.collected >= self.window {
            self.hear()?;
        }
        Ok(self.sent - self.collected < self.window)
    }

    /// The slot of message `number`, which is not posted yet; messages count from 1. The same slot each time, until it is posted.
    /// The first `bytes` bytes of it, or none, are stored through the caches until then, and nothing else is done meanwhile.
    ///
    /// # Errors
    /// [`Foreign`], also where all slots are with the peer: a window with room has one here.
    #[inline]
    pub fn fill(&mut self, number: u64, bytes: usize) -> Result<SpanMut<'_>, Foreign> {
        let at = number as usize % RECENT;
        if self.filling[at] == NONE {
            if self.free.count == 0 || number > self.collected + self.window {
                self.hear()?;
            }
            self.filling[at] = self.free.pop().ok_or(Foreign)?;
            self.filled += 1;
            self.touching.begin(self.filling[at], bytes, ticks);
        }
        Ok(self.span(self.filling[at]))
    }

    /// Posts all messages up to `number`, each with the slot that was filled for it, if one was; `word` goes with the last.
    ///
    /// # Errors
    /// [`Foreign`].
    #[inline]
    pub fn post(&mut self, number: u64, word: u64) -> Result<(), Foreign> {
        if number > self.collected + self.window {
            // Credits are read before the peer writes over their tags.
            self.hear()?;
        }
        let kept = self.returned == 0;
        let word = word & !((1 << POOL_BITS) - 1)
            | (self.emptied & EMPTIED_MASK) << EMPTIED_BIT
            | u64::from(kept) << KEPT_BIT;
        if kept {
            self.said = self.emptied;
        }
        self.touching.end(ticks);
        for message in self.sent + 1..=number {
            let name = std::mem::replace(&mut self.filling[message as usize % RECENT], NONE);
            if name != NONE {
                self.filled -= 1;
                self.owned &= !(1 << name);
            }
            let touch = if self.touching.ask(message) { TOUCH } else { 0 };
            let tag = word | u64::from(name | touch);
            if message == number {
                self.ready.there.raise(message, tag)
            } else {
                self.ready.there.leave(message, tag)
            }
        }
        self.sent = number;
        Ok(())
    }

    /// Whether message `number` is here; then its slot is known, and [`Pool::word`] is its word.
    ///
    /// # Errors
    /// [`Foreign`].
    #[inline]
    pub fn is_here(&mut self, number: u64) -> Result<bool, Foreign> {
        // The line is read once for all messages that it tells of: each read of it may wait for the other core.
        if self.learned < number {
            self.learn()?;
        }
        Ok(self.learned >= number)
    }

    /// Learns of all messages that are here.
    #[inline]
    fn learn(&mut self) -> Result<(), Foreign> {
        let now = self.ready.here.value();
        if now > self.emptied + self.window {
            return Err(Foreign);
        }
        while self.learned < now {
            let number = self.learned + 1;
            let (at, tag) = (number as usize % RECENT, self.ready.here.tag(number));
            let (name, touch) = (tag as Name & !TOUCH, tag as Name & TOUCH != 0);
            self.touches = self.touches & !(1 << at) | u8::from(touch) << at;
            // What is in the sender's half for the sender is in the reader's for the reader.
            self.reading[at] = if name == NONE { NONE } else { self.own(name ^ THEIRS)? };
            self.words[at] = tag & !((1 << POOL_BITS) - 1);
            // Not before its name was found right: what is wrong stays so, however often it is asked.
            self.learned = number;
            if tag >> KEPT_BIT & 1 != 0 {
                // None of the slots came back, so no tag of credit is to be read.
                let emptied =
                    self.collected + ((tag >> EMPTIED_BIT).wrapping_sub(self.collected) & EMPTIED_MASK);
                // Less than it said before: an older tag, which a line of credit has overtaken.
                if emptied <= self.collected + self.window {
                    if emptied > self.sent {
                        return Err(Foreign);
                    }
                    self.collected = emptied;
                }
            }
        }
        Ok(())
    }

    /// Hears how many messages the peer has emptied, from what it sent or from its credit. In this order: so a count that came with
    /// a message is at most a window behind the credit, and not taken for one ahead of it.
    fn hear(&mut self) -> Result<(), Foreign> {
        self.learn()?;
        self.collect()
    }

    /// The word of message `number`, which is here and not emptied, with zeros for the slot's name.
    #[inline]
    pub fn word(&self, number: u64) -> u64 {
        self.words[number as usize % RECENT]
    }

    /// Whether the peer is known to have emptied message `number`.
    ///
    /// # Errors
    /// [`Foreign`].
    #[inline]
    pub fn is_emptied(&mut self, number: u64) -> Result<bool, Foreign> {
        if self.collected < number {
            self.hear()?;
        }
        Ok(self.collected >= number)
    }

    /// Messages that the peer has said to have emptied, as far as this party has heard or its line of credit tells.
    pub fn credited(&self) -> u64 {
        self.collected.max(self.credit.here.value().min(self.sent))
    }

    /// Messages that were emptied without a word to the peer yet.
    #[inline]
    pub fn unsaid(&self) -> u64 {
        self.emptied - self.said
    }

    /// The slot of message `number` that [`Pool::fill`] or [`Pool::forward`] found, if one did.
    #[inline]
    pub fn filled(&self, number: u64) -> Option<SpanMut<'_>> {
        let name = self.filling[number as usize % RECENT];
        (name != NONE).then(|| self.span(name))
    }

    /// The slot of message `number`, which was learnt of and is not emptied. Nothing where the peer sent it without a slot.
    #[inline]
    pub fn read(&self, number: u64) -> Option<SpanMut<'_>> {
        let name = self.reading[number as usize % RECENT];
        (name != NONE).then(|| self.span(name))
    }

    /// The slot of the message `from`, which is being read, is that of the message `to`, which goes back to the same peer: what
    /// is stored there is read no more. Whether it is; not if one of the two has no slot, or another one.
    #[inline]
    pub fn forward(&mut self, from: u64, to: u64) -> bool {
        let (read, filled) = (from as usize % RECENT, to as usize % RECENT);
        let is_free = self.forwarded >> read & 1 == 0 && self.reading[read] != NONE;
        if !is_free || self.filling[filled] != NONE {
            return false;
        }
        self.filling[filled] = self.reading[read];
        self.forwarded |= 1 << read;
        self.filled += 1;
        true
    }

    /// All messages up to `number` have been read, at most `bytes` bytes of each. The peer hears of it now, or once `batch` messages have
    /// gathered.
    ///
    /// # Errors
    /// [`Foreign`].
    #[inline]
    pub fn empty(&mut self, number: u64, bytes: usize, batch: u64) -> Result<(), Foreign> {
        while self.emptied < number {
            self.emptied += 1;
            let at = self.emptied as usize % RECENT;
            let name = std::mem::replace(&mut self.reading[at], NONE);
            if name != NONE && self.forwarded >> at & 1 == 0 {
                self.free.keep(name);
            }
            self.forwarded &= !(1 << at);
            let back = self.surplus(self.touches >> at & 1 != 0, bytes)?;
            self.returned = self.returned << 1 | u8::from(back != NONE);
            let is_last = self.emptied == number && number - self.said >= batch;
            let tag = u64::from(back);
            if is_last {
                self.credit.there.raise(number, tag)
            } else {
                self.credit.there.leave(self.emptied, tag)
            }
            if is_last {
                self.said = number;
            }
        }
        Ok(())
    }

    /// Whether the peer wants lines touched that were read of it, as far as it has said: it does at the beginning.
    #[inline]
    pub fn touches(&self) -> bool {
        self.touches >> (self.learned as usize % RECENT) & 1 != 0
    }

    /// A slot that goes back, if this party owns more than it may: the latest, whose lines are at hand.
    #[inline]
    fn surplus(&mut self, touches: bool, bytes: usize) -> Result<Name, Foreign> {
        if self.owns() <= self.owns_max {
            return Ok(NONE);
        }
        // What the peer has kept meanwhile is no longer this party's.
        self.hear()?;
        if self.owns() <= self.owns_max {
            return Ok(NONE);
        }
        let name = self.free.pop().ok_or(Foreign)?;
        if touches {
            self.span(name).slice(0, bytes.min(self.slot_bytes())).touch();
        }
        self.owned &= !(1 << name);
        // As the peer calls it.
        Ok(name ^ THEIRS)
    }

    /// Slots that are this party's, as far as it knows: free, being filled, or sent without credit.
    #[inline]
    fn owns(&self) -> usize {
        self.free.count as usize + self.filled + (self.sent - self.collected) as usize
    }

    /// Takes back what the peer has returned.
    fn collect(&mut self) -> Result<(), Foreign> {
        let now = self.credit.here.value();
        if now > self.sent {
            return Err(Foreign);
        }
        if now < self.collected {
            return Ok(());
        }
        while self.collected < now {
            self.collected += 1;
            let name = self.credit.here.tag(self.collected) as Name;
            if name != NONE {
                let name = self.own(name)?;
                self.free.take_back(name);
                self.touching.returned(self.collected, name);
            }
        }
        Ok(())
    }

    /// A slot becomes this party's.
    #[inline]
    fn own(&mut self, name: Name) -> Result<Name, Foreign> {
        let is_slot = usize::from(name & !THEIRS) < self.halves[0].slots();
        if !is_slot || self.owned >> name & 1 != 0 {
            return Err(Foreign);
        }
        self.owned |= 1 << name;
        Ok(name)
    }

    #[inline]
    fn span(&self, name: Name) -> SpanMut<'_> {
        self.halves[usize::from(name & THEIRS != 0)].payload(u32::from(name & !THEIRS))
    }
}

#[cfg(loom)]
fn ticks() -> u64 {
    unreachable!("the model's slots are too short to be timed")
}

#[cfg(all(test, not(loom)))]
mod tests;
