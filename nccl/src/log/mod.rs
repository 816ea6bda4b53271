//! NCCL's log: `NCCL_DEBUG`, in the form of NCCL's lines, which tools read.
//!
//! ```text
//! host:pid:tid [dev] NCCL INFO text
//! [time] host:pid:tid [dev] file:line NCCL WARN text
//! host:pid:tid NCCL CALL text
//! ```
//!
//! Invariant: one logger a process, made from the environment when the first line is due and again after [`reset`]; a
//! line is one write, so lines of threads never mix; a line that cannot be written is lost without an error. A level
//! that is off costs one load. Absent: `tracing`, for which no subscriber is installed.

mod line;
mod logger;
mod stamp;

use std::fmt;
use std::panic::Location;
use std::sync::{Arc, PoisonError, RwLock};

use consort_memory::sync::{AtomicU64, Ordering};

use super::environment::{Environment, variables};
use consort_settings::notice::Listener;
use consort_types::Rank;
use line::Line;
use logger::Logger;

/// The level of the log; each level includes those before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Level {
    /// No line.
    None,
    /// The library's version.
    Version,
    /// Warnings.
    Warn,
    /// Information, for the chosen subsystems.
    Info,
    /// The same as `Info`.
    Abort,
    /// Every call.
    Trace,
}

impl Level {
    /// All levels, with their names.
    const ALL: [(Level, &'static str); 6] = [
        (Level::None, "NONE"),
        (Level::Version, "VERSION"),
        (Level::Warn, "WARN"),
        (Level::Info, "INFO"),
        (Level::Abort, "ABORT"),
        (Level::Trace, "TRACE"),
    ];
}

/// The part of the library that a line is about; `NCCL_DEBUG_SUBSYS` chooses among them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "the variants are NCCL's names")]
pub enum Subsystem {
    Init,
    Coll,
    P2p,
    Shm,
    Net,
    Graph,
    Tuning,
    Env,
    Alloc,
    Call,
    Proxy,
    Nvls,
    Bootstrap,
    Reg,
    Profile,
    Ras,
    Destroy,
    AllocHost,
}

impl Subsystem {
    const NAMES: [&'static str; 18] = [
        "INIT",
        "COLL",
        "P2P",
        "SHM",
        "NET",
        "GRAPH",
        "TUNING",
        "ENV",
        "ALLOC",
        "CALL",
        "PROXY",
        "NVLS",
        "BOOTSTRAP",
        "REG",
        "PROFILE",
        "RAS",
        "DESTROY",
        "ALLOC_HOST",
    ];

    const fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// The number in brackets of a line that is about no rank.
pub const NO_DEVICE: i32 = -1;

static LOGGER: RwLock<Option<Arc<Logger>>> = RwLock::new(None);
/// The level and subsystems, as [`packed`] has them; 0 while there is no logger.
static SWITCH: AtomicU64 = AtomicU64::new(0);

fn packed(level: Level, mask: u32) -> u64 {
    u64::from(mask) << 8 | (level as u64 + 1)
}

fn logger() -> Arc<Logger> {
    if let Some(logger) = &*LOGGER.read().unwrap_or_else(PoisonError::into_inner) {
        return logger.clone();
    }
    let environment = Environment::of_process();
    let mut slot = LOGGER.write().unwrap_or_else(PoisonError::into_inner);
    slot.get_or_insert_with(|| install(Logger::new(&environment))).clone()
}

fn install(logger: Logger) -> Arc<Logger> {
    // Release: pairs with the Acquire in `enabled`. It publishes only itself; the logger is behind its lock.
    SWITCH.store(packed(logger.level, logger.mask), Ordering::Release);
    Arc::new(logger)
}

/// Whether lines of this level about this subsystem are written.
#[inline]
pub fn enabled(level: Level, subsystem: Subsystem) -> bool {
    // Acquire: pairs with the Release in `install`.
    let switch = match SWITCH.load(Ordering::Acquire) {
        0 => first_switch(),
        switch => switch,
    };
    let mask = (switch >> 8) as u32;
    (level as u64) < switch & 0xff && (level <= Level::Warn || mask & subsystem.bit() != 0)
}

#[cold]
fn first_switch() -> u64 {
    let logger = logger();
    packed(logger.level, logger.mask)
}

/// Discards the logger: the next line reads the variables and opens the file again.
pub fn reset() {
    let mut slot = LOGGER.write().unwrap_or_else(PoisonError::into_inner);
    *slot = None;
    SWITCH.store(0, Ordering::Release);
}

/// Writes a warning; `device` is the rank or device that it is about, or [`NO_DEVICE`].
#[track_caller]
pub fn warn(device: i32, text: impl fmt::Display) {
    warn_at(device, text, Location::caller());
}

fn warn_at(device: i32, text: impl fmt::Display, at: &Location<'_>) {
    if enabled(Level::Warn, Subsystem::Init) {
        let logger = logger();
        logger.write(&Line::Warn { device, file: at.file(), line: at.line() }, &text);
        if logger.info_on_warning && logger.level < Level::Info {
            // Acquire and Release: as in `enabled` and `install`.
            SWITCH.store(packed(Level::Info, logger.mask), Ordering::Release);
        }
    }
}

/// Writes information.
pub fn info(subsystem: Subsystem, device: i32, text: impl fmt::Display) {
    if enabled(Level::Info, subsystem) {
        logger().write(&Line::Info { device }, &text);
    }
}

/// Writes a call of the C interface, as `ncclAllReduce(...)` with its arguments.
pub fn call(text: impl fmt::Display) {
    if enabled(Level::Trace, Subsystem::Call) {
        logger().write(&Line::Call, &text);
    }
}

/// `NCCL version <version>`: a line of its own at level VERSION, an INFO line at higher levels.
pub fn version(version: &str) {
    if enabled(Level::Version, Subsystem::Init) {
        let logger = logger();
        let line = if logger.level >= Level::Info { Line::Info { device: NO_DEVICE } } else { Line::Plain };
        logger.write(&line, &format_args!("NCCL version {version}"));
    }
}

/// Writes a text that the client asked for explicitly, whatever the level.
pub(super) fn always(text: impl fmt::Display) {
    logger().write(&Line::Plain, &text);
}

/// From now on warnings and hang reports of the whole library are lines of this log as well.
pub(super) fn listen() {
    consort_settings::notice::listen(Listener {
        warning: |rank: Option<Rank>, text: &str, at: &Location<'_>| {
            let shows = enabled(Level::Warn, Subsystem::Init);
            warn_at(rank.and_then(|rank| i32::try_from(rank).ok()).unwrap_or(NO_DEVICE), text, at);
            shows
        },
        information: |text: &str| info(Subsystem::Init, NO_DEVICE, text),
    });
}

/// Logs the variables that are set, and which of them have no effect here and why.
pub(super) fn announce(environment: &Environment<'_>) {
    if !enabled(Level::Info, Subsystem::Env) {
        return;
    }
    for variable in variables() {
        let Some((text, origin)) = environment.text(variable.name) else { continue };
        let name = variable.name;
        match variable.state.reason() {
            None => info(Subsystem::Env, NO_DEVICE, format_args!("{name} set by {origin} to {text}.")),
            Some(why) => info(
                Subsystem::Env,
                NO_DEVICE,
                format_args!("{name} set by {origin} to {text} is ignored: {why}."),
            ),
        }
    }
}

#[cfg(test)]
mod tests;
