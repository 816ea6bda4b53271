//! How a party that waits for another one sleeps, and is woken: a futex in memory that both have mapped.
//!
//! The sleeper arms its bell, passes a fence, looks once more, and sleeps; the bell stays armed until somebody rings. The other party sends, and rings if it sees
//! that the bell is armed: one load of a line that is written only when somebody goes to sleep.
//!
//! Invariant: where the one who rings has [passed](crate::access_epoch::fence) a fence between sending and looking, a sleeper is
//! always woken; where not, as in the shortest calls, a ring may be missed in the nanoseconds in which a store is on its
//! way, and the sleeper's own limit ends the sleep. Absent: what is waited for.

#[cfg(not(loom))]
use std::time::Duration;

use crate::Row;
use crate::sync::{AtomicU64, Ordering, fence};

const ARMED: u64 = 1;

/// Both sides' bells, as one side has them.
#[derive(Debug)]
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

    /// This side is about to sleep. Then it looks once more for what it waits for, and if that is not there it
    /// [sleeps](Bell::sleep).
    pub fn arm(&self) {
        // Relaxed: ordered before the look that follows by the fence.
        Self::word(&self.own).store(ARMED, Ordering::Relaxed);
        // SeqCst: with the one between sending and ringing, at least one side sees the other.
        fence(Ordering::SeqCst);
    }

    /// Whether this side's bell is armed: nobody has rung since.
    pub fn is_armed(&self) -> bool {
        // Relaxed: what came with it is looked at by its own flags.
        Self::word(&self.own).load(Ordering::Relaxed) == ARMED
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
            libc::syscall(libc::SYS_futex, half(&self.own), libc::FUTEX_WAIT, ARMED as u32, &raw const limit)
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
        if Self::word(&self.theirs).load(Ordering::Relaxed) == ARMED {
            self.wake();
        }
    }

    #[cold]
    #[inline(never)]
    fn wake(&self) {
        // Relaxed: the sleeper looks at what it waits for, which has its own flags.
        Self::word(&self.theirs).store(0, Ordering::Relaxed);
        #[cfg(not(loom))]
        // SAFETY: the word is in memory that the row keeps.
        unsafe {
            libc::syscall(libc::SYS_futex, half(&self.theirs), libc::FUTEX_WAKE, 1);
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
        assert!(sleeper.sleep(Duration::from_millis(20)), "nobody rings");
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
    }
}
