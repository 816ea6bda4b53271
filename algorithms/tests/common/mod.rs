//! What the tests share: a seeded generator, committed files, and an executor that shares no code with the verifier.
#![allow(dead_code, unused_imports, reason = "each test binary uses a part")]

pub(crate) mod hand;
mod machine;
pub(crate) mod machines;
pub(crate) mod shapes;

pub(crate) use consort_testing::Random;
use consort_testing::{given_seed, mix};
pub(crate) use machine::{execute, execute_often};

/// The seed of a test: its own, or one derived from `CONSORT_TEST_SEED`. Printed.
pub(crate) fn seed(own: u64) -> u64 {
    let given = given_seed();
    let seed = given.map_or(own, |given| mix(given ^ own));
    println!("seed {seed:#x} (CONSORT_TEST_SEED: {given:?})");
    seed
}

/// The numbers of ranks over which a family is proved. With `CONSORT_PROOFS=all`: all up to 64 and those in `beyond`.
/// By default: all up to 24, two powers of two, the neighbours of one, and an odd number that is not a prime.
pub(crate) fn sizes(beyond: &[u32]) -> Vec<u32> {
    match std::env::var_os("CONSORT_PROOFS").is_some_and(|value| value == "all") {
        true => (1..=64).chain(beyond.iter().copied()).collect(),
        false => (1..=24).chain([31, 32, 33, 45, 64]).collect(),
    }
}

/// Compares with the committed file of that name in `tests/snapshots`; writes it first where `CONSORT_SNAPSHOTS` is
/// `write`.
#[track_caller]
pub(crate) fn snapshot(name: &str, text: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(name);
    if std::env::var_os("CONSORT_SNAPSHOTS").is_some_and(|value| value == "write") {
        std::fs::write(&path, text).expect("the snapshot can be written");
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(expected, text, "{name} differs; CONSORT_SNAPSHOTS=write cargo test writes it anew");
}
