//! What a part that does not go on waits for, and where it stands.
//!
//! Invariant: only looks. Absent: what follows from it.

use std::time::Duration;

use super::super::executor::Blockage;
use super::super::links::{Links, Wanted as WantedLink};
use super::super::packets::Wanted;
use super::super::task::Blocked;
use super::local::{Exchanging, Letter, Mapped};
use super::planned::Running;
use super::{Engine, Part, Phase, Stream};
use consort_control::report::evidence::{Stuck, Traffic, Want};

impl Part {
    /// Adds whom it waits for.
    pub(in crate::engine) fn blocked(&self, links: &Links, all: &mut Vec<Blocked>) {
        let on = |link: usize| {
            let up = links.up(link);
            let drained = !up.connection.capabilities().needs_progress || up.closed;
            Blocked { peer: links.peer(link), drained }
        };
        let by = |peer| Blocked { peer, drained: true };
        if let Some(stream) = self.away() {
            if !self.is_done() {
                all.extend(stream.operation.peers().into_iter().map(by));
            }
            return;
        }
        match &self.phase {
            Phase::Meet(meet) => all.extend(meet.waits_for.map(|(peer, _)| by(peer))),
            Phase::Exchange(Exchanging { wanted, .. })
            | Phase::Letter(Letter { wanted, .. })
            | Phase::Mapped(Mapped { wanted, .. }) => all.extend(wanted.map(|wanted| by(wanted.peer))),
            Phase::Link(linking) => all.extend(links.missing(&linking.numbers).map(|(peer, _)| by(peer))),
            Phase::LetterLink(numbers) => all.extend(links.missing(numbers).map(|(peer, _)| by(peer))),
            Phase::Run(Running { is_drained: false, draining, .. }) => all.extend(draining.map(on)),
            Phase::Run(Running { bound, .. }) => {
                let blockages = self.executor.blockages(&bound.plan);
                all.extend(blockages.filter_map(|blockage| bound.link_of(blockage)).map(on));
            }
            Phase::Find | Phase::Done => {}
        }
    }

    /// Adds the links that it waits for and that move nothing unless asked to. Whether it waits for nothing else.
    pub(in crate::engine) fn wants(&self, links: &Links, all: &mut Vec<WantedLink>) -> bool {
        let mut only = true;
        let mut add = |link: Option<usize>, sends: bool| match link {
            Some(link) if links.is_asked(link) => all.push(WantedLink { link, sends }),
            _ => only = false,
        };
        match &self.phase {
            Phase::Done => {}
            Phase::Run(Running { is_drained: false, draining, .. }) => add(*draining, false),
            Phase::Run(Running { bound, .. }) => {
                for blockage in self.executor.blockages(&bound.plan) {
                    add(bound.link_of(blockage), !matches!(blockage, Blockage::Wait { .. }));
                }
            }
            _ => only = false,
        }
        only
    }

    /// Where it does not go on: which record, what it waits for, what has travelled.
    pub(in crate::engine) fn standing(&self, engine: &Engine) -> Option<(u64, Stuck, Vec<Traffic>)> {
        if self.is_done() {
            return None;
        }
        if let Some(stream) = self.away() {
            return stream.standing(engine, self.request.record);
        }
        let links = &engine.links;
        let of_wanted = |wanted: Option<Wanted>| {
            let Wanted { peer, room } = wanted?;
            Some((peer, if room { Want::Room } else { Want::Data }))
        };
        let mut plan = None;
        let ((peer, want), algorithm) = match &self.phase {
            Phase::Meet(meet) => (meet.waits_for?, "?"),
            Phase::Exchange(exchanging) => (of_wanted(exchanging.wanted)?, "direct, in packets"),
            Phase::Letter(letter) => (of_wanted(letter.wanted)?, "letter"),
            Phase::Mapped(mapped) => {
                (of_wanted(mapped.wanted)?, if mapped.is_entering() { "?" } else { "mapped" })
            }
            Phase::Link(linking) => (links.missing(&linking.numbers)?, "?"),
            Phase::LetterLink(numbers) => (links.missing(numbers)?, "?"),
            Phase::Run(Running { bound, is_drained, draining, .. }) => {
                plan = Some(bound);
                let waits_for = if *is_drained {
                    let blockage = self.executor.blockage()?;
                    (links.peer(bound.link_of(blockage)?), bound.want(blockage))
                } else {
                    (links.peer((*draining)?), Want::Room)
                };
                (waits_for, bound.plan.name.as_str())
            }
            Phase::Find | Phase::Done => return None,
        };
        let (step, steps, slice, slices) =
            plan.map_or((0, 0, 0, 0), |bound| self.executor.standing(&bound.plan));
        let traffic = plan.map(|bound| bound.traffic(links, |counter| self.executor.raised(counter)));
        let member = &engine.group.member;
        let stuck = Stuck {
            want,
            peer,
            peer_process: member.table[engine.group.members[peer as usize] as usize].process,
            step,
            steps,
            slice,
            slices,
            algorithm: algorithm.to_owned(),
            age: Duration::ZERO,
        };
        Some((self.request.record, stuck, traffic.unwrap_or_default()))
    }
}

impl Stream {
    /// The same of an operation in a stream.
    fn standing(&self, engine: &Engine, record: u64) -> Option<(u64, Stuck, Vec<Traffic>)> {
        let standing = self.operation.standing()?;
        let member = &engine.group.member;
        let stuck = Stuck {
            want: Want::Data,
            peer: standing.peer,
            peer_process: member.table[engine.group.members[standing.peer as usize] as usize].process,
            step: standing.step,
            steps: standing.steps,
            slice: standing.slice,
            slices: standing.slices,
            algorithm: self.operation.algorithm().to_owned(),
            age: Duration::ZERO,
        };
        Some((record, stuck, Vec::new()))
    }
}
