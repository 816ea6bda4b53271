//! Processes, whose state is here in one, that hand a table on to each other over their sockets.

use std::thread::JoinHandle;

use consort_memory::sync::{AtomicBool, Ordering};

use super::*;
use crate::bootstrap::{Spread, Tree};
use crate::membership::thread;

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

    /// Has nothing left of what it served.
    fn is_idle(&self) -> bool {
        let sources = lock(&self.shared.sources);
        !sources.values().any(|source| matches!(source, Source::Giving(_) | Source::Greeting(_)))
            && lock(&self.shared.offers.open).is_empty()
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
    body: Arc<[u8]>,
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
        let members: Vec<bootstrap::Member> = processes.iter().zip(0..).map(member).collect();
        let body = bootstrap::Reference::body_for_test(&members);
        Job { processes, table: Table { job: JOB, key: KEY, members }, body }
    }

    fn tree(&self) -> Tree {
        Tree::of(&self.table.members, SPREAD)
    }

    fn reference(&self, sources: &[Rank]) -> Reference {
        let sources =
            sources.iter().map(|rank| (*rank, self.table.members[*rank as usize].clone())).collect();
        Reference::for_test(&self.table, &self.body, sources)
    }

    fn take(&self, rank: Rank, sources: &[Rank], patience: Patience<'_>) -> Result<(Table, Arc<[u8]>)> {
        let own = &self.table.members[rank as usize];
        take(&self.processes[rank as usize].shared, rank, own, &self.reference(sources), patience)
    }

    fn offer(&self, rank: Rank, takers: &[Rank]) -> Offering {
        let shared = &self.processes[rank as usize].shared;
        Offering::new(shared, &self.table, rank, self.body.clone(), takers.iter().copied())
    }

    /// A rank that joins: it takes the table if the root does not give it, and hands it on.
    fn join(&self, rank: Rank, patience: Patience<'_>) {
        let tree = self.tree();
        let sources = tree.sources(rank);
        if !sources.is_empty() {
            let (table, body) = self.take(rank, &sources, patience).expect("a table");
            assert_eq!((&table.members, &body), (&self.table.members, &self.body));
        }
        let takers = tree.takers(rank);
        let offering = (!takers.is_empty()).then(|| self.offer(rank, &takers));
        if let Some(offering) = offering {
            offering.wait(patience);
        }
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
                threads.spawn(move || job.join(rank, patient()));
            }
        });
        until("nothing is left", || job.processes.iter().all(Process::is_idle));
    }
}

#[test]
fn where_a_source_is_gone_or_silent_the_one_above_it_hands_the_table_on() {
    let job = Job::new(3, 1, true);
    let offering = job.offer(0, &[]);
    // Rank 1 runs and never has the table: its claim is parked there until it calls the other.
    assert!(job.take(2, &[1, 0], patient()).is_ok());
    let mut gone = job;
    gone.table.members[1].tcp = vec![{
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("an address")
    }];
    assert!(gone.take(2, &[1, 0], patient()).is_ok());
    drop(offering);
}

#[test]
fn a_rank_that_gets_no_table_names_the_sources_by_its_deadline() {
    let mut job = Job::new(2, 1, true);
    job.table.members[0].tcp = vec![{
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("an address")
    }];
    let begun = Instant::now();
    let error = job.take(1, &[0], (begun + Duration::from_millis(200)).into()).expect_err("no table");
    let Error::Join { rank: 1, cause, .. } = &error else { panic!("{error}") };
    assert!(cause.contains("rank 0 (host h, process 1): ") && cause.contains("refused"), "{cause}");
    let cancelled = AtomicBool::new(true);
    let error =
        job.take(1, &[0], Patience::until(Instant::now() + LONG, Some(&cancelled))).expect_err("cancelled");
    assert_eq!(error.to_string(), bootstrap::cancelled(1).to_string());
}

#[test]
fn a_table_that_is_not_the_roots_is_refused_and_no_stranger_gets_one() {
    let job = Job::new(3, 1, true);
    let mut other = job.table.clone();
    other.members[0].pid += 1;
    let false_body = bootstrap::Reference::body_for_test(&other.members);
    let offering = Offering::new(&job.processes[0].shared, &job.table, 0, false_body, [1]);
    let error = job.take(1, &[0], (Instant::now() + Duration::from_millis(200)).into()).expect_err("false");
    assert!(error.to_string().contains("not the table of this job's root"), "{error}");
    drop(offering);
    // With another key the name is another one; under the right name it cannot be proved.
    let offering = job.offer(0, &[1]);
    let subject = Subject { job: relay_name(&KEY), from: 1, to: 0 };
    let mut stranger = Call::before_links(subject, [9; 32], &job.table.members[1], &job.table.members[0]);
    let refused = stranger.attempt(&job.processes[1].shared, patient()).expect_err("no proof");
    assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{refused}");
    let mut beyond =
        Call::before_links(Subject { from: 3, ..subject }, KEY, &job.table.members[1], &job.table.members[0]);
    assert!(beyond.attempt(&job.processes[1].shared, patient()).is_err(), "there is no rank 3");
    // It still waits for its taker.
    let begun = Instant::now();
    offering.wait((begun + Duration::from_millis(20)).into());
    assert!(begun.elapsed() >= Duration::from_millis(20));
    assert!(job.take(1, &[0], patient()).is_ok());
    offering.wait(patient());
}

#[test]
fn a_taker_that_does_not_read_or_dies_keeps_no_other_waiting() {
    let mut job = Job::new(3, 1, true);
    // More than sockets hold.
    job.body = vec![7; 64 << 20].into();
    let offering = job.offer(0, &[1]);
    let subject = Subject { job: relay_name(&KEY), from: 1, to: 0 };
    let mut call = Call::before_links(subject, KEY, &job.table.members[1], &job.table.members[0]);
    let silent = call.attempt(&job.processes[1].shared, patient()).expect("an answer");
    // Not a table, but all of its bytes come.
    let reads = |rank: Rank| {
        let error =
            job.take(rank, &[0], (Instant::now() + Duration::from_secs(1)).into()).expect_err("no table");
        assert!(error.to_string().contains("too long"), "{error}");
    };
    reads(2);
    drop(silent);
    until("it is given up", || {
        let sources = lock(&job.processes[0].shared.sources);
        !sources.values().any(|source| matches!(source, Source::Giving(_)))
    });
    assert!(lock(&offering.offer.awaited).contains(&1));
}
