//! Words of the host's memory that streams of several processes wait for and write.
//!
//! Invariant: each side registers the same sealed memory file with its driver; the words stay mapped as long as a value
//! that names them lives. They are the host's, so that a failing rank can let its streams go on by plain stores,
//! whatever its device is doing. Absent: what the words mean.

use std::ops::Deref;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::task::Poll;

use consort_cuda::{Context, DeviceWord, Registered};
use consort_memory::Mapping;

use super::{NAME, refused};
use crate::fields::Fields;
use crate::handover::{Desk, Fetching, Offer, Takers};
use crate::{MemoryLender, TransportError};

const MAGIC: [u8; 4] = *b"csw1";
/// Bytes from one word to the next: each has a cache line.
const STRIDE: usize = 64;

/// Words that this rank waits for and its peers write.
#[derive(Debug)]
pub struct Words {
    own: PeerWords,
    offer: Offer,
}

impl Deref for Words {
    type Target = PeerWords;

    fn deref(&self) -> &PeerWords {
        &self.own
    }
}

/// Words as they are mapped here, a peer's or [its own](Words).
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
        Ok(Words { own: PeerWords { registered, words }, offer })
    }

    /// What peers open them with.
    pub fn offer(&self) -> Vec<u8> {
        let (desk, nonce) = (self.offer.desk().name(), self.offer.nonce());
        [&MAGIC, &desk[..], nonce, &self.words.to_le_bytes()].concat()
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
            let mut fields = Fields(offer.strip_prefix(&MAGIC)?);
            let read = (fields.take()?, fields.take()?, fields.u32()?);
            fields.end().map(|()| read)
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
