//! What the tests of checked memory share: seeds, and what came of them.

pub(crate) mod records;

use std::fmt;
use std::ops::Range;

use consort_standin_ptx::{Fault, Options, Problem};

/// What a run showed.
#[derive(Debug)]
pub(crate) enum Wrong {
    /// The interpreter stopped it.
    Fault(Fault),
    /// It ended, and left other bytes than it should.
    Bytes(&'static str),
}

impl From<Fault> for Wrong {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fault(fault) => fault.fmt(f),
            Self::Bytes(what) => write!(f, "wrong bytes: {what}"),
        }
    }
}

/// The seeds to try: `CONSORT_PTX_SEEDS` of them, or `usual`, from `CONSORT_TEST_SEED` on, or from 0.
fn seeds(usual: u64) -> Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("CONSORT_TEST_SEED").unwrap_or(0);
    first..first.saturating_add(number("CONSORT_PTX_SEEDS").unwrap_or(usual))
}

/// Runs `once` with every seed and fails, naming the seed, when anything is wrong with one.
#[track_caller]
pub(crate) fn clean(what: &str, usual: u64, mut once: impl FnMut(Options) -> Result<(), Wrong>) {
    for seed in seeds(usual) {
        if let Err(wrong) = once(Options::seeded(seed)) {
            panic!("{what}, seed {seed}: {wrong}");
        }
    }
}

/// Runs `once` with seeds until something is wrong; fails when nothing is with any, or when `wanted` says that it
/// is not what was planted.
#[track_caller]
pub(crate) fn found(
    what: &str,
    most: u64,
    wanted: impl Fn(&Problem) -> bool,
    once: impl FnMut(Options) -> Result<(), Wrong>,
) {
    let Some((seed, wrong)) = first(most, once) else { panic!("{what}: not found with {most} seeds") };
    println!("{what}: found with seed {seed}: {wrong}");
    if let Wrong::Fault(fault) = &wrong {
        assert!(wanted(&fault.problem), "{what}, seed {seed}: another fault than the planted one: {fault}");
    }
}

/// The first of `most` seeds with which something is wrong, and what.
pub(crate) fn first(most: u64, mut once: impl FnMut(Options) -> Result<(), Wrong>) -> Option<(u64, Wrong)> {
    (0..most).find_map(|seed| Some((seed, once(Options::seeded(seed)).err()?)))
}

/// Whether it is a data race.
pub(crate) fn race(problem: &Problem) -> bool {
    matches!(problem, Problem::Race { .. })
}

/// Whatever stops a run.
pub(crate) fn anything(_: &Problem) -> bool {
    true
}
