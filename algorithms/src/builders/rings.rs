//! Several rings side by side, each in an order of its own and with its share of the bytes.
//!
//! Source: as [`ring`](super::ring()); NCCL runs one ring a channel (`src/graph/connect.cc`), so that each network adapter and
//! each link between GPUs carries a part. Cost: a ring's rounds; of the bytes each ring has its share.
//!
//! Fold order: in each ring the left fold over its ranks in the ring's order, as in [`ring`](super::ring()); pieces of one block
//! are therefore folded in different orders.

use super::{RingOptions, ring, ring_is_defined};
use crate::passes::with_chunks;
use crate::{Channel, Chunk, Collective, Partition, Place, Rank, Round, Schedule, Transfer};

/// A ring of [`rings`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OrderedRing {
    /// All ranks, each once, in the order in which the ring passes them.
    pub order: Vec<Rank>,
    /// How many of the pieces of each block it carries; at least 1.
    pub share: u32,
}

/// The schedule of `collective` by rings over all ranks; rank 0 is the root of rooted ones. A block is cut into as many pieces
/// as the rings have shares together (times the ranks for an all-reduce).
///
/// # Panics
///
/// When the collective has no ring, there is no ring or one without a share, or an order does not name each rank once.
pub fn rings(collective: Collective, rings: &[OrderedRing]) -> Schedule {
    assert!(ring_is_defined(collective), "there is no ring for {collective}");
    let ranks = rings.first().map_or(0, |ring| ring.order.len()) as u32;
    assert!(ranks > 0 && rings.len() <= usize::from(u16::MAX), "no rank, or more rings than channels");
    let plain = ring(collective, ranks, RingOptions::default());
    let shares: u32 = rings.iter().map(|ring| ring.share).sum();
    let mut rounds = vec![Round::default(); plain.rounds.len()];
    let mut first = 0;
    for (channel, ring) in rings.iter().enumerate() {
        let order = rotated(&ring.order);
        assert!(
            ring.share > 0 && order.len() == ranks as usize,
            "ring {channel} of {ranks} ranks has no share"
        );
        for (round, into) in plain.rounds.iter().zip(&mut rounds) {
            for transfer in &round.transfers {
                let renamed = (first..first + ring.share)
                    .map(|stream| on_ring(transfer, collective, &order, channel as u16, shares, stream));
                into.transfers.extend(renamed);
            }
        }
        first += ring.share;
    }
    let parts = plain.partition.parts * shares;
    Schedule { name: name(rings, shares), partition: Partition { parts }, rounds, ..plain }
}

/// The order from rank 0, which is the root.
fn rotated(order: &[Rank]) -> Vec<Rank> {
    let mut seen = vec![false; order.len()];
    for rank in order {
        let is_again = seen.get_mut(rank.index()).is_none_or(|seen| std::mem::replace(seen, true));
        assert!(!is_again, "{rank} is in a ring of {} ranks twice, or not one of them", order.len());
    }
    let mut order = order.to_vec();
    let first = order.iter().position(|rank| rank.0 == 0).unwrap_or_default();
    order.rotate_left(first);
    order
}

/// A transfer of the plain ring, between the ranks that have its places in `order`, of piece number `stream` of a block.
fn on_ring(
    transfer: &Transfer,
    collective: Collective,
    order: &[Rank],
    channel: u16,
    shares: u32,
    stream: u32,
) -> Transfer {
    let ranks = order.len() as u32;
    let chunk = |place: Place, chunk: Chunk| {
        let belongs_to_rank = match place {
            Place::Input(_) => collective.input_blocks(ranks) > 1,
            Place::Output(_) => collective.output_blocks(ranks) > 1,
            Place::Scratch(_) => collective == Collective::ReduceScatter,
        };
        // The blocks of an all-reduce belong to no rank.
        let block = if belongs_to_rank { order[chunk.index()].0 } else { chunk.0 };
        Chunk(block * shares + stream)
    };
    let renamed = with_chunks(transfer, chunk);
    let (from, to) = (order[transfer.from.index()], order[transfer.to.index()]);
    Transfer { from, to, channel: Channel(channel), ..renamed }
}

fn name(rings: &[OrderedRing], shares: u32) -> String {
    if shares as usize == rings.len() {
        return format!("rings({})", rings.len());
    }
    format!("rings({}, {shares} shares)", rings.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::fuse;
    use crate::{LowerOptions, Plan, lower_all, verify};

    const COLLECTIVES: [Collective; 5] = [
        Collective::AllReduce,
        Collective::ReduceScatter,
        Collective::AllGather,
        Collective::Broadcast,
        Collective::Reduce,
    ];

    fn some(ranks: u32, count: u32) -> Vec<OrderedRing> {
        let of = |number: u32| {
            let mut order: Vec<Rank> = (0..ranks).map(Rank).collect();
            // Steps that have no divisor with the number of ranks pass all of them.
            let mut at = 0;
            let step = (1 + number..)
                .find(|step| (1..=*step).filter(|d| step % d == 0 && ranks.is_multiple_of(*d)).count() == 1);
            for rank in &mut order {
                *rank = Rank(at);
                at = (at + step.unwrap_or(1)) % ranks;
            }
            OrderedRing { order, share: 1 + number % 3 }
        };
        (0..count).map(of).collect()
    }

    #[test]
    fn every_collective_is_proved_in_any_orders_and_shares() {
        for collective in COLLECTIVES {
            for (ranks, count) in [(1, 1), (2, 1), (3, 2), (5, 4), (8, 3), (16, 2)] {
                let schedule = rings(collective, &some(ranks, count));
                let plans = lower_all(&schedule, &LowerOptions { slots: 4 }).expect("rings lower");
                let what = format!("{collective} over {ranks} by {count}");
                let proof = verify(&plans).unwrap_or_else(|refusal| panic!("{what}: {refusal}"));
                let fused: Vec<Plan> = plans.iter().map(|plan| fuse(plan, &|_| true)).collect();
                let again = verify(&fused).unwrap_or_else(|refusal| panic!("{what}, fused: {refusal}"));
                assert_eq!(proof.fold_hash, again.fold_hash, "{what}");
            }
        }
    }

    #[test]
    fn each_hop_carries_the_share_of_its_ring() {
        let all = some(5, 3);
        let schedule = rings(Collective::AllGather, &all);
        for (channel, ring) in all.iter().enumerate() {
            for (at, from) in ring.order.iter().enumerate() {
                let to = ring.order[(at + 1) % 5];
                let pieces = schedule.rounds.iter().flat_map(|round| &round.transfers);
                let count =
                    pieces.filter(|t| (t.from, t.to, t.channel.0) == (*from, to, channel as u16)).count();
                assert_eq!(count as u32, 4 * ring.share, "{from} to {to}");
            }
        }
        assert_eq!(schedule.partition.parts, 6);
    }

    #[test]
    #[should_panic(expected = "twice")]
    fn an_order_with_a_rank_twice_is_refused() {
        let order = [0, 1, 1].map(Rank).to_vec();
        rings(Collective::AllReduce, &[OrderedRing { order, share: 1 }]);
    }
}
