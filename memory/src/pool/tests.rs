//! What holds of both sides of a pool.

use std::collections::HashMap;
use std::sync::Arc;

use consort_testing::Random;

use super::driver::{Party, Turn};
use super::*;
use crate::Mapping;
use crate::span::TOUCHES;

const WORD: u64 = 1 << POOL_BITS;

fn ends(there: &Counter, here: &Counter) -> Ends {
    Ends { there: there.clone(), here: here.clone() }
}

/// Both sides of a pool, and the lines between them: ready of either, then credit of either.
fn pools(slots: usize, payload_bytes: usize, window: u64) -> ([Pool; 2], [Counter; 4]) {
    let rows = [(); 2].map(|()| {
        let memory = Arc::new(Mapping::anonymous(Row::bytes(slots, payload_bytes)).expect("memory"));
        Row::in_mapping(memory, 0, slots, payload_bytes)
    });
    let lines = [(); 4].map(|()| Counter::standalone());
    let side = |me: usize| {
        let other = 1 - me;
        Pool::new(
            ends(&lines[me], &lines[other]),
            ends(&lines[2 + me], &lines[2 + other]),
            [rows[me].clone(), rows[other].clone()],
            window,
        )
    };
    ([side(0), side(1)], lines)
}

fn address(span: SpanMut<'_>) -> usize {
    span.as_mut_ptr() as usize
}

fn send(pool: &mut Pool, number: u64) -> usize {
    assert!(pool.has_room().unwrap());
    let at = address(pool.fill(number, 64).unwrap());
    pool.post(number, WORD * number).unwrap();
    at
}

fn receive(pool: &mut Pool, number: u64) -> usize {
    assert_eq!(pool.is_here(number), Ok(true));
    assert_eq!(pool.word(number), WORD * number);
    let at = address(pool.read(number).expect("it has a slot"));
    pool.empty(number, 64, 1).unwrap();
    at
}

#[test]
fn a_reply_goes_in_the_slot_that_was_read() {
    let ([mut left, mut right], _) = pools(8, 64, 4);
    let first = send(&mut left, 1);
    for number in 1..100 {
        assert_eq!(receive(&mut right, number), first);
        assert_eq!(send(&mut right, number), first);
        assert_eq!(receive(&mut left, number), first);
        assert_eq!(send(&mut left, number + 1), first);
    }
}

#[test]
fn one_way_traffic_never_lacks_a_slot_within_its_window() {
    for (slots, window) in [(4, 4), (8, 4), (8, 7), (32, 7), (1, 1)] {
        let ([mut left, mut right], _) = pools(slots, 64, window);
        let mut sent = 0;
        for round in 0..50 {
            while left.has_room().unwrap() {
                sent += 1;
                send(&mut left, sent);
            }
            assert_eq!(sent, (round + 1) * window, "{slots} slots");
            (sent - window + 1..=sent).for_each(|number| _ = receive(&mut right, number));
        }
        // And the other way round from there.
        for number in 1..=window {
            send(&mut right, number);
        }
        assert!(!right.has_room().unwrap());
    }
}

/// How many of the last eight messages of either party sent a slot back, once both have sent each other two at a time for long.
fn returned_in_turns(slots: usize, window: u64) -> u32 {
    let ([mut left, mut right], _) = pools(slots, 64, window);
    for turn in 0..50 {
        let both = 2 * turn + 1..2 * turn + 3;
        both.clone().for_each(|number| _ = send(&mut left, number));
        both.clone().for_each(|number| _ = send(&mut right, number));
        both.clone().for_each(|number| _ = receive(&mut left, number));
        both.for_each(|number| _ = receive(&mut right, number));
    }
    left.returned.count_ones() + right.returned.count_ones()
}

#[test]
fn slots_go_back_with_messages_where_there_are_more_than_the_windows_need() {
    assert_eq!(returned_in_turns(8, 4), 0, "plans");
    assert_eq!(returned_in_turns(16, 7), 0, "messages");
    // Plans had such pools, and each of their slots was filled by one party alone.
    assert_ne!(returned_in_turns(4, 4), 0);
}

#[test]
fn a_sum_goes_back_in_the_slot_of_its_summand() {
    let ([mut left, mut right], _) = pools(8, 64, 4);
    for number in 1..50 {
        let there = send(&mut left, number);
        assert_eq!(right.is_here(number), Ok(true));
        assert!(right.forward(number, number));
        assert!(!right.forward(number, number), "once");
        assert_eq!(address(right.fill(number, 64).unwrap()), there);
        right.post(number, WORD * number).unwrap();
        right.empty(number, 64, 1).unwrap();
        assert_eq!(receive(&mut left, number), there);
    }
}

#[test]
fn messages_without_a_slot_count() {
    let ([mut left, mut right], _) = pools(8, 64, 4);
    for number in (1..200).step_by(2) {
        left.fill(number + 1, 64).unwrap();
        left.post(number + 1, WORD).unwrap();
        assert_eq!((right.is_here(number + 1), right.is_here(number + 2)), (Ok(true), Ok(false)));
        assert_eq!(right.word(number + 1), WORD);
        assert!(right.read(number).is_none() && right.read(number + 1).is_some());
        right.empty(number + 1, 64, 1).unwrap();
        assert_eq!((left.counts().0, right.counts().1), (number + 1, number + 1));
    }
}

/// Two parties that send, read, sum and wait at random: each byte arrives, each slot has one owner, no window lacks a slot, and
/// no slot is lost.
#[test]
fn every_slot_has_one_owner_whatever_the_parties_do() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let window = 1 + random.below(7);
        let slots = (window + random.below(8)).next_power_of_two();
        let (sides, _) = pools(slots, 64, window as u64);
        let mut sides = [0, 1]
            .into_iter()
            .zip(sides)
            .map(|(side, pool)| Party::new(pool, side, window as u64, 500, seed));
        let mut sides = [(); 2].map(|()| sides.next().expect("two"));
        // What lies in each slot: the side whose message it is, and its number.
        let mut content: HashMap<usize, (usize, u64)> = HashMap::new();
        let mut idle = 0;
        while !sides.iter().all(Party::is_done) {
            let me = random.below(2);
            let turn = sides[me].turn().unwrap_or_else(|_| panic!("seed {seed}: no slot"));
            idle = if turn == Turn::Nothing { idle + 1 } else { 0 };
            assert!(idle < 1000, "seed {seed}: neither goes on, {:?}", sides.each_ref().map(Party::counts));
            match turn {
                Turn::Nothing => {}
                Turn::Sent { slot, number } => {
                    assert!(content.insert(slot, (me, number)).is_none(), "seed {seed}: two owners");
                }
                Turn::Read { slot, number, answer } => {
                    assert_eq!(content.remove(&slot), Some((1 - me, number)), "seed {seed}");
                    content.extend(answer.map(|answer| (slot, (me, answer))));
                }
            }
        }
        let usable = sides.each_mut().map(|side| side.usable().expect("nothing foreign was said"));
        assert_eq!(usable.iter().sum::<usize>(), 2 * slots, "seed {seed}: {usable:?}");
    }
}

#[test]
fn names_that_cannot_be_are_foreign() {
    for name in [5, 8, 31, 32 + 9, 0x81, 0xa1, 0xbf] {
        for touch in [0, u64::from(TOUCH)] {
            let tag = name | touch;
            let ([mut left, _], [_, ready, _, credit]) = pools(8, 64, 4);
            // The peer sends in a slot that is the reader's already (its half is the reader's other half), or in none that is.
            ready.raise(1, tag ^ if name < 8 { u64::from(THEIRS) } else { 0 });
            assert_eq!(left.is_here(1), Err(Foreign), "{tag}");
            // A credit for what was not sent, and one with a slot that is here.
            credit.raise(1, u64::from(NONE));
            assert_eq!(left.collect(), Err(Foreign));
            send(&mut left, 1);
            assert_eq!(left.collect(), Ok(()));
            send(&mut left, 2);
            credit.raise(2, tag);
            assert_eq!(left.collect(), Err(Foreign), "{tag}");
        }
    }
    // A credit wants nothing touched.
    let ([mut left, _], [.., credit]) = pools(8, 64, 4);
    send(&mut left, 1);
    credit.raise(1, u64::from(TOUCH));
    assert_eq!(left.collect(), Err(Foreign));
}

/// Slots that go back are touched as their writer wants it with the message that they go back for.
#[test]
fn what_the_writer_wants_touched_is_said_with_each_message() {
    const BYTES: usize = 8 << 10;
    let ([mut left, mut right], [ready, _, _, credit]) = pools(8, BYTES, 4);
    assert!(right.touches(), "before it has heard");
    // Messages by what is wanted, slots that have come back by what was done, and fills that were timed.
    let (mut wanted, mut back, mut timed) = ([0; 2], [0; 2], 0);
    for number in 1..500 {
        assert!(left.has_room().unwrap());
        left.fill(number, BYTES).unwrap();
        timed += u32::from(left.touching.is_timing());
        left.post(number, WORD).unwrap();
        let wants = ready.tag(number) as Name & TOUCH != 0;
        assert_eq!(right.is_here(number), Ok(true));
        assert_eq!((right.touches(), right.word(number)), (wants, WORD));
        let before = TOUCHES.get();
        right.empty(number, BYTES, 1).unwrap();
        let is_back = credit.tag(number) as Name != NONE;
        assert_eq!(TOUCHES.get() - before, u32::from(is_back && wants), "{number}");
        wanted[usize::from(wants)] += 1;
        back[usize::from(wants)] += u32::from(is_back);
    }
    // Both kinds were timed, and no more often than that takes.
    assert!(wanted.into_iter().chain(back).all(|count| count >= 6), "{wanted:?} {back:?}");
    assert!((12..100).contains(&timed), "{timed}");
}

#[test]
#[should_panic(expected = "a window of 9")]
fn a_window_beyond_the_tags_is_refused() {
    pools(16, 64, 9);
}
