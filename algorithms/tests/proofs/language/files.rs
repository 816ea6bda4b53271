//! The files of others in `../shared/msccl`, where they are: read, proved, run, and written again with the same meaning.

use std::path::{Path, PathBuf};

use consort_algorithms::Collective;
use consort_algorithms::language::{self, Read};

use consort_algorithms::lower_all;

use super::{SLOTS, survives};
use crate::common::execute;

/// The files below a folder, or none, aloud.
pub(super) fn files(folder: &str) -> Vec<PathBuf> {
    let shared = std::env::var_os("CONSORT_SHARED").map(PathBuf::from);
    let shared = shared.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared"));
    let Ok(entries) = std::fs::read_dir(shared.join("msccl").join(folder)) else {
        println!("skipped: {} has no msccl/{folder}", shared.display());
        return Vec::new();
    };
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths
}

#[test]
fn files_of_others_mean_what_their_programs_do() {
    for path in ["msccl-xml", "mscclpp-plans"].into_iter().flat_map(files) {
        let bytes = std::fs::read(&path).expect("it is readable");
        let read = language::read(&bytes, &SLOTS);
        let Read { schedule, range } = read.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        if schedule.switches > 0 {
            continue;
        }
        let plans = lower_all(&schedule, &SLOTS).expect("it is lowered");
        for in_place in [false, schedule.collective != Collective::AllToAll] {
            execute(&plans, in_place, 1, 7).unwrap_or_else(|fault| panic!("{}: {fault}", path.display()));
        }
        survives(&schedule, range);
    }
}
