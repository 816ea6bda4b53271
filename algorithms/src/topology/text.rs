//! A topology as lines of text, out and in.
//!
//! Invariant: `parse(topology.to_string())` is the topology; an error names the line that is not understood. Blank
//! lines and everything after `#` are skipped; a latency is at most 4 seconds. Absent: units other than nanoseconds
//! and bytes a second.

use std::error::Error;
use std::fmt;
use std::fmt::Write;
use std::str::FromStr;

use super::{Costs, Link, NodeId, NodeKind, Topology};

/// A line that is no part of a topology.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseError {
    /// The number of the line, from 1.
    pub line: usize,
    /// The fault of the line.
    pub fault: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.fault)
    }
}

impl Error for ParseError {}

/// The text form; a line a node and a link.
pub(super) fn topology_text(topology: &Topology) -> String {
    let costs = &topology.costs;
    let mut text = String::new();
    // Writing to a String cannot fail.
    if !topology.name.is_empty() {
        let _ = writeln!(text, "topology {}", topology.name);
    }
    let _ = writeln!(
        text,
        "costs send_ns={} receive_ns={} reduce_ns_per_byte={} copy_ns_per_byte={}{}",
        costs.send_ns,
        costs.receive_ns,
        costs.reduce_ns_per_byte,
        costs.copy_ns_per_byte,
        if costs.lanes > 0 { format!(" lanes={}", costs.lanes) } else { String::new() }
    );
    if topology.relay {
        text += "relay\n";
    }
    if topology.measured {
        text += "measured\n";
    }
    for node in topology.nodes() {
        let name = &node.name;
        let _ = match node.kind {
            NodeKind::Rank { in_box, inject_bytes_s, eject_bytes_s } => {
                let limit = |key: &str, limit: Option<u64>| {
                    limit.map_or(String::new(), |limit| format!(" {key}={limit}"))
                };
                let (inject, eject) =
                    (limit("inject_bytes_s", inject_bytes_s), limit("eject_bytes_s", eject_bytes_s));
                writeln!(text, "rank {name} box={in_box}{inject}{eject}")
            }
            NodeKind::Port => writeln!(text, "port {name}"),
            NodeKind::Switch { aggregates: false } => writeln!(text, "switch {name}"),
            NodeKind::Switch { aggregates: true } => writeln!(text, "aggregator {name}"),
        };
    }
    for link in topology.links() {
        let (from, to) = (&topology.nodes()[link.from.index()].name, &topology.nodes()[link.to.index()].name);
        let _ = writeln!(
            text,
            "link {from} {to} latency_ns={} bandwidth_bytes_s={}",
            link.latency_ns, link.bandwidth_bytes_s
        );
    }
    text
}

/// Reads the text form.
///
/// # Errors
///
/// The first line that is not understood, names a node that does not exist, or repeats a name.
pub fn parse(text: &str) -> Result<Topology, ParseError> {
    let mut topology = Topology::default();
    let mut names: std::collections::HashMap<String, NodeId> = std::collections::HashMap::new();
    for (line, number) in text.lines().zip(1..) {
        let words: Vec<&str> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
        if !words.is_empty() {
            read(&mut topology, &mut names, &words).map_err(|fault| ParseError { line: number, fault })?;
        }
    }
    Ok(topology)
}

fn read(
    topology: &mut Topology,
    names: &mut std::collections::HashMap<String, NodeId>,
    words: &[&str],
) -> Result<(), String> {
    let (word, rest) = (words[0], &words[1..]);
    let kind = match (word, rest) {
        ("topology", [name]) => {
            topology.name = (*name).to_owned();
            return Ok(());
        }
        ("relay", []) => {
            topology.relay = true;
            return Ok(());
        }
        ("measured", []) => {
            topology.measured = true;
            return Ok(());
        }
        ("costs", fields) => {
            let mut fields = Fields::new(fields)?;
            topology.costs = Costs {
                send_ns: fields.needed::<u32>("send_ns")?.into(),
                receive_ns: fields.needed::<u32>("receive_ns")?.into(),
                reduce_ns_per_byte: cost(&mut fields, "reduce_ns_per_byte")?,
                copy_ns_per_byte: cost(&mut fields, "copy_ns_per_byte")?,
                lanes: lanes(&mut fields)?,
            };
            return fields.end();
        }
        ("link", [from, to, fields @ ..]) => {
            let find = |name: &str| names.get(name).copied().ok_or(format!("there is no node {name:?}"));
            let mut fields = Fields::new(fields)?;
            let link = Link {
                from: find(from)?,
                to: find(to)?,
                latency_ns: fields.needed::<u32>("latency_ns")?.into(),
                bandwidth_bytes_s: fields.needed("bandwidth_bytes_s")?,
            };
            if link.from == link.to {
                return Err("a link needs two ends".into());
            }
            if link.bandwidth_bytes_s == 0 {
                return Err("bandwidth_bytes_s must be above 0".into());
            }
            topology.add_link(link);
            return fields.end();
        }
        ("rank", [_, fields @ ..]) => {
            if topology.nodes().len() > topology.ranks() as usize {
                return Err("the ranks come before the other nodes".into());
            }
            let mut fields = Fields::new(fields)?;
            let kind = NodeKind::Rank {
                in_box: fields.needed("box")?,
                inject_bytes_s: limit(&mut fields, "inject_bytes_s")?,
                eject_bytes_s: limit(&mut fields, "eject_bytes_s")?,
            };
            fields.end()?;
            kind
        }
        ("port", [_]) => NodeKind::Port,
        ("switch", [_]) => NodeKind::Switch { aggregates: false },
        ("aggregator", [_]) => NodeKind::Switch { aggregates: true },
        _ => return Err(format!("not understood: {}", words.join(" "))),
    };
    let name = rest[0].to_owned();
    if names.contains_key(&name) {
        return Err(format!("there are two nodes {name:?}"));
    }
    names.insert(name.clone(), topology.add_node(name, kind));
    Ok(())
}

fn cost(fields: &mut Fields<'_>, key: &str) -> Result<f64, String> {
    let cost: f64 = fields.needed(key)?;
    if cost.is_finite() && cost >= 0.0 { Ok(cost) } else { Err(format!("{key} must be 0 or more")) }
}

/// 0, for one processor, is not written.
fn lanes(fields: &mut Fields<'_>) -> Result<u32, String> {
    match fields.optional("lanes")? {
        Some(0) => Err("lanes must be above 0".into()),
        lanes => Ok(lanes.unwrap_or(0)),
    }
}

fn limit(fields: &mut Fields<'_>, key: &str) -> Result<Option<u64>, String> {
    match fields.optional(key)? {
        Some(0) => Err(format!("{key} must be above 0")),
        limit => Ok(limit),
    }
}

/// The `key=value` words of a line.
pub(crate) struct Fields<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Fields<'a> {
    pub(crate) fn new(words: &[&'a str]) -> Result<Self, String> {
        let split = |word: &&'a str| word.split_once('=').ok_or(format!("not key=value: {word:?}"));
        words.iter().map(split).collect::<Result<_, _>>().map(Fields)
    }

    pub(crate) fn optional<T: FromStr>(&mut self, key: &str) -> Result<Option<T>, String> {
        let Some(at) = self.0.iter().position(|field| field.0 == key) else { return Ok(None) };
        let (_, value) = self.0.remove(at);
        value.parse().map(Some).map_err(|_| format!("{key}={value:?} is no number that fits"))
    }

    fn needed<T: FromStr>(&mut self, key: &str) -> Result<T, String> {
        self.optional(key)?.ok_or(format!("{key}= is missing"))
    }

    /// The fields whose keys begin with `prefix`, without it.
    pub(crate) fn beginning_with(&mut self, prefix: &str) -> Vec<(&'a str, &'a str)> {
        let (taken, kept) = self.0.iter().partition(|(key, _)| key.starts_with(prefix));
        self.0 = kept;
        let taken: Vec<(&str, &str)> = taken;
        taken.into_iter().map(|(key, value)| (&key[prefix.len()..], value)).collect()
    }

    pub(crate) fn end(self) -> Result<(), String> {
        self.0.first().map_or(Ok(()), |(key, _)| Err(format!("{key}= is unknown or given twice")))
    }
}
