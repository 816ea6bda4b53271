//! What happens before what: vector clocks over lanes.
//!
//! Invariant: event `e` of lane `l` happened before the present of lane `m` exactly when `m`'s clock has at
//! least `e`'s count at `l`. Besides the lanes there is one component for every counted arrival, because
//! nothing a lane does later is ordered after an arrival merely because it comes later in the lane.

use super::refusal::Refusal;

/// An event: who, when, and at which step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Epoch {
    pub(super) lane: u32,
    pub(super) clock: u32,
    /// The step for the refusal's text.
    pub(super) cause: Cause,
}

/// The step (its lane and its number there) or what else touches memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cause {
    Caller(u32),
    Step { lane: u32, op: u32 },
}

/// Words that all snapshots together may have; beyond it the verifier gives up.
const POOL_MAX: usize = 1 << 28;

/// The clocks of all lanes and the snapshots that signals carry.
pub(super) struct Clocks {
    width: usize,
    rows: Vec<u32>,
    pool: Vec<u32>,
    free: Vec<u32>,
}

/// A clock that travels with a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Snapshot(u32);

impl Clocks {
    pub(super) fn new(lanes: usize, arrivals: u64) -> Result<Self, Refusal> {
        let width = lanes as u64 + arrivals;
        if width * lanes as u64 > POOL_MAX as u64 {
            return Err(Refusal::TooLarge { what: "lanes and counted writes" });
        }
        let width = width as usize;
        let mut rows = vec![0; width * lanes];
        for lane in 0..lanes {
            rows[lane * width + lane] = 1;
        }
        Ok(Clocks { width, rows, pool: Vec::new(), free: Vec::new() })
    }

    fn row(&self, lane: u32) -> &[u32] {
        &self.rows[lane as usize * self.width..][..self.width]
    }

    /// The lane's own present.
    pub(super) fn now(&self, lane: u32) -> u32 {
        self.row(lane)[lane as usize]
    }

    /// Whether `epoch` happened before the present of `lane`.
    #[inline]
    pub(super) fn knows(&self, lane: u32, epoch: Epoch) -> bool {
        self.rows[lane as usize * self.width + epoch.lane as usize] >= epoch.clock
    }

    /// What comes later in the lane is not part of what was released before.
    pub(super) fn tick(&mut self, lane: u32) {
        self.rows[lane as usize * self.width + lane as usize] += 1;
    }

    /// The present of `lane`, to be joined by others.
    pub(super) fn release(&mut self, lane: u32) -> Result<Snapshot, Refusal> {
        let start = lane as usize * self.width;
        let row = start..start + self.width;
        if let Some(reused) = self.free.pop() {
            let at = reused as usize * self.width;
            self.pool[at..at + self.width].copy_from_slice(&self.rows[row]);
            return Ok(Snapshot(reused));
        }
        let fresh = Snapshot((self.pool.len() / self.width) as u32);
        if self.pool.len() + self.width > POOL_MAX {
            return Err(Refusal::TooLarge { what: "outstanding signals" });
        }
        self.pool.extend_from_slice(&self.rows[row]);
        Ok(fresh)
    }

    /// `lane` learns what the snapshot knows.
    pub(super) fn join(&mut self, lane: u32, snapshot: Snapshot) {
        let row = &mut self.rows[lane as usize * self.width..][..self.width];
        let known = &self.pool[snapshot.0 as usize * self.width..][..self.width];
        row.iter_mut().zip(known).for_each(|(own, other)| *own = (*own).max(*other));
    }

    /// `lane` learns that the arrival with this component happened.
    pub(super) fn learn(&mut self, lane: u32, component: u32) {
        let word = &mut self.rows[lane as usize * self.width + component as usize];
        *word = (*word).max(1);
    }

    pub(super) fn forget(&mut self, snapshot: Snapshot) {
        self.free.push(snapshot.0);
    }

    /// All of `lanes` learn what any of them knows; then the first moves on, which the others know too.
    pub(super) fn meet(&mut self, lanes: std::ops::Range<u32>) {
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
