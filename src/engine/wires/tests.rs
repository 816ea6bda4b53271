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
        at_work: Duration::from_secs(seconds),
        round_trip: Duration::from_micros(500),
        sent_again: 3,
    }
}

fn way() -> Way {
    let first = flow(1, 0, RATE);
    Way::new(Wire { peer: 1, from: first.from, to: first.to }, 2, &first)
}

/// Takes a second at this rate.
fn second(way: &mut Way, at: &mut u64, mark: u64, rate: u64) -> Option<Verdict> {
    *at += 1;
    way.judge(mark, rate, Duration::from_secs(1), Duration::from_secs(*at))
}

#[test]
fn what_another_socket_has_carried_is_no_sample_and_is_not_lost() {
    let mut way = way();
    assert_eq!(way.advance(&flow(1, 2, RATE)), (2 * RATE, Duration::from_secs(2)));
    assert_eq!(way.advance(&flow(1, 3, RATE)), (RATE, Duration::from_secs(1)));
    // Its counts are of another beginning.
    assert_eq!(way.advance(&flow(2, 1, RATE)), (0, Duration::ZERO));
    assert_eq!(way.advance(&flow(2, 2, RATE)), (RATE, Duration::from_secs(1)));
    let record = way.record();
    assert_eq!((record.peer, record.channel, record.bytes, record.sent_again), (1, 2, 5 * RATE, 6));
    assert_eq!((record.rates.count, record.round_trips.count, record.is_slow), (3, 3, false));
    assert!(record.rates.p50 <= RATE && record.rates.p50 > RATE / 5 * 4, "{record}");
    let text = "to rank 1 (10.0.0.1 to 10.0.0.2, channel 2): 500000000 bytes, 6 packets again, ";
    assert!(record.to_string().starts_with(text), "{record}");
}

#[test]
fn calls_of_one_kind_say_nothing_of_another() {
    let (mut way, mut at) = (way(), 0);
    for _ in 0..20 {
        assert_eq!(second(&mut way, &mut at, 1, RATE), None);
    }
    // Calls in which others use the wire too.
    for _ in 0..60 {
        assert_eq!(second(&mut way, &mut at, 2, RATE / 3), None);
    }
    let verdicts: Vec<Verdict> = (0..8).filter_map(|_| second(&mut way, &mut at, 1, RATE / 3)).collect();
    assert!(matches!(verdicts[..], [Verdict::Slow { .. }, Verdict::StillSlow { .. }, ..]), "{verdicts:?}");
    // Of many kinds those are remembered that came last.
    for mark in 100..100 + 2 * KINDS as u64 {
        second(&mut way, &mut at, mark, RATE);
    }
    assert!(!way.is_slow() && way.kinds.len() == KINDS);
}

/// A rank with a peer, to which the wire of [`way`] leads.
fn ranks() -> Vec<Communicator> {
    Communicator::local(2).expect("two ranks")
}

fn slow(report: &Report) -> Vec<(Rank, Rank, u64, u64)> {
    report.slow.iter().map(|wire| (wire.from, wire.to, wire.bytes_s, wire.usual_bytes_s)).collect()
}

#[test]
fn all_ranks_reports_name_a_slow_wire_until_it_has_recovered() {
    let ranks = ranks();
    let group = &ranks[0].core().group;
    let (mut way, mut at) = (way(), 0);
    let mut run = |way: &mut Way, mark, rate, seconds| {
        for _ in 0..seconds {
            if let Some(verdict) = second(way, &mut at, mark, rate) {
                way.say(group, mark, verdict, |_| group.clock().now());
            }
            way.forget(group, Duration::from_secs(at));
        }
    };
    let reports = || [0, 1].map(|rank: usize| slow(&ranks[rank].report().expect("a report")));
    run(&mut way, 1, RATE, 20);
    assert_eq!(reports(), [vec![], vec![]]);
    run(&mut way, 1, RATE / 2, 10);
    assert_eq!(reports(), [(); 2].map(|()| vec![(0, 1, RATE / 2, RATE)]));
    // How it is now is kept up.
    run(&mut way, 1, RATE / 4, 1);
    assert_eq!(reports(), [(); 2].map(|()| vec![(0, 1, RATE / 4, RATE)]));
    run(&mut way, 1, RATE, 10);
    assert_eq!(reports(), [vec![], vec![]]);
    // Of calls that do not come again nothing is known after a while.
    run(&mut way, 1, RATE / 2, 10);
    assert_eq!(reports(), [(); 2].map(|()| vec![(0, 1, RATE / 2, RATE)]));
    run(&mut way, 2, RATE, 2 * STALE.as_secs());
    assert_eq!(reports(), [vec![], vec![]]);
}
