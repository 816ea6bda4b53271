//! Calls that a thread waits for, on a communicator on which others were started: they take their places among them.
//!
//! Invariant: such a call is behind what uses the same links, and beside all else that was started, which its thread drives
//! meanwhile: a collective does not wait for a message whose other side comes after it. Its memory is lent, and is back when it
//! returns, also by a panic. Absent: which operations are behind which (`engine/queue`).

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use consort_memory::{Lender, lend};

use super::{Core, Owned};
use crate::communicator::drive::{Queued, drive};
use crate::communicator::together::Entry;
use crate::engine::{Engine, Memory, Source, Start};
use crate::ticket::Ticket;
use consort_types::error::{Error, Result};

impl Core {
    /// Calls that the caller waits for, with what was started before them; the number of the last.
    ///
    /// # Errors
    /// Of the calls.
    #[cold]
    pub(super) fn wait_in_queue(
        &self,
        mut owned: Owned<'_>,
        entries: &[Entry<'_>],
        timeout: Duration,
    ) -> Result<u64> {
        let engine = &mut *owned.engine;
        let (ticket, last) = lend(|lender| {
            let driven = catch_unwind(AssertUnwindSafe(|| {
                let (ticket, last) = self.start_lent(engine, lender, entries, timeout);
                let mut queued = Queued { core: self, engine: &mut *engine, until: Some(&ticket) };
                // The ticket has the end of each.
                let _ = drive(self.policy.waiter(), &mut queued);
                (ticket, last)
            }));
            driven.unwrap_or_else(|panic| {
                self.fail_half_done();
                engine.fail_queue(&Error::internal("a panic in a turn of what was started"));
                self.note_queued(engine);
                resume_unwind(panic)
            })
        });
        drop(owned);
        self.let_go();
        ticket.result().map(|()| last)
    }

    /// Starts calls on memory that is lent until they are over.
    pub(in crate::communicator) fn start_lent<'env>(
        &self,
        engine: &mut Engine,
        lender: &Lender<'_, 'env>,
        entries: &[Entry<'env>],
        timeout: Duration,
    ) -> (Arc<Ticket>, u64) {
        let start = |Entry { call, blocks, buffers }: &Entry<'env>| Start {
            call: *call,
            blocks: *blocks,
            memory: Memory {
                input: Source::Apart(lender.share_span(buffers.input)),
                output: Some(lender.share_span_mut(buffers.output)),
                _kept: Vec::new(),
            },
        };
        let started = engine.start(entries.iter().map(start).collect(), timeout);
        self.note_queued(engine);
        started
    }
}
