//! The report for programs.
//!
//! Invariant: keys are the names of the fields; durations are seconds, under their name with `_s`.

use std::time::Duration;

use serde_json::{Value, json};

use super::{CallReport, Guilty, RankReport, Report, WaitReport};

impl Report {
    /// The report as one JSON object. Its keys are the names of the fields here, durations are seconds in a key
    /// that ends in `_s`, and `guilty` is an object whose `kind` is `nobody`, `ranks`, `unreachable`, `link`,
    /// `cycle` or `elsewhere`.
    pub fn to_json(&self) -> String {
        json!({
            "communicator": self.communicator,
            "size": self.size,
            "by": self.by,
            "operation": self.operation.as_ref().map(call),
            "waited_s": seconds(self.waited),
            "guilty": guilty(&self.guilty),
            "verdict": self.verdict,
            "ranks": self.ranks.iter().map(rank).collect::<Vec<_>>(),
        })
        .to_string()
    }
}

fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}

fn guilty(guilty: &Guilty) -> Value {
    match guilty {
        Guilty::Nobody => json!({ "kind": "nobody" }),
        Guilty::Ranks(ranks) => json!({ "kind": "ranks", "ranks": ranks }),
        Guilty::Unreachable(ranks) => json!({ "kind": "unreachable", "ranks": ranks }),
        Guilty::Link { from, to } => json!({ "kind": "link", "from": from, "to": to }),
        Guilty::Cycle(steps) => {
            let step = |step: &super::CycleStep| {
                json!({
                    "communicator": step.communicator,
                    "rank": step.rank,
                    "operation": step.operation,
                    "waits_for": step.waits_for,
                })
            };
            json!({ "kind": "cycle", "steps": steps.iter().map(step).collect::<Vec<_>>() })
        }
        Guilty::Elsewhere { place, communicator, rank } => {
            json!({ "kind": "elsewhere", "place": place, "communicator": communicator, "rank": rank })
        }
    }
}

fn call(call: &CallReport) -> Value {
    json!({
        "sequence": call.sequence,
        "name": call.name,
        "count": call.count,
        "data_type": call.data_type,
        "op": call.op,
        "root": call.root,
    })
}

fn rank(rank: &RankReport) -> Value {
    let finished =
        |(last, age): &(CallReport, Duration)| json!({ "call": call(last), "age_s": seconds(*age) });
    let elsewhere = |(communicator, waiting): &(String, WaitReport)| json!({ "communicator": communicator, "waiting": wait(waiting) });
    json!({
        "rank": rank.rank,
        "host": rank.host,
        "process": rank.process,
        "unreachable": rank.unreachable,
        "left": rank.left,
        "finished": rank.finished.as_ref().map(finished),
        "waiting": rank.waiting.as_ref().map(wait),
        "elsewhere": rank.elsewhere.as_ref().map(elsewhere),
    })
}

fn wait(wait: &WaitReport) -> Value {
    json!({
        "call": call(&wait.call),
        "entered_s": seconds(wait.entered),
        "algorithm": wait.algorithm,
        "step": wait.step,
        "wants": wait.wants,
        "peer": wait.peer,
        "stuck_s": seconds(wait.stuck),
    })
}
