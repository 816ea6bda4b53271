//! The definition of a fold: wrapping, averaging, order, NaN, zeros, denormals, the caller's floating-point controls,
//! and calls that are refused. Each on every level.

use std::panic::{AssertUnwindSafe, catch_unwind};

use consort_kernels::{DataType, Element, Level, ReduceOp, Reducer, Scalar, Source, Store, Target, copy};
use consort_memory::{Span, SpanMut};
use half::{bf16, f16};

/// Folds `contributions` with all of them raw or none.
fn fold_at<T: Element>(
    level: Level,
    op: ReduceOp,
    n: u32,
    raw: bool,
    finish: bool,
    sources: &[&[T]],
) -> Vec<T> {
    let mut result = sources[0].to_vec();
    let views: Vec<_> = sources.iter().map(|source| Source { span: Span::of(source), raw }).collect();
    let target = Target { span: SpanMut::of(&mut result), store: Store::Cached };
    Reducer::with_level(T::DATA_TYPE, op, n, level).unwrap().fold(&[target], &views, finish);
    result
}

/// Runs at every level, on one element and on enough of them to fill registers.
fn everywhere(mut check: impl FnMut(Level, usize)) {
    for level in Level::ALL.into_iter().filter(|level| level.is_available()) {
        for count in [1, 7, 200] {
            check(level, count);
        }
    }
}

fn expect<T: Element + PartialEq + std::fmt::Debug>(op: ReduceOp, sources: &[T], expected: T) {
    everywhere(|level, count| {
        let columns: Vec<_> = sources.iter().map(|&value| vec![value; count]).collect();
        let views: Vec<_> = columns.iter().map(|column| &column[..]).collect();
        let result = fold_at(level, op, sources.len() as u32, false, true, &views);
        assert_eq!(result, vec![expected; count], "{op} of {sources:?} at {level:?}");
    });
}

#[test]
fn integers_wrap() {
    expect(ReduceOp::Sum, &[i8::MAX, 1], i8::MIN);
    expect(ReduceOp::Sum, &[200u8, 100], 44);
    expect(ReduceOp::Sum, &[i32::MAX, 1], i32::MIN);
    expect(ReduceOp::Sum, &[u32::MAX, 2], 1);
    expect(ReduceOp::Sum, &[i64::MIN, -1], i64::MAX);
    expect(ReduceOp::Prod, &[i8::MIN, -1], i8::MIN);
    expect(ReduceOp::Prod, &[1u64 << 63, 3], 1 << 63);
    expect(ReduceOp::Prod, &[0x1_0001u32, 0x1_0001], 0x2_0001);
    expect(ReduceOp::Max, &[-1i32, 1, 0], 1);
    expect(ReduceOp::Max, &[u32::MAX, 1], u32::MAX);
    expect(ReduceOp::Min, &[i64::MIN, 1], i64::MIN);
    expect(ReduceOp::Min, &[u64::MAX, 1], 1);
    expect(ReduceOp::Min, &[0x80u8, 0x7f], 0x7f);
}

#[test]
fn integer_averages_truncate_toward_zero() {
    expect(ReduceOp::Avg, &[-3i32, 0], -1);
    expect(ReduceOp::Avg, &[3i32, 0], 1);
    expect(ReduceOp::Avg, &[-7i8, 0, 0], -2);
    expect(ReduceOp::Avg, &[u64::MAX, 0], u64::MAX / 2);
    expect(ReduceOp::Avg, &[i64::MIN, 0], i64::MIN / 2);
    expect(ReduceOp::Avg, &[u32::MAX, 0], u32::MAX / 2);
    // The sum wraps before it is divided.
    expect(ReduceOp::Avg, &[100i8, 100], -28);
    everywhere(|level, count| {
        // More contributions than the type can hold.
        let result = fold_at(level, ReduceOp::Avg, 300, true, true, &[&vec![-128i8; count]]);
        assert_eq!(result, vec![0; count]);
        let result = fold_at(level, ReduceOp::Avg, u32::MAX, true, true, &[&vec![i32::MIN; count]]);
        assert_eq!(result, vec![0; count]);
        // Not finished: still a sum.
        let result = fold_at(level, ReduceOp::Avg, 2, true, false, &[&vec![5i32; count], &vec![6; count]]);
        assert_eq!(result, vec![11; count]);
    });
}

#[test]
fn float_averages_scale_what_is_raw() {
    everywhere(|level, count| {
        let (raw, partial) = (vec![3.0f32; count], vec![10.0f32; count]);
        let mut result = vec![0f32; count];
        let sources =
            [Source { span: Span::of(&partial), raw: false }, Source { span: Span::of(&raw), raw: true }];
        let reducer = Reducer::with_level(DataType::Float32, ReduceOp::Avg, 3, level).unwrap();
        for finish in [false, true] {
            let target = Target { span: SpanMut::of(&mut result), store: Store::Cached };
            reducer.fold(&[target], &sources, finish);
            assert_eq!(result, vec![10.0 + 3.0 * (1.0f32 / 3.0); count], "{level:?}");
        }
        let result = fold_at(level, ReduceOp::Avg, 10, true, true, &[&vec![7f64; count]]);
        assert_eq!(result, vec![7.0 * 0.1; count]);
        // Scaled before the sum, so it does not overflow.
        let huge = vec![f16::MAX; count];
        assert_eq!(fold_at(level, ReduceOp::Avg, 2, true, true, &[&huge, &huge]), huge);
        // No other operator looks at `raw`.
        let result = fold_at(level, ReduceOp::Sum, 2, true, true, &[&raw, &partial]);
        assert_eq!(result, vec![13.0; count]);
    });
}

/// Folds by a pre-multiplied sum at one level; each source is raw or not.
fn scaled_at<T: Element>(level: Level, scalar: T, finish: bool, sources: &[(&[T], bool)]) -> Vec<T> {
    let mut result = sources[0].0.to_vec();
    let views: Vec<_> = sources.iter().map(|&(source, raw)| Source { span: Span::of(source), raw }).collect();
    let target = Target { span: SpanMut::of(&mut result), store: Store::Cached };
    let reducer = Reducer::pre_mul_sum_with_level(Scalar::of(scalar), level).unwrap();
    reducer.fold(&[target], &views, finish);
    result
}

/// The expected `scalar * a + b`, where `a` is raw and `b` is not; and the expected fold of `a` alone.
fn expect_scaled<T: Element + PartialEq + std::fmt::Debug>(scalar: T, a: T, b: T, sum: T, alone: T) {
    everywhere(|level, count| {
        let (raw, partial) = (vec![a; count], vec![b; count]);
        for finish in [false, true] {
            let both = [(&raw[..], true), (&partial[..], false)];
            let what = format!("{scalar:?} * {a:?} + {b:?} at {level:?}");
            assert_eq!(scaled_at(level, scalar, finish, &both), vec![sum; count], "{what}");
            let other = [(&partial[..], false), (&raw[..], true)];
            assert_eq!(scaled_at(level, scalar, finish, &other), vec![sum; count], "{what}, turned round");
            assert_eq!(scaled_at(level, scalar, finish, &both[..1]), vec![alone; count], "{what}, alone");
            assert_eq!(scaled_at(level, scalar, finish, &other[..1]), partial, "{what}, copied");
        }
    });
}

#[test]
fn pre_multiplied_sums_scale_what_is_raw_and_integers_wrap() {
    expect_scaled(3i8, 100, 1, 45, 44);
    expect_scaled(-1i8, i8::MIN, 1, -127, i8::MIN);
    expect_scaled(3u8, 100, 250, 38, 44);
    expect_scaled(-7i32, 1 << 30, 5, (1 << 30) + 5, 1 << 30);
    expect_scaled(0x1_0001u32, 0x1_0001, u32::MAX, 0x2_0000, 0x2_0001);
    expect_scaled(0x1_0000_0001i64, 0x1_0000_0001, -1, 0x2_0000_0000, 0x2_0000_0001);
    expect_scaled(i64::MIN, 3, 7, i64::MIN + 7, i64::MIN);
    expect_scaled(u64::MAX, u64::MAX, 1, 2, 1);
    expect_scaled(0u64, u64::MAX, 9, 9, 0);
    expect_scaled(0.5f64, 3.0, 1.0, 2.5, 1.5);
    expect_scaled(3.0f32, f32::MAX, 1.0, f32::INFINITY, f32::INFINITY);
    expect_scaled(f16::from_f32(2.0), f16::MAX, f16::ONE, f16::INFINITY, f16::INFINITY);
    expect_scaled(bf16::from_f32(-2.0), bf16::ONE, bf16::ONE, bf16::NEG_ONE, bf16::from_f32(-2.0));
    // 1/3 is 0x3555: times 3 is 0.99976, which rounds to 1 before it is added.
    let third = f16::from_bits(0x3555);
    expect_scaled(third, f16::from_f32(3.0), f16::from_f32(2048.0), f16::from_f32(2048.0), f16::ONE);
}

/// A contribution is rounded to the data type when it is scaled, also where its sum is not yet rounded.
#[test]
fn a_scaled_contribution_is_the_same_whether_it_travelled_or_not() {
    // 1.125 * 1.125 is 1.265625, which E4M3 rounds to 1.25; less 1.25 it is 0.015625, which E4M3 has.
    use consort_kernels::F8E4m3;
    let [scalar, value, rest] = [1.125, 1.125, -1.25].map(F8E4m3::from_f32);
    expect_scaled(scalar, value, rest, F8E4m3::from_f32(0.0), F8E4m3::from_f32(1.25));
    let [scalar, value, rest] = [1.0078125, 1.0078125, -1.015625].map(bf16::from_f32);
    expect_scaled(scalar, value, rest, bf16::from_f32(0.0), bf16::from_f32(1.015625));
}

#[test]
fn scalars_that_are_no_numbers_give_canonical_ones() {
    everywhere(|level, count| {
        for (scalar, value) in [(f32::NAN, 1.0), (-f32::NAN, 1.0), (f32::INFINITY, 0.0), (1.0, -f32::NAN)] {
            for value in scaled_at(level, scalar, true, &[(&vec![value; count], true)]) {
                assert_eq!(value.to_bits(), 0x7fc0_0000, "{scalar} at {level:?}");
            }
        }
        for value in scaled_at(level, -1.0f64, true, &[(&vec![0.0; count], true)]) {
            assert_eq!(value.to_bits(), (-0.0f64).to_bits(), "{level:?}");
        }
    });
}

#[test]
fn a_scalar_can_be_replaced_by_another_of_its_type() {
    let reducer = Reducer::pre_mul_sum(Scalar::of(2i32));
    assert!(reducer.is_pre_mul_sum());
    assert_eq!((reducer.op(), reducer.data_type()), (ReduceOp::Sum, DataType::Int32));
    let mut result = [0i32; 40];
    let source = Source { span: Span::of(&[7i32; 40]), raw: true };
    for scalar in [5, -5] {
        let target = Target { span: SpanMut::of(&mut result), store: Store::Cached };
        reducer.with_scalar(Scalar::of(scalar)).fold(&[target], &[source], true);
        assert_eq!(result, [7 * scalar; 40]);
    }
    assert!(catch_unwind(|| reducer.with_scalar(Scalar::of(2u32))).is_err());
    for op in ReduceOp::ALL {
        let other = Reducer::new(DataType::Float32, op, 2);
        assert!(!other.is_pre_mul_sum());
        assert!(catch_unwind(|| other.with_scalar(Scalar::of(2f32))).is_err());
    }
}

#[test]
fn sources_are_folded_in_the_order_given() {
    expect(ReduceOp::Sum, &[1e8f32, 1.0, -1e8], 0.0);
    expect(ReduceOp::Sum, &[1e8f32, -1e8, 1.0], 1.0);
    expect(ReduceOp::Prod, &[1e300f64, 1e300, 1e-300], f64::INFINITY);
    expect(ReduceOp::Prod, &[1e300f64, 1e-300, 1e300], 1e300);
}

#[test]
fn low_precision_rounds_once() {
    // 2048 + 1 is a tie in binary16 and rounds to 2048; one more 1 makes it 2050, not 2048.
    expect(ReduceOp::Sum, &[2048.0, 1.0, 1.0].map(f16::from_f32), f16::from_f32(2050.0));
    expect(ReduceOp::Sum, &[256.0, 1.0, 1.0].map(bf16::from_f32), bf16::from_f32(258.0));
    // Ties to even, both ways.
    expect(ReduceOp::Sum, &[2048.0, 1.0].map(f16::from_f32), f16::from_f32(2048.0));
    expect(ReduceOp::Sum, &[2050.0, 1.0].map(f16::from_f32), f16::from_f32(2052.0));
    expect(ReduceOp::Sum, &[f16::MAX, f16::MAX], f16::INFINITY);
    expect(ReduceOp::Sum, &[bf16::MAX, bf16::MAX], bf16::INFINITY);
    expect(ReduceOp::Sum, &[f32::MAX, f32::MAX], f32::INFINITY);
}

#[test]
fn nan_is_canonical_unless_copied() {
    everywhere(|level, count| {
        let payload = vec![f32::from_bits(0xffa0_1234); count];
        let ones = vec![1f32; count];
        for op in ReduceOp::ALL {
            for sources in [[&payload[..], &ones], [&ones, &payload], [&payload, &payload]] {
                for value in fold_at(level, op, 2, false, true, &sources) {
                    assert_eq!(value.to_bits(), 0x7fc0_0000, "{op} at {level:?}");
                }
            }
            let wide = vec![f64::from_bits(0xfff0_0000_0000_0001); count];
            for value in fold_at(level, op, 2, false, true, &[&wide, &vec![1.0; count]]) {
                assert_eq!(value.to_bits(), 0x7ff8 << 48, "{op} at {level:?}");
            }
            for value in fold_at(level, op, 2, false, true, &[&payload]) {
                assert_eq!(value.to_bits(), 0xffa0_1234, "copy for {op} at {level:?}");
            }
        }
        for value in fold_at(level, ReduceOp::Avg, 2, true, true, &[&payload]) {
            assert_eq!(value.to_bits(), 0x7fc0_0000, "scaled at {level:?}");
        }
        // An invalid operation's NaN is negative on x86.
        let infinite = [vec![f32::INFINITY; count], vec![f32::NEG_INFINITY; count]];
        for value in fold_at(level, ReduceOp::Sum, 2, false, true, &[&infinite[0], &infinite[1]]) {
            assert_eq!(value.to_bits(), 0x7fc0_0000, "{level:?}");
        }
    });
}

#[test]
fn zeros_are_ordered() {
    for (left, right) in [(0.0f32, -0.0f32), (-0.0, 0.0)] {
        everywhere(|level, count| {
            let sources = [&vec![left; count][..], &vec![right; count]];
            for value in fold_at(level, ReduceOp::Max, 2, false, true, &sources) {
                assert_eq!(value.to_bits(), 0, "max of {left:?}, {right:?} at {level:?}");
            }
            for value in fold_at(level, ReduceOp::Min, 2, false, true, &sources) {
                assert_eq!(value.to_bits(), 1 << 31, "min of {left:?}, {right:?} at {level:?}");
            }
        });
    }
}

#[cfg(target_arch = "x86_64")]
mod controls {
    use std::arch::asm;

    use super::*;
    use crate::support::{Random, elements, fold, scalar, seed};

    fn read() -> u32 {
        let mut controls = 0u32;
        // SAFETY: stores MXCSR into a local.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut controls, options(nostack)) };
        controls
    }

    /// # Safety
    /// No float arithmetic of the compiler's may run until the controls are default again.
    unsafe fn write(controls: u32) {
        // SAFETY: loads a value without reserved bits.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const controls, options(nostack)) };
    }

    /// Flush to zero and denormals are zero; each rounding direction; everything, with flags raised.
    const ODD: [u32; 5] =
        [0x1f80 | 0x8040, 0x1f80 | 0x2000, 0x1f80 | 0x4000, 0x1f80 | 0x6000, 0x1f80 | 0xe07f];

    #[test]
    fn results_do_not_depend_on_the_callers_controls() {
        let mut random = Random(seed());
        for data_type in DataType::ALL {
            let size = data_type.size();
            // Mostly corners, denormals among them.
            let inputs = [0; 2].map(|_| elements(&mut random, data_type, 3000));
            let factor = scalar(&mut random, data_type);
            for op in ReduceOp::ALL.into_iter().map(Some).chain([None]) {
                let reducer = |level| match op {
                    Some(op) => Reducer::with_level(data_type, op, 3, level).unwrap(),
                    None => Reducer::pre_mul_sum_with_level(factor, level).unwrap(),
                };
                for level in Level::ALL.into_iter().filter(|level| level.is_available()) {
                    for length in [size, 40 * size, inputs[0].len()] {
                        let sources = [(&inputs[0][..length], true), (&inputs[1][..length], true)];
                        let expected = fold(&reducer(level), &sources, true);
                        for odd in ODD {
                            let before = read();
                            // SAFETY: only the library's fold and moves of integers run until the reset.
                            unsafe { write(odd) };
                            let reducer = reducer(level);
                            let result = fold(&reducer, &sources, true);
                            let after = read();
                            // SAFETY: back to what it was.
                            unsafe { write(before) };
                            assert_eq!(after & !0x3f, odd & !0x3f, "controls were not restored");
                            assert!(
                                result == expected,
                                "{reducer:?}, {length} bytes with MXCSR {odd:#x}, CONSORT_TEST_SEED={}",
                                seed()
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_word_does_not_depend_on_the_callers_controls() {
        let mut random = Random(seed());
        for data_type in DataType::ALL {
            for op in ReduceOp::ALL {
                let reducer = Reducer::new(data_type, op, 2);
                for odd in ODD.into_iter().cycle().take(200) {
                    let [left, right] =
                        [0; 2].map(|_| elements(&mut random, data_type, 8 / data_type.size()));
                    let [mut expected, mut result] = [[0u8; 8]; 2];
                    let (left, right) = (Span::of(&left), Span::of(&right));
                    reducer.fold_two(SpanMut::of(&mut expected), left, right);
                    let before = read();
                    // SAFETY: only the library's fold runs until the reset.
                    unsafe { write(odd) };
                    reducer.fold_two(SpanMut::of(&mut result), left, right);
                    let after = read();
                    // SAFETY: back to what it was.
                    unsafe { write(before) };
                    assert_eq!(after & !0x3f, odd & !0x3f, "controls were not restored");
                    assert!(result == expected, "{reducer:?}, {odd:#x}, CONSORT_TEST_SEED={}", seed());
                }
            }
        }
    }

    #[test]
    fn the_hazard_is_real() {
        // SAFETY: reset at once; the multiplication is in assembly.
        let product = unsafe {
            let before = read();
            write(0x1f80 | 0x8040);
            let mut value = f32::from_bits(1);
            asm!("addss {0}, {0}", inout(xmm_reg) value, options(nostack));
            write(before);
            value
        };
        assert_eq!(product.to_bits(), 0, "this processor does not flush, so the other test proves nothing");
    }
}

#[test]
fn denormals_are_honoured() {
    expect(ReduceOp::Sum, &[f32::from_bits(1), f32::from_bits(2)], f32::from_bits(3));
    expect(ReduceOp::Sum, &[f64::from_bits(1), f64::from_bits(2)], f64::from_bits(3));
    expect(ReduceOp::Sum, &[f16::from_bits(1), f16::from_bits(2)], f16::from_bits(3));
    expect(ReduceOp::Sum, &[bf16::from_bits(1), bf16::from_bits(2)], bf16::from_bits(3));
    expect(ReduceOp::Max, &[bf16::from_bits(1), bf16::from_bits(0)], bf16::from_bits(1));
}

#[test]
fn what_is_refused() {
    let source = [0u8; 16];
    let mut output = [0u8; 16];
    let span = SpanMut::of(&mut output);
    let target = |bytes| Target { span: span.slice(0, bytes), store: Store::Cached };
    let from = |bytes| Source { span: Span::of(&source[..bytes]), raw: false };
    let reducer = Reducer::new(DataType::Float32, ReduceOp::Sum, 2);
    let refused = |targets: &[Target<'_>], sources: &[Source<'_>]| {
        let outcome = catch_unwind(AssertUnwindSafe(|| reducer.fold(targets, sources, true)));
        outcome.err().and_then(|payload| payload.downcast::<String>().ok()).map(|text| *text)
    };
    let text = refused(&[target(8)], &[from(8), from(12)]).unwrap();
    assert!(text.contains("[8]") && text.contains("[8, 12]") && text.contains("float"), "{text}");
    assert!(refused(&[target(12)], &[from(8), from(8)]).is_some());
    assert!(refused(&[target(6)], &[from(6), from(6)]).is_some());
    assert!(refused(&[target(8)], &[from(8), from(8)]).is_none());
    assert!(refused(&[], &[from(8), from(8)]).is_none());
    assert!(catch_unwind(|| reducer.fold(&[], &[], true)).is_err());
    assert!(catch_unwind(AssertUnwindSafe(|| copy(&[target(8)], from(7).span))).is_err());
    assert!(catch_unwind(|| Reducer::new(DataType::Int8, ReduceOp::Avg, 0)).is_err());
}

#[test]
fn nothing_writes_nothing() {
    let source = [1u8; 128];
    let mut memory = [7u8; 128];
    // A slice of length 0 with elements before and behind it.
    let nothing = SpanMut::of(&mut memory).slice(64, 0);
    for store in [Store::Cached, Store::Streaming] {
        let target = Target { span: nothing, store };
        for level in Level::ALL.into_iter().filter(|level| level.is_available()) {
            for data_type in DataType::ALL {
                let reducer = Reducer::with_level(data_type, ReduceOp::Avg, 2, level).unwrap();
                let source = Source { span: Span::of(&source).slice(64, 0), raw: true };
                reducer.fold(&[target], &[source, source], true);
            }
        }
        copy(&[target], Span::of(&source).slice(64, 0));
    }
    copy(&[], Span::of(&source));
    assert_eq!(memory, [7; 128]);
}
