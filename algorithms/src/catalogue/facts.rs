//! The properties of an algorithm that a planner needs besides its schedule, and the word that ranks compare.
//!
//! Invariant: outside of the catalogue no code distinguishes algorithms by name. Absent: sizes.

use super::{Algorithm, Family};

/// The most ranks whose two-shot the verifier can follow: with more, too many signals are under way.
const TWO_SHOT_PROVED_MAX: u32 = 128;
/// The same for trees, whose order comes about through third ranks.
const TREE_PROVED_MAX: u32 = 1024;
/// The same for trees along rails, whose lanes are limited besides.
const RAIL_TREES_PROVED_MAX: u32 = 4096;

/// How an algorithm's time grows with the boxes of a machine; see [`Algorithm::growth`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Growth {
    /// Ranks of a box.
    pub per_box: u32,
    /// Boxes.
    pub boxes: u32,
    /// Whether every box more adds the same rounds; otherwise every doubling adds the same hops.
    pub is_ring: bool,
}

/// Bits of a [word](Algorithm::word) for the parameters.
const PARAMETER_BITS: u32 = 7;

impl Algorithm {
    /// One ring in one direction.
    pub const RING: Algorithm = Algorithm::Ring { channels: 1, bidirectional: false };

    /// Whether it is the message between two ranks.
    pub const fn is_pair(self) -> bool {
        matches!(self, Algorithm::Pair)
    }

    /// Whether it is an imported schedule.
    pub const fn is_imported(self) -> bool {
        matches!(self, Algorithm::Imported(_))
    }

    /// Whether switches fold, in no order that stays: bits differ between calls, and no transport of ranks reaches them, so that it
    /// is priced only.
    pub const fn is_switched(self) -> bool {
        matches!(self, Algorithm::Switched { .. })
    }

    /// Whether it is one exchange in which each message goes straight from its source to its target.
    pub const fn is_direct(self) -> bool {
        matches!(self, Algorithm::Direct { .. } | Algorithm::Spread)
    }

    /// Whether ranks exchange with all others at once, fold their shares, and exchange those.
    pub const fn is_two_shot(self) -> bool {
        matches!(self, Algorithm::TwoShot)
    }

    /// Whether ranks send to all others at once.
    pub const fn starts_all_at_once(self) -> bool {
        self.is_direct() || self.is_two_shot()
    }

    /// Whether contributions are folded from the first rank to the last, whatever the piece.
    pub fn folds_in_rank_order(self) -> bool {
        match self {
            Algorithm::Imported(of) => of.folds_in_rank_order(),
            _ => matches!(self, Algorithm::Direct { .. } | Algorithm::TwoShot),
        }
    }

    /// Whether ranks exchange large pieces with one partner after another.
    pub const fn changes_partners(self) -> bool {
        matches!(self, Algorithm::HalvingDoubling | Algorithm::Swing)
    }

    /// Whether a rank exchanges with many others, so that its connections should be small.
    pub const fn has_many_peers(self) -> bool {
        !matches!(self, Algorithm::Ring { .. } | Algorithm::Pair | Algorithm::BoxChain { .. })
    }

    /// The most ranks whose plans the verifier can follow; memory may be a closer limit.
    pub const fn proved_ranks_max(self) -> u32 {
        match self {
            Algorithm::TwoShot => TWO_SHOT_PROVED_MAX,
            Algorithm::Tree | Algorithm::BoxTree { .. } => TREE_PROVED_MAX,
            Algorithm::RailTrees { .. } => RAIL_TREES_PROVED_MAX,
            _ => u32::MAX,
        }
    }

    /// The same algorithm for a call whose root has this number, where its plans depend on the root's place in its box.
    pub const fn rooted_at(self, root: u32) -> Self {
        match self {
            Algorithm::RailTrees { per_box, trees, .. } => {
                Algorithm::RailTrees { per_box, trees, first: root % per_box }
            }
            Algorithm::BoxChain { per_box, .. } => Algorithm::BoxChain { per_box, first: root % per_box },
            other => other,
        }
    }

    /// The boxes over `ranks` ranks, and what each adds, where a run over fewer boxes shows that; none of other algorithms.
    pub fn growth(self, ranks: u32) -> Option<Growth> {
        match self {
            Algorithm::Rails { per_box, .. } => {
                Some(Growth { per_box, boxes: ranks / per_box, is_ring: true })
            }
            Algorithm::RailTrees { per_box, .. } | Algorithm::Switched { per_box, .. } => {
                Some(Growth { per_box, boxes: ranks / per_box, is_ring: false })
            }
            _ => None,
        }
    }

    /// Whether it runs along the rails of boxes, or through their switches, on channels side by side that keep a link full, so that
    /// slots are worth being as long as those of rings.
    pub const fn is_along_rails(self) -> bool {
        matches!(self, Algorithm::Rails { .. } | Algorithm::RailTrees { .. } | Algorithm::Switched { .. })
    }

    /// Whether its trees along each rail are more than four: long slots of all of them would take a gigabyte.
    pub const fn is_on_many_channels(self) -> bool {
        matches!(self, Algorithm::RailTrees { trees, .. } if trees > 4)
    }

    /// In how many slices a piece travels, as far as slots are long enough, where the algorithm says it: one where the pieces
    /// are many; more where a pipeline of some ten hops is to be full for half of the time at least.
    pub const fn slices(self) -> Option<u64> {
        match self {
            Algorithm::Rails { .. } => Some(1),
            Algorithm::RailTrees { .. } => Some(32),
            Algorithm::Switched { .. } => Some(16),
            _ => None,
        }
    }

    /// The same algorithm with a fold that begins with the contribution of `first`, relative to the root. It is
    /// unchanged where the algorithm names its own beginning or its fold has an order of its own.
    pub const fn beginning_at(self, first: u32) -> Self {
        match self {
            Algorithm::Direct { first: 0 } => Algorithm::Direct { first },
            other => other,
        }
    }

    /// Its family, counted from 1, and seven bits for its parameters, which are exact where they are small: twelve
    /// bits, never 0. All imported schedules are one family, with seven bits of their hash.
    pub fn word(self) -> u16 {
        let mut parameters = match self {
            Algorithm::Ring { channels, bidirectional } => {
                u64::from(channels.wrapping_sub(1)) << 1 | u64::from(bidirectional)
            }
            Algorithm::Bruck { radix } => u64::from(radix.wrapping_sub(2)),
            Algorithm::Direct { first } => u64::from(first),
            Algorithm::Hierarchical { per_box }
            | Algorithm::BoxTree { per_box }
            | Algorithm::TwoLevel { per_box } => u64::from(per_box),
            Algorithm::BoxChain { per_box, first } => u64::from(per_box) << PARAMETER_BITS | u64::from(first),
            // Different for all that one box size has: up to 15 channels, or trees by powers of two up to 128 from each of 16 ranks.
            Algorithm::Rails { per_box, channels } | Algorithm::Switched { per_box, channels } => {
                u64::from(per_box) << PARAMETER_BITS | u64::from(channels)
            }
            Algorithm::RailTrees { per_box, trees, first } => {
                u64::from(per_box) << PARAMETER_BITS
                    | u64::from(first) << 3
                    | u64::from(trees.checked_ilog2().unwrap_or(0))
            }
            Algorithm::BlueConnect { dimensions } => {
                dimensions.iter().fold(0, |word, along| word << 16 | u64::from(*along))
            }
            Algorithm::Imported(of) => of.hash(),
            _ => 0,
        };
        let mask = (1 << PARAMETER_BITS) - 1;
        while parameters > mask {
            parameters = parameters >> PARAMETER_BITS ^ parameters & mask;
        }
        let family = self.family();
        let at = Family::ALL.into_iter().position(|known| known == family).unwrap_or(Family::ALL.len());
        (at as u16 + 1) << PARAMETER_BITS | parameters as u16
    }

    /// The meaning of a [word](Algorithm::word) as text; `None` where no algorithm has the word.
    pub fn text_of_word(word: u16) -> Option<String> {
        let (at, parameters) = (word >> PARAMETER_BITS, word & ((1 << PARAMETER_BITS) - 1));
        let at = usize::from(at).checked_sub(1)?;
        if at == Family::ALL.len() {
            return Some(format!("an imported schedule (#{parameters:02x})"));
        }
        let family = Family::ALL.get(at)?;
        Some(match parameters {
            0 => family.to_string(),
            parameters => format!("{family} (parameters #{parameters:02x})"),
        })
    }
}
