//! The machines on which NCCL's schedules are known, with any number of boxes.
//!
//! Invariant: wires, costs and NCCL's channels belong to one machine. Absent: machines that NCCL's model does not know.

use consort::planning::comparison::{Fleet, rated};
use consort::planning::hardware::Rates;
use consort::planning::simulate::nccl_model;
use consort::planning::{Collective, Rank, Topology, bounds, topology};

/// GPUs of a box of these machines.
pub(crate) const PER_BOX: u32 = 8;

/// A kind of machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    A100,
    H100,
    H200,
}

impl Kind {
    pub(crate) const ALL: [Kind; 3] = [Kind::A100, Kind::H100, Kind::H200];

    /// The name of its profile.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Kind::A100 => "dgx-a100",
            Kind::H100 => "dgx-h100",
            Kind::H200 => "dgx-h200",
        }
    }

    /// The kind of a topology, by the name of its profile.
    pub(crate) fn of(topology: &Topology) -> Option<Kind> {
        let name = topology.name.split(':').next()?;
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The machine with that number of boxes.
    pub(crate) fn wires(self, boxes: u32, rates: Rates) -> Topology {
        let sheet = match self {
            Kind::A100 => topology::dgx_a100(boxes),
            Kind::H100 => topology::dgx_h100(boxes),
            Kind::H200 => topology::dgx_h200(boxes),
        };
        match (rates, self) {
            (Rates::DataSheet, _) => sheet,
            // PCIe of generation 4 and of generation 5, 16 lanes.
            (Rates::Nccl, Kind::A100) => rated(&sheet, 80, 24_000_000_000),
            (Rates::Nccl, _) => rated(&sheet, 90, 48_000_000_000),
        }
    }

    /// What NCCL's search finds on it.
    pub(crate) fn nccl(self, boxes: u32) -> nccl_model::Machine {
        match self {
            Kind::A100 => nccl_model::Machine::a100(boxes, PER_BOX),
            // 45 GB/s of 400 Gb/s.
            _ => nccl_model::Machine::h100(boxes, 45.0),
        }
    }
}

/// Calls `with` with the fleet of a kind of machine.
pub(crate) fn with_fleet<R>(kind: Kind, rates: Rates, with: impl FnOnce(Fleet<'_>) -> R) -> R {
    let wires = |boxes: u32| kind.wires(boxes, rates);
    let nccl = |boxes: u32| kind.nccl(boxes);
    with(Fleet { wires: &wires, nccl: &nccl })
}

/// What no call is expected to beat.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Bound {
    bytes_s: f64,
    latency_s: f64,
}

impl Bound {
    /// The bandwidth bound of a collective on a machine, and the time of `2 log2(boxes)` hops between boxes.
    pub(crate) fn of(topology: &Topology, collective: Collective) -> Option<Bound> {
        let bound = bounds::bound(topology, collective, &bounds::Options::default()).ok()?;
        let boxes = topology.boxes();
        let (first, second) = (boxes.first()?.first()?, boxes.get(1).and_then(|ranks| ranks.first()));
        let hop_ns = second.map_or(0, |second| hop_ns(topology, *first, *second));
        let hops = 2.0 * (boxes.len() as f64).log2();
        Some(Bound { bytes_s: bound.gb_s() * 1e9, latency_s: hops * hop_ns as f64 * 1e-9 })
    }

    /// Seconds for a size.
    pub(crate) fn seconds(self, bytes: u64) -> f64 {
        bytes as f64 / self.bytes_s + self.latency_s
    }
}

/// A message without bytes: wires, and the work of both ends.
fn hop_ns(topology: &Topology, from: Rank, to: Rank) -> u64 {
    let route = topology::Routes::new(topology).from(from.into(), &[to.into()]).swap_remove(0);
    let wires: u64 =
        route.unwrap_or_default().iter().map(|link| topology.links()[link.index()].latency_ns).sum();
    wires + topology.costs.send_ns + topology.costs.receive_ns
}
