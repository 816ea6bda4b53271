//! What is made for a machine, as candidates of a planner.
//!
//! Invariant: an offer's schedule is named by what it is, so that one name means one schedule in every process; all its messages
//! can be proved in time, and simulated but those of an offer over boxes. Absent: prices.

use super::{boxes, exchange, greedy, packing, rate, rooted, trees};
use crate::bounds::Ratio;
use crate::numbers::fnv;
use crate::search::named;
use crate::topology::Topology;
use crate::{Collective, Rank, Schedule};

/// The most messages of an offer: all of them are proved.
pub const MESSAGES_MAX: usize = 1 << 14;
/// The same of trees over boxes, each proved by itself: 1,024 ranks with eight rails and the most trees.
const MESSAGES_OVER_BOXES_MAX: usize = 1 << 18;
/// The most trees of all rails: each rank has four mailboxes or more for each.
const TREES_MAX: u32 = 128;
/// Trees along each rail, the most first: over eight whole `dgx-h100` with 4, 8 and 16 of these an all-reduce of 8 GiB takes 77, 48 and 42 ms.
const TREES_OF_RAIL: [u32; 4] = [16, 8, 4, 2];
/// The most channels of an offer: each needs slots of its own.
const CHANNELS_MAX: u16 = 16;
/// The part of the fastest rate, in hundredths, that fewer trees are worth being offered for.
const NEAR_PERCENT: u128 = 90;

/// A schedule that is made for a machine.
#[derive(Clone, PartialEq, Debug)]
pub struct Offer {
    /// The schedule, with a name of its maker and a hash of what it is.
    pub schedule: Schedule,
    /// The algorithm bandwidth that no long call by it exceeds, in bytes of the vector a second ([`rate()`](super::rate())).
    pub rate: Ratio,
    /// Whether values pass several ranks, one after the other, so that a simulation needs many slices to see its speed.
    pub is_deep: bool,
    /// Hops between boxes and inside of them, up to a root, where its price is theirs and the rate's: all its messages cannot be
    /// simulated in time.
    pub hops: Option<[u32; 2]>,
}

/// The schedules of `collective` that are made for `topology`: the fastest one, and one of fewer channels that is nearly as fast; where those have
/// too many messages a greedy one. None where no maker knows the collective, and where all would have more than [`MESSAGES_MAX`] messages. `root` is that of a rooted
/// collective; the schedule's rank `i` is rank `(i + root) % ranks` of the topology.
pub fn offers(topology: &Topology, collective: Collective, root: Rank) -> Vec<Offer> {
    let topology = &topology.bundled();
    let ranks = topology.ranks() as usize;
    let made: Vec<(&str, Schedule)> = match collective {
        Collective::AllReduce => {
            let all = trees::frontier(topology, &trees::Options::default());
            // Up and down each edge.
            let messages =
                |trees: &trees::Trees| 2 * (ranks - 1) * pieces(trees.trees().iter().map(|tree| tree.share));
            // Where edges both ways do not join the ranks, those up and down may.
            let apart = if all.is_empty() { rooted::all_reduce(topology) } else { None };
            let rated = all.into_iter().map(|trees| (trees.rate(), messages(&trees), trees)).collect();
            let joined = chosen(rated);
            let apart = apart.map(|found| found.schedule).filter(fits);
            let joined = joined.iter().map(|trees| ("wire-trees", trees.schedule()));
            joined.chain(apart.map(|schedule| ("two-way-trees", schedule))).collect()
        }
        Collective::AllToAll => {
            let made = exchange::exchange(topology, &exchange::Options::default());
            // What goes straight is in the catalogue.
            let routed = made.filter(|made| made.form() != exchange::Form::Direct);
            let schedule = routed.map(|made| made.schedule().clone());
            schedule.filter(fits).into_iter().map(|schedule| ("ways", schedule)).collect()
        }
        _ if packing::is_defined(collective) => {
            let all = packing::frontier(topology, collective, root, &packing::Options::default());
            let messages =
                |forest: &packing::Forest| (ranks - 1) * pieces(forest.trees.iter().map(|tree| tree.share));
            let rated = all.into_iter().map(|forest| (forest.rate(), messages(&forest), forest)).collect();
            chosen(rated).iter().map(|forest| ("forest", forest.schedule(CHANNELS_MAX))).collect()
        }
        _ => Vec::new(),
    };
    let is_without = made.is_empty() && offers_are_defined(collective) && collective != Collective::AllToAll;
    let greedy = || greedy::schedule(topology, collective, root, &greedy::Options::default());
    let last = is_without.then(greedy).flatten().map(|found| ("greedy", found.schedule));
    let last = last.filter(|(_, schedule)| fits(schedule));
    let all = made.into_iter().chain(last);
    all.filter_map(|(maker, schedule)| offer(topology, maker, root, schedule)).collect()
}

/// The all-reduce over the boxes of a machine that are not all alike, which no regular schedule fits: by as many trees along each
/// rail as can be proved in time. None for other machines.
pub fn offer_over_boxes(topology: &Topology) -> Option<Offer> {
    // With one rail and fewest trees.
    let is_long = 2 * 2 * topology.ranks() as usize > MESSAGES_OVER_BOXES_MAX;
    if is_long || topology.boxes().len() as u32 == topology.ranks() {
        return None;
    }
    let rails = boxes::rails_of_unlike(topology)?;
    let of_one = 2 * topology.ranks() as usize * rails as usize;
    let fits = |each: &u32| {
        *each as usize * of_one <= MESSAGES_OVER_BOXES_MAX
            && *each <= TREES_MAX.checked_div(rails).unwrap_or(0)
    };
    let each = TREES_OF_RAIL.into_iter().find(fits)?;
    let boxes::Chained { schedule, rate, hops } = boxes::chained(topology, each)?;
    let schedule = named("chains", hash(&schedule), schedule);
    Some(Offer { schedule, rate, is_deep: true, hops: Some(hops) })
}

/// The pieces that trees of these shares carry together.
fn pieces(shares: impl Iterator<Item = u32>) -> usize {
    shares.map(|share| share as usize).sum()
}

/// Whether there can be offers for `collective`.
pub const fn offers_are_defined(collective: Collective) -> bool {
    matches!(collective, Collective::AllReduce | Collective::AllToAll) || packing::is_defined(collective)
}

fn fits(schedule: &Schedule) -> bool {
    schedule.messages() <= MESSAGES_MAX
}

/// Of what is rated, with its messages, the fastest that fits, and before it the first that is near to that.
fn chosen<T>(rated: Vec<(Ratio, usize, T)>) -> Vec<T> {
    let mut fitting: Vec<(Ratio, usize, T)> =
        rated.into_iter().filter(|(_, messages, _)| *messages <= MESSAGES_MAX).collect();
    let Some((most, _, fastest)) = fitting.pop() else { return Vec::new() };
    let near = Ratio::new(NEAR_PERCENT, 100).checked_mul(most);
    let first = fitting.into_iter().find(|(rate, ..)| near.is_some_and(|near| *rate >= near));
    first.map(|(.., few)| few).into_iter().chain([fastest]).collect()
}

pub(super) fn offer(topology: &Topology, maker: &str, root: Rank, schedule: Schedule) -> Option<Offer> {
    let turned = if root.0 == 0 { schedule.clone() } else { on_machine(&schedule, root) };
    let rate = rate(&turned, topology).ok()??;
    let is_deep = schedule.cost().depth > 1;
    Some(Offer { schedule: named(maker, hash(&schedule), schedule), rate, is_deep, hops: None })
}

fn hash(schedule: &Schedule) -> u64 {
    fnv(format!("{:?} {:?}", schedule.partition, schedule.rounds).bytes())
}

/// The schedule with its ranks as the machine numbers them.
fn on_machine(schedule: &Schedule, root: Rank) -> Schedule {
    let mut turned = schedule.clone();
    let rank = |rank: Rank| Rank((rank.0 + root.0) % schedule.ranks);
    for transfer in turned.rounds.iter_mut().flat_map(|round| &mut round.transfers) {
        (transfer.from, transfer.to) = (rank(transfer.from), rank(transfer.to));
    }
    turned
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::{self, bound};
    use crate::topology::profile;

    const COLLECTIVES: [Collective; 6] = [
        Collective::AllReduce,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::Broadcast,
        Collective::Reduce,
        Collective::AllToAll,
    ];

    #[test]
    fn offers_are_near_the_bound_and_have_names_of_their_own() {
        let topology = profile("torus:4x4").expect("a profile");
        let mut names = std::collections::BTreeSet::new();
        for collective in COLLECTIVES {
            let bound = bound(&topology, collective, &bounds::Options::default()).expect("a bound").rate;
            let offers = offers(&topology, collective, Rank(0));
            let best = offers.iter().map(|offer| offer.rate).max().unwrap_or(Ratio::ZERO);
            let share = best.value() / bound.value();
            assert!((0.95..1.0 + 1e-9).contains(&share), "{collective}: {share}");
            assert!(offers.iter().all(|offer| names.insert(offer.schedule.name.clone())));
            assert!(names.iter().all(|name| name.len() <= 48), "{names:?}");
        }
    }

    #[test]
    fn another_root_is_as_fast_where_ranks_are_alike() {
        let topology = profile("torus:3x3").expect("a profile");
        let rates = |root: u32| -> Vec<Ratio> {
            offers(&topology, Collective::Broadcast, Rank(root)).iter().map(|offer| offer.rate).collect()
        };
        assert!(!rates(0).is_empty());
        assert_eq!(rates(0).last(), rates(4).last());
    }
}
