//! A communicator as C sees it: it may be joining, ready, busy in the background, or over.
//!
//! Invariant: any thread may ask for its state at any time and does not wait. The communicator within exists from the
//! moment it was joined to the end. Absent: handles (`ffi/`), and how operations run (`operation`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use consort_memory::sync::AtomicBool;

use consort_cuda::Context;

use super::config::Config;
use super::device::place;
use super::lane::{Body, End, Lane, Last, in_order};
use super::log::{self, Subsystem};
use super::operators::Operators;
use super::registrations::Registrations;
use super::result::{Code, Failure, Result, remember};
use consort::Communicator;
use consort::device::Placement;
use consort_settings::Options;
use consort_types::Rank;
use consort_types::error::Error;

/// A deadline that never comes: the default through C.
pub const NEVER: Duration = consort_settings::options::TIMEOUT_MAX;

/// The phase of a communicator's life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Phase {
    /// Its ranks have not all joined.
    Joining = 0,
    Ready = 1,
    /// No memory until it is resumed.
    Suspended = 2,
    /// It can only be split, shrunk or closed.
    Revoked = 3,
    /// It can only be closed.
    Finalized = 4,
    /// Joining failed.
    Stillborn = 5,
    /// It was aborted.
    Aborted = 6,
}

impl Phase {
    const ALL: [Phase; 7] = [
        Phase::Joining,
        Phase::Ready,
        Phase::Suspended,
        Phase::Revoked,
        Phase::Finalized,
        Phase::Stillborn,
        Phase::Aborted,
    ];
}

/// The kind of work in the background.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Work {
    /// A task that makes, changes or ends a communicator.
    Task,
    /// Data calls that a caller polls.
    Operations,
    /// Data calls in a stream, whose end is asked from the stream: the communicator is free for the next call.
    Queued,
}

/// Marks its communicator as busy while it lives.
pub(super) struct AtWork {
    comm: Arc<Comm>,
    work: Work,
}

impl AtWork {
    pub(super) fn new(comm: &Arc<Comm>, work: Work) -> Self {
        // Relaxed, twice: the reader is the same thread, or one that synchronised with it.
        comm.busy.fetch_add(1, Ordering::Relaxed);
        comm.changing.fetch_add(usize::from(work == Work::Task), Ordering::Relaxed);
        AtWork { comm: comm.clone(), work }
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        // Release, twice: pairs with the Acquire in `ready` and `async_error`, which makes the work's writes visible.
        self.comm.changing.fetch_sub(usize::from(self.work == Work::Task), Ordering::Release);
        self.comm.busy.fetch_sub(1, Ordering::Release);
    }
}

/// A communicator of the C interface.
pub struct Comm {
    /// A number that no other communicator of this process has.
    pub(super) serial: u64,
    config: Config,
    rank: AtomicU32,
    size: AtomicU32,
    device: i32,
    phase: AtomicU8,
    communicator: OnceLock<Communicator>,
    pub(super) operators: Operators,
    /// The process that made it.
    maker: u32,
    /// Nanoseconds; 0 where the deadline of the communicator holds.
    timeout: AtomicU64,
    /// Set to end a join under way.
    cancelled: AtomicBool,
    /// Jobs in the background that are not over.
    busy: AtomicUsize,
    /// The number of these that make, change or end communicators.
    changing: AtomicUsize,
    pub(super) last: Last,
    lane: Mutex<Option<Lane>>,
    pub(super) registrations: Registrations,
    /// The device of this rank, if it has one.
    pub(super) context: Option<Context>,
    /// The place of its ranks on devices, if all have one.
    placement: OnceLock<Arc<Placement>>,
    /// Whether calls wait; looked up once, as it may come from the environment.
    blocking: bool,
    /// The failure of work in the background, or of joining.
    failure: Mutex<Option<Failure>>,
    /// Whether its ranks made a new communicator of it in the background after it had failed.
    is_answered: AtomicBool,
}

impl Comm {
    /// A communicator that is about to be joined. `device` is the answer of `ncclCommCuDevice` for a rank without a
    /// device.
    pub fn new(config: Config, device: i32, context: Option<Context>) -> Arc<Self> {
        static SERIAL: AtomicU64 = AtomicU64::new(1);
        Arc::new(Comm {
            // Relaxed: the number only has to differ from all others.
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            blocking: config.blocking(),
            config,
            registrations: Registrations::default(),
            device: context.as_ref().map_or(device, |context| context.device().ordinal as i32),
            context,
            placement: OnceLock::new(),
            rank: AtomicU32::new(0),
            size: AtomicU32::new(0),
            phase: AtomicU8::new(Phase::Joining as u8),
            communicator: OnceLock::new(),
            operators: Operators::default(),
            maker: std::process::id(),
            timeout: AtomicU64::new(0),
            cancelled: AtomicBool::new(false),
            busy: AtomicUsize::new(0),
            changing: AtomicUsize::new(0),
            last: Last::default(),
            lane: Mutex::default(),
            failure: Mutex::default(),
            is_answered: AtomicBool::new(false),
        })
    }

    /// Whether calls wait for their end.
    pub fn is_blocking(&self) -> bool {
        self.blocking
    }

    /// The config it was made with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// A number that all its ranks have, and almost surely no other communicator.
    ///
    /// # Errors
    /// As [`Comm::communicator`].
    pub fn hash(&self) -> Result<u64> {
        self.communicator().map(|communicator| communicator.hash())
    }

    /// The options with which it joins: those of the config, and no deadline for operations unless one is set.
    ///
    /// # Errors
    /// For a config with an invalid value.
    pub(super) fn options(&self) -> Result<Options> {
        let options = self.config.to_options()?.timeout(NEVER);
        Ok(match &self.context {
            Some(context) => options.device_at(&context.device().pci),
            None => options,
        })
    }

    pub(super) fn cancelled(&self) -> &AtomicBool {
        &self.cancelled
    }

    #[inline]
    pub(super) fn phase(&self) -> Phase {
        // Acquire: pairs with the Release in `set_phase`; a phase after joining means that the communicator is there.
        Phase::ALL[usize::from(self.phase.load(Ordering::Acquire))]
    }

    pub(super) fn set_phase(&self, phase: Phase) {
        // Release: pairs with the Acquire in `phase`.
        self.phase.store(phase as u8, Ordering::Release);
    }

    /// Moves from phase `from` to phase `to`; false where it is in another phase.
    pub(super) fn advance(&self, from: Phase, to: Phase) -> bool {
        self.phase.compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Sets the rank and the size that it will have.
    pub(super) fn expect_shape(&self, rank: Rank, size: u32) {
        // Relaxed: read by the same thread, or after `phase` was.
        self.rank.store(rank, Ordering::Relaxed);
        self.size.store(size, Ordering::Relaxed);
    }

    /// The place of its ranks on devices, if they have one.
    #[inline]
    pub fn placement(&self) -> Option<&Arc<Placement>> {
        self.placement.get()
    }

    /// Stores the communicator after joining; its ranks take their places on devices, if they have any.
    ///
    /// # Errors
    /// As [`place`].
    pub(super) fn joined(&self, communicator: Communicator) -> Result<()> {
        if let Some(placement) = place(&communicator, self.context.as_ref())? {
            // Only the thread that joins sets it, once.
            let _ = self.placement.set(placement);
        }
        self.expect_shape(communicator.rank(), communicator.size());
        let hash = communicator.hash();
        // Only the thread that joins sets it, once.
        let _ = self.communicator.set(communicator);
        let rank = i32::try_from(self.rank.load(Ordering::Relaxed)).unwrap_or(log::NO_DEVICE);
        log::info(Subsystem::Init, rank, format_args!("{} joined, commId {hash:#x}", self.label()));
        self.advance(Phase::Joining, Phase::Ready);
        Ok(())
    }

    /// Marks it as one whose joining failed.
    pub(super) fn stillborn(&self, failure: &Failure) {
        self.note(failure);
        self.advance(Phase::Joining, Phase::Stillborn);
    }

    /// Keeps a failure for which no call waited; only the first is kept.
    pub(super) fn note(&self, failure: &Failure) {
        remember(&failure.text);
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| failure.clone());
    }

    /// Records that a shrink was made of the communicator. A poll then returns the result of the shrink, as in NCCL,
    /// and no longer the failure before it. Data calls get that failure from the communicator within.
    pub(super) fn answer(&self) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Relaxed: the Release in `AtWork` and the Acquire in `async_error` come between.
        self.is_answered.store(true, Ordering::Relaxed);
    }

    /// The failure for which no call waited.
    pub fn failure(&self) -> Option<Failure> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The communicator, for questions that are allowed at any time after joining.
    ///
    /// # Errors
    /// While it is being joined, and when that failed.
    pub fn communicator(&self) -> Result<&Communicator> {
        if let Some(communicator) = self.communicator.get() {
            return Ok(communicator);
        }
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        Err(Failure::argument(
            "the communicator is still being made",
            "poll ncclCommGetAsyncError until it is no longer ncclInProgress, or end the group first",
        ))
    }

    /// The communicator, if a call may go straight to it: it is joined, has no known failure and nothing in the
    /// background, and the caller waits.
    #[inline(always)]
    pub fn inline(&self) -> Option<&Communicator> {
        // Relaxed: a job that must come before this call was submitted in an order with this thread.
        let idle = self.busy.load(Ordering::Relaxed) == 0;
        // Acquire: as in `phase`.
        let is_ready = self.phase.load(Ordering::Acquire) == Phase::Ready as u8;
        if is_ready && idle && self.is_blocking() {
            return self.communicator.get();
        }
        None
    }

    /// The communicator, for a data call.
    ///
    /// # Errors
    /// According to its phase; while there is work in the background on a non-blocking communicator.
    pub(super) fn for_data(&self) -> Result<&Communicator> {
        self.ready()?;
        let communicator = self.communicator()?;
        match self.phase() {
            Phase::Ready => Ok(communicator),
            Phase::Suspended => {
                Err(Failure::usage("the communicator is suspended", "call ncclCommResume on all ranks first"))
            }
            Phase::Finalized => Err(Failure::usage(
                "the communicator was finalized",
                "make all calls before ncclCommFinalize; only ncclCommDestroy or ncclCommAbort may follow it",
            )),
            Phase::Aborted => Err(Failure::usage("the communicator was aborted", "make a new one")),
            // The communicator's own status has the rank and the reason.
            Phase::Revoked => match communicator.status() {
                Err(error) => Err(error.into()),
                Ok(()) => Err(Failure::usage("the communicator was revoked", "split or shrink it")),
            },
            Phase::Joining | Phase::Stillborn => {
                Err(self.failure().unwrap_or_else(|| Error::internal("a communicator of no phase").into()))
            }
        }
    }

    /// Checks that the call before is over, for nearly all calls on a non-blocking communicator.
    ///
    /// # Errors
    /// While it is not over; the failure of work in the background.
    pub(super) fn ready(&self) -> Result<()> {
        if self.is_blocking() {
            return Ok(());
        }
        if self.is_forked() {
            return Err(Error::Forked.into());
        }
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        if self.busy.load(Ordering::Acquire) != 0 || self.phase() == Phase::Joining {
            return Err(Failure::argument(
                "the communicator's last call is still in progress",
                "poll ncclCommGetAsyncError until it is no longer ncclInProgress",
            ));
        }
        Ok(())
    }

    /// This rank.
    ///
    /// # Errors
    /// As [`Comm::communicator`].
    pub fn rank(&self) -> Result<Rank> {
        self.communicator().map(|_| self.rank.load(Ordering::Relaxed))
    }

    /// Number of ranks.
    ///
    /// # Errors
    /// As [`Comm::communicator`].
    pub fn size(&self) -> Result<u32> {
        self.communicator().map(|_| self.size.load(Ordering::Relaxed))
    }

    /// The answer of `ncclCommCuDevice`. On host memory it is a number that the maker chose, 0 by default.
    pub fn device(&self) -> i32 {
        self.device
    }

    /// Its name in messages: `rank 1 of 4 of "name"`.
    pub fn label(&self) -> String {
        let (rank, size) = (self.rank.load(Ordering::Relaxed), self.size.load(Ordering::Relaxed));
        match &self.config.comm_name {
            Some(name) => format!("rank {rank} of {size} of {name:?}"),
            None => format!("rank {rank} of {size}"),
        }
    }

    /// Sets the deadline of all later calls; `None` restores the communicator's own.
    pub fn set_timeout(&self, timeout: Option<Duration>) {
        // A time of more than 64 bits is no deadline.
        let nanoseconds = timeout.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        self.timeout.store(nanoseconds, Ordering::Relaxed);
    }

    /// The deadline that [`Comm::set_timeout`] set.
    #[inline]
    pub fn timeout(&self) -> Option<Duration> {
        Some(self.timeout.load(Ordering::Relaxed)).filter(|set| *set != 0).map(Duration::from_nanos)
    }

    /// The answer of `ncclCommGetAsyncError`: success, in progress, or the failure that ended it. Does not wait.
    pub fn async_error(&self) -> (Code, Option<Failure>) {
        if self.is_forked() {
            let failure = Failure::from(Error::Forked);
            return (failure.code, Some(failure));
        }
        // Work that makes a new communicator of it comes before its failure: a shrink follows a failure.
        if !self.is_blocking() && self.changing.load(Ordering::Acquire) != 0 {
            return (Code::InProgress, None);
        }
        if let Some(failure) = self.failure() {
            return (failure.code, Some(failure));
        }
        let phase = self.phase();
        if phase == Phase::Joining || (!self.is_blocking() && self.busy.load(Ordering::Acquire) != 0) {
            return (Code::InProgress, None);
        }
        match self.communicator.get().map(Communicator::status) {
            // The caller revoked it and knows that.
            Some(Err(Error::Revoked { .. })) if phase == Phase::Revoked => (Code::Success, None),
            Some(Err(_)) if self.is_answered.load(Ordering::Relaxed) => (Code::Success, None),
            Some(Err(error)) => {
                let failure = Failure::from(error);
                (failure.code, Some(failure))
            }
            _ => (Code::Success, None),
        }
    }

    fn lane(&self) -> Result<MutexGuard<'_, Option<Lane>>> {
        let mut lane = self.lane.lock().unwrap_or_else(PoisonError::into_inner);
        if lane.is_none() {
            *lane = Some(Lane::start("consort-comm")?);
        }
        Ok(lane)
    }

    /// Runs `body` in the background, after all earlier work in the background of any of `comms`; this communicator
    /// is one of them. Each is busy until `body` is over, and keeps its failure.
    pub(super) fn in_background(
        self: &Arc<Self>,
        comms: &[Arc<Comm>],
        work: Work,
        body: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let body = Comm::attended(comms.to_vec(), work, body);
        let order = in_order();
        let submitted = match &*self.lane()? {
            Some(lane) => lane.submit(&order, comms.iter().map(|comm| &comm.last), body),
            None => Err(Error::internal("a communicator without its lane").into()),
        };
        drop(order);
        submitted.map(drop)
    }

    /// `body` as a job of a lane. `comms` are busy until it is over, except where a stream has the job and the
    /// communicator does not block.
    pub(super) fn attended(
        comms: Vec<Arc<Comm>>,
        work: Work,
        body: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Body {
        let at_work: Vec<AtWork> = comms
            .iter()
            .filter(|comm| work != Work::Queued || comm.is_blocking())
            .map(|comm| AtWork::new(comm, work))
            .collect();
        Box::new(move || {
            // A panic becomes a failure too: a communicator must not stay in progress for ever.
            let result = catch_unwind(AssertUnwindSafe(body))
                .unwrap_or_else(|_| Err(Error::internal("a panic in work in the background").into()));
            let result = result.map_err(|failure| match &comms[..] {
                [comm] => failure.said_by(comm),
                _ => failure,
            });
            if let Err(failure) = &result {
                // An end on purpose, by this or another rank, is no failure of the communicator: its status has it
                // while it lasts.
                let is_news = |comm: &Comm| work == Work::Task || !comm.is_revoked();
                let failed = comms.iter().filter(|comm| !comm.is_blocking() && is_news(comm));
                failed.for_each(|comm| comm.note(failure));
            }
            drop(at_work);
            drop(comms);
            result
        })
    }

    /// Whether a rank ended its operations on purpose.
    fn is_revoked(&self) -> bool {
        let status = self.communicator.get().map(Communicator::status);
        self.phase() == Phase::Revoked || matches!(status, Some(Err(Error::Revoked { .. })))
    }

    /// Whether there is work in the background, or a call waits for a task that makes, changes or ends it.
    pub(super) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire) != 0
    }

    /// Ends everything under way on all ranks, for a call that must not wait for it.
    pub(super) fn interrupt(&self, reason: &str) {
        if let Some(communicator) = self.communicator.get() {
            self.advance(Phase::Ready, Phase::Revoked);
            communicator.revoke(reason);
        }
    }

    fn is_forked(&self) -> bool {
        self.maker != std::process::id()
    }

    /// Waits until all its work in the background is over.
    pub(super) fn drain(&self) {
        while let Some(end) = self.unfinished() {
            // The thread that started the work gets its failure, or the communicator keeps it.
            let _ = end.wait();
        }
    }

    /// The end of the last work in the background, unless it is over, or runs in the process that forked this one.
    pub(super) fn unfinished(&self) -> Option<Arc<End>> {
        self.last.unfinished().filter(|_| !self.is_forked())
    }
}

impl std::fmt::Debug for Comm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Comm")
            .field("rank", &self.rank.load(Ordering::Relaxed))
            .field("size", &self.size.load(Ordering::Relaxed))
            .field("phase", &self.phase())
            .finish_non_exhaustive()
    }
}

impl Failure {
    /// The same failure with the communicator's label in front, for failures that no call of that communicator
    /// returns.
    pub(super) fn said_by(self, comm: &Comm) -> Self {
        Failure { text: format!("{}: {}", comm.label(), self.text), ..self }
    }
}
