//! Which value each rank contributes at each place, chosen so that the result is known exactly.
//!
//! Invariant: whatever the order of the folds, and whether or not partial results are rounded to the data
//! type, a correct collective gives exactly [`Rule::expected`] (within [`Rule::tolerance_ulps`] for the mean
//! of floats). How that is done, with `p` the significant bits of a float type:
//!
//! | op | integers | floats |
//! |---|---|---|
//! | sum | any non-zero bits: wrap-around is associative | integers whose magnitudes add up to at most `2^p` |
//! | prod | any odd bits | a sign each; few factors 1.5 (`3^k < 2^p`), few 2 and ½, the rest 1 |
//! | mulsum | as for sum; every rank has the scalar 1 or 2 | as for sum, up to `2^(p-1)` |
//! | max, min | any non-zero bits | any normal value |
//! | avg | not negative, the sum fits | multiples of the rank count where they fit, see `mean_input` |
//!
//! Where there are more ranks than `2^p` allows (8 for float8 e5m2, 16 for e4m3), a window of ranks that
//! differs from place to place contributes, the others contribute zero (or one).
//!
//! Speed is of no concern here: a few thousand values are made per run, and `pattern` spreads them.

use consort::{Call, DataType, Scalar};

use crate::operator::Operator;

/// The layout of a binary float.
#[derive(Clone, Copy)]
struct Float {
    exponent_bits: u32,
    fraction_bits: u32,
}

/// What an element is, for arithmetic.
#[derive(Clone, Copy)]
enum Kind {
    Signed,
    Unsigned,
    Float(Float),
}

fn kind(data_type: DataType) -> Kind {
    let float = |exponent_bits, fraction_bits| Kind::Float(Float { exponent_bits, fraction_bits });
    match data_type {
        DataType::Int8 | DataType::Int32 | DataType::Int64 => Kind::Signed,
        DataType::Uint8 | DataType::Uint32 | DataType::Uint64 => Kind::Unsigned,
        DataType::Float16 => float(5, 10),
        DataType::Float32 => float(8, 23),
        DataType::Float64 => float(11, 52),
        DataType::Bfloat16 => float(8, 7),
        DataType::Float8E4m3 => float(4, 3),
        DataType::Float8E5m2 => float(5, 2),
    }
}

impl Float {
    fn bias(self) -> i32 {
        (1 << (self.exponent_bits - 1)) - 1
    }

    /// A power of two that is surely finite, as exponent.
    fn exponent_max(self) -> i32 {
        self.bias()
    }

    /// `2^p`: integers up to it are exact.
    fn exact(self) -> u64 {
        2 << self.fraction_bits
    }

    /// The nearest element, ties to even; `value` must be in the finite range.
    fn encode(self, value: f64) -> u64 {
        if self.exponent_bits == 11 {
            return value.to_bits();
        }
        let sign = u64::from(value.is_sign_negative()) << (self.exponent_bits + self.fraction_bits);
        let magnitude = value.abs();
        if magnitude == 0.0 {
            return sign;
        }
        let exponent = (((magnitude.to_bits() >> 52) as i32) - 1023).max(1 - self.bias());
        // In units of the last place; rounding may carry into the exponent, which is what it should do.
        let units = (magnitude * 2f64.powi(self.fraction_bits as i32 - exponent)).round_ties_even() as u64;
        sign | (units + (((exponent + self.bias() - 1) as u64) << self.fraction_bits))
    }
}

/// Mixes two words well enough for test data (the finaliser of splitmix64).
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let mut x = a ^ b.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(0x632B_E59B_D9B4_E019);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// The bits of any element of a type, for comparison by size. Both zeros are equal.
pub(crate) fn order_key(data_type: DataType, bits: u64) -> i128 {
    let width = data_type.size() as u32 * 8;
    match kind(data_type) {
        Kind::Unsigned => i128::from(bits),
        Kind::Signed => i128::from(((bits << (64 - width)) as i64) >> (64 - width)),
        Kind::Float(_) => {
            let magnitude = i128::from(bits & ((1u64 << (width - 1)) - 1));
            if bits >> (width - 1) == 0 { magnitude } else { -magnitude }
        }
    }
}

/// Bits that are only moved: anything but zero.
pub(crate) fn moved(seed: u64, place: usize) -> u64 {
    mix(seed, place as u64) | 1
}

/// The largest scalar of any rank.
const SCALAR_MOST: u64 = 2;

/// What a rank multiplies its contribution to `mulsum` by: nccl-tests' choice.
fn scalar(rank: u32) -> u64 {
    if rank.is_multiple_of(2) { 1 } else { SCALAR_MOST }
}

/// The same as one element in memory.
fn scalar_bytes(data_type: DataType, rank: u32) -> Vec<u8> {
    let bits = match kind(data_type) {
        Kind::Float(float) => float.encode(scalar(rank) as f64),
        _ => scalar(rank),
    };
    bits.to_le_bytes()[..data_type.size()].to_vec()
}

impl Operator {
    /// The call of `rank`, scaled if this operator does that.
    pub(crate) fn scaling(self, call: Call, data_type: DataType, rank: u32) -> Call {
        self.scalar(data_type, rank).map_or(call, |scalar| call.scaled_by(scalar))
    }

    /// What `rank` multiplies its contributions by, if this operator does that.
    pub(crate) fn scalar(self, data_type: DataType, rank: u32) -> Option<Scalar> {
        let scalar = Scalar::from_bytes(data_type, &scalar_bytes(data_type, rank));
        scalar.ok().filter(|_| self == Operator::MulSum)
    }
}

/// The contributions to a fold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub(crate) data_type: DataType,
    pub(crate) op: Operator,
    pub(crate) ranks: u32,
    pub(crate) seed: u64,
}

impl Rule {
    fn word(&self, rank: u32, place: usize) -> u64 {
        mix(mix(self.seed, place as u64), u64::from(rank) + 1)
    }

    /// This rank's distance from the place's window of contributing ranks: those below `k` are inside.
    fn turn(&self, rank: u32, place: usize) -> u64 {
        (u64::from(rank) + mix(self.seed, place as u64)) % u64::from(self.ranks)
    }

    fn mask(&self) -> u64 {
        u64::MAX >> (64 - self.data_type.size() * 8)
    }

    /// The bits that `rank` contributes at `place`.
    pub(crate) fn input(&self, rank: u32, place: usize) -> u64 {
        match kind(self.data_type) {
            Kind::Float(float) => match self.op {
                Operator::Max | Operator::Min => {
                    let word = self.word(rank, place);
                    let exponent = 1 + (word >> 32) % ((1 << float.exponent_bits) - 2);
                    (word & !(((1 << float.exponent_bits) - 1) << float.fraction_bits) & self.mask())
                        | (exponent << float.fraction_bits)
                }
                Operator::Sum => float.encode(self.sum_input(float.exact(), rank, place)),
                Operator::MulSum => float.encode(self.sum_input(float.exact() / SCALAR_MOST, rank, place)),
                Operator::Prod => float.encode(self.product_input(float, rank, place)),
                Operator::Avg => float.encode(self.mean_input(float, rank, place)),
            },
            whole => self.integer_input(matches!(whole, Kind::Signed), rank, place),
        }
    }

    fn integer_input(&self, signed: bool, rank: u32, place: usize) -> u64 {
        let word = self.word(rank, place);
        let bits = word & self.mask();
        match self.op {
            Operator::Prod => bits | 1,
            Operator::Avg => {
                let most = self.mask() >> u32::from(signed);
                let share = most / u64::from(self.ranks);
                match share {
                    0 => u64::from(self.turn(rank, place) < most),
                    1 => 1 + u64::from(self.turn(rank, place) < most % u64::from(self.ranks)),
                    _ => 1 + word % share,
                }
            }
            _ => bits.max(1),
        }
    }

    /// Integers whose magnitudes add up to at most `most`.
    fn sum_input(&self, most: u64, rank: u32, place: usize) -> f64 {
        let word = self.word(rank, place);
        let share = (most / u64::from(self.ranks)).min(1 << 24);
        let magnitude = match share {
            0 => u64::from(self.turn(rank, place) < most),
            _ => 1 + (word >> 1) % share,
        };
        if magnitude != 0 && word & 1 == 1 { -(magnitude as f64) } else { magnitude as f64 }
    }

    fn product_input(&self, float: Float, rank: u32, place: usize) -> f64 {
        let word = self.word(rank, place);
        // 1.5^k needs k * log2(3) significant bits.
        let halves = u64::from((float.fraction_bits + 1) * 1000 / 1585);
        let powers = (float.exponent_max() / 2).min(32) as u64;
        let turn = self.turn(rank, place);
        let magnitude = match (turn, (word >> 1) % 3) {
            (turn, choice) if turn < halves => [1.5, 1.5, 1.0][choice as usize],
            (turn, choice) if turn < halves + powers => [2.0, 0.5, 1.0][choice as usize],
            _ => 1.0,
        };
        if word & 1 == 1 { -magnitude } else { magnitude }
    }

    /// For a power of two of ranks: as for the sum, but scaled up so that the scaling down by `1/n` is exact
    /// whenever it happens. For another number: multiples of it where `2n²` fits into the significant bits,
    /// otherwise three ranks contribute positive integers, which bounds the rounding errors of any order.
    fn mean_input(&self, float: Float, rank: u32, place: usize) -> f64 {
        let ranks = u64::from(self.ranks);
        if ranks.is_power_of_two() {
            let room = float.exponent_max() - float.fraction_bits as i32 - 1;
            let scale = (ranks.trailing_zeros() as i32).min(room);
            return self.sum_input(float.exact(), rank, place) * 2f64.powi(scale);
        }
        let word = self.word(rank, place) >> 1;
        let share = (float.exact() / (ranks * ranks)).min(1 << 10);
        if share > 1 {
            return (ranks * (1 + word % share)) as f64;
        }
        match self.turn(rank, place) < 3 {
            true => (1 + word % (float.exact() / 3).min(1 << 10)) as f64,
            false => 0.0,
        }
    }

    /// The value of an input, exactly.
    fn decode(float: Float, bits: u64) -> f64 {
        if float.exponent_bits == 11 {
            return f64::from_bits(bits);
        }
        let fraction = bits & ((1 << float.fraction_bits) - 1);
        let exponent = (bits >> float.fraction_bits) & ((1 << float.exponent_bits) - 1);
        let units = if exponent == 0 { fraction } else { fraction | (1 << float.fraction_bits) };
        let power = exponent.max(1) as i32 - float.bias() - float.fraction_bits as i32;
        let magnitude = units as f64 * 2f64.powi(power);
        if bits >> (float.exponent_bits + float.fraction_bits) & 1 == 1 { -magnitude } else { magnitude }
    }

    /// The bits of the result at `place`.
    pub(crate) fn expected(&self, place: usize) -> u64 {
        let inputs = (0..self.ranks).map(|rank| self.input(rank, place));
        let larger = |a: &u64, b: &u64| order_key(self.data_type, *a).cmp(&order_key(self.data_type, *b));
        match (self.op, kind(self.data_type)) {
            (Operator::Max, _) => inputs.max_by(larger).unwrap_or(0),
            (Operator::Min, _) => inputs.min_by(larger).unwrap_or(0),
            (Operator::Sum, Kind::Float(float)) => {
                float.encode(inputs.map(|bits| Self::decode(float, bits)).fold(0.0, |sum, value| sum + value))
            }
            (Operator::Prod, Kind::Float(float)) => {
                float.encode(inputs.map(|bits| Self::decode(float, bits)).product())
            }
            (Operator::Avg, Kind::Float(float)) => {
                let sum = inputs.map(|bits| Self::decode(float, bits)).fold(0.0, |sum, value| sum + value);
                float.encode(sum / f64::from(self.ranks))
            }
            (Operator::MulSum, Kind::Float(float)) => {
                let products =
                    (0..).zip(inputs).map(|(rank, bits)| Self::decode(float, bits) * scalar(rank) as f64);
                float.encode(products.fold(0.0, |sum, value| sum + value))
            }
            (Operator::MulSum, _) => {
                let products = (0..).zip(inputs).map(|(rank, bits)| bits.wrapping_mul(scalar(rank)));
                products.fold(0, u64::wrapping_add) & self.mask()
            }
            (Operator::Sum, _) => inputs.fold(0, u64::wrapping_add) & self.mask(),
            (Operator::Prod, _) => inputs.fold(1, u64::wrapping_mul) & self.mask(),
            (Operator::Avg, _) => inputs.sum::<u64>() / u64::from(self.ranks),
        }
    }

    /// By how many units in the last place a correct result may differ: nccl-tests' 2 for the mean of
    /// floats, which scales and rounds each contribution, otherwise 0.
    pub(crate) fn tolerance_ulps(&self) -> u32 {
        match (self.op, kind(self.data_type)) {
            (Operator::Avg, Kind::Float(_)) => 2,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests;
