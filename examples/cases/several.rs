//! One rank dies while others wait for it on two communicators, which are then aborted in every order.

use std::path::Path;
use std::time::{Duration, Instant};

use consort::{Communicator, ReduceOp, Result, UniqueId};

use crate::{join, say, stay_until_failed, sum_ones, tell, variant};

const ELEMENTS: usize = 1 << 20;

/// Ranks 2 and 3 have a communicator of their own beside the world's.
pub(crate) fn several(how: &str, directory: &str) -> Result<()> {
    let world = join()?;
    let me = world.rank();
    let pair = world.split((me >= 2).then_some(0), 0)?;
    sum_ones(&world, ELEMENTS)?;
    if let Some(pair) = &pair {
        sum_ones(pair, ELEMENTS)?;
    }
    if me == 2 {
        // So that the others are inside.
        std::thread::sleep(Duration::from_millis(500));
        if how == "all-live" {
            stay_until_failed(&world);
            tell(&world, "world", || sum_ones(&world, ELEMENTS));
            return Ok(());
        }
        say("exits");
        std::process::exit(1);
    }
    if how == "all-live" && me == 3 {
        std::thread::scope(|threads| {
            threads.spawn(|| {
                std::thread::sleep(Duration::from_millis(500));
                world.abort("the loss is not a number");
            });
            tell(&world, "world", || sum_ones(&world, ELEMENTS));
        });
        end(how, world, pair);
        return Ok(());
    }
    let work =
        (me == 3).then(|| world.start_all_reduce(vec![1.0f32; ELEMENTS], ReduceOp::Sum)).transpose()?;
    if let Some(pair) = &pair {
        tell(pair, "pair", || sum_ones(pair, ELEMENTS));
    }
    match work {
        Some(work) => _ = tell(&world, "world", || work.wait()),
        None => _ = tell(&world, "world", || sum_ones(&world, ELEMENTS)),
    }
    end(how, world, pair);
    if how != "all-live" {
        again(me, directory)?;
    }
    Ok(())
}

/// Aborts both, twice, and drops them; none of it may wait for another rank.
fn end(how: &str, world: Communicator, pair: Option<Communicator>) {
    let began = Instant::now();
    let abort = |comm: &Communicator| comm.abort("over");
    let both: Vec<&Communicator> = pair.iter().chain([&world]).collect();
    match how {
        "world-first" => both.iter().rev().for_each(|comm| abort(comm)),
        "at-once" => std::thread::scope(|threads| {
            both.iter().for_each(|comm| _ = threads.spawn(|| abort(comm)));
        }),
        _ => both.iter().for_each(|comm| abort(comm)),
    }
    both.iter().for_each(|comm| abort(comm));
    for (comm, name) in both.iter().rev().zip(["world", "pair"]) {
        let text =
            comm.status().map_or_else(|error| format!("{}: {error}", variant(&error)), |()| "well".into());
        say(&format!("status of {name}: {text}"));
    }
    if how == "world-first" {
        drop(world);
        drop(pair);
    } else {
        drop(pair);
        drop(world);
    }
    let took = began.elapsed();
    let quick = if took < Duration::from_secs(1) { "at once" } else { "slowly" };
    say(&format!("aborted and dropped both {quick} ({} ms)", took.as_millis()));
}

/// The survivors make a new communicator with an id of their own.
fn again(me: u32, directory: &str) -> Result<()> {
    let path = Path::new(directory).join("id");
    let rank = if me == 3 { 2 } else { me };
    let id = if rank == 0 {
        let id = UniqueId::create()?;
        let part = path.with_extension("part");
        std::fs::write(&part, id.to_bytes()).and_then(|()| std::fs::rename(&part, &path)).expect("a file");
        id
    } else {
        loop {
            match std::fs::read(&path).ok().and_then(|bytes| <[u8; UniqueId::BYTES]>::try_from(bytes).ok()) {
                Some(bytes) => break UniqueId::from_bytes(&bytes)?,
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    };
    let comm = Communicator::join(rank, 3, &id)?;
    let sum = sum_ones(&comm, ELEMENTS)?;
    say(&format!("goes on as rank {rank} of {}: the sum is {}", comm.size(), sum[0]));
    Ok(())
}
