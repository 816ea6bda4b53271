//! Whole jobs: each node sends to each, in slots with credits, and tells the first node something over a stream;
//! all look only when the network says so.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use consort_transports::simnet::{Dialling, Stream};
use consort_transports::{PeerState, TransportError};

use super::*;

const SLOTS: u64 = 4;

#[derive(Clone, Copy, Debug)]
struct Shape {
    nodes: u32,
    messages: u64,
    slot_bytes: usize,
}

/// One side of one connection.
struct Link {
    from: Node,
    to: Node,
    connecting: Option<Box<dyn Connecting>>,
    side: Option<Side>,
    shape: Shape,
    sent: u64,
    /// The message that is being put; empty before it is made.
    data: Vec<u8>,
    /// Which part of it is being put, and how much of that has been.
    part: usize,
    done: usize,
    received: u64,
    credited: u64,
    is_broken: bool,
}

fn message(shape: Shape, from: Node, to: Node, number: u64) -> Vec<u8> {
    let mut random = Random(u64::from(from.0) << 40 | u64::from(to.0) << 20 | number);
    let bytes = 1 + random.below(shape.slot_bytes);
    random.bytes(bytes)
}

impl Link {
    /// Whether anything went on.
    fn step(&mut self) -> Result<bool, TransportError> {
        let Some(side) = &mut self.side else {
            match self.connecting.as_mut().map(|connecting| connecting.poll()).transpose()? {
                Some(Poll::Ready(side)) => (self.side, self.connecting) = (Some(side), None),
                _ => return Ok(false),
            }
            return Ok(true);
        };
        let shape = self.shape;
        let mut moved = false;
        let state = side.progress()?;
        if self.sent < shape.messages && self.sent - side.counter(CounterKind::Credit).value() < SLOTS {
            if self.data.is_empty() {
                self.data = message(shape, self.from, self.to, self.sent + 1);
            }
            let slot = (self.sent % SLOTS) as usize * shape.slot_bytes;
            let middle = self.data.len() / 2;
            let parts = [(0, &self.data[..middle]), (middle, &self.data[middle..])];
            while let Some((offset, part)) = parts.get(self.part) {
                let before = self.done;
                let taken = side.put(slot + offset, Span::of(part), &mut self.done)?;
                moved |= self.done > before;
                if taken.is_pending() {
                    break;
                }
                (self.part, self.done) = (self.part + 1, 0);
            }
            if self.part == parts.len() {
                let tag = self.data.len() as u64;
                if side.signal(CounterKind::Ready, self.sent + 1, tag)?.is_ready() {
                    (self.sent, self.part, moved) = (self.sent + 1, 0, true);
                    self.data.clear();
                }
            }
        }
        while self.received < side.counter(CounterKind::Ready).value() {
            self.received += 1;
            let expected = message(shape, self.to, self.from, self.received);
            assert_eq!(side.counter(CounterKind::Ready).tag(self.received), expected.len() as u64);
            let slot = ((self.received - 1) % SLOTS) as usize * shape.slot_bytes;
            assert!(read(side, slot, expected.len()) == expected, "message {}", self.received);
            moved = true;
        }
        if self.credited < self.received && side.signal(CounterKind::Credit, self.received, 0)?.is_ready() {
            (self.credited, moved) = (self.received, true);
        }
        match state {
            PeerState::Open => Ok(moved),
            PeerState::Closed => Err(TransportError::PeerClosed { transport: "simnet" }),
        }
    }

    fn breaks(&mut self) -> bool {
        self.is_broken = true;
        false
    }

    fn is_done(&self) -> bool {
        let messages = self.shape.messages;
        self.sent == messages && self.received == messages && self.credited == messages
    }
}

/// What a node tells the first one.
const TALE_BYTES: usize = 100_000;

fn tale(node: Node) -> Vec<u8> {
    nonzero(u64::from(node.0), TALE_BYTES)
}

fn front_desk() -> SocketAddr {
    "10.0.0.0:4000".parse().expect("address")
}

/// A node's stream to the first, or the first's from a node.
#[derive(Default)]
struct Talk {
    dialling: Option<Dialling>,
    stream: Option<Stream>,
    bytes: Vec<u8>,
    /// Written or read.
    moved: usize,
    is_broken: bool,
}

impl Talk {
    fn step(&mut self) -> std::io::Result<()> {
        if let Some(dialling) = &mut self.dialling {
            let Poll::Ready(stream) = dialling.poll() else { return Ok(()) };
            (self.stream, self.dialling) = (Some(stream?), None);
        }
        let Some(stream) = &mut self.stream else { return Ok(()) };
        while self.moved < self.bytes.len() {
            self.moved += stream.write(&self.bytes[self.moved..])?;
        }
        Ok(())
    }

    fn listen(&mut self) -> std::io::Result<()> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        let mut buffer = [0; 5000];
        while self.moved < TALE_BYTES {
            let got = stream.read(&mut buffer)?;
            if got == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            assert!(self.bytes[self.moved..self.moved + got] == buffer[..got]);
            self.moved += got;
        }
        Ok(())
    }
}

fn note(outcome: std::io::Result<()>) -> bool {
    outcome.is_err_and(|error| error.kind() != ErrorKind::WouldBlock)
}

type Fault = Box<dyn Fn(&Network)>;
type Faults = BTreeMap<Duration, Vec<Fault>>;

struct Job {
    network: Network,
    links: Vec<Vec<Link>>,
    tellers: Vec<Talk>,
    heard: Vec<Talk>,
}

impl Job {
    fn new(seed: u64, shape: Shape) -> Self {
        let network = network(seed);
        network.listen(Node(0), front_desk());
        let mut links: Vec<Vec<Link>> = (0..shape.nodes).map(|_| Vec::new()).collect();
        for low in 0..shape.nodes {
            for high in low + 1..shape.nodes {
                let both = [Node(low), Node(high)];
                let connecting = start(&network, both, shape.slot_bytes * SLOTS as usize);
                for (which, connecting) in connecting.into_iter().enumerate() {
                    links[both[which].0 as usize].push(Link {
                        from: both[which],
                        to: both[1 - which],
                        connecting: Some(connecting),
                        side: None,
                        shape,
                        sent: 0,
                        data: Vec::new(),
                        part: 0,
                        done: 0,
                        received: 0,
                        credited: 0,
                        is_broken: false,
                    });
                }
            }
        }
        let teller = |node: u32| Talk {
            dialling: (node > 0).then(|| network.dial(Node(node), front_desk())),
            bytes: if node > 0 { tale(Node(node)) } else { Vec::new() },
            ..Talk::default()
        };
        let tellers = (0..shape.nodes).map(teller).collect();
        Self { network, links, tellers, heard: Vec::new() }
    }

    fn run(&mut self, node: Node) {
        let at = node.0 as usize;
        for link in self.links[at].iter_mut().filter(|link| !link.is_broken) {
            while !link.is_broken && link.step().unwrap_or_else(|_| link.breaks()) {}
        }
        let teller = &mut self.tellers[at];
        teller.is_broken = teller.is_broken || note(teller.step());
        if at == 0 {
            while let Some((stream, _, _)) = self.network.accept(node) {
                let bytes = tale(stream.peer_node());
                self.heard.push(Talk { stream: Some(stream), bytes, ..Talk::default() });
            }
            for talk in self.heard.iter_mut().filter(|talk| !talk.is_broken) {
                talk.is_broken = note(talk.listen());
            }
        }
    }

    fn is_done(&self, node: Node) -> bool {
        let at = node.0 as usize;
        let has_heard = |talk: &Talk| talk.moved == TALE_BYTES;
        let is_told = self.heard.len() + 1 == self.links.len() && self.heard.iter().all(has_heard);
        self.links[at].iter().all(Link::is_done) && (at > 0 || is_told)
    }
}

/// How it went; `broken` is 0 when everything arrived.
#[derive(Debug, PartialEq)]
struct Run {
    trace: u64,
    took: Duration,
    broken: usize,
}

/// Runs it with these faults until all are done, or nothing happens any more.
fn job(seed: u64, shape: Shape, mut faults: Faults) -> Run {
    let mut job = Job::new(seed, shape);
    let network = job.network.clone();
    let mut is_done = vec![false; shape.nodes as usize];
    while !is_done.iter().all(|done| *done) {
        let due = faults.first_key_value().map(|(at, _)| *at);
        let Some(next) = [network.next(), due].into_iter().flatten().min() else { break };
        let touched = network.advance(next);
        while let Some(fault) = faults.first_entry().filter(|fault| *fault.key() <= next) {
            fault.remove().iter().for_each(|fault| fault(&network));
        }
        for node in touched {
            job.run(node);
            is_done[node.0 as usize] = job.is_done(node);
        }
    }
    let broken = job.links.iter().flatten().filter(|link| link.is_broken).count()
        + job.tellers.iter().chain(&job.heard).filter(|talk| talk.is_broken).count();
    let is_complete = is_done.iter().all(|done| *done);
    let took = network.now();
    drop(job);
    network.heal();
    settle(&network);
    assert_eq!((network.open_endpoints(), network.open_streams(), network.in_flight()), (0, 0, 0));
    let broken = if is_complete { broken } else { broken.max(1) };
    Run { trace: network.trace_hash(), took, broken }
}

/// Cuts, partitions, stops and lost links; each of them ends.
fn random_faults(seed: u64, nodes: u32) -> Faults {
    let mut random = Random(seed ^ 0xfa17);
    let mut faults: Faults = BTreeMap::new();
    for _ in 0..random.below(8) {
        let a = Node(random.below(nodes as usize) as u32);
        let b = Node(random.below(nodes as usize) as u32);
        let at = Duration::from_micros(random.below(1500) as u64);
        let lasts = Duration::from_micros(random.below(3000) as u64);
        let (begin, end): (Fault, Fault) = match random.below(5) {
            0 => (Box::new(move |network| network.cut(a, b)), Box::new(Network::heal)),
            1 => (Box::new(move |network| network.partition(&[a])), Box::new(Network::heal)),
            2 => (Box::new(move |network| network.freeze(a)), Box::new(move |network| network.thaw(a))),
            _ => (
                Box::new(move |network| network.remake(a, b, lasts)),
                Box::new(move |network| network.remake(a, b, Duration::ZERO)),
            ),
        };
        faults.entry(at).or_default().push(begin);
        faults.entry(at + lasts).or_default().push(end);
    }
    faults
}

/// Deaths, resets and black holes on top.
fn lossy_faults(seed: u64, nodes: u32) -> Faults {
    let mut faults = random_faults(seed, nodes);
    let mut random = Random(seed ^ 0x1055);
    for _ in 0..1 + random.below(2) {
        let a = Node(random.below(nodes as usize) as u32);
        let b = Node(random.below(nodes as usize) as u32);
        let fault: Fault = match random.below(3) {
            0 => Box::new(move |network| network.kill(a)),
            1 => Box::new(move |network| network.reset(a, b)),
            _ => Box::new(move |network| network.blackhole_data(a, b)),
        };
        faults.entry(Duration::from_micros(random.below(1500) as u64)).or_default().push(fault);
    }
    faults
}

fn shape(seed: u64) -> Shape {
    let mut random = Random(seed);
    Shape {
        nodes: 2 + random.below(4) as u32,
        messages: 1 + random.below(12) as u64,
        slot_bytes: 1 + random.below(3000),
    }
}

#[test]
fn the_same_seed_gives_the_same_run_and_no_message_is_lost() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..200 {
        println!("seed {seed}");
        let run = || job(seed, shape(seed), random_faults(seed, shape(seed).nodes));
        let first = run();
        assert_eq!(first, run());
        assert_eq!(first.broken, 0);
        assert!(seen.insert(first.trace), "two seeds gave the same run");
    }
}

#[test]
fn runs_that_break_are_repeated_as_well() {
    let mut broken = 0;
    for seed in 0..200 {
        println!("seed {seed}");
        let run = || job(seed, shape(seed), lossy_faults(seed, shape(seed).nodes));
        let first = run();
        assert_eq!(first, run());
        broken += usize::from(first.broken > 0);
    }
    assert!(broken > 50, "{broken} of 200");
}

#[test]
fn large_messages_arrive_under_faults() {
    for seed in 0..10 {
        println!("seed {seed}");
        let shape = Shape { nodes: 3, messages: 10, slot_bytes: 300_000 };
        assert_eq!(job(seed, shape, random_faults(seed, 3)).broken, 0);
    }
}

#[test]
fn only_the_seed_decides() {
    let shape = Shape { nodes: 3, messages: 5, slot_bytes: 1000 };
    let [one, other] = [1, 2].map(|seed| job(seed, shape, Faults::new()));
    assert_ne!(one.trace, other.trace);
    assert_eq!(one, job(1, shape, Faults::new()));
}

#[test]
fn a_fault_takes_time() {
    let shape = Shape { nodes: 2, messages: 10, slot_bytes: 1000 };
    let outage = Duration::from_millis(7);
    let at = Duration::from_micros(300);
    let undisturbed = job(3, shape, Faults::new()).took;
    assert!(undisturbed > at && undisturbed < outage, "{undisturbed:?}");
    let once = |fault: Fault| Faults::from([(at, vec![fault])]);
    assert!(job(3, shape, once(Box::new(move |network| network.remake(A, B, outage)))).took > at + outage);
    let mut cut = once(Box::new(|network| network.cut(A, B)));
    cut.insert(at + outage, vec![Box::new(Network::heal)]);
    assert!(job(3, shape, cut).took > at + outage);
    let mut stop = once(Box::new(|network| network.freeze(B)));
    stop.insert(at + outage, vec![Box::new(|network| network.thaw(B))]);
    assert!(job(3, shape, stop).took > at + outage);
}

/// For the figures: `cargo test --release -p consort-transports --test transports simnet:: -- --ignored --nocapture`.
#[test]
#[ignore = "takes long"]
fn ten_thousand_runs() {
    let since = std::time::Instant::now();
    for seed in 0..10_000 {
        let run = job(seed, shape(seed), random_faults(seed, shape(seed).nodes));
        assert_eq!(run.broken, 0, "seed {seed}");
    }
    println!("10,000 small jobs: {:?}", since.elapsed());
    let since = std::time::Instant::now();
    job(1, Shape { nodes: 64, messages: 10, slot_bytes: 1000 }, Faults::new());
    println!("one job of 64 nodes, 40,320 messages: {:?}", since.elapsed());
}
