//! Checks of connections that begin, end or are refused.

use super::*;

/// A side that closes has its bytes delivered first, even when it leaves some of the peer's unread.
pub fn what_was_sent_before_the_end_stays(fixture: &dyn Fixture) {
    for unread in [0usize, 100, 200_000] {
        let (mut left, mut right) = pair(fixture, 300_000);
        let data = Random::new(unread as u64).bytes(200_000);
        let mut done = 0;
        let _ = right.put(0, Span::of(&vec![1u8; unread]), &mut done).expect("put");
        put_all(&mut left, &mut right, 50_000, &data);
        // `left` has handled some by now; so more that it will never read.
        let mut done = 0;
        let _ = right.put(0, Span::of(&vec![1u8; unread]), &mut done);
        signal(&mut left, CounterKind::Ready, 1, 77);
        drop(left);
        eventually("the end is seen", || {
            (right.progress().expect("progress") == PeerState::Closed).then_some(())
        });
        assert_eq!(right.counter(CounterKind::Ready).value(), 1, "with {unread} bytes unread");
        assert_eq!(right.counter(CounterKind::Ready).tag(1), 77);
        assert!(read(&right, 50_000, 200_000) == data);
        assert_eq!(right.progress().expect("progress"), PeerState::Closed);
        let outcome = right.signal(CounterKind::Credit, 1, 0);
        assert!(matches!(outcome, Err(TransportError::PeerClosed { .. })), "{outcome:?}");
        if unread == 0 {
            let outcome = right.put(0, Span::of(&[1u8]), &mut 0);
            assert!(matches!(outcome, Err(TransportError::PeerClosed { .. })), "{outcome:?}");
        }
    }
}

/// The same when the way is full at the end, and the closing side has bytes that it never read.
pub fn what_was_queued_at_the_end_arrives(fixture: &dyn Fixture) {
    const PIECE: usize = 60_000;
    const PIECES: usize = 200;
    let sides = fixture.sides();
    let (mut left, mut right) = connect(&sides, [PIECE * PIECES; 2]);
    let data = Random::new(5).bytes(PIECE * PIECES);
    let mut pieces = 0;
    let mut full = 0;
    // The other side reads only to end a piece that is stuck halfway.
    while pieces < PIECES && full < 3 {
        let mut done = 0;
        let piece = Span::of(&data).slice(pieces * PIECE, PIECE);
        while left.put(pieces * PIECE, piece, &mut done).expect("put").is_pending() {
            full += 1;
            right.progress().expect("progress");
        }
        pieces += 1;
    }
    let _ = right.put(0, Span::of(&[1u8; 1000]), &mut 0).expect("put");
    signal(&mut left, CounterKind::Ready, 1, pieces as u64);
    drop(left);
    eventually("the end is seen", || {
        serve(&*sides.0);
        (right.progress().expect("progress") == PeerState::Closed).then_some(())
    });
    assert_eq!(right.counter(CounterKind::Ready).value(), 1);
    assert_eq!(right.counter(CounterKind::Ready).tag(1), pieces as u64);
    assert!(read(&right, 0, pieces * PIECE) == data[..pieces * PIECE]);
}

/// One side connects, sends and is gone while the other is still connecting.
pub fn what_is_sent_by_one_who_goes_at_once_arrives(fixture: &dyn Fixture) {
    const ROUNDS: usize = 1000;
    let sides = fixture.sides();
    let layout = Layout::new(64);
    for round in 0..ROUNDS as u64 {
        let here = sides.0.endpoint(layout).expect("endpoint");
        let there = sides.1.endpoint(layout).expect("endpoint");
        let (here_at, there_at) = (here.address().clone(), there.address().clone());
        let mut here = here.connect(&there_at).expect("connect");
        let mut there = there.connect(&here_at).expect("connect");
        std::thread::scope(|threads| {
            threads.spawn(move || {
                let mut slot = None;
                let mut side = eventually("the hasty side", || {
                    poll_into(&mut there, &mut slot);
                    slot.take()
                });
                eventually("its put", || {
                    side.put(0, Span::of(&[round]), &mut 0).expect("put").is_ready().then_some(())
                });
                signal(&mut side, CounterKind::Ready, 1, round);
            });
            let mut slot = None;
            let mut side = eventually("the slow side", || {
                poll_into(&mut here, &mut slot);
                slot.take()
            });
            await_value(&mut side, CounterKind::Ready, 1);
            assert_eq!(read(&side, 0, 8), round.to_le_bytes());
        });
    }
}

/// An endpoint whose peer was dropped before it connected hears so.
pub fn a_peer_that_gives_up_is_noticed(fixture: &dyn Fixture) {
    // Several, so that both orders of nonces occur. An accepting side is not called then and cannot tell; who calls is
    // heard by the first few looks.
    const LOOKS: u32 = 2000;
    let mut heard = 0;
    for _ in 0..16 {
        let (near, far) = fixture.sides();
        let here = near.endpoint(Layout::new(64)).expect("endpoint");
        let there = far.endpoint(Layout::new(64)).expect("endpoint");
        let address = there.address().clone();
        drop(there);
        let outcome = here.connect(&address).and_then(|mut connecting| {
            for _ in 0..LOOKS {
                serve(&*far);
                if connecting.poll()?.is_ready() {
                    panic!("connected without a peer");
                }
                std::thread::yield_now();
            }
            Ok(())
        });
        match outcome {
            Ok(()) => {}
            Err(error) if error.is_peers_end() => heard += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(heard > 0 || !fixture.hears_of_peers_that_gave_up());
}

/// Where messages travel, a sleeper can wait for one; and is not woken for nothing.
pub fn a_sleeper_is_woken(fixture: &dyn Fixture) {
    let (mut left, mut right) = pair(fixture, 64);
    assert_eq!(right.wake().is_some(), right.capabilities().needs_progress && fixture.wakes_sleepers());
    if right.wake().is_none() {
        return;
    }
    let readable = |side: &Side, timeout_ms: u16| {
        let wakes = (0..).map_while(|at| side.wake_at(at));
        let mut polled: Vec<PollFd<'_>> = wakes.map(|wake| PollFd::new(wake, PollFlags::POLLIN)).collect();
        poll(&mut polled, timeout_ms).expect("poll") > 0
    };
    assert!(right.arm() && !readable(&right, 0));
    put_all(&mut left, &mut right, 0, &[1]);
    signal(&mut left, CounterKind::Ready, 1, 0);
    await_value(&mut right, CounterKind::Ready, 1);
    assert!(eventually("nothing more comes", || right.arm().then_some(true)) && !readable(&right, 0));
    signal(&mut left, CounterKind::Ready, 2, 0);
    assert!(readable(&right, 10_000));
    await_value(&mut right, CounterKind::Ready, 2);
    let _ = right.arm();
    drop(left);
    assert!(readable(&right, 10_000));
}

/// A crowd that connects at the same time: every one finds its own peer.
pub fn many_connections_at_once(fixture: &dyn Fixture) {
    const COUNT: usize = 100;
    let sides = fixture.sides();
    let endpoints = |side: &Arc<dyn Transport>| -> Vec<_> {
        (0..COUNT).map(|_| side.endpoint(Layout::new(256)).expect("endpoint")).collect()
    };
    let (left, right) = (endpoints(&sides.0), endpoints(&sides.1));
    let addresses = |side: &[Box<dyn crate::Endpoint>]| -> Vec<Address> {
        side.iter().map(|endpoint| endpoint.address().clone()).collect()
    };
    let (to_left, to_right) = (addresses(&left), addresses(&right));
    let start = |side: Vec<Box<dyn crate::Endpoint>>, to: &[Address]| -> Vec<_> {
        side.into_iter().zip(to).map(|(endpoint, peer)| endpoint.connect(peer).expect("connect")).collect()
    };
    let mut connecting: Vec<Box<dyn Connecting>> = start(left, &to_right);
    connecting.extend(start(right, &to_left));
    let mut established: Vec<Option<Side>> = (0..2 * COUNT).map(|_| None).collect();
    eventually("all are connected", || {
        for (connecting, slot) in connecting.iter_mut().zip(&mut established) {
            poll_into(connecting, slot);
        }
        established.iter().all(Option::is_some).then_some(())
    });
    let mut sides: Vec<Side> = established.into_iter().flatten().collect();
    let (left, right) = sides.split_at_mut(COUNT);
    for (index, (left, right)) in left.iter_mut().zip(right).enumerate() {
        put_all(left, right, index, &[index as u8]);
        deliver(left, right, 1, index as u64);
        assert_eq!(right.counter(CounterKind::Ready).tag(1), index as u64);
        assert_eq!(read(right, index, 1), [index as u8]);
    }
}

/// Each side has the mailbox that its own layout asked for.
pub fn sides_may_differ_in_size(fixture: &dyn Fixture) {
    for mailboxes in [[1, 10_000], [10_000, 1], [0, 64], [64, 0]] {
        let (mut left, mut right) = connect(&fixture.sides(), mailboxes);
        assert_eq!([left.mailbox().len(), right.mailbox().len()], mailboxes);
        assert_eq!([right.remote().bytes, left.remote().bytes], mailboxes);
        put_all(&mut left, &mut right, 0, &vec![1; mailboxes[1]]);
        deliver(&mut left, &mut right, 1, 0);
        assert_eq!(read(&right, 0, mailboxes[1]), vec![1; mailboxes[1]]);
    }
}

/// Addresses of other transports, cut, lengthened or random, and one's own, are errors, at once or while connecting.
pub fn garbage_addresses_are_refused(fixture: &dyn Fixture) {
    let (near, far) = fixture.sides();
    let layout = Layout::new(64);
    let real = far.endpoint(layout).expect("endpoint").address().clone();
    let refused = |address: &Address| {
        let endpoint = near.endpoint(layout).expect("endpoint");
        let outcome = endpoint.connect(address).err();
        assert!(matches!(outcome, Some(TransportError::BadAddress { .. })), "{address:?}: {outcome:?}");
    };
    refused(&Address { transport: "carrier pigeon".into(), ..real.clone() });
    for bytes in (0..real.bytes.len()).chain([real.bytes.len() + 1, Address::BYTES_MAX]) {
        let mut garbage = real.clone();
        garbage.bytes.resize(bytes, 0);
        refused(&garbage);
    }
    let endpoint = near.endpoint(layout).expect("endpoint");
    let own = endpoint.address().clone();
    let outcome = endpoint.connect(&own).err();
    assert!(matches!(outcome, Some(TransportError::BadAddress { .. })), "{outcome:?}");
}

/// Silent and talkative strangers, more of them than may wait: the real peer gets in.
pub fn strangers_do_not_keep_the_peer_out(fixture: &dyn Fixture) {
    let sides = fixture.sides();
    let probe = sides.1.endpoint(Layout::new(64)).expect("endpoint");
    let Some(first) = fixture.stranger(probe.address()) else { return };
    let mut strangers = vec![first];
    let mut random = Random::new(9);
    for index in 0..200 {
        let mut stranger = fixture.stranger(probe.address()).expect("a listener");
        let bytes = random.below(200);
        if index % 2 == 0 {
            let _ = stranger.write_all(&random.bytes(bytes));
        }
        strangers.push(stranger);
        serve(&*sides.1);
    }
    let (mut left, mut right) = connect(&sides, [64; 2]);
    put_all(&mut left, &mut right, 0, b"hello");
    signal(&mut left, CounterKind::Ready, 1, 0);
    await_value(&mut right, CounterKind::Ready, 1);
    assert_eq!(read(&right, 0, 5), b"hello");
    // They got no answer.
    for stranger in &mut strangers {
        serve(&*sides.1);
        assert!(!matches!(stranger.read(&mut [0; 64]), Ok(1..)), "a stranger got an answer");
    }
}

/// Memory that cannot be had is an error that says how much was asked for; the transport goes on.
pub fn absurd_sizes_are_typed_errors(fixture: &dyn Fixture) {
    let sides = fixture.sides();
    for mailbox_bytes in [usize::MAX, usize::MAX - 4096, usize::MAX / 2, 1 << 50] {
        match sides.0.endpoint(Layout::new(mailbox_bytes)).map(drop) {
            Err(error @ TransportError::OutOfMemory { needed_bytes, .. }) => {
                assert!(needed_bytes >= mailbox_bytes);
                assert!(error.to_string().contains(&needed_bytes.to_string()), "{error}");
            }
            other => panic!("{mailbox_bytes} bytes: {other:?}"),
        }
    }
    connect(&sides, [64; 2]);
}
