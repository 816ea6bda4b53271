//! Schedules made for one machine: proved, held against their bounds, and certified.

mod certificates;
mod greedy;
