//! Links that have not what a plan needs are refused when it is bound.

use std::sync::Arc;
use std::task::Poll;

use consort_algorithms::Collective;
use consort_algorithms::catalogue::Algorithm;
use consort_memory::{Counter, Row, Span, SpanMut};
use consort_transports::{
    Capabilities, Connection, CounterKind, PeerState, RemoteRegion, Transport, TransportError,
};

use super::super::bound::{Bearings, Bound};
use super::super::links::Links;
use super::super::packets::sides::connected;
use super::super::pairing::Pairing;
use super::super::routes::Routes;
use crate::Rank;
use crate::planner::{Choice, Planner, Program};
use consort_control::membership::group::Group;
use consort_types::error::{Error, Result};

const ALL: Capabilities = Capabilities { load_store: true, put: true, ordered: true, needs_progress: false };

/// Bytes of a slot, as of [`Links::established`].
pub(super) const SLOT_BYTES: usize = 512;

/// The choice of a program that runs by its plan.
pub(super) fn by_plan(program: Program) -> Choice {
    Choice {
        program,
        slot_bytes: SLOT_BYTES,
        streaming: false,
        channel_base: 0,
        packets: false,
        meets: false,
        mapped: false,
    }
}

/// A connection that says of itself what it is asked to.
struct Claiming(Box<dyn Connection>, Capabilities);

impl Connection for Claiming {
    fn transport(&self) -> &'static str {
        "pigeon"
    }

    fn capabilities(&self) -> Capabilities {
        self.1
    }

    fn mailbox(&self) -> SpanMut<'_> {
        self.0.mailbox()
    }

    fn remote(&self) -> RemoteRegion<'_> {
        self.0.remote()
    }

    fn counter(&self, kind: CounterKind) -> &Counter {
        self.0.counter(kind)
    }

    fn peer_counter(&self, kind: CounterKind) -> Option<&Counter> {
        self.0.peer_counter(kind)
    }

    fn rows(&self, offset: usize, slots: usize, payload_bytes: usize) -> Option<[Row; 2]> {
        self.0.rows(offset, slots, payload_bytes)
    }

    fn put(
        &mut self,
        offset: usize,
        bytes: Span<'_>,
        done: &mut usize,
    ) -> std::result::Result<Poll<()>, TransportError> {
        self.0.put(offset, bytes, done)
    }

    fn signal(
        &mut self,
        kind: CounterKind,
        value: u64,
        tag: u64,
    ) -> std::result::Result<Poll<()>, TransportError> {
        self.0.signal(kind, value, tag)
    }

    fn progress(&mut self) -> std::result::Result<PeerState, TransportError> {
        self.0.progress()
    }
}

pub(super) struct NoRoutes;

impl Routes for NoRoutes {
    fn is_mapped(&self, _: &Group, _: Rank) -> bool {
        false
    }

    fn transport(&mut self, _: &Group, _: Rank) -> Result<Arc<dyn Transport>> {
        Err(Error::internal("no link is made here"))
    }

    fn abandon(&mut self) {}
}

/// What comes of binding rank 0's plan of an all-reduce of two, for mailboxes that can be stored to or not.
fn bind(claims: Capabilities, mapped: bool) -> Option<Error> {
    let algorithm = Algorithm::Ring { channels: 1, bidirectional: false };
    let program = Program { collective: Collective::AllReduce, ranks: 2, algorithm };
    let proved = Planner::default().plan(program, 0, vec![mapped; 2]).expect("a proved plan");
    let bearings = Bearings::Rotated { root: 0, size: 2 };
    let is_mapped = |_| mapped;
    let pairing = Pairing::new(&proved.plan, bearings, 0, &is_mapped);
    let keys = pairing.keys();
    let end = || -> Box<dyn Connection> {
        Box::new(Claiming(connected(4096).into_iter().next().expect("two"), claims))
    };
    let links = Links::established(Box::new(NoRoutes), keys.iter().map(|key| (*key, end())).collect());
    let choice = by_plan(program);
    let numbers: Vec<usize> = (0..keys.len()).collect();
    Bound::new(&proved, &choice, &pairing, &links, &numbers).err()
}

#[test]
fn a_link_without_what_a_plan_needs_is_refused_by_name() {
    let puts = Capabilities { load_store: false, needs_progress: true, ..ALL };
    for (claims, mapped) in [(ALL, true), (ALL, false), (puts, false)] {
        assert!(bind(claims, mapped).is_none(), "{claims:?}, {mapped}");
    }
    let refusals = [
        // Wires that keep no order, with or without memory that can be stored to.
        (Capabilities { ordered: false, ..ALL }, true, "signals that arrive after the puts before them"),
        (Capabilities { ordered: false, ..puts }, false, "signals that arrive after the puts before them"),
        // What only multicasts, or only reads.
        (Capabilities { put: false, ..puts }, false, "puts into the peer's memory"),
        (puts, true, "loads and stores in the peer's memory"),
    ];
    for (claims, mapped, missing) in refusals {
        let Some(Error::Link { from: 0, to: 1, transport, cause }) = bind(claims, mapped) else {
            panic!("{claims:?} was bound to a plan for mapped: {mapped}")
        };
        assert_eq!(transport, "pigeon");
        assert!(cause.contains(missing), "{cause}");
    }
}
