//! The frames of a connection whose other end is in the hand of a test, hostile or not.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use super::*;
use crate::{Listener, Tcp};

const MAILBOX_BYTES: usize = 100;

/// A connection, and the other end of its stream in a hostile hand.
fn attacked() -> (TcpConnection, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
    let attacker = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let (socket, _) = listener.accept().expect("accept");
    socket.set_nonblocking(true).expect("nonblocking");
    let shared = Tcp::new(Arc::new(Listener::new(Ipv4Addr::LOCALHOST.into()).expect("a listener")), [0; 32])
        .expect("tcp")
        .shared;
    let mailbox = Mapping::anonymous(MAILBOX_BYTES).expect("memory");
    (TcpConnection::new(socket.into(), mailbox, MAILBOX_BYTES, shared), attacker)
}

fn outcome(frames: &[&[u8]]) -> Result<PeerState, TransportError> {
    let (mut connection, mut attacker) = attacked();
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
                assert!(matches!(connection.progress(), Err(TransportError::Protocol { .. })));
                assert!(matches!(
                    connection.signal(CounterKind::Ready, 1, 0),
                    Err(TransportError::Protocol { .. })
                ));
                return Err(error);
            }
        }
    }
}

#[test]
fn the_taking_side_checks_every_frame() {
    let good = header(KIND_PUT, 0, 0);
    let mut wrong_magic = good;
    wrong_magic[0] ^= 1;
    let mut wrong_zero = good;
    wrong_zero[31] = 1;
    let wrong = [
        wrong_magic,
        wrong_zero,
        header(0, 0, 0),
        header(4, 0, 0),
        header(KIND_PUT, 0, 101),
        header(KIND_PUT, 100, 1),
        header(KIND_PUT, 101, 0),
        header(KIND_PUT, u64::MAX, 2),
        header(KIND_PUT, 2, u64::MAX),
        header(KIND_READY, 0, 0),
        header(KIND_CREDIT, 0, 0),
    ];
    for frame in wrong {
        let outcome = outcome(&[&good, &frame]);
        assert!(matches!(outcome, Err(TransportError::Protocol { .. })), "{frame:?}: {outcome:?}");
    }
    let up = header(KIND_READY, 5, 0);
    for down in [4, 5] {
        let outcome = outcome(&[&up, &header(KIND_READY, down, 0)]);
        assert!(matches!(outcome, Err(TransportError::Protocol { .. })), "{outcome:?}");
    }
    // And what is right, up to the last byte, is taken; also when the stream ends within a frame.
    assert!(outcome(&[&up, &header(KIND_PUT, 0, 100), &[1; 100]]).is_ok());
    assert!(outcome(&[&header(KIND_PUT, 0, 100), &[1; 99]]).is_ok());
    assert!(outcome(&[&good[..31]]).is_ok());
}

#[test]
fn frames_may_arrive_byte_by_byte() {
    let (mut connection, mut attacker) = attacked();
    let payload: Vec<u8> = (1..=50).collect();
    let stream = [&header(KIND_PUT, 7, 50)[..], &payload, &header(KIND_CREDIT, 3, 33)].concat();
    for byte in stream {
        assert_eq!(connection.credit.value(), 0);
        attacker.write_all(&[byte]).expect("write");
        connection.progress().expect("progress");
    }
    while connection.credit.value() == 0 {
        connection.progress().expect("progress");
    }
    let mut copy = [0u8; 50];
    SpanMut::of(&mut copy).copy_from(connection.mailbox().slice(7, 50).read());
    assert_eq!((&copy[..], connection.credit.tag(3)), (&payload[..], 33));
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
    let (mut connection, mut peer) = attacked();
    let payload: Vec<u8> = (1..=50).collect();
    let fill = |connection: &mut TcpConnection, value: u64| {
        let mut done = 0;
        assert!(connection.fill(7, Span::of(&payload), (value, 33), &mut done).expect("fill").is_ready());
        assert_eq!(done, 50);
    };
    let filled = |value| [&header(KIND_PUT, 7, 50)[..], &payload, &header(KIND_READY, value, 33)].concat();
    fill(&mut connection, 1);
    assert_eq!(sent(&connection, &mut peer), filled(1));
    // One credit is deferred until something is sent, and counts for those before it.
    let credit = |connection: &mut TcpConnection, value: u64| {
        assert!(connection.signal(CounterKind::Credit, value, 0).expect("signal").is_ready());
    };
    credit(&mut connection, 1);
    assert_eq!((sent(&connection, &mut peer), connection.deferred_credits()), (Vec::new(), 1));
    fill(&mut connection, 2);
    let credit_frame = |value| header(KIND_CREDIT, value, 0).to_vec();
    assert_eq!(
        (sent(&connection, &mut peer), connection.deferred_credits()),
        ([credit_frame(1), filled(2)].concat(), 0)
    );
    // Two are not deferred.
    credit(&mut connection, 2);
    assert_eq!(sent(&connection, &mut peer), []);
    credit(&mut connection, 3);
    assert_eq!(sent(&connection, &mut peer), credit_frame(3));
    // Nor is one when nothing comes for a while, or when this side has nothing more to do.
    credit(&mut connection, 4);
    let looks = (1..).find(|_| {
        connection.progress().expect("progress");
        connection.deferred_credits() == 0
    });
    assert_eq!((looks, sent(&connection, &mut peer)), (Some(IDLE_LOOKS + 1), credit_frame(4)));
    credit(&mut connection, 5);
    connection.flush_credits();
    assert_eq!(sent(&connection, &mut peer), credit_frame(5));
    credit(&mut connection, 6);
    assert!(connection.signal(CounterKind::Ready, 3, 9).expect("signal").is_ready());
    assert_eq!(sent(&connection, &mut peer), [credit_frame(6), header(KIND_READY, 3, 9).to_vec()].concat());
    credit(&mut connection, 7);
    drop(connection);
    let mut rest = vec![0; HEADER_BYTES];
    peer.set_nonblocking(false).expect("blocking");
    peer.read_exact(&mut rest).expect("the last credit");
    assert_eq!(rest, credit_frame(7));
}

#[test]
fn a_fill_that_the_socket_takes_in_parts_is_whole_and_in_order() {
    let (mut connection, mut peer) = attacked();
    connection.peer_mailbox_bytes = 64 << 20;
    // Whatever the system would give it.
    let socket = connection.socket.as_ref().expect("a socket");
    nix::sys::socket::setsockopt(socket, nix::sys::socket::sockopt::SndBuf, &(64 << 10))
        .expect("a small buffer");
    let payload: Vec<u8> = (0..5u32 << 20).map(|at| (at * 7) as u8).collect();
    let (mut done, mut got) = (0, Vec::new());
    let mut signalled = false;
    while connection.fill(0, Span::of(&payload), (1, 2), &mut done).expect("fill").is_pending() {
        // In the middle of a frame, for the first time: it waits for the frame's end.
        if connection.outgoing.is_some() && !std::mem::replace(&mut signalled, true) {
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
    // Frames of at most so much, the signal right behind the last.
    let (mut at, mut put, mut kinds) = (0, Vec::new(), Vec::new());
    while at < got.len() {
        let word = |from: usize| u64::from_le_bytes(got[at + from..at + from + 8].try_into().expect("eight"));
        let kind = u32::from_le_bytes(got[at + 4..at + 8].try_into().expect("four"));
        kinds.push(kind);
        if kind == KIND_PUT {
            assert_eq!(word(8), put.len() as u64);
            let bytes = usize::try_from(word(16)).expect("a length");
            put.extend_from_slice(&got[at + HEADER_BYTES..][..bytes]);
            at += bytes;
        }
        at += HEADER_BYTES;
    }
    assert!(put == payload, "other bytes arrived");
    assert_eq!(kinds.iter().filter(|kind| **kind == KIND_CREDIT).count(), 1, "{kinds:?}");
    assert_eq!(kinds.iter().filter(|kind| **kind == KIND_READY).count(), 1, "{kinds:?}");
    let last_put = kinds.iter().rposition(|kind| *kind == KIND_PUT);
    let ready = kinds.iter().position(|kind| *kind == KIND_READY);
    assert!(ready > last_put, "{kinds:?}");
}

#[test]
#[should_panic(expected = "a put was begun and another one continued")]
fn another_put_in_the_middle_of_one_is_a_bug() {
    let (mut connection, _attacker) = attacked();
    connection.peer_mailbox_bytes = 1 << 30;
    let data = vec![0u8; 64 << 20];
    let mut done = 0;
    for _ in 0..64 {
        assert!(connection.put(0, Span::of(&data), &mut done).expect("put").is_pending());
    }
    let _ = connection.put(0, Span::of(&data), &mut 0);
}
