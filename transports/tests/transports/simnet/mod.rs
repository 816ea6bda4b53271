//! The simulated network: the same seed gives the same run, faults do what they say, nothing is lost that was not.

mod faults;
mod job;
mod links;
mod streams;

use std::task::Poll;

use consort_memory::{Span, SpanMut};
use consort_testing::Random;
use consort_transports::simnet::{Network, Node, Profile};
use consort_transports::{Connecting, Connection, CounterKind, Layout, Transport};

type Side = Box<dyn Connection>;

const A: Node = Node(0);
const B: Node = Node(1);

/// The network of a seed, of messages or of one-sided puts.
fn network(seed: u64) -> Network {
    Network::new(seed).with_profile(Profile::ALL[seed as usize % Profile::ALL.len()])
}

/// Both on their way.
fn start(network: &Network, nodes: [Node; 2], mailbox_bytes: usize) -> [Box<dyn Connecting>; 2] {
    let layout = Layout::new(mailbox_bytes);
    let [here, there] = nodes.map(|node| network.transport(node).endpoint(layout).expect("endpoint"));
    let (here_at, there_at) = (here.address().clone(), there.address().clone());
    [here.connect(&there_at).expect("connect"), there.connect(&here_at).expect("connect")]
}

/// An established pair.
fn pair(network: &Network, nodes: [Node; 2], mailbox_bytes: usize) -> [Side; 2] {
    let connecting = start(network, nodes, mailbox_bytes);
    settle(network);
    connecting.map(|mut side| match side.poll().expect("poll") {
        Poll::Ready(side) => side,
        Poll::Pending => panic!("not established although nothing is under way"),
    })
}

/// Lets everything happen that is under way.
fn settle(network: &Network) {
    while let Some(next) = network.next() {
        network.advance(next);
    }
}

/// A put that fits into the window at once.
fn put(side: &mut Side, offset: usize, bytes: &[u8]) {
    assert!(side.put(offset, Span::of(bytes), &mut 0).expect("put").is_ready());
}

fn ready(side: &mut Side, value: u64, tag: u64) {
    assert!(side.signal(CounterKind::Ready, value, tag).expect("signal").is_ready());
}

fn read(side: &Side, offset: usize, bytes: usize) -> Vec<u8> {
    let mut copy = vec![0; bytes];
    SpanMut::of(&mut copy).copy_from(side.mailbox().slice(offset, bytes).read());
    copy
}

/// Bytes, none of them 0.
fn nonzero(seed: u64, bytes: usize) -> Vec<u8> {
    Random(seed).bytes(bytes).into_iter().map(|byte| byte | 1).collect()
}
