//! Vector clocks: how much of every thread comes before a point of one thread.
//!
//! Invariant: a clock only grows. A thread's own entry is kept beside a shared part, so that threads that leave a
//! barrier share one. Absent: what the entries stand for; see [`super::races`].

use std::rc::Rc;

/// The clock of a thread at a point.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    others: Rc<Vec<u32>>,
    pub(super) actor: u32,
    pub(super) epoch: u32,
}

impl Clock {
    /// The first clock of `actor`; all share `zeros`.
    pub(super) fn new(zeros: &Rc<Vec<u32>>, actor: u32) -> Self {
        Self { others: zeros.clone(), actor, epoch: 1 }
    }

    /// The epoch of `actor` up to which its accesses come before.
    pub(super) fn of(&self, actor: u32) -> u32 {
        if actor == self.actor { self.epoch } else { self.others.get(actor as usize).copied().unwrap_or(0) }
    }

    /// Makes all that comes before `other`'s point come before this one too.
    pub(super) fn join(&mut self, other: &Self) {
        if self.of(other.actor) >= other.epoch && Rc::ptr_eq(&self.others, &other.others) {
            return;
        }
        let mine = Rc::make_mut(&mut self.others);
        for (mine, theirs) in mine.iter_mut().zip(other.others.iter()) {
            *mine = (*mine).max(*theirs);
        }
        if other.actor != self.actor {
            let entry = &mut mine[other.actor as usize];
            *entry = (*entry).max(other.epoch);
        }
    }

    /// The clock with every entry in the shared part. It belongs to no thread.
    pub(super) fn of_no_one(&self) -> Self {
        let mut all = Self { others: self.others.clone(), actor: u32::MAX, epoch: 0 };
        all.join(self);
        all
    }

    /// Takes `joined`'s entries, and keeps the own entry.
    pub(super) fn share(&mut self, joined: &Self) {
        self.others = joined.others.clone();
    }
}
