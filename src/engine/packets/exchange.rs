//! The direct exchange of a collective in messages that carry their flag: every rank sends to all that need something of
//! it before it looks for anything, and folds or keeps what arrives.
//!
//! A [`Direct`] is the exchange of one shape of call on one rank, made of the [`Moves`] of a proved schedule: a [`Leg`]
//! for each other rank. An [`Underway`] is how far one operation has come. An exchange of one leg (of two ranks, say)
//! does the same without lists: that is a third of the instructions of 8 bytes.
//!
//! Invariant: an exchange never waits; what it cannot do now it leaves. It writes the output only once it has sent what
//! it had to, and folds in the schedule's order.

use std::sync::Arc;

use consort_kernels::{Reducer, Source, Store, Target};
use consort_memory::{Arrival, Outbox, Row, Span, SpanMut, copy_short};

use super::pieces::Amiss;
use super::{Board, Peer, peer_of};
use crate::Rank;
use crate::eager::{LONG, Moves, RANKS_MAX, Use, row_of};
use crate::engine::watched::Standing;
use crate::engine::{Buffers, Progress};
use consort_control::report::evidence::Want;
use consort_types::call::{Call, Kind};

/// The direct exchange of one shape of call, on this rank.
#[derive(Debug)]
pub(crate) struct Direct {
    /// What becomes of what arrives.
    pub(crate) purpose: Use,
    /// What goes to and comes from each other rank that something goes to or comes from, the next rank first.
    pub(super) legs: Box<[Leg]>,
    /// The block of this rank's input that is part of its own output, and the block that it becomes.
    pub(super) own: Option<(u32, u32)>,
    /// The ranks of the fold in its order; empty where nothing is folded.
    pub(super) folds: Box<[Rank]>,
    /// Whether contributions are scaled where they are sent.
    pub(super) scales: bool,
    /// Whether folding is of two at a time, with nothing to scale or to divide.
    pub(super) is_plain: bool,
    /// Whether long messages of two ranks are folded half by half, in two hops.
    pub(super) two_hops: bool,
}

/// The messages to and from one other rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leg {
    pub(super) peer: Rank,
    /// The block of the input that is sent.
    pub(super) sends: Option<u32>,
    /// The block of the output that what arrives becomes, or is folded into.
    pub(super) receives: Option<u32>,
    /// Whether what arrives comes first in the fold.
    pub(super) is_first: bool,
}

impl Direct {
    /// The exchange of rank `me` for calls like this one; `all` are the moves of all ranks, from the root on.
    pub(crate) fn new(call: &Call, all: &[Moves], reducer: &Reducer, me: Rank, two_hops: bool) -> Self {
        let (ranks, collective) = (all.len() as u32, call.collective());
        let absolute = |relative: u32| (relative + call.root) % ranks;
        let relative = |rank: u32| (rank + ranks - call.root) % ranks;
        // Where one buffer holds the blocks of all ranks, they are in the order of ranks.
        let block = |block: u32, of: u32| if of == 1 { 0 } else { absolute(block) };
        let input = |of: u32| block(of, collective.input_blocks(ranks));
        let output = |of: u32| block(of, collective.output_blocks(ranks));
        let moves = &all[relative(me) as usize];
        let leg = |peer: Rank| {
            let sent = moves.sends.iter().find(|(to, _)| *to == relative(peer));
            let taken = moves.takes.iter().find(|taken| taken.from == relative(peer));
            let leg = Leg {
                peer,
                sends: sent.map(|(_, of)| input(*of)),
                receives: taken.map(|taken| output(taken.output)),
                is_first: moves.takes.first().is_some_and(|taken| taken.from == relative(peer)),
            };
            (leg.sends.is_some() || leg.receives.is_some()).then_some(leg)
        };
        let purpose = match (call.kind, moves.folds) {
            (Kind::Barrier, _) => Use::Meet,
            (_, true) => Use::Fold,
            (_, false) => Use::Keep,
        };
        let is_fold = purpose == Use::Fold;
        let own = moves.takes.iter().find(|taken| taken.from == relative(me) && purpose != Use::Meet);
        let folded = moves.takes.iter().filter(|_| is_fold).map(|taken| absolute(taken.from));
        Direct {
            purpose,
            legs: (1..ranks).filter_map(|step| leg((me + step) % ranks)).collect(),
            own: own.map(|taken| (input(taken.input), output(taken.output))),
            folds: folded.collect(),
            scales: is_fold && reducer.is_pre_mul_sum(),
            is_plain: is_fold && !reducer.scales_or_divides(),
            two_hops,
        }
    }

    /// The only leg of an exchange that moves at most one block each way and has nothing to scale or to divide.
    #[inline(always)]
    pub(crate) fn only_leg(&self) -> Option<&Leg> {
        match &*self.legs {
            [leg] if self.is_plain || self.purpose != Use::Fold => Some(leg),
            _ => None,
        }
    }

    /// Bytes of the lists.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.legs) + size_of_val(&*self.folds)
    }

    /// The own block is kept where it belongs, if it is not there.
    #[inline(always)]
    fn keep_own(&self, of: Messages, buffers: &Buffers<'_>) {
        let Some((from, to)) = self.own else { return };
        let own = buffers.input.slice(from as usize * of.bytes, of.bytes);
        let target = buffers.output.slice(to as usize * of.bytes, of.bytes);
        if target.as_mut_ptr().cast_const() != own.as_ptr() {
            copy_short(target, own);
        }
    }

    /// What the only other rank has sent is here.
    #[inline(always)]
    pub(super) fn finish_pair(
        &self,
        leg: &Leg,
        of: Messages,
        peer: &mut Peer,
        reducer: &Reducer,
        buffers: &Buffers<'_>,
    ) {
        if self.purpose != Use::Fold {
            leg.keep(self.purpose, of, peer, buffers);
            return self.keep_own(of, buffers);
        }
        // The rank that only sends takes nothing.
        let Some((block, _)) = self.own else { return };
        let own = buffers.input.slice(block as usize * of.bytes, of.bytes);
        let theirs = peer.inboxes[of.row].payload().slice(0, of.bytes);
        let (left, right) = if leg.is_first { (theirs, own) } else { (own, theirs) };
        reducer.fold_two(buffers.output.slice(0, of.bytes), left, right);
        peer.take(of.row, of.bytes, of.operation);
    }

    /// Everything is here: folds it into the output, which may be the own contribution.
    fn fold_all(&self, of: Messages, peers: &mut [Option<Peer>], reducer: &Reducer, buffers: &Buffers<'_>) {
        let Some((block, _)) = self.own else { return };
        let own = buffers.input.slice(block as usize * of.bytes, of.bytes);
        let target = buffers.output.slice(0, of.bytes);
        if self.is_plain && of.row == 0 {
            self.fold_lines(of, peers, reducer, own, target);
            return peers.iter_mut().flatten().for_each(|peer| peer.take(0, of.bytes, of.operation));
        }
        // Contributions are scaled where they are folded, but for scalars, which only their ranks have.
        let mut sources = [Source { span: own, raw: true }; RANKS_MAX as usize];
        for (source, rank) in sources.iter_mut().zip(&self.folds) {
            if let Some(Some(peer)) = peers.get(*rank as usize) {
                let span = peer.inboxes[of.row].payload().slice(0, of.bytes);
                *source = Source { span, raw: !self.scales };
            }
        }
        let sources = &sources[..self.folds.len()];
        reducer.fold_in_turn(&[Target { span: target, store: Store::Cached }], sources, true);
        peers.iter_mut().flatten().for_each(|peer| peer.take(of.row, of.bytes, of.operation));
    }
}

impl Direct {
    /// Folds messages of a line, two at a time, which are neither scaled nor divided.
    #[inline]
    fn fold_lines(
        &self,
        of: Messages,
        peers: &[Option<Peer>],
        reducer: &Reducer,
        own: Span<'_>,
        target: SpanMut<'_>,
    ) {
        let line = |rank: Rank| match peers.get(rank as usize) {
            Some(Some(peer)) => peer.inboxes[0].payload().slice(0, of.bytes),
            _ => own,
        };
        let [first, rest @ ..] = &*self.folds else { return };
        // The target may be the own contribution.
        let mut folded = [0u8; Row::LINE_PAYLOAD_BYTES];
        let folded = SpanMut::of(&mut folded).slice(0, of.bytes);
        copy_short(folded, line(*first));
        rest.iter().for_each(|rank| reducer.fold_two(folded, folded.read(), line(*rank)));
        copy_short(target, folded.read());
    }
}

/// The messages of one operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Messages {
    /// Bytes of a block.
    pub(super) bytes: usize,
    pub(super) row: usize,
    /// What tells this operation from others: the same on all ranks.
    pub(super) mark: u64,
    pub(super) operation: u64,
}

impl Leg {
    /// Sends the block, if there is one. Whether it had a slot.
    #[inline(always)]
    pub(super) fn send(
        &self,
        scaled_by: Option<&Reducer>,
        of: Messages,
        peer: &mut Peer,
        buffers: &Buffers<'_>,
    ) -> bool {
        let Some(block) = self.sends else { return true };
        let from = buffers.input.slice(block as usize * of.bytes, of.bytes);
        if of.row == 0 && scaled_by.is_none() {
            let has_sent = peer.send_line(from, of.operation, of.mark);
            if has_sent {
                peer.unanswered = 0;
            }
            return has_sent;
        }
        if !peer.has_room(of.row) {
            return false;
        }
        let out = &mut peer.out[of.row];
        stage(out, from, scaled_by);
        out.send(of.operation, of.mark);
        peer.unanswered = 0;
        true
    }

    /// Whether what the peer sends is here.
    #[inline(always)]
    pub(super) fn look(&self, of: Messages, peer: &Peer) -> Arrival {
        if self.receives.is_none() { Arrival::Here } else { peer.inboxes[of.row].look(of.mark) }
    }

    /// Takes what is here and is not folded.
    #[inline(always)]
    fn keep(&self, purpose: Use, of: Messages, peer: &mut Peer, buffers: &Buffers<'_>) {
        let Some(block) = self.receives else { return };
        if purpose == Use::Keep {
            let from = peer.inboxes[of.row].payload().slice(0, of.bytes);
            copy_short(buffers.output.slice(block as usize * of.bytes, of.bytes), from);
        }
        peer.take(of.row, of.bytes, of.operation);
    }
}

/// Puts what is longer than a line, or scaled, into its slot.
#[inline(never)]
fn stage(out: &Outbox, from: Span<'_>, scaled_by: Option<&Reducer>) {
    let span = out.payload().slice(0, from.len());
    match scaled_by {
        _ if from.is_empty() => {}
        // Each rank has a scalar of its own.
        Some(reducer) => {
            reducer.fold(
                &[Target { span, store: Store::Cached }],
                &[Source { span: from, raw: true }],
                false,
            );
        }
        None => span.copy_from(from),
    }
}

/// One operation, as far as it has come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Underway {
    pub(super) messages: Messages,
    /// Of how many legs the message is sent, and of how many it is here. Long messages count each piece of each leg.
    pub(super) sent: usize,
    pub(super) here: usize,
    /// Bytes of the own block that are where they belong; counted where messages are long.
    pub(super) kept: usize,
}

impl Underway {
    pub(super) fn new(messages: Messages, sent: usize) -> Self {
        Underway { messages, sent, here: 0, kept: 0 }
    }

    /// Sends to all for whom there is a slot, up to the first for whom there is none. Whether all have been sent to.
    pub(super) fn send(
        &mut self,
        direct: &Direct,
        peers: &mut [Option<Peer>],
        reducer: &Reducer,
        buffers: &Buffers<'_>,
    ) -> bool {
        let scaled_by = direct.scales.then_some(reducer);
        while let Some(leg) = direct.legs.get(self.sent) {
            let peer = peer_of(peers, leg.peer);
            if !leg.send(scaled_by, self.messages, peer, buffers) {
                return false;
            }
            self.sent += 1;
        }
        true
    }

    /// Goes on as far as possible.
    ///
    /// # Errors
    /// A rank that sent a message of another operation.
    #[inline]
    pub(super) fn advance(
        &mut self,
        direct: &Direct,
        peers: &mut [Option<Peer>],
        reducer: &Reducer,
        buffers: &Buffers<'_>,
    ) -> Result<Progress, Amiss> {
        if self.messages.row == LONG {
            return self.advance_long(direct, peers, reducer, buffers);
        }
        let before = (self.sent, self.here);
        let stopped = |now| if now == before { Progress::Blocked } else { Progress::Moved };
        if !self.send(direct, peers, reducer, buffers) {
            return Ok(stopped((self.sent, self.here)));
        }
        while let Some(leg) = direct.legs.get(self.here) {
            let peer = peer_of(peers, leg.peer);
            match leg.look(self.messages, peer) {
                Arrival::Here => {}
                Arrival::Other => return Err(Amiss::Other(leg.peer)),
                Arrival::None => return Ok(stopped((self.sent, self.here))),
            }
            match direct.only_leg() {
                Some(leg) => direct.finish_pair(leg, self.messages, peer, reducer, buffers),
                None if direct.purpose != Use::Fold => leg.keep(direct.purpose, self.messages, peer, buffers),
                None => {}
            }
            self.here += 1;
        }
        match direct.only_leg() {
            Some(_) => {}
            None if direct.purpose == Use::Fold => direct.fold_all(self.messages, peers, reducer, buffers),
            None => direct.keep_own(self.messages, buffers),
        }
        Ok(Progress::Done)
    }
}

/// An operation of a task.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    pub(super) direct: Arc<Direct>,
    pub(super) reducer: Reducer,
    pub(crate) underway: Underway,
}

impl Exchange {
    /// The next operation of a board.
    pub(crate) fn begin(
        board: &mut Board,
        direct: Arc<Direct>,
        reducer: Reducer,
        bytes: usize,
        mark: u64,
    ) -> Self {
        board.operations += 1;
        let bytes = if direct.purpose == Use::Meet { 0 } else { bytes };
        let messages = Messages { bytes, row: row_of(bytes), mark, operation: board.operations };
        Exchange { direct, reducer, underway: Underway::new(messages, 0) }
    }

    /// Goes on as far as possible.
    ///
    /// # Errors
    /// A rank that sent a message of another operation.
    pub(crate) fn advance(&mut self, board: &mut Board, buffers: Buffers<'_>) -> Result<Progress, Amiss> {
        self.underway.advance(&self.direct, &mut board.peers, &self.reducer, &buffers)
    }

    /// Where it stands, if it goes in two hops.
    pub(crate) fn standing(&self) -> Option<Standing> {
        let is_hops = self.direct.two_hops && self.underway.messages.row == LONG;
        is_hops.then(|| self.underway.standing_hops(&self.direct))
    }

    /// The rank that it waits for, and for what.
    pub(crate) fn wanted(&self) -> Option<(Rank, Want)> {
        let (legs, Underway { sent, here, messages, .. }) = (&self.direct.legs, &self.underway);
        if messages.row == LONG {
            return self.underway.wanted_long(&self.direct);
        }
        let next = legs.get(*sent).map(|leg| (leg.peer, Want::Room));
        next.or_else(|| legs.get(*here).map(|leg| (leg.peer, Want::Data)))
    }
}
