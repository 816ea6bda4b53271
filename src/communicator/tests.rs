//! Communicators, seen from inside.

mod calls;
mod changes;
mod connections;
mod joining;
mod leaving;
mod lending;
mod placement;
mod records;
mod short;
mod started;
pub(super) mod waiting;
