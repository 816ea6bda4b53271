//! NCCL's contract where processes die, hang or never come: ranks that are processes of a C program on the built
//! library.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use consort_tests::compiler::{self, STRICT, has, linked, root, succeeds};

/// The C program, compiled once; `None` without a compiler.
fn program() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let compile = || {
        if !has("cc") {
            return None;
        }
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("contract");
        let mut command = Command::new("cc");
        command.arg("-std=c99").args(STRICT).arg("-I").arg(root().join("include"));
        command.arg(root().join("tests/c/contract.c")).arg("-o").arg(&program);
        succeeds(command.args(linked()).arg("-lpthread"));
        Some(program)
    };
    PROGRAM.get_or_init(compile).as_deref()
}

/// Runs `size` ranks of a scenario; `killed` must die of SIGKILL, the others must reach their end.
fn runs(scenario: &str, size: usize, killed: Option<usize>) {
    let Some(program) = program() else { return };
    let name = format!("contract-{scenario}-{}", std::process::id());
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let clean = || {
        let of_ranks = (0..size).map(|rank| PathBuf::from(format!("{}.{rank}", file.display())));
        of_ranks.chain([file.clone()]).for_each(|file| drop(std::fs::remove_file(file)));
    };
    clean();
    let start = |rank: usize| {
        let mut command = compiler::program(program);
        for (name, _) in std::env::vars() {
            if name.starts_with("CONSORT_") || name.starts_with("NCCL_") {
                command.env_remove(name);
            }
        }
        command.args([scenario, &rank.to_string(), &size.to_string()]).arg(&file);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a process")
    };
    let ranks: Vec<_> = (0..size).map(start).collect();
    let ended: Vec<Output> =
        ranks.into_iter().map(|rank| rank.wait_with_output().expect("its end")).collect();
    clean();
    let outputs: Vec<String> = ended
        .iter()
        .enumerate()
        .map(|(rank, output)| {
            let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
            format!("rank {rank}: {}\n{}{}", output.status, text(&output.stdout), text(&output.stderr))
        })
        .collect();
    for (rank, output) in ended.iter().enumerate() {
        if killed == Some(rank) {
            assert_eq!(output.status.signal(), Some(9), "{outputs:#?}");
        } else {
            assert!(output.status.success() && output.stdout.ends_with(b"end\n"), "{outputs:#?}");
        }
    }
}

#[test]
fn a_killed_rank_is_named_to_callers_and_to_their_watchdogs() {
    runs("killed", 3, Some(2));
}

#[test]
fn survivors_of_a_killed_rank_shrink_and_go_on() {
    runs("shrink", 4, Some(1));
}

#[test]
fn survivors_that_only_poll_learn_why_and_shrink() {
    runs("polled", 3, Some(1));
}

#[test]
fn a_watchdog_frees_a_blocked_call() {
    runs("blocked", 2, None);
}

#[test]
fn a_join_that_a_rank_never_comes_to_is_polled_and_given_up() {
    runs("never", 3, None);
}
