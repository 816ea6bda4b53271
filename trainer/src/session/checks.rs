//! What can be known to be wrong before the first step is looked at before it.

use std::fs::OpenOptions;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::path::Path;

use consort::Communicator;

use crate::arguments::{Arguments, Precision};
use crate::demand::{Available, Demand};
use crate::elastic::{each_has_all, fit};
use crate::error::{Error, Result};
use crate::train::{Run, agree};

/// Whether ranks that go and come are possible.
pub(super) fn check_elastic(arguments: &Arguments, run: &Run, is_started: bool) -> Result<()> {
    let lets_in = arguments.door.is_some() || arguments.restart > 0;
    let fault = if lets_in && !each_has_all(run) && arguments.checkpoint.is_none() {
        Some((
            "new ranks have the state from a checkpoint where no rank has all of it",
            "give --checkpoint, or leave out --door and --restart",
        ))
    } else if arguments.restart > 0
        && arguments.started_by.is_none()
        && !arguments.join
        && (is_started || arguments.ranks == 1)
    {
        Some(("--restart is given, and this process starts no ranks", "give --ranks, or leave --restart out"))
    } else if arguments.least_ranks > 1 && !lets_in {
        Some((
            "--least-ranks waits for new ranks, and none can come",
            "give --door or --restart, or leave --least-ranks out",
        ))
    } else if fit(run, arguments.least_ranks as usize)
        .is_some_and(|run| run.degrees.ranks() < arguments.least_ranks as usize)
    {
        Some((
            "--least-ranks is more ranks than can share the work",
            "make it a number that --batch and the other axes give work to",
        ))
    } else {
        None
    };
    fault.map_or(Ok(()), |(what, hint)| Err(Error::configuration(what.into(), hint)))
}

/// A number that is another one for options by which ranks make other calls between steps.
pub(super) fn between_steps(arguments: &Arguments) -> u64 {
    let Arguments { every, keep, elastic, least_ranks, .. } = arguments;
    let mut hasher = DefaultHasher::new();
    (arguments.checkpoint.is_some(), every, keep, elastic, least_ranks).hash(&mut hasher);
    hasher.finish()
}

/// Whether ranks that begin together make the same calls before the first step and between steps. What they train is compared with the
/// model.
pub(super) fn check_alike(arguments: &Arguments, comm: Option<&Communicator>) -> Result<()> {
    let Some(comm) = comm else { return Ok(()) };
    let mut hasher = DefaultHasher::new();
    (between_steps(arguments), arguments.resume, arguments.door.is_some()).hash(&mut hasher);
    agree(hasher.finish(), comm)
}

/// Whether this host holds what some ranks need.
pub(super) fn check_memory(arguments: &Arguments, run: &Run, ranks: Range<u32>) -> Result<()> {
    let (number, saves) =
        (if arguments.precision == Precision::F64 { 8 } else { 4 }, arguments.checkpoint.is_some());
    let all = ranks.clone().map(|rank| Demand::of(run, rank, number, saves));
    all.fold(Demand::default(), Demand::and).check(ranks.len(), Available::now())
}

/// Whether all files that are written at the end can be: after the last step it would be late to say that they cannot.
pub(super) fn check_places(arguments: &Arguments) -> Result<()> {
    let files = [(Some(&arguments.chart), "--chart"), (Some(&arguments.timeline), "--timeline")];
    let mut all = files.into_iter().chain([(arguments.losses.as_ref(), "--losses")]);
    all.try_for_each(|(file, option)| file.map_or(Ok(()), |file| check_place(file, option)))
}

/// Whether a file can be written, as it is tried: one that was not there is removed again.
fn check_place(file: &Path, option: &'static str) -> Result<()> {
    let was_there = file.exists();
    OpenOptions::new().create(true).append(true).open(file).map_err(|error| {
        Error::configuration(
            format!("{option} is {}, which cannot be written: {error}", file.display()),
            "name another file",
        )
    })?;
    if !was_there {
        // Another rank may have tried, and removed it.
        drop(std::fs::remove_file(file));
    }
    Ok(())
}
