//! The paths between two processes: which are open, and what becomes of one that breaks.
//!
//! ```text
//!              broken, or the peer's fence                 both have said what they have
//!   Open ────────────────────────────────────► Fencing ─────────────────────────────────► Closed ── dialled ──► Open
//!         Order::Close, then Order::Say(Fenced)           what is missing is sent again              one epoch on
//! ```
//!
//! Invariant: a side says what it has only after it has closed its end, and sends again only after it has heard what the other
//! side has; so of a fragment two copies are never on the way. One side dials, always the same, and waits longer each time.
//! Absent: how a path is found broken, and what follows when none comes back: the caller asks [`Peering::is_cut`].

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::{Arrived, FILLS_MAX, Fragment, Inbound, Outbound, Path, Ready, StreamId};

/// How long after a path broke, or could not be opened, it is opened again: at first, and at most. Each attempt waits twice
/// as long as the one before.
const RETRY_FIRST: Duration = Duration::from_millis(10);
const RETRY_LAST: Duration = Duration::from_secs(1);

/// One side has closed its end of a path. Travels on the control link, which keeps order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fenced {
    pub(crate) path: Path,
    /// What that side has of each stream; of one that is not named it has nothing.
    pub(crate) arrived: Vec<(StreamId, Arrived)>,
}

/// What the peering wants done; in this order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// Close this end of the path, so that nothing that is on the way can land, before anything else is done.
    Close(Path),
    /// Say this to the peer on the control link.
    Say(Fenced),
    /// Open the path; [`Peering::opened`] or [`Peering::not_opened`] follows.
    Dial(Path),
}

#[derive(Debug)]
enum State {
    Open,
    /// This end is closed, and the peer has not said what it has. Whether the next epoch has been opened meanwhile.
    Fencing {
        is_reopened: bool,
    },
    /// Both ends are closed. The number is of the epoch that ended, if any has been open.
    Closed,
    /// It is being opened.
    Dialling,
}

#[derive(Debug)]
struct Way {
    /// The present epoch, or the last one.
    epoch: u32,
    state: State,
    /// When it is to be opened, on the side that dials; and how long the next wait is.
    retry: (Duration, Duration),
    /// Times that it broke.
    breaks: u64,
}

/// What goes with a fragment or alone, about the other direction of its stream. All of it is cumulative: of two words the later
/// says all, and one that is said twice changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Word {
    /// Fills that have arrived.
    pub(crate) acknowledged: u64,
    /// Slots that were emptied, with the tag of the last.
    pub(crate) credit: Option<Ready>,
}

/// A stream's two directions.
#[derive(Debug, Default)]
struct Stream {
    outbound: Outbound,
    inbound: Inbound,
    /// What this side has emptied, and what it has said of that, where.
    credit: Option<Ready>,
    said: Option<(Word, Path)>,
    /// What the peer has emptied.
    credited: u64,
}

impl Stream {
    fn word(&self) -> Word {
        Word { acknowledged: self.inbound.acknowledged(), credit: self.credit }
    }

    /// Whether the peer may wait for a word.
    fn owes(&self) -> bool {
        let said = self.said.map(|(word, _)| word).unwrap_or_default();
        let unsaid = self.inbound.acknowledged() - said.acknowledged;
        self.credit != said.credit || unsaid >= FILLS_MAX as u64 / 2
    }
}

/// One process's side of all paths to another.
#[derive(Debug)]
pub(crate) struct Peering {
    dials: bool,
    ways: Vec<Way>,
    streams: BTreeMap<StreamId, Stream>,
    /// The stream that had the last turn.
    last: Option<StreamId>,
    orders: VecDeque<Order>,
    /// Fragments that were to be sent again.
    replayed: u64,
}

impl Peering {
    /// A peering of `paths` paths, all closed; `dials` on the side that opens them.
    pub(crate) fn new(paths: u8, dials: bool) -> Self {
        let way = |_| Way { epoch: 0, state: State::Closed, retry: (Duration::ZERO, RETRY_FIRST), breaks: 0 };
        Peering {
            dials,
            ways: (0..paths).map(way).collect(),
            streams: BTreeMap::new(),
            last: None,
            orders: VecDeque::new(),
            replayed: 0,
        }
    }

    /// What is to be done next.
    pub(crate) fn order(&mut self) -> Option<Order> {
        self.orders.pop_front()
    }

    /// Lets paths be opened for which it is time; when to ask again, if time alone changes anything.
    pub(crate) fn tick(&mut self, now: Duration) -> Option<Duration> {
        if !self.dials {
            return None;
        }
        for (number, way) in self.ways.iter_mut().enumerate() {
            if matches!(way.state, State::Closed) && way.retry.0 <= now {
                way.state = State::Dialling;
                self.orders.push_back(Order::Dial(Path { number: number as u8, epoch: way.epoch }));
            }
        }
        let closed = self.ways.iter().filter(|way| matches!(way.state, State::Closed));
        closed.map(|way| way.retry.0).min()
    }

    fn way(&mut self, path: Path) -> Option<&mut Way> {
        self.ways.get_mut(usize::from(path.number))
    }

    /// A path is there. Whether it is taken: one of an epoch that has passed is not, and is to be closed.
    pub(crate) fn opened(&mut self, path: Path) -> bool {
        let Some(way) = self.way(path) else { return false };
        match &mut way.state {
            State::Closed | State::Dialling if path.epoch == way.epoch => {
                way.state = State::Open;
                way.retry.1 = RETRY_FIRST;
                true
            }
            // The peer has heard this side's fence, and its own is still on the way.
            State::Fencing { is_reopened } if path.epoch == way.epoch.wrapping_add(1) => {
                *is_reopened = true;
                true
            }
            _ => false,
        }
    }

    /// A path that was to be opened could not be.
    pub(crate) fn not_opened(&mut self, path: Path, now: Duration) {
        if let Some(way) = self.way(path)
            && matches!(way.state, State::Dialling)
            && way.epoch == path.epoch
        {
            way.state = State::Closed;
            way.retry = (now + way.retry.1, (way.retry.1 * 2).min(RETRY_LAST));
        }
    }

    /// A path is of no use any more, as this side finds.
    pub(crate) fn broken(&mut self, path: Path) {
        let Some(way) = self.way(path) else { return };
        match &mut way.state {
            State::Open if way.epoch == path.epoch => {
                way.state = State::Fencing { is_reopened: false };
                way.breaks += 1;
                self.close(path);
            }
            // It broke before it was of any use. The dialling side will find so too, and say so.
            State::Fencing { is_reopened: is_reopened @ true } if path.epoch == way.epoch.wrapping_add(1) => {
                *is_reopened = false;
                self.orders.push_back(Order::Close(path));
            }
            _ => {}
        }
    }

    fn close(&mut self, path: Path) {
        self.orders.push_back(Order::Close(path));
        // The other side may not know a stream yet that has carried nothing.
        let arrived = self.streams.iter().map(|(id, stream)| (*id, stream.inbound.arrived()));
        let arrived = arrived.filter(|(_, arrived)| *arrived != Arrived::default()).collect();
        self.orders.push_back(Order::Say(Fenced { path, arrived }));
    }

    /// The peer has closed its end of a path.
    ///
    /// # Errors
    /// What is wrong with what it says.
    pub(crate) fn fenced(&mut self, fenced: &Fenced, now: Duration) -> Result<(), &'static str> {
        let path = fenced.path;
        let way = self.way(path).ok_or("it names a path that there is not")?;
        if way.epoch != path.epoch {
            return Err("it has closed a path that was not open");
        }
        match way.state {
            State::Open => self.broken(path),
            State::Fencing { .. } => {}
            // This side has not seen it open: the peer's end was there first, and broke.
            State::Closed | State::Dialling => {
                way.breaks += 1;
                self.close(path);
            }
        }
        let arrived: BTreeMap<StreamId, &Arrived> =
            fenced.arrived.iter().map(|(id, arrived)| (*id, arrived)).collect();
        if arrived.keys().any(|id| !self.streams.contains_key(id)) {
            return Err("it has something of a stream that there is not");
        }
        let nothing = Arrived::default();
        for (id, stream) in &mut self.streams {
            let again = stream.outbound.fenced(path, arrived.get(id).unwrap_or(&&nothing))?;
            self.replayed += again as u64;
            // A word that went that way may be lost.
            stream.said = stream.said.filter(|(_, on)| *on != path);
        }
        let Some(way) = self.way(path) else { return Ok(()) };
        way.state = match way.state {
            State::Fencing { is_reopened: true } => State::Open,
            _ => State::Closed,
        };
        way.epoch = path.epoch.wrapping_add(1);
        way.retry = (now + way.retry.1, (way.retry.1 * 2).min(RETRY_LAST));
        Ok(())
    }

    /// Whether no path is open.
    pub(crate) fn is_cut(&self) -> bool {
        !self.ways.iter().any(|way| matches!(way.state, State::Open))
    }

    /// Whether fragments may be sent on a path.
    pub(crate) fn is_open(&self, path: Path) -> bool {
        let way = self.ways.get(usize::from(path.number));
        way.is_some_and(|way| matches!(way.state, State::Open) && way.epoch == path.epoch)
    }

    /// Times that a path broke, and fragments that were sent again.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.ways.iter().map(|way| way.breaks).sum(), self.replayed)
    }

    /// Both sides of a stream, which begins where it has not been named before.
    pub(crate) fn stream(&mut self, id: StreamId) -> (&mut Outbound, &mut Inbound) {
        let Stream { outbound, inbound, .. } = self.streams.entry(id).or_default();
        (outbound, inbound)
    }

    /// What a path that has room is to carry: streams take turns. [`Peering::sent`] follows where it took it.
    pub(crate) fn next(&self, path: Path) -> Option<(StreamId, Fragment)> {
        if !self.is_open(path) {
            return None;
        }
        let after = |id: &StreamId| self.last.is_some_and(|last| *id > last);
        let (later, sooner): (Vec<_>, Vec<_>) = self.streams.iter().partition(|(id, _)| after(id));
        let mut turns = later.into_iter().chain(sooner);
        turns.find_map(|(id, stream)| Some((*id, stream.outbound.next()?)))
    }

    /// A path has taken a fragment, and the stream's word with it.
    pub(crate) fn sent(&mut self, id: StreamId, fragment: &Fragment, path: Path) {
        self.last = Some(id);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.outbound.sent(fragment, path);
        }
        self.said(id, path);
    }

    /// This side has emptied slots of a stream: `credit.value` of them since the beginning.
    pub(crate) fn credit(&mut self, id: StreamId, credit: Ready) {
        self.streams.entry(id).or_default().credit = Some(credit);
    }

    /// What a stream says of its other direction; it goes with each fragment.
    pub(crate) fn word(&self, id: StreamId) -> Word {
        self.streams.get(&id).map(Stream::word).unwrap_or_default()
    }

    /// A stream that has something to say and may have nothing to send.
    pub(crate) fn owing(&self) -> Option<StreamId> {
        self.streams.iter().find_map(|(id, stream)| stream.owes().then_some(*id))
    }

    /// The stream's word went out on a path.
    pub(crate) fn said(&mut self, id: StreamId, path: Path) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.said = Some((stream.word(), path));
        }
    }

    /// The peer's word about what this side sends on a stream: the credit, where it is new.
    ///
    /// # Errors
    /// It cannot be so.
    pub(crate) fn heard(&mut self, id: StreamId, word: Word) -> Result<Option<Ready>, &'static str> {
        let stream = self.streams.entry(id).or_default();
        stream.outbound.acknowledge(word.acknowledged)?;
        let new = word.credit.filter(|credit| credit.value > stream.credited);
        stream.credited = new.map_or(stream.credited, |credit| credit.value);
        Ok(new)
    }
}
