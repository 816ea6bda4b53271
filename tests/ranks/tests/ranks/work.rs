//! Operations that go on by themselves: owned buffers, scopes, and work that no thread waits for.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use consort::{Communicator, Error, Options, ReduceOp, Result, TransportChoice};
use consort_tests::job::stolen;
use consort_tests::system::{SOON, eventually};
use consort_tests::{Links, on_ranks, results_of_ranks};

fn options() -> Options {
    Options::default().timeout(Duration::from_secs(20))
}

/// On threads of one process, in memory and over sockets.
fn on_both(size: u32, body: impl Fn(&Communicator) -> Result<()> + Send + Sync) {
    on_ranks(size, Links::Local, &options(), &body);
    on_ranks(size, Links::Joined, &options().transport(TransportChoice::Tcp), &body);
}

fn vector(comm: &Communicator, count: usize) -> Vec<u64> {
    (0..count as u64).map(|index| index + u64::from(comm.rank())).collect()
}

fn assert_sum(comm: &Communicator, buffer: &[u64]) {
    let size = u64::from(comm.size());
    for (index, value) in buffer.iter().enumerate() {
        assert_eq!(*value, index as u64 * size + size * (size - 1) / 2, "element {index}");
    }
}

#[test]
fn several_are_queued_and_waited_for_in_any_order() {
    on_both(3, |comm| {
        let counts = [1, 1000, 70_001, 0, 33];
        let works: Vec<_> = counts
            .iter()
            .map(|count| comm.start_all_reduce(vector(comm, *count), ReduceOp::Sum))
            .collect::<Result<_>>()?;
        let broadcast = comm.start_broadcast(vec![comm.rank(); 100], 2)?;
        let mut gather = vec![0u32; 30];
        gather[comm.rank() as usize * 10..][..10].fill(comm.rank() + 1);
        let gather = comm.start_all_gather(gather)?;
        // A blocking call comes behind everything that was started.
        let mut now = vector(comm, 10);
        comm.all_reduce(&mut now, ReduceOp::Sum)?;
        assert_sum(comm, &now);
        assert!(gather.is_done());
        for (work, count) in works.into_iter().zip(counts).rev() {
            let buffer = work.wait()?;
            assert_eq!(buffer.len(), count);
            assert_sum(comm, &buffer);
        }
        assert_eq!(broadcast.wait()?, [2; 100]);
        let gathered = gather.wait()?;
        assert!(gathered.iter().enumerate().all(|(index, value)| *value as usize == index / 10 + 1));
        Ok(())
    });
}

#[test]
fn it_goes_on_when_no_caller_waits() {
    on_both(3, |comm| {
        comm.barrier()?;
        let work = comm.start_all_reduce(vector(comm, 50_000), ReduceOp::Sum)?;
        assert!(eventually(SOON, || work.is_done()), "the control thread does not drive it");
        assert_sum(comm, &work.wait()?);
        Ok(())
    });
}

#[test]
fn dropped_and_forgotten_works_are_finished_all_the_same() {
    on_both(2, |comm| {
        for round in 0..20 {
            drop(comm.start_all_reduce(vector(comm, 10_000), ReduceOp::Sum)?);
            std::mem::forget(comm.start_all_reduce(vector(comm, 10_000), ReduceOp::Sum)?);
            if round % 5 == 0 {
                comm.barrier()?;
            }
        }
        // The communicator is dropped with some of them under way.
        Ok(())
    });
}

#[test]
fn another_thread_waits() {
    on_both(2, |comm| {
        let work = comm.start_all_reduce(vector(comm, 1000), ReduceOp::Sum)?;
        let buffer = std::thread::scope(|threads| threads.spawn(|| work.wait()).join().expect("no panic"))?;
        assert_sum(comm, &buffer);
        Ok(())
    });
}

#[test]
fn a_work_outlives_its_communicator() {
    let works = results_of_ranks(2, Links::Local, &options(), |comm| {
        let work = comm.start_all_reduce(vec![1u8; 100], ReduceOp::Sum).expect("started");
        comm.barrier().expect("here");
        work
    });
    for work in works {
        assert_eq!(work.wait().expect("it was over"), [2; 100]);
    }
}

#[test]
fn a_failed_work_gives_its_buffer_back() {
    let started = Barrier::new(2);
    let results = results_of_ranks(2, Links::Local, &options(), |comm| {
        if comm.rank() == 1 {
            started.wait();
            std::thread::sleep(Duration::from_millis(100));
            comm.abort("enough");
            return (Vec::new(), comm.status());
        }
        let first = comm.start_all_reduce(vec![7u8; 100], ReduceOp::Sum).expect("started");
        let second = comm.start_all_reduce(vec![8u8; 10], ReduceOp::Sum).expect("started");
        started.wait();
        let (buffer, result) = first.wait_with_buffer();
        assert_eq!(buffer.len(), 100);
        assert!(matches!(second.wait(), Err(Error::Aborted { rank: 1, .. })));
        (buffer, result)
    });
    for (_, result) in results {
        assert!(matches!(result, Err(Error::Aborted { rank: 1, .. })), "{result:?}");
    }
}

#[test]
fn a_scope_lends_buffers() {
    on_both(3, |comm| {
        let (mut one, mut two) = (vector(comm, 10), vector(comm, 70_000));
        let (input, mut gathered) = (vec![comm.rank(); 5], vec![9u32; 15]);
        let (long, mut block) = (vector(comm, 30), vec![0u64; 10]);
        let value = comm.scope(|scope| {
            let first = scope.all_reduce(&mut one, ReduceOp::Sum)?;
            scope.all_reduce(&mut two, ReduceOp::Sum)?;
            scope.all_gather(&input, &mut gathered)?;
            scope.reduce_scatter(&long, &mut block, ReduceOp::Sum)?;
            first.wait()?;
            assert!(first.is_done());
            Ok(42)
        })?;
        assert_eq!(value, 42);
        assert_sum(comm, &one);
        assert_sum(comm, &two);
        assert_eq!(gathered, [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2]);
        assert!(
            block.iter().enumerate().all(|(at, v)| *v == 3 * (u64::from(comm.rank()) * 10 + at as u64) + 3)
        );
        Ok(())
    });
}

#[test]
fn an_error_or_a_panic_inside_a_scope_still_waits_for_what_was_started() {
    on_both(2, |comm| {
        let (mut one, mut two) = (vector(comm, 10_000), vector(comm, 10_000));
        let failed: Result<()> = comm.scope(|scope| {
            scope.all_reduce(&mut one, ReduceOp::Sum)?;
            Err(Error::ConcurrentUse)
        });
        assert!(matches!(failed, Err(Error::ConcurrentUse)), "{failed:?}");
        assert_sum(comm, &one);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            comm.scope::<()>(|scope| {
                scope.all_reduce(&mut two, ReduceOp::Sum)?;
                std::panic::resume_unwind(Box::new("on purpose"))
            })
        }));
        assert!(panicked.is_err());
        assert_sum(comm, &two);
        comm.barrier()
    });
}

#[test]
fn a_scope_returns_the_error_of_an_operation_without_a_wait() {
    let results = results_of_ranks(2, Links::Local, &options(), |comm| {
        comm.barrier().expect("here");
        let mut buffer = [1u8; 100];
        if comm.rank() == 0 {
            let hurried = comm.with_timeout(Duration::from_millis(500));
            hurried.scope(|scope| scope.all_reduce(&mut buffer, ReduceOp::Sum).map(drop))
        } else {
            assert!(eventually(SOON, || comm.status().is_err()));
            comm.barrier()
        }
    });
    for result in results {
        assert!(matches!(result, Err(Error::Timeout { .. })), "{result:?}");
    }
}

#[test]
fn dropping_a_communicator_with_work_that_cannot_end_is_bounded() {
    let options = Options::default().timeout(Duration::from_millis(300));
    let mut ranks = Communicator::local_with(2, &options).expect("two ranks");
    let alone = ranks.pop().expect("a rank");
    let work = alone.start_all_reduce(vec![1u8; 10], ReduceOp::Sum).expect("started");
    let began = Instant::now();
    drop(alone);
    assert!(began.elapsed() < Duration::from_secs(1) + stolen(), "{:?}", began.elapsed());
    let (buffer, result) = work.wait_with_buffer();
    assert_eq!(buffer.len(), 10);
    assert!(matches!(result, Err(Error::Timeout { .. } | Error::Aborted { .. })), "{result:?}");
}

#[test]
fn split_colours_keys_and_none() {
    on_ranks(5, Links::Local, &options(), |comm| {
        let rank = comm.rank();
        let color = (rank != 4).then_some(rank / 2);
        let Some(pair) = comm.split(color, -i64::from(rank))? else {
            assert_eq!(rank, 4);
            return comm.barrier();
        };
        assert_eq!(color.map(|_| (pair.size(), pair.rank())), Some((2, 1 - rank % 2)));
        let lone = pair.split(Some(pair.rank()), 0)?.expect("a colour");
        assert_eq!((lone.size(), lone.rank()), (1, 0));
        for _ in 0..3 {
            let mut value = [rank];
            pair.all_reduce(&mut value, ReduceOp::Sum)?;
            assert_eq!(value[0], rank / 2 * 4 + 1);
            lone.all_reduce(&mut value, ReduceOp::Sum)?;
        }
        // A child may outlive its parent's calls, and dies alone.
        drop(lone);
        pair.abort("only this pair");
        assert!(pair.status().is_err());
        comm.barrier()
    });
}

#[test]
fn communicators_come_and_go_without_end() {
    // More than the number of messages that are kept for future communicators: those to closed ones must not count.
    on_ranks(2, Links::Local, &Options::default(), |comm| {
        for _ in 0..4500 {
            let child = comm.split(Some(0), 0)?.expect("a colour");
            if comm.rank() == 0 {
                drop(child);
                comm.barrier()?;
            } else {
                comm.barrier()?;
                drop(child);
            }
        }
        let child = comm.split(Some(0), 0)?.expect("a colour");
        let mut buffer = [1u32];
        child.all_reduce(&mut buffer, ReduceOp::Sum)?;
        assert_eq!(buffer, [2]);
        Ok(())
    });
}

#[test]
fn a_timeout_may_be_as_good_as_never() {
    let options = Options::default().timeout(Duration::MAX).join_timeout(Duration::MAX);
    on_ranks(2, Links::Joined, &options, |comm| {
        let work = comm.start_all_reduce(vec![1u32; 10], ReduceOp::Sum)?;
        if comm.rank() == 1 {
            std::thread::sleep(Duration::from_millis(200));
        }
        assert_eq!(work.wait()?, [2; 10]);
        Ok(())
    });
    let options = Options::default().timeout(Duration::ZERO);
    assert!(matches!(Communicator::local_with(1, &options), Err(Error::InvalidArgument { .. })));
}

#[test]
fn a_difference_far_back_in_the_queue_is_found() {
    let results = results_of_ranks(2, Links::Local, &Options::default(), |comm| {
        // On different sides of the limit between two algorithms, so that they use no mailbox together.
        let first = if comm.rank() == 0 { 4096 } else { 4097 };
        let counts = std::iter::once(first).chain(std::iter::repeat_n(8, 40));
        let works: Vec<_> =
            counts.map(|count| comm.start_all_reduce(vec![1f32; count], ReduceOp::Sum)).collect();
        works.into_iter().next().expect("one").and_then(|work| work.wait()).map(drop)
    });
    for result in results {
        let text = result.expect_err("the first differs").to_string();
        assert!(text.contains("#1:") && text.contains("4096") && text.contains("4097"), "{text}");
    }
}

#[test]
fn a_peer_that_leaves_a_full_mailbox_is_named() {
    let results = results_of_ranks(2, Links::Local, &Options::default(), |comm| {
        if comm.rank() == 1 {
            // Makes the link, then leaves with a mailbox full of data that no rank has received.
            let mut one = [0u8];
            comm.receive(&mut one, 0)?;
            std::thread::sleep(Duration::from_millis(100));
            return Ok(());
        }
        comm.send(&[1u8], 1)?;
        for _ in 0..4 {
            comm.send(&[7u8; 1000], 1)?;
        }
        comm.send(&vec![7u8; 4 << 20], 1)
    });
    match &results[0] {
        Err(Error::PeerLeft { rank: 1, operation, .. }) => assert_eq!(operation.name, "send"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_message_of_one_who_leaves_at_once_arrives() {
    for links in [Links::Local, Links::Joined] {
        for round in 0..100u64 {
            on_ranks(2, links, &Options::default(), |comm| {
                if comm.rank() == 1 {
                    return comm.send(&[round], 0);
                }
                let mut message = [u64::MAX];
                comm.receive(&mut message, 1)?;
                assert_eq!(message, [round]);
                Ok(())
            });
        }
    }
}

/// All under way together, on buffers that the calls own and on those that a scope has; short ones, and some that go in slices.
#[test]
fn collectives_of_many_kinds_are_started() {
    for count in [3, 70_001] {
        on_both(4, |comm| started_and_waited_for(comm, count));
    }
}

fn started_and_waited_for(comm: &Communicator, count: usize) -> Result<()> {
    let me = comm.rank();
    let all = |value: u32| vec![value; count];
    let blocks =
        |of: &dyn Fn(usize) -> u32| (0..4).flat_map(|block| vec![of(block); count]).collect::<Vec<u32>>();
    let at = |root: u32, output: Vec<u32>| if me == root { output } else { Vec::new() };
    let numbers = blocks(&|block| block as u32);
    let reduced = comm.start_reduce(all(me), ReduceOp::Sum, 1)?;
    let largest = comm.start_reduce_into(all(me), at(2, all(9)), ReduceOp::Max, 2)?;
    let summed = comm.start_all_reduce_into(all(me), all(9), ReduceOp::Sum)?;
    let sent = comm.start_broadcast_into(at(3, all(3)), all(9), 3)?;
    let mut shared = consort::alloc::<u32>(4 * count).expect("memory");
    shared.fill(9);
    let gathered = comm.start_all_gather_into(all(me), shared)?;
    let at_root = comm.start_gather(all(me), at(1, all(9).repeat(4)), 1)?;
    let from_root = comm.start_scatter(at(2, blocks(&|block| 20 + block as u32)), all(9), 2)?;
    // Two blocks, one for each group of two ranks.
    let tokens: Vec<u32> = (0..2).flat_map(|group| vec![10 * (me / 2) + group; 2 * count]).collect();
    let of_groups = comm.start_all_to_all_replicated(tokens, all(9).repeat(4), 2)?;

    assert!(reduced.wait()? == all(if me == 1 { 6 } else { me }));
    assert!(largest.wait()?.1 == at(2, all(3)));
    assert!(summed.wait()? == (all(me), all(6)));
    assert!(sent.wait()?.1 == all(3));
    assert!(gathered.wait()?.1[..] == numbers);
    assert!(at_root.wait()?.1 == at(1, numbers));
    assert!(from_root.wait()?.1 == all(20 + me));
    let of_groups = of_groups.wait()?.1;
    assert!(
        of_groups
            .chunks(2 * count)
            .zip(0..)
            .all(|(block, group)| block == vec![10 * group + me / 2; 2 * count])
    );

    let (own, [mut reduced, mut largest, mut summed, mut sent]) = (all(me), [me, 9, 9, 9].map(all));
    comm.scope(|scope| {
        scope.reduce(&mut reduced, ReduceOp::Sum, 1)?;
        scope.reduce_into(&own, &mut largest, ReduceOp::Max, 2)?;
        scope.all_reduce_into(&own, &mut summed, ReduceOp::Sum)?;
        scope.broadcast_into(&own, &mut sent, 3)?.wait()
    })?;
    assert!(reduced == all(if me == 1 { 6 } else { me }));
    assert!(largest == all(if me == 2 { 3 } else { 9 }));
    assert!((summed, sent) == (all(6), all(3)));
    Ok(())
}
