//! Deadlines as C says them: seconds in a double, with two values that are no times.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use consort::{Communicator, Error};

use crate::status::invalid;

/// `CONSORT_TIMEOUT_NONE`: no deadline.
pub const NONE: f64 = -1.0;
/// `CONSORT_TIMEOUT_INHERIT`: what the next wider scope says.
pub const INHERIT: f64 = -2.0;

/// From here on it is no deadline; the core takes what is longer for this.
pub(crate) const NEVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

thread_local! {
    /// `None` where the communicator decides.
    static OF_THREAD: Cell<Option<Duration>> = const { Cell::new(None) };
}

/// The seconds that C passed; `None` to inherit.
fn parse(seconds: f64) -> Result<Option<Duration>, Error> {
    if seconds == INHERIT {
        return Ok(None);
    }
    if seconds == NONE || seconds >= NEVER.as_secs_f64() {
        return Ok(Some(NEVER));
    }
    if seconds.is_nan() || seconds <= 0.0 {
        return Err(invalid(
            &format!("{seconds} s is no timeout"),
            "pass seconds greater than 0, CONSORT_TIMEOUT_NONE or CONSORT_TIMEOUT_INHERIT",
        ));
    }
    Ok(Some(Duration::from_secs_f64(seconds).max(Duration::from_millis(1))))
}

fn show(timeout: Option<Duration>) -> f64 {
    match timeout {
        None => INHERIT,
        Some(timeout) if timeout >= NEVER => NONE,
        Some(timeout) => timeout.as_secs_f64(),
    }
}

/// The deadline of a handle, in nanoseconds; 0 where none was set and the communicator's own holds.
#[derive(Default)]
pub(crate) struct OfHandle(AtomicU64);

impl OfHandle {
    pub(crate) fn set(&self, seconds: f64) -> Result<(), Error> {
        // What exceeds 64 bits is no deadline.
        let nanoseconds =
            parse(seconds)?.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        self.0.store(nanoseconds, Ordering::Relaxed);
        Ok(())
    }

    fn get(&self) -> Option<Duration> {
        Some(self.0.load(Ordering::Relaxed)).filter(|set| *set != 0).map(Duration::from_nanos)
    }

    /// What holds for calls of a thread that has set nothing.
    pub(crate) fn seconds(&self, communicator: &Communicator) -> f64 {
        show(Some(self.get().unwrap_or(communicator.timeout())))
    }

    /// What holds for this thread's next call; `None` where it is the communicator's own.
    pub(crate) fn now(&self) -> Option<Duration> {
        OF_THREAD.try_with(Cell::get).ok().flatten().or_else(|| self.get())
    }
}

/// Sets this thread's deadline and returns the one before.
pub(crate) fn set_of_thread(seconds: f64) -> Result<f64, Error> {
    let timeout = parse(seconds)?;
    OF_THREAD
        .try_with(|of_thread| show(of_thread.replace(timeout)))
        .map_err(|_| invalid("this thread is ending", "set its timeout before"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_come_back_as_they_went_in() {
        for seconds in [NONE, INHERIT, 0.25, 3600.0] {
            assert_eq!(show(parse(seconds).expect("a timeout")), seconds);
        }
        assert_eq!(show(parse(f64::INFINITY).expect("a timeout")), NONE);
        assert_eq!(show(parse(1e-9).expect("a timeout")), 1e-3);
        for seconds in [0.0, -0.5, -3.0, f64::NAN, f64::NEG_INFINITY] {
            assert!(parse(seconds).is_err(), "{seconds}");
        }
    }

    #[test]
    fn what_is_no_deadline_is_none_after_storing() {
        let handle = OfHandle::default();
        handle.set(NONE).expect("a timeout");
        assert!(handle.now().is_some_and(|timeout| show(Some(timeout)) == NONE));
        handle.set(INHERIT).expect("a timeout");
        assert!(handle.now().is_none());
    }
}
