//! Schedules and plans as JSON, for programs.
//!
//! Invariant: one JSON object; keys are the names of the fields and stand in a fixed order, a place is an object with
//! one key (`{"input": 2}`), a choice is its name in `snake_case`. One transfer or step a line, so that two files can
//! be compared line by line. Deliberately absent: a parser, and facts that follow from the steps.

use super::figures::nodes;
use crate::plan::{
    Action, CounterRole, CounterUse, Engine, Lane, Operand, Plan, Position, Region, RegionUse, Step,
};
use crate::{Place, Rank, Schedule, Transfer};

/// The schedule as one JSON object: `name`, `collective`, `ranks`, `switches` (transfers name the first of
/// them by the number `ranks`), `parts`, `channels`, and `rounds`: arrays of transfers with `from`, `to`,
/// `channel`, `source`, `target`, `fold` (`null` for a plain move) and `own_first`.
pub fn schedule_json(schedule: &Schedule) -> String {
    let rounds = schedule.rounds.iter().map(|round| lines(round.transfers.iter().map(transfer), 2));
    document(&[
        ("name", string(&schedule.name)),
        ("collective", string(schedule.collective.name())),
        ("ranks", schedule.ranks.to_string()),
        ("switches", (nodes(schedule) - schedule.ranks).to_string()),
        ("parts", schedule.partition.parts.to_string()),
        ("channels", schedule.channels().to_string()),
        ("rounds", lines(rounds, 1)),
    ])
}

/// The plan as one JSON object. Steps stand in their lanes; an operand names its region, and a signal or a
/// wait its counter, by the index in `regions` and `counters`. A step has the keys that its action uses:
/// `targets`, `sources` (with `raw` on a contribution that is still to be scaled), `length`, `counter`,
/// `value`, and `finish`, `packet`, `counted` where set.
///
/// # Panics
///
/// When the plan's tables lack an entry that its steps and lanes name; [`verify`](crate::verify()) refuses such
/// plans.
pub fn plan_json(plan: &Plan) -> String {
    let groups = plan.groups.iter().map(|group| array(group.iter().map(|rank| rank.0.to_string())));
    document(&[
        ("name", string(&plan.name)),
        ("collective", string(plan.collective.name())),
        ("ranks", plan.ranks.to_string()),
        ("rank", plan.rank.0.to_string()),
        ("parts", plan.partition.parts.to_string()),
        ("slots", plan.slots.to_string()),
        ("sliced", plan.sliced.to_string()),
        ("scratch", plan.scratch.to_string()),
        ("regions", lines(plan.regions.iter().map(region), 1)),
        ("counters", lines(plan.counters.iter().map(counter), 1)),
        ("groups", lines(groups, 1)),
        ("lanes", lines(plan.lanes.iter().map(|each| lane(plan, each)), 1)),
    ])
}

fn transfer(transfer: &Transfer) -> String {
    let Transfer { from, to, channel, source, target, fold, own_first } = *transfer;
    object(&[
        ("from", from.0.to_string()),
        ("to", to.0.to_string()),
        ("channel", channel.0.to_string()),
        ("source", place(source)),
        ("target", place(target)),
        ("fold", fold.map_or_else(|| "null".into(), place)),
        ("own_first", own_first.to_string()),
    ])
}

fn place(place: Place) -> String {
    let (name, chunk) = match place {
        Place::Input(chunk) => ("input", chunk),
        Place::Output(chunk) => ("output", chunk),
        Place::Scratch(chunk) => ("scratch", chunk),
    };
    object(&[(name, chunk.0.to_string())])
}

fn region(used: &RegionUse) -> String {
    let mut fields = match used.region {
        Region::Input(rank) => vec![("kind", string("input")), ("rank", rank.0.to_string())],
        Region::Output(rank) => vec![("kind", string("output")), ("rank", rank.0.to_string())],
        Region::Scratch => vec![("kind", string("scratch"))],
        Region::Mailbox { owner, writer, channel } => {
            let mut fields = vec![("kind", string("mailbox"))];
            fields.extend(ends(owner, writer));
            fields.push(("channel", channel.0.to_string()));
            fields
        }
        Region::Group { group, output } => {
            vec![("kind", string("group")), ("group", group.to_string()), ("output", output.to_string())]
        }
    };
    fields.push(("slots_per_iteration", used.slots_per_iteration.to_string()));
    object(&fields)
}

fn counter(used: &CounterUse) -> String {
    let mut fields = ends(used.id.owner, used.id.writer).to_vec();
    fields.push(("channel", used.id.channel.0.to_string()));
    fields.push(match used.id.role {
        CounterRole::Ready => ("role", string("ready")),
        CounterRole::Credit => ("role", string("credit")),
        CounterRole::Flag(number) => ("role", object(&[("flag", number.to_string())])),
    });
    fields.push(("per_iteration", used.per_iteration.to_string()));
    object(&fields)
}

fn ends(owner: Rank, writer: Rank) -> [(&'static str, String); 2] {
    [("owner", owner.0.to_string()), ("writer", writer.0.to_string())]
}

fn lane(plan: &Plan, lane: &Lane) -> String {
    let engine = match lane.engine {
        Engine::Processor => "processor",
        Engine::CopyEngine => "copy_engine",
        Engine::Network => "network",
    };
    let steps = lines(plan.lane(lane).iter().map(|each| step(plan, each)), 2);
    object(&[("engine", string(engine)), ("steps", steps)])
}

fn step(plan: &Plan, step: &Step) -> String {
    let action = match step.action {
        Action::Copy => "copy",
        Action::Reduce => "reduce",
        Action::Put => "put",
        Action::Get => "get",
        Action::Signal => "signal",
        Action::Wait => "wait",
    };
    let mut fields = vec![("action", string(action))];
    let counts = matches!(step.action, Action::Signal | Action::Wait);
    if !counts {
        let sources = plan.sources(step).iter().enumerate();
        fields.push(("targets", array(plan.targets(step).iter().map(|target| operand(target, false)))));
        fields.push(("sources", array(sources.map(|(at, source)| operand(source, step.raw >> at & 1 == 1)))));
        let length = match (step.extent.as_chunk(), step.extent.as_table()) {
            (Some(chunk), _) => object(&[("chunk", chunk.0.to_string())]),
            (None, Some(entry)) => object(&[("table", entry.to_string())]),
            (None, None) => "null".into(),
        };
        fields.push(("length", length));
    }
    if counts || step.has(Step::COUNTED) {
        fields.push(("counter", step.counter.to_string()));
        fields.push(("value", step.value.to_string()));
    }
    for (flag, name) in [(Step::FINISH, "finish"), (Step::PACKET, "packet"), (Step::COUNTED, "counted")] {
        if step.has(flag) {
            fields.push((name, "true".into()));
        }
    }
    object(&fields)
}

fn operand(operand: &Operand, raw: bool) -> String {
    let position = match operand.position {
        Position::Chunk(chunk) => ("chunk", chunk.0.to_string()),
        Position::Slot(slot) => ("slot", slot.to_string()),
        Position::Scratch(place) => ("scratch", place.to_string()),
        Position::Table(entry) => ("table", entry.to_string()),
    };
    let mut fields = vec![("region", operand.region.to_string()), position];
    if raw {
        fields.push(("raw", "true".into()));
    }
    object(&fields)
}

/// An object over several lines, with the final newline.
pub(crate) fn document(fields: &[(&str, String)]) -> String {
    let fields: Vec<String> =
        fields.iter().map(|(name, value)| format!("  {}: {value}", string(name))).collect();
    format!("{{\n{}\n}}\n", fields.join(",\n"))
}

/// An object on one line, unless a value has several.
pub(crate) fn object(fields: &[(&str, String)]) -> String {
    let fields: Vec<String> =
        fields.iter().map(|(name, value)| format!("{}: {value}", string(name))).collect();
    format!("{{{}}}", fields.join(", "))
}

fn array(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(", "))
}

/// An array with one item a line, `depth` levels below the document.
pub(crate) fn lines(items: impl Iterator<Item = String>, depth: usize) -> String {
    let edge = format!("\n{}", "  ".repeat(depth));
    let items: Vec<String> = items.map(|item| format!("{edge}  {item}")).collect();
    if items.is_empty() { "[]".into() } else { format!("[{}{edge}]", items.join(",")) }
}

pub(crate) fn string(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\u{0}'..='\u{1f}' => quoted += &format!("\\u{:04x}", u32::from(c)),
            _ => quoted.push(c),
        }
    }
    quoted + "\""
}
