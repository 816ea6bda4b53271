//! Messages between two ranks that share memory, in slots that carry their flag; long ones in pieces, so that one side
//! fills slots while the other empties them.
//!
//! Invariant: the messages of two ranks in one direction use their slots in the order in which they are made; the
//! mark of a message is the same on both sides, and so are its pieces. The reader says from time to time how
//! many pieces it has taken; nothing else is sent back. Absent: waiting.

use consort_kernels::{Target, copy};
use consort_memory::{Arrival, Bell, Counter, Inbox, Outbox, Span, SpanMut};
use consort_transports::{Connection, CounterKind};

use super::give_back;
use crate::eager::point_to_point::{PAYLOADS, SLOTS};
use crate::eager::{LONG, ROWS, row_of};
use crate::engine::store_tuner::{Pace, PieceTuner, output_store, word_of};
use crate::engine::{Buffers, Progress};
use consort_types::call::{Call, Kind};

/// Messages up to this length go in pieces of half a slot, so that they overlap with themselves.
const HALVES_BYTES_MAX: usize = 32 << 10;

/// How many long pieces are sent between two looks at what the peer says.
const LISTENS: u64 = 16;

/// The longest piece of a message of `bytes` bytes, which takes `row`.
#[inline]
fn piece_of(bytes: usize, row: usize) -> usize {
    if row == LONG && bytes <= HALVES_BYTES_MAX { PAYLOADS[row] / 2 } else { PAYLOADS[row] }
}

/// Messages to and from one other rank.
pub(crate) struct Letters {
    out: [Outbox; ROWS],
    inboxes: [Inbox; ROWS],
    bell: Bell,
    tuner: PieceTuner,
    /// Pieces sent, and how many of them the peer is known to have taken.
    sent: u64,
    seen: u64,
    credit: Counter,
    /// Pieces taken, and where the peer reads that.
    taken: u64,
    peer_credit: Counter,
    /// Taken since then, and how fast.
    unanswered: usize,
    reads: Pace,
}

impl Letters {
    /// Over an established connection; none where its mailboxes are not as long as agreed.
    pub(crate) fn over(connection: &dyn Connection) -> Option<Self> {
        let (out, inboxes) = super::rows(connection, SLOTS, PAYLOADS)?;
        Some(Letters {
            out,
            inboxes,
            bell: connection.bell()?,
            tuner: PieceTuner::default(),
            sent: 0,
            seen: 0,
            credit: connection.counter(CounterKind::Credit).clone(),
            taken: 0,
            peer_credit: connection.peer_counter(CounterKind::Credit)?.clone(),
            unanswered: 0,
            reads: Pace::default(),
        })
    }

    /// What this side sleeps by, and the other one is woken by.
    #[inline]
    pub(crate) fn bell(&self) -> &Bell {
        &self.bell
    }

    /// Sends or receives what is left of a message after `done` bytes.
    ///
    /// # Errors
    /// As [`Letters::receive`].
    #[inline(always)]
    pub(crate) fn go_on(
        &mut self,
        kind: Kind,
        mark: u64,
        buffers: &Buffers<'_>,
        done: &mut usize,
    ) -> Result<Progress, Differs> {
        match kind {
            Kind::Send => Ok(self.send(mark, buffers.input, done)),
            _ => self.receive(mark, buffers.output, done),
        }
    }

    /// Sends what is left of a message after `done` bytes, as far as there are slots.
    #[inline]
    pub(crate) fn send(&mut self, mark: u64, from: Span<'_>, done: &mut usize) -> Progress {
        let row = row_of(from.len());
        let longest = piece_of(from.len(), row);
        let before = *done;
        while *done < from.len() {
            let listens = row == LONG && self.sent.is_multiple_of(LISTENS);
            if listens || !self.out[row].has_room(self.seen) {
                self.hear();
                if !self.out[row].has_room(self.seen) {
                    return if *done == before { Progress::Blocked } else { Progress::Moved };
                }
            }
            let out = &mut self.out[row];
            let bytes = longest.min(from.len() - *done);
            let piece = from.slice(*done, bytes);
            if row == 0 {
                out.put_line(piece);
            } else {
                let span = out.payload().slice(0, bytes);
                let store = self.tuner.write(bytes, |store| {
                    copy(&[Target { span, store }], piece);
                    store
                });
                if row == LONG {
                    out.put_word(word_of(store));
                }
            }
            self.sent += 1;
            out.send(self.sent, mark);
            *done += bytes;
        }
        Progress::Done
    }

    /// Sees how far the peer is, and how long it took to read.
    fn hear(&mut self) {
        let now = self.credit.value();
        if now != self.seen {
            // Those that it tells of are at most half a row, and older than what it has not taken.
            let first = self.sent.saturating_sub(now) + SLOTS[LONG] as u64 / 2;
            self.tuner.was_read(first as u32, self.credit.tag(now));
            self.seen = now;
        }
    }

    /// Receives what is left of a message after `done` bytes, as far as it is here.
    ///
    /// # Errors
    /// A message that is marked otherwise.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        mark: u64,
        to: SpanMut<'_>,
        done: &mut usize,
    ) -> Result<Progress, Differs> {
        let row = row_of(to.len());
        let longest = piece_of(to.len(), row);
        let before = *done;
        while *done < to.len() {
            let inbox = &mut self.inboxes[row];
            match inbox.look(mark) {
                Arrival::Here => {}
                Arrival::Other => return Err(Differs),
                Arrival::None if *done == before => return Ok(Progress::Blocked),
                Arrival::None => return Ok(Progress::Moved),
            }
            let bytes = longest.min(to.len() - *done);
            let piece = to.slice(*done, bytes);
            if row == 0 {
                inbox.get_line(piece);
            } else {
                let (target, from) =
                    (Target { span: piece, store: output_store(to.len()) }, inbox.payload().slice(0, bytes));
                self.reads.time(bytes, || copy(&[target], from));
            }
            give_back(inbox, row, bytes);
            self.taken += 1;
            self.unanswered += 1;
            if self.unanswered >= inbox.slots() / 2 {
                self.unanswered = 0;
                self.peer_credit.raise(self.taken, self.reads.take());
            }
            *done += bytes;
        }
        Ok(Progress::Done)
    }
}

/// The next message is another than the one that is wanted.
pub(crate) struct Differs;

/// Whether a call is a message, and not one of nothing.
#[inline]
pub(crate) fn are_for(call: &Call) -> bool {
    call.kind.is_message() && call.count != 0
}
