//! Every classical algorithm by name, and imported schedules: the collectives and numbers of ranks it is defined for,
//! and its schedule.
//!
//! Invariant: an [`Algorithm`] is a small value with parameters; its text form reads back as the same value;
//! [`Algorithm::schedule`] succeeds wherever [`Algorithm::is_defined`] says so. Deliberately absent: sizes and
//! prices, which belong to the planner, and algorithms that need an aggregating switch, which have no
//! mailboxes and are priced only, but for [`Algorithm::Switched`].

mod candidates;
mod crossing;
mod facts;
mod formula;
mod imported;
mod names;

pub use candidates::candidates;
pub use crossing::crossing;
pub use facts::Growth;
pub use formula::{Formula, Level, formula};
pub use imported::{Imported, Range, Refused};
pub(crate) use imported::{NAME_MAX, prove};
pub use names::{Family, UnknownAlgorithm};

use crate::builders::{self, PartnerOrder, RailTrees, RingOptions};
use crate::{Collective, Regular, Schedule, whole};

/// An algorithm with its parameters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Algorithm {
    /// One message between two ranks.
    Pair,
    /// Neighbours in a ring; broadcast and reduce are chains.
    Ring {
        /// Rings side by side.
        channels: u16,
        /// Whether half of the bytes travel in the other direction.
        bidirectional: bool,
    },
    /// Two binary trees, each with half of the bytes.
    Tree,
    /// Recursive doubling.
    Doubling,
    /// Recursive halving, then doubling (Rabenseifner).
    HalvingDoubling,
    /// Bruck's dissemination.
    Bruck {
        /// Digits of a rank's number are to this base; at least 2.
        radix: u16,
    },
    /// Parallel aggregated trees.
    Pat,
    /// Every rank sends to all others (or to the root): one step, folded in rank order.
    Direct {
        /// For reduce: the rank, relative to the root, whose contribution comes first.
        first: u32,
    },
    /// Direct reduce-scatter, then direct all-gather.
    TwoShot,
    /// All-to-all, one partner at a time.
    Pairwise,
    /// All-to-all, all partners at once.
    Spread,
    /// Binomial tree.
    Binomial,
    /// Binomial scatter, then ring all-gather (van de Geijn).
    ScatterAllGather,
    /// Swing around a ring.
    Swing,
    /// Reduce-scatter in the box, all-reduce per rail, all-gather in the box, all by rings.
    Hierarchical {
        /// Ranks of a box.
        per_box: u32,
    },
    /// A ring along each dimension in turn.
    BlueConnect {
        /// Ranks along each dimension; unused ones are 1.
        dimensions: [u16; 4],
    },
    /// A chain inside each box and a tree between the boxes.
    BoxTree {
        /// Ranks of a box.
        per_box: u32,
    },
    /// A chain from box to box, and one inside each.
    BoxChain {
        /// Ranks of a box.
        per_box: u32,
        /// The number of the root in its box.
        first: u32,
    },
    /// All-to-all inside the box, then per rail.
    TwoLevel {
        /// Ranks of a box.
        per_box: u32,
    },
    /// Rings along rails, and exchanges inside of the boxes beside them.
    Rails {
        /// Ranks of a box.
        per_box: u32,
        /// Channels side by side.
        channels: u16,
    },
    /// Trees along rails, and chains or stars inside of the boxes.
    RailTrees {
        /// Ranks of a box.
        per_box: u32,
        /// Trees along each rail.
        trees: u16,
        /// The number of the root in its box; 0 without a root.
        first: u32,
    },
    /// Through the switch of each box, which folds, and by trees between the boxes. It is priced and never runs.
    Switched {
        /// Ranks of a box.
        per_box: u32,
        /// Channels of each rank.
        channels: u16,
    },
    /// Each rank exchanges its part of replicated blocks, then the ranks of a group gather the parts.
    Coordinated,
    /// An imported schedule.
    Imported(Imported),
}

/// The most rings side by side.
pub const CHANNELS_MAX: u16 = 16;
/// The most trees along all rails together.
const RAIL_TREES_MAX: u64 = 256;

impl Algorithm {
    /// Whether the algorithm has a schedule for `collective` over `ranks` ranks (at least 1).
    pub fn is_defined(self, collective: Collective, ranks: u32) -> bool {
        use Collective::{
            AllGather, AllReduce, AllToAll, AllToAllReplicated, Broadcast, Reduce, ReduceScatter, SendReceive,
        };
        let divides = |per_box: u32| per_box > 0 && ranks.is_multiple_of(per_box);
        match self {
            _ if ranks == 0 || !collective.fits(ranks) => false,
            Algorithm::Imported(of) => (of.schedule().collective, of.schedule().ranks) == (collective, ranks),
            _ if matches!(collective, AllToAllReplicated { .. }) => self == Algorithm::Coordinated,
            Algorithm::Coordinated => false,
            Algorithm::Pair => collective == SendReceive && ranks == 2,
            _ if collective == SendReceive => false,
            Algorithm::Ring { channels, .. } => {
                (1..=CHANNELS_MAX).contains(&channels)
                    && matches!(collective, AllReduce | ReduceScatter | AllGather | Broadcast | Reduce)
            }
            Algorithm::Tree => builders::tree_is_defined(collective),
            Algorithm::Doubling => collective == AllReduce,
            Algorithm::HalvingDoubling => builders::halving_doubling_is_defined(collective, ranks),
            Algorithm::Bruck { radix } => {
                radix >= 2 && (collective == AllToAll || (collective == AllGather && radix == 2))
            }
            Algorithm::Direct { first } => {
                collective == AllReduce && first == 0
                    || builders::direct_is_defined(collective)
                        && (first == 0 || (collective == Reduce && first < ranks))
            }
            Algorithm::TwoShot => collective == AllReduce,
            Algorithm::Pairwise | Algorithm::Spread => collective == AllToAll,
            Algorithm::Binomial => builders::binomial_is_defined(collective),
            Algorithm::Hierarchical { per_box } => {
                divides(per_box)
                    && matches!(collective, AllReduce | ReduceScatter | AllGather | Broadcast | Reduce)
            }
            Algorithm::BlueConnect { dimensions } => {
                builders::blueconnect_is_defined(collective)
                    && dimensions.iter().map(|&along| u64::from(along)).product::<u64>() == u64::from(ranks)
            }
            Algorithm::BoxTree { per_box } => divides(per_box) && builders::box_tree_is_defined(collective),
            Algorithm::BoxChain { per_box, first } => {
                divides(per_box) && first < per_box && builders::box_chain_is_defined(collective)
            }
            Algorithm::TwoLevel { per_box } => collective == AllToAll && divides(per_box),
            Algorithm::Rails { per_box, channels } => {
                divides(per_box)
                    && (1..=CHANNELS_MAX).contains(&channels)
                    && builders::rails_are_defined(collective)
            }
            Algorithm::RailTrees { per_box, trees, first } => {
                let is_rooted = matches!(collective, Broadcast | Reduce);
                divides(per_box)
                    && (1..=CHANNELS_MAX).contains(&trees)
                    && first < if is_rooted { per_box } else { 1 }
                    && u64::from(per_box) * u64::from(trees) <= RAIL_TREES_MAX
                    && builders::spanning_trees_are_defined(collective)
            }
            Algorithm::Switched { per_box, channels } => {
                divides(per_box)
                    && ranks > 1
                    && (1..=CHANNELS_MAX).contains(&channels)
                    && builders::switched_is_defined(collective, ranks / per_box)
            }
            Algorithm::Pat => builders::pat_is_defined(collective),
            Algorithm::ScatterAllGather => collective == Broadcast,
            Algorithm::Swing => builders::swing_is_defined(collective, &[ranks]),
        }
    }

    /// The schedule.
    ///
    /// # Panics
    ///
    /// Where the algorithm is not defined: see [`Algorithm::is_defined`].
    pub fn schedule(self, collective: Collective, ranks: u32) -> Schedule {
        assert!(
            self.is_defined(collective, ranks),
            "{self} is not defined for {collective} over {ranks} ranks"
        );
        let ring = |collective, ranks| builders::ring(collective, ranks, RingOptions::default());
        match self {
            Algorithm::Pair => builders::pair(),
            Algorithm::Ring { channels, bidirectional } => {
                builders::ring(collective, ranks, RingOptions { channels, bidirectional })
            }
            Algorithm::Tree => builders::double_tree(collective, ranks),
            Algorithm::Doubling => builders::doubling(ranks),
            // The same order of folding as recursive doubling.
            Algorithm::HalvingDoubling => {
                builders::halving_doubling(collective, ranks, PartnerOrder::NearFirst)
            }
            Algorithm::Bruck { .. } if collective == Collective::AllGather => {
                builders::bruck_all_gather(ranks)
            }
            Algorithm::Bruck { radix } => builders::bruck_all_to_all(ranks, radix.into()),
            Algorithm::Direct { .. } if collective == Collective::AllReduce => builders::one_shot(ranks),
            Algorithm::Direct { first } if collective == Collective::Reduce => {
                builders::direct_reduce(ranks, first)
            }
            Algorithm::Direct { .. } => builders::direct(collective, ranks),
            Algorithm::TwoShot => builders::two_shot(ranks),
            Algorithm::Pairwise => builders::pairwise(ranks),
            Algorithm::Spread => builders::spread_out(ranks),
            Algorithm::Binomial => builders::binomial(collective, ranks),
            Algorithm::Hierarchical { per_box } => {
                builders::hierarchical(collective, ranks / per_box, per_box, &ring, &ring)
            }
            Algorithm::BlueConnect { dimensions } => {
                let mut used: Vec<u32> =
                    dimensions.iter().map(|&along| along.into()).filter(|&along| along > 1).collect();
                if used.is_empty() {
                    used.push(1);
                }
                builders::blueconnect(collective, &used)
            }
            Algorithm::BoxTree { per_box } => builders::box_tree(ranks / per_box, per_box),
            Algorithm::BoxChain { per_box, first } => {
                builders::box_chain(collective, ranks / per_box, per_box, first)
            }
            Algorithm::TwoLevel { per_box } => {
                let exchange = |_, ranks| builders::pairwise(ranks);
                builders::hierarchical(collective, ranks / per_box, per_box, &exchange, &exchange)
            }
            Algorithm::Rails { per_box, channels } => {
                whole(&builders::Rails::new(collective, ranks / per_box, per_box, channels))
            }
            Algorithm::RailTrees { per_box, trees, first } => {
                let of = RailTrees { boxes: ranks / per_box, per_box, trees: trees.into(), first };
                builders::rail_trees(collective, of)
            }
            Algorithm::Switched { per_box, channels } => {
                builders::switched(collective, ranks / per_box, per_box, channels)
            }
            // The fewest rounds: all of a message's blocks together.
            Algorithm::Pat => builders::pat(collective, ranks, u32::MAX),
            Algorithm::ScatterAllGather => builders::scatter_all_gather(ranks),
            Algorithm::Swing => builders::swing(collective, &[ranks]),
            Algorithm::Coordinated => match collective {
                Collective::AllToAllReplicated { group } => builders::coordinated(ranks, group),
                _ => unreachable!("it is defined for no other collective"),
            },
            Algorithm::Imported(of) => of.schedule().clone(),
        }
    }

    /// The schedule by ranks, where it has a symmetry by which it can be proved.
    ///
    /// # Panics
    ///
    /// As [`Algorithm::schedule`].
    pub fn regular(self, collective: Collective, ranks: u32) -> Option<Box<dyn Regular>> {
        assert!(
            self.is_defined(collective, ranks),
            "{self} is not defined for {collective} over {ranks} ranks"
        );
        let regular: Box<dyn Regular> = match self {
            Algorithm::Ring { channels, bidirectional } => {
                let options = RingOptions { channels, bidirectional };
                Box::new(builders::Ring::new(collective, ranks, options))
            }
            Algorithm::Doubling => Box::new(builders::Doubling::new(ranks)),
            Algorithm::Hierarchical { per_box } if builders::blueconnect_is_defined(collective) => {
                let boxes = ranks / per_box;
                let inner = [per_box, boxes].map(|length| if length > 1 { "ring" } else { "none" });
                let name = format!("hierarchical({boxes}x{per_box}, {}, {})", inner[0], inner[1]);
                Box::new(builders::RingGrid::new(name, collective, &[per_box, boxes])?)
            }
            Algorithm::BlueConnect { dimensions } => {
                let used: Vec<u32> =
                    dimensions.into_iter().map(u32::from).filter(|&along| along > 1).collect();
                let lengths: Vec<String> = used.iter().map(u32::to_string).collect();
                let name = format!("blueconnect({})", lengths.join("x"));
                Box::new(builders::RingGrid::new(name, collective, &used)?)
            }
            Algorithm::Rails { per_box, channels } => {
                Box::new(builders::Rails::new(collective, ranks / per_box, per_box, channels))
            }
            _ => return None,
        };
        regular.symmetry().is_some().then_some(regular)
    }

    /// Pieces of a block of its schedule.
    ///
    /// # Panics
    ///
    /// As [`Algorithm::schedule`].
    pub fn parts(self, collective: Collective, ranks: u32) -> u32 {
        match self {
            // The schedule of a ring over many ranks is long.
            Algorithm::Ring { channels, bidirectional } => {
                let blocks = if collective == Collective::AllReduce { ranks } else { 1 };
                blocks * u32::from(channels) * if bidirectional { 2 } else { 1 }
            }
            Algorithm::TwoShot | Algorithm::ScatterAllGather => ranks,
            Algorithm::HalvingDoubling if collective == Collective::AllReduce => 1 << ranks.ilog2(),
            Algorithm::BlueConnect { .. } | Algorithm::Hierarchical { .. } | Algorithm::Swing
                if collective == Collective::AllReduce =>
            {
                ranks
            }
            Algorithm::Rails { channels, .. } => {
                u32::from(channels) * if collective == Collective::AllReduce { ranks } else { 1 }
            }
            Algorithm::RailTrees { per_box, trees, .. } => per_box * u32::from(trees),
            Algorithm::Switched { per_box, channels } => {
                u32::from(channels) * if collective == Collective::AllReduce { per_box } else { 1 }
            }
            Algorithm::Imported(of) => of.schedule().partition.parts,
            // Trees are short.
            Algorithm::Tree | Algorithm::BoxTree { .. } => self.schedule(collective, ranks).partition.parts,
            // All others send whole blocks.
            _ => 1,
        }
    }
}

impl Family {
    /// Whether the algorithm serves `collective` for some number of ranks.
    pub fn serves(self, collective: Collective) -> bool {
        if let Family::Imported(of) = self {
            return of.schedule().collective == collective;
        }
        let group = match collective {
            Collective::AllToAllReplicated { group } => group,
            _ => 1,
        };
        [2, 4].into_iter().any(|groups| {
            let ranks = groups * group;
            let candidates = candidates(
                collective,
                ranks,
                &Shape { per_box: 2, rails: 2, is_switched: true, ..Shape::default() },
            );
            candidates.iter().any(|algorithm| algorithm.family() == self)
        })
    }
}

/// The inputs of the choice of candidates besides collective and ranks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Shape {
    /// Ranks of a box where ranks are grouped box by box in equal boxes; otherwise 1.
    pub per_box: u32,
    /// Rings side by side.
    pub channels: u16,
    /// Whether rings run in both directions.
    pub bidirectional: bool,
    /// Whether exchanges of every rank with every other are candidates at any number of ranks: for orders of folding
    /// that no other algorithm has.
    pub all_pairs: bool,
    /// Ranks of a box whose rails are worth schedules of their own: where links and not processors carry bytes, and ranks are
    /// grouped in equal boxes, or all are in one; otherwise 0.
    pub rails: u32,
    /// Whether a switch in each box folds, where there are rails.
    pub is_switched: bool,
}

impl Default for Shape {
    /// One box, one ring in one direction, nothing besides.
    fn default() -> Self {
        Shape {
            per_box: 1,
            channels: 1,
            bidirectional: false,
            all_pairs: false,
            rails: 0,
            is_switched: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_formulas_are_those_of_the_schedules() {
        for ranks in 1..=33 {
            let replicated = (1..=ranks).map(|group| Collective::AllToAllReplicated { group });
            let replicated = replicated.filter(|collective| collective.fits(ranks));
            for collective in Collective::ALL.into_iter().chain(replicated) {
                let shape = Shape {
                    per_box: if ranks % 4 == 0 { 4 } else { 1 },
                    channels: 2,
                    bidirectional: true,
                    all_pairs: false,
                    rails: if ranks % 4 == 0 { 4 } else { ranks },
                    is_switched: true,
                };
                for algorithm in candidates(collective, ranks, &shape) {
                    let schedule = algorithm.schedule(collective, ranks);
                    let what = format!("{algorithm} of {collective} over {ranks}");
                    assert_eq!(schedule.collective, collective, "{what}");
                    assert_eq!(algorithm.parts(collective, ranks), schedule.partition.parts, "{what}");
                    // The short forms are exact where the number of ranks is a power of two.
                    let Some(formula) = formula(algorithm, collective, ranks) else { continue };
                    let inexact = match algorithm {
                        Algorithm::Ring { .. } => true,
                        Algorithm::Bruck { radix: 4 } => ![16, 64].contains(&ranks),
                        _ => false,
                    };
                    if !ranks.is_power_of_two() || ranks < 4 || inexact {
                        continue;
                    }
                    let cost = schedule.cost();
                    let steps = [cost.rounds, cost.depth].map(f64::from);
                    assert!(steps.contains(&formula.steps()), "{what}: {cost:?}, {formula:?}");
                    let busiest = f64::from(cost.out_pieces.max(cost.into_pieces));
                    let volume = busiest / f64::from(cost.largest_pieces);
                    assert!((volume - formula.volume()).abs() < 1e-9, "{what}: {volume}, {formula:?}");
                }
            }
        }
    }

    #[test]
    fn a_grid_of_one_rank_has_a_schedule_and_long_dimensions_do_not_overflow() {
        let one = Algorithm::BlueConnect { dimensions: [1; 4] };
        for collective in [Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather] {
            assert!(one.is_defined(collective, 1));
            assert_eq!(one.schedule(collective, 1).ranks, 1);
        }
        // 2^32 is 0 in 32 bits.
        let long = Algorithm::BlueConnect { dimensions: [1 << 15, 1 << 15, 4, 1] };
        assert!(!long.is_defined(Collective::AllReduce, 0) && !long.is_defined(Collective::AllReduce, 1));
    }
}
