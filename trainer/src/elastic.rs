//! Going on without ranks that were lost.
//!
//! Invariant: a step changes the state only when its last all-reduce, over all ranks, is over on this rank, and without ZeRO that
//! change exchanges nothing. So a rank that is left has the state after its last whole step, and ranks that are left are one step apart at the most.
//! Where each has all parameters and moments, all take the foremost one's state; else a part of them may be gone (tensor
//! parallelism, pipelines, experts, ZeRO), and all take that of the newest checkpoint, or begin again. The sequences of a step stay the same, shared by those that are left.
//! Absent: new ranks in the place of lost ones.

use std::time::{Duration, Instant};

use consort::{Communicator, ErrorKind, Rank, Shrink};

use crate::checkpoint::Checkpoints;
use crate::error::{Error, Result};
use crate::mesh::Degrees;
use crate::number::Number;
use crate::parallel::zero::Zero;
use crate::train::{Kept, Run, Trainer};

/// The time in which the job's communicator has the failure that one of its parts has had.
const SPREADS: Duration = Duration::from_secs(5);
/// The pause between two looks at it.
const LOOK: Duration = Duration::from_millis(1);

/// The ranks that are left.
pub struct Survivors {
    /// Their communicator.
    pub comm: Communicator,
    /// What they train: the same with fewer ranks of data parallelism.
    pub run: Run,
    /// Those that were lost, by their numbers before.
    pub lost: Vec<Rank>,
}

/// The same run on as many of `ranks` ranks as can share it; `None` where these are too few for one copy of the model.
fn fewer(run: &Run, ranks: usize) -> Option<Run> {
    let Degrees { pipeline, context, tensor, expert, .. } = run.degrees;
    let data = (ranks / (pipeline * context * tensor)).min(run.batch);
    if data == 0 {
        return None;
    }
    let count = run.shape.experts.map_or(1, |experts| experts.count);
    // As few experts on a rank as the ranks that are left can share evenly.
    let shares = |expert: &usize| data.is_multiple_of(*expert) && count.is_multiple_of(*expert);
    let expert = (1..=expert).rev().find(shares).unwrap_or(1);
    let degrees = Degrees { data, expert, ..run.degrees };
    // Ranks that have nothing in common any more share nothing.
    let zero = if data * context == 1 && degrees.ranks() > 1 { Zero::Nothing } else { run.zero };
    let given = |micro_batches| Run { degrees, zero, micro_batches, ..*run };
    // As little at once as before, where the shares are even and the pipeline takes them.
    let fits = |parts: &usize| given(*parts).check(degrees.ranks() as u32).is_ok();
    Some(given((run.micro_batches..=run.batch / data).find(fits).unwrap_or(1)))
}

/// Whether ranks may go on without others after this error.
pub fn is_loss(error: &Error) -> bool {
    matches!(error, Error::Library(error) if matches!(error.kind(), ErrorKind::Remote)
        || matches!(error, consort::Error::Revoked { .. }))
}

/// The ranks that an error of a communicator says are gone.
fn gone(comm: &Communicator, error: &consort::Error) -> Result<Vec<Rank>> {
    match error {
        consort::Error::PeerLost { rank, .. } | consort::Error::PeerLeft { rank, .. } => Ok(vec![*rank]),
        // Another rank goes on already: the ranks that do not answer are those it has left out.
        consort::Error::Revoked { .. } => {
            let report = comm.report()?;
            let silent = report.ranks.iter().filter(|rank| rank.unreachable.is_some());
            Ok(silent.map(|rank| rank.rank).collect())
        }
        _ => Ok(Vec::new()),
    }
}

/// After an error that [is a loss](is_loss): the ranks of `world` that are left, `None` on one that they have no work for.
/// All that are left call it.
///
/// # Errors
/// [`Error::Library`] with what ended `world` where that is no lost rank, or with what ended their meeting;
/// [`Error::Configuration`] where they are too few.
pub fn survivors(world: &Communicator, run: &Run) -> Result<Option<Survivors>> {
    let until = Instant::now() + SPREADS;
    let failure = loop {
        match world.status() {
            Err(failure) => break failure,
            Ok(()) if Instant::now() < until => std::thread::sleep(LOOK),
            Ok(()) => {
                return Err(Error::configuration(
                    "a part of the job has failed, and the job has not".into(),
                    "start it again with --resume",
                ));
            }
        }
    };
    let mut lost = gone(world, &failure)?;
    if lost.is_empty() {
        return Err(failure.into());
    }
    loop {
        let left: Vec<Rank> = (0..world.size()).filter(|rank| !lost.contains(rank)).collect();
        let Some(run) = fewer(run, left.len()) else {
            return Err(Error::configuration(
                format!(
                    "{} of {} ranks are left, too few for one copy of the model",
                    left.len(),
                    world.size()
                ),
                "start it again with --resume, or with more --dp",
            ));
        };
        let (used, idle) = left.split_at(run.degrees.ranks());
        if idle.contains(&world.rank()) {
            return Ok(None);
        }
        let met = world
            .shrink(&[&lost[..], idle].concat(), Shrink::Abort)
            .map_err(|error| (gone(world, &error), error));
        let more = match met {
            Ok(comm) => match comm.barrier() {
                Ok(()) => return Ok(Some(Survivors { comm, run, lost })),
                Err(error) => {
                    let gone = gone(&comm, &error);
                    (gone.map(|gone| gone.iter().map(|rank| used[*rank as usize]).collect()), error)
                }
            },
            Err(more) => more,
        };
        // Another one was lost meanwhile: all come to the old communicator again, without that one too.
        let (more, error) = more;
        let before = lost.len();
        lost.extend(more?.into_iter().filter(|rank| *rank != world.rank()));
        lost.sort_unstable();
        lost.dedup();
        if lost.len() == before {
            return Err(error.into());
        }
    }
}

/// Where a state came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The foremost of the ranks.
    Memory,
    /// The newest checkpoint.
    Checkpoint,
    /// The seed.
    Beginning,
}

/// Gives a new trainer the state with which its ranks go on; `kept` is what this one has from before. All ranks call it.
///
/// # Errors
/// As [`Checkpoints::load`].
pub fn restore<T: Number>(
    trainer: &mut Trainer<'_, T>,
    kept: Option<&Kept<T>>,
    checkpoints: Option<&Checkpoints>,
) -> Result<Source> {
    let (world, degrees) = (trainer.mesh().world(), trainer.mesh().degrees());
    let each_has_all = degrees.tensor * degrees.pipeline == 1 && trainer.run().zero == Zero::Nothing;
    if let (Some(world), true) = (world, each_has_all) {
        // One more than the steps: a rank that has begun with none can be left, too.
        let mut all = vec![0u64; world.size() as usize];
        world.all_gather(&[kept.map_or(0, |kept| kept.steps() as u64 + 1)], &mut all)?;
        let most = all.iter().copied().max().unwrap_or(0);
        if most > 0 {
            let root = all.iter().position(|steps| *steps == most).unwrap_or(0) as Rank;
            let all_have_it = all.iter().all(|steps| *steps == most);
            trainer.resume(most as usize - 1, |state, parameter, _, values| {
                if let Some(kept) = kept.filter(|kept| kept.steps() as u64 + 1 == most) {
                    values.copy_from_slice(kept.of(state, &parameter.name));
                }
                if !all_have_it {
                    world.broadcast(values, root)?;
                }
                Ok(())
            })?;
            return Ok(Source::Memory);
        }
    }
    match checkpoints.map(|checkpoints| checkpoints.newest(world)).transpose()?.flatten() {
        Some(step) => {
            checkpoints.expect("it has a step").load(trainer, step)?;
            Ok(Source::Checkpoint)
        }
        None => Ok(Source::Beginning),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Experts, Shape};
    use crate::optimizer::{AdamW, Schedule};
    use crate::parallel::pipeline::Order;
    use crate::products::Products;
    use crate::text::VOCABULARY;

    #[test]
    fn fewer_ranks_share_the_same_sequences() {
        let shape = Shape {
            vocabulary: VOCABULARY,
            width: 16,
            layers: 1,
            heads: 4,
            kv_heads: 4,
            hidden: 32,
            sequence: 16,
            experts: None,
            tied: false,
            rope_base: 10_000.0,
            norm_epsilon: 1e-5,
        };
        let given = |data, tensor, micro_batches| Run {
            shape,
            products: Products::Exact,
            degrees: Degrees { data, tensor, ..Degrees::default() },
            zero: Zero::Nothing,
            batch: 12,
            micro_batches,
            order: Order::default(),
            bucket_bytes: 1 << 16,
            adamw: AdamW::default(),
            schedule: Schedule { rate: 1e-3, least: 1e-4, warmup: 1, steps: 10 },
            balance: 1e-3,
            clip: 1.0,
            seed: 1,
        };
        let left = |run: Run, ranks| fewer(&run, ranks).map(|run| (run.degrees.data, run.micro_batches));
        assert_eq!(left(given(4, 1, 1), 3), Some((3, 1)));
        assert_eq!(left(given(4, 1, 3), 3), Some((3, 4)), "no more at once than before");
        assert_eq!(left(given(6, 1, 2), 5), Some((5, 1)), "shares are uneven");
        assert_eq!(left(given(2, 2, 1), 3), Some((1, 1)));
        assert_eq!(left(given(1, 2, 1), 1), None);
        let experts = |data, expert| {
            let shape = Shape { experts: Some(Experts { count: 12, top_k: 2 }), ..shape };
            Run { shape, degrees: Degrees { expert, ..Degrees::data(data) }, ..given(data, 1, 1) }
        };
        let experts_left = |run, ranks| {
            let run = fewer(&run, ranks).expect("enough");
            run.check(run.degrees.ranks() as u32).expect("a run");
            (run.degrees.data, run.degrees.expert)
        };
        assert_eq!(experts_left(experts(4, 4), 3), (3, 3));
        assert_eq!(experts_left(experts(4, 2), 3), (3, 1));
        assert_eq!(experts_left(experts(6, 3), 5), (5, 1));
        assert_eq!(experts_left(experts(6, 6), 4), (4, 4));
        let sharing = Run { zero: Zero::Weights, ..given(2, 2, 1) };
        for (run, ranks) in [(given(4, 1, 3), 3), (given(6, 1, 2), 5), (given(2, 2, 1), 3), (sharing, 3)] {
            let run = fewer(&run, ranks).expect("enough");
            run.check(run.degrees.ranks() as u32).expect("a run");
        }
    }
}
