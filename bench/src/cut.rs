//! How a vector is cut into a block for each rank.
//!
//! Invariant: the blocks of a cut lie one after the other and cover the vector, so nothing of the asked size is
//! lost. Where blocks differ in length, block `k` of `n` takes `k + 1` of `n * (n + 1) / 2` shares: the last is
//! `n` times the first, and while there are fewer elements than shares some are empty.
//!
//! An all-to-all has a cut for each rank and direction. Rank `s` sends to rank `d` the length of block
//! `(d - s) mod n`: what goes one way differs from what comes back, and every rank sends and receives as much in
//! all.

/// A vector's blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cut {
    elements: usize,
    ranks: usize,
    varies: bool,
}

impl Cut {
    /// Blocks that differ in length.
    pub(crate) fn uneven(elements: usize, ranks: u32) -> Self {
        Self { elements, ranks: ranks as usize, varies: true }
    }

    /// Blocks of equal length; `elements` is a multiple of `ranks`.
    pub(crate) fn even(elements: usize, ranks: u32) -> Self {
        Self { elements, ranks: ranks as usize, varies: false }
    }

    /// Where block `block` begins; of the number of blocks, where the last ends.
    pub(crate) fn start(&self, block: usize) -> usize {
        let (block, ranks) = (block as u128, self.ranks as u128);
        let (shares, of) = match self.varies {
            true => (block * (block + 1), ranks * (ranks + 1)),
            false => (block, ranks),
        };
        // At most the elements there are.
        (self.elements as u128 * shares / of) as usize
    }

    /// Elements of a block.
    pub(crate) fn count(&self, block: usize) -> usize {
        self.start(block + 1) - self.start(block)
    }

    /// Elements of the longest block.
    pub(crate) fn longest(&self) -> usize {
        // The last: it has the most shares, and where a share is broken its begin is rounded down.
        self.count(self.ranks - 1)
    }

    /// Elements of each block.
    pub(crate) fn counts(&self) -> Vec<usize> {
        (0..self.ranks).map(|block| self.count(block)).collect()
    }

    /// In an all-to-all, elements that go from one rank to another.
    pub(crate) fn message(&self, from: usize, to: usize) -> usize {
        self.count((to + self.ranks - from) % self.ranks)
    }

    /// In an all-to-all, where the block for rank `to` begins in what `from` sends.
    pub(crate) fn sent_start(&self, from: usize, to: usize) -> usize {
        let first = self.ranks - from;
        match to <= from {
            true => self.start(first + to) - self.start(first),
            false => self.elements - self.start(first) + self.start(to - from),
        }
    }

    /// In an all-to-all, where the block of rank `from` begins in what `to` receives.
    pub(crate) fn received_start(&self, from: usize, to: usize) -> usize {
        let end = self.start(to + 1);
        match from <= to {
            true => end - self.start(to + 1 - from),
            false => end + self.elements - self.start(self.ranks + to + 1 - from),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uneven_blocks_cover_the_vector_and_are_empty_where_it_is_short() {
        let counts = |elements, ranks| Cut::uneven(elements, ranks).counts();
        assert_eq!(counts(250, 4), [25, 50, 75, 100]);
        assert_eq!(counts(2, 3), [0, 1, 1]);
        assert_eq!(counts(1, 2), [0, 1]);
        assert_eq!(counts(7, 1), [7]);
        assert_eq!(counts(0, 3), [0, 0, 0]);
        for ranks in 1..9 {
            for elements in 0..99 {
                let cut = Cut::uneven(elements, ranks);
                assert_eq!(cut.counts().iter().sum::<usize>(), elements);
                assert_eq!(Some(cut.longest()), cut.counts().into_iter().max(), "{cut:?}");
            }
        }
        assert_eq!(Cut::uneven(1 << 50, 65_536).start(65_536), 1 << 50);
    }

    #[test]
    fn an_all_to_all_agrees_in_both_directions() {
        for ranks in 1..7 {
            for cut in [Cut::uneven(101, ranks), Cut::even(7 * ranks as usize, ranks)] {
                let n = ranks as usize;
                for rank in 0..n {
                    let (mut sent, mut received) = (0, 0);
                    for other in 0..n {
                        assert_eq!(cut.sent_start(rank, other), sent, "{cut:?} {rank} to {other}");
                        assert_eq!(cut.received_start(other, rank), received, "{cut:?} {other} to {rank}");
                        sent += cut.message(rank, other);
                        received += cut.message(other, rank);
                    }
                    assert_eq!((sent, received), (cut.elements, cut.elements));
                }
            }
        }
        let cut = Cut::uneven(60, 3);
        assert_eq!((cut.message(0, 1), cut.message(1, 0), cut.message(2, 2)), (20, 30, 10));
    }
}
