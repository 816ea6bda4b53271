//! Sets of numbers that grow together.
//!
//! Source: B. A. Galler and M. J. Fischer, "An improved equivalence algorithm", Communications of the ACM 7 (1964), with halved paths.
//!
//! Invariant: a set's name is its least number. Absent: taking apart.

/// Numbers from 0 on, each in one set.
pub(crate) struct Sets(Vec<usize>);

impl Sets {
    /// `count` numbers, each in a set of its own.
    pub(crate) fn new(count: usize) -> Sets {
        Sets((0..count).collect())
    }

    /// How many numbers there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The name of the set that a number is in.
    pub(crate) fn root(&mut self, mut at: usize) -> usize {
        while self.0[at] != at {
            self.0[at] = self.0[self.0[at]];
            at = self.0[at];
        }
        at
    }

    /// Makes one set of those of two numbers.
    pub(crate) fn join(&mut self, one: usize, other: usize) {
        let (one, other) = (self.root(one), self.root(other));
        self.0[one.max(other)] = one.min(other);
    }
}
