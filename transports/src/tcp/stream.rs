//! Frames on an established stream: puts that land in the mailbox, signals that raise counters.
//!
//! Invariant: frames do not interleave. A put's bytes go from the caller's memory into the socket and from the
//! socket into the mailbox (those that came along with a header: by one small copy); a frame is checked against
//! the mailbox before its first byte lands. Frames are handled in order, so a counter that went up publishes every
//! put before it. Absent: buffering of payload, waiting.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::Poll;

use consort_memory::{Counter, Mapping, Span, SpanMut};
use nix::errno::Errno;

use super::{NAME, Shared, system};
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
/// Where headers arrive. What comes along with one is copied from here.
const STAGING_BYTES: usize = 4096;
/// Reads of one call of `progress`.
const READS_MAX: usize = 16;

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
            signals: Vec::with_capacity(SIGNALS_MAX * HEADER_BYTES),
            signals_sent: 0,
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

    /// Writes what it can of two pieces. 0: the socket is full.
    fn write(&mut self, first: &[u8], second: Span<'_>, more: bool) -> Result<usize, TransportError> {
        let mut pieces = [
            libc::iovec { iov_base: first.as_ptr().cast_mut().cast(), iov_len: first.len() },
            libc::iovec { iov_base: second.as_ptr().cast_mut().cast(), iov_len: second.len() },
        ];
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | if more { libc::MSG_MORE } else { 0 };
        loop {
            // SAFETY: zero is a valid value of this plain C structure.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            message.msg_iov = pieces.as_mut_ptr();
            message.msg_iovlen = pieces.len() as _;
            // SAFETY: the two pieces are readable for their lengths, and sending only reads them.
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
            let sent = self.write(&signals[self.signals_sent..], Span::empty(), false);
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
            let frame = &self.staging[self.staged.start..self.staged.start + HEADER_BYTES];
            let word = |at: usize| u32::from_le_bytes(frame[at..at + 4].try_into().expect("four bytes"));
            let long = |at: usize| u64::from_le_bytes(frame[at..at + 8].try_into().expect("eight bytes"));
            let (magic, kind, first, second, zero) = (word(0), word(4), long(8), long(16), long(24));
            self.staged.start += HEADER_BYTES;
            if magic != MAGIC || zero != 0 {
                return Err("it sent what is not a frame");
            }
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
        Capabilities { put: true, messages_only: true, ordered: true, ..Capabilities::default() }
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

    fn put(&mut self, offset: usize, bytes: Span<'_>, done: &mut usize) -> Result<Poll<()>, TransportError> {
        check_bounds(NAME, offset, bytes.len(), self.peer_mailbox_bytes)?;
        self.check_usable()?;
        if self.outgoing.is_none() {
            if *done == bytes.len() {
                return Ok(Poll::Ready(()));
            }
            // Signals that were taken over before go before.
            if !self.flush()? {
                return Ok(Poll::Pending);
            }
        }
        let mut frame = self.outgoing.take().unwrap_or_else(|| {
            let payload_left = (bytes.len() - *done).min(FRAME_BYTES_MAX);
            let next_offset = offset + *done;
            let header = header(KIND_PUT, next_offset as u64, payload_left as u64);
            Outgoing { header, header_sent: 0, next_offset, payload_left }
        });
        assert!(
            frame.next_offset == offset + *done && frame.payload_left <= bytes.len() - *done,
            "a put was begun and another one continued"
        );
        while frame.payload_left > 0 {
            // "More" comes: nobody looks at the bytes before the signal.
            let sent =
                self.write(&frame.header[frame.header_sent..], bytes.slice(*done, frame.payload_left), true)?;
            let of_header = sent.min(HEADER_BYTES - frame.header_sent);
            frame.header_sent += of_header;
            frame.payload_left -= sent - of_header;
            frame.next_offset += sent - of_header;
            *done += sent - of_header;
            if sent == 0 {
                if frame.header_sent > 0 {
                    self.outgoing = Some(frame);
                }
                return Ok(Poll::Pending);
            }
        }
        // Signals that came while the frame was under way.
        self.flush()?;
        Ok(if *done == bytes.len() { Poll::Ready(()) } else { Poll::Pending })
    }

    fn signal(&mut self, kind: CounterKind, value: u64, tag: u64) -> Result<Poll<()>, TransportError> {
        self.check_usable()?;
        if self.signals.len() == SIGNALS_MAX * HEADER_BYTES && !self.flush()? {
            return Ok(Poll::Pending);
        }
        let kind = match kind {
            CounterKind::Ready => KIND_READY,
            CounterKind::Credit => KIND_CREDIT,
        };
        self.signals.extend_from_slice(&header(kind, value, tag));
        self.flush()?;
        Ok(Poll::Ready(()))
    }

    fn progress(&mut self) -> Result<PeerState, TransportError> {
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
        // A peer that cannot be written to any more may still have sent something that is to be read first.
        if !self.ended && !self.deaf && self.wrong.is_none() {
            match self.flush() {
                Ok(_) | Err(TransportError::PeerClosed { .. }) => {}
                Err(error) => return Err(error),
            }
        }
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
        let mut rest = Vec::new();
        if self.outgoing.is_none() && !self.deaf {
            rest.extend_from_slice(&self.signals[self.signals_sent..]);
        }
        self.shared.lingering().push(socket, rest);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::*;
    use crate::Tcp;

    const MAILBOX_BYTES: usize = 100;

    /// A connection, and the other end of its stream in a hostile hand.
    fn attacked() -> (TcpConnection, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
        let attacker = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
        let (socket, _) = listener.accept().expect("accept");
        socket.set_nonblocking(true).expect("nonblocking");
        let shared = Tcp::new(Ipv4Addr::LOCALHOST.into(), [0; 32]).expect("tcp").shared;
        let mailbox = Mapping::anonymous(MAILBOX_BYTES).expect("memory");
        (TcpConnection::new(socket.into(), mailbox, MAILBOX_BYTES, shared), attacker)
    }

    fn outcome(frames: &[&[u8]]) -> Result<PeerState, TransportError> {
        let (mut connection, mut attacker) = attacked();
        for frame in frames {
            attacker.write_all(frame).expect("write");
        }
        drop(attacker);
        loop {
            match connection.progress() {
                Ok(PeerState::Open) => std::thread::yield_now(),
                Ok(PeerState::Closed) => return Ok(PeerState::Closed),
                Err(error) => {
                    // It stays so, and nothing is sent to such a peer.
                    assert!(matches!(connection.progress(), Err(TransportError::Protocol { .. })));
                    assert!(matches!(
                        connection.signal(CounterKind::Ready, 1, 0),
                        Err(TransportError::Protocol { .. })
                    ));
                    return Err(error);
                }
            }
        }
    }

    #[test]
    fn the_taking_side_checks_every_frame() {
        let good = header(KIND_PUT, 0, 0);
        let mut wrong_magic = good;
        wrong_magic[0] ^= 1;
        let mut wrong_zero = good;
        wrong_zero[31] = 1;
        let wrong = [
            wrong_magic,
            wrong_zero,
            header(0, 0, 0),
            header(4, 0, 0),
            header(KIND_PUT, 0, 101),
            header(KIND_PUT, 100, 1),
            header(KIND_PUT, 101, 0),
            header(KIND_PUT, u64::MAX, 2),
            header(KIND_PUT, 2, u64::MAX),
            header(KIND_READY, 0, 0),
            header(KIND_CREDIT, 0, 0),
        ];
        for frame in wrong {
            let outcome = outcome(&[&good, &frame]);
            assert!(matches!(outcome, Err(TransportError::Protocol { .. })), "{frame:?}: {outcome:?}");
        }
        let up = header(KIND_READY, 5, 0);
        for down in [4, 5] {
            let outcome = outcome(&[&up, &header(KIND_READY, down, 0)]);
            assert!(matches!(outcome, Err(TransportError::Protocol { .. })), "{outcome:?}");
        }
        // And what is right, up to the last byte, is taken; also when the stream ends within a frame.
        assert!(outcome(&[&up, &header(KIND_PUT, 0, 100), &[1; 100]]).is_ok());
        assert!(outcome(&[&header(KIND_PUT, 0, 100), &[1; 99]]).is_ok());
        assert!(outcome(&[&good[..31]]).is_ok());
    }

    #[test]
    fn frames_may_arrive_byte_by_byte() {
        let (mut connection, mut attacker) = attacked();
        let payload: Vec<u8> = (1..=50).collect();
        let stream = [&header(KIND_PUT, 7, 50)[..], &payload, &header(KIND_CREDIT, 3, 33)].concat();
        for byte in stream {
            assert_eq!(connection.credit.value(), 0);
            attacker.write_all(&[byte]).expect("write");
            connection.progress().expect("progress");
        }
        while connection.credit.value() == 0 {
            connection.progress().expect("progress");
        }
        let mut copy = [0u8; 50];
        SpanMut::of(&mut copy).copy_from(connection.mailbox().slice(7, 50).read());
        assert_eq!((&copy[..], connection.credit.tag(3)), (&payload[..], 33));
    }

    #[test]
    #[should_panic(expected = "a put was begun and another one continued")]
    fn another_put_in_the_middle_of_one_is_a_bug() {
        let (mut connection, _attacker) = attacked();
        connection.peer_mailbox_bytes = 1 << 30;
        let data = vec![0u8; 64 << 20];
        let mut done = 0;
        for _ in 0..64 {
            assert!(connection.put(0, Span::of(&data), &mut done).expect("put").is_pending());
        }
        let _ = connection.put(0, Span::of(&data), &mut 0);
    }
}
