//! The two ends of a queue pair: where each has its tray, and the memory that they write.
//!
//! Absent: what they say to each other.

use std::sync::Arc;

use consort_memory::Mapping;

use super::NAME;
use super::message::{LANE_BYTES, Place};
use super::port::{Domain, Region, Written};
use super::queue::Peer;
use crate::TransportError;
use crate::segment::Nonce;

/// The memory of a connection's end, and this side's picture of the peer's.
#[derive(Clone)]
pub(super) struct Memory {
    /// Trays and the mailbox, which the peer writes.
    pub(super) own: Arc<Region>,
    /// The peer's, as this side has written them.
    pub(super) theirs: Arc<Region>,
}

/// The two ends of a queue pair.
#[derive(Clone, Copy)]
pub(super) struct Ends {
    /// Which of the regions' registrations its port uses.
    pub(super) port: usize,
    /// Where its tray is here, and at the peer.
    pub(super) trays: [usize; 2],
    /// The number of the first packet that it sends.
    pub(super) first_packet: u32,
    /// The peer's queue pair, and the key and the start of its memory.
    pub(super) peer: Peer,
    pub(super) key: u32,
    pub(super) start: u64,
    /// Of this side's endpoint, and of the peer's.
    pub(super) nonces: [Nonce; 2],
    /// Whether this side greets.
    pub(super) calls: bool,
    /// Whether the connection has no other queue pair.
    pub(super) is_alone: bool,
    /// Whether the side that is called is there before the other knows its address.
    pub(super) is_in_turn: bool,
}

impl Ends {
    /// Those of two endpoints' queue pairs of these numbers; this side `calls` or is called, there are others or not, and the two begin
    /// in turn or not.
    pub(super) fn of(
        [here, there]: [&Place; 2],
        [own, other]: [usize; 2],
        [calls, is_alone, is_in_turn]: [bool; 3],
    ) -> Self {
        let peer = there.queues[other];
        let (reach, key) = there.ports[peer.port];
        let peer = Peer { reach, number: peer.number, first_packet: there.first_packet(other) };
        Ends {
            port: here.queues[own].port,
            trays: [own, other].map(|queue| queue * LANE_BYTES),
            first_packet: here.first_packet(own),
            peer,
            key,
            start: there.start,
            nonces: [here.nonce, there.nonce],
            calls,
            is_alone,
            is_in_turn,
        }
    }
}

/// Memory of this many trays and such a mailbox.
///
/// # Errors
/// [`TransportError::OutOfMemory`].
pub(super) fn memory(
    domains: &[Arc<Domain>],
    (lanes, mailbox_bytes): (usize, usize),
    node: Option<u32>,
    by: Written,
) -> Result<Arc<Region>, TransportError> {
    let out_of = || TransportError::OutOfMemory {
        transport: NAME,
        needed_bytes: mailbox_bytes,
        what: "mailbox",
        source: std::io::Error::from_raw_os_error(libc::ENOMEM),
    };
    let bytes = mailbox_bytes.checked_add(lanes * LANE_BYTES).ok_or_else(out_of)?;
    let mapping = Mapping::anonymous_on(bytes, node).map_err(|error| TransportError::memory(NAME, error))?;
    Region::new(domains, mapping, by)
}
