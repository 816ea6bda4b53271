//! Ranks that leave and come: communicators of the remaining ranks, and of more.

use std::time::Duration;

use crate::collectives;
use crate::system::{self, Random};
use consort::{Communicator, Options, Rank, ReduceOp, Result, Shrink, UniqueId};

use crate::rank::{Context, report};

fn ranks(text: &str) -> Vec<Rank> {
    text.split(',').map(|rank| rank.parse().expect("a rank")).collect()
}

/// Calls that must work among the remaining ranks: all of them, and on a part.
fn works(comm: &Communicator) -> Result<()> {
    collectives::everything(comm, 1000)?;
    let part = comm.split(Some(comm.rank() % 2), 0)?.expect("a colour was given");
    collectives::everything(&part, 100)
}

fn say(what: &str, comm: &Communicator) {
    println!("{what} {} of {}", comm.rank(), comm.size());
}

/// Operations until one fails, within `deadline` seconds, because of the `victims`; then the remaining ranks go on
/// without them, and after a line of the test also without their last one, which is the test's next victim.
pub(crate) fn shrink(context: &Context) -> Result<()> {
    let world = context.join()?;
    let comm = match context.text("of") {
        // The same ranks by other numbers.
        "part" => world.split(Some(0), -i64::from(world.rank()))?.expect("a colour was given"),
        _ => world.split(Some(0), 0)?.expect("a colour was given"),
    };
    let here = |rank: &Rank| if context.text("of") == "part" { comm.size() - 1 - rank } else { *rank };
    let victims: Vec<Rank> = ranks(context.text("victims")).iter().map(here).collect();
    let mut buffer = vec![1.0f32; 100_000];
    let hurried = comm.with_timeout(Duration::from_secs(context.number("deadline") as u64));
    let error = loop {
        if let Err(error) = hurried.all_reduce(&mut buffer, ReduceOp::Max) {
            break error;
        }
        println!("turn");
    };
    report(&Err(error));
    if victims.contains(&comm.rank()) {
        return Ok(());
    }
    let left = comm.shrink(&victims, Shrink::Abort)?;
    works(&left)?;
    drop(comm);
    say("left", &left);
    context.listen();
    // The later end of the victims does not concern it.
    works(&left)?;
    println!("still");
    let last = left.size() - 1;
    if left.rank() == last {
        context.listen();
        return Ok(());
    }
    let error = loop {
        if let Err(error) = left.barrier() {
            break error;
        }
    };
    report(&Err(error));
    let fewer = left.shrink(&[last], Shrink::Abort)?;
    drop(left);
    works(&fewer)?;
    say("fewer", &fewer);
    context.listen();
    fewer.barrier()
}

/// What all ranks of a communicator sum up.
fn counts(comm: &Communicator) -> Result<()> {
    let mut one = [1u64];
    comm.all_reduce(&mut one, ReduceOp::Sum)?;
    assert_eq!(one, [u64::from(comm.size())]);
    Ok(())
}

/// Of a job whose ranks are not all linked to each other: communicators of all and of half, calls until a rank dies, and then
/// without it. Half of those that stay leave before the others.
pub(crate) fn large(context: &Context) -> Result<()> {
    let world = context.join()?;
    let whole = world.split(Some(0), -i64::from(world.rank()))?.expect("a colour was given");
    let half = world.split(Some(world.rank() % 2), 0)?.expect("a colour was given");
    counts(&whole)?;
    counts(&half)?;
    println!("turn");
    let error = loop {
        if let Err(error) = counts(&whole) {
            break error;
        }
    };
    report(&Err(error));
    let left = whole.shrink(&[whole.size() - 1 - context.number("victim") as Rank], Shrink::Abort)?;
    drop((whole, half, world));
    counts(&left)?;
    let part = left.split(Some(left.rank() % 2), 0)?.expect("a colour was given");
    say("left", &left);
    let is_early = left.rank().is_multiple_of(2);
    drop(left);
    context.listen();
    if is_early {
        println!("gone");
        return Ok(());
    }
    for _ in 0..3 {
        counts(&part)?;
    }
    println!("still");
    Ok(())
}

/// The ranks that stay leave the victims out while these are in their own code; both communicators work afterwards,
/// as far as the victims live.
pub(crate) fn shrink_idle(context: &Context) -> Result<()> {
    let comm = context.join()?;
    works(&comm)?;
    let victims = ranks(context.text("victims"));
    println!("idle");
    if victims.contains(&comm.rank()) {
        context.listen();
    } else {
        context.listen();
        let left = comm.shrink(&victims, Shrink::Idle)?;
        works(&left)?;
        say("left", &left);
        context.listen();
        works(&left)?;
        println!("still");
        context.listen();
    }
    report(&works(&comm));
    context.listen();
    Ok(())
}

/// Rank `dies`, one of the ranks that stay, ends instead of shrinking; the others try until they know it.
pub(crate) fn shrink_and_die(context: &Context) -> Result<()> {
    let comm = context.join()?;
    comm.barrier()?;
    println!("idle");
    context.listen();
    let mut victims = ranks(context.text("victims"));
    if victims.contains(&comm.rank()) || context.is("dies") {
        context.listen();
        return Ok(());
    }
    let result = std::thread::scope(|threads| {
        threads.spawn(|| {
            assert!(system::eventually(system::SOON, || comm.memory_bytes().is_err()), "it does not begin");
            println!("in it");
        });
        comm.shrink(&victims, Shrink::Abort)
    });
    report(&result.as_ref().map(drop).map_err(Clone::clone));
    drop(result);
    victims.push(context.number("dies") as Rank);
    let left = comm.shrink(&victims, Shrink::Abort)?;
    works(&left)?;
    say("left", &left);
    Ok(())
}

/// A part goes on after a rank died that is not in it.
pub(crate) fn part_without(context: &Context) -> Result<()> {
    let comm = context.join()?;
    let of_victim = context.is("victims");
    let part = comm.split(Some(u32::from(of_victim)), 0)?.expect("a colour was given");
    works(&part)?;
    println!("idle");
    if of_victim {
        context.listen();
        return Ok(());
    }
    let error = comm.barrier().expect_err("the victim is gone");
    report(&Err(error));
    works(&part)?;
    let again = part.split(Some(0), 0)?.expect("a colour was given");
    works(&again)?;
    say("left", &again);
    Ok(())
}

/// Four ranks on two axes, and the last dies: communicators without it go on, and the others make another mesh.
pub(crate) fn mesh(context: &Context) -> Result<()> {
    let comm = context.join()?;
    let mesh = comm.mesh(&[("dp", 2), ("tp", 2)], &[])?;
    for axis in ["dp", "tp"] {
        works(mesh.axis(axis)?)?;
    }
    println!("idle");
    if context.rank == 3 {
        context.listen();
        return Ok(());
    }
    // Each rank but 0 has the victim on one axis.
    let whole: &[&str] = match context.rank {
        0 => &["tp", "dp"],
        1 => &["tp"],
        _ => &["dp"],
    };
    if let Some(axis) = ["dp", "tp"].into_iter().find(|axis| !whole.contains(axis)) {
        report(&Err(mesh.axis(axis)?.barrier().expect_err("the victim is gone")));
    }
    for axis in whole {
        works(mesh.axis(axis)?)?;
    }
    let left = comm.shrink(&[3], Shrink::Abort)?;
    let another = left.mesh(&[("dp", 3), ("tp", 1)], &[])?;
    works(another.axis("dp")?)?;
    works(another.axis("tp")?)?;
    say("left", another.axis("dp")?);
    Ok(())
}

/// The first `old` ranks are joined by the others, by the id that rank `coordinator` prints and the test passes on.
pub(crate) fn grow(context: &Context) -> Result<()> {
    let old = context.number("old") as u32;
    if context.rank >= old {
        let digits = context.listen();
        let byte = |at: usize| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).expect("a byte");
        let bytes: [u8; UniqueId::BYTES] = std::array::from_fn(byte);
        let id = UniqueId::from_bytes(&bytes)?;
        let comm = Communicator::join_with(context.rank, context.size, &id, &Options::default())?;
        works(&comm)?;
        say("more", &comm);
        context.listen();
        return comm.barrier();
    }
    let comm = Communicator::join(context.rank, old, &context.id()?)?;
    works(&comm)?;
    let id = if context.is("coordinator") { Some(comm.grow_id()?) } else { None };
    if let Some(id) = &id {
        let digits: String = id.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        println!("id {digits}");
    }
    let more = comm.grow(context.size, id.as_ref())?;
    works(&comm)?;
    works(&more)?;
    say("more", &more);
    drop(comm);
    context.listen();
    more.barrier()
}

/// Memory is freed and made again, over and over, by ranks that come at times of their own.
pub(crate) fn suspend(context: &Context) -> Result<()> {
    let comm = context.join()?;
    let mut random = Random::new(context.number("seed") as u64 + u64::from(context.rank));
    let wait = |random: &mut Random| std::thread::sleep(random.duration(Duration::from_millis(3)));
    let (mut used, mut left) = (0, 0);
    for turn in 0..context.number("turns") {
        collectives::everything(&comm, 1000)?;
        let mut large = vec![1u32; 300_000];
        comm.all_reduce(&mut large, ReduceOp::Sum)?;
        assert!(large.iter().all(|value| *value == comm.size()), "turn {turn}");
        used = comm.memory_bytes()?;
        let started = comm.start_all_reduce(vec![2u32; 5000], ReduceOp::Sum)?;
        wait(&mut random);
        comm.suspend()?;
        assert!(started.wait()?.iter().all(|value| *value == 2 * comm.size()), "turn {turn}");
        left = comm.memory_bytes()?;
        if random.draw().is_multiple_of(2) {
            wait(&mut random);
        }
    }
    println!("memory {used} {left}");
    comm.suspend()?;
    comm.suspend()?;
    collectives::everything(&comm, 100)
}
