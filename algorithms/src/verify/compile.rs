//! The structural half of the proof: tables and single steps.
//!
//! Invariant: refuses every fault of a plan that can be found without the order of steps: indices, operand counts,
//! which ranks may touch which region, the actions of an engine, which ranks raise and await which counter and by how
//! much, the number of slots that an iteration fills and empties. Never panics, for any plan.

use std::collections::HashSet;

use super::balance::{check_counters, check_mailboxes};
use super::program::{
    CellRef, Counter, LaneProgram, Mailbox, NO_MAILBOX, Op, Program, Source, may, operands_exist,
};
use super::refusal::{At, Refusal};
use crate::numbers::Numbers;
use crate::plan::{Action, CounterRole, Engine, Extent, Operand, Plan, Position, Region, Step};
use crate::{Chunk, Collective, Place, Rank, lengths};

/// Limits above which the verifier refuses instead of running for minutes.
const SLOTS_MAX: u32 = 4096;
const CHUNKS_MAX: u64 = 1 << 20;
const CELLS_MAX: u64 = 1 << 23;
const EVENTS_MAX: u64 = 1 << 27;
pub(super) const CHANGE_MAX: i64 = 1 << 24;

pub(super) fn compile(plans: &[Plan]) -> Result<Program, Refusal> {
    let first = plans.first().ok_or(Refusal::Mismatch { rank: Rank(0), what: "there is no plan" })?;
    agree(plans, first)?;
    let tables = uses_tables(plans);
    let ranks = plans.len() as u32;
    let (input_chunks, output_chunks) = if tables {
        (ranks, ranks)
    } else {
        let blocks = u64::from(ranks) * u64::from(first.partition.parts);
        if blocks > CHUNKS_MAX {
            return Err(Refusal::TooLarge { what: "chunks" });
        }
        let partition = first.partition;
        (partition.input_chunks(first.collective, ranks), partition.output_chunks(first.collective, ranks))
    };
    let mut program = Program {
        collective: first.collective,
        ranks,
        partition: first.partition,
        slots: first.slots,
        sliced: first.sliced,
        tables,
        rounds: 2,
        lanes: Vec::new(),
        counters: Vec::new(),
        mailboxes: Vec::new(),
        cells: Vec::new(),
        sources: Vec::new(),
        input_chunks,
        output_chunks,
        scratch: Vec::new(),
        cell_count: 0,
        steps: plans.iter().map(|plan| plan.steps.len()).sum(),
        counter_ids: Numbers::default(),
        mailbox_ids: Numbers::default(),
    };
    let mailboxes = plans.iter().map(|plan| declare_mailboxes(&mut program, plan));
    let mailboxes: Vec<Vec<u32>> = mailboxes.collect::<Result<_, _>>()?;
    let counters = plans.iter().map(|plan| declare_counters(&mut program, plan));
    let counters: Vec<Vec<u32>> = counters.collect::<Result<_, _>>()?;
    lay_out(&mut program, plans)?;
    for (plan, (mailboxes, counters)) in plans.iter().zip(mailboxes.iter().zip(&counters)) {
        compile_plan(&mut program, plan, &Names { mailboxes, counters })?;
    }
    check_counters(&mut program)?;
    check_mailboxes(&program)?;
    Ok(program)
}

/// A plan's own tables in the program's numbers.
struct Names<'a> {
    /// For each region its mailbox, or [`NO_MAILBOX`].
    mailboxes: &'a [u32],
    counters: &'a [u32],
}

/// All plans are those of one operation, one for each rank.
fn agree(plans: &[Plan], first: &Plan) -> Result<(), Refusal> {
    for (index, plan) in plans.iter().enumerate() {
        let rank = Rank(index as u32);
        let same = [
            (plan.rank == rank, "it is not the plan of this rank"),
            (plan.ranks as usize == plans.len(), "the number of ranks is not the number of plans"),
            (plan.collective == first.collective, "the collective"),
            (plan.partition == first.partition, "the partition"),
            (plan.slots == first.slots, "the slots"),
            (plan.sliced == first.sliced, "whether it is a loop over slices"),
        ];
        if let Some((_, what)) = same.into_iter().find(|(same, _)| !same) {
            return Err(Refusal::Mismatch { rank, what });
        }
    }
    let refuse = |what| Err(Refusal::Mismatch { rank: Rank(0), what });
    match first.collective {
        _ if first.partition.parts == 0 => refuse("a block has no pieces"),
        _ if first.slots == 0 => refuse("a mailbox has no slots"),
        _ if first.slots > SLOTS_MAX => Err(Refusal::TooLarge { what: "slots" }),
        Collective::SendReceive if plans.len() != 2 => refuse("send and receive take two ranks"),
        collective if !collective.fits(first.ranks) => refuse("the ranks are not in groups of one size"),
        _ => Ok(()),
    }
}

fn uses_tables(plans: &[Plan]) -> bool {
    plans.iter().any(|plan| {
        plan.collective == Collective::AllToAll
            && plan.operands.iter().any(|operand| matches!(operand.position, Position::Table(_)))
    })
}

/// For each region of the plan its mailbox.
fn declare_mailboxes(program: &mut Program, plan: &Plan) -> Result<Vec<u32>, Refusal> {
    let mut others = HashSet::new();
    let mut numbers = vec![NO_MAILBOX; plan.regions.len()];
    for (index, used) in plan.regions.iter().enumerate() {
        let malformed = |why| Err(Refusal::Malformed { rank: plan.rank, index: index as u32, why });
        if !matches!(used.region, Region::Mailbox { .. }) && !others.insert(used.region) {
            return malformed("a region is listed twice");
        }
        let exists = |rank: Rank| rank.0 < plan.ranks;
        match used.region {
            Region::Mailbox { owner, writer, channel } => {
                if !exists(owner) || !exists(writer) || owner == writer {
                    return malformed("a mailbox is between two ranks that exist");
                }
                if plan.rank != owner && plan.rank != writer {
                    return malformed("a mailbox is its owner's and its writer's");
                }
                let next = program.mailboxes.len() as u32;
                let id = *program.mailbox_ids.entry((owner.0, writer.0, channel.0)).or_insert(next);
                if id == next {
                    program.mailboxes.push(Mailbox {
                        owner: owner.0,
                        writer: writer.0,
                        channel,
                        per_iteration: used.slots_per_iteration,
                        credited: false,
                        base: 0,
                        listed: [false; 2],
                    });
                }
                let mailbox = &mut program.mailboxes[id as usize];
                if std::mem::replace(&mut mailbox.listed[usize::from(plan.rank == writer)], true) {
                    return malformed("a region is listed twice");
                }
                if mailbox.per_iteration != used.slots_per_iteration {
                    return malformed("owner and writer disagree about a mailbox's slots per iteration");
                }
                numbers[index] = id;
            }
            _ if used.slots_per_iteration != 0 => return malformed("only mailboxes have slots"),
            Region::Input(rank) if !exists(rank) || !plan.collective.has_input(rank) => {
                return malformed("the rank has no input");
            }
            Region::Output(rank) if !exists(rank) || !plan.collective.has_output(rank) => {
                return malformed("the rank has no output");
            }
            Region::Group { group, output } => {
                let Some(members) = plan.groups.get(usize::from(group)) else {
                    return malformed("there is no such group");
                };
                let mut sorted: Vec<u32> = members.iter().map(|rank| rank.0).collect();
                sorted.sort_unstable();
                sorted.dedup();
                let has = |rank: &Rank| match output {
                    true => plan.collective.has_output(*rank),
                    false => plan.collective.has_input(*rank),
                };
                if sorted.len() != members.len() || members.is_empty() {
                    return malformed("a group's members are different and at least one");
                }
                if !members.iter().all(|rank| exists(*rank) && has(rank)) {
                    return malformed("a member of a group has no such buffer");
                }
            }
            Region::Input(_) | Region::Output(_) | Region::Scratch => {}
        }
    }
    Ok(numbers)
}

/// For each counter of the plan its number.
fn declare_counters(program: &mut Program, plan: &Plan) -> Result<Vec<u32>, Refusal> {
    let mut numbers = Vec::with_capacity(plan.counters.len());
    for used in &plan.counters {
        let id = used.id;
        let bad = |why| Err(Refusal::BadCounter { rank: plan.rank, id, why });
        if id.owner.0 >= plan.ranks || id.writer.0 >= plan.ranks || id.owner == id.writer {
            return bad("it is between two ranks that exist");
        }
        if plan.rank != id.owner && plan.rank != id.writer {
            return bad("it is its owner's and its writer's");
        }
        let mailbox = match id.role {
            CounterRole::Ready => program.mailbox_ids.get(&(id.owner.0, id.writer.0, id.channel.0)),
            CounterRole::Credit => program.mailbox_ids.get(&(id.writer.0, id.owner.0, id.channel.0)),
            CounterRole::Flag(_) => None,
        };
        let mailbox = mailbox.copied().unwrap_or(NO_MAILBOX);
        let slots = program.mailboxes.get(mailbox as usize).map_or(0, |mailbox| mailbox.per_iteration);
        if !matches!(id.role, CounterRole::Flag(_)) && slots != used.per_iteration {
            return bad("it does not count the slots of its mailbox");
        }
        if id.role == CounterRole::Credit
            && let Some(mailbox) = program.mailboxes.get_mut(mailbox as usize)
        {
            mailbox.credited = true;
        }
        let next = program.counters.len() as u32;
        let index = *program.counter_ids.entry(id).or_insert(next);
        if index == next {
            let mailbox = if id.role == CounterRole::Credit { mailbox } else { NO_MAILBOX };
            let per_iteration = used.per_iteration;
            program.counters.push(Counter {
                id,
                per_iteration,
                counted: false,
                waiting_lanes: 0,
                mailbox,
                listed: [false; 2],
            });
        }
        let counter = &mut program.counters[index as usize];
        if std::mem::replace(&mut counter.listed[usize::from(plan.rank == id.writer)], true) {
            return bad("it is listed twice");
        }
        if counter.per_iteration != used.per_iteration {
            return bad("owner and writer disagree about its increments per iteration");
        }
        numbers.push(index);
    }
    Ok(numbers)
}

/// The number of rounds to run, and the place of every cell.
fn lay_out(program: &mut Program, plans: &[Plan]) -> Result<(), Refusal> {
    let least = program.mailboxes.iter().map(|m| m.per_iteration).filter(|&slots| slots > 0).min();
    program.rounds = least.map_or(2, |least| (2 * program.slots + 1).div_ceil(least)).max(2);
    let blocks = u64::from(program.input_chunks) + u64::from(program.output_chunks);
    let user = blocks * u64::from(program.ranks) * u64::from(program.iterations());
    let slots = program.mailboxes.len() as u64 * u64::from(program.slots);
    let scratch: u64 = plans.iter().map(|plan| u64::from(plan.scratch)).sum();
    if user + slots + scratch > CELLS_MAX {
        return Err(Refusal::TooLarge { what: "memory" });
    }
    if program.steps as u64 * u64::from(program.rounds) > EVENTS_MAX {
        return Err(Refusal::TooLarge { what: "steps" });
    }
    let mut base = user as u32;
    for mailbox in &mut program.mailboxes {
        mailbox.base = base;
        base += program.slots;
    }
    for plan in plans {
        program.scratch.push(base);
        base += plan.scratch;
    }
    program.cell_count = base;
    Ok(())
}

fn compile_plan(program: &mut Program, plan: &Plan, names: &Names<'_>) -> Result<(), Refusal> {
    let malformed = |index: usize, why| Refusal::Malformed { rank: plan.rank, index: index as u32, why };
    if plan.lanes.is_empty() {
        return Err(malformed(0, "a plan has a lane"));
    }
    if plan.scratch as usize > plan.operands.len() {
        return Err(malformed(0, "more scratch places than operands"));
    }
    let mut next = 0;
    for (index, lane) in plan.lanes.iter().enumerate() {
        if lane.start != next || lane.end < lane.start || lane.end as usize > plan.steps.len() {
            return Err(malformed(index, "lanes follow each other without gap or overlap"));
        }
        next = lane.end;
        let mut compiled = LaneProgram {
            rank: plan.rank.0,
            lane: index as u32,
            ops: Vec::with_capacity((lane.end - lane.start) as usize),
        };
        for step in lane.start..lane.end {
            let at = At { rank: plan.rank, lane: index as u32, step };
            let op = StepCompiler { program, plan, names, engine: lane.engine, at }
                .compile(&plan.steps[step as usize])
                .map_err(|why| Refusal::BadStep { at, why })?;
            compiled.ops.push(op);
        }
        program.lanes.push(compiled);
    }
    if next as usize != plan.steps.len() {
        return Err(malformed(plan.lanes.len(), "steps belong to lanes"));
    }
    Ok(())
}

struct StepCompiler<'a> {
    program: &'a mut Program,
    plan: &'a Plan,
    names: &'a Names<'a>,
    engine: Engine,
    at: At,
}

type Why = &'static str;

impl StepCompiler<'_> {
    fn compile(&mut self, step: &Step) -> Result<Op, Why> {
        if !may(self.engine, step.action) {
            return Err("the lane's engine cannot do it");
        }
        if step.flags & !(Step::FINISH | Step::PACKET | Step::COUNTED) != 0 {
            return Err("it has a flag that means nothing");
        }
        let (packet, counted) = (step.has(Step::PACKET), step.has(Step::COUNTED));
        let mut op = Op {
            action: step.action,
            finish: step.has(Step::FINISH),
            packet,
            counted,
            targets: 0..0,
            sources: 0..0,
            counter: 0,
            value: step.value.into(),
            length: 0,
            step: self.at.step,
        };
        if matches!(step.action, Action::Signal | Action::Wait) {
            if step.flags != 0 || step.targets != 0 || step.sources != 0 || step.raw != 0 {
                return Err("signals and waits have neither operands nor flags");
            }
            if step.extent != Extent::NONE {
                return Err("signals and waits have no extent");
            }
            op.counter = self.counter(step, step.action == Action::Signal)?;
            return Ok(op);
        }
        self.check_counts(step)?;
        if counted {
            op.counter = self.counter(step, true)?;
            self.program.counters[op.counter as usize].counted = true;
        } else if step.counter != 0 || step.value != 0 {
            return Err("only signals, waits and counted puts have a counter");
        }
        op.length = self.length(step)?;
        let plan = self.plan;
        let first = self.program.cells.len() as u32;
        for operand in plan.targets(step) {
            self.check_target(step, operand)?;
            self.push_cells(step, operand)?;
        }
        op.targets = first..self.program.cells.len() as u32;
        let first_source = self.program.sources.len() as u32;
        for (index, operand) in plan.sources(step).iter().enumerate() {
            self.check_source(step, operand)?;
            let first = self.program.cells.len() as u32;
            self.push_cells(step, operand)?;
            let cells = first..self.program.cells.len() as u32;
            self.program.sources.push(Source { cells, raw: step.raw >> index & 1 == 1 });
        }
        op.sources = first_source..self.program.sources.len() as u32;
        let slots = plan.targets(step).iter().chain(plan.sources(step));
        let mailbox = |operand: &Operand| matches!(self.region(operand), Ok(Region::Mailbox { .. }));
        if packet && !slots.clone().any(mailbox) {
            return Err("a packet travels through a mailbox");
        }
        Ok(op)
    }

    fn check_counts(&self, step: &Step) -> Result<(), Why> {
        if !operands_exist(self.plan, step) {
            return Err("it names operands that do not exist");
        }
        let fits = match step.action {
            Action::Copy => step.targets >= 1 && step.sources == 1,
            Action::Reduce => step.targets >= 1 && step.sources >= 1,
            _ => step.targets == 1 && step.sources == 1,
        };
        if !fits {
            return Err("it has too few or too many operands");
        }
        if step.sources > 32 || (step.sources < 32 && step.raw >> step.sources != 0) {
            return Err("at most 32 sources, and a raw bit for each that exists");
        }
        let arithmetic = step.raw != 0 || step.has(Step::FINISH);
        if arithmetic && !self.plan.collective.reduces() {
            return Err("nothing is scaled or finished unless the collective reduces");
        }
        if arithmetic && step.action == Action::Get {
            return Err("a get moves bytes as they are");
        }
        if self.engine != Engine::Processor && (arithmetic || step.has(Step::PACKET)) {
            return Err("the lane's engine can neither compute nor make packets");
        }
        if step.has(Step::COUNTED) && (step.action != Action::Put || step.has(Step::PACKET)) {
            return Err("only a plain put is counted");
        }
        if step.has(Step::PACKET) && step.action == Action::Get {
            return Err("a get is no packet");
        }
        Ok(())
    }

    /// The number of the step's counter, which the rank raises or awaits.
    fn counter(&mut self, step: &Step, raises: bool) -> Result<u32, Why> {
        let used = self.plan.counters.get(step.counter as usize).ok_or("there is no such counter")?;
        let mine = if raises { used.id.writer } else { used.id.owner };
        if mine != self.plan.rank {
            return Err("a counter is raised by its writer and awaited by its owner");
        }
        let limit = if raises { 1..=CHANGE_MAX } else { -CHANGE_MAX..=CHANGE_MAX };
        if !limit.contains(&i64::from(step.value)) {
            return Err("the value is out of range");
        }
        self.names.counters.get(step.counter as usize).copied().ok_or("there is no such counter")
    }

    fn region(&self, operand: &Operand) -> Result<Region, Why> {
        let used = self.plan.regions.get(usize::from(operand.region));
        used.map(|used| used.region).ok_or("there is no such region")
    }

    fn check_target(&self, step: &Step, operand: &Operand) -> Result<(), Why> {
        let me = self.plan.rank;
        let remote = match self.region(operand)? {
            Region::Input(_) | Region::Group { output: false, .. } => {
                return Err("inputs are never written");
            }
            Region::Mailbox { writer, .. } if writer != me => {
                return Err("only its writer fills a mailbox");
            }
            Region::Mailbox { .. } => true,
            Region::Output(rank) => rank != me,
            Region::Scratch => false,
            Region::Group { .. } if matches!(step.action, Action::Put | Action::Get) => {
                return Err("the transport does not write to groups");
            }
            Region::Group { .. } => true,
        };
        match step.action {
            Action::Put if !remote => Err("a put goes to a peer"),
            Action::Get if remote => Err("a get comes home"),
            _ => Ok(()),
        }
    }

    fn check_source(&self, step: &Step, operand: &Operand) -> Result<(), Why> {
        let me = self.plan.rank;
        let remote = match self.region(operand)? {
            Region::Mailbox { owner, .. } if owner != me => return Err("only its owner empties a mailbox"),
            Region::Mailbox { .. } | Region::Scratch => false,
            Region::Input(rank) | Region::Output(rank) => rank != me,
            Region::Group { .. } if self.engine != Engine::Processor => {
                return Err("the lane's engine cannot load from a group");
            }
            Region::Group { .. } if matches!(step.action, Action::Put | Action::Get) => {
                return Err("the transport does not read from groups");
            }
            Region::Group { .. } if !self.plan.collective.reduces() => {
                return Err("loading from a group folds, which this collective does not");
            }
            Region::Group { .. } => true,
        };
        match step.action {
            Action::Put if remote => Err("a put starts at home"),
            Action::Get if !remote => Err("a get reads from a peer"),
            _ => Ok(()),
        }
    }

    /// A number for the step's length: a piece of the partition, or a table's entry.
    fn length(&self, step: &Step) -> Result<u32, Why> {
        let Program { collective, partition, ranks, .. } = *self.program;
        if let Some(entry) = step.extent.as_table() {
            if !self.program.tables || self.program.sliced {
                return Err("only an all-to-all that is not sliced takes its lengths from a table");
            }
            let entries = u64::from(self.program.ranks) * u64::from(self.program.ranks);
            if u64::from(entry) >= entries {
                return Err("the table has an entry for each pair of ranks");
            }
            return Ok(entry);
        }
        match step.extent.as_chunk() {
            None => Err("it has no extent"),
            Some(_) if self.program.tables => Err("tables and chunks do not mix"),
            Some(piece) if piece.0 >= lengths::count(collective, partition, ranks) => {
                Err("there is no piece as long as its extent")
            }
            Some(piece) => Ok(lengths::class(collective, partition, piece)),
        }
    }

    /// Appends the cells of the operand.
    fn push_cells(&mut self, step: &Step, operand: &Operand) -> Result<(), Why> {
        let plan = self.plan;
        match (self.region(operand)?, operand.position) {
            (Region::Input(rank), position) => self.push_user(step, rank, position, false),
            (Region::Output(rank), position) => self.push_user(step, rank, position, true),
            (Region::Scratch, Position::Scratch(place)) if place < plan.scratch => {
                let base = self.program.scratch[plan.rank.index()] + place;
                self.program.cells.push(CellRef { base, stride: 0, mailbox: NO_MAILBOX, slot: 0 });
                Ok(())
            }
            (Region::Mailbox { .. }, Position::Slot(slot)) => {
                let id = self.names.mailboxes.get(usize::from(operand.region));
                let &mailbox = id.ok_or("there is no such mailbox")?;
                let Mailbox { base, per_iteration, .. } = self.program.mailboxes[mailbox as usize];
                if slot >= per_iteration {
                    return Err("the slot is not one of this iteration");
                }
                self.program.cells.push(CellRef { base, stride: 0, mailbox, slot });
                Ok(())
            }
            (Region::Group { group, output }, position) => {
                let members = plan.groups.get(usize::from(group)).ok_or("there is no such group")?;
                members.iter().try_for_each(|&rank| self.push_user(step, rank, position, output))
            }
            _ => Err("the position is not one of its region"),
        }
    }

    fn push_user(&mut self, step: &Step, rank: Rank, position: Position, output: bool) -> Result<(), Why> {
        let program = &mut *self.program;
        let chunk = match position {
            Position::Chunk(_) if program.tables => return Err("tables and chunks do not mix"),
            Position::Chunk(chunk) => {
                let chunks = if output { program.output_chunks } else { program.input_chunks };
                if chunk.0 >= chunks {
                    return Err("the buffer has no such chunk");
                }
                let (collective, partition) = (program.collective, program.partition);
                let place = if output { Place::Output(chunk) } else { Place::Input(chunk) };
                let class = |piece: Chunk| lengths::class(collective, partition, piece);
                let own = lengths::of(collective, partition, rank, place).map(class);
                if step.extent.as_chunk().map(class) != own {
                    return Err("the extent is not as long as the chunk");
                }
                chunk.0
            }
            Position::Table(entry) if program.tables => {
                if step.extent.as_table() != Some(entry) {
                    return Err("the extent is not the table entry's");
                }
                let (from, to) = (entry / program.ranks, entry % program.ranks);
                match output {
                    true if to == rank.0 && from < program.ranks => from,
                    false if from == rank.0 => to,
                    _ => return Err("the buffer has no such table entry"),
                }
            }
            _ => return Err("the position is not one of its region"),
        };
        let cell =
            if output { program.output_cell(rank.0, chunk) } else { program.input_cell(rank.0, chunk) };
        let stride = program.user_stride();
        program.cells.push(CellRef { base: cell, stride, mailbox: NO_MAILBOX, slot: 0 });
        Ok(())
    }
}
