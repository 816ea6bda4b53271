//! What each collective starts from and must end with.

/// All collectives that have bounds.
const NAMES: [&str; 6] = ["all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all"];

/// A collective by its name, one of [`NAMES`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Collective(pub(crate) &'static str);

impl Collective {
    pub(crate) fn named(name: &str) -> Option<Collective> {
        NAMES.into_iter().find(|known| *known == name).map(Collective)
    }

    pub(crate) fn has_input(self, rank: u32, root: u32) -> bool {
        self.0 != "broadcast" || rank == root
    }

    pub(crate) fn has_output(self, rank: u32, root: u32) -> bool {
        self.0 != "reduce" || rank == root
    }

    /// Blocks of the input; a block is a rank's part, or the whole vector where there are no parts.
    pub(crate) fn input_blocks(self, ranks: u32) -> u32 {
        if matches!(self.0, "reduce_scatter" | "all_to_all") { ranks } else { 1 }
    }

    pub(crate) fn output_blocks(self, ranks: u32) -> u32 {
        if matches!(self.0, "all_gather" | "all_to_all") { ranks } else { 1 }
    }

    /// The input chunk that chunk `chunk` of the output of `rank` must be, and the rank whose; without one it is the
    /// fold of every rank's. Each block is cut into `parts` chunks.
    pub(crate) fn required(self, rank: u32, chunk: u32, root: u32, parts: u32) -> (u32, Option<u32>) {
        let (block, piece) = (chunk / parts, chunk % parts);
        match self.0 {
            "broadcast" => (chunk, Some(root)),
            "all_gather" => (piece, Some(block)),
            "reduce_scatter" => (rank * parts + piece, None),
            "all_to_all" => (rank * parts + piece, Some(block)),
            _ => (chunk, None),
        }
    }
}
