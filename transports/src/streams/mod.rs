//! Streams over paths: what two ranks fill into each other's mailboxes, on several wires between their processes, which
//! may break.
//!
//! ```text
//!   fill slot ──► Stream (communicator, peer, channel)    fills by number, kept until they have arrived
//!                    │ fragments
//!                 Peering (two processes)                 which path is open, since when; what was sent on it
//!                    │
//!                 path, epoch                             a socket, a queue pair: one that is opened again is another epoch
//! ```
//!
//! A fill is cut into fragments. Whichever path has room takes the next one, so faster paths carry more. The reader counts
//! the fragments of each fill, and releases fills in the order in which they were made. When a path breaks, either side
//! closes its end of that epoch, and only then says what it has ([`Fenced`]), on another path or on the next epoch. The other side hears
//! it, closes its own end, and sends again what is missing. A fragment that is still on the way on the closed epoch can land no more,
//! whether a program or an adapter receives it.
//!
//! Invariant: a fill is released once, in order, with all of its bytes; a fragment is on one open path at most; nothing lands in
//! a fill that has been released. What a peer says is checked, and makes this side keep [`FILLS_MAX`] fills of a stream at
//! most. Absent: sockets, clocks (time comes as an argument), bytes (who sends has them, see [`Outbound::keep`]), ranks.

mod deferred;
mod inbound;
mod outbound;
mod peering;
mod soundness;
#[cfg(test)]
mod tests;

pub(crate) use deferred::Deferred;
pub(crate) use inbound::{Inbound, Landing};
pub(crate) use outbound::Outbound;
pub(crate) use peering::{Fenced, Order, Peering, Word};
pub(crate) use soundness::Soundness;

/// Fills of one stream and direction that may be under way.
pub(crate) const FILLS_MAX: usize = 64;
/// Fragments of one fill: the bits of a word.
pub(crate) const FRAGMENTS_MAX: usize = u64::BITS as usize;

/// Which way between two processes, and which time it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Path {
    /// The same number on both sides.
    pub(crate) number: u8,
    /// Counts from 1; one more each time that it is dialled.
    pub(crate) epoch: u32,
}

/// Names a stream on both sides of a pair of processes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct StreamId(pub(crate) u32);

/// The one stream of a connection.
pub(crate) const STREAM: StreamId = StreamId(0);

/// What a released fill says: the reader's counter goes up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ready {
    pub(crate) value: u64,
    pub(crate) tag: u64,
}

/// A part of a fill as it travels, beside its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fragment {
    /// Of the stream's fills in this direction, from 0.
    pub(crate) fill: u64,
    /// Which of `count`.
    pub(crate) index: u32,
    pub(crate) count: u32,
    /// Where in the reader's mailbox its bytes go.
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
    /// What the whole fill says.
    pub(crate) ready: Option<Ready>,
}

/// What has arrived of a stream.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Arrived {
    /// Fills that are whole, and all before them.
    pub(crate) fills: u64,
    /// The fragments, as bits, of the fills after those; [`FILLS_MAX`] at most.
    pub(crate) fragments: Vec<u64>,
}
