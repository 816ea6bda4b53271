//! How a thread that sleeps on descriptors is woken from memory: a socket whose name fits into a word.
//!
//! A sleeper on sockets cannot wait for a futex as well. It writes the name of its waker into its
//! [doorbells](crate::Bell) instead, and a peer that rings one sends an empty datagram there.
//!
//! Invariant: ringing never blocks and keeps no descriptor. A name reaches nothing but a waker, whatever the word says,
//! in the abstract namespace of the network namespace, where processes that share memory are. A waker that is gone,
//! alone or with its process, is rung in vain; one that was rung stays readable until it is cleared. Another user of
//! the host who reads a name can end sleeps early, and nothing else: what one look takes is bounded. Absent: what a
//! sleeper looks at.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Becomes readable when it is rung.
#[derive(Debug)]
pub struct Waker {
    socket: UnixDatagram,
    name: u64,
}

/// The smallest name; words below it mean something else to a doorbell.
pub(crate) const NAME_MIN: u64 = 1 << 32;
const ATTEMPTS_MAX: u32 = 8;
/// Rings that are taken at one look. More than a queue holds on most systems; what is left is taken at the next look.
const RINGS_MAX: usize = 1024;

fn address(name: u64) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("consort-waker-{name:016x}"))
}

/// Whether there was a ring to take. The sender of rings without end gets no more than its share.
fn drain(take: impl FnMut() -> bool) -> bool {
    std::iter::repeat_with(take).take(RINGS_MAX).take_while(|is_taken| *is_taken).count() != 0
}

impl Waker {
    /// A waker with a name of its own.
    ///
    /// # Errors
    /// The system's, when it has no descriptor left.
    pub fn new() -> io::Result<Self> {
        let mut attempts = 0;
        let (socket, name) = loop {
            // A parent and its forked child have the same random state, one after the other.
            let name = RandomState::new().hash_one((std::process::id(), attempts)) | NAME_MIN;
            match UnixDatagram::bind_addr(&address(name)?) {
                Ok(socket) => break (socket, name),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && attempts < ATTEMPTS_MAX => {
                    attempts += 1
                }
                Err(error) => return Err(error),
            }
        };
        socket.set_nonblocking(true)?;
        Ok(Self { socket, name })
    }

    /// What it is rung by.
    pub fn name(&self) -> u64 {
        self.name
    }

    /// Rings the waker of this name. From any process of the network namespace.
    pub fn ring(name: u64) {
        let ring = || {
            let socket = UnixDatagram::unbound()?;
            socket.set_nonblocking(true)?;
            socket.send_to_addr(&[], &address(name)?)
        };
        // A full queue is readable. A rank that is gone does not sleep; a ring that the system has no descriptor for is
        // one that is missed, which the sleeper's own limit makes up for.
        let _ = ring();
    }

    /// Takes the rings so far. Whether there were any; what they are about is to be looked at afterwards.
    pub fn clear(&self) -> bool {
        drain(|| self.socket.recv(&mut []).is_ok())
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    fn is_rung(waker: &Waker) -> bool {
        poll(&mut [PollFd::new(waker.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO) == Ok(1)
    }

    #[test]
    fn a_ring_stays_until_it_is_cleared() {
        let [waker, other] = [(); 2].map(|()| Waker::new().expect("a socket"));
        assert!(!is_rung(&waker) && waker.name() != other.name());
        // More rings than a queue holds: none of them waits.
        (0..10_000).for_each(|_| Waker::ring(waker.name()));
        assert!(is_rung(&waker) && !is_rung(&other));
        assert!(waker.clear());
        // A queue may hold more than a look takes.
        while waker.clear() {}
        assert!(!is_rung(&waker));
        assert!(drain(|| true), "rings without end");
        let gone = other.name();
        drop(other);
        Waker::ring(gone);
    }

    #[test]
    fn a_forked_child_does_not_draw_the_names_of_its_parent() {
        let (mut parent, mut child) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let _first = Waker::new().expect("the random state of this thread");
        // SAFETY: the child reads a byte, makes a waker and ends.
        match unsafe { libc::fork() } {
            0 => {
                drop(parent);
                let is_made = child.read_exact(&mut [0]).is_ok() && Waker::new().is_ok();
                // SAFETY: ends the child without what the threads of its parent registered.
                unsafe { libc::_exit(i32::from(!is_made)) }
            }
            process => {
                let _more = [(); 2 * ATTEMPTS_MAX as usize].map(|()| Waker::new().expect("a socket"));
                parent.write_all(&[1]).expect("a byte");
                let mut status = -1;
                // SAFETY: waits for a child of this test and writes one int.
                unsafe { libc::waitpid(process, &raw mut status, 0) };
                assert_eq!(status, 0, "its attempts are exhausted");
            }
        }
    }
}
