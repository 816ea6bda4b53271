//! Messages of an authenticated peer: any, many, about any communicator.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use consort_transports::Address;
use consort_transports::fuzzing::{Input, Seen, Target, fuzz, live_bytes};

use super::{JOB, KEY, table, times};
use crate::membership::group::{Agreement, Failure, Group};
use crate::membership::inquiry::Inquiry;
use crate::membership::member::{Link, Member};
use crate::membership::overlay::FULL_MAX;
use crate::membership::wire::{self, FRAME_BYTES_MAX, Message};
use crate::recorder::{RECORDS, Snapshot};
use crate::report::analyse;
use consort_types::Rank;
use consort_types::error::Error;

const SIZE: u32 = 4;
/// The one that is hostile; the honest ones are 0 and 1, and rank 2 says nothing.
const HOSTILE: Rank = 3;
const WORLD: u64 = u64::from_le_bytes([5; 8]);
/// A communicator that is made in the course of some inputs.
const LATER: u64 = 78;

/// What a hostile rank can make two honest ones keep, each: early messages as bytes (twice a frame and what went over it,
/// in a buffer that grows by doubling); in each of two groups its addresses (320 bytes each, 256 of them), two rounds of
/// 1,040 words, its last answer (256 positions, 128 records) and its first failure (its texts and a line for each rank),
/// which are together below a MiB.
const KEPT_MAX: isize = 2 * (6 * FRAME_BYTES_MAX as isize + 2 * (1 << 20));

/// While an input is handled: what is kept, and a message on its way (64 times its bytes at most, see the frames' target),
/// which the report that is made in the end repeats.
const BYTES_MAX: usize = KEPT_MAX as usize + (32 << 20);

const TARGET: Target = Target {
    name: "control-messages",
    command: "-p consort-control --lib membership::fuzz::messages",
    bytes_max: BYTES_MAX,
    inputs: 15_000,
};

/// One honest rank.
struct Honest {
    member: Arc<Member>,
    world: Arc<Group>,
    later: Option<Arc<Group>>,
}

impl Honest {
    fn new(rank: Rank) -> Self {
        let member = Member::within(
            Weak::new(),
            crate::clock::Clock::default(),
            Arc::default(),
            JOB,
            KEY,
            rank,
            table(SIZE),
            FULL_MAX,
        );
        let world = Group::new(member.clone(), WORLD, (0..SIZE).collect(), RECORDS);
        Honest { member, world, later: None }
    }

    fn groups(&self) -> impl Iterator<Item = &Arc<Group>> {
        std::iter::once(&self.world).chain(&self.later)
    }
}

/// The message again, with another number in it.
fn varied(message: &Message, communicator: u64, by: u64, unknown: bool) -> (u64, Message) {
    let mut message = message.clone();
    match &mut message {
        Message::Address { channel, .. } => *channel = channel.wrapping_add(by as u16),
        Message::Gather { round, .. } => *round = round.wrapping_add(by),
        Message::Query { token } | Message::State { token, .. } => *token = token.wrapping_add(by),
        Message::Poison { failure } => {
            failure.origin = failure.origin.wrapping_add(by as u32) % (SIZE + 1);
            if let Error::Link { from, to, .. } = &mut failure.error {
                *from = from.wrapping_add(by as u32);
                *to = to.wrapping_add((by >> 1) as u32);
            }
        }
        Message::Passed { of, number, .. } => {
            *of = of.wrapping_add((by >> 4) as u32);
            *number = number.wrapping_add(by);
        }
        Message::Gone { rank, .. } => *rank = rank.wrapping_add(by as u32),
        Message::Paths { sights } => {
            for (rank, left, _) in sights {
                *rank = rank.wrapping_add(by as u32);
                *left = left.wrapping_add((by >> 8) as u32);
            }
        }
        Message::Propose { change } | Message::Promise { change, .. } | Message::Change { change, .. } => {
            *change = change.wrapping_add(by);
        }
        Message::Parted | Message::Bye | Message::Here => {}
        Message::Leave { snapshot } => snapshot.finished = snapshot.finished.wrapping_add(by),
    }
    (if unknown { communicator.wrapping_add(by) } else { communicator }, message)
}

/// An event: what happens, to whom, how often; then bytes.
fn event(honest: &mut [Honest; 2], piece: &[u8], seen: &mut Seen) {
    let [what, to, count, bytes @ ..] = piece else { return };
    let one = &mut honest[usize::from(to & 1)];
    let later = to & 2 != 0;
    match what % 8 {
        // Mostly frames, as they came over the link.
        0..=3 => {
            let mut bytes = bytes;
            while let Ok(Some((communicator, message))) = wire::decode(&mut bytes) {
                let name: String = format!("{message:?}").chars().take(8).collect();
                seen.note((name, communicator == WORLD, one.world.has_failed()));
                if what % 4 == 0 {
                    one.member.receive(HOSTILE, communicator, message);
                    continue;
                }
                for by in times(*count) {
                    let (communicator, message) = varied(&message, communicator, by, what % 4 == 1);
                    one.member.receive(HOSTILE, communicator, message);
                }
            }
        }
        4 => {
            let group = if later { one.later.clone() } else { Some(one.world.clone()) };
            if let Some(group) = group {
                let among = (0..group.size()).collect();
                let shared = usize::from(*count % 4);
                let mut agreement = Agreement::begin(&group, among, vec![1, 2, 3], shared, Instant::now());
                let end = agreement.poll(&group, Instant::now());
                seen.note(("agreed", agreement.round().ilog2(), end.map(|end| end.is_ok())));
                agreement.give_up(&group);
            }
        }
        5 if one.later.is_none() => {
            one.later = Some(Group::new(one.member.clone(), LATER, vec![0, 1, HOSTILE], RECORDS));
        }
        5 => {
            if let Some(group) = one.later.take() {
                group.leave();
            }
        }
        6 => {
            let group = if later { one.later.clone() } else { Some(one.world.clone()) };
            let address =
                group.and_then(|group| group.take_address(HOSTILE.min(group.size() - 1), u16::from(*count)));
            seen.note(("address", address.is_some()));
        }
        _ if *count == 0 => one.member.lost(HOSTILE, "its process ended", true),
        _ => one.world.ask(HOSTILE),
    }
}

/// All that is made of what was heard.
fn conclude(honest: &Honest, seen: &mut Seen) {
    let now = Instant::now();
    for group in honest.groups() {
        let mut inquiry = Inquiry::start(group, now + Duration::from_secs(1));
        let over = inquiry.is_over(group, now);
        let evidence = inquiry.evidence(group, None, Duration::from_secs(1));
        let report = analyse(&evidence);
        assert_eq!(report.ranks.len(), group.size() as usize);
        let text = report.to_string();
        // Names of communicators are digits and letters.
        seen.note((std::mem::discriminant(&report.guilty), report.verdict.split(' ').count()));
        seen.note((over, text.lines().count(), report.to_json().len().ilog2()));
        if group.has_failed() {
            let error = group.settled(now + Duration::from_secs(10)).expect("settled in time");
            seen.note((std::mem::discriminant(&error), error.to_string().len().ilog2()));
        }
        let _ = group.silent_since(1);
        if let Some(report) = group.report() {
            seen.note((report.ranks.len().min(8), report.to_string().len().ilog2()));
        }
    }
}

fn originals() -> Vec<Input> {
    let framed = |communicator: u64, message: &Message, head: [u8; 3]| {
        let mut bytes = head.to_vec();
        wire::encode(communicator, message, &mut bytes);
        bytes
    };
    let mut all: Vec<Input> = Vec::new();
    for message in wire::tests::samples() {
        all.push(vec![framed(WORLD, &message, [0, 0, 0])]);
        all.push(vec![framed(WORLD, &message, [2, 0, 12])]);
        all.push(vec![
            framed(LATER, &message, [1, 0, 12]),
            vec![5, 0, 0],
            framed(LATER, &message, [0, 1, 0]),
        ]);
    }
    let large = Address { transport: "t".repeat(8000), bytes: vec![1; 200] };
    let link = Error::Link { from: 0, to: 1, transport: "x".into(), cause: "y".into() };
    let failure = Failure { origin: 1, error: link, report: None };
    for (message, how) in [
        (Message::Address { channel: 0, address: large }, 2),
        (Message::Poison { failure }, 2),
        (Message::Gather { round: 1, words: vec![7; 3000] }, 2),
        (Message::Gather { round: 1, words: vec![7; 3000] }, 1),
    ] {
        all.push(vec![framed(WORLD, &message, [how, 0, 12])]);
    }
    all.push(vec![vec![4, 0, 1], vec![4, 1, 1], vec![6, 0, 3], vec![7, 0, 1], vec![7, 0, 0]]);
    let leave = Message::Leave { snapshot: Snapshot::default() };
    all.push(vec![vec![5, 0, 0], framed(LATER, &leave, [2, 0, 4]), vec![5, 0, 0], vec![5, 0, 0]]);
    all
}

fn handle(input: &Input, seen: &mut Seen) {
    let mut honest = [0, 1].map(Honest::new);
    // As it is between ranks of one process.
    let [one, two] = &honest;
    assert!(one.member.set_link(1, Link::Local(Arc::downgrade(&two.member))));
    assert!(two.member.set_link(0, Link::Local(Arc::downgrade(&one.member))));
    let before = live_bytes();
    for piece in input {
        event(&mut honest, piece, seen);
    }
    let kept = live_bytes() - before;
    assert!(kept <= KEPT_MAX, "{kept} bytes are kept for what a peer said");
    seen.note(("kept", (kept.max(1) as usize).ilog2()));
    for one in &honest {
        conclude(one, seen);
    }
}

#[test]
fn whatever_a_peer_says_costs_a_bounded_amount_and_breaks_nothing() {
    fuzz(&TARGET, originals(), handle);
}

#[test]
fn messages_of_other_ranks_are_kept_although_one_floods() {
    let honest = Honest::new(0);
    let address = || Address { transport: "shm".into(), bytes: vec![0; 200] };
    for round in 0..20_000 {
        honest.member.receive(HOSTILE, round, Message::Gather { round, words: vec![round; 100] });
        honest.member.receive(HOSTILE, LATER, Message::Address { channel: round as u16, address: address() });
    }
    honest.member.receive(1, LATER, Message::Address { channel: 3, address: address() });
    for round in 0..10 {
        honest.member.receive(HOSTILE, WORLD, Message::Gather { round: 100 + round, words: vec![1] });
    }
    for rank in 1..HOSTILE {
        honest.member.receive(rank, WORLD, Message::Gather { round: 1, words: vec![1] });
    }
    let later = Group::new(honest.member.clone(), LATER, vec![0, 1, HOSTILE], RECORDS);
    assert!(later.take_address(1, 3).is_some(), "the flood of one rank displaced another's message");
    let others = (0..HOSTILE).collect();
    let mut agreement = Agreement::begin(&honest.world, others, vec![1], 1, Instant::now());
    let end = agreement.poll(&honest.world, Instant::now()).expect("all have said their words");
    assert_eq!(
        end.map(|agreed| agreed.words.len()),
        Ok(HOSTILE as usize),
        "the flood displaced words of others"
    );
}

/// What was found: the first of each was an unbounded amount, the last one an honest rank whose link broke.
#[test]
fn floods_of_one_kind_cost_what_one_rank_may_cost() {
    let framed = |communicator, message: &Message, head: [u8; 3]| {
        let mut bytes = head.to_vec();
        wire::encode(communicator, message, &mut bytes);
        bytes
    };
    let name = |bytes: usize| Address { transport: "t".repeat(bytes), bytes: vec![1; 200] };
    let link = Error::Link { from: 0, to: 1, transport: "x".into(), cause: "y".into() };
    let poison = Message::Poison { failure: Failure { origin: 1, error: link, report: None } };
    for (message, how) in [
        (Message::Address { channel: 0, address: name(8000) }, 2),
        (Message::Address { channel: 0, address: name(30) }, 2),
        (Message::Address { channel: 0, address: name(30) }, 1),
        (Message::Gather { round: 1, words: vec![7; 4000] }, 1),
        (poison, 2),
    ] {
        let flood = framed(WORLD, &message, [how, 0, 12]);
        handle(&vec![flood; 4], &mut Seen::default());
    }
}

#[test]
fn who_is_accused_of_a_broken_link_is_said_once_by_each_rank() {
    let honest = Honest::new(0);
    let before = live_bytes();
    for rank in 0..100_000 {
        let error =
            Error::Link { from: rank, to: rank ^ 0x5555, transport: String::new(), cause: String::new() };
        let failure = Failure { origin: 1, error, report: None };
        honest.member.receive(HOSTILE, WORLD, Message::Poison { failure });
    }
    let kept = live_bytes() - before;
    assert!(kept < 16 << 10, "{kept} bytes are kept for a rank that says 100,000 times that it failed");
}
