//! The all-reduce of a long message between two ranks in two hops: each rank folds one half, and sends the sum back in the very
//! slots in which the other rank's half has come.
//!
//! So each byte crosses twice in all, where in one hop each rank sends everything to the other one, and each slot that is written was
//! modified by the core that writes it. It is the two-shot algorithm of two ranks; the planner has proved that it folds in the
//! order of ranks, as the direct exchange does.
//!
//! ```text
//!   rank 0 ── second half, raw ──► rank 1        rank 1 ── first half, raw ──► rank 0
//!          ◄── its sum, same slot ──                    ◄── its sum, same slot ──
//! ```
//!
//! Invariant: at most [`AHEAD`] pieces of a rank are out whose sum is not back. So at most twice as many are under way in each
//! direction, and a sum always finds room: no two ranks wait for each other to read first. Both cut alike; a piece of another length is
//! of another operation.

use std::ops::Range;

use consort_kernels::{Reducer, Source, Store, Target, copy};
use consort_memory::{Pool, Span, SpanMut};

use super::exchange::{Direct, Leg, Underway};
use super::pieces::{Amiss, CREDITS, Piece};
use super::{Peer, peer_of};
use crate::Rank;
use crate::eager::piece_both_ways;
use crate::engine::watched::Standing;
use crate::engine::{Buffers, Progress};
use consort_control::report::evidence::Want;

/// Pieces that are sent before the sum of the first is back.
const AHEAD: usize = 2;

/// The pieces of each rank, as many sums, and those that are read and not said to be.
const _: () = assert!(2 * AHEAD as u64 + CREDITS <= Pool::WINDOW_MAX);

/// What a rank has to do in an all-reduce of two hops.
struct Halves {
    leg: Leg,
    /// What this rank folds, and what the other one does.
    mine: Range<usize>,
    theirs: Range<usize>,
    /// The longest piece.
    longest: usize,
}

impl Halves {
    fn of(direct: &Direct, bytes: usize) -> Self {
        let [leg] = &*direct.legs else { unreachable!("two ranks have one leg each") };
        let [first, second] = halves(bytes);
        let longest = piece_both_ways(first.len());
        let (mine, theirs) = if leg.is_first { (second, first) } else { (first, second) };
        Halves { leg: *leg, mine, theirs, longest }
    }
}

/// The halves of a message of `bytes` bytes: what the first of two ranks folds, and what the second does.
fn halves(bytes: usize) -> [Range<usize>; 2] {
    let middle = (bytes / 2).next_multiple_of(64).min(bytes);
    [0..middle, middle..bytes]
}

impl Underway {
    /// Goes on as far as possible: `sent` counts the bytes sent, `here` those that were folded, and `kept` those whose sum is back.
    ///
    /// # Errors
    /// As of [`Underway::advance`].
    pub(super) fn advance_hops(
        &mut self,
        direct: &Direct,
        peers: &mut [Option<Peer>],
        reducer: &Reducer,
        buffers: &Buffers<'_>,
    ) -> Result<Progress, Amiss> {
        let of = self.messages;
        let Halves { leg, mine, theirs, longest } = Halves::of(direct, of.bytes);
        let Peer { pieces, .. } = peer_of(peers, leg.peer);
        let scaled_by = direct.scales.then_some(reducer);
        let mut moved = false;
        loop {
            let before = *self;
            while self.sent < theirs.len() && self.sent < self.kept + AHEAD * longest {
                let bytes = longest.min(theirs.len() - self.sent);
                if !pieces.send(
                    of.mark,
                    buffers.input.slice(theirs.start + self.sent, bytes),
                    scaled_by,
                    None,
                )? {
                    break;
                }
                self.sent += bytes;
            }
            match pieces.look(of.mark, longest)? {
                Some(Piece { span, is_sum: true }) if span.len() == longest.min(self.sent - self.kept) => {
                    let bytes = span.len();
                    let output = buffers.output.slice(theirs.start + self.kept, bytes);
                    copy(&[Target { span: output, store: Store::Cached }], span);
                    pieces.take(bytes)?;
                    self.kept += bytes;
                }
                Some(Piece { span, is_sum: false }) if span.len() == longest.min(mine.len() - self.here) => {
                    let (at, bytes) = (mine.start + self.here, span.len());
                    let own = Source { span: buffers.input.slice(at, bytes), raw: true };
                    let output = Target { span: buffers.output.slice(at, bytes), store: Store::Cached };
                    let fold = |from: Span<'_>, slot: SpanMut<'_>| {
                        let other = Source { span: from, raw: !direct.scales };
                        let sources = if leg.is_first { [other, own] } else { [own, other] };
                        reducer.fold(&[output, Target { span: slot, store: Store::Cached }], &sources, true);
                    };
                    if pieces.reply(of.mark, bytes, fold)? {
                        self.here += bytes;
                    }
                }
                Some(_) => return Err(Amiss::Other(leg.peer)),
                None => {}
            }
            if (self.here, self.kept) == (mine.len(), theirs.len()) {
                return Ok(Progress::Done);
            }
            if (before.sent, before.here, before.kept) == (self.sent, self.here, self.kept) {
                return Ok(if moved { Progress::Moved } else { Progress::Blocked });
            }
            moved = true;
        }
    }

    /// The rank that it waits for, and for what: a slot for its next piece, or else data.
    pub(super) fn wanted_hops(&self, direct: &Direct) -> (Rank, Want) {
        let Halves { leg, theirs, longest, .. } = Halves::of(direct, self.messages.bytes);
        let may_send = self.sent < theirs.len() && self.sent < self.kept + AHEAD * longest;
        (leg.peer, if may_send { Want::Room } else { Want::Data })
    }

    /// The hop in which it waits, and the piece there: in the first hop the piece that it sends next or the one that it folds
    /// next, in the second hop the sum that comes next.
    pub(super) fn standing_hops(&self, direct: &Direct) -> Standing {
        let Halves { leg, mine, theirs, longest } = Halves::of(direct, self.messages.bytes);
        let (step, at, bytes) = match self.wanted_hops(direct) {
            (_, Want::Room) => (0, self.sent, theirs.len()),
            _ if self.here < mine.len() => (0, self.here, mine.len()),
            _ => (1, self.kept, theirs.len()),
        };
        let piece = |at: usize| at.div_ceil(longest) as u32;
        Standing { peer: leg.peer, step, steps: 2, slice: piece(at), slices: piece(bytes) }
    }
}
