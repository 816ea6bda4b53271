//! Communicators, seen from inside.

mod calls;
mod changes;
mod joining;
mod leaving;
mod placement;
mod records;
mod short;
mod waiting;
