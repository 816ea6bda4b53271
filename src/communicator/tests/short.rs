//! The shortest calls, again and again: what runs without a task gives what the first call of a shape gave, and finds what the
//! ranks disagree about.

use std::time::Duration;

use consort_kernels::ReduceOp;
use consort_memory::{Span, SpanMut};
use consort_types::call::Call;

use crate::{Communicator, DataType, Error, Options, Result};

/// Around a line, eight bytes, and the slots of a row.
const COUNTS: [usize; 7] = [1, 2, 3, 13, 14, 15, 5_000];
const REPEATS: u32 = 40;

fn ranks(size: u32) -> Vec<Communicator> {
    let options = Options::default().timeout(Duration::from_secs(20));
    Communicator::local_with(size, &options).expect("ranks")
}

fn together<T: Send>(ranks: &[Communicator], run: impl Fn(&Communicator) -> T + Sync) -> Vec<T> {
    std::thread::scope(|threads| {
        let run = &run;
        let all: Vec<_> = ranks.iter().map(|comm| threads.spawn(move || run(comm))).collect();
        all.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// What a rank contributes in a round, of `count` elements.
fn of(rank: u32, round: u32, count: usize) -> Vec<i32> {
    (0..count as i32).map(|at| at * 1000 + (round * 7 + rank) as i32).collect()
}

#[test]
fn calls_repeated_are_right_each_time() {
    for size in [2, 3, 4] {
        together(&ranks(size), |comm| {
            let (me, all) = (comm.rank(), size as usize);
            // Long ones between two ranks alone: others share cores, and take a millisecond each.
            let counts = if size == 2 { &COUNTS[..] } else { &COUNTS[..6] };
            for count in counts.iter().copied() {
                for round in 0..REPEATS {
                    let root = round % size;
                    let mine = of(me, round, count);
                    let sum: Vec<i32> =
                        (0..count).map(|at| (0..size).map(|rank| of(rank, round, count)[at]).sum()).collect();
                    let (mut apart, mut within) = (vec![0; count], mine.clone());
                    comm.all_reduce_into(&mine, &mut apart, ReduceOp::Sum).expect("all call it");
                    comm.all_reduce(&mut within, ReduceOp::Sum).expect("all call it");
                    assert_eq!((&apart, &within), (&sum, &sum));
                    // Ranks may come one call in different ways.
                    if (me + round) % 2 == 0 {
                        within.clone_from(&mine);
                        comm.all_reduce(&mut within, ReduceOp::Sum).expect("all call it");
                    } else {
                        let work = comm.start_all_reduce(mine.clone(), ReduceOp::Sum).expect("all call it");
                        within = work.wait().expect("all call it");
                    }
                    assert_eq!(within, sum);

                    // The same root again, so that the second call of two is like the last one.
                    for _ in 0..2 {
                        let mut sent = if me == root { mine.clone() } else { vec![0; count] };
                        comm.broadcast(&mut sent, root).expect("all call it");
                        assert_eq!(sent, of(root, round, count));
                        let mut kept = vec![0; count];
                        comm.broadcast_into(&mine, &mut kept, root).expect("all call it");
                        assert_eq!(kept, of(root, round, count));
                        comm.barrier().expect("all call it");
                    }

                    let mut gathered = vec![0; count * all];
                    comm.all_gather(&mine, &mut gathered).expect("all call it");
                    let everything: Vec<i32> = (0..size).flat_map(|rank| of(rank, round, count)).collect();
                    assert_eq!(gathered, everything);
                    let mut scattered = vec![0; count];
                    let blocks =
                        |rank: u32| (0..size).flat_map(move |block| of(rank * 31 + block, round, count));
                    let given: Vec<i32> = blocks(me).collect();
                    comm.reduce_scatter(&given, &mut scattered, ReduceOp::Sum).expect("all call it");
                    let mut sum = vec![0i32; count];
                    for rank in 0..size {
                        let theirs = blocks(rank).skip(me as usize * count);
                        sum.iter_mut().zip(theirs).for_each(|(sum, one)| *sum = sum.wrapping_add(one));
                    }
                    assert_eq!(scattered, sum);

                    let (to, from) = ((me + 1) % size, (me + size - 1) % size);
                    let mut theirs = vec![0; count];
                    comm.exchange_into(&mine, to, &mut theirs, from).expect("all call it");
                    assert_eq!(theirs, of(from, round, count));
                    if me == 0 {
                        comm.send(&mine, 1).expect("it receives");
                    } else if me == 1 {
                        comm.receive(&mut theirs, 0).expect("it sends");
                        assert_eq!(theirs, of(0, round, count));
                    }
                }
            }
        });
    }
}

#[test]
fn a_rank_that_differs_is_found_whatever_ran_before() {
    type Step = fn(&Communicator, bool) -> Result<()>;
    let steps: [Step; 5] = [
        |comm, differs| {
            let op = if differs { ReduceOp::Max } else { ReduceOp::Sum };
            comm.all_reduce(&mut [1f32; 2], op)
        },
        |comm, differs| {
            let (input, mut output) = ([1u8; 8], [0u8; 8]);
            let (data_type, count) = if differs { (DataType::Float64, 1) } else { (DataType::Float32, 2) };
            let call = Call::all_reduce(data_type, ReduceOp::Sum, count);
            comm.execute(&call, Span::of(&input), SpanMut::of(&mut output))
        },
        |comm, differs| {
            if differs { comm.barrier() } else { comm.all_gather(&[1u32], &mut [0; 2]) }
        },
        |comm, differs| {
            let (count, other) = (if differs { 3 } else { 2 }, 1 - comm.rank());
            comm.exchange_into(&[1u32, 2, 3][..count], other, &mut [0; 3][..count], other)
        },
        |comm, differs| {
            let count = if differs { 3 } else { 2 };
            if comm.rank() == 0 {
                return comm.send(&[1u32, 2, 3][..count], 1);
            }
            comm.receive(&mut [0u32; 3][..count], 0)
        },
    ];
    for (number, step) in steps.into_iter().enumerate() {
        let results = together(&ranks(2), |comm| {
            // Both shapes run without a task when the ranks differ in them.
            for round in 0..REPEATS {
                step(comm, round % 2 != 0)?;
            }
            step(comm, comm.rank() == 1)?;
            // Who only sends hears of it by the next call.
            comm.barrier()
        });
        for result in results {
            assert!(matches!(result, Err(Error::Mismatch { .. })), "step {number}: {result:?}");
        }
    }
}

/// The line of a rank that waits for long has left, and does not leave again with the task that its call becomes.
#[test]
fn an_exchange_that_waits_sends_once() {
    let all = ranks(2);
    let first = &all[0];
    let results = together(&all, |comm| {
        let (me, other) = (comm.rank(), 1 - comm.rank());
        let mut theirs = [0u32; 2];
        for round in 0..20 {
            if me == 1 && round % 4 == 0 {
                // Long enough for the other's looks, if not surely.
                while !first.is_in_use() {
                    std::thread::yield_now();
                }
                (0..20_000).for_each(|_| std::thread::yield_now());
            }
            comm.exchange_into(&[me, round], other, &mut theirs, other)?;
            assert_eq!(theirs, [other, round]);
        }
        Ok::<_, Error>(())
    });
    results.into_iter().for_each(|result| result.expect("they agree"));
}
