//! Sums, scaled sums and means of floats that round, compared with the left fold over the ranks, computed directly.
//!
//! Invariant: an element depends on its rank, its type and its index alone, so the bits of a result can be compared
//! whatever the length. Arithmetic here is of its own: values are rounded as 64-bit floats and encoded bit by bit.

use consort::{Call, Communicator, DataType, ReduceOp, Result, Scalar, Span, SpanMut};

use crate::pattern::{Fold, PERIOD, Pattern};
use crate::system::Random;

/// The floats.
pub const FLOATS: [DataType; 6] = [
    DataType::Float64,
    DataType::Float32,
    DataType::Float16,
    DataType::Bfloat16,
    DataType::Float8E4m3,
    DataType::Float8E5m2,
];

/// A binary format.
#[derive(Clone, Copy)]
struct Format {
    bits: u32,
    mantissa: i32,
    bias: i32,
    /// Exponents of the values that are folded: far enough apart to round, too few to overflow.
    exponents: (i32, i32),
}

fn format(data_type: DataType) -> Format {
    let (bits, mantissa, bias, exponents) = match data_type {
        DataType::Float64 => (64, 52, 1023, (-40, 40)),
        DataType::Float32 => (32, 23, 127, (-20, 20)),
        DataType::Float16 => (16, 10, 15, (-8, 8)),
        DataType::Bfloat16 => (16, 7, 127, (-8, 8)),
        DataType::Float8E4m3 => (8, 3, 7, (-5, 3)),
        DataType::Float8E5m2 => (8, 2, 15, (-5, 3)),
        other => panic!("{other} is no float"),
    };
    Format { bits, mantissa, bias, exponents }
}

impl Format {
    /// The unit of the last place of numbers as large as this one.
    fn unit(self, value: f64) -> f64 {
        let exponent = ((value.to_bits() >> 52 & 0x7ff) as i32 - 1023).max(1 - self.bias);
        2f64.powi(exponent - self.mantissa)
    }

    /// To nearest, ties to even.
    fn rounded(self, value: f64) -> f64 {
        if self.bits == 64 || value == 0.0 {
            return value;
        }
        let unit = self.unit(value);
        (value / unit).round_ties_even() * unit
    }

    /// The bits of a number that the format has.
    fn encode(self, value: f64, into: &mut Vec<u8>) {
        let sign = u64::from(value.is_sign_negative()) << (self.bits - 1);
        let (magnitude, unit) = (value.abs(), self.unit(value));
        let digits = (magnitude / unit) as u64;
        let exponent = unit.log2().round() as i32 + self.mantissa + self.bias;
        let bits = match digits >> self.mantissa {
            0 => digits,
            // The leading digit is not stored.
            _ => (exponent as u64) << self.mantissa | (digits & ((1 << self.mantissa) - 1)),
        };
        into.extend_from_slice(&(bits | sign).to_le_bytes()[..self.bits as usize / 8]);
    }
}

fn random(data_type: DataType, seed: u64, rank: u32) -> Random {
    Random::new(seed ^ u64::from(data_type.code()) << 40 ^ u64::from(rank) << 48)
}

/// A number with all digits and an exponent between these.
fn value(random: &mut Random, mantissa: i32, (least, most): (i32, i32)) -> f64 {
    let digits = 1 << mantissa | (random.draw() & ((1 << mantissa) - 1));
    let exponent = least + (random.draw() % (most - least + 1) as u64) as i32;
    let sign = if random.draw() & 1 == 1 { -1.0 } else { 1.0 };
    sign * digits as f64 * 2f64.powi(exponent - mantissa)
}

/// The values of rank `rank`, until they repeat.
fn values(data_type: DataType, seed: u64, rank: u32) -> Vec<f64> {
    let Format { mantissa, exponents, .. } = format(data_type);
    let mut random = random(data_type, seed, rank);
    (0..PERIOD).map(|_| value(&mut random, mantissa, exponents)).collect()
}

/// The scalar of rank `rank` in a scaled sum: small, so that the sum fits.
fn factor(data_type: DataType, seed: u64, rank: u32) -> f64 {
    value(&mut random(data_type, !seed, rank), format(data_type).mantissa, (-2, 0))
}

/// The fold from rank 0 to the last, rounded after each.
fn folded(data_type: DataType, fold: Fold, seed: u64, size: u32) -> Vec<f64> {
    let format = format(data_type);
    let contribution = |rank: u32| {
        let factor = factor(data_type, seed, rank);
        let scaled = |value: f64| match (fold, data_type) {
            (Fold::Plain(ReduceOp::Avg), DataType::Float64) => value * (1.0 / f64::from(size)),
            (Fold::Scaled, DataType::Float64) => value * factor,
            // Scaled as 32-bit floats whatever the type.
            (Fold::Plain(ReduceOp::Avg), _) => format.rounded(f64::from(value as f32 * (1.0 / size as f32))),
            (Fold::Scaled, _) => format.rounded(f64::from(value as f32 * factor as f32)),
            _ => value,
        };
        values(data_type, seed, rank).into_iter().map(scaled).collect::<Vec<f64>>()
    };
    let add = |left: Vec<f64>, right: Vec<f64>| -> Vec<f64> {
        left.iter().zip(&right).map(|(left, right)| format.rounded(left + right)).collect()
    };
    (1..size).map(contribution).fold(contribution(0), add)
}

fn pattern(data_type: DataType, values: &[f64]) -> Pattern {
    let mut bytes = Vec::new();
    values.iter().for_each(|value| format(data_type).encode(*value, &mut bytes));
    Pattern::repeating(data_type, bytes)
}

/// Sums, scaled sums and means of every float, by every collective that folds and with every root, of vectors of these lengths in
/// bytes.
///
/// # Errors
/// Those of the calls.
///
/// # Panics
/// If a bit is another.
pub fn everything(comm: &Communicator, seed: u64, lengths: &[usize]) -> Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    let folds = [Fold::Plain(ReduceOp::Sum), Fold::Scaled, Fold::Plain(ReduceOp::Avg)];
    for (data_type, fold) in FLOATS.into_iter().flat_map(|float| folds.map(|fold| (float, fold))) {
        let mut scalar = Vec::new();
        format(data_type).encode(factor(data_type, seed, rank), &mut scalar);
        let scalar = Scalar::from_bytes(data_type, &scalar).expect("one element");
        let (op, how) = (fold.op(), |call: Call| fold.scaling(call, scalar));
        let mine = pattern(data_type, &values(data_type, seed, rank));
        let expected = pattern(data_type, &folded(data_type, fold, seed, size));
        let element = data_type.size();
        for bytes in lengths {
            let count = (bytes / element).max(1);
            let (input, mut output) = (mine.buffer(count), vec![0u8; count * element]);
            let holds = |found: &[u8], from: usize, what: &str| {
                let differs = expected.difference(found, from);
                assert_eq!(
                    differs, None,
                    "{what} of {count} {data_type} ({fold:?}) on rank {rank} of {size}"
                );
            };
            comm.execute(
                &how(Call::all_reduce(data_type, op, count)),
                Span::of(&input),
                SpanMut::of(&mut output),
            )?;
            holds(&output, 0, "all_reduce");
            // A long vector has one root: more would take long.
            for root in if *bytes > 1 << 16 { size - 1..size } else { 0..size } {
                output.fill(0);
                let call = how(Call::reduce(data_type, op, count, root));
                comm.execute(&call, Span::of(&input), SpanMut::of(&mut output))?;
                if rank == root {
                    holds(&output, 0, &format!("reduce to {root}"));
                }
            }
            let block = count.div_ceil(size as usize);
            let (input, mut output) = (mine.buffer(block * size as usize), vec![0u8; block * element]);
            let call = how(Call::reduce_scatter(data_type, op, block));
            comm.execute(&call, Span::of(&input), SpanMut::of(&mut output))?;
            holds(&output, rank as usize * block, "reduce_scatter");
        }
    }
    Ok(())
}
