//! Whether every rank of a simulated job ended as it must.
//!
//! Invariant: an error is right only if it names what the fault broke ([`fits`]), or a rank that failed before with
//! an error that is right itself ([`follows`]).

mod fits;
mod follows;
mod job;
#[cfg(test)]
mod tests;
mod together;

use std::time::Duration;

use job::{Failure, Job};

use super::faults::Fault;
use super::process::Failed;
use super::world::World;
use consort_types::Rank;
use consort_types::error::Error;

/// The time that an operation's error may take after its deadline: the looks at the clock and the failures of all
/// others.
const SLACK: Duration = Duration::from_millis(700);
/// A failure to join takes no longer.
const JOINING_MAX: Duration = Duration::from_secs(4);

/// The outcome of a job as text; an error says what is wrong.
pub(super) fn judge(world: &mut World) -> Result<String, String> {
    let job = Job::of(world)?;
    verdict(&job).map_err(|wrong| format!("{wrong}\n    {}", all(&job)))?;
    let fault = format!("{:?}", job.fault);
    let fault = fault.split([' ', '{']).next().unwrap_or_default().to_owned();
    let mut kinds: Vec<String> = job.failed().map(|(_, failed)| kind(failed)).collect();
    kinds.sort();
    kinds.dedup();
    Ok(format!("{fault}: {}", if kinds.is_empty() { "completed".into() } else { kinds.join(", ") }))
}

/// An error says what is wrong with a job's ends.
fn verdict(job: &Job) -> Result<(), String> {
    for (rank, failed) in job.failed() {
        in_time(job, rank, failed)?;
    }
    for (rank, failed) in job.failed() {
        fits::fits(&Failure { job, rank, failed }).map_err(|wrong| format!("rank {rank}: {wrong}"))?;
    }
    together::same(job)?;
    together::must_go_on(job)?;
    together::must_have_failed(job)
}

fn in_time(job: &Job, rank: Rank, failed: &Failed) -> Result<(), String> {
    let may_be_late = match job.fault {
        // A slow rank itself may be late, and a rank that waits for its message a little.
        Fault::Slow { .. } => true,
        Fault::Freeze { rank: stopped, .. } => stopped == rank,
        _ => false,
    };
    let took = failed.ended - failed.began;
    let most = if failed.on.is_none() { JOINING_MAX } else { job.timeout + SLACK };
    if took > most && !may_be_late {
        return Err(format!("rank {rank} failed only after {took:?}"));
    }
    Ok(())
}

/// All ends, for messages of the test.
fn all(job: &Job) -> String {
    let mut text = format!("completed {:?}", job.completed());
    for (rank, failed) in job.failed() {
        text += &format!(
            "\n      rank {rank} on {:?} after {:?}: {} {:?}",
            failed.on,
            failed.ended - failed.began,
            failed.error,
            failed.report.as_ref().map(|report| &report.guilty)
        );
    }
    let report = job.failed().find_map(|(_, failed)| failed.report.as_ref());
    text + &report.map(|report| format!("\n{report}")).unwrap_or_default()
}

fn kind(failed: &Failed) -> String {
    let text = format!("{:?}", failed.error);
    let variant = text.split([' ', '{', '(']).next().unwrap_or_default();
    match &failed.report {
        _ if failed.went_on == Some(Ok(())) => format!("{variant}/went on"),
        Some(report) if matches!(failed.error, Error::Timeout { .. }) => {
            let guilty = format!("{:?}", report.guilty);
            format!("{variant}/{}", guilty.split([' ', '{', '(']).next().unwrap_or_default())
        }
        _ => variant.to_owned(),
    }
}

/// After everything is dropped, nothing is left in the network.
pub(super) fn nothing_left(mut world: World) -> Result<(), String> {
    let network = world.network.clone();
    // The system closes a connection that no rank accepted.
    for rank in 0..world.ranks {
        network.kill(consort_transports::simnet::Node(rank));
    }
    world.processes.clear();
    drop(world);
    let (endpoints, streams) = (network.open_endpoints(), network.open_streams());
    if (endpoints, streams) != (0, 0) {
        return Err(format!("left behind: {endpoints} endpoints, {streams} streams"));
    }
    Ok(())
}
