//! One operation as the caller asks for it (kind, number and type of elements, operator, root), and the checks that
//! need no peer.

mod descriptor;
mod kind;
mod semantics;

use consort_algorithms::catalogue::Algorithm;
use consort_algorithms::{Block, Collective};
use consort_kernels::{DataType, ReduceOp, Scalar};

use crate::Rank;
use crate::blocks::Blocks;
use crate::error::{Error, Result};
use crate::stretch::Stretch;

pub use descriptor::{Descriptor, Named, digest_of, seed_of};
pub use kind::Kind;
pub use semantics::Extent;
use semantics::InPlace;

/// The operator as ranks compare it. The scalars of a pre-multiplied sum may differ between ranks, so they are not
/// part of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operator {
    /// One of the built-in operators.
    Plain(ReduceOp),
    /// A sum of contributions that each rank has multiplied by a scalar of its own.
    PreMulSum,
}

impl Operator {
    /// One more than the largest of the plain ones.
    const PRE_MUL_SUM: u32 = ReduceOp::ALL.len() as u32;

    /// A number below 7; it travels in digests.
    #[inline]
    pub fn code(self) -> u32 {
        match self {
            Operator::Plain(op) => op.code(),
            Operator::PreMulSum => Self::PRE_MUL_SUM,
        }
    }

    /// The operator of a code; none of an unknown one.
    pub fn from_code(code: u32) -> Option<Self> {
        match code {
            Self::PRE_MUL_SUM => Some(Operator::PreMulSum),
            code => ReduceOp::from_code(code).map(Operator::Plain),
        }
    }

    /// The spelling of nccl-tests.
    pub fn name(self) -> &'static str {
        match self {
            Operator::Plain(op) => op.name(),
            Operator::PreMulSum => "mulsum",
        }
    }
}

/// A collective on untyped memory, for bindings; typed callers use the methods of
/// `Communicator`. Counts are NCCL's: elements of the whole vector for all-reduce,
/// reduce and broadcast, elements per rank for all others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Call {
    /// Which collective or message.
    pub kind: Kind,
    /// Type of the elements.
    pub data_type: DataType,
    /// How contributions are folded, for reductions.
    pub op: Option<ReduceOp>,
    /// The scalar that this rank's contribution is multiplied by first.
    pub scalar: Option<Scalar>,
    /// The root of a rooted collective, the other rank of a message; 0 for others.
    pub root: Rank,
    /// Elements of a block; where blocks differ, of the longest.
    pub count: usize,
    /// A digest of all blocks' lengths where they differ; 0 otherwise.
    pub counts: u32,
    /// Ranks of a group, where the inputs of a group are alike; 0 for calls without groups.
    pub group: u32,
    /// The algorithm that must run the call, where the caller names one.
    pub algorithm: Option<Algorithm>,
}

impl Call {
    /// A call of equal blocks.
    pub const fn new(
        kind: Kind,
        data_type: DataType,
        op: Option<ReduceOp>,
        root: Rank,
        count: usize,
    ) -> Self {
        Call { kind, data_type, op, scalar: None, root, count, counts: 0, group: 0, algorithm: None }
    }

    /// A call of blocks that differ.
    pub fn varying(kind: Kind, data_type: DataType, op: Option<ReduceOp>, blocks: &Blocks<'_>) -> Self {
        Call { counts: blocks.digest(), ..Call::new(kind, data_type, op, 0, blocks.longest()) }
    }

    /// Folds `count` elements of all ranks; every rank gets the result.
    #[inline]
    pub fn all_reduce(data_type: DataType, op: ReduceOp, count: usize) -> Self {
        Call::new(Kind::AllReduce, data_type, Some(op), 0, count)
    }

    /// Folds `count` elements of all ranks; `root` gets the result.
    #[inline]
    pub fn reduce(data_type: DataType, op: ReduceOp, count: usize, root: Rank) -> Self {
        Call::new(Kind::Reduce, data_type, Some(op), root, count)
    }

    /// Every rank gets `count` elements of `root`.
    #[inline]
    pub fn broadcast(data_type: DataType, count: usize, root: Rank) -> Self {
        Call::new(Kind::Broadcast, data_type, None, root, count)
    }

    /// Every rank gets `count` elements of every rank, in rank order.
    #[inline]
    pub fn all_gather(data_type: DataType, count: usize) -> Self {
        Call::new(Kind::AllGather, data_type, None, 0, count)
    }

    /// Folds `size * count` elements of all ranks; rank `r` gets elements `r * count ..` of the result.
    #[inline]
    pub fn reduce_scatter(data_type: DataType, op: ReduceOp, count: usize) -> Self {
        Call::new(Kind::ReduceScatter, data_type, Some(op), 0, count)
    }

    /// Every rank gets `count` elements of every rank: block `r` of its output is its block of rank `r`'s input.
    #[inline]
    pub fn all_to_all(data_type: DataType, count: usize) -> Self {
        Call::new(Kind::AllToAll, data_type, None, 0, count)
    }

    /// An all-to-all between groups of `group` consecutive ranks whose inputs are alike; a group has `group * count`
    /// elements for each group, itself included. `group` must divide the number of ranks.
    #[inline]
    pub fn all_to_all_replicated(data_type: DataType, count: usize, group: u32) -> Self {
        Call { group, ..Call::new(Kind::AllToAllReplicated, data_type, None, 0, count) }
    }

    /// `root` gets `count` elements of every rank, in rank order.
    #[inline]
    pub fn gather(data_type: DataType, count: usize, root: Rank) -> Self {
        Call::new(Kind::Gather, data_type, None, root, count)
    }

    /// Every rank gets its block of `count` elements of `root`'s input.
    #[inline]
    pub fn scatter(data_type: DataType, count: usize, root: Rank) -> Self {
        Call::new(Kind::Scatter, data_type, None, root, count)
    }

    /// The collective of this call.
    pub fn collective(&self) -> Collective {
        match self.kind {
            Kind::AllToAllReplicated => Collective::AllToAllReplicated { group: self.group },
            kind => kind.collective(),
        }
    }

    /// The same sum, of contributions that are first multiplied by a scalar: NCCL's pre-multiplied sum. Each rank
    /// has a scalar of its own; integers wrap, floats are rounded when they are multiplied and when they are added.
    /// A call that does not scale is another operation ([`Error::Mismatch`]).
    ///
    /// The call must be a sum of elements of the scalar's type; another one is refused when it is made
    /// ([`Error::InvalidArgument`]).
    pub fn scaled_by(self, scalar: Scalar) -> Self {
        Call { scalar: Some(scalar), ..self }
    }

    /// The operator, for calls that fold.
    #[inline]
    pub fn operator(&self) -> Option<Operator> {
        match self.scalar {
            Some(_) => Some(Operator::PreMulSum),
            None => self.op.map(Operator::Plain),
        }
    }

    /// The type of its elements.
    pub fn data_type(&self) -> DataType {
        self.data_type
    }

    /// Whether the call is what [`Call::packed`] and its count say, and no more: it brings no scalar, names no algorithm, its
    /// blocks are equal, and it has no groups.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.scalar.is_none() && self.algorithm.is_none() && self.counts == 0 && self.group == 0
    }

    /// The [plain](Call::is_plain) call of a packed form and a count; none of words that no call is packed to.
    pub fn unpack(packed: u64, count: usize) -> Option<Self> {
        let Descriptor { kind, data_type, op, root, .. } = Descriptor::unpack(packed, count as u64)?;
        let op = match op {
            Some(Operator::PreMulSum) => return None,
            Some(Operator::Plain(op)) => Some(op),
            None => None,
        };
        Some(Call::new(kind, data_type, op, root, count))
    }

    /// The packed form of [`Call::descriptor`], of a call that names no algorithm and whose blocks are equal.
    #[inline]
    pub fn packed(&self) -> u64 {
        let (op, named) = (self.operator(), Named::NONE);
        let (kind, data_type, root) = (self.kind, self.data_type, self.root);
        Descriptor { kind, data_type, op, root, count: self.count as u64, named }.packed()
    }

    /// The part of the call that must be equal on all ranks.
    pub fn descriptor(&self) -> Descriptor {
        Descriptor {
            kind: self.kind,
            data_type: self.data_type,
            op: self.operator(),
            root: match self.kind {
                Kind::AllToAllReplicated => self.group,
                kind if kind.varies() => self.counts,
                _ => self.root,
            },
            count: self.count as u64,
            named: self.algorithm.map_or(Named::NONE, Named::new),
        }
    }

    /// Checks everything about the call and its buffers that needs no other rank.
    pub fn check(&self, rank: Rank, size: u32, input: impl Stretch, output: impl Stretch) -> Result<()> {
        let name = self.kind.name();
        self.check_scalar(name)?;
        self.check_root(name, size)?;
        self.check_group(name, size)?;
        let element = self.data_type.size() as u128;
        let blocks = self.collective().input_blocks(size).max(self.collective().output_blocks(size));
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
        for (what, needed, bytes) in
            [("input", needs_in, input.bytes()), ("output", needs_out, output.bytes())]
        {
            if needed != 0 && bytes != needed {
                return Err(Error::invalid(
                    format!("{name}: the {what} of rank {rank} has {bytes} bytes and must have {needed}"),
                    format!("the call is {}", self.descriptor()),
                ));
            }
        }
        if needs_in != 0 && needs_out != 0 {
            let block = self.count * self.data_type.size() * rank as usize;
            self.check_overlap(name, block, input, output)?;
        }
        Ok(())
    }

    /// As [`Call::check`], for blocks that differ.
    pub fn check_blocks(
        &self,
        rank: Rank,
        size: u32,
        blocks: Blocks<'_>,
        input: impl Stretch,
        output: impl Stretch,
    ) -> Result<()> {
        let (name, element) = (self.kind.name(), self.data_type.size());
        self.check_scalar(name)?;
        let gathers = self.kind == Kind::AllGatherV;
        let (whole, own) =
            if gathers { (output.bytes(), input.bytes()) } else { (input.bytes(), output.bytes()) };
        let (all, one) = if gathers { ("output", "input") } else { ("input", "output") };
        blocks.check(name, all, size, element, whole, gathers)?;
        let needed = blocks.count(rank) * element;
        if own != needed {
            return Err(Error::invalid(
                format!("{name}: the {one} of rank {rank} has {own} bytes and must have {needed}"),
                "pass as many elements as this rank's count says",
            ));
        }
        match blocks.bytes(element).nth(rank as usize) {
            Some(Block { offset, bytes }) if bytes != 0 => self.check_overlap(name, offset, input, output),
            _ => Ok(()),
        }
    }

    /// Checks that the root is a rank; `name` is what errors call the operation.
    pub fn check_root(&self, name: &str, size: u32) -> Result<()> {
        if !self.kind.is_rooted() && self.root != 0 {
            return Err(Error::invalid(
                format!("{name} has no root, and the call names rank {}", self.root),
                "leave the root of such a call 0",
            ));
        }
        if self.root < size {
            return Ok(());
        }
        Err(Error::invalid(
            format!("{name}: rank {} does not exist in a communicator of {size}", self.root),
            format!("pass a rank between 0 and {}", size - 1),
        ))
    }

    /// Checks that groups are of one size; `name` is what errors call the operation.
    fn check_group(&self, name: &str, size: u32) -> Result<()> {
        if self.kind != Kind::AllToAllReplicated && self.group != 0 {
            return Err(Error::invalid(
                format!("{name} has no groups, and the call names groups of {} ranks", self.group),
                "leave the group of such a call 0",
            ));
        }
        if self.collective().fits(size) {
            return Ok(());
        }
        Err(Error::invalid(
            format!("{name}: {size} ranks are not in groups of {} ranks", self.group),
            "pass a number of ranks above 0 that divides the ranks of the communicator",
        ))
    }

    /// Checks the scalar: only sums are scaled, by a scalar of the elements' type.
    pub fn check_scalar(&self, name: &str) -> Result<()> {
        let Some(scalar) = self.scalar else { return Ok(()) };
        let data_type = self.data_type;
        if self.op != Some(ReduceOp::Sum) {
            let folds = self.op.map_or("folds nothing".into(), |op| format!("folds with {op}"));
            return Err(Error::invalid(
                format!("{name}: a call that {folds} has no scalar"),
                "scale sums alone: reduce, all_reduce and reduce_scatter with ReduceOp::Sum",
            ));
        }
        if scalar.data_type() != data_type {
            return Err(Error::invalid(
                format!(
                    "{name}: elements of type {data_type} cannot be scaled by one of {}",
                    scalar.data_type()
                ),
                "pass a scalar of the elements' data type",
            ));
        }
        Ok(())
    }

    /// Checks that the two buffers are apart, or overlap as in the in-place form. There this rank's block begins
    /// `block` bytes behind the start of the buffer that holds all blocks.
    pub fn check_overlap(
        &self,
        name: &str,
        block: usize,
        input: impl Stretch,
        output: impl Stretch,
    ) -> Result<()> {
        let (from, to) = (input.start(), output.start());
        let apart = from + input.bytes() <= to || to + output.bytes() <= from;
        let semantics = self.kind.semantics();
        if apart || semantics.in_place_offset(block) == Some(to.wrapping_sub(from)) {
            return Ok(());
        }
        let form = match semantics.in_place {
            InPlace::Same => "both are the same buffer",
            InPlace::InputWithin => "the input is this rank's block of the output",
            InPlace::OutputWithin => "the output is this rank's block of the input",
            InPlace::Apart if self.kind.is_message() => "there is none for point-to-point",
            InPlace::Apart => "there is none for all_to_all",
        };
        Err(Error::invalid(
            format!("{name}: input and output overlap, but not as the in-place form wants it"),
            format!("use separate buffers, or the in-place form ({form})"),
        ))
    }
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.descriptor().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use consort_memory::SpanMut;

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
    fn only_sums_are_scaled_and_by_their_own_type() {
        let mut data = [0f32; 4];
        let all = SpanMut::of(&mut data);
        let scaled = |call: Call| call.scaled_by(Scalar::of(2f32));
        let error = |call: Call| scaled(call).check(0, 2, all.read(), all).unwrap_err().to_string();
        assert!(
            error(Call::all_reduce(DataType::Float32, ReduceOp::Avg, 4))
                .contains("that folds with avg has no")
        );
        assert!(error(Call::broadcast(DataType::Float32, 4, 0)).contains("that folds nothing has no scalar"));
        assert!(
            error(Call::reduce(DataType::Int32, ReduceOp::Sum, 4, 0))
                .contains("int32 cannot be scaled by one of float")
        );
        let sum = scaled(Call::all_reduce(DataType::Float32, ReduceOp::Sum, 4));
        assert!(sum.check(0, 2, all.read(), all).is_ok());
        let counts = [2usize, 2];
        let blocks = Blocks::from(&counts);
        let block = all.slice(0, 8);
        for (op, is_right) in [(ReduceOp::Sum, true), (ReduceOp::Prod, false)] {
            let call = scaled(Call::varying(Kind::ReduceScatterV, DataType::Float32, Some(op), &blocks));
            assert_eq!(call.check_blocks(0, 2, blocks, all.read(), block).is_ok(), is_right);
        }
    }

    #[test]
    fn a_plain_call_is_what_it_is_packed_to() {
        for (kind, data_type) in Kind::ALL.into_iter().zip(DataType::ALL.into_iter().cycle()) {
            assert_eq!(Kind::from_code(kind as u8), Some(kind));
            for op in ReduceOp::ALL.into_iter().map(Some).chain([None]) {
                let call = Call::new(kind, data_type, op, 70_000, 9);
                assert!(call.is_plain());
                assert_eq!(Call::unpack(call.packed(), 9), Some(call));
                // The descriptor of a call whose blocks differ has its counts where others have a root, or its groups.
                let has_other = kind.varies() || kind == Kind::AllToAllReplicated;
                assert!(has_other || call.packed() == call.descriptor().packed());
            }
        }
        let sum = Call::all_reduce(DataType::Float32, ReduceOp::Sum, 4);
        let scaled = sum.scaled_by(Scalar::of(2f32));
        let named = Call { algorithm: Some(Algorithm::Tree), ..sum };
        let replicated = Call::all_to_all_replicated(DataType::Float32, 4, 2);
        for other in [scaled, named, Call { counts: 1, ..sum }, replicated] {
            assert!(!other.is_plain());
        }
        assert_eq!(Call::unpack(scaled.packed(), 4), None);
        assert_eq!(Call::unpack(0, 4), None, "no call is packed to 0");
        assert_eq!(Kind::from_code(0).or(Kind::from_code(Kind::ALL.len() as u8 + 1)), None);
    }

    #[test]
    fn a_scaled_sum_is_another_operation_whatever_the_scalar() {
        let plain = Call::all_reduce(DataType::Float32, ReduceOp::Sum, 4);
        let [one, two] = [1f32, 2.0].map(|scalar| plain.scaled_by(Scalar::of(scalar)).descriptor());
        assert_eq!(one, two);
        assert_ne!(one.digest(1, 0), plain.descriptor().digest(1, 0));
        assert_eq!(one.to_string(), "all_reduce of 4 float (mulsum)");
        for code in 0..=Operator::PRE_MUL_SUM {
            assert_eq!(Operator::from_code(code).map(Operator::code), Some(code));
        }
        assert_eq!(Operator::from_code(Operator::PRE_MUL_SUM + 1), None);
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
