//! Joining, seen from outside: who gets which answer, and when.

mod fuzz;
mod hostile;
mod simulated;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::wire::{self, FAILURE_MAX, HELLO_MAX, SETTING_NAME_MAX, SETTING_VALUE_MAX, SETTINGS_MAX};
use super::{AdapterPort, Hello, Limits, Member, Table, UniqueId, VERDICT_GRACE, join};
use crate::codec::{Malformed, Wire, bytes_of};
use crate::frames::{Frames, Incoming, Progress, frame, kind};
use crate::handshake::{Caller, JOINING_VERSION, marked, unmarked};
use crate::proof::{prove, random};
use consort_algorithms::hardware::BusId;
use consort_settings::environment::Environment;
use consort_settings::options::PortRange;
use consort_topology::{Claim, Place};
use consort_types::Rank;
use consort_types::error::{Error, Result};

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(30);
/// What may pass beside a deadline: a second, as the host below may take a core; three under `.ci/disturb`.
pub(super) fn late() -> Duration {
    Duration::from_secs(if std::env::var_os("CONSORT_TEST_DISTURBED").is_some() { 3 } else { 1 })
}
const SECRET: &[u8] = b"a secret of twenty-odd bytes";

fn member(rank: Rank) -> Member {
    Member {
        host: format!("host{rank}"),
        pid: 100 + rank,
        process: [rank as u8; 16],
        machine: [9; 16],
        host_key: [9; 16],
        cores: 2,
        // Known, unknown, and both.
        place: Place {
            cache: rank.checked_sub(1),
            node: rank.is_multiple_of(2).then_some(rank),
            claim: Claim { digest: rank.into(), bits: 5, cores: 2, quota: 7 },
        },
        devices: rank.is_multiple_of(2),
        device: rank.is_multiple_of(2).then_some(BusId {
            domain: 7 << 16,
            bus: rank as u8,
            device: 3,
            function: 1,
        }),
        graphs: u64::from(rank) << 40,
        ports: (0..rank % 3).map(|at| AdapterPort { mark: at << 30, mbits: 400_000 }).collect(),
        unix: format!("consort-{rank}").into_bytes(),
        tcp: vec![SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 4000 + rank as u16)],
        ..Member::unknown()
    }
}

fn hello(rank: Rank, size: u32) -> Hello {
    let settings = vec![("planner".into(), "3".into()), ("slot_bytes".into(), "262144".into())];
    Hello { rank, size, settings, member: member(rank) }
}

fn at_loopback() -> UniqueId {
    UniqueId::create_on(&[Ipv4Addr::LOCALHOST.into()], None, None, Limits::default()).unwrap()
}

/// What another process would hold.
fn copy(id: &UniqueId) -> UniqueId {
    UniqueId::from_bytes(&id.to_bytes()).unwrap()
}

/// An address at which nothing listens, with an ip of its own, so that no other test's connection takes the port.
fn free_address() -> SocketAddr {
    let [a, b, c]: [u8; 3] = random().unwrap();
    let ip = Ipv4Addr::new(127, a.clamp(1, 254), b, c.clamp(1, 254));
    TcpListener::bind((ip, 0)).unwrap().local_addr().unwrap()
}

/// Joins with each hello in a thread of its own.
fn join_all(id: &UniqueId, hellos: Vec<Hello>, timeout: Duration) -> Vec<Result<Table>> {
    let threads: Vec<_> = hellos
        .into_iter()
        .map(|hello| {
            let id = if hello.rank == 0 { id.clone() } else { copy(id) };
            thread::spawn(move || join(&id, hello, timeout))
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// Proves the secret by hand, as far as the root's acceptance. Returns the connection and its key.
fn prove_by_hand(id: &UniqueId) -> (TcpStream, [u8; 32]) {
    let mut stream = TcpStream::connect(id.addresses[0]).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let (mut caller, mut frames) = (Caller::new(id.secret.0, id.job), Frames::default());
    match caller.poll(&mut frames, &mut stream) {
        std::task::Poll::Ready(Ok(key)) => (stream, key),
        _ => panic!("the root does not accept a proof"),
    }
}

fn say(stream: &mut TcpStream, key: &[u8; 32], body: &[u8]) {
    let code = prove(key, "hello", &[body]);
    std::io::Write::write_all(stream, &frame(kind::HELLO, &[&code, body])).unwrap();
}

/// A rank that says its hello by hand; when this returns, the root has heard it. The connection with its answer to come.
fn heard_by_hand(id: &UniqueId, hello: &Hello) -> TcpStream {
    let (mut stream, key) = prove_by_hand(id);
    say(&mut stream, &key, &wire::encode_hello(hello, LONG).unwrap());
    // The root looks at all connections before it answers another one.
    drop(prove_by_hand(id));
    stream
}

/// The failure that a rank hears.
fn failure_from(stream: &mut TcpStream) -> Error {
    let (kind, payload) = frame_from(stream);
    assert_eq!(kind, kind::FAILURE);
    // A code is in front of it.
    Error::whole(&payload[32..]).unwrap()
}

fn frame_from(stream: &mut TcpStream) -> (u8, Vec<u8>) {
    match Incoming::default().read(stream, |_| Some(FAILURE_MAX)) {
        Progress::Frame(kind, payload) => (kind, payload),
        other => panic!("{other:?}"),
    }
}

fn agree(tables: Vec<Result<Table>>) -> Table {
    let tables: Vec<Table> = tables.into_iter().map(Result::unwrap).collect();
    for table in &tables {
        assert_eq!((table.job, table.key), (tables[0].job, tables[0].key));
        assert_eq!(table.members, tables[0].members);
    }
    tables.into_iter().next().unwrap()
}

#[test]
fn one_to_eight_ranks_get_the_same_table() {
    for size in 1..=8 {
        let id = at_loopback();
        let table = agree(join_all(&id, (0..size).map(|rank| hello(rank, size)).collect(), LONG));
        assert_eq!(table.members.len(), size as usize);
        for (rank, found) in (0..).zip(table.members.iter()) {
            let mut expected = member(rank);
            expected.tcp[0].set_ip(Ipv4Addr::LOCALHOST.into());
            // The loopback has the round trip that the kernel measured.
            expected.round_trip = found.round_trip;
            assert_eq!(*found, expected);
        }
        assert_ne!(table.key, id.secret.0);
    }
}

#[test]
fn every_address_of_the_host_works_and_the_root_ends_by_itself() {
    let id = UniqueId::create().unwrap();
    for address in id.addresses.clone() {
        assert!(TcpStream::connect_timeout(&address, LONG).is_ok(), "{address}");
    }
    assert!(!id.is_over());
    agree(join_all(&id, vec![hello(1, 2), hello(0, 2)], LONG));
    // However far its thread is.
    assert!(id.is_over(), "who has joined has no more need of the root");
    let root = id.root.as_ref().unwrap();
    let begun = Instant::now();
    while !root.ended() {
        assert!(begun.elapsed() < LONG, "the root goes on although all have joined");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn ipv6_works() {
    let Ok(id) = UniqueId::create_on(&[Ipv6Addr::LOCALHOST.into()], None, None, Limits::default()) else {
        eprintln!("SKIPPED: this host has no ::1");
        return;
    };
    let mut hellos = vec![hello(0, 2), hello(1, 2)];
    hellos[1].member.tcp = vec!["[::]:4001".parse().unwrap()];
    let table = agree(join_all(&id, hellos, LONG));
    assert_eq!(table.members[1].tcp, ["[::1]:4001".parse().unwrap()]);
}

#[test]
fn two_ranks_agree_each_time_they_meet() {
    let mut times: Vec<Duration> = (0..50)
        .map(|_| {
            let begun = Instant::now();
            let id = at_loopback();
            agree(join_all(&id, vec![hello(0, 2), hello(1, 2)], LONG));
            drop(id);
            begun.elapsed()
        })
        .collect();
    times.sort();
    eprintln!("create, join of 2 ranks, end of the root: median {:?}, worst {:?}", times[25], times[49]);
}

#[test]
fn many_ranks_join() {
    let (size, begun) = (200, Instant::now());
    let table = agree(join_all(&at_loopback(), (0..size).map(|rank| hello(rank, size)).collect(), LONG));
    eprintln!("{} ranks: {:?}", table.members.len(), begun.elapsed());
}

#[test]
fn keys_and_jobs_differ_from_one_join_to_the_next() {
    let address = free_address();
    let mut seen: Vec<([u8; 16], [u8; 32])> = Vec::new();
    // The same place is used again at once: a rank that has joined never meets the root that it joined at.
    let other = thread::spawn(move || {
        for _ in 0..20 {
            let id = UniqueId::at(address, SECRET).unwrap();
            join(&id, hello(1, 2), LONG).unwrap();
        }
    });
    for _ in 0..20 {
        let id = UniqueId::create_at(address, SECRET).unwrap();
        let table = join(&id, hello(0, 2), LONG).unwrap();
        assert!(!seen.iter().any(|(job, key)| *job == table.job || *key == table.key));
        seen.push((table.job, table.key));
    }
    other.join().unwrap();
}

#[test]
fn one_rank_needs_no_network() {
    let id = UniqueId::lone().unwrap();
    assert!(id.root.is_none() && id.addresses.is_empty());
    let table = join(&copy(&id), hello(0, 1), Duration::ZERO).unwrap();
    assert_eq!(table.members[0].tcp, ["127.0.0.1:4000".parse().unwrap()]);
    let error = join(&id, hello(0, 2), LONG).unwrap_err();
    assert!(
        matches!(&error, Error::Join { rank: 0, .. }) && error.to_string().contains("CONSORT_BIND"),
        "{error}"
    );
}

#[test]
fn a_rank_beyond_the_size_is_refused_at_home() {
    for (rank, size) in [(2, 2), (0, 0), (0, u32::MAX)] {
        let error = join(&at_loopback(), hello(rank, size), LONG).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    }
    let mut long = hello(0, 2);
    long.settings.push(("x".into(), "y".repeat(5000)));
    assert!(matches!(join(&at_loopback(), long, LONG), Err(Error::InvalidArgument { .. })));
}

#[test]
fn settings_beyond_their_bounds_are_refused_where_they_are_read() {
    // The bodies are written by hand, since `encode_hello` refuses such settings.
    let settings = |number: usize, name: usize, value: usize| {
        let settings = vec![("n".repeat(name), "v".repeat(value)); number];
        let mut body = bytes_of(&(JOINING_VERSION, 0u32, 2u32));
        LONG.put(&mut body);
        settings.put(&mut body);
        member(0).put(&mut body);
        wire::decode_hello(&body).map(|seen| seen.rest.unwrap().0 == settings)
    };
    let (number, name, value) = (SETTINGS_MAX, SETTING_NAME_MAX, SETTING_VALUE_MAX);
    assert_eq!(settings(1, name, value), Ok(true));
    assert_eq!(settings(number, 1, 1), Ok(true));
    let refused = Err(Malformed("a member or its settings are too long"));
    assert_eq!(settings(1, 1, value + 1), refused);
    assert_eq!(settings(1, name + 1, 1), refused);
    assert_eq!(settings(number + 1, 1, 1), refused);
}

#[test]
fn missing_ranks_are_named_by_the_earliest_deadline() {
    let id = at_loopback();
    let mut patient = heard_by_hand(&id, &hello(2, 5));
    let (short, begun) = (Duration::from_secs(1), Instant::now());
    let hasty = join(&id, hello(0, 5), short).unwrap_err();
    let took = begun.elapsed();
    // By the deadline and a little: see `VERDICT_GRACE`.
    assert!(took >= short && took < short + VERDICT_GRACE + late(), "{took:?}");
    for error in [hasty, failure_from(&mut patient)] {
        let Error::MissingRanks { missing, size: 5, address, waited } = error else { panic!("{error:?}") };
        assert_eq!(missing, [1, 3, 4]);
        assert!(waited <= short && address == id.place(), "{waited:?} {address}");
    }
    // One that comes too late gets the same answer at once.
    assert!(matches!(join(&copy(&id), hello(1, 5), LONG), Err(Error::MissingRanks { .. })));
}

#[test]
fn a_rank_says_how_much_time_it_has_to_the_nanosecond() {
    for has in
        [Duration::from_nanos(1), Duration::from_nanos(1_000_001), Duration::from_secs(365 * 24 * 3600)]
    {
        let said = wire::encode_hello(&hello(1, 2), has).unwrap();
        assert_eq!(wire::decode_hello(&said).unwrap().timeout, has);
    }
}

#[test]
fn a_rank_that_dies_while_waiting_is_named() {
    let id = at_loopback();
    let stream = heard_by_hand(&id, &hello(1, 3));
    let waiting = thread::spawn({
        let id = id.clone();
        move || join(&id, hello(0, 3), LONG)
    });
    // The verdict is the same for a rank that comes after it.
    thread::sleep(Duration::from_millis(50));
    drop(stream);
    let Err(Error::PeerLost { rank: 1, place, operation: None, .. }) = waiting.join().unwrap() else {
        panic!()
    };
    assert_eq!(place, "host host1, process 101");
    assert!(matches!(join(&copy(&id), hello(2, 3), LONG), Err(Error::PeerLost { rank: 1, .. })));
}

#[test]
fn one_that_dies_before_it_says_who_it_is_changes_nothing() {
    let id = at_loopback();
    drop(prove_by_hand(&id));
    agree(join_all(&id, vec![hello(0, 2), hello(1, 2)], LONG));
}

#[test]
fn two_that_claim_one_rank_are_both_named() {
    let id = at_loopback();
    let mut second = hello(1, 3);
    second.member.host = "elsewhere".into();
    let results = join_all(&id, vec![hello(0, 3), hello(1, 3), second], LONG);
    for result in results {
        let Err(Error::Join { rank: 1, cause, .. }) = result else { panic!("{result:?}") };
        assert!(cause.contains("host host1, process 101") && cause.contains("host elsewhere"), "{cause}");
    }
}

#[test]
fn different_sizes_and_settings_are_named_with_their_ranks() {
    let results = join_all(&at_loopback(), vec![hello(0, 2), hello(1, 3)], LONG);
    for result in results {
        let Err(Error::Settings { difference }) = result else { panic!("{result:?}") };
        assert!(difference.contains("rank 0 says 2") && difference.contains("rank 1 says 3"), "{difference}");
    }
    // As many have heard it as the first said there are, and as the second said; more come.
    let id = at_loopback();
    let first = thread::spawn({
        let id = id.clone();
        move || join(&id, hello(1, 2), LONG)
    });
    let mut results = vec![join(&id, hello(2, 3), LONG), first.join().unwrap()];
    results.extend([hello(3, 4), hello(0, 4)].map(|late| join(&id, late, LONG)));
    for result in results {
        let Err(Error::Settings { difference }) = result else { panic!("{result:?}") };
        assert_eq!(difference, "number of ranks: rank 1 says 2; rank 2 says 3");
    }
    let mut odd = hello(1, 3);
    odd.settings[1].1 = "131072".into();
    let results = join_all(&at_loopback(), vec![hello(0, 3), odd, hello(2, 3)], LONG);
    for result in results {
        let Err(Error::Settings { difference }) = result else { panic!("{result:?}") };
        assert_eq!(difference, "slot_bytes: ranks 0, 2 say 262144; rank 1 says 131072");
    }
}

#[test]
fn a_failure_is_not_told_for_ever_to_those_who_never_come() {
    let limits = Limits { linger: Duration::from_millis(300), ..Limits::default() };
    let id = UniqueId::create_on(&[IpAddr::from([127, 0, 0, 1])], None, None, limits).unwrap();
    let root = id.root.clone().unwrap();
    let begun = Instant::now();
    // There are no more than these.
    assert!(join_all(&id, vec![hello(0, 2), hello(1, 3)], LONG).iter().all(Result::is_err));
    while !root.ended() {
        assert!(begun.elapsed() < LONG / 2, "the root stays");
        thread::sleep(Duration::from_millis(5));
    }
    assert!(begun.elapsed() >= limits.linger && id.is_over());
}

#[test]
fn another_wire_version_is_named() {
    let id = at_loopback();
    let waiting = thread::spawn({
        let id = id.clone();
        move || join(&id, hello(0, 2), LONG)
    });
    let (mut stream, key) = prove_by_hand(&id);
    // The part that never changes, and then something that only the future knows.
    let next = JOINING_VERSION + 1;
    let future = [&next.to_le_bytes()[..], &1u32.to_le_bytes(), &2u32.to_le_bytes(), b"???"].concat();
    say(&mut stream, &key, &future);
    assert_eq!(frame_from(&mut stream).0, kind::FAILURE);
    let Err(Error::Settings { difference }) = waiting.join().unwrap() else { panic!() };
    assert!(
        difference.contains(&format!("rank 1 says {next}"))
            && difference.contains(&format!("says {JOINING_VERSION}"))
    );
}

#[test]
fn another_jobs_secret_or_number_is_refused_without_a_hint_at_either() {
    let address = free_address();
    let id = UniqueId::create_at(address, SECRET).unwrap();
    let mut number = copy(&id);
    number.job ^= 1;
    let mut texts = Vec::new();
    for stranger in [UniqueId::at(address, b"another secret of this length").unwrap(), number] {
        let begun = Instant::now();
        let Err(Error::Join { rank: 1, cause, .. }) = join(&stranger, hello(1, 2), LONG) else { panic!() };
        assert!(begun.elapsed() < LONG / 2);
        assert!(cause.contains("another job") && cause.contains(&address.to_string()), "{cause}");
        texts.push(cause.split_once('(').unwrap().1.to_owned());
    }
    assert_eq!(texts[0], texts[1]);
    agree(join_all(&id, vec![hello(0, 2), hello(1, 2)], LONG));
}

#[test]
fn a_second_job_at_the_same_address_is_told_so() {
    let address = free_address();
    let first = UniqueId::create_at(address, SECRET).unwrap();
    let Err(Error::InvalidArgument { what, hint }) = UniqueId::create_at(address, SECRET) else { panic!() };
    assert!(
        what.contains(&address.to_string()) && what.contains("another job") && hint.contains("MASTER_PORT")
    );
    drop(first);
    UniqueId::create_at(address, SECRET).unwrap();
    let foreign = SocketAddr::new(IpAddr::from([192, 0, 2, 77]), address.port());
    let Err(Error::InvalidArgument { what, .. }) = UniqueId::create_at(foreign, SECRET) else { panic!() };
    assert!(what.contains("not an address of this host"), "{what}");
}

#[test]
fn a_root_that_is_gone_or_given_up_is_an_error_that_says_what_to_check() {
    // An address of this test's own: another's root may come to listen at a port of 127.0.0.1.
    let id = UniqueId::create_on(&[free_address().ip()], None, None, Limits::default()).unwrap();
    let gone = copy(&id);
    let mut waiting = heard_by_hand(&id, &hello(1, 2));
    let begun = Instant::now();
    drop(id);
    let Error::Join { rank: 1, cause, .. } = failure_from(&mut waiting) else { panic!() };
    assert!(cause.contains("gave it up when 1 of 2 ranks had joined"), "{cause}");
    let Err(Error::Join { rank: 1, cause, hint }) = join(&gone, hello(1, 2), LONG) else { panic!() };
    assert!(cause.contains("nothing listens there") && hint.contains("still runs"), "{cause}; {hint}");
    assert!(begun.elapsed() < LONG / 3);
    // Rank 0 of an agreed address may come later, so that is waited for until the deadline.
    let id = UniqueId::at(free_address(), SECRET).unwrap();
    let begun = Instant::now();
    assert!(matches!(join(&id, hello(1, 2), Duration::from_millis(300)), Err(Error::Join { rank: 1, .. })));
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(300) && took < Duration::from_millis(300) + late(), "{took:?}");
}

#[test]
fn an_agreed_rank_zero_may_come_last() {
    let address = free_address();
    let others = thread::spawn(move || join(&UniqueId::at(address, SECRET).unwrap(), hello(1, 2), LONG));
    thread::sleep(Duration::from_millis(200));
    let id = UniqueId::create_at(address, SECRET).unwrap();
    agree(vec![join(&id, hello(0, 2), LONG), others.join().unwrap()]);
}

#[test]
fn an_id_serves_once() {
    let id = at_loopback();
    agree(join_all(&id, vec![hello(0, 2), hello(1, 2)], LONG));
    assert!(matches!(join(&id, hello(1, 2), Duration::from_millis(200)), Err(Error::Join { rank: 1, .. })));
}

#[test]
fn ids_survive_their_bytes_and_damage_is_refused() {
    let mut id = at_loopback();
    id.addresses.push("[fd00::7]:65535".parse().unwrap());
    let bytes = id.to_bytes();
    let copy = UniqueId::from_bytes(&bytes).unwrap();
    assert_eq!(copy.to_bytes(), bytes);
    assert_eq!((copy.addresses.clone(), copy.secret, copy.job), (id.addresses.clone(), id.secret, id.job));
    assert!(!copy.agreed && copy.root.is_none());
    for at in 0..UniqueId::BYTES {
        for bit in 0..8 {
            let mut bent = bytes;
            bent[at] ^= 1 << bit;
            assert!(
                matches!(UniqueId::from_bytes(&bent), Err(Error::InvalidArgument { .. })),
                "byte {at} bit {bit}"
            );
        }
    }
    let zero = UniqueId::from_bytes(&[0; 128]).unwrap_err().to_string();
    assert!(zero.contains("all are zero"), "{zero}");
}

#[test]
fn the_secret_is_never_shown() {
    let id = UniqueId::at(free_address(), SECRET).unwrap();
    let shown = format!("{id:?} {:?}", join(&at_loopback(), hello(0, 1), LONG).unwrap());
    assert!(shown.contains("<secret>"), "{shown}");
    for part in [&id.secret.0[..4], &SECRET[..4]] {
        assert!(!shown.contains(&format!("{part:?}")[1..12]), "{shown}");
    }
    assert!(UniqueId::at(free_address(), b"short").is_err());
}

#[test]
fn bind_addresses_are_checked() {
    use super::unique_id::bind_addresses;
    assert_eq!(bind_addresses(None).unwrap(), [] as [IpAddr; 0]);
    assert_eq!(bind_addresses(Some(" 127.0.0.1, ::1")).unwrap().len(), 2);
    for wrong in ["eth0", "0.0.0.0", "1.2.3.4,", "::,::1", "1.1.1.1,1.1.1.2,1.1.1.3,1.1.1.4,1.1.1.5"] {
        let error = bind_addresses(Some(wrong)).unwrap_err().to_string();
        assert!(error.contains("CONSORT_BIND"), "{error}");
    }
}

#[test]
fn a_root_takes_a_port_of_its_range_or_says_that_there_is_none() {
    let range = |text: &'static str| {
        let lookup = |name: &str| (name == "CONSORT_PORTS").then(|| text.to_owned());
        PortRange::asked(&Environment::from_lookup(lookup)).unwrap()
    };
    let create = |bind: &[IpAddr], ports: &'static str| {
        UniqueId::create_on(bind, range(ports), None, Limits::default())
    };
    let ip = free_address().ip();
    let id = create(&[ip], "17100-17100").unwrap();
    assert_eq!(id.addresses, [SocketAddr::new(ip, 17_100)]);
    let error = create(&[ip], "17100-17100").unwrap_err().to_string();
    assert!(error.contains(&format!("at {ip} all 1 ports of CONSORT_PORTS=17100-17100")), "{error}");
    assert!(error.contains("widen CONSORT_PORTS") && !error.contains("CONSORT_ADDRESS"), "{error}");
    // Where addresses are the library's choice, one at which it cannot listen is left out, but not for want of a port. The
    // loopback is the first of them; where another program has the port, it is taken too.
    let _held = TcpListener::bind((Ipv4Addr::LOCALHOST, 17_101));
    let error = create(&[], "17101-17101").unwrap_err().to_string();
    assert!(error.contains("all 1 ports of CONSORT_PORTS=17101-17101"), "{error}");
    // An address that cannot be listened at is not the range's fault.
    let error = create(&[[192, 0, 2, 1].into()], "17100-17101").unwrap_err().to_string();
    assert!(error.contains("not an address of this host"), "{error}");
}
