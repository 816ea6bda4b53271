//! What an algorithm costs on the machine, in virtual time.
//!
//! Invariant: a price is the same on all ranks, and of what folds the same in every run. It knows which ranks share a wire, by simulation where the schedule can be built in
//! time or stands for itself on the machine, [orbit by orbit](simulate_orbits), and by what [crosses](catalogue::crossing()) a box
//! elsewhere, and how many ranks take turns on a core. Absent: choosing.

use std::collections::HashMap;

use consort_algorithms::catalogue::{self, Algorithm};
use consort_algorithms::simulate::{self, simulate, simulate_orbits};
use consort_algorithms::topology::{NodeId, Routes};
use consort_algorithms::{Collective, Rank, Schedule, Transfer};

use super::super::machine::Between;
use super::super::work;
use super::searched::Found;
use super::{Planning, SIMULATED_RANKS_MAX};
use consort_settings::options::SLOTS;

/// Messages that a price simulates before it extrapolates: a choice must be made within milliseconds.
pub(super) const PRICED_MESSAGES: u64 = 4096;
/// The most ranks for which an algorithm is simulated that sends from all to all at once: more messages are then on their way
/// than can be followed in time.
const SIMULATED_AT_ONCE_MAX: u32 = 16;
/// What the simulator does not see where several ranks of a host exchange with one host after another.
///
/// Source: `docs/measurements/hosts.md`, 4 hosts of 2 ranks, 16 MiB: halving and doubling takes 226 to 296 ms where the hierarchy
/// takes 213, and the simulator says the same of both.
const CHANGING_PARTNERS: f64 = 1.1;
/// What the simulator does not see where ranks of several hosts send into one wire at once: its queue overflows, and what is lost is sent again.
///
/// Source: `docs/measurements/hosts.md`, 4 hosts with one slow wire: all-reduce of 1 MiB takes 294 to 466 ms by the two-shot and 263
/// to 265 by the ring, all-to-all 156 to 189 from all to all and 135 to 140 in pairs, at equal prices.
/// `docs/measurements/synthesis.md`: an all-gather of 1 MiB takes 33.6 ms by what was made and 26.2 by the ring, at
/// equal prices. Known only of wires that were measured.
const INTO_ONE_WIRE: f64 = 1.1;

/// What messages take by themselves: seconds of the first byte, and of each of very many.
#[derive(Clone, Copy, Debug)]
pub(super) struct Messages {
    /// Within a box.
    inside: (f64, f64),
    /// From one box to another.
    between: (f64, f64),
    /// Seconds of each byte where all ranks of a box send to another box: they share its wires.
    crossing: f64,
}

/// Whether in some round several hosts send into one.
fn meets(schedule: &Schedule, host_of: &[u32]) -> bool {
    let host = |rank: Rank| host_of[rank.index()];
    schedule.rounds.iter().any(|round| {
        let mut sender_to: HashMap<u32, u32> = HashMap::new();
        let mut between = round.transfers.iter().filter(|of| host(of.from) != host(of.to));
        between.any(|of| *sender_to.entry(host(of.to)).or_insert(host(of.from)) != host(of.from))
    })
}

impl Planning {
    /// Seconds that an algorithm takes on the machine; infinite where it is not known.
    ///
    /// # Panics
    /// Where the algorithm is not defined.
    pub fn price(&self, algorithm: Algorithm, collective: Collective, block_bytes: u64) -> f64 {
        let ranks = self.ranks_of(collective);
        if self.takes_packets(algorithm, collective, block_bytes) {
            if algorithm.is_two_shot() {
                return work::of_two_hops(block_bytes, self.machine.turns);
            }
            return work::of_packets(ranks, self.shape.per_box, block_bytes, self.machine.turns);
        }
        if let Some(seconds) = self.price_along_rails(algorithm, collective, block_bytes) {
            return seconds;
        }
        let found = self.found(algorithm, collective);
        if let Some((found, hops)) = found.and_then(|found| Some((found, found.hops?))) {
            return self.price_by_hops(found, hops, block_bytes);
        }
        if !self.is_simulated(algorithm, collective) {
            return self.price_of_many(algorithm, collective, block_bytes);
        }
        let patience = found.map_or(1, |found| found.patience);
        let options = self.simulated_with(algorithm, collective, block_bytes, patience);
        let schedule = algorithm.schedule(collective, ranks);
        let simulated = simulate(&schedule, self.priced_on(collective), &options);
        let simulated = simulated.map_or(f64::INFINITY, |outcome| outcome.seconds());
        let blocks = collective.input_blocks(ranks).max(collective.output_blocks(ranks));
        let bytes = block_bytes as f64 * f64::from(blocks);
        let simulated = found.map_or(simulated, |found| simulated.max(bytes / found.bytes_s));
        if !self.on_own_cores {
            let Some(ends) = self.ends() else { return simulated };
            let messages =
                work::between_hosts(&schedule, block_bytes, options.slot_bytes, &self.host_of(), ends);
            // While a rank waits for the wire its core works.
            let idles = self.idles(algorithm).max(self.overflows(algorithm, collective, &schedule));
            return simulated.max(messages * f64::from(self.machine.turns)) * idles;
        }
        simulated + work::of_cores(&schedule, block_bytes, options.slot_bytes, self.machine.turns)
    }

    /// Seconds of trees on many channels, by the hops of a slice up and down, and by what links carry of all slices and of those that
    /// wait in the other slots before the first has passed.
    ///
    /// Source: `docs/measurements/synthesis.md`, over 2 and 8 boxes within a tenth of simulations of all messages, from 16 to 256 MiB at equal slots.
    /// Copies and folds are taken to be done on as many lanes as there are, beside the links.
    fn price_by_hops(&self, found: &Found, [between, inside]: [u32; 2], block_bytes: u64) -> f64 {
        let Found { algorithm, bytes_s, .. } = *found;
        let slot_bytes = self.slots_of_price(algorithm, Collective::AllReduce, block_bytes) as u64;
        let parts = u64::from(algorithm.parts(Collective::AllReduce, self.machine.ranks));
        let slice = (slot_bytes * parts).min(block_bytes) as f64;
        let bytes = slot_bytes.min(block_bytes.div_ceil(parts)) as f64;
        let messages = self.messages();
        let hop = |(alpha, beta): (f64, f64)| alpha + beta * bytes;
        let hops = f64::from(between) * hop(messages.between) + f64::from(inside) * hop(messages.inside);
        2.0 * hops + (block_bytes as f64 + f64::from(SLOTS - 1) * slice) / bytes_s
    }

    /// Whether the schedule of an algorithm can be built and followed in time.
    pub(super) fn is_simulated(&self, algorithm: Algorithm, collective: Collective) -> bool {
        let most = if algorithm.starts_all_at_once() { SIMULATED_AT_ONCE_MAX } else { SIMULATED_RANKS_MAX };
        self.ranks_of(collective) <= most
    }

    /// What messages of an algorithm take in slots of this length.
    pub(in super::super) fn simulated_in_slots(
        &self,
        algorithm: Algorithm,
        collective: Collective,
        block_bytes: u64,
        slot_bytes: usize,
    ) -> f64 {
        let bytes = usize::try_from(block_bytes).unwrap_or(usize::MAX / 2);
        let options = simulate::Options {
            slot_bytes,
            slots: SLOTS,
            messages_max: PRICED_MESSAGES,
            ..simulate::Options::new(bytes)
        };
        let schedule = algorithm.schedule(collective, self.ranks_of(collective));
        simulate(&schedule, &self.topology, &options).map_or(f64::INFINITY, |outcome| outcome.seconds())
    }

    /// How a price simulates.
    fn simulated_with(
        &self,
        algorithm: Algorithm,
        collective: Collective,
        block_bytes: u64,
        patience: u64,
    ) -> simulate::Options {
        simulate::Options {
            slot_bytes: self.slots_of_price(algorithm, collective, block_bytes),
            slots: SLOTS,
            messages_max: PRICED_MESSAGES * patience,
            ..simulate::Options::new(usize::try_from(block_bytes).unwrap_or(usize::MAX / 2))
        }
    }

    /// The time of a schedule that is symmetric on the machine, from the ranks that stand for all others.
    fn orbit_by_orbit(&self, algorithm: Algorithm, collective: Collective, block_bytes: u64) -> Option<f64> {
        // Cores that ranks of one host share are priced beside a schedule that is there as a whole.
        let regular =
            algorithm.regular(collective, self.ranks_of(collective)).filter(|_| !self.on_own_cores)?;
        let options = self.simulated_with(algorithm, collective, block_bytes, 1);
        let outcome = simulate_orbits(&*regular, self.priced_on(collective), &options).ok()??;
        Some(outcome.seconds())
    }

    /// The price over more ranks than a simulation of each follows.
    fn price_of_many(&self, algorithm: Algorithm, collective: Collective, block_bytes: u64) -> f64 {
        let ranks = self.ranks_of(collective);
        let Some(formula) = catalogue::formula(algorithm, collective, ranks) else { return f64::INFINITY };
        let blocks = collective.input_blocks(ranks).max(collective.output_blocks(ranks));
        let bytes = block_bytes as f64 * f64::from(blocks);
        let Messages { inside, between, crossing } = self.messages();
        let crosses = self.crossing(algorithm, collective) * bytes * crossing;
        let within = formula.inside.steps * inside.0 + formula.inside.volume * bytes * inside.1;
        // The busiest port, or the wires of the box where they are the narrower place.
        let beyond =
            formula.between.steps * between.0 + (formula.between.volume * bytes * between.1).max(crosses);
        let own = (self.topology.costs.send_ns + self.topology.costs.receive_ns) as f64 * 1e-9;
        let modelled = self
            .orbit_by_orbit(algorithm, collective, block_bytes)
            .unwrap_or(within + beyond + formula.besides * own);
        let Some(ends) = self.ends() else { return modelled };
        let messages =
            ends.of_messages(formula.between.steps + formula.besides, formula.between.volume * bytes);
        modelled.max(messages * f64::from(self.machine.turns)) * self.idles(algorithm)
    }

    /// How much longer an algorithm takes because the wires of hosts are idle while ranks wait for partners that change.
    fn idles(&self, algorithm: Algorithm) -> f64 {
        if algorithm.changes_partners() && self.shape.per_box > 1 && self.machine.hosts > 2 {
            CHANGING_PARTNERS
        } else {
            1.0
        }
    }

    /// What a message takes of the cores at its ends, where messages go between hosts.
    fn ends(&self) -> Option<work::Ends> {
        match self.machine.between {
            Between::Memory => None,
            Between::Sockets => Some(work::SOCKETS),
            Between::Rdma => Some(work::RDMA),
        }
    }

    /// How much longer an algorithm takes because several hosts send into one wire at once.
    fn overflows(&self, algorithm: Algorithm, collective: Collective, schedule: &Schedule) -> f64 {
        use Collective::{AllGather, AllReduce, AllToAll, ReduceScatter};
        let from_all_to_all = matches!(collective, AllReduce | ReduceScatter | AllGather | AllToAll);
        let is_many = self.topology.measured
            && self.machine.between == Between::Sockets
            && self.topology.boxes().len() > 2;
        let at_once = || {
            algorithm.starts_all_at_once() || (algorithm.is_imported() && meets(schedule, &self.host_of()))
        };
        if is_many && from_all_to_all && at_once() { INTO_ONE_WIRE } else { 1.0 }
    }

    /// The host of each rank; one of its own for each where all messages go through sockets.
    fn host_of(&self) -> Vec<u32> {
        if self.transport.is_by_messages() {
            return (0..self.machine.ranks).collect();
        }
        let mut host_of = vec![0; self.machine.ranks as usize];
        for (host, ranks) in (0..).zip(self.topology.boxes()) {
            ranks.iter().for_each(|rank| host_of[rank.0 as usize] = host);
        }
        host_of
    }

    /// What an algorithm sends out of a box, in units of the largest buffer of a rank.
    fn crossing(&self, algorithm: Algorithm, collective: Collective) -> f64 {
        let (ranks, sharing) =
            (self.ranks_of(collective), self.topology.boxes().iter().map(Vec::len).max().unwrap_or(1) as u32);
        let known = catalogue::crossing(algorithm, collective, ranks, sharing).unwrap_or(0.0);
        // Where neighbours are on different hosts, all that a rank sends may leave its host.
        match catalogue::formula(algorithm, collective, ranks) {
            Some(formula) if !self.machine.host_of.is_sorted() => {
                known.max(formula.volume() * f64::from(sharing.min(ranks.saturating_sub(sharing))))
            }
            _ => known,
        }
    }

    /// What messages take on this machine.
    fn messages(&self) -> Messages {
        *self.messages.get_or_init(|| self.simulate_messages())
    }

    fn simulate_messages(&self) -> Messages {
        let ranks = self.machine.ranks;
        let topology = self.near.as_ref().unwrap_or(&self.topology);
        // A message from each of some ranks, to another one each.
        let messages = |pairs: &[(Rank, Rank)], bytes: usize| {
            let mut schedule = Algorithm::Pair.schedule(Collective::SendReceive, 2);
            schedule.ranks = ranks;
            for round in &mut schedule.rounds {
                let one = round.transfers.clone();
                let of = |&(from, to): &(Rank, Rank)| {
                    one.iter().map(move |transfer| Transfer { from, to, ..*transfer })
                };
                round.transfers = pairs.iter().flat_map(of).collect();
            }
            let options = simulate::Options { slots: SLOTS, ..simulate::Options::new(bytes) };
            simulate(&schedule, topology, &options).map_or(f64::INFINITY, |outcome| outcome.seconds())
        };
        const LONG: usize = 64 << 20;
        let message = |pairs: &[(Rank, Rank)]| {
            let alpha = messages(pairs, 1);
            let beta = (messages(pairs, LONG) - alpha) / LONG as f64;
            (alpha, if alpha.is_finite() { beta } else { f64::INFINITY })
        };
        let boxes = topology.boxes();
        let largest = boxes.iter().max_by_key(|ranks| ranks.len()).map_or(&[][..], Vec::as_slice);
        let outside: Vec<Rank> = (0..ranks).map(Rank).filter(|rank| !largest.contains(rank)).collect();
        // A rank that has lost its adapter may have no way out of its box, and none into it.
        let mut routes = Routes::new(topology);
        let mut has_way =
            |from: Rank, to: Rank| routes.from(NodeId(from.0), &[NodeId(to.0)]).iter().all(Option::is_some);
        let mut way_out = |from: Rank| Some((from, *outside.iter().rev().find(|far| has_way(from, **far))?));
        let any = (Rank(0), Rank(ranks - 1));
        let (first, far) = largest.iter().find_map(|rank| way_out(*rank)).unwrap_or(any);
        let between = message(&[(first, far)]);
        let near = largest.iter().find(|rank| **rank != first && has_way(first, **rank));
        let inside = near.map_or(between, |near| message(&[(first, *near)]));
        let pairs = largest.iter().copied().zip(outside.iter().copied().cycle());
        let pairs: Vec<(Rank, Rank)> = pairs.filter(|(from, to)| has_way(*from, *to)).collect();
        let crossing = if pairs.len() > 1 { message(&pairs).1 / pairs.len() as f64 } else { between.1 };
        Messages { inside, between, crossing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use consort_algorithms::builders::{pairwise, spread_out};

    #[test]
    fn hosts_meet_where_two_of_them_send_into_a_third_at_once() {
        let (pairs, all) = (pairwise(4), spread_out(4));
        assert!(!meets(&pairs, &[0, 1, 2, 3]) && meets(&all, &[0, 1, 2, 3]));
        // Two hosts are never two senders, whatever number of ranks they have.
        assert!(!meets(&all, &[0, 0, 1, 1]));
        assert!(!meets(&all, &[0, 0, 0, 0]));
    }
}
