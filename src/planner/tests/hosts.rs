//! Choices between hosts, whose ranks share adapters and cores.

use consort_algorithms::Collective;
use consort_algorithms::catalogue::Algorithm;
use consort_algorithms::simulate::{self, simulate};

use super::{planning_on, settings};
use crate::planner::Machine;
use consort_settings::options::{SLOTS, TransportChoice};

/// Hosts of equal numbers of ranks, each with an adapter of 25 Gb/s.
fn hosts(hosts: u32, per_box: u32) -> Machine {
    let mut machine = Machine::of_one_host(hosts * per_box, 64);
    (machine.hosts, machine.per_box, machine.sockets) = (hosts, per_box, true);
    machine
}

#[test]
fn a_choice_between_hosts_is_as_good_as_the_best_that_is_simulated() {
    for (machine, sizes) in [(hosts(4, 8), [64 << 10, 4 << 20]), (hosts(8, 4), [256 << 10, 4 << 20])] {
        let planning = planning_on(machine, &settings(|options| options));
        for collective in [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter] {
            for bytes in sizes {
                // Whatever a formula says of those that are too long to be simulated when a call is planned.
                let block = if collective == Collective::AllReduce { bytes } else { bytes / 32 };
                let time = |algorithm: Algorithm| {
                    let slot_bytes = planning.with_slots(algorithm, collective, block).slot_bytes;
                    let options = simulate::Options {
                        slot_bytes,
                        slots: SLOTS,
                        messages_max: 1 << 16,
                        ..simulate::Options::new(block as usize)
                    };
                    let schedule = algorithm.schedule(collective, 32);
                    simulate(&schedule, planning.topology(), &options).expect("a time").seconds()
                };
                let chosen = planning.algorithm(collective, block).expect("a choice");
                let candidates = planning.candidates(collective).expect("candidates");
                let (best, least) = candidates
                    .into_iter()
                    .map(|algorithm| (algorithm, time(algorithm)))
                    .min_by(|one, other| one.1.total_cmp(&other.1))
                    .expect("a candidate");
                let takes = time(chosen);
                assert!(
                    takes <= 1.2 * least,
                    "{collective} of {bytes}: {chosen} takes {takes}, {best} {least}"
                );
            }
        }
    }
}

#[test]
fn what_ranks_share_is_in_every_price() {
    let price = |machine: Machine, algorithm, bytes| {
        planning_on(machine, &settings(|options| options)).price(algorithm, Collective::AllReduce, bytes)
    };
    let bytes = 4 << 20;
    // The 8 ranks of a host send 2 * 8 * 24 / 32 of the buffer through one adapter.
    let alone = 12.0 * bytes as f64 / 3.1e9;
    let shared = price(hosts(4, 8), Algorithm::TwoShot, bytes);
    assert!(shared >= alone && shared < 1.5 * alone, "{shared}, the bytes alone {alone}");
    // The system reports a faster adapter, or a slower one.
    let with = |mbits| price(Machine { wire_mbits: mbits, ..hosts(4, 8) }, Algorithm::TwoShot, bytes);
    assert!(with(100_000) < shared / 2.0 && with(1000) > 10.0 * shared, "{} {}", with(100_000), with(1000));
    // Each of the ranks that take turns on a core waits for the others.
    let turns = |turns| price(Machine { turns, ..hosts(4, 1) }, Algorithm::Doubling, 8);
    assert!(turns(4) > 2.0 * turns(1), "{} {}", turns(4), turns(1));
    // Hosts of different numbers of ranks share what they have.
    let uneven = Machine { per_box: 1, host_of: vec![0, 0, 0, 1], ..hosts(2, 2) };
    let ring = Algorithm::Ring { channels: 1, bidirectional: false };
    let topology = uneven.topology(TransportChoice::Auto);
    assert_eq!((topology.name.as_str(), topology.boxes().len()), ("tcp:3+1", 2));
    let even = price(hosts(2, 2), ring, bytes);
    let takes = price(uneven, ring, bytes);
    assert!(takes.is_finite() && takes < 2.0 * even && takes > even / 2.0, "{takes}, {even}");
    // Neighbours that are all on other hosts send everything over the wire, however many ranks there are.
    for ranks in [16, 128] {
        let scattered =
            Machine { per_box: 1, host_of: (0..ranks).map(|rank| rank % 2).collect(), ..hosts(2, ranks / 2) };
        let together = price(hosts(2, ranks / 2), ring, 64 << 20);
        let scattered = price(scattered, ring, 64 << 20);
        assert!(scattered > 2.0 * together, "{ranks}: {scattered}, {together}");
    }
}
