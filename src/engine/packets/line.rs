//! The shortest calls of two ranks: a line at most each way, of whole buffers.
//!
//! A [`Line`] is what is left of such a call's exchange once its buffers are known to fit: no list, no block to cut out. What
//! it saves is in `docs/measurements/benches.md`.
//!
//! Invariant: a line sends, folds and takes what the [`Direct`] that it was made of does, to the bit. Absent: blocks that are
//! a part of a buffer, scaling, more than two ranks.

use consort_kernels::Reducer;
use consort_memory::{Row, Span, SpanMut, copy_short};

use super::Peer;
use super::exchange::Direct;
use crate::Rank;
use crate::eager::Use;

/// What this rank does in a call of two ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum How {
    /// Each sends its input, and folds both into its output.
    Fold,
    /// It sends its input.
    Send,
    /// It sends its input, and keeps it in its output.
    SendAndKeep,
    /// It receives its output.
    Receive,
    /// Each sends nothing, and waits for that.
    Meet,
    /// Something else than whole buffers that take a line.
    Other,
}

/// A call of two ranks, by the other one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    pub(crate) how: How,
    pub(crate) peer: Rank,
}

impl Line {
    /// What a call without an exchange does.
    pub(crate) const OTHER: Line = Line { how: How::Other, peer: 0 };

    /// What an exchange does with buffers of these lengths in bytes; a block has `bytes` bytes.
    pub(crate) fn of(direct: &Direct, bytes: usize, input_bytes: usize, output_bytes: usize) -> Self {
        let Some(leg) = direct.only_leg().filter(|_| bytes <= Row::LINE_PAYLOAD_BYTES) else {
            return Line::OTHER;
        };
        let (is_sent, is_received) = (input_bytes == bytes, output_bytes == bytes);
        let how = match (direct.purpose, leg.sends, leg.receives, direct.own) {
            (Use::Fold, Some(0), Some(0), Some((0, 0))) if is_sent && is_received => How::Fold,
            (Use::Keep, Some(0), None, None) if is_sent => How::Send,
            (Use::Keep, Some(0), None, Some((0, 0))) if is_sent && is_received => How::SendAndKeep,
            (Use::Keep, None, Some(0), None) if is_received => How::Receive,
            (Use::Meet, Some(_), Some(_), _) => How::Meet,
            _ => How::Other,
        };
        Line { how, peer: leg.peer }
    }
}

/// Folds what the peer sends with the input, if it is here. Whether it was.
#[inline(always)]
pub(super) fn fold(
    peer: &mut Peer,
    operation: u64,
    mark: u64,
    reducer: &Reducer,
    input: Span<'_>,
    output: SpanMut<'_>,
) -> bool {
    let Some(theirs) = peer.inboxes[0].look_line(mark) else { return false };
    // In whatever order: folds of two are the same bits in both.
    reducer.fold_two(output, input, theirs.slice(0, input.len()));
    peer.take_answered(operation);
    true
}

/// The same of what is not folded.
#[inline(always)]
pub(super) fn finish(
    how: How,
    peer: &mut Peer,
    operation: u64,
    mark: u64,
    input: Span<'_>,
    output: SpanMut<'_>,
) -> bool {
    match how {
        How::Send => peer.unanswered = 0,
        How::SendAndKeep => {
            peer.unanswered = 0;
            if output.as_mut_ptr().cast_const() != input.as_ptr() {
                copy_short(output, input);
            }
        }
        How::Receive => {
            let Some(theirs) = peer.inboxes[0].look_line(mark) else { return false };
            copy_short(output, theirs.slice(0, output.len()));
            peer.take(0, output.len(), operation);
        }
        _ => {
            if peer.inboxes[0].look_line(mark).is_none() {
                return false;
            }
            peer.take_answered(operation);
        }
    }
    true
}

impl Peer {
    /// Sends a line, if there is a slot. Whether there was.
    #[inline(always)]
    pub(super) fn send_line(&mut self, from: Span<'_>, operation: u64, mark: u64) -> bool {
        self.out[0].send_line(from, self.through, operation, mark)
            || self.hears() && self.out[0].send_line(from, self.through, operation, mark)
    }

    /// As [`Peer::take`] of a line, where this rank has just sent: the peer need not hear of it otherwise.
    #[inline(always)]
    fn take_answered(&mut self, operation: u64) {
        self.inboxes[0].take();
        // Its credit may have said one more, and says so again when there is no slot.
        self.through = operation - 1;
        self.unanswered = 1;
    }
}
