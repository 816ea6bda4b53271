//! Schedules that come as data: candidates, prices, names, bits, and refusals.

use std::time::Duration;

use consort::planning::{Algorithm, Collective, Determinism, Schedule};
use consort::{Communicator, Error, Options, ReduceOp, TransportChoice, UniqueId};
use consort_tests::{Links, on_ranks};

const DIRECT: Algorithm = Algorithm::Direct { first: 0 };

/// A schedule of the catalogue under another name.
fn named(name: &str, algorithm: Algorithm, collective: Collective) -> Schedule {
    Schedule { name: name.into(), ..algorithm.schedule(collective, 3) }
}

fn gather(comm: &Communicator, count: usize) -> consort::Result<Vec<u64>> {
    let own: Vec<u64> = (0..count as u64).map(|at| u64::from(comm.rank()) << 32 | at).collect();
    let mut all = vec![0; 3 * count];
    comm.all_gather(&own, &mut all)?;
    Ok(all)
}

fn gathered(count: usize) -> Vec<u64> {
    (0..3u64).flat_map(|rank| (0..count as u64).map(move |at| rank << 32 | at)).collect()
}

#[test]
fn a_schedule_as_data_is_a_candidate_like_others() {
    let options = || {
        let gather = named("ours.gather", DIRECT, Collective::AllGather);
        let sum = named("ours.sum", Algorithm::RING, Collective::AllReduce);
        Options::default().schedule(gather).and_then(|options| options.schedule(sum)).expect("they are right")
    };
    let with = options();
    let imported: Algorithm = "ours.gather".parse().expect("it is known");
    for transport in [TransportChoice::Auto, TransportChoice::Tcp] {
        on_ranks(3, Links::Joined, &with.clone().transport(transport), |comm| {
            for count in [1, 700, 100_000] {
                assert_eq!(gather(&comm.with_algorithm(imported), count)?, gathered(count), "{count}");
            }
            let explained = comm.explain(Collective::AllGather, 4096)?;
            let of = |algorithm| explained.candidates.iter().find(|of| of.algorithm == algorithm);
            let (ours, direct) = (of(imported).expect("listed"), of(DIRECT).expect("listed"));
            assert!(ours.excluded.is_none() && ours.predicted_s > 0.0 && ours.predicted_s.is_finite());
            assert_eq!((ours.fold_hash, ours.cost), (direct.fold_hash, direct.cost));
            assert!(ours.fold_hash.is_some() && explained.to_string().contains("ours.gather"), "{explained}");
            Ok(())
        });
        // Named, whatever its price.
        let only = with.clone().transport(transport).algorithms("all_gather:ours.gather;all_reduce:ours.sum");
        on_ranks(3, Links::Joined, &only, |comm| {
            let explained = comm.explain(Collective::AllGather, 1 << 20)?;
            assert_eq!(explained.chosen().map(|of| of.algorithm), Some(imported));
            assert_eq!(gather(comm, 5000)?, gathered(5000));
            // The bits are those of a ring, which it is.
            let scale = comm.rank() as f32 + 0.7;
            let own: Vec<f32> = (0..5000u16).map(|at| (f32::from(at) + 0.1) * scale).collect();
            let (mut by_name, mut by_ring) = (own.clone(), own);
            comm.all_reduce(&mut by_name, ReduceOp::Sum)?;
            comm.with_algorithm(Algorithm::RING).all_reduce(&mut by_ring, ReduceOp::Sum)?;
            assert_eq!(by_name, by_ring);
            Ok(())
        });
    }
}

#[test]
fn a_schedule_that_is_wrong_or_not_agreed_on_is_refused() {
    let mut lost = named("ours.lost", DIRECT, Collective::AllGather);
    lost.rounds.iter_mut().rev().find_map(|round| round.transfers.pop()).expect("a transfer");
    let text = Options::default().schedule(lost).expect_err("a block is lost").to_string();
    assert!(text.contains("the schedule \"ours.lost\" is refused: "), "{text}");
    // Known to the process, but not to the communicator.
    let other = Options::default().schedule(named("ours.other", DIRECT, Collective::AllGather));
    assert!(other.is_ok(), "{other:?}");
    let imported: Algorithm = "ours.other".parse().expect("it is known");
    on_ranks(3, Links::Local, &Options::default(), |comm| {
        let error = gather(&comm.with_algorithm(imported), 1).expect_err("not agreed on");
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        Ok(())
    });
}

#[test]
fn bits_that_are_invariant_allow_what_folds_in_the_order_of_ranks() {
    let ordered = named("ours.ordered", Algorithm::TwoShot, Collective::AllReduce);
    let ringed = named("ours.ringed", Algorithm::RING, Collective::AllReduce);
    let options = Options::default().determinism(Determinism::Invariant);
    let options =
        options.schedule(ordered).and_then(|options| options.schedule(ringed)).expect("both are right");
    on_ranks(3, Links::Local, &options, |comm| {
        let explained = comm.explain(Collective::AllReduce, 1 << 20)?;
        let excluded = |name: &str| {
            let found = explained.candidates.iter().find(|of| of.algorithm.to_string() == name);
            found.expect("it is listed").excluded.is_some()
        };
        assert_eq!([excluded("ours.ordered"), excluded("ours.ringed")], [false, true]);
        Ok(())
    });
}

#[test]
fn ranks_with_different_schedules_do_not_join() {
    let id = UniqueId::create().expect("an id");
    let lone = named("ours.lone", DIRECT, Collective::AllGather);
    let options = Options::default().join_timeout(Duration::from_secs(10));
    let with = options.clone().schedule(lone).expect("it is right");
    std::thread::scope(|threads| {
        let calls = [(0, &options), (1, &with)].map(|(rank, options)| {
            let id = id.clone();
            threads.spawn(move || Communicator::join_with(rank, 2, &id, options).map(drop))
        });
        for call in calls {
            let error = call.join().expect("no panic").expect_err("they differ");
            let text = error.to_string();
            assert!(matches!(error, Error::Settings { .. }) && text.contains("ours.lone#"), "{text}");
        }
    });
}
