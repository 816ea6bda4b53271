//! Sessions whose other end is in the hand of a test, hostile or not.

mod breaks;
mod shortened;

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

/// At addresses of the loopback, one for each interface that there would be.
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
        frame(fragment(1, (PLACE_MAX, 2), None)),
        frame(fragment(1, (2, PLACE_MAX), None)),
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
