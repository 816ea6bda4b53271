//! Ranks that each have a device of their own and reach the others': a kernel a rank runs the verified plan.
//!
//! Invariant: the device runs the very steps that were verified, written in its layout ([`layout`]) and uploaded once a
//! shape; a call brings a record of addresses, chunks and counter bases. Blocks that share a lane's work each have their
//! own slots and counters, so no block waits for another of its grid, and the driver is asked to run all at once where
//! it can promise that. Every wait polls the abort word. Absent: which plan.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use consort_algorithms::plan::{Action, CounterRole, Operand, Plan, Position, Region, Step};
use consort_algorithms::{Chunk, Extents, lengths};
use consort_kernels::Reducer;
use consort_kernels::cuda::{RunShape, Table, layout, run_shared_bytes, threads_for};
use consort_memory::driver::{DeviceMemory, DeviceSpan};

use super::super::fused::reducer;
use super::super::gpu::{Gpu, Pooled};
use super::super::trouble::failed;
use super::in_stream::{InMailboxes, InStream, Order};
use super::program::{bearings, program};
use super::{COUNTER_STRIDE, Counter, INSTANCES_MAX, Link, Shared};
use crate::Rank;
use crate::engine::watched::Standing;
use crate::engine::{Bearings, Memory};
use crate::error::{Error, Result};
use crate::options::SLOTS;

/// Bytes of a call that are worth a block of their own.
const BLOCK_BYTES: usize = 64 << 10;
/// Lanes of a plan, at most.
pub(super) const LANES_MAX: usize = 16;
/// Dynamic shared memory that every device gives a block without being asked for more.
const SHARED_BYTES_MAX: usize = 48 << 10;

/// The programs that are on the device already.
#[derive(Default)]
pub(in super::super) struct Programs(Mutex<HashMap<Key, Arc<Uploaded>>>);

/// What a device program depends on: the plan, and whether its folds scale and divide.
type Key = (String, Rank, u64, bool, bool);

/// A plan's tables on the device.
struct Uploaded {
    _memory: DeviceMemory,
    steps: u64,
    operands: u64,
    lanes: u64,
    /// The chunks of each entry of the chunk table: of the input, of the output, and whose length.
    chunks: Vec<[Option<Chunk>; 3]>,
}

/// A call that is in its stream.
pub(in super::super) struct KernelsCall {
    plan: Arc<Plan>,
    bearings: Bearings,
    iterations: u32,
    /// What the kernel reads, and where it says what it waits for.
    table: Pooled<Table>,
    status_at: usize,
    /// The number with which the kernel says anything.
    number: u64,
    blocks: u32,
    _program: Arc<Uploaded>,
    _scratch: Option<Arc<Pooled<DeviceMemory>>>,
}

impl Programs {
    /// Puts a plan on the device, if it is not there.
    pub(super) fn prepare(
        &self,
        gpu: &Gpu,
        rank: Rank,
        plan: &Plan,
        fold_hash: u64,
        reducer: Option<&Reducer>,
    ) -> Result<()> {
        self.of(gpu, rank, plan, fold_hash, reducer).map(drop)
    }

    fn of(
        &self,
        gpu: &Gpu,
        rank: Rank,
        plan: &Plan,
        fold_hash: u64,
        reducer: Option<&Reducer>,
    ) -> Result<Arc<Uploaded>> {
        let scales = reducer.is_some_and(Reducer::scales);
        let divides = reducer.is_some_and(Reducer::divides);
        let key = (plan.name.clone(), plan.rank.0, fold_hash ^ plan.collective as u64, scales, divides);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(uploaded) = known.get(&key) {
            return Ok(uploaded.clone());
        }
        let uploaded = Arc::new(upload(gpu, rank, plan, scales, divides)?);
        known.insert(key, uploaded.clone());
        Ok(uploaded)
    }
}

/// Writes a plan in the device's layout.
fn upload(gpu: &Gpu, rank: Rank, plan: &Plan, scales: bool, divides: bool) -> Result<Uploaded> {
    let foreign = |what: &str| Error::internal(format!("the plan {} has {what}", plan.name));
    let mut chunks: Vec<[Option<Chunk>; 3]> = Vec::new();
    let mut steps = Vec::with_capacity(plan.steps.len());
    let mut raisers: HashMap<u32, usize> = HashMap::new();
    for (lane, bounds) in plan.lanes.iter().enumerate() {
        for step in plan.lane(bounds).iter().filter(|step| step.action == Action::Signal) {
            if *raisers.entry(step.counter).or_insert(lane) != lane {
                return Err(foreign("a counter that two lanes raise"));
            }
        }
    }
    for step in &plan.steps {
        let (action, chunk) = match step.action {
            Action::Signal => (layout::ACTION_SIGNAL, 0),
            Action::Wait => (layout::ACTION_WAIT, 0),
            Action::Get => return Err(foreign("a get")),
            Action::Copy | Action::Reduce | Action::Put => {
                let places = places(plan, step)?;
                let known = chunks.iter().position(|known| *known == places);
                let index = known.unwrap_or_else(|| {
                    chunks.push(places);
                    chunks.len() - 1
                });
                (layout::ACTION_FOLD, index as u32)
            }
        };
        if usize::from(step.targets) + usize::from(step.sources) > layout::MAX_PLACES {
            return Err(foreign("a step of too many places"));
        }
        if step.flags & !Step::FINISH != 0 {
            return Err(foreign("packets or counted writes"));
        }
        steps.push(layout::Step {
            action,
            flags: if step.has(Step::FINISH) && divides { layout::STEP_FINISH } else { 0 },
            targets: step.targets,
            sources: step.sources,
            raw: if scales { step.raw } else { 0 },
            operands: step.operands,
            chunk,
            counter: step.counter,
            value: step.value,
        });
    }
    let operands: Vec<layout::Operand> = plan.operands.iter().map(|of| operand(plan, of)).collect();
    let lanes: Vec<layout::Lane> =
        plan.lanes.iter().map(|lane| layout::Lane { start: lane.start, end: lane.end }).collect();
    let (steps_bytes, operands_bytes) = (size_of_val(&*steps), size_of_val(&*operands));
    let bytes = steps_bytes + operands_bytes + size_of_val(&*lanes);
    let mut image = vec![0u8; bytes.max(8)];
    let span = consort_memory::SpanMut::of(&mut image);
    span.slice(0, steps_bytes).copy_from(consort_memory::Span::of(&steps));
    span.slice(steps_bytes, operands_bytes).copy_from(consort_memory::Span::of(&operands));
    span.slice(steps_bytes + operands_bytes, size_of_val(&*lanes))
        .copy_from(consort_memory::Span::of(&lanes));
    let cuda = |error| failed(rank, "a program on its device", error);
    let memory = gpu.context().allocate(image.len()).map_err(cuda)?;
    memory.copy_from_host(0, &image).map_err(cuda)?;
    let first = memory.address();
    let (operands, lanes) = (first + steps_bytes as u64, first + (steps_bytes + operands_bytes) as u64);
    Ok(Uploaded { _memory: memory, steps: first, operands, lanes, chunks })
}

fn operand(plan: &Plan, operand: &Operand) -> layout::Operand {
    let (position, index) = match operand.position {
        Position::Slot(nth) => (layout::POSITION_SLOT, nth),
        Position::Scratch(place) => (layout::POSITION_SCRATCH, place),
        Position::Chunk(_) | Position::Table(_) => match plan.regions[operand.region as usize].region {
            Region::Output(_) => (layout::POSITION_OUTPUT, 0),
            _ => (layout::POSITION_INPUT, 0),
        },
    };
    layout::Operand { region: operand.region, position, index }
}

/// The chunks that a step touches: of the input, of the output, and the one whose length it has.
fn places(plan: &Plan, step: &Step) -> Result<[Option<Chunk>; 3]> {
    let foreign = |what: &str| Error::internal(format!("the plan {} has {what}", plan.name));
    let mut places = [None, None, step.extent.as_chunk()];
    if places[2].is_none() {
        return Err(foreign("an extent from a table"));
    }
    for operand in plan.targets(step).iter().chain(plan.sources(step)) {
        let Position::Chunk(chunk) = operand.position else { continue };
        let side = match plan.regions[operand.region as usize].region {
            Region::Output(_) => 1,
            _ => 0,
        };
        if places[side].replace(chunk).is_some_and(|other| other != chunk) {
            return Err(foreign("a step with two chunks of one buffer"));
        }
    }
    Ok(places)
}

impl KernelsCall {
    /// Puts a call into its stream.
    pub(in super::super) fn make(order: Order<'_>) -> Result<(InStream<Self>, Memory)> {
        let Order { shared, gpu, entry, blocks_max, .. } = order;
        let (call, communicator, me) = (&entry.call, entry.communicator, shared.rank);
        let cuda = |error| order.refused(error);
        let announced = order.announce();
        let proved = program(communicator, call, LANES_MAX)?;
        let plan = proved.plan;
        let bearings = bearings(communicator, call);
        let extents = order.extents(&plan);
        let reducer = reducer(call, communicator.size());
        let uploaded = shared.programs.of(gpu, me, &plan, proved.fold_hash, reducer.as_ref())?;
        let class = usize::from(call.kind.is_message());
        let instances = instances(extents.longest(), blocks_max, plan.lanes.len());
        let slot_stride = shared.stride / INSTANCES_MAX;
        let part = layout::part(extents.longest() as u64, 0, u64::from(instances)).end as usize;
        let slot_bytes = part.next_power_of_two().clamp(4096.min(slot_stride), slot_stride);
        let iterations = if plan.sliced { part.div_ceil(slot_bytes).max(1) as u32 } else { 1 };
        let scratch_stride = if plan.sliced { slot_bytes } else { extents.longest().next_multiple_of(128) };
        let scratch_bytes = plan.scratch as usize * scratch_stride * instances as usize;
        let scratch = shared.scratch(gpu, scratch_bytes)?;
        let mut links = shared.links();
        let mut draft = Draft { shared, plan: &plan, bearings, class, instances, links: &mut links };
        let buffers = Buffers {
            input: entry.input,
            output: entry.output,
            scratch: scratch.as_ref().map(|memory| memory.span()),
            scratch_stride,
            slot_stride,
        };
        let (regions, first_slots) = draft.regions(&buffers)?;
        let (counters, bases) = draft.counters()?;
        let chunks: Vec<layout::Chunk> =
            uploaded.chunks.iter().map(|places| chunk(&plan, &extents, places)).collect();
        draft.settle(iterations);
        drop(links);
        let over = order.slot()?;
        let end = over.end();
        let header = size_of::<layout::Program>();
        let parts = [
            size_of_val(&*regions),
            size_of_val(&*first_slots),
            size_of_val(&*counters),
            size_of_val(&*bases),
            size_of_val(&*chunks),
        ];
        let record_bytes = header + parts.iter().sum::<usize>();
        let grid = plan.lanes.len() as u32 * instances;
        let status_at = size_of::<layout::Launch>() + record_bytes.next_multiple_of(64);
        let table_bytes = status_at + grid as usize * size_of::<layout::Status>();
        let table = gpu.table(table_bytes).map_err(cuda)?;
        let address = table.device_span().address();
        let record_at = size_of::<layout::Launch>();
        let mut launch =
            layout::Launch { abort: shared.abort.device_address(), programs: 1, ..layout::Launch::default() };
        launch.program[0] = address + record_at as u64;
        table.write(0, &[launch]);
        table.write(
            record_at,
            &[layout::Program {
                steps: uploaded.steps,
                operands: uploaded.operands,
                lanes: uploaded.lanes,
                done: end.done.address(),
                status: address + status_at as u64,
                left: end.left.address(),
                sequence: end.sequence,
                slot_bytes: slot_bytes as u64,
                lane_count: plan.lanes.len() as u32,
                instances,
                iterations,
                sliced: u32::from(plan.sliced),
                region_count: regions.len() as u32,
                counter_count: counters.len() as u32,
                chunk_count: chunks.len() as u32,
                record_bytes: record_bytes as u32,
                factors: reducer.as_ref().map_or(layout::Factors::ONE, layout::Factors::of),
            }],
        );
        let mut at = record_at + header;
        table.write(at, &regions);
        at += parts[0];
        table.write(at, &first_slots);
        at += parts[1];
        table.write(at, &counters);
        at += parts[2];
        table.write(at, &bases);
        at += parts[3];
        table.write(at, &chunks);
        table.write(status_at, &vec![layout::Status::default(); grid as usize]);
        let shared_bytes = run_shared_bytes(record_bytes as u32, counters.len() as u32);
        if shared_bytes as usize > SHARED_BYTES_MAX {
            return Err(Error::internal(format!("the plan {} needs too large tables", plan.name)));
        }
        let shape = RunShape {
            blocks: grid,
            threads: threads_for(slot_bytes.min(part)),
            shared_bytes,
            is_cooperative: grid > 1 && gpu.context().device().cooperative_launch,
        };
        let launched = gpu.kernels().run(&order.stream(), reducer.as_ref(), table.device_span(), shape);
        launched.map_err(cuda)?;
        tracing::trace!(
            rank = me,
            order.number,
            name = plan.name,
            grid,
            slot_bytes,
            "a program was launched"
        );
        let made = KernelsCall {
            plan,
            bearings,
            iterations,
            table,
            status_at,
            number: end.sequence,
            blocks: grid,
            _program: uploaded,
            _scratch: scratch,
        };
        order.made(announced, over, made)
    }
}

/// How many blocks share a lane's work, the same on all ranks.
fn instances(longest: usize, blocks_max: u32, lanes: usize) -> u32 {
    let most = (blocks_max / lanes.max(1) as u32).clamp(1, INSTANCES_MAX as u32);
    (longest.div_ceil(BLOCK_BYTES).max(1) as u32).min(most)
}

fn chunk(plan: &Plan, extents: &Extents<'_>, places: &[Option<Chunk>; 3]) -> layout::Chunk {
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
struct Buffers {
    input: DeviceSpan,
    output: DeviceSpan,
    scratch: Option<DeviceSpan>,
    scratch_stride: usize,
    slot_stride: usize,
}

/// The tables of a call, as they are made.
struct Draft<'a> {
    shared: &'a Shared,
    plan: &'a Plan,
    bearings: Bearings,
    class: usize,
    instances: u32,
    links: &'a mut Vec<[Link; super::CLASSES]>,
}

impl Draft<'_> {
    fn foreign(&self, what: &str) -> Error {
        Error::internal(format!("the plan {} has {what} that devices do not", self.plan.name))
    }

    /// Of a mailbox: whose it is, and whether it is here.
    fn mailbox(&self, region: Region) -> Option<(Rank, bool)> {
        match region {
            Region::Mailbox { owner, writer, .. } if owner == self.plan.rank => {
                Some((self.bearings.rank(writer), true))
            }
            Region::Mailbox { owner, writer, .. } if writer == self.plan.rank => {
                Some((self.bearings.rank(owner), false))
            }
            _ => None,
        }
    }

    fn regions(&self, buffers: &Buffers) -> Result<(Vec<layout::Region>, Vec<u64>)> {
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
                    let Some((peer, is_here)) = self.mailbox(region) else {
                        return Err(self.foreign("a region"));
                    };
                    let link = &self.links[peer as usize][self.class];
                    let counts = if is_here { &link.emptied } else { &link.filled };
                    firsts.copy_from_slice(&counts[..self.instances as usize]);
                    let span = match is_here {
                        true => self.shared.mailbox(peer, self.class),
                        false => {
                            let remote = self.shared.remote(peer, self.class);
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

    fn counters(&self) -> Result<(Vec<layout::Counter>, Vec<u64>)> {
        let (mut counters, mut bases) = (Vec::new(), Vec::new());
        for used in &self.plan.counters {
            let waits = used.id.owner == self.plan.rank;
            let peer = self.bearings.rank(if waits { used.id.writer } else { used.id.owner });
            let counter = match used.id.role {
                CounterRole::Ready => Counter::Ready,
                CounterRole::Credit => Counter::Credit,
                CounterRole::Flag(_) => return Err(self.foreign("a flag")),
            };
            let span = match waits {
                true => self.shared.own_counters(peer, self.class, counter),
                false => {
                    let there = self.shared.peer_counters(peer, self.class, counter);
                    there.ok_or_else(|| self.foreign("a counter"))?
                }
            };
            let link = &self.links[peer as usize][self.class];
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
    fn settle(&mut self, iterations: u32) {
        for used in &self.plan.regions {
            let slots = u64::from(used.slots_per_iteration) * u64::from(iterations);
            if let Some((peer, is_here)) = self.mailbox(used.region) {
                let link = &mut self.links[peer as usize][self.class];
                let counts = if is_here { &mut link.emptied } else { &mut link.filled };
                counts[..self.instances as usize].iter_mut().for_each(|count| *count += slots);
            }
        }
    }
}

impl KernelsCall {
    /// Where the first block stands that waits and has said so.
    fn waiting(&self) -> Option<(Rank, u32, u32)> {
        let statuses = (0..self.blocks as usize).map(|block| {
            let at = self.status_at + block * size_of::<layout::Status>();
            let (sequence, where_) = (self.table.word(at), self.table.word(at + 8));
            layout::Status { sequence, step: where_ as u32, slice: (where_ >> 32) as u32 }
        });
        let mut waiting = statuses
            .filter(|status| status.sequence == self.number && status.step & layout::STATUS_WAITING != 0);
        waiting.find_map(|status| {
            let index = status.step & !layout::STATUS_WAITING;
            let step = self.plan.steps.get(index as usize)?;
            let counter = self.plan.counters.get(step.counter as usize)?;
            Some((self.bearings.rank(counter.id.writer), index, status.slice))
        })
    }
}

impl InMailboxes for KernelsCall {
    fn peers(&self, _shared: &Shared) -> Vec<Rank> {
        if let Some((peer, ..)) = self.waiting() {
            return vec![peer];
        }
        // It has not begun, or has not waited for long: any of them may be missing.
        let mut peers = Vec::new();
        for counter in self.plan.counters.iter().filter(|counter| counter.id.owner == self.plan.rank) {
            let peer = self.bearings.rank(counter.id.writer);
            if !peers.contains(&peer) {
                peers.push(peer);
            }
        }
        peers
    }

    fn standing(&self, _shared: &Shared) -> Option<Standing> {
        let (peer, step, slice) = self.waiting()?;
        let steps = self.plan.steps.len() as u32;
        Some(Standing { peer, step, steps, slice, slices: self.iterations })
    }

    fn algorithm(&self) -> &str {
        &self.plan.name
    }
}
