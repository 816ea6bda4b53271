//! Frames on a socket, blocking or not: reading them, and writing bytes as it takes them.
//!
//! Invariant: reading never holds more bytes than the frame at hand may have; a frame of an unexpected kind or length is
//! refused as soon as its head is there. Absent: what frames mean.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;

use super::wire::FRAME_HEAD;
use crate::codec::Malformed;

/// How far reading got.
#[derive(Debug)]
pub(super) enum Progress {
    /// A whole frame: kind and payload.
    Frame(u8, Vec<u8>),
    /// Nothing more for now: the socket would block or its read timed out.
    Pending,
    /// The other side closed, or the connection broke.
    Closed,
    /// Not what may come here.
    Malformed(Malformed),
}

/// A frame that is coming in.
#[derive(Default)]
pub(super) struct Incoming {
    bytes: Vec<u8>,
}

impl Incoming {
    /// Reads on; `bound` gives the longest payload of each kind that may come now.
    pub(super) fn read(&mut self, socket: &mut impl Read, bound: impl Fn(u8) -> Option<usize>) -> Progress {
        let mut piece = [0u8; 4096];
        loop {
            let mut total = FRAME_HEAD;
            if let Some((head, _)) = self.bytes.split_first_chunk::<FRAME_HEAD>() {
                let [a, b, c, d, kind] = *head;
                let length = u32::from_le_bytes([a, b, c, d]) as usize;
                match bound(kind) {
                    None => {
                        return Progress::Malformed(Malformed("a message of this kind may not come here"));
                    }
                    Some(most) if length > most => {
                        return Progress::Malformed(Malformed("a message is too long"));
                    }
                    Some(_) => total += length,
                }
                if self.bytes.len() == total {
                    let payload = self.bytes.split_off(FRAME_HEAD);
                    self.bytes.clear();
                    return Progress::Frame(kind, payload);
                }
            }
            let wanted = (total - self.bytes.len()).min(piece.len());
            match socket.read(&mut piece[..wanted]) {
                Ok(0) => return Progress::Closed,
                Ok(count) => self.bytes.extend_from_slice(&piece[..count]),
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock | ErrorKind::TimedOut => return Progress::Pending,
                    _ => return Progress::Closed,
                },
            }
        }
    }
}

/// Bytes that are going out, in order.
#[derive(Default)]
pub(super) struct Outgoing {
    /// Each with how much of it has been sent.
    pieces: VecDeque<(Arc<[u8]>, usize)>,
}

impl Outgoing {
    pub(super) fn push(&mut self, bytes: impl Into<Arc<[u8]>>) {
        let bytes = bytes.into();
        if !bytes.is_empty() {
            self.pieces.push_back((bytes, 0));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Writes what the socket takes now. Whether everything has been sent.
    pub(super) fn write(&mut self, socket: &mut impl Write) -> std::io::Result<bool> {
        while let Some((bytes, sent)) = self.pieces.front_mut() {
            match socket.write(&bytes[*sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => *sent += count,
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => continue,
                    ErrorKind::WouldBlock => return Ok(false),
                    _ => return Err(error),
                },
            }
            if *sent >= bytes.len() {
                self.pieces.pop_front();
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::wire::frame;

    #[test]
    fn frames_are_read_whole_and_one_by_one() {
        let bytes = [frame(3, &[b"abc"]), frame(4, &[])].concat();
        let mut socket = bytes.as_slice();
        let mut incoming = Incoming::default();
        let bound = |kind| (kind == 3 || kind == 4).then_some(3);
        assert!(
            matches!(incoming.read(&mut socket, bound), Progress::Frame(3, payload) if payload == b"abc")
        );
        assert!(
            matches!(incoming.read(&mut socket, bound), Progress::Frame(4, payload) if payload.is_empty())
        );
        assert!(matches!(incoming.read(&mut socket, bound), Progress::Closed));
    }

    #[test]
    fn a_long_or_foreign_frame_is_refused_at_its_head_and_nothing_is_kept_for_it() {
        for bytes in [frame(3, &[b"abcd"]), frame(9, &[]), vec![0xff; 64]] {
            let mut incoming = Incoming::default();
            let progress = incoming.read(&mut bytes.as_slice(), |kind| (kind == 3).then_some(3));
            assert!(matches!(progress, Progress::Malformed(_)), "{progress:?}");
            assert!(incoming.bytes.capacity() <= 16, "{}", incoming.bytes.capacity());
        }
    }
}
