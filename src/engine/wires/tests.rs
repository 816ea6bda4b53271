//! One way, and what is made of its counts.

use consort_control::report::Report;

use super::*;
use crate::Communicator;

const RATE: u64 = 100_000_000;

/// As the system counts at some second, at this rate since the beginning of the socket.
fn flow(epoch: u32, seconds: u64, rate: u64) -> Flow {
    let at = |last| IpAddr::from([10, 0, 0, last]);
    Flow {
        way: 0,
        epoch,
        from: at(1),
        to: at(2),
        bytes: seconds * rate,
        received: 0,
        at_work: Duration::from_secs(seconds),
        held_up: Duration::ZERO,
        round_trip: Duration::from_micros(500),
        sent_again: 3,
    }
}

fn reading(bytes: u64) -> Reading {
    let load = Load { bytes, at_work: Duration::from_secs(1), round_trip: Duration::from_micros(500) };
    Reading { load, received: 0, is_held_up: false }
}

fn way() -> Way {
    Way::new(1, 2, flow(1, 0, RATE))
}

/// Takes a second at this rate, on the way that carries most.
fn second(way: &mut Way, at: &mut u64, mark: u64, rate: u64) -> Option<Verdict> {
    *at += 1;
    way.judge(mark, reading(rate), rate, Duration::from_secs(*at))
}

#[test]
fn what_another_socket_has_carried_is_no_sample_and_is_not_lost() {
    let mut way = way();
    assert_eq!(way.advance(flow(1, 2, RATE)).load.at_work, Duration::from_secs(2));
    assert_eq!(way.advance(flow(1, 3, RATE)), reading(RATE));
    // Between two ticks of the system's clock: no time, and so none in which the peer had no room.
    let ticked = Flow { bytes: 3 * RATE + 5, ..flow(1, 3, RATE) };
    let load = Load { bytes: 5, at_work: Duration::ZERO, round_trip: Duration::from_micros(500) };
    assert_eq!(way.advance(ticked), Reading { load, received: 0, is_held_up: false });
    // Its counts are of another beginning.
    assert_eq!(way.advance(flow(2, 1, RATE)), Reading::default());
    let held_up = Flow { held_up: Duration::from_millis(500), received: 7, ..flow(2, 2, RATE) };
    assert_eq!(way.advance(held_up), Reading { received: 7, is_held_up: true, ..reading(RATE) });
    let record = way.record();
    assert_eq!((record.peer, record.channel, record.bytes, record.sent_again), (1, 2, 5 * RATE + 5, 6));
    assert_eq!((record.rates.count, record.round_trips.count, record.is_slow), (3, 4, false));
    assert!(record.rates.p50 <= RATE && record.rates.p50 > RATE / 5 * 4, "{record}");
    let text = "to rank 1 (10.0.0.1 to 10.0.0.2, channel 2): 500000005 bytes, 6 packets again, ";
    assert!(record.to_string().starts_with(text), "{record}");
}

#[test]
fn calls_of_one_kind_say_nothing_of_another() {
    let (mut way, mut at) = (way(), 0);
    for _ in 0..30 {
        assert_eq!(second(&mut way, &mut at, 1, RATE), None);
    }
    // Calls in which others use the wire too.
    for _ in 0..20 {
        assert_eq!(second(&mut way, &mut at, 2, RATE / 3), None);
    }
    let verdicts: Vec<Verdict> = (0..10).filter_map(|_| second(&mut way, &mut at, 1, RATE / 3)).collect();
    assert!(matches!(verdicts[..], [Verdict::Slow { .. }, Verdict::StillSlow { .. }, ..]), "{verdicts:?}");
    // Of many kinds those are remembered that came last, and those in which it is slow.
    for mark in 100..100 + 2 * KINDS as u64 {
        second(&mut way, &mut at, mark, RATE);
    }
    assert!(way.is_slow() && way.kinds.len() == KINDS);
    assert!(way.kinds.iter().any(|kind| kind.mark == 1), "it is slow in these");
}

#[test]
fn words_about_what_comes_in_are_no_load_unless_the_wire_carries_more_as_a_rule() {
    let mut way = way();
    let mut at = 0;
    let mut carries = |way: &mut Way, bytes, received, most| {
        at += 1;
        way.judge(1, Reading { received, ..reading(bytes) }, most, Duration::from_secs(at))
    };
    for (received, most) in [(0, 2 * RATE * PART), (2 * RATE * PART, 0)] {
        assert_eq!(carries(&mut way, RATE, received, most), None);
        assert!(way.kinds.is_empty(), "not kept");
    }
    for _ in 0..30 {
        assert_eq!(carries(&mut way, RATE, RATE, RATE), None);
    }
    let verdicts: Vec<Verdict> = (0..8).filter_map(|_| carries(&mut way, RATE / 100, RATE, RATE)).collect();
    assert!(matches!(verdicts[..], [Verdict::Slow { .. }, ..]), "{verdicts:?}");
}

fn slow(report: &Report) -> Vec<(Rank, Rank, u64, u64)> {
    report.slow.iter().map(|wire| (wire.from, wire.to, wire.bytes_s, wire.usual_bytes_s)).collect()
}

#[test]
fn all_ranks_reports_name_a_slow_wire_until_it_has_recovered() {
    let ranks = Communicator::local(2).expect("two ranks");
    let group = &ranks[0].core().group;
    let at = |last| IpAddr::from([10, 0, 0, last]);
    let wire = Wire { peer: 1, from: at(1), to: at(2) };
    let reports = || [0, 1].map(|rank: usize| slow(&ranks[rank].report().expect("a report")));
    let both = |rates: Vec<(Rank, Rank, u64, u64)>| [rates.clone(), rates];
    assert_eq!(reports(), both(vec![]));
    let now = group.clock().now();
    group.wire_slowed(wire, RATE, RATE / 2, now);
    assert_eq!(reports(), both(vec![(0, 1, RATE / 2, RATE)]));
    // Another channel of the same wire.
    group.wire_slowed(wire, RATE, RATE / 3, now);
    assert_eq!(reports(), both(vec![(0, 1, RATE / 2, RATE)]));
    group.wire_still_slow(wire, RATE / 4);
    assert_eq!(reports(), both(vec![(0, 1, RATE / 4, RATE)]));
    group.wire_recovered(wire, RATE);
    assert_eq!(reports(), both(vec![]));
    group.wire_slowed(wire, RATE, RATE / 2, now);
    group.wire_forgotten(wire);
    assert_eq!(reports(), both(vec![]));
}

#[test]
fn a_wire_that_is_slow_in_calls_that_do_not_come_again_is_not_known_to_be() {
    let (mut way, mut at) = (way(), 0);
    for rate in [[RATE; 30].as_slice(), &[RATE / 2; 10]].concat() {
        second(&mut way, &mut at, 1, rate);
    }
    let stale = Duration::from_secs(at) + STALE;
    way.rest(stale - Duration::from_secs(1));
    assert!(way.is_slow());
    way.rest(stale);
    assert!(!way.is_slow() && way.kinds[0].pace.is_known(), "its usual rate is known");
}
