//! Every collective, over ranks that are threads, on every transport, against sums done by hand.

use consort::{Communicator, Options, ReduceOp, TransportChoice, UniqueId};
use consort_tests::{Links, on_ranks};

fn input(rank: u32, index: usize) -> i64 {
    (rank as i64 + 1) * 1_000_003 + index as i64 * 7
}

fn vector(rank: u32, count: usize) -> Vec<i64> {
    (0..count).map(|index| input(rank, index)).collect()
}

fn sum(size: u32, index: usize) -> i64 {
    (0..size).map(|rank| input(rank, index)).sum()
}

/// All collectives of one count on one communicator.
fn everything(comm: &Communicator, count: usize) -> consort::Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    let whole = vector(rank, count);
    let reduced: Vec<i64> = (0..count).map(|index| sum(size, index)).collect();

    let mut buffer = whole.clone();
    comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
    assert_eq!(buffer, reduced, "all_reduce in place of {count} on {size}");
    let mut output = vec![0; count];
    comm.all_reduce_into(&whole, &mut output, ReduceOp::Sum)?;
    assert_eq!(output, reduced, "all_reduce of {count} on {size}");

    for root in 0..size {
        let mut buffer = whole.clone();
        comm.reduce(&mut buffer, ReduceOp::Sum, root)?;
        assert_eq!(buffer, if rank == root { &reduced[..] } else { &whole[..] }, "reduce to {root}");
        let mut buffer = whole.clone();
        comm.broadcast(&mut buffer, root)?;
        assert_eq!(buffer, vector(root, count), "broadcast from {root}");
        let mut output = vec![0; count];
        let from = if rank == root { &whole[..] } else { &[] };
        comm.broadcast_into(from, &mut output, root)?;
        assert_eq!(output, vector(root, count), "broadcast from {root} into another buffer");
    }

    let gathered: Vec<i64> = (0..size).flat_map(|rank| vector(rank, count)).collect();
    let mut output = vec![0; count * size as usize];
    comm.all_gather(&whole, &mut output)?;
    assert_eq!(output, gathered, "all_gather of {count} on {size}");
    let mut buffer = vec![-1; count * size as usize];
    let mine = rank as usize * count..(rank as usize + 1) * count;
    buffer[mine.clone()].copy_from_slice(&whole);
    comm.all_gather_in_place(&mut buffer)?;
    assert_eq!(buffer, gathered, "all_gather in place");

    let long = vector(rank, count * size as usize);
    let block: Vec<i64> = mine.clone().map(|index| sum(size, index)).collect();
    let mut output = vec![0; count];
    comm.reduce_scatter(&long, &mut output, ReduceOp::Sum)?;
    assert_eq!(output, block, "reduce_scatter of {count} on {size}");
    let mut buffer = long.clone();
    comm.reduce_scatter_in_place(&mut buffer, ReduceOp::Sum)?;
    assert_eq!(buffer[mine], block, "reduce_scatter in place");

    let (to, from) = ((rank + 1) % size, (rank + size - 1) % size);
    let mut output = vec![0; count];
    comm.exchange_into(&whole, to, &mut output, from)?;
    assert_eq!(output, vector(from, count), "exchange");
    if size > 1 {
        match rank {
            0 => comm.send(&whole, 1)?,
            1 => {
                let mut output = vec![0; count];
                comm.receive(&mut output, 0)?;
                assert_eq!(output, vector(0, count), "send and receive");
            }
            _ => {}
        }
    }
    comm.barrier()
}

const COUNTS: [usize; 9] = [0, 1, 2, 3, 7, 8, 100, 4099, 70_001];

#[test]
fn every_collective_over_loopback() {
    for size in [1, 2, 3, 4, 5, 7, 8] {
        on_ranks(size, Links::Local, &Options::default(), |comm| {
            COUNTS.iter().try_for_each(|count| everything(comm, *count))
        });
    }
}

#[test]
fn every_collective_over_tcp() {
    for size in [2, 3, 5] {
        let options = Options::default().transport(TransportChoice::Tcp);
        on_ranks(size, Links::Joined, &options, |comm| {
            COUNTS.iter().try_for_each(|count| everything(comm, *count))
        });
    }
}

#[test]
fn every_collective_with_channels_and_both_directions() {
    for (channels, bidirectional) in [(1, true), (3, false), (2, true)] {
        for size in [1, 2, 3, 4] {
            let options =
                Options::default().channels(channels).bidirectional(bidirectional).slot_bytes(16 << 10);
            on_ranks(size, Links::Local, &options, |comm| {
                COUNTS.iter().try_for_each(|count| everything(comm, *count))
            });
        }
    }
}

#[test]
fn slot_lengths_change_between_calls() {
    on_ranks(3, Links::Local, &Options::default(), |comm| {
        for count in [5, 1_000_000, 3, 40_000, 1_000_000, 1] {
            let mut buffer = vector(comm.rank(), count);
            comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
            assert!(buffer.iter().enumerate().all(|(index, value)| *value == sum(3, index)));
        }
        Ok(())
    });
}

#[test]
fn one_process_many_communicators() {
    let id = UniqueId::create().expect("an id");
    let other = UniqueId::create().expect("another id");
    std::thread::scope(|threads| {
        for rank in 0..2u32 {
            let (id, other) = (&id, &other);
            threads.spawn(move || {
                let first = Communicator::join(rank, 2, id).expect("the first joins");
                let second = Communicator::join(1 - rank, 2, other).expect("the second joins");
                let (mut a, mut b) = ([rank], [rank * 10]);
                second.all_reduce(&mut b, ReduceOp::Sum).expect("second");
                first.all_reduce(&mut a, ReduceOp::Sum).expect("first");
                assert_eq!((a, b), ([1], [10]));
            });
        }
    });
}
