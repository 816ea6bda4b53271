//! The fold kernels on the `libcuda.so.1` that the loader finds: NVIDIA's on a GPU, or the stand-in (`standins/cuda`)
//! by `LD_LIBRARY_PATH`. Every type and operator, bit for bit against [`Reducer`].
//!
//! The bytes are random, so that NaNs, infinities and subnormals are among them; of 8- and 16-bit floats there is
//! every pair of values. `CONSORT_TEST_SEED` sets the seed. Where there is no driver, each test prints that and does
//! nothing. Absent: waits, plans (the collectives' own tests).

use std::io::Write;

use consort_cuda::{Context, DeviceMemory, DeviceSpan, Driver, Stream};
use consort_kernels::cuda::{FoldJob, Kernels};
use consort_kernels::{DataType, ReduceOp, Reducer, Source, Store, Target};
use consort_memory::{Span, SpanMut};
use consort_testing::Random;

/// The content of device memory that was not written.
const POISON: u8 = 0xee;

/// The device with its kernels and a stream.
struct Device {
    context: Context,
    kernels: Kernels,
    stream: Stream,
}

impl Device {
    fn any() -> Option<Self> {
        if let Err(reason) = Driver::of_process() {
            let _ =
                std::io::stderr().write_all(format!("SKIP: no CUDA driver to test ({reason})\n").as_bytes());
            return None;
        }
        let context = Context::primary(0).expect("the context of device 0");
        println!("{:?}", context.device());
        let stream = context.create_stream().expect("a stream");
        Some(Device { kernels: Kernels::new(&context, |_, _| ()), stream, context })
    }

    fn memory(&self, bytes: usize) -> DeviceMemory {
        self.context.allocate(bytes.max(1)).expect("memory of the device")
    }

    /// The result of the kernel for these sources, at these distances from alignment; the last distance is the
    /// target's.
    fn fold(&self, case: &Case<'_>, sources: &[Vec<u8>], skews: &[usize], blocks: u32) -> Vec<u8> {
        let length = sources[0].len();
        let memories: Vec<DeviceMemory> = skews.iter().map(|skew| self.memory(skew + length + 64)).collect();
        let span = |at: usize| memories[at].span().slice(skews[at], length);
        for (at, source) in sources.iter().enumerate() {
            memories[at].copy_from_host(skews[at], source).expect("a copy to the device");
        }
        let target = sources.len();
        memories[target].fill(POISON).expect("poison");
        self.context.synchronize().expect("all is there");
        let places: Vec<DeviceSpan> = (0..target).map(span).collect();
        let job = FoldJob { targets: &[span(target)], sources: &places, raw: case.raw, finish: case.finish };
        let entered = self.context.enter().expect("the context");
        let launched = self.kernels.fold(&self.stream, Some(case.reducer), &[job], blocks, None, None);
        launched.expect("a launch");
        self.stream.synchronize().expect("the kernel's end");
        drop(entered);
        let mut all = vec![0; memories[target].bytes()];
        memories[target].copy_to_host(0, &mut all).expect("a copy from the device");
        let (before, behind) = (&all[..skews[target]], &all[skews[target] + length..]);
        assert!(before.iter().chain(behind).all(|byte| *byte == POISON), "written outside of the target");
        all[skews[target]..][..length].to_vec()
    }
}

/// One fold: which sources are raw, and whether it finishes.
struct Case<'a> {
    reducer: &'a Reducer,
    raw: u32,
    finish: bool,
}

impl Case<'_> {
    fn host(&self, sources: &[Vec<u8>]) -> Vec<u8> {
        let mut result = vec![0; sources[0].len()];
        let views: Vec<Source<'_>> = sources
            .iter()
            .enumerate()
            .map(|(at, source)| Source { span: Span::of(source), raw: self.raw >> at & 1 == 1 })
            .collect();
        let target = Target { span: SpanMut::of(&mut result), store: Store::Cached };
        self.reducer.fold(&[target], &views, self.finish);
        result
    }
}

#[track_caller]
fn same(what: &str, size: usize, found: &[u8], expected: &[u8], sources: &[Vec<u8>]) {
    let differs =
        found.chunks(size).zip(expected.chunks(size)).position(|(found, expected)| found != expected);
    if let Some(at) = differs {
        let element = |of: &[u8]| of[at * size..][..size].to_vec();
        let of: Vec<Vec<u8>> = sources.iter().map(|source| element(source)).collect();
        let (found, expected) = (element(found), element(expected));
        panic!("{what}, element {at}: {of:x?} give {found:x?}, not {expected:x?}");
    }
}

#[test]
fn device_folds_have_the_bits_of_the_host() {
    let Some(device) = Device::any() else { return };
    let mut random = Random::announced("folds on devices");
    for data_type in DataType::ALL {
        let size = data_type.size();
        for op in ReduceOp::ALL {
            for round in 0..6 {
                let count = 1 + random.below(8);
                let reducer = Reducer::new(data_type, op, count as u32);
                let case = Case {
                    reducer: &reducer,
                    raw: if reducer.scales() { random.draw() as u32 & 0xff } else { 0 },
                    finish: reducer.divides() && round != 1,
                };
                let elements = if round == 5 { 20_000 } else { 1 + random.below(700) };
                let sources: Vec<Vec<u8>> = (0..count).map(|_| random.elements(elements, size)).collect();
                let skew = random.below(16);
                // All at one alignment, each at its own that suits elements, and each at any.
                let skews: Vec<usize> = (0..=count)
                    .map(|_| match round {
                        0 | 1 => skew,
                        2 | 3 => random.below(16) / size * size,
                        _ => random.below(16),
                    })
                    .collect();
                let found = device.fold(&case, &sources, &skews, 1 + random.below(8) as u32);
                let what = format!("{op:?} of {count} {data_type}, round {round}");
                same(&what, size, &found, &case.host(&sources), &sources);
            }
        }
    }
}

/// All pairs of 8-bit floats; of 16-bit floats all values with some partners.
#[test]
fn device_folds_of_narrow_floats_have_the_bits_of_the_host_for_all_values() {
    let Some(device) = Device::any() else { return };
    let mut random = Random::announced("folds on devices");
    for data_type in [DataType::Float16, DataType::Bfloat16, DataType::Float8E4m3, DataType::Float8E5m2] {
        let size = data_type.size();
        let values: Vec<u8> = match size {
            1 => (0..=u16::MAX).map(|pair| pair as u8).collect(),
            _ => (0..=u16::MAX).flat_map(u16::to_le_bytes).collect(),
        };
        for op in ReduceOp::ALL {
            for _ in 0..if size == 1 { 1 } else { 3 } {
                let other = match size {
                    1 => (0..=u16::MAX).map(|pair| (pair >> 8) as u8).collect(),
                    _ => random.elements(values.len() / size, size),
                };
                let sources = vec![values.clone(), other];
                let reducer = Reducer::new(data_type, op, 2);
                let raw = if reducer.scales() { 3 } else { 0 };
                let case = Case { reducer: &reducer, raw, finish: reducer.divides() };
                let found = device.fold(&case, &sources, &[0; 3], 16);
                let what = format!("{op:?} of all {data_type}");
                same(&what, size, &found, &case.host(&sources), &sources);
            }
        }
    }
}
