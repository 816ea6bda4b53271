//! The verdicts, one sentence for each kind.
//!
//! Invariant: every sentence names who, which operation, and since when others wait for it.

use super::follow::{Absent, Broken, How, Need, Step};
use super::view::Node;
use super::words::{Words, clean, label, name, pick, ranks, short};
use crate::report::evidence::{ProcessId, Reach};
use crate::report::{CycleStep, Guilty};
use consort_types::Rank;
use consort_types::error::seconds;

/// How many steps of a cycle are shown.
const STEPS: usize = 4;

impl Words<'_, '_> {
    pub(super) fn lost(&self, lost: &[Rank]) -> String {
        let reason = lost.first().and_then(|rank| self.view.witness(*rank)).map(|witness| &witness.reach);
        let reason = match reason {
            Some(Reach::Lost(reason)) => clean(reason, 120),
            _ => String::new(),
        };
        let needs = format!("{} needs {}", self.subject(), pick(lost.len(), "it", "them"));
        let was = pick(lost.len(), "was", "were");
        let own = pick(lost.len(), "its own output", "their own output");
        format!("{} {was} lost ({reason}) and {needs}: look at {own} first", self.who(lost))
    }

    pub(super) fn silent(&self, silent: &[Rank]) -> String {
        let by = self.view.evidence.by;
        let why = pick(
            silent.len(),
            "stopped, or its host or the network to it is down",
            "stopped, or their hosts or the network to them are down",
        );
        let verb = pick(silent.len(), "does", "do");
        let (waiters, since) = self.waiters(&self.subject);
        let waits = if waiters.is_empty() {
            String::new()
        } else {
            format!("; {}", self.wait(&waiters, &format!("in {}", self.subject()), since))
        };
        format!("{} {verb} not answer rank {by}: {why}{waits}", self.who(silent))
    }

    /// Ranks that have not made a call, all in the same way.
    pub(super) fn absent(&self, absent: &[&Absent<'_>]) -> String {
        let Some(first) = absent.first() else { return "nothing is known".into() };
        let (node, need, count) = (first.node, &first.need, absent.len());
        let members: Vec<Rank> = absent.iter().filter_map(|absent| self.view.member(absent.node)).collect();
        let who = if count == 1 || members.len() < count { self.someone(node) } else { self.who(&members) };
        let lack = self.lack(need, count);
        let what = self.what(need);
        let it = pick(count, "it", "them");
        let waits = self.waiting(need, it, &members);
        let verdict = match &first.how {
            How::Idle => {
                let now = pick(count, "it is not in a call now", "they are not in a call now");
                let place = match members.as_slice() {
                    [rank, ..] => match self.view.witness(*rank) {
                        Some(witness) if count == 1 => {
                            format!("process {} on host {}", witness.pid, clean(&witness.host, 40))
                        }
                        _ => format!("rank {rank} ({})", self.place(*rank)),
                    },
                    [] => "that process".into(),
                };
                let nodes: Vec<Node> = absent.iter().map(|absent| absent.node).collect();
                let last = self.last(&nodes);
                format!("{who} {lack}{waits}; {last}, and {now}: look at a stack trace of {place}")
            }
            How::Left(after) => {
                let after = match after {
                    Some(0) => " before its first collective".into(),
                    Some(number) => format!(" after #{number}"),
                    None => String::new(),
                };
                let closed = pick(count, "closed the communicator", "closed their communicators");
                let fewer = pick(count, "it made fewer calls", "they made fewer calls");
                let needs = pick(count, "needs it", "needs them");
                format!("{who} {closed}{after}, and {what} {needs}{waits}: {fewer} than the others")
            }
            How::Unmade => {
                let have = pick(count, "has", "have");
                format!("{who} {have} not made the communicator yet, and {what} needs {it}{waits}")
            }
            How::Busy(open) => {
                let busy = label(open.sequence, &open.descriptor);
                let age = seconds(open.age);
                format!("{who} {lack}: it is still in {busy} (since {age}), which moves{waits}")
            }
            How::Abroad(abroad) => {
                let busy = label(abroad.open.sequence, &abroad.open.descriptor);
                let of = self.of(abroad.node.0);
                let age = seconds(abroad.open.age);
                format!("{who} {lack}: it is in {busy}{of} (since {age}), which moves{waits}")
            }
        };
        if self.is_home(need.communicator) {
            return verdict;
        }
        // The other communicator is named once.
        let of = self.of(need.communicator);
        match verdict.split_once(&of) {
            Some((begin, end)) => format!("{begin}{of}{}", end.replace(&of, " there")),
            None => verdict,
        }
    }

    pub(super) fn broken(&self, broken: &Broken) -> (Guilty, String) {
        let Broken { need, from, to, detail } = broken;
        let ends = [*from, *to].map(|rank| self.view.member((need.communicator, rank)));
        let (guilty, hosts) = match ends {
            [Some(from), Some(to)] => {
                let hosts = self.hosts(&[from, to]);
                (Guilty::Link { from, to }, format!(": check the network and the logs of {hosts}"))
            }
            _ => (self.elsewhere((need.communicator, *from), None), String::new()),
        };
        let what = need.label();
        let of = self.of(need.communicator);
        let waits = self.waiting(need, "the missing part", &[]);
        let verdict =
            format!("in {what}{of} what rank {from} sent does not reach rank {to}: {detail}{waits}{hosts}");
        (guilty, verdict)
    }

    pub(super) fn slow(&self, slow: &[(Node, Need)]) -> (Guilty, String) {
        let mut members: Vec<Rank> = slow.iter().filter_map(|(node, _)| self.view.member(*node)).collect();
        members.sort_unstable();
        members.dedup();
        let Some((node, need)) = slow.first() else { return (Guilty::Nobody, "nothing is known".into()) };
        let together = slow
            .iter()
            .all(|(_, other)| (other.communicator, other.sequence) == (need.communicator, need.sequence));
        let all = together && members.len() > 1;
        let who = if all { self.who(&members) } else { self.someone(*node) };
        let what = self.what(need);
        let waits = self.waiting(need, if all { "them" } else { "it" }, &members);
        let (is, moves) = if all { ("are", "move") } else { ("is", "moves") };
        let message = need.descriptor.kind.is_message();
        let inside = if message { format!("at the other end of {what}") } else { format!("in {what}") };
        let verdict = format!("{who} {is} {inside} but {moves} slowly{waits}");
        let guilty = if members.is_empty() { self.elsewhere(*node, None) } else { Guilty::Ranks(members) };
        (guilty, verdict)
    }

    /// All are in it, and nothing is missing.
    pub(super) fn still(&self, need: &Need) -> (Guilty, String) {
        let what = self.what(need);
        let (who, since) = self.waiters(need);
        let verdict = format!(
            "all ranks are in {what} and {}, though nothing that was sent is known to be missing: it moves too slowly for \
             this deadline, or the library has a defect",
            self.wait(&who, "for each other", since),
        );
        (Guilty::Nobody, verdict)
    }

    pub(super) fn unknown(&self, node: Node, process: &ProcessId, need: &Need) -> (Guilty, String) {
        let what = self.what(need);
        let waiter = self.someone((need.communicator, need.waiter));
        let (guilty, who) = match self.view.of_process(process).as_slice() {
            [rank] if *process != [0; 16] => {
                let closed = "it has not made that communicator or has closed it";
                (Guilty::Ranks(vec![*rank]), format!("the process of {}; {closed}", self.who(&[*rank])))
            }
            _ => (self.elsewhere(node, Some(*process)), self.process(Some(*process))),
        };
        let (subject, waits) = (self.subject(), self.waiters(&self.subject).0);
        let verb = pick(waits.len(), "waits", "wait");
        let waits = if waits.is_empty() { "this communicator".into() } else { ranks(&waits) };
        let verdict = format!(
            "{waits} {verb} in {subject} for {waiter}, which waits in {what} for rank {} there, whose state is not known: \
             {who}",
            node.1,
        );
        (guilty, verdict)
    }

    pub(super) fn cycle(&self, steps: &[Step<'_>]) -> (Guilty, String) {
        let one = steps.iter().all(|step| steps.first().is_some_and(|first| first.node.0 == step.node.0));
        let messages = steps.iter().all(|step| step.open.descriptor.kind.is_message());
        let mut text = String::from("deadlock: ");
        for (at, step) in steps.iter().enumerate().take(STEPS) {
            let what = label(step.open.sequence, &step.open.descriptor);
            let of = if one { String::new() } else { format!(" of communicator {}", short(step.node.0)) };
            let before = at.checked_sub(1).map(|before| &steps[before]);
            let same = before.is_some_and(|before| before.waits_for == step.node.1);
            // Several communicators number the same ranks differently.
            let job = self.view.position(step.node).map(|position| position.job_rank);
            let job = job.filter(|job| !one && *job != step.node.1);
            let job = job.map(|job| format!("rank {job} of the job"));
            let there = (at > 0 && !same).then(|| format!("rank {} there", step.node.1));
            let aside: Vec<String> = there.into_iter().chain(job).collect();
            let aside = if aside.is_empty() { String::new() } else { format!(" ({})", aside.join(", ")) };
            let who = if at == 0 { format!("rank {}", step.node.1) } else { ", which".into() };
            let who = format!("{who}{aside}");
            text.push_str(&format!("{who} waits in {what}{of} for rank {}", step.waits_for));
        }
        if let (true, Some(last)) = (steps.len() > STEPS, steps.last()) {
            let rest = steps.len() - STEPS;
            text.push_str(&format!(", and so on ({rest} more) to rank {} there", last.waits_for));
        }
        let hint = if messages {
            "let them exchange, or one of them receive first"
        } else {
            "make the calls in the same order on all ranks"
        };
        let guilty = steps.iter().map(|step| CycleStep {
            communicator: name(step.node.0),
            rank: step.node.1,
            operation: label(step.open.sequence, &step.open.descriptor),
            waits_for: step.waits_for,
        });
        (Guilty::Cycle(guilty.collect()), format!("{text}: {hint}"))
    }
}
