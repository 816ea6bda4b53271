//! Why a set of plans is refused, with the place where it was found.

use std::error::Error;
use std::fmt;

use crate::plan::CounterId;
use crate::{Channel, Rank};

/// A step of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct At {
    /// Whose plan.
    pub rank: Rank,
    /// Index into [`Plan::lanes`](crate::Plan::lanes).
    pub lane: u32,
    /// Index into [`Plan::steps`](crate::Plan::steps).
    pub step: u32,
}

/// Who touched memory.
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
        /// In whose memory.
        owner: Rank,
        /// Who fills it.
        writer: Rank,
        /// On which channel.
        channel: Channel,
        /// Which slot.
        slot: u32,
    },
}

/// A lane that cannot go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// Where it stands.
    pub at: At,
    /// What it waits for.
    pub awaits: Awaited,
}

/// What a lane waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Awaited {
    /// A counter, counted from the first operation's start.
    Counter {
        /// Which.
        id: CounterId,
        /// The value it must reach.
        needed: i64,
        /// The value it has in the end.
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
        /// What it disagrees about.
        what: &'static str,
    },
    /// A regular schedule is not as symmetric as it claims.
    Asymmetric {
        /// Whose part shows it.
        rank: Rank,
        /// What is wrong.
        why: &'static str,
    },
    /// More than the verifier is willing to run.
    TooLarge {
        /// What there is too much of.
        what: &'static str,
    },
    /// A table of a plan is broken.
    Malformed {
        /// Whose plan.
        rank: Rank,
        /// Index into the table.
        index: u32,
        /// What is wrong.
        why: &'static str,
    },
    /// A step that cannot be executed or is not allowed.
    BadStep {
        /// Which.
        at: At,
        /// What is wrong.
        why: &'static str,
    },
    /// A counter is not what the tables say.
    BadCounter {
        /// Whose plan says so.
        rank: Rank,
        /// Which counter.
        id: CounterId,
        /// What is wrong.
        why: &'static str,
    },
    /// A mailbox is not what the tables say.
    BadMailbox {
        /// Whose plan says so.
        rank: Rank,
        /// Its first slot.
        mailbox: Memory,
        /// What is wrong.
        why: &'static str,
    },
    /// Lanes wait for what never comes.
    Stuck {
        /// All that wait, in the order of ranks and lanes.
        waiting: Vec<Waiting>,
    },
    /// Two accesses that nothing orders, at least one of which writes.
    Race {
        /// Found first.
        first: Actor,
        /// Found second.
        second: Actor,
        /// What they touch.
        memory: Memory,
        /// Whether only the in-place form is at fault.
        in_place: bool,
    },
    /// A slot is filled again before anybody read it.
    Overwritten {
        /// By which step.
        at: At,
        /// Which slot.
        memory: Memory,
    },
    /// A wait on counted writes that a later write can satisfy in place of the awaited one.
    AmbiguousCount {
        /// The later write.
        at: At,
        /// The counter.
        id: CounterId,
    },
    /// An output does not hold what the collective says.
    WrongOutput {
        /// Whose output and which chunk.
        output: Memory,
        /// What it holds, in brackets; `'` is scaled, `[ ]` finished, `?` undefined.
        holds: String,
        /// What is wrong with it.
        why: &'static str,
        /// Whether only the in-place form is at fault.
        in_place: bool,
    },
    /// A mailbox's slot was filled and never read.
    Unread {
        /// Which slot.
        memory: Memory,
    },
}

impl Refusal {
    /// Whether more knowledge of what happens before what could have changed it.
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
                write!(f, "{at} fills {memory} again before anybody read it")
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
