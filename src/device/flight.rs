//! The blocks on a device that may wait for peers: they all fit on it at once.
//!
//! A kernel that waits for a peer ends only when the peer's kernel runs. If the blocks of one held all places of a
//! device, another could not begin, and the peer might wait for that one. So as many blocks may be under way as the
//! device has multiprocessors: each of them has room for one, so the last block always finds a place. A launch that
//! would be beyond waits for the oldest ones, by events. That is right where all ranks launch what they have in common
//! in the same order, as NCCL demands of communicators that share a device.
//!
//! Invariant: the sum over all launches that may run side by side is at most the number of multiprocessors, as long as
//! none alone is more. Absent: kernels that wait for nothing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use consort_cuda::{CudaError, Event, StreamRef};

use super::gpu::Pooled;
use super::placement::Last;

/// The launches under way on a device.
pub(super) struct Flight {
    blocks_max: u32,
    launches: Mutex<Ledger<Communicator, Arc<Pooled<Event>>>>,
}

/// A communicator, known by what it keeps of its last operation; its number is not used again as long as it is noted.
#[derive(Clone, Debug)]
struct Communicator(Weak<Last>);

impl PartialEq for Communicator {
    fn eq(&self, other: &Self) -> bool {
        self.0.ptr_eq(&other.0)
    }
}

/// Launches that may be under way, the oldest first. `C` is a communicator, `E` an event after a launch.
#[derive(Debug)]
struct Ledger<C, E>(Vec<Launch<C, E>>);

/// A launch that may be under way, with those that it came after.
#[derive(Debug)]
struct Launch<C, E> {
    /// The communicators whose last operation it is.
    of: Vec<C>,
    /// The most blocks that it and what it waited for have at once.
    blocks: u32,
    after: E,
}

/// The room of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Room {
    /// The number of the oldest launches that the launch waits for, those of its own communicators apart.
    waited: usize,
    /// The most blocks that the launch and the launches before it have at once.
    blocks: u32,
}

impl<C: PartialEq, E> Ledger<C, E> {
    fn blocks(&self) -> u32 {
        self.0.iter().map(|launch| launch.blocks).sum()
    }

    /// Room for a launch of `blocks` blocks among `most`, which comes after all of these communicators.
    fn room(&self, of: &[C], blocks: u32, most: u32) -> Room {
        let (mut before, mut beside) = (0, 0);
        for launch in &self.0 {
            *(if launch.is_of(of) { &mut before } else { &mut beside }) += launch.blocks;
        }
        let mut waited = 0;
        while beside + blocks.max(before) > most
            && let Some(oldest) = self.0.get(waited)
        {
            waited += 1;
            if !oldest.is_of(of) {
                (before, beside) = (before + oldest.blocks, beside - oldest.blocks);
            }
        }
        Room { waited, blocks: blocks.max(before) }
    }

    /// Notes the launch. What it comes after is not beside it, and until that has ended in its place.
    fn enter(&mut self, of: Vec<C>, Room { waited, blocks }: Room, after: E) {
        let mut nth = 0;
        self.0.retain(|launch| {
            nth += 1;
            nth > waited && !launch.is_of(&of)
        });
        self.0.push(Launch { of, blocks, after });
    }
}

impl<C: PartialEq, E> Launch<C, E> {
    /// Whether one of these communicators had part in it.
    fn is_of(&self, communicators: &[C]) -> bool {
        self.of.iter().any(|one| communicators.contains(one))
    }
}

/// A launch that is about to be made. No other of the device is before it has been, or was given up.
pub(super) struct Admission<'a> {
    /// None for a launch that does not count.
    launches: Option<MutexGuard<'a, Ledger<Communicator, Arc<Pooled<Event>>>>>,
    room: Room,
    of: Vec<Communicator>,
}

impl Flight {
    /// The launches of a device with `multiprocessors` multiprocessors: none.
    pub(super) fn new(multiprocessors: u32) -> Self {
        Flight { blocks_max: multiprocessors, launches: Mutex::new(Ledger(Vec::new())) }
    }

    /// Lets a stream wait until `blocks` blocks find room beside what is under way. The stream has waited for what
    /// these communicators did last.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn admit(
        &self,
        stream: &StreamRef,
        lasts: &[Arc<Last>],
        blocks: u32,
    ) -> Result<Admission<'_>, CudaError> {
        let of: Vec<Communicator> = lasts.iter().map(|last| Communicator(Arc::downgrade(last))).collect();
        if blocks == 0 {
            return Ok(Admission { launches: None, room: Room { waited: 0, blocks }, of });
        }
        let mut launches = self.launches.lock().unwrap_or_else(PoisonError::into_inner);
        let most = self.blocks_max.max(blocks);
        if launches.blocks() + blocks > most {
            let mut outcome = Ok(());
            launches.0.retain(|launch| match launch.after.query() {
                Ok(is_over) => !is_over,
                Err(error) => {
                    outcome = Err(error);
                    true
                }
            });
            outcome?;
        }
        let room = launches.room(&of, blocks, most);
        for oldest in launches.0[..room.waited].iter().filter(|launch| !launch.is_of(&of)) {
            stream.wait_event(&oldest.after)?;
        }
        Ok(Admission { launches: Some(launches), room, of })
    }
}

impl Admission<'_> {
    /// The launch is made, and this event comes after it.
    pub(super) fn goes_until(self, after: &Arc<Pooled<Event>>) {
        if let Some(mut launches) = self.launches {
            launches.enter(self.of, self.room, after.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A launch, and those before that it waits for, directly or by others.
    struct Made {
        blocks: u32,
        before: u64,
    }

    fn number(state: &mut u64, below: u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) % below
    }

    /// Launches that all are under way.
    fn made(seed: u64, most: u32) -> Vec<Made> {
        let (mut state, mut ledger) = (seed, Ledger::<u64, usize>(Vec::new()));
        let mut all: Vec<Made> = Vec::new();
        for nth in 0..12 {
            let mut of = vec![number(&mut state, 4)];
            if number(&mut state, 4) == 0 {
                of.push(4);
            }
            let blocks = 1 + number(&mut state, u64::from(most)) as u32;
            let room = ledger.room(&of, blocks, most);
            let waits = |(at, launch): (usize, &Launch<u64, usize>)| {
                (at < room.waited || launch.is_of(&of)).then_some(launch.after)
            };
            let direct: Vec<usize> = ledger.0.iter().enumerate().filter_map(waits).collect();
            let before = direct.iter().fold(0, |before, at| before | all[*at].before | 1 << at);
            ledger.enter(of, room, nth);
            all.push(Made { blocks, before });
        }
        all
    }

    #[test]
    fn launches_that_may_run_side_by_side_fit() {
        let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let seed = seed.map_or(1, |time| time.as_nanos() as u64);
        println!("launches_that_may_run_side_by_side_fit: seed {seed}");
        for round in 0..200 {
            let most = 8 + (round % 5) as u32;
            let all = made(seed.wrapping_add(round), most);
            for together in 0u64..1 << all.len() {
                let members = || (0..all.len()).filter(|at| together >> at & 1 == 1);
                if members().all(|at| all[at].before & together == 0) {
                    let blocks: u32 = members().map(|at| all[at].blocks).sum();
                    assert!(blocks <= most, "round {round}: {blocks} of {most} blocks by {together:#b}");
                }
            }
        }
    }

    #[test]
    fn what_fits_waits_for_nothing() {
        let mut ledger = Ledger::<u64, ()>(Vec::new());
        for communicator in 0..4 {
            let room = ledger.room(&[communicator], 2, 8);
            assert_eq!(room, Room { waited: 0, blocks: 2 });
            ledger.enter(vec![communicator], room, ());
        }
        // The next of the last one comes after it in any case; of the first, too, and another has no room.
        assert_eq!(ledger.room(&[3], 2, 8), Room { waited: 0, blocks: 2 });
        assert_eq!(ledger.room(&[9], 2, 8), Room { waited: 1, blocks: 2 });
        assert_eq!(ledger.room(&[9], 3, 8), Room { waited: 2, blocks: 4 });
    }
}
