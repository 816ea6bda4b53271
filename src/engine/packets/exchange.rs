//! One exchange of messages, as far as it has come.
//!
//! Invariant: an exchange never waits; what it cannot do now it leaves. It sends to all before it looks for anything,
//! takes what comes in the order of ranks, and writes the output only once it has sent what it had to.

use consort_kernels::{Reducer, Source, Store, Target, copy};
use consort_memory::Arrival;

use super::{Board, LONG, Peer};
use crate::Rank;
use crate::eager::{Moves, RANKS_MAX, Use};
use crate::engine::store_tuner::{store_of, word_of};
use crate::engine::{Buffers, Progress, Request};

/// An exchange under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exchange {
    moves: Moves,
    /// Bytes of a block.
    bytes: usize,
    row: usize,
    /// What tells this operation from others: the same on all ranks.
    mark: u64,
    operation: u64,
    /// How many of the others have been sent to.
    sent: u32,
    /// Everything from ranks below this one is here.
    here: Rank,
    /// How long messages are staged, and what rank 0 says of the next ones.
    store: Store,
    said: Option<Store>,
}

/// What an exchange waits for: of whom, and whether for a message or for a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wanted {
    pub(crate) peer: Rank,
    pub(crate) room: bool,
}

impl Exchange {
    /// What a request asks for, as the next operation of a board.
    pub(crate) fn of(board: &mut Board, request: &Request) -> Self {
        let Request { call, sequence, history, .. } = request;
        let moves = Moves::new(call.kind, board.me, call.root);
        let mark = call.descriptor().digest(*sequence, *history);
        Self::begin(board, moves, call.count * call.data_type.size(), mark)
    }

    /// The next operation of a board, on blocks of so many bytes.
    #[inline]
    pub(crate) fn begin(board: &mut Board, moves: Moves, bytes: usize, mark: u64) -> Self {
        board.operations += 1;
        let bytes = if moves.purpose() == Use::Meet { 0 } else { bytes };
        Self::at(moves, bytes, mark, board.operations, board.store())
    }

    /// The operation of a board that has this number.
    #[inline]
    pub(super) fn at(moves: Moves, bytes: usize, mark: u64, operation: u64, store: Store) -> Self {
        let row = super::row_of(bytes);
        Exchange { moves, bytes, row, mark, operation, sent: 0, here: 0, store, said: None }
    }

    /// How its messages were staged, if they were long; and what rank 0 said of the next ones, if it sent one.
    pub(super) fn staged(&self) -> (Option<Store>, Option<Store>) {
        ((self.row == LONG).then_some(self.store), self.said)
    }

    /// Bytes of a block.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Rank `to` is the next to send to; none if all have been sent to.
    pub(super) fn has_sent_up_to(&mut self, to: Option<Rank>, me: Rank, ranks: u32) {
        self.sent = to.map_or(ranks - 1, |to| (to + ranks - me - 1) % ranks);
    }

    /// Goes on as far as possible.
    ///
    /// # Errors
    /// A rank that sent a message of another operation.
    #[inline]
    pub(crate) fn advance(
        &mut self,
        board: &mut Board,
        reducer: &Reducer,
        buffers: Buffers<'_>,
    ) -> Result<Progress, Rank> {
        self.advance_on(board.me, &mut board.peers, reducer, buffers)
    }

    /// As [`Exchange::advance`], on the peers of rank `me`.
    #[inline]
    pub(super) fn advance_on(
        &mut self,
        me: Rank,
        peers: &mut [Option<Peer>],
        reducer: &Reducer,
        buffers: Buffers<'_>,
    ) -> Result<Progress, Rank> {
        let ranks = peers.len() as u32;
        let before = (self.sent, self.here);
        while self.sent + 1 < ranks {
            // Everybody begins with another one.
            let mut to = me + 1 + self.sent;
            to -= if to >= ranks { ranks } else { 0 };
            if let Some(block) = self.moves.sends(to)
                && !self.send(peers, to, block, reducer, buffers)
            {
                return Ok(if before == (self.sent, self.here) {
                    Progress::Blocked
                } else {
                    Progress::Moved
                });
            }
            self.sent += 1;
        }
        while self.here < ranks {
            if self.here != me && self.moves.receives(self.here) {
                let Some(Some(peer)) = peers.get_mut(self.here as usize) else {
                    unreachable!("a board has all peers")
                };
                match peer.inboxes[self.row].look(self.mark) {
                    Arrival::Here if self.row == LONG && self.here == 0 => {
                        self.said = Some(store_of(peer.inboxes[self.row].word()));
                    }
                    Arrival::Here => {}
                    Arrival::Other => return Err(self.here),
                    Arrival::None => {
                        let moved = before != (self.sent, self.here);
                        return Ok(if moved { Progress::Moved } else { Progress::Blocked });
                    }
                }
                if self.moves.purpose() != Use::Fold {
                    self.keep(peer, buffers);
                }
            }
            self.here += 1;
        }
        self.finish(me, peers, reducer, buffers);
        Ok(Progress::Done)
    }

    /// What it waits for.
    pub(crate) fn wanted(&self, board: &Board) -> Option<Wanted> {
        let ranks = board.peers.len() as u32;
        if self.sent + 1 < ranks {
            return Some(Wanted { peer: (board.me + 1 + self.sent) % ranks, room: true });
        }
        let mut others = self.here..ranks;
        let peer = others.find(|rank| *rank != board.me && self.moves.receives(*rank))?;
        Some(Wanted { peer, room: false })
    }

    /// Sends a block, if there is a slot.
    #[inline]
    fn send(
        &mut self,
        peers: &mut [Option<Peer>],
        to: Rank,
        block: u32,
        reducer: &Reducer,
        buffers: Buffers<'_>,
    ) -> bool {
        let Some(Some(peer)) = peers.get_mut(to as usize) else { unreachable!("a board has all peers") };
        if !peer.has_room(self.row) {
            return false;
        }
        let out = &mut peer.out[self.row];
        if self.bytes != 0 {
            let from = buffers.input.slice(block as usize * self.bytes, self.bytes);
            let span = out.payload().slice(0, self.bytes);
            if self.moves.purpose() == Use::Fold && reducer.is_pre_mul_sum() {
                // Each rank has a scalar of its own.
                let target = Target { span, store: Store::Cached };
                reducer.fold(&[target], &[Source { span: from, raw: true }], false);
            } else {
                let store = if self.row == LONG { self.store } else { Store::Cached };
                copy(&[Target { span, store }], from);
            }
        }
        if self.row == LONG {
            out.put_word(word_of(self.store));
        }
        out.send(self.operation, self.mark);
        peer.unanswered = 0;
        true
    }

    /// Keeps what has come from the peer of which everything is here next.
    #[inline]
    fn keep(&self, peer: &mut Peer, buffers: Buffers<'_>) {
        if self.bytes != 0 {
            let at = self.moves.keeps(self.here) as usize * self.bytes;
            let from = peer.inboxes[self.row].payload().slice(0, self.bytes);
            buffers.output.slice(at, self.bytes).copy_from(from);
        }
        peer.take(self.row, self.operation);
    }

    /// Everything is here: the own block is kept too, or all are folded.
    #[inline]
    fn finish(&self, me: Rank, peers: &mut [Option<Peer>], reducer: &Reducer, buffers: Buffers<'_>) {
        let Some(block) = self.moves.own() else { return };
        let own = buffers.input.slice(block as usize * self.bytes, self.bytes);
        if self.moves.purpose() == Use::Keep {
            let at = self.moves.keeps(me) as usize * self.bytes;
            let target = buffers.output.slice(at, self.bytes);
            if target.as_mut_ptr().cast_const() != own.as_ptr() {
                target.copy_from(own);
            }
            return;
        }
        // Contributions are scaled where they are folded, but for scalars, which only their ranks have.
        let raw = !reducer.is_pre_mul_sum();
        let ranks = peers.len();
        let mut sources = [Source { span: own, raw: true }; RANKS_MAX as usize];
        for (source, peer) in sources[..ranks].iter_mut().zip(&*peers) {
            if let Some(peer) = peer {
                *source = Source { span: peer.inboxes[self.row].payload().slice(0, self.bytes), raw };
            }
        }
        let target = Target { span: buffers.output.slice(0, self.bytes), store: Store::Cached };
        reducer.fold_in_turn(&[target], &sources[..ranks], true);
        for peer in peers.iter_mut().flatten() {
            peer.take(self.row, self.operation);
        }
    }
}
