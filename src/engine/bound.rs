//! A plan bound to the links of this communicator, and the memory that one operation brings.
//!
//! Invariant: nothing here is looked up by name while an operation runs; regions and counters of the plan are
//! indices into small tables made once per shape.

use std::sync::Arc;

use consort_algorithms::Rank as Relative;
use consort_algorithms::plan::{Action, CounterRole, Plan, Position, Region, Step};
use consort_memory::{Counter, Pool};
use consort_transports::{Capabilities, CounterKind, Property, TransportError};

use super::executor::Blockage;
use super::links::{Key, Links, kind, link_error};
use super::pairing::Pairing;
use crate::Rank;
use crate::planner::{Choice, Proved, has_one_length};
use consort_control::report::evidence::{Traffic, Want};
use consort_settings::options::{SLOTS, digest};
use consort_types::error::{Error, Result};

/// A transport may defer a credit: a writer must have slots left to go on with. Slots are counted by masks.
const _: () = assert!(SLOTS > 2 && SLOTS.is_power_of_two() && SLOTS as u64 <= Pool::WINDOW_MAX);

/// The memory of a region of the plan.
#[derive(Clone, Copy, Debug)]
pub(super) enum RegionMemory {
    Input,
    Output,
    Scratch,
    /// The own mailbox of a link.
    Mailbox(usize),
    /// The peer's mailbox of a link.
    Remote(usize),
}

/// Which counter a counter of the plan is.
pub(super) struct BoundCounter {
    pub(super) link: usize,
    pub(super) kind: CounterKind,
    /// Here, when this rank waits for it.
    pub(super) own: Option<Counter>,
    /// At the peer, when this rank raises it and can store to it.
    pub(super) peer: Option<Counter>,
    /// Whether it counts what this rank fills, or what it empties.
    outgoing: bool,
}

/// A plan with everything resolved.
pub(crate) struct Bound {
    pub(crate) plan: Arc<Plan>,
    pub(crate) path: u64,
    pub(crate) slot_bytes: usize,
    pub(crate) bearings: Bearings,
    pub(super) streaming: bool,
    pub(super) memory: Vec<RegionMemory>,
    /// Of own mailboxes: whether each of their slots is read by one step, which may send it on in place.
    pub(super) read_once: Vec<bool>,
    pub(super) counters: Vec<BoundCounter>,
    /// Links whose deferred credits are flushed when an operation ends: those on which messages come and none go, where no credit
    /// is piggybacked, and those whose slots may have another length next time, which waits for all credits.
    flushed: Vec<usize>,
}

/// Turns a relative rank of the plan into a rank of the communicator.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bearings {
    /// Rooted at a rank.
    Rotated { root: Rank, size: u32 },
    /// Point to point: the ranks of the two roles.
    Pair { sender: Rank, receiver: Rank },
}

impl Bearings {
    pub(crate) fn rank(self, relative: Relative) -> Rank {
        match self {
            Bearings::Rotated { root, size } => (relative.0 + root) % size,
            Bearings::Pair { sender, receiver } => {
                if relative.0 == 0 {
                    sender
                } else {
                    receiver
                }
            }
        }
    }
}

impl Bound {
    /// Whether everything that this rank signalled on the plan's links is on its way.
    pub(super) fn is_flushed(&self, links: &Links) -> bool {
        self.counters.iter().all(|counter| links.is_flushed_at(counter.link))
    }

    /// Binds a plan to links that are up; `numbers` are theirs, in the order of [`Pairing::keys`].
    pub(crate) fn new(
        proved: &Proved,
        choice: &Choice,
        pairing: &Pairing<'_>,
        links: &Links,
        numbers: &[usize],
    ) -> Result<Self> {
        let (plan, Choice { slot_bytes, streaming, channel_base, .. }) = (proved.plan.clone(), *choice);
        let (bearings, keys) = (pairing.bearings, pairing.keys());
        // Ranks that took different paths must notice, also where nothing is folded.
        let path = proved.fold_hash ^ digest(&plan.name);
        let foreign =
            |what: &str| Error::internal(format!("a plan with {what} cannot be bound by this version"));
        let link = |key: Key| -> Result<usize> {
            let at = keys.iter().position(|other| *other == key).ok_or_else(|| foreign("an unknown peer"))?;
            Ok(numbers[at])
        };
        let mut memory = Vec::with_capacity(plan.regions.len());
        for region in &plan.regions {
            memory.push(match region.region {
                Region::Input(rank) if rank == plan.rank => RegionMemory::Input,
                Region::Output(rank) if rank == plan.rank => RegionMemory::Output,
                Region::Scratch => RegionMemory::Scratch,
                Region::Mailbox { owner, writer, channel } if owner == plan.rank => {
                    RegionMemory::Mailbox(link(pairing.key(writer, owner, channel))?)
                }
                Region::Mailbox { owner, writer, channel } if writer == plan.rank => {
                    RegionMemory::Remote(link(pairing.key(writer, owner, channel))?)
                }
                _ => return Err(foreign("a peer's buffer or a group")),
            });
        }
        let mut counters = Vec::with_capacity(plan.counters.len());
        for counter in &plan.counters {
            let waits = counter.id.owner == plan.rank;
            let number = link(pairing.key_of(counter.id))?;
            let kind = kind(counter.id.role).ok_or_else(|| foreign("a free counter"))?;
            let connection = &links.up(number).connection;
            counters.push(BoundCounter {
                link: number,
                kind,
                own: waits.then(|| connection.counter(kind).clone()),
                peer: if waits { None } else { connection.peer_counter(kind).cloned() },
                outgoing: waits == (counter.id.role == CounterRole::Credit),
            });
        }
        let filled =
            |link: usize| memory.iter().any(|other| matches!(other, RegionMemory::Remote(to) if *to == link));
        let changes = !has_one_length(channel_base);
        let flushed = memory.iter().filter_map(|memory| match memory {
            RegionMemory::Mailbox(link) if links.is_asked(*link) && (changes || !filled(*link)) => {
                Some(*link)
            }
            _ => None,
        });
        let flushed = flushed.collect();
        let read_once = (0..plan.regions.len()).map(|region| is_read_once(&plan, region as u16)).collect();
        let bound =
            Bound { plan, path, slot_bytes, bearings, streaming, memory, read_once, counters, flushed };
        bound.check().map_err(foreign)?;
        if let Some((link, property)) = bound.lacking(links) {
            let (from, to) = (bearings.rank(bound.plan.rank), links.peer(link));
            let transport = links.up(link).connection.transport();
            return Err(link_error(from, to, TransportError::Lacks { transport, property }));
        }
        Ok(bound)
    }

    /// A link that has not what the plan needs of it. Signals publish puts: a link without that order would be wrong
    /// without a word.
    fn lacking(&self, links: &Links) -> Option<(usize, Property)> {
        let unordered = self.counters.iter().find(|counter| !links.capabilities(counter.link).ordered);
        let moves = |step: &&Step| !matches!(step.action, Action::Signal | Action::Wait);
        let written = self.plan.steps.iter().filter(moves).flat_map(|step| {
            let operands = self.plan.targets(step).iter().chain(self.plan.sources(step));
            operands.map(|operand| (step.action, self.memory[operand.region as usize]))
        });
        let refused = |(action, memory)| {
            let RegionMemory::Remote(link) = memory else { return None };
            let Capabilities { put, load_store, .. } = links.capabilities(link);
            let is_stored = load_store
                && links.up(link).pool.as_ref().is_some_and(|pool| self.slot_bytes <= pool.slot_bytes());
            let (has, property) =
                if action == Action::Put { (put, Property::Put) } else { (is_stored, Property::LoadStore) };
            (!has).then_some((link, property))
        };
        unordered
            .map(|counter| (counter.link, Property::Ordered))
            .or_else(|| written.filter_map(refused).next())
    }

    /// Whether this version's executor can do every step.
    fn check(&self) -> std::result::Result<(), &'static str> {
        for step in &self.plan.steps {
            let operands = || self.plan.targets(step).iter().chain(self.plan.sources(step));
            if step.action == Action::Get {
                return Err("a get");
            }
            if step.flags & !Step::FINISH != 0 {
                return Err("packets or counted writes");
            }
            if matches!(step.action, Action::Signal | Action::Wait) {
                continue;
            }
            if step.extent.as_chunk().is_none() {
                return Err("an extent from a table");
            }
            let places = [self.plan.targets(step).len(), self.plan.sources(step).len()];
            if places.iter().any(|places| !(1..=Step::PLACES_MAX).contains(places)) {
                return Err("a step of no places or of too many");
            }
            if operands().any(|operand| matches!(operand.position, Position::Table(_))) {
                return Err("an offset from a table");
            }
        }
        Ok(())
    }

    /// Bytes of the tables, without the plan's.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.memory) + size_of_val(&*self.counters)
    }

    /// Bytes of scratch that an operation needs.
    pub(crate) fn scratch_bytes(&self) -> usize {
        self.plan.scratch as usize * self.slot_bytes
    }

    /// The link that does not let a lane go on; none where what it writes is still read.
    pub(crate) fn link_of(&self, blockage: Blockage) -> Option<usize> {
        match blockage {
            Blockage::Wait { counter, .. } | Blockage::Signal { counter } => {
                Some(self.counters[counter as usize].link)
            }
            Blockage::Put { region } => match self.memory[region as usize] {
                RegionMemory::Mailbox(link) | RegionMemory::Remote(link) => Some(link),
                RegionMemory::Input | RegionMemory::Output | RegionMemory::Scratch => None,
            },
            Blockage::Source => None,
        }
    }

    /// What a lane that does not go on waits for.
    pub(crate) fn want(&self, blockage: Blockage) -> Want {
        match blockage {
            Blockage::Wait { counter, .. } if self.counters[counter as usize].kind == CounterKind::Ready => {
                Want::Data
            }
            _ => Want::Room,
        }
    }

    /// How much has travelled on every link, given what this rank has raised its counters to.
    pub(crate) fn traffic(&self, links: &Links, raised: impl Fn(usize) -> u64) -> Vec<Traffic> {
        let mut all: Vec<(usize, Traffic)> = Vec::new();
        for (index, counter) in self.counters.iter().enumerate() {
            let at = all.iter().position(|(link, _)| *link == counter.link).unwrap_or_else(|| {
                let (peer, channel) = links.key(counter.link);
                let up = links.up(counter.link);
                let arrived = up.connection.counter(CounterKind::Ready).value();
                let credit = || up.connection.counter(CounterKind::Credit).value();
                let credited = up.pool.as_ref().map_or_else(credit, Pool::credited);
                let (filled, returned) = (up.filled, up.emptied);
                all.push((counter.link, Traffic { peer, channel, filled, arrived, returned, credited }));
                all.len() - 1
            });
            match counter.kind {
                _ if counter.own.is_some() => {}
                CounterKind::Ready => all[at].1.filled = raised(index),
                CounterKind::Credit => all[at].1.returned = raised(index),
            }
        }
        // What the peer cannot know yet is not missing on its side.
        for (link, traffic) in &mut all {
            let up = links.up(*link);
            let unsaid = up.pool.as_ref().map_or(0, Pool::unsaid) + up.connection.deferred_credits();
            traffic.returned -= unsaid.min(traffic.returned);
        }
        all.into_iter().map(|(_, traffic)| traffic).collect()
    }

    /// The own counter that a counter of the plan is.
    pub(crate) fn own_counter(&self, counter: u32) -> Option<&Counter> {
        self.counters[counter as usize].own.as_ref()
    }

    pub(crate) fn counter_base(&self, counter: usize, links: &Links) -> u64 {
        let counter = &self.counters[counter];
        let up = links.up(counter.link);
        if counter.outgoing { up.filled } else { up.emptied }
    }

    pub(crate) fn slot_base(&self, region: usize, links: &Links) -> u64 {
        match self.memory[region] {
            RegionMemory::Mailbox(link) => links.up(link).emptied,
            RegionMemory::Remote(link) => links.up(link).filled,
            _ => 0,
        }
    }

    /// The link whose mailbox at the peer must be empty before this operation may fill it with slots of
    /// another length, if one is not yet.
    pub(crate) fn undrained(&self, links: &mut Links) -> Option<usize> {
        for counter in &self.counters {
            let Some(own) = counter.own.as_ref().filter(|_| counter.kind == CounterKind::Credit) else {
                continue;
            };
            let up = links.up_mut(counter.link);
            // In a pool each slot is apart, whatever its length.
            if up.pool.is_none() && up.filled_slot_bytes != self.slot_bytes {
                // The peer waits for the same.
                up.connection.flush_credits();
                if own.value() < up.filled {
                    return Some(counter.link);
                }
                up.filled_slot_bytes = self.slot_bytes;
            }
        }
        None
    }

    /// The operation is over: what it filled and emptied counts from now on.
    pub(crate) fn settle(&self, iterations: u32, links: &mut Links) {
        for (region, memory) in self.plan.regions.iter().zip(&self.memory) {
            let slots = region.slots_per_iteration as u64 * iterations as u64;
            match memory {
                RegionMemory::Mailbox(link) => links.up_mut(*link).emptied += slots,
                RegionMemory::Remote(link) => links.up_mut(*link).filled += slots,
                _ => {}
            }
        }
        for link in &self.flushed {
            links.up_mut(*link).connection.flush_credits();
        }
    }
}

/// Whether each slot that a plan reads of a region is read by one step.
fn is_read_once(plan: &Plan, region: u16) -> bool {
    let mut read: Vec<Position> = Vec::new();
    for step in plan.steps.iter().filter(|step| !matches!(step.action, Action::Signal | Action::Wait)) {
        for source in plan.sources(step).iter().filter(|source| source.region == region) {
            if read.contains(&source.position) {
                return false;
            }
            read.push(source.position);
        }
    }
    true
}
