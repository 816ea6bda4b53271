//! Operations that were started: who drives them, and how threads wait for them.
//!
//! ```text
//!  a thread that waits: turn ── blocked ──► prepared ──► asleep ── woken, or its limit ──► turn
//!                        └─ the engine is taken, or the rank has no sockets ──► rest ── woken, or its limit ──► turn
//! ```
//!
//! Invariant: a thread that ends another's operation, or leaves while operations are queued, wakes those that sleep. The
//! control thread drives what no thread waits for. Absent: the queue, which is the engine's.

use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use consort_memory::sync::Ordering;

use super::{Core, Leave};
use crate::engine::{Engine, Progress, Start};
use crate::ticket::Ticket;
use crate::wait::{Look, Waiter};
use consort_control::membership::process::{Advance, Process, Unattended};
use consort_types::error::{Error, Result};

impl Core {
    /// Starts calls that go on by themselves; the ticket is of all their ends.
    pub(crate) fn start(
        self: &Arc<Self>,
        process: &Process,
        calls: Vec<Start<'_>>,
        timeout: Duration,
    ) -> Result<Arc<Ticket>> {
        calls.iter().try_for_each(|start| self.planning.admit(&start.call))?;
        process.ensure_thread()?;
        let collectives = calls.iter().filter(|start| !start.call.kind.is_message()).count() as u64;
        let ticket = {
            let engine = &mut *self.with_room(None, collectives, timeout)?.engine;
            let (ticket, _) = engine.start(calls, timeout);
            self.note_queued(engine);
            ticket
        };
        if !ticket.is_done() {
            let unattended: Arc<dyn Unattended> = self.clone();
            self.shared.look_after(Arc::downgrade(&unattended));
        }
        Ok(ticket)
    }

    /// Waits until a started operation is over, driving it meanwhile.
    pub(crate) fn wait_for(&self, ticket: &Ticket) -> Result<()> {
        if ticket.is_done() {
            return ticket.result().map_err(|error| self.dumped(error));
        }
        if self.is_forked() {
            // The parent's operations go on without this process, whose copies of their buffers are free.
            if let Some(mut engine) = self.engine.try_acquire() {
                engine.disown_queue();
            }
            return Err(Error::Forked);
        }
        self.waiters.fetch_add(1, Ordering::Relaxed);
        let _leave = Leave(&self.waiters);
        let mut waiter = self.policy.waiter();
        while !ticket.is_done() {
            self.advance_or_pause(&mut waiter, || ticket.is_done());
        }
        self.let_go();
        ticket.result().map_err(|error| self.dumped(error))
    }

    /// This thread takes no more turns of what is queued. Another may sleep by doorbells that a turn here has disarmed: it
    /// looks, and arms them again.
    pub(in crate::communicator) fn let_go(&self) {
        if self.queued.load(Ordering::Relaxed) != 0 {
            self.readiness.wake();
        }
    }

    /// A turn of what is queued, unless another thread has it; a pause, in which the engine is free, where nothing moved.
    /// What this thread waits for may be over then, by another thread's turn.
    pub(super) fn advance_or_pause(&self, waiter: &mut Waiter, is_over: impl Fn() -> bool) {
        let turn = self.engine.try_acquire().map(|mut engine| {
            let progress = self.advance_queue(&mut engine);
            (progress, engine.is_woken(), engine.look())
        });
        match turn {
            Some((Progress::Moved, ..)) => waiter.moved(),
            Some((Progress::Blocked, true, look)) => {
                waiter.pause_by(look, |limit| _ = self.sleep(limit, is_over));
            }
            _ => {
                waiter.pause_by(Look::Load, |limit| _ = self.readiness.rest_unless(limit, is_over));
            }
        }
    }

    /// Sleeps while all queued operations are blocked, without the engine, unless what this thread waits for is over.
    /// Whether something woke it.
    pub(in crate::communicator) fn sleep(&self, limit: Duration, is_over: impl FnOnce() -> bool) -> bool {
        // Another thread that has it may let it go without a turn to come.
        let is_prepared = self.engine.try_acquire().is_some_and(|mut engine| engine.prepare_sleep());
        is_prepared && self.readiness.sleep_unless(limit, is_over)
    }

    pub(in crate::communicator) fn advance_queue(&self, engine: &mut Engine) -> Progress {
        let before = engine.queued();
        // A defect leaves no operation behind without an end, whichever thread drives.
        let turn = catch_unwind(AssertUnwindSafe(|| engine.advance_queue()));
        let progress = turn.unwrap_or_else(|_| {
            let error = Error::internal("a panic in a turn of what was started");
            self.group.fail(error.clone());
            engine.fail_queue(&error);
            Progress::Done
        });
        self.is_woken.store(progress == Progress::Blocked && engine.is_woken(), Ordering::Relaxed);
        // Before it is known that none is queued: this work never looks idle in between.
        self.rests.store(engine.has_rest(), Ordering::Relaxed);
        self.queued.store(engine.queued(), Ordering::Relaxed);
        if engine.queued() != before {
            // An operation is over that another thread may wait for, asleep.
            self.readiness.wake_sleepers();
        }
        progress
    }
}

impl Unattended for Core {
    fn is_idle(&self) -> bool {
        // A failed communicator takes no change up.
        let has_changes = self.group.has_changes() && !self.group.has_failed();
        let has_rest = self.rests.load(Ordering::Relaxed) && !self.group.has_failed();
        self.queued.load(Ordering::Relaxed) == 0 && !has_rest && !has_changes
    }

    fn wake(&self) -> Option<BorrowedFd<'_>> {
        // Another thread drives the engine: it takes what comes.
        let is_busy = self.waiters.load(Ordering::Relaxed) != 0 || self.in_call.load(Ordering::Relaxed);
        if is_busy || !self.is_woken.load(Ordering::Relaxed) {
            return None;
        }
        if self.engine.try_acquire().is_some_and(|mut engine| !engine.prepare_sleep()) {
            // Armed doorbells demand one more look.
            self.readiness.wake();
        }
        self.readiness.descriptor()
    }

    fn advance(&self) -> Advance {
        if self.is_idle() {
            return Advance::Idle;
        }
        let blocked = match self.is_on_devices.load(Ordering::Relaxed) {
            true => Advance::Watched,
            false => Advance::Blocked,
        };
        if self.waiters.load(Ordering::Relaxed) != 0 {
            return blocked;
        }
        let Some(mut engine) = self.engine.try_acquire() else { return blocked };
        self.readiness.clear();
        // A defect must not take the control thread with it: it answers for other communicators too.
        let turn = catch_unwind(AssertUnwindSafe(|| {
            if self.group.has_changes() {
                engine.attend();
            }
            self.advance_queue(&mut engine)
        }));
        let progress = turn.unwrap_or_else(|_| {
            let error = Error::internal("a panic in an operation that no thread waited for");
            self.group.fail(error.clone());
            engine.fail_queue(&error);
            self.queued.store(0, Ordering::Relaxed);
            self.readiness.wake_sleepers();
            Progress::Done
        });
        let has_rest = engine.has_rest();
        drop(engine);
        if self.waiters.load(Ordering::Relaxed) != 0 {
            // One that found the engine taken drives from now on.
            self.readiness.wake_sleepers();
        }
        match progress {
            Progress::Done if has_rest => Advance::Blocked,
            Progress::Done => Advance::Idle,
            Progress::Moved => Advance::Moved,
            Progress::Blocked => blocked,
        }
    }
}
