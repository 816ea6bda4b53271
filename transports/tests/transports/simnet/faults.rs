//! What is broken is reported, and what is not lost arrives.

use std::time::Duration;

use consort_transports::{PeerState, TransportError};

use super::*;

#[test]
fn what_was_sent_before_a_kill_arrives() {
    for seed in 0..50 {
        let network = network(seed);
        let [mut left, mut right] = pair(&network, [A, B], 5000);
        let data = nonzero(seed, 5000);
        put(&mut left, 0, &data);
        ready(&mut left, 1, 9);
        network.kill(A);
        assert!(matches!(left.progress(), Err(TransportError::PeerClosed { .. })));
        assert!(matches!(left.signal(CounterKind::Ready, 2, 0), Err(TransportError::PeerClosed { .. })));
        assert_eq!(right.progress().expect("progress"), PeerState::Open);
        settle(&network);
        assert_eq!(right.progress().expect("progress"), PeerState::Closed);
        assert_eq!(
            (right.counter(CounterKind::Ready).value(), right.counter(CounterKind::Ready).tag(1)),
            (1, 9)
        );
        assert!(read(&right, 0, 5000) == data);
        assert!(matches!(right.put(0, Span::of(&[1u8]), &mut 0), Err(TransportError::PeerClosed { .. })));
        assert!(network.transport(A).endpoint(Layout::new(1)).is_err());
    }
}

#[test]
fn a_kill_while_connecting_is_noticed() {
    let network = Network::new(1);
    let [_left, mut right] = start(&network, [A, B], 64);
    network.kill(A);
    settle(&network);
    assert!(matches!(right.poll(), Err(TransportError::PeerClosed { .. })));
    // And before the peer has called.
    let endpoint = network.transport(B).endpoint(Layout::new(64)).expect("endpoint");
    let gone = network.transport(Node(2)).endpoint(Layout::new(64)).expect("endpoint");
    network.kill(Node(2));
    let mut connecting = endpoint.connect(gone.address()).expect("connect");
    assert!(connecting.poll().expect("poll").is_pending());
    settle(&network);
    assert!(matches!(connecting.poll(), Err(TransportError::PeerClosed { .. })));
}

#[test]
fn a_reset_is_reported_to_both_and_loses_what_is_under_way() {
    let network = Network::new(1);
    let [mut left, mut right] = pair(&network, [A, B], 64);
    let [mut other, mut third] = pair(&network, [A, Node(2)], 64);
    ready(&mut left, 1, 0);
    settle(&network);
    put(&mut left, 0, &[1; 64]);
    ready(&mut left, 2, 0);
    network.reset(A, B);
    assert_eq!(network.in_flight(), 0);
    assert_eq!(left.progress().expect("not heard yet"), PeerState::Open);
    ready(&mut left, 3, 0);
    settle(&network);
    for side in [&mut left, &mut right] {
        for outcome in [side.progress().map(|_| ()), side.signal(CounterKind::Ready, 4, 0).map(|_| ())] {
            assert!(matches!(outcome, Err(TransportError::System { .. })), "{outcome:?}");
        }
    }
    assert_eq!(right.counter(CounterKind::Ready).value(), 1, "what had arrived stays");
    assert_eq!(read(&right, 0, 64), [0; 64]);
    ready(&mut other, 1, 0);
    settle(&network);
    assert_eq!(third.progress().expect("progress"), PeerState::Open);
    assert_eq!(third.counter(CounterKind::Ready).value(), 1);
}

#[test]
fn a_cut_holds_back_until_it_is_healed() {
    let network = Network::new(1);
    let [mut left, mut right] = pair(&network, [A, B], 64);
    put(&mut left, 0, &[1; 64]);
    network.cut(A, B);
    ready(&mut left, 1, 0);
    let mut stuck = start(&network, [A, B], 64);
    assert_eq!(network.next(), None);
    assert!(stuck.iter_mut().all(|side| side.poll().expect("poll").is_pending()));
    network.heal();
    let healed = network.now();
    settle(&network);
    assert!(network.now() >= healed + Duration::from_micros(5));
    right.progress().expect("progress");
    assert_eq!((right.counter(CounterKind::Ready).value(), read(&right, 0, 64)), (1, vec![1; 64]));
    assert!(stuck.iter_mut().all(|side| side.poll().expect("poll").is_ready()));
}

#[test]
fn a_partition_also_cuts_off_who_comes_later() {
    let network = Network::new(1);
    network.partition(&[A, B]);
    network.partition(&[Node(9)]);
    for (nodes, is_cut) in
        [([A, B], false), ([A, Node(2)], true), ([Node(2), Node(3)], false), ([Node(3), Node(9)], true)]
    {
        let mut connecting = start(&network, nodes, 64);
        settle(&network);
        assert_eq!(connecting[0].poll().expect("poll").is_pending(), is_cut, "{nodes:?}");
    }
    network.heal();
    pair(&network, [A, Node(9)], 64);
}

#[test]
fn a_lost_link_sends_again_and_perhaps_twice() {
    const OUTAGE: Duration = Duration::from_millis(5);
    let mut twice = 0;
    for seed in 0..50 {
        let network = network(seed);
        let [mut left, mut right] = pair(&network, [A, B], 64);
        put(&mut left, 0, &[7; 64]);
        ready(&mut left, 1, 0);
        let lost = network.now();
        network.remake(A, B, OUTAGE);
        network.advance(lost + OUTAGE - Duration::from_nanos(1));
        right.progress().expect("progress");
        assert_eq!(right.counter(CounterKind::Ready).value(), 0);
        twice += usize::from(read(&right, 0, 1) == [7]);
        settle(&network);
        right.progress().expect("progress");
        assert_eq!((right.counter(CounterKind::Ready).value(), read(&right, 0, 64)), (1, vec![7; 64]));
        assert_eq!(network.in_flight(), 0);
    }
    assert!(twice > 5 && twice < 45, "{twice} of 50");
}

#[test]
fn a_stopped_process_does_nothing_and_its_window_fills() {
    let network = Network::new(1);
    let [mut left, mut right] = pair(&network, [A, B], 1 << 20);
    ready(&mut right, 1, 0);
    network.freeze(B);
    settle(&network);
    left.progress().expect("progress");
    assert_eq!(left.counter(CounterKind::Ready).value(), 1, "sent before");
    let data = nonzero(1, 1 << 20);
    let mut done = 0;
    assert!(left.put(0, Span::of(&data), &mut done).expect("put").is_pending());
    while let Some(next) = network.next() {
        assert!(!network.advance(next).contains(&B));
    }
    assert_eq!(right.progress().expect("progress"), PeerState::Open);
    assert_eq!(read(&right, 0, 1 << 20), vec![0; 1 << 20]);
    assert!(right.signal(CounterKind::Credit, 1, 0).expect("signal").is_pending());
    let stuck = done;
    assert!(left.put(0, Span::of(&data), &mut done).expect("put").is_pending() && done == stuck);
    network.thaw(B);
    assert_eq!(network.advance(network.now()), [B]);
    right.progress().expect("progress");
    assert!(read(&right, 0, 1 << 20).iter().filter(|byte| **byte != 0).count() == stuck);
    settle(&network);
    let _ = left.put(0, Span::of(&data), &mut done).expect("put");
    assert!(done > stuck);
}

#[test]
fn a_black_hole_swallows_one_direction_of_data() {
    let network = Network::new(1);
    let [mut left, mut right] = pair(&network, [A, B], 64);
    ready(&mut left, 1, 0);
    network.blackhole_data(A, B);
    ready(&mut right, 1, 0);
    network.heal();
    settle(&network);
    assert_eq!(left.progress().expect("progress"), PeerState::Open);
    assert_eq!(right.progress().expect("progress"), PeerState::Open);
    assert_eq!(left.counter(CounterKind::Ready).value(), 1);
    assert_eq!(right.counter(CounterKind::Ready).value(), 0);
    drop(left);
    settle(&network);
    assert_eq!(right.progress().expect("progress"), PeerState::Open, "not even the end is heard of");
    drop(right);
    settle(&network);
    assert_eq!((network.open_endpoints(), network.in_flight()), (0, 0));
}

#[test]
fn memory_is_denied_once() {
    let network = Network::new(1);
    let transport = network.transport(A);
    let endpoint = || transport.endpoint(Layout::new(77));
    network.deny_memory(A, 2);
    let _kept = [endpoint().expect("the first"), endpoint().expect("the second")];
    let denied = endpoint().map(drop);
    assert!(matches!(denied, Err(TransportError::OutOfMemory { needed_bytes: 77, .. })), "{denied:?}");
    endpoint().expect("afterwards");
    assert_eq!(network.open_endpoints(), 2);
    network.deny_memory(A, 0);
    network.transport(B).endpoint(Layout::new(1)).expect("another node");
    assert!(endpoint().is_err());
}

#[test]
fn a_dropped_connection_takes_nothing_in() {
    let network = Network::new(1);
    let [mut left, right] = pair(&network, [A, B], 64);
    put(&mut left, 0, &[1; 64]);
    ready(&mut left, 1, 0);
    drop(right);
    settle(&network);
    assert_eq!(left.progress().expect("progress"), PeerState::Closed);
    assert!(left.is_flushed());
    assert_eq!(network.open_endpoints(), 1);
}
