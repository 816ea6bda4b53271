//! Greedy schedules of random and damaged machines: always there where ranks reach each other, proved, and never above
//! the bound.

use consort_algorithms::synthesize::greedy::{Greedy, Options, schedule};
use consort_algorithms::synthesize::rate;
use consort_algorithms::topology::{Costs, NodeId, NodeKind, Topology, profile};
use consort_algorithms::{Collective, LowerOptions, Rank, lower_all, verify};

use crate::common::machines::machine;
use crate::common::{Random, seed};

/// The schedules of a machine, each proved; gives the share of the bound of each that has one.
fn proved(topology: &Topology, root: Rank, options: &Options, what: &str) -> Vec<(Collective, f64)> {
    let mut shares = Vec::new();
    for collective in Collective::ALL.into_iter().filter(|one| *one != Collective::SendReceive) {
        let found = schedule(topology, collective, root, options);
        let found = found.unwrap_or_else(|| panic!("{what}: no {collective} on\n{topology}"));
        let Greedy { schedule: of, bound, .. } = &found;
        assert_eq!((of.collective, of.ranks), (collective, topology.ranks()), "{what}");
        for slots in [1, 4] {
            let plans =
                lower_all(of, &LowerOptions { slots }).unwrap_or_else(|error| panic!("{what}: {error}"));
            if let Err(refusal) = verify(&plans) {
                panic!("{what}: {collective} with {slots} slots: {refusal}");
            }
        }
        let Some(bound) = bound else { continue };
        assert!(found.rate <= bound.rate, "{what}: {collective} at {:?} beats {bound:?}", found.rate);
        shares.push((collective, found.share().expect("it fits").value()));
        if root.0 == 0 {
            assert_eq!(rate(of, topology).expect("routes"), Some(found.rate), "{what}: {collective}");
        }
    }
    shares
}

/// Says the least and the mean share of each collective.
fn print(shares: &[(Collective, f64)]) {
    for collective in Collective::ALL {
        let of: Vec<f64> =
            shares.iter().filter(|(one, _)| *one == collective).map(|(_, share)| *share).collect();
        if !of.is_empty() {
            let mean = of.iter().sum::<f64>() / of.len() as f64;
            let least = of.iter().copied().fold(f64::INFINITY, f64::min);
            println!("{collective}: mean {mean:.3}, least {least:.3} of the bound on {} machines", of.len());
        }
    }
}

/// Pieces that keep the proofs short.
const SHORT: Options = Options { pieces_max: 2, channels: 4, looks_max: 1 << 20 };

#[test]
fn random_machines_have_schedules_that_are_proved_and_within_the_bound() {
    let mut random = Random::new(seed(0x5eed_0601));
    let mut shares = Vec::new();
    for number in 0..40 {
        let topology = machine(&mut random, 9, 5);
        if !reaches(&topology) {
            continue;
        }
        let root = Rank(random.below(topology.ranks() as usize) as u32);
        shares.extend(proved(&topology, root, &SHORT, &format!("random machine {number}")));
    }
    print(&shares);
    assert!(shares.len() > 100, "too few machines reach all of their ranks");
}

/// Whether every rank has a route to every other, or over others.
fn reaches(topology: &Topology) -> bool {
    schedule(topology, Collective::AllGather, Rank(0), &SHORT).is_some()
}

/// The machine without some of its links: one in `times` is broken, both ways.
fn damaged(topology: &Topology, random: &mut Random, times: usize) -> Topology {
    let mut rest = Topology::new("damaged", topology.costs);
    rest.relay = topology.relay;
    for node in topology.nodes() {
        rest.add_node(node.name.clone(), node.kind);
    }
    let mut broken = std::collections::BTreeMap::new();
    for link in topology.links() {
        let pair = (link.from.min(link.to), link.from.max(link.to));
        if !*broken.entry(pair).or_insert_with(|| random.one_in(times)) {
            rest.add_link(*link);
        }
    }
    rest
}

#[test]
fn damaged_machines_keep_their_schedules() {
    let mut random = Random::new(seed(0x5eed_0602));
    let mut shares = Vec::new();
    for name in ["torus:4x4", "dgx-a100:2", "host:6", "tcp:3x2"] {
        let whole = profile(name).expect("a profile");
        for number in 0..3 {
            let topology = damaged(&whole, &mut random, 10);
            if reaches(&topology) {
                shares.extend(proved(&topology, Rank(0), &SHORT, &format!("{name}, damaged {number}")));
            }
        }
    }
    print(&shares);
    assert!(!shares.is_empty());
}

/// Ranks on a line that do not relay: all but neighbours have no route.
fn line(ranks: u32) -> Topology {
    let mut line = Topology::new("line", Costs::default());
    for rank in 0..ranks {
        let kind = NodeKind::Rank { in_box: 0, inject_bytes_s: None, eject_bytes_s: None };
        line.add_node(format!("r{rank}"), kind);
    }
    (1..ranks).for_each(|rank| line.connect(NodeId(rank - 1), NodeId(rank), 1000, 10_000_000_000));
    line
}

#[test]
fn ranks_that_do_not_relay_pass_chunks_on_themselves() {
    let shares = proved(&line(5), Rank(2), &SHORT, "a line");
    print(&shares);
    // Each end of a line gets everything over one link: nothing is wasted there.
    let gather = shares.iter().find(|(one, _)| *one == Collective::AllGather).expect("it has a bound").1;
    assert_eq!(gather, 1.0);
    let mut two = Topology::new("apart", Costs::default());
    for node in line(4).nodes() {
        two.add_node(node.name.clone(), node.kind);
    }
    two.connect(NodeId(0), NodeId(1), 0, 1);
    two.connect(NodeId(2), NodeId(3), 0, 1);
    for collective in Collective::ALL {
        assert_eq!(schedule(&two, collective, Rank(0), &SHORT), None, "{collective}");
    }
}

#[test]
fn the_same_machine_gives_the_same_schedule() {
    let mut random = Random::new(seed(0x5eed_0603));
    let whole = profile("dgx-a100:2").expect("a profile");
    let topology = damaged(&whole, &mut random, 12);
    for collective in [Collective::AllReduce, Collective::AllToAll] {
        let again = || schedule(&topology, collective, Rank(1), &SHORT);
        assert_eq!(again(), again());
    }
}

#[test]
fn whole_machines_come_near_their_bounds() {
    for (name, collective, least) in [
        ("dgx-a100:1", Collective::AllGather, 0.9),
        ("dgx-a100:2", Collective::AllGather, 0.9),
        ("dgx-a100:2", Collective::AllReduce, 0.85),
        ("torus:4x4", Collective::AllGather, 0.9),
        ("torus:4x4", Collective::Broadcast, 0.8),
        ("dgx-a100:2", Collective::AllToAll, 0.9),
    ] {
        let topology = profile(name).expect("a profile");
        let found = schedule(&topology, collective, Rank(0), &Options::default()).expect("a schedule");
        let share = found.share().expect("it fits").value();
        println!("{collective} on {name}: {share:.4} of the bound, {}", found.schedule.name);
        assert!(share >= least, "{collective} on {name}: {share}");
    }
}
