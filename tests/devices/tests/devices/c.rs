//! Communicators on devices in the C interface, by a C program (`tests/c/device.c`) on the stand-in driver
//! (`standins/cuda`). The results hold for this library's own code; they show nothing about NVIDIA's driver or
//! devices.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use consort_tests::compiler::{self, STRICT, has, linked, root, succeeds};
use consort_tests::job::alone;
use consort_tests::standin::standin_cuda_dir;

/// The program, compiled once; `None` without a compiler.
fn built() -> Option<&'static PathBuf> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let compile = || {
        if !has("cc") {
            return None;
        }
        let program = compiler::library_directory().join("device");
        let mut command = Command::new("cc");
        command.arg("-std=c99").args(STRICT).arg("-I").arg(root().join("include"));
        command.arg(root().join("tests/c/device.c")).arg("-o").arg(&program);
        succeeds(command.args(linked()).args(["-lpthread", "-ldl"]));
        let mut runtime = Command::new("cc");
        runtime
            .arg("-std=c99")
            .args(STRICT)
            .args(["-shared", "-fPIC"])
            .arg(root().join("tests/c/libcudart.c"));
        succeeds(runtime.arg("-o").arg(compiler::library_directory().join("libcudart.so.12")));
        Some(program)
    };
    BUILT.get_or_init(compile).as_ref()
}

/// The place of the ranks, the path that they ask for and the one that they must take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    ranks: u32,
    pub(crate) mode: &'static str,
    devices: u32,
    named: &'static str,
    taken: &'static str,
}

const fn way(ranks: u32, mode: &'static str, devices: u32, named: &'static str, taken: &'static str) -> Way {
    Way { ranks, mode, devices, named, taken }
}

/// Threads that share a device.
pub(crate) const FUSED: Way = way(3, "threads", 1, "auto", "fused");
/// Processes that share a device.
pub(crate) const STREAMS: Way = way(3, "processes", 1, "auto", "streams");
/// Ranks with a device each.
pub(crate) const KERNELS: Way = way(2, "processes", 2, "auto", "kernels");
/// The same in one process.
const TOGETHER: Way = way(2, "threads", 2, "auto", "kernels");
/// Any ranks, through the host.
const HOST: Way = way(3, "processes", 1, "host", "host");
/// The same in one process, where calls wait for the host.
const HOST_THREADS: Way = way(3, "threads", 1, "host", "host");

/// One way of each path.
const PATHS: [Way; 4] = [FUSED, STREAMS, KERNELS, HOST];

impl Way {
    pub(crate) const fn of(self, ranks: u32) -> Way {
        Way { ranks, ..self }
    }

    /// Runs a part of the program to its end, and checks that the path was taken.
    #[track_caller]
    fn passes(self, part: &str) {
        let _alone = alone();
        self.runs(part, "", &[]);
    }

    /// The same beside other runs, which have other names.
    #[track_caller]
    fn runs(self, part: &str, name: &str, settings: &[(&str, &str)]) {
        self.says(part, name, settings);
    }

    /// The same; returns its output, with the library's log at level INFO. `None` without a compiler.
    #[track_caller]
    pub(crate) fn says(self, part: &str, name: &str, settings: &[(&str, &str)]) -> Option<String> {
        let (text, _) = self.ends(part, name, settings)?;
        let path = format!(", {} path", self.taken);
        assert!(text.contains(&path), "{part} {self:?}: no{path} in {text}");
        Some(text)
    }

    /// Runs a part with these variables to a successful end; returns its output, and the calls of the stand-in.
    /// `None` without a compiler.
    #[track_caller]
    fn ends(self, part: &str, name: &str, variables: &[(&str, &str)]) -> Option<(String, String)> {
        let mut command = compiler::program(built()?);
        let ours = ["CONSORT_", "NCCL_", "CUDA_"];
        for (name, _) in std::env::vars().filter(|(name, _)| ours.iter().any(|ours| name.starts_with(ours))) {
            command.env_remove(name);
        }
        // The stand-in runs one at a time of all processes that have this directory, also of other tests.
        let turns = std::env::temp_dir().join(format!("consort-c-devices-{}{name}", std::process::id()));
        std::fs::create_dir_all(&turns).expect("a directory");
        let log = turns.join("log");
        let _ = std::fs::remove_file(&log);
        let places = std::env::join_paths([standin_cuda_dir(), compiler::library_directory()]);
        command.env("LD_LIBRARY_PATH", places.expect("no colon in them"));
        command.env("TMPDIR", turns).env("CONSORT_STANDIN_LOG", &log);
        command.env("CONSORT_STANDIN_QUIET", "1").env("CONSORT_STANDIN_DEVICES", self.devices.to_string());
        command.env("CONSORT_DEVICE_PATH", self.named).env("NCCL_DEBUG", "INFO");
        command.envs(variables.iter().copied());
        println!("{part} {self:?} {variables:?}");
        let text = succeeds(command.args([part, &self.ranks.to_string(), self.mode]));
        assert!(text.ends_with("end\n"), "{text}");
        Some((text, std::fs::read_to_string(log).unwrap_or_default()))
    }
}

#[test]
fn every_call_of_threads() {
    for way in [FUSED.of(1), FUSED.of(2), FUSED.of(4), TOGETHER, HOST_THREADS.of(2)] {
        way.passes("collectives");
    }
}

#[test]
fn every_call_of_processes() {
    for way in [STREAMS.of(2), STREAMS.of(4), KERNELS, HOST.of(2)] {
        way.passes("collectives");
    }
}

#[test]
fn every_call_of_one_thread_with_all_ranks() {
    for way in [FUSED.of(1), FUSED.of(2), FUSED.of(4), TOGETHER, way(4, "threads", 2, "auto", "host")] {
        way.passes("together");
    }
}

#[test]
fn sums_of_two_communicators_that_each_fill_a_device() {
    let _alone = alone();
    let full = [("CONSORT_STANDIN_BLOCKS_MAX", "4"), ("NCCL_MIN_CTAS", "4"), ("CONSORT_TIMEOUT", "20")];
    TOGETHER.runs("crowded", "", &full);
    let queue = [&full[..], &[("CUDA_DEVICE_MAX_CONNECTIONS", "1")]].concat();
    KERNELS.runs("crowded", "", &queue);
}

#[test]
fn the_default_stream() {
    PATHS.into_iter().for_each(|way| way.of(2).passes("default-stream"));
}

#[test]
fn memory_of_every_kind_and_what_does_not_go_together() {
    [FUSED, STREAMS, KERNELS, HOST.of(2), TOGETHER].into_iter().for_each(|way| way.passes("memories"));
}

#[test]
fn messages_around_a_ring() {
    [FUSED, STREAMS, KERNELS, TOGETHER].into_iter().for_each(|way| way.passes("rings"));
}

#[test]
fn messages_around_a_ring_that_are_received_first() {
    FUSED.passes("backward-rings");
}

#[test]
fn messages_around_a_ring_that_are_received_first_from_other_devices() {
    [STREAMS, KERNELS, TOGETHER].into_iter().for_each(|way| way.passes("backward-rings"));
}

#[test]
fn messages_around_a_ring_through_the_host() {
    for way in [HOST, HOST_THREADS] {
        way.passes("rings");
        way.passes("backward-rings");
    }
    HOST.passes("memories");
    HOST.of(4).passes("collectives");
}

#[test]
fn factors_of_the_host_and_of_devices() {
    PATHS.into_iter().chain([TOGETHER, HOST_THREADS]).for_each(|way| way.passes("scalars"));
}

#[test]
fn what_comes_of_a_communicator_is_on_devices() {
    let apart = way(4, "processes", 4, "auto", "kernels");
    [FUSED.of(4), STREAMS.of(4), HOST.of(4), apart].into_iter().for_each(|way| way.passes("children"));
}

#[test]
fn communicators_that_do_not_block() {
    PATHS.into_iter().chain([HOST_THREADS]).for_each(|way| way.passes("polled"));
}

#[test]
fn counts_that_differ_are_an_error_on_all_ranks() {
    for way in [FUSED, KERNELS, HOST, TOGETHER] {
        way.passes("mismatch");
    }
    for way in [FUSED, HOST] {
        way.passes("long-mismatch");
    }
}

#[test]
fn counts_that_differ_are_an_error_on_all_ranks_whose_streams_wait() {
    STREAMS.passes("mismatch");
    STREAMS.passes("long-mismatch");
    KERNELS.passes("long-mismatch");
    TOGETHER.passes("long-mismatch");
}

#[test]
fn a_killed_rank_is_reported_and_streams_go_on() {
    let three = way(3, "processes", 3, "auto", "kernels");
    [STREAMS, three, HOST].into_iter().for_each(|way| way.passes("killed"));
}

#[test]
fn an_abort_lets_streams_go_on() {
    [STREAMS, KERNELS].into_iter().for_each(|way| way.of(2).passes("aborted"));
}

#[test]
fn an_abort_lets_streams_go_on_through_the_host() {
    HOST.of(2).passes("aborted");
}

#[test]
fn an_abort_ends_a_call_that_waits_for_ranks_of_its_process() {
    [FUSED, HOST_THREADS].into_iter().for_each(|way| way.of(2).passes("aborted-by-another"));
}

#[test]
fn a_deadline_ends_what_waits() {
    let _alone = alone();
    // They wait side by side, without turns.
    std::thread::scope(|threads| {
        for (at, way) in PATHS.into_iter().chain([TOGETHER]).enumerate() {
            threads.spawn(move || way.runs("deadline", &format!("-{at}"), &[]));
        }
    });
}

#[test]
fn what_is_in_a_stream_is_done_when_its_communicator_goes() {
    PATHS.into_iter().chain([TOGETHER, HOST_THREADS]).for_each(|way| way.passes("destroyed"));
}

#[test]
fn fifty_communicators_leave_nothing() {
    [FUSED, STREAMS, HOST].into_iter().for_each(|way| way.of(2).passes("rounds"));
    [FUSED, HOST].into_iter().for_each(|way| way.of(2).passes("aborted-rounds"));
}

#[test]
fn fifty_communicators_leave_nothing_where_ranks_map_memory() {
    KERNELS.passes("rounds");
    KERNELS.passes("aborted-rounds");
    STREAMS.of(2).passes("aborted-rounds");
}

#[test]
fn a_rank_without_a_buffer_goes_with_the_others() {
    PATHS.into_iter().for_each(|way| way.passes("nothing"));
}

#[test]
fn captures_of_other_streams_end_valid() {
    PATHS.into_iter().chain([TOGETHER, HOST_THREADS]).for_each(|way| way.passes("captured"));
}

#[test]
fn a_call_in_a_captured_stream_is_refused_and_the_capture_ends_valid() {
    PATHS.into_iter().chain([TOGETHER]).for_each(|way| way.passes("captured-itself"));
}

#[test]
fn one_rank_has_copies_that_nothing_watches() {
    FUSED.of(1).passes("rank-alone");
}

#[test]
fn a_capture_while_the_device_is_watched_ends_valid() {
    [STREAMS, KERNELS, TOGETHER].into_iter().for_each(|way| way.passes("captured-long"));
}

/// Whether a thread without a context makes a communicator of one rank on a device; returns the calls of the driver.
#[track_caller]
fn on_fresh_thread(part: &str, runtime: &[(&str, &str)], is_on_device: bool) -> String {
    let _alone = alone();
    let Some((text, calls)) = way(1, "threads", 2, "auto", "").ends(part, "", runtime) else {
        return String::new();
    };
    assert_eq!(text.contains(", fused path"), is_on_device, "{text}");
    calls
}

#[test]
fn a_thread_without_a_context_has_the_device_that_the_program_uses() {
    on_fresh_thread("fresh-thread", &[], true);
    on_fresh_thread("runtime-says-1", &[("PRETEND_CUDART_DEVICE", "1")], true);
}

#[test]
fn a_program_that_uses_no_device_is_given_no_context() {
    for (part, device) in [("untouched", ""), ("runtime-says-0", "0")] {
        let calls = on_fresh_thread(part, &[("PRETEND_CUDART_DEVICE", device)], false);
        assert!(!calls.contains("cuDevicePrimaryCtxRetain"), "{part}: {calls}");
    }
}
