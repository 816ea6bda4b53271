//! The common part of every call over mailboxes: the values it is made from, and the look at its end.
//!
//! Invariant: a call is made first and put into its stream with those that belong to it
//! ([`crate::device::submission`]). Absent: what is put there.

use std::sync::Arc;

use consort_algorithms::plan::Plan;
use consort_algorithms::{Block, Extents};
use consort_cuda::CudaError;

use super::super::gpu::Gpu;
use super::super::placement::Entry;
use super::super::slots::{Health, Slot};
use super::super::submission::{Outcome, Submission, Work};
use super::super::trouble::failed;
use super::{Announced, Shared};
use crate::Rank;
use crate::engine::watched::{Fault, Standing, State, Watched};
use crate::engine::{Memory, Source};
use consort_types::call::Call;
use consort_types::error::{Error, Result};

/// The values from which a call is made. The caller has entered the context, and is alone.
pub(in super::super) struct Order<'a> {
    pub(in super::super) shared: &'a Arc<Shared>,
    pub(in super::super) entry: &'a Entry<'a>,
    pub(in super::super) blocks: &'a [Block],
    /// The call's number, the same on all ranks.
    pub(in super::super) number: u64,
    pub(in super::super) submission: &'a Arc<Submission>,
}

/// A call that is in its stream, or on its way there.
struct InStream<C: InMailboxes> {
    shared: Arc<Shared>,
    gpu: Arc<Gpu>,
    over: Slot,
    submission: Arc<Submission>,
    health: Option<Health>,
    announced: Announced,
    call: C,
}

/// The part of a call in its stream that differs between kernels and streams.
pub(super) trait InMailboxes: Send {
    /// The ranks that the call waits for, if it waits; all peers where that is not known.
    fn peers(&self, shared: &Shared) -> Vec<Rank>;

    /// Where the call stands, as far as the device has said.
    fn standing(&self, _shared: &Shared) -> Option<Standing> {
        None
    }

    /// The program's name.
    fn algorithm(&self) -> &str;
}

impl Order<'_> {
    /// The library's error for an error of the driver.
    pub(super) fn refused(&self, error: CudaError) -> Error {
        failed(self.shared.rank, self.entry.call.kind.name(), error)
    }

    /// A slot in which the device says that the call is over.
    pub(super) fn slot(&self) -> Result<Slot> {
        self.entry.placement.gpu.slots.take().map_err(|error| self.refused(error))
    }

    /// Tells the peers the mark of the call.
    pub(super) fn announce(&self) -> Announced {
        self.shared.announce(&self.entry.call, self.number)
    }

    /// The lengths of the plan's chunks.
    pub(super) fn extents(&self, plan: &Plan) -> Extents<'_> {
        extents(plan, &self.entry.call, self.blocks, self.shared.rank, self.entry.communicator.size())
    }

    /// The call is ready to be put into its stream, as this work, when all that belongs to it is there.
    pub(super) fn made<C: InMailboxes + 'static>(
        self,
        announced: Announced,
        over: Slot,
        call: C,
        work: Work,
    ) -> (Box<dyn Watched>, Memory, Work) {
        let (shared, gpu) = (self.shared.clone(), self.entry.placement.gpu.clone());
        let submission = self.submission.clone();
        let made = InStream { shared, gpu, over, submission, health: None, announced, call };
        (
            Box::new(made),
            Memory { input: Source::Elsewhere, output: None, _kept: self.entry.kept.clone() },
            work,
        )
    }
}

/// The lengths of the chunks of a call's plan on rank `rank` of `size`.
pub(in super::super) fn extents<'a>(
    plan: &Plan,
    call: &Call,
    blocks: &'a [Block],
    rank: Rank,
    size: u32,
) -> Extents<'a> {
    let equal = call.extents(plan.partition, size);
    if call.kind.varies() { equal.of_blocks(blocks, rank) } else { equal }
}

impl<C: InMailboxes> Watched for InStream<C> {
    fn poll(&mut self) -> std::result::Result<State, Fault> {
        if self.over.is_done() {
            // All that this rank needs was called by then.
            let differs = self.shared.differs(&self.announced);
            return differs.map_or(Ok(State::Done), |peer| Err(Fault::Mismatch { peer }));
        }
        match self.submission.get() {
            None => Ok(State::Entered),
            Some(Outcome::Refused { error, .. }) => Err(Fault::Failed(error.clone())),
            Some(Outcome::Submitted(after)) => {
                let (gpu, rank) = (&self.gpu, self.shared.rank);
                self.health.get_or_insert_with(|| Health::new(gpu, rank, after)).check()?;
                Ok(State::Enqueued)
            }
        }
    }

    fn device(&self) -> usize {
        self.gpu.number()
    }

    fn moved(&mut self) -> Result<()> {
        Err(Error::internal("the host moved what a device moves"))
    }

    fn peers(&self) -> Vec<Rank> {
        self.call.peers(&self.shared)
    }

    fn standing(&self) -> Option<Standing> {
        self.call.standing(&self.shared)
    }

    fn give_up(&mut self) {
        if !self.over.is_done() {
            self.shared.release();
        }
    }

    fn is_over(&self) -> bool {
        let never_began = matches!(self.submission.get(), Some(Outcome::Refused { began: false, .. }));
        never_began || self.over.is_done()
    }

    fn algorithm(&self) -> &str {
        self.call.algorithm()
    }
}

impl<C: InMailboxes> Drop for InStream<C> {
    fn drop(&mut self) {
        self.give_up();
    }
}
