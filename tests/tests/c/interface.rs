//! `include/consort.h` as C and C++ compilers read it, and a C program on the built library.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use consort_nccl::Code;
use consort_tests::compiler::{self, STRICT, between, has, line, root, succeeds};
use consort_tests::elf::Dynamic;
use nccl::extensions::Format;
use nccl::{NcclUniqueId, timeout};
use serde_json::Value;

/// The output of a part of the program, with these variables; `None` without a compiler.
fn prints(part: &str, variables: &[(&str, &str)]) -> Option<String> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| compiler::built("report.c", "cc", "-std=c99")).as_ref()?;
    Some(compiler::prints(program, part, variables))
}

#[test]
fn the_header_is_c_and_cpp_by_itself_and_after_nccls() {
    let alone = "#include <consort.h>\n#include <consort.h>\n";
    // The declarations of NVIDIA's header that this one uses, in a version without ncclTimeout.
    let nccl = "#define NCCL_MAJOR 2\ntypedef struct ncclComm* ncclComm_t;\n\
                typedef enum { ncclSuccess = 0, ncclNumResults = 8 } ncclResult_t;\n\
                typedef enum { ncclInt8 = 0 } ncclDataType_t;\n\
                typedef enum { ncclSum = 0 } ncclRedOp_t;\n\
                typedef struct { char internal[128]; } ncclUniqueId;\n\
                typedef struct CUstream_st* cudaStream_t;\n";
    for (compiler, language, standard) in [("cc", "c", "-std=c99"), ("g++", "c++", "-std=c++11")] {
        if !has(compiler) {
            continue;
        }
        for (name, before) in [("alone", ""), ("after", nccl)] {
            let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.{language}"));
            std::fs::write(&source, format!("{before}{alone}")).expect("a source");
            let mut command = Command::new(compiler);
            command.args(["-fsyntax-only", "-x", language, standard]).args(STRICT);
            succeeds(command.arg("-I").arg(root().join("include")).arg(&source));
        }
    }
}

/// The words that follow this one in a text.
fn names_after<'a>(text: &'a str, before: &str) -> BTreeSet<&'a str> {
    let name = |rest: &'a str| rest.split_once('(').map(|(name, _)| name);
    text.split(before).skip(1).filter_map(name).collect()
}

#[test]
fn the_header_declares_what_the_library_exports() {
    let header = std::fs::read_to_string(root().join("include/consort.h")).expect("the header");
    let starts = ["\nconsortResult_t ", "\nconst char* ", "\nvoid "];
    let declared: BTreeSet<String> =
        starts.iter().flat_map(|start| names_after(&header, start)).map(str::to_owned).collect();
    let mut exported = Dynamic::of(&compiler::library()).exported;
    exported.retain(|name| name.starts_with("consort"));
    assert!(exported.len() > 10);
    assert_eq!(declared, exported);
}

#[test]
fn both_sides_agree_on_sizes_and_values() {
    let Some(text) = prints("layout", &[]) else { return };
    let id = size_of::<NcclUniqueId>();
    assert_eq!(line(&text, "layout "), format!("{id} {} 4 4 4 4", size_of::<*mut ()>()));
    assert_eq!((size_of::<Code>(), size_of::<Format>()), (4, 4));
    let results = [
        Code::Success,
        Code::System,
        Code::Internal,
        Code::InvalidArgument,
        Code::InvalidUsage,
        Code::Remote,
        Code::Timeout,
    ];
    let results = results.map(|result| (result as i32).to_string()).join(" ");
    assert_eq!(line(&text, "results "), results);
    assert_eq!(line(&text, "formats "), format!("{} {}", Format::Text as i32, Format::Json as i32));
    assert_eq!(line(&text, "timeouts "), format!("{} {}", timeout::NONE, timeout::INHERIT));
}

#[test]
fn a_rank_that_stays_away_is_named_when_the_deadline_has_passed() {
    let Some(text) = prints("stays-away", &[]) else { return };
    assert_eq!(line(&text, "result "), "8");
    assert!(line(&text, "error ").contains("all_reduce #1 did not finish within"));
    for report in ["meanwhile ", "json "] {
        let report: Value = serde_json::from_str(line(&text, report)).expect("JSON");
        assert_eq!(report["guilty"], serde_json::json!({ "kind": "ranks", "ranks": [1] }), "{report}");
        assert_eq!(report["operation"]["name"], "all_reduce");
    }
    let report = between(&text, "text<<<\n", "\n>>>");
    assert!(report.starts_with("hang report of communicator") && report.contains("verdict: "), "{report}");
}

#[test]
fn another_thread_ends_a_call_that_has_no_deadline() {
    let Some(text) = prints("abort", &[]) else { return };
    assert!(line(&text, "aborted ").contains("aborted by rank 0: the watchdog says so"));
}

#[test]
fn the_deadline_of_a_thread_goes_before_that_of_the_communicator() {
    prints("thread", &[]);
}

#[test]
fn wrong_arguments_are_refused() {
    prints("arguments", &[]);
}

#[test]
fn a_dead_rank_needs_no_deadline() {
    let Some(text) = prints("dies", &[]) else { return };
    assert!(line(&text, "died ").contains("rank 1"));
}

#[test]
fn the_environment_sets_what_a_communicator_does_not() {
    let Some(text) = prints("environment", &[]) else { return };
    assert_eq!((line(&text, "timeout "), line(&text, "again ")), ("-1", "-1"));
    let text = prints("environment", &[("CONSORT_TIMEOUT", "7")]).expect("as before");
    assert_eq!((line(&text, "timeout "), line(&text, "again ")), ("7", "7"));
}
