//! Words that ranks of a communicator say to each other over the control links, round by round, and how some of them
//! agree that way without the others.
//!
//! A rank says its words for a round to all; an [`Agreement`] of some ranks is reached when all of those have said
//! theirs for the same round. Attempts may fail on one rank only (it noticed a death first, say), so ranks count
//! rounds differently. Therefore a rank that gives a round up takes its words back, unless the others need them to find
//! the difference, and a rank that sees another in a later round, and was not in this one for the same thing, follows
//! it there.
//!
//! In a communicator whose ranks do not all hear each other, a rank's words are passed on by those that hear them to their neighbours.
//! Each rank counts what it says; of what another one said in a round its last word counts, once, however it came.
//!
//! Invariant: nothing here waits or sleeps; what is kept of a rank is bounded. Absent: what words mean, and the
//! communicator's own failure: an agreement goes on after it, as far as it can.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::super::wire::Message;
use super::Group;
use consort_types::Rank;

/// Rounds in which words of one rank are kept: a peer may be in the next one before this one is over here.
const ROUNDS_KEPT: usize = 2;
/// Words of one rank in a round, at most: a bit for each of as many ranks as there can be, and some more.
const WORDS_MAX: usize = 1024 + 16;
/// Rounds at once in which a rank that is ahead is followed, at most: no rank's counter is driven to its end.
const AHEAD_MAX: u64 = 1 << 16;
/// Rounds of one rank for which is known what it said last, at most.
const NUMBERS_KEPT: usize = 8;
/// How long words that differ are given to be taken back: who heard of a death later starts again with others. And how long
/// words that are passed on may come after their rank has left.
pub const GRACE: Duration = Duration::from_secs(1);

/// What was said.
#[derive(Default)]
pub(super) struct Rounds {
    /// The last round that this rank took part in.
    current: u64,
    heard: BTreeMap<Rank, BTreeMap<u64, Vec<u64>>>,
    /// For each rank and round the number of what it said last there, of what was passed on.
    numbers: BTreeMap<Rank, BTreeMap<u64, u64>>,
    /// How often this rank has said something.
    said: u64,
    /// What it said last, of what is passed on.
    last: Option<Message>,
}

impl Rounds {
    /// A rank says its words for a round; none take them back.
    pub(super) fn hear(&mut self, rank: Rank, round: u64, words: Vec<u64>) {
        let heard = self.heard.entry(rank).or_default();
        if words.is_empty() {
            heard.remove(&round);
        } else if words.len() <= WORDS_MAX {
            heard.insert(round, words);
        }
        while heard.len() > ROUNDS_KEPT {
            heard.pop_first();
        }
    }

    /// As [`Rounds::hear`], of words that were passed on; whether they are new. Of what a rank said in a round the last counts,
    /// in whichever order it comes.
    pub(super) fn hear_passed(&mut self, rank: Rank, number: u64, round: u64, words: &[u64]) -> bool {
        let numbers = self.numbers.entry(rank).or_default();
        let is_past =
            numbers.len() >= NUMBERS_KEPT && numbers.keys().next().is_some_and(|first| *first > round);
        if is_past || numbers.get(&round).is_some_and(|last| *last >= number) {
            return false;
        }
        numbers.insert(round, number);
        if numbers.len() > NUMBERS_KEPT {
            numbers.pop_first();
        }
        self.hear(rank, round, words.to_vec());
        true
    }

    /// The number of what this rank says next.
    fn next_number(&mut self) -> u64 {
        self.said += 1;
        self.said
    }

    /// What this rank said last, for ranks that hear that it leaves: they may not have it from others yet.
    pub(super) fn last_said(&self) -> Option<Message> {
        self.last.clone()
    }

    fn words(&self, rank: Rank, round: u64) -> Option<&Vec<u64>> {
        self.heard.get(&rank)?.get(&round)
    }

    /// The latest round of a rank that is ahead of `round` and did not take part in it for the same thing.
    fn ahead(&self, rank: Rank, round: u64, same: impl Fn(&Vec<u64>) -> bool) -> Option<u64> {
        let heard = self.heard.get(&rank).filter(|heard| !heard.get(&round).is_some_and(same))?;
        let latest = heard.last_key_value().map(|(latest, _)| *latest)?;
        (latest > round && latest - round <= AHEAD_MAX).then_some(latest)
    }

    /// A round is over here: what was said in it and before is of no use any more.
    fn forget(&mut self, round: u64) {
        self.heard.values_mut().for_each(|heard| heard.retain(|other, _| *other > round));
    }
}

/// Some ranks of a communicator, this one among them, on the way to knowing each other's words.
pub struct Agreement {
    round: u64,
    /// Who must say something, in order.
    among: Vec<Rank>,
    words: Vec<u64>,
    /// How many of the words must be the same on all ranks.
    shared: usize,
    until: Instant,
    differ_since: Option<Instant>,
    /// Since when one that has said nothing is known to have left.
    left_since: Option<Instant>,
    /// The others are to find the difference in these words too.
    stands: bool,
}

/// What they agreed on.
#[derive(PartialEq, Eq, Debug)]
pub struct Agreed {
    /// The same on all ranks, another one for each agreement of a communicator.
    pub round: u64,
    /// All ranks' words, in the order of the ranks.
    pub words: Vec<Vec<u64>>,
}

/// Why they do not agree.
#[derive(PartialEq, Eq, Debug)]
pub enum Disagreement {
    /// One of them is gone, and how that was noticed.
    Lost(Rank, String),
    /// One of them has closed the communicator.
    Left(Rank),
    /// These have said nothing in time.
    Silent(Vec<Rank>),
    /// What must be the same is not: each rank's words, as far as they are known.
    Differ(Vec<(Rank, Vec<u64>)>),
}

impl Agreement {
    /// Says `words` to all; the first `shared` of them must be the same on the ranks `among`, this one included.
    pub fn begin(group: &Group, among: Vec<Rank>, words: Vec<u64>, shared: usize, until: Instant) -> Self {
        let round = {
            let rounds = &mut group.state().rounds;
            let current = rounds.current;
            rounds.forget(current);
            current + 1
        };
        let agreement = Agreement {
            round,
            among,
            words,
            shared,
            until,
            differ_since: None,
            left_since: None,
            stands: false,
        };
        agreement.say(group, agreement.words.clone());
        agreement
    }

    pub fn round(&self) -> u64 {
        self.round
    }

    /// Also to those that are left out: one that thinks otherwise finds the difference.
    fn say(&self, group: &Group, words: Vec<u64>) {
        let message = {
            let rounds = &mut group.state().rounds;
            rounds.current = rounds.current.max(self.round);
            let number = rounds.next_number();
            rounds.hear_passed(group.rank, number, self.round, &words);
            if group.is_passed_on() {
                let message = Message::Passed { of: group.rank, number, round: self.round, words };
                rounds.last = Some(message.clone());
                message
            } else {
                Message::Gather { round: self.round, words }
            }
        };
        for rank in group.neighbours() {
            group.send(rank, message.clone());
        }
    }

    /// Whether it is over, and how; `None` when it is to be asked again.
    pub fn poll(&mut self, group: &Group, now: Instant) -> Option<Result<Agreed, Disagreement>> {
        let lost = self.among.iter().find_map(|rank| Some((*rank, group.loss(*rank)?)));
        if let Some((rank, cause)) = lost {
            return Some(Err(Disagreement::Lost(rank, cause)));
        }
        let same = |words: &Vec<u64>| words.get(..self.shared) == self.words.get(..self.shared);
        let ahead = {
            let state = group.state();
            self.among.iter().filter_map(|rank| state.rounds.ahead(*rank, self.round, same)).max()
        };
        if let Some(round) = ahead {
            self.say(group, Vec::new());
            self.round = round;
            self.say(group, self.words.clone());
        }
        let mut state = group.state();
        let said = |rank: &Rank| Some((*rank, state.rounds.words(*rank, self.round)?.clone()));
        let said: Vec<(Rank, Vec<u64>)> = self.among.iter().filter_map(said).collect();
        if said.iter().all(|(_, words)| same(words)) {
            self.differ_since = None;
        } else if now >= self.until || now >= *self.differ_since.get_or_insert(now) + GRACE {
            self.stands = true;
            return Some(Err(Disagreement::Differ(said)));
        }
        if said.len() == self.among.len() && self.differ_since.is_none() {
            state.rounds.forget(self.round);
            let words = said.into_iter().map(|(_, words)| words).collect();
            return Some(Ok(Agreed { round: self.round, words }));
        }
        let mut silent = self.among.clone();
        silent.retain(|rank| !said.iter().any(|(other, _)| other == rank));
        if let Some(rank) = silent.iter().find(|rank| state.left.contains_key(rank)) {
            // Its words come through others, and that it has left by itself.
            let since = *self.left_since.get_or_insert(now);
            if !group.is_passed_on() || now >= since + GRACE {
                return Some(Err(Disagreement::Left(*rank)));
            }
        } else {
            self.left_since = None;
        }
        let refused = silent.iter().find_map(|rank| Some((*rank, group.refusal(*rank)?)));
        if let Some((rank, why)) = refused {
            return Some(Err(Disagreement::Lost(rank, why.to_owned())));
        }
        (now >= self.until).then_some(Err(Disagreement::Silent(silent)))
    }

    /// This rank does not wait any longer: its words for this round do not hold any more.
    pub fn give_up(self, group: &Group) {
        if !self.stands {
            self.say(group, Vec::new());
        }
    }
}

#[cfg(test)]
mod tests;
