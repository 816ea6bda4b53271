//! The carrier and the algorithm of a call on devices: the candidates, and the objections to them.
//!
//! Invariant: the same on all ranks, as it follows from the call, the number of ranks and what they have agreed on. Absent:
//! which paths devices can take (`device/table`), and prices (`carriers`).

#[cfg(test)]
mod tests;

use consort_algorithms::Collective;
use consort_algorithms::catalogue::Algorithm;
use consort_kernels::cuda::RUN_SHARED_BYTES_MAX;
use consort_kernels::cuda::layout::MAX_RANKS;
use consort_kernels::{DataType, ReduceOp};

use super::blocks::{INSTANCES_MAX, instances, instances_max};
use super::carriers::{Carrier, Path, Way};
use super::explain::{Candidate, Explanation, Origin};
use super::planning::{Chosen, Planning, SIMULATED_RANKS_MAX, line_ignored, measured_by, size_class};
use super::selector::{Eligibility, eligible, least};
use super::{Planner, Program, Proved};
use consort_types::call::{Call, Kind};
use consort_types::error::{Error, Result};

/// The longest all-reduce in streams, in bytes, that every rank folds whole; in longer ones each rank folds its share. By their
/// prices the two cross at 284 KiB among eight ranks.
const DIRECT_BYTES_MAX: u64 = 256 << 10;
/// The longest all-reduce in packets.
pub(crate) const PACKET_BYTES: usize = 32 << 10;
/// Mailboxes of collectives for each ordered pair of ranks: a two-shot all-reduce has one for each of its halves.
/// Kernels share a mailbox among channels ([`part_of`](super::blocks::part_of)).
pub(crate) const BOXES: usize = 2;
/// Channels from a rank to another, at most, where kernels run plans: each needs a block's part of a mailbox.
pub(super) const CHANNELS_MAX: usize = BOXES * INSTANCES_MAX;
/// Lanes of a plan that kernels run, at most.
const LANES_MAX: u32 = 16;
/// Blocks of a launch of one rank on a device that it has for itself, unless settings say otherwise.
const BLOCKS_USUAL: u32 = 64;
/// The most ranks whose kernels take any algorithm unasked, by its price: its plans are proved for that, which takes long among
/// many ranks.
const ALL_PRICED_RANKS_MAX: u32 = 16;

/// The means that the devices of a communicator have for its calls.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Ground {
    pub(crate) path: Path,
    /// Lanes of a plan, at most.
    lanes_max: usize,
    /// Blocks of a launch of one rank, at most; 1 where kernels do not run plans.
    pub(super) blocks_max: u32,
    /// Whether each rank has its device for itself among those of its process: else no kernel runs calls in packets.
    alone: bool,
}

impl Ground {
    /// The means where a launch has at most `blocks_max` blocks.
    pub(crate) fn new(path: Path, blocks_max: u32, alone: bool) -> Self {
        let blocks_max = if path == Path::Kernels { blocks_max } else { 1 };
        Ground { path, lanes_max: blocks_max.min(LANES_MAX) as usize, blocks_max, alone }
    }

    /// The ranks whose programs share a launch.
    pub(super) fn launched_together(&self, ranks: u32) -> u32 {
        if self.alone { 1 } else { ranks }
    }

    /// The most that devices may have on a path.
    fn whole(path: Path) -> Self {
        Ground::new(path, BLOCKS_USUAL, true)
    }
}

/// The values on which a selection on devices depends besides the communicator: the collective, its size class, the rank at
/// which its fold begins (or the root itself), the algorithm that the call names, and the devices' means.
pub(super) type Key = (Collective, u64, u32, Option<Algorithm>, Ground);

/// A call on devices, as one rank sees it.
#[derive(Clone, Copy)]
struct Asked<'a> {
    planning: &'a Planning,
    call: &'a Call,
    rank: u32,
    ground: Ground,
    /// Whether it is asked for an explanation of what may not run: then nothing is warned of, and nothing kept.
    is_quiet: bool,
}

impl Asked<'_> {
    fn collective(&self) -> Collective {
        self.call.collective()
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
        if carrier == Carrier::Kernels && collective == Collective::AllReduce {
            // They fold as the plan of this name does.
            all.push((Carrier::Packets, Algorithm::Direct { first: 0 }));
        }
        let ranks = self.planning.ranks_of(collective);
        let named = self.call.algorithm.filter(|of| of.is_defined(collective, ranks));
        // What runs along rails has no price over these carriers.
        let all_of_planning = self.planning.all_but_over_boxes(collective).into_iter();
        let all_of_planning = all_of_planning.filter(|of| !of.is_along_rails());
        for algorithm in self.usual().chain(all_of_planning).chain(named) {
            let way = (carrier, self.beginning(algorithm));
            if !all.contains(&way) {
                all.push(way);
            }
        }
        all
    }

    /// The objection to a candidate that needs no look at its plan.
    fn eligibility(&self, (carrier, algorithm): Way) -> Eligibility {
        // Alone, a rank folds nothing.
        if carrier == Carrier::Fused && self.planning.ranks() == 1 {
            return Eligibility::Free;
        }
        if let Some(named) = self.call.algorithm {
            return match self.beginning(named) == algorithm && carrier != Carrier::Packets {
                true => Eligibility::Free,
                false => Eligibility::Out("the call names its algorithm".into()),
            };
        }
        let (ranks, bytes) = (self.planning.ranks(), self.bytes());
        if let Some(why) = self.planning.restricts(algorithm, self.collective()) {
            return Eligibility::Out(why);
        }
        let restriction = &self.planning.preferences.restriction;
        let sources = || self.planning.sources(algorithm, self.collective());
        let names = || restriction.names(self.collective(), algorithm.family(), &sources());
        let folds_whole = self.collective() == Collective::AllReduce && algorithm.is_direct();
        match carrier {
            Carrier::Packets if !self.ground.alone => {
                Eligibility::Out("a rank shares its device with another of its process".into())
            }
            Carrier::Packets if bytes > PACKET_BYTES as u64 => {
                Eligibility::Out(format!("packets hold {PACKET_BYTES} bytes at most"))
            }
            Carrier::Packets if ranks as usize > MAX_RANKS => {
                Eligibility::Out(format!("packets go to {MAX_RANKS} ranks at most"))
            }
            Carrier::Packets | Carrier::Fused => Eligibility::Free,
            Carrier::Kernels if ranks <= ALL_PRICED_RANKS_MAX => Eligibility::Free,
            _ if !algorithm.is_imported() && !names() && self.usual().all(|usual| usual != algorithm) => {
                Eligibility::Last("on devices a call, a restriction or a table has to name it".into())
            }
            Carrier::Streams if folds_whole && bytes > DIRECT_BYTES_MAX => {
                Eligibility::Last(format!("above {DIRECT_BYTES_MAX} bytes each rank folds its share"))
            }
            Carrier::Streams if algorithm.is_two_shot() && bytes <= DIRECT_BYTES_MAX => {
                Eligibility::Last(format!("up to {DIRECT_BYTES_MAX} bytes every rank folds all"))
            }
            _ => Eligibility::Free,
        }
    }

    /// Seconds of a candidate; infinite where it has no plans.
    fn price(&self, way: Way) -> f64 {
        let (planning, collective, bytes) = (self.planning, self.collective(), self.bytes());
        let price = |proved: Option<&Proved>| planning.price_by(way, collective, bytes, &self.ground, proved);
        if way.0 != Carrier::Kernels || planning.ranks() > SIMULATED_RANKS_MAX {
            return price(None);
        }
        self.proved(way.1).map_or(f64::INFINITY, |proved| price(Some(&proved).filter(|of| of.load.is_some())))
    }

    fn proved(&self, algorithm: Algorithm) -> Result<Proved> {
        let algorithm = self.planning.turned(algorithm, self.collective(), self.call.root);
        Planner::of_process().for_devices(self.call, algorithm, self.rank, self.planning.ranks())
    }

    /// Why the plans of a candidate do not run. Those of all ranks: one that chose alone might choose another than its peers.
    fn misfit(&self, (carrier, algorithm): Way) -> Result<Option<String>> {
        if !matches!(carrier, Carrier::Kernels | Carrier::Streams) {
            return Ok(None);
        }
        let Proved { lanes_max: lanes, mailboxes_max: channels, entries, .. } = self.proved(algorithm)?;
        if let (Carrier::Kernels, Some(what)) = (carrier, entries.foreign) {
            return Ok(Some(format!("its plans have {what}")));
        }
        let most = self.ground.lanes_max;
        if lanes > most {
            return Ok(Some(format!("its plans have up to {lanes} lanes, {most} at most run here")));
        }
        let channels_max = if carrier == Carrier::Kernels { CHANNELS_MAX } else { BOXES };
        if channels > channels_max {
            let few = format!(
                "it needs {channels} channels from a rank to another, {channels_max} at most run here"
            );
            return Ok(Some(few));
        }
        // As many blocks as there may be of the longest call.
        let instances = instances(usize::MAX, lanes, self.ground.blocks_max).min(instances_max(channels));
        let bytes = entries.shared_bytes(instances);
        let large = || {
            format!(
                "its launch record needs {bytes} bytes of a block, {RUN_SHARED_BYTES_MAX} at most are there"
            )
        };
        Ok((carrier == Carrier::Kernels && bytes > RUN_SHARED_BYTES_MAX as usize).then(large))
    }

    /// The objection to a candidate.
    fn against(&self, way: Way) -> Result<Eligibility> {
        match self.eligibility(way) {
            Eligibility::Out(why) => Ok(Eligibility::Out(why)),
            eligibility => Ok(self.misfit(way)?.map_or(eligibility, Eligibility::Out)),
        }
    }

    /// The candidate of the path's tuning table, or else the one with the least price.
    fn select(&self) -> Result<(Way, Origin)> {
        let (planning, collective, bytes) = (self.planning, self.collective(), self.bytes());
        if self.ground.path == Path::Host {
            let chosen = match self.call.algorithm {
                Some(algorithm) => planning.demand(algorithm, collective, bytes),
                None if self.is_quiet => planning.choose_quietly(collective, bytes),
                None => planning.choose(collective, bytes),
            };
            return chosen.map(|chosen| ((Carrier::Staging, chosen.algorithm), chosen.origin));
        }
        let all = self.ways();
        if let Some(tuned) = self.tuned(&all)? {
            return Ok((tuned, Origin::Tuned));
        }
        let (mut left, named) = (all.clone(), self.call.algorithm);
        while let Some(way) = least(&eligible(&left, |way| self.eligibility(way)), |way| self.price(way)) {
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
            if !self.is_quiet {
                consort_settings::notice::warn(&format!(
                    "{named}, which a call of {collective} names, is not taken on the {path} path of devices: {why}"
                ));
            }
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
        let mut why = self.no_program();
        for way in all.iter().filter(|(_, of)| *of == algorithm) {
            match self.against(*way)? {
                Eligibility::Out(out) => why = out,
                _ if collective.reduces() && self.proved(algorithm)?.fold_hash != line.fold_hash => {
                    why = "it folds in another order than when it was measured".into();
                }
                _ => return Ok(Some(*way)),
            }
        }
        if !self.is_quiet {
            line_ignored(line, &why);
        }
        Ok(None)
    }

    /// The selected candidate; among ranks whose proofs take long, the one with the least price.
    fn likely(&self) -> Option<Way> {
        if self.planning.ranks() <= SIMULATED_RANKS_MAX || self.ground.path == Path::Host {
            return self.planning.select_on(self).ok().map(|(way, _)| way);
        }
        least(&eligible(&self.ways(), |way| self.eligibility(way)), |way| self.price(way))
    }

    fn row(&self, way: Way, excluded: Option<String>, chosen: bool) -> Candidate {
        let (carrier, algorithm) = way;
        let (collective, bytes) = (self.collective(), self.bytes());
        let path = Some(self.ground.path).filter(|path| *path != Path::Host);
        let (ranks, schedules) =
            (self.planning.ranks_of(collective), self.planning.ranks() <= SIMULATED_RANKS_MAX);
        let proved = schedules.then(|| self.proved(algorithm).ok()).flatten();
        Candidate {
            carrier,
            algorithm,
            chosen,
            excluded,
            predicted_s: self.price(way),
            bound_share: None,
            measured_s: self.planning.measured_s(path, algorithm, collective, bytes),
            slot_bytes: 0,
            fold_hash: proved.map(|proved| proved.fold_hash),
            cost: schedules.then(|| algorithm.schedule(collective, ranks).cost()),
        }
    }

    /// All candidates of the path.
    fn rows(&self, chosen: Way) -> Result<Vec<Candidate>> {
        if self.ground.path == Path::Host {
            let (collective, bytes) = (self.collective(), self.bytes());
            let staged = |of: Candidate| Candidate {
                carrier: Carrier::Staging,
                predicted_s: self.price((Carrier::Staging, of.algorithm)),
                bound_share: None,
                ..of
            };
            let explained = match self.call.algorithm {
                Some(algorithm) => self.planning.explain_by(algorithm, collective, bytes),
                None => self.planning.explain(collective, bytes),
            };
            return Ok(explained?.candidates.into_iter().map(staged).collect());
        }
        let row = |way| {
            let why = self.against(way)?.reason();
            Ok(self.row(way, why.filter(|_| way != chosen), way == chosen))
        };
        self.ways().into_iter().map(row).collect()
    }

    /// Puts the reason against the algorithm that the call names, which is not taken, into its row among the candidates of the
    /// path, or into one of its own. No restriction binds a call that names its algorithm.
    fn refuse(&self, candidates: &mut Vec<Candidate>) -> Result<()> {
        let Some(algorithm) = self.call.algorithm.map(|named| self.beginning(named)) else { return Ok(()) };
        let way = (self.ground.path.carrier(), algorithm);
        let why = self.against(way)?.reason();
        match candidates.iter_mut().find(|of| (of.carrier, of.algorithm) == way) {
            Some(known) if known.chosen => {}
            Some(known) => known.excluded = why.or_else(|| known.excluded.take()),
            None => candidates.push(self.row(way, why.or_else(|| Some(self.no_program())), false)),
        }
        Ok(())
    }

    fn no_program(&self) -> String {
        format!("the {} path has no such program", self.ground.path)
    }
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
        let collective = call.collective();
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
        let ((carrier, algorithm), _) =
            self.select_on(&Asked { planning: self, call, rank, ground, is_quiet: false })?;
        // A call that is staged is planned as one on host memory.
        let is_staged = carrier == Carrier::Staging;
        let turned = || self.turned(algorithm, call.collective(), call.root);
        Ok((carrier, if is_staged { algorithm } else { turned() }))
    }

    fn select_on(&self, asked: &Asked<'_>) -> Result<(Way, Origin)> {
        if asked.is_quiet {
            return asked.select();
        }
        // Plans of what was found differ with the root.
        let is_found = !self.searched(asked.collective()).is_empty();
        let root = if is_found { asked.call.root } else { asked.call.first_folded(self.ranks()) };
        let key = (asked.collective(), asked.bytes(), root, asked.call.algorithm, asked.ground);
        self.once_on_devices(key, || asked.select())
    }

    /// Which restriction keeps ranks from the path that has one program, if one does.
    pub(crate) fn forbids_fused(&self) -> Option<String> {
        let of = |collective: Collective| {
            let call = call_of(collective, 1);
            let ground = Ground::whole(Path::Fused);
            let asked = Asked { planning: self, call: &call, rank: 0, ground, is_quiet: true };
            let way = *asked.ways().first()?;
            asked
                .eligibility(way)
                .reason()
                .map(|why| format!("{collective} has {} alone there, and {why}", way.1))
        };
        Collective::ALL.into_iter().find_map(of)
    }

    /// Why a collective on blocks of `block_bytes` runs on devices as it does, where they take a path: the programs, what the
    /// other paths would do, and what speaks against those that are left out. Rooted ones begin at rank 0. An algorithm that is
    /// `named` and does not run there has the reason against it; the call runs as if it had named nothing.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the restriction leaves nothing, where what is named is not defined, and for more than 64
    /// ranks; otherwise where a plan is refused.
    pub fn explain_on_devices(
        &self,
        named: Option<Algorithm>,
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
        if matches!(collective, Collective::AllToAllReplicated { .. }) {
            return Err(Error::invalid(
                format!("{collective} does not run on devices"),
                "ask for another collective, or for the ranks of hosts",
            ));
        }
        // It keeps what is proved until all is said.
        let _planner = Planner::of_process();
        let against = Path::ALL.map(|other| (other, None));
        if let Some(algorithm) = named {
            self.demand(algorithm, collective, size_class(block_bytes))?;
        }
        let call = Call { algorithm: named, ..call_of(collective, block_bytes) };
        self.explain_call(&call, 0, Ground::whole(path), &against)
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
        self.explain_call(&call_of(collective, block_bytes), rank, ground, paths)
    }

    fn explain_call(
        &self,
        call: &Call,
        rank: u32,
        ground: Ground,
        paths: &[(Path, Option<String>)],
    ) -> Result<Explanation> {
        let named = Asked { planning: self, call, rank, ground, is_quiet: call.algorithm.is_some() };
        let ((carrier, algorithm), origin) = self.select_on(&named)?;
        let unnamed = Call { algorithm: None, ..*call };
        let asked = if origin == Origin::Named { named } else { Asked { call: &unnamed, ..named } };
        let (collective, block_bytes) = (call.collective(), (call.count * call.data_type.size()) as u64);
        let mut candidates = Vec::new();
        for (path, against) in paths {
            if *path == ground.path {
                candidates.extend(asked.rows((carrier, algorithm))?);
                named.refuse(&mut candidates)?;
                continue;
            }
            let other = Asked { call: &unnamed, ground: Ground::whole(*path), is_quiet: true, ..asked };
            let Some(way) = other.likely() else { continue };
            let against = against.clone().unwrap_or_else(|| format!("the path is {}", ground.path));
            candidates.push(other.row(way, Some(against), false));
        }
        let chosen = self.with_slots(algorithm, collective, size_class(block_bytes));
        let host = self.explanation(collective, block_bytes, Chosen { origin, ..chosen });
        // Only kernels of ranks with a device each take the links between devices.
        let by_links = ground.path == Path::Kernels;
        let bound = by_links.then(|| self.bound(collective, host.class_bytes, true)).flatten();
        measured_by(bound.as_ref(), &mut candidates);
        Ok(Explanation { path: Some(ground.path), slot_bytes: 0, bound, candidates, ..host })
    }
}

/// A call of bytes, rooted at rank 0.
fn call_of(collective: Collective, bytes: u64) -> Call {
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    let kind = Kind::ALL.into_iter().find(|kind| kind.collective() == collective).unwrap_or(Kind::AllReduce);
    Call::new(kind, DataType::Uint8, collective.reduces().then_some(ReduceOp::Sum), 0, bytes)
}
