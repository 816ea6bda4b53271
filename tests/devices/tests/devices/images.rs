//! The images of kernels that the library loads, by its log at level INFO, and its warning when the driver refuses
//! one; on the stand-in driver, which takes the machine code that consort ships.

use std::collections::{BTreeMap, BTreeSet};

use consort_cuda::Context;
use consort_kernels::cuda::{Form, Kernels, RUN_SHARED_BYTES_MAX, RunShape, Table, layout};
use consort_tests::job::alone;
use consort_tests::own_process::in_own_process;
use consort_tests::standin::standin_cuda_dir;

use crate::c::{FUSED, KERNELS, STREAMS, Way};

/// Every type, and the copies.
const TYPES: usize = 13;

/// How often each image is loaded, by `device (process)`: from lines as
/// `host:pid:tid NCCL INFO f32.sm_80.cubin is on device 0 (...): machine code, 1.0 ms`.
fn loaded(text: &str) -> BTreeMap<(String, String), usize> {
    let mut loaded = BTreeMap::new();
    for line in text.lines() {
        let Some((start, said)) = line.split_once(" NCCL INFO ") else { continue };
        let Some((name, place)) = said.split_once(" is on device ") else { continue };
        let process = start.split(':').nth(1).expect("a process");
        let device = place.split(' ').next().expect("a device");
        *loaded.entry((name.to_owned(), format!("{device} {process}"))).or_default() += 1;
        let form = if name.ends_with(".cubin") {
            "): machine code, "
        } else {
            "): text that the driver has compiled, "
        };
        assert!(place.contains(form), "{line}");
    }
    loaded
}

/// Runs every collective; returns the lines of the log about images.
fn collectives(way: Way, variables: &[(&str, &str)]) -> Option<String> {
    let _alone = alone();
    way.says("collectives", "", variables)
}

#[test]
fn machine_code_is_what_runs() {
    for way in [FUSED.of(2), STREAMS.of(2), KERNELS] {
        let Some(text) = collectives(way, &[]) else { return };
        let loaded = loaded(&text);
        assert!(loaded.keys().all(|(name, _)| name.ends_with(".sm_80.cubin")), "{way:?}: {loaded:?}");
        assert!(loaded.values().all(|times| *times == 1), "{way:?}: {loaded:?}");
        let places: BTreeSet<&String> = loaded.keys().map(|(_, place)| place).collect();
        // Ranks that wait for each other have all types before the first call, others the types of their calls.
        let is_whole = loaded.len() == TYPES * places.len();
        assert!(is_whole || way.mode == "threads" && !loaded.is_empty(), "{way:?}: {loaded:?}");
        assert!(!text.contains("does not take the machine code"), "{text}");
    }
}

#[test]
fn machine_code_that_is_refused_is_a_warning() {
    for way in [FUSED.of(2), STREAMS.of(2), KERNELS] {
        let Some(text) = collectives(way, &[("CONSORT_STANDIN_BINARIES", "refuse")]) else { return };
        let loaded = loaded(&text);
        assert!(!loaded.is_empty(), "{text}");
        for ((name, place), times) in &loaded {
            let stem = name.strip_suffix(".ptx").unwrap_or_else(|| panic!("{way:?}: {loaded:?}"));
            assert_eq!(*times, 1, "{way:?}: {loaded:?}");
            let (device, process) = place.split_once(' ').expect("a process");
            let of = format!("the driver of device {device} (");
            let refused = format!(
                "does not take the machine code {stem}.sm_80.cubin: cuModuleLoadDataEx: CUDA_ERROR_NO_BINARY_FOR_GPU (209). It \
                 compiles {name} instead, which takes seconds"
            );
            let is_it = |line: &&str| {
                line.contains(&format!(":{process}:")) && line.contains(&of) && line.contains(&refused)
            };
            let lines: Vec<&str> = text.lines().filter(is_it).collect();
            assert!(
                lines.len() == 1 && lines[0].contains(" NCCL WARN "),
                "{way:?}, {name}: {lines:?} in {text}"
            );
        }
    }
}

/// A driver that takes no machine code compiles the types of calls, not all types when a communicator is made.
#[test]
fn machine_code_that_is_refused_is_not_compiled_for_all_types() {
    for way in [STREAMS.of(2), KERNELS] {
        let _alone = alone();
        let refused = [("CONSORT_STANDIN_BINARIES", "refuse")];
        let Some(text) = way.says("default-stream", "", &refused) else { return };
        let loaded = loaded(&text);
        let places: BTreeSet<&String> = loaded.keys().map(|(_, place)| place).collect();
        assert!(!loaded.is_empty() && loaded.len() < TYPES * places.len(), "{way:?}: {loaded:?}");
    }
}

#[test]
fn images_are_listed_and_records_of_all_lengths_launched() {
    let name = "images::images_are_listed_and_records_of_all_lengths_launched";
    let place = standin_cuda_dir().display().to_string();
    in_own_process(name, &[("LD_LIBRARY_PATH", place.as_str())], || {
        let context = Context::primary(0).expect("the context of device 0");
        let kernels = Kernels::new(&context, |_, _| ());
        let images = || kernels.images().iter().map(|image| (image.name, image.form)).collect::<Vec<_>>();
        assert_eq!(images(), []);
        let (stream, table) = (context.create_stream().expect("a stream"), Table::new(&context, 4096));
        let table = table.expect("a table");
        // Without programs the kernel ends at once.
        table.write(0, &[layout::Launch::default()]);
        // The kernel also has static shared memory; together they need no more than every launch may have.
        for shared_bytes in [0, RUN_SHARED_BYTES_MAX - 8, RUN_SHARED_BYTES_MAX] {
            let shape = RunShape { blocks: 1, threads: 32, shared_bytes };
            let _entered = context.enter().expect("the context");
            let launched = kernels.run(&stream, None, table.device_span(), shape);
            launched.unwrap_or_else(|error| panic!("{shared_bytes} bytes: {error}"));
            stream.synchronize().expect("the kernel's end");
        }
        assert_eq!(images(), [("copy.sm_80.cubin", Form::Binary)]);
    });
}
