//! What is chosen on devices, and what speaks against the rest.

use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::super::{Choice, Machine};
use super::*;
use crate::Options;
use consort_settings::options::{Settings, Tuning, TuningLine};

fn call(kind: Kind, count: usize) -> Call {
    let op = kind.collective().reduces().then_some(ReduceOp::Sum);
    Call::new(kind, DataType::Float32, op, 0, count)
}

fn planning(ranks: u32, options: Options) -> Planning {
    Planning::for_host(ranks, ranks, &options).expect("a machine")
}

fn kernels(blocks_max: u32) -> Ground {
    Ground::new(Path::Kernels, blocks_max, true)
}

/// The algorithm of an all-reduce of `bytes` by kernels.
fn all_reduce(ranks: u32, bytes: usize, ground: Ground) -> Algorithm {
    let (carrier, algorithm) = planning(ranks, Options::default())
        .way_of(&call(Kind::AllReduce, bytes / 4), 0, ground)
        .expect("a way");
    assert_eq!(carrier, Carrier::Kernels, "{bytes} bytes over {ranks}");
    algorithm
}

/// Measured: `docs/measurements/gpu.md`, plans of all-reduces by kernels. Among 4 and 8 ranks a ring is the least from 16 MiB on
/// however many blocks there are, and two-shot takes up to five times as long.
#[test]
fn kernels_take_what_was_measured_as_the_least() {
    const MIB: usize = 1 << 20;
    let beside = |blocks_max| Ground::new(Path::Kernels, blocks_max, false);
    for (ranks, blocks_max) in [(4, 4), (4, 8), (4, 16), (8, 4), (8, 8)] {
        for mib in [16, 64, 256] {
            let taken = all_reduce(ranks, mib * MIB, beside(blocks_max));
            assert_eq!(taken, Algorithm::RING, "{mib} MiB over {ranks}, {blocks_max} blocks");
        }
    }
    for mib in [16, 64, 256] {
        assert_eq!(all_reduce(2, mib * MIB, beside(16)), Algorithm::RING, "{mib} MiB over 2, 16 blocks");
        assert_eq!(all_reduce(2, mib * MIB, beside(33)), Algorithm::TwoShot, "{mib} MiB over 2, 33 blocks");
    }
    assert_eq!(all_reduce(2, MIB, beside(16)), Algorithm::Direct { first: 0 });
    assert_eq!(all_reduce(4, MIB, beside(16)), Algorithm::Doubling);
    // A block has 32 KiB of a chunk now, and had 64 when this was measured: a ring of 1 MiB had half of its blocks.
    assert_eq!(all_reduce(8, MIB, beside(8)), Algorithm::RING);
}

/// Not measured: the prices of devices of their own, where a lane has at most 16 of 64 blocks.
#[test]
fn kernels_on_devices_of_their_own_take_plans_of_several_lanes_where_calls_are_long() {
    for (ranks, bytes, blocks_max, expected) in [
        (2, 64 << 10, 64, Algorithm::Direct { first: 0 }),
        (2, 256 << 20, 64, Algorithm::TwoShot),
        (4, 64 << 10, 64, Algorithm::Doubling),
        (4, 4 << 20, 64, Algorithm::RING),
        (4, 256 << 20, 64, Algorithm::Tree),
        (8, 1 << 20, 64, Algorithm::Doubling),
        (8, 256 << 20, 64, Algorithm::Tree),
        (8, 256 << 20, 16, Algorithm::RING),
    ] {
        let taken = all_reduce(ranks, bytes, kernels(blocks_max));
        assert_eq!(taken, expected, "{bytes} bytes over {ranks}, {blocks_max} blocks");
    }
}

#[test]
fn all_ranks_take_the_same_at_the_same_price() {
    let runs = |kind: &Kind| !kind.is_message() && !kind.is_own() && *kind != Kind::AllToAllReplicated;
    let kinds = Kind::ALL.into_iter().filter(runs);
    for (kind, ranks) in kinds.flat_map(|kind| [2, 3, 5, 8].map(|ranks| (kind, ranks))) {
        for (count, root) in [(64, 0), (1 << 20, ranks - 1)] {
            let call = Call { root: if kind.is_rooted() { root } else { 0 }, ..call(kind, count) };
            let of = |rank| {
                let planning = planning(ranks, Options::default());
                let asked =
                    Asked { planning: &planning, call: &call, rank, ground: kernels(64), is_quiet: true };
                asked.ways().into_iter().map(|way| (way, asked.price(way))).collect::<Vec<_>>()
            };
            let all: Vec<_> = (0..ranks).map(of).collect();
            assert!(all.iter().all(|of| *of == all[0]), "{kind:?} of {count} over {ranks}: {all:?}");
            assert!(all[0].iter().any(|(_, price)| price.is_finite()), "{kind:?} over {ranks}");
        }
    }
}

#[test]
fn no_price_is_below_what_the_links_allow() {
    let slow = planning(4, Options::default().topology("host:4"));
    let call = call(Kind::AllReduce, 64 << 20);
    let asked = Asked { planning: &slow, call: &call, rank: 0, ground: kernels(64), is_quiet: true };
    let link = slow.topology().links()[0].bandwidth_bytes_s as f64;
    // A ring sends each of four pieces six times.
    assert!(asked.price((Carrier::Kernels, Algorithm::RING)) >= 1.5 * (256 << 20) as f64 / link);
    let fast = planning(4, Options::default());
    let asked = Asked { planning: &fast, ..asked };
    assert!(asked.price((Carrier::Kernels, Algorithm::RING)) < 1.5 * (256 << 20) as f64 / link);
}

/// What is chosen, and the reason against a candidate.
fn explained(planning: &Planning, ground: Ground, bytes: u64, name: &str) -> (String, String) {
    let paths = Path::ALL.map(|path| (path, None));
    let all = planning.explain_on(Collective::AllReduce, bytes, 0, ground, &paths).expect("explained");
    let hashed = |of: &Candidate| of.fold_hash.is_some() || planning.ranks() > SIMULATED_RANKS_MAX;
    assert!(all.candidates.iter().all(|of| hashed(of) && of.predicted_s > 0.0), "{all}");
    let found = all.candidates.iter().find(|of| of.name() == name).expect("it is listed");
    (all.chosen().expect("one").name(), found.excluded.clone().unwrap_or_default())
}

#[test]
fn a_part_of_a_job_whose_topology_is_named_has_the_prices_of_one_without() {
    let price = |options: Options, ranks| {
        let settings = Settings::resolve(&options).expect("settings");
        let way = (Carrier::Streams, Algorithm::TwoShot);
        let planning = Planning::new(Machine::of_one_host(ranks, ranks), &settings);
        planning.price_by(way, Collective::AllReduce, 64 << 20, &Ground::whole(Path::Streams), None)
    };
    let named = || Options::default().topology("dgx-h100:1");
    assert_eq!(price(named(), 4), price(Options::default(), 4), "the topology has eight ranks");
    let of_host = price(Options::default().topology("host:4"), 4);
    assert_ne!(of_host, price(Options::default(), 4), "the topology has as many");
}

#[test]
fn what_a_rank_chose_before_does_not_change_what_it_chooses() {
    let [barrier, sum] = [Kind::Barrier, Kind::AllReduce].map(|kind| call(kind, 8));
    let chosen = |calls: [Call; 2]| {
        let planning = planning(4, Options::default());
        calls.map(|call| planning.way_of(&call, 0, kernels(16)).expect("a way"))
    };
    let [[_, after], [before, _]] = [[barrier, sum], [sum, barrier]].map(chosen);
    assert_eq!(after, before);
}

/// What is warned of in this thread while `body` runs.
fn warned(body: impl FnOnce()) -> Vec<String> {
    struct Heard(Arc<Mutex<Vec<String>>>);

    impl Visit for Heard {
        fn record_debug(&mut self, _: &Field, value: &dyn std::fmt::Debug) {
            self.0.lock().expect("no panic").push(format!("{value:?}"));
        }
    }

    impl Subscriber for Heard {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() == Level::WARN
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &Event<'_>) {
            event.record(&mut Heard(self.0.clone()));
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    let heard = Arc::new(Mutex::new(Vec::new()));
    tracing::subscriber::with_default(Heard(heard.clone()), body);
    std::mem::take(&mut heard.lock().expect("no panic"))
}

#[test]
fn what_is_left_out_says_why() {
    let four = planning(4, Options::default());
    let [short, long] = [32 << 10, (32 << 10) + 1];
    let of = |bytes, name: &str| explained(&four, kernels(16), bytes, name);
    assert_eq!(of(short, "packets/direct"), ("packets/direct".into(), String::new()));
    let (chosen, why) = of(long, "packets/direct");
    assert!(chosen == "kernels/doubling" && why.contains("32768 bytes at most"), "{chosen}: {why}");
    assert_eq!(of(short, "kernels/tree").1, "", "its price alone");
    let streams = |bytes, name| explained(&four, Ground::whole(Path::Streams), bytes, name).1;
    assert!(streams(1 << 20, "streams/direct").contains("each rank folds its share"));
    assert!(streams(short, "streams/doubling").contains("has to name it"));
    assert_eq!(of(short, "streams/direct").1, "the path is kernels");
    assert!(explained(&four, kernels(1), short, "kernels/two-shot").1.contains("lanes"));
    let many = planning(17, Options::default());
    assert!(explained(&many, kernels(16), short, "packets/direct").1.contains("16 ranks at most"));
    let (chosen, why) = explained(&four, Ground::new(Path::Kernels, 16, false), short, "packets/direct");
    assert!(chosen == "kernels/doubling" && why.contains("shares its device"), "{chosen}: {why}");
    let call = call(Kind::AllReduce, 8192);
    let named = |algorithm| {
        let call = Call { algorithm: Some(algorithm), ..call };
        four.way_of(&call, 0, kernels(1)).expect("a way")
    };
    let host =
        explained(&planning(65, Options::default()), Ground::whole(Path::Host), short, "kernels/two-shot");
    assert_eq!(host.1, "the path is host", "nothing is proved for it");
    assert_eq!(named(Algorithm::RING), (Carrier::Kernels, Algorithm::RING));
    // What does not fit is not taken, and said so.
    assert_eq!(named(Algorithm::Tree).0, Carrier::Packets);
}

#[test]
fn a_restriction_binds_programs_or_is_refused_with_the_reasons() {
    let ring = planning(4, Options::default().algorithms("ring"));
    let (chosen, why) = explained(&ring, kernels(16), 1024, "packets/direct");
    assert_eq!((&*chosen, &*why), ("kernels/ring", "Options::algorithms leaves it out"));
    assert!(ring.forbids_fused().is_some_and(|why| why.contains("direct alone")));
    assert_eq!(planning(1, Options::default().algorithms("ring")).forbids_fused(), None);
    let two = planning(4, Options::default().algorithms("tree,ring"));
    assert_eq!(explained(&two, kernels(16), 1024, "kernels/ring").0, "kernels/tree", "by their prices");
    let named = planning(4, Options::default().algorithms("tree"));
    assert_eq!(explained(&named, kernels(16), 1024, "kernels/ring").0, "kernels/tree");
    let error = named.way_of(&call(Kind::AllReduce, 256), 0, kernels(1)).expect_err("it has two lanes");
    let error = error.to_string();
    assert!(
        error.contains("kernels/tree: its plans have up to") && error.contains("leaves it out"),
        "{error}"
    );
}

/// Four ranks whose tuning table has one line, of a path of devices or of the host.
fn tabled(path: Option<Path>, algorithm: Algorithm, fold_hash: u64) -> Planning {
    let line = TuningLine {
        collective: Collective::AllReduce,
        ranks: 4,
        bytes: 1 << 20,
        algorithm,
        slot_bytes: 0,
        fold_hash,
        nanoseconds: 10_000,
    };
    let suffix = path.map_or_else(String::new, |path| format!(" device={path}"));
    let machine = planning(4, Options::default()).machine() + &suffix;
    let mut settings = Settings::resolve(&Options::default()).expect("settings");
    settings.preferences.tuning = Some(Arc::new(Tuning { machine, lines: vec![line] }));
    Planning::new(Machine::of_one_host(4, 4), &settings)
}

fn fold(algorithm: Algorithm) -> u64 {
    planning(4, Options::default()).fold_hash(algorithm, Collective::AllReduce).expect("proved")
}

#[test]
fn a_table_of_a_path_binds_it_and_a_line_that_cannot_act_does_not() {
    let chosen = |algorithm: Algorithm, fold_hash, path: &[Path], ground| {
        let tuned = tabled(path.first().copied(), algorithm, fold_hash);
        let call = call(Kind::AllReduce, 8192);
        let asked = Asked { planning: &tuned, call: &call, rank: 0, ground, is_quiet: false };
        tuned.select_on(&asked).expect("a way")
    };
    let (ring, tree) = (Algorithm::RING, Algorithm::Tree);
    let of = |carrier| ((carrier, ring), Origin::Tuned);
    assert_eq!(chosen(ring, fold(ring), &[Path::Kernels], kernels(16)), of(Carrier::Kernels));
    assert_eq!(chosen(ring, fold(ring), &[], Ground::whole(Path::Host)), of(Carrier::Staging));
    let untuned = ((Carrier::Packets, Algorithm::Direct { first: 0 }), Origin::Priced);
    assert_eq!(chosen(ring, fold(ring), &[Path::Streams], kernels(16)), untuned, "of another path");
    assert_eq!(chosen(ring, fold(ring) ^ 1, &[Path::Kernels], kernels(16)), untuned, "of other bits");
    assert_eq!(chosen(tree, fold(tree), &[Path::Kernels], kernels(1)), untuned, "it has two lanes");
}

#[test]
fn a_line_that_cannot_act_is_warned_of_once_and_where_its_path_is_taken() {
    for (table, path) in [(Some(Path::Kernels), Path::Kernels), (None, Path::Host)] {
        for taken in Path::ALL {
            let planning = tabled(table, Algorithm::RING, fold(Algorithm::RING) ^ 1);
            let paths = Path::ALL.map(|path| (path, None));
            let explain = || {
                planning
                    .explain_on(Collective::AllReduce, 8192, 0, Ground::whole(taken), &paths)
                    .expect("explained");
            };
            let heard = warned(|| (0..2).for_each(|_| explain()));
            assert_eq!(heard.len(), usize::from(taken == path), "{path} and {taken}: {heard:?}");
            assert!(
                heard.iter().all(|text| text.contains("a line of the tuning table is ignored")),
                "{heard:?}"
            );
        }
    }
}

#[test]
fn a_table_of_devices_is_warned_of_once_where_none_asks_for_it() {
    let calls = [call(Kind::Barrier, 1), call(Kind::AllReduce, 8), call(Kind::AllReduce, 8192)];
    let choose = |planning: &Planning, call: &Call| assert!(Choice::of(planning, call).is_ok());
    let of = |path| tabled(Some(path), Algorithm::RING, fold(Algorithm::RING));
    let (alone, placed) = (of(Path::Kernels), of(Path::Kernels));
    assert_eq!(warned(|| choose(&alone, &calls[0])), [""; 0], "the library's own");
    let heard = warned(|| calls.iter().for_each(|call| choose(&alone, call)));
    assert!(heard.len() == 1 && heard[0].contains("is ignored on host memory"), "{heard:?}");
    placed.expect_table_of(Path::Kernels);
    assert_eq!(warned(|| calls.iter().for_each(|call| choose(&placed, call))), [""; 0]);
    let elsewhere = of(Path::Streams);
    let heard = warned(|| {
        elsewhere.expect_table_of(Path::Host);
        calls.iter().for_each(|call| choose(&elsewhere, call));
    });
    assert!(heard.len() == 1 && heard[0].contains("take the host path"), "{heard:?}");
}

#[test]
fn what_is_named_and_does_not_run_has_a_row_with_the_reason() {
    let four = planning(4, Options::default());
    let explained = |path, named| {
        let all =
            four.explain_on_devices(Some(named), path, Collective::AllReduce, 1 << 20).expect("explained");
        let name = format!("{}/{named}", path.carrier().name());
        let found = all.candidates.iter().find(|of| of.name() == name).expect("it is listed");
        (all.origin, found.chosen, found.excluded.clone())
    };
    let heard = warned(|| {
        for path in [Path::Kernels, Path::Streams, Path::Host] {
            let named = if path == Path::Streams { Algorithm::RING } else { Algorithm::Tree };
            assert_eq!(explained(path, named), (Origin::Named, true, None), "{path}");
        }
        let why = |why: &str| (Origin::Priced, false, Some(why.to_owned()));
        let of = explained(Path::Fused, Algorithm::RING);
        assert_eq!(of, why("the fused path has no such program"));
        let of = explained(Path::Streams, Algorithm::Tree);
        assert_eq!(of, why("its plans have up to 4 lanes, 1 at most run here"));
    });
    assert_eq!(heard, [""; 0]);
    let undefined = four.explain_on_devices(Some(Algorithm::Spread), Path::Fused, Collective::AllReduce, 8);
    assert!(undefined.expect_err("it is of another collective").to_string().contains("is not defined"));
}
