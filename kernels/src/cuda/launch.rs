//! Kernels on a context: loaded once, when they are first needed or before, and launched on spans.
//!
//! Invariant: a launch checks its spans' lengths before, so a kernel touches nothing outside of them. Absent: which
//! spans are folded, and when.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use consort_cuda::{Context, CudaError, DeviceSpan, Function, Module, PinnedMemory, StreamRef};
use consort_memory::{Plain, Span, SpanMut};

use super::layout::{Factors, Folds, Job, Launch, MAX_INLINE_JOBS, MAX_PLACES, OneShot};
use super::loading::{Listener, Loaded, Loader};
use super::{FOLD_COPY, Form, Kernel, MAX_BLOCK_THREADS, RUN_COPY, RUN_SHARED_BYTES_MAX, WARP_THREADS};
use super::{function_name, image};
use crate::{DataType, ReduceOp, Reducer};

/// Bytes of a job for which a block of its own pays.
const BLOCK_BYTES: usize = 32 << 10;

/// What a kernel writes when it ends.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// Eight bytes of pinned memory, which the kernel sets to `sequence`.
    pub done: DeviceSpan,
    /// Four bytes of device memory, zero before and after the launch.
    pub left: DeviceSpan,
    /// The value that it writes.
    pub sequence: u64,
}

/// One fold: every target becomes the left fold of the sources. All spans have one length.
#[derive(Clone, Copy, Debug)]
pub struct FoldJob<'a> {
    /// The spans that are written; at most 16, together with the sources at most 32.
    pub targets: &'a [DeviceSpan],
    /// The spans that are read, in the order of the fold.
    pub sources: &'a [DeviceSpan],
    /// Bit `i`: source `i` is a rank's own contribution, not yet scaled.
    pub raw: u32,
    /// Whether the result is complete.
    pub finish: bool,
}

/// The key of a kernel: its kind, its type if it folds, and its operator.
type Which = (Kernel, Option<DataType>, ReduceOp);

/// The types whose kernels are loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Types {
    /// The types with machine code for the device: all types, on devices that the images are made for. None once the
    /// driver has refused machine code, so that it does not compile all types at once.
    Assembled,
    /// All types. The driver compiles those without machine code, which takes seconds where its cache does not have
    /// them.
    All,
}

/// The kernels of one context.
///
/// Each image is loaded once, by whichever thread needs it first: to unload a second one the driver would wait for
/// the device. A launch of a kernel that is loaded waits for no load.
pub struct Kernels {
    context: Context,
    loader: Loader,
    functions: Mutex<HashMap<Which, Launchable>>,
    /// Held while the driver loads.
    modules: Mutex<HashMap<Option<DataType>, Module>>,
}

/// A kernel that is loaded.
#[derive(Clone)]
struct Launchable {
    function: Arc<Function>,
    /// The most threads of a block with which each multiprocessor has room for one block, whatever its dynamic shared
    /// memory.
    threads_max: u32,
}

/// A launch record, in memory that the device reads.
#[derive(Clone, Debug)]
pub struct Table {
    memory: Arc<PinnedMemory>,
}

impl Table {
    /// A record of `bytes` bytes.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(context: &Context, bytes: usize) -> Result<Self, CudaError> {
        Ok(Table { memory: Arc::new(context.allocate_host(bytes)?) })
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.memory.span().len()
    }

    /// Whether its length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The device's view of it.
    pub fn device_span(&self) -> DeviceSpan {
        self.memory.device_span()
    }

    /// The eight bytes at `offset`, as the device has left them.
    ///
    /// # Panics
    /// If they are not inside, or not aligned.
    pub fn word(&self, offset: usize) -> u64 {
        self.memory.word(offset).load_acquire()
    }

    /// Writes elements from byte `offset` on.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn write<T: Plain>(&self, offset: usize, elements: &[T]) {
        let target: SpanMut<'_> = self.memory.span();
        target.slice(offset, size_of_val(elements)).copy_from(Span::of(elements));
    }
}

impl Kernels {
    /// The kernels of a context, none of them loaded. The listener is called for every image that is loaded or
    /// refused.
    pub fn new(context: &Context, listener: Listener) -> Self {
        let (context, loader) = (context.clone(), Loader::new(listener));
        Kernels { context, loader, functions: Mutex::default(), modules: Mutex::default() }
    }

    /// The context of the kernels.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The images that are in the context, in the order in which they came.
    pub fn images(&self) -> Vec<Loaded> {
        self.loader.loaded()
    }

    /// The bytes of the [`Table`] that a launch of these jobs needs; `None` where it needs none.
    pub fn table_bytes(jobs: usize) -> Option<usize> {
        (jobs > MAX_INLINE_JOBS).then_some(jobs * size_of::<Job>())
    }

    /// Launches one kernel that does all jobs, in no order. `reducer` is `None` where nothing is folded. `table`
    /// holds the jobs where they are more than a launch record takes ([`Kernels::table_bytes`]); it must not change
    /// until the kernel has ended. The caller has entered the context. At most `blocks_max` blocks take part.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// If a table is needed and missing or too small; if the lengths of a job's spans differ.
    pub fn fold(
        &self,
        stream: &StreamRef,
        reducer: Option<&Reducer>,
        jobs: &[FoldJob<'_>],
        blocks_max: u32,
        table: Option<&Table>,
        end: Option<End>,
    ) -> Result<(), CudaError> {
        let Launchable { function, threads_max } = self.function(Kernel::Fold, reducer)?;
        let records: Vec<Job> = jobs.iter().map(|job| record(job, reducer)).collect();
        let longest = records.iter().map(|job| job.bytes).max().unwrap_or(0) as usize;
        let count = records.len().max(1) as u32;
        let wanted = longest.div_ceil(BLOCK_BYTES).max(1) as u32;
        let blocks_per_job = wanted.min((blocks_max / count).max(1));
        let mut folds = Folds {
            count: records.len() as u32,
            blocks_per_job,
            factors: reducer.map_or(Factors::ONE, Factors::of),
            ..Folds::default()
        };
        if let Some(end) = end {
            folds.done = end.done.address();
            folds.left = end.left.address();
            folds.sequence = end.sequence;
        }
        if records.len() <= MAX_INLINE_JOBS {
            folds.inline_jobs[..records.len()].copy_from_slice(&records);
        } else {
            let Some(table) = table else { panic!("{} jobs without a table", records.len()) };
            table.write(0, &records);
            folds.jobs = table.device_span().address();
        }
        let threads = threads_for(longest.div_ceil(blocks_per_job as usize)).min(threads_max);
        let params = [(&raw const folds).cast::<c_void>()];
        // SAFETY: the kernel takes one `Folds` by value. Its jobs stay within spans that were checked to have the
        // job's length, and the maker of each span promised that its memory stays.
        unsafe { stream.launch(&function, count * blocks_per_job, threads, 0, &params) }
    }

    /// Launches the interpreter on a launch record in `table`. See [`Launch`].
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// If the launch record or the shared memory does not have the required length.
    pub fn run(
        &self,
        stream: &StreamRef,
        reducer: Option<&Reducer>,
        launch: DeviceSpan,
        shape: RunShape,
    ) -> Result<(), CudaError> {
        assert!(launch.len() >= size_of::<Launch>(), "a launch record of {} bytes", launch.len());
        assert!(shape.shared_bytes <= RUN_SHARED_BYTES_MAX, "{} bytes of shared memory", shape.shared_bytes);
        let Launchable { function, threads_max } = self.function(Kernel::Run, reducer)?;
        let address = launch.address();
        let params = [(&raw const address).cast::<c_void>()];
        let threads = shape.threads.min(threads_max);
        // SAFETY: the kernel takes the address of a launch record, which the caller keeps.
        unsafe { stream.launch(&function, shape.blocks, threads, shape.shared_bytes, &params) }
    }

    /// Launches the one-shot all-reduce in packets, in `blocks` blocks ([`one_shot_blocks`]).
    ///
    /// # Errors
    /// The driver's.
    pub fn one_shot(
        &self,
        stream: &StreamRef,
        reducer: &Reducer,
        parameters: &OneShot,
        blocks: u32,
    ) -> Result<(), CudaError> {
        let Launchable { function, threads_max } = self.function(Kernel::OneShot, Some(reducer))?;
        let threads = one_shot_threads(parameters.bytes as usize).min(threads_max);
        let params = [(&raw const *parameters).cast::<c_void>()];
        // SAFETY: the kernel takes one `OneShot` by value, whose addresses the caller's spans gave.
        unsafe { stream.launch(&function, blocks, threads, 0, &params) }
    }

    /// Loads a kernel, so that its first launch need not.
    ///
    /// # Errors
    /// The driver's.
    pub fn prepare(&self, kernel: Kernel, reducer: Option<&Reducer>) -> Result<(), CudaError> {
        self.function(kernel, reducer).map(drop)
    }

    /// Loads a kernel for many types and all operators.
    ///
    /// # Errors
    /// # Errors
    /// The driver's first; all other kernels are loaded.
    pub fn prepare_all(&self, kernel: Kernel, types: Types) -> Result<(), CudaError> {
        let mut outcome = Ok(());
        if matches!(kernel, Kernel::Fold | Kernel::Run) {
            outcome = self.named((kernel, None, ReduceOp::Sum)).map(drop);
        }
        let capability = self.context.device().compute_capability;
        let is_wanted = |of: &DataType| {
            let is_assembled =
                || image(Some(*of), capability).form == Form::Binary && !self.loader.has_refused();
            types == Types::All || is_assembled()
        };
        // Checked for each type in turn: the driver may have refused machine code of an earlier one.
        for data_type in DataType::ALL.into_iter().filter(is_wanted) {
            for op in ReduceOp::ALL {
                outcome = outcome.and(self.named((kernel, Some(data_type), op)).map(drop));
            }
        }
        outcome
    }

    fn function(&self, kernel: Kernel, reducer: Option<&Reducer>) -> Result<Launchable, CudaError> {
        let of = |reducer: &Reducer| (kernel, Some(reducer.data_type()), reducer.op());
        self.named(reducer.map_or((kernel, None, ReduceOp::Sum), of))
    }

    fn named(&self, which: Which) -> Result<Launchable, CudaError> {
        if let Some(known) = locked(&self.functions).get(&which) {
            return Ok(known.clone());
        }
        let (kernel, data_type, op) = which;
        let name = match data_type {
            Some(data_type) => function_name(kernel, data_type, op),
            None if kernel == Kernel::Fold => FOLD_COPY,
            None => RUN_COPY,
        };
        let mut modules = locked(&self.modules);
        let module = match modules.get(&data_type) {
            Some(known) => known.clone(),
            None => {
                let module = self.loader.load(&self.context, data_type)?;
                modules.insert(data_type, module.clone());
                module
            }
        };
        // Two threads that come here at the same time get handles of the same kernel.
        let function = Arc::new(module.function(name)?);
        drop(modules);
        let shared_bytes = if kernel == Kernel::Run { RUN_SHARED_BYTES_MAX } else { 0 };
        let mut threads_max = MAX_BLOCK_THREADS;
        while threads_max > WARP_THREADS
            && function.blocks_per_multiprocessor(threads_max, shared_bytes)? == 0
        {
            threads_max /= 2;
        }
        let launchable = Launchable { function, threads_max };
        locked(&self.functions).insert(which, launchable.clone());
        Ok(launchable)
    }
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernels").field("device", self.context.device()).finish_non_exhaustive()
    }
}

/// The shape of a launch of the interpreter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunShape {
    /// Thread blocks.
    pub blocks: u32,
    /// Threads of each.
    pub threads: u32,
    /// Dynamic shared memory of each, in bytes; at most [`RUN_SHARED_BYTES_MAX`].
    pub shared_bytes: u32,
}

/// The number of threads for a block that handles `bytes` bytes.
pub fn threads_for(bytes: usize) -> u32 {
    let wanted = bytes.div_ceil(16).min(MAX_BLOCK_THREADS as usize) as u32;
    wanted.next_multiple_of(WARP_THREADS).clamp(WARP_THREADS, MAX_BLOCK_THREADS)
}

fn one_shot_threads(bytes: usize) -> u32 {
    threads_for(2 * bytes)
}

/// The number of blocks for a one-shot all-reduce of `bytes` bytes, at eight bytes a thread.
pub fn one_shot_blocks(bytes: usize) -> u32 {
    bytes.div_ceil(8 * one_shot_threads(bytes) as usize).max(1) as u32
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn record(job: &FoldJob<'_>, reducer: Option<&Reducer>) -> Job {
    let bytes = job.sources.first().map_or(0, DeviceSpan::len);
    let element = reducer.map_or(1, |reducer| reducer.data_type().size());
    let places = job.targets.iter().chain(job.sources);
    assert!(
        places.clone().all(|place| place.len() == bytes) && bytes.is_multiple_of(element),
        "lengths of a fold must be equal and multiples of {element} bytes: {job:?}"
    );
    assert!(job.targets.len() + job.sources.len() <= MAX_PLACES, "a fold of too many places: {job:?}");
    assert!(reducer.is_some() || job.sources.len() == 1, "a copy of several sources: {job:?}");
    let mut record = Job {
        bytes: bytes as u64,
        targets: job.targets.len() as u8,
        sources: job.sources.len() as u8,
        finish: u8::from(job.finish && reducer.is_some_and(Reducer::divides)),
        raw: if reducer.is_some_and(Reducer::scales) { job.raw } else { 0 },
        ..Job::default()
    };
    record.place.iter_mut().zip(places).for_each(|(place, span)| *place = span.address());
    record
}
