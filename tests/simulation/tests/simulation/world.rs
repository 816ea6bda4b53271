//! A simulated job: its network, its processes, its fault, and the order of turns.
//!
//! Invariant: one thread, virtual time, and everything random follows from the seed, so that a seed is always the
//! same run. A process that died keeps its memory until the end, as its peers' mappings of it would.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use consort_transports::Loopback;
use consort_transports::simnet::{Network, Node, Profile};

use super::faults::{Fault, Moment};
use super::line::Line;
use super::process::{Machines, Next, Origin, Process};
use super::program::{Item, Program};
use super::random::{Random, hash};
use super::running::Ways;
use consort::testing::Planner;
use consort_control::bootstrap::{Gathering, Limits, UniqueId};
use consort_control::clock::Clock;
use consort_control::membership::overlay::FULL_MAX;
use consort_settings::options::{Options, Settings};
use consort_types::Rank;
use consort_types::error::Error;

/// Plans do not depend on a seed, and proving one takes longer than most jobs.
static PLANNER: LazyLock<Arc<Planner>> = LazyLock::new(|| {
    let planner = Arc::new(Planner::default());
    planner.expect_many();
    planner
});

const JOIN_TIMEOUT: Duration = Duration::from_secs(2);

/// The number of a seed's job, which names the communicator of all ranks.
pub(super) fn job_number(seed: u64) -> u64 {
    seed ^ 0x5555_5555_5555_5555
}

/// A job before random draws.
pub(super) struct Job {
    pub(super) ranks: u32,
    pub(super) hosts: Vec<u32>,
    pub(super) timeout: Duration,
    pub(super) program: Program,
    pub(super) fault: Fault,
    /// What carries data between hosts.
    pub(super) profile: Profile,
    /// Whether ranks plan for several hosts.
    pub(super) are_apart: bool,
    /// The rank that plans for a machine before the others do.
    pub(super) hasty: Option<Rank>,
}

pub(super) struct World {
    pub(super) seed: u64,
    pub(super) ranks: u32,
    pub(super) timeout: Duration,
    pub(super) fault: Fault,
    profile: Profile,
    /// Whether some ranks are linked only when they have something to say.
    pub(super) is_sparse: bool,
    pub(super) program: Arc<Program>,
    pub(super) machines: Machines,
    hasty: Option<Rank>,
    pub(super) hosts: Arc<Vec<u32>>,
    pub(super) processes: Vec<Process>,
    pub(super) network: Network,
    /// When the fault happened, if it has.
    pub(super) struck: Option<Instant>,
    clock: Clock,
    root: Option<Gathering<Line>>,
    root_address: SocketAddr,
    dead: Vec<bool>,
    frozen: Vec<bool>,
    /// Per process: its next turn may not be earlier.
    busy_until: Vec<Duration>,
    pauses: Option<Duration>,
    random: Random,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let (random, job) = Self::drawn(seed);
        World::with(seed, job, random)
    }

    fn drawn(seed: u64) -> (Random, Job) {
        let mut random = Random::new(seed);
        let ranks = match random.below(40) {
            0 => 1,
            1 => 17 + random.below(48) as u32,
            2..=5 => 9 + random.below(8) as u32,
            _ => 2 + random.below(7) as u32,
        };
        // All on hosts of their own, all on one, or some of each.
        let hosts: Vec<u32> = match random.below(3) {
            0 if ranks <= 8 => vec![0; ranks as usize],
            1 if ranks <= 8 => (0..ranks).map(|rank| rank / 2).collect(),
            _ => (0..ranks).collect(),
        };
        let timeout = Duration::from_millis([400, 1000, 3000][random.below(3)]);
        let mut program = Program::random(ranks, &mut random);
        let fault = Fault::random(ranks, timeout, &mut program, &mut random);
        // A fault of the network breaks nothing between ranks of one host.
        let needs_network =
            matches!(fault, Fault::Deny { .. } | Fault::Blackhole { .. } | Fault::Remake { .. });
        let hosts = if needs_network { (0..ranks).collect() } else { hosts };
        let profile = Profile::ALL[hash(seed) as usize % Profile::ALL.len()];
        (random, Job { ranks, hosts, timeout, program, fault, profile, are_apart: false, hasty: None })
    }

    pub(super) fn with(seed: u64, job: Job, random: Random) -> Self {
        Self::linked(seed, job, random, FULL_MAX)
    }

    /// As [`World::new`], of ranks that are linked to few others from the beginning.
    pub(super) fn sparse(seed: u64) -> Self {
        let (random, job) = Self::drawn(seed);
        Self::linked(seed, job, random, 1 + (hash(seed ^ 0x0bad_cafe) % 4) as u32)
    }

    /// A job in which more than `full` ranks are not all linked to all.
    fn linked(seed: u64, job: Job, mut random: Random, full: u32) -> Self {
        let Job { ranks, hosts, timeout, program, fault, profile, are_apart, hasty } = job;
        let network = Network::new(random.next()).with_profile(profile);
        let nanoseconds = {
            let network = network.clone();
            Arc::new(move || network.now().as_nanos() as u64)
        };
        let clock = Clock::simulated(nanoseconds);
        let settings = settings(timeout, &fault, &mut random);
        let loopback = Arc::new(Loopback::new().expect("a registry"));
        let origin = Origin {
            network: network.clone(),
            job: u128::from(job_number(seed)).to_le_bytes(),
            clock: clock.clone(),
            settings: settings.clone(),
            planner: PLANNER.clone(),
            loopback,
            hosts: Arc::new(hosts),
            program: Arc::new(program),
            full,
            are_apart,
            machines: Machines::default(),
            doomed: if let Fault::Kill { rank, .. } = fault { Some(rank) } else { None },
        };
        let root_address = SocketAddr::new(Node(0).ip(), 9);
        let id = UniqueId::known(&[root_address], [7; 32], seed, random.once_in(2));
        network.listen(Node(0), root_address);
        let mut world = World {
            seed,
            ranks,
            timeout,
            fault,
            profile,
            is_sparse: ranks > full,
            program: origin.program.clone(),
            machines: origin.machines.clone(),
            hasty,
            hosts: origin.hosts.clone(),
            processes: Vec::new(),
            network,
            struck: None,
            clock,
            root: Some(Gathering::new(&id, Vec::new(), Limits::default())),
            root_address,
            dead: vec![false; ranks as usize],
            frozen: vec![false; ranks as usize],
            busy_until: vec![Duration::ZERO; ranks as usize],
            pauses: None,
            random,
        };
        for rank in 0..ranks {
            let mut process = Process::new(rank, origin.clone(), Random::new(seed ^ u64::from(rank) << 32));
            let mut agreed = settings.agreed();
            match world.fault {
                Fault::NeverJoin { rank: absent } if absent == rank => {}
                Fault::Settings { rank: other } if other == rank => {
                    agreed.push(("simulated".into(), "differs".into()));
                    process.join(&id, agreed);
                }
                _ => process.join(&id, agreed),
            }
            world.processes.push(process);
            let at = Duration::from_micros(world.random.next() % 3_000);
            world.network.wake_at(Node(rank), at);
        }
        world
    }

    pub(super) fn describe(&self) -> String {
        format!(
            "seed {}: {} ranks on hosts {:?} ({:?}), timeout {:?}, {:?}, program {:?}",
            self.seed, self.ranks, self.hosts, self.profile, self.timeout, self.fault, self.program.items
        )
    }

    /// Whether a rank lives and moves at the end.
    pub(super) fn lives(&self, rank: Rank) -> bool {
        !self.dead[rank as usize] && !self.frozen[rank as usize]
    }

    /// Runs until every rank that can has ended.
    ///
    /// # Errors
    /// A rank has not ended by the latest time at which all must have.
    pub(super) fn run(&mut self) -> Result<(), String> {
        let computes = self.program.items.iter().map(|item| match item {
            Item::Compute { most } => *most,
            _ => self.timeout + Duration::from_millis(1500),
        });
        let slow = if let Fault::Slow { factor, .. } = self.fault { factor / 50 + 1 } else { 1 };
        let limit = (JOIN_TIMEOUT * 2 + computes.sum::<Duration>() + self.timeout * 4) * slow;
        self.arrange_fault();
        while !self.is_over() {
            let Some(next) = self.network.next() else { return Err("no rank wants a turn any more".into()) };
            if next > limit {
                return Err(format!("not over after {limit:?}"));
            }
            for node in self.network.advance(next) {
                if let Some(rank) = self.of(node) {
                    self.turn(rank);
                } else {
                    self.strike();
                }
            }
        }
        Ok(())
    }

    fn of(&self, node: Node) -> Option<usize> {
        ((node.0) < self.ranks).then_some(node.0 as usize)
    }

    fn is_over(&self) -> bool {
        let absent = |rank: usize| matches!(self.fault, Fault::NeverJoin { rank: r } if r as usize == rank);
        let ended = |rank: usize| {
            self.processes[rank].is_over() || self.dead[rank] || absent(rank) ||
            // A rank that stays frozen; one that will go on must end too.
            (self.frozen[rank] && self.pauses.is_none())
        };
        (0..self.ranks as usize).all(ended)
    }

    fn turn(&mut self, rank: usize) {
        let now = self.network.now();
        if self.dead[rank] || self.frozen[rank] {
            return;
        }
        if now < self.busy_until[rank] {
            return self.network.wake_at(Node(rank as u32), self.busy_until[rank]);
        }
        if self.strikes_before_turn(rank) {
            self.strike();
            if self.dead[rank] || self.frozen[rank] {
                return;
            }
        }
        if rank == 0 {
            self.serve_root();
        }
        self.lead_astray(rank);
        let next = self.processes[rank].turn();
        let slow = match self.fault {
            Fault::Slow { rank: slow, factor } if slow as usize == rank => factor,
            _ => 1,
        };
        // A turn takes time, and the scheduler of a busy host takes some more.
        let cost = Duration::from_nanos(300 + self.random.next() % 2_000) * slow;
        let delay =
            if self.random.once_in(50) { Duration::from_micros(self.random.next() % 800) } else { cost };
        self.busy_until[rank] = now + cost.max(delay);
        if let Next::After(pause) = next {
            self.network.wake_at(Node(rank as u32), now + pause.max(cost));
        }
        if self.processes[rank].moved {
            self.wake_host(rank, now);
        }
    }

    /// Sets the deviation of a rank from its program once it has joined.
    fn lead_astray(&mut self, rank: usize) {
        let is = |other: Rank| other as usize == rank;
        if self.hasty.is_some_and(is)
            && let Some(running) = self.processes[rank].running()
        {
            running.ways.is_hasty = true;
        }
        let mut ways = Ways::default();
        match self.fault {
            Fault::Skip { rank, item } if is(rank) => ways.skip = Some(item),
            Fault::Deviate { rank, item, how } if is(rank) => ways.deviate = Some((item, how)),
            Fault::Sleep { rank, item, time } if is(rank) => ways.sleep = Some((item, time)),
            Fault::Leave { rank, item } if is(rank) => ways.leave = Some(item),
            Fault::Swap { rank, item } if is(rank) => ways.swap = Some(item),
            _ => return,
        }
        if self.struck.is_none()
            && let Some(running) = self.processes[rank].running()
        {
            running.ways = ways;
            self.struck = Some(self.clock.now());
        }
    }

    /// A store to memory wakes no rank: ranks of the host poll.
    fn wake_host(&mut self, rank: usize, now: Duration) {
        for other in 0..self.ranks as usize {
            if other != rank && self.hosts[other] == self.hosts[rank] && !self.processes[other].is_over() {
                let after = Duration::from_nanos(100 + self.random.next() % 5_000);
                self.network.wake_at(Node(other as u32), now + after);
            }
        }
    }

    /// The work of the thread of `bootstrap::root::service`.
    fn serve_root(&mut self) {
        let now = self.clock.now();
        let callers = self.processes[0].take_callers(self.root_address);
        let Some(root) = &mut self.root else { return };
        for (line, peer) in callers {
            if root.accepting(now).is_ok() {
                root.connected(line, peer, now);
            }
        }
        let all = 0..root.connections().len();
        if let Some(complete) = root.serve(all, now) {
            self.network.unlisten(self.root_address);
            root.announce(complete, now);
        }
        root.expire(now);
        if root.finished(now) {
            self.root = None;
            return;
        }
        if let Some(until) = root.until() {
            let after = until.saturating_duration_since(now).max(Duration::from_micros(20));
            self.network.wake_at(Node(0), self.network.now() + after);
        }
    }

    /// The node whose timers are the faults'.
    fn fate(&self) -> Node {
        Node(self.ranks)
    }

    fn arrange_fault(&mut self) {
        let at = match self.fault {
            Fault::Kill { when: Moment::At(when), .. }
            | Fault::Freeze { when: Moment::At(when), .. }
            | Fault::Abort { when: Moment::At(when), .. }
            | Fault::Revoke { when: Moment::At(when), .. }
            | Fault::Cut { when, .. }
            | Fault::Partition { when, .. }
            | Fault::Blackhole { when, .. }
            | Fault::Reset { when, .. }
            | Fault::Remake { when, .. } => when,
            Fault::Deny { .. } => Duration::ZERO,
            _ => return,
        };
        self.network.wake_at(self.fate(), at);
    }

    fn strikes_before_turn(&self, rank: usize) -> bool {
        let (Fault::Kill { rank: whose, when: Moment::Turn(turn) }
        | Fault::Freeze { rank: whose, when: Moment::Turn(turn), .. }
        | Fault::Abort { rank: whose, when: Moment::Turn(turn) }
        | Fault::Revoke { rank: whose, when: Moment::Turn(turn) }) = self.fault
        else {
            return false;
        };
        self.struck.is_none() && whose as usize == rank && self.processes[rank].turns >= turn
    }

    /// The fault begins, or ends.
    fn strike(&mut self) {
        if self.struck.is_some() {
            return self.relent();
        }
        let network = self.network.clone();
        let mut pause = None;
        match self.fault.clone() {
            Fault::Kill { rank, .. } => {
                self.dead[rank as usize] = true;
                network.kill(Node(rank));
                if rank == 0 {
                    self.root = None;
                }
            }
            Fault::Freeze { rank, pause: after, .. } => {
                self.frozen[rank as usize] = true;
                network.freeze(Node(rank));
                pause = after;
            }
            Fault::Cut { one, other, pause: after, .. } => {
                network.cut(Node(one), Node(other));
                pause = after;
            }
            Fault::Partition { side, .. } => {
                network.partition(&side.iter().map(|rank| Node(*rank)).collect::<Vec<_>>());
            }
            Fault::Blackhole { from, to, .. } => network.blackhole_data(Node(from), Node(to)),
            Fault::Reset { one, other, .. } => network.reset(Node(one), Node(other)),
            Fault::Remake { one, other, outage, .. } => network.remake(Node(one), Node(other), outage),
            Fault::Deny { rank, after } => network.deny_memory(Node(rank), after),
            Fault::Abort { rank, .. } => {
                let Some(group) = self.processes[rank as usize].groups().into_iter().next() else { return };
                group.fail(Error::Aborted { rank, reason: "enough".into() });
            }
            Fault::Revoke { rank, .. } => {
                let Some(group) = self.processes[rank as usize].groups().into_iter().next() else { return };
                group.fail(Error::Revoked { rank, reason: "enough".into() });
            }
            _ => return,
        }
        self.struck = Some(self.clock.now());
        self.pauses = pause;
        if let Some(pause) = pause {
            network.wake_at(self.fate(), network.now() + pause);
        }
    }

    fn relent(&mut self) {
        if self.pauses.take().is_none() {
            return;
        }
        match self.fault {
            Fault::Freeze { rank, .. } => {
                self.frozen[rank as usize] = false;
                self.network.thaw(Node(rank));
                self.network.wake_at(Node(rank), self.network.now());
            }
            _ => self.network.heal(),
        }
    }
}

fn settings(timeout: Duration, fault: &Fault, random: &mut Random) -> Settings {
    let mut options = Options::default()
        .timeout(timeout)
        .join_timeout(JOIN_TIMEOUT)
        .report_after(timeout / 2)
        .connect_timeout(timeout * 3)
        .channels(1 + random.below(3) as u16)
        .bidirectional(random.once_in(3));
    // The data of two ranks that both send must not fit on the way.
    if random.once_in(2) || matches!(fault, Fault::BothSend { .. }) {
        options = options.slot_bytes(16 << 10);
    }
    Settings::resolve_from(&options, &|_| None).expect("settings that make sense")
}
