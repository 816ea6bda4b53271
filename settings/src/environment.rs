//! Where a setting's value comes from: variables of the environment, and files that stand in for those that are not
//! set.
//!
//! Precedence: the call, then `CONSORT_*`, then `NCCL_*` in the environment, then the config struct or
//! [`Options`](crate::Options), then a file, then the tuning table, then the default. A file comes after the config
//! struct because a program's own setting should hold; NCCL puts files before it, because it copies them into the
//! environment.
//!
//! Invariant: the environment is read when a communicator is made and is never changed; a file is read again only
//! when it has changed. Absent: which settings there are (`options`), and what each variable of NCCL's does (the
//! crate `consort-nccl`).

mod file;
mod ours;
mod sockets;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use consort_types::error::Result;

use file::File;
pub use ours::{Ours, ours};
pub use sockets::Interfaces;

/// Where a value came from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The call itself.
    Call,
    /// A `CONSORT_*` variable.
    Consort,
    /// An `NCCL_*` variable in the environment.
    Nccl,
    /// The config struct, or [`Options`](crate::Options).
    Config,
    /// A line of this file.
    File(PathBuf),
    /// A table of measurements.
    Tuned,
    /// No variable, option or file sets the value.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Call => f.pad("call"),
            Origin::Consort | Origin::Nccl => f.pad("environment"),
            Origin::Config => f.pad("config"),
            Origin::File(path) => f.pad(&path.display().to_string()),
            Origin::Tuned => f.pad("tuned"),
            Origin::Default => f.pad("default"),
        }
    }
}

/// A value with its origin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resolved<T> {
    /// The value.
    pub value: T,
    /// Where it came from.
    pub origin: Origin,
    /// The variable that set it, for [`Origin::Consort`], [`Origin::Nccl`] and [`Origin::File`].
    pub variable: Option<&'static str>,
}

/// One variable that can set a setting, and the meaning of its text; `None` where the text leaves the setting open.
pub type Spelling<'s, T> = (&'static str, &'s dyn Fn(&str) -> Result<Option<T>>);

/// What a variable is set to.
type Lookup<'a> = Box<dyn Fn(&str) -> Option<String> + 'a>;

/// A process's variables and the files that stand in for those that are not set.
pub struct Environment<'a> {
    set: Lookup<'a>,
    files: Vec<Arc<File>>,
    trouble: Option<String>,
}

impl fmt::Debug for Environment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Environment<'static> {
    /// This process's variables as they are now, with the file that `NCCL_CONF_FILE` names (or else `~/.nccl.conf`)
    /// and `/etc/nccl.conf`.
    pub fn of_process() -> Self {
        Self::from_lookup(|name| std::env::var(name).ok()).with_files()
    }
}

impl<'a> Environment<'a> {
    /// The variables that `lookup` returns, and no files.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String> + 'a) -> Self {
        Environment { set: Box::new(lookup), files: Vec::new(), trouble: None }
    }

    /// Adds the files that its variables name.
    pub fn with_files(mut self) -> Self {
        (self.files, self.trouble) = file::all(&self.set);
        self
    }

    /// The text of a variable, from the environment or else from a file, with its origin.
    pub fn text(&self, name: &str) -> Option<(String, Origin)> {
        let set = (self.set)(name)
            .map(|text| (text, if name.starts_with("NCCL_") { Origin::Nccl } else { Origin::Consort }));
        set.or_else(|| self.in_files(name))
    }

    /// Why the file that `NCCL_CONF_FILE` names is not read.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    fn in_files(&self, name: &str) -> Option<(String, Origin)> {
        self.files.iter().find_map(|file| Some((file.get(name)?.to_owned(), Origin::File(file.path.clone()))))
    }

    /// The value that holds: that of the first spelling that the environment has, then the option, then the files.
    ///
    /// # Errors
    /// The error of reading the text or the option.
    pub fn find<T>(
        &self,
        spellings: &[Spelling<'_, T>],
        option: impl FnOnce() -> Result<Option<T>>,
    ) -> Result<Option<Resolved<T>>> {
        for (name, read) in spellings {
            let Some(text) = (self.set)(name) else { continue };
            if let Some(value) = read(&text)? {
                let origin = if name.starts_with("NCCL_") { Origin::Nccl } else { Origin::Consort };
                return Ok(Some(Resolved { value, origin, variable: Some(name) }));
            }
        }
        if let Some(value) = option()? {
            return Ok(Some(Resolved { value, origin: Origin::Config, variable: None }));
        }
        for (name, read) in spellings {
            let Some((text, origin)) = self.in_files(name) else { continue };
            if let Some(value) = read(&text)? {
                return Ok(Some(Resolved { value, origin, variable: Some(name) }));
            }
        }
        Ok(None)
    }

    /// A whole number of one of NCCL's variables. As in NCCL, a text that is no number counts as unset.
    pub fn integer(&self, name: &'static str) -> Option<i64> {
        self.text(name).and_then(|(text, _)| integer(&text))
    }
}

/// A whole number of 64 bits with a sign; see [`whole`].
pub fn integer(text: &str) -> Option<i64> {
    whole(text).and_then(|number| number.try_into().ok())
}

/// A whole number as C reads it: decimal, `0x` or octal.
pub fn whole(text: &str) -> Option<i128> {
    let text = text.trim();
    let (negative, digits) = match text.strip_prefix(['-', '+']) {
        Some(digits) => (text.starts_with('-'), digits),
        None => (false, text),
    };
    let (digits, base) = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None if digits.len() > 1 && digits.starts_with('0') => (&digits[1..], 8),
        None => (digits, 10),
    };
    if !digits.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return None;
    }
    let number = i128::from(u64::from_str_radix(digits, base).ok()?);
    Some(if negative { -number } else { number })
}

/// Names separated by commas. `^` in front excludes them instead, as in many of NCCL's variables.
pub fn names(text: &str) -> (bool, impl Iterator<Item = &str>) {
    let text = text.trim();
    let (exclude, list) = text.strip_prefix('^').map_or((false, text), |list| (true, list));
    (exclude, list.split(',').map(str::trim).filter(|name| !name.is_empty()))
}

/// A setting as a communicator made now would have it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setting {
    /// Its variable.
    pub name: &'static str,
    /// The value as text.
    pub value: String,
    /// Where the value came from.
    pub origin: Origin,
    /// The variable that set it, if one did.
    pub variable: Option<&'static str>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_as_c_reads_them() {
        let expected = [
            ("12", Some(12)),
            (" -2 ", Some(-2)),
            ("+3", Some(3)),
            ("0x10", Some(16)),
            ("-0X1f", Some(-31)),
            ("010", Some(8)),
            ("0", Some(0)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775807", Some(i64::MAX)),
            ("9223372036854775808", None),
            ("", None),
            ("-", None),
            ("--1", None),
            ("0x", None),
            ("+-1", None),
            ("1e3", None),
            ("12 ranks", None),
        ];
        for (text, number) in expected {
            assert_eq!(integer(text), number, "{text:?}");
        }
    }

    #[test]
    fn environment_then_option_then_file_then_nothing() {
        let path = std::env::temp_dir().join(format!("consort-precedence-{}.conf", std::process::id()));
        std::fs::write(&path, "NCCL_MIN_CTAS=6\nCONSORT_CHANNELS=5\n").expect("a file");
        let number = |text: &str| Ok(integer(text));
        let found = |set: &[(&str, &str)], option: Option<i64>| {
            let lookup = |name: &str| {
                let known = set.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).to_owned());
                known.or_else(|| (name == "NCCL_CONF_FILE").then(|| path.display().to_string()))
            };
            let environment = Environment::from_lookup(lookup).with_files();
            let found =
                environment.find(&[("CONSORT_CHANNELS", &number), ("NCCL_MIN_CTAS", &number)], || Ok(option));
            found.expect("no errors").map(|found| (found.value, found.origin, found.variable))
        };
        let all = [("CONSORT_CHANNELS", "1"), ("NCCL_MIN_CTAS", "2")];
        assert_eq!(found(&all, Some(3)), Some((1, Origin::Consort, Some("CONSORT_CHANNELS"))));
        assert_eq!(found(&all[1..], Some(3)), Some((2, Origin::Nccl, Some("NCCL_MIN_CTAS"))));
        assert_eq!(found(&[("NCCL_MIN_CTAS", "open")], Some(3)), Some((3, Origin::Config, None)));
        assert_eq!(found(&[], None), Some((5, Origin::File(path.clone()), Some("CONSORT_CHANNELS"))));
        std::fs::write(&path, "NCCL_MIN_CTAS=66\n").expect("a file");
        assert_eq!(found(&[], None), Some((66, Origin::File(path.clone()), Some("NCCL_MIN_CTAS"))));
        std::fs::write(&path, "").expect("a file");
        assert_eq!(found(&[], None), None);
        std::fs::remove_file(&path).expect("removed");
    }
}
