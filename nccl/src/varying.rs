//! Collectives whose blocks differ in length, as C passes them.
//!
//! Invariant: counts and displacements are copied, so that the caller may reuse its arrays at once. Absent: checking
//! them, which [`CallV`] does.

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

/// A collective with its blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Varying {
    /// Without its blocks.
    call: CallV<'static>,
    sent: Counts,
    received: Counts,
}

impl Varying {
    /// The call that `make` makes of blocks that are sent and blocks that are received.
    pub fn new(
        sent: Counts,
        received: Counts,
        make: impl for<'a> FnOnce(Blocks<'a>, Blocks<'a>) -> CallV<'a>,
    ) -> Self {
        let call = make(sent.blocks(), received.blocks()).with(Blocks::NONE, Blocks::NONE);
        Varying { call, sent, received }
    }

    /// The call, on this one's blocks.
    pub fn call(&self) -> CallV<'_> {
        self.call.with(self.sent.blocks(), self.received.blocks())
    }
}
