//! Processes, whose state is here in one, that hand a table on to each other over their sockets.

use std::os::fd::OwnedFd;
use std::thread::JoinHandle;

use consort_memory::sync::{AtomicBool, Ordering};

use super::*;
use crate::bootstrap::Spread;
use crate::membership::{race, thread};

const KEY: [u8; 32] = [8; 32];
const JOB: [u8; 16] = [7; 16];
const LONG: Duration = Duration::from_secs(60);
const SPREAD: Spread = Spread { whole_max: 2, fanout: 2 };

/// A process and its control thread.
struct Process {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Process {
    fn new() -> Self {
        let shared = Shared::new(None).expect("a process");
        let runs = shared.clone();
        Process { shared, thread: Some(std::thread::spawn(move || thread::run(&runs))) }
    }

    fn gives(&self) -> usize {
        let sources = lock(&self.shared.sources);
        sources.values().filter(|source| matches!(source, Source::Giving(_))).count()
    }

    fn greets(&self) -> usize {
        let sources = lock(&self.shared.sources);
        sources.values().filter(|source| matches!(source, Source::Greeting(_))).count()
    }

    /// How many of the takers of all relays have not taken the table.
    fn awaits(&self) -> usize {
        let open = lock(&self.shared.relays.open);
        open.values().flatten().map(|relay| lock(&relay.awaited).len()).sum()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.wake();
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()), "the control thread panicked");
    }
}

/// A job of a rank in each process, `per_host` of them on a host.
struct Job {
    processes: Vec<Process>,
    table: Table,
    /// Holds ports at which nothing listens.
    held: Vec<OwnedFd>,
}

impl Job {
    fn new(size: u32, per_host: u32, tcp: bool) -> Self {
        let processes: Vec<Process> = (0..size).map(|_| Process::new()).collect();
        let member = |(process, rank): (&Process, Rank)| {
            let port = process.shared.tcp_addresses().expect("a port")[0].port();
            bootstrap::Member {
                host_key: [(rank / per_host) as u8; 16],
                process: process.shared.nonce,
                unix: if tcp { Vec::new() } else { process.shared.unix_name.clone() },
                tcp: vec![([127, 0, 0, 1], port).into()],
                ..bootstrap::Member::unknown()
            }
        };
        let members = processes.iter().zip(0..).map(member).collect();
        let table = Table { job: JOB, key: KEY, nonce: [3; 32], spread: SPREAD, members };
        Job { processes, table, held: Vec::new() }
    }

    /// The same, but what this rank said of itself.
    fn with(mut self, rank: Rank, change: impl FnOnce(&mut bootstrap::Member)) -> Self {
        let mut members = self.table.members.to_vec();
        change(&mut members[rank as usize]);
        self.table.members = members.into();
        self
    }

    /// The same, but nothing listens where this rank said that it does.
    fn without(mut self, rank: Rank) -> Self {
        let (held, address) = race::tests::refusing();
        self.held.push(held);
        self.with(rank, |member| member.tcp = vec![address])
    }

    fn take(&self, rank: Rank, sources: &[Rank], patience: Patience<'_>) -> Result<Table> {
        let source = |rank: &Rank| (*rank, self.table.members[*rank as usize].clone());
        let reference = Reference::to(&self.table, sources.iter().map(source).collect());
        let own = &self.table.members[rank as usize];
        take(&self.processes[rank as usize].shared, rank, own, &reference, patience)
    }

    fn relay(&self, rank: Rank) {
        self.processes[rank as usize].shared.relay(&self.table, &self.table.members, rank);
    }

    /// A rank that joins: it takes the table if the root does not give it, and hands it on.
    fn join(&self, rank: Rank) {
        let sources = Tree::of(&self.table).sources(rank);
        if !sources.is_empty() {
            let table = self.take(rank, &sources, patient()).expect("a table");
            assert_eq!(
                (table.members, table.spread, table.nonce),
                (self.table.members.clone(), SPREAD, [3; 32])
            );
        }
        self.relay(rank);
    }

    /// A call of rank 0 by another one.
    fn call(&self, from: Rank, key: [u8; 32]) -> Call {
        let subject = Subject { job: relay_name(&KEY), from, to: 0 };
        let members = &self.table.members;
        Call::before_links(subject, key, &members[1], &members[0])
    }
}

fn patient() -> Patience<'static> {
    Patience::from(Instant::now() + LONG)
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LONG, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_table_comes_to_all_ranks_and_nothing_is_left_of_its_way() {
    for tcp in [false, true] {
        let job = Job::new(19, 3, tcp);
        std::thread::scope(|threads| {
            // Those that take it come first.
            for rank in (0..19).rev() {
                let job = &job;
                threads.spawn(move || job.join(rank));
            }
        });
        let is_over = |process: &Process| process.gives() + process.greets() + process.awaits() == 0;
        until("nothing is left", || job.processes.iter().all(is_over));
        // As ranks do that close their communicators, and processes that end.
        for (process, rank) in job.processes.iter().zip(0..) {
            process.shared.relays.dismiss(&KEY, rank);
            assert!(lock(&process.shared.relays.open).is_empty());
        }
        let begun = Instant::now();
        job.processes.iter().for_each(|process| process.shared.relays.part());
        assert!(begun.elapsed() < PARTING, "no taker is waited for");
    }
}

#[test]
fn ranks_of_one_process_have_one_table() {
    let process = Process::new();
    let job = Job::new(3, 1, false);
    let table = || Table { members: job.table.members.to_vec().into(), ..job.table.clone() };
    let first = process.shared.one_table(&table());
    assert!(Arc::ptr_eq(&first, &process.shared.one_table(&table())));
    let other = process.shared.one_table(&Table { job: [9; 16], ..table() });
    assert!(!Arc::ptr_eq(&first, &other));
}

#[test]
fn where_a_source_is_gone_or_silent_the_other_hands_the_table_on() {
    let job = Job::new(3, 1, true);
    job.relay(0);
    // Rank 1 runs and never has the table: the claim is parked there for a while.
    assert!(job.take(2, &[1, 0], patient()).is_ok());
    // Rank 1 does not become one of the job.
    job.relay(1);
    job.processes[1].shared.withdraw(&KEY, 1);
    assert!(job.take(2, &[1, 0], patient()).is_ok());
    let job = job.without(1);
    job.relay(0);
    assert!(job.take(2, &[1, 0], patient()).is_ok());
}

#[test]
fn a_process_that_ends_waits_for_its_takers_for_a_while() {
    let job = Job::new(6, 1, true);
    job.relay(0);
    let takers = Tree::of(&job.table).takers(0);
    assert_eq!(takers, [2, 3]);
    std::thread::scope(|threads| {
        let parted = threads.spawn(|| {
            let begun = Instant::now();
            job.processes[0].shared.relays.part();
            begun.elapsed()
        });
        // Another rank that has it from rank 0 is not waited for.
        for taker in [5, 3, 2] {
            assert!(job.take(taker, &[0], patient()).is_ok());
        }
        assert!(parted.join().expect("no panic") < PARTING);
    });
    job.relay(1);
    job.processes[1].shared.relays.dismiss(&KEY, 1);
    let begun = Instant::now();
    job.processes[1].shared.relays.part();
    assert!(begun.elapsed() >= PARTING, "ranks 4 and 5 have not come");
}

#[test]
fn a_rank_that_gets_no_table_names_the_sources_by_its_deadline() {
    let job = Job::new(2, 1, true).without(0);
    let error = job.take(1, &[0], (Instant::now() + Duration::from_secs(1)).into()).expect_err("no table");
    let Error::Join { rank: 1, cause, .. } = &error else { panic!("{error}") };
    assert!(cause.contains("rank 0 (host h, process 1): ") && cause.contains("refused"), "{cause}");
    let cancelled = AtomicBool::new(true);
    let patience = Patience::until(Instant::now() + LONG, Some(&cancelled));
    let error = job.take(1, &[0], patience).expect_err("cancelled");
    assert_eq!(error.to_string(), bootstrap::cancelled(1).to_string());
}

#[test]
fn a_table_that_is_not_the_roots_is_refused_at_once() {
    let job = Job::new(3, 1, true);
    let other = Job { processes: Vec::new(), table: job.table.clone(), held: Vec::new() };
    let other = other.with(0, |member| member.pid += 1).table;
    job.processes[0].shared.relay(&other, &other.members, 0);
    let error = job.take(1, &[0], patient()).expect_err("false");
    assert!(error.to_string().contains("not the table of this job's root"), "{error}");
    // Another source has the right one.
    job.relay(2);
    assert!(job.take(1, &[0, 2], patient()).is_ok());
}

#[test]
fn no_stranger_gets_a_table() {
    let job = Job::new(3, 1, true);
    job.relay(0);
    let shared = &job.processes[1].shared;
    let refused = job.call(1, [9; 32]).attempt(shared, patient()).expect_err("no proof");
    assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{refused}");
    assert!(job.call(3, KEY).attempt(shared, patient()).is_err(), "there is no rank 3");
    assert!(job.call(1, KEY).attempt(shared, patient()).is_ok());
}

#[test]
fn a_taker_that_does_not_read_or_dies_keeps_no_other_waiting() {
    let size = 4;
    let job = (0..size).fold(Job::new(size, 1, true), |job, rank| {
        job.with(rank, |member| member.hardware = Arc::new(vec![b'x'; 40_000]))
    });
    job.relay(0);
    // They read nothing, and so do not say that they have it.
    let silent: Vec<Stream> = (0..64)
        .map(|_| job.call(2, KEY).attempt(&job.processes[1].shared, patient()).expect("an answer"))
        .collect();
    until("all are being given it", || job.processes[0].gives() == silent.len());
    assert_eq!(job.take(3, &[0], patient()).expect("a table").members, job.table.members);
    until("rank 3 says that it has it", || job.processes[0].awaits() == 1);
    drop(silent);
    until("they are given up", || job.processes[0].gives() == 0);
    assert_eq!(job.processes[0].awaits(), 1, "rank 2 has not said so");
}
