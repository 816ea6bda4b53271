//! The direct exchange of a collective, lowered to buffers that every rank can load and store.
//!
//! Invariant: a plan is *entry*, *folds*, *exit*, on one lane. In the entry a rank signals that its buffers are ready
//! ([`CounterRole::Flag`] 0) to the ranks that touch them, and waits for the ranks whose buffers it touches. In the
//! exit it signals that it no longer touches theirs (flag 1), and waits for the ranks that touch its own. No rank
//! waits between the folds. Over all ranks, every chunk of every output is written by one step, and every chunk of
//! every input is read by one step. The folds are those of the direct exchange, in its order, so the bits are the
//! same.
//!
//! In place is safe, whichever ranks work in place: memory that is both input and output of a rank is read and
//! written by the same step, at the same place in it, and a step reads an element of all its sources before it writes
//! that element.
//!
//! The work is shared by all ranks: a fold belongs to the rank that has the block. Where there is one block (of
//! all-reduce, reduce, broadcast, a message) it is cut into one piece for each rank. Absent: slots, scratch, slices,
//! and other memory than the callers'.

use std::collections::{BTreeMap, BTreeSet};

use super::{LowerOptions, Lowering};
use crate::aliasing::output_of_input;
use crate::plan::{
    Action, CounterId, CounterRole, Engine, Extent, Lane, Operand, Plan, Position, Region, Step,
};
use crate::{Channel, Chunk, Collective, Partition, Place, Rank, Schedule, lengths};

/// The flag of the entry: the writer's buffers are ready.
const ENTRY: u16 = 0;
/// The flag of the exit: the writer no longer touches the owner's buffers.
const EXIT: u16 = 1;

/// The plans of all ranks, in their order, of `collective` over buffers that all ranks can load and store; rank 0 is
/// the root. `None` when there are more ranks than places in a step ([`Step::PLACES_MAX`]) or no rank, for send
/// and receive when there are not two, and when the ranks are not in groups of the collective's size.
///
/// A reduce folds in the order of ranks, from the root; [`mapped_reduce`] starts at any rank.
pub fn mapped(collective: Collective, ranks: u32) -> Option<Vec<Plan>> {
    plans(collective, ranks, 0)
}

/// The plans of all ranks of a reduce over mapped buffers whose fold starts at (relative) rank `first` and wraps
/// around, as [`direct_reduce`](crate::builders::direct_reduce) does. `None` where [`mapped`] is, and when there is
/// no rank `first`.
pub fn mapped_reduce(ranks: u32, first: u32) -> Option<Vec<Plan>> {
    if first < ranks { plans(Collective::Reduce, ranks, first) } else { None }
}

/// The steps between entry and exit, if `plan` has the form that [`mapped`] makes: one lane that is no loop; first
/// signals and waits for flag 0 alone, then copies and folds of chunks of callers' buffers, then signals and waits
/// for flag 1 alone; and none of its steps, in place or not, touches memory that another one writes.
///
/// A process that has all ranks can run the folds of all ranks at once, in any order and in any pieces, between two
/// boundaries (a launch of a kernel after all ranks' streams and before all that follows in them) and leave out the
/// flags. It runs the same program if every plan of the set has this form and [`verify`](crate::verify()) has proved
/// the set. The reasons:
///
/// - The run in which all ranks have passed their entries before any fold begins, and all folds are complete before
///   any exit begins, is one of the runs of the set: no entry waits for a signal of an exit, as the flags differ. The
///   proof covers all runs.
/// - Nothing orders a fold of one rank before a fold of another: that would take a signal after the one and a wait
///   before the other, of the same flag. The proof says that unordered steps do not conflict. So no fold touches
///   memory that another rank's fold writes; between folds of one rank this function checks it. Their order does not
///   matter.
/// - Nor do pieces: elements of a chunk do not depend on each other, and where a step writes what it reads (in
///   place), both are the same chunk, element by element.
/// - The boundaries order more than the flags do, never less.
///
/// # Panics
///
/// When steps, lanes or operands lie outside the plan's tables; [`verify`](crate::verify()) refuses such plans.
pub fn folds(plan: &Plan) -> Option<&[Step]> {
    let [lane] = plan.lanes[..] else { return None };
    if plan.sliced || lane.engine != Engine::Processor {
        return None;
    }
    let steps = plan.lane(&lane);
    let meets = |step: &Step| matches!(step.action, Action::Signal | Action::Wait);
    let flagged = |step: &Step, flag: u16| {
        meets(step) && plan.counters[step.counter as usize].id.role == CounterRole::Flag(flag)
    };
    let entry = steps.iter().take_while(|step| flagged(step, ENTRY)).count();
    let count = steps[entry..].iter().take_while(|step| !meets(step)).count();
    let (folds, exit) = steps[entry..].split_at(count);
    let has_form = exit.iter().all(|step| flagged(step, EXIT)) && are_independent(plan, folds);
    has_form.then_some(folds)
}

/// Whether all are copies and folds between callers' buffers, and none touches memory that another one writes.
fn are_independent(plan: &Plan, folds: &[Step]) -> bool {
    let mut written = BTreeMap::new();
    for (index, step) in folds.iter().enumerate() {
        let plain = matches!(step.action, Action::Copy | Action::Reduce) && !step.has(Step::PACKET);
        let once = |target: &Operand| {
            memory(plan, target).is_some_and(|memory| written.insert(memory, index).is_none())
        };
        if !plain || !plan.targets(step).iter().all(once) {
            return false;
        }
    }
    folds.iter().enumerate().all(|(index, step)| {
        plan.sources(step).iter().all(|source| {
            memory(plan, source)
                .is_some_and(|memory| written.get(&memory).is_none_or(|&writer| writer == index))
        })
    })
}

/// The memory of an operand: a chunk of a rank's output, or of its input where in place that is other memory.
fn memory(plan: &Plan, operand: &Operand) -> Option<(Rank, bool, Chunk)> {
    let Position::Chunk(chunk) = operand.position else { return None };
    match plan.regions[usize::from(operand.region)].region {
        Region::Output(rank) => Some((rank, true, chunk)),
        Region::Input(rank) => match output_of_input(plan.collective, plan.partition, rank, chunk) {
            Some(output) => Some((rank, true, output)),
            None => Some((rank, false, chunk)),
        },
        Region::Scratch | Region::Mailbox { .. } | Region::Group { .. } => None,
    }
}

/// One step: chunks of outputs become the left fold of chunks of inputs.
struct Fold {
    targets: Vec<(u32, u32)>,
    sources: Vec<(u32, u32)>,
}

/// All ranks, from `first` on.
fn from(first: u32, ranks: u32) -> impl Iterator<Item = u32> {
    (0..ranks).map(move |hop| (first + hop) % ranks)
}

/// The folds of `rank`. Its stores begin at its own buffers and go on with its successors', so that no rank is the
/// first target of all.
fn folds_of(collective: Collective, ranks: u32, rank: u32, first: u32) -> Vec<Fold> {
    let at_all = |chunk: u32| from(rank, ranks).map(move |peer| (peer, chunk)).collect();
    let of_all = |chunk: u32| from(first, ranks).map(move |peer| (peer, chunk)).collect();
    let (targets, sources) = match collective {
        Collective::AllReduce => (at_all(rank), of_all(rank)),
        Collective::Reduce => (vec![(0, rank)], of_all(rank)),
        Collective::ReduceScatter => (vec![(rank, 0)], of_all(rank)),
        Collective::Broadcast => (at_all(rank), vec![(0, rank)]),
        Collective::AllGather => (at_all(rank), vec![(rank, 0)]),
        Collective::Gather => (vec![(0, rank)], vec![(rank, 0)]),
        Collective::Scatter => (vec![(rank, 0)], vec![(0, rank)]),
        Collective::SendReceive => (vec![(1, rank)], vec![(0, rank)]),
        Collective::AllToAll => {
            let block = |to| Fold { targets: vec![(to, rank)], sources: vec![(rank, to)] };
            return from(rank, ranks).map(block).collect();
        }
        Collective::AllToAllReplicated { group } => {
            let part = |of: u32| {
                let first = of / group * group;
                let targets = from(of, ranks).filter(|to| to / group * group == first);
                let targets = targets.map(|to| (to, rank)).collect();
                Fold { targets, sources: vec![(rank, first + rank % group)] }
            };
            return from(rank, ranks).step_by(group as usize).map(part).collect();
        }
    };
    vec![Fold { targets, sources }]
}

fn plans(collective: Collective, ranks: u32, first: u32) -> Option<Vec<Plan>> {
    let pair = collective == Collective::SendReceive;
    if ranks == 0 || ranks as usize > Step::PLACES_MAX || (pair && ranks != 2) || !collective.fits(ranks) {
        return None;
    }
    let parts = match collective {
        Collective::AllReduce | Collective::Reduce | Collective::Broadcast | Collective::SendReceive => ranks,
        _ => 1,
    };
    let name = if first == 0 { "mapped".to_string() } else { format!("mapped(first={first})") };
    let partition = Partition { parts };
    let head = Schedule { name, collective, ranks, switches: 0, partition, rounds: Vec::new() };
    let folds: Vec<Vec<Fold>> = (0..ranks).map(|rank| folds_of(collective, ranks, rank, first)).collect();
    let touched: Vec<BTreeSet<u32>> = folds
        .iter()
        .map(|of| of.iter().flat_map(|fold| fold.targets.iter().chain(&fold.sources)))
        .map(|places| places.map(|&(rank, _)| rank).collect())
        .collect();
    Some((0..ranks).map(|rank| plan(&head, rank, &folds[rank as usize], &touched)).collect())
}

/// The plan of one rank; `touched` has for each rank the ranks whose buffers it touches.
fn plan(head: &Schedule, rank: u32, folds: &[Fold], touched: &[BTreeSet<u32>]) -> Plan {
    let flag = |owner: u32, writer: u32, number: u16| CounterId {
        owner: Rank(owner),
        writer: Rank(writer),
        channel: Channel(0),
        role: CounterRole::Flag(number),
    };
    let peers = || from(rank, head.ranks).skip(1);
    let mine = |peer: &u32| touched[rank as usize].contains(peer);
    let theirs = |peer: &u32| touched[*peer as usize].contains(&rank);
    let mut lowering = Lowering::new(head, Rank(rank), &LowerOptions { slots: 1 });
    lowering.plan.sliced = false;
    peers().filter(theirs).for_each(|peer| lowering.meet(Action::Signal, flag(peer, rank, ENTRY), 1));
    peers().filter(mine).for_each(|peer| lowering.meet(Action::Wait, flag(rank, peer, ENTRY), 1));
    folds.iter().for_each(|fold| add(&mut lowering, fold));
    peers().filter(mine).for_each(|peer| lowering.meet(Action::Signal, flag(peer, rank, EXIT), 1));
    peers().filter(theirs).for_each(|peer| lowering.meet(Action::Wait, flag(rank, peer, EXIT), 1));
    let end = lowering.plan.steps.len() as u32;
    lowering.plan.lanes.push(Lane { start: 0, end, engine: Engine::Processor });
    lowering.plan
}

fn add(lowering: &mut Lowering<'_>, fold: &Fold) {
    let Plan { collective, partition, .. } = lowering.plan;
    let mut operand =
        |region, chunk| Operand { region: lowering.region(region), position: Position::Chunk(Chunk(chunk)) };
    let targets: Vec<Operand> =
        fold.targets.iter().map(|&(rank, chunk)| operand(Region::Output(Rank(rank)), chunk)).collect();
    let raw = collective.reduces();
    let sources: Vec<(Operand, bool)> =
        fold.sources.iter().map(|&(rank, chunk)| (operand(Region::Input(Rank(rank)), chunk), raw)).collect();
    let action = if sources.len() == 1 { Action::Copy } else { Action::Reduce };
    let (rank, chunk) = fold.targets[0];
    let length = lengths::of(collective, partition, Rank(rank), Place::Output(Chunk(chunk)));
    lowering.act(action, length.map_or(Extent::NONE, Extent::chunk), raw, &targets, &sources);
}
