//! Memory as the rest of `consort` sees it: bounded spans, shared mappings and counters that publish bytes.
//!
//! Invariant: every address the library touches is inside a span or a counter made here, and lives at least
//! as long as what refers to it. Deliberately absent: peers, collectives, reduction.

pub mod access_epoch;
#[cfg(not(loom))]
pub mod areas;
mod bell;
mod counter;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod fork;
mod held;
#[cfg(not(loom))]
mod mapping;
#[cfg(not(loom))]
mod maps;
#[cfg(not(loom))]
mod node;
mod packets;
pub mod pool;
mod span;
pub mod sync;
#[cfg(not(loom))]
mod ticks;
#[cfg(not(loom))]
pub mod user_buffers;
#[cfg(not(loom))]
mod waker;

#[cfg(not(loom))]
pub use areas::{SharedBuffer, SharedMemory};
pub use bell::Bell;
pub use counter::Counter;
#[cfg(not(loom))]
pub use error::MemoryError;
#[cfg(not(loom))]
pub use fork::ForkStamp;
pub use held::{Buffer, Buffers, Held, HeldRead, Lease, Lender, lend};
#[cfg(not(loom))]
pub use mapping::Mapping;
pub use packets::{Arrival, Inbox, Outbox, Row, copy_short};
pub use pool::Pool;
pub use span::{Plain, Span, SpanMut};
#[cfg(not(loom))]
pub use ticks::{duration, ticks};
#[cfg(not(loom))]
pub use user_buffers::UserBuffer;
#[cfg(not(loom))]
pub use waker::Waker;
