//! Communicators that are made of others: split, shrunk, grown.

use std::ptr::{null, null_mut};
use std::sync::{Barrier, Mutex};
use std::thread::JoinHandle;

use super::*;

fn shape(comm: Comm) -> (c_int, c_int) {
    let (mut rank, mut size) = (-1, -1);
    ok!(ncclCommUserRank(comm, &mut rank));
    ok!(ncclCommCount(comm, &mut size));
    (rank, size)
}

#[test]
fn a_split_divides_by_colour_and_orders_by_key() {
    ranks(5, |rank, comm| {
        let mut child = null_mut();
        // 4, 2 and 0 in this order; 1 and 3 as they were, their keys being equal.
        let key = if rank % 2 == 0 { -rank } else { 7 };
        ok!(ncclCommSplit(comm, rank % 2, key, &mut child, null()));
        assert_eq!(shape(child), [(2, 3), (0, 2), (1, 3), (1, 2), (0, 3)][rank as usize]);
        let mut sum = [1 << rank];
        assert_eq!(reduce(&mut sum, SUM, child, NO_STREAM), OK, "{}", last_error());
        assert_eq!(sum, [if rank % 2 == 0 { 0b10101 } else { 0b1010 }]);
        works(rank, 5, comm);
        // The child lives on without its parent.
        assert_eq!(destroy(comm), OK);
        assert_eq!(reduce(&mut sum, SUM, child, NO_STREAM), OK, "{}", last_error());
        assert_eq!(destroy(child), OK);
    });
}

#[test]
fn a_rank_without_a_colour_is_in_no_child() {
    ranks(3, |rank, comm| {
        let mut child: Comm = std::ptr::without_provenance_mut(5);
        let color = if rank == 1 { -1 } else { i32::MAX };
        ok!(ncclCommSplit(comm, color, i32::MIN, &mut child, null()));
        if rank == 1 {
            assert!(child.is_null());
        } else {
            assert_eq!(shape(child), (rank / 2, 2));
            assert_eq!(destroy(child), OK);
        }
        works(rank, 3, comm);
    });
}

#[test]
fn wrong_splits_are_refused() {
    ranks(2, |rank, comm| {
        let mut child = null_mut();
        for color in [-2, i32::MIN] {
            refused(c!(ncclCommSplit(comm, color, 0, &mut child, null())), "colour");
        }
        refused(c!(ncclCommSplit(comm, 0, 0, null_mut(), null())), "newcomm is null");
        refused(c!(ncclCommSplit(null_mut(), 0, 0, &mut child, null())), "null, freed");
        assert!(child.is_null());
        works(rank, 2, comm);
    });
}

#[test]
fn several_splits_in_one_group() {
    within(DEADLINE, || {
        // All ranks in one thread, and two splits of each.
        let comms = all(3);
        let (mut halves, mut turned) = ([null_mut(); 3], [null_mut(); 3]);
        ok!(ncclGroupStart());
        for (rank, comm) in comms.iter().enumerate() {
            ok!(ncclCommSplit(*comm, 0, -(rank as c_int), &mut turned[rank], null()));
        }
        ok!(ncclGroupEnd());
        ok!(ncclGroupStart());
        for (rank, comm) in comms.iter().enumerate() {
            ok!(ncclCommSplit(*comm, rank as c_int / 2, 0, &mut halves[rank], null()));
        }
        ok!(ncclGroupEnd());
        assert_eq!(turned.map(shape), [(2, 3), (1, 3), (0, 3)]);
        assert_eq!(halves.map(shape), [(0, 2), (1, 2), (0, 1)]);
        destroy_all(&halves);
        destroy_all(&turned);
        destroy_all(&comms);
    });
}

#[test]
fn survivors_shrink_an_idle_communicator() {
    ranks(4, |rank, comm| {
        static OVER: Barrier = Barrier::new(4);
        works(rank, 4, comm);
        if rank != 1 && rank != 3 {
            let (mut child, mut excluded) = (null_mut(), [3, 1]);
            ok!(ncclCommShrink(comm, excluded.as_mut_ptr(), 2, &mut child, null(), 0));
            assert_eq!(excluded, [1, 3], "sorted in place");
            assert_eq!(shape(child), (rank / 2, 2));
            works(rank / 2, 2, child);
            assert_eq!(destroy(child), OK);
        }
        OVER.wait();
        works(rank, 4, comm);
    });
}

#[test]
fn wrong_shrinks_are_refused() {
    ranks(2, |rank, comm| {
        let (mut child, mut excluded): (Comm, _) = (null_mut(), [0, 1, 2, -1]);
        let place = &raw mut child;
        let list = excluded.as_mut_ptr();
        let other = c!(list.add(1 - rank as usize));
        let itself = c!(list.add(rank as usize));
        let outsider = c!(list.add(2));
        let negative = c!(list.add(3));
        let shrink = |comm, list, number, flags| c!(ncclCommShrink(comm, list, number, place, null(), flags));
        for flags in [0, 1] {
            assert_eq!(shrink(comm, null_mut(), 1, flags), INVALID);
            assert_eq!(shrink(comm, other, 0, flags), INVALID);
            assert_eq!(shrink(comm, other, -1, flags), INVALID);
            assert_eq!(shrink(comm, itself, 1, flags), INVALID, "it excludes itself");
            assert_eq!(shrink(comm, outsider, 1, flags), INVALID);
            assert_eq!(shrink(comm, negative, 1, flags), INVALID);
            assert_eq!(shrink(null_mut(), other, 1, flags), INVALID);
            let mut twice = [1 - rank; 2];
            assert_eq!(shrink(comm, twice.as_mut_ptr(), 2, flags), INVALID);
        }
        for flags in [2, -1] {
            refused(shrink(comm, other, 1, flags), "shrink flags");
        }
        assert_eq!(c!(ncclCommShrink(comm, other, 1, null_mut(), null(), 0)), INVALID);
        assert!(child.is_null());
        // None of it ended an operation, not even with the flag that does.
        works(rank, 2, comm);
    });
}

/// Two ranks wait for a third that stays away, in an operation that `put` begins, perhaps on a thread of its own;
/// they shrink without it.
fn shrinks_out_of(put: impl Fn(Comm, *mut i32) -> Option<JoinHandle<()>> + Send + Sync + 'static) {
    let (waiting, over) = (Barrier::new(2), Barrier::new(3));
    ranks(3, move |rank, comm| {
        if rank != 2 {
            let (mut data, mut child) = (Box::new([rank + 1]), null_mut());
            let caller = put(comm, data.as_mut_ptr());
            // The first rank that shrinks ends the other's operation too.
            waiting.wait();
            let at = Instant::now();
            ok!(ncclCommShrink(comm, [2].as_mut_ptr(), 1, &mut child, null(), 1));
            assert!(at.elapsed() < DEADLINE / 6, "it waited for the deadline: {:?}", at.elapsed());
            if let Some(caller) = caller {
                caller.join().expect("what it asserts");
            }
            assert_eq!(consortCommSetTimeout(child, 20.0), OK);
            works(rank, 2, child);
            assert_eq!(destroy(child), OK);
            assert_eq!(destroy(comm), OK, "{}", last_error());
            drop(data);
        }
        over.wait();
        if rank == 2 {
            ok!(ncclCommAbort(comm));
        }
    });
}

#[test]
fn shrinking_ends_what_is_in_a_stream() {
    shrinks_out_of(|comm, data| {
        let mut stream = null_mut();
        ok!(consortStreamCreate(&mut stream));
        ok!(ncclAllReduce(data.cast(), data.cast(), 1, INT32, SUM, comm, stream));
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(c!(ncclCommShrink(comm, [2].as_mut_ptr(), 1, &mut null_mut(), null(), 0)), USAGE);
        assert_eq!(consortStreamQuery(stream), PENDING);
        None
    });
}

#[test]
fn shrinking_ends_a_call_of_another_thread() {
    shrinks_out_of(|comm, data| {
        let (comm, data) = (Sent(comm), Sent(data.cast()));
        let caller = std::thread::spawn(move || {
            let status = c!(ncclAllReduce(data.get(), data.get(), 1, INT32, SUM, comm.get(), NO_STREAM));
            assert_eq!(status, USAGE, "{}", last_error());
        });
        await_call(comm.get());
        Some(caller)
    });
}

#[test]
fn a_communicator_grows() {
    within(DEADLINE, || {
        static MET: Barrier = Barrier::new(4);
        static ID: Mutex<Option<NcclUniqueId>> = Mutex::new(None);
        let id = unique_id();
        std::thread::scope(|threads| {
            for rank in 0..2 {
                threads.spawn(move || {
                    let comm = join(id, rank, 2);
                    if rank == 1 {
                        let mut growth = NcclUniqueId { internal: [0; UniqueId::BYTES] };
                        ok!(ncclCommGetUniqueId(comm, &mut growth));
                        *ID.lock().expect("a lock") = Some(growth);
                    }
                    MET.wait();
                    let passed = *ID.lock().expect("a lock");
                    // Only the rank that made it passes it.
                    let passed = passed.filter(|_| rank == 1);
                    let passed = passed.as_ref().map_or(null(), std::ptr::from_ref);
                    let mut grown = null_mut();
                    ok!(ncclCommGrow(comm, 4, passed, -1, &mut grown, null()));
                    assert_eq!(shape(grown), (rank, 4));
                    works(rank, 4, grown);
                    works(rank, 2, comm);
                    destroy_all(&[grown, comm]);
                });
            }
            for rank in 2..4 {
                threads.spawn(move || {
                    MET.wait();
                    let passed = ID.lock().expect("a lock").expect("an id");
                    let mut grown = null_mut();
                    ok!(ncclCommGrow(null_mut(), 4, &passed, rank, &mut grown, null()));
                    assert_eq!(shape(grown), (rank, 4));
                    works(rank, 4, grown);
                    assert_eq!(destroy(grown), OK);
                });
            }
        });
    });
}

#[test]
fn wrong_growths_are_refused() {
    ranks(1, |_, comm| {
        let mut grown = null_mut();
        refused(c!(ncclCommGrow(null_mut(), 2, null(), 1, &mut grown, null())), "neither");
        refused(c!(ncclCommGrow(comm, 2, null(), 1, &mut grown, null())), "rank 1");
        assert_eq!(c!(ncclCommGrow(comm, 0, null(), -1, &mut grown, null())), INVALID);
        assert_eq!(c!(ncclCommGrow(comm, -1, null(), -1, &mut grown, null())), INVALID);
        refused(c!(ncclCommGetUniqueId(comm, null_mut())), "uniqueId is null");
        let mut id = NcclUniqueId { internal: [0; UniqueId::BYTES] };
        refused(c!(ncclCommGetUniqueId(null_mut(), &mut id)), "null, freed");
        assert!(grown.is_null());
        works(0, 1, comm);
    });
}

#[test]
fn several_splits_of_one_communicator_in_a_group_keep_their_order() {
    ranks(4, |rank, comm| {
        let (mut rows, mut columns) = (null_mut(), null_mut());
        ok!(ncclGroupStart());
        ok!(ncclCommSplit(comm, rank / 2, 0, &mut rows, null()));
        ok!(ncclCommSplit(comm, rank % 2, 0, &mut columns, null()));
        ok!(ncclGroupEnd());
        assert_eq!((shape(rows), shape(columns)), ((rank % 2, 2), (rank / 2, 2)));
        let (mut row, mut column) = ([rank], [rank]);
        assert_eq!(reduce(&mut row, SUM, rows, NO_STREAM), OK, "{}", last_error());
        assert_eq!(reduce(&mut column, SUM, columns, NO_STREAM), OK, "{}", last_error());
        assert_eq!((row, column), ([rank / 2 * 4 + 1], [rank % 2 * 2 + 2]));
        destroy_all(&[rows, columns]);
    });
}
