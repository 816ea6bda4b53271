//! Litmus tests of the memory model: what it leaves unordered is reported as a race, and nothing else is.
//!
//! Each is a few lines of PTX a thread. `x` is the data, `y` and `z` are flags. A thread is a launch of one thread
//! of its own, so that "where" says at which scope threads reach each other.
//! `CONSORT_PTX_SEEDS=n` tries n schedules where nothing may be found.

use consort_standin_ptx::check::Checked;
use consort_standin_ptx::{Fault, Launch, Module, Options, Statistics, run};

use crate::support::{clean, found, race};

/// How far threads are from each other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Where {
    /// Of one block.
    Block,
    /// Of blocks of one device.
    Device,
    /// Of devices.
    Devices,
}

/// Waits until the flag has the value 1, loading it as `load` says.
fn wait(load: &str, flag: &str, label: &str) -> String {
    wait_for(load, flag, label, 1)
}

fn wait_for(load: &str, flag: &str, label: &str, value: u32) -> String {
    format!("{label}: {load} %r1, [%{flag}]; setp.ne.u32 %p1, %r1, {value}; @%p1 bra {label};\n")
}

/// A kernel for each thread, and one of all threads as one block.
fn module(threads: &[&str]) -> Module {
    let head = ".version 8.0\n.target sm_80\n.address_size 64\n";
    let start = "(.param .u64 px, .param .u64 py, .param .u64 pz)\n{\n.reg .b32 %r<8>; .reg .b64 %x, %y, %z; .reg .pred %p<8>;\n\
                 ld.param.u64 %x, [px]; ld.param.u64 %y, [py]; ld.param.u64 %z, [pz];\n";
    let mut text = head.to_owned();
    let mut together = format!(".visible .entry all{start}mov.u32 %r0, %tid.x;\n");
    for (t, body) in threads.iter().enumerate() {
        text += &format!(".visible .entry t{t}{start}{body}ret;\n}}\n");
        together += &format!("setp.ne.u32 %p0, %r0, {t};\n@%p0 bra after{t};\n{body}after{t}:\n");
    }
    text += &together;
    text += "ret;\n}\n";
    Module::parse(&text).unwrap_or_else(|error| panic!("{error} in\n{text}"))
}

fn once(module: &Module, threads: usize, place: Where, options: &Options) -> Result<Statistics, Fault> {
    let mut memory = Checked::new();
    let addresses = ["x", "y", "z"].map(|name| memory.allocate(name, vec![0; 16]));
    let params: Vec<u8> = addresses.iter().flat_map(|address| address.to_le_bytes()).collect();
    let launch = |name: &str, count, device| Launch {
        kernel: module.kernel(name).unwrap(),
        grid: [1; 3],
        block: [count, 1, 1],
        dynamic_shared_bytes: 0,
        params: &params,
        globals: 0,
        device,
    };
    let launches: Vec<Launch<'_>> = match place {
        Where::Block => vec![launch("all", threads as u32, 0)],
        Where::Device => (0..threads).map(|t| launch(&format!("t{t}"), 1, 0)).collect(),
        Where::Devices => (0..threads).map(|t| launch(&format!("t{t}"), 1, t as u32)).collect(),
    };
    run(&launches, &mut memory, options)
}

/// The threads race under some schedule.
#[track_caller]
fn races(what: &str, place: Where, threads: &[&str]) {
    let module = module(threads);
    found(what, 200, race, |options| Ok(once(&module, threads.len(), place, &options).map(|_| ())?));
}

/// They race under none.
#[track_caller]
fn ordered(what: &str, place: Where, threads: &[&str]) {
    let module = module(threads);
    clean(what, 200, |options| Ok(once(&module, threads.len(), place, &options).map(|_| ())?));
}

const DATA: &str = "st.global.u32 [%x], 7;\n";
const USE: &str = "ld.global.u32 %r2, [%x];\n";

/// Message passing with these two accesses to the flag.
fn passing(store: &str, load: &str) -> [String; 2] {
    [format!("{DATA}{store} [%y], 1;\n"), format!("{}{USE}", wait(load, "y", "again"))]
}

#[track_caller]
fn message(what: &str, place: Where, store: &str, load: &str, good: bool) {
    let [a, b] = passing(store, load);
    if good { ordered(what, place, &[&a, &b]) } else { races(what, place, &[&a, &b]) }
}

#[test]
fn message_passing() {
    let (release, acquire) = ("st.release.sys.global.u32", "ld.acquire.sys.global.u32");
    message("release and acquire", Where::Devices, release, acquire, true);
    message("no release", Where::Devices, "st.relaxed.sys.global.u32", acquire, false);
    message("no acquire", Where::Devices, release, "ld.relaxed.sys.global.u32", false);
    message("neither", Where::Block, "st.relaxed.sys.global.u32", "ld.relaxed.sys.global.u32", false);
    message("volatile", Where::Devices, "st.volatile.global.u32", "ld.volatile.global.u32", false);
    message("a weak flag", Where::Device, "st.global.u32", acquire, false);
    message("a weak poll", Where::Device, release, "ld.global.u32", false);
}

#[test]
fn message_passing_and_scopes() {
    let store = |scope: &str| format!("st.release.{scope}.global.u32");
    let load = |scope: &str| format!("ld.acquire.{scope}.global.u32");
    for (scope, place, good) in [
        ("gpu", Where::Device, true),
        ("gpu", Where::Devices, false),
        ("cta", Where::Block, true),
        ("cta", Where::Device, false),
        ("sys", Where::Devices, true),
    ] {
        message(scope, place, &store(scope), &load(scope), good);
    }
    message("only the release is wide", Where::Devices, &store("sys"), &load("gpu"), false);
    message("only the acquire is wide", Where::Devices, &store("gpu"), &load("sys"), false);
    message("another width", Where::Device, &store("gpu"), "ld.acquire.gpu.global.u16", false);
}

#[test]
fn message_passing_by_fences() {
    let fenced = |before: &str, after: &str| {
        let a = format!("{DATA}{before}\nst.relaxed.sys.global.u32 [%y], 1;\n");
        let b = format!("{}{after}\n{USE}", wait("ld.relaxed.sys.global.u32", "y", "again"));
        [a, b]
    };
    for (what, place, before, after, good) in [
        ("fences", Where::Devices, "fence.acq_rel.sys;", "fence.acq_rel.sys;", true),
        ("membar", Where::Devices, "membar.sys;", "membar.sys;", true),
        ("narrow fences", Where::Devices, "fence.acq_rel.gpu;", "fence.acq_rel.gpu;", false),
        ("narrow fences nearby", Where::Device, "fence.acq_rel.gpu;", "membar.gl;", true),
        ("a narrow membar", Where::Device, "membar.cta;", "membar.gl;", false),
        ("one fence", Where::Devices, "fence.acq_rel.sys;", "", false),
        ("the other fence", Where::Devices, "", "fence.acq_rel.sys;", false),
    ] {
        let [a, b] = fenced(before, after);
        if good { ordered(what, place, &[&a, &b]) } else { races(what, place, &[&a, &b]) }
    }
    // A fence on one side meets an acquire on the other.
    let [a, _] = fenced("fence.acq_rel.sys;", "");
    let [_, b] = passing("", "ld.acquire.sys.global.u32");
    ordered("a fence and an acquire", Where::Devices, &[&a, &b]);
    // A fence before the data is none between data and flag.
    let a = format!("fence.acq_rel.sys;\n{DATA}st.relaxed.sys.global.u32 [%y], 1;\n");
    races("a fence too early", Where::Devices, &[&a, &b]);
    // A release goes on through a later relaxed store of the same thread to the same place.
    let a = format!("{DATA}st.release.sys.global.u32 [%y], 2;\nst.relaxed.sys.global.u32 [%y], 1;\n");
    ordered("a release and a store after it", Where::Devices, &[&a, &b]);
}

#[test]
fn the_flag_before_the_data() {
    let a = format!("st.release.sys.global.u32 [%y], 1;\n{DATA}");
    let b = format!("{}{USE}", wait("ld.acquire.sys.global.u32", "y", "again"));
    races("flag before data", Where::Devices, &[&a, &b]);
}

#[test]
fn a_chain_of_three() {
    let first = format!("{DATA}st.release.sys.global.u32 [%y], 1;\n");
    let last = format!("{}{USE}", wait("ld.acquire.sys.global.u32", "z", "more"));
    let middle = |load: &str, store: &str| format!("{}{store} [%z], 1;\n", wait(load, "y", "again"));
    let good = middle("ld.acquire.sys.global.u32", "st.release.sys.global.u32");
    ordered("a chain", Where::Devices, &[&first, &good, &last]);
    let bad = middle("ld.relaxed.sys.global.u32", "st.release.sys.global.u32");
    races("a chain without its acquire", Where::Devices, &[&first, &bad, &last]);
    let bad = middle("ld.acquire.sys.global.u32", "st.relaxed.sys.global.u32");
    races("a chain without its release", Where::Devices, &[&first, &bad, &last]);
}

#[test]
fn a_chain_of_atomics() {
    let first = format!("{DATA}st.release.sys.global.u32 [%y], 1;\n");
    let last = format!("{}{USE}", wait_for("ld.acquire.sys.global.u32", "y", "more", 3));
    let gate = wait("ld.relaxed.sys.global.u32", "y", "again");
    let atomic = format!("{gate}atom.relaxed.sys.global.add.u32 %r3, [%y], 2;\n");
    ordered("the release goes on through an atomic", Where::Devices, &[&first, &atomic, &last]);
    let red = format!("{gate}red.relaxed.sys.global.add.u32 [%y], 2;\n");
    ordered("and through a reduction", Where::Devices, &[&first, &red, &last]);
    let store = format!("{gate}st.relaxed.sys.global.u32 [%y], 3;\n");
    races("but not through a store", Where::Devices, &[&first, &store, &last]);
    let narrow = format!("{gate}atom.relaxed.gpu.global.add.u32 %r3, [%y], 2;\n");
    races("nor through a narrow atomic", Where::Devices, &[&first, &narrow, &last]);
}

#[test]
fn store_and_load_buffering_and_independent_reads() {
    // No value that these can return makes a race of strong accesses.
    let st = |place: &str| format!("st.relaxed.sys.global.u32 [%{place}], 1;\n");
    let ld = |place: &str| format!("ld.relaxed.sys.global.u32 %r2, [%{place}];\n");
    let two = |a: String, b: String| a + &b;
    ordered("store buffering", Where::Devices, &[&two(st("x"), ld("y")), &two(st("y"), ld("x"))]);
    ordered("load buffering", Where::Devices, &[&two(ld("x"), st("y")), &two(ld("y"), st("x"))]);
    let readers = [two(ld("x"), ld("y")), two(ld("y"), ld("x"))];
    ordered("independent reads", Where::Devices, &[&st("x"), &st("y"), &readers[0], &readers[1]]);
    let weak = "st.global.u32 [%x], 1;\n".to_owned();
    races("store buffering, one weak", Where::Devices, &[&two(weak, ld("y")), &two(st("y"), ld("x"))]);
    let narrow = "st.relaxed.gpu.global.u32 [%x], 1;\n".to_owned();
    races("store buffering, one narrow", Where::Devices, &[&two(narrow, ld("y")), &two(st("y"), ld("x"))]);
}

#[test]
fn what_was_observed_comes_before_what_follows() {
    let a = "st.relaxed.sys.global.u32 [%x], 1;\n";
    let b = format!("{}st.global.u32 [%x], 2;\n", wait("ld.relaxed.sys.global.u32", "x", "again"));
    ordered("a weak store after an observation", Where::Devices, &[a, &b]);
    // But nothing that came before what was observed.
    let a = format!("{DATA}st.relaxed.sys.global.u32 [%y], 1;\n");
    let b = format!("{}st.global.u32 [%x], 2;\n", wait("ld.relaxed.sys.global.u32", "y", "again"));
    races("a weak store after observing another", Where::Devices, &[&a, &b]);
}

#[test]
fn fences_of_one_order() {
    // Whichever fence comes first, what is before it is before what is after the other; the flag is only looked at.
    let a = format!("{DATA}fence.sc.sys;\nst.relaxed.sys.global.u32 [%y], 1;\n");
    let b = format!("{}fence.sc.sys;\n{USE}", wait("ld.relaxed.sys.global.u32", "y", "again"));
    ordered("fence.sc", Where::Devices, &[&a, &b]);
    let a = format!("{DATA}fence.sc.gpu;\nst.relaxed.sys.global.u32 [%y], 1;\n");
    races("a narrow fence.sc", Where::Devices, &[&a, &b]);
}

#[test]
fn barriers_order_a_block() {
    let a = format!("{DATA}bar.sync 0;\n");
    let b = format!("bar.sync 0;\n{USE}");
    // The two come to the barrier by different instructions: allowed for unaligned ones.
    let unaligned = |text: &str| text.replace("bar.sync", "barrier.sync");
    ordered("a barrier", Where::Block, &[&unaligned(&a), &unaligned(&b)]);
    let late = format!("barrier.sync 0;\n{DATA}");
    races("data after the barrier", Where::Block, &[&late, &unaligned(&b)]);
    let arrive = format!("{DATA}barrier.arrive 2, 2;\n");
    // Arrivals release and do not acquire.
    let two = |text: &str| text.replace("bar.sync 0", "barrier.sync 2, 2");
    ordered("an arrival", Where::Block, &[&arrive, &two(&b)]);
    let backwards = format!("barrier.arrive 2, 2;\n{USE}");
    let other = format!("{DATA}barrier.sync 2, 2;\n");
    races("an arrival does not acquire", Where::Block, &[&backwards, &other]);
    races(
        "another barrier",
        Where::Block,
        &[&a.replace("bar.sync 0", "barrier.sync 3, 1"), &two(&b).replace("2, 2", "4, 1")],
    );
}

/// Chance may leave out for long the one thread that can go on. All threads get their turns before a run counts as a
/// deadlock.
#[test]
fn a_thread_that_is_left_out_for_long_is_no_deadlock() {
    let works = "mov.u32 %r2, 0;\nwork: add.u32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, 12; @%p2 bra work;\n\
                 st.release.sys.global.u32 [%y], 1;\n";
    let waits = wait("ld.acquire.sys.global.u32", "y", "again");
    let module = module(&[works, &waits]);
    clean("a thread at work", 2_000, |options| {
        // Some 40 instructions of work, with room for 100 before the run is called stalled.
        once(&module, 2, Where::Devices, &Options { stall: 100, ..options })?;
        Ok(())
    });
}
