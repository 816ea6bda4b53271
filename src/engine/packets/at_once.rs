//! Calls that are over before it would pay to make a task of them.
//!
//! Invariant: what runs here is what a task would run, with the same number, record and messages: ranks may differ in
//! whether they come this way. A call that is not remembered, that does not fit what is, or that finds others queued
//! goes the long way, which checks everything. Absent: waiting for longer than it takes a peer that comes at the same
//! time.

use consort_kernels::Reducer;

use super::exchange::Exchange;
use super::moves::Moves;
use crate::Rank;
use crate::call::Call;
use crate::engine::{Buffers, Engine, Progress, Request};
use crate::recorder::{digest_of, this_thread};

/// How many calls are remembered. A power of two.
const REMEMBERED: usize = 16;
/// So many looks take about as long as reading the clock: what took no more ended when it was entered.
const LOOKS_WITHOUT_CLOCK: u32 = 32;

/// A call that has run, with what followed from it.
#[derive(Clone, Copy)]
struct Known {
    packed: u64,
    count: usize,
    call: Call,
    moves: Moves,
    reducer: Reducer,
    /// Bytes of a block.
    bytes: usize,
    /// Bytes of the buffers; 0 where this rank has none.
    input_bytes: usize,
    output_bytes: usize,
    /// Where the output lies from the input in the in-place form, if there is one.
    in_place: Option<usize>,
}

/// The calls that a communicator remembers, each at one place only.
#[derive(Default)]
pub(super) struct Memory {
    known: Vec<Option<Known>>,
}

fn place(packed: u64, count: usize) -> usize {
    let mixed = (packed ^ count as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as usize % REMEMBERED
}

impl Memory {
    /// Remembers a call that has run.
    pub(super) fn keep(&mut self, call: &Call, reducer: &Reducer, me: Rank, size: u32) {
        if call.scalar.is_some() || call.algorithm.is_some() {
            return;
        }
        let packed = call.descriptor().packed();
        let known = Known {
            packed,
            count: call.count,
            call: *call,
            moves: Moves::new(call.kind, me, call.root),
            reducer: *reducer,
            bytes: call.count * call.data_type.size(),
            input_bytes: call.input_bytes(me, size),
            output_bytes: call.output_bytes(me, size),
            in_place: call.in_place(me),
        };
        self.known.resize(REMEMBERED, None);
        self.known[place(packed, call.count)] = Some(known);
    }

    #[inline]
    fn find(&self, packed: u64, count: usize) -> Option<&Known> {
        let known = self.known.get(place(packed, count))?.as_ref()?;
        (known.packed == packed && known.count == count).then_some(known)
    }

    /// Bytes of the table.
    pub(super) fn memory_bytes(&self) -> usize {
        self.known.capacity() * size_of::<Option<Known>>()
    }
}

impl Known {
    /// Whether the buffers are what the call needs, as [`Call::check`] finds it.
    #[inline]
    fn fits(&self, buffers: &Buffers<'_>) -> bool {
        let (input, output) = (buffers.input, buffers.output);
        if self.input_bytes != 0 && input.len() != self.input_bytes
            || self.output_bytes != 0 && output.len() != self.output_bytes
        {
            return false;
        }
        let (from, to) = (input.as_ptr() as usize, output.as_mut_ptr() as usize);
        self.input_bytes == 0
            || self.output_bytes == 0
            || from + self.input_bytes <= to
            || to + self.output_bytes <= from
            || self.in_place == Some(to.wrapping_sub(from))
    }
}

/// What became of a call.
pub(crate) enum AtOnce {
    /// It was not begun: it must go the long way.
    No,
    /// It is over.
    Done,
    /// It was begun, and takes longer.
    Begun(Request, Exchange, Reducer),
}

impl Engine {
    /// Runs a call that is remembered, looking for the others' messages at most `looks` times.
    #[inline]
    pub(crate) fn at_once(&mut self, call: &Call, buffers: Buffers<'_>, looks: u32) -> AtOnce {
        let Engine { packets, group, sequence, history, queue, .. } = self;
        let Some(board) = packets.board() else { return AtOnce::No };
        if !queue.is_empty() || call.scalar.is_some() || call.algorithm.is_some() || call.counts != 0 {
            return AtOnce::No;
        }
        let packed = call.packed();
        let Some(known) = board.memory.find(packed, call.count).filter(|known| known.fits(&buffers)) else {
            return AtOnce::No;
        };
        let known = *known;
        *sequence += 1;
        let before = std::mem::replace(history, digest_of(packed, call.count as u64, *sequence, *history));
        let mut exchange = Exchange::begin(board, known.moves, known.bytes, *history);
        // The others may be waiting: they come before the record.
        let mut progress = exchange.advance(board, &known.reducer, buffers);
        let recorder = &group.recorder;
        let entered = recorder.ticks();
        let record =
            recorder.enter_at(*sequence, (packed, call.count as u64), false, this_thread(), entered);
        let mut looked = 0;
        loop {
            match progress {
                Ok(Progress::Done) => {
                    let ended = if looked > LOOKS_WITHOUT_CLOCK { recorder.ticks() } else { entered };
                    recorder.finish_at(record, *sequence, false, ended);
                    return AtOnce::Done;
                }
                Ok(_) if looked < looks => {}
                _ => {
                    let request = Request { call: known.call, sequence: *sequence, history: before, record };
                    return AtOnce::Begun(request, exchange, known.reducer);
                }
            }
            looked += 1;
            progress = exchange.advance(board, &known.reducer, buffers);
        }
    }
}
