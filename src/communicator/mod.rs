//! The communicator: a group of ranks that make the same calls in the same order.

pub(crate) mod adapters;
mod agree;
mod binding;
pub(crate) mod core;
mod drive;
mod exchanged;
mod fast_path;
mod group;
mod grow;
mod health;
mod join;
mod mesh;
mod observe;
mod owning;
pub(crate) mod point;
mod register;
mod replan;
pub(crate) mod routes;
mod scaled;
mod scope;
pub(crate) mod shrink;
pub(crate) mod split;
pub(crate) mod streams;
pub(crate) mod surface;
#[cfg(test)]
mod tests;
mod together;
pub(crate) mod typed;
mod vectors;
mod work;

#[doc(hidden)]
pub use consort_control::bootstrap::host_name;

use std::sync::Arc;
use std::time::Duration;

use consort_algorithms::catalogue::Algorithm;
use consort_kernels::Element;
use consort_memory::{Span, SpanMut};

pub(crate) use self::core::Core;
pub use group::{Group, group};
pub use health::WithTimeout;
pub use mesh::Mesh;
pub use scaled::Scaled;
pub use scope::{Scope, ScopedWork};
pub use shrink::Shrink;
pub use work::Work;

use crate::Rank;
use crate::engine::Buffers;
use consort_control::membership::process::Process;
use consort_types::call::{Call, Kind};
use consort_types::error::{Error, Result};

/// A group of ranks, as one of them sees it.
///
/// Every rank of the group must make the same collective calls in the same order, with the same count, data
/// type, operator and root; a difference is found and returned as [`Error::Mismatch`] that names the ranks.
///
/// # Threads
/// A communicator may be shared between threads, but data calls that overlap in time are refused with
/// [`Error::ConcurrentUse`]: their order could not be the same on all ranks. [`Communicator::abort`],
/// [`Communicator::revoke`], [`Communicator::status`], [`Communicator::report`], [`Communicator::flight_record`]
/// and [`Communicator::stragglers`] may be called at any time.
///
/// # Failure
/// The first failure (a lost rank, a missed deadline, a mismatch) ends the communicator on all ranks; every
/// later call returns it again. When a call has returned, with or without an error, no other rank touches the
/// caller's buffers any more.
///
/// # Fork
/// In a forked child every call returns [`Error::Forked`], and dropping only releases the child's memory.
///
/// # Drop
/// Dropping waits a bounded time (the operation timeout, 10 s at most; with a trace some 5 s more for its file) for
/// operations that were started and
/// not waited for, then tells the others that this rank has left. It does not wait for them.
pub struct Communicator {
    core: Arc<Core>,
    /// Keeps the control thread; joined with the last communicator, by the thread that drops it.
    process: Arc<Process>,
    /// How long a call may take.
    timeout: Duration,
    /// What must run collectives, instead of what the planner chooses.
    algorithm: Option<Algorithm>,
    owner: Arc<Owner>,
}

impl Communicator {
    pub(crate) fn from_core(core: Arc<Core>, process: Arc<Process>) -> Self {
        let timeout = core.settings.timeout;
        let owner = Arc::new(Owner { core: core.clone(), _process: process.clone() });
        Communicator { core, process, timeout, algorithm: None, owner }
    }

    /// The same communicator once more, with another deadline or algorithm: it is closed when neither is there any more.
    fn view(&self, timeout: Duration, algorithm: Option<Algorithm>) -> Self {
        let (core, process, owner) = (self.core.clone(), self.process.clone(), self.owner.clone());
        Communicator { core, process, timeout, algorithm, owner }
    }

    /// The same communicator for another owner, with the deadline and algorithm of this view.
    pub(crate) fn shared(&self) -> Self {
        self.view(self.timeout, self.algorithm)
    }

    pub(crate) fn process(&self) -> &Arc<Process> {
        &self.process
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// This rank, from 0 to `size() - 1`.
    #[inline]
    pub fn rank(&self) -> Rank {
        self.core.group.rank
    }

    /// How many ranks there are.
    #[inline]
    pub fn size(&self) -> u32 {
        self.core.group.size()
    }

    /// Bytes that this communicator holds in this process beside the caller's buffers: staging memory of its
    /// connections and its own tables. Connections are made when they are first needed.
    ///
    /// # Errors
    /// [`Error::ConcurrentUse`] while another thread is in a data call; what [`Communicator::status`] says.
    pub fn memory_bytes(&self) -> Result<usize> {
        self.core.check()?;
        self.core.memory_bytes()
    }

    /// Gives back what an idle communicator holds ([`Communicator::memory_bytes`]), but for its records: the memory
    /// of its connections and what it keeps for the next call of the same shape. All ranks call it; operations that
    /// were started are finished first. The communicator stays as it is; the next operation makes what it needs
    /// again, which takes as long as it did the first time.
    ///
    /// ```
    /// use consort::{Communicator, ReduceOp};
    ///
    /// let world = Communicator::local(2)?;
    /// std::thread::scope(|threads| {
    ///     for comm in &world {
    ///         threads.spawn(move || {
    ///             comm.all_reduce(&mut [1.0f32; 1000], ReduceOp::Sum).expect("both call it");
    ///             let before = comm.memory_bytes().expect("it works");
    ///             comm.suspend().expect("both call it");
    ///             assert!(comm.memory_bytes().expect("it works") < before);
    ///             comm.all_reduce(&mut [1.0f32; 1000], ReduceOp::Sum).expect("it works as before");
    ///         });
    ///     }
    /// });
    /// # consort::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// As every collective: see [`Error`].
    pub fn suspend(&self) -> Result<()> {
        self.core.check()?;
        self.core.release(self.timeout)
    }

    /// A collective on untyped memory, for bindings. A rank that has no input (or no output) in this call may
    /// pass an empty span.
    ///
    /// ```
    /// use consort::{Call, Communicator, DataType, ReduceOp, Scalar, Span, SpanMut};
    ///
    /// let comm = Communicator::local(1)?.remove(0);
    /// let (input, mut output) = ([1u8, 2, 3, 4], [0u8; 4]);
    /// let call = Call::all_reduce(DataType::Int32, ReduceOp::Sum, 1);
    /// comm.execute(&call, Span::of(&input), SpanMut::of(&mut output))?;
    /// assert_eq!(output, input);
    ///
    /// // A sum whose contributions are multiplied by a scalar first.
    /// let (input, mut output) = ([1i8, 2, 100], [0i8; 3]);
    /// let call = Call::all_reduce(DataType::Int8, ReduceOp::Sum, 3).scaled_by(Scalar::of(3i8));
    /// comm.execute(&call, Span::of(&input), SpanMut::of(&mut output))?;
    /// assert_eq!(output, [3, 6, 44]);
    /// # consort::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the buffers do not fit the call; otherwise as the typed methods.
    #[inline]
    pub fn execute(&self, call: &Call, input: Span<'_>, output: SpanMut<'_>) -> Result<()> {
        if call.is_plain() {
            return self.execute_plain(call.packed(), call.count, input, output);
        }
        self.execute_fully(call, input, output)
    }

    /// A plain call, packed: what a typed method makes of it is known when that is compiled.
    #[inline(never)]
    pub(crate) fn execute_plain(
        &self,
        packed: u64,
        count: usize,
        input: Span<'_>,
        output: SpanMut<'_>,
    ) -> Result<()> {
        if self.algorithm.is_some() {
            return self.execute_by_own(packed, count, input, output);
        }
        self.core.execute(packed, count, &self.timeout, input, output)
    }

    /// As [`Communicator::execute_plain`], by the algorithm that this view of the communicator names.
    #[cold]
    #[inline(never)]
    fn execute_by_own(&self, packed: u64, count: usize, input: Span<'_>, output: SpanMut<'_>) -> Result<()> {
        let Some(call) = Call::unpack(packed, count) else { unreachable!("a plain call was packed") };
        self.execute_fully(&call, input, output)
    }

    #[inline(never)]
    fn execute_fully(&self, call: &Call, input: Span<'_>, output: SpanMut<'_>) -> Result<()> {
        let call = if self.algorithm.is_some() { self.with_own_algorithm(*call) } else { *call };
        self.core.execute_fully(None, &call, self.timeout, input, output)
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// As every collective: see [`Error`].
    pub fn barrier(&self) -> Result<()> {
        let (input, mut output) = ([0u8; 1], [0u8; 1]);
        let Call { count, .. } = core::barrier_call();
        // No algorithm that a view names: the call is the library's own.
        let (input, output) = (Span::of(&input), SpanMut::of(&mut output));
        self.core.execute(core::barrier_call().packed(), count, &self.timeout, input, output)
    }
}

impl Communicator {
    /// What each rank says, of equal length, in the order of the ranks: an all-gather of the library's own, of this kind, on
    /// a communicator that works. With its number, which is the same on all ranks.
    pub(crate) fn all_say<T: Element>(&self, kind: Kind, mine: &[T]) -> Result<(u64, Vec<T>)> {
        self.core.check()?;
        let mut all = mine.repeat(self.size() as usize);
        let call = Call::new(kind, T::DATA_TYPE, None, 0, mine.len());
        let buffers = Buffers { input: Span::of(mine), output: SpanMut::of(&mut all) };
        let number = self.core.collective_on(None, call, None, self.timeout, buffers)?;
        Ok((number, all))
    }
}

/// Closes the communicator with its last owner.
struct Owner {
    core: Arc<Core>,
    /// What is under way at the end may still need the control thread, to connect.
    _process: Arc<Process>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.core.close();
    }
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("Communicator");
        let label = &self.core.group.label;
        if !label.is_empty() {
            debug.field("label", label);
        }
        debug.field("rank", &self.rank()).field("size", &self.size()).finish_non_exhaustive()
    }
}

/// These cross threads; this does not compile otherwise.
const _: () = {
    const fn crosses_threads<T: Send + Sync>() {}
    crosses_threads::<Communicator>();
    crosses_threads::<Mesh>();
    crosses_threads::<Error>();
};
