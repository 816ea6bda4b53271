//! Collectives of communicators of one rank: a copy or a fold in the caller's stream, and nothing that is watched.
//!
//! Invariant: nothing in such a call waits for a peer, so it cannot hang and has no deadline. An error of the device is found
//! by the driver's next call, as with the program's own work, and not by the communicator's status. Such calls share no
//! memory but the caller's, so those in different streams have no order, as in NCCL, and a stream that is being captured
//! takes them. A graph with a fold must not outlive the device's last communicator, whose end unloads the kernels. Absent:
//! buffers that the library keeps until a call is over ([`super::fused`] watches its end).

use consort_algorithms::Block;
use consort_cuda::StreamRef;
use consort_kernels::Reducer;
use consort_kernels::cuda::{FoldJob, Kernel, Kernels};

use super::fused::{Jobs, Operands, reducer};
use super::placement::{Entry, Placement};
use super::table::Path;
use super::trouble::failed;
use crate::communicator::streams::pass;
use crate::planner::Planner;
use consort_types::error::{Error, Result};

impl Entry<'_> {
    /// Whether the call concerns this rank only, and nothing has to be kept until it is over.
    pub(super) fn is_alone(&self) -> bool {
        let placement = &**self.placement;
        placement.ranks == 1
            && placement.path() == Path::Fused
            && !self.call.kind.is_message()
            && self.kept.is_empty()
    }
}

/// Puts the calls into their streams.
///
/// # Errors
/// The driver's; what the engine says of a communicator that has failed.
pub(super) fn issue(entries: &[Entry<'_>]) -> Result<()> {
    entries.iter().try_for_each(|entry| {
        let core = entry.communicator.core();
        core.planning.admit(&entry.call)?;
        if let Some(reducer) = reducer(&entry.call, 1).filter(Reducer::scales_or_divides) {
            // Before this thread has the engine: to load, the driver may wait for the device.
            let Placement { gpu, rank, .. } = &**entry.placement;
            let cuda = |error| failed(*rank, entry.call.kind.name(), error);
            let _entered = gpu.context().enter().map_err(cuda)?;
            gpu.kernels.prepare(Kernel::Fold, Some(&reducer)).map_err(cuda)?;
        }
        pass(core, entry.call, || put(entry))
    })
}

/// Puts the call into its stream.
fn put(entry: &Entry<'_>) -> Result<()> {
    let (call, input, output) = (entry.call, entry.input, entry.output);
    let reducer = reducer(&call, 1).filter(Reducer::scales_or_divides);
    // Every collective of one rank has the input as its result, block by block where blocks have places of their own.
    if reducer.is_none() && entry.blocks.is_none() && input.len() == output.len() {
        let is_there = input.address() == output.address() || input.is_empty();
        return if is_there { Ok(()) } else { in_stream(entry, |stream| stream.copy(output, input)) };
    }
    let blocks: Vec<Block> =
        entry.blocks.map_or(Vec::new(), |blocks| blocks.bytes(call.data_type.size()).collect());
    let operands = Operands { call, blocks, input, output };
    let mut jobs = Jobs::default();
    jobs.add(&Planner::of_process(), &call, &[&operands], 1)?;
    let jobs: Vec<FoldJob<'_>> = jobs.all().collect();
    if Kernels::table_bytes(jobs.len()).is_some() {
        return Err(Error::internal("one rank with more folds than a launch takes"));
    }
    let Placement { gpu, blocks_max, .. } = &**entry.placement;
    match (jobs.is_empty(), &reducer) {
        (true, _) => Ok(()),
        (false, Some(reducer)) => {
            in_stream(entry, |stream| gpu.kernels.fold(stream, Some(reducer), &jobs, *blocks_max, None, None))
        }
        (false, None) => in_stream(entry, |stream| {
            let mut copies =
                jobs.iter().flat_map(|job| job.targets.iter().map(|target| (*target, job.sources[0])));
            copies.try_for_each(|(target, source)| stream.copy(target, source))
        }),
    }
}

/// Puts work into the entry's stream.
fn in_stream(entry: &Entry<'_>, work: impl FnOnce(&StreamRef) -> consort_cuda::Result<()>) -> Result<()> {
    let Placement { gpu, rank, .. } = &**entry.placement;
    let context = gpu.context();
    let done = context.enter().and_then(|_entered| work(&context.stream_ref(entry.stream)));
    done.map_err(|error| failed(*rank, entry.call.kind.name(), error))
}
