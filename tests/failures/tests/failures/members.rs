//! Ranks that are processes and whose communicators change: without ranks that died, stopped or are not wanted, and
//! with new ones.

use std::time::{Duration, Instant};

use consort::Rank;
use consort_tests::job::{Job, Start, alone};
use consort_tests::system::Random;
use nix::sys::signal::Signal;

use crate::RANK;

/// Starts a job of `size` ranks, from which `victims` will be left out.
fn shrinking(scenario: &'static str, size: u32, victims: &[Rank], transport: &str) -> Start {
    let victims: Vec<String> = victims.iter().map(ToString::to_string).collect();
    let start = Start::new(RANK, scenario, size).with("victims", victims.join(","));
    start.env("CONSORT_TRANSPORT", transport)
}

fn without(size: u32, victims: &[Rank]) -> Vec<Rank> {
    (0..size).filter(|rank| !victims.contains(rank)).collect()
}

/// A job in which some ranks were killed or stopped in the midst of operations.
struct Struck {
    job: Job,
    at: Instant,
    size: u32,
    victims: Vec<Rank>,
    of: &'static str,
    transport: &'static str,
    signal: Signal,
}

fn strike(
    size: u32,
    victims: &[Rank],
    of: &'static str,
    transport: &'static str,
    signal: Signal,
    random: &mut Random,
) -> Struck {
    // The deadline of the call that the victims do not enter; later calls have time.
    let deadline = if signal == Signal::SIGSTOP { 2 } else { 20 };
    let start = shrinking("shrink", size, victims, transport).with("of", of).with("deadline", deadline);
    let mut job = start.env("CONSORT_TIMEOUT", 20).go();
    (0..size).for_each(|rank| drop(job.line(rank, "turn")));
    std::thread::sleep(random.duration(Duration::from_millis(100)));
    victims.iter().for_each(|rank| job.signal(*rank, signal));
    Struck { job, at: Instant::now(), size, victims: victims.to_vec(), of, transport, signal }
}

impl Struck {
    /// The ranks that stay go on, whatever happens to the victims. Then one more is killed.
    fn others_go_on(self) {
        let Struck { mut job, at, size, victims, of, transport, signal } = self;
        let stay = without(size, &victims);
        for rank in &stay {
            let (line, _) = job.line_at(*rank, "failed ");
            let expected = if signal == Signal::SIGKILL { "PeerLost:" } else { "Timeout:" };
            assert!(line.starts_with(expected) || line.starts_with("Revoked:"), "{line}");
        }
        let mut last_at = at;
        for (new, rank) in stay.iter().enumerate() {
            let new = if of == "part" { stay.len() - 1 - new } else { new };
            let (line, at) = job.line_at(*rank, "left ");
            assert_eq!(line, format!("{new} of {}", stay.len()), "{}", job.output());
            last_at = last_at.max(at);
        }
        let took = last_at.saturating_duration_since(at);
        println!("{transport}, {size} ranks without {victims:?} ({signal}): {took:?}");
        // No rank has waited for the long deadline.
        assert!(took < Duration::from_secs(15), "{took:?}");
        if signal == Signal::SIGSTOP {
            for rank in &victims {
                job.signal(*rank, Signal::SIGCONT);
                job.line(*rank, "failed ");
                assert!(job.end(*rank).success(), "{}", job.output());
            }
        }
        stay.iter().for_each(|rank| job.say(*rank, "go on"));
        stay.iter().for_each(|rank| drop(job.line(*rank, "still")));
        // The last one of the new communicator dies too.
        let (last, rest) = match of {
            "part" => (stay[0], &stay[1..]),
            _ => (stay[stay.len() - 1], &stay[..stay.len() - 1]),
        };
        job.signal(last, Signal::SIGKILL);
        for rank in rest {
            let (line, _) = job.line_at(*rank, "failed ");
            assert!(line.starts_with("PeerLost:") || line.starts_with("Revoked:"), "{line}");
        }
        for rank in rest {
            assert!(job.line(*rank, "fewer ").ends_with(&format!("of {}", rest.len())), "{}", job.output());
            job.say(*rank, "end");
        }
        rest.iter().for_each(|rank| assert!(job.end(*rank).success(), "{}", job.output()));
    }
}

#[test]
fn processes_go_on_without_those_that_died() {
    let _alone = alone();
    let mut random = Random::announced("processes_go_on_without_those_that_died");
    for transport in ["shm", "tcp"] {
        // Rank 0, which was the first of the job, and another one.
        for (size, victims, of) in [(4, &[1][..], "all"), (5, &[0, 3], "all"), (4, &[2], "part")] {
            strike(size, victims, of, transport, Signal::SIGKILL, &mut random).others_go_on();
        }
    }
}

/// The jobs wait for their deadlines side by side: each is started when those before it wait.
#[test]
fn processes_go_on_without_those_that_stopped() {
    let _alone = alone();
    let mut random = Random::announced("processes_go_on_without_those_that_stopped");
    let mut jobs = Vec::new();
    for transport in ["shm", "tcp"] {
        for (victims, of) in [(&[0][..], "all"), (&[1, 2], "part")] {
            jobs.push(strike(4, victims, of, transport, Signal::SIGSTOP, &mut random));
        }
    }
    jobs.into_iter().for_each(Struck::others_go_on);
}

#[test]
fn idle_processes_leave_others_out() {
    let _alone = alone();
    for (transport, signal) in [("shm", None), ("tcp", Some(Signal::SIGSTOP)), ("shm", Some(Signal::SIGKILL))]
    {
        let (size, victims) = (4, [2]);
        let stay = without(size, &victims);
        let mut job = shrinking("shrink-idle", size, &victims, transport).go();
        (0..size).for_each(|rank| drop(job.line(rank, "idle")));
        if signal == Some(Signal::SIGSTOP) {
            job.signal(2, Signal::SIGSTOP);
        }
        stay.iter().for_each(|rank| job.say(*rank, "shrink"));
        for (new, rank) in stay.iter().enumerate() {
            assert_eq!(job.line(*rank, "left "), format!("{new} of 3"), "{}", job.output());
        }
        match signal {
            Some(Signal::SIGSTOP) => job.signal(2, Signal::SIGCONT),
            Some(signal) => job.signal(2, signal),
            None => {}
        }
        stay.iter().for_each(|rank| job.say(*rank, "go on"));
        stay.iter().for_each(|rank| drop(job.line(*rank, "still")));
        (0..size).for_each(|rank| job.say(rank, "the old one"));
        if signal == Some(Signal::SIGKILL) {
            stay.iter().for_each(|rank| drop(job.failure(*rank, "PeerLost")));
        } else {
            (0..size).for_each(|rank| drop(job.line(rank, "passed")));
        }
        (0..size).for_each(|rank| job.say(rank, "end"));
        stay.iter().for_each(|rank| assert!(job.end(*rank).success(), "{}", job.output()));
    }
}

#[test]
fn a_rank_that_dies_in_the_midst_is_named_and_left_out_next() {
    let _alone = alone();
    for transport in ["shm", "tcp"] {
        let mut job = shrinking("shrink-and-die", 5, &[4], transport).with("dies", 1).go();
        (0..5).for_each(|rank| drop(job.line(rank, "idle")));
        // Rank 3 comes later and knows already.
        [0, 2].iter().for_each(|rank| job.say(*rank, "shrink"));
        [0, 2].iter().for_each(|rank| drop(job.line(*rank, "in it")));
        job.signal(1, Signal::SIGKILL);
        for rank in [0, 2] {
            let text = job.failure(rank, "PeerLost");
            assert!(text.contains("rank 1 ") && text.contains("during shrink #"), "{text}");
        }
        job.say(3, "shrink");
        job.failure(3, "PeerLost");
        for (new, rank) in [0, 2, 3].into_iter().enumerate() {
            assert_eq!(job.line(rank, "left "), format!("{new} of 3"), "{}", job.output());
            assert!(job.end(rank).success(), "{}", job.output());
        }
    }
}

#[test]
fn a_part_goes_on_after_the_death_of_a_rank_that_is_not_of_it() {
    let _alone = alone();
    for transport in ["shm", "tcp"] {
        let mut job = shrinking("part-without", 4, &[0], transport).go();
        (0..4).for_each(|rank| drop(job.line(rank, "idle")));
        job.signal(0, Signal::SIGKILL);
        for rank in 1..4 {
            job.failure(rank, "PeerLost");
            assert_eq!(job.line(rank, "left "), format!("{} of 3", rank - 1), "{}", job.output());
            assert!(job.end(rank).success(), "{}", job.output());
        }
    }
}

#[test]
fn processes_join_a_communicator_that_is_there() {
    let _alone = alone();
    for (transport, coordinator) in [("shm", 0), ("tcp", 2)] {
        let start = Start::new(RANK, "grow", 5).with("old", 3).with("coordinator", coordinator);
        let mut job = start.env("CONSORT_TRANSPORT", transport).env("CONSORT_TIMEOUT", 20).go();
        let id = job.line(coordinator, "id ");
        [3, 4].iter().for_each(|rank| job.say(*rank, &id));
        for rank in 0..5 {
            assert_eq!(job.line(rank, "more "), format!("{rank} of 5"), "{}", job.output());
        }
        (0..5).for_each(|rank| job.say(rank, "end"));
        job.all_end_well();
    }
}

#[test]
fn memory_is_given_back_and_made_again() {
    let _alone = alone();
    let mut random = Random::announced("memory_is_given_back_and_made_again");
    for transport in ["shm", "tcp"] {
        let seed = random.draw() % (1 << 32);
        let start = Start::new(RANK, "suspend", 3).with("turns", 20).with("seed", seed);
        let mut job = start.env("CONSORT_TRANSPORT", transport).env("CONSORT_TIMEOUT", 20).go();
        for rank in 0..3 {
            let line = job.line(rank, "memory ");
            let bytes: Vec<usize> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
            println!("{transport}: {} bytes in use, {} suspended", bytes[0], bytes[1]);
            assert!(bytes[1] < bytes[0] / 4, "{line}");
        }
        job.all_end_well();
    }
}
