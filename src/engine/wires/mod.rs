//! How fast the wires to other hosts carry what this rank sends, and which of them have become slow.
//!
//! ```text
//! a long call begins ──► the system's counts, unless they are known ──► calls of its kind end ──► the counts again ──► part of a sample
//! ```
//!
//! A wire's rate depends on what else is under way there at the same time: other channels of a plan, other ranks of the host, several
//! peers that send to one. So calls of one kind are compared with each other only: the same collective of as many elements has the same plan
//! on all ranks, and so the same company. The rate is that of the time in which something was on its way, as the system counts it: a rank
//! that comes late is no slow wire.
//!
//! Invariant: costs nothing on links whose bytes no system counts, and on others a call of the system for each socket and long call,
//! [`READ_EVERY`] apart at least; two for each call of another kind than the one before. Absent: the judgement of rates ([`pace`]), and where it is said ([`Group`]).

mod histogram;
mod pace;

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use consort_transports::Flow;

use super::links::Links;
use crate::Rank;
use consort_control::membership::group::{Group, Wire};
use histogram::Histogram;
use pace::{Load, Pace, Verdict};

/// Calls of fewer bytes are not looked at: their time is that of hops.
pub(crate) const LONG_BYTES: u64 = 1 << 20;
/// The least time between two readings in calls of one kind.
const READ_EVERY: Duration = Duration::from_millis(10);
/// The least time at work for a rate of its own in the histogram.
const COUNTED: Duration = Duration::from_millis(40);
/// Kinds of calls of a wire that are remembered: the last that were met.
const KINDS: usize = 32;
/// The mark of calls in which the peer's system mostly had no room is another one.
const HELD_UP: u64 = 0x6865_6c64;
/// A way that carries less than this part of what comes in on it, or of what the busiest carries, carries words.
const PART: u64 = 16;
/// What was slow in calls that have not come again for so long is not known to be slow any more.
const STALE: Duration = Duration::from_secs(60);

/// What has ended since the last reading.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Since {
    Nothing,
    /// Long calls of this kind.
    Calls(u64),
    /// Calls of several kinds, or others than long ones.
    #[default]
    Mixed,
}

/// The wires of a communicator.
#[derive(Default)]
pub(crate) struct Wires {
    ways: HashMap<(usize, u8), Way>,
    read_at: Option<Instant>,
    since: Since,
    /// From when times are counted.
    began: Option<Instant>,
    /// Of each way what the last reading brought: kept for its table.
    carried: Vec<((usize, u8), Reading)>,
}

/// One way of a link.
struct Way {
    wire: Wire,
    channel: u16,
    /// The counts.
    last: Flow,
    /// What sockets before it had carried, and sent again.
    before: (u64, u64),
    rates: Histogram,
    round_trips: Histogram,
    /// What is not yet in a histogram.
    uncounted: (u64, Duration),
    kinds: Vec<Kind>,
}

/// What has come since the last reading.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
struct Reading {
    load: Load,
    received: u64,
    /// Whether the peer's system had no room for a good part of the time.
    is_held_up: bool,
}

/// Calls of one kind on a way.
struct Kind {
    mark: u64,
    pace: Pace,
    sampled: Duration,
}

impl Wires {
    /// A long call of this kind begins, and no other is under way.
    pub(crate) fn begun(&mut self, mark: u64, links: &Links, group: &Group) {
        match self.since {
            Since::Calls(before) if before != mark => self.read(links, group, Some(before)),
            Since::Mixed => self.read(links, group, None),
            Since::Nothing | Since::Calls(_) => {}
        }
    }

    /// Calls have ended: long ones of this kind, or any others.
    pub(crate) fn ended(&mut self, mark: Option<u64>, links: &Links, group: &Group) {
        let Some(mark) = mark else {
            self.since = Since::Mixed;
            return;
        };
        let is_alike = self.since == Since::Nothing || self.since == Since::Calls(mark);
        self.since = if is_alike { Since::Calls(mark) } else { Since::Mixed };
        let now = group.clock().now();
        let is_due = self.read_at.is_none_or(|at| now.saturating_duration_since(at) >= READ_EVERY);
        if is_due {
            self.read(links, group, is_alike.then_some(mark));
        }
    }

    /// Reads all counts; what has come since the last time belongs to calls of this kind.
    fn read(&mut self, links: &Links, group: &Group, mark: Option<u64>) {
        let now = group.clock().now();
        let age = now.saturating_duration_since(*self.began.get_or_insert(now));
        (self.read_at, self.since) = (Some(now), Since::Nothing);
        let ways = &mut self.ways;
        let (mut read, mut most) = (std::mem::take(&mut self.carried), 0);
        links.flows(&mut |number, (peer, channel), flow| {
            let key = (number, flow.way);
            let way = ways.entry(key).or_insert_with(|| Way::new(peer, channel, flow));
            let reading = way.advance(flow);
            most = most.max(reading.load.bytes);
            read.push((key, reading));
        });
        let some_slow = group.has_slow_wires();
        for (key, reading) in read.drain(..) {
            let Some(way) = self.ways.get_mut(&key) else { continue };
            let said = mark.and_then(|mark| way.judge(mark, reading, most, age));
            way.rest(age);
            let (wire, is_slow) = (way.wire, way.is_slow());
            // Another channel may lead the same way.
            let others =
                || self.ways.iter().any(|(other, way)| *other != key && way.wire == wire && way.is_slow());
            match said {
                Some(Verdict::Slow { usual, now: rate, since }) => {
                    let since = now.checked_sub(age.saturating_sub(since)).unwrap_or(now);
                    group.wire_slowed(wire, usual as u64, rate as u64, since);
                }
                Some(Verdict::StillSlow { now: rate }) => group.wire_still_slow(wire, rate as u64),
                Some(Verdict::Recovered { now: rate }) if !is_slow && !others() => {
                    group.wire_recovered(wire, rate as u64);
                }
                // Not slow any more in calls that have not come for long.
                None | Some(Verdict::Recovered { .. }) if !is_slow && some_slow && !others() => {
                    group.wire_forgotten(wire);
                }
                None | Some(Verdict::Recovered { .. }) => {}
            }
        }
        self.carried = read;
    }

    /// What they have carried until now, and what is known of them.
    pub(crate) fn records(&mut self, links: &Links, group: &Group) -> Vec<WireRecord> {
        self.read(links, group, None);
        let mut numbers: Vec<_> = self.ways.keys().copied().collect();
        numbers.sort_unstable();
        numbers.iter().map(|number| self.ways[number].record()).collect()
    }

    /// The links are gone.
    pub(crate) fn clear(&mut self, group: &Group) {
        self.ways.values().filter(|way| way.is_slow()).for_each(|way| group.wire_forgotten(way.wire));
        *self = Wires::default();
    }
}

impl Way {
    fn new(peer: Rank, channel: u16, flow: Flow) -> Self {
        Way {
            wire: Wire { peer, from: flow.from, to: flow.to },
            channel,
            last: flow,
            before: (0, 0),
            rates: Histogram::default(),
            round_trips: Histogram::default(),
            uncounted: (0, Duration::ZERO),
            kinds: Vec::new(),
        }
    }

    /// What has come since the last reading. Nothing where the socket is another one.
    fn advance(&mut self, flow: Flow) -> Reading {
        let last = std::mem::replace(&mut self.last, flow);
        if last.epoch != flow.epoch {
            self.before.0 += last.bytes;
            self.before.1 += u64::from(last.sent_again);
            return Reading::default();
        }
        let bytes = flow.bytes.saturating_sub(last.bytes);
        let at_work = flow.at_work.saturating_sub(last.at_work);
        let held_up = flow.held_up.saturating_sub(last.held_up);
        if bytes > 0 {
            self.round_trips.add(flow.round_trip.as_micros() as u64);
        }
        self.uncounted.0 += bytes;
        self.uncounted.1 += at_work;
        let (sum, time) = self.uncounted;
        if time >= COUNTED {
            self.rates.add((sum as f64 / time.as_secs_f64()) as u64);
            self.uncounted = (0, Duration::ZERO);
        }
        Reading {
            load: Load { bytes, at_work, round_trip: flow.round_trip },
            received: flow.received.saturating_sub(last.received),
            // The system's ticks may show no time at all: that says nothing.
            is_held_up: !held_up.is_zero() && held_up * 2 >= at_work,
        }
    }

    /// `most` is what the busiest way has carried.
    fn judge(&mut self, mark: u64, reading: Reading, most: u64, now: Duration) -> Option<Verdict> {
        let Reading { load, received, is_held_up } = reading;
        let mark = if is_held_up { mark ^ HELD_UP } else { mark };
        let at = self.kinds.iter().position(|kind| kind.mark == mark);
        // What usually carries more than words carries little where it is slow.
        let is_words = load.bytes < most.max(received) / PART || load.bytes == 0;
        if is_words && !at.is_some_and(|at| self.kinds[at].pace.is_known()) {
            return None;
        }
        let at = at.unwrap_or_else(|| {
            if self.kinds.len() == KINDS {
                let least = |at: &usize| {
                    let kind = &self.kinds[*at];
                    (kind.pace.is_slow(), !kind.pace.is_fresh(), kind.sampled)
                };
                (0..KINDS).min_by_key(least).map(|least| self.kinds.swap_remove(least));
            }
            self.kinds.push(Kind { mark, pace: Pace::new(is_held_up), sampled: now });
            self.kinds.len() - 1
        });
        self.kinds[at].sampled = now;
        self.kinds[at].pace.carried(load, now)
    }

    fn is_slow(&self) -> bool {
        self.kinds.iter().any(|kind| kind.pace.is_slow())
    }

    /// Of calls that have not come for long it is not known any more that the wire is slow in them.
    fn rest(&mut self, now: Duration) {
        let is_stale = |kind: &&mut Kind| now.saturating_sub(kind.sampled) >= STALE;
        self.kinds.iter_mut().filter(is_stale).for_each(|kind| kind.pace.forget());
    }

    fn record(&self) -> WireRecord {
        let Wire { peer, from, to } = self.wire;
        WireRecord {
            peer,
            channel: self.channel,
            from,
            to,
            bytes: self.before.0 + self.last.bytes,
            sent_again: self.before.1 + u64::from(self.last.sent_again),
            rates: Quantiles::of(&self.rates),
            round_trips: Quantiles::of(&self.round_trips),
            is_slow: self.is_slow(),
        }
    }
}

/// How values of a wire are distributed: each is at most a fifth below what it stands for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Quantiles {
    /// How many values there are.
    pub count: u64,
    /// What a tenth of them is not above; 0 where there is none.
    pub p10: u64,
    /// The same of half of them.
    pub p50: u64,
    /// The same of nine tenths.
    pub p90: u64,
    /// The same of all but a hundredth.
    pub p99: u64,
}

impl Quantiles {
    fn of(histogram: &Histogram) -> Self {
        let [p10, p50, p90, p99] = [100, 500, 900, 990].map(|share| histogram.quantile(share));
        Quantiles { count: histogram.total(), p10, p50, p90, p99 }
    }
}

/// What a wire from this rank to another has carried: all bytes; rates and round trips are those of calls of a mebibyte and more.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct WireRecord {
    /// The other rank.
    pub peer: Rank,
    /// The channel of the plans that use it.
    pub channel: u16,
    /// The address at its end here.
    pub from: IpAddr,
    /// The address at its end there.
    pub to: IpAddr,
    /// Bytes that the other host has acknowledged, since the connection was made.
    pub bytes: u64,
    /// Packets that were sent again.
    pub sent_again: u64,
    /// Bytes a second, over some tens of milliseconds at work each.
    pub rates: Quantiles,
    /// Microseconds to the other host and back.
    pub round_trips: Quantiles,
    /// Whether it carries much less than usual.
    pub is_slow: bool,
}

impl fmt::Display for WireRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = |value: u64| value as f64 / 1e6;
        write!(
            f,
            "to rank {} ({} to {}, channel {}): {} bytes, {} packets again, {:.0} MB/s ({:.0} to {:.0}), round trip {} us (99 %: {}){}",
            self.peer,
            self.from,
            self.to,
            self.channel,
            self.bytes,
            self.sent_again,
            rate(self.rates.p50),
            rate(self.rates.p10),
            rate(self.rates.p90),
            self.round_trips.p50,
            self.round_trips.p99,
            if self.is_slow { ", slower than usual" } else { "" }
        )
    }
}

#[cfg(test)]
mod tests;
