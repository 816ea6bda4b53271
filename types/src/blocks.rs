//! Where the blocks of the ranks are in one buffer, for calls whose blocks differ in length.
//!
//! Invariant: blocks are checked against the buffer before an operation uses them, and are not kept beyond a call.
//! Absent: which counts of two ranks must agree. That differs between calls, and each call documents it.

use consort_algorithms::Block;

use crate::Rank;
use crate::error::{Error, Result};

/// How many elements each rank's block of a buffer has, and where it begins. Blocks made of counts alone lie one
/// after the other in rank order; [`Blocks::at`] places them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blocks<'a> {
    counts: &'a [usize],
    starts: Option<&'a [usize]>,
}

impl<'a> Blocks<'a> {
    /// No blocks, of no ranks.
    pub const NONE: Self = Blocks { counts: &[], starts: None };

    /// The block of rank `r` has `counts[r]` elements from element `displacements[r]` on. Elements between blocks are
    /// left alone, and the displacement of a block without elements does not matter.
    pub fn at(counts: &'a [usize], displacements: &'a [usize]) -> Self {
        Blocks { counts, starts: Some(displacements) }
    }

    /// Elements of a rank's block; 0 for a rank that has none.
    pub fn count(&self, rank: Rank) -> usize {
        self.counts.get(rank as usize).copied().unwrap_or(0)
    }

    /// Elements of the longest block.
    pub fn longest(&self) -> usize {
        self.counts.iter().copied().max().unwrap_or(0)
    }

    /// Elements up to the end of the last block; `usize::MAX` where the number overflows.
    pub fn extent(&self) -> usize {
        match self.starts {
            None => self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count)),
            Some(starts) => {
                let ends = starts.iter().zip(self.counts).filter(|(_, count)| **count != 0);
                ends.map(|(start, count)| start.saturating_add(*count)).max().unwrap_or(0)
            }
        }
    }

    /// A word that differs where the counts differ, up to collisions of a 32-bit mix.
    pub fn digest(&self) -> u32 {
        let mix = |word: u64, count: &usize| {
            let word = (word ^ *count as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            word ^ word >> 32
        };
        let word = self.counts.iter().fold(self.counts.len() as u64, mix);
        (word ^ word >> 32) as u32
    }

    /// The blocks in bytes.
    pub fn bytes(self, element_bytes: usize) -> impl Iterator<Item = Block> {
        let mut next = 0;
        self.counts.iter().enumerate().map(move |(rank, count)| {
            let start = match self.starts {
                None => next,
                // The place of a block without elements was not checked.
                Some(_) if *count == 0 => 0,
                Some(starts) => starts[rank],
            };
            next = start + count;
            Block { offset: start * element_bytes, bytes: count * element_bytes }
        })
    }

    /// Checks that each of `size` ranks has a block inside the buffer `what` of `bytes` bytes of the call `name`.
    /// Where the buffer is `written`, no two blocks may share an element.
    pub fn check(
        &self,
        name: &str,
        what: &str,
        size: u32,
        element_bytes: usize,
        bytes: usize,
        written: bool,
    ) -> Result<()> {
        let entries = [Some(self.counts), self.starts];
        if let Some(wrong) = entries.into_iter().flatten().find(|entries| entries.len() != size as usize) {
            return Err(Error::invalid(
                format!("{name}: {} counts or displacements for {size} ranks", wrong.len()),
                "pass one for each rank",
            ));
        }
        let Some(starts) = self.starts else {
            let total = self.counts.iter().try_fold(0usize, |sum, count| sum.checked_add(*count));
            let total = total.and_then(|total| total.checked_mul(element_bytes));
            if total == Some(bytes) {
                return Ok(());
            }
            return Err(Error::invalid(
                format!(
                    "{name}: the {what} has {bytes} bytes and must have {}",
                    total.map_or("more than there are".into(), |total| total.to_string())
                ),
                "pass a buffer of as many elements as all counts together, or displacements",
            ));
        };
        let elements = bytes / element_bytes;
        let outside = |(start, count): (&usize, &usize)| {
            *count != 0 && start.checked_add(*count).is_none_or(|end| end > elements)
        };
        if let Some(rank) = starts.iter().zip(self.counts).position(outside) {
            return Err(Error::invalid(
                format!("{name}: the block of rank {rank} ends outside of the {what} of {elements} elements"),
                "a displacement and its count are in elements",
            ));
        }
        if written {
            let mut order: Vec<usize> = (0..starts.len()).filter(|rank| self.counts[*rank] != 0).collect();
            order.sort_unstable_by_key(|rank| starts[*rank]);
            let shared =
                order.windows(2).find(|pair| starts[pair[0]] + self.counts[pair[0]] > starts[pair[1]]);
            if let Some(pair) = shared {
                return Err(Error::invalid(
                    format!("{name}: the blocks of ranks {} and {} of the {what} overlap", pair[0], pair[1]),
                    "blocks that are written must be apart",
                ));
            }
        }
        Ok(())
    }
}

impl<'a> From<&'a [usize]> for Blocks<'a> {
    fn from(counts: &'a [usize]) -> Self {
        Blocks { counts, starts: None }
    }
}

impl<'a> From<&'a Vec<usize>> for Blocks<'a> {
    fn from(counts: &'a Vec<usize>) -> Self {
        Blocks { counts, starts: None }
    }
}

impl<'a, const N: usize> From<&'a [usize; N]> for Blocks<'a> {
    fn from(counts: &'a [usize; N]) -> Self {
        Blocks { counts, starts: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_lie_in_rank_order_or_where_they_are_put() {
        let spans = |blocks: Blocks<'_>| -> Vec<(usize, usize)> {
            blocks.bytes(4).map(|block| (block.offset, block.bytes)).collect()
        };
        assert_eq!(spans((&[2, 0, 3]).into()), [(0, 8), (8, 0), (8, 12)]);
        assert_eq!(spans(Blocks::at(&[2, 1], &[5, 0])), [(20, 8), (0, 4)]);
        assert_eq!(spans(Blocks::at(&[0, 1], &[usize::MAX, 3])), [(0, 0), (12, 4)]);
    }

    #[test]
    fn counts_that_differ_have_another_digest() {
        let digests = [[1, 2, 3], [3, 2, 1], [1, 3, 2], [2, 2, 2], [0, 0, 6]].map(|counts| {
            let counts: &[usize] = &counts;
            Blocks::from(counts).digest()
        });
        for (at, digest) in digests.iter().enumerate() {
            assert!(!digests[..at].contains(digest));
        }
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let check = |blocks: Blocks<'_>, bytes, written| {
            let checked = blocks.check("gather_v", "output", 2, 4, bytes, written);
            checked.err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!(check((&[1, 2]).into(), 12, true), "");
        assert!(check((&[1, 2]).into(), 16, true).contains("16 bytes and must have 12"));
        assert!(check((&[1, 2, 3]).into(), 24, true).contains("3 counts"));
        assert!(check((&[usize::MAX, 2]).into(), 24, true).contains("more than there are"));
        assert!(check(Blocks::at(&[1, 2], &[0]), 24, true).contains("1 counts or displacements"));
        assert!(check(Blocks::at(&[1, 2], &[usize::MAX, 0]), 24, true).contains("block of rank 0"));
        assert!(check(Blocks::at(&[1, 2], &[0, 2]), 12, true).contains("block of rank 1"));
        assert!(check(Blocks::at(&[2, 2], &[0, 1]), 12, true).contains("ranks 0 and 1"));
        assert_eq!(check(Blocks::at(&[2, 2], &[0, 1]), 12, false), "");
        assert_eq!(check(Blocks::at(&[2, 0], &[0, 1]), 12, true), "");
        assert_eq!(check(Blocks::at(&[2, 0], &[0, usize::MAX]), 12, true), "");
    }
}
