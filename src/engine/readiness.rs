//! What wakes a rank whose peers send messages: one set of descriptors a communicator, which its connections give, with
//! the waker at which its doorbells are armed.
//!
//! ```text
//!  connection on its way, while its rank sleeps ──► watched once
//!  connection up, with a descriptor ──► watched: readable ◄── has to send / has sent ──► watched: readable or writable
//!                                          └── closed, by either side ──► forgotten
//!  waker: made for the first sleep on sockets and doorbells ──► watched ──► rung ──► cleared after the sleep, before a look
//!
//!  a thread: awake ──► asleep, or resting ── ready, its limit, or a wake ──► awake
//!                        └── a wake that was for several ──► owed ── each has seen it ──► the ring is cleared
//! ```
//!
//! Invariant: whatever moves nothing by itself and has a descriptor is in the set from its making to its end, so a
//! sleeper needs no list of what it waits for, and one that does not own the engine can sleep too. Where the system
//! refuses one, it is put there before a later sleep. Doorbells in shared memory ([`consort_memory::Bell`]) ring the waker
//! while a rank sleeps here. A wake reaches all threads that sleep or rest here: the ring is cleared by the last of them. A
//! rank that has no sockets sleeps on a doorbell's futex in a call, and rests here, for a millisecond at most, while it waits for
//! what it has started. Absent: which connections these are; completion
//! queues, whose channels have descriptors too.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
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
    sleepers: Mutex<Sleepers>,
    /// Ends the rests.
    woken: Condvar,
    #[cfg(test)]
    counts: [std::sync::atomic::AtomicUsize; 3],
    /// Whether the system watches nothing more.
    #[cfg(test)]
    refuses: std::sync::atomic::AtomicBool,
}

/// The threads that sleep on the set, and those that rest beside it.
#[derive(Debug, Default)]
struct Sleepers {
    asleep: usize,
    resting: usize,
    /// Those asleep that the last wakes were for and that have not seen them.
    owed: usize,
    wakes: u64,
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

/// Those of a connection's descriptors whose room is waited for, as bits.
pub(super) fn rooms(connection: &dyn Connection) -> u64 {
    let waits = |at: usize| u64::from(connection.waits_for_room(at)) << at;
    (0..wakes(connection).count()).map(waits).sum()
}

/// The descriptors of a connection.
fn wakes(connection: &dyn Connection) -> impl Iterator<Item = BorrowedFd<'_>> {
    (0..).map_while(|at| connection.wake_at(at))
}

fn events(sends: bool) -> EpollEvent {
    let writable = if sends { EpollFlags::EPOLLOUT } else { EpollFlags::empty() };
    EpollEvent::new(EpollFlags::EPOLLIN | writable, 0)
}

impl Readiness {
    /// Watches a connection from now on. Whether it is watched; if not, it is to be put here before the next sleep. One that has
    /// no descriptor never is.
    #[must_use]
    pub(super) fn watch(&self, connection: &dyn Connection) -> bool {
        // Each of them, whatever became of those before.
        let watched = wakes(connection).map(|wake| self.watch_one(wake));
        let (count, all) = watched.fold((0, true), |(count, all), is_watched| (count + 1, all & is_watched));
        count > 0 && all
    }

    fn watch_one(&self, wake: BorrowedFd<'_>) -> bool {
        self.put(wake, events(false))
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
        #[cfg(test)]
        let set = set.filter(|_| !self.refuses.load(std::sync::atomic::Ordering::SeqCst));
        let is_put = set.is_some_and(put);
        if !is_put {
            tracing::debug!("a connection cannot be slept on");
        }
        is_put
    }

    /// Whether room to send wakes too, as bits of the connection's descriptors.
    pub(super) fn watch_room(&self, connection: &dyn Connection, rooms: u64) {
        for (at, wake) in wakes(connection).enumerate() {
            self.watch_room_of(wake, rooms >> at & 1 == 1);
        }
    }

    fn watch_room_of(&self, wake: BorrowedFd<'_>, sends: bool) {
        let _ = self.set.get().map(|set| set.modify(wake, &mut events(sends)));
    }

    /// Watches connections no longer: one that has ended is readable for ever. By hand, as closing does not do it while
    /// a forked child has the socket too.
    pub(super) fn forget_all<'a>(&self, connections: impl IntoIterator<Item = &'a dyn Connection>) {
        for wake in connections.into_iter().flat_map(wakes) {
            self.forget(wake);
        }
    }

    /// The same of one descriptor.
    pub(super) fn forget(&self, wake: BorrowedFd<'_>) {
        let _ = self.set.get().map(|set| set.delete(wake));
    }

    /// Where doorbells are armed during a sleep here; none where the system has no descriptor for it, or does not watch it.
    pub(crate) fn waker(&self) -> Option<&Waker> {
        let make = || {
            let waker = Waker::new().ok()?;
            self.put(waker.as_fd(), events(false)).then(|| self.waker.get_or_init(|| waker))
        };
        self.waker.get().or_else(make)
    }

    fn sleepers(&self) -> MutexGuard<'_, Sleepers> {
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all sleeps and rests of other threads, or else the next sleep.
    pub(crate) fn wake(&self) {
        let is_slept_on = {
            let mut sleepers = self.sleepers();
            sleepers.wakes += 1;
            sleepers.owed = sleepers.asleep;
            if sleepers.resting != 0 {
                self.woken.notify_all();
            }
            sleepers.asleep != 0
        };
        // Who sleeps on sockets alone has made none.
        let waker = if is_slept_on { self.waker() } else { self.waker.get() };
        waker.into_iter().for_each(|waker| Waker::ring(waker.name()));
        #[cfg(test)]
        self.note(Count::Woken);
    }

    /// The same where a thread sleeps or rests: what it waits for may be over. To be called once that can be seen.
    pub(crate) fn wake_sleepers(&self) {
        let Sleepers { asleep, resting, .. } = *self.sleepers();
        if asleep + resting != 0 {
            self.wake();
        }
    }

    /// Takes what has rung, before what it is about is looked at; not what other threads have still to see.
    pub(crate) fn clear(&self) {
        self.clear_of(&self.sleepers());
    }

    fn clear_of(&self, sleepers: &Sleepers) {
        let _is_rung = sleepers.owed == 0 && self.waker.get().is_some_and(Waker::clear);
        #[cfg(test)]
        _is_rung.then(|| self.note(Count::Rung));
    }

    /// Becomes readable when some connection is ready or a doorbell has rung.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.set.get().map(|set| set.0.as_fd())
    }

    /// Sleeps until some connection is ready, a doorbell at the waker rings or another thread wakes it, but not longer than
    /// `limit`. Whether one did. From any thread.
    pub(crate) fn sleep(&self, limit: Duration) -> bool {
        self.sleep_unless(limit, || false)
    }

    /// The same, but not where what this thread waits for is over: asked once other threads know that it sleeps.
    pub(crate) fn sleep_unless(&self, limit: Duration, is_over: impl FnOnce() -> bool) -> bool {
        let Some(descriptor) = self.descriptor() else { return self.rest_unless(limit, is_over) };
        let wakes = self.begin();
        let is_ready = is_over() || {
            #[cfg(test)]
            self.note(Count::Slept);
            let mut polled = [PollFd::new(descriptor, PollFlags::POLLIN)];
            // An error is a sleep that ended early.
            ppoll(&mut polled, Some(TimeSpec::from_duration(limit)), None) != Ok(0)
        };
        if !self.end(wakes, is_ready) {
            // Those who have still to see the ring come first.
            std::thread::yield_now();
        }
        is_ready
    }

    /// This thread is asleep from now on. The number of wakes before that.
    fn begin(&self) -> u64 {
        let mut sleepers = self.sleepers();
        sleepers.asleep += 1;
        sleepers.wakes
    }

    /// It is awake, and takes what has rung, unless other threads have still to see it. Whether none has.
    fn end(&self, wakes: u64, is_ready: bool) -> bool {
        let mut sleepers = self.sleepers();
        sleepers.asleep -= 1;
        let is_woken = sleepers.wakes != wakes;
        if is_woken {
            sleepers.owed = sleepers.owed.saturating_sub(1);
        }
        if is_ready || is_woken {
            self.clear_of(&sleepers);
        }
        sleepers.owed == 0
    }

    /// Waits for at most `limit` until another thread wakes this one, unless what it waits for is over. What becomes ready
    /// does not end it. Whether it was woken.
    pub(crate) fn rest_unless(&self, limit: Duration, is_over: impl FnOnce() -> bool) -> bool {
        let mut sleepers = self.sleepers();
        sleepers.resting += 1;
        // The thread that ends it takes the lock afterwards to wake this one.
        let is_over = is_over() || {
            let wakes = sleepers.wakes;
            let rested = self.woken.wait_timeout_while(sleepers, limit, |now| now.wakes == wakes);
            let (back, timed_out) = rested.unwrap_or_else(PoisonError::into_inner);
            sleepers = back;
            !timed_out.timed_out()
        };
        sleepers.resting -= 1;
        is_over
    }
}

/// Sleeps until this waker rings or a descriptor is ready (writable, where `true` stands beside it), but not longer than
/// `limit`, without a set. What has rung is taken. Whether one did or is.
pub(super) fn sleep_at(waker: &Waker, wakes: &[(BorrowedFd<'_>, bool)], limit: Duration) -> bool {
    let flags = |sends: bool| if sends { PollFlags::POLLIN | PollFlags::POLLOUT } else { PollFlags::POLLIN };
    let mut polled: Vec<PollFd<'_>> =
        wakes.iter().map(|(wake, sends)| PollFd::new(*wake, flags(*sends))).collect();
    polled.push(PollFd::new(waker.as_fd(), PollFlags::POLLIN));
    let is_ready = ppoll(&mut polled, Some(TimeSpec::from_duration(limit)), None) != Ok(0);
    if is_ready {
        waker.clear();
    }
    is_ready
}

#[cfg(test)]
impl Readiness {
    fn note(&self, count: Count) {
        self.counts[count as usize].fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }

    /// From now on the system watches nothing more, or watches again.
    pub(crate) fn refuse(&self, refuses: bool) {
        self.refuses.store(refuses, std::sync::atomic::Ordering::SeqCst);
    }

    /// How many threads sleep here now.
    pub(crate) fn asleep(&self) -> usize {
        self.sleepers().asleep
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
        assert!([&one, &other].into_iter().all(|stream| readiness.watch_one(stream.as_fd())));
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
        readiness.watch_room_of(other.as_fd(), true);
        assert!(readiness.sleep(Duration::ZERO));
        readiness.watch_room_of(other.as_fd(), false);
        assert!(!readiness.sleep(Duration::ZERO));
    }
    /// A ring that one thread takes before another has looked would be lost for the other.
    #[test]
    fn a_wake_is_seen_by_all_who_sleep() {
        let readiness = Readiness::default();
        readiness.waker().expect("a socket");
        let is_rung = || {
            ppoll(
                &mut [PollFd::new(readiness.descriptor().expect("a set"), PollFlags::POLLIN)],
                Some(TimeSpec::from_duration(Duration::ZERO)),
                None,
            ) == Ok(1)
        };
        let [first, second] = [(); 2].map(|()| readiness.begin());
        readiness.wake();
        assert!(!readiness.end(first, true) && is_rung(), "the second has not seen it");
        // The first sleeps again, and looks at once: the ring is still not its own to take.
        let again = readiness.begin();
        assert!(!readiness.end(again, true) && is_rung());
        readiness.clear();
        assert!(is_rung(), "nor another thread's");
        assert!(readiness.end(second, true) && !is_rung());
        // Who slept through its limit has seen it too, and a later wake is for all again.
        let [first, second] = [(); 2].map(|()| readiness.begin());
        readiness.wake();
        readiness.wake();
        assert!(!readiness.end(first, false) && readiness.end(second, false) && !is_rung());
        // Nothing is over for those who sleep here where none does.
        readiness.wake_sleepers();
        assert!(!is_rung());
    }

    #[test]
    fn all_who_sleep_or_rest_are_woken() {
        let readiness = Readiness::default();
        readiness.waker().expect("a socket");
        let long = Duration::from_secs(600);
        assert!(readiness.sleep_unless(long, || true) && readiness.rest_unless(long, || true));
        for _ in 0..100 {
            std::thread::scope(|threads| {
                let asleep = [(); 3].map(|()| threads.spawn(|| readiness.sleep(long)));
                let resting = [(); 2].map(|()| threads.spawn(|| readiness.rest_unless(long, || false)));
                let are_here = |Sleepers { asleep, resting, .. }: &Sleepers| (*asleep, *resting) == (3, 2);
                while !are_here(&readiness.sleepers()) {
                    std::thread::yield_now();
                }
                readiness.wake_sleepers();
                assert!(asleep.into_iter().chain(resting).all(|thread| thread.join().expect("no panic")));
            });
        }
    }
}
