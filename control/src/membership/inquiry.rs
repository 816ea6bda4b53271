//! Asking all ranks what they are doing.
//!
//! Invariant: never waits; it is asked again until it is complete or its time is over. Ranks that are known to be
//! gone are not asked. Processes of the job that are not of the communicator are asked when a rank that is waits
//! for them on another one.

use std::collections::BTreeSet;
use std::time::Instant;

use super::group::Group;
use crate::report::evidence::{Evidence, Reach, Witness};
use consort_types::Rank;
use consort_types::call::Descriptor;

/// Processes outside of the communicator through which a chain of waits is followed, one after the other.
const HOPS_MAX: u32 = 8;

/// A question to all, under way.
pub struct Inquiry {
    token: u64,
    until: Instant,
    /// Ranks of the job outside of the communicator that were asked too.
    asked: BTreeSet<Rank>,
    hops: u32,
}

impl Inquiry {
    /// Asks all ranks of the communicator.
    pub fn start(group: &Group, until: Instant) -> Self {
        let token = group.member.next_token();
        for rank in group.silent_since(u64::MAX) {
            group.send(rank, super::wire::Message::Query { token });
        }
        Inquiry { token, until, asked: BTreeSet::new(), hops: 0 }
    }

    /// Whether nothing more is to be expected.
    pub fn is_over(&mut self, group: &Group, now: Instant) -> bool {
        now >= self.until || (self.is_complete(group) && !self.follow(group))
    }

    /// Whether all ranks of the communicator that can answer have.
    pub fn is_complete(&self, group: &Group) -> bool {
        group.silent_since(self.token).is_empty()
    }

    /// Asks the processes that those who answered wait for and that were not asked yet; whether an answer is due.
    fn follow(&mut self, group: &Group) -> bool {
        let member = &group.member;
        let mut wanted = BTreeSet::new();
        for position in member.positions(group.uid) {
            let stuck = position.open.iter().filter_map(|open| open.stuck.as_ref());
            for process in stuck.map(|stuck| stuck.peer_process) {
                let rank = member.table.iter().position(|other| other.process == process);
                wanted.extend(rank.map(|rank| rank as Rank));
            }
        }
        let of_group = |rank: &Rank| *rank == member.rank || group.members.contains(rank);
        wanted.retain(|rank| !of_group(rank) && !self.asked.contains(rank));
        if !wanted.is_empty() && self.hops < HOPS_MAX {
            self.hops += 1;
            for rank in &wanted {
                member.send(*rank, group.uid, super::wire::Message::Query { token: self.token });
            }
            self.asked.extend(wanted);
        }
        self.asked.iter().any(|rank| !member.has_answered(*rank, self.token))
    }

    /// What was found out.
    pub fn evidence(
        &self,
        group: &Group,
        operation: Option<(u64, Descriptor)>,
        waited: std::time::Duration,
    ) -> Evidence {
        let silent = group.silent_since(self.token);
        let processes = group.member.processes(group.uid);
        let witness = |(rank, job_rank): (usize, &Rank)| {
            let rank = rank as Rank;
            let member = &group.member.table[*job_rank as usize];
            let reach = if rank == group.rank {
                Reach::Answered
            } else if let Some(cause) = group.loss(rank) {
                Reach::Lost(cause)
            } else if group.has_left(rank) {
                Reach::Left
            } else if silent.contains(&rank) {
                let refusal = group.member.refusal(*job_rank);
                refusal.map_or(Reach::Silent, |why| Reach::Lost(why.into()))
            } else {
                Reach::Answered
            };
            let positions = processes.get(&member.process).into_iter().flatten();
            let mut positions = positions.filter(|p| (p.communicator, p.rank) == (group.uid, rank));
            let position = match reach {
                Reach::Answered => positions.next().cloned(),
                Reach::Left => group.last_position(rank),
                Reach::Silent | Reach::Lost(_) => None,
            };
            Witness {
                host: member.host.clone(),
                pid: member.pid,
                process: member.process,
                job: group.member.job,
                job_rank: *job_rank,
                reach,
                position,
            }
        };
        let ranks = group.members.iter().enumerate().map(witness).collect();
        let table = group.member.table.iter().zip(0..);
        let places = table.map(|(other, rank)| (other.process, group.member.place(rank))).collect();
        Evidence { communicator: group.uid, by: group.rank, operation, waited, ranks, processes, places }
    }
}
