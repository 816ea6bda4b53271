//! Wires that are slower than usual, as a report shows them.
//!
//! Absent: what makes a wire slow (the engine judges that, by what the system counts).

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::evidence::{Evidence, SlowWire};
use super::json;
use consort_types::Rank;
use consort_types::error::seconds;

/// A wire between two ranks that carries less than usual while it is at work.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(not(feature = "testing"), non_exhaustive)]
pub struct WireReport {
    /// The rank whose bytes it carries.
    pub from: Rank,
    /// The rank that they are for.
    pub to: Rank,
    /// The address at its end at the first.
    pub source: String,
    /// The same at the other.
    pub destination: String,
    /// Bytes a second that it usually carries.
    pub usual_bytes_s: u64,
    /// Bytes a second that it carries now.
    pub bytes_s: u64,
    /// For how long it has been slow.
    #[serde(rename = "since_s", serialize_with = "json::seconds")]
    pub since: Duration,
}

impl WireReport {
    /// What a rank says of one of its wires.
    pub fn of(rank: Rank, wire: &SlowWire) -> Self {
        WireReport {
            from: rank,
            to: wire.peer,
            source: wire.from.clone(),
            destination: wire.to.clone(),
            usual_bytes_s: wire.usual,
            bytes_s: wire.now,
            since: wire.age,
        }
    }
}

impl fmt::Display for WireReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = self.bytes_s as f64 / self.usual_bytes_s.max(1) as f64 * 100.0;
        let [usual, now] = [self.usual_bytes_s, self.bytes_s].map(|rate| rate as f64 / 1e6);
        write!(
            f,
            "the wire from rank {} ({}) to rank {} ({}) carries {now:.1} MB/s, {share:.0} % of its usual {usual:.1} MB/s, since {}",
            self.from,
            self.source,
            self.to,
            self.destination,
            seconds(self.since)
        )
    }
}

/// Those that the communicator's ranks name.
pub(super) fn wires(evidence: &Evidence) -> Vec<WireReport> {
    let said =
        (0..).zip(&evidence.ranks).filter_map(|(rank, witness)| Some((rank, witness.position.as_ref()?)));
    said.flat_map(|(rank, position)| position.slow.iter().map(move |wire| WireReport::of(rank, wire)))
        .collect()
}
