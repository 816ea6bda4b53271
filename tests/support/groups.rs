//! Groups of calls that need each other, compared with the expected results.

use consort::{Communicator, ReduceOp, Result, group};

use crate::collectives::{sum, vector};

/// Messages to and from all ranks, this rank included, several between the same two ranks and of different lengths,
/// mixed with collectives.
///
/// # Errors
/// The group's.
///
/// # Panics
/// If a result is wrong.
pub fn mixed(comm: &Communicator, count: usize, repeats: usize) -> Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    let length = |from: u32, to: u32, nth: usize| match (from as usize + 2 * to as usize + nth) % 4 {
        0 => 0,
        1 => count,
        2 => 1,
        _ => count / 2 + nth,
    };
    let key = |from: u32, to: u32, nth: usize| (from * size + to) * 16 + nth as u32;
    let sent: Vec<Vec<i64>> = (0..size)
        .flat_map(|to| (0..repeats).map(move |nth| (to, nth)))
        .map(|(to, nth)| vector(key(rank, to, nth), length(rank, to, nth)))
        .collect();
    let mut received: Vec<Vec<i64>> = (0..size)
        .flat_map(|from| (0..repeats).map(move |nth| (from, nth)))
        .map(|(from, nth)| vec![0; length(from, rank, nth)])
        .collect();
    let (mut first, mut second) = (vector(rank, count), vector(rank, 7));
    let mut gathered = vec![0; 5 * size as usize];
    let own = vector(rank, 5);
    group(|group| {
        for (at, message) in sent.iter().enumerate() {
            group.send(comm, message, (at / repeats) as u32)?;
        }
        group.all_reduce(comm, &mut first, ReduceOp::Sum)?;
        group.all_gather(comm, &own, &mut gathered)?;
        for (at, message) in received.iter_mut().enumerate() {
            group.receive(comm, message, (at / repeats) as u32)?;
        }
        group.broadcast(comm, &mut second, size - 1)
    })?;
    for (at, message) in received.iter().enumerate() {
        let (from, nth) = ((at / repeats) as u32, at % repeats);
        assert_eq!(
            *message,
            vector(key(from, rank, nth), length(from, rank, nth)),
            "message {nth} from {from}"
        );
    }
    assert!(first.iter().enumerate().all(|(index, value)| *value == sum(size, index)), "all_reduce");
    assert_eq!(gathered, (0..size).flat_map(|rank| vector(rank, 5)).collect::<Vec<_>>(), "all_gather");
    assert_eq!(second, vector(size - 1, 7), "broadcast");
    Ok(())
}

/// Every rank sends to the next and receives from the one before, long and short messages.
///
/// # Errors
/// The group's.
///
/// # Panics
/// If a result is wrong.
pub fn ring(comm: &Communicator, count: usize) -> Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    let (to, from) = ((rank + 1) % size, (rank + size - 1) % size);
    let (mine, mut theirs) = (vector(rank, count), vec![0; count]);
    group(|group| {
        group.send(comm, &mine, to)?;
        group.receive(comm, &mut theirs, from)
    })?;
    assert_eq!(theirs, vector(from, count), "from rank {from}");
    Ok(())
}

/// Two communicators; every second rank calls on the second communicator first.
///
/// # Errors
/// The group's.
///
/// # Panics
/// If a result is wrong.
pub fn crossing(one: &Communicator, other: &Communicator, count: usize) -> Result<()> {
    let (mut first, mut second) = (vector(one.rank(), count), vector(other.rank(), count));
    group(|group| {
        if one.rank().is_multiple_of(2) {
            group.all_reduce(one, &mut first, ReduceOp::Sum)?;
            group.all_reduce(other, &mut second, ReduceOp::Sum)
        } else {
            group.all_reduce(other, &mut second, ReduceOp::Sum)?;
            group.all_reduce(one, &mut first, ReduceOp::Sum)
        }
    })?;
    let wanted: Vec<i64> = (0..count).map(|index| sum(one.size(), index)).collect();
    assert!(first == wanted && second == wanted, "sums of two communicators");
    Ok(())
}
