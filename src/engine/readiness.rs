//! What wakes a rank whose peers send messages: one set of descriptors a communicator, which its connections give, with
//! the waker at which its doorbells are armed.
//!
//! ```text
//!  connection on its way, while its rank sleeps ──► watched once
//!  connection up, with a descriptor ──► watched: readable ◄── has to send / has sent ──► watched: readable or writable
//!                                          └── closed, by either side ──► forgotten
//!  waker: made for the first sleep on sockets and doorbells ──► watched ──► rung ──► cleared after the sleep, before a look
//! ```
//!
//! Invariant: whatever moves nothing by itself and has a descriptor is in the set from its making to its end, so a
//! sleeper needs no list of what it waits for, and one that does not own the engine can sleep too. Doorbells in shared
//! memory ([`consort_memory::Bell`]) ring the waker while a rank sleeps here. A rank that has no sockets sleeps on a
//! doorbell's futex, and not here. Absent: which connections these are; completion queues, whose channels have
//! descriptors too.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;
use std::time::Duration;

use consort_memory::Waker;
use consort_transports::Connection;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::time::TimeSpec;

/// The descriptors of a communicator's connections.
#[derive(Debug, Default)]
pub(crate) struct Readiness {
    /// Made with the first connection that has one.
    set: OnceLock<Epoll>,
    waker: OnceLock<Waker>,
    #[cfg(test)]
    counts: [std::sync::atomic::AtomicUsize; 3],
}

/// What tests count.
#[cfg(test)]
#[derive(Clone, Copy)]
pub(crate) enum Count {
    /// Sleeps that were begun.
    Slept,
    /// Looks behind rings.
    Rung,
    /// Rings of this rank's own.
    Woken,
}

fn events(sends: bool) -> EpollEvent {
    let writable = if sends { EpollFlags::EPOLLOUT } else { EpollFlags::empty() };
    EpollEvent::new(EpollFlags::EPOLLIN | writable, 0)
}

impl Readiness {
    /// Watches a connection from now on. What cannot be watched is looked at when a sleep is over.
    pub(super) fn watch(&self, wake: BorrowedFd<'_>) {
        self.put(wake, events(false));
    }

    /// Watches a connection on its way, for one sleep: it may be given up for another, and is then in the set no more,
    /// or silent.
    /// Whether it is watched.
    pub(super) fn watch_once(&self, wake: BorrowedFd<'_>, sends: bool) -> bool {
        self.put(wake, EpollEvent::new(events(sends).events() | EpollFlags::EPOLLONESHOT, 0))
    }

    /// Whether it is in the set now. A system that has no descriptor left is asked again the next time.
    fn put(&self, wake: BorrowedFd<'_>, mut event: EpollEvent) -> bool {
        let make = || {
            let set = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).ok()?;
            Some(self.set.get_or_init(|| set))
        };
        let set = self.set.get().or_else(make);
        let put = |set: &Epoll| set.add(wake, event).is_ok() || set.modify(wake, &mut event).is_ok();
        let is_put = set.is_some_and(put);
        if !is_put {
            tracing::debug!("a connection cannot be slept on");
        }
        is_put
    }

    /// Whether room to send wakes too.
    pub(super) fn watch_room(&self, wake: BorrowedFd<'_>, sends: bool) {
        let _ = self.set.get().map(|set| set.modify(wake, &mut events(sends)));
    }

    /// Watches connections no longer: one that has ended is readable for ever. By hand, as closing does not do it while
    /// a forked child has the socket too.
    pub(super) fn forget_all<'a>(&self, connections: impl IntoIterator<Item = &'a dyn Connection>) {
        for wake in connections.into_iter().filter_map(Connection::wake) {
            let _ = self.set.get().map(|set| set.delete(wake));
        }
    }

    /// Where doorbells are armed during a sleep here; none where the system has no descriptor for it, or does not watch it.
    pub(crate) fn waker(&self) -> Option<&Waker> {
        let make = || {
            let waker = Waker::new().ok()?;
            self.put(waker.as_fd(), events(false)).then(|| self.waker.get_or_init(|| waker))
        };
        self.waker.get().or_else(make)
    }

    /// Ends a sleep from another thread, or the next one.
    pub(crate) fn wake(&self) {
        self.waker.get().into_iter().for_each(|waker| Waker::ring(waker.name()));
        #[cfg(test)]
        self.note(Count::Woken);
    }

    /// Takes what has rung, before what it is about is looked at.
    pub(crate) fn clear(&self) {
        let _is_rung = self.waker.get().is_some_and(Waker::clear);
        #[cfg(test)]
        _is_rung.then(|| self.note(Count::Rung));
    }

    /// Becomes readable when some connection is ready or a doorbell has rung.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.set.get().map(|set| set.0.as_fd())
    }

    /// Sleeps until some connection is ready or a doorbell at the waker rings, but not longer than `limit`. Whether one
    /// did. From any thread.
    pub(crate) fn sleep(&self, limit: Duration) -> bool {
        let Some(descriptor) = self.descriptor() else {
            std::thread::sleep(limit);
            return false;
        };
        #[cfg(test)]
        self.note(Count::Slept);
        let mut polled = [PollFd::new(descriptor, PollFlags::POLLIN)];
        // An error is a sleep that ended early.
        let is_ready = ppoll(&mut polled, Some(TimeSpec::from_duration(limit)), None) != Ok(0);
        if is_ready {
            self.clear();
        }
        is_ready
    }
}

#[cfg(test)]
impl Readiness {
    fn note(&self, count: Count) {
        self.counts[count as usize].fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }

    pub(crate) fn count(&self, count: Count) -> usize {
        self.counts[count as usize].load(std::sync::atomic::Ordering::SeqCst)
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
