//! What two ends say to each other beside the data: an endpoint's place, and the messages that go into the peer's tray.
//!
//! ```text
//! place     version u8 | Ethernet u8 | MTU u8 | local id u16 | queue pair u32 | first packet u32 | address [16] | key u32 |
//!           start u64 | mailbox u64 | nonce [16]
//! message   kind u8 | length u8 | zero u16 | number u32 | heard u32 | offset u32 | value u64 | tag u64 | credit u64 | its tag u64 |
//!           bytes of the mailbox, of this length
//! ```
//!
//! Invariant: little-endian; reading never panics. Absent: queues, memory.

use super::port::Reach;
use super::queue::Peer;
use super::sys::Gid;
use crate::fields::Fields;
use crate::segment::{NONCE_BYTES, Nonce};

/// The form of places and messages.
const VERSION: u8 = 2;
/// The bytes of a message, without those of the mailbox.
pub(super) const MESSAGE_BYTES: usize = 48;
/// A place of a tray, and the most bytes of the mailbox that go with a message.
pub(super) const PLACE_BYTES: usize = 128;
pub(super) const CARRIED_BYTES: usize = PLACE_BYTES - MESSAGE_BYTES;
/// Messages that may be on their way, and places in a tray.
pub(super) const TRAY: u64 = 64;
/// Bytes of a tray, with which the memory of each end begins.
pub(super) const TRAY_BYTES: usize = TRAY as usize * PLACE_BYTES;
/// The longest mailbox of a peer: as many bytes are registered here to write it from, and one write has no more.
const MAILBOX_BYTES_MAX: u64 = 1 << 30;
/// Packet numbers have as many bits.
const PACKET_BITS: u32 = 24;

/// Where an endpoint is, and where its peer may write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) peer: Peer,
    /// The key of its memory, and where that begins: a tray, and then the mailbox.
    pub(super) key: u32,
    pub(super) start: u64,
    pub(super) mailbox_bytes: u64,
    pub(super) nonce: Nonce,
}

impl Place {
    pub(super) fn encode(&self) -> Vec<u8> {
        let Peer { reach, number, first_packet } = self.peer;
        let mut out = vec![VERSION, u8::from(reach.is_ethernet), reach.mtu];
        out.extend(reach.lid.to_le_bytes());
        [number, first_packet].iter().for_each(|word| out.extend(word.to_le_bytes()));
        out.extend(reach.gid.0);
        out.extend(self.key.to_le_bytes());
        [self.start, self.mailbox_bytes].iter().for_each(|word| out.extend(word.to_le_bytes()));
        out.extend(self.nonce);
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let [version, ethernet, mtu] = fields.take()?;
        let lid = u16::from_le_bytes(fields.take()?);
        let (number, first_packet) = (fields.u32()?, fields.u32()?);
        let gid = Gid(fields.take()?);
        let key = fields.u32()?;
        let (start, mailbox_bytes) = (fields.u64()?, fields.u64()?);
        let nonce = fields.take::<NONCE_BYTES>()?;
        fields.end()?;
        // Packets of 256 to 4096 bytes.
        let is_sound =
            version == VERSION && ethernet <= 1 && (1..=5).contains(&mtu) && first_packet >> PACKET_BITS == 0;
        let end = start.checked_add(TRAY_BYTES as u64)?.checked_add(mailbox_bytes);
        if !is_sound || end.is_none() || mailbox_bytes > MAILBOX_BYTES_MAX {
            return None;
        }
        // Its place in the peer's table is the peer's.
        let reach = Reach { lid, gid, gid_index: 0, mtu, is_ethernet: ethernet == 1, is_routed: false };
        Some(Place { peer: Peer { reach, number, first_packet }, key, start, mailbox_bytes, nonce })
    }
}

/// A number of a first packet.
pub(super) fn first_packet(random: [u8; 4]) -> u32 {
    later_packet(u32::from_le_bytes(random), 0)
}

/// The number of the packet that comes this far behind another.
pub(super) fn later_packet(number: u32, by: u64) -> u32 {
    number.wrapping_add(by as u32) & ((1 << PACKET_BITS) - 1)
}

/// What a message says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// The counter of this side's fills.
    Ready = 1,
    /// The queue pair is there; value and tag are the nonce of the endpoint that is meant.
    Hello = 2,
    /// Nothing but how many messages were heard, and perhaps a credit.
    Heard = 3,
    /// Nothing more follows.
    End = 4,
}

/// A message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Message {
    pub(super) kind: Kind,
    /// Which one it is, counted from 0.
    pub(super) number: u32,
    /// How many of the peer's its sender has heard.
    pub(super) heard: u32,
    pub(super) value: u64,
    pub(super) tag: u64,
    /// The counter of slots that are free again, with its tag; 0 where it says nothing of it.
    pub(super) credit: (u64, u64),
    /// Where the bytes behind it go in the mailbox, and how many they are.
    pub(super) offset: u32,
    pub(super) carried: u8,
}

impl Message {
    pub(super) fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let mut out = [0; MESSAGE_BYTES];
        let kind = u32::from(self.kind as u8) | u32::from(self.carried) << 8;
        for (at, word) in [kind, self.number, self.heard, self.offset].into_iter().enumerate() {
            out[4 * at..4 * at + 4].copy_from_slice(&word.to_le_bytes());
        }
        let (credit, its_tag) = self.credit;
        for (at, word) in [self.value, self.tag, credit, its_tag].into_iter().enumerate() {
            out[16 + 8 * at..24 + 8 * at].copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    pub(super) fn decode(bytes: &[u8; MESSAGE_BYTES]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let [kind, carried, zeros @ ..] = fields.take::<4>()?;
        let kind = match kind {
            1 => Kind::Ready,
            2 => Kind::Hello,
            3 => Kind::Heard,
            4 => Kind::End,
            _ => return None,
        };
        let (number, heard, offset) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let (value, tag) = (fields.u64()?, fields.u64()?);
        let credit = (fields.u64()?, fields.u64()?);
        fields.end()?;
        let is_sound = zeros == [0; 2]
            && usize::from(carried) <= CARRIED_BYTES
            && (carried == 0 && offset == 0 || kind == Kind::Ready);
        is_sound.then_some(Message { kind, number, heard, value, tag, credit, offset, carried })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_messages_are_read_as_they_were_written_and_nothing_else_is() {
        let reach =
            Reach { lid: 7, gid: Gid([9; 16]), gid_index: 0, mtu: 5, is_ethernet: true, is_routed: false };
        let peer = Peer { reach, number: 17, first_packet: first_packet([0xff; 4]) };
        let place = Place { peer, key: 3, start: 1 << 40, mailbox_bytes: 4096, nonce: [5; NONCE_BYTES] };
        let bytes = place.encode();
        assert_eq!(Place::decode(&bytes), Some(place));
        for at in 0..bytes.len() {
            assert!(Place::decode(&bytes[..at]).is_none());
        }
        assert!(Place::decode(&[&bytes[..], &[0]].concat()).is_none());
        let changed = |change: &dyn Fn(&mut Place)| {
            let mut other = place;
            change(&mut other);
            Place::decode(&other.encode())
        };
        assert!(changed(&|place| place.mailbox_bytes = u64::MAX).is_none());
        assert!(changed(&|place| place.start = u64::MAX - 10).is_none());
        assert!(changed(&|place| place.peer.reach.mtu = 6).is_none());
        assert!(changed(&|place| place.peer.first_packet = 1 << PACKET_BITS).is_none());

        for kind in [Kind::Ready, Kind::Hello, Kind::Heard, Kind::End] {
            let plain = Message {
                kind,
                number: 3,
                heard: 2,
                value: u64::MAX,
                tag: !7,
                credit: (5, !6),
                offset: 0,
                carried: 0,
            };
            assert_eq!(Message::decode(&plain.encode()), Some(plain));
            let full = Message { offset: u32::MAX, carried: CARRIED_BYTES as u8, ..plain };
            let carries = kind == Kind::Ready;
            assert_eq!(Message::decode(&full.encode()), carries.then_some(full));
            assert!(
                Message::decode(&Message { carried: CARRIED_BYTES as u8 + 1, ..full }.encode()).is_none()
            );
            let mut other = plain.encode();
            other[3] = 1;
            assert!(Message::decode(&other).is_none());
        }
        assert!(
            Message::decode(&[0; MESSAGE_BYTES]).is_none() && Message::decode(&[9; MESSAGE_BYTES]).is_none()
        );
    }
}
