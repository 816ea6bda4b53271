//! The report for programs.
//!
//! Invariant: keys are the names of the fields; durations are seconds, under their name with `_s`.

use std::time::Duration;

use serde::{Serialize, Serializer};
use serde_json::json;

use super::{CallReport, Guilty, Report, WaitReport};

impl Report {
    /// The report as one JSON object. Its keys are the names of the fields here, durations are seconds in a key
    /// that ends in `_s`, and `guilty` is an object whose `kind` is `nobody`, `ranks`, `unreachable`, `link`,
    /// `cycle` or `elsewhere`.
    pub fn to_json(&self) -> String {
        json!(self).to_string()
    }
}

/// A duration, or none, in seconds.
pub(crate) fn seconds<D, S>(duration: &D, serializer: S) -> Result<S::Ok, S::Error>
where
    D: Copy + Into<Option<Duration>>,
    S: Serializer,
{
    (*duration).into().map(|duration| duration.as_secs_f64()).serialize(serializer)
}

pub(super) fn finished<S: Serializer>(
    finished: &Option<(CallReport, Duration)>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let last = finished.as_ref();
    last.map(|(call, age)| json!({ "call": call, "age_s": age.as_secs_f64() })).serialize(serializer)
}

pub(super) fn elsewhere<S: Serializer>(
    elsewhere: &Option<(String, WaitReport)>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let other = elsewhere.as_ref();
    other.map(|(name, waiting)| json!({ "communicator": name, "waiting": waiting })).serialize(serializer)
}

impl Serialize for Guilty {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Guilty::Nobody => json!({ "kind": "nobody" }),
            Guilty::Ranks(ranks) => json!({ "kind": "ranks", "ranks": ranks }),
            Guilty::Unreachable(ranks) => json!({ "kind": "unreachable", "ranks": ranks }),
            Guilty::Link { from, to } => json!({ "kind": "link", "from": from, "to": to }),
            Guilty::Cycle(steps) => json!({ "kind": "cycle", "steps": steps }),
            Guilty::Elsewhere { place, communicator, rank } => {
                json!({ "kind": "elsewhere", "place": place, "communicator": communicator, "rank": rank })
            }
        }
        .serialize(serializer)
    }
}
