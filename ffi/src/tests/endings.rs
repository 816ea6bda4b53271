//! How communicators end: finalize, destroy, abort, revoke; and how they pause.

use std::ptr::{null, null_mut};
use std::sync::Barrier;

use super::*;

#[test]
fn ending_nothing_is_success() {
    within(DEADLINE, || {
        ok!(ncclCommFinalize(null_mut()));
        ok!(ncclCommDestroy(null_mut()));
        ok!(ncclCommAbort(null_mut()));
        ok!(ncclGroupStart());
        ok!(ncclCommDestroy(null_mut()));
        ok!(ncclCommAbort(null_mut()));
        ok!(ncclGroupEnd());
        refused(c!(ncclCommRevoke(null_mut(), 0)), "null, freed");
        refused(c!(ncclCommSuspend(null_mut(), 1)), "null, freed");
        refused(c!(ncclCommResume(null_mut())), "null, freed");
    });
}

#[test]
fn finalizing_twice_is_refused() {
    ranks(2, |rank, comm| {
        works(rank, 2, comm);
        ok!(ncclCommFinalize(comm));
        refused(c!(ncclCommFinalize(comm)), "finalized");
        failed(reduce(&mut [1], SUM, comm, NO_STREAM), USAGE, "finalized");
        assert_eq!(c!(ncclCommSplit(comm, 0, 0, &mut null_mut(), null())), USAGE);
        assert_eq!(state(comm), OK);
        assert_eq!(destroy(comm), OK);
    });
}

#[test]
fn finalizing_waits_for_what_was_issued() {
    ranks(2, |rank, comm| {
        let (mut stream, mut sum) = (null_mut(), [rank + 1; 100]);
        ok!(consortStreamCreate(&mut stream));
        if rank == 1 {
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(reduce(&mut sum, SUM, comm, stream), OK);
        ok!(ncclCommFinalize(comm));
        assert_eq!(consortStreamQuery(stream), OK);
        assert_eq!(sum, [3; 100]);
        assert_eq!(destroy(comm), OK);
        assert_eq!(consortStreamDestroy(stream), OK);
    });
}

#[test]
fn every_call_refuses_a_freed_handle() {
    within(DEADLINE, || {
        for end in [ncclCommDestroy, ncclCommAbort] {
            let comm = all(1)[0];
            ok!(end(comm));
            let mut data = [0i32];
            let (place, mut number, mut child) = (to(&mut data), 0, null_mut());
            let statuses = [
                c!(ncclAllReduce(place, place, 1, INT32, SUM, comm, NO_STREAM)),
                c!(ncclSend(place, 1, INT32, 0, comm, NO_STREAM)),
                c!(ncclRecv(place, 1, INT32, 0, comm, NO_STREAM)),
                c!(ncclCommCount(comm, &mut number)),
                c!(ncclCommGetAsyncError(comm, &mut number)),
                c!(ncclCommFinalize(comm)),
                c!(ncclCommDestroy(comm)),
                c!(ncclCommAbort(comm)),
                c!(ncclCommRevoke(comm, 0)),
                c!(ncclCommSuspend(comm, 1)),
                c!(ncclCommSplit(comm, 0, 0, &mut child, null())),
                c!(ncclCommRegister(comm, place, 4, &mut child)),
                c!(ncclCommDeregister(comm, null_mut())),
                c!(ncclRedOpDestroy(7, comm)),
            ];
            assert!(statuses.iter().all(|status| *status == INVALID), "{statuses:?}");
        }
    });
}

#[test]
fn several_ends_in_one_group() {
    within(DEADLINE, || {
        for end in [ncclCommDestroy, ncclCommAbort] {
            let comms = all(3);
            ok!(ncclGroupStart());
            for comm in &comms {
                ok!(end(*comm));
            }
            ok!(ncclGroupEnd());
            refused(destroy(comms[1]), "freed");
        }
    });
}

#[test]
fn an_abort_frees_a_blocked_call() {
    within(DEADLINE, || {
        let comms = all(2);
        let comm = Sent(comms[0]);
        std::thread::scope(|threads| {
            let blocked = threads.spawn(move || {
                let status = reduce(&mut [1], SUM, comm.get(), NO_STREAM);
                (status, last_error())
            });
            await_call(comm.get());
            let at = Instant::now();
            ok!(ncclCommAbort(comm.get()));
            let (status, why) = blocked.join().expect("it returns");
            assert!(at.elapsed() < soon(), "{:?}", at.elapsed());
            assert_eq!(status, REMOTE, "{why}");
            assert!(why.contains("abort"), "{why}");
        });
        // The other rank learns of it.
        assert_eq!(reduce(&mut [1], SUM, comms[1], NO_STREAM), REMOTE, "{}", last_error());
        assert_eq!(state(comms[1]), REMOTE);
        ok!(ncclCommAbort(comms[1]));
    });
}

#[test]
fn an_abort_ends_what_is_in_a_stream() {
    within(DEADLINE, || {
        let (comms, mut stream) = (all(2), null_mut());
        ok!(consortStreamCreate(&mut stream));
        let mut data = [1];
        assert_eq!(reduce(&mut data, SUM, comms[0], stream), OK);
        std::thread::sleep(Duration::from_millis(20));
        let at = Instant::now();
        ok!(ncclCommAbort(comms[0]));
        assert!(at.elapsed() < soon(), "{:?}", at.elapsed());
        failed(consortStreamSynchronize(stream), REMOTE, "abort");
        assert_eq!(consortStreamDestroy(stream), OK);
        ok!(ncclCommAbort(comms[1]));
    });
}

#[test]
fn aborts_that_depend_on_each_other_go_in_one_group() {
    within(DEADLINE, || {
        let (one, two) = (all(2), all(2));
        let mut stream = null_mut();
        ok!(consortStreamCreate(&mut stream));
        let mut data = [[1], [1]];
        let [here, there] = &mut data;
        // The second waits behind the first.
        assert_eq!(reduce(here, SUM, one[0], stream), OK);
        assert_eq!(reduce(there, SUM, two[0], stream), OK);
        ok!(ncclGroupStart());
        ok!(ncclCommAbort(two[0]));
        ok!(ncclCommAbort(one[0]));
        ok!(ncclGroupEnd());
        assert_eq!(consortStreamSynchronize(stream), REMOTE);
        assert_eq!(consortStreamDestroy(stream), OK);
        for comm in [one[1], two[1]] {
            ok!(ncclCommAbort(comm));
        }
    });
}

#[test]
fn a_revoked_communicator_refuses_data_and_can_be_split() {
    ranks(3, |rank, comm| {
        static MET: Barrier = Barrier::new(3);
        works(rank, 3, comm);
        refused(c!(ncclCommRevoke(comm, 1)), "revoke flags");
        MET.wait();
        ok!(ncclCommRevoke(comm, 0));
        ok!(ncclCommRevoke(comm, 0));
        failed(reduce(&mut [1], SUM, comm, NO_STREAM), USAGE, "revoke");
        assert_eq!(c!(ncclSend(from(&[1]), 1, INT32, (rank + 1) % 3, comm, NO_STREAM)), USAGE);
        assert_eq!(c!(ncclCommFinalize(comm)), USAGE);
        ok!(ncclGroupStart());
        assert_eq!(reduce(&mut [1], SUM, comm, NO_STREAM), USAGE);
        assert_eq!(c!(ncclGroupEnd()), USAGE);
        let mut number = 0;
        ok!(ncclCommCount(comm, &mut number));
        assert_eq!((number, state(comm)), (3, OK));
        MET.wait();
        let mut child = null_mut();
        ok!(ncclCommSplit(comm, 0, -rank, &mut child, null()));
        works(2 - rank, 3, child);
        assert_eq!(destroy(child), OK);
        if rank != 1 {
            let mut child = null_mut();
            ok!(ncclCommShrink(comm, [1].as_mut_ptr(), 1, &mut child, null(), 1));
            works(rank / 2, 2, child);
            assert_eq!(destroy(child), OK);
        }
        MET.wait();
    });
}

#[test]
fn a_revocation_frees_a_blocked_call() {
    within(DEADLINE, || {
        let comms = all(2);
        let comm = Sent(comms[0]);
        std::thread::scope(|threads| {
            let blocked = threads.spawn(move || reduce(&mut [1], SUM, comm.get(), NO_STREAM));
            await_call(comm.get());
            let at = Instant::now();
            ok!(ncclCommRevoke(comm.get(), 0));
            assert_eq!(blocked.join().expect("it returns"), USAGE);
            assert!(at.elapsed() < soon(), "{:?}", at.elapsed());
        });
        ok!(ncclCommRevoke(comms[1], 0));
        destroy_all(&comms);
    });
}

#[test]
fn a_suspended_communicator_waits_for_its_resumption() {
    ranks(2, |rank, comm| {
        static MET: Barrier = Barrier::new(2);
        let suspended = |comm| {
            let mut value = 9;
            ok!(ncclCommMemStats(comm, 1, &mut value));
            value
        };
        assert_eq!(c!(ncclCommResume(comm)), USAGE, "it is not suspended");
        for flags in [0, 2, -1] {
            refused(c!(ncclCommSuspend(comm, flags)), "suspend flags");
        }
        assert_eq!(suspended(comm), 0);
        MET.wait();
        ok!(ncclCommSuspend(comm, 1));
        assert_eq!(suspended(comm), 1);
        failed(reduce(&mut [1], SUM, comm, NO_STREAM), USAGE, "suspended");
        assert_eq!(c!(ncclCommSplit(comm, 0, 0, &mut null_mut(), null())), USAGE);
        assert_eq!(c!(ncclCommSuspend(comm, 1)), USAGE);
        assert_eq!(state(comm), OK);
        ok!(ncclCommResume(comm));
        assert_eq!(suspended(comm), 0);
        works(rank, 2, comm);
        ok!(ncclCommSuspend(comm, 1));
        assert_eq!(destroy(comm), OK, "and it can be destroyed meanwhile");
    });
}

#[test]
fn a_busy_communicator_is_not_suspended() {
    within(DEADLINE, || {
        let (comms, mut stream) = (all(2), null_mut());
        ok!(consortStreamCreate(&mut stream));
        let mut data = [[1], [2]];
        let [here, there] = &mut data;
        assert_eq!(reduce(here, SUM, comms[0], stream), OK);
        failed(c!(ncclCommSuspend(comms[0], 1)), USAGE, "idle");
        assert_eq!(reduce(there, SUM, comms[1], NO_STREAM), OK);
        assert_eq!(consortStreamDestroy(stream), OK);
        assert_eq!(data, [[3], [3]]);
        destroy_all(&comms);
    });
}

#[test]
fn a_rank_that_left_is_an_error_and_no_hang() {
    ranks(3, |rank, comm| {
        works(rank, 3, comm);
        if rank == 2 {
            assert_eq!(destroy(comm), OK);
            return;
        }
        failed(reduce(&mut [1], SUM, comm, NO_STREAM), REMOTE, "rank 2");
        assert_eq!(state(comm), REMOTE);
    });
}
