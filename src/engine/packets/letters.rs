//! Short messages between two ranks, in slots that carry their flag.
//!
//! Invariant: the messages of two ranks in one direction use their slots in the order in which they are made, and are
//! numbered as the two ranks number them; what a message is told from others by is the same on both sides. The reader
//! says from time to time how far it is; nothing else is sent back. Absent: waiting, messages beyond
//! [`MESSAGE_BYTES_MAX`](super::MESSAGE_BYTES_MAX).

use consort_memory::{Arrival, Counter, Inbox, Outbox, Row, Span, SpanMut};
use consort_transports::{Connection, CounterKind};

use super::{MESSAGES_BYTES, ROWS};
use crate::call::Call;
use crate::engine::Progress;

/// The channel of such messages.
pub(crate) const CHANNEL: u16 = 0xfffe;
/// Bytes of each side's slots.
pub(crate) const MAILBOX_BYTES: usize = MESSAGES_BYTES;

/// Messages to and from one other rank.
pub(crate) struct Letters {
    out: [Outbox; ROWS.len()],
    inboxes: [Inbox; ROWS.len()],
    /// How far the peer is with what was sent to it.
    credit: Counter,
    seen: u64,
    /// Where it is told how far this rank is.
    peer_credit: Counter,
    /// Taken since then.
    unanswered: usize,
}

impl Letters {
    /// Over an established connection; none where its mailboxes are not as long as agreed.
    pub(crate) fn over(connection: &dyn Connection) -> Option<Self> {
        let mut offset = 0;
        let mut both = Vec::with_capacity(ROWS.len());
        for (slots, payload_bytes) in ROWS {
            both.push(connection.rows(offset, slots, payload_bytes)?);
            offset += Row::bytes(slots, payload_bytes);
        }
        let rows = |side: usize| std::array::from_fn::<Row, { ROWS.len() }, _>(|row| both[row][side].clone());
        Some(Letters {
            out: rows(1).map(Outbox::new),
            inboxes: rows(0).map(Inbox::new),
            credit: connection.counter(CounterKind::Credit).clone(),
            seen: 0,
            peer_credit: connection.peer_counter(CounterKind::Credit)?.clone(),
            unanswered: 0,
        })
    }

    /// Sends message `number`, if there is a slot.
    #[inline]
    pub(crate) fn send(&mut self, number: u64, mark: u64, from: Span<'_>) -> Progress {
        let row = super::row_of(from.len());
        if !self.out[row].has_room(self.seen) {
            self.seen = self.credit.value();
            if !self.out[row].has_room(self.seen) {
                return Progress::Blocked;
            }
        }
        if row == 0 {
            self.out[row].put_line(from);
        } else {
            self.out[row].payload().slice(0, from.len()).copy_from(from);
        }
        self.out[row].send(number, mark);
        Progress::Done
    }

    /// Receives message `number`, if it is here.
    ///
    /// # Errors
    /// A message that is marked otherwise.
    #[inline]
    pub(crate) fn receive(&mut self, number: u64, mark: u64, to: SpanMut<'_>) -> Result<Progress, Differs> {
        let row = super::row_of(to.len());
        match self.inboxes[row].look(mark) {
            Arrival::None => return Ok(Progress::Blocked),
            Arrival::Other => return Err(Differs),
            Arrival::Here if row == 0 => self.inboxes[row].get_line(to),
            Arrival::Here => to.copy_from(self.inboxes[row].payload().slice(0, to.len())),
        }
        self.inboxes[row].take();
        self.unanswered += 1;
        if self.unanswered >= self.inboxes[row].slots() / 2 {
            self.unanswered = 0;
            self.peer_credit.raise(number, 0);
        }
        Ok(Progress::Done)
    }
}

/// The next message is another than the one that is wanted.
pub(crate) struct Differs;

/// Whether it is a message, not of nothing, that is short enough.
#[inline]
pub(crate) fn is_short(call: &Call) -> bool {
    let bytes = call.count * call.data_type.size();
    call.kind.is_message() && bytes != 0 && bytes <= super::MESSAGE_BYTES_MAX
}
