//! The tables of one call on the kernels path: where its memory is, and from where on its counters count.
//!
//! Invariant: what a call fills and empties is settled when its tables are made, in the order of the calls. Absent: the
//! steps, which are on the device already ([`super::upload`]).

use consort_algorithms::plan::{Plan, Region};
use consort_algorithms::{Chunk, Extents, lengths};
use consort_cuda::DeviceSpan;
use consort_kernels::cuda::layout;

use super::program::Boxes;
use super::{COUNTER_STRIDE, Links, Shared};
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

/// The tables of a call, as they are made.
pub(super) struct Draft<'a> {
    pub(super) shared: &'a Shared,
    pub(super) plan: &'a Plan,
    pub(super) boxes: Boxes,
    pub(super) instances: u32,
    pub(super) links: &'a mut Links,
    pub(super) input: DeviceSpan,
    pub(super) output: DeviceSpan,
    pub(super) scratch: Option<DeviceSpan>,
    pub(super) scratch_stride: usize,
    pub(super) slot_stride: usize,
}

impl Draft<'_> {
    fn foreign(&self, what: &str) -> Error {
        Error::internal(format!("the plan {} has {what} that devices do not", self.plan.name))
    }

    pub(super) fn regions(&self) -> Result<(Vec<layout::Region>, Vec<u64>)> {
        let (mut regions, mut first) = (Vec::new(), Vec::new());
        for used in &self.plan.regions {
            let plain = |span: DeviceSpan| layout::Region { address: span.address(), ..Default::default() };
            let mut firsts = vec![0; self.instances as usize];
            let region = match used.region {
                Region::Input(rank) if rank == self.plan.rank => plain(self.input),
                Region::Output(rank) if rank == self.plan.rank => plain(self.output),
                // What was fused away may still be named.
                Region::Scratch if self.plan.scratch == 0 => plain(DeviceSpan::empty()),
                Region::Scratch => {
                    let span = self.scratch.ok_or_else(|| self.foreign("scratch"))?;
                    layout::Region {
                        instance_stride: (self.scratch_stride * self.plan.scratch as usize) as u64,
                        slot_stride: self.scratch_stride as u64,
                        ..plain(span)
                    }
                }
                region => {
                    let at = self.boxes.of_region(region);
                    let of = at.and_then(|at| Some((at, self.links.counts(at), self.shared.slots(at)?)));
                    let (at, counts, span) = of.ok_or_else(|| self.foreign("a region"))?;
                    firsts.copy_from_slice(&counts[at.part..][..self.instances as usize]);
                    let instance_stride = (self.slot_stride * SLOTS as usize) as u64;
                    layout::Region {
                        address: span.address() + at.part as u64 * instance_stride,
                        instance_stride,
                        slot_stride: self.slot_stride as u64,
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
            let of = self.boxes.of_counter(&used.id).and_then(|(at, counter)| {
                let address = self.shared.counters(at, counter)?.address();
                Some((at, at.waits(counter), self.links.counts(at), address))
            });
            let (at, waits, counts, address) = of.ok_or_else(|| self.foreign("a counter"))?;
            let address = address + (at.part * COUNTER_STRIDE) as u64;
            bases.extend_from_slice(&counts[at.part..][..self.instances as usize]);
            counters.push(layout::Counter {
                own: if waits { address } else { 0 },
                peer: if waits { 0 } else { address },
                instance_stride: COUNTER_STRIDE as u64,
                per_iteration: used.per_iteration,
                reserved: 0,
            });
        }
        Ok((counters, bases))
    }

    /// The slots that the call fills and empties count from now on.
    pub(super) fn settle(&mut self, iterations: u32) {
        for used in &self.plan.regions {
            let slots = u64::from(used.slots_per_iteration) * u64::from(iterations);
            if let Some(at) = self.boxes.of_region(used.region) {
                self.links.settle(at, self.instances as usize, slots);
            }
        }
    }
}
