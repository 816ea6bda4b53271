//! Buffers whose contents are known on every rank, of every type, and the results of their reduction.
//!
//! Contents repeat after a prime number of elements, so that long buffers are made and compared quickly and data in
//! the wrong place still differs. Reductions are exact: integers wrap, floats are whole numbers small enough that no
//! order of additions rounds.

use consort::{Call, DataType, ReduceOp, Scalar};

use crate::system::Random;

/// The number of elements after which the contents repeat.
pub const PERIOD: usize = 1021;

/// The reduction of the ranks' contributions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fold {
    /// By the operator.
    Plain(ReduceOp),
    /// Each is multiplied by its rank's scalar, then the products are added.
    Scaled,
}

impl From<ReduceOp> for Fold {
    fn from(op: ReduceOp) -> Self {
        Fold::Plain(op)
    }
}

impl Fold {
    /// The operator to call with.
    pub fn op(self) -> ReduceOp {
        match self {
            Fold::Plain(op) => op,
            Fold::Scaled => ReduceOp::Sum,
        }
    }

    /// The call, scaled by `scalar` if this is a scaled sum.
    pub fn scaling(self, call: Call, scalar: Scalar) -> Call {
        if self == Fold::Scaled { call.scaled_by(scalar) } else { call }
    }
}

/// The generator of a rank's buffer in an operation.
fn random(key: u64, rank: u32) -> Random {
    Random::new(key ^ (u64::from(rank) + 1).wrapping_mul(0xd6e8_feb8_6659_fd93))
}

/// The bits of a whole number in a small float.
fn small_float(value: i64, bias: u32, mantissa: u32) -> u16 {
    if value == 0 {
        return 0;
    }
    let exponent = value.ilog2();
    let fraction = value - (1 << exponent);
    let fraction = if exponent <= mantissa {
        fraction << (mantissa - exponent)
    } else {
        fraction >> (exponent - mantissa)
    };
    ((exponent + bias) << mantissa) as u16 | fraction as u16
}

fn encode(data_type: DataType, value: i64, into: &mut Vec<u8>) {
    match data_type {
        DataType::Float32 => into.extend_from_slice(&(value as f32).to_le_bytes()),
        DataType::Float64 => into.extend_from_slice(&(value as f64).to_le_bytes()),
        DataType::Float16 => into.extend_from_slice(&small_float(value, 15, 10).to_le_bytes()),
        DataType::Bfloat16 => into.extend_from_slice(&small_float(value, 127, 7).to_le_bytes()),
        DataType::Float8E4m3 => into.push(small_float(value, 7, 3) as u8),
        DataType::Float8E5m2 => into.push(small_float(value, 15, 2) as u8),
        _ => into.extend_from_slice(&value.to_le_bytes()[..data_type.size()]),
    }
}

/// A number after it was stored and loaded again.
fn wrapped(data_type: DataType, value: i64) -> i64 {
    match data_type {
        DataType::Int8 => i64::from(value as i8),
        DataType::Uint8 => i64::from(value as u8),
        DataType::Int32 => i64::from(value as i32),
        DataType::Uint32 => i64::from(value as u32),
        _ => value,
    }
}

/// The largest whole number of a contribution; sixteen of them (of the smallest floats eight) add up without rounding.
/// None: any integer.
fn largest(data_type: DataType) -> Option<u64> {
    match data_type {
        DataType::Float64 => Some((1 << 49) - 1),
        DataType::Float32 => Some((1 << 20) - 1),
        DataType::Float16 => Some(127),
        DataType::Bfloat16 => Some(15),
        DataType::Float8E4m3 | DataType::Float8E5m2 => Some(1),
        _ => None,
    }
}

fn contributions(data_type: DataType, fold: Fold, key: u64, rank: u32) -> Vec<i64> {
    let mut random = random(key, rank);
    // More would not fit the smallest floats, and half as many if they are scaled.
    let counts = rank < if fold == Fold::Scaled { 4 } else { 8 };
    let value = |random: u64| match (fold.op(), largest(data_type)) {
        (_, Some(largest)) if largest > 1 && fold == Fold::Scaled => (random & (largest >> 1)) as i64,
        (ReduceOp::Prod, Some(_)) => 1 + i64::from(counts && random & 1 == 1),
        (_, Some(1)) => i64::from(counts && random & 1 == 1),
        (_, Some(largest)) => (random & largest) as i64,
        (ReduceOp::Avg, None) => (random & 15) as i64,
        (_, None) => wrapped(data_type, random as i64),
    };
    (0..PERIOD).map(|_| value(random.draw())).collect()
}

/// A rank's factor in a scaled sum: any integer, or a small one where the type is a float.
fn scalar(data_type: DataType, key: u64, rank: u32) -> i64 {
    match largest(data_type) {
        Some(_) => 1 + i64::from(rank % 2),
        None => wrapped(data_type, random(!key, rank).draw() as i64),
    }
}

/// The same for a call.
///
/// # Panics
/// Never.
pub fn scalar_of(data_type: DataType, key: u64, rank: u32) -> Scalar {
    let mut bytes = Vec::new();
    encode(data_type, scalar(data_type, key, rank), &mut bytes);
    Scalar::from_bytes(data_type, &bytes).expect("one element")
}

/// Whether the result of this reduction is known exactly.
pub fn is_exact(data_type: DataType, fold: impl Into<Fold>) -> bool {
    fold.into() != Fold::Plain(ReduceOp::Avg) || largest(data_type).is_none()
}

/// The beginning of a buffer, up to where it repeats.
#[derive(Debug)]
pub struct Pattern {
    bytes: Vec<u8>,
    element: usize,
}

impl Pattern {
    /// A rank's buffer in an operation that moves data: random bits.
    pub fn any(data_type: DataType, key: u64, rank: u32) -> Self {
        let mut random = random(key, rank);
        let element = data_type.size();
        let words = (0..(PERIOD * element).div_ceil(8)).flat_map(|_| random.draw().to_le_bytes());
        Pattern { bytes: words.take(PERIOD * element).collect(), element }
    }

    /// A rank's contribution to a reduction.
    pub fn contribution(data_type: DataType, fold: impl Into<Fold>, key: u64, rank: u32) -> Self {
        Self::of(data_type, &contributions(data_type, fold.into(), key, rank))
    }

    /// The result of the contributions of `size` ranks.
    pub fn reduced(data_type: DataType, fold: impl Into<Fold>, key: u64, size: u32) -> Self {
        let fold = fold.into();
        let combine = |one: &i64, other: &i64| match fold.op() {
            ReduceOp::Sum | ReduceOp::Avg => one.wrapping_add(*other),
            ReduceOp::Prod => one.wrapping_mul(*other),
            ReduceOp::Max if data_type == DataType::Uint64 => (*one as u64).max(*other as u64) as i64,
            ReduceOp::Min if data_type == DataType::Uint64 => (*one as u64).min(*other as u64) as i64,
            ReduceOp::Max => *one.max(other),
            ReduceOp::Min => *one.min(other),
        };
        let scaled = |rank| {
            let mut values = contributions(data_type, fold, key, rank);
            if fold == Fold::Scaled {
                let scalar = scalar(data_type, key, rank);
                values.iter_mut().for_each(|value| *value = wrapped(data_type, value.wrapping_mul(scalar)));
            }
            values
        };
        let mut all = scaled(0);
        for rank in 1..size {
            let next = scaled(rank);
            all.iter_mut().zip(&next).for_each(|(one, other)| *one = wrapped(data_type, combine(one, other)));
        }
        if fold == Fold::Plain(ReduceOp::Avg) {
            all.iter_mut().for_each(|value| *value /= i64::from(size));
        }
        Self::of(data_type, &all)
    }

    /// These bytes, [`PERIOD`] elements, again and again.
    pub fn repeating(data_type: DataType, bytes: Vec<u8>) -> Self {
        assert_eq!(bytes.len(), PERIOD * data_type.size());
        Pattern { bytes, element: data_type.size() }
    }

    fn of(data_type: DataType, values: &[i64]) -> Self {
        let mut bytes = Vec::with_capacity(values.len() * data_type.size());
        values.iter().for_each(|value| encode(data_type, *value, &mut bytes));
        Pattern { bytes, element: data_type.size() }
    }

    /// A buffer of `count` elements.
    pub fn buffer(&self, count: usize) -> Vec<u8> {
        let mut buffer = Vec::with_capacity(count * self.element + self.bytes.len());
        while buffer.len() < count * self.element {
            buffer.extend_from_slice(&self.bytes);
        }
        buffer.truncate(count * self.element);
        buffer
    }

    /// The first byte of `found` that differs from the contents from element `from` on.
    pub fn difference(&self, found: &[u8], from: usize) -> Option<usize> {
        let mut at = 0;
        let mut begin = from % PERIOD * self.element;
        while at < found.len() {
            let bytes = (self.bytes.len() - begin).min(found.len() - at);
            let (here, expected) = (&found[at..at + bytes], &self.bytes[begin..begin + bytes]);
            if here != expected {
                return here
                    .iter()
                    .zip(expected)
                    .position(|(one, other)| one != other)
                    .map(|first| at + first);
            }
            at += bytes;
            begin = 0;
        }
        None
    }
}
