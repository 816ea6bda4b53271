//! bfloat16: the upper half of an `f32`, with its range and 8 bits of precision. The type is the library's element, `half::bf16`.
//!
//! Invariant: rounding is to the nearest, ties to the even one; what lies beyond the range becomes infinite, a value that is
//! no number stays one, and subnormal numbers are kept. The bits are the same on every processor: the instruction that
//! rounds would flush subnormal numbers, so it is not used. Absent: arithmetic; `products.rs` has the one that is needed.

use half::bf16;

use crate::number::{rounded_bits, with_vectors};

/// Rounds every element to bfloat16.
///
/// # Panics
/// If the lengths differ.
pub fn narrow(from: &[f32], to: &mut [bf16]) {
    assert_eq!(from.len(), to.len(), "a place for each element");
    with_vectors(|| {
        for (to, from) in to.iter_mut().zip(from) {
            *to = bf16::from_bits((rounded_bits(*from) >> 16) as u16);
        }
    });
}

/// Makes an `f32` of every element, exactly.
///
/// # Panics
/// If the lengths differ.
pub fn widen(from: &[bf16], to: &mut [f32]) {
    assert_eq!(from.len(), to.len(), "a place for each element");
    with_vectors(|| {
        for (to, from) in to.iter_mut().zip(from) {
            *to = f32::from_bits(u32::from(from.to_bits()) << 16);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn conversions_of_slices_are_those_of_the_elements() {
        const SEED: u64 = 20_261_130;
        // Numbers, ties and their neighbours, subnormal numbers, both ends of the range, infinities and values that are none.
        let edges =
            [0u32, 1, 0x7fff, 0x8000, 0x8001, 0x1_8000, 0x7f_ffff, 0x80_0000, 0x3f80_8000, 0x3f81_8000];
        let ends =
            [0x7f7f_7fff, 0x7f7f_8000, 0x7f7f_ffff, 0x7f80_0000, 0x7f80_0001, 0x7fff_ffff, 0x7fc0_0000];
        let mut values: Vec<f32> =
            edges.iter().chain(&ends).flat_map(|bits| [*bits, bits | 1 << 31]).map(f32::from_bits).collect();
        let random = Random::new(SEED, "bits");
        values.extend((0..10_001).map(|index| f32::from_bits(random.bits(index) as u32)));
        let mut narrowed = vec![bf16::ZERO; values.len()];
        narrow(&values, &mut narrowed);
        let mut widened = vec![0f32; values.len()];
        widen(&narrowed, &mut widened);
        for ((value, narrowed), widened) in values.iter().zip(&narrowed).zip(&widened) {
            let expected = bf16::from_f32(*value);
            assert_eq!(narrowed.to_bits(), expected.to_bits(), "seed {SEED}: {:#x}", value.to_bits());
            assert_eq!(widened.to_bits(), u32::from(expected.to_bits()) << 16);
        }
    }
}
