//! Frames on a stream that never blocks: reading them whole, and writing bytes as the stream takes them. Handshakes, joining and
//! control links all speak in them.
//!
//! ```text
//! frame   length u32 | kind u8 | payload
//! ```
//!
//! Invariant: reading never holds more bytes than the frame at hand may have; a frame of an unexpected kind or length is
//! refused as soon as its head is there. Absent: what frames mean.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;

use crate::codec::{Malformed, Wire};

/// The bytes before the payload.
const HEAD: usize = 5;

/// The kinds of frames.
pub(crate) mod kind {
    pub(crate) const GREETING: u8 = 1;
    pub(crate) const CLAIM: u8 = 2;
    pub(crate) const ACCEPT: u8 = 3;
    pub(crate) const REFUSAL: u8 = 4;
    pub(crate) const HELLO: u8 = 5;
    pub(crate) const TABLE: u8 = 6;
    pub(crate) const FAILURE: u8 = 7;
    pub(crate) const MESSAGE: u8 = 8;
    pub(crate) const REFERRAL: u8 = 9;
}

/// The bytes of a frame with this payload, which may be given in pieces.
pub(crate) fn frame(kind: u8, pieces: &[&[u8]]) -> Vec<u8> {
    let mut bytes = frame_head(kind, pieces.iter().map(|piece| piece.len()).sum());
    pieces.iter().for_each(|piece| bytes.extend_from_slice(piece));
    bytes
}

/// The head of a frame whose payload follows separately.
pub(crate) fn frame_head(kind: u8, payload: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD);
    (payload as u32, kind).put(&mut bytes);
    bytes
}

/// How far reading got.
#[derive(Debug)]
pub(crate) enum Progress {
    /// A whole frame: kind and payload.
    Frame(u8, Vec<u8>),
    /// Nothing more for now: the stream would block.
    Pending,
    /// The other side closed.
    Ended,
    /// The connection broke.
    Broken(io::Error),
    /// Not what may come here.
    Malformed(Malformed),
}

/// A frame that is coming in.
#[derive(Default)]
pub(crate) struct Incoming {
    bytes: Vec<u8>,
}

impl Incoming {
    /// Reads on; `bound` gives the longest payload of each kind that may come now.
    pub(crate) fn read(&mut self, socket: &mut impl Read, bound: impl Fn(u8) -> Option<usize>) -> Progress {
        let mut piece = [0u8; 4096];
        loop {
            let mut total = HEAD;
            if let Some((head, _)) = self.bytes.split_first_chunk::<HEAD>() {
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
                    // With its memory, which a link would otherwise keep for its longest message.
                    let mut payload = std::mem::take(&mut self.bytes);
                    payload.drain(..HEAD);
                    return Progress::Frame(kind, payload);
                }
            }
            let wanted = (total - self.bytes.len()).min(piece.len());
            match socket.read(&mut piece[..wanted]) {
                Ok(0) => return Progress::Ended,
                Ok(count) => self.bytes.extend_from_slice(&piece[..count]),
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock => return Progress::Pending,
                    _ => return Progress::Broken(error),
                },
            }
        }
    }
}

/// Bytes that are going out, in order.
#[derive(Default)]
pub(crate) struct Outgoing {
    /// Each with how much of it has been sent.
    pieces: VecDeque<(Arc<[u8]>, usize)>,
    /// Bytes that are still to be sent.
    left: usize,
}

impl Outgoing {
    pub(crate) fn push(&mut self, bytes: impl Into<Arc<[u8]>>) {
        let bytes = bytes.into();
        if !bytes.is_empty() {
            self.left += bytes.len();
            self.pieces.push_back((bytes, 0));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// Bytes that are still to be sent.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// Writes what the socket takes now. Whether everything has been sent.
    pub(crate) fn write(&mut self, socket: &mut impl Write) -> io::Result<bool> {
        while let Some((bytes, sent)) = self.pieces.front_mut() {
            match socket.write(&bytes[*sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => {
                    *sent += count;
                    self.left -= count;
                }
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

/// Both directions of one stream.
#[derive(Default)]
pub(crate) struct Frames {
    pub(crate) incoming: Incoming,
    pub(crate) outgoing: Outgoing,
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(matches!(incoming.read(&mut socket, bound), Progress::Ended));
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

    #[test]
    fn what_is_left_to_send_is_counted_and_comes_in_order() {
        let mut outgoing = Outgoing::default();
        outgoing.push(*b"abc");
        outgoing.push(*b"");
        outgoing.push(*b"de");
        assert_eq!(outgoing.left(), 5);
        let mut room = [0; 4];
        assert!(outgoing.write(&mut room.as_mut_slice()).is_err(), "a stream that takes nothing more");
        assert_eq!((&room, outgoing.left(), outgoing.is_empty()), (b"abcd", 1, false));
        let mut rest = Vec::new();
        assert!(outgoing.write(&mut rest).is_ok_and(|sent| sent));
        assert_eq!((rest.as_slice(), outgoing.left(), outgoing.is_empty()), (&b"e"[..], 0, true));
    }
}
