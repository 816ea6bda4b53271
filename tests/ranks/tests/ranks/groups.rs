//! Groups: calls that need each other, on one thread or on many, on one communicator or several, and their end after
//! a fault.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use consort::{Communicator, Error, Options, ReduceOp, Result, TransportChoice, UniqueId, group};
use consort_tests::job::{Start, alone};
use consort_tests::system::{SOON, eventually};
use consort_tests::{Links, await_call, groups, on_ranks, results_of_ranks};
use nix::sys::signal::Signal;

use crate::RANK;

fn options() -> Options {
    Options::default().timeout(Duration::from_secs(20))
}

#[test]
fn messages_and_collectives_together() {
    for size in [1, 2, 3, 4, 5, 8] {
        on_ranks(size, Links::Local, &options(), |comm| {
            for (count, repeats) in [(1, 1), (1000, 2), (100_001, 3), (0, 6)] {
                groups::mixed(comm, count, repeats)?;
                groups::ring(comm, count)?;
            }
            Ok(())
        });
    }
}

#[test]
fn messages_and_collectives_together_over_tcp() {
    on_ranks(3, Links::Joined, &options().transport(TransportChoice::Tcp), |comm| {
        groups::mixed(comm, 200_003, 3)?;
        groups::ring(comm, 1_000_000)
    });
}

#[test]
fn groups_among_processes() {
    let _alone = alone();
    for (size, transport) in [(2, "shm"), (3, "tcp"), (4, "shm")] {
        let start = Start::new(RANK, "groups", size).env("CONSORT_TRANSPORT", transport);
        start.env("CONSORT_TIMEOUT", 30).go().all_end_well();
    }
}

#[test]
fn more_messages_than_slots_between_two_ranks() {
    on_ranks(2, Links::Local, &options(), |comm| {
        let peer = 1 - comm.rank();
        let sent: Vec<Vec<u32>> = (0..50u32).map(|nth| vec![nth; 1 + nth as usize * 3000]).collect();
        let mut received: Vec<Vec<u32>> = sent.iter().map(|message| vec![0; message.len()]).collect();
        for _ in 0..3 {
            group(|group| {
                sent.iter().try_for_each(|message| group.send(comm, message, peer))?;
                received.iter_mut().try_for_each(|message| group.receive(comm, message, peer))
            })?;
            assert!(sent == received);
            received.iter_mut().for_each(|message| message.fill(0));
        }
        Ok(())
    });
}

#[test]
fn many_ranks_of_one_thread() {
    let ranks = Communicator::local_with(8, &options()).expect("ranks");
    for count in [1, 1000, 300_000] {
        let mut buffers: Vec<Vec<i64>> = (0..8).map(|rank| vec![rank; count]).collect();
        let mut gathered = vec![vec![0i64; 8]; 8];
        let own: Vec<[i64; 1]> = (0..8).map(|rank| [rank]).collect();
        let mut last = [-1i64];
        let value = [42i64];
        group(|group| {
            for ((comm, buffer), (own, all)) in
                ranks.iter().zip(&mut buffers).zip(own.iter().zip(&mut gathered))
            {
                group.all_reduce(comm, buffer, ReduceOp::Sum)?;
                group.all_gather(comm, own, all)?;
            }
            group.send(&ranks[0], &value, 7)?;
            group.receive(&ranks[7], &mut last, 0)
        })
        .expect("all ranks are in it");
        assert!(buffers.iter().flatten().all(|value| *value == 28));
        assert!(gathered.iter().all(|all| *all == [0, 1, 2, 3, 4, 5, 6, 7]));
        assert_eq!(last, [42]);
    }
}

#[test]
fn a_group_waits_for_what_was_started_before() {
    let ranks = Communicator::local_with(3, &options()).expect("ranks");
    let started: Vec<_> = ranks
        .iter()
        .map(|comm| comm.start_all_reduce(vec![1u64; 300_000], ReduceOp::Sum).expect("it starts"))
        .collect();
    let mut values = [[1u32], [2], [3]];
    group(|group| {
        for (comm, value) in ranks.iter().zip(&mut values) {
            group.all_reduce(comm, value, ReduceOp::Prod)?;
        }
        Ok(())
    })
    .expect("all ranks are in it");
    assert_eq!(values, [[6], [6], [6]]);
    for work in started {
        assert!(work.is_done());
        assert!(work.wait().expect("it finished").iter().all(|value| *value == 3));
    }
}

#[test]
fn two_communicators_in_either_order() {
    let id = UniqueId::create().expect("an id");
    on_ranks(4, Links::Local, &options(), |one| {
        let other = Communicator::join_with(one.rank(), 4, &id, &options())?;
        [1, 5000, 400_000].into_iter().try_for_each(|count| groups::crossing(one, &other, count))
    });
}

#[test]
fn a_group_that_is_refused_starts_nothing() {
    on_ranks(2, Links::Local, &options(), |comm| {
        let mut buffer = [1u32; 4];
        let result = group(|group| {
            group.all_reduce(comm, &mut buffer, ReduceOp::Sum)?;
            group.send(comm, &[1u32], 9)
        });
        assert!(matches!(result, Err(Error::InvalidArgument { .. })), "{result:?}");
        // A body that ignores an error.
        let result = group(|group| {
            let _ = group.send(comm, &[1u32], 9);
            group.all_reduce(comm, &mut buffer, ReduceOp::Sum)
        });
        assert!(result.is_err_and(|error| error.to_string().contains("rank 9 does not exist")));
        let result: Result<()> = group(|group| {
            group.all_reduce(comm, &mut buffer, ReduceOp::Sum)?;
            Err(Error::ConcurrentUse)
        });
        assert!(matches!(result, Err(Error::ConcurrentUse)), "{result:?}");
        let me = comm.rank();
        let result = group(|group| group.send(comm, &[1u32], me));
        assert!(result.is_err_and(|error| error.to_string().contains("both ends")));
        let mut short = [0u32; 1];
        let result = group(|group| {
            group.send(comm, &[1u32, 2], me)?;
            group.receive(comm, &mut short, me)
        });
        assert!(result.is_err_and(|error| error.to_string().contains("8 bytes cannot be received into 4")));
        let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            group::<()>(|group| {
                group.all_reduce(comm, &mut buffer, ReduceOp::Sum)?;
                panic!("as a program's defect would")
            })
        }));
        assert!(panics.is_err() && buffer == [1; 4]);
        comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
        assert_eq!(buffer, [2; 4]);
        assert_eq!(group(|_| Ok(5))?, 5);
        Ok(())
    });
}

#[test]
fn a_group_within_a_group_runs_first() {
    on_ranks(2, Links::Local, &options(), |comm| {
        let (mut outer, mut inner) = ([1u32], [10u32]);
        group(|group| {
            group.all_reduce(comm, &mut outer, ReduceOp::Sum)?;
            consort::group(|within| within.all_reduce(comm, &mut inner, ReduceOp::Sum))?;
            assert_eq!(inner, [20]);
            Ok(())
        })?;
        assert_eq!(outer, [2]);
        Ok(())
    });
}

#[test]
fn a_communicator_that_another_thread_uses() {
    let gate = Barrier::new(2);
    let ranks = Communicator::local_with(2, &options()).expect("ranks");
    let free = Communicator::local_with(1, &options()).expect("a rank");
    std::thread::scope(|threads| {
        let first = threads.spawn(|| ranks[0].barrier());
        assert!(eventually(SOON, || ranks[0].memory_bytes().is_err()), "it does not begin");
        let (mut one, mut other) = ([1u8], [2u8]);
        let result = group(|group| {
            group.all_reduce(&free[0], &mut one, ReduceOp::Sum)?;
            group.all_reduce(&ranks[0], &mut other, ReduceOp::Sum)
        });
        assert!(matches!(result, Err(Error::ConcurrentUse)), "{result:?}");
        threads.spawn(|| {
            gate.wait();
            ranks[1].barrier().expect("both are there");
        });
        gate.wait();
        first.join().expect("no panic").expect("both are there");
    });
    free[0].barrier().expect("it was given back");
}

#[test]
fn a_message_that_does_not_match_is_named() {
    let _alone = alone();
    let results = results_of_ranks(3, Links::Local, &options(), |comm| {
        let (rank, peer) = (comm.rank(), (comm.rank() + 1) % 3);
        let before = (comm.rank() + 2) % 3;
        let mut received = [vec![0.0f32; 8], vec![0.0; if rank == 1 { 21 } else { 20 }], vec![0.0; 8]];
        let sent = [vec![1.0f32; 8], vec![1.0; 20], vec![1.0; 8]];
        comm.barrier()?;
        group(|group| {
            sent.iter().try_for_each(|message| group.send(comm, message, peer))?;
            received.iter_mut().try_for_each(|message| group.receive(comm, message, before))
        })?;
        comm.barrier()
    });
    for result in results {
        let Err(Error::Mismatch { sequence, difference }) = result else { panic!("{result:?}") };
        assert_eq!(sequence, 2);
        assert_eq!(difference, "rank 0: send of 20 float to 1; rank 1: receive of 21 float from 0");
    }
}

#[test]
fn a_report_names_the_call_of_a_group_that_does_not_go_on() {
    let _alone = alone();
    let results = results_of_ranks(3, Links::Local, &options(), |comm| {
        comm.barrier()?;
        let (mut sum, mut from) = ([1.0f32; 4], [0u8; 9]);
        // Its deadline passes long before that of the others, who are in a barrier.
        let hurried = comm.with_timeout(Duration::from_millis(1500));
        group(|group| {
            group.all_reduce(comm, &mut sum, ReduceOp::Sum)?;
            if comm.rank() == 2 { group.receive(&hurried, &mut from, 0) } else { Ok(()) }
        })?;
        comm.barrier()
    });
    for result in results {
        let Err(Error::Timeout { operation, verdict, .. }) = result else { panic!("{result:?}") };
        assert_eq!(operation.to_string(), "receive #1");
        // The others wait in the barrier for rank 2, which a report may name instead.
        let words = ["waits in receive #1 for rank 0", "has not called send #1 to rank 2"];
        assert!(words.iter().any(|words| verdict.contains(words)), "{verdict}");
    }
}

#[test]
fn a_failure_of_one_communicator_ends_the_group() {
    let _alone = alone();
    let id = UniqueId::create().expect("an id");
    let results = results_of_ranks(3, Links::Local, &options(), |one| {
        let other = Communicator::join_with(one.rank(), 3, &id, &options()).expect("all join");
        one.barrier().expect("all are here");
        if one.rank() == 1 {
            await_call(one, &[0], "all_reduce", 2);
            one.abort("enough");
        }
        if one.rank() != 0 {
            // They are in neither.
            assert!(eventually(SOON, || other.status().is_err()), "the other one goes on");
            return (other.barrier(), Duration::ZERO);
        }
        let began = Instant::now();
        let (mut first, mut second) = ([1u32; 100], [1u32; 100]);
        let result = group(|group| {
            group.all_reduce(one, &mut first, ReduceOp::Sum)?;
            group.all_reduce(&other, &mut second, ReduceOp::Sum)
        });
        (result, began.elapsed())
    });
    let (result, took) = &results[0];
    assert!(matches!(result, Err(Error::Aborted { rank: 1, .. })), "{result:?}");
    // No rank waited for the deadline.
    assert!(*took < Duration::from_secs(10), "{took:?}");
    for (result, _) in &results[1..] {
        let text = result.as_ref().err().map(ToString::to_string).unwrap_or_default();
        assert!(text.contains("aborted by rank 0: another communicator of the same group failed"), "{text}");
    }
}

#[test]
fn a_rank_that_dies_in_a_group() {
    let _alone = alone();
    for (transport, how) in [("shm", "kill"), ("tcp", "kill"), ("shm", "abort")] {
        let start = Start::new(RANK, "groups", 3).with("how", how).env("CONSORT_TRANSPORT", transport);
        let mut job = start.env("CONSORT_TIMEOUT", 20).go();
        (0..3).for_each(|rank| drop(job.line(rank, "begin")));
        if how == "kill" {
            job.signal(1, Signal::SIGKILL);
        }
        for rank in [0, 2] {
            let text = job.failure(rank, if how == "kill" { "PeerLost" } else { "Aborted" });
            assert!(text.contains("rank 1"), "{transport} {how}: {text}");
        }
        for rank in [0, 2] {
            job.say(rank, "go");
            assert!(job.end(rank).success(), "{}", job.output());
        }
    }
}
