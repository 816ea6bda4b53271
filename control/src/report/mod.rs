//! The hang report: what every rank of a communicator does, and whose fault it is that an operation does not end.
//!
//! Invariant: the analysis is a pure function of what ranks said of themselves, so it can be tested on tables.
//! Absent: asking (see `membership::inquiry`) and waiting.

mod analysis;
pub mod evidence;
pub(crate) mod json;
pub mod machine;
mod slow;
#[cfg(test)]
mod tests;
pub(crate) mod text;

use std::time::Duration;

use serde::Serialize;

pub use analysis::analyse;
pub use machine::{GraphReport, WayReport};
pub use slow::WireReport;

use consort_types::Rank;

/// What every rank of a communicator is doing, and the verdict. `Display` is the text for people,
/// [`Report::to_json`] the same for programs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(not(feature = "testing"), non_exhaustive)]
pub struct Report {
    /// The communicator's name: the same on all its ranks.
    pub communicator: String,
    /// How many ranks it has.
    pub size: u32,
    /// The rank that asked the others.
    pub by: Rank,
    /// The operation of that rank that the report is about, if one was under way.
    pub operation: Option<CallReport>,
    /// How long that operation had taken.
    #[serde(rename = "waited_s", serialize_with = "json::seconds")]
    pub waited: Duration,
    /// Whose fault it is.
    pub guilty: Guilty,
    /// The same in one sentence.
    pub verdict: String,
    /// The machine's graph, where it is known.
    pub graph: Option<GraphReport>,
    /// The wires between hosts that are slower than usual, of the ranks that answered.
    pub slow: Vec<WireReport>,
    /// Every rank, in order.
    pub ranks: Vec<RankReport>,
}

/// Whom or what the verdict names.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(not(feature = "testing"), non_exhaustive)]
pub enum Guilty {
    /// Nothing is stuck: no operation is under way, or all move (perhaps slowly).
    Nobody,
    /// These ranks of the communicator keep the others waiting.
    Ranks(Vec<Rank>),
    /// These ranks do not answer: stopped, or their hosts or the network to them are down.
    Unreachable(Vec<Rank>),
    /// What `from` sent does not reach `to`.
    Link {
        /// Who sent.
        from: Rank,
        /// Who waits for it.
        to: Rank,
    },
    /// Each waits for the next, and the last for the first.
    Cycle(Vec<CycleStep>),
    /// A rank that is not of this communicator, at the end of a chain of waits through others.
    Elsewhere {
        /// Host and process.
        place: String,
        /// The communicator, and the rank in it.
        communicator: String,
        /// Its rank there.
        rank: Rank,
    },
}

/// One wait of a cycle.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(not(feature = "testing"), non_exhaustive)]
pub struct CycleStep {
    /// The communicator in which it waits.
    pub communicator: String,
    /// Its rank there.
    pub rank: Rank,
    /// In which operation, for example `all_reduce #7`.
    pub operation: String,
    /// For which rank of that communicator.
    pub waits_for: Rank,
}

/// An operation, as its rank called it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(not(feature = "testing"), non_exhaustive)]
pub struct CallReport {
    /// Its number on the communicator, or between the two ranks for `send` and `receive`; from 1.
    pub sequence: u64,
    /// For example `all_reduce`.
    pub name: String,
    /// Elements, as the call counts them.
    pub count: u64,
    /// For example `float`.
    pub data_type: String,
    /// For example `sum`; none where nothing is reduced.
    pub op: Option<String>,
    /// The root; the peer for `send` and `receive`; none where there is none.
    pub root: Option<Rank>,
}

/// What one rank does.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(not(feature = "testing"), non_exhaustive)]
pub struct RankReport {
    /// Which.
    pub rank: Rank,
    /// The host it runs on.
    pub host: String,
    /// Its process there.
    pub process: u32,
    /// Why it could not be asked; none if it answered.
    pub unreachable: Option<String>,
    /// Whether it closed its communicator in good order.
    pub left: bool,
    /// The last operation that it finished, and how long before its answer.
    #[serde(serialize_with = "json::finished")]
    pub finished: Option<(CallReport, Duration)>,
    /// The operation that it is in; none when it is not in a call.
    pub waiting: Option<WaitReport>,
    /// What it does on another communicator, when that is why it is not in a call here.
    #[serde(serialize_with = "json::elsewhere")]
    pub elsewhere: Option<(String, WaitReport)>,
}

/// An operation under way.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(not(feature = "testing"), non_exhaustive)]
pub struct WaitReport {
    /// Which.
    pub call: CallReport,
    /// How long ago it was entered.
    #[serde(rename = "entered_s", serialize_with = "json::seconds")]
    pub entered: Duration,
    /// For example `ring`; empty before one was chosen.
    pub algorithm: String,
    /// Where it stands, for example `step 3 of 14, slice 2 of 8`; empty while it moves.
    pub step: String,
    /// What it waits for, for example `data from`; empty while it moves.
    pub wants: String,
    /// The rank that it waits for; none while it moves.
    pub peer: Option<Rank>,
    /// How long it has stood there.
    #[serde(rename = "stuck_s", serialize_with = "json::seconds")]
    pub stuck: Duration,
}
