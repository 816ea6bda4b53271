//! Algorithms of MSCCL, as XML.
//!
//! A file has for each GPU some threadblocks, each with at most one peer to send to and one to receive from, on one
//! channel. Their steps run in order; a step may wait for one of another threadblock of its GPU. Messages of a pair
//! of GPUs on one channel arrive in the order in which they were sent: nothing else says which receive belongs to
//! which send.
//!
//! Invariant: a file that is accepted has one meaning in any order in which its threadblocks may run. Absent:
//! protocols; how deep the queues of its runtime are, as messages wait here until their round.

use std::collections::BTreeMap;

use roxmltree::{Document, Node};

use super::threads::{self, Act, Step, Wait};
use super::trace::{Buffer, Cell, Fault, Shape};
use super::{Range, Read, name_of, proved};
use crate::hardware::exchange::{Place, ReadError, line, number, parse_xml};
use crate::{Collective, LowerOptions, Partition};

pub use super::msccl_write::write;

/// The most chunks that a step moves.
const COUNT_MAX: u32 = 1 << 16;
/// The most moves of all steps.
const MOVES_MAX: usize = 1 << 20;

const CORRECT: &str = "correct the step, or write the file again with the program that made it";

/// A collective by its name in files.
pub(super) fn collective_of(name: &str) -> Option<Collective> {
    let plain: String = name.chars().filter(|letter| *letter != '_').collect();
    let known = Collective::ALL.into_iter().filter(|known| *known != Collective::SendReceive);
    known.into_iter().find(|known| known.name().replace('_', "") == plain.to_ascii_lowercase())
}

/// Where a step stands.
#[derive(Clone, Copy)]
struct Label {
    line: u32,
    gpu: u32,
    tb: i64,
    step: i64,
}

impl Label {
    fn text(self) -> String {
        match self.tb {
            COPIES => format!("copy {} of GPU {}", self.step, self.gpu),
            tb => format!("step {} of threadblock {tb} of GPU {}", self.step, self.gpu),
        }
    }
}

/// The number of the threadblock that stands for the copies that old files do before all others.
const COPIES: i64 = -1;

/// Reads an algorithm and proves it.
///
/// # Errors
/// [`ReadError`] with the line: of what is damaged or not of this format, and of the step that waits for ever, folds
/// what it must not, races with another, or leaves an output wrong.
pub fn read(text: &str, options: &LowerOptions) -> Result<Read, ReadError> {
    let place = Place::plain(text);
    let document = parse_xml(text, &place)?;
    let mut file = File::new(&document, &place)?;
    let root = document.root_element();
    for gpu in elements(root, "gpu") {
        file.gpu(gpu)?;
    }
    if file.gpus.len() as u32 != file.shape.ranks {
        let why = format!("there are {} GPUs, and ngpus is {}", file.gpus.len(), file.shape.ranks);
        return Err(place.error(line(&place, root), why, CORRECT));
    }
    let (threads, labels) = file.threads()?;
    let at = |fault: Fault| {
        let reason = fault.text(|other| labels[other as usize].text());
        match fault.origin {
            Some(origin) => {
                let label = labels[origin as usize];
                place.error(label.line, format!("{} {reason}", label.text()), CORRECT)
            }
            None => {
                let id = |gpu: &Node<'_, '_>| attribute(&place, *gpu, "id").ok().flatten();
                let gpu = elements(root, "gpu").find(|gpu| fault.rank.is_some() && id(gpu) == fault.rank);
                place.error(line(&place, gpu.unwrap_or(root)), reason, CORRECT)
            }
        }
    };
    let trace = threads::run(file.shape, &threads).map_err(at)?;
    let schedule = proved(name_of(file.name), &trace, options).map_err(at)?;
    Ok(Read { schedule, range: file.range })
}

fn elements<'a, 'b: 'a>(of: Node<'a, 'b>, name: &'static str) -> impl Iterator<Item = Node<'a, 'b>> {
    of.children().filter(move |node| node.has_tag_name(name))
}

struct File<'a> {
    place: &'a Place,
    name: &'a str,
    shape: Shape,
    range: Range,
    /// Threadblocks by GPU and number.
    gpus: BTreeMap<u32, BTreeMap<i64, Block<'a>>>,
    moves: usize,
}

struct Block<'a> {
    send: Option<u32>,
    receive: Option<u32>,
    channel: u16,
    steps: Vec<Node<'a, 'a>>,
    line: u32,
}

impl<'a> File<'a> {
    fn new(document: &'a Document<'a>, place: &'a Place) -> Result<Self, ReadError> {
        let root = document.root_element();
        let at = line(place, root);
        let wrong = |why: &str| place.error(at, why, "name a file that MSCCL reads");
        if !root.has_tag_name("algo") {
            return Err(wrong("this is no algorithm of MSCCL, whose first element is <algo>"));
        }
        let get = |key: &'static str| attribute::<u32>(place, root, key);
        let ranks = get("ngpus")?.filter(|ranks| *ranks > 0).ok_or_else(|| wrong("it has no ngpus"))?;
        let collective = root.attribute("coll").unwrap_or_default();
        let Some(collective) = collective_of(collective) else {
            return Err(wrong(&format!("coll={collective:?} is no collective of this library")));
        };
        let blocks = collective.input_blocks(ranks).max(collective.output_blocks(ranks));
        let mut chunks = 0;
        for gpu in elements(root, "gpu") {
            for key in ["i_chunks", "o_chunks"] {
                chunks = chunks.max(attribute::<u32>(place, gpu, key)?.unwrap_or(0));
            }
        }
        let chunks = if chunks == 0 { get("nchunksperloop")?.unwrap_or(0) } else { chunks };
        if chunks == 0 || chunks % blocks != 0 || chunks > super::program::CHUNKS_MAX {
            return Err(wrong(&format!(
                "{chunks} chunks cannot be those of an {collective} of {ranks} GPUs"
            )));
        }
        let flag = |key: &'static str| Ok::<_, ReadError>(get(key)?.is_some_and(|flag| flag != 0));
        let (in_place, apart) = (flag("inplace")?, flag("outofplace")?);
        let bytes = |key: &'static str| attribute::<u64>(place, root, key);
        let most = bytes("maxBytes")?.filter(|most| *most > 0).unwrap_or(u64::MAX);
        Ok(File {
            place,
            name: root.attribute("name").unwrap_or_default(),
            shape: Shape {
                collective,
                ranks,
                switches: 0,
                partition: Partition { parts: chunks / blocks },
                in_place: in_place && !apart,
            },
            range: Range { least: bytes("minBytes")?.unwrap_or(0), most },
            gpus: BTreeMap::new(),
            moves: 0,
        })
    }

    fn gpu(&mut self, gpu: Node<'a, 'a>) -> Result<(), ReadError> {
        let place = self.place;
        let at = line(place, gpu);
        let wrong = |why: String| place.error(at, why, CORRECT);
        let id = attribute::<u32>(place, gpu, "id")?.filter(|id| *id < self.shape.ranks);
        let id = id.ok_or_else(|| wrong("this GPU has no id that is less than ngpus".into()))?;
        let mut blocks = BTreeMap::new();
        let copies: Vec<_> = elements(gpu, "copy").collect();
        if !copies.is_empty() {
            blocks.insert(COPIES, Block { send: None, receive: None, channel: 0, steps: copies, line: at });
        }
        for tb in elements(gpu, "tb") {
            let at = line(place, tb);
            let wrong = |why: String| place.error(at, why, CORRECT);
            let number = attribute::<u32>(place, tb, "id")?
                .ok_or_else(|| wrong("this threadblock has no id".into()))?;
            let peer = |key: &'static str| match attribute::<u32>(place, tb, key)? {
                Some(peer) if peer >= self.shape.ranks || peer == id => {
                    Err(place.error(at, format!("{key}={peer} is no other GPU"), CORRECT))
                }
                peer => Ok(peer),
            };
            let block = Block {
                send: peer("send")?,
                receive: peer("recv")?,
                channel: attribute::<u16>(place, tb, "chan")?.unwrap_or(0),
                steps: elements(tb, "step").collect(),
                line: at,
            };
            for (key, own) in [("send", block.send), ("receive", block.receive)] {
                let same = |other: &&Block<'_>| {
                    let peer = if key == "send" { other.send } else { other.receive };
                    own.is_some() && (peer, other.channel) == (own, block.channel)
                };
                if let Some(other) = blocks.values().find(same) {
                    let (channel, line) = (block.channel, other.line);
                    return Err(wrong(format!(
                        "another threadblock has the same {key} peer on channel {channel} (line {line}), so that \
                         nothing says whose message is whose"
                    )));
                }
            }
            if blocks.insert(i64::from(number), block).is_some() {
                return Err(wrong(format!("GPU {id} has two threadblocks {number}")));
            }
        }
        if self.gpus.insert(id, blocks).is_some() {
            return Err(wrong(format!("there are two GPUs {id}")));
        }
        Ok(())
    }

    fn threads(&mut self) -> Result<(Vec<Vec<Step>>, Vec<Label>), ReadError> {
        let keys = self.gpus.iter().flat_map(|(gpu, blocks)| blocks.keys().map(|tb| (*gpu, *tb)));
        let numbers: BTreeMap<(u32, i64), usize> = keys.zip(0..).collect();
        let mut labels = Vec::new();
        let mut threads = Vec::new();
        let gpus = std::mem::take(&mut self.gpus);
        for (&gpu, blocks) in &gpus {
            for (&tb, block) in blocks {
                let mut steps = Vec::new();
                for (at, &node) in block.steps.iter().enumerate() {
                    let label = Label { line: line(self.place, node), gpu, tb, step: at as i64 };
                    let reader = Reader { place: self.place, node, label, block, ranks: self.shape.ranks };
                    let mut step = reader.step(labels.len() as u32, &mut self.moves)?;
                    let mut wait = |tb: i64, step_number: usize| {
                        let thread = numbers
                            .get(&(gpu, tb))
                            .copied()
                            .filter(|_| blocks.get(&tb).is_some_and(|block| step_number < block.steps.len()));
                        let thread = thread.ok_or_else(|| {
                            reader.wrong(format!(
                                "waits for step {step_number} of threadblock {tb}, which does not exist"
                            ))
                        })?;
                        step.waits.insert(0, Wait::Step { thread, step: step_number });
                        Ok::<_, ReadError>(())
                    };
                    if let Some(copies) = blocks.get(&COPIES).filter(|_| at == 0 && tb != COPIES) {
                        wait(COPIES, copies.steps.len() - 1)?;
                    }
                    if let (Some(tb), Some(of)) = (reader.get("depid")?, reader.get("deps")?) {
                        wait(tb, of as usize)?;
                    }
                    labels.push(label);
                    steps.push(step);
                }
                threads.push(steps);
            }
        }
        Ok((threads, labels))
    }
}

fn attribute<T: TryFrom<i64>>(
    place: &Place,
    node: Node<'_, '_>,
    key: &'static str,
) -> Result<Option<T>, ReadError> {
    number(place, line(place, node), key, node.attribute(key))
}

/// One step.
struct Reader<'a, 'b> {
    place: &'a Place,
    node: Node<'a, 'a>,
    label: Label,
    block: &'b Block<'a>,
    ranks: u32,
}

impl Reader<'_, '_> {
    fn wrong(&self, why: String) -> ReadError {
        self.place.error(self.label.line, format!("{} {why}", self.label.text()), CORRECT)
    }

    fn get(&self, key: &'static str) -> Result<Option<i64>, ReadError> {
        number(self.place, self.label.line, key, self.node.attribute(key))
    }

    /// The `at`-th cell of a side.
    fn cells(&self, buffer: &str, offset: &'static str, count: u32) -> Result<Vec<Cell>, ReadError> {
        let buffer = match buffer {
            "i" => Buffer::Input,
            "o" => Buffer::Output,
            "s" => Buffer::Scratch,
            other => {
                return Err(self.wrong(format!("names the buffer {other:?}, which is none of i, o and s")));
            }
        };
        let first = self.get(offset)?.and_then(|first| u32::try_from(first).ok());
        let first = first.filter(|first| first.checked_add(count).is_some_and(|end| end <= 1 << 24));
        let first = first.ok_or_else(|| self.wrong(format!("has no {offset}")))?;
        Ok((first..first + count).map(|index| Cell { rank: self.label.gpu, buffer, index }).collect())
    }

    fn step(&self, origin: u32, moves: &mut usize) -> Result<Step, ReadError> {
        let kind =
            if self.label.tb == COPIES { "copy" } else { self.node.attribute("type").unwrap_or_default() };
        let (count, source, target) = self.sides(kind)?;
        *moves += count as usize;
        if *moves > MOVES_MAX {
            return Err(
                self.wrong(format!("is one of steps that move more than {MOVES_MAX} chunks together"))
            );
        }
        let Block { send, receive, channel, .. } = *self.block;
        let me = self.label.gpu;
        let queue = |from: u32, to: u32| {
            let pair = from as usize * self.ranks as usize + to as usize;
            pair * (usize::from(u16::MAX) + 1) + usize::from(channel)
        };
        let (mut waits, mut acts) = (Vec::new(), Vec::new());
        let folds = matches!(kind, "rrs" | "rrc" | "rrcs" | "re");
        let receives = matches!(kind, "r" | "rcs" | "rrs" | "rrc" | "rrcs");
        let sends = matches!(kind, "s" | "rcs" | "rrs" | "rrcs");
        let target: Vec<Cell> = match kind {
            // What it holds until it sends has a place that no other step has.
            "rrs" => {
                let numbers = *moves as u32 - count..*moves as u32;
                numbers.map(|index| Cell { rank: me, buffer: Buffer::Held, index }).collect()
            }
            _ => target,
        };
        match kind {
            "nop" => {}
            "cpy" | "copy" | "re" => acts.extend(source.iter().zip(&target).map(|(&source, &target)| {
                Act::Move { source, target, fold: folds.then_some(target), channel }
            })),
            _ if !(receives || sends) => {
                return Err(self.wrong(format!("has the type {kind:?}, which MSCCL does not have")));
            }
            _ => {}
        }
        if receives {
            let from =
                receive.ok_or_else(|| self.wrong("receives, and its threadblock has no recv peer".into()))?;
            waits.push(Wait::Queue(queue(from, me)));
            let fold = |at: usize| folds.then(|| source[at]);
            let targets = target.iter().enumerate().map(|(at, target)| (*target, fold(at)));
            acts.push(Act::Receive { targets: targets.collect() });
        }
        if sends {
            let to = send.ok_or_else(|| self.wrong("sends, and its threadblock has no send peer".into()))?;
            let cells = if receives { target } else { source };
            acts.push(Act::Send { queue: queue(me, to), cells, channel });
        }
        Ok(Step { origin, waits, acts })
    }

    /// How many chunks a step moves, and the cells on both sides.
    fn sides(&self, kind: &str) -> Result<(u32, Vec<Cell>, Vec<Cell>), ReadError> {
        let count = match (kind, self.get("cnt")?) {
            ("nop", _) => return Ok((0, Vec::new(), Vec::new())),
            ("copy", None) => 1,
            (_, count) => count.and_then(|count| u32::try_from(count).ok()).unwrap_or(0),
        };
        if !(1..=COUNT_MAX).contains(&count) {
            return Err(self.wrong(format!("has a cnt that is not from 1 to {COUNT_MAX}")));
        }
        if kind == "copy" {
            return Ok((count, self.cells("i", "i_off", count)?, self.cells("o", "o_off", count)?));
        }
        let buffer = |key: &str| self.node.attribute(key).unwrap_or_default();
        let reads_source = matches!(kind, "s" | "cpy" | "re" | "rrs" | "rrc" | "rrcs");
        let writes_target = matches!(kind, "r" | "rcs" | "rrc" | "rrcs" | "cpy" | "re");
        let source = if reads_source { self.cells(buffer("srcbuf"), "srcoff", count)? } else { Vec::new() };
        let target = if writes_target { self.cells(buffer("dstbuf"), "dstoff", count)? } else { Vec::new() };
        Ok((count, source, target))
    }
}
