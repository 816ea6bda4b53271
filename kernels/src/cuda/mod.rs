//! The kernels of GPUs, as the host sees them: their launch records (`layout`), their images (`images`), how these
//! get into a context (`loading`), their names, their launch.
//!
//! Invariant: a device fold writes the bytes that [`crate::Reducer::fold`] would, whatever the number of blocks and
//! threads. The images were made of the sources in `kernels/cuda` by `kernels/cuda/generate`; a test compares hashes.
//!
//! Absent: which spans are folded, and when.

use std::ffi::CStr;

use crate::{DataType, ReduceOp};

mod images;
mod launch;
pub mod layout;
mod loading;

pub use images::{Damaged, Form, Image, image, ptx};
pub use launch::{End, FoldJob, Kernels, RunShape, Table, Types, one_shot_blocks, threads_for};
pub use loading::{Listener, Loaded, Loading};

/// The oldest devices that an image runs on, as major and minor compute capability.
pub const MIN_CAPABILITY: (u32, u32) = (8, 0);
/// The most threads of a block; a multiple of [`WARP_THREADS`].
pub const MAX_BLOCK_THREADS: u32 = 512;
/// The number of threads of a block is a multiple of this.
pub const WARP_THREADS: u32 = 32;

/// The most bytes of static shared memory of a kernel. A launch may use 48 KiB in all without asking the driver for
/// more.
pub const STATIC_SHARED_BYTES_MAX: u32 = 1 << 10;
/// The most dynamic shared memory of a block of [`Kernel::Run`], in bytes, without asking the driver for more.
pub const RUN_SHARED_BYTES_MAX: u32 = (48 << 10) - STATIC_SHARED_BYTES_MAX;

/// Dynamic shared memory, in bytes, that a launch of [`Kernel::Run`] needs: the largest of its programs'.
pub const fn run_shared_bytes(record_bytes: u32, counter_count: u32) -> u32 {
    record_bytes + 8 * counter_count
}

/// What a kernel does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// Jobs without waits; its parameter is a [`layout::Folds`].
    Fold,
    /// The interpreter of plans; its parameter is the address of a [`layout::Launch`].
    Run,
    /// All-reduce in packets; its parameter is a [`layout::OneShot`].
    OneShot,
    /// All-reduce over mapped memory; its parameter is a [`layout::TwoShot`].
    TwoShot,
}

impl Kernel {
    /// All of them.
    pub const ALL: [Kernel; 4] = [Kernel::Fold, Kernel::Run, Kernel::OneShot, Kernel::TwoShot];
}

macro_rules! names {
    ($($data_type:literal),*) => {
        [$(names!(@kinds $data_type)),*]
    };
    (@kinds $data_type:literal) => {
        [
            names!(@ops "fold", $data_type),
            names!(@ops "run", $data_type),
            names!(@ops "oneshot", $data_type),
            names!(@ops "twoshot", $data_type),
        ]
    };
    (@ops $kind:literal, $data_type:literal) => {
        [
            name(concat!("consort_", $kind, "_", $data_type, "_sum\0")),
            name(concat!("consort_", $kind, "_", $data_type, "_prod\0")),
            name(concat!("consort_", $kind, "_", $data_type, "_max\0")),
            name(concat!("consort_", $kind, "_", $data_type, "_min\0")),
        ]
    };
}

const fn name(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name ends in one zero byte"),
    }
}

/// By type, kernel and operator.
static NAMES: [[[&CStr; 4]; 4]; 12] =
    names!("i8", "u8", "i32", "u32", "i64", "u64", "f16", "f32", "f64", "bf16", "f8e4m3", "f8e5m2");

/// The name of a kernel in [`image`]. The mean has the names of the sum: it is a sum of raw contributions, or a sum
/// whose fold finishes.
pub fn function_name(kernel: Kernel, data_type: DataType, op: ReduceOp) -> &'static CStr {
    let op = if op == ReduceOp::Avg { ReduceOp::Sum } else { op };
    NAMES[data_type.code() as usize][kernel as usize][op.code() as usize]
}

/// The name of the interpreter in the image of the kernels that only copy.
pub const RUN_COPY: &CStr = c"consort_run_copy";
/// The name of the fold kernel in the image of the kernels that only copy: every target gets the first source.
pub const FOLD_COPY: &CStr = c"consort_fold_copy";
