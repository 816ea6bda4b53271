//! What two ends say to each other beside the data: an endpoint's place, and the messages that go into the peer's trays.
//!
//! ```text
//! place     version u8 | nonce [16] | start u64 | mailbox u64 | number of ports u8, of queue pairs u8
//!           each port: Ethernet u8 | MTU u8 | local id u16 | address [16] | key u32
//!           each queue pair: its port u8, and whether it is a reserve | number u32
//! message   kind u8 | length u8 | fragment u8 | of u8 | number u32 | heard u32 | offset u32 | value u64 | tag u64 | credit u64 |
//!           its tag u64 | fill u32 | acknowledged u32 | bytes of the mailbox, of this length
//! ```
//!
//! Invariant: little-endian; reading never panics. Absent: queues, memory.

use super::port::Reach;
use super::sys::Gid;
use crate::fields::Fields;
use crate::segment::{NONCE_BYTES, Nonce};

/// The form of places and messages.
const VERSION: u8 = 4;
/// The bytes of a message, without those of the mailbox.
pub(super) const MESSAGE_BYTES: usize = 56;
/// A place of a tray, and the most bytes of the mailbox that go with a message.
pub(super) const PLACE_BYTES: usize = 128;
pub(super) const CARRIED_BYTES: usize = PLACE_BYTES - MESSAGE_BYTES;
/// Messages that may be on their way, and places in a tray.
pub(super) const TRAY: u64 = 64;
/// Bytes of a tray.
pub(super) const TRAY_BYTES: usize = TRAY as usize * PLACE_BYTES;
/// Room behind a tray for what is longer than a message.
pub(super) const LETTER_BYTES: usize = 1024;
/// What each queue pair has of the memory of its end, before the mailbox.
pub(super) const LANE_BYTES: usize = TRAY_BYTES + LETTER_BYTES;
/// Ports of an endpoint, and queue pairs.
pub(super) const PORTS_MAX: usize = 4;
pub(super) const LANES_MAX: usize = 16;
/// The longest mailbox of a peer: as many bytes are registered here to write it from, and one write has no more.
const MAILBOX_BYTES_MAX: u64 = 1 << 30;
/// Packet numbers have as many bits.
const PACKET_BITS: u32 = 24;
/// Says of a queue pair that it is a reserve.
const RESERVE: u8 = 1 << 7;

/// Where an endpoint is, and where its peer may write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) nonce: Nonce,
    /// Where its memory begins: a tray and room for a letter for each queue pair, and then the mailbox.
    pub(super) start: u64,
    pub(super) mailbox_bytes: u64,
    /// How each port is reached, and the key of the memory there.
    pub(super) ports: Vec<(Reach, u32)>,
    pub(super) queues: Vec<QueuePlace>,
}

/// A queue pair of an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct QueuePlace {
    /// Which of the endpoint's ports.
    pub(super) port: usize,
    /// Whether it is to carry something only where no other does.
    pub(super) is_reserve: bool,
    pub(super) number: u32,
}

impl Place {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend(self.nonce);
        [self.start, self.mailbox_bytes].iter().for_each(|word| out.extend(word.to_le_bytes()));
        out.extend([self.ports.len() as u8, self.queues.len() as u8]);
        for (reach, key) in &self.ports {
            out.extend([u8::from(reach.is_ethernet), reach.mtu]);
            out.extend(reach.lid.to_le_bytes());
            out.extend(reach.gid.0);
            out.extend(key.to_le_bytes());
        }
        for queue in &self.queues {
            out.push(queue.port as u8 | if queue.is_reserve { RESERVE } else { 0 });
            out.extend(queue.number.to_le_bytes());
        }
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let [version] = fields.take()?;
        let nonce = fields.take::<NONCE_BYTES>()?;
        let (start, mailbox_bytes) = (fields.u64()?, fields.u64()?);
        let [ports, queues] = fields.take::<2>()?.map(usize::from);
        let counts = (1..=PORTS_MAX).contains(&ports) && (1..=LANES_MAX).contains(&queues);
        if version != VERSION || !counts || mailbox_bytes > MAILBOX_BYTES_MAX {
            return None;
        }
        start.checked_add((queues * LANE_BYTES) as u64)?.checked_add(mailbox_bytes)?;
        let port = |fields: &mut Fields<'_>| {
            let [ethernet, mtu] = fields.take()?;
            let lid = u16::from_le_bytes(fields.take()?);
            let gid = Gid(fields.take()?);
            // Its place in the peer's table is the peer's.
            let reach = Reach { lid, gid, gid_index: 0, mtu, is_ethernet: ethernet == 1, is_routed: false };
            // Packets of 256 to 4096 bytes.
            (ethernet <= 1 && (1..=5).contains(&mtu)).then_some((reach, fields.u32()?))
        };
        let ports = (0..ports).map(|_| port(&mut fields)).collect::<Option<Vec<_>>>()?;
        let queue = |fields: &mut Fields<'_>| {
            let [port] = fields.take()?;
            let (of, is_reserve) = (usize::from(port & !RESERVE), port & RESERVE != 0);
            let queue = QueuePlace { port: of, is_reserve, number: fields.u32()? };
            (of < ports.len()).then_some(queue)
        };
        let queues = (0..queues).map(|_| queue(&mut fields)).collect::<Option<Vec<_>>>()?;
        fields.end()?;
        Some(Place { nonce, start, mailbox_bytes, ports, queues })
    }

    /// The number of the first packet that one of its queue pairs sends, as it is at first.
    pub(super) fn first_packet(&self, queue: usize) -> u32 {
        let random = u32::from_le_bytes(*self.nonce.first_chunk().expect("a nonce has 16 bytes"));
        later_packet(random, queue as u64)
    }
}

/// The number of the packet that comes this far behind another.
pub(super) fn later_packet(number: u32, by: u64) -> u32 {
    number.wrapping_add(by as u32) & ((1 << PACKET_BITS) - 1)
}

/// What a message says.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum Kind {
    /// The counter of this side's fills, or a fragment of a fill that says it.
    Ready = 1,
    /// The queue pair is there; value and tag are the nonce of the endpoint that is meant.
    Hello = 2,
    /// Nothing but how many messages were heard, and perhaps a credit.
    #[default]
    Heard = 3,
    /// Nothing more follows; the value is how many fills there were in all.
    End = 4,
    /// A fragment of a fill that says nothing.
    Put = 5,
    /// The peer is to acknowledge as many fills as the value says, when they are there.
    Ask = 6,
    /// A letter of as many bytes as the value says lies behind the tray: up to which epoch this side has closed a path.
    Fence = 7,
    /// A queue pair is to be connected anew: the value names path and epoch, the tag a queue pair and its first packet.
    Dial = 8,
    /// The answer to that.
    Dialled = 9,
    /// A fragment as of [`Kind::Ready`], of a fill whose source its sender keeps until the peer acknowledges the fill.
    Lent = 10,
}

const KINDS: [Kind; 10] = [
    Kind::Ready,
    Kind::Hello,
    Kind::Heard,
    Kind::End,
    Kind::Put,
    Kind::Ask,
    Kind::Fence,
    Kind::Dial,
    Kind::Dialled,
    Kind::Lent,
];

impl Kind {
    /// Whether it is a fill, or a fragment of one.
    pub(super) fn is_fill(self) -> bool {
        matches!(self, Kind::Ready | Kind::Put | Kind::Lent)
    }
}

/// A message.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Message {
    pub(super) kind: Kind,
    /// Which fragment of how many it is, where there are fragments.
    pub(super) fragment: (u8, u8),
    /// Which message it is, counted from 0.
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
    /// The lower halves of the number of the fill, and of how many of the peer's fills are here: where there are fragments.
    pub(super) fill: u32,
    pub(super) acknowledged: u32,
}

impl Message {
    pub(super) fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let mut out = [0; MESSAGE_BYTES];
        out[..4].copy_from_slice(&[self.kind as u8, self.carried, self.fragment.0, self.fragment.1]);
        for (at, word) in [self.number, self.heard, self.offset].into_iter().enumerate() {
            out[4 + 4 * at..8 + 4 * at].copy_from_slice(&word.to_le_bytes());
        }
        let (credit, its_tag) = self.credit;
        for (at, word) in [self.value, self.tag, credit, its_tag].into_iter().enumerate() {
            out[16 + 8 * at..24 + 8 * at].copy_from_slice(&word.to_le_bytes());
        }
        for (at, word) in [self.fill, self.acknowledged].into_iter().enumerate() {
            out[48 + 4 * at..52 + 4 * at].copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    pub(super) fn decode(bytes: &[u8; MESSAGE_BYTES]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let [kind, carried, index, count] = fields.take::<4>()?;
        let kind = KINDS.into_iter().find(|of| *of as u8 == kind)?;
        let (number, heard, offset) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let (value, tag) = (fields.u64()?, fields.u64()?);
        let credit = (fields.u64()?, fields.u64()?);
        let (fill, acknowledged) = (fields.u32()?, fields.u32()?);
        fields.end()?;
        let is_fill = kind.is_fill();
        let is_sound = usize::from(carried) <= CARRIED_BYTES
            && (is_fill || (carried, index, count, offset, fill) == (0, 0, 0, 0, 0));
        let fragment = (index, count);
        let of = Message {
            kind,
            fragment,
            number,
            heard,
            value,
            tag,
            credit,
            offset,
            carried,
            fill,
            acknowledged,
        };
        is_sound.then_some(of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_they_were_written_and_nothing_else_is() {
        let reach =
            Reach { lid: 7, gid: Gid([9; 16]), gid_index: 0, mtu: 5, is_ethernet: true, is_routed: false };
        let queue = |port, is_reserve, number| QueuePlace { port, is_reserve, number };
        let place = Place {
            nonce: [0xff; NONCE_BYTES],
            start: 1 << 40,
            mailbox_bytes: 4096,
            ports: vec![(reach, 3), (Reach { is_ethernet: false, ..reach }, 4)],
            queues: vec![queue(0, false, 17), queue(1, true, u32::MAX)],
        };
        let bytes = place.encode();
        assert_eq!(Place::decode(&bytes), Some(place.clone()));
        for at in 0..bytes.len() {
            assert!(Place::decode(&bytes[..at]).is_none());
        }
        assert!(Place::decode(&[&bytes[..], &[0]].concat()).is_none());
        assert!([0, 1].into_iter().all(|queue| place.first_packet(queue) >> PACKET_BITS == 0));
        assert_ne!(place.first_packet(0), place.first_packet(1));
        let changed = |change: &dyn Fn(&mut Place)| {
            let mut other = place.clone();
            change(&mut other);
            Place::decode(&other.encode())
        };
        assert!(changed(&|place| place.mailbox_bytes = u64::MAX).is_none());
        assert!(changed(&|place| place.start = u64::MAX - 10).is_none());
        assert!(changed(&|place| place.ports[1].0.mtu = 6).is_none());
        assert!(changed(&|place| place.queues[1].port = 2).is_none());
        assert!(changed(&|place| place.queues.clear()).is_none());
        assert!(changed(&|place| place.ports = vec![(reach, 3); PORTS_MAX + 1]).is_none());
        let most = changed(&|place| {
            place.ports = vec![(reach, 3); PORTS_MAX];
            place.queues = vec![queue(0, false, 1); LANES_MAX];
        });
        assert!(most.is_some_and(|most| most.encode().len() <= crate::Address::BYTES_MAX));
    }

    #[test]
    fn messages_are_read_as_they_were_written_and_nothing_else_is() {
        for kind in KINDS {
            let plain = Message {
                kind,
                number: 3,
                heard: 2,
                value: u64::MAX,
                tag: !7,
                credit: (5, !6),
                acknowledged: !9,
                ..Message::default()
            };
            assert_eq!(Message::decode(&plain.encode()), Some(plain));
            let full = Message {
                offset: u32::MAX,
                carried: CARRIED_BYTES as u8,
                fragment: (6, 7),
                fill: !8,
                ..plain
            };
            assert_eq!(Message::decode(&full.encode()), kind.is_fill().then_some(full));
            assert!(
                Message::decode(&Message { carried: CARRIED_BYTES as u8 + 1, ..full }.encode()).is_none()
            );
        }
        assert!(
            Message::decode(&[0; MESSAGE_BYTES]).is_none() && Message::decode(&[11; MESSAGE_BYTES]).is_none()
        );
    }
}
