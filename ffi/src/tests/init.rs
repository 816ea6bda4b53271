//! How communicators are made.

use std::process::Command;
use std::ptr::{null, null_mut};

use super::*;

fn number(get: unsafe extern "C" fn(Comm, *mut c_int) -> c_int, comm: Comm) -> c_int {
    let mut number = -1;
    ok!(get(comm, &mut number));
    number
}

#[test]
fn all_ranks_at_once() {
    within(DEADLINE, || {
        let comms = all(4);
        for (rank, comm) in comms.iter().enumerate() {
            assert_eq!(number(ncclCommCount, *comm), 4);
            assert_eq!(number(ncclCommUserRank, *comm), rank as c_int);
            assert_eq!(number(ncclCommCuDevice, *comm), rank as c_int, "devices count from 0");
            assert_eq!(state(*comm), OK);
        }
        std::thread::scope(|threads| {
            for (rank, comm) in comms.iter().map(|comm| Sent(*comm)).enumerate() {
                threads.spawn(move || works(rank as c_int, 4, comm.get()));
            }
        });
        destroy_all(&comms);

        let mut comms = [null_mut(); 2];
        ok!(ncclCommInitAll(comms.as_mut_ptr(), 2, [5, 3].as_ptr()));
        assert_eq!(comms.map(|comm| number(ncclCommCuDevice, comm)), [5, 3]);
        destroy_all(&comms);
        // On host memory a device is a number, and ranks may share one.
        ok!(ncclCommInitAll(comms.as_mut_ptr(), 2, [1, 1].as_ptr()));
        destroy_all(&comms);
    });
}

#[test]
fn wrong_numbers_of_ranks_are_refused() {
    within(DEADLINE, || {
        let mut comms = [null_mut(); 2];
        for size in [0, -1, i32::MIN] {
            refused(c!(ncclCommInitAll(comms.as_mut_ptr(), size, null())), "ranks");
        }
        refused(c!(ncclCommInitAll(null_mut(), 2, null())), "comm is null");
        assert!(comms.iter().all(|comm| comm.is_null()));
        refused(c!(ncclCommInitAll(comms.as_mut_ptr(), 2, [0, -1].as_ptr())), "device -1");
        assert!(comms.iter().all(|comm| comm.is_null()));
    });
}

#[test]
fn what_a_communicator_says_needs_a_place() {
    ranks(1, |_, comm| {
        for get in [ncclCommCount, ncclCommUserRank, ncclCommCuDevice, ncclCommGetAsyncError] {
            refused(c!(get(comm, null_mut())), "is null");
            let mut number = 77;
            refused(c!(get(null_mut(), &mut number)), "null, freed or foreign");
            refused(c!(get(std::ptr::without_provenance_mut(4096), &mut number)), "null, freed or foreign");
            assert_eq!(number, 77);
        }
    });
}

#[test]
fn several_ids_join_too() {
    for ids_count in 1..=3 {
        within(DEADLINE, move || {
            let ids: Vec<NcclUniqueId> = (0..ids_count).map(|_| unique_id()).collect();
            std::thread::scope(|threads| {
                for rank in 0..3 {
                    let ids = &ids;
                    threads.spawn(move || {
                        let mut comm = null_mut();
                        let number = ids.len() as c_int;
                        ok!(ncclCommInitRankScalable(&mut comm, 3, rank, number, ids.as_ptr(), null()));
                        works(rank, 3, comm);
                        assert_eq!(destroy(comm), OK);
                    });
                }
            });
        });
    }
}

#[test]
fn wrong_numbers_of_ids_are_refused() {
    within(DEADLINE, || {
        let ids = [unique_id(), unique_id(), unique_id()];
        let mut comm = null_mut();
        for number in [0, -1, 3] {
            refused(c!(ncclCommInitRankScalable(&mut comm, 2, 0, number, ids.as_ptr(), null())), "ids");
        }
        refused(c!(ncclCommInitRankScalable(&mut comm, 2, 0, 1, null(), null())), "null");
        refused(c!(ncclCommInitRankScalable(&mut comm, 2, 2, 1, ids.as_ptr(), null())), "rank 2");
        assert!(comm.is_null());
    });
}

#[test]
fn an_id_is_of_one_communicator_and_ids_differ() {
    within(DEADLINE, || {
        let ids: Vec<_> = (0..20).map(|_| unique_id().internal).collect();
        for (at, id) in ids.iter().enumerate() {
            assert!(!ids[at + 1..].contains(id));
        }
    });
}

/// The part of `the_variable_names_the_meeting` that runs in a process of its own.
#[test]
fn child_meets_by_variable() {
    if std::env::var_os("NCCL_COMM_ID").is_none() {
        return;
    }
    within(DEADLINE, || {
        let ids: Vec<NcclUniqueId> = (0..3).map(|_| unique_id()).collect();
        std::thread::scope(|threads| {
            // Each rank makes the id itself, as where it cannot be sent.
            for (rank, id) in ids.into_iter().enumerate() {
                threads.spawn(move || {
                    let comm = join(id, rank as c_int, 3);
                    works(rank as c_int, 3, comm);
                    assert_eq!(destroy(comm), OK);
                });
            }
        });
    });
}

/// Runs a test of this program in a process with these variables.
pub(super) fn child(test: &str, variables: &[(&str, &str)]) -> String {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).envs(variables.iter().copied());
    let output = command.output().expect("a process");
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    text
}

#[test]
fn the_variable_names_the_meeting() {
    // Not 127.0.0.1, where other tests take ports.
    let own = std::net::Ipv4Addr::from(std::process::id() | 0x7f80_0000);
    let port = std::net::TcpListener::bind((own, 0)).and_then(|listener| listener.local_addr());
    let address = port.expect("a port").to_string();
    child("tests::init::child_meets_by_variable", &[("NCCL_COMM_ID", &address)]);
}

#[test]
fn a_rank_may_leave_as_soon_as_it_has_joined() {
    for round in 0..30 {
        let gone = round % 3;
        ranks(3, move |rank, comm| {
            if rank == gone {
                assert_eq!(destroy(comm), OK);
            } else if round % 2 == 0 {
                failed(reduce(&mut [1], SUM, comm, NO_STREAM), REMOTE, &format!("rank {gone}"));
            }
        });
    }
}

#[test]
fn more_ranks_than_cores_join_in_one_group() {
    within(DEADLINE, || {
        let (size, id) = (16, unique_id());
        let mut comms = [null_mut(); 16];
        ok!(ncclGroupStart());
        // In no order of ranks.
        for step in 0..size {
            let rank = step * 5 % size;
            ok!(ncclCommInitRank(&mut comms[rank as usize], size, id, rank));
        }
        ok!(ncclGroupEnd());
        let mut sums: Vec<[i32; 1]> = (0..size).map(|rank| [rank]).collect();
        ok!(ncclGroupStart());
        for (comm, sum) in comms.iter().zip(&mut sums) {
            assert_eq!(reduce(sum, SUM, *comm, NO_STREAM), OK);
        }
        ok!(ncclGroupEnd());
        assert!(sums.iter().all(|sum| *sum == [120]));
        destroy_all(&comms);
    });
}
