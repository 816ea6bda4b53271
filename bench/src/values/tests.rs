use half::{bf16, f16};

use super::*;

const RANKS: [u32; 12] = [1, 2, 3, 4, 5, 7, 8, 13, 16, 33, 64, 200];

fn format(data_type: DataType) -> Option<Float> {
    match kind(data_type) {
        Kind::Float(float) => Some(float),
        _ => None,
    }
}

/// Rounds to the data type by independent means: `half`, casts, and a search through all float8 codes.
fn round(data_type: DataType, value: f64) -> f64 {
    match data_type {
        // `half` rounds from f32; its way from f64 drops bits that decide ties.
        DataType::Float16 => f16::from_f32(value as f32).to_f64(),
        DataType::Bfloat16 => bf16::from_f32(value as f32).to_f64(),
        DataType::Float32 => f64::from(value as f32),
        DataType::Float64 => value,
        _ => {
            let float = format(data_type).unwrap();
            let finite = |code: u64| match data_type {
                DataType::Float8E4m3 => code & 0x7f != 0x7f,
                _ => code & 0x7c != 0x7c,
            };
            let distance = |code: u64| (Rule::decode(float, code) - value).abs();
            let nearest = (0..256)
                .filter(|code| finite(*code))
                .min_by(|a, b| distance(*a).total_cmp(&distance(*b)).then((a & 1).cmp(&(b & 1))));
            Rule::decode(float, nearest.unwrap())
        }
    }
}

fn float_bits(data_type: DataType, value: f64) -> u64 {
    match data_type {
        DataType::Float16 => u64::from(f16::from_f32(value as f32).to_bits()),
        DataType::Bfloat16 => u64::from(bf16::from_f32(value as f32).to_bits()),
        DataType::Float32 => u64::from((value as f32).to_bits()),
        DataType::Float64 => value.to_bits(),
        _ => (0..256)
            .find(|code| Rule::decode(format(data_type).unwrap(), *code).to_bits() == value.to_bits())
            .unwrap(),
    }
}

fn shuffled(ranks: u32, seed: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..ranks).collect();
    order.sort_by_key(|rank| mix(seed, u64::from(*rank)));
    order
}

fn rules() -> impl Iterator<Item = Rule> {
    DataType::ALL.into_iter().flat_map(|data_type| {
        Operator::ALL
            .into_iter()
            .flat_map(move |op| RANKS.into_iter().map(move |ranks| Rule { data_type, op, ranks, seed: 42 }))
    })
}

#[test]
fn encoding_is_what_half_and_the_hardware_do() {
    for place in 0..20_000u64 {
        let value =
            (mix(7, place) as i64 >> 40) as f64 * 2f64.powi((mix(8, place) % 24) as i32 - 24) / 1000.0;
        let value = f64::from(value as f32);
        for data_type in [DataType::Float16, DataType::Bfloat16, DataType::Float32, DataType::Float64] {
            if data_type == DataType::Float16 && value.abs() > 65_000.0 {
                continue;
            }
            let bits = format(data_type).unwrap().encode(value);
            assert_eq!(bits, float_bits(data_type, value), "{data_type} {value}");
        }
        for data_type in [DataType::Float8E4m3, DataType::Float8E5m2] {
            if value.abs() < 440.0 {
                let float = format(data_type).unwrap();
                let got = Rule::decode(float, float.encode(value));
                assert_eq!(got, round(data_type, value), "{data_type} {value}");
            }
        }
    }
}

/// Folds in several orders, as a line and as a tree, rounding each partial result or none.
#[test]
fn floats_are_exact_in_any_order_and_precision() {
    for rule in rules() {
        let Some(float) = format(rule.data_type) else { continue };
        let places = if rule.data_type.size() == 1 && rule.ranks > 16 { 12 } else { 60 };
        for place in 0..places {
            let expected = rule.expected(place);
            for (seed, rounding) in [(1, true), (2, true), (3, false)] {
                let keep = |value: f64| if rounding { round(rule.data_type, value) } else { value };
                let scaled = |rank: u32| {
                    let value = Rule::decode(float, rule.input(rank, place));
                    match rule.op {
                        Operator::Avg if rule.data_type == DataType::Float64 => {
                            value * (1.0 / f64::from(rule.ranks))
                        }
                        Operator::Avg => keep(value * f64::from(1.0 / rule.ranks as f32)),
                        // Not rounded: the product is exact.
                        Operator::MulSum => value * [1.0, 2.0][rank as usize % 2],
                        _ => value,
                    }
                };
                let combine = |a: f64, b: f64| match rule.op {
                    Operator::Sum | Operator::Avg | Operator::MulSum => keep(a + b),
                    Operator::Prod => keep(a * b),
                    Operator::Max => a.max(b),
                    Operator::Min => a.min(b),
                };
                let mut values: Vec<f64> = shuffled(rule.ranks, seed).into_iter().map(scaled).collect();
                let result = if seed == 2 {
                    while values.len() > 1 {
                        values =
                            values.chunks(2).map(|c| c.iter().copied().reduce(combine).unwrap()).collect();
                    }
                    values[0]
                } else {
                    values.into_iter().reduce(combine).unwrap()
                };
                let got = float_bits(rule.data_type, round(rule.data_type, result));
                let distance =
                    order_key(rule.data_type, got).abs_diff(order_key(rule.data_type, expected)) as u32;
                let allowed = rule.tolerance_ulps();
                assert!(
                    distance <= allowed && (allowed > 0 || got == expected),
                    "{rule:?} {place}: {got:x} {expected:x}"
                );
                if rule.op == Operator::Avg && rule.ranks.is_power_of_two() {
                    assert_eq!(got, expected, "{rule:?} {place}");
                }
            }
        }
    }
}

#[test]
fn integers_are_exact_in_any_order() {
    fn fold<T: Copy + Ord>(
        values: &[i128],
        op: Operator,
        wrap: impl Fn(i128) -> T,
        back: impl Fn(T) -> i128,
    ) -> i128 {
        let fold = |a: i128, b: i128| match op {
            Operator::Sum | Operator::Avg | Operator::MulSum => a + b,
            Operator::Prod => a.wrapping_mul(b),
            Operator::Max => a.max(b),
            Operator::Min => a.min(b),
        };
        back(wrap(values.iter().copied().reduce(|a, b| back(wrap(fold(a, b)))).unwrap()))
    }
    let factor = |op, rank: u32| if op == Operator::MulSum { 1 + i128::from(rank % 2) } else { 1 };
    for rule in rules().filter(|rule| format(rule.data_type).is_none()) {
        for place in 0..40 {
            let values: Vec<i128> = shuffled(rule.ranks, 5)
                .into_iter()
                .map(|rank| order_key(rule.data_type, rule.input(rank, place)) * factor(rule.op, rank))
                .collect();
            macro_rules! wrapped {
                ($t:ty) => {
                    fold(&values, rule.op, |v| v as $t, |v| i128::from(v))
                };
            }
            let mut result = match rule.data_type {
                DataType::Int8 => wrapped!(i8),
                DataType::Uint8 => wrapped!(u8),
                DataType::Int32 => wrapped!(i32),
                DataType::Uint32 => wrapped!(u32),
                DataType::Int64 => wrapped!(i64),
                _ => wrapped!(u64),
            };
            if rule.op == Operator::Avg {
                assert_eq!(result, values.iter().sum::<i128>(), "the sum must not wrap: {rule:?}");
                result /= i128::from(rule.ranks);
            }
            assert_eq!(result, order_key(rule.data_type, rule.expected(place)), "{rule:?} {place}");
        }
    }
}

#[test]
fn every_rank_matters_and_none_is_zero_where_that_is_possible() {
    for rule in rules() {
        let per_type = match format(rule.data_type) {
            Some(float) if rule.op == Operator::MulSum => float.exact() / SCALAR_MOST,
            Some(float) => float.exact(),
            None => u64::from(u8::MAX / 2),
        };
        let magnitude = rule.mask() >> u32::from(!matches!(kind(rule.data_type), Kind::Unsigned));
        for rank in [0, rule.ranks - 1] {
            let inputs: Vec<u64> = (0..500).map(|place| rule.input(rank, place)).collect();
            assert!(
                inputs.iter().any(|bits| bits & rule.mask() != inputs[0]) || rule.ranks > 200,
                "{rule:?}"
            );
            let narrow_mean =
                rule.op == Operator::Avg && format(rule.data_type).is_some() && !rule.ranks.is_power_of_two();
            if u64::from(rule.ranks) <= per_type && !narrow_mean {
                assert!(
                    inputs
                        .iter()
                        .all(|bits| bits & magnitude != 0 || matches!(kind(rule.data_type), Kind::Signed)),
                    "{rule:?}"
                );
            }
            assert!(inputs.iter().all(|bits| *bits <= rule.mask()), "{rule:?}");
        }
    }
}

#[test]
fn a_missing_or_doubled_contribution_is_seen() {
    for data_type in DataType::ALL {
        for ranks in [2, 3, 8] {
            let rule = Rule { data_type, op: Operator::Sum, ranks, seed: 3 };
            let key = |place| order_key(data_type, rule.expected(place));
            let alone = |place| order_key(data_type, rule.input(1, place));
            // If rank 1's value were left out, the result would differ wherever it is not zero.
            assert!((0..100).all(|place| alone(place) != 0));
            assert!((0..100).any(|place| key(place) != alone(place)));
        }
    }
}

#[test]
fn the_key_orders_elements() {
    let key = |value: f32| order_key(DataType::Float32, u64::from(value.to_bits()));
    assert!(key(-2.0) < key(-1.0) && key(-1.0) < key(0.0) && key(0.5) < key(1.0));
    assert_eq!(key(0.0), key(-0.0));
    assert_eq!(key(1.0) + 1, key(1.0f32.next_up()));
    assert_eq!(order_key(DataType::Int8, 0xff), -1);
    assert_eq!(order_key(DataType::Uint8, 0xff), 255);
    assert_eq!(order_key(DataType::Int64, u64::MAX), -1);
    assert_eq!(order_key(DataType::Uint64, u64::MAX), i128::from(u64::MAX));
}
