//! Faults, and the error that each rank gets.

use std::time::{Duration, Instant};

use crate::difference::Difference;
use crate::system;
use consort::planning::Algorithm;
use consort::{Communicator, ReduceOp, Result};
use nix::sys::resource::{Resource, setrlimit};

use crate::rank::{Context, report};

pub(crate) fn differ(context: &Context) -> Result<()> {
    let difference = Difference::parse(context.text("difference")).expect("a difference");
    let comm = context.join()?;
    println!("begin");
    // The first rank that has passed the barrier may fail while others are still in it.
    let result = comm.barrier().and_then(|()| difference.act(&comm, context.is("deviant")));
    report(&result);
    // The failure stays, and stays the same.
    let again = comm.all_reduce(&mut [1.0f32; 4], ReduceOp::Sum);
    assert_eq!(format!("{again:?}"), format!("{result:?}"));
    assert!(comm.status().is_err());
    context.listen();
    Ok(())
}

/// One rank makes a call more than the others, which are busy elsewhere (`then=busy`) or leave.
pub(crate) fn extra(context: &Context) -> Result<()> {
    let comm = context.join()?;
    comm.barrier()?;
    if context.is("deviant") {
        report(&comm.all_reduce(&mut [1.0f32; 100], ReduceOp::Sum));
        return Ok(());
    }
    if context.text("then") == "busy" {
        context.listen();
        report(&comm.barrier());
    }
    Ok(())
}

/// Rank 0 sends, rank 1 receives another number of elements.
pub(crate) fn messages(context: &Context) -> Result<()> {
    let comm = context.join()?;
    let result = comm.barrier().and_then(|()| match context.rank {
        0 => comm.send(&vec![1.0f32; context.number("sent")], 1).and_then(|()| comm.barrier()),
        1 => comm.receive(&mut vec![0.0f32; context.number("received")], 0).and_then(|()| comm.barrier()),
        _ => comm.barrier(),
    });
    report(&result);
    context.listen();
    Ok(())
}

/// Probes the wires between ranks over and over until that fails.
pub(crate) fn probe(context: &Context) -> Result<()> {
    let comm = context.join()?;
    let options = consort::probe::Options::default().budget(Duration::from_millis(300));
    let probed = comm.probe(&options)?;
    assert_eq!(probed.pairs.len() as u32, context.size * (context.size - 1) / 2);
    println!("turn");
    let failed = loop {
        if let Err(error) = comm.probe(&options) {
            break error;
        }
    };
    report(&Err(failed));
    Ok(())
}

/// What the ranks plan by, after they have joined.
pub(crate) fn graph(context: &Context) -> Result<()> {
    let comm = context.join()?;
    println!("graph {:016x} {}", comm.planning().graph_hash(), comm.planning().topology().name);
    comm.barrier()
}

pub(crate) fn only_join(context: &Context) -> Result<()> {
    let began = Instant::now();
    let comm = context.join();
    println!("took {}", began.elapsed().as_millis());
    report(&comm.map(drop));
    Ok(())
}

fn turn(comm: &Communicator, op: &str, buffer: &mut [f32]) -> Result<()> {
    match op {
        "all_reduce" => comm.all_reduce(buffer, ReduceOp::Max),
        "all_gather" => comm.all_gather_in_place(buffer),
        "broadcast" => comm.broadcast(buffer, 0),
        "send" => match comm.rank() {
            0 => comm.send(buffer, 1),
            1 => comm.receive(buffer, 0),
            _ => comm.barrier(),
        },
        "started" => {
            let (next, before) =
                ((comm.rank() + 1) % comm.size(), (comm.rank() + comm.size() - 1) % comm.size());
            let sent = buffer.to_vec();
            comm.scope(|scope| {
                scope.receive(buffer, before)?;
                scope.send(&sent, next).map(drop)
            })
        }
        other => panic!("no operation {other}"),
    }
}

/// One operation over and over until it fails. Then the buffer belongs to the caller: with `reuse=1` it is filled
/// with a pattern, which must still be there when the test sends `check`.
pub(crate) fn repeat_until_failure(context: &Context) -> Result<()> {
    if context.text("sigpipe") == "default" {
        // SAFETY: installs no handler, only the default disposition with which C programs start.
        unsafe {
            nix::sys::signal::signal(nix::sys::signal::Signal::SIGPIPE, nix::sys::signal::SigHandler::SigDfl)
        }
        .expect("signal");
    }
    let before = system::descriptors();
    let threads = system::threads();
    let comm = context.join()?;
    let elements = context.number("bytes") / 4 / comm.size() as usize * comm.size() as usize;
    let is_mapped = context.number("mapped") == 1;
    let mut shared = consort::alloc::<f32>(if is_mapped { elements } else { 0 }).expect("memory");
    let mut private = vec![1.0f32; if is_mapped { 0 } else { elements }];
    let buffer: &mut [f32] = if is_mapped { &mut shared } else { &mut private };
    buffer.fill(1.0);
    let op = context.text("op");
    let error = loop {
        if let Err(error) = turn(&comm, op, buffer) {
            break error;
        }
        println!("turn");
    };
    report(&Err(error));
    if context.number("reuse") == 1 {
        let pattern = |index: usize| (index as u32).wrapping_mul(2_654_435_761);
        buffer.iter_mut().enumerate().for_each(|(index, value)| *value = f32::from_bits(pattern(index)));
        println!("filled");
        context.listen();
        let changed =
            buffer.iter().enumerate().filter(|(index, value)| value.to_bits() != pattern(*index)).count();
        println!("changed {changed}");
    }
    drop(comm);
    drop(shared);
    let cleared = system::eventually(system::SOON, || system::descriptors() == before);
    assert!(cleared, "descriptors before: {before:?}, after: {:?}", system::descriptors());
    let joined = system::eventually(system::SOON, || system::threads() == threads);
    assert!(joined, "{threads} threads before, {} after", system::threads());
    println!("clean");
    Ok(())
}

/// One rank does not make the second call.
pub(crate) fn absent(context: &Context) -> Result<()> {
    let comm = context.join()?;
    let first = comm.all_reduce(&mut [1u8; 3], ReduceOp::Max);
    if context.is("deviant") {
        println!("away");
        context.listen();
    }
    let second = first.and_then(|()| comm.broadcast(&mut [1u64; 1000], 0));
    report(&second.and_then(|()| comm.barrier()));
    context.listen();
    Ok(())
}

/// One rank does not make the last of several all-reduces in two hops; the others print the report of it.
pub(crate) fn absent_in_two_hops(context: &Context) -> Result<()> {
    let comm = context.join()?;
    let mut buffer = vec![0.0f32; context.number("bytes") / 4];
    // Ranks meet in vain before the first four, and not before the next.
    for _ in 0..5 {
        comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
    }
    if context.is("deviant") {
        println!("away");
        context.listen();
        return Ok(());
    }
    report(&comm.all_reduce(&mut buffer, ReduceOp::Sum));
    println!("report {}", comm.last_report().expect("a deadline was missed").to_json());
    Ok(())
}

/// One rank drops its communicator early; with `then=exit` its process ends too.
pub(crate) fn leave(context: &Context) -> Result<()> {
    let comm = context.join()?;
    if context.is("deviant") {
        comm.barrier()?;
        drop(comm);
        if context.text("then") != "exit" {
            context.listen();
        }
        return Ok(());
    }
    report(&comm.barrier().and_then(|()| comm.all_reduce(&mut [1u8; 100], ReduceOp::Sum)));
    context.listen();
    Ok(())
}

/// Every rank but the last is in a call; `by` aborts from another thread.
pub(crate) fn abort(context: &Context) -> Result<()> {
    let comm = context.join()?;
    comm.barrier()?;
    println!("begin");
    std::thread::scope(|threads| {
        if context.is("by") {
            threads.spawn(|| {
                context.listen();
                comm.abort("the test says so");
            });
        }
        if context.rank + 1 < context.size {
            threads.spawn(|| {
                assert!(
                    system::eventually(system::SOON, || comm.memory_bytes().is_err()),
                    "it does not begin"
                );
                println!("in it");
            });
            report(&comm.all_reduce(&mut [1u8; 100], ReduceOp::Sum));
        } else {
            while comm.status().is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
            report(&comm.status());
        }
    });
    Ok(())
}

/// One rank may have only 512 KiB of address space more than now, or no files longer than 1 MiB: the shortest area of
/// a link's slots is too long for the one, the longest for the other.
pub(crate) fn too_little_memory(context: &Context) -> Result<()> {
    let comm = context.join()?;
    let mut buffer = vec![1.0f32; 1 << 20];
    if context.is("deviant") {
        let (resource, limit) = match context.text("limit") {
            "file" => (Resource::RLIMIT_FSIZE, 1 << 20),
            _ => (Resource::RLIMIT_AS, system::status("VmSize") * 1024 + (1 << 19)),
        };
        setrlimit(resource, limit, limit).expect("setrlimit");
    }
    // Links of few peers have the longest slots.
    let ring = comm.with_algorithm(Algorithm::Ring { channels: 1, bidirectional: false });
    report(&ring.all_reduce(&mut buffer, ReduceOp::Sum));
    context.listen();
    Ok(())
}
