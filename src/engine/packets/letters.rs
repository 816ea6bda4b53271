//! Messages between two ranks that share memory, in slots that carry their flag; long ones in pieces, so that one side
//! fills slots while the other empties them.
//!
//! Invariant: the messages of two ranks in one direction use their slots in the order in which they are made; the
//! mark of a message is the same on both sides, and so are its pieces. The reader says from time to time how
//! many pieces it has taken; nothing else is sent back. Absent: waiting.

use consort_kernels::{Target, copy};
use consort_memory::{Arrival, Bell, Counter, Inbox, Outbox, Row, Span, SpanMut, copy_short};
use consort_transports::{Connection, CounterKind};

use super::give_back;
use super::pieces::{self, Amiss, Pieces};
use crate::Rank;
use crate::eager::{LONG, ROWS, ROWS_BYTES, piece_one_way, row_of};
use crate::engine::store_tuner::message_store;
use crate::engine::{Buffers, Progress};
use consort_types::call::{Call, Kind};

/// Pieces of a message that are sent or read before the other messages of its rank go on: where two ranks send to each other, each
/// reads the other's pieces while they are at hand, and fills the slots in which they came.
const PIECES_A_TURN: usize = 2;

/// Messages go between two ranks, however many there are.
pub(super) const RANKS: u32 = 2;

/// Bytes of each side's mailbox.
pub(crate) fn mailbox_bytes() -> usize {
    ROWS_BYTES + pieces::bytes(RANKS)
}

/// Messages to and from one other rank.
pub(crate) struct Letters {
    peer: Rank,
    out: [Outbox; ROWS],
    inboxes: [Inbox; ROWS],
    /// Longer messages.
    pieces: Pieces,
    bell: Bell,
    /// Short messages sent, and how many of them the peer is known to have taken.
    sent: u64,
    seen: u64,
    credit: Counter,
    /// Short messages taken, and where the peer reads that.
    taken: u64,
    peer_credit: Counter,
    /// Taken since then.
    unanswered: usize,
}

impl Letters {
    /// Over an established connection; none where its mailboxes are not as long as agreed.
    pub(crate) fn over(peer: Rank, connection: &dyn Connection) -> Option<Self> {
        let (out, inboxes) = super::rows(connection)?;
        Some(Letters {
            peer,
            out,
            inboxes,
            pieces: Pieces::over(peer, connection, ROWS_BYTES, RANKS)?,
            bell: connection.bell()?,
            sent: 0,
            seen: 0,
            credit: connection.counter(CounterKind::Credit).clone(),
            taken: 0,
            peer_credit: connection.peer_counter(CounterKind::Credit)?.clone(),
            unanswered: 0,
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
    ) -> Result<Progress, Amiss> {
        match kind {
            Kind::Send => self.send(mark, buffers.input, done),
            _ => self.receive(mark, buffers.output, done),
        }
    }

    /// Sends or receives a message, not an empty one, that takes a line. Whether it did: there may be no slot, or no such
    /// message, or another one, and longer messages are left to [`Letters::go_on`].
    #[inline(always)]
    pub(crate) fn pass_line(&mut self, kind: Kind, mark: u64, buffers: Buffers<'_>) -> bool {
        match kind {
            Kind::Send => self.send_line(mark, buffers.input),
            _ => self.receive_line(mark, buffers.output),
        }
    }

    #[inline(always)]
    fn send_line(&mut self, mark: u64, from: Span<'_>) -> bool {
        let number = self.sent + 1;
        if from.len() > Row::LINE_PAYLOAD_BYTES || !self.out[0].send_line(from, self.seen, number, mark) {
            return false;
        }
        self.sent = number;
        true
    }

    #[inline(always)]
    fn receive_line(&mut self, mark: u64, to: SpanMut<'_>) -> bool {
        if to.len() > Row::LINE_PAYLOAD_BYTES {
            return false;
        }
        let Some(line) = self.inboxes[0].look_line(mark) else { return false };
        copy_short(to, line.slice(0, to.len()));
        self.inboxes[0].take();
        self.answer(0);
        true
    }

    /// A short message was taken: the peer hears of some together.
    #[inline(always)]
    fn answer(&mut self, row: usize) {
        self.taken += 1;
        self.unanswered += 1;
        if self.unanswered >= self.inboxes[row].slots() / 2 {
            self.unanswered = 0;
            self.peer_credit.raise(self.taken, 0);
        }
    }

    /// Sends what is left of a message after `done` bytes, as far as there are slots.
    ///
    /// # Errors
    /// [`Amiss::Foreign`].
    #[inline]
    pub(crate) fn send(&mut self, mark: u64, from: Span<'_>, done: &mut usize) -> Result<Progress, Amiss> {
        let row = row_of(from.len());
        if row == LONG {
            return self.send_pieces(mark, from, done);
        }
        if *done == from.len() {
            return Ok(Progress::Done);
        }
        if !self.out[row].has_room(self.seen) {
            self.seen = self.credit.value();
            if !self.out[row].has_room(self.seen) {
                return Ok(Progress::Blocked);
            }
        }
        let out = &mut self.out[row];
        if row == 0 {
            out.put_line(from);
        } else {
            out.payload().slice(0, from.len()).copy_from(from);
        }
        self.sent += 1;
        out.send(self.sent, mark);
        *done = from.len();
        Ok(Progress::Done)
    }

    fn send_pieces(&mut self, mark: u64, from: Span<'_>, done: &mut usize) -> Result<Progress, Amiss> {
        let (longest, before) = (piece_one_way(from.len()), *done);
        for _ in 0..PIECES_A_TURN {
            let bytes = longest.min(from.len() - *done);
            if bytes == 0 || !self.pieces.send(mark, from.slice(*done, bytes), None, None)? {
                break;
            }
            *done += bytes;
        }
        Ok(progress(before, *done, from.len()))
    }

    /// Receives what is left of a message after `done` bytes, as far as it is here.
    ///
    /// # Errors
    /// A message that is marked otherwise, or [`Amiss::Foreign`].
    #[inline]
    pub(crate) fn receive(
        &mut self,
        mark: u64,
        to: SpanMut<'_>,
        done: &mut usize,
    ) -> Result<Progress, Amiss> {
        let row = row_of(to.len());
        if row == LONG {
            return self.receive_pieces(mark, to, done);
        }
        if *done == to.len() {
            return Ok(Progress::Done);
        }
        let inbox = &mut self.inboxes[row];
        match inbox.look(mark) {
            Arrival::Here => {}
            Arrival::Other => return Err(Amiss::Other(self.peer)),
            Arrival::None => return Ok(Progress::Blocked),
        }
        if row == 0 {
            inbox.get_line(to);
        } else {
            to.copy_from(inbox.payload().slice(0, to.len()));
        }
        give_back(inbox, &self.pieces, row, to.len());
        self.answer(row);
        *done = to.len();
        Ok(Progress::Done)
    }

    fn receive_pieces(&mut self, mark: u64, to: SpanMut<'_>, done: &mut usize) -> Result<Progress, Amiss> {
        let before = *done;
        for _ in 0..PIECES_A_TURN {
            if *done == to.len() {
                break;
            }
            let Some(piece) = self.pieces.look(mark, to.len() - *done)? else { break };
            let bytes = piece.span.len();
            copy(&[Target { span: to.slice(*done, bytes), store: message_store(to.len()) }], piece.span);
            self.pieces.take(bytes)?;
            *done += bytes;
        }
        Ok(progress(before, *done, to.len()))
    }
}

/// How a message of `all` bytes goes on that had sent `before` bytes, and now `done`.
fn progress(before: usize, done: usize, all: usize) -> Progress {
    match done {
        done if done == all => Progress::Done,
        done if done == before => Progress::Blocked,
        _ => Progress::Moved,
    }
}

/// Whether a call is a message, and not one of nothing.
#[inline]
pub(crate) fn are_for(call: &Call) -> bool {
    call.kind.is_message() && call.count != 0
}
