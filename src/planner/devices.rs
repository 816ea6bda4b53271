//! Which program runs a call over mailboxes on devices: the candidates, why each is left out, and the least.
//!
//! Invariant: the same on all ranks, as it follows from the call, the number of ranks and what they have agreed on.
//! Absent: which path devices take (`device/table`), and seconds: see [`Weight`].

use std::fmt;

use consort_algorithms::Collective;
use consort_algorithms::catalogue::Algorithm;
use serde::Serialize;

use super::{Planner, Program, Proved};
use consort_types::call::{Call, Kind};
use consort_types::error::{Error, Result};

/// The longest all-reduce, in bytes, that every rank folds whole; in longer ones each rank folds its share.
const DIRECT_BYTES_MAX: usize = 256 << 10;
/// What an all-reduce in packets is called beside the plans.
pub(crate) const PACKETS: &str = "one-shot, in packets";

/// The price of a candidate: an order, and no measurement of a GPU. The figures say what was chosen before there were prices:
/// what the call names; then packets; then the fewest steps; among all-reduces above [`DIRECT_BYTES_MAX`] whatever lets each
/// rank fold its share.
type Weight = u32;

/// What the devices of a communicator have for a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ground {
    /// Ranks of the communicator.
    pub(crate) ranks: u32,
    /// Lanes of a plan, at most.
    pub(crate) lanes_max: usize,
    /// Mailboxes that one rank fills at another, at most.
    pub(crate) boxes_max: usize,
    /// Whether a kernel of its own can run a call in packets.
    pub(crate) packets: Packets,
}

/// What there is for calls in packets.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Packets {
    /// No kernel runs there.
    NoKernels,
    /// A rank shares its device with another of its process.
    Shared,
    /// The most bytes of a call in packets, and the most ranks.
    Of { bytes_max: usize, ranks_max: usize },
}

impl Packets {
    /// Why a call does not go in packets, if it does not.
    pub(crate) fn exclude(self, call: &Call, ranks: u32) -> Option<Exclusion> {
        match self {
            Packets::NoKernels => Some(Exclusion::NoKernels),
            Packets::Shared => Some(Exclusion::SharedDevice),
            Packets::Of { .. } if call.algorithm.is_some() => Some(Exclusion::Named),
            Packets::Of { bytes_max, .. } if call.count * call.data_type.size() > bytes_max => {
                Some(Exclusion::Bytes(bytes_max))
            }
            Packets::Of { ranks_max, .. } if ranks as usize > ranks_max => Some(Exclusion::Ranks(ranks_max)),
            Packets::Of { .. } => None,
        }
    }
}

/// Why a candidate cannot be chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Exclusion {
    NoKernels,
    SharedDevice,
    Named,
    Bytes(usize),
    Ranks(usize),
    Lanes(usize, usize),
    Boxes(usize, usize),
}

impl fmt::Display for Exclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exclusion::NoKernels => f.write_str("no kernels wait for each other on this path"),
            Exclusion::SharedDevice => f.write_str("a rank shares its device with another of its process"),
            Exclusion::Named => f.write_str("the call names its algorithm"),
            Exclusion::Bytes(most) => write!(f, "packets hold {most} bytes at most"),
            Exclusion::Ranks(most) => write!(f, "packets go to {most} ranks at most"),
            Exclusion::Lanes(has, most) => {
                write!(f, "its plans have up to {has} lanes, {most} at most run here")
            }
            Exclusion::Boxes(has, most) => {
                write!(f, "it needs {has} mailboxes between two ranks, and there are {most}")
            }
        }
    }
}

/// One way of a call on devices, for people and as data.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct DeviceCandidate {
    /// What it is called.
    pub name: String,
    /// Whether it is the one that runs.
    pub chosen: bool,
    /// Why it cannot be chosen, where it cannot.
    pub excluded: Option<String>,
    /// The order in which candidates are preferred, the least first: no time.
    pub weight: u32,
    /// The hash of the order in which it folds, where there is one.
    pub fold_hash: Option<u64>,
}

/// The algorithms for a call, the least weight first, and the first of equals.
fn weighed(call: &Call, ranks: u32) -> Vec<(Weight, Algorithm)> {
    let collective = call.kind.collective();
    let size = if collective == Collective::SendReceive { 2 } else { ranks };
    let long = collective == Collective::AllReduce && call.count * call.data_type.size() > DIRECT_BYTES_MAX;
    let direct = Algorithm::Direct { first: call.first_folded(ranks) };
    let named = call.algorithm.map(|algorithm| (0, algorithm));
    let catalogue = [
        (2, Algorithm::Pair),
        (if long { 5 } else { 2 }, direct),
        (2, Algorithm::Spread),
        (3, Algorithm::TwoShot),
        (3, Algorithm::Pairwise),
        (4, Algorithm::RING),
    ];
    let mut all: Vec<_> = named.into_iter().chain(catalogue).collect();
    all.retain(|(_, algorithm)| algorithm.is_defined(collective, size));
    all.sort_by_key(|(weight, _)| *weight);
    all
}

impl Planner {
    /// The program of `rank` for a call: the least that has few enough lanes and mailboxes.
    ///
    /// # Errors
    /// Where no algorithm has so few.
    pub(crate) fn on_devices(&self, call: &Call, rank: u32, ground: &Ground) -> Result<Proved> {
        for (_, algorithm) in weighed(call, ground.ranks) {
            let proved = self.for_devices(call, algorithm, rank, ground.ranks)?;
            if ground.exclude(&proved).is_none() {
                return Ok(proved);
            }
        }
        let (collective, ranks) = (call.kind.collective(), ground.ranks);
        Err(Error::internal(format!("no plan of few lanes for {collective} over {ranks} ranks")))
    }

    fn for_devices(&self, call: &Call, algorithm: Algorithm, rank: u32, ranks: u32) -> Result<Proved> {
        let collective = call.kind.collective();
        let size = if collective == Collective::SendReceive { 2 } else { ranks };
        let relative = match call.kind {
            Kind::Send => 0,
            Kind::Receive => 1,
            _ => (rank + ranks - call.root) % ranks,
        };
        self.plan(Program { collective, ranks: size, algorithm }, relative, vec![true; size as usize])
    }

    /// All candidates for a call, the least first.
    ///
    /// # Errors
    /// Where a plan is refused.
    pub(crate) fn explain_on_devices(
        &self,
        call: &Call,
        rank: u32,
        ground: &Ground,
    ) -> Result<Vec<DeviceCandidate>> {
        let mut all = Vec::new();
        for (weight, algorithm) in weighed(call, ground.ranks) {
            let proved = self.for_devices(call, algorithm, rank, ground.ranks)?;
            let excluded = ground.exclude(&proved).map(|why| why.to_string());
            let (name, fold_hash) = (algorithm.to_string(), Some(proved.fold_hash));
            all.push(DeviceCandidate { name, chosen: false, excluded, weight, fold_hash });
        }
        if call.kind == Kind::AllReduce {
            let excluded = ground.packets.exclude(call, ground.ranks).map(|why| why.to_string());
            // They fold as the plan of this name does.
            let direct = self.for_devices(call, Algorithm::Direct { first: 0 }, rank, ground.ranks)?;
            let (name, fold_hash) = (PACKETS.to_owned(), Some(direct.fold_hash));
            all.insert(0, DeviceCandidate { name, chosen: false, excluded, weight: 1, fold_hash });
            all.sort_by_key(|candidate| candidate.weight);
        }
        if let Some(chosen) = all.iter_mut().find(|candidate| candidate.excluded.is_none()) {
            chosen.chosen = true;
        }
        Ok(all)
    }
}

impl Ground {
    /// Of all ranks: one that chose alone might choose another plan than its peers.
    fn exclude(&self, proved: &Proved) -> Option<Exclusion> {
        if proved.lanes_max > self.lanes_max {
            return Some(Exclusion::Lanes(proved.lanes_max, self.lanes_max));
        }
        (proved.mailboxes_max > self.boxes_max)
            .then_some(Exclusion::Boxes(proved.mailboxes_max, self.boxes_max))
    }
}

/// Why a call on devices runs as it does. [`Display`](fmt::Display) is two tables.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct DeviceExplanation {
    /// What is called, for people.
    pub call: String,
    /// The paths, the first that is not excluded being taken.
    pub paths: Vec<DeviceCandidate>,
    /// The programs of the path; none where the path has one alone, and those of [`Planning::explain`](super::Planning::explain)
    /// where it is the host's.
    pub programs: Vec<DeviceCandidate>,
}

impl DeviceExplanation {
    /// The same as JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl fmt::Display for DeviceExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.call)?;
        for (title, all) in [("path", &self.paths), ("program", &self.programs)] {
            for DeviceCandidate { name, chosen, excluded, fold_hash, .. } in all {
                let mark = if *chosen { '*' } else { ' ' };
                let fold = fold_hash.map_or_else(String::new, |hash| format!("  fold {hash:016x}"));
                let why = excluded.as_ref().map_or_else(String::new, |why| format!("  (excluded: {why})"));
                writeln!(f, "{mark} {title:7} {name:22}{fold}{why}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use consort_kernels::{DataType, ReduceOp};

    use super::*;

    /// The rule that the weights stand for.
    fn by_rule(call: &Call, ranks: u32) -> Vec<Algorithm> {
        let direct = Algorithm::Direct { first: call.first_folded(ranks) };
        let mut all = match call.kind.collective() {
            Collective::SendReceive => vec![Algorithm::Pair],
            Collective::AllReduce if call.count * call.data_type.size() <= 256 << 10 => vec![direct],
            Collective::AllReduce => vec![Algorithm::TwoShot],
            Collective::AllToAll => vec![Algorithm::Spread, Algorithm::Pairwise],
            _ => vec![direct],
        };
        all.push(Algorithm::RING);
        all
    }

    fn call(kind: Kind, count: usize) -> Call {
        let op = kind.collective().reduces().then_some(ReduceOp::Sum);
        Call::new(kind, DataType::Float32, op, 0, count)
    }

    fn ground(ranks: u32, lanes_max: usize) -> Ground {
        let packets = Packets::Of { bytes_max: 32 << 10, ranks_max: 16 };
        Ground { ranks, lanes_max, boxes_max: 2, packets }
    }

    #[test]
    fn the_least_is_what_the_thresholds_chose() {
        let planner = Planner::default();
        let kinds = [
            Kind::AllReduce,
            Kind::Reduce,
            Kind::Broadcast,
            Kind::AllGather,
            Kind::ReduceScatter,
            Kind::AllToAll,
            Kind::Gather,
            Kind::Scatter,
            Kind::Send,
        ];
        for (ranks, lanes_max) in (1..=9).flat_map(|ranks| [1, 2, 4, 7, 32].map(|lanes| (ranks, lanes))) {
            let ground = ground(ranks, lanes_max);
            for (kind, count) in kinds.into_iter().flat_map(|kind| [0, 65536, 65537].map(|n| (kind, n))) {
                let call = call(kind, count);
                let collective = kind.collective();
                let size = if collective == Collective::SendReceive { 2 } else { ranks };
                let rule = by_rule(&call, ranks).into_iter();
                let mut proved = rule
                    .filter(|algorithm| algorithm.is_defined(collective, size))
                    .map(|algorithm| planner.for_devices(&call, algorithm, 0, ranks).expect("proved"));
                let fits = |of: &Proved| of.lanes_max <= lanes_max && of.mailboxes_max <= 2;
                let expected = proved.find(fits).map(|proved| proved.plan.name.clone());
                let chosen =
                    planner.on_devices(&call, 0, &ground).ok().map(|proved| proved.plan.name.clone());
                assert_eq!(chosen, expected, "{collective} of {count} over {ranks}, {lanes_max} lanes");
            }
        }
    }

    #[test]
    fn what_is_left_out_says_why() {
        let planner = Planner::default();
        let chosen = |call: &Call, ground: &Ground| {
            let all = planner.explain_on_devices(call, 0, ground).expect("explained");
            assert!(all.iter().all(|of| of.fold_hash.is_some()));
            all.into_iter().find(|of| of.chosen).expect("one").name
        };
        let why = |call: &Call, ground: &Ground, name: &str| {
            let all = planner.explain_on_devices(call, 0, ground).expect("explained");
            let found = all.into_iter().find(|of| of.name == name).expect("it is listed");
            found.excluded.unwrap_or_default()
        };
        let (short, long) = (call(Kind::AllReduce, 8192), call(Kind::AllReduce, 8193));
        assert_eq!([chosen(&short, &ground(4, 16)), chosen(&long, &ground(4, 16))], [PACKETS, "direct"]);
        assert!(why(&long, &ground(4, 16), PACKETS).contains("32768 bytes at most"));
        assert!(why(&short, &ground(17, 16), PACKETS).contains("16 ranks at most"));
        assert!(why(&short, &ground(4, 1), "two-shot").contains("lanes"));
        let named = Call { algorithm: Some(Algorithm::RING), ..short };
        assert_eq!(chosen(&named, &ground(4, 16)), "ring");
        assert!(why(&named, &ground(4, 16), PACKETS).contains("names"));
        let crowded = Ground { packets: Packets::Shared, ..ground(4, 16) };
        assert_eq!(chosen(&short, &crowded), "direct");
        assert!(why(&short, &crowded, PACKETS).contains("shares its device"));
    }
}
