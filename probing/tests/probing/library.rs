//! The path of the real wrapper: a shared library of NVML's names that answers from a script (`standins/nvml`).

use std::path::PathBuf;

use consort_probing::{Live, Management, NoAnswer, NoNvml, Probe, Recorded};
use consort_testing::machines::{self, ANSWERS, tree};

use crate::support::Place;

/// The library as cargo has built it beside the test that runs.
fn standin() -> Option<PathBuf> {
    let built = std::env::current_exe().expect("this program").with_file_name("libnvidia_ml.so");
    if !built.exists() {
        eprintln!("SKIP: no stand-in for NVML: cargo build -p consort-standin-nvml");
        return None;
    }
    Some(built)
}

/// Opens a copy of the library beside a script.
fn open(built: &PathBuf, place: &Place) -> Live {
    let library = place.0.join("libnvidia-ml.so.1");
    std::fs::copy(built, &library).expect("a copy");
    Live::open(Some(library.as_os_str())).expect("the stand-in opens")
}

#[test]
fn the_library_and_its_recorded_answers_give_one_machine() {
    let Some(built) = standin() else { return };
    let mut seen = 0;
    for name in machines::names() {
        let tree = tree(name);
        let Some(text) = tree.text(ANSWERS) else { continue };
        let place = Place::of(&tree);
        let live = open(&built, &place);
        let recorded = Recorded::read(text).expect("a script");
        for gpu in 0..live.gpus().expect("a number") {
            // The wrapper's own function for this answers `Unknown` always.
            assert_eq!(live.link_remote_kind(gpu, 0), recorded.link_remote_kind(gpu, 0), "{name}");
        }
        let by_library = Probe::below(&place.0).with(&live).run();
        assert_eq!(by_library, Probe::below(&place.0).with(&recorded).run(), "{name}");
        assert!(!by_library.hardware.gpus().is_empty(), "{name}");
        seen += 1;
    }
    assert!(seen >= 8, "{seen} machines have answers");
}

#[test]
fn errors_of_the_library_are_typed() {
    let Some(built) = standin() else { return };
    let mut tree = machines::tree("laptop");
    tree.put(
        ANSWERS,
        "nvmlDeviceGetCount_v2 = 1\nnvmlDeviceGetPciInfo_v3 0 = 00000000:01:00.0\nnvmlDeviceGetName 0 = !15\nnvmlDeviceGetUUID 0 = !3\n\
         nvmlDeviceGetNvLinkState 0 0 = !999",
    );
    let place = Place::of(&tree);
    let live = open(&built, &place);
    assert_eq!(live.uuid(0), Err(NoAnswer::NotSupported));
    assert_eq!(live.uuid(1), Err(NoAnswer::NoSuch));
    assert_eq!(live.fabric(0), Err(NoAnswer::TooOld));
    assert_eq!(live.link_remote_kind(0, 0), Err(NoAnswer::TooOld));
    assert!(matches!(live.model(0), Err(NoAnswer::Refused { .. })), "{:?}", live.model(0));
    let probed = Probe::below(&place.0).with(&live).run();
    let gpu = probed.hardware.gpus()[0];
    let known = probed.hardware.gpu(gpu).expect("a GPU");
    assert!(known.described && !known.links_known, "a library that fails leaves links unknown: {known:?}");
    assert!(
        probed.notes.iter().any(|note| note.to_string().contains("the state of link 0 of GPU 0")),
        "{:?}",
        probed.notes
    );
}

#[test]
fn a_library_that_is_not_there_is_no_trouble() {
    let place = Place::of(&machines::tree("laptop"));
    let missing = place.0.join("libnvidia-ml.so.1");
    match Live::open(Some(missing.as_os_str())) {
        Err(NoNvml::Absent { reason }) => assert!(reason.contains("libnvidia-ml.so.1"), "{reason}"),
        other => panic!("{other:?}"),
    }
    // Without it the GPU of the laptop is a screen's adapter, and no GPU for computing.
    assert_eq!(Probe::below(&place.0).run().hardware.gpus(), []);
}
