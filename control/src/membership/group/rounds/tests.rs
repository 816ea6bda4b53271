//! Agreements of ranks of one process, whose messages arrive at once, in time that the tests make.

use std::sync::{Arc, Weak};

use consort_transports::fuzzing::live_bytes;

use super::*;
use crate::bootstrap;
use crate::clock::Clock;
use crate::membership::member::{Link, Member};
use crate::membership::overlay::FULL_MAX;
use crate::recorder::RECORDS;
use consort_transports::fuzzing::Random;

/// Ranks linked to each other, each with the communicator of all.
struct Job {
    groups: Vec<Arc<Group>>,
    now: Instant,
}

impl Job {
    fn new(size: u32) -> Self {
        Self::of(vec![bootstrap::Member::unknown(); size as usize], FULL_MAX)
    }

    /// Whose ranks hear some others through their neighbours only.
    fn sparse(size: u32) -> Self {
        let process = |rank: u32| [rank as u8; 16];
        let member = |rank| bootstrap::Member { process: process(rank), ..bootstrap::Member::unknown() };
        Self::of((0..size).map(member).collect(), 1)
    }

    fn of(table: Vec<bootstrap::Member>, full: u32) -> Self {
        let size = table.len() as u32;
        let member = |rank| {
            let (clock, registry) = (Clock::default(), Arc::default());
            Member::within(Weak::new(), clock, registry, [5; 16], [6; 32], rank, table.clone(), full)
        };
        let members: Vec<Arc<Member>> = (0..size).map(member).collect();
        for member in &members {
            for peer in &members {
                member.set_link(peer.rank, Link::Local(Arc::downgrade(peer)));
            }
        }
        let group = |member| Group::new(member, 7, (0..size).collect(), RECORDS);
        Job { groups: members.into_iter().map(group).collect(), now: Instant::now() }
    }

    fn begin(&self, rank: Rank, among: &[Rank], words: &[u64]) -> Agreement {
        let until = self.now + Duration::from_secs(10);
        Agreement::begin(&self.groups[rank as usize], among.to_vec(), words.to_vec(), 1, until)
    }

    fn poll(&self, rank: Rank, agreement: &mut Agreement) -> Option<Result<Agreed, Disagreement>> {
        agreement.poll(&self.groups[rank as usize], self.now)
    }

    fn loses(&self, rank: Rank) {
        for group in self.groups.iter().filter(|group| group.rank != rank) {
            group.member.lost(rank, "it ended", true);
        }
    }
}

fn agreed(round: u64, words: &[&[u64]]) -> Option<Result<Agreed, Disagreement>> {
    Some(Ok(Agreed { round, words: words.iter().map(|words| words.to_vec()).collect() }))
}

#[test]
fn those_that_stay_agree_without_the_others() {
    let job = Job::new(4);
    let mut first = job.begin(0, &[0, 3], &[9, 100]);
    assert_eq!(job.poll(0, &mut first), None);
    job.loses(1);
    let mut last = job.begin(3, &[0, 3], &[9, 103]);
    assert_eq!(job.poll(3, &mut last), agreed(1, &[&[9, 100], &[9, 103]]));
    assert_eq!(job.poll(0, &mut first), agreed(1, &[&[9, 100], &[9, 103]]));
}

#[test]
fn who_tried_less_often_follows_who_tried_more_often() {
    let mut job = Job::new(3);
    for _ in 0..2 {
        let mut alone = job.begin(0, &[0, 1], &[9]);
        job.now += Duration::from_secs(10);
        assert_eq!(job.poll(0, &mut alone), Some(Err(Disagreement::Silent(vec![1]))));
        alone.give_up(&job.groups[0]);
    }
    // What was given up counts no longer.
    let mut other = job.begin(1, &[0, 1], &[9]);
    assert_eq!(job.poll(1, &mut other), None);
    let mut again = job.begin(0, &[0, 1], &[9]);
    assert_eq!(job.poll(0, &mut again), None);
    assert_eq!(job.poll(1, &mut other), agreed(3, &[&[9], &[9]]));
    assert_eq!(job.poll(0, &mut again), agreed(3, &[&[9], &[9]]));
}

#[test]
fn who_is_a_round_ahead_does_not_take_the_others_along() {
    let job = Job::new(2);
    let (mut one, mut other) = (job.begin(0, &[0, 1], &[9]), job.begin(1, &[0, 1], &[9]));
    assert_eq!(job.poll(0, &mut one), agreed(1, &[&[9], &[9]]));
    let mut next = job.begin(0, &[0, 1], &[8]);
    assert_eq!(job.poll(1, &mut other), agreed(1, &[&[9], &[9]]));
    let mut other = job.begin(1, &[0, 1], &[8]);
    assert_eq!(job.poll(1, &mut other), agreed(2, &[&[8], &[8]]));
    assert_eq!(job.poll(0, &mut next), agreed(2, &[&[8], &[8]]));
}

#[test]
fn differences_last_a_moment_before_they_count() {
    let mut job = Job::new(3);
    let mut late = job.begin(0, &[0, 1, 2], &[1]);
    let mut early = job.begin(1, &[0, 1], &[2]);
    assert_eq!(job.poll(1, &mut early), None, "rank 0 may hear of the loss of rank 2 yet");
    job.loses(2);
    let end = job.poll(0, &mut late);
    assert!(matches!(end, Some(Err(Disagreement::Lost(2, _)))), "{end:?}");
    late.give_up(&job.groups[0]);
    let mut again = job.begin(0, &[0, 1], &[2]);
    job.now += GRACE;
    assert_eq!(job.poll(1, &mut early), agreed(2, &[&[2], &[2]]));
    assert_eq!(job.poll(0, &mut again), agreed(2, &[&[2], &[2]]));
    let (mut one, mut other) = (job.begin(0, &[0, 1], &[3]), job.begin(1, &[0, 1], &[4]));
    assert_eq!(job.poll(0, &mut one), None);
    job.now += GRACE;
    let differ = Disagreement::Differ(vec![(0, vec![3]), (1, vec![4])]);
    assert_eq!(job.poll(0, &mut one), Some(Err(differ)));
    one.give_up(&job.groups[0]);
    assert_eq!(job.poll(1, &mut other), None, "it looks for the first time");
    job.now += GRACE;
    let differ = Disagreement::Differ(vec![(0, vec![3]), (1, vec![4])]);
    assert_eq!(job.poll(1, &mut other), Some(Err(differ)));
    other.give_up(&job.groups[1]);
    // Both are right the next time, and what they said before does not matter any more.
    let (mut one, mut other) = (job.begin(0, &[0, 1], &[4]), job.begin(1, &[0, 1], &[4]));
    assert_eq!(job.poll(0, &mut one), agreed(4, &[&[4], &[4]]));
    assert_eq!(job.poll(1, &mut other), agreed(4, &[&[4], &[4]]));
}

#[test]
fn words_that_were_wrong_are_not_held_against_those_who_come_right() {
    let mut job = Job::new(3);
    let (mut one, mut other) = (job.begin(0, &[0, 1, 2], &[3]), job.begin(1, &[0, 1, 2], &[4]));
    assert_eq!((job.poll(0, &mut one), job.poll(1, &mut other)), (None, None));
    job.now += GRACE;
    assert!(job.poll(0, &mut one).is_some() && job.poll(1, &mut other).is_some());
    one.give_up(&job.groups[0]);
    other.give_up(&job.groups[1]);
    let (mut one, mut other) = (job.begin(0, &[0, 1, 2], &[3]), job.begin(1, &[0, 1, 2], &[3]));
    assert_eq!((job.poll(0, &mut one), job.poll(1, &mut other)), (None, None));
    let mut late = job.begin(2, &[0, 1, 2], &[3]);
    assert_eq!(job.poll(2, &mut late), agreed(2, &[&[3], &[3], &[3]]));
    assert_eq!(job.poll(0, &mut one), agreed(2, &[&[3], &[3], &[3]]));
    assert_eq!(job.poll(1, &mut other), agreed(2, &[&[3], &[3], &[3]]));
}

#[test]
fn who_has_closed_the_communicator_is_not_waited_for() {
    let job = Job::new(3);
    let mut one = job.begin(0, &[0, 1], &[9]);
    let mut other = job.begin(1, &[0, 1], &[9]);
    assert_eq!(job.poll(1, &mut other), agreed(1, &[&[9], &[9]]));
    job.groups[1].leave();
    assert_eq!(job.poll(0, &mut one), agreed(1, &[&[9], &[9]]), "it has said its words before");
    let mut next = job.begin(0, &[0, 1], &[8]);
    assert_eq!(job.poll(0, &mut next), Some(Err(Disagreement::Left(1))));
}

#[test]
fn agreements_leave_nothing_behind() {
    let job = Job::new(2);
    let turn = |_| {
        let (mut one, mut other) = (job.begin(0, &[0, 1], &[9; 500]), job.begin(1, &[0, 1], &[9; 500]));
        assert!(job.poll(0, &mut one).is_some_and(|end| end.is_ok()));
        assert!(job.poll(1, &mut other).is_some_and(|end| end.is_ok()));
    };
    (0..3).for_each(turn);
    let before = live_bytes();
    (0..100).for_each(turn);
    assert!(live_bytes() - before < 4000, "{} bytes more", live_bytes() - before);
}

/// Ranks that try at times of their own, die and notice that at times of their own: those that stay come together.
#[test]
fn whoever_stays_comes_together() {
    for seed in 0..2000 {
        let mut random = Random::new(seed);
        let size = 2 + random.below(5) as u32;
        let mut job = Job::new(size);
        // Rank 0 stays.
        let doomed: Vec<Rank> = (1..size).filter(|_| random.below(2) == 0).collect();
        let mut known: Vec<Vec<Rank>> = vec![Vec::new(); size as usize];
        let mut dead: Vec<Rank> = Vec::new();
        let mut attempts: Vec<Option<Agreement>> = (0..size).map(|_| None).collect();
        let mut ends: Vec<Option<Agreed>> = (0..size).map(|_| None).collect();
        let stay: Vec<Rank> = (0..size).filter(|rank| !doomed.contains(rank)).collect();
        for turn in 0.. {
            assert!(turn < 20_000, "seed {seed}: {size} ranks without {doomed:?} do not agree: {ends:?}");
            job.now += Duration::from_millis(random.below(20) as u64);
            if dead.len() < doomed.len() && random.below(20) == 0 {
                dead.push(doomed[dead.len()]);
                attempts[doomed[dead.len() - 1] as usize] = None;
            }
            let rank = random.below(size as usize) as Rank;
            if dead.contains(&rank) {
                continue;
            }
            let at = rank as usize;
            if known[at].len() < dead.len() && random.below(3) == 0 {
                let lost = dead[known[at].len()];
                known[at].push(lost);
                job.groups[at].member.lost(lost, "it ended", true);
            }
            let among: Vec<Rank> = (0..size).filter(|rank| !known[at].contains(rank)).collect();
            // One whose new communicator lost a rank at once tries again.
            if let Some(end) = &ends[at]
                && end.words[0][0] != known[at].len() as u64
            {
                ends[at] = None;
            }
            if ends[at].is_some() {
                let together = stay.iter().all(|rank| ends[*rank as usize] == ends[at]);
                if together && dead.len() == doomed.len() && known[at].len() == dead.len() {
                    let words = ends[at].iter().flat_map(|end| &end.words);
                    assert_eq!(words.count(), stay.len(), "seed {seed}");
                    break;
                }
                continue;
            }
            let words = [known[at].len() as u64, u64::from(rank)];
            let mut attempt = attempts[at].take().unwrap_or_else(|| job.begin(rank, &among, &words));
            match job.poll(rank, &mut attempt) {
                None => attempts[at] = Some(attempt),
                Some(Ok(end)) => ends[at] = Some(end),
                Some(Err(_)) => attempt.give_up(&job.groups[at]),
            }
        }
    }
}

#[test]
fn words_are_passed_on_and_may_come_after_their_rank_has_left() {
    // Rank 0 is no neighbour of rank 3.
    let mut job = Job::sparse(6);
    assert_eq!(job.groups[0].neighbours(), [1, 2, 4, 5]);
    let all = [0, 1, 2, 3, 4, 5];
    let mut others: Vec<Agreement> = [0, 1, 2, 4, 5].map(|rank| job.begin(rank, &all, &[9])).into();
    assert_eq!(job.poll(0, &mut others[0]), None);
    // What rank 3 says comes through the others.
    let mut late = job.begin(3, &all, &[9]);
    let words: [&[u64]; 6] = [&[9]; 6];
    assert_eq!(job.poll(0, &mut others[0]), agreed(1, &words));
    assert_eq!(job.poll(3, &mut late), agreed(1, &words));
    // That it has left comes before its words.
    let mut first = job.begin(0, &[0, 3], &[9]);
    let leave = || Message::Leave { snapshot: crate::recorder::Snapshot::default() };
    job.groups[0].receive(3, leave());
    assert_eq!(job.poll(0, &mut first), None);
    job.now += GRACE / 2;
    assert_eq!(job.poll(0, &mut first), None);
    job.groups[0].receive(1, Message::Passed { of: 3, number: 2, round: 2, words: vec![9] });
    assert_eq!(job.poll(0, &mut first), agreed(2, &[&[9], &[9]]));
    // It never said any.
    let mut again = job.begin(0, &[0, 3], &[9]);
    assert_eq!(job.poll(0, &mut again), None);
    job.now += GRACE;
    assert_eq!(job.poll(0, &mut again), Some(Err(Disagreement::Left(3))));
}

#[test]
fn of_what_a_rank_said_in_a_round_the_last_counts_however_it_came() {
    let mut rounds = Rounds::default();
    assert!(rounds.hear_passed(1, 2, 5, &[]), "it took back what has not come");
    assert!(!rounds.hear_passed(1, 1, 5, &[7]) && rounds.words(1, 5).is_none());
    assert!(rounds.hear_passed(1, 4, 6, &[8]) && rounds.hear_passed(1, 3, 5, &[9]));
    assert!(!rounds.hear_passed(1, 4, 6, &[8]), "it came another way before");
    assert_eq!((rounds.words(1, 5), rounds.words(1, 6)), (Some(&vec![9]), Some(&vec![8])));
}

#[test]
fn who_leaves_repeats_what_it_said_last() {
    let job = Job::sparse(6);
    let mut first = job.begin(0, &[0, 4], &[9]);
    let mut other = job.begin(4, &[0, 4], &[9]);
    assert_eq!(job.poll(4, &mut other), agreed(1, &[&[9], &[9]]));
    // On a slow way they have not come to rank 0 yet.
    job.groups[0].state().rounds.heard.remove(&4);
    job.groups[0].state().rounds.numbers.remove(&4);
    assert_eq!(job.poll(0, &mut first), None);
    job.groups[4].leave();
    assert!(job.groups[0].has_left(4));
    assert_eq!(job.poll(0, &mut first), agreed(1, &[&[9], &[9]]));
}
