//! Any schedule as an algorithm of MSCCL.
//!
//! Invariant: every GPU has one threadblock for each peer and direction on a channel and one for local copies, in the
//! order in which lowered plans go: of each round the sends, then local copies, then receives. Steps of different
//! threadblocks that touch the same chunk wait for each other, in place too. Absent: the order of operands, which the
//! format does not have; fused steps, which save memory traffic on a GPU and change no message.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::Range;
use crate::hardware::exchange::quoted;
use crate::{Chunk, Collective, Place, Rank, Schedule, Transfer, aliasing};

/// The algorithm, as XML; `range` is written as its limits. `None` for a schedule over aggregating switches and for a
/// message between two ranks, which MSCCL does not have.
pub fn write(schedule: &Schedule, range: Range) -> Option<String> {
    let Schedule { collective, ranks, partition, .. } = *schedule;
    if schedule.switches > 0 || collective == Collective::SendReceive {
        return None;
    }
    let chunks = partition.input_chunks(collective, ranks).max(partition.output_chunks(collective, ranks));
    let most = if range.most == u64::MAX { 0 } else { range.most };
    let in_place = u32::from(collective != Collective::AllToAll);
    let mut text = format!(
        "<algo name={} proto=\"Simple\" nchannels=\"{}\" nchunksperloop=\"{chunks}\" ngpus=\"{ranks}\" coll=\"{}\" \
         inplace=\"{in_place}\" outofplace=\"1\" minBytes=\"{}\" maxBytes=\"{most}\">\n",
        quoted(&schedule.name),
        schedule.channels(),
        name_of(collective),
        range.least,
    );
    for rank in (0..ranks).map(Rank) {
        Gpu::new(schedule, rank).write(&mut text);
    }
    text += "</algo>\n";
    Some(text)
}

fn name_of(collective: Collective) -> String {
    match collective {
        Collective::ReduceScatter => collective.name().into(),
        other => other.name().replace('_', ""),
    }
}

/// A threadblock: its channel, then 0 and the peer it sends to, 1 and the one it receives from, or 2 for local copies.
type Key = (u16, u8, u32);

/// The kind of a step, its two places, and the steps that it waits for.
struct Step {
    kind: &'static str,
    source: Place,
    target: Place,
    after: Vec<(Key, usize)>,
}

#[derive(Default)]
struct Touched {
    write: Option<(Key, usize)>,
    reads: Vec<(Key, usize)>,
}

struct Gpu<'a> {
    schedule: &'a Schedule,
    rank: Rank,
    blocks: BTreeMap<Key, Vec<Step>>,
    touched: BTreeMap<Place, Touched>,
    scratch: BTreeMap<u32, u32>,
}

impl<'a> Gpu<'a> {
    fn new(schedule: &'a Schedule, rank: Rank) -> Self {
        let (blocks, touched, scratch) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut gpu = Gpu { schedule, rank, blocks, touched, scratch };
        for round in &schedule.rounds {
            for kind in 0..3 {
                let of_kind = |transfer: &&Transfer| match (transfer.from == rank, transfer.to == rank) {
                    (true, false) => kind == 0,
                    (true, true) => kind == 1,
                    (false, true) => kind == 2,
                    (false, false) => false,
                };
                round.transfers.iter().filter(of_kind).for_each(|transfer| gpu.transfer(transfer));
            }
        }
        gpu
    }

    fn transfer(&mut self, transfer: &Transfer) {
        let Transfer { from, to, channel, source, target, fold, .. } = *transfer;
        if from != to {
            match (from == self.rank, fold) {
                (true, _) => self.add((channel.0, 0, to.0), "s", source, source, &[source], None),
                (false, None) => self.add((channel.0, 1, from.0), "r", target, target, &[], Some(target)),
                (false, Some(own)) => {
                    self.add((channel.0, 1, from.0), "rrc", own, target, &[own], Some(target))
                }
            }
            return;
        }
        let key = (channel.0, 2, 0);
        // A local fold adds to its target.
        let added = match fold {
            None => return self.add(key, "cpy", source, target, &[source], Some(target)),
            Some(own) if source == target => own,
            Some(own) if own == target => source,
            Some(own) => {
                self.add(key, "cpy", own, target, &[own], Some(target));
                source
            }
        };
        self.add(key, "re", added, target, &[added, target], Some(target));
    }

    fn add(
        &mut self,
        key: Key,
        kind: &'static str,
        source: Place,
        target: Place,
        reads: &[Place],
        writes: Option<Place>,
    ) {
        for place in [source, target] {
            if let Place::Scratch(Chunk(number)) = place {
                let next = self.scratch.len() as u32;
                self.scratch.entry(number).or_insert(next);
            }
        }
        let step = (key, self.blocks.get(&key).map_or(0, Vec::len));
        let mut after: BTreeMap<Key, usize> = BTreeMap::new();
        let mut wait = |(block, number): (Key, usize)| {
            if block != key {
                let last = after.entry(block).or_default();
                *last = number.max(*last);
            }
        };
        let inputs = |place: Place| self.input_of(place);
        let of_writes = writes.map(|place| [Some(place), inputs(place)]);
        for place in reads {
            let touched = self.touched.entry(*place).or_default();
            touched.write.into_iter().for_each(&mut wait);
            touched.reads.push(step);
        }
        for place in of_writes.into_iter().flatten().flatten() {
            let touched = self.touched.entry(place).or_default();
            touched.write.into_iter().chain(touched.reads.iter().copied()).for_each(&mut wait);
            if Some(place) == writes {
                *touched = Touched { write: Some(step), reads: Vec::new() };
            }
        }
        let after = after.into_iter().collect();
        self.blocks.entry(key).or_default().push(Step { kind, source, target, after });
    }

    /// The input that an output is in place.
    fn input_of(&self, place: Place) -> Option<Place> {
        let Schedule { collective, partition, ranks, .. } = *self.schedule;
        let Place::Output(output) = place else { return None };
        aliasing::input_of_output(collective, partition, ranks, self.rank, output).map(Place::Input)
    }

    fn write(&self, text: &mut String) {
        let Schedule { collective, partition, ranks, .. } = *self.schedule;
        let chunks = |has: bool, chunks: u32| if has { chunks } else { 0 };
        let inputs = chunks(collective.has_input(self.rank), partition.input_chunks(collective, ranks));
        let outputs = chunks(collective.has_output(self.rank), partition.output_chunks(collective, ranks));
        // Steps move on by the empty steps before them, which carry further dependencies.
        let numbers: BTreeMap<Key, (usize, Vec<usize>)> = self
            .blocks
            .iter()
            .zip(0..)
            .map(|((key, steps), number)| {
                let at = steps.iter().scan(0, |next, step| {
                    *next += step.after.len().max(1);
                    Some(*next - 1)
                });
                (*key, (number, at.collect()))
            })
            .collect();
        let _ = writeln!(
            text,
            "  <gpu id=\"{}\" i_chunks=\"{inputs}\" o_chunks=\"{outputs}\" s_chunks=\"{}\">",
            self.rank.0,
            self.scratch.len()
        );
        let awaited: std::collections::BTreeSet<(Key, usize)> =
            self.blocks.values().flatten().flat_map(|step| step.after.iter().copied()).collect();
        for (key, steps) in &self.blocks {
            let (number, at) = &numbers[key];
            let peer = |kind: u8| if key.1 == kind { i64::from(key.2) } else { -1 };
            let (send, receive, channel) = (peer(0), peer(1), key.0);
            let _ = writeln!(
                text,
                "    <tb id=\"{number}\" send=\"{send}\" recv=\"{receive}\" chan=\"{channel}\">"
            );
            for (index, (step, at)) in steps.iter().zip(at).enumerate() {
                let has = u32::from(awaited.contains(&(*key, index)));
                let mut after: Vec<String> = step
                    .after
                    .iter()
                    .map(|of| {
                        let (block, steps) = &numbers[&of.0];
                        format!("depid=\"{block}\" deps=\"{}\"", steps[of.1])
                    })
                    .collect();
                let own = after.pop().unwrap_or_else(|| "depid=\"-1\" deps=\"-1\"".into());
                for (empty, after) in after.iter().enumerate() {
                    let number = at + 1 + empty - step.after.len();
                    let _ = writeln!(
                        text,
                        "      <step s=\"{number}\" type=\"nop\" srcbuf=\"i\" srcoff=\"-1\" dstbuf=\"o\" dstoff=\"-1\" \
                         cnt=\"0\" {after} hasdep=\"0\"/>"
                    );
                }
                let ((from, source), (to, target)) = (self.side(step.source), self.side(step.target));
                let _ = writeln!(
                    text,
                    "      <step s=\"{at}\" type=\"{}\" srcbuf=\"{from}\" srcoff=\"{source}\" dstbuf=\"{to}\" \
                     dstoff=\"{target}\" cnt=\"1\" {own} hasdep=\"{has}\"/>",
                    step.kind
                );
            }
            *text += "    </tb>\n";
        }
        *text += "  </gpu>\n";
    }

    fn side(&self, place: Place) -> (char, u32) {
        match place {
            Place::Input(chunk) => ('i', chunk.0),
            Place::Output(chunk) => ('o', chunk.0),
            Place::Scratch(chunk) => ('s', self.scratch[&chunk.0]),
        }
    }
}
