//! How a party that waits for another one sleeps, and is woken: a word in memory that both have mapped.
//!
//! ```text
//!           ┌── arm ──► ON_FUTEX ──┐
//!   AWAKE ──┤                      ├── ring: by FUTEX_WAKE, or a datagram to the waker; or disarm ──► AWAKE
//!           └─ arm_at ► a waker ───┘
//! ```
//!
//! The sleeper arms its bell, passes a fence, looks once more, and sleeps: on the word, or, where it waits for
//! descriptors too, on its [`Waker`]. The bell stays armed until the other party rings, which sends, and rings if it
//! sees that the bell is armed: one load of a line that is written only around a sleep.
//!
//! Invariant: where the one who rings has [passed](crate::access_epoch::fence) a fence between sending and looking, a
//! sleeper is always woken; where not, as in the shortest calls, a ring may be missed in the nanoseconds in which a
//! store is on its way, and the sleeper's own limit ends the sleep. A party that is killed rings no more; its sleeping
//! peer hears of it from the control link. Absent: what is waited for.

#[cfg(not(loom))]
use std::time::Duration;

use crate::Row;
use crate::sync::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
use crate::waker::{NAME_MIN, Waker};

const AWAKE: u64 = 0;
const ON_FUTEX: u64 = 1;

/// Both sides' bells, as one side has them. Clones are of the same two.
#[derive(Clone, Debug)]
pub struct Bell {
    own: Row,
    theirs: Row,
}

impl Bell {
    /// Over a slot on each side, this side's and the other's, that is used for nothing else.
    pub fn new([own, theirs]: [Row; 2]) -> Self {
        Self { own, theirs }
    }

    #[inline]
    fn word(row: &Row) -> &AtomicU64 {
        row.flag(0)
    }

    /// This side is about to [sleep](Bell::sleep). Before that it looks once more for what it waits for.
    pub fn arm(&self) {
        Self::arm_all([self], ON_FUTEX);
    }

    /// This side is about to sleep on a waker of this name, for the other sides of all of these. Before that it looks
    /// once more.
    #[cfg(not(loom))]
    pub fn arm_at<'a>(bells: impl IntoIterator<Item = &'a Bell>, waker: &Waker) {
        Self::arm_all(bells, waker.name());
    }

    fn arm_all<'a>(bells: impl IntoIterator<Item = &'a Bell>, place: u64) {
        // Relaxed: ordered before the look that follows by the fence.
        bells.into_iter().for_each(|bell| Self::word(&bell.own).store(place, Ordering::Relaxed));
        // SeqCst: with the one between sending and ringing, at least one side sees the other.
        fence(Ordering::SeqCst);
    }

    /// Whether its bell is armed: the other side has not rung since.
    pub fn is_armed(&self) -> bool {
        // Relaxed: what came with it is looked at by its own flags.
        Self::word(&self.own).load(Ordering::Relaxed) != AWAKE
    }

    /// Whether it is armed at this waker.
    #[cfg(not(loom))]
    pub fn is_armed_at(&self, waker: &Waker) -> bool {
        // Relaxed: as above.
        Self::word(&self.own).load(Ordering::Relaxed) == waker.name()
    }

    /// This side sleeps no more: the other need not ring.
    pub fn disarm(&self) {
        if self.is_armed() {
            // Relaxed: a ring on its way is one that nothing waits for.
            Self::word(&self.own).store(AWAKE, Ordering::Relaxed);
        }
    }

    /// Sleeps until the other side rings, but at most `limit`; at once if it has rung. Whether the system can.
    #[cfg(not(loom))]
    pub fn sleep(&self, limit: Duration) -> bool {
        let limit = libc::timespec {
            tv_sec: limit.as_secs().min(i32::MAX as u64) as _,
            tv_nsec: limit.subsec_nanos().into(),
        };
        // SAFETY: the word is in memory that the row keeps, and the timespec lives until the call returns.
        let slept = unsafe {
            libc::syscall(
                libc::SYS_futex,
                half(&self.own),
                libc::FUTEX_WAIT,
                ON_FUTEX as u32,
                &raw const limit,
            )
        };
        // Woken, rung before, too late, or a signal: all the same. Anything else is a system without futexes.
        slept == 0
            || matches!(
                std::io::Error::last_os_error().raw_os_error(),
                Some(libc::EAGAIN | libc::ETIMEDOUT | libc::EINTR)
            )
    }

    /// Wakes the other side if it sleeps or is about to.
    #[inline]
    pub fn ring(&self) {
        // Relaxed: see the invariant of the module.
        if Self::word(&self.theirs).load(Ordering::Relaxed) != AWAKE {
            self.wake();
        }
    }

    #[cold]
    #[inline(never)]
    fn wake(&self) {
        // Relaxed: the sleeper looks at what it waits for, which has its own flags. In one step: where it sleeps now is
        // where it is woken.
        let _place = Self::word(&self.theirs).swap(AWAKE, Ordering::Relaxed);
        #[cfg(not(loom))]
        match _place {
            // SAFETY: the word is in memory that the row keeps.
            ON_FUTEX => unsafe {
                _ = libc::syscall(libc::SYS_futex, half(&self.theirs), libc::FUTEX_WAKE, 1)
            },
            NAME_MIN.. => Waker::ring(_place),
            _ => {}
        }
    }
}

/// The half of the word that the system looks at.
#[cfg(not(loom))]
fn half(row: &Row) -> *const u32 {
    let word: *const u32 = std::ptr::from_ref(Bell::word(row)).cast();
    word.wrapping_add(usize::from(cfg!(target_endian = "big")))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::time::Instant;

    fn both() -> [Bell; 2] {
        let rows = [Row::standalone(1), Row::standalone(1)];
        [Bell::new([rows[0].clone(), rows[1].clone()]), Bell::new([rows[1].clone(), rows[0].clone()])]
    }

    #[test]
    fn who_sleeps_is_woken_and_who_does_not_is_not() {
        let [sleeper, other] = both();
        sleeper.arm();
        let began = Instant::now();
        assert!(sleeper.sleep(Duration::from_millis(20)), "no ring comes");
        assert!(began.elapsed() >= Duration::from_millis(20) && sleeper.is_armed());

        let began = Instant::now();
        let woken = std::thread::spawn(move || sleeper.sleep(Duration::from_secs(60)).then_some(sleeper));
        std::thread::sleep(Duration::from_millis(50));
        other.ring();
        let sleeper = woken.join().unwrap().expect("there are futexes");
        assert!(began.elapsed() < Duration::from_secs(30) && !sleeper.is_armed());

        // Rung between arming and sleeping; and an end to it without one.
        sleeper.arm();
        other.ring();
        assert!(sleeper.sleep(Duration::from_secs(60)) && began.elapsed() < Duration::from_secs(30));
        assert!(!other.is_armed(), "its own bell is another");
        sleeper.arm();
        sleeper.disarm();
        assert!(!sleeper.is_armed());
    }

    /// Who sleeps on descriptors, for several others, is woken by any of them, and a futex is none of its places.
    #[test]
    fn a_sleeper_on_descriptors_is_woken_by_its_waker() {
        let [[one, first], [two, second]] = [both(), both()];
        let waker = Waker::new().expect("a socket");
        for rings in [[&first, &second], [&second, &first]] {
            Bell::arm_at([&one, &two], &waker);
            assert!(one.is_armed() && two.is_armed());
            assert!(one.sleep(Duration::from_secs(600)), "not on the word, which says another place");
            rings[0].ring();
            let mut polled =
                [nix::poll::PollFd::new(std::os::fd::AsFd::as_fd(&waker), nix::poll::PollFlags::POLLIN)];
            assert_eq!(nix::poll::poll(&mut polled, 60_000u16), Ok(1), "it was rung");
            waker.clear();
            assert!(one.is_armed() != two.is_armed());
            [&one, &two].into_iter().for_each(Bell::disarm);
            rings[1].ring();
            assert_eq!(nix::poll::poll(&mut polled, 0u16), Ok(0), "it sleeps no more");
        }
    }
}
