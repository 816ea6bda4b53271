//! Trees between hosts of different numbers of ranks, and between hosts whose ranks are in no order: proved, and no host's wire carries more
//! than it must.

use std::collections::HashMap;

use consort_algorithms::bounds::{self, bound};
use consort_algorithms::passes::fuse;
use consort_algorithms::synthesize::offer_between_hosts;
use consort_algorithms::topology::{Inside, Topology, tcp_hosts};
use consort_algorithms::{Collective, LowerOptions, Plan, Rank, Schedule, lower_all, verify};

use super::prove;
use crate::common::{Random, seed};

const COLLECTIVES: [Collective; 5] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::Reduce,
];

fn machine(host_of: &[u32]) -> Topology {
    tcp_hosts(host_of, Inside::Memory, None, &[], 1)
}

/// Hosts of these numbers of ranks, in order.
fn in_order(sizes: &[u32]) -> Vec<u32> {
    (0..).zip(sizes).flat_map(|(host, ranks)| (0..*ranks).map(move |_| host)).collect()
}

/// The hosts of these keys, counted as they come.
fn counted(keys: &[usize]) -> Vec<u32> {
    let mut known: HashMap<usize, u32> = HashMap::new();
    let number = |key: &usize| {
        let next = known.len() as u32;
        *known.entry(*key).or_insert(next)
    };
    keys.iter().map(number).collect()
}

/// Pieces out of each host and into it. Ranks of the schedule are counted from `root`.
fn crossing(schedule: &Schedule, host_of: &[u32], root: u32) -> Vec<[u32; 2]> {
    let mut pieces = vec![[0; 2]; *host_of.iter().max().expect("a host") as usize + 1];
    let host = |rank: Rank| host_of[((rank.0 + root) % schedule.ranks) as usize] as usize;
    for transfer in schedule.rounds.iter().flat_map(|round| &round.transfers) {
        let [from, to] = [transfer.from, transfer.to].map(host);
        if from != to {
            pieces[from][0] += 1;
            pieces[to][1] += 1;
        }
    }
    pieces
}

/// Proves the trees of every collective; the root of rooted ones is `root`. Counts what crosses.
fn check(host_of: &[u32], root: u32) {
    let topology = machine(host_of);
    let ranks = host_of.len() as u32;
    let hosts = host_of.iter().max().expect("a host") + 1;
    let of_host = |host: u32| host_of.iter().filter(|of| **of == host).count() as u32;
    for collective in COLLECTIVES {
        let what = format!("{collective} over {host_of:?} from {root}");
        let is_rooted = matches!(collective, Collective::Broadcast | Collective::Reduce);
        let root = if is_rooted { root } else { 0 };
        let offer = offer_between_hosts(&topology, collective, Rank(root));
        let schedule = offer.unwrap_or_else(|| panic!("{what}: nothing")).schedule;
        prove(&schedule, &what);
        let parts = schedule.partition.parts;
        for (host, [out, into]) in (0..).zip(crossing(&schedule, host_of, root)) {
            let (foreign, is_first) = (ranks - of_host(host), host == host_of[root as usize]);
            match collective {
                Collective::AllReduce => {
                    assert_eq!([out * hosts, into * hosts], [2 * (hosts - 1) * parts; 2], "{what}")
                }
                Collective::AllGather => assert_eq!(into, foreign, "{what}"),
                Collective::ReduceScatter => assert_eq!(out, foreign, "{what}"),
                Collective::Broadcast => assert!(out <= 1 && into == u32::from(!is_first), "{what}"),
                _ => assert!(into <= 1 && out == u32::from(!is_first), "{what}"),
            }
        }
    }
}

#[test]
fn trees_between_two_to_five_hosts_of_one_to_twelve_ranks_are_proved() {
    let mut number = 0;
    for hosts in 2..=5usize {
        for largest in 2..=12u32 {
            for smallest in [1, largest / 2, largest - 1] {
                // Sizes in turn from the largest down.
                let sizes: Vec<u32> =
                    (0..hosts).map(|host| if host % 2 == 0 { largest } else { smallest.max(1) }).collect();
                let host_of = in_order(&sizes);
                number += 1;
                check(&host_of, number % host_of.len() as u32);
            }
        }
    }
}

#[test]
fn trees_between_hosts_of_ranks_in_any_order_are_proved() {
    let mut random = Random::new(seed(0x0705));
    for turn in 0..60 {
        let hosts = 2 + random.below(4);
        let sizes: Vec<usize> = (0..hosts).map(|_| 1 + random.below(12)).collect();
        let mut keys: Vec<usize> =
            sizes.iter().enumerate().flat_map(|(host, ranks)| vec![host; *ranks]).collect();
        random.shuffle(&mut keys);
        let host_of = counted(&keys);
        if offer_between_hosts(&machine(&host_of), Collective::AllReduce, Rank(0)).is_none() {
            assert!(is_known(&host_of), "{host_of:?} in turn {turn}");
            continue;
        }
        check(&host_of, random.below(host_of.len()) as u32);
    }
}

/// Whether hosts are equal and in order, or all of one rank.
fn is_known(host_of: &[u32]) -> bool {
    let hosts = host_of.iter().max().expect("a host") + 1;
    let each = host_of.len() as u32 / hosts;
    host_of.iter().zip(0..).all(|(host, rank)| *host == rank / each)
}

#[test]
fn fused_plans_of_trees_between_hosts_are_proved_with_the_same_folds() {
    for host_of in [&[0, 1, 0, 1][..], &[0, 0, 1], &[0, 0, 1, 1, 1], &[0, 1, 1, 2, 0, 1, 2, 2, 2, 3]] {
        for collective in COLLECTIVES {
            let what = format!("{collective} over {host_of:?}");
            let offer = offer_between_hosts(&machine(host_of), collective, Rank(0)).expect("an offer");
            let plans = lower_all(&offer.schedule, &LowerOptions { slots: 4 }).expect("trees lower");
            let proof = verify(&plans).unwrap_or_else(|refusal| panic!("{what}: {refusal}"));
            let fused: Vec<Plan> = plans.iter().map(|plan| fuse(plan, &|_| true)).collect();
            let again = verify(&fused).unwrap_or_else(|refusal| panic!("{what}, fused: {refusal}"));
            assert_eq!(proof.fold_hash, again.fold_hash, "{what}");
        }
    }
}

#[test]
fn trees_between_hosts_are_at_the_bound_by_rate() {
    let layouts: [&[u32]; 6] = [
        &[0, 1, 0, 1],
        &[0, 0, 1],
        &[0, 0, 0, 1],
        &[0, 0, 1, 1, 1],
        &[0, 1, 2, 0, 1, 2, 0, 1],
        &[0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2],
    ];
    for host_of in layouts {
        let topology = machine(host_of);
        for collective in COLLECTIVES {
            let offer = offer_between_hosts(&topology, collective, Rank(0)).expect("an offer");
            let options = bounds::Options { root: Some(Rank(0)), ..bounds::Options::default() };
            let most = bound(&topology, collective, &options).expect("a bound").rate;
            assert_eq!(offer.rate, most, "{collective} over {host_of:?}");
        }
    }
}

#[test]
fn the_same_hosts_have_the_same_trees_and_known_hosts_have_none() {
    let made = |host_of: &[u32], collective| offer_between_hosts(&machine(host_of), collective, Rank(0));
    for collective in COLLECTIVES {
        let one = made(&[0, 1, 0, 1], collective).expect("an offer");
        assert_eq!(Some(&one), made(&[0, 1, 0, 1], collective).as_ref(), "{collective}");
        let other = made(&[0, 1, 1, 0], collective).expect("an offer");
        assert_ne!(one.schedule.name, other.schedule.name, "{collective}");
        for known in [&[0, 0, 1, 1][..], &[0, 1, 2], &[0, 0, 0]] {
            assert_eq!(made(known, collective), None, "{collective} over {known:?}");
        }
    }
    assert_eq!(made(&[0, 1, 0, 1], Collective::AllToAll), None);
    assert_eq!(made(&[0, 1, 0, 1], Collective::Gather), None);
}
