//! What each kind of call reads and writes: the one table that determines lengths of buffers, the in-place form, the
//! order of folds and the place of blocks.
//!
//! Invariant: the table agrees with the schedules of all algorithms of a collective; the tests compare them.

use consort_algorithms::{Extents, Partition};
use consort_kernels::{ReduceOp, Reducer};

use super::{Call, Kind};
use crate::Rank;

/// Which ranks have a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Who {
    All,
    Root,
    None,
}

/// How much of a buffer a call reads or writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// No byte.
    Nothing,
    /// One block.
    Block,
    /// One block of every rank.
    Whole,
}

/// How input and output may overlap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InPlace {
    /// Both are the same buffer.
    Same,
    /// The input is this rank's block of the output.
    InputWithin,
    /// The output is this rank's block of the input.
    OutputWithin,
    /// There is no in-place form.
    Apart,
}

/// A row of the table: the meaning of one kind of call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Semantics {
    input: (Who, Extent),
    output: (Who, Extent),
    pub in_place: InPlace,
    /// Whether the call names a rank: the root, or the other end of a message.
    pub is_rooted: bool,
    /// Whether the output is a fold of the contributions of all ranks.
    pub folds: bool,
}

impl Kind {
    /// The row of a kind.
    pub const fn semantics(self) -> Semantics {
        use {Extent::*, InPlace::*, Who::*};
        let (input, output, in_place, is_rooted, folds) = match self {
            Kind::AllReduce | Kind::Barrier => ((All, Block), (All, Block), Same, false, true),
            Kind::Reduce => ((All, Block), (Root, Block), Same, true, true),
            Kind::Broadcast => ((Root, Block), (All, Block), Same, true, false),
            Kind::AllGather | Kind::AllGatherV | Kind::Split | Kind::Grow | Kind::Replan | Kind::Mesh => {
                ((All, Block), (All, Whole), InputWithin, false, false)
            }
            Kind::Devices => ((All, Block), (All, Whole), Same, false, false),
            Kind::ReduceScatter | Kind::ReduceScatterV => {
                ((All, Whole), (All, Block), OutputWithin, false, true)
            }
            Kind::AllToAll | Kind::AllToAllReplicated => ((All, Whole), (All, Whole), Apart, false, false),
            Kind::Gather => ((All, Block), (Root, Whole), InputWithin, true, false),
            Kind::Scatter => ((Root, Whole), (All, Block), OutputWithin, true, false),
            Kind::Send => ((All, Block), (None, Nothing), Apart, true, false),
            Kind::Receive => ((None, Nothing), (All, Block), Apart, true, false),
        };
        Semantics { input, output, in_place, is_rooted, folds }
    }
}

impl Semantics {
    /// How much of its input a rank reads.
    pub fn reads(&self, rank: Rank, root: Rank) -> Extent {
        Self::of(self.input, rank, root)
    }

    /// How much of its output a rank writes.
    pub fn writes(&self, rank: Rank, root: Rank) -> Extent {
        Self::of(self.output, rank, root)
    }

    fn of((who, extent): (Who, Extent), rank: Rank, root: Rank) -> Extent {
        let has = match who {
            Who::All => true,
            Who::Root => rank == root,
            Who::None => false,
        };
        if has { extent } else { Extent::Nothing }
    }

    /// The distance from input to output in the in-place form, modulo the address space. This rank's block begins
    /// `block` bytes behind the start of the buffer that holds all blocks. `None` where there is no in-place form.
    pub fn in_place_offset(&self, block: usize) -> Option<usize> {
        match self.in_place {
            InPlace::Same => Some(0),
            InPlace::InputWithin => Some(block.wrapping_neg()),
            InPlace::OutputWithin => Some(block),
            InPlace::Apart => None,
        }
    }

    /// Whether other ranks read this rank's input, and whether they write its output, in the zero-copy form. There a
    /// rank folds or fetches data that has one place for all ranks, and stores a block that belongs to one rank in
    /// that rank's output.
    pub fn is_touched(&self, rank: Rank, root: Rank) -> [bool; 2] {
        let (reads, writes) = (self.reads(rank, root), self.writes(rank, root));
        let fetched = matches!(self.in_place, InPlace::Same | InPlace::OutputWithin);
        let is_own = self.in_place == InPlace::OutputWithin;
        [reads != Extent::Nothing && fetched, writes != Extent::Nothing && !is_own]
    }
}

impl Call {
    /// Bytes that the input of rank `rank` of `size` must have; `usize::MAX` where the number overflows, which
    /// no buffer has.
    pub fn input_bytes(&self, rank: Rank, size: u32) -> usize {
        self.bytes_of(self.kind.semantics().reads(rank, self.root), size)
    }

    /// Bytes that the output of rank `rank` of `size` must have; `usize::MAX` where the number overflows.
    pub fn output_bytes(&self, rank: Rank, size: u32) -> usize {
        self.bytes_of(self.kind.semantics().writes(rank, self.root), size)
    }

    fn bytes_of(&self, extent: Extent, size: u32) -> usize {
        let blocks = match extent {
            Extent::Nothing => return 0,
            Extent::Block => 1,
            Extent::Whole => size as usize,
        };
        blocks.saturating_mul(self.count).saturating_mul(self.data_type.size())
    }

    /// The distance from input to output where rank `rank` calls in place, modulo the address space. `None` where
    /// there is no in-place form.
    pub fn in_place(&self, rank: Rank) -> Option<usize> {
        self.kind.semantics().in_place_offset(self.count * self.data_type.size() * rank as usize)
    }

    /// The lengths and places of a plan's chunks in the buffers of `size` ranks, for equal blocks. A plan counts ranks and
    /// blocks from the root.
    pub fn extents(&self, partition: Partition, size: u32) -> Extents<'static> {
        let equal = partition.extents(self.count, self.data_type.size());
        let Semantics { input, output, is_rooted, .. } = self.kind.semantics();
        let is_whole = input.1 == Extent::Whole || output.1 == Extent::Whole;
        if is_rooted && is_whole { equal.from_root(self.root, size) } else { equal }
    }

    /// The rank of a plan, counted from the root, at which a fold begins. That is rank 0 of the communicator,
    /// whichever rank is the root.
    pub fn first_folded(&self, size: u32) -> u32 {
        let Semantics { is_rooted, folds, .. } = self.kind.semantics();
        if is_rooted && folds { (size - self.root) % size } else { 0 }
    }

    /// The reducer that folds the call's values.
    pub fn reducer(&self, size: u32) -> Reducer {
        match self.scalar {
            Some(scalar) => Reducer::pre_mul_sum(scalar),
            None => Reducer::new(self.data_type, self.op.unwrap_or(ReduceOp::Sum), size),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use consort_algorithms::catalogue::{Shape, candidates};
    use consort_algorithms::plan::Region;
    use consort_algorithms::{Chunk, Collective, Place, Schedule, lengths, mapped, mapped_reduce};
    use consort_kernels::DataType;

    use super::*;

    /// The kinds whose schedules have equal blocks, without the root and without messages.
    const KINDS: [Kind; 8] = [
        Kind::AllReduce,
        Kind::Reduce,
        Kind::Broadcast,
        Kind::AllGather,
        Kind::ReduceScatter,
        Kind::AllToAll,
        Kind::Gather,
        Kind::Scatter,
    ];

    fn roots(kind: Kind, size: u32) -> std::ops::Range<u32> {
        if kind.semantics().is_rooted { 0..size } else { 0..1 }
    }

    /// The bytes of every rank's input that a schedule reads, and of its output that it writes.
    fn used(schedule: &Schedule, call: &Call, size: u32) -> Vec<[BTreeSet<usize>; 2]> {
        let extents = call.extents(schedule.partition, size);
        let absolute = |relative: u32| ((relative + call.root) % size) as usize;
        let bytes = |chunk: Chunk, output: bool| {
            let whole = || lengths::holds_all(schedule.collective, output);
            let start = extents.offset_of(chunk, whole);
            start..start + extents.length(chunk)
        };
        let mut used = vec![[BTreeSet::new(), BTreeSet::new()]; size as usize];
        for transfer in schedule.rounds.iter().flat_map(|round| &round.transfers) {
            let (from, to) = (absolute(transfer.from.0), absolute(transfer.to.0));
            for (rank, place) in [(from, Some(transfer.source)), (to, transfer.fold)] {
                if let Some(Place::Input(chunk)) = place {
                    used[rank][0].extend(bytes(chunk, false));
                }
            }
            if let Place::Output(chunk) = transfer.target {
                used[to][1].extend(bytes(chunk, true));
            }
        }
        used
    }

    #[test]
    fn schedules_read_and_write_what_the_table_says() {
        let seed: u64 = 7;
        println!("seed {seed}");
        let mut state = seed;
        let mut below = |bound: u64| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 33) % bound
        };
        let shape = Shape {
            per_box: 2,
            channels: 2,
            bidirectional: true,
            all_pairs: true,
            rails: 2,
            ..Shape::default()
        };
        for kind in KINDS {
            for size in 1..=9 {
                for root in roots(kind, size) {
                    for algorithm in candidates(kind.collective(), size, &shape) {
                        let data_type =
                            [DataType::Uint8, DataType::Float16, DataType::Float64][below(3) as usize];
                        let op = kind.semantics().folds.then_some(ReduceOp::Sum);
                        let call = Call::new(kind, data_type, op, root, 1 + below(70) as usize);
                        let schedule = algorithm.schedule(kind.collective(), size);
                        for (rank, used) in (0..).zip(used(&schedule, &call, size)) {
                            let all = [call.input_bytes(rank, size), call.output_bytes(rank, size)];
                            let expected = all.map(|bytes| (0..bytes).collect::<BTreeSet<usize>>());
                            assert!(
                                used == expected,
                                "{call} by {algorithm}, rank {rank} of {size}: {all:?}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn mapped_plans_touch_what_the_table_says_and_folds_begin_at_rank_zero() {
        for kind in KINDS {
            for size in 2..=9u32 {
                for root in roots(kind, size) {
                    let call = Call::new(kind, DataType::Uint8, Some(ReduceOp::Sum), root, 64);
                    let first = call.first_folded(size);
                    let plans = match kind.collective() {
                        Collective::Reduce if first != 0 => mapped_reduce(size, first),
                        collective => mapped(collective, size),
                    };
                    let mut touched = vec![[false; 2]; size as usize];
                    for plan in plans.expect("there is one") {
                        for region in &plan.regions {
                            match region.region {
                                Region::Input(rank) if rank != plan.rank => touched[rank.index()][0] = true,
                                Region::Output(rank) if rank != plan.rank => touched[rank.index()][1] = true,
                                _ => {}
                            }
                        }
                    }
                    for (relative, touched) in (0..).zip(touched) {
                        let rank = (relative + root) % size;
                        let said = kind.semantics().is_touched(rank, root);
                        assert_eq!(said, touched, "{kind:?}, rank {rank} of {size}, root {root}");
                    }
                }
            }
        }
    }

    #[test]
    fn every_kind_agrees_with_its_collective() {
        for kind in Kind::ALL {
            let (collective, semantics) = (kind.collective(), kind.semantics());
            assert_eq!(semantics.folds, collective.reduces(), "{kind:?}");
            for size in 1..=9u32 {
                for (rank, root) in (0..size).flat_map(|rank| (0..size).map(move |root| (rank, root))) {
                    let relative = match kind {
                        Kind::Send => 0,
                        Kind::Receive => 1,
                        _ => (rank + size - if semantics.is_rooted { root } else { 0 }) % size,
                    };
                    let relative = consort_algorithms::Rank(relative);
                    let blocks = |extent| match extent {
                        Extent::Nothing => 0,
                        Extent::Block => 1,
                        Extent::Whole => size,
                    };
                    let of = |has: bool, blocks: u32| if has { blocks } else { 0 };
                    let read = of(collective.has_input(relative), collective.input_blocks(size));
                    let written = of(collective.has_output(relative), collective.output_blocks(size));
                    let root = if semantics.is_rooted { root } else { 0 };
                    assert_eq!(blocks(semantics.reads(rank, root)), read, "{kind:?} {rank} {root}");
                    assert_eq!(blocks(semantics.writes(rank, root)), written, "{kind:?} {rank} {root}");
                }
            }
        }
    }
}
