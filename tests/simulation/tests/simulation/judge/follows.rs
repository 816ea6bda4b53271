//! Errors that follow from another rank's error: a rank that sees one closes all its communicators, and others wait on
//! them.
//!
//! Invariant: such an error names a rank that failed or left, which must have done so before, and for a reason other
//! than this error. That reason is judged in its turn, so a chain of them ends at what the fault broke. Absent: which
//! errors the fault itself may cause.

use super::job::{End, Failure};
use crate::faults::Fault;
use consort_types::Rank;
use consort_types::error::Error;

/// The words of a report for ranks that have failed or left: they closed the communicator, or will never make it.
const GIVEN_UP: [&str; 2] = ["closed the", "not made the communicator yet"];

/// Whether an error names ranks that had failed or left before, and no other.
pub(super) fn follows(failure: &Failure<'_>) -> bool {
    let named = named(failure);
    let is_said_to_be_dead = matches!(failure.error(), Error::PeerLost { .. });
    let explains =
        |rank: Rank| gave_up(failure, rank) && !(is_said_to_be_dead && took_its_leave(failure, rank));
    !named.is_empty() && named.into_iter().all(explains)
}

/// Whether a rank that failed could send its leave: it left in order, or no wire and no process broke on the way. A
/// rank does not close a communicator that it never made: a split that has failed there may have succeeded here.
fn took_its_leave(failure: &Failure<'_>, rank: Rank) -> bool {
    let never_made = |end: &End| matches!(end, End::Failed(other) if !other.has_part);
    if failure.failed.on == Some(1) && failure.job.ends.get(rank as usize).is_some_and(never_made) {
        return false;
    }
    let breaks = matches!(
        failure.job.fault,
        Fault::Kill { .. }
            | Fault::Freeze { .. }
            | Fault::Cut { .. }
            | Fault::Partition { .. }
            | Fault::Reset { .. }
            | Fault::Blackhole { .. }
    );
    matches!(failure.job.ends.get(rank as usize), Some(End::Left(_))) || !breaks
}

/// The ranks that failed or left, as an error names them.
fn named(failure: &Failure<'_>) -> Vec<Rank> {
    match failure.error() {
        Error::PeerLeft { rank, .. } | Error::PeerLost { rank, .. } | Error::Aborted { rank, .. } => {
            failure.of_job(*rank).into_iter().collect()
        }
        Error::Timeout { verdict, .. } if GIVEN_UP.iter().any(|words| verdict.contains(words)) => {
            failure.blamed()
        }
        _ => Vec::new(),
    }
}

/// Whether a rank of the job had failed on another communicator before, or left as its program has it. The message of
/// it takes longer than the virtual clock's nanosecond, so of two failures at the same moment neither follows from
/// the other.
pub(super) fn gave_up(failure: &Failure<'_>, rank: Rank) -> bool {
    let Failure { job, failed, .. } = failure;
    match job.ends.get(rank as usize) {
        Some(End::Failed(other)) => {
            let elsewhere = job.communicator(rank, other) != job.communicator(failure.rank, failed);
            elsewhere && other.ended < failed.ended
        }
        Some(End::Left(at)) => *at < failed.ended,
        Some(End::Never | End::Completed) | None => false,
    }
}
