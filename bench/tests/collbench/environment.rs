//! `collbench env`, started as a user starts it.

use std::path::PathBuf;
use std::process::{Command, Stdio};

struct Outcome {
    code: Option<i32>,
    out: String,
    err: String,
}

/// Runs the program in an environment of these variables alone. The program starts no rank and waits for none.
fn run(words: &[&str], environment: &[(&str, &str)]) -> Outcome {
    let output = Command::new(env!("CARGO_BIN_EXE_collbench"))
        .arg("env")
        .args(words)
        .env_clear()
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .output()
        .expect("the program starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    Outcome { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

impl Outcome {
    /// The value and the rest of this line.
    #[track_caller]
    fn line(&self, name: &str) -> (&str, &str) {
        let line = self.out.lines().find(|line| line.split_whitespace().next() == Some(name));
        let line = line.unwrap_or_else(|| panic!("no line for {name}:\n{}\n{}", self.out, self.err));
        let rest = line[name.len()..].trim_start();
        let (value, origin) = rest.split_once("  ").expect("three columns");
        (value, origin.trim())
    }
}

/// A file of this test process, gone when it is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, text: &str) -> Self {
        let name = format!("environment-{}-{name}", std::process::id());
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::write(&path, text).expect("a file");
        Scratch(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("text")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).expect("removed");
    }
}

#[test]
fn defaults_and_nothing_without_effect() {
    let found = run(&[], &[]);
    assert_eq!(found.code, Some(0), "{}", found.err);
    // A machine may have a file of its own.
    if PathBuf::from("/etc/nccl.conf").exists() {
        println!("SKIP: this host has an /etc/nccl.conf");
        return;
    }
    assert_eq!(found.line("CONSORT_TIMEOUT"), ("1800", "default"));
    assert_eq!(found.line("CONSORT_TRANSPORT"), ("auto", "default"));
    assert_eq!(found.line("CONSORT_ALGO"), ("all", "default"));
    assert_eq!(found.line("CONSORT_SECRET"), ("-", "default"));
    assert_eq!(found.line("NCCL_DEBUG_SUBSYS"), ("INIT,BOOTSTRAP,ENV", "default"));
    assert!(!found.out.contains("Without effect") && !found.out.contains("NCCL_IB_SPLIT_DATA_ON_QPS"));
    let all = run(&["--all"], &[]);
    assert!(all.line("NCCL_IB_SPLIT_DATA_ON_QPS").1.starts_with("default; with CONSORT_TRANSPORT=verbs"));
}

#[test]
fn the_origin_of_every_value() {
    let file = Scratch::new(
        "conf",
        "# a comment\nNCCL_MIN_CTAS=3\nCONSORT_TIMEOUT=7\nNCCL_DEBUG=INFO\nNCCL_P2P_PXN_LEVEL=1\n",
    );
    let found = run(
        &[],
        &[
            ("NCCL_CONF_FILE", file.path()),
            ("NCCL_SHM_DISABLE", "1"),
            ("CONSORT_TIMEOUT", "5"),
            ("CONSORT_SECRET", "correct horse battery"),
            ("NCCL_ALGO", "Tree"),
            ("NCCL_DEBUG", "WARN"),
            ("NCCL_IB_SPLIT_DATA_ON_QPS", "1"),
            ("NCCL_FROBNICATE", "1"),
            ("NCCL_TESTS_MIN_BW", "1"),
        ],
    );
    assert_eq!(found.code, Some(0), "{}", found.err);
    assert_eq!(found.line("CONSORT_TRANSPORT"), ("tcp", "environment: NCCL_SHM_DISABLE"));
    assert_eq!(found.line("CONSORT_TIMEOUT"), ("5", "environment"));
    assert_eq!(found.line("CONSORT_CHANNELS"), ("3", format!("{}: NCCL_MIN_CTAS", file.path()).as_str()));
    assert_eq!(found.line("CONSORT_ALGO"), ("Tree", "environment: NCCL_ALGO"));
    assert_eq!(found.line("NCCL_DEBUG"), ("WARN", "environment"));
    assert_eq!(found.line("NCCL_MIN_CTAS"), ("3", file.path()));
    assert_eq!(found.line("CONSORT_SECRET").0, "(hidden)");
    assert!(!found.out.contains("correct horse"));
    assert!(
        found.line("NCCL_IB_SPLIT_DATA_ON_QPS").1.starts_with("environment; with CONSORT_TRANSPORT=verbs")
    );
    assert!(found.line("NCCL_P2P_PXN_LEVEL").1.starts_with(&format!("{}; ", file.path())));
    assert!(found.line("NCCL_FROBNICATE").1.contains("not a variable"));
    assert!(!found.out.contains("NCCL_TESTS_MIN_BW"));
}

#[test]
fn what_makes_no_sense_is_refused() {
    for (set, says) in [
        (("NCCL_NET", "IB"), "NCCL_NET is \"IB\""),
        (("NCCL_ALGO", "rign"), "possible: Ring, Tree, PAT"),
        (("CONSORT_CHANNELS", "99"), "CONSORT_CHANNELS is \"99\""),
    ] {
        let found = run(&[], &[set]);
        assert_eq!(found.code, Some(6), "{}", found.out);
        assert!(found.err.contains(says), "{}", found.err);
    }
    assert_eq!(run(&["--frob"], &[]).code, Some(6));
}
