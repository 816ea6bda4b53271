//! Several processes over shared memory, forked children, killed peers, descriptors. Tests that fork, or count what
//! their process has, have one to themselves.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::Arc;
use std::task::Poll;

use consort_memory::{Span, SpanMut};
use consort_transports::conformance::{Side, connect, eventually, serve};
use consort_transports::{
    Address, Connection, CounterKind, Endpoint, Layout, Listener, Loopback, PeerState, Shm, Tcp, Transport,
    TransportError,
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, socket};

use crate::child::{name_of, program_for, ran_alone};

const CHILD: &str = "CONSORT_TEST_CHILD";
const LAYOUT: Layout = Layout::new(1 << 20);
const KEY: [u8; 32] = [3; 32];

fn transport(name: &str) -> Arc<dyn Transport> {
    match name {
        "shm" => Arc::new(Shm::new().expect("shm")),
        "tcp" => Arc::new(
            Tcp::new(Arc::new(Listener::new(Ipv4Addr::LOCALHOST.into()).expect("a listener")), KEY)
                .expect("tcp"),
        ),
        _ => Arc::new(Loopback::new().expect("loopback")),
    }
}

fn show(address: &Address) -> String {
    let bytes: String = address.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}:{bytes}", address.transport)
}

fn parse(line: &str) -> Option<Address> {
    let (transport, hex) =
        line.trim().rsplit_once(' ').map_or(line.trim(), |(_, last)| last).split_once(':')?;
    let byte = |at: usize| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
    let bytes = (0..hex.len()).step_by(2).map(byte).collect::<Option<_>>()?;
    ["shm", "tcp"].contains(&transport).then(|| Address { transport: transport.into(), bytes })
}

fn establish(endpoint: Box<dyn Endpoint>, peer: &Address) -> Side {
    let mut connecting = endpoint.connect(peer).expect("connect");
    eventually("connected", || match connecting.poll().expect("poll") {
        Poll::Ready(side) => Some(side),
        Poll::Pending => None,
    })
}

fn await_ready(side: &mut Side, value: u64) {
    eventually("the counter goes up", || {
        side.progress().expect("progress");
        (side.counter(CounterKind::Ready).value() >= value).then_some(())
    });
}

fn put_and_signal(side: &mut Side, value: u64, byte: u8) {
    let data = vec![byte; LAYOUT.mailbox_bytes];
    let mut done = 0;
    eventually("a put is taken over", || {
        side.progress().expect("progress");
        side.put(0, Span::of(&data), &mut done).expect("put").is_ready().then_some(())
    });
    assert!(side.signal(CounterKind::Ready, value, value).expect("signal").is_ready());
}

fn assert_mailbox(side: &Side, byte: u8) {
    let mut copy = vec![0; LAYOUT.mailbox_bytes];
    SpanMut::of(&mut copy).copy_from(side.mailbox().read());
    assert!(copy == vec![byte; LAYOUT.mailbox_bytes]);
}

/// The other process: what it does is named by the environment; without that, nothing.
#[test]
fn child_entry() {
    let Ok(role) = std::env::var(CHILD) else { return };
    let (name, then) = role.split_once('/').expect("a transport and what to do");
    let transport = transport(name);
    let endpoint = transport.endpoint(LAYOUT).expect("endpoint");
    println!("\n{}", show(endpoint.address()));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("the parent's address");
    let mut side = establish(endpoint, &parse(&line).expect("an address"));
    await_ready(&mut side, 1);
    assert_mailbox(&side, 1);
    put_and_signal(&mut side, 1, 2);
    // As if the process hung; it is to be killed.
    if then == "hang" {
        loop {
            side.progress().expect("progress");
            std::thread::yield_now();
        }
    }
    await_ready(&mut side, 2);
}

struct Peer {
    process: Child,
    /// Held open: the child's test harness writes to it at the end.
    _output: BufReader<ChildStdout>,
    side: Side,
}

/// Connects to a fresh process.
fn spawn(transport: &dyn Transport, then: &str) -> Peer {
    let mut process = program_for(name_of(child_entry))
        .env(CHILD, format!("{}/{then}", transport.name()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let endpoint = transport.endpoint(LAYOUT).expect("endpoint");
    writeln!(process.stdin.as_mut().expect("piped"), "{}", show(endpoint.address())).expect("it reads");
    let mut output = BufReader::new(process.stdout.take().expect("piped"));
    let lines = output.by_ref().lines().map_while(Result::ok);
    let address = { lines }.find_map(|line| parse(&line)).expect("its address");
    let side = establish(endpoint, &address);
    Peer { process, _output: output, side }
}

fn names_in_shared_memory() -> Vec<String> {
    let entries = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.retain(|name| name.contains("consort"));
    names.sort();
    names
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("procfs").count()
}

#[test]
fn two_processes_exchange_and_part() {
    for name in ["shm", "tcp"] {
        let transport = transport(name);
        let mut peer = spawn(&*transport, "part");
        put_and_signal(&mut peer.side, 1, 1);
        await_ready(&mut peer.side, 1);
        assert_mailbox(&peer.side, 2);
        put_and_signal(&mut peer.side, 2, 3);
        eventually("it closes", || {
            (peer.side.progress().expect("progress") == PeerState::Closed).then_some(())
        });
        assert!(peer.process.wait().expect("it ends").success());
        assert_mailbox(&peer.side, 2);
    }
}

#[test]
fn a_killed_peer_leaves_nothing_behind() {
    if ran_alone(this_test!()) {
        return;
    }
    let (names, before) = (names_in_shared_memory(), descriptors());
    for name in ["shm", "tcp"] {
        let transport = transport(name);
        let mut peer = spawn(&*transport, "hang");
        put_and_signal(&mut peer.side, 1, 1);
        await_ready(&mut peer.side, 1);
        peer.process.kill().expect("kill");
        peer.process.wait().expect("it is gone");
        // What it sent stays, and touching its memory is harmless.
        assert_mailbox(&peer.side, 2);
        if name == "shm" {
            put_and_signal(&mut peer.side, 2, 3);
        } else {
            eventually("its end is seen", || {
                (peer.side.progress().expect("progress") == PeerState::Closed).then_some(())
            });
        }
    }
    assert_eq!(names_in_shared_memory(), names);
    assert_eq!(descriptors(), before);
}

#[test]
fn a_peer_that_died_before_connecting_is_unreachable() {
    for name in ["shm", "tcp"] {
        let near = transport(name);
        // Both orders of nonces; who is to be called by the peer cannot tell.
        let unreachable = (0..16).any(|_| {
            let far = transport(name);
            let address = far.endpoint(LAYOUT).expect("endpoint").address().clone();
            drop(far);
            let mut connecting = near.endpoint(LAYOUT).expect("endpoint").connect(&address).expect("connect");
            (0..1000).find_map(|_| connecting.poll().err()).is_some_and(|error| {
                assert!(matches!(error, TransportError::Unreachable { .. }), "{error}");
                true
            })
        });
        assert!(unreachable, "{name}");
    }
}

#[test]
fn descriptors_come_back() {
    if ran_alone(this_test!()) {
        return;
    }
    for name in ["loopback", "shm", "tcp"] {
        let before = descriptors();
        let (near, far) = (transport(name), transport(name));
        let sides = if name == "loopback" {
            (Arc::clone(&near), Arc::clone(&near))
        } else {
            (near.clone(), far.clone())
        };
        let idle = descriptors();
        // Abandoned at every stage.
        drop(near.endpoint(LAYOUT).expect("endpoint"));
        let here = near.endpoint(LAYOUT).expect("endpoint");
        let there = sides.1.endpoint(LAYOUT).expect("endpoint");
        let mut connecting = here.connect(there.address()).expect("connect");
        let _ = connecting.poll().expect("poll");
        drop((connecting, there));
        let pairs: Vec<_> = (0..20).map(|_| connect(&sides, [4096; 2])).collect();
        if name == "shm" {
            assert_eq!(descriptors(), idle, "an established mapped connection has no descriptor");
        }
        drop(pairs);
        eventually("the descriptors are back", || {
            serve(&*near);
            serve(&*far);
            (descriptors() == idle).then_some(())
        });
        drop((near, far, sides));
        assert_eq!(descriptors(), before, "{name}");
    }
}

#[test]
fn a_forked_child_that_drops_everything_disturbs_nobody() {
    if ran_alone(this_test!()) {
        return;
    }
    for name in ["loopback", "shm", "tcp"] {
        let near = transport(name);
        let far = if name == "loopback" { Arc::clone(&near) } else { transport(name) };
        let sides = (near, far);
        let (mut left, mut right) = connect(&sides, [LAYOUT.mailbox_bytes; 2]);
        // SAFETY: this process is for this test alone; the child drops what it has and leaves.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop((left, right, sides));
            // SAFETY: leaves.
            unsafe { libc::_exit(0) };
        }
        let mut status = -1;
        // SAFETY: waits for our own child and writes one int.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
        for side in [&mut left, &mut right] {
            assert_eq!(side.progress().expect("progress"), PeerState::Open, "{name}");
        }
        let mut done = 0;
        assert!(left.put(0, Span::of(&[1u8]), &mut done).expect("put").is_ready());
        assert!(left.signal(CounterKind::Ready, 1, 0).expect("signal").is_ready());
        await_ready(&mut right, 1);
        // And new connections are still made.
        drop(connect(&sides, [64; 2]));
    }
}

#[test]
fn everything_closes_on_exec() {
    if ran_alone(this_test!()) {
        return;
    }
    let transports = ["loopback", "shm", "tcp"].map(transport);
    let _kept: Vec<_> = transports
        .iter()
        .map(|transport| {
            let sides = (Arc::clone(transport), Arc::clone(transport));
            (connect(&sides, [64; 2]), transport.endpoint(LAYOUT).expect("endpoint"))
        })
        .collect();
    for entry in std::fs::read_dir("/proc/self/fdinfo").expect("procfs").flatten() {
        let number: i32 = entry.file_name().to_string_lossy().parse().expect("a number");
        let Ok(info) = std::fs::read_to_string(entry.path()) else { continue };
        let flags =
            info.lines().find_map(|line| line.strip_prefix("flags:")).expect("flags").trim().to_owned();
        let flags = i32::from_str_radix(&flags, 8).expect("octal");
        let target = std::fs::read_link(format!("/proc/self/fd/{number}")).unwrap_or_default();
        let ours =
            ["socket:", "memfd", "eventpoll"].iter().any(|kind| target.to_string_lossy().contains(kind));
        assert!(number <= 2 || !ours || flags & libc::O_CLOEXEC != 0, "{number} {}", target.display());
    }
}

#[test]
fn the_service_descriptor_tells_when_somebody_calls() {
    for name in ["shm", "tcp"] {
        let (near, far) = (transport(name), transport(name));
        let here = near.endpoint(LAYOUT).expect("endpoint");
        let there = far.endpoint(LAYOUT).expect("endpoint");
        let (to_here, to_there) = (here.address().clone(), there.address().clone());
        let readable = |transport: &dyn Transport| {
            let service = transport.service().expect("it has one");
            let mut polled = [nix::poll::PollFd::new(service.descriptor(), nix::poll::PollFlags::POLLIN)];
            nix::poll::poll(&mut polled, nix::poll::PollTimeout::ZERO).expect("poll") > 0
        };
        assert!(!readable(&*near) && !readable(&*far), "{name}");
        let mut connecting =
            [here.connect(&to_there), there.connect(&to_here)].map(|side| side.expect("connect"));
        // Only the sides' own polls and the descriptors: no unconditional serving.
        eventually("a call comes", || {
            let _ = connecting[0].poll().expect("poll");
            if name == "tcp" {
                let _ = connecting[1].poll().expect("poll");
                return Some(());
            }
            readable(&*far).then_some(())
        });
        serve(&*far);
        eventually("both are quiet", || {
            serve(&*near);
            serve(&*far);
            (!readable(&*near) && !readable(&*far)).then_some(())
        });
    }
}

#[test]
fn a_connection_may_be_moved_between_threads() {
    fn sends<T: Send + ?Sized>() {}
    sends::<dyn Connection>();
    sends::<dyn Endpoint>();
}

/// Jobs share a listener: each finds its own peers, a late caller of a job that has gone hears so, and a caller of a
/// job that was never here hears nothing.
#[test]
fn jobs_share_a_listener() {
    let listener = || Arc::new(Listener::new(Ipv4Addr::LOCALHOST.into()).expect("a listener"));
    let (near, far) = (listener(), listener());
    let job = |key: u8| {
        let side = |at: &Arc<Listener>| -> Arc<dyn Transport> {
            Arc::new(Tcp::new(at.clone(), [key; 32]).expect("tcp"))
        };
        (side(&near), side(&far))
    };
    let jobs: Vec<_> = (0..5).map(job).collect();
    let mut pairs: Vec<[Side; 2]> = jobs.iter().map(|sides| connect(sides, [64; 2]).into()).collect();
    for (number, [left, right]) in (1..).zip(&mut pairs) {
        assert!(left.put(0, Span::of(&[number; 8]), &mut 0).expect("put").is_ready());
        assert!(left.signal(CounterKind::Ready, 1, number).expect("signal").is_ready());
        eventually("it arrives", || {
            right.progress().expect("progress");
            (right.counter(CounterKind::Ready).value() == 1).then_some(())
        });
        assert_eq!(right.counter(CounterKind::Ready).tag(1), number);
    }
    // A second communicator of a job keeps the job at the listener.
    let (again, gone) = (job(0), job(9));
    let late = gone.0.endpoint(LAYOUT.calling(true)).expect("endpoint");
    let there = gone.1.endpoint(LAYOUT.calling(false)).expect("endpoint").address().clone();
    let mut asked = again
        .0
        .endpoint(LAYOUT.calling(true))
        .expect("endpoint")
        .connect(again.1.endpoint(LAYOUT.calling(false)).expect("endpoint").address())
        .expect("connect");
    drop((jobs, gone.1));
    let mut late = late.connect(&there).expect("connect");
    let outcome = |connecting: &mut Box<dyn consort_transports::Connecting>| {
        eventually("an answer", || {
            serve(&*again.1);
            connecting.poll().map(|poll| assert!(poll.is_pending(), "connected without a peer")).err()
        })
    };
    let error = outcome(&mut late);
    assert!(matches!(error, TransportError::PeerClosed { .. }), "{error}");
    // Its address says where the listener is, and another job's key does not open it.
    let stranger = Tcp::new(near.clone(), [10; 32]).expect("tcp");
    let stranger = stranger.endpoint(LAYOUT.calling(true)).expect("endpoint");
    let error = outcome(&mut stranger.connect(&there).expect("connect"));
    assert!(matches!(error, TransportError::Unauthorised { .. }), "{error}");
    let error = outcome(&mut asked);
    assert!(matches!(error, TransportError::PeerClosed { .. }), "{error}");
}

/// A crowd of silent strangers from one address pushes out its own: a peer that is slow to speak stays, and another
/// gets in.
#[test]
fn a_silent_crowd_pushes_out_its_own() {
    let listener = |last| Arc::new(Listener::new(Ipv4Addr::new(127, 0, 0, last).into()).expect("a listener"));
    let (near, far) = (listener(2), listener(3));
    let side =
        |at: &Arc<Listener>| -> Arc<dyn Transport> { Arc::new(Tcp::new(at.clone(), KEY).expect("tcp")) };
    let sides = (side(&near), side(&far));
    let probe = sides.1.endpoint(LAYOUT).expect("endpoint");
    // As addresses are written: sixteen bytes of IP address, the port, and more.
    let port = u16::from_le_bytes([16, 17].map(|at| probe.address().bytes[at]));
    let there = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 3), port);
    let crowd = |count: usize| -> Vec<TcpStream> {
        let stranger = |_| {
            let stranger = TcpStream::connect(there).expect("a listener");
            serve(&*sides.1);
            stranger
        };
        (0..count).map(stranger).collect()
    };
    let _before = crowd(100);
    let slow = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
    bind(slow.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 2, 0)).expect("another address than the crowd's");
    nix::sys::socket::connect(slow.as_raw_fd(), &SockaddrIn::from(there)).expect("a listener");
    let _after = crowd(300);
    let mut polled = [PollFd::new(slow.as_fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut polled, PollTimeout::ZERO), Ok(0), "the slow one was turned away");
    connect(&sides, [64; 2]);
}
