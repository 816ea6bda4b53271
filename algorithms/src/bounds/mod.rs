//! What is provably possible on a machine, whatever the schedule: bounds for long messages.
//!
//! A bound is a rate: bytes of the vector a second, where no schedule is faster. `M` is the gathered vector of an
//! all-gather or reduce-scatter, the vector of an all-reduce, a broadcast or a reduce, and one rank's send buffer of an
//! all-to-all. The bound comes with the argument that proves it and the cut that limits it.
//!
//! Invariant: rates are rational and exact; floating point only chooses candidates whose value is then computed in whole
//! numbers. The same topology gives the same bound on every rank. Absent: latency but for a number of steps, the work
//! of ranks, and protocols; they only make schedules slower.

mod across;
pub(crate) mod classes;
mod exchange;
pub(crate) mod flow;
pub(crate) mod network;
mod parts;
mod paths;
pub(crate) mod ratio;
mod reduce;
mod steps;
pub(crate) mod trees;
mod weights;
mod witness;
mod words;

use std::error::Error;
use std::fmt;

pub use ratio::Ratio;
pub use witness::{Part, Side, Witness};

use crate::topology::{NodeId, NodeKind, Topology};
use crate::{Collective, Rank};
use classes::Classes;
use network::Network;
use reduce::Tight;
use trees::Limit;

/// What is asked besides collective and machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// The root of a broadcast or reduce; without one the root that allows least.
    pub root: Option<Rank>,
    /// Whether all switches may fold values of an all-reduce on their way and send one value to many.
    pub in_network: bool,
}

/// The argument that proves a bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Argument {
    /// A set of ranks whose parts must all leave it, through the capacity with which they can; trees reach it.
    Gather,
    /// The whole vector must pass a cut.
    Cut,
    /// `2 (b - 1)` messages for each element between `b` parts, each through the way out of (or into) its part.
    Counting,
    /// The bytes of all pairs on both sides of a cut.
    PairsCut,
    /// Each pair's bytes take at least the distance between its ranks out of the sum of all links.
    Distance,
    /// A rank cannot reach another.
    Unreachable,
}

impl Argument {
    /// One word for users.
    pub const fn name(self) -> &'static str {
        match self {
            Argument::Gather => "gather-cut",
            Argument::Cut => "cut",
            Argument::Counting => "counting",
            Argument::PairsCut => "pairs-cut",
            Argument::Distance => "distance",
            Argument::Unreachable => "unreachable",
        }
    }
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What limits a collective, for people and by names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cut {
    /// One sentence: "7 ranks into GPU 5 over 6 links of 25 GB/s".
    pub words: String,
    /// The nodes of the smaller side of the cut, in the order of their numbers; of a partition those of its first part;
    /// none where distances are the argument.
    pub nodes: Vec<NodeId>,
    /// What proves the rate by addition alone.
    pub witness: Witness,
}

/// What is provably possible for a collective of long messages on a machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bound {
    /// The collective.
    pub collective: Collective,
    /// The most algorithm bandwidth: bytes of `M` a second.
    pub rate: Ratio,
    /// Whether a schedule of this rate is known to exist.
    pub exact: bool,
    /// Why no schedule is faster.
    pub argument: Argument,
    /// What limits it.
    pub cut: Cut,
    /// The fewest messages in a row, from neighbour to neighbour; none where a rank is not reached.
    pub steps: Option<u32>,
}

impl Bound {
    /// The rate in GB/s (10^9 bytes a second).
    pub fn gb_s(&self) -> f64 {
        self.rate.value() / 1e9
    }

    /// The names of the cut's nodes.
    pub fn cut_names<'a>(&self, topology: &'a Topology) -> Vec<&'a str> {
        self.cut.nodes.iter().map(|node| topology.nodes()[node.index()].name.as_str()).collect()
    }
}

/// Why there is no bound.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BoundError {
    /// Fewer than two ranks move nothing.
    TooFewRanks {
        /// How many there are.
        ranks: u32,
    },
    /// No bound is known for the collective.
    NotBounded {
        /// The collective.
        collective: Collective,
    },
    /// The root is no rank.
    NoSuchRoot {
        /// What was asked for.
        root: Rank,
        /// How many ranks there are.
        ranks: u32,
    },
}

impl fmt::Display for BoundError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BoundError::TooFewRanks { ranks } => {
                write!(f, "{ranks} ranks exchange nothing: a bound needs at least 2")
            }
            BoundError::NotBounded { collective } => write!(
                f,
                "there is no bound for {collective}; there are those for all_gather, reduce_scatter, broadcast, reduce, \
                 all_reduce and all_to_all"
            ),
            BoundError::NoSuchRoot { root, ranks } => {
                write!(f, "there is no root {root}: the machine has {ranks} ranks")
            }
        }
    }
}

impl Error for BoundError {}

/// The bound of `collective` on `topology`.
///
/// # Errors
///
/// [`BoundError`] when the topology has fewer than 2 ranks or not the root, or the collective is send-receive, gather or
/// scatter.
pub fn bound(topology: &Topology, collective: Collective, options: &Options) -> Result<Bound, BoundError> {
    let ranks = topology.ranks();
    if ranks < 2 {
        return Err(BoundError::TooFewRanks { ranks });
    }
    if let Some(root) = options.root.filter(|root| root.0 >= ranks) {
        return Err(BoundError::NoSuchRoot { root, ranks });
    }
    let network = Network::new(topology);
    let transposed = network.transposed();
    let symmetries = Classes::new(&network);
    let root = match collective {
        Collective::Broadcast | Collective::Reduce => options.root,
        _ => None,
    };
    let steps = steps::steps(topology, root.map(|root| root.0), collective == Collective::Reduce);
    let asked = Asked { topology, network, transposed, symmetries, collective, root, steps };
    match collective {
        Collective::AllGather | Collective::ReduceScatter => Ok(asked.gather()),
        Collective::Broadcast | Collective::Reduce => Ok(asked.rooted()),
        Collective::AllReduce if options.in_network => Ok(asked.all_reduce_in_network()),
        Collective::AllReduce => Ok(asked.all_reduce()),
        Collective::AllToAll => Ok(asked.exchange()),
        Collective::SendReceive
        | Collective::Gather
        | Collective::Scatter
        | Collective::AllToAllReplicated { .. } => Err(BoundError::NotBounded { collective }),
    }
}

/// A question with what is made of its topology.
struct Asked<'a> {
    topology: &'a Topology,
    network: Network,
    transposed: Network,
    symmetries: Classes,
    collective: Collective,
    /// Of a rooted collective.
    root: Option<Rank>,
    /// None where a rank is not reached.
    steps: Option<u32>,
}

impl Asked<'_> {
    fn gather(&self) -> Bound {
        let gathers = self.collective == Collective::AllGather;
        let way = if gathers { &self.network } else { &self.transposed };
        let found = trees::gather(way, &self.symmetries);
        let rate = of_ranks(found.rate, self.network.ranks);
        let sending = if gathers { found.sending } else { opposite(&found.sending) };
        self.cut(rate, self.network.is_balanced(), Argument::Gather, &sending)
    }

    fn rooted(&self) -> Bound {
        let Limit { rate, sending } = match (self.root, self.collective) {
            (None, _) => trees::smallest_cut(&self.network, &self.transposed, &self.symmetries),
            (Some(root), Collective::Broadcast) => trees::broadcast(&self.network, &self.symmetries, root.0),
            (Some(root), _) => {
                let found = trees::broadcast(&self.transposed, &self.symmetries, root.0);
                Limit { sending: opposite(&found.sending), ..found }
            }
        };
        self.cut(rate, self.network.is_balanced(), Argument::Cut, &sending)
    }

    fn all_reduce_in_network(&self) -> Bound {
        let Limit { rate, sending } = trees::smallest_cut(&self.network, &self.transposed, &self.symmetries);
        // One tree carries as much where all its links do: up to be folded, down to be copied.
        // Ports and bridges neither fold nor copy, so a tree that may branch in one proves nothing.
        let may_branch = trees::branching(&self.network).any(|node| {
            matches!(self.topology.nodes()[self.network.parts_of[node as usize].index()].kind, NodeKind::Port)
        });
        let exact = !may_branch && Ratio::new(trees::widest_tree(&self.network), 1) >= rate;
        self.cut(rate, exact, Argument::Cut, &sending)
    }

    fn all_reduce(&self) -> Bound {
        let (tight, reached) = reduce::all_reduce(&self.network, &self.transposed, &self.symmetries);
        let exact = reached.is_some_and(|reached| reached >= tight.rate());
        match tight {
            Tight::Cut(Limit { rate, sending }) => self.cut(rate, exact, Argument::Cut, &sending),
            Tight::Messages { counted, enter } => {
                let words = words::parts(&self.network, self.topology, &counted);
                let nodes = counted.parts[0].iter().map(|rank| NodeId(*rank)).collect();
                let sides = counted.sides.iter().map(|side| Side::new(&self.network, side)).collect();
                let cut = Cut { words, nodes, witness: Witness::Parts { sides, enter } };
                self.found(counted.rate, exact, Argument::Counting, cut)
            }
        }
    }

    /// A bound that a cut proves; `sending` says for each node whether it is on the side that sends.
    fn cut(&self, rate: Ratio, exact: bool, argument: Argument, sending: &[bool]) -> Bound {
        let network = &self.network;
        let smaller = 2 * network.ranks_in(sending) < network.ranks;
        let mut nodes: Vec<NodeId> = network
            .parts_of
            .iter()
            .zip(sending)
            .filter(|(_, side)| **side == smaller)
            .map(|(of, _)| *of)
            .collect();
        nodes.sort_unstable();
        nodes.dedup();
        let witness = Witness::Cut(Side::new(network, sending));
        if rate.is_zero() {
            // Nothing leaves the set: no rank inside reaches one outside.
            let first = |inside| words::members(network, sending, inside).first().copied().unwrap_or(0);
            let name = |rank: u32| words::ranks(self.topology, &[rank]);
            let words = format!("{} cannot reach {}", name(first(true)), name(first(false)));
            return self.found(rate, true, Argument::Unreachable, Cut { words, nodes, witness });
        }
        let words = words::cut(network, self.topology, sending);
        self.found(rate, exact, argument, Cut { words, nodes, witness })
    }

    fn found(&self, rate: Ratio, exact: bool, argument: Argument, cut: Cut) -> Bound {
        Bound { collective: self.collective, rate, exact, argument, cut, steps: self.steps }
    }
}

fn opposite(side: &[bool]) -> Vec<bool> {
    side.iter().map(|inside| !inside).collect()
}

/// A rank's rate as that of the vector of all ranks. Rates are below 2^94, so that it fits.
fn of_ranks(rate: Ratio, ranks: u32) -> Ratio {
    Ratio::new(rate.numerator() * u128::from(ranks), rate.denominator())
}
