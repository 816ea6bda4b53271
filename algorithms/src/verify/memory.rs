//! The value of every cell, and the steps that touched it last.
//!
//! Invariant: an access is accepted only when it happens after every access it conflicts with, so the value of a cell
//! at an access is the same in every run. Absent: bytes.

use super::expression::{Id, UNDEFINED};
use super::order::{Cause, Clocks, Epoch};

/// The value of a place out of place and in place; both are the same for most of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Both {
    pub(super) apart: Id,
    pub(super) in_place: Id,
}

impl Both {
    pub(super) const UNDEFINED: Both = Both::same(UNDEFINED);

    pub(super) const fn same(expression: Id) -> Self {
        Both { apart: expression, in_place: expression }
    }

    /// The image of both values, computed once when they are the same.
    pub(super) fn map(self, mut image: impl FnMut(Id) -> Id) -> Self {
        let apart = image(self.apart);
        let in_place = if self.in_place == self.apart { apart } else { image(self.in_place) };
        Both { apart, in_place }
    }

    /// As [`map`](Both::map), of two.
    pub(super) fn join(self, other: Both, mut image: impl FnMut(Id, Id) -> Id) -> Self {
        let apart = image(self.apart, other.apart);
        let same = self.in_place == self.apart && other.in_place == other.apart;
        let in_place = if same { apart } else { image(self.in_place, other.in_place) };
        Both { apart, in_place }
    }
}

/// A value: its expressions, its iteration, and its length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Value {
    pub(super) holds: Both,
    pub(super) round: u32,
    pub(super) length: u32,
}

pub(super) struct Cell<S> {
    pub(super) value: Value,
    pub(super) write: Epoch,
    read: Epoch,
    /// Further reads that nothing orders among each other.
    more_reads: Vec<Epoch>,
    /// For slots: which use of the mailbox filled it.
    pub(super) number: u32,
    /// Written and not read since.
    pub(super) unread: bool,
    /// The use of the mailbox whose packet is here, and the writer's clock.
    pub(super) packet: Option<(u32, S)>,
}

impl<S> Cell<S> {
    pub(super) fn new() -> Self {
        Cell {
            value: Value { holds: Both::UNDEFINED, round: 0, length: 0 },
            write: Epoch::NEVER,
            read: Epoch::NEVER,
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
    pub(super) fn load(&mut self, clocks: &impl Clocks, lane: u32, epoch: Epoch) -> Result<Value, Cause> {
        if !clocks.knows(lane, self.write) {
            return Err(self.write.cause);
        }
        if clocks.knows(lane, self.read) {
            self.read = epoch;
        } else {
            self.more_reads.retain(|&other| !clocks.knows(lane, other));
            self.more_reads.push(epoch);
        }
        self.unread = false;
        Ok(self.value)
    }

    /// Whether a lane has read the value that the use `number` left here, as far as `lane` knows, or the value is
    /// gone.
    pub(super) fn is_emptied(&self, clocks: &impl Clocks, lane: u32, number: u32) -> bool {
        let known = || [self.read].iter().chain(&self.more_reads).all(|&read| clocks.knows(lane, read));
        self.write != Epoch::NEVER
            && (self.number > number || (self.number == number && !self.unread && known()))
    }

    /// Takes a new value, unless an earlier access is not ordered before the write.
    ///
    /// # Errors
    ///
    /// The cause of the conflicting access.
    pub(super) fn store(
        &mut self,
        clocks: &impl Clocks,
        lane: u32,
        epoch: Epoch,
        value: Value,
    ) -> Result<(), Cause> {
        let mut earlier = [self.write, self.read].into_iter().chain(self.more_reads.iter().copied());
        if let Some(conflict) = earlier.find(|&access| !clocks.knows(lane, access)) {
            return Err(conflict.cause);
        }
        self.write = epoch;
        self.read = Epoch::NEVER;
        self.more_reads.clear();
        self.value = value;
        Ok(())
    }
}
