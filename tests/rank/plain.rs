//! What works: all collectives, all types, launchers, work that nobody waits for, split.

use std::time::{Duration, Instant};

use consort::{Communicator, ReduceOp, Result};
use consort_tests::{bits, collectives};

use crate::Context;

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

/// Joins as the launcher's variables say and adds what this job's argument says.
pub(crate) fn launched(context: &Context) -> Result<()> {
    let comm = Communicator::from_launcher()?;
    assert_eq!((comm.rank(), comm.size()), (context.rank, context.size));
    let mut value = [context.number("value") as u64];
    comm.all_reduce(&mut value, ReduceOp::Sum)?;
    println!("sum {}", value[0]);
    Ok(())
}

/// Starts an operation and looks away; then, with `wait=late`, fails in it as the test arranges.
pub(crate) fn unattended(context: &Context) -> Result<()> {
    let comm = context.join()?;
    println!("started");
    let count = if context.is("deviant") { 1001 } else { 1000 };
    // No barrier first: a rank that still is in it could be told of the others' failure there.
    let work = comm.start_all_reduce(vec![1.0f32; count], ReduceOp::Sum)?;
    std::thread::sleep(Duration::from_millis(300));
    let until = Instant::now() + Duration::from_secs(10);
    while !work.is_done() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    println!("done {}", work.is_done());
    let (buffer, result) = work.wait_with_buffer();
    crate::report(&result);
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
