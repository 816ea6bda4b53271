//! The logger: the variables' settings, and the file of the lines.
//!
//! Invariant: made once from variables, never changed. Absent: whether a line is wanted (the module above knows that
//! without the logger).

use std::collections::HashSet;
use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use super::{Level, Line, NO_DEVICE, Subsystem, stamp::stamp};
use consort_settings::environment::{Environment, names};

const SUBSYSTEMS_DEFAULT: &str = "INIT,BOOTSTRAP,ENV";
const STAMP_DEFAULT: &str = "[%F %T] ";
const STAMPED_DEFAULT: &str = "WARN";

/// Files that this process has begun: opened again, they are appended to.
static BEGUN: Mutex<Option<HashSet<PathBuf>>> = Mutex::new(None);

/// The log of one set of variables.
#[derive(Debug)]
pub(super) struct Logger {
    pub(super) level: Level,
    pub(super) mask: u32,
    pub(super) info_on_warning: bool,
    format: String,
    stamped: u32,
    host: String,
    file: Option<File>,
}

impl Logger {
    pub(super) fn new(environment: &Environment<'_>) -> Self {
        let text = |name: &str, default: &str| {
            environment.text(name).map_or_else(|| default.to_owned(), |(text, _)| text)
        };
        let named = text("NCCL_DEBUG", "");
        let known = Level::ALL.into_iter().find(|(_, name)| name.eq_ignore_ascii_case(named.trim()));
        let host = consort::host_name();
        let mut logger = Logger {
            level: known.map_or(Level::None, |(level, _)| level),
            mask: mask(&text("NCCL_DEBUG_SUBSYS", SUBSYSTEMS_DEFAULT), &Subsystem::NAMES),
            info_on_warning: environment.integer("NCCL_WARN_ENABLE_DEBUG_INFO").is_some_and(|on| on != 0),
            format: text("NCCL_DEBUG_TIMESTAMP_FORMAT", STAMP_DEFAULT),
            stamped: mask(
                &text("NCCL_DEBUG_TIMESTAMP_LEVELS", STAMPED_DEFAULT),
                &Level::ALL.map(|(_, name)| name),
            ),
            host: host.split('.').next().unwrap_or_default().to_owned(),
            file: None,
        };
        let pattern = text("NCCL_DEBUG_FILE", "");
        if logger.level > Level::Version && !pattern.is_empty() {
            let path = file_name(&pattern, &logger.host, std::process::id());
            match open(Path::new(&path)) {
                Ok(file) => logger.file = Some(file),
                Err(error) => logger.write(
                    &Line::Warn { device: NO_DEVICE, file: file!(), line: line!() },
                    &format_args!(
                        "NCCL_DEBUG_FILE: {path} cannot be written, lines go to standard output: {error}"
                    ),
                ),
            }
        }
        logger
    }

    /// Writes the line, whether its level is on or not.
    pub(super) fn write(&self, line: &Line<'_>, text: &dyn Display) {
        let stamped = self.stamped & 1 << line.level() as u32 != 0;
        let stamp = if stamped { stamp(&self.format, SystemTime::now()) } else { String::new() };
        let place = format!("{}:{}:{}", self.host, std::process::id(), nix::unistd::gettid());
        let rendered = line.render(&stamp, &place, text);
        // A failure to write the log is ignored.
        let _ = match &self.file {
            Some(file) => (&mut &*file).write_all(rendered.as_bytes()),
            None => nix::unistd::write(std::io::stdout(), rendered.as_bytes()).map(drop).map_err(Into::into),
        };
    }
}

/// The bits of the names in a list; with `^` in front, of all others. As in NCCL, unknown names are ignored.
fn mask(text: &str, known: &[&str]) -> u32 {
    let (exclude, list) = names(text);
    let bit = |name: &str| match known.iter().position(|known| known.eq_ignore_ascii_case(name)) {
        Some(at) => 1 << at,
        None if name.eq_ignore_ascii_case("ALL") => u32::MAX,
        None => 0,
    };
    let listed = list.fold(0, |mask, name| mask | bit(name));
    if exclude { !listed } else { listed }
}

/// `%h` becomes the host, `%p` the process, `%%` a percent sign.
fn file_name(pattern: &str, host: &str, process: u32) -> String {
    let mut name = String::new();
    let mut letters = pattern.chars();
    while let Some(letter) = letters.next() {
        match (letter, letters.as_str().chars().next()) {
            ('%', Some('h')) => name.push_str(host),
            ('%', Some('p')) => name.push_str(&process.to_string()),
            ('%', Some('%')) => name.push('%'),
            _ => {
                name.push(letter);
                continue;
            }
        }
        letters.next();
    }
    name
}

/// Begins the file anew, unless this process has begun it before.
fn open(path: &Path) -> std::io::Result<File> {
    let mut begun = BEGUN.lock().unwrap_or_else(PoisonError::into_inner);
    let begun = begun.get_or_insert_default();
    let file = OpenOptions::new().append(true).create(true).open(path)?;
    // Devices and pipes have no length.
    if !begun.contains(path) && file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    begun.insert(path.to_owned());
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_become_masks() {
        let of = |text| mask(text, &Subsystem::NAMES);
        assert_eq!(of("INIT,ENV"), Subsystem::Init.bit() | Subsystem::Env.bit());
        assert_eq!(of(" init , alloc_host ,frob"), Subsystem::Init.bit() | Subsystem::AllocHost.bit());
        assert_eq!(of("ALL"), u32::MAX);
        assert_eq!(of("^COLL"), !Subsystem::Coll.bit());
        assert_eq!((of("^ALL"), of(""), of("^")), (0, 0, u32::MAX));
        // NCCL's numbers, which plugins use.
        assert_eq!((Subsystem::Call.bit(), Subsystem::Bootstrap.bit()), (0x200, 0x1000));
        assert_eq!(Subsystem::AllocHost.bit(), 0x20000);
    }

    #[test]
    fn files_are_named_after_host_and_process() {
        assert_eq!(file_name("log.%h.%p", "vm", 7), "log.vm.7");
        assert_eq!(file_name("%p%p", "vm", 7), "77");
        assert_eq!(file_name("%%h%x%", "vm", 7), "%h%x%");
    }
}
