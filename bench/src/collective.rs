//! The collectives that can be measured: names, sizes, bandwidth factors, as in nccl-tests.
//!
//! Invariant: `shape` never gives more bytes than were asked for, and the same on every rank.

use std::fmt;
use std::str::FromStr;

use consort::{DataType, ReduceOp};

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Collective {
    AllReduce,
    Reduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    SendRecv,
}

/// How many elements one call takes and gives on each rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    /// The count argument of the call, and the `count` column.
    pub(crate) count: usize,
    /// Elements of the send buffer.
    pub(crate) send: usize,
    /// Elements of the receive buffer.
    pub(crate) receive: usize,
}

/// One call: the same on every rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Work {
    pub(crate) collective: Collective,
    pub(crate) data_type: DataType,
    /// Of no importance where nothing is folded.
    pub(crate) op: ReduceOp,
    /// Of no importance where there is none.
    pub(crate) root: u32,
    pub(crate) shape: Shape,
}

impl Collective {
    pub(crate) const ALL: [Collective; 6] = [
        Collective::AllReduce,
        Collective::Reduce,
        Collective::Broadcast,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::SendRecv,
    ];

    /// The name of nccl-tests' program without `_perf`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "all_reduce",
            Collective::Reduce => "reduce",
            Collective::Broadcast => "broadcast",
            Collective::AllGather => "all_gather",
            Collective::ReduceScatter => "reduce_scatter",
            Collective::SendRecv => "sendrecv",
        }
    }

    /// Whether values are combined.
    pub(crate) fn folds(self) -> bool {
        matches!(self, Collective::AllReduce | Collective::Reduce | Collective::ReduceScatter)
    }

    /// Whether `-r` has a meaning.
    pub(crate) fn has_root(self) -> bool {
        matches!(self, Collective::Reduce | Collective::Broadcast)
    }

    /// Whether input and output can be the same memory.
    pub(crate) fn has_in_place(self) -> bool {
        self != Collective::SendRecv
    }

    /// Bus bandwidth divided by algorithm bandwidth.
    pub(crate) fn bus_factor(self, ranks: u32) -> f64 {
        let n = f64::from(ranks);
        match self {
            Collective::AllReduce => 2.0 * (n - 1.0) / n,
            Collective::AllGather | Collective::ReduceScatter => (n - 1.0) / n,
            Collective::Reduce | Collective::Broadcast | Collective::SendRecv => 1.0,
        }
    }

    /// The counts for a size of `bytes`. Where the vector is split, `bytes` is the whole of it and each
    /// rank's part is rounded down to 16 bytes.
    pub(crate) fn shape(self, bytes: u64, element_bytes: usize, ranks: u32) -> Shape {
        let elements = bytes as usize / element_bytes;
        let ranks = ranks as usize;
        let part = elements / ranks / (16 / element_bytes) * (16 / element_bytes);
        match self {
            Collective::AllGather => Shape { count: part, send: part, receive: part * ranks },
            Collective::ReduceScatter => Shape { count: part, send: part * ranks, receive: part },
            _ => Shape { count: elements, send: elements, receive: elements },
        }
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
        assert!("alltoall".parse::<Collective>().unwrap_err().contains("reduce_scatter"));
    }

    #[test]
    fn bus_factors() {
        let factors = |n| Collective::ALL.map(|collective| collective.bus_factor(n));
        assert_eq!(factors(4), [1.5, 1.0, 1.0, 0.75, 0.75, 1.0]);
        assert_eq!(factors(1), [0.0, 1.0, 1.0, 0.0, 0.0, 1.0]);
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
    }
}
