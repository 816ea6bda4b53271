//! Communicators that do not block.

use std::ptr::{null, null_mut};
use std::sync::Barrier;

use super::configs::config;
use super::*;

/// Begins to join, and returns.
pub(super) fn begin(id: NcclUniqueId, rank: c_int, size: c_int) -> Comm {
    let (mut comm, config) = (null_mut(), config(120, 23_203, &[(16, 0)]));
    let status = c!(ncclCommInitRankConfig(&mut comm, size, id, rank, from(&config)));
    assert!(status == PENDING || status == OK, "{status}: {}", last_error());
    assert!(!comm.is_null(), "written at once");
    assert_eq!(consortCommSetTimeout(comm, DEADLINE.as_secs_f64() / 2.0), OK, "{}", last_error());
    comm
}

/// As [`ranks`], on communicators that do not block.
fn ranks_at_once(size: c_int, rank_does: impl Fn(c_int, Comm) + Send + Sync + 'static) {
    within(DEADLINE, move || {
        let id = unique_id();
        let rank_does = &rank_does;
        std::thread::scope(|threads| {
            for rank in 0..size {
                threads.spawn(move || {
                    let comm = begin(id, rank, size);
                    assert_eq!(settled(comm), OK, "{}", last_error());
                    rank_does(rank, comm);
                    if handles::find(comm).is_some() {
                        assert_eq!(destroy(comm), OK, "{}", last_error());
                    }
                });
            }
        });
    });
}

/// Asserts that a call has begun and may go on in the background.
#[track_caller]
pub(super) fn begun(status: c_int) {
    assert!(status == OK || status == PENDING, "{status}: {}", last_error());
}

#[test]
fn joining_is_polled_and_other_calls_wait() {
    within(DEADLINE, || {
        let id = unique_id();
        let comm = begin(id, 0, 2);
        assert_eq!(state(comm), PENDING);
        let mut number = 77;
        refused(c!(ncclCommCount(comm, &mut number)), "");
        refused(c!(ncclCommUserRank(comm, &mut number)), "");
        refused(reduce(&mut [1], SUM, comm, NO_STREAM), "");
        refused(c!(ncclCommSplit(comm, 0, 0, &mut null_mut(), std::ptr::null())), "");
        refused(c!(ncclCommFinalize(comm)), "");
        refused(c!(ncclCommRevoke(comm, 0)), "");
        refused(c!(ncclCommRegister(comm, to(&mut [0]), 4, &mut null_mut())), "");
        assert_eq!(number, 77);
        assert_eq!(state(comm), PENDING, "none of them did anything");
        std::thread::scope(|threads| {
            threads.spawn(move || {
                let comm = join(id, 1, 2);
                works(1, 2, comm);
                assert_eq!(destroy(comm), OK);
            });
            assert_eq!(settled(comm), OK);
            ok!(ncclCommCount(comm, &mut number));
            assert_eq!(number, 2);
            let mut sum = [1];
            begun(reduce(&mut sum, SUM, comm, NO_STREAM));
            assert_eq!(settled(comm), OK);
            assert_eq!(sum, [3]);
        });
        assert_eq!(destroy(comm), OK);
    });
}

#[test]
fn data_moves_after_the_call() {
    ranks_at_once(3, |rank, comm| {
        for round in 0..30 {
            let mut data = vec![rank + round; 2000];
            begun(reduce(&mut data, SUM, comm, NO_STREAM));
            assert_eq!(settled(comm), OK);
            assert!(data.iter().all(|value| *value == 3 + 3 * round));
        }
    });
}

#[test]
fn groups_are_polled_on_every_communicator() {
    within(DEADLINE, || {
        let (id, mut comms) = (unique_id(), [null_mut(); 3]);
        let config = config(120, 23_203, &[(16, 0)]);
        ok!(ncclGroupStart());
        for (rank, comm) in comms.iter_mut().enumerate() {
            begun(c!(ncclCommInitRankConfig(comm, 3, id, rank as c_int, from(&config))));
        }
        assert_eq!(c!(ncclGroupEnd()), PENDING);
        for comm in comms {
            assert_eq!(settled(comm), OK);
        }
        let mut sums = [[1], [2], [3]];
        ok!(ncclGroupStart());
        for (comm, sum) in comms.iter().zip(&mut sums) {
            begun(reduce(sum, SUM, *comm, NO_STREAM));
        }
        begun(c!(ncclGroupEnd()));
        for comm in comms {
            assert_eq!(settled(comm), OK);
        }
        assert_eq!(sums, [[6]; 3]);
        destroy_all(&comms);
    });
}

#[test]
fn kinds_do_not_mix_in_a_group() {
    within(DEADLINE, || {
        let (blocking, other) = (all(1)[0], begin(unique_id(), 0, 1));
        assert_eq!(settled(other), OK);
        let mut data = [[1], [1]];
        let [here, there] = &mut data;
        ok!(ncclGroupStart());
        assert_eq!(reduce(here, SUM, blocking, NO_STREAM), OK);
        let at_once = reduce(there, SUM, other, NO_STREAM);
        assert!(at_once == OK || at_once == INVALID, "{at_once}");
        assert_eq!(c!(ncclGroupEnd()), INVALID);
        works(0, 1, blocking);
        assert_eq!(state(other), OK);
        begun(reduce(there, SUM, other, NO_STREAM));
        assert_eq!(settled(other), OK);
        destroy_all(&[blocking, other]);
    });
}

#[test]
fn a_split_is_polled_on_its_parent() {
    ranks_at_once(4, |rank, comm| {
        static MET: Barrier = Barrier::new(4);
        if rank == 3 {
            // The others' calls return nevertheless.
            MET.wait();
        }
        let mut child: Comm = std::ptr::without_provenance_mut(9);
        let status = c!(ncclCommSplit(comm, rank % 2, -rank, &mut child, std::ptr::null()));
        begun(status);
        if rank != 3 {
            assert_eq!((status, state(comm)), (PENDING, PENDING));
            // SAFETY: the place is this thread's, and written before the parent has settled.
            assert!(unsafe { (&raw const child).read_volatile() }.is_null(), "until it is ready");
            MET.wait();
        }
        assert_eq!(settled(comm), OK);
        // SAFETY: as above.
        let child = unsafe { (&raw const child).read_volatile() };
        assert!(!child.is_null());
        assert_eq!(settled(child), OK);
        let (mut size, mut new_rank) = (0, 0);
        ok!(ncclCommCount(child, &mut size));
        ok!(ncclCommUserRank(child, &mut new_rank));
        assert_eq!((size, new_rank), (2, if rank < 2 { 1 } else { 0 }));
        let mut sum = [rank];
        begun(reduce(&mut sum, SUM, child, NO_STREAM));
        assert_eq!(settled(child), OK);
        assert_eq!(sum, [if rank % 2 == 0 { 2 } else { 4 }]);
        assert_eq!(destroy(child), OK);
    });
}

#[test]
fn finalizing_is_polled_and_done_once() {
    ranks_at_once(2, |_, comm| {
        begun(c!(ncclCommFinalize(comm)));
        assert_eq!(settled(comm), OK);
        refused(c!(ncclCommFinalize(comm)), "finalized");
        assert_eq!(reduce(&mut [1], SUM, comm, NO_STREAM), USAGE);
        assert_eq!(destroy(comm), OK);
    });
}

#[test]
fn a_join_that_fails_says_so_and_can_be_ended() {
    within(DEADLINE, || {
        for end in [ncclCommAbort, ncclCommDestroy] {
            // Two ranks with one number, by an id whose rendezvous another process runs.
            let id = unique_id();
            let comms = [begin(id, 0, 2), begin(id, 0, 2)];
            let states = comms.map(|comm| {
                let begun = Instant::now();
                while state(comm) == PENDING && begun.elapsed() < Duration::from_secs(5) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                state(comm)
            });
            let (at, failure) = states
                .into_iter()
                .enumerate()
                .find(|(_, state)| *state != PENDING)
                .expect("two ranks 0 are one too many");
            assert!(failure != OK, "{states:?}");
            let why = text(c!(ncclGetLastError(comms[at])));
            assert!(why.contains("rank 0"), "{why:?}");
            assert_eq!(reduce(&mut [1], SUM, comms[at], NO_STREAM), failure);
            for comm in comms {
                let begun = Instant::now();
                // SAFETY: the handle is this thread's, and is used no more.
                let status = unsafe { end(comm) };
                assert!(status != INVALID, "{status}");
                assert!(begun.elapsed() < soon(), "{:?}", begun.elapsed());
                refused(c!(ncclCommAbort(comm)), "freed");
            }
        }
    });
}

#[test]
fn a_join_without_another_rank_is_aborted_within_a_second() {
    within(DEADLINE, || {
        // The first rank and another one, by an id whose rendezvous this process runs.
        for rank in 0..2 {
            let comm = begin(unique_id(), rank, 2);
            std::thread::sleep(Duration::from_millis(100));
            assert_eq!(state(comm), PENDING);
            let begun = Instant::now();
            ok!(ncclCommAbort(comm));
            assert!(begun.elapsed() < soon(), "{:?}", begun.elapsed());
            refused(c!(ncclCommAbort(comm)), "freed");
        }
    });
}

#[test]
fn an_operation_that_fails_in_the_background_is_the_communicators_state() {
    within(DEADLINE, || {
        let id = unique_id();
        std::thread::scope(|threads| {
            threads.spawn(move || assert_eq!(destroy(join(id, 1, 2)), OK));
            let comm = begin(id, 0, 2);
            assert_eq!(settled(comm), OK);
            let mut data = [1];
            let status = reduce(&mut data, SUM, comm, NO_STREAM);
            assert!(status == PENDING || status == REMOTE, "{status}");
            assert_eq!(settled(comm), REMOTE);
            assert_eq!(state(comm), REMOTE, "it stays");
            let why = text(c!(ncclGetLastError(comm)));
            assert!(why.contains("rank 1"), "{why:?}");
            assert_eq!(reduce(&mut data, SUM, comm, NO_STREAM), REMOTE);
            ok!(ncclCommAbort(comm));
        });
    });
}

/// Two ranks of three whose all-reduce waits for the third do `end` to it, each polling its communicator.
fn ended_by(end: impl Fn(c_int, Comm) + Send + Sync + 'static) {
    let (under_way, over) = (Barrier::new(2), Barrier::new(3));
    ranks_at_once(3, move |rank, comm| {
        if rank != 2 {
            let mut data = [1];
            assert_eq!(reduce(&mut data, SUM, comm, NO_STREAM), PENDING);
            // Only questions are answered now.
            assert_eq!(reduce(&mut [0], SUM, comm, NO_STREAM), INVALID);
            under_way.wait();
            std::thread::sleep(Duration::from_millis(20));
            end(rank, comm);
        }
        over.wait();
        ok!(ncclCommAbort(comm));
    });
}

#[test]
fn a_shrink_ends_what_is_in_progress() {
    ended_by(|rank, comm| {
        let mut child: Comm = null_mut();
        begun(c!(ncclCommShrink(comm, [2].as_mut_ptr(), 1, &mut child, std::ptr::null(), 1)));
        assert_eq!(settled(comm), OK, "{}", text(c!(ncclGetLastError(comm))));
        // SAFETY: the place is this thread's, and written before the parent has settled.
        let child = unsafe { (&raw const child).read_volatile() };
        let mut sum = [rank + 1];
        begun(reduce(&mut sum, SUM, child, NO_STREAM));
        assert_eq!(settled(child), OK);
        assert_eq!(sum, [3]);
        assert_eq!(destroy(child), OK);
    });
}

#[test]
fn a_revocation_ends_what_is_in_progress() {
    ended_by(|_, comm| {
        ok!(ncclCommRevoke(comm, 0));
        assert_eq!(settled(comm), OK, "{}", text(c!(ncclGetLastError(comm))));
        assert_eq!(reduce(&mut [1], SUM, comm, NO_STREAM), USAGE);
    });
}

#[test]
fn a_wrong_argument_leaves_it_as_it_was() {
    ranks_at_once(2, |rank, comm| {
        refused(reduce(&mut [1], 99, comm, NO_STREAM), "no reduction operator");
        assert_eq!(state(comm), OK);
        let mut sum = [rank + 1];
        begun(reduce(&mut sum, SUM, comm, NO_STREAM));
        assert_eq!(settled(comm), OK);
        assert_eq!(sum, [3]);
    });
}

#[test]
fn a_join_in_a_group_that_is_refused_does_not_stay_in_progress() {
    within(DEADLINE, || {
        let (mut comm, config) = (null_mut(), config(120, 23_203, &[(16, 0)]));
        ok!(ncclGroupStart());
        begun(c!(ncclCommInitRankConfig(&mut comm, 1, unique_id(), 0, from(&config))));
        refused(reduce(&mut [1], SUM, null_mut(), NO_STREAM), "null, freed");
        refused(c!(ncclGroupEnd()), "null, freed");
        if !comm.is_null() {
            assert_eq!(settled(comm), INVALID);
            ok!(ncclCommAbort(comm));
        }
    });
}

#[test]
fn calls_that_returned_success_on_a_stream_may_follow_each_other() {
    within(DEADLINE, || {
        let id = unique_id();
        let (mut stream, comm) = (null_mut(), begin(id, 0, 2));
        ok!(consortStreamCreate(&mut stream));
        let other = std::thread::spawn(move || Sent(join(id, 1, 2)));
        assert_eq!(settled(comm), OK);
        let other = other.join().expect("it joined").get();
        let mut sums = [[1], [10], [100]];
        for sum in &mut sums {
            let status = reduce(sum, SUM, comm, stream);
            begun(status);
            if status == PENDING {
                assert_eq!(settled(comm), OK, "it was put into the stream");
            }
        }
        // A call in a stream is not in progress: this rank's part is done.
        assert_eq!(state(comm), OK);
        for mine in [2, 20, 200] {
            let mut sum = [mine];
            assert_eq!(reduce(&mut sum, SUM, other, NO_STREAM), OK, "{}", last_error());
        }
        assert_eq!(consortStreamDestroy(stream), OK, "{}", last_error());
        assert_eq!(sums, [[3], [30], [300]]);
        destroy_all(&[comm, other]);
    });
}

/// The part of `the_environment_goes_before_the_config` that runs in a process of its own.
#[test]
fn child_does_not_block() {
    if std::env::var("NCCL_COMM_BLOCKING").as_deref() != Ok("0") {
        return;
    }
    within(DEADLINE, || {
        let (mut comm, config) = (null_mut(), config(120, 23_203, &[(16, 1)]));
        let status = c!(ncclCommInitRankConfig(&mut comm, 2, unique_id(), 0, from(&config)));
        assert_eq!((status, state(comm)), (PENDING, PENDING));
        ok!(ncclCommAbort(comm));
    });
}

#[test]
fn the_environment_goes_before_the_config() {
    super::init::child("tests::nonblocking::child_does_not_block", &[("NCCL_COMM_BLOCKING", "0")]);
}

#[test]
fn what_another_rank_revoked_can_be_split() {
    static UNDER_WAY: Barrier = Barrier::new(2);
    ranks_at_once(2, |rank, comm| {
        if rank == 0 {
            UNDER_WAY.wait();
            std::thread::sleep(Duration::from_millis(50));
            ok!(ncclCommRevoke(comm, 0));
        } else {
            // Waits for a rank that will not come.
            let mut data = [1];
            begun(reduce(&mut data, SUM, comm, NO_STREAM));
            UNDER_WAY.wait();
            assert_eq!(settled(comm), USAGE, "revoked by rank 0");
            ok!(ncclCommRevoke(comm, 0));
        }
        assert_eq!(settled(comm), OK);
        let mut child = null_mut();
        begun(c!(ncclCommSplit(comm, 0, 0, &mut child, null())));
        assert_eq!(settled(comm), OK, "{}", text(c!(ncclGetLastError(comm))));
        let mut sum = [rank + 1];
        begun(reduce(&mut sum, SUM, child, NO_STREAM));
        assert_eq!(settled(child), OK);
        assert_eq!(sum, [3]);
        assert_eq!(destroy(child), OK);
    });
}
