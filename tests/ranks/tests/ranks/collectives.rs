//! Every collective, over ranks that are threads, on every transport, compared with sums computed directly.

use consort::{Communicator, Options, ReduceOp, TransportChoice, UniqueId};
use consort_tests::collectives::{at_odd_offsets, everything, sum, vector};
use consort_tests::{Links, on_ranks};

const COUNTS: [usize; 9] = [0, 1, 2, 3, 7, 8, 100, 4099, 70_001];

#[test]
fn every_collective_over_loopback() {
    for size in [1, 2, 3, 4, 5, 7, 8] {
        on_ranks(size, Links::Local, &Options::default(), |comm| {
            COUNTS.iter().try_for_each(|count| everything(comm, *count))?;
            at_odd_offsets(comm, 1001)
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
