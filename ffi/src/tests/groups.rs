//! Groups: their calls are issued together at the outermost end, or not at all.

use std::ptr::null_mut;
use std::sync::Barrier;

use super::*;

#[test]
fn an_end_without_a_start_is_refused() {
    within(DEADLINE, || {
        failed(c!(ncclGroupEnd()), USAGE, "no group to end");
        failed(c!(ncclGroupSimulateEnd(null_mut())), USAGE, "no group to end");
        ok!(ncclGroupStart());
        ok!(ncclGroupEnd());
        failed(c!(ncclGroupEnd()), USAGE, "no group to end");
    });
}

#[test]
fn one_thread_drives_many_ranks() {
    within(DEADLINE, || {
        let size = 6;
        let id = unique_id();
        let mut comms = vec![null_mut(); size];
        ok!(ncclGroupStart());
        for (rank, comm) in comms.iter_mut().enumerate() {
            ok!(ncclCommInitRank(comm, size as c_int, id, rank as c_int));
        }
        ok!(ncclGroupEnd());
        for round in 0..3 {
            let mut buffers: Vec<Vec<i64>> = (0..size).map(|rank| vec![rank as i64 + round; 300]).collect();
            ok!(ncclGroupStart());
            for (comm, buffer) in comms.iter().zip(&mut buffers) {
                assert_eq!(reduce(buffer, SUM, *comm, NO_STREAM), OK);
                assert!(buffer.iter().all(|value| *value < 10), "nothing happens before the end");
            }
            ok!(ncclGroupEnd());
            let sum = (size * (size - 1) / 2) as i64 + size as i64 * round;
            assert!(buffers.iter().flatten().all(|value| *value == sum));
        }
        ok!(ncclGroupStart());
        destroy_all(&comms);
        ok!(ncclGroupEnd());
        refused(destroy(comms[0]), "freed");
    });
}

#[test]
fn the_outermost_end_issues() {
    ranks(2, |rank, comm| {
        let mut sum = [rank + 1];
        ok!(ncclGroupStart());
        ok!(ncclGroupStart());
        assert_eq!(reduce(&mut sum, SUM, comm, NO_STREAM), OK);
        ok!(ncclGroupEnd());
        assert_eq!(sum[0], rank + 1);
        ok!(ncclGroupStart());
        ok!(ncclGroupEnd());
        assert_eq!(sum[0], rank + 1);
        ok!(ncclGroupEnd());
        assert_eq!(sum[0], 3);
    });
}

#[test]
fn an_error_is_returned_at_once_and_by_the_end_and_nothing_is_launched() {
    ranks(2, |rank, comm| {
        let (mut first, mut last) = ([rank + 1], [rank + 1]);
        ok!(ncclGroupStart());
        assert_eq!(reduce(&mut first, SUM, comm, NO_STREAM), OK);
        ok!(ncclGroupStart());
        let mut wrong = [0];
        refused(
            c!(ncclAllReduce(from(&wrong), to(&mut wrong), 1, 12, SUM, comm, NO_STREAM)),
            "no data type 12",
        );
        // Only the end of the outer group issues calls.
        ok!(ncclGroupEnd());
        assert_eq!(reduce(&mut last, SUM, comm, NO_STREAM), OK, "it is too late, and no error of this call");
        refused(c!(ncclGroupEnd()), "no data type 12");
        assert_eq!((first, last), ([rank + 1], [rank + 1]));
        // The next group is not affected.
        ok!(ncclGroupStart());
        assert_eq!(reduce(&mut first, SUM, comm, NO_STREAM), OK);
        ok!(ncclGroupEnd());
        assert_eq!(first, [3]);
        works(rank, 2, comm);
    });
}

#[test]
fn every_kind_of_wrong_argument_poisons() {
    ranks(1, |_, comm| {
        let mut buffer = [1i32; 4];
        let data: *mut c_void = to(&mut buffer);
        let calls: [(&str, &dyn Fn() -> c_int); 9] = [
            ("a null communicator", &|| c!(ncclAllReduce(data, data, 4, INT32, SUM, null_mut(), NO_STREAM))),
            ("an operator", &|| c!(ncclAllReduce(data, data, 4, INT32, -1, comm, NO_STREAM))),
            ("a root", &|| c!(ncclBroadcast(data, data, 4, INT32, 1, comm, NO_STREAM))),
            ("a peer", &|| c!(ncclSend(data, 4, INT32, 7, comm, NO_STREAM))),
            ("a type", &|| c!(ncclRecv(data, 4, -1, 0, comm, NO_STREAM))),
            ("a null buffer", &|| c!(ncclAllReduce(std::ptr::null(), data, 4, INT32, SUM, comm, NO_STREAM))),
            ("a rank", &|| c!(ncclCommInitRank(&mut null_mut(), 2, unique_id(), 2))),
            ("a colour", &|| c!(ncclCommSplit(comm, -2, 0, &mut null_mut(), std::ptr::null()))),
            ("a list", &|| c!(ncclCommShrink(comm, null_mut(), 0, &mut null_mut(), std::ptr::null(), 0))),
        ];
        for (what, call) in calls {
            ok!(ncclGroupStart());
            assert_eq!(call(), INVALID, "{what}: {}", last_error());
            assert_eq!(c!(ncclGroupEnd()), INVALID, "{what}");
        }
        works(0, 1, comm);
    });
}

#[test]
fn both_may_send_first() {
    ranks(2, |rank, comm| {
        for count in [1, 1000, 300_000] {
            let (sent, mut received) = (vec![rank + 5; count], vec![0; count]);
            ok!(ncclGroupStart());
            ok!(ncclSend(from(&sent), count, INT32, 1 - rank, comm, NO_STREAM));
            ok!(ncclRecv(to(&mut received), count, INT32, 1 - rank, comm, NO_STREAM));
            ok!(ncclGroupEnd());
            assert!(received.iter().all(|value| *value == 6 - rank));
        }
    });
}

#[test]
fn a_rank_may_send_to_itself_in_a_group_only() {
    ranks(2, |rank, comm| {
        let (sent, mut received) = ([rank, 7, 8], [0; 3]);
        ok!(ncclGroupStart());
        ok!(ncclSend(from(&sent), 3, INT32, rank, comm, NO_STREAM));
        ok!(ncclRecv(to(&mut received), 3, INT32, rank, comm, NO_STREAM));
        ok!(ncclGroupEnd());
        assert_eq!(received, sent);
        assert_eq!(c!(ncclSend(from(&sent), 3, INT32, rank, comm, NO_STREAM)), INVALID);
        works(rank, 2, comm);
    });
}

#[test]
fn a_send_to_itself_without_its_receive_is_no_hang() {
    ranks(1, |_, comm| {
        let sent = [1];
        ok!(ncclGroupStart());
        ok!(ncclSend(from(&sent), 1, INT32, 0, comm, NO_STREAM));
        let status = c!(ncclGroupEnd());
        assert!(status == INVALID || status == USAGE, "{status}: {}", last_error());
        works(0, 1, comm);
    });
}

#[test]
fn messages_of_a_pair_match_in_order() {
    ranks(2, |rank, comm| {
        let (one, two, mut first, mut second) = ([rank * 10 + 1], [rank * 10 + 2; 2], [0], [0; 2]);
        ok!(ncclGroupStart());
        ok!(ncclSend(from(&one), 1, INT32, 1 - rank, comm, NO_STREAM));
        ok!(ncclRecv(to(&mut first), 1, INT32, 1 - rank, comm, NO_STREAM));
        ok!(ncclSend(from(&two), 2, INT32, 1 - rank, comm, NO_STREAM));
        ok!(ncclRecv(to(&mut second), 2, INT32, 1 - rank, comm, NO_STREAM));
        ok!(ncclGroupEnd());
        let other = (1 - rank) * 10;
        assert_eq!((first, second), ([other + 1], [other + 2; 2]));
    });
}

#[test]
fn every_rank_sends_to_every_rank() {
    let size = 4;
    ranks(size, move |rank, comm| {
        // Of different lengths, some of them none, as clients do for their all-to-alls of vectors.
        let count = |from: c_int, to: c_int| ((from * 3 + to) % 4 * 50) as usize;
        let sent: Vec<Vec<i32>> = (0..size).map(|peer| vec![rank * 100 + peer; count(rank, peer)]).collect();
        let mut received: Vec<Vec<i32>> = (0..size).map(|peer| vec![-1; count(peer, rank)]).collect();
        ok!(ncclGroupStart());
        for peer in 0..size {
            let (output, input) = (&mut received[peer as usize], &sent[peer as usize]);
            // No address where there are no elements.
            let address = |length, start| if length == 0 { null_mut() } else { start };
            let input_start = address(input.len(), from(input).cast_mut());
            ok!(ncclSend(input_start, input.len(), INT32, peer, comm, NO_STREAM));
            let output_start = address(output.len(), to(output));
            ok!(ncclRecv(output_start, output.len(), INT32, peer, comm, NO_STREAM));
        }
        ok!(ncclGroupEnd());
        for (peer, received) in received.iter().enumerate() {
            assert!(received.iter().all(|value| *value == peer as i32 * 100 + rank));
        }
    });
}

#[test]
fn collectives_messages_and_several_communicators_go_together() {
    ranks(3, |rank, comm| {
        let mut other = null_mut();
        // The other communicator has its ranks in the opposite order.
        ok!(ncclCommSplit(comm, 0, -rank, &mut other, std::ptr::null()));
        assert_eq!(consortCommSetTimeout(other, 20.0), OK);
        let (mut here, mut there, mut gathered, mut received) = ([rank + 1], [rank as i64], [0u8; 3], [0i32]);
        let (mine, sent) = ([rank as u8], [rank * 7]);
        ok!(ncclGroupStart());
        assert_eq!(reduce(&mut here, SUM, comm, NO_STREAM), OK);
        ok!(ncclSend(from(&sent), 1, INT32, (rank + 1) % 3, comm, NO_STREAM));
        assert_eq!(reduce(&mut there, SUM, other, NO_STREAM), OK);
        ok!(ncclAllGather(from(&mine), to(&mut gathered), 1, 1, other, NO_STREAM));
        ok!(ncclRecv(to(&mut received), 1, INT32, (rank + 2) % 3, comm, NO_STREAM));
        ok!(ncclGroupEnd());
        assert_eq!((here, there, gathered), ([6], [3], [2, 1, 0]));
        assert_eq!(received, [(rank + 2) % 3 * 7]);
        assert_eq!(destroy(other), OK);
    });
}

#[test]
fn groups_are_of_their_thread() {
    within(DEADLINE, || {
        let comms = all(1);
        let comm = Sent(comms[0]);
        ok!(ncclGroupStart());
        std::thread::scope(|threads| {
            threads.spawn(move || {
                assert_eq!(c!(ncclGroupEnd()), USAGE);
                works(0, 1, comm.get());
            });
        });
        ok!(ncclGroupEnd());
        destroy_all(&comms);
    });
}

#[test]
fn an_estimate_runs_nothing() {
    ranks(2, |rank, comm| {
        let info = || NcclSimInfo {
            size: size_of::<NcclSimInfo>(),
            magic: NcclSimInfo::MAGIC,
            version: 23_203,
            estimated_time: -1.0,
        };
        let mut sum = vec![rank + 1; 100_000];
        let mut collective = info();
        ok!(ncclGroupStart());
        assert_eq!(reduce(&mut sum, SUM, comm, NO_STREAM), OK);
        ok!(ncclGroupSimulateEnd(&mut collective));
        assert!(collective.estimated_time > 0.0, "{collective:?}");
        assert!(sum.iter().all(|value| *value == rank + 1));
        // A message takes time too.
        let mut message = info();
        ok!(ncclGroupStart());
        if rank == 0 {
            ok!(ncclSend(from(&sum), sum.len(), INT32, 1, comm, NO_STREAM));
        } else {
            ok!(ncclRecv(to(&mut sum), 100_000, INT32, 0, comm, NO_STREAM));
        }
        ok!(ncclGroupSimulateEnd(&mut message));
        assert!(message.estimated_time > 0.0, "{message:?}");
        // The structure is optional, and an invalid one is not written to.
        ok!(ncclGroupStart());
        ok!(ncclGroupSimulateEnd(null_mut()));
        for broken in [NcclSimInfo { magic: 1, ..info() }, NcclSimInfo { size: 8, ..info() }] {
            let mut passed = broken;
            ok!(ncclGroupStart());
            assert_eq!(reduce(&mut sum, SUM, comm, NO_STREAM), OK);
            refused(c!(ncclGroupSimulateEnd(&mut passed)), "ncclSimInfo_t");
            assert_eq!(passed.estimated_time, -1.0);
        }
        works(rank, 2, comm);
    });
}

#[test]
fn what_was_to_be_joined_in_a_refused_group_can_be_ended() {
    within(DEADLINE, || {
        for size in [1, 2] {
            let mut comm = null_mut();
            ok!(ncclGroupStart());
            ok!(ncclCommInitRank(&mut comm, size, unique_id(), 0));
            refused(c!(ncclCommInitRank(&mut null_mut(), size, unique_id(), 9)), "rank 9");
            refused(c!(ncclGroupEnd()), "rank 9");
            assert!(comm.is_null(), "a handle of nothing");
        }
    });
}

#[test]
fn two_groups_at_once_do_not_mix() {
    ranks(4, |rank, comm| {
        static MET: Barrier = Barrier::new(4);
        let mut pair = null_mut();
        ok!(ncclCommSplit(comm, rank % 2, rank, &mut pair, std::ptr::null()));
        assert_eq!(consortCommSetTimeout(pair, 20.0), OK);
        MET.wait();
        for _ in 0..20 {
            let mut buffers = [[rank; 4]; 3];
            ok!(ncclGroupStart());
            for buffer in &mut buffers {
                assert_eq!(reduce(buffer, SUM, pair, NO_STREAM), OK);
            }
            ok!(ncclGroupEnd());
            assert_eq!(buffers, [[if rank % 2 == 0 { 2 } else { 4 }; 4]; 3]);
        }
        assert_eq!(destroy(pair), OK);
    });
}

#[test]
fn a_thread_that_ends_with_a_group_open_leaves_the_process_alone() {
    within(DEADLINE, || {
        let comms = all(2);
        let handles: Vec<usize> = comms.iter().map(|comm| comm.expose_provenance()).collect();
        std::thread::spawn(move || {
            let comm = |at: usize| std::ptr::with_exposed_provenance_mut(handles[at]);
            ok!(ncclGroupStart());
            assert_eq!(reduce(&mut [1], SUM, comm(1), NO_STREAM), OK);
            assert_eq!(destroy(comm(0)), OK);
        })
        .join()
        .expect("no panic");
        refused(destroy(comms[0]), "freed");
        assert_eq!(destroy(comms[1]), OK);
    });
}
