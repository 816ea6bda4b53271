//! Ranks that reach each other's devices: a kernel runs the verified plans of a group's calls.
//!
//! Invariant: the device runs the very steps that were verified, uploaded once a shape ([`super::upload`]); a call brings a
//! record of addresses, chunks and counter bases ([`super::draft`]). Blocks that share a lane's work each have their own
//! slots and counters, so no block waits for another of its grid. Every wait polls the abort word of its communicator.
//! Absent: which plan, and which calls share a launch ([`crate::device::submission`]).

use std::sync::{Arc, OnceLock};

use consort_algorithms::plan::Plan;
use consort_cuda::{DeviceMemory, StreamRef};
use consort_kernels::Reducer;
use consort_kernels::cuda::{RUN_SHARED_BYTES_MAX, RunShape, Table, layout, run_shared_bytes, threads_for};

use super::super::fused::reducer;
use super::super::gpu::{Gpu, Pooled};
use super::super::submission::Work;
use super::super::trouble::failed;
use super::Shared;
use super::draft::{Draft, chunk};
use super::in_stream::{InMailboxes, Order};
use super::program::{Boxes, bearings};
use super::upload::Uploaded;
use crate::Rank;
use crate::engine::watched::{Standing, Watched};
use crate::engine::{Bearings, Memory};
use crate::planner::{Cut, INSTANCES_MAX, beside, instances};
use consort_types::call::{Call, Kind};
use consort_types::error::{Error, Result};

/// A call on its way to a device.
pub(in super::super) struct KernelsCall {
    plan: Arc<Plan>,
    bearings: Bearings,
    iterations: u32,
    placed: Arc<OnceLock<Placed>>,
    /// The number with which the kernel says anything.
    number: u64,
    blocks: u32,
    _program: Arc<Uploaded>,
    _scratch: Option<Arc<Pooled<DeviceMemory>>>,
}

/// The table that the kernel reads, and the place in it where a call's blocks say what they wait for.
struct Placed {
    table: Arc<Pooled<Table>>,
    status_at: usize,
}

/// One rank's program of a launch.
pub(in super::super) struct RunProgram {
    program: layout::Program,
    regions: Vec<layout::Region>,
    first_slots: Vec<u64>,
    counters: Vec<layout::Counter>,
    bases: Vec<u64>,
    chunks: Vec<layout::Chunk>,
    reducer: Option<Reducer>,
    /// A message's communicator, whether this rank sends it, and the other rank.
    link: Option<(usize, bool, Rank)>,
    threads: u32,
    placed: Arc<OnceLock<Placed>>,
}

impl KernelsCall {
    /// Makes a call ready for its launch.
    pub(in super::super) fn make(order: Order<'_>) -> Result<(Box<dyn Watched>, Memory, Work)> {
        let Order { shared, entry, .. } = order;
        let (gpu, blocks_max) = (&entry.placement.gpu, entry.placement.blocks_max);
        let (call, communicator, me) = (&entry.call, entry.communicator, shared.rank);
        let proved = shared.program(call)?;
        let plan = proved.plan;
        let bearings = bearings(communicator, call);
        let extents = order.extents(&plan);
        let reducer = reducer(call, communicator.size());
        let uploaded = shared.programs.of(gpu, me, &plan, proved.fold_hash, reducer.as_ref())?;
        let beside = beside(call.collective(), communicator.size(), proved.lanes_max);
        let channels = proved.mailboxes_max;
        let cut = Cut::of(extents.longest(), plan.sliced, beside, blocks_max, shared.stride, channels);
        let Cut { instances, part, slot_bytes, iterations } = cut;
        let slot_stride = shared.stride / INSTANCES_MAX;
        let scratch_stride = if plan.sliced { slot_bytes } else { extents.longest().next_multiple_of(128) };
        let scratch_bytes = plan.scratch as usize * scratch_stride * instances as usize;
        let scratch = shared.scratch(gpu, scratch_bytes)?;
        tracing::debug!(rank = me, algorithm = plan.name, instances, slot_bytes, "a plan for its device");
        let announced = order.announce();
        let mut links = shared.links();
        let mut draft = Draft {
            shared,
            plan: &plan,
            boxes: Boxes::of(&plan, call.kind, bearings, channels),
            instances,
            links: &mut links,
            input: entry.input,
            output: entry.output,
            scratch: scratch.as_ref().map(|memory| memory.span()),
            scratch_stride,
            slot_stride,
        };
        let (regions, first_slots) = draft.regions()?;
        let (counters, bases) = draft.counters()?;
        draft.settle(iterations);
        drop(links);
        let chunks = uploaded.chunks.iter().map(|places| chunk(&plan, &extents, places)).collect();
        let over = order.slot()?;
        let end = over.end();
        let program = layout::Program {
            steps: uploaded.steps,
            operands: uploaded.operands,
            lanes: uploaded.lanes,
            done: end.done.address(),
            left: end.left.address(),
            sequence: end.sequence,
            abort: shared.abort.device_address(),
            slot_bytes: slot_bytes as u64,
            lane_count: plan.lanes.len() as u32,
            instances,
            iterations,
            sliced: u32::from(plan.sliced),
            factors: reducer.as_ref().map_or(layout::Factors::ONE, layout::Factors::of),
            ..layout::Program::default()
        };
        let placed = Arc::new(OnceLock::new());
        let threads = threads_for(slot_bytes.min(part));
        let run = RunProgram {
            regions,
            first_slots,
            counters,
            bases,
            chunks,
            reducer,
            link: call
                .kind
                .is_message()
                .then(|| (Arc::as_ptr(shared).addr(), call.kind == Kind::Send, call.root)),
            threads,
            placed: placed.clone(),
            program,
        };
        let run = run.measured(&plan)?;
        let made = KernelsCall {
            bearings,
            iterations,
            placed,
            number: end.sequence,
            blocks: run.blocks(),
            _program: uploaded,
            _scratch: scratch,
            plan,
        };
        Ok(order.made(announced, over, made, Work::Run(Box::new(run))))
    }
}

/// Blocks of a message of `bytes` bytes.
pub(in super::super) fn message_blocks(call: &Call, ranks: u32, bytes: usize, blocks_max: u32) -> u32 {
    instances(bytes, beside(call.collective(), ranks, 1), blocks_max)
}

impl RunProgram {
    /// Whether one kernel can run both: they fold one type by one operator.
    fn is_like(&self, other: &RunProgram) -> bool {
        let of = |program: &RunProgram| program.reducer.map(|reducer| (reducer.data_type(), reducer.op()));
        of(self) == of(other)
    }

    /// With the lengths of its tables.
    fn measured(mut self, plan: &Plan) -> Result<Self> {
        let tables = [
            size_of_val(&*self.regions),
            size_of_val(&*self.first_slots),
            size_of_val(&*self.counters),
            size_of_val(&*self.bases),
            size_of_val(&*self.chunks),
        ];
        self.program.region_count = self.regions.len() as u32;
        self.program.counter_count = self.counters.len() as u32;
        self.program.chunk_count = self.chunks.len() as u32;
        self.program.record_bytes = (size_of::<layout::Program>() + tables.iter().sum::<usize>()) as u32;
        if self.shared_bytes() > RUN_SHARED_BYTES_MAX {
            return Err(Error::internal(format!("the plan {} needs too large tables", plan.name)));
        }
        Ok(self)
    }

    fn shared_bytes(&self) -> u32 {
        run_shared_bytes(self.program.record_bytes, self.program.counter_count)
    }

    /// Thread blocks.
    fn blocks(&self) -> u32 {
        self.program.lane_count * self.program.instances
    }

    /// Bytes of its record, and of the words with which its blocks say where they stand.
    fn bytes(&self) -> (usize, usize) {
        let record = (self.program.record_bytes as usize).next_multiple_of(64);
        (record, (self.blocks() as usize * size_of::<layout::Status>()).next_multiple_of(64))
    }

    /// Writes its record at `at`, with the address and length of the next of its chain, and clears what its blocks write
    /// behind it; where that is.
    fn write(&self, table: &Table, at: usize, (next, next_bytes): (u64, u32)) -> usize {
        let status_at = at + self.bytes().0;
        let status = table.device_span().address() + status_at as u64;
        let next_bytes = u64::from(next_bytes);
        table.write(at, &[layout::Program { status, next, next_bytes, ..self.program }]);
        let mut next = at + size_of::<layout::Program>();
        table.write(next, &self.regions);
        next += size_of_val(&*self.regions);
        table.write(next, &self.first_slots);
        next += size_of_val(&*self.first_slots);
        table.write(next, &self.counters);
        next += size_of_val(&*self.counters);
        table.write(next, &self.bases);
        next += size_of_val(&*self.bases);
        table.write(next, &self.chunks);
        table.write(status_at, &vec![layout::Status::default(); self.blocks() as usize]);
        status_at
    }
}

/// A launch that is written down.
pub(in super::super) struct RunLaunch {
    table: Arc<Pooled<Table>>,
    pub(in super::super) shape: RunShape,
    reducer: Option<Reducer>,
}

impl RunLaunch {
    /// Of all these programs in one kernel. Messages between the same ranks in the same direction are run by the same
    /// blocks, one after the other, as they go on with each other's slots and counters.
    ///
    /// # Errors
    /// The driver's; for programs that one kernel cannot run, as they fold different types.
    pub(in super::super) fn new(gpu: &Gpu, rank: Rank, programs: &[&RunProgram]) -> Result<Self> {
        let first = size_of::<layout::Launch>();
        let ends = programs.iter().scan(first, |at, program| {
            let start = *at;
            let (record, statuses) = program.bytes();
            *at += record + statuses;
            Some((start, *at))
        });
        let places: Vec<(usize, usize)> = ends.collect();
        let bytes = places.last().map_or(first, |(_, end)| *end);
        let table = gpu.table(bytes).map_err(|error| failed(rank, "a launch record", error))?;
        let table = Arc::new(table);
        let address = |nth: usize| table.device_span().address() + places[nth].0 as u64;
        let mut launch = layout::Launch::default();
        let mut blocks = 0;
        for (nth, program) in programs.iter().enumerate() {
            if !program.is_like(programs[0]) {
                return Err(Error::invalid(
                    format!("ranks of {}'s device call for different types or operators", rank),
                    "pass the same type and operator on all ranks of a collective",
                ));
            }
            let is_linked = |other: &&RunProgram| program.link.is_some() && other.link == program.link;
            let next = programs[nth + 1..].iter().position(&is_linked).map(|at| nth + 1 + at);
            let next = next.map_or((0, 0), |next| (address(next), programs[next].program.record_bytes));
            let status_at = program.write(&table, places[nth].0, next);
            // Set once: a program is launched once.
            let _ = program.placed.set(Placed { table: table.clone(), status_at });
            if programs[..nth].iter().any(is_linked) {
                continue;
            }
            let chain = programs[nth..].iter().filter(|other| is_linked(other)).map(|other| other.blocks());
            blocks += chain.max().unwrap_or(program.blocks());
            let entry = &mut launch.program[launch.programs as usize];
            *entry = layout::Entry {
                program: address(nth),
                end_block: blocks,
                record_bytes: program.program.record_bytes,
            };
            launch.programs += 1;
        }
        table.write(0, &[launch]);
        let shape = RunShape {
            blocks,
            threads: programs.iter().map(|program| program.threads).max().unwrap_or(1),
            shared_bytes: programs.iter().map(|program| program.shared_bytes()).max().unwrap_or(0),
        };
        Ok(RunLaunch { table, shape, reducer: programs[0].reducer })
    }

    /// Puts the kernel into a stream.
    ///
    /// # Errors
    /// The driver's; nothing was launched then.
    pub(in super::super) fn launch(&self, gpu: &Gpu, stream: &StreamRef) -> consort_cuda::Result<()> {
        gpu.kernels.run(stream, self.reducer.as_ref(), self.table.device_span(), self.shape)?;
        tracing::trace!(self.shape.blocks, "programs were launched");
        Ok(())
    }
}

impl KernelsCall {
    /// Where the first block stands that waits and has said so.
    fn waiting(&self) -> Option<(Rank, u32, u32)> {
        let Placed { table, status_at } = self.placed.get()?;
        let statuses = (0..self.blocks as usize).map(|block| {
            let at = status_at + block * size_of::<layout::Status>();
            let (sequence, where_) = (table.word(at), table.word(at + 8));
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
