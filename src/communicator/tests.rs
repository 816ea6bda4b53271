//! Communicators, seen from inside.

mod calls;
mod joining;
mod leaving;
mod placement;
mod records;
mod short;
mod waiting;
