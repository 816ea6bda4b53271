//! How fast the wires to other hosts carry what this rank sends, and which of them have become slow.
//!
//! ```text
//! a long call begins ──► the system's counts, unless they are known ──► calls of its kind end ──► the counts again ──► part of a sample
//! ```
//!
//! A wire's rate depends on what else is under way there at the same time: other channels of a plan, other ranks of the host, several
//! peers that send to one. So calls of one kind are compared with each other only: the same collective of as many elements has the same plan
//! on all ranks, and so the same company. The rate is that of the time in which the wire was at work, as the system counts it: a rank that
//! comes late, or a peer that takes nothing, is no slow wire.
//!
//! Invariant: costs nothing on links whose bytes no system counts, and on others a call of the system for each link and long call,
//! [`READ_EVERY`] apart at least. Absent: the judgement of rates ([`pace`]), and where it is said ([`Group`]).

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
use pace::{Pace, Verdict};

/// Calls of fewer bytes are not looked at: their time is that of hops.
pub(crate) const LONG_BYTES: u64 = 1 << 20;
/// The least time between two readings in calls of one kind.
const READ_EVERY: Duration = Duration::from_millis(10);
/// The least time at work for a rate of its own in the histogram.
const COUNTED: Duration = Duration::from_millis(40);
/// Kinds of calls of a wire that are remembered: the last that were met.
const KINDS: usize = 8;
/// A way that carries less than this part of what the busiest carries is there for words about what comes in.
const MOST: u64 = 16;
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
    carried: Vec<((usize, u8), u64, Duration)>,
}

/// One way of a link.
struct Way {
    wire: Wire,
    channel: u16,
    /// Of which socket the counts are, and the counts.
    epoch: u32,
    bytes: u64,
    at_work: Duration,
    sent_again: u32,
    /// What sockets before it had carried, and sent again.
    before: (u64, u64),
    rates: Histogram,
    round_trips: Histogram,
    /// What is not yet in a histogram.
    uncounted: (u64, Duration),
    kinds: Vec<Kind>,
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
            let wire = Wire { peer, from: flow.from, to: flow.to };
            let key = (number, flow.way);
            let way = ways.entry(key).or_insert_with(|| Way::new(wire, channel, &flow));
            let (bytes, at_work) = way.advance(&flow);
            most = most.max(bytes);
            read.push((key, bytes, at_work));
        });
        for (key, bytes, at_work) in read.drain(..) {
            let Some(way) = ways.get_mut(&key) else { continue };
            let mark = mark.filter(|_| bytes >= most / MOST);
            if let Some((mark, verdict)) =
                mark.and_then(|mark| Some((mark, way.judge(mark, bytes, at_work, age)?)))
            {
                way.say(group, mark, verdict, |since| {
                    now.checked_sub(age.saturating_sub(since)).unwrap_or(now)
                });
            }
            way.forget(group, age);
        }
        self.carried = read;
    }

    /// What is known of them.
    pub(crate) fn records(&self) -> Vec<WireRecord> {
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
    fn new(wire: Wire, channel: u16, flow: &Flow) -> Self {
        Way {
            wire,
            channel,
            epoch: flow.epoch,
            bytes: flow.bytes,
            at_work: flow.at_work,
            sent_again: flow.sent_again,
            before: (0, 0),
            rates: Histogram::default(),
            round_trips: Histogram::default(),
            uncounted: (0, Duration::ZERO),
            kinds: Vec::new(),
        }
    }

    /// What it has carried since the last reading, and the time at work on that. Nothing where the socket is another one.
    fn advance(&mut self, flow: &Flow) -> (u64, Duration) {
        let is_same = self.epoch == flow.epoch;
        if !is_same {
            self.before.0 += self.bytes;
            self.before.1 += u64::from(self.sent_again);
        }
        let bytes = if is_same { flow.bytes.saturating_sub(self.bytes) } else { 0 };
        let at_work = if is_same { flow.at_work.saturating_sub(self.at_work) } else { Duration::ZERO };
        (self.epoch, self.bytes, self.at_work, self.sent_again) =
            (flow.epoch, flow.bytes, flow.at_work, flow.sent_again);
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
        (bytes, at_work)
    }

    fn judge(&mut self, mark: u64, bytes: u64, at_work: Duration, now: Duration) -> Option<Verdict> {
        if !self.kinds.iter().any(|kind| kind.mark == mark) {
            if self.kinds.len() == KINDS {
                let oldest = (0..KINDS).min_by_key(|at| self.kinds[*at].sampled);
                oldest.map(|at| self.kinds.swap_remove(at));
            }
            self.kinds.push(Kind { mark, pace: Pace::default(), sampled: now });
        }
        let kind = self.kinds.iter_mut().find(|kind| kind.mark == mark)?;
        kind.sampled = now;
        kind.pace.carried(bytes, at_work, now)
    }

    fn is_slow(&self) -> bool {
        self.kinds.iter().any(|kind| kind.pace.is_slow())
    }

    fn say(&self, group: &Group, mark: u64, verdict: Verdict, instant: impl Fn(Duration) -> Instant) {
        match verdict {
            Verdict::Slow { usual, now, since } => {
                group.wire_slowed(self.wire, usual as u64, now as u64, instant(since));
            }
            Verdict::StillSlow { now }
                if self
                    .kinds
                    .iter()
                    .find(|kind| kind.pace.is_slow())
                    .is_some_and(|kind| kind.mark == mark) =>
            {
                group.wire_still_slow(self.wire, now as u64);
            }
            Verdict::Recovered { now } if !self.is_slow() => group.wire_recovered(self.wire, now as u64),
            Verdict::StillSlow { .. } | Verdict::Recovered { .. } => {}
        }
    }

    /// Calls in which it was slow have not come for long.
    fn forget(&mut self, group: &Group, now: Duration) {
        if self.is_slow() {
            self.kinds.retain(|kind| !kind.pace.is_slow() || now.saturating_sub(kind.sampled) < STALE);
            if !self.is_slow() {
                group.wire_forgotten(self.wire);
            }
        }
    }

    fn record(&self) -> WireRecord {
        let Wire { peer, from, to } = self.wire;
        WireRecord {
            peer,
            channel: self.channel,
            from,
            to,
            bytes: self.before.0 + self.bytes,
            sent_again: self.before.1 + u64::from(self.sent_again),
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

/// What a wire from this rank to another has carried in calls of a mebibyte and more.
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
