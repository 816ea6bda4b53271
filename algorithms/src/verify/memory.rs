//! What every cell holds and who touched it last.
//!
//! Invariant: an access is let through only when it happens after every access it conflicts with, so what a
//! cell holds at an access is the same in every run. Absent: bytes.

use super::expression::{Id, UNDEFINED};
use super::order::{Cause, Clocks, Epoch, Snapshot};

/// A value: an expression, of which iteration, and of which length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Value {
    pub(super) expression: Id,
    pub(super) round: u32,
    pub(super) length: u32,
}

pub(super) struct Cell {
    pub(super) value: Value,
    pub(super) write: Option<Epoch>,
    read: Option<Epoch>,
    /// Further reads that nothing orders among each other.
    more_reads: Vec<Epoch>,
    /// For slots: which use of the mailbox filled it.
    pub(super) number: u64,
    /// Written and not read since.
    pub(super) unread: bool,
    /// The use of the mailbox whose packet is here, and what its writer knew.
    pub(super) packet: Option<(u64, Snapshot)>,
}

impl Cell {
    pub(super) fn new() -> Self {
        Cell {
            value: Value { expression: UNDEFINED, round: 0, length: 0 },
            write: None,
            read: None,
            more_reads: Vec::new(),
            number: 0,
            unread: false,
            packet: None,
        }
    }

    /// The value, unless a write is not ordered before the read.
    ///
    /// # Errors
    ///
    /// The cause of the conflicting write.
    pub(super) fn load(&mut self, clocks: &Clocks, lane: u32, epoch: Epoch) -> Result<Value, Cause> {
        if let Some(write) = self.write
            && !clocks.knows(lane, write)
        {
            return Err(write.cause);
        }
        match self.read {
            Some(read) if !clocks.knows(lane, read) => {
                self.more_reads.retain(|&other| !clocks.knows(lane, other));
                self.more_reads.push(epoch);
            }
            _ => self.read = Some(epoch),
        }
        self.unread = false;
        Ok(self.value)
    }

    /// Whether somebody read what the use of that number left here, as far as `lane` knows, or it is gone.
    pub(super) fn is_emptied(&self, clocks: &Clocks, lane: u32, number: u64) -> bool {
        let known = || self.read.iter().chain(&self.more_reads).all(|&read| clocks.knows(lane, read));
        self.write.is_some() && (self.number > number || (self.number == number && !self.unread && known()))
    }

    /// Takes a new value, unless an earlier access is not ordered before the write.
    ///
    /// # Errors
    ///
    /// The cause of the conflicting access.
    pub(super) fn store(
        &mut self,
        clocks: &Clocks,
        lane: u32,
        epoch: Epoch,
        value: Value,
    ) -> Result<(), Cause> {
        let earlier = self.write.iter().chain(&self.read).chain(&self.more_reads);
        if let Some(conflict) = earlier.copied().find(|&access| !clocks.knows(lane, access)) {
            return Err(conflict.cause);
        }
        self.write = Some(epoch);
        self.read = None;
        self.more_reads.clear();
        self.value = value;
        Ok(())
    }
}
