//! Whether the fault may cause an error, and whether the error names what the fault broke.

use super::follows::follows;
use super::job::{End, Told};
use crate::faults::Fault;
use consort::{Guilty, Rank};
use consort_types::error::Error;

/// Whether a failure is the fault's, or follows from one that is.
pub(super) fn fits(told: &Told<'_>) -> Result<(), String> {
    let fits = if told.is_joining() {
        fits_joining(told)
    } else {
        may_fail(told) && (follows(told) || of_network(told) || of_program(told) || of_will(told))
    };
    if fits { Ok(()) } else { Err(format!("this fault cannot cause: {}", told.error())) }
}

/// Whether the fault may cause any failure after joining.
fn may_fail(told: &Told<'_>) -> bool {
    let timeout = told.job.timeout;
    match &told.job.fault {
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
fn fits_joining(told: &Told<'_>) -> bool {
    let job = told.job;
    let kept_away = |rank: Rank| match &job.ends[rank as usize] {
        End::Failed(failed) if failed.on.is_none() => keeps_away(&Told { job, rank, failed }),
        _ => false,
    };
    // A rank without the table of ranks makes no links either, and those that have the table cannot know why.
    let misses_them = match told.error() {
        Error::MissingRanks { missing, .. } => {
            !missing.is_empty() && missing.iter().all(|rank| kept_away(*rank))
        }
        _ => false,
    };
    keeps_away(told) || misses_them
}

/// Whether a failure to join names what the fault broke.
fn keeps_away(told: &Told<'_>) -> bool {
    let missing = |of_job: Rank| match told.error() {
        Error::MissingRanks { .. } => told.misses(|rank| rank == of_job),
        Error::PeerLost { rank, .. } => *rank == of_job,
        // The root is in rank 0's process, and a rank that it did not hear in time cannot know more.
        Error::Join { rank: named, .. } => of_job == 0 || *named == of_job || told.rank == of_job,
        _ => false,
    };
    match &told.job.fault {
        // A single try to connect may fail: it is not waited for until the end of the cut.
        Fault::Cut { one, other, pause: Some(_), .. } => {
            matches!(told.error(), Error::Join { .. }) && (missing(*one) || missing(*other))
        }
        Fault::Freeze { pause: Some(pause), .. } if *pause < told.job.timeout / 2 => false,
        Fault::Kill { rank, .. } | Fault::NeverJoin { rank } => missing(*rank),
        // A rank that was stopped and goes on has missed all the others. With rank 0 the root was stopped, which has
        // heard of no rank meanwhile.
        Fault::Freeze { rank: stopped, .. } => {
            let was_deaf = told.rank == *stopped || *stopped == 0;
            missing(*stopped)
                || was_deaf && matches!(told.error(), Error::Join { .. } | Error::MissingRanks { .. })
        }
        Fault::Cut { one, other, .. } | Fault::Reset { one, other, .. } => {
            missing(*one) || missing(*other) || told.misses(|rank| rank == *one || rank == *other)
        }
        Fault::Partition { side, .. } => {
            let is_across = |rank: Rank| side.contains(&rank) != side.contains(&told.rank);
            across(told, side).any(missing) || told.misses(is_across)
        }
        Fault::Settings { rank: other } => {
            matches!(told.error(), Error::Settings { difference } if difference.contains(&format!("rank {other}")))
        }
        _ => false,
    }
}

/// The ranks on the other side of a partition.
fn across<'a>(told: &'a Told<'_>, side: &'a [Rank]) -> impl Iterator<Item = Rank> + 'a {
    (0..told.job.ranks()).filter(|other| side.contains(other) != side.contains(&told.rank))
}

/// The errors of a process or a network that does not go on.
fn of_network(told: &Told<'_>) -> bool {
    let error = told.error();
    // It is lost, or never joined.
    let gone = |rank: Rank| told.lost(rank) || told.misses(|missing| missing == rank);
    let link = |one: Rank, other: Rank| {
        matches!(error, Error::Link { from, to, .. }
            if told.is(*from, one) && told.is(*to, other) || told.is(*from, other) && told.is(*to, one))
    };
    match &told.job.fault {
        // A single rank cannot distinguish a reset by a dead process from one on the network.
        Fault::Kill { rank: dead, .. } => {
            let reset =
                matches!(error, Error::Link { from, to, .. } if told.is(*from, *dead) || told.is(*to, *dead));
            gone(*dead) || reset
        }
        // A rank that was stopped and goes on finds that its own deadlines have passed, whichever rank it waited for.
        Fault::Freeze { rank: stopped, .. } => {
            let own = told.is_timeout() && told.rank == *stopped;
            own || told.blames(|rank| rank == *stopped) || gone(*stopped)
        }
        Fault::Cut { one, other, .. } => {
            // In a large job the report does not come by detours.
            let bare = told.is_timeout() && told.failed.report.is_none() && told.job.ranks() > 32;
            let named = bare || told.blames(|rank| rank == *one || rank == *other);
            // A rank that fails closes its data connections too, and its reason does not get through.
            named || told.misses(|rank| rank == *one || rank == *other) || link(*one, *other)
        }
        Fault::Partition { side, .. } => {
            let link = |other: Rank| matches!(error, Error::Link { to, .. } if told.is(*to, other));
            let is_across = |rank: Rank| side.contains(&rank) != side.contains(&told.rank);
            let lost = across(told, side).any(|other| told.lost(other) || link(other));
            told.blames(is_across) || told.misses(is_across) || lost
        }
        Fault::Blackhole { from, to, .. } => {
            let direct = matches!(told.guilty(), Some(Guilty::Link { from: f, to: t })
                if told.is(*f, *from) && told.is(*t, *to));
            // Seen from a communicator that does not have both ends.
            let abroad = matches!(told.guilty(), Some(Guilty::Elsewhere { .. }))
                && told.blames(|rank| rank == *from || rank == *to);
            told.is_timeout() && (direct || abroad)
        }
        Fault::Reset { one, other, .. } => {
            let named = told.blames(|rank| rank == *one || rank == *other);
            // One of them could not join in the end.
            link(*one, *other) || gone(*one) || gone(*other) || named
        }
        Fault::Deny { rank: poor, .. } => {
            matches!(error, Error::OutOfMemory { rank, .. } if told.is(*rank, *poor))
        }
        _ => false,
    }
}

/// The errors of a rank whose program is not that of the others.
fn of_program(told: &Told<'_>) -> bool {
    let cycle = told.cycle();
    match &told.job.fault {
        Fault::Skip { rank: absent, .. } => {
            let found = told.differs(*absent) || told.left(*absent) || told.blames(|rank| rank == *absent);
            found || cycle.iter().any(|step| step.contains(absent))
        }
        Fault::Deviate { rank: other, .. } => told.differs(*other) || told.left(*other),
        Fault::Sleep { rank: late, .. } => told.blames(|rank| rank == *late),
        Fault::Swap { rank: other, .. } => cycle.iter().any(|step| step.contains(other)),
        // The messages are on the first communicator, wherever other ranks wait for these two.
        Fault::BothSend { one, other } => {
            !cycle.is_empty() && cycle.iter().all(|step| step == &[*one] || step == &[*other])
        }
        _ => false,
    }
}

/// The errors of a rank that ended on purpose.
fn of_will(told: &Told<'_>) -> bool {
    let aborted = |by: Rank| matches!(told.error(), Error::Aborted { rank, .. } if told.is(*rank, by));
    match &told.job.fault {
        // Operations that it had started are not finished any more.
        Fault::Leave { rank: gone, .. } => told.left(*gone) || aborted(*gone),
        Fault::Abort { rank: by, .. } => aborted(*by),
        Fault::Revoke { rank: by, .. } => {
            matches!(told.error(), Error::Revoked { rank, .. } if told.is(*rank, *by))
        }
        _ => false,
    }
}
