//! A thousand communicators, made and ended in every way that the C functions have, leave nothing behind: no memory,
//! descriptor, thread or shared memory.

use std::ptr::null_mut;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use consort_tests::c_calls::{
    self, Comm, NON_BLOCKING, Shared, both, destroy, group, join, join_by, ok, split, sum, sum_in_group,
    unique_id,
};
use consort_tests::counting::bytes;
use consort_tests::own_process::in_own_process;
use consort_tests::system::{SOON, descriptors, eventually, shared_memory_names, status, threads};

/// Handles of a round.
const EACH: usize = 15;
const WARM_UP: usize = 9;
const ROUNDS: usize = 84;
/// Bytes that may be allocated more than after warming up: tables that have grown, and nothing for each communicator.
const HEAP_MORE: i64 = 32 << 10;
/// KiB that may be resident more; the allocator keeps freed memory in pieces.
const RESIDENT_MORE: u64 = 4 << 10;

/// Two threads join by an id; each uses its communicator and ends it.
fn by_id(config: Option<&[u64; 3]>, abort: bool) {
    let (id, both) = (unique_id(), Barrier::new(2));
    let rank = |rank| {
        let comm = join(id, rank, config);
        let (number, mut total) = (rank + 1, 0);
        let result = sum(&number, &mut total, comm, null_mut());
        assert!(result == c_calls::SUCCESS || config.is_some() && result == c_calls::IN_PROGRESS);
        c_calls::settled(comm);
        assert_eq!(total, 3);
        both.wait();
        if abort {
            // SAFETY: any handle.
            ok(unsafe { nccl::ncclCommAbort(comm) });
        } else {
            destroy(comm);
        }
    };
    std::thread::scope(|threads| {
        threads.spawn(|| rank(1));
        rank(0);
    });
}

/// Ids by which no rank meets: all but the first of several, also when ranks disagree about them, and those of a
/// single rank.
fn by_ids_that_no_rank_needs() {
    let [first, one, other] = [unique_id(), unique_id(), unique_id()];
    std::thread::scope(|threads| {
        let refused = |second, rank| {
            assert_eq!(
                c_calls::try_join(&[first, second], rank, 2, None),
                (c_calls::INVALID_USAGE, null_mut())
            );
        };
        threads.spawn(move || refused(one, 1));
        refused(other, 0);
    });
    destroy(join_by(&[unique_id()], 0, 1, None));
    let ids = [unique_id(), unique_id()];
    std::thread::scope(|threads| {
        threads.spawn(|| destroy(join_by(&ids, 1, 2, None)));
        destroy(join_by(&ids, 0, 2, None));
    });
}

/// All ranks on one thread: in groups, divided, in a stream; ended in groups or one after the other.
fn of_one_thread(together: bool) {
    let comms = both();
    sum_in_group(comms, null_mut());
    let parts = split(comms);
    let mut stream = null_mut();
    // SAFETY: the place is writable.
    ok(unsafe { nccl::consortStreamCreate(&mut stream) });
    sum_in_group(parts, stream);
    ok(nccl::consortStreamDestroy(stream));
    // SAFETY: any handle.
    parts.into_iter().for_each(|comm| ok(unsafe { nccl::ncclCommFinalize(comm) }));
    let ended = || parts.into_iter().chain(comms).for_each(destroy);
    if together { group(ended) } else { ended() }
}

/// Aborted while the other thread waits for a rank that never calls.
fn aborted() {
    let [waiting, absent]: [Comm; 2] = both();
    std::thread::scope(|threads| {
        let handle = Shared::new(waiting);
        let waits = threads.spawn(move || {
            let mut total = 0;
            sum(&1, &mut total, handle.get(), null_mut())
        });
        std::thread::sleep(Duration::from_millis(1));
        // SAFETY: any handle, on any thread.
        ok(unsafe { nccl::ncclCommAbort(handle.get()) });
        assert_ne!(waits.join().expect("the waiting thread"), c_calls::SUCCESS);
    });
    // SAFETY: as above.
    ok(unsafe { nccl::ncclCommAbort(absent) });
}

fn round(at: usize) {
    by_id(None, false);
    by_id(Some(&NON_BLOCKING), at.is_multiple_of(2));
    by_ids_that_no_rank_needs();
    of_one_thread(at.is_multiple_of(2));
    aborted();
    // A failure, whose text is kept.
    let [comm, other] = both();
    [comm, other].into_iter().for_each(destroy);
    // SAFETY: a freed handle is refused.
    assert_ne!(unsafe { nccl::ncclCommDestroy(comm) }, c_calls::SUCCESS);
}

/// Shared memory that is mapped.
fn shared_mappings() -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("procfs");
    maps.lines()
        .filter(|line| line.contains("memfd:") || line.contains("/dev/shm"))
        .map(str::to_owned)
        .collect()
}

/// Mappings of any kind; also stacks of threads that were not joined.
fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").expect("procfs").lines().count()
}

/// Descriptors, shared mappings, names in /dev/shm, threads, handles.
fn held() -> [usize; 5] {
    let (comms, streams) = nccl::handles_in_use();
    [descriptors().len(), shared_mappings().len(), shared_memory_names().len(), threads(), comms + streams]
}

/// The resources that are held, once there are no more than `before`; after a while in any case.
fn settled(before: [usize; 5]) -> [usize; 5] {
    eventually(SOON, || held().iter().zip(&before).all(|(now, before)| now <= before));
    held()
}

#[test]
fn a_thousand_communicators_leave_nothing() {
    in_own_process("leaks::a_thousand_communicators_leave_nothing", &[], count_what_is_left);
}

fn count_what_is_left() {
    let begun = Instant::now();
    // Before the first there is nothing that would be left.
    let before = held();
    (0..WARM_UP).for_each(round);
    settled(before);
    let (heap, resident, mapped) = (bytes(), status("VmRSS"), mappings());
    (0..ROUNDS).for_each(round);
    let after = settled(before);
    let more = bytes() - heap;
    let grown = status("VmRSS").saturating_sub(resident);
    println!(
        "{} communicators after {}: descriptors, shared mappings, names, threads, handles {before:?} before, {after:?} \
         after; {more} bytes of heap and {grown} KiB resident more, {mapped} mappings before, {} after; {:.1} s",
        ROUNDS * EACH,
        WARM_UP * EACH,
        mappings(),
        begun.elapsed().as_secs_f64()
    );
    assert!(
        after.iter().zip(&before).all(|(after, before)| after <= before),
        "descriptors, shared mappings, names in /dev/shm, threads, handles: {after:?}, before {before:?}"
    );
    assert!(more < HEAP_MORE, "{more} bytes more are allocated");
    assert!(grown < RESIDENT_MORE, "{grown} KiB more are resident");
    assert!(mappings() < mapped + 16, "{} mappings, {mapped} before", mappings());
}
