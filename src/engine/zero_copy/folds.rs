//! The folds of a zero-copy operation: from buffer to buffer, as the plan says.
//!
//! Invariant: whatever place another rank named, nothing outside its mapping is touched.

use std::sync::Arc;

use consort_algorithms::plan::{Action, Operand, Plan, Position, Region, Step as PlanStep};
use consort_algorithms::{Extents, lengths};
use consort_kernels::{Reducer, Source, Store, Target};
use consort_memory::{Mapping, SpanMut};

use super::offer::Note;
use super::peer_memory::PeerMemory;
use crate::Rank;
use crate::engine::bound::Bearings;
use crate::engine::executor::each;
use crate::engine::packets::Board;
use crate::engine::store_tuner::fold_store;
use crate::engine::{Buffers, Progress};
use consort_types::call::Call;
use consort_types::error::{Error, Result};

/// What a turn folds at most: about a tenth of a millisecond.
const TURN_BYTES: usize = 1 << 20;

/// Where a region of the plan is.
pub(super) enum Home {
    /// This rank's own.
    Input,
    Output,
    /// Another rank's, from this byte of its area on.
    Peer(Arc<Mapping>, usize),
}

/// Areas of other ranks that are not mapped here.
pub(super) type Unmapped = Vec<(Rank, u64)>;

/// The folds of one rank, on the buffers of all.
pub(super) struct Folds {
    plan: Arc<Plan>,
    /// By region of the plan.
    homes: Vec<Home>,
    extents: Extents<'static>,
    store: Store,
    /// The step of the plan and the bytes of it that are done.
    at: (usize, usize),
}

impl Folds {
    /// The folds of rank `me` of a call, by its plan, on the buffers that all have offered, or what it has not mapped of them.
    ///
    /// # Errors
    /// An offer of memory outside its area.
    pub(super) fn bind(
        memory: &mut PeerMemory,
        call: &Call,
        me: Rank,
        notes: &[Note],
        plan: Arc<Plan>,
    ) -> Result<std::result::Result<Folds, Unmapped>> {
        let (size, collective) = (notes.len() as u32, call.collective());
        let bearings = Bearings::Rotated { root: call.root, size };
        let (mut homes, mut unmapped) = (std::mem::take(&mut memory.idle_homes), Unmapped::new());
        homes.clear();
        for region in &plan.regions {
            let (rank, which) = match region.region {
                Region::Input(rank) => (bearings.rank(rank), 0),
                Region::Output(rank) => (bearings.rank(rank), 1),
                _ => unreachable!("mapped plans are of the callers' buffers"),
            };
            if rank == me {
                homes.push(if which == 0 { Home::Input } else { Home::Output });
                continue;
            }
            let place = notes[rank as usize].offer.places[which];
            let Some(mapping) = memory.known[rank as usize].mapped(place.key) else {
                if !unmapped.contains(&(rank, place.key)) {
                    unmapped.push((rank, place.key));
                }
                continue;
            };
            let bytes = [call.input_bytes(rank, size), call.output_bytes(rank, size)][which];
            let end = usize::try_from(place.offset).ok().and_then(|start| start.checked_add(bytes));
            if end.is_none_or(|end| end > mapping.bytes()) {
                return Err(Error::internal(format!("rank {rank} named a place outside its memory")));
            }
            homes.push(Home::Peer(mapping, place.offset as usize));
        }
        if !unmapped.is_empty() {
            return Ok(Err(unmapped));
        }
        let extents = call.extents(plan.partition, size);
        let blocks = collective.output_blocks(size).max(collective.input_blocks(size)) as usize;
        let store = fold_store(call.count * call.data_type.size() * blocks);
        Ok(Ok(Folds { plan, homes, extents, store, at: (0, 0) }))
    }

    /// The mappings are no longer needed; their table is.
    pub(super) fn end(mut self, memory: &mut PeerMemory) {
        self.homes.clear();
        memory.idle_homes = self.homes;
    }

    /// Folds up to a turn's bytes.
    pub(super) fn turn(&mut self, board: &mut Board, reducer: &Reducer, buffers: Buffers<'_>) -> Progress {
        if self.at == (0, 0) && !board.begin_access() {
            // Some rank has failed, and this one is about to hear of it.
            return Progress::Blocked;
        }
        let mut room = TURN_BYTES;
        while let Some(step) = self.plan.steps.get(self.at.0) {
            let bytes = match (step.action, step.extent.as_chunk()) {
                (Action::Copy | Action::Reduce, Some(chunk)) => self.extents.length(chunk),
                _ => 0,
            };
            // Whole lines, so that all pieces but the first are aligned as that is.
            let piece = (bytes - self.at.1).min(room);
            if piece != 0 {
                self.fold(step, piece, reducer, buffers);
                self.at.1 += piece;
                room -= piece;
            }
            if self.at.1 == bytes {
                self.at = (self.at.0 + 1, 0);
            }
            if room == 0 {
                return Progress::Moved;
            }
        }
        // What was read of a rank whose call has failed by now may be anything.
        if board.is_forbidden() {
            return Progress::Blocked;
        }
        board.end_access();
        Progress::Done
    }

    /// The next `bytes` bytes of a step.
    fn fold(&self, step: &PlanStep, bytes: usize, reducer: &Reducer, buffers: Buffers<'_>) {
        let store = self.store;
        let source = |nth: usize, operand: &Operand| {
            let span = match self.home(operand) {
                Home::Input => buffers.input.slice(self.start(operand), bytes),
                _ => self.target(operand, bytes, buffers).read(),
            };
            Source { span, raw: step.raw >> nth & 1 != 0 }
        };
        each(self.plan.sources(step), source, |from| {
            let mut targets = [Target { span: SpanMut::empty(), store }; PlanStep::PLACES_MAX];
            let mut count = 0;
            for operand in self.plan.targets(step) {
                let span = self.target(operand, bytes, buffers);
                // In place: it is there.
                let is_there = from.len() == 1 && span.as_mut_ptr().cast_const() == from[0].span.as_ptr();
                if !is_there {
                    targets[count] = Target { span, store };
                    count += 1;
                }
            }
            if count != 0 {
                reducer.fold_in_turn(&targets[..count], from, step.has(PlanStep::FINISH));
            }
        });
    }

    fn home(&self, operand: &Operand) -> &Home {
        &self.homes[operand.region as usize]
    }

    /// How far from the beginning of its buffer an operand begins, after what is done of its step.
    fn start(&self, operand: &Operand) -> usize {
        let Position::Chunk(chunk) = operand.position else { unreachable!("mapped plans have no slots") };
        let is_output = matches!(self.plan.regions[operand.region as usize].region, Region::Output(_));
        let holds_all = || lengths::holds_all(self.plan.collective, is_output);
        self.extents.offset_of(chunk, holds_all) + self.at.1
    }

    /// Memory that may be written: this rank's output, or another rank's buffer.
    fn target<'a>(&'a self, operand: &Operand, bytes: usize, buffers: Buffers<'a>) -> SpanMut<'a> {
        let start = self.start(operand);
        match self.home(operand) {
            Home::Output => buffers.output.slice(start, bytes),
            Home::Peer(mapping, first) => mapping.span(first + start, bytes),
            Home::Input => unreachable!("mapped plans write to no input of their own"),
        }
    }
}
