//! The additions of `include/consort.h` to NCCL, by C and C++ programs on the built library; `interface` has those
//! about failures.

use std::path::PathBuf;
use std::sync::OnceLock;

use consort_nccl::{EXTENSION_ALGORITHM, EXTENSION_TIMEOUT_MS, EXTENSION_VENDOR};
use consort_tests::compiler::{self, between, line};
use consort_tests::job::alone;
use nccl::extensions::COLLECTIVES;
use serde_json::Value;

/// The output of a part of the program, in C and in C++; without those that have no compiler.
fn prints(part: &str) -> Vec<String> {
    static PROGRAMS: OnceLock<Vec<PathBuf>> = OnceLock::new();
    let languages = [("cc", "-std=c99"), ("c++", "-std=c++17")];
    let build = || {
        let built = languages.map(|(compiler, standard)| compiler::built("extensions.c", compiler, standard));
        built.into_iter().flatten().collect()
    };
    let _alone = alone();
    PROGRAMS.get_or_init(build).iter().map(|program| compiler::prints(program, part, &[])).collect()
}

#[test]
fn blocks_that_differ_however_they_are_called() {
    prints("vectors");
}

#[test]
fn wrong_blocks_are_refused_and_harm_nothing() {
    prints("wrong-vectors");
}

#[test]
fn streams_keep_their_order_and_their_failures() {
    prints("streams");
}

#[test]
fn both_sides_agree_on_values() {
    for text in prints("values") {
        let options = format!("{EXTENSION_VENDOR} {EXTENSION_TIMEOUT_MS} {EXTENSION_ALGORITHM}");
        assert_eq!(line(&text, "options "), options);
        assert_eq!(line(&text, "sizes "), format!("4 {}", size_of::<*mut ()>()));
    }
}

#[test]
fn every_collective_is_explained() {
    for text in prints("explain") {
        for collective in COLLECTIVES {
            // The program has the names by the numbers of the header.
            let explanation = line(&text, &format!("json {} ", collective.name()));
            let explanation: Value = serde_json::from_str(explanation).expect("JSON");
            assert_eq!(explanation["collective"], collective.name());
            assert_eq!(explanation["ranks"], 4);
            assert_eq!(explanation["block_bytes"], 4096);
            let candidates = explanation["candidates"].as_array().expect("candidates");
            let chosen = candidates.iter().filter(|candidate| candidate["chosen"] == true);
            assert_eq!(chosen.count(), 1, "{explanation}");
        }
        let people = between(&text, "text<<<\n", ">>>");
        assert!(people.starts_with("all_reduce over 4 ranks, blocks of 1048576 bytes"), "{people}");
        assert!(people.contains("chosen: ") && !people.ends_with('\n'), "{people}");
    }
}

#[test]
fn a_call_has_options_of_its_own() {
    for text in prints("options") {
        let differ = line(&text, "differ ");
        assert!(differ.contains("tree") && differ.contains("ring"), "{differ}");
    }
}
