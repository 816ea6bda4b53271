//! The number of sockets on which a process listens.

use std::collections::BTreeSet;
use std::fs::{read_dir, read_link, read_to_string};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use consort::{Communicator, Options, ReduceOp, TransportChoice};
use consort_tests::own_process::in_own_process;
use consort_tests::{Links, on_ranks};

/// TCP sockets of this process that listen.
fn listening() -> usize {
    let own = read_dir("/proc/self/fd").expect("descriptors").flatten();
    let own: BTreeSet<String> =
        own.filter_map(|entry| Some(read_link(entry.path()).ok()?.to_string_lossy().into_owned())).collect();
    let sockets =
        ["tcp", "tcp6"].map(|kind| read_to_string(format!("/proc/self/net/{kind}")).unwrap_or_default());
    let mine = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.get(3) == Some(&"0A")
            && words.get(9).is_some_and(|inode| own.contains(&format!("socket:[{inode}]")))
    };
    sockets.iter().flat_map(|text| text.lines()).filter(mine).count()
}

/// The same once it is `expected`, or its value after ten seconds: the socket of a rendezvous closes soon after its
/// ranks have joined.
fn listening_soon(expected: usize) -> usize {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let found = listening();
        if found == expected || Instant::now() > until {
            return found;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn sum(communicator: &Communicator) {
    let mut data = [1u64; 3];
    communicator.all_reduce(&mut data, ReduceOp::Sum).expect("a sum");
    assert_eq!(data, [2; 3]);
}

#[test]
fn communicators_share_the_listeners_of_their_process() {
    in_own_process("listeners::communicators_share_the_listeners_of_their_process", &[], || {
        const JOBS: usize = 3;
        let options = Options::default().transport(TransportChoice::Tcp);
        let all = Barrier::new(2 * JOBS);
        let run = |splits: usize, waits: &Barrier| {
            let seen = std::sync::Mutex::new(0);
            on_ranks(2, Links::Joined, &options, |communicator| {
                sum(communicator);
                let parts: Vec<Communicator> = (0..splits)
                    .map(|_| communicator.split(Some(0), 0).expect("a split").expect("a part"))
                    .collect();
                parts.iter().for_each(sum);
                waits.wait();
                *seen.lock().expect("no panic") = listening_soon(2);
                waits.wait();
                Ok(())
            });
            seen.into_inner().expect("no panic")
        };
        // The socket of the control links, and one for data.
        let one = run(0, &Barrier::new(2));
        assert_eq!((one, listening_soon(0)), (2, 0));
        assert_eq!((run(19, &Barrier::new(2)), listening_soon(0)), (one, 0), "one job's communicators");
        // Jobs with keys of their own.
        let counts = std::thread::scope(|threads| {
            let jobs = [(); JOBS].map(|()| threads.spawn(|| run(6, &all)));
            jobs.map(|job| job.join().expect("a job"))
        });
        assert_eq!((counts, listening_soon(0)), ([one; JOBS], 0), "several jobs");
    });
}
