//! Communicators whose ranks change: without ranks that died, stopped or are not wanted, and with new ones; among
//! threads of one process. `members` has them among processes.

use std::time::{Duration, Instant};

use consort::{Communicator, Error, Options, Rank, ReduceOp, Result, Shrink, UniqueId};
use consort_tests::job::stolen;
use consort_tests::{collectives, system};

fn options(seconds: f64) -> Options {
    Options::default().timeout(Duration::from_secs_f64(seconds))
}

fn local(size: u32) -> Vec<Communicator> {
    Communicator::local_with(size, &options(20.0)).expect("ranks")
}

/// The results of `act` on each of these ranks, in threads of their own.
fn on<T: Send>(ranks: &[Communicator], which: &[Rank], act: impl Fn(&Communicator) -> T + Sync) -> Vec<T> {
    let act = &act;
    std::thread::scope(|threads| {
        let calls = which.iter().map(|rank| &ranks[*rank as usize]);
        let calls: Vec<_> = calls.map(|comm| threads.spawn(move || act(comm))).collect();
        calls.into_iter().map(|call| call.join().expect("no panic")).collect()
    })
}

/// The ranks that are not `excluded`, after they shrank; all calls work on their new communicators, and they have the
/// right numbers.
fn shrunk(ranks: &[Communicator], excluded: &[Rank], how: Shrink) -> Vec<Communicator> {
    let which: Vec<Rank> = (0..ranks.len() as Rank).filter(|rank| !excluded.contains(rank)).collect();
    let left = on(ranks, &which, |comm| {
        let left = comm.shrink(excluded, how).expect("all that stay call it");
        collectives::everything(&left, 100).expect("it works");
        left
    });
    for (rank, comm) in left.iter().enumerate() {
        assert_eq!((comm.rank() as usize, comm.size() as usize), (rank, which.len()));
    }
    left
}

fn invalid<T: std::fmt::Debug>(result: Result<T>, words: &[&str]) {
    match result {
        Err(Error::InvalidArgument { what, .. }) => {
            assert!(words.iter().all(|word| what.contains(word)), "{words:?} are not in: {what}");
        }
        other => panic!("{words:?}: {other:?}"),
    }
}

#[test]
fn those_that_stay_need_nothing_of_the_others() {
    let world = local(5);
    // The excluded ranks do not notice.
    let left = shrunk(&world, &[3, 1], Shrink::Idle);
    on(&world, &[0, 1, 2, 3, 4], |comm| comm.barrier().expect("it goes on as it was"));
    let fewer = shrunk(&left, &[0], Shrink::Idle);
    on(&left, &[0, 1, 2], |comm| comm.barrier().expect("it goes on as it was"));
    let one = shrunk(&fewer, &[0], Shrink::Idle);
    assert_eq!(one.len(), 1);
    // The end of the excluded ranks does not concern the new communicator.
    world[1].abort("the other rank's");
    drop(world);
    drop(left);
    on(&fewer, &[0, 1], |comm| collectives::everything(comm, 10).expect("it works"));
}

#[test]
fn parts_of_a_split_are_shrunk_by_their_own_numbers() {
    let world = local(6);
    let odd = on(&world, &[0, 1, 2, 3, 4, 5], |comm| {
        let part = comm.split(Some(comm.rank() % 2), -i64::from(comm.rank())).expect("all split");
        part.expect("a colour")
    });
    let odd: Vec<Communicator> = odd.into_iter().skip(1).step_by(2).collect();
    // Ranks 5, 3 and 1 of the world are 0, 1 and 2 here.
    let excluded = &[1];
    let sums = on(&odd, &[2, 0], |comm| {
        let left = comm.shrink(excluded, Shrink::Idle).expect("both call it");
        let mut sum = [10 * (comm.rank() + 1)];
        left.all_reduce(&mut sum, ReduceOp::Sum).expect("it works");
        (left.rank(), sum[0])
    });
    assert_eq!(sums, [(0, 40), (1, 40)]);
}

#[test]
fn lists_that_cannot_be_are_refused_at_once() {
    let world = local(3);
    for how in [Shrink::Idle, Shrink::Abort] {
        invalid(world[0].shrink(&[], how), &["no rank"]);
        invalid(world[0].shrink(&[1, 2, 1], how), &["rank 1", "twice"]);
        invalid(world[0].shrink(&[1, 3], how), &["rank 3", "of 3"]);
        invalid(world[0].shrink(&[0, 1], how), &["rank 0", "itself"]);
    }
    on(&world, &[0, 1, 2], |comm| comm.barrier().expect("nothing happened to it"));
}

#[test]
fn lists_that_differ_are_named_on_all_ranks() {
    let world = local(4);
    let list = |rank: Rank| if rank == 2 { vec![3, 1] } else { vec![3] };
    for result in on(&world, &[0, 1, 2], |comm| comm.shrink(&list(comm.rank()), Shrink::Idle)) {
        invalid(result, &["rank 2: shrink without 1, 3 (Shrink::Idle)", "shrink without 3 (Shrink::Idle)"]);
    }
    let results = on(&world, &[0, 1, 2], |comm| match comm.rank() {
        0 => {
            // The others have begun; otherwise they would get the end of the operations as an error at once.
            let are_in_it = || [1, 2].iter().all(|rank: &usize| world[*rank].memory_bytes().is_err());
            assert!(system::eventually(system::SOON, are_in_it));
            comm.shrink(&[3], Shrink::Abort)
        }
        _ => comm.shrink(&[3], Shrink::Idle),
    });
    for result in results {
        let parts =
            ["rank 0: shrink without 3 (Shrink::Abort)", "ranks 1, 2: shrink without 3 (Shrink::Idle)"];
        invalid(result, &parts);
    }
}

#[test]
fn a_rank_that_does_not_call_it_is_named_in_time() {
    let world = local(4);
    for (how, again) in [(Shrink::Idle, Shrink::Idle), (Shrink::Idle, Shrink::Abort)] {
        let began = Instant::now();
        for result in on(&world, &[0, 1], |comm| comm.with_timeout(Duration::from_secs(1)).shrink(&[3], how))
        {
            let error = result.expect_err("rank 2 is away");
            let text = error.to_string();
            assert!(matches!(error, Error::Timeout { .. }), "{text}");
            assert!(text.contains("rank 2 (host ") && text.contains("did not call shrink"), "{text}");
        }
        let took = began.elapsed();
        assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(1) + stolen(), "{took:?}");
        // Ranks 0 and 1 have tried once more than rank 2, which does not matter.
        shrunk(&world, &[3], again);
    }
}

#[test]
fn a_rank_that_has_closed_it_is_named_at_once() {
    let mut world = local(3);
    drop(world.remove(1));
    let began = Instant::now();
    for how in [Shrink::Idle, Shrink::Abort] {
        let error = world[0].shrink(&[2], how).expect_err("rank 1 is gone");
        assert!(matches!(error, Error::PeerLeft { rank: 1, .. }), "{error}");
    }
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    // A rank that has closed it may be left out as well.
    let pair = [world.remove(0), world.remove(0)];
    let left = on(&pair, &[0, 1], |comm| comm.shrink(&[1], Shrink::Abort).expect("both call it"));
    on(&left, &[0, 1], |comm| comm.barrier().expect("it works"));
}

#[test]
fn an_idle_communicator_is_wanted_or_its_end() {
    let world = local(3);
    let started = on(&world, &[0, 2], |comm| {
        comm.start_all_reduce(vec![1.0f32; 1000], ReduceOp::Sum).expect("started")
    });
    invalid(world[0].shrink(&[1], Shrink::Idle), &["not over"]);
    let began = Instant::now();
    shrunk(&world, &[1], Shrink::Abort);
    // It does not wait for the deadline.
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    for work in started {
        let error = work.wait().map(drop).expect_err("it was ended");
        assert!(matches!(error, Error::Revoked { .. }), "{error}");
    }
    let error = world[1].barrier().expect_err("the excluded rank gets an error");
    assert!(matches!(&error, Error::Revoked { reason, .. } if reason.contains("without 1")), "{error}");
    let error = world[0].shrink(&[1], Shrink::Idle).expect_err("it has failed");
    assert!(matches!(error, Error::Revoked { .. }), "{error}");
    // Any number of times.
    shrunk(&world, &[0], Shrink::Abort);
}

#[test]
fn calls_of_other_threads_end_first() {
    let world = local(3);
    std::thread::scope(|threads| {
        let hangs = threads.spawn(|| world[0].all_reduce(&mut [1.0f32; 1000], ReduceOp::Sum));
        assert!(system::eventually(system::SOON, || world[0].memory_bytes().is_err()));
        assert!(matches!(world[0].shrink(&[1], Shrink::Idle), Err(Error::ConcurrentUse)));
        shrunk(&world, &[1], Shrink::Abort);
        let error = hangs.join().expect("no panic").expect_err("rank 1 never came");
        assert!(matches!(error, Error::Revoked { .. }), "{error}");
    });
}

#[test]
fn whatever_ended_it_those_that_stay_go_on() {
    for end in ["revoke", "abort", "mismatch", "timeout"] {
        let world = local(4);
        let briefly = Duration::from_secs(1);
        match end {
            "revoke" => world[2].revoke("start over"),
            "abort" => world[3].abort("give up"),
            "mismatch" => drop(on(&world, &[0, 1, 2, 3], |comm| {
                let count = if comm.rank() == 2 { 3 } else { 2 };
                comm.all_reduce(&mut vec![1.0f32; count], ReduceOp::Sum).expect_err("they differ")
            })),
            _ => drop(on(&world, &[0, 1, 3], |comm| {
                comm.with_timeout(briefly).barrier().expect_err("rank 2 is away")
            })),
        }
        let left = shrunk(&world, &[2], Shrink::Abort);
        // An abort of the old communicator does not abort the new one, nor does it keep ranks from shrinking again.
        on(&world, &[0, 3], |comm| comm.abort("not any more"));
        on(&left, &[0, 1, 2], |comm| comm.barrier().expect(end));
        shrunk(&world, &[1, 2], Shrink::Abort);
    }
}

#[test]
fn a_part_of_a_revoked_communicator_and_a_shrunk_one_find_the_difference() {
    let world = local(3);
    world[0].revoke("start over");
    let results = on(&world, &[0, 1, 2], |comm| match comm.rank() {
        0 => comm.shrink(&[2], Shrink::Abort).map(drop),
        _ => comm.split(Some(0), 0).map(drop),
    });
    for result in results {
        invalid(result, &["rank 0: shrink without 2 (Shrink::Abort)", ": split"]);
    }
}

#[test]
fn an_abort_ends_a_shrink_of_the_same_rank() {
    let world = local(3);
    std::thread::scope(|threads| {
        let shrink = threads.spawn(|| world[0].shrink(&[2], Shrink::Abort).map(drop));
        // It has ended the operations, or has the communicator already.
        assert!(system::eventually(system::SOON, || world[0].memory_bytes().is_err()));
        std::thread::sleep(Duration::from_millis(100));
        // Another rank's abort does not end them: it may have come first and precede a shrink.
        world[1].abort("for a start");
        std::thread::sleep(Duration::from_millis(100));
        assert!(!shrink.is_finished());
        let began = Instant::now();
        world[0].abort("no more");
        let error = shrink.join().expect("no panic").expect_err("it was aborted");
        assert!(matches!(error, Error::Aborted { rank: 0, .. }), "{error}");
        // A second is the contract.
        let took = began.elapsed();
        assert!(took < Duration::from_secs(1) + stolen(), "{took:?}");
    });
    shrunk(&world, &[2], Shrink::Abort);
}

#[test]
fn memory_is_given_back_and_made_again_many_times() {
    let ranks = local(4);
    for _ in 0..20 {
        on(&ranks, &[0, 1, 2, 3], |comm| {
            collectives::everything(comm, 100).expect("it works");
            comm.suspend().expect("all call it");
        });
    }
}

#[test]
fn a_communicator_grows_and_goes_on_as_it_was() {
    let old = local(2);
    for round in 0..2 {
        let coordinator = round;
        let id = old[coordinator].grow_id().expect("an id");
        let bytes = id.to_bytes();
        std::thread::scope(|threads| {
            for rank in 2..4 {
                threads.spawn(move || {
                    let id = UniqueId::from_bytes(&bytes).expect("the same id");
                    let comm = Communicator::join_with(rank, 4, &id, &options(20.0)).expect("all come");
                    collectives::everything(&comm, 100).expect("it works");
                });
            }
            on(&old, &[0, 1], |comm| {
                let mine = (comm.rank() as usize == coordinator).then_some(&id);
                let more = comm.grow(4, mine).expect("all come");
                assert_eq!((more.rank(), more.size()), (comm.rank(), 4));
                collectives::everything(&more, 100).expect("it works");
                collectives::everything(comm, 100).expect("it works as before");
            });
        });
        // The id was for one use.
        let late = Options::default().join_timeout(Duration::from_secs(2));
        let error = Communicator::join_with(2, 4, &id, &late).expect_err("all are together already");
        assert!(matches!(error, Error::Join { .. }), "{error}");
    }
}

#[test]
fn growing_in_a_wrong_way_is_refused_on_all_ranks() {
    let old = local(3);
    let ids: Vec<UniqueId> = old.iter().map(|comm| comm.grow_id().expect("an id")).collect();
    let id_of =
        |comm: &Communicator, with: &[Rank]| with.contains(&comm.rank()).then(|| &ids[comm.rank() as usize]);
    for size in [0, 2, 3] {
        invalid(old[0].grow(size, Some(&ids[0])), &["of 3", &format!("to {size}")]);
    }
    for result in on(&old, &[0, 1, 2], |comm| comm.grow(4, None)) {
        invalid(result, &["no rank"]);
    }
    for result in on(&old, &[0, 1, 2], |comm| comm.grow(4, id_of(comm, &[0, 2]))) {
        invalid(result, &["ranks 0, 2"]);
    }
    for result in on(&old, &[0, 1, 2], |comm| comm.grow(4 + comm.rank() / 2, id_of(comm, &[1]))) {
        invalid(result, &["rank 0 says 4", "rank 2 says 5"]);
    }
    on(&old, &[0, 1, 2], |comm| comm.barrier().expect("it is as it was"));
}

#[test]
fn new_ranks_that_do_not_come_or_are_here_already_are_named() {
    let options = options(20.0).join_timeout(Duration::from_secs(2));
    let old = Communicator::local_with(2, &options).expect("ranks");
    let id = old[0].grow_id().expect("an id");
    let began = Instant::now();
    for result in on(&old, &[0, 1], |comm| comm.grow(4, (comm.rank() == 0).then_some(&id))) {
        let error = result.expect_err("no rank comes");
        assert!(matches!(&error, Error::MissingRanks { missing, .. } if missing[..] == [2, 3]), "{error}");
    }
    // Two seconds, and one for the verdict to arrive.
    assert!(began.elapsed() < Duration::from_secs(3) + stolen(), "{:?}", began.elapsed());
    let id = old[0].grow_id().expect("an id");
    std::thread::scope(|threads| {
        let intruder = threads.spawn(|| Communicator::join_with(1, 3, &id, &options).map(drop));
        let mut results = on(&old, &[0, 1], |comm| comm.grow(3, (comm.rank() == 0).then_some(&id)).map(drop));
        results.push(intruder.join().expect("no panic"));
        for result in results {
            let error = result.expect_err("two are rank 1");
            assert!(error.to_string().contains("two claim to be rank 1"), "{error}");
        }
    });
    on(&old, &[0, 1], |comm| comm.barrier().expect("it is as it was"));
}

#[test]
fn several_ids_make_one_communicator() {
    let size = 4;
    for count in [1, 2, 4] {
        let ids: Vec<UniqueId> = (0..count).map(|_| UniqueId::create().expect("an id")).collect();
        std::thread::scope(|threads| {
            for rank in 0..size {
                let ids: Vec<UniqueId> =
                    ids.iter().map(|id| UniqueId::from_bytes(&id.to_bytes()).expect("the same")).collect();
                threads.spawn(move || {
                    let comm =
                        Communicator::join_scalable(rank, size, &ids, &options(20.0)).expect("all come");
                    assert_eq!((comm.rank(), comm.size()), (rank, size));
                    collectives::everything(&comm, 100).expect("it works");
                });
            }
        });
    }
}

#[test]
fn several_ids_must_be_the_same_on_all_ranks() {
    let ids: Vec<UniqueId> = (0..4).map(|_| UniqueId::create().expect("an id")).collect();
    invalid(Communicator::join_scalable(0, 2, &[], &options(5.0)), &["0 unique ids"]);
    invalid(Communicator::join_scalable(0, 2, &ids[..3], &options(5.0)), &["3 unique ids", "2 ranks"]);
    let join = |rank: Rank, which: &[usize]| {
        let ids: Vec<UniqueId> = which.iter().map(|id| ids[*id].clone()).collect();
        Communicator::join_scalable(rank, 3, &ids, &options(10.0)).map(drop)
    };
    // Each id serves once.
    for (most, one) in [([0, 1, 2], &[0, 3, 2][..]), ([1, 0, 2], &[1, 0][..])] {
        std::thread::scope(|threads| {
            let lists = [&most[..], &most[..], one];
            let join = &join;
            let calls: Vec<_> =
                (0..).zip(lists).map(|(rank, list)| threads.spawn(move || join(rank, list))).collect();
            for call in calls {
                let error = call.join().expect("no panic").expect_err("they differ");
                let text = error.to_string();
                assert!(matches!(error, Error::Settings { .. }), "{text}");
                assert!(text.contains("unique ids"), "{text}");
            }
        });
    }
}
