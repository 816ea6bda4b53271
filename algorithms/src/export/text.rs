//! One line a transfer, one line a step.

use std::fmt::{self, Display};

use crate::plan::{Action, Engine, Operand, Plan, Position, Region, Step};
use crate::{Schedule, Transfer};

/// The schedule, round by round.
pub fn schedule_text(schedule: &Schedule) -> String {
    let Schedule { name, collective, ranks, switches, partition, rounds } = schedule;
    let through = if *switches > 0 { format!(" and {switches} switches") } else { String::new() };
    let mut lines = vec![format!(
        "schedule {name}: {collective} over {ranks} ranks{through}, {} parts, {} rounds, {} messages",
        partition.parts,
        rounds.len(),
        schedule.messages()
    )];
    for (index, round) in rounds.iter().enumerate() {
        lines.push(format!("round {index}"));
        lines.extend(round.transfers.iter().map(|transfer| format!("  {}", Shown(transfer))));
    }
    lines.join("\n") + "\n"
}

/// The plan, lane by lane. A `'` marks a source that is scaled for `avg` on the way.
///
/// # Panics
///
/// When the plan's tables lack an entry that its steps name; [`verify`](crate::verify()) refuses such plans.
pub fn plan_text(plan: &Plan) -> String {
    let mut lines = vec![format!(
        "plan {}: {}, rank {} of {}, {} parts, {} slots, {} scratch, {}",
        plan.name,
        plan.collective,
        plan.rank,
        plan.ranks,
        plan.partition.parts,
        plan.slots,
        plan.scratch,
        if plan.sliced { "loop over slices" } else { "runs once" }
    )];
    for (index, group) in plan.groups.iter().enumerate() {
        lines.push(format!("group {index}: {group:?}"));
    }
    for (index, lane) in plan.lanes.iter().enumerate() {
        let engine = match lane.engine {
            Engine::Processor => "processor",
            Engine::CopyEngine => "copy engine",
            Engine::Network => "network",
        };
        lines.push(format!("lane {index} ({engine})"));
        let steps = plan.lane(lane).iter().zip(lane.start..);
        lines.extend(steps.map(|(step, number)| format!("{number:4}  {}", step_text(plan, step))));
    }
    lines.join("\n") + "\n"
}

/// One step without its number.
pub(super) fn step_text(plan: &Plan, step: &Step) -> String {
    let counter = || plan.counters[step.counter as usize].id;
    match step.action {
        Action::Signal => return format!("signal  {} += {}", counter(), step.value),
        Action::Wait => return format!("wait    {} >= {}", counter(), step.value),
        _ => {}
    }
    let verb = match step.action {
        Action::Copy => "copy",
        Action::Reduce => "reduce",
        Action::Put => "put",
        _ => "get",
    };
    let targets: Vec<String> = plan.targets(step).iter().map(|operand| operand_text(plan, operand)).collect();
    let sources: Vec<String> = plan
        .sources(step)
        .iter()
        .enumerate()
        .map(|(index, operand)| {
            let raw = if step.raw >> index & 1 == 1 { "'" } else { "" };
            operand_text(plan, operand) + raw
        })
        .collect();
    let mut line = format!("{verb:7} {} <- {}", targets.join(", "), sources.join(" + "));
    if let Some(chunk) = step.extent.as_chunk() {
        line += &format!("  len {chunk}");
    }
    if let Some(entry) = step.extent.as_table() {
        line += &format!("  len table {entry}");
    }
    for (flag, name) in [(Step::FINISH, "finish"), (Step::PACKET, "packet")] {
        if step.has(flag) {
            line += &format!("  {name}");
        }
    }
    if step.has(Step::COUNTED) {
        line += &format!("  counted {} += {}", counter(), step.value);
    }
    line
}

fn operand_text(plan: &Plan, operand: &Operand) -> String {
    let own = |rank| if rank == plan.rank { String::new() } else { format!("{rank}.") };
    let name = match plan.regions[usize::from(operand.region)].region {
        Region::Input(rank) => format!("{}input", own(rank)),
        Region::Output(rank) => format!("{}output", own(rank)),
        Region::Scratch => "scratch".into(),
        Region::Mailbox { owner, writer, channel } => format!("mail[{owner} <- {writer} {channel}]"),
        Region::Group { group, output } => {
            format!("group{group}.{}", if output { "output" } else { "input" })
        }
    };
    match operand.position {
        Position::Chunk(chunk) => format!("{name} {chunk}"),
        Position::Slot(slot) => format!("{name} slot {slot}"),
        Position::Scratch(place) => format!("{name} {place}"),
        Position::Table(entry) => format!("{name} table {entry}"),
    }
}

/// One transfer without its line's indent.
pub(super) struct Shown<'a>(pub(super) &'a Transfer);

impl Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Transfer { from, to, channel, source, target, fold, own_first } = self.0;
        write!(f, "{channel} {from} -> {to}: {source} -> {target}")?;
        if let Some(fold) = fold {
            match own_first {
                false => write!(f, " = arriving + {fold}")?,
                true => write!(f, " = {fold} + arriving")?,
            }
        }
        Ok(())
    }
}
