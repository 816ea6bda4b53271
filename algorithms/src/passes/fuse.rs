//! Joins steps that would read the same value twice.
//!
//! Invariant: the result stores the same values in the same places in the same order on every mailbox. Only values
//! that no step reads any more are no longer stored, and a lane may wait for a credit earlier than before. NCCL's
//! `recvReduceSend`, `recvCopySend` and `copySend` come out of this pass.
//!
//! Three rewrites, all within one lane:
//! - A put into a mapped peer's mailbox becomes a [`Action::Copy`] (its raw bit and flags stay: a raw source is
//!   scaled on the way, so no one-source `Reduce` is needed).
//! - A value that arrives and is then sent on from where it was put is stored in both places by one step: `wait
//!   ready, wait credit', work -> [place, slot'], signal ready', signal credit`; the place is dropped when it is
//!   scratch that no step reads afterwards.
//! - A local copy and a send of the same value become one step with two targets.
//!
//! Because a lane waits for the credit of the next hop while it still holds the arrived slot, a cycle of ranks needs
//! one slot more than before (a ring: 2). The pass sees one rank only and cannot detect a lack of slots; the verifier
//! does. A send that the lane does only after it has received (a later wave of a round) stays behind those receives.
//! Deliberately absent: reordering of sends on one mailbox, and anything across steps it does not recognise.
//!
//! Takes time and memory in proportion to the steps: candidates for a group are looked up by place and mailbox.

use std::collections::VecDeque;
use std::ops::Range;

use crate::Rank;
use crate::aliasing::output_of_input;
use crate::numbers::Numbers;
use crate::passes::scratch;
use crate::plan::{Action, CounterId, CounterRole, Extent, Lane, Operand, Plan, Position, Region, Step};

/// Fuses the steps of one rank's plan; `mapped` returns whether the processor can store directly to a rank's
/// mailboxes.
///
/// Plans that were not made by [`lower`](crate::lower()) come back unchanged wherever the pass does not
/// recognise a send, a receive or a local copy.
///
/// # Panics
///
/// When steps, lanes or operands lie outside the plan's tables; [`verify`](crate::verify()) refuses such plans.
pub fn fuse(plan: &Plan, mapped: &dyn Fn(Rank) -> bool) -> Plan {
    let mut result = Plan {
        name: plan.name.clone(),
        regions: plan.regions.clone(),
        counters: plan.counters.clone(),
        groups: plan.groups.clone(),
        lanes: plan.lanes.clone(),
        steps: Vec::with_capacity(plan.steps.len()),
        operands: Vec::with_capacity(plan.operands.len()),
        ..*plan
    };
    for (lane, fused) in plan.lanes.iter().zip(&mut result.lanes) {
        let mut fusion = Fusion { plan, groups: parse(plan, lane, mapped) };
        fusion.number_waves();
        fusion.join_arrivals();
        fusion.join_local_copies();
        let dead = fusion.dead_scratch();
        fused.start = result.steps.len() as u32;
        fusion.emit(&dead, &mut result.steps, &mut result.operands);
        fused.end = result.steps.len() as u32;
    }
    // A plan that keeps scratch across lanes or iterations keeps its numbers.
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
    /// No step moves across it.
    Opaque,
}

/// No group.
const NONE: u32 = u32::MAX;

/// The most targets of a step.
const TARGETS_MAX: u32 = Step::PLACES_MAX as u32;

/// Steps that stay together: wait, work and signal, or one step.
#[derive(Clone, Copy)]
struct StepGroup {
    kind: Kind,
    /// Whether a wait comes before the work and a signal behind it.
    whole: bool,
    /// Whether it has joined another group.
    taken: bool,
    /// The index in the plan of the step that works.
    work: u32,
    /// For a send: the first step that it may join. A rank that exchanges more messages than its mailboxes have slots
    /// does it in waves of half of the slots. If the sends of later waves went first, ranks would wait for each other
    /// to receive; so no more than one wave of a mailbox moves past the same arrival.
    behind: u32,
    /// The first and last groups that joined it, and the next that joined the same as this one.
    first: u32,
    last: u32,
    next: u32,
    /// Targets, with those of the groups that joined it.
    targets: u32,
}

fn parse(plan: &Plan, lane: &Lane, mapped: &dyn Fn(Rank) -> bool) -> Vec<StepGroup> {
    let mut groups = Vec::with_capacity((lane.end - lane.start) as usize / 3 + 1);
    let mut at = lane.start;
    while at < lane.end {
        let steps = &plan.steps[at as usize..lane.end as usize];
        let whole = match steps {
            [wait, work, signal, ..] => kind_of(plan, wait, work, signal, mapped),
            _ => None,
        };
        let work = at + u32::from(whole.is_some());
        let step = &plan.steps[work as usize];
        let alone = || match step.action {
            Action::Copy | Action::Reduce if is_local(plan, step) => Kind::Local,
            _ => Kind::Opaque,
        };
        groups.push(StepGroup {
            kind: whole.unwrap_or_else(alone),
            whole: whole.is_some(),
            taken: false,
            work,
            behind: 0,
            first: NONE,
            last: NONE,
            next: NONE,
            targets: step.targets.into(),
        });
        at += if whole.is_some() { 3 } else { 1 };
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

/// The operands, length and flags that a copy and a send share when they move the same value.
type Moved = (Operand, u32, u8, Extent);

/// One lane's groups.
struct Fusion<'a> {
    plan: &'a Plan,
    groups: Vec<StepGroup>,
}

impl Fusion<'_> {
    fn work(&self, at: u32) -> &Step {
        &self.plan.steps[self.groups[at as usize].work as usize]
    }

    fn kind(&self, at: u32) -> Kind {
        self.groups[at as usize].kind
    }

    fn all(&self) -> Range<u32> {
        0..self.groups.len() as u32
    }

    fn number_waves(&mut self) {
        let wave = (self.plan.slots as usize / 2).max(1);
        // The last wave of sends on each mailbox.
        let mut sent: Numbers<u16, VecDeque<u32>> = Numbers::default();
        for at in self.all() {
            let (Kind::Send, Some(slot)) = (self.kind(at), self.plan.targets(self.work(at)).first()) else {
                continue;
            };
            let last = sent.entry(slot.region).or_default();
            if last.len() == wave {
                self.groups[at as usize].behind = last.pop_front().map_or(0, |first| first + 1);
            }
            last.push_back(at);
        }
    }

    /// Joins later sends of a received (or locally computed) value to its group, up to the step that overwrites the
    /// value. A send does not overtake another on its mailbox.
    fn join_arrivals(&mut self) {
        let followers = Followers::new(self);
        let mut mailboxes = Mailboxes::new(self);
        for at in self.all() {
            if !matches!(self.kind(at), Kind::Receive | Kind::Local) {
                continue;
            }
            let extent = self.work(at).extent;
            for &(first, end) in followers.of(at) {
                let mut send = first;
                while send < end {
                    let work = self.work(send);
                    let joins = (work.raw, work.flags, work.extent) == (0, 0, extent)
                        && self.groups[at as usize].targets < TARGETS_MAX
                        && self.groups[send as usize].behind <= at
                        && mailboxes.is_next(send, at);
                    if joins {
                        mailboxes.remove(send);
                        self.join(send, at);
                        if self.kind(at) == Kind::Local {
                            self.groups[at as usize].kind = Kind::Receive;
                        }
                    }
                    send = followers.next[send as usize];
                }
            }
        }
    }

    fn join(&mut self, joining: u32, at: u32) {
        let targets = self.groups[joining as usize].targets;
        self.groups[joining as usize].taken = true;
        let into = &mut self.groups[at as usize];
        into.targets += targets;
        let before = std::mem::replace(&mut into.last, joining);
        match before {
            NONE => into.first = joining,
            before => self.groups[before as usize].next = joining,
        }
    }

    /// Joins a local copy to the nearest earlier send of the same value, unless a step between touches what the copy
    /// writes or writes what it reads. (`join_arrivals` handles the other order where the send reads the copy; here
    /// the send reads the original.)
    fn join_local_copies(&mut self) {
        let is_copy =
            |fusion: &Self, at| fusion.kind(at) == Kind::Local && fusion.work(at).action == Action::Copy;
        if !self.all().any(|at| is_copy(self, at)) {
            return;
        }
        let mut sends: Numbers<Moved, u32> = Numbers::default();
        let mut touched = Touched::default();
        for at in self.all().filter(|&at| !self.groups[at as usize].taken).collect::<Vec<u32>>() {
            let work = self.work(at);
            let moved =
                self.plan.sources(work).first().map(|&source| (source, work.raw, work.flags, work.extent));
            let earlier = moved.filter(|_| is_copy(self, at)).and_then(|moved| sends.get(&moved).copied());
            let (targets, sources) = (self.plan.targets(work), self.plan.sources(work));
            let fits = |&earlier: &u32| {
                self.groups[earlier as usize].targets + targets.len() as u32 <= TARGETS_MAX
                    && touched.lets_through(self.plan, targets, sources, earlier)
            };
            match earlier.filter(fits) {
                Some(earlier) => {
                    touched.add(self.plan, targets, sources, earlier);
                    self.join(at, earlier);
                }
                None => {
                    touched.add(self.plan, targets, sources, at);
                    if self.kind(at) == Kind::Opaque {
                        touched.opaque = Some(at);
                    }
                    if let (Kind::Send, Some(moved)) = (self.kind(at), moved) {
                        sends.insert(moved, at);
                    }
                }
            }
        }
    }

    /// The groups that joined this one, in the order in which they did.
    fn joined(&self, at: u32) -> impl DoubleEndedIterator<Item = u32> {
        let mut joined = Vec::new();
        let mut next = self.groups[at as usize].first;
        while next != NONE {
            joined.push(next);
            next = self.groups[next as usize].next;
        }
        joined.into_iter()
    }

    /// All targets of a group: those of local copies come before those of sends.
    fn targets(&self, at: u32) -> impl Iterator<Item = Operand> {
        let of = |at: u32| self.plan.targets(self.work(at)).iter().copied();
        let copies = self.joined(at).rev().filter(|&other| self.kind(other) == Kind::Local);
        let sends = self.joined(at).filter(|&other| self.kind(other) != Kind::Local);
        copies.flat_map(of).chain(of(at)).chain(sends.flat_map(of))
    }

    /// For each group the targets that no step reads: bit `i` is the `i`-th. A group keeps at least one.
    fn dead_scratch(&self) -> Vec<u32> {
        let mut dead = vec![0; self.groups.len()];
        if self.groups.iter().any(|group| group.kind == Kind::Opaque) {
            return dead;
        }
        let is_scratch = |operand: &Operand| region(self.plan, operand) == Some(Region::Scratch);
        let mut read_later: Numbers<Operand, bool> = Numbers::default();
        for at in self.all().rev().filter(|&at| !self.groups[at as usize].taken) {
            let unread = self.targets(at).enumerate().filter(|(_, target)| {
                is_scratch(target) && !read_later.get(target).copied().unwrap_or(false)
            });
            let bits =
                unread.fold(0u32, |bits, (index, _)| bits | 1u32.checked_shl(index as u32).unwrap_or(0));
            if bits.count_ones() < self.groups[at as usize].targets {
                dead[at as usize] = bits;
            }
            for target in self.targets(at).filter(is_scratch) {
                read_later.insert(target, false);
            }
            for source in self.plan.sources(self.work(at)).iter().filter(|source| is_scratch(source)) {
                read_later.insert(*source, true);
            }
        }
        dead
    }

    fn emit(&self, dead: &[u32], steps: &mut Vec<Step>, operands: &mut Vec<Operand>) {
        for at in self.all().filter(|&at| !self.groups[at as usize].taken) {
            let whole = |at: &u32| self.groups[*at as usize].whole;
            let step =
                |at: u32, by: i32| self.plan.steps[(self.groups[at as usize].work as i32 + by) as usize];
            let waits = std::iter::once(at).chain(self.joined(at)).filter(whole);
            steps.extend(waits.map(|at| step(at, -1)));
            let first = operands.len();
            let alive = |index: usize| dead[at as usize].checked_shr(index as u32).unwrap_or(0) & 1 == 0;
            operands
                .extend(self.targets(at).enumerate().filter(|(index, _)| alive(*index)).map(|(_, of)| of));
            let work = self.work(at);
            steps.push(Step {
                action: if self.kind(at) == Kind::Send { Action::Copy } else { work.action },
                targets: (operands.len() - first) as u8,
                operands: first as u32,
                ..*work
            });
            operands.extend(self.plan.sources(work));
            steps.extend(self.joined(at).rev().chain([at]).filter(whole).map(|at| step(at, 1)));
        }
    }
}

/// For each target of each group: the sends that read it next, up to the step that overwrites it.
struct Followers {
    /// The first target of each group.
    starts: Vec<u32>,
    /// The first such send, and the end of the list.
    sends: Vec<(u32, u32)>,
    /// For each send the next one with the same source.
    next: Vec<u32>,
}

impl Followers {
    fn new(fusion: &Fusion<'_>) -> Self {
        let mut starts = Vec::with_capacity(fusion.groups.len() + 1);
        let mut count = 0;
        for group in &fusion.groups {
            starts.push(count);
            count += group.targets;
        }
        starts.push(count);
        let mut sends = vec![(NONE, NONE); count as usize];
        let mut next = vec![NONE; fusion.groups.len()];
        // For each place, looking back: the next send that reads it and the next write.
        let mut later: Numbers<Operand, (u32, u32)> = Numbers::default();
        let mut opaque = NONE;
        for at in fusion.all().rev() {
            let (work, kind) = (fusion.work(at), fusion.kind(at));
            if kind == Kind::Opaque {
                opaque = at;
            }
            for (target, stored) in fusion.plan.targets(work).iter().zip(starts[at as usize]..) {
                let (send, write) = later.entry(*target).or_insert((NONE, NONE));
                sends[stored as usize] = (*send, opaque.min(*write));
                *write = at;
            }
            if let (Kind::Send, [source]) = (kind, fusion.plan.sources(work)) {
                let (send, _) = later.entry(*source).or_insert((NONE, NONE));
                next[at as usize] = std::mem::replace(send, at);
            }
        }
        Followers { starts, sends, next }
    }

    fn of(&self, at: u32) -> &[(u32, u32)] {
        &self.sends[self.starts[at as usize] as usize..self.starts[at as usize + 1] as usize]
    }
}

/// The sends on each mailbox that joined nothing so far, as a list both ways.
struct Mailboxes {
    before: Vec<u32>,
    behind: Vec<u32>,
}

impl Mailboxes {
    fn new(fusion: &Fusion<'_>) -> Self {
        let mut made =
            Mailboxes { before: vec![NONE; fusion.groups.len()], behind: vec![NONE; fusion.groups.len()] };
        let mut last: Numbers<u16, u32> = Numbers::default();
        for at in fusion.all().filter(|&at| matches!(fusion.kind(at), Kind::Send | Kind::SendUnmapped)) {
            let Some(slot) = fusion.plan.targets(fusion.work(at)).first() else { continue };
            if let Some(before) = last.insert(slot.region, at) {
                made.before[at as usize] = before;
                made.behind[before as usize] = at;
            }
        }
        made
    }

    /// Whether no send on the same mailbox is left between `at` and `send`.
    fn is_next(&self, send: u32, at: u32) -> bool {
        let before = self.before[send as usize];
        before == NONE || before < at
    }

    fn remove(&mut self, send: u32) {
        let (before, behind) = (self.before[send as usize], self.behind[send as usize]);
        if let Some(of) = self.before.get_mut(behind as usize) {
            *of = before;
        }
        if let Some(of) = self.behind.get_mut(before as usize) {
            *of = behind;
        }
    }
}

/// Memory as the in-place form has it.
type Spot = (Option<Region>, Position);

/// The steps of the lane that touched each place last.
#[derive(Default)]
struct Touched {
    read: Numbers<Spot, u32>,
    written: Numbers<Spot, u32>,
    opaque: Option<u32>,
}

impl Touched {
    fn add(&mut self, plan: &Plan, targets: &[Operand], sources: &[Operand], at: u32) {
        let put = |places: &mut Numbers<Spot, u32>, operand: &Operand| {
            let last = places.entry(spot(plan, operand)).or_insert(at);
            *last = at.max(*last);
        };
        targets.iter().for_each(|target| put(&mut self.written, target));
        sources.iter().for_each(|source| put(&mut self.read, source));
    }

    /// Whether a copy may move up to `earlier`.
    fn lets_through(&self, plan: &Plan, targets: &[Operand], sources: &[Operand], earlier: u32) -> bool {
        let before = |places: &Numbers<Spot, u32>, operand: &Operand| {
            places.get(&spot(plan, operand)).is_none_or(|&last| last <= earlier)
        };
        self.opaque.is_none_or(|last| last <= earlier)
            && targets.iter().all(|target| before(&self.written, target) && before(&self.read, target))
            && sources.iter().all(|source| before(&self.written, source))
    }
}

fn spot(plan: &Plan, operand: &Operand) -> Spot {
    match (region(plan, operand), operand.position) {
        (Some(Region::Input(rank)), Position::Chunk(chunk)) => {
            match output_of_input(plan.collective, plan.partition, rank, chunk) {
                Some(output) => (Some(Region::Output(rank)), Position::Chunk(output)),
                None => (Some(Region::Input(rank)), operand.position),
            }
        }
        (region, position) => (region, position),
    }
}
