//! Why a run ends, as the exit status says it.
//!
//! Invariant: the numbers are those of nccl-tests, so scripts that know them keep working.

use std::fmt;

/// The exit status of the command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Exit {
    /// Everything ran and every element was right.
    Done = 0,
    /// A defect of this program, or something the system refused.
    Internal = 1,
    /// The library returned an error, or a rank was lost.
    Library = 3,
    /// A deadline passed.
    Timeout = 4,
    /// The arguments are wrong, or ask for more than the host has.
    Usage = 6,
    /// An element was wrong, or the bandwidth below the asked minimum.
    WrongData = 7,
}

impl Exit {
    /// The meaning of a child's exit status; whatever this program never returns is internal.
    pub(crate) fn from_code(code: i32) -> Self {
        [Exit::Done, Exit::Library, Exit::Timeout, Exit::Usage, Exit::WrongData]
            .into_iter()
            .find(|exit| *exit as i32 == code)
            .unwrap_or(Exit::Internal)
    }

    /// The worse of two: wrong data first, since it is the only one that a user could overlook.
    pub(crate) fn worse(self, other: Exit) -> Exit {
        let severity = |exit: Exit| match exit {
            Exit::Done => 0,
            Exit::Usage => 1,
            Exit::Internal => 2,
            Exit::Timeout => 3,
            Exit::Library => 4,
            Exit::WrongData => 5,
        };
        if severity(other) > severity(self) { other } else { self }
    }
}

/// Why a run cannot go on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into() }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(Exit::Internal, message)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_nccl_tests() {
        let codes = [Exit::Done, Exit::Internal, Exit::Library, Exit::Timeout, Exit::Usage, Exit::WrongData];
        assert_eq!(codes.map(|exit| exit as i32), [0, 1, 3, 4, 6, 7]);
        for exit in codes {
            assert_eq!(Exit::from_code(exit as i32), exit);
        }
        assert_eq!(Exit::from_code(101), Exit::Internal);
    }

    #[test]
    fn the_worst_wins_in_either_order() {
        assert_eq!(Exit::Library.worse(Exit::WrongData), Exit::WrongData);
        assert_eq!(Exit::WrongData.worse(Exit::Library), Exit::WrongData);
        assert_eq!(Exit::Done.worse(Exit::Timeout), Exit::Timeout);
        assert_eq!(Exit::Done.worse(Exit::Done), Exit::Done);
    }
}
