//! `include/consort.h` as C and C++ compilers read it, and a C program on the built library.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use consort_ffi::extensions::Format;
use consort_ffi::status::Status;
use consort_ffi::{NcclUniqueId, timeout};
use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

/// Whether a compiler is there; says so if not.
fn has(compiler: &str) -> bool {
    let is_there =
        Command::new(compiler).arg("--version").output().is_ok_and(|output| output.status.success());
    if !is_there {
        consort_tests::system::skip(&format!("there is no {compiler}"));
    }
    is_there
}

/// Where cargo put the library: beside this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("this test");
    let place = test.parent().expect("its directory").to_owned();
    assert!(place.join("libconsort_ffi.so").exists(), "no libconsort_ffi.so in {}", place.display());
    place
}

#[track_caller]
fn succeeds(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{text}\n{errors}", output.status);
    text
}

const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];

/// The C program, compiled once; `None` without a compiler.
fn program() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let compile = || {
        if !has("cc") {
            return None;
        }
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("report");
        let library = library();
        let mut command = Command::new("cc");
        command.arg("-std=c99").args(STRICT).arg("-I").arg(root().join("include"));
        command.arg(root().join("tests/c/report.c")).arg("-o").arg(&program);
        command.arg("-L").arg(&library).arg(format!("-Wl,-rpath,{}", library.display()));
        succeeds(command.args(["-lconsort_ffi", "-lpthread"]));
        Some(program)
    };
    PROGRAM.get_or_init(compile).as_deref()
}

/// What a part of the program prints, with these variables.
fn prints(part: &str, variables: &[(&str, &str)]) -> Option<String> {
    let mut command = Command::new(program()?);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("CONSORT_")) {
        command.env_remove(name);
    }
    // Cargo's would lead to what was built by itself, perhaps long ago.
    command.env_remove("LD_LIBRARY_PATH");
    let text = succeeds(command.arg(part).envs(variables.iter().copied()));
    println!("{text}");
    assert!(text.ends_with("end\n"));
    Some(text)
}

/// The rest of the line that begins so.
#[track_caller]
fn line<'a>(text: &'a str, start: &str) -> &'a str {
    text.lines().find_map(|line| line.strip_prefix(start)).unwrap_or_else(|| panic!("no {start:?} in {text}"))
}

#[test]
fn the_header_is_c_and_cpp_by_itself_and_after_nccls() {
    let alone = "#include <consort.h>\n#include <consort.h>\n";
    // What of NCCL's own header this one refers to.
    let nccl = "#define NCCL_MAJOR 2\ntypedef struct ncclComm* ncclComm_t;\n\
                typedef enum { ncclSuccess = 0, ncclNumResults = 8 } ncclResult_t;\n";
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
    let read = |name: &str| std::fs::read_to_string(root().join(name)).expect("a file of this repository");
    let header = read("include/consort.h");
    let starts = ["\nncclResult_t ", "\nconsortResult_t ", "\nconst char* ", "\nvoid "];
    let declared: BTreeSet<&str> = starts.iter().flat_map(|start| names_after(&header, start)).collect();
    let sources = std::fs::read_dir(root().join("ffi/src")).expect("the sources").flatten();
    let sources: Vec<String> =
        sources.map(|file| read(&format!("ffi/src/{}", file.file_name().display()))).collect();
    let exported = sources.iter().flat_map(|text| names_after(text, "pub unsafe extern \"C\" fn "));
    let exported = exported.chain(sources.iter().flat_map(|text| names_after(text, "pub extern \"C\" fn ")));
    let exported: BTreeSet<&str> = exported.collect();
    assert!(exported.len() > 20);
    assert_eq!(declared, exported);
}

#[test]
fn both_sides_agree_on_sizes_and_values() {
    let Some(text) = prints("layout", &[]) else { return };
    let id = size_of::<NcclUniqueId>();
    assert_eq!(line(&text, "layout "), format!("{id} {} 4 4 4 4", size_of::<*mut ()>()));
    assert_eq!((size_of::<Status>(), size_of::<Format>()), (4, 4));
    let results = [
        Status::Success,
        Status::System,
        Status::Internal,
        Status::InvalidArgument,
        Status::InvalidUsage,
        Status::Remote,
        Status::Timeout,
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
    let (_, report) = text.split_once("text<<<\n").expect("a report");
    let (report, _) = report.split_once("\n>>>").expect("its end");
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
