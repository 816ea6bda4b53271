//! Zero-copy collectives: every rank of a host reads and writes the others' buffers where they are, and nothing is staged.
//!
//! What runs is the folds of the verified [`mapped`](consort_algorithms::mapped()) plan. Its entry is a round of notes in which
//! ranks [offer](offer::Offer) their buffers; its exit is another. If some buffer cannot be offered, all ranks see that in the
//! first round, and take the planned way. [`run`] draws the stages.
//!
//! Invariant: no rank writes to another's memory but between the two rounds, and none after that rank's call has
//! returned, whatever happens: see [`Run::withdraw`]. Memory of others is mapped when it is first used, kept, and
//! forgotten oldest first. Absent: waiting, staging, messages.

mod folds;
#[cfg(test)]
mod fuzz;
mod offer;
mod peer_memory;
mod run;
#[cfg(test)]
mod tests;
mod turns;

use crate::Rank;
use crate::engine::Progress;
use consort_types::call::Call;

pub(crate) use peer_memory::PeerMemory;
pub(crate) use run::{Reach, Run};

/// What a turn came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Progress(Progress),
    /// Some buffer cannot be mapped, or none may be: the operation goes the planned way.
    Declined,
}

/// Whether others touch the input and the output of a rank.
fn touched(call: &Call, rank: Rank) -> [bool; 2] {
    call.kind.semantics().is_touched(rank, call.root)
}
