//! Choices between hosts, whose ranks share adapters and cores.

use consort_algorithms::bounds::{self, bound};
use consort_algorithms::catalogue::Algorithm;
use consort_algorithms::simulate::{self, simulate};
use consort_algorithms::{Collective, Rank};

use super::{planning_on, settings};
use crate::planner::Machine;
use crate::planner::machine::Between;
use consort_settings::options::{SLOTS, TransportChoice};

/// Hosts of equal numbers of ranks, each with an adapter of 25 Gb/s.
fn hosts(hosts: u32, per_box: u32) -> Machine {
    let mut machine = Machine::of_one_host(hosts * per_box, 64);
    (machine.hosts, machine.per_box, machine.between) = (hosts, per_box, Between::Sockets);
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

/// The machine of ranks on these hosts, each with a wire of this rate.
fn machine_of(host_of: &[u32], wire_mbits: u32) -> Machine {
    let count = host_of.iter().max().map_or(0, |last| last + 1);
    let mut machine = Machine::of_one_host(host_of.len() as u32, 64);
    (machine.hosts, machine.per_box, machine.between) = (count, 1, Between::Sockets);
    Machine { wire_mbits, host_of: host_of.to_vec(), ..machine }
}

/// Layouts of hosts that are in no order, or not alike.
const LAYOUTS: [&[u32]; 8] = [
    &[0, 1, 0, 1],
    &[0, 0, 1],
    &[0, 0, 0, 1],
    &[0, 0, 1, 1, 1],
    &[0, 0, 0, 1, 1, 2],
    &[0, 1, 2, 3, 0, 1, 2, 3],
    &[0, 1, 1, 0, 2, 2, 2, 0, 1],
    &[0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2],
];

#[test]
fn calls_between_hosts_that_are_not_alike_are_near_what_their_wires_allow() {
    // In whole blocks for each number of ranks.
    let bytes = 16u64 << 20;
    let near = [
        (Collective::AllReduce, 1.05),
        (Collective::AllGather, 1.1),
        (Collective::ReduceScatter, 1.1),
        (Collective::Broadcast, 1.05),
        (Collective::Reduce, 1.05),
    ];
    for host_of in LAYOUTS {
        let planning = planning_on(machine_of(host_of, 1000), &settings(|options| options));
        let ranks = host_of.len() as u32;
        for (collective, most) in near {
            let blocks = u64::from(collective.input_blocks(ranks).max(collective.output_blocks(ranks)));
            let class = (bytes / blocks).next_power_of_two();
            let options = bounds::Options { root: Some(Rank(0)), ..bounds::Options::default() };
            let rate = bound(planning.topology(), collective, &options).expect("a bound").rate.value();
            let least = (class * blocks) as f64 / rate;
            let ratio = |algorithm| planning.price(algorithm, collective, class) / least;
            let candidates = planning.candidates(collective).expect("candidates");
            let of_catalogue = candidates.iter().filter(|algorithm| !algorithm.is_imported());
            let before = of_catalogue.map(|algorithm| ratio(*algorithm)).fold(f64::INFINITY, f64::min);
            let chosen = planning.algorithm(collective, class).expect("a choice");
            println!("{host_of:?} {collective}: {chosen} {:.3}, catalogue {before:.3}", ratio(chosen));
            assert!(ratio(chosen) <= most, "{host_of:?} {collective}: {chosen}, {}", ratio(chosen));
        }
    }
}

#[test]
fn what_is_made_between_hosts_is_made_again_for_every_root() {
    let planning = planning_on(machine_of(&[0, 1, 0, 1], 1000), &settings(|options| options));
    for collective in [Collective::Broadcast, Collective::Reduce] {
        let chosen = planning.algorithm(collective, 16 << 20).expect("a choice");
        assert!(planning.is_searched(chosen, collective), "{collective}: {chosen}");
        for root in 1..4 {
            let turned = planning.turned(chosen, collective, root);
            // From ranks 1 and 3 hosts are in another order.
            assert_eq!(turned == chosen, root == 2, "{collective} from {root}: {turned}");
            assert!(
                turned.is_defined(collective, 4) && turned.is_imported(),
                "{collective} from {root}: {turned}"
            );
        }
        // Counted from rank 2, hosts are where they are from rank 0.
        assert_eq!(planning.turned(chosen, collective, 2), chosen);
    }
}

#[test]
fn hosts_that_are_alike_and_in_order_and_hosts_of_one_rank_have_the_catalogue_alone() {
    for machine in [hosts(2, 2), hosts(4, 1), machine_of(&[0, 1, 2], 1000)] {
        let planning = planning_on(machine, &settings(|options| options));
        for collective in Collective::ALL.into_iter().filter(|of| *of != Collective::SendReceive) {
            assert!(planning.searched(collective).is_empty(), "{collective}");
        }
    }
}

#[test]
fn a_restriction_can_name_what_is_made_between_hosts_or_leave_it_out() {
    let chosen = |list: &str| {
        let settings = settings(|options| options.algorithms(list));
        let planning = planning_on(machine_of(&[0, 0, 1, 1, 1], 1000), &settings);
        let algorithm = planning.algorithm(Collective::AllReduce, 16 << 20).expect("a choice");
        planning.is_searched(algorithm, Collective::AllReduce)
    };
    assert!(chosen("made") && !chosen("^made"));
}
