//! Random plans, lawful and broken: the verifier and an independent executor must agree.
//!
//! Every rank sends each piece of its input to every other in an order of its own and receives in another, so with
//! few slots many sets deadlock. A set that is refused as stuck must get stuck under every interleaving tried; a set
//! that is proved must run correctly under all of them. Broken sets lose a wait or deliver to the wrong place; where
//! their execution is wrong, the verifier must have refused them.

use consort_algorithms::plan::{Action, CounterRole, Engine, Extent};
use consort_algorithms::{Chunk, Collective, LowerOptions, Plan, Refusal, lower_all, verify};

use crate::common::hand::{Hand, counter, input, output, settle, slot};
use crate::common::{Random, execute, execute_often, seed};

/// One thing a rank does on a channel, by the number of the message.
#[derive(Clone, Copy)]
enum Move {
    Send(usize),
    Receive(usize),
    Keep(u32),
}

struct Message {
    from: u32,
    to: u32,
    piece: u32,
    channel: u16,
    slot: u32,
}

fn random_set(random: &mut Random, misdeliver: bool) -> Vec<Plan> {
    let ranks = 2 + random.below(3) as u32;
    let parts = 1 + random.below(3) as u32;
    let channels = 1 + random.below(2) as u16;
    let slots = 1 + random.below(3) as u32;
    // A piece keeps to one channel: in place, a rank's own copy of it and its sends touch the same memory.
    let streams: Vec<u16> = (0..ranks * parts).map(|_| random.below(channels.into()) as u16).collect();
    let mut messages = Vec::new();
    for from in 0..ranks {
        for to in (0..ranks).filter(|&to| to != from) {
            for piece in 0..parts {
                let channel = streams[(from * parts + piece) as usize];
                messages.push(Message { from, to, piece, channel, slot: 0 });
            }
        }
    }
    random.shuffle(&mut messages);
    // Near an order that works, or far from it.
    let disorder = random.below(5);
    let mut moves: Vec<Vec<Vec<Move>>> = Vec::new();
    for rank in 0..ranks {
        let mut mine = vec![Vec::new(); channels.into()];
        for (index, message) in messages.iter().enumerate() {
            let lane: &mut Vec<Move> = &mut mine[usize::from(message.channel)];
            if message.from == rank {
                lane.push(Move::Send(index));
            }
            if message.to == rank {
                lane.push(Move::Receive(index));
            }
        }
        for piece in 0..parts {
            mine[usize::from(streams[(rank * parts + piece) as usize])].push(Move::Keep(piece));
        }
        for lane in &mut mine {
            for _ in 0..disorder {
                let at = random.below(lane.len().saturating_sub(1));
                if at + 1 < lane.len() {
                    lane.swap(at, at + 1);
                }
            }
        }
        moves.push(mine);
    }
    // Slots in the order of the sender; the receiver takes them in that order too.
    for (rank, lanes) in moves.iter_mut().enumerate() {
        let mut used = vec![0; ranks as usize * usize::from(channels)];
        for index in lanes.iter().flatten().filter_map(|step| match step {
            Move::Send(index) => Some(*index),
            _ => None,
        }) {
            let message = &mut messages[index];
            let next = &mut used[message.to as usize * usize::from(channels) + usize::from(message.channel)];
            message.slot = *next;
            *next += 1;
            assert_eq!(message.from as usize, rank);
        }
    }
    for lane in moves.iter_mut().flatten() {
        let places: Vec<usize> = (0..lane.len()).filter(|&at| matches!(lane[at], Move::Receive(_))).collect();
        let mut by_peer = std::collections::BTreeMap::<u32, Vec<usize>>::new();
        for &at in &places {
            let Move::Receive(index) = lane[at] else { unreachable!() };
            by_peer.entry(messages[index].from).or_default().push(index);
        }
        by_peer
            .values_mut()
            .for_each(|list| list.sort_by_key(|&index| std::cmp::Reverse(messages[index].slot)));
        for at in places {
            let Move::Receive(index) = lane[at] else { unreachable!() };
            let list = by_peer.get_mut(&messages[index].from).expect("it was entered");
            lane[at] = Move::Receive(list.pop().expect("as many as before"));
        }
    }
    let wrong = if misdeliver { random.below(messages.len()) } else { usize::MAX };
    let hands = (0..ranks).map(|rank| {
        let mut hand = Hand::new("random", Collective::AllGather, rank, ranks, parts, slots);
        hand.plan.sliced = true;
        for lane in &moves[rank as usize] {
            hand.lane(Engine::Processor);
            for &step in lane {
                program(&mut hand, step, &messages, wrong);
            }
        }
        hand
    });
    settle(hands.collect())
}

fn program(hand: &mut Hand, step: Move, messages: &[Message], wrong: usize) {
    let (me, parts, slots) = (hand.plan.rank.0, hand.plan.partition.parts, hand.plan.slots as i32);
    match step {
        Move::Keep(piece) => {
            let own = me * parts + piece;
            hand.copy(Extent::chunk(Chunk(own)), output(me, own), input(me, piece));
        }
        Move::Send(index) => {
            let Message { to, piece, channel, slot: number, .. } = messages[index];
            hand.wait(counter(me, to, channel, CounterRole::Credit), number as i32 + 1 - slots);
            let (target, source) = (slot(to, me, channel, number), input(me, piece));
            hand.act(Action::Put, Extent::chunk(Chunk(me * parts + piece)), &[target], &[source], 0, 0);
            hand.signal(counter(to, me, channel, CounterRole::Ready));
        }
        Move::Receive(index) => {
            let Message { from, piece, channel, slot: number, .. } = messages[index];
            let block = if index == wrong { (from + 1) % hand.plan.ranks } else { from };
            hand.wait(counter(me, from, channel, CounterRole::Ready), number as i32 + 1);
            let stored = block * parts + piece;
            let target = output(me, stored);
            hand.copy(Extent::chunk(Chunk(stored)), target, slot(me, from, channel, number));
            hand.signal(counter(from, me, channel, CounterRole::Credit));
        }
    }
}

#[test]
fn verdict_and_execution_agree() {
    let (mut proved, mut stuck) = (0, 0);
    let seed = seed(0xc0_5eed);
    let mut random = Random(seed);
    for case in 0..2_000 {
        let plans = random_set(&mut random, false);
        let runs: Vec<Result<(), String>> = (0..3).map(|seed| execute(&plans, false, 8, seed)).collect();
        match verify(&plans) {
            Ok(_) => {
                proved += 1;
                assert!(runs.iter().all(Result::is_ok), "case {case}: proved, but {runs:?}");
                execute_often(&plans, 8, 1)
                    .unwrap_or_else(|fault| panic!("case {case}: proved, but {fault}"));
            }
            Err(Refusal::Stuck { .. }) => {
                stuck += 1;
                let all = runs.iter().all(|run| run == &Err("deadlock".into()));
                assert!(all, "case {case}: refused as stuck, but {runs:?}");
            }
            Err(other) => panic!("case {case}: {other}, while running it gives {runs:?}"),
        }
    }
    println!("2000 random plans: {proved} proved and run, {stuck} refused and stuck");
    assert!(proved > 300 && stuck > 300);
}

#[test]
fn what_execution_finds_broken_was_refused() {
    let seed = seed(0xbad_5eed);
    let mut random = Random(seed);
    let (mut refused, mut seen) = (0, 0);
    for case in 0..1_000 {
        let misdeliver = random.one_in(2);
        let mut plans = random_set(&mut random, misdeliver);
        if !misdeliver {
            let rank = random.below(plans.len());
            let plan = &mut plans[rank];
            let waits: Vec<usize> =
                (0..plan.steps.len()).filter(|&at| plan.steps[at].action == Action::Wait).collect();
            // A wait that is over at once has no effect.
            plan.steps[waits[random.below(waits.len())]].value = -1000;
        }
        let verdict = verify(&plans);
        let run = (0..4).try_for_each(|seed| execute(&plans, false, 8, seed));
        refused += usize::from(verdict.is_err());
        seen += usize::from(run.is_err());
        assert!(!(verdict.is_ok() && run.is_err()), "case {case}: proved, but {run:?}");
        assert!(!misdeliver || verdict.is_err(), "case {case}: delivered to the wrong place");
    }
    println!("1000 broken plans: {refused} refused, {seen} seen to fail in four interleavings");
    assert!(refused >= seen && seen > 500);
}

/// Nothing that can be put into a plan makes the verifier panic or run for ever.
#[test]
fn nonsense_is_refused_in_peace() {
    let seed = seed(0x0ff_1ce);
    let mut random = Random(seed);
    let rings = |collective| {
        let schedule = consort_algorithms::builders::ring(collective, 3, Default::default());
        lower_all(&schedule, &LowerOptions { slots: 2 }).expect("rings lower")
    };
    let sets = [rings(Collective::AllReduce), rings(Collective::ReduceScatter), rings(Collective::Broadcast)];
    let mut accepted = 0;
    for _ in 0..20_000 {
        let mut plans = sets[random.below(sets.len())].clone();
        for _ in 0..1 + random.below(4) {
            let rank = random.below(plans.len());
            spoil(&mut plans[rank], &mut random);
        }
        if random.one_in(50) {
            plans.truncate(random.below(plans.len() + 1));
        }
        match verify(&plans) {
            Ok(_) => accepted += 1,
            Err(refusal) => assert!(!refusal.to_string().is_empty()),
        }
    }
    println!("20000 sets of nonsense: {accepted} made sense all the same");
}

fn spoil(plan: &mut Plan, random: &mut Random) {
    use consort_algorithms::plan::{Position, Region};
    use consort_algorithms::{Channel, Rank};
    let wild = |random: &mut Random| match random.below(6) {
        0 => u32::MAX,
        1 => 1 << 31,
        2 => random.draw() as u32,
        3 => 1 << 16,
        _ => random.below(8) as u32,
    };
    let value = wild(random);
    let (step, operand) = (random.below(plan.steps.len()), random.below(plan.operands.len()));
    let (region, counter) = (random.below(plan.regions.len()), random.below(plan.counters.len()));
    let lane = random.below(plan.lanes.len());
    let ranks = [Rank(value), Rank(random.below(3) as u32)];
    match random.below(24) {
        0 => plan.steps[step].operands = value,
        1 => plan.steps[step].targets = value as u8,
        2 => plan.steps[step].sources = value as u8,
        3 => plan.steps[step].raw = value,
        4 => plan.steps[step].flags = value as u8,
        5 => plan.steps[step].counter = value,
        6 => plan.steps[step].value = value as i32,
        7 => plan.steps[step].extent = Extent::chunk(Chunk(value)),
        8 => plan.steps[step].extent = Extent::table(value),
        9 => plan.operands[operand].region = value as u16,
        10 => plan.operands[operand].position = Position::Slot(value),
        11 => plan.operands[operand].position = Position::Table(value),
        12 => plan.operands[operand].position = Position::Scratch(value),
        13 => plan.regions[region].slots_per_iteration = value,
        14 => {
            plan.regions[region].region =
                Region::Mailbox { owner: ranks[0], writer: ranks[1], channel: Channel(0) };
        }
        15 => plan.regions[region].region = Region::Group { group: value as u16, output: random.one_in(2) },
        16 => plan.counters[counter].per_iteration = value,
        17 => plan.counters[counter].id.role = CounterRole::Flag(value as u16),
        18 => plan.lanes[lane].end = value,
        19 => plan.lanes.push(plan.lanes[lane]),
        20 => plan.scratch = value,
        21 => plan.partition.parts = value,
        22 => plan.ranks = value,
        _ => plan.slots = value,
    }
}
