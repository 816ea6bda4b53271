//! Forked children: calls that they must not make, and that they do not disturb other processes.

use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use crate::collectives;
use consort::{Communicator, Error, ReduceOp, Report, Result, SharedBuffer};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use crate::rank::{Context, report};

/// A child's calls on its parent's communicator; returns the number of the first wrong one.
fn child(comm: Communicator) -> i32 {
    let began = Instant::now();
    let mut buffer = [1.0f32; 100];
    if !matches!(comm.all_reduce(&mut buffer, ReduceOp::Sum), Err(Error::Forked)) {
        return 1;
    }
    if !matches!(comm.status(), Err(Error::Forked)) || !matches!(comm.barrier(), Err(Error::Forked)) {
        return 2;
    }
    if !matches!(comm.start_all_reduce(vec![1.0f32; 10], ReduceOp::Sum), Err(Error::Forked)) {
        return 3;
    }
    if !matches!(comm.split(Some(0), 0), Err(Error::Forked))
        || !matches!(comm.send(&[1u8], 1), Err(Error::Forked))
        || !matches!(consort::group(|group| group.send(&comm, &[1u8], 1)), Err(Error::Forked))
    {
        return 4;
    }
    comm.abort("a child must not be able to");
    // It waits for no rank, and so not for a deadline.
    if began.elapsed() > Duration::from_secs(10) {
        return 5;
    }
    let Ok(mine) = Communicator::local(2) else { return 6 };
    let sums = std::thread::scope(|threads| {
        let run = |comm: &Communicator| {
            let mut value = [21u32];
            comm.all_reduce(&mut value, ReduceOp::Sum).map(|()| value[0])
        };
        let threads: Vec<_> = mine.iter().map(|comm| threads.spawn(move || run(comm))).collect();
        threads.into_iter().map(|thread| thread.join().ok().and_then(Result::ok)).collect::<Vec<_>>()
    });
    if sums != [Some(42), Some(42)] {
        return 7;
    }
    drop(comm);
    drop(mine);
    if Communicator::local(1).is_err() {
        return 8;
    }
    0
}

pub(crate) fn fork_and_go_on(context: &Context) -> Result<()> {
    let comm = context.join()?;
    collectives::everything(&comm, 1000)?;
    // Started before the fork and not waited for: the child's copy of it is not driven, the parent's goes on.
    let work = comm.start_all_reduce(vec![1u64; 10], ReduceOp::Sum)?;
    for _ in 0..2 {
        // SAFETY: no thread of this process but the control thread runs, and it holds no lock that the child's
        // path takes for longer than a message; the child ends with `exit` below.
        match unsafe { fork() }.expect("fork") {
            ForkResult::Child => {
                let code = match work.wait_with_buffer() {
                    (_, Err(Error::Forked)) => child(comm),
                    // It was over before the fork.
                    (_, Ok(())) => child(comm),
                    _ => 9,
                };
                nix::sys::signal::kill(nix::unistd::getpid(), None).expect("this process");
                std::process::exit(code);
            }
            ForkResult::Parent { child } => {
                let until = Instant::now() + Duration::from_secs(30);
                loop {
                    match waitpid(child, Some(nix::sys::wait::WaitPidFlag::WNOHANG)).expect("waitpid") {
                        WaitStatus::StillAlive if Instant::now() < until => {
                            std::thread::sleep(Duration::from_millis(2));
                        }
                        status => {
                            println!("child {status:?}");
                            break;
                        }
                    }
                }
            }
        }
        collectives::everything(&comm, 1000)?;
    }
    assert!(work.wait()?.iter().all(|value| *value == u64::from(comm.size())));
    collectives::everything(&comm, 100_000)?;
    report(&comm.status());
    Ok(())
}

/// What this process shares with its peers in memory files whose names begin so, each mapping with its bytes.
fn shared_bytes(name: &str) -> Vec<(String, Vec<u8>)> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("procfs");
    let memory = std::fs::File::open("/proc/self/mem").expect("procfs");
    let name = format!("/memfd:{name}");
    let shared = maps.lines().filter(|line| line.contains("rw-s") && line.contains(&name));
    let bytes_at = |line: &str| {
        let (range, _) = line.split_once(' ').expect("a range");
        let (start, end) = range.split_once('-').expect("a start and an end");
        let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16).expect("an address"));
        let mut bytes = vec![0; (end - start) as usize];
        memory.read_exact_at(&mut bytes, start).expect("it is mapped");
        bytes
    };
    shared.map(|line| (line.to_owned(), bytes_at(line))).collect()
}

/// Forks a child that does something and ends; the parent waits for that. Nothing changes that the two share with other
/// processes in memory files whose names begin so, to which no rank stores meanwhile.
pub(super) fn fork_aside(name: &str, child: impl FnOnce() -> i32) {
    let before = shared_bytes(name);
    assert!(before.len() > 1, "no memory is shared");
    // SAFETY: as in `fork_and_go_on`.
    match unsafe { fork() }.expect("fork") {
        ForkResult::Child => std::process::exit(child()),
        ForkResult::Parent { child } => println!("child {:?}", waitpid(child, None).expect("waitpid")),
    }
    for ((mapping, before), (_, now)) in before.iter().zip(shared_bytes(name)) {
        let differs = before.iter().zip(&now).position(|(before, now)| before != now);
        assert_eq!(differs, None, "the child stored at this byte of {mapping}");
    }
}

/// Children of a rank whose operation on mapped buffers has begun, and whose peer has not entered it.
pub(crate) fn fork_in_zero_copy(context: &Context) -> Result<()> {
    let comm = context.join()?;
    let mut buffer = SharedBuffer::<u64>::new(1 << 16).expect("memory");
    buffer.fill(1);
    comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
    if context.is("deviant") {
        comm.scope(|scope| {
            let work = scope.all_reduce(&mut buffer, ReduceOp::Sum)?;
            // It has stored what it has to once it waits for the other rank.
            let waits = |report: &Report| {
                let waiting = &report.ranks[context.rank as usize].waiting;
                waiting.as_ref().is_some_and(|waiting| waiting.peer.is_some())
            };
            while !waits(&comm.report()?) {
                std::thread::sleep(Duration::from_millis(1));
            }
            // The control thread may have the engine at one of the forks: nothing is touched then either.
            for _ in 0..10 {
                fork_aside("consort-", || {
                    let refused = matches!(work.wait(), Err(Error::Forked));
                    i32::from(!refused)
                });
            }
            println!("forked");
            Ok(())
        })?;
    } else {
        context.listen();
        comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
    }
    let size = u64::from(comm.size());
    assert!(buffer.iter().all(|value| *value == size * size));
    collectives::everything(&comm, 1000)?;
    report(&comm.status());
    Ok(())
}

/// A data loader outlives its parent, and holds copies of all its sockets.
pub(crate) fn fork_and_wait_to_die(context: &Context) -> Result<()> {
    let comm = context.join()?;
    collectives::everything(&comm, 10)?;
    if context.is("deviant") {
        // SAFETY: as above; the child only reads a pipe that no process writes; it ends when the test drops the job.
        match unsafe { fork() }.expect("fork") {
            ForkResult::Child => {
                while nix::unistd::read(std::io::stdin(), &mut [0]).is_ok_and(|bytes| bytes > 0) {}
                std::process::exit(0);
            }
            ForkResult::Parent { child } => println!("forked {child}"),
        }
    }
    println!("begin");
    let mut buffer = vec![1.0f32; 1 << 20];
    loop {
        let result = comm.all_reduce(&mut buffer, ReduceOp::Max);
        if result.is_err() {
            report(&result);
            return Ok(());
        }
    }
}
