//! Runs PTX without a GPU, for tests.
//!
//! [`Module::parse`] parses a text. [`run()`] runs launches of its kernels against a [`Memory`], under a seeded
//! schedule that looks for mistakes or a fast one that serves programs. The text that runs is the very text that the
//! driver would get, so that a wrong order of memory, a missing barrier or a wrong bound shows in the text that
//! ships.
//!
//! Invariant: no part of this crate is a GPU, claims to be one, or measures one. A fault is typed and names its
//! place. Absent: `unsafe`; textures, surfaces, tensor cores, clusters; approximations and `.ftz`; timing. An opcode
//! that is absent is unknown to the parser and never gives a wrong result.

mod arithmetic;
pub mod check;
mod decode;
mod error;
mod fault;
mod memory;
mod module;
mod program;
mod run;
mod text;
mod value;

pub use error::ParseError;
pub use fault::{Conflict, Divergence, Fault, Near, Place, Problem, Waiting};
pub use memory::{Access, Actor, Atomic, AtomicOp, Memory, Plain, Scope, Semantics, Site};
pub use module::{Module, Variable};
pub use program::{Kernel, Parameter};
pub use run::{HostStore, Launch, Options, Schedule, Statistics, run};
