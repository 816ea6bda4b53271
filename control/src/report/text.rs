//! The report for people: a headline, the verdict, and a line per rank.
//!
//! Invariant: a report of many ranks stays readable; ranks that do the same share a line.

use std::fmt;
use std::time::Duration;

use super::{CallReport, RankReport, Report, WaitReport};
use consort_types::Rank;
use consort_types::call::Descriptor;
use consort_types::error::{list, seconds};

/// With more ranks than this, those that do the same share a line.
const LINES: usize = 32;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.communicator.get(..8).unwrap_or(&self.communicator);
        let ranks = if self.size == 1 { "rank" } else { "ranks" };
        write!(f, "hang report of communicator {name} ({} {ranks}), by rank {}", self.size, self.by)?;
        match &self.operation {
            Some(call) => {
                writeln!(f, ": {} #{}, waiting for {}", call.name, call.sequence, seconds(self.waited))?;
            }
            None => writeln!(f, ", on demand")?,
        }
        writeln!(f, "verdict: {}", self.verdict)?;
        if let Some(graph) = &self.graph {
            writeln!(f, "{graph}")?;
        }
        for wire in &self.slow {
            writeln!(f, "slow: {wire}")?;
        }
        let mut lines = vec![["rank", "where", "last finished", "now"].map(String::from)];
        lines.extend(rows(&self.ranks));
        f.write_str(&columns(&lines, [true, false, false, false]))
    }
}

/// Lines of columns: the first row is the header; `right` says which columns are numbers.
pub(crate) fn columns<const N: usize>(rows: &[[String; N]], right: [bool; N]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths).zip(right).map(|((cell, width), right)| match right {
            true => format!("{cell:>width$}"),
            false => format!("{cell:<width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Ranks as a list of at most about `longest` bytes.
pub(super) fn briefly(ranks: &[Rank], longest: usize) -> String {
    let text = list(ranks);
    match text.get(..longest).and_then(|start| start.rfind(", ")) {
        Some(end) if text.len() > longest => format!("{}, ... ({} in all)", &text[..end], ranks.len()),
        _ => text,
    }
}

fn rows(ranks: &[RankReport]) -> Vec<[String; 4]> {
    let mut groups: Vec<(Key<'_>, Vec<&RankReport>)> = Vec::new();
    for rank in ranks {
        let key = key(rank);
        match groups.iter_mut().find(|(known, _)| ranks.len() > LINES && *known == key) {
            Some((_, group)) => group.push(rank),
            None => groups.push((key, vec![rank])),
        }
    }
    groups.iter().map(|(_, group)| row(group)).collect()
}

/// What ranks on one line have in common: everything but where they are and since when.
type Key<'a> = (
    bool,
    Option<&'a str>,
    Option<&'a CallReport>,
    Option<(&'a CallReport, &'a str, &'a str)>,
    Option<(&'a str, &'a CallReport, &'a str)>,
);

fn key(rank: &RankReport) -> Key<'_> {
    (
        rank.left,
        rank.unreachable.as_deref(),
        rank.finished.as_ref().map(|(call, _)| call),
        rank.waiting.as_ref().map(|wait| (&wait.call, wait.algorithm.as_str(), wait.wants.as_str())),
        rank.elsewhere.as_ref().map(|(name, wait)| (name.as_str(), &wait.call, wait.wants.as_str())),
    )
}

fn row(group: &[&RankReport]) -> [String; 4] {
    let Some(first) = group.first() else { return Default::default() };
    let numbers: Vec<Rank> = group.iter().map(|rank| rank.rank).collect();
    let mut hosts: Vec<&str> = group.iter().map(|rank| rank.host.as_str()).collect();
    hosts.sort_unstable();
    hosts.dedup();
    let place = match (group, hosts.as_slice()) {
        ([rank], _) => format!("host {}, pid {}", rank.host, rank.process),
        (_, [host]) => format!("host {host}"),
        _ => format!("{} hosts", hosts.len()),
    };
    let oldest = group.iter().filter_map(|rank| rank.finished.as_ref()).map(|(_, age)| *age).max();
    let finished = match (&first.finished, oldest) {
        (Some((call, _)), Some(age)) => format!("{} #{} {} ago", call.name, call.sequence, seconds(age)),
        _ => "-".into(),
    };
    [briefly(&numbers, 60), place, finished, now(group, first)]
}

fn now(group: &[&RankReport], first: &RankReport) -> String {
    if let Some(reason) = &first.unreachable {
        return format!("unreachable: {reason}");
    }
    if first.left {
        return "closed the communicator".into();
    }
    if let Some(waiting) = &first.waiting {
        let waits: Vec<&WaitReport> = group.iter().filter_map(|rank| rank.waiting.as_ref()).collect();
        return doing(waiting, "", &waits);
    }
    if let Some((name, waiting)) = &first.elsewhere {
        let waits = group.iter().filter_map(|rank| rank.elsewhere.as_ref());
        let waits: Vec<&WaitReport> = waits.map(|(_, wait)| wait).collect();
        let short = name.get(..8).unwrap_or(name);
        let there = doing(waiting, &format!(" on communicator {short}"), &waits);
        return format!("not in a call here; in {there}");
    }
    "not in a call".into()
}

/// What a rank does in an operation; `waits` are those of all ranks on its line.
fn doing(wait: &WaitReport, whose: &str, waits: &[&WaitReport]) -> String {
    let mut text = called(&wait.call);
    text.push_str(whose);
    let one = waits.len() == 1;
    let steps = !wait.step.is_empty() && waits.iter().all(|other| other.step == wait.step);
    for part in [wait.algorithm.as_str(), if steps { wait.step.as_str() } else { "" }] {
        if !part.is_empty() {
            text.push_str(&format!(", {part}"));
        }
    }
    let longest = |of: fn(&WaitReport) -> Duration| waits.iter().map(|wait| of(wait)).max();
    let up_to = if one { "" } else { "up to " };
    let mut peers: Vec<Rank> = waits.iter().filter_map(|wait| wait.peer).collect();
    peers.sort_unstable();
    peers.dedup();
    let age = seconds(longest(|wait| wait.stuck).unwrap_or_default());
    match peers.as_slice() {
        [] => {
            let age = seconds(longest(|wait| wait.entered).unwrap_or_default());
            text.push_str(&format!(": moving, {up_to}{age} in it"));
        }
        [peer] => text.push_str(&format!(": {up_to}{age} waiting for {} rank {peer}", wait.wants)),
        _ if peers.len() <= 8 => {
            text.push_str(&format!(": {up_to}{age} waiting for {} ranks {}", wait.wants, list(&peers)));
        }
        _ => text.push_str(&format!(": {up_to}{age} waiting for {} {} ranks", wait.wants, peers.len())),
    }
    text
}

/// `all_reduce #7 of 1024 float (sum)`.
fn called(call: &CallReport) -> String {
    format!("{} #{}{}", call.name, call.sequence, call.arguments())
}

impl CallReport {
    /// An operation as its rank called it.
    pub(crate) fn new(sequence: u64, descriptor: &Descriptor) -> Self {
        CallReport {
            sequence,
            name: descriptor.kind.name().into(),
            count: descriptor.count,
            data_type: descriptor.data_type.name().into(),
            op: descriptor.op.map(|op| op.name().into()),
            root: descriptor.kind.is_rooted().then_some(descriptor.root),
        }
    }

    /// What stands behind the name: ` of 1024 float (sum)`; nothing for a barrier.
    pub fn arguments(&self) -> String {
        if self.name == "barrier" {
            return String::new();
        }
        let mut text = format!(" of {} {}", self.count, self.data_type);
        if let Some(op) = &self.op {
            text.push_str(&format!(" ({op})"));
        }
        if let Some(root) = self.root {
            let word = match self.name.as_str() {
                "send" => "to",
                "receive" => "from",
                _ => "root",
            };
            text.push_str(&format!(" {word} {root}"));
        }
        text
    }
}
