//! Algorithms as schedules, one file each, with the source of the algorithm and its cost.
//!
//! Invariant: a builder is a pure function of (collective, ranks, options); the same arguments give the same
//! schedule on every rank. Deliberately absent: sizes, topology and choice, which belong to the planner.

mod all_pairs;
mod binomial;
mod box_chain;
mod box_tree;
mod bruck;
mod common;
mod compose;
mod coordinated;
mod direct;
mod doubling;
mod exchange;
mod forest;
mod grid;
mod halving;
mod hierarchical;
mod moves;
mod pair;
mod pat;
#[cfg(test)]
mod proving;
mod rail_trees;
mod rails;
mod ring;
mod rings;
mod scattered;
mod spanning;
mod swing;
mod switch;
mod switched;
mod tree;
mod two_level;

pub use all_pairs::{one_shot, two_shot};
pub use binomial::{binomial, binomial_is_defined};
pub use box_chain::{box_chain, box_chain_is_defined};
pub use box_tree::{box_tree, box_tree_is_defined, parent as double_tree_parent};
pub use bruck::{bruck_all_gather, bruck_all_to_all};
pub use compose::{Embedding, beside, embed};
pub use coordinated::coordinated;
pub use direct::{direct, direct_is_defined, direct_reduce};
pub use doubling::{Doubling, doubling};
pub use exchange::{pairwise, spread_out};
pub use forest::{RootedTree, forest, forest_is_defined};
pub use grid::RingGrid;
pub use halving::{PartnerOrder, halving_doubling, halving_doubling_is_defined};
pub use hierarchical::{
    Builder, blueconnect, blueconnect_is_defined, hierarchical, hierarchical_is_defined, torus2d,
};
pub use pair::pair;
pub use pat::{pat, pat_is_defined};
pub use rail_trees::{RailTrees, rail_trees};
pub use rails::{Rails, rails_are_defined};
pub use ring::{Ring, RingOptions, ring, ring_is_defined};
pub use rings::{OrderedRing, rings};
pub use scattered::scatter_all_gather;
pub use spanning::{
    SpanningTree, TwoWayTree, spanning_trees, spanning_trees_are_defined, spanning_trees_on, two_way_trees,
};
pub use swing::{swing, swing_is_defined};
pub use switch::{SwitchForm, switch, switch_is_defined, switch_tree};
pub use switched::{switched, switched_is_defined};
pub use tree::{double_tree, tree, tree_is_defined};
