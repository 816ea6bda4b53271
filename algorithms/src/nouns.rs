//! The field's nouns as types, so that a rank cannot be passed as a chunk or a channel.

use std::fmt;

macro_rules! noun {
    ($(#[$doc:meta])* $name:ident($inner:ty), $letter:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl $name {
            /// The number as an index.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($letter, "{}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

noun!(
    /// One member of a communicator, counted from 0. In schedules and plans of rooted collectives ranks are
    /// relative: rank 0 is the root, and the planner rotates when it binds peers.
    Rank(u32),
    "r"
);
noun!(
    /// One piece of a buffer, as the [`Partition`](crate::Partition) cuts it, counted from 0.
    Chunk(u32),
    "c"
);
noun!(
    /// One of several independent streams between the same two ranks, counted from 0.
    Channel(u16),
    "ch"
);

/// The kind of a collective. It determines which buffers exist and what each output chunk must hold in the end; `n`
/// is the number of ranks and `count` the caller's element count.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Collective {
    /// Input and output: `count` elements on every rank; output = the fold of all inputs.
    AllReduce,
    /// As all-reduce, but only the root (relative rank 0) has an output.
    Reduce,
    /// The root (relative rank 0) has `count` input elements; every rank's output receives them.
    Broadcast,
    /// Input: `count` elements; output: `n * count`, block `r` from rank `r`.
    AllGather,
    /// Input: `n * count` elements; output: `count`, the fold of every rank's block of this rank's number.
    ReduceScatter,
    /// Two ranks: the input of rank 0 arrives in the output of rank 1. `count` elements.
    SendReceive,
    /// Input and output: `n * count` elements; block `r` of the output is this rank's block of rank `r`'s input.
    AllToAll,
    /// Input: `count` elements; the root (relative rank 0) has an output of `n * count`, block `r` from rank `r`.
    Gather,
    /// The root (relative rank 0) has `n * count` input elements; the output of rank `r` receives block `r`.
    Scatter,
    /// An all-to-all between groups of `group` consecutive ranks whose inputs are alike. Input and output: `n * count`
    /// elements; blocks `h * group ..` of the output, `group` of them, are the blocks that group `h` has in its inputs
    /// at the place of this rank's group. `group` divides `n`.
    AllToAllReplicated {
        /// Ranks of a group; at least 1.
        group: u32,
    },
}

impl Collective {
    /// Every collective that has no parameter.
    pub const ALL: [Collective; 9] = [
        Collective::AllReduce,
        Collective::Reduce,
        Collective::Broadcast,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::SendReceive,
        Collective::AllToAll,
        Collective::Gather,
        Collective::Scatter,
    ];

    /// The name in NCCL's log and in this library, for example `all_reduce`.
    pub const fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "all_reduce",
            Collective::Reduce => "reduce",
            Collective::Broadcast => "broadcast",
            Collective::AllGather => "all_gather",
            Collective::ReduceScatter => "reduce_scatter",
            Collective::SendReceive => "send_receive",
            Collective::AllToAll => "all_to_all",
            Collective::Gather => "gather",
            Collective::Scatter => "scatter",
            Collective::AllToAllReplicated { .. } => "all_to_all_replicated",
        }
    }

    /// Its place in [`Collective::ALL`]; none of a collective with a parameter.
    pub fn number(self) -> Option<usize> {
        Collective::ALL.iter().position(|known| *known == self)
    }

    /// Whether it can run over a number of ranks: groups are of equal size.
    pub const fn fits(self, ranks: u32) -> bool {
        match self {
            Collective::AllToAllReplicated { group } => group > 0 && ranks.is_multiple_of(group),
            _ => true,
        }
    }

    /// The rank whose input that of `rank` is alike: the first of its group, where inputs are replicated.
    pub const fn origin(self, rank: Rank) -> Rank {
        match self {
            Collective::AllToAllReplicated { group } if group > 0 => Rank(rank.0 - rank.0 % group),
            _ => rank,
        }
    }

    /// Whether values are folded, not only moved.
    pub const fn reduces(self) -> bool {
        matches!(self, Collective::AllReduce | Collective::Reduce | Collective::ReduceScatter)
    }

    /// Whether `rank` (relative) passes an input.
    pub const fn has_input(self, rank: Rank) -> bool {
        match self {
            Collective::Broadcast | Collective::SendReceive | Collective::Scatter => rank.0 == 0,
            _ => true,
        }
    }

    /// Whether `rank` (relative) receives an output.
    pub const fn has_output(self, rank: Rank) -> bool {
        match self {
            Collective::Reduce | Collective::Gather => rank.0 == 0,
            Collective::SendReceive => rank.0 == 1,
            _ => true,
        }
    }

    /// How many times `count` elements the input holds.
    pub const fn input_blocks(self, ranks: u32) -> u32 {
        match self {
            Collective::ReduceScatter
            | Collective::AllToAll
            | Collective::AllToAllReplicated { .. }
            | Collective::Scatter => ranks,
            _ => 1,
        }
    }

    /// How many times `count` elements the output holds.
    pub const fn output_blocks(self, ranks: u32) -> u32 {
        match self {
            Collective::AllGather
            | Collective::AllToAll
            | Collective::AllToAllReplicated { .. }
            | Collective::Gather => ranks,
            _ => 1,
        }
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
