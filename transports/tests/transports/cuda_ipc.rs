//! Arenas of one process and of two, on whatever `libcuda.so.1` the loader finds: NVIDIA's on a GPU, or the stand-in
//! (`standins/cuda`) by `LD_LIBRARY_PATH`. Where there is none, each test says so and does nothing.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::task::Poll;
use std::time::{Duration, Instant};

use consort_cuda::{Context, CudaErrorCause, DeviceSpan, Driver, Stream, StreamRef};
use consort_transports::cuda_ipc::{self, Arena, How, PeerArena, Probe};
use consort_transports::{MemoryLender, Shm, TransportError};

use crate::child::{name_of, program_for};

const BYTES: usize = 3 << 20;
/// Where in an arena a peer's pattern goes.
const TESTED: (usize, usize) = (1 << 20, 8192);
const GIVEN: &str = "CONSORT_TEST_GIVEN";

fn skip(why: &str) {
    let _ = std::io::stderr().write_all(format!("SKIP: {why}\n").as_bytes());
}

/// The primary context of a device; of the last one, if there are fewer.
fn context(ordinal: u32) -> Option<Context> {
    let driver = match Driver::of_process() {
        Ok(driver) => driver,
        Err(reason) => {
            skip(&format!("no CUDA driver to test ({reason})"));
            return None;
        }
    };
    match Context::primary(ordinal.min(driver.devices() - 1)) {
        Ok(context) => Some(context),
        Err(error) => {
            assert_eq!(error.cause, CudaErrorCause::Missing, "{error}");
            skip(&format!("no CUDA driver to test ({error})"));
            None
        }
    }
}

fn tested(span: DeviceSpan) -> DeviceSpan {
    span.slice(TESTED.0, TESTED.1)
}

fn filled(context: &Context, span: DeviceSpan) -> Option<u8> {
    let mut bytes = vec![0; span.len()];
    context.copy_to_host(&mut bytes, span).expect("readable");
    bytes.iter().all(|byte| *byte == bytes[0]).then_some(bytes[0])
}

/// An arena, unless the driver cannot share memory so.
fn arena(context: &Context, how: How<'_>) -> Option<Arena> {
    match Arena::new(context, BYTES, how) {
        Ok(arena) => {
            assert_eq!((arena.bytes(), arena.span().len()), (BYTES, BYTES));
            assert_eq!(filled(context, arena.span()), Some(0));
            assert!(arena.offer().len() <= 256);
            Some(arena)
        }
        Err(error) if error.is_unsupported() => {
            skip(&format!("memory is not shared by {} here ({error})", name(how)));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// A step of the self-test, to its end.
fn over(step: Result<Probe, TransportError>) -> Result<(), TransportError> {
    let (mut probe, begun) = (step?, Instant::now());
    while probe.poll()?.is_pending() {
        assert!(begun.elapsed() < Duration::from_secs(20), "not over in 20 s");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn write_pattern(stream: &StreamRef, to: DeviceSpan, seed: u64) -> Result<(), TransportError> {
    over(cuda_ipc::write_pattern(stream, to, seed))
}

fn check_pattern(stream: &StreamRef, own: DeviceSpan, seed: u64) -> Result<(), TransportError> {
    over(cuda_ipc::check_pattern(stream, own, seed))
}

fn opened(context: &Context, offer: &[u8], shm: &Shm) -> Result<PeerArena, TransportError> {
    let begun = Instant::now();
    let mut opening = PeerArena::open(context, offer, shm)?;
    loop {
        if let Poll::Ready(arena) = opening.poll()? {
            assert!(opening.poll().is_err(), "it was given away");
            return Ok(arena);
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "not opened in 20 s");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_arena_of_the_same_process_is_reached_by_its_address() {
    let Some(here) = context(0) else { return };
    let there = context(1).expect("a device");
    let shm = Shm::new().expect("shm");
    for how in [How::Process, How::Legacy, How::Shareable(&shm)] {
        let Some(arena) = arena(&here, how) else { continue };
        let peer = match opened(&there, &arena.offer(), &shm) {
            Ok(peer) => peer,
            Err(error @ TransportError::NoPeerAccess { .. }) => {
                assert!(!there.device().can_access(here.device()).expect("an answer"));
                skip(&format!("two devices do not reach each other: {error}"));
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        assert!(peer.is_of_this_process());
        assert_eq!(
            (peer.address(), peer.bytes(), peer.process_id()),
            (arena.address(), BYTES, std::process::id())
        );
        let streams = [&here, &there].map(|context| context.create_stream().expect("a stream"));
        write_pattern(&streams[1], tested(peer.span()), 9).expect("written");
        check_pattern(&streams[0], tested(arena.span()), 9).expect("the pattern");
        // The memory stays while a peer of this process has it, and no process comes to it any more.
        let offer = arena.offer();
        drop(arena);
        check_pattern(&streams[1], tested(peer.span()), 9).expect("the pattern");
        let gone = opened(&there, &offer, &shm).expect_err("the arena is gone");
        assert!(matches!(gone, TransportError::PeerClosed { .. }), "{gone}");
    }
}

#[test]
fn a_pattern_that_is_not_there_is_a_lie() {
    let Some(context) = context(0) else { return };
    let arena = arena(&context, How::Process).expect("memory");
    let stream = context.create_stream().expect("a stream");
    let lie = |seed| match check_pattern(&stream, tested(arena.span()), seed) {
        Err(TransportError::SelfTest { at, expected, found, transport: "cuda-ipc" }) => (at, expected, found),
        other => panic!("{other:?}"),
    };
    assert_eq!(lie(1).2, 0, "nothing was written");
    write_pattern(&stream, tested(arena.span()), 1).expect("written");
    check_pattern(&stream, tested(arena.span()), 1).expect("the pattern");
    lie(2);
    let mut byte = [0];
    let last = tested(arena.span()).slice(TESTED.1 - 1, 1);
    context.copy_to_host(&mut byte, last).expect("readable");
    context.fill(last, byte[0] ^ 0x10).expect("writable");
    assert_eq!(lie(1), (TESTED.1 - 1, byte[0], byte[0] ^ 0x10));
    let text = check_pattern(&stream, tested(arena.span()), 1).expect_err("a lie").to_string();
    assert!(text.contains("at byte 8191"), "{text}");
}

#[test]
fn what_is_no_offer_is_refused() {
    let Some(context) = context(0) else { return };
    let shm = Shm::new().expect("shm");
    for bytes in [&b""[..], b"csa1", &[0; 100], &[0xff; 256]] {
        let error = PeerArena::open(&context, bytes, &shm).expect_err("no offer");
        assert!(matches!(error, TransportError::BadAddress { .. }), "{error}");
    }
    // Another process's, as it looks from here; that desk is empty, and the handle leads nowhere.
    for how in [How::Legacy, How::Shareable(&shm)] {
        let Some(arena) = arena(&context, how) else { continue };
        let mut offer = arena.offer();
        offer[4..20].fill(0x5a);
        let after = offer.len() - 40;
        offer[after..].iter_mut().for_each(|byte| *byte ^= 0x33);
        let error = opened(&context, &offer, &shm).expect_err("it has no owner");
        println!("{error}");
    }
    let mut offer = arena(&context, How::Process).expect("memory").offer();
    offer[4..20].fill(0x5a);
    let error = opened(&context, &offer, &shm).expect_err("for its own process");
    assert!(matches!(error, TransportError::BadAddress { .. }), "{error}");
}

/// The other process: a part of this program, spoken with in lines.
struct Other {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes_of(text: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("a digit");
    (0..text.len()).step_by(2).map(byte).collect()
}

impl Other {
    fn start(given: &str, variables: &[(&str, &str)]) -> Self {
        let mut command = program_for(name_of(the_other_process));
        command.arg("--ignored").env(GIVEN, given).envs(variables.iter().copied());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started");
        let (send, lines) = channel();
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        Self { input: child.stdin.take().expect("a pipe"), child, lines }
    }

    /// What the other process says after this word, while this one does something else.
    fn line(&self, word: &str, mut meanwhile: impl FnMut()) -> String {
        let begun = Instant::now();
        loop {
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "the other process did not say {word} in 20 s"
            );
            meanwhile();
            let Ok(line) = self.lines.recv_timeout(Duration::from_millis(1)) else { continue };
            // The test's name comes before the first.
            if let Some((_, rest)) = line.split_once(&format!("{word} ")) {
                return rest.to_owned();
            }
        }
    }

    fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("it listens");
    }

    fn ends_well(mut self) {
        let status = self.child.wait().expect("waited for");
        assert!(status.success(), "{status}");
    }
}

/// What the other process does: opens this arena, offers one, writes and looks.
#[test]
#[ignore = "the other process of other tests"]
fn the_other_process() {
    let Ok(given) = std::env::var(GIVEN) else { return };
    let [how, ordinal, offer] = given.split(' ').collect::<Vec<_>>()[..] else { panic!("{given}") };
    let context = context(ordinal.parse().expect("a number")).expect("as in the first process");
    let shm = Shm::new().expect("shm");
    let peer = match opened(&context, &bytes_of(offer), &shm) {
        Ok(peer) => peer,
        Err(error) => return println!("refused {error}"),
    };
    assert!(!peer.is_of_this_process() && peer.bytes() == BYTES);
    let how = if how == "legacy" { How::Legacy } else { How::Shareable(&shm) };
    let arena = arena(&context, how).expect("as in the first process");
    let stream = context.create_stream().expect("a stream");
    write_pattern(&stream, tested(peer.span()), 1).expect("written");
    println!("offer {}", hexadecimal(&arena.offer()));
    let (send, said) = channel();
    std::thread::spawn(move || send.send(std::io::stdin().lines().next()));
    let begun = Instant::now();
    while said.try_recv().is_err() {
        // The first process fetches the descriptor meanwhile.
        shm.desk().serve();
        assert!(begun.elapsed() < Duration::from_secs(20), "nothing was said in 20 s");
        std::thread::sleep(Duration::from_millis(1));
    }
    match check_pattern(&stream, tested(arena.span()), 2) {
        Ok(()) => println!("found 2"),
        Err(error) => println!("found {error}"),
    }
    // What the first process wrote into its own arena, loaded from here.
    match check_pattern(&stream, peer.span().slice(0, 4096), 3) {
        Ok(()) => println!("loaded 3"),
        Err(error) => println!("loaded {error}"),
    }
}

fn name(how: How<'_>) -> &'static str {
    match how {
        How::Process => "process",
        How::Legacy => "legacy",
        How::Shareable(_) => "shareable",
    }
}

/// Both sides write to the other and look; what this side found, and the other.
fn exchange(how: How<'_>, shm: &Shm, ordinals: [u32; 2], variables: &[(&str, &str)]) -> Option<[String; 3]> {
    let context = context(ordinals[0]).expect("a device");
    let arena = arena(&context, how)?;
    let given = format!("{} {} {}", name(how), ordinals[1], hexadecimal(&arena.offer()));
    let mut other = Other::start(&given, variables);
    let offer = bytes_of(&other.line("offer", || shm.desk().serve()));
    let stream: Stream = context.create_stream().expect("a stream");
    let found = match check_pattern(&stream, tested(arena.span()), 1) {
        Ok(()) => "1".to_owned(),
        Err(error) => error.to_string(),
    };
    write_pattern(&stream, arena.span().slice(0, 4096), 3).expect("written");
    let peer = opened(&context, &offer, shm).expect("opened");
    write_pattern(&stream, tested(peer.span()), 2).expect("written");
    other.say("done");
    let theirs = ["found", "loaded"].map(|word| other.line(word, || ()));
    other.ends_well();
    let [they_found, they_loaded] = theirs;
    Some([found, they_found, they_loaded])
}

#[test]
fn two_processes_write_to_each_others_arenas() {
    let Some(first) = context(0) else { return };
    let shm = Shm::new().expect("shm");
    let mut pairs = vec![[0, 0]];
    if first.driver().devices() > 1 {
        pairs.extend([[0, 1], [1, 0]]);
    } else {
        skip("one device only: two processes shared it, and none reached another's");
    }
    for ordinals in pairs {
        for how in [How::Legacy, How::Shareable(&shm)] {
            println!("devices {ordinals:?}, {}", name(how));
            let seen = exchange(how, &shm, ordinals, &[]);
            assert!(seen.is_none_or(|seen| seen == ["1", "2", "3"]));
        }
    }
}

/// Whether the driver is the stand-in, whose misbehaviour can be ordered, with more than one device.
fn misbehaves_to_order() -> bool {
    let Some(context) = context(0) else { return false };
    if !context.device().name.contains("stand-in") || context.driver().devices() < 2 {
        skip("not the stand-in with CONSORT_STANDIN_DEVICES=2: no device lies here to order");
        return false;
    }
    true
}

#[test]
fn a_device_that_only_says_that_it_reaches_another_is_found_out() {
    if !misbehaves_to_order() {
        return;
    }
    let shm = Shm::new().expect("shm");
    for how in [How::Legacy, How::Shareable(&shm)] {
        let seen = exchange(how, &shm, [0, 1], &[("CONSORT_STANDIN_PEERS", "lie")]);
        let [found, they_found, they_loaded] = seen.expect("memory");
        println!("{found}\n{they_found}\n{they_loaded}");
        let failed = "the self-test of peer access failed: at byte 0";
        assert!(found.contains(failed), "what the other wrote did not come here: {found}");
        assert_eq!(they_found, "2", "this side does not lie");
        assert!(they_loaded.contains(failed), "the other loads a copy of its own: {they_loaded}");
    }
}

#[test]
fn a_device_that_says_that_it_does_not_reach_another_is_not_asked_to() {
    if !misbehaves_to_order() {
        return;
    }
    let shm = Shm::new().expect("shm");
    let arena = arena(&context(0).expect("a device"), How::Legacy).expect("memory");
    let given = format!("legacy 1 {}", hexadecimal(&arena.offer()));
    let other = Other::start(&given, &[("CONSORT_STANDIN_PEERS", "none")]);
    let why = other.line("refused", || shm.desk().serve());
    assert!(why.contains("does not reach the memory of the device"), "{why}");
    other.ends_well();
}
