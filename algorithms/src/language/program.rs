//! The language: chunks as values that copies and folds move.
//!
//! Source: M. Cowan, S. Maleki, M. Musuvathi, O. Saarikivi and Y. Xiong, "MSCCLang: Microsoft Collective Communication
//! Language", ASPLOS 2023 (chunks as values, traced into a graph of their dependencies; instances).
//!
//! Invariant: statements mean what they mean when they run one after the other. Rounds follow from what depends on
//! what. Absent: sizes, protocols, threads of a GPU.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::panic::Location;

use super::proved;
use super::trace::{Buffer, Cell, Shape, Trace};
use crate::{Chunk, Collective, LowerOptions, Partition, Place, Schedule, passes};

/// A chunk of the output, as a place.
pub fn output(chunk: u32) -> Place {
    Place::Output(Chunk(chunk))
}

/// A chunk of the input, as a place. The caller's buffer is never written: where a program writes one, the library
/// keeps the value elsewhere, and what reads the chunk from then on reads that.
pub fn input(chunk: u32) -> Place {
    Place::Input(Chunk(chunk))
}

/// A place of the library's memory. It holds one chunk.
pub fn scratch(number: u32) -> Place {
    Place::Scratch(Chunk(number))
}

fn cell(rank: u32, place: Place) -> Cell {
    let (buffer, Chunk(index)) = match place {
        Place::Input(chunk) => (Buffer::Input, chunk),
        Place::Output(chunk) => (Buffer::Output, chunk),
        Place::Scratch(chunk) => (Buffer::Scratch, chunk),
    };
    Cell { rank, buffer, index }
}

/// A collective in the making: statements about chunks.
///
/// ```
/// use consort_algorithms::language::{Program, output};
/// use consort_algorithms::Collective;
///
/// // All-gather of four ranks: every rank's chunk goes to each of the others.
/// let program = Program::new(Collective::AllGather, 4);
/// for rank in 0..4 {
///     for other in 0..4 {
///         program.input(rank, 0).copy_to(other, output(rank));
///     }
/// }
/// let schedule = program.schedule("everyone")?;
/// assert_eq!((schedule.rounds.len(), schedule.messages()), (1, 12));
/// # Ok::<(), consort_algorithms::language::ProgramError>(())
/// ```
#[derive(Debug)]
pub struct Program {
    instances: u16,
    options: LowerOptions,
    inner: RefCell<Inner>,
}

#[derive(Debug)]
struct Inner {
    trace: Trace,
    /// How often each cell was written.
    versions: BTreeMap<Cell, u32>,
    statements: Vec<&'static Location<'static>>,
    /// The first statement that cannot be, and why.
    fault: Option<(usize, String)>,
}

/// Why a program is no schedule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProgramError {
    /// The statement that shows it, as its place in the source of the caller, where one does.
    pub statement: Option<&'static Location<'static>>,
    /// What is wrong, as what the statement does.
    pub reason: String,
}

impl fmt::Display for ProgramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.statement {
            Some(at) => write!(f, "{}:{}: this statement {}", at.file(), at.line(), self.reason),
            None => write!(f, "the program is no {}", self.reason),
        }
    }
}

impl Error for ProgramError {}

/// A chunk's value at a place of a rank, as it is when the handle is made.
#[derive(Clone, Copy, Debug)]
pub struct Value<'a> {
    program: &'a Program,
    cell: Cell,
    version: u32,
    channel: u16,
}

impl Program {
    /// A program for `ranks` ranks whose blocks have one part. Rooted collectives have rank 0 as their root.
    pub fn new(collective: Collective, ranks: u32) -> Self {
        let shape =
            Shape { collective, ranks, switches: 0, partition: Partition { parts: 1 }, in_place: false };
        let inner = Inner {
            trace: Trace::new(shape),
            versions: BTreeMap::new(),
            statements: Vec::new(),
            fault: None,
        };
        Program { instances: 1, options: LowerOptions { slots: 4 }, inner: RefCell::new(inner) }
    }

    /// Cuts every block into this many parts, as the first thing: chunk `c` of a buffer is part `c % parts` of block
    /// `c / parts`.
    pub fn parts(mut self, parts: u32) -> Self {
        self.inner.get_mut().trace.shape.partition = Partition { parts };
        self
    }

    /// Makes input and output one memory, as NCCL defines it for the collective in place.
    pub fn in_place(mut self) -> Self {
        self.inner.get_mut().trace.shape.in_place = true;
        self
    }

    /// Runs the program this many times side by side, each on its own part of every chunk and on its own channels.
    pub fn instances(mut self, instances: u16) -> Self {
        self.instances = instances;
        self
    }

    /// The value of a chunk of a rank's input.
    pub fn input(&self, rank: u32, chunk: u32) -> Value<'_> {
        self.at(rank, input(chunk))
    }

    /// The value that a place has now.
    pub fn at(&self, rank: u32, place: Place) -> Value<'_> {
        let inner = self.inner.borrow();
        let cell = inner.trace.shape.canonical(cell(rank, place));
        let version = inner.versions.get(&cell).copied().unwrap_or(0);
        Value { program: self, cell, version, channel: 0 }
    }

    fn state(
        &self,
        location: &'static Location<'static>,
        from: Value<'_>,
        target: Cell,
        fold: Option<Value<'_>>,
    ) -> u32 {
        let mut inner = self.inner.borrow_mut();
        let origin = inner.statements.len();
        inner.statements.push(location);
        let target = inner.trace.shape.canonical(target);
        let stays = fold.is_none() && target == from.cell;
        for value in [Some(from), fold].into_iter().flatten() {
            let current = inner.versions.get(&value.cell).copied().unwrap_or(0);
            if !std::ptr::eq(value.program, self) {
                inner.fault.get_or_insert((origin, "uses a value of another program".into()));
            } else if current != value.version {
                let why = format!("uses a value of {} that was overwritten", value.cell);
                inner.fault.get_or_insert((origin, why));
            }
        }
        inner.trace.at_once(origin as u32, from.channel, from.cell, target, fold.map(|value| value.cell));
        let version = inner.versions.entry(target).or_default();
        *version += u32::from(!stays);
        *version
    }

    /// The schedule, proved.
    ///
    /// # Errors
    /// The first statement that shows what is wrong: a value that is not there, was overwritten, is folded twice or
    /// with another chunk; an output that does not hold in the end what the collective defines; what the verifier
    /// refuses.
    pub fn schedule(&self, name: &str) -> Result<Schedule, ProgramError> {
        let inner = self.inner.borrow();
        let Shape { collective, ranks, partition, .. } = inner.trace.shape;
        let whole =
            |reason: String| ProgramError { statement: None, reason: format!("{collective}: {reason}") };
        let blocks = collective.input_blocks(ranks).max(collective.output_blocks(ranks));
        let parts = partition.parts.checked_mul(self.instances.into());
        let chunks = parts.and_then(|parts| parts.checked_mul(blocks));
        if ranks == 0 || chunks.is_none_or(|chunks| chunks == 0 || chunks > CHUNKS_MAX) {
            return Err(whole(format!("it has no ranks or chunks, or more than {CHUNKS_MAX} chunks")));
        }
        if collective == Collective::SendReceive && ranks != 2 {
            return Err(whole("it has two ranks".into()));
        }
        if let Some((at, reason)) = &inner.fault {
            return Err(ProgramError { statement: Some(inner.statements[*at]), reason: reason.clone() });
        }
        let schedule =
            proved(name.into(), &inner.trace, &self.options).map_err(|fault| match fault.origin {
                Some(origin) => {
                    ProgramError { statement: Some(inner.statements[origin as usize]), reason: fault.reason }
                }
                None => whole(fault.reason),
            })?;
        if u32::from(schedule.channels()) * u32::from(self.instances) > u32::from(u16::MAX) {
            return Err(whole("it has more than 65535 channels".into()));
        }
        Ok(if self.instances > 1 { passes::replicate(&schedule, self.instances) } else { schedule })
    }
}

/// The most chunks of a buffer.
pub(super) const CHUNKS_MAX: u32 = 1 << 20;

impl<'a> Value<'a> {
    /// The rank that has it.
    pub fn rank(self) -> u32 {
        self.cell.rank
    }

    /// The same value, which travels on a channel from now on. Channels of a pair of ranks do not wait for each other.
    #[must_use]
    pub fn on(self, channel: u16) -> Self {
        Value { channel, ..self }
    }

    /// Copies it to a place of a rank; the same rank too.
    #[track_caller]
    pub fn copy_to(self, rank: u32, place: Place) -> Value<'a> {
        self.to(cell(rank, place), None)
    }

    /// Brings `other` to this rank and folds the two into this place.
    #[track_caller]
    pub fn reduce(self, other: Value<'a>) -> Value<'a> {
        other.to(self.cell, Some(self)).on(self.channel)
    }

    /// Brings `other` to this rank and folds the two into another place of it.
    #[track_caller]
    pub fn reduce_to(self, other: Value<'a>, place: Place) -> Value<'a> {
        other.to(cell(self.cell.rank, place), Some(self)).on(self.channel)
    }

    #[track_caller]
    fn to(self, target: Cell, fold: Option<Value<'a>>) -> Value<'a> {
        let version = self.program.state(Location::caller(), self, target, fold);
        let cell = self.program.inner.borrow().trace.shape.canonical(target);
        Value { program: self.program, cell, version, channel: self.channel }
    }
}
