//! Buffers: in place, empty, absent where a rank needs none, at odd addresses, overlapping.

use std::ptr::{null, null_mut};

use super::*;

#[test]
fn every_form_in_place() {
    ranks(3, |rank, comm| {
        let (me, none) = (rank as usize, NO_STREAM);
        let base = |ranks: usize| (0..ranks as i32).map(|at| at + 10 * rank).collect::<Vec<i32>>();

        let mut all = base(3);
        assert_eq!(reduce(&mut all, SUM, comm, none), OK);
        assert_eq!(all, [30, 33, 36]);

        let mut rooted = base(3);
        let place = to(&mut rooted);
        ok!(ncclReduce(place, place, 3, INT32, SUM, 1, comm, none));
        assert_eq!(rooted, if rank == 1 { vec![30, 33, 36] } else { base(3) });

        let mut cast = base(3);
        let place = to(&mut cast);
        ok!(ncclBroadcast(place, place, 3, INT32, 2, comm, none));
        assert_eq!(cast, [20, 21, 22]);
        let mut cast = base(3);
        ok!(ncclBcast(to(&mut cast), 3, INT32, 1, comm, none));
        assert_eq!(cast, [10, 11, 12]);

        let mut gathered = vec![-1; 6];
        gathered[2 * me..2 * me + 2].copy_from_slice(&base(2));
        let place: *mut i32 = gathered.as_mut_ptr();
        let mine = c!(place.add(2 * me));
        ok!(ncclAllGather(mine.cast(), place.cast(), 2, INT32, comm, none));
        assert_eq!(gathered, [0, 1, 10, 11, 20, 21]);

        let mut scattered = base(6);
        let place: *mut i32 = scattered.as_mut_ptr();
        let mine = c!(place.add(2 * me));
        ok!(ncclReduceScatter(place.cast(), mine.cast(), 2, INT32, SUM, comm, none));
        assert_eq!(scattered[2 * me..2 * me + 2], [30 + 6 * rank, 33 + 6 * rank]);

        let mut gathered = vec![-1; 6];
        gathered[2 * me..2 * me + 2].copy_from_slice(&base(2));
        let place: *mut i32 = gathered.as_mut_ptr();
        let mine = c!(place.add(2 * me));
        ok!(ncclGather(mine.cast(), place.cast(), 2, INT32, 1, comm, none));
        if rank == 1 {
            assert_eq!(gathered, [0, 1, 10, 11, 20, 21]);
        }

        let mut scattered = base(6);
        let place: *mut i32 = scattered.as_mut_ptr();
        let mine = c!(place.add(2 * me));
        ok!(ncclScatter(place.cast(), mine.cast(), 2, INT32, 2, comm, none));
        assert_eq!(scattered[2 * me..2 * me + 2], [20 + 2 * rank, 21 + 2 * rank]);
    });
}

#[test]
fn every_form_from_one_buffer_to_another() {
    ranks(3, |rank, comm| {
        let none = NO_STREAM;
        let (two, six) = ([rank; 2], [0, 0, 1, 1, 2, 2].map(|to: i32| 10 * rank + to));
        let (mut to_two, mut to_six) = ([-1; 2], [-1; 6]);
        ok!(ncclAllGather(from(&two), to(&mut to_six), 2, INT32, comm, none));
        assert_eq!(to_six, [0, 0, 1, 1, 2, 2]);
        ok!(ncclReduceScatter(from(&six), to(&mut to_two), 2, INT32, SUM, comm, none));
        assert_eq!(to_two, [30 + 3 * rank; 2]);
        to_six = [-1; 6];
        ok!(ncclAlltoAll(from(&six), to(&mut to_six), 2, INT32, comm, none));
        assert_eq!(to_six, [0, 0, 10, 10, 20, 20].map(|from: i32| from + rank));
        ok!(ncclGather(from(&two), to(&mut to_six), 2, INT32, 0, comm, none));
        if rank == 0 {
            assert_eq!(to_six, [0, 0, 1, 1, 2, 2]);
        }
        ok!(ncclScatter(from(&six), to(&mut to_two), 2, INT32, 1, comm, none));
        assert_eq!(to_two, [10 + rank; 2]);
        assert_eq!((two, six[0]), ([rank; 2], 10 * rank), "inputs are left alone");
    });
}

#[test]
fn a_rank_without_use_for_a_buffer_may_pass_anything() {
    ranks(2, |rank, comm| {
        let (mut data, none) = ([rank + 1; 2], NO_STREAM);
        // Null, and an address without memory.
        for nothing in [0usize, 8] {
            let nothing = std::ptr::without_provenance_mut::<c_void>(nothing);
            let is_root = rank == 1;
            let input = if is_root { from(&data) } else { nothing };
            let mut output = [0; 2];
            ok!(ncclBroadcast(input, to(&mut output), 2, INT32, 1, comm, none));
            assert_eq!(output, [2; 2]);
            let mut output = [0; 2];
            let place = if is_root { to(&mut output) } else { nothing };
            ok!(ncclReduce(from(&data), place, 2, INT32, SUM, 1, comm, none));
            assert_eq!(output, [if is_root { 3 } else { 0 }; 2]);
            let mut output = [0; 4];
            let place = if is_root { to(&mut output) } else { nothing };
            ok!(ncclGather(from(&data), place, 2, INT32, 1, comm, none));
            assert_eq!(output, if is_root { [1, 1, 2, 2] } else { [0; 4] });
            let input = if is_root { from(&output) } else { nothing };
            let mut part = [0; 2];
            ok!(ncclScatter(input, to(&mut part), 2, INT32, 1, comm, none));
            assert_eq!(part, [rank + 1; 2]);
        }
        ok!(ncclReduce(from(&data), to(&mut data), 2, INT32, SUM, 0, comm, none));
    });
}

/// Every collective with no elements.
fn nothing_of_everything(root: c_int, comm: Comm, stream: *mut c_void) -> [(&'static str, c_int); 9] {
    let (input, output) = (null(), null_mut());
    [
        ("all-reduce", c!(ncclAllReduce(input, output, 0, INT32, SUM, comm, stream))),
        ("reduce", c!(ncclReduce(input, output, 0, INT32, SUM, root, comm, stream))),
        ("broadcast", c!(ncclBroadcast(input, output, 0, INT32, root, comm, stream))),
        ("in place", c!(ncclBcast(output, 0, INT32, root, comm, stream))),
        ("all-gather", c!(ncclAllGather(input, output, 0, INT32, comm, stream))),
        ("reduce-scatter", c!(ncclReduceScatter(input, output, 0, INT32, SUM, comm, stream))),
        ("all-to-all", c!(ncclAlltoAll(input, output, 0, INT32, comm, stream))),
        ("gather", c!(ncclGather(input, output, 0, INT32, root, comm, stream))),
        ("scatter", c!(ncclScatter(input, output, 0, INT32, root, comm, stream))),
    ]
}

#[test]
fn no_elements_are_success() {
    ranks(2, |rank, comm| {
        for (name, status) in nothing_of_everything(1, comm, NO_STREAM) {
            assert_eq!(status, OK, "{name}: {}", last_error());
        }
        ok!(ncclGroupStart());
        for (name, status) in nothing_of_everything(0, comm, NO_STREAM) {
            assert_eq!(status, OK, "{name}: {}", last_error());
        }
        ok!(ncclGroupEnd());
        // An error is an error without elements too.
        refused(c!(ncclBroadcast(null(), null_mut(), 0, INT32, 2, comm, NO_STREAM)), "rank 2");
        refused(c!(ncclReduce(null(), null_mut(), 0, INT32, SUM, -1, comm, NO_STREAM)), "rank -1");
        refused(c!(ncclAllReduce(null(), null_mut(), 0, 12, SUM, comm, NO_STREAM)), "no data type 12");
        refused(c!(ncclSend(null(), 0, INT32, 2, comm, NO_STREAM)), "rank 2");
        refused(c!(ncclRecv(null_mut(), 0, INT32, -1, comm, NO_STREAM)), "rank -1");
        works(rank, 2, comm);
    });
}

#[test]
fn calls_without_elements_do_not_wait() {
    within(DEADLINE, || {
        // One thread calls for one rank after the other, without a group, which is allowed: no kernel is launched.
        let comms = all(2);
        for comm in &comms {
            assert_eq!(consortCommSetTimeout(*comm, 2.0), OK);
            for (name, status) in nothing_of_everything(0, *comm, NO_STREAM) {
                assert_eq!(status, OK, "{name}: {}", last_error());
            }
        }
        destroy_all(&comms);
    });
}

#[test]
fn messages_of_no_elements_are_matched() {
    ranks(2, |rank, comm| {
        if rank == 0 {
            ok!(ncclSend(null(), 0, INT32, 1, comm, NO_STREAM));
            let sent = [5];
            ok!(ncclSend(from(&sent), 1, INT32, 1, comm, NO_STREAM));
        } else {
            ok!(ncclRecv(null_mut(), 0, INT32, 0, comm, NO_STREAM));
            let mut received = [0];
            ok!(ncclRecv(to(&mut received), 1, INT32, 0, comm, NO_STREAM));
            assert_eq!(received, [5]);
        }
        ok!(ncclGroupStart());
        ok!(ncclSend(null(), 0, INT32, 1 - rank, comm, NO_STREAM));
        ok!(ncclRecv(null_mut(), 0, INT32, 1 - rank, comm, NO_STREAM));
        ok!(ncclSend(null(), 0, INT32, rank, comm, NO_STREAM));
        ok!(ncclRecv(null_mut(), 0, INT32, rank, comm, NO_STREAM));
        ok!(ncclGroupEnd());
        works(rank, 2, comm);
    });
}

#[test]
fn elements_may_be_at_any_address() {
    ranks(2, |rank, comm| {
        for (offset, count) in [(1, 5), (3, 1000), (7, 70_000)] {
            let (mut input, mut output) = (vec![0u8; count * 8 + 8], vec![0u8; count * 8 + 8]);
            for element in 0..count {
                let at = offset + element * 8;
                input[at..at + 8].copy_from_slice(&(rank as f64 + element as f64).to_ne_bytes());
            }
            let (input, place) = (from(&input[offset..]), to(&mut output[offset..]));
            ok!(ncclAllReduce(input, place, count, 8, SUM, comm, NO_STREAM));
            for (element, bytes) in output[offset..].chunks_exact(8).take(count).enumerate() {
                let value = f64::from_ne_bytes(bytes.try_into().expect("eight"));
                assert_eq!(value, 1.0 + 2.0 * element as f64);
            }
            assert!(output[..offset].iter().chain(&output[offset + count * 8..]).all(|byte| *byte == 0));
        }
    });
}

#[test]
fn overlaps_that_are_no_form_in_place_are_refused_and_leave_the_communicator() {
    ranks(2, |rank, comm| {
        let mut data = [0i32; 8];
        let place: *mut i32 = data.as_mut_ptr();
        let at = |element: usize| c!(place.add(element)).cast::<c_void>();
        let none = NO_STREAM;
        let other = 2 * (1 - rank as usize);
        refused(c!(ncclAllReduce(at(0), at(1), 4, INT32, SUM, comm, none)), "overlap");
        refused(c!(ncclAllGather(at(other), at(0), 2, INT32, comm, none)), "overlap");
        refused(c!(ncclReduceScatter(at(0), at(other), 2, INT32, SUM, comm, none)), "overlap");
        refused(c!(ncclAlltoAll(at(0), at(0), 2, INT32, comm, none)), "overlap");
        works(rank, 2, comm);
    });
}

#[test]
fn every_type_travels() {
    ranks(2, |rank, comm| {
        let sizes = [1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1];
        for (code, size) in sizes.into_iter().enumerate() {
            let (mine, mut both) = (vec![rank as u8 + 1; 3 * size], vec![0u8; 6 * size]);
            ok!(ncclAllGather(from(&mine), to(&mut both), 3, code as c_int, comm, NO_STREAM));
            assert!(both[..3 * size].iter().all(|byte| *byte == 1), "type {code}");
            assert!(both[3 * size..].iter().all(|byte| *byte == 2), "type {code}");
            let mut zeros = vec![0u8; 3 * size];
            let place = to(&mut zeros);
            ok!(ncclAllReduce(place, place, 3, code as c_int, SUM, comm, NO_STREAM));
            assert!(zeros.iter().all(|byte| *byte == 0), "type {code}");
        }
        for code in [-1, 12, 13, 99, i32::MAX, i32::MIN] {
            let mut data = [0u8; 64];
            let place = to(&mut data);
            for status in [
                c!(ncclAllReduce(place, place, 1, code, SUM, comm, NO_STREAM)),
                c!(ncclBcast(place, 1, code, 0, comm, NO_STREAM)),
                c!(ncclGather(place, place, 1, code, 0, comm, NO_STREAM)),
                c!(ncclSend(place, 1, code, 1 - rank, comm, NO_STREAM)),
                c!(ncclRecv(place, 1, code, 1 - rank, comm, NO_STREAM)),
            ] {
                refused(status, &format!("no data type {code}"));
            }
        }
    });
}

#[test]
fn the_buffer_at_the_end_of_the_address_space_is_refused() {
    ranks(1, |_, comm| {
        let last = std::ptr::without_provenance_mut::<c_void>(usize::MAX - 3);
        refused(c!(ncclSend(last, 8, INT32, 0, comm, NO_STREAM)), "address space");
        refused(c!(ncclAllReduce(last, last, 8, INT32, SUM, comm, NO_STREAM)), "address space");
    });
}
