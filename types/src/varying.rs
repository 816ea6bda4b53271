//! Collectives whose blocks differ in length, as bindings ask for them.
//!
//! Invariant: reads and writes of a call are checked here, before anything moves. Two of these collectives run plans,
//! so every rank must know every count; the others are messages, where a rank knows its own counts. Absent: running
//! them.

use consort_kernels::{DataType, ReduceOp, Scalar};

use crate::Rank;
use crate::blocks::Blocks;
use crate::call::{Call, Extent, Kind};
use crate::error::{Error, Result};
use crate::stretch::Stretch;

/// A collective whose blocks differ in length, for `Communicator::execute_v`: the
/// counterpart of [`Call`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallV<'a> {
    /// The call. Where the collective runs as messages, it is the call of equal blocks, with the count of this rank's
    /// only block.
    call: Call,
    /// The blocks of the input, where it has one for each rank.
    sent: Blocks<'a>,
    /// The blocks of the output, where it has one for each rank.
    received: Blocks<'a>,
}

/// Pairs of a peer and what goes to it or comes from it.
pub type Peers<S> = Vec<(Rank, S)>;

impl<'a> CallV<'a> {
    fn new(call: Call, sent: Blocks<'a>, received: Blocks<'a>) -> Self {
        CallV { call, sent, received }
    }

    /// As `Communicator::all_gather_v`.
    pub fn all_gather(data_type: DataType, blocks: Blocks<'a>) -> Self {
        CallV::new(Call::varying(Kind::AllGatherV, data_type, None, &blocks), Blocks::NONE, blocks)
    }

    /// As `Communicator::reduce_scatter_v`.
    pub fn reduce_scatter(data_type: DataType, op: ReduceOp, blocks: Blocks<'a>) -> Self {
        CallV::new(Call::varying(Kind::ReduceScatterV, data_type, Some(op), &blocks), blocks, Blocks::NONE)
    }

    /// As `Communicator::all_to_all_v`.
    pub fn all_to_all(data_type: DataType, sent: Blocks<'a>, received: Blocks<'a>) -> Self {
        CallV::new(Call::all_to_all(data_type, 0), sent, received)
    }

    /// As `Communicator::gather_v`: this rank sends `count` elements. `blocks` matters on the root alone.
    pub fn gather(data_type: DataType, count: usize, blocks: Blocks<'a>, root: Rank) -> Self {
        CallV::new(Call::gather(data_type, count, root), Blocks::NONE, blocks)
    }

    /// As `Communicator::scatter_v`: this rank receives `count` elements. `blocks` matters on the root alone.
    pub fn scatter(data_type: DataType, blocks: Blocks<'a>, count: usize, root: Rank) -> Self {
        CallV::new(Call::scatter(data_type, count, root), blocks, Blocks::NONE)
    }

    /// The same call as a sum of contributions that are first multiplied by a scalar: see [`Call::scaled_by`].
    pub fn scaled_by(self, scalar: Scalar) -> Self {
        CallV { call: self.call.scaled_by(scalar), ..self }
    }

    /// The same call with these blocks, which have the lengths of its own: a copy of them, for example.
    #[doc(hidden)]
    pub fn with<'b>(&self, sent: Blocks<'b>, received: Blocks<'b>) -> CallV<'b> {
        CallV::new(self.call, sent, received)
    }

    /// The call and its blocks where it runs a plan; the call's count is that of the longest block.
    pub fn planned(&self) -> Option<(Call, Blocks<'a>)> {
        match self.call.kind {
            Kind::AllGatherV => Some((self.call, self.received)),
            Kind::ReduceScatterV => Some((self.call, self.sent)),
            _ => None,
        }
    }

    /// The type of its elements.
    pub fn data_type(&self) -> DataType {
        self.call.data_type
    }

    fn name(&self) -> &'static str {
        match self.call.kind {
            Kind::AllToAll => "all_to_all_v",
            Kind::Gather => "gather_v",
            Kind::Scatter => "scatter_v",
            planned => planned.name(),
        }
    }

    /// Bytes from the beginning of the input of rank `rank` to the end of its last block; `usize::MAX` where the
    /// number overflows, which no buffer has.
    pub fn input_bytes(&self, rank: Rank) -> usize {
        self.bytes_of(self.call.kind.semantics().reads(rank, self.call.root), rank, self.sent)
    }

    /// Bytes from the beginning of the output of rank `rank` to the end of its last block; `usize::MAX` where the
    /// number overflows.
    pub fn output_bytes(&self, rank: Rank) -> usize {
        self.bytes_of(self.call.kind.semantics().writes(rank, self.call.root), rank, self.received)
    }

    /// Bytes of a buffer of rank `rank`; `blocks` are those of a buffer that has one for each rank.
    fn bytes_of(&self, extent: Extent, rank: Rank, blocks: Blocks<'_>) -> usize {
        let elements = match (extent, self.planned()) {
            (Extent::Nothing, _) => 0,
            (Extent::Whole, _) => blocks.extent(),
            (Extent::Block, Some((_, blocks))) => blocks.count(rank),
            (Extent::Block, None) => self.call.count,
        };
        elements.saturating_mul(self.call.data_type.size())
    }

    /// Checks everything about the call and its buffers that needs no other rank.
    pub fn check(&self, rank: Rank, size: u32, input: impl Stretch, output: impl Stretch) -> Result<()> {
        if let Some((call, blocks)) = self.planned() {
            return call.check_blocks(rank, size, blocks, input, output);
        }
        let (name, call, element) = (self.name(), &self.call, self.call.data_type.size());
        call.check_scalar(name)?;
        call.check_root(name, size)?;
        let check_input = || self.sent.check(name, "input", size, element, input.bytes(), false);
        let check_output = || self.received.check(name, "output", size, element, output.bytes(), true);
        match call.kind {
            Kind::Gather | Kind::Scatter => {
                let gathers = call.kind == Kind::Gather;
                let (what, bytes) =
                    if gathers { ("input", input.bytes()) } else { ("output", output.bytes()) };
                self.check_own(what, rank, bytes, call.count)?;
                if rank != call.root {
                    return Ok(());
                }
                let blocks = if gathers {
                    check_output()?;
                    self.received
                } else {
                    check_input()?;
                    self.sent
                };
                self.check_own(what, rank, bytes, blocks.count(rank))?;
                let block = blocks.bytes(element).nth(rank as usize).unwrap_or_default();
                call.check_overlap(name, block.offset, input, output)
            }
            _ => {
                check_input()?;
                check_output()?;
                let (out, back) = (self.sent.count(rank), self.received.count(rank));
                if out != back {
                    return Err(Error::invalid(
                        format!(
                            "{name}: rank {rank} sends itself {out} elements and receives {back} of them"
                        ),
                        "pass the same count for this rank on both sides",
                    ));
                }
                call.check_overlap(name, 0, input, output)
            }
        }
    }

    /// Checks that the only block of a buffer is as long as the count says.
    fn check_own(&self, what: &str, rank: Rank, bytes: usize, count: usize) -> Result<()> {
        let needed = count.saturating_mul(self.call.data_type.size());
        if bytes == needed {
            return Ok(());
        }
        Err(Error::invalid(
            format!("{}: the {what} of rank {rank} has {bytes} bytes and must have {needed}", self.name()),
            "pass as many elements as this rank's count says",
        ))
    }

    /// The messages of a checked call that runs no plan: what goes to which rank, and what comes from which. A block
    /// that is in place already is no message.
    pub fn messages<I: Stretch, O: Stretch>(&self, rank: Rank, input: I, output: O) -> (Peers<I>, Peers<O>) {
        let (root, element) = (self.call.root, self.call.data_type.size());
        let of_input = || {
            let blocks = self.sent.bytes(element);
            (0..).zip(blocks.map(|block| input.part(block.offset, block.bytes))).collect()
        };
        let of_output = || {
            let blocks = self.received.bytes(element);
            (0..).zip(blocks.map(|block| output.part(block.offset, block.bytes))).collect()
        };
        let (mut sent, mut received): (Peers<I>, Peers<O>) = match self.call.kind {
            Kind::Gather => (vec![(root, input)], if rank == root { of_output() } else { Vec::new() }),
            Kind::Scatter => (if rank == root { of_input() } else { Vec::new() }, vec![(root, output)]),
            _ => (of_input(), of_output()),
        };
        let from = sent.iter().find(|(to, _)| *to == rank).map(|(_, block)| block.start());
        let to = received.iter().find(|(from, _)| *from == rank).map(|(_, block)| block.start());
        if from.is_some() && from == to {
            sent.retain(|(to, _)| *to != rank);
            received.retain(|(from, _)| *from != rank);
        }
        (sent, received)
    }
}

#[cfg(test)]
mod tests {
    use consort_memory::SpanMut;

    use super::*;

    const DATA: DataType = DataType::Float32;

    #[test]
    fn a_buffer_reaches_to_the_end_of_its_last_block() {
        let (counts, starts) = ([2usize, 0, 3], [7usize, 1 << 60, 0]);
        let near = Blocks::from(&counts);
        let far = Blocks::at(&counts, &starts);
        let bytes = |call: CallV<'_>| [0, 1, 2].map(|rank| (call.input_bytes(rank), call.output_bytes(rank)));
        assert_eq!(bytes(CallV::all_gather(DATA, near)), [(8, 20), (0, 20), (12, 20)]);
        assert_eq!(bytes(CallV::all_gather(DATA, far)), [(8, 36), (0, 36), (12, 36)]);
        assert_eq!(bytes(CallV::reduce_scatter(DATA, ReduceOp::Sum, far)), [(36, 8), (36, 0), (36, 12)]);
        assert_eq!(bytes(CallV::all_to_all(DATA, far, near)), [(36, 20); 3]);
        assert_eq!(bytes(CallV::gather(DATA, 5, near, 1)), [(20, 0), (20, 20), (20, 0)]);
        assert_eq!(bytes(CallV::scatter(DATA, near, 5, 2)), [(0, 20), (0, 20), (20, 20)]);
        let counts = [usize::MAX, 2];
        let endless = CallV::all_gather(DATA, Blocks::from(&counts));
        assert_eq!((endless.input_bytes(0), endless.output_bytes(1)), (usize::MAX, usize::MAX));
    }

    #[test]
    fn what_does_not_fit_is_said_and_in_place_is_taken() {
        let mut data = [0f32; 8];
        let all = SpanMut::of(&mut data);
        let part = |first: usize, count: usize| all.slice(4 * first, 4 * count);
        let check = |call: CallV<'_>, input: SpanMut<'_>, output| {
            call.check(0, 2, input.read(), output).err().map(|error| error.to_string()).unwrap_or_default()
        };
        let (counts, other) = ([2usize, 1], [1usize, 2]);
        let (blocks, other) = (Blocks::from(&counts), Blocks::from(&other));
        let exchange = CallV::all_to_all(DATA, blocks, blocks);
        assert_eq!(check(exchange, part(0, 3), part(3, 3)), "");
        assert!(check(exchange, part(0, 3), part(0, 3)).contains("overlap"));
        assert!(check(exchange, part(0, 2), part(3, 3)).contains("all_to_all_v: the input has 8 bytes"));
        let uneven = CallV::all_to_all(DATA, blocks, other);
        assert!(check(uneven, part(0, 3), part(3, 3)).contains("sends itself 2 elements and receives 1"));
        let scaled = exchange.scaled_by(Scalar::of(2f32));
        assert!(check(scaled, part(0, 3), part(3, 3)).contains("all_to_all_v: a call that folds nothing"));
        let gather = CallV::gather(DATA, 2, blocks, 0);
        assert_eq!(check(gather, part(0, 2), part(0, 3)), "", "in place");
        assert_eq!(check(gather, part(3, 2), part(0, 3)), "");
        assert!(check(gather, part(1, 2), part(0, 3)).contains("gather_v: input and output overlap"));
        assert!(check(CallV::gather(DATA, 1, blocks, 0), part(3, 1), part(0, 3)).contains("must have 8"));
        assert!(check(gather, part(3, 3), part(0, 3)).contains("the input of rank 0 has 12 bytes"));
        assert!(check(CallV::gather(DATA, 2, blocks, 2), part(0, 2), part(2, 3)).contains("rank 2 does not"));
        let scatter = CallV::scatter(DATA, blocks, 2, 0);
        assert_eq!(check(scatter, part(0, 3), part(0, 2)), "", "in place");
        assert!(check(scatter, part(0, 3), part(1, 2)).contains("scatter_v: input and output overlap"));
        let elsewhere = CallV::scatter(DATA, Blocks::NONE, 2, 1);
        assert_eq!(check(elsewhere, part(0, 0), part(0, 2)), "", "only the root has an input");
    }

    #[test]
    fn what_is_in_place_is_no_message() {
        let mut data = [0f32; 8];
        let all = SpanMut::of(&mut data);
        let counts = [2usize, 1];
        let blocks = Blocks::from(&counts);
        let peers = |call: CallV<'_>, rank, input: SpanMut<'_>, output| {
            let (sent, received) = call.messages(rank, input.read(), output);
            let to: Vec<Rank> = sent.into_iter().map(|(to, _)| to).collect();
            let from: Vec<Rank> = received.into_iter().map(|(from, _)| from).collect();
            (to, from)
        };
        let gather = CallV::gather(DATA, 2, blocks, 0);
        assert_eq!(peers(gather, 0, all.slice(12, 8), all.slice(0, 12)), (vec![0], vec![0, 1]));
        assert_eq!(peers(gather, 0, all.slice(0, 8), all.slice(0, 12)), (vec![], vec![1]));
        assert_eq!(peers(gather, 1, all.slice(0, 4), SpanMut::empty()), (vec![0], vec![]));
        let scatter = CallV::scatter(DATA, blocks, 2, 0);
        assert_eq!(peers(scatter, 0, all.slice(0, 12), all.slice(0, 8)), (vec![1], vec![]));
        let exchange = CallV::all_to_all(DATA, blocks, blocks);
        assert_eq!(peers(exchange, 1, all.slice(0, 12), all.slice(16, 12)), (vec![0, 1], vec![0, 1]));
    }
}
