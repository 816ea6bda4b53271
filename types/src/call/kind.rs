//! The kinds of calls: their codes, their names and the collectives that carry them out.
//!
//! Invariant: a code is never given to another kind. Absent: what a kind reads and writes (`semantics`).

use consort_algorithms::Collective;

/// The kind of an operation. The discriminants travel in digests.
#[expect(missing_docs, reason = "each kind is the call of its name")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    AllReduce = 1,
    Reduce = 2,
    Broadcast = 3,
    AllGather = 4,
    ReduceScatter = 5,
    Barrier = 6,
    Split = 7,
    Send = 8,
    Receive = 9,
    AllToAll = 10,
    Gather = 11,
    Scatter = 12,
    AllGatherV = 13,
    ReduceScatterV = 14,
    Grow = 15,
    Devices = 16,
    Replan = 17,
    AllToAllReplicated = 18,
    Mesh = 19,
}

impl Kind {
    /// All kinds, in the order of their codes.
    pub const ALL: [Kind; 19] = [
        Kind::AllReduce,
        Kind::Reduce,
        Kind::Broadcast,
        Kind::AllGather,
        Kind::ReduceScatter,
        Kind::Barrier,
        Kind::Split,
        Kind::Send,
        Kind::Receive,
        Kind::AllToAll,
        Kind::Gather,
        Kind::Scatter,
        Kind::AllGatherV,
        Kind::ReduceScatterV,
        Kind::Grow,
        Kind::Devices,
        Kind::Replan,
        Kind::AllToAllReplicated,
        Kind::Mesh,
    ];

    /// The kind of a code; none of an unknown one.
    pub fn from_code(code: u8) -> Option<Self> {
        Kind::ALL.get(usize::from(code).wrapping_sub(1)).copied()
    }

    /// Whether it is a message between two ranks; messages are numbered per pair of ranks.
    #[inline]
    pub fn is_message(self) -> bool {
        matches!(self, Kind::Send | Kind::Receive)
    }

    /// Whether the call names a rank: the root, or the other end of a message.
    pub fn is_rooted(self) -> bool {
        self.semantics().is_rooted
    }

    /// Whether blocks differ in length, so that every rank must know all lengths.
    pub fn varies(self) -> bool {
        matches!(self, Kind::AllGatherV | Kind::ReduceScatterV)
    }

    /// Whether the library makes this call for itself. Settings that name algorithms for the program's calls do not
    /// apply to it.
    pub fn is_own(self) -> bool {
        matches!(self, Kind::Barrier | Kind::Split | Kind::Grow | Kind::Devices | Kind::Replan | Kind::Mesh)
    }

    /// The other end of a message (send and receive); the kind itself for collectives.
    pub fn opposite(self) -> Self {
        match self {
            Kind::Send => Kind::Receive,
            Kind::Receive => Kind::Send,
            other => other,
        }
    }

    /// The name of the call in texts, as `all_reduce`.
    pub fn name(self) -> &'static str {
        match self {
            Kind::AllReduce => "all_reduce",
            Kind::Reduce => "reduce",
            Kind::Broadcast => "broadcast",
            Kind::AllGather => "all_gather",
            Kind::ReduceScatter => "reduce_scatter",
            Kind::Barrier => "barrier",
            Kind::Split => "split",
            Kind::Send => "send",
            Kind::Receive => "receive",
            Kind::AllToAll => "all_to_all",
            Kind::Gather => "gather",
            Kind::Scatter => "scatter",
            Kind::AllGatherV => "all_gather_v",
            Kind::ReduceScatterV => "reduce_scatter_v",
            Kind::Grow => "grow",
            Kind::Devices => "devices",
            Kind::Replan => "replan",
            Kind::AllToAllReplicated => "all_to_all_replicated",
            Kind::Mesh => "mesh",
        }
    }

    /// The collective whose plan carries the call out, of a call without groups; see [`Call::collective`](super::Call::collective).
    pub fn collective(self) -> Collective {
        match self {
            Kind::AllReduce | Kind::Barrier => Collective::AllReduce,
            Kind::Reduce => Collective::Reduce,
            Kind::Broadcast => Collective::Broadcast,
            Kind::AllGather
            | Kind::AllGatherV
            | Kind::Split
            | Kind::Grow
            | Kind::Devices
            | Kind::Replan
            | Kind::Mesh => Collective::AllGather,
            Kind::ReduceScatter | Kind::ReduceScatterV => Collective::ReduceScatter,
            Kind::AllToAll => Collective::AllToAll,
            Kind::AllToAllReplicated => Collective::AllToAllReplicated { group: 1 },
            Kind::Gather => Collective::Gather,
            Kind::Scatter => Collective::Scatter,
            Kind::Send | Kind::Receive => Collective::SendReceive,
        }
    }
}
