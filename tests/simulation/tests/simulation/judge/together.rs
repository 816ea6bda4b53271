//! Whether all ends of a job together are right: the same failure everywhere, and one at all where there must be.

use super::job::{Communicator, Job};
use crate::faults::Fault;
use crate::process::Failed;
use crate::program::Item;
use consort::{Guilty, Rank};
use consort_types::error::Error;

/// All ranks that can reach each other have the same error, and the same report.
pub(super) fn same(job: &Job) -> Result<(), String> {
    let apart = |a: Rank, b: Rank| match &job.fault {
        Fault::Cut { one, other, .. } | Fault::Reset { one, other, .. } => {
            [a, b].iter().any(|rank| rank == one || rank == other)
        }
        Fault::Partition { side, .. } => side.contains(&a) != side.contains(&b),
        _ => false,
    };
    for (a, one) in job.failed().filter(|(_, failed)| failed.on.is_some()) {
        for (b, other) in job.failed().filter(|(b, _)| a < *b) {
            let together = job.communicator(a, one) == job.communicator(b, other);
            // Two ranks that abort at the same time each report their own.
            let wills = [one, other].iter().all(|failed| matches!(failed.error, Error::Aborted { .. }));
            if !together || wills || apart(a, b) {
                continue;
            }
            if one.error.to_string() != other.error.to_string() {
                return Err(format!("ranks {a} and {b} have different errors"));
            }
            if one.report != other.report && matches!(one.error, Error::Timeout { .. }) {
                return Err(format!("ranks {a} and {b} have different reports"));
            }
        }
    }
    Ok(())
}

/// Where all ranks but the dead one learned of its death on the communicator of all, they go on without it.
pub(super) fn must_go_on(job: &Job) -> Result<(), String> {
    let Fault::Kill { rank: dead, .. } = &job.fault else { return Ok(()) };
    let living = (0..job.ranks()).filter(|rank| rank != dead).count();
    let on_all = |(rank, failed): (Rank, &Failed)| job.communicator(rank, failed) == Communicator::All;
    if job.failed().count() != living || !job.failed().all(on_all) {
        return Ok(());
    }
    match job.failed().find(|(_, failed)| failed.went_on != Some(Ok(()))) {
        None => Ok(()),
        Some((rank, failed)) => {
            Err(format!("rank {rank} did not go on without rank {dead}: {:?}", failed.went_on))
        }
    }
}

/// Faults that a rank must have noticed.
pub(super) fn must_have_failed(job: &Job) -> Result<(), String> {
    let (noticed, completed) = (job.failed().next().is_some(), job.completed());
    let cycle = |failed: &Failed| {
        matches!(failed.report.as_ref().map(|report| &report.guilty), Some(Guilty::Cycle(_)))
    };
    match &job.fault {
        // A collective that one rank calls differently, and that other ranks are in too.
        Fault::Deviate { rank, item, .. } => {
            let on = if let Item::Collective { on, .. } = job.program.items[*item] { on } else { 0 };
            let alone = job.program.members(on, *rank, job.ranks()).len() == 1;
            if !noticed && !alone && completed.len() == job.ends.len() {
                return Err("no rank noticed that a rank called something else".into());
            }
        }
        Fault::Swap { .. } if !job.failed().any(|(_, failed)| cycle(failed)) => {
            return Err("no rank found the cycle".into());
        }
        Fault::NeverJoin { .. } | Fault::Settings { .. } | Fault::BothSend { .. } if !noticed => {
            return Err(format!("no rank noticed; completed {completed:?}"));
        }
        _ => {}
    }
    Ok(())
}
