//! Resources that a communicator leaves, and the cost of a repeated call besides its work, seen from outside.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Instant;

use consort_tests::job::{PATIENCE, Start, alone};

use crate::RANK;

/// The system calls by which the library waits.
const WAITING: [&str; 3] = ["sched_yield", "clock_nanosleep", "futex"];

#[test]
fn nothing_is_left_of_threads_descriptors_and_environment() {
    let _alone = alone();
    let mut job = Start::new(RANK, "rounds", 1).with("rounds", 50).env("CONSORT_TIMEOUT", 20).go();
    job.line(0, "clean");
    job.all_end_well();
}

#[test]
fn a_repeated_small_call_between_processes_allocates_nothing() {
    let _alone = alone();
    let mut job = Start::new(RANK, "allocations", 2).env("CONSORT_TIMEOUT", 30).go();
    for rank in 0..2 {
        assert_eq!(job.line(rank, "allocations "), "0", "in 1000 calls of rank {rank}, the best stretch");
    }
    job.all_end_well();
}

#[test]
fn the_first_call_of_a_size_plans_nothing_after_another_size_of_its_class() {
    let _alone = alone();
    let mut job = Start::new(RANK, "first-calls", 2).env("CONSORT_TIMEOUT", 30).go();
    for rank in 0..2 {
        let allocations = |line: &str| -> u64 { line.parse().expect("a number") };
        // One allocation stores the call itself, where it is short.
        for (size, most) in [(16, 1), (1000, 1), (16_384, 0), (250_001, 0), (1 << 20, 0)] {
            let count = allocations(&job.line(rank, &format!("first-{size} ")));
            assert!(count <= most, "{count} allocations in the first call of {size} elements, rank {rank}");
        }
        let fresh = allocations(&job.line(rank, "fresh "));
        println!("rank {rank}: {fresh} allocations in the first call of a communicator");
        assert!(fresh > 1, "{fresh} allocations where something had to be planned");
    }
    job.all_end_well();
}

#[test]
fn an_idle_communicator_is_small_and_says_so() {
    let _alone = alone();
    let mut job = Start::new(RANK, "idle", 2).with("many", 50).env("CONSORT_TIMEOUT", 30).go();
    for rank in 0..2 {
        let line = job.line(rank, "idle ");
        let (said, heap) = line.split_once(' ').expect("two numbers");
        println!("an idle communicator of rank {rank}: memory_bytes {said}, heap {heap}");
        let [said, heap]: [i64; 2] = [said, heap].map(|number| number.parse().expect("a number"));
        assert!(said > 0 && said < 100 << 10, "memory_bytes says {said}");
        assert!(heap < 100 << 10, "it takes {heap} bytes of heap");
        let used: i64 = job.line(rank, "used ").parse().expect("a number");
        assert!(used > said, "a used communicator says {used}, an idle one {said}");
    }
    job.all_end_well();
}

/// A stretch of 1000 all-reduces: the system calls of all threads of rank 0, by name.
type Stretch = BTreeMap<String, u32>;

/// The system calls of each of `stretches`, and whether no rank lost its core to another thread meanwhile.
fn system_calls(stretches: usize, transport: &str) -> Vec<(Stretch, bool)> {
    let file = std::env::temp_dir().join(format!("consort-strace-{}", std::process::id()));
    let path = file.display().to_string();
    let start = Start::new(RANK, "count", 2).with("stretches", stretches).env("CONSORT_TIMEOUT", 30);
    let start = start.env("CONSORT_TRANSPORT", transport);
    let mut job = start.wrapped(&["strace", "-f", "-o", &path]).go();
    job.all_end_well();
    let text = std::fs::read_to_string(&file).expect("the trace");
    let _ = std::fs::remove_file(&file);
    let (mut done, mut under_way) = (Vec::new(), None);
    for line in text.lines() {
        if line.contains("write(1, \"begin") {
            under_way = Some(Stretch::new());
        } else if line.contains("write(1, \"end") {
            done.extend(under_way.take());
        } else if let Some(stretch) = &mut under_way {
            // `1234 futex(0x..., ...) = 0`; a resumed call was counted when it began.
            let called = line.split_whitespace().nth(1).and_then(|call| call.split_once('('));
            if let Some((name, _)) = called {
                *stretch.entry(name.to_owned()).or_insert(0) += 1;
            }
        }
    }
    assert_eq!(done.len(), stretches, "marks in the trace:\n{text}");
    let mut lost =
        |rank| -> Vec<String> { job.said(rank, "lost ").into_iter().map(|(lost, _)| lost).collect() };
    let kept = std::iter::zip(lost(0), lost(1)).map(|(one, other)| one == "0" && other == "0");
    std::iter::zip(done, kept).collect()
}

/// Whether system calls can be counted; prints that where they cannot.
fn can_trace() -> bool {
    let tried = Command::new("strace").args(["-f", "-o", "/dev/null", "true"]).output();
    let can = tried.is_ok_and(|output| output.status.success());
    if !can {
        consort_tests::system::skip("strace is absent or may not trace here");
    }
    can
}

#[test]
fn a_small_call_over_tcp_sends_one_message() {
    let _alone = alone();
    if !can_trace() {
        return;
    }
    for (stretch, _) in system_calls(3, "tcp") {
        println!("{stretch:?}");
        // Bytes, their signal and the credit for the last ones: one message a call, in every case.
        let counted = |call: &str| stretch.get(call).copied().unwrap_or(0);
        let sent = counted("sendmsg") + counted("sendto");
        assert!((1000..1010).contains(&sent), "1000 calls sent {sent} messages: {stretch:?}");
    }
}

#[test]
fn a_repeated_small_call_makes_no_system_call() {
    let _alone = alone();
    if !can_trace() {
        return;
    }
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        consort_tests::system::skip("two ranks do not spin on one core");
        return;
    }
    // A rank whose core is taken makes its peer wait, which calls the system. The other stretches show the calls
    // alone. Where other programs have the cores nearly all the time the test tries again.
    let mut stretches = Vec::new();
    let until = Instant::now() + PATIENCE;
    while stretches.len() < 40 && Instant::now() < until {
        let kept = system_calls(400, "auto").into_iter().filter(|(_, kept)| *kept);
        stretches.extend(kept.map(|(stretch, _)| stretch));
    }
    let mut all = Stretch::new();
    for (name, count) in stretches.iter().flatten() {
        *all.entry(name.clone()).or_insert(0) += count;
    }
    let without = stretches.iter().filter(|stretch| stretch.is_empty()).count();
    println!("{without} of {} stretches without; in all {all:?}", stretches.len());
    assert!(stretches.len() >= 20, "both ranks kept their cores in {} stretches only", stretches.len());
    let work: u32 = all.iter().filter(|(name, _)| !WAITING.contains(&name.as_str())).map(|(_, n)| n).sum();
    assert!(work < 20, "system calls besides waiting: {all:?}");
    // The host below may take a core too, without a trace. System calls that calls make by themselves, even one in
    // four thousand, are in a quarter of the stretches and more.
    assert!(
        without > stretches.len() * 3 / 4,
        "calls make system calls: {without} of {} without",
        stretches.len()
    );
}

#[test]
fn a_rank_that_waits_long_inside_a_call_uses_hardly_any_core() {
    const LATE_MS: u64 = 1000;
    let _alone = alone();
    for (ranks, transport) in [(2, "auto"), (4, "auto"), (2, "tcp")] {
        let start = Start::new(RANK, "wait", ranks).with("late", LATE_MS as u32);
        let mut job = start.env("CONSORT_TIMEOUT", 60).env("CONSORT_TRANSPORT", transport).go();
        for rank in 0..ranks - 1 {
            for kind in ["short", "long", "message"] {
                let line = job.line(rank, &format!("wait-{kind} "));
                let numbers: Vec<u64> =
                    line.split(' ').map(|number| number.parse().expect("a number")).collect();
                let [cpu_us, wall_us] = numbers[..] else { panic!("two numbers in {line:?}") };
                println!(
                    "rank {rank} of {ranks} ({transport}), {kind}: {cpu_us} us of a core in {wall_us} us"
                );
                // It may leave the barrier later than the last rank, by the time for which its core was taken.
                assert!(wall_us > LATE_MS * 100, "it did not wait: {line}");
                // 10 ms without a limit, and a twentieth of the rest.
                let allowed_us = 10_000 + (wall_us - 10_000) / 20;
                assert!(cpu_us < allowed_us, "rank {rank} of {ranks}, {kind}: {cpu_us} us in {wall_us} us");
            }
        }
        job.all_end_well();
    }
}
