//! The plans in the form of the symbolic run: names resolved to numbers, once.
//!
//! Invariant: everything that a compiled program names exists; the faults of tables and of single steps were refused
//! while compiling. Absent: time. Nothing here depends on an order of steps.
//!
//! Memory is cut into *cells*, the extents that operands name: chunks (of one iteration), slots, scratch
//! places. Two operands overlap exactly when they name the same cell, because extents of a partition are
//! disjoint, slots and scratch places hold whole extents, and table entries are taken to be disjoint.

use std::ops::Range;

use super::refusal::{At, Memory};
use crate::aliasing::output_of_input;
use crate::numbers::Numbers;
use crate::plan::{Action, CounterId, Engine};
use crate::{Channel, Chunk, Collective, Partition, Place, Plan, Rank, lengths};

/// Number of a mailbox, or none.
pub(super) const NO_MAILBOX: u32 = u32::MAX;

/// Where an operand's cell is, as a function of the iteration.
#[derive(Clone, Copy, Debug)]
pub(super) struct CellRef {
    /// First cell of the buffer or mailbox, plus the offset in it unless it is a mailbox.
    pub(super) base: u32,
    /// Cells per iteration; 0 where iterations share memory.
    pub(super) stride: u32,
    /// The mailbox, or [`NO_MAILBOX`].
    pub(super) mailbox: u32,
    /// The use of the mailbox in this iteration.
    pub(super) slot: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Source {
    /// The cells that are folded: one, or a group's members.
    pub(super) cells: Range<u32>,
    pub(super) raw: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Op {
    pub(super) action: Action,
    pub(super) finish: bool,
    pub(super) packet: bool,
    pub(super) counted: bool,
    /// Index into [`Program::cells`].
    pub(super) targets: Range<u32>,
    /// Index into [`Program::sources`].
    pub(super) sources: Range<u32>,
    pub(super) counter: u32,
    pub(super) value: i64,
    /// The length, by number: the piece of the partition or the table's entry.
    pub(super) length: u32,
    /// Index of the step in its plan.
    pub(super) step: u32,
}

#[derive(Clone, Debug)]
pub(super) struct LaneProgram {
    pub(super) rank: u32,
    pub(super) lane: u32,
    pub(super) ops: Vec<Op>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Counter {
    pub(super) id: CounterId,
    pub(super) per_iteration: u32,
    /// Raised by arrivals that have no order.
    pub(super) counted: bool,
    /// How many lanes wait for it.
    pub(super) waiting_lanes: u32,
    /// For credits: the mailbox whose slots it gives back.
    pub(super) mailbox: u32,
    /// Whether the plans of its owner and of its writer list it.
    pub(super) listed: [bool; 2],
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Mailbox {
    pub(super) owner: u32,
    pub(super) writer: u32,
    pub(super) channel: Channel,
    pub(super) per_iteration: u32,
    /// Whether it has a credit counter, so that other plans may have used it before.
    pub(super) credited: bool,
    /// First cell; slots follow each other.
    pub(super) base: u32,
    /// Whether the plans of its owner and of its writer list it.
    pub(super) listed: [bool; 2],
}

/// A set of plans, compiled.
pub(super) struct Program {
    pub(super) collective: Collective,
    pub(super) ranks: u32,
    pub(super) partition: Partition,
    pub(super) slots: u32,
    pub(super) sliced: bool,
    /// Whether callers' buffers are addressed by table entries.
    pub(super) tables: bool,
    /// Number of iterations (or, for plans that are no loop, operations) that are run.
    pub(super) rounds: u32,
    pub(super) lanes: Vec<LaneProgram>,
    pub(super) counters: Vec<Counter>,
    pub(super) mailboxes: Vec<Mailbox>,
    pub(super) cells: Vec<CellRef>,
    pub(super) sources: Vec<Source>,
    pub(super) input_chunks: u32,
    pub(super) output_chunks: u32,
    /// First scratch cell of each rank.
    pub(super) scratch: Vec<u32>,
    pub(super) cell_count: u32,
    pub(super) steps: usize,
    pub(super) counter_ids: Numbers<CounterId>,
    pub(super) mailbox_ids: Numbers<(u32, u32, u16)>,
}

impl Program {
    /// Cells of one rank's two buffers in one iteration.
    pub(super) fn user_stride(&self) -> u32 {
        self.ranks * (self.input_chunks + self.output_chunks)
    }

    pub(super) fn user_base(&self, rank: u32) -> u32 {
        rank * (self.input_chunks + self.output_chunks)
    }

    /// The cell of a chunk of a caller's output in iteration 0.
    pub(super) fn output_cell(&self, rank: u32, chunk: u32) -> u32 {
        self.user_base(rank) + chunk
    }

    /// The cell of a chunk of a caller's input in iteration 0, out of place.
    pub(super) fn input_cell(&self, rank: u32, chunk: u32) -> u32 {
        self.user_base(rank) + self.output_chunks + chunk
    }

    /// The output chunk that is the same memory as an input chunk in the in-place form.
    pub(super) fn alias(&self, rank: u32, chunk: u32) -> Option<u32> {
        if self.tables {
            return None;
        }
        output_of_input(self.collective, self.partition, Rank(rank), Chunk(chunk)).map(|chunk| chunk.0)
    }

    /// The number that names the length of a chunk of a rank's input.
    pub(super) fn length_of_input(&self, rank: u32, chunk: u32) -> u32 {
        let Program { collective, partition, .. } = *self;
        let piece = lengths::of(collective, partition, Rank(rank), Place::Input(Chunk(chunk)));
        piece.map_or(0, |piece| lengths::class(collective, partition, piece))
    }

    /// Whether there is an in-place form that differs from the other.
    pub(super) fn has_in_place_form(&self) -> bool {
        use Collective::{AllToAll, AllToAllReplicated, SendReceive};
        !matches!(self.collective, SendReceive | AllToAll | AllToAllReplicated { .. })
    }

    /// First cell after the callers' buffers of all iterations.
    pub(super) fn user_cells(&self) -> u32 {
        self.user_stride() * self.iterations()
    }

    /// Counted writes of all rounds.
    pub(super) fn arrivals(&self) -> u64 {
        let counted = self.lanes.iter().flat_map(|lane| &lane.ops).filter(|op| op.counted).count();
        counted as u64 * u64::from(self.rounds)
    }

    /// For each rank: itself and the ranks that it exchanges with, in their order.
    pub(super) fn neighbours(&self) -> Vec<Vec<u32>> {
        let mut near: Vec<Vec<u32>> = (0..self.ranks).map(|rank| vec![rank]).collect();
        let of_counters = self.counters.iter().map(|counter| (counter.id.owner.0, counter.id.writer.0));
        let of_mailboxes = self.mailboxes.iter().map(|mailbox| (mailbox.owner, mailbox.writer));
        for (one, other) in of_counters.chain(of_mailboxes) {
            near[one as usize].push(other);
            near[other as usize].push(one);
        }
        for near in &mut near {
            near.sort_unstable();
            near.dedup();
        }
        near
    }

    /// Iterations of one operation.
    pub(super) fn iterations(&self) -> u32 {
        if self.sliced { self.rounds } else { 1 }
    }

    pub(super) fn at(&self, lane: u32, op: &Op) -> At {
        let program = &self.lanes[lane as usize];
        At { rank: Rank(program.rank), lane: program.lane, step: op.step }
    }

    /// The name of a cell.
    pub(super) fn memory(&self, cell: u32) -> Memory {
        if cell < self.user_cells() {
            let in_iteration = cell % self.user_stride();
            let per_rank = self.input_chunks + self.output_chunks;
            let (rank, chunk) = (Rank(in_iteration / per_rank), in_iteration % per_rank);
            let entry = |chunk: u32, row: bool| match (self.tables, row) {
                (false, _) => chunk,
                (true, true) => rank.0 * self.ranks + chunk,
                (true, false) => chunk * self.ranks + rank.0,
            };
            return if chunk < self.output_chunks {
                Memory::Output(rank, entry(chunk, false))
            } else {
                Memory::Input(rank, entry(chunk - self.output_chunks, true))
            };
        }
        let holder = self.mailboxes.iter().find(|m| (m.base..m.base + self.slots).contains(&cell));
        if let Some(mailbox) = holder {
            return self.slot_of(mailbox, cell - mailbox.base);
        }
        let rank = self.scratch.partition_point(|&first| first <= cell).saturating_sub(1);
        Memory::Scratch(Rank(rank as u32), cell - self.scratch[rank])
    }

    pub(super) fn slot_of(&self, mailbox: &Mailbox, slot: u32) -> Memory {
        Memory::Slot {
            owner: Rank(mailbox.owner),
            writer: Rank(mailbox.writer),
            channel: mailbox.channel,
            slot,
        }
    }
}

/// Whether the engine can execute the action.
pub(super) fn may(engine: Engine, action: Action) -> bool {
    match engine {
        Engine::Processor => true,
        Engine::CopyEngine => action != Action::Reduce,
        Engine::Network => !matches!(action, Action::Reduce | Action::Copy),
    }
}

/// Whether the operands that `plan`'s step names exist.
pub(super) fn operands_exist(plan: &Plan, step: &crate::plan::Step) -> bool {
    let end = u64::from(step.operands) + u64::from(step.targets) + u64::from(step.sources);
    end <= plan.operands.len() as u64
}
