//! What is alike is run once: equal to the run of every rank, whatever is damaged.

use std::cell::Cell;

use consort_algorithms::catalogue::{Algorithm, Shape, candidates};
use consort_algorithms::simulate::{
    Options, Outcome, SimulateError, simulate, simulate_each, simulate_regular,
};
use consort_algorithms::topology::{
    Link, Topology, dgx_a100, dgx_h100, dgx_h100_flat, host, host_of_domains, pcie, tcp, torus,
};
use consort_algorithms::{Collective, Rank, Schedule, whole};

use crate::common::{Random, seed};

/// A machine of at most 64 ranks, and the ranks of a box.
fn machine(random: &mut Random) -> (Topology, u32) {
    let few = 1 + random.below(4) as u32;
    match random.below(9) {
        0 => (dgx_h100(few), 8),
        1 => (dgx_a100(2 * few), 8),
        2 => (dgx_h100_flat(few), 8),
        3 => (pcie(few), 8),
        4 => (host(3 * few), 1),
        5 => (host_of_domains(few, 4, 8), 4),
        6 => (tcp(2 * few, 3), 3),
        7 => (torus(&[few + 1, 4]), 1),
        _ => (torus(&[2, few, 3]), 1),
    }
}

/// One of the algorithms that a planner prices there.
fn algorithm(random: &mut Random, ranks: u32, per_box: u32) -> (Collective, Algorithm) {
    loop {
        let collective = Collective::ALL[random.below(Collective::ALL.len())];
        let shape = Shape {
            per_box,
            channels: 1 + random.below(3) as u16,
            bidirectional: random.one_in(2),
            all_pairs: random.one_in(4),
            rails: if random.one_in(2) { per_box } else { 0 },
            ..Shape::default()
        };
        let named = candidates(collective, ranks, &shape);
        if collective != Collective::SendReceive && !named.is_empty() {
            return (collective, named[random.below(named.len())]);
        }
    }
}

fn options(random: &mut Random) -> Options {
    let block_bytes = match random.below(3) {
        0 => 1 + random.below(5000),
        1 => 1 << random.below(21),
        _ => random.below(3 << 20),
    };
    Options {
        slot_bytes: 1 << (8 + random.below(14)),
        slots: 1 + random.below(5) as u32,
        work: random.one_in(2),
        messages_max: 1 << random.below(13),
        ..Options::new(block_bytes)
    }
}

/// Both runs. Their times are whole picoseconds of the same shares, summed up in another order.
#[track_caller]
fn assert_equal(schedule: &Schedule, topology: &Topology, options: &Options) -> Outcome {
    let each = simulate_each(schedule, topology, options).expect("it has a time");
    let once = simulate(schedule, topology, options).expect("it has a time");
    assert_eq!(once, each, "{} on {}, {options:?}", schedule.name, topology.name);
    once
}

#[test]
fn what_is_alike_is_run_once_with_the_same_outcome() {
    let seed = seed(0x0a11_4ce5);
    let mut random = Random(seed);
    for _ in 0..150 {
        let (topology, per_box) = machine(&mut random);
        let (collective, algorithm) = algorithm(&mut random, topology.ranks(), per_box);
        let schedule = algorithm.schedule(collective, topology.ranks());
        assert_equal(&schedule, &topology, &options(&mut random));
    }
}

#[test]
fn one_damaged_link_or_transfer_is_seen() {
    let seed = seed(0x0dda_11b6);
    let mut random = Random(seed);
    let mut seen = [0, 0];
    for case in 0..100 {
        let (topology, per_box) = machine(&mut random);
        let (collective, algorithm) = algorithm(&mut random, topology.ranks(), per_box);
        let mut schedule = algorithm.schedule(collective, topology.ranks());
        let options = options(&mut random);
        let sound = simulate(&schedule, &topology, &options).expect("it has a time");
        let damaged = if case % 2 == 0 {
            let (at, number) = (random.below(topology.links().len()), Cell::new(0));
            let damaged = topology.map_links(|_, link| {
                let here = number.replace(number.get() + 1) == at;
                let slower = Link { bandwidth_bytes_s: link.bandwidth_bytes_s / 3, ..link };
                if here { slower } else { link }
            });
            assert_equal(&schedule, &damaged, &options)
        } else {
            let round = random.below(schedule.rounds.len());
            let transfers = &mut schedule.rounds[round].transfers;
            if transfers.is_empty() {
                continue;
            }
            let at = random.below(transfers.len());
            transfers[at].to = Rank(random.below(topology.ranks() as usize) as u32);
            assert_equal(&schedule, &topology, &options)
        };
        seen[case % 2] += u32::from(damaged != sound);
    }
    assert!(seen.iter().all(|&seen| seen > 10), "{seen:?}");
}

#[test]
fn orbits_have_the_outcome_of_all_ranks() {
    let seed = seed(0x0b17_5eed);
    let mut random = Random(seed);
    let mut regular_ones = 0;
    while regular_ones < 60 {
        let (topology, per_box) = machine(&mut random);
        let (collective, algorithm) = algorithm(&mut random, topology.ranks(), per_box);
        let Some(regular) = algorithm.regular(collective, topology.ranks()) else { continue };
        regular_ones += 1;
        let options = options(&mut random);
        let each = simulate_each(&whole(&*regular), &topology, &options).expect("it has a time");
        let orbits = simulate_regular(&*regular, &topology, &options).expect("it has a time");
        assert_eq!(orbits, each, "{algorithm} on {}, {options:?}", topology.name);
    }
}

#[test]
fn thousands_of_ranks_are_run_by_their_orbits() {
    let topology = dgx_h100(2048);
    let rings = [(1, false), (2, true)]
        .map(|(channels, bidirectional)| Algorithm::Ring { channels, bidirectional })
        .map(|ring| (ring, Collective::AllGather));
    for (algorithm, collective) in rings.into_iter().chain([(Algorithm::Doubling, Collective::AllReduce)]) {
        let regular = algorithm.regular(collective, 16_384).expect("it is regular");
        let outcome = simulate_regular(&*regular, &topology, &Options::new(1 << 10)).expect("it has a time");
        assert!(outcome.time_ps > 0 && outcome.slices_run == 1, "{algorithm}");
    }
}

#[test]
fn without_a_symmetry_many_ranks_are_too_many() {
    let number = Cell::new(0);
    let slower = dgx_h100(256).map_links(|_, link| {
        let bandwidth_bytes_s = link.bandwidth_bytes_s - u64::from(number.replace(number.get() + 1) == 77);
        Link { bandwidth_bytes_s, ..link }
    });
    let ring = Algorithm::Ring { channels: 1, bidirectional: false };
    let regular = ring.regular(Collective::AllReduce, 2048).expect("it is regular");
    assert_eq!(simulate_regular(&*regular, &slower, &Options::new(1 << 20)), Err(SimulateError::TooLarge));
}
