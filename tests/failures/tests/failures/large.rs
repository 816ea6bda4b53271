//! Jobs of more ranks than are all linked to each other: a death is heard of by all, and so is what ranks agree on.

use consort_tests::job::{Start, alone};
use consort_tests::system::Random;
use nix::sys::signal::Signal;

use crate::RANK;

/// More than the 32 that are all linked.
const SIZE: u32 = 36;

fn a_death_is_heard_of_by_all(transport: &str, random: &mut Random) {
    let _alone = alone();
    let victim = (random.draw() % u64::from(SIZE)) as u32;
    let start = Start::new(RANK, "large", SIZE).with("victim", victim);
    let mut job = start.env("CONSORT_TRANSPORT", transport).env("CONSORT_TIMEOUT", 120).go();
    (0..SIZE).for_each(|rank| drop(job.line(rank, "turn")));
    let pid = job.pid(victim);
    job.signal(victim, Signal::SIGKILL);
    let stay: Vec<u32> = (0..SIZE).filter(|rank| *rank != victim).collect();
    for rank in &stay {
        let text = job.failure(*rank, "PeerLost");
        // By its number in the communicator, and in the job.
        let named = text.contains(&format!("rank {} ", SIZE - 1 - victim))
            && text.contains(&format!("process {pid}"));
        assert!(named, "{victim} over {transport}: {text}");
    }
    for (new, rank) in stay.iter().rev().enumerate() {
        assert_eq!(job.line(*rank, "left "), format!("{new} of {}", SIZE - 1), "{}", job.output());
    }
    // Those that leave are lost to no rank that goes on.
    let (early, late): (Vec<_>, Vec<_>) = stay.iter().rev().enumerate().partition(|(new, _)| new % 2 == 0);
    for (_, rank) in &early {
        job.say(**rank, "go on");
        job.line(**rank, "gone");
        assert!(job.end(**rank).success(), "{}", job.output());
    }
    for (_, rank) in &late {
        job.say(**rank, "go on");
    }
    for (_, rank) in &late {
        job.line(**rank, "still");
        assert!(job.end(**rank).success(), "{}", job.output());
    }
    job.end(victim);
}

#[test]
fn in_a_large_job_over_shared_memory_a_death_is_heard_of_by_all() {
    a_death_is_heard_of_by_all("shm", &mut Random::announced("a death in a large job over shared memory"));
}

#[test]
fn in_a_large_job_over_tcp_a_death_is_heard_of_by_all() {
    a_death_is_heard_of_by_all("tcp", &mut Random::announced("a death in a large job over tcp"));
}
