//! What a search finds on the machine, as algorithms.
//!
//! Invariant: it follows from the topology alone, which all ranks have agreed on, so that all have the same candidates. A
//! schedule is proved before it is one. Absent: choosing; a candidate that was found has no other advantage than its price.

use std::sync::OnceLock;

use consort_algorithms::catalogue::{Algorithm, Imported};
use consort_algorithms::search::{self, Rings, Trees};
use consort_algorithms::{Collective, LowerOptions, Schedule};

use super::Planning;
use consort_settings::options::SLOTS;

/// The most ranks for which what is found is offered: all its messages are simulated and proved.
const RANKS_MAX: u32 = 32;

/// Nanoseconds in which a byte is folded where it is not a processor's core that does it; cores take 0.1 in the profiles. Where
/// cores move every byte, they and not the links are what channels share.
const FOLD_NS_MAX: f64 = 0.02;

/// See [`Found::patience`].
const TREES_PATIENCE: u64 = 4;

/// What was found, once it is asked for.
#[derive(Debug, Default)]
pub(super) struct Searched {
    rings: OnceLock<Rings>,
    trees: OnceLock<Trees>,
    algorithms: [OnceLock<Vec<Found>>; Collective::ALL.len()],
}

/// A schedule that was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) algorithm: Algorithm,
    /// Bytes of the vector a second that its links carry: no call is faster, whatever a simulation continues from a beginning.
    pub(super) bytes_s: f64,
    /// Messages that are simulated for a price, as a multiple of those for others. A tree has few messages a slice and its stages
    /// fill slowly: after the number that others need it still looked up to 1.8 times as fast as it is.
    pub(super) patience: u64,
}

impl Planning {
    /// Whether a search found this algorithm on the machine. Its name says what it is to this process alone: a tuning table
    /// cannot hold it.
    pub fn is_searched(&self, algorithm: Algorithm, collective: Collective) -> bool {
        self.searched(collective).iter().any(|found| found.algorithm == algorithm)
    }

    /// The algorithms that were found for `collective` on a machine that a setting names: what ranks say of their hosts is no
    /// list of links.
    pub(super) fn searched(&self, collective: Collective) -> &[Found] {
        // Plans of rooted collectives count ranks from the root, which need not be the first rank of the machine.
        let rooted = matches!(collective, Collective::Broadcast | Collective::Reduce);
        let ranks = self.topology.ranks();
        let by_cores = self.topology.costs.reduce_ns_per_byte > FOLD_NS_MAX;
        if !self.is_named || rooted || by_cores || !(2..=RANKS_MAX).contains(&ranks) {
            return &[];
        }
        self.searched.algorithms[collective as usize].get_or_init(|| {
            let options = search::Options::default();
            let rings = self.searched.rings.get_or_init(|| search::rings(&self.topology, &options));
            let by_rings = rings.schedule(collective).zip(rings.rate(collective));
            let mut found: Vec<(Schedule, f64, u64)> =
                by_rings.map(|(schedule, rate)| (schedule, rate.value(), 1)).into_iter().collect();
            if collective == Collective::AllReduce {
                let trees = self.searched.trees.get_or_init(|| search::trees(&self.topology, &options));
                let by_trees = trees.schedule(collective);
                found.extend(by_trees.map(|schedule| (schedule, trees.total().value(), TREES_PATIENCE)));
            }
            let proved = |(schedule, bytes_s, patience)| {
                let imported = Imported::new(schedule, &LowerOptions { slots: SLOTS }).ok()?;
                Some(Found { algorithm: Algorithm::Imported(imported), bytes_s, patience })
            };
            found.into_iter().filter_map(proved).collect()
        })
    }
}
