//! The price of what kernels run, beside times of an H200.

use std::collections::BTreeMap;

use consort_algorithms::catalogue::Algorithm;
use consort_algorithms::{LowerOptions, lower_all, passes};

use super::*;
use crate::planner::devices::CHANNELS_MAX;

/// The plans of all ranks for an all-reduce.
fn plans(algorithm: Algorithm, ranks: u32) -> Vec<Plan> {
    let schedule = algorithm.schedule(Collective::AllReduce, ranks);
    let lowered = lower_all(&schedule, &LowerOptions { slots: SLOTS }).expect("plans");
    lowered.iter().map(|plan| passes::fuse(plan, &|_| true)).collect()
}

fn lanes_max(plans: &[Plan]) -> usize {
    plans.iter().map(|plan| plan.lanes.len()).max().expect("ranks")
}

#[test]
fn channels_have_blocks_of_their_own() {
    for channels in 1..=CHANNELS_MAX {
        let each = instances_max(channels) as usize;
        let mut taken = std::collections::HashSet::new();
        for nth in 0..channels {
            let (mailbox, first) = part_of(nth, channels);
            assert!(
                mailbox < BOXES && first + each <= INSTANCES_MAX,
                "{nth} of {channels}: {mailbox}, {first}"
            );
            for block in first..first + each {
                assert!(taken.insert((mailbox, block)), "{nth} of {channels} has another's block {block}");
            }
        }
    }
}

/// A time that was measured.
struct Row {
    ranks: u32,
    bytes: usize,
    blocks_max: u32,
    algorithm: Algorithm,
    instances: u32,
    slot_bytes: usize,
    us: f64,
}

fn rows() -> Vec<Row> {
    let lines = include_str!("h200.csv").lines().filter(|line| !line.starts_with(['#', 'r']));
    let row = |line: &str| {
        let of: Vec<&str> = line.split(',').collect();
        Row {
            ranks: of[0].parse().expect("ranks"),
            bytes: of[1].parse().expect("bytes"),
            blocks_max: of[2].parse().expect("blocks"),
            algorithm: of[3].parse().expect("an algorithm"),
            instances: of[4].parse().expect("instances"),
            slot_bytes: of[5].parse().expect("a slot"),
            us: of[6].parse().expect("a time"),
        }
    };
    lines.map(row).collect()
}

/// The price of what was measured, in microseconds: as it was cut, all ranks in one launch.
fn price_us(row: &Row) -> f64 {
    let plans = plans(row.algorithm, row.ranks);
    let longest = plans[0].partition.extents(row.bytes, 1).longest();
    let part = layout::part(longest as u64, 0, u64::from(row.instances)).end as usize;
    let iterations = part.div_ceil(row.slot_bytes) as u32;
    let cut = Cut { instances: row.instances, part, slot_bytes: row.slot_bytes, iterations };
    let blocks = row.ranks * row.instances * lanes_max(&plans) as u32;
    (f64::from(blocks) * BLOCK_S + Load::of(&plans).seconds(&cut)) * 1e6
}

#[test]
fn prices_are_near_what_was_measured() {
    let ratios = rows().iter().map(|row| (price_us(row) / row.us).ln().abs().exp()).collect::<Vec<f64>>();
    let mut sorted = ratios.clone();
    sorted.sort_by(f64::total_cmp);
    let (median, worst) = (sorted[sorted.len() / 2], sorted[sorted.len() - 1]);
    assert_eq!(ratios.len(), 312);
    assert!(median < 1.05 && worst < 1.45, "median {median:.3}, worst {worst:.3}");
}

#[test]
fn the_least_price_is_the_least_time_within_a_tenth() {
    let mut groups: BTreeMap<_, Vec<Row>> = BTreeMap::new();
    for row in rows() {
        groups.entry((row.ranks, row.bytes, row.blocks_max)).or_default().push(row);
    }
    for (group, rows) in &groups {
        let least = |of: fn(&Row) -> f64| rows.iter().min_by(|one, other| of(one).total_cmp(&of(other)));
        let (taken, best) = (least(price_us).expect("rows"), least(|row| row.us).expect("rows"));
        assert!(
            taken.us <= 1.1 * best.us,
            "{group:?}: {} took {} us, {} took {}",
            taken.algorithm,
            taken.us,
            best.algorithm,
            best.us
        );
    }
}

#[test]
fn the_cut_is_the_one_that_ran() {
    // The share of a block was 64 KiB when they were measured: short chunks were cut otherwise.
    for row in rows().iter().filter(|row| row.bytes >= 16 << 20) {
        let plans = plans(row.algorithm, row.ranks);
        let longest = plans[0].partition.extents(row.bytes, 1).longest();
        // As many blocks of all ranks as half of the device has multiprocessors.
        let blocks_max = row.blocks_max.min(132 / row.ranks / 2);
        let cut = Cut::of(longest, plans[0].sliced, lanes_max(&plans), blocks_max, stride(row.ranks), 1);
        let what = format!("{} over {}, {} blocks", row.algorithm, row.ranks, row.blocks_max);
        assert_eq!((cut.instances, cut.slot_bytes), (row.instances, row.slot_bytes), "{what}");
    }
}

#[test]
fn the_load_is_that_of_the_busiest_lane_and_of_the_longest_chain() {
    let load = |algorithm, ranks| {
        let Load { lane, chain } = Load::of(&plans(algorithm, ranks));
        [lane, chain].map(|most| most.0.iter().map(|of| (of.signals, of.places)).collect::<Vec<_>>())
    };
    // In a ring of four each rank sends six pieces and acknowledges six; two folds and a copy have two targets.
    assert_eq!(load(Algorithm::RING, 4), [[(12, 20)], [(12, 20)]].map(Vec::from));
    // Up one tree and down it.
    assert_eq!(load(Algorithm::Tree, 4), [[(3, 6)], [(7, 18)]].map(Vec::from));
    // A copy to the rank that folds, its folds, and a copy of what comes back.
    assert_eq!(load(Algorithm::TwoShot, 4), [[(6, 14)], [(9, 20)]].map(Vec::from));
}

#[test]
fn which_work_takes_longest_depends_on_the_slices() {
    let [signals, places] = [(4, 2), (2, 4)].map(|(signals, places)| Work { signals, places });
    let mut most = Most::default();
    [signals, Work { signals: 2, places: 2 }, places, signals].into_iter().for_each(|work| most.put(work));
    assert_eq!(most.0, [signals, places]);
    assert_eq!(most.seconds(1, 0), signals.seconds(1, 0));
    assert_eq!(most.seconds(1, 1 << 20), places.seconds(1, 1 << 20));
}
