//! Schedules that come as data, from outside of the catalogue, as algorithms with a name.
//!
//! Invariant: every schedule here was proved. A name means one schedule for as long as the process lives, so an
//! [`Imported`] is a number. Numbers differ between processes: ranks compare the [hash](Imported::hash). Absent:
//! files, and which communicator may use which schedule.

use std::error::Error;
use std::fmt;
use std::sync::{PoisonError, RwLock};

use super::{Algorithm, Family};
use crate::numbers::fnv;
use crate::{Collective, LowerOptions, Plan, Schedule, lower_all, passes, verify};

/// The longest name.
pub(crate) const NAME_MAX: usize = 48;
/// The most ranks for which the order of folding is compared with the order of ranks.
const COMPARED_RANKS_MAX: u32 = 64;

/// A proved schedule for one collective and one number of ranks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Imported(u32);

struct Entry {
    schedule: Schedule,
    range: Range,
    hash: u64,
    in_rank_order: bool,
}

/// Bytes of the vector of a call, from the least to the most: of the gathered vector, of an all-to-all the bytes that a rank
/// sends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Range {
    /// The least.
    pub least: u64,
    /// The most.
    pub most: u64,
}

impl Range {
    /// Every length.
    pub const ALL: Range = Range { least: 0, most: u64::MAX };

    /// Whether a length of more than `above` and at most `most` is in it.
    pub fn meets(self, above: u64, most: u64) -> bool {
        self.least <= most && self.most > above
    }
}

/// Entries are never freed: an algorithm is a small value that is copied everywhere.
static KNOWN: RwLock<Vec<&'static Entry>> = RwLock::new(Vec::new());

/// Why a schedule cannot be imported.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    /// The schedule's name.
    pub name: String,
    /// The reason.
    pub why: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the schedule {:?} is refused: {}", self.name, self.why)
    }
}

impl Error for Refused {}

impl Imported {
    /// Proves a schedule and registers it by its name, for this process. A second import of an equal schedule returns
    /// the first.
    ///
    /// # Errors
    /// [`Refused`] where the name cannot be written in a list or belongs to another algorithm, and where the schedule
    /// cannot be lowered or the verifier refuses it, before or after fusing.
    pub fn new(schedule: Schedule, options: &LowerOptions) -> Result<Self, Refused> {
        Self::within(schedule, Range::ALL, options)
    }

    /// As [`Imported::new`], for calls of the lengths in `range`. The same schedule for other lengths is another.
    ///
    /// # Errors
    /// As [`Imported::new`].
    pub fn within(schedule: Schedule, range: Range, options: &LowerOptions) -> Result<Self, Refused> {
        let name = schedule.name.clone();
        let refused = |why: String| Refused { name: name.clone(), why };
        let written = |letter: u8| letter.is_ascii_alphanumeric() || b"-_.".contains(&letter);
        if !(1..=NAME_MAX).contains(&name.len()) || !name.bytes().all(written) {
            return Err(refused(format!(
                "a name has 1 to {NAME_MAX} of letters, digits, \"-\", \"_\" and \".\""
            )));
        }
        if name.eq_ignore_ascii_case("all") || Family::of_catalogue(&name).is_some() {
            return Err(refused("the name means something else".into()));
        }
        if schedule.collective == Collective::SendReceive {
            return Err(refused("a message between two ranks has no choice".into()));
        }
        if schedule.ranks == 0 || schedule.partition.parts == 0 {
            return Err(refused("it has no ranks or no parts".into()));
        }
        if schedule.ranks.checked_mul(schedule.partition.parts).is_none() {
            return Err(refused("its chunks are more than 2^32".into()));
        }
        let hash = hash_of(&schedule, range);
        let other = || refused("the name is that of another schedule".into());
        if let Some(known) = Self::named(&name) {
            return if known.hash() == hash { Ok(known) } else { Err(other()) };
        }
        let fold_hash = prove(&schedule, options).map_err(refused)?;
        // The call decides which rank is the first of a rooted collective.
        let by_ranks = matches!(schedule.collective, Collective::AllReduce | Collective::ReduceScatter)
            && schedule.ranks <= COMPARED_RANKS_MAX;
        let direct = || Algorithm::Direct { first: 0 }.schedule(schedule.collective, schedule.ranks);
        let in_rank_order = by_ranks && prove(&direct(), options) == Ok(fold_hash);
        let entry = Entry { schedule, range, hash, in_rank_order };
        let mut all = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have added it meanwhile.
        if let Some(at) = all.iter().position(|known| known.schedule.name == name) {
            return if all[at].hash == hash { Ok(Imported(at as u32)) } else { Err(other()) };
        }
        all.push(Box::leak(Box::new(entry)));
        Ok(Imported(all.len() as u32 - 1))
    }

    /// The schedule of this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        let all = KNOWN.read().unwrap_or_else(PoisonError::into_inner);
        all.iter().position(|known| known.schedule.name == name).map(|at| Imported(at as u32))
    }

    fn entry(self) -> &'static Entry {
        KNOWN.read().unwrap_or_else(PoisonError::into_inner)[self.0 as usize]
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        &self.entry().schedule.name
    }

    /// The schedule.
    pub fn schedule(self) -> &'static Schedule {
        &self.entry().schedule
    }

    /// The lengths of calls that it is meant for.
    pub fn range(self) -> Range {
        self.entry().range
    }

    /// A word for name, range and contents, the same in every process of one build.
    pub fn hash(self) -> u64 {
        self.entry().hash
    }

    /// Whether its proof shows that contributions are folded in the order of ranks.
    pub(super) fn folds_in_rank_order(self) -> bool {
        self.entry().in_rank_order
    }
}

/// Proves the plans that communicators run, of all ranks, also fused. Returns the hash of the order in which they
/// fold.
pub(crate) fn prove(schedule: &Schedule, options: &LowerOptions) -> Result<u64, String> {
    let plans = lower_all(schedule, options).map_err(|error| error.to_string())?;
    let proof = verify(&plans).map_err(|refusal| refusal.to_string())?;
    let fused: Vec<Plan> = plans.iter().map(|plan| passes::fuse(plan, &|_| true)).collect();
    let fused = verify(&fused).map_err(|refusal| refusal.to_string())?;
    if fused.fold_hash == proof.fold_hash {
        Ok(proof.fold_hash)
    } else {
        Err("fusing changes what is computed".into())
    }
}

/// A word for the schedule and its range.
fn hash_of(schedule: &Schedule, range: Range) -> u64 {
    fnv(format!("{schedule:?} {range:?}").bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: LowerOptions = LowerOptions { slots: 4 };

    fn named(name: &str, algorithm: Algorithm, collective: Collective, ranks: u32) -> Schedule {
        Schedule { name: name.into(), ..algorithm.schedule(collective, ranks) }
    }

    #[test]
    fn what_is_imported_is_an_algorithm_like_others() {
        let direct = named("ours-1", Algorithm::Direct { first: 0 }, Collective::AllReduce, 3);
        let imported = Imported::new(direct.clone(), &SLOTS).expect("it is right");
        assert_eq!(Imported::new(direct.clone(), &SLOTS), Ok(imported), "twice is once");
        let algorithm = Algorithm::Imported(imported);
        assert_eq!("ours-1".parse(), Ok(algorithm));
        assert_eq!((algorithm.to_string(), algorithm.family().name()), ("ours-1".into(), "ours-1"));
        assert!(algorithm.is_defined(Collective::AllReduce, 3));
        assert!(
            !algorithm.is_defined(Collective::AllReduce, 4) && !algorithm.is_defined(Collective::Reduce, 3)
        );
        assert_eq!(algorithm.schedule(Collective::AllReduce, 3), direct);
        assert!(
            algorithm.family().serves(Collective::AllReduce)
                && !algorithm.family().serves(Collective::AllGather)
        );
        assert!(algorithm.folds_in_rank_order(), "as direct does");
        let ring = named("ours-2", Algorithm::RING, Collective::AllReduce, 3);
        let ring = Algorithm::Imported(Imported::new(ring, &SLOTS).expect("it is right"));
        assert!(!ring.folds_in_rank_order());
        assert_ne!((ring.word(), ring.word()), (algorithm.word(), 0));
        assert!(
            Algorithm::text_of_word(ring.word()).is_some_and(|text| text.starts_with("an imported schedule"))
        );
        // Counts of a schedule equal those of its algorithm's formula.
        let of = |algorithm| super::super::formula(algorithm, Collective::AllReduce, 3).expect("defined");
        assert_eq!((of(algorithm).steps(), of(algorithm).volume()), (1.0, 2.0));
    }

    #[test]
    fn what_is_wrong_is_refused_with_its_reason() {
        let gather = named("ours-3", Algorithm::Direct { first: 0 }, Collective::AllGather, 3);
        let mut lost = gather.clone();
        let last = lost.rounds.iter_mut().rev().find_map(|round| round.transfers.pop());
        assert!(last.is_some());
        let why = |schedule: Schedule| Imported::new(schedule, &SLOTS).expect_err("it is wrong").to_string();
        assert!(why(lost).starts_with("the schedule \"ours-3\" is refused: "));
        let mut nowhere = gather.clone();
        nowhere.rounds[0].transfers[0].to = crate::Rank(9);
        assert!(why(nowhere).contains("has no rank"));
        for name in ["", "ring", "Two_Shot", "all", "a,b", "a b", "ring(channels=2)"] {
            assert!(why(Schedule { name: name.into(), ..gather.clone() }).contains("name"), "{name}");
        }
        assert!(why(Schedule { ranks: 0, ..gather.clone() }).contains("no ranks"));
        Imported::new(gather.clone(), &SLOTS).expect("the name is still free");
        let other = named("ours-3", Algorithm::RING, Collective::AllGather, 3);
        assert!(why(other).contains("another schedule"));
    }
}
