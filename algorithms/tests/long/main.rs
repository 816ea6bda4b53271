//! Tests that take seconds: damage to plans, random plans, every pair of schedules in one another, the simulator
//! beside published measurements, and measurements at scale (ignored by default).

#[path = "../common/mod.rs"]
mod common;

mod bounds;
mod measured;
mod mutation;
mod nested;
mod random_plans;
mod scale;
mod simulate_large;
