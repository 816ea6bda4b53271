//! The cost of the plan and the proof for one rank among 16,384. The only assertion is that regular schedules are
//! proved.
//!
//! `cargo test --release -p consort-algorithms --test long scale:: -- --ignored --nocapture` prints the figures. Each case
//! runs in a process of its own, whose peak of resident memory the kernel keeps.

use std::time::{Duration, Instant};

use consort_algorithms::builders::{Doubling, Ring, RingOptions, double_tree};
use consort_algorithms::passes::fuse;
use consort_algorithms::plan::{Operand, Step};
use consort_algorithms::{
    Collective, LowerOptions, Plan, Rank, Regular, Schedule, lower, lower_all, lower_one, verify,
    verify_regular,
};

const RANKS: u32 = 16_384;
const RANK: Rank = Rank(4_711);
const OPTIONS: LowerOptions = LowerOptions { slots: 4 };

fn regular(case: &str) -> Option<Box<dyn Regular>> {
    let ring = |collective, bidirectional| {
        Box::new(Ring::new(collective, RANKS, RingOptions { channels: 1, bidirectional })) as Box<dyn Regular>
    };
    Some(match case {
        "ring, all-reduce" => ring(Collective::AllReduce, false),
        "ring, reduce-scatter" => ring(Collective::ReduceScatter, false),
        "ring, all-gather" => ring(Collective::AllGather, false),
        "recursive doubling" => Box::new(Doubling::new(RANKS)),
        _ => return None,
    })
}

const CASES: [&str; 6] = [
    "ring, all-reduce",
    "ring, reduce-scatter",
    "ring, all-gather",
    "recursive doubling",
    "double tree, broadcast",
    "double tree, all-reduce",
];

/// Trees have few transfers, so a rank can make the schedule of all ranks.
fn trees(case: &str) -> Schedule {
    let broadcast = case == "double tree, broadcast";
    double_tree(if broadcast { Collective::Broadcast } else { Collective::AllReduce }, RANKS)
}

fn plan_bytes(plan: &Plan) -> usize {
    plan.steps.len() * size_of::<Step>() + plan.operands.len() * size_of::<Operand>()
}

/// The field of the kernel's account of this process, in KiB.
fn status_kib(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

fn timed<T>(times: u32, mut work: impl FnMut() -> T) -> (Duration, T) {
    let mut best: Option<(Duration, T)> = None;
    for _ in 0..times {
        let start = Instant::now();
        let made = work();
        let took = start.elapsed();
        if best.as_ref().is_none_or(|(least, _)| took < *least) {
            best = Some((took, made));
        }
    }
    best.expect("at least once")
}

fn measure(case: &str) {
    let before = status_kib("VmHWM");
    // The first pass has the peak of memory, the later ones the time.
    let make = || match regular(case) {
        Some(regular) => lower_one(&*regular, RANK, &OPTIONS).expect("it lowers"),
        None => lower(&trees(case), RANK, &OPTIONS).expect("it lowers"),
    };
    let fused = fuse(&make(), &|_| true);
    let planned = status_kib("VmHWM").saturating_sub(before);
    if let Some(regular) = regular(case) {
        verify_regular(&*regular, &fused).unwrap_or_else(|refusal| panic!("{case}: {refusal}"));
    }
    let proved = status_kib("VmHWM").saturating_sub(before);
    let (lowering, plan) = timed(10, make);
    let (fusing, fused) = timed(10, || fuse(&plan, &|_| true));
    print!(
        "| {case} | {} | {} KiB | {lowering:.1?} | {fusing:.1?} | {planned} KiB |",
        fused.steps.len(),
        plan_bytes(&fused) / 1024
    );
    match regular(case) {
        Some(regular) => {
            let (verifying, _) = timed(10, || verify_regular(&*regular, &fused).map(|proof| proof.steps));
            println!(" {verifying:.1?} | {proved} KiB | symmetry |");
        }
        None => {
            let all = lower_all(&trees(case), &OPTIONS).expect("it lowers");
            let all: Vec<Plan> = all.iter().map(|plan| fuse(plan, &|_| true)).collect();
            let (verifying, proof) = timed(3, || verify(&all));
            let proved = status_kib("VmHWM").saturating_sub(before);
            let verdict = proof.map_or_else(|refusal| refusal.to_string(), |_| "all ranks".into());
            println!(" {verifying:.1?} | {proved} KiB | {verdict} |");
        }
    }
}

#[test]
#[ignore = "a measurement"]
fn what_a_rank_among_16384_costs() {
    if let Ok(case) = std::env::var("CONSORT_SCALE_CASE") {
        return measure(&case);
    }
    println!(
        "| schedule | steps | plan | lower | fuse | peak for the plan | verify | peak with it | proved by |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---|");
    let myself = std::env::current_exe().expect("a test has a program");
    // The test's name in the harness: without the program's own name.
    let name = concat!(module_path!(), "::what_a_rank_among_16384_costs");
    let (_, name) = name.split_once("::").expect("a path");
    for case in CASES {
        let mut child = std::process::Command::new(&myself);
        child.args([name, "--exact", "--ignored", "--nocapture"]);
        let output = child.env("CONSORT_SCALE_CASE", case).output().expect("it starts");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{case}: {text}");
        text.lines().filter(|line| line.starts_with('|')).for_each(|line| println!("{line}"));
    }
}
