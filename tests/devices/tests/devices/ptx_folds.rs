//! The fold kernels as shipped, every type and operator, bit for bit against [`Reducer`]: their PTX runs in the
//! interpreter of `standins/ptx`; no GPU takes part.
//!
//! Sources are random bytes, so that NaNs, infinities and subnormals are among them; `CONSORT_TEST_SEED` sets the seed.

use consort_kernels::cuda::layout::{Factors, Folds, Job, MAX_INLINE_JOBS, MAX_PLACES};
use consort_kernels::cuda::ptx;
use consort_kernels::{DataType, ReduceOp, Reducer, Source, Store, Target};
use consort_memory::{Span, SpanMut};
use consort_standin_ptx::{Launch, Module, Options, Plain, run};
use consort_tests::system::{Random, given_seed};

/// The types that fold, and the names of their images.
const IMAGES: [(DataType, &str); 12] = [
    (DataType::Int8, "i8"),
    (DataType::Uint8, "u8"),
    (DataType::Int32, "i32"),
    (DataType::Uint32, "u32"),
    (DataType::Int64, "i64"),
    (DataType::Uint64, "u64"),
    (DataType::Float16, "f16"),
    (DataType::Float32, "f32"),
    (DataType::Float64, "f64"),
    (DataType::Bfloat16, "bf16"),
    (DataType::Float8E4m3, "f8e4m3"),
    (DataType::Float8E5m2, "f8e5m2"),
];

/// One fold: which sources are raw, whether it finishes.
struct Case<'a> {
    reducer: &'a Reducer,
    kernel: String,
    raw: u32,
    finish: bool,
}

fn device(module: &Module, case: &Case<'_>, sources: &[Vec<u8>], skews: &[usize], in_place: bool) -> Vec<u8> {
    let mut memory = Plain::new();
    let length = sources[0].len();
    let mut place = [0; MAX_PLACES];
    for (at, (source, &skew)) in sources.iter().zip(skews).enumerate() {
        let mut bytes = vec![0; skew];
        bytes.extend_from_slice(source);
        place[at + 1] = memory.allocate(bytes) + skew as u64;
    }
    let skew = skews[0];
    place[0] = if in_place { place[1] } else { memory.allocate(vec![0xee; skew + length]) + skew as u64 };
    let (done, left) = (memory.allocate(vec![0; 8]), memory.allocate(vec![0; 4]));
    let job = Job {
        bytes: length as u64,
        targets: 1,
        sources: sources.len() as u8,
        finish: case.finish.into(),
        raw: case.raw,
        place,
        ..Job::default()
    };
    let mut inline_jobs = [Job::default(); MAX_INLINE_JOBS];
    inline_jobs[0] = job;
    let folds = Folds {
        count: 1,
        blocks_per_job: 2,
        done,
        left,
        sequence: 3,
        factors: Factors::of(case.reducer),
        inline_jobs,
        ..Folds::default()
    };
    let mut params = vec![0; size_of::<Folds>()];
    SpanMut::of(&mut params).copy_from(Span::of(std::slice::from_ref(&folds)));
    let launch = Launch {
        kernel: module.kernel(&case.kernel).unwrap_or_else(|| panic!("no kernel {}", case.kernel)),
        grid: [2, 1, 1],
        block: [64, 1, 1],
        dynamic_shared_bytes: 0,
        params: &params,
        globals: 0,
        device: 0,
    };
    run(&[launch], &mut memory, &Options::fast()).unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(memory.bytes(done), 3u64.to_le_bytes());
    memory.bytes(place[0] - skew as u64)[skew..].to_vec()
}

fn host(case: &Case<'_>, sources: &[Vec<u8>]) -> Vec<u8> {
    let mut result = vec![0; sources[0].len()];
    let views: Vec<_> = sources
        .iter()
        .enumerate()
        .map(|(at, source)| Source { span: Span::of(source), raw: case.raw >> at & 1 == 1 })
        .collect();
    let target = Target { span: SpanMut::of(&mut result), store: Store::Cached };
    case.reducer.fold(&[target], &views, case.finish);
    result
}

#[test]
fn shipped_folds_have_the_bits_of_the_host() {
    let seed = given_seed().unwrap_or(0x5eed_1234);
    println!("CONSORT_TEST_SEED={seed}");
    let mut random = Random(seed);
    for (data_type, name) in IMAGES {
        let text = ptx(Some(data_type)).bytes().expect("the image");
        let text = String::from_utf8(text).expect("a text");
        let module = Module::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let size = data_type.size();
        for (op, op_name) in [
            (ReduceOp::Sum, "sum"),
            (ReduceOp::Prod, "prod"),
            (ReduceOp::Max, "max"),
            (ReduceOp::Min, "min"),
            (ReduceOp::Avg, "sum"),
        ] {
            for round in 0..4 {
                let count = 1 + random.below(4);
                let reducer = Reducer::new(data_type, op, count as u32);
                let case = Case {
                    reducer: &reducer,
                    kernel: format!("consort_fold_{name}_{op_name}"),
                    raw: if reducer.scales() { random.draw() as u32 & 0xf } else { 0 },
                    finish: reducer.divides() && round != 1,
                };
                let elements = 1 + random.below(400);
                let sources: Vec<_> = (0..count).map(|_| random.elements(elements, size)).collect();
                let skew = random.below(16);
                // All at one alignment, each at its own that suits elements, and each at any.
                let skews: Vec<usize> = (0..count)
                    .map(|_| match round {
                        0 | 1 => skew,
                        2 => random.below(16) / size * size,
                        _ => random.below(16),
                    })
                    .collect();
                let found = device(&module, &case, &sources, &skews, round == 1);
                let expected = host(&case, &sources);
                let at = found.iter().zip(&expected).position(|(a, b)| a != b).map(|at| at / size);
                if let Some(at) = at {
                    let bytes = |of: &[u8]| of[at * size..][..size].to_vec();
                    panic!(
                        "{name} {op_name} ({op:?}), round {round}, seed {seed}, element {at}: sources {:x?} give {:x?}, not {:x?}",
                        sources.iter().map(|source| bytes(source)).collect::<Vec<_>>(),
                        bytes(&found),
                        bytes(&expected)
                    );
                }
            }
        }
    }
}
