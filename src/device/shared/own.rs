//! Memory of this rank that peers write: it outlives the communicator until every peer has said goodbye.
//!
//! Invariant: the memory is freed when no peer of another process writes to it any more. Absent: the bytes in it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use consort_cuda::{Driver, NoDriver};
use consort_transports::cuda_ipc::{Arena, Words};

use super::{GOODBYE, Peer, WORDS_PER_PEER};
use crate::Rank;

/// Memory that peers write: it must outlive their last operation, not only this rank's.
pub(super) struct Own {
    memory: Option<(Arena, Words)>,
    /// The ranks that write from other processes: peers in this process keep the memory that they write.
    others: Vec<Rank>,
}

/// The time in which the peers may say goodbye at the end of a communicator.
const GOODBYES: Duration = Duration::from_millis(200);

/// The memory of communicators that are gone, whose peers have not all said goodbye.
static REMAINS: Mutex<Vec<Own>> = Mutex::new(Vec::new());

impl Own {
    pub(super) fn new(arena: Arena, words: Words, peers: &[Option<Peer>]) -> Self {
        // Memory whose peers have all said goodbye goes now.
        REMAINS.lock().unwrap_or_else(PoisonError::into_inner).retain(|own| !own.is_left());
        let is_other =
            |peer: &Option<Peer>| peer.as_ref().is_some_and(|peer| !peer.arena.is_of_this_process());
        let others = (0..).zip(peers).filter(|(_, peer)| is_other(peer)).map(|(rank, _)| rank).collect();
        Own { memory: Some((arena, words)), others }
    }

    pub(super) fn arena(&self) -> &Arena {
        // Only `drop` takes it.
        &self.memory.as_ref().expect("an arena as long as its communicator lives").0
    }

    pub(super) fn words(&self) -> &Words {
        // As above.
        &self.memory.as_ref().expect("words as long as their communicator lives").1
    }

    /// Whether no peer of another process will write any more.
    fn is_left(&self) -> bool {
        let Some((_, words)) = &self.memory else { return true };
        let left = |rank: &Rank| words.word(rank * WORDS_PER_PEER + GOODBYE).load_acquire() != 0;
        self.others.iter().all(left)
    }
}

/// Whether this process is a fork of the one that reached the peers: the peers' words and its own are the parent's.
pub(super) fn is_inherited() -> bool {
    matches!(Driver::of_process(), Err(NoDriver::Forked))
}

impl Drop for Own {
    fn drop(&mut self) {
        if is_inherited() {
            return std::mem::forget(self.memory.take());
        }
        // Ranks mostly end together.
        let until = Instant::now() + GOODBYES;
        while !self.is_left() && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(200));
        }
        if !self.is_left() {
            let remains = Own { memory: self.memory.take(), others: std::mem::take(&mut self.others) };
            REMAINS.lock().unwrap_or_else(PoisonError::into_inner).push(remains);
        }
    }
}
