//! The way of a call into the engine: acquired once, for the fast path first, and for the general path where that does not
//! take the call.
//!
//! A collective and a message each have the same few lines here: one function that is given what differs as closures costs 19
//! instructions a call (`docs/measurements/benches.md`).
//!
//! Invariant: a call that the fast path does not finish, or does not take, goes on as every other call. Absent: what the
//! fast path takes, which is the engine's.

use std::time::Duration;

use consort_memory::{Span, SpanMut};

use super::core::{Core, Owned};
use crate::engine::packets::AtOnce;
use crate::engine::{Buffers, Task};
use consort_types::call::{Call, Kind};
use consort_types::error::{Error, Result};

impl Core {
    /// The engine, if the communicator works and nothing else has it.
    #[inline(always)]
    fn try_enter(&self) -> Option<Owned<'_>> {
        if self.is_forked() || self.group.has_failed() { None } else { self.try_own() }
    }

    /// A plain collective that the caller waits for, packed, of `count` elements.
    #[inline(always)]
    pub(super) fn execute(
        &self,
        packed: u64,
        count: usize,
        timeout: &Duration,
        input: Span<'_>,
        output: SpanMut<'_>,
    ) -> Result<()> {
        let Some(mut owned) = self.try_enter() else {
            return self.execute_packed(None, packed, count, timeout, input, output);
        };
        let guard = self.guard();
        let outcome = owned.engine.at_once(packed, count, timeout, input, output);
        guard.disarm();
        match outcome {
            AtOnce::Done => Ok(()),
            AtOnce::No => self.execute_packed(Some(owned), packed, count, timeout, input, output),
            AtOnce::Begun(task) => self.drive_begun(owned, task, &[Buffers { input, output }]),
        }
    }

    #[inline(never)]
    fn execute_packed(
        &self,
        owned: Option<Owned<'_>>,
        packed: u64,
        count: usize,
        timeout: &Duration,
        input: Span<'_>,
        output: SpanMut<'_>,
    ) -> Result<()> {
        let Some(call) = Call::unpack(packed, count) else { unreachable!("a plain call was packed") };
        self.execute_fully(owned, &call, *timeout, input, output)
    }

    /// A call that is not the like of the last one, or that names its algorithm.
    #[inline(never)]
    pub(super) fn execute_fully(
        &self,
        owned: Option<Owned<'_>>,
        call: &Call,
        timeout: Duration,
        input: Span<'_>,
        output: SpanMut<'_>,
    ) -> Result<()> {
        let owned = match owned {
            None => {
                self.check()?;
                None
            }
            Some(mut owned) => {
                if owned.engine.recalls(call) {
                    let at_once = || owned.engine.at_once(call.packed(), call.count, &timeout, input, output);
                    match self.guarded(at_once) {
                        AtOnce::Done => return Ok(()),
                        AtOnce::No => {}
                        AtOnce::Begun(task) => {
                            return self.drive_begun(owned, task, &[Buffers { input, output }]);
                        }
                    }
                }
                Some(owned)
            }
        };
        let Call { kind, .. } = *call;
        if kind.is_message() || kind.varies() || kind.is_own() && kind != Kind::Barrier {
            return Err(Error::invalid(
                format!("{}: not a collective of equal blocks", kind.name()),
                "pass a call that a constructor of `Call` made; use `send`, `receive` and `execute_v` for others",
            ));
        }
        call.check(self.group.rank, self.group.size(), input, output)?;
        self.collective_on(owned, *call, None, timeout, Buffers { input, output }).map(drop)
    }

    /// A message to or from another rank that is there, of whole elements.
    #[inline(always)]
    pub(super) fn message(&self, call: &Call, timeout: &Duration, buffers: Buffers<'_>) -> Result<()> {
        let Some(mut owned) = self.try_enter() else {
            return self.message_fully(None, call, timeout, buffers);
        };
        let guard = self.guard();
        let outcome = owned.engine.message_at_once(call, timeout, buffers);
        guard.disarm();
        match outcome {
            AtOnce::Done => Ok(()),
            AtOnce::No => self.message_fully(Some(owned), call, timeout, buffers),
            AtOnce::Begun(task) => self.drive_begun(owned, task, &[buffers]),
        }
    }

    #[inline(never)]
    fn message_fully(
        &self,
        owned: Option<Owned<'_>>,
        call: &Call,
        timeout: &Duration,
        buffers: Buffers<'_>,
    ) -> Result<()> {
        if owned.is_none() {
            self.check()?;
        }
        self.exchange_on(owned, &[*call], *timeout, &[buffers])
    }

    /// A message to another rank and one from another rank, side by side.
    pub(super) fn exchange(&self, calls: &[Call; 2], timeout: &Duration, buffers: Buffers<'_>) -> Result<()> {
        let both = [buffers; 2];
        let Some(mut owned) = self.try_enter() else {
            self.check()?;
            return self.exchange_on(None, calls, *timeout, &both);
        };
        let [send, receive] = calls;
        let outcome = self.guarded(|| owned.engine.exchange_at_once([send, receive], timeout, buffers));
        match outcome {
            AtOnce::Done => Ok(()),
            AtOnce::No => self.exchange_on(Some(owned), calls, *timeout, &both),
            AtOnce::Begun(task) => self.drive_begun(owned, task, &both),
        }
    }

    /// The rest of what the fast path has begun.
    #[inline(never)]
    fn drive_begun(&self, mut owned: Owned<'_>, task: Box<Task>, buffers: &[Buffers<'_>]) -> Result<()> {
        let driven = self.drive(&mut owned.engine, task, buffers);
        drop(owned);
        driven.map_err(|error| self.dumped(error))
    }
}
