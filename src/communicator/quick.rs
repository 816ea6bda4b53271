//! Calls that are tried before anything is asked about them: repeated collectives, and messages, which are over at once.
//!
//! Invariant: what is not over at once, or not at all, goes on as every other call. Absent: checks of a call that has not
//! run before.

use std::time::Duration;

use super::core::{Core, FailOnPanic, Owned};
use crate::call::Call;
use crate::engine::packets::AtOnce;
use crate::engine::{Buffers, Task};
use crate::error::{Error, Result};

/// What became of a call that is tried before anything is asked about it.
pub(super) enum Quick {
    /// It was not begun.
    No,
    Done,
    Failed(Box<Error>),
}

impl Core {
    /// A collective between two ranks of which the last one was the like: what became of it, if it was begun.
    #[inline(always)]
    pub(super) fn duo(&self, call: &Call, timeout: Duration, buffers: &Buffers<'_>) -> Quick {
        if self.is_forked() || self.group.has_failed() {
            return Quick::No;
        }
        let Some(mut owned) = self.try_own() else { return Quick::No };
        let guard = FailOnPanic(&self.group);
        let outcome = owned.engine.duo(call, timeout, buffers, self.policy.looks());
        std::mem::forget(guard);
        match outcome {
            AtOnce::Done => Quick::Done,
            AtOnce::No => Quick::No,
            AtOnce::Begun(task) => self.drive_begun(owned, task, buffers),
        }
    }

    #[inline(never)]
    fn drive_begun(&self, mut owned: Owned<'_>, task: Box<Task>, buffers: &Buffers<'_>) -> Quick {
        let driven = self.drive(&mut owned.engine, task, &[*buffers]);
        drop(owned);
        driven.map_or_else(|error| Quick::Failed(Box::new(self.told(error))), |()| Quick::Done)
    }

    /// A message to or from a rank that is there, of whole elements: what became of it, if it was begun.
    #[inline(always)]
    pub(super) fn message(&self, call: &Call, timeout: Duration, buffers: &Buffers<'_>) -> Quick {
        if self.is_forked() || self.group.has_failed() {
            return Quick::No;
        }
        let Some(mut owned) = self.try_own() else { return Quick::No };
        let guard = FailOnPanic(&self.group);
        let outcome = owned.engine.message_at_once(call, timeout, buffers, self.policy.looks());
        std::mem::forget(guard);
        match outcome {
            AtOnce::Done => Quick::Done,
            AtOnce::No => Quick::No,
            AtOnce::Begun(task) => self.drive_begun(owned, task, buffers),
        }
    }

    /// A collective that may be over before it would pay to make a task of it: what became of it, if it was begun.
    #[inline]
    pub(super) fn at_once(&self, call: &Call, timeout: Duration, buffers: Buffers<'_>) -> Option<Result<()>> {
        let mut owned = self.try_own()?;
        let guard = FailOnPanic(&self.group);
        let outcome = owned.engine.at_once(call, timeout, buffers, self.policy.looks());
        std::mem::forget(guard);
        match outcome {
            AtOnce::Done => Some(Ok(())),
            AtOnce::No => None,
            AtOnce::Begun(task) => match self.drive_begun(owned, task, &buffers) {
                Quick::Failed(error) => Some(Err(*error)),
                Quick::Done => Some(Ok(())),
                Quick::No => None,
            },
        }
    }
}
