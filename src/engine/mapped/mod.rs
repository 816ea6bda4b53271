//! Collectives on buffers that all ranks of a host have mapped: every rank reads and writes the others' buffers where they
//! are, and nothing is staged.
//!
//! On mapped buffers, what runs is the folds of the verified [`mapped`](consort_algorithms::mapped()) plan; on ordinary ones
//! ranks may read what they need through the system ([`pulled`]). Its entry is a round of notes in
//! which ranks tell each other where their buffers are; its exit is another. If some buffer is none that the others can
//! map, all ranks see that in the first round, and take the planned way.
//!
//! Invariant: no rank writes to another's memory but between the two rounds, and none after that rank's call has
//! returned, whatever happens: see [`Run::withdraw`]. Memory of others is mapped when it is first used, kept, and
//! forgotten oldest first. Absent: waiting, staging, messages.

mod folds;
#[cfg(test)]
mod fuzz;
mod notes;
mod pulled;
mod run;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};

use consort_algorithms::{Collective, Plan, mapped, mapped_reduce, verify};
use consort_memory::areas::{self, Area};
use consort_memory::{Mapping, Span, SpanMut};
use consort_transports::{Lent, read_process};

use crate::Rank;
use crate::call::{Call, Kind};
use crate::control::group::Group;
use crate::control::process::random;
use crate::engine::Progress;
use crate::engine::bound::Broken;
use crate::error::{Error, Result};

use notes::Notice;
pub(crate) use notes::Opening;
pub(super) use pulled::is_for as may_pull;
pub(crate) use run::Run;

/// How many of a rank's areas others know of; one more, and the one that was told of first is forgotten by all.
const NOTICES_MAX: usize = 128;
/// How many areas of one rank are mapped here at most.
const MAPPED_MAX: usize = 32;
/// How many areas of this rank are found without asking for them.
const RECENT: usize = 8;

/// What a turn came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Progress(Progress),
    /// Some buffer cannot be mapped, or none may be: the operation goes the planned way.
    Declined,
}

/// Why a run cannot go on.
pub(crate) enum Stop {
    /// A rank is in another operation.
    Mismatch(Rank),
    /// What a rank offers cannot be had, as when that rank is gone.
    Broken(Broken),
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Stop::Failed(error)
    }
}

impl From<Rank> for Stop {
    fn from(peer: Rank) -> Self {
        Stop::Mismatch(peer)
    }
}

/// Whether others touch the input and the output of a rank.
fn touched(call: &Call, rank: Rank) -> [bool; 2] {
    let is_root = rank == call.root;
    match call.kind {
        Kind::AllReduce => [true, true],
        Kind::Reduce => [true, is_root],
        Kind::Broadcast => [is_root, true],
        Kind::ReduceScatter => [true, false],
        Kind::AllGather | Kind::AllToAll => [false, true],
        Kind::Gather => [false, is_root],
        Kind::Scatter => [is_root, false],
        _ => [false, false],
    }
}

/// A rank's areas as another one knows them.
#[derive(Default)]
struct Known {
    notices: VecDeque<Notice>,
    /// The one that was used last, last.
    mapped: VecDeque<(u64, Arc<Mapping>)>,
}

impl Known {
    fn hear(&mut self, notice: Notice) {
        self.notices.push_back(notice);
        if self.notices.len() > NOTICES_MAX {
            self.notices.pop_front();
        }
    }

    fn notice(&self, key: u64) -> Option<&Notice> {
        self.notices.iter().find(|notice| notice.key == key)
    }

    /// The mapping of an area, if it is here.
    fn mapped(&mut self, key: u64) -> Option<Arc<Mapping>> {
        if let Some((last, mapping)) = self.mapped.back()
            && *last == key
        {
            return Some(mapping.clone());
        }
        let at = self.mapped.iter().position(|(known, _)| *known == key)?;
        let found = self.mapped.remove(at)?;
        let mapping = found.1.clone();
        self.mapped.push_back(found);
        Some(mapping)
    }

    fn keep(&mut self, key: u64, mapping: Arc<Mapping>) {
        self.mapped.push_back((key, mapping));
        if self.mapped.len() > MAPPED_MAX {
            self.mapped.pop_front();
        }
    }
}

/// An area that the others know of.
struct Told {
    key: u64,
    area: Weak<Area>,
    /// None once it is freed; the others forget it in its turn.
    lent: Option<Lent>,
    /// Somebody could not map what was needed when it was used: it is not offered again, as nobody but that rank would
    /// know that there is something to be asked.
    is_refused: bool,
}

/// Whether ranks may read each other's memory through the system.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Pulls {
    #[default]
    Untried,
    Proved,
    Forbidden,
}

/// What a communicator's ranks know of each other's memory.
#[derive(Default)]
pub(crate) struct Shares {
    pulls: Pulls,
    /// The ranks' processes.
    pids: Option<Arc<[u32]>>,
    /// A word that another process can only know if it reads this one's memory.
    witness: Option<Box<u64>>,
    /// Ranges of this process that the system can read, as was tried last.
    readable: VecDeque<(usize, usize)>,
    /// A buffer that is taken for one that it cannot.
    #[cfg(test)]
    unreadable: Option<usize>,
    /// By rank.
    known: Vec<Known>,
    /// This rank's areas that the others know of, the first one first, and where they are lent.
    told: VecDeque<Told>,
    /// This rank's areas that were found last, as of an epoch.
    recent: Vec<Arc<Area>>,
    epoch: u64,
    plans: BTreeMap<(Collective, u32, u32, Rank), Arc<Plan>>,
    /// Kept, so that its tables are used again.
    idle: Option<Box<Run>>,
}

impl Shares {
    /// Whether nothing is known that keeps ranks from reading each other's memory.
    pub(crate) fn may_pull(&self) -> bool {
        self.pulls != Pulls::Forbidden
    }

    /// Nobody is to read this rank's memory, nor it that of others.
    pub(crate) fn never_pull(&mut self) {
        self.pulls = Pulls::Forbidden;
    }

    #[cfg(test)]
    pub(crate) fn has_pulled(&self) -> Option<bool> {
        self.may_pull().then_some(self.pulls == Pulls::Proved)
    }

    /// The processes of a group's ranks, which are always the same.
    pub(crate) fn pids(&mut self, group: &Group) -> Arc<[u32]> {
        let pid = |rank: &Rank| group.member.table[*rank as usize].pid;
        self.pids.get_or_insert_with(|| group.members.iter().map(pid).collect()).clone()
    }

    /// Where the word is that only this rank knows, and which it is.
    fn witness(&mut self) -> Option<(u64, u64)> {
        if self.witness.is_none() {
            self.witness = random().ok().map(|bytes| Box::new(u64::from_le_bytes(bytes)));
        }
        let word = self.witness.as_deref()?;
        Some((std::ptr::from_ref(word).expose_provenance() as u64, *word))
    }

    /// Whether a buffer of this process is known to be [readable](Shares::is_readable).
    fn was_read(&self, (start, bytes): (usize, usize)) -> bool {
        bytes == 0 || self.readable.contains(&(start, bytes))
    }

    /// Whether the system can read a buffer of this process, as it cannot read some that drivers map: its first byte and its
    /// last are tried.
    fn is_readable(&mut self, buffer: Span<'_>) -> bool {
        let (start, bytes) = (buffer.as_ptr() as usize, buffer.len());
        #[cfg(test)]
        if self.unreadable == Some(start) {
            return false;
        }
        if self.was_read((start, bytes)) {
            return true;
        }
        let mut byte = [0u8];
        let mut read =
            |at: usize| read_process(std::process::id(), at as u64, SpanMut::of(&mut byte)).is_ok();
        let is_readable = read(start) && read(start + bytes - 1);
        if is_readable {
            self.readable.push_back((start, bytes));
            if self.readable.len() > RECENT {
                self.readable.pop_front();
            }
        }
        is_readable
    }

    /// The area that holds these addresses.
    fn find(&mut self, start: usize, bytes: usize) -> Option<Arc<Area>> {
        let now = areas::epoch();
        if now != self.epoch {
            self.epoch = now;
            self.recent.clear();
            let freed = self.told.iter_mut().filter(|told| told.area.strong_count() == 0);
            freed.for_each(|told| told.lent = None);
        }
        let holds = |area: &&Arc<Area>| {
            area.start() <= start && start + bytes <= area.start() + area.bytes() && !area.is_spent()
        };
        if let Some(area) = self.recent.iter().find(holds) {
            return Some(area.clone());
        }
        let found = areas::find(start, bytes)?;
        if self.recent.len() >= RECENT {
            self.recent.remove(0);
        }
        self.recent.push(found.clone());
        Some(found)
    }

    /// Others are told of an area.
    fn tell(&mut self, area: &Arc<Area>, lent: Lent) {
        let told = Told { key: area.key(), area: Arc::downgrade(area), lent: Some(lent), is_refused: false };
        self.told.push_back(told);
        if self.told.len() > NOTICES_MAX {
            self.told.pop_front();
        }
    }

    /// Whether others know of an area; none if some of them could not map it.
    fn is_told(&self, key: u64) -> Option<bool> {
        match self.told.iter().find(|told| told.key == key) {
            Some(told) if told.is_refused => None,
            found => Some(found.is_some()),
        }
    }

    /// Some rank could not map what an operation on these areas needed.
    fn refuse(&mut self, keys: [u64; 2]) {
        let of_it = self.told.iter_mut().filter(|told| keys.contains(&told.key));
        of_it.for_each(|told| told.is_refused = true);
    }

    /// This rank's plan of a collective; `first` is where a reduce begins.
    fn plan(&mut self, collective: Collective, ranks: u32, rank: Rank, first: u32) -> Result<Arc<Plan>> {
        let key = (collective, ranks, first, rank);
        if let Some(plan) = self.plans.get(&key) {
            return Ok(plan.clone());
        }
        let plans = if first == 0 { mapped(collective, ranks) } else { mapped_reduce(ranks, first) };
        let refused = |what: String| Error::internal(format!("the mapped plan of {collective}: {what}"));
        let plans = plans.ok_or_else(|| refused(format!("there is none for {ranks} ranks")))?;
        verify(&plans).map_err(|refusal| refused(refusal.to_string()))?;
        let plan = plans.into_iter().nth(rank as usize).ok_or_else(|| refused(format!("no rank {rank}")))?;
        let plan = Arc::new(plan);
        self.plans.insert(key, plan.clone());
        Ok(plan)
    }

    /// Bytes of the tables; mappings are of memory that is others'.
    pub(crate) fn memory_bytes(&self) -> usize {
        let of_known = |known: &Known| {
            known.notices.capacity() * size_of::<Notice>()
                + known.mapped.capacity() * size_of::<(u64, Arc<Mapping>)>()
        };
        let plans = self.plans.values().map(|plan| size_of::<Plan>() + size_of_val(&*plan.steps));
        self.known.iter().map(of_known).sum::<usize>()
            + self.told.capacity() * size_of::<Told>()
            + plans.sum::<usize>()
            + self.idle.as_ref().map_or(0, |run| run.memory_bytes())
    }
}
