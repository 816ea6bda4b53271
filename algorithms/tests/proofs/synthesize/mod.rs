//! Schedules made for one machine: proved chunk by chunk, held against their bounds, and certified.

mod certificates;
mod greedy;
mod packing;
