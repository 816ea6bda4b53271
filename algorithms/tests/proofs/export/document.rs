//! The document of schedules: the committed form of a small one, and that its links lead somewhere.

use std::collections::BTreeMap;

use consort_algorithms::builders::{RingOptions, doubling, pair, ring};
use consort_algorithms::export::{schedule_table, schedules_document, schedules_files};
use consort_algorithms::{Collective, Schedule};

use super::{direct, schedules, through_a_switch};
use crate::common::snapshot;

fn list() -> Vec<(&'static str, Schedule)> {
    let both = RingOptions { channels: 1, bidirectional: true };
    vec![
        ("Rings", ring(Collective::AllReduce, 4, RingOptions::default())),
        ("Rings", ring(Collective::ReduceScatter, 4, both)),
        ("Rings", ring(Collective::Broadcast, 4, RingOptions::default())),
        ("Exchanges", doubling(8)),
        ("Exchanges", through_a_switch()),
        ("Point to point", pair()),
        ("Point to point", direct(4)),
    ]
}

#[test]
fn a_document_is_the_committed_one() {
    snapshot("schedules.md", &schedules_document(&list()));
}

#[test]
fn links_lead_somewhere() {
    let mut list = list();
    // The same heading twice.
    list.push(("Again", pair()));
    let files = schedules_files(&list);
    let text = &files["SCHEDULES.md"];
    assert_eq!(*text, schedules_document(&list));
    let mut headings: BTreeMap<String, u32> = BTreeMap::new();
    for heading in text.lines().filter_map(|line| line.trim_start_matches('#').strip_prefix(' ')) {
        let slug = heading.to_lowercase().replace([':', '(', ')', '=', ',', '.'], "").replace(' ', "-");
        let before = headings.get(&slug).copied().unwrap_or(0);
        headings.insert(slug.clone(), before + 1);
        if before > 0 {
            headings.insert(format!("{slug}-{before}"), 1);
        }
    }
    let links: Vec<&str> =
        text.split("](").skip(1).map(|rest| rest.split_once(')').expect("a link ends").0).collect();
    assert_eq!(links.len(), 2 * list.len());
    for link in &links {
        match link.strip_prefix('#') {
            Some(anchor) => assert!(headings.contains_key(anchor), "{anchor} is none of {headings:?}"),
            None => assert!(files.contains_key(*link), "{link} is no file"),
        }
    }
    assert!(links.contains(&"#pair-send_receive-over-2-ranks-1"));
    // One picture less than schedules, because two are the same.
    assert_eq!(files.len(), list.len());
}

/// Every message stands in the table twice, at its sender and at its receiver; local copies once.
#[test]
fn the_table_has_every_transfer() {
    for schedule in schedules().iter().filter(|schedule| schedule.ranks <= 8) {
        let table = schedule_table(schedule);
        assert!(!table.contains("the first"), "{table}");
        let count = |sign: &str| table.matches(sign).count();
        let transfers = || schedule.rounds.iter().flat_map(|round| &round.transfers);
        let local = transfers().filter(|transfer| transfer.from == transfer.to).count();
        let folds = transfers().filter(|transfer| transfer.fold.is_some()).count();
        let expected = (schedule.messages(), schedule.messages(), local, folds);
        assert_eq!((count("→"), count("←"), count("↺"), count("+")), expected, "{table}");
    }
}

/// A piece keeps its name on its way, whatever buffers it passes.
#[test]
fn pieces_keep_their_names() {
    for collective in [Collective::AllGather, Collective::ReduceScatter, Collective::AllReduce] {
        let schedule = ring(collective, 4, RingOptions::default());
        let table = schedule_table(&schedule);
        // A ring hands on in a round what arrived in the round before.
        let arrivals = |line: &str| {
            let words = line.split_whitespace().filter_map(|word| word.split_once('←'));
            words.map(|(piece, _)| piece.trim_start_matches('+').to_owned()).collect::<Vec<_>>()
        };
        let sends = |line: &str| {
            let words = line.split_whitespace().filter_map(|word| word.split_once('→'));
            words.map(|(piece, _)| piece.to_owned()).collect::<Vec<_>>()
        };
        let lines: Vec<&str> = table.lines().filter(|line| line.contains('→')).collect();
        assert_eq!(lines.len(), schedule.rounds.len(), "{table}");
        for pair in lines.windows(2) {
            assert_eq!(arrivals(pair[0]), sends(pair[1]), "{table}");
        }
        // And all four are on the way in every round.
        let mut pieces = sends(lines[0]);
        pieces.sort();
        assert_eq!(pieces, ["c0", "c1", "c2", "c3"], "{table}");
    }
}

#[test]
fn a_table_keeps_to_its_limits() {
    let table = schedule_table(&ring(Collective::AllReduce, 64, RingOptions::default()));
    assert!(
        table.ends_with("the first 47 of 126 rounds\nthe first 12 of 64 ranks and switches\n"),
        "{table}"
    );
    assert_eq!(table.lines().count(), 50);
    let table = schedule_table(&direct(64));
    assert!(table.ends_with("the first 12 of 64 ranks and switches\n"), "one round is always written");
}
