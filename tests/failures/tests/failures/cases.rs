//! The public hang and misuse cases of `cases/`: every script must find all lines that it expects.

use std::process::{Command, Stdio};

use consort_tests::compiler::root;
use consort_tests::job::waiting;

fn run(script: &str) {
    let _waiting = waiting();
    let output = Command::new("bash")
        .arg(root().join("cases").join(script))
        .env("CASES_BIN", env!("CARGO_BIN_EXE_cases"))
        .stdin(Stdio::null())
        .output()
        .expect("bash");
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{script}:\n{said}\n{complained}");
    assert!(said.contains("=== as expected"), "{script}:\n{said}\n{complained}");
}

macro_rules! cases {
    ($($name:ident: $script:literal,)+) => {
        $(#[test]
        fn $name() {
            run($script);
        })+

        /// The list of scripts, which a test compares with the directory.
        const SCRIPTS: &[&str] = &[$($script),+];
    };
}

cases! {
    skipped_collective: "01-skipped-collective.sh",
    different_count_or_type: "02-different-count-or-type.sh",
    order_on_two_communicators: "03-order-on-two-communicators.sh",
    killed_rank: "04-killed-rank.sh",
    never_joins: "05-never-joins.sh",
    slow_in_user_code: "06-slow-in-user-code.sh",
    both_send_first: "07-both-send-first.sh",
    finishes_early: "08-finishes-early.sh",
    stray_client: "09-stray-client.sh",
    one_dies_several_communicators: "10-one-dies-several-communicators.sh",
}

#[test]
fn every_script_is_run() {
    let entries = std::fs::read_dir(root().join("cases")).expect("the scripts").flatten();
    let mut found: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    found.retain(|name| name.ends_with(".sh") && name != "common.sh");
    found.sort();
    assert_eq!(found, SCRIPTS);
}
