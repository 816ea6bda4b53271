//! Resources that a communicator leaves, and the cost of a repeated call besides its work.

use std::time::{Duration, Instant};

use crate::{counting, system};
use consort::{Communicator, ReduceOp, Result, UniqueId};
use nix::sys::resource::{UsageWho, getrusage};

use crate::rank::Context;

/// Stretches of repeated calls whose allocations are counted, unless one before had none.
const STRETCHES_MAX: u32 = 100;

/// Allocations of this process in 1000 repeated 8-byte all-reduces: the least of several stretches, as in [`first_calls`].
pub(crate) fn allocations(context: &Context) -> Result<()> {
    let comm = context.join()?;
    let mut value = [1.0f32; 2];
    let mut least = u64::MAX;
    for _ in 0..STRETCHES_MAX {
        for _ in 0..2 {
            comm.all_reduce(&mut value, ReduceOp::Max)?;
        }
        let before = counting::calls();
        for _ in 0..1000 {
            comm.all_reduce(&mut value, ReduceOp::Max)?;
        }
        least = least.min(counting::calls() - before);
        let mut most = [least];
        comm.all_reduce(&mut most, ReduceOp::Max)?;
        if most[0] == 0 {
            break;
        }
    }
    println!("allocations {least}");
    comm.barrier()
}

/// Communicators whose first calls are counted, unless an earlier one stayed within the allowed number.
const FRESH_MAX: u32 = 100;

/// Allocations of this process in the first call of a size, after calls of another size of its class: the least of
/// several communicators. A rank that waits because its peer has no core sends an inquiry, which allocates; so
/// communicators are added until no rank had such a wait. The allocations of the call itself are in all of them.
pub(crate) fn first_calls(context: &Context) -> Result<()> {
    let comm = context.join()?;
    // 4-byte elements: packets, slots, and lengths whose plans cut them.
    for (warm, first) in [(9, 16), (600, 1000), (9_000, 16_384), (150_000, 250_001), (600_000, 1 << 20)] {
        let mut values = vec![1.0f32; first];
        let mut least = u64::MAX;
        for _ in 0..FRESH_MAX {
            let fresh = comm.split(Some(0), 0)?.expect("a part of it");
            let mut call = |count: usize| fresh.all_reduce(&mut values[..count], ReduceOp::Max);
            (0..20).try_for_each(|_| call(warm))?;
            let before = counting::calls();
            call(first)?;
            least = least.min(counting::calls() - before);
            let mut most = [least];
            comm.all_reduce(&mut most, ReduceOp::Max)?;
            // A short call is stored in one.
            if most[0] <= u64::from(first <= 1000) {
                break;
            }
        }
        println!("first-{first} {least}");
    }
    // The same where a plan has to be made.
    let fresh = comm.split(Some(0), 0)?.expect("a part of it");
    let before = counting::calls();
    fresh.all_reduce(&mut [1.0f32; 1000], ReduceOp::Max)?;
    println!("fresh {}", counting::calls() - before);
    comm.barrier()
}

/// How often this thread's core was given to another thread.
fn core_lost() -> i64 {
    getrusage(UsageWho::RUSAGE_THREAD).expect("getrusage").involuntary_context_switches()
}

/// `stretches` of 1000 8-byte all-reduces, for a tracer that counts system calls. For each, every rank prints whether
/// it lost its core meanwhile: then its peer waited.
pub(crate) fn count(context: &Context) -> Result<()> {
    let comm = context.join()?;
    let mut value = [1.0f32; 2];
    let mut calls = |many: u32| (0..many).try_for_each(|_| comm.all_reduce(&mut value, ReduceOp::Max));
    for _ in 0..context.number("stretches") {
        let before = core_lost();
        // Not counted: these calls wake a peer that fell asleep while the traced rank wrote its line.
        calls(100)?;
        // The two lines are for the tracer.
        if comm.rank() == 0 {
            println!("begin");
        }
        calls(1000)?;
        if comm.rank() == 0 {
            println!("end");
        }
        println!("lost {}", core_lost() - before);
    }
    comm.barrier()
}

/// Makes and drops communicators; threads, descriptors and environment must be as before.
pub(crate) fn rounds(context: &Context) -> Result<()> {
    let environment: Vec<_> = std::env::vars_os().collect();
    let round = |kind: &str| -> Result<()> {
        let id = UniqueId::create()?;
        let mut ranks = if kind == "local" { Communicator::local(2)? } else { Vec::new() };
        std::thread::scope(|threads| {
            for rank in 0..2u32 {
                let (id, local) = (&id, ranks.pop());
                threads.spawn(move || {
                    let comm = match local {
                        Some(comm) => comm,
                        None => Communicator::join(rank, 2, id).expect("joined"),
                    };
                    let mut value = [1u64];
                    comm.all_reduce(&mut value, ReduceOp::Sum).expect("a sum");
                    assert_eq!(value, [2]);
                    if kind == "work" {
                        assert_eq!(
                            comm.start_all_reduce(vec![1u64], ReduceOp::Sum).expect("work").wait().ok(),
                            Some(vec![2])
                        );
                    }
                });
            }
        });
        Ok(())
    };
    for kind in ["local", "joined", "work"] {
        round(kind)?;
        let settled = || system::eventually(system::SOON, || system::threads() == 1);
        assert!(settled(), "{} threads after the first round of {kind}", system::threads());
        let before = system::descriptors();
        for at in 0..context.number("rounds") {
            round(kind)?;
            assert!(settled(), "{} threads after {kind} round {at}", system::threads());
        }
        assert_eq!(system::descriptors(), before, "descriptors after rounds of {kind}");
    }
    assert_eq!(std::env::vars_os().collect::<Vec<_>>(), environment);
    println!("clean");
    Ok(())
}

/// Many communicators that are not used.
pub(crate) fn idle(context: &Context) -> Result<()> {
    let comm = context.join()?;
    comm.barrier()?;
    let before = counting::bytes();
    let many = context.number("many");
    let idle: Vec<Communicator> = (0..many)
        .map(|_| comm.split(Some(0), 0))
        .collect::<Result<Vec<_>>>()?
        .into_iter()
        .flatten()
        .collect();
    let heap = (counting::bytes() - before) / many as i64;
    let said = idle.iter().map(Communicator::memory_bytes).collect::<Result<Vec<_>>>()?;
    println!("idle {} {heap}", said.iter().max().expect("one at least"));
    // A used one is counted too.
    idle[0].all_reduce(&mut [1u8; 10], ReduceOp::Max)?;
    println!("used {}", idle[0].memory_bytes()?);
    comm.barrier()
}

/// All others wait for the last rank in calls of several kinds; prints the cost of the wait.
pub(crate) fn wait(context: &Context) -> Result<()> {
    let comm = context.join()?;
    let last = comm.size() - 1;
    let late = Duration::from_millis(context.number("late") as u64);
    let (mut line, mut long) = (vec![1.0f32; 2], vec![1.0f32; 1 << 18]);
    let mut call = |kind: &str| match kind {
        "short" => comm.all_reduce(&mut line, ReduceOp::Max),
        "long" => comm.all_reduce(&mut long, ReduceOp::Max),
        _ if comm.rank() == last => (0..last).try_for_each(|rank| comm.send(&line, rank)),
        _ => comm.receive(&mut line, last),
    };
    for kind in ["short", "long", "message"] {
        call(kind)?;
        comm.barrier()?;
        if comm.rank() == last {
            std::thread::sleep(late);
        }
        let (cpu, wall) = (system::cpu_time(), Instant::now());
        call(kind)?;
        let (cpu, wall) = (system::cpu_time() - cpu, wall.elapsed());
        println!("wait-{kind} {} {}", cpu.as_micros(), wall.as_micros());
    }
    comm.barrier()
}
