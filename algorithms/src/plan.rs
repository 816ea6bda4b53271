//! The lowered form: one rank's flat list of one-sided steps over named regions. Plans are what runs.
//!
//! Invariant: a plan holds no address, no size and no branch. Regions are bound to memory, extents to byte
//! counts and counters to cache lines when an operation starts; which step comes next never depends on data.
//! Therefore a proof of the plan by [`verify`](crate::verify()) holds for every run of it.
//!
//! The field's names correspond to [`Action`] as follows: `put` and `get` are [`Action::Put`] and [`Action::Get`]
//! (the transport moves the bytes); `copy`, `reduce`, `read_reduce` are [`Action::Copy`] and
//! [`Action::Reduce`] whose operands may lie in a peer's mapped region (the processor moves them);
//! `multicast` and `multimem` forms are the same with a [`Region::Group`] operand; data-with-flag (LL) is
//! [`Step::PACKET`]; counted writes are [`Step::COUNTED`]; sizes that only the device knows are
//! [`Extent::table`].

use crate::{Channel, Chunk, Collective, Partition, Rank};

/// One rank's program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The name of the schedule it was lowered from.
    pub name: String,
    /// The collective.
    pub collective: Collective,
    /// Number of ranks.
    pub ranks: u32,
    /// The rank that runs it.
    pub rank: Rank,
    /// The cut of the caller's buffers.
    pub partition: Partition,
    /// Slots of every mailbox.
    pub slots: u32,
    /// Whether the lanes are the body of a loop over slices of the chunks, one slot long each. Otherwise they
    /// run once and every extent is a whole chunk.
    pub sliced: bool,
    /// Local scratch places, each one slice (or chunk) long.
    pub scratch: u32,
    /// The regions that operands name.
    pub regions: Vec<RegionUse>,
    /// The counters that signals and waits name.
    pub counters: Vec<CounterUse>,
    /// Groups that [`Region::Group`] names.
    pub groups: Vec<Vec<Rank>>,
    /// Programs that run side by side, each strictly in order.
    pub lanes: Vec<Lane>,
    /// The steps of all lanes, lane after lane.
    pub steps: Vec<Step>,
    /// The operands of all steps.
    pub operands: Vec<Operand>,
}

/// A run of steps done in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lane {
    /// First step.
    pub start: u32,
    /// One past the last step.
    pub end: u32,
    /// The engine that executes it.
    pub engine: Engine,
}

/// An engine that can execute a lane.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Engine {
    /// Loads, stores and arithmetic: a thread of the host or a block of a GPU.
    Processor,
    /// A copy engine with stream-ordered waits and writes; cannot reduce.
    CopyEngine,
    /// A network interface that chains posted work; cannot reduce.
    Network,
}

/// A piece of memory that operands refer to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Region {
    /// The input of a rank: the own one, or a peer's where a link can reach it.
    Input(Rank),
    /// The output of a rank, likewise.
    Output(Rank),
    /// The own scratch.
    Scratch,
    /// The ring of slots in `owner`'s memory that `writer` fills.
    Mailbox {
        /// The rank whose memory holds the slots.
        owner: Rank,
        /// The rank that fills them.
        writer: Rank,
        /// The channel.
        channel: Channel,
    },
    /// The same buffer of all ranks of a group at once: a load folds the members' bytes in an order of the switch's
    /// own, which may differ from call to call; a store reaches all of them. An NVLink switch or an aggregating switch
    /// implements it.
    Group {
        /// Index into [`Plan::groups`].
        group: u16,
        /// The members' output when true, their input when false.
        output: bool,
    },
}

/// A region with the loop's numbers for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionUse {
    /// Which memory.
    pub region: Region,
    /// Slots of a mailbox filled (or emptied) per iteration of the loop; 0 for other regions.
    pub slots_per_iteration: u32,
}

/// A counter that only grows, owned by the rank that waits for it, raised by exactly one other rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CounterId {
    /// The rank that waits.
    pub owner: Rank,
    /// The rank that raises it.
    pub writer: Rank,
    /// The channel.
    pub channel: Channel,
    /// What it counts.
    pub role: CounterRole,
}

impl CounterId {
    /// The mailbox whose slots it counts, as its owner, writer and channel.
    pub fn mailbox(&self) -> (Rank, Rank, Channel) {
        match self.role {
            // The rank that waits for a credit fills the mailbox that the other rank owns.
            CounterRole::Credit => (self.writer, self.owner, self.channel),
            CounterRole::Ready | CounterRole::Flag(_) => (self.owner, self.writer, self.channel),
        }
    }
}

/// What a counter counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum CounterRole {
    /// Slots that the writer has filled in the owner's mailbox.
    Ready,
    /// Slots that the writer has emptied in its own mailbox, which the owner fills.
    Credit,
    /// Any other event of a plan: entry to and exit from peers' buffers, arrival in one slot.
    Flag(u16),
}

/// A counter with the loop's numbers for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CounterUse {
    /// Which counter.
    pub id: CounterId,
    /// By how much one iteration raises it.
    pub per_iteration: u32,
}

/// The action of a step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Action {
    /// Every target becomes the one source.
    Copy,
    /// Every target becomes the left fold of the sources in their order.
    Reduce,
    /// The transport writes the one source (local) into the one target (a peer's).
    Put,
    /// The transport reads the one source (a peer's) into the one target (local).
    Get,
    /// Adds [`Step::value`] to a peer's counter, after everything this lane did before.
    Signal,
    /// Goes on once the own counter has reached its value at the operation's start, plus
    /// `iteration * per_iteration`, plus [`Step::value`].
    Wait,
}

/// One step. `Copy` and 32 bytes at most: half a cache line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Step {
    /// The action.
    pub action: Action,
    /// [`Step::FINISH`], [`Step::PACKET`], [`Step::COUNTED`].
    pub flags: u8,
    /// How many operands are targets; they come first.
    pub targets: u8,
    /// How many operands are sources.
    pub sources: u8,
    /// Bit `i`: source `i` is a rank's own contribution, not yet scaled for `avg`.
    pub raw: u32,
    /// Index of the first operand.
    pub operands: u32,
    /// The length of the operands.
    pub extent: Extent,
    /// Index of the counter (signals, waits and counted puts).
    pub counter: u32,
    /// Increment or threshold.
    pub value: i32,
}

impl Step {
    /// The value is complete: `avg` over integers divides now.
    pub const FINISH: u8 = 1;
    /// The bytes carry their own flag (LL): the write is its signal, the read its wait.
    pub const PACKET: u8 = 2;
    /// The transport raises [`Step::counter`] by [`Step::value`] at the target when the bytes have arrived;
    /// different puts may arrive in any order.
    pub const COUNTED: u8 = 4;
    /// The most targets, and the most sources, of a step: executors keep them on the stack.
    pub const PLACES_MAX: usize = 16;

    /// Whether all bits of `flag` are set.
    pub const fn has(&self, flag: u8) -> bool {
        self.flags & flag == flag
    }
}

const _: () = assert!(size_of::<Step>() <= 32);

/// The length of a step: that of a chunk of the partition, or an entry of a table that is filled when the operation
/// starts (or by the device while it runs).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Extent(u32);

impl Extent {
    const TABLE: u32 = 1 << 31;
    /// Signals and waits have none.
    pub const NONE: Extent = Extent(u32::MAX);

    /// As long as this chunk.
    pub const fn chunk(chunk: Chunk) -> Self {
        Extent(chunk.0)
    }

    /// As long as the table's entry.
    pub const fn table(index: u32) -> Self {
        Extent(index | Self::TABLE)
    }

    /// The chunk; `None` for a table's entry and for [`Extent::NONE`].
    pub const fn as_chunk(self) -> Option<Chunk> {
        if self.0 & Self::TABLE == 0 { Some(Chunk(self.0)) } else { None }
    }

    /// The table's entry, if it is one.
    pub const fn as_table(self) -> Option<u32> {
        if self.0 != u32::MAX && self.0 & Self::TABLE != 0 { Some(self.0 & !Self::TABLE) } else { None }
    }
}

/// One operand: a region and a position in it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Operand {
    /// Index into [`Plan::regions`].
    pub region: u16,
    /// The position in the region.
    pub position: Position,
}

/// A position in a region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Position {
    /// A chunk of a caller's buffer; in a sliced plan the slice of the present iteration.
    Chunk(Chunk),
    /// A mailbox's slot: the `i`-th use of the mailbox in this iteration, modulo its slots, counted on from
    /// the operation before.
    Slot(u32),
    /// A scratch place.
    Scratch(u32),
    /// An offset from the table that is filled when the operation starts (or by the device).
    Table(u32),
}

impl Plan {
    /// The targets of a step.
    #[inline]
    pub fn targets(&self, step: &Step) -> &[Operand] {
        &self.operands[step.operands as usize..step.operands as usize + step.targets as usize]
    }

    /// The sources of a step.
    #[inline]
    pub fn sources(&self, step: &Step) -> &[Operand] {
        let first = step.operands as usize + step.targets as usize;
        &self.operands[first..first + step.sources as usize]
    }

    /// The mailboxes that the rank fills or empties: owner, writer and channel of each, in ascending order.
    pub fn mailboxes(&self) -> Vec<(Rank, Rank, Channel)> {
        let region = |used: &RegionUse| match used.region {
            Region::Mailbox { owner, writer, channel } => Some((owner, writer, channel)),
            _ => None,
        };
        let of_counters = self.counters.iter().map(|used| used.id.mailbox());
        let mut all: Vec<_> = self.regions.iter().filter_map(region).chain(of_counters).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The most mailboxes of one owner and writer.
    pub fn mailboxes_max(&self) -> usize {
        let all = self.mailboxes();
        all.chunk_by(|one, other| (one.0, one.1) == (other.0, other.1)).map(<[_]>::len).max().unwrap_or(0)
    }

    /// The steps of a lane.
    #[inline]
    pub fn lane(&self, lane: &Lane) -> &[Step] {
        &self.steps[lane.start as usize..lane.end as usize]
    }
}
