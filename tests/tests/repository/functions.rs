//! The effect of every function of NCCL here: a table, the document made of it, and a check that the functions of the
//! table that are refused are.
//!
//! `CONSORT_SNAPSHOTS=write cargo test -p consort-tests --test repository` writes the document anew.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_void};
use std::fmt::Write;
use std::ptr::null_mut;

use consort_tests::compiler::root;

/// A line of `tests/c/nccl-states.txt`.
struct Function {
    name: String,
    since: String,
    state: String,
    words: String,
}

fn table() -> Vec<Function> {
    let text = std::fs::read_to_string(root().join("tests/c/nccl-states.txt")).expect("the table");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let functions = lines.map(|line| {
        let mut fields = line.splitn(4, '|').map(|field| field.trim().to_owned());
        let mut next = || fields.next().unwrap_or_default();
        Function { name: next(), since: next(), state: next(), words: next() }
    });
    functions.collect()
}

fn document(table: &[Function]) -> String {
    let mut text = String::from(
        "# NCCL's functions, one by one\n\n\
         Made from `tests/c/nccl-states.txt` by `CONSORT_SNAPSHOTS=write cargo test -p consort-tests --test repository`; a\n\
         test compares. *as NCCL*: NCCL's contract holds, on devices and on host memory. *differs*: so does it, but for what the\n\
         last column says. *refused*: the call returns `ncclInvalidUsage` and `ncclGetLastError` says what to use instead; a client that\n\
         asks `ncclCommQueryProperties` first never gets there. Every function has a twin with `p` in front, but for\n\
         `ncclResetDebugInitInternal`. What runs on devices, and how: [ADR-9](adr/0009-devices.md).\n\n",
    );
    let mut count: BTreeMap<&str, usize> = BTreeMap::new();
    table.iter().for_each(|function| *count.entry(&function.state).or_default() += 1);
    let counts: Vec<String> = count.iter().map(|(state, count)| format!("{count} {state}")).collect();
    writeln!(text, "{} functions: {}.\n", table.len(), counts.join(", ")).expect("a string");
    text.push_str("| function | since | state | here |\n|---|---|---|---|\n");
    for Function { name, since, state, words } in table {
        writeln!(text, "| `{name}` | {since} | {state} | {words} |").expect("a string");
    }
    text
}

#[test]
fn the_table_has_every_function_once() {
    let symbols = std::fs::read_to_string(root().join("tests/c/nccl-symbols.txt")).expect("the names");
    let exported: BTreeSet<&str> = symbols.lines().filter(|name| name.starts_with('n')).collect();
    let table = table();
    let listed: BTreeSet<&str> = table.iter().map(|function| function.name.as_str()).collect();
    assert_eq!(listed, exported);
    assert_eq!(table.len(), listed.len());
    for Function { name, since, state, words } in &table {
        assert!(["as NCCL", "differs", "refused"].contains(&state.as_str()), "{name}: {state}");
        assert!(!since.is_empty() && (state == "as NCCL" || !words.is_empty()), "{name} has no words");
    }
}

#[test]
fn the_document_is_the_table() {
    let (path, made) = (root().join("docs/NCCL.md"), document(&table()));
    if std::env::var("CONSORT_SNAPSHOTS").is_ok_and(|set| set == "write") {
        std::fs::write(&path, &made).expect("the document");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(found, made, "docs/NCCL.md: run with CONSORT_SNAPSHOTS=write");
}

#[test]
fn what_is_refused_is_refused_and_nothing_else_is() {
    const INVALID_USAGE: c_int = 5;
    let mut comms = [null_mut::<c_void>()];
    // SAFETY: there is room for one handle.
    assert_eq!(unsafe { nccl::ncclCommInitAll(comms.as_mut_ptr(), 1, std::ptr::null()) }, 0);
    let (comm, null) = (comms[0], null_mut::<c_void>());
    // SAFETY: any communicator.
    let team = unsafe { nccl::ncclTeamWorld(comm) };
    // SAFETY: none of them reads its arguments but the communicator.
    let results = unsafe {
        [
            ("ncclPutSignal", nccl::ncclPutSignal(null, 0, 0, 0, null, 0, 0, 0, 0, comm, null)),
            ("ncclSignal", nccl::ncclSignal(0, 0, 0, 0, comm, null)),
            ("ncclWaitSignal", nccl::ncclWaitSignal(0, null, comm, null)),
            ("ncclDevCommCreate", nccl::ncclDevCommCreate(comm, null, null)),
            ("ncclDevCommDestroy", nccl::ncclDevCommDestroy(comm, null)),
            ("ncclGetLsaMultimemDevicePointer", nccl::ncclGetLsaMultimemDevicePointer(null, 0, null)),
            ("ncclGetMultimemDevicePointer", nccl::ncclGetMultimemDevicePointer(null, 0, null, null)),
            ("ncclGetLsaDevicePointer", nccl::ncclGetLsaDevicePointer(null, 0, 0, null)),
            ("ncclGetPeerDevicePointer", nccl::ncclGetPeerDevicePointer(null, 0, 0, null)),
            ("ncclGetMultimemDeviceLeInfo", nccl::ncclGetMultimemDeviceLeInfo(null, 0, null, null)),
            ("ncclGetCftDeviceLeInfo", nccl::ncclGetCftDeviceLeInfo(null, 0, 0, team, null, null)),
            ("ncclGetPeerDeviceLeInfo", nccl::ncclGetPeerDeviceLeInfo(null, 0, 0, null, null)),
            ("ncclLsaBarrierCreateRequirement", nccl::ncclLsaBarrierCreateRequirement(team, 1, null, null)),
            (
                "ncclGinBarrierCreateRequirement",
                nccl::ncclGinBarrierCreateRequirement(comm, team, 1, null, null),
            ),
            ("ncclLLA2ACreateRequirement", nccl::ncclLLA2ACreateRequirement(1, 1, null, null)),
            ("ncclGinOutboxCreateRequirement", nccl::ncclGinOutboxCreateRequirement(1, 1, null, null)),
            (
                "ncclGinInboxA2ACreateRequirement",
                nccl::ncclGinInboxA2ACreateRequirement(team, 1, 1, null, null),
            ),
        ]
    };
    let refused: BTreeSet<String> = table()
        .into_iter()
        .filter(|function| function.state == "refused")
        .map(|function| function.name)
        .collect();
    let called: BTreeSet<String> = results.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(called, refused);
    for (name, result) in results {
        assert_eq!(result, INVALID_USAGE, "{name}");
    }
    // SAFETY: the handle is freed once.
    assert_eq!(unsafe { nccl::ncclCommDestroy(comm) }, 0);
}
