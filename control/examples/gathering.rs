//! How a large job joins: a real root, in a process of its own, and all of its ranks as they speak to it over the loopback, driven by
//! one thread. How the table goes on from rank to rank, and the making of links, is counted from the figures seen here and
//! from those that are given.
//!
//! `cargo run --release -p consort-control --example gathering -- RANKS PER_HOST [GBITS [LINK_US]]`: GBITS is the rate of a host's wire (10),
//! LINK_US what a control link costs a core of its rank (600, from `docs/measurements/hosts.md`, *Many ranks*). The root and the
//! ranks hold a descriptor for each rank (`ulimit -n`).

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};

use consort_control::bootstrap::{Dial, Hello, Joined, Joiner, Member, Table, Tree, UniqueId};
use consort_control::clock::Clock;
use consort_control::membership::member;
use consort_control::membership::overlay;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, socket};
use nix::sys::time::TimeValLike;

const SECRET: &[u8] = b"of an example, sixteen or more";
const PATIENCE: Duration = Duration::from_secs(120);
/// A round trip between hosts.
const ROUND_TRIP: Duration = Duration::from_micros(50);

struct Loopback;

impl Dial for Loopback {
    type Stream = TcpStream;

    fn dial(&mut self, address: SocketAddr) -> std::io::Result<TcpStream> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let stream = TcpStream::from(socket(AddressFamily::Inet, SockType::Stream, flags, None)?);
        match connect(stream.as_raw_fd(), &SockaddrStorage::from(address)) {
            Ok(()) | Err(Errno::EINPROGRESS) => Ok(stream),
            Err(error) => Err(error.into()),
        }
    }

    fn connected(&mut self, stream: &mut TcpStream) -> Poll<std::io::Result<()>> {
        let mut polled = [PollFd::new(stream.as_fd(), PollFlags::POLLOUT)];
        match poll(&mut polled, PollTimeout::ZERO) {
            Ok(0) => Poll::Pending,
            Ok(_) => Poll::Ready(stream.take_error().and_then(|error| error.map_or(Ok(()), Err))),
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }
}

/// What a rank of such a job says of itself.
fn said(rank: u32, size: u32, per_host: u32) -> Hello {
    let host = rank / per_host;
    let number = |number: u32| std::array::from_fn(|byte| number.to_le_bytes()[byte % 4]);
    let address =
        |net: u8| SocketAddr::from(([net, (host >> 16) as u8, (host >> 8) as u8, host as u8], 40_000));
    let member = Member {
        host: format!("node-{host:05}.cluster.example"),
        pid: 100_000 + rank,
        process: number(rank),
        machine: number(host),
        host_key: number(host),
        wire_mbits: 400_000,
        ports: Vec::new(),
        round_trip: Default::default(),
        cores: 128,
        place: Default::default(),
        devices: true,
        device: None,
        graphs: 0,
        hardware: Arc::default(),
        unix: format!("consort-{:032x}-{:032x}", host, rank).into_bytes(),
        tcp: vec![address(10), address(11)],
    };
    Hello { rank, size, settings: vec![("planner".into(), "14".into())], member }
}

/// The process that has the root: until its input ends, then says how long its threads computed.
fn root() -> Result<(), Box<dyn Error>> {
    let id = UniqueId::create_at(SocketAddr::from(([127, 0, 0, 1], 0)), SECRET)?;
    let digits: String = id.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    println!("{digits}");
    std::io::stdin().lines().for_each(drop);
    drop(id);
    let used = getrusage(UsageWho::RUSAGE_SELF)?;
    println!("{}", used.user_time().num_microseconds() + used.system_time().num_microseconds());
    Ok(())
}

/// All ranks join; the answer of each, and how long it took until the last had it.
fn gather(id: &UniqueId, size: u32, per_host: u32) -> Result<(Vec<Joined>, Duration), Box<dyn Error>> {
    let begun = Instant::now();
    let mut joiners = Vec::new();
    for rank in 0..size {
        joiners.push(Some(Joiner::<TcpStream>::new(id, said(rank, size, per_host), PATIENCE, begun)?));
    }
    let mut answers: Vec<Option<Joined>> = (0..size).map(|_| None).collect();
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let mut ready: Vec<u64> = (0..u64::from(size)).collect();
    let mut events = vec![EpollEvent::empty(); 1024];
    let mut left = size;
    while left > 0 {
        for rank in std::mem::take(&mut ready) {
            let Some(joiner) = &mut joiners[rank as usize] else { continue };
            if let Poll::Ready(answer) = joiner.poll(&mut Loopback, Instant::now()) {
                answers[rank as usize] = Some(answer?);
                joiners[rank as usize] = None;
                left -= 1;
                continue;
            }
            let Some((stream, sending)) = joiner.stream() else { continue };
            let flags =
                if sending { EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT } else { EpollFlags::EPOLLIN };
            let mut event = EpollEvent::new(flags, rank);
            match epoll.modify(stream, &mut event) {
                // Another attempt.
                Err(Errno::ENOENT) => epoll.add(stream, event)?,
                done => done?,
            }
        }
        let count = epoll.wait(&mut events, EpollTimeout::from(20u8))?;
        ready = events[..count].iter().map(EpollEvent::data).collect();
        if count == 0 {
            let now = Instant::now();
            let is_due = |joiner: &Option<Joiner<TcpStream>>| {
                joiner.as_ref().is_some_and(|joiner| joiner.until().is_some_and(|until| until <= now))
            };
            ready = (0..).zip(&joiners).filter(|(_, joiner)| is_due(joiner)).map(|(rank, _)| rank).collect();
        }
    }
    Ok((answers.into_iter().flatten().collect(), begun.elapsed()))
}

/// When each rank has the table, after the root has begun to send it: a host sends to one after the other at the rate of its wire, to a
/// rank of its own at once.
fn spread(tree: &Tree, size: u32, per_host: u32, bytes: usize, rate: f64, read: Duration) -> Vec<Duration> {
    let send = Duration::from_secs_f64(bytes as f64 / rate);
    let mut wires = vec![Duration::ZERO; size.div_ceil(per_host) as usize];
    let mut has = vec![Duration::ZERO; size as usize];
    let mut of_root = Duration::ZERO;
    for rank in 0..size {
        let source = tree.sources(rank).first().copied();
        has[rank as usize] = read
            + match source {
                None => {
                    of_root += send;
                    of_root
                }
                // A copy within the host.
                Some(source) if source / per_host == rank / per_host => has[source as usize] + read,
                Some(source) => {
                    let wire = &mut wires[(source / per_host) as usize];
                    *wire = (*wire).max(has[source as usize]) + send;
                    *wire + ROUND_TRIP * 3
                }
            };
    }
    has
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|role| role == "root") {
        return root();
    }
    let number = |at: usize, otherwise: f64| -> Result<f64, Box<dyn Error>> {
        Ok(arguments.get(at).map(|text| text.parse()).transpose()?.unwrap_or(otherwise))
    };
    let (size, per_host) = (number(0, 1024.0)? as u32, number(1, 8.0)? as u32);
    let (gbits, link) = (number(2, 10.0)?, Duration::from_secs_f64(number(3, 600.0)? / 1e6));

    let mut child = Command::new(std::env::current_exe()?)
        .arg("root")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
    let digits = lines.next().ok_or("no root")??;
    let bytes: Result<Vec<u8>, _> =
        (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16)).collect();
    let (answers, gathered) =
        gather(&UniqueId::from_bytes(&bytes?.try_into().map_err(|_| "no id")?)?, size, per_host)?;
    drop(child.stdin.take());
    let of_root: u64 = lines.next().ok_or("no figure")??.parse()?;
    child.wait()?;

    let bodies: Vec<Vec<u8>> = answers
        .iter()
        .filter_map(|answer| match answer {
            Joined::Whole(table) => Some(table.bytes()),
            Joined::Elsewhere(_) => None,
        })
        .collect();
    let body = bodies.first().ok_or("no rank has the table")?;
    assert!(bodies.iter().all(|other| other == body), "one table");
    let mut table: Option<Table> = None;
    let mut readings = Vec::new();
    for reference in answers.iter().filter_map(|answer| match answer {
        Joined::Elsewhere(reference) => Some(reference),
        Joined::Whole(..) => None,
    }) {
        let begun = Instant::now();
        table = Some(reference.read(body)?);
        readings.push(begun.elapsed());
        if readings.len() == 20 {
            break;
        }
    }
    readings.sort_unstable();
    let read = readings.get(readings.len() / 2).copied().unwrap_or_default();
    println!(
        "{size} ranks, {per_host} a host: gathered in {gathered:.2?} over the loopback (root {:.2} s of a core, the ranks on another), \
         {} have the table from the root, {} bytes each; read in {read:.2?}",
        of_root as f64 / 1e6,
        bodies.len(),
        body.len(),
    );
    let Some(table) = table else { return Ok(()) };
    let tree = Tree::of(&table);
    let has = spread(&tree, size, per_host, body.len(), gbits * 1e9 / 8.0, read);
    let links = overlay::neighbours(0, size, overlay::FULL_MAX).len() as u32;
    let before = resident();
    let (job, key) = (table.job, table.key);
    let kept: Vec<_> = (0..8)
        .map(|rank| {
            let (clock, registry) = (Clock::default(), Arc::default());
            let own = table.members.to_vec();
            member::Member::within(Weak::new(), clock, registry, job, key, rank, own, overlay::FULL_MAX)
        })
        .collect();
    let memory = resident().saturating_sub(before) / kept.len() as u64;
    let handed = has.iter().max().copied().unwrap_or_default();
    let most = (0..size).map(|rank| tree.takers(rank).len()).max().unwrap_or(0);
    println!(
        "counted for wires of {gbits} Gbit/s: the last rank has the table {handed:.2?} later, no rank gives it to more than {most}; \
         {links} links a rank, {:.2?} of a core; joined after {:.2?}; {memory} KiB a rank for the table and its links, and {} KiB \
         while it is handed on",
        link * links,
        gathered + handed + link * links,
        body.len() / 1024,
    );
    Ok(())
}
