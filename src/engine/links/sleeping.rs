//! How a rank sleeps on its links, while they are made and when they are up, what ends a sleep, what is still to be sent, and links that could
//! not be watched at once.
//!
//! Invariant: what may have come before a sleep could be ended is looked at before that sleep. Absent: what is watched, which
//! is [`Readiness`](super::Readiness)'s and the doorbells'.

use std::time::Duration;

use consort_memory::Waker;

use super::{LinkState, Links, Wanted};
#[cfg(test)]
use crate::Rank;
use crate::engine::readiness;
use consort_control::membership::group::Group;

impl Links {
    /// Whether everything that was signalled is on its way, on links whose peers still listen.
    pub(crate) fn is_flushed(&self) -> bool {
        self.messages.iter().all(|number| self.is_flushed_at(*number))
    }

    /// The same of one link that is up.
    pub(crate) fn is_flushed_at(&self, number: usize) -> bool {
        let LinkState::Up(up) = &self.table[number].state else { return true };
        #[cfg(test)]
        if self.held_back == Some(self.peer(number)) {
            return false;
        }
        up.closed || !up.connection.capabilities().needs_progress || up.connection.is_flushed()
    }

    #[cfg(test)]
    pub(crate) fn hold_back(&mut self, peer: Option<Rank>) {
        self.held_back = peer;
    }

    /// Room to send wakes where something is to be sent.
    pub(crate) fn watch_room(&mut self, wanted: &[Wanted]) {
        let Links { messages, table, readiness, .. } = self;
        for number in messages {
            let LinkState::Up(up) = &mut table[*number].state else { continue };
            let is_wanted = || wanted.iter().any(|wanted| wanted.link == *number && wanted.sends);
            let may_send = !up.closed && (!up.connection.is_flushed() || is_wanted());
            let rooms = if may_send { readiness::rooms(&*up.connection) } else { 0 };
            if std::mem::replace(&mut up.watches_room, rooms) != rooms {
                readiness.watch_room(&*up.connection, rooms);
            }
        }
    }

    /// Sleeps until something can be done on some link or a doorbell at the waker rings, but not longer than `limit`.
    pub(crate) fn sleep(&mut self, limit: Duration) {
        self.slept_through = !self.readiness.sleep(limit);
    }

    /// Watches the connections that could not be watched when they were made. Whether all are watched now.
    pub(crate) fn watch_rest(&mut self) -> bool {
        let Links { unwatched, table, readiness, .. } = self;
        unwatched.retain(|number| match &mut table[*number].state {
            LinkState::Up(up) if !up.closed => {
                // Only of what is readable.
                up.watches_room = 0;
                !readiness.watch(&*up.connection)
            }
            _ => false,
        });
        unwatched.is_empty()
    }

    /// Whether links that were asked for are not all up.
    pub(crate) fn is_connecting(&self) -> bool {
        self.is_connecting
    }

    /// Sleeps until a link on its way can go on or another rank says something, where this rank has no sockets; not at all
    /// where something may have been said before. At most `limit`, and `naps` times as long where all that it may wait for
    /// ends the sleep. Whether something ended it.
    pub(crate) fn sleep_connecting(&mut self, group: &Group, limit: Duration, naps: u32) -> bool {
        let Links { table, doorstep, bells, .. } = self;
        let Some(waker) = doorstep.take().or_else(|| Waker::new().ok()) else {
            std::thread::sleep(limit);
            return false;
        };
        let has_looked = group.ring_at(&waker);
        // Doorbells of links that are up are not armed here.
        let mut all = bells.is_empty();
        let mut wakes = Vec::new();
        for link in table {
            if let LinkState::Connecting(connecting, _) = &mut link.state {
                all &= connecting.ring_at(waker.name());
                wakes.extend(connecting.wake());
            }
        }
        let is_woken =
            has_looked && readiness::sleep_at(&waker, &wakes, if all { limit * naps } else { limit });
        self.doorstep = Some(waker);
        is_woken
    }

    /// Connections on their way wake too. Whether all of them do.
    pub(crate) fn watch_connecting(&mut self, waker: &Waker) -> bool {
        let mut all = true;
        for link in &mut self.table {
            if let LinkState::Connecting(connecting, _) = &mut link.state {
                let wake = connecting.wake();
                let is_watched = wake.is_none_or(|(wake, sends)| self.readiness.watch_once(wake, sends));
                all &= connecting.ring_at(waker.name()) && is_watched;
            }
        }
        all
    }

    /// Connections that must be asked to end a sleep are. Whether nothing has come on any of them since it was looked at.
    pub(crate) fn arm(&mut self) -> bool {
        let Links { messages, table, .. } = self;
        messages.iter().fold(true, |is_quiet, number| match &mut table[*number].state {
            LinkState::Up(up) if !up.closed => up.connection.arm() && is_quiet,
            _ => is_quiet,
        })
    }
}
