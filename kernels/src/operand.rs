//! The memory that a fold reads and writes.
//!
//! Invariant: plain data; `reducer` checks lengths. Absent: arithmetic.

use consort_memory::{Span, SpanMut};

/// Memory that a fold reads.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The elements, at any alignment.
    pub span: Span<'a>,
    /// A rank's own contribution, not yet scaled for `ReduceOp::Avg` or a pre-multiplied sum.
    pub raw: bool,
}

impl Source<'_> {
    pub(crate) fn slice(&self, offset: usize, bytes: usize) -> Self {
        Self { span: self.span.slice(offset, bytes), raw: self.raw }
    }
}

/// Memory that a fold writes.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// Where the elements go, at any alignment.
    pub span: SpanMut<'a>,
    /// How they are written.
    pub store: Store,
}

/// How a target is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Store {
    /// Through the cache, for a reader that comes soon.
    Cached,
    /// Past the cache where that pays: the aligned main part of a range of at least 1 KiB. Of two such targets of
    /// different alignment only the first is streamed. All stores are ordered before the call returns.
    Streaming,
}
