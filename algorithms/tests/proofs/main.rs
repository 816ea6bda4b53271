//! Schedules, plans, topologies, the simulator and the exporters, from outside: the tests that take little time. The
//! others are in `tests/long`. `CONSORT_SNAPSHOTS=write cargo test -p consort-algorithms --test proofs` writes the
//! committed files of `tests/snapshots` and `docs/SCHEDULES.md` anew.

#[path = "../common/mod.rs"]
mod common;

mod bounds;
mod coordinated;
mod export;
mod hardware;
mod hierarchical;
mod language;
mod logarithmic;
mod mapped;
mod networks;
mod regular;
mod ring;
mod schedules;
mod search;
mod simulate;
mod six_programs;
mod switch;
mod symmetry;
mod synthesize;
mod topology;
mod workload;
