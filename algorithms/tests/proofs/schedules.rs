//! `docs/SCHEDULES.md` and its pictures show the catalogue: every family, drawn by the exporter.
//!
//! `CONSORT_SNAPSHOTS=write cargo test -p consort-algorithms --test proofs schedules::` writes them anew.

use std::collections::BTreeSet;
use std::path::Path;

use consort_algorithms::builders::{self, SwitchForm};
use consort_algorithms::catalogue::{Algorithm, Family};
use consort_algorithms::export::schedules_files;
use consort_algorithms::{Collective, Schedule};

/// Every family once or twice, on as few ranks as show how it works.
fn drawn() -> Vec<(&'static str, Algorithm, Collective, u32)> {
    use Collective::*;
    let ring = Algorithm::Ring { channels: 1, bidirectional: false };
    let both_ways = Algorithm::Ring { channels: 1, bidirectional: true };
    let direct = Algorithm::Direct { first: 0 };
    vec![
        ("Rings and chains", ring, AllReduce, 4),
        ("Rings and chains", both_ways, AllGather, 4),
        ("Rings and chains", ring, Broadcast, 4),
        ("Trees", Algorithm::Tree, AllReduce, 7),
        ("Trees", Algorithm::Binomial, Broadcast, 7),
        ("Trees", Algorithm::Binomial, Gather, 6),
        ("Trees", Algorithm::ScatterAllGather, Broadcast, 4),
        ("Doubling and halving", Algorithm::Doubling, AllReduce, 8),
        ("Doubling and halving", Algorithm::Doubling, AllReduce, 6),
        ("Doubling and halving", Algorithm::HalvingDoubling, AllReduce, 4),
        ("Doubling and halving", Algorithm::Swing, AllReduce, 8),
        ("Dissemination", Algorithm::Bruck { radix: 2 }, AllGather, 6),
        ("Dissemination", Algorithm::Bruck { radix: 2 }, AllToAll, 6),
        ("Dissemination", Algorithm::Bruck { radix: 4 }, AllToAll, 8),
        ("Dissemination", Algorithm::Pat, AllGather, 7),
        ("Dissemination", Algorithm::Pat, ReduceScatter, 7),
        ("Direct exchanges", direct, AllReduce, 4),
        ("Direct exchanges", Algorithm::TwoShot, AllReduce, 4),
        ("Direct exchanges", direct, Scatter, 5),
        ("Direct exchanges", Algorithm::Pairwise, AllToAll, 5),
        ("Direct exchanges", Algorithm::Spread, AllToAll, 4),
        ("Boxes, grids and rails", Algorithm::Hierarchical { per_box: 2 }, AllReduce, 4),
        ("Boxes, grids and rails", Algorithm::BlueConnect { dimensions: [2, 3, 1, 1] }, ReduceScatter, 6),
        ("Boxes, grids and rails", Algorithm::BoxTree { per_box: 2 }, AllReduce, 6),
        ("Boxes, grids and rails", Algorithm::BoxChain { per_box: 2, first: 1 }, Broadcast, 6),
        ("Boxes, grids and rails", Algorithm::TwoLevel { per_box: 2 }, AllToAll, 4),
        ("Boxes, grids and rails", Algorithm::Coordinated, AllToAllReplicated { group: 2 }, 6),
        ("Boxes, grids and rails", Algorithm::Rails { per_box: 2, channels: 1 }, AllReduce, 4),
        ("Boxes, grids and rails", Algorithm::RailTrees { per_box: 2, trees: 1, first: 0 }, Broadcast, 6),
        (
            "Aggregating switches (priced, not run)",
            Algorithm::Switched { per_box: 4, channels: 1 },
            AllReduce,
            4,
        ),
        ("Point to point", Algorithm::Pair, SendReceive, 2),
    ]
}

fn schedules() -> Vec<(&'static str, Schedule)> {
    let catalogue = drawn()
        .into_iter()
        .map(|(section, algorithm, collective, ranks)| (section, algorithm.schedule(collective, ranks)));
    let others = [
        ("Aggregating switches (priced, not run)", builders::switch(4, SwitchForm::OneShot)),
        ("Aggregating switches (priced, not run)", builders::switch(4, SwitchForm::TwoStep)),
        ("Aggregating switches (priced, not run)", builders::switch_tree(4, 2)),
    ];
    catalogue.chain(others).collect()
}

#[test]
fn every_family_is_drawn() {
    let families: BTreeSet<Family> =
        drawn().into_iter().map(|(_, algorithm, ..)| algorithm.family()).collect();
    assert_eq!(families, Family::ALL.into_iter().collect());
}

#[test]
fn the_committed_document_is_the_drawn_one() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let files = schedules_files(&schedules());
    if std::env::var_os("CONSORT_SNAPSHOTS").is_some_and(|value| value == "write") {
        let _ = std::fs::remove_dir_all(docs.join("schedules"));
        for (path, text) in &files {
            let path = docs.join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("docs can be written");
            std::fs::write(path, text).expect("docs can be written");
        }
    }
    for (path, text) in &files {
        let committed = std::fs::read_to_string(docs.join(path)).unwrap_or_default();
        assert!(committed == *text, "docs/{path} is not what is drawn; see the head of this test");
    }
    let committed = std::fs::read_dir(docs.join("schedules")).expect("the pictures").count();
    assert_eq!(committed + 1, files.len(), "docs/schedules has pictures of nothing");
}
