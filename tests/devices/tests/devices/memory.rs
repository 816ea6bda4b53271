//! Device memory and communicators on host memory in the C interface, which a CUDA driver distinguishes: a pretend
//! one (`tests/c/libcuda.c`), which has no contexts. It shows how this library uses a driver's answers, and nothing
//! about NVIDIA's. One test asks the stand-in with contexts that are not current, and NVIDIA's own where it is
//! installed. `c` has communicators on devices.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use consort_tests::compiler::{self, STRICT, has, linked, root, succeeds};
use consort_tests::standin::standin_cuda_dir;
use consort_tests::system::skip;

/// The driver of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Driver {
    /// The one that the loader finds by itself.
    Systems,
    Pretend,
    /// The one whose devices are host memory.
    StandIn,
}

fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("device-memory").join(name)
}

/// The C program and the directory with the pretend driver, compiled once; `None` without a compiler.
fn built() -> Option<&'static (PathBuf, PathBuf)> {
    static BUILT: OnceLock<Option<(PathBuf, PathBuf)>> = OnceLock::new();
    let compile = || {
        if !has("cc") {
            return None;
        }
        let (program, place) = (scratch("program"), scratch("driver"));
        std::fs::create_dir_all(&place).expect("a directory");
        let sources = root().join("tests/c");
        let mut command = Command::new("cc");
        command.arg("-std=c99").args(STRICT).args(["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]);
        succeeds(command.arg(sources.join("libcuda.c")).arg("-o").arg(place.join("libcuda.so.1")));
        let mut command = Command::new("cc");
        command.arg("-std=c99").args(STRICT).arg("-I").arg(root().join("include"));
        command.arg(sources.join("device_memory.c")).arg("-o").arg(&program);
        succeeds(command.args(linked()).arg("-ldl"));
        Some((program, place))
    };
    BUILT.get_or_init(compile).as_ref()
}

/// The output of a part of the program, and its calls of the pretend driver.
struct Seen {
    text: String,
    calls: String,
}

/// Runs a part of the program with these variables; `name` belongs to this run alone.
fn run(name: &str, part: &str, driver: Driver, variables: &[(&str, &str)]) -> Option<Seen> {
    let (program, place) = built()?;
    let log = scratch(name).with_extension("calls");
    let _ = std::fs::remove_file(&log);
    let mut command = compiler::program(program);
    let ours = ["CONSORT_", "NCCL_", "PRETEND_", "CUDA_"];
    for (name, _) in std::env::vars().filter(|(name, _)| ours.iter().any(|ours| name.starts_with(ours))) {
        command.env_remove(name);
    }
    match driver {
        Driver::Systems => {}
        Driver::Pretend => drop(command.env("LD_LIBRARY_PATH", place)),
        Driver::StandIn => {
            // It runs one at a time of all processes that have this directory.
            let turns = scratch(name).with_extension("turns");
            std::fs::create_dir_all(&turns).expect("a directory");
            command.env("LD_LIBRARY_PATH", standin_cuda_dir()).env("TMPDIR", turns);
            command.env("CONSORT_STANDIN_QUIET", "1");
        }
    }
    command.env("PRETEND_CUDA_LOG", &log).env("NCCL_DEBUG", "INFO").env("CONSORT_TIMEOUT", "60");
    let text = succeeds(command.arg(part).envs(variables.iter().copied()));
    let calls = std::fs::read_to_string(&log).unwrap_or_default();
    println!("{text}\n{calls}");
    assert!(text.ends_with("end\n"));
    Some(Seen { text, calls })
}

impl Seen {
    /// The result and the text of a call.
    #[track_caller]
    fn result_of(&self, what: &str) -> (&str, &str) {
        let found = self.text.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(' '));
        let (result, text) =
            found.and_then(|found| found.split_once(' ')).unwrap_or_else(|| panic!("no {what:?}"));
        (result, text)
    }

    /// Asserts that the call was refused as wrong usage, with all of these texts.
    #[track_caller]
    fn refused(&self, what: &str, parts: &[&str]) {
        let (result, text) = self.result_of(what);
        assert_eq!(result, "5", "{what}: {text}");
        let always =
            ["device memory, and the communicator is on host memory; ", "cudaSetDevice", "pass host memory"];
        for part in parts.iter().chain(&always) {
            assert!(text.contains(part), "{what}: no {part:?} in {text:?}");
        }
    }

    /// The log's lines about the driver, once, before any line about a communicator.
    #[track_caller]
    fn mode(&self) -> &str {
        let is_mode = |line: &'_ str| {
            ["host memory: no ", "host memory: CONSORT", "CUDA "].iter().any(|start| line.starts_with(start))
        };
        let lines = self.text.lines().filter_map(|line| Some(line.split_once("NCCL INFO ")?.1));
        let mut modes = lines.filter(|line| is_mode(line));
        let mode = modes.next().expect("a line about the mode");
        assert_eq!(modes.next(), None, "it is printed once");
        mode.strip_prefix("host memory: ").unwrap_or(mode)
    }
}

/// The results that every driver, real or not, must lead to.
fn pointers_are_distinguished(seen: &Seen) {
    let places: Vec<&str> =
        seen.text.lines().find_map(|line| line.strip_prefix("device ")).expect("places").split(' ').collect();
    let [device, _, other, _, host] = places[..] else { panic!("{places:?}") };
    let send = format!("the send buffer at {device} is device memory");
    let receive = format!("the receive buffer at {device} is device memory");
    let two = format!("the send buffer at {device} and the receive buffer at {other} are device memory");
    seen.refused("fresh", &["ncclAllReduce on rank 0 of 1: ", &two]);
    seen.refused("in-place", &["are device memory"]);
    seen.refused("send-only", &[&send]);
    seen.refused("receive-only", &[&receive]);
    for what in ["send-only", "receive-only"] {
        let (_, text) = seen.result_of(what);
        assert!(
            !text.contains(host) && !text.contains(" and the receive buffer"),
            "the other is as it should be"
        );
    }
    for what in ["after-nothing", "after-host", "foreign-stream"] {
        seen.refused(what, &[&two]);
    }
    let (result, text) = seen.result_of("scalar-now");
    assert_eq!(result, "4", "{text}");
    for part in ["ncclRedOpCreatePreMulSum", "the scalar at ", "is device memory", "pass ncclScalarDevice"] {
        assert!(text.contains(part), "{text}");
    }
    seen.refused("scalar-later", &["ncclAllReduce on rank 0 of 1: ", "the scalar is "]);
    seen.refused("send", &["ncclSend on rank 0 of 2: ", &send]);
    seen.refused("receive", &["ncclRecv on rank 1 of 2: ", &receive]);
}

#[test]
fn memory_of_a_device_is_refused_before_it_is_touched() {
    let Some(seen) = run("pointers", "pointers", Driver::Pretend, &[]) else { return };
    pointers_are_distinguished(&seen);
    assert_eq!(seen.mode(), "CUDA 12.4 driver with 2 devices");
    assert_eq!(seen.calls.lines().filter(|line| line.starts_with("cuInit ")).count(), 1);
}

#[test]
fn a_context_that_is_neither_current_nor_primary_makes_no_communicator_on_its_device() {
    let Some(seen) = run("stand-in", "pointers", Driver::StandIn, &[]) else { return };
    pointers_are_distinguished(&seen);
}

#[test]
fn nvidias_driver_tells_them_apart_too() {
    let Some(seen) = run("real", "present", Driver::Systems, &[]) else { return };
    if !seen.text.contains("starts 1") {
        skip("no CUDA driver with a device here: NVIDIA's own was not asked, only a pretend one");
        return;
    }
    let seen = run("real", "pointers", Driver::Systems, &[]).expect("as before");
    pointers_are_distinguished(&seen);
}

#[test]
fn a_refused_buffer_fails_its_group() {
    let Some(seen) = run("group", "group", Driver::Pretend, &[]) else { return };
    seen.refused("inside", &["ncclAllReduce on rank 0 of 1: ", "the send buffer at "]);
    seen.refused("end", &["ncclGroupEnd: ", "the send buffer at "]);
}

#[test]
fn a_driver_that_does_not_start_leaves_host_memory() {
    let cases = [
        (("PRETEND_CUDA_INIT", "100"), "no CUDA driver (cuInit: CUDA_ERROR_NO_DEVICE (100))"),
        (("PRETEND_CUDA_INIT", "999"), "no CUDA driver (cuInit: CUDA error 999)"),
        (("PRETEND_CUDA_DEVICES", "0"), "no CUDA driver (the driver has no devices)"),
    ];
    for (variable, mode) in cases {
        let Some(seen) = run("no-start", "host", Driver::Pretend, &[variable]) else { return };
        assert_eq!(seen.mode(), mode);
        assert!(
            seen.calls.contains("cuInit ") && !seen.calls.contains("cuPointerGetAttribute"),
            "{}",
            seen.calls
        );
    }
}

#[test]
fn a_library_that_is_no_driver_leaves_host_memory() {
    let Some((_, _)) = built() else { return };
    let (place, source) = (scratch("empty"), scratch("empty.c"));
    std::fs::create_dir_all(&place).expect("a directory");
    std::fs::write(&source, "int nothing;\n").expect("a source");
    let mut command = Command::new("cc");
    succeeds(command.args(["-shared", "-fPIC"]).arg(&source).arg("-o").arg(place.join("libcuda.so.1")));
    let path = place.display().to_string();
    let variables = [("LD_LIBRARY_PATH", path.as_str())];
    let seen = run("empty", "host", Driver::Systems, &variables).expect("as before");
    assert_eq!(seen.mode(), "no CUDA driver (libcuda.so.1 has no cuInit)");
}

#[test]
fn without_a_driver_there_is_host_memory() {
    let Some(seen) = run("absent", "present", Driver::Systems, &[]) else { return };
    if seen.text.contains("library 1") {
        skip("there is a CUDA driver here: not seen without");
        return;
    }
    let seen = run("absent", "host", Driver::Systems, &[]).expect("as before");
    assert!(seen.mode().starts_with("no CUDA driver (libcuda.so.1: "), "{}", seen.mode());
}

#[test]
fn who_says_host_is_believed() {
    let Some(seen) = run("told", "host", Driver::Pretend, &[("CONSORT_DEVICE", "host")]) else { return };
    assert_eq!((seen.calls.as_str(), seen.mode()), ("", "CONSORT_DEVICE is host"), "it was not even opened");
    let seen = run("auto", "host", Driver::Pretend, &[("CONSORT_DEVICE", "auto")]).expect("as before");
    assert!(seen.calls.starts_with("opened ") && seen.calls.contains("cuPointerGetAttribute"));
}

#[test]
fn a_mode_that_is_none_is_refused() {
    let cases = [
        ("gpu", "4", "CONSORT_DEVICE is \"gpu\"; it must be \"auto\", \"host\" or \"cuda\""),
        ("", "4", "CONSORT_DEVICE is \"\""),
    ];
    for (mode, code, part) in cases {
        let Some(seen) = run("mode", "init", Driver::Pretend, &[("CONSORT_DEVICE", mode)]) else { return };
        for what in ["init", "all"] {
            let (result, text) = seen.result_of(what);
            assert_eq!(result, code);
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(seen.calls, "", "the driver was not asked");
    }
}

#[test]
fn devices_that_are_demanded_must_be_there() {
    let cuda = ("CONSORT_DEVICE", "cuda");
    let cases = [
        // There is a driver, and it has no contexts.
        (cuda, "1", "cuda error: "),
        (
            ("PRETEND_CUDA_INIT", "100"),
            "5",
            "CONSORT_DEVICE is \"cuda\", and there is no CUDA driver (cuInit: ",
        ),
        (("PRETEND_CUDA_DEVICES", "0"), "5", "no CUDA driver (the driver has no devices); install"),
    ];
    for (variable, code, part) in cases {
        let Some(seen) = run("demanded", "init", Driver::Pretend, &[cuda, variable]) else { return };
        for what in ["init", "all"] {
            let (result, text) = seen.result_of(what);
            assert_eq!(result, code, "{text}");
            assert!(text.contains(part), "{text}");
        }
    }
}

#[test]
fn a_driver_that_cannot_say_is_no_leave_to_touch() {
    let broken = [("PRETEND_CUDA_POINTER", "700")];
    let Some(seen) = run("broken", "unknown", Driver::Pretend, &broken) else { return };
    let (result, text) = seen.result_of("unknown");
    assert_eq!(result, "1");
    for part in ["the send buffer at ", "CUDA_ERROR_ILLEGAL_ADDRESS (700)", "CONSORT_DEVICE=host"] {
        assert!(text.contains(part), "{text}");
    }
    // Its answer after it was shut down: no address is device memory any more.
    let ended = run("ended", "host", Driver::Pretend, &[("PRETEND_CUDA_POINTER", "4")]).expect("as before");
    assert!(ended.calls.contains("cuPointerGetAttribute"));
}

#[test]
fn a_forked_child_does_not_call_the_driver() {
    let Some(seen) = run("fork", "fork", Driver::Pretend, &[]) else { return };
    let line = seen.text.lines().find_map(|line| line.strip_prefix("child ")).expect("processes");
    let (child, parent) = line.split_once(" parent ").expect("both");
    let calls_of =
        |process: &str| seen.calls.lines().filter(|line| line.split(' ').nth(1) == Some(process)).count();
    assert!(calls_of(parent) > 3, "{}", seen.calls);
    assert_eq!(calls_of(child), 0, "{}", seen.calls);
}
