//! What a rank does on its communicator, as it tells others; and what is known of one that has left.
//!
//! Invariant: it is put together from the flight record when it is asked for. Absent: what is made of it (`report`).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::super::lock;
use super::Group;
use crate::recorder::{Entry, Outcome, RECORDS};
use crate::report::evidence::{Open, Position, Stuck, Traffic};
use consort_types::Rank;
use consort_types::call::Kind;

/// Where the operation with this record was last seen not to go on, and since when.
pub(super) struct Standing {
    record: u64,
    since: Instant,
    stuck: Stuck,
    traffic: Vec<Traffic>,
}

impl Group {
    /// What is known of a rank since it has left.
    pub fn last_position(&self, rank: Rank) -> Option<Position> {
        let state = self.state();
        let snapshot = state.left.get(&rank)?;
        let (sent, received) = snapshot.passed(self.rank);
        Some(Position {
            communicator: self.uid,
            size: self.size(),
            rank,
            job: self.member.job,
            job_rank: self.members[rank as usize],
            entered: snapshot.entered,
            finished: snapshot.finished,
            passed: vec![(self.rank, sent, received)],
            ..Position::default()
        })
    }

    /// Where the operation of record `record` does not go on.
    pub fn stand(&self, record: u64, since: Instant, stuck: Stuck, traffic: Vec<Traffic>) {
        *lock(&self.stuck) = Some(Standing { record, since, stuck, traffic });
    }

    /// What this rank does on this communicator, as it tells it to others.
    pub fn position(&self) -> Position {
        let entries = self.recorder.last(RECORDS);
        let age = |ticks: u64| self.clock().age(ticks);
        let standing = lock(&self.stuck);
        let open = entries.iter().find(|entry| entry.outcome == Outcome::Open);
        let standing = standing.as_ref().filter(|standing| {
            open.is_some() && entries.iter().any(|e| e.index == standing.record && e.outcome == Outcome::Open)
        });
        // Of an exchange's two messages the one that does not go on is shown.
        let shown = standing.and_then(|s| entries.iter().find(|entry| entry.index == s.record)).or(open);
        let now = self.clock().now();
        let stuck = standing.map(|standing| {
            let age: Duration = now.saturating_duration_since(standing.since);
            Stuck { age, ..standing.stuck.clone() }
        });
        let ended = |entry: &&Entry| entry.outcome == Outcome::Finished;
        let last = entries.iter().filter(ended).max_by_key(|entry| entry.ended);
        let is_message = |entry: &&Entry| entry.descriptor.kind.is_message();
        let under_way = entries.iter().filter(is_message).filter(|entry| entry.outcome == Outcome::Open);
        let mut passed: BTreeMap<Rank, (u64, u64)> = BTreeMap::new();
        for entry in entries.iter().filter(is_message).filter(ended) {
            let (sent, received) = passed.entry(entry.descriptor.root).or_default();
            let number = if entry.descriptor.kind == Kind::Send { sent } else { received };
            *number = entry.sequence.max(*number);
        }
        Position {
            communicator: self.uid,
            size: self.size(),
            rank: self.rank,
            job: self.member.job,
            job_rank: self.member.rank,
            caller: self.recorder.caller(),
            entered: self.recorder.entered(),
            finished: self.recorder.finished(),
            last: last.map(|entry| (entry.sequence, entry.descriptor, age(entry.ended))),
            open: shown.map(|entry| Open {
                sequence: entry.sequence,
                descriptor: entry.descriptor,
                age: age(entry.entered),
                stuck,
            }),
            messages: under_way.map(|entry| (entry.sequence, entry.descriptor)).collect(),
            passed: passed.into_iter().map(|(rank, (sent, received))| (rank, sent, received)).collect(),
            traffic: standing.map(|standing| standing.traffic.clone()).unwrap_or_default(),
            slow: self.slow_wires(),
        }
    }
}
