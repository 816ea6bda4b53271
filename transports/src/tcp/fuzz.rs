//! What strangers and hostile peers may send to the TCP transport.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::{Duration, Instant};

use consort_memory::Span;

use super::handshake::{HELLO_BYTES, Key, Meeting, Verdict};
use super::wire::{HEADER_BYTES, Header};
use super::{Listener, Place, Tcp};
use crate::fuzzing::{Input, Seen, Target, fuzz};
use crate::streams::{Fragment, Path, Ready, Word};
use crate::{Address, Connection, CounterKind, Layout, PeerState, Service, Transport};

const MAILBOX_BYTES: usize = 1000;
const KEY: [u8; 32] = [8; 32];

/// A connection has its staging (4 KiB) and copies of what is not acknowledged; the rest is the test's.
const STREAM: Target = Target {
    name: "tcp-stream",
    command: "-p consort-transports --lib tcp::fuzz::frames",
    bytes_max: 256 << 10,
    inputs: 40_000,
};

/// Callers cost their hello each; there are 128 at most.
const HANDSHAKE: Target = Target {
    name: "tcp-handshake",
    command: "-p consort-transports --lib tcp::fuzz::callers",
    bytes_max: 512 << 10,
    inputs: 1_500,
};

fn tcp() -> Tcp {
    Tcp::new(Arc::new(Listener::new(Ipv4Addr::LOCALHOST.into()).expect("a listener")), KEY).expect("tcp")
}

fn shared() -> &'static Tcp {
    static TCP: OnceLock<Tcp> = OnceLock::new();
    TCP.get_or_init(tcp)
}

fn stream(input: &Input, seen: &mut Seen) {
    let (here, mut there) = UnixStream::pair().expect("a pair");
    here.set_nonblocking(true).expect("nonblocking");
    there.set_nonblocking(true).expect("nonblocking");
    let mut connection = shared().hostile(here.into(), MAILBOX_BYTES);
    let (mut ready, mut credit, mut mine) = (0, 0, 0);
    for piece in input {
        let _ = there.write(piece);
        let state = connection.progress();
        let now = [CounterKind::Ready, CounterKind::Credit].map(|kind| connection.counter(kind).value());
        assert!(now[0] >= ready && now[1] >= credit, "a counter went down");
        seen.note((now[0] > ready, now[1] > credit, now[0].leading_zeros() / 8, state.is_ok()));
        seen.note((connection.mailbox().len(), input.len().min(16), state.is_ok()));
        [ready, credit] = now;
        match &state {
            Ok(state) => seen.note(*state == PeerState::Open),
            Err(error) => seen.note_text(&error.to_string()),
        }
        let _ = connection.counter(CounterKind::Ready).tag(ready);
        mine += 1;
        let sent = (
            connection.put(0, Span::of(&[7; 300]), &mut 0).map(|poll| poll.is_ready()),
            connection.signal(CounterKind::Ready, mine, 1).map(|poll| poll.is_ready()),
        );
        seen.note((sent.0.is_ok(), sent.1.is_ok()));
        if state.is_err() {
            assert!(
                sent.0.is_err() && connection.progress().is_err(),
                "it goes on with a peer that is wrong"
            );
        }
        let mut room = [0; 4096];
        while there.read(&mut room).is_ok_and(|bytes| bytes > 0) {}
    }
    drop(there);
    // Its peer would call again.
    connection.session.lock().expect("not poisoned").patience = Duration::ZERO;
    let mut rounds = 0;
    while let Ok(PeerState::Open) = connection.progress() {
        rounds += 1;
        assert!(rounds < 100, "the end of the stream is not noticed");
    }
}

#[test]
fn frames_land_in_the_mailbox_or_are_refused() {
    let word = Word { acknowledged: 0, credit: Some(Ready { value: 1, tag: 0 }) };
    let put = |fill, offset, bytes: &[u8], ready: Option<u64>| {
        let ready = ready.map(|value| Ready { value, tag: 5 });
        let fragment = Fragment { fill, index: 0, count: 1, offset, bytes: bytes.len(), ready };
        [&Header::Fragment(fragment, word).write()[..], bytes].concat()
    };
    let fence = Header::Fence(Path { number: 0, epoch: 1 }, 2, 1).write();
    let originals = vec![
        vec![put(0, 0, &[1; 100], Some(1)), put(1, 0, &[], Some(2)), Header::Word(word).write().to_vec()],
        vec![
            [put(0, 900, &[1; 100], None), put(1, 0, &[2; 8], Some(u64::MAX))].concat(),
            Header::End(2, word).write().to_vec(),
        ],
        vec![put(1, 0, &[], Some(7)), put(0, 0, &[3; 40], None), put(0, 0, &[3; 40], None)],
        vec![fence.to_vec(), vec![1; 8]],
        vec![put(0, 0, &[3; 999], None)[..HEADER_BYTES].to_vec(), vec![3; 998], vec![4]],
    ];
    fuzz(&STREAM, originals, stream);
}

/// Two honest endpoints and what is sent to them from aside.
fn callers(input: &Input, seen: &mut Seen) {
    let tcp = tcp();
    let layout = Layout::new(64);
    let (one, two) = (tcp.endpoint(layout).expect("endpoint"), tcp.endpoint(layout).expect("endpoint"));
    let places = [&one, &two].map(|endpoint| Place::decode(&endpoint.address().bytes).expect("a place"));
    let here = places[0].sockets[0];
    let mut callers: Vec<TcpStream> = Vec::new();
    let call = |callers: &mut Vec<TcpStream>, bytes: &[u8]| {
        let Ok(mut stream) = TcpStream::connect(here) else { return };
        // Closed at once, so that thousands of them do not use up the ports.
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        nix::sys::socket::setsockopt(&stream, nix::sys::socket::sockopt::Linger, &linger).expect("linger");
        let _ = stream.write(bytes);
        callers.push(stream);
    };
    for piece in input.iter().take(32) {
        let [what, bytes @ ..] = piece.as_slice() else { continue };
        match what % 6 {
            0 | 1 => call(&mut callers, bytes),
            // A hello that is right but for the nonces.
            2 => {
                let nonce =
                    |at: usize| std::array::from_fn(|byte| bytes.get(at + byte).copied().unwrap_or(0));
                let callee = if what & 64 == 0 { places[usize::from(what >> 7)].nonce } else { nonce(16) };
                call(
                    &mut callers,
                    &Key::new(KEY).hello(&Meeting {
                        caller: nonce(0),
                        callee,
                        path: Path { number: what >> 3 & 1, epoch: 1 },
                    }),
                );
            }
            3 => drop(callers.pop()),
            // A made-up address. What is not there is the only thing that is called: port 1 of this machine.
            4 | 5 => {
                let mut address = Address { transport: "tcp".into(), bytes: bytes.to_vec() };
                if let Some(place) = address.bytes.first_chunk_mut::<18>() {
                    let v4 = Ipv4Addr::LOCALHOST.to_ipv6_mapped();
                    let local = if place[0] % 2 == 0 { v4 } else { Ipv6Addr::LOCALHOST };
                    place[..16].copy_from_slice(&local.octets());
                    place[16..].copy_from_slice(&1u16.to_le_bytes());
                }
                match tcp.endpoint(layout).expect("endpoint").connect(&address) {
                    Err(error) => seen.note_text(&error.to_string()),
                    Ok(mut connecting) => {
                        for _ in 0..3 {
                            match connecting.poll() {
                                Ok(Poll::Pending) => {}
                                Ok(Poll::Ready(_)) => panic!("connected without a peer"),
                                Err(error) => {
                                    seen.note_text(&error.to_string());
                                    break;
                                }
                            }
                        }
                    }
                }
            }
            _ => unreachable!(),
        }
        tcp.shared.watcher().serve();
        seen.note((what % 6, callers.len()));
    }
    let addresses = [one.address().clone(), two.address().clone()];
    let mut sides =
        [one.connect(&addresses[1]).expect("connect"), two.connect(&addresses[0]).expect("connect")];
    let mut up: [Option<Box<dyn Connection>>; 2] = [None, None];
    let begun = Instant::now();
    while up.iter().any(Option::is_none) {
        for (side, up) in sides.iter_mut().zip(&mut up).filter(|(_, up)| up.is_none()) {
            if let Poll::Ready(connection) = side.poll().expect("honest endpoints find each other") {
                *up = Some(connection);
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "honest endpoints do not find each other");
    }
    for stream in &mut callers {
        stream.set_nonblocking(true).expect("nonblocking");
        let mut answer = [0; 256];
        seen.note(stream.read(&mut answer).map_err(|error| error.kind()));
    }
}

#[test]
fn callers_and_addresses_break_nothing_and_keep_nobody_out() {
    let key = Key::new(KEY);
    let meeting = Meeting { caller: [1; 16], callee: [2; 16], path: Path { number: 0, epoch: 1 } };
    let address =
        Place { sockets: vec![([127, 0, 0, 1], 1).into()], nonce: [0; 16], mailbox_bytes: 64 }.encode();
    let originals = vec![
        vec![[&[0][..], &key.hello(&meeting)].concat()],
        vec![[&[2][..], &[1; 32]].concat(), vec![3]],
        vec![[&[130][..], &[1; 32]].concat(), [&[66][..], &[1; 32]].concat()],
        vec![[&[4][..], &address].concat()],
        vec![[&[4][..], &[255; 42]].concat(), vec![0; HELLO_BYTES]],
        vec![vec![0], vec![0, b'G', b'E', b'T'], vec![3]],
    ];
    fuzz(&HANDSHAKE, originals, callers);
}

/// The side that answers a call says whatever it likes.
fn answers(input: &Input, seen: &mut Seen) {
    static LISTENER: OnceLock<TcpListener> = OnceLock::new();
    let listener = LISTENER.get_or_init(|| {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
        listener.set_nonblocking(true).expect("nonblocking");
        listener
    });
    let socket = listener.local_addr().expect("address");
    let endpoint = shared().endpoint(Layout::new(64)).expect("endpoint");
    let own = Place::decode(&endpoint.address().bytes).expect("a place").nonce;
    let place = Place { sockets: vec![socket], nonce: [255; 16], mailbox_bytes: u64::MAX };
    let mut connecting =
        endpoint.connect(&Address { transport: "tcp".into(), bytes: place.encode() }).expect("connect");
    let (mut called, begun, mut epoch) = (Vec::new(), Instant::now(), 0);
    let (mut pieces, mut turns) = (input.iter(), 0);
    let outcome = loop {
        match connecting.poll() {
            Ok(Poll::Ready(connection)) => break Ok(connection.remote().bytes),
            Err(error) => break Err(error.to_string()),
            Ok(Poll::Pending) => {}
        }
        if let Ok((mut stream, _)) = listener.accept() {
            epoch += 1;
            let path = Path { number: 0, epoch };
            let linger = libc::linger { l_onoff: 1, l_linger: 0 };
            nix::sys::socket::setsockopt(&stream, nix::sys::socket::sockopt::Linger, &linger)
                .expect("linger");
            match pieces.next().map(Vec::as_slice) {
                Some([what, rest @ ..]) => {
                    let mut answer = Key::new(KEY).answer(
                        if what & 1 == 0 { Verdict::Welcome } else { Verdict::Gone },
                        &Meeting { caller: own, callee: [255; 16], path },
                    );
                    if what & 2 != 0 {
                        answer.truncate(rest.len().min(answer.len()));
                        answer.iter_mut().zip(rest).for_each(|(byte, other)| *byte ^= other);
                    }
                    if what & 4 == 0 {
                        answer.extend_from_slice(rest);
                    }
                    let _ = stream.write(&answer);
                    if what & 8 == 0 {
                        called.push(stream);
                    }
                }
                _ => drop(stream),
            }
        } else {
            // Who is given no answer waits until the engine's patience ends.
            turns += 1;
            if turns > 50 {
                called.clear();
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "a caller does not give up");
    };
    match outcome {
        Ok(bytes) => seen.note(bytes),
        Err(text) => seen.note_text(&text),
    }
    seen.note(called.len());
}

#[test]
fn whatever_answers_a_call_is_refused_or_the_peer() {
    let target = Target {
        name: "tcp-answer",
        command: "-p consort-transports --lib tcp::fuzz::whatever",
        bytes_max: 256 << 10,
        inputs: 2_000,
    };
    let originals =
        vec![vec![vec![0]], vec![vec![1]], vec![vec![2]; 5], vec![[&[2][..], &[1; 40]].concat()], vec![]];
    fuzz(&target, originals, answers);
}
