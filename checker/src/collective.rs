//! What each collective starts from and must end with.

use std::fmt;

/// The kind of a collective; `n` is the number of ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names of MPI and NCCL")]
pub enum Collective {
    AllReduce,
    Reduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    AllToAll,
}

/// All collectives that have bounds, by name.
const NAMES: [(&str, Collective); 6] = [
    ("all_reduce", Collective::AllReduce),
    ("reduce", Collective::Reduce),
    ("broadcast", Collective::Broadcast),
    ("all_gather", Collective::AllGather),
    ("reduce_scatter", Collective::ReduceScatter),
    ("all_to_all", Collective::AllToAll),
];

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.iter().find(|(_, known)| known == self).map_or("", |(name, _)| name);
        f.write_str(name)
    }
}

impl Collective {
    pub(crate) fn named(name: &str) -> Option<Collective> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, collective)| *collective)
    }

    pub(crate) fn is_rooted(self) -> bool {
        matches!(self, Collective::Broadcast | Collective::Reduce)
    }

    pub(crate) fn has_input(self, rank: u32, root: u32) -> bool {
        self != Collective::Broadcast || rank == root
    }

    pub(crate) fn has_output(self, rank: u32, root: u32) -> bool {
        self != Collective::Reduce || rank == root
    }

    /// Blocks of the input; a block is a rank's part, or the whole vector where there are no parts.
    pub(crate) fn input_blocks(self, ranks: u32) -> u32 {
        if matches!(self, Collective::ReduceScatter | Collective::AllToAll) { ranks } else { 1 }
    }

    pub(crate) fn output_blocks(self, ranks: u32) -> u32 {
        if matches!(self, Collective::AllGather | Collective::AllToAll) { ranks } else { 1 }
    }

    /// The input chunk that chunk `chunk` of the output of `rank` must be, and the rank whose; without one it is the fold of
    /// every rank's. Each block is cut into `parts` chunks.
    pub(crate) fn required(self, rank: u32, chunk: u32, root: u32, parts: u32) -> (u32, Option<u32>) {
        let (block, piece) = (chunk / parts, chunk % parts);
        match self {
            Collective::AllReduce | Collective::Reduce => (chunk, None),
            Collective::Broadcast => (chunk, Some(root)),
            Collective::AllGather => (piece, Some(block)),
            Collective::ReduceScatter => (rank * parts + piece, None),
            Collective::AllToAll => (rank * parts + piece, Some(block)),
        }
    }
}
