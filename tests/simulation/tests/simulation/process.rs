//! One rank of a simulated job: the real bootstrap, control links, engine and failure code, turn by turn.
//!
//! Invariant: a turn is the work of a process between two system calls that wait, and never waits itself. It has a
//! short form of the library's threads (`communicator::core`, `control::thread`): it asks the engine for turns, and
//! reads control links.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};

use consort_transports::simnet::{Network, Node};
use consort_transports::{Loopback, Transport};

use super::line::{ANSWER, Call, Line};
use super::program::Program;
use super::random::Random;
use super::running::Running;
use consort::testing::Planner;
use consort::testing::Routes;
use consort_control::bootstrap::{self, Dial, Hello, Joiner, Table, UniqueId};
use consort_control::clock::Clock;
use consort_control::membership::group::Group;
use consort_control::membership::link::{LinkState, PARTING, RemoteLink};
use consort_control::membership::member::{Link, Member, NO_COMMUNICATOR};
use consort_control::membership::registry::Registry;
use consort_control::membership::wire::Message;
use consort_settings::options::Settings;
use consort_topology::Place;
use consort_types::Rank;
use consort_types::error::{Error, Result};

/// The process number of rank 0; those of the others follow.
pub(super) const FIRST_PROCESS: u32 = 100;

/// The state that all processes of a job share, and each one's own.
#[derive(Clone)]
pub(super) struct Origin {
    pub(super) network: Network,
    pub(super) job: [u8; 16],
    pub(super) clock: Clock,
    pub(super) settings: Settings,
    pub(super) planner: Arc<Planner>,
    pub(super) loopback: Arc<Loopback>,
    /// By rank: ranks of one host store into each other's memory.
    pub(super) hosts: Arc<Vec<u32>>,
    pub(super) program: Arc<Program>,
    /// The rank that dies; the others go on without it.
    pub(super) doomed: Option<Rank>,
    /// Up to how many ranks all are linked to all.
    pub(super) full: u32,
    /// Whether ranks know that they are on different hosts; otherwise they plan as for one.
    pub(super) are_apart: bool,
    /// What the calls of ranks that have completed were planned for.
    pub(super) machines: Machines,
}

/// By rank, from which collectives on calls were planned for which machine.
pub(super) type Machines = Arc<Mutex<BTreeMap<Rank, Vec<(u64, u16)>>>>;

/// How a rank ended.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Every result was right.
    Completed,
    /// It closed its communicators, as its program has it.
    Left,
    Failed(Failed),
}

#[derive(Debug)]
pub(super) struct Failed {
    pub(super) error: Error,
    /// The communicator: 0, or 1 for its part of the split; none while joining.
    pub(super) on: Option<usize>,
    /// Whether the rank had made its part of the split.
    pub(super) has_part: bool,
    pub(super) report: Option<Arc<consort::Report>>,
    /// When the call began that failed, and when it returned.
    pub(super) began: Instant,
    pub(super) ended: Instant,
    /// The caller's buffer when the call had returned.
    pub(super) buffer: Vec<u8>,
    /// The outcome of going on without the rank that died, if that was tried.
    pub(super) went_on: Option<std::result::Result<(), String>>,
}

/// When a process wants its next turn at the latest.
pub(super) enum Next {
    After(Duration),
    /// When something arrives for it.
    Woken,
}

enum Stage {
    /// It does not join (yet, or at all).
    Absent,
    Join(Box<Joiner<Line>>),
    Link {
        table: Option<Table>,
        deadline: Instant,
    },
    Run(Box<Running>),
    Over,
}

pub(super) struct Process {
    pub(super) rank: Rank,
    pub(super) node: Node,
    pub(super) turns: u64,
    /// How it ended, and when.
    pub(super) outcome: Option<(Outcome, Instant)>,
    /// Whether its last turn moved data: ranks of its host may go on then.
    pub(super) moved: bool,
    pub(super) random: Random,
    origin: Origin,
    registry: Arc<Registry>,
    stage: Stage,
    began: Instant,
    member: Option<Arc<Member>>,
    links: Vec<Arc<RemoteLink>>,
    /// Ranks that are called.
    calls: BTreeMap<Rank, Call>,
    /// Peers that connected, by the address that they used.
    callers: Vec<(SocketAddr, Line, SocketAddr)>,
    /// Streams whose rank is not known yet.
    strangers: Vec<(Line, Vec<u8>)>,
    /// Leaves the job as soon as its communicators are closed.
    exits: bool,
    /// Until when it waits for the others to notice that.
    parting: Option<Instant>,
}

impl Process {
    pub(super) fn new(rank: Rank, origin: Origin, mut random: Random) -> Self {
        let node = Node(rank);
        origin.network.listen(node, control_address(rank));
        let exits = random.once_in(2);
        Process {
            rank,
            node,
            turns: 0,
            outcome: None,
            moved: false,
            random,
            began: origin.clock.now(),
            origin,
            registry: Arc::default(),
            stage: Stage::Absent,
            member: None,
            links: Vec::new(),
            calls: BTreeMap::new(),
            callers: Vec::new(),
            strangers: Vec::new(),
            exits,
            parting: None,
        }
    }

    /// Begins to join.
    pub(super) fn join(&mut self, id: &UniqueId, settings: Vec<(String, String)>) {
        let now = self.now();
        self.began = now;
        let size = self.origin.hosts.len() as u32;
        let member = bootstrap::Member {
            host: format!("host{}", self.origin.hosts[self.rank as usize]),
            pid: FIRST_PROCESS + self.rank,
            process: u128::from(self.rank + 1).to_le_bytes(),
            machine: [0; 16],
            host_key: [if self.origin.are_apart { self.origin.hosts[self.rank as usize] as u8 } else { 0 };
                16],
            wire_mbits: 0,
            ports: Vec::new(),
            round_trip: Default::default(),
            cores: 64,
            place: Place::default(),
            devices: false,
            device: None,
            graphs: 0,
            hardware: Default::default(),
            unix: Vec::new(),
            tcp: vec![control_address(self.rank)],
        };
        let hello = Hello { rank: self.rank, size, settings, member };
        match Joiner::new(id, hello, self.origin.settings.join_timeout, now) {
            Ok(joiner) => self.stage = Stage::Join(Box::new(joiner)),
            Err(error) => self.fail_joining(error),
        }
    }

    fn now(&self) -> Instant {
        self.origin.clock.now()
    }

    fn fail_joining(&mut self, error: Error) {
        let failed = Failed {
            error,
            on: None,
            has_part: false,
            report: None,
            began: self.began,
            ended: self.now(),
            buffer: Vec::new(),
            went_on: None,
        };
        self.finish(Outcome::Failed(failed));
    }

    fn finish(&mut self, outcome: Outcome) {
        self.outcome = Some((outcome, self.now()));
        self.stage = match std::mem::replace(&mut self.stage, Stage::Over) {
            // Its buffers are compared once more at the end.
            Stage::Run(running) if !self.exits => Stage::Run(running),
            _ => Stage::Over,
        };
        if matches!(self.stage, Stage::Over) {
            self.strangers.clear();
            self.calls.clear();
            if let Some(member) = &self.member {
                member.say_good_bye();
            }
            let unconfirmed = self.links.iter().filter(|link| !link.is_confirmed());
            unconfirmed.for_each(|link| link.send(NO_COMMUNICATOR, &Message::Bye));
            self.links.iter().for_each(|link| link.part());
            self.parting = Some(self.now() + PARTING);
        }
    }

    /// A process that has left the job stays until all have noticed it, or a little longer.
    fn part(&mut self) -> Next {
        let Some(until) = self.parting else { return Next::Woken };
        let left = until.saturating_duration_since(self.now());
        if self.links.is_empty() || left.is_zero() {
            self.member = None;
            self.links.clear();
            self.parting = None;
            return Next::Woken;
        }
        Next::After(left)
    }

    pub(super) fn is_over(&self) -> bool {
        self.outcome.is_some()
    }

    /// The communicators, while it has any.
    pub(super) fn groups(&self) -> Vec<Arc<Group>> {
        match &self.stage {
            Stage::Run(running) => running.groups(),
            _ => Vec::new(),
        }
    }

    /// The present content of a failed call's buffer.
    pub(super) fn buffer(&self) -> Option<Vec<u8>> {
        match &self.stage {
            Stage::Run(running) => running.buffer(),
            _ => None,
        }
    }

    pub(super) fn running(&mut self) -> Option<&mut Running> {
        match &mut self.stage {
            Stage::Run(running) => Some(running),
            _ => None,
        }
    }

    /// Does all work that can be done now.
    pub(super) fn turn(&mut self) -> Next {
        self.turns += 1;
        // The control thread runs beside the program's: not always when it does.
        if !std::mem::take(&mut self.moved) || self.random.once_in(4) {
            self.serve_links();
        }
        if self.is_over() {
            return self.part();
        }
        let next = match &mut self.stage {
            Stage::Absent | Stage::Over => Next::Woken,
            Stage::Join(_) => self.go_on_joining(),
            Stage::Link { .. } => self.go_on_linking(),
            Stage::Run(_) => self.go_on_running(),
        };
        let calls = self.serve_calls();
        match next {
            Next::Woken if calls => Next::After(CALLS),
            Next::After(after) if calls => Next::After(after.min(CALLS)),
            next => next,
        }
    }

    fn go_on_joining(&mut self) -> Next {
        let now = self.now();
        let Stage::Join(joiner) = &mut self.stage else { return Next::Woken };
        let mut dial = Dialler { network: self.origin.network.clone(), node: self.node };
        let table = match joiner.poll(&mut dial, now) {
            Poll::Ready(Ok(joined)) => joined.whole().expect("these jobs are small"),
            Poll::Ready(Err(error)) => {
                self.fail_joining(error);
                return Next::Woken;
            }
            Poll::Pending => {
                let until = joiner.until().map(|until| until.saturating_duration_since(now));
                return until.map_or(Next::Woken, |until| Next::After(until.max(Duration::from_micros(1))));
            }
        };
        let deadline = self.began + self.origin.settings.join_timeout;
        let (clock, registry) = (self.origin.clock.clone(), self.registry.clone());
        let members = table.members.clone();
        // Names of communicators follow from the job's, which is random in real jobs and decides orders.
        let job = self.origin.job;
        let key = std::array::from_fn(|byte| job[byte % job.len()]);
        let member =
            Member::within(Weak::new(), clock, registry, job, key, self.rank, members, self.origin.full);
        for peer in member.first_linked().into_iter().filter(|peer| *peer < self.rank) {
            self.calls.insert(peer, self.call(peer));
        }
        self.member = Some(member);
        self.stage = Stage::Link { table: Some(table), deadline };
        Next::After(Duration::from_micros(1))
    }

    fn call(&self, peer: Rank) -> Call {
        let line = Line::dial(&self.origin.network, self.node, control_address(peer));
        Call::new(line)
    }

    /// Goes on calling, as `control::dial` does without its proofs: the rank that calls says which it is, the other one that it
    /// answers. Whether a call is due later.
    fn serve_calls(&mut self) -> bool {
        let Some(member) = self.member.clone() else { return false };
        let later = loop {
            match member.next_call(self.now()) {
                Ok(peer) => drop(self.calls.insert(peer, self.call(peer))),
                Err(later) => break later.is_some(),
            }
        };
        let hello = self.rank.to_le_bytes();
        for (peer, mut call) in std::mem::take(&mut self.calls) {
            match call.poll(&hello, member.is_sparse()) {
                Poll::Ready(Ok(stream)) => {
                    let link = RemoteLink::simulated(&member, peer, stream);
                    if member.is_sparse() {
                        link.send(NO_COMMUNICATOR, &Message::Here);
                    }
                    if member.set_link(peer, Link::Remote(link.clone())) {
                        self.links.push(link);
                    }
                }
                Poll::Ready(Err(_)) if member.is_linked(peer) => {}
                Poll::Ready(Err(_)) if matches!(self.stage, Stage::Link { .. }) => {
                    self.calls.insert(peer, self.call(peer));
                }
                Poll::Ready(Err(error)) => {
                    let refused = error.kind() == ErrorKind::ConnectionRefused;
                    member.call_failed(peer, refused, &error.to_string());
                }
                Poll::Pending => {
                    self.calls.insert(peer, call);
                }
            }
        }
        later
    }

    /// Waits for the control links of the beginning.
    fn go_on_linking(&mut self) -> Next {
        let now = self.now();
        let Some(member) = self.member.clone() else { return Next::Woken };
        let Stage::Link { table, deadline } = &mut self.stage else { return Next::Woken };
        // No message arrives meanwhile: the call does not wait, by the real clock.
        let missing: Vec<Rank> = match member.wait_for_links(Instant::now().into()) {
            Ok(()) => Vec::new(),
            Err(missing) => missing,
        };
        if missing.is_empty() {
            let Some(table) = table.take() else { return Next::Woken };
            let uid = member.world();
            let members = (0..table.members.len() as u32).collect();
            let group = Group::new(member, uid, members, 0);
            let running = Running::new(self.rank, self.origin.clone(), group, &mut self.random);
            self.stage = Stage::Run(Box::new(running));
            return Next::After(Duration::from_micros(1));
        }
        if now >= *deadline {
            let (size, waited) = (self.origin.hosts.len() as u32, self.origin.settings.join_timeout);
            let address = "its control connection".into();
            let error = Error::MissingRanks { missing, size, waited, address };
            member.give_up_joining(&error);
            self.fail_joining(error);
            return Next::Woken;
        }
        Next::After(Duration::from_micros(500))
    }

    fn go_on_running(&mut self) -> Next {
        let Stage::Run(running) = &mut self.stage else { return Next::Woken };
        let (next, moved, outcome) = running.turn(&mut self.random);
        self.moved = moved;
        if let Some(outcome) = outcome {
            self.finish(outcome);
        }
        next
    }

    /// The peers that connected to an address of this node.
    pub(super) fn take_callers(&mut self, address: SocketAddr) -> Vec<(Line, SocketAddr)> {
        self.accept();
        let callers = self.callers.extract_if(.., |(here, ..)| *here == address);
        callers.map(|(_, line, peer)| (line, peer)).collect()
    }

    fn accept(&mut self) {
        while let Some((stream, here, peer)) = self.origin.network.accept(self.node) {
            self.callers.push((here, Line::Up(stream), peer));
        }
    }

    /// The control thread's work: accepts connections, reads messages, sends those that were kept.
    fn serve_links(&mut self) {
        self.serve_calls();
        let callers = self.take_callers(control_address(self.rank));
        self.strangers.extend(callers.into_iter().map(|(line, _)| (line, Vec::new())));
        if let Some(member) = self.member.clone() {
            for (line, hello) in &mut self.strangers {
                let mut piece = [0; 4];
                while hello.len() < 4 {
                    let wanted = 4 - hello.len();
                    match line.read(&mut piece[..wanted]) {
                        Ok(bytes) if bytes > 0 => hello.extend_from_slice(&piece[..bytes]),
                        _ => break,
                    }
                }
            }
            let known = self.strangers.extract_if(.., |(_, hello)| hello.len() == 4).collect::<Vec<_>>();
            for (line, hello) in known {
                let peer = Rank::from_le_bytes(*hello.first_chunk().expect("four bytes"));
                let Line::Up(mut stream) = line else { continue };
                // A byte fits into a fresh window.
                if !member.is_to_answer(peer) {
                    continue;
                }
                if member.is_sparse() && !stream.write(&[ANSWER]).is_ok_and(|sent| sent == 1) {
                    member.give_up_answering(peer);
                    continue;
                }
                let link = RemoteLink::simulated(&member, peer, stream);
                if member.is_sparse() {
                    self.links.push(link.unconfirmed());
                } else if member.set_link(peer, Link::Remote(link.clone())) {
                    self.links.push(link);
                }
            }
            let mut at = 0;
            while at < self.links.len() {
                let link = &self.links[at];
                if link.has_backlog() {
                    link.flush();
                }
                match link.drain() {
                    LinkState::Open => at += 1,
                    LinkState::Closed { cause, ended } => {
                        let link = self.links.remove(at);
                        link.end();
                        if link.is_confirmed() {
                            member.lost(link.peer, &cause, ended);
                        } else {
                            member.give_up_answering(link.peer);
                        }
                    }
                }
            }
        }
    }
}

pub(super) fn control_address(rank: Rank) -> SocketAddr {
    SocketAddr::new(Node(rank).ip(), 10)
}

/// A connection that is made or being made.
/// The pause between two looks for ranks that are to be called.
const CALLS: Duration = Duration::from_millis(5);
struct Dialler {
    network: Network,
    node: Node,
}

impl Dial for Dialler {
    type Stream = Line;

    fn dial(&mut self, address: SocketAddr) -> io::Result<Line> {
        Ok(Line::dial(&self.network, self.node, address))
    }

    fn connected(&mut self, line: &mut Line) -> Poll<io::Result<()>> {
        line.poll()
    }
}

/// Memory within a host, the network between hosts.
pub(super) struct SimulatedRoutes {
    pub(super) origin: Origin,
    pub(super) rank: Rank,
}

impl Routes for SimulatedRoutes {
    fn is_mapped(&self, group: &Group, rank: Rank) -> bool {
        let hosts = &self.origin.hosts;
        let all_apart = hosts.iter().all(|host| hosts.iter().filter(|other| *other == host).count() == 1);
        !all_apart && hosts[group.members[rank as usize] as usize] == hosts[self.rank as usize]
    }

    fn transport(&mut self, group: &Group, rank: Rank) -> Result<Arc<dyn Transport>> {
        if self.is_mapped(group, rank) {
            return Ok(self.origin.loopback.clone());
        }
        Ok(self.origin.network.transport(Node(self.rank)))
    }

    fn abandon(&mut self) {}
}
