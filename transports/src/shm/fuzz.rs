//! What strangers and hostile peers of the same user may do to the shared-memory transport.

use std::io::{IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use consort_memory::{Mapping, Span};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nix::unistd::ftruncate;

use super::Shm;
use crate::fuzzing::{Input, Seen, Target, fuzz};
use crate::handover::HANDOVER;
use crate::segment::{NONCE_BYTES, Segment};
use crate::{Address, Connection, CounterKind, Layout, Transport, TransportError};

/// Endpoints, callers (128 of 16 bytes at most) and a buffer for descriptors; memory files are mapped and not counted.
const BYTES_MAX: usize = 256 << 10;
const HANDED: &str = "fuzz-handed";
const LAYOUT: Layout = Layout::new(4096);

fn target(name: &'static str, command: &'static str, inputs: u64) -> Target {
    Target { name, command, bytes_max: BYTES_MAX, inputs }
}

/// The files of [`file`] that are open: other tests have others.
fn descriptors() -> usize {
    let entries = std::fs::read_dir("/proc/self/fd").expect("the process's descriptors");
    let names = entries.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    names.filter(|name| name.to_string_lossy().contains(HANDED)).count()
}

fn name_of(address: &Address) -> SocketAddr {
    let name: String = address.bytes[..NONCE_BYTES].iter().map(|byte| format!("{byte:02x}")).collect();
    SocketAddr::from_abstract_name(format!("consort-{name}")).expect("a name")
}

/// Both sides, polled until both are up.
fn join(sides: [(Box<dyn crate::Endpoint>, Address); 2]) -> [Box<dyn Connection>; 2] {
    let begun = Instant::now();
    let mut sides = sides.map(|(endpoint, peer)| (endpoint.connect(&peer).expect("connect"), None));
    while sides.iter().any(|(_, up)| up.is_none()) {
        for (connecting, up) in sides.iter_mut().filter(|(_, up)| up.is_none()) {
            if let Poll::Ready(connection) = connecting.poll().expect("honest endpoints find each other") {
                *up = Some(connection);
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "honest endpoints do not find each other");
    }
    sides.map(|(_, up)| up.expect("up"))
}

fn pair(shm: &Shm) -> [Box<dyn Connection>; 2] {
    let [one, two] = [0, 1].map(|_| shm.endpoint(LAYOUT).expect("endpoint"));
    let (one_at, two_at) = (one.address().clone(), two.address().clone());
    join([(one, two_at), (two, one_at)])
}

/// Callers at the listener, while two honest endpoints look for each other.
fn callers(input: &Input, seen: &mut Seen) {
    static SHM: OnceLock<Shm> = OnceLock::new();
    let shm = SHM.get_or_init(|| Shm::new().expect("shm"));
    let [one, two] = [0, 1].map(|_| shm.endpoint(LAYOUT).expect("endpoint"));
    let (one_at, two_at) = (one.address().clone(), two.address().clone());
    let name = name_of(&one_at);
    let mut callers = Vec::new();
    for piece in input.iter().take(200) {
        let [what, bytes @ ..] = piece.as_slice() else { continue };
        match what % 3 {
            0 | 1 => {
                let Ok(mut caller) = UnixStream::connect_addr(&name) else { continue };
                caller.set_nonblocking(true).expect("nonblocking");
                let _ = caller.write(bytes);
                callers.push(caller);
            }
            _ => drop(callers.pop()),
        }
        shm.desk.serve();
    }
    seen.note(callers.len().min(130));
    drop(join([(one, two_at), (two, one_at)]));
    for caller in &mut callers {
        let mut answer = [0; 64];
        let got = caller.read(&mut answer).map_err(|error| error.kind());
        assert!(!matches!(got, Ok(1..)), "a stranger got an answer");
        seen.note(got);
    }
    drop(callers);
    shm.desk.serve();
}

#[test]
fn callers_get_nothing_and_keep_nobody_out() {
    let target = target("shm-callers", "-p consort-transports --lib shm::fuzz::callers", 4_000);
    let call = |bytes: &[u8]| [&[0][..], bytes].concat();
    let originals = vec![
        vec![call(&[1; NONCE_BYTES])],
        vec![call(&[1; NONCE_BYTES - 1]), call(&[]), vec![2]],
        vec![call(&[7; 200]); 3],
        vec![call(&[]); 140],
    ];
    fuzz(&target, originals, callers);
}

/// Memory that a peer may hand over.
fn file(what: u8, nonce: &[u8; NONCE_BYTES]) -> Option<OwnedFd> {
    let bytes = Segment::bytes(LAYOUT, "shm").ok()?;
    let file = memfd_create(HANDED, MFdFlags::MFD_ALLOW_SEALING | MFdFlags::MFD_CLOEXEC).ok()?;
    let size = match what & 3 {
        0 | 1 => bytes,
        2 => bytes / 2,
        _ => bytes * 3,
    };
    ftruncate(&file, size as i64).ok()?;
    let header = if what & 4 == 0 { [&b"consort1"[..], nonce].concat() } else { vec![what; 24] };
    nix::sys::uio::pwrite(&file, &header, 0).ok()?;
    let seals = match what >> 3 & 3 {
        0 | 1 => SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW,
        2 => SealFlag::empty(),
        _ => SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_FUTURE_WRITE,
    };
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).ok()?;
    match what >> 5 {
        // No memory at all.
        6 => std::fs::File::open("/dev/null").ok().map(OwnedFd::from),
        7 => UnixStream::pair().ok().map(|(one, _)| one.into()),
        _ => Some(file),
    }
}

/// A listener that answers with any bytes and any descriptors; the first piece changes the address that leads there.
fn answers(input: &Input, seen: &mut Seen) {
    static SHM: OnceLock<(Shm, UnixListener, [u8; NONCE_BYTES])> = OnceLock::new();
    let (shm, listener, name) = SHM.get_or_init(|| {
        let name = crate::segment::nonce("shm").expect("randomness");
        let address = Address { transport: "shm".into(), bytes: name.to_vec() };
        let listener = UnixListener::bind_addr(&name_of(&address)).expect("bind");
        listener.set_nonblocking(true).expect("nonblocking");
        (Shm::new().expect("shm"), listener, name)
    });
    // One test at a time: they have one listener.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let before = descriptors();
    let (nonce, bytes) = ([3; NONCE_BYTES], Segment::bytes(LAYOUT, "shm").expect("bytes") as u64);
    let endpoint = shm.endpoint(LAYOUT).expect("endpoint");
    let mut address = [&name[..], &nonce, &bytes.to_le_bytes()].concat();
    let mut pieces = input.iter();
    for (byte, change) in address[NONCE_BYTES..].iter_mut().zip(pieces.next().into_iter().flatten()) {
        *byte ^= change;
    }
    let shown: [u8; NONCE_BYTES] = address[NONCE_BYTES..2 * NONCE_BYTES].try_into().expect("a nonce");
    let connecting = endpoint.connect(&Address { transport: "shm".into(), bytes: address });
    let mut callers = Vec::new();
    if let Ok(mut connecting) = connecting {
        let begun = Instant::now();
        for _ in 0..64 {
            match connecting.poll() {
                Ok(Poll::Ready(_)) => panic!("connected although this side's memory was not fetched"),
                Err(error) => {
                    seen.note_text(&error.to_string());
                    break;
                }
                Ok(Poll::Pending) => {}
            }
            while let Ok((caller, _)) = listener.accept() {
                let [what, count, rest @ ..] = pieces.next().map_or(&[][..], Vec::as_slice) else { continue };
                let files: Vec<OwnedFd> = (0..count % 6).filter_map(|_| file(*what, &shown)).collect();
                let raw: Vec<RawFd> = files.iter().map(AsRawFd::as_raw_fd).collect();
                let rights = [ControlMessage::ScmRights(&raw)];
                let bytes = if rest.is_empty() { &HANDOVER[..] } else { rest };
                let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
                let rights = if raw.is_empty() { &[][..] } else { &rights[..] };
                let sent = sendmsg::<()>(caller.as_raw_fd(), &[IoSlice::new(bytes)], rights, flags, None);
                seen.note((raw.len(), sent.is_ok()));
                callers.push(caller);
            }
            if pieces.len() == 0 {
                callers.clear();
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "a caller does not give up");
    } else if let Err(error) = connecting {
        assert!(matches!(error, TransportError::BadAddress { .. }));
    }
    drop(callers);
    while listener.accept().is_ok() {}
    shm.desk.serve();
    let after = descriptors();
    assert!(after <= before, "{before} descriptors before, {after} afterwards");
}

#[test]
fn whatever_a_peers_listener_hands_over_is_checked() {
    let target = target("shm-answer", "-p consort-transports --lib shm::fuzz::whatever", 3_000);
    let mut originals = vec![vec![vec![]], vec![vec![], vec![0, 0]], vec![vec![0; 16]], vec![vec![1]]];
    for what in [0, 2, 3, 4, 16, 24, 192, 224] {
        for count in [1, 2, 3, 5] {
            originals.push(vec![vec![], vec![what, count]]);
        }
    }
    originals.push([vec![vec![]], vec![vec![0, 1, 9]; 6]].concat());
    fuzz(&target, originals, answers);
}

/// More descriptors than one: those for which there was no room stayed open.
#[test]
fn descriptors_that_nobody_asked_for_are_closed() {
    let input = crate::fuzzing::parse(".0003").expect("an input");
    answers(&input, &mut Seen::default());
}

/// A peer that stores what it likes wherever it can.
fn stores(input: &Input, seen: &mut Seen) {
    static SHM: OnceLock<Shm> = OnceLock::new();
    let shm = SHM.get_or_init(|| Shm::new().expect("shm"));
    let mapping = Mapping::memfd(c"fuzz", Segment::bytes(LAYOUT, "shm").expect("bytes")).expect("memory");
    let other = Mapping::from_fd(mapping.fd().expect("a file"), mapping.bytes()).expect("mapped");
    let segment = Segment::create(other, &[1; NONCE_BYTES]);
    let [honest, _peer] = pair(shm);
    drop(honest);
    let stamp = std::sync::Arc::clone(&shm.stamp);
    let own = Segment::create(Mapping::anonymous(mapping.bytes()).expect("memory"), &[2; NONCE_BYTES]);
    // The peer has both segments; this side looks at one and stores into the other.
    let own_memory = own.share();
    let mut connection =
        crate::mapped::MappedConnection::new("shm", crate::mapped::OwnSegment::new(own, stamp), segment);
    for piece in input {
        let [at, to, bytes @ ..] = piece.as_slice() else { continue };
        let start = usize::from(u16::from_le_bytes([*at, *to & 0x0f])).min(mapping.bytes());
        let bytes = &bytes[..bytes.len().min(mapping.bytes() - start)];
        mapping.span(start, bytes.len()).copy_from(Span::of(bytes));
        if let Some(value) = bytes.first_chunk::<8>() {
            // What goes back or wraps cannot be said with `raise` in a debug build.
            let value = u64::from_le_bytes(*value);
            let counter = own_memory.counter(CounterKind::Ready);
            if value > counter.value() {
                counter.raise(value, value.rotate_left(7));
            }
        }
        for kind in [CounterKind::Ready, CounterKind::Credit] {
            let value = connection.counter(kind).value();
            let _ =
                (connection.counter(kind).tag(value), connection.counter(kind).tag(value.wrapping_add(1)));
            seen.note((value.leading_zeros(), connection.peer_counter(kind).is_some()));
        }
        let (state, put) = (connection.progress(), connection.put(start, Span::of(bytes), &mut 0));
        seen.note((state.is_ok_and(|state| state == crate::PeerState::Open), put.is_ok()));
        let remote = connection.remote();
        assert_eq!((remote.bytes, connection.mailbox().len()), (LAYOUT.mailbox_bytes, LAYOUT.mailbox_bytes));
    }
    let _ = mapping.fd().map(|file| file.as_fd().as_raw_fd());
}

#[test]
fn a_peer_that_stores_anything_changes_no_bounds() {
    let target = target("shm-stores", "-p consort-transports --lib shm::fuzz::a_peer", 4_000);
    let store = |at: u16, bytes: &[u8]| [&at.to_le_bytes()[..], bytes].concat();
    let originals = vec![
        vec![store(0, &[0; 24]), store(64, &1u64.to_le_bytes())],
        vec![store(128, &u64::MAX.to_le_bytes()), store(128, &1u64.to_le_bytes()), store(192, &[255; 64])],
        vec![store(128, &3u64.to_le_bytes()), store(128, &2u64.to_le_bytes()), store(4000, &[1; 96])],
    ];
    fuzz(&target, originals, stores);
}
