//! `ncclCommAbort`: what it ends, and what it leaves alone.

use std::ptr::{null, null_mut};
use std::sync::Barrier;
use std::sync::mpsc::channel;

use super::nonblocking::{begin, begun};
use super::*;

/// A rank that has nothing under way only leaves: the others finish the calls that it has finished, without a
/// failure.
#[test]
fn an_idle_rank_that_aborts_leaves_the_others_what_is_finished() {
    const ROUNDS: i32 = 20;
    const COUNT: usize = 3000;
    let over = Barrier::new(3);
    ranks(3, move |rank, comm| {
        for round in 0..ROUNDS {
            if rank == 2 {
                // Still in broadcasts when the rank that aborts has long finished them.
                std::thread::sleep(Duration::from_millis(5));
            }
            let mut data = vec![if rank == 0 { round + 7 } else { -1 }; COUNT];
            let place = to(&mut data);
            ok!(ncclBroadcast(place, place, COUNT, INT32, 0, comm, NO_STREAM));
            assert!(data.iter().all(|value| *value == round + 7), "rank {rank}, round {round}");
        }
        if rank == 1 {
            ok!(ncclCommAbort(comm));
        }
        over.wait();
        let seen = (rank != 1).then(|| (state(comm), text(c!(ncclGetLastError(comm)))));
        over.wait();
        if let Some((seen, why)) = seen {
            assert_eq!(seen, OK, "rank {rank}: {why}");
            // Cannot complete without that rank.
            failed(reduce(&mut [1], SUM, comm, NO_STREAM), REMOTE, "rank 1");
        }
    });
}

/// Rank 0 waits in `call` for rank 1, which makes no call, until another thread of rank 0 aborts.
fn ends(size: c_int, call: impl Fn(Comm) -> c_int + Send + Sync + 'static) {
    within(DEADLINE, move || {
        let comms = all(size);
        let comm = Sent(comms[0]);
        let call = &call;
        std::thread::scope(|threads| {
            let blocked = threads.spawn(move || {
                let status = call(comm.get());
                (status, last_error(), Instant::now())
            });
            await_call(comm.get());
            std::thread::sleep(Duration::from_millis(50));
            assert!(!blocked.is_finished(), "it waits for the other rank");
            let at = Instant::now();
            ok!(ncclCommAbort(comm.get()));
            let aborted = at.elapsed();
            let (status, why, returned) = blocked.join().expect("it returns");
            let returned = returned.saturating_duration_since(at);
            assert!(aborted.max(returned) < soon(), "{aborted:?}, {returned:?}");
            assert_eq!(status, REMOTE, "{why}");
            assert!(why.contains("abort"), "{why}");
        });
        for comm in &comms[1..] {
            ok!(ncclCommAbort(*comm));
        }
    });
}

#[test]
fn an_abort_ends_a_split_that_the_other_rank_never_comes_to() {
    ends(2, |comm| {
        let mut child = null_mut();
        let status = c!(ncclCommSplit(comm, 0, 0, &mut child, null()));
        assert!(child.is_null());
        status
    });
}

/// One of three ranks is left out.
fn ends_a_shrink(flags: c_int) {
    ends(3, move |comm| {
        let mut child = null_mut();
        let status = c!(ncclCommShrink(comm, [2].as_mut_ptr(), 1, &mut child, null(), flags));
        assert!(child.is_null());
        status
    });
}

#[test]
fn an_abort_ends_a_shrink_that_another_rank_never_comes_to() {
    ends_a_shrink(0);
}

#[test]
fn an_abort_ends_a_shrink_that_ends_operations() {
    ends_a_shrink(1);
}

#[test]
fn an_abort_ends_a_growth_without_another_rank() {
    within(DEADLINE, || {
        let comm = begin(unique_id(), 0, 1);
        assert_eq!(settled(comm), OK, "{}", text(c!(ncclGetLastError(comm))));
        let mut id = NcclUniqueId { internal: [0; UniqueId::BYTES] };
        ok!(ncclCommGetUniqueId(comm, &mut id));
        let mut grown = null_mut();
        begun(c!(ncclCommGrow(comm, 2, &id, -1, &mut grown, null())));
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(state(comm), PENDING, "no rank has come");
        let at = Instant::now();
        ok!(ncclCommAbort(comm));
        assert!(at.elapsed() < soon(), "{:?}", at.elapsed());
        // SAFETY: the place is this thread's, and nothing is under way any more.
        assert!(unsafe { (&raw const grown).read_volatile() }.is_null());
    });
}

/// The same where the call blocks and another thread aborts.
#[test]
fn an_abort_frees_who_waits_for_a_growth() {
    within(DEADLINE, || {
        let comm = Sent(join(unique_id(), 0, 1));
        let mut id = NcclUniqueId { internal: [0; UniqueId::BYTES] };
        ok!(ncclCommGetUniqueId(comm.get(), &mut id));
        let (begun, is_begun) = channel();
        std::thread::scope(|threads| {
            let blocked = threads.spawn(move || {
                let mut grown = null_mut();
                let thread = std::fs::read_link("/proc/thread-self").expect("procfs");
                begun.send(thread).expect("the test waits for it");
                let status = c!(ncclCommGrow(comm.get(), 2, &id, -1, &mut grown, null()));
                assert!(grown.is_null());
                (status, Instant::now())
            });
            let place = std::path::Path::new("/proc").join(is_begun.recv().expect("it begins")).join("stat");
            // The thread sleeps only inside the call.
            let sleeps = || std::fs::read_to_string(&place).is_ok_and(|stat| stat.contains(") S "));
            while !sleeps() {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(!blocked.is_finished(), "no rank has come");
            let at = Instant::now();
            ok!(ncclCommAbort(comm.get()));
            let (status, returned) = blocked.join().expect("it returns");
            assert_eq!(status, REMOTE);
            assert!(returned.saturating_duration_since(at) < soon());
        });
    });
}
