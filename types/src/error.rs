//! How a call can fail. Each error says what is wrong, where, on which rank, and what to try.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::Rank;

/// The result of every fallible call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Which operation an error is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Operation {
    /// Its name, for example `all_reduce`.
    pub name: String,
    /// Its number on the communicator (or on the pair of ranks, for `send` and `receive`), counted from 1.
    pub sequence: u64,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} #{}", self.name, self.sequence)
    }
}

/// Everything that a call of this crate can return instead of its result.
///
/// An error that leaves the communicator unusable ([`Error::is_fatal`]) is the same on every rank that can be
/// reached, and every later call on that communicator returns it again.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The call itself is wrong; the communicator is as it was.
    #[error("invalid argument: {what}; {hint}")]
    InvalidArgument {
        /// What is wrong, with the values.
        what: String,
        /// What to do about it.
        hint: String,
    },
    /// Ranks made different calls at the same place of their sequences.
    #[error(
        "ranks disagree about operation #{sequence}: {difference}; every rank must make the same calls in the same order \
         with the same count, data type, operator and root"
    )]
    Mismatch {
        /// The operation's number.
        sequence: u64,
        /// Which rank called what: `rank 1: all_reduce of 8 float (sum), ranks 0, 2: all_reduce of 9 float (sum)`.
        difference: String,
    },
    /// Ranks were configured or built differently.
    #[error(
        "ranks cannot form a communicator: {difference}; start all ranks with the same version and settings"
    )]
    Settings {
        /// Which setting, which ranks, which values.
        difference: String,
    },
    /// Some ranks did not join in time.
    #[error(
        "{} of {size} ranks did not join within {}: missing rank{} {}; check that they were started with this job's id, \
         that they can reach {address}, and their own error messages",
        missing.len(), seconds(*waited), if missing.len() == 1 { "" } else { "s" }, list(missing)
    )]
    MissingRanks {
        /// The ranks that did not join.
        missing: Vec<Rank>,
        /// Number of ranks of the communicator.
        size: u32,
        /// How long the others waited for them.
        waited: Duration,
        /// Where they should have joined.
        address: String,
    },
    /// Joining was refused or could not be done.
    #[error("rank {rank} could not join: {cause}; {hint}")]
    Join {
        /// The rank that could not join.
        rank: Rank,
        /// The reason.
        cause: String,
        /// What to try.
        hint: String,
    },
    /// A rank died, or its host or its link did.
    #[error("rank {rank} ({place}) was lost{}: {cause}; look at that rank's own output first, and at the kernel's log if \
        it may have been out of memory",
        operation.as_ref().map(|o| format!(" during {o}")).unwrap_or_default())]
    PeerLost {
        /// The rank that was lost.
        rank: Rank,
        /// Where it ran: host and process.
        place: String,
        /// What was under way on the rank that noticed it.
        operation: Option<Operation>,
        /// How it was noticed.
        cause: String,
    },
    /// A rank closed its communicator while others still needed it.
    #[error(
        "rank {rank} ({place}) closed the communicator before {operation}, which needs it; it made fewer calls than the others \
         or dropped its communicator early: let all ranks make the same calls"
    )]
    PeerLeft {
        /// The rank that closed its communicator.
        rank: Rank,
        /// Where it ran: host and process.
        place: String,
        /// The operation of this rank that needs it.
        operation: Operation,
    },
    /// An operation did not finish in time.
    #[error("{}", timed_out(operation, *waited, verdict, &Names::RUST))]
    Timeout {
        /// The operation under way.
        operation: Operation,
        /// How long this rank waited.
        waited: Duration,
        /// The rank that is waited for, and its last known state.
        verdict: String,
    },
    /// A rank called `abort`.
    #[error(
        "the communicator was aborted by rank {rank}: {reason}; that rank's program decided so, look at its own output first"
    )]
    Aborted {
        /// The rank that called it.
        rank: Rank,
        /// The text that it passed.
        reason: String,
    },
    /// A rank called `revoke`.
    #[error("{}", revoked(*rank, reason, &Names::RUST))]
    Revoked {
        /// The rank that called it.
        rank: Rank,
        /// The text that it passed.
        reason: String,
    },
    /// Two threads made data calls on one communicator at the same time.
    #[error(
        "two threads use the same communicator at the same time; give each thread a communicator of its own (split) or order \
         the calls"
    )]
    ConcurrentUse,
    /// This process is a fork of the one that made the communicator.
    #[error(
        "this communicator belongs to the parent process; a forked child cannot use it: make a new communicator in the \
         child, or fork before the first one is made"
    )]
    Forked,
    /// There was not enough memory.
    #[error(
        "rank {rank} needed {needed_bytes} bytes for {what} and could not have them: {cause}; raise the memory limit, or use \
         fewer ranks per host"
    )]
    OutOfMemory {
        /// The rank that needed memory.
        rank: Rank,
        /// How much was needed, in bytes.
        needed_bytes: u64,
        /// What the memory was for.
        what: String,
        /// What the system said.
        cause: String,
    },
    /// A device, or its driver, refused or failed.
    #[error(
        "rank {rank}'s device failed at {what}: {cause}; what a kernel of the program did before is found only now: run it \
         with compute-sanitizer or CUDA_LAUNCH_BLOCKING=1, and look at the kernel's log for Xid messages"
    )]
    Device {
        /// The rank of the device.
        rank: Rank,
        /// The operation that the device or driver was asked for.
        what: String,
        /// What the driver said.
        cause: String,
    },
    /// A link broke in a way that does not show whether the other rank is alive.
    #[error(
        "the {transport} link between rank {from} and rank {to} failed: {cause}; check the network between their hosts and \
         the output of both"
    )]
    Link {
        /// The rank that noticed it.
        from: Rank,
        /// The rank at the other end.
        to: Rank,
        /// The transport of the link.
        transport: String,
        /// What the transport said.
        cause: String,
    },
    /// The operating system refused something.
    #[error("{call} failed: {source}; {}", remedy(source))]
    System {
        /// Which call, and for what.
        call: String,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// A defect of this library, found before it could do harm.
    #[error("internal error: {what}; please report this with the output of the run")]
    Internal {
        /// What the library found.
        what: String,
    },
}

/// The names that an interface has for the calls that errors recommend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Names {
    /// The call that returns the last hang report.
    pub last_report: &'static str,
    /// The call that sets the time of later calls.
    pub with_timeout: &'static str,
    /// The call that makes a communicator of some ranks of another.
    pub split: &'static str,
    /// The call that makes a communicator of the ranks that are left.
    pub shrink: &'static str,
}

impl Names {
    /// The Rust interface, whose names [`Error`]'s `Display` has.
    pub const RUST: Names = Names {
        last_report: "`last_report`",
        with_timeout: "`with_timeout`",
        split: "`split`",
        shrink: "`shrink`",
    };
    /// No interface: for a text that travels to ranks whose interfaces differ.
    pub const NEUTRAL: Names = Names {
        last_report: "the last report",
        with_timeout: "the communicator's timeout",
        split: "a split",
        shrink: "a shrink",
    };
}

fn timed_out(operation: &Operation, waited: Duration, verdict: &str, names: &Names) -> String {
    let Names { last_report, with_timeout, .. } = names;
    format!(
        "{operation} did not finish within {}: {verdict}; {last_report} has the details of all ranks, and CONSORT_TIMEOUT or \
         {with_timeout} sets a longer time",
        seconds(waited)
    )
}

fn revoked(rank: Rank, reason: &str, Names { split, shrink, .. }: &Names) -> String {
    format!(
        "the communicator was revoked by rank {rank}: {reason}; its operations are over on all ranks, and {split} or \
         {shrink} makes a new communicator of it"
    )
}

/// What kind of failure an error is, for callers that map errors to codes of their own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ErrorKind {
    /// An argument of the call is wrong.
    Argument,
    /// The call makes no sense here or now, or ranks disagree about it.
    Usage,
    /// Another rank is gone, or the connection to it is.
    Remote,
    /// A deadline passed.
    Timeout,
    /// The operating system refused.
    System,
    /// The CUDA driver refused.
    Device,
    /// A defect of this library.
    Internal,
}

impl Error {
    /// What kind of failure this is.
    ///
    /// An abort is [`ErrorKind::Remote`] although every process may still run: it ends the communicator on all ranks.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::InvalidArgument { .. } => ErrorKind::Argument,
            Error::Mismatch { .. }
            | Error::Settings { .. }
            | Error::ConcurrentUse
            | Error::Forked
            | Error::Revoked { .. } => ErrorKind::Usage,
            Error::PeerLost { .. }
            | Error::PeerLeft { .. }
            | Error::Link { .. }
            | Error::MissingRanks { .. }
            | Error::Join { .. }
            | Error::Aborted { .. } => ErrorKind::Remote,
            Error::Timeout { .. } => ErrorKind::Timeout,
            Error::OutOfMemory { .. } | Error::System { .. } => ErrorKind::System,
            Error::Device { .. } => ErrorKind::Device,
            Error::Internal { .. } => ErrorKind::Internal,
        }
    }

    /// The text of `Display`, with an interface's names for the calls that it recommends.
    pub fn text(&self, names: &Names) -> String {
        match self {
            Error::Timeout { operation, waited, verdict } => timed_out(operation, *waited, verdict, names),
            Error::Revoked { rank, reason } => revoked(*rank, reason, names),
            other => other.to_string(),
        }
    }

    /// Whether the communicator cannot be used any more.
    pub fn is_fatal(&self) -> bool {
        !matches!(
            self,
            Error::InvalidArgument { .. }
                | Error::ConcurrentUse
                | Error::Forked
                | Error::Settings { .. }
                | Error::Join { .. }
        )
    }

    /// A call that is wrong: `what` with the values, and a hint what to do.
    pub fn invalid(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Error::InvalidArgument { what: what.into(), hint: hint.into() }
    }

    /// The same error, whose text says where among a program's communicators it was found: `place`, for people. Said once.
    pub fn found(mut self, place: &str) -> Self {
        let text = match &mut self {
            Error::Mismatch { difference, .. } => difference,
            Error::PeerLost { cause, .. } | Error::Link { cause, .. } => cause,
            Error::PeerLeft { place, .. } => place,
            Error::Timeout { verdict, .. } => verdict,
            Error::Aborted { reason, .. } | Error::Revoked { reason, .. } => reason,
            Error::Internal { what } | Error::Device { what, .. } | Error::OutOfMemory { what, .. } => what,
            Error::System { call, .. } => call,
            // These are about a call, or about joining.
            Error::InvalidArgument { .. }
            | Error::Settings { .. }
            | Error::MissingRanks { .. }
            | Error::Join { .. }
            | Error::ConcurrentUse
            | Error::Forked => return self,
        };
        let place = format!(" ({place})");
        if !text.ends_with(&place) {
            text.push_str(&place);
        }
        self
    }

    /// A call of the operating system that failed.
    pub fn system(call: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Error::System { call: call.into(), source: Arc::new(source.into()) }
    }

    /// A state that the library should never be in.
    pub fn internal(what: impl Into<String>) -> Self {
        Error::Internal { what: what.into() }
    }
}

/// What a user can do about an error of the system.
fn remedy(source: &io::Error) -> &'static str {
    use nix::errno::Errno;
    match Errno::from_raw(source.raw_os_error().unwrap_or(0)) {
        Errno::EMFILE => "raise the process's limit of open files (ulimit -n)",
        Errno::ENFILE => "the host is out of open files: raise fs.file-max or use fewer processes",
        Errno::ENOMEM | Errno::EAGAIN => {
            "the host or the container is out of memory or threads: raise its limits"
        }
        Errno::ENOSPC => "a file system is full: free some space",
        Errno::EACCES | Errno::EPERM => {
            "it is not permitted: check the user, the container's security profile and file modes"
        }
        Errno::EFAULT => "some of that memory is not there: are the buffers as long as their call says?",
        Errno::EADDRINUSE => {
            "the address is taken: choose another (CONSORT_ADDRESS, CONSORT_BIND) or let the system choose"
        }
        Errno::EADDRNOTAVAIL => {
            "no interface of this host has that address: check CONSORT_BIND and CONSORT_ADDRESS"
        }
        Errno::ENETUNREACH | Errno::EHOSTUNREACH => "no route leads there: check the network and the address",
        _ => "check the limits and permissions of this process and its container",
    }
}

/// A duration as users read it.
pub fn seconds(duration: Duration) -> String {
    if duration >= Duration::from_secs(1) {
        format!("{:.1} s", duration.as_secs_f64())
    } else {
        format!("{} ms", duration.as_millis())
    }
}

/// `0, 2, 5-7`.
pub fn list(ranks: &[Rank]) -> String {
    let mut sorted: Vec<u32> = ranks.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut parts: Vec<String> = Vec::new();
    let mut at = 0;
    while at < sorted.len() {
        let mut end = at;
        while end + 1 < sorted.len() && sorted[end + 1] == sorted[end] + 1 {
            end += 1;
        }
        match end - at {
            0 => parts.push(sorted[at].to_string()),
            1 => parts.push(format!("{}, {}", sorted[at], sorted[end])),
            _ => parts.push(format!("{}-{}", sorted[at], sorted[end])),
        }
        at = end + 1;
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_listed_shortly() {
        assert_eq!(list(&[3, 1, 2, 7, 8, 0]), "0-3, 7, 8");
        assert_eq!(list(&[5]), "5");
    }

    #[test]
    fn where_an_error_was_found_is_said_once() {
        let error = Error::Aborted { rank: 1, reason: "enough".into() }.found("in tp").found("in tp");
        assert!(error.to_string().contains("by rank 1: enough (in tp); that rank"), "{error}");
        let error = Error::invalid("a size of 0", "pass another").found("in tp");
        assert!(!error.to_string().contains("tp"), "{error}");
    }

    #[test]
    fn errors_name_rank_cause_and_remedy() {
        let error = Error::MissingRanks {
            missing: vec![2, 3],
            size: 4,
            waited: Duration::from_millis(1500),
            address: "127.0.0.1:4000".into(),
        };
        let text = error.to_string();
        assert!(
            text.contains("2 of 4 ranks") && text.contains("missing ranks 2, 3") && text.contains("1.5 s"),
            "{text}"
        );
        assert!(error.is_fatal());
    }
}
