//! The stand-in for the CUDA driver as the loader sees it, and as a program that looks for a driver finds it.

use consort_tests::elf::Dynamic;
use consort_tests::own_process::in_own_process;
use consort_tests::standin::standin_cuda_dir;

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

#[test]
fn a_program_finds_it_and_its_line() {
    let name = "standin::a_program_finds_it_and_its_line";
    // The loader of that process finds the stand-in.
    let place = standin_cuda_dir().display().to_string();
    let variables = [("LD_LIBRARY_PATH", place.as_str()), ("CONSORT_STANDIN_DEVICES", "3")];
    let output = in_own_process(name, &variables, || {
        let driver = consort_cuda::Driver::of_process().expect("a driver");
        assert_eq!((driver.devices(), driver.version()), (3, (12, 8)));
    });
    if let Some(output) = output {
        assert!(output.contains("3 pretend devices in host memory, no GPU"), "{output}");
    }
}
