//! New communicators out of old ones.

use std::sync::Arc;
use std::time::Instant;

use super::agree::{Agreed, Purpose, Unless};
use super::{Communicator, Core};
use crate::Rank;
use consort_control::bootstrap;
use consort_control::membership::group::Group;
use consort_control::membership::member::Member;
use consort_control::membership::process::{Process, Shared};
use consort_settings::options::Settings;
use consort_types::call::Kind;
use consort_types::error::{Error, Result};

impl Communicator {
    /// Divides the ranks into new communicators, one per colour; a rank that passes no colour gets none. Every
    /// rank of this communicator must call it. Ranks of the new one are ordered by `key`, equal keys by their
    /// old ranks. It takes hardly any memory until it is used. A [revoked](Communicator::revoke) communicator can
    /// be split too.
    ///
    /// ```
    /// let world = consort::Communicator::local(4)?;
    /// std::thread::scope(|threads| {
    ///     for comm in &world {
    ///         threads.spawn(move || {
    ///             let row = comm.split(Some(comm.rank() / 2), 0).expect("all ranks split").expect("a colour");
    ///             assert_eq!((row.rank(), row.size()), (comm.rank() % 2, 2));
    ///         });
    ///     }
    /// });
    /// # consort::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// As every collective: see [`Error`].
    pub fn split(&self, color: Option<u32>, key: i64) -> Result<Option<Communicator>> {
        let span = tracing::debug_span!("split", rank = self.rank(), color, key);
        let _entered = span.enter();
        let mine = [i64::from(color.is_some()), i64::from(color.unwrap_or(0)), key];
        let Said { number, by_control_links, words } = self.all_say_of_parts(Kind::Split, &mine)?;
        let label = if by_control_links { "split after revoke" } else { "split" };
        let Some(color) = color else { return Ok(None) };
        let group = &self.core().group;
        let (uid, members) = part(group, label, number, color, &words);
        Ok(Some(self.among(uid, members)))
    }

    /// What each rank says of new communicators of some of its ranks: a collective; on a revoked communicator an agreement.
    pub(super) fn all_say_of_parts(&self, kind: Kind, mine: &[i64]) -> Result<Said> {
        match self.core().check() {
            Ok(()) => {
                let (number, words) = self.all_say(kind, mine)?;
                Ok(Said { number, by_control_links: false, words })
            }
            // Its operations are over, but its ranks still hear each other.
            Err(Error::Revoked { .. }) => self.all_agree_on_parts(kind, mine),
            Err(error) => Err(error),
        }
    }

    /// The same on a revoked communicator.
    pub(super) fn all_agree_on_parts(&self, kind: Kind, mine: &[i64]) -> Result<Said> {
        let _owned = self.core().acquire_failed(Instant::now() + self.timeout())?;
        let purpose = if kind == Kind::Mesh { Purpose::Mesh } else { Purpose::Split };
        let all_ranks = (0..self.size()).collect();
        let Agreed { round, words } = self.agree(purpose, all_ranks, mine, Unless::Aborted)?;
        Ok(Said { number: round, by_control_links: true, words })
    }

    /// A new communicator of some of this one's ranks, named by their ranks in the job.
    pub(super) fn among(&self, uid: u64, members: Vec<Rank>) -> Communicator {
        self.with_settings(uid, members, self.core().settings.clone())
    }

    /// The same with other settings, which are equal on all of its ranks.
    pub(super) fn with_settings(&self, uid: u64, members: Vec<Rank>, settings: Settings) -> Communicator {
        self.seed().grow(uid, members, settings, String::new())
    }

    pub(super) fn seed(&self) -> Seed {
        let core = self.core();
        Seed {
            member: core.group.member.clone(),
            shared: core.shared.clone(),
            process: self.process().clone(),
        }
    }
}

/// What each rank said, in the order of the ranks, and what tells this call from all others of the communicator.
pub(super) struct Said {
    pub(super) number: u64,
    /// Calls of both ways have the same numbers.
    pub(super) by_control_links: bool,
    pub(super) words: Vec<i64>,
}

/// What communicators of one rank of a job have in common.
pub(super) struct Seed {
    member: Arc<Member>,
    shared: Arc<Shared>,
    process: Arc<Process>,
}

impl Seed {
    pub(super) fn is_forked(&self) -> bool {
        self.shared.fork.is_forked_child()
    }

    /// A communicator of some ranks of the job, this one among them.
    pub(super) fn grow(
        &self,
        uid: u64,
        members: Vec<Rank>,
        settings: Settings,
        label: String,
    ) -> Communicator {
        let group = Group::labelled(self.member.clone(), uid, members, settings.records, label);
        let core = Core::new(group, self.shared.clone(), settings);
        Communicator::from_core(core, self.process.clone())
    }
}

/// The part of a split that has this colour: its name, and its ranks as ranks of the job. `all` are every rank's
/// words (whether it has a colour, the colour, the key); `label` and `number` tell this split from all others.
pub fn part(group: &Group, label: &str, number: u64, color: u32, all: &[i64]) -> (u64, Vec<Rank>) {
    let entries = all.chunks_exact(3).enumerate();
    let mut chosen: Vec<(i64, Rank)> = entries
        .filter(|(_, entry)| entry[0] == 1 && entry[1] == i64::from(color))
        .map(|(rank, entry)| (entry[2], rank as Rank))
        .collect();
    chosen.sort_unstable();
    let members: Vec<Rank> = chosen.iter().map(|(_, rank)| group.members[*rank as usize]).collect();
    let numbers = [group.uid, number, u64::from(color)];
    (bootstrap::name(&group.member.key, label, &numbers), members)
}
