//! How ranks that have links of both kinds sleep: two hosts of two ranks, by their routes, in one process.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use consort_control::membership::group::Group;
use consort_control::membership::process::{Listening, Shared};
use consort_kernels::ReduceOp;
use consort_transports::{Tcp, Transport};

use crate::engine::readiness::Count;
use crate::engine::routes::Routes;
use crate::{Communicator, Options, Rank, Result};

/// Memory to the other rank of the host, sockets to the other host.
struct Hosts {
    shared: Arc<Shared>,
    tcp: Option<(Arc<Listening>, Arc<Tcp>)>,
}

impl Routes for Hosts {
    fn is_mapped(&self, group: &Group, rank: Rank) -> bool {
        group.rank / 2 == rank / 2
    }

    fn transport(&mut self, group: &Group, rank: Rank) -> Result<Arc<dyn Transport>> {
        if self.is_mapped(group, rank) {
            return Ok(self.shared.loopback.clone());
        }
        let (_, tcp) = self.tcp.get_or_insert_with(|| {
            let listening =
                self.shared.listening(IpAddr::V4(Ipv4Addr::LOCALHOST)).expect("a listener of this process");
            let tcp = Tcp::new(listening.listener.clone(), group.member.key).expect("a page");
            (listening, Arc::new(tcp))
        });
        Ok(tcp.clone())
    }

    fn abandon(&mut self) {}
}

fn two_hosts_of_two() -> Vec<Communicator> {
    let options = Options::default().timeout(Duration::from_secs(60)).algorithms("ring");
    let ranks = Communicator::local_with(4, &options).expect("four ranks");
    for comm in &ranks {
        comm.core().reroute(Box::new(Hosts { shared: comm.core().shared.clone(), tcp: None }));
    }
    // The connections are made.
    std::thread::scope(|threads| ranks.iter().for_each(|comm| _ = threads.spawn(|| reduce(comm, 1))));
    ranks
}

/// A rank on its own thread from now on makes `calls` of all-reduces, each right.
fn reduce(comm: &Communicator, calls: usize) {
    for _ in 0..calls {
        let mut values = [u64::from(comm.rank()); 1000];
        comm.all_reduce(&mut values, ReduceOp::Sum).expect("all ranks call it");
        assert_eq!(values, [6; 1000]);
    }
}

/// Rank 1 hears from rank 0 through memory and has sockets to the other host. It sleeps while rank 0 is late, which comes once
/// rank 1 has slept, and rings.
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
            let before = sleeper.count(Count::Slept);
            while sleeper.count(Count::Slept) == before {
                std::thread::yield_now();
            }
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
            let work = ranks[1].start_all_reduce(vec![1u64; 1000], ReduceOp::Sum).expect("it is started");
            // It looks once more after it has armed its doorbells, and wakes itself for that.
            let before = sleeper.count(Count::Woken);
            while sleeper.count(Count::Woken) == before {
                std::thread::yield_now();
            }
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
