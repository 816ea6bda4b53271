//! Collectives that may not be entered before a change of the machine is known.
//!
//! Invariant: a thread that waits here has no engine, so that its rank's promise for another change, of this or another communicator, does
//! not wait for it. Absent: changes ([`crate::engine::changes`]).

use std::time::{Duration, Instant};

use super::{Core, Owned};
use crate::wait::Look;
use consort_types::error::{Error, Operation, Result, seconds};

/// The engines of all communicators, once as many collectives may be entered on each. A change of one is not waited for with the engine
/// of another.
///
/// # Errors
/// As [`Core::with_room`].
pub(in crate::communicator) fn all_with_room<'a>(
    wanted: impl Iterator<Item = (&'a Core, u64, Duration)> + Clone,
) -> Result<Vec<Owned<'a>>> {
    loop {
        let mut all = wanted.clone().map(|(core, ..)| core.acquire()).collect::<Result<Vec<_>>>()?;
        let without = wanted.clone().zip(&mut all).find_map(|((core, collectives, timeout), owned)| {
            (!owned.engine.has_room(collectives)).then_some((core, collectives, timeout))
        });
        let Some((core, collectives, timeout)) = without else { return Ok(all) };
        drop(all);
        drop(core.with_room(None, collectives, timeout)?);
    }
}

impl Core {
    /// The engine once as many collectives may be entered, which is at once but for the moment in which ranks agree on a change.
    ///
    /// # Errors
    /// [`Error::ConcurrentUse`]; what ended the communicator, also that the change was not known within `timeout`.
    #[inline]
    pub(in crate::communicator) fn with_room<'a>(
        &'a self,
        owned: Option<Owned<'a>>,
        collectives: u64,
        timeout: Duration,
    ) -> Result<Owned<'a>> {
        let mut owned = owned.map_or_else(|| self.acquire(), Ok)?;
        if owned.engine.has_room(collectives) {
            return Ok(owned);
        }
        drop(owned);
        self.wait_for_room(collectives, timeout)
    }

    #[cold]
    fn wait_for_room(&self, collectives: u64, timeout: Duration) -> Result<Owned<'_>> {
        let began = Instant::now();
        let mut waiter = self.policy.waiter();
        loop {
            self.let_go();
            waiter.pause(Look::Load);
            if self.group.has_failed() {
                return Err(self.failure());
            }
            let mut owned = self.acquire()?;
            if owned.engine.has_room(collectives) {
                return Ok(owned);
            }
            drop(owned);
            let waited = began.elapsed();
            if waited >= timeout {
                let operation = Operation { name: "change of the machine".into(), sequence: 0 };
                let verdict = format!(
                    "ranks have not agreed within {} from which call on they plan without a path that is lost: one of them does not answer, \
                     or is stopped",
                    seconds(waited)
                );
                self.group.fail(Error::Timeout { operation, waited, verdict });
                return Err(self.failure());
            }
        }
    }
}
