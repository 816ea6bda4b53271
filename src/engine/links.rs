//! The data connections of one communicator, made when a plan first needs them.
//!
//! Invariant: a connection is made on both sides at the same operation, so neither side waits for a peer that
//! does not come along without being in an operation itself, with a deadline. Which transport carries it
//! follows from what the control link proved about the distance, the same on both sides.

mod lent;
mod mailbox;
mod sleeping;

use std::collections::HashMap;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use consort_algorithms::plan::CounterRole;
use consort_memory::{Bell, Pool, Waker};
use consort_transports::{
    Address, Capabilities, Connecting, Connection, CounterKind, Endpoint, Flow, Layout, MemoryLender,
    PeerState, TransportError, Way,
};

use super::packets::letters::Letters;
use super::readiness::Readiness;
use super::real_io::Broken;
use super::routes::Routes;
use crate::Rank;
use crate::eager;
use consort_control::membership::group::Group;
use consort_control::membership::wire::Message;
use consort_control::report::evidence::Want;
use consort_types::error::{Error, Result};
pub(crate) use mailbox::wrong_mailbox;
use mailbox::{Mailbox, pool};

/// A peer and the channel to it.
pub(crate) type Key = (Rank, u16);

/// A look at a link that moves nothing by itself is a call of the system. One look in `LOOKS_PER_SWEEP` of a rank that waits
/// goes to all such links, the other looks to the links that the rank waits for.
const LOOKS_PER_SWEEP: u32 = 8;
/// The same for a rank that waits for no such link: a look is then a load of shared memory.
const LOADS_PER_SWEEP: u32 = 64;

/// A connection that takes too long.
pub(crate) struct Overdue {
    pub(crate) peer: Rank,
    /// Which side was to call, and where, if one had to.
    pub(crate) waits_for: Option<String>,
}

/// A link that an operation waits for, and whether it has something to send there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wanted {
    pub(crate) link: usize,
    pub(crate) sends: bool,
}

/// What ends the sleep of a blocked operation; the later ones include the earlier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(crate) enum WokenBy {
    Sockets,
    Doorbells,
    /// Only the limit of the sleep wakes the rank, for some link that it waits for.
    #[default]
    Limit,
}

/// All connections of a communicator.
pub struct Links {
    index: HashMap<Key, usize>,
    table: Vec<DataLink>,
    routes: Box<dyn Routes>,
    /// Whether there are links, made or on their way, to ranks whose memory is not reached.
    has_sockets: bool,
    /// Whether some of them were looked at by calls of the system.
    has_calls: bool,
    /// Numbers of the links that move nothing unless asked to.
    messages: Vec<usize>,
    /// Those of them that the system did not watch when it was asked last, or that have no descriptor.
    unwatched: Vec<usize>,
    readiness: Arc<Readiness>,
    /// Whether the links that were polled last are not all up, or others have been asked for since.
    is_connecting: bool,
    /// Where a rank without sockets sleeps meanwhile: made for the first such sleep, and gone when they are up.
    doorstep: Option<Waker>,
    /// Looks of a rank that waits; see [`LOOKS_PER_SWEEP`].
    looks: u32,
    /// Whether nothing came in the last sleep, on the links that it was on.
    slept_through: bool,
    /// The doorbells of the links whose peers store, and the ranks there.
    bells: Vec<(Rank, Bell)>,
    /// Short messages, by the other rank.
    letters: Vec<Option<Box<Letters>>>,
    /// Whose links say that not everything is on its way.
    #[cfg(test)]
    held_back: Option<Rank>,
}

/// A link, whether its connection is up or on its way.
struct DataLink {
    key: Key,
    mailbox: Mailbox,
    /// This side's address, where the peer is to know it only when this side has begun to connect.
    withheld: Option<Address>,
    state: LinkState,
}

/// How far a link's connection is.
#[expect(clippy::large_enum_variant, reason = "nearly all links are up")]
enum LinkState {
    /// This side's half is made and its address sent; the peer's has not come.
    Waiting(Box<dyn Endpoint>),
    /// Both halves are there. The time is that of the first look at how long connecting takes.
    Connecting(Box<dyn Connecting>, Option<Instant>),
    Up(Up),
    /// The connection is being replaced, is forgotten, or failed.
    Gone,
}

/// An established connection with what has travelled so far.
pub(crate) struct Up {
    pub(crate) connection: Box<dyn Connection>,
    /// The slots of both sides, where they migrate.
    pub(crate) pool: Option<Pool>,
    /// Slots filled in the peer's mailbox since the beginning.
    pub(crate) filled: u64,
    /// Slots emptied in the own mailbox since the beginning.
    pub(crate) emptied: u64,
    /// The slot length of the last operation that filled the mailbox, in bytes. An operation with another length must find the
    /// mailbox empty.
    pub(crate) filled_slot_bytes: usize,
    /// Scaled or finished bytes on their way through a link that only takes ready ones.
    pub(crate) bounce: Vec<u8>,
    pub(crate) closed: bool,
    /// Those of the connection's descriptors whose room to send wakes the rank, as bits.
    watches_room: u64,
}

impl Up {
    fn new(connection: Box<dyn Connection>, mailbox: Mailbox) -> Self {
        Up {
            pool: pool(&*connection, mailbox),
            connection,
            filled: 0,
            emptied: 0,
            filled_slot_bytes: 0,
            bounce: Vec::new(),
            closed: false,
            watches_room: 0,
        }
    }
}

impl Links {
    pub(crate) fn new(routes: Box<dyn Routes>) -> Self {
        Links {
            index: HashMap::new(),
            table: Vec::new(),
            routes,
            has_sockets: false,
            has_calls: false,
            messages: Vec::new(),
            unwatched: Vec::new(),
            readiness: Arc::default(),
            is_connecting: false,
            doorstep: None,
            looks: 0,
            slept_through: false,
            bells: Vec::new(),
            letters: Vec::new(),
            #[cfg(test)]
            held_back: None,
        }
    }

    /// Links that are up.
    #[cfg(test)]
    pub(super) fn established(routes: Box<dyn Routes>, all: Vec<(Key, Box<dyn Connection>)>) -> Self {
        let mut links = Links::new(routes);
        for (number, (key, connection)) in all.into_iter().enumerate() {
            links.index.insert(key, number);
            let mailbox = Mailbox::Pool(crate::planner::Slots { count: 4, bytes: 512 });
            let state = LinkState::Up(Up::new(connection, mailbox));
            links.table.push(DataLink { key, mailbox, withheld: None, state });
        }
        links
    }

    #[cfg(test)]
    pub(crate) fn reroute(&mut self, routes: Box<dyn Routes>) {
        self.routes = routes;
    }

    /// As [`Routes::memory`].
    pub(crate) fn memory(&self) -> Option<&dyn MemoryLender> {
        self.routes.memory()
    }

    /// As [`Routes::is_mapped`].
    pub(crate) fn is_mapped(&self, group: &Group, rank: Rank) -> bool {
        self.routes.is_mapped(group, rank)
    }

    /// Closes all connections.
    pub fn close(&mut self) {
        let up = self.messages.iter().map(|number| &*self.up(*number).connection);
        self.readiness.forget_all(up);
        (self.has_sockets, self.has_calls) = (false, false);
        self.is_connecting = false;
        self.doorstep = None;
        self.index.clear();
        self.table.clear();
        self.messages.clear();
        self.unwatched.clear();
        self.bells.clear();
        self.letters.clear();
    }

    /// Short messages to and from a rank, once their connection is up.
    #[inline]
    pub(crate) fn letters(&mut self, rank: Rank) -> Option<&mut Letters> {
        self.letters.get_mut(rank as usize)?.as_deref_mut()
    }

    /// The doorbells of all links that have one.
    pub(crate) fn bells(&self) -> impl Iterator<Item = &Bell> {
        self.bells.iter().map(|(_, bell)| bell)
    }

    /// A doorbell of the links to a rank: of their messages, if they have exchanged any.
    pub(crate) fn bell(&self, rank: Rank) -> Option<&Bell> {
        let letters =
            self.letters.get(rank as usize).and_then(|letters| letters.as_deref()).map(Letters::bell);
        letters.or_else(|| self.bells.iter().find_map(|(peer, bell)| (*peer == rank).then_some(bell)))
    }

    /// Makes sure that there is at least half a connection to each; returns their numbers.
    pub(crate) fn request(&mut self, keys: &[Key], group: &Group) -> Result<Vec<usize>> {
        let mut numbers = Vec::with_capacity(keys.len());
        for key in keys {
            if let Some(number) = self.index.get(key) {
                numbers.push(*number);
                continue;
            }
            self.is_connecting = true;
            self.has_sockets |= !self.routes.is_mapped(group, key.0);
            let transport = self.routes.transport(group, key.0)?;
            // As the control link was made, which has come through.
            let calls = group.members[key.0 as usize] < group.member.rank;
            let mailbox = Mailbox::of(*key, group, &*self.routes);
            let in_turn = transport.gains_by_turns();
            let layout = Layout::new(mailbox.bytes()).on(group.member.node()).calling(calls).in_turn(in_turn);
            let endpoint =
                transport.endpoint(layout).map_err(|error| link_error(group.rank, key.0, error))?;
            let said = Some(endpoint.address().clone());
            let withheld = if in_turn && !calls { said } else { say(group, *key, said) };
            self.index.insert(*key, self.table.len());
            numbers.push(self.table.len());
            self.table.push(DataLink { key: *key, mailbox, withheld, state: LinkState::Waiting(endpoint) });
        }
        Ok(numbers)
    }

    /// This rank's half of each is of no use: the peers have none.
    pub(crate) fn forget(&mut self, numbers: &[usize]) {
        self.is_connecting = false;
        for number in numbers {
            self.index.remove(&self.table[*number].key);
            self.table[*number].state = LinkState::Gone;
        }
    }

    /// Begins to connect to a peer's half, once.
    pub(crate) fn connect(
        &mut self,
        number: usize,
        address: &Address,
        group: &Group,
    ) -> std::result::Result<(), Broken> {
        let link = &mut self.table[number];
        link.state = match std::mem::replace(&mut link.state, LinkState::Gone) {
            LinkState::Waiting(endpoint) => {
                let connecting = endpoint.connect(address);
                LinkState::Connecting(connecting.map_err(|error| Broken { peer: link.key.0, error })?, None)
            }
            state => state,
        };
        link.withheld = say(group, link.key, link.withheld.take());
        Ok(())
    }

    /// Goes on connecting. Ready when every one of `numbers` is up.
    pub(crate) fn poll_up(
        &mut self,
        numbers: &[usize],
        group: &Group,
    ) -> std::result::Result<Poll<()>, Broken> {
        let mut all = true;
        for number in numbers {
            let (rank, channel) = self.table[*number].key;
            if let LinkState::Waiting(_) = self.table[*number].state
                && let Some(address) = group.take_address(rank, channel)
            {
                self.connect(*number, &address, group)?;
            }
            let polled = match &mut self.table[*number].state {
                LinkState::Up(_) => continue,
                LinkState::Waiting(_) => Ok(Poll::Pending),
                LinkState::Connecting(connecting, _) => connecting.poll(),
                // The first attempt failed, and the communicator with it.
                LinkState::Gone => Err(TransportError::PeerClosed { transport: "data" }),
            };
            match polled.map_err(|error| Broken { peer: rank, error })? {
                Poll::Ready(connection) => self.establish(*number, connection)?,
                Poll::Pending => all = false,
            }
        }
        self.is_connecting = !all;
        if all && self.doorstep.take().is_some() {
            group.ring_nowhere();
        }
        Ok(if all { Poll::Ready(()) } else { Poll::Pending })
    }

    fn establish(
        &mut self,
        number: usize,
        connection: Box<dyn Connection>,
    ) -> std::result::Result<(), Broken> {
        let DataLink { key: (rank, channel), mailbox, .. } = self.table[number];
        if connection.remote().bytes != mailbox.bytes() {
            return Err(wrong_mailbox(rank, &*connection));
        }
        if channel == eager::MESSAGES_CHANNEL {
            let letters =
                Letters::over(rank, &*connection).ok_or_else(|| wrong_mailbox(rank, &*connection))?;
            let at = rank as usize;
            self.letters.resize_with(self.letters.len().max(at + 1), || None);
            self.letters[at] = Some(Box::new(letters));
        }
        self.bells.extend(connection.bell().map(|bell| (rank, bell)));
        if connection.capabilities().needs_progress {
            self.messages.push(number);
            self.has_calls |= connection.looks_by_calls();
            let is_watched = self.readiness.watch(&*connection);
            self.unwatched.extend((!is_watched).then_some(number));
        }
        self.table[number].state = LinkState::Up(Up::new(connection, mailbox));
        Ok(())
    }

    /// The first of `numbers` that is not up, and what it waits for.
    pub(crate) fn missing(&self, numbers: &[usize]) -> Option<(Rank, Want)> {
        let waited = numbers.iter().map(|number| &self.table[*number]);
        let want = |state: &LinkState| match state {
            LinkState::Waiting(_) => Some(Want::Link),
            LinkState::Connecting(..) => Some(Want::Connection),
            LinkState::Up(_) | LinkState::Gone => None,
        };
        // A rank that has not even come is the better answer.
        let missing = waited.filter_map(|link| Some((link.key.0, want(&link.state)?)));
        missing.min_by_key(|(_, want)| *want == Want::Connection)
    }

    /// A peer whose half has been there for longer than `limit` without the connection coming up.
    pub(crate) fn overdue(&mut self, numbers: &[usize], now: Instant, limit: Duration) -> Option<Overdue> {
        numbers.iter().find_map(|number| match &mut self.table[*number] {
            DataLink { key, state: LinkState::Connecting(connecting, since), .. } => {
                let since = *since.get_or_insert(now);
                let is_overdue = now.saturating_duration_since(since) >= limit;
                is_overdue.then(|| Overdue { peer: key.0, waits_for: connecting.waits_for() })
            }
            _ => None,
        })
    }

    /// The rank at the other end, and the channel.
    pub(crate) fn key(&self, number: usize) -> Key {
        self.table[number].key
    }

    /// The rank at the other end.
    pub(crate) fn peer(&self, number: usize) -> Rank {
        self.table[number].key.0
    }

    /// An established connection.
    ///
    /// # Panics
    /// If it is not up; plans are bound to links that are.
    #[inline]
    pub(crate) fn up(&self, number: usize) -> &Up {
        match &self.table[number].state {
            LinkState::Up(up) => up,
            _ => unreachable!("a plan is bound to a link that is not up"),
        }
    }

    /// As [`Links::up`].
    #[inline]
    pub(crate) fn up_mut(&mut self, number: usize) -> &mut Up {
        match &mut self.table[number].state {
            LinkState::Up(up) => up,
            _ => unreachable!("a plan is bound to a link that is not up"),
        }
    }

    pub(crate) fn capabilities(&self, number: usize) -> Capabilities {
        self.up(number).connection.capabilities()
    }

    /// Whether a rank that waits sleeps on [`Links::readiness`].
    pub(crate) fn has_sockets(&self) -> bool {
        self.has_sockets
    }

    /// Whether no link that moves nothing by itself is looked at by calls of the system.
    pub(crate) fn is_looked_at_by_loads(&self) -> bool {
        !self.is_connecting && !self.has_calls
    }

    /// Whether some link wakes no sleeper: it is looked at now and then.
    pub(crate) fn has_unwatched(&self) -> bool {
        !self.unwatched.is_empty()
    }

    /// Whether some link needs [`Links::progress`] to move anything.
    pub fn needs_progress(&self) -> bool {
        !self.messages.is_empty()
    }

    /// Whether the peers have emptied every slot that was filled, or their systems have all of it, on links where a close
    /// could lose one.
    pub fn is_emptied(&self) -> bool {
        let emptied = |up: &Up| up.connection.counter(CounterKind::Credit).value() >= up.filled;
        let is_safe = |up: &Up| up.closed || emptied(up) || up.connection.is_delivered();
        self.messages.iter().map(|number| self.up(*number)).all(is_safe)
    }

    /// Whether a link moves nothing unless asked to.
    pub(crate) fn is_asked(&self, number: usize) -> bool {
        matches!(&self.table[number].state, LinkState::Up(up) if up.connection.capabilities().needs_progress)
    }

    /// Moves what is under way on links that need it.
    pub fn progress(&mut self) -> std::result::Result<(), Broken> {
        (0..self.messages.len()).try_for_each(|at| self.progress_at(self.messages[at]))
    }

    fn progress_at(&mut self, number: usize) -> std::result::Result<(), Broken> {
        let DataLink { key: (peer, _), state: LinkState::Up(up), .. } = &mut self.table[number] else {
            return Ok(());
        };
        if up.closed {
            return Ok(());
        }
        match up.connection.progress() {
            Ok(PeerState::Open) => {}
            Ok(PeerState::Closed) | Err(TransportError::PeerClosed { .. }) => {
                up.closed = true;
                self.readiness.forget_all([&*up.connection]);
                return Ok(());
            }
            Err(error) => return Err(Broken { peer: *peer, error }),
        }
        let readiness = &self.readiness;
        if up.connection.has_new_wake(&mut |before| readiness.forget(before)) {
            // Only of what is readable.
            up.watches_room = 0;
            let is_watched = readiness.watch(&*up.connection);
            self.unwatched.extend((!is_watched).then_some(number));
        }
        Ok(())
    }

    /// Moves what is under way on the links that an operation waits for, and now and then on all: others wait for this
    /// rank. `all` moves all of them now. Whether a counter went up that the operation may wait for.
    pub(crate) fn progress_for(&mut self, wanted: &[Wanted], all: bool) -> std::result::Result<bool, Broken> {
        self.looks = self.looks.wrapping_add(1);
        let before = self.heard(wanted);
        let looks = if wanted.is_empty() { LOADS_PER_SWEEP } else { LOOKS_PER_SWEEP };
        // A peer that takes nothing may wait for this rank to take what it has sent.
        let sends = || wanted.iter().any(|wanted| wanted.sends);
        if std::mem::take(&mut self.slept_through) || all || self.looks.is_multiple_of(looks) || sends() {
            self.progress()?;
        } else {
            wanted.iter().try_for_each(|wanted| self.progress_at(wanted.link))?;
        }
        Ok(self.heard(wanted) != before)
    }

    /// A word that changes with what arrives on some links.
    fn heard(&self, wanted: &[Wanted]) -> u64 {
        let counters = |up: &Up| {
            let value = |kind| up.connection.counter(kind).value();
            value(CounterKind::Ready).wrapping_add(value(CounterKind::Credit))
        };
        wanted.iter().map(|wanted| counters(self.up(wanted.link))).fold(0, u64::wrapping_add)
    }

    /// Sends the deferred credits.
    pub(crate) fn flush_credits(&mut self) {
        for at in 0..self.messages.len() {
            self.up_mut(self.messages[at]).connection.flush_credits();
        }
    }

    /// What the ways of the links have carried, by number of the link and way.
    pub(crate) fn flows(&self, each: &mut dyn FnMut(usize, Key, Flow)) {
        for number in &self.messages {
            let DataLink { key, state: LinkState::Up(up), .. } = &self.table[*number] else { continue };
            if !up.closed {
                up.connection.flows(&mut |flow| each(*number, *key, flow));
            }
        }
    }

    /// The ways of the links, as [`Connection::ways`].
    pub(crate) fn ways(&self, lost_after: Duration, each: &mut dyn FnMut(Rank, Way)) {
        for number in &self.messages {
            let DataLink { key, state: LinkState::Up(up), .. } = &self.table[*number] else { continue };
            if !up.closed {
                up.connection.ways(lost_after, &mut |way| each(key.0, way));
            }
        }
    }

    /// What wakes a rank that waits here.
    pub(crate) fn readiness(&self) -> &Arc<Readiness> {
        &self.readiness
    }

    /// Bytes of memory that the connections take here, apart from the peers'.
    pub(crate) fn memory_bytes(&self) -> usize {
        let bytes = |link: &DataLink| match &link.state {
            LinkState::Up(up) => {
                up.connection.mailbox().len() + up.connection.kept_bytes() + up.bounce.capacity()
            }
            LinkState::Gone => 0,
            _ => link.mailbox.bytes(),
        };
        self.table.iter().map(bytes).sum()
    }

    /// Forgets all connections without closing anything that a parent process still uses.
    pub(crate) fn abandon(&mut self) {
        std::mem::forget(std::mem::take(&mut self.table));
        self.messages.clear();
        self.unwatched.clear();
        self.routes.abandon();
    }
}

/// Sends a link's address to the peer; nothing is withheld any more.
fn say(group: &Group, (rank, channel): Key, address: Option<Address>) -> Option<Address> {
    if let Some(address) = address {
        group.send(rank, Message::Address { channel, address });
    }
    None
}

/// The counter's kind in a transport's words.
pub(crate) fn kind(role: CounterRole) -> Option<CounterKind> {
    match role {
        CounterRole::Ready => Some(CounterKind::Ready),
        CounterRole::Credit => Some(CounterKind::Credit),
        CounterRole::Flag(_) => None,
    }
}

/// What a transport's error between two ranks is to a caller.
pub(crate) fn link_error(from: Rank, to: Rank, error: TransportError) -> Error {
    match error {
        TransportError::OutOfMemory { transport, needed_bytes, what, source } => Error::OutOfMemory {
            rank: from,
            needed_bytes: needed_bytes as u64,
            what: format!("{what} of its {transport} connection to rank {to}"),
            cause: source.to_string(),
        },
        error => Error::Link { from, to, transport: error.transport().into(), cause: error.to_string() },
    }
}
