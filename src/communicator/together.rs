//! Drives the calls of a group on all of its communicators, in one thread.
//!
//! Invariant: the engines of all communicators are had before any call is entered, and each has its turn as long as
//! one is not over; nothing here waits for one communicator alone. Taking the engines cannot deadlock: a thread that
//! meets another call in one of them gives up and says so.

use std::sync::Arc;
use std::time::{Duration, Instant};

use consort_memory::{Lender, Span, SpanMut, lend};

use super::core::{Owned, all_with_room};
use super::drive::{Driven, drive};
use super::{Communicator, Core};
use crate::engine::{Buffers, Progress, Task};
use crate::ticket::Ticket;
use consort_control::recorder::this_thread;
use consort_types::blocks::Blocks;
use consort_types::call::{Call, Kind};
use consort_types::error::{Error, Names, Result};

/// How long the other communicators of a group may go on when one has failed.
const GRACE: Duration = Duration::from_secs(1);

/// A call that has been checked.
#[derive(Clone, Copy)]
pub(super) struct Entry<'env> {
    pub(super) call: Call,
    /// Those of a call whose blocks differ.
    pub(super) blocks: Option<Blocks<'env>>,
    pub(super) buffers: Buffers<'env>,
}

/// The calls of a group on one communicator.
pub(super) struct Bundle<'env> {
    core: &'env Core,
    timeout: Duration,
    entries: Vec<Entry<'env>>,
    /// What the rank sends to itself and receives from itself.
    own: (Vec<Span<'env>>, Vec<SpanMut<'env>>),
}

impl<'env> Bundle<'env> {
    pub(super) fn new(comm: &'env Communicator, entry: Entry<'env>) -> Self {
        let core: &Core = comm.core();
        let mut bundle =
            Bundle { core, timeout: comm.timeout(), entries: Vec::new(), own: (Vec::new(), Vec::new()) };
        bundle.push(comm, entry);
        bundle
    }

    /// Whether it is of this communicator, whatever the view of it.
    pub(super) fn is_on(&self, comm: &Communicator) -> bool {
        std::ptr::eq(self.core, &**comm.core())
    }

    /// One more call; the shortest deadline counts.
    pub(super) fn push(&mut self, comm: &Communicator, entry: Entry<'env>) {
        self.timeout = self.timeout.min(comm.timeout());
        match entry.call.kind {
            Kind::Send if entry.call.root == comm.rank() => self.own.0.push(entry.buffers.input),
            Kind::Receive if entry.call.root == comm.rank() => self.own.1.push(entry.buffers.output),
            _ => self.entries.push(entry),
        }
    }

    fn copy_own(&self) {
        let (sent, received) = &self.own;
        sent.iter().zip(received).for_each(|(sent, received)| received.copy_from(*sent));
    }

    /// Whether what the rank sends to itself is what it receives.
    fn check_own(&self) -> Result<()> {
        let (sent, received) = &self.own;
        if sent.len() != received.len() {
            let (sent, received) = (sent.len(), received.len());
            return Err(Error::invalid(
                format!(
                    "group: {sent} messages from rank {0} to itself, and {received} received",
                    self.core.group.rank
                ),
                "pass both ends of such a message in the same group",
            ));
        }
        match sent.iter().zip(received).find(|(sent, received)| sent.len() != received.len()) {
            Some((sent, received)) => Err(Error::invalid(
                format!("group: {} bytes cannot be received into {}", sent.len(), received.len()),
                "a message of a rank to itself has one length",
            )),
            None => Ok(()),
        }
    }
}

/// A communicator's share under way.
struct Member<'a> {
    bundle: &'a Bundle<'a>,
    owned: Owned<'a>,
    buffers: Vec<Buffers<'a>>,
    /// None where the calls are queued, and when all is over.
    task: Option<Box<Task>>,
    /// Of the end of queued calls.
    ticket: Option<Arc<Ticket>>,
    result: Option<Result<()>>,
}

/// Runs all calls; the first error.
pub(super) fn run(bundles: &[Bundle<'_>]) -> Result<()> {
    bundles.iter().try_for_each(Bundle::check_own)?;
    let Some(first) = bundles.first() else { return Ok(()) };
    let owned = all_with_room(
        bundles.iter().map(|bundle| (bundle.core, bundle.entries.len() as u64, bundle.timeout)),
    )?;
    // Where calls were started before, those of the group take their places among them.
    match owned.iter().any(|owned| owned.engine.queued() > 0) {
        false => run_on(first, bundles, owned, None),
        true => lend(|lender| run_on(first, bundles, owned, Some(lender))),
    }
}

/// The same with all engines; what lends memory to calls in queues, where there are any.
fn run_on<'a, 'env>(
    first: &Bundle<'env>,
    bundles: &'a [Bundle<'env>],
    owned: Vec<Owned<'a>>,
    lender: Option<&Lender<'_, 'env>>,
) -> Result<()> {
    let member = |(bundle, owned): (_, _)| Member::new(bundle, owned, lender);
    let all = bundles.iter().zip(owned).map(member).collect();
    let mut members = Members { all, failed: None, patience: None };
    let driven = drive(first.core.waiter(), &mut members);
    // The engines are given back first.
    let Members { all, failed, .. } = members;
    drop(all);
    if lender.is_some() {
        bundles.iter().for_each(|bundle| bundle.core.let_go());
    }
    match failed {
        Some((core, error)) => Err(core.dumped(error)),
        None => driven,
    }
}

/// All communicators of a group, and the first of them that failed.
struct Members<'a> {
    all: Vec<Member<'a>>,
    failed: Option<(&'a Core, Error)>,
    /// When the others are ended too.
    patience: Option<Instant>,
}

impl Driven for Members<'_> {
    /// Gives each its turn until all are over.
    fn turn(&mut self) -> Result<Progress> {
        let (mut moved, mut over) = (false, true);
        for member in self.all.iter_mut().filter(|member| member.result.is_none()) {
            moved |= member.turn() != Progress::Blocked;
            match &member.result {
                Some(Err(error)) if self.failed.is_none() => {
                    self.failed = Some((member.bundle.core, error.clone()));
                }
                Some(_) => {}
                None => over = false,
            }
        }
        Ok(match (over, moved) {
            (true, _) => Progress::Done,
            (_, true) => Progress::Moved,
            (_, false) => Progress::Blocked,
        })
    }

    fn tend(&mut self, look: bool) {
        self.all.iter_mut().for_each(|member| member.tend(look));
        if let Some((core, error)) = self.failed.as_ref().filter(|_| look) {
            let now = core.group.clock().now();
            if now >= *self.patience.get_or_insert(now + GRACE) {
                self.all.iter().for_each(|member| member.abort(error));
            }
        }
    }
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        // A panic, in this communicator's turn or another's, leaves none with half an operation.
        if self.result.is_none() {
            self.bundle.core.fail_half_done();
            if self.ticket.is_some() {
                let engine = &mut *self.owned.engine;
                engine.fail_queue(&Error::internal("a panic in a turn of what was started"));
                self.bundle.core.note_queued(engine);
            }
        }
    }
}

impl<'a> Member<'a> {
    /// Calls that are queued are entered now.
    fn new<'env>(bundle: &'a Bundle<'env>, mut owned: Owned<'a>, lender: Option<&Lender<'_, 'env>>) -> Self
    where
        'env: 'a,
    {
        let buffers = bundle.entries.iter().map(|entry| entry.buffers).collect();
        let engine = &mut *owned.engine;
        let ticket = lender.filter(|_| engine.queued() > 0).map(|lender| {
            bundle.copy_own();
            bundle.core.start_lent(engine, lender, &bundle.entries, bundle.timeout).0
        });
        Member { bundle, owned, buffers, task: None, ticket, result: None }
    }

    /// Enters all calls.
    fn enter(&mut self) -> Box<Task> {
        self.bundle.copy_own();
        let engine = &mut *self.owned.engine;
        let mut task = engine.take_task();
        task.prepare(self.bundle.timeout);
        for Entry { call, blocks, .. } in &self.bundle.entries {
            task.push(engine.enter(*call, this_thread()), *blocks);
        }
        task
    }

    /// Goes on as far as it can.
    fn turn(&mut self) -> Progress {
        let core = self.bundle.core;
        if let Some(ticket) = &self.ticket {
            let progress = core.advance_queue(&mut self.owned.engine);
            if !ticket.is_done() {
                return progress;
            }
            self.result = Some(ticket.result());
            return Progress::Moved;
        }
        let mut task = match self.task.take() {
            Some(task) => task,
            None if core.group.has_failed() => {
                self.result = Some(Err(core.failure()));
                return Progress::Moved;
            }
            None => self.enter(),
        };
        let engine = &mut *self.owned.engine;
        let result = match engine.turn(&mut task, &self.buffers) {
            Ok(Progress::Done) => Ok(()),
            Ok(progress) => {
                self.task = Some(task);
                return progress;
            }
            Err(error) => {
                engine.leave_failed(&task);
                Err(error)
            }
        };
        engine.put_back(task);
        self.result = Some(result);
        Progress::Moved
    }

    /// After a turn: as [`Task::tend`].
    fn tend(&mut self, look: bool) {
        match &mut self.task {
            Some(task) => task.tend(&mut self.owned.engine, look),
            // Its part is over and others' is not, or not begun: no other thread answers for it meanwhile.
            None if self.bundle.core.group.has_changes() => self.owned.engine.attend(),
            None => {}
        }
    }

    /// Another communicator of the group has failed, and this one does not end.
    fn abort(&self, error: &Error) {
        if self.result.is_none() {
            let cause = error.text(&Names::NEUTRAL);
            self.bundle.core.abort(&format!("another communicator of the same group failed: {cause}"));
        }
    }
}
