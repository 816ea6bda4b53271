//! Bytes from rank to rank.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::Rank;

/// Why bytes move.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// Activations and their gradients among ranks that share matrices.
    Tensor,
    /// Keys, values and their gradients among ranks that share sequences.
    Context,
    /// Tokens to and from their experts.
    Expert,
    /// Gradients and parameters among copies of the model.
    Data,
    /// Activations and their gradients from stage to stage.
    Pipeline,
    /// Gradients of the embedding, between its copies on the first and the last stage.
    Embedding,
}

impl Kind {
    /// All of them, in the order of their numbers.
    pub const ALL: [Kind; 6] =
        [Kind::Tensor, Kind::Context, Kind::Expert, Kind::Data, Kind::Pipeline, Kind::Embedding];

    /// One word.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Tensor => "tensor",
            Kind::Context => "context",
            Kind::Expert => "expert",
            Kind::Data => "data",
            Kind::Pipeline => "pipeline",
            Kind::Embedding => "embedding",
        }
    }
}

/// Bytes of each kind; indexed by the kinds' numbers.
pub type Bytes = [u64; Kind::ALL.len()];

/// Bytes from each rank to each other. Pairs that never talk are not stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Traffic {
    ranks: u32,
    sent: BTreeMap<(Rank, Rank), Bytes>,
}

/// Part `at` of `whole` bytes in `parts` nearly equal ones.
fn part(whole: u64, parts: usize, at: usize) -> u64 {
    let edge = |at: usize| (u128::from(whole) * at as u128 / parts as u128) as u64;
    edge(at + 1) - edge(at)
}

impl Traffic {
    /// None, among as many ranks.
    pub fn new(ranks: u32) -> Traffic {
        Traffic { ranks, sent: BTreeMap::new() }
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Each pair of sender and receiver that talks, in order, with its bytes.
    pub fn pairs(&self) -> impl Iterator<Item = ((Rank, Rank), &Bytes)> {
        self.sent.iter().map(|(pair, bytes)| (*pair, bytes))
    }

    /// Bytes of all kinds from one rank to another.
    pub fn between(&self, from: Rank, to: Rank) -> u64 {
        self.sent.get(&(from, to)).map_or(0, |bytes| bytes.iter().sum())
    }

    /// Bytes of a kind, of all pairs.
    pub fn total(&self, kind: Kind) -> u64 {
        self.sent.values().map(|bytes| bytes[kind as usize]).sum()
    }

    /// Bytes that each rank sends, and that each receives.
    pub fn of_ranks(&self) -> (Vec<u64>, Vec<u64>) {
        let mut sent = vec![0; self.ranks as usize];
        let mut received = sent.clone();
        for ((from, to), bytes) in &self.sent {
            let bytes: u64 = bytes.iter().sum();
            sent[from.index()] += bytes;
            received[to.index()] += bytes;
        }
        (sent, received)
    }

    /// Pairs of ranks that talk in either direction, and all pairs.
    pub fn talking(&self) -> (u64, u64) {
        let pairs: BTreeSet<(Rank, Rank)> =
            self.sent.keys().map(|&(from, to)| (from.min(to), from.max(to))).collect();
        let ranks = u64::from(self.ranks);
        (pairs.len() as u64, ranks * ranks.saturating_sub(1) / 2)
    }

    /// A line for each sender and receiver that talk: the ranks, the bytes of a step, and those of each kind.
    pub fn csv(&self) -> String {
        let names = Kind::ALL.map(Kind::name).join(",");
        let mut text = format!("from,to,bytes,{names}\n");
        for ((from, to), bytes) in &self.sent {
            let of_kinds = bytes.map(|bytes| bytes.to_string()).join(",");
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{},{},{},{of_kinds}", from.0, to.0, bytes.iter().sum::<u64>());
        }
        text
    }

    /// One message, `times` times. Nothing where it has no bytes or stays on its rank.
    pub(super) fn send(&mut self, kind: Kind, from: Rank, to: Rank, bytes: u64, times: u64) {
        if from != to && bytes * times > 0 {
            self.sent.entry((from, to)).or_default()[kind as usize] += bytes * times;
        }
    }

    /// A ring reduce-scatter of buffers of `bytes`: rank `i` of the ring ends with part `i`, which begins at the rank behind
    /// it and passes all links but the one that leaves it.
    ///
    /// Source: P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
    pub(super) fn reduce_scatter(&mut self, kind: Kind, ring: &[Rank], bytes: u64, times: u64) {
        for (at, from) in ring.iter().enumerate() {
            let to = ring[(at + 1) % ring.len()];
            self.send(kind, *from, to, bytes - part(bytes, ring.len(), at), times);
        }
    }

    /// A ring all-gather to buffers of `bytes`: part `i` begins at rank `i` and passes all links but the one that enters it.
    pub(super) fn all_gather(&mut self, kind: Kind, ring: &[Rank], bytes: u64, times: u64) {
        for (at, from) in ring.iter().enumerate() {
            let next = (at + 1) % ring.len();
            self.send(kind, *from, ring[next], bytes - part(bytes, ring.len(), next), times);
        }
    }

    /// A ring all-reduce: reduce-scatter and all-gather.
    pub(super) fn all_reduce(&mut self, kind: Kind, ring: &[Rank], bytes: u64, times: u64) {
        self.reduce_scatter(kind, ring, bytes, times);
        self.all_gather(kind, ring, bytes, times);
    }

    /// Each rank sends to each other its part of `bytes`, directly.
    pub(super) fn all_to_all(&mut self, kind: Kind, group: &[Rank], bytes: u64, times: u64) {
        for from in group {
            for (at, to) in group.iter().enumerate() {
                self.send(kind, *from, *to, part(bytes, group.len(), at), times);
            }
        }
    }

    /// Each rank sends `bytes` to the next of the ring.
    pub(super) fn pass(&mut self, kind: Kind, ring: &[Rank], bytes: u64, times: u64) {
        for (at, from) in ring.iter().enumerate() {
            self.send(kind, *from, ring[(at + 1) % ring.len()], bytes, times);
        }
    }
}
