//! Communicators, seen from inside.

mod leaving;
mod placement;
mod records;
