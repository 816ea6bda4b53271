//! Choices by wires that the ranks measured, and by machines of files.

use std::sync::Arc;

use consort_algorithms::Collective;
use consort_algorithms::catalogue::Algorithm;
use consort_algorithms::topology::{self, MeasuredPair, Topology};

use super::{planning_on, settings};
use crate::planner::machine::Between;
use crate::planner::{Machine, Planning};

/// What ranks measure that have wires of these rates (bytes a second), each on a host of its own.
fn wires(bytes_s: &[u64]) -> Topology {
    let host_of: Vec<u32> = (0..bytes_s.len() as u32).collect();
    let pair = |(one, other): (u32, u32)| {
        let rate = bytes_s[one as usize].min(bytes_s[other as usize]);
        let (there_bytes_s, back_bytes_s, both_bytes_s) = (rate, rate, rate);
        MeasuredPair { one, other, latency_ns: 30_000, there_bytes_s, back_bytes_s, both_bytes_s }
    };
    let pairs: Vec<MeasuredPair> = topology::rounds(&host_of, 1).into_iter().flatten().map(pair).collect();
    topology::measured("wires", &host_of, &pairs)
}

fn planned(machine: Machine, named: Option<&Topology>) -> Planning {
    let mut settings = settings(|options| options);
    settings.preferences.topology = named.map(|topology| Arc::from(topology.to_string()));
    planning_on(machine, &settings)
}

fn hosts(ranks: u32) -> Machine {
    let mut machine = Machine::of_one_host(ranks, 64);
    (machine.hosts, machine.per_box, machine.between) = (ranks, 1, Between::Sockets);
    machine
}

#[test]
fn a_slow_wire_changes_the_choice_and_no_choice_overflows_it() {
    const MB: u64 = 1_000_000;
    let measured = wires(&[48 * MB, 48 * MB, 6 * MB, 48 * MB]);
    let (before, after) = (planned(hosts(4), None), planned(hosts(4), Some(&measured)));
    assert_eq!(after.topology(), &measured);
    let choice =
        |planning: &Planning, collective, bytes| planning.algorithm(collective, bytes).expect("a choice");
    let of = |planning: &Planning| choice(planning, Collective::AllReduce, 64 << 10);
    assert_ne!(of(&before), of(&after), "latency decides on fast wires, and bytes on a slow one");
    for collective in
        [Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather, Collective::AllToAll]
    {
        let chosen = choice(&after, collective, 1 << 20);
        assert!(
            !chosen.starts_all_at_once(),
            "{collective}: {chosen} sends from all hosts into the slow wire at once"
        );
    }
    assert_ne!(before.graph_hash(), after.graph_hash());
    let bound = |planning: &Planning| {
        let explained = planning.explain(Collective::Broadcast, 1 << 20).expect("an explanation");
        explained.bound.map(|bound| bound.bytes_s)
    };
    assert_eq!(bound(&before), None);
    assert_eq!(bound(&after), Some(6e6), "all bytes come by the slow wire");
}

#[test]
fn a_measured_host_keeps_what_it_has_besides_wires_and_another_machine_does_not() {
    let measured = topology::measured(
        "host",
        &[0, 0],
        &[MeasuredPair {
            one: 0,
            other: 1,
            latency_ns: 400,
            there_bytes_s: 9_000_000_000,
            back_bytes_s: 9_000_000_000,
            both_bytes_s: 8_000_000_000,
        }],
    );
    let packets = |named: Option<&Topology>| {
        let planning = planned(Machine::of_one_host(2, 64), named);
        planning.with_slots(Algorithm::TwoShot, Collective::AllReduce, 4096).packets
    };
    assert!(packets(None) && packets(Some(&measured)));
    assert!(!packets(Some(&topology::host(2))));
}

#[test]
fn a_machine_of_another_job_is_left_out_and_the_reason_is_said() {
    let other = planned(hosts(4), Some(&topology::host(8)));
    assert_eq!(other.topology(), planned(hosts(4), None).topology());
    let (misfit, is_by_user) = other.misfit().expect("it does not fit");
    assert!(
        is_by_user && misfit.contains("CONSORT_TOPOLOGY") && misfit.contains("8 ranks, and the job has 4"),
        "{misfit}"
    );
    assert_eq!(planned(hosts(4), Some(&topology::host(4))).misfit(), None);
}

#[test]
fn ranks_with_and_without_devices_plan_by_one_graph() {
    // Three ranks can be on the CPUs of this machine, and not on its GPU.
    let text = "hardware m\nhost h0\nnuma n0 on=h0 number=0 cpus=0-3\ngpu g0 on=h0 bus=0000:07:00.0 described=yes\n\
                link n0 g0 pcie generation=4 width=16\n";
    let planned_by = |devices: bool, any: bool| {
        let mut settings = settings(|options| options.devices(devices));
        settings.preferences.topology = Some(Arc::from(text));
        let mut machine = Machine::of_one_host(3, 64);
        machine.graphs.with_devices = any;
        planning_on(machine, &settings).graph_hash()
    };
    assert_eq!(planned_by(true, true), planned_by(false, true));
    assert_eq!(planned_by(true, false), planned_by(false, false));
    assert_ne!(planned_by(true, true), planned_by(true, false));
}
