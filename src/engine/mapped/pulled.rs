//! A collective on ordinary buffers, of which every rank reads what it needs through the system
//! ([`read_process`]): one copy fewer than by slots, at the price of the system's walk over pages.
//!
//! The folds are those of the [two-shot](consort_algorithms::builders) all-reduce and of the direct reduce-scatter, in the
//! order of ranks.
//!
//! Invariant: nobody writes to another's memory. What was read counts only if no rank has forbidden it by then, as one does
//! whose call fails and whose buffers are its caller's again. Ranks read between the entry, in which
//! buffers are said to be as they should, and the exit; an all-reduce has a round in between, before which only parts of
//! inputs are read that their owners do not write, and after which only parts of outputs that are complete.

use std::io;

use consort_algorithms::{Chunk, Partition};
use consort_kernels::{Reducer, Source, Store, Target, copy};
use consort_memory::{Span, SpanMut};
use consort_transports::read_process;

use super::notes::Entry;
use crate::Rank;
use crate::call::{Call, Kind};
use crate::eager::{MESSAGE_BYTES_MAX, RANKS_MAX};
use crate::engine::{Buffers, Progress};
use crate::notice::inform;

/// What is read at a time to be folded: a good part of a second-level cache.
const PIECE_BYTES: usize = 128 << 10;
/// What a turn moves at most: about a tenth of a millisecond.
const TURN_BYTES: usize = 1 << 20;

/// Whether ranks read what they need of a call like this one; `in_rank_order` says whether the plan that would run instead
/// folds in the order of ranks, as this does.
pub(in crate::engine) fn is_for(call: &Call, in_rank_order: bool) -> bool {
    let folds = matches!(call.kind, Kind::AllReduce | Kind::ReduceScatter);
    let moves = matches!(call.kind, Kind::AllGather | Kind::Broadcast | Kind::AllToAll);
    let block_bytes = call.count * call.data_type.size();
    (moves || folds && in_rank_order) && block_bytes > MESSAGE_BYTES_MAX && call.scalar.is_none()
}

/// Where another rank's buffers are.
#[derive(Clone, Copy, Default)]
pub(super) struct Theirs {
    pub(super) pid: u32,
    pub(super) input: u64,
    pub(super) output: u64,
}

/// A range of another rank that is copied.
struct Copy {
    from: Rank,
    address: u64,
    to: usize,
    bytes: usize,
}

/// What is folded: the same range of every input.
#[derive(Clone, Copy)]
struct Fold {
    input: usize,
    output: usize,
    bytes: usize,
}

/// One operation on its way.
#[derive(Default)]
pub(super) struct Pull {
    fold: Option<Fold>,
    copies: Vec<Copy>,
    /// From where in the own input to where in the own output.
    own: Option<(usize, usize, usize)>,
    /// Bytes of the fold, or the copy and the bytes of it, that are done.
    folded: usize,
    at: (usize, usize),
    /// What was read of each other rank.
    pieces: Vec<u8>,
}

impl Pull {
    /// Begins an operation of blocks of so many bytes.
    pub(super) fn begin(&mut self, call: &Call, me: Rank, theirs: &[Theirs]) {
        let (size, element) = (theirs.len() as u32, call.data_type.size());
        let block = call.count * element;
        let mine = me as usize * block;
        self.copies.clear();
        (self.fold, self.own, self.folded, self.at) = (None, None, 0, (0, 0));
        // Each begins with another, so that not all read from one.
        let others = (1..size).map(|step| (me + step) % size);
        let copies = &mut self.copies;
        match call.kind {
            Kind::AllReduce => {
                let parts = Partition { parts: size }.extents(call.count, element);
                let part = |rank: Rank| (parts.offset(Chunk(rank)), parts.length(Chunk(rank)));
                let (at, bytes) = part(me);
                self.fold = Some(Fold { input: at, output: at, bytes });
                copies.extend(others.map(|from| {
                    let (to, bytes) = part(from);
                    Copy { from, address: theirs[from as usize].output + to as u64, to, bytes }
                }));
            }
            Kind::ReduceScatter => self.fold = Some(Fold { input: mine, output: 0, bytes: block }),
            Kind::AllGather => {
                self.own = Some((0, mine, block));
                copies.extend(others.map(|from| {
                    let to = from as usize * block;
                    Copy { from, address: theirs[from as usize].input, to, bytes: block }
                }));
            }
            Kind::AllToAll => {
                self.own = Some((mine, mine, block));
                copies.extend(others.map(|from| {
                    let to = from as usize * block;
                    let address = theirs[from as usize].input + mine as u64;
                    Copy { from, address, to, bytes: block }
                }));
            }
            Kind::Broadcast if call.root == me => self.own = Some((0, 0, block)),
            _ => {
                let address = theirs[call.root as usize].input;
                copies.push(Copy { from: call.root, address, to: 0, bytes: block });
            }
        }
    }

    /// Whether there is a round between folding and copying.
    pub(super) fn has_halves(&self) -> bool {
        self.fold.is_some() && !self.copies.is_empty()
    }

    /// Folds, to its end or the end of a turn.
    ///
    /// # Errors
    /// The rank that could not be read from, and the system's error.
    pub(super) fn fold(
        &mut self,
        me: Rank,
        theirs: &[Theirs],
        reducer: &Reducer,
        buffers: Buffers<'_>,
        streaming: bool,
    ) -> Result<Progress, (Rank, io::Error)> {
        let Some(Fold { input, output, bytes }) = self.fold else { return Ok(Progress::Done) };
        let store = if streaming { Store::Streaming } else { Store::Cached };
        self.pieces.resize(theirs.len() * PIECE_BYTES, 0);
        let until = bytes.min(self.folded + TURN_BYTES / theirs.len());
        while self.folded < until {
            let at = input + self.folded;
            let piece = PIECE_BYTES.min(bytes - self.folded);
            let slots = SpanMut::of(&mut self.pieces);
            let slot = |rank: usize| slots.slice(rank * PIECE_BYTES, piece);
            for (rank, their) in theirs.iter().enumerate().filter(|(rank, _)| *rank != me as usize) {
                read_process(their.pid, their.input + at as u64, slot(rank))
                    .map_err(|error| (rank as Rank, error))?;
            }
            let contribution = |rank: usize| -> Span<'_> {
                if rank == me as usize { buffers.input.slice(at, piece) } else { slot(rank).read() }
            };
            let mut sources = [Source { span: Span::empty(), raw: true }; RANKS_MAX as usize];
            for (rank, source) in sources.iter_mut().enumerate().take(theirs.len()) {
                source.span = contribution(rank);
            }
            let span = buffers.output.slice(output + self.folded, piece);
            reducer.fold_in_turn(&[Target { span, store }], &sources[..theirs.len()], true);
            self.folded += piece;
        }
        Ok(if self.folded == bytes { Progress::Done } else { Progress::Moved })
    }

    /// Copies, to its end or the end of a turn.
    ///
    /// # Errors
    /// As [`Pull::fold`].
    pub(super) fn copy(
        &mut self,
        theirs: &[Theirs],
        buffers: Buffers<'_>,
    ) -> Result<Progress, (Rank, io::Error)> {
        if let Some((from, to, bytes)) = self.own.take() {
            let (from, to) = (buffers.input.slice(from, bytes), buffers.output.slice(to, bytes));
            if from.as_ptr() != to.as_mut_ptr().cast_const() {
                copy(&[Target { span: to, store: Store::Cached }], from);
            }
        }
        let mut room = TURN_BYTES;
        while let Some(next) = self.copies.get(self.at.0) {
            let piece = room.min(next.bytes - self.at.1);
            if piece != 0 {
                let to = buffers.output.slice(next.to + self.at.1, piece);
                read_process(theirs[next.from as usize].pid, next.address + self.at.1 as u64, to)
                    .map_err(|error| (next.from, error))?;
                self.at.1 += piece;
                room -= piece;
            }
            if self.at.1 == next.bytes {
                self.at = (self.at.0 + 1, 0);
            }
            if room == 0 {
                return Ok(Progress::Moved);
            }
        }
        Ok(Progress::Done)
    }

    /// Bytes of its tables.
    pub(super) fn memory_bytes(&self) -> usize {
        self.pieces.capacity() + self.copies.capacity() * size_of::<Copy>()
    }
}

/// Whether every other rank's word is where it says.
pub(super) fn has_witnesses(me: Rank, theirs: &[Theirs], entries: &[Entry]) -> bool {
    let others = (0..).zip(theirs.iter().zip(entries)).filter(|(rank, _)| *rank != me);
    others.into_iter().all(|(rank, (their, entry))| {
        let mut word = [0u8; 8];
        let read = read_process(their.pid, entry.witness.0, SpanMut::of(&mut word));
        if let Err(error) = &read {
            inform(&format!("the memory of rank {rank} cannot be read (process_vm_readv): {error}"));
        }
        read.is_ok() && u64::from_le_bytes(word) == entry.witness.1
    })
}

#[cfg(test)]
mod tests {
    use crate::{Cma, Communicator, Options, ReduceOp, UniqueId};

    /// Bits of a float of any size and sign, which no sum of a few makes infinite.
    fn value(rank: usize, at: usize, call: u32) -> f32 {
        let mixed =
            (rank as u32).wrapping_mul(0x9e37_79b9) ^ (at as u32).wrapping_mul(0x85eb_ca6b) ^ call << 9;
        f32::from_bits(mixed.wrapping_mul(0xc2b2_ae35) & 0xbfff_ffff)
    }

    /// Calls of every kind that can be pulled; the results are checked, bit by bit in the order of ranks, sums of more than
    /// two ranks to what is rounded.
    fn calls(comm: &Communicator, count: usize, times: u32) {
        let (me, size) = (comm.rank() as usize, comm.size() as usize);
        let same = |got: &[f32], expected: &dyn Fn(usize) -> f32, what: &str| {
            let wrong = got.iter().enumerate().find(|(at, got)| got.to_bits() != expected(*at).to_bits());
            assert!(
                wrong.is_none(),
                "{what} of {count}: {wrong:?}, expected {:?}",
                wrong.map(|(at, _)| expected(at))
            );
        };
        let (mut long, mut block) = (vec![0f32; count * size], vec![0f32; count]);
        for call in 0..times {
            let own: Vec<f32> = (0..count).map(|at| value(me, at, call)).collect();
            let all: Vec<f32> = (0..count * size).map(|at| value(me, at, call)).collect();
            let sum = |at: usize| (1..size).fold(value(0, at, call), |sum, rank| sum + value(rank, at, call));
            // Of more than two ranks every piece is folded in an order of its own, so bits may differ, by no more than
            // what is rounded.
            let sums = |got: &[f32], at: &dyn Fn(usize) -> usize, what: &str| {
                if size == 2 {
                    return same(got, &|here| sum(at(here)), what);
                }
                for (here, got) in got.iter().enumerate() {
                    let all = || (0..size).map(|rank| value(rank, at(here), call));
                    let exact: f64 = all().map(f64::from).sum();
                    let rounded = all().map(|one| f64::from(one.abs())).sum::<f64>()
                        * size as f64
                        * f64::from(f32::EPSILON);
                    assert!(
                        (f64::from(*got) - exact).abs() <= rounded,
                        "{what} of {count} at {here}: {got}, {exact}"
                    );
                }
            };
            block.copy_from_slice(&own);
            comm.all_reduce(&mut block, ReduceOp::Sum).unwrap();
            sums(&block, &|at| at, "all-reduce in place");
            comm.all_reduce_into(&own, &mut block, ReduceOp::Sum).unwrap();
            sums(&block, &|at| at, "all-reduce");
            comm.reduce_scatter(&all, &mut block, ReduceOp::Sum).unwrap();
            sums(&block, &|at| me * count + at, "reduce-scatter");
            comm.all_reduce_into(&own, &mut block, ReduceOp::Max).unwrap();
            same(
                &block,
                &|at| (0..size).map(|rank| value(rank, at, call)).fold(f32::MIN, f32::max),
                "maximum",
            );
            comm.all_gather(&own, &mut long).unwrap();
            same(&long, &|at| value(at / count, at % count, call), "all-gather");
            long[..me * count].fill(0.5);
            long[(me + 1) * count..].fill(0.5);
            comm.all_gather_in_place(&mut long).unwrap();
            same(&long, &|at| value(at / count, at % count, call), "all-gather in place");
            comm.all_to_all(&all, &mut long).unwrap();
            same(&long, &|at| value(at / count, me * count + at % count, call), "all-to-all");
            block.copy_from_slice(&own);
            let root = call % size as u32;
            comm.broadcast(&mut block, root).unwrap();
            same(&block, &|at| value(root as usize, at, call), "broadcast");
        }
    }

    fn run(size: u32, count: usize, times: u32, cma: Cma) -> Vec<Option<bool>> {
        let id = &UniqueId::create().unwrap();
        std::thread::scope(|threads| {
            let run = move |rank| {
                let comm = Communicator::join_with(rank, size, id, &Options::default().cma(cma)).unwrap();
                calls(&comm, count, times);
                comm.core().has_pulled()
            };
            let ranks: Vec<_> = (0..size).map(|rank| threads.spawn(move || run(rank))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn what_ranks_read_of_each_other_is_right() {
        // Pieces, turns and parts of nothing among them.
        for (size, count) in [(2, 17_001), (2, 1_200_003), (3, 20_000), (5, 40_001)] {
            let pulled = run(size, count, 3, Cma::Always);
            match pulled[0] {
                None => eprintln!("SKIP: this system forbids process_vm_readv"),
                Some(_) => assert_eq!(pulled, vec![Some(true); size as usize]),
            }
            assert_eq!(run(size, count, 2, Cma::Never), vec![None; size as usize]);
        }
    }

    #[test]
    fn it_is_tried_while_running() {
        let pulled = run(2, 17_001, 250, Cma::Auto);
        assert!(pulled.iter().all(|pulled| *pulled != Some(false)), "{pulled:?}");
    }
}
