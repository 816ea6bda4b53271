//! Faults of a run, and their places.
//!
//! Invariant: a fault names the kernel, block, thread and line. Absent: texts to be parsed; everything is typed.

use std::fmt;

use crate::memory::{Access, Scope, Semantics};

/// Where a thread was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Name of the kernel.
    pub kernel: String,
    /// Number of the launch in the run.
    pub launch: u32,
    /// Block index in the grid.
    pub block: [u32; 3],
    /// Thread index in the block.
    pub thread: [u32; 3],
    /// Line of the PTX text, from 1.
    pub line: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([bx, by, bz], [tx, ty, tz]) = (self.block, self.thread);
        write!(
            f,
            "{} (launch {}), block ({bx},{by},{bz}), thread ({tx},{ty},{tz}), line {}",
            self.kernel, self.launch, self.line
        )
    }
}

/// An allocation near an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Near {
    /// Its name.
    pub name: String,
    /// Byte of the access from its start; negative when before.
    pub offset: i64,
    /// Its length in bytes.
    pub bytes: u64,
}

impl fmt::Display for Near {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {} of `{}` ({} bytes)", self.offset, self.name, self.bytes)
    }
}

fn whereabouts(near: Option<&Near>) -> String {
    near.map_or_else(|| "in no allocation".to_owned(), ToString::to_string)
}

/// One of two accesses that race.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Number of its thread among all threads of the run.
    pub actor: u32,
    /// Its line.
    pub line: u32,
    /// Whether it writes.
    pub write: bool,
    /// Its semantics.
    pub semantics: Semantics,
    /// The threads that it reaches.
    pub scope: Scope,
    /// Its thread and line in words; set by the run.
    pub place: Option<Box<Place>>,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.write { "write" } else { "read" };
        write!(f, "{:?} {what} at scope {:?} by ", self.semantics, self.scope)?;
        match &self.place {
            Some(place) => place.fmt(f),
            None => write!(f, "thread {}, line {}", self.actor, self.line),
        }
    }
}

/// The kind of a fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// Bytes outside every allocation, or across the end of one.
    #[error("{bytes} bytes at {address:#x}, out of bounds: {}", whereabouts(.near.as_ref()))]
    OutOfBounds {
        /// First byte.
        address: u64,
        /// Bytes of the access.
        bytes: u8,
        /// The allocation before it.
        near: Option<Near>,
    },
    /// An address that is no multiple of the access's size.
    #[error("{bytes} bytes at {address:#x}, which is no multiple of that")]
    Misaligned {
        /// First byte.
        address: u64,
        /// Bytes of the access.
        bytes: u8,
    },
    /// Bytes are read that were never written.
    #[error("{bytes} bytes at {address:#x} are read and not all were written: {}", whereabouts(.near.as_ref()))]
    Uninitialised {
        /// First byte.
        address: u64,
        /// Bytes of the access.
        bytes: u8,
        /// The allocation.
        near: Option<Near>,
    },
    /// Two accesses, at least one a write, that are neither ordered by causality nor morally strong.
    #[error("data race at {address:#x}, {}: this {mine}; earlier {other}", whereabouts(.near.as_ref()))]
    Race {
        /// First byte of the later access.
        address: u64,
        /// The allocation.
        near: Option<Near>,
        /// The later access.
        mine: Box<Conflict>,
        /// The earlier access.
        other: Box<Conflict>,
    },
    /// Threads of a block wait at a barrier that another thread cannot reach any more.
    #[error("barrier {barrier} is waited at here, but {why}: {other}")]
    Divergence {
        /// Its number.
        barrier: u32,
        /// The reason why the other thread does not reach it.
        why: Divergence,
        /// The other thread.
        other: Box<Place>,
    },
    /// For a long time all threads only waited.
    #[error("no progress: {}", .waiting.iter().map(|(place, what)| format!("{what} at {place}")).collect::<Vec<_>>().join("; "))]
    Deadlock {
        /// Waiting threads, at most one a warp and 16 in all.
        waiting: Vec<(Place, Waiting)>,
    },
    /// The number of instructions that the options allow.
    #[error("more than {0} instructions")]
    TooLong(u64),
    /// `brx.idx` with an index outside its table.
    #[error("branch {index} of a table of {count}")]
    Table {
        /// The index.
        index: u64,
        /// Entries.
        count: u32,
    },
    /// `trap`.
    #[error("trap")]
    Trap,
    /// [`crate::Memory::idle`] or the memory wants the run to end.
    #[error("stopped from outside")]
    Stopped,
    /// The parameters of a launch have another size than the kernel's.
    #[error("{given} bytes of parameters, the kernel takes {wanted}")]
    Parameters {
        /// Bytes that the launch brought.
        given: usize,
        /// Bytes that the kernel declares.
        wanted: usize,
    },
    /// A block or grid without threads, or with more than 1024 in a block.
    #[error("a grid of {grid:?} blocks of {block:?} threads")]
    Shape {
        /// Blocks.
        grid: [u32; 3],
        /// Threads of one.
        block: [u32; 3],
    },
}

impl Problem {
    /// The fault of an `access` out of bounds, near no allocation that has a name.
    #[must_use]
    pub fn outside(access: &Access) -> Self {
        Self::OutOfBounds { address: access.address, bytes: access.bytes, near: None }
    }
}

/// Why a barrier is not reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Divergence {
    /// The other thread has ended.
    Ended,
    /// The other thread waits at another barrier.
    Elsewhere,
    /// Threads of one warp came to one aligned barrier by different instructions.
    Instruction,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ended => "another thread has ended",
            Self::Elsewhere => "another thread waits elsewhere",
            Self::Instruction => "a thread of the same warp is at it by another instruction",
        })
    }
}

/// The reason why a thread does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// It runs, and changes no memory.
    Spinning,
    /// It waits at a barrier.
    Barrier(u32),
    /// It waits for others of its warp.
    Warp,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spinning => f.write_str("spinning"),
            Self::Barrier(id) => write!(f, "waiting at barrier {id}"),
            Self::Warp => f.write_str("waiting for its warp"),
        }
    }
}

/// A problem with its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct Fault {
    /// The thread.
    pub place: Box<Place>,
    /// What is wrong.
    pub problem: Problem,
}
