//! Ranks of several processes, whose state is here in one, that call each other when they have something to say.

use std::sync::Weak;
use std::thread::JoinHandle;

use super::*;
use crate::bootstrap;
use crate::membership::group::Group;
use crate::membership::process::Source;
use crate::membership::thread;
use crate::membership::wire::Message;
use crate::recorder::RECORDS;
use consort_types::error::Error;

const JOB: [u8; 16] = [7; 16];
const KEY: [u8; 32] = [8; 32];

/// A process with one rank of the job and its control thread.
struct Process {
    shared: Arc<Shared>,
    member: Arc<Member>,
    world: Arc<Group>,
    thread: Option<JoinHandle<()>>,
}

impl Process {
    /// All ranks of a job whose ranks are linked to few others at first: here to none.
    fn all(size: u32, tcp: bool) -> Vec<Process> {
        let shared: Vec<Arc<Shared>> = (0..size).map(|_| Shared::new(None).expect("a process")).collect();
        let said = |shared: &Arc<Shared>| bootstrap::Member {
            process: shared.nonce,
            unix: if tcp { Vec::new() } else { shared.unix_name.clone() },
            tcp: vec![
                format!("127.0.0.1:{}", shared.tcp_addresses().expect("a port")[0].port())
                    .parse()
                    .expect("an address"),
            ],
            ..bootstrap::Member::unknown()
        };
        let table: Vec<bootstrap::Member> = shared.iter().map(said).collect();
        let process = |(shared, rank): (Arc<Shared>, Rank)| {
            let (clock, registry) = (crate::clock::Clock::default(), shared.registry.clone());
            let member =
                Member::within(Arc::downgrade(&shared), clock, registry, JOB, KEY, rank, table.clone(), 1);
            shared.enlist(&member);
            let world = Group::new(member.clone(), member.world(), (0..size).collect(), RECORDS);
            let thread = {
                let shared = shared.clone();
                std::thread::spawn(move || thread::run(&shared))
            };
            Process { shared, member, world, thread: Some(thread) }
        };
        shared.into_iter().zip(0..).map(process).collect()
    }

    /// Closes everything, as a program does that ends in good order.
    fn close(self) {
        self.world.leave();
    }

    /// Ends as a process does that dies: its sockets are closed, and nothing is said.
    fn die(self) {
        let links = self.member.remote_links();
        self.stop();
        links.iter().for_each(|link| link.end());
        std::mem::forget(self.member.clone());
    }

    fn stop(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.wake();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The member goes first, as a program's communicators do.
        let nothing = Member::within(
            Weak::new(),
            crate::clock::Clock::default(),
            Arc::default(),
            JOB,
            KEY,
            0,
            vec![bootstrap::Member::unknown()],
            1,
        );
        self.world = Group::new(nothing.clone(), 1, vec![0], RECORDS);
        self.member = nothing;
        self.stop();
        let thread = self.thread.take().map(JoinHandle::join);
        assert!(thread.is_none_or(|ended| ended.is_ok()), "the control thread panicked");
        let callers = lock(&self.shared.callers).take();
        callers.into_iter().for_each(|caller| caller.join().expect("a caller that does not panic"));
        assert_eq!(lock(&self.shared.callers).running, 0);
    }
}

/// Waits until it holds.
fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn answered(process: &Process, rank: Rank, token: u64) -> bool {
    process.member.has_answered(rank, token)
}

#[test]
fn ranks_that_call_each_other_at_once_have_one_link() {
    for round in 0..20 {
        let processes = Process::all(4, round % 2 == 0);
        std::thread::scope(|threads| {
            for process in &processes {
                threads.spawn(move || {
                    for rank in (0..4).filter(|rank| *rank != process.member.rank) {
                        process.member.send(rank, 7, Message::Query { token: 1 });
                    }
                });
            }
        });
        for process in &processes {
            let others: Vec<Rank> = (0..4).filter(|rank| *rank != process.member.rank).collect();
            until("all answer", || others.iter().all(|rank| answered(process, *rank, 1)));
            assert_eq!(process.member.remote_links().len(), 3);
            assert!(!process.world.has_failed(), "{:?}", process.world.failure());
        }
        let links: usize = processes
            .iter()
            .map(|process| {
                let sources = lock(&process.shared.sources);
                sources.values().filter(|source| matches!(source, Source::Link(_))).count()
            })
            .sum();
        assert_eq!(links, 12, "two ends of each of six links, and no other");
        processes.into_iter().for_each(Process::close);
    }
}

#[test]
fn who_left_in_good_order_is_lost_to_no_one_and_who_dies_is_lost_to_all() {
    let mut processes = Process::all(4, true);
    // A line of links: what the last one hears comes from the one before it.
    for (one, other) in [(0, 1), (1, 2), (2, 3)] {
        processes[one].member.send(other, 7, Message::Query { token: 1 });
        until("it answers", || answered(&processes[one], other, 1));
    }
    let first = processes.remove(0);
    first.close();
    until("its neighbour hears that it left", || processes[0].world.has_left(0));
    // Who asks one that has ended hears nothing, and nothing fails for it.
    processes[2].member.send(0, 7, Message::Query { token: 2 });
    until("nothing answers there", || {
        processes[2].member.refusal(0).is_some() && processes[2].member.all_open() == [2]
    });
    assert!(processes.iter().all(|process| !process.world.has_failed()));
    processes.remove(0).die();
    for process in &processes {
        until("it is known to be lost", || process.world.has_failed());
        until("the reason stays", || process.world.settled(Instant::now()).is_some());
        let error = process.world.settled(Instant::now()).expect("settled");
        assert!(matches!(error, Error::PeerLost { rank: 1, .. }), "{error}");
    }
}

#[test]
fn a_call_that_is_needed_by_one_communicator_fails_that_one_alone() {
    let mut processes = Process::all(3, true);
    let last = processes.pop().expect("three");
    let needed = Group::new(processes[0].member.clone(), 99, vec![0, 1, 2], RECORDS);
    last.close();
    let address = consort_transports::Address { transport: "tcp".into(), bytes: vec![1] };
    needed.send(2, Message::Address { channel: 0, address });
    until("it fails", || needed.has_failed());
    let error = needed.failure().expect_err("failed").to_string();
    assert!(error.contains("nothing answers any more where it took control connections"), "{error}");
    assert!(processes.iter().all(|process| !process.world.has_failed()));
}

#[test]
fn a_caller_that_gives_up_while_it_is_answered_is_not_lost() {
    let processes = Process::all(3, true);
    let callee = &processes[0];
    // Has the answer, and never says that it counts on it.
    let shared = Shared::new(None).expect("a process");
    let mut call = Call::new(&processes[1].member, 0);
    let patience = Patience::from(Instant::now() + Duration::from_secs(60));
    let stream = call.attempt(&shared, patience).expect("an answer");
    until("it is answered", || callee.member.all_open() == [1]);
    assert!(!callee.member.is_linked(1), "the other may have given up");
    drop(stream);
    until("it is not answered any more", || callee.member.all_open().is_empty());
    assert!(!callee.member.is_lost(1) && !callee.world.has_failed());
    // It can be called, and can call.
    callee.member.send(1, 7, Message::Query { token: 1 });
    until("it answers", || answered(callee, 1, 1));
    processes.into_iter().for_each(Process::close);
}
