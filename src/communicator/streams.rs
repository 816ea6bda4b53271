//! Calls that run in streams: driven by the caller until all are in their streams, then watched by the process.
//!
//! Invariant: the engines of all communicators are had before any call is entered, and each has its turn until nothing
//! of it is outside its stream; nothing here waits for one communicator alone. Absent: devices.

use std::sync::Arc;

use super::Core;
use super::core::{Owned, all_with_room};
use super::drive::{Driven, drive};
use crate::engine::watched::Watched;
use crate::engine::{Buffers, Memory, Progress, Request, Task, give_back};
use crate::ticket::Ticket;
use consort_control::membership::process::{Process, Unattended};
use consort_control::recorder::this_thread;
use consort_types::blocks::Blocks;
use consort_types::call::Call;
use consort_types::error::{Error, Result};
use std::time::Duration;

/// Makes what runs a call once its number is known; where the host moves data, with the memory for that.
pub(crate) type Make<'a> = Box<dyn FnOnce(&Request) -> Result<(Box<dyn Watched>, Memory)> + 'a>;

/// A call that has been checked, and what runs it.
pub(crate) struct Streamed<'a> {
    pub(crate) call: Call,
    pub(crate) blocks: Option<Blocks<'a>>,
    pub(crate) make: Make<'a>,
}

/// The calls of one communicator.
pub(crate) struct Batch<'a> {
    pub(crate) core: &'a Arc<Core>,
    pub(crate) process: &'a Arc<Process>,
    pub(crate) timeout: Duration,
    /// Whether what was started before and uses the same links must be over before the host moves data for these.
    pub(crate) in_turn: bool,
    pub(crate) calls: Vec<Streamed<'a>>,
}

/// A batch on its way into streams.
struct Member<'a> {
    core: &'a Arc<Core>,
    process: &'a Arc<Process>,
    in_turn: bool,
    owned: Owned<'a>,
    task: Option<Task>,
    memory: Vec<Memory>,
    ticket: Arc<Ticket>,
    /// Whether it is over, and not only in its streams.
    is_done: bool,
    result: Option<Result<()>>,
}

/// Returns when all calls are in their streams: tickets of their ends, one for each batch. `made` is called when no more
/// calls will be made.
///
/// # Errors
/// The first failure of a batch that could not be put into its stream; [`Error::ConcurrentUse`].
pub(crate) fn enqueue(batches: Vec<Batch<'_>>, made: impl FnOnce()) -> Result<Vec<Arc<Ticket>>> {
    batches.iter().for_each(|batch| batch.core.free_discarded());
    for batch in &batches {
        batch.core.check()?;
        batch.process.ensure_thread()?;
    }
    let wanted = batches.iter().map(|batch| (&**batch.core, batch.calls.len() as u64, batch.timeout));
    let owned = all_with_room(wanted)?;
    let Some(first) = batches.first() else { return Ok(Vec::new()) };
    let waiter = first.core.waiter();
    let members = batches.into_iter().zip(owned).map(|(batch, owned)| Some(Member::new(batch, owned)));
    let mut members =
        Members { tickets: Vec::with_capacity(members.len()), all: members.collect(), failed: None };
    made();
    drive(waiter, &mut members)?;
    members.failed.map_or(Ok(members.tickets), Err)
}

/// A call that `put` puts into its stream, and whose end nothing waits for.
///
/// # Errors
/// What `put` says, with which the communicator has failed; [`Error::ConcurrentUse`].
pub(crate) fn pass(core: &Arc<Core>, call: Call, put: impl FnOnce() -> Result<()>) -> Result<()> {
    core.free_discarded();
    let mut owned = core.with_room(None, 1, core.settings.timeout)?;
    // Of what is over meanwhile nothing has to be kept.
    core.advance_queue(&mut owned.engine);
    let request = owned.engine.enter(call, this_thread());
    let result = core.guarded(put);
    match &result {
        Ok(()) => owned.engine.leave_unwatched(&request),
        Err(error) => {
            owned.engine.leave_unmade(&request);
            core.group.fail(error.clone());
        }
    }
    drop(owned);
    core.let_go();
    result.map_err(|_| core.dumped(core.failure()))
}

/// The batches that are not in their streams yet, and what became of the others.
struct Members<'a> {
    all: Vec<Option<Member<'a>>>,
    tickets: Vec<Arc<Ticket>>,
    failed: Option<Error>,
}

impl Driven for Members<'_> {
    fn turn(&mut self) -> Result<Progress> {
        let mut moved = false;
        for place in &mut self.all {
            let Some(member) = place else { continue };
            moved |= member.result.is_none() && member.turn();
            if member.result.is_none() {
                continue;
            }
            // What is in its streams goes on by itself, whatever becomes of the others.
            let Some(member) = place.take() else { continue };
            let (core, ticket) = (member.core, member.ticket.clone());
            match member.leave() {
                Ok(()) => self.tickets.push(ticket),
                Err(error) => self.failed = self.failed.take().or(Some(core.dumped(error))),
            }
        }
        Ok(match (self.all.iter().any(Option::is_some), moved) {
            (false, _) => Progress::Done,
            (true, true) => Progress::Moved,
            (true, false) => Progress::Blocked,
        })
    }

    fn tend(&mut self, look: bool) {
        self.all.iter_mut().flatten().for_each(|member| member.tend(look));
    }
}

impl<'a> Member<'a> {
    fn new(batch: Batch<'a>, owned: Owned<'a>) -> Self {
        let core = batch.core;
        core.guarded(|| Self::begin(batch, owned))
    }

    /// Makes what runs the calls.
    fn begin(batch: Batch<'a>, mut owned: Owned<'a>) -> Self {
        let Batch { core, process, timeout, in_turn, calls } = batch;
        let engine = &mut *owned.engine;
        // Of what is over meanwhile nothing has to be kept.
        core.advance_queue(engine);
        let mut task = Task::default();
        task.prepare(timeout);
        let mut memory = Vec::with_capacity(calls.len());
        let ticket = Arc::new(Ticket::default());
        let mut failed = None;
        for Streamed { call, blocks, make } in calls {
            let request = engine.enter(call, this_thread());
            if call.count == 0 {
                engine.leave(&request);
                continue;
            }
            match make(&request) {
                Ok((watched, place)) => {
                    task.push_watched(request, blocks, watched);
                    memory.push(place);
                }
                Err(error) => {
                    core.group.fail(error);
                    failed = Some(Err(core.failure()));
                    break;
                }
            }
        }
        let result = failed.or_else(|| (memory.is_empty() || task.is_enqueued()).then_some(Ok(())));
        Member { core, process, in_turn, owned, task: Some(task), memory, ticket, is_done: false, result }
    }

    /// Goes on as far as it can; whether anything moved.
    fn turn(&mut self) -> bool {
        let Some(task) = &mut self.task else { return false };
        let engine = &mut *self.owned.engine;
        let mut moved = false;
        if self.in_turn && !task.is_enqueued() && engine.queued() > 0 {
            moved = self.core.guarded(|| self.core.advance_queue(engine)) == Progress::Moved;
            if engine.is_behind(task) {
                return moved;
            }
        }
        let turn = self.core.guarded(|| {
            let buffers: Vec<Buffers<'_>> = self.memory.iter().map(Memory::buffers).collect();
            engine.turn(task, &buffers)
        });
        match turn {
            Ok(progress) => {
                self.is_done = progress == Progress::Done;
                if self.is_done || task.is_enqueued() {
                    self.result = Some(Ok(()));
                }
                moved || progress != Progress::Blocked
            }
            Err(error) => {
                engine.leave_failed(task);
                self.result = Some(Err(error));
                true
            }
        }
    }

    fn tend(&mut self, look: bool) {
        if let (Some(task), None) = (&mut self.task, &self.result) {
            task.tend(&mut self.owned.engine, look);
        }
    }

    /// Leaves what is in its streams to the process.
    fn leave(mut self) -> Result<()> {
        let result = self.result.take().unwrap_or_else(|| Err(Error::internal("a call without an end")));
        let (task, memory) = (self.task.take(), std::mem::take(&mut self.memory));
        let Some(task) = task else { return result };
        if result.is_ok() && !self.is_done && !memory.is_empty() {
            self.owned.engine.enqueue(task, memory, self.ticket.clone());
            self.core.note_queued(&self.owned.engine);
            let is_on_devices = self.owned.engine.is_on_devices();
            let unattended: Arc<dyn Unattended> = self.core.clone();
            drop(self.owned);
            self.core.let_go();
            let (shared, unattended) = (&self.process.shared, Arc::downgrade(&unattended));
            if is_on_devices {
                shared.watch_over(unattended)
            } else {
                shared.look_after(unattended)
            }
            return Ok(());
        }
        drop(self.owned);
        self.core.let_go();
        give_back(task, memory);
        self.ticket.finish(result.clone());
        result
    }
}
