//! Short collectives between ranks that share memory: every rank sends what the others need in messages that carry their
//! own flag, and folds what comes in the order of ranks.
//!
//! It is the direct exchange of the collective ([`builders::direct`](consort_algorithms::builders::direct()) and its
//! kin), read off the proved schedule (`eager::Moves`) and run without a plan: one line crosses between two cores each
//! way, and nothing else is waited for.
//!
//! Invariant: whether a communicator has a board is the same on all of its ranks: each says to all others whether it can
//! store to all others' memory, and there is one only if all can. What follows from the call (which calls take it, which
//! row) is the planner's choice, equal on all ranks. Absent: waiting.

mod exchange;
mod fast_path;
#[cfg(test)]
mod fuzz;
mod hops;
pub(crate) mod letters;
mod line;
mod long;
pub(crate) mod pieces;
mod round;
#[cfg(test)]
pub(crate) mod sides;
#[cfg(test)]
mod tests;
pub(crate) mod unmet;

use std::task::Poll;

use consort_memory::access_epoch::{self, AccessEpoch};
use consort_memory::{Bell, Counter, Inbox, Outbox, Row};
use consort_transports::{Address, Connection, CounterKind};

use super::links::{Key, Links, wrong_mailbox};
use super::real_io::Broken;
use super::trouble::Fault;
use crate::Rank;
use crate::eager::{COLLECTIVES_CHANNEL, PAYLOADS, ROWS, ROWS_BYTES, SLOTS};
use consort_control::membership::group::Group;
use consort_control::membership::wire::Message;
use consort_control::report::evidence::Want;
use consort_types::error::Result;

use pieces::Pieces;

pub(crate) use exchange::{Direct, Exchange, Leg};
pub(crate) use fast_path::AtOnce;
pub(crate) use line::Line;
pub(crate) use round::Round;
use unmet::Unmet;

/// The slot with which a rank forbids the peer to touch its memory. One suffices, as a rank forbids that once.
const FORBIDDING_BYTES: usize = Row::bytes(1, Row::LINE_PAYLOAD_BYTES);

/// The bytes of a mailbox: its rows, the slot that forbids, and its half of the pool.
pub(super) fn mailbox_bytes(ranks: u32) -> usize {
    ROWS_BYTES + FORBIDDING_BYTES + pieces::bytes(ranks)
}

/// The word of a rank that has no board: the name of no transport.
const NO_BOARD: &str = "none";

/// Another rank, as messages reach it.
struct Peer {
    out: [Outbox; ROWS],
    inboxes: [Inbox; ROWS],
    /// Longer messages.
    pieces: Pieces,
    /// The peer is through with all operations up to this one.
    through: u64,
    /// The counter with which the peer says so when it sends nothing.
    credit: Counter,
    /// The counter with which this rank says so.
    peer_credit: Counter,
    /// Messages taken since the peer last heard of this rank.
    unanswered: usize,
    /// The access epochs in which the peer touches this rank's memory, and this rank the peer's.
    epoch: AccessEpoch,
    bell: Bell,
}

/// The messages of a communicator, once all of its ranks have them.
pub(crate) struct Board {
    /// By rank; none for this one.
    peers: Vec<Option<Peer>>,
    /// Operations so far.
    operations: u64,
    unmet: Unmet,
}

/// A board, from when it is first wanted.
#[derive(Default)]
#[expect(clippy::large_enum_variant, reason = "a communicator has one, and looks at its board in each call")]
pub(crate) enum Packets {
    #[default]
    Unasked,
    /// Ranks tell each other whether they can store to all others' memory.
    Asking(Meeting),
    Up(Board),
    /// Some rank cannot store to some other's memory.
    Refused,
}

/// Ranks on their way to a board.
pub(crate) struct Meeting {
    /// The links to the others; empty where this rank cannot store to some other's memory.
    links: Vec<usize>,
    /// The word of each rank: where its half of the link is, or that it has none.
    said: Vec<Option<Address>>,
}

impl Packets {
    /// Goes on towards a board. Ready says whether there is one.
    pub(crate) fn poll(
        &mut self,
        group: &Group,
        links: &mut Links,
    ) -> std::result::Result<Poll<bool>, Fault> {
        loop {
            match self {
                Packets::Unasked => *self = Packets::Asking(Meeting::begin(group, links)?),
                Packets::Asking(meeting) => match meeting.poll(group, links)? {
                    Poll::Pending => return Ok(Poll::Pending),
                    Poll::Ready(None) => *self = Packets::Refused,
                    Poll::Ready(Some(board)) => *self = Packets::Up(board),
                },
                Packets::Up(_) => return Ok(Poll::Ready(true)),
                Packets::Refused => return Ok(Poll::Ready(false)),
            }
        }
    }

    /// The board, if there is one.
    #[inline]
    pub(crate) fn board(&mut self) -> Option<&mut Board> {
        match self {
            Packets::Up(board) => Some(board),
            _ => None,
        }
    }

    /// The board, for an operation that runs over it.
    ///
    /// # Panics
    /// If there is none; it is given back by an idle engine only.
    pub(crate) fn up(&mut self) -> &mut Board {
        self.board().unwrap_or_else(|| unreachable!("an operation in messages has a board"))
    }

    /// The first rank that the meeting waits for, and for what.
    pub(crate) fn missing(&self, links: &Links) -> Option<(Rank, Want)> {
        let Packets::Asking(Meeting { links: numbers, said }) = self else { return None };
        let unheard = said.iter().position(Option::is_none).map(|rank| (rank as Rank, Want::Link));
        unheard.or_else(|| links.missing(numbers))
    }

    /// The links on which the meeting waits.
    pub(crate) fn links(&self) -> &[usize] {
        match self {
            Packets::Asking(meeting) => &meeting.links,
            _ => &[],
        }
    }

    /// Bytes of the tables.
    pub(crate) fn memory_bytes(&self) -> usize {
        match self {
            Packets::Up(board) => board.peers.capacity() * size_of::<Option<Peer>>(),
            _ => 0,
        }
    }
}

impl Meeting {
    /// Makes this rank's halves and tells the others of them, or that there are none.
    fn begin(group: &Group, links: &mut Links) -> Result<Self> {
        let none = || Address { transport: NO_BOARD.into(), bytes: Vec::new() };
        let others = || (0..group.size()).filter(|rank| *rank != group.rank);
        let said = (0..group.size()).map(|rank| (rank == group.rank).then(none)).collect();
        if others().all(|rank| links.is_mapped(group, rank)) {
            let keys: Vec<Key> = others().map(|rank| (rank, COLLECTIVES_CHANNEL)).collect();
            return Ok(Meeting { links: links.request(&keys, group)?, said });
        }
        if group.member.is_sparse() {
            // Hosts are what ranks say of themselves: where one has a rank on another host, each has.
            let said = said.into_iter().map(|_| Some(none())).collect();
            return Ok(Meeting { links: Vec::new(), said });
        }
        let refusal = || Message::Address { channel: COLLECTIVES_CHANNEL, address: none() };
        others().for_each(|rank| group.send(rank, refusal()));
        Ok(Meeting { links: Vec::new(), said })
    }

    /// Ready with a board, or without one.
    fn poll(&mut self, group: &Group, links: &mut Links) -> std::result::Result<Poll<Option<Board>>, Broken> {
        for (rank, said) in (0..).zip(&mut self.said).filter(|(_, said)| said.is_none()) {
            *said = group.take_address(rank, COLLECTIVES_CHANNEL);
        }
        // No rank connects before all are known to: a rank would wait for one that has refused.
        if self.said.iter().any(Option::is_none) {
            return Ok(Poll::Pending);
        }
        let refuses = |number: &usize| {
            let said = &self.said[links.peer(*number) as usize];
            said.as_ref().is_none_or(|address| address.transport == NO_BOARD)
        };
        if self.links.is_empty() || self.links.iter().any(refuses) {
            links.forget(&self.links);
            return Ok(Poll::Ready(None));
        }
        for number in &self.links {
            if let Some(address) = &self.said[links.peer(*number) as usize] {
                links.connect(*number, address, group)?;
            }
        }
        if links.poll_up(&self.links, group)?.is_pending() {
            return Ok(Poll::Pending);
        }
        let mut peers: Vec<Option<Peer>> = self.said.iter().map(|_| None).collect();
        for number in &self.links {
            let peer = links.peer(*number);
            let connection = &*links.up(*number).connection;
            let over = Peer::over(peer, connection, group.size());
            peers[peer as usize] = Some(over.ok_or_else(|| wrong_mailbox(peer, connection))?);
        }
        Ok(Poll::Ready(Some(Board::new(peers))))
    }
}

/// The slots of all rows at the beginning of a connection's mailboxes, the peer's and the own ones; none where those are
/// shorter.
fn rows(connection: &dyn Connection) -> Option<([Outbox; ROWS], [Inbox; ROWS])> {
    let mut offset = 0;
    let mut both = Vec::with_capacity(ROWS);
    for (slots, payload_bytes) in SLOTS.into_iter().zip(PAYLOADS) {
        both.push(connection.rows(offset, slots, payload_bytes)?);
        offset += Row::bytes(slots, payload_bytes);
    }
    let side = |side: usize| std::array::from_fn::<Row, ROWS, _>(|row| both[row][side].clone());
    Some((side(1).map(Outbox::new), side(0).map(Inbox::new)))
}

/// Another rank.
///
/// # Panics
/// If it is this rank, or none.
#[inline(always)]
fn peer_of(peers: &mut [Option<Peer>], rank: Rank) -> &mut Peer {
    match peers.get_mut(rank as usize) {
        Some(Some(peer)) => peer,
        _ => unreachable!("a board has all peers"),
    }
}

impl Board {
    fn new(peers: Vec<Option<Peer>>) -> Self {
        Board { peers, operations: 0, unmet: Unmet::default() }
    }

    /// How many ranks there are.
    pub(crate) fn ranks(&self) -> u32 {
        self.peers.len() as u32
    }

    /// As [`Unmet::skips`].
    #[inline]
    pub(crate) fn skips_meeting(&mut self, shape: u64) -> bool {
        self.unmet.skips(shape)
    }

    /// As [`Unmet::met`].
    pub(crate) fn has_met(&mut self, shape: u64, in_vain: bool) {
        self.unmet.met(shape, in_vain);
    }

    /// What this rank sleeps by while it waits for another one.
    pub(crate) fn bell(&self, rank: Rank) -> Option<&Bell> {
        self.peers.get(rank as usize)?.as_ref().map(|peer| &peer.bell)
    }

    /// Wakes the ranks that sleep.
    #[inline]
    pub(crate) fn ring(&self) {
        self.peers.iter().flatten().for_each(|peer| peer.bell.ring());
    }

    /// Begins this rank's access epochs at all peers. Whether it may touch their memory: if not, its epochs are over.
    pub(crate) fn begin_access(&mut self) -> bool {
        self.peers.iter_mut().flatten().for_each(|peer| peer.epoch.begin());
        access_epoch::fence();
        let is_forbidden = self.peers.iter().flatten().any(|peer| peer.epoch.is_forbidden());
        if is_forbidden {
            self.end_access();
        }
        !is_forbidden
    }

    /// Whether a peer has forbidden to touch its memory: bytes that were read of it before may be wrong.
    pub(crate) fn is_forbidden(&self) -> bool {
        // The fence orders the reads of the peers' memory before the look.
        access_epoch::fence();
        self.peers.iter().flatten().any(|peer| peer.epoch.is_forbidden())
    }

    /// Ends this rank's access epochs: it touches no peer's memory any more.
    pub(crate) fn end_access(&mut self) {
        self.peers.iter_mut().flatten().for_each(|peer| peer.epoch.end());
    }

    /// From now on no rank may begin to write to this rank's memory.
    pub(crate) fn forbid(&mut self) {
        self.peers.iter_mut().flatten().for_each(|peer| peer.epoch.forbid());
        access_epoch::fence();
    }

    /// The ranks whose access epochs on this rank's memory are open.
    pub(crate) fn accessing(&self) -> impl Iterator<Item = Rank> + '_ {
        let of = |(rank, peer): (Rank, &Option<Peer>)| peer.as_ref()?.epoch.is_open().then_some(rank);
        (0..).zip(&self.peers).filter_map(of)
    }
}

impl Peer {
    /// Over an established connection; none where its mailboxes are not as long as agreed.
    fn over(peer: Rank, connection: &dyn Connection, ranks: u32) -> Option<Self> {
        let (out, inboxes) = rows(connection)?;
        let [own, theirs] = connection.rows(ROWS_BYTES, 1, Row::LINE_PAYLOAD_BYTES)?;
        let pieces = Pieces::over(peer, connection, ROWS_BYTES + FORBIDDING_BYTES, ranks)?;
        let there = connection.peer_counter(CounterKind::Ready)?.clone();
        let here = connection.counter(CounterKind::Ready).clone();
        Some(Peer {
            out,
            inboxes,
            pieces,
            through: 0,
            credit: connection.counter(CounterKind::Credit).clone(),
            peer_credit: connection.peer_counter(CounterKind::Credit)?.clone(),
            unanswered: 0,
            bell: connection.bell()?,
            epoch: AccessEpoch::new(here, there, Outbox::new(theirs), Inbox::new(own)),
        })
    }

    /// Whether the next message of a row has a slot.
    #[inline(always)]
    fn has_room(&mut self, row: usize) -> bool {
        self.out[row].has_room(self.through) || self.hears() && self.out[row].has_room(self.through)
    }

    /// Whether the peer is through with more than this rank knew.
    #[inline(never)]
    fn hears(&mut self) -> bool {
        let before = self.through;
        self.through = before.max(self.credit.value());
        self.through != before
    }

    /// The next message was emptied in `operation`.
    #[inline(always)]
    fn take(&mut self, row: usize, bytes: usize, operation: u64) {
        give_back(&mut self.inboxes[row], &self.pieces, row, bytes);
        self.through = self.through.max(operation - 1);
        self.unanswered += 1;
        // Well before it needs to know.
        if self.unanswered >= self.inboxes[row].slots() / 2 {
            self.unanswered = 0;
            self.peer_credit.raise(operation, 0);
        }
    }
}

/// The next message, of `bytes` bytes, was read. Lines beside the flag's are touched where the peer wants that of `pieces`: it
/// cannot time so few stores.
#[inline(always)]
fn give_back(inbox: &mut Inbox, pieces: &Pieces, row: usize, bytes: usize) {
    if row != 0 && pieces.touches() { inbox.take_touched(bytes) } else { inbox.take() }
}
