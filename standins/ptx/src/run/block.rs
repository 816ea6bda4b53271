//! A resident block and its threads.
//!
//! Invariant: `live` is the number of threads that have not ended.

use super::{Launch, Planned};
use crate::fault::{Fault, Place, Problem, Waiting};
use crate::program::Start;

/// Whether a thread can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Ready,
    Barrier(u8),
    Warp,
    Ended,
}

/// A vector access that is partly done.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Torn {
    /// Elements to be done, a bit each; 0 when there is none under way.
    pub(super) left: u8,
    pub(super) address: u64,
    pub(super) value: u128,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Thread {
    pub(super) pc: u32,
    pub(super) state: State,
    pub(super) torn: Torn,
    /// The last strong loads: address and value.
    pub(super) seen: [(u64, u64); 2],
}

/// A barrier that threads have arrived at.
#[derive(Clone, Debug, Default)]
pub(super) struct Arrived {
    /// Arrivals, those that do not wait included.
    pub(super) count: u32,
    /// Arrivals after which the waiting threads go on. 0 means all threads of the block.
    pub(super) wanted: u32,
    /// Threads that wait.
    pub(super) waiting: Vec<u32>,
    /// All threads that arrived. Their earlier writes are seen by the threads that waited.
    pub(super) came: Vec<u32>,
    /// Arrivals whose predicate held.
    pub(super) held: u32,
}

pub(super) struct Block<'r> {
    pub(super) launch: &'r Launch<'r>,
    pub(super) number: u32,
    pub(super) launch_number: u32,
    pub(super) first_actor: u32,
    pub(super) index: [u32; 3],
    pub(super) threads: Vec<Thread>,
    pub(super) slots: Vec<u64>,
    pub(super) local: Vec<u8>,
    pub(super) shared: Vec<u8>,
    pub(super) barriers: [Arrived; 16],
    pub(super) live: u32,
}

impl<'r> Block<'r> {
    pub(super) fn new(launch: &'r Launch<'r>, planned: &Planned, number: u32, reuse: Option<Self>) -> Self {
        let kernel = launch.kernel;
        let count = launch.block.iter().product::<u32>() as usize;
        let index = index(launch.grid, planned.linear);
        let thread = Thread { pc: 0, state: State::Ready, torn: Torn::default(), seen: [(u64::MAX, 0); 2] };
        let (mut threads, mut slots, mut local, mut shared) =
            reuse.map_or_else(Default::default, |b| (b.threads, b.slots, b.local, b.shared));
        threads.clear();
        threads.resize(count, thread);
        let stride = kernel.slots as usize;
        slots.clear();
        slots.resize(count * stride, 0);
        local.clear();
        local.resize(count * kernel.local_bytes as usize, 0);
        shared.clear();
        shared.resize(kernel.dynamic_shared_at as usize + launch.dynamic_shared_bytes as usize, 0);
        for (t, slots) in slots.chunks_mut(stride).enumerate() {
            start(launch, index, t as u32, slots);
        }
        Self {
            launch,
            number,
            launch_number: planned.launch,
            first_actor: planned.first_actor,
            index,
            threads,
            slots,
            local,
            shared,
            barriers: Default::default(),
            live: count as u32,
        }
    }

    pub(super) fn line(&self, thread: usize) -> u32 {
        let code = &self.launch.kernel.code;
        code.get(self.threads[thread].pc as usize).map_or(0, |instruction| instruction.line)
    }

    pub(super) fn place(&self, thread: usize) -> Place {
        Place {
            kernel: self.launch.kernel.name().to_owned(),
            launch: self.launch_number,
            block: self.index,
            thread: position(self.launch.block, thread as u32),
            line: self.line(thread),
        }
    }

    pub(super) fn fault(&self, thread: usize, problem: Problem) -> Fault {
        Fault { place: Box::new(self.place(thread)), problem }
    }

    /// What thread `thread` waits for.
    pub(super) fn waiting(&self, thread: usize) -> Option<Waiting> {
        match self.threads[thread].state {
            State::Ready => Some(Waiting::Spinning),
            State::Barrier(id) => Some(Waiting::Barrier(id.into())),
            State::Warp => Some(Waiting::Warp),
            State::Ended => None,
        }
    }
}

/// The index of block `linear` of a grid of the shape.
pub(super) fn index(shape: [u32; 3], linear: u64) -> [u32; 3] {
    let [x, y, _] = shape.map(u64::from);
    [linear % x, linear / x % y, linear / x / y].map(|n| n as u32)
}

/// The index of thread `linear` of a block of the shape.
pub(super) fn position(shape: [u32; 3], linear: u32) -> [u32; 3] {
    let [x, y, _] = shape;
    [linear % x, linear / x % y, linear / x / y]
}

/// Sets the slots that are not zero when a thread starts.
fn start(launch: &Launch<'_>, block: [u32; 3], thread: u32, slots: &mut [u64]) {
    let tid = position(launch.block, thread);
    let threads = launch.block.iter().product::<u32>();
    let lane = thread % 32;
    for &(slot, start) in &launch.kernel.starts {
        slots[slot as usize] = match start {
            Start::Value(value) => value,
            Start::Tid(axis) => tid[usize::from(axis)].into(),
            Start::Ntid(axis) => launch.block[usize::from(axis)].into(),
            Start::Ctaid(axis) => block[usize::from(axis)].into(),
            Start::Nctaid(axis) => launch.grid[usize::from(axis)].into(),
            Start::Lane => lane.into(),
            Start::Warp => (thread / 32).into(),
            Start::Warps => threads.div_ceil(32).into(),
            Start::Global(offset) => launch.globals.wrapping_add(offset),
            Start::Dynamic(offset) => u64::from(launch.kernel.dynamic_shared_at).wrapping_add(offset),
            Start::DynamicBytes => launch.dynamic_shared_bytes.into(),
            Start::LaneMask(which) => {
                let own = 1u64 << lane;
                match which {
                    0 => own,
                    1 => own | (own - 1),
                    2 => own - 1,
                    3 => 0xffff_ffff & !(own - 1),
                    _ => 0xffff_ffff & !(own | (own - 1)),
                }
            }
        };
    }
}
