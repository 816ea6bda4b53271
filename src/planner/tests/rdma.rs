//! Prices and choices where adapters carry what goes between ranks.

use std::collections::BTreeSet;

use consort_algorithms::Collective;
use consort_algorithms::catalogue::Algorithm;
use consort_algorithms::topology::{self, NodeId, Routes};

use super::{planning_on, settings};
use crate::planner::{Machine, Planning};
use consort_control::bootstrap::{AdapterPort, Member};
use consort_settings::options::TransportChoice;

/// Ports with their marks and megabits a second.
type Ports<'a> = &'a [(u32, u32)];

/// What each rank of a table says: its host, its memory node, and the ports among which it takes turns, with their megabits a second.
fn table(ranks: &[(u8, u32, Ports<'_>)]) -> Vec<Member> {
    let of = |(host, node, ports): &(u8, u32, Ports<'_>)| {
        let mut member = super::far::member(*host, 25_000, 20);
        member.place.node = Some(*node);
        member.ports = ports.iter().map(|&(mark, mbits)| AdapterPort { mark, mbits }).collect();
        member
    };
    ranks.iter().map(of).collect()
}

/// Hosts of eight ranks, each with a port of its own.
fn boxes(hosts: u8, mbits: u32) -> Vec<Member> {
    let ports: Vec<(u32, u32)> = (0..8).map(|mark| (mark, mbits)).collect();
    let ranks: Vec<(u8, u32, Ports<'_>)> =
        (0..hosts).flat_map(|host| (0..8).map(move |_| (host, 0))).map(|(h, n)| (h, n, &ports[..])).collect();
    table(&ranks)
}

fn machine(table: &[Member]) -> Machine {
    let ranks: Vec<u32> = (0..table.len() as u32).collect();
    Machine::of(table.iter()).at_ports(table, &ranks)
}

fn by(transport: TransportChoice, table: &[Member]) -> Planning {
    planning_on(machine(table), &settings(|options| options.transport(transport)))
}

#[test]
fn ranks_take_ports_in_their_turn_and_those_of_one_port_share_it() {
    let two: Ports<'_> = &[(7, 100_000), (9, 100_000)];
    let one: Ports<'_> = &[(7, 400_000)];
    let all = table(&[(0, 0, two), (0, 1, two), (0, 0, two), (0, 0, two), (1, 0, one), (1, 0, &[])]);
    let ports = machine(&all).ports;
    let numbers: Vec<u32> = ports.iter().map(|port| port.number).collect();
    // Turns are counted by memory node, and a port of another host is another one.
    assert_eq!(numbers, [0, 0, 1, 0, 2, 3]);
    let gb = |port: usize| ports[port].bytes_s.map(|bytes_s| bytes_s / 100_000_000);
    assert_eq!([gb(0), gb(4), gb(5)], [Some(121), Some(485), None]);
    // A part of a job has the ports that its ranks have, whatever their numbers are in it.
    let part = Machine::of(all[2..4].iter()).at_ports(&all, &[2, 3]);
    assert_eq!(part.ports.iter().map(|port| port.number).collect::<Vec<_>>(), [0, 1]);
    assert!(machine(&table(&[(0, 0, &[]), (1, 0, &[])])).ports.is_empty());
    let topology = by(TransportChoice::Verbs, &all).topology().clone();
    let way = Routes::new(&topology).from(NodeId(0), &[NodeId(3)]).pop().flatten().expect("a way");
    let through: BTreeSet<&str> =
        way.iter().map(|link| &*topology.nodes()[topology.links()[link.index()].to.index()].name).collect();
    assert!(through.contains("port0") && !through.contains("network"), "{through:?}");
}

#[test]
fn a_price_falls_with_the_speed_of_ports_and_with_how_few_ranks_share_one() {
    let bytes = 64 << 20;
    let price = |table: &[Member]| {
        by(TransportChoice::Verbs, table).price(Algorithm::RING, Collective::AllReduce, bytes)
    };
    let prices = [2_500, 10_000, 25_000, 40_000].map(|mbits| price(&boxes(2, mbits)));
    assert!(prices.is_sorted_by(|slow, fast| fast < slow), "{prices:?}");
    assert!(prices[0] > 3.5 * prices[1], "{prices:?}");
    // From there on the copies of cores are the limit, and no port makes them dearer.
    let most = [100_000, 400_000].map(|mbits| price(&boxes(2, mbits)));
    assert!(prices[3] > most[0] && most[0] >= most[1], "{prices:?} {most:?}");
    let shared = |ports: Ports<'_>| {
        let ranks: Vec<(u8, u32, Ports<'_>)> = (0..16).map(|rank| (rank / 8, 0, ports)).collect();
        price(&table(&ranks))
    };
    let (one, four) = (shared(&[(0, 10_000)]), shared(&[0, 1, 2, 3].map(|mark| (mark, 10_000))));
    assert!(one > 3.0 * four && four > prices[1], "{one} {four} {prices:?}");
    // On one host too everything goes by the ports.
    let host = |mbits| price(&boxes(1, mbits));
    assert!(host(2_500) > 3.0 * host(10_000));
}

#[test]
fn the_slowest_port_is_in_the_price_of_what_passes_it_alone() {
    let fast: Ports<'_> = &[(0, 400_000)];
    let slow: Ports<'_> = &[(0, 1_000)];
    let of = |third| table(&[(0, 0, fast), (1, 0, fast), (2, 0, third), (3, 0, fast)]);
    let price = |table: &[Member], algorithm| {
        by(TransportChoice::Verbs, table).price(algorithm, Collective::AllReduce, 64 << 20)
    };
    assert!(price(&of(slow), Algorithm::RING) > 10.0 * price(&of(fast), Algorithm::RING));
    // A message between two others costs what it did.
    let topology = by(TransportChoice::Verbs, &of(slow)).topology().clone();
    let narrowest = |from, to| {
        let way = Routes::new(&topology).from(NodeId(from), &[NodeId(to)]).pop().flatten().expect("a way");
        way.iter().map(|link| topology.links()[link.index()].bandwidth_bytes_s).min().expect("links")
    };
    assert_eq!([narrowest(0, 3), narrowest(0, 2)], [48_500_000_000, 121_250_000]);
}

#[test]
fn ranks_whose_ports_differ_plan_alike() {
    let (fast, slow): (Ports<'_>, Ports<'_>) = (&[(3, 400_000), (4, 400_000)], &[(5, 25_000)]);
    let all = table(&[(0, 0, fast), (0, 0, fast), (1, 0, slow), (1, 0, slow), (2, 1, &[])]);
    // Every rank has the table, and nothing of its own.
    let planned = || {
        let machine = machine(&all);
        let settings = settings(|options| options.transport(TransportChoice::Verbs));
        let planning = planning_on(machine.clone(), &settings);
        let choices = [8u64, 64 << 10, 16 << 20].map(|bytes| {
            let algorithm = planning.algorithm(Collective::AllReduce, bytes).expect("a choice");
            (algorithm, planning.plans(algorithm, Collective::AllReduce).expect("plans"))
        });
        (Planning::key(&machine, &settings), planning.graph_hash(), choices)
    };
    let first = planned();
    assert!((1..all.len()).all(|_| planned() == first));
    // What one rank says is in the key of all.
    let other = table(&[(0, 0, fast), (0, 0, fast), (1, 0, slow), (1, 0, fast), (2, 1, &[])]);
    let settings = settings(|options| options.transport(TransportChoice::Verbs));
    assert_ne!(Planning::key(&machine(&other), &settings), first.0);
}

#[test]
fn two_dgx_like_machines_plan_otherwise_by_adapters_than_by_sockets() {
    let table = boxes(2, 400_000);
    let (verbs, tcp) = (by(TransportChoice::Verbs, &table), by(TransportChoice::Tcp, &table));
    assert_eq!((verbs.topology().name.as_str(), tcp.topology().name.as_str()), ("rdma:2x8", "tcp:2x8"));
    let named = |transport| {
        let dgx = topology::profile("dgx-h100:2").expect("a profile").to_string();
        let mut settings = settings(|options| options.transport(transport));
        settings.preferences.topology = Some(dgx.into());
        planning_on(machine(&table), &settings)
    };
    let (by_verbs, by_tcp) = (named(TransportChoice::Verbs), named(TransportChoice::Tcp));
    let mut differ = 0;
    for collective in [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter] {
        for bytes in [8u64, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20] {
            for (what, verbs, tcp) in [("table", &verbs, &tcp), ("dgx-h100:2", &by_verbs, &by_tcp)] {
                let [one, other] =
                    [verbs, tcp].map(|planning| planning.algorithm(collective, bytes).expect("a choice"));
                let [low, high] = [verbs.price(one, collective, bytes), tcp.price(other, collective, bytes)];
                println!("{what} {collective} {bytes}: verbs {one} {low:.2e}, tcp {other} {high:.2e}");
                assert!(low < high, "{what} {collective} {bytes}: {one} {low}, {other} {high}");
                differ += u32::from(one != other);
            }
        }
    }
    assert!(differ > 0, "no choice differs");
}
