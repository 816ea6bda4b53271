//! Agreements of ranks over the control connections, for calls that must work when the data connections do not.
//!
//! Invariant: an agreement ends by the deadline, with the words of all ranks or with an error that names the guilty ranks.
//! Absent: how ranks find into the same round (see `control::membership::group`), and the use of their words.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::Communicator;
use crate::Rank;
use consort_control::membership::group::{Agreement, Disagreement, GRACE};
use consort_types::error::{Error, Operation, Result, list, seconds};

const PAUSE: Duration = Duration::from_micros(200);
/// The time that an agreement goes on after a failure that ends it: long enough for a difference to be found.
const FAILED_MAX: Duration = GRACE.saturating_mul(2);

/// The subject of an agreement. It travels, so that ranks with different purposes find out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// A split of a revoked communicator.
    Split,
    /// A mesh over a revoked communicator.
    Mesh,
    /// A communicator without these ranks, which are sorted; whether its operations are ended first.
    Shrink { excluded: Vec<Rank>, aborting: bool },
}

/// The failures that end an attempt before its deadline, beside the loss of a rank that takes part.
#[derive(Clone, Copy, Debug)]
pub(super) enum Unless {
    /// An abort of the communicator by any rank.
    Aborted,
    /// An abort by this rank: its count of aborts is no longer this one.
    AbortedHere(u64),
    /// Any failure of the communicator that lasts a moment, as ranks finish an agreement that all had begun before it. An
    /// abort by this rank, whose count of aborts was this one, ends the attempt at once: a rank that aborts waits for no
    /// other.
    Failed(u64),
}

/// The result of an agreement.
pub(super) struct Agreed {
    /// The agreement's number, the same on all ranks.
    pub(super) round: u64,
    /// The words that ranks added, one rank after the other.
    pub(super) words: Vec<i64>,
}

impl Purpose {
    /// One word for the purpose, and one bit for each rank that is left out.
    fn words(&self, size: u32) -> Vec<u64> {
        match self {
            Purpose::Split => vec![0],
            Purpose::Mesh => vec![3],
            Purpose::Shrink { excluded, aborting } => {
                let mut words = vec![0; 1 + size.div_ceil(64) as usize];
                words[0] = 1 + u64::from(*aborting);
                for rank in excluded {
                    words[1 + *rank as usize / 64] |= 1 << (rank % 64);
                }
                words
            }
        }
    }

    /// The inverse of [`Purpose::words`]; `None` for other words.
    fn read(words: &[u64], size: u32) -> Option<Self> {
        match words {
            [0, ..] => Some(Purpose::Split),
            [3, ..] => Some(Purpose::Mesh),
            [what @ (1 | 2), bits @ ..] if bits.len() == size.div_ceil(64) as usize => {
                let is_out = |rank: &Rank| bits[*rank as usize / 64] >> (rank % 64) & 1 == 1;
                Some(Purpose::Shrink { excluded: (0..size).filter(is_out).collect(), aborting: *what == 2 })
            }
            _ => None,
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Purpose::Split => "split",
            Purpose::Mesh => "mesh",
            Purpose::Shrink { .. } => "shrink",
        }
    }

    /// The purpose in words for people.
    fn text(&self) -> String {
        match self {
            Purpose::Split | Purpose::Mesh => self.name().into(),
            Purpose::Shrink { excluded, aborting } => {
                let how = if *aborting { "Abort" } else { "Idle" };
                format!("shrink without {} (Shrink::{how})", list(excluded))
            }
        }
    }
}

/// `rank 1: shrink without 2 (Shrink::Idle); ranks 0, 3: shrink without 2, 4 (Shrink::Idle)`.
fn difference(said: &[(Rank, Vec<u64>)], size: u32) -> String {
    let text = |words| Purpose::read(words, size).map_or("something else".into(), |purpose| purpose.text());
    by_text(said.iter().map(|(rank, words)| (*rank, text(words))))
}

/// What ranks said, those first that fewest said: `rank 1: this; ranks 0, 3: that`.
pub(super) fn by_text(said: impl Iterator<Item = (Rank, String)>) -> String {
    let mut by_text: BTreeMap<String, Vec<Rank>> = BTreeMap::new();
    for (rank, text) in said {
        by_text.entry(text).or_default().push(rank);
    }
    let mut parts: Vec<(Vec<Rank>, String)> =
        by_text.into_iter().map(|(text, ranks)| (ranks, text)).collect();
    parts.sort_by_key(|(ranks, _)| (ranks.len(), ranks.first().copied()));
    let part = |(ranks, text): (Vec<Rank>, String)| {
        format!("rank{} {}: {text}", if ranks.len() == 1 { "" } else { "s" }, list(&ranks))
    };
    parts.into_iter().map(part).collect::<Vec<_>>().join("; ")
}

impl Communicator {
    /// Exchanges words with the ranks `among`, over the control connections and without the others. The caller has the
    /// engine, or knows that no other thread of this rank is in an agreement.
    pub(super) fn agree(
        &self,
        purpose: Purpose,
        among: Vec<Rank>,
        mine: &[i64],
        unless: Unless,
    ) -> Result<Agreed> {
        let (core, group) = (self.core(), &self.core().group);
        let mut words = purpose.words(self.size());
        let shared = words.len();
        words.extend(mine.iter().map(|word| word.cast_unsigned()));
        let begun = Instant::now();
        let mut agreement = Agreement::begin(group, among, words, shared, begun + self.timeout());
        let mut failed_since = None;
        let error = loop {
            match agreement.poll(group, Instant::now()) {
                None => {}
                Some(Err(disagreement)) => {
                    break self.disagreed(&purpose, agreement.round(), begun.elapsed(), disagreement);
                }
                Some(Ok(agreed)) => {
                    if agreed.words.iter().any(|words| words.len() != shared + mine.len()) {
                        break Error::internal(format!("a rank said something else in a {}", purpose.name()));
                    }
                    let added = agreed.words.iter().flat_map(|words| &words[shared..]);
                    let words = added.map(|word| word.cast_signed()).collect();
                    return Ok(Agreed { round: agreed.round, words });
                }
            }
            let failure = group.failure();
            match (unless, &failure) {
                (Unless::Aborted, Err(error @ Error::Aborted { .. })) => break error.clone(),
                (Unless::AbortedHere(before) | Unless::Failed(before), _) if core.aborts() != before => {
                    let reason = format!("this rank aborted it during a {}", purpose.name());
                    break Error::Aborted { rank: self.rank(), reason };
                }
                (Unless::Failed(_), Err(_))
                    if failed_since.get_or_insert_with(Instant::now).elapsed() > FAILED_MAX =>
                {
                    break core.dumped(core.failure());
                }
                _ => {}
            }
            std::thread::sleep(PAUSE);
        };
        agreement.give_up(group);
        Err(error)
    }

    fn disagreed(
        &self,
        purpose: &Purpose,
        round: u64,
        waited: Duration,
        disagreement: Disagreement,
    ) -> Error {
        let group = &self.core().group;
        let operation = Operation { name: purpose.name().into(), sequence: round };
        match disagreement {
            Disagreement::Lost(rank, cause) => group.peer_lost(rank, cause, Some(operation)),
            Disagreement::Left(rank) => Error::PeerLeft { rank, place: group.place(rank), operation },
            Disagreement::Silent(ranks) => {
                let shown = ranks.iter().take(4);
                let mut named: Vec<String> =
                    shown.map(|rank| format!("rank {rank} ({})", group.place(*rank))).collect();
                if ranks.len() > named.len() {
                    named.push(format!("{} more", ranks.len() - named.len()));
                }
                let verdict = format!(
                    "{} did not call {} with this rank within {}: in its program's own code, stopped, or given up",
                    named.join(", "),
                    purpose.name(),
                    seconds(waited)
                );
                Error::Timeout { operation, waited, verdict }
            }
            Disagreement::Differ(said) => Error::invalid(
                format!(
                    "ranks want different things of one communicator: {}",
                    difference(&said, self.size())
                ),
                "let all ranks that stay make the same call with the same list",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_purpose_is_read_as_it_was_written() {
        let shrink = |excluded: &[Rank], aborting| Purpose::Shrink { excluded: excluded.to_vec(), aborting };
        for (purpose, size) in [
            (Purpose::Split, 3),
            (Purpose::Mesh, 3),
            (shrink(&[0], false), 2),
            (shrink(&[63, 64], true), 65),
            (shrink(&[127], true), 128),
        ] {
            assert_eq!(Purpose::read(&purpose.words(size), size), Some(purpose));
        }
        assert_eq!(Purpose::read(&[4, 0], 2), None);
        assert_eq!(Purpose::read(&[1], 2), None);
    }

    #[test]
    fn a_difference_names_all_ranks() {
        let words =
            |excluded: &[Rank]| Purpose::Shrink { excluded: excluded.to_vec(), aborting: false }.words(5);
        let said = [(0, words(&[2])), (1, words(&[2, 4])), (3, words(&[2]))];
        assert_eq!(
            difference(&said, 5),
            "rank 1: shrink without 2, 4 (Shrink::Idle); ranks 0, 3: shrink without 2 (Shrink::Idle)"
        );
    }
}
