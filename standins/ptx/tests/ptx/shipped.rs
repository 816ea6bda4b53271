//! The kernels that consort ships, run by the interpreter in checked memory under many schedules; and the same with
//! one thing planted in their text or their plan, which must be found.
//!
//! Beside every rank a watcher runs, a thread of the host's as it were: it waits for the word `done` and then reads
//! all that the rank has written. `CONSORT_PTX_SEEDS=n` tries n schedules of each that must be clean.

use std::sync::LazyLock;

use consort_standin_ptx::check::Checked;
use consort_standin_ptx::{HostStore, Launch, Module, Options, Problem, run};

use miniz_oxide::inflate::decompress_to_vec_zlib;

use crate::support::records::{Record, Ring, element, floats, job, launch};
use crate::support::{Wrong, anything, clean, first, found, race};

macro_rules! images {
    ($($name:literal)*) => {
        [$(($name, include_bytes!(concat!("../../../../kernels/cuda/images/", $name, ".ptx.z")))),*]
    };
}

/// As they are committed: compressed.
static IMAGES: [(&str, &[u8]); 13] =
    images!["bf16" "copy" "f16" "f32" "f64" "f8e4m3" "f8e5m2" "i32" "i64" "i8" "u32" "u64" "u8"];
static F32: LazyLock<String> = LazyLock::new(|| text(IMAGES[3].1));

const FOLD: &str = "consort_fold_f32_sum";
const RUN: &str = "consort_run_f32_sum";
const ONE_SHOT: &str = "consort_oneshot_f32_sum";
const TWO_SHOT: &str = "consort_twoshot_f32_sum";

const BARRIER: &str = "bar.sync 0;";

/// Waits for `done` to be `sequence` and reads `bytes` bytes at `data`, or writes over them.
const WATCHER: &str = ".version 8.0\n.target sm_80\n.address_size 64\n
.visible .entry watch(.param .u64 done, .param .u64 data, .param .u64 bytes, .param .u64 sequence) {
    .reg .b64 %rd<8>; .reg .b32 %r<2>; .reg .pred %p;
    ld.param.u64 %rd0, [done]; ld.param.u64 %rd1, [data]; ld.param.u64 %rd2, [bytes]; ld.param.u64 %rd3, [sequence];
    add.s64 %rd2, %rd1, %rd2;
again: ld.acquire.sys.global.u64 %rd4, [%rd0]; setp.ne.u64 %p, %rd4, %rd3; @%p bra again;
more: ld.global.u32 %r0, [%rd1]; add.s64 %rd1, %rd1, 4; setp.lt.u64 %p, %rd1, %rd2; @%p bra more;
    ret;
}
.visible .entry overwrite(.param .u64 done, .param .u64 data, .param .u64 bytes, .param .u64 sequence) {
    .reg .b64 %rd<8>; .reg .b32 %r<2>; .reg .pred %p;
    ld.param.u64 %rd0, [done]; ld.param.u64 %rd1, [data]; ld.param.u64 %rd2, [bytes]; ld.param.u64 %rd3, [sequence];
    add.s64 %rd2, %rd1, %rd2; mov.u32 %r0, 0;
again: ld.acquire.sys.global.u64 %rd4, [%rd0]; setp.ne.u64 %p, %rd4, %rd3; @%p bra again;
more: st.global.u32 [%rd1], %r0; add.s64 %rd1, %rd1, 4; setp.lt.u64 %p, %rd1, %rd2; @%p bra more;
    ret;
}";

/// An image as it was before it was compressed.
fn text(compressed: &[u8]) -> String {
    String::from_utf8(decompress_to_vec_zlib(compressed).expect("a whole image")).expect("a text")
}

fn module(text: &str) -> Module {
    Module::parse(text).unwrap_or_else(|error| panic!("{error}"))
}

/// How a kernel's text begins.
const ENTRY: &str = ".visible .entry ";

/// The text of one kernel, which calls no function.
fn body(kernel: &str) -> &'static str {
    let start = F32.find(&format!("{ENTRY}{kernel}(")).expect("the kernel");
    let end = F32[start..].find("\n}\n").expect("its end") + start;
    &F32[start..end + 3]
}

/// A module of what all kernels share and of what `change` makes of one kernel's text.
fn changed(kernel: &str, change: impl FnOnce(&str) -> String) -> Module {
    let changed = change(body(kernel));
    assert_ne!(changed, body(kernel), "nothing was planted");
    let shared = &F32[..F32.find(ENTRY).expect("a kernel")];
    module(&format!("{shared}{changed}"))
}

fn replaced(kernel: &str, old: &str, new: &str) -> Module {
    changed(kernel, |text| text.replace(old, new))
}

/// Occurrences of `old` in a kernel's text.
fn count(kernel: &str, old: &str) -> usize {
    body(kernel).matches(old).count()
}

/// Replaces the `nth` occurrence of `old`, from 0.
fn nth(kernel: &str, old: &str, nth: usize, new: &str) -> Module {
    changed(kernel, |text| {
        let (at, _) = text.match_indices(old).nth(nth).expect("an occurrence");
        format!("{}{new}{}", &text[..at], &text[at + old.len()..])
    })
}

#[test]
fn every_image_parses() {
    for (name, compressed) in IMAGES {
        assert!(module(&text(compressed)).kernels().len() >= 2, "{name}");
    }
}

fn expected(ranks: usize, elements: usize) -> Vec<u8> {
    floats((0..elements).map(|i| (0..ranks).map(|r| element(r, i)).sum()))
}

/// Runs a rank's launches with a watcher of each, and looks at what they leave.
fn watched(
    memory: &mut Checked,
    launches: &[Launch<'_>],
    outputs: &[u64],
    done: &[u64],
    expected: &[u8],
    options: &Options,
) -> Result<(), Wrong> {
    let watcher = module(WATCHER);
    let params: Vec<Vec<u8>> = outputs
        .iter()
        .zip(done)
        .map(|(&output, &done)| Record::new().u64(&[done, output, expected.len() as u64, 5]).0)
        .collect();
    let mut all = launches.to_vec();
    all.extend(params.iter().map(|params| launch(&watcher, "watch", 1, 1, params, u32::MAX)));
    run(&all, memory, options)?;
    for &output in outputs {
        if memory.bytes(output) != expected {
            return Err(Wrong::Bytes("the output"));
        }
    }
    Ok(())
}

/// A fold of three sources into a target, all `skew` bytes off 256.
fn fold(module: &Module, skew: u64, options: &Options) -> Result<(), Wrong> {
    let (elements, sources) = (300, 3);
    let bytes = elements as u64 * 4;
    let mut memory = Checked::new();
    let mut places = Vec::new();
    for r in 0..sources {
        let mut data = vec![0; skew as usize];
        data.extend(floats((0..elements).map(|i| element(r, i))));
        places.push(memory.allocate(&format!("source {r}"), data) + skew);
    }
    let target = memory.uninitialised("target", (skew + bytes) as usize);
    memory.write(target, &vec![0; skew as usize]);
    let (done, left) = (memory.allocate("done", vec![0; 8]), memory.allocate("left", vec![0; 4]));
    let job = job(bytes, &[target + skew], &places);
    let params = Record::new().u64(&[0]).u32(&[1, 2]).u64(&[done, left, 5]).factors().u8(&job.0);
    let mut params = params.0;
    params.resize(module.kernel(FOLD).unwrap().parameter_bytes(), 0);
    let mut all = vec![0; skew as usize];
    all.extend(expected(sources, elements));
    let launches = [launch(module, FOLD, 2, 32, &params, 0)];
    watched(&mut memory, &launches, &[target], &[done], &all, options)
}

#[test]
fn folds() {
    let module = module(&F32);
    for skew in [0, 4, 16] {
        clean("fold", 12, |options| fold(&module, skew, &options));
    }
}

#[test]
fn a_bound_that_is_off_by_one() {
    for (old, new) in [("setp.lt.u64", "setp.le.u64"), ("setp.ge.u64", "setp.gt.u64")] {
        let module = replaced(FOLD, old, new);
        found(new, 50, anything, |options| fold(&module, 0, &options));
    }
}

const RING: Ring = Ring {
    ranks: 2,
    instances: 1,
    chunk: 200,
    slot_bytes: 128,
    slots: 2,
    credit_early: 0,
    posts_first: false,
};

fn ring(module: &Module, ring: Ring, options: &Options) -> Result<(), Wrong> {
    let mut memory = Checked::new();
    let placed = ring.place(&mut memory);
    let mut launches = ring.launches(module, &placed, 32);
    // The host writes over a record as soon as its program is over.
    let host = self::module(WATCHER);
    let over = |[done, sequence, record, bytes]: &[u64; 4]| {
        Record::new().u64(&[*done, *record, *bytes, *sequence]).0
    };
    let params: Vec<Vec<u8>> = placed.records.iter().map(over).collect();
    launches.extend(params.iter().map(|params| launch(&host, "overwrite", 1, 1, params, u32::MAX)));
    let expected = expected(ring.ranks, ring.elements());
    watched(&mut memory, &launches, &placed.outputs, &placed.done, &expected, options)
}

#[test]
fn rings() {
    let module = module(&F32);
    clean("a ring of two", 30, |options| ring(&module, RING, &options));
    let three = Ring { ranks: 3, instances: 2, chunk: 400, ..RING };
    clean("a ring of three", 6, |options| ring(&module, three, &options));
}

#[test]
fn rings_whose_waits_are_reported() {
    // The kernel says what it waits for after many looks; here after a few.
    let module = replaced(RUN, "131072", "3");
    clean("reported waits", 20, |options| ring(&module, RING, &options));
}

#[test]
fn rings_with_wrong_flags() {
    for (old, new) in [
        ("st.release.sys", "st.relaxed.sys"),
        ("ld.acquire.sys", "ld.relaxed.sys"),
        ("st.release.sys", "st.release.gpu"),
        ("ld.acquire.sys", "ld.acquire.gpu"),
    ] {
        let module = replaced(RUN, old, new);
        found(new, 200, race, |options| ring(&module, RING, &options));
    }
}

/// Takes each barrier away; those whose absence shows nothing within `most` schedules.
fn barriers_not_missed(
    kernel: &str,
    most: u64,
    mut once: impl FnMut(&Module, &Options) -> Result<(), Wrong>,
) -> Vec<usize> {
    let barriers = count(kernel, BARRIER);
    assert!(barriers >= 4, "{barriers} barriers");
    let missed = |at: &usize| {
        let module = nth(kernel, BARRIER, *at, ";");
        let found = first(most, |options| once(&module, &options));
        match &found {
            Some((seed, wrong)) => println!("{kernel} without barrier {at}: found with seed {seed}: {wrong}"),
            None => println!("{kernel} without barrier {at}: not found with {most} seeds"),
        }
        found.is_none()
    };
    (0..barriers).filter(missed).collect()
}

#[test]
fn rings_with_a_barrier_missing() {
    let missed = barriers_not_missed(RUN, 200, |module, options| ring(module, RING, options));
    assert_eq!(missed, [0usize; 0]);
}

#[test]
fn rings_with_a_thread_that_skips_a_barrier() {
    let skip = "{ .reg .pred q; .reg .b32 t; mov.u32 t, %tid.x; setp.eq.u32 q, t, 3; @q bra AFTER; bar.sync 0; AFTER: }";
    for at in [1, 3] {
        let module = nth(RUN, BARRIER, at, skip);
        let wrong = |problem: &Problem| {
            matches!(
                problem,
                Problem::Divergence { .. } | Problem::Race { .. } | Problem::Uninitialised { .. }
            )
        };
        found("a skipped barrier", 100, wrong, |options| ring(&module, RING, &options));
    }
}

#[test]
fn rings_with_wrong_plans() {
    let module = module(&F32);
    // Of two ranks each waits for the other anyway.
    let early = Ring { ranks: 3, chunk: 128, credit_early: 100, ..RING };
    found("a credit not waited for", 300, anything, |options| ring(&module, early, &options));
    let first = Ring { posts_first: true, ..RING };
    found("posted before it is there", 300, anything, |options| ring(&module, first, &options));
}

/// Only one rank of two is there.
fn alone(module: &Module, options: &Options, abort: Option<u64>) -> Result<(), Wrong> {
    let mut memory = Checked::new();
    let placed = RING.place(&mut memory);
    let launches = RING.launches(module, &placed, 32);
    let host = abort.map(|after| HostStore { after, address: placed.abort, bytes: 4, value: 1 });
    let options = Options { host: host.into_iter().collect(), ..options.clone() };
    run(&launches[..1], &mut memory, &options)?;
    if memory.bytes(placed.done[0]) != 5u64.to_le_bytes() {
        return Err(Wrong::Bytes("done"));
    }
    Ok(())
}

#[test]
fn a_rank_whose_peer_is_missing() {
    let waits = |problem: &Problem| matches!(problem, Problem::Deadlock { .. });
    let module = module(&F32);
    found("a missing rank", 1, waits, |options| alone(&module, &options, None));
    clean("a missing rank and an abort", 10, |options| alone(&module, &options, Some(20_000)));
}

/// Every rank sends its packets to every rank.
fn one_shot(module: &Module, ranks: usize, elements: usize, options: &Options) -> Result<(), Wrong> {
    let mut memory = Checked::new();
    let bytes = elements as u64 * 4;
    let stride = bytes.next_multiple_of(8) * 2;
    let mut named = |name: &str, length: usize| -> Vec<u64> {
        (0..ranks).map(|r| memory.allocate(&format!("{name} {r}"), vec![0; length])).collect()
    };
    let (done, left, abort) = (named("done", 8), named("left", 4), named("abort", 4));
    let packets = named("packets", stride as usize * ranks);
    let outputs: Vec<u64> =
        (0..ranks).map(|r| memory.uninitialised(&format!("output {r}"), bytes as usize)).collect();
    let params: Vec<Vec<u8>> = (0..ranks)
        .map(|r| {
            let input = memory.allocate(&format!("input {r}"), floats((0..elements).map(|i| element(r, i))));
            Record::new()
                .u64(&[input, outputs[r], bytes, abort[r], done[r], left[r], 5])
                .u32(&[ranks as u32, r as u32, 1, 0, 0, 0])
                .u64(&[packets[r], stride])
                .padded(&packets, 16)
                .factors()
                .0
        })
        .collect();
    let launches: Vec<_> =
        (0..ranks).map(|r| launch(module, ONE_SHOT, 2, 32, &params[r], r as u32)).collect();
    watched(&mut memory, &launches, &outputs, &done, &expected(ranks, elements), options)
}

#[test]
fn one_shots() {
    let module = module(&F32);
    clean("one-shot of two", 30, |options| one_shot(&module, 2, 101, &options));
    clean("one-shot of three", 10, |options| one_shot(&module, 3, 67, &options));
}

#[test]
fn one_shots_with_wrong_packets() {
    for (old, new) in [
        ("st.relaxed.sys.global.v2.u64", "st.global.v2.u64"),
        ("ld.relaxed.sys.global.v2.u64", "ld.global.v2.u64"),
        ("st.relaxed.sys.global.v2.u64", "st.relaxed.gpu.global.v2.u64"),
    ] {
        let module = replaced(ONE_SHOT, old, new);
        found(new, 200, race, |options| one_shot(&module, 2, 33, &options));
    }
}

/// Every rank folds its shard into all outputs.
fn two_shot(module: &Module, ranks: usize, elements: usize, options: &Options) -> Result<(), Wrong> {
    let mut memory = Checked::new();
    let (bytes, stride, blocks) = (elements as u64 * 4, 64, 2);
    let mut named = |name: &str, length: usize| -> Vec<u64> {
        (0..ranks).map(|r| memory.allocate(&format!("{name} {r}"), vec![0; length])).collect()
    };
    let (done, left, abort) = (named("done", 8), named("left", 4), named("abort", 4));
    // A rank's counters, one area for each that raises them.
    let area = stride * u64::from(blocks);
    let counters = named("counters", (area as usize) * ranks);
    let inputs: Vec<u64> = (0..ranks)
        .map(|r| memory.allocate(&format!("input {r}"), floats((0..elements).map(|i| element(r, i)))))
        .collect();
    let outputs: Vec<u64> =
        (0..ranks).map(|r| memory.uninitialised(&format!("output {r}"), bytes as usize)).collect();
    let params: Vec<Vec<u8>> = (0..ranks)
        .map(|r| {
            let raised: Vec<u64> = counters.iter().map(|peer| peer + area * r as u64).collect();
            let own: Vec<u64> = (0..ranks as u64).map(|peer| counters[r] + area * peer).collect();
            Record::new()
                .u64(&[abort[r], done[r], left[r], 5, bytes])
                .u32(&[ranks as u32, r as u32, 0, 0])
                .padded(&inputs, 16)
                .padded(&outputs, 16)
                .padded(&raised, 16)
                .padded(&own, 16)
                .u64(&[stride, 0])
                .factors()
                .0
        })
        .collect();
    let launches: Vec<_> =
        (0..ranks).map(|r| launch(module, TWO_SHOT, blocks, 32, &params[r], r as u32)).collect();
    watched(&mut memory, &launches, &outputs, &done, &expected(ranks, elements), options)
}

#[test]
fn two_shots() {
    let module = module(&F32);
    clean("two-shot of two", 20, |options| two_shot(&module, 2, 150, &options));
    clean("two-shot of three", 8, |options| two_shot(&module, 3, 100, &options));
}

#[test]
fn two_shots_with_wrong_flags() {
    for (old, new) in [("st.release.sys", "st.relaxed.sys"), ("ld.acquire.sys", "ld.relaxed.sys")] {
        let module = replaced(TWO_SHOT, old, new);
        found(new, 200, race, |options| two_shot(&module, 2, 150, &options));
    }
}

#[test]
fn two_shots_with_a_barrier_missing() {
    // Some are there twice because functions are inlined: before the first meeting nothing has been written, and
    // the last meeting ends with one right before the one of the block's end.
    let missed = barriers_not_missed(TWO_SHOT, 60, |module, options| two_shot(module, 2, 150, options));
    assert!(missed.len() <= 3, "{missed:?}");
}
