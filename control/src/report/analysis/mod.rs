//! The verdict: from what ranks said of themselves to whose fault it is.
//!
//! Invariant: a pure function that never panics, whatever the evidence says. Absent: collecting evidence (see
//! `membership::inquiry`) and the form of the report (see `text` and `json`).

mod follow;
mod rows;
mod sentences;
mod view;
mod words;

use std::time::Duration;

use follow::{Findings, Need, follow};
use view::View;
use words::Words;

use super::evidence::Evidence;
use super::{CallReport, Guilty, Report, slow};
use consort_types::error::seconds;

/// What every rank does, and whose fault it is that the operation which `evidence` is about does not end.
pub fn analyse(evidence: &Evidence) -> Report {
    let view = View::new(evidence);
    let home = evidence.communicator;
    let asked = evidence.operation.map(|(sequence, descriptor)| {
        let need = Need { communicator: home, sequence, descriptor, waiter: evidence.by };
        (need, evidence.waited)
    });
    let subject = asked.or_else(|| oldest(&view));
    let (guilty, verdict) = match subject {
        Some((need, waited)) => {
            let found = follow(&view, need);
            judge(&Words { view: &view, subject: need, waited }, &found)
        }
        None => (Guilty::Nobody, words::nothing_waits(&view)),
    };
    // The report's operation is the asker's; what another rank is found in is in the verdict.
    let by_asker = subject.filter(|(need, _)| asked.is_some() || need.waiter == evidence.by);
    Report {
        communicator: words::name(home),
        size: view.size(),
        by: evidence.by,
        operation: by_asker.map(|(need, _)| CallReport::new(need.sequence, &need.descriptor)),
        waited: by_asker.map_or(evidence.waited, |(_, waited)| waited),
        guilty,
        verdict,
        graph: None,
        slow: slow::wires(evidence),
        ranks: (0..view.size()).filter_map(|rank| rows::rank(&view, rank)).collect(),
    }
}

/// The operation that has waited longest; of several the asker's, as it knows most of it.
fn oldest(view: &View<'_>) -> Option<(Need, Duration)> {
    let home = view.evidence.communicator;
    let waits = (0..view.size()).filter_map(|rank| {
        let (open, _) = view.stuck((home, rank))?;
        Some((open.age, rank == view.evidence.by, rank, open))
    });
    let (age, _, waiter, open) = waits.max_by_key(|(age, own, ..)| (*age, *own))?;
    let (sequence, mut descriptor) = (open.sequence, open.descriptor);
    if descriptor.kind.is_message() {
        descriptor.root = open.stuck.as_ref().map_or(descriptor.root, |stuck| stuck.peer);
    }
    Some((Need { communicator: home, sequence, descriptor, waiter }, age))
}

/// The strongest of the findings, in one sentence; others behind it where there is room.
fn judge(words: &Words<'_, '_>, found: &Findings<'_>) -> (Guilty, String) {
    let (inside, outside): (Vec<_>, Vec<_>) =
        found.absent.iter().partition(|absent| words.view.member(absent.node).is_some());
    let lost: Vec<_> = found.lost.iter().copied().collect();
    let silent: Vec<_> = found.silent.iter().copied().collect();
    if !lost.is_empty() {
        let more = words.also(&silent, &[], &lost);
        return (Guilty::Ranks(lost.clone()), words::join(words.lost(&lost), more));
    }
    if !silent.is_empty() {
        let more = words.also(&[], &inside, &silent);
        return (Guilty::Unreachable(silent.clone()), words::join(words.silent(&silent), more));
    }
    if let Some(cycle) = found.cycles.first() {
        return words.cycle(cycle);
    }
    if let Some(first) = inside.first() {
        let mut ranks: Vec<_> = inside.iter().filter_map(|absent| words.view.member(absent.node)).collect();
        ranks.sort_unstable();
        ranks.dedup();
        let (main, more): (Vec<_>, Vec<_>) = inside.iter().partition(|absent| words::alike(first, absent));
        let more = words.also(&[], &more, &ranks);
        return (Guilty::Ranks(ranks), words::join(words.absent(&main), more));
    }
    if let Some(broken) = found.links.first() {
        return words.broken(broken);
    }
    if let Some(first) = outside.first() {
        let main: Vec<_> = outside.iter().filter(|absent| words::alike(first, absent)).copied().collect();
        return (words.elsewhere(first.node, None), words.absent(&main));
    }
    if let Some((node, process, need)) = found.unknown.first() {
        return words.unknown(*node, process, need);
    }
    if !found.slow.is_empty() {
        return words.slow(&found.slow);
    }
    if let Some((need, peer)) = found.nonsense.first() {
        let (waiter, what) = (need.waiter, need.label());
        let size = words.view.size();
        let verdict = format!(
            "rank {waiter} says that it waits in {what} for rank {peer}, which a communicator of {size} does not \
             have: its answer makes no sense"
        );
        return (Guilty::Nobody, verdict);
    }
    let what = words.subject();
    let (ranks, since) = words.waiters(&words.subject);
    if let Some(need) = found.still.first() {
        return words.still(need);
    }
    if ranks.is_empty() {
        let gone = "it has ended meanwhile, or it moves, but too slowly for this deadline";
        return (Guilty::Nobody, format!("no rank waits in {what} now: {gone}"));
    }
    let since = since.unwrap_or(words.waited);
    let verdict = format!(
        "every rank is in {what} (since {}) and it moves, but too slowly for this deadline",
        seconds(since)
    );
    (Guilty::Nobody, verdict)
}
