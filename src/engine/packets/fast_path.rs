//! The fast path: calls that are over before it would pay to make a task of them.
//!
//! Invariant: what runs here is what a task would run, with the same number, record and messages: ranks may differ in
//! whether they come this way, and what was begun here goes on there. A call that is not compiled, whose buffers do not
//! fit, or that finds others queued takes the general path, which checks everything. Absent: waiting for longer than it
//! takes a peer that comes at the same time.

use std::time::Duration;

use consort_memory::{Arrival, Row, Span, SpanMut};

use super::exchange::{Exchange, Messages, Underway};
use super::line::{self, How, Line};
use super::pieces::Amiss;
use super::{Packets, peer_of};
use crate::Rank;
use crate::engine::task::as_send;
use crate::engine::{Buffers, Engine, Progress, Request, Task};
use crate::wait::Policy;
use consort_control::recorder::{Recorder, this_thread};
use consort_types::call::{Call, Kind, digest_of, seed_of};

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
    /// Whether a plain call is compiled to something that runs without a task; the next [`Engine::at_once`] finds it then.
    pub(crate) fn recalls(&mut self, call: &Call) -> bool {
        let packed = call.packed();
        let latest = |engine: &Self| {
            engine.operations.latest().is_some_and(|known| known.last.is_at_once(packed, call.count))
        };
        // An empty call moves nothing, whatever call of one element its class has.
        call.count != 0 && call.is_plain() && !latest(self) && self.operations.recall(call) && latest(self)
    }

    /// Runs a plain call, packed, of `count` elements, that is like the one found last or the one before that.
    #[inline(always)]
    pub(crate) fn at_once(
        &mut self,
        packed: u64,
        count: usize,
        timeout: &Duration,
        input: Span<'_>,
        output: SpanMut<'_>,
    ) -> AtOnce {
        let Engine {
            packets: Packets::Up(board), operations, group, sequence, history, queue, changing, ..
        } = self
        else {
            return AtOnce::No;
        };
        let compiled = match operations.latest() {
            Some(latest) if latest.last.is_at_once(packed, count) => latest,
            _ => match operations.take_turns(packed, count) {
                Some(earlier) => earlier,
                None => return AtOnce::No,
            },
        };
        let last = &compiled.last;
        if last.misfits(input, output) || !queue.is_empty() || *sequence >= changing.gate {
            return AtOnce::No;
        }
        // Asked last, as each call asks once.
        if compiled.choice.meets && !board.skips_meeting(compiled.shape_number()) {
            return AtOnce::No;
        }
        *sequence += 1;
        board.operations += 1;
        let (before, operation) = (*history, board.operations);
        let mark = digest_of(last.seed, *sequence, before);
        *history = mark;
        match last.line.how {
            How::Fold => {}
            How::Other => return self.at_once_pair(before, timeout, input, output),
            _ => return self.at_once_otherwise(before, timeout, input, output),
        }
        let peer = peer_of(&mut board.peers, last.line.peer);
        if !peer.send_line(input, operation, mark) {
            return self.at_once_waits(before, 0, timeout, input, output);
        }
        let now = group.recorder.ticks();
        if !line::fold(peer, operation, mark, &compiled.reducer, input, output) {
            return self.at_once_waits(before, 1, timeout, input, output);
        }
        group.recorder.pass(*sequence, (packed, count as u64), false, this_thread(), now);
        peer.bell.ring();
        AtOnce::Done
    }

    /// As [`Engine::at_once`], of a call that was begun and is no fold of lines.
    #[inline(never)]
    fn at_once_otherwise(
        &mut self,
        before: u64,
        timeout: &Duration,
        input: Span<'_>,
        output: SpanMut<'_>,
    ) -> AtOnce {
        let Engine { packets: Packets::Up(board), operations, group, sequence, history, .. } = self else {
            return AtOnce::No;
        };
        // They were there a moment ago.
        let Some(compiled) = operations.latest() else { return AtOnce::No };
        let last = &compiled.last;
        let (Line { how, peer }, operation, mark) = (last.line, board.operations, *history);
        let peer = peer_of(&mut board.peers, peer);
        let from = if how == How::Meet { Span::empty() } else { input };
        if how != How::Receive && !peer.send_line(from, operation, mark) {
            return self.at_once_waits(before, 0, timeout, input, output);
        }
        let now = group.recorder.ticks();
        if !line::finish(how, peer, operation, mark, input, output) {
            return self.at_once_waits(before, 1, timeout, input, output);
        }
        group.recorder.pass(*sequence, last.what(), false, this_thread(), now);
        peer.bell.ring();
        AtOnce::Done
    }

    /// As [`Engine::at_once`], of a call that was begun and whose messages are longer than a line, or parts of buffers, or of
    /// more than two ranks.
    #[inline(never)]
    fn at_once_pair(
        &mut self,
        before: u64,
        timeout: &Duration,
        input: Span<'_>,
        output: SpanMut<'_>,
    ) -> AtOnce {
        let messages = self.messages();
        let Engine { packets: Packets::Up(board), operations, group, sequence, .. } = self else {
            return AtOnce::No;
        };
        let (Some(compiled), Some(messages)) = (operations.latest(), messages) else { return AtOnce::No };
        let (last, Some(direct)) = (&compiled.last, &compiled.programs.exchange) else { return AtOnce::No };
        let Some(leg) = &last.leg else { return self.at_once_waits(before, 0, timeout, input, output) };
        let peer = peer_of(&mut board.peers, leg.peer);
        let buffers = Buffers { input, output };
        let has_sent = leg.send(None, messages, peer, &buffers);
        if !has_sent || leg.look(messages, peer) != Arrival::Here {
            return self.at_once_waits(before, usize::from(has_sent), timeout, input, output);
        }
        let now = group.recorder.ticks();
        direct.finish_pair(leg, messages, peer, &compiled.reducer, &buffers);
        group.recorder.pass(*sequence, last.what(), false, this_thread(), now);
        peer.bell.ring();
        AtOnce::Done
    }

    /// The messages of the operation that [`Engine::at_once`] has begun, a call like the one found last.
    #[inline(always)]
    fn messages(&self) -> Option<Messages> {
        let Engine { packets: Packets::Up(board), operations, history, .. } = self else { return None };
        let last = &operations.latest()?.last;
        let (bytes, row, operation) = (last.bytes, last.row, board.operations);
        Some(Messages { bytes, row, mark: *history, operation })
    }

    /// The rest of it, where some message is not here yet, or there is no slot for one of this rank's; and all of it among
    /// more than two ranks. `sent` messages have been sent; `before` is the history before it.
    #[inline(never)]
    fn at_once_waits(
        &mut self,
        before: u64,
        sent: usize,
        timeout: &Duration,
        input: Span<'_>,
        output: SpanMut<'_>,
    ) -> AtOnce {
        let messages = self.messages();
        let Engine { packets: Packets::Up(board), operations, group, sequence, policy, .. } = self else {
            return AtOnce::No;
        };
        // They were there a moment ago.
        let (Some(compiled), Some(messages)) = (operations.latest(), messages) else { return AtOnce::No };
        let (last, Some(direct)) = (&compiled.last, &compiled.programs.exchange) else { return AtOnce::No };
        let (recorder, row, buffers) = (&group.recorder, last.row, Buffers { input, output });
        let mut underway = Underway::new(messages, sent);
        if row == 0 {
            // What the others wait for comes before the record; longer messages take long enough to be recorded from their start.
            underway.send(direct, &mut board.peers, &compiled.reducer, &buffers);
        }
        let entered = recorder.ticks();
        let record = recorder.enter_at(*sequence, last.what(), false, this_thread(), entered);
        let (Messages { mark, operation, .. }, reducer) = (underway.messages, &compiled.reducer);
        let go_on = |rings: bool| {
            if rings {
                board.ring();
            }
            if last.line.how == How::Other || underway.sent == 0 {
                return underway.advance(direct, &mut board.peers, reducer, &buffers);
            }
            // A message of another operation is found by the task.
            let peer = peer_of(&mut board.peers, last.line.peer);
            let is_over = match last.line.how {
                How::Fold => line::fold(peer, operation, mark, reducer, input, output),
                how => line::finish(how, peer, operation, mark, input, output),
            };
            Ok(if is_over { Progress::Done } else { Progress::Blocked })
        };
        if let Some(now) = look(recorder, *policy, entered, go_on) {
            let ended = if row == 0 { now } else { recorder.ticks() };
            recorder.finish_at(record, *sequence, false, ended);
            board.ring();
            return AtOnce::Done;
        }
        let exchange = Exchange { direct: direct.clone(), reducer: compiled.reducer, underway };
        let request = Request { call: last.call, sequence: *sequence, history: before, record };
        let mut task = self.take_task();
        task.prepare(*timeout);
        task.add(request, None).adopt(exchange);
        AtOnce::Begun(task)
    }
}

/// Goes on with an operation until it is over, or moves nothing in as many looks, and offers of the core behind them, as
/// `policy` says, or meets a rank in another operation; `go_on` rings first where it is given `true`, which it is before the core is
/// offered: when it was over, by a clock that was last read at `now`, and then as
/// often as delays nothing.
#[inline(always)]
fn look<E>(
    recorder: &Recorder,
    policy: Policy,
    mut now: u64,
    mut go_on: impl FnMut(bool) -> Result<Progress, E>,
) -> Option<u64> {
    let (looks, mut looked, mut offers) = (policy.looks(), 0, policy.offers());
    let mut rings = false;
    loop {
        match go_on(std::mem::take(&mut rings)) {
            Ok(Progress::Done) => return Some(now),
            Ok(Progress::Moved) => looked = 1,
            Ok(Progress::Blocked) => looked += 1,
            Err(_) => return None,
        }
        if looked >= looks {
            if offers == 0 {
                return None;
            }
            if offers == policy.offers() {
                // What was sent is all that some rank sleeps for.
                rings = true;
                offers -= 1;
                continue;
            }
            offers -= 1;
            std::thread::yield_now();
            now = recorder.ticks();
        } else if looked % LOOKS_WITHOUT_CLOCK == 0 {
            // When what is looked for comes, the clock was read some looks ago.
            now = recorder.ticks();
        }
    }
}

impl Engine {
    /// Runs a message to or from a rank to which there are slots, looking for it, or for a free slot, as often as for a
    /// collective. It is of whole elements, and the rank another one that is there.
    #[inline(always)]
    pub(crate) fn message_at_once(
        &mut self,
        call: &Call,
        timeout: &Duration,
        buffers: Buffers<'_>,
    ) -> AtOnce {
        let Engine { links, group, queue, pairs, .. } = self;
        let Some(letters) = links.letters(call.root).filter(|_| queue.is_empty() && call.count != 0) else {
            return AtOnce::No;
        };
        let passing = Passing::begin(call, group.rank, pairs);
        // What the other one waits for comes before the record.
        if !letters.pass_line(call.kind, passing.mark, buffers) {
            return self.message_waits(call, passing, timeout, buffers);
        }
        let recorder = &group.recorder;
        recorder.pass(passing.number, passing.what, true, this_thread(), recorder.ticks());
        letters.bell().ring();
        AtOnce::Done
    }

    /// The rest of it, where it is not here yet, or there is no slot; and all of one that is longer than a line.
    #[inline(never)]
    fn message_waits(
        &mut self,
        call: &Call,
        Passing { number, mark, what }: Passing,
        timeout: &Duration,
        buffers: Buffers<'_>,
    ) -> AtOnce {
        let Engine { links, group, policy, .. } = self;
        let recorder = &group.recorder;
        // They were there a moment ago.
        let Some(letters) = links.letters(call.root) else { return AtOnce::No };
        let mut done = 0;
        let mut go_on = |rings: bool| {
            if rings {
                letters.bell().ring();
            }
            letters.go_on(call.kind, mark, &buffers, &mut done)
        };
        if matches!(go_on(false), Ok(Progress::Done)) {
            recorder.pass(number, what, true, this_thread(), recorder.ticks());
            letters.bell().ring();
            return AtOnce::Done;
        }
        let entered = recorder.ticks();
        let record = recorder.enter_at(number, what, true, this_thread(), entered);
        if let Some(now) = look(recorder, *policy, entered, go_on) {
            let is_short = call.count * call.data_type.size() <= Row::LINE_PAYLOAD_BYTES;
            let ended = if is_short { now } else { recorder.ticks() };
            recorder.finish_at(record, number, true, ended);
            letters.bell().ring();
            return AtOnce::Done;
        }
        let request = Request { call: *call, sequence: number, history: 0, record };
        let mut task = self.take_task();
        task.prepare(*timeout);
        task.add(request, None).adopt_message(done);
        AtOnce::Begun(task)
    }

    /// Runs two messages side by side, one to a rank and one from a rank, that take a line each, as
    /// [`Engine::message_at_once`] runs one.
    pub(crate) fn exchange_at_once(
        &mut self,
        [send, receive]: [&Call; 2],
        timeout: &Duration,
        buffers: Buffers<'_>,
    ) -> AtOnce {
        let Engine { links, group, queue, pairs, policy, .. } = self;
        let is_line = |bytes: usize| (1..=Row::LINE_PAYLOAD_BYTES).contains(&bytes);
        if !queue.is_empty()
            || !is_line(buffers.input.len())
            || !is_line(buffers.output.len())
            || links.letters(send.root).is_none()
            || links.letters(receive.root).is_none()
        {
            return AtOnce::No;
        }
        let both = [send, receive];
        let passing = both.map(|call| Passing::begin(call, group.rank, pairs));
        let mut is_over = [false; 2];
        let mut go_on = |_: bool| {
            let before = is_over;
            for ((call, passing), is_over) in both.iter().zip(&passing).zip(&mut is_over) {
                if !*is_over && let Some(letters) = links.letters(call.root) {
                    let mut done = 0;
                    *is_over = letters.go_on(call.kind, passing.mark, &buffers, &mut done)? == Progress::Done;
                    if *is_over {
                        // The other rank may sleep for this message alone.
                        letters.bell().ring();
                    }
                }
            }
            Ok::<_, Amiss>(match is_over {
                [true, true] => Progress::Done,
                now if now == before => Progress::Blocked,
                _ => Progress::Moved,
            })
        };
        let recorder = &group.recorder;
        let first = go_on(false);
        let entered = recorder.ticks();
        if matches!(first, Ok(Progress::Done)) {
            for Passing { number, what, .. } in passing {
                recorder.pass(number, what, true, this_thread(), entered);
            }
            return AtOnce::Done;
        }
        let records = passing.map(|Passing { number, what, .. }| {
            recorder.enter_at(number, what, true, this_thread(), entered)
        });
        if first.is_ok()
            && let Some(now) = look(recorder, *policy, entered, go_on)
        {
            for (record, Passing { number, .. }) in records.into_iter().zip(passing) {
                recorder.finish_at(record, number, true, now);
            }
            return AtOnce::Done;
        }
        let request = |at: usize| Request {
            call: *both[at],
            sequence: passing[at].number,
            history: 0,
            record: records[at],
        };
        // A line is all of its message.
        let done = [buffers.input.len(), buffers.output.len()];
        let mut task = self.take_task();
        task.prepare(*timeout);
        for at in 0..2 {
            task.add(request(at), None).adopt_message(if is_over[at] { done[at] } else { 0 });
        }
        AtOnce::Begun(task)
    }
}

/// A message that was begun.
#[derive(Clone, Copy)]
struct Passing {
    number: u64,
    mark: u64,
    /// What is recorded of it.
    what: (u64, u64),
}

impl Passing {
    /// The next message of rank `me`; `pairs` are the numbers of those so far.
    #[inline(always)]
    fn begin(call: &Call, me: Rank, pairs: &mut [(u64, u64)]) -> Self {
        let (to, from) = &mut pairs[call.root as usize];
        let number = if call.kind == Kind::Send { to } else { from };
        *number += 1;
        let (number, count) = (*number, call.count as u64);
        let mark = digest_of(seed_of(as_send(call, me).packed(), count), number, 0);
        Passing { number, mark, what: (call.packed(), count) }
    }
}
