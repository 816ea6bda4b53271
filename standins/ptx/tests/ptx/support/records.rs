//! What shipped kernels are given, byte for byte as `kernels/cuda/plan.h` has it, and a ring of ranks made of it.
//!
//! Written down a second time on purpose: the stand-in depends on no crate of the library.

use consort_standin_ptx::check::Checked;
use consort_standin_ptx::{Launch, Module};

/// Little-endian fields, one after the other.
#[derive(Clone, Default)]
pub(crate) struct Record(pub(crate) Vec<u8>);

impl Record {
    pub(crate) fn new() -> Self {
        Self::default()
    }
    pub(crate) fn u8(mut self, values: &[u8]) -> Self {
        self.0.extend_from_slice(values);
        self
    }
    pub(crate) fn u16(self, values: &[u16]) -> Self {
        values.iter().fold(self, |all, value| all.u8(&value.to_le_bytes()))
    }
    pub(crate) fn u32(self, values: &[u32]) -> Self {
        values.iter().fold(self, |all, value| all.u8(&value.to_le_bytes()))
    }
    pub(crate) fn u64(self, values: &[u64]) -> Self {
        values.iter().fold(self, |all, value| all.u8(&value.to_le_bytes()))
    }
    /// `count` numbers, zeros behind the values.
    pub(crate) fn padded(self, values: &[u64], count: usize) -> Self {
        let mut all = values.to_vec();
        all.resize(count, 0);
        self.u64(&all)
    }
    /// Factors of one: nothing is scaled or divided.
    pub(crate) fn factors(self) -> Self {
        self.u8(&1.0f64.to_le_bytes()).u64(&[1]).u8(&1.0f32.to_le_bytes()).u32(&[1])
    }
}

/// A job of a fold.
pub(crate) fn job(bytes: u64, targets: &[u64], sources: &[u64]) -> Record {
    let places: Vec<u64> = targets.iter().chain(sources).copied().collect();
    Record::new()
        .u64(&[bytes])
        .u8(&[targets.len() as u8, sources.len() as u8, 0, 0])
        .u32(&[0])
        .padded(&places, 32)
}

pub(crate) fn floats(values: impl Iterator<Item = f32>) -> Vec<u8> {
    values.flat_map(f32::to_le_bytes).collect()
}

/// What rank `rank` has at element `i`: whole numbers, whose sums are exact in any order.
pub(crate) fn element(rank: usize, i: usize) -> f32 {
    ((rank + 1) * 1000 + i % 977) as f32
}

/// A launch of `blocks` blocks of `threads` threads.
pub(crate) fn launch<'a>(
    module: &'a Module,
    kernel: &str,
    blocks: u32,
    threads: u32,
    params: &'a [u8],
    device: u32,
) -> Launch<'a> {
    Launch {
        kernel: module.kernel(kernel).unwrap_or_else(|| panic!("no kernel {kernel}")),
        grid: [blocks, 1, 1],
        block: [threads, 1, 1],
        dynamic_shared_bytes: 0,
        params,
        globals: 0,
        device,
    }
}

/// A ring all-reduce of `f32` through slots, a launch for each rank.
#[derive(Clone, Copy)]
pub(crate) struct Ring {
    pub(crate) ranks: usize,
    /// Blocks of a rank.
    pub(crate) instances: u32,
    /// Bytes of a chunk. There are as many chunks as ranks.
    pub(crate) chunk: u64,
    pub(crate) slot_bytes: u64,
    pub(crate) slots: u32,
    /// Added to the value of every wait for a credit: 0 is right.
    pub(crate) credit_early: i32,
    /// Whether data are announced before they are there: wrong.
    pub(crate) posts_first: bool,
}

/// Where a ring's ranks keep things.
pub(crate) struct Placed {
    pub(crate) params: Vec<Vec<u8>>,
    pub(crate) outputs: Vec<u64>,
    pub(crate) done: Vec<u64>,
    pub(crate) shared: Vec<u32>,
    pub(crate) abort: u64,
    /// Of each record, the word that says that its program is over, what that becomes, its address and its length.
    pub(crate) records: Vec<[u64; 4]>,
}

/// Bytes of a program's record without its tables.
const HEADER_BYTES: u64 = 144;

const POSTED_IN: u32 = 0;
const POSTED_OUT: u32 = 1;
const CREDIT_IN: u32 = 2;
const CREDIT_OUT: u32 = 3;

impl Ring {
    pub(crate) fn elements(&self) -> usize {
        self.ranks * self.chunk as usize / 4
    }

    /// Transfers of a rank in an iteration.
    fn transfers(&self) -> u32 {
        2 * (self.ranks as u32 - 1)
    }

    /// Steps and operands of rank `rank`.
    fn plan(&self, rank: usize) -> (Record, Record, u32) {
        let n = self.ranks as u32;
        let (mut steps, mut operands, mut count) = (Record::new(), Record::new(), 0);
        let mut used = 0;
        let mut step =
            |action: u8, targets: u8, sources: u8, chunk: u32, counter: u32, value: i32, first: u32| {
                let head = std::mem::take(&mut steps).u8(&[action, 0, targets, sources]);
                steps = head.u32(&[0, first, chunk, counter, value as u32]);
                count += 1;
            };
        // A plan may begin with a fold that waits for nothing: its own chunk, which is written again later.
        step(0, 1, 1, rank as u32, 0, 0, 0);
        operands = operands.u16(&[1, 1]).u32(&[0]).u16(&[0, 0]).u32(&[0]);
        used += 2;
        for t in 0..=self.transfers() {
            let chunk = (rank as u32 + 2 * n - t) % n;
            let sends = t < self.transfers();
            if t > 0 {
                step(2, 0, 0, 0, POSTED_IN, t as i32, 0);
            }
            if sends {
                step(2, 0, 0, 0, CREDIT_IN, t as i32 + 1 - self.slots as i32 - self.credit_early, 0);
            }
            let (mut targets, mut sources) = (Vec::new(), Vec::new());
            // Region, position, index: 0 is the input, 1 the output, 2 the own slots, 3 those of the next rank.
            if t >= n - 1 {
                targets.push((1, 1, 0));
            }
            if sends {
                targets.push((3, 2, t));
            }
            if t > 0 {
                sources.push((2, 2, t - 1));
            }
            if t < n {
                sources.push((0, 0, 0));
            }
            if sends && self.posts_first {
                step(1, 0, 0, 0, POSTED_OUT, 1, 0);
            }
            step(0, targets.len() as u8, sources.len() as u8, chunk, 0, 0, used);
            for &(region, position, index) in targets.iter().chain(&sources) {
                operands = operands.u16(&[region, position]).u32(&[index]);
                used += 1;
            }
            if t > 0 {
                step(1, 0, 0, 0, CREDIT_OUT, 1, 0);
            }
            if sends && !self.posts_first {
                step(1, 0, 0, 0, POSTED_OUT, 1, 0);
            }
        }
        // And it may end with one: of its own chunk onto itself.
        step(0, 1, 1, rank as u32, 0, 0, used);
        operands = operands.u16(&[1, 1]).u32(&[0]).u16(&[1, 1]).u32(&[0]);
        (steps, operands, count)
    }

    /// Allocates everything and writes the records.
    pub(crate) fn place(&self, memory: &mut Checked) -> Placed {
        let (n, b) = (self.ranks, u64::from(self.instances));
        let all = self.chunk * n as u64;
        let line = 64;
        let input = |r: usize| floats((0..self.elements()).map(|i| element(r, i)));
        let inputs: Vec<u64> = (0..n).map(|r| memory.allocate(&format!("input {r}"), input(r))).collect();
        let outputs: Vec<u64> =
            (0..n).map(|r| memory.uninitialised(&format!("output {r}"), all as usize)).collect();
        let outputs_again: Vec<u64> =
            (0..n).map(|r| memory.uninitialised(&format!("output {r} again"), all as usize)).collect();
        let stride = self.slot_bytes * u64::from(self.slots);
        let slots: Vec<u64> =
            (0..n).map(|r| memory.uninitialised(&format!("slots {r}"), (stride * b) as usize)).collect();
        let zeros = |memory: &mut Checked, name: &str, bytes: u64| -> Vec<u64> {
            (0..n).map(|r| memory.allocate(&format!("{name} {r}"), vec![0; bytes as usize])).collect()
        };
        let posted = zeros(memory, "posted", line * b);
        let credit = zeros(memory, "credit", line * b);
        let done = zeros(memory, "done", 8);
        let left = zeros(memory, "left", 8);
        let done_again = zeros(memory, "done again", 8);
        let left_again = zeros(memory, "left again", 8);
        let done_empty = zeros(memory, "done empty", 8);
        let left_empty = zeros(memory, "left empty", 8);
        let status = zeros(memory, "status", 16 * b);
        let abort = memory.allocate("abort", vec![0; 8]);
        let part = self.chunk.div_ceil(b).next_multiple_of(128);
        let iterations = part.div_ceil(self.slot_bytes) as u32;
        let (mut params, mut shared, mut records) = (Vec::new(), Vec::new(), Vec::new());
        for r in 0..n {
            let (next, previous) = ((r + 1) % n, (r + n - 1) % n);
            let (steps, operands, count) = self.plan(r);
            let steps = memory.allocate(&format!("steps {r}"), steps.0);
            let operands = memory.allocate(&format!("operands {r}"), operands.0);
            let lanes = memory.allocate(&format!("lanes {r}"), Record::new().u32(&[0, count]).0);
            let record_bytes =
                HEADER_BYTES as u32 + 4 * 32 + 4 * b as u32 * 8 + 4 * 32 + 4 * b as u32 * 8 + n as u32 * 24;
            let per = self.transfers();
            // Of a call that comes after `before` others and writes to `output`, and the record of the next one.
            let record = |before: u64, output: u64, [done, status, left, next_record]: [u64; 4]| {
                let next_bytes = if next_record == 0 { 0 } else { HEADER_BYTES };
                let words = [steps, operands, lanes, done, status, left, 5 + before, abort];
                let mut program = Record::new()
                    .u64(&words)
                    .u64(&[next_record, next_bytes, self.slot_bytes])
                    .u32(&[1, self.instances, iterations, 1, 4, 4, n as u32, record_bytes])
                    .factors();
                for (address, instance, slot, slots, per) in [
                    (inputs[r], 0, 0, 0, 0),
                    (output, 0, 0, 0, 0),
                    (slots[r], stride, self.slot_bytes, self.slots, per),
                    (slots[next], stride, self.slot_bytes, self.slots, per),
                ] {
                    program = program.u64(&[address, instance, slot]).u32(&[slots, per]);
                }
                let counted = before * u64::from(iterations * per);
                program = program.padded(&[], 2 * b as usize).u64(&vec![counted; 2 * b as usize]);
                for (own, peer) in [(posted[r], 0), (0, posted[next]), (credit[r], 0), (0, credit[previous])]
                {
                    program = program.u64(&[own, peer, line]).u32(&[per, 0]);
                }
                program = program.u64(&vec![counted; 4 * b as usize]);
                for chunk in 0..n as u64 {
                    program = program.u64(&[chunk * self.chunk, chunk * self.chunk, self.chunk]);
                }
                assert_eq!(program.0.len(), record_bytes as usize);
                program.0
            };
            shared.push(record_bytes + 8 * 4);
            // The same blocks run it again, into another output, as they run the messages of a link.
            let again = record(1, outputs_again[r], [done_again[r], 0, left_again[r], 0]);
            let again = memory.allocate(&format!("record {r} again"), again);
            // Between both is a program in which no block has part.
            let words = [0, 0, 0, done_empty[r], 0, left_empty[r], 9, abort];
            let empty = Record::new().u64(&words).u64(&[again, u64::from(record_bytes), 0]);
            let empty = empty.u32(&[0, 1, 0, 0, 0, 0, 0, HEADER_BYTES as u32]).factors();
            let empty = memory.allocate(&format!("empty record {r}"), empty.0);
            let program = record(0, outputs[r], [done[r], status[r], left[r], empty]);
            let program = memory.allocate(&format!("record {r}"), program);
            let length = u64::from(record_bytes);
            records.push([done[r], 5, program, length]);
            records.push([done_empty[r], 9, empty, HEADER_BYTES]);
            records.push([done_again[r], 6, again, length]);
            // The first entry has no blocks, so a thread other than the first finds the program.
            let launch = Record::new().u32(&[2, 0]).u64(&[0]).u32(&[0, 0]);
            let launch = launch.u64(&[program]).u32(&[self.instances, record_bytes]).padded(&[], 2 * 62);
            let launch = memory.allocate(&format!("launch {r}"), launch.0);
            params.push(launch.to_le_bytes().to_vec());
        }
        Placed { params, outputs, done, shared, abort, records }
    }

    /// The launches of all ranks, each on a device of its own.
    pub(crate) fn launches<'a>(
        &self,
        module: &'a Module,
        placed: &'a Placed,
        threads: u32,
    ) -> Vec<Launch<'a>> {
        (0..self.ranks)
            .map(|r| Launch {
                dynamic_shared_bytes: placed.shared[r],
                ..launch(module, "consort_run_f32_sum", self.instances, threads, &placed.params[r], r as u32)
            })
            .collect()
    }
}
