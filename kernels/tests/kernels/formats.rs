//! The low-precision formats against computations that share no code with the library: the formulas of the
//! OCP specification and the `half` crate.

use consort_kernels::{DataType, F8E4m3, F8E5m2, Level, ReduceOp, Reducer, Scalar};
use half::{bf16, f16};

use crate::support::{Random, bytes_of, codes_of, elements, fast_levels, fold, fold_two, seed};

fn all_levels() -> Vec<Level> {
    std::iter::once(Level::Scalar).chain(fast_levels()).collect()
}

/// An 8-bit format as the specification's table defines it.
struct Table {
    values: Vec<f32>,
    largest: u8,
    nan: u8,
}

impl Table {
    fn new(exponent_bits: u32, bias: i32, largest: u8, nan: u8, infinity: Option<u8>) -> Self {
        let fraction_bits = 7 - exponent_bits;
        let value = |code: u8| {
            let magnitude = code & 0x7f;
            let exponent = i32::from(magnitude >> fraction_bits);
            let fraction = f64::from(magnitude & ((1 << fraction_bits) - 1)) / f64::from(1 << fraction_bits);
            let value = if Some(magnitude) == infinity {
                f64::INFINITY
            } else if magnitude > largest {
                f64::NAN
            } else if exponent == 0 {
                fraction * 2f64.powi(1 - bias)
            } else {
                (1.0 + fraction) * 2f64.powi(exponent - bias)
            };
            (if code >= 0x80 { -value } else { value }) as f32
        };
        Self { values: (0..=255).map(value).collect(), largest, nan }
    }

    fn e4m3() -> Self {
        Self::new(4, 7, 0x7e, 0x7f, None)
    }

    fn e5m2() -> Self {
        Self::new(5, 15, 0x7b, 0x7e, Some(0x7c))
    }

    /// By search: the nearest finite code; of two equally near codes the even one.
    fn nearest(&self, value: f32) -> u8 {
        if value.is_nan() {
            return self.nan;
        }
        let sign = if value.is_sign_negative() { 0x80 } else { 0 };
        let magnitude = f64::from(value.abs().min(self.values[usize::from(self.largest)]));
        let above = self.values[..=usize::from(self.largest)].partition_point(|&v| f64::from(v) < magnitude);
        let below = above.saturating_sub(1);
        let down = magnitude - f64::from(self.values[below]);
        let up = f64::from(self.values[above]) - magnitude;
        let code = if down < up || (down == up && below % 2 == 0) { below } else { above };
        sign | code as u8
    }
}

#[test]
fn float8_anchors_of_the_specification() {
    for (code, value) in
        [(0x7e, 448.0), (0x08, 2f32.powi(-6)), (0x07, 0.875 * 2f32.powi(-6)), (0x01, 2f32.powi(-9))]
    {
        assert_eq!(F8E4m3(code).to_f32(), value);
    }
    for (code, value) in [
        (0x7b, 57344.0),
        (0x7c, f32::INFINITY),
        (0x04, 2f32.powi(-14)),
        (0x03, 0.75 * 2f32.powi(-14)),
        (0x01, 2f32.powi(-16)),
    ] {
        assert_eq!(F8E5m2(code).to_f32(), value);
    }
    assert!([0x7f, 0xff].iter().all(|&code| F8E4m3(code).to_f32().is_nan()));
    assert!([0x7d, 0x7e, 0x7f, 0xfd, 0xfe, 0xff].iter().all(|&code| F8E5m2(code).to_f32().is_nan()));
}

fn float8_conversions(table: &Table, decode: fn(u8) -> f32, encode: fn(f32) -> u8) {
    for code in 0..=255u8 {
        let (value, expected) = (decode(code), table.values[usize::from(code)]);
        assert!(value.to_bits() == expected.to_bits() || (value.is_nan() && expected.is_nan()), "{code:#x}");
    }
    let mut probes = vec![0.0, f32::INFINITY, f32::NAN, f32::MAX, f32::MIN_POSITIVE, f32::from_bits(1)];
    probes.push(f32::from_bits(0x7f80_0001));
    for code in 0..usize::from(table.largest) {
        let (low, high) = (table.values[code], table.values[code + 1]);
        probes.extend([low, high, (low + high) / 2.0]);
    }
    probes.extend([464.0, 480.0, 61440.0, 65536.0]);
    let beside: Vec<f32> = probes.iter().flat_map(|probe| [probe.next_up(), probe.next_down()]).collect();
    probes.extend(beside);
    let mut random = Random(seed());
    probes.extend((0..200_000).map(|_| f32::from_bits(random.draw() as u32)));
    // Exponents in the range of the formats.
    probes.extend((0..200_000).map(|_| {
        let bits = random.draw() as u32;
        f32::from_bits((bits & 0x007f_ffff) | ((100 + (bits >> 23) % 50) << 23))
    }));
    for value in probes.into_iter().flat_map(|probe| [probe, -probe]) {
        assert_eq!(
            encode(value),
            table.nearest(value),
            "{value:e} ({:#x}), seed {}",
            value.to_bits(),
            seed()
        );
    }
}

#[test]
fn float8_conversions_agree_with_the_tables() {
    float8_conversions(&Table::e4m3(), |code| F8E4m3(code).to_f32(), |value| F8E4m3::from_f32(value).0);
    float8_conversions(&Table::e5m2(), |code| F8E5m2(code).to_f32(), |value| F8E5m2::from_f32(value).0);
}

/// Every pair of codes, as two buffers.
fn all_pairs() -> (Vec<u8>, Vec<u8>) {
    (0..=0xffff_u32).map(|pair| ((pair >> 8) as u8, pair as u8)).unzip()
}

fn expected_of(op: ReduceOp, left: f32, right: f32) -> f32 {
    let zeros_or_nan = |positive_wins: bool| {
        if left.is_nan() || right.is_nan() {
            f32::NAN
        } else if left.is_sign_negative() == positive_wins {
            right
        } else {
            left
        }
    };
    match op {
        ReduceOp::Sum | ReduceOp::Avg => left + right,
        ReduceOp::Prod => left * right,
        ReduceOp::Max if left > right => left,
        ReduceOp::Max if left < right => right,
        ReduceOp::Max => zeros_or_nan(true),
        ReduceOp::Min if left < right => left,
        ReduceOp::Min if left > right => right,
        ReduceOp::Min => zeros_or_nan(false),
    }
}

#[test]
fn float8_all_pairs() {
    let (left, right) = all_pairs();
    for (data_type, table) in [(DataType::Float8E4m3, Table::e4m3()), (DataType::Float8E5m2, Table::e5m2())] {
        for op in ReduceOp::ALL {
            // Both raw for Avg: each is scaled in f32 and rounded before they meet.
            let contributions = 3;
            let factor = if op == ReduceOp::Avg { 1.0 / contributions as f32 } else { 1.0 };
            let value = |code: &u8| match op {
                ReduceOp::Avg => {
                    table.values[usize::from(table.nearest(table.values[usize::from(*code)] * factor))]
                }
                _ => table.values[usize::from(*code)],
            };
            let expected: Vec<u8> = left
                .iter()
                .zip(&right)
                .map(|(a, b)| table.nearest(expected_of(op, value(a), value(b))))
                .collect();
            for level in all_levels() {
                let reducer = Reducer::with_level(data_type, op, contributions, level).unwrap();
                let result = fold(&reducer, &[(&left, true), (&right, true)], true);
                let wrong = (0..result.len()).find(|&at| result[at] != expected[at]);
                if let Some(at) = wrong {
                    panic!(
                        "{reducer:?}: {:#x}, {:#x} give {:#x}, not {:#x}",
                        left[at], right[at], result[at], expected[at]
                    );
                }
            }
        }
    }
}

/// Every pair of numbers without a NaN or an infinity nearby, for which kernels have a form of their own; in two
/// orders, so that neighbours are alike in one and differ in the other; and then with some NaNs and infinities.
#[test]
fn float8_sums_of_numbers() {
    for (data_type, table) in [(DataType::Float8E4m3, Table::e4m3()), (DataType::Float8E5m2, Table::e5m2())] {
        let numbers: Vec<u8> = (0..=255).filter(|code| code & 0x7f <= table.largest).collect();
        let near: Vec<_> = numbers.iter().flat_map(|&a| numbers.iter().map(move |&b| (a, b))).collect();
        // A step without a common divisor with either number of pairs.
        let far: Vec<_> = (0..near.len()).map(|at| near[at * 10_007 % near.len()]).collect();
        let mut mixed = far.clone();
        for pair in mixed.iter_mut().step_by(97) {
            pair.1 = table.largest + 1;
        }
        for pairs in [near, far, mixed] {
            let (left, right): (Vec<u8>, Vec<u8>) = pairs.into_iter().unzip();
            let value = |code: &u8| table.values[usize::from(*code)];
            let expected: Vec<u8> =
                left.iter().zip(&right).map(|(a, b)| table.nearest(value(a) + value(b))).collect();
            for level in all_levels() {
                let reducer = Reducer::with_level(data_type, ReduceOp::Sum, 1, level).unwrap();
                let result = fold_two(&reducer, &left, &right);
                let wrong = (0..result.len()).find(|&at| result[at] != expected[at]);
                if let Some(at) = wrong {
                    let (a, b) = (left[at], right[at]);
                    panic!("{reducer:?}: {a:#x}, {b:#x} give {:#x}, not {:#x}", result[at], expected[at]);
                }
            }
        }
    }
}

/// Every 8-bit code by every scalar, against tables and the processor's multiplication.
#[test]
fn all_products_of_eight_bits() {
    let codes: Vec<u8> = (0..=255).collect();
    let float = |table: Table| {
        Box::new(move |scalar: u8, code: u8| {
            let [scalar, value] = [scalar, code].map(|code| table.values[usize::from(code)]);
            table.nearest(scalar * value)
        }) as Box<dyn Fn(u8, u8) -> u8>
    };
    for (data_type, product) in [
        (DataType::Float8E4m3, float(Table::e4m3())),
        (DataType::Float8E5m2, float(Table::e5m2())),
        (DataType::Int8, Box::new(|scalar, code| (scalar as i8).wrapping_mul(code as i8) as u8)),
        (DataType::Uint8, Box::new(|scalar, code| scalar.wrapping_mul(code))),
    ] {
        for level in all_levels() {
            for &scalar in &codes {
                let factor = Scalar::from_bytes(data_type, &[scalar]).unwrap();
                let reducer = Reducer::pre_mul_sum_with_level(factor, level).unwrap();
                let expected: Vec<u8> = codes.iter().map(|&code| product(scalar, code)).collect();
                let result = fold(&reducer, &[(&codes, true)], true);
                assert_eq!(result, expected, "{data_type}, {scalar:#x} at {level:?}");
            }
        }
    }
}

/// Random products of the wider types, against the processor's multiplication and the `half` crate's conversions.
#[test]
fn products_of_wider_types() {
    macro_rules! check {
        ($random:expr, $data_type:ident, $bits:ty, |$scalar:ident, $value:ident| $product:expr) => {
            for _ in 0..40 {
                let inputs = elements($random, DataType::$data_type, 500);
                let factor = elements($random, DataType::$data_type, 1);
                let word = |bytes: &[u8]| <$bits>::from_le_bytes(bytes.try_into().unwrap());
                let expected: Vec<u8> = inputs
                    .chunks_exact(size_of::<$bits>())
                    .flat_map(|value| {
                        let ($scalar, $value) = (word(&factor), word(value));
                        let product: $bits = $product;
                        product.to_le_bytes()
                    })
                    .collect();
                let factor = Scalar::from_bytes(DataType::$data_type, &factor).unwrap();
                for level in all_levels() {
                    let reducer = Reducer::pre_mul_sum_with_level(factor, level).unwrap();
                    let result = fold(&reducer, &[(&inputs, true)], false);
                    assert!(result == expected, "{reducer:?}, CONSORT_TEST_SEED={}", seed());
                }
            }
        };
    }
    let random = &mut Random(seed());
    check!(random, Int32, u32, |a, b| a.wrapping_mul(b));
    check!(random, Uint32, u32, |a, b| (u64::from(a) * u64::from(b)) as u32);
    check!(random, Int64, u64, |a, b| (i128::from(a as i64) * i128::from(b as i64)) as u64);
    check!(random, Uint64, u64, |a, b| (u128::from(a) * u128::from(b)) as u64);
    let quiet = |value: f32, nan: u16, code: u16| if value.is_nan() { nan } else { code };
    check!(random, Float16, u16, |a, b| {
        let product = f16::from_bits(a).to_f32() * f16::from_bits(b).to_f32();
        quiet(product, 0x7e00, f16::from_f32(product).to_bits())
    });
    check!(random, Bfloat16, u16, |a, b| {
        let product = bf16::from_bits(a).to_f32() * bf16::from_bits(b).to_f32();
        quiet(product, 0x7fc0, bf16::from_f32(product).to_bits())
    });
    check!(random, Float32, u32, |a, b| {
        let product = f32::from_bits(a) * f32::from_bits(b);
        if product.is_nan() { 0x7fc0_0000 } else { product.to_bits() }
    });
    check!(random, Float64, u64, |a, b| {
        let product = f64::from_bits(a) * f64::from_bits(b);
        if product.is_nan() { 0x7ff8 << 48 } else { product.to_bits() }
    });
}

/// Multiplying by 1/1 decodes, does nothing, and encodes.
#[test]
fn every_code_survives_decoding_and_encoding() {
    let codes: Vec<u16> = (0..=u16::MAX).collect();
    let bytes: Vec<u8> = (0..=255).collect();
    for level in all_levels() {
        let unscaled = |data_type, input: &[u8]| {
            let reducer = Reducer::with_level(data_type, ReduceOp::Avg, 1, level).unwrap();
            fold(&reducer, &[(input, true)], true)
        };
        let result = codes_of(&unscaled(DataType::Float16, &bytes_of(&codes)));
        for (&code, &back) in codes.iter().zip(&result) {
            let expected = if f16::from_bits(code).is_nan() { 0x7e00 } else { code };
            assert_eq!(back, expected, "half {code:#x} at {level:?}");
        }
        let result = codes_of(&unscaled(DataType::Bfloat16, &bytes_of(&codes)));
        for (&code, &back) in codes.iter().zip(&result) {
            let expected = if bf16::from_bits(code).is_nan() { 0x7fc0 } else { code };
            assert_eq!(back, expected, "bfloat16 {code:#x} at {level:?}");
        }
        for (data_type, table) in
            [(DataType::Float8E4m3, Table::e4m3()), (DataType::Float8E5m2, Table::e5m2())]
        {
            for (code, back) in unscaled(data_type, &bytes).into_iter().enumerate() {
                // Infinity saturates.
                let magnitude = (code as u8 & 0x7f).min(table.largest) | (code as u8 & 0x80);
                let is_nan = table.values[code].is_nan();
                let expected = if is_nan { table.nan } else { magnitude };
                assert_eq!(back, expected, "{data_type} {code:#x} at {level:?}");
            }
        }
    }
}

/// Every code of 16 bits with a random partner, against the `half` crate's conversions.
fn half_widths(data_type: DataType, to_f32: fn(u16) -> f32, from_f32: fn(f32) -> u16, nan: u16) {
    let mut random = Random(seed());
    let left: Vec<u16> = (0..4).flat_map(|_| 0..=u16::MAX).collect();
    // Half of the partners are near, so that sums cancel and round; half are anywhere.
    let right: Vec<u16> = left
        .iter()
        .map(|&code| match random.draw() {
            any if any % 2 == 0 => code ^ (any >> 40) as u16 & 0x8fff,
            any => (any >> 40) as u16,
        })
        .collect();
    for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min] {
        for level in all_levels() {
            let reducer = Reducer::with_level(data_type, op, 1, level).unwrap();
            let result = codes_of(&fold_two(&reducer, &bytes_of(&left), &bytes_of(&right)));
            for ((&a, &b), &back) in left.iter().zip(&right).zip(&result) {
                let value = expected_of(op, to_f32(a), to_f32(b));
                let expected = if value.is_nan() { nan } else { from_f32(value) };
                assert_eq!(back, expected, "{reducer:?}: {a:#x}, {b:#x}, CONSORT_TEST_SEED={}", seed());
            }
        }
    }
}

#[test]
fn half_agrees_with_the_half_crate() {
    let (to, from) = (|code| f16::from_bits(code).to_f32(), |value| f16::from_f32(value).to_bits());
    half_widths(DataType::Float16, to, from, 0x7e00);
}

#[test]
fn bfloat16_agrees_with_the_half_crate() {
    let (to, from) = (|code| bf16::from_bits(code).to_f32(), |value| bf16::from_f32(value).to_bits());
    half_widths(DataType::Bfloat16, to, from, 0x7fc0);
}
