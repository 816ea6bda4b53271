//! What a communicator's choices depend on besides the call, and the choice itself.
//!
//! Invariant: everything here is equal on all ranks of a communicator (it follows from the table of ranks and
//! from settings that were compared when they joined), and a choice is a pure function of it, so every rank
//! chooses the same. Prices are virtual time. Absent: plans, links, calls under way.

mod alone;
mod exclusion;
mod graph;
mod limit;
mod links;
mod near;
mod price;
mod rails;
mod searched;
mod slots;
mod tables;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use consort_algorithms::bounds::Bound;
use consort_algorithms::catalogue::{self, Algorithm, Shape};
use consort_algorithms::hardware::exchange::Graphs as FileGraphs;
use consort_algorithms::synthesize::boxes;
use consort_algorithms::topology::{self, Topology};
use consort_algorithms::{Collective, LowerOptions, Plan, lower_all, passes, verify};

use super::carriers::{Carrier, Way};
use super::devices;
use super::explain::{Candidate, Explanation, Origin};
use super::machine::{Between, Machine, even_boxes, without_lost};
use super::selector::{eligible, least};
use super::{Planner, Program};
use consort_settings::options::{Determinism, Preferences, TuningLine, digest, graph_for};
use consort_settings::options::{SLOT_BYTES_MIN, SLOTS, Settings, TransportChoice};
use consort_types::call::Call;
use consort_types::error::{Error, Result};
pub(super) use limit::measured_by;
pub use links::Connections;
pub(crate) use slots::{
    FAR_SLOT_BYTES_MAX, FAR_WIDE_SLOT_BYTES_MAX, HOST_SLOT_BYTES_MAX, MESSAGE_SLICE_BYTES,
    WIDE_SLOT_BYTES_MAX,
};

pub(super) use tables::line_ignored;

/// Above this number of ranks candidates are priced by their formulas, or from fewer boxes, and neither counted nor proved to be shown.
pub(super) const SIMULATED_RANKS_MAX: u32 = 64;
/// Everything that choices depend on besides the call; see [`Planning::explain`].
#[derive(Debug)]
pub struct Planning {
    machine: Machine,
    transport: TransportChoice,
    shape: Shape,
    slot_bytes: Option<usize>,
    pub(super) preferences: Preferences,
    topology: Topology,
    /// The graph of the ranks' GPUs, where their hosts say it and no setting names another machine.
    pub(super) device_graph: Option<Topology>,
    /// Whether a setting names the topology; one of another number of ranks, as that of a part of a job, it does not.
    pub(super) is_named: bool,
    /// Whether the cores of one host move everything.
    on_own_cores: bool,
    /// The collectives for which the restriction is known to leave an algorithm.
    admitted: [OnceLock<()>; Collective::ALL.len()],
    /// What messages take on the topology, once a price asks for it.
    messages: OnceLock<price::Messages>,
    /// The topology without the distances that ranks measured while they joined, where it has any and they could change bits.
    near: Option<Topology>,
    /// The slot that the distance between hosts asks for, once a call asks for it.
    far_slot: OnceLock<u64>,
    /// What the search finds on the topology, once candidates are asked for.
    searched: searched::Searched,
    along_rails: rails::Memory,
    /// What no schedule can exceed, of each collective, once it is asked for: on the host, and on devices.
    bounds: [[OnceLock<Option<Bound>>; Collective::ALL.len()]; 2],
    /// The rings and trees of a file that all ranks have.
    channels: Option<Arc<FileGraphs>>,
    /// Set once devices were asked for their tuning table, or calls on host memory were found to have one of devices.
    table_is_placed: OnceLock<()>,
    /// Set once a table that does not act was warned of.
    table_is_warned_of: OnceLock<()>,
    memory: Mutex<ChoiceMemory>,
}

/// Choices and fold hashes that were worked out before, as simulations and proofs are dear. They are a part of the process's
/// memory, as communicators that are alike share their [`Planning`].
#[derive(Debug, Default)]
struct ChoiceMemory {
    chosen: HashMap<(Collective, u64), Result<Chosen>>,
    on_devices: HashMap<devices::Key, Result<(Way, Origin)>>,
    folds: HashMap<(Collective, Algorithm), Option<u64>>,
    /// Slots between hosts that are far apart, by the length of the blocks.
    far_slots: HashMap<(Collective, Algorithm, u64), u64>,
}

/// An algorithm and the length of its slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Chosen {
    pub(crate) algorithm: Algorithm,
    pub(crate) slot_bytes: usize,
    /// Whether every message fits one short slot.
    pub(crate) short: bool,
    /// Whether the call goes in eager messages, where all ranks can store to each other's mailboxes.
    pub(crate) packets: bool,
    /// Whether ranks that share memory meet before the call, and agree how its bytes cross.
    pub(crate) meets: bool,
    /// Whether the call is zero-copy then, where all ranks can map the callers' buffers.
    pub(crate) mapped: bool,
    pub(crate) origin: Origin,
}

impl Planning {
    pub(crate) fn new(mut machine: Machine, settings: &Settings) -> Self {
        machine.between = match settings.transport {
            TransportChoice::Verbs => Between::Rdma,
            TransportChoice::Tcp | TransportChoice::Plugin => Between::Sockets,
            TransportChoice::Auto | TransportChoice::SharedMemory => machine.between,
        };
        let preferences = settings.preferences.clone();
        // Parts of a job run on a part of its machine, which no setting names.
        let named = preferences
            .topology
            .as_deref()
            .and_then(|text| graph_for(text, machine.ranks, machine.graphs.with_devices).ok());
        // What the ranks measured between each other is their own machine, not another one to predict for.
        let is_named = named.as_ref().is_some_and(|topology| !topology.measured);
        let on_own_cores = !is_named && machine.hosts <= 1 && !settings.transport.is_by_messages();
        let parsed = |text: &Option<Arc<str>>| text.as_deref().and_then(|text| topology::parse(text).ok());
        // A graph of CPUs knows nothing of ranks that take turns on them.
        let known = parsed(&machine.graphs.host).filter(|_| on_own_cores && machine.turns <= 1);
        let device_graph = if is_named { None } else { parsed(&machine.graphs.devices) };
        let near = slots::near(&machine).filter(|_| named.is_none() && known.is_none());
        let near = near.map(|near| without_lost(near.topology(settings.transport).bundled(), &machine.lost));
        let topology = named.or(known).unwrap_or_else(|| machine.topology(settings.transport));
        // A route takes one link, and equal wires side by side are striped over.
        let topology = topology.bundled();
        let lost = if topology.boxes().len() == machine.hosts as usize { &*machine.lost } else { &[] };
        let topology = without_lost(topology, lost);
        let per_box = even_boxes(&topology);
        // Prices over many boxes are those of the first ones, and the others' ranks may have no way along their rails.
        let is_regular = || boxes::rails_of_unlike(&topology).is_none();
        let has_rails = is_named && !machine.between.is_messages() && is_regular();
        let rails = if has_rails { rails::rails_of(&topology) } else { 0 };
        let is_switched = rails > 0 && topology.aggregators().count() == topology.boxes().len();
        let invariant = preferences.determinism == Determinism::Invariant;
        let Settings { channels, bidirectional, .. } = *settings;
        let shape = Shape { per_box, channels, bidirectional, all_pairs: invariant, rails, is_switched };
        let agreed = machine.graphs.channels;
        let channels =
            settings.exchanged.graphs.clone().filter(|_| settings.exchanged.graphs_mark() == agreed);
        let planning = Planning {
            machine,
            transport: settings.transport,
            shape,
            slot_bytes: settings.slot_bytes,
            preferences,
            topology,
            device_graph,
            is_named,
            on_own_cores,
            admitted: Default::default(),
            messages: OnceLock::new(),
            near,
            far_slot: OnceLock::new(),
            searched: searched::Searched::default(),
            along_rails: rails::Memory::default(),
            bounds: Default::default(),
            channels,
            table_is_placed: OnceLock::new(),
            table_is_warned_of: OnceLock::new(),
            memory: Mutex::default(),
        };
        planning.expect_table();
        planning
    }

    /// What tuning tables are compared with, for example
    /// `hosts=1 per_host=1 cores=2 transport=auto channels=1x1`; on a host with domains `per_domain=4` in place of
    /// `per_host`; with ` lost=0:1/2` at its end where host 0 has lost one of two paths.
    pub fn machine(&self) -> String {
        let Machine { hosts, cores, per_domain, .. } = self.machine;
        let level = if per_domain > 1 { "per_domain" } else { "per_host" };
        let Shape { per_box, channels, bidirectional, .. } = self.shape;
        let directions = if bidirectional { 2 } else { 1 };
        let transport = self.transport.name();
        let lost = self.machine.lost.iter().map(|of| format!(" lost={}:{}/{}", of.host, of.left, of.of));
        let lost: String = lost.collect();
        format!(
            "hosts={hosts} {level}={per_box} cores={cores} transport={transport} channels={channels}x{directions}{lost}"
        )
    }

    /// The selection for a call on devices, worked out once.
    pub(super) fn once_on_devices(
        &self,
        key: devices::Key,
        select: impl FnOnce() -> Result<(Way, Origin)>,
    ) -> Result<(Way, Origin)> {
        if let Some(known) = self.memory().on_devices.get(&key) {
            return known.clone();
        }
        let selected = select();
        self.memory().on_devices.insert(key, selected.clone());
        selected
    }

    /// Whether what goes between hosts, or all, are messages: through the kernel's sockets or by adapters.
    pub(crate) fn by_messages(&self) -> bool {
        self.machine.between.is_messages()
    }

    /// The machine without its topology.
    pub(super) fn joined_on(&self) -> &Machine {
        &self.machine
    }

    /// The number of ranks for which calls are planned.
    pub fn ranks(&self) -> u32 {
        self.machine.ranks
    }

    /// The machine on which candidates are priced.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The same on all ranks; differs where anything differs that choices depend on.
    pub(crate) fn key(machine: &Machine, settings: &Settings) -> u64 {
        digest(&format!("{machine:?} {:?}", settings.agreed()))
    }

    /// The algorithms that may run `collective`, in the order that settles ties.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that lists what is possible, when the restriction leaves none.
    pub fn candidates(&self, collective: Collective) -> Result<Vec<Algorithm>> {
        let all = self.all(collective);
        let allowed = eligible(&all, |algorithm| self.eligibility(algorithm, collective));
        if allowed.is_empty() { Err(self.impossible(collective, &all)) } else { Ok(allowed) }
    }

    /// The algorithms of the catalogue, of imported schedules and of what was found on the machine, that are defined for `collective` and
    /// worth a price.
    pub(super) fn all(&self, collective: Collective) -> Vec<Algorithm> {
        let mut all = self.all_but_over_boxes(collective);
        all.extend(self.over_boxes(collective).map(|found| found.algorithm));
        all
    }

    /// The same without what is over boxes that are not alike, which only calls on host memory have a price for.
    pub(super) fn all_but_over_boxes(&self, collective: Collective) -> Vec<Algorithm> {
        let ranks = self.ranks_of(collective);
        let mut all = catalogue::candidates(collective, ranks, &self.shape);
        let imported = self.preferences.schedules.iter().map(|of| Algorithm::Imported(*of));
        all.extend(imported.filter(|algorithm| algorithm.is_defined(collective, ranks)));
        for found in self.searched(collective) {
            if !all.contains(&found.algorithm) {
                all.push(found.algorithm);
            }
        }
        all
    }

    pub(super) fn ranks_of(&self, collective: Collective) -> u32 {
        if collective == Collective::SendReceive { 2 } else { self.machine.ranks }
    }

    /// The algorithm that blocks of `block_bytes` take.
    ///
    /// # Errors
    /// As [`Planning::explain`].
    pub fn algorithm(&self, collective: Collective, block_bytes: u64) -> Result<Algorithm> {
        self.choose(collective, size_class(block_bytes)).map(|chosen| chosen.algorithm)
    }

    /// The choice for blocks of at most `block_bytes`.
    pub(crate) fn choose(&self, collective: Collective, block_bytes: u64) -> Result<Chosen> {
        let key = (collective, block_bytes);
        if let Some(known) = self.memory().chosen.get(&key) {
            return known.clone();
        }
        let chosen = self.work_out(collective, block_bytes, line_ignored);
        self.memory().chosen.insert(key, chosen.clone());
        chosen
    }

    /// The same for an explanation of a path that is not taken: a line of the tuning table is then ignored in silence.
    pub(super) fn choose_quietly(&self, collective: Collective, block_bytes: u64) -> Result<Chosen> {
        let known = self.memory().chosen.get(&(collective, block_bytes)).cloned();
        known.unwrap_or_else(|| self.work_out(collective, block_bytes, |_, _| {}))
    }

    /// Whether an algorithm is meant for calls of a class of lengths; those of the catalogue are for all.
    pub(super) fn is_meant_for(&self, algorithm: Algorithm, collective: Collective, class: u64) -> bool {
        let Algorithm::Imported(of) = algorithm else { return true };
        let ranks = self.ranks_of(collective);
        let blocks = u64::from(collective.input_blocks(ranks).max(collective.output_blocks(ranks)));
        of.range().meets((class / 2).saturating_mul(blocks), class.saturating_mul(blocks))
    }

    /// The candidates that are meant for calls of a class of lengths; all of them where none is.
    fn meant_for(&self, candidates: Vec<Algorithm>, collective: Collective, class: u64) -> Vec<Algorithm> {
        let meant = |algorithm: &Algorithm| self.is_meant_for(*algorithm, collective, class);
        let some: Vec<Algorithm> = candidates.iter().copied().filter(meant).collect();
        if some.is_empty() { candidates } else { some }
    }

    fn work_out(
        &self,
        collective: Collective,
        block_bytes: u64,
        ignored: fn(&TuningLine, &str),
    ) -> Result<Chosen> {
        let candidates = self.meant_for(self.candidates(collective)?, collective, block_bytes);
        if let Some(line) = self.measured(collective, block_bytes, &candidates, ignored) {
            let by_rule = self.with_slots(line.algorithm, collective, block_bytes);
            let given = self.slot_bytes.unwrap_or(line.slot_bytes);
            let fits = given.is_power_of_two()
                && (SLOT_BYTES_MIN..=self.longest_slot(line.algorithm)).contains(&given);
            let slot_bytes = if fits && !by_rule.short { given } else { by_rule.slot_bytes };
            return Ok(Chosen { slot_bytes, origin: Origin::Tuned, ..by_rule });
        }
        let best = least(&candidates, |algorithm| self.price(algorithm, collective, block_bytes));
        let best = best.map(|algorithm| self.with_slots(algorithm, collective, block_bytes));
        best.ok_or_else(|| self.impossible(collective, &[]))
    }

    /// Whether a call can be run.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that lists what is possible.
    pub(crate) fn admit(&self, call: &Call) -> Result<()> {
        if call.algorithm.is_none() && self.is_free() || call.kind.is_own() {
            return Ok(());
        }
        let collective = call.collective();
        let admitted = collective.number().map(|number| &self.admitted[number]);
        match call.algorithm {
            Some(algorithm) => self.possible(algorithm, collective),
            None if admitted.is_some_and(|admitted| admitted.get().is_some()) => Ok(()),
            None => {
                self.candidates(collective)?;
                if let Some(admitted) = admitted {
                    admitted.get_or_init(|| ());
                }
                Ok(())
            }
        }
    }

    /// Whether nothing restricts the choice.
    fn is_free(&self) -> bool {
        self.preferences.restriction.is_none() && self.preferences.determinism == Determinism::Run
    }

    /// The choice for what the library does for itself, which no restriction keeps from running.
    pub(crate) fn choose_freely(&self, collective: Collective, block_bytes: u64) -> Chosen {
        self.choose(collective, block_bytes)
            .unwrap_or_else(|_| self.with_slots(Algorithm::RING, collective, block_bytes))
    }

    /// The choice where a call names its algorithm.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that lists what is possible.
    pub(crate) fn demand(&self, algorithm: Algorithm, collective: Collective, bytes: u64) -> Result<Chosen> {
        self.possible(algorithm, collective)?;
        Ok(Chosen { origin: Origin::Named, ..self.with_slots(algorithm, collective, bytes) })
    }

    /// Whether bits are to be invariant, and an algorithm folds in another order than that of the ranks.
    fn reorders(&self, algorithm: Algorithm, collective: Collective) -> bool {
        self.preferences.determinism == Determinism::Invariant
            && collective.reduces()
            && self.ranks_of(collective) > 1
            && !algorithm.folds_in_rank_order()
    }

    /// Whether a call can name this algorithm.
    fn possible(&self, algorithm: Algorithm, collective: Collective) -> Result<()> {
        if self.reorders(algorithm, collective) {
            return Err(Error::invalid(
                format!(
                    "{algorithm} does not fold {collective} in the order of ranks, and bits are to be invariant"
                ),
                "name direct or two-shot, or set CONSORT_DETERMINISM=run",
            ));
        }
        if let Some(why) = self.unreachable(algorithm) {
            return Err(Error::invalid(
                format!("{algorithm} of {collective}: {why}"),
                "name another algorithm; this one is priced only",
            ));
        }
        let all = || self.all(collective);
        // What other ranks have not agreed on may be another schedule there.
        let is_shared = || !algorithm.is_imported() || all().contains(&algorithm);
        if algorithm.is_defined(collective, self.ranks_of(collective)) && is_shared() {
            return Ok(());
        }
        let all: Vec<String> =
            all().iter().filter(|of| self.unreachable(**of).is_none()).map(Algorithm::to_string).collect();
        Err(Error::invalid(
            format!("{algorithm} is not defined for {collective} over {} ranks", self.ranks_of(collective)),
            format!("possible: {}", all.join(", ")),
        ))
    }

    /// Whether the cores of one host move everything.
    pub(crate) fn is_on_own_cores(&self) -> bool {
        self.on_own_cores
    }

    /// The hash of the order in which an algorithm folds, as its proof gives it; none where the proof would
    /// take too long.
    pub fn fold_hash(&self, algorithm: Algorithm, collective: Collective) -> Option<u64> {
        let ranks = self.ranks_of(collective);
        if ranks > SIMULATED_RANKS_MAX {
            return None;
        }
        let key = (collective, algorithm);
        if let Some(known) = self.memory().folds.get(&key) {
            return *known;
        }
        let whole = || Some(verify(&self.plans(algorithm, collective).ok()?).ok()?.fold_hash);
        let hash = Planner::fold_of_one(Program { collective, ranks, algorithm }).or_else(whole);
        self.memory().folds.insert(key, hash);
        hash
    }

    /// The plans of all ranks, fused as they are where every rank can store to every mailbox.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that lists what is possible, where the algorithm is not defined.
    pub fn plans(&self, algorithm: Algorithm, collective: Collective) -> Result<Vec<Plan>> {
        self.demand(algorithm, collective, 1)?;
        let schedule = algorithm.schedule(collective, self.ranks_of(collective));
        let plans = lower_all(&schedule, &LowerOptions { slots: SLOTS });
        let plans =
            plans.map_err(|error| Error::internal(format!("{algorithm} of {collective}: {error}")))?;
        Ok(plans.iter().map(|plan| passes::fuse(plan, &|_| true)).collect())
    }

    fn memory(&self) -> std::sync::MutexGuard<'_, ChoiceMemory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why `collective` on blocks of `block_bytes` runs as it does: the candidates with their prices, and what
    /// was chosen.
    ///
    /// ```
    /// use consort::planning::{Collective, Planning};
    ///
    /// let planning = Planning::for_host(4, 4, &consort::Options::default())?;
    /// let explanation = planning.explain(Collective::AllReduce, 64 << 10)?;
    /// assert!(explanation.candidates.iter().any(|candidate| candidate.chosen));
    /// println!("{explanation}");
    /// # consort::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that lists what is possible, when the restriction leaves nothing.
    pub fn explain(&self, collective: Collective, block_bytes: u64) -> Result<Explanation> {
        let chosen = self.choose(collective, size_class(block_bytes))?;
        Ok(self.explanation(collective, block_bytes, chosen))
    }

    /// The same for a call that names its algorithm, which no restriction binds.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that lists what is possible, where it is not defined.
    pub fn explain_by(
        &self,
        algorithm: Algorithm,
        collective: Collective,
        block_bytes: u64,
    ) -> Result<Explanation> {
        let chosen = self.demand(algorithm, collective, size_class(block_bytes))?;
        Ok(self.explanation(collective, block_bytes, chosen))
    }

    pub(super) fn explanation(
        &self,
        collective: Collective,
        block_bytes: u64,
        chosen: Chosen,
    ) -> Explanation {
        let class = size_class(block_bytes);
        let allowed = self.meant_for(self.candidates(collective).unwrap_or_default(), collective, class);
        let ranks = self.ranks_of(collective);
        let candidate = |algorithm: Algorithm| Candidate {
            carrier: Carrier::Host,
            algorithm,
            chosen: algorithm == chosen.algorithm,
            excluded: self.excludes(algorithm, collective, &allowed),
            predicted_s: self.price(algorithm, collective, class),
            bound_share: None,
            measured_s: self.measured_s(None, algorithm, collective, class),
            slot_bytes: self.with_slots(algorithm, collective, class).slot_bytes,
            fold_hash: self.fold_hash(algorithm, collective),
            cost: (ranks <= SIMULATED_RANKS_MAX).then(|| algorithm.schedule(collective, ranks).cost()),
        };
        let mut all = self.all(collective);
        if !all.contains(&chosen.algorithm) {
            all.push(chosen.algorithm);
        }
        let bound = self.bound(collective, class, false);
        let mut candidates: Vec<Candidate> = all.into_iter().map(candidate).collect();
        measured_by(bound.as_ref(), &mut candidates);
        Explanation {
            collective,
            ranks,
            block_bytes,
            class_bytes: class,
            topology: self.topology.name.clone(),
            graph_hash: self.graph_hash(),
            path: None,
            per_box: self.shape.per_box,
            origin: chosen.origin,
            restriction: self.preferences.restriction.origin.clone(),
            determinism: self.preferences.determinism,
            slot_bytes: chosen.slot_bytes,
            bound,
            candidates,
        }
    }
}

/// The class of a size: the power of two that is not smaller. A choice is made once per class.
pub(crate) fn size_class(block_bytes: u64) -> u64 {
    block_bytes.clamp(1, 1 << 62).next_power_of_two()
}
