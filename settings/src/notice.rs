//! Sentences for people: warnings and information, for subscribers of `tracing` and for NCCL's log.
//!
//! Invariant: no subscriber is installed. Absent: errors, which calls return, and the hang report.

use std::panic::Location;
use std::sync::OnceLock;

use consort_types::Rank;

/// What a log does with sentences for people.
#[derive(Clone, Copy)]
pub struct Listener {
    /// Of the rank that warns, the text and the place in the source. Returns whether the log shows warnings.
    pub warning: fn(Option<Rank>, &str, &Location<'_>) -> bool,
    /// Of the text.
    pub information: fn(&str),
}

static LISTENER: OnceLock<Listener> = OnceLock::new();

/// From now on `listener` gets what is said; the first one stays.
pub fn listen(listener: Listener) {
    // Whoever comes second finds the same listener there: there is one log.
    let _ = LISTENER.set(listener);
}

/// Something that explains how the library does what it does.
pub fn inform(text: &str) {
    tracing::info!("{text}");
    if let Some(listener) = LISTENER.get() {
        (listener.information)(text);
    }
}

/// Something that people should know and that is no error.
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

/// A warning that is said again where it matters; says whether people were told by a log.
#[track_caller]
pub fn warn_of(rank: Option<Rank>, text: &str) -> bool {
    tracing::warn!(rank, "{text}");
    LISTENER.get().is_some_and(|listener| (listener.warning)(rank, text, Location::caller()))
}
