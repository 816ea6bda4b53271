//! What the mailboxes of links are for, and how long they are.

use consort_memory::pool::Ends;
use consort_memory::{Pool, Row};
use consort_transports::{Connection, CounterKind, TransportError};

use super::Key;
use crate::Rank;
use crate::eager;
use crate::engine::packets::{self, letters};
use crate::engine::real_io::Broken;
use crate::engine::routes::Routes;
use crate::planner::Slots;
use consort_control::membership::group::Group;
use consort_settings::options::SLOTS;

/// What each side's mailbox on a channel is for.
#[derive(Clone, Copy)]
pub(super) enum Mailbox {
    /// Eager messages, which lay it out themselves.
    Eager { bytes: usize },
    /// The slots of plans, side by side.
    Slots(Slots),
    /// A half of a pool, where both sides store to both.
    Pool(Slots),
}

impl Mailbox {
    pub(super) fn of((rank, channel): Key, group: &Group, routes: &dyn Routes) -> Self {
        let is_mapped = routes.is_mapped(group, rank);
        match channel {
            eager::COLLECTIVES_CHANNEL => Mailbox::Eager { bytes: packets::mailbox_bytes(group.size()) },
            eager::MESSAGES_CHANNEL => Mailbox::Eager { bytes: letters::mailbox_bytes() },
            _ if is_mapped => Mailbox::Pool(Slots::of(channel, true)),
            _ => Mailbox::Slots(Slots::of(channel, false)),
        }
    }

    pub(super) fn bytes(self) -> usize {
        match self {
            Mailbox::Eager { bytes } => bytes,
            Mailbox::Slots(Slots { count, bytes }) => count * bytes,
            Mailbox::Pool(Slots { count, bytes }) => Row::bytes(count, bytes),
        }
    }
}

/// The pool that two mailboxes are, if the connection stores to both.
pub(super) fn pool(connection: &dyn Connection, mailbox: Mailbox) -> Option<Pool> {
    let Mailbox::Pool(Slots { count, bytes }) = mailbox else { return None };
    let ends = |kind| {
        let there = connection.peer_counter(kind)?.clone();
        Some(Ends { there, here: connection.counter(kind).clone() })
    };
    let (ready, credit) = (ends(CounterKind::Ready)?, ends(CounterKind::Credit)?);
    Some(Pool::new(ready, credit, connection.rows(0, count, bytes)?, SLOTS.into()))
}

/// A peer whose mailbox has not the size or the parts that both have agreed.
pub(crate) fn wrong_mailbox(peer: Rank, connection: &dyn Connection) -> Broken {
    let (transport, what) = (connection.transport(), "its mailbox has another size than agreed");
    Broken { peer, error: TransportError::Protocol { transport, what } }
}
