//! The simulator against closed forms, textbook shares, and itself.

use consort_algorithms::builders::{RingOptions, doubling, pair, ring};
use consort_algorithms::simulate::{Options, Outcome, SimulateError, simulate};
use consort_algorithms::topology::{
    Costs, Link, NodeId, NodeKind, Routes, Topology, dgx_a100, dgx_h100, host, pcie, torus,
};
use consort_algorithms::{Channel, Chunk, Collective, Partition, Place, Rank, Round, Schedule, Transfer};

use crate::common::{Random, seed};

const SEND_NS: u64 = 700;
const LINK_NS: u64 = 300;
/// β of the meshes here: 1 GB/s, 1000 ps a byte.
const BANDWIDTH: u64 = 1_000_000_000;
const BYTE_PS: u64 = 1000;

/// Every rank linked with every other; `costs` for the ranks.
fn mesh(ranks: u32, latency_ns: u64, costs: Costs) -> Topology {
    let mut topology = Topology::new("mesh", costs);
    for rank in 0..ranks {
        let kind = NodeKind::Rank { in_box: 0, inject_bytes_s: None, eject_bytes_s: None };
        topology.add_node(format!("r{rank}"), kind);
    }
    for from in 0..ranks {
        for to in (0..ranks).filter(|to| *to != from) {
            topology.add_link(Link {
                from: NodeId(from),
                to: NodeId(to),
                latency_ns,
                bandwidth_bytes_s: BANDWIDTH,
            });
        }
    }
    topology
}

fn alpha_beta(ranks: u32) -> Topology {
    mesh(ranks, LINK_NS, Costs { send_ns: SEND_NS, ..Costs::default() })
}

/// α of [`alpha_beta`], picoseconds.
const ALPHA_PS: u64 = (SEND_NS + LINK_NS) * 1000;

fn run(schedule: &Schedule, topology: &Topology, options: Options) -> Outcome {
    simulate(schedule, topology, &options).expect("it has a time")
}

/// One slice.
fn whole(block_bytes: usize) -> Options {
    Options { slot_bytes: 1 << 40, ..Options::new(block_bytes) }
}

fn one(transfers: &[(u32, u32, u16)]) -> Schedule {
    let transfer = |&(from, to, channel): &(u32, u32, u16)| Transfer {
        from: Rank(from),
        to: Rank(to),
        channel: Channel(channel),
        source: Place::Input(Chunk(0)),
        target: Place::Scratch(Chunk(u32::from(channel) * 100 + from)),
        fold: None,
        own_first: false,
    };
    let ranks = transfers.iter().map(|t| t.0.max(t.1) + 1).max().unwrap_or(1);
    Schedule {
        name: "one".into(),
        collective: Collective::AllReduce,
        ranks,
        switches: 0,
        partition: Partition { parts: 1 },
        rounds: vec![Round { transfers: transfers.iter().map(transfer).collect() }],
    }
}

#[test]
fn a_ring_costs_its_formula() {
    for ranks in [2u32, 3, 4, 8, 13] {
        let bytes = 64 * 7 * ranks as usize;
        let (rounds, piece) = (2 * u64::from(ranks - 1), 64 * 7);
        let schedule = ring(Collective::AllReduce, ranks, RingOptions::default());
        let outcome = run(&schedule, &alpha_beta(ranks), whole(bytes));
        assert_eq!(outcome.time_ps, rounds * (ALPHA_PS + piece * BYTE_PS), "{ranks} ranks");
        assert_eq!((outcome.port_out_bytes, outcome.port_in_bytes), (rounds * piece, rounds * piece));
        assert_eq!(outcome.messages, rounds * u64::from(ranks));
        // With γ: (n-1)/n M of folds; nothing else is on the way meanwhile.
        let costs = Costs { send_ns: SEND_NS, reduce_ns_per_byte: 0.25, ..Costs::default() };
        let folding = run(&schedule, &mesh(ranks, LINK_NS, costs), whole(bytes));
        assert_eq!(folding.time_ps, outcome.time_ps + rounds / 2 * piece * 250);
        let idle = Options { work: false, ..whole(bytes) };
        assert_eq!(run(&schedule, &mesh(ranks, LINK_NS, costs), idle).time_ps, outcome.time_ps);
        let gather = ring(Collective::AllGather, ranks, RingOptions::default());
        let outcome = run(&gather, &alpha_beta(ranks), whole(piece as usize));
        assert_eq!(outcome.time_ps, rounds / 2 * (ALPHA_PS + piece * BYTE_PS));
    }
}

#[test]
fn doubling_costs_its_formula() {
    for steps in 1..=5u32 {
        let outcome = run(&doubling(1 << steps), &alpha_beta(1 << steps), whole(4096));
        assert_eq!(outcome.time_ps, u64::from(steps) * (ALPHA_PS + 4096 * BYTE_PS));
    }
}

#[test]
fn a_chain_is_pipelined() {
    // T = (d + k - 1)(α + M β / k), when all of α is the sender's.
    let costs = Costs { send_ns: 1000, ..Costs::default() };
    for ranks in [2u32, 3, 5, 9] {
        for slices in [1u64, 2, 7, 64] {
            let slot = 4096;
            let options = Options { slot_bytes: slot, ..Options::new(slot * slices as usize) };
            let schedule = ring(Collective::Broadcast, ranks, RingOptions::default());
            let outcome = run(&schedule, &mesh(ranks, 0, costs), options);
            let steps = u64::from(ranks - 1) + slices - 1;
            assert_eq!(
                outcome.time_ps,
                steps * (1_000_000 + 4096 * BYTE_PS),
                "{ranks} ranks, {slices} slices"
            );
            assert_eq!((outcome.slices, outcome.slices_run), (slices, slices));
            // The straight line is exact here, since the pipeline is full in the second half.
            let short = Options { messages_max: u64::from(ranks - 1) * 32, ..options };
            let continued = run(&schedule, &mesh(ranks, 0, costs), short);
            assert_eq!(continued.slices_run, slices.min(32));
            assert_eq!(continued.time_ps, outcome.time_ps);
            assert_eq!(continued.link_bytes, outcome.link_bytes);
        }
    }
}

#[test]
fn the_last_slice_is_short() {
    let options = Options { slot_bytes: 1000, ..Options::new(2500) };
    let outcome = run(&pair(), &alpha_beta(2), options);
    assert_eq!(outcome.slices, 3);
    assert_eq!(outcome.time_ps, 3 * SEND_NS * 1000 + 2500 * BYTE_PS + LINK_NS * 1000);
    assert_eq!(outcome.link_bytes.iter().sum::<u64>(), 2500);
}

/// Ranks on a line of `links`; each goes from the rank of its number to the next.
fn line(links: &[u64]) -> Topology {
    let mut topology = Topology::new("line", Costs::default());
    topology.relay = true;
    for rank in 0..=links.len() {
        let kind = NodeKind::Rank { in_box: 0, inject_bytes_s: None, eject_bytes_s: None };
        topology.add_node(format!("r{rank}"), kind);
    }
    for (&bandwidth_bytes_s, from) in links.iter().zip(0..) {
        topology.add_link(Link {
            from: NodeId(from),
            to: NodeId(from + 1),
            latency_ns: 0,
            bandwidth_bytes_s,
        });
    }
    topology
}

#[test]
fn two_messages_on_one_link_get_half_each() {
    let outcome = run(&one(&[(0, 1, 0), (0, 1, 1)]), &line(&[BANDWIDTH]), whole(1 << 20));
    assert_eq!(outcome.time_ps, 2 * (1 << 20) * BYTE_PS);
    assert_eq!(outcome.link_bytes, [2 << 20]);
    assert_eq!(outcome.link_busy_ps, [outcome.time_ps]);
}

#[test]
fn shares_are_max_min_fair() {
    // Bertsekas and Gallager, Data Networks, section 6.5: a long flow over two links and a short one on each.
    // 1 and 2 GB/s: the long one gets 0.5, its rivals 0.5 and 1.5.
    let options = Options { timeline: true, ..whole(3_000_000) };
    let outcome = run(&one(&[(0, 2, 0), (0, 1, 1), (1, 2, 2)]), &line(&[BANDWIDTH, 2 * BANDWIDTH]), options);
    let ends: Vec<(u32, u32, u64)> =
        outcome.timeline.iter().map(|span| (span.from.0, span.to.0, span.end_ps)).collect();
    assert_eq!(
        ends,
        [(1, 2, 2_000_000_000), (0, 2, 6_000_000_000), (0, 1, 6_000_000_000)],
        "3 MB at 1.5, 0.5 and 0.5 GB/s"
    );
    assert_eq!(outcome.link_busy_ps, [6_000_000_000, 6_000_000_000]);
}

#[test]
fn who_leaves_changes_shares_far_away() {
    // 2 and 4 GB/s. Short flows on the first link, long ones over both, and on the second: 1, 1 and 3 GB/s; once
    // the short one has left, 2 and 2; the last alone 4. 1, 3 and 6 MB.
    let flows = [vec![(0, 1, 0)], vec![(0, 2, 1); 3], vec![(1, 2, 2); 6]].concat();
    let options = Options { timeline: true, ..whole(1_000_000) };
    let outcome = run(&one(&flows), &line(&[2 * BANDWIDTH, 4 * BANDWIDTH]), options);
    let ends: Vec<(u16, u64)> = outcome.timeline.iter().map(|span| (span.channel.0, span.end_ps)).collect();
    assert_eq!(ends, [(0, 1_000_000_000), (1, 2_000_000_000), (2, 2_250_000_000)]);
}

#[test]
fn a_rank_cannot_send_more_than_its_port() {
    let mut topology = Topology::new("ports", Costs::default());
    for (rank, inject_bytes_s) in [Some(BANDWIDTH), None, None].into_iter().enumerate() {
        let kind = NodeKind::Rank { in_box: 0, inject_bytes_s, eject_bytes_s: None };
        topology.add_node(format!("r{rank}"), kind);
    }
    for to in [1, 2] {
        topology.connect(NodeId(0), NodeId(to), 0, BANDWIDTH);
    }
    let out = run(&one(&[(0, 1, 0), (0, 2, 0)]), &topology, whole(1000));
    assert_eq!(out.time_ps, 2000 * BYTE_PS);
    let back = run(&one(&[(1, 0, 0), (2, 0, 0)]), &topology, whole(1000));
    assert_eq!(back.time_ps, 1000 * BYTE_PS);
}

#[test]
fn credits_bound_what_is_on_its_way() {
    // The link takes 1000 slices of 1 ns but 1 ms to cross, and a credit 1 ms to come back.
    let topology = mesh(2, 1_000_000, Costs::default());
    let time =
        |slots| run(&pair(), &topology, Options { slot_bytes: 1000, slots, ..Options::new(8000) }).time_ps;
    let (cross, slice) = (1_000_000_000, 1_000_000);
    assert_eq!(time(1), 8 * (cross + slice) + 7 * cross);
    // Four at a time: the fifth waits for the first's credit.
    assert_eq!(time(4), 2 * cross + slice + cross + 4 * slice);
    assert_eq!(time(8), cross + 8 * slice);
}

#[test]
fn one_slot_is_enough_to_end() {
    let seed = seed(0x51a7);
    let mut random = Random(seed);
    for _ in 0..200 {
        let ranks = 2 + random.below(5) as u32;
        let mut schedule = one(&[(0, ranks - 1, 0)]);
        let transfer = schedule.rounds[0].transfers[0];
        let mut any = || Transfer {
            from: Rank(random.below(ranks as usize) as u32),
            to: Rank(random.below(ranks as usize) as u32),
            channel: Channel(random.below(3) as u16),
            target: Place::Scratch(Chunk(random.below(4) as u32)),
            ..transfer
        };
        schedule.rounds = (0..6).map(|_| Round { transfers: (0..8).map(|_| any()).collect() }).collect();
        let options = Options { slots: 1, slot_bytes: 100, ..Options::new(450) };
        let narrow = run(&schedule, &alpha_beta(ranks), options);
        assert_eq!(narrow.slices_run, 5);
        let messages = run(&schedule, &alpha_beta(ranks), Options { slots: 64, ..options }).messages;
        assert_eq!(narrow.messages, messages);
    }
}

#[test]
fn no_slot_is_refused() {
    for options in [Options { slots: 0, ..whole(64) }, Options { slot_bytes: 0, ..whole(64) }] {
        assert_eq!(simulate(&pair(), &alpha_beta(2), &options), Err(SimulateError::NoSlots));
    }
}

#[test]
fn what_is_not_there_is_named() {
    let schedule = ring(Collective::AllReduce, 4, RingOptions::default());
    assert_eq!(
        simulate(&schedule, &alpha_beta(3), &whole(64)).unwrap_err(),
        SimulateError::NoSuchNode { rank: Rank(3) }
    );
    assert_eq!(
        simulate(&schedule, &line(&[1, 1, 1]), &whole(64)).unwrap_err(),
        SimulateError::NoRoute { from: Rank(3), to: Rank(0) }
    );
}

#[test]
fn a_torus_passes_on_and_shares() {
    let topology = torus(&[4, 4]);
    // Three hops along a row and back to the neighbour: a ring in row order crosses the torus only by neighbours
    // but from row end to row start.
    let ring16 = ring(Collective::AllReduce, 16, RingOptions::default());
    let outcome = run(&ring16, &topology, whole(16 << 20));
    let neighbours = run(&ring16, &mesh16(), whole(16 << 20));
    // The step from the end of a row to the start of the next is two hops, on links that no other step uses.
    assert!(outcome.time_ps > neighbours.time_ps);
    assert_eq!(outcome.port_out_bytes, 30 << 20);
    // From one corner to the opposite one it is 2 + 2 hops of 500 ns, 500 ns at each end, 20 ps a byte, and
    // the copy.
    let far = run(&one(&[(0, 10, 0)]), &topology, Options { work: false, ..whole(1 << 20) });
    assert_eq!(far.time_ps, 3_000_000 + 20 * (1 << 20));
}

/// The torus' ring without its two-hop steps.
fn mesh16() -> Topology {
    let torus = torus(&[4, 4]);
    mesh(16, 500, torus.costs).map_links(|_, link| Link { bandwidth_bytes_s: 50 * BANDWIDTH, ..link })
}

#[test]
fn shared_uplinks_and_rails_are_shared() {
    let bytes = 1 << 28;
    let seconds = |topology: &Topology, transfers: &[(u32, u32, u16)]| {
        run(&one(transfers), topology, Options { work: false, ..whole(bytes) }).seconds()
    };
    let gigabytes_s = |seconds: f64| bytes as f64 / seconds / 1e9;
    // Two GPUs under one bridge to two under another: one uplink of 24 GB/s.
    let uplink = gigabytes_s(seconds(&pcie(1), &[(0, 2, 0), (1, 3, 0)]));
    assert!((uplink - 12.0).abs() < 0.02, "{uplink}");
    let alone = gigabytes_s(seconds(&pcie(1), &[(0, 2, 0)]));
    assert!((alone - 24.0).abs() < 0.02, "{alone}");
    // Eight rails at once do not share links; messages to one GPU share its adapter.
    let rails: Vec<(u32, u32, u16)> = (0..8).map(|rank| (rank, rank + 8, 0)).collect();
    let rails = gigabytes_s(seconds(&dgx_a100(2), &rails));
    assert!((rails - 25.0).abs() < 0.05, "{rails}");
    let incast: Vec<(u32, u32, u16)> = (0..8).map(|rank| (rank, 8, 0)).collect();
    let incast = gigabytes_s(seconds(&dgx_h100(2), &incast));
    assert!((incast - 50.0 / 8.0).abs() < 0.05, "{incast}");
}

#[test]
fn channels_of_one_place_share_a_lane() {
    // Rank 0 receives on channel 0 and forwards what it got on channel 1 in the next round.
    let hop = |from, to, channel, source, target| Transfer {
        from: Rank(from),
        to: Rank(to),
        channel: Channel(channel),
        source,
        target,
        fold: None,
        own_first: false,
    };
    let (input, scratch, output) =
        (Place::Input(Chunk(0)), Place::Scratch(Chunk(0)), Place::Output(Chunk(0)));
    let schedule = |forwarded| Schedule {
        rounds: vec![
            Round { transfers: vec![hop(0, 1, 0, input, scratch)] },
            Round { transfers: vec![hop(1, 2, 1, forwarded, output)] },
        ],
        ..one(&[(0, 2, 0)])
    };
    let time = |forwarded| run(&schedule(forwarded), &alpha_beta(3), whole(1000)).time_ps;
    assert_eq!(time(scratch), 2 * (ALPHA_PS + 1000 * BYTE_PS));
    assert_eq!(time(input), ALPHA_PS + 1000 * BYTE_PS);
}

#[test]
fn lanes_of_a_device_fold_side_by_side() {
    // Three messages arrive at once on a lane each; a copy takes a block a microsecond.
    let three = one(&[(1, 0, 0), (2, 0, 1), (3, 0, 2)]);
    let work_ps = |lanes, schedule: &Schedule| {
        let costs = Costs { copy_ns_per_byte: 1.0, lanes, ..Costs::default() };
        let idle = run(schedule, &mesh(4, 0, costs), Options { work: false, ..whole(1000) });
        run(schedule, &mesh(4, 0, costs), whole(1000)).time_ps - idle.time_ps
    };
    let message_ps = 1_000_000;
    // One processor, and two for three lanes: they queue.
    assert_eq!([0, 1, 2].map(|lanes| work_ps(lanes, &three)), [3, 3, 2].map(|turns| turns * message_ps));
    assert_eq!([3, 5].map(|lanes| work_ps(lanes, &three)), [message_ps; 2]);
    // Each lane has two of six blocks, and the one of a rank with one lane all of them.
    assert_eq!(work_ps(6, &three), message_ps / 2);
    let alone = one(&[(1, 0, 0)]);
    assert_eq!([1, 2, 4].map(|lanes| work_ps(lanes, &alone)), [4, 2, 1].map(|part| part * message_ps / 4));
}

#[test]
fn transfers_between_the_same_two_are_one_message() {
    let mut schedule = one(&[(0, 1, 0)]);
    let transfer = schedule.rounds[0].transfers[0];
    schedule.rounds[0].transfers.push(Transfer { target: Place::Scratch(Chunk(7)), ..transfer });
    let outcome = run(&schedule, &alpha_beta(2), whole(1000));
    assert_eq!((outcome.messages, outcome.time_ps), (1, ALPHA_PS + 2000 * BYTE_PS));
}

#[test]
fn a_switch_folds_and_multicasts_at_line_rate() {
    // Each piece goes up to the switch, is folded there, and comes down to all while the next one goes up.
    let ranks = 8;
    let up = |rank: u32, piece: u32| Transfer {
        from: Rank(rank),
        to: Rank(ranks),
        channel: Channel(0),
        source: Place::Input(Chunk(piece)),
        target: Place::Scratch(Chunk(piece)),
        fold: (rank > 0).then_some(Place::Scratch(Chunk(piece))),
        own_first: true,
    };
    let down = |rank: u32, piece: u32| Transfer {
        from: Rank(ranks),
        to: Rank(rank),
        source: Place::Scratch(Chunk(piece)),
        target: Place::Output(Chunk(piece)),
        fold: None,
        ..up(rank, piece)
    };
    let schedule = |parts: u32| {
        let round = |number: u32| {
            let ups = (0..ranks).filter(|_| number < parts).map(|rank| up(rank, number));
            let downs = (0..ranks).filter(|_| number > 0).map(|rank| down(rank, number - 1));
            Round { transfers: ups.chain(downs).collect() }
        };
        Schedule {
            partition: Partition { parts },
            rounds: (0..=parts).map(round).collect(),
            ..ring(Collective::AllReduce, ranks, RingOptions::default())
        }
    };
    let options = Options { work: false, slot_bytes: 4 << 20, ..Options::new(1 << 30) };
    // Every port carries M each way: with one piece in turns, with eight nearly at once.
    let least = (1u64 << 30) as f64 / 450e9;
    for (parts, turns) in [(1, 2.0), (8, 9.0 / 8.0)] {
        let ratio = run(&schedule(parts), &dgx_h100(1), options).seconds() / least;
        // Beside the bytes there is 2 and 4 microseconds a slice of 9.3.
        assert!((turns..1.5 * turns).contains(&ratio), "{parts}: {ratio}");
    }
    let schedule = schedule(8);
    let outcome = run(&schedule, &dgx_h100(1), options);
    assert_eq!(outcome.port_out_bytes, 1 << 30);
    let refused = simulate(&schedule, &dgx_a100(1), &options).unwrap_err();
    assert_eq!(refused, SimulateError::NoSuchNode { rank: Rank(8) });
}

#[test]
fn the_same_arguments_give_the_same_outcome() {
    let options = Options { timeline: true, ..Options::new(10_000_001) };
    for topology in [dgx_h100(2), pcie(2), torus(&[2, 8]), host(16)] {
        let schedule = ring(Collective::AllReduce, 16, RingOptions { channels: 3, bidirectional: true });
        assert_eq!(run(&schedule, &topology, options), run(&schedule, &topology, options));
    }
}

/// Max-min shares by raising all rates together, with every link in the books; (users, capacity) of each limit.
fn plain_shares(limits: &[(Vec<usize>, f64)], open: &[bool]) -> Vec<f64> {
    let mut rates = vec![0.0; open.len()];
    let mut rising: Vec<bool> = open.to_vec();
    let users = |limit: &(Vec<usize>, f64), rising: &[bool]| {
        limit.0.iter().filter(|&&flow| rising[flow]).count() as f64
    };
    let slack = |limit: &(Vec<usize>, f64), rates: &[f64]| {
        limit.1 - limit.0.iter().filter(|&&flow| open[flow]).map(|&flow| rates[flow]).sum::<f64>()
    };
    while rising.contains(&true) {
        let used = || limits.iter().filter(|limit| users(limit, &rising) > 0.0);
        let step =
            used().map(|limit| slack(limit, &rates) / users(limit, &rising)).fold(f64::INFINITY, f64::min);
        (0..rates.len()).filter(|&flow| rising[flow]).for_each(|flow| rates[flow] += step);
        let full = used().filter(|limit| slack(limit, &rates) <= 1e-9 * limit.1);
        for flow in full.flat_map(|limit| limit.0.clone()).collect::<Vec<_>>() {
            rising[flow] = false;
        }
    }
    rates
}

#[test]
fn random_shares_are_those_of_a_plain_computation() {
    let seed = seed(0x3a1f);
    let mut random = Random(seed);
    for case in 0..300 {
        let ranks = 3 + random.below(8) as u32;
        let mut topology = Topology::new("random", Costs::default());
        topology.relay = true;
        let bandwidth = |random: &mut Random| (1 + random.below(8) as u64) * BANDWIDTH;
        let mut ports = Vec::new();
        for rank in 0..ranks {
            let port = random.one_in(2).then(|| bandwidth(&mut random));
            ports.push(port);
            let kind = NodeKind::Rank { in_box: 0, inject_bytes_s: port, eject_bytes_s: None };
            topology.add_node(format!("r{rank}"), kind);
        }
        for rank in 0..ranks {
            topology.connect(NodeId(rank), NodeId((rank + 1) % ranks), 0, bandwidth(&mut random));
            let far = (rank + 2) % ranks;
            if random.one_in(3) && far != rank {
                topology.connect(NodeId(rank), NodeId(far), 0, bandwidth(&mut random));
            }
        }
        // Every flow on a channel of its own, of one to nine pieces.
        let flows: Vec<(u32, u32, u16)> = (0..1 + random.below(24) as u16)
            .map(|channel| {
                let from = random.below(ranks as usize) as u32;
                (from, (from + 1 + random.below(ranks as usize - 1) as u32) % ranks, channel)
            })
            .collect();
        let pieces: Vec<usize> = flows.iter().map(|_| 1 + random.below(9)).collect();
        let repeated: Vec<(u32, u32, u16)> =
            flows.iter().zip(&pieces).flat_map(|(&flow, &pieces)| vec![flow; pieces]).collect();
        let schedule = Schedule { ranks, ..one(&repeated) };
        let options = Options { timeline: true, ..whole(1_000_000) };
        let outcome = run(&schedule, &topology, options);

        let mut limits: Vec<(Vec<usize>, f64)> = Vec::new();
        let mut routes = Routes::new(&topology);
        let ways: Vec<Vec<usize>> = flows
            .iter()
            .map(|flow| {
                let way =
                    routes.from(NodeId(flow.0), &[NodeId(flow.1)]).remove(0).expect("a ring has routes");
                way.iter().map(|link| link.index()).collect()
            })
            .collect();
        for (link, index) in topology.links().iter().zip(0..) {
            let users = (0..flows.len()).filter(|&flow| ways[flow].contains(&index)).collect();
            limits.push((users, link.bandwidth_bytes_s as f64));
        }
        for (port, rank) in ports.iter().zip(0..) {
            let users = (0..flows.len()).filter(|&flow| flows[flow].0 == rank).collect();
            limits.extend(port.map(|port| (users, port as f64)));
        }
        let mut left: Vec<f64> = pieces.iter().map(|&pieces| pieces as f64 * 1e6).collect();
        let (mut ends, mut now_s) = (vec![0.0; flows.len()], 0.0);
        while left.iter().any(|&left| left > 0.0) {
            let open: Vec<bool> = left.iter().map(|&left| left > 0.0).collect();
            let rates = plain_shares(&limits, &open);
            let needed = (0..flows.len()).filter(|&flow| open[flow]).map(|flow| left[flow] / rates[flow]);
            let step_s = needed.fold(f64::INFINITY, f64::min);
            now_s += step_s;
            for flow in (0..flows.len()).filter(|&flow| open[flow]) {
                left[flow] -= rates[flow] * step_s;
                if left[flow] < 1e-3 {
                    (left[flow], ends[flow]) = (0.0, now_s);
                }
            }
        }
        assert_eq!(outcome.timeline.len(), flows.len());
        for span in &outcome.timeline {
            let expected_ps = ends[span.channel.index()] * 1e12;
            let distance = (span.end_ps as f64 - expected_ps).abs();
            assert!(distance < 100.0, "case {case}: {span:?} should end at {expected_ps}");
        }
    }
}
