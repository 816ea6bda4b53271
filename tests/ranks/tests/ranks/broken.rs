//! Sockets that end under a job: its calls go on, with the right bits.

use std::fs::{read_dir, read_link};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use consort::{Options, ReduceOp, TransportChoice};
use consort_tests::own_process::in_own_process;
use consort_tests::{Links, on_ranks};
use nix::sys::socket::{Shutdown, getsockopt, shutdown, sockopt};

/// Sockets of this process that carry data: those that keep alive as `transports` sets it, which control links do not.
fn data_sockets() -> Vec<RawFd> {
    const IDLE: u32 = 10;
    let own = read_dir("/proc/self/fd").expect("descriptors").flatten();
    let is_socket = |entry: &std::fs::DirEntry| {
        read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"))
    };
    let number = |entry: std::fs::DirEntry| entry.file_name().to_string_lossy().parse().ok();
    let keeps_alive = |socket: &RawFd| {
        // SAFETY: a descriptor that has been closed, or names another thing by now, is asked for an option at most.
        let socket = unsafe { BorrowedFd::borrow_raw(*socket) };
        let listens = getsockopt(&socket, sockopt::AcceptConn).unwrap_or(true);
        !listens && getsockopt(&socket, sockopt::TcpKeepIdle).is_ok_and(|idle| idle == IDLE)
    };
    own.filter(is_socket).filter_map(number).filter(keeps_alive).collect()
}

/// Ends them, as an administrator would: on both sides of some, as both are here. How many.
fn end_sockets(which: impl Fn(usize) -> bool) -> usize {
    let sockets: Vec<RawFd> = data_sockets()
        .into_iter()
        .enumerate()
        .filter(|(at, _)| which(*at))
        .map(|(_, socket)| socket)
        .collect();
    sockets.iter().filter(|socket| shutdown(socket.as_raw_fd(), Shutdown::Both).is_ok()).count()
}

#[test]
fn sockets_that_end_again_and_again_change_no_bit() {
    in_own_process("broken::sockets_that_end_again_and_again_change_no_bit", &[], || {
        const RANKS: usize = 3;
        const ENDS: usize = 100;
        let options = Options::default().transport(TransportChoice::Tcp);
        let (ended, over) = (AtomicUsize::new(0), AtomicBool::new(false));
        let calls = Mutex::new(0);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let mut turn = 0;
                while !over.load(Ordering::SeqCst) {
                    turn += 1;
                    ended.fetch_add(end_sockets(|at| (at + turn).is_multiple_of(3)), Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(3));
                }
            });
            on_ranks(RANKS as u32, Links::Joined, &options, |communicator| {
                let (rank, mut round) = (communicator.rank() as usize, 0u32);
                let until = Instant::now() + Duration::from_secs(60);
                // All ranks make the same number of calls: the sum says when it is enough.
                loop {
                    round += 1;
                    let value = |of: usize, at: usize| (at as u32).wrapping_mul(2 * of as u32 + 1) ^ round;
                    let elements = [3, 70_000, 500_000][round as usize % 3];
                    let mut data: Vec<u32> = (0..elements).map(|at| value(rank, at)).collect();
                    communicator.all_reduce(&mut data, ReduceOp::Sum)?;
                    let right = |(at, is): (usize, &u32)| {
                        *is == (0..RANKS).map(|of| value(of, at)).fold(0, u32::wrapping_add)
                    };
                    assert!(data.iter().enumerate().all(right), "rank {rank}, call {round}: other bits");
                    let mut enough = [u32::from(ended.load(Ordering::SeqCst) >= ENDS)];
                    communicator.all_reduce(&mut enough, ReduceOp::Sum)?;
                    if enough[0] == RANKS as u32 {
                        break;
                    }
                    assert!(
                        Instant::now() < until,
                        "{} sockets in {round} calls",
                        ended.load(Ordering::SeqCst)
                    );
                }
                *calls.lock().expect("no panic") = round;
                over.store(true, Ordering::SeqCst);
                Ok(())
            });
        });
        println!("{} sockets ended in {} calls", ended.into_inner(), calls.into_inner().expect("no panic"));
    });
}

/// A rank that has done its part is in no call when its socket ends, and the others have not read what it sent.
#[test]
fn what_a_rank_sent_before_it_went_on_arrives() {
    in_own_process("broken::what_a_rank_sent_before_it_went_on_arrives", &[], || {
        let options = Options::default().transport(TransportChoice::Tcp);
        for root in [0, 1] {
            for elements in [1usize, 40_000] {
                let both = Barrier::new(2);
                on_ranks(2, Links::Joined, &options, |communicator| {
                    let is_root = communicator.rank() == root;
                    // Links are there.
                    let mut data = vec![0u64; elements];
                    communicator.broadcast(&mut data, root).expect("a broadcast");
                    let mut data = vec![u64::from(is_root) * 7; elements];
                    if is_root {
                        communicator.broadcast(&mut data, root).expect("a broadcast");
                        assert!(end_sockets(|_| true) > 0);
                    }
                    both.wait();
                    if !is_root {
                        communicator.broadcast(&mut data, root).expect("a broadcast");
                        assert!(data.iter().all(|is| *is == 7), "root {root}, {elements} elements");
                    }
                    both.wait();
                    Ok(())
                });
            }
        }
    });
}
