//! Execution plans of MSCCL++, as JSON.
//!
//! A plan has for each GPU some threadblocks whose operations run in order. They copy and fold between memories, also
//! those of peers, and order each other by signals over channels, by flags in packets, by barriers and semaphores. A
//! switch channel loads a chunk folded over all GPUs of a group and stores it to all of them.
//!
//! Invariant: as for [`msccl`](super::msccl). Absent: how a pipeline cuts a chunk into units, as its operations go
//! over each unit in the same order; how many times scratch is there.

mod text;

use std::collections::BTreeMap;

use super::msccl::collective_of;
use super::threads::{self, Act, Step, Wait};
use super::trace::{Buffer, Cell, Fault, Shape};
use super::{Range, Read, name_of, proved};
use crate::hardware::exchange::{Place, ReadError};
use crate::{LowerOptions, Partition};
use text::{Chunks, Gpu, Op, Plan, Slice, Text, Threadblock, flatten};

const CORRECT: &str = "correct the operation, or write the plan again with the program that made it";
/// The most parts into which groups of threadblocks cut a chunk.
const GROUP_MAX: u32 = 64;
/// The most moves of all operations.
const MOVES_MAX: usize = 1 << 20;
/// The most GPUs, so that numbers of queues do not overflow.
const GPUS_MAX: usize = 1 << 12;

/// Where an operation stands.
struct Label {
    line: u32,
    gpu: u32,
    tb: usize,
    op: usize,
    name: String,
}

impl Label {
    fn text(&self) -> String {
        format!("operation {} ({}) of threadblock {} of GPU {}", self.op, self.name, self.tb, self.gpu)
    }
}

/// Reads a plan and proves it.
///
/// # Errors
/// As [`msccl::read`](super::msccl::read).
pub fn read(text: &str, options: &LowerOptions) -> Result<Read, ReadError> {
    let text = text.trim_start_matches('\u{feff}');
    let text = Text { text, place: Place::plain(text) };
    let plan: Plan<'_> = text.parse(text.text)?;
    let gpus = plan.gpus.iter().map(|gpu| Ok((gpu.get(), text.parse(gpu.get())?)));
    let gpus = gpus.collect::<Result<Vec<(&str, Gpu<'_>)>, ReadError>>()?;
    let blocks = gpus.iter().map(|(_, gpu)| {
        let blocks = gpu.threadblocks.iter().copied();
        blocks.map(|block| text.parse(block.get())).collect::<Result<Vec<Threadblock<'_>>, _>>()
    });
    let blocks = blocks.collect::<Result<Vec<_>, _>>()?;
    let mut ops = Vec::new();
    for (gpu, blocks) in blocks.iter().enumerate() {
        for (tb, block) in blocks.iter().enumerate() {
            let mut flat = Vec::new();
            flatten(&text, &block.ops, &mut flat, 0)?;
            ops.push((gpu, tb, flat));
        }
    }
    let mut reader = Reader::new(&text, &plan, &gpus, &blocks, &ops)?;
    for (gpu, tb, ops) in &ops {
        let steps = ops.iter().enumerate().map(|(at, (part, op))| reader.step((*gpu, *tb, at), part, op));
        let steps = steps.collect::<Result<Vec<Step>, _>>()?;
        reader.threads.push(steps);
    }
    let labels = reader.labels;
    let at = |fault: Fault| {
        let reason = fault.text(|other| labels[other as usize].text());
        match fault.origin {
            Some(origin) => {
                let label = &labels[origin as usize];
                text.place.error(label.line, format!("{} {reason}", label.text()), CORRECT)
            }
            None => {
                let gpu = fault.rank.and_then(|rank| gpus.get(rank as usize));
                text.place.error(gpu.map_or(1, |(part, _)| text.line(part)), reason, CORRECT)
            }
        }
    };
    // Many plans name a switch that none of their operations uses.
    let steps = reader.threads.iter().flatten();
    let of_act = |act: &Act| matches!(act, Act::Move { target, .. } if target.rank >= reader.shape.ranks);
    let switches = if steps.flat_map(|step| &step.acts).any(of_act) { reader.shape.switches } else { 0 };
    let shape = Shape { switches, ..reader.shape };
    let trace = threads::run(shape, &reader.threads).map_err(at)?;
    let schedule = proved(name_of(&plan.name), &trace, options).map_err(at)?;
    let range = Range { least: plan.min_message_size, most: plan.max_message_size.unwrap_or(u64::MAX) };
    Ok(Read { schedule, range })
}

type Flat<'a> = (usize, usize, Vec<(&'a str, Op<'a>)>);

struct Reader<'a> {
    text: &'a Text<'a>,
    shape: Shape,
    gpus: &'a [(&'a str, Gpu<'a>)],
    blocks: &'a [Vec<Threadblock<'a>>],
    /// Into how many parts a chunk of the plan is cut.
    slices: u32,
    /// The groups of switches, by their members.
    switches: Vec<Vec<u32>>,
    threads: Vec<Vec<Step>>,
    labels: Vec<Label>,
    queues: BTreeMap<(u32, String, u32), usize>,
    moves: usize,
    held: u32,
}

impl<'a> Reader<'a> {
    fn new(
        text: &'a Text<'a>,
        plan: &Plan<'_>,
        gpus: &'a [(&'a str, Gpu<'a>)],
        blocks: &'a [Vec<Threadblock<'a>>],
        ops: &[Flat<'_>],
    ) -> Result<Self, ReadError> {
        let wrong = |why: String| text.place.error(1, why, "name a plan that MSCCL++ runs");
        let Some(collective) = collective_of(&plan.collective) else {
            return Err(wrong(format!("{:?} is no collective of this library", plan.collective)));
        };
        if gpus.is_empty() || gpus.len() > GPUS_MAX {
            return Err(wrong(format!("it has no GPUs, or more than {GPUS_MAX}")));
        }
        if let Some((_, (part, gpu))) = (0..).zip(gpus).find(|(at, (_, gpu))| gpu.id != *at) {
            return Err(text.wrong(part, format!("GPU {} is not in its place", gpu.id)));
        }
        let mut slices = 1u32;
        for (part, op) in ops.iter().flat_map(|(_, _, ops)| ops) {
            let Some(Slice { tb_id, tbg_size }) = op.tbg_info else { continue };
            if tb_id >= tbg_size || tbg_size > GROUP_MAX {
                return Err(
                    text.wrong(part, format!("part {tb_id} of {tbg_size} is none of at most {GROUP_MAX}"))
                );
            }
            slices = lcm(slices, tbg_size);
            if slices > GROUP_MAX {
                return Err(text.wrong(part, format!("groups cut chunks into more than {GROUP_MAX} parts")));
            }
        }
        let ranks = gpus.len() as u32;
        let most = gpus.iter().map(|(_, gpu)| gpu.input_chunks.max(gpu.output_chunks)).max().unwrap_or(0);
        let blocks_of = collective.input_blocks(ranks).max(collective.output_blocks(ranks));
        let chunks =
            most.checked_mul(slices).filter(|chunks| (1..=super::program::CHUNKS_MAX).contains(chunks));
        let Some(chunks) = chunks.filter(|_| most % blocks_of == 0) else {
            return Err(wrong(format!("{most} chunks cannot be those of an {collective} of {ranks} GPUs")));
        };
        let mut switches: Vec<Vec<u32>> = Vec::new();
        for (part, gpu) in gpus {
            for group in gpu.channels.iter().flat_map(|channel| &channel.rank_groups) {
                let mut members = group.ranks.clone();
                members.sort_unstable();
                members.dedup();
                if members.is_empty()
                    || members.len() != group.ranks.len()
                    || members.iter().any(|rank| *rank >= ranks)
                {
                    return Err(text.wrong(part, "a switch's group whose members are not GPUs, each once"));
                }
                if !switches.contains(&members) {
                    switches.push(members);
                }
            }
        }
        let shape = Shape {
            collective,
            ranks,
            switches: switches.len() as u32,
            partition: Partition { parts: chunks / blocks_of },
            in_place: plan.inplace,
        };
        let mut reader = Reader {
            text,
            shape,
            gpus,
            blocks,
            slices,
            switches,
            threads: Vec::new(),
            labels: Vec::new(),
            queues: BTreeMap::new(),
            moves: 0,
            held: 0,
        };
        reader.semaphores()?;
        Ok(reader)
    }

    /// A thread that posts what semaphores have at the beginning.
    fn semaphores(&mut self) -> Result<(), ReadError> {
        let mut acts = Vec::new();
        for (gpu, (part, of)) in (0..).zip(self.gpus) {
            for (number, semaphore) in (0..).zip(&of.semaphores) {
                if acts.len() + semaphore.init_value as usize > MOVES_MAX {
                    return Err(self.text.wrong(part, "semaphores that begin with more than anything takes"));
                }
                let queue = self.queue(gpu, "semaphore", number);
                acts.extend((0..semaphore.init_value).map(|_| Act::Release(queue)));
            }
        }
        if !acts.is_empty() {
            let (part, _) = self.gpus[0];
            let origin = self.label(part, 0, 0, 0, "semaphores");
            self.threads.push(vec![Step { origin, waits: Vec::new(), acts }]);
        }
        Ok(())
    }

    fn label(&mut self, part: &str, gpu: u32, tb: usize, op: usize, name: &str) -> u32 {
        // A foreign name is cut, as it ends in messages.
        let name = name.chars().take(32).collect();
        self.labels.push(Label { line: self.text.line(part), gpu, tb, op, name });
        self.labels.len() as u32 - 1
    }

    fn queue(&mut self, gpu: u32, kind: &str, number: u32) -> usize {
        let next = self.queues.len();
        *self.queues.entry((gpu, kind.to_owned(), number)).or_insert(next)
    }

    /// The peers of a GPU's channels of a kind, in their order.
    fn peers(&self, gpu: usize, kind: &str) -> impl Iterator<Item = u32> + use<'_, 'a> {
        let kind = kind.to_owned();
        let channels = self.gpus[gpu].1.channels.iter();
        channels
            .filter(move |channel| channel.channel_type == kind)
            .flat_map(|channel| channel.connected_to.iter().copied())
    }

    /// A channel's number at its GPU, and that GPU's and the peer's queues of posts.
    fn ends(&mut self, gpu: usize, tb: usize, kind: &str, id: u32) -> Option<(usize, usize)> {
        let block = &self.blocks[gpu][tb];
        let of_kind = block.channels.iter().filter(|ids| ids.channel_type == kind);
        let number = of_kind.flat_map(|ids| &ids.channel_ids).nth(id as usize).copied()?;
        let peer = self.peers(gpu, kind).nth(number as usize).filter(|peer| *peer < self.shape.ranks)?;
        let before = self.peers(gpu, kind).take(number as usize).filter(|other| *other == peer).count();
        let same = self.peers(peer as usize, kind).enumerate().filter(|(_, other)| *other as usize == gpu);
        let other = same.map(|(at, _)| at as u32).nth(before);
        let here = self.queue(gpu as u32, kind, number);
        // A channel that has no other end is posted to in vain.
        let there = match other {
            Some(other) => self.queue(peer, kind, other),
            None => self.queue(gpu as u32, "nowhere", number),
        };
        Some((here, there))
    }

    fn step(
        &mut self,
        (gpu, tb, at): (usize, usize, usize),
        part: &str,
        op: &Op<'_>,
    ) -> Result<Step, ReadError> {
        let origin = self.label(part, gpu as u32, tb, at, &op.name);
        let name = self.labels[origin as usize].text();
        let wrong = |why: &str| self.text.place.error(self.text.line(part), format!("{name} {why}"), CORRECT);
        let kind = if op.channel_type.is_empty() { "memory" } else { op.channel_type.as_str() };
        let (mut waits, mut acts) = (Vec::new(), Vec::new());
        let mut of_channels = Vec::new();
        for id in &op.channel_ids {
            let signals =
                !matches!(op.name.as_str(), "put" | "get" | "glres" | "gstore" | "flush" | "ppkt" | "rppkt");
            if kind != "switch" && signals {
                let Some(ends) = self.ends(gpu, tb, kind, *id) else {
                    return Err(self
                        .text
                        .wrong(part, format!("{name} names channel {id}, which does not exist")));
                };
                of_channels.push(ends);
            }
        }
        match op.name.as_str() {
            "nop" | "flush" => {}
            "signal" | "rlxsignal" => acts.extend(of_channels.iter().map(|(_, there)| Act::Post(*there))),
            "wait" | "rlxwait" => waits.extend(of_channels.iter().map(|(here, _)| Wait::Queue(*here))),
            "sem_acquire" => {
                waits.extend(
                    op.semaphore_ids.iter().map(|id| Wait::Queue(self.queue(gpu as u32, "semaphore", *id))),
                );
            }
            "sem_release" => {
                acts.extend(
                    op.semaphore_ids.iter().map(|id| Act::Release(self.queue(gpu as u32, "semaphore", *id))),
                );
            }
            "barrier" => {
                let members = op.num_threadblocks.unwrap_or(0) as usize;
                if members == 0 || members > self.blocks[gpu].len() {
                    return Err(wrong("has no num_threadblocks that its GPU has"));
                }
                let number = self.queue(gpu as u32, "barrier", op.barrier_id.unwrap_or(0));
                waits.push(Wait::Barrier { number, members });
            }
            "glres" | "gstore" | "gstorepkt" => {
                self.over_switch((gpu, tb), part, op, &mut waits, &mut acts)?
            }
            _ => {
                let sources = op.src_buff.iter().map(|chunks| self.cells((gpu, tb), part, op, chunks));
                let sources = sources.collect::<Result<Vec<_>, _>>()?;
                let targets = op.dst_buff.iter().map(|chunks| self.cells((gpu, tb), part, op, chunks));
                let targets = targets.collect::<Result<Vec<_>, _>>()?;
                self.moved((tb, part), op, &sources, &targets, &mut waits, &mut acts)?;
                if matches!(op.name.as_str(), "pws" | "pwsf") {
                    acts.extend(of_channels.iter().map(|(_, there)| Act::Post(*there)));
                }
            }
        }
        self.moves += acts.len();
        if self.moves > MOVES_MAX {
            return Err(self.text.wrong(part, format!("operations of more than {MOVES_MAX} moves together")));
        }
        Ok(Step { origin, waits, acts })
    }

    /// Copies and folds.
    fn moved(
        &mut self,
        (tb, part): (usize, &str),
        op: &Op<'_>,
        sources: &[Vec<Cell>],
        targets: &[Vec<Cell>],
        waits: &mut Vec<Wait>,
        acts: &mut Vec<Act>,
    ) -> Result<(), ReadError> {
        let wrong = |why: String| self.text.wrong(part, format!("the operation {:?} {why}", op.name));
        let channel = u16::try_from(tb).unwrap_or(u16::MAX);
        let count = sources.first().map_or(0, Vec::len);
        if count == 0 || targets.is_empty() || sources.iter().chain(targets).any(|cells| cells.len() != count)
        {
            return Err(wrong("has no sources or no targets, or some that differ in length".into()));
        }
        let flagged = match op.name.as_str() {
            "rppkt" | "upkt" => sources,
            "repkt" | "respkt" | "recpkt" | "recspkt" => &sources[1..],
            _ => &[],
        };
        waits.extend(flagged.iter().flatten().map(|cell| Wait::Written(*cell)));
        match op.name.as_str() {
            "put" | "pws" | "pwsf" | "get" | "ppkt" | "rppkt" | "copy" | "cpkt" | "upkt" => {
                if sources.len() != targets.len() && sources.len() != 1 {
                    return Err(wrong("has more sources than one, and another number of targets".into()));
                }
                for (at, targets) in targets.iter().enumerate() {
                    let sources = &sources[at.min(sources.len() - 1)];
                    let pairs = sources.iter().zip(targets);
                    acts.extend(pairs.map(|(&source, &target)| Act::Move {
                        source,
                        target,
                        fold: None,
                        channel,
                    }));
                }
            }
            "re" | "res" | "rre" | "rres" | "repkt" | "respkt" | "recpkt" | "recspkt" => {
                for at in 0..count {
                    let operands: Vec<Cell> = sources.iter().map(|cells| cells[at]).collect();
                    let target = targets[0][at];
                    // Later operands must not be overwritten by the first fold.
                    let sum = if operands.len() > 2 && operands[2..].contains(&target) {
                        self.held += 1;
                        Cell { rank: target.rank, buffer: Buffer::Held, index: self.held - 1 }
                    } else {
                        target
                    };
                    let mut own = operands[0];
                    for source in &operands[1..] {
                        acts.push(Act::Move { source: *source, target: sum, fold: Some(own), channel });
                        own = sum;
                    }
                    let copies = targets.iter().map(|cells| cells[at]).filter(|target| *target != own);
                    acts.extend(copies.map(|target| Act::Move { source: own, target, fold: None, channel }));
                }
            }
            _ => return Err(wrong("is none that MSCCL++ has".into())),
        }
        Ok(())
    }

    /// A load folded over a switch's group, or the own chunks, stored to all of the group.
    fn over_switch(
        &mut self,
        (gpu, tb): (usize, usize),
        part: &str,
        op: &Op<'_>,
        waits: &mut Vec<Wait>,
        acts: &mut Vec<Act>,
    ) -> Result<(), ReadError> {
        let wrong = |why: &str| self.text.wrong(part, format!("the operation {:?} {why}", op.name));
        let channel = u16::try_from(tb).unwrap_or(u16::MAX);
        let ([from], [to]) = (&op.src_buff[..], &op.dst_buff[..]) else {
            return Err(wrong("does not have one source and one target"));
        };
        let loads = op.name == "glres";
        let (members, buffer) = self.group((gpu, tb), part, to)?;
        let to: Vec<u32> = self.indices(part, op, to)?;
        let from_buffer = if loads { self.group((gpu, tb), part, from)?.1 } else { buffer };
        let sources = if loads { Vec::new() } else { self.cells((gpu, tb), part, op, from)? };
        let from: Vec<u32> = self.indices(part, op, from)?;
        if from.len() != to.len() {
            return Err(wrong("has a source and a target that differ in length"));
        }
        let node = self.switches.iter().position(|known| *known == members);
        let switch = self.shape.ranks + node.unwrap_or(0) as u32;
        if op.name == "gstorepkt" {
            waits.extend(sources.iter().map(|cell| Wait::Written(*cell)));
        }
        let mut held = |rank: u32| {
            self.held += 1;
            Cell { rank, buffer: Buffer::Held, index: self.held - 1 }
        };
        let me = gpu as u32;
        for (at, (from, to)) in from.into_iter().zip(to).enumerate() {
            let mut moved = |source: Cell, target: Cell, fold: Option<Cell>| {
                acts.push(Act::Move { source, target, fold, channel });
            };
            let loaded = if loads {
                let ports: Vec<Cell> = members.iter().map(|_| held(switch)).collect();
                for (&rank, &port) in members.iter().zip(&ports) {
                    moved(Cell { rank, buffer: from_buffer, index: from }, port, None);
                }
                for &port in &ports[1..] {
                    moved(port, ports[0], Some(ports[0]));
                }
                let here = held(me);
                moved(ports[0], here, None);
                here
            } else {
                sources[at]
            };
            let back = held(switch);
            moved(loaded, back, None);
            for &rank in &members {
                moved(back, Cell { rank, buffer, index: to }, None);
            }
        }
        Ok(())
    }

    /// The members and the buffer of a switch channel that a threadblock names.
    fn group(
        &self,
        (gpu, tb): (usize, usize),
        part: &str,
        of: &Chunks,
    ) -> Result<(Vec<u32>, Buffer), ReadError> {
        let wrong = || self.text.wrong(part, "a switch channel that does not exist");
        let id = of.switch_channel_id.ok_or_else(wrong)?;
        let ids = self.blocks[gpu][tb].channels.iter().filter(|ids| ids.channel_type == "switch");
        let number = ids.flat_map(|ids| &ids.channel_ids).nth(id as usize).ok_or_else(wrong)?;
        let channels = self.gpus[gpu].1.channels.iter().filter(|channel| channel.channel_type == "switch");
        let mut groups =
            channels.flat_map(|channel| channel.rank_groups.iter().map(move |group| (channel, group)));
        let (channel, group) = groups.nth(*number as usize).ok_or_else(wrong)?;
        let mut members = group.ranks.clone();
        members.sort_unstable();
        Ok((members, self.buffer(part, channel.buffer_type.as_deref().unwrap_or_default())?))
    }

    fn buffer(&self, part: &str, name: &str) -> Result<Buffer, ReadError> {
        match name {
            "i" => Ok(Buffer::Input),
            "o" => Ok(Buffer::Output),
            "s" => Ok(Buffer::Scratch),
            _ => Err(self.text.wrong(part, "a buffer that is none of i, o and s")),
        }
    }

    /// The parts of chunks that an operation means.
    fn indices(&self, part: &str, op: &Op<'_>, of: &Chunks) -> Result<Vec<u32>, ReadError> {
        let end = of.index.checked_add(of.size).and_then(|end| end.checked_mul(self.slices));
        let Some(end) = end.filter(|end| of.size > 0 && *end <= super::program::CHUNKS_MAX) else {
            return Err(self.text.wrong(part, "chunks that no buffer has"));
        };
        let Slice { tb_id, tbg_size } = op.tbg_info.unwrap_or(Slice { tb_id: 0, tbg_size: 1 });
        let each = of.size * self.slices / tbg_size;
        let first = end - of.size * self.slices + tb_id * each;
        Ok((first..first + each).collect())
    }

    fn cells(
        &self,
        (gpu, tb): (usize, usize),
        part: &str,
        op: &Op<'_>,
        of: &Chunks,
    ) -> Result<Vec<Cell>, ReadError> {
        let kind = if op.channel_type.is_empty() { "memory" } else { op.channel_type.as_str() };
        let (rank, buffer) = match (of.buffer_id, &of.buffer) {
            (Some(id), _) => {
                let refs = self.blocks[gpu][tb].remote_buffer_refs.iter();
                let ids =
                    refs.filter(|of| of.access_channel_type == kind).flat_map(|of| &of.remote_buffer_ids);
                let remote = ids.copied().nth(id as usize).and_then(|id| {
                    self.gpus[gpu].1.remote_buffers.get(id as usize).filter(|of| of.rank < self.shape.ranks)
                });
                let remote =
                    remote.ok_or_else(|| self.text.wrong(part, "a remote buffer that does not exist"))?;
                (remote.rank, self.buffer(part, &remote.buffer)?)
            }
            (None, Some(buffer)) => (gpu as u32, self.buffer(part, buffer)?),
            (None, None) => return Err(self.text.wrong(part, "chunks of no buffer")),
        };
        let indices = self.indices(part, op, of)?;
        Ok(indices.into_iter().map(|index| Cell { rank, buffer, index }).collect())
    }
}

fn lcm(a: u32, b: u32) -> u32 {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}
