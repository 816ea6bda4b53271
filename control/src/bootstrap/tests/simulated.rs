//! Whole jobs in one thread and in a time that is only counted: the code that joins, over a network in memory that does
//! what networks do. A seed that fails is printed, and fails again.

mod fuzz;
mod network;

use std::collections::{BTreeMap, BTreeSet};
use std::task::Poll;

use super::fuzz::Random;
use super::*;
use crate::bootstrap::{Gathering, Joined, Joiner, RoundTrip, Spread, Tree};
use network::{Cut, Dialler, Network, Pipe, Plan, host, measured};

const SEEDS: u64 = 300;
/// Longer than any rank needs in which nothing is wrong but some dials.
const PATIENT: Duration = Duration::from_secs(60);
/// The root's acceptance is never whole before this many bytes of a connection.
const UNACCEPTED: usize = 47 + 87 + 36;

/// What is wrong with a job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Trouble {
    /// Nothing that may not be overcome.
    None,
    Absent,
    OddSettings,
    OddSize,
    TwoOfOneRank,
    /// A rank whose connection is lost after it was accepted, or that dies.
    Lost,
    /// The root's process drops its id.
    GivenUp,
    /// Anything at once, and little time.
    Chaos,
}

/// One process that joins.
struct Process {
    hello: Hello,
    start: Instant,
    timeout: Duration,
    /// When it dies, if it does.
    dies: Option<Instant>,
    /// Whether its connection or itself may be lost.
    doomed: bool,
    joiner: Option<Joiner<Pipe>>,
    dialler: Dialler,
    answer: Option<Result<Joined>>,
    over: bool,
}

impl Process {
    /// Goes on if there is reason to. Whether there was.
    fn turn(&mut self, id: &UniqueId, now: Instant, nudged: bool) -> bool {
        if self.over || now < self.start {
            return false;
        }
        if self.dies.is_some_and(|at| at <= now) {
            self.joiner = None;
            self.over = true;
            return true;
        }
        let (hello, timeout) = (&self.hello, self.timeout);
        let joiner = self.joiner.get_or_insert_with(|| Joiner::new(id, hello.clone(), timeout, now).unwrap());
        let due = joiner.until().is_none_or(|until| until <= now);
        let ready = joiner.stream().is_some_and(|(stream, sending)| stream.ready(!sending, sending));
        if (due || ready || nudged)
            && let Poll::Ready(answer) = joiner.poll(&mut self.dialler, now)
        {
            assert!(
                now <= self.start + timeout + VERDICT_GRACE + Duration::from_millis(1),
                "late: {answer:?}"
            );
            self.answer = Some(answer);
            self.joiner = None;
            self.over = true;
        }
        due || ready
    }

    fn wants(&self) -> Option<Instant> {
        if self.over {
            return None;
        }
        let next = self.joiner.as_ref().map_or(Some(self.start), Joiner::until);
        next.into_iter().chain(self.dies).min()
    }
}

struct World {
    network: Network,
    noise: Random,
    id: UniqueId,
    gathering: Option<Gathering<Pipe>>,
    stop_at: Option<Instant>,
    processes: Vec<Process>,
}

impl World {
    /// The root's turn, as its thread has it. Whether there was reason for one.
    fn root(&mut self) -> bool {
        let now = self.network.now();
        let Some(gathering) = &mut self.gathering else { return false };
        let mut moved = gathering.until().is_some_and(|until| until <= now);
        if self.stop_at.is_some_and(|at| at <= now) {
            self.stop_at = None;
            gathering.stop(now);
            moved = true;
        }
        let mut ready: Vec<usize> = gathering
            .connections()
            .enumerate()
            .filter_map(|(at, (stream, sending))| stream.ready(true, sending).then_some(at))
            .collect();
        for at in (1..ready.len()).rev() {
            ready.swap(at, self.noise.below(at + 1));
        }
        moved |= !ready.is_empty();
        if let Some(complete) = gathering.serve(ready, now) {
            self.network.close_listeners();
            gathering.announce(complete, now);
        }
        while gathering.accepting(now).is_ok()
            && let Some((stream, peer)) = self.network.accept()
        {
            gathering.connected(stream, peer, now);
            moved = true;
        }
        gathering.expire(now);
        if gathering.finished(now) {
            self.network.close_listeners();
            self.gathering.take().unwrap().close();
        }
        moved
    }

    /// Gives all processes turns until none has reason for one.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            let now = self.network.now();
            let mut moved = self.root();
            let first = self.noise.below(self.processes.len());
            for at in 0..self.processes.len() {
                let at = (first + at) % self.processes.len();
                let nudged = self.noise.below(16) == 0;
                moved |= self.processes[at].turn(&self.id, now, nudged);
            }
            if !moved {
                return;
            }
        }
        panic!("a process is busy for ever without waiting");
    }

    /// Runs until `done`.
    fn run(&mut self, done: impl Fn(&World) -> bool) {
        loop {
            self.settle();
            if done(self) {
                return;
            }
            assert!(self.network.advance(self.wanted()), "nothing happens any more");
        }
    }

    /// When a process wants a turn next, if nothing happens before.
    fn wanted(&self) -> Option<Instant> {
        let mut wanted: Vec<Instant> = self.processes.iter().filter_map(Process::wants).collect();
        if let Some(gathering) = &self.gathering {
            wanted.extend(gathering.until());
            wanted.extend(self.stop_at);
            if self.network.knocked() {
                wanted.extend(gathering.accepting(self.network.now()).err().flatten());
            }
        }
        wanted.into_iter().min()
    }
}

/// Dials that fail and connections that break before the root has accepted any rank.
fn nuisance(noise: &mut Random) -> Plan {
    let mut plan = Plan::default();
    if noise.below(3) == 0 {
        plan.refused = noise.below(4) as u32;
        plan.hanging = noise.below(2) as u32;
        for _ in 0..noise.below(2) {
            plan.cuts.push_back(Cut { after: 1 + noise.below(UNACCEPTED), silent: noise.below(2) == 0 });
        }
    }
    plan
}

/// In half of the jobs the root gives the whole table to few.
fn spread(seed: u64) -> Spread {
    let whole_max = if seed % 16 < 8 { 256 } else { 2 };
    Spread { whole_max, fanout: 1 + (seed % 3) as u16 }
}

/// The tables that ranks have or are referred to, and how many were referred.
fn tables(world: &World, spread: Spread) -> (Vec<Table>, usize) {
    let answers = || {
        world.processes.iter().filter_map(|process| Some((process, process.answer.as_ref()?.as_ref().ok()?)))
    };
    let bodies: Vec<Vec<u8>> = answers()
        .filter_map(|(_, joined)| match joined {
            Joined::Whole(table) => Some(table.bytes()),
            Joined::Elsewhere(_) => None,
        })
        .collect();
    assert!(bodies.windows(2).all(|two| two[0] == two[1]));
    let mut referred = 0;
    let mut table = |(process, joined): (&Process, &Joined)| match joined {
        Joined::Whole(table) => {
            let tree = Tree::of(table);
            assert!(world.processes.len() == 1 || table.spread == spread);
            assert!(tree.sources(process.hello.rank).is_empty());
            Some(table.clone())
        }
        // Who was given it may have died since.
        Joined::Elsewhere(reference) => {
            let body = bodies.first()?;
            let table = reference.read(body).expect("the root's");
            let named: Vec<Rank> = reference.sources.iter().map(|(rank, _)| *rank).collect();
            assert_eq!(named, Tree::of(&table).sources(process.hello.rank));
            for (rank, member) in &reference.sources {
                assert_eq!((&member.host, &member.tcp), {
                    let there = &table.members[*rank as usize];
                    (&there.host, &there.tcp)
                });
            }
            let changed: Vec<u8> = body.iter().copied().chain([0]).collect();
            assert!(reference.read(&changed).is_err() && reference.read(&body[1..]).is_err());
            referred += 1;
            Some(table)
        }
    };
    (answers().filter_map(&mut table).collect(), referred)
}

/// The job of a seed, and who is in trouble.
fn job(seed: u64) -> (World, Trouble, u32) {
    use Trouble::*;
    let mut noise = Random::new(seed);
    let troubles = [None, Absent, OddSettings, OddSize, TwoOfOneRank, Lost, GivenUp, Chaos];
    let mut trouble = troubles[(seed % 8) as usize];
    let size = 1 + noise.below(16) as u32;
    if size == 1 {
        trouble = None;
    }
    let odd = noise.below(size as usize) as u32;
    let chaos = trouble == Chaos;
    let mut hellos: Vec<Hello> = (0..size).map(|rank| hello(rank, size)).collect();
    for hello in &mut hellos {
        hello.member.host_key = [(u64::from(hello.rank) % (1 + seed % 5)) as u8; 16];
    }
    let mut happens = |this: Trouble| trouble == this || chaos && noise.below(8) == 0;
    if happens(OddSettings) {
        hellos[odd as usize].settings[1].1 = "131072".into();
    }
    if happens(OddSize) {
        hellos[odd as usize].size += 1;
    }
    if happens(TwoOfOneRank) {
        let mut second = hello(odd, size);
        second.member.host = "elsewhere".into();
        hellos.push(second);
    }
    let (given_up, absent) = (happens(GivenUp), happens(Absent));
    if absent {
        hellos.retain(|hello| hello.rank != odd);
    }
    let mut plans: Vec<Plan> = hellos.iter().map(|_| nuisance(&mut noise)).collect();
    let mut doomed = vec![false; hellos.len()];
    let mut dying = vec![false; hellos.len()];
    for (at, hello) in hellos.iter().enumerate() {
        doomed[at] = trouble == Lost && hello.rank == odd || chaos && noise.below(8) == 0;
        dying[at] = doomed[at] && noise.below(2) == 0;
        if doomed[at] && !dying[at] {
            let after = UNACCEPTED + 1 + noise.below(1500);
            plans[at].cuts.push_back(Cut { after, silent: noise.below(2) == 0 });
        }
    }
    let network = Network::new(seed, plans);
    let begun = network.now();
    let hurry = Duration::from_secs(4 * noise.below(2) as u64);
    let mut within = |most: u64| Duration::from_micros(noise.draw() % (most * 1000 + 1));
    let processes = hellos
        .into_iter()
        .enumerate()
        .map(|(at, hello)| {
            let start = begun + within(2000);
            let timeout = if chaos { hurry + within(5000) } else { PATIENT };
            let dies = dying[at].then(|| start + within(1500));
            let dialler = Dialler { network: network.clone(), rank: at };
            let (joiner, answer) = (Option::None, Option::None);
            Process { hello, start, timeout, dies, doomed: doomed[at], joiner, dialler, answer, over: false }
        })
        .collect();
    let stop_at = given_up.then(|| begun + within(3000));
    // Only one of its addresses is one at which it can be reached.
    let addresses: Vec<SocketAddr> =
        (0..=noise.below(3)).map(|at| SocketAddr::new([10, 0, 0, 1 + at as u8].into(), 4)).collect();
    let living = noise.below(addresses.len());
    for (at, address) in addresses.iter().enumerate().filter(|(at, _)| *at != living) {
        let refuses = (noise.below(2) + at).is_multiple_of(2);
        network.with(|state| state.dead.push((*address, refuses)));
    }
    let id = UniqueId::known(&addresses, [7; 32], seed, noise.below(2) == 0);
    let unproved_max = [1, 3, 256][noise.below(3)];
    let limits = Limits { unproved_max, spread: spread(seed), ..Limits::default() };
    let gathering = Some(Gathering::new(&id, Vec::new(), limits));
    (World { network, noise, id, gathering, stop_at, processes }, trouble, odd)
}

/// Whether the root decided it, rather than a rank for itself.
fn decided(error: &Error) -> bool {
    match error {
        Error::Join { cause, .. } => !cause.starts_with("it found no") && !cause.starts_with("the root at"),
        _ => true,
    }
}

/// Whether ranks whose own connections hold may hear this.
fn right(error: &Error, trouble: Trouble, odd: Rank) -> bool {
    match (trouble, error) {
        (Trouble::Absent | Trouble::Lost, Error::MissingRanks { missing, .. }) => *missing == [odd],
        (Trouble::Lost, Error::PeerLost { rank, place, .. }) => {
            *rank == odd && *place == format!("host host{odd}, process {}", 100 + odd)
        }
        (Trouble::OddSettings, Error::Settings { difference }) => {
            difference.starts_with("slot_bytes: ") && difference.contains(&format!("rank {odd} says 131072"))
        }
        (Trouble::OddSize, Error::Settings { difference }) => difference.starts_with("number of ranks: "),
        (Trouble::TwoOfOneRank, Error::Join { rank, cause, .. }) => {
            *rank == odd && cause.contains(&format!("host host{odd}")) && cause.contains("host elsewhere")
        }
        (Trouble::GivenUp, Error::Join { .. }) | (Trouble::Chaos, _) => true,
        _ => false,
    }
}

/// Checks all answers. Which kind of end it was.
fn check(world: &World, trouble: Trouble, odd: Rank, spread: Spread) -> &'static str {
    let answers = || world.processes.iter().map(|process| (process, process.answer.as_ref()));
    assert!(answers().all(|(process, answer)| answer.is_some() || process.dies.is_some()));
    let (tables, referred) = tables(world, spread);
    let mut verdicts = BTreeSet::new();
    let mut end = "no verdict";
    for (process, error) in answers().filter_map(|(process, answer)| Some((process, answer?.as_ref().err()?)))
    {
        let rank = process.hello.rank;
        let own = matches!(error, Error::Join { rank: named, .. } if *named == rank);
        let text = error.to_string();
        if text.contains("joined already") || text.contains("gave it up") {
            // The only ones that name the rank that hears them.
            assert!(own, "{error}");
            verdicts.insert(text.replacen(&format!("rank {rank} "), "", 1));
        } else if decided(error) {
            verdicts.insert(format!("{error:?}"));
        }
        end = match error {
            _ if !decided(error) => end,
            Error::MissingRanks { .. } => "missing",
            Error::PeerLost { .. } => "lost",
            Error::Settings { .. } => "settings",
            _ => "join",
        };
        // The second of one rank may come when the table has been sent.
        let late = trouble == Trouble::TwoOfOneRank && rank == odd && !tables.is_empty() && own;
        let excused = process.doomed || late || matches!(trouble, Trouble::GivenUp | Trouble::Chaos);
        assert!(decided(error) || own && excused, "rank {rank} had no verdict: {error}");
        assert!(
            !decided(error) || late || right(error, trouble, odd),
            "rank {rank} had a wrong verdict: {error}"
        );
    }
    // A rank that comes after the table was sent hears so; then there is no other verdict.
    assert!(verdicts.len() <= 1, "{verdicts:?}");
    assert!(tables.is_empty() || verdicts.iter().all(|v| v.contains("joined already")), "{verdicts:?}");
    assert!(trouble != Trouble::None || tables.len() == world.processes.len());
    if let (Some(first), false) = (tables.first(), world.processes[0].hello.size == 1) {
        for table in &tables {
            assert_eq!((table.job, table.key, &table.members), (first.job, first.key, &first.members));
        }
        for (at, found) in first.members.iter().enumerate() {
            let matches = |(index, process): (usize, &Process)| {
                let mut member = process.hello.member.clone();
                member.tcp[0].set_ip(host(index));
                member.round_trip = RoundTrip::of(measured(index));
                process.hello.rank as usize == at && member == *found
            };
            assert!(world.processes.iter().enumerate().any(matches), "member {at}: {found:?}");
        }
    }
    match (tables.is_empty(), referred) {
        (true, _) => end,
        (_, 0) => "table",
        _ => "table, handed on",
    }
}

/// Says which seed it was.
struct Failing(u64, Trouble);

impl Drop for Failing {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("seed {} fails ({:?})", self.0, self.1);
        }
    }
}

#[test]
fn whole_jobs_end_in_one_table_or_one_error_by_the_deadline() {
    let begun = Instant::now();
    let mut ends = BTreeMap::<(Trouble, &str), usize>::new();
    for seed in 0..SEEDS {
        let (mut world, trouble, odd) = job(seed);
        let _failing = Failing(seed, trouble);
        world.run(|world| world.processes.iter().all(|process| process.over));
        *ends.entry((trouble, check(&world, trouble, odd, spread(seed)))).or_default() += 1;
        // The root ends with its id at the latest.
        let now = world.network.now();
        world.stop_at = Some(now);
        world.run(|world| world.gathering.is_none());
        assert!(world.network.now() <= now + Limits::default().flush, "the root does not end");
    }
    eprintln!("{SEEDS} jobs in {:?}: {ends:?}", begun.elapsed());
    for end in [
        (Trouble::None, "table"),
        (Trouble::None, "table, handed on"),
        (Trouble::Lost, "table, handed on"),
        (Trouble::Absent, "missing"),
        (Trouble::OddSettings, "settings"),
        (Trouble::OddSize, "settings"),
        (Trouble::TwoOfOneRank, "join"),
        (Trouble::TwoOfOneRank, "table"),
        (Trouble::Lost, "missing"),
        (Trouble::Lost, "lost"),
        (Trouble::Lost, "table"),
        (Trouble::GivenUp, "join"),
        (Trouble::GivenUp, "table"),
        (Trouble::Chaos, "table"),
    ] {
        assert!(ends.contains_key(&end), "no job ended like {end:?}");
    }
}

#[test]
fn a_root_that_ends_sleeps_while_a_rank_that_was_told_does_not_read() {
    let (timeout, hello) = (Duration::from_secs(3), hello(0, 2));
    let said = wire::encode_hello(&hello, timeout).unwrap().len() + 5 + 32;
    // Silent from the middle of the answer on, which the root can then not send to its end.
    let cut = Cut { after: UNACCEPTED + 1 + said + 10, silent: true };
    let network = Network::new(0, vec![Plan { cuts: [cut].into(), ..Plan::default() }]);
    network.with(|state| state.window = 64);
    let begun = network.now();
    let id = UniqueId::known(&["10.0.0.1:4".parse().unwrap()], [7; 32], 1, false);
    let gathering = Some(Gathering::new(&id, Vec::new(), Limits::default()));
    let process = Process {
        hello,
        start: begun,
        timeout,
        dies: None,
        doomed: true,
        joiner: None,
        dialler: Dialler { network: network.clone(), rank: 0 },
        answer: None,
        over: false,
    };
    // The rank's deadline passes while the root tries to tell it.
    let given_up = begun + Duration::from_secs(1);
    let processes = vec![process];
    let mut world =
        World { network, noise: Random::new(0), id, gathering, stop_at: Some(given_up), processes };
    world.run(|world| world.gathering.is_none());
    assert_eq!(world.network.now(), given_up + Limits::default().flush);
    let Some(Err(Error::Join { cause, .. })) = &world.processes[0].answer else { panic!() };
    assert!(cause.contains("gave no answer"), "{cause}");
}
