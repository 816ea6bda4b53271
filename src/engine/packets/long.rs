//! The direct exchange of long messages, piece by piece: a rank writes one piece while another rank reads the one before.
//!
//! Pieces go leg by leg, the first piece of each leg first. Where a leg goes both ways, a rank is [`AHEAD`] pieces ahead of what
//! it has read at most, so that the slots that it fills are those that it has just read, which are in its first cache.
//!
//! ```text
//!        ┌── a slot is free, and not too far ahead: send ──┐
//!        ▼                                                 │
//!     pieces to send, pieces to read ──────────────────────┤
//!        │ ▲                                               │
//!        │ └── a piece is here, and sent to all: read it ◄─┘
//!        ├── neither, and the own block is not kept: keep a piece of it
//!        └── all are sent, read and kept ─► done
//! ```
//!
//! Invariant: as of an [exchange](super::exchange); a piece of the output is written only once that piece of the input has been
//! sent to all, as the two may be one buffer. All ranks cut alike, as they fold piece by piece.

use consort_kernels::{Reducer, Source, Store, Target, copy};
use consort_memory::{Span, SpanMut};

use super::exchange::{Direct, Leg, Messages, Underway};
use super::pieces::{Amiss, Piece};
use super::{Peer, peer_of};
use crate::Rank;
use crate::eager::{RANKS_MAX, Use, piece_both_ways, piece_one_way};
use crate::engine::{Buffers, Progress};
use consort_control::report::evidence::Want;

/// Pieces that are sent before the first is read, where a leg goes both ways.
const AHEAD: usize = 2;

/// What an operation works on.
struct Exchanged<'a, 'b> {
    direct: &'a Direct,
    peers: &'a mut [Option<Peer>],
    reducer: &'a Reducer,
    buffers: &'a Buffers<'b>,
    of: Messages,
    /// The longest piece.
    piece: usize,
}

impl Direct {
    /// Whether some leg goes both ways.
    fn goes_both_ways(&self) -> bool {
        self.legs.iter().any(|leg| leg.sends.is_some() && leg.receives.is_some())
    }

    fn piece(&self, bytes: usize) -> usize {
        if self.goes_both_ways() { piece_both_ways(bytes) } else { piece_one_way(bytes) }
    }
}

impl Underway {
    /// Goes on as far as possible.
    ///
    /// # Errors
    /// As of [`Underway::advance`].
    pub(super) fn advance_long(
        &mut self,
        direct: &Direct,
        peers: &mut [Option<Peer>],
        reducer: &Reducer,
        buffers: &Buffers<'_>,
    ) -> Result<Progress, Amiss> {
        if direct.two_hops {
            return self.advance_hops(direct, peers, reducer, buffers);
        }
        let (of, legs) = (self.messages, direct.legs.len());
        let piece = direct.piece(of.bytes);
        let all = of.bytes.div_ceil(piece) * legs;
        let ahead = if direct.goes_both_ways() { AHEAD * legs } else { all };
        let mut exchanged = Exchanged { direct, peers, reducer, buffers, of, piece };
        let mut moved = false;
        loop {
            let before = (self.sent, self.here);
            while self.sent < all.min(self.here + ahead) && exchanged.send(self.sent, &mut self.kept)? {
                self.sent += 1;
            }
            while self.here < all && exchanged.take(self.here, self.sent)? {
                self.here += 1;
            }
            if (self.sent, self.here) == (all, all) {
                while exchanged.keep_own(&mut self.kept) {}
                return Ok(Progress::Done);
            }
            if before == (self.sent, self.here) && !exchanged.keep_own(&mut self.kept) {
                return Ok(if moved { Progress::Moved } else { Progress::Blocked });
            }
            moved = true;
        }
    }

    /// The rank that it waits for, and for what.
    pub(super) fn wanted_long(&self, direct: &Direct) -> Option<(Rank, Want)> {
        if direct.two_hops {
            return Some(self.wanted_hops(direct));
        }
        let legs = direct.legs.len();
        let all = self.messages.bytes.div_ceil(direct.piece(self.messages.bytes)) * legs;
        let next = |count: usize, want| (count < all).then(|| (direct.legs[count % legs].peer, want));
        let is_ahead = direct.goes_both_ways() && self.sent >= self.here + AHEAD * legs;
        let room = next(self.sent, Want::Room).filter(|_| !is_ahead);
        room.or_else(|| next(self.here, Want::Data))
    }
}

impl<'b> Exchanged<'_, 'b> {
    /// A piece of a leg: its leg, where in a block it begins, and its bytes.
    #[inline]
    fn of(&self, number: usize) -> (Leg, usize, usize) {
        let legs = &self.direct.legs;
        let at = number / legs.len() * self.piece;
        (legs[number % legs.len()], at, self.piece.min(self.of.bytes - at))
    }

    #[inline]
    fn peer(&mut self, rank: Rank) -> &mut Peer {
        peer_of(self.peers, rank)
    }

    /// Sends a piece, if there is one. Whether it had a slot. A piece that is kept too is copied to both places at once.
    fn send(&mut self, number: usize, kept: &mut usize) -> Result<bool, Amiss> {
        let (leg, at, bytes) = self.of(number);
        let Some(block) = leg.sends else { return Ok(true) };
        let from = self.buffers.input.slice(block as usize * self.of.bytes + at, bytes);
        let (mark, scaled_by) = (self.of.mark, self.direct.scales.then_some(self.reducer));
        let is_kept = self.direct.own.is_some_and(|(own, _)| own == block) && *kept == at;
        let beside = self.own_piece(*kept).filter(|_| is_kept).map(|(_, target)| target);
        let has_sent = self.peer(leg.peer).pieces.send(mark, from, scaled_by, beside)?;
        if has_sent && beside.is_some() {
            *kept += bytes;
        }
        Ok(has_sent)
    }

    /// Reads a piece, if one comes. Whether it is here, and may be read when pieces up to `sent` are sent.
    fn take(&mut self, number: usize, sent: usize) -> Result<bool, Amiss> {
        let (leg, at, bytes) = self.of(number);
        let Some(block) = leg.receives else { return Ok(true) };
        let legs = self.direct.legs.len();
        let is_fold = self.direct.purpose == Use::Fold;
        if is_fold && sent < (number / legs + 1) * legs {
            return Ok(false);
        }
        let (mark, buffers) = (self.of.mark, self.buffers);
        let output = buffers.output.slice(block as usize * self.of.bytes + at, bytes);
        let (direct, reducer, whole) = (self.direct, self.reducer, self.of.bytes);
        let pieces = &mut self.peer(leg.peer).pieces;
        let Some(Piece { span: theirs, is_sum }) = pieces.look(mark, bytes)? else { return Ok(false) };
        if theirs.len() != bytes || is_sum {
            return Err(Amiss::Other(leg.peer));
        }
        match direct.own {
            _ if !is_fold => copy(&[Target { span: output, store: Store::Cached }], theirs),
            Some((own, _)) if legs == 1 && direct.is_plain => {
                let own = buffers.input.slice(own as usize * whole + at, bytes);
                let (left, right) = if leg.is_first { (theirs, own) } else { (own, theirs) };
                reducer.fold_two(output, left, right);
            }
            // The last one folds all.
            Some(_) if number % legs + 1 < legs => return Ok(true),
            Some((own, _)) => return self.fold(own as usize * whole + at, at, bytes).map(|()| true),
            None => {}
        }
        pieces.take(bytes)?;
        Ok(true)
    }

    /// The piece that begins `at` bytes into a block is here of all legs: folds it into the output.
    fn fold(&mut self, own_at: usize, at: usize, bytes: usize) -> Result<(), Amiss> {
        let Exchanged { direct, peers, reducer, buffers, .. } = self;
        let own = buffers.input.slice(own_at, bytes);
        let mut sources = [Source { span: own, raw: true }; RANKS_MAX as usize];
        for (source, rank) in sources.iter_mut().zip(&direct.folds) {
            if let Some(Some(peer)) = peers.get(*rank as usize) {
                let found = peer.pieces.found().filter(|piece| piece.span.len() == bytes);
                let span = found.ok_or(Amiss::Other(*rank))?.span;
                *source = Source { span, raw: !direct.scales };
            }
        }
        let target = [Target { span: buffers.output.slice(at, bytes), store: Store::Cached }];
        reducer.fold_in_turn(&target, &sources[..direct.folds.len()], true);
        for leg in direct.legs.iter().filter(|leg| leg.receives.is_some()) {
            self.peer(leg.peer).pieces.take(bytes)?;
        }
        Ok(())
    }

    /// The piece of the own block behind `kept` bytes, and where it belongs, if that is elsewhere.
    fn own_piece(&self, kept: usize) -> Option<(Span<'b>, SpanMut<'b>)> {
        let (from, to) = self.direct.own.filter(|_| self.direct.purpose == Use::Keep)?;
        let bytes = self.piece.min(self.of.bytes - kept);
        let own = self.buffers.input.slice(from as usize * self.of.bytes + kept, bytes);
        let target = self.buffers.output.slice(to as usize * self.of.bytes + kept, bytes);
        (bytes != 0 && target.as_mut_ptr().cast_const() != own.as_ptr()).then_some((own, target))
    }

    /// Copies a piece of the own block to where it belongs, if one is left.
    fn keep_own(&mut self, kept: &mut usize) -> bool {
        let Some((own, span)) = self.own_piece(*kept) else { return false };
        *kept += own.len();
        copy(&[Target { span, store: Store::Cached }], own);
        true
    }
}
