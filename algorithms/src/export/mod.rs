//! Schedules and plans as people read them.
//!
//! Invariant: a pure function of its argument, one line a step, and everything the argument holds is shown.
//! Absent: a parser for the text.

mod dot;
mod text;

pub use dot::{plan_dot, schedule_dot};
pub use text::{plan_text, schedule_text};
