//! What a probe could not read, or did not believe.
//!
//! Invariant: a note names the file or the question, and never ends a probe. Absent: what a person should do about a
//! machine, which [`Hardware::warnings`](consort_algorithms::hardware::Hardware::warnings) says.

use std::fmt;

/// More notes are of no use to a reader of them.
pub(crate) const NOTES_MAX: usize = 1000;

/// What was the trouble.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum Trouble {
    /// The system does not let this process read it.
    Unreadable {
        /// The system's words.
        reason: String,
    },
    /// It is no file: a directory, a pipe or a device.
    NoFile,
    /// It is longer than what the system writes there.
    TooLong {
        /// The most bytes that are read.
        most: usize,
    },
    /// It is no text in UTF-8.
    NoText,
    /// What it says is nothing that can be there.
    Nonsense {
        /// What it says, shortened.
        says: String,
    },
    /// Its links lead in a circle, or through more links than a system makes.
    Cycle,
    /// There is more of it than a machine has; the rest is left out.
    TooMany {
        /// How many are kept.
        most: usize,
    },
    /// Two sources differ, or one differs from itself.
    Contradiction {
        /// How, and what is taken.
        how: String,
    },
    /// It is there, and there is no place for it.
    LeftOut {
        /// Why.
        why: String,
    },
    /// A library has no answer.
    NoAnswer {
        /// The library's words.
        reason: String,
    },
}

/// Something that a probe could not read, or did not believe.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Note {
    /// The file, below the root, or the question to a library.
    pub place: String,
    /// The trouble.
    pub trouble: Trouble,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = &self.place;
        match &self.trouble {
            Trouble::Unreadable { reason } => write!(f, "{place} cannot be read: {reason}"),
            Trouble::NoFile => write!(f, "{place} is no file"),
            Trouble::TooLong { most } => write!(f, "{place} has more than {most} bytes, and is not read"),
            Trouble::NoText => write!(f, "{place} is no text"),
            Trouble::Nonsense { says } => {
                write!(f, "{place} says {says:?}, which cannot be; it is not known therefore")
            }
            Trouble::Cycle => write!(f, "the links of {place} lead in a circle"),
            Trouble::TooMany { most } => write!(f, "{place}: only the first {most} are looked at"),
            Trouble::Contradiction { how } => write!(f, "{place}: {how}"),
            Trouble::LeftOut { why } => write!(f, "{place} is left out: {why}"),
            Trouble::NoAnswer { reason } => write!(f, "{place}: no answer: {reason}"),
        }
    }
}
