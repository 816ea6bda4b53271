//! `--device cuda`, on the stand-in driver where cargo has built it (`standins/cuda`): what is shown is this program's
//! own, and times mean nothing.

use std::path::PathBuf;

use super::*;

/// A directory where the loader finds the stand-in; says so if cargo has not built it.
fn standin() -> Option<PathBuf> {
    let test = std::env::current_exe().expect("this test");
    let library = test.with_file_name("libcuda.so");
    if !library.exists() {
        let _ = std::io::Write::write_all(
            &mut std::io::stderr(),
            b"SKIP: no stand-in for the CUDA driver: cargo build -p consort-standin-cuda\n",
        );
        return None;
    }
    let place = file("standin");
    fs::create_dir_all(&place).expect("a directory");
    let link = place.join("libcuda.so.1");
    let _ = fs::remove_file(&link);
    std::os::unix::fs::symlink(library, link).expect("a link");
    Some(place)
}

/// Runs the program where the stand-in is the driver.
fn pretend(place: &std::path::Path, line: &str, files: &[&OsStr], more: &[(&str, &str)]) -> Outcome {
    let place = place.to_str().expect("text");
    // It takes turns with all processes that have the same place for files.
    let mut variables = vec![("LD_LIBRARY_PATH", place), ("TMPDIR", place), ("CONSORT_STANDIN_QUIET", "1")];
    variables.extend(more);
    start(line, files, &variables).end()
}

#[test]
fn buffers_on_devices_are_measured_and_checked() {
    let _alone = alone();
    let Some(place) = standin() else { return };
    for (line, path) in [
        ("allreduce --threads --ranks 3 -o all -u 1", "fused"),
        ("reduce --threads --ranks 3 -r -1 --path host", "host"),
        ("hypercube -t 4 -I", "fused"),
        ("alltoallv -g 3", "fused"),
        ("sendrecv -t 2 -g 2 --path host", "host"),
        ("reducescatterv --ranks 2 -z 1 --path host", "host"),
        ("broadcast --ranks 2", "streams"),
    ] {
        let line = format!("{line} --device cuda -b 64 -e 8K -f 128 -n 2");
        let outcome = pretend(&place, &line, &[], &[]).fine();
        let about = format!("path {path}\n");
        for part in
            ["# device: cuda, driver CUDA 12.8, ", &about, "several ranks share one", "TIMES MEAN NOTHING"]
        {
            assert!(outcome.out.contains(part), "{line}: '{part}' is missing:\n{}", outcome.out);
        }
        assert!(outcome.rows().len() >= 2, "{}", outcome.out);
    }
}

#[test]
fn ranks_take_devices_in_turn() {
    let _alone = alone();
    let Some(place) = standin() else { return };
    let (json, csv) = (file("devices.json"), file("devices.csv"));
    let files: Vec<&OsStr> = vec!["--json".as_ref(), json.as_ref(), "--csv".as_ref(), csv.as_ref()];
    let line = "allgather --device cuda --gpus 2,0 --path host --ranks 3 --size 4K -n 2";
    pretend(&place, line, &files, &[("CONSORT_STANDIN_DEVICES", "3")]).fine();
    let all: Value = serde_json::from_slice(&fs::read(&json).unwrap()).expect("JSON");
    let devices = all["config"]["devices"].as_array().expect("a list");
    assert_eq!(devices.iter().map(|device| &device["device"]).collect::<Vec<_>>(), [2, 0, 2]);
    let config = &all["config"];
    assert_eq!((&config["device"], &config["device_path"]), (&"cuda".into(), &"host".into()));
    assert_eq!((&config["times_mean_nothing"], &config["ngpus"]), (&"true".into(), &1.into()));
    assert_eq!(config["driver_cuda_version"], "12.8");
    let text = fs::read_to_string(&csv).unwrap();
    assert!(text.lines().nth(1).unwrap().ends_with(",cuda,host"), "{text}");
    fs::remove_file(json).unwrap();
    fs::remove_file(csv).unwrap();
    let outcome =
        pretend(&place, "allreduce --device cuda --size 4K", &[], &[("CONSORT_STANDIN_DEVICES", "3")]);
    assert!(outcome.fine().out.contains("# 3 ranks: as many as devices (3), at least 2\n"));
}

#[test]
fn wrong_elements_on_devices_are_found() {
    let _alone = alone();
    let Some(place) = standin() else { return };
    let line = "allreduce --device cuda --threads --ranks 2 --size 4K -n 2 --corrupt 1";
    pretend(&place, line, &[], &[]).expect(7).complains(&["1 wrong elements in the output"]);
}

#[test]
fn what_devices_cannot_do_is_said() {
    let _alone = alone();
    for (line, about) in [
        ("allreduce --path host", "--gpus and --path are for --device cuda"),
        ("allreduce --gpus 0", "--gpus and --path are for --device cuda"),
        ("allreduce --device tpu", "cuda"),
        ("allreduce --device cuda --path teleport", "fused"),
        ("allreduce --device cuda --algo ring", "an algorithm cannot be named"),
        ("allreduce --device cuda -g 2 --ranks 3", "ask for a multiple"),
        ("allreduce --device cuda -g 2 -t 2 --ranks 8", "not both"),
    ] {
        run(line).expect(6).complains(&[about]);
    }
    let Some(place) = standin() else { return };
    for (line, memory, about) in [
        (
            "allreduce --device cuda --gpus 1 --ranks 2",
            "1",
            "--gpus 1: there is no such device; the driver has 1",
        ),
        ("allreduce --device cuda --ranks 2 --path fused --size 8", "1000000000", "cannot take"),
        ("allreduce --device cuda --ranks 2 --size 64M", "100000000", "CUDA_ERROR_OUT_OF_MEMORY"),
        ("allreduce --device cuda -t 2 --size 64M", "100000000", "could not be had"),
    ] {
        let outcome = pretend(&place, line, &[], &[("CONSORT_STANDIN_MEMORY", memory)]);
        outcome.expect(6).complains(&[about]);
    }
}

#[test]
fn without_a_driver_there_are_no_devices() {
    let _alone = alone();
    let outcome = run("allreduce --device cuda --size 8 --ranks 2");
    if outcome.code == Some(0) {
        let _ = std::io::Write::write_all(&mut std::io::stderr(), b"SKIP: there is a CUDA driver here\n");
        return;
    }
    outcome.expect(6).complains(&["looking for the CUDA driver"]);
}
