//! Sums of contributions that each rank multiplies by a scalar of its own (NCCL's pre-multiplied sum).
//!
//! Invariant: the scalar is of the elements' type, because one type parameter is both. Absent: other forms (buffers
//! apart, groups, work that goes on by itself), which take a [`Call`] with [`Call::scaled_by`] or a [`CallV`], and `Avg`, which needs no
//! scalar.

use consort_kernels::{Element, ReduceOp, Scalar};
use consort_memory::{Span, SpanMut};

use super::Communicator;
use crate::Rank;
use consort_types::blocks::Blocks;
use consort_types::call::{Call, Kind};
use consort_types::error::Result;
use consort_types::varying::CallV;

/// Sums whose contributions of this rank are multiplied first; made by [`Communicator::scaled_by`].
#[derive(Clone, Copy, Debug)]
pub struct Scaled<'a, T> {
    comm: &'a Communicator,
    scalar: T,
}

impl Communicator {
    /// The collectives that sum, with this rank's contributions multiplied by `scalar` first. Each rank has a scalar
    /// of its own, but all ranks must scale: a plain sum is another operation
    /// ([`Error::Mismatch`](crate::Error::Mismatch)). Integers wrap; floats are rounded when they are multiplied and
    /// when they are added.
    ///
    /// ```
    /// let ranks = consort::Communicator::local(2)?;
    /// std::thread::scope(|threads| {
    ///     for comm in &ranks {
    ///         threads.spawn(move || {
    ///             let mut gradients = [4.0f32; 8];
    ///             let weight = [0.25, 0.75][comm.rank() as usize];
    ///             comm.scaled_by(weight).all_reduce(&mut gradients).expect("both ranks call it");
    ///             assert_eq!(gradients, [4.0; 8]);
    ///         });
    ///     }
    /// });
    /// # consort::Result::Ok(())
    /// ```
    pub fn scaled_by<T: Element>(&self, scalar: T) -> Scaled<'_, T> {
        Scaled { comm: self, scalar }
    }
}

impl<T: Element> Scaled<'_, T> {
    fn scaled(&self, call: Call) -> Call {
        call.scaled_by(Scalar::of(self.scalar))
    }

    /// As [`Communicator::all_reduce`].
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn all_reduce(&self, buffer: &mut [T]) -> Result<()> {
        let call = self.scaled(Call::all_reduce(T::DATA_TYPE, ReduceOp::Sum, buffer.len()));
        let both = SpanMut::of(buffer);
        self.comm.execute(&call, both.read(), both)
    }

    /// As [`Communicator::reduce`].
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn reduce(&self, buffer: &mut [T], root: Rank) -> Result<()> {
        let call = self.scaled(Call::reduce(T::DATA_TYPE, ReduceOp::Sum, buffer.len(), root));
        let both = SpanMut::of(buffer);
        self.comm.execute(&call, both.read(), both)
    }

    /// As [`Communicator::reduce_scatter`].
    ///
    /// # Errors
    /// As [`Communicator::reduce_scatter`].
    pub fn reduce_scatter(&self, input: &[T], output: &mut [T]) -> Result<()> {
        let call = self.scaled(Call::reduce_scatter(T::DATA_TYPE, ReduceOp::Sum, output.len()));
        self.comm.execute(&call, Span::of(input), SpanMut::of(output))
    }

    /// As [`Communicator::reduce_scatter_v`].
    ///
    /// # Errors
    /// As [`Communicator::reduce_scatter_v`].
    pub fn reduce_scatter_v<'a>(
        &self,
        input: &[T],
        output: &mut [T],
        blocks: impl Into<Blocks<'a>>,
    ) -> Result<()> {
        let call = CallV::reduce_scatter(T::DATA_TYPE, ReduceOp::Sum, blocks.into());
        let call = call.scaled_by(Scalar::of(self.scalar));
        self.comm.execute_v(&call, Span::of(input), SpanMut::of(output))
    }

    /// As [`Communicator::reduce_scatter_v_in_place`].
    ///
    /// # Errors
    /// As [`Communicator::reduce_scatter_v_in_place`].
    pub fn reduce_scatter_v_in_place<'a>(
        &self,
        buffer: &mut [T],
        blocks: impl Into<Blocks<'a>>,
    ) -> Result<()> {
        let blocks = blocks.into();
        let call = Call::varying(Kind::ReduceScatterV, T::DATA_TYPE, Some(ReduceOp::Sum), &blocks);
        self.comm.reduce_blocks_in_place(self.scaled(call), blocks, SpanMut::of(buffer))
    }
}
