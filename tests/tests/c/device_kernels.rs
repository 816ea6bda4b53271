//! The text of the device kernels, built by the host's compiler and run with a thread of the system for a thread of a
//! block: every type and operator against `Reducer`, bit for bit, and the protocols under ThreadSanitizer.
//!
//! No GPU takes part: the code of a GPU's compiler is not tested here.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use consort::{DataType, ReduceOp, Scalar, Span, SpanMut};
use consort_kernels::cuda::layout::Factors;
use consort_kernels::{Reducer, Source, Store, Target};
use consort_tests::compiler::{has, root, succeeds};
use consort_tests::system::{Random, skip};

/// Kinds of a case, as `tests/cuda/main.cc` numbers them.
const FOLD: u32 = 0;
const RING: u32 = 1;
const ONE_SHOT: u32 = 2;
const TWO_SHOT: u32 = 3;
const COPY: u32 = 4;
/// Room for the offsets of a case.
const PLACES: usize = 32;

/// The names that kernels give to the types, in the order of their codes.
const TYPES: [&str; 12] =
    ["i8", "u8", "i32", "u32", "i64", "u64", "f16", "f32", "f64", "bf16", "f8e4m3", "f8e5m2"];

/// The work of the kernels in a case.
struct Work {
    reducer: Reducer,
    /// Whether contributions are scaled, or the result divided, where the operator does that at all.
    raw: bool,
    finish: bool,
}

impl Work {
    /// The operators of a type: plain ones, the mean, and a sum with a scalar.
    fn all(data_type: DataType, ranks: u32, random: &mut Random) -> Vec<Work> {
        let mut works: Vec<Work> =
            ReduceOp::ALL.into_iter().map(|op| Work::of(data_type, op, ranks)).collect();
        let bytes = random.draw().to_le_bytes();
        let scalar = Scalar::from_bytes(data_type, &bytes[..data_type.size()]).expect("an element");
        works.push(Work { reducer: Reducer::pre_mul_sum(scalar), raw: true, finish: false });
        works
    }

    fn of(data_type: DataType, op: ReduceOp, ranks: u32) -> Work {
        let reducer = Reducer::new(data_type, op, ranks);
        Work { reducer, raw: reducer.scales(), finish: reducer.divides() }
    }

    /// The kernel's operator.
    fn op(&self) -> u32 {
        if self.reducer.op() == ReduceOp::Avg { 0 } else { self.reducer.op().code() }
    }

    fn fold(&self, sources: &[(&[u8], bool)], finish: bool) -> Vec<u8> {
        let mut result = vec![0; sources[0].0.len()];
        let spans: Vec<_> = sources
            .iter()
            .map(|(bytes, raw)| Source { span: Span::of(bytes), raw: *raw && self.raw })
            .collect();
        let target = Target { span: SpanMut::of(&mut result), store: Store::Cached };
        self.reducer.fold(&[target], &spans, finish && self.finish);
        result
    }

    /// The result of all ranks after a ring: a chunk goes round from its own rank on, rounded at each.
    fn ring(&self, inputs: &[Vec<u8>]) -> Vec<u8> {
        let (ranks, length) = (inputs.len(), inputs[0].len());
        let unit = length.div_ceil(ranks).next_multiple_of(8);
        let mut result = Vec::new();
        for chunk in 0..ranks {
            let range = (chunk * unit).min(length)..((chunk + 1) * unit).min(length);
            let own = |rank: usize| &inputs[rank % ranks][range.clone()];
            let mut folded = self.fold(&[(own(chunk), true)], false);
            for step in 1..ranks {
                folded = self.fold(&[(&folded, false), (own(chunk + step), true)], step + 1 == ranks);
            }
            result.extend(folded);
        }
        result
    }
}

/// Cases for the program, and the expected answers.
#[derive(Default)]
struct Cases {
    input: Vec<u8>,
    expected: Vec<u8>,
    /// The first answer of each case, and the name of the case.
    names: Vec<(usize, String)>,
}

/// How a case lies in memory, and on how many blocks it runs.
struct Shape {
    kind: u32,
    ranks: u32,
    targets: u32,
    blocks: u32,
    threads: u32,
    in_place: bool,
    elements: usize,
    slot_bytes: u64,
    offsets: [u8; PLACES],
}

impl Shape {
    fn random(kind: u32, size: usize, random: &mut Random) -> Shape {
        let mut below = |most: u64| random.draw() % most;
        let ranks = if kind == FOLD { 1 + below(5) } else { 2 + below(2) } as u32;
        let aligned = below(16) as u8 / size as u8 * size as u8;
        // All alike modulo 16, whole elements apart, or anywhere.
        let offsets = match below(3) {
            0 => [aligned; PLACES],
            1 => std::array::from_fn(|_| below(16) as u8 / size as u8 * size as u8),
            _ => std::array::from_fn(|_| below(16) as u8),
        };
        let is_small = below(4) == 0;
        Shape {
            kind,
            ranks,
            targets: 1 + below(3) as u32,
            blocks: 1 + below(3) as u32,
            threads: [4, 8, 16][below(3) as usize],
            in_place: below(4) == 0,
            elements: below(if is_small { 8 } else { 1500 }) as usize,
            slot_bytes: 128 * below(4),
            offsets,
        }
    }
}

impl Cases {
    fn add(&mut self, work: &Work, shape: &Shape, random: &mut Random) {
        let data_type = work.reducer.data_type();
        let bytes = shape.elements * data_type.size();
        // Each source of a fold is raw or not at random; those of ranks are all alike.
        let mask = if shape.kind == FOLD { random.draw() as u32 } else { u32::MAX };
        let raw = if work.raw { mask & ((1 << shape.ranks) - 1) } else { 0 };
        let factors = Factors::of(&work.reducer);
        let words = [
            shape.kind,
            data_type.code(),
            work.op(),
            shape.ranks,
            shape.targets,
            raw,
            u32::from(work.finish),
            shape.blocks,
            shape.threads,
            u32::from(shape.in_place),
        ];
        words.iter().for_each(|word| self.input.extend(word.to_le_bytes()));
        self.input.extend((bytes as u64).to_le_bytes());
        self.input.extend(shape.slot_bytes.to_le_bytes());
        self.input.extend(factors.double_.to_le_bytes());
        self.input.extend(factors.whole.to_le_bytes());
        self.input.extend(factors.single.to_le_bytes());
        self.input.extend(factors.divisor.to_le_bytes());
        self.input.extend(shape.offsets);
        let inputs: Vec<Vec<u8>> =
            (0..shape.ranks).map(|_| values(bytes, data_type.size(), random)).collect();
        inputs.iter().for_each(|source| self.input.extend(source));
        self.names.push((
            self.expected.len(),
            format!(
                "kind {} {data_type} {:?} ranks {} elements {} blocks {} threads {} in place {} slices {} raw {raw:#b} {:?}",
                shape.kind,
                work.reducer,
                shape.ranks,
                shape.elements,
                shape.blocks,
                shape.threads,
                shape.in_place,
                shape.slot_bytes,
                shape.offsets,
            ),
        ));
        let sources: Vec<_> =
            inputs.iter().enumerate().map(|(i, source)| (&source[..], raw >> i & 1 != 0)).collect();
        let (answer, times) = match shape.kind {
            FOLD => (work.fold(&sources, true), shape.targets),
            COPY => (inputs[0].clone(), shape.targets),
            RING => (work.ring(&inputs), shape.ranks),
            _ => (work.fold(&sources, true), shape.ranks),
        };
        for _ in 0..times {
            self.expected.extend(&answer);
        }
    }

    /// Runs them; an error has the program's output.
    fn run(&self, program: &Path, name: &str) -> Result<(), Output> {
        let place = |end: &str| program.with_file_name(format!("{name}.{end}"));
        std::fs::write(place("in"), &self.input).expect("the cases");
        let mut command = Command::new(program);
        command.args([place("in"), place("out")]).env("TSAN_OPTIONS", "exitcode=66");
        let output = command.output().expect("the host ring");
        if !output.status.success() {
            return Err(output);
        }
        let answers = std::fs::read(place("out")).expect("the answers");
        assert_eq!(answers.len(), self.expected.len());
        let wrong = answers.iter().zip(&self.expected).position(|(left, right)| left != right);
        if let Some(at) = wrong {
            let (start, case) = self.names.iter().rev().find(|(start, _)| *start <= at).expect("a case");
            let (left, right) = (&answers[at..][..8.min(answers.len() - at)], &self.expected[at..]);
            panic!("{case}: byte {} is wrong: {left:x?}, not {:x?}", at - start, &right[..left.len()]);
        }
        Ok(())
    }
}

/// Random bits, and often the values at which formats have their corners.
fn values(bytes: usize, size: usize, random: &mut Random) -> Vec<u8> {
    let mut result = Vec::with_capacity(bytes + 8);
    while result.len() < bytes {
        let number = random.draw();
        let bits = match number % 8 {
            // All zeros or ones but for a sign, an exponent or a last place.
            0 => 0,
            1 => 1 << (size * 8 - 1),
            2 => u64::MAX,
            // A short number: products and sums stay finite more often.
            3 => (number >> 8) & (u64::MAX << (size * 8 - 6)),
            _ => number.rotate_left(17),
        };
        result.extend(&bits.to_le_bytes()[..size]);
    }
    result.truncate(bytes);
    result
}

/// The program, with these further arguments to the compiler and kernels of these types.
fn built(name: &str, types: &[&str], arguments: &[&str]) -> PathBuf {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cuda-host-{name}"));
    std::fs::create_dir_all(&place).expect("a directory");
    let (kernels, ring) = (root().join("kernels/cuda"), root().join("tests/cuda"));
    let compiler = || {
        let mut command = Command::new("g++");
        // Products and sums are not contracted, here as on the device. A wait is reported after a short while.
        command.args(["-std=c++20", "-O1", "-pthread", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"]);
        command.args(["-DCONSORT_HOST", "-DCONSORT_PATIENCE=2000", "-x", "c++", "-I"]).arg(&kernels);
        command.args(arguments);
        command
    };
    let object = |name: &str| place.join(name).with_extension("o");
    let objects: Vec<PathBuf> = types.iter().copied().chain(["copy", "main"]).map(object).collect();
    let compile = |object: &PathBuf| {
        let name = object.file_stem().expect("a name").to_string_lossy().into_owned();
        let mut command = compiler();
        match name.as_str() {
            "main" => command.arg(ring.join("main.cc")),
            "copy" => command.arg(kernels.join("all.cu")),
            data_type => command.arg(format!("-DCONSORT_TYPE={data_type}")).arg(kernels.join("all.cu")),
        };
        if types.len() == 1 {
            command.arg("-DONE_TYPE");
        }
        succeeds(command.arg("-c").arg("-o").arg(object));
    };
    std::thread::scope(|threads| {
        let (early, late) = objects.split_at(objects.len() / 2);
        threads.spawn(|| early.iter().for_each(compile));
        late.iter().for_each(compile);
    });
    let program = place.join("host-ring");
    let mut linker = Command::new("g++");
    succeeds(linker.args(["-pthread"]).args(arguments).args(&objects).arg("-o").arg(&program));
    program
}

#[test]
fn kernels_on_the_host_give_the_bits_of_the_reducer() {
    let mut random = Random::announced("kernels_on_the_host_give_the_bits_of_the_reducer");
    if !has("g++") {
        return;
    }
    let program = built("plain", &TYPES, &[]);
    assert_eq!(succeeds(Command::new(&program).arg("abort")), "aborted\n");
    let mut cases = Cases::default();
    for data_type in DataType::ALL {
        for kind in [FOLD, FOLD, FOLD, FOLD, FOLD, FOLD, RING, ONE_SHOT, TWO_SHOT, COPY] {
            let shape = Shape::random(kind, data_type.size(), &mut random);
            for work in Work::all(data_type, shape.ranks, &mut random) {
                let shape =
                    Shape { ranks: shape.ranks, ..Shape::random(kind, data_type.size(), &mut random) };
                cases.add(&work, &shape, &mut random);
                if kind == COPY {
                    break;
                }
            }
        }
    }
    cases.run(&program, "everything").unwrap_or_else(|output| panic!("{output:?}"));
}

/// Whether programs under ThreadSanitizer can be made here, and run.
fn has_sanitizer() -> bool {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, program) = (place.join("cuda-host-probe.cc"), place.join("cuda-host-probe"));
    std::fs::write(&source, "int main() {}\n").expect("a source");
    let mut compiler = Command::new("g++");
    compiler.arg("-fsanitize=thread").arg(&source).arg("-o").arg(&program);
    let runs = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
    let is_there = runs(&mut compiler) && runs(&mut Command::new(&program));
    if !is_there {
        skip("there is no ThreadSanitizer for g++");
    }
    is_there
}

#[test]
fn flags_of_the_kernels_order_their_data_and_relaxed_ones_would_not() {
    let mut random = Random::announced("flags_of_the_kernels_order_their_data_and_relaxed_ones_would_not");
    if !has("g++") || !has_sanitizer() {
        return;
    }
    let mut cases = Cases::default();
    for kind in [FOLD, COPY, RING, RING, ONE_SHOT, TWO_SHOT, TWO_SHOT] {
        for ranks in [2, 3] {
            let mut shape = Shape::random(kind, 4, &mut random);
            (shape.ranks, shape.blocks, shape.elements) = (ranks, 2, shape.elements + 100);
            let op = ReduceOp::ALL[random.draw() as usize % 5];
            let work = Work::of(DataType::Float32, op, ranks);
            cases.add(&work, &shape, &mut random);
        }
    }
    let sanitized = ["-g", "-fsanitize=thread"];
    let right = built("sanitized", &["f32"], &sanitized);
    assert_eq!(succeeds(Command::new(&right).arg("abort")), "aborted\n");
    cases.run(&right, "sanitized").unwrap_or_else(|output| panic!("{output:?}"));
    let wrong = built("relaxed", &["f32"], &[&sanitized[..], &["-DCONSORT_RELAXED_FLAGS"]].concat());
    let output = cases.run(&wrong, "relaxed").expect_err("a race");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("ThreadSanitizer: data race"), "{said}");
}
