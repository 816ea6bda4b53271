//! What the kernel tests share: seeded values of every type, and folds over plain buffers.

use consort_kernels::{DataType, Level, Reducer, Scalar, Source, Store, Target};
use consort_memory::{Span, SpanMut};
pub(crate) use consort_testing::Random;

/// The seed of all random values; printed by every failing comparison.
pub(crate) fn seed() -> u64 {
    consort_testing::given_seed().unwrap_or(0x5eed_c0de)
}

/// Levels to compare with the scalar one.
pub(crate) fn fast_levels() -> Vec<Level> {
    let all = [Level::Portable, Level::Avx2, Level::Avx512];
    all.into_iter().filter(|level| level.is_available()).collect()
}

/// Bits of fraction, and of the whole, of a float type.
fn float_shape(data_type: DataType) -> Option<(u32, u32)> {
    Some(match data_type {
        DataType::Float16 => (10, 16),
        DataType::Float32 => (23, 32),
        DataType::Float64 => (52, 64),
        DataType::Bfloat16 => (7, 16),
        DataType::Float8E4m3 => (3, 8),
        DataType::Float8E5m2 => (2, 8),
        _ => return None,
    })
}

/// One element: a third any bits, a third corners of the format, a third numbers near one.
pub(crate) fn element(random: &mut Random, data_type: DataType) -> u64 {
    let bits = 8 * data_type.size() as u32;
    let any = random.draw();
    let Some((fraction, _)) = float_shape(data_type) else {
        let top = 1u64 << (bits - 1);
        let corners = [0, 1, u64::MAX, top, top - 1, top + 1, 2, 3];
        return if any.is_multiple_of(2) { random.draw() } else { corners[random.below(corners.len())] };
    };
    let sign = (random.draw() & 1) << (bits - 1);
    let ones = (1u64 << (bits - 1 - fraction)) - 1;
    let infinity = ones << fraction;
    match any % 3 {
        0 => random.draw(),
        1 => {
            let corners = [
                0,
                1,
                (1 << fraction) - 1,
                1 << fraction,
                infinity - 1,
                infinity,
                infinity + 1,
                infinity | (1 << (fraction - 1)),
                (ones >> 1) << fraction,
            ];
            sign | corners[random.below(corners.len())]
        }
        _ => {
            let exponent = (ones >> 1) - 3 + random.draw() % 6;
            sign | (exponent << fraction) | (random.draw() & ((1 << fraction) - 1))
        }
    }
}

/// `count` elements as bytes.
pub(crate) fn elements(random: &mut Random, data_type: DataType, count: usize) -> Vec<u8> {
    let size = data_type.size();
    (0..count).flat_map(|_| element(random, data_type).to_le_bytes()[..size].to_vec()).collect()
}

/// Any element as the factor of a pre-multiplied sum.
pub(crate) fn scalar(random: &mut Random, data_type: DataType) -> Scalar {
    Scalar::from_bytes(data_type, &elements(random, data_type, 1)).unwrap()
}

/// Folds byte buffers into a new one.
pub(crate) fn fold(reducer: &Reducer, sources: &[(&[u8], bool)], finish: bool) -> Vec<u8> {
    let mut result = vec![0xa5; sources[0].0.len()];
    let target = Target { span: SpanMut::of(&mut result), store: Store::Cached };
    let sources: Vec<_> = sources.iter().map(|&(bytes, raw)| Source { span: Span::of(bytes), raw }).collect();
    reducer.fold(&[target], &sources, finish);
    result
}

/// Folds two equal slices of codes, none of them raw.
pub(crate) fn fold_two(reducer: &Reducer, left: &[u8], right: &[u8]) -> Vec<u8> {
    fold(reducer, &[(left, false), (right, false)], true)
}

/// 16-bit codes as bytes.
pub(crate) fn bytes_of(codes: &[u16]) -> Vec<u8> {
    codes.iter().flat_map(|code| code.to_le_bytes()).collect()
}

/// Bytes as 16-bit codes.
pub(crate) fn codes_of(bytes: &[u8]) -> Vec<u16> {
    bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect()
}
