//! Decoded kernels, as the interpreter runs them.
//!
//! A kernel's registers, constants and special registers are slots of one flat array of `u64` for each thread.
//! Invariant: every slot of an instruction is less than the kernel's number of slots, every target a position in
//! its code. Absent: names and types; the decoder has used them up.

use crate::arithmetic::{Binary, Compare, Convert, Ternary, Unary};
use crate::memory::{AtomicOp, Scope, Semantics};

/// Number of a slot.
pub(crate) type Slot = u32;

/// A slot that is written and never read.
pub(crate) const SINK: Slot = 0;

/// Where an address points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Generic,
    Global,
    Shared,
    Local,
    Constant,
    /// The launch's parameters.
    Parameter,
}

/// Addresses of the spaces within generic addresses; real addresses are far below.
pub(crate) mod window {
    pub(crate) const SHARED: u64 = 1 << 60;
    pub(crate) const LOCAL: u64 = 2 << 60;
    pub(crate) const CONSTANT: u64 = 3 << 60;
    pub(crate) const PARAMETER: u64 = 4 << 60;
    /// The bits of an address that name the space.
    pub(crate) const MASK: u64 = 15 << 60;
}

/// How memory is accessed, but for the address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    pub(crate) space: Space,
    pub(crate) semantics: Semantics,
    pub(crate) scope: Scope,
    /// Bytes of an element.
    pub(crate) element: u8,
    /// Elements: 1, 2 or 4.
    pub(crate) count: u8,
    /// Loaded elements are sign-extended.
    pub(crate) signed: bool,
    pub(crate) base: Slot,
    pub(crate) offset: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Combine {
    And,
    Or,
    Xor,
}

/// An instruction that threads of a warp do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WarpOp {
    Barrier,
    Shuffle { mode: Shuffle, valid: Slot, lane: Slot, clamp: Slot },
    Ballot,
    Any,
    All,
    Uniform,
    Match,
    Reduce(AtomicOp),
}

/// The result of a barrier besides waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BarrierOp {
    Sync,
    Arrive,
    And,
    Or,
    Count,
}

#[derive(Clone, Copy)]
pub(crate) enum Op {
    Unary {
        f: Unary,
        d: Slot,
        a: Slot,
    },
    Binary {
        f: Binary,
        d: Slot,
        a: Slot,
        b: Slot,
    },
    Ternary {
        f: Ternary,
        d: Slot,
        a: Slot,
        b: Slot,
        c: Slot,
    },
    Insert {
        d: Slot,
        a: Slot,
        b: Slot,
        from: Slot,
        length: Slot,
        bits: u32,
    },
    Logic {
        d: Slot,
        a: Slot,
        b: Slot,
        c: Slot,
        table: u8,
    },
    /// A comparison into `d` and its complement into `q`, both combined with the predicate `c`.
    Compare {
        f: Compare,
        d: Slot,
        q: Slot,
        a: Slot,
        b: Slot,
        with: Option<(Combine, Slot, bool)>,
    },
    /// A comparison into an integer (`true_is` when it holds).
    Set {
        f: Compare,
        d: Slot,
        a: Slot,
        b: Slot,
        true_is: u32,
    },
    Select {
        d: Slot,
        a: Slot,
        b: Slot,
        p: Slot,
    },
    /// `slct`: `a` if `c` is not negative.
    SelectSign {
        d: Slot,
        a: Slot,
        b: Slot,
        c: Slot,
        float: bool,
    },
    Convert {
        convert: Convert,
        d: Slot,
        a: Slot,
        width: u32,
    },
    /// Two `f32` to packed halves.
    Pack2 {
        convert: Convert,
        d: Slot,
        a: Slot,
        b: Slot,
    },
    /// Parts of `bits` bits, the lowest first, into one register.
    Join {
        d: Slot,
        parts: [Slot; 4],
        count: u8,
        bits: u32,
    },
    Split {
        a: Slot,
        parts: [Slot; 4],
        count: u8,
        bits: u32,
    },
    Load {
        how: How,
        to: [Slot; 4],
        widths: [u8; 4],
    },
    Store {
        how: How,
        from: [Slot; 4],
    },
    Atomic {
        how: How,
        op: AtomicOp,
        d: Slot,
        b: Slot,
        c: Slot,
    },
    /// From an address of a space to a generic one, or back.
    Address {
        d: Slot,
        a: Slot,
        add: u64,
    },
    /// Whether a generic address points into a window.
    IsSpace {
        d: Slot,
        a: Slot,
        window: u64,
    },
    Fence {
        semantics: Semantics,
        scope: Scope,
    },
    Barrier {
        op: BarrierOp,
        aligned: bool,
        id: Slot,
        count: Slot,
        d: Slot,
        p: Slot,
        negate: bool,
    },
    Warp {
        op: WarpOp,
        d: Slot,
        a: Slot,
        negate: bool,
        members: Slot,
    },
    ActiveMask {
        d: Slot,
        lane: Slot,
    },
    Clock {
        d: Slot,
        nanoseconds: bool,
        bits: u32,
    },
    Branch {
        target: u32,
    },
    /// To the `index`th of `targets[first..first + count]`.
    BranchTable {
        index: Slot,
        first: u32,
        count: u32,
    },
    /// Copies the arguments, keeps the way back in `back`, goes on at `target`.
    Call {
        target: u32,
        back: Slot,
    },
    Return {
        back: Slot,
    },
    /// Bytes of a thread's own memory: arguments to parameters, results back.
    Copy {
        from: u32,
        to: u32,
        bytes: u32,
    },
    Exit,
    Trap,
    Sleep,
}

/// No guard.
pub(crate) const ALWAYS: Slot = u32::MAX;

#[derive(Clone, Copy)]
pub(crate) struct Instruction {
    pub(crate) op: Op,
    /// The predicate that must hold, or [`ALWAYS`].
    pub(crate) guard: Slot,
    /// It must not hold instead.
    pub(crate) negate: bool,
    pub(crate) line: u32,
}

/// What a slot holds when a thread starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Start {
    Value(u64),
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    Lane,
    Warp,
    Warps,
    /// An address in the module's global variables.
    Global(u64),
    /// Offset in the block's dynamic shared memory.
    Dynamic(u64),
    DynamicBytes,
    /// Masks of lanes by comparison with one's own: eq, le, lt, ge, gt.
    LaneMask(u8),
}

/// A parameter of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name in the text.
    pub name: String,
    /// First byte in the block of parameters.
    pub offset: u32,
    /// Bytes.
    pub bytes: u32,
    /// Alignment in bytes.
    pub align: u32,
}

/// A kernel, ready to run.
pub struct Kernel {
    pub(crate) name: String,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) parameter_bytes: u32,
    pub(crate) code: Vec<Instruction>,
    pub(crate) targets: Vec<u32>,
    pub(crate) slots: u32,
    pub(crate) starts: Vec<(Slot, Start)>,
    pub(crate) local_bytes: u32,
    pub(crate) static_shared_bytes: u32,
    pub(crate) dynamic_shared_at: u32,
    pub(crate) constants: std::sync::Arc<[u8]>,
    pub(crate) max_threads: Option<u32>,
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernel")
            .field("name", &self.name)
            .field("instructions", &self.code.len())
            .field("slots", &self.slots)
            .finish_non_exhaustive()
    }
}

impl Kernel {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
    /// Its parameters in order.
    #[must_use]
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }
    /// Bytes that [`crate::Launch::params`] must have.
    #[must_use]
    pub fn parameter_bytes(&self) -> usize {
        self.parameter_bytes as usize
    }
    /// Values of 64 bits that a thread keeps at once; not the number of registers on hardware.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slots
    }
    /// Bytes of shared memory that every block has.
    #[must_use]
    pub fn static_shared_bytes(&self) -> usize {
        self.static_shared_bytes as usize
    }
    /// Bytes of local memory of a thread.
    #[must_use]
    pub fn local_bytes(&self) -> usize {
        self.local_bytes as usize
    }
    /// Threads of a block by `.maxntid`, where given.
    #[must_use]
    pub fn max_threads(&self) -> Option<u32> {
        self.max_threads
    }
    /// Instructions in the decoded code.
    #[must_use]
    pub fn instructions(&self) -> usize {
        self.code.len()
    }
}
