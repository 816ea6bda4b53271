//! The loop in which a thread drives what it waits for: turns, and pauses where nothing moves.
//!
//! Invariant: what moves is looked after too, if more rarely, so that what trickles meets its deadline. Absent: what a
//! turn does, and where a pause sleeps.

use super::Core;
use crate::engine::{Buffers, Engine, Progress, Task};
use crate::ticket::Ticket;
use crate::wait::{Look, Waiter};
use consort_types::error::Result;

/// How many turns in which something moved go by between two looks at the clock.
const MOVED_TURNS_PER_LOOK: u32 = 256;

/// What a thread drives to its end.
pub(super) trait Driven {
    /// Goes on as far as it can.
    ///
    /// # Errors
    /// What ends it.
    fn turn(&mut self) -> Result<Progress>;

    /// Waits a little, as nothing has moved. Whether it is worth looking at the clock now.
    fn pause(&mut self, waiter: &mut Waiter) -> bool {
        waiter.pause(Look::Load)
    }

    /// After a turn that did not end it; `look` says that the clock may be read.
    fn tend(&mut self, _look: bool) {}
}

/// Drives it to its end.
///
/// # Errors
/// What ends it.
pub(super) fn drive(mut waiter: Waiter, driven: &mut impl Driven) -> Result<()> {
    let mut turns = 0u32;
    loop {
        match driven.turn()? {
            Progress::Done => return Ok(()),
            Progress::Moved => {
                waiter.moved();
                turns = turns.wrapping_add(1);
                if turns.is_multiple_of(MOVED_TURNS_PER_LOOK) {
                    driven.tend(true);
                }
            }
            Progress::Blocked => {
                let look = driven.pause(&mut waiter);
                driven.tend(look);
            }
        }
    }
}

/// A task that its caller waits for.
pub(super) struct Foreground<'a> {
    pub(super) engine: &'a mut Engine,
    pub(super) task: &'a mut Task,
    pub(super) buffers: &'a [Buffers<'a>],
}

impl Driven for Foreground<'_> {
    #[inline]
    fn turn(&mut self) -> Result<Progress> {
        let progress = self.engine.turn(self.task, self.buffers)?;
        if progress != Progress::Blocked {
            self.engine.ring();
        }
        Ok(progress)
    }

    #[inline]
    fn pause(&mut self, waiter: &mut Waiter) -> bool {
        let Foreground { engine, task, .. } = self;
        if waiter.is_eager() {
            task.glance();
        }
        waiter.pause_by(engine.look(), |limit| engine.sleep(task, limit))
    }

    #[inline]
    fn tend(&mut self, look: bool) {
        self.task.tend(self.engine, look);
    }
}

/// What is queued: all of it, or as long as something in it is not over that the caller waits for.
pub(super) struct Queued<'a> {
    pub(super) core: &'a Core,
    pub(super) engine: &'a mut Engine,
    pub(super) until: Option<&'a Ticket>,
}

impl Driven for Queued<'_> {
    fn turn(&mut self) -> Result<Progress> {
        let progress = self.core.advance_queue(self.engine);
        Ok(if self.until.is_some_and(Ticket::is_done) { Progress::Done } else { progress })
    }

    fn pause(&mut self, waiter: &mut Waiter) -> bool {
        waiter.pause_by(self.engine.look(), |limit| self.engine.sleep_queued(limit))
    }
}
