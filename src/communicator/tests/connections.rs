//! Connections are those that the plans of calls use, and no others.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use consort_control::membership::group::Group;
use consort_settings::options::{Settings, TransportChoice};
use consort_transports::Transport;

use crate::communicator::routes::ProcessRoutes;
use crate::engine::routes::Routes;
use crate::{Communicator, Options, Rank, ReduceOp, Result};

/// The routes of a process, which count the halves of connections that a rank makes.
struct Counted {
    routes: ProcessRoutes,
    made: Arc<AtomicUsize>,
    to: Arc<Mutex<Vec<Rank>>>,
}

impl Routes for Counted {
    fn is_mapped(&self, group: &Group, rank: Rank) -> bool {
        self.routes.is_mapped(group, rank)
    }

    fn transport(&mut self, group: &Group, rank: Rank) -> Result<Arc<dyn Transport>> {
        self.made.fetch_add(1, Ordering::Relaxed);
        self.to.lock().expect("no panic").push(rank);
        self.routes.transport(group, rank)
    }

    fn abandon(&mut self) {}
}

/// The connections of each rank for some calls: how many, and to how many peers.
fn made(ranks: u32, algorithms: &str, call: impl Fn(&Communicator) + Sync) -> Vec<(usize, usize)> {
    let options = Options::default()
        .transport(TransportChoice::Tcp)
        .timeout(Duration::from_secs(60))
        .algorithms(algorithms);
    let all = Communicator::local_with(ranks, &options).expect("ranks in a process");
    let counts = all.iter().map(|comm| {
        let core = comm.core();
        let settings = Settings::resolve(&options).expect("settings");
        let routes = ProcessRoutes::new(core.shared.clone(), &settings);
        let (made, to) = (Arc::<AtomicUsize>::default(), Arc::<Mutex<Vec<Rank>>>::default());
        let counted = Counted { routes, made: made.clone(), to: to.clone() };
        core.idle_engine().links.reroute(Box::new(counted));
        (made, to)
    });
    let counts: Vec<_> = counts.collect();
    std::thread::scope(|threads| all.iter().for_each(|comm| _ = threads.spawn(|| call(comm))));
    let of_rank = |(made, to): &(Arc<AtomicUsize>, Arc<Mutex<Vec<Rank>>>)| {
        let mut peers = to.lock().expect("no panic").clone();
        peers.sort_unstable();
        peers.dedup();
        (made.load(Ordering::Relaxed), peers.len())
    };
    counts.iter().map(of_rank).collect()
}

#[test]
fn a_rank_connects_to_those_that_its_plans_use_and_once() {
    const RANKS: u32 = 9;
    for (algorithms, bytes) in
        [("ring", 1 << 20), ("ring", 8), ("tree", 8), ("tree", 1 << 20), ("two-shot", 8)]
    {
        let call = |comm: &Communicator| {
            for _ in 0..3 {
                comm.all_reduce(&mut vec![1u8; bytes], ReduceOp::Sum).expect("all ranks call it");
            }
        };
        let made = made(RANKS, algorithms, call);
        let options = Options::default().transport(TransportChoice::Tcp).algorithms(algorithms);
        let planning = crate::planning::Planning::for_host(RANKS, 64, &options).expect("a plan");
        let counted = planning.connections(crate::planning::Collective::AllReduce, bytes as u64);
        let counted = counted.expect("a choice").expect("few ranks are counted");
        let most = made.iter().copied().max().expect("ranks");
        println!("{algorithms} {bytes}: {made:?}, {counted:?}");
        assert_eq!(most, (counted.connections as usize, counted.peers as usize), "{algorithms} {bytes}");
        assert_eq!(algorithms == "two-shot", most.1 == RANKS as usize - 1, "{algorithms} {bytes}");
    }
    // Without a call there is none.
    assert!(made(RANKS, "ring", |_| {}).iter().all(|of| *of == (0, 0)));
}
