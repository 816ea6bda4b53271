//! Why a set of plans is refused, and at which place of the plans.

use std::error::Error;
use std::fmt;

use crate::plan::CounterId;
use crate::{Channel, Rank};

/// A step of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct At {
    /// The rank of the plan.
    pub rank: Rank,
    /// Index into [`Plan::lanes`](crate::Plan::lanes).
    pub lane: u32,
    /// Index into [`Plan::steps`](crate::Plan::steps).
    pub step: u32,
}

/// The step or caller that touched memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Actor {
    /// A step of a plan.
    Step(At),
    /// The caller of that rank, before the operation starts or after it returned.
    Caller(Rank),
    /// An earlier operation that used the same mailbox.
    EarlierOperation,
}

/// A piece of memory, as the plans name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// Chunk (or table entry) of a rank's input.
    Input(Rank, u32),
    /// Chunk (or table entry) of a rank's output; in the in-place form also the input.
    Output(Rank, u32),
    /// A rank's scratch place.
    Scratch(Rank, u32),
    /// A slot of a mailbox.
    Slot {
        /// The rank whose memory holds the slots.
        owner: Rank,
        /// The rank that fills them.
        writer: Rank,
        /// The channel.
        channel: Channel,
        /// The number of the slot.
        slot: u32,
    },
}

/// A lane that cannot go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// Its present step.
    pub at: At,
    /// What it waits for.
    pub awaits: Awaited,
}

/// What a lane waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Awaited {
    /// A counter, counted from the first operation's start.
    Counter {
        /// The counter.
        id: CounterId,
        /// The value it must reach.
        needed: i64,
        /// The value it has when the run ends.
        reached: i64,
    },
    /// A slot that carries its own flag.
    Packet(Memory),
}

/// Why a set of plans is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The plans are not those of one operation.
    Mismatch {
        /// The first rank whose plan does not fit.
        rank: Rank,
        /// The fact on which the plans disagree.
        what: &'static str,
    },
    /// A regular schedule is not as symmetric as it claims.
    Asymmetric {
        /// The rank whose part shows it.
        rank: Rank,
        /// The fault.
        why: &'static str,
    },
    /// The plans are larger than the verifier runs.
    TooLarge {
        /// The quantity that is too large.
        what: &'static str,
    },
    /// A table of a plan is broken.
    Malformed {
        /// The rank of the plan.
        rank: Rank,
        /// Index into the table.
        index: u32,
        /// The fault.
        why: &'static str,
    },
    /// A step that cannot be executed or is not allowed.
    BadStep {
        /// The step.
        at: At,
        /// The fault.
        why: &'static str,
    },
    /// The steps use a counter in another way than the tables say.
    BadCounter {
        /// The rank of the plan.
        rank: Rank,
        /// The counter.
        id: CounterId,
        /// The fault.
        why: &'static str,
    },
    /// The steps use a mailbox in another way than the tables say.
    BadMailbox {
        /// The rank of the plan.
        rank: Rank,
        /// Its first slot.
        mailbox: Memory,
        /// The fault.
        why: &'static str,
    },
    /// Lanes wait for an event that never comes.
    Stuck {
        /// All lanes that wait, in the order of ranks and lanes.
        waiting: Vec<Waiting>,
    },
    /// Two unordered accesses, at least one of them a write.
    Race {
        /// The one that was found first.
        first: Actor,
        /// The one that was found second.
        second: Actor,
        /// The memory that both touch.
        memory: Memory,
        /// Whether the race exists in the in-place form alone.
        in_place: bool,
    },
    /// A slot is filled again before any step has read it.
    Overwritten {
        /// The step that fills it again.
        at: At,
        /// The slot.
        memory: Memory,
    },
    /// A wait on counted writes that a later write can satisfy in place of the awaited one.
    AmbiguousCount {
        /// The later write.
        at: At,
        /// The counter.
        id: CounterId,
    },
    /// An output does not hold what the collective defines.
    WrongOutput {
        /// The output chunk.
        output: Memory,
        /// Its content in brackets; `'` is scaled, `[ ]` finished, `?` undefined.
        holds: String,
        /// The fault.
        why: &'static str,
        /// Whether the fault exists in the in-place form alone.
        in_place: bool,
    },
    /// A mailbox's slot was filled and never read.
    Unread {
        /// The slot.
        memory: Memory,
    },
}

impl Refusal {
    /// Whether more knowledge of the order of events could have changed it.
    pub(super) fn is_of_order(&self) -> bool {
        use Refusal::{AmbiguousCount, BadStep, Race};
        matches!(self, Race { .. } | AmbiguousCount { .. } | BadStep { .. })
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {} (lane {} of rank {})", self.step, self.lane, self.rank)
    }
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Actor::Step(at) => at.fmt(f),
            Actor::Caller(rank) => write!(f, "the caller of rank {rank}"),
            Actor::EarlierOperation => f.write_str("an earlier operation"),
        }
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Memory::Input(rank, chunk) => write!(f, "input c{chunk} of {rank}"),
            Memory::Output(rank, chunk) => write!(f, "output c{chunk} of {rank}"),
            Memory::Scratch(rank, place) => write!(f, "scratch {place} of {rank}"),
            Memory::Slot { owner, writer, channel, slot } => {
                write!(f, "slot {slot} of mailbox {owner} <- {writer} {channel}")
            }
        }
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.awaits {
            Awaited::Counter { id, needed, reached } => {
                write!(f, "{} waits for {id} >= {needed}, which ends at {reached}", self.at)
            }
            Awaited::Packet(memory) => write!(f, "{} waits for a packet in {memory}", self.at),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let form = |in_place: &bool| if *in_place { " (in place)" } else { "" };
        match self {
            Refusal::Mismatch { rank, what } => {
                write!(f, "the plan of rank {rank} does not fit the others: {what}")
            }
            Refusal::Asymmetric { rank, why } => {
                write!(f, "the schedule has no symmetry at rank {rank}: {why}")
            }
            Refusal::TooLarge { what } => write!(f, "too large to verify: {what}"),
            Refusal::Malformed { rank, index, why } => {
                write!(f, "the plan of rank {rank} is malformed at index {index}: {why}")
            }
            Refusal::BadStep { at, why } => write!(f, "{at} is not allowed: {why}"),
            Refusal::BadCounter { rank, id, why } => {
                write!(f, "counter {id} in the plan of rank {rank}: {why}")
            }
            Refusal::BadMailbox { rank, mailbox, why } => {
                write!(f, "{mailbox} in the plan of rank {rank}: {why}")
            }
            Refusal::Stuck { waiting } => {
                write!(f, "deadlock: ")?;
                for (index, waiting) in waiting.iter().enumerate() {
                    write!(f, "{}{waiting}", if index == 0 { "" } else { "; " })?;
                }
                Ok(())
            }
            Refusal::Race { first, second, memory, in_place } => {
                write!(f, "nothing orders {first} and {second}, which both touch {memory}{}", form(in_place))
            }
            Refusal::Overwritten { at, memory } => {
                write!(f, "{at} fills {memory} again before it was read")
            }
            Refusal::AmbiguousCount { at, id } => {
                write!(f, "{at} may arrive before an earlier write that a wait on {id} takes it for")
            }
            Refusal::WrongOutput { output, holds, why, in_place } => {
                write!(f, "{output} holds {holds}{}: {why}", form(in_place))
            }
            Refusal::Unread { memory } => write!(f, "{memory} is filled and never read"),
        }
    }
}

impl Error for Refusal {}
