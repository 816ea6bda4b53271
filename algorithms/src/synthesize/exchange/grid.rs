//! Grids of ranks, and turning them.
//!
//! Invariant: ranks are numbered with the first dimension fastest; a turn moves all of them by the same distance
//! along each dimension, around its end. Absent: machines.

/// More grids than this are not listed.
const GRIDS_MAX: usize = 512;

/// The dimensions of a grid of ranks, the first one fastest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Grid(pub(super) Vec<u32>);

impl Grid {
    /// The rank that `rank` becomes when rank 0 moves to `by`.
    pub(super) fn turn(&self, rank: u32, by: u32) -> u32 {
        let (mut stride, mut turned) = (1, 0);
        for length in &self.0 {
            turned += (rank / stride % length + by / stride % length) % length * stride;
            stride *= length;
        }
        turned
    }

    /// The rank that rank 0 has become when `from` has become `to`.
    pub(super) fn distance(&self, from: u32, to: u32) -> u32 {
        let (mut stride, mut by) = (1, 0);
        for length in &self.0 {
            by += (to / stride % length + length - from / stride % length) % length * stride;
            stride *= length;
        }
        by
    }

    /// Every grid of that many ranks, those of few dimensions first.
    pub(super) fn all(ranks: u32) -> Vec<Grid> {
        let mut grids = Vec::new();
        let mut open: Vec<(Vec<u32>, u32)> = vec![(Vec::new(), ranks)];
        while let Some((dimensions, left)) = open.pop() {
            if left == 1 {
                grids.push(Grid(dimensions));
            } else if grids.len() < GRIDS_MAX {
                let divides = |length: &u32| left.is_multiple_of(*length);
                open.extend((2..=left).filter(divides).map(|length| {
                    let longer = dimensions.iter().copied().chain([length]).collect();
                    (longer, left / length)
                }));
            }
        }
        grids.sort_by(|one, other| (one.0.len(), &one.0).cmp(&(other.0.len(), &other.0)));
        grids
    }
}
