//! What ranks say when they leave, and what becomes of calls that still need them.

use std::time::{Duration, Instant};

use consort_kernels::DataType;

use crate::{Communicator, Error, Guilty, Options};
use consort_control::membership::wire::Message;
use consort_control::recorder::Snapshot;
use consort_types::call::{Descriptor, Kind, Named};

#[test]
fn who_leaves_says_how_far_it_came() {
    let mut ranks = Communicator::local(3).expect("three ranks");
    std::thread::scope(|threads| {
        for comm in &ranks {
            threads.spawn(move || {
                comm.barrier().expect("all are here");
                match comm.rank() {
                    0 => comm.receive(&mut [0u8], 1).expect("sent"),
                    1 => comm.send(&[1u8], 0).expect("received"),
                    _ => {}
                }
            });
        }
    });
    let group = ranks[0].core().group.clone();
    let finished = |rank, kind, sequence| group.left_after(rank, kind, sequence);
    assert!(!finished(1, Kind::Barrier, 1) && group.last_position(1).is_none(), "it has not left");
    ranks.drain(1..).for_each(drop);
    for rank in [1, 2] {
        assert!(finished(rank, Kind::Barrier, 1) && !finished(rank, Kind::AllReduce, 2), "rank {rank}");
        let sent = u64::from(rank == 1);
        assert_eq!(finished(rank, Kind::Receive, 1), rank == 1, "rank {rank}");
        assert!(!finished(rank, Kind::Receive, 2) && !finished(rank, Kind::Send, 1), "rank {rank}");
        let position = group.last_position(rank).expect("it has left");
        assert_eq!((position.entered, position.finished, position.job_rank), (1, 1, rank));
        assert_eq!(position.passed, [(0, sent, 0)]);
    }
}

/// Two ranks; rank 1 says that it has left after it finished barriers up to `finished`.
fn left(finished: u64, options: &Options) -> (Error, Option<Guilty>, Duration) {
    let ranks = Communicator::local_with(2, options).expect("two ranks");
    let snapshot = Snapshot { entered: finished, finished, recent: Vec::new() };
    let group = &ranks[0].core().group;
    group.receive(1, Message::Leave { snapshot });
    let begin = Instant::now();
    let error = ranks[0].barrier().expect_err("rank 1 is not in it");
    (error, group.report().map(|report| report.guilty.clone()), begin.elapsed())
}

#[test]
fn what_a_rank_finished_before_it_left_is_lost_on_the_way() {
    let (short, long) = (Duration::from_millis(200), Duration::from_secs(60));
    let (error, _, took) = left(0, &Options::default().timeout(long));
    assert!(matches!(error, Error::PeerLeft { rank: 1, .. }) && took < long / 2, "{error}");
    let (error, _, took) = left(1, &Options::default().connect_timeout(short).timeout(long));
    assert!(matches!(error, Error::Link { from: 0, to: 1, .. }), "{error}");
    assert!(error.to_string().contains("rank 1 left after barrier #1, and 200 ms later"), "{error}");
    assert!(took >= short && took < long / 2, "{took:?}");
    let (error, guilty, _) = left(1, &Options::default().connect_timeout(long).timeout(short));
    assert!(error.to_string().contains("rank 1 is through with barrier #1"), "{error}");
    assert_eq!(guilty, Some(Guilty::Link { from: 1, to: 0 }));
}

#[test]
fn what_a_rank_called_before_it_left_is_compared() {
    let ranks = Communicator::local(2).expect("two ranks");
    let [one, other] = [0, 1].map(|rank: usize| ranks[rank].core().group.clone());
    let call = Descriptor {
        kind: Kind::AllGather,
        data_type: DataType::Int8,
        op: None,
        root: 0,
        count: 5,
        named: Named::NONE,
    };
    let record = other.recorder.enter(1, &call, 1);
    other.recorder.finish(record, 1, false);
    other.leave();
    assert!(one.has_left(1));
    let error = ranks[0].barrier().expect_err("rank 1 called something else");
    assert!(error.to_string().contains("rank 1: all_gather of 5 int8"), "{error}");
}

#[test]
fn closed_communicators_leave_nothing_behind() {
    let ranks = Communicator::local(3).expect("three ranks");
    std::thread::scope(|threads| {
        for comm in &ranks {
            threads.spawn(move || {
                for round in 0..50u32 {
                    let mut child = comm.split(Some(0), 0).expect("all split");
                    // Each closes after another one has, and hears of the others' ends afterwards.
                    for turn in 0..3 {
                        if comm.rank() == (turn + round) % 3 {
                            child = None;
                        }
                        comm.barrier().expect("all are here");
                    }
                    assert!(child.is_none());
                }
            });
        }
    });
    for comm in &ranks {
        assert_eq!(comm.core().group.member.remembered(), (0, 0), "rank {}", comm.rank());
    }
}
