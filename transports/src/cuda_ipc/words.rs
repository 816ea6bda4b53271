//! Words of the host's memory that streams of several processes wait for and write.
//!
//! Invariant: each side registers the same sealed memory file with its driver; the words stay mapped as long as a value
//! that names them lives. They are the host's, so that a failing rank can let its streams go on by plain stores,
//! whatever its device is doing. Absent: what the words mean.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::task::Poll;

use consort_cuda::{Context, DeviceWord, Registered};
use consort_memory::Mapping;

use super::{NAME, refused};
use crate::handover::{Desk, Fetching, Offer, Takers};
use crate::segment::NONCE_BYTES;
use crate::{MemoryLender, TransportError};

const MAGIC: [u8; 4] = *b"csw1";
/// Bytes from one word to the next: each has a cache line.
const STRIDE: usize = 64;
/// An offer: magic, desk, nonce, words.
const OFFER_BYTES: usize = MAGIC.len() + 2 * NONCE_BYTES + 4;

/// Words that this rank waits for and its peers write.
#[derive(Debug)]
pub struct Words {
    registered: Registered,
    words: u32,
    offer: Offer,
}

/// A peer's words, mapped here.
#[derive(Debug)]
pub struct PeerWords {
    registered: Registered,
    words: u32,
}

/// A peer's words on their way here.
#[derive(Debug)]
pub struct OpeningWords {
    context: Context,
    words: u32,
    fetching: Fetching,
    desk: Desk,
}

impl Words {
    /// `words` words of eight bytes, zero, for streams of `context`. Their file waits at the desk of `shm`.
    ///
    /// # Errors
    /// [`TransportError::OutOfMemory`]; [`TransportError::Driver`] when the driver does not register it.
    pub fn new(context: &Context, words: u32, shm: &dyn MemoryLender) -> Result<Self, TransportError> {
        let mapping = Mapping::memfd(c"consort-words", words as usize * STRIDE);
        let mut mapping = mapping.map_err(|error| TransportError::memory(NAME, error))?;
        let file = mapping.take_fd().ok_or(TransportError::Protocol {
            transport: NAME,
            what: "a memory file without its descriptor",
        })?;
        let offer = shm.desk().offer(file, Takers::Many)?;
        let registered = context.register(&Arc::new(mapping)).map_err(refused("registering words"))?;
        Ok(Words { registered, words, offer })
    }

    /// What peers open them with.
    pub fn offer(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(OFFER_BYTES);
        bytes.extend(MAGIC);
        bytes.extend(self.offer.desk().name());
        bytes.extend(self.offer.nonce());
        bytes.extend(self.words.to_le_bytes());
        bytes
    }

    /// Word number `index`.
    ///
    /// # Panics
    /// If `index` is none of its words.
    pub fn word(&self, index: u32) -> DeviceWord {
        assert!(index < self.words, "word {index} of {}", self.words);
        self.registered.word(index as usize * STRIDE)
    }

    /// How many there are.
    pub fn len(&self) -> u32 {
        self.words
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.words == 0
    }
}

impl PeerWords {
    /// Begins to open what a peer's [`Words::offer`] leads to. The desk of `shm` is served while the peer's is asked.
    ///
    /// # Errors
    /// [`TransportError::BadAddress`] for bytes that are no offer.
    pub fn open(
        context: &Context,
        offer: &[u8],
        shm: &dyn MemoryLender,
    ) -> Result<OpeningWords, TransportError> {
        let bad = TransportError::BadAddress { transport: NAME, reason: "it is no offer of words" };
        let fields = || {
            let rest = offer.strip_prefix(&MAGIC)?;
            let (desk, rest) = rest.split_first_chunk::<NONCE_BYTES>()?;
            let (nonce, rest) = rest.split_first_chunk::<NONCE_BYTES>()?;
            Some((*desk, *nonce, u32::from_le_bytes(rest.try_into().ok()?)))
        };
        let Some((desk, nonce, words)) = fields() else { return Err(bad) };
        let fetching = Fetching::new(NAME, desk, nonce);
        Ok(OpeningWords { context: context.clone(), words, fetching, desk: shm.desk().clone() })
    }

    /// Word number `index`.
    ///
    /// # Panics
    /// If `index` is none of its words.
    pub fn word(&self, index: u32) -> DeviceWord {
        assert!(index < self.words, "word {index} of {}", self.words);
        self.registered.word(index as usize * STRIDE)
    }

    /// How many there are.
    pub fn len(&self) -> u32 {
        self.words
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.words == 0
    }
}

impl OpeningWords {
    /// Goes on as far as that is possible without waiting. Not to be called again after it was ready or failed.
    ///
    /// # Errors
    /// [`TransportError::Unreachable`] when the peer's desk is empty; what mapping and registering say.
    pub fn poll(&mut self) -> Result<Poll<PeerWords>, TransportError> {
        self.desk.serve();
        let Poll::Ready(file) = self.fetching.poll()? else { return Ok(Poll::Pending) };
        let mapping = Mapping::from_fd(file.as_fd(), self.words as usize * STRIDE);
        let mapping = mapping.map_err(|error| TransportError::memory(NAME, error))?;
        let registered = self.context.register(&Arc::new(mapping));
        let registered = registered.map_err(refused("registering a peer's words"))?;
        Ok(Poll::Ready(PeerWords { registered, words: self.words }))
    }
}
