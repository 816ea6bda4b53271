//! Going on without ranks that were lost, and with ranks that come.
//!
//! Invariant: a step changes the state only when its last all-reduce, over all ranks, is over on this rank, and without ZeRO that
//! change exchanges nothing. So a rank that is left has the state after its last whole step, and ranks that are left are one step apart at the most.
//! Where each has all parameters and moments, all take the foremost one's state; else a part of them may be gone (tensor
//! parallelism, pipelines, experts, ZeRO), and all take that of the newest checkpoint, or begin again. The sequences of a step stay the same, shared by those that are there.
//! Ranks that are left always leave the communicator of all, with all that were lost since: so it does not matter whether a rank has
//! seen the end of an earlier attempt.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use consort::{Communicator, ErrorKind, Rank, ReduceOp, Shrink};

use crate::checkpoint::Checkpoints;
use crate::door::Door;
use crate::error::{Error, Result};
use crate::mesh::Degrees;
use crate::number::Number;
use crate::parallel::zero::Zero;
use crate::train::{Kept, Run, Trainer};

/// The time in which the job's communicator has the failure that one of its parts has had, and in which ranks that are left
/// see the same ranks gone.
const SPREADS: Duration = Duration::from_secs(5);
/// The pause between two looks at it.
const LOOK: Duration = Duration::from_millis(1);

/// The same run on as many of `ranks` ranks as can share it; `None` where these are too few for one copy of the model.
pub fn fit(run: &Run, ranks: usize) -> Option<Run> {
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
    // As little at once as was asked for, where the shares are even and the pipeline takes them.
    let fits = |parts: &usize| given(*parts).check(degrees.ranks() as u32).is_ok();
    Some(given((run.micro_batches..=run.batch / data).find(fits).unwrap_or(1)))
}

/// Whether each rank of a run has all parameters and moments.
pub fn each_has_all(run: &Run) -> bool {
    let Degrees { pipeline, expert, tensor, .. } = run.degrees;
    tensor * pipeline * expert == 1 && run.zero == Zero::Nothing
}

/// Whether ranks may go on without others after this error.
pub fn is_loss(error: &Error) -> bool {
    matches!(error, Error::Library(error) if matches!(error.kind(), ErrorKind::Remote | ErrorKind::Timeout)
        || matches!(error, consort::Error::Revoked { .. }))
}

/// What a rank is after a loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// It goes on.
    Goes,
    /// Those that are left are more than can share the work.
    Idle,
    /// The others have gone on without it.
    LeftOut,
}

/// The ranks of a run, as some are lost and some come.
pub struct World {
    /// All that began, or that were there when some came last.
    all: Communicator,
    /// Those that were lost since, and those that had no work.
    out: BTreeSet<Rank>,
    /// Those that were lost last.
    lost: BTreeSet<Rank>,
    /// The others; `None` while there is none.
    left: Option<Communicator>,
}

impl World {
    /// Of all ranks.
    pub fn new(all: Communicator) -> Self {
        World { all, out: BTreeSet::new(), lost: BTreeSet::new(), left: None }
    }

    /// The ranks that train.
    pub fn comm(&self) -> &Communicator {
        self.left.as_ref().unwrap_or(&self.all)
    }

    /// Those that were lost last, by the numbers that ranks had when the last ones came.
    pub fn lost(&self) -> Vec<Rank> {
        self.lost.iter().copied().collect()
    }

    /// The number among all of a rank of [`World::comm`].
    fn number(&self, rank: Rank) -> Rank {
        let mut there = (0..self.all.size()).filter(|rank| !self.out.contains(rank));
        there.nth(rank as usize).expect("a rank of the communicator")
    }

    /// The failure of the ranks that train, which one of the parts of their communicator has had.
    fn failure(&self, error: &Error) -> Result<consort::Error> {
        let comm = self.comm();
        if let Error::Library(error) = error
            && error.kind() == ErrorKind::Timeout
            && comm.status().is_ok()
        {
            let silent = silent(comm)?;
            if silent.is_empty() {
                return Err(error.clone().into());
            }
            // A part that waits in vain ends nothing else by itself.
            comm.revoke(&reason(&silent));
        }
        let until = Instant::now() + SPREADS;
        loop {
            match comm.status() {
                Err(failure) => return Ok(failure),
                Ok(()) if Instant::now() < until => std::thread::sleep(LOOK),
                Ok(()) => {
                    return Err(Error::configuration(
                        "a part of the job has failed, and the job has not".into(),
                        "start it again with --resume",
                    ));
                }
            }
        }
    }

    /// The ranks that a `failure` shows to be gone.
    fn gone(&self, failure: &consort::Error) -> Result<Gone> {
        let number = |rank: &Rank| self.number(*rank);
        let mut gone = Gone::default();
        match failure {
            consort::Error::Revoked { reason, .. } => match said(reason) {
                Some(stopped) => gone.stopped.extend(stopped.iter().map(number)),
                // Another rank leaves out what this one cannot reach either.
                None => gone.dead.extend(silent(self.comm())?.iter().map(number)),
            },
            // All ranks have the same report.
            consort::Error::Timeout { .. } => gone.stopped.extend(silent(self.comm())?.iter().map(number)),
            failure => gone.note(failure, |rank| self.number(rank)),
        }
        Ok(gone)
    }

    /// After an `error` that [is a loss](is_loss): goes on with the ranks that are left, if they have work for this one. All that are left
    /// call it, with the `run` that was asked for.
    ///
    /// # Errors
    /// [`Error::Library`] with what ended the ranks' communicator where that is no lost rank, or with what ended their meeting;
    /// [`Error::Configuration`] where they are too few.
    pub fn lose(&mut self, run: &Run, error: &Error) -> Result<Role> {
        let failure = self.failure(error)?;
        let mut lost = self.gone(&failure)?;
        let own = self.all.rank();
        let is_revoked = matches!(failure, consort::Error::Revoked { .. });
        if lost.stopped.contains(&own) || lost.all().next().is_none() && is_revoked {
            return Ok(Role::LeftOut);
        }
        let before = self.left.as_ref().map_or(self.all.size(), Communicator::size) as usize;
        let first = self.number(0);
        let until = Instant::now() + SPREADS;
        loop {
            lost.forget(own);
            if lost.all().next().is_none() {
                return Err(failure.into());
            }
            let gone: BTreeSet<Rank> = lost.all().chain(self.out.iter().copied()).collect();
            let left: Vec<Rank> = (0..self.all.size()).filter(|rank| !gone.contains(rank)).collect();
            // Ranks that are not dead may go on, and say the same of this one: the more go on, or those with the first.
            let are_more = 2 * left.len() > before || 2 * left.len() == before && left.contains(&first);
            if !lost.stopped.is_empty() && !are_more {
                return Ok(Role::LeftOut);
            }
            let Some(run) = fit(run, left.len()) else {
                return Err(Error::configuration(
                    format!("{} of {before} ranks are left, too few for one copy of the model", left.len()),
                    "start it again with --resume, or with more --dp",
                ));
            };
            let (used, idle) = left.split_at(run.degrees.ranks());
            if idle.contains(&own) {
                return Ok(Role::Idle);
            }
            let out: BTreeSet<Rank> = gone.iter().chain(idle).copied().collect();
            let all_out: Vec<Rank> = out.iter().copied().collect();
            let error = match self.all.shrink(&all_out, Shrink::Abort) {
                Ok(comm) => match comm.barrier() {
                    Ok(()) => {
                        self.lost = lost.all().collect();
                        (self.out, self.left) = (out, Some(comm));
                        return Ok(Role::Goes);
                    }
                    Err(error) => {
                        lost.note(&error, |rank| used[rank as usize]);
                        error
                    }
                },
                Err(error) => {
                    lost.note(&error, |rank| rank);
                    error
                }
            };
            // Another one was lost meanwhile, or ranks do not see the same ones gone yet.
            if lost.all().all(|rank| gone.contains(&rank) || rank == own) {
                if Instant::now() > until {
                    return Err(error.into());
                }
                let silent = silent(&self.all)?.into_iter();
                lost.stopped = silent.filter(|rank| !gone.contains(rank)).chain(lost.stopped).collect();
            }
        }
    }

    /// The ranks that there will be if those that wait at the `door`, which the first rank has, are taken in now; `None` where none
    /// is. All ranks that train call it, with the `run` that was asked for.
    ///
    /// # Errors
    /// What the broadcast ends with.
    pub fn look(comm: &Communicator, run: &Run, door: Option<&mut Door>) -> Result<Option<u32>> {
        let mut size = [comm.size()];
        if let Some(door) = door {
            let there = comm.size() + door.look();
            let ranks = fit(run, there as usize).map_or(0, |run| run.degrees.ranks() as u32);
            size[0] = ranks.max(size[0]);
        }
        comm.broadcast(&mut size, 0)?;
        Ok(Some(size[0]).filter(|size| *size > comm.size()))
    }

    /// Takes ranks in, `size` together: whether they came. All ranks that train call it, and what has come is theirs alike.
    ///
    /// # Errors
    /// [`Error::Library`] where one of those that were there is lost.
    pub fn grow(&mut self, size: u32, door: Option<&mut Door>) -> Result<bool> {
        let comm = self.comm();
        let id = door.is_some().then(|| comm.grow_id()).transpose()?;
        let mut guests = None;
        if let (Some(door), Some(id)) = (door, &id) {
            let (taken, is_complete) = door.take(id, comm.size(), size);
            guests = Some(taken);
            if !is_complete {
                id.retire();
            }
        }
        let grown = std::thread::scope(|threads| {
            let (ended, over) = std::sync::mpsc::channel::<()>();
            if let (Some(mut guests), Some(id)) = (guests, &id) {
                // A rank that ends before it has come keeps the others waiting no longer, nor does one that was there.
                threads.spawn(move || {
                    use std::sync::mpsc::RecvTimeoutError::Timeout;
                    while over.recv_timeout(LOOK) == Err(Timeout) {
                        if !guests.are_there() || comm.status().is_err() {
                            return id.retire();
                        }
                    }
                });
            }
            let grown = comm.grow(size, id.as_ref()).and_then(|grown| grown.barrier().map(|()| grown));
            drop(ended);
            grown
        });
        if let Err(error) = &grown {
            eprintln!("consort-trainer: rank {} goes on without those that came: {error}", comm.rank());
        }
        let mut have_come = [u8::from(grown.is_ok())];
        comm.all_reduce(&mut have_come, ReduceOp::Min)?;
        let Some(grown) = grown.ok().filter(|_| have_come[0] == 1) else { return Ok(false) };
        *self = World::new(grown);
        Ok(true)
    }
}

/// What a rank says of those that do not answer, when it ends the communicator for all.
const REASON: &str = "without an answer of ranks ";

fn reason(silent: &[Rank]) -> String {
    let ranks: Vec<String> = silent.iter().map(Rank::to_string).collect();
    format!("{REASON}{}", ranks.join(","))
}

/// The ranks of a [`reason`]; `None` for other words.
fn said(reason: &str) -> Option<Vec<Rank>> {
    let ranks = reason.strip_prefix(REASON)?.split([',', ' ']);
    Some(ranks.map_while(|rank| rank.parse().ok()).collect())
}

/// How many times a rank does not answer before it counts as silent: one that has no core for a moment does not.
const QUESTIONS: usize = 3;

/// The ranks of a communicator that do not answer, or have closed it.
fn silent(comm: &Communicator) -> Result<Vec<Rank>> {
    let mut silent: Option<Vec<Rank>> = None;
    for _ in 0..QUESTIONS {
        let report = comm.report()?;
        let is_silent = |rank: &Rank| {
            report.ranks.iter().any(|of| of.rank == *rank && (of.unreachable.is_some() || of.left))
        };
        let before = silent.unwrap_or_else(|| report.ranks.iter().map(|of| of.rank).collect());
        let still: Vec<Rank> = before.into_iter().filter(is_silent).collect();
        if still.is_empty() {
            return Ok(still);
        }
        silent = Some(still);
    }
    Ok(silent.unwrap_or_default())
}

/// Ranks without which others go on.
#[derive(Default)]
struct Gone {
    /// Those whose processes or hosts have ended.
    dead: BTreeSet<Rank>,
    /// Those that may go on themselves: they do not answer, or have closed the communicator.
    stopped: BTreeSet<Rank>,
}

impl Gone {
    fn all(&self) -> impl Iterator<Item = Rank> {
        self.dead.union(&self.stopped).copied()
    }

    fn forget(&mut self, rank: Rank) {
        self.dead.remove(&rank);
        self.stopped.remove(&rank);
    }

    /// Takes note of the rank that an error names, by its `number` among all.
    fn note(&mut self, error: &consort::Error, number: impl Fn(Rank) -> Rank) {
        match error {
            consort::Error::PeerLost { rank, .. } => self.dead.insert(number(*rank)),
            consort::Error::PeerLeft { rank, .. } => self.stopped.insert(number(*rank)),
            _ => false,
        };
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
    let world = trainer.mesh().world();
    if let (Some(world), true) = (world, each_has_all(trainer.run())) {
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
    use crate::door;
    use crate::model::{Experts, Shape};
    use crate::optimizer::{AdamW, Schedule};
    use crate::parallel::pipeline::Order;
    use crate::products::Products;
    use crate::ranks::Overlap;
    use crate::text::VOCABULARY;

    fn given(data: usize, tensor: usize, micro_batches: usize) -> Run {
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
        Run {
            shape,
            products: Products::Exact,
            degrees: Degrees { data, tensor, ..Degrees::default() },
            zero: Zero::Nothing,
            batch: 12,
            micro_batches,
            order: Order::default(),
            bucket_bytes: 1 << 16,
            overlap: Overlap::default(),
            adamw: AdamW::default(),
            schedule: Schedule { rate: 1e-3, least: 1e-4, warmup: 1, steps: 10 },
            balance: 1e-3,
            clip: 1.0,
            seed: 1,
        }
    }

    /// A rank that is given a place and does not come keeps the others no longer than it is there, and the next one comes.
    #[test]
    fn a_rank_that_ends_before_it_has_come_is_not_waited_for() {
        let path = std::env::temp_dir().join(format!("consort-door-{}", std::process::id()));
        let mut doors = vec![Some(Door::open(&path, 7, false).expect("a door")), None];
        let refused = Door::open(&path, 7, false).err().expect("a run listens").to_string();
        assert!(refused.contains("another run listens"), "{refused}");
        let mut ranks: Vec<World> =
            Communicator::local(2).expect("ranks").into_iter().map(World::new).collect();
        let run = given(2, 1, 1);
        let mut turn = |comes: bool| -> Vec<u32> {
            std::thread::scope(|threads| {
                threads.spawn(|| {
                    let place = door::ask(&path, 7).expect("a place").expect("the run goes on");
                    if comes {
                        let comm = place.join().expect("all come");
                        assert_eq!((comm.rank(), comm.size()), (2, 3));
                    }
                });
                let old: Vec<_> = ranks
                    .iter_mut()
                    .zip(&mut doors)
                    .map(|(world, door)| {
                        threads.spawn(move || {
                            let size = loop {
                                let looked =
                                    World::look(world.comm(), &run, door.as_mut()).expect("both look");
                                if let Some(size) = looked {
                                    break size;
                                }
                            };
                            assert_eq!(world.grow(size, door.as_mut()).expect("both are there"), comes);
                            world.comm().size()
                        })
                    })
                    .collect();
                old.into_iter().map(|thread| thread.join().expect("it ends")).collect()
            })
        };
        assert_eq!(turn(false), [2, 2]);
        assert_eq!(turn(true), [3, 3]);
        doors.swap_remove(0).expect("a door").close();
        assert!(door::ask(&path, 7).expect("an answer").is_none(), "the run is over");
        drop(std::fs::remove_file(&path));
    }

    #[test]
    fn a_door_that_another_rank_has_in_the_place_of_an_old_one_stays() {
        let path = std::env::temp_dir().join(format!("consort-doors-{}", std::process::id()));
        let [old, new] = [false, true].map(|instead| Door::open(&path, 7, instead).expect("a door"));
        old.close();
        let refused = Door::open(&path, 7, false).err().expect("the new one listens").to_string();
        assert!(refused.contains("another run listens"), "{refused}");
        new.close();
        assert!(door::ask(&path, 7).expect("an answer").is_none(), "the run is over");
        drop(std::fs::remove_file(&path));
    }

    #[test]
    fn who_does_not_answer_is_read_as_it_was_written() {
        for ranks in [vec![], vec![3], vec![0, 12, 7]] {
            assert_eq!(said(&reason(&ranks)), Some(ranks.clone()));
            assert_eq!(said(&format!("{} (of rank 1)", reason(&ranks))), Some(ranks));
        }
        assert_eq!(said("it is shrunk to the ranks without 1"), None);
    }

    #[test]
    fn fewer_ranks_share_the_same_sequences() {
        let left = |run: Run, ranks| fit(&run, ranks).map(|run| (run.degrees.data, run.micro_batches));
        assert_eq!(left(given(4, 1, 1), 3), Some((3, 1)));
        assert_eq!(left(given(4, 1, 3), 3), Some((3, 4)), "no more at once than before");
        assert_eq!(left(given(6, 1, 2), 5), Some((5, 1)), "shares are uneven");
        assert_eq!(left(given(2, 2, 1), 3), Some((1, 1)));
        assert_eq!(left(given(1, 2, 1), 1), None);
        let experts = |data, expert| {
            let given = given(data, 1, 1);
            let shape = Shape { experts: Some(Experts { count: 12, top_k: 2 }), ..given.shape };
            Run { shape, degrees: Degrees { expert, ..Degrees::data(data) }, ..given }
        };
        let experts_left = |run, ranks| {
            let run = fit(&run, ranks).expect("enough");
            run.check(run.degrees.ranks() as u32).expect("a run");
            (run.degrees.data, run.degrees.expert)
        };
        assert_eq!(experts_left(experts(4, 4), 3), (3, 3));
        assert_eq!(experts_left(experts(4, 2), 3), (3, 1));
        assert_eq!(experts_left(experts(6, 3), 5), (5, 1));
        assert_eq!(experts_left(experts(6, 6), 4), (4, 4));
        let sharing = Run { zero: Zero::Weights, ..given(2, 2, 1) };
        for (run, ranks) in [(given(4, 1, 3), 3), (given(6, 1, 2), 5), (given(2, 2, 1), 3), (sharing, 3)] {
            let run = fit(&run, ranks).expect("enough");
            run.check(run.degrees.ranks() as u32).expect("a run");
        }
    }
}
