//! Sessions whose other end is in the hand of a test, hostile or not, and pairs of them whose sockets break.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard};

use consort_memory::SpanMut;
use consort_testing::Random;
use nix::sys::socket::{Shutdown, setsockopt, shutdown, sockopt};

use super::super::connection::TcpConnection;
use super::super::handshake::Meeting;
use super::super::wire::HEADER_BYTES;
use super::super::{Listener, Tcp};
use super::*;
use crate::streams::Word;
use crate::{Connecting, Connection, Layout, Service, Transport};

const MAILBOX_BYTES: usize = 100;

fn tcp() -> Tcp {
    tcp_at(1)
}

/// At so many addresses of the loopback, instead of interfaces.
fn tcp_at(interfaces: u8) -> Tcp {
    let at = |last| Arc::new(Listener::new(Ipv4Addr::new(127, 0, 0, last).into()).expect("a listener"));
    Tcp::over((1..=interfaces).map(at).collect(), [3; 32]).expect("tcp")
}

/// A connection, and the other end of its socket in a hostile hand.
fn attacked(mailbox_bytes: usize) -> (TcpConnection, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
    let attacker = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let (socket, _) = listener.accept().expect("accept");
    socket.set_nonblocking(true).expect("nonblocking");
    (tcp().hostile(socket.into(), mailbox_bytes), attacker)
}

fn session(connection: &TcpConnection) -> MutexGuard<'_, Session> {
    connection.session.lock().expect("not poisoned")
}

fn fragment(fill: u64, (offset, bytes): (usize, usize), ready: Option<u64>) -> Fragment {
    let ready = ready.map(|value| Ready { value, tag: 33 });
    Fragment { fill, index: 0, count: 1, offset, bytes, ready }
}

fn frame(fragment: Fragment) -> [u8; HEADER_BYTES] {
    Header::Fragment(fragment, Word::default()).write()
}

fn credit(value: u64) -> Word {
    Word { acknowledged: 0, credit: Some(Ready { value, tag: 0 }) }
}

/// What becomes of a connection to which this is sent, and no more.
fn outcome(frames: &[&[u8]]) -> Result<PeerState, TransportError> {
    let (mut connection, mut attacker) = attacked(MAILBOX_BYTES);
    session(&connection).patience = Duration::ZERO;
    for frame in frames {
        attacker.write_all(frame).expect("write");
    }
    drop(attacker);
    loop {
        match connection.progress() {
            Ok(PeerState::Open) => std::thread::yield_now(),
            Ok(PeerState::Closed) => return Ok(PeerState::Closed),
            Err(error) => {
                // It stays so, and nothing is sent to such a peer.
                let again = connection.progress().expect_err("as before");
                assert_eq!(std::mem::discriminant(&again), std::mem::discriminant(&error));
                assert!(connection.signal(CounterKind::Ready, 1, 0).is_err());
                return Err(error);
            }
        }
    }
}

#[test]
fn the_taking_side_checks_every_frame() {
    let good = frame(fragment(0, (0, 0), Some(5)));
    let mut wrong_magic = good;
    wrong_magic[0] ^= 1;
    let path = |epoch| Path { number: 0, epoch };
    let wrong = [
        wrong_magic,
        frame(fragment(1, (0, 101), None)),
        frame(fragment(1, (100, 1), None)),
        frame(fragment(1, (101, 0), None)),
        frame(fragment(1, (usize::MAX, 2), None)),
        frame(fragment(1, (2, usize::MAX), None)),
        frame(fragment(65, (0, 0), None)),
        frame(fragment(1, (0, 0), Some(5))),
        frame(fragment(1, (0, 0), Some(4))),
        frame(Fragment { count: 65, ..fragment(1, (0, 0), None) }),
        frame(Fragment { index: 1, ..fragment(1, (0, 0), None) }),
        Header::Fragment(fragment(1, (0, 0), None), Word { acknowledged: 1, credit: None }).write(),
        Header::Word(Word { acknowledged: 1, credit: None }).write(),
        Header::End(0, Word::default()).write(),
        Header::Fence(Path { number: 1, epoch: 1 }, 0, 0).write(),
        Header::Fence(path(1), 1, 0).write(),
    ];
    for frame in wrong {
        let outcome = outcome(&[&good, &frame]);
        assert!(matches!(outcome, Err(TransportError::Protocol { .. })), "{frame:?}: {outcome:?}");
    }
    // And what is right, up to the last byte, is taken; a socket that ends before the session does is cut.
    let cut = |frames: &[&[u8]]| {
        let outcome = outcome(frames);
        assert!(matches!(outcome, Err(TransportError::Cut { .. })), "{outcome:?}");
    };
    let long = frame(fragment(1, (0, 100), None));
    cut(&[&good, &long, &[1; 100]]);
    cut(&[&good, &long, &[1; 99]]);
    cut(&[&good[..31]]);
    // Twice the same is dropped, and an end that has come says that nothing is missing.
    let end = Header::End(2, Word::default()).write();
    cut(&[&good, &good, &end]);
    let whole = outcome(&[&good, &good, &long, &[1; 100], &end]);
    assert!(matches!(whole, Ok(PeerState::Closed)), "{whole:?}");
}

#[test]
fn frames_may_arrive_byte_by_byte() {
    let (mut connection, mut attacker) = attacked(MAILBOX_BYTES);
    let payload: Vec<u8> = (1..=50).collect();
    let stream =
        [&frame(fragment(0, (7, 50), None))[..], &payload, &Header::Word(credit(3)).write()].concat();
    for byte in stream {
        assert_eq!(connection.counter(CounterKind::Credit).value(), 0);
        attacker.write_all(&[byte]).expect("write");
        connection.progress().expect("progress");
    }
    while connection.counter(CounterKind::Credit).value() == 0 {
        connection.progress().expect("progress");
    }
    let mut copy = [0u8; 50];
    SpanMut::of(&mut copy).copy_from(connection.mailbox().slice(7, 50).read());
    assert_eq!(&copy[..], &payload[..]);
}

/// What the other end has to read, once its system has all that was sent.
fn sent(connection: &TcpConnection, peer: &mut TcpStream) -> Vec<u8> {
    while !connection.is_delivered() {
        std::thread::yield_now();
    }
    received(peer)
}

/// What the other end has to read now.
fn received(peer: &mut TcpStream) -> Vec<u8> {
    peer.set_nonblocking(true).expect("nonblocking");
    let mut bytes = vec![0; 1 << 16];
    let got = peer.read(&mut bytes).unwrap_or(0);
    bytes.truncate(got);
    bytes
}

#[test]
fn a_fill_is_one_message_and_takes_the_credits_along() {
    let (mut connection, mut peer) = attacked(MAILBOX_BYTES);
    let payload: Vec<u8> = (1..=50).collect();
    let fill = |connection: &mut TcpConnection, value: u64| {
        let mut done = 0;
        assert!(connection.fill(7, Span::of(&payload), (value, 33), &mut done).expect("fill").is_ready());
        assert_eq!(done, 50);
    };
    let filled = |value, word| {
        let fragment = fragment(value - 1, (7, 50), Some(value));
        [&Header::Fragment(fragment, word).write()[..], &payload].concat()
    };
    fill(&mut connection, 1);
    assert_eq!(sent(&connection, &mut peer), filled(1, Word::default()));
    // One credit is deferred until something is sent, and counts for those before it.
    let signal = |connection: &mut TcpConnection, value: u64| {
        assert!(connection.signal(CounterKind::Credit, value, 0).expect("signal").is_ready());
    };
    signal(&mut connection, 1);
    assert_eq!((sent(&connection, &mut peer), connection.deferred_credits()), (Vec::new(), 1));
    fill(&mut connection, 2);
    assert_eq!((sent(&connection, &mut peer), connection.deferred_credits()), (filled(2, credit(1)), 0));
    // Two are not deferred.
    let alone = |value| Header::Word(credit(value)).write().to_vec();
    signal(&mut connection, 2);
    assert_eq!(sent(&connection, &mut peer), []);
    signal(&mut connection, 3);
    assert_eq!(sent(&connection, &mut peer), alone(3));
    // Nor is one when nothing comes for a while, or when this side has nothing more to do.
    signal(&mut connection, 4);
    let looks = (1..).find(|_| {
        connection.progress().expect("progress");
        connection.deferred_credits() == 0
    });
    assert_eq!((looks, sent(&connection, &mut peer)), (Some(IDLE_LOOKS + 1), alone(4)));
    signal(&mut connection, 5);
    connection.flush_credits();
    assert_eq!(sent(&connection, &mut peer), alone(5));
    signal(&mut connection, 6);
    assert!(connection.signal(CounterKind::Ready, 3, 33).expect("signal").is_ready());
    let ready = Header::Fragment(fragment(2, (0, 0), Some(3)), credit(6)).write().to_vec();
    assert_eq!(sent(&connection, &mut peer), ready);
    signal(&mut connection, 7);
    drop(connection);
    let mut rest = vec![0; HEADER_BYTES];
    peer.set_nonblocking(false).expect("blocking");
    peer.read_exact(&mut rest).expect("the end");
    assert_eq!(rest, Header::End(3, credit(7)).write());
}

/// As if the peer had said that it has everything.
fn acknowledge_all(connection: &TcpConnection) {
    let mut session = session(connection);
    let made = session.peering.stream(STREAM).0.made();
    session.peering.stream(STREAM).0.acknowledge(made).expect("all of it was sent");
}

#[test]
fn what_the_peers_system_has_is_not_copied_and_the_rest_is() {
    let (mut connection, mut peer) = attacked(64 << 20);
    let data = vec![7u8; 256 << 10];
    let copied = |connection: &TcpConnection| {
        let mut session = session(connection);
        let outbound = session.peering.stream(STREAM).0;
        outbound.under_way().map(|fill| outbound.is_kept(fill)).collect::<Vec<_>>()
    };
    let put = |connection: &mut TcpConnection, peer: &mut TcpStream, bytes: usize| {
        let mut done = 0;
        while connection.put(0, Span::of(&data[..bytes]), &mut done).expect("put").is_pending() {
            received(peer);
        }
    };
    put(&mut connection, &mut peer, COPIED_BYTES);
    assert_eq!(copied(&connection), [true], "short ones are");
    // What its system has when it is asked.
    let uncopied = (0..1000).find(|_| {
        put(&mut connection, &mut peer, COPIED_BYTES + 1);
        received(&mut peer);
        let uncopied = copied(&connection).last() == Some(&false);
        acknowledge_all(&connection);
        uncopied
    });
    assert!(uncopied.is_some(), "everything is copied");
    // A peer that reads nothing: at some time its system takes nothing more.
    let full = (0..1000).find(|_| {
        let mut done = 0;
        let taken = connection.put(0, Span::of(&data), &mut done).expect("put").is_ready();
        !taken || copied(&connection).last() == Some(&true)
    });
    assert!(full.is_some(), "a system that takes everything");
}

#[test]
fn a_fill_that_the_socket_takes_in_parts_is_whole_and_in_order() {
    let (mut connection, mut peer) = attacked(64 << 20);
    // Whatever the system would give it.
    setsockopt(&session(&connection).sockets[0].descriptor, sockopt::SndBuf, &(64 << 10))
        .expect("a small buffer");
    let payload: Vec<u8> = (0..5u32 << 20).map(|at| (at * 7) as u8).collect();
    let (mut done, mut got) = (0, Vec::new());
    let mut signalled = false;
    while connection.fill(0, Span::of(&payload), (1, 2), &mut done).expect("fill").is_pending() {
        // In the middle of a frame, for the first time: it waits for the frame's end.
        let in_frame = session(&connection).sockets[0].outgoing().is_some();
        if in_frame && !std::mem::replace(&mut signalled, true) {
            for value in 1..=2 {
                assert!(connection.signal(CounterKind::Credit, value, 0).expect("signal").is_ready());
            }
        }
        got.extend(received(&mut peer));
    }
    assert!(signalled, "the socket took everything at once");
    while !connection.is_delivered() || !connection.is_flushed() {
        connection.progress().expect("progress");
        got.extend(received(&mut peer));
    }
    drop(connection);
    peer.set_nonblocking(false).expect("blocking");
    peer.read_to_end(&mut got).expect("the rest");
    let (mut at, mut put, mut said, mut credits) = (0, Vec::new(), None, 0);
    while at < got.len() {
        let header = Header::read(&got[at..at + HEADER_BYTES]).expect("a frame");
        at += HEADER_BYTES;
        assert_eq!(said, None, "nothing follows the end");
        match header {
            Header::Fragment(fragment, word) => {
                assert_eq!(fragment.offset, put.len());
                put.extend_from_slice(&got[at..at + fragment.bytes]);
                at += fragment.bytes;
                assert_eq!(fragment.ready.is_some(), put.len() == payload.len(), "the last says it");
                credits = credits.max(word.credit.map_or(0, |credit| credit.value));
            }
            Header::Word(word) => credits = credits.max(word.credit.map_or(0, |credit| credit.value)),
            Header::End(fills, _) => said = Some(fills),
            Header::Fence(..) => panic!("nothing broke"),
        }
    }
    assert!(put == payload, "other bytes arrived");
    assert_eq!((credits, said), (2, Some(5)));
}

#[test]
#[should_panic(expected = "a put was begun and another one continued")]
fn another_put_in_the_middle_of_one_is_a_bug() {
    let (mut connection, _attacker) = attacked(1 << 30);
    let data = vec![0u8; 64 << 20];
    let mut done = 0;
    for _ in 0..64 {
        assert!(connection.put(0, Span::of(&data), &mut done).expect("put").is_pending());
    }
    let _ = connection.put(0, Span::of(&data[..10]), &mut 0);
}

fn serve(side: &Tcp) {
    side.shared.listeners.iter().for_each(|listener| listener.serve());
}

/// Two endpoints, each at a listener of its own; the first calls.
struct Pair {
    sides: [Tcp; 2],
    up: [Box<dyn Connection>; 2],
}

impl Pair {
    fn new(mailbox_bytes: usize) -> Self {
        Self::over(mailbox_bytes, 1)
    }

    fn over(mailbox_bytes: usize, interfaces: u8) -> Self {
        let sides = [tcp_at(interfaces), tcp_at(interfaces)];
        let layout = Layout::new(mailbox_bytes);
        let [caller, callee] = [true, false]
            .map(|calls| sides[usize::from(!calls)].endpoint(layout.calling(calls)).expect("an endpoint"));
        let addresses = [callee.address().clone(), caller.address().clone()];
        let mut connecting: Vec<Box<dyn Connecting>> = [caller, callee]
            .into_iter()
            .zip(&addresses)
            .map(|(endpoint, peer)| endpoint.connect(peer).expect("an address"))
            .collect();
        let mut up = [None, None];
        while up.iter().any(Option::is_none) {
            for (connecting, up) in connecting.iter_mut().zip(&mut up).filter(|(_, up)| up.is_none()) {
                if let Poll::Ready(connection) = connecting.poll().expect("it connects") {
                    *up = Some(connection);
                }
            }
        }
        Pair { sides, up: up.map(|up| up.expect("it is up")) }
    }

    /// The sockets of a side end, as where its system or an administrator ends them.
    fn kill(&self, side: usize, spared: usize) {
        let sockets = self.sockets(side);
        let killed = sockets.iter().enumerate().filter(|(at, _)| sockets.len() == 1 || *at != spared);
        for (_, socket) in killed {
            let _ = shutdown(socket.as_raw_fd(), Shutdown::Both);
        }
    }

    fn sockets(&self, side: usize) -> Vec<Arc<OwnedFd>> {
        self.session(side)
            .map(|session| session.lock().expect("not poisoned").descriptors())
            .unwrap_or_default()
    }

    fn session(&self, side: usize) -> Option<Arc<Mutex<Session>>> {
        self.sides[side].shared.watcher().only_session()
    }

    fn serve(&self) {
        self.sides.iter().for_each(serve);
    }
}

/// Bytes both ways through four slots while sockets end again and again, on either side and on both: all of it is right when its
/// slot is read.
fn break_sockets(interfaces: u8, random: &mut Random) {
    const SLOTS: u64 = 4;
    const SLOT: usize = 96 << 10;
    const FILLS: u64 = 600;
    let mut pair = Pair::over(SLOTS as usize * SLOT, interfaces);
    let byte = |side: usize, fill: u64| (fill * 7 + side as u64 * 101 + 1) as u8;
    let (mut filled, mut emptied, mut done) = ([0u64; 2], [0u64; 2], [0usize; 2]);
    let mut sources = [vec![0u8; SLOT], vec![0u8; SLOT]];
    let (mut kills, began) = (0, Instant::now());
    while emptied != [FILLS; 2] {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "filled {filled:?}, emptied {emptied:?}, {kills} kills"
        );
        if random.below(400) == 0 {
            kills += 1;
            // All sockets, or some of several.
            let spared = random.below(usize::from(interfaces) + 1);
            match random.below(3) {
                0 => pair.kill(0, spared),
                1 => pair.kill(1, spared),
                _ => (0..2).for_each(|side| pair.kill(side, spared)),
            }
        }
        // Where a rank is not in a call, its listener is all that is served.
        let side = random.below(2);
        if random.below(4) == 0 {
            serve(&pair.sides[side]);
            continue;
        }
        serve(&pair.sides[side]);
        let up = &mut pair.up[side];
        assert_eq!(up.progress().expect("progress"), PeerState::Open);
        let credited = up.counter(CounterKind::Credit).value();
        if filled[side] < FILLS && filled[side] < credited + SLOTS {
            let fill = filled[side];
            if done[side] == 0 {
                sources[side].fill(byte(side, fill));
            }
            let bytes = if fill.is_multiple_of(5) { 8 } else { SLOT };
            let at = (fill % SLOTS) as usize * SLOT;
            let source = Span::of(&sources[side][..bytes]);
            if up.fill(at, source, (fill + 1, fill), &mut done[side]).expect("fill").is_ready() {
                (filled[side], done[side]) = (fill + 1, 0);
                // The source is free.
                sources[side].fill(0);
            }
        }
        let fill = emptied[side];
        if fill < up.counter(CounterKind::Ready).value() && random.below(3) > 0 {
            let bytes = if fill.is_multiple_of(5) { 8 } else { SLOT };
            let mut copy = vec![0u8; bytes];
            SpanMut::of(&mut copy)
                .copy_from(up.mailbox().slice((fill % SLOTS) as usize * SLOT, bytes).read());
            assert!(copy.iter().all(|is| *is == byte(1 - side, fill)), "fill {fill} of side {}", 1 - side);
            assert!(up.signal(CounterKind::Credit, fill + 1, 0).expect("signal").is_ready());
            emptied[side] += 1;
        }
    }
    assert!(kills > 3, "{kills} kills");
    let breaks = pair.session(0).expect("a session").lock().expect("not poisoned").peering.counts().0;
    println!("{interfaces} interfaces: {kills} kills, {breaks} breaks");
    assert!(breaks > 3);
}

#[test]
fn sockets_that_break_lose_nothing() {
    let mut random = Random::announced("sockets_that_break_lose_nothing");
    for interfaces in [1, 2, 3] {
        break_sockets(interfaces, &mut random);
    }
}

/// Of two interfaces one does not lead to the peer: its calls are refused, and the other carries everything.
#[test]
fn an_interface_that_leads_nowhere_is_done_without() {
    for refuses in [0, 1] {
        let mut pair = Pair::over(4096, 2);
        pair.sides[refuses].shared.listeners[1].hang_up();
        pair.kill(0, 0);
        for fill in 1..=100 {
            let mut done = 0;
            while pair.up[0].fill(0, Span::of(&[7u8; 4096]), (fill, 0), &mut done).expect("fill").is_pending()
            {
                pair.up[0].progress().expect("progress");
            }
            while pair.up[1].counter(CounterKind::Ready).value() < fill {
                pair.serve();
                (0..2).for_each(|side| {
                    assert_eq!(pair.up[side].progress().expect("progress"), PeerState::Open)
                });
            }
        }
    }
}

/// A rank that has sent something and is in no call: its socket breaks before the peer has read, and its listener sends it again.
#[test]
fn what_an_idle_rank_has_sent_is_sent_again() {
    for killed in [0, 1] {
        for sender in [0, 1] {
            let mut pair = Pair::new(64);
            // Broken before it is used: the sender does not know.
            pair.kill(killed, 0);
            let mut done = 0;
            let began = Instant::now();
            while pair.up[sender].fill(0, Span::of(&[9u8; 8]), (1, 5), &mut done).expect("fill").is_pending()
            {
                assert!(began.elapsed() < Duration::from_secs(10), "killed {killed}, sender {sender}");
                let _ = pair.up[sender].progress().expect("progress");
                pair.serve();
            }
            while pair.up[1 - sender].counter(CounterKind::Ready).value() == 0 {
                assert!(began.elapsed() < Duration::from_secs(10), "killed {killed}, sender {sender}");
                pair.serve();
                pair.up[1 - sender].progress().expect("progress");
            }
            assert!(
                pair.sides.iter().any(|side| side.shared.watcher().has_chores())
                    || pair.sockets(0).len() == 1
            );
        }
    }
}

/// The same with more than a socket takes at once, and with what the sender itself has not read behind which the end is.
#[test]
fn an_idle_rank_sends_all_of_it_again() {
    const FILL: usize = 1 << 20;
    const FILLS: u64 = 24;
    for sender in [0, 1] {
        let mut pair = Pair::new(FILLS as usize * FILL);
        let data = vec![5u8; FILL];
        let mut unread = 0;
        while pair.up[1 - sender].put(0, Span::of(&data[..1000]), &mut unread).expect("put").is_pending() {}
        for fill in 0..FILLS {
            let mut done = 0;
            let at = fill as usize * FILL;
            while pair.up[sender]
                .fill(at, Span::of(&data), (fill + 1, 0), &mut done)
                .expect("fill")
                .is_pending()
            {
                pair.up[1 - sender].progress().expect("progress");
            }
        }
        // The sender is in no call from here on; nor has it read.
        pair.kill(sender, 1);
        let began = Instant::now();
        while pair.up[1 - sender].counter(CounterKind::Ready).value() < FILLS {
            assert!(began.elapsed() < Duration::from_secs(20), "sender {sender}");
            pair.serve();
            pair.up[1 - sender].progress().expect("progress");
        }
    }
}

/// The end of a socket lies behind bytes that an idle rank has not read; the peer, which may not call, waits for its call.
#[test]
fn an_end_behind_unread_bytes_is_seen() {
    let mut pair = Pair::new(4096);
    assert!(pair.up[1].put(0, Span::of(&[1u8; 1000]), &mut 0).expect("put").is_ready());
    pair.kill(1, 1);
    let began = Instant::now();
    while !pair.sockets(1).is_empty() {
        pair.up[1].progress().expect("progress");
    }
    while pair.sockets(1).is_empty() {
        assert!(began.elapsed() < Duration::from_secs(10), "the idle side does not call");
        pair.serve();
    }
}

fn call(there: SocketAddr, key: &Key, meeting: &Meeting, epoch: u32) -> TcpStream {
    let mut stream = TcpStream::connect(there).expect("a listener");
    let meeting = Meeting { path: Path { number: 0, epoch }, ..*meeting };
    stream.write_all(&key.hello(&meeting)).expect("a hello");
    stream
}

/// A call of the peer's for a later epoch replaces a socket that this side finds nothing wrong with; what is called for an earlier
/// one, or again, changes nothing.
#[test]
fn the_peers_later_call_counts_and_an_earlier_one_does_not() {
    let mut pair = Pair::new(64);
    let [caller, callee] = [0, 1].map(|side| pair.session(side).expect("a session"));
    let (key, meeting, there) = {
        let caller = caller.lock().expect("not poisoned");
        let path = Path { number: 0, epoch: 3 };
        let meeting = Meeting { caller: caller.expectation.nonce, callee: caller.peer, path };
        (caller.key.clone(), meeting, caller.ways[0].1)
    };
    let call = |epoch| call(there, &key, &meeting, epoch);
    let present = || {
        let callee = callee.lock().expect("not poisoned");
        callee.sockets.iter().map(|socket| socket.path.epoch).collect::<Vec<_>>()
    };
    assert_eq!(present(), [1]);
    let began = Instant::now();
    let _later = call(3);
    while present() != [3] {
        assert!(began.elapsed() < Duration::from_secs(10), "the call is not taken");
        pair.serve();
    }
    for epoch in [1, 2, 3] {
        let mut earlier = call(epoch);
        earlier.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
        // Welcome, perhaps, and then nothing more.
        let mut answer = Vec::new();
        while answer.len() <= 100 && began.elapsed() < Duration::from_secs(10) {
            pair.serve();
            let mut some = [0; 64];
            match earlier.read(&mut some) {
                Ok(0) => break,
                Ok(bytes) => answer.extend_from_slice(&some[..bytes]),
                Err(_) => {}
            }
        }
        assert_eq!(present(), [3], "after a call for epoch {epoch}");
    }
    // The true caller comes back with a later one still.
    let mut done = 0;
    while pair.up[0].fill(0, Span::of(&[1u8; 8]), (1, 0), &mut done).expect("fill").is_pending()
        || pair.up[1].counter(CounterKind::Ready).value() == 0
    {
        if done == 8 {
            break;
        }
        pair.serve();
        (0..2).for_each(|side| assert_eq!(pair.up[side].progress().expect("progress"), PeerState::Open));
        assert!(began.elapsed() < Duration::from_secs(20), "the caller does not come back");
    }
}

/// The end of a session arrives although its socket broke.
#[test]
fn the_end_arrives_although_the_socket_broke() {
    for leaves in [0, 1] {
        let Pair { sides, up } = Pair::new(64);
        let [first, second] = up;
        let (leaving, mut staying) = if leaves == 0 { (first, second) } else { (second, first) };
        let mut leaving = leaving;
        let sessions = sides.each_ref().map(|side| side.shared.watcher().only_session().expect("a session"));
        for socket in sessions[leaves].lock().expect("not poisoned").descriptors() {
            shutdown(socket.as_raw_fd(), Shutdown::Both).expect("shutdown");
        }
        drop(sessions);
        let mut done = 0;
        let began = Instant::now();
        while leaving.fill(0, Span::of(&[4u8; 64]), (1, 6), &mut done).is_ok_and(|sent| sent.is_pending()) {
            sides.iter().for_each(serve);
            let _ = leaving.progress();
            assert!(began.elapsed() < Duration::from_secs(10));
        }
        drop(leaving);
        while staying.progress().expect("progress") == PeerState::Open {
            sides.iter().for_each(serve);
            assert!(began.elapsed() < Duration::from_secs(10), "leaving side {leaves}");
        }
        assert_eq!(staying.counter(CounterKind::Ready).value(), 1);
    }
}

/// A peer whose listener has gone is closed soon; one whose calls do not come is cut, with what is known of it.
#[test]
fn a_peer_that_does_not_come_back_is_an_error() {
    let Pair { sides, up: [mut caller, callee] } = Pair::new(64);
    let [near, far] = sides;
    let theirs = far.shared.watcher().only_session().expect("a session");
    for socket in theirs.lock().expect("not poisoned").descriptors() {
        shutdown(socket.as_raw_fd(), Shutdown::Both).expect("shutdown");
    }
    // As if its process had died: nothing says that it ends.
    std::mem::forget(callee);
    let there = far.shared.watcher().here;
    far.shared.watcher().hang_up();
    let began = Instant::now();
    let state = loop {
        serve(&near);
        let state = caller.progress().expect("progress");
        if state == PeerState::Closed || began.elapsed() > Duration::from_secs(20) {
            break state;
        }
    };
    assert_eq!(state, PeerState::Closed, "{there} refuses calls");

    let (mut connection, attacker) = attacked(MAILBOX_BYTES);
    session(&connection).patience = Duration::from_millis(50);
    drop(attacker);
    let error = loop {
        match connection.progress() {
            Ok(state) => assert_eq!(state, PeerState::Open),
            Err(error) => break error,
        }
    };
    let text = error.to_string();
    let parts = ["the peer's system ended it", "path MTU", "the peer is to call again, and has not"];
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
}
