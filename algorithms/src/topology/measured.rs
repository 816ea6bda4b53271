//! A graph of what ranks measured between each other, and the order in which pairs are measured.
//!
//! Invariant: pure; the same measurements give the same graph on every rank. What a pair measured is a bound of its path alone, so the
//! graph has as few shared wires as explain all pairs: one way out and one way in for each member of a level (the ranks of a
//! host, and the hosts), joined by a switch where the narrower of two ways explains every pair, and by a link for each pair
//! where it does not. Source of the idea: L. Luo et al., "Plink: Discovering and Exploiting Datacenter Network Locality for Efficient
//! Cloud-based Distributed Training", MLSys 2020. Deliberately absent: the measuring.

use std::collections::BTreeMap;

use super::profiles::HOST_COSTS;
use super::{Link, NodeId, NodeKind, Topology};

/// What one pair of ranks measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MeasuredPair {
    /// The lower rank.
    pub one: u32,
    /// The higher rank.
    pub other: u32,
    /// Nanoseconds from a short send to its receipt: half of a round trip.
    pub latency_ns: u64,
    /// Bytes a second from `one` to `other`.
    pub there_bytes_s: u64,
    /// Bytes a second from `other` to `one`.
    pub back_bytes_s: u64,
    /// Bytes a second in each direction, with both at once.
    pub both_bytes_s: u64,
}

/// Of a pair's slower direction, the part (in hundredths) below which both directions at once count as sharing one wire.
const SHARED_BELOW: u64 = 85;
/// Hundredths of the narrower way that a pair must have for a switch to explain it.
const EXPLAINED_FROM: u64 = 85;
/// The difference between a latency and the sum of two ways that counts as noise, and besides it a quarter of the latency.
const LATENCY_NOISE_NS: u64 = 2_000;

impl MeasuredPair {
    /// Bytes a second there and back, where schedules use both directions at once.
    fn rates(&self) -> (u64, u64) {
        let slower = self.there_bytes_s.min(self.back_bytes_s).max(1);
        let share =
            |rate: u64| match self.both_bytes_s.saturating_mul(100) < slower.saturating_mul(SHARED_BELOW) {
                true => (u128::from(rate) * u128::from(self.both_bytes_s) / u128::from(slower)) as u64,
                false => rate,
            };
        (share(self.there_bytes_s).max(1), share(self.back_bytes_s).max(1))
    }
}

/// The rounds in which all pairs of ranks are measured, by the host of each rank (counted from 0 without gaps). First those
/// of one host, then those between hosts. In a round no rank is in two pairs, and no host is in two pairs that leave it, so
/// that no pair measures its share of a wire that it has with another.
///
/// `per_hosts` is how many pairs of ranks stand for two hosts at most; where that is fewer than there are, the `i`-th of
/// one host meets the `i`-th of the other first.
///
/// Both levels are round-robin tournaments by the circle method.
pub fn rounds(host_of: &[u32], per_hosts: usize) -> Vec<Vec<(u32, u32)>> {
    let mut hosts: Vec<Vec<u32>> = Vec::new();
    for (host, rank) in host_of.iter().zip(0..) {
        hosts.resize(hosts.len().max(*host as usize + 1), Vec::new());
        hosts[*host as usize].push(rank);
    }
    let mut rounds: Vec<Vec<(u32, u32)>> = Vec::new();
    for ranks in &hosts {
        for (number, round) in tournament(ranks.len()).into_iter().enumerate() {
            rounds.resize(rounds.len().max(number + 1), Vec::new());
            rounds[number].extend(round.into_iter().map(|(one, other)| (ranks[one], ranks[other])));
        }
    }
    for round in tournament(hosts.len()) {
        let meetings: Vec<Vec<(u32, u32)>> =
            round.into_iter().map(|(one, other)| meeting(&hosts[one], &hosts[other], per_hosts)).collect();
        let longest = meetings.iter().map(Vec::len).max().unwrap_or(0);
        rounds.extend(
            (0..longest).map(|turn| meetings.iter().filter_map(|pairs| pairs.get(turn).copied()).collect()),
        );
    }
    for pair in rounds.iter_mut().flatten().filter(|pair| pair.0 > pair.1) {
        *pair = (pair.1, pair.0);
    }
    rounds
}

/// Each of `members` with each other once; none twice in a round.
fn tournament(members: usize) -> Vec<Vec<(usize, usize)>> {
    let even = members.next_multiple_of(2);
    if members < 2 {
        return Vec::new();
    }
    // The last stays where it is, the others move on around the circle; who meets one that does not exist pauses.
    let circle = even - 1;
    let round = |number: usize| {
        let others =
            (1..even / 2).map(move |step| ((number + step) % circle, (number + circle - step) % circle));
        let all = std::iter::once((number, circle)).chain(others);
        all.filter(|(one, other)| *one.max(other) < members)
            .map(|(one, other)| (one.min(other), one.max(other)))
            .collect()
    };
    (0..circle).map(round).collect()
}

/// The pairs of ranks of two hosts, one after the other; at most `most`.
fn meeting(one: &[u32], other: &[u32], most: usize) -> Vec<(u32, u32)> {
    let longer = one.len().max(other.len());
    let shifted = (0..longer).flat_map(|shift| (0..longer).map(move |at| (at, (at + shift) % longer)));
    shifted.filter_map(|(from, to)| Some((*one.get(from)?, *other.get(to)?))).take(most.max(1)).collect()
}

/// What one member of a level measured towards the others; rates and latencies are by pair.
struct Level {
    rates: Vec<Vec<Option<u64>>>,
    latencies: Vec<Vec<Option<u64>>>,
}

/// How the members of a level are joined.
struct Joined {
    /// Bytes a second out of and into each member.
    out: Vec<u64>,
    into: Vec<u64>,
    /// Nanoseconds from each member to the switch that explains all pairs; `None` where no switch does.
    switch: Option<Vec<u64>>,
}

impl Level {
    fn new(members: usize) -> Level {
        let none = || vec![vec![None; members]; members];
        Level { rates: none(), latencies: none() }
    }

    /// Adds one direction of a pair: the fastest of several between two hosts, and the shortest latency.
    fn add(&mut self, from: usize, to: usize, rate: u64, latency_ns: u64) {
        let (known, way) = (&mut self.rates[from][to], &mut self.latencies[from][to]);
        *known = Some(known.map_or(rate, |known| known.max(rate)));
        *way = Some(way.map_or(latency_ns, |known| known.min(latency_ns)));
    }

    fn pairs(&self) -> impl Iterator<Item = (usize, usize, u64, u64)> + '_ {
        let members = self.rates.len();
        let all = (0..members).flat_map(move |from| (0..members).map(move |to| (from, to)));
        all.filter_map(|(from, to)| Some((from, to, self.rates[from][to]?, self.latencies[from][to]?)))
    }

    /// The wires; ways through the switch take longer than `near_ns`.
    fn joined(&self, near_ns: u64) -> Joined {
        let members = self.rates.len();
        let (mut out, mut into) = (vec![1; members], vec![1; members]);
        for (from, to, rate, _) in self.pairs() {
            out[from] = rate.max(out[from]);
            into[to] = rate.max(into[to]);
        }
        let ways = self.ways();
        let explained = self.pairs().all(|(from, to, rate, latency_ns)| {
            let narrower = u128::from(out[from].min(into[to]));
            u128::from(rate) * 100 >= narrower * u128::from(EXPLAINED_FROM)
                && (ways[from] + ways[to]).abs_diff(latency_ns) <= LATENCY_NOISE_NS + latency_ns / 4
        });
        let is_far = ways.iter().all(|way| near_ns == 0 || 2 * way > near_ns);
        Joined { out, into, switch: (explained && is_far).then_some(ways) }
    }

    /// Of each member, the latency to a switch: by any two others it is half of what the ways to them are longer than the way
    /// between them; the median of all.
    fn ways(&self) -> Vec<u64> {
        let members = self.rates.len();
        let of = |one: usize, other: usize| self.latencies[one][other].or(self.latencies[other][one]);
        let way = |member: usize| {
            let others = || (0..members).filter(move |other| *other != member);
            let mut found: Vec<u64> = Vec::new();
            for one in others() {
                for other in others().filter(|other| *other > one) {
                    if let (Some(near), Some(far), Some(between)) =
                        (of(member, one), of(member, other), of(one, other))
                    {
                        found.push((near + far).saturating_sub(between) / 2);
                    }
                }
            }
            let halves = || others().filter_map(|other| of(member, other).map(|way| way / 2)).collect();
            median(if found.is_empty() { halves() } else { found })
        };
        (0..members).map(way).collect()
    }
}

/// The middle of some values, the lower of two; 0 of none.
fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0)
}

/// The graph that explains what was measured, by the host of each rank (counted from 0 without gaps). Costs of messages are those of hosts
/// ([`host`](super::host)); latencies of links are without them.
///
/// # Panics
///
/// When there is no rank, or a pair has a rank that does not exist.
pub fn measured(name: impl Into<String>, host_of: &[u32], pairs: &[MeasuredPair]) -> Topology {
    assert!(!host_of.is_empty(), "a machine without ranks");
    let costs = HOST_COSTS;
    let own_ns = costs.send_ns + costs.receive_ns;
    let hosts = host_of.iter().max().map_or(0, |last| *last as usize + 1);
    let mut inside: BTreeMap<u32, (Vec<u32>, Level)> = BTreeMap::new();
    for host in 0..hosts as u32 {
        let ranks: Vec<u32> =
            (0..).zip(host_of).filter(|(_, of)| **of == host).map(|(rank, _)| rank).collect();
        let level = Level::new(ranks.len());
        inside.insert(host, (ranks, level));
    }
    let mut between = Level::new(hosts);
    for pair in pairs {
        let (there, back) = pair.rates();
        let latency_ns = pair.latency_ns.saturating_sub(own_ns).max(1);
        let of = |rank: u32| host_of[rank as usize];
        let (one, other) = (of(pair.one), of(pair.other));
        let (level, one, other) = if one == other {
            let Some((ranks, level)) = inside.get_mut(&one) else { continue };
            let at = |rank: u32| ranks.partition_point(|before| *before < rank);
            let ends = (at(pair.one), at(pair.other));
            (level, ends.0, ends.1)
        } else {
            (&mut between, one as usize, other as usize)
        };
        level.add(one, other, there, latency_ns);
        level.add(other, one, back, latency_ns);
    }
    let mut topology = Topology::new(name, costs);
    topology.measured = true;
    for (rank, host) in host_of.iter().enumerate() {
        let kind = NodeKind::Rank { in_box: *host, inject_bytes_s: None, eject_bytes_s: None };
        topology.add_node(format!("r{rank}"), kind);
    }
    let mut near_ns = 0;
    for (host, (ranks, level)) in &inside {
        near_ns = near_ns.max(level.pairs().map(|(.., latency_ns)| latency_ns).max().unwrap_or(0));
        let ends: Vec<NodeId> = ranks.iter().map(|rank| NodeId(*rank)).collect();
        let joined = level.joined(0);
        join(&mut topology, level, &joined, &ends, &ends, &format!("memory{host}"));
    }
    if hosts > 1 {
        join_hosts(&mut topology, &inside, &between, near_ns);
    }
    topology
}

/// Adds the wires between hosts: one out of and one into each.
fn join_hosts(
    topology: &mut Topology,
    inside: &BTreeMap<u32, (Vec<u32>, Level)>,
    between: &Level,
    near_ns: u64,
) {
    let joined = between.joined(near_ns);
    let (mut out, mut into) = (Vec::new(), Vec::new());
    for ((host, (ranks, _)), number) in inside.iter().zip(0..) {
        let [leaves, sent, comes, got] = ["out", "sent", "in", "got"]
            .map(|word| topology.add_node(format!("{word}{host}"), NodeKind::Port));
        let mut link = |from, to, bandwidth_bytes_s| {
            topology.add_link(Link { from, to, latency_ns: 0, bandwidth_bytes_s })
        };
        for rank in ranks {
            link(NodeId(*rank), leaves, joined.out[number]);
            link(got, NodeId(*rank), joined.into[number]);
        }
        // What all ranks of the host share.
        link(leaves, sent, joined.out[number]);
        link(comes, got, joined.into[number]);
        out.push(sent);
        into.push(comes);
    }
    join(topology, between, &joined, &out, &into, "network");
}

/// Joins members by the switch `name`, or by a link for each pair.
fn join(
    topology: &mut Topology,
    level: &Level,
    joined: &Joined,
    out: &[NodeId],
    into: &[NodeId],
    name: &str,
) {
    if let Some(ways) = joined.switch.as_ref().filter(|_| out.len() > 1) {
        let switch = topology.add_node(name, NodeKind::Switch { aggregates: false });
        for (member, latency_ns) in ways.iter().enumerate() {
            let (latency_ns, rates) = (*latency_ns, (joined.out[member], joined.into[member]));
            topology.add_link(Link { from: out[member], to: switch, latency_ns, bandwidth_bytes_s: rates.0 });
            topology.add_link(Link {
                from: switch,
                to: into[member],
                latency_ns,
                bandwidth_bytes_s: rates.1,
            });
        }
        return;
    }
    for (from, to, bandwidth_bytes_s, latency_ns) in level.pairs() {
        topology.add_link(Link { from: out[from], to: into[to], latency_ns, bandwidth_bytes_s });
    }
}

#[cfg(test)]
mod tests;
