//! Jobs without faults: all collectives, all types, launchers, work that no thread waits for, split.

use std::time::{Duration, Instant};

use crate::{bits, collectives, folds, groups, matrix, vectors};
use consort::planning::Collective;
use consort::{Communicator, ReduceOp, Result};

use crate::rank::{Context, report};

pub(crate) fn everything(context: &Context) -> Result<()> {
    let comm = context.join()?;
    let counts = context.text("counts").split(',').map(|count| count.parse().expect("a count"));
    counts.into_iter().try_for_each(|count| collectives::everything(&comm, count))?;
    collectives::at_odd_offsets(&comm, 1001)
}

pub(crate) fn bits(context: &Context) -> Result<()> {
    let comm = context.join()?;
    for offset in [0, 3] {
        println!("bits {}", bits::of_everything(&comm, offset)?.join(" "));
    }
    Ok(())
}

/// Joins by the launcher's variables and sums this job's argument.
pub(crate) fn launched(context: &Context) -> Result<()> {
    let comm = Communicator::from_launcher()?;
    assert_eq!((comm.rank(), comm.size()), (context.rank, context.size));
    let mut value = [context.number("value") as u64];
    comm.all_reduce(&mut value, ReduceOp::Sum)?;
    println!("sum {}", value[0]);
    Ok(())
}

/// Starts an operation and does not drive it; then, with `wait=late`, fails in it as the test arranges.
pub(crate) fn unattended(context: &Context) -> Result<()> {
    let comm = context.join()?;
    println!("started");
    let count = if context.is("deviant") { 1001 } else { 1000 };
    // No barrier first: a rank that is still in it could get the others' failure there.
    let work = comm.start_all_reduce(vec![1.0f32; count], ReduceOp::Sum)?;
    std::thread::sleep(Duration::from_millis(300));
    let until = Instant::now() + Duration::from_secs(10);
    while !work.is_done() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    println!("done {}", work.is_done());
    let (buffer, result) = work.wait_with_buffer();
    report(&result);
    if result.is_ok() {
        assert!(buffer.iter().all(|value| *value == comm.size() as f32));
        let queued: Vec<_> =
            (0..5).map(|_| comm.start_all_reduce(vec![1i64; 1000], ReduceOp::Sum)).collect::<Result<_>>()?;
        for work in queued.into_iter().rev() {
            assert!(work.wait()?.iter().all(|value| *value == i64::from(comm.size())));
        }
        drop(comm.start_all_reduce(vec![1i64; 100_000], ReduceOp::Sum)?);
        comm.barrier()?;
    }
    Ok(())
}

/// The first operation of all is started, and the communicator dropped: it still has to connect.
pub(crate) fn dropped(context: &Context) -> Result<()> {
    let comm = context.join()?;
    // The work would keep the process's control thread.
    drop(comm.start_all_reduce(vec![1i64; 100_000], ReduceOp::Sum)?);
    let began = Instant::now();
    drop(comm);
    // Work that does not finish is dropped after ten seconds.
    assert!(began.elapsed() < Duration::from_secs(5), "dropped in {:?}", began.elapsed());
    Ok(())
}

/// Halves, and the halves' halves, used in turn with their parent.
pub(crate) fn split(context: &Context) -> Result<()> {
    let comm = context.join()?;
    let half = comm.split(Some(comm.rank() % 2), -i64::from(comm.rank()))?.expect("a colour was given");
    let nested = half.split((half.rank() == 0).then_some(7), 0)?;
    assert_eq!(nested.is_some(), half.rank() == 0);
    for _ in 0..3 {
        collectives::everything(&comm, 1000)?;
        collectives::everything(&half, 333)?;
        if let Some(nested) = &nested {
            collectives::everything(nested, 10)?;
        }
    }
    let mut ranks = vec![0u32; half.size() as usize];
    half.all_gather(&[comm.rank()], &mut ranks)?;
    assert!(ranks.is_sorted_by(|one, other| one > other), "keys reverse the order: {ranks:?}");
    drop(comm);
    collectives::everything(&half, 100)
}

/// Blocks of different lengths, drawn by the seed.
pub(crate) fn vectors(context: &Context) -> Result<()> {
    let comm = context.join()?;
    let longest = if comm.size() > 4 { 5_003 } else { 300_007 };
    vectors::everything(&comm, context.number("seed") as u64, 2, longest)
}

/// Floats that round, folded according to the environment.
pub(crate) fn folds(context: &Context) -> Result<()> {
    let comm = context.join()?;
    let seed = context.text("seed").parse().expect("a seed");
    folds::everything(&comm, seed, &[8, 5000, 300_000])
}

/// Prints the planner's choice under the environment, and how a call ends; all other calls work under any setting.
pub(crate) fn planned(context: &Context) -> Result<()> {
    let comm = context.join()?;
    for collective in [Collective::AllReduce, Collective::AllGather] {
        match comm.explain(collective, 4096) {
            Ok(explanation) => {
                let chosen = explanation.chosen().expect("one is chosen").algorithm;
                println!("chosen {chosen} {:?}", explanation.origin);
            }
            Err(error) => report(&Err(error)),
        }
    }
    let mut values = vec![1i64; 512];
    let result = comm.all_reduce(&mut values, ReduceOp::Sum);
    if result.is_ok() {
        assert_eq!(values, vec![i64::from(comm.size()); 512]);
    } else {
        assert_eq!(values, vec![1; 512], "nothing was touched");
    }
    report(&result);
    comm.barrier()?;
    let half = comm.split(Some(comm.rank() % 2), 0)?.expect("a colour was given");
    half.barrier()?;
    drop(half);
    let mut message = [0u8; 3];
    let (to, from) = ((comm.rank() + 1) % comm.size(), (comm.rank() + comm.size() - 1) % comm.size());
    comm.exchange_into(&[7u8; 3], to, &mut message, from)?;
    assert_eq!(message, [7; 3]);
    comm.barrier()
}

/// Every collective by algorithms that are drawn.
pub(crate) fn matrix(context: &Context) -> Result<()> {
    let comm = context.join()?;
    let seed = context.text("seed").parse().expect("a seed");
    let draw = matrix::Draw { seed, one_of: context.number("one_of") as u64, all: false };
    matrix::everything(&comm, &draw)
}

/// Groups, on one communicator and on two. With `how`, over and over until rank 1 is killed or aborts.
pub(crate) fn groups(context: &Context) -> Result<()> {
    let comm = context.join()?;
    let other = comm.split(Some(0), 0)?.expect("a colour was given");
    let round = |count: usize| {
        groups::mixed(&comm, count, 3)?;
        groups::crossing(&comm, &other, count)
    };
    if context.text("how").is_empty() {
        [1, 3000, 100_000].into_iter().try_for_each(round)?;
        return groups::ring(&comm, 500_000);
    }
    round(100)?;
    println!("begin");
    for nth in 0.. {
        if nth == 50 && context.rank == 1 && context.text("how") == "abort" {
            comm.abort("enough");
        }
        if let Err(error) = round(20_000) {
            report(&Err(error));
            break;
        }
    }
    context.listen();
    Ok(())
}
