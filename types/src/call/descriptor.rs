//! The descriptor of a call: what must be equal on all ranks that take part in an operation, and its digest.
//!
//! Invariant: equal descriptors have equal digests; two different ones have different digests but for chance. Absent:
//! whether ranks agree.

use consort_algorithms::catalogue::Algorithm;
use consort_kernels::DataType;

use super::{Kind, Operator};
use crate::Rank;

/// What must be equal on all ranks that take part in an operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Descriptor {
    /// Which collective or message.
    pub kind: Kind,
    /// Type of the elements.
    pub data_type: DataType,
    /// How contributions are folded, for reductions.
    pub op: Option<Operator>,
    /// The root, or for point-to-point the peer. Where blocks differ, the digest of their lengths. Where inputs are
    /// replicated, the ranks of a group. 0 otherwise.
    pub root: Rank,
    /// Elements, as the call counts them.
    pub count: u64,
    /// The algorithm that the caller names.
    pub named: Named,
}

/// An algorithm as it fits into twelve bits: its [word](Algorithm::word).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Named(u16);

impl Named {
    /// No algorithm is named: the planner chooses.
    pub const NONE: Named = Named(0);
    const BITS: u32 = 12;

    /// The word of an algorithm.
    pub fn new(algorithm: Algorithm) -> Self {
        Named(algorithm.word())
    }
}

impl Descriptor {
    /// The fields other than the count, packed into one word, which is never 0.
    #[inline]
    pub fn packed(&self) -> u64 {
        let op = self.op.map_or(0xf, |op| op.code() as u64);
        let how = op | (self.named.0 as u64) << 4;
        (self.kind as u64) | (self.data_type.code() as u64) << 8 | how << 16 | (self.root as u64) << 32
    }

    /// The inverse of [`Descriptor::packed`]; `None` where a peer sent an invalid word.
    pub fn unpack(packed: u64, count: u64) -> Option<Self> {
        Some(Descriptor {
            kind: Kind::from_code(packed as u8)?,
            data_type: DataType::from_code((packed >> 8) as u8 as u32)?,
            op: match (packed >> 16) as u8 & 0xf {
                0xf => None,
                code => Some(Operator::from_code(code as u32)?),
            },
            root: (packed >> 32) as u32,
            count,
            named: Named((packed >> 20) as u16 & ((1 << Named::BITS) - 1)),
        })
    }

    /// A word that differs when the descriptors do (up to collisions of a 64-bit mix). It is salted with the
    /// operation's number and with what else must agree.
    pub fn digest(&self, sequence: u64, salt: u64) -> u64 {
        digest_of(seed_of(self.packed(), self.count), sequence, salt)
    }
}

/// What all digests of a descriptor have in common, from the packed descriptor and its count.
#[inline]
pub fn seed_of(packed: u64, count: u64) -> u64 {
    let mut word = packed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word = (word ^ word >> 29 ^ count).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word ^ word >> 32
}

/// The [digest](Descriptor::digest) of a descriptor of this [seed](seed_of): one multiplication, whose upper half every bit
/// below moves.
#[inline]
pub fn digest_of(seed: u64, sequence: u64, salt: u64) -> u64 {
    let word = (seed ^ salt ^ sequence).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word ^ word >> 32
}

impl std::fmt::Display for Descriptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.kind == Kind::Barrier {
            return f.write_str("barrier");
        }
        write!(f, "{} of {} {}", self.kind.name(), self.count, self.data_type.name())?;
        if let Some(op) = self.op {
            write!(f, " ({})", op.name())?;
        }
        match self.kind {
            Kind::Send => write!(f, " to {}", self.root),
            Kind::Receive => write!(f, " from {}", self.root),
            Kind::AllToAllReplicated => write!(f, " in groups of {}", self.root),
            kind if kind.is_rooted() => write!(f, " root {}", self.root),
            kind if kind.varies() => write!(f, " at most, counts #{:08x}", self.root),
            _ => Ok(()),
        }?;
        // There is no text where no algorithm is named, or where a peer sent an invalid word.
        Algorithm::text_of_word(self.named.0).map_or(Ok(()), |by| write!(f, " by {by}"))
    }
}

#[cfg(test)]
mod tests {
    use consort_kernels::ReduceOp;

    use super::*;

    /// Of a sum of `count` floats.
    fn sum_of_floats(count: u64) -> Descriptor {
        super::super::Call::all_reduce(DataType::Float32, ReduceOp::Sum, count as usize).descriptor()
    }

    #[test]
    fn descriptors_survive_packing_and_differ_in_their_digest() {
        let base = sum_of_floats(7);
        assert_eq!(Descriptor::unpack(base.packed(), 7), Some(base));
        let others = [
            Descriptor { kind: Kind::Reduce, ..base },
            Descriptor { data_type: DataType::Float64, ..base },
            Descriptor { op: Some(Operator::Plain(ReduceOp::Max)), ..base },
            Descriptor { op: Some(Operator::PreMulSum), ..base },
            Descriptor { root: 1, ..base },
            Descriptor { count: 8, ..base },
            Descriptor { named: Named::new(Algorithm::Tree), ..base },
            Descriptor { named: Named::new(Algorithm::TwoLevel { per_box: 127 }), ..base },
        ];
        for other in others {
            assert_eq!(Descriptor::unpack(other.packed(), other.count), Some(other));
            assert_ne!(other.digest(3, 0), base.digest(3, 0));
        }
        assert_ne!(base.digest(3, 0), base.digest(4, 0));
        assert_eq!(base.to_string(), "all_reduce of 7 float (sum)");
        let named = Descriptor { named: Named::new(Algorithm::Tree), ..base };
        assert_eq!(named.to_string(), "all_reduce of 7 float (sum) by tree");
    }

    #[test]
    fn named_algorithms_differ_where_their_parameters_are_small() {
        let ring = |channels, bidirectional| Algorithm::Ring { channels, bidirectional };
        let mut all: Vec<Algorithm> = (1..=16).flat_map(|n| [ring(n, false), ring(n, true)]).collect();
        all.extend((2..64).map(|radix| Algorithm::Bruck { radix }));
        all.extend((0..64).map(|first| Algorithm::Direct { first }));
        all.extend((1..64).map(|per_box| Algorithm::Hierarchical { per_box }));
        all.extend([Algorithm::Tree, Algorithm::Doubling, Algorithm::Swing, Algorithm::Pat]);
        let words: std::collections::HashSet<_> =
            all.iter().map(|algorithm| Named::new(*algorithm)).collect();
        assert_eq!(words.len(), all.len());
        assert!(!words.contains(&Named::NONE));
        let text = Descriptor { named: Named::new(ring(2, false)), ..sum_of_floats(1) }.to_string();
        assert_eq!(text, "all_reduce of 1 float (sum) by ring (parameters #02)");
    }
}
