//! The carrier and the algorithm of a call on devices: the candidates, and the objections to them.
//!
//! Invariant: the same on all ranks, as it follows from the call, the number of ranks and what they have agreed on. Absent:
//! which paths devices can take (`device/table`), and prices (`carriers`).

use consort_algorithms::Collective;
use consort_algorithms::catalogue::Algorithm;
use consort_kernels::cuda::layout::MAX_RANKS;
use consort_kernels::{DataType, ReduceOp};

use super::carriers::{Carrier, Path, Way};
use super::explain::{Candidate, Explanation, Origin};
use super::planning::{Planning, SIMULATED_RANKS_MAX, size_class};
use super::selector::{Standing, eligible, least};
use super::{Planner, Program, Proved};
use consort_settings::options::TuningLine;
use consort_types::call::{Call, Kind};
use consort_types::error::{Error, Result};

/// The longest all-reduce, in bytes, that every rank folds whole; in longer ones each rank folds its share. By their prices the
/// two cross at 284 KiB among eight ranks.
const DIRECT_BYTES_MAX: u64 = 256 << 10;
/// The longest all-reduce in packets.
pub(crate) const PACKET_BYTES: usize = 32 << 10;
/// Mailboxes of collectives for each ordered pair of ranks: a two-shot all-reduce has one for each of its halves.
pub(crate) const BOXES: usize = 2;
/// Lanes of a plan that kernels run, at most.
const LANES_MAX: u32 = 16;

/// The means that the devices of a communicator have for its calls.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Ground {
    pub(crate) path: Path,
    /// Lanes of a plan, at most.
    lanes_max: usize,
    /// Whether each rank has its device for itself among those of its process: else no kernel runs calls in packets.
    alone: bool,
}

impl Ground {
    /// The means where a launch has at most `blocks_max` blocks.
    pub(crate) fn new(path: Path, blocks_max: u32, alone: bool) -> Self {
        let lanes_max = if path == Path::Kernels { blocks_max.min(LANES_MAX) as usize } else { 1 };
        Ground { path, lanes_max, alone }
    }

    /// The most that devices may have on a path.
    fn whole(path: Path) -> Self {
        Ground::new(path, LANES_MAX, true)
    }
}

/// The values on which a selection on devices depends besides the communicator: the collective, its size class, the rank at
/// which its fold begins, the algorithm that the call names, and the devices' means.
pub(super) type Key = (Collective, u64, u32, Option<Algorithm>, Ground);

/// A call on devices, as one rank sees it.
#[derive(Clone, Copy)]
struct Asked<'a> {
    planning: &'a Planning,
    call: &'a Call,
    rank: u32,
    ground: Ground,
}

impl Asked<'_> {
    fn collective(&self) -> Collective {
        self.call.kind.collective()
    }

    /// Bytes of a block, rounded up to its class.
    fn bytes(&self) -> u64 {
        size_class(self.call.count.saturating_mul(self.call.data_type.size()) as u64)
    }

    /// The algorithm, where the fold of a rooted call begins at rank 0.
    fn beginning(&self, algorithm: Algorithm) -> Algorithm {
        algorithm.beginning_at(self.call.first_folded(self.planning.ranks()))
    }

    /// The algorithms that are taken unasked.
    fn usual(&self) -> impl Iterator<Item = Algorithm> {
        let (collective, ranks) = (self.collective(), self.planning.ranks_of(self.collective()));
        let direct = self.beginning(Algorithm::Direct { first: 0 });
        let short = [Algorithm::Pair, direct, Algorithm::Spread];
        let all = short.into_iter().chain([Algorithm::TwoShot, Algorithm::Pairwise, Algorithm::RING]);
        all.filter(move |algorithm| algorithm.is_defined(collective, ranks))
    }

    /// The candidates, in the order that settles ties.
    fn ways(&self) -> Vec<Way> {
        let (carrier, collective) = (self.ground.path.carrier(), self.collective());
        if carrier == Carrier::Fused {
            return self.usual().take(1).map(|algorithm| (carrier, algorithm)).collect();
        }
        let mut all = Vec::new();
        if carrier == Carrier::Kernels && self.call.kind == Kind::AllReduce {
            // They fold as the plan of this name does.
            all.push((Carrier::Packets, Algorithm::Direct { first: 0 }));
        }
        let ranks = self.planning.ranks_of(collective);
        let named = self.call.algorithm.filter(|of| of.is_defined(collective, ranks));
        for algorithm in self.usual().chain(self.planning.all(collective)).chain(named) {
            let way = (carrier, self.beginning(algorithm));
            if !all.contains(&way) {
                all.push(way);
            }
        }
        all
    }

    /// The objection to a candidate that needs no look at its plan.
    fn standing(&self, (carrier, algorithm): Way) -> Standing {
        // Alone, a rank folds nothing.
        if carrier == Carrier::Fused && self.planning.ranks() == 1 {
            return Standing::Free;
        }
        if let Some(named) = self.call.algorithm {
            return match self.beginning(named) == algorithm && carrier != Carrier::Packets {
                true => Standing::Free,
                false => Standing::Out("the call names its algorithm".into()),
            };
        }
        let (ranks, bytes) = (self.planning.ranks(), self.bytes());
        if let Some(why) = self.planning.restricts(algorithm, self.collective()) {
            return Standing::Out(why);
        }
        let names = || self.planning.preferences.restriction.names(self.collective(), algorithm.family());
        let folds_whole = self.collective() == Collective::AllReduce && algorithm.is_direct();
        match carrier {
            Carrier::Packets if !self.ground.alone => {
                Standing::Out("a rank shares its device with another of its process".into())
            }
            Carrier::Packets if bytes > PACKET_BYTES as u64 => {
                Standing::Out(format!("packets hold {PACKET_BYTES} bytes at most"))
            }
            Carrier::Packets if ranks as usize > MAX_RANKS => {
                Standing::Out(format!("packets go to {MAX_RANKS} ranks at most"))
            }
            Carrier::Packets | Carrier::Fused => Standing::Free,
            _ if !algorithm.is_imported() && !names() && self.usual().all(|usual| usual != algorithm) => {
                Standing::Last("on devices a call, a restriction or a table has to name it".into())
            }
            _ if folds_whole && bytes > DIRECT_BYTES_MAX => {
                Standing::Last(format!("above {DIRECT_BYTES_MAX} bytes each rank folds its share"))
            }
            _ if algorithm.is_two_shot() && bytes <= DIRECT_BYTES_MAX => {
                Standing::Last(format!("up to {DIRECT_BYTES_MAX} bytes every rank folds all"))
            }
            _ => Standing::Free,
        }
    }

    fn proved(&self, algorithm: Algorithm) -> Result<Proved> {
        Planner::of_process().for_devices(self.call, algorithm, self.rank, self.planning.ranks())
    }

    /// Why the plans of a candidate do not run. Those of all ranks: one that chose alone might choose another than its peers.
    fn misfit(&self, (carrier, algorithm): Way) -> Result<Option<String>> {
        if !matches!(carrier, Carrier::Kernels | Carrier::Streams) {
            return Ok(None);
        }
        let Proved { lanes_max: lanes, mailboxes_max: boxes, .. } = self.proved(algorithm)?;
        let most = self.ground.lanes_max;
        if lanes > most {
            return Ok(Some(format!("its plans have up to {lanes} lanes, {most} at most run here")));
        }
        let few = || format!("it needs {boxes} mailboxes between two ranks, and there are {BOXES}");
        Ok((boxes > BOXES).then(few))
    }

    /// The objection to a candidate.
    fn against(&self, way: Way) -> Result<Standing> {
        match self.standing(way) {
            Standing::Out(why) => Ok(Standing::Out(why)),
            standing => Ok(self.misfit(way)?.map_or(standing, Standing::Out)),
        }
    }

    /// The candidate of the path's tuning table, or else the one with the least price.
    fn select(&self) -> Result<(Way, Origin)> {
        let (planning, collective, bytes) = (self.planning, self.collective(), self.bytes());
        if self.ground.path == Path::Host {
            let explained = match self.call.algorithm {
                Some(algorithm) => planning.demand(algorithm, collective, bytes),
                None => planning.choose(collective, bytes),
            };
            return explained.map(|chosen| ((Carrier::Staging, chosen.algorithm), Origin::Priced));
        }
        let all = self.ways();
        if let Some(tuned) = self.tuned(&all)? {
            return Ok((tuned, Origin::Tuned));
        }
        let (mut left, named) = (all.clone(), self.call.algorithm);
        let price = |way| planning.price_by(way, collective, bytes);
        while let Some(way) = least(&eligible(&left, |way| self.standing(way)), price) {
            if self.misfit(way)?.is_none() {
                return Ok((way, if named.is_some() { Origin::Named } else { Origin::Priced }));
            }
            left.retain(|other| *other != way);
        }
        let why = |way: &Way| -> Result<String> {
            let why = self.against(*way)?.reason().unwrap_or_default();
            Ok(format!("{}/{}: {why}", way.0.name(), way.1))
        };
        let why = all.iter().map(why).collect::<Result<Vec<_>>>()?.join("; ");
        let path = self.ground.path;
        if let Some(named) = named {
            consort_settings::notice::warn(&format!(
                "{named}, which a call of {collective} names, is not taken on the {path} path of devices: {why}"
            ));
            return Asked { call: &Call { algorithm: None, ..*self.call }, ..*self }.select();
        }
        Err(Error::invalid(
            format!(
                "nothing is left for {collective} over {} ranks on the {path} path of devices",
                planning.ranks()
            ),
            format!("allow one of its programs, or set CONSORT_DEVICE_PATH=host; {why}"),
        ))
    }

    /// The candidate of the path's tuning table; `None`, with a warning, where the table names one that cannot be taken.
    fn tuned(&self, all: &[Way]) -> Result<Option<Way>> {
        let (collective, ranks) = (self.collective(), self.planning.ranks_of(self.collective()));
        let table = self.planning.table_of(Some(self.ground.path)).filter(|_| self.call.algorithm.is_none());
        let Some(line) = table.and_then(|table| table.find(collective, ranks, self.bytes())) else {
            return Ok(None);
        };
        let algorithm = self.beginning(line.algorithm);
        let mut why = format!("the {} path has no such program", self.ground.path);
        for way in all.iter().filter(|(_, of)| *of == algorithm) {
            match self.against(*way)? {
                Standing::Out(out) => why = out,
                _ if collective.reduces() && self.proved(algorithm)?.fold_hash != line.fold_hash => {
                    why = "it folds in another order than when it was measured".into();
                }
                _ => return Ok(Some(*way)),
            }
        }
        line_ignored(line, &why);
        Ok(None)
    }

    /// The selected candidate; among ranks whose proofs take long, the one with the least price.
    fn likely(&self) -> Option<Way> {
        if self.planning.ranks() <= SIMULATED_RANKS_MAX || self.ground.path == Path::Host {
            return self.planning.select_on(self).ok().map(|(way, _)| way);
        }
        let price = |way| self.planning.price_by(way, self.collective(), self.bytes());
        least(&eligible(&self.ways(), |way| self.standing(way)), price)
    }

    fn row(&self, way: Way, excluded: Option<String>, chosen: bool) -> Result<Candidate> {
        let (carrier, algorithm) = way;
        let (collective, bytes) = (self.collective(), self.bytes());
        let path = Some(self.ground.path).filter(|path| *path != Path::Host);
        let (ranks, schedules) =
            (self.planning.ranks_of(collective), self.planning.ranks() <= SIMULATED_RANKS_MAX);
        Ok(Candidate {
            carrier,
            algorithm,
            chosen,
            excluded,
            predicted_s: self.planning.price_by(way, collective, bytes),
            measured_s: self.planning.measured_s(path, algorithm, collective, bytes),
            slot_bytes: 0,
            fold_hash: if schedules { Some(self.proved(algorithm)?.fold_hash) } else { None },
            cost: schedules.then(|| algorithm.schedule(collective, ranks).cost()),
        })
    }

    /// All candidates of the path.
    fn rows(&self, chosen: Way) -> Result<Vec<Candidate>> {
        if self.ground.path == Path::Host {
            let (collective, bytes) = (self.collective(), self.bytes());
            let staged = |of: Candidate| Candidate {
                carrier: Carrier::Staging,
                predicted_s: self.planning.price_by((Carrier::Staging, of.algorithm), collective, bytes),
                ..of
            };
            let all = self.planning.explain(collective, bytes)?.candidates;
            return Ok(all.into_iter().map(staged).collect());
        }
        let row = |way| {
            let why = self.against(way)?.reason();
            self.row(way, why.filter(|_| way != chosen), way == chosen)
        };
        self.ways().into_iter().map(row).collect()
    }
}

/// Says that a line of a tuning table does not act, and why.
pub(super) fn line_ignored(line: &TuningLine, why: &str) {
    let TuningLine { collective, ranks, algorithm, .. } = line;
    consort_settings::notice::warn(&format!(
        "a line of the tuning table is ignored: {algorithm} of {collective} over {ranks} ranks: {why}"
    ));
}

impl Planner {
    /// The proved plan of `rank` for a call by an algorithm.
    pub(crate) fn for_devices(
        &self,
        call: &Call,
        algorithm: Algorithm,
        rank: u32,
        ranks: u32,
    ) -> Result<Proved> {
        let collective = call.kind.collective();
        let size = if collective == Collective::SendReceive { 2 } else { ranks };
        let relative = match call.kind {
            Kind::Send => 0,
            Kind::Receive => 1,
            _ => (rank + ranks - call.root) % ranks,
        };
        self.plan(Program { collective, ranks: size, algorithm }, relative, vec![true; size as usize])
    }
}

impl Planning {
    /// What carries a call on devices, and by which algorithm.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where nothing is left, with the reason against each candidate.
    pub(crate) fn way_of(&self, call: &Call, rank: u32, ground: Ground) -> Result<Way> {
        self.select_on(&Asked { planning: self, call, rank, ground }).map(|(way, _)| way)
    }

    fn select_on(&self, asked: &Asked<'_>) -> Result<(Way, Origin)> {
        let first = asked.call.first_folded(self.ranks());
        let key = (asked.collective(), asked.bytes(), first, asked.call.algorithm, asked.ground);
        self.once_on_devices(key, || asked.select())
    }

    /// Says so where a tuning table is not one of the path that a communicator's devices take: it does not act then.
    pub(crate) fn expect_table_of(&self, path: Path) {
        let path = Some(path).filter(|path| *path != Path::Host);
        if let Some(table) = self.preferences.tuning.as_ref().filter(|_| self.table_of(path).is_none()) {
            let taken = path.map_or("host", Path::name);
            consort_settings::notice::warn(&format!(
                "the tuning table is ignored on devices that take the {taken} path: it was measured on \"{}\"",
                table.machine
            ));
        }
    }

    /// Which restriction keeps ranks from the path that has one program, if one does.
    pub(crate) fn forbids_fused(&self) -> Option<String> {
        let of = |collective: Collective| {
            let call = call_of(collective, 1);
            let asked = Asked { planning: self, call: &call, rank: 0, ground: Ground::whole(Path::Fused) };
            let way = *asked.ways().first()?;
            asked
                .standing(way)
                .reason()
                .map(|why| format!("{collective} has {} alone there, and {why}", way.1))
        };
        Collective::ALL.into_iter().find_map(of)
    }

    /// Why a collective on blocks of `block_bytes` runs on devices as it does, where they take a path: the programs, what the
    /// other paths would do, and what speaks against those that are left out. Rooted ones begin at rank 0.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the restriction leaves nothing, and for more than 64 ranks; otherwise where a plan is
    /// refused.
    pub fn explain_on_devices(
        &self,
        path: Path,
        collective: Collective,
        block_bytes: u64,
    ) -> Result<Explanation> {
        if self.ranks() > SIMULATED_RANKS_MAX {
            return Err(Error::invalid(
                format!("{} ranks on devices that reach each other", self.ranks()),
                format!("ask for at most {SIMULATED_RANKS_MAX}"),
            ));
        }
        // It keeps what is proved until all is said.
        let _planner = Planner::of_process();
        let against = Path::ALL.map(|other| (other, None));
        self.explain_on(collective, block_bytes, 0, Ground::whole(path), &against)
    }

    /// The same of `rank`, with what speaks against each path.
    pub(crate) fn explain_on(
        &self,
        collective: Collective,
        block_bytes: u64,
        rank: u32,
        ground: Ground,
        paths: &[(Path, Option<String>)],
    ) -> Result<Explanation> {
        let call = call_of(collective, usize::try_from(block_bytes).unwrap_or(usize::MAX));
        let asked = Asked { planning: self, call: &call, rank, ground };
        let ((carrier, algorithm), origin) = self.select_on(&asked)?;
        let mut candidates = Vec::new();
        for (path, against) in paths {
            if *path == ground.path {
                candidates.extend(asked.rows((carrier, algorithm))?);
                continue;
            }
            let other = Asked { ground: Ground::whole(*path), ..asked };
            let Some(way) = other.likely() else { continue };
            let against = against.clone().unwrap_or_else(|| format!("the path is {}", ground.path));
            candidates.push(other.row(way, Some(against), false)?);
        }
        let chosen = self.with_slots(algorithm, collective, size_class(block_bytes));
        let host = self.explanation(collective, block_bytes, chosen, origin);
        Ok(Explanation { path: Some(ground.path), slot_bytes: 0, candidates, ..host })
    }
}

/// A call of bytes, rooted at rank 0.
fn call_of(collective: Collective, bytes: usize) -> Call {
    let kind = Kind::ALL.into_iter().find(|kind| kind.collective() == collective).unwrap_or(Kind::AllReduce);
    Call::new(kind, DataType::Uint8, collective.reduces().then_some(ReduceOp::Sum), 0, bytes)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::Machine;
    use super::*;
    use crate::Options;
    use consort_settings::options::{Settings, Tuning};

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

    fn planning(ranks: u32, options: Options) -> Planning {
        Planning::for_host(ranks, ranks, &options).expect("a machine")
    }

    fn kernels(lanes_max: u32) -> Ground {
        Ground::new(Path::Kernels, lanes_max, true)
    }

    #[test]
    fn the_least_is_what_the_thresholds_chose() {
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
        for (ranks, lanes_max) in (1..=9).flat_map(|ranks| [1, 2, 4, 7, 16].map(|lanes| (ranks, lanes))) {
            let planning = planning(ranks, Options::default());
            // Without packets.
            let ground = Ground::new(Path::Kernels, lanes_max, false);
            for (kind, count) in kinds.into_iter().flat_map(|kind| [0, 65536, 65537].map(|n| (kind, n))) {
                let call = call(kind, count);
                let collective = kind.collective();
                let size = if collective == Collective::SendReceive { 2 } else { ranks };
                let asked = Asked { planning: &planning, call: &call, rank: 0, ground };
                let rule = by_rule(&call, ranks).into_iter();
                let mut rule = rule.filter(|algorithm| algorithm.is_defined(collective, size));
                let fits = |algorithm: &Algorithm| {
                    let way = (Carrier::Kernels, *algorithm);
                    asked.misfit(way).expect("proved").is_none()
                };
                // Where the rule had none, what else fits is taken since.
                let Some(expected) = rule.find(fits) else { continue };
                let chosen = planning.way_of(&call, 0, ground).expect("a way");
                let what = format!("{collective} of {count} over {ranks}, {lanes_max} lanes");
                assert_eq!(chosen, (Carrier::Kernels, expected), "{what}");
            }
        }
    }

    /// What is chosen, and the reason against a candidate.
    fn explained(planning: &Planning, ground: Ground, bytes: u64, name: &str) -> (String, String) {
        let paths = Path::ALL.map(|path| (path, None));
        let all = planning.explain_on(Collective::AllReduce, bytes, 0, ground, &paths).expect("explained");
        let hashed = |of: &Candidate| of.fold_hash.is_some() || planning.ranks() > SIMULATED_RANKS_MAX;
        assert!(all.candidates.iter().all(|of| hashed(of) && of.predicted_s > 0.0), "{all}");
        let found = all.candidates.iter().find(|of| of.name() == name).expect("it is listed");
        (all.chosen().expect("one").name(), found.excluded.clone().unwrap_or_default())
    }

    #[test]
    fn what_is_left_out_says_why() {
        let four = planning(4, Options::default());
        let [short, long] = [32 << 10, (32 << 10) + 1];
        let of = |bytes, name: &str| explained(&four, kernels(16), bytes, name);
        assert_eq!(of(short, "packets/direct"), ("packets/direct".into(), String::new()));
        let (chosen, why) = of(long, "packets/direct");
        assert!(chosen == "kernels/direct" && why.contains("32768 bytes at most"), "{chosen}: {why}");
        assert!(of(short, "kernels/two-shot").1.contains("every rank folds all"));
        assert!(of(1 << 20, "kernels/direct").1.contains("each rank folds its share"));
        assert!(of(short, "kernels/tree").1.contains("has to name it"));
        assert_eq!(of(short, "streams/direct").1, "the path is kernels");
        assert!(explained(&four, kernels(1), short, "kernels/two-shot").1.contains("lanes"));
        let many = planning(17, Options::default());
        assert!(explained(&many, kernels(16), short, "packets/direct").1.contains("16 ranks at most"));
        let (chosen, why) = explained(&four, Ground::new(Path::Kernels, 16, false), short, "packets/direct");
        assert!(chosen == "kernels/direct" && why.contains("shares its device"), "{chosen}: {why}");
        let call = call(Kind::AllReduce, 8192);
        let named = |algorithm| {
            let call = Call { algorithm: Some(algorithm), ..call };
            four.way_of(&call, 0, kernels(1)).expect("a way")
        };
        let host =
            explained(&planning(65, Options::default()), Ground::whole(Path::Host), short, "kernels/direct");
        assert_eq!(host.1, "the path is host", "nothing is proved for it");
        assert_eq!(named(Algorithm::RING), (Carrier::Kernels, Algorithm::RING));
        // What does not fit is not taken, and said so.
        assert_eq!(named(Algorithm::Tree).0, Carrier::Packets);
    }

    #[test]
    fn a_restriction_binds_programs_or_is_refused_with_the_reasons() {
        let ring = planning(4, Options::default().algorithms("ring"));
        let (chosen, why) = explained(&ring, kernels(16), 1024, "packets/direct");
        assert_eq!((&*chosen, &*why), ("kernels/ring", "Options::algorithms leaves it out"));
        assert!(ring.forbids_fused().is_some_and(|why| why.contains("direct alone")));
        assert_eq!(planning(1, Options::default().algorithms("ring")).forbids_fused(), None);
        let two = planning(4, Options::default().algorithms("tree,ring"));
        assert_eq!(explained(&two, kernels(16), 1024, "kernels/ring").0, "kernels/tree", "by their prices");
        let named = planning(4, Options::default().algorithms("tree"));
        assert_eq!(explained(&named, kernels(16), 1024, "kernels/ring").0, "kernels/tree");
        let error = named.way_of(&call(Kind::AllReduce, 256), 0, kernels(1)).expect_err("it has two lanes");
        let error = error.to_string();
        assert!(
            error.contains("kernels/tree: its plans have up to") && error.contains("leaves it out"),
            "{error}"
        );
    }

    #[test]
    fn a_table_of_a_path_binds_it_and_a_line_that_cannot_act_does_not() {
        let plain = planning(4, Options::default());
        let fold = |algorithm| plain.fold_hash(algorithm, Collective::AllReduce).expect("proved");
        let chosen = |algorithm: Algorithm, fold_hash, path: &str, ground| {
            let line = TuningLine {
                collective: Collective::AllReduce,
                ranks: 4,
                bytes: 1 << 20,
                algorithm,
                slot_bytes: 0,
                fold_hash,
                nanoseconds: 10_000,
            };
            let table = Tuning { machine: format!("{} device={path}", plain.machine()), lines: vec![line] };
            let mut settings = Settings::resolve(&Options::default()).expect("settings");
            settings.preferences.tuning = Some(Arc::new(table));
            let tuned = Planning::new(Machine::of_one_host(4, 4), &settings);
            let call = call(Kind::AllReduce, 8192);
            let asked = Asked { planning: &tuned, call: &call, rank: 0, ground };
            tuned.select_on(&asked).expect("a way")
        };
        let (ring, tree) = (Algorithm::RING, Algorithm::Tree);
        let tuned = ((Carrier::Kernels, ring), Origin::Tuned);
        assert_eq!(chosen(ring, fold(ring), "kernels", kernels(16)), tuned);
        let untuned = ((Carrier::Packets, Algorithm::Direct { first: 0 }), Origin::Priced);
        assert_eq!(chosen(ring, fold(ring), "streams", kernels(16)), untuned, "of another path");
        assert_eq!(chosen(ring, fold(ring) ^ 1, "kernels", kernels(16)), untuned, "of other bits");
        assert_eq!(chosen(tree, fold(tree), "kernels", kernels(1)), untuned, "it has two lanes");
    }
}
