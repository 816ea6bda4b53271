//! All-reduce where switches fold and multicast.
//!
//! Sources: B. Klenk, N. Jiang, G. Thorson and L. Dennison, "An in-network architecture for accelerating
//! shared-memory multiprocessor collectives", ISCA 2020 (one switch that ranks load from and store through; NVLink
//! SHARP); R. L. Graham et al., "Scalable hierarchical aggregation protocol (SHARP): a hardware architecture for
//! efficient data reduction", COMHPC 2016 (a tree of switches).
//!
//! Cost over `n` ranks, with `M` the bytes of the buffer. A step goes to a switch and back: two messages, one after
//! the other.
//!
//! | form | longest chain of messages | bytes out of (and into) every rank's port |
//! |---|---|---|
//! one shot: every rank sends, the switch multicasts | 2 | `M` |
//! two steps: rank `r` loads piece `r` folded, stores it by multicast | 4 | `(1 + 1/n) M` |
//! | tree of two levels of switches | 4 | `M`; on the links between switches `M` too |
//!
//! A switch has a place for every piece of every port and folds them by transfers to itself in rounds of their
//! own, which cost no message. Ranks need no scratch for one shot and tree, one piece for two steps.
//!
//! Fold order: a switch folds its ports from the left in their order. Ranks are in the order of their numbers, and so
//! are a tree's leaf switches.
//!
//! Invariant: a switch has scratch places only. Deliberately absent: the limits of a real switch (groups, operators,
//! element types), and collectives other than all-reduce.

use super::compose::beside;
use super::hierarchical::one_rank;
use crate::{Channel, Chunk, Collective, Partition, Place, Rank, Round, Schedule, Transfer};

/// How one switch is used.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SwitchForm {
    /// Every rank sends its whole input; the switch folds all of them and multicasts the result.
    OneShot,
    /// Every rank loads its own piece, folded by the switch, and stores it through the switch to all ranks, as NVLS
    /// does.
    TwoStep,
}

/// Whether switches serve the collective: all-reduce alone.
pub fn switch_is_defined(collective: Collective) -> bool {
    collective == Collective::AllReduce
}

/// The all-reduce of `ranks` ranks around one switch; a single rank needs none.
///
/// # Panics
///
/// When `ranks` is 0, or `u32` cannot number the places of the switch.
pub fn switch(ranks: u32, form: SwitchForm) -> Schedule {
    let (parts, name) = match form {
        SwitchForm::OneShot => (1, "switch(one-shot)"),
        SwitchForm::TwoStep => (ranks, "switch(two-step)"),
    };
    assert!(ranks > 0, "an all-reduce needs a rank");
    let all = || (0..ranks).map(Rank);
    let pieces = || (0..parts).map(Chunk);
    let node = Switch { rank: Rank(ranks), parts };
    let load = pieces()
        .flat_map(|piece| all().map(move |rank| node.takes(rank, Place::Input(piece), rank.0, piece)));
    let mut rounds = vec![Round { transfers: load.collect() }];
    rounds.extend(node.folds(ranks));
    if form == SwitchForm::TwoStep {
        let owned = |piece: Chunk| (Rank(piece.0), Place::Scratch(piece));
        let round = |transfers: Vec<Transfer>| Round { transfers };
        rounds.push(round(pieces().map(|piece| node.gives(owned(piece).0, piece, owned(piece).1)).collect()));
        rounds.push(round(
            pieces().map(|piece| node.takes(owned(piece).0, owned(piece).1, 0, piece)).collect(),
        ));
    }
    let store =
        pieces().flat_map(|piece| all().map(move |rank| node.gives(rank, piece, Place::Output(piece))));
    rounds.push(Round { transfers: store.collect() });
    schedule(name.into(), ranks, 1, parts, rounds)
}

/// The all-reduce of `ranks` ranks under leaf switches of `per_leaf` ports (the last may have fewer in use) and,
/// where there are several, a root switch above them.
///
/// # Panics
///
/// When a number is 0.
pub fn switch_tree(ranks: u32, per_leaf: u32) -> Schedule {
    assert!(ranks > 0 && per_leaf > 0, "a tree of switches needs ranks and ports");
    let leaves = ranks.div_ceil(per_leaf);
    if leaves == 1 {
        return Schedule { name: "switch-tree(1)".into(), ..switch(ranks, SwitchForm::OneShot) };
    }
    let piece = Chunk(0);
    let leaf = |leaf: u32| Switch { rank: Rank(ranks + leaf), parts: 1 };
    let root = Switch { rank: Rank(ranks + leaves), parts: 1 };
    let above = |rank: u32| leaf(rank / per_leaf);
    let up = |rank: u32| above(rank).takes(Rank(rank), Place::Input(piece), rank % per_leaf, piece);
    let down = |rank: u32| above(rank).gives(Rank(rank), piece, Place::Output(piece));
    let sum = Place::Scratch(piece);
    let mut rounds = vec![Round { transfers: (0..ranks).map(up).collect() }];
    let ports = |of: u32| per_leaf.min(ranks - of * per_leaf);
    rounds.extend(beside((0..leaves).map(|of| leaf(of).folds(ports(of)))));
    rounds
        .push(Round { transfers: (0..leaves).map(|of| root.takes(leaf(of).rank, sum, of, piece)).collect() });
    rounds.extend(root.folds(leaves));
    rounds.push(Round { transfers: (0..leaves).map(|of| root.gives(leaf(of).rank, piece, sum)).collect() });
    rounds.push(Round { transfers: (0..ranks).map(down).collect() });
    schedule(format!("switch-tree({leaves})"), ranks, leaves + 1, 1, rounds)
}

fn schedule(name: String, ranks: u32, switches: u32, parts: u32, rounds: Vec<Round>) -> Schedule {
    let collective = Collective::AllReduce;
    if ranks == 1 {
        return Schedule { name, ..one_rank(collective) };
    }
    Schedule { name, collective, ranks, switches, partition: Partition { parts }, rounds }
}

/// A switch. Piece `c` of port `p` has the place `p * parts + c`; port 0's place takes the sum.
#[derive(Clone, Copy)]
struct Switch {
    rank: Rank,
    parts: u32,
}

impl Switch {
    fn place(&self, port: u32, piece: Chunk) -> Place {
        Place::Scratch(Chunk(port * self.parts + piece.0))
    }

    fn takes(&self, from: Rank, source: Place, port: u32, piece: Chunk) -> Transfer {
        let target = self.place(port, piece);
        Transfer { from, to: self.rank, channel: Channel(0), source, target, fold: None, own_first: false }
    }

    fn gives(&self, to: Rank, piece: Chunk, target: Place) -> Transfer {
        let source = self.place(0, piece);
        Transfer { from: self.rank, to, channel: Channel(0), source, target, fold: None, own_first: false }
    }

    /// Adds all pieces of the other ports to those of port 0, port after port.
    fn folds(&self, ports: u32) -> Vec<Round> {
        let fold = |port: u32, piece: Chunk| {
            let added = self.takes(self.rank, self.place(port, piece), 0, piece);
            Transfer { fold: Some(added.target), own_first: true, ..added }
        };
        let round =
            |port| Round { transfers: (0..self.parts).map(|piece| fold(port, Chunk(piece))).collect() };
        (1..ports).map(round).collect()
    }
}
