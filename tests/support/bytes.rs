//! Buffers of bytes: ordinary memory, or memory that the other ranks of the host can map.

use std::ops::{Deref, DerefMut};

use consort::SharedBuffer;

/// A buffer.
#[derive(Debug)]
pub enum Bytes {
    /// Ordinary memory.
    Private(Vec<u8>),
    /// Memory that others can map.
    Shared(SharedBuffer<u8>),
}

impl Bytes {
    /// The same bytes, in memory that others can map where `shared` is set.
    ///
    /// # Panics
    /// When there is no memory.
    pub fn new(bytes: Vec<u8>, shared: bool) -> Self {
        if !shared {
            return Bytes::Private(bytes);
        }
        let mut buffer = consort::alloc(bytes.len()).expect("memory that can be mapped");
        buffer.copy_from_slice(&bytes);
        Bytes::Shared(buffer)
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::Private(bytes)
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Private(bytes) => bytes,
            Bytes::Shared(bytes) => bytes,
        }
    }
}

impl DerefMut for Bytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Bytes::Private(bytes) => bytes,
            Bytes::Shared(bytes) => bytes,
        }
    }
}
