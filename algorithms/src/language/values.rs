//! Which value each cell holds, and the place that a schedule gives it.
//!
//! Invariant: a value is a chunk of the input and the ranks whose contributions it has. A fold has contributions of
//! one chunk, each once; every output chunk holds in the end what the collective defines. A place holds values of one
//! length alone: a program may keep any chunk anywhere, but the pieces of a caller's buffer differ in length. Absent:
//! rounds.

use std::collections::{BTreeMap, BTreeSet};

use super::trace::{Buffer, Cell, Event, Fault, Move, Shape, Trace};
use crate::verify::expected;
use crate::{Chunk, Place, Rank, lengths};

/// A chunk of the input, of one rank or folded over several.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Value {
    /// The chunk of the contributors' inputs.
    pub(super) chunk: u32,
    /// The contributors, a bit each.
    ranks: Vec<u64>,
    /// The first of them: folds take the operand with the lower one first.
    pub(super) first: u32,
    /// A hash of the order in which they were folded.
    order: u64,
}

fn mix(a: u64, b: u64) -> u64 {
    let mixed = (a ^ b.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

impl Value {
    fn input(rank: u32, chunk: u32, ranks: u32) -> Value {
        let mut bits = vec![0; ranks.div_ceil(64) as usize];
        bits[rank as usize / 64] |= 1 << (rank % 64);
        Value { chunk, ranks: bits, first: rank, order: mix(u64::from(rank) + 1, 1) }
    }

    fn contributors(&self) -> impl Iterator<Item = u32> {
        let bits = |(word, bits): (usize, &u64)| {
            let bits = *bits;
            (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| word as u32 * 64 + bit)
        };
        self.ranks.iter().enumerate().flat_map(bits)
    }

    /// The fold, with the first contributor's operand first.
    fn fold(&self, other: &Value) -> Result<Value, String> {
        if self.chunk != other.chunk {
            let (low, high) = (self.chunk.min(other.chunk), self.chunk.max(other.chunk));
            return Err(format!("folds chunk {low} with chunk {high}"));
        }
        if let Some(twice) = self.contributors().find(|rank| other.has(*rank)) {
            return Err(format!("folds the contribution of rank {twice} to chunk {} twice", self.chunk));
        }
        let (left, right) = if self.first < other.first { (self, other) } else { (other, self) };
        let ranks = self.ranks.iter().zip(&other.ranks).map(|(a, b)| a | b).collect();
        Ok(Value { chunk: self.chunk, ranks, first: left.first, order: mix(left.order, mix(right.order, 2)) })
    }

    fn has(&self, rank: u32) -> bool {
        self.ranks[rank as usize / 64] >> (rank % 64) & 1 == 1
    }

    fn text(&self) -> String {
        let ranks: Vec<String> = self.contributors().map(|rank| rank.to_string()).collect();
        format!("chunk {} of rank {}", self.chunk, ranks.join("+"))
    }
}

/// A move between places. Both places follow from the values that are there at the time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Placed {
    pub(super) channel: u16,
    pub(super) from: Rank,
    pub(super) to: Rank,
    pub(super) source: Place,
    pub(super) target: Place,
    pub(super) fold: Option<Place>,
    pub(super) own_first: bool,
}

/// The first contributors of a source and of the operand that it is folded with.
pub(super) type Firsts = (u32, Option<u32>);

/// What a trace comes to.
#[derive(Clone)]
pub(super) struct Resolved {
    pub(super) moves: Vec<Placed>,
    pub(super) events: Vec<Event>,
    /// The first contributor of each move's source and of its own operand.
    pub(super) firsts: Vec<Firsts>,
    /// Two ranks of an all-reduce that fold a chunk in different orders, if any do, and the chunk.
    pub(super) differ: Option<(u32, u32, u32)>,
    pub(super) scratch: Numbering,
}

/// Numbers of scratch places. The number of a place determines the length of what it holds.
#[derive(Clone)]
pub(super) struct Numbering {
    count: u32,
    next: BTreeMap<(u32, u32), u32>,
}

impl Numbering {
    /// A place of `rank` that nothing else has, for a piece.
    pub(super) fn fresh(&mut self, rank: u32, piece: u32) -> Place {
        let next = self.next.entry((rank, piece % self.count)).or_default();
        // More places than numbers cannot be proved, and that is tried.
        let number = (piece % self.count).wrapping_add(next.wrapping_mul(self.count));
        *next = next.wrapping_add(1);
        Place::Scratch(Chunk(number))
    }
}

struct State {
    value: Value,
    place: Place,
    /// The last move that wrote the cell.
    writer: usize,
}

struct Run<'a> {
    trace: &'a Trace,
    /// Output cells that are written while the input that shares their memory in place is still read.
    late: BTreeSet<Cell>,
    cells: BTreeMap<Cell, State>,
    scratch: Numbering,
    homes: BTreeMap<(Cell, u32), Place>,
    /// What moves hold that have read and not written, with its place.
    held: BTreeMap<usize, (Value, Place)>,
    result: Vec<Option<(Placed, Firsts)>>,
}

/// Runs a trace.
///
/// # Errors
/// The first move that reads what was never written or folds what does not belong together, and an output that does not
/// hold in the end what the collective defines.
pub(super) fn resolve(trace: &Trace) -> Result<Resolved, Fault> {
    let Shape { collective, ranks, partition, .. } = trace.shape;
    let mut run = Run {
        trace,
        late: late(trace),
        cells: BTreeMap::new(),
        scratch: Numbering {
            count: lengths::count(collective, partition, ranks).max(1),
            next: BTreeMap::new(),
        },
        homes: BTreeMap::new(),
        held: BTreeMap::new(),
        result: vec![None; trace.moves.len()],
    };
    for &event in &trace.events {
        match event {
            Event::Read(index) => run.read(index)?,
            Event::Write(index) => run.write(index)?,
        }
    }
    run.finish()
}

/// The output cells whose first change comes before the last read of the input that is the same memory in place.
fn late(trace: &Trace) -> BTreeSet<Cell> {
    let shape = &trace.shape;
    if shape.in_place || shape.collective == crate::Collective::AllToAll {
        return BTreeSet::new();
    }
    let mut written: BTreeSet<Cell> = BTreeSet::new();
    let mut late = BTreeSet::new();
    let mut read = |cell: Cell, written: &BTreeSet<Cell>| {
        let index = match cell.buffer {
            Buffer::Input => shape.output_of_input(cell.rank, cell.index),
            _ => None,
        };
        let output = index.map(|index| Cell { buffer: Buffer::Output, index, ..cell });
        late.extend(output.filter(|output| written.contains(output)));
    };
    for event in &trace.events {
        match *event {
            Event::Read(index) => read(trace.moves[index].source, &written),
            Event::Write(index) => {
                let Move { source, target, fold, .. } = trace.moves[index];
                if let Some(fold) = fold {
                    read(fold, &written);
                }
                let same = source.rank == target.rank
                    && source.buffer == Buffer::Input
                    && shape.output_of_input(source.rank, source.index) == Some(target.index);
                if target.buffer == Buffer::Output && !(same && fold.is_none()) {
                    written.insert(target);
                }
            }
        }
    }
    late
}

impl Run<'_> {
    /// What a cell holds, with its place and the last move that wrote it.
    fn holds(&self, cell: Cell) -> Option<(Value, Place, Option<usize>)> {
        if let Some(State { value, place, writer }) = self.cells.get(&cell) {
            return Some((value.clone(), *place, Some(*writer)));
        }
        let chunk = self.trace.shape.initial(cell)?;
        Some((Value::input(cell.rank, chunk, self.trace.shape.ranks), Place::Input(Chunk(chunk)), None))
    }

    fn state(&self, cell: Cell, origin: u32, verb: &str) -> Result<(Value, Place), Fault> {
        if !self.trace.shape.has(cell) {
            return Err(Fault::at(origin, format!("{verb} {cell}, which does not exist")));
        }
        match self.holds(cell) {
            Some((value, place, _)) => Ok((value, place)),
            None => Err(Fault::at(origin, format!("{verb} {cell} before anything is there"))),
        }
    }

    fn read(&mut self, index: usize) -> Result<(), Fault> {
        let Move { origin, source, .. } = self.trace.moves[index];
        let found = self.state(source, origin, "reads")?;
        self.held.insert(index, found);
        Ok(())
    }

    fn write(&mut self, index: usize) -> Result<(), Fault> {
        let Move { origin, channel, source, target, fold } = self.trace.moves[index];
        let shape = self.trace.shape;
        let Some((arriving, from)) = self.held.remove(&index) else { return Ok(()) };
        let own = fold.map(|cell| self.state(cell, origin, "folds")).transpose()?;
        if !shape.has(target) {
            return Err(Fault::at(origin, format!("writes {target}, which does not exist")));
        }
        let value = match &own {
            None => arriving.clone(),
            Some(_) if !shape.collective.reduces() => {
                return Err(Fault::at(origin, format!("folds in an {} that only moves", shape.collective)));
            }
            Some((own, _)) => arriving.fold(own).map_err(|why| Fault::at(origin, why))?,
        };
        let place = self.home(target, &value);
        let own_first = own.as_ref().is_some_and(|(own, _)| own.first < arriving.first);
        let placed = Placed {
            channel,
            from: Rank(source.rank),
            to: Rank(target.rank),
            source: from,
            target: place,
            fold: own.as_ref().map(|(_, place)| *place),
            own_first,
        };
        self.result[index] = Some((placed, (arriving.first, own.map(|(own, _)| own.first))));
        self.cells.insert(target, State { value, place, writer: index });
        Ok(())
    }

    fn piece(&self, value: &Value) -> u32 {
        let Shape { collective, partition, .. } = self.trace.shape;
        let input = Place::Input(Chunk(value.chunk));
        lengths::of(collective, partition, Rank(value.first), input).map_or(value.chunk, |piece| piece.0)
    }

    /// Where a cell keeps a value: in the caller's output if that is as long, else in scratch.
    fn home(&mut self, cell: Cell, value: &Value) -> Place {
        let Shape { collective, partition, .. } = self.trace.shape;
        let piece = self.piece(value);
        if cell.buffer == Buffer::Output && !self.late.contains(&cell) {
            let output = Place::Output(Chunk(cell.index));
            let class = |piece: Chunk| lengths::class(collective, partition, piece);
            let own = lengths::of(collective, partition, Rank(cell.rank), output);
            if own.is_some_and(|own| class(own) == class(Chunk(piece))) {
                return output;
            }
        }
        let scratch = &mut self.scratch;
        *self.homes.entry((cell, piece)).or_insert_with(|| scratch.fresh(cell.rank, piece))
    }

    /// Brings to the outputs what is elsewhere, and compares them with the definition.
    fn finish(self) -> Result<Resolved, Fault> {
        let Shape { collective, ranks, partition, .. } = self.trace.shape;
        let mut events = self.trace.events.clone();
        let mut orders: BTreeMap<u32, (u32, u64)> = BTreeMap::new();
        let mut differ = None;
        let mut deliveries = Vec::new();
        for rank in (0..ranks).filter(|rank| collective.has_output(Rank(*rank))) {
            for index in 0..partition.output_chunks(collective, ranks) {
                let cell = Cell { rank, buffer: Buffer::Output, index };
                let (source, chunk) = expected(collective, partition.parts, rank, index);
                let Some((value, place, writer)) = self.holds(cell) else {
                    return Err(Fault {
                        rank: Some(rank),
                        ..Fault::of_whole(format!("nothing writes {cell}"))
                    });
                };
                let origin = writer.map(|writer| self.trace.moves[writer].origin);
                let wrong = |reason: String| match origin {
                    Some(origin) => Err(Fault::at(origin, reason)),
                    None => {
                        Err(Fault { rank: Some(rank), ..Fault::of_whole(format!("nothing writes {cell}")) })
                    }
                };
                let from = source.unwrap_or(0);
                if value.chunk != chunk
                    || !value.has(from)
                    || (source.is_some() && value.contributors().count() > 1)
                {
                    let should = source.map_or("all ranks".into(), |from| format!("rank {from}"));
                    return wrong(format!(
                        "is the last to write {cell}, which holds {} and not chunk {chunk} of {should}",
                        value.text()
                    ));
                }
                if source.is_none()
                    && let Some(missing) = (0..ranks).find(|rank| !value.has(*rank))
                {
                    return wrong(format!(
                        "is the last to write {cell}, without the contribution of rank {missing}"
                    ));
                }
                if collective == crate::Collective::AllReduce {
                    let (other, order) = *orders.entry(index).or_insert((rank, value.order));
                    if order != value.order && differ.is_none() {
                        differ = Some((other, rank, index));
                    }
                }
                if place != Place::Output(Chunk(index)) {
                    let channel = writer.map_or(0, |writer| self.trace.moves[writer].channel);
                    let (from, target) = (Rank(rank), Place::Output(Chunk(index)));
                    let delivery = Placed {
                        channel,
                        from,
                        to: from,
                        source: place,
                        target,
                        fold: None,
                        own_first: false,
                    };
                    deliveries.push((delivery, value.first, writer.is_none()));
                }
            }
        }
        let (mut moves, mut firsts): (Vec<Placed>, Vec<_>) = self.result.into_iter().flatten().unzip();
        let mut readers = readers(&moves, &deliveries);
        let mut ahead = Vec::new();
        for (mut delivery, first, is_own) in deliveries {
            let both = [Event::Read(moves.len()), Event::Write(moves.len())];
            let own =
                readers.remove(&(delivery.from, delivery.source)).filter(|_| is_own).unwrap_or_default();
            let channels: BTreeSet<u16> = own.iter().map(|reader| moves[*reader].channel).collect();
            delivery.channel = channels.first().copied().unwrap_or(delivery.channel);
            if channels.len() > 1 {
                // Channels know nothing of each other where they touch input and output; they do where they read what
                // one of them has written.
                for reader in own {
                    let Placed { from, to, source, fold, .. } = &mut moves[reader];
                    if (*from, *source) == (delivery.from, delivery.source) {
                        *source = delivery.target;
                    }
                    if (*to, *fold) == (delivery.from, Some(delivery.source)) {
                        *fold = Some(delivery.target);
                    }
                }
                ahead.extend(both);
            } else {
                events.extend(both);
            }
            moves.push(delivery);
            firsts.push((first, None));
        }
        let events = [ahead, events].concat();
        Ok(Resolved { moves, events, firsts, differ, scratch: self.scratch })
    }
}

/// Who reads the inputs that deliveries bring to the outputs.
fn readers(moves: &[Placed], deliveries: &[(Placed, u32, bool)]) -> BTreeMap<(Rank, Place), Vec<usize>> {
    let mut readers: BTreeMap<(Rank, Place), Vec<usize>> = BTreeMap::new();
    for (delivery, ..) in deliveries.iter().filter(|(.., is_own)| *is_own) {
        readers.insert((delivery.from, delivery.source), Vec::new());
    }
    for (index, Placed { from, to, source, fold, .. }) in moves.iter().enumerate() {
        for (rank, place) in [Some((*from, *source)), fold.map(|fold| (*to, fold))].into_iter().flatten() {
            if let Some(known) = readers.get_mut(&(rank, place)) {
                known.push(index);
            }
        }
    }
    readers
}
