//! What ranks leave behind: traces, flight records, and who was late.

use std::time::Duration;

use consort::{ReduceOp, Result};

use crate::rank::{Context, report};

/// `calls` operations each on two communicators; with `then=fail` the last operation is one that `deviant` does
/// not come to.
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
            context.listen();
        }
        report(&comm.barrier());
    }
    Ok(())
}

/// Rank `deviant` comes to each of `calls` operations `milliseconds` after the others.
pub(crate) fn late(context: &Context) -> Result<()> {
    let comm = context.join()?;
    for _ in 0..context.number("calls") {
        if context.is("deviant") {
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
