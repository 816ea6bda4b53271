//! The files of others in `../shared/msccl`, where they are.

use std::path::{Path, PathBuf};

use consort_algorithms::language::msccl;
use consort_algorithms::{LowerOptions, Schedule};

const SLOTS: LowerOptions = LowerOptions { slots: 4 };

#[test]
fn tmp_files() {
    let dir = PathBuf::from("/work/shared/msccl/msccl-xml");
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let started = std::time::Instant::now();
        match msccl::read(&text, &SLOTS) {
            Ok(read) => {
                let s = &read.schedule;
                println!("{} ok: {} ranks {} parts {} rounds {} messages {} {:?} {:?}", path.display(), s.ranks, s.partition.parts, s.rounds.len(), s.messages(), read.range, started.elapsed());
                let back = msccl::write(s, read.range).unwrap();
                match msccl::read(&back, &SLOTS) {
                    Ok(again) => println!("   again rounds {} messages {}", again.schedule.rounds.len(), again.schedule.messages()),
                    Err(e) => println!("   AGAIN {e}"),
                }
            }
            Err(e) => println!("{} ERR {e}", path.display()),
        }
    }
}
