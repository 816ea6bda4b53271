//! Sessions that call with short segments, where long packets are said not to get through.

use std::net::Ipv6Addr;

use super::super::segments::{Segments, Sight};
use super::super::standing::reset;
use super::breaks::Pair;
use super::*;
use crate::tcp::call::{Call, CallError};

/// A socket that stands still with nothing long acknowledged.
const STANDS: Sight = Sight {
    retransmits: 2,
    acknowledged: 700,
    outstanding: 60_000,
    segment: 1448,
    path_mtu: 1500,
    heard: Duration::ZERO,
    resending: Duration::from_millis(600),
};

/// A path on which two sockets in a row have stood still.
fn on_trial() -> Segments {
    let mut segments = Segments::default();
    for millis in [600, 1300] {
        segments.stood_still(Duration::from_millis(millis), &STANDS);
    }
    segments
}

/// The longest segment of the socket of a side, where there is one at present.
fn segment(pair: &Pair, side: usize) -> Option<u32> {
    Some(Info::of(&**pair.sockets(side).first()?).expect("the system says it").segment)
}

fn segments(pair: &Pair, side: usize) -> Segments {
    pair.session(side).expect("a session").lock().expect("not poisoned").segments[0]
}

fn until(pair: &mut Pair, what: &str, mut is_so: impl FnMut(&mut Pair) -> bool) {
    let began = Instant::now();
    while !is_so(pair) {
        assert!(began.elapsed() < Duration::from_secs(20), "{what}");
        pair.serve();
        (0..2).for_each(|side| assert_eq!(pair.up[side].progress().expect("progress"), PeerState::Open));
    }
}

/// One side's fill of 64 KiB arrives, after as many before it.
fn carry(pair: &mut Pair, from: usize, fill: u64) {
    let (data, mut done) = ([fill as u8; 64 << 10], 0);
    until(pair, "the fill is not sent", |pair| {
        pair.up[from].fill(0, Span::of(&data), (fill, 0), &mut done).expect("fill").is_ready()
    });
    until(pair, "the fill does not arrive", |pair| {
        pair.up[1 - from].counter(CounterKind::Ready).value() == fill
    });
    let mut copy = [0; 64 << 10];
    SpanMut::of(&mut copy).copy_from(pair.up[1 - from].mailbox().slice(0, data.len()).read());
    assert!(copy == data, "other bytes arrived");
}

fn is_short(pair: &Pair) -> bool {
    [0, 1].iter().all(|side| segment(pair, *side).is_some_and(|segment| segment <= 1200))
}

/// Whichever side has found it: the next socket has short segments, those after it too, and so has the first of a later connection.
#[test]
fn a_path_on_which_sockets_stood_still_goes_on_with_short_segments() {
    for finder in [0, 1] {
        let mut pair = Pair::new(64 << 10);
        carry(&mut pair, finder, 1);
        assert!(!is_short(&pair));
        pair.session(finder).expect("a session").lock().expect("not poisoned").segments[0] = on_trial();
        pair.kill(finder, 0);
        carry(&mut pair, finder, 2);
        until(&mut pair, "a trial does not end", |pair| !segments(pair, finder).is_trial());
        until(&mut pair, "segments are long", |pair| is_short(pair));
        assert!(segments(&pair, finder).is_own() && segments(&pair, finder).is_short());
        // The side that calls remembers, whichever has found it.
        carry(&mut pair, 0, if finder == 0 { 3 } else { 1 });
        until(&mut pair, "a trial of the caller does not end", |pair| !segments(pair, 0).is_trial());
        pair.kill(1 - finder, 0);
        carry(&mut pair, finder, if finder == 0 { 4 } else { 3 });
        until(&mut pair, "segments are long again", |pair| is_short(pair));
        let Pair { sides, up } = pair;
        drop(up);
        let began = Instant::now();
        while sides.iter().any(|side| side.shared.watcher().only_session().is_some()) {
            assert!(began.elapsed() < Duration::from_secs(20), "a closed session stays");
            sides.iter().for_each(|side| side.shared.watcher().serve());
        }
        let mut later = Pair::between(sides, 64 << 10);
        carry(&mut later, finder, 1);
        assert!(is_short(&later), "finder {finder}");
    }
}

#[test]
fn calls_that_no_system_answers_end_a_trial() {
    let pair = Pair::new(64);
    let session = pair.session(0).expect("a session");
    let mut session = session.lock().expect("not poisoned");
    session.began = Instant::now().checked_sub(Duration::from_secs(10)).expect("a time before");
    let path = Path { number: 0, epoch: 2 };
    for (error, is_short) in [
        (CallError::HungUp, true),
        (CallError::Unreachable(Errno::ETIMEDOUT), false),
        (CallError::Shorter, true),
    ] {
        session.segments[0] =
            if matches!(error, CallError::Shorter) { Segments::default() } else { on_trial() };
        session.not_opened(path, error);
        assert_eq!(session.segments[0].is_short(), is_short);
        assert_eq!(session.segment(path), is_short.then_some(1200));
    }
}

#[test]
fn segments_are_short_in_both_directions_for_either_family() {
    let loopbacks = [(Ipv4Addr::LOCALHOST.into(), 1200), (IpAddr::from(Ipv6Addr::LOCALHOST), 1180)];
    for (here, longest) in loopbacks {
        let Ok(listener) = TcpListener::bind((here, 0)) else {
            println!("this system has no {here}");
            continue;
        };
        let there = listener.local_addr().expect("an address");
        for (segment, is_short) in [(None, false), (Some(super::super::short(here)), true)] {
            let call = Call::begin(here, there, segment).expect("a call").into_socket();
            let (answered, _) = listener.accept().expect("it has come");
            let segments = [Info::of(&call), Info::of(&answered)].map(|info| info.expect("known").segment);
            assert_eq!(segments.map(|segment| segment <= longest), [is_short; 2], "{segments:?}");
        }
    }
}

/// A peer that reads nothing has a full window, behind which an end that is only sent would wait.
#[test]
fn a_socket_that_is_reset_ends_at_once_for_the_peer_while_another_descriptor_holds_it() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
    let mut peer = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let (mut socket, _) = listener.accept().expect("accept");
    let held = socket.try_clone().expect("a descriptor");
    socket.set_nonblocking(true).expect("nonblocking");
    while socket.write(&[0; 1 << 16]).is_ok() {}
    shutdown(socket.as_raw_fd(), Shutdown::Both).expect("shutdown");
    reset(&socket.into());
    let mut rest = Vec::new();
    let error = peer.read_to_end(&mut rest).expect_err("it was reset");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    drop(held);
}

#[test]
fn a_session_that_is_lost_names_the_black_hole() {
    let pair = Pair::new(64);
    let session = pair.session(0).expect("a session");
    let mut session = session.lock().expect("not poisoned");
    assert!(!session.lost().to_string().contains("black hole"));
    session.segments[0] = on_trial();
    session.segments[0].stood_still(Duration::from_secs(2), &Sight { segment: 1188, ..STANDS });
    let text = session.lost().to_string();
    let there = session.ways[0].1.to_string();
    let parts = [
        "packets of 1500 bytes",
        "an MTU black hole",
        "3 sockets in a row",
        "segments of 1200 bytes too",
        "set the same MTU",
        &there,
    ];
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
}
