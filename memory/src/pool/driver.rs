//! One party to a pool that does anything in any order, for tests: every byte that arrives is checked.
//!
//! Invariant: a party stores only into slots that it owns, and finds there what it has stored. Absent: waiting.

use consort_testing::Random;

use super::{Foreign, POOL_BITS, Pool};
use crate::{Span, SpanMut};

/// A party, until it has sent and read all messages.
#[derive(Debug)]
pub struct Party {
    pool: Pool,
    /// 0 or 1.
    side: u64,
    window: u64,
    /// The messages of each party.
    messages: u64,
    random: Random,
}

/// What a party did in a turn; slots are named by their addresses here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Nothing could be done, or nothing was.
    Nothing,
    /// It sent this message.
    Sent {
        /// The message's slot.
        slot: usize,
        /// The message's number.
        number: u64,
    },
    /// It read this message.
    Read {
        /// The message's slot.
        slot: usize,
        /// The message's number.
        number: u64,
        /// Its own message that went back in the same slot.
        answer: Option<u64>,
    },
}

/// What goes with a message.
fn word(number: u64) -> u64 {
    number << POOL_BITS
}

fn address(span: SpanMut<'_>) -> usize {
    span.as_mut_ptr() as usize
}

impl Party {
    /// The party of this side (0 or 1) of an unused pool with this window; both send as many messages.
    pub fn new(pool: Pool, side: u64, window: u64, messages: u64, seed: u64) -> Self {
        Party { pool, side, window, messages, random: Random::new(seed ^ side << 63) }
    }

    /// Whether it has sent and read all.
    pub fn is_done(&self) -> bool {
        self.pool.counts() == (self.messages, self.messages)
    }

    /// Messages sent so far, and emptied.
    pub fn counts(&self) -> (u64, u64) {
        self.pool.counts()
    }

    /// The slots that may be filled here. Once both parties are done, both together have all.
    ///
    /// # Errors
    /// [`Foreign`].
    pub fn usable(&mut self) -> Result<usize, Foreign> {
        self.pool.hear()?;
        Ok(self.pool.free.count as usize + self.pool.filled)
    }

    /// The bytes of a side's message.
    fn content(&self, side: u64, number: u64) -> Vec<u8> {
        Random::new(side << 32 ^ number).bytes(self.pool.slot_bytes())
    }

    fn store(slot: SpanMut<'_>, bytes: &[u8]) {
        slot.slice(0, bytes.len()).copy_from(Span::of(bytes));
    }

    fn load(slot: SpanMut<'_>) -> Vec<u8> {
        let mut bytes = vec![0; slot.len()];
        SpanMut::of(&mut bytes).copy_from(slot.read());
        bytes
    }

    /// Sends, reads or answers a message, or does nothing, at random.
    ///
    /// # Errors
    /// [`Foreign`].
    ///
    /// # Panics
    /// If a message has other bytes than were sent, or a slot has another owner.
    pub fn turn(&mut self) -> Result<Turn, Foreign> {
        let (sent, emptied) = self.pool.counts();
        let may_send = sent < self.messages;
        if may_send && self.random.one_in(2) && self.pool.has_room()? {
            return self.send(sent + 1);
        }
        if !self.pool.is_here(emptied + 1)? {
            return Ok(Turn::Nothing);
        }
        let answers = may_send && self.random.one_in(3) && self.pool.has_room()?;
        self.read(emptied + 1, answers.then_some(sent + 1))
    }

    fn send(&mut self, number: u64) -> Result<Turn, Foreign> {
        let content = self.content(self.side, number);
        let bytes = content.len();
        let slot = address(self.pool.fill(number, bytes)?);
        let again = self.pool.fill(number, bytes)?;
        assert_eq!(address(again), slot, "another slot for the same message");
        Self::store(again, &content);
        self.pool.post(number, word(number))?;
        Ok(Turn::Sent { slot, number })
    }

    fn read(&mut self, number: u64, answer: Option<u64>) -> Result<Turn, Foreign> {
        assert_eq!(self.pool.word(number), word(number));
        let expected = self.content(1 - self.side, number);
        let bytes = expected.len();
        let read = self.pool.read(number).expect("each message has a slot");
        let slot = address(read);
        assert!(Self::load(read) == expected, "message {number} of side {} has other bytes", 1 - self.side);
        if let Some(answer) = answer {
            assert!(self.pool.forward(number, answer), "the slot is forwarded already");
            let content = self.content(self.side, answer);
            let filled = self.pool.fill(answer, bytes)?;
            assert_eq!(address(filled), slot, "the answer goes in the slot that was read");
            Self::store(filled, &content);
            self.pool.post(answer, word(answer))?;
        } else {
            // The reader owns it now: what it stores stays.
            let mark = vec![!self.side as u8; bytes];
            Self::store(read, &mark);
            assert!(Self::load(read) == mark, "the slot of message {number} has two owners");
        }
        let batch = 1 + self.random.below(self.window as usize) as u64;
        // The peer hears of the last one.
        let batch = if number == self.messages { 1 } else { batch };
        self.pool.empty(number, bytes, batch)?;
        Ok(Turn::Read { slot, number, answer })
    }
}
