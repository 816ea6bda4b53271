//! What the launcher said, and how its ranks come by a unique id.
//!
//! Invariant: a launcher's variables are read, never trusted: every number is checked and every complaint names its
//! variable. Absent: starting processes.

mod detect;
#[cfg(test)]
mod fuzz;
mod rendezvous;

use std::time::Duration;

use super::UniqueId;
use consort_settings::environment::Environment;
use consort_types::Rank;
use consort_types::error::Result;

/// This process's place in a job, as its launcher gave it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Launch {
    /// This process's rank.
    pub rank: Rank,
    /// How many ranks the job has.
    pub size: u32,
    /// This process's number among those on its host.
    pub local_rank: Option<u32>,
    /// How many ranks of the job are on this host.
    pub local_size: Option<u32>,
    /// Who said so: `CONSORT_RANK`, `torchrun`, `Open MPI`, `MPICH`, `Slurm`.
    pub launcher: &'static str,
    /// What distinguishes this job from others of the same user on the same host; not secret.
    pub job: Option<String>,
}

impl Launch {
    /// What this process's environment says; nothing if no launcher started it.
    ///
    /// `CONSORT_RANK` and `CONSORT_SIZE` come first, then torchrun, Open MPI, MPICH (Hydra, Intel MPI) and Slurm.
    ///
    /// # Errors
    /// [`consort_types::Error::InvalidArgument`] naming the variable that is missing or malformed.
    pub fn detect() -> Result<Option<Launch>> {
        Self::from_lookup(&environment)
    }

    /// The same, with the environment that `lookup` gives.
    ///
    /// # Errors
    /// As [`Launch::detect`].
    pub fn from_lookup(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Option<Launch>> {
        detect::detect(lookup)
    }

    /// The id that all ranks of this launch share.
    ///
    /// With `CONSORT_ADDRESS` and `CONSORT_SECRET`, rank 0 listens at the address. Otherwise all ranks must be on this
    /// host; rank 0 gives the id to the others over a Unix socket that only this user can reach.
    ///
    /// # Errors
    /// [`consort_types::Error::InvalidArgument`] and [`consort_types::Error::Join`], saying which variable to set.
    pub fn rendezvous(&self, timeout: Duration) -> Result<UniqueId> {
        rendezvous::rendezvous(self, &environment, None, timeout)
    }
}

fn environment(name: &str) -> Option<String> {
    Environment::of_process().text(name).map(|(text, _)| text)
}
