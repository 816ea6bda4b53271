//! The verdict as a sentence.
//!
//! Invariant: whatever comes from a peer is cut and freed of control characters before it is shown.

use std::collections::BTreeSet;
use std::time::Duration;

use super::follow::{Absent, Broken, How, Need, Step};
use super::view::{Node, View, is_message};
use crate::Rank;
use crate::call::Kind;
use crate::error::{list, seconds};
use crate::recorder::Descriptor;
use crate::report::evidence::{ProcessId, Reach};
use crate::report::{CycleStep, Guilty};

/// How long a verdict may get by what is said besides.
const LONGEST: usize = 400;
/// How many steps of a cycle are told.
const STEPS: usize = 4;

/// What every sentence needs to know.
pub(super) struct Words<'v, 'a> {
    pub(super) view: &'v View<'a>,
    /// The operation that the report is about.
    pub(super) subject: Need,
    pub(super) waited: Duration,
}

/// A communicator's name.
pub(super) fn name(communicator: u64) -> String {
    format!("{communicator:016x}")
}

/// The same in a sentence.
fn short(communicator: u64) -> String {
    format!("{:08x}", communicator >> 32)
}

/// `all_reduce #7`.
pub(super) fn label(sequence: u64, descriptor: &Descriptor) -> String {
    format!("{} #{sequence}", descriptor.kind.name())
}

/// A text of a peer, without control characters and not too long.
pub(super) fn clean(text: &str, longest: usize) -> String {
    let mut clean: String =
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(longest).collect();
    if text.chars().nth(longest).is_some() {
        clean.push_str("...");
    }
    clean
}

/// `rank 3` or `ranks 0-2, 5`.
fn ranks(ranks: &[Rank]) -> String {
    let text = list(ranks);
    let plural = if ranks.len() == 1 { "" } else { "s" };
    match text.get(..80).and_then(|start| start.rfind(", ")) {
        Some(end) if text.len() > 80 => {
            format!("ranks {}, ... ({} in all)", &text[..end], ranks.len())
        }
        _ => format!("rank{plural} {text}"),
    }
}

fn pick<'t>(count: usize, one: &'t str, many: &'t str) -> &'t str {
    if count == 1 { one } else { many }
}

/// The sentence with as many others behind it as there is room for.
pub(super) fn join(mut sentence: String, more: Vec<String>) -> String {
    for more in more {
        if sentence.len() + more.len() + 2 <= LONGEST {
            sentence = format!("{sentence}; {more}");
        }
    }
    sentence
}

/// Whether two absent ranks can be told in one sentence.
pub(super) fn alike(one: &Absent<'_>, other: &Absent<'_>) -> bool {
    one.need.communicator == other.need.communicator
        && one.need.sequence == other.need.sequence
        && is_message(&one.need.descriptor) == is_message(&other.need.descriptor)
        && match (&one.how, &other.how) {
            (How::Idle, How::Idle) | (How::Unmade, How::Unmade) => true,
            (How::Left(one), How::Left(other)) => one == other,
            _ => one.node == other.node,
        }
}

/// Nothing to report.
pub(super) fn nothing_waits(view: &View<'_>) -> String {
    let mut silent = Vec::new();
    let mut lost = Vec::new();
    for (rank, witness) in (0..).zip(&view.evidence.ranks) {
        match witness.reach {
            Reach::Silent => silent.push(rank),
            Reach::Lost(_) => lost.push(rank),
            _ => {}
        }
    }
    let mut more = Vec::new();
    if !lost.is_empty() {
        more.push(format!("{} {} lost", ranks(&lost), pick(lost.len(), "was", "were")));
    }
    if !silent.is_empty() {
        more.push(format!("{} did not answer", ranks(&silent)));
    }
    join("no operation is waiting".into(), more)
}

impl Words<'_, '_> {
    pub(super) fn subject(&self) -> String {
        label(self.subject.sequence, &self.subject.descriptor)
    }

    fn is_home(&self, communicator: u64) -> bool {
        self.view.is_home(communicator)
    }

    /// ` of communicator 9f001122`, nothing for the one that the report is about.
    fn of(&self, communicator: u64) -> String {
        if self.is_home(communicator) {
            String::new()
        } else {
            format!(" of communicator {}", short(communicator))
        }
    }

    /// Host and process of a rank here.
    fn place(&self, rank: Rank) -> String {
        let Some(witness) = self.view.witness(rank) else { return "nowhere".into() };
        format!("host {}, process {}", clean(&witness.host, 40), witness.pid)
    }

    /// The hosts of several ranks.
    fn hosts(&self, of: &[Rank]) -> String {
        let hosts = of.iter().filter_map(|rank| self.view.witness(*rank)).map(|witness| &witness.host);
        let hosts: Vec<&String> = hosts.collect::<BTreeSet<_>>().into_iter().collect();
        let shown: Vec<String> = hosts.iter().take(4).map(|host| clean(host, 40)).collect();
        let rest = if hosts.len() > 4 { format!(", ... {} in all", hosts.len()) } else { String::new() };
        format!("{} {}{rest}", pick(hosts.len(), "host", "hosts"), shown.join(", "))
    }

    /// Ranks with where they run.
    fn who(&self, of: &[Rank]) -> String {
        match of {
            [rank] => format!("rank {rank} ({})", self.place(*rank)),
            _ => format!("{} ({})", ranks(of), self.hosts(of)),
        }
    }

    /// Where a process is; of one that is no rank here one knows but its number.
    fn process(&self, process: Option<ProcessId>) -> String {
        let Some(process) = process.filter(|process| *process != [0; 16]) else {
            return "a process that is not known".into();
        };
        match self.view.of_process(&process).first() {
            Some(rank) => self.place(*rank),
            None => {
                let bytes: String = process.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
                format!("a process of no rank here, number {bytes}")
            }
        }
    }

    /// A rank anywhere, as one knows it here.
    fn someone(&self, node: Node) -> String {
        match self.view.member(node) {
            Some(rank) if self.is_home(node.0) => self.who(&[rank]),
            Some(rank) => format!("rank {rank} ({}; rank {} there)", self.place(rank), node.1),
            None => {
                let process = self.process(self.view.process(node));
                format!("rank {}{} ({process})", node.1, self.of(node.0))
            }
        }
    }

    /// The verdict on a rank that may be of another communicator.
    pub(super) fn elsewhere(&self, node: Node, process: Option<ProcessId>) -> Guilty {
        match self.view.member(node) {
            Some(rank) => Guilty::Ranks(vec![rank]),
            None => Guilty::Elsewhere {
                place: self.process(process.or_else(|| self.view.process(node))),
                communicator: name(node.0),
                rank: node.1,
            },
        }
    }

    /// Who is in an operation, and for how long at most.
    pub(super) fn waiters(&self, need: &Need) -> (Vec<Rank>, Option<Duration>) {
        let message = is_message(&need.descriptor);
        let inside = self.view.known(need.communicator).filter_map(|(rank, position)| {
            let open = position.open.as_ref().filter(|open| open.sequence == need.sequence)?;
            let same = if message { rank == need.waiter } else { !is_message(&open.descriptor) };
            same.then_some((rank, open.age))
        });
        let (ranks, ages): (Vec<Rank>, Vec<Duration>) = inside.unzip();
        (ranks, ages.into_iter().max())
    }

    /// `ranks 0-2 wait for it since 12.0 s`, of an operation and of the one that the report is about.
    fn waiting(&self, need: &Need, them: &str) -> String {
        let home = self.is_home(need.communicator);
        let (who, since) = self.waiters(need);
        let mut parts = Vec::new();
        if !who.is_empty() {
            let since = seconds(since.unwrap_or(self.waited));
            let there = if home { "" } else { " there" };
            parts.push(format!(
                "{} {} for {them}{there} since {since}",
                ranks(&who),
                pick(who.len(), "waits", "wait")
            ));
        }
        let subject = &self.subject;
        let same = home
            && need.sequence == subject.sequence
            && is_message(&need.descriptor) == is_message(&subject.descriptor);
        let (others, since) = self.waiters(subject);
        if !same && !others.is_empty() {
            let since = seconds(since.unwrap_or(self.waited));
            let verb = pick(others.len(), "waits", "wait");
            parts.push(format!("{} {verb} in {} since {since}", ranks(&others), self.subject()));
        }
        parts.join(", and so ")
    }

    /// What else was found, shortly.
    pub(super) fn also(&self, silent: &[Rank], absent: &[&Absent<'_>], told: &[Rank]) -> Vec<String> {
        let mut more = Vec::new();
        if !silent.is_empty() {
            let verb = pick(silent.len(), "does", "do");
            more.push(format!("{} {verb} not answer", ranks(silent)));
        }
        for absent in absent {
            let rank = self.view.member(absent.node).unwrap_or(absent.node.1);
            more.push(format!("rank {rank} {}", self.lack(&absent.need, 1)));
        }
        // Whoever is behind as well, but not as far.
        let needed = !is_message(&self.subject.descriptor);
        let behind = if needed {
            self.view.absent(self.subject.communicator, self.subject.sequence)
        } else {
            Vec::new()
        };
        let behind: Vec<Rank> = behind
            .into_iter()
            .map(|(_, rank)| rank)
            .filter(|rank| !told.contains(rank) && !silent.contains(rank))
            .filter(|rank| self.view.stuck((self.subject.communicator, *rank)).is_none())
            .filter(|rank| !absent.iter().any(|absent| self.view.member(absent.node) == Some(*rank)))
            .filter(|rank| self.view.abroad((self.subject.communicator, *rank)).is_none())
            .collect();
        if !behind.is_empty() {
            let verb = pick(behind.len(), "has", "have");
            more.push(format!("{} {verb} not entered {} either", ranks(&behind), self.subject()));
        }
        more
    }

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
            let since = seconds(since.unwrap_or(self.waited));
            let verb = pick(waiters.len(), "waits", "wait");
            format!("; {} {verb} in {} since {since}", ranks(&waiters), self.subject())
        };
        format!("{} {verb} not answer rank {by}: {why}{waits}", self.who(silent))
    }

    /// `has not entered all_reduce #7`.
    fn lack(&self, need: &Need, count: usize) -> String {
        let have = pick(count, "has", "have");
        let (number, waiter, of) = (need.sequence, need.waiter, self.of(need.communicator));
        match need.descriptor.kind {
            Kind::Send => format!("{have} not called receive #{number}{of} from rank {waiter}"),
            Kind::Receive => format!("{have} not called send #{number}{of} to rank {waiter}"),
            _ => format!("{have} not entered {}{of}", label(number, &need.descriptor)),
        }
    }

    /// What a rank did last.
    fn last(&self, node: Node, count: usize) -> String {
        let last = self.view.position(node).and_then(|position| position.last.as_ref());
        let its =
            if count == 1 { "its last call".into() } else { format!("the last call of rank {}", node.1) };
        match last {
            Some((number, descriptor, age)) => {
                let of = self.of(node.0);
                let age = seconds(*age);
                format!("{its} was {}{of} (finished {age} ago)", label(*number, descriptor))
            }
            None if count == 1 => "it has finished no call yet".into(),
            None => format!("rank {} has finished no call yet", node.1),
        }
    }

    /// Ranks that have not made a call, all in the same way.
    pub(super) fn absent(&self, absent: &[&Absent<'_>]) -> String {
        let Some(first) = absent.first() else { return "nothing is known".into() };
        let (node, need, count) = (first.node, &first.need, absent.len());
        let members: Vec<Rank> = absent.iter().filter_map(|absent| self.view.member(absent.node)).collect();
        let who = if count == 1 || members.len() < count { self.someone(node) } else { self.who(&members) };
        let lack = self.lack(need, count);
        let what = format!("{}{}", label(need.sequence, &need.descriptor), self.of(need.communicator));
        let it = pick(count, "it", "them");
        let waits = self.waiting(need, it);
        let waits = if waits.is_empty() { String::new() } else { format!("; {waits}") };
        match &first.how {
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
                let last = self.last(node, count);
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
        let what = label(need.sequence, &need.descriptor);
        let of = self.of(need.communicator);
        let waits = self.waiting(need, "the missing part");
        let waits = if waits.is_empty() { String::new() } else { format!("; {waits}") };
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
        let what = format!("{}{}", label(need.sequence, &need.descriptor), self.of(need.communicator));
        let waits = self.waiting(need, if all { "them" } else { "it" });
        let waits = if waits.is_empty() { String::new() } else { format!("; {waits}") };
        let (is, moves) = if all { ("are", "move") } else { ("is", "moves") };
        let message = is_message(&need.descriptor);
        let inside = if message { format!("at the other end of {what}") } else { format!("in {what}") };
        let verdict = format!("{who} {is} {inside} but {moves} slowly{waits}");
        let guilty = if members.is_empty() { self.elsewhere(*node, None) } else { Guilty::Ranks(members) };
        (guilty, verdict)
    }

    /// All are in it, and nothing is missing.
    pub(super) fn still(&self, need: &Need) -> (Guilty, String) {
        let what = format!("{}{}", label(need.sequence, &need.descriptor), self.of(need.communicator));
        let (who, since) = self.waiters(need);
        let since = seconds(since.unwrap_or(self.waited));
        let verdict = format!(
            "all ranks are in {what} and {} {} for each other since {since}, though nothing that was sent is known \
             to be missing: it moves too slowly for this deadline, or the library has a defect",
            ranks(&who),
            pick(who.len(), "waits", "wait"),
        );
        (Guilty::Nobody, verdict)
    }

    pub(super) fn unknown(&self, node: Node, process: &ProcessId, need: &Need) -> (Guilty, String) {
        let what = format!("{}{}", label(need.sequence, &need.descriptor), self.of(need.communicator));
        let waiter = self.someone((need.communicator, need.waiter));
        let here = self.view.of_process(process);
        let (guilty, who) = match here.as_slice() {
            [rank] if *process != [0; 16] => (Guilty::Ranks(vec![*rank]), self.who(&[*rank])),
            _ => (self.elsewhere(node, Some(*process)), self.process(Some(*process))),
        };
        let verdict = format!(
            "{} waits in {} for {waiter}, which waits in {what} for rank {} there ({who}), whose state there is not \
             known",
            "this communicator",
            self.subject(),
            node.1,
        );
        (guilty, verdict)
    }

    pub(super) fn cycle(&self, steps: &[Step<'_>]) -> (Guilty, String) {
        let one = steps.iter().all(|step| steps.first().is_some_and(|first| first.node.0 == step.node.0));
        let messages = steps.iter().all(|step| is_message(&step.open.descriptor));
        let mut text = String::from("deadlock: ");
        for (at, step) in steps.iter().enumerate().take(STEPS) {
            let what = label(step.open.sequence, &step.open.descriptor);
            let of = if one { String::new() } else { format!(" of communicator {}", short(step.node.0)) };
            let before = at.checked_sub(1).map(|before| &steps[before]);
            let same = before.is_some_and(|before| before.waits_for == step.node.1);
            let who = match (at, same) {
                (0, _) => format!("rank {}", step.node.1),
                (_, true) => ", which".into(),
                (_, false) => format!(", which (rank {} there)", step.node.1),
            };
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
