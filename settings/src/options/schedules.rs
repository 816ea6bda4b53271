//! The schedules of a directory (`CONSORT_SCHEDULE_DIR`).
//!
//! Invariant: a file that cannot be used is a warning with its name and line, and the job goes on without it; which
//! files were accepted, with which contents, ranks compare when they join. A file is proved once in a process.
//! Absent: what a schedule is chosen for.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use consort_algorithms::catalogue::Imported;
use consort_algorithms::{LowerOptions, language};

use super::SLOTS;
use super::preferences::digest_of_bytes;
use consort_types::error::{Error, Result};

/// What became of a file, by its name and a digest of its contents.
type Known = BTreeMap<(String, u64), std::result::Result<Imported, String>>;

static KNOWN: Mutex<Known> = Mutex::new(BTreeMap::new());

/// The schedules of the files of a directory that end in `.xml` or `.json`, by their names without these ends, in the
/// order of these names.
///
/// # Errors
/// [`Error::InvalidArgument`] where the directory cannot be read.
pub(super) fn of_directory(directory: &Path) -> Result<Vec<Imported>> {
    let unreadable = |error: std::io::Error| {
        let what = format!("CONSORT_SCHEDULE_DIR {} cannot be read: {error}", directory.display());
        Error::invalid(what, "name a readable directory, with the same files on every host, or none")
    };
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.extension().is_some_and(|end| end == "xml" || end == "json") {
            files.push(path);
        }
    }
    files.sort();
    let mut accepted: Vec<Imported> = Vec::new();
    for path in files {
        match file(&path) {
            Ok(imported) if accepted.contains(&imported) => {}
            Ok(imported) => accepted.push(imported),
            Err(why) => {
                let path = path.display();
                crate::notice::warn(&format!("the schedule {path} is not used: {why}"));
            }
        }
    }
    Ok(accepted)
}

fn file(path: &Path) -> std::result::Result<Imported, String> {
    let length = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    if length > language::BYTES_MAX as u64 {
        return Err("it is longer than 16 MiB".into());
    }
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    let name = language::name_of(&path.file_stem().unwrap_or_default().to_string_lossy());
    let key = (name.clone(), digest_of_bytes(&bytes));
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(result) = known().get(&key) {
        return result.clone();
    }
    let options = LowerOptions { slots: SLOTS };
    let read = language::read(&bytes, &options).map_err(|error| error.to_string());
    let result = read.and_then(|mut read| {
        read.schedule.name = name;
        Imported::within(read.schedule, read.range, &options).map_err(|refused| refused.to_string())
    });
    known().insert(key, result.clone());
    result
}
