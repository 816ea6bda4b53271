//! Products of bfloat16 beside sums in f64 of the rounded operands. Each is made three ways: by what this processor has, by copies,
//! and by packing for a tile in plain arithmetic, which runs everywhere.

use super::*;
use crate::products::Products;
use crate::random::Random;

const SEED: u64 = 20_261_131;

/// What the instruction does, as its maker has it: subnormal numbers are zero before and after.
fn plain_tile(rows: &[Pairs<{ TILE.0 }>], columns: &[Pairs<{ TILE.1 }>]) -> [[f32; TILE.1]; TILE.0] {
    let flush = |value: f32| if value.is_subnormal() { 0.0 } else { value };
    let (low, high) = (
        |pair: u32| flush(f32::from_bits(pair << 16)),
        |pair: u32| flush(f32::from_bits(pair & 0xffff_0000)),
    );
    let mut sums = [[0f32; TILE.1]; TILE.0];
    for (rows, columns) in rows.iter().zip(columns) {
        for (sums, row) in sums.iter_mut().zip(rows) {
            for (sum, column) in sums.iter_mut().zip(columns) {
                *sum = flush(*sum + flush(high(*row) * high(*column)));
                *sum = flush(*sum + flush(low(*row) * low(*column)));
            }
        }
    }
    sums
}

type Way = (&'static str, fn(ViewMut<'_, f32>, Into, f32, View<'_, f32>, View<'_, f32>));

const WAYS: [Way; 3] = [
    ("this processor", |to, into, factor, a, b| Products::Bf16.multiply(to, into, factor, a, b)),
    ("copies", |to, into, factor, a, b| multiply_copies(&mut Vec::new(), to, (into, factor), a, b)),
    ("packing", |to, into, factor, a, b| {
        multiply_packed(plain_tile, &mut Room::default(), to, (into, factor), a, b);
    }),
];

/// The lengths of a product, what each row has beyond them, and which operands lie transposed.
#[derive(Clone, Copy, Debug)]
struct Case {
    rows: usize,
    inner: usize,
    columns: usize,
    beyond: usize,
    transposed: (bool, bool),
    into: Into,
    factor: f32,
}

/// A sum of products, that of their sizes, and what it may lose where subnormal numbers count as zero.
#[derive(Default)]
struct Sum {
    value: f64,
    size: f64,
    flushed: f64,
}

impl Sum {
    fn of(pairs: impl Iterator<Item = (f64, f64)>) -> Self {
        pairs.fold(Sum::default(), |sum, (a, b)| Sum {
            value: sum.value + a * b,
            size: sum.size + (a * b).abs(),
            flushed: sum.flushed + f64::from(f32::MIN_POSITIVE) * (2.0 + a.abs() + b.abs()),
        })
    }
}

/// An operand of some rows and columns, its values, and the bfloat16 of each.
struct Operand {
    values: Vec<f32>,
    rounded: Vec<f64>,
    rows: usize,
    columns: usize,
    beyond: usize,
    transposed: bool,
}

impl Operand {
    fn new(
        (rows, columns): (usize, usize),
        case: Case,
        transposed: bool,
        value: impl Fn(u64) -> f32,
    ) -> Self {
        let (lines, len) = if transposed { (columns, rows) } else { (rows, columns) };
        let values: Vec<f32> = (0..(lines * (len + case.beyond)) as u64).map(value).collect();
        let rounded = values.iter().map(|value| consort::bf16::from_f32(*value).to_f64()).collect();
        Operand { values, rounded, rows, columns, beyond: case.beyond, transposed }
    }

    fn view(&self) -> View<'_, f32> {
        if self.transposed {
            View::new(&self.values, self.columns, self.rows, self.rows + self.beyond).transposed()
        } else {
            View::new(&self.values, self.rows, self.columns, self.columns + self.beyond)
        }
    }

    fn at(&self, row: usize, column: usize) -> f64 {
        let at = if self.transposed {
            column * (self.rows + self.beyond) + row
        } else {
            row * (self.columns + self.beyond) + column
        };
        self.rounded[at]
    }
}

/// Whether every way gives the sums in f64 within the rounding of sums in f32 and what subnormal numbers are worth.
fn check(case: Case, value: impl Fn(&str, u64) -> f32) {
    let Case { rows, inner, columns, beyond, transposed, into, factor } = case;
    let a = Operand::new((rows, inner), case, transposed.0, |index| value("a", index));
    let b = Operand::new((inner, columns), case, transposed.1, |index| value("b", index));
    let before: Vec<f32> = (0..(rows * (columns + beyond)) as u64).map(|index| value("to", index)).collect();
    let expected: Vec<Sum> = (0..rows * columns)
        .map(|at| Sum::of((0..inner).map(|inner| (a.at(at / columns, inner), b.at(inner, at % columns)))))
        .collect();
    for (name, multiply) in WAYS {
        let mut to = before.clone();
        if into == Into::Replace {
            to.fill(f32::NAN);
        }
        let blank = to.clone();
        multiply(ViewMut::new(&mut to, rows, columns, columns + beyond), into, factor, a.view(), b.view());
        for (at, (found, blank)) in to.iter().zip(blank).enumerate() {
            let (row, column) = (at / (columns + beyond), at % (columns + beyond));
            if column >= columns {
                assert_eq!(
                    found.to_bits(),
                    blank.to_bits(),
                    "{name} {case:?}: {row}, {column} is not its own"
                );
                continue;
            }
            let before = if into == Into::Add { f64::from(blank) } else { 0.0 };
            let (factor, sum) = (f64::from(factor), &expected[row * columns + column]);
            let rounding = 0.5 * f64::from(f32::EPSILON) * (inner + 3) as f64;
            // Copies keep subnormal numbers, so a sum is rounded to a multiple of the smallest one.
            let small =
                if name == "copies" { f64::from(f32::from_bits(1)) * inner as f64 } else { sum.flushed };
            let bound = rounding * (before.abs() + (factor * sum.size).abs()) + (1.0 + factor.abs()) * small;
            let expected = before + factor * sum.value;
            assert!(
                (f64::from(*found) - expected).abs() <= bound,
                "seed {SEED}: {name} {case:?}: {row}, {column} is {found}, expected {expected} within {bound:e}"
            );
        }
    }
}

fn normal(name: &str, index: u64) -> f32 {
    Random::new(SEED, name).normal(index) as f32
}

#[test]
fn products_are_those_of_the_rounded_elements() {
    // Within a tile, a tile, beyond one in each length; within and beyond a block in each.
    let lengths = [
        (1, 1, 1),
        (1, 2, 3),
        (7, 19, 5),
        (6, 32, 64),
        (13, 33, 65),
        (5, 31, 130),
        (HEIGHT + 1, 3, 9),
        (7, 2, WIDTH + 1),
        (8, DEPTH + 1, 3),
        (HEIGHT + 7, DEPTH + 35, 67),
    ];
    for (index, (rows, inner, columns)) in lengths.into_iter().enumerate() {
        for transposed in [(false, false), (false, true), (true, false), (true, true)] {
            let (into, factor) =
                [(Into::Add, -0.75), (Into::Replace, 1.0)][(index + usize::from(transposed.1)) % 2];
            let beyond = [0, 3][(index + usize::from(transposed.0)) % 2];
            check(Case { rows, inner, columns, beyond, transposed, into, factor }, normal);
        }
    }
}

#[test]
fn nothing_is_added_up_of_no_elements() {
    for (rows, inner, columns) in [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)] {
        for into in [Into::Add, Into::Replace] {
            let transposed = (false, false);
            check(Case { rows, inner, columns, beyond: 2, transposed, into, factor: 2.0 }, normal);
        }
    }
}

#[test]
fn subnormal_numbers_count_as_what_they_are_or_as_zero() {
    // Elements about the smallest normal number; and normal ones, whose sums may be subnormal.
    for scale in [f32::MIN_POSITIVE, 2f32.powi(-110)] {
        let small = |name: &str, index| normal(name, index) * if name == "b" { 1.0 } else { scale };
        for (inner, factor) in [(1, 1.0), (37, -1.0), (37, 1e10)] {
            let (transposed, into) = ((false, true), Into::Add);
            check(Case { rows: 7, inner, columns: 9, beyond: 0, transposed, into, factor }, small);
        }
    }
}

#[test]
fn values_beyond_the_numbers_spread_to_their_row_and_column_alone() {
    let (rows, inner, columns) = (9, 5, 70);
    // The largest f32 is rounded beyond the range of bfloat16.
    for (special, sum) in
        [(f32::NAN, f32::NAN), (f32::NEG_INFINITY, f32::NEG_INFINITY), (f32::MAX, f32::INFINITY)]
    {
        for left in [true, false] {
            // At the last element, whose pair has no other.
            let (mut a, mut b) = (vec![1f32; rows * inner], vec![1f32; inner * columns]);
            if left {
                a[4 * inner + 4] = special
            } else {
                b[4 * columns + 66] = special
            }
            for (name, multiply) in WAYS {
                let mut to = vec![0f32; rows * columns];
                let view = ViewMut::new(&mut to, rows, columns, columns);
                let (a, b) = (View::new(&a, rows, inner, inner), View::new(&b, inner, columns, columns));
                multiply(view, Into::Replace, 1.0, a, b);
                for (at, found) in to.iter().enumerate() {
                    let hit = if left { at / columns == 4 } else { at % columns == 66 };
                    let expected = if hit { sum } else { 5.0 };
                    let same = *found == expected || found.is_nan() && expected.is_nan();
                    assert!(same, "{name}: {special} on the left {left}: {at} is {found}, not {expected}");
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "do not fit")]
fn matrices_that_do_not_fit_are_refused() {
    let a = [0f32; 12];
    let view = View::new(&a, 3, 4, 4);
    Products::Bf16.multiply(ViewMut::new(&mut [0f32; 9], 3, 3, 3), Into::Add, 1.0, view, view);
}

#[test]
fn models_of_f64_round_alike() {
    let (a, b) = ([1.0 + 1.0 / 256.0, 3.0], [1.0 + 3.0 / 256.0, 0.1]);
    let mut to = [0f64];
    let (a, b) = (View::new(&a, 1, 2, 2), View::new(&b, 1, 2, 2).transposed());
    Products::Bf16.multiply(ViewMut::new(&mut to, 1, 1, 1), Into::Replace, 1.0, a, b);
    // Both are halfway between two: the first above an even one, the second below.
    let expected = 1.0 + 4.0 / 256.0 + 3.0 * f64::from(consort::bf16::from_f32(0.1));
    assert_eq!(to, [expected]);
}

/// `cargo test --release -p consort-trainer --lib bfloat16_beside -- --ignored --nocapture`
#[test]
#[ignore = "prints how fast products are"]
fn speed_of_bfloat16_beside_f32() {
    println!("AVX-512 BF16: {}", tile().is_some());
    println!("{:>22} {:>10} {:>10}  GFLOP/s", "rows x inner x columns", "f32", "bfloat16");
    let widths = [256, 512, 1024].into_iter().flat_map(|width| {
        let tokens = 2048;
        // Forward of a square layer, and of a wide one; the gradient of the weights.
        [(tokens, width, width), (tokens, width, 4 * width), (width, tokens, width)]
    });
    for (rows, inner, columns) in [(512, 512, 512)].into_iter().chain(widths) {
        let (a, b) = (vec![0.5f32; rows * inner], vec![0.25f32; inner * columns]);
        let mut to = vec![0f32; rows * columns];
        let mut speed = |products: Products, gradient: bool| {
            let seconds = (0..8).map(|_| {
                let (a, b) = if gradient {
                    (View::new(&a, inner, rows, rows).transposed(), View::new(&b, inner, columns, columns))
                } else {
                    (View::new(&a, rows, inner, inner), View::new(&b, columns, inner, inner).transposed())
                };
                let begin = std::time::Instant::now();
                products.multiply(ViewMut::new(&mut to, rows, columns, columns), Into::Replace, 1.0, a, b);
                begin.elapsed().as_secs_f64()
            });
            2e-9 * (rows * inner * columns) as f64 / seconds.fold(f64::INFINITY, f64::min)
        };
        let gradient = inner == 2048;
        let (exact, rounded) = (speed(Products::Exact, gradient), speed(Products::Bf16, gradient));
        println!("{:>22} {exact:>10.0} {rounded:>10.0}", format!("{rows} x {inner} x {columns}"));
    }
}
