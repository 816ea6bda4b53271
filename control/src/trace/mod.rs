//! What a communicator did, for people and programs: the flight record, the trace of a job, its stragglers.
//!
//! Invariant: reads what the flight record ring holds and adds nothing to the path of a call that works. Whatever
//! cannot be written is a warning; a call's result never depends on it. Files are written by the thread whose call
//! failed, or that closes the communicator, never by the control thread and never in a forked child.
//!
//! | module | subject |
//! |---|---|
//! | `record` | the flight record as data, text and JSON |
//! | `dump` | when and where it is written after a failure |
//! | `offset` | how far a rank's clock is from that of the job's rank 0 |
//! | `events` | operations as Chrome trace events |
//! | `file` | the file that all ranks write their events to |
//! | `stragglers` | who keeps the others waiting |

mod dump;
mod events;
mod file;
pub mod offset;
mod record;
mod stragglers;

use std::time::Duration;

pub use dump::{Dumps, joined};
pub use record::{FlightEntry, FlightRecord};
pub use stragglers::{Arrivals, analyse};
pub use stragglers::{Straggler, Stragglers};

/// A duration in three digits or so, for columns.
fn brief(duration: Duration) -> String {
    let nanoseconds = duration.as_nanos() as f64;
    match duration.as_nanos() {
        0..1_000 => format!("{nanoseconds} ns"),
        1_000..1_000_000 => format!("{:.1} us", nanoseconds / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", nanoseconds / 1e6),
        _ => format!("{:.1} s", nanoseconds / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::text::columns;

    #[test]
    fn durations_and_columns_are_short_and_straight() {
        let texts = [7, 1_500, 2_340_000, 61_000_000_000].map(|ns| brief(Duration::from_nanos(ns)));
        assert_eq!(texts, ["7 ns", "1.5 us", "2.3 ms", "61.0 s"]);
        let rows = [["#", "call"], ["10", "barrier"], ["9", "x"]].map(|row| row.map(String::from));
        assert_eq!(columns(&rows, [true, false]), " #  call\n10  barrier\n 9  x");
    }
}
