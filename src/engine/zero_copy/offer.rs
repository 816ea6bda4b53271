//! What ranks tell each other of their buffers, as bytes.
//!
//! Invariant: whatever bytes come, what is read from them is checked before it is used; a place outside the memory it
//! names is refused before it is touched.

use consort_memory::areas::Area;
use consort_memory::{Span, SpanMut};
use consort_transports::Lent;

/// Where a buffer is: in which area of its rank, and how far from its beginning. Key 0 is of no offered memory.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Place {
    pub(super) key: u64,
    pub(super) offset: u64,
}

/// The buffers of a rank that others may map, and whether it announces areas first that the others do not know.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Offer {
    /// Input and output.
    pub(super) places: [Place; 2],
    pub(super) announces: bool,
}

/// What a rank says when it enters an operation.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Note {
    pub(super) offer: Offer,
    /// For the [tuner](crate::engine::store_tuner) alone.
    pub(super) sample: u64,
}

/// How another rank maps an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Announcement {
    pub(super) key: u64,
    pub(super) bytes: u64,
    pub(super) file_offset: u64,
    pub(super) lent: [u8; Lent::NOTICE_BYTES],
}

fn read<const N: usize>(from: Span<'_>, at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    SpanMut::of(&mut bytes).copy_from(from.slice(at, N));
    bytes
}

fn word(from: Span<'_>, at: usize) -> u64 {
    u64::from_le_bytes(read(from, at))
}

impl Note {
    pub(super) const BYTES: usize = 48;

    pub(super) fn encode(&self) -> [u8; Self::BYTES] {
        let [input, output] = self.offer.places;
        let flags = u64::from(self.offer.announces);
        let words = [input.key, input.offset, output.key, output.offset, flags, self.sample];
        let mut bytes = [0; Self::BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub(super) fn decode(from: Span<'_>) -> Self {
        let place = |at: usize| Place { key: word(from, at), offset: word(from, at + 8) };
        let offer = Offer { places: [place(0), place(16)], announces: word(from, 32) & 1 != 0 };
        Note { offer, sample: word(from, 40) }
    }
}

impl Announcement {
    const BYTES: usize = 24 + Lent::NOTICE_BYTES;
    /// The longest list: input and output.
    pub(super) const LIST_BYTES_MAX: usize = 8 + 2 * Self::BYTES;

    /// Of an area that is lent.
    pub(super) fn of(area: &Area, lent: &Lent) -> Self {
        Announcement {
            key: area.key(),
            bytes: area.bytes() as u64,
            file_offset: area.file_offset() as u64,
            lent: lent.notice(),
        }
    }

    /// A list of at most two.
    pub(super) fn encode_list(list: &[Announcement]) -> Vec<u8> {
        let mut bytes = (list.len() as u64).to_le_bytes().to_vec();
        for announcement in list {
            for word in [announcement.key, announcement.bytes, announcement.file_offset] {
                bytes.extend_from_slice(&word.to_le_bytes());
            }
            bytes.extend_from_slice(&announcement.lent);
        }
        bytes
    }

    /// The inverse; what is more than two is not read.
    pub(super) fn decode_list(from: Span<'_>) -> impl Iterator<Item = Announcement> + '_ {
        let count = word(from, 0).min(2) as usize;
        (0..count).map(move |nth| {
            let at = 8 + nth * Self::BYTES;
            Announcement {
                key: word(from, at),
                bytes: word(from, at + 8),
                file_offset: word(from, at + 16),
                lent: read(from, at + 24),
            }
        })
    }
}
