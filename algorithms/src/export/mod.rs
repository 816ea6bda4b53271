//! Schedules and plans as people read them.
//!
//! Invariant: a pure function of its argument; in text, one line a transfer or a step, in order. Absent: what
//! the tables say about an iteration (it follows from the steps), and a parser.

mod dot;
mod names;
mod text;

pub use dot::{plan_dot, schedule_dot};
pub use text::{plan_text, schedule_text};
