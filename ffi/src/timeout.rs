//! Deadlines in C's form: seconds in a double, with two values that are no times.

use std::time::Duration;

use consort_nccl::{Comm, Failure, NEVER, Result, thread};

/// `CONSORT_TIMEOUT_NONE`: no deadline.
pub const NONE: f64 = -1.0;
/// `CONSORT_TIMEOUT_INHERIT`: the value of the next wider scope.
pub const INHERIT: f64 = -2.0;

/// The seconds that C passed; `None` to inherit.
fn parse(seconds: f64) -> Result<Option<Duration>> {
    if seconds == INHERIT {
        return Ok(None);
    }
    if seconds == NONE || seconds >= NEVER.as_secs_f64() {
        return Ok(Some(NEVER));
    }
    if seconds.is_nan() || seconds <= 0.0 {
        return Err(Failure::argument(
            format!("{seconds} s is no timeout"),
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

/// Sets the deadline of a communicator's later calls.
pub(crate) fn set_of_comm(comm: &Comm, seconds: f64) -> Result<()> {
    comm.set_timeout(parse(seconds)?);
    Ok(())
}

/// The deadline of calls on a communicator, for a thread that has set none.
pub(crate) fn seconds(comm: &Comm) -> Result<f64> {
    Ok(show(Some(comm.timeout().unwrap_or(comm.communicator()?.timeout()))))
}

/// The deadline of this thread's next call; `None` where it is the communicator's own.
#[inline]
pub(crate) fn now(comm: &Comm) -> Option<Duration> {
    thread::timeout().or_else(|| comm.timeout())
}

/// Sets this thread's deadline and returns the one before.
pub(crate) fn set_of_thread(seconds: f64) -> Result<f64> {
    let before = thread::set_timeout(parse(seconds)?);
    before.map(show).ok_or_else(|| Failure::argument("this thread is ending", "set its timeout before"))
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
        let comm = Comm::local(1, None).expect("one rank").remove(0);
        set_of_comm(&comm, NONE).expect("a timeout");
        assert!(now(&comm).is_some_and(|timeout| show(Some(timeout)) == NONE));
        set_of_comm(&comm, INHERIT).expect("a timeout");
        assert!(now(&comm).is_none());
    }
}
