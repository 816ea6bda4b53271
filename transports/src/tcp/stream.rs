//! Frames on an established stream: puts that land in the mailbox, signals that raise counters.
//!
//! Invariant: frames do not interleave. A put's bytes go from the caller's memory into the socket and from the
//! socket into the mailbox (those that came along with a header: by one small copy); a frame is checked against
//! the mailbox before its first byte lands. Frames are handled in order, so a counter that went up publishes every
//! put before it. Credits are cumulative and piggybacked: one that is signalled goes out with the next frame, by itself only
//! where [`CREDITS_DEFERRED_MAX`] would be exceeded or the other direction has been idle. Absent: buffering of payload, waiting.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::Poll;

use consort_memory::{Counter, Mapping, Span, SpanMut};
use nix::errno::Errno;

use super::{NAME, Shared, linger, system};
use crate::fields::Fields;
use crate::mapped::check_bounds;
use crate::{Capabilities, Connection, CounterKind, PeerState, RemoteRegion, TransportError};

/// Magic, kind, first value, second value, zero.
const HEADER_BYTES: usize = 32;
const MAGIC: u32 = 0x3163_7363;
const KIND_PUT: u32 = 1;
const KIND_READY: u32 = 2;
const KIND_CREDIT: u32 = 3;

/// The longest payload of a frame, and what one call of `put` writes at most: signals and the other direction get
/// their turn in between.
const FRAME_BYTES_MAX: usize = 1 << 20;
/// Signals that may wait for the socket.
const SIGNALS_MAX: usize = 16;
/// Credits that may be deferred. The peer goes on meanwhile: mailboxes have four slots.
const CREDITS_DEFERRED_MAX: u64 = 1;
/// Calls of `progress` that bring nothing, after which credits are deferred no longer.
const IDLE_LOOKS: u32 = 2;
/// Where headers arrive. What comes along with one is copied from here.
const STAGING_BYTES: usize = 4096;
/// Reads of one call of `progress`.
const READS_MAX: usize = 16;

/// What a frame begins with.
struct Header {
    kind: u32,
    first: u64,
    second: u64,
}

impl Header {
    /// None where a frame does not begin so.
    #[inline]
    fn of(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let (magic, kind) = (fields.u32()?, fields.u32()?);
        let (first, second, zero) = (fields.u64()?, fields.u64()?, fields.u64()?);
        (magic == MAGIC && zero == 0).then_some(Header { kind, first, second })
    }
}

fn header(kind: u32, first: u64, second: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&MAGIC.to_le_bytes());
    header[4..8].copy_from_slice(&kind.to_le_bytes());
    header[8..16].copy_from_slice(&first.to_le_bytes());
    header[16..24].copy_from_slice(&second.to_le_bytes());
    header
}

/// A frame's first bytes, for tests that say anything.
#[cfg(all(test, feature = "fuzzing"))]
pub(super) fn frame(kind: u32, first: u64, second: u64) -> [u8; HEADER_BYTES] {
    header(kind, first, second)
}

/// The put frame that is being written.
#[derive(Debug)]
struct Outgoing {
    header: [u8; HEADER_BYTES],
    header_sent: usize,
    /// Where in the peer's mailbox the next payload byte goes; to notice a caller that changes its mind.
    next_offset: usize,
    payload_left: usize,
}

/// The put frame that is being read.
#[derive(Debug, Default)]
struct Incoming {
    offset: usize,
    left: usize,
}

#[derive(Debug)]
pub(super) struct TcpConnection {
    /// None only while it is dropped.
    socket: Option<OwnedFd>,
    mailbox: Mapping,
    ready: Counter,
    credit: Counter,
    peer_mailbox_bytes: usize,
    shared: Arc<Shared>,

    outgoing: Option<Outgoing>,
    /// Signals that were taken over, from `signals_sent` on; go out between frames.
    signals: Vec<u8>,
    signals_sent: usize,
    /// The credit that is deferred, with its tag; and the last that was queued.
    deferred: Option<(u64, u64)>,
    /// What was wrong when nothing was asked that could fail.
    trouble: Option<TransportError>,
    credited: u64,
    idle_looks: u32,

    incoming: Incoming,
    staging: Box<[u8; STAGING_BYTES]>,
    staged: std::ops::Range<usize>,

    /// The peer ended its direction, or the stream broke; what it sent before has been handled.
    ended: bool,
    /// Nothing more can be written.
    deaf: bool,
    /// What the peer did wrong.
    wrong: Option<&'static str>,
}

impl TcpConnection {
    pub(super) fn new(
        socket: OwnedFd,
        mailbox: Mapping,
        peer_mailbox_bytes: usize,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            socket: Some(socket),
            mailbox,
            ready: Counter::standalone(),
            credit: Counter::standalone(),
            peer_mailbox_bytes,
            shared,
            outgoing: None,
            // And a piggybacked credit, and what a socket took a part of.
            signals: Vec::with_capacity((SIGNALS_MAX + 3) * HEADER_BYTES),
            signals_sent: 0,
            deferred: None,
            trouble: None,
            credited: 0,
            idle_looks: 0,
            incoming: Incoming::default(),
            staging: Box::new([0; STAGING_BYTES]),
            staged: 0..0,
            ended: false,
            deaf: false,
            wrong: None,
        }
    }

    fn descriptor(&self) -> i32 {
        self.socket.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    fn check_usable(&self) -> Result<(), TransportError> {
        match self.wrong {
            Some(what) => Err(TransportError::Protocol { transport: NAME, what }),
            None if self.ended || self.deaf => Err(TransportError::PeerClosed { transport: NAME }),
            None => Ok(()),
        }
    }

    /// Writes what it can of some pieces. 0: the socket is full.
    fn write<const N: usize>(&mut self, pieces: &[Span<'_>; N], more: bool) -> Result<usize, TransportError> {
        let mut pieces = pieces
            .map(|piece| libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() });
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | if more { libc::MSG_MORE } else { 0 };
        loop {
            // SAFETY: zero is a valid value of this plain C structure.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            message.msg_iov = pieces.as_mut_ptr();
            message.msg_iovlen = pieces.len() as _;
            // SAFETY: the pieces are readable for their lengths, and sending only reads them.
            match Errno::result(unsafe { libc::sendmsg(self.descriptor(), &raw const message, flags) }) {
                Ok(sent) => return Ok(sent.unsigned_abs()),
                Err(Errno::EAGAIN | Errno::ENOBUFS) => return Ok(0),
                Err(Errno::EINTR) => {}
                Err(Errno::EPIPE | Errno::ECONNRESET | Errno::ETIMEDOUT) => {
                    self.deaf = true;
                    return Err(TransportError::PeerClosed { transport: NAME });
                }
                Err(error) => {
                    // The frame's place in the stream is lost with it.
                    self.deaf = true;
                    return Err(system("sendmsg", error));
                }
            }
        }
    }

    /// Writes waiting signals, unless a put is in the middle of its frame. Whether none is left.
    fn flush(&mut self) -> Result<bool, TransportError> {
        while self.signals_sent < self.signals.len() {
            if self.outgoing.is_some() {
                return Ok(false);
            }
            let signals = std::mem::take(&mut self.signals);
            let sent = self.write(&[Span::of(&signals[self.signals_sent..])], false);
            self.signals = signals;
            match sent? {
                0 => return Ok(false),
                sent => self.signals_sent += sent,
            }
        }
        self.signals.clear();
        self.signals_sent = 0;
        Ok(true)
    }

    /// The same. A peer that cannot be written to any more may still have sent something that is to be read first.
    fn flush_if_usable(&mut self) -> Result<(), TransportError> {
        if self.ended || self.deaf || self.wrong.is_some() {
            return Ok(());
        }
        match self.flush() {
            Ok(_) | Err(TransportError::PeerClosed { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The deferred credit goes out with what is sent next.
    fn queue_credits(&mut self) {
        if let Some((value, tag)) = self.deferred.take() {
            self.signals.extend_from_slice(&header(KIND_CREDIT, value, tag));
            self.credited = value;
        }
    }

    /// The frame that a put begins or goes on with.
    fn frame(&mut self, offset: usize, bytes: usize, done: usize) -> Outgoing {
        let frame = self.outgoing.take().unwrap_or_else(|| {
            let payload_left = (bytes - done).min(FRAME_BYTES_MAX);
            let next_offset = offset + done;
            let header = header(KIND_PUT, next_offset as u64, payload_left as u64);
            Outgoing { header, header_sent: 0, next_offset, payload_left }
        });
        assert!(
            frame.next_offset == offset + done && frame.payload_left <= bytes - done,
            "a put was begun and another one continued"
        );
        frame
    }

    /// Writes one frame of a put, or goes on with it, and with the last one the signal that publishes it. Signals that
    /// were taken over before go before, in the same call of the system.
    fn put_and(
        &mut self,
        offset: usize,
        bytes: Span<'_>,
        ready: Option<(u64, u64)>,
        done: &mut usize,
    ) -> Result<Poll<()>, TransportError> {
        check_bounds(NAME, offset, bytes.len(), self.peer_mailbox_bytes)?;
        self.check_usable()?;
        if self.outgoing.is_none() {
            if *done == bytes.len() {
                return match ready {
                    Some((value, tag)) => self.signal(CounterKind::Ready, value, tag),
                    None => Ok(Poll::Ready(())),
                };
            }
            self.queue_credits();
        }
        let mut frame = self.frame(offset, bytes.len(), *done);
        let is_last = *done + frame.payload_left == bytes.len();
        let trailer = ready.filter(|_| is_last).map(|(value, tag)| header(KIND_READY, value, tag));
        let trailer = trailer.as_ref().map_or(&[][..], |trailer| trailer);
        let mut of_trailer = 0;
        while frame.payload_left > 0 {
            // Nothing comes between a header and its payload.
            let queued = if frame.header_sent == 0 { self.signals.len() } else { self.signals_sent };
            let signals = std::mem::take(&mut self.signals);
            let sent = self.write(
                &[
                    Span::of(&signals[self.signals_sent..queued]),
                    Span::of(&frame.header[frame.header_sent..]),
                    bytes.slice(*done, frame.payload_left),
                    Span::of(trailer),
                ],
                // "More" comes: the peer looks at nothing before the signal.
                trailer.is_empty(),
            );
            self.signals = signals;
            let mut left = sent?;
            if left == 0 {
                if frame.header_sent > 0 {
                    self.outgoing = Some(frame);
                }
                return Ok(Poll::Pending);
            }
            let mut take = |most: usize| {
                let taken = left.min(most);
                left -= taken;
                taken
            };
            self.signals_sent += take(queued - self.signals_sent);
            frame.header_sent += take(HEADER_BYTES - frame.header_sent);
            let landed = take(frame.payload_left);
            frame.payload_left -= landed;
            frame.next_offset += landed;
            *done += landed;
            of_trailer = left;
        }
        // The rest of the signal comes first, before those that came while the frame was under way.
        let at = self.signals_sent;
        self.signals.splice(at..at, trailer[of_trailer..].iter().copied());
        self.flush()?;
        Ok(if *done == bytes.len() { Poll::Ready(()) } else { Poll::Pending })
    }

    /// Reads once. Whether there may be more.
    fn read(&mut self) -> Result<bool, TransportError> {
        debug_assert!(self.incoming.left == 0 || self.staged.is_empty(), "staged payload is handled first");
        let payload = self.mailbox.span(self.incoming.offset, self.incoming.left);
        let free = &mut self.staging[self.staged.end..];
        let asked = payload.len() + free.len();
        let pieces = [
            libc::iovec { iov_base: payload.as_mut_ptr().cast(), iov_len: payload.len() },
            libc::iovec { iov_base: free.as_mut_ptr().cast(), iov_len: free.len() },
        ];
        // SAFETY: the mailbox's part was cut from its mapping, the other is ours; both are writable.
        let got = unsafe { libc::readv(self.descriptor(), pieces.as_ptr(), pieces.len() as libc::c_int) };
        match Errno::result(got) {
            Ok(0) | Err(Errno::ECONNRESET | Errno::EPIPE | Errno::ETIMEDOUT) => {
                self.ended = true;
                Ok(false)
            }
            Ok(got) => {
                self.idle_looks = 0;
                let got = got.unsigned_abs();
                let landed = got.min(self.incoming.left);
                self.incoming.offset += landed;
                self.incoming.left -= landed;
                self.staged.end += got - landed;
                Ok(got == asked)
            }
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(false),
            Err(error) => Err(system("readv", error)),
        }
    }

    /// Handles what is staged: whole headers, and payload as far as it is there.
    fn handle(&mut self) -> Result<(), &'static str> {
        loop {
            let here = self.staged.len().min(self.incoming.left);
            if here > 0 {
                let from = Span::of(&self.staging[self.staged.start..self.staged.start + here]);
                self.mailbox.span(self.incoming.offset, here).copy_from(from);
                self.incoming.offset += here;
                self.incoming.left -= here;
                self.staged.start += here;
            }
            if self.incoming.left > 0 || self.staged.len() < HEADER_BYTES {
                // To the front, so that there is room for a whole header.
                self.staging.copy_within(self.staged.clone(), 0);
                self.staged = 0..self.staged.len();
                return Ok(());
            }
            let header = Header::of(&self.staging[self.staged.start..self.staged.start + HEADER_BYTES]);
            self.staged.start += HEADER_BYTES;
            let Some(Header { kind, first, second }) = header else {
                return Err("it sent what is not a frame");
            };
            match kind {
                KIND_PUT => self.incoming = self.accept_put(first, second)?,
                KIND_READY => raise(&self.ready, first, second)?,
                KIND_CREDIT => raise(&self.credit, first, second)?,
                _ => return Err("it sent a frame of unknown kind"),
            }
        }
    }

    fn accept_put(&self, offset: u64, bytes: u64) -> Result<Incoming, &'static str> {
        const OUTSIDE: &str = "it put bytes outside the mailbox";
        let offset = usize::try_from(offset).map_err(|_| OUTSIDE)?;
        let left = usize::try_from(bytes).map_err(|_| OUTSIDE)?;
        check_bounds(NAME, offset, left, self.mailbox.bytes()).map_err(|_| OUTSIDE)?;
        Ok(Incoming { offset, left })
    }
}

fn raise(counter: &Counter, value: u64, tag: u64) -> Result<(), &'static str> {
    if value <= counter.value() {
        return Err("it lowered a counter");
    }
    counter.raise(value, tag);
    Ok(())
}

impl Connection for TcpConnection {
    fn transport(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { load_store: false, put: true, ordered: true, needs_progress: true }
    }

    fn mailbox(&self) -> SpanMut<'_> {
        self.mailbox.span(0, self.mailbox.bytes())
    }

    fn remote(&self) -> RemoteRegion<'_> {
        RemoteRegion { bytes: self.peer_mailbox_bytes, mapped: None }
    }

    fn counter(&self, kind: CounterKind) -> &Counter {
        match kind {
            CounterKind::Ready => &self.ready,
            CounterKind::Credit => &self.credit,
        }
    }

    fn peer_counter(&self, _kind: CounterKind) -> Option<&Counter> {
        None
    }

    fn is_flushed(&self) -> bool {
        self.deaf || (self.outgoing.is_none() && self.signals_sent == self.signals.len())
    }

    fn is_delivered(&self) -> bool {
        let outstanding = || self.socket.as_ref().and_then(linger::unacknowledged);
        self.deaf || self.ended || (self.is_flushed() && outstanding() == Some(0))
    }

    fn put(&mut self, offset: usize, bytes: Span<'_>, done: &mut usize) -> Result<Poll<()>, TransportError> {
        self.put_and(offset, bytes, None, done)
    }

    fn fill(
        &mut self,
        offset: usize,
        bytes: Span<'_>,
        ready: (u64, u64),
        done: &mut usize,
    ) -> Result<Poll<()>, TransportError> {
        self.put_and(offset, bytes, Some(ready), done)
    }

    fn signal(&mut self, kind: CounterKind, value: u64, tag: u64) -> Result<Poll<()>, TransportError> {
        self.check_usable()?;
        if self.signals.len() >= SIGNALS_MAX * HEADER_BYTES && !self.flush()? {
            return Ok(Poll::Pending);
        }
        match kind {
            CounterKind::Ready => {
                self.queue_credits();
                self.signals.extend_from_slice(&header(KIND_READY, value, tag));
            }
            CounterKind::Credit => {
                self.deferred = Some((value, tag));
                self.idle_looks = 0;
                if value - self.credited <= CREDITS_DEFERRED_MAX {
                    return Ok(Poll::Ready(()));
                }
                self.queue_credits();
            }
        }
        self.flush()?;
        Ok(Poll::Ready(()))
    }

    fn flush_credits(&mut self) {
        self.queue_credits();
        self.trouble = self.flush_if_usable().err().or(self.trouble.take());
    }

    fn deferred_credits(&self) -> u64 {
        self.deferred.map_or(0, |(value, _)| value - self.credited)
    }

    fn progress(&mut self) -> Result<PeerState, TransportError> {
        if let Some(trouble) = self.trouble.take() {
            return Err(trouble);
        }
        for _ in 0..READS_MAX {
            if let Some(what) = self.wrong {
                return Err(TransportError::Protocol { transport: NAME, what });
            }
            if self.ended {
                return Ok(PeerState::Closed);
            }
            let more = self.read()?;
            self.wrong = self.handle().err();
            if !more && self.wrong.is_none() {
                break;
            }
        }
        if self.deferred.is_some() {
            self.idle_looks += 1;
            if self.idle_looks > IDLE_LOOKS {
                self.queue_credits();
            }
        }
        self.flush_if_usable()?;
        self.wrong.map_or(Ok(()), |what| Err(TransportError::Protocol { transport: NAME, what }))?;
        Ok(if self.ended { PeerState::Closed } else { PeerState::Open })
    }

    fn wake(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }
}

impl Drop for TcpConnection {
    fn drop(&mut self) {
        let Some(socket) = self.socket.take() else { return };
        // A child has the same stream: ending it would end the parent's.
        if self.shared.stamp.is_forked_child() {
            return;
        }
        self.queue_credits();
        let mut rest = Vec::new();
        if self.outgoing.is_none() && !self.deaf {
            rest.extend_from_slice(&self.signals[self.signals_sent..]);
        }
        self.shared.listener.lingering().push(self.shared.key.job, socket, rest);
    }
}

#[cfg(test)]
mod tests;
