//! Arguments that can be seen to be wrong.

use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};

use consort::UniqueId;

use super::*;

/// All-reduce of 32-bit numbers.
fn all_reduce(input: &[i32], output: &mut [i32], element: c_int, op: c_int, comm: Comm) -> c_int {
    assert_eq!(input.len(), output.len());
    let (from, to) = (input.as_ptr().cast(), output.as_mut_ptr().cast());
    // SAFETY: both buffers hold as many elements of at most four bytes, or the type is refused.
    unsafe { ncclAllReduce(from, to, input.len(), element, op, comm, null_mut()) }
}

#[test]
fn places_for_results_must_not_be_null() {
    let mut version = 0;
    // SAFETY: the version is writable.
    assert_eq!(unsafe { ncclGetVersion(&mut version) }, OK);
    assert!(version >= 20_000);
    // SAFETY: null is allowed and refused.
    refused(unsafe { ncclGetVersion(null_mut()) }, "version is null");
    // SAFETY: as above.
    refused(unsafe { ncclGetUniqueId(null_mut()) }, "uniqueId is null");
    // SAFETY: as above.
    refused(unsafe { ncclCommInitRank(null_mut(), 1, unique_id(), 0) }, "newcomm is null");
    let (mut rank, mut size, mut id) = (-1, -1, unique_id());
    // SAFETY: two places of three are writable, as in the next two; null is allowed and refused.
    refused(unsafe { consortLaunch(null_mut(), &mut size, &mut id) }, "rank is null");
    // SAFETY: as above.
    refused(unsafe { consortLaunch(&mut rank, null_mut(), &mut id) }, "size is null");
    // SAFETY: as above.
    refused(unsafe { consortLaunch(&mut rank, &mut size, null_mut()) }, "id is null");
}

#[test]
fn joining_checks_rank_size_and_id() {
    let id = unique_id();
    let zeros = NcclUniqueId { internal: [0; UniqueId::BYTES] };
    let cases = [
        (id, -1, 2, "rank -1 does not exist"),
        (id, 2, 2, "rank 2 does not exist"),
        (id, 0, 0, "rank 0 does not exist"),
        (id, 0, -1, "a communicator of -1"),
        (zeros, 0, 1, "not a unique id"),
    ];
    for (id, rank, size, why) in cases {
        let mut comm = null_mut();
        // SAFETY: the handle's place is writable.
        refused(unsafe { ncclCommInitRank(&mut comm, size, id, rank) }, why);
        assert!(comm.is_null());
    }
}

#[test]
fn one_rank_reduces_and_its_freed_handle_is_refused() {
    let comm = join(unique_id(), 0, 1);
    let (input, mut output) = ([1, -2, 3], [0; 3]);
    assert_eq!(all_reduce(&input, &mut output, INT32, SUM, comm), OK, "{}", last_error());
    assert_eq!(output, input);
    assert_eq!(destroy(comm), OK);
    refused(all_reduce(&input, &mut output, INT32, SUM, comm), "freed");
    refused(destroy(comm), "freed");
    refused(all_reduce(&input, &mut output, INT32, SUM, null_mut()), "null, freed or foreign");
    // SAFETY: the buffer has an element.
    refused(unsafe { ncclSend(input.as_ptr().cast(), 1, INT32, 0, comm, null_mut()) }, "freed");
    assert_eq!(destroy(null_mut()), OK);
}

#[test]
fn types_operators_and_ranks_are_checked() {
    let comm = join(unique_id(), 0, 1);
    let (input, mut output) = ([1], [0]);
    for code in [-1, 99] {
        refused(all_reduce(&input, &mut output, code, SUM, comm), &format!("no data type {code}"));
        refused(all_reduce(&input, &mut output, INT32, code, comm), &format!("no reduction operator {code}"));
    }
    let (from, to): (*const c_void, Comm) = (input.as_ptr().cast(), output.as_mut_ptr().cast());
    for (root, why) in [(-1, "rank -1 is negative"), (1, "rank 1 does not exist")] {
        // SAFETY: every buffer has an element.
        unsafe {
            refused(ncclReduce(from, to, 1, INT32, SUM, root, comm, null_mut()), why);
            refused(ncclBroadcast(from, to, 1, INT32, root, comm, null_mut()), why);
            refused(ncclSend(from, 1, INT32, root, comm, null_mut()), why);
            refused(ncclRecv(to, 1, INT32, root, comm, null_mut()), why);
        }
    }
    // SAFETY: as above.
    refused(unsafe { ncclSend(from, 1, INT32, 0, comm, null_mut()) }, "is this rank");
    assert_eq!(all_reduce(&input, &mut output, INT32, SUM, comm), OK, "a refused call leaves all as it was");
    assert_eq!(destroy(comm), OK);
}

/// Every function that takes buffers, with one count and the same two addresses.
fn every_call(from: *const c_void, to: *mut c_void, count: usize, comm: Comm) -> [(&'static str, c_int); 7] {
    let none = null_mut();
    // SAFETY: callers pass null addresses, no elements, or a count that is refused.
    unsafe {
        [
            ("all-reduce", ncclAllReduce(from, to, count, INT64, SUM, comm, none)),
            ("reduce", ncclReduce(from, to, count, INT64, SUM, 0, comm, none)),
            ("broadcast", ncclBroadcast(from, to, count, INT64, 0, comm, none)),
            ("all-gather", ncclAllGather(from, to, count, INT64, comm, none)),
            ("reduce-scatter", ncclReduceScatter(from, to, count, INT64, SUM, comm, none)),
            ("send", ncclSend(from, count, INT64, 0, comm, none)),
            ("receive", ncclRecv(to, count, INT64, 0, comm, none)),
        ]
    }
}

#[test]
fn null_buffers_and_huge_counts_are_refused() {
    let comm = join(unique_id(), 0, 1);
    let mut data = [7i64; 2];
    let start: *mut c_void = data.as_mut_ptr().cast();
    for (name, status) in every_call(null(), null_mut(), 1, comm) {
        assert_eq!(status, INVALID, "{name}");
    }
    // The receive buffer alone; a send has none.
    for (name, status) in every_call(start, null_mut(), 1, comm) {
        assert_eq!(status, INVALID, "{name}");
    }
    // SAFETY: null is allowed and refused.
    let status = unsafe { ncclAllReduce(start, null_mut(), 1, INT64, SUM, comm, null_mut()) };
    refused(status, "the receive buffer is null and must have 8 bytes");
    // SAFETY: as above.
    let status = unsafe { ncclSend(null(), 1, INT64, 0, comm, null_mut()) };
    refused(status, "the send buffer is null and must have 8 bytes");
    // 8 * 2^61 is 0 and 8 * (2^61 + 1) is 8 where the product wraps.
    for count in [1 << 60, 1 << 61, (1 << 61) + 1, usize::MAX] {
        for (name, status) in every_call(start, start, count, comm) {
            assert_eq!(status, INVALID, "{name} of {count}");
            assert!(last_error().contains("address space"), "{}", last_error());
        }
    }
    assert_eq!(data, [7; 2]);
    assert_eq!(destroy(comm), OK);
}

#[test]
fn no_elements_need_no_buffers() {
    let comm = join(unique_id(), 0, 1);
    for (name, status) in every_call(null(), null_mut(), 0, comm) {
        // A rank sends nothing to itself, not even no elements.
        let expected = if name == "send" || name == "receive" { INVALID } else { OK };
        assert_eq!(status, expected, "{name}");
    }
    assert_eq!(destroy(comm), OK);
}

#[test]
fn two_threads_are_two_ranks() {
    let id = unique_id();
    let run = |rank: c_int| {
        let comm = join(id, rank, 2);
        let (input, mut output) = (vec![rank + 1; 5000], vec![0; 5000]);
        assert_eq!(all_reduce(&input, &mut output, INT32, SUM, comm), OK, "{}", last_error());
        assert!(output.iter().all(|value| *value == 3));
        // SAFETY: the buffers hold the elements.
        let status = unsafe {
            if rank == 0 {
                ncclSend(input.as_ptr().cast(), 5000, INT32, 1, comm, null_mut())
            } else {
                ncclRecv(output.as_mut_ptr().cast(), 5000, INT32, 0, comm, null_mut())
            }
        };
        assert_eq!(status, OK, "{}", last_error());
        assert!(rank == 0 || output.iter().all(|value| *value == 1));
        let mut both = [0; 2];
        // SAFETY: one element from each of two ranks.
        let status = unsafe {
            ncclAllGather(input.as_ptr().cast(), both.as_mut_ptr().cast(), 1, INT32, comm, null_mut())
        };
        assert_eq!((status, both), (OK, [1, 2]), "{}", last_error());
        assert_eq!(destroy(comm), OK);
    };
    std::thread::scope(|threads| {
        threads.spawn(|| run(1));
        run(0);
    });
}

#[test]
fn the_text_of_a_communicator_stays_while_others_are_asked_for() {
    let mut comms = [null_mut(); 2];
    // SAFETY: there is room for two handles.
    assert_eq!(unsafe { ncclCommInitAll(comms.as_mut_ptr(), 2, null()) }, OK);
    for comm in comms {
        // SAFETY: no reason, which is allowed.
        assert_eq!(unsafe { extensions::consortCommAbort(comm, null()) }, OK);
    }
    let texts = comms.map(|comm| consortGetLastError(comm));
    last_error();
    // SAFETY: this thread has had no failing call with them.
    let texts = texts.map(|text| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned());
    assert!(texts.iter().all(|text| text.contains("aborted")), "{texts:?}");
    for comm in comms {
        assert_eq!(destroy(comm), OK);
    }
}
