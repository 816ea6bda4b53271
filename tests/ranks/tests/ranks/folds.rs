//! Bits that depend on the call and the number of ranks alone, and bits that are the same in every run.

use consort::{Determinism, Options, TransportChoice};
use consort_tests::job::{Start, alone};
use consort_tests::system::Random;
use consort_tests::{Links, bits, folds, on_ranks, results_of_ranks};

use crate::RANK;

/// Lengths of vectors in bytes: at least every size class between them has other slots.
const LENGTHS: [usize; 6] = [8, 500, 5000, 40_000, 300_000, 4 << 20];

fn invariant() -> Options {
    Options::default().determinism(Determinism::Invariant)
}

#[test]
fn invariant_bits_are_those_of_the_left_fold_over_the_ranks() {
    let seed = Random::announced("invariant_bits_are_those_of_the_left_fold_over_the_ranks").seed();
    for size in [1, 2, 3, 4, 5, 7, 8, 16] {
        let lengths = if size <= 4 { &LENGTHS[..] } else { &LENGTHS[..4] };
        on_ranks(size, Links::Local, &invariant(), |comm| folds::everything(comm, seed, lengths));
    }
}

#[test]
fn invariant_bits_do_not_depend_on_channels_slots_or_links() {
    let seed = Random::announced("invariant_bits_do_not_depend_on_channels_slots_or_links").seed();
    let settings = [
        (3, invariant().channels(3), Links::Local),
        (4, invariant().bidirectional(true), Links::Local),
        (5, invariant().channels(2).bidirectional(true).slot_bytes(16 << 10), Links::Local),
        (3, invariant().transport(TransportChoice::Tcp), Links::Joined),
    ];
    for (size, options, links) in settings {
        on_ranks(size, links, &options, |comm| folds::everything(comm, seed, &LENGTHS[..5]));
    }
}

#[test]
fn invariant_bits_are_the_same_among_processes() {
    let seed = Random::announced("invariant_bits_are_the_same_among_processes").seed();
    for (size, transport, channels) in [(2, "shm", 1), (4, "shm", 3), (3, "tcp", 2)] {
        let _alone = alone();
        let start = Start::new(RANK, "folds", size).with("seed", seed).env("CONSORT_TRANSPORT", transport);
        let start = start.env("CONSORT_DETERMINISM", "invariant").env("CONSORT_CHANNELS", channels);
        start.env("CONSORT_BIDIRECTIONAL", 1).env("CONSORT_TIMEOUT", 30).go().all_end_well();
    }
}

/// The planner may choose an algorithm that folds in another order, but always the same.
#[test]
fn bits_are_the_same_in_every_run() {
    for size in [3, 8] {
        let run = || {
            results_of_ranks(size, Links::Local, &Options::default(), |comm| {
                bits::of_everything(comm, 0).expect("bits")
            })
        };
        let (first, again) = (run(), run());
        for rank in 0..size as usize {
            assert!(bits::differences(&first[0], &first[rank]).is_empty(), "ranks 0 and {rank} of {size}");
            assert!(bits::differences(&first[0], &again[rank]).is_empty(), "rank {rank} of {size} again");
        }
    }
}
