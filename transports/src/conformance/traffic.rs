//! Checks of bytes and signals on their way.

use super::*;

/// Sizes from nothing to more than a socket takes, at odd offsets; nothing else is touched.
pub fn puts_land_where_they_should(fixture: &dyn Fixture) {
    const MAILBOX: usize = 3 << 20;
    let (mut left, mut right) = pair(fixture, MAILBOX);
    assert_eq!((left.remote().bytes, right.mailbox().len()), (MAILBOX, MAILBOX));
    assert_eq!(left.remote().mapped.is_some(), left.capabilities().load_store);
    assert!(left.capabilities().put && left.capabilities().ordered);
    let mut random = Random::new(1);
    let mut expected = vec![0; MAILBOX];
    let sizes = [0, 1, 7, 31, 32, 33, 4063, 4064, 4065, 4096, 65_537, 1 << 20, (1 << 20) + 1, 2_500_003];
    for (value, bytes) in (1..).zip(sizes) {
        let offset = random.below(MAILBOX - bytes);
        let data = random.bytes(bytes);
        put_all(&mut left, &mut right, offset, &data);
        expected[offset..offset + bytes].copy_from_slice(&data);
        deliver(&mut left, &mut right, value, 0);
        assert!(read(&right, 0, MAILBOX) == expected, "after {bytes} bytes at {offset}");
        assert_eq!(right.counter(CounterKind::Credit).value(), 0);
    }
    put_all(&mut left, &mut right, MAILBOX, &[]);
}

/// Whenever the counter is seen to be up, the bytes and the tag are there; credit flows back.
pub fn a_signal_publishes_the_puts_before_it(fixture: &dyn Fixture) {
    const ROUNDS: u64 = 300;
    let (mut left, mut right) = pair(fixture, 4 * 512);
    let writer = std::thread::spawn(move || {
        for value in 1..=ROUNDS {
            await_value(&mut left, CounterKind::Credit, value.saturating_sub(4));
            let slot = (value - 1) as usize % 4 * 512;
            let mut done = 0;
            eventually("a put is taken over", || {
                left.progress().expect("progress");
                left.put(slot, Span::of(&[value as u8; 512]), &mut done)
                    .expect("put")
                    .is_ready()
                    .then_some(())
            });
            signal(&mut left, CounterKind::Ready, value, value * 3);
        }
        await_value(&mut left, CounterKind::Credit, ROUNDS);
        assert_eq!(left.counter(CounterKind::Credit).tag(ROUNDS), !ROUNDS);
    });
    for value in 1..=ROUNDS {
        await_value(&mut right, CounterKind::Ready, value);
        assert_eq!(right.counter(CounterKind::Ready).tag(value), value * 3);
        assert_eq!(read(&right, (value - 1) as usize % 4 * 512, 512), [value as u8; 512]);
        signal(&mut right, CounterKind::Credit, value, !value);
    }
    eventually("the writer is done", || {
        // Gone already is fine: it saw all it waited for.
        right.progress().expect("progress");
        writer.is_finished().then_some(())
    });
    writer.join().expect("writer");
}

/// Credits go out although a long put has not been taken over yet, and arrive in order.
pub fn a_signal_may_come_while_a_put_is_under_way(fixture: &dyn Fixture) {
    const BYTES: usize = 16 << 20;
    let (mut left, mut right) = pair(fixture, BYTES);
    let data = Random::new(2).bytes(BYTES);
    let (mut done, mut credits) = (0, 0);
    // The other side does nothing: a messages-only link gets stuck in the middle of a frame.
    for _ in 0..100 {
        if left.put(0, Span::of(&data), &mut done).expect("put").is_ready() {
            break;
        }
        if credits < 40 && left.signal(CounterKind::Credit, credits + 1, credits).expect("signal").is_ready()
        {
            credits += 1;
        }
    }
    let mut put = Poll::Pending;
    eventually("everything is taken over", || {
        right.progress().expect("progress");
        left.progress().expect("progress");
        if put.is_pending() {
            put = left.put(0, Span::of(&data), &mut done).expect("put");
        }
        if credits < 40 && left.signal(CounterKind::Credit, credits + 1, credits).expect("signal").is_ready()
        {
            credits += 1;
        }
        (put.is_ready() && credits == 40).then_some(())
    });
    signal(&mut left, CounterKind::Ready, 1, 5);
    eventually("it arrives", || {
        left.progress().expect("progress");
        right.progress().expect("progress");
        (right.counter(CounterKind::Ready).value() == 1).then_some(())
    });
    assert!(read(&right, 0, BYTES) == data);
    assert_eq!(right.counter(CounterKind::Credit).value(), 40);
    assert_eq!(right.counter(CounterKind::Credit).tag(40), 39);
}

/// More than the sockets hold, in both directions, from one thread: neither waits for the other.
pub fn both_directions_flow_at_once(fixture: &dyn Fixture) {
    const BYTES: usize = 24 << 20;
    let (mut left, mut right) = pair(fixture, BYTES);
    let data = [Random::new(3).bytes(BYTES), Random::new(4).bytes(BYTES)];
    let mut done = [0; 2];
    let mut put = [Poll::Pending; 2];
    eventually("both puts are taken over", || {
        for (which, side) in [&mut left, &mut right].into_iter().enumerate() {
            if put[which].is_pending() {
                put[which] = side.put(0, Span::of(&data[which]), &mut done[which]).expect("put");
            }
            side.progress().expect("progress");
        }
        put.iter().all(Poll::is_ready).then_some(())
    });
    signal(&mut left, CounterKind::Ready, 1, 0);
    signal(&mut right, CounterKind::Ready, 1, 0);
    eventually("both arrive", || {
        left.progress().expect("progress");
        right.progress().expect("progress");
        (left.counter(CounterKind::Ready).value() + right.counter(CounterKind::Ready).value() == 2)
            .then_some(())
    });
    assert!(read(&right, 0, BYTES) == data[0]);
    assert!(read(&left, 0, BYTES) == data[1]);
}

/// The side that puts refuses; nothing is sent, and the connection goes on.
pub fn puts_out_of_bounds_are_refused(fixture: &dyn Fixture) {
    let (mut left, mut right) = pair(fixture, 100);
    for (offset, bytes) in [(0, 101), (100, 1), (101, 0), (99, 2), (usize::MAX, 1), (usize::MAX, 0)] {
        let outcome = left.put(offset, Span::of(&vec![1u8; bytes]), &mut 0);
        assert!(
            matches!(outcome, Err(TransportError::OutOfBounds { mailbox_bytes: 100, .. })),
            "{bytes} bytes at {offset}: {outcome:?}"
        );
    }
    put_all(&mut left, &mut right, 99, &[7]);
    deliver(&mut left, &mut right, 1, 0);
    let mut expected = [0; 100];
    expected[99] = 7;
    assert_eq!(read(&right, 0, 100), expected);
}

/// Slots of random size, filled and emptied by two threads at their own pace, in both directions.
pub fn random_traffic_arrives(fixture: &dyn Fixture) {
    for seed in 0..4 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let slot_bytes = 1 + random.below(200_000);
        let slots = 1 + random.below(Counter::TAGS_MAX);
        let messages = 40 + random.below(100) as u64;
        let (left, right) = pair(fixture, slot_bytes * slots);
        std::thread::scope(|scope| {
            for (which, side) in [left, right].into_iter().enumerate() {
                let outgoing = Random::new(seed * 2 + which as u64);
                let incoming = Random::new(seed * 2 + 1 - which as u64);
                scope.spawn(move || exchange(side, outgoing, incoming, slot_bytes, slots, messages));
            }
        });
    }
}

fn exchange(
    mut side: Side,
    mut outgoing: Random,
    mut incoming: Random,
    slot_bytes: usize,
    slots: usize,
    messages: u64,
) {
    let next = |random: &mut Random| {
        let bytes = random.below(slot_bytes + 1);
        random.bytes(bytes)
    };
    let (mut sent, mut received, mut credited, mut done) = (0, 0, 0, 0);
    let mut message: Option<Vec<u8>> = None;
    let mut put = false;
    let mut pace = Random::new(outgoing.0 ^ incoming.0);
    eventually("all messages went both ways", || {
        // The other side may be through and gone while our last credits are under way.
        let gone = side.progress().expect("progress") == PeerState::Closed;
        if sent < messages && sent - side.counter(CounterKind::Credit).value() < slots as u64 {
            let data = message.get_or_insert_with(|| next(&mut outgoing));
            let slot = sent as usize % slots * slot_bytes;
            put = put || side.put(slot, Span::of(data), &mut done).expect("put").is_ready();
            if put && side.signal(CounterKind::Ready, sent + 1, data.len() as u64).expect("signal").is_ready()
            {
                (sent, done, put, message) = (sent + 1, 0, false, None);
            }
        }
        if received < side.counter(CounterKind::Ready).value() && pace.below(3) < 2 {
            received += 1;
            let expected = next(&mut incoming);
            assert_eq!(side.counter(CounterKind::Ready).tag(received), expected.len() as u64);
            let got = read(&side, (received - 1) as usize % slots * slot_bytes, expected.len());
            assert!(got == expected, "message {received}");
        }
        if credited < received {
            match side.signal(CounterKind::Credit, received, 0) {
                Ok(Poll::Ready(())) => credited = received,
                Ok(Poll::Pending) => {}
                Err(TransportError::PeerClosed { .. }) if gone || received == messages => credited = received,
                Err(error) => panic!("{error}"),
            }
        }
        let acknowledged = side.counter(CounterKind::Credit).value() == messages;
        (sent == messages && credited == messages && acknowledged).then_some(())
    });
}
