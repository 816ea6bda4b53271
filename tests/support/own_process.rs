//! Tests that need a process of their own: those that count its descriptors, threads or allocations, or that set its
//! environment.

use std::process::Command;

/// The variable by which a process knows that it is a test's own, with the test's name.
const OWN: &str = "CONSORT_TEST_OWN_PROCESS";

/// Runs `body` in a process of its own: this program again, with this test alone. `test` is the test's whole name as
/// the harness lists it; the environment is this process's with `variables` set. Returns what that process wrote to its
/// standard error; `None` in that process itself.
///
/// # Panics
/// If the test fails there, or there is no test of this name.
#[track_caller]
pub fn in_own_process(test: &str, variables: &[(&str, &str)], body: impl FnOnce()) -> Option<String> {
    if std::env::var(OWN).as_deref() == Ok(test) {
        body();
        return None;
    }
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(OWN, test);
    let output = command.envs(variables.iter().copied()).output().expect("this program");
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{said}");
    eprintln!("{errors}");
    let passed = output.status.success() && said.contains("1 passed");
    assert!(passed, "{test} in a process of its own: {}\n{said}\n{errors}", output.status);
    Some(errors.into_owned())
}
