//! Plans over mapped buffers: proved, run with and without their flags, damaged, and compared with the direct
//! exchange. `CONSORT_SNAPSHOTS=write cargo test` writes their listings anew.

use std::collections::{BTreeMap, HashMap};

use consort_algorithms::builders::{direct, direct_reduce, one_shot, pair, spread_out, two_shot};
use consort_algorithms::export::plan_text;
use consort_algorithms::plan::{Action, Engine, Extent, Operand, Position, Region, Step};
use consort_algorithms::{
    Chunk, Collective, LowerOptions, Plan, Rank, Refusal, Schedule, folds, lower_all, mapped, mapped_reduce,
    verify,
};

use crate::common::hand::{Hand, input, output, settle};
use crate::common::{Random, execute_often, seed, snapshot};

const RANKS_MAX: u32 = 16;

/// All sets of plans over up to `ranks_max` ranks, each with a name.
fn all(ranks_max: u32) -> Vec<(String, Vec<Plan>)> {
    let mut made = Vec::new();
    for ranks in 1..=ranks_max {
        for collective in Collective::ALL {
            if let Some(plans) = mapped(collective, ranks) {
                made.push((format!("{collective} over {ranks}"), plans));
            }
        }
        for first in 1..ranks {
            let plans = mapped_reduce(ranks, first).expect("there is such a rank");
            made.push((format!("reduce from {first} over {ranks}"), plans));
        }
    }
    made
}

fn folds_of(plan: &Plan) -> &[Step] {
    folds(plan).unwrap_or_else(|| panic!("it has the form:\n{}", plan_text(plan)))
}

#[test]
fn they_exist_for_as_many_ranks_as_a_step_has_places() {
    for collective in Collective::ALL {
        let pair = collective == Collective::SendReceive;
        for ranks in 0..=RANKS_MAX + 2 {
            let expected = if pair { ranks == 2 } else { (1..=RANKS_MAX).contains(&ranks) };
            let made = mapped(collective, ranks);
            assert_eq!(made.is_some(), expected, "{collective} over {ranks}");
            assert!(made.is_none_or(|plans| plans.len() == ranks as usize));
        }
    }
    assert_eq!(mapped_reduce(4, 0), mapped(Collective::Reduce, 4));
    assert_eq!((mapped_reduce(4, 4), mapped_reduce(0, 0), mapped_reduce(17, 1)), (None, None, None));
    assert_eq!(RANKS_MAX as usize, Step::PLACES_MAX);
}

/// Also the form: one lane without slots, scratch, slices; each chunk of an output written and each of an input read
/// by one step of one rank; all ranks have equally many steps where pieces allow it.
#[test]
fn every_collective_is_proved() {
    for (what, plans) in all(RANKS_MAX) {
        verify(&plans).unwrap_or_else(|refusal| panic!("{what}: {refusal}"));
        let (mut written, mut read) = (BTreeMap::new(), BTreeMap::new());
        for plan in &plans {
            assert_eq!((plan.lanes.len(), plan.sliced, plan.slots, plan.scratch), (1, false, 1, 0), "{what}");
            let of = folds_of(plan);
            assert_eq!(of.len(), folds_of(&plans[0]).len(), "{what}: shared evenly");
            for step in of {
                assert!(usize::from(step.targets.max(step.sources)) <= Step::PLACES_MAX);
                let named = |operand: &Operand| match (plan.regions[operand.region as usize].region, operand)
                {
                    (Region::Input(rank), Operand { position: Position::Chunk(chunk), .. }) => {
                        (rank, chunk.0)
                    }
                    (Region::Output(rank), Operand { position: Position::Chunk(chunk), .. }) => {
                        (rank, chunk.0)
                    }
                    other => panic!("{what}: {other:?} is no chunk of a caller"),
                };
                plan.targets(step).iter().for_each(|to| *written.entry(named(to)).or_insert(0) += 1);
                plan.sources(step).iter().for_each(|from| *read.entry(named(from)).or_insert(0) += 1);
            }
        }
        let Plan { collective, ranks, partition, .. } = plans[0];
        let chunks = |has: &dyn Fn(Rank) -> bool, chunks: u32| -> BTreeMap<(Rank, u32), u32> {
            let ranks = (0..ranks).map(Rank).filter(|&rank| has(rank));
            ranks.flat_map(|rank| (0..chunks).map(move |chunk| ((rank, chunk), 1))).collect()
        };
        let outputs = chunks(&|rank| collective.has_output(rank), partition.output_chunks(collective, ranks));
        let inputs = chunks(&|rank| collective.has_input(rank), partition.input_chunks(collective, ranks));
        assert_eq!((written, read), (outputs, inputs), "{what}");
    }
}

#[test]
fn their_bits_are_those_of_the_direct_exchange() {
    let hash = |schedule: &Schedule| {
        let plans = lower_all(schedule, &LowerOptions { slots: 4 }).expect("it lowers");
        verify(&plans).expect("it is right").fold_hash
    };
    let own =
        |plans: Option<Vec<Plan>>| verify(&plans.expect("there is one")).expect("it is right").fold_hash;
    for ranks in 1..=RANKS_MAX {
        for collective in Collective::ALL {
            let host = match collective {
                Collective::AllReduce => vec![one_shot(ranks), two_shot(ranks)],
                Collective::AllToAll => vec![spread_out(ranks)],
                Collective::SendReceive if ranks == 2 => vec![pair()],
                Collective::SendReceive => continue,
                _ => vec![direct(collective, ranks)],
            };
            for schedule in &host {
                assert_eq!(own(mapped(collective, ranks)), hash(schedule), "{} over {ranks}", schedule.name);
            }
        }
        for first in 0..ranks {
            assert_eq!(
                own(mapped_reduce(ranks, first)),
                hash(&direct_reduce(ranks, first)),
                "{first} {ranks}"
            );
        }
    }
    // Where the order matters, the hash depends on it.
    assert_ne!(own(mapped_reduce(4, 1)), own(mapped_reduce(4, 0)));
}

#[test]
fn they_run_under_random_interleavings() {
    for (what, plans) in all(RANKS_MAX) {
        let seeds = if plans.len() <= 4 { 20 } else { 2 };
        execute_often(&plans, 3, seeds).unwrap_or_else(|fault| panic!("{what}: {fault}"));
    }
}

fn without(plans: &[Plan], rank: usize, step: usize) -> Vec<Plan> {
    let mut plans = plans.to_vec();
    plans[rank].steps.remove(step);
    plans[rank].lanes[0].end -= 1;
    plans
}

/// Every step is needed.
#[test]
fn without_one_step_they_are_refused() {
    let mut dropped = 0;
    for (what, plans) in all(5) {
        for rank in 0..plans.len() {
            for (at, step) in plans[rank].steps.iter().enumerate() {
                let refused = verify(&without(&plans, rank, at));
                let expected = match step.action {
                    // Without this wait some rank's bytes are read or written too early.
                    Action::Wait => {
                        matches!(refused, Err(Refusal::Race { .. } | Refusal::WrongOutput { .. }))
                    }
                    _ => refused.is_err(),
                };
                assert!(expected, "{what}, rank {rank}, step {at}: {refused:?}");
                dropped += 1;
            }
        }
    }
    assert!(dropped > 500, "{dropped}");
}

/// Another chunk or another rank's buffer at any place of any step.
#[test]
fn with_one_operand_elsewhere_they_are_refused() {
    let mut made = 0;
    for (what, plans) in all(4) {
        for rank in 0..plans.len() {
            let plan = &plans[rank];
            for step in folds_of(plan) {
                for index in step.operands..step.operands + u32::from(step.targets + step.sources) {
                    let old = plan.operands[index as usize];
                    let chunks = (0..plan.partition.parts * plan.ranks)
                        .map(|chunk| Operand { position: Position::Chunk(Chunk(chunk)), ..old });
                    let regions = (0..plan.regions.len() as u16).map(|region| Operand { region, ..old });
                    for other in chunks.chain(regions).filter(|&other| other != old) {
                        let mut damaged = plans.clone();
                        damaged[rank].operands[index as usize] = other;
                        let text = plan_text(&damaged[rank]);
                        assert!(verify(&damaged).is_err(), "{what}, rank {rank}: {other:?}\n{text}");
                        made += 1;
                    }
                }
            }
        }
    }
    assert!(made > 1_000, "{made}");
}

/// The order of sources is the order of the fold: another one is refused, or has another hash.
#[test]
fn another_order_of_sources_is_another_fold() {
    let plans = mapped(Collective::AllReduce, 3).expect("there are such plans");
    let proof = verify(&plans).expect("it is right");
    let swapped = |ranks: std::ops::Range<usize>| {
        let mut plans = plans.clone();
        for plan in &mut plans[ranks] {
            let step = *plan.steps.iter().find(|step| step.sources > 1).expect("it folds");
            let first = (step.operands + u32::from(step.targets)) as usize;
            plan.operands.swap(first + 1, first + 2);
        }
        verify(&plans).map(|proof| proof.fold_hash)
    };
    for changed in [swapped(0..1), swapped(0..3)] {
        assert_ne!(changed, Ok(proof.fold_hash));
    }
}

/// Bytes of callers: for each rank, input and output in one piece of memory where it works in place.
struct Buffers {
    values: Vec<u64>,
    places: HashMap<(Region, u32), usize>,
    /// The inputs' content before the run.
    inputs: HashMap<(u32, u32, usize), u64>,
}

/// Elements of a chunk; more would show nothing new, as every chunk is one of many.
const ELEMENTS: usize = 3;

impl Buffers {
    /// `in_place` has for each rank whether it works in place, as NCCL defines it.
    fn new(plan: &Plan, in_place: &[bool], random: &mut Random) -> Self {
        let Plan { collective, ranks, partition, .. } = *plan;
        let mut made = Buffers { values: Vec::new(), places: HashMap::new(), inputs: HashMap::new() };
        for (rank, &in_place) in (0..ranks).zip(in_place) {
            let (has_input, has_output) =
                (collective.has_input(Rank(rank)), collective.has_output(Rank(rank)));
            let inputs = if has_input { partition.input_chunks(collective, ranks) } else { 0 };
            let outputs = if has_output { partition.output_chunks(collective, ranks) } else { 0 };
            let in_place = in_place && has_input && has_output && collective != Collective::AllToAll;
            let base = made.values.len();
            // The smaller buffer is the own block of the larger one.
            let own = (rank * partition.parts) as usize;
            let (input, output) = match (in_place, inputs.cmp(&outputs)) {
                (false, _) => (base, base + inputs as usize * ELEMENTS),
                (true, std::cmp::Ordering::Less) => (base + own * ELEMENTS, base),
                (true, std::cmp::Ordering::Equal) => (base, base),
                (true, std::cmp::Ordering::Greater) => (base, base + own * ELEMENTS),
            };
            let end = (input + inputs as usize * ELEMENTS).max(output + outputs as usize * ELEMENTS);
            made.values.resize_with(end, || random.draw());
            for chunk in 0..inputs {
                let at = input + chunk as usize * ELEMENTS;
                made.places.insert((Region::Input(Rank(rank)), chunk), at);
                for element in 0..ELEMENTS {
                    made.inputs.insert((rank, chunk, element), made.values[at + element]);
                }
            }
            for chunk in 0..outputs {
                made.places.insert((Region::Output(Rank(rank)), chunk), output + chunk as usize * ELEMENTS);
            }
        }
        made
    }

    fn at(&self, plan: &Plan, operand: &Operand) -> usize {
        let Position::Chunk(chunk) = operand.position else { panic!("{operand:?} is no chunk") };
        self.places[&(plan.regions[usize::from(operand.region)].region, chunk.0)]
    }

    /// One element of one step: all sources, then all targets.
    fn run(&mut self, plan: &Plan, step: &Step, element: usize) {
        let sources = plan.sources(step).iter().map(|source| self.values[self.at(plan, source) + element]);
        let value = sources.reduce(fold).expect("a step has a source");
        for target in plan.targets(step) {
            let at = self.at(plan, target) + element;
            self.values[at] = value;
        }
    }

    fn expected(&self, plan: &Plan, first: u32, (rank, chunk, element): (u32, u32, usize)) -> u64 {
        let (parts, ranks) = (plan.partition.parts, plan.ranks);
        let (block, piece) = (chunk / parts, chunk % parts);
        let own = rank * parts + piece;
        let folded = |chunk: u32| {
            let order = (0..ranks).map(|hop| (first + hop) % ranks);
            order.map(|rank| self.inputs[&(rank, chunk, element)]).reduce(fold).expect("there is a rank")
        };
        match plan.collective {
            Collective::AllReduce | Collective::Reduce => folded(chunk),
            Collective::ReduceScatter => folded(own),
            Collective::Broadcast | Collective::SendReceive => self.inputs[&(0, chunk, element)],
            Collective::AllGather | Collective::Gather => self.inputs[&(block, piece, element)],
            Collective::Scatter => self.inputs[&(0, own, element)],
            Collective::AllToAll => self.inputs[&(block, own, element)],
            Collective::AllToAllReplicated { group } => {
                let place = rank / group * group + block % group;
                self.inputs[&(block / group * group, place * parts + piece, element)]
            }
        }
    }
}

/// Neither commutative nor associative.
fn fold(left: u64, right: u64) -> u64 {
    left.wrapping_mul(6_364_136_223_846_793_005).rotate_left(17) ^ right
}

/// The fused path: the folds of all ranks without any flag, element by element in any order, whichever ranks work in
/// place.
#[test]
fn folds_run_in_any_order_without_flags_and_in_place() {
    let mut random = Random(seed(20_261_122));
    for (what, plans) in all(RANKS_MAX) {
        for round in 0..6 {
            let in_place: Vec<bool> = (0..plans.len())
                .map(|_| match round {
                    0 => false,
                    1 => true,
                    _ => random.one_in(2),
                })
                .collect();
            let mut buffers = Buffers::new(&plans[0], &in_place, &mut random);
            let mut jobs: Vec<(&Plan, &Step, usize)> = plans
                .iter()
                .flat_map(|plan| folds_of(plan).iter().map(move |step| (plan, step)))
                .flat_map(|(plan, step)| (0..ELEMENTS).map(move |element| (plan, step, element)))
                .collect();
            random.shuffle(&mut jobs);
            jobs.into_iter().for_each(|(plan, step, element)| buffers.run(plan, step, element));
            let first = what.strip_prefix("reduce from ").map_or(0, |rest| {
                rest.split(' ').next().and_then(|first| first.parse().ok()).expect("it is a number")
            });
            for (&(region, chunk), &at) in &buffers.places {
                let Region::Output(rank) = region else { continue };
                for element in 0..ELEMENTS {
                    let expected = buffers.expected(&plans[0], first, (rank.0, chunk, element));
                    assert_eq!(
                        buffers.values[at + element],
                        expected,
                        "{what}, in place {in_place:?}, {rank}"
                    );
                }
            }
        }
    }
}

/// A plan whose flags between folds matter is no list of folds.
#[test]
fn folds_of_another_form_are_none() {
    let three = mapped(Collective::AllGather, 3).expect("there are such plans");
    assert_eq!(folds_of(&three[0]).len(), 1);
    for schedule in [one_shot(3), two_shot(3), direct(Collective::AllGather, 3)] {
        let plans = lower_all(&schedule, &LowerOptions { slots: 2 }).expect("it lowers");
        assert!(plans.iter().all(|plan| folds(plan).is_none()), "{}", schedule.name);
    }
    // Program 1 of ADR 1 reads peers' outputs behind a barrier.
    let behind_a_barrier = settle(
        (0..3)
            .map(|me| {
                let mut hand = Hand::new("two barriers", Collective::AllReduce, me, 3, 3, 1);
                hand.lane(Engine::Processor);
                hand.barrier(0);
                let sources: Vec<_> = (0..3).map(|rank| input(rank, me)).collect();
                let extent = Extent::chunk(Chunk(me));
                hand.act(Action::Reduce, extent, &[output(me, me)], &sources, 7, Step::FINISH);
                hand.barrier(1);
                for peer in (0..3).filter(|&peer| peer != me) {
                    hand.copy(Extent::chunk(Chunk(peer)), output(me, peer), output(peer, peer));
                }
                hand.barrier(2);
                hand
            })
            .collect(),
    );
    verify(&behind_a_barrier).expect("it is right");
    assert!(behind_a_barrier.iter().all(|plan| folds(plan).is_none()));
}

/// An all-gather over two ranks whose steps after the own copy are those of `second`, between two barriers.
fn two_folds(barriers: [u16; 2], second: impl Fn(&mut Hand)) -> Vec<Plan> {
    let program = |me: u32| {
        let mut hand = Hand::new("two folds", Collective::AllGather, me, 2, 1, 1);
        hand.lane(Engine::Processor);
        hand.barrier(barriers[0]);
        hand.copy(Extent::chunk(Chunk(me)), output(me, me), input(me, 0));
        second(&mut hand);
        hand.barrier(barriers[1]);
        hand
    };
    settle((0..2).map(program).collect())
}

#[test]
fn folds_of_one_rank_that_depend_on_each_other_are_none() {
    let me = |hand: &Hand| hand.plan.rank.0;
    let extent = |hand: &Hand| Extent::chunk(Chunk(me(hand)));
    let fine = |hand: &mut Hand| {
        let (me, extent) = (me(hand), extent(hand));
        hand.copy(extent, output(1 - me, me), input(me, 0));
    };
    let plans = two_folds([0, 1], fine);
    verify(&plans).expect("it is right");
    // In place, the first copy writes the memory that the second one reads (the bytes are the same, but the check
    // does not compare bytes).
    assert!(plans.iter().all(|plan| folds(plan).is_none()));

    let from_what_is_written = two_folds([0, 1], |hand| {
        let (me, extent) = (me(hand), extent(hand));
        hand.copy(extent, output(1 - me, me), output(me, me));
    });
    verify(&from_what_is_written).expect("it is right");
    assert!(from_what_is_written.iter().all(|plan| folds(plan).is_none()));

    let written_twice = two_folds([0, 1], |hand| {
        let (me, extent) = (me(hand), extent(hand));
        hand.act(Action::Copy, extent, &[output(me, me), output(1 - me, me)], &[input(me, 0)], 0, 0);
    });
    verify(&written_twice).expect("it is right");
    assert!(written_twice.iter().all(|plan| folds(plan).is_none()));
}

/// An entry that waited for an exit would order the folds of two ranks.
#[test]
fn folds_behind_other_flags_are_none() {
    let alone = |barriers: [u16; 2]| {
        let program = |me: u32| {
            let mut hand = Hand::new("flags", Collective::AllToAll, me, 2, 1, 1);
            hand.lane(Engine::Processor);
            hand.barrier(barriers[0]);
            (0..2).for_each(|to| hand.copy(Extent::chunk(Chunk(me)), output(to, me), input(me, to)));
            hand.barrier(barriers[1]);
            hand
        };
        let plans = settle((0..2).map(program).collect());
        verify(&plans).expect("it is right");
        plans.iter().map(|plan| folds(plan).map(<[Step]>::len)).collect::<Vec<_>>()
    };
    assert_eq!(alone([0, 1]), [Some(2); 2]);
    assert_eq!(alone([1, 0]), [None; 2]);
    assert_eq!(alone([0, 2]), [None; 2]);
    let mut looped = mapped(Collective::AllReduce, 2).expect("there are such plans");
    looped.iter_mut().for_each(|plan| plan.sliced = true);
    assert!(looped.iter().all(|plan| folds(plan).is_none()));
    let mut copied = mapped(Collective::AllGather, 2).expect("there are such plans");
    copied.iter_mut().for_each(|plan| plan.lanes[0].engine = Engine::CopyEngine);
    assert!(copied.iter().all(|plan| folds(plan).is_none()));
}

#[test]
fn the_listings_are_the_committed_ones() {
    let sets = Collective::ALL.into_iter().filter_map(|collective| {
        mapped(collective, if collective == Collective::SendReceive { 2 } else { 3 })
    });
    let text: String = sets.flatten().map(|plan| plan_text(&plan)).collect::<Vec<_>>().join("\n");
    snapshot("mapped_3.txt", &text);
}
