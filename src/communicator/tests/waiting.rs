//! How ranks sleep that have sockets: two hosts, by their routes, in one process.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use consort_control::membership::group::Group;
use consort_control::membership::process::{Listening, Shared};
use consort_kernels::{DataType, ReduceOp};
use consort_memory::{Bell, Lease};
use consort_transports::{Tcp, Transport};
use consort_types::call::Call;

use crate::communicator::core::Owned;
use crate::eager::MESSAGES_CHANNEL;
use crate::engine::readiness::{Count, Readiness};
use crate::engine::routes::Routes;
use crate::engine::{Engine, Memory, Progress, Source, Task};
use crate::ticket::Ticket;
use crate::{Communicator, Options, Rank, Result};

/// Memory to the other rank of the host, sockets to the other host.
struct Hosts {
    ranks_per_host: Rank,
    shared: Arc<Shared>,
    tcp: Option<(Arc<Listening>, Arc<Tcp>)>,
}

impl Routes for Hosts {
    fn is_mapped(&self, group: &Group, rank: Rank) -> bool {
        group.rank / self.ranks_per_host == rank / self.ranks_per_host
    }

    fn transport(&mut self, group: &Group, rank: Rank) -> Result<Arc<dyn Transport>> {
        if self.is_mapped(group, rank) {
            return Ok(self.shared.loopback.clone());
        }
        let (_, tcp) = self.tcp.get_or_insert_with(|| {
            let listening = self.shared.listening(IpAddr::V4(Ipv4Addr::LOCALHOST), None);
            let listening = listening.expect("a listener of this process");
            let tcp = Tcp::new(listening.listener.clone(), group.member.key).expect("a page");
            (listening, Arc::new(tcp))
        });
        Ok(tcp.clone())
    }

    fn abandon(&mut self) {}
}

fn two_hosts_of(ranks_per_host: Rank) -> Vec<Communicator> {
    let options = Options::default().timeout(Duration::from_secs(60)).algorithms("ring");
    on_hosts(2, ranks_per_host, &options)
}

/// Ranks that take themselves for ranks of several hosts.
pub(in crate::communicator) fn on_hosts(
    hosts: u32,
    ranks_per_host: Rank,
    options: &Options,
) -> Vec<Communicator> {
    let ranks = Communicator::local_with(hosts * ranks_per_host, options).expect("ranks in a process");
    for comm in &ranks {
        let shared = comm.core().shared.clone();
        comm.core().idle_engine().links.reroute(Box::new(Hosts { ranks_per_host, shared, tcp: None }));
    }
    ranks
}

/// With their connections made.
fn two_hosts_of_two() -> Vec<Communicator> {
    let ranks = two_hosts_of(2);
    std::thread::scope(|threads| ranks.iter().for_each(|comm| _ = threads.spawn(|| reduce(comm, 1))));
    ranks
}

/// Some all-reduces of a rank, each right.
fn reduce(comm: &Communicator, calls: usize) {
    let sum: u64 = (0..comm.size()).map(u64::from).sum();
    for _ in 0..calls {
        let mut values = [u64::from(comm.rank()); 1000];
        comm.all_reduce(&mut values, ReduceOp::Sum).expect("all ranks call it");
        assert_eq!(values, [sum; 1000]);
    }
}

/// Until one more has been counted than `before`.
fn until(sleeper: &Readiness, count: Count, before: usize) {
    let began = Instant::now();
    while sleeper.count(count) == before {
        assert!(began.elapsed() < Duration::from_secs(60), "it never came to a sleep");
        std::thread::yield_now();
    }
}

/// Rank 1 hears from rank 0 through memory and has sockets to the other host. It sleeps while rank 0 is late, which
/// comes once rank 1 has slept, and rings.
#[test]
fn a_rank_that_sleeps_on_sockets_is_woken_through_memory() {
    const CALLS: usize = 20;
    let ranks = two_hosts_of_two();
    let sleeper = ranks[1].core().readiness();
    std::thread::scope(|threads| {
        for comm in &ranks[1..] {
            threads.spawn(move || reduce(comm, CALLS));
        }
        for _ in 0..CALLS {
            until(sleeper, Count::Slept, sleeper.count(Count::Slept));
            reduce(&ranks[0], 1);
        }
    });
    // The limit of a sleep may come first, now and then.
    let [slept, rung] = [Count::Slept, Count::Rung].map(|count| sleeper.count(count));
    assert!(rung > CALLS / 2, "{slept} sleeps, and {rung} rings");
}

/// The same of a call that goes on by itself, which the control thread drives.
#[test]
fn the_control_thread_is_woken_through_memory() {
    const CALLS: usize = 20;
    let ranks = two_hosts_of_two();
    let sleeper = ranks[1].core().readiness();
    std::thread::scope(|threads| {
        for comm in &ranks[2..] {
            threads.spawn(move || reduce(comm, CALLS));
        }
        for _ in 0..CALLS {
            let before = sleeper.count(Count::Woken);
            let work = ranks[1].start_all_reduce(vec![1u64; 1000], ReduceOp::Sum).expect("it is started");
            // It looks once more after it has armed its doorbells, and wakes itself for that.
            until(sleeper, Count::Woken, before);
            reduce(&ranks[0], 1);
            while !work.is_done() {
                std::thread::yield_now();
            }
            assert_eq!(work.wait().expect("all ranks call it"), vec![6; 1000]);
        }
    });
    let [woken, rung] = [Count::Woken, Count::Rung].map(|count| sleeper.count(count));
    assert!(rung > woken + CALLS / 2, "woken {woken} times by itself, rung {rung} times");
}

/// A rank that waits for a connection sleeps until the caller comes, of whom the listener rings. The late side, which is to
/// call, has its half before that: its address rings too.
#[test]
fn a_rank_that_waits_for_a_connection_is_woken() {
    const JOBS: usize = 20;
    let pair = two_hosts_of(1);
    std::thread::scope(|threads| pair.iter().for_each(|comm| _ = threads.spawn(|| reduce(comm, 1))));
    let key = pair[1].core().idle_engine().links.key(0);
    let (mut slept, mut rung) = (0, 0);
    for _ in 0..JOBS {
        let ranks = two_hosts_of(1);
        let (sleeper, late) = (ranks[0].core().readiness(), ranks[1].core());
        let before = std::thread::scope(|threads| {
            threads.spawn(|| reduce(&ranks[0], 1));
            until(sleeper, Count::Slept, sleeper.count(Count::Slept));
            let before = sleeper.count(Count::Rung);
            late.idle_engine().links.request(&[key], &late.group).expect("half a connection");
            until(sleeper, Count::Rung, before);
            until(sleeper, Count::Slept, sleeper.count(Count::Slept));
            let before = sleeper.count(Count::Rung);
            reduce(&ranks[1], 1);
            before
        });
        slept += sleeper.count(Count::Slept);
        rung += usize::from(sleeper.count(Count::Rung) > before);
    }
    assert!(rung > JOBS / 2, "{slept} sleeps, and {rung} of {JOBS} were rung");
}

/// A rank without sockets has no set of descriptors. While a link is made it sleeps until the peer's address comes, and until
/// the peer takes its half.
#[test]
fn a_rank_without_sockets_is_woken_while_its_link_is_made() {
    let pair = Communicator::local(2).expect("two ranks");
    let [early, late] = [&pair[0], &pair[1]].map(Communicator::core);
    let [mut ours, mut theirs] = [early, late].map(|core| core.idle_engine());
    let [near, far] = [1, 0].map(|peer| [(peer, MESSAGES_CHANNEL)]);
    let numbers = ours.links.request(&near, &early.group).expect("half a link");
    assert!(
        ours.links.is_connecting()
            && ours.links.poll_up(&numbers, &early.group).is_ok_and(|up| up.is_pending())
    );
    let sleep = |engine: &mut Engine| engine.links.sleep_connecting(&early.group, Duration::from_secs(20), 1);
    assert!(!sleep(&mut ours), "it looks once more");
    let others = theirs.links.request(&far, &late.group).expect("half a link");
    assert!(sleep(&mut ours), "the address has come");
    assert!(ours.links.poll_up(&numbers, &early.group).is_ok_and(|up| up.is_pending()));
    assert!(theirs.links.poll_up(&others, &late.group).is_ok_and(|up| up.is_ready()));
    assert!(sleep(&mut ours), "the peer has taken it");
    assert!(ours.links.poll_up(&numbers, &early.group).is_ok_and(|up| up.is_ready()));
    assert!(!ours.links.is_connecting() && !theirs.links.is_connecting());
}

/// The system may have no room in a set when a connection is made: it is asked again before each sleep.
#[test]
fn a_connection_that_could_not_be_watched_is_watched_later() {
    let ranks = two_hosts_of(1);
    let sleeper = ranks[0].core().readiness();
    sleeper.refuse(true);
    std::thread::scope(|threads| ranks.iter().for_each(|comm| _ = threads.spawn(|| reduce(comm, 1))));
    let prepare = || {
        let mut owned = ranks[0].core().acquire().expect("it is free");
        owned.engine.prepare_sleep();
        owned.engine.links.progress().expect("the peer is there");
    };
    prepare();
    sleeper.refuse(false);
    prepare();
    // What the peer's system still had to say is taken.
    while sleeper.sleep(Duration::from_millis(20)) {
        prepare();
    }
    std::thread::scope(|threads| {
        let asleep = threads.spawn(|| sleeper.sleep(Duration::from_secs(20)));
        while sleeper.asleep() == 0 {
            std::thread::yield_now();
        }
        threads.spawn(|| reduce(&ranks[1], 1));
        assert!(asleep.join().expect("no panic"), "bytes of the peer do not wake it");
        reduce(&ranks[0], 1);
    });
}

/// Calls of rank 1 that wait for rank 0 and for no socket, and that no thread drives but by its own turns.
fn queued(comm: &Communicator, calls: usize) -> Vec<Arc<Ticket>> {
    let core = comm.core();
    let mut engine = core.idle_engine();
    let begun = (0..calls).map(|_| {
        let ticket = Arc::new(Ticket::default());
        let request = engine.enter(Call::broadcast(DataType::Uint64, 1000, 0), 0);
        let mut task = Task::default();
        task.prepare(Duration::from_secs(60));
        task.push(request, None);
        let output = Lease::new(vec![0u64; 1000]).hold();
        let memory =
            Memory { input: Source::Within(output.clone(), 0, 0), output: Some(output), _kept: Vec::new() };
        engine.enqueue(task, vec![memory], ticket.clone());
        ticket
    });
    let tickets = begun.collect();
    core.note_queued(&engine);
    tickets
}

/// Two threads wait for two calls. What one of them drives disarms the doorbells by which the other sleeps, and is what the
/// other waits for; and it leaves while the other's call is under way.
#[test]
fn a_sleeper_whose_doorbells_another_thread_disarms_is_woken() {
    let ranks = two_hosts_of_two();
    let broadcast = |comm: &Communicator| comm.broadcast(&mut [7u64; 1000], 0).expect("all ranks call it");
    std::thread::scope(|threads| ranks.iter().for_each(|comm| _ = threads.spawn(|| broadcast(comm))));
    let core = ranks[1].core();
    let sleeper = core.readiness();
    let turn = || core.advance_queue(&mut core.idle_engine());
    let (is_disarmed, wakes) = (AtomicBool::new(false), AtomicBool::new(false));
    // Sockets that have something to say end every sleep.
    let take_in = || core.idle_engine().links.progress().expect("the peers are there");
    // Whether a thread that waits for a call, and sleeps by doorbells that another one disarms, is woken before its limit by what
    // shall wake it. A sleep that something else ends is begun anew, without the doorbells once they are disarmed.
    let fall_asleep = |ticket: &Ticket| {
        while !is_disarmed.load(Ordering::SeqCst) {
            turn();
            take_in();
            let before = sleeper.count(Count::Slept);
            let is_woken = core.sleep(Duration::from_secs(20), || ticket.is_done());
            if wakes.load(Ordering::SeqCst) && sleeper.count(Count::Slept) != before {
                return is_woken;
            }
        }
        loop {
            take_in();
            let is_woken = sleeper.sleep_unless(Duration::from_secs(20), || ticket.is_done());
            if wakes.load(Ordering::SeqCst) {
                return is_woken;
            }
        }
    };
    let disarm = || {
        while sleeper.asleep() == 0 {
            std::thread::yield_now();
        }
        let mut engine = core.idle_engine();
        is_disarmed.store(true, Ordering::SeqCst);
        engine.ring();
        assert!(!engine.links.bells().any(Bell::is_armed));
    };
    let tickets = queued(&ranks[1], 2);
    std::thread::scope(|threads| {
        let asleep = threads.spawn(|| fall_asleep(&tickets[0]));
        disarm();
        broadcast(&ranks[0]);
        wakes.store(true, Ordering::SeqCst);
        while !tickets[0].is_done() {
            turn();
        }
        assert!(asleep.join().expect("no panic"), "its call is over");
        [&is_disarmed, &wakes].into_iter().for_each(|flag| flag.store(false, Ordering::SeqCst));
        let asleep = threads.spawn(|| fall_asleep(&tickets[1]));
        disarm();
        wakes.store(true, Ordering::SeqCst);
        assert!(core.acquire_idle().expect("it works").is_none() && !tickets[1].is_done());
        assert!(asleep.join().expect("no panic"), "no thread drives");
        ranks[2..].iter().for_each(|comm| _ = threads.spawn(|| [(); 2].map(|()| broadcast(comm))));
        broadcast(&ranks[0]);
        core.wait_for(&tickets[1]).expect("all ranks call it");
    });
    assert!(tickets[0].result().is_ok());
}

/// The word of a doorbell lies where the peer stores: one that says each time that it has rung keeps no rank awake. What has
/// moved is awake, and its peers need not ring.
#[test]
fn a_peer_that_rings_without_end_keeps_no_rank_awake() {
    let ranks = two_hosts_of_two();
    let sleeper = ranks[1].core().readiness();
    std::thread::scope(|threads| {
        ranks[2..].iter().for_each(|comm| _ = threads.spawn(|| reduce(comm, 1)));
        let before = sleeper.count(Count::Woken);
        let work = ranks[1].start_all_reduce(vec![1u64; 1000], ReduceOp::Sum).expect("it is started");
        until(sleeper, Count::Woken, before);
        let (looks, mut owned) = looks_under_rings(&ranks[1], &ranks[0], Engine::prepare_sleep);
        assert!(looks > 1, "it looks before it sleeps");
        // Before another thread takes a turn, which may move something.
        assert!(owned.engine.links.bells().all(Bell::is_armed));
        owned.engine.ring();
        assert!(!owned.engine.links.bells().any(Bell::is_armed));
        drop(owned);
        reduce(&ranks[0], 1);
        assert_eq!(work.wait().expect("all ranks call it"), vec![6; 1000]);
    });
}

/// The same of a rank without sockets, whose doorbell is a futex.
#[test]
fn a_peer_that_rings_without_end_keeps_no_rank_off_its_futex() {
    let ranks = Communicator::local(2).expect("two ranks");
    std::thread::scope(|threads| ranks.iter().for_each(|comm| _ = threads.spawn(|| reduce(comm, 1))));
    let work = ranks[1].start_all_reduce(vec![1u64; 1000], ReduceOp::Sum).expect("it is started");
    let (looks, owned) = looks_under_rings(&ranks[1], &ranks[0], |engine| {
        engine.sleep_queued(Duration::from_micros(1));
        // Where it sleeps whatever its doorbell says, it does not arm it.
        !engine.links.bells().any(Bell::is_armed)
    });
    assert!(looks > 1, "it looks before it sleeps");
    drop(owned);
    reduce(&ranks[0], 1);
    assert_eq!(work.wait().expect("all ranks call it"), vec![1; 1000]);
}

/// How often a blocked rank looks before it sleeps, while another rings all the time.
fn looks_under_rings<'a>(
    sleeper: &'a Communicator,
    liar: &'a Communicator,
    mut sleeps: impl FnMut(&mut Engine) -> bool,
) -> (usize, Owned<'a>) {
    let [mut owned, liar] = [sleeper, liar].map(|comm| comm.core().acquire().expect("it is free"));
    let mut looks = 0;
    loop {
        liar.engine.links.bells().for_each(Bell::ring);
        while owned.engine.advance_queue() == Progress::Moved {}
        if sleeps(&mut owned.engine) {
            return (looks, owned);
        }
        looks += 1;
        assert!(looks < 100, "it never sleeps");
    }
}
