//! The collectives that can be measured: names, sizes, bandwidth factors, as in nccl-tests.
//!
//! Invariant: `shape` never gives more bytes than were asked for, and the same on every rank.

use std::fmt;
use std::str::FromStr;

use consort::DataType;

use crate::cut::Cut;
use crate::failure::Failure;
use crate::operator::Operator;

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Collective {
    AllReduce,
    Reduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    SendRecv,
    AllToAll,
    Gather,
    Scatter,
    HyperCube,
    AllToAllV,
    AllGatherV,
    ReduceScatterV,
    GatherV,
    ScatterV,
}

/// How many elements one call takes and gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    /// The count argument of the call, and the `count` column; of blocks that differ, the longest.
    pub(crate) count: usize,
    /// Elements of the longest send buffer of a rank.
    pub(crate) send: usize,
    /// Elements of the longest receive buffer of a rank.
    pub(crate) receive: usize,
}

/// One call: the same on every rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Work {
    pub(crate) collective: Collective,
    pub(crate) data_type: DataType,
    /// Of no importance where nothing is folded.
    pub(crate) op: Operator,
    /// Of no importance where there is none.
    pub(crate) root: u32,
    pub(crate) shape: Shape,
}

impl Collective {
    pub(crate) const ALL: [Collective; 15] = [
        Collective::AllReduce,
        Collective::Reduce,
        Collective::Broadcast,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::SendRecv,
        Collective::AllToAll,
        Collective::Gather,
        Collective::Scatter,
        Collective::HyperCube,
        Collective::AllToAllV,
        Collective::AllGatherV,
        Collective::ReduceScatterV,
        Collective::GatherV,
        Collective::ScatterV,
    ];

    /// The name of nccl-tests' program without `_perf`, or what it would be.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "all_reduce",
            Collective::Reduce => "reduce",
            Collective::Broadcast => "broadcast",
            Collective::AllGather => "all_gather",
            Collective::ReduceScatter => "reduce_scatter",
            Collective::SendRecv => "sendrecv",
            Collective::AllToAll => "alltoall",
            Collective::Gather => "gather",
            Collective::Scatter => "scatter",
            Collective::HyperCube => "hypercube",
            Collective::AllToAllV => "alltoallv",
            Collective::AllGatherV => "all_gather_v",
            Collective::ReduceScatterV => "reduce_scatter_v",
            Collective::GatherV => "gather_v",
            Collective::ScatterV => "scatter_v",
        }
    }

    /// Whether values are combined.
    pub(crate) fn folds(self) -> bool {
        use Collective::{AllReduce, Reduce, ReduceScatter, ReduceScatterV};
        matches!(self, AllReduce | Reduce | ReduceScatter | ReduceScatterV)
    }

    /// Whether `-r` has a meaning.
    pub(crate) fn has_root(self) -> bool {
        use Collective::{Broadcast, Gather, GatherV, Reduce, Scatter, ScatterV};
        matches!(self, Reduce | Broadcast | Gather | Scatter | GatherV | ScatterV)
    }

    /// Whether a rank's input is its own block and an output has the blocks of all ranks.
    pub(crate) fn gathers(self) -> bool {
        use Collective::{AllGather, AllGatherV, Gather, GatherV, HyperCube};
        matches!(self, AllGather | AllGatherV | Gather | GatherV | HyperCube)
    }

    /// Whether an input has blocks for all ranks and a rank's output is its own block.
    pub(crate) fn scatters(self) -> bool {
        use Collective::{ReduceScatter, ReduceScatterV, Scatter, ScatterV};
        matches!(self, ReduceScatter | ReduceScatterV | Scatter | ScatterV)
    }

    /// Whether blocks differ in length.
    pub(crate) fn varies(self) -> bool {
        use Collective::{AllGatherV, AllToAllV, GatherV, ReduceScatterV, ScatterV};
        matches!(self, AllToAllV | AllGatherV | ReduceScatterV | GatherV | ScatterV)
    }

    /// Whether input and output can be the same memory.
    pub(crate) fn has_in_place(self) -> bool {
        use Collective::{AllToAll, AllToAllV, GatherV, ScatterV, SendRecv};
        !matches!(self, SendRecv | AllToAll | AllToAllV | GatherV | ScatterV)
    }

    /// The planner's collective; `None` where the collective is made of messages, which have no algorithm.
    pub(crate) fn planned(self) -> Option<consort::planning::Collective> {
        use consort::planning::Collective as Planned;
        match self {
            Collective::AllReduce => Some(Planned::AllReduce),
            Collective::Reduce => Some(Planned::Reduce),
            Collective::Broadcast => Some(Planned::Broadcast),
            Collective::AllGather | Collective::AllGatherV => Some(Planned::AllGather),
            Collective::ReduceScatter | Collective::ReduceScatterV => Some(Planned::ReduceScatter),
            Collective::AllToAll => Some(Planned::AllToAll),
            Collective::Gather => Some(Planned::Gather),
            Collective::Scatter => Some(Planned::Scatter),
            Collective::SendRecv
            | Collective::HyperCube
            | Collective::AllToAllV
            | Collective::GatherV
            | Collective::ScatterV => None,
        }
    }

    /// Refuses a number of ranks for which the collective does not exist.
    pub(crate) fn check_ranks(self, ranks: u32) -> Result<(), Failure> {
        if self == Collective::HyperCube && !ranks.is_power_of_two() {
            return Err(Failure::usage(format!(
                "{self} needs a power of two of ranks, not {ranks}; use --ranks"
            )));
        }
        Ok(())
    }

    /// Bus bandwidth divided by algorithm bandwidth.
    pub(crate) fn bus_factor(self, ranks: u32) -> f64 {
        let n = f64::from(ranks);
        match self {
            Collective::AllReduce => 2.0 * (n - 1.0) / n,
            Collective::Reduce | Collective::Broadcast | Collective::SendRecv => 1.0,
            _ => (n - 1.0) / n,
        }
    }

    /// The counts for a size of `bytes`. Where the vector is split, `bytes` is the whole of it; equal parts are
    /// rounded down to 16 bytes.
    pub(crate) fn shape(self, bytes: u64, element_bytes: usize, ranks: u32) -> Shape {
        let elements = bytes as usize / element_bytes;
        let splits = self.gathers() || self.scatters() || self == Collective::AllToAll;
        let part = match (self.varies(), splits) {
            (true, _) => Cut::uneven(elements, ranks).longest(),
            (_, true) => elements / ranks as usize / (16 / element_bytes) * (16 / element_bytes),
            _ => elements,
        };
        let all = if splits && !self.varies() { part * ranks as usize } else { elements };
        let send = if self.gathers() { part } else { all };
        let receive = if self.scatters() { part } else { all };
        Shape { count: part, send, receive }
    }
}

impl Work {
    /// The blocks of the whole vector, where it is split.
    pub(crate) fn cut(&self, ranks: u32) -> Cut {
        let elements = self.shape.elements();
        if self.collective.varies() { Cut::uneven(elements, ranks) } else { Cut::even(elements, ranks) }
    }
}

impl Shape {
    /// The `size` column.
    pub(crate) fn elements(&self) -> usize {
        self.send.max(self.receive)
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Collective {
    type Err = String;

    /// `allreduce`, `all_reduce`, `all-reduce`, `all_reduce_perf` and so on, upper or lower case.
    fn from_str(text: &str) -> Result<Self, String> {
        let lower = text.to_ascii_lowercase();
        let plain = lower.strip_suffix("_perf").unwrap_or(&lower).replace(['_', '-'], "");
        Collective::ALL.into_iter().find(|known| known.name().replace('_', "") == plain).ok_or_else(|| {
            let known = Collective::ALL.map(Collective::name).join(", ");
            format!("'{text}' is no collective that can be measured; known: {known}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_and_without_underscore() {
        for text in
            ["allreduce", "all_reduce", "all-reduce", "all_reduce_perf", "ALLREDUCE", "allreduce_perf"]
        {
            assert_eq!(text.parse(), Ok(Collective::AllReduce), "{text}");
        }
        assert_eq!("send_recv".parse(), Ok(Collective::SendRecv));
        assert_eq!("reduce_scatter_perf".parse(), Ok(Collective::ReduceScatter));
        for known in Collective::ALL {
            assert_eq!(known.name().parse(), Ok(known));
        }
        assert_eq!("all_to_all_v".parse(), Ok(Collective::AllToAllV));
        assert_eq!("allgatherv".parse(), Ok(Collective::AllGatherV));
        assert!("alltonone".parse::<Collective>().unwrap_err().contains("reduce_scatter"));
    }

    #[test]
    fn bus_factors() {
        let factors = |n| Collective::ALL.map(|collective| collective.bus_factor(n));
        assert_eq!(factors(4)[..6], [1.5, 1.0, 1.0, 0.75, 0.75, 1.0]);
        assert_eq!(factors(4)[6..], [0.75; 9]);
        assert_eq!(factors(1)[..6], [0.0, 1.0, 1.0, 0.0, 0.0, 1.0]);
        assert_eq!(factors(1)[6..], [0.0; 9]);
    }

    #[test]
    fn sizes_are_totals_and_parts_are_rounded_down() {
        let shape = |collective: Collective, bytes, element, ranks| {
            let Shape { count, send, receive } = collective.shape(bytes, element, ranks);
            (count, send, receive)
        };
        assert_eq!(shape(Collective::AllReduce, 1027, 4, 3), (256, 256, 256));
        assert_eq!(shape(Collective::SendRecv, 9, 8, 3), (1, 1, 1));
        assert_eq!(shape(Collective::AllGather, 1024, 4, 4), (64, 64, 256));
        assert_eq!(shape(Collective::AllGather, 1000, 4, 3), (80, 80, 240));
        assert_eq!(shape(Collective::ReduceScatter, 1000, 1, 3), (320, 960, 320));
        assert_eq!(shape(Collective::ReduceScatter, 8, 4, 2), (0, 0, 0));
        assert_eq!(shape(Collective::ReduceScatter, 1000, 8, 3), (40, 120, 40));
        assert_eq!(shape(Collective::AllToAll, 1000, 4, 3), (80, 240, 240));
        assert_eq!(shape(Collective::Gather, 1000, 4, 3), (80, 80, 240));
        assert_eq!(shape(Collective::Scatter, 1000, 4, 3), (80, 240, 80));
        assert_eq!(shape(Collective::HyperCube, 1000, 4, 4), (60, 60, 240));
        assert_eq!(shape(Collective::Scatter, 1000, 2, 0x1_0000), (0, 0, 0));
    }

    #[test]
    fn blocks_that_differ_take_all_of_the_size() {
        let shape = |collective: Collective, bytes, element, ranks| {
            let Shape { count, send, receive } = collective.shape(bytes, element, ranks);
            (count, send, receive)
        };
        assert_eq!(shape(Collective::AllToAllV, 1000, 4, 4), (100, 250, 250));
        assert_eq!(shape(Collective::AllGatherV, 1000, 4, 4), (100, 100, 250));
        assert_eq!(shape(Collective::GatherV, 1003, 4, 4), (100, 100, 250));
        assert_eq!(shape(Collective::ReduceScatterV, 8, 4, 4), (1, 2, 1));
        assert_eq!(shape(Collective::ScatterV, 0, 4, 4), (0, 0, 0));
    }

    #[test]
    fn a_hypercube_has_a_power_of_two_of_corners() {
        assert_eq!(
            [1, 2, 3, 4, 6, 8].map(|n| Collective::HyperCube.check_ranks(n).is_ok()),
            [true, true, false, true, false, true]
        );
        assert!(Collective::AllToAll.check_ranks(3).is_ok());
    }
}
