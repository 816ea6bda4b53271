//! Data connections on a network where nothing breaks.

use consort_transports::{PeerState, TransportError};

use super::*;

/// Looks at every moment until the signal is there; whether `overtaken` held at some moment before.
fn is_seen_before_the_signal(
    network: &Network,
    [left, side]: [&mut Side; 2],
    overtaken: impl Fn(&Side) -> bool,
) -> bool {
    let mut seen = false;
    while side.counter(CounterKind::Ready).value() == 0 {
        left.progress().expect("progress");
        network.advance(network.next().expect("the signal is under way"));
        assert_eq!(side.progress().expect("progress"), PeerState::Open);
        seen |= side.counter(CounterKind::Ready).value() == 0 && overtaken(side);
    }
    seen
}

#[test]
fn pieces_overtake_each_other_and_are_there_with_the_signal() {
    const PARTS: usize = 8;
    const BYTES: usize = 1000;
    let mut reordered = 0;
    for seed in 0..50 {
        let network = Network::new(seed);
        let [mut left, mut right] = pair(&network, [A, B], PARTS * BYTES);
        let data = nonzero(seed, PARTS * BYTES);
        let mut at = 0;
        for part in data.chunks(BYTES) {
            let mut done = 0;
            while left.put(at, Span::of(part), &mut done).expect("put").is_pending() {
                network.advance(network.next().expect("room"));
                right.progress().expect("progress");
            }
            at += BYTES;
        }
        ready(&mut left, 1, 0);
        let overtaken = |side: &Side| {
            let arrived = read(side, 0, PARTS * BYTES);
            let gap = arrived.iter().position(|byte| *byte == 0).unwrap_or(arrived.len());
            arrived[gap..].iter().any(|byte| *byte != 0)
        };
        reordered += usize::from(is_seen_before_the_signal(&network, [&mut left, &mut right], overtaken));
        assert!(read(&right, 0, PARTS * BYTES) == data);
    }
    assert!(reordered > 25, "{reordered} of 50");
}

#[test]
fn credits_and_data_travel_independently() {
    let (mut before, mut after) = (0, 0);
    for seed in 0..100 {
        let network = Network::new(seed);
        let [mut left, mut right] = pair(&network, [A, B], 1000);
        put(&mut left, 0, &[1; 1000]);
        ready(&mut left, 1, 0);
        assert!(left.signal(CounterKind::Credit, 1, 5).expect("signal").is_ready());
        let credited = |side: &Side| side.counter(CounterKind::Credit).value() == 1;
        match is_seen_before_the_signal(&network, [&mut left, &mut right], credited) {
            true => before += 1,
            false => after += 1,
        }
        settle(&network);
        right.progress().expect("progress");
        assert!(credited(&right) && right.counter(CounterKind::Credit).tag(1) == 5);
    }
    assert!(before > 10 && after > 10, "{before} and {after}");
}

/// The wires below keep nothing together; the counter goes up only when all of it is there.
#[test]
fn one_sided_puts_land_torn_and_unseen_until_all_have() {
    const BYTES: usize = 4000;
    let (mut torn, mut early) = (0, 0);
    for seed in 0..50 {
        let network = Network::new(seed).with_profile(Profile::OneSided);
        let [mut left, mut right] = pair(&network, [A, B], BYTES);
        let data = nonzero(seed, BYTES);
        put(&mut left, 0, &data);
        ready(&mut left, 1, 3);
        while let Some(next) = network.next() {
            network.advance(next);
            // It was not taken in.
            let there = read(&right, 0, BYTES);
            let words = || there.chunks(8).zip(data.chunks(8));
            let landed = words().filter(|(found, sent)| found == sent).count();
            let first_gap = words().position(|(found, sent)| found != sent).unwrap_or(BYTES / 8);
            torn += usize::from(landed > first_gap && landed < BYTES / 8);
            let held = network.in_flight();
            right.progress().expect("progress");
            let is_seen = right.counter(CounterKind::Ready).value() == 1;
            assert!(!is_seen || landed == BYTES / 8, "seed {seed}: the signal came first");
            // One of two is there: where it is not the put, the signal waits for it.
            early += usize::from(held == 1 && landed < BYTES / 8 && !is_seen);
        }
        assert!(right.counter(CounterKind::Ready).tag(1) == 3 && read(&right, 0, BYTES) == data);
    }
    assert!(torn > 50 && early > 5, "{torn} torn, {early} early signals");
}

#[test]
fn connections_overtake_each_other() {
    let mut overtaken = 0;
    for seed in 0..100 {
        let network = Network::new(seed);
        let [mut early, mut late] = [(); 2].map(|()| pair(&network, [A, B], 64));
        ready(&mut early[0], 1, 0);
        ready(&mut late[0], 1, 0);
        let other = &mut late[1];
        let first = &mut early[1];
        while first.counter(CounterKind::Ready).value() + other.counter(CounterKind::Ready).value() == 0 {
            network.advance(network.next().expect("signals"));
            first.progress().expect("progress");
            other.progress().expect("progress");
        }
        overtaken += usize::from(first.counter(CounterKind::Ready).value() == 0);
    }
    assert!(overtaken > 10, "{overtaken}");
}

#[test]
fn windows_are_bounded_and_give_way() {
    const BYTES: usize = 1 << 20;
    let network = Network::new(1);
    let [mut left, mut right] = pair(&network, [A, B], BYTES);
    let data = nonzero(1, BYTES);
    let mut done = 0;
    assert!(left.put(0, Span::of(&data), &mut done).expect("put").is_pending());
    assert!(done > 0 && done <= 256 << 10, "{done}");
    // Arrived is not taken in: no room yet.
    settle(&network);
    let before = done;
    assert!(left.put(0, Span::of(&data), &mut done).expect("put").is_pending());
    assert_eq!(done, before);
    let mut signals = 0;
    while left.signal(CounterKind::Credit, signals + 1, 0).expect("signal").is_ready() {
        signals += 1;
    }
    assert!(signals < 100);
    // Everything goes on by what `advance` reports alone.
    right.progress().expect("progress");
    let mut is_put = false;
    while !is_put {
        for node in network.advance(network.next().expect("room")) {
            if node == A {
                left.progress().expect("progress");
                is_put = left.put(0, Span::of(&data), &mut done).expect("put").is_ready();
            } else {
                right.progress().expect("progress");
            }
        }
    }
    settle(&network);
    right.progress().expect("progress");
    settle(&network);
    left.progress().expect("progress");
    assert!(left.is_flushed());
    settle(&network);
    right.progress().expect("progress");
    assert!(read(&right, 0, BYTES) == data);
    assert_eq!(right.counter(CounterKind::Credit).value(), signals);
}

#[test]
fn the_taking_side_checks_too() {
    let network = Network::new(1);
    let layout = Layout::new(100);
    let [here, there] = [A, B].map(|node| network.transport(node).endpoint(layout).expect("endpoint"));
    let mut lie = there.address().clone();
    let size = lie.bytes.len() - 8;
    lie.bytes[size..].copy_from_slice(&200u64.to_le_bytes());
    let address = here.address().clone();
    let (mut here, mut there) =
        (here.connect(&lie).expect("connect"), there.connect(&address).expect("connect"));
    settle(&network);
    let (Poll::Ready(mut left), Poll::Ready(mut right)) =
        (here.poll().expect("poll"), there.poll().expect("poll"))
    else {
        panic!("not established")
    };
    put(&mut left, 50, &[1; 51]);
    settle(&network);
    for _ in 0..2 {
        let outcome = right.progress();
        assert!(matches!(outcome, Err(TransportError::Protocol { .. })), "{outcome:?}");
    }
    // And a counter that does not go up.
    let [mut left, mut right] = pair(&network, [A, B], 100);
    ready(&mut left, 2, 0);
    ready(&mut left, 2, 0);
    settle(&network);
    assert!(matches!(right.progress(), Err(TransportError::Protocol { .. })));
}

#[test]
fn nothing_happens_while_the_time_stands_still() {
    let network = Network::new(1);
    let mut connecting = start(&network, [A, B], 64);
    for side in &mut connecting {
        assert!(side.poll().expect("poll").is_pending());
    }
    let next = network.next().expect("hellos");
    assert!(network.advance(next - std::time::Duration::from_nanos(1)).is_empty());
    assert_eq!(network.in_flight(), 2);
    assert_eq!(network.advance(next).len(), 1);
    network.wake_at(A, next * 100);
    network.wake_at(A, next * 100);
    settle(&network);
    assert_eq!(network.now(), next * 100);
    assert!(connecting.iter_mut().all(|side| side.poll().expect("poll").is_ready()));
}

#[test]
fn who_was_not_asked_for_neither_connects_nor_disturbs() {
    let network = Network::new(1);
    let layout = Layout::new(64);
    let [left, right, stranger] =
        [A, B, Node(2)].map(|node| network.transport(node).endpoint(layout).expect("endpoint"));
    let (left_at, right_at) = (left.address().clone(), right.address().clone());
    drop(stranger.connect(&left_at).expect("connect"));
    let intruder = network.transport(Node(3)).endpoint(layout).expect("endpoint");
    let mut intruder = intruder.connect(&left_at).expect("connect");
    settle(&network);
    let mut connecting =
        [left.connect(&right_at), right.connect(&left_at)].map(|side| side.expect("connect"));
    settle(&network);
    let late = network.transport(Node(4)).endpoint(layout).expect("endpoint");
    let mut late = late.connect(&left_at).expect("connect");
    settle(&network);
    assert!(connecting.iter_mut().all(|side| side.poll().expect("poll").is_ready()));
    assert!(intruder.poll().expect("poll").is_pending());
    assert!(matches!(late.poll(), Err(TransportError::PeerClosed { .. })));
}
