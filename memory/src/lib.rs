//! Memory as the rest of `consort` sees it: bounded spans, shared mappings, counters that publish bytes.
//!
//! Invariant: every address the library touches is inside a span or a counter made here, and lives at least
//! as long as what refers to it. Deliberately absent: peers, collectives, reduction.

mod span;

pub use span::{Plain, Span, SpanMut};
