//! How the first failure of a communicator becomes the same failure on all its ranks.
//!
//! Several ranks may find several failures at once (a rank dies, and an operation that needs it runs out of
//! time). Every rank says once, to all others, which failure it found or heard of first, and finds none after
//! that. A rank that has heard from all that can be reached knows every failure that was found, and so chooses the
//! same one as they do: the one that is nearest to the cause, and of equal ones that of the lowest rank.
//!
//! Where ranks hear some of the others only through their neighbours, each passes on what changes what it knows: a failure that is
//! nearer to the cause than all it knew, and each pair of ends of a link that broke. What was found before the first failure was
//! everywhere is everywhere one such way later, so a rank that waits for [`SETTLE_MAX`] knows the same as the others if a way takes
//! less than half of that.
//!
//! Invariant: pure state without clock or sockets. What is settled does not change any more. Waiting for ranks
//! that cannot speak is bounded by [`SETTLE_MAX`], well below the second within which a failure must be known.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::report::Report;
use consort_types::Rank;
use consort_types::error::{Error, list};

/// How long a failure waits for the others' word, at most.
const SETTLE_MAX: Duration = Duration::from_millis(300);
/// The same for an abort or a revocation: a program often asks for one because a rank does not answer.
const SETTLE_WILL_MAX: Duration = Duration::from_millis(50);
/// The same where the report says of all ranks that are still awaited that they do not answer. They did not answer the rank
/// that made the report, and may answer this one: where a link is cut, each of its ends reports the other, and all other
/// ranks must know both reports before they choose.
const SETTLE_SILENT_MAX: Duration = Duration::from_millis(50);

/// A failure as it travels.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The rank that found it.
    pub origin: Rank,
    pub error: Error,
    /// What explains it, for failures by deadline.
    pub report: Option<Arc<Report>>,
}

impl Failure {
    /// Smaller is nearer to the cause.
    fn key(&self) -> (u8, Rank) {
        let class = match self.error {
            Error::Aborted { .. } => 0,
            Error::Revoked { .. } => 1,
            Error::MissingRanks { .. } => 2,
            Error::PeerLost { .. } => 3,
            Error::Mismatch { .. } => 4,
            Error::OutOfMemory { .. } => 5,
            Error::Device { .. } => 6,
            Error::Internal { .. } => 7,
            Error::System { .. } => 8,
            Error::Link { .. } => 9,
            Error::PeerLeft { .. } => 10,
            Error::Timeout { .. } => 11,
            _ => 12,
        };
        (class, self.origin)
    }
}

/// What a failure adds to what is known.
#[derive(PartialEq, Eq, Clone, Copy, Debug)]
pub(super) enum News {
    /// It is the first.
    First,
    /// It is nearer to the cause, or accuses a rank that was not accused by that one.
    More,
    None,
}

impl News {
    /// Whether other ranks are to hear of it: the first failure, and where they hear some ranks `through_others` all that changes
    /// something.
    pub(super) fn is_to_be_said(self, through_others: bool) -> bool {
        match self {
            News::First => true,
            News::More => through_others,
            News::None => false,
        }
    }
}

/// A communicator's way from the first failure to the one that stays.
#[derive(Default)]
pub(super) struct Failing {
    best: Option<Failure>,
    since: Option<Instant>,
    settled: bool,
    /// Who has said that it failed.
    heard: BTreeSet<Rank>,
    /// Per rank: who says that its link to it broke.
    accused: BTreeMap<Rank, BTreeSet<Rank>>,
}

impl Failing {
    pub(super) fn failure(&self) -> Option<&Failure> {
        self.best.as_ref()
    }

    /// A rank said that it failed. Whether for the first time: what it says after that does not count.
    pub(super) fn heard(&mut self, rank: Rank) -> bool {
        self.heard.insert(rank)
    }

    /// A failure is known.
    pub(super) fn take_up(&mut self, failure: Failure, now: Instant) -> News {
        let accuses = match &failure.error {
            Error::Link { from, to, .. } => self.accused.entry(*to).or_default().insert(*from),
            _ => false,
        };
        let Some(best) = &mut self.best else {
            self.best = Some(failure);
            self.since = Some(now);
            return News::First;
        };
        let is_nearer = failure.key() < best.key();
        if best.key() == failure.key() {
            // The same, passed on by others without its report.
            best.report = best.report.take().or(failure.report);
        } else if !self.settled && is_nearer {
            *best = failure;
        }
        if !self.settled && (is_nearer || accuses) { News::More } else { News::None }
    }

    /// A rank aborts what was revoked and settled: that ends what still goes on after a revocation.
    pub(super) fn overrule(&mut self, failure: &Failure) -> bool {
        let revoked = self.best.as_ref().is_some_and(|best| matches!(best.error, Error::Revoked { .. }));
        let overrules = revoked && matches!(failure.error, Error::Aborted { .. });
        if overrules {
            self.best = Some(failure.clone());
            self.settled = true;
        }
        overrules
    }

    /// Whether the failure stays as it is from now on. `awaited` are the ranks that can still speak; where their words are
    /// passed on by others (`is_passed_on`), none says that it has heard of the failure.
    pub(super) fn settle(
        &mut self,
        now: Instant,
        awaited: impl Iterator<Item = Rank>,
        is_passed_on: bool,
        place: impl Fn(Rank) -> String,
    ) -> bool {
        let (Some(best), Some(since)) = (&mut self.best, self.since) else { return false };
        if self.settled {
            return true;
        }
        let silent = |rank: Rank| {
            let report = best.report.as_ref();
            report.is_some_and(|r| r.ranks.get(rank as usize).is_some_and(|r| r.unreachable.is_some()))
        };
        let will = matches!(best.error, Error::Aborted { .. } | Error::Revoked { .. });
        let mut missing = awaited.filter(|rank| !self.heard.contains(rank)).peekable();
        if is_passed_on || missing.peek().is_some() {
            let patience = match missing.all(silent) {
                _ if will => SETTLE_WILL_MAX,
                _ if is_passed_on => SETTLE_MAX,
                true => SETTLE_SILENT_MAX,
                false => SETTLE_MAX,
            };
            if now.saturating_duration_since(since) < patience {
                return false;
            }
        }
        self.settled = true;
        // Links that broke at several ranks at once have an end in common.
        if let Error::Link { cause, .. } = &best.error
            && let Some((rank, by)) =
                self.accused.iter().find(|(rank, by)| by.len() > 1 && !self.heard.contains(rank))
        {
            let by: Vec<Rank> = by.iter().copied().collect();
            best.error = Error::PeerLost {
                rank: *rank,
                place: place(*rank),
                operation: None,
                cause: format!("ranks {} lost their connections to it at once: {cause}", list(&by)),
            };
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Guilty;
    use crate::report::RankReport;

    fn aborted(origin: Rank) -> Failure {
        Failure { origin, error: Error::Aborted { rank: origin, reason: "enough".into() }, report: None }
    }

    fn internal(origin: Rank) -> Failure {
        Failure { origin, error: Error::internal(format!("found by {origin}")), report: None }
    }

    fn link(from: Rank, to: Rank) -> Failure {
        let error = Error::Link { from, to, transport: "tcp".into(), cause: "reset".into() };
        Failure { origin: from, error, report: None }
    }

    fn origin(failing: &Failing) -> Option<Rank> {
        failing.failure().map(|failure| failure.origin)
    }

    #[test]
    fn the_lowest_rank_s_word_stays_once_all_were_heard() {
        let (mut failing, now) = (Failing::default(), Instant::now());
        assert_eq!(failing.take_up(internal(3), now), News::First);
        assert!(!failing.settle(now, [1, 2].into_iter(), false, |_| String::new()));
        failing.heard(2);
        assert!(!failing.take_up(internal(1), now).is_to_be_said(false), "only the first is passed on");
        assert_eq!(failing.take_up(internal(2), now), News::None);
        assert!(!failing.settle(now, [1, 2].into_iter(), false, |_| String::new()));
        failing.heard(1);
        assert!(failing.settle(now, [1, 2].into_iter(), false, |_| String::new()));
        failing.take_up(internal(0), now);
        assert_eq!(origin(&failing), Some(1), "settled is settled");
    }

    #[test]
    fn silence_is_waited_for_a_bounded_time() {
        let (mut failing, now) = (Failing::default(), Instant::now());
        failing.take_up(internal(3), now);
        assert!(!failing.settle(now + SETTLE_MAX / 2, [0].into_iter(), false, |_| String::new()));
        assert!(failing.settle(now + SETTLE_MAX, [0].into_iter(), false, |_| String::new()));
    }

    #[test]
    fn who_is_said_to_be_silent_may_still_speak() {
        let about = |rank: Rank, silent: Rank| RankReport {
            rank,
            host: "h".into(),
            process: 100 + rank,
            unreachable: (rank == silent).then(|| "no answer".into()),
            left: false,
            finished: None,
            waiting: None,
            elsewhere: None,
        };
        let silent = |by: Rank, silent: Rank| {
            let report = Report {
                communicator: "c".into(),
                size: 3,
                by,
                operation: None,
                waited: Duration::ZERO,
                guilty: Guilty::Unreachable(vec![silent]),
                verdict: String::new(),
                graph: None,
                slow: Vec::new(),
                ranks: (0..3).map(|rank| about(rank, silent)).collect(),
            };
            Failure { report: Some(Arc::new(report)), ..internal(by) }
        };
        let (mut failing, now) = (Failing::default(), Instant::now());
        failing.take_up(silent(1, 0), now);
        for rank in [1, 2] {
            failing.heard(rank);
        }
        let awaited = || [0, 1, 2].into_iter();
        assert!(
            !failing.settle(now, awaited(), false, |_| String::new()),
            "rank 0 is silent for rank 1, not for all"
        );
        failing.take_up(silent(0, 1), now);
        failing.heard(0);
        assert!(failing.settle(now, awaited(), false, |_| String::new()));
        assert_eq!(origin(&failing), Some(0));
        // One that is silent for all is waited for a little.
        let mut failing = Failing::default();
        failing.take_up(silent(1, 0), now);
        for rank in [1, 2] {
            failing.heard(rank);
        }
        assert!(failing.settle(now + SETTLE_SILENT_MAX, awaited(), false, |_| String::new()));
    }

    #[test]
    fn a_will_is_nearest_to_the_cause_and_of_two_the_lowest_rank_s() {
        let (mut failing, now) = (Failing::default(), Instant::now());
        failing.take_up(internal(0), now);
        failing.take_up(aborted(5), now);
        assert!(
            !failing.settle(now, [3].into_iter(), false, |_| String::new()),
            "another may have had a will too"
        );
        failing.take_up(aborted(3), now);
        failing.heard(3);
        assert!(failing.settle(now, [3].into_iter(), false, |_| String::new()));
        assert_eq!(origin(&failing), Some(3));
    }

    #[test]
    fn links_that_break_at_several_ranks_accuse_their_common_end() {
        let (mut failing, now) = (Failing::default(), Instant::now());
        failing.take_up(link(0, 2), now);
        failing.take_up(link(1, 2), now);
        failing.heard(1);
        assert!(failing.settle(now, [1].into_iter(), false, |_| String::new()));
        let error = failing.failure().map(|failure| failure.error.clone());
        assert!(matches!(error, Some(Error::PeerLost { rank: 2, .. })), "{error:?}");
        let mut failing = Failing::default();
        failing.take_up(link(0, 2), now);
        failing.heard(1);
        failing.heard(2);
        assert!(failing.settle(now, [1, 2].into_iter(), false, |_| String::new()));
        assert!(matches!(failing.failure().map(|f| &f.error), Some(Error::Link { from: 0, to: 2, .. })));
    }

    #[test]
    fn where_words_are_passed_on_all_that_changes_something_is_until_it_is_settled() {
        let (mut failing, now) = (Failing::default(), Instant::now());
        assert_eq!(failing.take_up(link(3, 7), now), News::First);
        assert!(failing.take_up(link(4, 7), now).is_to_be_said(true), "another one accuses it");
        assert!(!failing.take_up(link(4, 7), now).is_to_be_said(true), "it came another way before");
        assert_eq!(failing.take_up(internal(9), now), News::More, "it is nearer to the cause");
        assert!(!failing.settle(now + SETTLE_MAX / 2, [].into_iter(), true, |_| String::new()));
        assert!(failing.settle(now + SETTLE_MAX, [].into_iter(), true, |_| String::new()));
        assert_eq!(failing.take_up(internal(1), now), News::None, "it is settled");
        assert_eq!(origin(&failing), Some(9));
    }
}
