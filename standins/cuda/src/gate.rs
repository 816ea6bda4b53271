//! The gate of a device: the blocks that launches of this process hold there, and the turn of this process among all.
//!
//! Invariant: at most `blocks_max` blocks of a process are resident on a device at once, and blocks of two processes
//! never are, as on a GPU without MPS. A process whose launches on the device all only spin gives up its turn, a slice of
//! time after the turn came. Absent: any order among processes other than that of their arrival.

use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};

use crate::code::{Answer, Code};

/// How long a process keeps its turn while its blocks only spin.
const SLICE: Duration = Duration::from_millis(2);
/// How long a process keeps its turn at most.
const LONGEST: Duration = Duration::from_millis(20);
/// How often a waiting process tries to take the turn.
const POLL: Duration = Duration::from_micros(50);
/// How long a process waits for its turn before it prints which process holds it.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a process that gave up its turn leaves it to others.
const GAP: Duration = Duration::from_micros(300);

#[derive(Debug)]
struct State {
    free_blocks: u32,
    running: u32,
    parked: u32,
    /// How often the parked launches gave up the turn.
    rounds: u64,
    since: Instant,
    unlocked: Option<std::fs::File>,
    locked: Option<Flock<std::fs::File>>,
}

/// The gate of one device in this process.
#[derive(Debug)]
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
    blocks_max: u32,
}

impl State {
    fn take_turn(&mut self) {
        let start = Instant::now();
        let mut was_said = false;
        while let Some(file) = self.unlocked.take() {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => {
                    // Read by the processes that wait for this one.
                    let _ = lock.set_len(0);
                    let _ = lock.write_at(std::process::id().to_string().as_bytes(), 0);
                    self.locked = Some(lock);
                }
                Err((file, _)) => {
                    if !was_said && start.elapsed() > PATIENCE {
                        was_said = true;
                        let mut holder = [0; 16];
                        let read = file.read_at(&mut holder, 0).unwrap_or_default();
                        let holder = String::from_utf8_lossy(&holder[..read]);
                        eprintln!(
                            "consort's stand-in for the CUDA driver: process {holder} does not give up its turn"
                        );
                    }
                    self.unlocked = Some(file);
                    std::thread::sleep(POLL);
                }
            }
        }
        self.since = Instant::now();
    }

    fn give_turn(&mut self) {
        match self.locked.take().map(Flock::unlock) {
            Some(Ok(file)) => self.unlocked = Some(file),
            Some(Err((lock, _))) => self.locked = Some(lock),
            None => {}
        }
    }
}

impl Gate {
    /// The gate of this device; the lock is a file for each user and device.
    pub(crate) fn of_device(ordinal: u32, blocks_max: u32) -> Answer<Self> {
        let user = nix::unistd::getuid();
        let place = std::env::temp_dir().join(format!("consort-standin-{user}"));
        let made = std::fs::DirBuilder::new().mode(0o700).create(&place);
        if made.is_err_and(|error| error.kind() != std::io::ErrorKind::AlreadyExists) {
            return Err(Code::OPERATING_SYSTEM);
        }
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(place.join(format!("device-{ordinal}.lock")))
            .map_err(|_| Code::OPERATING_SYSTEM)?;
        let state = State {
            free_blocks: blocks_max,
            running: 0,
            parked: 0,
            rounds: 0,
            since: Instant::now(),
            unlocked: Some(file),
            locked: None,
        };
        Ok(Gate { state: Mutex::new(state), changed: Condvar::new(), blocks_max })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        // The timeout is there because `gone` may change without a notification.
        let (state, _) = self
            .changed
            .wait_timeout(state, Duration::from_millis(20))
            .unwrap_or_else(PoisonError::into_inner);
        state
    }

    /// Waits until `blocks` blocks are free, and reserves them. `None` when `gone` holds first.
    pub(crate) fn enter(&self, blocks: u32, gone: impl Fn() -> bool) -> Option<Resident<'_>> {
        let blocks = blocks.min(self.blocks_max);
        let mut state = self.state();
        while state.free_blocks < blocks {
            if gone() {
                return None;
            }
            state = self.wait(state);
        }
        state.free_blocks -= blocks;
        if state.running == 0 {
            state.take_turn();
        }
        state.running += 1;
        Some(Resident { gate: self, reserved: blocks, resident: 0 })
    }
}

/// The blocks of a launch, and the process's turn while it runs.
#[derive(Debug)]
pub(crate) struct Resident<'a> {
    gate: &'a Gate,
    /// Blocks taken from the gate and not yet resident.
    reserved: u32,
    resident: u32,
}

impl Resident<'_> {
    /// Makes another block resident, a reserved one first. `false` when no block is free.
    pub(crate) fn admit(&mut self) -> bool {
        if self.reserved > 0 {
            self.reserved -= 1;
        } else {
            let mut state = self.gate.state();
            if state.free_blocks == 0 {
                return false;
            }
            state.free_blocks -= 1;
        }
        self.resident += 1;
        true
    }

    /// A resident block has ended.
    pub(crate) fn ended(&mut self) {
        self.resident -= 1;
        self.gate.state().free_blocks += 1;
        self.gate.changed.notify_all();
    }

    /// Called when all blocks of the launch only spin. Gives up the turn after [`SLICE`].
    pub(crate) fn pause(&self) {
        let state = self.gate.state();
        if state.since.elapsed() < SLICE {
            drop(state);
            std::thread::sleep(Duration::from_micros(20));
        } else {
            self.park(state);
        }
    }

    /// Called now and then by every running launch. Gives up the turn after [`LONGEST`].
    pub(crate) fn breathe(&self) {
        let state = self.gate.state();
        if state.since.elapsed() >= LONGEST {
            self.park(state);
        }
    }

    /// Waits until all launches of the process are parked and other processes had their turn.
    fn park(&self, mut state: MutexGuard<'_, State>) {
        let gate = self.gate;
        state.parked += 1;
        let round = state.rounds;
        while state.rounds == round {
            if state.parked == state.running {
                state.give_turn();
                std::thread::sleep(GAP);
                state.take_turn();
                state.parked = 0;
                state.rounds += 1;
                gate.changed.notify_all();
            } else {
                state = gate.wait(state);
            }
        }
    }
}

impl Drop for Resident<'_> {
    fn drop(&mut self) {
        let mut state = self.gate.state();
        state.free_blocks += self.reserved + self.resident;
        state.running -= 1;
        if state.running == 0 {
            state.give_turn();
        }
        self.gate.changed.notify_all();
    }
}
