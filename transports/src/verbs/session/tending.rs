//! What is known of a session that its rank does not look at, and what is done for it.
//!
//! Invariant: what its rank would have heard wakes the rank, where it sleeps. Absent: whose thread does it (`connection`).

use super::super::line::Line;
use super::Session;
use super::lane::Lane;
use crate::PeerState;
use crate::streams::{Path, STREAM};

impl Session {
    /// Whether everything that was sent has arrived, also the end where it was to be said.
    pub(super) fn is_delivered(&mut self) -> bool {
        let is_over = is_over(&self.lanes);
        let outbound = self.inbox.peering.stream(STREAM).0;
        !self.deferred.is_due()
            && outbound.is_on(outbound.acknowledged(), is_over)
            && (!self.is_closing || self.end_on.is_some_and(is_over))
    }

    /// Whether it is to be looked after although its rank is in no call: something may have to be sent again.
    pub(super) fn needs_tending(&mut self) -> bool {
        self.wrong.is_none()
            && !self.lanes.iter().all(Lane::is_closed)
            && (!self.inbox.has_ended() || !self.sources.is_empty())
            && (!self.is_whole || !self.is_delivered() || !self.is_heard() || self.owes_soon())
    }

    /// Whether the last word of the other direction has arrived.
    fn is_heard(&self) -> bool {
        self.inbox.peering.is_said(STREAM, is_over(&self.lanes))
    }

    /// Looks after it while its rank is in no call, or sleeps: what was taken in wakes the rank then.
    pub(super) fn tend(&mut self) {
        let was_armed = self.is_armed;
        let before = self.heard();
        // An error is the next look's to find.
        let is_open = matches!(self.progress(), Ok(PeerState::Open));
        self.flush_credits();
        self.ask_devices();
        let has_news = !is_open || self.heard() != before;
        if !was_armed {
            self.has_news |= has_news;
        } else if has_news || !matches!(self.arm(), Ok(true)) {
            self.is_rung = self.bell.write(1).is_ok();
        }
    }

    /// A word that changes with all that a rank may sleep for: what has come, sources that are free, and room.
    fn heard(&mut self) -> [u64; 5] {
        let reaped = self.lanes.iter().filter_map(Lane::line).map(Line::reaped).fold(0, u64::wrapping_add);
        let acknowledged = self.inbox.peering.stream(STREAM).0.acknowledged();
        let (ready, credit) = (self.inbox.ready.value(), self.inbox.credit.value());
        [ready, credit, self.sources.free(), acknowledged, reaped]
    }

    /// Has each lane's device say whether what was sent has arrived.
    pub(super) fn ask_devices(&mut self) {
        // A failure is the next look's to find.
        self.lanes.iter_mut().filter_map(Lane::open).for_each(|line| drop(line.ask()));
    }
}

/// Whether all that went by a path has arrived.
fn is_over(lanes: &[Lane]) -> impl Fn(Path) -> bool + Copy {
    |path| {
        let lane = &lanes[usize::from(path.number)];
        lane.is_open_as(path) && lane.line().is_some_and(Line::is_delivered)
    }
}
