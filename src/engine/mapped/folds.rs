//! The folds of an operation on mapped buffers: from buffer to buffer, as the plan says.
//!
//! Invariant: whatever place another rank named, nothing outside its mapping is touched.

use consort_algorithms::lengths;
use consort_algorithms::plan::{Action, Operand, Plan, Position, Region, Step as PlanStep};
use consort_kernels::{Reducer, Source, Store, Target};
use consort_memory::{Span, SpanMut};

use super::Stop;
use super::run::Run;
use crate::Rank;
use crate::engine::packets::Board;
use crate::engine::{Buffers, Progress};
use crate::error::{Error, Result};

/// What a turn folds at most: about a tenth of a millisecond.
const TURN_BYTES: usize = 1 << 20;

/// Memory that a step names.
enum Where<'a> {
    /// This rank's, from there on.
    Input(usize),
    Output(usize),
    Theirs(SpanMut<'a>),
}

impl Run {
    /// Folds up to a turn's bytes.
    pub(super) fn fold(
        &mut self,
        board: &mut Board,
        me: Rank,
        reducer: &Reducer,
        buffers: Buffers<'_>,
    ) -> std::result::Result<Progress, Stop> {
        let Some(plan) = self.plan.clone() else {
            return Err(Error::internal("mapped buffers without a plan").into());
        };
        if self.at == (0, 0) && !board.visit() {
            // Some rank has failed, and this one is about to hear of it.
            return Ok(Progress::Blocked);
        }
        let mut room = TURN_BYTES;
        while let Some(step) = plan.steps.get(self.at.0) {
            let bytes = match (step.action, step.extent.as_chunk()) {
                (Action::Copy | Action::Reduce, Some(chunk)) => self.extents.length(chunk),
                _ => 0,
            };
            let left = bytes - self.at.1;
            // Whole lines, so that all pieces but the first are aligned as that is.
            let piece = left.min(room);
            if piece != 0 {
                self.fold_piece(&plan, step, (self.at.1, piece), me, reducer, buffers)?;
                self.at.1 += piece;
                room -= piece;
            }
            if self.at.1 == bytes {
                self.at = (self.at.0 + 1, 0);
            }
            if room == 0 {
                return Ok(Progress::Moved);
            }
        }
        // What was read of a rank whose call has failed by now may be anything.
        if board.is_forbidden() {
            return Ok(Progress::Blocked);
        }
        board.leave();
        Ok(Progress::Done)
    }

    fn fold_piece(
        &self,
        plan: &Plan,
        step: &PlanStep,
        (at, bytes): (usize, usize),
        me: Rank,
        reducer: &Reducer,
        buffers: Buffers<'_>,
    ) -> Result<()> {
        let store = if self.streaming { Store::Streaming } else { Store::Cached };
        let mut sources = [Source { span: Span::empty(), raw: false }; PlanStep::PLACES_MAX];
        let (from, to) = (plan.sources(step), plan.targets(step));
        for (nth, (source, operand)) in sources.iter_mut().zip(from).enumerate() {
            let span = match self.place(plan, operand, (at, bytes), me)? {
                Where::Input(first) => buffers.input.slice(first, bytes),
                Where::Output(first) => buffers.output.read().slice(first, bytes),
                Where::Theirs(span) => span.read(),
            };
            *source = Source { span, raw: step.raw >> nth & 1 != 0 };
        }
        let mut targets = [Target { span: SpanMut::empty(), store }; PlanStep::PLACES_MAX];
        let mut count = 0;
        for operand in to {
            let span = match self.place(plan, operand, (at, bytes), me)? {
                Where::Output(first) => buffers.output.slice(first, bytes),
                Where::Theirs(span) => span,
                Where::Input(_) => return Err(Error::internal("a mapped plan that writes an input")),
            };
            // In place: it is there.
            let is_there = from.len() == 1 && span.as_mut_ptr().cast_const() == sources[0].span.as_ptr();
            if !is_there {
                targets[count] = Target { span, store };
                count += 1;
            }
        }
        if count != 0 {
            reducer.fold_in_turn(&targets[..count], &sources[..from.len()], step.has(PlanStep::FINISH));
        }
        Ok(())
    }

    /// Where an operand is: in this rank's input or output, or in memory of another rank.
    fn place(&self, plan: &Plan, operand: &Operand, part: (usize, usize), me: Rank) -> Result<Where<'_>> {
        let wrong = || Error::internal("a mapped plan of other memory than the callers'");
        let Position::Chunk(chunk) = operand.position else { return Err(wrong()) };
        let (rank, output) = match plan.regions[operand.region as usize].region {
            Region::Input(rank) => (rank, false),
            Region::Output(rank) => (rank, true),
            _ => return Err(wrong()),
        };
        let rank = self.bearings.rank(rank);
        let (at, bytes) = part;
        let first = self.extents.offset_of(chunk, || lengths::holds_all(plan.collective, output)) + at;
        if rank == me {
            return Ok(if output { Where::Output(first) } else { Where::Input(first) });
        }
        let (mapping, offset) = self.mapped[rank as usize][usize::from(output)].as_ref().ok_or_else(wrong)?;
        let start = offset.checked_add(first);
        let start = start.filter(|start| start.checked_add(bytes).is_some_and(|end| end <= mapping.bytes()));
        match start {
            Some(start) => Ok(Where::Theirs(mapping.span(start, bytes))),
            None => Err(Error::internal(format!("rank {rank} named a place outside its memory"))),
        }
    }
}
