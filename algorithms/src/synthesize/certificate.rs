//! Certificates: a schedule with its machine, its rate and its bound, as a text that a program without any code of
//! this library can check.
//!
//! The lines, in this order; numbers are decimal, words are separated by blanks:
//!
//! | line | says |
//! |---|---|
//! | `consort-certificate 1` | the version |
//! | `machine NAME` | the machine's name |
//! | `relays yes\|no` | whether routes may pass ranks |
//! | `node N rank NAME [inject B] [eject B]`, `node N port NAME`, `node N switch NAME [aggregates]` | the nodes, ranks first; limits in bytes a second |
//! | `link N FROM TO B` | the directed links between nodes, in bytes a second |
//! | `collective NAME`, `ranks N`, `root R`, `parts P`, `schedule NAME` | what the schedule does; each block is cut into `P` chunks |
//! | `route FROM TO LINK…` | the links that chunks take, for each pair that sends; above the ranks are numbers of the switches that aggregate, in their order |
//! | `round N` | the transfers that follow read what was there before it |
//! | `move FROM TO CHANNEL SOURCE TARGET [fold PLACE arriving-first\|own-first]` | a transfer; places are `i`, `o` or `s` (input, output, scratch) with a chunk's number |
//! | `rate N D`, `bound N D` | what the schedule reaches and what none exceeds: `N / D` bytes of the vector a second |
//! | `argument NAME` | why none exceeds it: [`Argument`](crate::bounds::Argument) |
//! | `sends NODE… [begins:R…] [ends:R…]` | of a cut: the set that sends. Of a rank, `begins` is where its links begin, beyond its limit of injection, and `ends` where they end |
//! | `leaves …`, `enters …` | of a partition: a set for each part, and whether what leaves the sets is counted or what enters |
//! | `length link\|inject\|eject\|through N L` | of distances: lengths above 0, `through` of what passes a rank that relays |
//! | `share N D` | the rate through the bound |
//! | `end` | nothing was lost |
//!
//! Invariant: a text has all that its claims follow from. Absent: latencies, and the verifier's proof of plans; both
//! are about more than rates.

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt::{self, Write};

use super::rate;
use crate::bounds::{Bound, BoundError, Options, Part, Ratio, Side, Witness, bound};
use crate::simulate::SimulateError;
use crate::topology::{NodeId, NodeKind, Routes, Topology};
use crate::{Collective, Place, Rank, Schedule};

/// Why a schedule has no certificate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CertificateError {
    /// No bound is known.
    Bound(BoundError),
    /// The machine does not carry the schedule.
    Machine(SimulateError),
    /// The schedule is of another number of ranks.
    Ranks {
        /// Of the schedule.
        schedule: u32,
        /// Of the machine.
        machine: u32,
    },
    /// Nothing limits the rate, or it does not fit into numbers.
    NoRate,
}

impl fmt::Display for CertificateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CertificateError::Bound(error) => error.fmt(f),
            CertificateError::Machine(error) => error.fmt(f),
            CertificateError::Ranks { schedule, machine } => {
                write!(
                    f,
                    "the schedule is of {schedule} ranks, the machine of {machine}: a bound is of all of them"
                )
            }
            CertificateError::NoRate => {
                f.write_str("nothing limits the schedule, so there is no rate to certify")
            }
        }
    }
}

impl Error for CertificateError {}

impl From<SimulateError> for CertificateError {
    fn from(error: SimulateError) -> Self {
        CertificateError::Machine(error)
    }
}

/// The certificate of `schedule` on `topology`: rank `i` is the topology's rank `i`, rank 0 the root.
///
/// # Errors
///
/// [`CertificateError`] when the machine is not that of the schedule, or no bound of the collective is known.
pub fn certificate(schedule: &Schedule, topology: &Topology) -> Result<String, CertificateError> {
    let is_rooted = matches!(schedule.collective, Collective::Broadcast | Collective::Reduce);
    let options = Options { root: is_rooted.then_some(Rank(0)), in_network: schedule.switches > 0 };
    let bound = bound(topology, schedule.collective, &options).map_err(CertificateError::Bound)?;
    let (ranks, machine) = (schedule.ranks, topology.ranks());
    if ranks != machine {
        return Err(CertificateError::Ranks { schedule: ranks, machine });
    }
    let rate = rate(schedule, topology)?.ok_or(CertificateError::NoRate)?;
    let share =
        bound.rate.inverse().and_then(|time| rate.checked_mul(time)).ok_or(CertificateError::NoRate)?;
    let mut text = String::from("consort-certificate 1\n");
    // Writing to a String cannot fail.
    let _ = of_machine(&mut text, topology);
    let _ = of_schedule(&mut text, schedule);
    let _ = of_routes(&mut text, schedule, topology);
    let _ = of_rounds(&mut text, schedule);
    let _ = of_claims(&mut text, rate, &bound, share);
    Ok(text)
}

/// A name as one word.
fn word(name: &str) -> String {
    let name: String = name.split_whitespace().collect::<Vec<&str>>().join("_");
    if name.is_empty() { "-".into() } else { name }
}

fn of_machine(text: &mut String, topology: &Topology) -> fmt::Result {
    writeln!(text, "machine {}", word(&topology.name))?;
    writeln!(text, "relays {}", if topology.relay { "yes" } else { "no" })?;
    for (number, node) in topology.nodes().iter().enumerate() {
        let name = word(&node.name);
        match node.kind {
            NodeKind::Rank { inject_bytes_s, eject_bytes_s, .. } => {
                write!(text, "node {number} rank {name}")?;
                for (limit, word) in [(inject_bytes_s, "inject"), (eject_bytes_s, "eject")] {
                    if let Some(limit) = limit {
                        write!(text, " {word} {limit}")?;
                    }
                }
                writeln!(text)?;
            }
            NodeKind::Port => writeln!(text, "node {number} port {name}")?,
            NodeKind::Switch { aggregates: false } => writeln!(text, "node {number} switch {name}")?,
            NodeKind::Switch { aggregates: true } => {
                writeln!(text, "node {number} switch {name} aggregates")?
            }
        }
    }
    for (number, link) in topology.links().iter().enumerate() {
        writeln!(text, "link {number} {} {} {}", link.from.0, link.to.0, link.bandwidth_bytes_s)?;
    }
    Ok(())
}

fn of_schedule(text: &mut String, schedule: &Schedule) -> fmt::Result {
    let Schedule { name, collective, ranks, partition, .. } = schedule;
    writeln!(text, "collective {collective}\nranks {ranks}\nroot 0\nparts {}", partition.parts)?;
    writeln!(text, "schedule {}", word(name))
}

/// The routes exist: the rate was counted on them.
fn of_routes(text: &mut String, schedule: &Schedule, topology: &Topology) -> fmt::Result {
    let aggregators: Vec<NodeId> = topology.aggregators().collect();
    let node = |end: Rank| match end.0.checked_sub(schedule.ranks) {
        None => NodeId::from(end),
        Some(switch) => aggregators[switch as usize],
    };
    let transfers = schedule.rounds.iter().flat_map(|round| &round.transfers);
    let pairs: BTreeSet<(Rank, Rank)> =
        transfers.filter(|of| of.from != of.to).map(|of| (of.from, of.to)).collect();
    let pairs: Vec<(Rank, Rank)> = pairs.into_iter().collect();
    let mut routes = Routes::new(topology);
    for of_rank in pairs.chunk_by(|one, other| one.0 == other.0) {
        let from = of_rank[0].0;
        let targets: Vec<NodeId> = of_rank.iter().map(|(_, to)| node(*to)).collect();
        for ((_, to), route) in of_rank.iter().zip(routes.from(node(from), &targets)) {
            write!(text, "route {} {}", from.0, to.0)?;
            for link in route.into_iter().flatten() {
                write!(text, " {}", link.0)?;
            }
            writeln!(text)?;
        }
    }
    Ok(())
}

fn of_rounds(text: &mut String, schedule: &Schedule) -> fmt::Result {
    let place = |place: Place| match place {
        Place::Input(chunk) => format!("i{}", chunk.0),
        Place::Output(chunk) => format!("o{}", chunk.0),
        Place::Scratch(chunk) => format!("s{}", chunk.0),
    };
    for (number, round) in schedule.rounds.iter().enumerate() {
        writeln!(text, "round {number}")?;
        for of in &round.transfers {
            write!(text, "move {} {} {}", of.from.0, of.to.0, of.channel.0)?;
            write!(text, " {} {}", place(of.source), place(of.target))?;
            if let Some(fold) = of.fold {
                let order = if of.own_first { "own-first" } else { "arriving-first" };
                write!(text, " fold {} {order}", place(fold))?;
            }
            writeln!(text)?;
        }
    }
    Ok(())
}

fn of_claims(text: &mut String, rate: Ratio, bound: &Bound, share: Ratio) -> fmt::Result {
    let fraction = |name: &str, of: Ratio| format!("{name} {} {}\n", of.numerator(), of.denominator());
    *text += &fraction("rate", rate);
    *text += &fraction("bound", bound.rate);
    writeln!(text, "argument {}", bound.argument)?;
    match &bound.cut.witness {
        Witness::Cut(side) => of_side(text, "sends", side)?,
        Witness::Parts { sides, enter } => {
            let first = if *enter { "enters" } else { "leaves" };
            sides.iter().try_for_each(|side| of_side(text, first, side))?;
        }
        Witness::Lengths(lengths) => {
            for (part, length) in lengths {
                let (kind, number) = match part {
                    Part::Link(link) => ("link", link.0),
                    Part::Inject(rank) => ("inject", rank.0),
                    Part::Eject(rank) => ("eject", rank.0),
                    Part::Through(rank) => ("through", rank.0),
                };
                writeln!(text, "length {kind} {number} {length}")?;
            }
        }
    }
    *text += &fraction("share", share);
    writeln!(text, "end")
}

fn of_side(text: &mut String, first: &str, side: &Side) -> fmt::Result {
    *text += first;
    side.nodes.iter().try_for_each(|node| write!(text, " {}", node.0))?;
    side.begins.iter().try_for_each(|rank| write!(text, " begins:{}", rank.0))?;
    side.ends.iter().try_for_each(|rank| write!(text, " ends:{}", rank.0))?;
    writeln!(text)
}
