//! One open path of a session: the frames that are being written to a socket and read from it.
//!
//! Invariant: frames do not interleave. A fragment's bytes go from where they are kept into the socket, and from the socket into
//! the mailbox; those that come along with a header take one small copy. Absent: what a frame means, and which is next.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use consort_memory::{Mapping, Span, SpanMut};
use nix::errno::Errno;

use super::linger;
use super::wire::{BITMAPS_BYTES_MAX, HEADER_BYTES, Header};
use crate::streams::{Fenced, Fragment, Path, Word};

/// Where headers arrive. What comes along with one is copied from here.
const STAGING_BYTES: usize = 4096;
const _: () = assert!(HEADER_BYTES + BITMAPS_BYTES_MAX <= STAGING_BYTES);

#[derive(Debug)]
pub(super) struct Socket {
    /// Shared with who watches it.
    pub(super) descriptor: Arc<OwnedFd>,
    pub(super) path: Path,
    /// Frames without payload, from `queue_sent` on; they go out between fragments.
    queue: Vec<u8>,
    queue_sent: usize,
    outgoing: Option<Outgoing>,
    incoming: Option<Incoming>,
    staging: Box<[u8; STAGING_BYTES]>,
    staged: std::ops::Range<usize>,
}

/// The fragment that is being written.
#[derive(Debug)]
struct Outgoing {
    header: [u8; HEADER_BYTES],
    header_sent: usize,
    fragment: Fragment,
    sent: usize,
}

/// The fragment whose bytes are being read.
#[derive(Debug)]
struct Incoming {
    fragment: Fragment,
    /// How many of its bytes are still to come, and whether they go into the mailbox.
    left: usize,
    lands: bool,
}

impl Incoming {
    fn offset(&self) -> usize {
        self.fragment.offset + self.fragment.bytes - self.left
    }
}

/// What a read brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Read {
    Some,
    /// So much that there may be more.
    Full,
    Nothing,
    /// The peer's system ended it, or with a reason it broke: everything that had arrived has been read.
    Ended(Option<Errno>),
}

/// What has been read.
#[derive(Debug)]
pub(super) enum Item {
    /// A fragment begins; [`Socket::take_in`] says what becomes of its bytes.
    Begins(Fragment, Word),
    /// All bytes of one that lands are in the mailbox.
    Landed(Fragment),
    Word(Word),
    Fenced(Fenced),
    End(u64, Word),
}

impl Socket {
    pub(super) fn new(descriptor: OwnedFd, path: Path) -> Self {
        Self {
            descriptor: Arc::new(descriptor),
            path,
            queue: Vec::with_capacity(4 * HEADER_BYTES),
            queue_sent: 0,
            outgoing: None,
            incoming: None,
            staging: Box::new([0; STAGING_BYTES]),
            staged: 0..0,
        }
    }

    /// A frame without payload goes out as soon as it may.
    pub(super) fn queue(&mut self, frame: &[u8]) {
        self.queue.extend_from_slice(frame);
    }

    /// Whether the system has taken over everything.
    pub(super) fn is_flushed(&self) -> bool {
        self.outgoing.is_none() && self.queue.is_empty()
    }

    /// The fragment that is being written.
    pub(super) fn outgoing(&self) -> Option<Fragment> {
        self.outgoing.as_ref().map(|outgoing| outgoing.fragment)
    }

    /// Bytes that the peer's system has not acknowledged; None where that is not known.
    pub(super) fn unacknowledged(&self) -> Option<usize> {
        linger::unacknowledged(&self.descriptor)
    }

    /// This fragment is written next, with its stream's word; [`Socket::write`] is to be called.
    pub(super) fn begin(&mut self, fragment: Fragment, word: Word) {
        debug_assert!(self.outgoing.is_none(), "frames do not interleave");
        let header = Header::Fragment(fragment, word).write();
        self.outgoing = Some(Outgoing { header, header_sent: 0, fragment, sent: 0 });
    }

    /// Writes what the system takes of what is queued, where no fragment is in the middle, and of the fragment that was begun, whose
    /// bytes are `payload`. Whether all of that was taken.
    pub(super) fn write(&mut self, payload: Span<'_>) -> Result<bool, Errno> {
        let in_frame = self.outgoing.as_ref().is_some_and(|outgoing| outgoing.header_sent > 0);
        let queued = if in_frame { self.queue_sent } else { self.queue.len() };
        let (header, rest) = match &self.outgoing {
            Some(Outgoing { header, header_sent, fragment, sent }) => {
                (&header[*header_sent..], payload.slice(*sent, fragment.bytes - sent))
            }
            None => (&[][..], payload.slice(0, 0)),
        };
        let pieces = [Span::of(&self.queue[self.queue_sent..queued]), Span::of(header), rest];
        let asked: usize = pieces.iter().map(|piece| piece.len()).sum();
        if asked == 0 {
            self.written(0);
            return Ok(true);
        }
        let sent = send(self.descriptor.as_raw_fd(), &pieces, asked)?;
        self.written(sent);
        Ok(sent == asked)
    }

    /// The system has taken over `sent` bytes more.
    fn written(&mut self, mut sent: usize) {
        let mut take = |most: usize| {
            let taken = sent.min(most);
            sent -= taken;
            taken
        };
        let in_frame = self.outgoing.as_ref().is_some_and(|outgoing| outgoing.header_sent > 0);
        if !in_frame {
            self.queue_sent += take(self.queue.len() - self.queue_sent);
            if self.queue_sent == self.queue.len() {
                self.queue.clear();
                self.queue_sent = 0;
            }
        }
        if let Some(outgoing) = &mut self.outgoing {
            outgoing.header_sent += take(HEADER_BYTES - outgoing.header_sent);
            outgoing.sent += take(outgoing.fragment.bytes - outgoing.sent);
            if outgoing.header_sent == HEADER_BYTES && outgoing.sent == outgoing.fragment.bytes {
                self.outgoing = None;
            }
        }
    }

    /// Reads once.
    pub(super) fn read(&mut self, mailbox: &Mapping) -> Read {
        let landing = self.incoming.as_ref().filter(|incoming| incoming.lands);
        let payload = landing.map_or((0, 0), |incoming| (incoming.offset(), incoming.left));
        debug_assert!(payload.1 == 0 || self.staged.is_empty(), "staged payload is handled first");
        let payload = mailbox.span(payload.0, payload.1);
        let free = &mut self.staging[self.staged.end..];
        let asked = payload.len() + free.len();
        let descriptor = self.descriptor.as_raw_fd();
        let got = if payload.is_empty() {
            // Costs a tenth less than a read into pieces.
            // SAFETY: the memory is ours, and writable for its length.
            unsafe { libc::recv(descriptor, free.as_mut_ptr().cast(), free.len(), libc::MSG_DONTWAIT) }
        } else {
            let pieces = [
                libc::iovec { iov_base: payload.as_mut_ptr().cast(), iov_len: payload.len() },
                libc::iovec { iov_base: free.as_mut_ptr().cast(), iov_len: free.len() },
            ];
            // SAFETY: the mailbox's part was cut from its mapping, the other is ours; both are writable.
            unsafe { libc::readv(descriptor, pieces.as_ptr(), pieces.len() as libc::c_int) }
        };
        match Errno::result(got) {
            Ok(0) => Read::Ended(None),
            Ok(got) => {
                let got = got.unsigned_abs();
                let landed = got.min(payload.len());
                if let Some(incoming) = &mut self.incoming {
                    incoming.left -= landed;
                }
                self.staged.end += got - landed;
                if got == asked { Read::Full } else { Read::Some }
            }
            Err(Errno::EAGAIN | Errno::EINTR) => Read::Nothing,
            Err(error) => Read::Ended(Some(error)),
        }
    }

    /// What becomes of the bytes of the fragment that begins, which fits into the mailbox.
    pub(super) fn take_in(&mut self, fragment: Fragment, lands: bool) {
        self.incoming = Some(Incoming { fragment, left: fragment.bytes, lands });
    }

    /// What has been read, as far as it is whole.
    pub(super) fn next(&mut self, mailbox: &Mapping) -> Result<Option<Item>, &'static str> {
        if let Some(incoming) = &mut self.incoming {
            let here = self.staged.len().min(incoming.left);
            if here > 0 {
                if incoming.lands {
                    let from = Span::of(&self.staging[self.staged.start..self.staged.start + here]);
                    mailbox.span(incoming.offset(), here).copy_from(from);
                }
                incoming.left -= here;
                self.staged.start += here;
            }
            if incoming.left > 0 {
                self.staged = 0..0;
                return Ok(None);
            }
            let Incoming { fragment, lands, .. } = *incoming;
            self.incoming = None;
            if lands {
                return Ok(Some(Item::Landed(fragment)));
            }
        }
        let staged = &self.staging[self.staged.clone()];
        let Some((header, rest)) = staged.split_first_chunk::<HEADER_BYTES>() else {
            self.move_to_front();
            return Ok(None);
        };
        let mut frame_bytes = HEADER_BYTES;
        let item = match Header::read(header).ok_or("it sent what is not a frame")? {
            Header::Fragment(fragment, word) => Item::Begins(fragment, word),
            Header::Word(word) => Item::Word(word),
            Header::End(fills, word) => Item::End(fills, word),
            Header::Fence(path, fills, bitmaps) => {
                let Some(bitmaps) = rest.get(..bitmaps * size_of::<u64>()) else {
                    self.move_to_front();
                    return Ok(None);
                };
                frame_bytes += bitmaps.len();
                Item::Fenced(Fenced::read(path, fills, bitmaps))
            }
        };
        self.staged.start += frame_bytes;
        Ok(Some(item))
    }

    /// So that there is room for a whole frame.
    fn move_to_front(&mut self) {
        if self.staged.start > 0 {
            self.staging.copy_within(self.staged.clone(), 0);
            self.staged = 0..self.staged.len();
        }
    }
}

/// Up to how many bytes pieces are copied together: that costs less than it costs the system to take them one by one.
const TOGETHER_BYTES: usize = 512;

/// Writes what the system takes of some pieces of `bytes` in all; 0 where it is full.
fn send<const N: usize>(descriptor: i32, pieces: &[Span<'_>; N], bytes: usize) -> Result<usize, Errno> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let mut together = [0u8; TOGETHER_BYTES];
    let is_short = bytes <= TOGETHER_BYTES;
    let mut end = 0;
    for piece in pieces.iter().filter(|_| is_short) {
        SpanMut::of(&mut together[end..end + piece.len()]).copy_from(*piece);
        end += piece.len();
    }
    let mut pieces =
        pieces.map(|piece| libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() });
    loop {
        // SAFETY: zero is a valid value of this plain C structure.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = pieces.as_mut_ptr();
        message.msg_iovlen = pieces.len() as _;
        let sent = if is_short {
            // SAFETY: the bytes are readable, and sending only reads them.
            unsafe { libc::send(descriptor, together.as_ptr().cast(), end, flags) }
        } else {
            // SAFETY: the pieces are readable for their lengths, and sending only reads them.
            unsafe { libc::sendmsg(descriptor, &raw const message, flags) }
        };
        match Errno::result(sent) {
            Ok(sent) => return Ok(sent.unsigned_abs()),
            Err(Errno::EAGAIN | Errno::ENOBUFS) => return Ok(0),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
}
