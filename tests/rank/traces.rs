//! Traces of ranks, flight records, and stragglers.

use std::time::Duration;

use crate::await_call;
use consort::{ReduceOp, Result};

use crate::rank::{Context, report};

/// `calls` operations each on two communicators; with `then=fail` `deviant` does not enter the last operation, and
/// prints when all others are in it.
pub(crate) fn traced(context: &Context) -> Result<()> {
    let comm = context.join()?;
    let half = comm.split(Some(comm.rank() % 2), 0)?.expect("a colour was given");
    for _ in 0..context.number("calls") {
        comm.all_reduce(&mut [1.0f32; 100], ReduceOp::Sum)?;
        half.broadcast(&mut [1u8; 7], half.size() - 1)?;
    }
    let started = comm.start_all_reduce(vec![1.0f32; 100], ReduceOp::Sum)?;
    let other = comm.start_all_reduce(vec![1.0f64; 100], ReduceOp::Max)?;
    started.wait()?;
    other.wait()?;
    println!("done");
    if context.text("then") == "fail" {
        if context.is("deviant") {
            let others: Vec<u32> = (0..comm.size()).filter(|rank| *rank != comm.rank()).collect();
            // After a split, the calls above and the two that were started.
            await_call(&comm, &others, "barrier", context.number("calls") as u64 + 4);
            println!("alone");
            context.listen();
        }
        report(&comm.barrier());
    }
    Ok(())
}

/// Rank `deviant` enters each of `calls` operations `milliseconds` after all others.
pub(crate) fn late(context: &Context) -> Result<()> {
    let comm = context.join()?;
    let others: Vec<u32> = (0..comm.size()).filter(|rank| *rank != comm.rank()).collect();
    for number in 1..=context.number("calls") as u64 {
        if context.is("deviant") {
            await_call(&comm, &others, "all_reduce", number);
            std::thread::sleep(Duration::from_millis(context.number("milliseconds") as u64));
        }
        comm.all_reduce(&mut [1.0f32; 100], ReduceOp::Sum)?;
    }
    if comm.rank() == 0 {
        let stragglers = comm.stragglers()?;
        println!("json {}", stragglers.to_json());
        for line in stragglers.to_string().lines() {
            println!("text {line}");
        }
        for line in comm.flight_record()?.to_string().lines() {
            println!("flight {line}");
        }
    }
    comm.barrier()
}
