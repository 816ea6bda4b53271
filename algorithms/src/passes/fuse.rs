//! Joins steps that would read the same value twice.
//!
//! Invariant: the result stores the same values in the same places in the same order on every mailbox; only
//! values that nobody reads any more are no longer stored, and a lane may wait for a credit earlier than
//! before. NCCL's `recvReduceSend`, `recvCopySend` and `copySend` come out of this pass.
//!
//! Three rewrites, all within one lane:
//! - A put into a mapped peer's mailbox becomes a [`Action::Copy`] (its raw bit and flags stay: a raw source is
//!   scaled on the way, so no one-source `Reduce` is needed).
//! - What arrives and is then sent on from where it was put is stored in both places by one step:
//!   `wait ready, wait credit', work -> [place, slot'], signal ready', signal credit`; the place is dropped
//!   when it is scratch that nobody reads afterwards.
//! - A local copy and a send of the same value become one step with two targets.
//!
//! Because the credit of the next hop is awaited while the arrived slot is still held, a cycle of ranks needs
//! one slot more than before (a ring: 2). The pass sees one rank only and cannot tell; the verifier does.
//! Deliberately absent: reordering of sends on one mailbox, and anything across steps it does not recognise.

use crate::Rank;
use crate::aliasing::output_of_input;
use crate::passes::scratch;
use crate::plan::{Action, CounterId, CounterRole, Extent, Operand, Plan, Position, Region, Step};

/// Fuses the steps of one rank's plan; `mapped` says whose mailboxes the processor can store to directly.
///
/// Plans that were not made by [`lower`](crate::lower()) come back unchanged wherever the pass does not
/// recognise a send, a receive or a local copy.
///
/// # Panics
///
/// When steps, lanes or operands lie outside the plan's tables; [`verify`](crate::verify()) refuses such plans.
pub fn fuse(plan: &Plan, mapped: &dyn Fn(Rank) -> bool) -> Plan {
    let mut result = Plan { steps: Vec::new(), operands: Vec::new(), ..plan.clone() };
    for (lane, fused) in plan.lanes.iter().zip(&mut result.lanes) {
        let mut groups = parse(plan, plan.lane(lane), mapped);
        join_arrivals(&mut groups);
        join_local_copies(plan, &mut groups);
        drop_dead_scratch(plan, &mut groups);
        fused.start = result.steps.len() as u32;
        for group in &groups {
            emit(group, &mut result.steps, &mut result.operands);
        }
        fused.end = result.steps.len() as u32;
    }
    // A plan that uses scratch in a way of its own (across lanes or iterations) keeps its numbers.
    let _renamed = scratch::assign(&mut result);
    result
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Wait for credits, write slots, signal ready. The mailboxes are not mapped.
    SendUnmapped,
    /// The same through a mapping.
    Send,
    /// Wait for ready, work, signal credits; perhaps sends fused in.
    Receive,
    /// Work without counters.
    Local,
    /// Nothing moves across it.
    Opaque,
}

struct Group {
    kind: Kind,
    waits: Vec<Step>,
    work: Option<Step>,
    targets: Vec<Operand>,
    sources: Vec<Operand>,
    signals: Vec<Step>,
}

impl Group {
    fn opaque(plan: &Plan, step: &Step) -> Self {
        Group { kind: Kind::Opaque, ..Group::of(plan, &[], step, &[]) }
    }

    fn of(plan: &Plan, waits: &[Step], work: &Step, signals: &[Step]) -> Self {
        Group {
            kind: Kind::Local,
            waits: waits.to_vec(),
            work: Some(*work),
            targets: plan.targets(work).to_vec(),
            sources: plan.sources(work).to_vec(),
            signals: signals.to_vec(),
        }
    }

    fn is_plain(&self, extent: Extent) -> bool {
        self.work.is_some_and(|work| work.raw == 0 && work.flags == 0 && work.extent == extent)
    }
}

fn parse(plan: &Plan, steps: &[Step], mapped: &dyn Fn(Rank) -> bool) -> Vec<Group> {
    let mut groups = Vec::new();
    let mut at = 0;
    while at < steps.len() {
        let group = match &steps[at..] {
            [wait, work, signal, ..] if kind_of(plan, wait, work, signal, mapped).is_some() => {
                let kind = kind_of(plan, wait, work, signal, mapped).unwrap_or(Kind::Opaque);
                let mut group = Group { kind, ..Group::of(plan, &[*wait], work, &[*signal]) };
                if let (Kind::Send, Some(work)) = (kind, &mut group.work) {
                    work.action = Action::Copy;
                }
                at += 3;
                group
            }
            [work, ..] if matches!(work.action, Action::Copy | Action::Reduce) && is_local(plan, work) => {
                at += 1;
                Group::of(plan, &[], work, &[])
            }
            [step, ..] => {
                at += 1;
                Group::opaque(plan, step)
            }
            [] => break,
        };
        groups.push(group);
    }
    groups
}

/// Own input, output and scratch only, and no flags but `FINISH`.
fn is_local(plan: &Plan, work: &Step) -> bool {
    let own = |operand: &Operand| match region(plan, operand) {
        Some(Region::Input(rank) | Region::Output(rank)) => rank == plan.rank,
        Some(Region::Scratch) => true,
        _ => false,
    };
    work.flags & !Step::FINISH == 0 && plan.targets(work).iter().chain(plan.sources(work)).all(own)
}

fn region(plan: &Plan, operand: &Operand) -> Option<Region> {
    plan.regions.get(usize::from(operand.region)).map(|used| used.region)
}

fn kind_of(
    plan: &Plan,
    wait: &Step,
    work: &Step,
    signal: &Step,
    mapped: &dyn Fn(Rank) -> bool,
) -> Option<Kind> {
    let me = plan.rank;
    if wait.action != Action::Wait || signal.action != Action::Signal || work.flags & !Step::FINISH != 0 {
        return None;
    }
    let counter = |step: &Step| plan.counters.get(step.counter as usize).map(|used| used.id);
    let (waited, raised) = (counter(wait)?, counter(signal)?);
    let mirrored = raised == CounterId { owner: waited.writer, writer: me, role: raised.role, ..waited };
    if waited.owner != me || !mirrored {
        return None;
    }
    let (peer, channel) = (waited.writer, waited.channel);
    let named: Vec<Region> = plan.targets(work).iter().filter_map(|operand| region(plan, operand)).collect();
    let outgoing = Region::Mailbox { owner: peer, writer: me, channel };
    let incoming = Region::Mailbox { owner: me, writer: peer, channel };
    let own_memory = |region: Region| matches!(region, Region::Scratch) || region == Region::Output(me);
    match (waited.role, raised.role, work.action) {
        (CounterRole::Credit, CounterRole::Ready, Action::Put)
            if named == [outgoing] && work.flags == 0 && work.sources == 1 =>
        {
            Some(if mapped(peer) { Kind::Send } else { Kind::SendUnmapped })
        }
        (CounterRole::Ready, CounterRole::Credit, Action::Copy | Action::Reduce)
            if named.iter().all(|&region| own_memory(region))
                && plan.sources(work).iter().filter_map(|operand| region(plan, operand)).all(|region| {
                    region == incoming || own_memory(region) || region == Region::Input(me)
                }) =>
        {
            Some(Kind::Receive)
        }
        _ => None,
    }
}

/// Receives (and local work) take the later sends of what they store along.
fn join_arrivals(groups: &mut Vec<Group>) {
    for at in 0.. {
        let Some(group) = groups.get(at) else { break };
        if !matches!(group.kind, Kind::Receive | Kind::Local) {
            continue;
        }
        let Some(extent) = group.work.map(|work| work.extent) else { continue };
        for stored in group.targets.clone() {
            let mut later = at + 1;
            while later < groups.len() {
                let sends = groups[later].kind == Kind::Send
                    && groups[later].sources == [stored]
                    && groups[later].is_plain(extent)
                    && groups[at].targets.len() < 200;
                if sends && may_move_up(&groups[at + 1..later], &groups[later]) {
                    let send = groups.remove(later);
                    absorb_send(&mut groups[at], send);
                    continue;
                }
                if groups[later].kind == Kind::Opaque || groups[later].targets.contains(&stored) {
                    break;
                }
                later += 1;
            }
        }
    }
}

/// Whether a send may be done before all of `between`: nobody else fills the same mailbox or writes its source.
fn may_move_up(between: &[Group], send: &Group) -> bool {
    let clashes = |target: &Operand| {
        send.sources.contains(target) || send.targets.iter().any(|slot| slot.region == target.region)
    };
    between.iter().all(|group| group.kind != Kind::Opaque && !group.targets.iter().any(clashes))
}

fn absorb_send(into: &mut Group, send: Group) {
    into.waits.extend(send.waits);
    into.targets.extend(send.targets);
    into.signals.splice(0..0, send.signals);
    if into.kind == Kind::Local {
        into.kind = Kind::Receive;
    }
    if let Some(work) = &mut into.work {
        work.targets = into.targets.len() as u8;
    }
}

/// A local copy joins the nearest earlier send of the same value. (The other order is `join_arrivals`' only
/// when the send reads the copy; here it reads the original.)
fn join_local_copies(plan: &Plan, groups: &mut Vec<Group>) {
    let mut at = 0;
    while at < groups.len() {
        let joined = match (groups[at].kind, groups[at].work) {
            (Kind::Local, Some(work)) if work.action == Action::Copy => {
                let same = |group: &Group| {
                    group.kind == Kind::Send
                        && group.sources == groups[at].sources
                        && group.work.is_some_and(|other| {
                            (other.raw, other.flags, other.extent) == (work.raw, work.flags, work.extent)
                        })
                };
                let earlier = (0..at).rev().find(|&earlier| same(&groups[earlier]));
                earlier.filter(|&earlier| {
                    groups[earlier + 1..at].iter().all(|group| !touches_targets(plan, group, &groups[at]))
                })
            }
            _ => None,
        };
        match joined {
            Some(earlier) => {
                let copy = groups.remove(at);
                let send = &mut groups[earlier];
                send.targets.splice(0..0, copy.targets);
                if let Some(work) = &mut send.work {
                    work.targets = send.targets.len() as u8;
                }
            }
            None => at += 1,
        }
    }
}

/// Whether `group` reads or writes what `copy` writes, or writes what it reads, in place or not.
fn touches_targets(plan: &Plan, group: &Group, copy: &Group) -> bool {
    let place = |operand: &Operand| match (region(plan, operand), operand.position) {
        (Some(Region::Input(rank)), Position::Chunk(chunk)) => {
            match output_of_input(plan.collective, plan.partition, rank, chunk) {
                Some(output) => (Some(Region::Output(rank)), Position::Chunk(output)),
                None => (Some(Region::Input(rank)), operand.position),
            }
        }
        (region, position) => (region, position),
    };
    let touches = |own: &[Operand], others: &[Operand]| {
        own.iter().any(|own| others.iter().any(|other| place(own) == place(other)))
    };
    group.kind == Kind::Opaque
        || touches(&copy.targets, &group.targets)
        || touches(&copy.targets, &group.sources)
        || touches(&copy.sources, &group.targets)
}

fn drop_dead_scratch(plan: &Plan, groups: &mut [Group]) {
    if groups.iter().any(|group| group.kind == Kind::Opaque) {
        return;
    }
    for at in 0..groups.len() {
        let (head, later) = groups.split_at_mut(at + 1);
        let group = &mut head[at];
        let dead =
            |target: &Operand| region(plan, target) == Some(Region::Scratch) && !read_later(later, target);
        if group.targets.iter().all(dead) {
            continue;
        }
        group.targets.retain(|target| !dead(target));
        if let Some(work) = &mut group.work {
            work.targets = group.targets.len() as u8;
        }
    }
}

fn read_later(later: &[Group], place: &Operand) -> bool {
    for group in later {
        if group.sources.contains(place) {
            return true;
        }
        if group.targets.contains(place) {
            return false;
        }
    }
    false
}

fn emit(group: &Group, steps: &mut Vec<Step>, operands: &mut Vec<Operand>) {
    steps.extend(&group.waits);
    if let Some(work) = group.work {
        steps.push(Step { operands: operands.len() as u32, ..work });
        operands.extend(&group.targets);
        operands.extend(&group.sources);
    }
    steps.extend(&group.signals);
}
