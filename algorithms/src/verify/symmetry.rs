//! Proves the plans of all ranks of a symmetric schedule from one of them.
//!
//! A move of all ranks by the same distance along the dimensions turns each rank's plan into that of the rank it
//! moves to. So there is a run in which all ranks do the same step at the same time, and a rank finds in a mailbox
//! the value that it put itself in the mailbox at the same distance, moved back. Following one rank through that run
//! shows the steps of all, and one run decides ([`run`](mod@super::run) has the reason).
//!
//! What is shown, with a mailbox standing for all between ranks of the same distance:
//! - Deadlock: all ranks wait at the same time or none, so the run ends exactly if the one rank's lanes do.
//! - Slots: a put waits for a credit that covers its use, a credit is raised behind the reads of the uses it covers,
//!   a read waits for a *ready* that covers its use, and that is raised behind the puts. Then a slot is filled again
//!   only after it was read, and read only after it was filled, in every interleaving; and this holds for slots that
//!   an earlier operation filled. Of a rank's cells, other ranks touch its mailboxes alone, and no cell is written by
//!   two lanes.
//! - One iteration decides for all: at its end every mailbox was filled, emptied and credited by as much as its
//!   tables say, so that the next one starts in the same state, with all counts higher by the same.
//! - Outputs: the rank's own, and for an all-reduce that moving them gives the outputs of the neighbours.
//!
//! The claim of symmetry is checked on the schedule: that the parts of the ranks one step off, of all peers and of
//! one far away are this rank's part, moved. A job whose ranks all pass has checked every pair that exchanges.
//! Lowering and passes do the same on all ranks, provided that they get the same arguments (`mapped` must move along
//! too).
//!
//! Invariant: refuses every plan that the full verifier refuses. It also refuses some that the full verifier proves:
//! plans with memory other than the own and mailboxes, with counters other than *ready* and *credit*, with packets,
//! counted writes or groups, and with an order that only a third rank makes. Time and memory are those of one plan.

use super::expression::Bracket;
use super::lockstep::Lockstep;
use super::refusal::Refusal;
use super::shape::{Group, Shapes};
use super::{Proof, hash_of_brackets};
use crate::numbers::Numbers;
use crate::{
    Chunk, Collective, Own, Place, Plan, Rank, Regular, Schedule, Symmetry, Transfer, lengths, lower,
};

/// Proves the plans of all ranks of a regular schedule from that of one, in time and memory of this one. The plans of
/// the others must be made as this one was.
///
/// # Errors
///
/// [`Refusal`] with the first fault of the plan, or where the schedule is not as symmetric as it claims.
pub fn verify_regular(regular: &dyn Regular, plan: &Plan) -> Result<Proof, Refusal> {
    let rank = plan.rank;
    let refuse = |why| Refusal::Asymmetric { rank, why };
    let head = regular.head();
    let claim = regular.symmetry().ok_or(refuse("it claims no symmetry"))?;
    let lower_first = claim.lower_first;
    let group = Group::new(claim.dimensions.clone(), head.ranks)
        .ok_or(refuse("its dimensions are not those of its ranks"))?;
    if lower_first && !group.is_binary() {
        return Err(refuse("the lower value can come first only along dimensions of 2"));
    }
    let same = (plan.collective, plan.ranks, plan.partition) == (head.collective, head.ranks, head.partition);
    if !same || rank.0 >= head.ranks {
        return Err(Refusal::Mismatch { rank, what: "the regular schedule is another one" });
    }
    use Collective::{AllGather, AllReduce, AllToAll, ReduceScatter};
    if !matches!(head.collective, AllReduce | ReduceScatter | AllGather | AllToAll) {
        return Err(refuse("its ranks have different parts to play"));
    }
    let moves = Moves { regular, head: &head, group: &group };
    check_claim(&moves, &claim, rank)?;
    let mut shapes = Shapes::new(Group::new(claim.dimensions, head.ranks).ok_or(refuse("no ranks"))?);
    let outputs = Lockstep::new(plan, &moves, &mut shapes, lower_first)?.finish()?;
    let brackets: Vec<Bracket> = match head.collective {
        collective if !collective.reduces() => Vec::new(),
        Collective::AllReduce => outputs.iter().map(|&output| shapes.bracket(output)).collect(),
        _ => {
            let everywhere = (0..head.ranks).flat_map(|at| outputs.iter().map(move |&output| (at, output)));
            let moved = everywhere.map(|(at, output)| {
                let output = shapes.moved(output, group.minus(at, rank.0));
                shapes.bracket(output)
            });
            moved.collect()
        }
    };
    let parts = head.partition.parts.into();
    let fold_hash = hash_of_brackets(head.collective, head.ranks, parts, brackets.iter().copied());
    Ok(Proof { fold_hash, steps: plan.steps.len() * head.ranks as usize })
}

/// Whether the schedule is as symmetric as it claims, as far as rank 0 sees it: its part and those of its peers.
///
/// # Errors
///
/// [`Refusal::Asymmetric`] where it is not.
pub(crate) fn check_symmetry(regular: &dyn Regular) -> Result<(), Refusal> {
    let refuse = |why| Refusal::Asymmetric { rank: Rank(0), why };
    let (head, claim) = (regular.head(), regular.symmetry().ok_or(refuse("it claims no symmetry"))?);
    let group = Group::new(claim.dimensions.clone(), head.ranks)
        .ok_or(refuse("its dimensions are not those of its ranks"))?;
    check_claim(&Moves { regular, head: &head, group: &group }, &claim, Rank(0))
}

/// The new names of places when all ranks move.
pub(super) struct Moves<'a> {
    regular: &'a dyn Regular,
    pub(super) head: &'a Schedule,
    pub(super) group: &'a Group,
}

impl Moves<'_> {
    fn rank(&self, rank: Rank, by: u32) -> Rank {
        Rank(self.group.plus(rank.0, by))
    }

    /// A chunk of an input or output.
    pub(super) fn chunk(&self, chunk: u32, output: bool, by: u32) -> u32 {
        let Schedule { collective, ranks, partition, .. } = *self.head;
        let blocks = if output { collective.output_blocks(ranks) } else { collective.input_blocks(ranks) };
        if blocks > 1 {
            return self.block(chunk, by);
        }
        if collective == Collective::AllReduce && chunk < partition.parts {
            return self.regular.piece(Rank(by), chunk);
        }
        chunk
    }

    fn block(&self, chunk: u32, by: u32) -> u32 {
        let parts = self.head.partition.parts.max(1);
        self.group.plus(chunk / parts, by) * parts + chunk % parts
    }

    /// The number that names a length.
    pub(super) fn length(&self, class: u32, by: u32) -> u32 {
        if lengths::may_differ(self.head.collective) {
            return self.block(class, by);
        }
        match self.head.collective {
            Collective::AllReduce => self.chunk(class, true, by),
            _ => class,
        }
    }
}

/// Whether the parts of the ranks one step off, of all peers and of one far away are that of `rank`, moved.
fn check_claim(moves: &Moves<'_>, claim: &Symmetry, rank: Rank) -> Result<(), Refusal> {
    let group = moves.group;
    let mut own = Vec::new();
    moves.regular.own(rank, &mut |of| own.push(of));
    // A rank that looks random from one rank to the next, by arithmetic alone.
    let far = rank.0.wrapping_mul(0x9e37_79b9).wrapping_add(0x7f4a_7c15) % group.ranks;
    let mut others: Vec<u32> = group.generators().chain([far]).collect();
    others.extend(
        own.iter().flat_map(|of| [of.transfer.from, of.transfer.to]).map(|peer| group.minus(peer.0, rank.0)),
    );
    others.sort_unstable();
    others.dedup();
    for by in others.into_iter().filter(|&by| by != 0) {
        let there = moves.rank(rank, by);
        let mut image = Image { moves, claim, by, scratch: [Numbers::default(), Numbers::default()] };
        let (mut at, mut same) = (0, true);
        moves.regular.own(there, &mut |other| {
            same = same && own.get(at).is_some_and(|mine| image.is(mine, &other));
            at += 1;
        });
        if !same || at != own.len() {
            return Err(Refusal::Asymmetric { rank: there, why: "its part is not another rank's, moved" });
        }
    }
    Ok(())
}

/// Compares transfers with those of another rank, moved. Scratch places may have other numbers, as long as the
/// renaming is one to one.
struct Image<'a> {
    moves: &'a Moves<'a>,
    claim: &'a Symmetry,
    by: u32,
    scratch: [Numbers<(Rank, u32)>; 2],
}

impl Image<'_> {
    fn is(&mut self, mine: &Own, other: &Own) -> bool {
        let (from, to) =
            (self.moves.rank(mine.transfer.from, self.by), self.moves.rank(mine.transfer.to, self.by));
        let (a, b) = (&mine.transfer, &other.transfer);
        let order = |of: &Transfer| {
            let by_rank = self.claim.lower_first && of.fold.is_some();
            if by_rank { of.own_first == (of.to < of.from) } else { of.own_first }
        };
        (mine.round, mine.complete, from, to, a.channel, order(a))
            == (other.round, other.complete, b.from, b.to, b.channel, order(b))
            && (!self.claim.lower_first || a.fold.is_none() || order(a))
            && self.moves.length(self.length(a), self.by) == self.length(b)
            && self.place(from, a.source, b.source)
            && self.place(to, a.target, b.target)
            && match (a.fold, b.fold) {
                (Some(a), Some(b)) => self.place(to, a, b),
                (a, b) => a == b,
            }
    }

    /// The number that names the length of the transfer.
    fn length(&self, transfer: &Transfer) -> u32 {
        let head = self.moves.head;
        lengths::class(head.collective, head.partition, lower::length_of(head, transfer))
    }

    /// Whether the second place is the first, moved to `rank`.
    fn place(&mut self, rank: Rank, mine: Place, other: Place) -> bool {
        match (mine, other) {
            (Place::Input(a), Place::Input(b)) => Chunk(self.moves.chunk(a.0, false, self.by)) == b,
            (Place::Output(a), Place::Output(b)) => Chunk(self.moves.chunk(a.0, true, self.by)) == b,
            (Place::Scratch(a), Place::Scratch(b)) => {
                let [there, back] = &mut self.scratch;
                *there.entry((rank, a.0)).or_insert(b.0) == b.0
                    && *back.entry((rank, b.0)).or_insert(a.0) == a.0
            }
            _ => false,
        }
    }
}
