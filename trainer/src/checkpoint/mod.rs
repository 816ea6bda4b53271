//! Checkpoints of a run: written while it goes on, and read by one with another number of ranks, or another mesh.
//!
//! Invariant: all ranks make the same calls at the same steps, and end alike: an error of one is one of all. What is under way is
//! looked at after each step ([`Checkpoints::step`]) by a small all-reduce, which is the only exchange. Absent: what a checkpoint
//! does not need, since it follows from the seed and the step: random numbers, and the position in the text.

pub mod format;
mod load;
mod save;

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use consort::{Communicator, ReduceOp};

use crate::error::{Error, Result};
use crate::mesh::together;
use crate::number::Number;
use crate::train::Trainer;
use load::Reader;

/// The pause between two looks at files that training waits for.
const LOOK: Duration = Duration::from_millis(2);

/// What is under way of a checkpoint.
struct Save {
    step: usize,
    settings: BTreeMap<String, String>,
    /// Whether all files are written, and rank 0 makes it whole.
    is_written: bool,
    /// What this rank has to do, until it was seen to be over.
    work: Option<JoinHandle<Result<()>>>,
}

/// A directory of checkpoints, as one rank sees it.
pub struct Checkpoints {
    directory: PathBuf,
    /// Drawn by rank 0: no other attempt to write the same checkpoint has it.
    attempt: u64,
    every: usize,
    keep: usize,
    save: Option<Save>,
}

/// What a run must have alike to go on from another's checkpoint. The mesh may differ, and what begins after it: rates, decay,
/// clipping, and the number of steps.
fn settings<T: Number>(trainer: &Trainer<'_, T>) -> BTreeMap<String, String> {
    let run = trainer.run();
    let all = [
        ("model", format!("{:?}", run.shape)),
        ("number", T::NAME.to_owned()),
        ("seed", run.seed.to_string()),
        ("batch", run.batch.to_string()),
        ("text", format!("{:08x}", trainer.text().checksum())),
    ];
    all.map(|(name, value)| (name.to_owned(), value)).into()
}

/// What rank 0 says to all.
fn first(world: Option<&Communicator>, own: impl FnOnce() -> Result<u64>) -> Result<u64> {
    let is_first = world.is_none_or(|world| world.rank() == 0);
    let own = if is_first { own() } else { Ok(0) };
    let mut said = [*own.as_ref().unwrap_or(&0)];
    together(world, own)?;
    if let Some(world) = world {
        world.broadcast(&mut said, 0)?;
    }
    Ok(said[0])
}

impl Checkpoints {
    /// The checkpoints of `directory`, one after every `every` steps; the newest `keep` stay. Makes the directory,
    /// and removes what unfinished ones have left. All ranks of `world` call it.
    ///
    /// # Errors
    /// [`Error::File`] where it cannot be made or changed; [`Error::Elsewhere`]; [`Error::Library`].
    ///
    /// # Panics
    /// If `every` or `keep` is 0.
    pub fn open(directory: &Path, every: usize, keep: usize, world: Option<&Communicator>) -> Result<Self> {
        assert!(every > 0 && keep > 0, "checkpoints are made and kept");
        let attempt = first(world, || {
            std::fs::create_dir_all(directory).map_err(|error| Error::file(directory, "made", error))?;
            // A rank that was stopped may write to one of them at this moment. What is left is removed the next time.
            format::list(directory)?.1.iter().for_each(|rest| drop(std::fs::remove_dir_all(rest)));
            Ok(RandomState::new().build_hasher().finish())
        })?;
        Ok(Checkpoints { directory: directory.into(), attempt, every, keep, save: None })
    }

    /// Where the files of the checkpoint after `step` steps are written, until it is whole.
    pub fn unfinished(&self, step: usize) -> PathBuf {
        format::unfinished(&self.directory, step, self.attempt)
    }

    /// The steps of the newest checkpoint.
    ///
    /// # Errors
    /// As [`Checkpoints::open`].
    pub fn newest(&self, world: Option<&Communicator>) -> Result<Option<usize>> {
        let steps =
            first(world, || Ok(format::list(&self.directory)?.0.last().map_or(0, |step| *step as u64)))?;
        Ok((steps > 0).then_some(steps as usize))
    }

    /// Gives a trainer the state after `step` steps. All its ranks call it.
    ///
    /// # Errors
    /// [`Error::File`]; [`Error::Checkpoint`] for one of another version or run, and for files that are damaged;
    /// [`Error::Elsewhere`]; [`Error::Library`].
    pub fn load<T: Number>(&self, trainer: &mut Trainer<'_, T>, step: usize) -> Result<()> {
        let world = trainer.mesh().world();
        let loaded = Reader::open(&self.directory, step, &settings(trainer)).and_then(|reader| {
            trainer.resume(step, |state, parameter, elements, values| {
                reader.read(state, parameter, &elements, values)
            })
        });
        together(world, loaded)
    }

    /// To be called after each step: looks after what is under way, and begins a checkpoint when one is due. It waits only
    /// for one that is under way when the next is due.
    ///
    /// # Errors
    /// What a checkpoint under way has ended with: [`Error::File`] and [`Error::Checkpoint`] on the rank whose it is,
    /// [`Error::Elsewhere`] on the others; [`Error::Library`].
    pub fn step<T: Number>(&mut self, trainer: &mut Trainer<'_, T>) -> Result<()> {
        let world = trainer.mesh().world();
        if trainer.steps().is_multiple_of(self.every) { self.begin(trainer) } else { self.look(world) }
    }

    /// Begins a checkpoint of the last step if there is none, and waits for it.
    ///
    /// # Errors
    /// As [`Checkpoints::step`].
    pub fn end<T: Number>(&mut self, trainer: &mut Trainer<'_, T>) -> Result<()> {
        self.wait(trainer.mesh().world())?;
        if self.newest(trainer.mesh().world())? == Some(trainer.steps()) {
            return Ok(());
        }
        self.begin(trainer)?;
        self.wait(trainer.mesh().world())
    }

    fn begin<T: Number>(&mut self, trainer: &mut Trainer<'_, T>) -> Result<()> {
        let world = trainer.mesh().world();
        self.wait(world)?;
        let (step, pieces) = (trainer.steps(), save::copy(trainer)?);
        let (directory, rank) = (self.unfinished(step), world.map_or(0, Communicator::rank));
        let work = std::thread::spawn(move || save::write_part(&directory, rank, &pieces));
        self.save = Some(Save { step, settings: settings(trainer), is_written: false, work: Some(work) });
        Ok(())
    }

    fn wait(&mut self, world: Option<&Communicator>) -> Result<()> {
        loop {
            self.look(world)?;
            if self.save.is_none() {
                return Ok(());
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Whether all ranks have written; then, whether rank 0 has made it whole.
    fn look(&mut self, world: Option<&Communicator>) -> Result<()> {
        let Some(mut save) = self.save.take() else { return Ok(()) };
        let own = match save.work.take_if(|work| work.is_finished()) {
            None => Ok(()),
            Some(work) => work.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        };
        let mut under_way = [u8::from(save.work.is_some())];
        together(world, own)?;
        if let Some(world) = world {
            world.all_reduce(&mut under_way, ReduceOp::Max)?;
        }
        match (under_way[0] > 0, save.is_written) {
            (true, _) => self.save = Some(save),
            (false, false) => {
                let (rank, ranks) = world.map_or((0, 1), |world| (world.rank(), world.size()));
                let (directory, attempt, keep) = (self.directory.clone(), self.attempt, self.keep);
                let (step, settings) = (save.step, std::mem::take(&mut save.settings));
                let commit = move || save::commit((&directory, attempt), ranks, keep, (step, settings));
                let work = (rank == 0).then(|| std::thread::spawn(commit));
                self.save = Some(Save { is_written: true, work, ..save });
            }
            (false, true) => {}
        }
        Ok(())
    }
}

impl Drop for Checkpoints {
    /// Waits for what this rank has begun: it must not write beside what comes next.
    fn drop(&mut self) {
        if let Some(work) = self.save.take().and_then(|save| save.work) {
            drop(work.join());
        }
    }
}
