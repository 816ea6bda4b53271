//! Changes of the machine that calls are planned for, at numbers of collectives on which all ranks agree.
//!
//! ```text
//!   ways of links ──► what rank 0 hears ──► proposed ──► a promise: the last collective that is entered before the change is known
//!                                           agreed   ──► from its number on calls are planned for the other machine
//! ```
//!
//! Invariant: who holds the engine makes the promise and keeps it: `gate` is the last collective that may be entered without a look, a
//! number beside the number of collectives. So a call costs one comparison more. Absent: how ranks agree (`membership::group`), and the wait of a
//! rank that has come to its promise ([`crate::communicator`]).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::Engine;
use crate::Rank;
use consort_control::membership::group::{Change, Sight};
use consort_settings::notice;
use consort_types::error::{Error, seconds};

/// How many collectives a rank may enter from its promise on before it knows the change. Ranks answer while they compute and while they wait,
/// so that few come to it; a rank that does waits for the answers of the others.
const PROMISED: u64 = 16;
/// Calls between two looks at the clock, and the time between two looks at the ways.
const CALLS_PER_LOOK: u32 = 32;
const LOOK: Duration = Duration::from_millis(250);

/// What an engine knows of changes.
pub(super) struct Changing {
    /// The last collective that may be entered without a look.
    pub(super) gate: u64,
    /// What was promised and is not agreed: the last collective of each proposal, the oldest first.
    promises: VecDeque<u64>,
    /// How many collectives may be entered in any case, which the thread that has the engine counts on.
    room: u64,
    /// Changes that are agreed and that no call has come to.
    agreed: VecDeque<Change>,
    ways: Ways,
}

/// The ways of this rank's links.
#[derive(Default)]
struct Ways {
    calls: u32,
    looked_at: Option<Instant>,
    /// What was said of them last, and which are lost.
    said: Vec<Sight>,
    lost: BTreeSet<(Rank, IpAddr, IpAddr)>,
}

impl Default for Changing {
    fn default() -> Self {
        Changing {
            gate: u64::MAX,
            promises: VecDeque::new(),
            room: 0,
            agreed: VecDeque::new(),
            ways: Ways::default(),
        }
    }
}

impl Changing {
    fn set_gate(&mut self) {
        let promised = self.promises.iter().copied().min().unwrap_or(u64::MAX);
        let agreed = self.agreed.front().map_or(u64::MAX, |change| change.from.saturating_sub(1));
        self.gate = promised.min(agreed);
    }
}

impl Engine {
    /// Takes up what is proposed and agreed: promises, and knows changes.
    #[cold]
    pub fn attend(&mut self) {
        if self.group.has_failed() {
            return;
        }
        while let Some(change) = self.group.take_change() {
            self.changing.promises.pop_front();
            self.changing.agreed.push_back(change);
        }
        if let Some(change) = self.group.take_proposed() {
            let last = self.sequence + PROMISED.max(self.changing.room);
            self.changing.promises.push_back(last);
            self.changing.set_gate();
            self.group.promise(change, last);
            // Where this rank is rank 0 and the last to promise, the change is there.
            while let Some(change) = self.group.take_change() {
                self.changing.promises.pop_front();
                self.changing.agreed.push_back(change);
            }
        }
        if !self.changing.promises.is_empty() && self.group.is_change_over() {
            self.changing.promises.clear();
        }
        self.changing.set_gate();
    }

    /// From which collectives on calls were planned for which of the communicator's machines, the latest last.
    #[cfg(feature = "testing")]
    pub fn machines(&self) -> Vec<(u64, u16)> {
        self.operations.machines()
    }

    /// Whether as many collectives may be entered now; if not, a change has to be known first.
    #[inline]
    pub fn has_room(&mut self, collectives: u64) -> bool {
        if self.group.has_changes() {
            self.attend();
        }
        let has_room =
            self.sequence + collectives <= self.changing.gate || self.has_room_after_all(collectives);
        if has_room {
            self.changing.room = collectives;
        }
        has_room
    }

    #[cold]
    fn has_room_after_all(&mut self, collectives: u64) -> bool {
        if self.changing.promises.is_empty() {
            return true;
        }
        // That no change comes is not said.
        self.attend();
        self.changing.promises.iter().all(|last| self.sequence + collectives <= *last)
    }

    /// The next collective is past the gate.
    #[cold]
    pub(super) fn pass_gate(&mut self) {
        let next = self.sequence + 1;
        while self.changing.agreed.front().is_some_and(|change| change.from <= next) {
            let Some(change) = self.changing.agreed.pop_front() else { break };
            self.go_over(next, &change);
        }
        self.changing.set_gate();
        if self.changing.promises.iter().any(|last| next > *last) {
            let what = format!("collective {next} was entered past what this rank had promised");
            self.group.fail(Error::internal(what));
        }
    }

    fn go_over(&mut self, from: u64, change: &Change) {
        let machine = self.plannings.go_over(&change.lost, &self.planner, &self.settings);
        self.operations.go_over(from, machine);
        let planning = self.plannings.current().clone();
        let text = format!(
            "from collective {from} on ranks plan for {}, graph {:016x}: {}",
            planning.topology().name,
            planning.graph_hash(),
            if change.lost.is_empty() { "all paths are back" } else { "paths between hosts are lost" }
        );
        notice::aloud(Some(self.group.rank), &text);
        self.group.note(text);
        self.group.know(planning);
    }

    /// After a call, or in the middle of one: takes a look at the ways of links, now and then.
    pub(super) fn look_at_ways(&mut self, is_blocked: bool) {
        let after = self.settings.path_lost_after;
        if after == Duration::MAX || !self.links.needs_progress() {
            return;
        }
        let ways = &mut self.changing.ways;
        ways.calls = ways.calls.wrapping_add(1);
        if !is_blocked && !ways.calls.is_multiple_of(CALLS_PER_LOOK) {
            return;
        }
        let now = self.group.clock().now();
        if ways.looked_at.is_some_and(|at| now.saturating_duration_since(at) < LOOK) {
            return;
        }
        ways.looked_at = Some(now);
        self.take_stock(after);
    }

    fn take_stock(&mut self, after: Duration) {
        // Calls allocate nothing where nothing is lost.
        let mut some_lost = !self.changing.ways.lost.is_empty();
        self.links.ways(after, &mut |_, way| some_lost |= way.is_lost);
        if !some_lost {
            return;
        }
        // A way of several links is lost where it is on one of them: on others nothing may have been sent since.
        let mut seen: BTreeMap<(Rank, IpAddr, IpAddr), bool> = BTreeMap::new();
        self.links.ways(after, &mut |peer, way| {
            *seen.entry((peer, way.from, way.to)).or_default() |= way.is_lost;
        });
        let looked_at: BTreeSet<Rank> = seen.keys().map(|(peer, ..)| *peer).collect();
        // Where links were closed, nothing has shown that a lost path is back.
        self.changing.ways.lost.iter().for_each(|way| _ = seen.entry(*way).or_insert(true));
        let lost: BTreeSet<_> = seen.iter().filter(|(_, is_lost)| **is_lost).map(|(way, _)| *way).collect();
        let before = std::mem::take(&mut self.changing.ways.lost);
        let mut sights: BTreeMap<Rank, (u32, u32)> = BTreeMap::new();
        for ((peer, ..), is_lost) in &seen {
            let (left, of) = sights.entry(*peer).or_default();
            (*left, *of) = (*left + u32::from(!is_lost), *of + 1);
        }
        // Of a peer without a link it is known that a path is lost, and not what is left.
        for (peer, left, of) in &self.changing.ways.said {
            if !looked_at.contains(peer) {
                sights.insert(*peer, (*left, *of));
            }
        }
        for (peer, from, to) in lost.symmetric_difference(&before) {
            let (left, of) = sights.get(peer).copied().unwrap_or_default();
            let what = match lost.contains(&(*peer, *from, *to)) {
                true => format!("is lost, as it has been down for {}", seconds(after)),
                false => "is back".into(),
            };
            let text = format!(
                "the path from rank {} ({from}) to rank {peer} ({to}) {what}: {left} of {of} carry what goes there",
                self.group.rank
            );
            notice::aloud(Some(self.group.rank), &text);
            self.group.note(text);
        }
        let is_news = !lost.is_empty() || !before.is_empty();
        self.changing.ways.lost = lost;
        let sights: Vec<Sight> = sights.into_iter().map(|(peer, (left, of))| (peer, left, of)).collect();
        if is_news && sights != self.changing.ways.said {
            self.changing.ways.said.clone_from(&sights);
            self.group.say_paths(sights);
        }
    }
}
