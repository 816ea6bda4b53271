//! The program of the ranks of a simulated job, and its expected results.
//!
//! Invariant: everything follows from the seed; expected results are computed from the definition of each collective,
//! element by element, never from a plan.

use std::collections::BTreeSet;
use std::time::Duration;

use consort_kernels::{DataType, ReduceOp};

use super::random::{Random, hash};
use consort_types::Rank;
use consort_types::call::{Call, Kind};

pub(super) const ELEMENT_BYTES: usize = 8;
const DATA_TYPE: DataType = DataType::Uint64;
/// Collectives, one of them twice as often.
pub(super) const KINDS: [Kind; 10] = [
    Kind::AllReduce,
    Kind::AllReduce,
    Kind::Reduce,
    Kind::Broadcast,
    Kind::AllGather,
    Kind::ReduceScatter,
    Kind::Barrier,
    Kind::AllToAll,
    Kind::Gather,
    Kind::Scatter,
];

/// One step that ranks do together.
#[derive(Clone, Debug)]
pub(super) enum Item {
    /// A collective of a communicator; started and waited for later when `started`.
    Collective { on: usize, kind: Kind, op: ReduceOp, root: Rank, count: usize, started: bool },
    /// Every rank sends to the one `by` further and receives from the one `by` before, at the same time; both are waited for
    /// later when `started`.
    Shift { on: usize, by: u32, count: usize, started: bool },
    /// A group: every rank sends to every other `messages` times, with an all-reduce in between.
    Group { on: usize, count: usize, messages: usize },
    /// One message.
    Message { on: usize, from: Rank, to: Rank, count: usize },
    /// Both of two ranks send before they receive.
    BothSend { one: Rank, other: Rank, count: usize },
    /// Divides the first communicator by these colours; each part is communicator 1 of its ranks.
    Split { colors: Vec<u32> },
    /// One rank says how many ways to others it has left: the paths themselves are no part of these jobs.
    Paths { by: Rank, sights: Vec<(Rank, u32, u32)> },
    /// Time in the program's own code.
    Compute { most: Duration },
}

/// The program of all ranks.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) items: Vec<Item>,
    /// Which ranks are on communicator 1 together, by colour; empty before a split.
    pub(super) colors: Vec<u32>,
}

impl Program {
    pub(super) fn random(ranks: u32, random: &mut Random) -> Self {
        let mut program = Program { items: Vec::new(), colors: Vec::new() };
        let mut counts = BTreeSet::new();
        let length = 1 + random.below(if ranks > 16 { 5 } else { 14 });
        for index in 0..length {
            if program.colors.is_empty() && ranks > 1 && random.once_in(6) {
                let colors = (0..ranks).map(|_| random.below(2) as u32).collect::<Vec<_>>();
                program.colors.clone_from(&colors);
                program.items.push(Item::Split { colors });
            }
            if random.once_in(3) {
                let most = Duration::from_micros(1 << random.below(14));
                program.items.push(Item::Compute { most });
            }
            // Every count occurs once, so that a call that is left out never looks like the next one.
            let sizes: &[usize] = if ranks > 16 { &[0, 8, 256] } else { &[0, 0, 8, 64, 700, 5000] };
            let count = sizes[random.below(sizes.len())] * random.below(5) + 1 + index;
            let count = (count..).find(|count| !counts.contains(count)).unwrap_or(count);
            counts.insert(count);
            let count = if random.once_in(15) { 0 } else { count };
            let on = usize::from(!program.colors.is_empty() && random.once_in(2));
            let item = program.item(on, ranks, count, random);
            program.items.push(item);
        }
        program
    }

    fn item(&self, on: usize, ranks: u32, count: usize, random: &mut Random) -> Item {
        let ops = [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Prod];
        let op = ops[random.below(ops.len())];
        // A root or a peer must exist in every part of a split.
        let root = if on == 0 { random.below(ranks as usize) as Rank } else { 0 };
        if on == 0 && ranks > 1 && random.once_in(5) {
            if ranks <= 16 && random.once_in(3) {
                return Item::Group { on, count, messages: 1 + random.below(3) };
            }
            if random.once_in(2) {
                let by = 1 + random.below(ranks as usize - 1) as u32;
                return Item::Shift { on, by, count, started: false };
            }
            let to = (root + 1 + random.below(ranks as usize - 1) as u32) % ranks;
            return Item::Message { on, from: root, to, count };
        }
        let kind = KINDS[random.below(KINDS.len())];
        let op = if kind == Kind::Barrier { ReduceOp::Max } else { op };
        let count = if kind == Kind::Barrier { 1 } else { count };
        let started = kind != Kind::Barrier && random.once_in(6);
        Item::Collective { on, kind, op, root: if kind.is_rooted() { root } else { 0 }, count, started }
    }

    /// The ranks of the first communicator that are on communicator `on` with `rank`, in their order there.
    pub(super) fn members(&self, on: usize, rank: Rank, ranks: u32) -> Vec<Rank> {
        if on == 0 {
            return (0..ranks).collect();
        }
        let color = self.colors[rank as usize];
        (0..ranks).filter(|other| self.colors[*other as usize] == color).collect()
    }
}

/// A collective as the engine takes it.
pub(super) fn call(kind: Kind, op: ReduceOp, root: Rank, count: usize) -> Call {
    let reduces = matches!(kind, Kind::AllReduce | Kind::Reduce | Kind::ReduceScatter | Kind::Barrier);
    Call::new(kind, DATA_TYPE, reduces.then_some(op), root, count)
}

pub(super) fn message(kind: Kind, peer: Rank, count: usize) -> Call {
    Call::new(kind, DATA_TYPE, None, peer, count)
}

/// The contribution of a rank (of the job) at `index` of item `item`.
pub(super) fn contribution(item: usize, rank: Rank, index: usize) -> u64 {
    hash((item as u64) << 48 ^ u64::from(rank) << 32 ^ index as u64)
}

pub(super) fn filled(item: usize, rank: Rank, elements: usize) -> Vec<u8> {
    (0..elements).flat_map(|index| contribution(item, rank, index).to_le_bytes()).collect()
}

/// The expected output of rank `me` of `members`. Barriers carry no data: one looks like another.
pub(super) fn expected(item: usize, call: &Call, members: &[Rank], me: usize) -> Vec<u8> {
    let at = |rank: Rank, index: usize| contribution(item, members[rank as usize], index);
    let fold = |index: usize| {
        let values = (0..members.len() as Rank).map(|rank| at(rank, index));
        values.reduce(|a, b| match call.op {
            Some(ReduceOp::Min) => a.min(b),
            Some(ReduceOp::Max) => a.max(b),
            Some(ReduceOp::Prod) => a.wrapping_mul(b),
            _ => a.wrapping_add(b),
        })
    };
    let count = call.count;
    let values: Vec<u64> = match call.kind {
        Kind::AllReduce => (0..count).filter_map(fold).collect(),
        Kind::Reduce if call.root as usize == me => (0..count).filter_map(fold).collect(),
        Kind::ReduceScatter => (me * count..(me + 1) * count).filter_map(fold).collect(),
        Kind::Broadcast => (0..count).map(|index| at(call.root, index)).collect(),
        Kind::Scatter => (me * count..(me + 1) * count).map(|index| at(call.root, index)).collect(),
        Kind::AllToAll => (0..members.len() as Rank)
            .flat_map(|rank| (me * count..(me + 1) * count).map(move |index| (rank, index)))
            .map(|(rank, index)| at(rank, index))
            .collect(),
        Kind::Gather if call.root as usize != me => Vec::new(),
        Kind::AllGather | Kind::Gather => (0..members.len() as Rank)
            .flat_map(|rank| (0..count).map(move |index| (rank, index)))
            .map(|(rank, index)| at(rank, index))
            .collect(),
        Kind::Receive => (0..count).map(|index| at(call.root, index)).collect(),
        _ => Vec::new(),
    };
    values.into_iter().flat_map(u64::to_le_bytes).collect()
}
