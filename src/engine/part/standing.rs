//! What a part that does not go on waits for, and where it stands.
//!
//! Invariant: only looks. Absent: what follows from it.

use std::time::Duration;

use super::super::executor::Blockage;
use super::super::links::{Links, Wanted as WantedLink};
use super::super::packets::Wanted;
use super::super::task::Blocked;
use super::{Engine, Part, Phase};
use crate::report::evidence::{Stuck, Traffic, Want};

impl Part {
    /// Adds whom it waits for.
    pub(in crate::engine) fn blocked(&self, links: &Links, all: &mut Vec<Blocked>) {
        let on = |link: usize| {
            let up = links.up(link);
            let drained = !up.connection.capabilities().needs_progress || up.closed;
            Blocked { peer: links.peer(link), drained }
        };
        match (self.phase, &self.bound) {
            (Phase::Meet, _) => {
                all.extend(self.met.map(|(peer, _)| Blocked { peer, drained: true }));
            }
            (Phase::Exchange | Phase::Letter | Phase::Mapped, _) => {
                all.extend(self.wanted.map(|wanted| Blocked { peer: wanted.peer, drained: true }));
            }
            (Phase::Link | Phase::LetterLink, _) => {
                let missing = links.missing(&self.numbers);
                all.extend(missing.map(|(peer, _)| Blocked { peer, drained: true }));
            }
            (Phase::Drain, _) => all.extend(self.draining.map(on)),
            (Phase::Run, Some(bound)) => {
                let blockages = self.executor.blockages(&bound.plan);
                all.extend(blockages.filter_map(|blockage| bound.link_of(blockage)).map(on));
            }
            (Phase::Away, _) => {
                let peers = self.watched.iter().flat_map(|(watched, _)| watched.peers());
                all.extend(peers.map(|peer| Blocked { peer, drained: true }));
            }
            _ => {}
        }
    }

    /// Adds the links that it waits for and that move nothing unless asked to. Whether it waits for nothing else.
    pub(in crate::engine) fn wants(&self, links: &Links, all: &mut Vec<WantedLink>) -> bool {
        let mut only = true;
        let mut add = |link: Option<usize>, sends: bool| match link {
            Some(link) if links.is_asked(link) => all.push(WantedLink { link, sends }),
            _ => only = false,
        };
        match (self.phase, &self.bound) {
            (Phase::Drain, _) => add(self.draining, false),
            (Phase::Run, Some(bound)) => {
                for blockage in self.executor.blockages(&bound.plan) {
                    add(bound.link_of(blockage), !matches!(blockage, Blockage::Wait { .. }));
                }
            }
            (Phase::Done, _) => {}
            _ => only = false,
        }
        only
    }

    /// Where it does not go on: which record, what it waits for, what has travelled.
    pub(in crate::engine) fn standing(&self, engine: &Engine) -> Option<(u64, Stuck, Vec<Traffic>)> {
        let request = self.request.filter(|_| self.phase != Phase::Done)?;
        if self.phase == Phase::Away {
            return self.standing_away(engine, request.record);
        }
        let links = &engine.links;
        let (peer, want) = match (self.phase, &self.bound) {
            (Phase::Meet, _) => self.met?,
            (Phase::Exchange | Phase::Letter | Phase::Mapped, _) => {
                let Wanted { peer, room } = self.wanted?;
                (peer, if room { Want::Room } else { Want::Data })
            }
            (Phase::Link | Phase::LetterLink, _) => links.missing(&self.numbers)?,
            (Phase::Drain, _) => (links.peer(self.draining?), Want::Room),
            (Phase::Run, Some(bound)) => {
                let blockage = self.executor.blockage()?;
                (links.peer(bound.link_of(blockage)?), bound.want(blockage))
            }
            _ => return None,
        };
        let has_plan = matches!(self.phase, Phase::Drain | Phase::Run);
        let bound = self.bound.as_ref().filter(|_| has_plan);
        let (step, steps, slice, slices) =
            bound.map_or((0, 0, 0, 0), |bound| self.executor.standing(&bound.plan));
        let traffic = bound.map(|bound| bound.traffic(links, |counter| self.executor.raised(counter)));
        let member = &engine.group.member;
        let algorithm = match (self.phase, &self.bound) {
            (Phase::Exchange, _) => "direct, in packets".into(),
            (Phase::Letter, _) => "letter".into(),
            (Phase::Mapped, _) if self.mapped.as_ref().is_some_and(|(run, _)| !run.is_entering()) => {
                "mapped".into()
            }
            (Phase::Meet | Phase::Mapped | Phase::LetterLink, _) | (_, None) => "?".into(),
            (_, Some(bound)) => bound.plan.name.clone(),
        };
        let stuck = Stuck {
            want,
            peer,
            peer_process: member.table[engine.group.members[peer as usize] as usize].process,
            step,
            steps,
            slice,
            slices,
            algorithm,
            age: Duration::ZERO,
        };
        Some((request.record, stuck, traffic.unwrap_or_default()))
    }

    /// The same of an operation in a stream.
    fn standing_away(&self, engine: &Engine, record: u64) -> Option<(u64, Stuck, Vec<Traffic>)> {
        let (watched, _) = self.watched.as_ref()?;
        let standing = watched.standing()?;
        let member = &engine.group.member;
        let stuck = Stuck {
            want: Want::Data,
            peer: standing.peer,
            peer_process: member.table[engine.group.members[standing.peer as usize] as usize].process,
            step: standing.step,
            steps: standing.steps,
            slice: standing.slice,
            slices: standing.slices,
            algorithm: watched.algorithm().to_owned(),
            age: Duration::ZERO,
        };
        Some((record, stuck, Vec::new()))
    }
}
