//! One suite that every transport runs.
//!
//! Invariant: each check takes a [`Fixture`], makes what it needs, fails by panicking, and ends by itself: nothing
//! waits longer than [`PATIENCE`]. A transport in another crate implements [`Fixture`] and names it in
//! [`crate::conformance_suite!`]. Absent: speed, and what needs several processes.

use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use consort_memory::{Counter, Span, SpanMut};
use nix::poll::{PollFd, PollFlags, poll};

use crate::{Address, Connecting, Connection, CounterKind, Layout, PeerState, Transport, TransportError};

/// How long a check waits for anything.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Both sides of a connection, as the implementation under test makes them.
pub trait Fixture: Sync {
    /// A transport object for each side; may be the same one.
    fn sides(&self) -> (Arc<dyn Transport>, Arc<dyn Transport>);

    /// Somebody who calls the listener behind an address without knowing anything; None when there is no listener.
    fn stranger(&self, address: &Address) -> Option<Box<dyn Stranger>>;
}

/// Somebody who does not belong here.
pub trait Stranger: std::io::Write + std::io::Read + Send {}
impl<T: std::io::Write + std::io::Read + Send> Stranger for T {}

/// One established side.
pub type Side = Box<dyn Connection>;

/// A `#[test]` for every check, in a module of the given name.
#[macro_export]
macro_rules! conformance_suite {
    ($module:ident, $fixture:expr) => {
        $crate::conformance_suite!(@checks $module, $fixture,
            puts_land_where_they_should,
            a_signal_publishes_the_puts_before_it,
            a_signal_may_come_while_a_put_is_under_way,
            both_directions_flow_at_once,
            puts_out_of_bounds_are_refused,
            random_traffic_arrives,
            what_was_sent_before_the_end_stays,
            what_was_queued_at_the_end_arrives,
            a_peer_that_gives_up_is_noticed,
            a_sleeper_is_woken,
            many_connections_at_once,
            sides_may_differ_in_size,
            garbage_addresses_are_refused,
            strangers_do_not_keep_the_peer_out,
            absurd_sizes_are_typed_errors,
        );
    };
    (@checks $module:ident, $fixture:expr, $($check:ident,)*) => {
        mod $module {
            use super::*;
            $(#[test] fn $check() { $crate::conformance::$check(&$fixture); })*
        }
    };
}

/// Repeats `step` until it gives something.
///
/// # Panics
/// After [`PATIENCE`].
pub fn eventually<R>(what: &str, mut step: impl FnMut() -> Option<R>) -> R {
    let since = Instant::now();
    loop {
        if let Some(result) = step() {
            return result;
        }
        assert!(since.elapsed() < PATIENCE, "waited too long until {what}");
        std::thread::yield_now();
    }
}

/// A connected pair with these mailboxes.
///
/// # Panics
/// When it cannot be connected.
pub fn connect(sides: &(Arc<dyn Transport>, Arc<dyn Transport>), mailboxes: [usize; 2]) -> (Side, Side) {
    let here = sides.0.endpoint(Layout { mailbox_bytes: mailboxes[0] }).expect("endpoint");
    let there = sides.1.endpoint(Layout { mailbox_bytes: mailboxes[1] }).expect("endpoint");
    let (address_here, address_there) = (here.address().clone(), there.address().clone());
    assert!(address_here.bytes.len() <= Address::BYTES_MAX);
    finish(here.connect(&address_there).expect("connect"), there.connect(&address_here).expect("connect"))
}

fn finish(mut here: Box<dyn Connecting>, mut there: Box<dyn Connecting>) -> (Side, Side) {
    let (mut left, mut right) = (None, None);
    eventually("both sides are connected", || {
        poll_into(&mut here, &mut left);
        poll_into(&mut there, &mut right);
        if left.is_some() && right.is_some() { left.take().zip(right.take()) } else { None }
    })
}

fn poll_into(connecting: &mut Box<dyn Connecting>, slot: &mut Option<Side>) {
    if slot.is_none()
        && let Poll::Ready(side) = connecting.poll().expect("connecting goes on")
    {
        *slot = Some(side);
    }
}

fn pair(fixture: &dyn Fixture, mailbox_bytes: usize) -> (Side, Side) {
    connect(&fixture.sides(), [mailbox_bytes; 2])
}

/// Puts all of it, letting both sides go on as needed.
fn put_all(from: &mut Side, to: &mut Side, offset: usize, bytes: &[u8]) {
    let mut done = 0;
    eventually("a put is taken over", || {
        let poll = from.put(offset, Span::of(bytes), &mut done).expect("put");
        from.progress().expect("progress");
        to.progress().expect("progress");
        poll.is_ready().then_some(())
    });
    assert_eq!(done, bytes.len());
}

fn signal(from: &mut Side, kind: CounterKind, value: u64, tag: u64) {
    eventually("a signal is taken over", || {
        let poll = from.signal(kind, value, tag).expect("signal");
        from.progress().expect("progress");
        poll.is_ready().then_some(())
    });
}

fn await_value(side: &mut Side, kind: CounterKind, value: u64) {
    eventually("a counter goes up", || {
        side.progress().expect("progress");
        (side.counter(kind).value() >= value).then_some(())
    });
}

fn read(side: &Side, offset: usize, bytes: usize) -> Vec<u8> {
    let mut copy = vec![0; bytes];
    SpanMut::of(&mut copy).copy_from(side.mailbox().slice(offset, bytes).read());
    copy
}

/// A small generator, so that traffic can be repeated from its seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The generator of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number (splitmix64).
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// The next number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.draw() % bound as u64) as usize
    }

    /// Bytes that differ from place to place.
    pub fn bytes(&mut self, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        for piece in data.chunks_mut(8) {
            piece.copy_from_slice(&self.draw().to_le_bytes()[..piece.len()]);
        }
        data
    }
}

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
        signal(&mut left, CounterKind::Ready, value, 0);
        expected[offset..offset + bytes].copy_from_slice(&data);
        await_value(&mut right, CounterKind::Ready, value);
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
    signal(&mut left, CounterKind::Ready, 1, 0);
    await_value(&mut right, CounterKind::Ready, 1);
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
        sides.0.serve();
        (right.progress().expect("progress") == PeerState::Closed).then_some(())
    });
    assert_eq!(right.counter(CounterKind::Ready).value(), 1);
    assert_eq!(right.counter(CounterKind::Ready).tag(1), pieces as u64);
    assert!(read(&right, 0, pieces * PIECE) == data[..pieces * PIECE]);
}

/// An endpoint whose peer was dropped before it connected is told so.
pub fn a_peer_that_gives_up_is_noticed(fixture: &dyn Fixture) {
    // Several, so that both orders of nonces occur. An accepting side is not called then and cannot tell.
    let mut told = 0;
    for _ in 0..16 {
        let (near, far) = fixture.sides();
        let here = near.endpoint(Layout { mailbox_bytes: 64 }).expect("endpoint");
        let there = far.endpoint(Layout { mailbox_bytes: 64 }).expect("endpoint");
        let address = there.address().clone();
        drop(there);
        let outcome = here.connect(&address).and_then(|mut connecting| {
            let since = Instant::now();
            while since.elapsed() < Duration::from_millis(100) {
                far.serve();
                if connecting.poll()?.is_ready() {
                    panic!("connected to nobody");
                }
                std::thread::yield_now();
            }
            Ok(())
        });
        match outcome {
            Ok(()) => {}
            Err(TransportError::PeerClosed { .. }) => told += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(told > 0);
}

/// Where messages travel, a sleeper can wait for one; and is not woken for nothing.
pub fn a_sleeper_is_woken(fixture: &dyn Fixture) {
    let (mut left, mut right) = pair(fixture, 64);
    assert_eq!(right.wake().is_some(), right.capabilities().messages_only);
    if right.wake().is_none() {
        return;
    }
    let readable = |side: &Side, timeout_ms: u16| {
        let mut polled = [PollFd::new(side.wake().expect("as before"), PollFlags::POLLIN)];
        poll(&mut polled, timeout_ms).expect("poll") > 0
    };
    assert!(!readable(&right, 0));
    put_all(&mut left, &mut right, 0, &[1]);
    signal(&mut left, CounterKind::Ready, 1, 0);
    await_value(&mut right, CounterKind::Ready, 1);
    assert!(!readable(&right, 0));
    signal(&mut left, CounterKind::Ready, 2, 0);
    assert!(readable(&right, 10_000));
    await_value(&mut right, CounterKind::Ready, 2);
    drop(left);
    assert!(readable(&right, 10_000));
}

/// A crowd that connects at the same time: every one finds its own peer.
pub fn many_connections_at_once(fixture: &dyn Fixture) {
    const COUNT: usize = 100;
    let sides = fixture.sides();
    let endpoints = |side: &Arc<dyn Transport>| -> Vec<_> {
        (0..COUNT).map(|_| side.endpoint(Layout { mailbox_bytes: 256 }).expect("endpoint")).collect()
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
        signal(left, CounterKind::Ready, 1, index as u64);
        await_value(right, CounterKind::Ready, 1);
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
        signal(&mut left, CounterKind::Ready, 1, 0);
        await_value(&mut right, CounterKind::Ready, 1);
        assert_eq!(read(&right, 0, mailboxes[1]), vec![1; mailboxes[1]]);
    }
}

/// Addresses of other transports, cut, lengthened or random, and one's own, are errors, at once or while connecting.
pub fn garbage_addresses_are_refused(fixture: &dyn Fixture) {
    let (near, far) = fixture.sides();
    let layout = Layout { mailbox_bytes: 64 };
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
    let probe = sides.1.endpoint(Layout { mailbox_bytes: 64 }).expect("endpoint");
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
        sides.1.serve();
    }
    let (mut left, mut right) = connect(&sides, [64; 2]);
    put_all(&mut left, &mut right, 0, b"hello");
    signal(&mut left, CounterKind::Ready, 1, 0);
    await_value(&mut right, CounterKind::Ready, 1);
    assert_eq!(read(&right, 0, 5), b"hello");
    // Nobody told them anything.
    for stranger in &mut strangers {
        sides.1.serve();
        assert!(!matches!(stranger.read(&mut [0; 64]), Ok(1..)), "a stranger got an answer");
    }
}

/// Memory that cannot be had is an error that says how much was asked for; the transport goes on.
pub fn absurd_sizes_are_typed_errors(fixture: &dyn Fixture) {
    let sides = fixture.sides();
    for mailbox_bytes in [usize::MAX, usize::MAX - 4096, usize::MAX / 2, 1 << 50] {
        match sides.0.endpoint(Layout { mailbox_bytes }).map(drop) {
            Err(error @ TransportError::OutOfMemory { needed_bytes, .. }) => {
                assert!(needed_bytes >= mailbox_bytes);
                assert!(error.to_string().contains(&needed_bytes.to_string()), "{error}");
            }
            other => panic!("{mailbox_bytes} bytes: {other:?}"),
        }
    }
    connect(&sides, [64; 2]);
}
