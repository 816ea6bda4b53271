//! How fast the kernels fold and copy, for each data type and size class, with `memcpy` for comparison.
//!
//! The throughput of a fold counts the bytes of its result, so that data types compare as all-reduces do; that of a copy the
//! bytes that it copies. A size class names where all buffers of a call fit.

use std::hint::black_box;
use std::time::Duration;

use consort_kernels::{DataType, Level, ReduceOp, Reducer, Source, Store, Target, copy};
use consort_memory::SpanMut;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

/// Bytes of one buffer, so that the buffers of a call fit into the first, second or third cache, or into none.
const CLASSES: [(&str, usize); 4] =
    [("first cache", 8 << 10), ("second cache", 128 << 10), ("third cache", 4 << 20), ("memory", 64 << 20)];

const STORES: [Store; 2] = [Store::Cached, Store::Streaming];

/// The data types that training moves.
const TYPES: [DataType; 8] = [
    DataType::Float32,
    DataType::Bfloat16,
    DataType::Float16,
    DataType::Float8E4m3,
    DataType::Float8E5m2,
    DataType::Int8,
    DataType::Int32,
    DataType::Float64,
];

/// A buffer aligned to a page, as communication buffers are; finite values of both signs in every format.
fn buffer(bytes: usize) -> &'static mut [u8] {
    const PAGE: usize = 4096;
    let memory: Vec<u8> = (0..bytes + PAGE).map(|at| (at * 0x3b) as u8 & 0xb7).collect();
    let memory = memory.leak();
    let lead = memory.as_ptr().align_offset(PAGE);
    &mut memory[lead..lead + bytes]
}

/// Five buffers of the largest class; every benchmark takes their beginnings.
#[derive(Clone, Copy)]
struct Buffers([SpanMut<'static>; 5]);

impl Buffers {
    fn new() -> Self {
        Self([0; 5].map(|_| SpanMut::of(buffer(CLASSES[3].1))))
    }

    fn sources<const N: usize>(&self, bytes: usize) -> [Source<'static>; N] {
        std::array::from_fn(|nth| Source { span: self.0[nth].read().slice(0, bytes), raw: true })
    }

    fn targets(&self, bytes: usize, store: Store) -> [Target<'static>; 2] {
        [3, 4].map(|nth| Target { span: self.0[nth].slice(0, bytes), store })
    }
}

/// Two sources, one target, at the best level: every data type in every size class, also with streaming stores.
fn size_classes(criterion: &mut Criterion, buffers: Buffers) {
    for (class, bytes) in CLASSES {
        let mut group = criterion.benchmark_group(format!("sum in {class}"));
        group.throughput(Throughput::Bytes(bytes as u64));
        for data_type in TYPES {
            let reducer = Reducer::new(data_type, ReduceOp::Sum, 2);
            let sources = buffers.sources::<2>(bytes);
            for store in STORES.into_iter().filter(|&store| store == Store::Cached || bytes > 1 << 20) {
                let target = &buffers.targets(bytes, store)[..1];
                group.bench_function(
                    BenchmarkId::new(data_type.to_string(), format!("{store:?}")),
                    |bencher| {
                        bencher.iter(|| reducer.fold(black_box(target), black_box(&sources), true));
                    },
                );
            }
        }
    }
}

/// Three sources, rounded once, and rounded after each.
fn in_turn(criterion: &mut Criterion, buffers: Buffers) {
    let mut group = criterion.benchmark_group("three sources");
    for (class, bytes) in [CLASSES[1], CLASSES[3]] {
        group.throughput(Throughput::Bytes(bytes as u64));
        for data_type in &TYPES[..5] {
            let reducer = Reducer::new(*data_type, ReduceOp::Sum, 3);
            let sources = buffers.sources::<3>(bytes);
            let target = &buffers.targets(bytes, Store::Cached)[..1];
            group.bench_function(BenchmarkId::new(format!("{data_type} at once"), class), |bencher| {
                bencher.iter(|| reducer.fold(black_box(target), black_box(&sources), true));
            });
            group.bench_function(BenchmarkId::new(format!("{data_type} in turn"), class), |bencher| {
                bencher.iter(|| reducer.fold_in_turn(black_box(target), black_box(&sources), true));
            });
        }
    }
}

/// Other operators, and all levels.
fn operators(criterion: &mut Criterion, buffers: Buffers) {
    let (class, bytes) = CLASSES[1];
    for (data_type, op) in [
        (DataType::Float32, ReduceOp::Sum),
        (DataType::Float32, ReduceOp::Max),
        (DataType::Float32, ReduceOp::Avg),
        (DataType::Bfloat16, ReduceOp::Avg),
        (DataType::Float8E4m3, ReduceOp::Sum),
        (DataType::Float8E4m3, ReduceOp::Avg),
        (DataType::Float8E5m2, ReduceOp::Max),
        (DataType::Int8, ReduceOp::Prod),
        (DataType::Int32, ReduceOp::Avg),
    ] {
        let mut group = criterion.benchmark_group(format!("{data_type} {op} in {class}"));
        group.throughput(Throughput::Bytes(bytes as u64));
        let sources = buffers.sources::<2>(bytes);
        let targets = buffers.targets(bytes, Store::Cached);
        for level in Level::ALL.into_iter().skip(1).filter(|level| level.is_available()) {
            let reducer = Reducer::with_level(data_type, op, 2, level).expect("available");
            for count in 1..=2 {
                group.bench_function(BenchmarkId::new(format!("{level:?}"), count), |bencher| {
                    bencher.iter(|| reducer.fold(black_box(&targets[..count]), black_box(&sources), true));
                });
            }
        }
    }
}

/// A handful of elements, where the call itself takes most of the time.
fn tiny(criterion: &mut Criterion, buffers: Buffers) {
    let mut group = criterion.benchmark_group("tiny");
    for (data_type, elements) in [
        (DataType::Float32, 1),
        (DataType::Float32, 8),
        (DataType::Float32, 64),
        (DataType::Bfloat16, 1),
        (DataType::Bfloat16, 8),
        (DataType::Float8E4m3, 64),
        (DataType::Int32, 1),
    ] {
        let bytes = elements * data_type.size();
        let sources = buffers.sources::<2>(bytes).map(|source| Source { raw: false, ..source });
        let targets = buffers.targets(bytes, Store::Cached);
        let reducer = Reducer::new(data_type, ReduceOp::Sum, 2);
        group.bench_function(BenchmarkId::new(format!("{data_type} fold"), elements), |bencher| {
            bencher.iter(|| reducer.fold(black_box(&targets[..1]), black_box(&sources), true));
        });
        group.bench_function(BenchmarkId::new(format!("{data_type} fold_two"), elements), |bencher| {
            let [left, right] = sources;
            bencher.iter(|| reducer.fold_two(black_box(targets[0].span), left.span, right.span));
        });
    }
}

/// Copies with cached and with streaming stores, to one target and to two.
fn copies(criterion: &mut Criterion, buffers: Buffers) {
    for (class, bytes) in CLASSES {
        let mut group = criterion.benchmark_group(format!("copy in {class}"));
        group.throughput(Throughput::Bytes(bytes as u64));
        let source = buffers.0[0].read().slice(0, bytes);
        let to = buffers.targets(bytes, Store::Cached)[0].span;
        group.bench_function("memcpy", |bencher| {
            bencher.iter(|| black_box(to).copy_from(black_box(source)));
        });
        for store in STORES {
            let targets = buffers.targets(bytes, store);
            for count in 1..=2 {
                group.bench_function(BenchmarkId::new(format!("{store:?}"), count), |bencher| {
                    bencher.iter(|| copy(black_box(&targets[..count]), black_box(source)));
                });
            }
        }
    }
}

fn all(criterion: &mut Criterion) {
    let buffers = Buffers::new();
    for part in [size_classes, in_turn, operators, tiny, copies] {
        part(criterion, buffers);
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(50))
        .measurement_time(Duration::from_millis(150));
    targets = all
}
criterion_main!(benches);
