//! Memory that a C program has mapped itself and registered: two processes reduce on it in place, and on the pages
//! that replace it.

use std::sync::OnceLock;

use consort_tests::compiler;
use consort_tests::job::{Start, alone};
use consort_tests::system;

/// The C program, compiled once; `None` without a compiler.
fn program() -> Option<&'static str> {
    static PROGRAM: OnceLock<Option<String>> = OnceLock::new();
    let built =
        || Some(compiler::built("registered.c", "cc", "-std=c99")?.to_str().expect("a path").to_owned());
    PROGRAM.get_or_init(built).as_deref()
}

#[test]
fn two_processes_reduce_on_registered_memory_and_on_what_takes_its_place() {
    let Some(program) = program() else { return };
    let _alone = alone();
    let names = system::shared_memory_names();
    for variables in [&[][..], &[("CONSORT_TRANSPORT", "shm")]] {
        let start =
            Start::new(program, "registered", 2).env("LD_LIBRARY_PATH", "").env("CONSORT_TIMEOUT", 20);
        let start = variables.iter().fold(start, |start, (name, value)| start.env(name, value));
        let mut job = start.go();
        (0..2).for_each(|rank| drop(job.line(rank, "end")));
        job.all_end_well();
    }
    assert_eq!(system::shared_memory_names(), names);
}
