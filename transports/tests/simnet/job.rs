//! Whole jobs: everybody sends to everybody, in slots with credits, and looks only when the network says so.

use std::collections::BTreeMap;
use std::time::Duration;

use consort_transports::PeerState;

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
    /// Which part of the message is being put, and how much of it has been.
    part: usize,
    done: usize,
    received: u64,
    credited: u64,
}

fn message(shape: Shape, from: Node, to: Node, number: u64) -> Vec<u8> {
    let mut random = Random(u64::from(from.0) << 40 | u64::from(to.0) << 20 | number);
    let bytes = 1 + random.below(shape.slot_bytes as u64) as usize;
    random.bytes(bytes)
}

impl Link {
    /// Whether anything went on.
    fn step(&mut self) -> bool {
        let Some(side) = &mut self.side else {
            match self.connecting.as_mut().map(|connecting| connecting.poll().expect("poll")) {
                Some(Poll::Ready(side)) => (self.side, self.connecting) = (Some(side), None),
                _ => return false,
            }
            return true;
        };
        let shape = self.shape;
        let mut moved = false;
        assert_eq!(side.progress().expect("progress"), PeerState::Open);
        if self.sent < shape.messages && self.sent - side.counter(CounterKind::Credit).value() < SLOTS {
            let data = message(shape, self.from, self.to, self.sent + 1);
            let slot = (self.sent % SLOTS) as usize * shape.slot_bytes;
            let middle = data.len() / 2;
            let parts = [(0, &data[..middle]), (middle, &data[middle..])];
            while let Some((offset, part)) = parts.get(self.part) {
                let before = self.done;
                let taken = side.put(slot + offset, Span::of(part), &mut self.done).expect("put");
                moved |= self.done > before;
                if taken.is_pending() {
                    break;
                }
                (self.part, self.done) = (self.part + 1, 0);
            }
            if self.part == parts.len() {
                let tag = data.len() as u64;
                if side.signal(CounterKind::Ready, self.sent + 1, tag).expect("signal").is_ready() {
                    (self.sent, self.part, moved) = (self.sent + 1, 0, true);
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
        if self.credited < self.received
            && side.signal(CounterKind::Credit, self.received, 0).expect("signal").is_ready()
        {
            (self.credited, moved) = (self.received, true);
        }
        moved
    }

    fn is_done(&self) -> bool {
        let messages = self.shape.messages;
        self.sent == messages && self.received == messages && self.credited == messages
    }
}

type Fault = Box<dyn Fn(&Network)>;

/// Runs it to the end with these faults. Gives the fingerprint and how long it took.
fn job(seed: u64, shape: Shape, mut faults: BTreeMap<Duration, Vec<Fault>>) -> (u64, Duration) {
    let network = Network::new(seed);
    let mut nodes: Vec<Vec<Link>> = (0..shape.nodes).map(|_| Vec::new()).collect();
    for low in 0..shape.nodes {
        for high in low + 1..shape.nodes {
            let both = [Node(low), Node(high)];
            let connecting = start(&network, both, shape.slot_bytes * SLOTS as usize);
            for (which, connecting) in connecting.into_iter().enumerate() {
                nodes[both[which].0 as usize].push(Link {
                    from: both[which],
                    to: both[1 - which],
                    connecting: Some(connecting),
                    side: None,
                    shape,
                    sent: 0,
                    part: 0,
                    done: 0,
                    received: 0,
                    credited: 0,
                });
            }
        }
    }
    let mut is_done = vec![false; nodes.len()];
    while !is_done.iter().all(|done| *done) {
        let due = faults.first_key_value().map(|(at, _)| *at);
        let next = [network.next(), due].into_iter().flatten().min().expect("a job that is not stuck");
        let touched = network.advance(next);
        while let Some(fault) = faults.first_entry().filter(|fault| *fault.key() <= next) {
            fault.remove().iter().for_each(|fault| fault(&network));
        }
        for node in touched {
            let links = &mut nodes[node.0 as usize];
            for link in links.iter_mut() {
                while link.step() {}
            }
            is_done[node.0 as usize] = links.iter().all(Link::is_done);
        }
    }
    let took = network.now();
    drop(nodes);
    network.heal();
    settle(&network);
    assert_eq!((network.open_endpoints(), network.open_streams(), network.in_flight()), (0, 0, 0));
    (network.trace_hash(), took)
}

/// Cuts, partitions, stops and lost links, each of which ends.
fn random_faults(seed: u64, nodes: u32) -> BTreeMap<Duration, Vec<Fault>> {
    let mut random = Random(seed ^ 0xfa17);
    let mut faults: BTreeMap<Duration, Vec<Fault>> = BTreeMap::new();
    for _ in 0..random.below(8) {
        let a = Node(random.below(u64::from(nodes)) as u32);
        let b = Node(random.below(u64::from(nodes)) as u32);
        let at = Duration::from_micros(random.below(1500));
        let lasts = Duration::from_micros(random.below(3000));
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

fn shape(seed: u64) -> Shape {
    let mut random = Random(seed);
    Shape {
        nodes: 2 + random.below(4) as u32,
        messages: 1 + random.below(12),
        slot_bytes: 1 + random.below(3000) as usize,
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
        assert!(seen.insert(first.0), "two seeds gave the same run");
    }
}

#[test]
fn large_messages_arrive_under_faults() {
    for seed in 0..10 {
        println!("seed {seed}");
        let shape = Shape { nodes: 3, messages: 10, slot_bytes: 300_000 };
        job(seed, shape, random_faults(seed, 3));
    }
}

#[test]
fn only_the_seed_decides() {
    let shape = Shape { nodes: 3, messages: 5, slot_bytes: 1000 };
    let [one, other] = [1, 2].map(|seed| job(seed, shape, BTreeMap::new()));
    assert_ne!(one.0, other.0);
    assert_eq!(one, job(1, shape, BTreeMap::new()));
}

#[test]
fn a_fault_takes_time() {
    let shape = Shape { nodes: 2, messages: 10, slot_bytes: 1000 };
    let outage = Duration::from_millis(7);
    let at = Duration::from_micros(300);
    let undisturbed = job(3, shape, BTreeMap::new()).1;
    assert!(undisturbed > at && undisturbed < outage, "{undisturbed:?}");
    let once = |fault: Fault| BTreeMap::from([(at, vec![fault])]);
    assert!(job(3, shape, once(Box::new(move |network| network.remake(A, B, outage)))).1 > at + outage);
    let mut cut = once(Box::new(|network| network.cut(A, B)));
    cut.insert(at + outage, vec![Box::new(Network::heal)]);
    assert!(job(3, shape, cut).1 > at + outage);
    let mut stop = once(Box::new(|network| network.freeze(B)));
    stop.insert(at + outage, vec![Box::new(|network| network.thaw(B))]);
    assert!(job(3, shape, stop).1 > at + outage);
}

/// For the figures: `cargo test --release -p consort-transports --test simnet -- --ignored --nocapture`.
#[test]
#[ignore = "takes long"]
fn ten_thousand_runs() {
    let since = std::time::Instant::now();
    for seed in 0..10_000 {
        job(seed, shape(seed), random_faults(seed, shape(seed).nodes));
    }
    println!("10,000 small jobs: {:?}", since.elapsed());
    let since = std::time::Instant::now();
    job(1, Shape { nodes: 64, messages: 10, slot_bytes: 1000 }, BTreeMap::new());
    println!("one job of 64 nodes, 40,320 messages: {:?}", since.elapsed());
}
