//! The operations of a torture run, each with its check.

use crate::bytes::Bytes;
use crate::pattern::Pattern;
use crate::torture::{Kind, Operation};
use consort::{Call, Communicator, DataType, ReduceOp, Result, Span, SpanMut};

/// A communicator to work on. Ranks of communicators that are used side by side have different contents.
#[derive(Clone, Copy)]
pub(super) struct Seat<'a> {
    pub(super) comm: &'a Communicator,
    pub(super) salt: u64,
}

/// Buffers of operations that failed: they belong to the caller again, and are filled at once with bytes that must
/// stay in them.
#[derive(Default)]
pub(super) struct Kept(Vec<Bytes>);

fn remembered(index: usize) -> u8 {
    (index as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0]
}

impl Kept {
    fn keep(&mut self, buffer: impl Into<Bytes>) {
        let mut buffer = buffer.into();
        buffer.iter_mut().enumerate().for_each(|(index, byte)| *byte = remembered(index));
        self.0.push(buffer);
    }

    /// Adds those of another thread.
    pub(super) fn take(&mut self, mut other: Kept) {
        self.0.append(&mut other.0);
    }

    /// Number of bytes that were written since.
    pub(super) fn changed(&self) -> usize {
        let changed = |buffer: &Bytes| {
            buffer.iter().enumerate().filter(|(index, byte)| **byte != remembered(*index)).count()
        };
        self.0.iter().map(changed).sum()
    }
}

/// A wrong result ends the run, whatever other fault it has.
fn wrong(what: &str) -> ! {
    println!("WRONG BITS {what}");
    std::process::exit(9);
}

/// One operation on one rank, with the contents of all.
struct Turn<'a> {
    comm: &'a Communicator,
    rank: u32,
    size: u32,
    key: u64,
    operation: Operation,
}

impl Turn<'_> {
    fn any(&self, rank: u32) -> Pattern {
        Pattern::any(self.operation.data_type, self.key, rank)
    }

    fn root(&self) -> u32 {
        (self.key % u64::from(self.size)) as u32
    }

    fn expect(&self, what: &str, expected: &Pattern, found: &[u8], from: usize) {
        if let Some(at) = expected.difference(found, from) {
            let (rank, size) = (self.rank, self.size);
            let operation = self.operation;
            wrong(&format!("{what} on rank {rank} of {size}: byte {at} of {}, {operation:?}", found.len()));
        }
    }

    /// Whether its buffers can be mapped by the others: in most operations those of all ranks or of none.
    fn is_shared(&self) -> bool {
        match self.key >> 40 & 3 {
            0 => false,
            3 => (self.key >> 44 ^ u64::from(self.rank)) & 1 == 0,
            _ => true,
        }
    }

    /// In place, on the one buffer.
    fn in_place(&self, call: &Call, buffer: Vec<u8>, kept: &mut Kept) -> Result<Bytes> {
        let mut buffer = Bytes::new(buffer, self.is_shared());
        let both = SpanMut::of(&mut buffer[..]);
        match self.comm.execute(call, both.read(), both) {
            Ok(()) => Ok(buffer),
            Err(error) => {
                kept.keep(buffer);
                Err(error)
            }
        }
    }

    /// From one buffer into another of `count` elements.
    fn apart(&self, call: &Call, input: Vec<u8>, count: usize, kept: &mut Kept) -> Result<Bytes> {
        let input = Bytes::new(input, self.is_shared());
        let mut output = Bytes::new(vec![0xa5; count * self.operation.data_type.size()], self.is_shared());
        match self.comm.execute(call, Span::of(&input[..]), SpanMut::of(&mut output[..])) {
            Ok(()) => Ok(output),
            Err(error) => {
                kept.keep(input);
                kept.keep(output);
                Err(error)
            }
        }
    }

    fn reduction(&self, kept: &mut Kept) -> Result<()> {
        let Operation { data_type, op, count, .. } = self.operation;
        let mine = Pattern::contribution(data_type, op, self.key, self.rank);
        let reduced = Pattern::reduced(data_type, op, self.key, self.size);
        match self.operation.kind {
            Kind::AllReduceInto => {
                let call = Call::all_reduce(data_type, op, count);
                let output = self.apart(&call, mine.buffer(count), count, kept)?;
                self.expect("all_reduce_into", &reduced, &output, 0);
            }
            Kind::Reduce => {
                let root = self.root();
                let call = Call::reduce(data_type, op, count, root);
                let buffer = self.in_place(&call, mine.buffer(count), kept)?;
                self.expect("reduce", if self.rank == root { &reduced } else { &mine }, &buffer, 0);
            }
            Kind::ReduceScatter => {
                let call = Call::reduce_scatter(data_type, op, count);
                let output = self.apart(&call, mine.buffer(count * self.size as usize), count, kept)?;
                self.expect("reduce_scatter", &reduced, &output, self.rank as usize * count);
            }
            _ => {
                let call = Call::all_reduce(data_type, op, count);
                let buffer = self.in_place(&call, mine.buffer(count), kept)?;
                self.expect("all_reduce", &reduced, &buffer, 0);
            }
        }
        Ok(())
    }

    fn movement(&self, kept: &mut Kept) -> Result<()> {
        let Operation { data_type, count, .. } = self.operation;
        let mine = self.any(self.rank).buffer(count);
        if self.operation.kind == Kind::Broadcast {
            let root = self.root();
            let buffer = self.in_place(&Call::broadcast(data_type, count, root), mine, kept)?;
            self.expect("broadcast", &self.any(root), &buffer, 0);
            return Ok(());
        }
        let (root, size) = (self.root(), self.size as usize);
        let blocks = |output: &Bytes, what: &str, from: usize| {
            for (rank, block) in (0..self.size).zip(output.chunks_exact((count * data_type.size()).max(1))) {
                self.expect(what, &self.any(rank), block, from);
            }
        };
        match self.operation.kind {
            Kind::AllToAll => {
                let input = self.any(self.rank).buffer(count * size);
                let output = self.apart(&Call::all_to_all(data_type, count), input, count * size, kept)?;
                blocks(&output, "all_to_all", self.rank as usize * count);
            }
            Kind::Gather => {
                let room = if self.rank == root { count * size } else { 0 };
                let output = self.apart(&Call::gather(data_type, count, root), mine, room, kept)?;
                blocks(&output, "gather", 0);
            }
            Kind::Scatter => {
                let input = if self.rank == root { self.any(root).buffer(count * size) } else { Vec::new() };
                let output = self.apart(&Call::scatter(data_type, count, root), input, count, kept)?;
                self.expect("scatter", &self.any(root), &output, self.rank as usize * count);
            }
            _ => {
                let output = self.apart(&Call::all_gather(data_type, count), mine, count * size, kept)?;
                blocks(&output, "all_gather", 0);
            }
        }
        Ok(())
    }

    fn messages(&self, kept: &mut Kept) -> Result<()> {
        let Operation { data_type, count, .. } = self.operation;
        let mine = self.any(self.rank).buffer(count);
        let mut output = vec![0xa5; mine.len()];
        let (from, result) = if self.operation.kind == Kind::Ring {
            let (to, from) = ((self.rank + 1) % self.size, (self.rank + self.size - 1) % self.size);
            let place = SpanMut::of(&mut output);
            (Some(from), self.comm.exchange(data_type, Span::of(&mine), to, place, from))
        } else {
            // The pairs of ranks differ from operation to operation; one rank may remain.
            let place = (self.rank + self.root()) % self.size;
            let neighbour = |by: u32| (self.rank + by) % self.size;
            if place.is_multiple_of(2) && place + 1 < self.size {
                (None, self.comm.send_bytes(data_type, Span::of(&mine), neighbour(1)))
            } else if place.is_multiple_of(2) {
                (None, Ok(()))
            } else {
                let from = neighbour(self.size - 1);
                (Some(from), self.comm.receive_bytes(data_type, SpanMut::of(&mut output), from))
            }
        };
        if let Err(error) = result {
            kept.keep(mine);
            kept.keep(output);
            return Err(error);
        }
        if let Some(from) = from {
            self.expect("a message", &self.any(from), &output, 0);
        }
        self.expect("a message's input", &self.any(self.rank), &mine, 0);
        Ok(())
    }

    /// An all-reduce, a broadcast and an all-gather of bytes that are started; the calls of the second and of the
    /// third have contents of their own.
    fn several(&self) -> [Turn<'_>; 3] {
        let turn = |add: u64| {
            let (data_type, op) = (DataType::Uint8, ReduceOp::Sum);
            let operation = Operation { data_type, op, ..self.operation };
            Turn { key: self.key.wrapping_add(add), operation, ..*self }
        };
        [turn(0), turn(1), turn(2)]
    }

    /// The buffers before, and the expected ones.
    fn several_buffers(&self) -> ([Vec<u8>; 3], usize) {
        let [sum, moved, gathered] = self.several();
        let count = self.operation.count;
        let block = count / self.size as usize;
        let mut all = vec![0xa5; block * self.size as usize];
        all[self.rank as usize * block..][..block].copy_from_slice(&gathered.any(self.rank).buffer(block));
        let mine = Pattern::contribution(DataType::Uint8, ReduceOp::Sum, sum.key, self.rank);
        ([mine.buffer(count), moved.any(self.rank).buffer(count), all], block)
    }

    fn expect_several(&self, buffers: &[Vec<u8>; 3], block: usize) {
        let [sum, moved, gathered] = self.several();
        let reduced = Pattern::reduced(DataType::Uint8, ReduceOp::Sum, sum.key, self.size);
        sum.expect("a started all_reduce", &reduced, &buffers[0], 0);
        moved.expect("a started broadcast", &moved.any(moved.root()), &buffers[1], 0);
        for (rank, part) in (0..self.size).zip(buffers[2].chunks_exact(block.max(1))) {
            gathered.expect("a started all_gather", &gathered.any(rank), part, 0);
        }
    }

    fn started(&self, kept: &mut Kept) -> Result<()> {
        let ([first, second, third], block) = self.several_buffers();
        let root = self.several()[1].root();
        let works = [
            self.comm.start_all_reduce(first, ReduceOp::Sum),
            self.comm.start_broadcast(second, root),
            self.comm.start_all_gather(third),
        ];
        let mut buffers = [const { Vec::new() }; 3];
        let mut result = Ok(());
        // The last one first.
        for (work, place) in works.into_iter().zip(&mut buffers).rev() {
            let waited = work.and_then(|work| {
                let (buffer, result) = work.wait_with_buffer();
                *place = buffer;
                result
            });
            result = waited.and(result);
        }
        if result.is_err() {
            buffers.into_iter().for_each(|buffer| kept.keep(buffer));
            return result;
        }
        self.expect_several(&buffers, block);
        Ok(())
    }

    fn scope(&self, kept: &mut Kept, panics: bool) -> Result<()> {
        let ([mut first, mut second, all], block) = self.several_buffers();
        let root = self.several()[1].root();
        let mine = all[self.rank as usize * block..][..block].to_vec();
        let mut third = vec![0xa5; all.len()];
        let result = self.comm.scope(|scope| {
            let sum = scope.all_reduce(&mut first, ReduceOp::Sum)?;
            scope.broadcast(&mut second, root)?;
            scope.all_gather(&mine, &mut third)?;
            if panics {
                println!("fault");
                panic!("the plan says so");
            }
            if self.key.is_multiple_of(2) { sum.wait() } else { Ok(()) }
        });
        if result.is_err() {
            [first, second, third, mine].into_iter().for_each(|buffer| kept.keep(buffer));
            return result;
        }
        self.expect_several(&[first, second, third], block);
        Ok(())
    }
}

/// Calls one operation and checks its result.
pub(super) fn perform(seat: Seat<'_>, operation: Operation, kept: &mut Kept, panics: bool) -> Result<()> {
    let (rank, size) = (seat.comm.rank(), seat.comm.size());
    let turn = Turn { comm: seat.comm, rank, size, key: operation.key ^ seat.salt, operation };
    match operation.kind {
        Kind::AllReduce | Kind::AllReduceInto | Kind::Reduce | Kind::ReduceScatter => turn.reduction(kept),
        Kind::Broadcast | Kind::AllGather | Kind::AllToAll | Kind::Gather | Kind::Scatter => {
            turn.movement(kept)
        }
        Kind::Ring | Kind::Pairs => turn.messages(kept),
        Kind::Started => turn.started(kept),
        Kind::Scope => turn.scope(kept, panics),
        Kind::Barrier | Kind::Split | Kind::Agree => seat.comm.barrier(),
    }
}
