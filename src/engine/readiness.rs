//! What wakes a rank whose peers send messages: one set of descriptors a communicator, which its connections give.
//!
//! ```text
//!  connection up, with a descriptor ──► watched: readable ◄── has to send / has sent ──► watched: readable or writable
//!                                          └── closed, by either side ──► forgotten
//! ```
//!
//! Invariant: whatever moves nothing by itself and has a descriptor is in the set from its making to its end, so a sleeper
//! needs no list of what it waits for, and one that does not own the engine can sleep too. Doorbells in shared memory
//! ([`consort_memory::Bell`]) are futexes, which no descriptor stands for: a rank that waits for both looks at them between
//! short sleeps here. Absent: which connections these are; completion queues, whose channels have descriptors too.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;
use std::time::Duration;

use consort_transports::Connection;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::time::TimeSpec;

/// The descriptors of a communicator's connections.
#[derive(Debug, Default)]
pub(crate) struct Readiness {
    /// Made with the first connection that has one.
    set: OnceLock<Option<Epoll>>,
}

fn events(sends: bool) -> EpollEvent {
    let writable = if sends { EpollFlags::EPOLLOUT } else { EpollFlags::empty() };
    EpollEvent::new(EpollFlags::EPOLLIN | writable, 0)
}

impl Readiness {
    fn set(&self) -> Option<&Epoll> {
        self.set.get()?.as_ref()
    }

    /// Watches a connection from now on. What cannot be watched is looked at when a sleep is over.
    pub(super) fn watch(&self, wake: BorrowedFd<'_>) {
        let set = self.set.get_or_init(|| Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).ok());
        if set.as_ref().is_none_or(|set| set.add(wake, events(false)).is_err()) {
            tracing::debug!("a connection cannot be slept on");
        }
    }

    /// Whether room to send wakes too.
    pub(super) fn watch_room(&self, wake: BorrowedFd<'_>, sends: bool) {
        let _ = self.set().map(|set| set.modify(wake, &mut events(sends)));
    }

    /// Watches connections no longer: one that has ended is readable for ever. By hand, as closing does not do it while
    /// a forked child has the socket too.
    pub(super) fn forget_all<'a>(&self, connections: impl IntoIterator<Item = &'a dyn Connection>) {
        for wake in connections.into_iter().filter_map(Connection::wake) {
            let _ = self.set().map(|set| set.delete(wake));
        }
    }

    /// Becomes readable when some connection is ready.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.set().map(|set| set.0.as_fd())
    }

    /// Sleeps until some connection is ready, but not longer than `limit`. Whether one is. From any thread.
    pub(crate) fn sleep(&self, limit: Duration) -> bool {
        let Some(descriptor) = self.descriptor() else {
            std::thread::sleep(limit);
            return false;
        };
        let mut polled = [PollFd::new(descriptor, PollFlags::POLLIN)];
        // An error is a sleep that ended early.
        ppoll(&mut polled, Some(TimeSpec::from_duration(limit)), None) != Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn bytes_room_and_nothing_else_end_a_sleep() {
        let readiness = Readiness::default();
        assert!(!readiness.sleep(Duration::ZERO) && readiness.descriptor().is_none(), "nothing is watched");
        let [(mut one, mut peer), (other, _silent)] = [(); 2].map(|()| UnixStream::pair().expect("a pair"));
        [&one, &other].into_iter().for_each(|stream| readiness.watch(stream.as_fd()));
        assert!(!readiness.sleep(Duration::ZERO));
        // A sleeper that has nothing but the set.
        std::thread::scope(|threads| {
            let sleeper = threads.spawn(|| readiness.sleep(Duration::from_secs(600)));
            peer.write_all(&[1]).expect("a byte");
            assert!(sleeper.join().expect("no panic"));
        });
        assert!(readiness.sleep(Duration::ZERO), "as long as it has not been taken in");
        one.read_exact(&mut [0]).expect("the byte");
        assert!(!readiness.sleep(Duration::ZERO));
        readiness.watch_room(other.as_fd(), true);
        assert!(readiness.sleep(Duration::ZERO));
        readiness.watch_room(other.as_fd(), false);
        assert!(!readiness.sleep(Duration::ZERO));
    }
}
