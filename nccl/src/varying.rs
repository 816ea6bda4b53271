//! Collectives whose blocks differ in length, as C passes them.
//!
//! Invariant: counts and displacements are copied, so that the caller may reuse its arrays at once. Absent: checking
//! them, which [`CallV`] does.

use consort_kernels::DataType;

use super::operators::Reduction;
use consort_types::Rank;
use consort_types::blocks::Blocks;
use consort_types::varying::CallV;

/// The blocks of a buffer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counts {
    counts: Vec<usize>,
    displacements: Option<Vec<usize>>,
}

impl Counts {
    /// Counts and, unless the blocks lie one after the other, the place of each; in elements.
    pub fn new(counts: Vec<usize>, displacements: Option<Vec<usize>>) -> Self {
        Counts { counts, displacements }
    }

    /// The blocks of a rank that has none.
    pub fn none() -> Self {
        Counts::new(Vec::new(), None)
    }

    fn blocks(&self) -> Blocks<'_> {
        match &self.displacements {
            Some(displacements) => Blocks::at(&self.counts, displacements),
            None => Blocks::from(&self.counts),
        }
    }
}

/// The kind of collective with its blocks; see the functions of [`CallV`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Varying {
    /// All-gather into such blocks.
    AllGather(DataType, Counts),
    /// Reduce-scatter of such blocks.
    ReduceScatter(DataType, Reduction, Counts),
    /// All-to-all of blocks that are sent and blocks that are received.
    AllToAll(DataType, Counts, Counts),
    /// Gather of this rank's elements into such blocks of the root.
    Gather(DataType, usize, Counts, Rank),
    /// Scatter of such blocks of the root into this rank's elements.
    Scatter(DataType, Counts, usize, Rank),
}

impl Varying {
    /// The call with these blocks.
    pub fn call(&self) -> CallV<'_> {
        match self {
            Varying::AllGather(element, blocks) => CallV::all_gather(*element, blocks.blocks()),
            Varying::ReduceScatter(element, Reduction { op, scalar }, blocks) => {
                let call = CallV::reduce_scatter(*element, *op, blocks.blocks());
                scalar.map_or(call, |scalar| call.scaled_by(scalar))
            }
            Varying::AllToAll(element, sent, received) => {
                CallV::all_to_all(*element, sent.blocks(), received.blocks())
            }
            Varying::Gather(element, count, blocks, root) => {
                CallV::gather(*element, *count, blocks.blocks(), *root)
            }
            Varying::Scatter(element, blocks, count, root) => {
                CallV::scatter(*element, blocks.blocks(), *count, *root)
            }
        }
    }
}
