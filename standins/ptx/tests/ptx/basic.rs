//! Kernels that nvcc made of `kernels/basic.cu` and `kernels/signals.cu`, run on plain memory in both schedules.
//! `kernels/README` says how the texts were made.

use consort_standin_ptx::{Fault, Launch, Memory, Module, Options, Plain, Statistics, run};

const BASIC: &str = include_str!("kernels/basic.ptx");
const SIGNALS: &str = include_str!("kernels/signals.ptx");

fn module(text: &str) -> Module {
    Module::parse(text).unwrap_or_else(|error| panic!("{error}"))
}

/// Both schedules, the seeded one with some seeds.
fn schedules() -> Vec<Options> {
    let mut all = vec![Options::fast()];
    all.extend((0..4).map(Options::seeded));
    all
}

/// Parameters one after the other, each aligned to its size.
struct Params(Vec<u8>);

impl Params {
    fn new() -> Self {
        Self(Vec::new())
    }
    fn put(mut self, bytes: &[u8]) -> Self {
        while !self.0.len().is_multiple_of(bytes.len().min(8)) {
            self.0.push(0);
        }
        self.0.extend_from_slice(bytes);
        self
    }
    fn u64(self, value: u64) -> Self {
        self.put(&value.to_le_bytes())
    }
    fn u32(self, value: u32) -> Self {
        self.put(&value.to_le_bytes())
    }
}

fn launch<'a>(module: &'a Module, name: &str, grid: u32, block: u32, params: &'a Params) -> Launch<'a> {
    Launch {
        kernel: module.kernel(name).unwrap(),
        grid: [grid, 1, 1],
        block: [block, 1, 1],
        dynamic_shared_bytes: 0,
        params: &params.0,
        globals: 0,
        device: 0,
    }
}

fn go<M: Memory>(launches: &[Launch<'_>], memory: &mut M, options: &Options) -> Statistics {
    let done: Result<_, Fault> = run(launches, memory, options);
    done.unwrap_or_else(|fault| panic!("seed {}: {fault}", options.seed))
}

fn bytes<T: Copy, const N: usize>(values: &[T], get: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&value| get(value)).collect()
}

fn words(memory: &Plain, address: u64) -> Vec<u32> {
    memory.bytes(address).chunks(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect()
}

fn longs(memory: &Plain, address: u64) -> Vec<u64> {
    memory.bytes(address).chunks(8).map(|c| u64::from_le_bytes(c.try_into().unwrap())).collect()
}

#[test]
fn all_texts_parse() {
    assert_eq!(module(BASIC).kernels().len(), 12);
    assert_eq!(module(SIGNALS).kernels().len(), 5);
    let kernel = &module(BASIC);
    let kernel = kernel.kernel("mixing").unwrap();
    assert_eq!(kernel.parameter_bytes(), 48);
    assert_eq!(kernel.parameters()[1].offset, 8);
    assert_eq!(kernel.parameters()[1].bytes, 40);
}

#[test]
fn what_is_unknown_is_named_with_its_line() {
    let text = BASIC.replacen("add.s64", "frobnicate.s64", 1);
    let line = 1 + text[..text.find("frobnicate").unwrap()].matches('\n').count();
    let error = Module::parse(&text).unwrap_err().to_string();
    assert_eq!(error, format!("line {line}: unknown opcode `frobnicate.s64`"));
}

#[test]
fn copies_in_vectors() {
    let module = module(BASIC);
    for options in schedules() {
        let mut memory = Plain::new();
        let source: Vec<u8> = (0..16 * 333u32).map(|i| (i * 7 + i / 251) as u8).collect();
        let from = memory.allocate(source.clone());
        let to = memory.allocate(vec![0; source.len()]);
        let params = Params::new().u64(to).u64(from).u64(333);
        go(&[launch(&module, "copy16", 2, 32, &params)], &mut memory, &options);
        assert_eq!(memory.bytes(to), source);
    }
}

#[test]
fn folds() {
    let module = module(BASIC);
    let options = Options::fast();
    let a: Vec<f32> = (0..100).map(|i| i as f32 * 0.37).chain([f32::NAN, f32::MAX, 1e-45]).collect();
    let b: Vec<f32> = (0..100).map(|i| 1e6 / (i as f32 + 1.0)).chain([1.0, f32::MAX, 1e-45]).collect();
    let n = a.len() as u64;
    let mut memory = Plain::new();
    let (x, y) = (memory.allocate(bytes(&a, f32::to_le_bytes)), memory.allocate(bytes(&b, f32::to_le_bytes)));
    let to = memory.allocate(vec![0; a.len() * 4]);
    let params = Params::new().u64(to).u64(x).u64(y).u64(n);
    go(&[launch(&module, "fold_f32", 1, 32, &params)], &mut memory, &options);
    let expected: Vec<u32> = a
        .iter()
        .zip(&b)
        .map(|(a, b)| if (a + b).is_nan() { 0x7fff_ffff } else { (a + b).to_bits() })
        .collect();
    assert_eq!(words(&memory, to), expected);

    let a: Vec<f64> = (0..64).map(|i| f64::from(i) * 0.37 - 3.0).collect();
    let b: Vec<f64> = (0..64).map(|i| 1e6 / (f64::from(i) - 7.5)).collect();
    let functions: [fn(f64, f64) -> f64; 4] = [|a, b| a + b, |a, b| a * b, f64::max, |a, b| a / b];
    for (op, function) in functions.iter().enumerate() {
        let (x, y) =
            (memory.allocate(bytes(&a, f64::to_le_bytes)), memory.allocate(bytes(&b, f64::to_le_bytes)));
        let to = memory.allocate(vec![0; 64 * 8]);
        let params = Params::new().u64(to).u64(x).u64(y).u64(64).u32(op as u32);
        go(&[launch(&module, "fold_f64", 2, 32, &params)], &mut memory, &options);
        let expected: Vec<u64> = a.iter().zip(&b).map(|(&a, &b)| function(a, b).to_bits()).collect();
        assert_eq!(longs(&memory, to), expected, "operation {op}");
    }
}

#[test]
fn integers() {
    let module = module(BASIC);
    let options = Options::fast();
    let mut state = 3u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state ^ state >> 29) as i64 >> (state >> 60)
    };
    let a: Vec<i64> = (0..64).map(|_| next()).collect();
    let b: Vec<i64> = (0..64).map(|_| next()).collect();
    let functions: [fn(i64, i64) -> i64; 6] = [
        i64::wrapping_add,
        i64::wrapping_mul,
        i64::max,
        i64::min,
        |a, _| a / 7,
        |a, b| a.wrapping_rem(b | 1),
    ];
    for (op, function) in functions.iter().enumerate() {
        let mut memory = Plain::new();
        let (x, y) =
            (memory.allocate(bytes(&a, i64::to_le_bytes)), memory.allocate(bytes(&b, i64::to_le_bytes)));
        let to = memory.allocate(vec![0; 64 * 8]);
        let params = Params::new().u64(to).u64(x).u64(y).u64(64).u32(op as u32).u32(7);
        go(&[launch(&module, "fold_i64", 1, 32, &params)], &mut memory, &options);
        let expected: Vec<u64> = a.iter().zip(&b).map(|(&a, &b)| function(a, b) as u64).collect();
        assert_eq!(longs(&memory, to), expected, "operation {op}");
    }
    let mut memory = Plain::new();
    let a: Vec<u8> = (0..=255).collect();
    let b: Vec<u8> = (0..=255).rev().map(|x: u8| x.wrapping_mul(3)).collect();
    let (x, y, to) = (memory.allocate(a.clone()), memory.allocate(b.clone()), memory.allocate(vec![0; 256]));
    let params = Params::new().u64(to).u64(x).u64(y).u64(256).u32(3);
    go(&[launch(&module, "fold_i8", 1, 64, &params)], &mut memory, &options);
    let expected: Vec<u8> =
        a.iter().zip(&b).map(|(&a, &b)| ((i32::from(a as i8) + i32::from(b as i8)) / 3) as u8).collect();
    assert_eq!(memory.bytes(to), expected);
}

/// What `mixing` computes, written again.
fn mixing(i: u32, small: &[u32; 6], factor: f32) -> u32 {
    let table = [3, 1, 4, 1, 5, 9, 2, 6];
    let y = small[i as usize % 6];
    let mut x = (i ^ y.wrapping_mul(0x9e37_79b9)).rotate_left(13);
    x = x
        .wrapping_mul(5)
        .wrapping_add(y.count_ones())
        .wrapping_add(x.leading_zeros())
        .wrapping_add(y.reverse_bits());
    x ^= table[i as usize & 7];
    x = match i % 5 {
        0 => x.wrapping_add(7),
        1 => x.wrapping_mul(3),
        // `__byte_perm(x, i, 0x1032)` swaps the halves.
        2 => x.rotate_left(16),
        3 => ((u64::from(i) << 32 | u64::from(x)) << (i & 31) >> 32) as u32,
        _ => x ^ 1,
    };
    x.wrapping_add((factor * i as f32) as i32 as u32)
}

#[test]
fn calls_tables_and_bits() {
    let module = module(BASIC);
    let small = [9, 0, u32::MAX, 12345, 7, 1 << 31];
    for options in schedules() {
        let mut memory = Plain::new();
        let to = memory.allocate(vec![0; 64 * 4]);
        let mut params = Params::new().u64(to).u64(0).u32(60);
        for value in small {
            params = params.u32(value);
        }
        params = params.put(&1.75f32.to_le_bytes());
        go(&[launch(&module, "mixing", 2, 32, &params)], &mut memory, &options);
        let found = words(&memory, to);
        for i in 0..60u32 {
            let expected = mixing(i, &small, 1.75);
            assert_eq!(found[i as usize], expected, "{i}, seed {}", options.seed);
        }
        assert_eq!(&found[60..], &[0; 4]);
    }
}

#[test]
fn shared_memory_and_barriers() {
    let module = module(BASIC);
    for options in schedules() {
        let mut memory = Plain::new();
        let data = memory.allocate(bytes(&(0..64).collect::<Vec<u32>>(), u32::to_le_bytes));
        let params = Params::new().u64(data);
        let mut launch = launch(&module, "reverse", 1, 64, &params);
        launch.dynamic_shared_bytes = 256;
        go(&[launch], &mut memory, &options);
        assert_eq!(words(&memory, data), (0..64).map(|i| 3 * (63 - i)).collect::<Vec<u32>>());
    }
}

#[test]
fn warps_together() {
    let module = module(BASIC);
    for options in schedules() {
        let mut memory = Plain::new();
        let out = memory.allocate(vec![0; 64 * 32]);
        let params = Params::new().u64(out);
        go(&[launch(&module, "lanes", 1, 64, &params)], &mut memory, &options);
        let found = words(&memory, out);
        for t in 0..64u32 {
            let (lane, warp) = (t % 32, t / 32);
            let sum = (0..32).map(|l| warp * 32 + l).sum::<u32>();
            let up = if lane < 3 { t } else { t - 3 };
            let down = if lane > 28 { t } else { t + 3 };
            let expected = [sum, 0xaaaa_aaaa, u32::from(warp == 1), 1, up, down, warp * 32 + 5, sum];
            assert_eq!(found[t as usize * 8..][..8], expected, "thread {t}");
        }
    }
}

#[test]
fn the_last_block_knows_that_it_is_last() {
    let module = module(BASIC);
    for options in schedules() {
        let mut memory = Plain::new();
        let out = memory.allocate(vec![0xff; 8]);
        let left = memory.allocate(bytes(&[0u32, 5], u32::to_le_bytes));
        let globals = memory.allocate(module.global_image().to_vec());
        let params = Params::new().u64(out).u64(left);
        let mut launch = launch(&module, "last", 9, 32, &params);
        launch.globals = globals;
        go(&[launch], &mut memory, &options);
        assert_eq!(words(&memory, out), [8, 5]);
        assert_eq!(words(&memory, left), [0, 9]);
        assert_eq!(words(&memory, globals), [8]);
        assert_eq!(module.globals()[0].name, "tickets");
    }
}

#[test]
fn local_memory_floats_and_clocks() {
    let module = module(BASIC);
    let options = Options::fast();
    let mut memory = Plain::new();
    let out = memory.allocate(vec![0; 64]);
    let params = Params::new().u64(out).u32(20);
    go(&[launch(&module, "locals", 1, 16, &params)], &mut memory, &options);
    let mut a: Vec<u32> = (0..16).map(|i| i * i).collect();
    for i in 0..20 {
        a[(i * 7) & 15] = a[(i * 7) & 15].wrapping_add(a[i & 15]);
    }
    assert_eq!(words(&memory, out), a);

    let x = [0.5f32, -2.5, 3.49, 1e-40, 7.0, 0.0, -0.0, 1e9];
    let from = memory.allocate(bytes(&x, f32::to_le_bytes));
    let out = memory.allocate(vec![0; 8 * 32]);
    let params = Params::new().u64(out).u64(from).u32(8);
    go(&[launch(&module, "floats", 1, 8, &params)], &mut memory, &options);
    let expected: Vec<u32> = x
        .iter()
        .flat_map(|&x| {
            let root = if x.sqrt().is_nan() { 0x7fff_ffff } else { x.sqrt().to_bits() };
            let whole = x as i32 as f32;
            let values = [x.round_ties_even(), x.mul_add(x, 1.0), 1.0 / x, x.max(1.0), x];
            let mut bits = values.map(f32::to_bits).to_vec();
            bits.extend([root, whole.to_bits(), x.abs().to_bits()]);
            bits
        })
        .collect();
    assert_eq!(words(&memory, out), expected);

    let out = memory.allocate(vec![0xff; 16]);
    let params = Params::new().u64(out);
    go(&[launch(&module, "clocks", 1, 1, &params)], &mut memory, &options);
    assert!(longs(&memory, out).iter().all(|&time| time < u64::MAX / 2));
}

#[test]
fn two_ranks_pass_data() {
    let module = module(SIGNALS);
    for options in schedules() {
        let mut memory = Plain::new();
        let (words_each, rounds) = (50u32, 7u32);
        let slot = memory.allocate(vec![0; 200]);
        let (posted, credit) = (memory.allocate(vec![0; 8]), memory.allocate(vec![0; 8]));
        let out = memory.allocate(vec![0; (words_each * rounds * 4) as usize]);
        let send = Params::new().u64(slot).u64(posted).u64(credit).u32(words_each).u32(rounds);
        let receive = Params::new().u64(slot).u64(posted).u64(credit).u64(out).u32(words_each).u32(rounds);
        let launches =
            [launch(&module, "receiver", 1, 32, &receive), launch(&module, "sender", 1, 32, &send)];
        go(&launches, &mut memory, &options);
        let expected: Vec<u32> =
            (0..rounds).flat_map(|r| (0..words_each).map(move |i| r * 1000 + i)).collect();
        assert_eq!(words(&memory, out), expected);
    }
}

#[test]
fn packets_carry_their_flags() {
    let module = module(SIGNALS);
    for options in schedules() {
        let mut memory = Plain::new();
        let values: Vec<u64> = (0..40).map(|i| i * 0x1_0000_0007).collect();
        let from = memory.allocate(bytes(&values, u64::to_le_bytes));
        let (packets, to) = (memory.allocate(vec![0; 640]), memory.allocate(vec![0; 320]));
        let send = Params::new().u64(packets).u64(from).u32(40).u32(1);
        let receive = Params::new().u64(to).u64(packets).u32(40).u32(1);
        let launches = [
            launch(&module, "packets_receive", 1, 32, &receive),
            launch(&module, "packets_send", 1, 32, &send),
        ];
        // A packet of two flags is whole only if it arrives in two halves at most: do not tear it further.
        let options = Options { tear: false, ..options };
        go(&launches, &mut memory, &options);
        assert_eq!(longs(&memory, to), values);
    }
}
