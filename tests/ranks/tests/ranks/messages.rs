//! Messages that were started, beside each other, beside collectives, and before calls that wait.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use consort::{Communicator, Error, Options, ReduceOp, Result, TransportChoice, group};
use consort_tests::job::stolen;
use consort_tests::system::{Random, SOON, eventually};
use consort_tests::{Links, on_ranks, results_of_ranks};

/// From an empty message to one of several slots of every transport.
const COUNTS: [usize; 5] = [0, 1, 100, 5_000, 600_000];

fn options() -> Options {
    Options::default().timeout(Duration::from_secs(30))
}

fn over_sockets() -> Options {
    options().transport(TransportChoice::Tcp)
}

fn on_both(size: u32, body: impl Fn(&Communicator) -> Result<()> + Send + Sync) {
    on_ranks(size, Links::Local, &options(), &body);
    on_ranks(size, Links::Joined, &over_sockets(), &body);
}

/// What rank `from` sends as its `nth` message.
fn message(from: u32, nth: usize, count: usize) -> Vec<u32> {
    (0..count as u32).map(|at| from << 28 | (nth as u32) << 20 | at & 0xf_ffff).collect()
}

#[test]
fn two_ranks_both_send_first() {
    on_both(2, |comm| {
        let (me, other) = (comm.rank(), 1 - comm.rank());
        let sent: Vec<_> = COUNTS.iter().enumerate().map(|(at, count)| message(me, at, *count)).collect();
        let mut received: Vec<_> = COUNTS.iter().map(|count| vec![9u32; *count]).collect();
        comm.scope(|scope| {
            for sent in &sent {
                scope.send(sent, other)?;
            }
            for received in &mut received {
                scope.receive(received, other)?;
            }
            Ok(())
        })?;
        for (at, received) in received.iter().enumerate() {
            assert!(*received == message(other, at, COUNTS[at]), "message {at} of {}", COUNTS[at]);
        }
        Ok(())
    });
}

#[test]
fn an_exchange_is_a_send_and_a_receive_that_need_not_begin_together() {
    on_both(3, |comm| {
        let (me, size) = (comm.rank(), comm.size());
        let (next, before) = ((me + 1) % size, (me + size - 1) % size);
        for count in COUNTS {
            let sent = [message(me, 0, count), message(me, 1, count)];
            let mut received = [vec![0; count], vec![0; count]];
            let [first, second] = &mut received;
            comm.scope(|scope| {
                // The receive of the exchange is that of the send before it.
                scope.send(&sent[0], next)?;
                let both = scope.exchange(&sent[1], next, first, before)?;
                scope.receive(second, before)?;
                both.wait()
            })?;
            assert!(received == [message(before, 0, count), message(before, 1, count)], "of {count}");
            let (own, mut same) = (message(me, 2, count), vec![0; count]);
            comm.scope(|scope| scope.exchange(&own, me, &mut same, me)?.wait())?;
            assert!(own == same);
        }
        Ok(())
    });
}

/// Rank 1 sends once it is out of a collective, which rank 0 calls behind the receive.
#[test]
fn a_collective_does_not_wait_for_a_message_that_was_started_before_it() {
    on_both(2, |comm| {
        for count in COUNTS {
            let (mut sum, mut received) = (vec![comm.rank(); 5_000], vec![0; count]);
            let sent = message(1, 3, count);
            if comm.rank() == 1 {
                comm.all_reduce(&mut sum, ReduceOp::Sum)?;
                comm.send(&sent, 0)?;
                comm.barrier()?;
            } else {
                comm.scope(|scope| {
                    let message = scope.receive(&mut received, 1)?;
                    comm.all_reduce(&mut sum, ReduceOp::Sum)?;
                    message.wait()?;
                    comm.barrier()
                })?;
                assert!(received == sent, "of {count}");
            }
            assert!(sum.iter().all(|value| *value == 1));
        }
        Ok(())
    });
}

/// The same where the collective was started too, and in a group with a message the other way.
#[test]
fn what_was_started_goes_on_beside_collectives_and_groups() {
    on_both(2, |comm| {
        let (me, other) = (comm.rank(), 1 - comm.rank());
        for count in COUNTS {
            let (mut sum, mut received) = (vec![me; 5_000], vec![0; count]);
            let (mut again, mut answer) = (vec![me; 100], vec![0; count]);
            let (sent, answered) = (message(me, 4, count), message(me, 5, count));
            comm.scope(|scope| {
                if me == 0 {
                    scope.receive(&mut received, other)?;
                }
                scope.all_reduce(&mut sum, ReduceOp::Sum)?.wait()?;
                if me == 0 {
                    return group(|group| {
                        group.all_reduce(comm, &mut again, ReduceOp::Sum)?;
                        group.send(comm, &answered, other)
                    });
                }
                scope.receive(&mut answer, other)?;
                group(|group| group.all_reduce(comm, &mut again, ReduceOp::Sum))?;
                comm.send(&sent, other)
            })?;
            let got = if me == 0 { (received, 4) } else { (answer, 5) };
            assert!(got.0 == message(other, got.1, count), "of {count}");
            assert!(sum.iter().chain(&again).all(|value| *value == 1));
        }
        Ok(())
    });
}

#[test]
fn calls_that_wait_keep_the_order_of_a_direction() {
    on_both(2, |comm| {
        let (me, other) = (comm.rank(), 1 - comm.rank());
        for count in COUNTS {
            let sent: Vec<_> = (0..4).map(|nth| message(me, nth, count)).collect();
            let mut received = vec![vec![0; count]; 4];
            let [first, second, third, fourth] = &mut received[..] else { unreachable!() };
            // Both sides are in the same order: a message that overtook another would be taken for it.
            comm.scope(|scope| {
                scope.send(&sent[0], other)?;
                scope.receive(first, other)?;
                comm.exchange_into(&sent[1], other, second, other)?;
                if me == 0 {
                    comm.send(&sent[2], other)?;
                    comm.receive(third, other)?;
                } else {
                    comm.receive(third, other)?;
                    comm.send(&sent[2], other)?;
                }
                scope.exchange(&sent[3], other, fourth, other)?.wait()
            })?;
            for (nth, received) in received.iter().enumerate() {
                assert!(*received == message(other, nth, count), "message {nth} of {count}");
            }
        }
        Ok(())
    });
}

/// Neither rank is in a call: both wait for a word of memory.
#[test]
fn messages_go_on_when_no_caller_waits() {
    on_both(3, |comm| {
        comm.barrier()?;
        let (me, size) = (comm.rank(), comm.size());
        let (next, before) = ((me + 1) % size, (me + size - 1) % size);
        let sent: Vec<_> = COUNTS.iter().enumerate().map(|(at, count)| message(me, at, *count)).collect();
        let mut received: Vec<_> = COUNTS.iter().map(|count| vec![9u32; *count]).collect();
        comm.scope(|scope| {
            let mut works = Vec::new();
            for received in &mut received {
                works.push(scope.receive(received, before)?);
            }
            for sent in &sent {
                works.push(scope.send(sent, next)?);
            }
            let are_done = || works.iter().all(|work| work.is_done());
            assert!(eventually(SOON, are_done), "the control thread does not drive them");
            Ok(())
        })?;
        for (at, received) in received.iter().enumerate() {
            assert!(*received == message(before, at, COUNTS[at]), "message {at}");
        }
        Ok(())
    });
}

#[test]
fn a_message_that_never_comes_names_its_rank() {
    for (links, options) in [(Links::Local, options()), (Links::Joined, over_sockets())] {
        let is_over = AtomicBool::new(false);
        let results = results_of_ranks(3, links, &options, |comm| {
            comm.barrier().expect("all call it");
            if comm.rank() != 0 {
                assert!(eventually(SOON, || is_over.load(Ordering::SeqCst)));
                return comm.status();
            }
            let hurried = comm.with_timeout(Duration::from_millis(700));
            let (mut late, mut never) = ([0u8; 10], [0u8; 20_000]);
            let began = Instant::now();
            let result = comm.scope(|scope| {
                // This one has time.
                scope.receive(&mut late, 1)?;
                hurried.scope(|hurried| hurried.receive(&mut never, 2).map(drop))
            });
            assert!(began.elapsed() < Duration::from_secs(5) + stolen(), "{:?}", began.elapsed());
            is_over.store(true, Ordering::SeqCst);
            result
        });
        match &results[0] {
            Err(Error::Timeout { operation, verdict, .. }) => {
                assert_eq!(operation.name, "receive");
                assert!(verdict.contains("rank 2"), "{verdict}");
            }
            other => panic!("{links:?}: {other:?}"),
        }
    }
}

#[test]
fn messages_of_different_lengths_name_both_ranks() {
    for (links, options) in [(Links::Local, options()), (Links::Joined, over_sockets())] {
        let results = results_of_ranks(2, links, &options, |comm| {
            let (sent, mut received) = ([1u8; 4], [1u8; 5]);
            comm.scope(|scope| match comm.rank() {
                0 => scope.send(&sent, 1)?.wait().and_then(|()| comm.barrier()),
                _ => scope.receive(&mut received, 0)?.wait(),
            })
        });
        for result in results {
            let Err(Error::Mismatch { difference, .. }) = &result else { panic!("{links:?}: {result:?}") };
            assert!(difference.contains("rank 0") && difference.contains("rank 1"), "{difference}");
        }
    }
}

#[test]
fn all_that_is_queued_ends_with_the_communicator() {
    let started = Barrier::new(2);
    let results = results_of_ranks(2, Links::Local, &options(), |comm| {
        let mut buffers = vec![vec![0u8; 1000]; 5];
        comm.scope(|scope| {
            if comm.rank() == 1 {
                started.wait();
                comm.abort("enough");
                return comm.status();
            }
            let mut works = Vec::new();
            for (at, buffer) in buffers.iter_mut().enumerate() {
                works.push(match at % 2 {
                    0 => scope.receive(buffer, 1)?,
                    _ => scope.all_reduce(buffer, ReduceOp::Sum)?,
                });
            }
            started.wait();
            for work in &works {
                assert!(matches!(work.wait(), Err(Error::Aborted { rank: 1, .. })));
            }
            Ok(())
        })
    });
    for result in results {
        assert!(matches!(result, Err(Error::Aborted { rank: 1, .. })), "{result:?}");
    }
}

#[test]
fn a_peer_that_leaves_without_sending_is_named() {
    for (links, options) in [(Links::Local, options()), (Links::Joined, over_sockets())] {
        let results = results_of_ranks(3, links, &options, |comm| {
            comm.barrier()?;
            let (mut one, mut two) = ([0u8; 10], [0u8; 10]);
            match comm.rank() {
                0 => comm.scope(|scope| {
                    scope.receive(&mut two, 2)?;
                    scope.receive(&mut one, 1).map(drop)
                }),
                1 => Ok(()),
                _ => comm.barrier(),
            }
        });
        for rank in [0, 2] {
            assert!(matches!(results[rank], Err(Error::PeerLeft { rank: 1, .. })), "{:?}", results[rank]);
        }
    }
}

#[test]
fn what_no_message_can_be_is_refused() {
    on_ranks(2, Links::Local, &options(), |comm| {
        let (me, sent) = (comm.rank(), [1u8; 4]);
        let (mut longer, mut shorter) = ([0u8; 4], [0u8; 3]);
        comm.scope(|scope| {
            for peer in [me, 2] {
                assert!(matches!(scope.send(&sent, peer), Err(Error::InvalidArgument { .. })));
            }
            assert!(matches!(scope.receive(&mut longer, me), Err(Error::InvalidArgument { .. })));
            assert!(matches!(
                scope.exchange(&sent, me, &mut shorter, me),
                Err(Error::InvalidArgument { .. })
            ));
            Ok(())
        })?;
        comm.barrier()
    });
}

#[test]
fn a_panic_in_a_scope_waits_for_its_messages() {
    on_both(2, |comm| {
        let (other, sent) = (1 - comm.rank(), message(comm.rank(), 6, 100_000));
        let mut received = vec![0; 100_000];
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            comm.scope::<()>(|scope| {
                scope.send(&sent, other)?;
                scope.receive(&mut received, other)?;
                std::panic::resume_unwind(Box::new("on purpose"))
            })
        }));
        assert!(panicked.is_err() && received == message(other, 6, 100_000));
        comm.barrier()
    });
}

#[test]
fn buffers_of_either_kind_come_back() {
    on_both(3, |comm| {
        let (me, size) = (comm.rank(), comm.size());
        let (next, before) = ((me + 1) % size, (me + size - 1) % size);
        for count in COUNTS {
            let mut shared = consort::alloc::<u32>(count).expect("memory");
            shared.copy_from_slice(&message(me, 0, count));
            let sent = comm.start_send(shared, next)?;
            let received = comm.start_receive(vec![0u32; count], before)?;
            let into = consort::alloc::<u32>(count).expect("memory");
            let both = comm.start_exchange(message(me, 1, count), next, into, before)?;
            let mut sum = consort::alloc::<u32>(count).expect("memory");
            sum.fill(me);
            let sum = comm.start_all_reduce(sum, ReduceOp::Sum)?;
            assert!(sum.wait()?.iter().all(|value| *value == 3));
            let (own, other) = both.wait()?;
            assert!(own == message(me, 1, count) && other[..] == message(before, 1, count));
            assert!(received.wait()? == message(before, 0, count));
            assert!(sent.wait()?[..] == message(me, 0, count));
        }
        let blocks = consort::alloc::<u32>(6).expect("memory");
        let (input, block) = comm.start_reduce_scatter(blocks, vec![9; 2], ReduceOp::Sum)?.wait()?;
        assert!(input.len() == 6 && block == [0, 0]);
        let input = (0..6).map(|at| 10 * me + at / 2).collect::<Vec<u32>>();
        let (_, all) = comm.start_all_to_all(input, vec![0; 6])?.wait()?;
        assert!(all.iter().enumerate().all(|(at, value)| *value == 10 * (at as u32 / 2) + me), "{all:?}");
        let own = vec![me; 1 + me as usize];
        let (_, all) = comm.start_all_gather_v(own, vec![9; 6], &[1, 2, 3])?.wait()?;
        assert_eq!(all, [0, 1, 1, 2, 2, 2]);
        let own = vec![9; 1 + me as usize];
        let (_, own) = comm.start_reduce_scatter_v(vec![me; 6], own, &[1, 2, 3], ReduceOp::Max)?.wait()?;
        assert!(own.iter().all(|value| *value == 2));
        Ok(())
    });
}

/// All-to-all, gather and scatter of blocks that differ, of either kind of buffer, all started before any is waited for.
#[test]
fn started_calls_of_blocks_bring_each_block() {
    on_both(3, |comm| {
        let (me, size) = (comm.rank(), comm.size());
        for count in [0, 1, 70, 60_000] {
            // What a rank has for another: as much as `count` times a number that the two of them alone have, and nothing for some.
            let length = |from: u32, to: u32| count * ((from + 2 * to) % 4) as usize;
            let block = |from: u32, to: u32| message(from, to as usize, length(from, to));
            let to_all: Vec<usize> = (0..size).map(|to| length(me, to)).collect();
            let from_all: Vec<usize> = (0..size).map(|from| length(from, me)).collect();
            let sent: Vec<u32> = (0..size).flat_map(|to| block(me, to)).collect();
            let expected: Vec<u32> = (0..size).flat_map(|from| block(from, me)).collect();
            let mut shared = consort::alloc::<u32>(sent.len()).expect("memory");
            shared.copy_from_slice(&sent);
            let first = comm.start_all_to_all_v(shared, &to_all, vec![9; expected.len()], &from_all)?;
            let (root, into) = (1, consort::alloc::<u32>(if me == 1 { expected.len() } else { 0 }));
            let gathered = comm.start_gather_v(block(me, root), into.expect("memory"), &from_all, root)?;
            let all = if me == 2 { sent.clone() } else { Vec::new() };
            let scattered = comm.start_scatter_v(all, &to_all, vec![9; length(2, me)], 2)?;
            // A collective, and a call that waits, in between.
            let sum = comm.start_all_reduce(vec![me; 10], ReduceOp::Sum)?;
            let mut again = vec![9; expected.len()];
            comm.all_to_all_v(&sent, &to_all, &mut again, &from_all)?;
            let (_, own) = scattered.wait()?;
            let (input, received) = gathered.wait()?;
            let (output, all) = first.wait()?;
            assert!(sum.wait()? == [3; 10] && again == expected && all == expected, "{count}");
            assert!(output[..] == sent && input == block(me, root) && own == block(2, me), "{count}");
            assert!(me != root || received[..] == expected, "{count}");
        }
        let alone = |count| vec![count; 3];
        let refused = comm.start_all_to_all_v(vec![1u8; 6], &alone(2), vec![1u8; 6], &alone(3));
        assert!(matches!(refused, Err(Error::InvalidArgument { .. })));
        assert!(comm.start_gather_v(vec![1u8], vec![1u8; 3], &alone(1), 3).is_err(), "no such root");
        assert!(comm.start_scatter_v(vec![1u8; 2], &alone(1), vec![1u8], me).is_err(), "too short");
        // What is forgotten goes on.
        drop(comm.start_all_to_all_v(vec![me; 3], &alone(1), vec![9; 3], &alone(1))?);
        Ok(())
    });
}

#[test]
fn started_blocks_of_different_lengths_name_both_ranks() {
    for (links, options) in [(Links::Local, options()), (Links::Joined, over_sockets())] {
        let results = results_of_ranks(3, links, &options, |comm| {
            // Rank 1 has four for rank 2, which expects five.
            let (sent, received) = match comm.rank() {
                1 => ([1, 1, 4], [1, 1, 1]),
                2 => ([1, 1, 1], [1, 5, 1]),
                _ => ([1; 3], [1; 3]),
            };
            let (input, output) = (vec![1u8; sent.iter().sum()], vec![0u8; received.iter().sum()]);
            comm.start_all_to_all_v(input, &sent, output, &received)?.wait()?;
            comm.barrier()
        });
        for result in results {
            let Err(Error::Mismatch { difference, .. }) = &result else { panic!("{links:?}: {result:?}") };
            assert!(difference.contains("rank 1") && difference.contains("rank 2"), "{difference}");
        }
    }
}

#[test]
fn dropped_and_refused_works_leave_nothing_behind() {
    on_both(2, |comm| {
        let (me, other) = (comm.rank(), 1 - comm.rank());
        assert!(matches!(comm.start_send(vec![1u8], me), Err(Error::InvalidArgument { .. })));
        assert!(matches!(comm.start_receive(vec![1u8], 2), Err(Error::InvalidArgument { .. })));
        assert!(comm.start_exchange(vec![1u8], me, vec![1u8], other).is_err());
        assert!(comm.start_reduce_scatter(vec![1u8; 3], vec![1u8], ReduceOp::Sum).is_err());
        for nth in 0..20 {
            drop(comm.start_send(message(me, nth, 70_000), other)?);
            std::mem::forget(comm.start_exchange(message(me, nth, 10), other, vec![0; 70_000], other)?);
            let received = comm.start_receive(vec![0u32; 10], other)?;
            if nth % 5 == 0 {
                assert!(received.wait()? == message(other, nth, 10));
            }
        }
        // The communicator is dropped with some of them under way.
        Ok(())
    });
}

/// What all ranks do at one turn, each its share: a sum, or a message, of a count of elements.
#[derive(Clone, Copy, Debug)]
enum What {
    Sum(usize),
    Message { from: u32, to: u32, count: usize },
}

/// How a rank makes a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    Started,
    Waited,
    /// With the calls of the run before it, in a group.
    Grouped,
}

/// The value at a place of a rank's contribution to a turn.
fn value(turn: usize, rank: u32, at: usize) -> u32 {
    (turn as u32).wrapping_mul(2_654_435_761) ^ rank.wrapping_mul(40_503) ^ at as u32
}

/// A rank's calls in the order of turns, but for calls that were started without one in between that waits: those may come in
/// any order that keeps collectives, and messages of a direction, in theirs.
fn order(turns: &[What], me: u32, random: &mut Random) -> Vec<(usize, How)> {
    let is_mine = |what: &What| match what {
        What::Sum(_) => true,
        What::Message { from, to, .. } => me == *from || me == *to,
    };
    let lane = |turn: usize| match turns[turn] {
        What::Sum(_) => (0, 0),
        What::Message { from, to, .. } => (1 + from, 1 + to),
    };
    let mut all: Vec<(usize, How)> = Vec::new();
    let mut run: Vec<usize> = Vec::new();
    let end = |run: &mut Vec<usize>, random: &mut Random, all: &mut Vec<(usize, How)>| {
        while !run.is_empty() {
            let any = random.below(run.len());
            let first = run.iter().position(|turn| lane(*turn) == lane(run[any])).expect("itself");
            all.push((run.remove(first), How::Started));
        }
    };
    for turn in (0..turns.len()).filter(|turn| is_mine(&turns[*turn])) {
        if random.one_in(3) {
            end(&mut run, random, &mut all);
            all.push((turn, if random.one_in(3) { How::Grouped } else { How::Waited }));
        } else {
            run.push(turn);
        }
    }
    end(&mut run, random, &mut all);
    all
}

/// Runs a job of a seed on one rank.
fn play(comm: &Communicator, seed: u64) -> Result<()> {
    let (me, size) = (comm.rank(), comm.size());
    let mut random = Random::new(seed);
    let turns: Vec<What> = (0..12 + random.below(20))
        .map(|_| {
            let count = random.pick(&[0, 1, 3, 70, 1_000, 6_000, 50_000]);
            let from = random.below(size as usize) as u32;
            let to = (from + 1 + random.below(size as usize - 1) as u32) % size;
            if random.one_in(3) { What::Sum(count) } else { What::Message { from, to, count } }
        })
        .collect();
    let calls = order(&turns, me, &mut Random::new(seed ^ u64::from(me + 1) << 40));
    let mut buffers: Vec<Vec<u32>> = (turns.iter().enumerate())
        .map(|(turn, what)| match *what {
            What::Sum(count) => (0..count).map(|at| value(turn, me, at)).collect(),
            What::Message { from, count, .. } if from == me => {
                (0..count).map(|at| value(turn, me, at)).collect()
            }
            What::Message { count, .. } => vec![7; count],
        })
        .collect();
    let mut lent: Vec<Option<&mut Vec<u32>>> = buffers.iter_mut().map(Some).collect();
    comm.scope(|scope| {
        let mut works = Vec::new();
        for (turn, how) in &calls {
            let buffer = lent[*turn].take().expect("it is called once");
            match (turns[*turn], how) {
                (What::Sum(_), How::Started) => works.push(scope.all_reduce(buffer, ReduceOp::Sum)?),
                (What::Sum(_), How::Waited) => comm.all_reduce(buffer, ReduceOp::Sum)?,
                (What::Sum(_), How::Grouped) => group(|group| group.all_reduce(comm, buffer, ReduceOp::Sum))?,
                (What::Message { from, to, .. }, How::Started) if from == me => {
                    works.push(scope.send(buffer, to)?);
                }
                (What::Message { from, to, .. }, How::Waited) if from == me => comm.send(buffer, to)?,
                (What::Message { from, to, .. }, How::Grouped) if from == me => {
                    group(|group| group.send(comm, buffer, to))?;
                }
                (What::Message { from, .. }, How::Started) => works.push(scope.receive(buffer, from)?),
                (What::Message { from, .. }, How::Waited) => comm.receive(buffer, from)?,
                (What::Message { from, .. }, How::Grouped) => {
                    group(|group| group.receive(comm, buffer, from))?;
                }
            }
            if *how != How::Started
                && let Some(work) = works.pop()
            {
                work.wait()?;
            }
        }
        Ok(())
    })?;
    for (turn, buffer) in buffers.iter().enumerate() {
        let is_right = |(at, got): (usize, &u32)| match turns[turn] {
            What::Sum(_) => *got == (0..size).fold(0, |sum, rank| value(turn, rank, at).wrapping_add(sum)),
            What::Message { from, to, .. } if from == me || to == me => *got == value(turn, from, at),
            What::Message { .. } => *got == 7,
        };
        assert!(
            buffer.iter().enumerate().all(is_right),
            "seed {seed}, rank {me} of {size}, turn {turn}: {:?}",
            turns[turn]
        );
    }
    Ok(())
}

#[test]
fn any_order_of_calls_that_can_end_ends_with_every_byte_right() {
    let mut random = Random::announced("any_order_of_calls_that_can_end_ends_with_every_byte_right");
    for (links, options) in [(Links::Local, options()), (Links::Joined, over_sockets())] {
        for size in 2..=4 {
            let seeds: Vec<u64> = (0..12).map(|_| random.draw()).collect();
            on_ranks(size, links, &options, |comm| seeds.iter().try_for_each(|seed| play(comm, *seed)));
        }
    }
}
