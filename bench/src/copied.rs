//! Reduce-scatter of blocks that differ, on a copy of the buffers.
//!
//! Invariant: the copies are made before and after the measured calls, never between them. The library takes such
//! blocks as slices of elements alone, and bytes cannot become these without `unsafe`. What the library leaves in
//! the copy, input included, is what the buffers hold afterwards; elements on either side of the copy are watched
//! in place of the buffers' guards.

use std::ops::Range;

use consort::{Communicator, DataType, Element, F8E4m3, F8E5m2, Span, SpanMut};
use half::{bf16, f16};

use crate::backend::With;
use crate::collective::Work;
use crate::failure::{Exit, Failure};
use crate::group::Buffers;
use crate::operator::Operator;
use crate::values::scalar_bytes;

/// Elements watched on either side of a copy.
const MARGIN: usize = 64;
/// The bits of a watched element's bytes.
const MARGIN_BYTE: u8 = 0x5C;

/// Gets the call ready for elements of any type.
pub(crate) fn reduce_scatter_v(
    comm: &Communicator,
    work: &Work,
    buffers: Buffers<'_>,
    with: &mut With<'_>,
) -> Result<(), Failure> {
    match work.data_type {
        DataType::Int8 => on::<i8>(comm, work, buffers, with),
        DataType::Uint8 => on::<u8>(comm, work, buffers, with),
        DataType::Int32 => on::<i32>(comm, work, buffers, with),
        DataType::Uint32 => on::<u32>(comm, work, buffers, with),
        DataType::Int64 => on::<i64>(comm, work, buffers, with),
        DataType::Uint64 => on::<u64>(comm, work, buffers, with),
        DataType::Float16 => on::<f16>(comm, work, buffers, with),
        DataType::Float32 => on::<f32>(comm, work, buffers, with),
        DataType::Float64 => on::<f64>(comm, work, buffers, with),
        DataType::Bfloat16 => on::<bf16>(comm, work, buffers, with),
        DataType::Float8E4m3 => on::<F8E4m3>(comm, work, buffers, with),
        DataType::Float8E5m2 => on::<F8E5m2>(comm, work, buffers, with),
    }
}

fn on<T: Element + Default>(
    comm: &Communicator,
    work: &Work,
    buffers: Buffers<'_>,
    with: &mut With<'_>,
) -> Result<(), Failure> {
    let counts = work.cut(comm.size()).counts();
    let mut scalar = [T::default()];
    SpanMut::of(&mut scalar).copy_from(Span::of(&scalar_bytes(work.data_type, comm.rank())));
    let [scalar] = scalar;
    match buffers {
        Buffers::Apart { input, output } => {
            let (mut from, mut to) = (Copied::<T>::of(input), Copied::<T>::of(output));
            {
                let (from, to) = (&from.elements[from.used.clone()], &mut to.elements[to.used.clone()]);
                with(&mut || match work.op {
                    Operator::MulSum => comm.scaled_by(scalar).reduce_scatter_v(from, to, &counts),
                    op => comm.reduce_scatter_v(from, to, &counts, op.folds_with()),
                })?;
            }
            from.put_back(input)?;
            to.put_back(output)
        }
        Buffers::Together { memory, .. } => {
            let mut both = Copied::<T>::of(memory);
            {
                let both = &mut both.elements[both.used.clone()];
                with(&mut || match work.op {
                    Operator::MulSum => comm.scaled_by(scalar).reduce_scatter_v_in_place(both, &counts),
                    op => comm.reduce_scatter_v_in_place(both, &counts, op.folds_with()),
                })?;
            }
            both.put_back(memory)
        }
    }
}

/// The elements that bytes are, between margins.
struct Copied<T> {
    elements: Vec<T>,
    used: Range<usize>,
}

impl<T: Element + Default> Copied<T> {
    fn of(bytes: &[u8]) -> Self {
        let margin = vec![MARGIN_BYTE; MARGIN * size_of::<T>()];
        let count = bytes.len() / size_of::<T>();
        let mut elements = vec![T::default(); count + 2 * MARGIN];
        let all = SpanMut::of(&mut elements);
        all.slice(0, margin.len()).copy_from(Span::of(&margin));
        all.slice(margin.len(), bytes.len()).copy_from(Span::of(bytes));
        all.slice(margin.len() + bytes.len(), margin.len()).copy_from(Span::of(&margin));
        Self { elements, used: MARGIN..MARGIN + count }
    }

    fn put_back(&mut self, bytes: &mut [u8]) -> Result<(), Failure> {
        let (all, length) = (Span::of(&self.elements), bytes.len());
        let margin_bytes = MARGIN * size_of::<T>();
        let mut margin = vec![0u8; margin_bytes];
        for start in [0, margin_bytes + length] {
            SpanMut::of(&mut margin).copy_from(all.slice(start, margin_bytes));
            if margin.iter().any(|byte| *byte != MARGIN_BYTE) {
                return Err(Failure::new(Exit::WrongData, "memory next to the buffers changed"));
            }
        }
        SpanMut::of(bytes).copy_from(all.slice(margin_bytes, length));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_and_changed_margins_are_found() {
        let mut bytes: Vec<u8> = (0..40).collect();
        let mut copied = Copied::<f64>::of(&bytes);
        assert_eq!(copied.elements[copied.used.clone()].len(), 5);
        copied.elements[MARGIN] = f64::from_le_bytes([7; 8]);
        assert_eq!(copied.put_back(&mut bytes), Ok(()));
        assert_eq!((bytes[..9].to_vec(), bytes[39]), (vec![7, 7, 7, 7, 7, 7, 7, 7, 8], 39));
        for changed in [MARGIN - 1, MARGIN + 5] {
            let mut copied = Copied::<f64>::of(&bytes);
            copied.elements[changed] = 1.0;
            assert_eq!(copied.put_back(&mut bytes).map_err(|failure| failure.exit), Err(Exit::WrongData));
        }
    }
}
