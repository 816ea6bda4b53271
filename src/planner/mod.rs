//! From a call to a plan that is proved and bound to links; done once per shape, then found again.
//!
//! Invariant: what is chosen depends on the call, the number of ranks and the agreed settings alone, so every
//! rank chooses the same. Before a rank's plan is used, the plans of all ranks are proved as if every rank could
//! store to the peers that this one can; or, among many like ranks, by their symmetry. What a rank of a mixed job
//! fuses otherwise than this one is proved on that rank.

mod blocks;
mod carriers;
mod choice;
mod devices;
mod explain;
mod machine;
mod planning;
mod plannings;
mod record;
mod selector;
#[cfg(test)]
mod tests;
mod work;

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use consort_algorithms::catalogue::Algorithm;
use consort_algorithms::{
    Collective, LowerOptions, Plan, Regular, lower_all, lower_one, mapped, mapped_reduce, passes, verify,
    verify_regular,
};
use consort_memory::sync::{AtomicBool, Ordering};

pub(crate) use blocks::{CLASSES, Cut, INSTANCES_MAX, beside, instances, part_of, stride};
pub(crate) use carriers::Paths;
pub use carriers::{Carrier, Path};
pub(crate) use choice::{Choice, Slots, has_one_length};
pub(crate) use devices::{BOXES, Ground, PACKET_BYTES};
pub use explain::{Candidate, Explanation, Origin, ProvableBound};
pub use machine::Machine;
pub use planning::{Connections, Planning};
pub(crate) use plannings::Plannings;
use record::Entries;
pub(crate) use record::{Places, places, unsayable};
pub(crate) use selector::least;

use crate::eager::Moves;
use consort_settings::options::{SLOTS, Settings};
use consort_types::error::{Error, Result};

/// Above this many ranks a rank makes its own plan alone where all ranks are alike.
const PROVED_WHOLE_MAX: u32 = 64;
/// And above this many places of memory of all ranks, as schedules on many channels have them.
const PROVED_WHOLE_PLACES_MAX: u64 = 1 << 15;

/// A program of a collective, before sizes: everything on which a [`Plan`] depends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Program {
    pub(crate) collective: Collective,
    pub(crate) ranks: u32,
    pub(crate) algorithm: Algorithm,
}

/// The memory of a process: what is proved, for all of its ranks.
#[derive(Default)]
pub struct Planner {
    proofs: Mutex<Proofs>,
    /// The plannings of the process's communicators; communicators that are alike share one.
    plannings: Mutex<HashMap<u64, Weak<Planning>>>,
    /// Whether the process has many ranks of a job: then each proof is kept for all of them.
    many: AtomicBool,
}

/// Proved plans and moves, by the values from which they were made.
#[derive(Default)]
struct Proofs {
    /// The plans of ranks.
    plans: HashMap<Key, Proved>,
    /// The moves of all ranks of programs that are direct exchanges.
    moves: HashMap<Program, Arc<[Moves]>>,
    /// The plans of all ranks on buffers that all have mapped, by collective, ranks and where a reduce begins.
    mapped: HashMap<Mapped, Arc<[Arc<Plan>]>>,
}

/// A program, the rank (relative to the root), and whether each rank's mailbox can be stored to from there.
type Key = (Program, u32, Vec<bool>);

/// A collective, the number of ranks, and the rank at which a fold begins.
type Mapped = (Collective, u32, u32);

/// A plan with the hash of its bracketing, which all ranks must share.
#[derive(Clone)]
pub(crate) struct Proved {
    pub(crate) plan: Arc<Plan>,
    pub(crate) fold_hash: u64,
    /// The most lanes that the plan of a rank has.
    pub(crate) lanes_max: usize,
    /// The most mailboxes that one rank fills at another.
    pub(crate) mailboxes_max: usize,
    /// The most entries that the tables of a rank's launch record have.
    entries: Entries,
    /// What the blocks of all ranks do; none where the plan was proved alone.
    load: Option<Arc<blocks::Load>>,
}

impl Planner {
    /// The planner of this process, which lives as long as one of its communicators.
    pub(crate) fn of_process() -> Arc<Planner> {
        static PLANNER: Mutex<(Weak<Planner>, u32)> = Mutex::new((Weak::new(), 0));
        let mut known = PLANNER.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        match known.0.upgrade() {
            Some(planner) if known.1 == process => return planner,
            // A parent's, whose locks may be held for ever in this forked child.
            Some(planner) => std::mem::forget(planner),
            None => {}
        }
        let planner = Arc::<Planner>::default();
        *known = (Arc::downgrade(&planner), process);
        planner
    }

    /// Bytes of all proved plans.
    pub(crate) fn memory_bytes(&self) -> usize {
        let bytes = |plan: &Arc<Plan>| {
            let Plan { steps, operands, regions, counters, .. } = &**plan;
            size_of::<Plan>()
                + size_of_val(&**steps)
                + size_of_val(&**operands)
                + size_of_val(&**regions)
                + size_of_val(&**counters)
        };
        let Proofs { plans, moves, mapped } = &*self.proofs();
        let plans = plans.values().map(|proved| &proved.plan).chain(mapped.values().flat_map(|all| &**all));
        let moves = moves.values().flat_map(|moves| &**moves).map(Moves::memory_bytes);
        plans.map(bytes).chain(moves).sum()
    }

    /// The process has many ranks of one job.
    pub fn expect_many(&self) {
        self.many.store(true, Ordering::Relaxed);
    }

    /// The planning of a communicator on `machine`.
    pub fn planning(&self, machine: Machine, settings: &Settings) -> Arc<Planning> {
        let key = Planning::key(&machine, settings);
        let mut known = self.plannings.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(planning) = known.get(&key).and_then(Weak::upgrade) {
            return planning;
        }
        let planning = Arc::new(Planning::new(machine, settings));
        known.retain(|_, planning| planning.strong_count() > 0);
        known.insert(key, Arc::downgrade(&planning));
        planning
    }

    fn proofs(&self) -> MutexGuard<'_, Proofs> {
        self.proofs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The proof in a map, which is made and put there if it is missing.
    fn known<K: Eq + Hash, V: Clone>(
        &self,
        map: impl Fn(&mut Proofs) -> &mut HashMap<K, V>,
        key: K,
        make: impl FnOnce(&K) -> Result<V>,
    ) -> Result<V> {
        if let Some(known) = map(&mut self.proofs()).get(&key) {
            return Ok(known.clone());
        }
        let made = make(&key)?;
        map(&mut self.proofs()).insert(key, made.clone());
        Ok(made)
    }

    /// The proved plan of `rank` (relative to the root) for a program. `mapped` says for every relative rank
    /// whether its mailbox can be stored to from here.
    pub(crate) fn plan(&self, program: Program, rank: u32, mapped: Vec<bool>) -> Result<Proved> {
        let refused =
            |what| Error::internal(format!("the plan for {} was refused: {what}", program.collective));
        let make = |(program, rank, mapped): &Key| self.prove(*program, *rank, mapped).map_err(refused);
        self.known(|proofs| &mut proofs.plans, (program, rank, mapped), make)
    }

    fn prove(&self, program: Program, rank: u32, mapped: &[bool]) -> std::result::Result<Proved, String> {
        // A rank has no link to itself.
        let mut others = (0..).zip(mapped).filter(|(peer, _)| *peer != rank).map(|(_, mapped)| *mapped);
        let to_others = others.next().unwrap_or(true);
        let uniform = others.all(|mapped| mapped == to_others);
        if is_long(program)
            && let Some(regular) = program.algorithm.regular(program.collective, program.ranks)
            && (uniform || moves_along(&*regular, rank, mapped))
        {
            return Self::plan_of_one(&*regular, rank, &|peer| {
                if uniform { to_others } else { mapped[peer.index()] }
            });
        }
        let schedule = program.algorithm.schedule(program.collective, program.ranks);
        let lowered = lower_all(&schedule, &LowerOptions { slots: SLOTS }).map_err(text)?;
        let unfused = verify(&lowered).map_err(text)?;
        // Every rank fuses where its own links allow; proved with all of them fused the way this rank's are.
        let fused: Vec<Plan> =
            lowered.iter().map(|plan| passes::fuse(plan, &|peer| mapped[peer.index()])).collect();
        let proof = verify(&fused).map_err(text)?;
        let fold_hash = same_fold(unfused.fold_hash, proof.fold_hash)?;
        let lanes_max = fused.iter().map(|plan| plan.lanes.len()).max().unwrap_or(0);
        let mailboxes_max = fused.iter().map(Plan::mailboxes_max).max().unwrap_or(0);
        let (load, entries) = (Some(Arc::new(blocks::Load::of(&fused))), Entries::of(&fused));
        let proved = |plan: Plan| Proved {
            plan: Arc::new(plan),
            fold_hash,
            lanes_max,
            mailboxes_max,
            entries,
            load: load.clone(),
        };
        let plan = fused.get(rank as usize).cloned().map(proved);
        let plan = plan.ok_or_else(|| format!("rank {rank} has no plan"))?;
        let Proved { plan: chosen, .. } = &plan;
        tracing::debug!(name = chosen.name, steps = chosen.steps.len(), proved = proof.steps, "plan proved");
        if uniform && self.many.load(Ordering::Relaxed) {
            let all = (0..).zip(fused).map(|(rank, plan)| ((program, rank, mapped.to_vec()), proved(plan)));
            self.proofs().plans.extend(all);
        }
        Ok(plan)
    }

    /// The hash of the folds of a program whose ranks are alike and whose proof together takes long; none of others.
    fn fold_of_one(program: Program) -> Option<u64> {
        let regular =
            is_long(program).then(|| program.algorithm.regular(program.collective, program.ranks))??;
        Self::plan_of_one(&*regular, 0, &|_| true).ok().map(|proved| proved.fold_hash)
    }

    /// The plan of one among many ranks that are alike, proved by that.
    fn plan_of_one(
        regular: &dyn Regular,
        rank: u32,
        mapped: &dyn Fn(consort_algorithms::Rank) -> bool,
    ) -> std::result::Result<Proved, String> {
        let options = LowerOptions { slots: SLOTS };
        let lowered = lower_one(regular, consort_algorithms::Rank(rank), &options).map_err(text)?;
        let unfused = verify_regular(regular, &lowered).map_err(text)?;
        let fused = passes::fuse(&lowered, mapped);
        let proof = verify_regular(regular, &fused).map_err(text)?;
        let fold_hash = same_fold(unfused.fold_hash, proof.fold_hash)?;
        tracing::debug!(name = fused.name, steps = fused.steps.len(), "plan proved by symmetry");
        // Ranks that are alike have as many.
        let (lanes_max, mailboxes_max) = (fused.lanes.len(), fused.mailboxes_max());
        let entries = Entries::of(std::slice::from_ref(&fused));
        Ok(Proved { plan: Arc::new(fused), fold_hash, lanes_max, mailboxes_max, entries, load: None })
    }

    /// The moves of the ranks of a program that is a direct exchange, from the root on: those of its schedule, which is
    /// proved first. Those of an all-reduce in two hops are the ones of the direct exchange, as both fold alike.
    pub(crate) fn direct(&self, program: Program) -> Result<Arc<[Moves]>> {
        let Program { collective, algorithm, ranks } = program;
        let prove = |algorithm: Algorithm| {
            let schedule = algorithm.schedule(collective, ranks);
            let lowered = lower_all(&schedule, &LowerOptions { slots: SLOTS }).map_err(text)?;
            Ok::<_, String>((verify(&lowered).map_err(text)?.fold_hash, schedule))
        };
        let moves = || {
            let (fold_hash, mut schedule) = prove(algorithm)?;
            if algorithm.is_two_shot() {
                let direct = prove(Algorithm::Direct { first: 0 })?;
                same_fold(fold_hash, direct.0)?;
                schedule = direct.1;
            }
            Moves::of(&schedule).ok_or_else(|| "its schedule is none".to_owned())
        };
        let refused = |what| {
            Error::internal(format!("the direct exchange of {collective} by {algorithm} was refused: {what}"))
        };
        self.known(|proofs| &mut proofs.moves, program, |_| moves().map(Arc::from).map_err(refused))
    }

    /// The plans of all ranks on buffers that all of them have mapped; a reduce begins its folds at rank `first`.
    pub(crate) fn mapped_of_all(
        &self,
        collective: Collective,
        ranks: u32,
        first: u32,
    ) -> Result<Arc<[Arc<Plan>]>> {
        let prove = || {
            let plans = if first == 0 { mapped(collective, ranks) } else { mapped_reduce(ranks, first) };
            let plans = plans.ok_or_else(|| format!("there is none for {ranks} ranks"))?;
            verify(&plans).map_err(text)?;
            Ok(plans.into_iter().map(Arc::new).collect())
        };
        let refused = |what: String| Error::internal(format!("the mapped plan of {collective}: {what}"));
        self.known(|proofs| &mut proofs.mapped, (collective, ranks, first), |_| prove().map_err(refused))
    }

    /// The one of `rank` (relative to the root) of [`Planner::mapped_of_all`].
    pub(crate) fn mapped(
        &self,
        collective: Collective,
        ranks: u32,
        rank: u32,
        first: u32,
    ) -> Result<Arc<Plan>> {
        let plans = self.mapped_of_all(collective, ranks, first)?;
        let none = || Error::internal(format!("the mapped plan of {collective}: no rank {rank} of {ranks}"));
        plans.get(rank as usize).cloned().ok_or_else(none)
    }
}

/// Whether the proof of all ranks' plans together takes long, where one of them shows all.
fn is_long(program: Program) -> bool {
    let Program { collective, algorithm, ranks } = program;
    let blocks = u64::from(collective.input_blocks(ranks)) + u64::from(collective.output_blocks(ranks));
    let places = blocks * u64::from(algorithm.parts(collective, ranks)) * u64::from(ranks);
    ranks > PROVED_WHOLE_MAX || places > PROVED_WHOLE_PLACES_MAX
}

/// Whether the links of all ranks are those of `rank`, moved: links within a group of the first dimension, as those of a
/// host, are of one kind, and all others of one kind.
fn moves_along(regular: &dyn Regular, rank: u32, mapped: &[bool]) -> bool {
    let Some(&near) = regular.symmetry().as_ref().and_then(|symmetry| symmetry.dimensions.first()) else {
        return false;
    };
    let alike = |inside: bool| {
        let peers =
            (0..).zip(mapped).filter(|(peer, _)| *peer != rank && (peer / near == rank / near) == inside);
        let mut kinds = peers.map(|(_, mapped)| *mapped);
        let first = kinds.next();
        kinds.all(|kind| Some(kind) == first)
    };
    near < mapped.len() as u32 && alike(true) && alike(false)
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

fn same_fold(lowered: u64, fused: u64) -> std::result::Result<u64, String> {
    if lowered == fused { Ok(fused) } else { Err("fusing changed what is computed".into()) }
}
