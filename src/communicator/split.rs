//! New communicators out of old ones.

use std::time::Instant;

use super::agree::{Agreed, Purpose, Unless};
use super::{Communicator, Core};
use crate::Rank;
use consort_control::bootstrap;
use consort_control::membership::group::Group;
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
        let (label, number, all) = match self.core().check() {
            Ok(()) => {
                let (number, all) = self.all_say(Kind::Split, &mine)?;
                ("split", number, all)
            }
            // Its operations are over, but its ranks still hear each other.
            Err(Error::Revoked { .. }) => {
                let _owned = self.core().acquire_failed(Instant::now() + self.timeout())?;
                let all_ranks = (0..self.size()).collect();
                let Agreed { round, words } =
                    self.agree(Purpose::Split, all_ranks, &mine, Unless::Aborted)?;
                ("split after revoke", round, words)
            }
            Err(error) => return Err(error),
        };
        let Some(color) = color else { return Ok(None) };
        let group = &self.core().group;
        let (uid, members) = part(group, label, number, color, &all);
        Ok(Some(self.among(uid, members)))
    }

    /// A new communicator of some of this one's ranks, named by their ranks in the job.
    pub(super) fn among(&self, uid: u64, members: Vec<Rank>) -> Communicator {
        self.with_settings(uid, members, self.core().settings.clone())
    }

    /// The same with other settings, which are equal on all of its ranks.
    pub(super) fn with_settings(&self, uid: u64, members: Vec<Rank>, settings: Settings) -> Communicator {
        let core = self.core();
        let group = Group::new(core.group.member.clone(), uid, members, settings.records);
        let core = Core::new(group, core.shared.clone(), settings);
        Communicator::from_core(core, self.process().clone())
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
