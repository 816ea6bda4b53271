//! The stand-in for the CUDA driver as the loader sees it, and as a program that looks for a driver finds it.

use std::process::Command;

use consort_tests::elf::Dynamic;
use consort_tests::standin::{standin_cuda_dir, with_standin};

#[test]
fn it_has_the_drivers_names() {
    let library = Dynamic::of(&standin_cuda_dir().join("libcuda.so.1"));
    assert_eq!(library.soname.as_deref(), Some("libcuda.so.1"));
    for name in [
        "cuInit",
        "cuMemAlloc_v2",
        "cuMemFree_v2",
        "cuMemcpyDtoDAsync_v2",
        "cuStreamWaitValue64_v2",
        "cuStreamWriteValue64_v2",
        "cuIpcOpenMemHandle_v2",
        "cuMemExportToShareableHandle",
        "cuModuleLoadDataEx",
        "cuLaunchKernel",
        "cuLaunchCooperativeKernel",
        "cuCtxPushCurrent_v2",
        "cuGetProcAddress_v2",
    ] {
        assert!(library.exported.contains(name), "{name} is missing");
    }
    let others: Vec<_> = library.exported.iter().filter(|name| !name.starts_with("cu")).collect();
    assert!(others.is_empty(), "it exports {others:?}");
}

/// What is asked in a process of its own, which is started with the stand-in in its way.
#[test]
fn a_program_finds_it_and_is_told() {
    const ASKED: &str = "CONSORT_TEST_STANDIN_ASKED";
    if std::env::var_os(ASKED).is_some() {
        let driver = consort_memory::driver::Driver::of_process().expect("a driver");
        assert_eq!((driver.devices(), driver.version()), (3, (12, 8)));
        return;
    }
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command.args(["--exact", "a_program_finds_it_and_is_told", "--nocapture"]).env(ASKED, "1");
    let output = with_standin(&mut command, &[("DEVICES", "3")]).output().expect("this test");
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{said}\n{errors}");
    assert!(errors.contains("3 pretend devices in host memory, no GPU"), "{errors}");
}
