//! How far candidates are from what no schedule can exceed on the machine's wires.
//!
//! Invariant: only where links carry the bytes; where cores do, wires are no limit. Absent: latencies, so that short calls are far
//! from it.

use consort_algorithms::bounds;
use consort_algorithms::topology::Topology;
use consort_algorithms::{Collective, Rank};

use super::searched::moves_by_links;
use super::{Planning, SIMULATED_RANKS_MAX};
use crate::planner::carriers::Carrier;
use crate::planner::explain::{Candidate, ProvableBound};

impl Planning {
    /// The wires on which a call is bounded, on the host or on devices.
    fn wires(&self, on_devices: bool) -> Option<&Topology> {
        if self.is_named {
            return Some(&self.topology).filter(|topology| moves_by_links(topology));
        }
        let of_devices = || {
            self.device_graph.as_ref().filter(|graph| graph.ranks() == self.ranks() && moves_by_links(graph))
        };
        let between_hosts = || {
            Some(&self.topology).filter(|topology| topology.measured && self.machine.between.is_messages())
        };
        if on_devices { of_devices() } else { between_hosts() }
    }

    /// The least time in which a call with blocks of `block_bytes` bytes is possible, rooted ones at rank 0; none where no wires
    /// are known, no bound is of such a collective, or there are more than [`SIMULATED_RANKS_MAX`] ranks, for which a bound may
    /// take half a minute.
    pub(in super::super) fn bound(
        &self,
        collective: Collective,
        block_bytes: u64,
        on_devices: bool,
    ) -> Option<ProvableBound> {
        // A named machine is that of the host and of the devices.
        let of = usize::from(on_devices && !self.is_named);
        let bounds = &self.bounds[of][collective.number()?];
        let bound = bounds.get_or_init(|| {
            let is_rooted = matches!(collective, Collective::Broadcast | Collective::Reduce);
            let options = bounds::Options { root: is_rooted.then_some(Rank(0)), ..Default::default() };
            let wires = self.wires(on_devices).filter(|wires| wires.ranks() <= SIMULATED_RANKS_MAX)?;
            bounds::bound(wires, collective, &options).ok()
        });
        let bound = bound.as_ref()?;
        let ranks = self.ranks_of(collective);
        let blocks = u64::from(collective.input_blocks(ranks).max(collective.output_blocks(ranks)));
        let bytes_s = bound.rate.value();
        let seconds = block_bytes.saturating_mul(blocks) as f64 / bytes_s;
        seconds.is_finite().then(|| ProvableBound {
            seconds,
            bytes_s,
            exact: bound.exact,
            argument: bound.argument.name(),
            cut: bound.cut.words.clone(),
        })
    }
}

/// Gives the candidates their distances from the bound: those that take the wires which it is of. Switches that fold, hosts, and
/// devices that several ranks share go other ways.
pub(in super::super) fn measured_by(bound: Option<&ProvableBound>, candidates: &mut [Candidate]) {
    let Some(bound) = bound else { return };
    let by_wires = |of: &Candidate| matches!(of.carrier, Carrier::Host | Carrier::Kernels | Carrier::Packets);
    let is_bounded = |of: &&mut Candidate| !of.algorithm.is_switched() && by_wires(of);
    for candidate in candidates.iter_mut().filter(is_bounded) {
        // A price is a model's, and may leave out what the bound counts.
        let share = (bound.seconds / candidate.predicted_s).min(1.0);
        candidate.bound_share = share.is_finite().then_some(share);
    }
}
