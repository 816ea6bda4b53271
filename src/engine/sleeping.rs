//! How a rank sleeps while a task is blocked, and what ends that.
//!
//! Invariant: what may have come before a sleep could be ended is looked at before that sleep; a sleep that nothing ends is short. Absent: the
//! set of descriptors ([`Readiness`](super::readiness::Readiness)), and links that are being made (`links/sleeping`).

use std::time::Duration;

use consort_memory::Bell;

use super::Engine;
use super::links::WokenBy;
use super::task::Task;
use crate::wait::{Look, NAP_MIN};

/// A sleep that a peer ends may last as long as this many naps.
const BELL_NAPS: u32 = 8;
/// How often in a row a rank arms its doorbells, and finds them rung when it is to sleep. Their words lie in memory that
/// peers store to. So afterwards it sleeps for a nap, whatever they say.
const ARMED_MAX: u32 = 8;

impl Engine {
    /// What this rank sleeps by while a task waits, if the rank that it waits for would ring.
    fn bell(&mut self, task: &Task) -> Option<&Bell> {
        let peer = task.blocked(&self.links).first()?.peer;
        let is_message = task.request().is_some_and(|request| request.call.kind.is_message());
        let of_board =
            if is_message { None } else { self.packets.board().and_then(|board| board.bell(peer)) };
        of_board.or_else(|| self.links.bell(peer))
    }

    /// Sleeps while a task is blocked, but not longer than `limit`; or returns at once and is to be called again if
    /// nothing has moved until then.
    pub(crate) fn sleep(&mut self, task: &Task, limit: Duration) {
        self.sleep_beside(task, limit, false);
    }

    /// The same where `others` may be blocked beside it.
    pub(super) fn sleep_beside(&mut self, task: &Task, limit: Duration, others: bool) {
        if self.links.has_sockets() {
            // Peers may wait for deferred credits; they are sent at the second call of a wait. Where doorbells are to be
            // armed, the first call sleeps not at all.
            if limit > NAP_MIN {
                self.links.flush_credits();
            }
            if self.prepare_sleep() {
                // What wakes nothing is looked at after a short sleep.
                let naps = if self.woken_by == WokenBy::Limit { 1 } else { BELL_NAPS };
                self.links.sleep(limit * naps);
                self.stay_awake();
            }
            return;
        }
        // One doorbell is the first task's alone.
        let naps = if others { 1 } else { BELL_NAPS };
        if self.links.is_connecting() {
            self.links.sleep_connecting(&self.group, limit, naps);
            return;
        }
        let armed = self.armed;
        self.armed = match self.bell(task) {
            Some(bell) if !bell.is_armed() && armed < ARMED_MAX => {
                bell.arm();
                armed + 1
            }
            Some(bell) if bell.is_armed() && bell.sleep(limit * naps) => 1,
            _ => {
                std::thread::sleep(limit);
                // After a nap for too many rings the doorbell has its chance again.
                if armed == ARMED_MAX { 0 } else { armed }
            }
        }
    }

    /// Peers need not ring any more.
    pub(super) fn stay_awake(&mut self) {
        if std::mem::take(&mut self.armed) != 0 {
            self.links.bells().for_each(Bell::disarm);
        }
    }

    /// Makes ready for a sleep on [`Readiness`](super::readiness::Readiness), of whatever thread. Whether the task may sleep now;
    /// if not, it is to look once more, as what came before doorbells and completion queues were armed has rung none.
    pub(crate) fn prepare_sleep(&mut self) -> bool {
        if !self.links.watch_rest() {
            self.woken_by = WokenBy::Limit;
        }
        self.links.watch_room(&self.wanted);
        let is_quiet = self.links.arm();
        if self.woken_by != WokenBy::Doorbells {
            return is_quiet;
        }
        let readiness = self.links.readiness().clone();
        let Some(waker) = readiness.waker() else {
            self.woken_by = WokenBy::Limit;
            return is_quiet;
        };
        if !self.links.watch_connecting(waker) {
            self.woken_by = WokenBy::Limit;
        }
        let is_armed = self.links.bells().all(|bell| bell.is_armed_at(waker));
        if !is_armed {
            Bell::arm_at(self.links.bells(), waker);
        }
        let is_ready = self.group.ring_at(waker) && is_armed;
        self.armed = if is_ready { 1 } else { ARMED_MAX.min(self.armed + 1) };
        if self.armed == ARMED_MAX {
            self.woken_by = WokenBy::Limit;
        }
        is_quiet && (is_ready || self.armed == ARMED_MAX)
    }

    /// Whether [`Readiness`](super::readiness::Readiness) wakes the blocked task of the last turn.
    pub(crate) fn is_woken(&self) -> bool {
        self.links.has_sockets() && (self.look() != Look::Load || self.woken_by == WokenBy::Doorbells)
    }
}
