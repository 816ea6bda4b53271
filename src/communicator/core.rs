//! The shared heart of a communicator: the thread that owns its progress, and how threads wait.

mod behind;
mod room;
mod started;

pub(super) use room::all_with_room;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use consort_memory::sync::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Exclusive, ExclusiveGuard, Ordering,
};
use consort_memory::{Span, SpanMut};

use super::drive::{Foreground, Queued, drive};
use super::routes::ProcessRoutes;
use super::together::Entry;
use crate::engine::discarded;
use crate::engine::readiness::Readiness;
use crate::engine::wires::WireRecord;
use crate::engine::{Buffers, Engine, Task};
use crate::planner::{Planner, Planning, Plannings};
use crate::wait::{Look, Policy, Waiter};
use consort_control::membership::group::Group;
use consort_control::membership::process::{Shared, Unattended};
use consort_control::recorder::this_thread;
use consort_control::trace::Dumps;
use consort_settings::options::Settings;
use consort_types::blocks::Blocks;
use consort_types::call::{Call, Kind};
use consort_types::error::{Error, Result};

/// Shared by the communicator, its works and the control thread.
pub(crate) struct Core {
    pub(crate) group: Arc<Group>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) settings: Settings,
    /// What calls were planned for at first, and on devices and in messages always; and what they are planned for by now.
    pub(crate) planning: Arc<Planning>,
    pub(crate) plannings: Arc<Plannings>,
    engine: Exclusive<Engine>,
    /// Whether the owner of the engine is a data call that a thread waits for.
    in_call: AtomicBool,
    /// Threads that want the engine, so that the control thread stays away.
    waiters: AtomicU32,
    /// Operations in the engine's queue.
    queued: AtomicUsize,
    /// Whether there are none, and bytes of such have still to be moved.
    rests: AtomicBool,
    /// Whether devices alone move them.
    is_on_devices: AtomicBool,
    /// The numbers of the devices on which it is.
    devices: Mutex<Vec<usize>>,
    /// Whether readiness wakes the queue, which is blocked.
    is_woken: AtomicBool,
    /// The descriptors that wake the queue.
    readiness: Arc<Readiness>,
    /// The number of aborts by this rank's program.
    aborts: AtomicU64,
    pub(super) policy: Policy,
    dumps: Dumps,
}

/// Resets a flag or a count when a scope is left, also by panic.
struct Leave<'a>(&'a AtomicU32);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An operation that a panic leaves half done must not be followed by another.
pub(super) struct FailOnPanic<'a>(&'a Core);

impl FailOnPanic<'_> {
    #[inline(always)]
    pub(super) fn disarm(self) {
        std::mem::forget(self);
    }
}

impl Drop for FailOnPanic<'_> {
    fn drop(&mut self) {
        self.0.fail_half_done();
    }
}

/// The engine while a data call has it. The flag goes down before the engine is given back.
pub(super) struct Owned<'a> {
    _in_call: InCall<'a>,
    pub(super) engine: ExclusiveGuard<'a, Engine>,
}

struct InCall<'a>(&'a Core);

impl Drop for InCall<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.in_call.store(false, Ordering::Relaxed);
    }
}

impl Core {
    pub(crate) fn new(group: Arc<Group>, shared: Arc<Shared>, settings: Settings) -> Arc<Self> {
        let routes = ProcessRoutes::new(shared.clone(), &settings);
        let planner = Planner::of_process();
        let engine = Engine::new(group.clone(), Box::new(routes), settings.clone(), planner);
        let plannings = engine.plannings.clone();
        let planning = plannings.nth(0).clone();
        group.know(planning.clone());
        let policy = Policy::of(&group);
        let core = Arc::new(Core {
            dumps: Dumps::new(&settings, group.clock()),
            group,
            shared,
            settings,
            planning,
            plannings,
            readiness: engine.links.readiness().clone(),
            engine: Exclusive::new(engine),
            in_call: AtomicBool::new(false),
            waiters: AtomicU32::new(0),
            queued: AtomicUsize::new(0),
            rests: AtomicBool::new(false),
            is_on_devices: AtomicBool::new(false),
            devices: Mutex::default(),
            is_woken: AtomicBool::new(false),
            aborts: AtomicU64::new(0),
            policy,
        });
        let attendant: Arc<dyn Unattended> = core.clone();
        core.group.attended_by(Arc::downgrade(&attendant));
        core
    }

    /// Whether this process is a fork of the communicator's.
    pub(crate) fn is_forked(&self) -> bool {
        self.shared.fork.is_forked_child()
    }

    /// Whether this process may use the communicator: a fork of its own may not.
    #[inline]
    pub(super) fn check_process(&self) -> Result<()> {
        if self.is_forked() { Err(Error::Forked) } else { Ok(()) }
    }

    /// Runs a part of an operation; a panic of it fails the communicator.
    #[inline(always)]
    pub(super) fn guarded<T>(&self, run: impl FnOnce() -> T) -> T {
        let guard = self.guard();
        let result = run();
        guard.disarm();
        result
    }

    /// Until it is disarmed, a panic fails the communicator: of [`Core::guarded`] where a closure would not be inlined.
    #[inline(always)]
    pub(super) fn guard(&self) -> FailOnPanic<'_> {
        FailOnPanic(self)
    }

    /// An operation is left half done, by a panic.
    #[cold]
    pub(super) fn fail_half_done(&self) {
        self.group.fail(Error::internal("a panic within an operation"));
    }

    /// The first check of every call: may this process use the communicator, does it still work. After a failure the error
    /// comes once it is the same on all ranks that can be reached, within a fraction of a second.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        self.check_process()?;
        if self.group.has_failed() { Err(self.dumped(self.failure())) } else { Ok(()) }
    }

    /// The error of a failed call; the first such error leaves the flight record behind.
    #[cold]
    pub(super) fn dumped(&self, error: Error) -> Error {
        if !self.is_forked() {
            self.dumps.failed(&self.group, &error);
        }
        error
    }

    /// The failure that stays.
    pub(super) fn failure(&self) -> Error {
        let mut waiter = self.policy.waiter();
        loop {
            if let Some(error) = self.group.settled(self.group.clock().now()) {
                return error;
            }
            waiter.pause(Look::Load);
        }
    }

    /// The engine, for a data call that a thread waits for.
    #[inline]
    pub(super) fn acquire(&self) -> Result<Owned<'_>> {
        match self.try_own() {
            Some(owned) => Ok(owned),
            None => self.wait_for_engine(|| self.try_own()),
        }
    }

    /// What `attempt` gets once no thread has the engine.
    fn wait_for_engine<T>(&self, attempt: impl Fn() -> Option<T>) -> Result<T> {
        self.waiters.fetch_add(1, Ordering::Relaxed);
        let _leave = Leave(&self.waiters);
        let mut waiter = self.policy.waiter();
        loop {
            if let Some(got) = attempt() {
                return Ok(got);
            }
            if self.in_call.load(Ordering::Relaxed) {
                return Err(Error::ConcurrentUse);
            }
            waiter.pause(Look::Load);
        }
    }

    #[inline]
    pub(super) fn try_own(&self) -> Option<Owned<'_>> {
        let engine = self.engine.try_acquire()?;
        self.in_call.store(true, Ordering::Relaxed);
        Some(Owned { _in_call: InCall(self), engine })
    }

    /// The communicator is on the device with this number from now on.
    pub(crate) fn is_put_on(&self, device: usize) {
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        if !devices.contains(&device) {
            devices.push(device);
        }
    }

    /// Frees what operations on its devices have left behind. Not to be called by a thread that has an engine.
    pub(super) fn free_discarded(&self) {
        if discarded::is_empty() {
            return;
        }
        let devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner).clone();
        discarded::free(&devices);
    }

    /// Publishes the length of the queue, so that other threads know that there is something to do, and for whom.
    pub(super) fn note_queued(&self, engine: &Engine) {
        self.is_on_devices.store(engine.is_on_devices(), Ordering::Relaxed);
        self.queued.store(engine.queued(), Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn policy(&self) -> Policy {
        self.policy
    }

    #[cfg(test)]
    pub(crate) fn readiness(&self) -> &Readiness {
        &self.readiness
    }

    /// The engine between calls, once no other thread has a turn.
    #[cfg(test)]
    pub(crate) fn idle_engine(&self) -> ExclusiveGuard<'_, Engine> {
        loop {
            if let Some(engine) = self.engine.try_acquire() {
                return engine;
            }
            std::thread::yield_now();
        }
    }

    /// A waiter for the thread that drives this communicator.
    pub(crate) fn waiter(&self) -> Waiter {
        self.policy.waiter()
    }

    /// A collective that the caller waits for; `blocks` are those of a call whose blocks differ. The call has been
    /// checked, and the engine may have been acquired. Returns its number, the same on all ranks.
    pub(super) fn collective_on(
        &self,
        owned: Option<Owned<'_>>,
        call: Call,
        blocks: Option<Blocks<'_>>,
        timeout: Duration,
        buffers: Buffers<'_>,
    ) -> Result<u64> {
        self.planning.admit(&call)?;
        let run = || {
            let mut owned = self.with_room(owned, 1, timeout)?;
            if owned.engine.queued() != 0 {
                return self.wait_in_queue(owned, &[Entry { call, blocks, buffers }], timeout);
            }
            self.collective_by(&mut owned.engine, call, blocks, timeout, buffers)
        };
        run().map_err(|error| self.dumped(error))
    }

    /// As [`Core::collective_on`], with nothing queued.
    fn collective_by(
        &self,
        engine: &mut Engine,
        call: Call,
        blocks: Option<Blocks<'_>>,
        timeout: Duration,
        buffers: Buffers<'_>,
    ) -> Result<u64> {
        let request = engine.enter(call, this_thread());
        if call.count == 0 {
            engine.leave(&request);
            return Ok(request.sequence);
        }
        let mut task = engine.take_task();
        task.prepare(timeout);
        task.push(request, blocks);
        self.drive(engine, task, &[buffers])?;
        Ok(request.sequence)
    }

    /// A barrier, after which connections and tables are given back; they are made again when they are needed.
    pub(super) fn release(&self, timeout: Duration) -> Result<()> {
        let (input, mut output) = ([0u8; 1], [0u8; 1]);
        let buffers = Buffers { input: Span::of(&input), output: SpanMut::of(&mut output) };
        let run = || {
            let engine = &mut *self.with_room(None, 1, timeout)?.engine;
            self.finish_queue(engine, timeout)?;
            self.collective_by(engine, barrier_call(), None, timeout, buffers)?;
            // What this rank said last must not be lost with its end of the connection.
            let until = Instant::now() + timeout;
            let mut waiter = self.policy.waiter();
            while !engine.is_settled() && Instant::now() < until {
                if self.group.has_changes() {
                    engine.attend();
                }
                waiter.pause(Look::CallBeforeNap);
            }
            engine.release();
            Ok(())
        };
        run().map_err(|error| self.dumped(error))
    }

    /// Messages to and from peers that the caller waits for, with buffers for each; they run side by side. The engine may
    /// have been acquired.
    pub(super) fn exchange_on(
        &self,
        owned: Option<Owned<'_>>,
        calls: &[Call],
        timeout: Duration,
        buffers: &[Buffers<'_>],
    ) -> Result<()> {
        let run = || {
            let mut owned = owned.map_or_else(|| self.acquire(), Ok)?;
            if owned.engine.queued() != 0 {
                let entries: Vec<Entry<'_>> = (calls.iter().zip(buffers))
                    .map(|(call, buffers)| Entry { call: *call, blocks: None, buffers: *buffers })
                    .collect();
                return self.wait_in_queue(owned, &entries, timeout).map(drop);
            }
            let engine = &mut *owned.engine;
            let mut task = engine.take_task();
            task.prepare(timeout);
            calls.iter().for_each(|call| task.push(engine.enter(*call, this_thread()), None));
            self.drive(engine, task, buffers)
        };
        run().map_err(|error| self.dumped(error))
    }

    pub(super) fn drive(
        &self,
        engine: &mut Engine,
        mut task: Box<Task>,
        buffers: &[Buffers<'_>],
    ) -> Result<()> {
        // What was begun has sent.
        engine.ring();
        let mut foreground = Foreground { engine, task: &mut task, buffers };
        let result = self.guarded(|| drive(self.policy.waiter(), &mut foreground));
        if result.is_err() {
            engine.leave_failed(&task);
        }
        engine.put_back(task);
        result
    }

    /// Waits until everything that was put into streams is over.
    pub(crate) fn finish_streams(&self, timeout: Duration) -> Result<()> {
        self.check()?;
        let finished = self.acquire().and_then(|mut owned| self.finish_queue(&mut owned.engine, timeout));
        self.free_discarded();
        finished.map_err(|error| self.dumped(error))
    }

    /// Waits for all operations that were started before this call: each has this call's deadline if that is sooner than
    /// its own.
    fn finish_queue(&self, engine: &mut Engine, timeout: Duration) -> Result<()> {
        if engine.queued() == 0 {
            return Ok(());
        }
        engine.hurry_queue(timeout);
        self.drain_queue(engine)?;
        if self.group.has_failed() { Err(self.failure()) } else { Ok(()) }
    }

    /// Advances all queued operations to their ends.
    fn drain_queue(&self, engine: &mut Engine) -> Result<()> {
        drive(self.policy.waiter(), &mut Queued { core: self, engine, until: None })
    }

    /// Whether an operation is under way. From any thread.
    pub(crate) fn is_in_use(&self) -> bool {
        self.in_call.load(Ordering::Relaxed) || self.queued.load(Ordering::Relaxed) != 0
    }

    /// Fails the communicator on all ranks. From any thread.
    pub(crate) fn abort(&self, reason: &str) {
        self.aborts.fetch_add(1, Ordering::Relaxed);
        self.group.fail(Error::Aborted { rank: self.group.rank, reason: reason.to_owned() });
    }

    /// Ends all operations on all ranks, and lets splits go on. From any thread.
    pub(crate) fn revoke(&self, reason: &str) {
        self.group.fail(Error::Revoked { rank: self.group.rank, reason: reason.to_owned() });
    }

    /// Changes with every [`Core::abort`] of this rank.
    pub(super) fn aborts(&self) -> u64 {
        self.aborts.load(Ordering::Relaxed)
    }

    /// The engine of a communicator on which nothing is under way; `None` if something is.
    pub(super) fn acquire_idle(&self) -> Result<Option<Owned<'_>>> {
        let mut owned = self.acquire()?;
        // Queued operations may have finished meanwhile, with no thread that looked at them.
        self.advance_queue(&mut owned.engine);
        if owned.engine.queued() == 0 {
            return Ok(Some(owned));
        }
        drop(owned);
        self.let_go();
        Ok(None)
    }

    /// The engine of a communicator that has failed, once nothing is under way on it any more.
    pub(super) fn acquire_failed(&self, until: Instant) -> Result<Owned<'_>> {
        let mut waiter = self.policy.waiter();
        let mut owned = loop {
            match self.acquire() {
                // Calls of other threads end now that it has failed.
                Err(Error::ConcurrentUse) if Instant::now() < until => {
                    waiter.pause(Look::Load);
                }
                owned => break owned?,
            }
        };
        self.drain_queue(&mut owned.engine)?;
        Ok(owned)
    }

    pub(crate) fn memory_bytes(&self) -> Result<usize> {
        // Not as a data call has it: one that comes in the meantime waits for this to be over, and is not refused.
        self.wait_for_engine(|| self.engine.try_acquire().map(|engine| engine.memory_bytes()))
    }

    pub(crate) fn wires(&self) -> Result<Vec<WireRecord>> {
        self.wait_for_engine(|| self.engine.try_acquire().map(|mut engine| engine.wires()))
    }

    /// The longest wait for queued operations at the end: those in streams come after the program's own work there.
    fn patience(&self) -> Duration {
        const OF_HOST: Duration = Duration::from_secs(10);
        const OF_STREAMS: Duration = Duration::from_secs(300);
        let in_streams = self.engine.try_acquire().is_none_or(|engine| engine.has_streams());
        if in_streams && !self.group.has_failed() { OF_STREAMS } else { OF_HOST }
    }

    /// The owner is gone: ends queued operations within a bounded time and tells the other ranks.
    pub(crate) fn close(self: &Arc<Self>) {
        if self.is_forked() {
            match self.engine.try_acquire() {
                Some(mut engine) => engine.abandon(),
                // A thread of the parent had it at the fork: what it left half done is never dropped here.
                None => std::mem::forget(self.clone()),
            }
            return;
        }
        let patience = Instant::now() + self.settings.timeout.min(self.patience());
        self.waiters.fetch_add(1, Ordering::Relaxed);
        let _leave = Leave(&self.waiters);
        let mut waiter = self.policy.waiter();
        while self.queued.load(Ordering::Relaxed) != 0 && Instant::now() < patience {
            self.advance_or_pause(&mut waiter, || self.queued.load(Ordering::Relaxed) == 0);
        }
        if self.queued.load(Ordering::Relaxed) != 0 {
            let reason =
                "its communicator was dropped with operations under way that did not finish".to_owned();
            self.group.fail(Error::Aborted { rank: self.group.rank, reason });
            let error = self.failure();
            loop {
                if let Some(mut engine) = self.engine.try_acquire() {
                    engine.fail_queue(&error);
                    self.queued.store(0, Ordering::Relaxed);
                    break;
                }
                std::thread::yield_now();
            }
            self.readiness.wake_sleepers();
        }
        self.settle(patience);
        if self.dumps.owes_record() && self.group.has_failed() {
            self.dumped(self.failure());
        }
        self.dumps.closing(&self.group);
        self.group.leave();
        self.free_discarded();
        // A started operation still shares its result with its owner, not the links.
        if let Some(mut engine) = self.engine.try_acquire() {
            engine.links.close();
        }
    }

    /// Stays until the peers have taken all bytes that were sent, on links that would lose them with this side's end.
    fn settle(&self, patience: Instant) {
        let mut waiter = self.policy.waiter();
        while !self.group.has_failed() && Instant::now() < patience {
            let Some(mut engine) = self.engine.try_acquire() else { return };
            if engine.is_settled() {
                return;
            }
            drop(engine);
            waiter.pause(Look::CallBeforeNap);
        }
    }
}

/// The call of a barrier, on which all ranks must agree.
pub(super) fn barrier_call() -> Call {
    Call::new(Kind::Barrier, consort_kernels::DataType::Uint8, Some(consort_kernels::ReduceOp::Max), 0, 1)
}
