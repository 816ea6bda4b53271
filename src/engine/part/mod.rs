//! One request of a task on its way.
//!
//! ```text
//!        a message, where memory is shared             ┌─► Link ─┐
//!      ┌───────────────────────────────────────► Letter ◄─┴────────┘ ─────────────────────────► Done
//!      │ short, or worth a meeting
//! Find ┼──────────────────────────────► Meet ┬──────────────────────────────► Exchange ───────► Done
//!      │                                     ├─► Mapped ┬─ declined, short ─► Exchange
//!      │                    without mailboxes│          ├─ declined ─► [Link ─►] Run
//!      │ any other                           ▼          └─────────────────────────────────────► Done
//!      └─────────────────────────────► [Link ─►] Run ─────────────────────────────────────────► Done
//!
//! A part in a stream: Entered ─► [Ready ─► Find … Done ─►] Enqueued ─► Done
//! ```
//!
//! Invariant: a part goes through its phases in order, and never waits in one. A phase carries what it needs: the choice
//! for the call is asked for once, and carried on.

mod local;
mod planned;
mod standing;

use std::sync::Arc;
use std::time::{Duration, Instant};

use consort_algorithms::Block;

use super::bound::Bound;
use super::discarded;
use super::executor::{Executor, Progress};
use super::lent::Lent;
use super::links::{Links, Overdue};
use super::packets::{Exchange, Packets, letters};
use super::task::Request;
use super::trouble::{Fault, Trouble};
use super::watched::{State, Watched};
use super::{Buffers, Engine};
use consort_types::blocks::Blocks;
use consort_types::error::Error;
use local::{Exchanging, Letter, Mapped, Meet};
use planned::{Linking, Running};

/// A request with the state of its execution. Kept when it is over, so that its tables are reused.
pub(super) struct Part {
    request: Request,
    /// The part before it that uses the same links and must be over.
    pub(super) after: Option<usize>,
    /// Whether its end has been recorded.
    left: bool,
    phase: Phase,
    /// The plan that it has run.
    ran: Option<Arc<Bound>>,
    executor: Executor,
    lent: Lent,
    /// The blocks of a call whose blocks differ; empty for other calls.
    blocks: Vec<Block>,
    /// The operation in a stream; `None` where the host runs the request.
    stream: Option<StreamOrdered>,
}

/// A stream-ordered operation.
struct StreamOrdered {
    operation: Box<dyn Watched>,
    state: State,
    /// Whether the host moves its data now, in the phases of the part.
    host_moves: bool,
    /// Whether the device was made to let the operation go, with nothing done.
    let_go: bool,
}

#[derive(Default)]
enum Phase {
    #[default]
    Find,
    /// Ranks make their mailboxes for eager messages, or find that they have none.
    Meet(Meet),
    /// Eager messages go over the mailboxes.
    Exchange(Exchanging),
    /// An eager message goes from one rank to another.
    Letter(Letter),
    /// Ranks offer their buffers; the operation is zero-copy if all buffers are mapped, and goes on otherwise if not.
    Mapped(Mapped),
    /// The links of the plan, or of the message, are made.
    Link(Linking),
    /// The plan runs, once mailboxes at peers that have slots of another length are empty.
    Run(Running),
    Done,
}

/// The result of a phase's turn.
#[expect(clippy::large_enum_variant, reason = "as of a phase")]
enum Turn {
    /// The part goes on with this phase.
    Next(Phase),
    /// The part is over. No `Next(Phase::Done)`, as a phase's data take long to move.
    Over,
    Stays(Progress),
}

/// What the phases of a part work on.
struct Context<'a> {
    request: &'a Request,
    engine: &'a mut Engine,
    executor: &'a mut Executor,
    lent: &'a mut Lent,
    blocks: &'a [Block],
    buffers: Buffers<'a>,
}

type TurnResult = std::result::Result<Turn, Fault>;

impl Context<'_> {
    /// Whether the call is a message to or from a rank whose memory is reached.
    #[inline]
    fn is_letter(&self) -> bool {
        let call = &self.request.call;
        letters::are_for(call) && self.engine.links.is_mapped(&self.engine.group, call.root)
    }

    /// The phase that runs a call which is no letter.
    fn find(&mut self) -> TurnResult {
        let choice = self.engine.operations.compile(self.request)?.choice;
        if choice.packets || choice.meets {
            return Ok(Turn::Next(Phase::Meet(Meet::new(choice))));
        }
        self.find_plan(choice, None)
    }
}

impl Part {
    /// A request, which runs once part `after` is over.
    pub(super) fn new(request: Request, blocks: Option<Blocks<'_>>, after: Option<usize>) -> Self {
        let (phase, executor, lent) = (Phase::default(), Executor::default(), Lent::default());
        let (ran, blocks_of, stream) = (None, Vec::new(), None);
        let mut part =
            Part { request, after, left: false, phase, ran, executor, lent, blocks: blocks_of, stream };
        part.prepare(request, blocks, after);
        part
    }

    /// Makes the part ready for another request.
    pub(super) fn prepare(&mut self, request: Request, blocks: Option<Blocks<'_>>, after: Option<usize>) {
        self.request = request;
        self.after = after;
        self.left = false;
        self.phase = Phase::Find;
        self.ran = None;
        self.lent.forget();
        self.stream = None;
        self.blocks.clear();
        if let Some(blocks) = blocks {
            self.blocks.extend(blocks.bytes(request.call.data_type.size()));
        }
    }

    /// The request runs in a stream.
    pub(super) fn watch(&mut self, operation: Box<dyn Watched>) {
        discarded::begins(operation.device());
        let state = operation.begins();
        self.stream = Some(StreamOrdered { operation, state, host_moves: false, let_go: false });
    }

    /// The fast path has begun the request's exchange.
    pub(super) fn adopt(&mut self, exchange: Exchange) {
        self.phase = Phase::Exchange(Exchanging::new(exchange));
    }

    /// The fast path has moved `done` bytes of the request's message.
    pub(super) fn adopt_message(&mut self, done: usize) {
        self.phase = Phase::Letter(Letter { done, wanted: None });
    }

    /// Whether the request is in its stream, so that the call may return.
    pub(super) fn is_enqueued(&self) -> bool {
        self.stream.as_ref().is_none_or(|stream| stream.state > State::Ready)
    }

    /// The communicator has failed: what waits on a device goes on to its end.
    pub(super) fn release(&mut self) {
        if let Some(stream) = &mut self.stream {
            // An operation that ends after this may have been let go, with nothing done.
            stream.let_go |= !stream.operation.is_over();
            stream.operation.give_up();
        }
    }

    /// Whether the request runs in a stream.
    pub(super) fn is_watched(&self) -> bool {
        self.stream.is_some()
    }

    /// The number of the device in whose stream the request runs, if it does.
    pub(super) fn device(&self) -> Option<usize> {
        self.stream.as_ref().map(|stream| stream.operation.device())
    }

    /// Whether a device alone moves the request's data.
    pub(super) fn is_on_device(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| !stream.operation.uses_links())
    }

    /// Whether no device touches memory for the request any more.
    pub(super) fn is_quiet(&self) -> bool {
        self.stream.as_ref().is_none_or(|stream| stream.operation.is_over())
    }

    /// The stream that has the request, unless the host moves its data now.
    fn away(&self) -> Option<&StreamOrdered> {
        self.stream.as_ref().filter(|stream| !stream.host_moves)
    }

    /// The request.
    pub(super) fn asked(&self) -> &Request {
        &self.request
    }

    /// The request, unless its end has been recorded.
    pub(super) fn open(&self) -> Option<&Request> {
        (!self.left).then_some(&self.request)
    }

    /// A fault, with the request that met it where that matters.
    pub(super) fn trouble(&self, fault: Fault) -> Trouble {
        Trouble::of(&self.request, fault)
    }

    /// Records once that the request finished.
    pub(super) fn leave(&mut self, engine: &Engine) {
        if let Some(request) = self.open() {
            engine.leave(request);
            self.left = true;
        }
    }

    pub(super) fn is_done(&self) -> bool {
        matches!(self.phase, Phase::Done)
    }

    /// Whether the request may have moved bytes.
    pub(super) fn has_begun(&self) -> bool {
        self.is_watched() || !matches!(self.phase, Phase::Find)
    }

    /// As [`Executor::limit_turns`].
    pub(super) fn limit_turns(&mut self, steps_max: u32) {
        self.executor.limit_turns(steps_max);
    }

    /// Looks a few times, as cheaply as can be, at the one counter that the plan waits for.
    #[inline]
    pub(super) fn glance(&self) {
        if let Phase::Run(running) = &self.phase {
            running.glance(&self.executor);
        }
    }

    /// A peer that a connection has been on its way to for longer than `limit`.
    pub(super) fn connecting_for(
        &self,
        links: &mut Links,
        packets: &Packets,
        now: Instant,
        limit: Duration,
    ) -> Option<Overdue> {
        match &self.phase {
            Phase::Link(linking) => links.overdue(&linking.numbers, now, limit),
            Phase::Meet(_) => links.overdue(packets.links(), now, limit),
            _ => None,
        }
    }

    /// See [`Task::withdraw`](super::Task::withdraw).
    pub(super) fn withdraw(&mut self, engine: &mut Engine, at_last: bool) -> bool {
        match &mut self.phase {
            Phase::Mapped(mapped) => mapped.withdraw(engine, at_last),
            Phase::Run(_) => self.lent.withdraw(&mut engine.links),
            _ => true,
        }
    }

    /// See [`Task::disown`](super::Task::disown).
    pub(super) fn disown(&mut self) {
        if let Phase::Mapped(mapped) = &mut self.phase {
            mapped.disown();
        }
        self.lent.forget();
    }

    /// Whether all that it signalled is on its way, once it is over. What goes through memory always is.
    pub(super) fn is_flushed(&self, links: &Links) -> bool {
        self.ran.as_ref().is_none_or(|bound| bound.is_flushed(links))
    }

    /// Whether a source that it waits for has been given back.
    pub(super) fn has_back(&self, links: &Links) -> bool {
        self.lent.has_come(links)
    }

    /// Goes on as far as possible.
    pub(super) fn advance(
        &mut self,
        engine: &mut Engine,
        buffers: Buffers<'_>,
    ) -> std::result::Result<Progress, Fault> {
        let Part { request, phase, ran, executor, lent, blocks, stream, .. } = self;
        loop {
            if let Some(stream) = stream.as_mut().filter(|stream| !stream.host_moves) {
                let before = stream.state;
                match stream.look()? {
                    State::Done => {
                        *phase = Phase::Done;
                        return Ok(Progress::Done);
                    }
                    State::Ready if before != State::Ready => stream.host_moves = true,
                    state if state != before => return Ok(Progress::Moved),
                    _ => return Ok(Progress::Blocked),
                }
            }
            let mut context = Context { request, engine, executor, lent, blocks, buffers };
            let turn = match phase {
                // A call of no elements moves nothing, whatever other ranks call.
                Phase::Find if request.call.count == 0 => Turn::Over,
                Phase::Find if context.is_letter() => {
                    *phase = Phase::Letter(Letter::default());
                    continue;
                }
                Phase::Find => context.find()?,
                Phase::Meet(meet) => meet.turn(&mut context)?,
                // These two are looked at often, and a turn with room for the next phase takes long to move.
                Phase::Exchange(exchanging) => match exchanging.turn(&mut context)? {
                    Progress::Done => Turn::Over,
                    progress => return Ok(progress),
                },
                Phase::Letter(letter) => match letter.turn(&mut context)? {
                    Some(Progress::Done) => Turn::Over,
                    Some(progress) => return Ok(progress),
                    None => Turn::Next(Phase::Link(Linking::of_messages(engine, request.call.root)?)),
                },
                Phase::Mapped(mapped) => mapped.turn(&mut context)?,
                Phase::Link(linking) => linking.turn(&mut context)?,
                Phase::Run(running) => running.turn(&mut context)?,
                Phase::Done => match stream {
                    None => return Ok(Progress::Done),
                    Some(stream) => {
                        *phase = Phase::Find;
                        stream.host_moves = false;
                        // The stream has the rest of the operation.
                        stream.operation.moved()?;
                        continue;
                    }
                },
            };
            match turn {
                Turn::Over => {
                    if let Phase::Run(running) = phase
                        && engine.links.needs_progress()
                    {
                        *ran = Some(running.bound.clone());
                    }
                    if matches!(phase, Phase::Mapped(_)) {
                        end(phase, Phase::Done, engine);
                    } else {
                        *phase = Phase::Done;
                    }
                }
                Turn::Next(next) => end(phase, next, engine),
                Turn::Stays(progress) => return Ok(progress),
            }
        }
    }
}

/// Ends a phase, whose tables are kept, and goes on with the next.
fn end(phase: &mut Phase, next: Phase, engine: &mut Engine) {
    if let Phase::Mapped(mapped) = std::mem::replace(phase, next) {
        mapped.end(engine);
    }
}

impl StreamOrdered {
    /// The state of the operation, once it was polled.
    fn look(&mut self) -> std::result::Result<State, Fault> {
        if self.let_go {
            return Err(Error::internal("an operation that was let go").into());
        }
        self.state = self.operation.poll()?;
        Ok(self.state)
    }
}
