//! Failures among ranks of one process: those that other tests provoke between processes and under a seed, and those
//! that only appear with many ranks or many threads in one.

use std::time::{Duration, Instant};

use consort::{Communicator, Error, Guilty, Options, ReduceOp};
use consort_tests::job::stolen;
use consort_tests::system;

fn options(seconds: f64) -> Options {
    Options::default().timeout(Duration::from_secs_f64(seconds))
}

#[test]
fn many_ranks_of_one_process_fail_without_nesting() {
    // A recursion over ranks would be as deep in the stack as there are ranks.
    let ranks = Communicator::local(300).expect("ranks");
    std::thread::scope(|threads| {
        let small = std::thread::Builder::new().stack_size(256 << 10);
        let abort = small.spawn_scoped(threads, || ranks[7].abort("enough")).expect("a thread");
        abort.join().expect("no overflow");
    });
    for comm in &ranks {
        let error = comm.barrier().expect_err("it was aborted");
        assert!(matches!(error, Error::Aborted { rank: 7, .. }), "{error}");
    }
}

#[test]
fn an_abort_ends_a_split_after_a_revocation() {
    let ranks = Communicator::local_with(2, &options(30.0)).expect("ranks");
    ranks[0].revoke("start over");
    std::thread::scope(|threads| {
        let split = threads.spawn(|| (ranks[0].split(Some(0), 0).map(drop), Instant::now()));
        assert!(system::eventually(system::SOON, || ranks[0].memory_bytes().is_err()), "it does not begin");
        let aborted = Instant::now();
        ranks[1].abort("not any more");
        let (result, at) = split.join().expect("no panic");
        assert!(matches!(result, Err(Error::Aborted { rank: 1, .. })), "{result:?}");
        // A second is the contract.
        let took = at.saturating_duration_since(aborted);
        assert!(took < Duration::from_secs(1) + stolen(), "{took:?}");
    });
}

#[test]
fn a_revoked_communicator_can_be_split() {
    let ranks = Communicator::local_with(4, &options(10.0)).expect("ranks");
    // A rank may leave a barrier before the others do, and they must not be revoked in it.
    let out = &std::sync::Barrier::new(4);
    std::thread::scope(|threads| {
        for comm in &ranks {
            threads.spawn(move || {
                comm.barrier().expect("all are here");
                out.wait();
                if comm.rank() == 2 {
                    comm.revoke("a better one is coming");
                }
                let error = loop {
                    if let Err(error) = comm.barrier() {
                        break error;
                    }
                };
                assert!(matches!(error, Error::Revoked { rank: 2, .. }), "{error}");
                let part = comm.split(Some(comm.rank() % 2), 0).expect("all split").expect("a colour");
                let mut sum = [comm.rank()];
                part.all_reduce(&mut sum, ReduceOp::Sum).expect("it works");
                assert_eq!(sum[0], if comm.rank() % 2 == 0 { 2 } else { 4 });
            });
        }
    });
}

#[test]
fn a_deadline_of_a_call_covers_what_is_queued_before_it() {
    let ranks = Communicator::local_with(2, &options(60.0)).expect("ranks");
    let started = ranks[0].start_all_reduce(vec![1.0f32; 1000], ReduceOp::Sum).expect("started");
    let begin = Instant::now();
    let error = ranks[0].with_timeout(Duration::from_millis(400)).barrier().expect_err("rank 1 is away");
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert!(begin.elapsed() < Duration::from_millis(400) + stolen(), "{:?}", begin.elapsed());
    assert!(started.wait().is_err());
}

#[test]
fn messages_are_compared_from_the_first_that_differs() {
    // (elements sent, elements received) one after the other; the first difference must be named.
    for (messages, named) in
        [(vec![(100, 100), (100, 0), (50, 50)], "#2"), (vec![(0, 100)], "#1"), (vec![(7, 7), (7, 8)], "#2")]
    {
        let ranks = Communicator::local_with(2, &options(20.0)).expect("ranks");
        let run = |comm: &Communicator| -> consort::Result<()> {
            for (sent, received) in &messages {
                if comm.rank() == 0 {
                    comm.send(&vec![1.5f32; *sent], 1)?;
                } else {
                    comm.receive(&mut vec![0f32; *received], 0)?;
                }
            }
            comm.barrier()
        };
        let run = &run;
        let errors: Vec<Option<String>> = std::thread::scope(|threads| {
            let calls: Vec<_> = ranks.iter().map(|comm| threads.spawn(move || run(comm).err())).collect();
            calls.into_iter().map(|call| call.join().expect("no panic").map(|e| e.to_string())).collect()
        });
        let texts: Vec<&String> = errors.iter().flatten().collect();
        assert!(!texts.is_empty(), "{messages:?}");
        for text in texts {
            assert!(text.contains("disagree") && text.contains(named), "{messages:?}: {text}");
        }
    }
}

#[test]
fn types_of_messages_are_compared() {
    let ranks = Communicator::local_with(2, &options(20.0)).expect("ranks");
    std::thread::scope(|threads| {
        threads.spawn(|| drop(ranks[0].send(&[1.0f32; 10], 1).and_then(|()| ranks[0].barrier())));
        let error = ranks[1].receive(&mut [0i32; 10], 0).expect_err("another type was sent");
        let text = error.to_string();
        assert!(matches!(error, Error::Mismatch { .. }), "{text}");
        assert!(text.contains("float") && text.contains("int32"), "{text}");
    });
}

#[test]
fn a_thread_that_serves_another_communicator_is_not_to_blame() {
    let world = Communicator::local_with(2, &options(20.0)).expect("ranks");
    let split = |comm: &Communicator| comm.split(Some(0), 0).expect("all split").expect("a colour");
    let split = &split;
    let other: Vec<Communicator> = std::thread::scope(|threads| {
        let parts: Vec<_> = world.iter().map(|comm| threads.spawn(move || split(comm))).collect();
        parts.into_iter().map(|part| part.join().expect("no panic")).collect()
    });
    // Rank 1's main thread has made its call, and is away from then on.
    std::thread::scope(|both| {
        both.spawn(|| world[0].barrier().expect("both"));
        both.spawn(|| world[1].barrier().expect("both"));
    });
    std::thread::scope(|threads| {
        // Its service thread waits for rank 0 elsewhere.
        threads.spawn(|| {
            let mut word = [0u8; 1];
            other[1].receive(&mut word, 0).expect("it comes");
        });
        let waits = threads.spawn(|| world[0].with_timeout(Duration::from_secs(1)).barrier());
        let error = waits.join().expect("no panic").expect_err("rank 1 is away");
        let report = world[0].report().expect("a report");
        assert_eq!(report.guilty, Guilty::Ranks(vec![1]), "{error}\n{report}");
        other[0].send(&[1u8], 1).expect("the service thread is there");
    });
}
