//! Every chunk from the rank that has it to all others: each becomes a tree.
//!
//! An edge that is free takes the chunk with the fewest copies that its end lacks. A slow edge takes none that the end
//! could have over faster ones, if it is slow enough: then each chunk enters a box once, over whichever adapter is
//! free first.
//!
//! Source: as [`clock`](super::clock), and for the fewest copies first J. Huang et al., "Communication
//! Algorithm-Architecture Co-Design for Distributed Deep Learning" (MultiTree), ISCA 2021, whose trees grow level by
//! level in turn. Invariant: a rank gets each chunk once. Absent: places and rounds.

use std::collections::BTreeMap;

use super::clock::{Step, Work, run};
use super::wires::Wires;

/// Chunks by bits.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Bits(Vec<u64>);

impl Bits {
    fn new(bits: usize) -> Bits {
        Bits(vec![0; bits.div_ceil(64)])
    }

    fn set(&mut self, bit: u32, to: bool) {
        let word = &mut self.0[bit as usize / 64];
        *word = *word & !(1 << (bit % 64)) | u64::from(to) << (bit % 64);
    }
}

/// Ranks that are near each other: an edge of one time brings no chunk to a group that has it.
struct Level {
    /// The group of each rank.
    group: Vec<u32>,
    /// For each group the chunks that one of its ranks has or will have.
    known: Vec<Bits>,
}

/// The edge over which each rank gets each chunk; none where it has it from the start.
pub(super) type Parents = Vec<Vec<Option<u32>>>;

/// A distribution of chunks under way.
struct Spread<'a> {
    wires: &'a Wires,
    has: Vec<Bits>,
    lacks: Vec<Bits>,
    copies: Vec<u32>,
    /// Groups by the binary logarithm of the time of an edge.
    levels: BTreeMap<u32, Level>,
    /// For each edge the chunks that it may carry; all where there is none.
    only: Option<Vec<Bits>>,
    /// Time units for which each rank has sent.
    sent: Vec<u64>,
    turn: u64,
}

/// How a spread is tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Way {
    /// How many times slower an edge is than those of a group to which it brings no second copy; none for no groups.
    pub(super) slower: Option<u64>,
    /// Changes which of equal edges and chunks come first.
    pub(super) turn: u64,
}

/// Spreads chunks from their `origins` to all ranks; gives the trees, and how many edges were looked at.
pub(super) fn spread(wires: &Wires, origins: &[u32], way: Way) -> (Parents, u64) {
    let mut spread = Spread::new(wires, origins, way.turn);
    if let Some(slower) = way.slower {
        spread.levels = levels(wires, origins, slower);
    }
    let (steps, looked) = run(wires, &mut spread);
    let mut parents: Parents = vec![vec![None; wires.ranks as usize]; origins.len()];
    for Step { edge, chunk, .. } in steps {
        parents[chunk as usize][wires.edges[edge as usize].to as usize] = Some(edge);
    }
    (parents, looked)
}

/// The same trees again, each chunk as early as its edges are free.
pub(super) fn along(wires: &Wires, origins: &[u32], parents: &Parents) -> Vec<Step> {
    let mut spread = Spread::new(wires, origins, 0);
    let mut only = vec![Bits::new(origins.len()); wires.edges.len()];
    for (chunk, tree) in (0..).zip(parents) {
        tree.iter().flatten().for_each(|edge| only[*edge as usize].set(chunk, true));
    }
    spread.only = Some(only);
    run(wires, &mut spread).0
}

/// Whether groups make a difference.
pub(super) fn has_groups(wires: &Wires, slower: u64) -> bool {
    let groups = |level: &Level| (0..).zip(&level.group).any(|(rank, group)| rank != *group);
    levels(wires, &[], slower).values().any(groups)
}

/// For each power of two among the times of edges the groups of ranks that edges join both ways, each at least
/// `slower` times as fast.
fn levels(wires: &Wires, origins: &[u32], slower: u64) -> BTreeMap<u32, Level> {
    let mut fastest: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    for edge in &wires.edges {
        let time = fastest.entry((edge.from, edge.to)).or_insert(edge.time);
        *time = edge.time.min(*time);
    }
    let mut levels = BTreeMap::new();
    for edge in &wires.edges {
        levels.entry(edge.time.ilog2()).or_insert_with_key(|power| {
            let is_near =
                |pair: &(u32, u32)| fastest.get(pair).is_some_and(|time| time * slower <= 1 << power);
            let mut group: Vec<u32> = (0..wires.ranks).collect();
            for (from, to) in
                fastest.keys().filter(|(from, to)| is_near(&(*from, *to)) && is_near(&(*to, *from)))
            {
                let (one, other) = (group[*from as usize], group[*to as usize]);
                let (low, high) = (one.min(other), one.max(other));
                group.iter_mut().filter(|of| **of == high).for_each(|of| *of = low);
            }
            let mut known = vec![Bits::new(origins.len()); wires.ranks as usize];
            (0..)
                .zip(origins)
                .for_each(|(chunk, rank)| known[group[*rank as usize] as usize].set(chunk, true));
            Level { group, known }
        });
    }
    levels
}

impl<'a> Spread<'a> {
    fn new(wires: &'a Wires, origins: &[u32], turn: u64) -> Spread<'a> {
        let chunks = origins.len();
        let mut has = vec![Bits::new(chunks); wires.ranks as usize];
        let mut lacks = has.clone();
        for (chunk, &origin) in (0..).zip(origins) {
            for (rank, (has, lacks)) in (0..).zip(has.iter_mut().zip(&mut lacks)) {
                let bits = if rank == origin { has } else { lacks };
                bits.set(chunk, true);
            }
        }
        let (copies, sent) = (vec![1; chunks], vec![0; wires.ranks as usize]);
        Spread { wires, has, lacks, copies, levels: BTreeMap::new(), only: None, sent, turn }
    }
}

impl Work for Spread<'_> {
    fn pick(&mut self, number: u32) -> Option<u32> {
        let edge = &self.wires.edges[number as usize];
        let (from, to) = (edge.from as usize, edge.to as usize);
        let known = self.levels.get(&edge.time.ilog2()).map(|level| &level.known[level.group[to] as usize].0);
        let only = self.only.as_ref().map(|only| &only[number as usize].0);
        // Ranks begin at different chunks, so that they do not all want the same one.
        let chunks = self.copies.len() as u32;
        let first =
            ((u64::from(edge.to) + self.turn) * u64::from(chunks) / u64::from(self.wires.ranks)) as u32;
        let mut best: Option<(u32, u32, u32)> = None;
        for (at, (has, lacks)) in self.has[from].0.iter().zip(&self.lacks[to].0).enumerate() {
            let mut word = has & lacks;
            word &= known.map_or(u64::MAX, |known| !known[at]) & only.map_or(u64::MAX, |only| only[at]);
            while word != 0 {
                let chunk = 64 * at as u32 + word.trailing_zeros();
                word &= word - 1;
                let key = (self.copies[chunk as usize], (chunk + chunks - first % chunks) % chunks, chunk);
                best = Some(best.map_or(key, |best| best.min(key)));
            }
        }
        let (_, _, chunk) = best?;
        self.lacks[to].set(chunk, false);
        self.copies[chunk as usize] += 1;
        self.sent[from] += edge.time;
        for level in self.levels.values_mut() {
            let group = level.group[to];
            level.known[group as usize].set(chunk, true);
        }
        Some(chunk)
    }

    fn arrive(&mut self, edge: u32, chunk: u32) {
        self.has[self.wires.edges[edge as usize].to as usize].set(chunk, true);
    }

    /// Fast edges come first, then ranks that have sent least.
    fn order(&self, number: u32) -> u64 {
        let edge = &self.wires.edges[number as usize];
        let near = (u64::from(edge.to) + u64::from(self.wires.ranks) - u64::from(edge.from) + self.turn)
            % u64::from(self.wires.ranks);
        (edge.time.min(1 << 23) << 40)
            | (self.sent[edge.from as usize] / edge.time.max(1)).min(1 << 20) << 16
            | near
    }
}
