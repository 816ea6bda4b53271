//! Whether the fault may cause an error, and whether the error names what the fault broke.

use super::follows::follows;
use super::job::{End, Failure};
use crate::faults::Fault;
use consort::{Guilty, Rank};
use consort_types::error::Error;

/// Whether a failure is the fault's, or follows from one that is.
pub(super) fn fits(failure: &Failure<'_>) -> Result<(), String> {
    let fits = if failure.is_joining() {
        fits_joining(failure)
    } else {
        may_fail(failure)
            && (follows(failure) || of_network(failure) || of_program(failure) || of_will(failure))
    };
    if fits { Ok(()) } else { Err(format!("this fault cannot cause: {}", failure.error())) }
}

/// Whether the fault may cause any failure after joining.
fn may_fail(failure: &Failure<'_>) -> bool {
    let timeout = failure.job.timeout;
    match &failure.job.fault {
        Fault::None
        | Fault::Slow { .. }
        | Fault::Remake { .. }
        | Fault::Cut { pause: Some(_), .. }
        | Fault::NeverJoin { .. }
        | Fault::Settings { .. } => false,
        Fault::Freeze { pause: Some(pause), .. } => *pause >= timeout / 2,
        Fault::Sleep { time, .. } => *time >= timeout / 2,
        _ => true,
    }
}

/// Whether the fault may keep a rank from joining; or others, which this one then misses.
fn fits_joining(failure: &Failure<'_>) -> bool {
    let job = failure.job;
    let kept_away = |rank: Rank| match &job.ends[rank as usize] {
        End::Failed(failed) if failed.on.is_none() => keeps_away(&Failure { job, rank, failed }),
        _ => false,
    };
    // A rank without the table of ranks makes no links either, and those that have the table cannot know why.
    let misses_them = match failure.error() {
        Error::MissingRanks { missing, .. } => {
            !missing.is_empty() && missing.iter().all(|rank| kept_away(*rank))
        }
        _ => false,
    };
    keeps_away(failure) || misses_them
}

/// Whether a failure to join names what the fault broke.
fn keeps_away(failure: &Failure<'_>) -> bool {
    let missing = |of_job: Rank| match failure.error() {
        Error::MissingRanks { .. } => failure.misses(|rank| rank == of_job),
        Error::PeerLost { rank, .. } => *rank == of_job,
        // The root is in rank 0's process, and a rank that it did not hear in time cannot know more.
        Error::Join { rank: named, .. } => of_job == 0 || *named == of_job || failure.rank == of_job,
        _ => false,
    };
    match &failure.job.fault {
        // A single try to connect may fail: it is not waited for until the end of the cut.
        Fault::Cut { one, other, pause: Some(_), .. } => {
            matches!(failure.error(), Error::Join { .. }) && (missing(*one) || missing(*other))
        }
        Fault::Freeze { pause: Some(pause), .. } if *pause < failure.job.timeout / 2 => false,
        Fault::Kill { rank, .. } | Fault::NeverJoin { rank } => missing(*rank),
        // A rank that was stopped and goes on has missed all the others. With rank 0 the root was stopped, which has
        // heard of no rank meanwhile.
        Fault::Freeze { rank: stopped, .. } => {
            let was_deaf = failure.rank == *stopped || *stopped == 0;
            missing(*stopped)
                || was_deaf && matches!(failure.error(), Error::Join { .. } | Error::MissingRanks { .. })
        }
        Fault::Cut { one, other, .. } | Fault::Reset { one, other, .. } => {
            missing(*one) || missing(*other) || failure.misses(|rank| rank == *one || rank == *other)
        }
        Fault::Partition { side, .. } => {
            let is_across = |rank: Rank| side.contains(&rank) != side.contains(&failure.rank);
            across(failure, side).any(missing) || failure.misses(is_across)
        }
        Fault::Settings { rank: other } => {
            matches!(failure.error(), Error::Settings { difference } if difference.contains(&format!("rank {other}")))
        }
        _ => false,
    }
}

/// The ranks on the other side of a partition.
fn across<'a>(failure: &'a Failure<'_>, side: &'a [Rank]) -> impl Iterator<Item = Rank> + 'a {
    (0..failure.job.ranks()).filter(|other| side.contains(other) != side.contains(&failure.rank))
}

/// The errors of a process or a network that does not go on.
fn of_network(failure: &Failure<'_>) -> bool {
    let error = failure.error();
    // It is lost, or never joined.
    let gone = |rank: Rank| failure.lost(rank) || failure.misses(|missing| missing == rank);
    let link = |one: Rank, other: Rank| {
        matches!(error, Error::Link { from, to, .. }
            if failure.is(*from, one) && failure.is(*to, other) || failure.is(*from, other) && failure.is(*to, one))
    };
    match &failure.job.fault {
        // A single rank cannot distinguish a reset by a dead process from one on the network.
        Fault::Kill { rank: dead, .. } => {
            let reset = matches!(error, Error::Link { from, to, .. } if failure.is(*from, *dead) || failure.is(*to, *dead));
            // Where not all are linked, ranks may call while others still join: none has a link that could have ended.
            let joining =
                failure.job.is_sparse && failure.job.failed().any(|(_, failed)| failed.on.is_none());
            let unlinked = joining && failure.is_timeout() && failure.blames(|rank| rank == *dead);
            gone(*dead) || reset || unlinked
        }
        // A rank that was stopped and goes on finds that its own deadlines have passed, whichever rank it waited for.
        Fault::Freeze { rank: stopped, .. } => {
            let own = failure.is_timeout() && failure.rank == *stopped;
            own || failure.blames(|rank| rank == *stopped) || gone(*stopped)
        }
        Fault::Cut { one, other, .. } => {
            // In a large job the report does not come by detours.
            let bare = failure.is_timeout() && failure.failed.report.is_none() && failure.job.ranks() > 32;
            let named = bare || failure.blames(|rank| rank == *one || rank == *other);
            // A rank that fails closes its data connections too, and its reason does not get through.
            named || failure.misses(|rank| rank == *one || rank == *other) || link(*one, *other)
        }
        Fault::Partition { side, .. } => {
            let link = |other: Rank| matches!(error, Error::Link { to, .. } if failure.is(*to, other));
            let is_across = |rank: Rank| side.contains(&rank) != side.contains(&failure.rank);
            let lost = across(failure, side).any(|other| failure.lost(other) || link(other));
            failure.blames(is_across) || failure.misses(is_across) || lost
        }
        Fault::Blackhole { from, to, .. } => {
            let direct = matches!(failure.guilty(), Some(Guilty::Link { from: f, to: t })
                if failure.is(*f, *from) && failure.is(*t, *to));
            // Seen from a communicator that does not have both ends.
            let abroad = matches!(failure.guilty(), Some(Guilty::Elsewhere { .. }))
                && failure.blames(|rank| rank == *from || rank == *to);
            failure.is_timeout() && (direct || abroad)
        }
        Fault::Reset { one, other, .. } => {
            let named = failure.blames(|rank| rank == *one || rank == *other);
            // One of them could not join in the end.
            link(*one, *other) || gone(*one) || gone(*other) || named
        }
        Fault::Deny { rank: poor, .. } => {
            matches!(error, Error::OutOfMemory { rank, .. } if failure.is(*rank, *poor))
        }
        _ => false,
    }
}

/// The errors of a rank whose program is not that of the others.
fn of_program(failure: &Failure<'_>) -> bool {
    let cycle = failure.cycle();
    match &failure.job.fault {
        Fault::Skip { rank: absent, .. } => {
            let found =
                failure.differs(*absent) || failure.left(*absent) || failure.blames(|rank| rank == *absent);
            found || cycle.iter().any(|step| step.contains(absent))
        }
        Fault::Deviate { rank: other, .. } => failure.differs(*other) || failure.left(*other),
        Fault::Sleep { rank: late, .. } => failure.blames(|rank| rank == *late),
        Fault::Swap { rank: other, .. } => cycle.iter().any(|step| step.contains(other)),
        // The messages are on the first communicator, wherever other ranks wait for these two.
        Fault::BothSend { one, other } => {
            !cycle.is_empty() && cycle.iter().all(|step| step == &[*one] || step == &[*other])
        }
        _ => false,
    }
}

/// The errors of a rank that ended on purpose.
fn of_will(failure: &Failure<'_>) -> bool {
    let aborted = |by: Rank| matches!(failure.error(), Error::Aborted { rank, .. } if failure.is(*rank, by));
    match &failure.job.fault {
        // Operations that it had started are not finished any more.
        Fault::Leave { rank: gone, .. } => failure.left(*gone) || aborted(*gone),
        Fault::Abort { rank: by, .. } => aborted(*by),
        Fault::Revoke { rank: by, .. } => {
            matches!(failure.error(), Error::Revoked { rank, .. } if failure.is(*rank, *by))
        }
        _ => false,
    }
}
