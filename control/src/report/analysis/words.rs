//! The parts that verdicts are made of: who, where, and since when.
//!
//! Invariant: whatever comes from a peer is cut and freed of control characters before it is shown.

use std::collections::BTreeSet;
use std::time::Duration;

use super::follow::{Absent, How, Need};
use super::view::{Node, View};
use crate::proof::hex;
use crate::report::Guilty;
use crate::report::evidence::{ProcessId, Reach};
use crate::report::text::briefly;
use consort_types::Rank;
use consort_types::call::Descriptor;
use consort_types::call::Kind;
use consort_types::error::seconds;

/// How long a verdict may get by what is said besides.
const LONGEST: usize = 400;

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
pub(super) fn short(communicator: u64) -> String {
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
pub(super) fn ranks(ranks: &[Rank]) -> String {
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, briefly(ranks, 80))
}

pub(super) fn pick<'t>(count: usize, one: &'t str, many: &'t str) -> &'t str {
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

/// Whether one sentence can name two absent ranks.
pub(super) fn alike(one: &Absent<'_>, other: &Absent<'_>) -> bool {
    one.need.communicator == other.need.communicator
        && one.need.sequence == other.need.sequence
        && one.need.descriptor.kind.is_message() == other.need.descriptor.kind.is_message()
        && match (&one.how, &other.how) {
            (How::Idle, How::Idle) | (How::Unmade, How::Unmade) => true,
            (How::Left(one), How::Left(other)) => one == other,
            _ => one.node == other.node,
        }
}

/// Nothing to report.
pub(super) fn nothing_waits(view: &View<'_>) -> String {
    let all = || (0..).zip(&view.evidence.ranks);
    let silent = all().filter(|(_, witness)| witness.reach == Reach::Silent);
    let lost = all().filter(|(_, witness)| matches!(witness.reach, Reach::Lost(_)));
    let [silent, lost]: [Vec<Rank>; 2] =
        [silent.map(|(rank, _)| rank).collect(), lost.map(|(rank, _)| rank).collect()];
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
        self.subject.label()
    }

    pub(super) fn is_home(&self, communicator: u64) -> bool {
        self.view.is_home(communicator)
    }

    /// ` of communicator 9f001122`, nothing for the one that the report is about.
    pub(super) fn of(&self, communicator: u64) -> String {
        if self.is_home(communicator) {
            String::new()
        } else {
            format!(" of communicator {}", short(communicator))
        }
    }

    /// Host and process of a rank here.
    pub(super) fn place(&self, rank: Rank) -> String {
        let Some(witness) = self.view.witness(rank) else { return "nowhere".into() };
        format!("host {}, process {}", clean(&witness.host, 40), witness.pid)
    }

    /// The hosts of several ranks.
    pub(super) fn hosts(&self, of: &[Rank]) -> String {
        let hosts = of.iter().filter_map(|rank| self.view.witness(*rank)).map(|witness| &witness.host);
        let hosts: Vec<&String> = hosts.collect::<BTreeSet<_>>().into_iter().collect();
        let shown: Vec<String> = hosts.iter().take(4).map(|host| clean(host, 40)).collect();
        let rest = if hosts.len() > 4 { format!(", ... {} in all", hosts.len()) } else { String::new() };
        format!("{} {}{rest}", pick(hosts.len(), "host", "hosts"), shown.join(", "))
    }

    /// Ranks with where they run.
    pub(super) fn who(&self, of: &[Rank]) -> String {
        match of {
            [rank] => format!("rank {rank} ({})", self.place(*rank)),
            _ => format!("{} ({})", ranks(of), self.hosts(of)),
        }
    }

    /// Where a process is; of one that is no rank here one knows but its number.
    pub(super) fn process(&self, process: Option<ProcessId>) -> String {
        let Some(process) = process.filter(|process| *process != [0; 16]) else {
            return "a process that is not known".into();
        };
        match self.view.of_process(&process).first() {
            Some(rank) => self.place(*rank),
            None => match self.view.evidence.places.get(&process) {
                Some(place) => place.clone(),
                None => format!("a process of no rank here, number {}", hex(&process[..4])),
            },
        }
    }

    /// A rank anywhere, as one knows it here.
    pub(super) fn someone(&self, node: Node) -> String {
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
        let message = need.descriptor.kind.is_message();
        let inside = self.view.known(need.communicator).filter_map(|(rank, position)| {
            let open = position.open.as_ref().filter(|open| open.sequence == need.sequence)?;
            let same = if message { rank == need.waiter } else { !open.descriptor.kind.is_message() };
            same.then_some((rank, open.age))
        });
        let (ranks, ages): (Vec<Rank>, Vec<Duration>) = inside.unzip();
        (ranks, ages.into_iter().max())
    }

    /// An operation, with its communicator where that is another one.
    pub(super) fn what(&self, need: &Need) -> String {
        format!("{}{}", need.label(), self.of(need.communicator))
    }

    /// `ranks 0-2 wait in all_reduce #7 since 12.0 s`.
    pub(super) fn wait(&self, waiters: &[Rank], what: &str, since: Option<Duration>) -> String {
        let verb = pick(waiters.len(), "waits", "wait");
        format!("{} {verb} {what} since {}", ranks(waiters), seconds(since.unwrap_or(self.waited)))
    }

    /// `; ranks 0-2 wait for it since 12.0 s`, of an operation and of the one that the report is about.
    pub(super) fn waiting(&self, need: &Need, them: &str, but: &[Rank]) -> String {
        let home = self.is_home(need.communicator);
        let (mut who, since) = self.waiters(need);
        if !home {
            // By the numbers that they have here, where all have one.
            let members = who.iter().map(|rank| self.view.member((need.communicator, *rank)));
            who = members.collect::<Option<_>>().unwrap_or(who);
        }
        who.retain(|rank| !but.contains(rank));
        let mut parts = Vec::new();
        if !who.is_empty() {
            let there = if home { "" } else { " there" };
            parts.push(self.wait(&who, &format!("for {them}{there}"), since));
        }
        let subject = &self.subject;
        let same = home
            && need.sequence == subject.sequence
            && need.descriptor.kind.is_message() == subject.descriptor.kind.is_message();
        let (others, since) = self.waiters(subject);
        if !same && !others.is_empty() {
            parts.push(self.wait(&others, &format!("in {}", self.subject()), since));
        }
        if parts.is_empty() { String::new() } else { format!("; {}", parts.join(", and so ")) }
    }

    /// What else was found, shortly.
    pub(super) fn also(&self, silent: &[Rank], absent: &[&Absent<'_>], said: &[Rank]) -> Vec<String> {
        let mut more = Vec::new();
        if !silent.is_empty() {
            let verb = pick(silent.len(), "does", "do");
            more.push(format!("{} {verb} not answer", ranks(silent)));
        }
        let is_unmade = |absent: &&&Absent<'_>| matches!(absent.how, How::Unmade);
        let unmade: Vec<Rank> = absent.iter().filter(is_unmade).map(|absent| absent.node.1).collect();
        if !unmade.is_empty() {
            let have = pick(unmade.len(), "has", "have");
            more.push(format!(
                "{} {have} not made the communicator yet, which takes all ranks",
                ranks(&unmade)
            ));
        }
        for absent in absent.iter().filter(|absent| !is_unmade(absent)) {
            let rank = self.view.member(absent.node).unwrap_or(absent.node.1);
            let again = said.contains(&rank) && absent.need.communicator != self.subject.communicator;
            if !again {
                more.push(format!("rank {rank} {}", self.lack(&absent.need, 1)));
            }
        }
        // Ranks that are behind as well, but not as far.
        let Need { communicator, sequence, descriptor, .. } = self.subject;
        let mut behind = Vec::new();
        if !descriptor.kind.is_message() {
            behind = self.view.absent(communicator, sequence);
        }
        let behind = behind.into_iter().map(|(_, rank)| rank).filter(|rank| {
            let node = (communicator, *rank);
            let named = |absent: &&Absent<'_>| self.view.member(absent.node) == Some(*rank);
            let is_named = said.contains(rank) || silent.contains(rank) || absent.iter().any(named);
            !is_named && self.view.stuck(node).is_none() && self.view.abroad(node).is_none()
        });
        let behind: Vec<Rank> = behind.collect();
        if !behind.is_empty() {
            let verb = pick(behind.len(), "has", "have");
            more.push(format!("{} {verb} not entered {} either", ranks(&behind), self.subject()));
        }
        more
    }

    /// `has not entered all_reduce #7`.
    pub(super) fn lack(&self, need: &Need, count: usize) -> String {
        let have = pick(count, "has", "have");
        let (number, waiter, of) = (need.sequence, need.waiter, self.of(need.communicator));
        match need.descriptor.kind {
            Kind::Send => format!("{have} not called receive #{number}{of} from rank {waiter}"),
            Kind::Receive => format!("{have} not called send #{number}{of} to rank {waiter}"),
            _ => format!("{have} not entered {}{of}", need.label()),
        }
    }

    /// What ranks did last: all of them, if it was the same, or else the first.
    pub(super) fn last(&self, nodes: &[Node]) -> String {
        let of = |node: &Node| self.view.position(*node).and_then(|position| position.last.as_ref());
        let call = |node: &Node| of(node).map(|(number, descriptor, _)| (*number, *descriptor));
        let (Some(node), count) = (nodes.first(), nodes.len()) else { return String::new() };
        let last = of(node);
        let its = if count == 1 {
            "its last call".into()
        } else if nodes.iter().all(|other| call(other) == call(node)) {
            "their last call".into()
        } else {
            format!("the last call of rank {}", node.1)
        };
        match last {
            Some((number, descriptor, age)) => {
                let of = self.of(node.0);
                let age = seconds(*age);
                format!("{its} was {}{of} (finished {age} ago)", label(*number, descriptor))
            }
            None if count == 1 => "it has finished no call yet".into(),
            None if its == "their last call" => "they have finished no call yet".into(),
            None => format!("rank {} has finished no call yet", node.1),
        }
    }
}
