//! A simulated job that is over: how each of its ranks ended, and when.
//!
//! Invariant: plain data without the job's network, so that a made-up job can be judged too. Absent: whether the
//! ends are right.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::follows::gave_up;
use crate::faults::Fault;
use crate::process::{FIRST_PROCESS, Failed, Outcome};
use crate::program::Program;
use crate::world::{World, job_number};
use consort::{CycleStep, Guilty, Rank};
use consort_types::error::Error;

pub(super) struct Job {
    /// The name of the communicator of all ranks.
    pub(super) name: String,
    pub(super) timeout: Duration,
    pub(super) fault: Fault,
    pub(super) program: Arc<Program>,
    /// Whether some ranks are linked only when they have something to say.
    pub(super) is_sparse: bool,
    /// By rank.
    pub(super) ends: Vec<End>,
}

/// How a rank ended, and when if others may have suffered from it.
pub(super) enum End {
    /// It is dead, or stays stopped, or has not begun.
    Never,
    Completed,
    /// It closed its communicators, as its program has it.
    Left(Instant),
    Failed(Failed),
}

/// A communicator of the job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Communicator {
    /// None yet: the rank was joining.
    Joining,
    /// That of all ranks.
    All,
    /// The part of a split that has this colour.
    Part(u32),
}

impl Job {
    /// The outcome of a world; its processes do not report it a second time.
    ///
    /// # Errors
    /// A call wrote into its caller's buffer after it had returned.
    pub(super) fn of(world: &mut World) -> Result<Self, String> {
        let mut ends = Vec::new();
        for rank in 0..world.ranks {
            let lives = world.lives(rank);
            let process = &mut world.processes[rank as usize];
            let buffer = process.buffer();
            ends.push(match process.outcome.take().filter(|_| lives) {
                None => End::Never,
                Some((Outcome::Completed, _)) => End::Completed,
                Some((Outcome::Left, at)) => End::Left(at),
                Some((Outcome::Failed(failed), _)) => {
                    if buffer.is_some_and(|buffer| buffer != failed.buffer) {
                        return Err(format!("rank {rank}: its buffer changed after the call had returned"));
                    }
                    End::Failed(failed)
                }
            });
        }
        let (fault, program) = (world.fault.clone(), world.program.clone());
        Ok(Job {
            name: format!("{:016x}", job_number(world.seed)),
            timeout: world.timeout,
            fault,
            program,
            is_sparse: world.is_sparse,
            ends,
        })
    }

    pub(super) fn ranks(&self) -> u32 {
        self.ends.len() as u32
    }

    pub(super) fn failed(&self) -> impl Iterator<Item = (Rank, &Failed)> {
        (0..).zip(&self.ends).filter_map(|(rank, end)| match end {
            End::Failed(failed) => Some((rank, failed)),
            _ => None,
        })
    }

    pub(super) fn completed(&self) -> Vec<Rank> {
        let ends = (0..).zip(&self.ends);
        ends.filter(|(_, end)| matches!(end, End::Completed)).map(|(rank, _)| rank).collect()
    }

    /// The communicator that a rank's failure is on.
    pub(super) fn communicator(&self, rank: Rank, failed: &Failed) -> Communicator {
        match failed.on {
            None => Communicator::Joining,
            Some(0) => Communicator::All,
            Some(_) => Communicator::Part(self.program.colors[rank as usize]),
        }
    }
}

/// A failure with its rank. Numbers of its communicator that it names are read as ranks of the job.
#[derive(Clone, Copy)]
pub(super) struct Failure<'a> {
    pub(super) job: &'a Job,
    pub(super) rank: Rank,
    pub(super) failed: &'a Failed,
}

impl Failure<'_> {
    pub(super) fn error(&self) -> &Error {
        &self.failed.error
    }

    pub(super) fn is_joining(&self) -> bool {
        self.failed.on.is_none()
    }

    pub(super) fn is_timeout(&self) -> bool {
        matches!(self.error(), Error::Timeout { .. })
    }

    pub(super) fn guilty(&self) -> Option<&Guilty> {
        self.failed.report.as_ref().map(|report| &report.guilty)
    }

    /// The rank of the job that has this number on the failure's communicator.
    pub(super) fn of_job(&self, named: Rank) -> Option<Rank> {
        let members = self.job.program.members(self.failed.on.unwrap_or(0), self.rank, self.job.ranks());
        members.get(named as usize).copied()
    }

    pub(super) fn is(&self, named: Rank, of_job: Rank) -> bool {
        self.of_job(named) == Some(of_job)
    }

    /// The ranks of the job that the report names.
    pub(super) fn blamed(&self) -> Vec<Rank> {
        let ranks = |named: &[Rank]| named.iter().filter_map(|named| self.of_job(*named)).collect();
        match self.guilty() {
            Some(Guilty::Ranks(named) | Guilty::Unreachable(named)) => ranks(named),
            Some(Guilty::Link { from, to }) => ranks(&[*from, *to]),
            // Its number there may be one of any communicator; the process is the rank's own.
            Some(Guilty::Elsewhere { place, .. }) => {
                let process =
                    place.rsplit_once("process ").and_then(|(_, number)| number.parse::<u32>().ok());
                process.and_then(|process| process.checked_sub(FIRST_PROCESS)).into_iter().collect()
            }
            Some(Guilty::Nobody | Guilty::Cycle(_)) | None => Vec::new(),
        }
    }

    /// Whether a deadline has passed, and the report names some of these ranks of the job, and others only if they
    /// have failed since, or could not join themselves and so never answer.
    pub(super) fn blames(&self, may_be: impl Fn(Rank) -> bool) -> bool {
        let blamed = self.blamed();
        let (right, others): (Vec<Rank>, Vec<Rank>) = blamed.into_iter().partition(|rank| may_be(*rank));
        let joined = |rank: Rank| match &self.job.ends[rank as usize] {
            End::Failed(failed) => self.job.communicator(rank, failed) != Communicator::Joining,
            _ => true,
        };
        let excused = |rank: Rank| gave_up(self, rank) || !joined(rank);
        self.is_timeout() && !right.is_empty() && others.into_iter().all(excused)
    }

    /// The ranks of the job that are in a cycle of waits which a deadline found, one for each wait. A number on a part
    /// that is not the failure's own may be that of one rank on each part.
    pub(super) fn cycle(&self) -> Vec<Vec<Rank>> {
        let Some(report) = self.failed.report.as_ref().filter(|_| self.is_timeout()) else {
            return Vec::new();
        };
        let Guilty::Cycle(steps) = &report.guilty else { return Vec::new() };
        let ranks = |step: &CycleStep| {
            if step.communicator == self.job.name {
                vec![step.rank]
            } else if step.communicator == report.communicator {
                self.of_job(step.rank).into_iter().collect()
            } else {
                let parts =
                    (0..self.job.ranks()).map(|rank| self.job.program.members(1, rank, self.job.ranks()));
                parts.filter_map(|members| members.get(step.rank as usize).copied()).collect()
            }
        };
        steps.iter().map(ranks).collect()
    }

    /// Whether an error says that ranks disagree, and this one of the job differs from all others.
    pub(super) fn differs(&self, of_job: Rank) -> bool {
        let Error::Mismatch { difference, .. } = self.error() else { return false };
        // `rank 3: all_reduce of ...; ranks 0-2: ...`, or `rank 3 is in ..., and rank 0 sent ...`.
        let alone = |part: &str| {
            let number = part.strip_prefix("rank ")?.split(|letter: char| !letter.is_ascii_digit()).next()?;
            number.parse::<Rank>().ok()
        };
        let parts = difference.split("; ").flat_map(|part| part.split(", and "));
        parts.filter_map(alone).any(|rank| self.is(rank, of_job))
    }

    /// Whether an error names the rank of the job as lost.
    pub(super) fn lost(&self, of_job: Rank) -> bool {
        matches!(self.error(), Error::PeerLost { rank, .. } if self.is(*rank, of_job))
    }

    /// Whether an error names the rank of the job as having left.
    pub(super) fn left(&self, of_job: Rank) -> bool {
        matches!(self.error(), Error::PeerLeft { rank, .. } if self.is(*rank, of_job))
    }

    /// Whether an error names some of these ranks of the job as missing, and others only if they could not join
    /// themselves.
    pub(super) fn misses(&self, may_be: impl Fn(Rank) -> bool) -> bool {
        let Error::MissingRanks { missing, .. } = self.error() else { return false };
        let failed_to_join = |rank: &Rank| matches!(&self.job.ends[*rank as usize], End::Failed(failed) if failed.on.is_none());
        missing.iter().any(|rank| may_be(*rank))
            && missing.iter().all(|rank| may_be(*rank) || failed_to_join(rank))
    }
}
