//! One end of a data connection or of a stream, with what it has sent and what has arrived for it.
//!
//! Invariant: what was sent stays in the sender's port, in the order of sending, until it is delivered; so it can be
//! held back and sent again. Delivery times keep the contract (see [`Port::not_before`]), so whatever is delivered
//! can be taken as it comes. Absent: the network's clock.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use consort_memory::Mapping;
use nix::sys::eventfd::EventFd;

use super::Node;
use super::random::Random;
use crate::CounterKind;
use crate::arrival::{Place, Signal};

pub(super) type PortId = usize;

/// The widest windows; each port's own are drawn by the seed.
const DATA_BYTES_MAX_LOG: u64 = 18;
const DATA_BYTES_MIN_LOG: u64 = 14;
const DATA_MESSAGES: std::ops::RangeInclusive<u64> = 8..=64;
const STREAM_BYTES: usize = 64 << 10;
/// The longest piece of a put or of a write.
pub(super) const PIECE_BYTES_MAX: usize = 64 << 10;

/// What travels.
#[derive(Clone, Debug)]
pub(super) enum Item {
    /// This port wants to be connected, or answers that it is.
    Hello,
    Put {
        /// Among the puts of its side.
        write: u64,
        offset: usize,
        bytes: Vec<u8>,
        /// The original takes the room.
        is_copy: bool,
    },
    Signal {
        place: Place,
        signal: Signal,
    },
    /// A stream's, from `taken` on.
    Bytes {
        bytes: Vec<u8>,
        taken: usize,
    },
    /// Nothing follows.
    End {
        /// Whether the sender had become a connection.
        was_established: bool,
    },
}

impl Item {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Put { bytes, .. } => bytes.len(),
            Self::Bytes { bytes, taken } => bytes.len() - taken,
            Self::Hello | Self::Signal { .. } | Self::End { .. } => 0,
        }
    }

    /// For the trace.
    pub(super) fn code(&self) -> u64 {
        match self {
            Self::Hello => 1,
            Self::Put { is_copy: false, .. } => 2,
            Self::Put { is_copy: true, .. } => 3,
            Self::Signal { signal: Signal { kind: CounterKind::Ready, .. }, .. } => 4,
            Self::Signal { signal: Signal { kind: CounterKind::Credit, .. }, .. } => 5,
            Self::Bytes { .. } => 6,
            Self::End { .. } => 7,
        }
    }

    /// What it takes of the window.
    pub(super) fn room(&self) -> Room {
        match self {
            Self::Put { is_copy: true, .. } | Self::Hello | Self::End { .. } => Room::default(),
            _ => Room { bytes: self.len(), messages: 1 },
        }
    }
}

/// Part of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) bytes: usize,
    pub(super) messages: usize,
}

impl std::ops::AddAssign for Room {
    fn add_assign(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.messages += other.messages;
    }
}

impl std::ops::SubAssign for Room {
    fn sub_assign(&mut self, other: Self) {
        self.bytes -= other.bytes;
        self.messages -= other.messages;
    }
}

/// How it ended, as this side sees it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Ending {
    /// The peer ended its direction.
    Closed,
    /// The connection broke.
    Reset,
    /// Nothing was there.
    Refused,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Data,
    Stream,
}

#[derive(Debug)]
pub(super) struct Port {
    pub(super) kind: Kind,
    pub(super) node: Node,
    pub(super) peer_node: Node,
    /// The index of the route, once there is a peer.
    pub(super) route: Option<usize>,
    pub(super) direction: usize,
    pub(super) peer: Option<PortId>,
    /// Where a stream is to go, until it was taken there.
    pub(super) dialled: Option<SocketAddr>,
    pub(super) here: Option<SocketAddr>,

    /// It has a holder here.
    pub(super) is_held: bool,
    /// Its process is gone.
    pub(super) is_dead: bool,
    /// This side ended its direction.
    pub(super) is_closed: bool,
    /// This side reads no more.
    pub(super) is_mute: bool,
    /// What is sent gets lost.
    pub(super) is_lost: bool,
    /// It became a connection.
    pub(super) is_established: bool,
    /// A stream's peer is known to read no more.
    pub(super) is_deaf: bool,

    /// Who said hello.
    pub(super) callers: Vec<PortId>,
    pub(super) ended: Option<Ending>,
    pub(super) inbox: VecDeque<Item>,
    /// Its puts are, and nothing it sends keeps its order.
    pub(super) is_one_sided: bool,
    /// The mailbox, where the peer's puts land in it without this side.
    pub(super) region: Option<Arc<Mapping>>,
    /// For a sleeper.
    pub(super) bell: Option<Arc<EventFd>>,

    flight: VecDeque<Option<Item>>,
    /// The number of the first place in `flight`.
    first: u64,
    /// Events of earlier ones are void.
    pub(super) generation: u32,
    window: Room,
    /// Under way, or arrived and not taken.
    pub(super) used: Room,
    /// Taken by the peer; this side does not know it yet.
    pub(super) owed: Room,
    /// Its holder waits for room.
    pub(super) is_blocked: bool,

    /// Nothing is delivered before.
    floor: u64,
    /// The link below is there again.
    pub(super) down_until: u64,
    /// The latest delivery of a put since the last ready signal.
    puts_latest: u64,
    credits_latest: u64,
}

impl Port {
    pub(super) fn new(kind: Kind, node: Node, random: &mut Random) -> Self {
        let window = match kind {
            Kind::Data => {
                let log = DATA_BYTES_MIN_LOG + random.below(DATA_BYTES_MAX_LOG - DATA_BYTES_MIN_LOG + 1);
                let (least, most) = (*DATA_MESSAGES.start(), *DATA_MESSAGES.end());
                Room { bytes: 1 << log, messages: (least + random.below(most - least + 1)) as usize }
            }
            Kind::Stream => Room { bytes: STREAM_BYTES, messages: usize::MAX },
        };
        Self {
            kind,
            node,
            peer_node: node,
            route: None,
            direction: 0,
            peer: None,
            dialled: None,
            here: None,
            is_held: true,
            is_dead: false,
            is_closed: false,
            is_mute: false,
            is_lost: false,
            is_established: false,
            is_deaf: false,
            callers: Vec::new(),
            ended: None,
            inbox: VecDeque::new(),
            is_one_sided: false,
            region: None,
            bell: None,
            flight: VecDeque::new(),
            first: 0,
            generation: 0,
            window,
            used: Room::default(),
            owed: Room::default(),
            is_blocked: false,
            floor: 0,
            down_until: 0,
            puts_latest: 0,
            credits_latest: 0,
        }
    }

    /// Bytes that may be handed over now; None when not even a message may be.
    pub(super) fn room(&self) -> Option<usize> {
        (self.used.messages < self.window.messages).then(|| self.window.bytes.saturating_sub(self.used.bytes))
    }

    /// Whether what arrives can still be taken.
    pub(super) fn takes(&self) -> bool {
        self.is_held && !self.is_dead && !self.is_mute
    }

    /// Whether the peer that this port wants to be connected to has said hello.
    pub(super) fn has_heard(&self) -> bool {
        self.peer.is_some_and(|peer| self.callers.contains(&peer))
    }

    /// Keeps it until it is delivered; gives its number.
    pub(super) fn keep(&mut self, item: Item) -> u64 {
        self.flight.push_back(Some(item));
        self.first + self.flight.len() as u64 - 1
    }

    fn place(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.first)?).ok()
    }

    pub(super) fn item(&self, number: u64) -> Option<&Item> {
        self.flight.get(self.place(number)?)?.as_ref()
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<Item> {
        let place = self.place(number)?;
        let item = self.flight.get_mut(place)?.take();
        while let Some(None) = self.flight.front() {
            self.flight.pop_front();
            self.first += 1;
        }
        item
    }

    /// Numbers of what is under way, in the order of sending.
    pub(super) fn numbers(&self) -> Vec<u64> {
        let numbered = (self.first..).zip(&self.flight);
        numbered.filter(|(_, item)| item.is_some()).map(|(number, _)| number).collect()
    }

    pub(super) fn has_nothing_under_way(&self) -> bool {
        self.flight.is_empty()
    }

    /// Loses what is under way; gives how many.
    pub(super) fn lose(&mut self) -> usize {
        let lost = self.flight.iter().flatten().count();
        self.first += self.flight.len() as u64;
        self.flight.clear();
        lost
    }

    /// Forgets the times of earlier deliveries; nothing comes before the link is there again.
    pub(super) fn restart(&mut self, down_until: u64) {
        self.down_until = down_until;
        self.not_before_this(down_until);
    }

    fn not_before_this(&mut self, floor: u64) {
        (self.floor, self.puts_latest, self.credits_latest) = (floor, floor, floor);
    }

    /// The contract: the delivery time of the next item, given when the route could have it there. A ready signal
    /// comes after all puts before it and before all puts after it; credits keep their order; a stream's bytes
    /// keep theirs; the end comes last. Nothing else is ordered where puts are one-sided.
    pub(super) fn not_before(&mut self, number: u64, arrival: u64) -> u64 {
        let Some(item) = self.item(number) else { return arrival };
        match (self.kind, item) {
            (Kind::Data, Item::Put { .. } | Item::Signal { .. }) if self.is_one_sided => {
                let at = arrival.max(self.floor);
                self.puts_latest = self.puts_latest.max(at);
                at
            }
            (Kind::Data, Item::Put { .. }) => {
                let at = arrival.max(self.floor);
                self.puts_latest = self.puts_latest.max(at);
                at
            }
            (Kind::Data, Item::Signal { signal: Signal { kind: CounterKind::Credit, .. }, .. }) => {
                self.credits_latest = arrival.max(self.credits_latest);
                self.credits_latest
            }
            (Kind::Data, Item::Signal { signal: Signal { kind: CounterKind::Ready, .. }, .. }) => {
                self.floor = arrival.max(self.floor).max(self.puts_latest);
                self.puts_latest = self.floor;
                self.floor
            }
            _ => {
                let at = arrival.max(self.floor).max(self.puts_latest).max(self.credits_latest);
                self.not_before_this(at);
                at
            }
        }
    }
}
