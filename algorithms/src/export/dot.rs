//! Graphviz forms: a schedule as ranks and messages, a plan as lanes of steps.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::text::step_text;
use crate::{Plan, Schedule};

/// Ranks as nodes; between each two ranks one edge a channel, labelled with the rounds in which it is used.
pub fn schedule_dot(schedule: &Schedule) -> String {
    let mut edges: BTreeMap<(u32, u32, u16), Vec<usize>> = BTreeMap::new();
    for (round, transfers) in schedule.rounds.iter().enumerate() {
        for transfer in transfers.transfers.iter().filter(|transfer| transfer.from != transfer.to) {
            let rounds = edges.entry((transfer.from.0, transfer.to.0, transfer.channel.0)).or_default();
            if rounds.last() != Some(&round) {
                rounds.push(round);
            }
        }
    }
    let mut text = format!("digraph {:?} {{\n  layout=circo;\n", schedule.name);
    for rank in 0..schedule.ranks {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  r{rank};");
    }
    for ((from, to, channel), rounds) in edges {
        let _ = writeln!(text, "  r{from} -> r{to} [label=\"ch{channel}: {}\"];", spans(&rounds));
    }
    text + "}\n"
}

/// Lanes as chains of steps.
///
/// # Panics
///
/// As [`plan_text`](super::plan_text).
pub fn plan_dot(plan: &Plan) -> String {
    let mut text =
        format!("digraph \"{} {}\" {{\n  node [shape=box, fontname=monospace];\n", plan.name, plan.rank);
    for (index, lane) in plan.lanes.iter().enumerate() {
        let _ =
            writeln!(text, "  subgraph cluster_{index} {{\n    label=\"lane {index} ({:?})\";", lane.engine);
        for (step, number) in plan.lane(lane).iter().zip(lane.start..) {
            let _ = writeln!(text, "    s{number} [label={:?}];", step_text(plan, step));
            if number > lane.start {
                let _ = writeln!(text, "    s{} -> s{number};", number - 1);
            }
        }
        text += "  }\n";
    }
    text + "}\n"
}

/// `0-2, 5` for 0, 1, 2, 5.
fn spans(rounds: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &round in rounds {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == round => *last = round,
            _ => parts.push((round, round)),
        }
    }
    let shown = parts.iter().map(
        |&(first, last)| {
            if first == last { first.to_string() } else { format!("{first}-{last}") }
        },
    );
    shown.collect::<Vec<_>>().join(", ")
}
