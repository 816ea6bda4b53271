//! Threads in the C functions: a thread for each communicator while others query it, end it, make and free handles,
//! streams, operators and memory.
//!
//! By themselves these tests find wrong results, hangs and crashes; `.ci/races` runs them under ThreadSanitizer,
//! which reports races that did no harm.

use std::ffi::{CStr, c_int};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use consort_tests::c_calls::{
    self, Comm, IN_PROGRESS, INT32, NON_BLOCKING, SUCCESS, Shared, both, destroy, join, ok, split, sum,
    sum_in_group, unique_id,
};
use consort_tests::system::Random;
use nccl::extensions as ours;

const ROUNDS: u64 = 6;
const CALLS: usize = 200;

/// All queries that any thread may make of a communicator at any time. Returns its state.
fn ask(comm: Comm) -> c_int {
    let (mut result, mut number, mut text) = (SUCCESS, 0, [0; 400]);
    // SAFETY: any handle; the places are writable and the texts are looked at before this thread fails again.
    unsafe {
        nccl::ncclCommGetAsyncError(comm, &mut result);
        nccl::ncclCommCount(comm, &mut number);
        nccl::ncclCommUserRank(comm, &mut number);
        nccl::ncclCommMemStats(comm, 0, &mut 0);
        ours::consortCommFlightRecord(comm, 1, text.as_mut_ptr(), text.len(), null_mut());
        ours::consortCommLastReport(comm, 0, text.as_mut_ptr(), text.len(), null_mut());
        ours::consortCommStatus(comm, text.as_mut_ptr(), text.len(), null_mut());
        ours::consortCommSetTimeout(comm, 60.0);
        ours::consortCommGetTimeout(comm, &mut 0.0);
        let texts = [nccl::consortGetLastError(comm), nccl::ncclGetLastError(comm)];
        texts.iter().for_each(|text| assert!(CStr::from_ptr(*text).to_str().is_ok()));
    }
    result
}

/// Both ranks call on threads of their own, two others ask, and a fifth may end it; then it is freed by yet another.
fn watched(round: u64, comms: [Comm; 2], random: &mut Random) {
    let handles = comms.map(Shared::new);
    let (over, aborts, pause) =
        (AtomicBool::new(false), round % 2 == 1, random.duration(Duration::from_millis(4)));
    std::thread::scope(|threads| {
        let ranks = handles.map(|handle| {
            threads.spawn(move || {
                let mut total = 0;
                let calls = (0..CALLS).map(|_| sum(&1, &mut total, handle.get(), null_mut()));
                calls.take_while(|result| *result == SUCCESS).count()
            })
        });
        for handle in handles {
            let over = &over;
            threads.spawn(move || {
                while !over.load(Ordering::Acquire) {
                    ask(handle.get());
                    let mut report = null_mut();
                    // SAFETY: the place is writable; what is written there is freed once.
                    unsafe {
                        ours::consortCommReportAlloc(handle.get(), 0, &mut report);
                        ours::consortFree(report.cast());
                    }
                }
            });
        }
        if aborts {
            std::thread::sleep(pause);
            // SAFETY: no reason, which is allowed.
            ok(unsafe { ours::consortCommAbort(handles[0].get(), std::ptr::null()) });
        }
        let done = ranks.map(|rank| rank.join().expect("a rank"));
        assert!(aborts || done == [CALLS; 2], "{done:?}");
        over.store(true, Ordering::Release);
    });
    std::thread::scope(|threads| {
        for handle in handles {
            threads.spawn(move || destroy(handle.get()));
        }
    });
}

#[test]
fn ranks_on_threads_while_others_ask_and_end() {
    let mut random = Random::announced("races: watched");
    for round in 0..ROUNDS {
        watched(round, both(), &mut random);
        let id = unique_id();
        let [one, two] = std::thread::scope(|threads| {
            [0, 1]
                .map(|rank| threads.spawn(move || Shared::new(join(id, rank, None))))
                .map(|t| t.join().expect("a rank"))
        });
        watched(round + 1, [one.get(), two.get()], &mut random);
    }
}

#[test]
fn one_handle_ended_and_used_by_several_threads() {
    let mut random = Random::announced("races: ended");
    for _ in 0..4 * ROUNDS {
        let comms = both().map(Shared::new);
        let pauses = [0; 3].map(|_| random.duration(Duration::from_micros(300)));
        std::thread::scope(|threads| {
            for comm in comms {
                threads.spawn(move || {
                    let mut total = 0;
                    while sum(&1, &mut total, comm.get(), null_mut()) == SUCCESS {}
                });
                for pause in pauses {
                    threads.spawn(move || {
                        std::thread::sleep(pause);
                        ask(comm.get());
                        // SAFETY: any handle; all but one of these find it freed.
                        unsafe { nccl::ncclCommAbort(comm.get()) };
                        ask(comm.get());
                    });
                }
            }
        });
    }
}

#[test]
fn groups_streams_and_parts_on_threads_of_their_own() {
    std::thread::scope(|threads| {
        for _ in 0..3 {
            threads.spawn(|| {
                for _ in 0..ROUNDS {
                    let comms = both();
                    let parts = split(comms);
                    let mut stream = null_mut();
                    // SAFETY: the place is writable.
                    ok(unsafe { nccl::consortStreamCreate(&mut stream) });
                    let shared = Shared::new(stream);
                    std::thread::scope(|threads| {
                        threads.spawn(move || {
                            for _ in 0..50 {
                                nccl::consortStreamQuery(shared.get());
                                ask(shared.get());
                            }
                        });
                        for _ in 0..20 {
                            sum_in_group(comms, null_mut());
                            sum_in_group(parts, stream);
                        }
                    });
                    parts.into_iter().chain(comms).for_each(destroy);
                    ok(nccl::consortStreamDestroy(stream));
                }
            });
        }
    });
}

/// Operations in a stream; another thread waits for each of them.
#[test]
fn one_stream_of_several_threads() {
    let mut stream = null_mut();
    // SAFETY: the place is writable.
    ok(unsafe { nccl::consortStreamCreate(&mut stream) });
    let stream = Shared::new(stream);
    std::thread::scope(|threads| {
        for _ in 0..3 {
            threads.spawn(move || {
                let comms = both();
                (0..20 * ROUNDS).for_each(|_| sum_in_group(comms, stream.get()));
                comms.into_iter().for_each(destroy);
            });
        }
    });
    ok(nccl::consortStreamDestroy(stream.get()));
}

#[test]
fn communicators_that_do_not_block_polled_and_ended_elsewhere() {
    let mut random = Random::announced("races: non-blocking");
    for round in 0..2 * ROUNDS {
        let id = unique_id();
        let pause = random.duration(Duration::from_millis(5));
        let mut comms = [null_mut(); 2];
        for (rank, comm) in comms.iter_mut().enumerate() {
            // SAFETY: the place is written before the call returns; the config says its size.
            let result = unsafe {
                nccl::ncclCommInitRankConfig(comm, 2, id, rank as c_int, NON_BLOCKING.as_ptr().cast())
            };
            assert!([SUCCESS, IN_PROGRESS].contains(&result), "{result}");
        }
        let handles = comms.map(Shared::new);
        std::thread::scope(|threads| {
            for handle in handles {
                threads.spawn(move || {
                    let until = Instant::now() + Duration::from_millis(20);
                    while Instant::now() < until && ask(handle.get()) == IN_PROGRESS {}
                });
            }
            if round % 2 == 1 {
                threads.spawn(move || {
                    std::thread::sleep(pause);
                    // SAFETY: any handle.
                    handles.into_iter().for_each(|handle| ok(unsafe { nccl::ncclCommAbort(handle.get()) }));
                });
            } else {
                comms.into_iter().for_each(c_calls::settled);
                for _ in 0..10 {
                    sum_in_group(comms, null_mut());
                }
            }
        });
        if round % 2 == 0 {
            comms.into_iter().for_each(destroy);
        }
    }
}

#[test]
fn a_question_of_another_thread_refuses_no_data_call() {
    let mut comm = null_mut();
    // SAFETY: there is room for one handle.
    ok(unsafe { nccl::ncclCommInitAll(&mut comm, 1, std::ptr::null()) });
    let (handle, over) = (Shared::new(comm), AtomicBool::new(false));
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !over.load(Ordering::Acquire) {
                // It may be refused, for a moment, while a call is under way.
                // SAFETY: the place is writable.
                unsafe { nccl::ncclCommMemStats(handle.get(), 0, &mut 0) };
            }
        });
        let mut total = 0;
        let refused = (0..20_000).filter(|_| sum(&1, &mut total, comm, null_mut()) != SUCCESS).count();
        over.store(true, Ordering::Release);
        assert_eq!(refused, 0);
    });
    destroy(comm);
}

#[test]
fn what_belongs_to_the_process_or_to_one_communicator_from_many_threads() {
    let comms = both().map(Shared::new);
    std::thread::scope(|threads| {
        for at in 0..4 {
            let comm = comms[at % 2];
            threads.spawn(move || {
                for round in 0..50 {
                    let (mut memory, mut operator, mut note, mut word) =
                        (null_mut(), 0, null_mut(), std::ptr::null());
                    // SAFETY: the places are writable, the factor is read at once, the key ends with a zero.
                    unsafe {
                        ok(nccl::ncclMemAlloc(&mut memory, 4096));
                        let factor = std::ptr::from_ref(&2i32).cast_mut().cast();
                        ok(nccl::ncclRedOpCreatePreMulSum(&mut operator, factor, INT32, 1, comm.get()));
                        ok(nccl::ncclCommRegister(comm.get(), memory, 4096, &mut note));
                        ok(nccl::ncclCommDeregister(comm.get(), note));
                        ok(nccl::ncclRedOpDestroy(operator, comm.get()));
                        ok(nccl::ncclMemFree(memory));
                        ok(nccl::ncclParamGetParameter(c"NCCL_ALGO".as_ptr(), &mut word, null_mut()));
                        // Its failure is logged, while another thread opens the log anew.
                        assert_ne!(nccl::ncclMemFree(memory.wrapping_byte_add(1)), SUCCESS);
                        if at == 0 && round % 10 == 0 {
                            nccl::ncclResetDebugInit();
                        }
                    }
                }
            });
        }
    });
    comms.into_iter().for_each(|comm| destroy(comm.get()));
}
