//! All-reduce between all pairs, in one shot or in two.
//!
//! Source: M. Cowan et al., "MSCCLang: Microsoft Collective Communication Language", ASPLOS 2023 (all-pairs);
//! one-shot and two-shot are the names of the vendors' custom all-reduce kernels.
//!
//! Cost over `n` ranks, with `M` the bytes of the buffer; the depth is the longest chain of messages:
//!
//! | form | depth | bytes out of and into every port | scratch places |
//! |---|---|---|---|
//! | one-shot | 1 | `(n-1) M` | 1 |
//! | two-shot | 2 | `2(n-1)/n M` | 1 |
//!
//! Two ranks need no scratch. Defined for every number of ranks; there are no options. One mailbox holds one
//! message of an iteration, so one slot is enough, fused or not.
//!
//! Fold order: the left fold over ranks `0, 1, …, n-1`, for every chunk and in both forms: the bits are the
//! same whichever form runs, and the same as those of a direct reduce-scatter or reduce.
//!
//! Channels: a one-shot has one, because in place a rank must not store the result before it has sent its input, and
//! only the order of one lane guarantees that. In a two-shot the data that overwrites a rank's buffer in place comes
//! from the rank that has already used that buffer. It has the channels of a direct reduce-scatter and as many for
//! the all-gather, so that neither a rank's sends of its input nor its folds wait for the results of others.

use super::direct::{OrderedFold, fold_step, stream, streams, to_all};
use super::moves::{alone, copy, schedule};
use crate::{Chunk, Collective, Place, Round, Schedule};

/// The all-reduce in which every rank sends its whole input to every other, and every rank folds all inputs.
///
/// # Panics
///
/// When `ranks` is 0.
pub fn one_shot(ranks: u32) -> Schedule {
    let rounds = folds(ranks, |_| Chunk(0), |_, _| 0);
    finished("one-shot", ranks, 1, rounds)
}

/// The all-reduce in which rank `r` folds piece `r` of all inputs and sends the result to all others.
///
/// # Panics
///
/// When `ranks` is 0.
pub fn two_shot(ranks: u32) -> Schedule {
    let mut rounds = folds(ranks, Chunk, stream);
    rounds.push(to_all(ranks, |from, to| {
        let piece = Place::Output(Chunk(from));
        copy(from, to, streams(ranks) + stream(from, to), piece, piece)
    }));
    finished("two-shot", ranks, ranks, rounds)
}

/// Every rank folds the piece that it owns.
fn folds(ranks: u32, piece_of: fn(u32) -> Chunk, stream: fn(u32, u32) -> u16) -> Vec<Round> {
    let fold_of = |owner: u32| {
        let chunk = piece_of(owner);
        let (source, partial, target) = (Place::Input(chunk), Place::Scratch(chunk), Place::Output(chunk));
        OrderedFold { ranks, first: 0, owner, source, partial, target }
    };
    (0..ranks).map(|step| fold_step(ranks, step, fold_of, stream)).collect()
}

fn finished(name: &str, ranks: u32, parts: u32, rounds: Vec<Round>) -> Schedule {
    assert!(ranks > 0, "an all-reduce needs a rank");
    match ranks {
        1 => alone(name, Collective::AllReduce),
        _ => schedule(name, Collective::AllReduce, ranks, parts, rounds),
    }
}

#[cfg(test)]
mod tests {
    use super::super::proving::{proved, scratch, sizes, tally};
    use super::super::{direct, doubling};
    use super::*;
    use crate::passes::{pipeline, replicate};
    use crate::plan::{Action, CounterRole, Step};

    #[test]
    fn both_forms_fold_alike_on_every_number_of_ranks() {
        for ranks in sizes(&[]) {
            let (one, hash) = proved(&one_shot(ranks), 4);
            let places = u32::from(ranks > 2);
            assert_eq!(scratch(&one), places, "{ranks} ranks");
            let (two, two_hash) = proved(&two_shot(ranks), 4);
            assert_eq!((scratch(&two), two_hash), (places, hash), "{ranks} ranks");
        }
        for ranks in sizes(&[128]).into_iter().filter(|&ranks| ranks > 64) {
            proved(&one_shot(ranks), 4);
        }
    }

    /// The channels of a two-shot make its proof cost more than that of others over as many ranks.
    #[test]
    #[ignore = "long: .ci/soak runs it"]
    fn large_two_shots_fold_as_one_shots() {
        for ranks in [96, 100, 127, 128] {
            let (_, hash) = proved(&one_shot(ranks), 4);
            let (two, two_hash) = proved(&two_shot(ranks), 4);
            assert_eq!((scratch(&two), two_hash), (1, hash), "{ranks} ranks");
        }
    }

    #[test]
    fn one_slot_is_enough() {
        for ranks in [2, 3, 8, 13] {
            assert_eq!(proved(&one_shot(ranks), 1).1, proved(&two_shot(ranks), 1).1);
        }
    }

    #[test]
    fn channels_and_depth_leave_the_bits_alone() {
        let (_, hash) = proved(&one_shot(5), 4);
        for schedule in [one_shot(5), two_shot(5)] {
            assert_eq!(proved(&replicate(&schedule, 3), 4).1, hash);
            assert_eq!(proved(&pipeline(&schedule, 2), 4).1, hash);
        }
    }

    /// More messages to one peer than its mailbox has slots: the rest waits for a later wave.
    #[test]
    fn no_more_goes_ahead_than_a_mailbox_takes() {
        for depth in [2, 3, 9] {
            let (_, hash) = proved(&pipeline(&one_shot(4), depth), 4);
            assert_eq!(hash, proved(&one_shot(4), 4).1);
        }
        for (depth, slots) in [(3, 4), (5, 6)] {
            proved(&pipeline(&doubling(4), depth), slots);
        }
    }

    #[test]
    fn the_cost_is_the_formula() {
        for n in 2..=64 {
            let one = tally(&one_shot(n));
            assert_eq!((one.depth, one.out, one.into, one.largest), (1, n - 1, n - 1, 1));
            let two = tally(&two_shot(n));
            assert_eq!((two.depth, two.out, two.into, two.largest), (2, 2 * (n - 1), 2 * (n - 1), n));
            assert_eq!((one.messages, two.messages), (n * (n - 1), 2 * n * (n - 1)));
        }
    }

    /// Sends of the input do not wait for folds: the first steps of a one-shot are its sends, and in a two-shot no
    /// lane that sends the input receives.
    #[test]
    fn sends_of_the_input_wait_for_no_arrival() {
        for ranks in [2, 5, 8] {
            for plan in proved(&one_shot(ranks), 4).0 {
                assert_eq!(plan.lanes.len(), 1);
                let puts: Vec<bool> = plan.steps.iter().map(|step| step.action == Action::Put).collect();
                let sends = 3 * (ranks as usize - 1);
                assert!(!puts[sends..].contains(&true), "{ranks} ranks: {puts:?}");
            }
            let (plans, _) = proved(&two_shot(ranks), 4);
            for plan in &plans {
                let bits = ranks.next_power_of_two().ilog2() as usize;
                assert!(plan.lanes.len() <= 2 * bits + 1, "{ranks} ranks: {} lanes", plan.lanes.len());
                for lane in &plan.lanes {
                    let waits = plan.lane(lane).iter().filter(|step| step.action == Action::Wait);
                    let ready =
                        |step: &&Step| plan.counters[step.counter as usize].id.role == CounterRole::Ready;
                    let sends_input =
                        plan.lane(lane).iter().any(|step| step.action == Action::Put && step.raw != 0);
                    assert!(!sends_input || waits.filter(ready).count() == 0);
                }
            }
        }
    }

    #[test]
    fn the_order_is_that_of_the_direct_reductions_bit_for_bit() {
        // A hash names its collective, so the brackets are compared as expressions over the ranks.
        for ranks in 2..=9 {
            let brackets = |schedule: &Schedule| super::super::proving::brackets(schedule);
            let canonical: String = (1..ranks).fold("0".into(), |left, rank| format!("({left}+{rank})"));
            for schedule in [
                one_shot(ranks),
                two_shot(ranks),
                direct(Collective::ReduceScatter, ranks),
                direct(Collective::Reduce, ranks),
            ] {
                assert!(brackets(&schedule).iter().all(|bracket| *bracket == canonical), "{}", schedule.name);
            }
        }
    }
}
