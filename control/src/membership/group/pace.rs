//! Which of a rank's wires are slower than usual, and what was said of that.
//!
//! Invariant: what is kept is bounded. Absent: the judgement.

use std::net::IpAddr;
use std::time::Instant;

use super::super::lock;
use super::Group;
use crate::report::WireReport;
use crate::report::evidence::SlowWire;
use consort_settings::notice;
use consort_types::Rank;

/// Notes for the trace that are kept, at most: the first.
const NOTES_MAX: usize = 256;

/// A wire from this rank to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wire {
    /// Within the communicator.
    pub peer: Rank,
    /// Its ends, here and there.
    pub from: IpAddr,
    pub to: IpAddr,
}

#[derive(Default)]
pub(super) struct Pace {
    slow: Vec<Slow>,
    /// When something was said, in nanoseconds of this rank's clock, and what.
    notes: Vec<(u64, String)>,
}

#[derive(Clone, Copy)]
struct Slow {
    wire: Wire,
    since: Instant,
    usual: u64,
    now: u64,
}

impl Slow {
    fn at(&self, now: Instant) -> SlowWire {
        SlowWire {
            peer: self.wire.peer,
            from: self.wire.from.to_string(),
            to: self.wire.to.to_string(),
            usual: self.usual,
            now: self.now,
            age: now.saturating_duration_since(self.since),
        }
    }
}

impl Group {
    /// A wire has carried `now` bytes a second since `since`, much less than its usual rate.
    pub fn wire_slowed(&self, wire: Wire, usual: u64, now: u64, since: Instant) {
        let slow = Slow { wire, since, usual, now };
        {
            let known = &mut lock(&self.pace).slow;
            if known.iter().any(|other| other.wire == wire) {
                return;
            }
            known.push(slow);
        }
        let text = WireReport::of(self.rank, &slow.at(self.clock().now())).to_string();
        notice::aloud(
            Some(self.rank),
            &format!(
                "{text}: other traffic, other calls of this job, an interface that has negotiated a lower speed, or \
                 a faulty cable or switch port on the way; compare `ip -s link` and `ethtool` on both hosts"
            ),
        );
        self.note(text);
    }

    /// How much a slow wire carries by now.
    pub fn wire_still_slow(&self, wire: Wire, now: u64) {
        if let Some(slow) = lock(&self.pace).slow.iter_mut().find(|slow| slow.wire == wire) {
            slow.now = now;
        }
    }

    /// A slow wire carries about as much as before.
    pub fn wire_recovered(&self, wire: Wire, now: u64) {
        let slow = {
            let known = &mut lock(&self.pace).slow;
            let at = known.iter().position(|slow| slow.wire == wire);
            at.map(|at| known.swap_remove(at))
        };
        let Some(slow) = slow else { return };
        let report = WireReport::of(self.rank, &slow.at(self.clock().now()));
        let WireReport { from, source, to, destination, since, .. } = report;
        let text = format!(
            "the wire from rank {from} ({source}) to rank {to} ({destination}) carries {:.1} MB/s again, after {}",
            now as f64 / 1e6,
            consort_types::error::seconds(since)
        );
        notice::aloud(Some(self.rank), &text);
        self.note(text);
    }

    /// Whether some wire is slow.
    pub fn has_slow_wires(&self) -> bool {
        !lock(&self.pace).slow.is_empty()
    }

    /// Whether a wire is still slow is not known any more.
    pub fn wire_forgotten(&self, wire: Wire) {
        let before = {
            let known = &mut lock(&self.pace).slow;
            let before = known.len();
            known.retain(|slow| slow.wire != wire);
            before - known.len()
        };
        if before > 0 {
            self.note(format!(
                "the calls in which the wire to rank {} ({}) was slow have not come again",
                wire.peer, wire.to
            ));
        }
    }

    /// Adds a note on wires to the trace.
    pub fn note(&self, text: String) {
        let at = self.clock().monotonic_ns();
        let notes = &mut lock(&self.pace).notes;
        if notes.len() < NOTES_MAX {
            notes.push((at, text));
        }
    }

    /// The wires that are slow now.
    pub fn slow_wires(&self) -> Vec<SlowWire> {
        let now = self.clock().now();
        lock(&self.pace).slow.iter().map(|slow| slow.at(now)).collect()
    }

    /// What the trace shows of wires.
    pub(crate) fn wire_notes(&self) -> Vec<(u64, String)> {
        lock(&self.pace).notes.clone()
    }
}
