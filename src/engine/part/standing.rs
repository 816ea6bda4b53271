//! What a part that does not go on waits for, and where it stands.
//!
//! Invariant: only looks. Absent: what follows from it.

use std::time::Duration;

use super::super::executor::Blockage;
use super::super::lent::Lent;
use super::super::links::{Links, Wanted, WokenBy};
use super::super::task::Blocked;
use super::local::{Exchanging, Letter, Mapped};
use super::planned::Running;
use super::{Engine, Part, Phase};
use crate::Rank;
use crate::engine::watched::Standing;
use consort_control::report::evidence::{Stuck, Traffic, Want};

/// What a part waits for.
enum Waits {
    /// Something of a rank, which is there once it can be seen.
    Peer(Rank, Want),
    Link {
        link: usize,
        want: Want,
        /// Whether it has something to send there.
        sends: bool,
    },
}

impl Waits {
    fn of(running: &Running, lent: &Lent, blockage: Blockage) -> Option<Self> {
        let bound = &running.bound;
        let sends = matches!(blockage, Blockage::Signal { .. } | Blockage::Put { .. });
        let link = if blockage == Blockage::Source { lent.waits_for() } else { bound.link_of(blockage) };
        Some(Waits::Link { link: link?, want: bound.want(blockage), sends })
    }
}

impl Part {
    /// Everything that it waits for, where no stream has it.
    fn waits(&self, links: &Links, mut each: impl FnMut(Waits)) {
        let by = |(peer, want): (Rank, Want)| Waits::Peer(peer, want);
        match &self.phase {
            Phase::Meet(meet) => meet.waits_for.map(by).into_iter().for_each(each),
            Phase::Exchange(Exchanging { wanted, .. })
            | Phase::Letter(Letter { wanted, .. })
            | Phase::Mapped(Mapped { wanted, .. }) => wanted.map(by).into_iter().for_each(each),
            Phase::Link(linking) => links.missing(&linking.numbers).map(by).into_iter().for_each(each),
            Phase::Run(Running { is_drained: false, draining, .. }) => {
                draining.iter().for_each(|link| {
                    each(Waits::Link { link: *link, want: Want::Room, sends: false });
                });
            }
            Phase::Run(running @ Running { is_settled: true, .. }) => {
                Waits::of(running, &self.lent, Blockage::Source).into_iter().for_each(each);
            }
            Phase::Run(running) => {
                let blockages = self.executor.blockages(&running.bound.plan);
                blockages.filter_map(|blockage| Waits::of(running, &self.lent, blockage)).for_each(each);
            }
            Phase::Find | Phase::Done => {}
        }
    }

    /// Adds whom it waits for.
    pub(in crate::engine) fn blocked(&self, links: &Links, all: &mut Vec<Blocked>) {
        let by = |peer| Blocked { peer, drained: true };
        if let Some(stream) = self.away() {
            if !self.is_done() {
                all.extend(stream.operation.peers().into_iter().map(by));
            }
            return;
        }
        self.waits(links, |waits| match waits {
            Waits::Peer(peer, _) => all.push(by(peer)),
            Waits::Link { link, .. } => {
                let up = links.up(link);
                let drained = !up.connection.capabilities().needs_progress || up.closed;
                all.push(Blocked { peer: links.peer(link), drained });
            }
        });
    }

    /// Adds the links that it waits for and that move nothing unless asked to. What wakes it.
    pub(in crate::engine) fn wants(&self, links: &Links, all: &mut Vec<Wanted>) -> WokenBy {
        let mut of_links = None;
        self.waits(links, |waits| {
            let Waits::Link { link, sends, .. } = waits else { return };
            let is_asked = links.is_asked(link);
            if is_asked {
                all.push(Wanted { link, sends });
            }
            let by = if is_asked { WokenBy::Sockets } else { WokenBy::Doorbells };
            of_links = of_links.max(Some(by));
        });
        match &self.phase {
            Phase::Done => WokenBy::Sockets,
            Phase::Exchange(_) | Phase::Letter(_) | Phase::Mapped(_) | Phase::Link(_) | Phase::Meet(_) => {
                WokenBy::Doorbells
            }
            Phase::Run(_) => of_links.unwrap_or(WokenBy::Limit),
            Phase::Find => WokenBy::Limit,
        }
    }

    /// Where it does not go on: which record, what it waits for, what has travelled.
    pub(in crate::engine) fn standing(&self, engine: &Engine) -> Option<(u64, Stuck, Vec<Traffic>)> {
        if self.is_done() {
            return None;
        }
        let (links, member) = (&engine.links, &engine.group.member);
        let at = |want: Want, standing: Standing, algorithm: &str, traffic: Vec<Traffic>| {
            let Standing { peer, step, steps, slice, slices } = standing;
            let peer_process = member.table[engine.group.members[peer as usize] as usize].process;
            let (algorithm, age) = (algorithm.to_owned(), Duration::ZERO);
            let stuck = Stuck { want, peer, peer_process, step, steps, slice, slices, algorithm, age };
            Some((self.request.record, stuck, traffic))
        };
        if let Some(stream) = self.away() {
            let operation = &stream.operation;
            return at(Want::Data, operation.standing()?, operation.algorithm(), Vec::new());
        }
        let mut first = None;
        if let Phase::Run(running @ Running { is_drained: true, is_settled: false, .. }) = &self.phase {
            // Of the lane whose standing it is.
            let last = self.executor.blockages(&running.bound.plan).next_back();
            first = last.and_then(|blockage| Waits::of(running, &self.lent, blockage));
        } else {
            self.waits(links, |waits| _ = first.get_or_insert(waits));
        }
        let (peer, want) = match first? {
            Waits::Peer(peer, want) => (peer, want),
            Waits::Link { link, want, .. } => (links.peer(link), want),
        };
        let nowhere = Standing { peer, step: 0, steps: 0, slice: 0, slices: 0 };
        match &self.phase {
            Phase::Exchange(Exchanging { exchange, .. }) => match exchange.standing() {
                Some(standing) => at(want, standing, "two-shot, in packets", Vec::new()),
                None => at(want, nowhere, "direct, in packets", Vec::new()),
            },
            Phase::Letter(_) => at(want, nowhere, "letter", Vec::new()),
            Phase::Mapped(mapped) if !mapped.is_entering() => at(want, nowhere, "mapped", Vec::new()),
            Phase::Run(Running { bound, .. }) => {
                let (step, steps, slice, slices) = self.executor.standing(&bound.plan);
                let traffic = bound.traffic(links, |counter| self.executor.raised(counter));
                at(want, Standing { peer, step, steps, slice, slices }, &bound.plan.name, traffic)
            }
            _ => at(want, nowhere, "?", Vec::new()),
        }
    }
}
