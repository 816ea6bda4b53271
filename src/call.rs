//! One operation as the caller asks for it: what, on how many elements of which type, and the checks that
//! need no peer.

use consort_algorithms::Collective;
use consort_kernels::{DataType, ReduceOp};
use consort_memory::{Span, SpanMut};

use crate::Rank;
use crate::error::{Error, Result};
use crate::recorder::Descriptor;

/// What an operation is called. The discriminants travel in digests.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    AllReduce = 1,
    Reduce = 2,
    Broadcast = 3,
    AllGather = 4,
    ReduceScatter = 5,
    Barrier = 6,
    Split = 7,
    Send = 8,
    Receive = 9,
}

impl Kind {
    pub(crate) const ALL: [Kind; 9] = [
        Kind::AllReduce,
        Kind::Reduce,
        Kind::Broadcast,
        Kind::AllGather,
        Kind::ReduceScatter,
        Kind::Barrier,
        Kind::Split,
        Kind::Send,
        Kind::Receive,
    ];

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Kind::ALL.into_iter().find(|kind| *kind as u8 == code)
    }

    /// Whether it is a message between two ranks, numbered per pair.
    #[inline]
    pub(crate) fn is_message(self) -> bool {
        matches!(self, Kind::Send | Kind::Receive)
    }

    /// The other end of a message; itself otherwise.
    pub(crate) fn opposite(self) -> Self {
        match self {
            Kind::Send => Kind::Receive,
            Kind::Receive => Kind::Send,
            other => other,
        }
    }

    pub(crate) fn name(self) -> &'static str {
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
        }
    }

    /// The collective whose plan does it.
    pub(crate) fn collective(self) -> Collective {
        match self {
            Kind::AllReduce | Kind::Barrier => Collective::AllReduce,
            Kind::Reduce => Collective::Reduce,
            Kind::Broadcast => Collective::Broadcast,
            Kind::AllGather | Kind::Split => Collective::AllGather,
            Kind::ReduceScatter => Collective::ReduceScatter,
            Kind::Send | Kind::Receive => Collective::SendReceive,
        }
    }
}

/// A collective on untyped memory, for bindings; typed callers use the methods of
/// [`Communicator`](crate::Communicator). Counts are NCCL's: elements of the whole vector for all-reduce,
/// reduce and broadcast, elements per rank for all-gather and reduce-scatter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Call {
    pub(crate) kind: Kind,
    pub(crate) data_type: DataType,
    pub(crate) op: Option<ReduceOp>,
    pub(crate) root: Rank,
    pub(crate) count: usize,
}

impl Call {
    /// Folds `count` elements of all ranks; every rank gets the result.
    pub fn all_reduce(data_type: DataType, op: ReduceOp, count: usize) -> Self {
        Call { kind: Kind::AllReduce, data_type, op: Some(op), root: 0, count }
    }

    /// Folds `count` elements of all ranks; `root` gets the result.
    pub fn reduce(data_type: DataType, op: ReduceOp, count: usize, root: Rank) -> Self {
        Call { kind: Kind::Reduce, data_type, op: Some(op), root, count }
    }

    /// Every rank gets `count` elements of `root`.
    pub fn broadcast(data_type: DataType, count: usize, root: Rank) -> Self {
        Call { kind: Kind::Broadcast, data_type, op: None, root, count }
    }

    /// Every rank gets `count` elements of every rank, in rank order.
    pub fn all_gather(data_type: DataType, count: usize) -> Self {
        Call { kind: Kind::AllGather, data_type, op: None, root: 0, count }
    }

    /// Folds `size * count` elements of all ranks; rank `r` gets elements `r * count ..` of the result.
    pub fn reduce_scatter(data_type: DataType, op: ReduceOp, count: usize) -> Self {
        Call { kind: Kind::ReduceScatter, data_type, op: Some(op), root: 0, count }
    }

    /// Bytes that the input of rank `rank` of `size` must have; `usize::MAX` where the number overflows, which
    /// no buffer has.
    pub fn input_bytes(&self, rank: Rank, size: u32) -> usize {
        let has = match self.kind {
            Kind::Broadcast => rank == self.root,
            Kind::Receive => false,
            _ => true,
        };
        let blocks = self.kind.collective().input_blocks(size) as usize;
        if has { blocks.saturating_mul(self.count).saturating_mul(self.data_type.size()) } else { 0 }
    }

    /// Bytes that the output of rank `rank` of `size` must have; `usize::MAX` where the number overflows.
    pub fn output_bytes(&self, rank: Rank, size: u32) -> usize {
        let has = match self.kind {
            Kind::Reduce => rank == self.root,
            Kind::Send => false,
            _ => true,
        };
        let blocks = self.kind.collective().output_blocks(size) as usize;
        if has { blocks.saturating_mul(self.count).saturating_mul(self.data_type.size()) } else { 0 }
    }

    pub(crate) fn descriptor(&self) -> Descriptor {
        Descriptor {
            kind: self.kind,
            data_type: self.data_type,
            op: self.op,
            root: self.root,
            count: self.count as u64,
        }
    }

    /// Everything about the call and its buffers that this rank can check alone.
    pub(crate) fn check(&self, rank: Rank, size: u32, input: Span<'_>, output: SpanMut<'_>) -> Result<()> {
        let name = self.kind.name();
        if self.root >= size {
            return Err(Error::invalid(
                format!("{name}: rank {} does not exist in a communicator of {size}", self.root),
                format!("pass a rank between 0 and {}", size - 1),
            ));
        }
        let element = self.data_type.size() as u128;
        let blocks =
            self.kind.collective().input_blocks(size).max(self.kind.collective().output_blocks(size));
        if self.count as u128 * element * blocks as u128 > isize::MAX as u128 {
            return Err(Error::invalid(
                format!(
                    "{name}: {} elements of {} bytes on {size} ranks exceed the address space",
                    self.count, element
                ),
                "pass the number of elements, not of bytes",
            ));
        }
        let (needs_in, needs_out) = (self.input_bytes(rank, size), self.output_bytes(rank, size));
        for (what, needed, bytes) in [("input", needs_in, input.len()), ("output", needs_out, output.len())] {
            if needed != 0 && bytes != needed {
                return Err(Error::invalid(
                    format!("{name}: the {what} of rank {rank} has {bytes} bytes and must have {needed}"),
                    format!("the call is {}", self.descriptor()),
                ));
            }
        }
        if needs_in != 0 && needs_out != 0 {
            self.check_overlap(rank, input, output)?;
        }
        Ok(())
    }

    /// The two buffers must be apart or stand as the in-place form wants it.
    fn check_overlap(&self, rank: Rank, input: Span<'_>, output: SpanMut<'_>) -> Result<()> {
        let (from, to) = (input.as_ptr() as usize, output.as_mut_ptr() as usize);
        let apart = from + input.len() <= to || to + output.len() <= from;
        let block = self.count * self.data_type.size() * rank as usize;
        let in_place = match self.kind {
            Kind::AllGather | Kind::Split => from == to + block,
            Kind::ReduceScatter => to == from + block,
            Kind::Send | Kind::Receive => false,
            _ => from == to,
        };
        if apart || in_place {
            return Ok(());
        }
        let form = match self.kind {
            Kind::AllGather => "the input is this rank's block of the output",
            Kind::ReduceScatter => "the output is this rank's block of the input",
            Kind::Send | Kind::Receive => "there is none for point-to-point",
            _ => "both are the same buffer",
        };
        Err(Error::invalid(
            format!("{}: input and output overlap, but not as the in-place form wants it", self.kind.name()),
            format!("use separate buffers, or the in-place form ({form})"),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_in_place_overlap_is_taken() {
        let mut data = vec![0f32; 64];
        let all = SpanMut::of(&mut data);
        let call = Call::all_reduce(DataType::Float32, ReduceOp::Sum, 32);
        assert!(call.check(0, 2, all.read().slice(0, 128), all.slice(0, 128)).is_ok());
        assert!(call.check(0, 2, all.read().slice(0, 128), all.slice(128, 128)).is_ok());
        assert!(call.check(0, 2, all.read().slice(4, 128), all.slice(0, 128)).is_err());
        let gather = Call::all_gather(DataType::Float32, 32);
        assert!(gather.check(1, 2, all.read().slice(128, 128), all).is_ok());
        assert!(gather.check(0, 2, all.read().slice(128, 128), all).is_err());
        let scatter = Call::reduce_scatter(DataType::Float32, ReduceOp::Sum, 32);
        assert!(scatter.check(1, 2, all.read(), all.slice(128, 128)).is_ok());
        assert!(scatter.check(1, 2, all.read(), all.slice(64, 128)).is_err());
    }

    #[test]
    fn roots_sizes_and_lengths_are_checked() {
        let mut data = vec![0f32; 8];
        let all = SpanMut::of(&mut data);
        let error = |call: Call, size| call.check(0, size, all.read(), all).unwrap_err().to_string();
        assert!(error(Call::broadcast(DataType::Float32, 8, 2), 2).contains("rank 2 does not exist"));
        assert!(error(Call::all_reduce(DataType::Float32, ReduceOp::Sum, 9), 2).contains("must have 36"));
        let long = Call::all_gather(DataType::Float64, usize::MAX / 4);
        assert!(error(long, 4).contains("address space"));
        assert_eq!((long.input_bytes(0, 4), long.output_bytes(0, 4)), (usize::MAX, usize::MAX));
    }
}
