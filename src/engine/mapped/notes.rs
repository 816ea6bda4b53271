//! What ranks tell each other of their buffers, as bytes.
//!
//! Invariant: whatever bytes come, what is read from them is checked before it is used; a place outside the memory it
//! names is refused where it is mapped.

use consort_memory::areas::Area;
use consort_memory::{Span, SpanMut};
use consort_transports::Lent;

/// Where a buffer is: in which area of its rank, and how far from its beginning. Key 0 is of memory that no other
/// process can map; the offset is its address then.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Place {
    pub(super) key: u64,
    pub(super) offset: u64,
}

/// What a rank says first: where its buffers are, and whether it has areas to tell of.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Entry {
    pub(super) input: Place,
    pub(super) output: Place,
    pub(super) tells: bool,
    /// Of rank 0: how bytes are staged if the operation goes the planned way; or that ranks read each other's memory.
    pub(super) way: u8,
    /// What this rank told of its part of the operation before, for [`crate::engine::trial`].
    pub(super) took: u32,
    /// Whether this rank may be asked to read others' memory, and whether it has done so.
    pub(super) may_pull: bool,
    pub(super) has_pulled: bool,
    /// Where in its memory a word is that nobody else knows, and which.
    pub(super) witness: (u64, u64),
}

/// What a rank says besides where its buffers are.
#[derive(Clone, Copy, Default)]
pub(crate) struct Opening {
    /// Of rank 0: how bytes cross if no buffers are mapped.
    pub(crate) way: u8,
    /// Whether it is run on mapped buffers, if all are.
    pub(crate) may_map: bool,
    /// Whether others may be allowed to read this rank's memory.
    pub(crate) may_pull: bool,
    /// See [`Trials::told`](crate::engine::trial::Trials::told).
    pub(crate) took: u32,
}

/// How another rank maps an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Notice {
    pub(super) key: u64,
    pub(super) bytes: u64,
    pub(super) file_offset: u64,
    pub(super) lent: [u8; Lent::NOTICE_BYTES],
}

/// The bytes of a note.
fn read<const N: usize>(from: Span<'_>, at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    SpanMut::of(&mut bytes).copy_from(from.slice(at, N));
    bytes
}

fn word(from: Span<'_>, at: usize) -> u64 {
    u64::from_le_bytes(read(from, at))
}

impl Entry {
    pub(super) const BYTES: usize = 56;

    pub(super) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let words = [
            self.input.key,
            self.input.offset,
            self.output.key,
            self.output.offset,
            u64::from(self.tells)
                | u64::from(self.may_pull) << 1
                | u64::from(self.has_pulled) << 2
                | u64::from(self.way) << 8
                | u64::from(self.took) << 32,
            self.witness.0,
            self.witness.1,
        ];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub(super) fn decode(from: Span<'_>) -> Self {
        Entry {
            input: Place { key: word(from, 0), offset: word(from, 8) },
            output: Place { key: word(from, 16), offset: word(from, 24) },
            tells: word(from, 32) & 1 != 0,
            may_pull: word(from, 32) & 2 != 0,
            has_pulled: word(from, 32) & 4 != 0,
            way: (word(from, 32) >> 8) as u8,
            took: (word(from, 32) >> 32) as u32,
            witness: (word(from, 40), word(from, 48)),
        }
    }
}

impl Notice {
    const BYTES: usize = 24 + Lent::NOTICE_BYTES;
    /// The longest list: input and output.
    pub(super) const LIST_BYTES_MAX: usize = 8 + 2 * Self::BYTES;

    /// Of an area that is lent.
    pub(super) fn of(area: &Area, lent: &Lent) -> Self {
        Notice {
            key: area.key(),
            bytes: area.bytes() as u64,
            file_offset: area.file_offset() as u64,
            lent: lent.notice(),
        }
    }

    /// A list of at most two.
    pub(super) fn encode_list(list: &[Notice]) -> Vec<u8> {
        let mut bytes = (list.len() as u64).to_le_bytes().to_vec();
        for notice in list {
            for word in [notice.key, notice.bytes, notice.file_offset] {
                bytes.extend_from_slice(&word.to_le_bytes());
            }
            bytes.extend_from_slice(&notice.lent);
        }
        bytes
    }

    /// The inverse; what is more than two is not read.
    pub(super) fn decode_list(from: Span<'_>) -> impl Iterator<Item = Notice> + '_ {
        let count = word(from, 0).min(2) as usize;
        (0..count).map(move |nth| {
            let at = 8 + nth * Self::BYTES;
            Notice {
                key: word(from, at),
                bytes: word(from, at + 8),
                file_offset: word(from, at + 16),
                lent: read(from, at + 24),
            }
        })
    }
}
