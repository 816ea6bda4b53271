//! The exporters' output: compared with committed files, and read back by readers that share no code with the
//! writers. `CONSORT_SNAPSHOTS=write cargo test` writes the files anew.

mod chart;
mod document;
mod heat;
mod json;
mod svg;
pub(crate) mod xml;

use consort_algorithms::builders::{RingOptions, doubling, pair, ring};
use consort_algorithms::export::{
    plan_dot, plan_json, plan_text, schedule_dot, schedule_json, schedule_svg, schedule_table, schedule_text,
};
use consort_algorithms::passes::fuse;
use consort_algorithms::{
    Channel, Chunk, Collective, LowerOptions, Partition, Place, Rank, Round, Schedule, Transfer, lower,
};

use crate::common::snapshot;

#[test]
fn printed_forms_are_the_committed_ones() {
    let schedule = ring(Collective::AllReduce, 3, RingOptions::default());
    snapshot("all_reduce_ring_3.txt", &schedule_text(&schedule));
    snapshot("all_reduce_ring_3.dot", &schedule_dot(&schedule));
    snapshot("all_reduce_ring_3.json", &schedule_json(&schedule));
    snapshot("all_reduce_ring_3.svg", &schedule_svg(&schedule));
    snapshot("all_reduce_ring_3_table.txt", &schedule_table(&schedule));
    let plan = lower(&schedule, Rank(0), &LowerOptions { slots: 2 }).expect("rings lower");
    snapshot("all_reduce_ring_3_rank_0.txt", &plan_text(&plan));
    let fused = fuse(&plan, &|_| true);
    snapshot("all_reduce_ring_3_rank_0_fused.txt", &plan_text(&fused));
    snapshot("all_reduce_ring_3_rank_0_fused.dot", &plan_dot(&fused));
    snapshot("all_reduce_ring_3_rank_0_fused.json", &plan_json(&fused));
    let both = ring(Collective::AllGather, 3, RingOptions { channels: 1, bidirectional: true });
    snapshot("all_gather_ring_3_bidirectional.txt", &schedule_text(&both));
    snapshot("all_gather_ring_3_bidirectional.svg", &schedule_svg(&both));
    snapshot("all_gather_ring_3_bidirectional_table.txt", &schedule_table(&both));
}

/// Schedules of many shapes, small and large: of builders, and some that no builder makes.
fn schedules() -> Vec<Schedule> {
    let mut schedules = vec![pair(), through_a_switch(), direct(5)];
    for ranks in [1, 2, 3, 5, 8, 16, 33] {
        for bidirectional in [false, true] {
            for collective in [Collective::AllReduce, Collective::ReduceScatter, Collective::Broadcast] {
                schedules.push(ring(collective, ranks, RingOptions { channels: 1, bidirectional }));
            }
        }
    }
    schedules.extend([2, 4, 8, 16].map(doubling));
    schedules.push(ring(Collective::AllGather, 4, RingOptions { channels: 9, bidirectional: false }));
    let mut nothing = pair();
    nothing.rounds.clear();
    schedules.push(nothing);
    schedules
}

fn plain(from: u32, to: u32, source: Place, target: Place) -> Transfer {
    Transfer {
        from: Rank(from),
        to: Rank(to),
        channel: Channel(0),
        source,
        target,
        fold: None,
        own_first: false,
    }
}

/// Every rank hands its input to the node after the last rank, which folds them and hands the result back.
fn through_a_switch() -> Schedule {
    let there = |rank: u32| {
        let fold = (rank > 0).then_some(Place::Scratch(Chunk(0)));
        let place = Place::Scratch(Chunk(0));
        Transfer { fold, own_first: true, ..plain(rank, 4, Place::Input(Chunk(0)), place) }
    };
    let back = |rank: u32| plain(4, rank, Place::Scratch(Chunk(0)), Place::Output(Chunk(0)));
    let mut schedule = doubling(4);
    schedule.name = "through a switch".into();
    schedule.rounds = (0..4).map(|rank| Round { transfers: vec![there(rank)] }).collect();
    schedule.rounds.push(Round { transfers: (0..4).map(back).collect() });
    schedule
}

/// All to all in one round.
fn direct(ranks: u32) -> Schedule {
    let pairs = (0..ranks).flat_map(|step| (0..ranks).map(move |from| (from, (from + step) % ranks)));
    let transfer =
        |(from, to): (u32, u32)| plain(from, to, Place::Input(Chunk(to)), Place::Output(Chunk(from)));
    let mut schedule = pair();
    schedule.name = "direct".into();
    schedule.collective = Collective::AllToAll;
    schedule.ranks = ranks;
    schedule.partition = Partition { parts: 1 };
    schedule.rounds = vec![Round { transfers: pairs.map(transfer).collect() }];
    schedule
}
