//! The stand-in for the CUDA driver (`standins/cuda`), where the loader of a program finds it.
//!
//! Invariant: it is the library that cargo has built beside the test that runs, under the names of NVIDIA's driver;
//! only a process with its directory in `LD_LIBRARY_PATH` finds it. Absent: its settings;
//! `standins/cuda/src/settings.rs` has the variables.

use std::path::PathBuf;
use std::sync::OnceLock;

use crate::compiler::linked_as;

/// `libcuda.so` as cargo has built it: beside the test that runs.
///
/// # Panics
/// If it is not there.
pub fn standin_library() -> PathBuf {
    built().unwrap_or_else(|| panic!("no libcuda.so beside this test"))
}

/// Whether it was built beside the test that runs. A test on another machine does not have it.
pub fn is_built() -> bool {
    built().is_some()
}

fn built() -> Option<PathBuf> {
    let program = std::env::current_exe().expect("this program");
    // A test is in `deps`, a program of the package one up.
    let beside = [program.with_file_name("libcuda.so"), program.with_file_name("deps").join("libcuda.so")];
    beside.into_iter().find(|path| path.exists())
}

/// A directory in which it is `libcuda.so.1` and `libcuda.so`, for `LD_LIBRARY_PATH`.
///
/// # Panics
/// If it cannot be made.
pub fn standin_cuda_dir() -> PathBuf {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    PLACE
        .get_or_init(|| linked_as(&standin_library(), "standin-cuda", ["libcuda.so", "libcuda.so.1"]))
        .clone()
}
