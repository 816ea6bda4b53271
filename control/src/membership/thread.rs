//! The control thread: asleep in epoll, never on the data path of a call that a program waits for.

use std::os::fd::AsFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use consort_memory::sync::Ordering;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{EpollEvent, EpollFlags, EpollTimeout};

use super::link::{ENDED, LinkState, RemoteLink};
use super::process::{Advance, Attended, KEY_TCP, KEY_UNIX, KEY_WAKE, Shared, Source, Unattended};
use super::{accept, lock};

/// How long unattended work is driven without a pause after it last moved.
const EAGER: Duration = Duration::from_millis(2);
/// How often work that goes on by itself is looked at.
const WATCH: Duration = Duration::from_millis(5);
/// How long such work is looked at after there was nothing to do. A program that calls more often wakes this thread once.
const LINGER: Duration = Duration::from_millis(100);
/// How often sleeping links are looked at for bytes that the kernel would not take, and greetings for age.
const CHORES: Duration = Duration::from_millis(200);

/// How long what an ended process still said is read.
const LAST_WORDS_MAX: Duration = Duration::from_millis(200);

/// Runs until the process's state is dropped.
pub(super) fn run(shared: &Arc<Shared>) {
    let mut events = vec![EpollEvent::empty(); 64];
    let mut moved_at = Instant::now();
    let mut chores_at = Instant::now();
    while !shared.stop.load(Ordering::Relaxed) {
        let advance = advance_unattended(shared);
        let now = Instant::now();
        let timeout = match advance {
            Advance::Moved => {
                moved_at = now;
                EpollTimeout::ZERO
            }
            Advance::Blocked if now - moved_at < EAGER => {
                std::thread::yield_now();
                EpollTimeout::ZERO
            }
            Advance::Blocked => {
                doze(shared);
                EpollTimeout::ZERO
            }
            Advance::Watched => EpollTimeout::from(WATCH.as_millis() as u16),
            Advance::Idle if has_backlog(shared) => EpollTimeout::from(5u8),
            Advance::Idle if has_chores(shared) => EpollTimeout::from(CHORES.as_millis() as u16),
            Advance::Idle => EpollTimeout::NONE,
        };
        let count = match shared.epoll.wait(&mut events, timeout) {
            Ok(count) => count,
            Err(nix::errno::Errno::EINTR) => 0,
            Err(error) => {
                tracing::error!("the control thread cannot wait: {error}");
                std::thread::sleep(Duration::from_millis(10));
                0
            }
        };
        for event in &events[..count] {
            handle(shared, event.data(), event.events());
        }
        if now - chores_at > CHORES || has_backlog(shared) {
            chores_at = now;
            chores(shared);
        }
    }
}

pub(super) fn handle(shared: &Arc<Shared>, key: u64, events: EpollFlags) {
    match key {
        KEY_WAKE => {
            shared.clear_wake();
            accept::retry_parked(shared);
        }
        KEY_UNIX | KEY_TCP => accept::accept(shared, key == KEY_UNIX),
        key => match shared.source(key) {
            Some(Source::Greeting(greeting)) => accept::go_on(shared, key, &greeting),
            Some(Source::Service(service)) => service.serve(),
            Some(Source::Giving(giving)) => lock(&giving).go_on(shared, key),
            Some(Source::Link(link)) => serve_link(shared, key, &link, events),
            Some(Source::Peer { pidfd, member, rank }) => {
                shared.unwatch(pidfd.as_fd(), key);
                if let Some(member) = member.upgrade() {
                    // What it still said (that it leaves, or why it fails) is read before its end is reported.
                    for link in member.remote_links().iter().filter(|link| link.peer == rank) {
                        let until = Instant::now() + LAST_WORDS_MAX;
                        while link.drain() == LinkState::Open && Instant::now() < until && link.has_more() {}
                    }
                    member.lost(rank, ENDED, true);
                }
            }
            None => {}
        },
    }
}

fn serve_link(shared: &Arc<Shared>, key: u64, link: &Arc<RemoteLink>, events: EpollFlags) {
    if events.contains(EpollFlags::EPOLLOUT) {
        link.flush();
    }
    if let LinkState::Closed { cause, ended } = link.drain() {
        shared.unwatch(link.stream.as_fd(), key);
        link.end();
        match link.member.upgrade() {
            Some(member) if link.is_confirmed() => member.lost(link.peer, &cause, ended),
            Some(member) => member.give_up_answering(link.peer),
            None => {}
        }
    }
}

/// Sleeps until blocked work can go on or a source is ready, for a millisecond at most: nothing wakes this thread for work
/// that has no sockets, or that is blocked on what rings no doorbell.
fn doze(shared: &Shared) {
    let works = lock(&shared.unattended).clone();
    let works: Vec<Arc<dyn Unattended>> =
        works.iter().filter_map(|attended| attended.work.upgrade()).collect();
    let wakes = works.iter().filter_map(|work| work.wake());
    let sources = wakes.chain([shared.epoll.0.as_fd()]);
    let mut polled: Vec<PollFd<'_>> = sources.map(|wake| PollFd::new(wake, PollFlags::POLLIN)).collect();
    let _ = poll(&mut polled, PollTimeout::from(1u8));
}

fn advance_unattended(shared: &Shared) -> Advance {
    let works: Vec<Attended> = {
        let unattended = lock(&shared.unattended);
        if unattended.is_empty() {
            return Advance::Idle;
        }
        unattended.clone()
    };
    let mut most = Advance::Idle;
    for Attended { work, idle_since, .. } in works {
        let mut advance = work.upgrade().map_or(Advance::Idle, |work| work.advance());
        if (advance == Advance::Idle || idle_since.is_some()) && is_kept(shared, &work) {
            // A thread that adds to listed work relies on another look.
            advance = advance.max(Advance::Watched);
        }
        most = most.max(advance);
    }
    most
}

/// Whether work stays listed that had nothing to do, or had before; since when is noted. Looked at again under the lock: a
/// thread that adds work in between lists it after it.
fn is_kept(shared: &Shared, work: &Weak<dyn Unattended>) -> bool {
    let mut unattended = lock(&shared.unattended);
    let is_it = |other: &Attended| Weak::ptr_eq(&other.work, work);
    let Some(at) = unattended.iter().position(is_it) else { return false };
    let listed = &mut unattended[at];
    let is_kept = match work.upgrade() {
        None => false,
        Some(work) if work.is_idle() => {
            let idle_for = listed.idle_since.get_or_insert_with(Instant::now).elapsed();
            listed.lingers && idle_for < LINGER
        }
        Some(_) => {
            listed.idle_since = None;
            true
        }
    };
    if !is_kept {
        unattended.remove(at);
    }
    is_kept
}

fn has_chores(shared: &Shared) -> bool {
    let sources = lock(&shared.sources);
    sources.values().any(|source| match source {
        Source::Greeting(_) | Source::Giving(_) => true,
        Source::Service(service) => service.has_chores(),
        Source::Link(_) | Source::Peer { .. } => false,
    })
}

/// Whether some peer's socket would not take everything: a long report, say, which must not take long.
fn has_backlog(shared: &Shared) -> bool {
    let sources = lock(&shared.sources);
    sources.values().any(|source| matches!(source, Source::Link(link) if link.has_backlog()))
}

fn chores(shared: &Arc<Shared>) {
    let sources: Vec<(u64, Source)> = {
        let sources = lock(&shared.sources);
        sources.iter().map(|(key, source)| (*key, source.clone())).collect()
    };
    for (key, source) in sources {
        match source {
            Source::Giving(giving) => lock(&giving).go_on(shared, key),
            Source::Link(link) if link.has_backlog() => link.flush(),
            Source::Service(service) => service.serve(),
            _ => {}
        }
    }
    accept::expire(shared);
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;

    use consort_memory::sync::AtomicBool;

    use super::*;

    /// Work that a device does.
    #[derive(Default)]
    struct OnDevice {
        is_idle: AtomicBool,
    }

    impl Unattended for OnDevice {
        fn advance(&self) -> Advance {
            if self.is_idle() { Advance::Idle } else { Advance::Watched }
        }

        fn is_idle(&self) -> bool {
            self.is_idle.load(Ordering::Relaxed)
        }

        fn wake(&self) -> Option<BorrowedFd<'_>> {
            None
        }
    }

    fn listed(shared: &Shared) -> usize {
        lock(&shared.unattended).len()
    }

    #[test]
    fn work_on_devices_wakes_the_thread_once() {
        let shared = Shared::new(None).expect("a process");
        let work = Arc::new(OnDevice::default());
        let watch = || {
            let work: Arc<dyn Unattended> = work.clone();
            shared.watch_over(Arc::downgrade(&work));
            shared.is_woken()
        };
        assert!(watch(), "it may sleep");
        assert!(!watch(), "it looks anyway");
        assert_eq!(advance_unattended(&shared), Advance::Watched);
        // More of it may come soon, and comes.
        work.is_idle.store(true, Ordering::Relaxed);
        assert_eq!((advance_unattended(&shared), listed(&shared)), (Advance::Watched, 1));
        work.is_idle.store(false, Ordering::Relaxed);
        assert!(!watch(), "it still looks");
        assert_eq!(advance_unattended(&shared), Advance::Watched);
        assert_eq!(lock(&shared.unattended)[0].idle_since, None);
        // So does more of it that is over by the next look.
        work.is_idle.store(true, Ordering::Relaxed);
        assert_eq!(advance_unattended(&shared), Advance::Watched);
        assert!(!watch(), "it looks anyway");
        assert_eq!(lock(&shared.unattended)[0].idle_since, None);
        // Long after the last of it, the thread sleeps.
        work.is_idle.store(true, Ordering::Relaxed);
        assert_eq!(advance_unattended(&shared), Advance::Watched);
        let long_ago = Instant::now().checked_sub(LINGER).expect("a machine that has run for that long");
        lock(&shared.unattended)[0].idle_since = Some(long_ago);
        assert_eq!((advance_unattended(&shared), listed(&shared)), (Advance::Idle, 0));
        assert!(watch(), "it may sleep again");
    }

    #[test]
    fn work_of_the_host_is_left_as_soon_as_it_is_idle_and_what_is_gone_at_once() {
        let shared = Shared::new(None).expect("a process");
        let work: Arc<dyn Unattended> = Arc::new(OnDevice { is_idle: AtomicBool::new(true) });
        for _ in 0..2 {
            shared.look_after(Arc::downgrade(&work));
            assert!(shared.is_woken());
        }
        assert_eq!((advance_unattended(&shared), listed(&shared)), (Advance::Idle, 0));
        shared.watch_over(Arc::downgrade(&work));
        drop(work);
        assert_eq!((advance_unattended(&shared), listed(&shared)), (Advance::Idle, 0));
    }
}
