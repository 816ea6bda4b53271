//! Connections are those that the plans of calls use, and no others.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use consort_control::membership::group::Group;
use consort_settings::options::{Settings, TransportChoice};
use consort_transports::{Address, Connecting, Endpoint, Layout, Transport, TransportError};

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

/// Who began to connect, in this order: the side's own address, the peer's, and whether it calls.
type Begun = Arc<Mutex<Vec<(Address, Address, bool)>>>;

/// TCP, as one that connects sooner in turns.
struct InTurn(Arc<dyn Transport>, Begun);

struct Half {
    endpoint: Box<dyn Endpoint>,
    layout: Layout,
    begun: Begun,
}

impl Transport for InTurn {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn endpoint(&self, layout: Layout) -> std::result::Result<Box<dyn Endpoint>, TransportError> {
        let endpoint = self.0.endpoint(layout)?;
        Ok(Box::new(Half { endpoint, layout, begun: self.1.clone() }))
    }

    fn gains_by_turns(&self) -> bool {
        true
    }
}

impl Endpoint for Half {
    fn address(&self) -> &Address {
        self.endpoint.address()
    }

    fn connect(self: Box<Self>, peer: &Address) -> std::result::Result<Box<dyn Connecting>, TransportError> {
        let Half { endpoint, layout, begun } = *self;
        assert!(layout.is_in_turn, "the transport is not held to it");
        let calls = layout.calls.expect("one side calls");
        begun.lock().expect("no panic").push((endpoint.address().clone(), peer.clone(), calls));
        endpoint.connect(peer)
    }
}

/// The routes of a process, in turns.
struct Turns(ProcessRoutes, Begun);

impl Routes for Turns {
    fn is_mapped(&self, group: &Group, rank: Rank) -> bool {
        self.0.is_mapped(group, rank)
    }

    fn transport(&mut self, group: &Group, rank: Rank) -> Result<Arc<dyn Transport>> {
        Ok(Arc::new(InTurn(self.0.transport(group, rank)?, self.1.clone())))
    }

    fn abandon(&mut self) {}
}

#[test]
fn a_side_that_is_called_begins_before_its_caller_where_that_is_of_use() {
    const RANKS: u32 = 6;
    let options = Options::default().transport(TransportChoice::Tcp).timeout(Duration::from_secs(60));
    let all = Communicator::local_with(RANKS, &options.clone().algorithms("two-shot")).expect("ranks");
    let begun = Begun::default();
    for comm in &all {
        let core = comm.core();
        let settings = Settings::resolve(&options).expect("settings");
        let routes = ProcessRoutes::new(core.shared.clone(), &settings);
        core.idle_engine().links.reroute(Box::new(Turns(routes, begun.clone())));
    }
    let call = |comm: &Communicator| comm.all_reduce(&mut vec![1u8; 999], ReduceOp::Sum).expect("all call");
    std::thread::scope(|threads| all.iter().for_each(|comm| _ = threads.spawn(|| call(comm))));
    let begun = begun.lock().expect("no panic");
    let callers = || begun.iter().enumerate().filter(|(_, (.., calls))| *calls);
    assert!(callers().count() >= (RANKS * (RANKS - 1) / 2) as usize, "each with each");
    for (at, (own, peer, _)) in callers() {
        let is_other = |(its, there, _): &(Address, Address, bool)| (its, there) == (peer, own);
        assert!(begun[..at].iter().any(is_other), "a caller began before the side that it calls");
    }
}
