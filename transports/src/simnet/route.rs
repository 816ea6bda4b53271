//! What lies between two processes: how fast it is, and whether anything gets through.
//!
//! Invariant: there is one route for each pair of processes that ever had to do with each other, and it knows
//! every port between the two. Absent: what travels.

use std::collections::BTreeSet;
use std::time::Duration;

use super::port::PortId;
use super::random::{Random, mix};
use super::{Node, Pace};

#[derive(Debug)]
pub(super) struct Route {
    pub(super) pace: Pace,
    pub(super) is_cut: bool,
    /// By direction: data connections deliver nothing.
    pub(super) blackholes: [bool; 2],
    /// By direction: when the last byte handed over has left.
    free_at: [u64; 2],
    pub(super) ports: BTreeSet<PortId>,
}

/// Which way along the route of the pair: 0 from the smaller node to the greater.
pub(super) fn direction(from: Node, to: Node) -> usize {
    usize::from(from > to)
}

pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Route {
    /// The route of this pair with the pace that the seed gives it.
    pub(super) fn new(seed: u64, (low, high): (Node, Node)) -> Self {
        let mut random = Random::new(seed ^ mix(u64::from(low.0) << 32 | u64::from(high.0)));
        let latency = 5_000 + random.below(195_001);
        let pace = Pace {
            latency: Duration::from_nanos(latency),
            jitter: Duration::from_nanos(random.below(latency)),
            bytes_per_second: 1_000_000_000 << random.below(5),
        };
        Self { pace, is_cut: false, blackholes: [false; 2], free_at: [0; 2], ports: BTreeSet::new() }
    }

    /// Nanoseconds that something without bytes takes.
    pub(super) fn delay(&self, random: &mut Random) -> u64 {
        let jitter = random.below(nanoseconds(self.pace.jitter).saturating_add(1));
        nanoseconds(self.pace.latency).saturating_add(jitter)
    }

    /// When `bytes` that are handed over at `now` arrive.
    pub(super) fn arrival(&mut self, direction: usize, now: u64, bytes: usize, random: &mut Random) -> u64 {
        let transmission = match self.pace.bytes_per_second {
            0 => 0,
            rate => u64::try_from(bytes as u128 * 1_000_000_000 / u128::from(rate)).unwrap_or(u64::MAX),
        };
        let free_at = self.free_at[direction].max(now).saturating_add(transmission);
        self.free_at[direction] = free_at;
        free_at.saturating_add(self.delay(random))
    }

    /// Forgets what was about to be transmitted, or what a slower pace would have taken.
    pub(super) fn is_idle_again(&mut self) {
        self.free_at = [0; 2];
    }
}
