//! Two ranks that measure what is between them.
//!
//! ```text
//! lower rank (leads)                        higher rank (follows)
//!   ping ►                                    ◄ pong            until the share is used; a zero ends it
//!   order: which way, how many bytes ►        ◄ ready
//!   data ►          and, or                   ◄ data
//!                                             ◄ word that it has them (where data came this way)
//!   order: over ►
//! ```
//!
//! Invariant: only the leader reads clocks, so both ends agree on how often anything is sent. Times are those of the leader, less the shortest
//! round trip; what a wire lets through at once after a pause is used up before its rate is measured.

use std::time::{Duration, Instant};

use consort_algorithms::topology::MeasuredPair;

use crate::Rank;
use crate::communicator::{Communicator, WithTimeout};
use consort_types::error::Result;

/// The first and the longest length of the data.
const BYTES_FIRST: usize = 32 << 10;
const BYTES_MAX: usize = 8 << 20;
/// Samples of a rate and of the latency: at least and at most.
const SAMPLES_MIN: usize = 3;
const SAMPLES_MAX: usize = 41;
const PINGS_MIN: usize = 8;
const PINGS_MAX: usize = 400;
/// Pings before those that count: the first makes the connection.
const PINGS_BEFORE: usize = 4;
/// How many times its share a measurement may take before one sample is enough.
const OVERDUE: u32 = 8;
/// How often a measurement is made that something else seems to have disturbed.
const ATTEMPTS: usize = 3;
/// A median of round trips that is more than this many times the shortest was disturbed.
const DISTURBED: u32 = 3;

/// The time of a measurement and of all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) share: Duration,
    pub(super) until: Instant,
}

impl Limits {
    /// The communicator with what is left of the time for all.
    pub(super) fn of<'a>(&self, comm: &'a Communicator) -> WithTimeout<'a> {
        let left = self.until.saturating_duration_since(Instant::now());
        comm.with_timeout(left.max(Duration::from_millis(1)))
    }
}

/// What a rank sends, and room for what it receives, as long as any message was yet.
#[derive(Debug)]
pub(super) struct Data {
    seed: u64,
    own: u64,
    sent: Vec<u64>,
    received: Vec<u64>,
}

/// Random words that are never zero: splitmix64 of Steele, Lea and Flood (OOPSLA 2014), with the lowest bit set.
fn words(seed: u64) -> impl Iterator<Item = u64> {
    (1u64..).map(move |number| {
        let mut word = seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) | 1
    })
}

impl Data {
    pub(super) fn new(seed: u64, rank: Rank) -> Self {
        Data { seed, own: Self::of(seed, rank), sent: Vec::new(), received: Vec::new() }
    }

    fn of(seed: u64, rank: Rank) -> u64 {
        seed ^ (u64::from(rank) + 1).rotate_left(40)
    }

    /// Makes the data long enough, and what was received before unreadable.
    fn prepare(&mut self, bytes: usize) {
        let length = bytes / size_of::<u64>();
        if self.sent.len() < length {
            let sent = self.sent.len();
            self.sent.extend(words(self.own).skip(sent).take(length - sent));
            self.received.resize(length, 0);
        }
        self.received[..length].fill(0);
    }

    /// The first word that is not what `peer` sent.
    fn wrong(&self, bytes: usize, peer: Rank) -> Option<usize> {
        let received = &self.received[..bytes / size_of::<u64>()];
        received.iter().zip(words(Self::of(self.seed, peer))).position(|(word, expected)| *word != expected)
    }
}

/// Which way data go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    There,
    Back,
    Both,
}

impl Way {
    const ALL: [Way; 3] = [Way::There, Way::Back, Way::Both];

    /// As an order says it; 0 is that all is over.
    fn word(self) -> u64 {
        self as u64 + 1
    }

    fn of(word: u64) -> Option<Way> {
        Way::ALL.into_iter().find(|way| way.word() == word)
    }
}

/// One rank's end of a pair.
struct End<'a> {
    comm: &'a Communicator,
    limits: &'a Limits,
    data: &'a mut Data,
    peer: Rank,
}

/// Measures as one of two ranks; the lower one has the result.
///
/// # Errors
/// Those of messages.
pub(super) fn meet(
    comm: &Communicator,
    limits: &Limits,
    data: &mut Data,
    (one, other): (Rank, Rank),
) -> Result<Option<MeasuredPair>> {
    let leads = comm.rank() == one;
    let mut end = End { comm, limits, data, peer: if leads { other } else { one } };
    if !leads {
        return end.follow().map(|()| None);
    }
    let (latency, shortest) = end.latency()?;
    let mut rates = [0; 3];
    for (way, rate) in Way::ALL.into_iter().zip(&mut rates) {
        *rate = end.rate(way, shortest)?;
    }
    let [there_bytes_s, back_bytes_s, mut both_bytes_s] = rates;
    for _ in 1..ATTEMPTS {
        if is_undisturbed(there_bytes_s.min(back_bytes_s), both_bytes_s) {
            break;
        }
        both_bytes_s = both_bytes_s.max(end.rate(Way::Both, shortest)?);
    }
    end.order(&[0, 0])?;
    let latency_ns = (latency.as_nanos() as u64 / 2).max(1);
    Ok(Some(MeasuredPair { one, other, latency_ns, there_bytes_s, back_bytes_s, both_bytes_s }))
}

impl End<'_> {
    fn comm(&self) -> WithTimeout<'_> {
        self.limits.of(self.comm)
    }

    fn order(&self, words: &[u64; 2]) -> Result<()> {
        self.comm().send(words, self.peer)
    }

    /// The median time of a round trip, and the shortest. The least of some medians, where one is far from the shortest time: another program
    /// had the core.
    fn latency(&self) -> Result<(Duration, Duration)> {
        let (mut least, mut shortest) = (Duration::MAX, Duration::MAX);
        for _ in 0..ATTEMPTS {
            let times = self.ping()?;
            shortest = times.iter().copied().min().unwrap_or_default().min(shortest);
            least = median(times).min(least);
            if least <= shortest * DISTURBED {
                break;
            }
        }
        self.comm().send(&[0u64], self.peer)?;
        Ok((least, shortest))
    }

    /// Times of round trips.
    fn ping(&self) -> Result<Vec<Duration>> {
        let begun = Instant::now();
        let mut times = Vec::new();
        let mut sent = 0;
        while sent < PINGS_BEFORE + PINGS_MIN
            || begun.elapsed() < self.limits.share && sent < PINGS_BEFORE + PINGS_MAX
        {
            let at = Instant::now();
            self.comm().send(&[1u64], self.peer)?;
            self.comm().receive(&mut [0u64], self.peer)?;
            if sent >= PINGS_BEFORE {
                times.push(at.elapsed());
            }
            sent += 1;
        }
        Ok(times)
    }

    /// Bytes a second in one way, or in each of both. The length of messages is doubled until one takes a part of the share; the longest
    /// of all are repeated.
    fn rate(&mut self, way: Way, round_trip: Duration) -> Result<u64> {
        let begun = Instant::now();
        // So long that a round trip is a small part of it.
        let long = (self.limits.share / (SAMPLES_MIN as u32 + 1)).max(round_trip * 8);
        let mut bytes = BYTES_FIRST;
        let mut time = self.sample(way, bytes)?;
        while time < long && bytes < BYTES_MAX {
            bytes *= 2;
            time = self.sample(way, bytes)?;
        }
        let mut times = Vec::new();
        loop {
            times.push(self.sample(way, bytes)?);
            let took = begun.elapsed();
            let enough = times.len() >= SAMPLES_MIN && took >= self.limits.share;
            if enough || times.len() >= SAMPLES_MAX || took >= self.limits.share * OVERDUE {
                break;
            }
        }
        let time = median(times);
        let net = time.saturating_sub(round_trip).max(time / 2).max(Duration::from_nanos(1));
        Ok(((bytes as f64 / net.as_secs_f64()) as u64).max(1))
    }

    /// The leader's time for one message in a way.
    fn sample(&mut self, way: Way, bytes: usize) -> Result<Duration> {
        self.data.prepare(bytes);
        self.order(&[way.word(), bytes as u64])?;
        self.comm().receive(&mut [0u64], self.peer)?;
        let begun = Instant::now();
        if way == Way::Back {
            self.comm().send(&[1u64], self.peer)?;
        }
        self.transfer(way, bytes, true)?;
        if way != Way::Back {
            self.comm().receive(&mut [0u64], self.peer)?;
        }
        let time = begun.elapsed();
        self.check(way != Way::There, bytes)?;
        Ok(time)
    }

    fn follow(&mut self) -> Result<()> {
        let mut ping = [0u64];
        loop {
            self.comm().receive(&mut ping, self.peer)?;
            if ping == [0] {
                break;
            }
            self.comm().send(&ping, self.peer)?;
        }
        let mut order = [0u64; 2];
        loop {
            self.comm().receive(&mut order, self.peer)?;
            let Some(way) = Way::of(order[0]) else { return Ok(()) };
            let bytes = (order[1] as usize).min(BYTES_MAX);
            self.data.prepare(bytes);
            self.comm().send(&[1u64], self.peer)?;
            if way == Way::Back {
                self.comm().receive(&mut [0u64], self.peer)?;
            }
            self.transfer(way, bytes, false)?;
            if way != Way::Back {
                self.comm().send(&[1u64], self.peer)?;
            }
            self.check(way != Way::Back, bytes)?;
        }
    }

    fn transfer(&mut self, way: Way, bytes: usize, leads: bool) -> Result<()> {
        let (comm, length) = (self.limits.of(self.comm), bytes / size_of::<u64>());
        let (sent, received) = (&self.data.sent[..length], &mut self.data.received[..length]);
        match way {
            Way::Both => comm.exchange_into(sent, self.peer, received, self.peer),
            Way::There | Way::Back if (way == Way::There) == leads => comm.send(sent, self.peer),
            Way::There | Way::Back => comm.receive(received, self.peer),
        }
    }

    /// Other bytes than were sent end the communicator: what moves data wrongly must not be measured, or used.
    fn check(&self, has_received: bool, bytes: usize) -> Result<()> {
        let wrong = has_received.then(|| self.data.wrong(bytes, self.peer)).flatten();
        let Some(word) = wrong else { return Ok(()) };
        self.comm.abort(&format!(
            "rank {} received other bytes than rank {} sent while they probed their wires: of {bytes} bytes the first wrong ones are from {} on",
            self.comm.rank(),
            self.peer,
            word * size_of::<u64>()
        ));
        // The error of an abort is the same on all ranks.
        self.comm().barrier()
    }
}

/// Whether both directions at once have what the slower of them has alone, which most wires let through.
fn is_undisturbed(slower_bytes_s: u64, both_bytes_s: u64) -> bool {
    both_bytes_s >= slower_bytes_s / 10 * 9
}

/// The middle of some times, the lower of two.
fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len().saturating_sub(1) / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_are_random_never_zero_and_checked_to_the_last_word() {
        let mut data = Data::new(7, 3);
        data.prepare(4096);
        data.prepare(1024);
        data.prepare(8192);
        assert_eq!(data.sent, words(data.own).take(1024).collect::<Vec<u64>>());
        assert!(data.sent.iter().all(|word| *word != 0));
        let distinct: std::collections::BTreeSet<u64> = data.sent.iter().copied().collect();
        assert_eq!(distinct.len(), 1024);
        // What arrives is compared with what the peer sends, and zeros are never right.
        let mut peer = Data::new(7, 4);
        peer.prepare(8192);
        assert_eq!(data.wrong(8192, 4), Some(0));
        data.received.copy_from_slice(&peer.sent);
        assert_eq!(data.wrong(8192, 4), None);
        assert_eq!(data.wrong(8192, 3), Some(0));
        data.received[1023] ^= 1 << 63;
        assert_eq!(data.wrong(8192, 4), Some(1023));
        // What came before is not there any more.
        data.received.copy_from_slice(&peer.sent);
        data.prepare(4096);
        assert_eq!(data.wrong(4096, 4), Some(0));
    }

    #[test]
    fn orders_name_their_way() {
        assert!(Way::ALL.into_iter().all(|way| Way::of(way.word()) == Some(way)));
        assert_eq!((Way::of(0), Way::of(4)), (None, None));
    }
}
