//! Misuse that must not compile: each program of `compile_fail/` fails with the words of the text beside it.
//!
//! The compiler is called directly, on the libraries that cargo has built for this test. The texts are of the minor version
//! that `SNAPSHOTS_OF` names; of another one, which may word its messages differently, the codes of the errors must be the
//! same. `CONSORT_SNAPSHOTS=write` writes them anew.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use consort_tests::compiler::root;

const SNAPSHOTS_OF: &str = "rustc 1.95.";

fn rustc() -> Command {
    Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
}

/// The library of a crate as cargo built it last.
fn library(dependencies: &Path, name: &str) -> PathBuf {
    let files = std::fs::read_dir(dependencies).expect("what cargo has built").flatten();
    let fits = |path: &PathBuf| {
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        file.starts_with(&format!("lib{name}-")) && file.ends_with(".rlib")
    };
    let built = |path: &PathBuf| path.metadata().and_then(|about| about.modified());
    let newest = |path: &PathBuf| built(path).unwrap_or(SystemTime::UNIX_EPOCH);
    files.map(|entry| entry.path()).filter(fits).max_by_key(newest).unwrap_or_else(|| panic!("no {name}"))
}

/// The compiler's output for a program that must not compile, without the lines that all of them have.
///
/// # Panics
/// If it compiles.
fn refusal(program: &Path) -> String {
    let test = std::env::current_exe().expect("this test");
    let dependencies = test.parent().expect("a directory");
    let mut command = rustc();
    command.args(["--edition=2024", "--crate-type=bin", "--emit=metadata", "--color=never", "-o"]);
    command.arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("misuse.rmeta"));
    command.arg("-L").arg(format!("dependency={}", dependencies.display()));
    let text = std::fs::read_to_string(program).expect("the program");
    // One library for each crate: where cargo has built both in several ways, the newest of each need not fit
    // together.
    let used = |name: &&str| text.contains(&format!("{name}::"));
    for name in ["consort", "consort_transports"].into_iter().filter(used) {
        command.arg("--extern").arg(format!("{name}={}", library(dependencies, name).display()));
    }
    let directory = program.parent().expect("a directory");
    let output = command.arg(program.file_name().expect("a name")).current_dir(directory).output();
    let output = output.expect("the compiler");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{} compiles", program.display());
    let root = format!("{}/", root().display());
    let kept = text.lines().filter(|line| {
        !line.starts_with("error: aborting due to") && !line.starts_with("For more information about")
    });
    let lines: Vec<String> = kept.map(|line| line.replace(&root, "")).collect();
    lines.join("\n").trim_end().to_owned() + "\n"
}

/// The text with the last part of each path of this workspace: whether the compiler shortens a path depends on the
/// other names of the crate, and so on the features that it was built with.
fn shortened(text: &str) -> String {
    let is_of_path = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == ':';
    let mut short = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(begin) = rest.find("consort") {
        let end =
            rest[begin..].find(|letter| !is_of_path(letter)).map_or(rest.len(), |length| begin + length);
        let path = &rest[begin..end];
        short.push_str(&rest[..begin]);
        short.push_str(match path.rsplit_once("::") {
            Some((_, last)) if !last.is_empty() => last,
            _ => path,
        });
        rest = &rest[end..];
    }
    short + rest
}

/// The codes of the errors, as `E0382`.
fn codes(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.strip_prefix("error[")?.split(']').next()).collect()
}

#[test]
fn misuse_does_not_compile() {
    let version = rustc().arg("--version").output();
    let version = version.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let version = version.unwrap_or_default();
    let by_words = version.starts_with(SNAPSHOTS_OF);
    if !by_words {
        println!(
            "the texts are of {SNAPSHOTS_OF}x and this is {version}: only the codes of errors are compared"
        );
    }
    let programs = root().join("tests/tests/repository/compile_fail");
    let files = std::fs::read_dir(programs).expect("the programs").flatten().map(|entry| entry.path());
    let programs: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|end| end == "rs")).collect();
    assert_eq!(programs.len(), 5, "{programs:?}");
    for program in programs {
        let (snapshot, said) = (program.with_extension("stderr"), refusal(&program));
        if std::env::var("CONSORT_SNAPSHOTS").is_ok_and(|set| set == "write") {
            std::fs::write(&snapshot, &said).expect("the text can be written");
        }
        let wanted = std::fs::read_to_string(&snapshot).unwrap_or_default();
        let program = program.display();
        assert!(!codes(&wanted).is_empty(), "{program}: the text has no error");
        assert_eq!(codes(&said), codes(&wanted), "{program}: {said}");
        if by_words {
            assert_eq!(
                shortened(&said),
                shortened(&wanted),
                "{program}: CONSORT_SNAPSHOTS=write writes it anew"
            );
        }
    }
}
