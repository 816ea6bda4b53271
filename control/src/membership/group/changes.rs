//! From which call on a communicator's ranks plan for another machine, as a path between hosts is lost or is back.
//!
//! ```text
//!   any rank                 rank 0                              every rank
//!   Paths ─────────────────► the machine is another one
//!                            Propose ──────────────────────────► it promises to enter no call past `last`
//!                            all have promised ◄──────────────── Promise { last }
//!                            from = 1 + the largest `last`
//!                            Change { from, lost } ────────────► planned for from that call on; the promise is over
//! ```
//!
//! Invariant: no rank has entered call `from` before it knows the change, since it has promised so; so all ranks plan every call for one
//! machine. Rank 0 proposes one change at a time, and `from` never falls. A rank that is gone makes no calls, and is not waited for.
//! Nothing here waits. Absent: paths (the transports'), calls and plans (the engine's), which rank waits and for how long (the
//! communicator's). A rank that dies ends the communicator, and so every change.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Weak;

use consort_memory::sync::Ordering;

use super::super::lock;
use super::super::process::Unattended;
use super::super::wire::Message;
use super::{Group, GroupState};
use consort_types::Rank;

/// What a rank says of its ways to another rank: which, how many are left, and how many there were.
pub type Sight = (Rank, u32, u32);

/// A host with fewer ways than it had: which, counted in the order in which hosts come among the ranks, how many are left, and
/// how many there were.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LostPaths {
    pub host: u32,
    pub left: u32,
    pub of: u32,
}

/// What ranks plan for from a call on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The first collective that is planned for it.
    pub from: u64,
    /// The hosts that have lost paths, in order; all others have all of theirs.
    pub lost: Vec<LostPaths>,
}

/// Changes of a communicator's machine, as one rank knows them.
#[derive(Default)]
pub(super) struct Changes {
    /// The change that is proposed, until the engine has taken it up; and the last one that was.
    proposed: Option<u64>,
    heard: u64,
    /// Those that are agreed, until the engine has taken them up.
    agreed: VecDeque<Change>,
    /// The number of the last of them.
    known: u64,
    lead: Lead,
}

/// What rank 0 knows beside.
#[derive(Default)]
struct Lead {
    /// What each rank has said last of its ways.
    sights: BTreeMap<Rank, Vec<Sight>>,
    /// The last change, and from which call on it holds.
    number: u64,
    from: u64,
    lost: Vec<LostPaths>,
    under_way: Option<UnderWay>,
}

/// A change that is proposed, and what ranks have promised.
struct UnderWay {
    lost: Vec<LostPaths>,
    promises: BTreeMap<Rank, u64>,
}

impl Lead {
    /// The hosts that have lost paths, by all that ranks have said. Of two hosts that rank counts which has the fewest ways left. A host
    /// has as many as to the host to which it has most: where one of its adapters is down it has fewer to all.
    fn lost(&self, host_of: &[u32]) -> Vec<LostPaths> {
        let mut pairs: BTreeMap<(u32, u32), (u32, u32)> = BTreeMap::new();
        for (rank, sights) in &self.sights {
            for (peer, left, of) in sights {
                let (here, there) = (host_of[*rank as usize], host_of[*peer as usize]);
                if here == there || *of == 0 {
                    continue;
                }
                let known = pairs.entry((here.min(there), here.max(there))).or_insert((*left, *of));
                if is_less((*left, *of), *known) {
                    *known = (*left, *of);
                }
            }
        }
        let mut hosts: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
        for ((one, other), ways) in pairs {
            for host in [one, other] {
                let known = hosts.entry(host).or_insert(ways);
                if is_less(*known, ways) {
                    *known = ways;
                }
            }
        }
        let fewer = hosts.into_iter().filter(|(_, (left, of))| left < of && *left > 0);
        fewer.map(|(host, (left, of))| LostPaths { host, left, of }).collect()
    }

    /// Proposes a change, where ranks are to plan for another machine than they do, and none is under way.
    fn propose(&mut self, host_of: &[u32]) -> Option<Message> {
        let lost = self.lost(host_of);
        if self.under_way.is_some() || lost == self.lost {
            return None;
        }
        self.number += 1;
        self.under_way = Some(UnderWay { lost, promises: BTreeMap::new() });
        Some(Message::Propose { change: self.number })
    }

    /// The change, once no rank is `awaited` that has not promised.
    fn agree(&mut self, awaited: impl Fn(Rank) -> bool, size: u32) -> Option<Message> {
        let UnderWay { promises, .. } = self.under_way.as_ref()?;
        if (0..size).any(|rank| awaited(rank) && !promises.contains_key(&rank)) {
            return None;
        }
        let UnderWay { lost, promises } = self.under_way.take()?;
        let last = promises.values().copied().max().unwrap_or(0);
        self.from = self.from.max(last.saturating_add(1));
        self.lost = lost;
        let lost = self.lost.iter().map(|lost| (lost.host, lost.left, lost.of)).collect();
        Some(Message::Change { change: self.number, from: self.from, lost })
    }
}

/// Whether a share of ways is less than another.
fn is_less((left, of): (u32, u32), (other_left, other_of): (u32, u32)) -> bool {
    u64::from(left) * u64::from(other_of) < u64::from(other_left) * u64::from(of)
}

impl GroupState {
    /// What rank 0 has to say to all.
    fn lead(&mut self, host_of: &[u32]) -> Option<Message> {
        let GroupState { changes: Changes { lead, .. }, left, lost, .. } = self;
        let is_there = |rank: Rank| !left.contains_key(&rank) && !lost.contains_key(&rank);
        lead.agree(is_there, host_of.len() as u32).or_else(|| lead.propose(host_of))
    }
}

impl Group {
    /// Says to rank 0 which ways to other ranks this one has left, of those that it had: all of them, whenever that changes.
    pub fn say_paths(&self, sights: Vec<Sight>) {
        self.tell_of_change(Message::Paths { sights });
    }

    /// Whether a change is proposed or agreed that the engine has not taken up; one load.
    #[inline]
    pub fn has_changes(&self) -> bool {
        // What it is about is behind a lock.
        self.changing.load(Ordering::Relaxed)
    }

    /// The change that is proposed, once: [`Group::promise`] follows.
    pub fn take_proposed(&self) -> Option<u64> {
        self.state().changes.proposed.take()
    }

    /// This rank enters no collective past `last` before it knows the change.
    pub fn promise(&self, change: u64, last: u64) {
        self.tell_of_change(Message::Promise { change, last });
    }

    /// The next change that is agreed and was not taken. Changes are agreed in the order in which they were proposed: each ends the
    /// oldest promise.
    pub fn take_change(&self) -> Option<Change> {
        let mut state = self.state();
        let change = state.changes.agreed.pop_front();
        let is_more = !state.changes.agreed.is_empty() || state.changes.proposed.is_some();
        self.changing.store(is_more, Ordering::Relaxed);
        change
    }

    /// Who answers for the engine while its program makes no calls; once.
    pub fn attended_by(&self, attendant: Weak<dyn Unattended>) {
        let _ = self.attendant.set(attendant);
        if self.has_changes() {
            self.call_attendant();
        }
    }

    fn call_attendant(&self) {
        if let (Some(shared), Some(work)) = (self.member.process(), self.attendant.get()) {
            shared.look_after(work.clone());
        }
    }

    /// Whether no change will come any more: rank 0 has left, and has said none before.
    pub fn is_change_over(&self) -> bool {
        let state = self.state();
        state.left.contains_key(&0) && state.changes.agreed.is_empty()
    }

    /// To rank 0, which may be this one.
    fn tell_of_change(&self, message: Message) {
        if self.rank == 0 {
            self.hear_of_change(0, message);
        } else {
            self.send(0, message);
        }
    }

    /// What a rank says of paths and changes.
    pub(super) fn hear_of_change(&self, from: Rank, message: Message) {
        let size = self.size();
        match message {
            Message::Paths { mut sights } if self.rank == 0 => {
                sights.retain(|(peer, left, of)| *peer < size && left <= of && *of <= WAYS_MAX);
                sights.truncate(size as usize);
                self.state().changes.lead.sights.insert(from, sights);
                self.go_on_changing();
            }
            Message::Promise { change, last } if self.rank == 0 => {
                {
                    let lead = &mut self.state().changes.lead;
                    if let Some(under_way) = lead.under_way.as_mut().filter(|_| lead.number == change) {
                        under_way.promises.insert(from, last);
                    }
                }
                self.go_on_changing();
            }
            message if from == 0 => self.take_up_change(message),
            _ => {}
        }
    }

    /// What rank 0 says.
    fn take_up_change(&self, message: Message) {
        {
            let size = self.size();
            let Changes { proposed, heard, agreed, known, .. } = &mut self.state().changes;
            match message {
                Message::Propose { change } if change > *heard => {
                    (*heard, *proposed) = (change, Some(change));
                }
                Message::Change { change, from, lost } if change > *known && agreed.len() < AGREED_MAX => {
                    let lost = lost.into_iter().map(|(host, left, of)| LostPaths { host, left, of });
                    let lost = lost.filter(|lost| lost.left > 0 && lost.left < lost.of && lost.host < size);
                    let lost = lost.take(size as usize).collect();
                    *known = change;
                    agreed.push_back(Change { from, lost });
                }
                _ => return,
            }
            self.changing.store(true, Ordering::Relaxed);
        }
        self.ring();
        self.call_attendant();
    }

    /// Rank 0 may have something to say: a rank has said something, or is gone.
    pub(super) fn go_on_changing(&self) {
        if self.rank != 0 || self.has_failed() {
            return;
        }
        // What one thread finds is said before what another finds after it.
        let _order = lock(&self.leading);
        loop {
            let Some(message) = self.state().lead(&self.hosts()) else { return };
            for rank in 1..self.size() {
                self.send(rank, message.clone());
            }
            self.take_up_change(message);
        }
    }

    /// The host of each rank, counted in the order in which they come.
    fn hosts(&self) -> Vec<u32> {
        let mut seen = BTreeMap::new();
        let number = |key: [u8; 16]| {
            let next = seen.len() as u32;
            *seen.entry(key).or_insert(next)
        };
        self.infos().map(|info| info.host_key).map(number).collect()
    }
}

/// Changes that no engine has taken up, at most: rank 0 agrees on the next only when all have promised for it.
const AGREED_MAX: usize = 4;
/// The most ways between two ranks that are believed.
const WAYS_MAX: u32 = 255;

#[cfg(test)]
mod tests;
