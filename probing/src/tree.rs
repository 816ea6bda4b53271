//! Files below a root directory, read within bounds.
//!
//! Invariant: no path leads out of the root, whatever links say; nothing but plain files is opened; lengths, entries of a
//! directory, links in a row and files in all are bounded. What is not there is `None` without a note, since most files
//! are not there on most machines. Absent: what the files mean.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::note::{NOTES_MAX, Note, Trouble};

/// A file of sysfs has at most a page, which is 64 KiB on some machines.
const TEXT_MAX: usize = 64 << 10;
/// A directory of a machine with 8,192 CPUs has some more entries than that.
const ENTRIES_MAX: usize = 10_000;
/// As many links in a row as Linux follows.
const LINKS_MAX: usize = 40;
/// Longer paths are made by links that lead deeper each time.
const PATH_MAX: usize = 4096;
/// Files that are looked for in all: the largest machines have some ten thousand.
const LOOKS_MAX: usize = 400_000;

#[derive(Debug)]
pub(crate) struct Tree {
    root: PathBuf,
    notes: RefCell<BTreeSet<Note>>,
    /// Where the links of directories lead: most files stand beside others.
    known: RefCell<BTreeMap<String, Option<String>>>,
    looks: Cell<usize>,
}

impl Tree {
    pub(crate) fn below(root: &Path) -> Tree {
        Tree {
            root: root.to_owned(),
            notes: RefCell::default(),
            known: RefCell::default(),
            looks: Cell::new(0),
        }
    }

    pub(crate) fn note(&self, place: impl Into<String>, trouble: Trouble) {
        let mut notes = self.notes.borrow_mut();
        if notes.len() < NOTES_MAX {
            notes.insert(Note { place: place.into(), trouble });
        }
    }

    pub(crate) fn into_notes(self) -> Vec<Note> {
        self.notes.into_inner().into_iter().collect()
    }

    /// Notes that a value makes no sense.
    pub(crate) fn nonsense(&self, place: &str, says: &str) {
        let says = says.trim().chars().take(60).collect();
        self.note(place, Trouble::Nonsense { says });
    }

    /// Whether one more file may be looked for.
    fn may_look(&self) -> bool {
        let looks = self.looks.get() + 1;
        self.looks.set(looks);
        if looks == LOOKS_MAX + 1 {
            self.note("/", Trouble::TooMany { most: LOOKS_MAX });
        }
        looks <= LOOKS_MAX
    }

    fn trouble(&self, path: &str, error: &std::io::Error) {
        let absent = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory);
        if !absent {
            // The system's words without the number of the error.
            let reason = error.to_string();
            let reason = reason.split(" (os error").next().unwrap_or_default().to_owned();
            self.note(path, Trouble::Unreadable { reason });
        }
    }

    /// Where a path leads when all links are followed, below the root and without a slash at its beginning.
    pub(crate) fn resolve(&self, path: &str) -> Option<String> {
        let path = path.trim_matches('/');
        if let Some((directory, name)) = path.rsplit_once('/') {
            let known = self.known.borrow().get(directory).cloned();
            let resolved = match known {
                Some(resolved) => resolved,
                None => {
                    let resolved = self.follow("", directory, path);
                    self.known.borrow_mut().insert(directory.to_owned(), resolved.clone());
                    resolved
                }
            };
            return self.follow(&resolved?, name, path);
        }
        self.follow("", path, path)
    }

    fn follow(&self, from: &str, rest: &str, asked: &str) -> Option<String> {
        let mut at: Vec<String> =
            from.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        let mut rest: VecDeque<String> = rest.split('/').map(str::to_owned).collect();
        let mut links = 0;
        while let Some(part) = rest.pop_front() {
            match part.as_str() {
                "" | "." => continue,
                ".." => {
                    // Above the root there is the root, as in a system.
                    at.pop();
                    continue;
                }
                _ => at.push(part),
            }
            if !self.may_look() {
                return None;
            }
            let here = self.root.join(at.join("/"));
            let length = here.as_os_str().len() - self.root.as_os_str().len();
            let meta = match fs::symlink_metadata(&here) {
                _ if length > PATH_MAX => {
                    self.note(asked, Trouble::Cycle);
                    return None;
                }
                Ok(meta) => meta,
                Err(error) => {
                    self.trouble(asked, &error);
                    return None;
                }
            };
            if !meta.is_symlink() {
                continue;
            }
            links += 1;
            if links > LINKS_MAX {
                self.note(asked, Trouble::Cycle);
                return None;
            }
            let target = match fs::read_link(&here) {
                Ok(target) => target,
                Err(error) => {
                    self.trouble(asked, &error);
                    return None;
                }
            };
            let Some(target) = target.to_str() else {
                self.note(asked, Trouble::NoText);
                return None;
            };
            at.pop();
            if target.starts_with('/') {
                at.clear();
            }
            for part in target.split('/').rev() {
                rest.push_front(part.to_owned());
            }
        }
        Some(at.join("/"))
    }

    /// Whether there is something.
    pub(crate) fn exists(&self, path: &str) -> bool {
        self.resolve(path).is_some()
    }

    /// At most `most` bytes of a file; `true` with them if there are more.
    fn start(&self, path: &str, most: usize) -> Option<(Vec<u8>, bool)> {
        let resolved = self.resolve(path)?;
        let place = self.root.join(resolved);
        // Opening a pipe blocks for as long as the pipe has no writer.
        match fs::symlink_metadata(&place) {
            Ok(meta) if meta.is_file() => {}
            Ok(_) => {
                self.note(path, Trouble::NoFile);
                return None;
            }
            Err(error) => {
                self.trouble(path, &error);
                return None;
            }
        }
        let mut bytes = Vec::new();
        let read = File::open(&place).and_then(|file| file.take(most as u64 + 1).read_to_end(&mut bytes));
        match read {
            Ok(_) => {
                let is_longer = bytes.len() > most;
                bytes.truncate(most);
                Some((bytes, is_longer))
            }
            // The kernel's answer where a device has no such value.
            Err(error) if matches!(error.raw_os_error(), Some(EINVAL | EOPNOTSUPP)) => None,
            Err(error) => {
                self.trouble(path, &error);
                None
            }
        }
    }

    /// The bytes of a file of at most `most`.
    pub(crate) fn bytes(&self, path: &str, most: usize) -> Option<Vec<u8>> {
        match self.start(path, most)? {
            (bytes, false) => Some(bytes),
            (_, true) => {
                self.note(path, Trouble::TooLong { most });
                None
            }
        }
    }

    /// The text of a file, without white space around it.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        self.text_of(path, TEXT_MAX)
    }

    /// The text of a file of at most `most` bytes.
    pub(crate) fn text_of(&self, path: &str, most: usize) -> Option<String> {
        match String::from_utf8(self.bytes(path, most)?) {
            Ok(text) => Some(text.trim().to_owned()),
            Err(_) => {
                self.note(path, Trouble::NoText);
                None
            }
        }
    }

    /// The text with which a file begins, for files that repeat themselves for each CPU.
    pub(crate) fn head(&self, path: &str) -> Option<String> {
        let (bytes, _) = self.start(path, TEXT_MAX)?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The number that a file has.
    pub(crate) fn number<T: FromStr>(&self, path: &str) -> Option<T> {
        let text = self.text(path).filter(|text| !text.is_empty())?;
        let number = text.parse().ok();
        if number.is_none() {
            self.nonsense(path, &text);
        }
        number
    }

    /// The number that a file has in hexadecimal digits after `0x`.
    pub(crate) fn hexadecimal(&self, path: &str, most: u32) -> Option<u32> {
        let text = self.text(path).filter(|text| !text.is_empty())?;
        let digits =
            text.strip_prefix("0x").filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let number =
            digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()).filter(|value| *value <= most);
        if number.is_none() {
            self.nonsense(path, &text);
        }
        number
    }

    /// The names in a directory, in their order: numbers in names count as numbers.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let Some(resolved) = self.resolve(path) else { return Vec::new() };
        let entries = match fs::read_dir(self.root.join(resolved)) {
            Ok(entries) => entries,
            Err(error) => {
                self.trouble(path, &error);
                return Vec::new();
            }
        };
        let mut names: Vec<String> = Vec::new();
        for entry in entries.take(ENTRIES_MAX + 1).flatten() {
            if names.len() == ENTRIES_MAX {
                self.note(path, Trouble::TooMany { most: ENTRIES_MAX });
                break;
            }
            // A name that is no text is none of the system's.
            names.extend(entry.file_name().into_string());
        }
        names.sort_by_cached_key(|name| ordered(name));
        names
    }

    /// The last part of the path to which a link leads.
    pub(crate) fn target_name(&self, path: &str) -> Option<String> {
        self.resolve(path)?.rsplit('/').next().map(str::to_owned)
    }
}

/// What the kernel answers where a device has no such value.
const EINVAL: i32 = 22;
/// What it answers where the driver of a device does not know such values.
const EOPNOTSUPP: i32 = 95;

/// A name as its letters and numbers, so that `cpu10` comes after `cpu9`.
fn ordered(name: &str) -> (Vec<(String, u64)>, String) {
    let mut parts = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let letters = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (word, digits) = rest.split_at(letters);
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        parts.push((word.to_owned(), digits[..end].parse().unwrap_or(u64::MAX)));
        rest = &digits[end..];
    }
    (parts, name.to_owned())
}
