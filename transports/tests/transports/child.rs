//! Tests in processes of their own: other tests of this program neither disturb them nor are disturbed.

use std::process::{Command, Stdio};

/// Names, in a process that was started for one test, that test.
const ALONE: &str = "CONSORT_TEST_ALONE";

/// The name of the test that this stands in, as the harness has it.
macro_rules! this_test {
    () => {{
        fn here() {}
        $crate::child::name_of(here).trim_end_matches("::here")
    }};
}

/// The name of a test, as the harness has it: its path without the program's own name.
pub(crate) fn name_of<F: Fn()>(_: F) -> &'static str {
    let path = std::any::type_name::<F>();
    path.split_once("::").map_or(path, |(_, name)| name)
}

/// This program again, for one test alone.
pub(crate) fn program_for(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env_remove(ALONE);
    command
}

/// Whether this test has been run just now, and has passed, in a process of its own; there the answer is no.
///
/// # Panics
/// When it failed there.
#[track_caller]
pub(crate) fn ran_alone(test: &str) -> bool {
    if std::env::var(ALONE).is_ok_and(|name| name == test) {
        return false;
    }
    let mut command = program_for(test);
    let output = command.env(ALONE, test).stdin(Stdio::null()).output().expect("it starts");
    let [said, complained] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let passed = output.status.success() && said.contains("1 passed");
    assert!(passed, "{test} in a process of its own: {}\n{said}\n{complained}", output.status);
    true
}
