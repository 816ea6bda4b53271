//! Calls with the arguments of the call before, which are checked less.

use std::ptr::null;

use super::*;

/// Runs on the threads of ranks whose communicators have no deadline, which repeated calls require: `within` has one.
fn repeated(size: c_int, rank_does: impl Fn(c_int, Comm) + Send + Sync + 'static) {
    ranks(size, move |rank, comm| {
        assert_eq!(consortCommSetTimeout(comm, timeout::INHERIT), OK);
        rank_does(rank, comm);
    });
}

#[test]
fn functions_of_equal_numbers_are_distinguished() {
    repeated(2, |rank, comm| {
        for turn in 0..4 {
            let input = [10 * rank + turn, 10 * rank + turn + 100];
            let mut output = [-1; 2];
            ok!(ncclAllGather(from(&input), to(&mut output), 1, INT32, comm, NO_STREAM));
            assert_eq!(output, [turn, 10 + turn]);
            ok!(ncclAlltoAll(from(&input), to(&mut output), 1, INT32, comm, NO_STREAM));
            assert_eq!(output, [0, 10].map(|theirs| theirs + turn + 100 * rank));
            for root in 0..2 {
                let mut output = [-1; 4];
                ok!(ncclBroadcast(from(&input), to(&mut output), 2, INT32, root, comm, NO_STREAM));
                assert_eq!(output[..2], [10 * root + turn, 10 * root + turn + 100]);
                ok!(ncclGather(from(&input), to(&mut output), 2, INT32, root, comm, NO_STREAM));
                if rank == root {
                    assert_eq!(output, [turn, turn + 100, 10 + turn, 10 + turn + 100]);
                }
            }
            for op in [SUM, 2] {
                let mut result = input;
                assert_eq!(reduce(&mut result, op, comm, NO_STREAM), OK, "{}", last_error());
                let first = if op == SUM { 10 + 2 * turn } else { 10 + turn };
                assert_eq!(result[0], first);
            }
        }
    });
}

#[test]
fn what_changes_between_two_calls_is_seen() {
    repeated(2, |rank, comm| {
        let (input, mut output) = ([rank + 1, 1], [0; 2]);
        let place = to(&mut output);
        for _ in 0..3 {
            ok!(ncclAllReduce(from(&input), place, 2, INT32, SUM, comm, NO_STREAM));
        }
        let all_reduce = |input, output| c!(ncclAllReduce(input, output, 2, INT32, SUM, comm, NO_STREAM));
        refused(all_reduce(null(), place), "the send buffer is null");
        refused(all_reduce(from(&input), null_mut()), "the receive buffer is null");
        let last = std::ptr::without_provenance_mut(usize::MAX - 2);
        refused(all_reduce(from(&input), last), "beyond the address space");
        let overlapping = place.cast::<i32>().wrapping_add(1).cast();
        refused(all_reduce(place, overlapping), "overlap");
        works(rank, 2, comm);
        ok!(ncclAllReduce(from(&input), place, 2, INT32, SUM, comm, NO_STREAM));
        assert_eq!(output, [3, 2]);
        assert_eq!(destroy(comm), OK);
        refused(all_reduce(from(&input), place), "freed");
    });
}

#[test]
fn what_changes_between_two_calls_that_take_turns_is_seen() {
    repeated(2, |rank, comm| {
        let mut values = [0; 2];
        for turn in 0..12 {
            let root = turn % 2;
            values = if rank == root { [turn, 7] } else { values };
            let place = to(&mut values);
            ok!(ncclBroadcast(from(&values), place, 2, INT32, root, comm, NO_STREAM));
            assert_eq!(values, [turn, 7]);
        }
        let place = to(&mut values);
        for root in [0, 1, 0, 1] {
            let broadcast = |input, output| c!(ncclBroadcast(input, output, 2, INT32, root, comm, NO_STREAM));
            refused(broadcast(from(&values), null_mut()), "the receive buffer is null");
            if rank == root {
                refused(broadcast(null(), place), "the send buffer is null");
                refused(broadcast(from(&values), place.cast::<i32>().wrapping_add(1).cast()), "overlap");
            }
        }
        // Another count of one of the two, and each of them again.
        for (root, count) in [(0, 2), (1, 2), (0, 1), (1, 2), (0, 2), (0, 1)] {
            let mut values = [10 + rank, 20 + rank];
            ok!(ncclBroadcast(from(&values), to(&mut values), count, INT32, root, comm, NO_STREAM));
            assert_eq!(values, [10 + root, 20 + if count == 2 { root } else { rank }]);
        }
        works(rank, 2, comm);
        assert_eq!(destroy(comm), OK);
        for root in 0..2 {
            refused(c!(ncclBroadcast(from(&values), place, 2, INT32, root, comm, NO_STREAM)), "freed");
        }
    });
}

#[test]
fn a_group_and_a_deadline_hold_for_calls_that_are_repeated() {
    within(DEADLINE, || {
        let comms = all(2);
        for comm in &comms {
            assert_eq!(consortCommSetTimeout(*comm, timeout::INHERIT), OK);
        }
        let other = Sent(comms[1]);
        let mut sums = [[1, 2], [3, 4]];
        for _ in 0..3 {
            let theirs = std::thread::spawn(move || reduce(&mut [0, 0], SUM, other.get(), NO_STREAM));
            assert_eq!(reduce(&mut [1, 2], SUM, comms[0], NO_STREAM), OK, "{}", last_error());
            assert_eq!(theirs.join().expect("no panic"), OK);
        }
        // One thread has both ranks: neither may wait before the group ends.
        ok!(ncclGroupStart());
        for (sum, comm) in sums.iter_mut().zip(&comms) {
            assert_eq!(reduce(sum, SUM, *comm, NO_STREAM), OK, "{}", last_error());
        }
        ok!(ncclGroupEnd());
        assert_eq!(sums, [[4, 6]; 2]);
        // The other rank makes no call.
        let mut before = 0.0;
        // SAFETY: the place is writable.
        assert_eq!(unsafe { extensions::consortThreadSetTimeout(0.2, &mut before) }, OK);
        assert_eq!(before, timeout::INHERIT);
        failed(reduce(&mut [1, 2], SUM, comms[0], NO_STREAM), TIMEOUT, "rank 1 (host");
        // SAFETY: null is allowed.
        assert_eq!(unsafe { extensions::consortThreadSetTimeout(before, null_mut()) }, OK);
        destroy_all(&comms);
        let comms = all(2);
        assert_eq!(consortCommSetTimeout(comms[0], timeout::INHERIT), OK);
        let other = Sent(comms[1]);
        for _ in 0..2 {
            let theirs = std::thread::spawn(move || reduce(&mut [0, 0], SUM, other.get(), NO_STREAM));
            assert_eq!(reduce(&mut [1, 2], SUM, comms[0], NO_STREAM), OK, "{}", last_error());
            assert_eq!(theirs.join().expect("no panic"), OK);
        }
        assert_eq!(consortCommSetTimeout(comms[0], 0.2), OK);
        failed(reduce(&mut [1, 2], SUM, comms[0], NO_STREAM), TIMEOUT, "rank 1 (host");
        destroy_all(&comms);
    });
}

#[test]
fn every_number_of_a_call_is_looked_at() {
    repeated(2, |rank, comm| {
        let mut half = null_mut();
        ok!(ncclCommSplit(comm, rank, 0, &mut half, null()));
        let input = [rank + 1; 8];
        for _ in 0..2 {
            let mut output = [0; 8];
            let place = to(&mut output);
            ok!(ncclAllReduce(from(&input), place, 2, INT32, SUM, comm, NO_STREAM));
            // Another count, another type, another operator, another communicator, of one rank.
            ok!(ncclAllReduce(from(&input), place, 3, INT32, SUM, comm, NO_STREAM));
            assert_eq!(output, [3, 3, 3, 0, 0, 0, 0, 0]);
            ok!(ncclAllReduce(from(&input), place, 3, INT64, SUM, comm, NO_STREAM));
            assert_eq!(output, [3, 3, 3, 3, 3, 3, 0, 0]);
            ok!(ncclAllReduce(from(&input), place, 3, INT64, 2, comm, NO_STREAM));
            assert_eq!(output, [2, 2, 2, 2, 2, 2, 0, 0]);
            ok!(ncclAllReduce(from(&input), place, 3, INT64, 2, half, NO_STREAM));
            assert_eq!(output[..6], input[..6]);
            for root in 0..2 {
                let mut output = [-1; 4];
                ok!(ncclGather(from(&input), to(&mut output), 2, INT32, root, comm, NO_STREAM));
                assert_eq!(output, if rank == root { [1, 1, 2, 2] } else { [-1; 4] });
            }
            // An operator of the program, after the sum whose place it takes in the call.
            let (mut factor, mut op) = (3, 0);
            ok!(ncclRedOpCreatePreMulSum(&mut op, std::ptr::from_mut(&mut factor).cast(), INT32, 1, comm));
            ok!(ncclAllReduce(from(&input), place, 2, INT32, SUM, comm, NO_STREAM));
            ok!(ncclAllReduce(from(&input), place, 2, INT32, op, comm, NO_STREAM));
            assert_eq!(output[..2], [9, 9]);
            ok!(ncclRedOpDestroy(op, comm));
        }
        assert_eq!(destroy(half), OK);
    });
}

#[test]
fn messages_that_cannot_run_at_once_are_looked_at_all_the_same() {
    repeated(2, |rank, comm| {
        let (input, mut output) = ([rank; 3], [-1; 3]);
        let (start, place) = (from(&input), to(&mut output));
        let peer = 1 - rank;
        for turn in 0..3 {
            for mine in [turn % 2, 1 - turn % 2] {
                if mine == rank {
                    ok!(ncclSend(start, 3, INT32, peer, comm, NO_STREAM));
                } else {
                    ok!(ncclRecv(place, 3, INT32, peer, comm, NO_STREAM));
                }
            }
        }
        refused(c!(ncclSend(null(), 3, INT32, peer, comm, NO_STREAM)), "the send buffer is null");
        refused(c!(ncclRecv(null_mut(), 3, INT32, peer, comm, NO_STREAM)), "the receive buffer is null");
        refused(c!(ncclSend(start, usize::MAX, INT32, peer, comm, NO_STREAM)), "exceed the address space");
        refused(c!(ncclSend(start, 3, 99, peer, comm, NO_STREAM)), "no data type 99");
        refused(c!(ncclSend(start, 3, INT32, 2, comm, NO_STREAM)), "rank 2 does not exist");
        refused(c!(ncclSend(start, 3, INT32, -1, comm, NO_STREAM)), "rank -1 is negative");
        refused(c!(ncclSend(start, 3, INT32, rank, comm, NO_STREAM)), "is this rank");
        ok!(ncclSend(null(), 0, INT32, peer, comm, NO_STREAM));
        ok!(ncclRecv(null_mut(), 0, INT32, peer, comm, NO_STREAM));
        works(rank, 2, comm);
        assert_eq!(output, [peer; 3]);
    });
}
