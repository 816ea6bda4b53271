//! What a transport is: the seam between the engine and the ways bytes travel.
//!
//! Invariant: nothing here blocks, allocates per message or knows a rank. An [`Endpoint`] is this side's half
//! of a connection, with the memory that the peer will fill; its [`Address`] is carried to the peer by
//! a party that knows both; [`Endpoint::connect`] turns it into a [`Connection`]. Deliberately absent: ranks,
//! collectives, reduction, waiting.

use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use consort_memory::{Bell, Counter, Row, Span, SpanMut};

use crate::TransportError;
use crate::device::DeviceLink;

/// A way for bytes to travel.
pub trait Transport: Send + Sync {
    /// Short name for errors and tables: `shm`, `tcp`, `loopback`.
    fn name(&self) -> &'static str;

    /// This side's half of a new connection.
    ///
    /// # Errors
    /// [`TransportError::OutOfMemory`] with the bytes that were needed, or the system's error.
    fn endpoint(&self, layout: Layout) -> Result<Box<dyn Endpoint>, TransportError>;

    /// Whether connections come up sooner where the side that is called knows the other's address first, and connects, before
    /// its own address goes out: [`Layout::in_turn`].
    fn gains_by_turns(&self) -> bool {
        false
    }

    /// What answers peers that are connecting, where they call.
    fn service(&self) -> Option<Arc<dyn Service>> {
        None
    }
}

/// What strangers may call at any time. The control thread of a process serves it.
pub trait Service: Send + Sync {
    /// Becomes readable when [`Service::serve`] has something to do.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Answers who has come, and mends connections whose ranks are not in a call. Never blocks.
    fn serve(&self);

    /// Whether [`Service::serve`] is to be called now and then although nothing has become readable.
    fn has_chores(&self) -> bool {
        false
    }
}

/// How much memory a connection has on each side, and where this side's lies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Layout {
    /// Bytes that the peer may fill before this side empties them.
    pub mailbox_bytes: usize,
    /// The memory node of its reader, if that is known and there are several: pages come from there if they can.
    /// The peer's may be another.
    pub node: Option<u32>,
    /// Whether this side calls the other, where one of them must; the other side says the opposite. Where neither says,
    /// the endpoints settle it among themselves.
    pub calls: Option<bool>,
    /// Whether the side that is called begins to connect before its address goes to the other, so that a caller finds it there.
    pub is_in_turn: bool,
}

impl Layout {
    /// Mailboxes of `mailbox_bytes` bytes, wherever the kernel puts them.
    pub const fn new(mailbox_bytes: usize) -> Self {
        Layout { mailbox_bytes, node: None, calls: None, is_in_turn: false }
    }

    /// The same on a memory node.
    #[must_use]
    pub const fn on(self, node: Option<u32>) -> Self {
        Layout { node, ..self }
    }

    /// The same with this side calling the other, or the other way round: firewalls often let only one way through.
    #[must_use]
    pub const fn calling(self, calls: bool) -> Self {
        Layout { calls: Some(calls), ..self }
    }

    /// The same, and the side that is called begins to connect before its address goes to the other; or not.
    #[must_use]
    pub const fn in_turn(self, is_in_turn: bool) -> Self {
        Layout { is_in_turn, ..self }
    }
}

/// This side's half of a connection, before it knows the peer's.
pub trait Endpoint: Send {
    /// What the peer must know.
    fn address(&self) -> &Address;

    /// Starts to connect. Both sides call it with each other's address. Neither side is established before the
    /// other has taken part, so a caller that has several on their way must poll them side by side, not one by one.
    ///
    /// # Errors
    /// [`TransportError::BadAddress`] when the address is not one of this transport's.
    fn connect(self: Box<Self>, peer: &Address) -> Result<Box<dyn Connecting>, TransportError>;
}

/// A connection on its way.
pub trait Connecting: Send {
    /// Goes on; never blocks.
    ///
    /// # Errors
    /// Whatever made it impossible; the attempt is then over.
    fn poll(&mut self) -> Result<Poll<Box<dyn Connection>>, TransportError>;

    /// Says when it can go on: rings the waker of this name, or has a [`Connecting::wake`] that becomes ready. Whether
    /// it does; if not it is to be polled now and then.
    fn ring_at(&mut self, _waker: u64) -> bool {
        false
    }

    /// A descriptor that becomes readable, or writable where `true` stands beside it, when it can go on.
    fn wake(&self) -> Option<(BorrowedFd<'_>, bool)> {
        None
    }

    /// What it waits for, for people: which side calls, and where. None where no side does.
    fn waits_for(&self) -> Option<String> {
        None
    }
}

/// The wire form of an endpoint's address: the transport's name and its own bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address {
    /// [`Transport::name`].
    pub transport: String,
    /// At most [`Address::BYTES_MAX`] bytes that only the transport understands.
    pub bytes: Vec<u8>,
}

impl Address {
    /// The longest address accepted from a peer.
    pub const BYTES_MAX: usize = 256;

    /// The bytes, when the address is of the transport that asks.
    pub(crate) fn bytes_for(&self, transport: &'static str) -> Result<&[u8], TransportError> {
        if self.transport != transport {
            return Err(TransportError::BadAddress { transport, reason: "it belongs to another transport" });
        }
        Ok(&self.bytes)
    }
}

/// What a link can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Capabilities {
    /// The peer's mailbox can be read and written by load and store instructions.
    pub load_store: bool,
    /// Bytes can be written into the peer's mailbox.
    pub put: bool,
    /// A counter shows a value only when every put before its signal has wholly landed. A transport on wires that
    /// keep no order counts arrivals itself (`arrival.rs`).
    pub ordered: bool,
    /// Counters go up, and what the system has not taken over goes out, in [`Connection::progress`] alone.
    pub needs_progress: bool,
}

/// The peer's memory as this side can reach it.
#[derive(Clone, Copy, Debug)]
pub struct RemoteRegion<'a> {
    /// Bytes there.
    pub bytes: usize,
    /// The same memory mapped here, when [`Capabilities::load_store`].
    pub mapped: Option<SpanMut<'a>>,
}

/// The two counters of each direction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CounterKind {
    /// Raised by the side that filled the other's mailbox.
    Ready,
    /// Raised by the side that emptied its own mailbox.
    Credit,
}

/// Whether the peer can still send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerState {
    /// As far as one can see.
    Open,
    /// It closed its side; what arrived before remains readable.
    Closed,
}

/// What one of a connection's ways to the peer has carried in this direction, by the system's own count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow {
    /// Which way.
    pub way: u8,
    /// Which of its sockets in turn: each counts from the beginning.
    pub epoch: u32,
    /// Its end here.
    pub from: IpAddr,
    /// Its end at the peer.
    pub to: IpAddr,
    /// Bytes that the peer's system has acknowledged.
    pub bytes: u64,
    /// Bytes that have come from it.
    pub received: u64,
    /// How long something was on its way to the peer.
    pub at_work: Duration,
    /// How much of that the peer's system had no room for more: what was on its way filled all that it had offered, or the peer did not
    /// read.
    pub held_up: Duration,
    /// The round trip at present.
    pub round_trip: Duration,
    /// Packets that were sent again.
    pub sent_again: u32,
}

/// One of a connection's ways to the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Way {
    /// Which.
    pub number: u8,
    /// Its end here.
    pub from: IpAddr,
    /// Its end at the peer.
    pub to: IpAddr,
    /// Whether it has been down for so long that it counts as lost; it may come back.
    pub is_lost: bool,
}

/// An established connection: one mailbox and two counters on each side.
pub trait Connection: Send {
    /// [`Transport::name`].
    fn transport(&self) -> &'static str;

    /// What this link can do.
    fn capabilities(&self) -> Capabilities;

    /// The memory here that the peer fills.
    fn mailbox(&self) -> SpanMut<'_>;

    /// Bytes of memory that this side of it takes beside the mailbox at present.
    fn kept_bytes(&self) -> usize {
        0
    }

    /// The peer's mailbox, which this side fills.
    fn remote(&self) -> RemoteRegion<'_>;

    /// The counter here that the peer raises.
    fn counter(&self, kind: CounterKind) -> &Counter;

    /// The peer's counter, when it can be stored to ([`Capabilities::load_store`]).
    fn peer_counter(&self, kind: CounterKind) -> Option<&Counter>;

    /// The same slots at `offset` of both mailboxes, this side's and the peer's, for messages that carry their flag;
    /// none where the peer's mailbox cannot be stored to ([`Capabilities::load_store`]) or the slots do not fit into
    /// both. Their taker uses that part of the mailboxes for nothing else.
    fn rows(&self, _offset: usize, _slots: usize, _payload_bytes: usize) -> Option<[Row; 2]> {
        None
    }

    /// Writes `bytes` at `offset` of the peer's mailbox. `done` is how much of it has been taken over so far:
    /// 0 at first; on `Pending` call again with the same arguments after [`Connection::progress`]. The source
    /// may be changed as soon as `Ready` is returned.
    ///
    /// # Errors
    /// [`TransportError::OutOfBounds`], or the peer is gone.
    fn put(&mut self, offset: usize, bytes: Span<'_>, done: &mut usize) -> Result<Poll<()>, TransportError>;

    /// Raises the peer's counter to `value`, publishing every put made before; `tag` travels with it (see
    /// [`Counter::tag`]). On `Pending` call again after [`Connection::progress`]. One credit may be deferred (see
    /// [`Connection::flush_credits`]), so there must be more than two slots.
    ///
    /// # Errors
    /// The peer is gone.
    fn signal(&mut self, kind: CounterKind, value: u64, tag: u64) -> Result<Poll<()>, TransportError>;

    /// Puts, and signals [`CounterKind::Ready`] with `value` and `tag` once everything is taken over: a link on which
    /// every call costs may do both at once. Called again as [`Connection::put`] is.
    ///
    /// # Errors
    /// As of [`Connection::put`] and [`Connection::signal`].
    fn fill(
        &mut self,
        offset: usize,
        bytes: Span<'_>,
        (value, tag): (u64, u64),
        done: &mut usize,
    ) -> Result<Poll<()>, TransportError> {
        if self.put(offset, bytes, done)?.is_pending() {
            return Ok(Poll::Pending);
        }
        self.signal(CounterKind::Ready, value, tag)
    }

    /// Fills as [`Connection::fill`] does, from a source that stays as it is after the call: a transport that can has its device read it where
    /// it is, and copies nothing. The number of the fill, for [`Connection::is_free`]; 0 where the source was copied. What is
    /// written there before it is free may be what arrives. Memory that is freed before is not touched: the device
    /// reads by its registration, which keeps the pages. Called again as [`Connection::put`] is.
    ///
    /// # Errors
    /// As of [`Connection::fill`].
    fn fill_from(
        &mut self,
        offset: usize,
        source: Span<'_>,
        signal: (u64, u64),
        done: &mut usize,
    ) -> Result<Poll<u64>, TransportError> {
        Ok(self.fill(offset, source, signal, done)?.map(|()| 0))
    }

    /// Whether the source of the fill of this number, and those of all fills before it, will be read no more: the peer has acknowledged
    /// what was read, or the connection has failed and its device is done with it. Changes in [`Connection::progress`] alone,
    /// whatever that returns.
    fn is_free(&self, _number: u64) -> bool {
        true
    }

    /// Ends the connection at once, so that all sources become free although the peer may not have what was read: for a caller that must
    /// return. What comes afterwards is an error.
    ///
    /// # Errors
    /// The system's; the sources are then free when the connection is dropped.
    fn fence(&mut self) -> Result<(), TransportError> {
        Ok(())
    }

    /// What carries memory of devices, where this connection's adapter is asked for that.
    fn device_link(&mut self) -> Option<&mut dyn DeviceLink> {
        None
    }

    /// Sends deferred credits: a link on which every message costs piggybacks them on what is sent next,
    /// and this rank may send nothing for a while. What cannot be sent now goes with [`Connection::progress`].
    fn flush_credits(&mut self) {}

    /// Credits that were signalled here and are deferred.
    fn deferred_credits(&self) -> u64 {
        0
    }

    /// Whether the peer's system has everything that was put and signalled, so that closing loses none of it. `false`
    /// where that is not known.
    fn is_delivered(&self) -> bool {
        false
    }

    /// Whether the system has taken over everything that was put and signalled. While it has not,
    /// [`Connection::progress`] must be called for the peer to get the rest.
    fn is_flushed(&self) -> bool {
        true
    }

    /// Whether room to write on this [`Connection::wake_at`] is what a `Pending` put, or what is not flushed, waits for. `false` while a
    /// connection waits for something else, such as being mended.
    fn waits_for_room(&self, _at: usize) -> bool {
        true
    }

    /// Moves what is under way in both directions. A mapped connection has nothing to do. Never blocks.
    ///
    /// # Errors
    /// [`TransportError::Protocol`] when the peer sent what it must not, or the system's error.
    fn progress(&mut self) -> Result<PeerState, TransportError>;

    /// A descriptor that becomes readable when [`Connection::progress`] has something to take in, for a waiter
    /// that goes to sleep after [`Connection::arm`]. None for mapped connections, which have a [`Connection::bell`]. A `Pending` put or
    /// signal waits for the same descriptor to become writable.
    fn wake(&self) -> Option<BorrowedFd<'_>> {
        self.wake_at(0)
    }

    /// The same where there are several: they are counted from 0, without a gap.
    fn wake_at(&self, _at: usize) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Whether each [`Connection::progress`] is a call of the system; otherwise it is some loads.
    fn looks_by_calls(&self) -> bool {
        true
    }

    /// Before a sleep that the descriptors of [`Connection::wake_at`] are to end: from now on they become readable with what comes, and with
    /// the room or the source that was asked for in vain, where [`Connection::waits_for_room`] says that no room to write is waited for.
    /// Whether nothing has come before that; else [`Connection::progress`] has something to say.
    fn arm(&mut self) -> bool {
        true
    }

    /// Whether the descriptors of [`Connection::wake_at`] have become others since this was asked last, as a connection does that is
    /// mended. Those before stay open until then, and go through `forget`.
    fn has_new_wake(&mut self, _forget: &mut dyn FnMut(BorrowedFd<'_>)) -> bool {
        false
    }

    /// What each way to the peer has carried, where a system counts that: a call of the system for each.
    fn flows(&self, _each: &mut dyn FnMut(Flow)) {}

    /// Each way that has ever led to the peer, where the connection goes on over others when one is down. A way that was down for
    /// `_lost_after` in all is lost, until it has been open for as long in a row; what is between two looks does not count.
    fn ways(&self, _lost_after: Duration, _each: &mut dyn FnMut(Way)) {}

    /// The doorbells of both sides, where the peer's stores move everything ([`Capabilities::load_store`]): a waiter
    /// sleeps on its own, and who has stored rings the other.
    fn bell(&self) -> Option<Bell> {
        None
    }
}
