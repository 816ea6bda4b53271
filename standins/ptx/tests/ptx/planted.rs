//! Mistakes planted in small kernels and in what they are given: each must be found, and the right ones are clean.

use consort_standin_ptx::check::Checked;
use consort_standin_ptx::{Divergence, Module, Options, Problem, run};

use crate::support::records::{Record, launch};
use crate::support::{Wrong, clean, found, race};

const BASIC: &str = include_str!("kernels/basic.ptx");
const SIGNALS: &str = include_str!("kernels/signals.ptx");

/// `text` with the `nth` occurrence of `old` in kernel `kernel` replaced.
fn planted(text: &str, kernel: &str, old: &str, nth: usize, new: &str) -> Module {
    let start = text.find(&format!(".entry {kernel}(")).expect("the kernel");
    let (at, _) = text[start..].match_indices(old).nth(nth).expect("an occurrence");
    let at = start + at;
    Module::parse(&format!("{}{new}{}", &text[..at], &text[at + old.len()..])).unwrap()
}

fn module(text: &str) -> Module {
    Module::parse(text).unwrap()
}

/// `copy16` of `count` words between allocations of `length` words, `skew` bytes into them.
fn copy(module: &Module, options: &Options, count: u64, length: usize, skew: u64) -> Result<(), Wrong> {
    let mut memory = Checked::new();
    let from = memory.allocate("from", vec![7; length * 16]);
    let to = memory.uninitialised("to", length * 16);
    let params = Record::new().u64(&[to + skew, from + skew, count]).0;
    run(&[launch(module, "copy16", 2, 32, &params, 0)], &mut memory, options)?;
    if memory.bytes(to) != vec![7; length * 16] {
        return Err(Wrong::Bytes("the copy"));
    }
    Ok(())
}

#[test]
fn bounds_and_alignment() {
    let module = module(BASIC);
    clean("a copy", 20, |options| copy(&module, &options, 100, 100, 0));
    let out = |problem: &Problem| matches!(problem, Problem::OutOfBounds { near: Some(near), bytes: 4 | 16, .. } if near.name == "from" && near.offset >= 1600);
    found("one word too many", 20, out, |options| copy(&module, &options, 101, 100, 0));
    let misaligned = |problem: &Problem| matches!(problem, Problem::Misaligned { bytes: 16, .. });
    found("a misaligned vector", 1, misaligned, |options| copy(&module, &options, 99, 100, 8));
}

#[test]
fn bytes_never_written() {
    let module = module(BASIC);
    let unwritten = |problem: &Problem| matches!(problem, Problem::Uninitialised { near: Some(near), .. } if near.name == "a" && near.offset == 40);
    found("one float that is missing", 20, unwritten, |options| {
        let mut memory = Checked::new();
        let a = memory.uninitialised("a", 44);
        memory.write(a, &[0; 40]);
        let b = memory.allocate("b", vec![0; 44]);
        let to = memory.uninitialised("to", 44);
        let params = Record::new().u64(&[to, a, b, 11]).0;
        Ok(run(&[launch(&module, "fold_f32", 1, 32, &params, 0)], &mut memory, &options).map(|_| ())?)
    });
}

fn reverse(module: &Module, options: &Options) -> Result<(), Wrong> {
    let mut memory = Checked::new();
    let data = memory.allocate("data", Record::new().u32(&(0..64).collect::<Vec<_>>()).0);
    let params = data.to_le_bytes();
    let mut launch = launch(module, "reverse", 1, 64, &params, 0);
    launch.dynamic_shared_bytes = 256;
    run(&[launch], &mut memory, options)?;
    if memory.bytes(data) != Record::new().u32(&(0..64).map(|i| 3 * (63 - i)).collect::<Vec<_>>()).0 {
        return Err(Wrong::Bytes("the data"));
    }
    Ok(())
}

#[test]
fn barriers() {
    let right = module(BASIC);
    clean("reverse", 30, |options| reverse(&right, &options));
    let missing = planted(BASIC, "reverse", "bar.sync \t0;", 0, "");
    let unordered =
        |problem: &Problem| matches!(problem, Problem::Race { .. } | Problem::Uninitialised { .. });
    found("a barrier that is missing", 20, unordered, |options| reverse(&missing, &options));
}

#[test]
fn divergence() {
    // `%p` is declared first: the kernel has no predicate of its own.
    let with = |what: &str| {
        let text = BASIC.replacen("// demoted variable", ".reg .pred %p;", 1);
        planted(&text, "reverse", "bar.sync \t0;", 0, &format!("setp.eq.s32 %p, %r1, 5; {what}"))
    };
    let diverged = |why: Divergence| move |problem: &Problem| matches!(problem, Problem::Divergence { why: found, .. } if *found == why);
    let ends = with("@%p exit; bar.sync 0;");
    found("a thread that ends", 20, diverged(Divergence::Ended), |options| reverse(&ends, &options));
    let elsewhere = with("@%p bar.sync 1; @!%p bar.sync 0;");
    found("a thread that waits elsewhere", 20, diverged(Divergence::Elsewhere), |options| {
        reverse(&elsewhere, &options)
    });
    let twice = with("@%p bar.sync 0; @!%p bar.sync 0;");
    found("two instructions of a warp", 20, diverged(Divergence::Instruction), |options| {
        reverse(&twice, &options)
    });
}

/// Sender and receiver of `signals.cu`, on two devices.
fn signals(module: &Module, options: &Options) -> Result<(), Wrong> {
    let mut memory = Checked::new();
    let (words, rounds) = (40u32, 3u32);
    let slot = memory.uninitialised("slot", 160);
    let (posted, credit) = (memory.allocate("posted", vec![0; 8]), memory.allocate("credit", vec![0; 8]));
    let out = memory.uninitialised("out", (words * rounds * 4) as usize);
    let send = Record::new().u64(&[slot, posted, credit]).u32(&[words, rounds]).0;
    let receive = Record::new().u64(&[slot, posted, credit, out]).u32(&[words, rounds]).0;
    let launches =
        [launch(module, "sender", 1, 64, &send, 0), launch(module, "receiver", 1, 64, &receive, 1)];
    run(&launches, &mut memory, options)?;
    let expected: Vec<u32> = (0..rounds).flat_map(|r| (0..words).map(move |i| r * 1000 + i)).collect();
    if memory.bytes(out) != Record::new().u32(&expected).0 {
        return Err(Wrong::Bytes("what was received"));
    }
    Ok(())
}

#[test]
fn data_through_a_slot() {
    let right = module(SIGNALS);
    clean("signals", 100, |options| signals(&right, &options));
    let (acquire, release) = ("ld.acquire.sys", "st.release.sys");
    for (what, kernel, old, new) in [
        ("a post that does not release", "sender", release, "st.relaxed.sys"),
        ("a post that does not reach", "sender", release, "st.release.gpu"),
        ("a wait that does not acquire", "receiver", acquire, "ld.relaxed.sys"),
        ("a credit that does not release", "receiver", release, "st.relaxed.sys"),
        ("a credit that is not acquired", "sender", acquire, "ld.relaxed.sys"),
        ("a credit that does not reach", "receiver", release, "st.release.cta"),
    ] {
        let wrong = planted(SIGNALS, kernel, old, 0, new);
        found(what, 200, race, |options| signals(&wrong, &options));
    }
    for kernel in ["sender", "receiver"] {
        for nth in 0..2 {
            let wrong = planted(SIGNALS, kernel, "bar.sync \t0;", nth, "");
            found("a barrier that is missing", 200, |_| true, |options| signals(&wrong, &options));
        }
    }
    // The credit is looked at and not waited for.
    let ignored = planted(SIGNALS, "sender", "setp.lt.u64", 0, "setp.gt.u64");
    found("a credit ignored", 200, |_| true, |options| signals(&ignored, &options));
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let wrong = planted(SIGNALS, "sender", "st.release.sys", 0, "st.relaxed.sys");
    for seed in 0..5 {
        let twice = [0, 1].map(|_| signals(&wrong, &Options::seeded(seed)).unwrap_err().to_string());
        assert_eq!(twice[0], twice[1]);
    }
}

#[test]
fn packets_that_are_torn() {
    // The receiver looks at both flags; one that looks at one only takes data before they are there.
    let both = |options: &Options, module: &Module| -> Result<(), Wrong> {
        let mut memory = Checked::new();
        let values: Vec<u64> = (1..40).map(|i| i * 0x1_0000_0007).collect();
        let from = memory.allocate("from", Record::new().u64(&values).0);
        let packets = memory.allocate("packets", vec![0; values.len() * 16]);
        let to = memory.uninitialised("to", values.len() * 8);
        let n = values.len() as u32;
        let send = Record::new().u64(&[packets, from]).u32(&[n, 1]).0;
        let receive = Record::new().u64(&[to, packets]).u32(&[n, 1]).0;
        let launches = [
            launch(module, "packets_receive", 1, 32, &receive, 1),
            launch(module, "packets_send", 1, 32, &send, 0),
        ];
        run(&launches, &mut memory, options)?;
        if memory.bytes(to) != Record::new().u64(&values).0 {
            return Err(Wrong::Bytes("what was received"));
        }
        Ok(())
    };
    let module = module(SIGNALS);
    clean("whole packets", 50, |options| both(&Options { tear: false, ..options }, &module));
    // Four elements of a vector come in any order: two flags do not vouch for two words.
    found("packets of four words", 100, |_| false, |options| both(&options, &module));
}
