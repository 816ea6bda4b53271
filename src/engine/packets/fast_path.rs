//! The fast path: calls that are over before it would pay to make a task of them.
//!
//! Invariant: what runs here is what a task would run, with the same number, record and messages: ranks may differ in
//! whether they come this way, and what was begun here goes on there. A call that is not compiled, whose buffers do not
//! fit, or that finds others queued takes the general path, which checks everything. Absent: waiting for longer than it
//! takes a peer that comes at the same time.

use std::time::Duration;

use consort_memory::{Arrival, Row};

use super::Packets;
use super::exchange::{Exchange, Messages, Underway};
use crate::engine::part::Part;
use crate::engine::task::as_send;
use crate::engine::{Buffers, Engine, Progress, Request, Task};
use consort_control::recorder::{Recorder, this_thread};
use consort_types::call::digest_of;
use consort_types::call::{Call, Kind};

/// Looks that together take some times as long as reading the clock. A call that is over within as many ended when it was
/// entered, as good as; one that waits for longer reads the clock as often.
const LOOKS_WITHOUT_CLOCK: u32 = 32;

/// What became of a call.
pub(crate) enum AtOnce {
    /// It was not begun: it must take the general path.
    No,
    /// It is over.
    Done,
    /// It was begun, and takes longer: the rest of it.
    Begun(Box<Task>),
}

impl Engine {
    /// Whether a call is compiled to something that runs without a task; the next [`Engine::at_once`] finds it then.
    pub(crate) fn recalls(&mut self, call: &Call) -> bool {
        let latest =
            |engine: &Self| engine.operations.latest().is_some_and(|known| known.at_once(call).is_some());
        // An empty call moves nothing, whatever call of one element its class has.
        call.count != 0 && !latest(self) && self.operations.recall(call) && latest(self)
    }

    /// Runs a call that is like the one found last, looking for the others' messages at most `looks` times.
    #[inline(always)]
    pub(crate) fn at_once(
        &mut self,
        call: &Call,
        timeout: Duration,
        buffers: &Buffers<'_>,
        looks: u32,
    ) -> AtOnce {
        let Engine { packets: Packets::Up(board), operations, group, sequence, history, queue, .. } = self
        else {
            return AtOnce::No;
        };
        let Some(compiled) = operations.latest() else { return AtOnce::No };
        let Some(direct) = compiled.at_once(call) else { return AtOnce::No };
        if !compiled.fits(buffers) || !queue.is_empty() {
            return AtOnce::No;
        }
        // Asked last, as each call asks once.
        if compiled.meets() && !board.skips_meeting(compiled.shape_number()) {
            return AtOnce::No;
        }
        let last = &compiled.last;
        *sequence += 1;
        board.operations += 1;
        let (sequence, before) = (*sequence, *history);
        let (operation, count) = (board.operations, call.count as u64);
        let mark = digest_of(last.packed, count, sequence, before);
        *history = mark;
        let request = || Request { call: *call, sequence, history: before, record: 0 };
        let messages = Messages { bytes: last.bytes, row: last.row, mark, operation };
        let Some(leg) = &last.leg else {
            return self.at_once_waits(request(), Underway::new(messages, 0), timeout, buffers, looks);
        };
        let Some(Some(peer)) = board.peers.get_mut(leg.peer as usize) else {
            unreachable!("a board has all peers")
        };
        let has_sent = leg.send(None, messages, peer, buffers);
        if !has_sent || leg.look(messages, peer) != Arrival::Here {
            let underway = Underway::new(messages, usize::from(has_sent));
            return self.at_once_waits(request(), underway, timeout, buffers, looks);
        }
        let recorder = &group.recorder;
        let now = recorder.ticks();
        direct.finish_pair(leg, messages, peer, &compiled.reducer, buffers);
        recorder.pass(sequence, (last.packed, count), false, this_thread(), now);
        peer.bell.ring();
        AtOnce::Done
    }

    /// The rest of it, where some message is not here yet, or there is no slot for one of this rank's; and all of it among
    /// more than two ranks.
    #[inline(never)]
    fn at_once_waits(
        &mut self,
        mut request: Request,
        mut underway: Underway,
        timeout: Duration,
        buffers: &Buffers<'_>,
        looks: u32,
    ) -> AtOnce {
        let Engine { packets: Packets::Up(board), operations, group, .. } = self else { return AtOnce::No };
        // They were there a moment ago.
        let Some(compiled) = operations.latest() else { return AtOnce::No };
        let Some(direct) = &compiled.programs.exchange else { return AtOnce::No };
        let (recorder, row) = (&group.recorder, underway.messages.row);
        if row == 0 {
            // What the others wait for comes before the record; longer messages take long enough to be recorded from their start.
            underway.send(direct, &mut board.peers, &compiled.reducer, buffers);
        }
        let entered = recorder.ticks();
        let what = (compiled.last.packed, request.call.count as u64);
        request.record = recorder.enter_at(request.sequence, what, false, this_thread(), entered);
        let go_on = || underway.advance(direct, &mut board.peers, &compiled.reducer, buffers);
        if let Some(now) = look(recorder, looks, entered, go_on) {
            let ended = if row == 0 { now } else { recorder.ticks() };
            recorder.finish_at(request.record, request.sequence, false, ended);
            board.ring();
            return AtOnce::Done;
        }
        let exchange = Exchange { direct: direct.clone(), reducer: compiled.reducer, underway };
        self.begun(timeout, request, |part| part.adopt(exchange))
    }
}

impl Engine {
    /// The rest of a request that was begun.
    fn begun(&mut self, timeout: Duration, request: Request, adopt: impl FnOnce(&mut Part)) -> AtOnce {
        let mut task = self.take_task();
        task.prepare(timeout);
        adopt(task.add(request, None));
        AtOnce::Begun(task)
    }
}

/// Goes on with an operation until it is over, or moves nothing `looks` times in a row, or meets a rank in another operation:
/// when it was over, by a clock that was last read at `now`, and then as often as delays nothing.
#[inline(always)]
fn look<E>(
    recorder: &Recorder,
    looks: u32,
    mut now: u64,
    mut go_on: impl FnMut() -> Result<Progress, E>,
) -> Option<u64> {
    let mut looked = 0;
    while looked < looks {
        match go_on() {
            Ok(Progress::Done) => return Some(now),
            Ok(Progress::Moved) => looked = 1,
            Ok(Progress::Blocked) => looked += 1,
            Err(_) => return None,
        }
        // When what is looked for comes, the clock was read some looks ago.
        if looked % LOOKS_WITHOUT_CLOCK == 0 {
            now = recorder.ticks();
        }
    }
    None
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
        let number = if call.kind == Kind::Send { to } else { from };
        *number += 1;
        let (number, count) = (*number, call.count as u64);
        let (mark, mut done) = (digest_of(as_send(call, group.rank).packed(), count, number, 0), 0);
        // What the other one waits for comes before the record.
        let progress = letters.go_on(call.kind, mark, buffers, &mut done);
        if !matches!(progress, Ok(Progress::Done)) {
            let request = Request { call: *call, sequence: number, history: 0, record: 0 };
            return self.message_waits(request, mark, done, timeout, buffers, looks);
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
        mut request: Request,
        mark: u64,
        mut done: usize,
        timeout: Duration,
        buffers: &Buffers<'_>,
        looks: u32,
    ) -> AtOnce {
        let Engine { links, group, .. } = self;
        let (call, number, recorder) = (request.call, request.sequence, &group.recorder);
        // They were there a moment ago.
        let Some(letters) = links.letters(call.root) else { return AtOnce::No };
        let entered = recorder.ticks();
        let what = (call.packed(), call.count as u64);
        request.record = recorder.enter_at(number, what, true, this_thread(), entered);
        let go_on = || letters.go_on(call.kind, mark, buffers, &mut done);
        if let Some(now) = look(recorder, looks, entered, go_on) {
            let is_short = call.count * call.data_type.size() <= Row::LINE_PAYLOAD_BYTES;
            let ended = if is_short { now } else { recorder.ticks() };
            recorder.finish_at(request.record, number, true, ended);
            letters.bell().ring();
            return AtOnce::Done;
        }
        self.begun(timeout, request, |part| part.adopt_message(done))
    }
}
