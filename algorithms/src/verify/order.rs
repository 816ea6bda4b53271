//! The order of events: which one happens before which.
//!
//! Invariant: an order that [`Clocks::knows`] affirms exists. [`Vectors`] (vector clocks over lanes) affirm every
//! order that exists: event `e` of lane `l` happened before the present of lane `m` exactly when `m`'s clock has at
//! least `e`'s count at `l`. [`Neighbours`] keep only what a lane heard from the lane that did it, which takes memory
//! for each pair of lanes that exchange and not for each pair. [`Relayed`](super::relayed::Relayed) keep besides what
//! others heard of a rank's neighbours, as trees need. Less knowledge can only make the run refuse more, so a run that
//! completes with less is a proof, and a refusal is checked again with more, at last with [`Vectors`].
//!
//! Besides the lanes there is one component for every counted arrival, because a later event of a lane is not ordered
//! after an arrival merely because it comes later in the lane.

use std::ops::Range;

use super::program::Program;
use super::refusal::Refusal;

/// An event: its lane, its time, and its step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Epoch {
    pub(super) lane: u32,
    pub(super) clock: u32,
    /// The step for the refusal's text.
    pub(super) cause: Cause,
}

impl Epoch {
    /// Before all events; every lane knows it.
    pub(super) const NEVER: Epoch = Epoch { lane: 0, clock: 0, cause: Cause { by: 0, op: Cause::CALLER } };
}

/// The step (its lane and its number there), or a rank's caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cause {
    pub(super) by: u32,
    pub(super) op: u32,
}

impl Cause {
    /// In place of a step's number: `by` is the rank of a caller.
    pub(super) const CALLER: u32 = u32::MAX;
}

/// The words that all snapshots together may have; beyond that the verifier gives up.
pub(super) const POOL_MAX: usize = 1 << 28;

/// The clocks of all lanes and the snapshots that signals carry.
pub(super) trait Clocks: Sized {
    /// A clock that travels with a signal.
    type Snapshot: Copy;

    /// Whether every order that exists is affirmed, so that a refusal is final.
    const IS_COMPLETE: bool = false;

    fn new(program: &Program) -> Result<Self, Refusal>;

    /// The lane's own present.
    fn now(&self, lane: u32) -> u32;

    /// Whether `epoch` happened before the present of `lane`.
    fn knows(&self, lane: u32, epoch: Epoch) -> bool;

    /// Moves the lane on: its later events are not part of the snapshots before.
    fn tick(&mut self, lane: u32);

    /// A snapshot of the present of `lane`, to be joined by others.
    fn release(&mut self, lane: u32) -> Result<Self::Snapshot, Refusal>;

    /// `lane` learns everything that the snapshot knows.
    fn join(&mut self, lane: u32, snapshot: Self::Snapshot);

    /// `lane` learns that the arrival with this component happened.
    fn learn(&mut self, lane: u32, component: u32);

    /// No lane joins the snapshot any more.
    fn forget(&mut self, snapshot: Self::Snapshot);

    /// All of `lanes` learn the events of each of them; then the first moves on, which the others know too.
    fn meet(&mut self, lanes: Range<u32>);
}

/// The events that every lane heard directly.
pub(super) struct Neighbours {
    now: Vec<u32>,
    /// For each lane: others and their latest known clock, in the order of lanes.
    heard: Vec<Vec<(u32, u32)>>,
}

impl Neighbours {
    fn hear(&mut self, lane: u32, of: u32, clock: u32) {
        let heard = &mut self.heard[lane as usize];
        match heard.binary_search_by_key(&of, |&(other, _)| other) {
            Ok(at) => heard[at].1 = heard[at].1.max(clock),
            Err(at) => heard.insert(at, (of, clock)),
        }
    }
}

impl Clocks for Neighbours {
    type Snapshot = (u32, u32);

    fn new(program: &Program) -> Result<Self, Refusal> {
        let lanes = program.lanes.len();
        Ok(Neighbours { now: vec![1; lanes], heard: vec![Vec::new(); lanes] })
    }

    fn now(&self, lane: u32) -> u32 {
        self.now[lane as usize]
    }

    #[inline]
    fn knows(&self, lane: u32, epoch: Epoch) -> bool {
        if epoch.lane == lane {
            return self.now[lane as usize] >= epoch.clock;
        }
        let heard = &self.heard[lane as usize];
        let at = heard.binary_search_by_key(&epoch.lane, |&(other, _)| other);
        epoch.clock == 0 || at.is_ok_and(|at| heard[at].1 >= epoch.clock)
    }

    fn tick(&mut self, lane: u32) {
        self.now[lane as usize] += 1;
    }

    fn release(&mut self, lane: u32) -> Result<(u32, u32), Refusal> {
        Ok((lane, self.now[lane as usize]))
    }

    fn join(&mut self, lane: u32, (other, clock): (u32, u32)) {
        if other != lane {
            self.hear(lane, other, clock);
        }
    }

    fn learn(&mut self, lane: u32, component: u32) {
        self.hear(lane, component, 1);
    }

    fn forget(&mut self, _: (u32, u32)) {}

    fn meet(&mut self, lanes: Range<u32>) {
        self.tick(lanes.start);
        for lane in lanes.clone() {
            for other in lanes.clone().filter(|&other| other != lane) {
                self.hear(lane, other, self.now[other as usize]);
            }
        }
    }
}

/// Vector clocks.
pub(super) struct Vectors {
    width: usize,
    rows: Vec<u32>,
    pool: Vec<u32>,
    free: Vec<u32>,
}

impl Vectors {
    fn row(&self, lane: u32) -> &[u32] {
        &self.rows[lane as usize * self.width..][..self.width]
    }
}

impl Clocks for Vectors {
    type Snapshot = u32;

    const IS_COMPLETE: bool = true;

    fn new(program: &Program) -> Result<Self, Refusal> {
        let lanes = program.lanes.len();
        let width = lanes as u64 + program.arrivals();
        if width * lanes as u64 >= POOL_MAX as u64 {
            return Err(Refusal::TooLarge { what: "lanes and counted writes" });
        }
        let width = width as usize;
        let mut rows = vec![0; width * lanes];
        for lane in 0..lanes {
            rows[lane * width + lane] = 1;
        }
        Ok(Vectors { width, rows, pool: Vec::new(), free: Vec::new() })
    }

    fn now(&self, lane: u32) -> u32 {
        self.row(lane)[lane as usize]
    }

    #[inline]
    fn knows(&self, lane: u32, epoch: Epoch) -> bool {
        self.rows[lane as usize * self.width + epoch.lane as usize] >= epoch.clock
    }

    fn tick(&mut self, lane: u32) {
        self.rows[lane as usize * self.width + lane as usize] += 1;
    }

    fn release(&mut self, lane: u32) -> Result<u32, Refusal> {
        let start = lane as usize * self.width;
        let row = start..start + self.width;
        if let Some(reused) = self.free.pop() {
            let at = reused as usize * self.width;
            self.pool[at..at + self.width].copy_from_slice(&self.rows[row]);
            return Ok(reused);
        }
        let fresh = (self.pool.len() / self.width) as u32;
        if self.pool.len() + self.width > POOL_MAX {
            return Err(Refusal::TooLarge { what: "outstanding signals" });
        }
        self.pool.extend_from_slice(&self.rows[row]);
        Ok(fresh)
    }

    fn join(&mut self, lane: u32, snapshot: u32) {
        let row = &mut self.rows[lane as usize * self.width..][..self.width];
        let known = &self.pool[snapshot as usize * self.width..][..self.width];
        row.iter_mut().zip(known).for_each(|(own, other)| *own = (*own).max(*other));
    }

    fn learn(&mut self, lane: u32, component: u32) {
        let word = &mut self.rows[lane as usize * self.width + component as usize];
        *word = (*word).max(1);
    }

    fn forget(&mut self, snapshot: u32) {
        self.free.push(snapshot);
    }

    fn meet(&mut self, lanes: Range<u32>) {
        let first = lanes.start as usize * self.width;
        for lane in lanes.clone().skip(1) {
            for word in 0..self.width {
                self.rows[first + word] =
                    self.rows[first + word].max(self.rows[lane as usize * self.width + word]);
            }
        }
        self.tick(lanes.start);
        for lane in lanes.clone().skip(1) {
            self.rows.copy_within(first..first + self.width, lane as usize * self.width);
        }
    }
}
