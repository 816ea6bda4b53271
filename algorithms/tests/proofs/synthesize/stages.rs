//! Stages of an exchange of unequal counts: all bytes once, one to one, and no longer than the fullest box.

use std::collections::BTreeSet;

use consort_algorithms::synthesize::exchange::{balance, makespan, stages};

use crate::common::{Random, seed};

fn check(matrix: &[Vec<u64>]) -> usize {
    let found = stages(matrix);
    let boxes = matrix.len();
    let mut sum = vec![vec![0u64; boxes]; boxes];
    for stage in &found {
        assert!(!stage.parcels.is_empty(), "{matrix:?}");
        let (mut from, mut to) = (BTreeSet::new(), BTreeSet::new());
        for parcel in &stage.parcels {
            assert!(from.insert(parcel.from) && to.insert(parcel.to), "not one to one: {stage:?}");
            assert!((1..=stage.length).contains(&parcel.bytes), "{stage:?}");
            sum[parcel.from as usize][parcel.to as usize] += parcel.bytes;
        }
    }
    for (at, row) in matrix.iter().enumerate() {
        let mut row = row.clone();
        row[at] = 0;
        assert_eq!(sum[at], row, "{matrix:?}");
    }
    // Not more than the fullest box needs. Not less either, or it would not have sent all.
    assert_eq!(found.iter().map(|stage| stage.length).sum::<u64>(), makespan(matrix), "{matrix:?}");
    assert_eq!(found, stages(matrix));
    found.len()
}

#[test]
fn stages_are_one_to_one_and_as_long_as_the_fullest_box() {
    let mut random = Random::new(seed(0x57a9e5));
    for round in 0..400 {
        let boxes = random.below(12);
        let largest = random.pick(&[1, 2, 7, 1000, 1 << 40]);
        let sparse = 1 + random.below(4);
        let mut bytes = || if random.one_in(sparse) { 0 } else { random.below(largest) as u64 };
        let matrix: Vec<Vec<u64>> = (0..boxes).map(|_| (0..boxes).map(|_| bytes()).collect()).collect();
        let count = check(&matrix);
        assert!(count <= boxes * boxes, "round {round}: {count} stages of {boxes} boxes");
    }
}

#[test]
fn special_matrices() {
    assert_eq!(check(&[]), 0);
    assert_eq!(check(&[vec![5]]), 0);
    assert_eq!(check(&vec![vec![0; 4]; 4]), 0);
    // Equal counts are the stages of a pairwise exchange.
    assert_eq!(check(&vec![vec![64; 8]; 8]), 7);
    // One box sends everything: one stage for each target.
    let mut one = vec![vec![0; 5]; 5];
    one[2] = vec![1, 2, 3, 4, 5];
    assert_eq!(check(&one), 4);
    // A box that receives from all, and 70 boxes, more than a word of bits.
    let mut hot = vec![vec![1; 70]; 70];
    hot.iter_mut().for_each(|row| row[3] = 100);
    check(&hot);
    let half = u64::MAX / 2;
    check(&[vec![0, half, half], vec![half, 0, 0], vec![half, 0, 0]]);
}

#[test]
#[should_panic(expected = "fits 64 bits")]
fn a_box_that_sends_more_than_can_be_counted() {
    stages(&[vec![0, u64::MAX, 1], vec![0; 3], vec![0; 3]]);
}

#[test]
fn balancing_moves_the_excess_and_no_more() {
    let mut random = Random::new(seed(0xba1));
    for _ in 0..300 {
        let ranks = random.below(9);
        let before: Vec<u64> = (0..ranks).map(|_| random.below(100) as u64).collect();
        let mut after = before.clone();
        let moves = balance(&before);
        for moved in &moves {
            assert!(moved.bytes > 0 && moved.from != moved.to);
            after[moved.from as usize] -= moved.bytes;
            after[moved.to as usize] += moved.bytes;
        }
        let (least, most) = (after.iter().min(), after.iter().max());
        assert!(most.zip(least).is_none_or(|(most, least)| most - least <= 1), "{before:?}: {moves:?}");
        let excess: u64 =
            before.iter().zip(&after).map(|(before, after)| before.saturating_sub(*after)).sum();
        assert_eq!(moves.iter().map(|moved| moved.bytes).sum::<u64>(), excess, "nothing moves twice");
        assert!(moves.len() < ranks.max(1), "{before:?}: {moves:?}");
    }
}
