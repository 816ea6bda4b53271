//! Streams: bytes in order, in parts, until the end.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;

use consort_transports::simnet::Stream;

use super::*;

fn address() -> SocketAddr {
    "10.9.9.9:4000".parse().expect("address")
}

/// From A to B.
fn streams(network: &Network) -> (Stream, Stream) {
    network.listen(B, address());
    let mut dialling = network.dial(A, address());
    assert!(dialling.poll().is_pending());
    settle(network);
    let (accepted, at, from) = network.accept(B).expect("a caller");
    assert_eq!((at, from.ip(), accepted.peer_node()), (address(), A.ip(), A));
    assert!(network.accept(B).is_none());
    match dialling.poll() {
        Poll::Ready(Ok(stream)) => (stream, accepted),
        other => panic!("{other:?}"),
    }
}

fn kind<R: std::fmt::Debug>(outcome: std::io::Result<R>) -> ErrorKind {
    outcome.expect_err("an error").kind()
}

/// All that is there, and how it ends.
fn drain(stream: &mut Stream) -> (Vec<u8>, std::io::Result<()>) {
    let (mut all, mut buffer) = (Vec::new(), [0; 1000]);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return (all, Ok(())),
            Ok(got) => all.extend_from_slice(&buffer[..got]),
            Err(error) => return (all, Err(error)),
        }
    }
}

#[test]
fn bytes_arrive_in_order_whatever_the_parts() {
    for seed in 0..20 {
        let network = Network::new(seed);
        let (mut left, mut right) = streams(&network);
        let data = nonzero(seed, 300_000);
        let (mut written, mut got, mut partial) = (0, Vec::new(), 0);
        while got.len() < data.len() {
            match left.write(&data[written..]) {
                Ok(bytes) => written += bytes,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    assert!(written - got.len() <= 64 << 10, "the window is bounded");
                    network.advance(network.next().expect("bytes or room"));
                    let (more, end) = drain(&mut right);
                    assert_eq!(kind(end), ErrorKind::WouldBlock);
                    partial += usize::from(!more.is_empty());
                    got.extend(more);
                }
            }
            if written == data.len() {
                settle(&network);
                got.extend(drain(&mut right).0);
            }
        }
        assert!(got == data && partial > 1);
    }
}

#[test]
fn ends_are_read_after_the_bytes() {
    let network = Network::new(1);
    let (mut left, mut right) = streams(&network);
    left.write_all(b"hello").expect("write");
    left.shutdown_write();
    assert_eq!(kind(left.write(b"x")), ErrorKind::BrokenPipe);
    settle(&network);
    let (bytes, end) = drain(&mut right);
    assert_eq!((&bytes[..], end.is_ok()), (&b"hello"[..], true));
    // The other direction goes on.
    right.write_all(b"bye").expect("write");
    drop(right);
    settle(&network);
    let (bytes, end) = drain(&mut left);
    assert_eq!((&bytes[..], end.is_ok()), (&b"bye"[..], true));
    drop(left);
    // A writer to a node that is gone learns it after a round trip.
    let (mut left, right) = streams(&network);
    drop(right);
    settle(&network);
    left.write_all(b"x").expect("not known yet");
    settle(&network);
    assert_eq!(kind(left.write(b"x")), ErrorKind::BrokenPipe);
    assert!(drain(&mut left).1.is_ok());
    drop(left);
    let (mut left, mut right) = streams(&network);
    right.shutdown_both();
    left.write_all(b"x").expect("write");
    settle(&network);
    assert!(drain(&mut right).1.is_ok() && drain(&mut left).1.is_ok());
    drop((left, right));
    settle(&network);
    assert_eq!((network.open_streams(), network.in_flight()), (0, 0));
}

#[test]
fn who_dials_is_answered_or_not() {
    let network = Network::new(1);
    let refused = |dialling: &mut consort_transports::simnet::Dialling| match dialling.poll() {
        Poll::Ready(outcome) => outcome.expect_err("nothing listens").kind() == ErrorKind::ConnectionRefused,
        Poll::Pending => false,
    };
    let mut dialling = network.dial(A, address());
    assert!(dialling.poll().is_pending());
    settle(&network);
    assert!(refused(&mut dialling));
    network.listen(B, address());
    network.partition(&[A]);
    let mut dialling = network.dial(A, address());
    settle(&network);
    assert!(dialling.poll().is_pending() && network.accept(B).is_none());
    network.heal();
    settle(&network);
    assert!(dialling.poll().is_ready() && network.accept(B).is_some());
    // Accepted by the system, and turned away when the listener goes.
    let mut dialling = network.dial(A, address());
    settle(&network);
    let Poll::Ready(Ok(mut stream)) = dialling.poll() else { panic!("connected before it is accepted") };
    network.unlisten(address());
    settle(&network);
    assert!(network.accept(B).is_none() && drain(&mut stream).1.is_ok());
    let mut dialling = network.dial(A, address());
    settle(&network);
    assert!(refused(&mut dialling));
    // A process that dies takes its listeners along; another may take the address.
    network.listen(B, address());
    network.kill(B);
    let mut dialling = network.dial(A, address());
    settle(&network);
    assert!(refused(&mut dialling));
    network.listen(Node(7), address());
    let mut dialling = network.dial(A, address());
    settle(&network);
    assert!(dialling.poll().is_ready() && network.accept(Node(7)).is_some());
}

#[test]
fn kills_and_resets_end_streams() {
    let network = Network::new(1);
    let (mut left, mut right) = streams(&network);
    left.write_all(b"last words").expect("write");
    network.kill(A);
    assert_eq!(kind(left.write(b"x")), ErrorKind::NotConnected);
    settle(&network);
    let (bytes, end) = drain(&mut right);
    assert_eq!((&bytes[..], end.is_ok()), (&b"last words"[..], true));

    let network = Network::new(2);
    let (mut left, mut right) = streams(&network);
    left.write_all(b"arrived").expect("write");
    settle(&network);
    left.write_all(b"lost").expect("write");
    network.reset(A, B);
    assert_eq!(kind(left.read(&mut [0])), ErrorKind::WouldBlock, "not heard yet");
    settle(&network);
    let (bytes, end) = drain(&mut right);
    assert_eq!((&bytes[..], kind(end)), (&b"arrived"[..], ErrorKind::ConnectionReset));
    assert_eq!(kind(left.write(b"x")), ErrorKind::ConnectionReset);
}

#[test]
fn a_black_hole_for_data_leaves_streams_alone_and_a_cut_does_not() {
    let network = Network::new(1);
    let (mut left, mut right) = streams(&network);
    network.blackhole_data(A, B);
    left.write_all(b"1").expect("write");
    settle(&network);
    assert_eq!(drain(&mut right).0, b"1");
    network.cut(B, A);
    left.write_all(b"2").expect("write");
    drop(left);
    settle(&network);
    assert_eq!(kind(right.read(&mut [0])), ErrorKind::WouldBlock);
    network.heal();
    settle(&network);
    let (bytes, end) = drain(&mut right);
    assert_eq!((&bytes[..], end.is_ok()), (&b"2"[..], true));
}

#[test]
fn a_stopped_process_lets_its_window_fill() {
    let network = Network::new(1);
    let (mut left, mut right) = streams(&network);
    network.freeze(B);
    let mut written = 0;
    while let Ok(bytes) = left.write(&[1; 10_000]) {
        written += bytes;
        settle(&network);
    }
    assert_eq!(written, 64 << 10);
    assert_eq!(kind(right.read(&mut [0])), ErrorKind::WouldBlock);
    network.thaw(B);
    assert_eq!(drain(&mut right).0.len(), written);
    settle(&network);
    assert!(left.write(&[1]).is_ok());
}
