//! Calls in which the ranks' blocks differ in length.
//!
//! Invariant: where every rank knows every count (`all_gather_v`, `reduce_scatter_v`) the plans are those of equal
//! blocks, and counts that differ between ranks are found. Where a rank knows its own alone (`all_to_all_v`,
//! `gather_v`, `scatter_v`) each block is a message, and a pair of ranks that disagree is named.

use consort_algorithms::Block;
use consort_kernels::{Element, ReduceOp};
use consort_memory::{Span, SpanMut};

use super::{Communicator, group};
use crate::Rank;
use crate::blocks::Blocks;
use crate::call::{Call, Kind};
use crate::engine::Buffers;
use crate::error::Result;

impl Communicator {
    /// Every rank's `output` becomes all ranks' `input`, of which rank `r`'s has `blocks`' count `r`. Every rank must
    /// pass the same counts; displacements are its own.
    ///
    /// ```
    /// let ranks = consort::Communicator::local(2)?;
    /// std::thread::scope(|threads| {
    ///     for comm in &ranks {
    ///         threads.spawn(move || {
    ///             let input = vec![comm.rank(); 1 + comm.rank() as usize];
    ///             let mut output = [9; 3];
    ///             comm.all_gather_v(&input, &mut output, &[1, 2]).expect("both ranks call it");
    ///             assert_eq!(output, [0, 1, 1]);
    ///         });
    ///     }
    /// });
    /// # consort::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) when the lengths do not fit; [`Error::Mismatch`](crate::Error::Mismatch) when ranks pass other counts;
    /// otherwise as [`Communicator::all_reduce`].
    pub fn all_gather_v<'a, T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        blocks: impl Into<Blocks<'a>>,
    ) -> Result<()> {
        let blocks = blocks.into();
        let call = Call::varying(Kind::AllGatherV, T::DATA_TYPE, None, &blocks);
        self.execute_blocks(call, blocks, Span::of(input), SpanMut::of(output))
    }

    /// As [`Communicator::all_gather_v`]; the input is this rank's block of `buffer`.
    ///
    /// # Errors
    /// As [`Communicator::all_gather_v`].
    pub fn all_gather_v_in_place<'a, T: Element>(
        &self,
        buffer: &mut [T],
        blocks: impl Into<Blocks<'a>>,
    ) -> Result<()> {
        let blocks = blocks.into();
        let call = Call::varying(Kind::AllGatherV, T::DATA_TYPE, None, &blocks);
        let all = SpanMut::of(buffer);
        blocks.check(call.kind.name(), "output", self.size(), size_of::<T>(), all.len(), true)?;
        self.execute_blocks(call, blocks, self.own(blocks, all, size_of::<T>()).read(), all)
    }

    /// Folds the blocks of `input` over all ranks; `output` receives this rank's. Every rank must pass the same
    /// counts; displacements are its own.
    ///
    /// # Errors
    /// As [`Communicator::all_gather_v`].
    pub fn reduce_scatter_v<'a, T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        blocks: impl Into<Blocks<'a>>,
        op: ReduceOp,
    ) -> Result<()> {
        let blocks = blocks.into();
        let call = Call::varying(Kind::ReduceScatterV, T::DATA_TYPE, Some(op), &blocks);
        self.execute_blocks(call, blocks, Span::of(input), SpanMut::of(output))
    }

    /// As [`Communicator::reduce_scatter_v`]; the output is this rank's block of `buffer`. The other blocks are
    /// unspecified afterwards.
    ///
    /// # Errors
    /// As [`Communicator::all_gather_v`].
    pub fn reduce_scatter_v_in_place<'a, T: Element>(
        &self,
        buffer: &mut [T],
        blocks: impl Into<Blocks<'a>>,
        op: ReduceOp,
    ) -> Result<()> {
        let blocks = blocks.into();
        let call = Call::varying(Kind::ReduceScatterV, T::DATA_TYPE, Some(op), &blocks);
        self.reduce_blocks_in_place(call, blocks, SpanMut::of(buffer))
    }

    /// Sends block `r` of `input` to rank `r`; block `r` of `output` comes from rank `r`. What a rank sends to
    /// another must be as long as what that one receives from it; nobody knows more counts than its own. An empty
    /// block costs nothing: that the other side sent something is found at the next message between the two.
    ///
    /// ```
    /// let comm = consort::Communicator::local(1)?.remove(0);
    /// let mut output = [0u8; 3];
    /// comm.all_to_all_v(&[1, 2, 3], &[3], &mut output, &[3])?;
    /// assert_eq!(output, [1, 2, 3]);
    /// # consort::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) when the lengths do not fit; [`Error::Mismatch`](crate::Error::Mismatch) with the two ranks and their counts
    /// when these differ; otherwise as [`Communicator::send`].
    pub fn all_to_all_v<'a, 'b, T: Element>(
        &self,
        input: &[T],
        sent: impl Into<Blocks<'a>>,
        output: &mut [T],
        received: impl Into<Blocks<'b>>,
    ) -> Result<()> {
        let (name, data_type, size) = ("all_to_all_v", T::DATA_TYPE, self.size());
        let (sent, received, input, output) =
            (sent.into(), received.into(), Span::of(input), SpanMut::of(output));
        sent.check(name, "input", size, size_of::<T>(), input.len(), false)?;
        received.check(name, "output", size, size_of::<T>(), output.len(), true)?;
        group(|group| {
            for (to, Block { offset, bytes }) in (0..).zip(sent.bytes(size_of::<T>())) {
                group.send_bytes(self, data_type, input.slice(offset, bytes), to)?;
            }
            for (from, Block { offset, bytes }) in (0..).zip(received.bytes(size_of::<T>())) {
                group.receive_bytes(self, data_type, output.slice(offset, bytes), from)?;
            }
            Ok(())
        })
    }

    /// The `output` of `root` becomes all ranks' `input`, of which rank `r`'s has `blocks`' count `r`. `blocks` are
    /// looked at on the root alone; the others may pass an empty `output` and no counts.
    ///
    /// # Errors
    /// As [`Communicator::all_to_all_v`].
    pub fn gather_v<'a, T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        blocks: impl Into<Blocks<'a>>,
        root: Rank,
    ) -> Result<()> {
        let (blocks, output) = (blocks.into(), SpanMut::of(output));
        let gathers = self.rank() == root;
        if gathers {
            blocks.check("gather_v", "output", self.size(), size_of::<T>(), output.len(), true)?;
        }
        group(|group| {
            group.send(self, input, root)?;
            // Those of other ranks are not looked at.
            let blocks = gathers.then(|| blocks.bytes(size_of::<T>())).into_iter().flatten();
            for (from, Block { offset, bytes }) in (0..).zip(blocks) {
                group.receive_bytes(self, T::DATA_TYPE, output.slice(offset, bytes), from)?;
            }
            Ok(())
        })
    }

    /// Every rank's `output` becomes its block of the `input` of `root`. `blocks` are looked at on the root alone; the
    /// others may pass an empty `input` and no counts.
    ///
    /// # Errors
    /// As [`Communicator::all_to_all_v`].
    pub fn scatter_v<'a, T: Element>(
        &self,
        input: &[T],
        blocks: impl Into<Blocks<'a>>,
        output: &mut [T],
        root: Rank,
    ) -> Result<()> {
        let (blocks, input) = (blocks.into(), Span::of(input));
        let scatters = self.rank() == root;
        if scatters {
            blocks.check("scatter_v", "input", self.size(), size_of::<T>(), input.len(), false)?;
        }
        group(|group| {
            let blocks = scatters.then(|| blocks.bytes(size_of::<T>())).into_iter().flatten();
            for (to, Block { offset, bytes }) in (0..).zip(blocks) {
                group.send_bytes(self, T::DATA_TYPE, input.slice(offset, bytes), to)?;
            }
            group.receive(self, output, root)
        })
    }

    /// This rank's block of a buffer that has been checked.
    fn own<'a>(&self, blocks: Blocks<'_>, all: SpanMut<'a>, element_bytes: usize) -> SpanMut<'a> {
        let own = blocks.bytes(element_bytes).nth(self.rank() as usize).unwrap_or_default();
        all.slice(own.offset, own.bytes)
    }

    /// A reduce-scatter whose output is this rank's block of `all`, the input.
    pub(super) fn reduce_blocks_in_place(
        &self,
        call: Call,
        blocks: Blocks<'_>,
        all: SpanMut<'_>,
    ) -> Result<()> {
        let element_bytes = call.data_type.size();
        blocks.check(call.kind.name(), "input", self.size(), element_bytes, all.len(), true)?;
        self.execute_blocks(call, blocks, all.read(), self.own(blocks, all, element_bytes))
    }

    pub(super) fn execute_blocks(
        &self,
        call: Call,
        blocks: Blocks<'_>,
        input: Span<'_>,
        output: SpanMut<'_>,
    ) -> Result<()> {
        self.core().check()?;
        call.check_blocks(self.rank(), self.size(), blocks, input, output)?;
        self.core()
            .collective(self.told_how(call), Some(blocks), self.timeout(), Buffers { input, output })
            .map(drop)
    }
}
