//! A clock that costs a few nanoseconds to read: what the flight record stamps operations with.
//!
//! Invariant: never goes backwards on one thread, and counts at one rate on all cores of a host. Where the
//! processor's counter does not promise that, the system's clock is read instead.

use std::sync::OnceLock;
#[cfg(target_arch = "x86_64")]
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Whether the processor's counter runs at one rate through all power states.
#[cfg(target_arch = "x86_64")]
fn is_invariant() -> bool {
    use std::arch::x86_64::__cpuid;
    const POWER: u32 = 0x8000_0007;
    __cpuid(0x8000_0000).eax >= POWER && __cpuid(POWER).edx & (1 << 8) != 0
}

/// The process's first look at both clocks.
struct Start {
    instant: Instant,
    #[cfg(target_arch = "x86_64")]
    ticks: u64,
    #[cfg(target_arch = "x86_64")]
    counter: bool,
}

static START: OnceLock<Start> = OnceLock::new();

/// Whether the processor's counter is what [`ticks`] are, once the process has looked.
#[cfg(target_arch = "x86_64")]
static COUNTS: AtomicBool = AtomicBool::new(false);

#[cfg(target_arch = "x86_64")]
#[inline]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and it touches no memory.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Both clocks at one moment. A thread may lose its core between two looks: the pair of least distance is taken.
#[cfg(target_arch = "x86_64")]
fn both() -> (Instant, u64) {
    let look = |_| {
        let (before, instant) = (counter(), Instant::now());
        (counter().saturating_sub(before), instant, before)
    };
    let (_, instant, ticks) = (0..4).map(look).min_by_key(|(distance, ..)| *distance).expect("four looks");
    (instant, ticks)
}

fn start() -> &'static Start {
    START.get_or_init(|| {
        #[cfg(target_arch = "x86_64")]
        if is_invariant() {
            let (instant, ticks) = both();
            // Relaxed: the counter needs nothing else.
            COUNTS.store(true, Ordering::Relaxed);
            return Start { instant, ticks, counter: true };
        }
        Start {
            instant: Instant::now(),
            #[cfg(target_arch = "x86_64")]
            ticks: 0,
            #[cfg(target_arch = "x86_64")]
            counter: false,
        }
    })
}

/// The present, in ticks of [`duration`]'s unit.
#[inline(always)]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // Relaxed: as where it is stored.
    if COUNTS.load(Ordering::Relaxed) {
        return counter();
    }
    first_ticks()
}

/// As [`ticks`], where the process has not looked yet, or reads the system's clock.
#[inline(never)]
fn first_ticks() -> u64 {
    let start = start();
    #[cfg(target_arch = "x86_64")]
    if start.counter {
        return counter();
    }
    start.instant.elapsed().as_nanos() as u64
}

/// How long `ticks` ticks are, by the rate since the process's first call; a difference of two [`ticks`].
pub fn duration(difference: u64) -> Duration {
    #[cfg(target_arch = "x86_64")]
    if start().counter {
        let start = start();
        // The longer the process runs the better; a first call waits until the rate is known to a thousandth.
        while start.instant.elapsed() < Duration::from_micros(100) {
            std::hint::spin_loop();
        }
        let (instant, ticks) = both();
        let (elapsed, counted) = (instant - start.instant, ticks.saturating_sub(start.ticks));
        return Duration::from_nanos(
            (difference as u128 * elapsed.as_nanos() / u128::from(counted.max(1))) as u64,
        );
    }
    Duration::from_nanos(difference)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_agree_with_the_system_clock() {
        // Between two looks at the clock lies what is between the ticks behind the first and before the second, and no
        // more than what the ticks around both say, also where another program has the core meanwhile.
        let (first, instant, second) = (ticks(), Instant::now(), ticks());
        std::thread::sleep(Duration::from_millis(20));
        let (third, by_clock, fourth) = (ticks(), instant.elapsed(), ticks());
        let (least, most) = (duration(third - second), duration(fourth - first));
        let off = Duration::from_millis(2);
        assert!(
            least < by_clock + off && by_clock < most + off,
            "{least:?} to {most:?} by ticks, {by_clock:?} by the clock"
        );
    }
}
