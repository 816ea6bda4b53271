//! A network in memory, in a time that is only counted: bytes arrive late and in pieces, connections are refused, hang,
//! break or fall silent.
//!
//! Invariant: all that happens follows from the seed. Absent: loss of bytes on a connection that lives.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use super::super::fuzz::Random;
use crate::bootstrap::{Dial, Stream};

/// Who holds which end of a cable.
const RANK: usize = 0;
const ROOT: usize = 1;
/// The grid of all delays, so that few instants differ.
const TICK: Duration = Duration::from_micros(500);

/// After this many bytes (of both directions) a connection breaks, or falls silent.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    pub(super) after: usize,
    pub(super) silent: bool,
}

/// What the network does to one rank's dials.
#[derive(Clone, Default)]
pub(super) struct Plan {
    /// How many are refused first.
    pub(super) refused: u32,
    /// How many after that are never answered.
    pub(super) hanging: u32,
    /// What happens to the connections after that; nothing to further ones.
    pub(super) cuts: VecDeque<Cut>,
}

enum Connect {
    /// Until then.
    Coming(Instant),
    Never,
    Made,
    Refused,
}

/// One direction of a cable.
struct Way {
    bytes: VecDeque<(Instant, u8)>,
    last: Instant,
    end: Option<Instant>,
    reset: Option<Instant>,
}

struct Cable {
    rank: usize,
    connect: Connect,
    /// By the end at which they arrive.
    ways: [Way; 2],
    gone: [bool; 2],
    cut: Option<Cut>,
    broken: bool,
    silent: bool,
    /// What each end has sent into the silence.
    swallowed: [usize; 2],
}

impl Cable {
    /// Whether this end notices that the other is gone.
    fn knows(&self, side: usize) -> bool {
        self.gone[1 - side] && !self.silent
    }
}

pub(super) struct State {
    pub(super) now: Instant,
    pub(super) noise: Random,
    pub(super) plans: Vec<Plan>,
    pub(super) listening: bool,
    /// The addresses at which nothing answers, and whether they refuse.
    pub(super) dead: Vec<(SocketAddr, bool)>,
    cables: Vec<Cable>,
    backlog: VecDeque<usize>,
    /// The most bytes of one read or write.
    grain: usize,
    /// The most bytes that were sent and not read.
    pub(super) window: usize,
    /// The longest delay, in ticks.
    delay: usize,
}

impl State {
    fn delay(&mut self) -> Duration {
        TICK * self.noise.below(self.delay + 1) as u32
    }

    fn later(&mut self) -> Instant {
        self.now + self.delay()
    }

    /// Whether poll would wake who holds this end.
    fn ready(&self, cable: usize, side: usize, reads: bool, writes: bool) -> bool {
        let now = self.now;
        let cable = &self.cables[cable];
        match cable.connect {
            Connect::Coming(_) | Connect::Never => return false,
            Connect::Refused => return true,
            Connect::Made => {}
        }
        let (mine, other) = (&cable.ways[side], &cable.ways[1 - side]);
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let readable = match mine.bytes.front() {
            Some((at, _)) => *at <= now,
            None => due(mine.end),
        };
        let writable = cable.knows(side) || other.bytes.len() + cable.swallowed[side] < self.window;
        cable.broken || due(mine.reset) || reads && readable || writes && writable
    }

    /// Closes one direction, or the whole if `whole`, as `side` does it.
    fn close(&mut self, at: usize, side: usize, whole: bool) {
        let later = self.later();
        let now = self.now;
        let cable = &mut self.cables[at];
        if whole {
            cable.gone[side] = true;
        }
        if cable.silent {
            return;
        }
        // As TCP does it: closing with bytes unread destroys what was sent.
        let unread = cable.ways[side].bytes.front().is_some_and(|(at, _)| *at <= now);
        let other = &mut cable.ways[1 - side];
        let later = later.max(other.last);
        if whole && unread {
            other.reset.get_or_insert(later);
        } else {
            other.end.get_or_insert(later);
        }
    }

    /// When something happens next by itself.
    fn next(&self) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        let mut offer = |at: Instant| {
            if at > self.now && next.is_none_or(|known| at < known) {
                next = Some(at);
            }
        };
        for cable in &self.cables {
            if let Connect::Coming(at) = cable.connect {
                offer(at);
            }
            for (way, _) in cable.ways.iter().zip(cable.gone).filter(|(_, gone)| !gone) {
                way.bytes.front().iter().for_each(|(at, _)| offer(*at));
                way.end.into_iter().chain(way.reset).for_each(&mut offer);
            }
        }
        next
    }
}

/// The network, held by all its users.
#[derive(Clone)]
pub(super) struct Network(Rc<RefCell<State>>);

impl Network {
    pub(super) fn new(seed: u64, plans: Vec<Plan>) -> Self {
        let mut noise = Random::new(seed ^ 0x006e_6574);
        let grain = [1, 7, 100, 10_000][noise.below(4)];
        let window = [64, 500, 100_000][noise.below(3)];
        let delay = [0, 6, 40][noise.below(3)];
        Network(Rc::new(RefCell::new(State {
            now: Instant::now(),
            noise,
            plans,
            listening: true,
            dead: Vec::new(),
            cables: Vec::new(),
            backlog: VecDeque::new(),
            grain,
            window,
            delay,
        })))
    }

    pub(super) fn now(&self) -> Instant {
        self.0.borrow().now
    }

    pub(super) fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.0.borrow_mut())
    }

    /// Goes on to the next instant at which something happens, at `wanted` at the latest. False if nothing ever does.
    pub(super) fn advance(&self, wanted: Option<Instant>) -> bool {
        let state = &mut *self.0.borrow_mut();
        let Some(next) = state.next().into_iter().chain(wanted).min() else { return false };
        assert!(next > state.now, "a process is late");
        state.now = next;
        for at in 0..state.cables.len() {
            let cable = &mut state.cables[at];
            if let Connect::Coming(due) = cable.connect
                && due <= next
            {
                cable.connect = if state.listening { Connect::Made } else { Connect::Refused };
                if state.listening {
                    state.backlog.push_back(at);
                }
            }
        }
        true
    }

    /// Whether a caller waits to be accepted.
    pub(super) fn knocked(&self) -> bool {
        !self.0.borrow().backlog.is_empty()
    }

    pub(super) fn accept(&self) -> Option<(Pipe, SocketAddr)> {
        let state = &mut *self.0.borrow_mut();
        let cable = state.backlog.pop_front()?;
        let peer = SocketAddr::new(host(state.cables[cable].rank), 50_000);
        Some((Pipe { network: self.clone(), cable, side: ROOT }, peer))
    }

    /// No caller is accepted any more, and one that was about to be is reset.
    pub(super) fn close_listeners(&self) {
        let state = &mut *self.0.borrow_mut();
        state.listening = false;
        for cable in state.backlog.drain(..) {
            state.cables[cable].broken = true;
        }
    }
}

/// The host of a rank.
pub(super) fn host(rank: usize) -> std::net::IpAddr {
    [10, 0, 1, rank as u8].into()
}

/// What each rank measures as its round trip, whatever the delays: none, one, two milliseconds and so on.
pub(super) fn measured(rank: usize) -> Duration {
    Duration::from_millis(rank as u64)
}

/// One end of a cable.
pub(super) struct Pipe {
    network: Network,
    cable: usize,
    side: usize,
}

impl Pipe {
    pub(super) fn ready(&self, reads: bool, writes: bool) -> bool {
        self.network.0.borrow().ready(self.cable, self.side, reads, writes)
    }
}

impl Read for Pipe {
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        let state = &mut *self.network.0.borrow_mut();
        let most = into.len().min(1 + state.noise.below(state.grain));
        let cable = &mut state.cables[self.cable];
        let way = &mut cable.ways[self.side];
        if cable.broken || way.reset.is_some_and(|at| at <= state.now) {
            return Err(ErrorKind::ConnectionReset.into());
        }
        let mut count = 0;
        while count < most && way.bytes.front().is_some_and(|(at, _)| *at <= state.now) {
            into[count] = way.bytes.pop_front().unwrap().1;
            count += 1;
        }
        let ended = way.bytes.is_empty() && way.end.is_some_and(|at| at <= state.now);
        if count == 0 && !ended { Err(ErrorKind::WouldBlock.into()) } else { Ok(count) }
    }
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let state = &mut *self.network.0.borrow_mut();
        let most = bytes.len().min(1 + state.noise.below(state.grain));
        let later = state.later();
        let (now, window) = (state.now, state.window);
        let cable = &mut state.cables[self.cable];
        if cable.broken || cable.knows(self.side) || cable.ways[self.side].reset.is_some_and(|at| at <= now) {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let way = &mut cable.ways[1 - self.side];
        let mut count = most.min(window.saturating_sub(way.bytes.len() + cable.swallowed[self.side]));
        if count == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        if cable.silent {
            cable.swallowed[self.side] += count;
            return Ok(count);
        }
        if let Some(cut) = &mut cable.cut {
            count = count.min(cut.after);
            cut.after -= count;
            if cut.after == 0 {
                cable.broken = !cut.silent;
                cable.silent = cut.silent;
                cable.cut = None;
            }
        }
        way.last = later.max(way.last);
        way.bytes.extend(bytes[..count].iter().map(|byte| (way.last, *byte)));
        Ok(count)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Stream for Pipe {
    fn shutdown_write(&self) -> Result<()> {
        self.network.0.borrow_mut().close(self.cable, self.side, false);
        Ok(())
    }

    fn shutdown_both(&self) {
        self.network.0.borrow_mut().close(self.cable, self.side, false);
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.network.0.borrow_mut().close(self.cable, self.side, true);
    }
}

/// One rank's way of dialling.
pub(super) struct Dialler {
    pub(super) network: Network,
    pub(super) rank: usize,
}

impl Dial for Dialler {
    type Stream = Pipe;

    fn dial(&mut self, address: SocketAddr) -> Result<Pipe> {
        let state = &mut *self.network.0.borrow_mut();
        let dead = state.dead.iter().find(|(dead, _)| *dead == address).map(|(_, refuses)| *refuses);
        let later = state.later() + TICK;
        let now = state.now;
        let plan = &mut state.plans[self.rank];
        let mut cut = None;
        let connect = match dead {
            Some(true) => return Err(ErrorKind::ConnectionRefused.into()),
            Some(false) => Connect::Never,
            None if plan.refused > 0 => {
                plan.refused -= 1;
                return Err(ErrorKind::ConnectionRefused.into());
            }
            None if plan.hanging > 0 => {
                plan.hanging -= 1;
                Connect::Never
            }
            None => {
                cut = plan.cuts.pop_front();
                Connect::Coming(later)
            }
        };
        let way = || Way { bytes: VecDeque::new(), last: now, end: None, reset: None };
        let (rank, ways, gone) = (self.rank, [way(), way()], [false; 2]);
        state.cables.push(Cable {
            rank,
            connect,
            ways,
            gone,
            cut,
            broken: false,
            silent: false,
            swallowed: [0; 2],
        });
        Ok(Pipe { network: self.network.clone(), cable: state.cables.len() - 1, side: RANK })
    }

    fn connected(&mut self, stream: &mut Pipe) -> Poll<Result<()>> {
        match self.network.0.borrow().cables[stream.cable].connect {
            Connect::Coming(_) | Connect::Never => Poll::Pending,
            Connect::Made => Poll::Ready(Ok(())),
            Connect::Refused => Poll::Ready(Err(Error::from(ErrorKind::ConnectionRefused))),
        }
    }

    fn round_trip(&self, stream: &Pipe) -> Option<Duration> {
        let made = matches!(self.network.0.borrow().cables[stream.cable].connect, Connect::Made);
        made.then(|| measured(self.rank))
    }
}
