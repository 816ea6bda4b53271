//! What NCCL's schedules take on a machine of any number of boxes.
//!
//! What is run: up to [`RING_BOXES`] boxes a ring and up to [`TREE_BOXES`] a tree, all messages of the first slices.
//! What is continued in a straight line, from two runs each:
//! - *over boxes*: every box more adds to a ring the same rounds of messages of the same length. Every level more adds
//!   to a tree the same hops, which the first slices show; what a box carries a slice is the same from 4 boxes on;
//! - *over slices*: from [`LONG_SLICES`] on every slice adds the same time.
//!
//! Invariant: the same call has the same price, whatever was asked before; tests compare continued prices with those of
//! whole runs. Absent: machines whose boxes differ.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::nccl;
use super::protocol::{self, Call, Slots};
use crate::simulate::nccl_model::{Algorithm, Machine, Protocol, predict_us};
use crate::simulate::{self, simulate};
use crate::{Collective, Schedule, Topology};

/// The most boxes whose rings are run.
const RING_BOXES: u32 = 4;
/// The most boxes whose trees are run for whole calls; twice that for the hops of a level.
const TREE_BOXES: u32 = 4;
/// Slices of a call that shows the hops of a level.
const LEVEL_SLICES: u64 = 8;
/// Longer calls never take LL, which sends every byte twice.
const LL_BYTES_MAX: u64 = 64 << 20;
/// Slices of a channel after which a pipeline is full.
const LONG_SLICES: u64 = 64;
/// Messages that a run of a ring, and of a tree, simulates before it continues; but two slices.
const RING_MESSAGES: u64 = 1 << 16;
const TREE_MESSAGES: u64 = 1 << 18;

/// Machines that differ in the number of boxes alone.
#[derive(Clone, Copy)]
pub struct Fleet<'a> {
    /// The wires of that number of boxes.
    pub wires: &'a dyn Fn(u32) -> Topology,
    /// What NCCL's search finds on them.
    pub nccl: &'a dyn Fn(u32) -> Machine,
}

/// One of NCCL's algorithms by one of its protocols.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Candidate {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The protocol.
    pub protocol: Protocol,
    /// The channels that a call of this size takes.
    pub channels: u32,
    /// Their slots.
    pub slots: Slots,
}

/// A candidate's time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Price {
    /// What takes this time.
    pub candidate: Candidate,
    /// Seconds by the simulator.
    pub seconds: f64,
    /// Seconds by NCCL's own model.
    pub closed: f64,
}

/// Prices on a fleet, each worked out once.
pub struct Prices<'a> {
    fleet: Fleet<'a>,
    topologies: BTreeMap<(u32, u8), Topology>,
    schedules: BTreeMap<Shape, Schedule>,
    known: BTreeMap<(Shape, u8, Slots, u64), f64>,
}

/// What a schedule depends on: algorithm, collective, boxes, and channels of how many.
type Shape = (u8, Collective, u32, u32, u32);

impl<'a> Prices<'a> {
    /// Nothing is worked out yet.
    pub fn new(fleet: Fleet<'a>) -> Prices<'a> {
        Prices { fleet, topologies: BTreeMap::new(), schedules: BTreeMap::new(), known: BTreeMap::new() }
    }

    /// What NCCL could take for a call.
    pub fn candidates(&self, call: &Call) -> Vec<Candidate> {
        let machine = (self.fleet.nccl)(call.boxes);
        let combinations =
            Algorithm::ALL.into_iter().flat_map(|of| Protocol::ALL.into_iter().map(move |by| (of, by)));
        let candidate = |(algorithm, protocol)| {
            if protocol == Protocol::LowLatency && call.bytes > LL_BYTES_MAX {
                return None;
            }
            predict_us(&machine, &closed(call), algorithm, protocol)?;
            let all = nccl::channels(&machine, algorithm, call.boxes)?;
            let channels = protocol::channels(call, algorithm, protocol, all);
            let slots = protocol::slots(call, algorithm, protocol, channels);
            nccl::exists(algorithm, call.collective, call.boxes).then_some(Candidate {
                algorithm,
                protocol,
                channels,
                slots,
            })
        };
        combinations.filter_map(candidate).collect()
    }

    /// The times of all of them.
    pub fn all(&mut self, call: &Call) -> Vec<Price> {
        let machine = (self.fleet.nccl)(call.boxes);
        let mut prices = Vec::new();
        for candidate in self.candidates(call) {
            let seconds = self.seconds(call, &candidate);
            let closed = predict_us(&machine, &closed(call), candidate.algorithm, candidate.protocol);
            prices.push(Price { candidate, seconds, closed: closed.unwrap_or(f64::INFINITY) * 1e-6 });
        }
        prices
    }

    /// The fastest of them by the simulator.
    pub fn best(&mut self, call: &Call) -> Option<Price> {
        self.all(call).into_iter().min_by(|one, other| one.seconds.total_cmp(&other.seconds))
    }

    /// The least seconds of our own schedule through the switches of the boxes, over lengths of slots; none where they
    /// do not fold or the collective does not go through them. Switches keep no order, so no call is run so.
    pub fn switched(&mut self, call: &Call) -> Option<f64> {
        let (algorithm, machine) = if call.boxes == 1 {
            (Algorithm::Nvls, (self.fleet.nccl)(1))
        } else {
            (Algorithm::NvlsTree, (self.fleet.nccl)(call.boxes))
        };
        let channels = nccl::channels(&machine, algorithm, call.boxes)?;
        if !nccl::exists(algorithm, call.collective, call.boxes) {
            return None;
        }
        let mut of = |bytes: usize| {
            let slots = Slots { bytes, count: 8 };
            self.seconds(call, &Candidate { algorithm, protocol: Protocol::Simple, channels, slots })
        };
        [16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10].map(&mut of).into_iter().reduce(f64::min)
    }

    /// Seconds of one candidate.
    pub fn seconds(&mut self, call: &Call, candidate: &Candidate) -> f64 {
        let splits = !matches!(call.collective, Collective::Broadcast | Collective::Reduce);
        match candidate.algorithm {
            Algorithm::Ring if call.boxes > RING_BOXES => {
                // Pieces are as long as on all boxes.
                let bytes = |boxes: u32| {
                    let of = u64::from(boxes);
                    if splits { call.bytes * of / u64::from(call.boxes) } else { call.bytes }
                };
                let (half, whole) = (RING_BOXES / 2, RING_BOXES);
                let less = self.at(call, candidate, half, bytes(half));
                let more = self.at(call, candidate, whole, bytes(whole));
                more + (more - less) * f64::from(call.boxes - whole) / f64::from(whole - half)
            }
            Algorithm::Tree | Algorithm::NvlsTree if call.boxes > TREE_BOXES => {
                let short = LEVEL_SLICES * slice_bytes(call, candidate, TREE_BOXES);
                let short = short.min(call.bytes);
                let level = self.run(call, candidate, 2 * TREE_BOXES, short)
                    - self.run(call, candidate, TREE_BOXES, short);
                let levels = f64::from(call.boxes).log2() - f64::from(TREE_BOXES).log2();
                self.at(call, candidate, TREE_BOXES, call.bytes) + level * levels
            }
            _ => self.at(call, candidate, call.boxes, call.bytes),
        }
    }

    /// Seconds over that number of boxes of the call's kind, continued over slices.
    fn at(&mut self, call: &Call, candidate: &Candidate, boxes: u32, bytes: u64) -> f64 {
        let long = LONG_SLICES * slice_bytes(call, candidate, boxes);
        if bytes <= 2 * long {
            return self.run(call, candidate, boxes, bytes);
        }
        let (half, whole) =
            (self.run(call, candidate, boxes, long / 2), self.run(call, candidate, boxes, long));
        whole + (whole - half) * (bytes - long) as f64 / (long / 2) as f64
    }

    /// Seconds over that number of boxes by the simulator.
    fn run(&mut self, call: &Call, candidate: &Candidate, boxes: u32, bytes: u64) -> f64 {
        let Candidate { algorithm, protocol, channels, slots } = *candidate;
        let all = nccl::channels(&(self.fleet.nccl)(call.boxes), algorithm, call.boxes).unwrap_or(channels);
        let shape = (algorithm as u8, call.collective, boxes, channels, all);
        let key = (shape, protocol as u8, slots, bytes);
        if let Some(&known) = self.known.get(&key) {
            return known;
        }
        let fleet = self.fleet;
        let topology = self
            .topologies
            .entry((boxes, protocol as u8))
            .or_insert_with(|| protocol::under(&(fleet.wires)(boxes), protocol));
        let made = || nccl::schedule(algorithm, call.collective, (boxes, call.per_box), (channels, all));
        let schedule = match self.schedules.entry(shape) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => match made() {
                Some(made) => place.insert(made),
                None => return f64::INFINITY,
            },
        };
        let ranks = boxes * call.per_box;
        let blocks = call.collective.input_blocks(ranks).max(call.collective.output_blocks(ranks));
        let options = simulate::Options {
            slot_bytes: slots.bytes,
            slots: slots.count,
            messages_max: if algorithm == Algorithm::Ring { RING_MESSAGES } else { TREE_MESSAGES },
            ..simulate::Options::new((bytes / u64::from(blocks)) as usize)
        };
        let seconds =
            simulate(schedule, topology, &options).map_or(f64::INFINITY, |outcome| outcome.seconds());
        self.known.insert(key, seconds);
        seconds
    }
}

/// Bytes of a call over that number of boxes whose pieces are a slot long.
fn slice_bytes(call: &Call, candidate: &Candidate, boxes: u32) -> u64 {
    let ranks = boxes * call.per_box;
    let blocks = call.collective.input_blocks(ranks).max(call.collective.output_blocks(ranks));
    let parts = match candidate.algorithm {
        Algorithm::Ring if call.collective == Collective::AllReduce => ranks,
        Algorithm::Nvls | Algorithm::NvlsTree if call.collective == Collective::AllReduce => call.per_box,
        _ => 1,
    };
    candidate.slots.bytes as u64 * u64::from(blocks) * u64::from(parts) * u64::from(candidate.channels)
}

fn closed(call: &Call) -> simulate::nccl_model::Call {
    simulate::nccl_model::Call {
        collective: call.collective,
        ranks: call.boxes * call.per_box,
        nodes: call.boxes,
        bytes: call.bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::dgx_h100;

    fn prices<R>(with: impl FnOnce(&mut Prices<'_>) -> R) -> R {
        let nccl = |boxes: u32| Machine::h100(boxes, 45.0);
        with(&mut Prices::new(Fleet { wires: &dgx_h100, nccl: &nccl }))
    }

    fn call(collective: Collective, boxes: u32, bytes: u64) -> Call {
        Call { collective, bytes, per_box: 8, boxes }
    }

    #[test]
    fn continued_prices_are_those_of_whole_runs() {
        prices(|prices| {
            for (collective, bytes) in [
                (Collective::AllReduce, 1 << 20),
                (Collective::AllGather, 16 << 20),
                (Collective::Broadcast, 1 << 20),
            ] {
                let call = call(collective, 8, bytes);
                for candidate in prices.candidates(&call) {
                    if candidate.protocol != Protocol::Simple || candidate.algorithm != Algorithm::Ring {
                        continue;
                    }
                    let continued = prices.seconds(&call, &candidate);
                    let whole = prices.run(&call, &candidate, 8, bytes);
                    let off = (continued / whole - 1.0).abs();
                    assert!(off < 0.05, "{collective} by {candidate:?}: {continued} for {whole}");
                }
            }
            let call = call(Collective::AllReduce, 16, 4 << 20);
            for candidate in prices.candidates(&call) {
                if candidate.protocol == Protocol::Simple && candidate.algorithm != Algorithm::Ring {
                    let continued = prices.seconds(&call, &candidate);
                    let whole = prices.run(&call, &candidate, 16, call.bytes);
                    assert!((continued / whole - 1.0).abs() < 0.1, "{candidate:?}: {continued} for {whole}");
                }
            }
        });
    }

    #[test]
    fn nccl_has_what_its_model_has() {
        prices(|prices| {
            let of = |boxes, collective| {
                let call = call(collective, boxes, 1 << 20);
                let mut names: Vec<String> =
                    prices.candidates(&call).iter().map(|of| format!("{:?}", of.algorithm)).collect();
                names.dedup();
                names.join(" ")
            };
            assert_eq!(of(1, Collective::AllReduce), "Ring Tree Nvls");
            assert_eq!(of(2, Collective::AllReduce), "Ring Tree NvlsTree");
            assert_eq!(of(1, Collective::AllGather), "Ring Nvls");
            assert_eq!(of(2, Collective::Reduce), "Ring");
            assert_eq!(of(2, Collective::AllToAll), "");
        });
    }
}
