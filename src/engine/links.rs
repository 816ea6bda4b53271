//! The data connections of one communicator, made when a plan first needs them.
//!
//! Invariant: a connection is made on both sides at the same operation, so neither side waits for a peer that
//! does not come along without being in an operation itself, with a deadline. Which transport carries it
//! follows from what the control link proved about the distance, the same on both sides.

use std::collections::HashMap;
use std::task::Poll;
use std::time::{Duration, Instant};

use consort_transports::{
    Capabilities, Connecting, Connection, CounterKind, Endpoint, Layout, PeerState, Shm, TransportError,
};

use super::bound::Broken;
use super::packets::letters::{self, Letters};
use super::routes::Routes;
use crate::Rank;
use crate::control::group::Group;
use crate::control::wire::Message;
use crate::error::{Error, Result};
use crate::planner::mailbox_bytes;
use crate::report::evidence::Want;

/// A peer and the channel to it.
pub(crate) type Key = (Rank, u16);

/// All connections of a communicator.
pub(crate) struct Links {
    index: HashMap<Key, usize>,
    slots: Vec<Slot>,
    routes: Box<dyn Routes>,
    /// Numbers of the links that move nothing unless asked to.
    messages: Vec<usize>,
    /// Short messages, by the other rank.
    letters: Vec<Option<Box<Letters>>>,
}

struct Slot {
    key: Key,
    state: State,
}

enum State {
    /// This side's half is made and its address sent; the peer's has not come.
    Waiting(Box<dyn Endpoint>),
    /// Both halves are there. With the time at which somebody first looked at how long that takes.
    Connecting(Box<dyn Connecting>, Option<Instant>),
    Up(Up),
    /// Being replaced, or it failed.
    Gone,
}

/// An established connection with what has travelled so far.
pub(crate) struct Up {
    pub(crate) connection: Box<dyn Connection>,
    /// Slots filled in the peer's mailbox since the beginning.
    pub(crate) filled: u64,
    /// Slots emptied in the own mailbox since the beginning.
    pub(crate) emptied: u64,
    /// The slot length of the last operation that filled, in bytes; another one must find the mailbox empty.
    pub(crate) filled_slot_bytes: usize,
    /// Scaled or finished bytes on their way through a link that only takes ready ones.
    pub(crate) bounce: Vec<u8>,
    pub(crate) closed: bool,
}

impl Links {
    pub(crate) fn new(routes: Box<dyn Routes>) -> Self {
        Links { index: HashMap::new(), slots: Vec::new(), routes, messages: Vec::new(), letters: Vec::new() }
    }

    /// The ways to other ranks.
    pub(crate) fn routes(&mut self) -> &mut dyn Routes {
        &mut *self.routes
    }

    /// As [`Routes::shm`].
    pub(crate) fn shm(&self) -> Option<&Shm> {
        self.routes.shm()
    }

    /// As [`Routes::is_mapped`].
    pub(crate) fn is_mapped(&self, group: &Group, rank: Rank) -> bool {
        self.routes.is_mapped(group, rank)
    }

    /// Closes all connections.
    pub(crate) fn close(&mut self) {
        self.index.clear();
        self.slots.clear();
        self.messages.clear();
        self.letters.clear();
    }

    /// Short messages to and from a rank, once their connection is up.
    #[inline]
    pub(crate) fn letters(&mut self, rank: Rank) -> Option<&mut Letters> {
        self.letters.get_mut(rank as usize)?.as_deref_mut()
    }

    /// Wakes whoever sleeps while it waits for a message.
    pub(crate) fn ring(&self) {
        self.letters.iter().flatten().for_each(|letters| letters.bell().ring());
    }

    /// Makes sure that there is at least half a connection to each; returns their numbers.
    pub(crate) fn request(&mut self, keys: &[Key], group: &Group) -> Result<Vec<usize>> {
        let mut numbers = Vec::with_capacity(keys.len());
        for key in keys {
            if let Some(number) = self.index.get(key) {
                numbers.push(*number);
                continue;
            }
            let transport = self.routes.transport(group, key.0)?;
            let endpoint = transport
                .endpoint(Layout::new(mailbox_bytes(key.1)).on(group.member.node()))
                .map_err(|error| link_error(group, key.0, error))?;
            let address = endpoint.address().clone();
            group.send(key.0, Message::Address { channel: key.1, address });
            self.index.insert(*key, self.slots.len());
            numbers.push(self.slots.len());
            self.slots.push(Slot { key: *key, state: State::Waiting(endpoint) });
        }
        Ok(numbers)
    }

    /// Goes on connecting. Ready when every one of `numbers` is up; otherwise a peer that is waited for.
    pub(crate) fn poll_up(
        &mut self,
        numbers: &[usize],
        group: &Group,
    ) -> std::result::Result<Poll<()>, Broken> {
        let mut all = true;
        for number in numbers {
            let slot = &mut self.slots[*number];
            let (rank, channel) = slot.key;
            if let State::Waiting(_) = slot.state
                && let Some(address) = group.take_address(rank, channel)
                && let State::Waiting(endpoint) = std::mem::replace(&mut slot.state, State::Gone)
            {
                let connecting = endpoint.connect(&address).map_err(|error| Broken { peer: rank, error })?;
                slot.state = State::Connecting(connecting, None);
            }
            if let State::Connecting(connecting, _) = &mut slot.state {
                match connecting.poll().map_err(|error| Broken { peer: rank, error })? {
                    Poll::Ready(connection) => {
                        if connection.remote().bytes != mailbox_bytes(channel) {
                            let what = "its mailbox has another size than agreed";
                            let error = TransportError::Protocol { transport: connection.transport(), what };
                            return Err(Broken { peer: rank, error });
                        }
                        if channel == letters::CHANNEL {
                            let what = "its mailbox for messages is not as long as agreed";
                            let transport = connection.transport();
                            let wrong = TransportError::Protocol { transport, what };
                            let letters = Letters::over(&*connection);
                            let letters = letters.ok_or(Broken { peer: rank, error: wrong })?;
                            let at = rank as usize;
                            self.letters.resize_with(self.letters.len().max(at + 1), || None);
                            self.letters[at] = Some(Box::new(letters));
                        }
                        if connection.capabilities().messages_only {
                            self.messages.push(*number);
                        }
                        slot.state = State::Up(Up {
                            connection,
                            filled: 0,
                            emptied: 0,
                            filled_slot_bytes: 0,
                            bounce: Vec::new(),
                            closed: false,
                        });
                    }
                    Poll::Pending => {}
                }
            }
            match slot.state {
                State::Up(_) => {}
                // The first attempt failed, and the communicator with it.
                State::Gone => {
                    return Err(Broken {
                        peer: rank,
                        error: TransportError::PeerClosed { transport: "data" },
                    });
                }
                _ => all = false,
            }
        }
        Ok(if all { Poll::Ready(()) } else { Poll::Pending })
    }

    /// The first of `numbers` that is not up, and what it waits for.
    pub(crate) fn missing(&self, numbers: &[usize]) -> Option<(Rank, Want)> {
        let slots = numbers.iter().map(|number| &self.slots[*number]);
        let want = |state: &State| match state {
            State::Waiting(_) => Some(Want::Link),
            State::Connecting(..) => Some(Want::Connection),
            State::Up(_) | State::Gone => None,
        };
        // Who has not even come is the better answer.
        let missing = slots.filter_map(|slot| Some((slot.key.0, want(&slot.state)?)));
        missing.min_by_key(|(_, want)| *want == Want::Connection)
    }

    /// A peer whose half has been there for longer than `limit` without the connection coming up.
    pub(crate) fn overdue(&mut self, numbers: &[usize], now: Instant, limit: Duration) -> Option<Rank> {
        numbers.iter().find_map(|number| match &mut self.slots[*number] {
            Slot { key, state: State::Connecting(_, since) } => {
                let since = *since.get_or_insert(now);
                (now.saturating_duration_since(since) >= limit).then_some(key.0)
            }
            _ => None,
        })
    }

    /// The rank at the other end, and the channel.
    pub(crate) fn key(&self, number: usize) -> Key {
        self.slots[number].key
    }

    /// The rank at the other end.
    pub(crate) fn peer(&self, number: usize) -> Rank {
        self.slots[number].key.0
    }

    /// An established connection.
    ///
    /// # Panics
    /// If it is not up; plans are bound to links that are.
    #[inline]
    pub(crate) fn up(&self, number: usize) -> &Up {
        match &self.slots[number].state {
            State::Up(up) => up,
            _ => unreachable!("a plan is bound to a link that is not up"),
        }
    }

    /// As [`Links::up`].
    #[inline]
    pub(crate) fn up_mut(&mut self, number: usize) -> &mut Up {
        match &mut self.slots[number].state {
            State::Up(up) => up,
            _ => unreachable!("a plan is bound to a link that is not up"),
        }
    }

    pub(crate) fn capabilities(&self, number: usize) -> Capabilities {
        self.up(number).connection.capabilities()
    }

    /// Whether some link needs [`Links::progress`] to move anything.
    pub(crate) fn needs_progress(&self) -> bool {
        !self.messages.is_empty()
    }

    /// Whether everything that was signalled is on its way, on links whose peers still listen.
    pub(crate) fn is_flushed(&self) -> bool {
        self.messages.iter().map(|number| self.up(*number)).all(|up| up.closed || up.connection.is_flushed())
    }

    /// Whether the peers have emptied every slot that was filled, on links where a close could lose one.
    pub(crate) fn is_emptied(&self) -> bool {
        let emptied = |up: &Up| up.connection.counter(CounterKind::Credit).value() >= up.filled;
        self.messages.iter().map(|number| self.up(*number)).all(|up| up.closed || emptied(up))
    }

    /// Moves what is under way on links that need it.
    pub(crate) fn progress(&mut self) -> std::result::Result<(), Broken> {
        for at in 0..self.messages.len() {
            let number = self.messages[at];
            let rank = self.slots[number].key.0;
            let up = self.up_mut(number);
            if up.closed {
                continue;
            }
            match up.connection.progress() {
                Ok(PeerState::Open) => {}
                Ok(PeerState::Closed) | Err(TransportError::PeerClosed { .. }) => up.closed = true,
                Err(error) => return Err(Broken { peer: rank, error }),
            }
        }
        Ok(())
    }

    /// Bytes of memory that the connections take here, apart from the peers'.
    pub(crate) fn memory_bytes(&self) -> usize {
        let bytes = |slot: &Slot| match &slot.state {
            State::Up(up) => up.connection.mailbox().len() + up.bounce.capacity(),
            _ => mailbox_bytes(slot.key.1),
        };
        self.slots.iter().map(bytes).sum()
    }

    /// Forgets all connections without closing anything that a parent process still uses.
    pub(crate) fn abandon(&mut self) {
        std::mem::forget(std::mem::take(&mut self.slots));
        self.routes.abandon();
    }
}

/// The counter's kind in a transport's words.
pub(crate) fn kind(role: consort_algorithms::plan::CounterRole) -> Option<CounterKind> {
    match role {
        consort_algorithms::plan::CounterRole::Ready => Some(CounterKind::Ready),
        consort_algorithms::plan::CounterRole::Credit => Some(CounterKind::Credit),
        consort_algorithms::plan::CounterRole::Flag(_) => None,
    }
}

pub(crate) fn link_error(group: &Group, rank: Rank, error: TransportError) -> Error {
    match error {
        TransportError::OutOfMemory { transport, needed_bytes, what, source } => Error::OutOfMemory {
            rank: group.rank,
            needed_bytes: needed_bytes as u64,
            what: format!("{what} of its {transport} connection to rank {rank}"),
            cause: source.to_string(),
        },
        error => Error::Link {
            from: group.rank,
            to: rank,
            transport: error.transport().into(),
            cause: error.to_string(),
        },
    }
}
