//! The memory of one side of a mapped connection: what lies where.
//!
//! Invariant: both sides compute every address from the constants here and the mailbox's size, and a segment is
//! used only after its magic and its nonce were seen through the mapping itself: that proves that both sides see
//! the same memory. Absent: how a segment reaches the peer.

use std::sync::Arc;

use consort_memory::{Counter, Mapping, Row, SpanMut};

use crate::{CounterKind, Layout, TransportError};

/// What tells one endpoint from all others; a process that shows it has it from the endpoint's owner.
pub(crate) type Nonce = [u8; NONCE_BYTES];
pub(crate) const NONCE_BYTES: usize = 16;

/// A fresh [`Nonce`].
pub(crate) fn nonce(transport: &'static str) -> Result<Nonce, TransportError> {
    let mut nonce = [0; NONCE_BYTES];
    getrandom::fill(&mut nonce)
        .map_err(|error| TransportError::system(transport, "getrandom", std::io::Error::other(error)))?;
    Ok(nonce)
}

/// A [`Nonce`] as two words of a message.
pub(crate) fn halves(nonce: &Nonce) -> (u64, u64) {
    let whole = u128::from_le_bytes(*nonce);
    (whole as u64, (whole >> 64) as u64)
}

/// Tells people if a side's memory may lie elsewhere than on its reader's node.
pub(crate) fn say_misplaced(mapping: &Mapping, layout: Layout) {
    if let (Some(node), Some(error)) = (layout.node, mapping.misplaced()) {
        tracing::debug!(node, "memory of a connection may not lie on its reader's node: {error}");
    }
}

const MAGIC: [u8; 8] = *b"consort1";
const MAGIC_OFFSET: usize = 0;
const NONCE_OFFSET: usize = 8;
const HEADER_BYTES: usize = NONCE_OFFSET + NONCE_BYTES;
/// Raised once, by the owner, when it closes its side.
const CLOSED_OFFSET: usize = 64;
const READY_OFFSET: usize = 128;
const CREDIT_OFFSET: usize = 192;
/// The line on which the owner sleeps.
const BELL_OFFSET: usize = 256;
const MAILBOX_OFFSET: usize = 4096;

/// One side's memory: a header, three counters, a doorbell and the mailbox that the other side fills.
#[derive(Debug)]
pub(crate) struct Segment {
    mapping: Arc<Mapping>,
    ready: Counter,
    credit: Counter,
    closed: Counter,
}

impl Segment {
    /// Bytes that a segment for `layout` takes.
    pub(crate) fn bytes(layout: Layout, transport: &'static str) -> Result<usize, TransportError> {
        layout.mailbox_bytes.checked_add(MAILBOX_OFFSET).ok_or_else(|| TransportError::OutOfMemory {
            transport,
            needed_bytes: layout.mailbox_bytes,
            what: "mailbox",
            source: std::io::Error::from_raw_os_error(libc::ENOMEM),
        })
    }

    /// A fresh segment in zeroed memory of [`Segment::bytes`].
    pub(crate) fn create(mapping: Mapping, nonce: &Nonce) -> Self {
        let mut header = [0; HEADER_BYTES];
        header[..NONCE_OFFSET].copy_from_slice(&MAGIC);
        header[NONCE_OFFSET..].copy_from_slice(nonce);
        mapping.span(MAGIC_OFFSET, HEADER_BYTES).copy_from(consort_memory::Span::of(&header));
        Self::over(Arc::new(mapping))
    }

    /// The peer's segment, seen through our own mapping of it.
    pub(crate) fn open(
        mapping: Mapping,
        nonce: &Nonce,
        transport: &'static str,
    ) -> Result<Self, TransportError> {
        let mut header = [0u8; HEADER_BYTES];
        SpanMut::of(&mut header).copy_from(mapping.span(MAGIC_OFFSET, HEADER_BYTES).read());
        if header[..NONCE_OFFSET] != MAGIC {
            return Err(TransportError::Protocol { transport, what: "its memory is not a mailbox" });
        }
        if header[NONCE_OFFSET..] != *nonce {
            return Err(TransportError::Unauthorised { transport, what: "the memory is not the peer's" });
        }
        Ok(Self::over(Arc::new(mapping)))
    }

    fn over(mapping: Arc<Mapping>) -> Self {
        let [closed, ready, credit] =
            [CLOSED_OFFSET, READY_OFFSET, CREDIT_OFFSET].map(|offset| mapping.counter(offset));
        Self { mapping, ready, credit, closed }
    }

    pub(crate) fn mailbox_bytes(&self) -> usize {
        self.mapping.bytes() - MAILBOX_OFFSET
    }

    #[inline]
    pub(crate) fn mailbox(&self) -> SpanMut<'_> {
        self.mapping.span(MAILBOX_OFFSET, self.mailbox_bytes())
    }

    /// Slots at `offset` of the mailbox.
    ///
    /// # Panics
    /// If they are not inside it.
    pub(crate) fn row(&self, offset: usize, slots: usize, payload_bytes: usize) -> Row {
        Row::in_mapping(Arc::clone(&self.mapping), MAILBOX_OFFSET + offset, slots, payload_bytes)
    }

    /// Where its owner sleeps.
    pub(crate) fn bell(&self) -> Row {
        Row::in_mapping(Arc::clone(&self.mapping), BELL_OFFSET, 1, Row::LINE_PAYLOAD_BYTES)
    }

    #[inline]
    pub(crate) fn counter(&self, kind: CounterKind) -> &Counter {
        match kind {
            CounterKind::Ready => &self.ready,
            CounterKind::Credit => &self.credit,
        }
    }

    /// Whether the owner closed its side. What it wrote before is then visible.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.value() != 0
    }

    /// Called by the owner, once.
    pub(crate) fn close(&self) {
        if !self.is_closed() {
            self.closed.raise(1, 0);
        }
    }

    /// Another handle on the same memory, for a peer in this process.
    pub(crate) fn share(&self) -> Self {
        Self::over(Arc::clone(&self.mapping))
    }
}
