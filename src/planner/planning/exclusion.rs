//! Why an algorithm is no candidate although it is defined.
//!
//! Invariant: whatever keeps an algorithm from being chosen has a reason here, in words for people. Absent: prices.

use consort_algorithms::Collective;
use consort_algorithms::catalogue::{Algorithm, Family, Range};

use super::super::selector::Eligibility;
use super::{Planning, SIMULATED_RANKS_MAX};
use consort_settings::options::{Determinism, SLOTS};
use consort_types::error::Error;

/// Places of memory that a proof of all ranks together follows, at most.
const PROVED_PLACES_MAX: u64 = 6 << 20;

/// Lanes of trees of all ranks that a proof follows at most, tree by tree: 1,024 ranks with 128 trees, up and down.
const TREE_LANES_MAX: u64 = 1 << 18;

impl Planning {
    /// Which restriction leaves an algorithm out, if one does.
    pub(in super::super) fn restricts(&self, algorithm: Algorithm, collective: Collective) -> Option<String> {
        let restriction = &self.preferences.restriction;
        if restriction.is_none() || collective == Collective::SendReceive {
            return None;
        }
        if restriction.allows(collective, algorithm.family(), &self.sources(algorithm, collective)) {
            return None;
        }
        let by = restriction.origin.as_ref().map_or("the settings", |(variable, _)| variable.as_str());
        Some(format!("{by} leaves it out"))
    }

    /// What speaks against an algorithm on the links of the host.
    pub(super) fn eligibility(&self, algorithm: Algorithm, collective: Collective) -> Eligibility {
        if let Some(why) = self.restricts(algorithm, collective) {
            return Eligibility::Out(why);
        }
        if self.reorders(algorithm, collective) {
            let why = "bits are to be invariant, and it folds in another order than that of the ranks";
            return Eligibility::Out(why.into());
        }
        if let Some(why) = self.unreachable(algorithm) {
            return Eligibility::Out(why.into());
        }
        // What could not be proved would be refused when it is needed.
        let unprovable = unprovable(algorithm, collective, self.ranks_of(collective));
        unprovable.map_or(Eligibility::Free, Eligibility::Last)
    }

    /// The error where nothing is left of what is defined.
    pub(super) fn impossible(&self, collective: Collective, all: &[Algorithm]) -> Error {
        let ranks = self.ranks_of(collective);
        if !collective.fits(ranks) {
            return Error::invalid(
                format!("{collective}: {ranks} ranks are not in groups of that size"),
                "ask for groups whose size divides the number of ranks",
            );
        }
        let is_possible = |algorithm: &&Algorithm| {
            !self.reorders(**algorithm, collective) && self.unreachable(**algorithm).is_none()
        };
        let possible = all.iter().filter(is_possible);
        let name =
            |of: &Algorithm| self.sources(*of, collective).first().map(|source| source.name().to_owned());
        let mut possible: Vec<String> =
            possible.map(|of| name(of).unwrap_or_else(|| of.family().to_string())).collect();
        // Those of one family are neighbours.
        possible.dedup();
        let invariant = (self.preferences.determinism == Determinism::Invariant)
            .then(|| "CONSORT_DETERMINISM is \"invariant\"".to_owned());
        let restriction = self.preferences.restriction.origin.as_ref();
        let restriction = restriction.map(|(variable, text)| format!("{variable} is {text:?}"));
        let settings: Vec<String> = restriction.into_iter().chain(invariant).collect();
        // What a schedule along rails needs is no setting of algorithms.
        let names_rails = [Family::Rails, Family::RailTrees]
            .iter()
            .any(|family| self.preferences.restriction.names(collective, *family, &[]));
        let need = match self.shape.rails {
            0 if names_rails => {
                "; schedules along rails need CONSORT_TOPOLOGY to name a machine of equal boxes"
            }
            _ => "",
        };
        Error::invalid(
            format!(
                "{}, which leaves no algorithm for {collective} over {ranks} ranks",
                settings.join(" and "),
            ),
            format!("possible: {}{need}", possible.join(", ")),
        )
    }

    /// Why no call takes an algorithm, whatever its price.
    pub(super) fn unreachable(&self, algorithm: Algorithm) -> Option<&'static str> {
        algorithm
            .is_switched()
            .then_some("switches fold in no order that stays, and no transport reaches them")
    }

    /// Why an algorithm cannot be chosen for a collective, if it cannot.
    pub(super) fn excludes(
        &self,
        algorithm: Algorithm,
        collective: Collective,
        allowed: &[Algorithm],
    ) -> Option<String> {
        if allowed.contains(&algorithm) {
            return None;
        }
        let named = || match algorithm {
            Algorithm::Imported(of) if of.range() != Range::ALL => {
                let Range { least, most } = of.range();
                format!("it is meant for {least} to {most} bytes")
            }
            _ => "only a call that names it takes it".into(),
        };
        Some(self.eligibility(algorithm, collective).reason().unwrap_or_else(named))
    }
}

/// Why the plans of all ranks cannot be proved before they run, together or from one of them, if they cannot.
fn unprovable(algorithm: Algorithm, collective: Collective, ranks: u32) -> Option<String> {
    if ranks <= SIMULATED_RANKS_MAX || algorithm.regular(collective, ranks).is_some() {
        return None;
    }
    let followed_to = algorithm.proved_ranks_max();
    if ranks > followed_to {
        return Some(format!("its proof follows {followed_to} ranks at most"));
    }
    let parts = u64::from(algorithm.parts(collective, ranks));
    // A tree has a lane on every rank, and two where it goes up and down.
    let ways = if collective == Collective::AllReduce { 2 } else { 1 };
    let lanes = parts * ways * u64::from(ranks);
    if algorithm.is_along_rails() && lanes > TREE_LANES_MAX {
        return Some(format!("its proof would follow {lanes} lanes, {TREE_LANES_MAX} at most are followed"));
    }
    let blocks = collective.input_blocks(ranks) + collective.output_blocks(ranks);
    let chunks = u64::from(blocks) * parts;
    let rounds = u64::from(2 * SLOTS + 1);
    // The verifier's own limit on memory that it follows, with some room for slots.
    let places = chunks * u64::from(ranks) * rounds;
    (places > PROVED_PLACES_MAX).then(|| {
        format!("its proof over {ranks} ranks would follow {places} places of memory, {PROVED_PLACES_MAX} at most are followed")
    })
}
