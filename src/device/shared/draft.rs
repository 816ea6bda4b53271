//! The tables of one call on the kernels path: where its memory is, and from where on its counters count.
//!
//! Invariant: what a call fills and empties is settled when its tables are made, in the order of the calls. Absent: the
//! steps, which are on the device already ([`super::upload`]).

use consort_algorithms::plan::{CounterRole, Plan, Region};
use consort_algorithms::{Chunk, Extents, lengths};
use consort_cuda::DeviceSpan;
use consort_kernels::cuda::layout;

use super::program::Boxes;
use super::{COUNTER_STRIDE, Counter, Links, Shared};
use crate::Rank;
use crate::engine::Bearings;
use consort_settings::options::SLOTS;
use consort_types::error::{Error, Result};

pub(super) fn chunk(plan: &Plan, extents: &Extents<'_>, places: &[Option<Chunk>; 3]) -> layout::Chunk {
    let offset = |chunk: Option<Chunk>, output: bool| {
        chunk.map_or(0, |chunk| {
            extents.offset_of(chunk, || lengths::holds_all(plan.collective, output)) as u64
        })
    };
    layout::Chunk {
        input: offset(places[0], false),
        output: offset(places[1], true),
        bytes: places[2].map_or(0, |chunk| extents.length(chunk) as u64),
    }
}

/// Where a call's memory is.
pub(super) struct Buffers {
    pub(super) input: DeviceSpan,
    pub(super) output: DeviceSpan,
    pub(super) scratch: Option<DeviceSpan>,
    pub(super) scratch_stride: usize,
    pub(super) slot_stride: usize,
}

/// The tables of a call, as they are made.
pub(super) struct Draft<'a> {
    pub(super) shared: &'a Shared,
    pub(super) plan: &'a Plan,
    pub(super) boxes: Boxes,
    pub(super) bearings: Bearings,
    pub(super) instances: u32,
    pub(super) links: &'a mut Links,
}

impl Draft<'_> {
    fn foreign(&self, what: &str) -> Error {
        Error::internal(format!("the plan {} has {what} that devices do not", self.plan.name))
    }

    /// Of a mailbox: who is at its other end, which of theirs it is, and whether it is here.
    fn mailbox(&self, region: Region) -> Option<(Rank, usize, bool)> {
        let Region::Mailbox { owner, writer, channel } = region else { return None };
        let class = self.boxes.class(owner, writer, channel);
        match self.plan.rank {
            here if here == owner => Some((self.bearings.rank(writer), class, true)),
            here if here == writer => Some((self.bearings.rank(owner), class, false)),
            _ => None,
        }
    }

    pub(super) fn regions(&self, buffers: &Buffers) -> Result<(Vec<layout::Region>, Vec<u64>)> {
        let (mut regions, mut first) = (Vec::new(), Vec::new());
        for used in &self.plan.regions {
            let plain = |span: DeviceSpan| layout::Region { address: span.address(), ..Default::default() };
            let mut firsts = vec![0; self.instances as usize];
            let region = match used.region {
                Region::Input(rank) if rank == self.plan.rank => plain(buffers.input),
                Region::Output(rank) if rank == self.plan.rank => plain(buffers.output),
                // What was fused away may still be named.
                Region::Scratch if self.plan.scratch == 0 => plain(DeviceSpan::empty()),
                Region::Scratch => {
                    let span = buffers.scratch.ok_or_else(|| self.foreign("scratch"))?;
                    layout::Region {
                        instance_stride: (buffers.scratch_stride * self.plan.scratch as usize) as u64,
                        slot_stride: buffers.scratch_stride as u64,
                        ..plain(span)
                    }
                }
                region => {
                    let Some((peer, class, is_here)) = self.mailbox(region) else {
                        return Err(self.foreign("a region"));
                    };
                    let link = &self.links[peer as usize][class];
                    let counts = if is_here { &link.emptied } else { &link.filled };
                    firsts.copy_from_slice(&counts[..self.instances as usize]);
                    let span = match is_here {
                        true => self.shared.mailbox(peer, class),
                        false => {
                            let remote = self.shared.remote(peer, class);
                            remote.ok_or_else(|| self.foreign("a mailbox"))?
                        }
                    };
                    layout::Region {
                        address: span.address(),
                        instance_stride: (buffers.slot_stride * SLOTS as usize) as u64,
                        slot_stride: buffers.slot_stride as u64,
                        slots: self.plan.slots,
                        slots_per_iteration: used.slots_per_iteration,
                    }
                }
            };
            regions.push(region);
            first.extend(firsts);
        }
        Ok((regions, first))
    }

    pub(super) fn counters(&self) -> Result<(Vec<layout::Counter>, Vec<u64>)> {
        let (mut counters, mut bases) = (Vec::new(), Vec::new());
        for used in &self.plan.counters {
            let waits = used.id.owner == self.plan.rank;
            let peer = self.bearings.rank(if waits { used.id.writer } else { used.id.owner });
            let class = self.boxes.class_of(&used.id);
            let counter = match used.id.role {
                CounterRole::Ready => Counter::Ready,
                CounterRole::Credit => Counter::Credit,
                CounterRole::Flag(_) => return Err(self.foreign("a flag")),
            };
            let span = match waits {
                true => self.shared.own_counters(peer, class, counter),
                false => {
                    let there = self.shared.peer_counters(peer, class, counter);
                    there.ok_or_else(|| self.foreign("a counter"))?
                }
            };
            let link = &self.links[peer as usize][class];
            let outgoing = waits == (counter == Counter::Credit);
            let counts = if outgoing { &link.filled } else { &link.emptied };
            bases.extend_from_slice(&counts[..self.instances as usize]);
            counters.push(layout::Counter {
                own: if waits { span.address() } else { 0 },
                peer: if waits { 0 } else { span.address() },
                instance_stride: COUNTER_STRIDE as u64,
                per_iteration: used.per_iteration,
                reserved: 0,
            });
        }
        Ok((counters, bases))
    }

    /// What the call fills and empties counts from now on.
    pub(super) fn settle(&mut self, iterations: u32) {
        for used in &self.plan.regions {
            let slots = u64::from(used.slots_per_iteration) * u64::from(iterations);
            if let Some((peer, class, is_here)) = self.mailbox(used.region) {
                let link = &mut self.links[peer as usize][class];
                let counts = if is_here { &mut link.emptied } else { &mut link.filled };
                counts[..self.instances as usize].iter_mut().for_each(|count| *count += slots);
            }
        }
    }
}
