//! Hostile ends: callers at a root at which honest ranks join, and a root that says anything to a rank.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::rc::Rc;

use consort_transports::fuzzing::{Input, Seen, Target, fuzz};

use super::*;
use crate::bootstrap::relay::{Referral, Spread};
use crate::bootstrap::{Dial, Joined};
use crate::handshake::Claim;
use crate::proof::digest;

/// Fifty-odd connections of a frame each (a hello's bound, in a buffer that grows by doubling); an input has 32 KiB;
/// and the network's own bytes, each with its time (24 bytes).
const ROOT: Target = Target {
    name: "bootstrap-root",
    command: "-p consort-control --lib bootstrap::tests::simulated::fuzz::callers",
    bytes_max: 4 << 20,
    inputs: 3_000,
};

/// A frame of the longest kind as it comes in, what it becomes (a range of ranks becomes each of them: 256 KiB), and the text
/// of an error.
const JOINER: Target = Target {
    name: "bootstrap-joiner",
    command: "-p consort-control --lib bootstrap::tests::simulated::fuzz::whatever",
    bytes_max: 4 << 20,
    inputs: 20_000,
};

/// A hostile caller's connection, and its key once it has proved the secret.
struct Caller {
    pipe: Pipe,
    key: Option<[u8; 32]>,
}

impl World {
    /// Lets so much time go by.
    fn pass(&mut self, time: Duration) {
        let until = self.network.now() + time;
        while self.network.now() < until {
            self.settle();
            let next = self.wanted().map_or(until, |next| next.min(until));
            self.network.advance(Some(next));
        }
        self.settle();
    }
}

fn prove_it(world: &mut World, caller: &mut Caller) -> bool {
    let mut handshake = super::Caller::new(world.id.secret.0, world.id.job);
    let mut frames = Frames::default();
    for _ in 0..400 {
        match handshake.poll(&mut frames, &mut caller.pipe) {
            Poll::Pending => world.pass(Duration::from_millis(1)),
            Poll::Ready(key) => {
                caller.key = key.ok();
                break;
            }
        }
    }
    caller.key.is_some()
}

fn say_all(world: &mut World, caller: &mut Caller, mut bytes: &[u8]) {
    for _ in 0..2000 {
        match caller.pipe.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => world.pass(Duration::from_micros(200)),
            Err(_) => return,
        }
        if bytes.is_empty() {
            return;
        }
    }
}

/// What it does, on which connection, and bytes.
fn root(input: &Input, seen: &mut Seen) {
    let network = Network::new(input.concat().len() as u64, vec![Plan::default(); 3]);
    let begun = network.now();
    let id = UniqueId::known(&["10.0.0.1:4".parse().unwrap()], [7; 32], 1, false);
    let gathering = Some(Gathering::new(&id, Vec::new(), Limits { unproved_max: 4, ..Limits::default() }));
    let process = |rank: usize| Process {
        hello: hello(rank as u32, 2),
        start: begun + Duration::from_millis(2),
        timeout: PATIENT,
        dies: None,
        doomed: false,
        joiner: None,
        dialler: Dialler { network: network.clone(), rank },
        answer: None,
        over: false,
    };
    let processes = vec![process(0), process(1)];
    let mut world =
        World { network: network.clone(), noise: Random::new(3), id, gathering, stop_at: None, processes };
    let mut dialler = Dialler { network, rank: 2 };
    let mut callers: Vec<Caller> = Vec::new();
    let mut proved = false;
    for piece in input.iter().take(50) {
        let [what, which, bytes @ ..] = piece.as_slice() else { continue };
        let at = usize::from(*which).min(callers.len().saturating_sub(1));
        match what % 8 {
            0 => {
                if let Ok(pipe) = dialler.dial("10.0.0.1:4".parse().unwrap()) {
                    callers.push(Caller { pipe, key: None });
                }
            }
            1 | 2 if at < callers.len() => say_all(&mut world, &mut callers[at], bytes),
            3 if at < callers.len() => proved |= prove_it(&mut world, &mut callers[at]),
            4 | 5 if at < callers.len() => {
                if let Some(key) = callers[at].key {
                    let code = prove(&key, "hello", &[bytes]);
                    say_all(&mut world, &mut callers[at], &frame(kind::HELLO, &[&code, bytes]));
                }
            }
            6 if at < callers.len() => drop(callers.swap_remove(at)),
            _ => world.pass(Duration::from_millis(u64::from(*which))),
        }
        world.pass(Duration::from_micros(100));
        let there = world.gathering.as_ref().map(|gathering| gathering.connections().len());
        seen.note((what % 8, there, proved, world.processes[0].over));
    }
    world.run(|world| world.processes.iter().all(|process| process.over));
    for process in &world.processes {
        match process.answer.as_ref().expect("an answer") {
            Ok(Joined::Whole(table)) => assert_eq!(table.members.len(), 2),
            Ok(Joined::Elsewhere(_)) => panic!("a job of two ranks"),
            Err(error) => {
                assert!(proved, "strangers kept a rank out: {error}");
                seen.note_text(&error.to_string());
            }
        }
    }
    drop(callers);
    let now = world.network.now();
    world.stop_at = Some(now);
    world.run(|world| world.gathering.is_none());
    assert!(world.network.now() <= now + Limits::default().flush, "the root does not end");
}

#[test]
fn callers_of_a_root_leave_honest_ranks_one_answer() {
    let said = |rank, size| wire::encode_hello(&hello(rank, size), LONG).unwrap();
    let event = |head: [u8; 2], bytes: &[u8]| [&head[..], bytes].concat();
    let dialled = vec![event([0, 0], &[]), event([7, 3], &[])];
    let proved = [dialled.clone(), vec![event([3, 0], &[])]].concat();
    let claim = marked(&(1u64, [2; 32], [3; 32]));
    let mut foreign = said(1, 2);
    foreign[0] = 9;
    let mut originals = vec![
        vec![vec![7, 1]],
        [dialled.clone(), vec![event([1, 0], &frame(kind::CLAIM, &[&claim]))]].concat(),
        [dialled.clone(), vec![event([1, 0], b"GET / HTTP/1.1\r\n\r\n"), vec![6, 0]]].concat(),
        [dialled.clone(), vec![event([1, 0], &[255; 64])]].concat(),
        vec![vec![0, 0]; 12],
    ];
    for body in [said(0, 2), said(1, 2), said(1, 3), said(5, 70), foreign, vec![0; 40]] {
        originals.push([proved.clone(), vec![event([4, 0], &body)]].concat());
        originals.push([proved.clone(), vec![event([4, 0], &body), vec![7, 200], vec![6, 0]]].concat());
    }
    fuzz(&ROOT, originals, root);
}

/// A root that says what a script says.
struct Script {
    pieces: VecDeque<Vec<u8>>,
    ready: VecDeque<u8>,
    heard: Vec<u8>,
    nonce: [u8; 32],
    secret: [u8; 32],
    closed: bool,
    /// Whether it knew the secret.
    proved: bool,
}

const CHALLENGE: [u8; 32] = [1; 32];

impl Script {
    /// Says the next piece.
    fn step(&mut self) -> bool {
        let Some(piece) = self.pieces.pop_front() else { return false };
        let [what, bytes @ ..] = piece.as_slice() else { return true };
        if let Progress::Frame(kind::CLAIM, payload) =
            Incoming::default().read(&mut self.heard.as_slice(), |_| Some(HELLO_MAX))
            && let Ok((_, nonce, _)) = unmarked::<Claim<u64>>(&payload)
        {
            self.nonce = nonce;
        }
        let key = prove(&self.secret, "connection", &[&CHALLENGE, &self.nonce]);
        let signed = |kind, label: &str| frame(kind, &[&prove(&key, label, &[&digest(bytes)]), bytes]);
        self.ready.extend(match what % 9 {
            0 => bytes.to_vec(),
            1 => frame(kind::GREETING, &[&marked(&CHALLENGE)]),
            2 => {
                self.proved = true;
                frame(kind::ACCEPT, &[&prove(&self.secret, "root", &[&self.nonce, &CHALLENGE])])
            }
            3 => signed(kind::TABLE, "table"),
            4 => signed(kind::FAILURE, "failure"),
            5 => frame(bytes.first().copied().unwrap_or(0), &[bytes]),
            6 => {
                self.closed = true;
                Vec::new()
            }
            7 => frame(kind::REFUSAL, &[&[0]]),
            _ => signed(kind::REFERRAL, "referral"),
        });
        true
    }
}

/// All connections to one.
struct Root {
    connections: VecDeque<Rc<RefCell<Script>>>,
    connected: bool,
}

struct Line(Rc<RefCell<Script>>);

impl Read for Line {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let script = &mut *self.0.borrow_mut();
        if script.ready.is_empty() && !script.closed && !script.step() {
            return Err(ErrorKind::WouldBlock.into());
        }
        match script.ready.read(into) {
            Ok(0) if !script.closed => Err(ErrorKind::WouldBlock.into()),
            read => read,
        }
    }
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.borrow_mut().heard.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Dial for Root {
    type Stream = Line;

    fn dial(&mut self, _: SocketAddr) -> std::io::Result<Line> {
        self.connections.pop_front().map(Line).ok_or(ErrorKind::ConnectionRefused.into())
    }

    fn connected(&mut self, _: &mut Line) -> Poll<std::io::Result<()>> {
        if self.connected { Poll::Ready(Ok(())) } else { Poll::Pending }
    }
}

fn joiner(input: &Input, seen: &mut Seen) {
    let id = UniqueId::known(&["10.0.0.1:4".parse().unwrap()], [7; 32], 1, input.len().is_multiple_of(2));
    // An empty piece ends a connection.
    let connections: Vec<Rc<RefCell<Script>>> = input
        .split(|piece| piece.is_empty())
        .map(|pieces| {
            let pieces = pieces.iter().cloned().collect();
            let (ready, heard) = (VecDeque::new(), Vec::new());
            let (nonce, secret) = ([0; 32], id.secret.0);
            Rc::new(RefCell::new(Script {
                pieces,
                ready,
                heard,
                nonce,
                secret,
                closed: false,
                proved: false,
            }))
        })
        .collect();
    let mut root = Root { connections: connections.iter().cloned().collect(), connected: true };
    let begun = Instant::now();
    let (mut now, timeout) = (begun, Duration::from_secs(20));
    let mut joiner = Joiner::new(&id, hello(1, 3), timeout, now).unwrap();
    let mut turns = 0;
    let answer = loop {
        if let Poll::Ready(answer) = joiner.poll(&mut root, now) {
            break answer;
        }
        turns += 1;
        assert!(turns < 20_000, "a rank is busy for ever");
        let until = joiner.until().expect("a rank that waits knows until when");
        // Half of the time something is there to read at once.
        now = if turns % 2 == 0 { until.max(now) } else { now + Duration::from_millis(1) };
        assert!(now <= begun + timeout + VERDICT_GRACE + Duration::from_millis(5), "late");
    };
    let proved = connections.iter().any(|connection| connection.borrow().proved);
    match answer {
        Ok(table) => {
            assert!(proved);
            seen.note(match table {
                Joined::Whole(table) => {
                    assert_eq!(table.members.len(), 3);
                    0
                }
                Joined::Elsewhere(reference) => {
                    assert!(reference.sources.iter().all(|(rank, _)| *rank < 3));
                    reference.sources.len()
                }
            });
        }
        Err(error) => {
            assert!(proved || !decided(&error), "a stranger decided: {error}");
            // What it heard may be any text; what it found itself is one of a few.
            if !proved {
                seen.note_text(error.to_string().split("s (").last().unwrap_or_default());
            }
            seen.note(error.to_string().split("wrongly: ").nth(1).map(str::to_owned));
            seen.note((std::mem::discriminant(&error), format!("{error:?}").len().ilog2()));
        }
    }
}

#[test]
fn whatever_a_root_says_a_rank_has_an_answer_by_its_deadline() {
    let members = [member(0), member(1), member(2)];
    let said = |what: u8, bytes: &[u8]| [&[what], bytes].concat();
    let known = vec![said(1, &[]), said(2, &[])];
    let table = said(3, &wire::encode_table(&[5; 32], Spread::default(), members.iter()));
    let sources =
        members[..2].iter().enumerate().map(|(rank, member)| (rank as u32, member.clone())).collect();
    let referral = said(8, &Referral { nonce: [5; 32], digest: [6; 32], sources }.encode());
    let mut originals = vec![
        [known.clone(), vec![table.clone()]].concat(),
        [known.clone(), vec![referral]].concat(),
        vec![said(1, &[]), said(0, &[4; 40])],
        vec![
            said(0, &[0xff; 9]),
            vec![],
            said(1, &[]),
            said(7, &[]),
            vec![],
            said(1, &[]),
            said(2, &[]),
            table,
        ],
        vec![said(6, &[]), vec![], said(1, &[]), said(6, &[])],
        [known.clone(), vec![said(5, &[kind::TABLE]), said(6, &[])]].concat(),
    ];
    for error in super::super::fuzz::errors() {
        originals.push([known.clone(), vec![said(4, &bytes_of(&error))]].concat());
    }
    fuzz(&JOINER, originals, joiner);
}
