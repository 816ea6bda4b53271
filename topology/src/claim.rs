//! Which cores a rank may run on, in few bytes, and whether ranks share cores.
//!
//! Invariant: the answer for ranks that were bound one by one is right. On a host of more than 64 cores, overlapping
//! sets of cores are seen to overlap only where they are equal. Absent: how waiting ranks use the answer.

use super::Cores;

/// Cores that have a bit of their own.
const BITS: u32 = u64::BITS;

/// The cores of a rank, as it sends them to the others; all zeros where they are unknown.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Claim {
    /// A hash of the cores' numbers.
    pub digest: u64,
    /// One bit for each core; 0 where the rank has a core beyond `BITS`.
    pub bits: u64,
    /// Number of cores.
    pub cores: u32,
    /// How many threads of these cores run at once: fewer where a control group has a quota.
    pub quota: u32,
}

impl Claim {
    /// The claim of a thread that may run on `allowed`, on at most `quota` cores at once.
    pub fn of(allowed: &Cores, quota: usize) -> Self {
        let hash = |hash: u64, core: &u32| (hash ^ u64::from(*core)).wrapping_mul(0x0100_0000_01b3);
        let has_bits = allowed.iter().all(|core| *core < BITS);
        Claim {
            digest: allowed.iter().fold(0xcbf2_9ce4_8422_2325, hash),
            bits: if has_bits { allowed.iter().fold(0, |bits, core| bits | 1 << core) } else { 0 },
            cores: allowed.len() as u32,
            quota: u32::try_from(quota).unwrap_or(u32::MAX),
        }
    }

    fn overlaps(&self, other: &Claim) -> bool {
        self.digest == other.digest || self.bits & other.bits != 0
    }

    /// Whether a rank of these cores has to share them with others of its host. `all` are the claims of the host's
    /// ranks, this one among them.
    pub fn is_shared_among(&self, all: impl Iterator<Item = Claim>) -> bool {
        let (mut ranks, mut bits, mut all_bits) = (0u32, 0u64, true);
        for rival in all.filter(|other| self.overlaps(other)) {
            ranks += 1;
            bits |= rival.bits;
            all_bits &= rival.bits != 0;
        }
        let together = if all_bits { bits.count_ones() } else { self.cores };
        let limit = if self.quota < self.cores { self.quota } else { u32::MAX };
        ranks > together.min(limit).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(cores: impl IntoIterator<Item = u32>) -> Claim {
        let cores = Cores::from_iter(cores);
        Claim::of(&cores, cores.len())
    }

    #[test]
    fn ranks_that_are_bound_apart_share_nothing() {
        let shares = |all: &[Claim]| {
            all.iter().map(|one| one.is_shared_among(all.iter().copied())).collect::<Vec<_>>()
        };
        assert_eq!(shares(&[claim([0]), claim([1])]), [false, false]);
        assert_eq!(shares(&[claim([0]), claim([1]), claim([1])]), [false, true, true]);
        assert_eq!(shares(&[claim(0..2), claim(0..2)]), [false, false]);
        assert_eq!(shares(&[claim(0..2), claim(0..2), claim(0..2)]), [true; 3]);
        // One is bound, the other is not.
        assert_eq!(shares(&[claim(0..2), claim([0])]), [false, false]);
        // A rank that may run elsewhere is expected to.
        assert_eq!(shares(&[claim([0]), claim([0, 1]), claim([1])]), [false, true, false]);
        // Cores beyond the bits.
        assert_eq!(shares(&[claim([100]), claim([200]), claim([200])]), [false, true, true]);
        assert_eq!(shares(&[claim(64..96), claim(96..128)]), [false, false]);
        // Two threads at once, whatever the number of cores.
        let quota = Claim::of(&Cores::from_iter(0..8), 2);
        assert_eq!(shares(&[quota; 2]), [false, false]);
        assert_eq!(shares(&[quota; 3]), [true; 3]);
        // Nothing is known.
        assert_eq!(shares(&[Claim::default(); 2]), [true; 2]);
        assert_eq!(shares(&[claim([3])]), [false]);
    }
}
