//! What the tests share: a seeded generator, committed files, and an executor that knows nothing of the verifier.
#![allow(dead_code, unused_imports, reason = "each test binary uses a part")]

pub(crate) mod hand;
mod machine;
pub(crate) mod shapes;

pub(crate) use machine::{execute, execute_often};

/// SplitMix64 (Steele, Lea, Flood 2014).
pub(crate) struct Random(pub(crate) u64);

/// The seed of a test: its own, or one derived from `CONSORT_TEST_SEED`. Printed.
pub(crate) fn seed(own: u64) -> u64 {
    let given = std::env::var("CONSORT_TEST_SEED").ok().and_then(|text| text.parse::<u64>().ok());
    let seed = given.map_or(own, |given| hash(given ^ own));
    println!("seed {seed:#x} (CONSORT_TEST_SEED: {given:?})");
    seed
}

/// The numbers of ranks over which a family is proved: all up to 64 and those in `beyond` if `CONSORT_PROOFS` is `all`;
/// usually all up to 24, two powers of two, the neighbours of one, and one that is odd and no prime.
pub(crate) fn sizes(beyond: &[u32]) -> Vec<u32> {
    match std::env::var_os("CONSORT_PROOFS").is_some_and(|value| value == "all") {
        true => (1..=64).chain(beyond.iter().copied()).collect(),
        false => (1..=24).chain([31, 32, 33, 45, 64]).collect(),
    }
}

/// Compares with the committed file of that name in `tests/snapshots`; writes it first if `CONSORT_SNAPSHOTS` says so.
#[track_caller]
pub(crate) fn snapshot(name: &str, text: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(name);
    if std::env::var_os("CONSORT_SNAPSHOTS").is_some_and(|value| value == "write") {
        std::fs::write(&path, text).expect("the snapshot can be written");
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(expected, text, "{name} differs; CONSORT_SNAPSHOTS=write cargo test writes it anew");
}

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        hash(self.0)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    pub(crate) fn one_in(&mut self, odds: usize) -> bool {
        self.below(odds) == 0
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

fn hash(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
