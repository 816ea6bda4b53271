//! The shortest of all calls: one that is repeated between two ranks, each of which sends the other one short message at
//! most.
//!
//! It is what [`at_once`](super::at_once) does for any number of ranks, with nothing left in its way: what the call needs
//! was worked out when it ran first, and what the peer waits for is sent before anything is written down.
//!
//! Invariant: as there: what runs here is what a task would run, and what was begun here goes on there.

use std::time::Duration;

use consort_kernels::Reducer;
use consort_memory::Arrival;

use super::at_once::{AtOnce, Known, LOOKS_WITHOUT_CLOCK};
use super::exchange::Exchange;
use super::{LONG, Packets, Peer, row_of};
use crate::Rank;
use crate::call::Call;
use crate::call::digest_of;
use crate::eager::{Moves, Use};
use crate::engine::{Buffers, Engine, Request};
use crate::recorder::this_thread;

/// The moves of an exchange with the only other rank: where in the buffers what is sent and kept begins.
#[derive(Clone, Copy)]
pub(super) struct Duo {
    peer: Rank,
    row: usize,
    purpose: Use,
    sends: Option<usize>,
    /// Where it is kept.
    receives: Option<usize>,
    own: Option<(usize, usize)>,
}

/// An operation under way.
#[derive(Clone, Copy)]
struct Under {
    operation: u64,
    sequence: u64,
    /// Of this operation, and what came before it.
    mark: u64,
    before: u64,
}

impl Duo {
    /// None of more ranks, or of messages of which copies are most of the work, or where what is folded is scaled or
    /// divided.
    pub(super) fn of(moves: Moves, reducer: &Reducer, bytes: usize, me: Rank, size: u32) -> Option<Self> {
        let (purpose, row) = (moves.purpose(), row_of(bytes));
        if size != 2 || row >= LONG || purpose == Use::Fold && reducer.scales_or_divides() {
            return None;
        }
        let peer = 1 - me;
        Some(Duo {
            peer,
            row,
            purpose,
            sends: moves.sends(peer).map(|block| block as usize * bytes),
            receives: moves.receives(peer).then(|| moves.keeps(peer) as usize * bytes),
            own: moves.own().map(|block| (block as usize * bytes, moves.keeps(me) as usize * bytes)),
        })
    }

    /// Whether the message, if there is one, had a slot.
    #[inline(always)]
    fn send(&self, peer: &mut Peer, operation: u64, mark: u64, buffers: &Buffers<'_>, bytes: usize) -> bool {
        let Some(at) = self.sends else { return true };
        if !peer.has_room(self.row) {
            return false;
        }
        let out = &mut peer.out[self.row];
        if self.row == 0 {
            out.put_line(buffers.input.slice(at, bytes));
        } else {
            out.payload().slice(0, bytes).copy_from(buffers.input.slice(at, bytes));
        }
        out.send(operation, mark);
        peer.unanswered = 0;
        true
    }

    /// Folds what is here, or keeps it.
    #[inline(always)]
    fn finish(
        &self,
        reducer: &Reducer,
        peer: &mut Peer,
        operation: u64,
        buffers: &Buffers<'_>,
        bytes: usize,
    ) {
        let Buffers { input, output } = *buffers;
        match self.purpose {
            Use::Fold => {
                if let Some((at, _)) = self.own {
                    let (own, theirs) =
                        (input.slice(at, bytes), peer.inboxes[self.row].payload().slice(0, bytes));
                    let (left, right) = if self.peer == 1 { (own, theirs) } else { (theirs, own) };
                    reducer.fold_two(output.slice(0, bytes), left, right);
                }
            }
            Use::Keep => {
                if let Some(at) = self.receives {
                    output.slice(at, bytes).copy_from(peer.inboxes[self.row].payload().slice(0, bytes));
                }
                if let Some((from, to)) = self.own {
                    output.slice(to, bytes).copy_from(input.slice(from, bytes));
                }
            }
            Use::Meet => {}
        }
        if self.receives.is_some() {
            peer.take(self.row, operation);
        }
    }
}

impl Engine {
    /// Runs the call that ran last, if this is its like and it is one between two ranks, looking for the other's message
    /// at most `looks` times.
    #[inline(always)]
    pub(crate) fn duo(
        &mut self,
        call: &Call,
        timeout: Duration,
        buffers: &Buffers<'_>,
        looks: u32,
    ) -> AtOnce {
        let Engine { packets: Packets::Up(board), group, sequence, history, queue, .. } = self else {
            return AtOnce::No;
        };
        let Some(known) = board.memory.latest() else { return AtOnce::No };
        let Some(duo) = &known.duo else { return AtOnce::No };
        if !known.is(call) || !known.fits(buffers) || !queue.is_empty() {
            return AtOnce::No;
        }
        let Some(Some(peer)) = board.peers.get_mut(duo.peer as usize) else { return AtOnce::No };
        *sequence += 1;
        board.operations += 1;
        let (operation, bytes, before) = (board.operations, known.bytes, *history);
        let mark = digest_of(known.packed, call.count as u64, *sequence, before);
        *history = mark;
        let under = Under { operation, sequence: *sequence, mark, before };
        let has_sent = duo.send(peer, operation, mark, buffers, bytes);
        let is_here = duo.receives.is_none() || peer.inboxes[duo.row].look(mark) == Arrival::Here;
        if !(has_sent && is_here) {
            return self.duo_waits(under, has_sent, timeout, buffers, looks);
        }
        let recorder = &group.recorder;
        let now = recorder.ticks();
        duo.finish(&known.reducer, peer, operation, buffers, bytes);
        recorder.pass(under.sequence, (known.packed, call.count as u64), false, this_thread(), now);
        peer.bell.ring();
        AtOnce::Done
    }

    /// The rest of it, where the other's message is not there yet, or there is no slot for this rank's.
    #[inline(never)]
    fn duo_waits(
        &mut self,
        under: Under,
        has_sent: bool,
        timeout: Duration,
        buffers: &Buffers<'_>,
        looks: u32,
    ) -> AtOnce {
        let Engine { packets: Packets::Up(board), group, .. } = self else { return AtOnce::No };
        let store = board.store();
        let me = board.me;
        let Some(known @ Known { duo: Some(duo), .. }) = board.memory.latest() else { return AtOnce::No };
        let Some(Some(peer)) = board.peers.get_mut(duo.peer as usize) else { return AtOnce::No };
        let Under { operation, sequence, mark, before } = under;
        let recorder = &group.recorder;
        let mut now = recorder.ticks();
        let what = (known.packed, known.call.count as u64);
        let record = recorder.enter_at(sequence, what, false, this_thread(), now);
        let mut looked = 0;
        while has_sent && looked < looks {
            match peer.inboxes[duo.row].look(mark) {
                Arrival::Here => {
                    duo.finish(&known.reducer, peer, operation, buffers, known.bytes);
                    let ended = if duo.row == 0 { now } else { recorder.ticks() };
                    recorder.finish_at(record, sequence, false, ended);
                    peer.bell.ring();
                    return AtOnce::Done;
                }
                Arrival::None => looked += 1,
                Arrival::Other => break,
            }
            // Here it delays nobody: when the message comes, the clock was read some looks ago.
            if looked % LOOKS_WITHOUT_CLOCK == 0 {
                now = recorder.ticks();
            }
        }
        let mut exchange = Exchange::at(known.moves, known.bytes, mark, operation, store);
        exchange.has_sent_up_to((!has_sent).then_some(duo.peer), me, 2);
        let request = Request { call: known.call, sequence, history: before, record };
        let reducer = known.reducer;
        AtOnce::Begun(self.task_of(timeout, request, exchange, reducer))
    }
}
