//! What a program does to memory, in one order in which it may happen.
//!
//! Invariant: each move reads its source once and later, at once or after others, writes its target once; both are
//! events of one list. A fold reads its own operand when it writes. Absent: how the order was found, rounds.

use crate::{Collective, Partition, Rank, aliasing};

/// A buffer as programs name it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Buffer {
    /// The caller's input.
    Input,
    /// The caller's output.
    Output,
    /// Memory of the library.
    Scratch,
    /// A place that no program names: what a step holds between its receive and its send.
    Held,
}

/// A chunk of a buffer of a rank. Programs may write any of them, also inputs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Cell {
    pub(super) rank: u32,
    pub(super) buffer: Buffer,
    pub(super) index: u32,
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let buffer = match self.buffer {
            Buffer::Input => "input",
            Buffer::Output => "output",
            Buffer::Scratch => "scratch",
            Buffer::Held => "held value",
        };
        write!(f, "{buffer} chunk {} of rank {}", self.index, self.rank)
    }
}

/// A chunk that goes from one cell to another, on one rank or between two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Move {
    /// Who asked for it: a number that the reader of the program gave.
    pub(super) origin: u32,
    pub(super) channel: u16,
    pub(super) source: Cell,
    pub(super) target: Cell,
    /// The cell of the target's rank that is folded with the source.
    pub(super) fold: Option<Cell>,
}

/// What happens, by the index of the move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    Read(usize),
    Write(usize),
}

/// The shape of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    pub(super) collective: Collective,
    pub(super) ranks: u32,
    /// Aggregating switches; their cells are those of the ranks after the last.
    pub(super) switches: u32,
    pub(super) partition: Partition,
    /// Whether input and output are one memory, as the collective's in-place form defines it.
    pub(super) in_place: bool,
}

impl Shape {
    /// The output chunk that a rank's input chunk is in place. Of an all-to-all, which has no in-place form in NCCL,
    /// the chunk of the same number.
    pub(super) fn output_of_input(&self, rank: u32, chunk: u32) -> Option<u32> {
        if self.collective == Collective::AllToAll {
            return Some(chunk);
        }
        let (rank, chunk) = (Rank(rank), crate::Chunk(chunk));
        aliasing::output_of_input(self.collective, self.partition, rank, chunk).map(|chunk| chunk.0)
    }

    /// The value of a cell before anything writes it: the input chunk of its rank.
    pub(super) fn initial(&self, cell: Cell) -> Option<u32> {
        let Shape { collective, ranks, partition, .. } = *self;
        let input = match cell.buffer {
            Buffer::Input => Some(cell.index),
            Buffer::Output if self.in_place && collective == Collective::AllToAll => Some(cell.index),
            Buffer::Output if self.in_place => {
                let (rank, chunk) = (Rank(cell.rank), crate::Chunk(cell.index));
                aliasing::input_of_output(collective, partition, ranks, rank, chunk).map(|chunk| chunk.0)
            }
            _ => None,
        };
        input.filter(|index| self.has(Cell { buffer: Buffer::Input, index: *index, ..cell }))
    }

    /// The one name of a cell that may have two.
    pub(super) fn canonical(&self, cell: Cell) -> Cell {
        match cell.buffer {
            Buffer::Input if self.in_place => match self.output_of_input(cell.rank, cell.index) {
                Some(index) => Cell { buffer: Buffer::Output, index, ..cell },
                None => cell,
            },
            _ => cell,
        }
    }

    /// Whether the collective has the cell.
    pub(super) fn has(&self, cell: Cell) -> bool {
        let Shape { collective, ranks, partition, .. } = *self;
        let rank = Rank(cell.rank);
        match cell.buffer {
            Buffer::Input => {
                cell.rank < ranks
                    && collective.has_input(rank)
                    && cell.index < partition.input_chunks(collective, ranks)
            }
            Buffer::Output => {
                cell.rank < ranks
                    && collective.has_output(rank)
                    && cell.index < partition.output_chunks(collective, ranks)
            }
            Buffer::Scratch | Buffer::Held => cell.rank < ranks + self.switches,
        }
    }
}

/// A program's moves and their order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Trace {
    pub(super) shape: Shape,
    pub(super) moves: Vec<Move>,
    pub(super) events: Vec<Event>,
}

impl Trace {
    pub(super) fn new(shape: Shape) -> Self {
        Trace { shape, moves: Vec::new(), events: Vec::new() }
    }

    /// Reads a source now; [`Trace::arrive`] ends the move.
    pub(super) fn depart(&mut self, origin: u32, channel: u16, source: Cell) -> usize {
        let source = self.shape.canonical(source);
        self.moves.push(Move { origin, channel, source, target: source, fold: None });
        self.events.push(Event::Read(self.moves.len() - 1));
        self.moves.len() - 1
    }

    /// Writes the target of a move now.
    pub(super) fn arrive(&mut self, index: usize, origin: u32, target: Cell, fold: Option<Cell>) {
        let (target, fold) = (self.shape.canonical(target), fold.map(|cell| self.shape.canonical(cell)));
        self.moves[index] = Move { origin, target, fold, ..self.moves[index] };
        self.events.push(Event::Write(index));
    }

    /// A move at once. A copy of a cell onto itself is none.
    pub(super) fn at_once(
        &mut self,
        origin: u32,
        channel: u16,
        source: Cell,
        target: Cell,
        fold: Option<Cell>,
    ) {
        if fold.is_none() && self.shape.canonical(source) == self.shape.canonical(target) {
            return;
        }
        let index = self.depart(origin, channel, source);
        self.arrive(index, origin, target, fold);
    }
}

/// What is wrong with a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Fault {
    /// The origin of the move that shows it, where one does.
    pub(super) origin: Option<u32>,
    /// The rank that it concerns, where there is no move.
    pub(super) rank: Option<u32>,
    /// What is wrong, as what the origin does.
    pub(super) reason: String,
    /// The origin whose name ends the reason.
    pub(super) other: Option<u32>,
}

impl Fault {
    pub(super) fn at(origin: u32, reason: impl Into<String>) -> Self {
        Fault { origin: Some(origin), ..Fault::of_whole(reason) }
    }

    pub(super) fn of_whole(reason: impl Into<String>) -> Self {
        Fault { origin: None, rank: None, reason: reason.into(), other: None }
    }

    /// The reason with the other's name.
    pub(super) fn text(&self, name: impl Fn(u32) -> String) -> String {
        self.other.map_or_else(|| self.reason.clone(), |other| format!("{} {}", self.reason, name(other)))
    }
}
