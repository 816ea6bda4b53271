//! What one rank does, for the report.
//!
//! Invariant: nothing is judged here but whether a rank is elsewhere.

use super::view::View;
use super::words::{clean, name};
use crate::report::evidence::{Open, Reach, Stuck, Want};
use crate::report::{CallReport, RankReport, WaitReport};
use consort_types::Rank;

/// The longest text of a peer that is shown.
const LONGEST: usize = 200;

/// A row of the report; none for a rank that does not exist.
pub(super) fn rank(view: &View<'_>, rank: Rank) -> Option<RankReport> {
    let witness = view.witness(rank)?;
    let node = (view.evidence.communicator, rank);
    let position = view.position(node);
    let open = position.and_then(|position| position.open.as_ref());
    let unreachable = match &witness.reach {
        Reach::Silent => Some("no answer".to_string()),
        Reach::Lost(reason) => Some(clean(reason, LONGEST)),
        Reach::Answered | Reach::Left => None,
    };
    // Who cannot be asked says nothing of other communicators either.
    let abroad = if open.is_none() && unreachable.is_none() { view.abroad(node) } else { None };
    let last = position.and_then(|position| position.last.as_ref());
    Some(RankReport {
        rank,
        host: clean(&witness.host, LONGEST),
        process: witness.pid,
        unreachable,
        left: witness.reach == Reach::Left,
        finished: last.map(|(sequence, descriptor, age)| (CallReport::new(*sequence, descriptor), *age)),
        waiting: open.map(wait),
        elsewhere: abroad.map(|abroad| (name(abroad.node.0), wait(abroad.open))),
    })
}

fn wait(open: &Open) -> WaitReport {
    let stuck = open.stuck.as_ref();
    WaitReport {
        call: CallReport::new(open.sequence, &open.descriptor),
        entered: open.age,
        algorithm: stuck.map(|stuck| clean(&stuck.algorithm, LONGEST)).unwrap_or_default(),
        step: stuck.map(step).unwrap_or_default(),
        wants: stuck.map(|stuck| wants(stuck.want).into()).unwrap_or_default(),
        peer: stuck.map(|stuck| stuck.peer),
        stuck: stuck.map(|stuck| stuck.age).unwrap_or_default(),
    }
}

fn step(stuck: &Stuck) -> String {
    if stuck.want == Want::Link {
        return "no connection yet".into();
    }
    if stuck.steps == 0 {
        return "before its first step".into();
    }
    let step = format!("step {} of {}", u64::from(stuck.step) + 1, stuck.steps);
    if stuck.slices > 1 {
        return format!("{step}, slice {} of {}", u64::from(stuck.slice) + 1, stuck.slices);
    }
    step
}

fn wants(want: Want) -> &'static str {
    match want {
        Want::Link => "its half of the connection from",
        Want::Connection => "a connection to",
        Want::Data => "data from",
        Want::Room => "room at",
    }
}
