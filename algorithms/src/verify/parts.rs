//! Plans that are several programs side by side, as those of trees, proved one by one.
//!
//! Lanes that name no channel and no piece in common share no memory and no counter, and none of them waits for another. In a
//! loop over slices a rank's lanes meet only where its operation begins and ends, so that a step of one program is ordered with no
//! step of another, and need not be: the plans are right exactly if those of each program are. Programs that differ only in
//! the numbers of their channels and pieces have one proof.
//!
//! Invariant: each lane, mailbox, counter and piece is in one program; where that cannot be said, there is no proof by parts. A proof is
//! that of all plans together, fold hash and steps included. Absent: collectives with blocks for ranks; refusals: they name steps by the
//! numbers of the whole, so the whole is looked at again for one.

use std::collections::HashSet;

use super::expression::Bracket;
use super::program::operands_exist;
use super::{Decided, Proof, hash_of_brackets};
use crate::plan::{CounterUse, Extent, Lane, Operand, Position, Region, RegionUse, Step};
use crate::sets::Sets;
use crate::{Channel, Chunk, Collective, Plan};

/// The most pieces, and so the most programs: a table of them for each.
const PIECES_MAX: usize = 1 << 12;

/// The programs in a set of plans.
struct Programs<'a> {
    plans: &'a [Plan],
    /// The program of each piece.
    of_piece: Vec<usize>,
    /// The program of each channel that a plan names.
    of_channel: Vec<Option<usize>>,
    /// For each plan the program of each lane.
    of_lane: Vec<Vec<usize>>,
    count: usize,
}

/// The proof of plans that are several programs, by `decide` for each; none where they are one, or where one is refused.
pub(super) fn verify_parts(plans: &[Plan], decide: impl Fn(&[Plan]) -> Option<Decided>) -> Option<Proof> {
    let first = plans.first()?;
    let programs = Programs::new(plans)?;
    let parts = first.partition.parts as usize;
    let mut brackets: Vec<Option<Bracket>> = vec![None; parts];
    let mut proved: Vec<(Vec<Plan>, Decided)> = Vec::new();
    for program in 0..programs.count {
        let own = programs.plans_of(program)?;
        let known = proved.iter().position(|(known, _)| *known == own);
        let at = match known {
            Some(at) => at,
            None => {
                let decided = decide(&own)?;
                proved.push((own, decided));
                proved.len() - 1
            }
        };
        let of_own = &proved[at].1.brackets;
        let pieces = (0..parts).filter(|piece| programs.of_piece[*piece] == program);
        if first.collective.reduces() {
            if of_own.len() != pieces.clone().count() {
                return None;
            }
            pieces.zip(of_own).for_each(|(piece, bracket)| brackets[piece] = Some(*bracket));
        }
    }
    let brackets: Vec<Bracket> = brackets.into_iter().flatten().collect();
    let fold_hash = hash_of_brackets(first.collective, first.ranks, parts as u64, brackets.iter().copied());
    Some(Proof { fold_hash, steps: plans.iter().map(|plan| plan.steps.len()).sum() })
}

impl<'a> Programs<'a> {
    /// None where there are fewer than two, and where plans name what they do not have.
    fn new(plans: &'a [Plan]) -> Option<Self> {
        let first = plans.first()?;
        let is_cut_by_pieces =
            matches!(first.collective, Collective::AllReduce | Collective::Broadcast | Collective::Reduce);
        let pieces = first.partition.parts as usize;
        let is_small = plans.len() == first.ranks as usize && (1..=PIECES_MAX).contains(&pieces);
        if !is_cut_by_pieces || !is_small || !plans.iter().all(|plan| is_plain(plan, first)) {
            return None;
        }
        let channels = plans.iter().flat_map(channels_of).map(|channel| usize::from(channel.0) + 1).max()?;
        let parts = first.partition.parts as usize;
        // Pieces and, behind them, channels.
        let mut joined = Sets::new(parts + channels);
        let mut names: Vec<Vec<usize>> = Vec::with_capacity(plans.len());
        for plan in plans {
            names.push(join_lanes(plan, parts, &mut joined)?);
        }
        // Each program has a piece.
        let mut numbers = vec![None; parts + channels];
        let mut count = 0;
        for piece in 0..parts {
            let number = &mut numbers[joined.root(piece)];
            if number.is_none() {
                *number = Some(count);
                count += 1;
            }
        }
        let mut of = |name: usize| numbers[joined.root(name)];
        let of_piece = (0..parts).map(&mut of).collect::<Option<Vec<usize>>>()?;
        let of_channel: Vec<Option<usize>> = (parts..parts + channels).map(&mut of).collect();
        let lanes = names.iter().map(|lanes| lanes.iter().map(|name| of(*name)).collect());
        let of_lane = lanes.collect::<Option<Vec<Vec<usize>>>>()?;
        if plans.iter().flat_map(channels_of).any(|channel| of_channel[usize::from(channel.0)].is_none()) {
            return None;
        }
        (count > 1).then_some(Programs { plans, of_piece, of_channel, of_lane, count })
    }

    /// The plans of one program, its channels and pieces counted from 0; none where a rank has no lane in it.
    fn plans_of(&self, program: usize) -> Option<Vec<Plan>> {
        let pieces = numbered(self.of_piece.iter().map(|of| *of == program));
        let channels = numbered(self.of_channel.iter().map(|of| *of == Some(program)));
        let plans = self.plans.iter().zip(&self.of_lane);
        plans
            .map(|(plan, of_lane)| {
                Part { plan, of_lane, program, pieces: &pieces, channels: &channels }.plan()
            })
            .collect()
    }
}

/// The new number of each that is of a program.
fn numbered(of: impl Iterator<Item = bool>) -> Vec<Option<u32>> {
    let mut next = 0..;
    of.map(|is_of| if is_of { next.next() } else { None }).collect()
}

/// Whether a plan is a loop over slices like the first, whose tables and lanes are in order, whose operands exist, and which has no more
/// scratch places than operands.
fn is_plain(plan: &Plan, first: &Plan) -> bool {
    let mut regions = HashSet::new();
    let mut counters = HashSet::new();
    let follow = |next: u32, lane: &Lane| (lane.start == next && lane.end > lane.start).then_some(lane.end);
    let end = plan.lanes.iter().try_fold(0, follow);
    let same = (plan.collective, plan.ranks, plan.partition, plan.slots);
    plan.sliced
        && same == (first.collective, first.ranks, first.partition, first.slots)
        && plan.groups.is_empty()
        && plan.scratch as usize <= plan.operands.len()
        && end.is_some_and(|end| end as usize == plan.steps.len())
        && plan.regions.iter().all(|used| regions.insert(used.region))
        && plan.counters.iter().all(|used| counters.insert(used.id))
        && plan.steps.iter().all(|step| has_none(step) || operands_exist(plan, step))
}

fn channel_of(region: Region) -> Option<Channel> {
    if let Region::Mailbox { channel, .. } = region { Some(channel) } else { None }
}

fn channels_of(plan: &Plan) -> impl Iterator<Item = Channel> {
    let of_counters = plan.counters.iter().map(|used| used.id.channel);
    plan.regions.iter().filter_map(|used| channel_of(used.region)).chain(of_counters)
}

/// Joins what each lane of a plan names, and lanes by their scratch places; one name for each lane, none where one names nothing
/// or what there is not.
fn join_lanes(plan: &Plan, parts: usize, joined: &mut Sets) -> Option<Vec<usize>> {
    let mut of_scratch: Vec<Option<usize>> = vec![None; plan.scratch as usize];
    let mut names = Vec::with_capacity(plan.lanes.len());
    for lane in &plan.lanes {
        let mut name: Option<usize> = None;
        for step in plan.lane(lane) {
            let mut is_known = true;
            each_name(plan, parts, step, &mut |found| {
                let found = match found {
                    Named::Name(found) if found < joined.len() => Some(found),
                    Named::Scratch(place) => match of_scratch.get_mut(place as usize) {
                        // A lane that names nothing else before has no name to give.
                        Some(known) => known.or(name).inspect(|name| *known = Some(*name)),
                        None => None,
                    },
                    _ => None,
                };
                is_known &= found.is_some();
                if let Some(found) = found {
                    joined.join(*name.get_or_insert(found), found);
                }
            });
            if !is_known {
                return None;
            }
        }
        names.push(name?);
    }
    Some(names)
}

enum Named {
    Name(usize),
    Scratch(u32),
    Unknown,
}

/// What a step names; pieces of lengths and counters first.
fn each_name(plan: &Plan, parts: usize, step: &Step, take: &mut dyn FnMut(Named)) {
    let piece = |chunk: Chunk| match chunk.0 as usize {
        chunk if chunk < parts => Named::Name(chunk),
        _ => Named::Unknown,
    };
    let channel = |channel: Channel| Named::Name(parts + usize::from(channel.0));
    if step.extent != Extent::NONE {
        take(step.extent.as_chunk().map_or(Named::Unknown, piece));
    }
    if uses_counter(step) {
        take(
            plan.counters.get(step.counter as usize).map_or(Named::Unknown, |used| channel(used.id.channel)),
        );
    }
    for operand in operands_of(plan, step) {
        let region = plan.regions.get(usize::from(operand.region)).map(|used| used.region);
        take(match (region, operand.position) {
            (Some(Region::Mailbox { channel: of, .. }), Position::Slot(_)) => channel(of),
            (Some(Region::Input(_) | Region::Output(_)), Position::Chunk(chunk)) => piece(chunk),
            (Some(Region::Scratch), Position::Scratch(place)) => Named::Scratch(place),
            _ => Named::Unknown,
        });
    }
}

const fn has_none(step: &Step) -> bool {
    step.targets == 0 && step.sources == 0
}

/// Targets and sources; steps without any may begin anywhere.
fn operands_of<'a>(plan: &'a Plan, step: &Step) -> &'a [Operand] {
    let (first, count) = (step.operands as usize, usize::from(step.targets) + usize::from(step.sources));
    if has_none(step) { &[] } else { &plan.operands[first..first + count] }
}

fn uses_counter(step: &Step) -> bool {
    use crate::plan::Action::{Signal, Wait};
    matches!(step.action, Signal | Wait) || step.has(Step::COUNTED)
}

/// What of a plan is of one program.
struct Part<'a> {
    plan: &'a Plan,
    of_lane: &'a [usize],
    program: usize,
    pieces: &'a [Option<u32>],
    channels: &'a [Option<u32>],
}

impl Part<'_> {
    fn plan(&self) -> Option<Plan> {
        let plan = self.plan;
        let counters = self.counters();
        let mut own = Plan {
            name: plan.name.clone(),
            collective: plan.collective,
            ranks: plan.ranks,
            rank: plan.rank,
            partition: crate::Partition { parts: self.pieces.iter().flatten().count() as u32 },
            slots: plan.slots,
            sliced: plan.sliced,
            scratch: 0,
            regions: Vec::new(),
            counters: counters.iter().flatten().map(|(_, used)| *used).collect(),
            groups: Vec::new(),
            lanes: Vec::new(),
            steps: Vec::new(),
            operands: Vec::new(),
        };
        let mut scratch: Vec<Option<u32>> = vec![None; plan.scratch as usize];
        let mut regions: Vec<Option<u16>> = vec![None; plan.regions.len()];
        let lanes = plan.lanes.iter().zip(self.of_lane).filter(|(_, of)| **of == self.program);
        for (lane, _) in lanes {
            let start = own.steps.len() as u32;
            for step in plan.lane(lane) {
                let operands = own.operands.len() as u32;
                for operand in operands_of(plan, step) {
                    let region = self.region(&mut own, &mut regions, usize::from(operand.region))?;
                    let position = match operand.position {
                        Position::Chunk(chunk) => Position::Chunk(self.piece(chunk)?),
                        Position::Scratch(place) => {
                            let place = scratch.get_mut(place as usize)?;
                            Position::Scratch(*place.get_or_insert_with(|| {
                                own.scratch += 1;
                                own.scratch - 1
                            }))
                        }
                        other => other,
                    };
                    own.operands.push(Operand { region, position });
                }
                let extent = match step.extent.as_chunk() {
                    Some(chunk) => Extent::chunk(self.piece(chunk)?),
                    None => step.extent,
                };
                let counter = if uses_counter(step) {
                    counters.get(step.counter as usize)?.as_ref()?.0
                } else {
                    step.counter
                };
                own.steps.push(Step { operands, extent, counter, ..*step });
            }
            own.lanes.push(Lane { start, end: own.steps.len() as u32, engine: lane.engine });
        }
        // What no step names is listed all the same, and judged.
        (0..plan.regions.len()).for_each(|at| _ = self.region(&mut own, &mut regions, at));
        (!own.lanes.is_empty()).then_some(own)
    }

    /// The number of a region in the program, in the order in which steps name them; none of another program's mailbox.
    fn region(&self, own: &mut Plan, numbers: &mut [Option<u16>], at: usize) -> Option<u16> {
        let (used, number) = (self.plan.regions.get(at)?, numbers.get_mut(at)?);
        if number.is_none() {
            let region = match used.region {
                Region::Mailbox { owner, writer, channel } => {
                    Region::Mailbox { owner, writer, channel: self.channel(channel)? }
                }
                other => other,
            };
            *number = Some(own.regions.len() as u16);
            own.regions.push(RegionUse { region, ..*used });
        }
        *number
    }

    fn piece(&self, chunk: Chunk) -> Option<Chunk> {
        self.pieces.get(chunk.0 as usize).copied().flatten().map(Chunk)
    }

    fn channel(&self, channel: Channel) -> Option<Channel> {
        self.channels.get(usize::from(channel.0)).copied().flatten().map(|channel| Channel(channel as u16))
    }

    /// For each counter of the plan its number and form in the program.
    fn counters(&self) -> Vec<Option<(u32, CounterUse)>> {
        let mut next = 0..;
        let own = |used: &CounterUse| {
            let id = crate::plan::CounterId { channel: self.channel(used.id.channel)?, ..used.id };
            Some((next.next()?, CounterUse { id, ..*used }))
        };
        self.plan.counters.iter().map(own).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{decide, proof};
    use super::*;
    use crate::builders::{RailTrees, binomial, rail_trees, tree};
    use crate::plan::Action;
    use crate::{LowerOptions, Schedule, lower_all, passes};
    use consort_testing::Random;

    fn plans(schedule: &Schedule) -> Vec<Plan> {
        lower_all(schedule, &LowerOptions { slots: 4 }).expect("it lowers")
    }

    fn trees(collective: Collective, boxes: u32, per_box: u32, trees: u32) -> Vec<Plan> {
        plans(&rail_trees(collective, RailTrees { boxes, per_box, trees, first: 0 }))
    }

    fn by_parts(plans: &[Plan]) -> Option<Proof> {
        verify_parts(plans, |plans| decide(plans, 0).ok())
    }

    #[test]
    fn parts_have_the_proof_of_the_whole() {
        for collective in [Collective::AllReduce, Collective::Broadcast, Collective::Reduce] {
            let whole = trees(collective, 3, 2, 4);
            let fused: Vec<Plan> = whole.iter().map(|plan| passes::fuse(plan, &|_| true)).collect();
            for plans in [&whole, &fused] {
                let programs = Programs::new(plans).expect("trees are programs");
                assert_eq!(programs.count, 8, "{collective}");
                let proved = std::cell::Cell::new(0);
                let found = verify_parts(plans, |plans| {
                    proved.set(proved.get() + 1);
                    decide(plans, 0).ok()
                });
                assert_eq!(found, decide(plans, 0).ok().map(|of| proof(plans, &of)), "{collective}");
                // Every second tree of a rail is the same.
                assert_eq!(proved.get(), 4, "{collective}");
            }
        }
    }

    #[test]
    fn what_is_one_program_has_no_parts() {
        let one = [plans(&tree(Collective::AllReduce, 5)), plans(&binomial(Collective::Broadcast, 6))];
        for plans in one {
            assert!(Programs::new(&plans).is_none() && decide(&plans, 0).is_ok());
        }
    }

    #[test]
    fn damaged_plans_are_refused_as_by_the_whole() {
        let mut random = Random::announced("damaged plans, by parts");
        let mut below = |bound: usize| random.below(bound);
        let whole = [trees(Collective::AllReduce, 3, 2, 2), trees(Collective::Reduce, 4, 2, 1)];
        let (mut refused, mut proved) = (0, 0);
        for _ in 0..1500 {
            let mut plans = whole[below(whole.len())].clone();
            for _ in 0..1 + below(2) {
                let rank = below(plans.len());
                let plan = &mut plans[rank];
                let step = below(plan.steps.len());
                let operand = below(plan.operands.len());
                let (region, other) = (below(plan.regions.len()), below(plan.regions.len()));
                let (counter, lane) = (below(plan.counters.len()), below(plan.lanes.len()));
                match below(12) {
                    0 => plan.steps[step].value += below(3) as i32 - 1,
                    1 => plan.steps[step].counter = below(plan.counters.len()) as u32,
                    2 => plan.operands[operand].region = below(plan.regions.len()) as u16,
                    3 => plan.operands[operand].position = Position::Chunk(Chunk(below(4) as u32)),
                    4 => plan.operands[operand].position = plan.operands[below(plan.operands.len())].position,
                    5 => plan.steps[step].extent = Extent::chunk(Chunk(below(4) as u32)),
                    6 => plan.steps[step].action = [Action::Copy, Action::Reduce, Action::Put][below(3)],
                    7 => plan.scratch = [0, 3, plan.operands.len() as u32 + 1, u32::MAX][below(4)],
                    8 => plan.counters[counter].id.channel = Channel(below(9) as u16),
                    9 => plan.regions[region] = plan.regions[other],
                    10 => plan.lanes[lane].end -= 1,
                    // A program that stays right.
                    _ => plan.operands.push(plan.operands[operand]),
                }
            }
            let (parts, of_whole) = (by_parts(&plans), decide(&plans, 4096));
            refused += usize::from(of_whole.is_err());
            if let Some(found) = parts {
                let whole = of_whole.unwrap_or_else(|refusal| panic!("the whole is refused: {refusal}"));
                assert_eq!(found, proof(&plans, &whole));
                proved += 1;
            }
        }
        assert!(proved > 50, "{proved} of 1500 are proved by parts");
        assert!(refused > 800, "{refused} of 1500 are wrong");
    }
}
