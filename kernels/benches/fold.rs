//! How fast the kernels fold, with `memcpy` for comparison. The throughput counts all bytes read and written.

use std::hint::black_box;

use consort_kernels::{DataType, Level, ReduceOp, Reducer, Source, Store, Target, copy};
use consort_memory::{Span, SpanMut};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

/// A buffer aligned to a page, as communication buffers are.
fn buffer(bytes: usize) -> &'static mut [u8] {
    const PAGE: usize = 4096;
    let memory = vec![0x3cu8; bytes + PAGE].leak();
    let lead = memory.as_ptr().align_offset(PAGE);
    &mut memory[lead..lead + bytes]
}

fn folds(criterion: &mut Criterion) {
    for (data_type, op) in [
        (DataType::Float32, ReduceOp::Sum),
        (DataType::Bfloat16, ReduceOp::Sum),
        (DataType::Float16, ReduceOp::Sum),
        (DataType::Float8E4m3, ReduceOp::Sum),
        (DataType::Float64, ReduceOp::Sum),
        (DataType::Int32, ReduceOp::Sum),
        (DataType::Int8, ReduceOp::Prod),
        (DataType::Float32, ReduceOp::Max),
        (DataType::Float32, ReduceOp::Avg),
        (DataType::Int32, ReduceOp::Avg),
    ] {
        let mut group = criterion.benchmark_group(format!("{data_type} {op}"));
        for bytes in [128 << 10, 1 << 20] {
            let (left, right) = (buffer(bytes), buffer(bytes));
            let spans = [SpanMut::of(buffer(bytes)), SpanMut::of(buffer(bytes))];
            let sources = [&*left, &*right].map(|bytes| Source { span: Span::of(bytes), raw: true });
            for level in Level::ALL.into_iter().skip(1).filter(|level| level.is_available()) {
                let reducer = Reducer::with_level(data_type, op, 2, level).expect("available");
                for count in 1..=2 {
                    let targets = spans.map(|span| Target { span, store: Store::Cached });
                    group.throughput(Throughput::Bytes(((2 + count) * bytes) as u64));
                    let id = BenchmarkId::new(format!("{level:?}, {count} targets"), bytes);
                    group.bench_function(id, |bencher| {
                        bencher
                            .iter(|| reducer.fold(black_box(&targets[..count]), black_box(&sources), true));
                    });
                }
            }
        }
    }
}

fn tiny(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("tiny");
    for (data_type, elements) in [
        (DataType::Float32, 1),
        (DataType::Float32, 8),
        (DataType::Float32, 64),
        (DataType::Bfloat16, 1),
        (DataType::Bfloat16, 8),
        (DataType::Int32, 1),
    ] {
        let bytes = elements * data_type.size();
        let (left, right, output) = (buffer(bytes), buffer(bytes), buffer(bytes));
        let sources = [&*left, &*right].map(|bytes| Source { span: Span::of(bytes), raw: false });
        let target = [Target { span: SpanMut::of(output), store: Store::Cached }];
        let reducer = Reducer::new(data_type, ReduceOp::Sum, 2);
        group.bench_function(BenchmarkId::new(data_type.to_string(), elements), |bencher| {
            bencher.iter(|| reducer.fold(black_box(&target), black_box(&sources), true));
        });
    }
}

fn large(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("copy and stream");
    for bytes in [128 << 10, 1 << 20, 64 << 20] {
        let (left, right) = (buffer(bytes), buffer(bytes));
        let spans = [SpanMut::of(buffer(bytes)), SpanMut::of(buffer(bytes))];
        let sources = [&*left, &*right].map(|bytes| Source { span: Span::of(bytes), raw: false });
        let source = sources[0].span;
        let reducer = Reducer::new(DataType::Float32, ReduceOp::Sum, 2);

        group.throughput(Throughput::Bytes(2 * bytes as u64));
        group.bench_function(BenchmarkId::new("memcpy", bytes), |bencher| {
            bencher.iter(|| black_box(spans[0]).copy_from(black_box(source)));
        });
        for store in [Store::Cached, Store::Streaming] {
            let targets = spans.map(|span| Target { span, store });
            for count in 1..=2 {
                group.throughput(Throughput::Bytes(((1 + count) * bytes) as u64));
                group.bench_function(BenchmarkId::new(format!("copy {store:?} {count}"), bytes), |bencher| {
                    bencher.iter(|| copy(black_box(&targets[..count]), black_box(source)));
                });
                group.throughput(Throughput::Bytes(((2 + count) * bytes) as u64));
                group.bench_function(BenchmarkId::new(format!("fold {store:?} {count}"), bytes), |bencher| {
                    bencher.iter(|| reducer.fold(black_box(&targets[..count]), black_box(&sources), true));
                });
            }
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(std::time::Duration::from_millis(100))
        .measurement_time(std::time::Duration::from_millis(200));
    targets = folds, tiny, large
}
criterion_main!(benches);
