//! Communicators, seen from inside.

mod calls;
mod leaving;
mod placement;
mod records;
mod waiting;
