//! How far candidates are from what no schedule can exceed on the machine's wires.
//!
//! Invariant: only where links carry the bytes; where cores do, wires are no limit. Absent: latencies, so that short calls are far
//! from it.

use consort_algorithms::bounds;
use consort_algorithms::topology::Topology;
use consort_algorithms::{Collective, Rank};

use super::Planning;
use super::searched::moves_by_links;
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
        let between_hosts =
            || Some(&self.topology).filter(|topology| topology.measured && self.machine.sockets);
        if on_devices { of_devices() } else { between_hosts() }
    }

    /// The least time in which a call with blocks of `block_bytes` bytes is possible, rooted ones at rank 0; none where no wires
    /// are known, or no bound is of such a collective.
    pub(in super::super) fn bound(
        &self,
        collective: Collective,
        block_bytes: u64,
        on_devices: bool,
    ) -> Option<ProvableBound> {
        let bounds = &self.bounds[usize::from(on_devices)][collective.number()?];
        let bound = bounds.get_or_init(|| {
            let is_rooted = matches!(collective, Collective::Broadcast | Collective::Reduce);
            let options = bounds::Options { root: is_rooted.then_some(Rank(0)), ..Default::default() };
            bounds::bound(self.wires(on_devices)?, collective, &options).ok()
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

/// Gives the candidates their distances from the bound. Switches that fold, and hosts, go over other wires.
pub(in super::super) fn measured_by(bound: Option<&ProvableBound>, candidates: &mut [Candidate]) {
    let Some(bound) = bound else { return };
    let is_bounded = |of: &&mut Candidate| !of.algorithm.is_switched() && of.carrier != Carrier::Staging;
    for candidate in candidates.iter_mut().filter(is_bounded) {
        let share = bound.seconds / candidate.predicted_s;
        candidate.bound_share = share.is_finite().then_some(share);
    }
}
