//! What two ends say to each other: an endpoint's place, and the headers of messages.
//!
//! ```text
//! place     version u8 | mailbox u64 | nonce [16] | the plugin's handle [128] | its name, by length u8
//! message   kind u32 | number u32 | offset u64 | bytes u64 | value u64 | tag u64, and then its bytes of the mailbox
//! ```
//!
//! Invariant: little-endian; reading never panics. Absent: comms, memory.

use crate::abi::HANDLE_BYTES;
use crate::fields::Fields;
use crate::segment::{NONCE_BYTES, Nonce};

/// The form of places and messages.
const VERSION: u8 = 1;
/// Bytes of a plugin's name that a place has, at most.
pub(super) const NAME_BYTES_MAX: usize = 64;
/// Bytes of a header.
pub(super) const HEADER_BYTES: usize = 40;
/// Bytes of a mailbox that one message has, at most.
pub(super) const PIECE_BYTES_MAX: usize = 64 << 10;

/// Where an endpoint is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) mailbox_bytes: u64,
    pub(super) nonce: Nonce,
    pub(super) handle: [u8; HANDLE_BYTES],
    /// The plugin's name, cut.
    pub(super) plugin: Vec<u8>,
}

impl Place {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend(self.mailbox_bytes.to_le_bytes());
        out.extend(self.nonce);
        out.extend(self.handle);
        out.push(self.plugin.len() as u8);
        out.extend(&self.plugin);
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let [version] = fields.take()?;
        let mailbox_bytes = fields.u64()?;
        let (nonce, handle) = (fields.take::<NONCE_BYTES>()?, fields.take()?);
        let [length] = fields.take()?;
        let plugin = fields.0.to_vec();
        let is_sound =
            version == VERSION && plugin.len() == usize::from(length) && plugin.len() <= NAME_BYTES_MAX;
        is_sound.then_some(Place { mailbox_bytes, nonce, handle, plugin })
    }
}

/// Bytes of a mailbox of this length that one message has, at most.
pub(super) fn piece_bytes(mailbox_bytes: usize) -> usize {
    mailbox_bytes.min(PIECE_BYTES_MAX)
}

/// What a message says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Nothing but its bytes.
    Bytes = 0,
    /// The counter of this side's fills.
    Ready = 1,
    /// The counter of slots that are free again.
    Credit = 2,
    /// The endpoint is there; value and tag are the nonce of the endpoint that is meant.
    Hello = 3,
    /// Nothing more follows.
    End = 4,
}

/// The header of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub(super) kind: Kind,
    /// Which one it is, counted from 0.
    pub(super) number: u32,
    /// Where its bytes go in the mailbox.
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) value: u64,
    pub(super) tag: u64,
}

impl Header {
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..4].copy_from_slice(&(self.kind as u32).to_le_bytes());
        out[4..8].copy_from_slice(&self.number.to_le_bytes());
        for (at, word) in [self.offset, self.bytes, self.value, self.tag].into_iter().enumerate() {
            out[8 + 8 * at..16 + 8 * at].copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let kind = match fields.u32()? {
            0 => Kind::Bytes,
            1 => Kind::Ready,
            2 => Kind::Credit,
            3 => Kind::Hello,
            4 => Kind::End,
            _ => return None,
        };
        let number = fields.u32()?;
        let [offset, bytes, value, tag] = [fields.u64()?, fields.u64()?, fields.u64()?, fields.u64()?];
        fields.end()?;
        Some(Header { kind, number, offset, bytes, value, tag })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_headers_are_read_as_they_were_written_and_nothing_else_is() {
        let place = Place {
            mailbox_bytes: 4096,
            nonce: [5; 16],
            handle: [7; HANDLE_BYTES],
            plugin: b"Socket".to_vec(),
        };
        let bytes = place.encode();
        assert_eq!(Place::decode(&bytes).as_ref(), Some(&place));
        for at in 0..bytes.len() {
            assert!(Place::decode(&bytes[..at]).is_none());
        }
        assert!(Place::decode(&[&bytes[..], &[0]].concat()).is_none());
        assert!(Place::decode(&[&[VERSION + 1], &bytes[1..]].concat()).is_none());
        let long = Place { plugin: vec![b'x'; NAME_BYTES_MAX + 1], ..place };
        assert!(Place::decode(&long.encode()).is_none());

        for kind in [Kind::Bytes, Kind::Ready, Kind::Credit, Kind::Hello, Kind::End] {
            let header = Header { kind, number: 3, offset: 1 << 40, bytes: 9, value: u64::MAX, tag: !7 };
            assert_eq!(Header::decode(&header.encode()), Some(header));
        }
        assert!(Header::decode(&[9; HEADER_BYTES]).is_none());
    }
}
