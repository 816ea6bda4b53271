//! Carriers of an algorithm's messages, and their prices.
//!
//! Invariant: a price is virtual seconds, the same on all ranks. Where kernels run plans it follows from the plans of all ranks
//! and from times on a GPU ([`super::blocks`]), and is never less than what one link between devices needs, the first of a named machine. Elsewhere on
//! devices it follows from the algorithm's [formula](catalogue::formula()) and from figures of data sheets. Absent: what can
//! carry a call, and choosing.

use std::fmt;

use consort_algorithms::Collective;
use consort_algorithms::catalogue::{self, Algorithm};
use consort_algorithms::topology::{NodeId, Routes, Topology};

use super::Proved;
use super::blocks::{self, BLOCK_S, Cut, beside, stride};
use super::devices::Ground;
use super::planning::Planning;

/// An operation of a stream, from the call to its end. Source of this and of the two below: NCCL's tuning model
/// (`src/graph/tuning.cc`), the base latency of a ring with flags in its messages, and what a hop costs over NVLink with a
/// fence and with such flags.
const OPERATION_S: f64 = 6.6e-6;
/// A message that waits for another, with a counter behind its bytes, where streams carry both.
const STEP_S: f64 = 3.4e-6;
/// The same of a packet, which carries its flag.
const PACKET_STEP_S: f64 = 0.6e-6;
/// The same where streams wait for each other: a wait, a fold and a write, each behind the one before.
const STREAM_STEP_S: f64 = 3.0 * STEP_S;
/// Bytes a second from a device to its peer, each way: NVLink of an H100 (NVIDIA, DGX H100 User Guide).
const LINK_BYTES_S: f64 = 450e9;
/// Bytes a second between a device and pinned memory, each way: PCI Express 5.0 x16.
const STAGING_BYTES_S: f64 = 64e9;
/// Bytes a second of a device's own memory: an H100's (NVIDIA, H100 data sheet).
const MEMORY_BYTES_S: f64 = 3.35e12;

/// How operations on memory of devices run. See `docs/adr/0009-devices.md`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Path {
    /// All ranks in one process on one device: one launch for all of them.
    Fused,
    /// All ranks reach each other's devices, and each has one of its own unless this path is named: kernels that wait for
    /// each other.
    Kernels,
    /// Stream-ordered waits and writes between processes that share a device.
    Streams,
    /// Through pinned memory and the host's links.
    Host,
}

impl Path {
    /// In the order that settles ties.
    pub const ALL: [Path; 4] = [Path::Fused, Path::Kernels, Path::Streams, Path::Host];

    /// As `CONSORT_DEVICE_PATH` spells it.
    pub fn name(self) -> &'static str {
        match self {
            Path::Fused => "fused",
            Path::Kernels => "kernels",
            Path::Streams => "streams",
            Path::Host => "host",
        }
    }

    /// The carrier of the path's plans.
    pub(crate) fn carrier(self) -> Carrier {
        match self {
            Path::Fused => Carrier::Fused,
            Path::Kernels => Carrier::Kernels,
            Path::Streams => Carrier::Streams,
            Path::Host => Carrier::Staging,
        }
    }

    /// Seconds of an empty call.
    pub(crate) fn price(self) -> f64 {
        self.carrier().operations() * OPERATION_S + self.carrier().step_s()
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A carrier of an algorithm's messages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Carrier {
    /// The links of the host.
    Host,
    /// One launch for all ranks.
    Fused,
    /// A kernel for each rank, with messages that are their own flags.
    Packets,
    /// A kernel for each rank that runs its plan.
    Kernels,
    /// Streams that wait for each other.
    Streams,
    /// The links of the host, between copies from and to devices.
    Staging,
}

impl Carrier {
    /// Before the algorithm's name in that of a candidate; empty for [`Carrier::Host`].
    pub fn name(self) -> &'static str {
        match self {
            Carrier::Host => "",
            Carrier::Fused => "fused",
            Carrier::Packets => "packets",
            Carrier::Kernels => "kernels",
            Carrier::Streams => "streams",
            Carrier::Staging => "host",
        }
    }

    /// Operations of a stream that every call has. Where bytes go through the host it waits for each of two copies.
    fn operations(self) -> f64 {
        if self == Carrier::Staging { 4.0 } else { 1.0 }
    }

    /// Seconds of a message that waits for another.
    fn step_s(self) -> f64 {
        match self {
            Carrier::Packets => PACKET_STEP_S,
            Carrier::Kernels => blocks::STEP_S,
            Carrier::Streams => STREAM_STEP_S,
            Carrier::Host | Carrier::Fused | Carrier::Staging => 0.0,
        }
    }
}

/// All paths, each with the objection to it.
pub(crate) type Paths = Vec<(Path, Option<String>)>;

/// A carrier and an algorithm.
pub(crate) type Way = (Carrier, Algorithm);

impl Planning {
    /// Seconds of a way for blocks of `block_bytes` on devices' means; infinite where nothing gives them. Plans that kernels run
    /// have their price from what is `proved` of them, or else from the formula.
    pub(super) fn price_by(
        &self,
        (carrier, algorithm): Way,
        collective: Collective,
        block_bytes: u64,
        ground: &Ground,
        proved: Option<&Proved>,
    ) -> f64 {
        let ranks = self.ranks_of(collective);
        let [input, output] = [collective.input_blocks(ranks), collective.output_blocks(ranks)]
            .map(|blocks| block_bytes as f64 * f64::from(blocks));
        let empty = carrier.operations() * OPERATION_S;
        let formula = catalogue::formula(algorithm, collective, ranks);
        if let (Carrier::Kernels, Some(proved), true) = (carrier, proved, ranks > 1) {
            // What was found or made says what its links carry; of another schedule nothing says how much of it
            // travels.
            let found = || self.carried_bytes_s(algorithm, collective).unwrap_or(f64::INFINITY);
            let carried_bytes_s = formula.map_or_else(found, |of| self.link_bytes_s() / of.volume());
            let travels = input.max(output) / carried_bytes_s;
            return empty + self.seconds_of_blocks(proved, collective, block_bytes, ground).max(travels);
        }
        let Some(formula) = formula else { return f64::INFINITY };
        match carrier {
            Carrier::Host => self.price(algorithm, collective, block_bytes),
            Carrier::Staging => {
                empty + (input + output) / STAGING_BYTES_S + self.price(algorithm, collective, block_bytes)
            }
            Carrier::Fused => empty + f64::from(ranks) * (input + output) / MEMORY_BYTES_S,
            _ if ranks == 1 => empty,
            Carrier::Kernels => {
                let bytes = formula.volume() * input.max(output);
                let blocks = blocks::seconds_by_formula(formula.steps(), bytes, ranks, ground.blocks_max);
                empty + blocks.max(bytes / self.link_bytes_s())
            }
            Carrier::Packets | Carrier::Streams => {
                // Half of a packet is its flag.
                let share = if carrier == Carrier::Packets { 0.5 } else { 1.0 };
                let travels = formula.volume() * input.max(output) / (share * self.link_bytes_s());
                empty + formula.steps() * carrier.step_s() + travels
            }
        }
    }

    /// Seconds of the blocks that run proved plans.
    fn seconds_of_blocks(
        &self,
        proved: &Proved,
        collective: Collective,
        block_bytes: u64,
        ground: &Ground,
    ) -> f64 {
        let (plan, ranks) = (&proved.plan, self.ranks());
        let bytes = usize::try_from(block_bytes).unwrap_or(usize::MAX / 2).min(usize::MAX / 2);
        let longest = plan.partition.extents(bytes, 1).longest();
        let share = beside(collective, ranks, proved.lanes_max);
        let (blocks_max, channels) = (ground.blocks_max, proved.mailboxes_max);
        let cut = Cut::of(longest, plan.sliced, share, blocks_max, stride(ranks), channels);
        let launched = proved.lanes_max as u32 * cut.instances * ground.launched_together(ranks);
        let of_all = proved.load.as_ref().map_or(f64::INFINITY, |load| load.seconds(&cut));
        f64::from(launched) * BLOCK_S + of_all
    }

    /// Bytes a second from a device to a peer: what a topology that was named says of its first, what the graph of the hosts' devices says of
    /// the way from rank 0 to its neighbour, or those of a data sheet.
    fn link_bytes_s(&self) -> f64 {
        let named =
            self.topology().links().first().filter(|_| self.is_named).map(|link| link.bandwidth_bytes_s);
        let known = || self.device_graph.as_ref().and_then(narrowest);
        named.or_else(known).map_or(LINK_BYTES_S, |bytes_s| bytes_s as f64)
    }
}

/// Bytes a second of the narrowest link from rank 0 to rank 1.
fn narrowest(graph: &Topology) -> Option<u64> {
    let ends = (graph.ranks() > 1).then_some([NodeId(0), NodeId(1)])?;
    let route = Routes::new(graph).from(ends[0], &ends[1..]).pop()??;
    route.iter().map(|link| graph.links()[link.index()].bandwidth_bytes_s).min()
}
