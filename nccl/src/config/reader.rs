//! Fields of a client's struct, by offset and by the version that brought them.
//!
//! Invariant: a field that is not wholly within the bytes, or newer than the client, is undefined. Absent: which
//! values are allowed.

use consort_types::error::{Error, Result};

/// The value of every int after NCCL's initialisers: unset.
pub(super) const UNDEFINED: i32 = i32::MIN;
/// The magic number of every struct that a client initialises.
pub(super) const MAGIC: u32 = 0xcafe_beef;
/// Size, magic and version.
const HEAD_BYTES: usize = 16;

pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    version: u32,
    text: &'a mut dyn FnMut(usize) -> Option<String>,
}

impl<'a> Reader<'a> {
    /// Checks size, magic and version of a struct that has from `least` to `most` bytes.
    pub(super) fn begin(
        name: &str,
        bytes: &'a [u8],
        least: usize,
        most: usize,
        text: &'a mut dyn FnMut(usize) -> Option<String>,
    ) -> Result<Self> {
        let refuse = |what: String| {
            Error::invalid(
                format!("the {name} {what}"),
                "initialise it with the initialiser of the header that the program was compiled with",
            )
        };
        let mut read = Reader { bytes, version: u32::MAX, text };
        let size = read.word(0).map(usize::from_ne_bytes).ok_or_else(|| refuse("has no size".into()))?;
        if size < least.max(HEAD_BYTES) {
            return Err(refuse(format!(
                "has a size of {size} bytes, and none was ever shorter than {least}"
            )));
        }
        if bytes.len() < size.min(most) {
            return Err(refuse(format!("has a size of {size} bytes, but only {} came", bytes.len())));
        }
        read.bytes = &bytes[..size.min(most)];
        let number = |at| read.word(at).map(u32::from_ne_bytes).unwrap_or_default();
        if number(8) != MAGIC {
            return Err(refuse(format!("begins with {:#010x} where {MAGIC:#010x} must stand", number(8))));
        }
        read.version = number(12);
        Ok(read)
    }

    fn word<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.bytes.get(at..)?.first_chunk().copied()
    }

    /// The field at offset `at`, which clients have since version `since`, defined or not.
    pub(super) fn raw(&self, at: usize, since: u32) -> i32 {
        let field = if self.version < since { None } else { self.word(at) };
        field.map_or(UNDEFINED, i32::from_ne_bytes)
    }

    /// The same field; `None` where it is undefined.
    pub(super) fn int(&self, at: usize, since: u32) -> Option<i32> {
        Some(self.raw(at, since)).filter(|value| *value != UNDEFINED)
    }

    /// Eight bytes as they are; 0 where the struct lacks them.
    pub(super) fn long(&self, at: usize, since: u32) -> u64 {
        let field = if self.version < since { None } else { self.word(at) };
        field.map_or(0, u64::from_ne_bytes)
    }

    /// The text at the field's address.
    pub(super) fn text(&mut self, at: usize, since: u32) -> Option<String> {
        match usize::try_from(self.long(at, since)) {
            Ok(0) | Err(_) => None,
            Ok(address) => (self.text)(address),
        }
    }
}
