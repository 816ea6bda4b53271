//! Memory files of one process, lent to the others of its user on the same machine.
//!
//! Invariant: what was lent is fetched by the processes that have its name, until the [`Lent`] is dropped; what is fetched is
//! mapped only if it is sealed and as long as it was said to be. Absent: whose memory it is, and waiting.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::Poll;

use consort_memory::Mapping;

use crate::handover::{Desk, Fetching, Offer, Takers};
use crate::segment::NONCE_BYTES;
use crate::{MemoryLender, TransportError};

const NAME: &str = "shm";

/// A memory file that others may fetch.
#[derive(Debug)]
pub struct Lent {
    offer: Offer,
}

impl Lent {
    /// What a notice of it takes, in bytes.
    pub const NOTICE_BYTES: usize = 2 * NONCE_BYTES;

    /// Lends a file at the desk of `memory`, which must be served.
    ///
    /// # Errors
    /// [`TransportError::System`] when the system has no descriptor or no randomness left.
    pub fn new(memory: &dyn MemoryLender, file: BorrowedFd<'_>) -> Result<Self, TransportError> {
        let file = file.try_clone_to_owned().map_err(|error| TransportError::system(NAME, "dup", error))?;
        Ok(Self { offer: memory.desk().offer(file, Takers::Many)? })
    }

    /// What others fetch it with.
    pub fn notice(&self) -> [u8; Self::NOTICE_BYTES] {
        let mut notice = [0; Self::NOTICE_BYTES];
        notice[..NONCE_BYTES].copy_from_slice(self.offer.desk().name());
        notice[NONCE_BYTES..].copy_from_slice(self.offer.nonce());
        notice
    }
}

/// A file that another process has lent, on its way here.
#[derive(Debug)]
pub struct Fetch {
    fetching: Fetching,
    /// Ours, as the other may be fetching from us.
    desk: Desk,
    file_offset: usize,
    bytes: usize,
}

impl Fetch {
    /// Begins to fetch `bytes` bytes at `file_offset` of what a notice tells of.
    pub fn new(
        memory: &dyn MemoryLender,
        notice: &[u8; Lent::NOTICE_BYTES],
        file_offset: usize,
        bytes: usize,
    ) -> Self {
        let [name, nonce] = std::array::from_fn(|at| notice.as_chunks().0[at]);
        Self { fetching: Fetching::new(NAME, name, nonce), desk: memory.desk().clone(), file_offset, bytes }
    }

    /// Goes on as far as possible without waiting; not to be called again after it was ready or failed.
    ///
    /// # Errors
    /// [`TransportError::PeerClosed`] or [`TransportError::Unreachable`] when it is no longer lent;
    /// [`TransportError::Unauthorised`] for another user's; what mapping it failed with.
    pub fn poll(&mut self) -> Result<Poll<Arc<Mapping>>, TransportError> {
        self.desk.serve();
        let Poll::Ready(file) = self.fetching.poll()? else { return Ok(Poll::Pending) };
        let mapping = Mapping::from_fd_at(file.as_fd(), self.file_offset, self.bytes)
            .map_err(|error| TransportError::memory(NAME, error))?;
        Ok(Poll::Ready(Arc::new(mapping)))
    }
}

#[cfg(test)]
mod tests {
    use consort_memory::{Span, SpanMut};

    use super::*;
    use crate::Shm;

    #[test]
    fn what_is_lent_is_mapped_as_often_as_it_is_fetched() {
        let (here, there) = (Shm::new().expect("a desk"), Shm::new().expect("a desk"));
        let mapping = Mapping::memfd(c"test", 8192).expect("memory");
        mapping.span(4096, 4).copy_from(Span::of(&[7u32]));
        let lent = Lent::new(&here, mapping.fd().expect("a file")).expect("it is lent");
        let fetch = |notice: &[u8; Lent::NOTICE_BYTES], bytes: usize| {
            let mut fetch = Fetch::new(&there, notice, 4096, bytes);
            loop {
                here.desk().serve();
                match fetch.poll() {
                    Ok(Poll::Ready(mapping)) => return Ok(mapping),
                    Ok(Poll::Pending) => std::thread::yield_now(),
                    Err(error) => return Err(error),
                }
            }
        };
        for _ in 0..3 {
            let mapped = fetch(&lent.notice(), 4096).expect("it is fetched");
            let mut seen = [0u32];
            SpanMut::of(&mut seen).copy_from(mapped.span(0, 4).read());
            assert_eq!(seen, [7]);
        }
        assert!(fetch(&lent.notice(), 8192).is_err(), "there is less from there on");
        let notice = lent.notice();
        drop(lent);
        assert!(fetch(&notice, 4096).is_err(), "it is no longer lent");
    }
}
