//! Whole runs of the trainer on ranks that are threads.

mod checkpoints;
mod common;
mod overlap;
mod parity;
mod pipeline;
mod sent;
mod training;
mod zero;
