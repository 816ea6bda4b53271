//! Ranks of one process that take themselves for ranks of two hosts, one of whose paths is lost.

use std::time::{Duration, Instant};

use crate::{Communicator, Error, Options, ReduceOp};
use consort_control::bootstrap::Member;
use consort_settings::options::Settings;

/// What a rank may enter from its promise on.
const PROMISED: usize = 16;

fn two_hosts() -> Vec<Communicator> {
    let settings = Settings::resolve(&Options::default()).expect("settings");
    let on = |rank, of| Member { host_key: [rank as u8; 16], ..of };
    let ranks = Communicator::local_as(2, settings, &on).expect("two ranks");
    // As of ranks that have joined.
    ranks[0].process().ensure_thread().expect("a control thread");
    ranks
}

/// A call that moves nothing, and so waits for no rank.
fn empty(comm: &Communicator) -> crate::Result<()> {
    comm.all_reduce(&mut [0f32; 0], ReduceOp::Sum)
}

/// Until a rank has entered as many calls as it has promised while the other one's engine is held by the test.
fn promised(ranks: &[Communicator]) {
    ranks[1].core().group.say_paths(vec![(0, 1, 2)]);
    for call in 0..PROMISED {
        empty(&ranks[0]).unwrap_or_else(|error| panic!("call {call} of {PROMISED}: {error}"));
    }
}

#[test]
fn a_rank_that_has_entered_what_it_has_promised_waits_until_the_change_is_known() {
    let ranks = two_hosts();
    let held = ranks[1].core().idle_engine();
    promised(&ranks);
    std::thread::scope(|threads| {
        let waits = threads.spawn(|| empty(&ranks[0]));
        // Rank 1 computes: the control thread promises for it.
        drop(held);
        waits.join().expect("no panic").expect("the change is known");
        for _ in 0..=PROMISED {
            empty(&ranks[1]).expect("it goes on");
        }
        let calls = ranks.iter().map(|comm| {
            threads.spawn(move || {
                for _ in 0..2 * PROMISED {
                    let mut buffer = [comm.rank() as f32 + 1.0; 1000];
                    comm.all_reduce(&mut buffer, ReduceOp::Sum).expect("both make the same calls");
                    assert_eq!(buffer, [3.0; 1000]);
                }
                (comm.planning().topology().name.clone(), comm.planning().graph_hash())
            })
        });
        let planned: Vec<_> =
            calls.collect::<Vec<_>>().into_iter().map(|call| call.join().expect("no panic")).collect();
        assert_eq!(planned[0], planned[1]);
        assert_eq!(planned[0].0, "tcp:2x1, host 0 with 1 of 2 paths, host 1 with 1 of 2 paths");
    });
}

#[test]
fn a_rank_waits_for_a_change_no_longer_than_its_deadline() {
    let ranks = two_hosts();
    let held = ranks[1].core().idle_engine();
    promised(&ranks);
    let began = Instant::now();
    let error =
        empty(&ranks[0].with_timeout(Duration::from_millis(100))).expect_err("rank 1 does not answer");
    assert!(began.elapsed() >= Duration::from_millis(100));
    assert!(
        matches!(&error, Error::Timeout { .. }) && error.to_string().contains("a path that is lost"),
        "{error}"
    );
    drop(held);
    let error = empty(&ranks[1]).expect_err("it failed on all ranks");
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
}

#[test]
fn an_abort_ends_the_wait_for_a_change() {
    let ranks = two_hosts();
    let held = ranks[1].core().idle_engine();
    promised(&ranks);
    std::thread::scope(|threads| {
        let waits = threads.spawn(|| empty(&ranks[0]));
        ranks[1].abort("enough");
        let error = waits.join().expect("no panic").expect_err("it was aborted");
        assert!(matches!(error, Error::Aborted { rank: 1, .. }), "{error}");
    });
    drop(held);
}

#[test]
fn a_member_of_a_group_whose_part_is_over_promises_while_another_part_waits() {
    let (ranks, others) = (two_hosts(), two_hosts());
    std::thread::scope(|threads| {
        let grouped = threads.spawn(|| {
            let (mut nothing, mut sum) = ([0f32; 0], [1f32; 4]);
            let result = crate::group(|group| {
                group.all_reduce(&ranks[1], &mut nothing, ReduceOp::Sum)?;
                group.all_reduce(&others[1], &mut sum, ReduceOp::Sum)
            });
            result.map(|()| sum)
        });
        let [over, waits] = [&ranks, &others].map(|comms| &comms[1].core().group.recorder);
        while over.finished() == 0 || waits.entered() == 0 {
            std::thread::yield_now();
        }
        promised(&ranks);
        let known = empty(&ranks[0].with_timeout(Duration::from_secs(20)));
        let mut sum = [1f32; 4];
        others[0].all_reduce(&mut sum, ReduceOp::Sum).expect("both make the call");
        assert_eq!(grouped.join().expect("no panic").expect("the group's calls"), [2.0; 4]);
        known.expect("the change is known while the group waits");
    });
}
