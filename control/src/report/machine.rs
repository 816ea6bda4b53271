//! What a report says of the machine: its graph, and the way between the rank that waits and the one that it waits for.
//!
//! Invariant: who waits for whom follows from the report alone. Absent: what the machine is ([`Wires`] knows it).

use std::fmt;

use serde::Serialize;

use super::{Guilty, Report};
use crate::bootstrap::Member;
use consort_types::Rank;

/// What a communicator knows of the machine that its ranks are on.
pub trait Wires: fmt::Debug + Send + Sync {
    /// The graph's name, and its hash, the same on all ranks.
    fn graph(&self) -> (String, u64);

    /// The way from one of the ranks to another.
    fn way(&self, ranks: &[&Member], from: Rank, to: Rank) -> Option<Way>;
}

/// A way between two ranks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Way {
    /// Its kind in NCCL's terms, for example `NVL`, `PIX` or `NET`; none where nothing says it.
    pub kind: Option<String>,
    /// Bytes a second of its narrowest link.
    pub bytes_s: Option<u64>,
}

/// The machine's graph.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(not(feature = "testing"), non_exhaustive)]
pub struct GraphReport {
    /// The name of what calls are priced on.
    pub machine: String,
    /// Sixteen digits that are the same on all ranks that plan by one graph.
    pub hash: String,
    /// The way on which a rank waits; none where none does, or nothing is known of it.
    pub way: Option<WayReport>,
}

/// The way between a rank that waits and the one that it waits for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(not(feature = "testing"), non_exhaustive)]
pub struct WayReport {
    /// Who waits.
    pub waits: Rank,
    /// For whom.
    pub awaited: Rank,
    /// The kind of path in NCCL's terms, for example `NVL`, `PIX` or `NET`; none where nothing says it.
    pub kind: Option<String>,
    /// Bytes a second of its narrowest link, from the awaited rank to the one that waits.
    pub bytes_s: Option<u64>,
}

impl Report {
    /// The same with what is known of the machine of these ranks.
    pub(crate) fn on(self, wires: &dyn Wires, ranks: &[&Member]) -> Report {
        let (machine, hash) = wires.graph();
        let way = self.wait().and_then(|(waits, awaited)| {
            let Way { kind, bytes_s } = wires.way(ranks, awaited, waits)?;
            Some(WayReport { waits, awaited, kind, bytes_s })
        });
        Report { graph: Some(GraphReport { machine, hash: format!("{hash:016x}"), way }), ..self }
    }

    /// The wait that the verdict is about: who waits for whom.
    fn wait(&self) -> Option<(Rank, Rank)> {
        let guilty = match &self.guilty {
            Guilty::Link { from, to } => return Some((*to, *from)),
            Guilty::Cycle(steps) => {
                let here = steps.iter().find(|step| step.communicator == self.communicator)?;
                return Some((here.rank, here.waits_for));
            }
            Guilty::Ranks(ranks) | Guilty::Unreachable(ranks) => ranks.as_slice(),
            Guilty::Nobody | Guilty::Elsewhere { .. } => &[],
        };
        let waits = || self.ranks.iter().filter_map(|of| Some((of.rank, of.waiting.as_ref()?.peer?)));
        let for_guilty = || waits().filter(|(_, peer)| guilty.contains(peer));
        let own = |(rank, _): &(Rank, Rank)| *rank == self.by;
        for_guilty()
            .find(own)
            .or_else(|| for_guilty().next())
            .or_else(|| waits().find(own))
            .or_else(|| waits().next())
    }
}

impl fmt::Display for GraphReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "machine: {}, graph {}", self.machine, self.hash)?;
        let Some(WayReport { waits, awaited, kind, bytes_s }) = &self.way else { return Ok(()) };
        write!(f, "; rank {waits} waits for rank {awaited}")?;
        if let Some(kind) = kind {
            write!(f, " over {kind}")?;
        }
        match bytes_s {
            // Tenths of GB/s are what differs between links.
            Some(bytes_s) if *bytes_s >= 100_000_000 => write!(f, " at {:.1} GB/s", *bytes_s as f64 / 1e9),
            Some(bytes_s) => write!(f, " at {:.1} MB/s", *bytes_s as f64 / 1e6),
            None => Ok(()),
        }
    }
}
