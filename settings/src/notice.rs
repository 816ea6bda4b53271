//! Messages for users: warnings and information, for subscribers of `tracing` and for NCCL's log.
//!
//! Invariant: no subscriber is installed. Absent: errors, which calls return, and the hang report.

use std::panic::Location;
use std::sync::OnceLock;

use consort_types::Rank;

/// The functions by which a log takes messages.
#[derive(Clone, Copy)]
pub struct Listener {
    /// Takes the rank that warns, the text and the place in the source. Returns whether the log shows warnings.
    pub warning: fn(Option<Rank>, &str, &Location<'_>) -> bool,
    /// Takes the text.
    pub information: fn(&str),
}

static LISTENER: OnceLock<Listener> = OnceLock::new();

/// Sends messages to `listener` from now on. Only the first call has an effect.
pub fn listen(listener: Listener) {
    // A second call passes the same listener: there is one log.
    let _ = LISTENER.set(listener);
}

/// Logs information about how the library works.
pub fn inform(text: &str) {
    tracing::info!("{text}");
    if let Some(listener) = LISTENER.get() {
        (listener.information)(text);
    }
}

/// Logs a warning: something that users should know and that is no error.
#[track_caller]
pub fn warn(text: &str) {
    aloud(None, text);
}

/// Whether warnings stay off standard error: set by simulated jobs, which have thousands.
#[cfg(feature = "testing")]
pub static QUIET: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// A warning that goes to standard error where no subscriber and no log takes it.
#[track_caller]
pub fn aloud(rank: Option<Rank>, text: &str) {
    #[cfg(feature = "testing")]
    if QUIET.load(std::sync::atomic::Ordering::Relaxed) {
        return;
    }
    if !warn_of(rank, text) && !tracing::dispatcher::has_been_set() {
        eprintln!("consort: {text}");
    }
}

/// A warning that also reaches users in another way. Returns whether a log took it.
#[track_caller]
pub fn warn_of(rank: Option<Rank>, text: &str) -> bool {
    tracing::warn!(rank, "{text}");
    LISTENER.get().is_some_and(|listener| (listener.warning)(rank, text, Location::caller()))
}
