//! From a call to a plan that is proved and bound to links; done once per shape, then found again.
//!
//! Invariant: what is chosen depends on the call, the number of ranks and the agreed settings alone, so every
//! rank chooses the same. A plan is verified for all ranks before this rank's is used.

mod cache;
mod choice;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use consort_algorithms::{Collective, LowerOptions, Plan, lower_all, passes, verify};
use consort_memory::sync::{AtomicBool, Ordering};

pub(crate) use cache::{Cache, CacheKey};
pub(crate) use choice::{Choice, choose, mailbox_bytes};

use crate::error::{Error, Result};
use crate::options::SLOTS;

/// Which of a collective's programs, before sizes: everything that a [`Plan`] depends on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Program {
    pub(crate) collective: Collective,
    pub(crate) ranks: u32,
    pub(crate) algorithm: Algorithm,
}

/// The builders that the planner chooses from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Algorithm {
    Pair,
    Ring { channels: u16, bidirectional: bool },
    Doubling,
}

/// The proved plans of all ranks of a process.
#[derive(Default)]
pub(crate) struct Planner {
    proved: Mutex<HashMap<Key, Proved>>,
    /// Whether the process has many ranks of a job: then each proof is kept for all of them.
    many: AtomicBool,
}

/// A program, the rank (relative to the root), and whether each rank's mailbox can be stored to from there.
type Key = (Program, u32, Vec<bool>);

/// A plan with the hash of its bracketing, which all ranks must share.
#[derive(Clone)]
pub(crate) struct Proved {
    pub(crate) plan: Arc<Plan>,
    pub(crate) fold_hash: u64,
}

impl Planner {
    /// Bytes of all proved plans.
    pub(crate) fn memory_bytes(&self) -> usize {
        let bytes = |proved: &Proved| {
            let Plan { steps, operands, regions, counters, .. } = &*proved.plan;
            size_of::<Plan>()
                + size_of_val(&**steps)
                + size_of_val(&**operands)
                + size_of_val(&**regions)
                + size_of_val(&**counters)
        };
        self.proved().values().map(bytes).sum()
    }

    /// The process has many ranks of one job.
    pub(crate) fn expect_many(&self) {
        self.many.store(true, Ordering::Relaxed);
    }

    fn proved(&self) -> MutexGuard<'_, HashMap<Key, Proved>> {
        self.proved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The proved plan of `rank` (relative to the root) for a program. `mapped` says for every relative rank
    /// whether its mailbox can be stored to from here.
    pub(crate) fn plan(&self, program: Program, rank: u32, mapped: Vec<bool>) -> Result<Proved> {
        let key = (program, rank, mapped);
        if let Some(proved) = self.proved().get(&key) {
            return Ok(proved.clone());
        }
        let refused = |what: String| {
            Error::internal(format!("the plan for {} was refused: {what}", program.collective))
        };
        let schedule = program.schedule();
        let lowered = lower_all(&schedule, &LowerOptions { slots: SLOTS })
            .map_err(|error| refused(error.to_string()))?;
        let unfused = verify(&lowered).map_err(|refusal| refused(refusal.to_string()))?;
        // Every rank fuses where its own links allow; proved with all of them fused the way this rank's are.
        let fused: Vec<Plan> =
            lowered.iter().map(|plan| passes::fuse(plan, &|peer| key.2[peer.index()])).collect();
        let proof = verify(&fused).map_err(|refusal| refused(refusal.to_string()))?;
        if proof.fold_hash != unfused.fold_hash {
            return Err(refused("fusing changed what is computed".into()));
        }
        let fold_hash = proof.fold_hash;
        let proved = |plan: Plan| Proved { plan: Arc::new(plan), fold_hash };
        let plan = fused.get(rank as usize).cloned().map(proved);
        let Some(plan) = plan else { return Err(refused(format!("rank {rank} has no plan"))) };
        let Proved { plan: chosen, .. } = &plan;
        tracing::debug!(name = chosen.name, steps = chosen.steps.len(), proved = proof.steps, "plan proved");
        let uniform = key.2.iter().all(|mapped| *mapped == key.2[0]);
        if uniform && self.many.load(Ordering::Relaxed) {
            let mut known = self.proved();
            for (rank, plan) in (0..).zip(fused) {
                known.insert((program, rank, key.2.clone()), proved(plan));
            }
        } else {
            self.proved().insert(key, plan.clone());
        }
        Ok(plan)
    }
}
