//! How long the slots of a call are.
//!
//! Invariant: equal on all ranks, as [`Planning`] is. Between hosts that are less than a millisecond apart distance plays no part.
//! Absent: mailboxes, which have room for the longest slot of their channel (`choice`).

use consort_algorithms::Collective;
use consort_algorithms::catalogue::Algorithm;
use consort_algorithms::topology::{LinkId, NodeId, Routes, Topology};

use super::super::choice::is_streamed;
use super::super::explain::Origin;
use super::super::machine::Machine;
use super::{Chosen, Planning};
use consort_settings::options::{SLOT_BYTES_MAX, SLOT_BYTES_MIN, SLOTS};

/// The longest slot among ranks of one host, unless a setting names a longer one.
pub(crate) const HOST_SLOT_BYTES_MAX: usize = 64 << 10;
/// The same for calls that are [streamed](is_streamed), whose buffers drive slots out of the caches anyway: long slots took
/// 0.8 to 0.97 of the time of short ones there (`docs/measurements/house.md`).
const HOST_LONG_SLOT_BYTES_MAX: usize = 256 << 10;
/// The longest slot of connections to many peers.
pub(crate) const WIDE_SLOT_BYTES_MAX: usize = 128 << 10;

/// The shortest part of a piece that is worth a message through the kernel.
pub(crate) const MESSAGE_SLICE_BYTES: usize = 64 << 10;
/// The longest slot of messages through the kernel; twice that from [`MESSAGE_PIECE_LONG`] on.
const MESSAGE_SLOT_MAX: u64 = 128 << 10;
const MESSAGE_PIECE_LONG: u64 = 4 << 20;
/// The most ranks whose connections through the kernel are long whatever the algorithm.
const MESSAGE_RANKS_FEW: u32 = 4;

/// The longest slot between hosts that are far apart, where no setting names one: a mailbox of 16 MiB a connection.
pub(crate) const FAR_SLOT_BYTES_MAX: usize = 4 << 20;
/// The same of connections to many peers, which share the wire: a mailbox of 2 MiB a connection.
pub(crate) const FAR_WIDE_SLOT_BYTES_MAX: usize = SLOT_BYTES_MAX;
/// What the slots of a mailbox hold together, in products of the wire's rate and the known round trip. A round trip is known to the
/// power of two below it, so this is at least two products of the true one: a slot's bytes are on their way, or its credit is.
const WINDOW_PRODUCTS: u64 = 4;
/// How many slots a piece fills that a mailbox has room for: all of them, so that folding and sending overlap, or fewer, where a rank
/// sends the next part only when its partner's has come, and each part then takes half of a round trip.
const FAR_SLICES: [u64; 3] = [SLOTS as u64, 2, 1];

/// The slot whose mailbox keeps the wire between the hosts that are farthest apart busy for a round trip; 0 where they are less than a
/// millisecond apart. Exact where hosts are joined by a tree, such as one switch.
pub(super) fn slot_by_distance(topology: &Topology) -> u64 {
    let one_of_each: Vec<NodeId> =
        topology.boxes().iter().filter_map(|ranks| Some(NodeId(ranks.first()?.0))).collect();
    let mut routes = Routes::new(topology);
    let mut farthest = |from: NodeId| {
        let ways = routes.from(from, &one_of_each);
        let ways = one_of_each.iter().zip(ways).filter_map(|(to, way)| Some((*to, way?)));
        let links =
            |way: &[LinkId]| way.iter().map(|link| topology.links()[link.index()]).collect::<Vec<_>>();
        let ways = ways.map(|(to, way)| {
            let links = links(&way);
            let latency_ns: u64 = links.iter().map(|link| link.latency_ns).sum();
            (latency_ns, to, links.iter().map(|link| link.bandwidth_bytes_s).min().unwrap_or(0))
        });
        ways.max_by_key(|(latency_ns, ..)| *latency_ns)
    };
    let end = one_of_each.first().and_then(|first| farthest(*first)).map(|(_, end, _)| end);
    let Some((latency_ns, _, bytes_s)) = end.and_then(farthest) else { return 0 };
    let round_trip_ms = latency_ns.saturating_mul(2) / 1_000_000;
    let window = round_trip_ms.saturating_mul(bytes_s / 1000).saturating_mul(WINDOW_PRODUCTS);
    let slot = window.div_ceil(SLOTS.into()).min(FAR_SLOT_BYTES_MAX as u64);
    if slot == 0 { 0 } else { slot.next_power_of_two() }
}

/// The machine by which algorithms that fold are chosen: without distances, where it has any. They are measured anew in every run, and
/// may be known as either neighbour of a power of two; another algorithm could fold in another order, and give other bits. Two ranks
/// fold in one order whatever the algorithm.
pub(super) fn near(machine: &Machine) -> Option<Machine> {
    let is_far = !machine.far_ms.is_empty() && machine.ranks > 2;
    is_far.then(|| Machine { far_ms: Vec::new(), ..machine.clone() })
}

impl Planning {
    /// The graph on which a collective's algorithms are priced and made.
    pub(super) fn priced_on(&self, collective: Collective) -> &Topology {
        self.near.as_ref().filter(|_| collective.reduces()).unwrap_or(&self.topology)
    }

    /// An algorithm with the slots that the settings or the planner's rule give. Slots of a pool are short, so that they stay in
    /// the caches, unless the buffers do not; where ranks share cores, long ones give each rank more to do in its turn.
    pub(crate) fn with_slots(
        &self,
        algorithm: Algorithm,
        collective: Collective,
        block_bytes: u64,
    ) -> Chosen {
        let (by_rule, short) = self.slots_by_rule(algorithm, collective, block_bytes, true);
        let is_pooled = self.on_own_cores && self.machine.turns <= 1 && self.slot_bytes.is_none();
        let is_long = is_streamed(collective, self.ranks_of(collective), block_bytes);
        let longest = if is_long { HOST_LONG_SLOT_BYTES_MAX } else { HOST_SLOT_BYTES_MAX };
        Chosen {
            algorithm,
            slot_bytes: if is_pooled { by_rule.min(longest) } else { by_rule },
            short,
            packets: self.takes_packets(algorithm, collective, block_bytes),
            meets: self.meets(collective, block_bytes),
            mapped: self.is_free(),
            origin: Origin::Priced,
        }
    }

    /// The slots of a price: those of the graph on which it is made.
    pub(super) fn slots_of_price(
        &self,
        algorithm: Algorithm,
        collective: Collective,
        block_bytes: u64,
    ) -> usize {
        let knows_distance = self.near.is_none() || !collective.reduces();
        self.slots_by_rule(algorithm, collective, block_bytes, knows_distance).0
    }

    /// Some [slices](Planning::slices) of a piece at least; long ones amortise the signals, short ones stay in the caches. Whether
    /// every message fits one short slot.
    fn slots_by_rule(
        &self,
        algorithm: Algorithm,
        collective: Collective,
        block_bytes: u64,
        knows_distance: bool,
    ) -> (usize, bool) {
        let parts = algorithm.parts(collective, self.ranks_of(collective));
        // Pieces are rounded up to whole lines.
        let piece = block_bytes.div_ceil(parts.max(1).into()).next_multiple_of(64);
        let short = if self.machine.between.is_messages() { MESSAGE_SLICE_BYTES } else { SLOT_BYTES_MIN };
        if piece <= short as u64 && !algorithm.is_pair() {
            return (short, true);
        }
        let slice = if self.machine.between.is_messages() {
            let by_distance = || self.slice_by_distance(algorithm, collective, block_bytes, piece);
            self.slice_of_messages(piece).max(if knows_distance { by_distance() } else { 0 })
        } else if let Some(slices) = algorithm.slices().or_else(|| self.slices_over_boxes(algorithm)) {
            piece / slices
        } else if self.is_found_ring(algorithm) {
            piece
        } else {
            piece / self.slices(collective)
        };
        let by_size = slice.checked_next_power_of_two().unwrap_or(u64::MAX >> 1);
        let given = self.slot_bytes.unwrap_or_else(|| usize::try_from(by_size).unwrap_or(usize::MAX));
        (given.clamp(SLOT_BYTES_MIN, self.longest_slot(algorithm)), false)
    }

    /// What of a piece travels as one message where every message is some calls of the system: two ranks that exchange
    /// pieces gain nothing by cutting short ones; among more, one part is on its way while the next is folded. Four slots must fit
    /// into a core's caches. Source of the figures: `docs/measurements/hosts.md`.
    fn slice_of_messages(&self, piece: u64) -> u64 {
        let most = if piece >= MESSAGE_PIECE_LONG { 2 * MESSAGE_SLOT_MAX } else { MESSAGE_SLOT_MAX };
        let whole = if self.machine.ranks == 2 {
            piece
        } else {
            (piece / 4).max(piece.min(MESSAGE_SLICE_BYTES as u64))
        };
        whole.min(most)
    }

    /// What of a piece travels as one message where its answer takes milliseconds: a writer that fills all slots must not wait for
    /// the first credit before the wire is full. 0 where hosts are near. Source: `docs/measurements/hosts.md`.
    fn slice_by_distance(
        &self,
        algorithm: Algorithm,
        collective: Collective,
        block_bytes: u64,
        piece: u64,
    ) -> u64 {
        let longest = self.far_slot().min(self.longest_slot(algorithm) as u64);
        let [most_slices, slices @ ..] =
            FAR_SLICES.map(|slices| longest.min(piece.div_ceil(slices)).next_power_of_two());
        let is_simulated = self.is_simulated(algorithm, collective) && !algorithm.is_pair();
        if longest == 0 || self.slot_bytes.is_some() || !is_simulated || slices == [most_slices; 2] {
            return most_slices.min(longest);
        }
        let key = (collective, algorithm, block_bytes);
        if let Some(known) = self.memory().far_slots.get(&key) {
            return *known;
        }
        let seconds = |slot: u64| self.simulated_in_slots(algorithm, collective, block_bytes, slot as usize);
        let mut best = (most_slices, seconds(most_slices));
        for slot in slices {
            let takes = seconds(slot);
            if takes < best.1 {
                best = (slot, takes);
            }
        }
        self.memory().far_slots.insert(key, best.0);
        best.0
    }

    /// The slot that keeps the wire busy, where hosts are far apart; 0 elsewhere.
    fn far_slot(&self) -> u64 {
        let far = || if self.machine.between.is_messages() { slot_by_distance(&self.topology) } else { 0 };
        *self.far_slot.get_or_init(far)
    }

    /// The longest slot of an algorithm's connections.
    pub(crate) fn longest_slot(&self, algorithm: Algorithm) -> usize {
        // A rank may send to all others, and has a mailbox for each.
        if algorithm.is_pair() && self.machine.ranks > MESSAGE_RANKS_FEW {
            return SLOT_BYTES_MAX;
        }
        match (self.is_wide(algorithm), self.far_slot() > 0) {
            (false, false) => SLOT_BYTES_MAX,
            (true, false) => WIDE_SLOT_BYTES_MAX,
            (false, true) => FAR_SLOT_BYTES_MAX,
            (true, true) => FAR_WIDE_SLOT_BYTES_MAX,
        }
    }

    /// Whether an algorithm's connections are to many peers.
    pub(crate) fn is_wide(&self, algorithm: Algorithm) -> bool {
        // Where there are few ranks no algorithm has many peers.
        let few = self.machine.between.is_messages() && self.machine.ranks <= MESSAGE_RANKS_FEW;
        let is_few_channels = algorithm.is_along_rails() && !algorithm.is_on_many_channels();
        algorithm.has_many_peers() && !few && !self.is_found_ring(algorithm) && !is_few_channels
    }
}
