//! Strangers at the control listeners, and what an answerer may say to a rank that dials.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use nix::sys::epoll::{EpollEvent, EpollTimeout};

use consort_transports::fuzzing::{Input, Seen, Target, fuzz};

use super::{JOB, KEY, Shared, table};
use crate::frames::{Frames, Incoming, Progress, frame, kind};
use crate::handshake::{Caller, Claim, marked, unmarked};
use crate::membership::dial::{Subject, greet};
use crate::membership::link::{LinkState, RemoteLink, Stream};
use crate::membership::member::Member;
use crate::membership::process::{self, Source};
use crate::membership::wire::{self, FRAME_BYTES_MAX, Message};
use crate::membership::{accept, lock, thread};
use crate::proof::prove;
use crate::recorder::Snapshot;
use consort_types::Rank;

const SIZE: u32 = 3;

/// A stranger costs its buffer; a link the frame that is coming in (twice: buffers grow by doubling) and what one message
/// becomes, at most 64 times its bytes; an input has 32 KiB of them.
const BYTES_MAX: usize = 2 * FRAME_BYTES_MAX + (64 << 15) + (1 << 20);

const ACCEPTING: Target = Target {
    name: "control-accept",
    command: "-p consort-control --lib membership::fuzz::greeting::strangers",
    bytes_max: BYTES_MAX,
    inputs: 4_000,
};

const DIALLING: Target = Target {
    name: "control-dial",
    command: "-p consort-control --lib membership::fuzz::greeting::whatever",
    bytes_max: 1 << 20,
    inputs: 10_000,
};

fn subject(from: Rank, to: Rank) -> Subject {
    Subject { job: JOB, from, to }
}

/// One side of the listeners, with a rank of a job behind them, and no thread: the test takes its turns.
struct Listening {
    shared: Shared,
    member: Arc<Member>,
    name: SocketAddr,
    port: u16,
}

impl Listening {
    fn new() -> Self {
        let shared = process::Shared::new(None).expect("listeners");
        let name = SocketAddr::from_abstract_name(&shared.unix_name).expect("a name");
        let port = shared.tcp_addresses().expect("addresses")[0].port();
        let member = Member::new(&shared, JOB, KEY, 0, table(SIZE));
        shared.enlist(&member);
        Listening { shared, member, name, port }
    }

    fn call(&self, tcp: bool) -> Option<Stream> {
        let stream = if tcp {
            let stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
            // Closed at once, so that thousands of them do not use up the ports.
            nix::sys::socket::setsockopt(
                &stream,
                nix::sys::socket::sockopt::Linger,
                &nix::libc::linger { l_onoff: 1, l_linger: 0 },
            )
            .ok()?;
            Stream::Tcp(stream)
        } else {
            Stream::Unix(UnixStream::connect_addr(&self.name).ok()?)
        };
        stream.set_nonblocking(true).ok()?;
        Some(stream)
    }

    /// What the control thread does when something is readable.
    fn turn(&self) {
        accept::accept(&self.shared, true);
        accept::accept(&self.shared, false);
        let sources: Vec<(u64, Source)> = {
            let sources = lock(&self.shared.sources);
            sources.iter().map(|(key, source)| (*key, source.clone())).collect()
        };
        for (key, _) in sources {
            thread::handle(&self.shared, key, nix::sys::epoll::EpollFlags::EPOLLIN);
        }
        accept::expire(&self.shared);
    }

    fn sources(&self) -> usize {
        lock(&self.shared.sources).len()
    }
}

/// Calls as an honest rank does, in pieces so that the other side gets its turns.
fn honest(listening: &Listening, from: Rank, tcp: bool) {
    let stream = listening.call(tcp).expect("a connection");
    let (mut caller, mut frames) = (Caller::new(KEY, subject(from, 0)), Frames::default());
    let begun = Instant::now();
    loop {
        listening.turn();
        match caller.poll(&mut frames, &mut &stream) {
            Poll::Ready(key) => break assert!(key.is_ok(), "an honest rank is refused"),
            Poll::Pending => {
                assert!(begun.elapsed() < Duration::from_secs(15), "no answer to an honest rank");
            }
        }
    }
    let mut frame = Vec::new();
    wire::encode(1, &Message::Leave { snapshot: Snapshot::default() }, &mut frame);
    (&stream).write_all(&frame).expect("sent");
    while !listening.member.remote_links().iter().any(|link| link.peer == from) {
        listening.turn();
        assert!(begun.elapsed() < Duration::from_secs(15), "an honest rank is not linked");
    }
}

/// The first byte of a piece says what to do: bytes as they are, a right proof, a call, a turn.
fn strangers(input: &Input, seen: &mut Seen) {
    let listening = Listening::new();
    let mut streams: Vec<Stream> = Vec::new();
    for piece in input.iter().take(64) {
        let [what, bytes @ ..] = piece.as_slice() else { continue };
        match what % 6 {
            0 => streams.extend(listening.call(false)),
            1 => streams.extend(listening.call(true)),
            2 | 3 => {
                if let Some(mut stream) = streams.last() {
                    let sent = stream.write(bytes).is_ok();
                    seen.note(("sent", sent));
                }
            }
            // A claim whose proof is right, over the greeting that came.
            4 => {
                if let Some(mut stream) = streams.last() {
                    let from = bytes.first().map_or(2, |from| u32::from(*from) % (SIZE + 1));
                    let mut caller = Caller::new(KEY, subject(from, 0));
                    let answered = caller.poll(&mut Frames::default(), &mut stream);
                    seen.note(("answered", answered.map(|answer| answer.is_ok())));
                }
            }
            _ => drop(streams.pop()),
        }
        listening.turn();
        let linked = listening.member.remote_links().len();
        seen.note((what % 6, listening.sources().min(8), linked));
    }
    // Rank 1 is honest; unless a caller that knows the key said to be rank 1, it is linked.
    if !listening.member.remote_links().iter().any(|link| link.peer == 1) {
        honest(&listening, 1, input.len().is_multiple_of(2));
    }
    drop(streams);
    listening.turn();
    listening.turn();
    let open = listening.sources();
    assert!(open <= 2 + SIZE as usize, "{open} sources are left of strangers that went");
}

#[test]
fn strangers_at_the_control_listeners_break_nothing_and_leave_nothing() {
    let claim = |from, to| {
        let claim = marked(&(subject(from, to), [1; 32], [2; 32]));
        [vec![2], frame(kind::CLAIM, &[&claim])].concat()
    };
    let mut frames = vec![2];
    for message in wire::tests::samples() {
        wire::encode(u64::from_le_bytes([5; 8]), &message, &mut frames);
    }
    let originals = vec![
        vec![vec![0], vec![4, 2], frames.clone()],
        vec![vec![1], vec![4, 2], frames.clone()],
        vec![vec![0], claim(2, 0), frames.clone()],
        vec![vec![0], claim(2, 9), frames],
        vec![vec![0], vec![4, 3], vec![5]],
        vec![vec![1], vec![1], vec![0], vec![2, b'G', b'E', b'T', b' '], vec![5], vec![5]],
    ];
    fuzz(&ACCEPTING, originals, strangers);
}

fn greeting(challenge: [u8; 32]) -> Vec<u8> {
    frame(kind::GREETING, &[&marked(&challenge)])
}

#[test]
fn an_answerer_that_knows_the_key_is_believed() {
    for wrong in [0, 1] {
        let (here, mut there) = UnixStream::pair().expect("a pair");
        let answering = std::thread::spawn(move || {
            there.write_all(&greeting([1; 32])).expect("sent");
            let Progress::Frame(kind::CLAIM, claim) = Incoming::default().read(&mut there, |_| Some(256))
            else {
                panic!("a claim");
            };
            let (_, nonce, _): Claim<Subject> = unmarked(&claim).expect("a claim");
            let mut proof = prove(&KEY, "root", &[&nonce, &[1; 32]]);
            proof[31] ^= wrong;
            there.write_all(&frame(kind::ACCEPT, &[&proof])).expect("sent");
        });
        let (here, until) = (Stream::Unix(here), Instant::now() + Duration::from_secs(10));
        assert_eq!(greet(&here, subject(1, 0), &KEY, until.into()).is_ok(), wrong == 0);
        answering.join().expect("no panic");
    }
}

#[test]
fn whatever_answers_a_rank_that_dials_is_refused_unless_it_knows_the_key() {
    let originals = vec![
        vec![greeting([1; 32]), frame(kind::ACCEPT, &[&[0; 32]])],
        vec![greeting([1; 32]), frame(kind::REFUSAL, &[&[0]])],
        vec![vec![1]],
    ];
    fuzz(&DIALLING, originals, |input, seen| {
        let (here, mut there) = UnixStream::pair().expect("a pair");
        let answer = input.concat();
        let room = answer.len().min(4096);
        there.write_all(&answer[..room]).expect("sent");
        there.shutdown(std::net::Shutdown::Write).expect("shut");
        let (here, begun) = (Stream::Unix(here), Instant::now());
        let greeted = greet(&here, subject(1, 0), &KEY, (begun + Duration::from_secs(10)).into());
        seen.note(greeted.expect_err("no answer is right for every number").to_string());
        there.set_nonblocking(true).expect("nonblocking");
        let heard = there.read(&mut [0; 1024]).unwrap_or(0);
        // A claim says nothing but what it is about.
        assert!([0, 5 + 10 + 24 + 64].contains(&heard), "something was said to a stranger");
        drop(here);
    });
}

#[test]
fn an_answerer_that_drips_is_given_up_by_the_deadline() {
    let (here, mut there) = UnixStream::pair().expect("a pair");
    let dripping = std::thread::spawn(move || {
        // A greeting that would take minutes.
        for byte in greeting([1; 32]) {
            if there.write_all(&[byte]).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(3_000));
        }
    });
    let (here, begun) = (Stream::Unix(here), Instant::now());
    let greeted = greet(&here, subject(1, 0), &KEY, (begun + Duration::from_millis(200)).into());
    let error = greeted.expect_err("a greeting that is not whole");
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    drop(here);
    dripping.join().expect("no panic");
}

/// Strangers from the network, more than are heard at once; they say this. A rank calls after all of them.
fn crowd(listening: &Listening, claim: &[u8]) {
    let call = |_| {
        let stream = listening.call(true).expect("a connection");
        (&stream).write_all(claim).expect("sent");
        stream
    };
    // All at once, so that those which are heard came a moment ago when the rank does.
    let crowd: Vec<Stream> = (0..600).map(call).collect();
    honest(listening, 1, true);
    assert!(listening.sources() < 300, "{} strangers are heard at once", listening.sources());
    drop(crowd);
}

#[test]
fn strangers_that_say_nothing_keep_no_rank_out() {
    crowd(&Listening::new(), &[]);
}

#[test]
fn strangers_that_name_an_unknown_job_keep_no_rank_out() {
    let unknown = Subject { job: [9; 16], ..subject(1, 0) };
    let claim = marked(&(unknown, [1; 32], [2; 32]));
    crowd(&Listening::new(), &frame(kind::CLAIM, &[&claim]));
}

#[test]
fn a_crowd_that_hangs_up_leaves_the_listener_open() {
    let listening = Listening::new();
    // As the control thread does: by what epoll says alone, so that a listener that is masked is not looked at.
    let turn = || {
        let mut events = [EpollEvent::empty(); 64];
        let count = listening.shared.epoll.wait(&mut events, EpollTimeout::ZERO).expect("events");
        events[..count]
            .iter()
            .for_each(|event| thread::handle(&listening.shared, event.data(), event.events()));
        count != 0
    };
    let crowd: Vec<Stream> = (0..300).map(|_| listening.call(true).expect("a connection")).collect();
    while turn() {}
    assert!(listening.sources() < 300, "the listener takes all {} at once", listening.sources());
    drop(crowd);
    let stream = listening.call(true).expect("a connection");
    let (mut caller, mut frames) = (Caller::new(KEY, subject(1, 0)), Frames::default());
    let begun = Instant::now();
    while caller.poll(&mut frames, &mut &stream).is_pending() {
        turn();
        assert!(begun.elapsed() < Duration::from_secs(15), "no answer to a rank that calls after the crowd");
    }
}

#[test]
fn a_peer_that_never_stops_talking_gets_a_bounded_turn() {
    let listening = Listening::new();
    let (here, mut there) = UnixStream::pair().expect("a pair");
    there.set_nonblocking(true).expect("nonblocking");
    nix::sys::socket::setsockopt(&there, nix::sys::socket::sockopt::SndBuf, &(8 << 20)).expect("room");
    let link = RemoteLink::new(&listening.shared, &listening.member, 2, Stream::Unix(here)).expect("a link");
    // More than a turn reads, there at once.
    let mut frames = Vec::new();
    while frames.len() < 100_000 {
        wire::encode(99, &Message::Gather { round: 1, words: vec![1; 100] }, &mut frames);
    }
    let mut sent = 0;
    while let Ok(bytes) = there.write(&frames[sent % frames.len()..]) {
        sent += bytes;
    }
    if sent < 300_000 {
        eprintln!("SKIPPED: the system keeps no more than {sent} bytes of a socket");
        return;
    }
    assert_eq!(link.drain(), LinkState::Open);
    assert!(link.has_more(), "all of {sent} bytes were read in one turn");
    let mut turns = 1;
    while link.has_more() {
        assert_eq!(link.drain(), LinkState::Open);
        turns += 1;
    }
    assert!(turns >= sent / (512 << 10), "{sent} bytes in {turns} turns");
}
