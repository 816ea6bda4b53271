//! What the wires between ranks carry, measured by the ranks themselves over the connections that their calls use.
//!
//! Pairs of ranks meet in [rounds](topology::rounds) in which no rank and no host's wire is in two pairs. A pair measures the latency of
//! short messages, then long ones there, back and both ways at once, all as medians. In the end every rank has the
//! measurements of all, and makes the same graph of them.
//!
//! Invariant: data are random and not zero, and every byte is compared; what one rank measures or fails at, all ranks get. Times are
//! bounded: a pair has its share of the time that was asked for, and every call has the deadline of the whole. Absent: what measurements are used
//! for (a file, `CONSORT_TOPOLOGY`).

mod pair;
mod ports;

use std::time::{Duration, Instant};

pub use ports::MeasuredPort;

use consort_algorithms::topology::{self, MeasuredPair, Topology};

use crate::communicator::Communicator;
use crate::planner::Machine;
use consort_settings::options::TransportChoice;
use consort_types::Rank;
use consort_types::error::{Error, Result};

/// How ranks probe their wires; the same on all ranks.
///
/// ```
/// use std::time::Duration;
/// use consort::probe::Options;
/// let options = Options::default().budget(Duration::from_secs(5));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Options {
    budget: Duration,
    deadline: Option<Duration>,
    seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options { budget: Duration::from_secs(20), deadline: None, seed: 1 }
    }
}

impl Options {
    /// The time that all pairs together should take (20 s). Slow wires and many pairs take longer: each pair measures at least
    /// three times in each direction.
    pub fn budget(mut self, budget: Duration) -> Self {
        self.budget = budget;
        self
    }

    /// The time after which probing fails on all ranks (default 30 s and ten times the budget, or the communicator's own where that is
    /// shorter).
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// The seed of the data that are sent.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }
}

impl Options {
    /// The time after which probing fails on a communicator whose calls fail after `timeout`.
    fn lasts(&self, timeout: Duration) -> Duration {
        let usual = || Duration::from_secs(30).saturating_add(self.budget.saturating_mul(10)).min(timeout);
        self.deadline.unwrap_or_else(usual).min(LASTS_MAX)
    }
}

/// What the ranks of a communicator found between each other; the same on all of them.
#[derive(Clone, PartialEq, Debug)]
pub struct Probe {
    /// The host of each rank, counted in the order in which they come.
    pub host_of: Vec<u32>,
    /// What each pair measured, sorted.
    pub pairs: Vec<MeasuredPair>,
    /// Pairs of different hosts that others of their hosts stand for, as there was no time for all.
    pub left_out: usize,
    /// How long it took on rank 0, in seconds.
    pub seconds: f64,
    /// The ports of RDMA of each host, by the host's first rank; empty where the ranks use none.
    pub ports: Vec<MeasuredPort>,
    /// What carried the messages.
    transport: TransportChoice,
}

impl Probe {
    /// The graph that explains the measurements: what `CONSORT_TOPOLOGY` takes as a file.
    pub fn topology(&self) -> Topology {
        let hosts = self.host_of.iter().max().map_or(1, |last| last + 1);
        let ranks = self.host_of.len();
        // Names of graphs with sockets or RDMA between hosts begin like those of their profiles.
        let name = match (hosts, self.transport) {
            (_, TransportChoice::Verbs) => format!("rdma:{hosts}-hosts-{ranks}-ranks-measured"),
            (1, transport) if !transport.is_by_messages() => format!("host:{ranks}-measured"),
            _ => format!("tcp:{hosts}-hosts-{ranks}-ranks-measured"),
        };
        topology::measured(name, &self.host_of, &self.pairs)
    }
}

/// A deadline that is later than any job's end, and before that of the clock.
const LASTS_MAX: Duration = Duration::from_secs(1 << 31);
/// The shortest and the longest share of a measurement.
const SHARE_MIN: Duration = Duration::from_millis(2);
const SHARE_MAX: Duration = Duration::from_millis(150);
/// Measurements of a pair: latency, there, back, both ways, and as much again for finding lengths and for what is between.
const MEASUREMENTS: u32 = 8;
/// Pairs of two hosts that are measured where there is no time for all.
const FEW: usize = 4;
/// Words of a pair's result.
const WORDS: usize = 6;

impl Communicator {
    /// Probes the wires between all ranks; all ranks call it, and make no other call meanwhile.
    ///
    /// ```
    /// use std::time::Duration;
    /// use consort::{Communicator, probe};
    ///
    /// let world = Communicator::local(2)?;
    /// std::thread::scope(|threads| {
    ///     for comm in &world {
    ///         threads.spawn(move || {
    ///             let options = probe::Options::default().budget(Duration::from_millis(50));
    ///             let probe = comm.probe(&options).expect("both probe");
    ///             assert_eq!(probe.pairs.len(), 1);
    ///             assert_eq!(probe.topology().ranks(), 2);
    ///         });
    ///     }
    /// });
    /// # consort::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// As every collective: [`Error::PeerLost`] with the rank that died, [`Error::Timeout`] with the one that does not answer within the
    /// deadline; [`Error::Aborted`] where other bytes arrived than were sent, with the ranks.
    pub fn probe(&self, options: &Options) -> Result<Probe> {
        let begun = Instant::now();
        let host_of = Machine::hosts_of(self.core().group.infos());
        let all = topology::rounds(&host_of, usize::MAX);
        let share = |rounds: usize| options.budget / (MEASUREMENTS * (rounds.max(1)) as u32).max(1);
        let rounds = if share(all.len()) >= SHARE_MIN { all } else { topology::rounds(&host_of, FEW) };
        let until = begun + options.lasts(self.timeout());
        let clock = pair::Limits { share: share(rounds.len()).clamp(SHARE_MIN, SHARE_MAX), until };
        let mut found: Vec<MeasuredPair> = Vec::new();
        let mut data = pair::Data::new(options.seed, self.rank());
        for round in &rounds {
            clock.of(self).barrier()?;
            let mine = round.iter().find(|(one, other)| [*one, *other].contains(&self.rank()));
            found.extend(mine.map(|mine| pair::meet(self, &clock, &mut data, *mine)).transpose()?.flatten());
        }
        let most = leaders(&rounds, self.size());
        let (pairs, seconds) = self.spread(&clock, &found, most, begun)?;
        let ports = self.probe_ports(&clock, &host_of)?;
        let ranks = host_of.len();
        Ok(Probe {
            left_out: (ranks * (ranks - 1) / 2).saturating_sub(pairs.len()),
            host_of,
            pairs,
            ports,
            seconds,
            transport: self.core().settings.transport,
        })
    }

    /// The results of all ranks, and how long rank 0 took, on all ranks.
    fn spread(
        &self,
        clock: &pair::Limits,
        found: &[MeasuredPair],
        most: usize,
        begun: Instant,
    ) -> Result<(Vec<MeasuredPair>, f64)> {
        let mut mine: Vec<u64> = vec![begun.elapsed().as_nanos() as u64];
        for pair in found {
            let &MeasuredPair { one, other, latency_ns, there_bytes_s, back_bytes_s, both_bytes_s } = pair;
            mine.extend([one.into(), other.into(), latency_ns, there_bytes_s, back_bytes_s, both_bytes_s]);
        }
        // A pair of a rank with itself does not exist, so zeros are no result.
        mine.resize(1 + most * WORDS, 0);
        let mut all = vec![0u64; mine.len() * self.size() as usize];
        clock.of(self).all_gather(&mine, &mut all)?;
        let mut pairs: Vec<MeasuredPair> = Vec::new();
        for of_rank in all.chunks_exact(mine.len()) {
            for words in of_rank[1..].chunks_exact(WORDS).filter(|words| words[0] != words[1]) {
                let &[one, other, latency_ns, there_bytes_s, back_bytes_s, both_bytes_s] = words else {
                    continue;
                };
                let rank = |word: u64| Rank::try_from(word).ok().filter(|rank| *rank < self.size());
                let (Some(one), Some(other)) = (rank(one), rank(other)) else {
                    return Err(Error::internal(format!("probing found ranks {one} and {other}")));
                };
                pairs.push(MeasuredPair {
                    one,
                    other,
                    latency_ns,
                    there_bytes_s,
                    back_bytes_s,
                    both_bytes_s,
                });
            }
        }
        pairs.sort_unstable_by_key(|pair| (pair.one, pair.other));
        Ok((pairs, all[0] as f64 * 1e-9))
    }
}

/// The most pairs that have one rank as their lower one, which keeps the results.
fn leaders(rounds: &[Vec<(u32, u32)>], size: u32) -> usize {
    let mut counts = vec![0usize; size as usize];
    rounds.iter().flatten().for_each(|(one, _)| counts[*one as usize] += 1);
    counts.into_iter().max().unwrap_or(0)
}

#[cfg(test)]
mod tests;
