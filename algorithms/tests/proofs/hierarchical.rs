//! Schedules along the dimensions of a machine: their proof and their cost.

use consort_algorithms::builders::{
    RingOptions, blueconnect, blueconnect_is_defined, doubling, hierarchical, hierarchical_is_defined, ring,
    torus2d,
};
use consort_algorithms::passes::{fuse, replicate};
use consort_algorithms::{
    Channel, Chunk, Collective, LowerOptions, Partition, Place, Plan, Rank, Round, Schedule, Transfer,
    lower_all, verify,
};

use crate::common::sizes;

fn rings(collective: Collective, ranks: u32) -> Schedule {
    ring(collective, ranks, RingOptions::default())
}

/// Exchanges in `n-1` rounds, in round `t` with the ranks `t` away: all-to-all, and reduce-scatter and
/// all-gather by it.
fn pairwise(collective: Collective, ranks: u32) -> Schedule {
    let transfer = |from: u32, step: u32| {
        let to = (from + step) % ranks;
        let last = step + 1 == ranks;
        let (source, target, fold) = match collective {
            Collective::AllToAll => (Place::Input(Chunk(to)), Place::Output(Chunk(from)), None),
            Collective::AllGather => (Place::Input(Chunk(0)), Place::Output(Chunk(from)), None),
            _ => {
                let own = if step == 1 { Place::Input(Chunk(to)) } else { Place::Scratch(Chunk(to)) };
                let sum = if last { Place::Output(Chunk(0)) } else { Place::Scratch(Chunk(to)) };
                (Place::Input(Chunk(to)), sum, Some(own))
            }
        };
        Transfer {
            from: Rank(from),
            to: Rank(to),
            channel: Channel(0),
            source,
            target,
            fold,
            own_first: false,
        }
    };
    let keep = |rank: u32| {
        let source = if collective == Collective::AllToAll { rank } else { 0 };
        let (source, target) = (Place::Input(Chunk(source)), Place::Output(Chunk(rank)));
        Transfer { source, target, fold: None, to: Rank(rank), ..transfer(rank, 0) }
    };
    let mut rounds: Vec<Round> = (1..ranks)
        .map(|step| Round { transfers: (0..ranks).map(|from| transfer(from, step)).collect() })
        .collect();
    if collective != Collective::ReduceScatter {
        rounds[0].transfers.extend((0..ranks).map(keep));
    }
    Schedule {
        name: "pairwise".into(),
        collective,
        ranks,
        switches: 0,
        partition: Partition { parts: 1 },
        rounds,
    }
}

fn inner(collective: Collective, ranks: u32) -> Schedule {
    if collective == Collective::AllToAll { pairwise(collective, ranks) } else { rings(collective, ranks) }
}

fn proved(schedule: &Schedule, slots: u32) -> Vec<Plan> {
    let what = format!("{} over {}, {}, {slots} slots", schedule.collective, schedule.ranks, schedule.name);
    let plans =
        lower_all(schedule, &LowerOptions { slots }).unwrap_or_else(|error| panic!("{what}: {error}"));
    let plain = verify(&plans).unwrap_or_else(|refusal| panic!("{what}: {refusal}"));
    let fused: Vec<Plan> = plans.iter().map(|plan| fuse(plan, &|_| true)).collect();
    let fused = verify(&fused).unwrap_or_else(|refusal| panic!("{what}, fused: {refusal}"));
    assert_eq!(plain.fold_hash, fused.fold_hash, "{what}");
    plans
}

fn scratch(plans: &[Plan]) -> u32 {
    plans.iter().map(|plan| plan.scratch).max().unwrap_or(0)
}

fn collectives() -> impl Iterator<Item = Collective> {
    Collective::ALL.into_iter().filter(|&collective| hierarchical_is_defined(collective))
}

/// Pieces out of (and into) the busiest port along each dimension, of all pieces of the largest buffer.
fn pieces(schedule: &Schedule, dimensions: &[u32]) -> (Vec<u32>, u32) {
    let mut moved =
        vec![[vec![0; schedule.ranks as usize], vec![0; schedule.ranks as usize]]; dimensions.len()];
    for transfer in schedule.rounds.iter().flat_map(|round| &round.transfers) {
        let (mut from, mut to) = (transfer.from.0, transfer.to.0);
        for (moved, length) in moved.iter_mut().zip(dimensions) {
            if from % length != to % length {
                moved[0][transfer.from.index()] += 1;
                moved[1][transfer.to.index()] += 1;
            }
            (from, to) = (from / length, to / length);
        }
    }
    let busiest = moved.iter().map(|ports| {
        let busiest = |port: &Vec<u32>| port.iter().max().copied().unwrap_or(0);
        assert_eq!(busiest(&ports[0]), busiest(&ports[1]));
        busiest(&ports[0])
    });
    let (collective, ranks) = (schedule.collective, schedule.ranks);
    let largest = schedule.partition.input_chunks(collective, ranks);
    (busiest.collect(), largest.max(schedule.partition.output_chunks(collective, ranks)))
}

#[test]
fn every_grid_is_proved() {
    for ranks in sizes(&[]) {
        for per_box in (1..=ranks).filter(|per_box| ranks % per_box == 0) {
            // Above 32 ranks all-reduce and two others by turns.
            let turn = |at: usize| ranks <= 32 || at == 0 || at % 3 == (ranks / per_box) as usize % 3;
            for (_, collective) in collectives().enumerate().filter(|&(at, _)| turn(at)) {
                proved(&hierarchical(collective, ranks / per_box, per_box, &inner, &inner), 4);
            }
        }
    }
}
#[test]
fn grids_of_other_schedules_are_proved() {
    use Collective::AllReduce;
    for (boxes, per_box) in [(2, 3), (4, 2), (4, 4), (8, 5), (2, 8)] {
        proved(&hierarchical(AllReduce, boxes, per_box, &pairwise, &|_, ranks| doubling(ranks)), 4);
        for collective in collectives() {
            // Inner schedules of different partitions and channels.
            let three = |collective, ranks| replicate(&inner(collective, ranks), 3);
            let two = |collective, ranks| replicate(&inner(collective, ranks), 2);
            proved(&hierarchical(collective, boxes, per_box, &three, &two), 4);
            proved(&hierarchical(collective, boxes, per_box, &two, &inner), 2);
        }
    }
    for (collective, boxes, per_box) in [
        (AllReduce, 16, 8),
        (Collective::ReduceScatter, 16, 8),
        (Collective::AllGather, 16, 16),
        (Collective::Broadcast, 128, 8),
        (Collective::Reduce, 128, 8),
        (Collective::AllToAll, 16, 8),
    ] {
        proved(&hierarchical(collective, boxes, per_box, &inner, &inner), 4);
    }
}

#[test]
fn every_factorisation_is_proved_and_costs_the_sum_over_its_dimensions() {
    for dimensions in factorisations() {
        let ranks: u32 = dimensions.iter().product();
        for collective in Collective::ALL.into_iter().filter(|&collective| blueconnect_is_defined(collective))
        {
            let schedule = blueconnect(collective, &dimensions);
            let twice = if collective == Collective::AllReduce { 2 } else { 1 };
            let hops: u32 = dimensions.iter().map(|length| length - 1).sum();
            assert_eq!(schedule.rounds.len() as u32, if ranks == 1 { 1 } else { twice * hops });
            let (moved, all) = pieces(&schedule, &dimensions);
            let mut before = 1;
            for (&length, &moved) in dimensions.iter().zip(&moved) {
                // Bytes: twice (p-1)/p M / before, with M = `all` pieces.
                assert_eq!(moved * length * before, twice * (length - 1) * all, "{}", schedule.name);
                before *= length;
            }
            let plans = proved(&schedule, 4);
            assert_eq!(scratch(&plans), places(collective, &dimensions), "{} {collective}", schedule.name);
        }
    }
    let (torus, plain) = (torus2d(Collective::AllReduce, 4, 3), blueconnect(Collective::AllReduce, &[4, 3]));
    assert_eq!((torus.name.as_str(), torus.rounds), ("torus2d(4x3)", plain.rounds));
}

/// The scratch places of rings along dimensions.
fn places(collective: Collective, dimensions: &[u32]) -> u32 {
    let ranks: u32 = dimensions.iter().product();
    let long: Vec<u32> = dimensions.iter().copied().filter(|&length| length > 1).collect();
    match (collective, long.as_slice()) {
        (Collective::AllGather, _) | (_, [] | [2]) => 0,
        (Collective::AllReduce, _) => {
            let twos = long.iter().take_while(|&&length| length == 2).count();
            let held: u32 = long.iter().take(twos + 1).product();
            if twos == long.len() { 0 } else { ranks / held }
        }
        (_, [first, ..]) => ranks / first,
    }
}

/// The ways to write every number up to 64 over which families are proved as a product of at most four factors above
/// 1 (1 is the product of itself).
fn factorisations() -> Vec<Vec<u32>> {
    let (sizes, most) = (sizes(&[]), 64);
    let mut found = vec![vec![1]];
    let mut open: Vec<Vec<u32>> = (2..=most).map(|first| vec![first]).collect();
    while let Some(dimensions) = open.pop() {
        let product: u32 = dimensions.iter().product();
        if dimensions.len() < 4 {
            open.extend((2..=most / product).map(|next| [dimensions.as_slice(), &[next]].concat()));
        }
        // Longer ones only where they are cheap to prove.
        let is_cheap = dimensions.len() < 3 && product <= 36 || product <= 24 || product == most;
        if is_cheap && sizes.contains(&product) {
            found.push(dimensions);
        }
    }
    found
}

#[test]
fn the_cost_is_the_row_of_the_table() {
    for (boxes, per_box) in [(2, 2), (2, 8), (4, 8), (3, 5), (8, 3), (7, 1), (1, 6)] {
        for collective in collectives() {
            let schedule = hierarchical(collective, boxes, per_box, &inner, &inner);
            let (moved, all) = pieces(&schedule, &[per_box, boxes]);
            let (g, b, n) = (per_box, boxes, boxes * per_box);
            let rounds = (g - 1) + (b - 1);
            let expected = match collective {
                Collective::AllReduce => (2 * rounds, [2 * (g - 1) * all / g, 2 * (b - 1) * all / n]),
                Collective::ReduceScatter | Collective::AllGather => {
                    (rounds, [(g - 1) * all / g, (b - 1) * all / n])
                }
                Collective::AllToAll => (rounds, [(g - 1) * all / g, (b - 1) * all / b]),
                _ => (rounds, [if g > 1 { all } else { 0 }, if b > 1 { all } else { 0 }]),
            };
            assert_eq!((schedule.rounds.len() as u32, moved.as_slice()), (expected.0, &expected.1[..]));
            let held = match collective {
                Collective::AllToAll if g > 1 && b > 1 => (g - 1) * b,
                Collective::AllToAll | Collective::Broadcast => 0,
                Collective::Reduce => 1,
                _ => places(collective, &[g, b]),
            };
            assert_eq!(scratch(&proved(&schedule, 4)), held, "{collective} {}", schedule.name);
        }
    }
    let schedule = hierarchical(Collective::AllReduce, 4, 8, &rings, &|_, ranks| doubling(ranks));
    assert_eq!(schedule.name, "hierarchical(4x8, ring, doubling)");
    // 2(g-1) + log2 b rounds; each rank doubles M/g log2 b times.
    assert_eq!((schedule.rounds.len(), pieces(&schedule, &[8, 4])), (16, (vec![14, 2], 8)));
}

#[test]
fn one_rank_copies_its_input() {
    for collective in collectives() {
        let schedule = hierarchical(collective, 1, 1, &inner, &inner);
        assert_eq!((schedule.messages(), schedule.rounds[0].transfers.len()), (0, 1));
        assert_eq!(schedule.name, "hierarchical(1x1, none, none)");
    }
}
