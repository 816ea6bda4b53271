//! Slots, channels and choices between hosts that are far apart.

use std::net::Ipv4Addr;
use std::time::Duration;

use consort_algorithms::catalogue::Algorithm;
use consort_algorithms::{Collective, Plan, topology};
use consort_kernels::{DataType, ReduceOp};

use super::{planning_on, settings};
use crate::planner::{Choice, Machine, Planning, Slots};
use consort_control::bootstrap::{Member, RoundTrip};
use consort_settings::options::{SLOT_BYTES_MAX, SLOTS, Settings};
use consort_topology::Place;
use consort_types::call::{Call, Kind};

/// Bytes of a mailbox between hosts that are far apart, at most.
const MAILBOX_MAX: usize = 16 << 20;

pub(super) fn member(host: u8, wire_mbits: u32, micros: u64) -> Member {
    Member {
        host: format!("h{host}"),
        pid: 1,
        process: [host; 16],
        machine: [host; 16],
        host_key: [host; 16],
        wire_mbits,
        ports: vec![],
        round_trip: RoundTrip::of(Duration::from_micros(micros)),
        cores: 64,
        place: Place::default(),
        devices: false,
        device: None,
        graphs: 0,
        hardware: Default::default(),
        unix: vec![],
        tcp: vec![(Ipv4Addr::LOCALHOST, 9).into()],
    }
}

/// Hosts of one rank each that are so far from the meeting point, in microseconds.
fn hosts(wire_mbits: u32, micros: &[u64]) -> Machine {
    let members: Vec<Member> =
        (0..).zip(micros).map(|(host, micros)| member(host, wire_mbits, *micros)).collect();
    Machine::of(members.iter())
}

fn on(machine: &Machine) -> Planning {
    planning_on(machine.clone(), &settings(|options| options))
}

/// Of an algorithm that overlaps folding and sending.
fn slot(planning: &Planning, block_bytes: u64) -> usize {
    planning.with_slots(Algorithm::Tree, Collective::AllReduce, block_bytes).slot_bytes
}

#[test]
fn slots_hold_what_a_wire_carries_in_two_round_trips() {
    let block = 64 << 20;
    // 4 slots, bytes a millisecond, and twice the round trip that is known to the power of two below it.
    for (wire_mbits, micros, expected) in [
        (1000, 1000, 256 << 10),
        (1000, 2500, 256 << 10),
        (1000, 4000, 512 << 10),
        (1000, 10_057, 1 << 20),
        (1000, 100_000, FAR),
        (10_000, 1000, 2 << 20),
        (0, 1000, FAR),
        (0, 500_000, FAR),
    ] {
        let machine = hosts(wire_mbits, &[20, micros]);
        let found = slot(&on(&machine), block);
        assert_eq!(found, expected, "{wire_mbits} Mbit/s, {micros} µs");
        let product = (f64::from(wire_mbits) * 117.5 * micros as f64 / 1000.0) as usize;
        assert!(SLOTS as usize * found >= (2 * product).min(MAILBOX_MAX), "{wire_mbits} Mbit/s, {micros} µs");
    }
    // Two hosts that are both far from the place where they met: by it.
    assert_eq!(slot(&on(&hosts(1000, &[8000, 8000])), block), 2 << 20);
    assert_eq!(slot(&on(&hosts(1000, &[20, 16_000])), block), 2 << 20);
}

/// The longest.
const FAR: usize = MAILBOX_MAX / SLOTS as usize;

#[test]
fn a_piece_fills_all_slots_where_folding_and_sending_overlap_and_one_slot_where_they_do_not() {
    let planning = on(&hosts(0, &[0, 10_000]));
    let in_slots = |algorithm, block| {
        let chosen = planning.with_slots(algorithm, Collective::AllReduce, block);
        let parts = u64::from(algorithm.parts(Collective::AllReduce, 2));
        (block / parts).div_ceil(chosen.slot_bytes as u64)
    };
    let far = FAR as u64;
    for block in [1 << 20, 4 << 20, 16 << 20, 1 << 30] {
        let parts = u64::from(Algorithm::Tree.parts(Collective::AllReduce, 2));
        let slots = (block / parts).div_ceil(far).max(4);
        assert_eq!(in_slots(Algorithm::Tree, block), slots, "{block}");
        // A rank sends the next slot when its partner's has come.
        assert_eq!(in_slots(Algorithm::Doubling, block), block.div_ceil(far), "{block}");
    }
    // The price says which: a message of 1 MiB takes half of a round trip, four messages four times that.
    let seconds =
        |slot| planning.simulated_in_slots(Algorithm::Doubling, Collective::AllReduce, 1 << 20, slot);
    assert!(seconds(256 << 10) > 3.0 * seconds(1 << 20));
    let chosen = planning.choose(Collective::AllReduce, 1 << 20).expect("a choice");
    assert_eq!(chosen.slot_bytes, 1 << 20, "{chosen:?}");
}

#[test]
fn hosts_less_than_a_millisecond_apart_are_planned_as_if_there_were_no_distance() {
    let near = hosts(0, &[0, 0, 0, 0]);
    let almost = hosts(0, &[50, 999, 300, 999]);
    assert_eq!(near, almost);
    assert!(near.far_ms.is_empty());
    assert_eq!(Planning::key(&near, &plain()), Planning::key(&almost, &plain()));
    assert_ne!(Planning::key(&near, &plain()), Planning::key(&hosts(0, &[50, 999, 300, 1000]), &plain()));
    let planning = on(&near);
    for algorithm in planning.candidates(Collective::AllReduce).expect("candidates") {
        let chosen = planning.with_slots(algorithm, Collective::AllReduce, 64 << 20);
        assert!(chosen.slot_bytes <= 256 << 10, "{chosen:?}");
        assert!(planning.longest_slot(algorithm) <= SLOT_BYTES_MAX);
    }
    // The nearest rank of a host counts: the others may have been kept from their cores.
    let members = [member(0, 0, 0), member(1, 0, 700), member(1, 0, 3000)];
    assert!(Machine::of(members.iter()).far_ms.is_empty());
    // One host is near itself, wherever its ranks met.
    let members = [member(0, 0, 5000), member(0, 0, 5000)];
    assert!(Machine::of(members.iter()).far_ms.is_empty());
}

fn plain() -> Settings {
    settings(|options| options)
}

#[test]
fn a_graph_that_was_measured_has_the_slots_of_its_own_distances() {
    let pair = |one, other, latency_ns| {
        let (there_bytes_s, back_bytes_s, both_bytes_s) = (100_000_000, 100_000_000, 100_000_000);
        topology::MeasuredPair { one, other, latency_ns, there_bytes_s, back_bytes_s, both_bytes_s }
    };
    let longest = |latency_ns: u64| {
        let pairs = [pair(0, 1, 50_000), pair(0, 2, latency_ns), pair(1, 2, latency_ns)];
        let wires = topology::measured("tcp:3-measured", &[0, 1, 2], &pairs);
        let planning = Planning::for_topology(&wires, &crate::Options::default()).expect("a plan");
        slot(&planning, 64 << 20)
    };
    // The farthest pair decides: 10 ms there and back at 100 MB/s are 1 MB.
    assert_eq!((longest(400_000), longest(5_000_000), longest(50_000_000)), (256 << 10, 1 << 20, FAR));
}

#[test]
fn a_setting_of_the_slot_wins_over_the_distance() {
    let machine = hosts(0, &[0, 10_000]);
    let given = planning_on(machine.clone(), &settings(|options| options.slot_bytes(64 << 10)));
    assert_eq!((slot(&given, 64 << 20), slot(&on(&machine), 64 << 20)), (64 << 10, FAR));
}

#[test]
fn every_slot_fits_the_mailboxes_of_its_channel_and_mailboxes_are_bounded() {
    let call = |kind: &str, count: usize| match kind {
        "reduce" => Call::all_reduce(DataType::Float32, ReduceOp::Sum, count),
        "exchange" => Call::all_to_all(DataType::Float32, count),
        _ => Call::new(Kind::Send, DataType::Float32, None, 1, count),
    };
    for machine in [hosts(0, &[0, 0]), hosts(0, &[0, 10_000]), hosts(1000, &[0, 1000]), hosts(0, &[2000; 9])]
    {
        let planning = on(&machine);
        for kind in ["reduce", "exchange", "send"] {
            for count in [2, 100_000, 1 << 20, 1 << 24] {
                let choice = Choice::of(&planning, &call(kind, count)).expect("a choice");
                for mapped in [false, true] {
                    let slots = Slots::of(choice.channel_base, mapped);
                    assert!(choice.slot_bytes <= slots.bytes, "{kind} of {count}: {choice:?}");
                    assert!(slots.count * slots.bytes <= if mapped { 2 * MAILBOX_MAX } else { MAILBOX_MAX });
                }
                if planning.is_wide(choice.program.algorithm) {
                    assert!(choice.slot_bytes <= 512 << 10, "{kind} of {count}: {choice:?}");
                }
            }
        }
    }
}

#[test]
fn every_rank_has_the_same_plan_from_the_same_table() {
    let table: Vec<Member> = [(0, 40), (0, 60), (1, 3900), (1, 4100), (2, 12_000)]
        .map(|(host, rtt)| member(host, 0, rtt))
        .to_vec();
    let planned = || -> (u64, Vec<(Choice, Vec<Plan>)>) {
        let machine = Machine::of(table.iter());
        assert_eq!(machine.far_ms, [0, 2, 8]);
        let planning = on(&machine);
        let choices = [8usize, 64 << 10, 16 << 20].map(|count| {
            let call = Call::all_reduce(DataType::Uint8, ReduceOp::Sum, count);
            let choice = Choice::of(&planning, &call).expect("a choice");
            let plans = planning.plans(choice.program.algorithm, Collective::AllReduce).expect("plans");
            (choice, plans)
        });
        (Planning::key(&machine, &plain()), choices.to_vec())
    };
    let first = planned();
    assert!((1..table.len()).all(|_| planned() == first));
    assert!(first.1.last().is_some_and(|(choice, _)| choice.slot_bytes > 256 << 10));
}

#[test]
fn a_round_trip_is_in_the_price_of_every_message_between_hosts() {
    let price = |micros: u64, algorithm| {
        on(&hosts(0, &[0, micros, micros, micros])).price(algorithm, Collective::AllGather, 8)
    };
    // One round, two, and three: each takes half of a round trip at least.
    for (algorithm, rounds) in
        [(Algorithm::Direct { first: 0 }, 1.0), (Algorithm::HalvingDoubling, 2.0), (Algorithm::RING, 3.0)]
    {
        let (near, far) = (price(0, algorithm), price(8000, algorithm));
        assert!(near < 0.001 && far >= rounds * 0.004, "{algorithm}: {near} {far}");
    }
    let chosen = |micros: u64| {
        let planning = on(&hosts(0, &[0, micros, micros, micros]));
        planning.algorithm(Collective::AllGather, 1 << 20).expect("a choice")
    };
    // Longer calls take fewer ways over the wire than where it is short.
    let depth = |algorithm: Algorithm| {
        let cost = algorithm.schedule(Collective::AllGather, 4).cost();
        cost.rounds.min(cost.depth)
    };
    assert!(depth(chosen(8000)) < depth(chosen(0)), "{} {}", chosen(8000), chosen(0));
}

/// A distance is measured anew in every run: bits must not depend on it, while slots and what only moves bytes may.
#[test]
fn a_distance_changes_no_order_of_folding() {
    let folding = [Collective::AllReduce, Collective::Reduce, Collective::ReduceScatter];
    let sizes = [8, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20];
    for layout in [&[0u8, 1, 2, 3][..], &[0, 0, 1, 1, 2, 2], &[0, 1, 0, 1], &[0, 0, 1]] {
        let at = |far: u64| {
            let micros = |host: u8| if host == 0 { 50 } else { far };
            let members: Vec<Member> = layout.iter().map(|host| member(*host, 0, micros(*host))).collect();
            on(&Machine::of(members.iter()))
        };
        let near = at(50);
        for far in [1000, 1999, 2000, 8000, 60_000] {
            let planning = at(far);
            for (collective, bytes) in folding.iter().flat_map(|of| sizes.map(|bytes| (*of, bytes))) {
                let chosen = |planning: &Planning| planning.choose(collective, bytes).expect("a choice");
                let (here, there) = (chosen(&near), chosen(&planning));
                let same = here.algorithm == there.algorithm;
                assert!(same, "{layout:?}, {collective:?} of {bytes}: {here:?}, {there:?} at {far} µs");
                let plans = |planning: &Planning| planning.plans(here.algorithm, collective).expect("plans");
                assert_eq!(plans(&near), plans(&planning), "{layout:?}, {collective:?} of {bytes}");
            }
        }
    }
    // Two ranks fold in one order.
    let two = on(&hosts(0, &[50, 10_000]));
    let alike = on(&hosts(0, &[50, 50]));
    let price = |planning: &Planning| planning.price(Algorithm::Doubling, Collective::AllReduce, 8);
    assert!(price(&two) > price(&alike) + 0.003);
}
