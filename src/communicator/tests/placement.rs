//! Ranks on the cores and memory nodes of their host.

use std::fs;
use std::time::Duration;

use crate::{Communicator, Options, ReduceOp, UniqueId};
use consort_control::bootstrap::Member;
use consort_settings::options::{Pinning, Settings};
use consort_topology::{Cores, Place, allowed};

/// Two ranks join, each in a thread of its own; where each may run before and when it has joined.
fn joined(pinning: Pinning) -> [(Cores, Cores); 2] {
    let id = UniqueId::create().expect("an id");
    let bytes = id.to_bytes();
    let join = &|rank: u32| {
        let before = allowed();
        let id = UniqueId::from_bytes(&bytes).expect("an id");
        let options = Options::default().pin(pinning);
        let comm = Communicator::join_with(rank, 2, &id, &options).expect("the other joins");
        let after = allowed();
        comm.barrier().expect("both are here");
        let is_shared = comm.core().policy().cores_shared;
        // It stays where it is, with the communicator and without it.
        drop(comm);
        assert_eq!(allowed(), after);
        // A rank with a core of its own does not wait as if it shared one.
        assert_eq!(is_shared, before.len() < 2);
        (before, after)
    };
    std::thread::scope(|threads| {
        let ranks = [0, 1].map(|rank| threads.spawn(move || join(rank)));
        ranks.map(|rank| rank.join().expect("no panic"))
    })
}

#[test]
fn joining_pins_the_thread_that_asks_for_it() {
    for (before, after) in joined(Pinning::None) {
        assert_eq!(before, after);
    }
    let [(before, first), (_, second)] = joined(Pinning::Cores);
    if before.is_empty() {
        return eprintln!("SKIP: the kernel does not tell who may run where");
    }
    assert_eq!((first.len(), second.len()), (1, 1));
    assert_eq!(first == second, before.len() == 1, "{first:?} and {second:?} of {before:?}");
    for (before, after) in joined(Pinning::Domains) {
        assert!(!after.is_empty() && after.is_subset(&before));
    }
}

#[test]
fn whoever_does_not_get_in_is_not_pinned() {
    let test = || {
        let before = allowed();
        let id = UniqueId::create().expect("an id");
        let options = Options::default().pin(Pinning::Cores).join_timeout(Duration::from_millis(50));
        assert!(Communicator::join_with(0, 2, &id, &options).is_err());
        assert_eq!(allowed(), before);
    };
    std::thread::spawn(test).join().expect("no panic");
}

/// What is counted is of the whole process: this runs in one of its own.
#[test]
fn memory_lies_where_its_reader_runs_on_a_host_with_several_nodes() {
    const NAME: &str =
        "communicator::tests::placement::memory_lies_where_its_reader_runs_on_a_host_with_several_nodes";
    // A process that runs this test alone is such a process.
    const ALONE: [&str; 4] = ["--exact", NAME, "--nocapture", "--test-threads=1"];
    if !ALONE.iter().all(|word| std::env::args().any(|argument| argument == *word)) {
        let mut command = std::process::Command::new(std::env::current_exe().expect("this program"));
        let output = command.args(ALONE).output().expect("this program");
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        eprintln!("{said}\n{errors}");
        assert!(output.status.success() && said.contains("1 passed"), "{said}\n{errors}");
        return;
    }
    // Only what lies in its owner's node has that policy.
    let placed = || {
        let maps = fs::read_to_string("/proc/self/numa_maps").ok()?;
        Some(maps.lines().filter(|line| line.split(' ').nth(1) == Some("prefer:0")).count())
    };
    let run = |node: Option<u32>| {
        let settings = Settings::resolve_from(&Options::default(), &|_| None).expect("settings");
        let at = |rank, of| {
            let place = Place { node: node.filter(|_| rank == 0), ..Place::default() };
            Member { cores: 64, place, ..of }
        };
        let ranks = Communicator::local_as(2, settings, &at).expect("ranks");
        std::thread::scope(|threads| {
            for comm in &ranks {
                threads.spawn(move || {
                    for count in [1, 100_000] {
                        let mut values = vec![1i32; count];
                        comm.all_reduce(&mut values, ReduceOp::Sum).expect("both call it");
                        assert_eq!(values, vec![2; count]);
                    }
                });
            }
        });
        placed()
    };
    let Some(none) = run(None) else { return eprintln!("SKIP: the kernel does not tell where memory lies") };
    assert_eq!(none, 0, "nothing is placed where there is nothing to choose");
    // The node is this machine's only one: what is seen is that it was asked for.
    let refused = consort_memory::Mapping::anonymous_on(4096, Some(0)).expect("memory").misplaced().is_some();
    assert_eq!(run(Some(0)).is_some_and(|placed| placed > 0), !refused);
    assert_eq!(placed(), Some(0), "it goes with its connection");
    assert_eq!(run(Some(700)), Some(0), "a node that is not there does no harm");
}
