//! Machine code: that of consort is taken, and its text runs; every other is refused. And what its kernels need of a device.

use std::ffi::{CString, c_void};

use miniz_oxide::inflate::decompress_to_vec_zlib;

use crate::support::{alone, function, pinned, start};

const NO_BINARY: u32 = 209;
const INVALID_VALUE: u32 = 1;
const MANIFEST: &str = include_str!("../../../../kernels/cuda/images/manifest.txt");

/// A committed image.
fn image(name: &str) -> Vec<u8> {
    let place = format!("{}/../../kernels/cuda/images/{name}.z", env!("CARGO_MANIFEST_DIR"));
    decompress_to_vec_zlib(&std::fs::read(place).expect("an image")).expect("a whole image")
}

/// Loads an image; the result and the module.
fn load(image: &[u8]) -> (u32, u64) {
    let mut module = 0;
    (cu!(cuModuleLoadData(&mut module => *mut u64, image.as_ptr() => *const u8)), module)
}

fn names(end: &str) -> Vec<&'static str> {
    let images = MANIFEST.lines().filter_map(|line| line.strip_prefix("image ")?.split(' ').next());
    let names: Vec<_> = images.filter(|name| name.ends_with(end)).collect();
    assert_eq!(names.len(), 13, "{end}");
    names
}

/// Registers that the manifest has for a kernel.
fn registers(kernel: &str) -> i32 {
    let start = format!("kernel {kernel} sm_80 registers ");
    let line = MANIFEST.lines().find_map(|line| line.strip_prefix(&*start)).expect("a kernel");
    line.split(' ').next().and_then(|count| count.parse().ok()).expect("a number")
}

fn attribute(function: u64, number: u32) -> i32 {
    let mut value = 0;
    ok!(cuFuncGetAttribute(&mut value => *mut i32, number => u32, function => u64));
    value
}

fn occupancy(function: u64, threads: i32, shared: usize) -> i32 {
    let mut blocks = 0;
    ok!(cuOccupancyMaxActiveBlocksPerMultiprocessor(
        &mut blocks => *mut i32, function => u64, threads => i32, shared => usize
    ));
    blocks
}

#[test]
fn shipped_machine_code_is_taken() {
    alone(this_test!(), &[], || {
        start();
        for name in names(".sm_80.cubin") {
            let (result, module) = load(&image(name));
            assert_eq!(result, 0, "{name}");
            let of = name.split('.').next().expect("a type");
            let kernel =
                if of == "copy" { "consort_run_copy".into() } else { format!("consort_run_{of}_sum") };
            let function = function(module, &CString::new(kernel.clone()).expect("a name"));
            assert_eq!(attribute(function, 4), registers(&kernel), "{kernel}");
        }
    });
}

#[test]
fn other_machine_code_is_refused() {
    alone(this_test!(), &[], || {
        start();
        let whole = image("f32.sm_80.cubin");
        assert_eq!(load(&whole).0, 0);
        for at in [100, whole.len() / 2, whole.len() - 1] {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            assert_eq!(load(&changed).0, NO_BINARY, "byte {at}");
        }
        for end in [".sm_90.cubin", ".sm_100.cubin", ".sm_120.cubin"] {
            names(end).into_iter().for_each(|name| assert_eq!(load(&image(name)).0, NO_BINARY, "{name}"));
        }
    });
}

#[test]
fn machine_code_is_refused_when_asked() {
    alone(this_test!(), &[("CONSORT_STANDIN_BINARIES", "refuse")], || {
        start();
        names(".sm_80.cubin")
            .into_iter()
            .for_each(|name| assert_eq!(load(&image(name)).0, NO_BINARY, "{name}"));
        // The text is taken, and its kernels have the same registers.
        let text = [image("bf16.ptx"), vec![0]].concat();
        let (result, module) = load(&text);
        assert_eq!(result, 0);
        let run = function(module, c"consort_run_bf16_max");
        assert_eq!(attribute(run, 4), registers("consort_run_bf16_max"));
    });
}

#[test]
fn registers_bound_the_blocks_of_a_multiprocessor() {
    // As many blocks as a device of capability 8.0 has: 32 on each of 8 multiprocessors.
    alone(this_test!(), &[("CONSORT_STANDIN_BLOCKS_MAX", "256")], || {
        start();
        let run = function(load(&image("bf16.sm_80.cubin")).1, c"consort_run_bf16_max");
        for threads in [64, 256, 512] {
            let (blocks, each) = (occupancy(run, threads, 0), registers("consort_run_bf16_max"));
            assert!((1..=65536 / (threads * each)).contains(&blocks), "{blocks} of {threads} threads");
        }
        // 160 KiB are there once.
        assert_eq!(occupancy(run, 64, 160 << 10), 1);
        assert_eq!(occupancy(run, 64, 163 << 10), 0);
    });
}

#[test]
fn a_launch_gets_48_kib_with_its_static_shared_memory() {
    alone(this_test!(), &[], || {
        start();
        let run = function(load(&image("f32.sm_80.cubin")).1, c"consort_run_f32_sum");
        let of_its_own = attribute(run, 1);
        assert!(of_its_own > 0);
        let most = (48 << 10) - of_its_own;
        assert_eq!(attribute(run, 8), most);
        let words = pinned(8);
        let launched = |shared: i32| {
            let each = [&raw const words];
            cu!(cuLaunchKernel(
                run => u64, 1 => u32, 1 => u32, 1 => u32, 32 => u32, 1 => u32, 1 => u32, shared => i32,
                0 => u64, each.as_ptr() => *const *const u64, std::ptr::null() => *const c_void
            ))
        };
        assert_eq!(launched(most + 1), INVALID_VALUE);
        ok!(cuFuncSetAttribute(run => u64, 8 => u32, most + 1 => i32));
        // It is taken; its record has no programs, so it ends at once.
        assert_eq!(launched(most + 1), 0);
        ok!(cuCtxSynchronize());
    });
}
