//! The traces of a failed call: results, and texts by thread and by communicator.

use std::ptr::null_mut;

use super::*;

#[test]
fn every_result_has_its_text() {
    // Scripts and support pages look for these words.
    let words = [
        (0, "no error"),
        (1, "unhandled cuda error"),
        (2, "unhandled system error"),
        (3, "internal error"),
        (4, "invalid argument"),
        (5, "invalid usage"),
        (6, "remote process exited or there was a network error"),
        (7, "in progress"),
        (8, "timeout"),
        (9, "unknown result code"),
        (-1, "unknown result code"),
        (i32::MAX, "unknown result code"),
        (i32::MIN, "unknown result code"),
    ];
    for (result, words) in words {
        let found = text(c!(ncclGetErrorString(result)));
        assert!(found.contains(words), "{result}: {found:?}");
        assert_eq!(text(c!(pncclGetErrorString(result))), found);
    }
}

#[test]
fn a_thread_keeps_its_own_last_error() {
    within(DEADLINE, || {
        let comms = all(1);
        refused(reduce(&mut [1], 99, comms[0], NO_STREAM), "operator 99");
        std::thread::scope(|threads| {
            threads.spawn(|| failed(c!(ncclGroupEnd()), USAGE, "no group to end"));
        });
        assert!(last_error().contains("operator 99"), "{}", last_error());
        // Reading does not clear it, nor does success.
        works(0, 1, comms[0]);
        assert!(last_error().contains("operator 99"));
        assert!(last_error().contains("ncclAllReduce"), "it says which call: {}", last_error());
        destroy_all(&comms);
    });
}

#[test]
fn a_thread_without_one_gets_that_of_another() {
    within(DEADLINE, || {
        refused(c!(ncclCommDestroy(std::ptr::without_provenance_mut(77))), "foreign");
        std::thread::scope(|threads| {
            // A client's watchdog prints the reason, and has made no call itself.
            threads.spawn(|| assert!(!last_error().is_empty()));
        });
    });
}

#[test]
fn a_communicator_has_its_own_last_error() {
    within(DEADLINE, || {
        let comms = all(2);
        let of = |comm| text(consortGetLastError(comm));
        refused(reduce(&mut [1], 98, comms[0], NO_STREAM), "operator 98");
        refused(reduce(&mut [1], 97, comms[1], NO_STREAM), "operator 97");
        assert!(of(comms[0]).contains("operator 98") && of(comms[1]).contains("operator 97"));
        assert!(of(null_mut()).contains("operator 97"));
        destroy_all(&comms);
    });
}

#[test]
fn any_argument_will_do_for_the_last_error() {
    within(DEADLINE, || {
        failed(c!(ncclGroupEnd()), USAGE, "no group to end");
        for handle in [0usize, 1, 4096, usize::MAX] {
            let found = text(c!(ncclGetLastError(std::ptr::without_provenance_mut(handle))));
            assert!(found.contains("no group to end"), "{found}");
        }
    });
}

#[test]
fn another_thread_sees_what_ended_a_communicator() {
    within(DEADLINE, || {
        let comms = all(2);
        assert_eq!(consortCommSetTimeout(comms[0], 20.0), OK);
        let comm = Sent(comms[0]);
        std::thread::scope(|threads| {
            // A watchdog, which polls while the call is blocked.
            let watchdog = threads.spawn(move || {
                let comm = comm.get();
                let begun = Instant::now();
                while state(comm) == OK && begun.elapsed() < Duration::from_secs(20) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                (state(comm), text(c!(ncclGetLastError(comm))))
            });
            let blocked = threads.spawn(move || reduce(&mut [1], SUM, comm.get(), NO_STREAM));
            await_call(comm.get());
            assert_eq!(destroy(comms[1]), OK);
            assert_eq!(blocked.join().expect("it returns"), REMOTE);
            let (state, why) = watchdog.join().expect("it sees it");
            assert_eq!(state, REMOTE);
            assert!(why.contains("rank 1"), "{why}");
        });
        ok!(ncclCommAbort(comms[0]));
    });
}

#[test]
fn a_deadline_is_a_timeout() {
    within(DEADLINE, || {
        let comms = all(2);
        assert_eq!(consortCommSetTimeout(comms[0], 0.1), OK);
        let begun = Instant::now();
        failed(reduce(&mut [1], SUM, comms[0], NO_STREAM), TIMEOUT, "did not finish within");
        assert!(begun.elapsed() < Duration::from_secs(10));
        assert_eq!(state(comms[0]), TIMEOUT);
        for comm in comms {
            ok!(ncclCommAbort(comm));
        }
    });
}

#[test]
fn ranks_that_call_different_things_get_an_error() {
    ranks(2, |rank, comm| {
        let mut data = [0i32; 8];
        let place = to(&mut data);
        let status = if rank == 0 {
            c!(ncclAllReduce(place, place, 4, INT32, SUM, comm, NO_STREAM))
        } else {
            c!(ncclAllReduce(place, place, 8, INT32, SUM, comm, NO_STREAM))
        };
        assert_eq!(status, USAGE, "{}", last_error());
        assert!(last_error().contains('4') && last_error().contains('8'), "{}", last_error());
        assert_eq!(state(comm), USAGE);
    });
}
