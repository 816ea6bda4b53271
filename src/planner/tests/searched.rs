//! Rings and trees of a machine and of a file, as candidates.

use std::collections::BTreeSet;

use consort_algorithms::catalogue::Algorithm;
use consort_algorithms::hardware::BusId;
use consort_algorithms::{Collective, Rank, bounds, topology};

use super::{planning_on, settings};
use crate::Communicator;
use crate::planner::machine::graph::Graphs;
use crate::planner::{Machine, Path, Planning};
use consort_control::bootstrap::Member;
use consort_settings::options::{Options, Settings, Source};

fn planning(name: &str, options: &Options) -> Planning {
    let topology = topology::profile(name).expect("a profile");
    Planning::for_topology(&topology, options).expect("a plan")
}

/// The candidates of rings and trees, with where they come from.
fn found(planning: &Planning, collective: Collective) -> Vec<(Algorithm, Vec<Source>)> {
    let all = planning.candidates(collective).expect("candidates").into_iter();
    let with_sources = all.map(|algorithm| (algorithm, planning.sources(algorithm, collective)));
    with_sources.filter(|(_, sources)| !sources.is_empty()).collect()
}

/// Whom ranks send to, as pairs without an order, in numbers of the machine.
fn pairs(algorithm: Algorithm, collective: Collective, ranks: u32, root: u32) -> BTreeSet<[u32; 2]> {
    let schedule = algorithm.schedule(collective, ranks);
    let transfers = schedule.rounds.iter().flat_map(|round| &round.transfers);
    let of = |rank: Rank| (rank.0 + root) % ranks;
    let pair = transfers.map(|transfer| [of(transfer.from), of(transfer.to)]);
    pair.filter(|[from, to]| from != to).map(|[from, to]| [from.min(to), from.max(to)]).collect()
}

#[test]
fn rooted_collectives_have_what_is_found_from_each_root() {
    let (boxes, ranks) = (planning("dgx-h100:2", &Options::default()), 16);
    for collective in [Collective::Broadcast, Collective::Reduce] {
        let all = found(&boxes, collective);
        let sources: Vec<Source> = all.iter().flat_map(|(_, sources)| sources.clone()).collect();
        assert_eq!(sources, [Source::Rings, Source::Trees, Source::Made], "{collective}");
        for (algorithm, sources) in all {
            let base = pairs(algorithm, collective, ranks, 0);
            for root in [3, 15] {
                let turned = boxes.turned(algorithm, collective, root);
                assert!(turned != algorithm && turned.is_imported(), "{collective} from {root}");
                assert_eq!(turned, boxes.turned(algorithm, collective, root));
                let of_root = pairs(turned, collective, ranks, root);
                match sources[..] {
                    [Source::Trees] => assert_eq!(of_root, base, "the same trees from {root}"),
                    // Trees for another root are others.
                    [Source::Made] => assert!(!of_root.is_empty()),
                    // The hop into the root is the one that carries nothing.
                    _ => assert!(of_root.len().abs_diff(base.len()) <= 16, "{of_root:?} {base:?}"),
                }
                assert!(boxes.price(algorithm, collective, 16 << 20).is_finite());
            }
            assert_eq!(boxes.turned(algorithm, collective, 0), algorithm);
        }
        assert_eq!(boxes.turned(Algorithm::Binomial, collective, 3), Algorithm::Binomial);
    }
    // All-reduces have no root.
    let (ring, _) = found(&boxes, Collective::AllReduce)[0];
    assert_eq!(boxes.turned(ring, Collective::AllReduce, 3), ring);
}

#[test]
fn what_is_found_is_named_by_where_it_comes_from() {
    let restricted = |list: &str| planning("dgx-h100:1", &Options::default().algorithms(list));
    let sources = |planning: &Planning| -> Vec<Vec<Source>> {
        let all = planning.candidates(Collective::AllReduce).expect("candidates");
        all.into_iter().map(|algorithm| planning.sources(algorithm, Collective::AllReduce)).collect()
    };
    assert_eq!(sources(&restricted("found-trees")), [[Source::Trees]]);
    let without = sources(&restricted("^found-trees,found-rings,made"));
    assert!(without.len() > 1 && without.iter().all(Vec::is_empty));
    let none = restricted("all_reduce:file-rings").candidates(Collective::AllReduce).expect_err("no file");
    assert!(none.to_string().contains("found-trees"), "{none}");
}

/// The machine of this name without an adapter.
fn without(name: &str, adapter: &str) -> Planning {
    let text = topology::profile(name).expect("a profile").to_string();
    let is_gone = |line: &&str| line.split_ascii_whitespace().any(|word| word == adapter);
    let left: Vec<&str> = text.lines().filter(|line| !is_gone(line)).collect();
    let damaged = topology::parse(&left.join("\n")).expect("a machine");
    assert!(left.len() < text.lines().count());
    Planning::for_topology(&damaged, &Options::default()).expect("a plan")
}

#[test]
fn an_adapter_that_is_lost_costs_little_over_any_number_of_boxes() {
    let collective = Collective::AllReduce;
    // First and last box: prices take what messages take from ranks that have a way out.
    for (name, adapter) in [("dgx-h100:2", "nic0.7"), ("dgx-h100:5", "nic0.7"), ("dgx-h100:9", "nic8.0")] {
        let (whole, damaged) = (planning(name, &Options::default()), without(name, adapter));
        for bytes in [256 << 20, 8 << 30] {
            let along = |algorithm: &Algorithm| algorithm.is_along_rails();
            assert!(!damaged.candidates(collective).expect("candidates").iter().any(along), "{name}");
            let chosen = damaged.algorithm(collective, bytes).expect("a choice");
            assert_eq!(damaged.sources(chosen, collective), [Source::Made], "{name}: {chosen}");
            let best = whole.algorithm(collective, bytes).expect("a choice");
            let ratio = damaged.price(chosen, collective, bytes) / whole.price(best, collective, bytes);
            assert!((0.5..1.25).contains(&ratio), "{bytes} bytes on {name}: {ratio}");
        }
    }
}

/// A file with a ring and a chain of these GPUs, and settings that name it.
fn with_file(gpus: &[u32], name: &str) -> Settings {
    let channel: String = gpus.iter().map(|gpu| format!("<gpu dev=\"{gpu:#x}\"/>\n")).collect();
    let graph = |id: u32, pattern: u32| {
        format!(
            "<graph id=\"{id}\" pattern=\"{pattern}\" nchannels=\"1\" speedintra=\"20\" speedinter=\"20\">\n<channel>\n\
             {channel}</channel>\n</graph>\n"
        )
    };
    let text = format!("<graphs version=\"1\">\n{}{}</graphs>\n", graph(0, 4), graph(1, 3));
    let path = std::env::temp_dir().join(format!("consort-graphs-{}-{name}", std::process::id()));
    std::fs::write(&path, text).expect("a file");
    let named = path.display().to_string();
    let settings = Settings::resolve_from(&Options::default(), &|variable| {
        (variable == "NCCL_GRAPH_FILE").then(|| named.clone())
    });
    std::fs::remove_file(&path).expect("it was written");
    settings.expect("settings")
}

#[test]
fn rings_and_trees_of_a_file_are_candidates_where_they_fit_the_ranks() {
    let settings = with_file(&[0, 2, 1, 3], "four");
    let planned = |ranks: u32, graphs: Graphs| {
        planning_on(Machine { graphs, ..Machine::of_one_host(ranks, 64) }, &settings)
    };
    let agreed = || Graphs { channels: settings.exchanged.graphs_mark(), ..Graphs::default() };
    let four = planned(4, agreed());
    assert_eq!(four.channels_misfit(), None);
    let all = found(&four, Collective::AllReduce);
    assert_eq!(
        all.iter().map(|(_, sources)| sources[0]).collect::<Vec<_>>(),
        [Source::FileRings, Source::FileTrees]
    );
    assert_eq!(
        pairs(all[1].0, Collective::AllReduce, 4, 0),
        [[0, 2], [1, 2], [1, 3]].into_iter().collect(),
        "the chain of the file"
    );
    assert!(all.iter().all(|(of, _)| four.price(*of, Collective::AllReduce, 1 << 20).is_finite()));
    // The numbers are those of the GPUs that ranks have.
    let numbered = planned(4, Graphs { numbers: vec![3, 0, 1, 2], ..agreed() });
    let (chain, _) = found(&numbered, Collective::AllReduce)[1];
    assert_eq!(pairs(chain, Collective::AllReduce, 4, 0), [[1, 3], [2, 3], [0, 2]].into_iter().collect());
    let misfit = planned(5, agreed()).channels_misfit().expect("a GPU too few");
    assert!(misfit.starts_with("line 3: channel 0 of graph 0 does not name GPU 4"), "{misfit}");
    assert!(found(&planned(5, agreed()), Collective::AllReduce).is_empty());
    // Ranks that have not agreed have none.
    let differ = planned(4, Graphs { channels_differ: Some((0, 2)), ..Graphs::default() });
    assert!(found(&differ, Collective::AllReduce).is_empty());
    assert!(differ.channels_misfit().is_some_and(|why| why.contains("ranks 0 and 2")));
}

#[test]
fn a_plan_without_a_job_knows_the_machine_of_its_host() {
    let text = "hardware m\nhost h0\nnuma n0 on=h0 number=0 cpus=0-3\nlink h0 n0 local\n\
                gpu g0 on=h0 bus=0000:07:00.0 index=0 described=yes links_known=yes\n\
                gpu g1 on=h0 bus=0000:0a:00.0 index=1 described=yes links_known=yes\n\
                link n0 g0 pcie generation=4 width=16\nlink n0 g1 pcie generation=4 width=16\n\
                link g0 g1 nvlink generation=3 count=2\n";
    let two = Graphs::of_one_host(text, 2);
    assert!(two.host.is_some() && two.devices.is_some() && two.misfit.is_none(), "{two:?}");
    assert_eq!(two.numbers, [0, 1]);
    let four = Graphs::of_one_host(text, 4);
    assert!(four.host.is_some() && four.devices.is_none() && four.misfit.is_none(), "{four:?}");
    let none = Graphs::of_one_host("hardware m\nhost h0\n", 4);
    assert!(none.host.is_none() && none.misfit.is_some(), "{none:?}");
}

#[test]
fn a_job_on_some_of_its_hosts_gpus_has_the_graph_of_these() {
    let mut text = String::from("hardware m\nhost h0\nnuma n0 on=h0 number=0 cpus=0-3\nlink h0 n0 local\n");
    for gpu in 0..4 {
        text +=
            &format!("gpu g{gpu} on=h0 bus=0000:{gpu:02x}:00.0 index={gpu} described=yes links_known=yes\n");
        text += &format!("link n0 g{gpu} pcie generation=4 width=16\n");
    }
    for gpu in 1..4 {
        text += &format!("link g0 g{gpu} nvlink generation=3 count=1 bytes_s={gpu}00000000000\n");
    }
    let path = std::env::temp_dir().join(format!("consort-machine-{}", std::process::id()));
    std::fs::write(&path, text).expect("a file");
    let named = path.display().to_string();
    let settings = Settings::resolve_from(&Options::default().devices(true), &|variable| {
        (variable == "NCCL_TOPO_FILE").then(|| named.clone())
    });
    std::fs::remove_file(&path).expect("it was written");
    let buses = [3, 0];
    let said = |rank: u32, of: Member| {
        let device = Some(BusId { bus: buses[rank as usize], ..BusId::default() });
        Member { device, ..of }
    };
    let ranks = Communicator::local_as(2, settings.expect("settings"), &said).expect("ranks");
    for comm in &ranks {
        let graph = comm.planning().device_graph().expect("a graph");
        assert_eq!(graph.ranks(), 2);
        assert_eq!(graph.links().iter().map(|link| link.bandwidth_bytes_s).max(), Some(300_000_000_000));
        let explained =
            comm.planning().explain_on_devices(None, Path::Kernels, Collective::AllGather, 1 << 20);
        let bound = explained.expect("an explanation").bound.expect("a bound");
        // Half of the vector comes, by NVLink with 300 GB/s and by PCIe with 31.5.
        assert_eq!((bound.bytes_s, bound.exact), (663e9, true));
        for path in [Path::Fused, Path::Streams, Path::Host] {
            let explained = comm.planning().explain_on_devices(None, path, Collective::AllGather, 1 << 20);
            let explained = explained.expect("an explanation");
            assert!(explained.bound.is_none(), "{path} takes other ways");
            assert!(explained.candidates.iter().all(|candidate| candidate.bound_share.is_none()));
        }
        let on_host = comm.explain(Collective::AllGather, 1 << 20).expect("an explanation");
        assert_eq!(on_host.bound, None);
        let report = comm.report().expect("a report").to_string();
        let hash = format!("graph {:016x}", comm.planning().graph_hash());
        assert!(
            report.lines().nth(2).is_some_and(|line| line.starts_with("machine: ") && line.ends_with(&hash)),
            "{report}"
        );
    }
}

#[test]
fn every_candidate_carries_its_distance_from_the_bound_of_the_wires() {
    for name in ["dgx-h100:1", "dgx-a100:2", "torus:4x4", "pcie:1", "torus:2x2x2"] {
        let planned = planning(name, &Options::default());
        let topology = topology::profile(name).expect("a profile");
        for collective in Collective::ALL {
            let explained = planned.explain(collective, 16 << 20).expect("an explanation");
            let options = bounds::Options {
                root: matches!(collective, Collective::Broadcast | Collective::Reduce).then_some(Rank(0)),
                ..Default::default()
            };
            let Ok(known) = bounds::bound(&topology, collective, &options) else {
                assert_eq!(explained.bound, None, "{collective} on {name}");
                continue;
            };
            let bound = explained.bound.as_ref().expect("a bound");
            assert_eq!((bound.bytes_s, bound.exact), (known.rate.value(), known.exact));
            let blocks = match collective {
                Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll => topology.ranks(),
                _ => 1,
            };
            let least = f64::from(blocks) * explained.class_bytes as f64 / known.rate.value();
            assert!((bound.seconds / least - 1.0).abs() < 1e-9);
            for candidate in &explained.candidates {
                let share = candidate.bound_share;
                assert_eq!(share.is_none(), candidate.algorithm.is_switched(), "{}", candidate.name());
                let of_price = least / candidate.predicted_s;
                assert!(share.is_none_or(|share| (share - of_price.min(1.0)).abs() < 1e-9));
                // A price that is continued from a part of a call is off by a little.
                assert!(share.is_none() || of_price < 1.05, "{name} {collective} {candidate:?}");
            }
            let text = explained.to_string();
            assert!(text.contains(&bound.cut) && text.contains('%'), "{text}");
            assert!(explained.to_json().contains("\"bound_share\":0."));
        }
    }
}

#[test]
fn where_cores_move_the_bytes_wires_are_no_bound() {
    let ours = planning_on(Machine::of_one_host(4, 2), &settings(|options| options));
    let explained = ours.explain(Collective::AllReduce, 1 << 20).expect("an explanation");
    assert_eq!(explained.bound, None);
    assert!(explained.candidates.iter().all(|candidate| candidate.bound_share.is_none()));
    assert!(!explained.to_string().contains("bound:"));
}
