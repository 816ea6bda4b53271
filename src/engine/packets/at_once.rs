//! Calls that are over before it would pay to make a task of them.
//!
//! Invariant: what runs here is what a task would run, with the same number, record and messages: ranks may differ in
//! whether they come this way, and what was begun here goes on there. A call that is not remembered, that does not fit
//! what is, or that finds others queued goes the long way, which checks everything. Absent: waiting for longer than it
//! takes a peer that comes at the same time.

use std::time::Duration;

use consort_kernels::Reducer;
use consort_memory::{Arrival, Row, Span, SpanMut};

use super::duo::Duo;
use super::exchange::Exchange;
use super::{Board, Peer, letters};
use crate::Rank;
use crate::call::digest_of;
use crate::call::{Call, Kind};
use crate::eager::{Moves, UNASKED_BYTES_MAX, Use};
use crate::engine::{Buffers, Engine, Progress, Request, Task};
use crate::recorder::this_thread;

/// How many calls are remembered. A power of two.
const REMEMBERED: usize = 16;
/// So many looks take some times as long as reading the clock: what took no more ended when it was entered, as good as, and
/// who waits for longer reads the clock as often.
pub(super) const LOOKS_WITHOUT_CLOCK: u32 = 32;

/// A call that has run, with what followed from it.
pub(super) struct Known {
    pub(super) packed: u64,
    pub(super) call: Call,
    pub(super) moves: Moves,
    pub(super) reducer: Reducer,
    /// Bytes of a block.
    pub(super) bytes: usize,
    /// Bytes of the buffers; 0 where this rank has none.
    input_bytes: usize,
    output_bytes: usize,
    /// Where the output lies from the input in the in-place form, if there is one.
    in_place: Option<usize>,
    /// How its messages go, where each is one line and folding is of two at a time.
    lines: Option<Lines>,
    /// The same between two ranks, where at most one short message goes each way.
    pub(super) duo: Option<Duo>,
}

/// The moves of an exchange of lines.
pub(super) struct Lines {
    /// To whom, and which bytes of the input, in the order of sending.
    pub(super) sends: Box<[(Rank, usize)]>,
    /// From whom, and where in the output it is kept, in the order of ranks.
    pub(super) receives: Box<[(Rank, usize)]>,
    /// Where the own contribution is in the input, and where in the output it is kept.
    pub(super) own: Option<(usize, usize)>,
}

/// The calls that a communicator remembers, each at one place only.
#[derive(Default)]
pub(super) struct Memory {
    known: Vec<Option<Box<Known>>>,
    /// The place of the one that was found last.
    last: usize,
}

#[inline]
fn place(packed: u64, count: usize) -> usize {
    let mixed = (packed ^ count as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as usize % REMEMBERED
}

impl Memory {
    /// Remembers a call that has run.
    pub(super) fn keep(&mut self, call: &Call, reducer: &Reducer, me: Rank, size: u32) {
        if call.scalar.is_some() || call.algorithm.is_some() || call.counts != 0 {
            return;
        }
        if call.count * call.data_type.size() > UNASKED_BYTES_MAX {
            return;
        }
        let packed = call.descriptor().packed();
        let moves = Moves::new(call.kind, me, call.root);
        let bytes = if moves.purpose() == Use::Meet { 0 } else { call.count * call.data_type.size() };
        let lines = Lines::of(moves, reducer, bytes, me, size);
        let duo = Duo::of(moves, reducer, bytes, me, size);
        let known = Known {
            duo,
            packed,
            call: *call,
            moves,
            reducer: *reducer,
            bytes,
            input_bytes: call.input_bytes(me, size),
            output_bytes: call.output_bytes(me, size),
            in_place: call.in_place(me),
            lines,
        };
        self.known.resize_with(REMEMBERED, || None);
        self.known[place(packed, call.count)] = Some(Box::new(known));
    }

    /// Whether it is remembered already.
    pub(super) fn has(&mut self, call: &Call) -> bool {
        self.find(call).is_some()
    }

    /// The one that was found last.
    #[inline(always)]
    pub(super) fn latest(&self) -> Option<&Known> {
        self.known.get(self.last)?.as_deref()
    }

    #[inline]
    fn find(&mut self, call: &Call) -> Option<&Known> {
        let is_last =
            self.known.get(self.last).and_then(Option::as_deref).is_some_and(|known| known.is(call));
        if !is_last {
            self.last = place(call.packed(), call.count);
        }
        self.known.get(self.last)?.as_deref().filter(|known| is_last || known.is(call))
    }

    /// Bytes of the table.
    pub(super) fn memory_bytes(&self) -> usize {
        let places = self.known.capacity() * size_of::<Option<Box<Known>>>();
        let lines = |known: &Known| {
            known.lines.as_ref().map_or(0, |lines| size_of_val(&*lines.sends) + size_of_val(&*lines.receives))
        };
        places + self.known.iter().flatten().map(|known| size_of::<Known>() + lines(known)).sum::<usize>()
    }
}

impl Known {
    /// Whether a call is like it: one that names no algorithm, scales nothing and has equal blocks.
    #[inline(always)]
    pub(super) fn is(&self, call: &Call) -> bool {
        let Call { kind, data_type, op, root, count, .. } = self.call;
        count == call.count
            && call.scalar.is_none()
            && call.algorithm.is_none()
            && call.counts == 0
            && kind == call.kind
            && data_type == call.data_type
            && op == call.op
            && root == call.root
    }

    /// Whether the buffers are what the call needs, as [`Call::check`] finds it.
    #[inline(always)]
    pub(super) fn fits(&self, buffers: &Buffers<'_>) -> bool {
        let (input, output) = (buffers.input, buffers.output);
        if self.input_bytes != 0 && input.len() != self.input_bytes
            || self.output_bytes != 0 && output.len() != self.output_bytes
        {
            return false;
        }
        let (from, to) = (input.as_ptr() as usize, output.as_mut_ptr() as usize);
        self.input_bytes == 0
            || self.output_bytes == 0
            || self.in_place == Some(to.wrapping_sub(from))
            || from + self.input_bytes <= to
            || to + self.output_bytes <= from
    }
}

impl Lines {
    /// Of an exchange of lines; none of one of longer messages, of which copies are most of the work, or of one that
    /// scales or divides.
    fn of(moves: Moves, reducer: &Reducer, bytes: usize, me: Rank, size: u32) -> Option<Self> {
        let folds = moves.purpose() == Use::Fold;
        if bytes > Row::LINE_PAYLOAD_BYTES || folds && reducer.scales_or_divides() {
            return None;
        }
        let others = (1..size).map(|step| (me + step) % size);
        let sends = others.filter_map(|peer| Some((peer, moves.sends(peer)? as usize * bytes))).collect();
        let senders = (0..size).filter(|peer| *peer != me && moves.receives(*peer));
        let receives = senders.map(|peer| (peer, moves.keeps(peer) as usize * bytes)).collect();
        let own = moves.own().map(|block| (block as usize * bytes, moves.keeps(me) as usize * bytes));
        Some(Lines { sends, receives, own })
    }
}

/// How far an exchange of lines came.
#[derive(Clone, Copy)]
struct Reached {
    sent: usize,
    here: usize,
    looked: u32,
}

/// What became of a call.
pub(crate) enum AtOnce {
    /// It was not begun: it must go the long way.
    No,
    /// It is over.
    Done,
    /// It was begun, and takes longer: the rest of it.
    Begun(Box<Task>),
}

impl Engine {
    /// Runs a call that is remembered, looking for the others' messages at most `looks` times.
    #[inline]
    pub(crate) fn at_once(
        &mut self,
        call: &Call,
        timeout: Duration,
        buffers: Buffers<'_>,
        looks: u32,
    ) -> AtOnce {
        let Engine { packets, group, sequence, history, queue, .. } = self;
        let Some(board) = packets.board() else { return AtOnce::No };
        let store = board.store();
        let Board { me, peers, operations, memory, .. } = board;
        if !queue.is_empty() {
            return AtOnce::No;
        }
        let Some(known) = memory.find(call).filter(|known| known.fits(&buffers)) else {
            return AtOnce::No;
        };
        if known.duo.is_some() {
            return self.duo(call, timeout, &buffers, looks);
        }
        let packed = known.packed;
        *sequence += 1;
        *operations += 1;
        let before = std::mem::replace(history, digest_of(packed, call.count as u64, *sequence, *history));
        let mut exchange = Exchange::at(known.moves, known.bytes, *history, *operations, store);
        let recorder = &group.recorder;
        let mut reached = Reached { sent: 0, here: 0, looked: 0 };
        if let Some(lines) = &known.lines {
            // The others may be waiting: what they wait for comes before the record.
            reached.sent = lines.send(peers, *operations, *history, buffers.input, known.bytes);
        }
        let entered = recorder.ticks();
        let record = recorder.enter_at(*sequence, (packed, call.count as u64), false, this_thread(), entered);
        let is_over = match &known.lines {
            Some(lines) => {
                reached.sent == lines.sends.len() && lines.receive(peers, *history, looks, &mut reached) && {
                    lines.finish(known, peers, *operations, buffers);
                    true
                }
            }
            None => loop {
                match exchange.advance_on(*me, peers, &known.reducer, buffers) {
                    Ok(Progress::Done) => break true,
                    Ok(_) if reached.looked < looks => reached.looked += 1,
                    _ => break false,
                }
            },
        };
        if is_over {
            let is_line = known.lines.is_some();
            let is_quick = is_line && reached.looked <= LOOKS_WITHOUT_CLOCK;
            let ended = if is_quick { entered } else { recorder.ticks() };
            recorder.finish_at(record, *sequence, false, ended);
            if !is_line {
                board.note(&exchange, Some(ended.saturating_sub(entered)));
            }
            board.ring();
            return AtOnce::Done;
        }
        if let Some(lines) = &known.lines {
            let to = lines.sends.get(reached.sent).map(|(peer, _)| *peer);
            exchange.has_sent_up_to(to, *me, peers.len() as u32);
        }
        let request = Request { call: known.call, sequence: *sequence, history: before, record };
        let reducer = known.reducer;
        AtOnce::Begun(self.task_of(timeout, request, exchange, reducer))
    }

    /// What was begun goes on as a task.
    #[cold]
    pub(super) fn task_of(
        &mut self,
        timeout: Duration,
        request: Request,
        exchange: Exchange,
        reducer: Reducer,
    ) -> Box<Task> {
        let mut task = self.take_task();
        task.prepare(timeout);
        task.push_begun(request, exchange, reducer);
        task
    }
}

/// A message under way.
#[derive(Clone, Copy)]
struct Letter {
    number: u64,
    mark: u64,
    /// Bytes that have gone.
    done: usize,
}

impl Letter {
    /// Goes on with it.
    #[inline(always)]
    fn step(
        &mut self,
        letters: &mut letters::Letters,
        kind: Kind,
        buffers: &Buffers<'_>,
    ) -> Result<Progress, letters::Differs> {
        match kind {
            Kind::Send => Ok(letters.send(self.mark, buffers.input, &mut self.done)),
            _ => letters.receive(self.mark, buffers.output, &mut self.done),
        }
    }
}

impl Engine {
    /// Runs a message to or from a rank to which there are slots, looking for it, or for a free slot, at most
    /// `looks` times. It is of whole elements, and the rank another one that is there.
    #[inline(always)]
    pub(crate) fn message_at_once(
        &mut self,
        call: &Call,
        timeout: Duration,
        buffers: &Buffers<'_>,
        looks: u32,
    ) -> AtOnce {
        let Engine { links, group, queue, pairs, .. } = self;
        let Some(letters) = links.letters(call.root).filter(|_| queue.is_empty() && call.count != 0) else {
            return AtOnce::No;
        };
        let (to, from) = &mut pairs[call.root as usize];
        let (number, sender) = if call.kind == Kind::Send { (to, group.rank) } else { (from, call.root) };
        *number += 1;
        let (number, count) = (*number, call.count as u64);
        let mark = digest_of(letter_packed(call, sender), count, number, 0);
        let mut letter = Letter { number, mark, done: 0 };
        // What the other one waits for comes before the record.
        let progress = letter.step(letters, call.kind, buffers);
        if !matches!(progress, Ok(Progress::Done)) {
            return self.message_waits(call, letter, timeout, buffers, looks);
        }
        let recorder = &group.recorder;
        recorder.pass(number, (call.packed(), count), true, this_thread(), recorder.ticks());
        letters.bell().ring();
        AtOnce::Done
    }

    /// The rest of it, where it is not here yet, or not all of it, or there is no slot.
    #[inline(never)]
    fn message_waits(
        &mut self,
        call: &Call,
        mut letter: Letter,
        timeout: Duration,
        buffers: &Buffers<'_>,
        looks: u32,
    ) -> AtOnce {
        let Engine { links, group, .. } = self;
        // They were there a moment ago.
        let Some(letters) = links.letters(call.root) else { return AtOnce::No };
        let (kind, number) = (call.kind, letter.number);
        let recorder = &group.recorder;
        let mut now = recorder.ticks();
        let what = (call.packed(), call.count as u64);
        let record = recorder.enter_at(number, what, true, this_thread(), now);
        let is_short = call.count * call.data_type.size() <= Row::LINE_PAYLOAD_BYTES;
        let mut looked = 0;
        while looked < looks {
            match letter.step(letters, kind, buffers) {
                Ok(Progress::Done) => {
                    let ended = if is_short { now } else { recorder.ticks() };
                    recorder.finish_at(record, number, true, ended);
                    letters.bell().ring();
                    return AtOnce::Done;
                }
                Ok(Progress::Moved) => looked = 1,
                Ok(Progress::Blocked) => looked += 1,
                Err(letters::Differs) => break,
            }
            // Here it delays nobody: when the message comes, the clock was read some looks ago.
            if looked % LOOKS_WITHOUT_CLOCK == 0 {
                now = recorder.ticks();
            }
        }
        let request = Request { call: *call, sequence: number, history: 0, record };
        let mut task = self.take_task();
        task.prepare(timeout);
        task.push_message(request, letter.done);
        AtOnce::Begun(task)
    }
}

/// The packed form that a send and the receive that matches it have in common; `sender` is who sends.
#[inline]
fn letter_packed(call: &Call, sender: Rank) -> u64 {
    Call { kind: Kind::Send, root: sender, ..*call }.packed()
}

impl Lines {
    /// Sends to everybody for whom there is a slot, up to the first for whom there is none; how many those are.
    #[inline]
    fn send(
        &self,
        peers: &mut [Option<Peer>],
        operation: u64,
        mark: u64,
        input: Span<'_>,
        bytes: usize,
    ) -> usize {
        for (sent, (to, at)) in self.sends.iter().enumerate() {
            let Some(Some(peer)) = peers.get_mut(*to as usize) else { return sent };
            if !peer.has_room(0) {
                return sent;
            }
            peer.out[0].put_line(input.slice(*at, bytes));
            peer.out[0].send(operation, mark);
            peer.unanswered = 0;
        }
        self.sends.len()
    }

    /// Looks for everybody's message. Whether all are here.
    #[inline]
    fn receive(&self, peers: &mut [Option<Peer>], mark: u64, looks: u32, reached: &mut Reached) -> bool {
        for (from, _) in self.receives.iter().skip(reached.here) {
            let Some(Some(peer)) = peers.get(*from as usize) else { return false };
            loop {
                match peer.inboxes[0].look(mark) {
                    Arrival::Here => break,
                    Arrival::Other => return false,
                    Arrival::None if reached.looked >= looks => return false,
                    Arrival::None => reached.looked += 1,
                }
            }
        }
        true
    }

    /// Everything is here: folds it or keeps it.
    #[inline]
    fn finish(&self, known: &Known, peers: &mut [Option<Peer>], operation: u64, buffers: Buffers<'_>) {
        let Buffers { input, output } = buffers;
        let bytes = known.bytes;
        match (known.moves.purpose(), self.own) {
            (Use::Meet, _) => {}
            (Use::Keep, own) => {
                for (from, at) in &self.receives {
                    if let Some(Some(peer)) = peers.get(*from as usize) {
                        peer.inboxes[0].get_line(output.slice(*at, bytes));
                    }
                }
                if let Some((from, to)) = own {
                    output.slice(to, bytes).copy_from(input.slice(from, bytes));
                }
            }
            (Use::Fold, None) => {}
            (Use::Fold, Some((at, _))) => {
                let own = input.slice(at, bytes);
                let output = output.slice(0, bytes);
                fold_all(&known.reducer, peers, own, output);
            }
        }
        for (from, _) in &self.receives {
            if let Some(Some(peer)) = peers.get_mut(*from as usize) {
                peer.take(0, operation);
            }
        }
    }
}

/// Folds everybody's line in the order of ranks. The output may be the own contribution.
#[inline]
fn fold_all(reducer: &Reducer, peers: &[Option<Peer>], own: Span<'_>, output: SpanMut<'_>) {
    let bytes = own.len();
    let mut folded = [0u8; Row::LINE_PAYLOAD_BYTES];
    let folded = SpanMut::of(&mut folded).slice(0, bytes);
    for (rank, peer) in peers.iter().enumerate() {
        let next = match peer {
            Some(peer) => peer.inboxes[0].payload().slice(0, bytes),
            None => own,
        };
        if rank == 0 {
            folded.copy_from(next);
        } else {
            reducer.fold_two(folded, folded.read(), next);
        }
    }
    output.copy_from(folded.read());
}
