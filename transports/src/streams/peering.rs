//! The paths between two processes: which are open, and what becomes of one that breaks.
//!
//! ```text
//!   Closed ── Order::Dial ──► Dialling ── opened ──► Open, deaf ── the peer's fence ──► Open ── broken ──► Closed
//!                                          │ Order::Say(Fenced) on it                            │ Order::Close, then
//!                                          ▼ and of each path that is not open                   ▼ Order::Say on all others
//! ```
//!
//! A fence says that a side has closed its end of a path up to an epoch, or never opened it and never will, and what it has. It
//! travels on any open path, and first of all on the next epoch of its own, so no other wire is needed. It may be said again: it holds
//! for ever. A side that hears one closes as much, and says so in its turn.
//!
//! Invariant: a side says what it has only after it has closed its end, and sends again only after it has heard what the other
//! side has; so of a fragment two copies are never on the way. Nothing is sent on a path before the fence of its epochs before
//! was heard. An epoch up to which either side has closed is never opened. What this side has closed and another path may still be
//! needed to say is said on every path that opens. One side dials, always the same, and waits longer each time. Absent: how a path
//! is found broken, and what follows when none comes back: that is the caller's.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::{Arrived, FILLS_MAX, Fragment, Inbound, Outbound, Path, Ready, STREAM, StreamId};

/// How long after a path broke, or could not be opened, it is opened again: at first, and at most. Each attempt waits twice
/// as long as the one before. The longest wait is what is lost at most once a link is there again.
const RETRY_FIRST: Duration = Duration::from_millis(10);
const RETRY_LAST: Duration = Duration::from_millis(250);

/// One side has closed its end of a path, up to this epoch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fenced {
    pub(crate) path: Path,
    /// What that side has of each stream; of one that is not named it has nothing.
    pub(crate) arrived: Vec<(StreamId, Arrived)>,
}

impl Fenced {
    /// What a side says of the one stream of a connection: fills that are whole, and the bits of fragments of those behind them.
    pub(crate) fn read(path: Path, fills: u64, bitmaps: &[u8]) -> Self {
        let (words, _) = bitmaps.as_chunks();
        let fragments = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let arrived = Arrived { fills, fragments };
        let has_something = arrived != Arrived::default();
        Fenced { path, arrived: has_something.then_some((STREAM, arrived)).into_iter().collect() }
    }

    /// The same to be written: fills that are whole, and the bits.
    pub(crate) fn of_stream(&self) -> (u64, impl Iterator<Item = u8>) {
        let nothing = (0, &[][..]);
        let first = self.arrived.first();
        let (fills, bitmaps) = first.map_or(nothing, |(_, arrived)| (arrived.fills, &arrived.fragments[..]));
        (fills, bitmaps.iter().flat_map(|bitmap| bitmap.to_le_bytes()))
    }
}

/// What the peering wants done; in this order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// Close this end of the path, or give up opening it, so that nothing that is on the way can land, before anything else
    /// is done.
    Close(Path),
    /// Say this on that path, before anything else that is sent there.
    Say(Path, Fenced),
    /// Open the path; [`Peering::opened`] or [`Peering::not_opened`] follows.
    Dial(Path),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Closed,
    Dialling,
    Open,
}

#[derive(Debug)]
struct Way {
    /// The present epoch, or the last one; 0 before the first.
    epoch: u32,
    state: State,
    /// The last epoch that this side has closed, and the last that the peer says it has; 0 for none.
    closed: u32,
    closed_there: u32,
    /// When it is to be opened, on the side that dials.
    retry_at: Duration,
    wait: Duration,
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
    /// As many fills of the peer's are to be acknowledged soon.
    soon: u64,
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

    /// Whether the peer keeps something until it hears what has arrived.
    fn owes_soon(&self) -> bool {
        let said = self.said.map_or(0, |(word, _)| word.acknowledged);
        self.soon.min(self.inbound.acknowledged()) > said
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
        let way = |_| Way {
            epoch: 0,
            state: State::Closed,
            closed: 0,
            closed_there: 0,
            retry_at: Duration::ZERO,
            wait: RETRY_FIRST,
            breaks: 0,
        };
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
            if way.state == State::Closed && way.retry_at <= now {
                (way.state, way.epoch) = (State::Dialling, way.epoch + 1);
                self.orders.push_back(Order::Dial(Path { number: number as u8, epoch: way.epoch }));
            }
        }
        let closed = self.ways.iter().filter(|way| way.state == State::Closed);
        closed.map(|way| way.retry_at).min()
    }

    fn way(&mut self, path: Path) -> Option<&mut Way> {
        self.ways.get_mut(usize::from(path.number))
    }

    /// This side has begun to open a path before there was a peering; [`Peering::opened`] follows.
    pub(crate) fn dialled(&mut self, path: Path) {
        if let Some(way) = self.way(path) {
            (way.epoch, way.state) = (path.epoch, State::Dialling);
        }
    }

    /// Whether [`Peering::opened`] would take a path: one of an epoch that has passed, or is open already, it would not.
    pub(crate) fn expects(&self, path: Path) -> bool {
        self.ways.get(usize::from(path.number)).is_some_and(|way| match way.state {
            State::Dialling => way.epoch == path.epoch,
            State::Open | State::Closed => way.epoch < path.epoch,
        })
    }

    /// A path is there. Whether it is taken; if not, it is to be closed.
    pub(crate) fn opened(&mut self, path: Path, now: Duration) -> bool {
        if !self.expects(path) {
            return false;
        }
        let Some(way) = self.way(path) else { return false };
        if way.state == State::Open {
            // The other side has found the one before broken.
            let before = Path { epoch: way.epoch, ..path };
            self.broken(before, now);
        }
        if let Some(way) = self.way(path) {
            (way.epoch, way.state, way.wait) = (path.epoch, State::Open, RETRY_FIRST);
            way.closed = path.epoch - 1;
        }
        let closed = |(way, of): (&Way, Path)| (way.closed > 0).then_some(Path { epoch: way.closed, ..of });
        let own = self.paths().filter(|(_, of)| of.number == path.number).find_map(closed);
        let others = self.paths().filter(|(way, _)| way.state != State::Open).filter_map(closed);
        let fences: Vec<Path> = own.into_iter().chain(others).collect();
        for closed in fences {
            self.say(path, closed);
        }
        true
    }

    fn paths(&self) -> impl Iterator<Item = (&Way, Path)> {
        let path = |(number, way): (usize, _)| (number as u8, way);
        let ways = self.ways.iter().enumerate().map(path);
        ways.map(|(number, way): (u8, &Way)| (way, Path { number, epoch: way.epoch }))
    }

    /// A path that was to be opened could not be. The other side may have seen it open.
    pub(crate) fn not_opened(&mut self, path: Path, now: Duration) {
        if let Some(way) = self.way(path)
            && way.state == State::Dialling
            && way.epoch == path.epoch
        {
            way.state = State::Closed;
            way.retry_later(now);
            self.close_up_to(path);
        }
    }

    /// A path is of no use any more, as this side finds.
    pub(crate) fn broken(&mut self, path: Path, now: Duration) {
        let Some(way) = self.way(path) else { return };
        if way.state != State::Open || way.epoch != path.epoch {
            return;
        }
        way.state = State::Closed;
        way.breaks += 1;
        way.retry_later(now);
        self.orders.push_back(Order::Close(path));
        self.close_up_to(path);
    }

    /// This side has closed its end of a path up to an epoch, and says so on all paths that are open.
    fn close_up_to(&mut self, path: Path) {
        let Some(way) = self.way(path).filter(|way| way.closed < path.epoch) else { return };
        (way.closed, way.epoch) = (path.epoch, way.epoch.max(path.epoch));
        let open = self.paths().filter(|(way, _)| way.state == State::Open);
        let open: Vec<Path> = open.map(|(_, open)| open).collect();
        for on in open {
            self.say(on, path);
        }
    }

    fn say(&mut self, on: Path, closed: Path) {
        // The other side may not know a stream yet that has carried nothing.
        let arrived = self.streams.iter().map(|(id, stream)| (*id, stream.inbound.arrived()));
        let arrived = arrived.filter(|(_, arrived)| *arrived != Arrived::default()).collect();
        self.orders.push_back(Order::Say(on, Fenced { path: closed, arrived }));
    }

    /// The peer has closed its end of a path.
    ///
    /// # Errors
    /// What is wrong with what it says.
    pub(crate) fn fenced(&mut self, fenced: &Fenced, now: Duration) -> Result<(), &'static str> {
        let path = fenced.path;
        let dials = self.dials;
        let way = self.way(path).ok_or("it names a path that there is not")?;
        if dials && path.epoch > way.epoch {
            return Err("it closes a path that was never opened");
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
            let is_lost = |on: Path| on.number == path.number && on.epoch <= path.epoch;
            stream.said = stream.said.filter(|(_, on)| !is_lost(*on));
        }
        let Some(way) = self.way(path) else { return Ok(()) };
        way.closed_there = way.closed_there.max(path.epoch);
        let present = Path { epoch: way.epoch, ..path };
        match way.state {
            State::Open if way.epoch <= path.epoch => self.broken(present, now),
            State::Dialling if way.epoch <= path.epoch => {
                self.orders.push_back(Order::Close(present));
                self.not_opened(present, now);
            }
            _ => {}
        }
        self.close_up_to(path);
        Ok(())
    }

    /// Whether fragments may be sent on a path.
    pub(crate) fn is_open(&self, path: Path) -> bool {
        let way = self.ways.get(usize::from(path.number));
        let is_open = |way: &Way| way.state == State::Open && way.closed_there + 1 >= way.epoch;
        way.is_some_and(|way| is_open(way) && way.epoch == path.epoch)
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

    /// Whether a stream has fragments that are to be sent.
    pub(crate) fn has_more(&self, id: StreamId) -> bool {
        self.streams.get(&id).is_some_and(|stream| stream.outbound.next().is_some())
    }

    /// What a path that has room is to carry: streams take turns. [`Peering::sent`] follows where it took it.
    pub(crate) fn next(&self, path: Path) -> Option<(StreamId, Fragment)> {
        if !self.is_open(path) {
            return None;
        }
        let next = |(id, stream): (&StreamId, &Stream)| Some((*id, stream.outbound.next()?));
        let Some(last) = self.last else { return self.streams.iter().find_map(next) };
        let later = (std::ops::Bound::Excluded(last), std::ops::Bound::Unbounded);
        self.streams.range(later).find_map(next).or_else(|| self.streams.range(..=last).find_map(next))
    }

    /// A path has taken a fragment, and the stream's word with it. Where the peer has closed it meanwhile, that is to be sent again.
    pub(crate) fn sent(&mut self, id: StreamId, fragment: &Fragment, path: Path) {
        self.last = Some(id);
        if self.way(path).is_none_or(|way| way.closed_there >= path.epoch) {
            return;
        }
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

    /// The peer keeps something until it hears that as many of its fills have arrived.
    pub(crate) fn acknowledge_soon(&mut self, id: StreamId, fills: u64) {
        let stream = self.streams.entry(id).or_default();
        stream.soon = stream.soon.max(fills);
    }

    /// Whether fills of a stream have arrived that are to be acknowledged soon, and are not.
    pub(crate) fn owes_soon(&self, id: StreamId) -> bool {
        self.streams.get(&id).is_some_and(Stream::owes_soon)
    }

    /// Whether the peer has a stream's word: what was last said is all, and the path on which that was has delivered it.
    pub(crate) fn is_said(&self, id: StreamId, is_over: impl Fn(Path) -> bool) -> bool {
        let Some(stream) = self.streams.get(&id) else { return true };
        match stream.said {
            Some((word, path)) => word.credit == stream.credit && is_over(path),
            None => stream.credit.is_none(),
        }
    }

    /// The stream's word went out on a path.
    pub(crate) fn said(&mut self, id: StreamId, path: Path) {
        let is_lost = self.way(path).is_some_and(|way| way.closed_there >= path.epoch);
        if !is_lost && let Some(stream) = self.streams.get_mut(&id) {
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

impl Way {
    fn retry_later(&mut self, now: Duration) {
        (self.retry_at, self.wait) = (now + self.wait, (self.wait * 2).min(RETRY_LAST));
    }
}
