//! Connections whose both sides are mapped here: a put is a copy, a signal is a store.
//!
//! Invariant: this side stores into the peer's mailbox and counters and loads from its own. Into its own segment it stores that
//! it closed, where it [sleeps](Bell), and into its mailbox bytes that are there already ([`SpanMut::touch`]). Absent: how
//! the segments were exchanged.

use std::sync::Arc;
use std::task::Poll;

use consort_memory::{Bell, Counter, ForkStamp, Row, Span, SpanMut};

use crate::segment::Segment;
use crate::{Capabilities, Connection, CounterKind, PeerState, RemoteRegion, TransportError};

#[derive(Debug)]
pub(crate) struct MappedConnection {
    transport: &'static str,
    own: OwnSegment,
    peer: Segment,
}

impl MappedConnection {
    pub(crate) fn new(transport: &'static str, own: OwnSegment, peer: Segment) -> Self {
        Self { transport, own, peer }
    }

    #[inline]
    fn check_open(&self) -> Result<(), TransportError> {
        // A line that is written once: a hit in this core's cache.
        if self.peer.is_closed() {
            return Err(TransportError::PeerClosed { transport: self.transport });
        }
        Ok(())
    }
}

/// This side's segment; tells the peer when it goes, unless it goes in a forked child.
#[derive(Debug)]
pub(crate) struct OwnSegment {
    segment: Segment,
    stamp: Arc<ForkStamp>,
}

impl OwnSegment {
    pub(crate) fn new(segment: Segment, stamp: Arc<ForkStamp>) -> Self {
        Self { segment, stamp }
    }
}

impl Drop for OwnSegment {
    fn drop(&mut self) {
        // A child maps the same memory file; the parent is still there.
        if !self.stamp.is_forked_child() {
            self.segment.close();
        }
    }
}

impl Connection for MappedConnection {
    fn transport(&self) -> &'static str {
        self.transport
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { load_store: true, put: true, ordered: true, needs_progress: false }
    }

    #[inline]
    fn mailbox(&self) -> SpanMut<'_> {
        self.own.segment.mailbox()
    }

    #[inline]
    fn remote(&self) -> RemoteRegion<'_> {
        let mailbox = self.peer.mailbox();
        RemoteRegion { bytes: mailbox.len(), mapped: Some(mailbox) }
    }

    #[inline]
    fn counter(&self, kind: CounterKind) -> &Counter {
        self.own.segment.counter(kind)
    }

    #[inline]
    fn peer_counter(&self, kind: CounterKind) -> Option<&Counter> {
        Some(self.peer.counter(kind))
    }

    fn rows(&self, offset: usize, slots: usize, payload_bytes: usize) -> Option<[Row; 2]> {
        let both = [&self.own.segment, &self.peer];
        let end = offset.checked_add(Row::bytes(slots, payload_bytes))?;
        let fits = both.iter().all(|segment| end <= segment.mailbox_bytes());
        fits.then(|| both.map(|segment| segment.row(offset, slots, payload_bytes)))
    }

    fn bell(&self) -> Option<Bell> {
        Some(Bell::new([&self.own.segment, &self.peer].map(Segment::bell)))
    }

    #[inline]
    fn put(&mut self, offset: usize, bytes: Span<'_>, done: &mut usize) -> Result<Poll<()>, TransportError> {
        let mailbox = self.peer.mailbox();
        check_bounds(self.transport, offset, bytes.len(), mailbox.len())?;
        self.check_open()?;
        mailbox.slice(offset, bytes.len()).copy_from(bytes);
        *done = bytes.len();
        Ok(Poll::Ready(()))
    }

    #[inline]
    fn signal(&mut self, kind: CounterKind, value: u64, tag: u64) -> Result<Poll<()>, TransportError> {
        self.check_open()?;
        self.peer.counter(kind).raise(value, tag);
        Ok(Poll::Ready(()))
    }

    #[inline]
    fn progress(&mut self) -> Result<PeerState, TransportError> {
        Ok(if self.peer.is_closed() { PeerState::Closed } else { PeerState::Open })
    }
}

/// Whether a put fits; asked by the side that puts and again by the side that takes.
#[inline]
pub(crate) fn check_bounds(
    transport: &'static str,
    offset: usize,
    bytes: usize,
    mailbox_bytes: usize,
) -> Result<(), TransportError> {
    if offset <= mailbox_bytes && bytes <= mailbox_bytes - offset {
        return Ok(());
    }
    Err(TransportError::OutOfBounds { transport, offset, bytes, mailbox_bytes })
}
