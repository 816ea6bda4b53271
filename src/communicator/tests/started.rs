//! Many operations that were started at once.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use consort_control::membership::process::Unattended;

use super::waiting::on_hosts;
use crate::{Communicator, Options, Work};

/// What every rank of a job does, in a thread each.
fn on_all(ranks: &[Communicator], body: impl Fn(&Communicator) + Sync) {
    std::thread::scope(|threads| ranks.iter().for_each(|comm| _ = threads.spawn(|| body(comm))));
}

/// As many messages to each other rank and from each, all started before any is waited for.
fn exchange(comm: &Communicator, each: usize) {
    let others = || (0..comm.size()).filter(|other| *other != comm.rank());
    let mut works = Vec::new();
    for nth in 0..each {
        for other in others() {
            let value = 1000 * comm.rank() + nth as u32;
            works.push((None, comm.start_send(vec![value; 100], other).expect("started")));
            let expected = 1000 * other + nth as u32;
            works.push((Some(expected), comm.start_receive(vec![0u32; 100], other).expect("started")));
        }
    }
    for (expected, work) in works {
        let values = work.wait().expect("all ranks call it");
        assert!(expected.is_none_or(|expected| values == [expected; 100]));
    }
}

/// Rank 0 has sent to rank 1, whose links have not taken the end of it, and waits for rank 2: its last operation ends, and what is left goes
/// on without one.
#[test]
fn the_last_operation_does_not_wait_for_bytes_of_others() {
    let options = Options::default().timeout(Duration::from_secs(60));
    let ranks = on_hosts(3, 1, &options);
    on_all(&ranks, |comm| exchange(comm, 1));
    let (core, go_on) = (ranks[0].core(), Barrier::new(2));
    core.idle_engine().links.hold_back(Some(1));
    std::thread::scope(|threads| {
        threads.spawn(|| ranks[1].receive(&mut [0u32; 100], 0).expect("rank 0 sends"));
        threads.spawn(|| {
            let mut values = [0u32; 100];
            ranks[2].receive(&mut values, 0).expect("rank 0 sends");
            go_on.wait();
            ranks[2].send(&values, 0).expect("rank 0 receives");
        });
        let late = ranks[0].start_receive(vec![0u32; 100], 2).expect("started");
        ranks[0].start_send(vec![1u32; 100], 1).and_then(Work::wait).expect("another goes on");
        ranks[0].start_send(vec![2u32; 100], 2).and_then(Work::wait).expect("another goes on");
        go_on.wait();
        assert_eq!(late.wait().expect("rank 2 sends"), [2; 100]);
    });
    assert!(core.idle_engine().has_rest() && !core.is_idle(), "the rest goes on by itself");
    core.idle_engine().links.hold_back(None);
    let until = |is_over: &dyn Fn() -> bool| {
        let began = Instant::now();
        while !is_over() {
            assert!(began.elapsed() < Duration::from_secs(60), "nothing moves it");
            std::thread::yield_now();
        }
    };
    until(&|| core.is_idle() && !core.idle_engine().has_rest());

    // One alone stays until its own bytes are on their way.
    core.idle_engine().links.hold_back(Some(1));
    std::thread::scope(|threads| {
        threads.spawn(|| ranks[1].receive(&mut [0u32; 100], 0).expect("rank 0 sends"));
        let sent = ranks[0].start_send(vec![1u32; 100], 1).expect("started");
        for _ in 0..1000 {
            core.advance_queue(&mut core.idle_engine());
            assert!(!sent.is_done(), "its bytes are not out");
        }
        core.idle_engine().links.hold_back(None);
        sent.wait().expect("its bytes are out");
    });
}

#[test]
#[ignore = "prints how long many started messages take"]
fn how_long_many_started_messages_take() {
    let options = Options::default().timeout(Duration::from_secs(300));
    let timed = |ranks: &[Communicator], each: usize| {
        on_all(ranks, |comm| exchange(comm, 1));
        let began = Instant::now();
        on_all(ranks, |comm| exchange(comm, each));
        began.elapsed().as_secs_f64() * 1e3
    };
    for each in [250, 500, 1000, 2000, 4000] {
        let memory = timed(&Communicator::local_with(2, &options).expect("ranks"), each);
        let sockets = timed(&on_hosts(2, 1, &options), each);
        println!("2 ranks, {each} each way: {memory:.1} ms in memory, {sockets:.1} ms over sockets");
    }
    for ranks in [4, 8, 16] {
        let sockets = timed(&on_hosts(ranks, 1, &options), 20);
        let messages = f64::from(ranks * (ranks - 1) * 20);
        println!(
            "{ranks} ranks, 20 to each other: {sockets:.1} ms over sockets, {:.2} us a message",
            1e3 * sockets / messages
        );
    }
}
