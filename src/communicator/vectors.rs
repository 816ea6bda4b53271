//! Calls in which the ranks' blocks differ in length.
//!
//! Invariant: where every rank knows every count (`all_gather_v`, `reduce_scatter_v`) the plans are those of equal
//! blocks, and counts that differ between ranks are found. Where a rank knows its own alone (`all_to_all_v`,
//! `gather_v`, `scatter_v`) each block is a message, and a pair of ranks that disagree is named.

use consort_kernels::{Element, ReduceOp};
use consort_memory::{Span, SpanMut};

use super::{Communicator, group};
use crate::Rank;
use crate::engine::Buffers;
use consort_types::blocks::Blocks;
use consort_types::call::{Call, Kind};
use consort_types::error::Result;
use consort_types::varying::CallV;

impl Communicator {
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
    /// another must be as long as what that one receives from it; no rank knows more counts than its own. An empty
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
        let call = CallV::all_to_all(T::DATA_TYPE, sent.into(), received.into());
        self.execute_v(&call, Span::of(input), SpanMut::of(output))
    }

    /// The `output` of `root` becomes all ranks' `input`; the input of rank `r` has `blocks`' count `r`. The root alone
    /// reads `blocks`; the others may pass an empty `output` and no counts.
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
        let call = CallV::gather(T::DATA_TYPE, input.len(), blocks.into(), root);
        self.execute_v(&call, Span::of(input), SpanMut::of(output))
    }

    /// Every rank's `output` becomes its block of the `input` of `root`. The root alone reads `blocks`; the
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
        let call = CallV::scatter(T::DATA_TYPE, blocks.into(), output.len(), root);
        self.execute_v(&call, Span::of(input), SpanMut::of(output))
    }

    /// A collective of blocks that differ in length on untyped memory, for bindings. Each buffer must reach exactly to
    /// the end of its last block; one with displacements may reach further. A rank that has no input (or no output) in
    /// this call may pass an empty span.
    ///
    /// Input and output must be apart, except that a rank's block of `all_gather`, `reduce_scatter`, `gather` and
    /// `scatter` may be where it is in the buffer of all blocks.
    ///
    /// ```
    /// use consort::{Blocks, CallV, Communicator, DataType, Span, SpanMut};
    ///
    /// let comm = Communicator::local(1)?.remove(0);
    /// let (input, mut output) = ([1u8, 2, 3, 4], [0u8; 8]);
    /// let call = CallV::all_gather(DataType::Int32, Blocks::at(&[1], &[1]));
    /// comm.execute_v(&call, Span::of(&input), SpanMut::of(&mut output))?;
    /// assert_eq!(output, [0, 0, 0, 0, 1, 2, 3, 4]);
    /// # consort::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) when the buffers do not fit the call; otherwise as the
    /// typed methods.
    pub fn execute_v(&self, call: &CallV<'_>, input: Span<'_>, output: SpanMut<'_>) -> Result<()> {
        match call.planned() {
            Some((call, blocks)) => self.execute_blocks(call, blocks, input, output),
            None => {
                self.core().check()?;
                group(|group| group.execute_v(self, call, input, output))
            }
        }
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

    fn execute_blocks(
        &self,
        call: Call,
        blocks: Blocks<'_>,
        input: Span<'_>,
        output: SpanMut<'_>,
    ) -> Result<()> {
        self.core().check()?;
        call.check_blocks(self.rank(), self.size(), blocks, input, output)?;
        let call = self.with_own_algorithm(call);
        let buffers = Buffers { input, output };
        self.core().collective_on(None, call, Some(blocks), self.timeout(), buffers).map(drop)
    }
}
