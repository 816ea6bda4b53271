//! One run of the torture test as a function of its seed: ranks, transport, operations, fault, and its time. The test
//! and all its ranks make the same plan. A seed does not determine time: a replayed run makes the same calls and has
//! the same fault, a little earlier or later.

use std::time::Duration;

use consort::{DataType, ReduceOp};

use crate::pattern::is_exact;
use crate::system::Random;

/// The fault, on each rank that the plan names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Fault {
    /// Nothing.
    None,
    /// SIGKILL.
    Kill,
    /// SIGSTOP until the others have failed, then SIGCONT.
    Stop,
    /// SIGSTOP, and SIGCONT long before the deadline.
    Pause,
    /// The process ends without dropping its communicators.
    Exit {
        /// With this code.
        code: i32,
        /// By another thread, while the rank is in a call.
        by_thread: bool,
    },
    /// The communicators are dropped; the process ends, or stays.
    Leave {
        /// Whether it stays.
        stay: bool,
    },
    /// The program is busy elsewhere, but not for long.
    Nap,
    /// The program is busy elsewhere until the others have failed.
    Away,
    /// Another thread aborts the communicator.
    Abort,
    /// Another thread revokes the communicator.
    Revoke,
    /// The thread that owns the communicators panics.
    Panic {
        /// Within a scope, whose operations were started.
        within: bool,
    },
}

/// What the operations of a run are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Traffic {
    /// All kinds, mostly short.
    Any,
    /// Collectives of two ranks, in pieces.
    Pieces,
    /// Messages between two ranks, in pieces.
    Letters,
    /// All-reduces of three or four ranks by plans, and shorter collectives in pieces.
    Plans,
}

impl Traffic {
    /// Where slots migrate to their reader.
    pub const POOLED: [Traffic; 3] = [Traffic::Pieces, Traffic::Letters, Traffic::Plans];
}

/// A stop of a rank that goes on later.
#[derive(Clone, Copy, Debug)]
pub struct Pause {
    /// The rank.
    pub rank: u32,
    /// How long it is stopped.
    pub lasts: Duration,
    /// The time from there to what comes next.
    pub delay: Duration,
}

/// The end of the ranks' operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ends {
    /// After that many operations and a barrier.
    After(u64),
    /// When rank 0 gets a line from the harness and has sent it to the others, and after some operations more.
    Line,
    /// The communicator fails.
    Failure,
}

/// The plan of a run.
#[derive(Debug)]
pub struct Plan {
    /// The seed that repeats it.
    pub seed: u64,
    /// What the operations are.
    pub traffic: Traffic,
    /// How many ranks.
    pub size: u32,
    /// `CONSORT_TRANSPORT`.
    pub transport: &'static str,
    /// `CONSORT_TIMEOUT`.
    pub timeout: Duration,
    /// The fault.
    pub fault: Fault,
    /// Its ranks: one, or two.
    pub victims: Vec<u32>,
    /// The operation of the victims before which it happens.
    pub at: u64,
    /// The time from there to the fault; a nap or a pause lasts for `lasts`.
    pub delay: Duration,
    /// See `delay`; between two kills the time from one to the other.
    pub lasts: Duration,
    /// Whether communicators made by `split` are used too.
    pub splits: bool,
    /// Communicators of all ranks beside the world, each used by a thread of its own at the same time.
    pub beside: u32,
    /// The stops of [`Fault::Pause`], one after the other.
    pub pauses: Vec<Pause>,
    /// The end of the operations.
    pub ends: Ends,
    /// Operations after the harness's line.
    pub after: u64,
}

/// The kind of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// In place.
    AllReduce,
    /// Into another buffer.
    AllReduceInto,
    /// In place.
    Reduce,
    /// In place.
    Broadcast,
    /// Into another buffer.
    AllGather,
    /// Into another buffer.
    ReduceScatter,
    /// Into another buffer.
    AllToAll,
    /// Into another buffer.
    Gather,
    /// Into another buffer.
    Scatter,
    /// No data.
    Barrier,
    /// Every rank exchanges with its neighbours.
    Ring,
    /// Every second rank sends, the one behind it receives.
    Pairs,
    /// Several are started, and waited for in the opposite order.
    Started,
    /// Several are started on borrowed buffers.
    Scope,
    /// A new communicator instead of the one split before.
    Split,
    /// Asks rank 0 whether to end.
    Agree,
}

/// One operation.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// Whether it is on the communicator split last; on the world otherwise.
    pub on_child: bool,
    /// Its kind.
    pub kind: Kind,
    /// The data type.
    pub data_type: DataType,
    /// The operator.
    pub op: ReduceOp,
    /// Elements, as the call counts them.
    pub count: usize,
    /// Chooses roots, colours and contents.
    pub key: u64,
}

const KINDS: [Kind; 14] = [
    Kind::AllReduce,
    Kind::AllReduceInto,
    Kind::Reduce,
    Kind::Broadcast,
    Kind::AllGather,
    Kind::ReduceScatter,
    Kind::AllToAll,
    Kind::Gather,
    Kind::Scatter,
    Kind::Barrier,
    Kind::Ring,
    Kind::Pairs,
    Kind::Started,
    Kind::Scope,
];

/// Shapes of calls in a run of [`Traffic::POOLED`]: calls of one shape recur.
const SHAPES: usize = 12;
/// Stops in such a run.
const PAUSES: u32 = 8;

/// The distance of such operations in a run that ends with a line from the harness.
const AGREE_EVERY: u64 = 8;

fn below(random: &mut Random, most: u64) -> u64 {
    random.draw() % most
}

fn fault(random: &mut Random) -> Fault {
    let flag = below(random, 2) == 0;
    match below(random, 100) {
        0..6 => Fault::None,
        6..22 => Fault::Kill,
        22..32 => Fault::Stop,
        32..42 => Fault::Pause,
        42..54 => Fault::Exit { code: i32::from(below(random, 2) == 0), by_thread: flag },
        54..62 => Fault::Leave { stay: flag },
        62..68 => Fault::Nap,
        68..76 => Fault::Away,
        76..84 => Fault::Abort,
        84..92 => Fault::Revoke,
        _ => Fault::Panic { within: flag },
    }
}

impl Plan {
    /// The plan of a seed.
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let random = &mut random;
        let size = if below(random, 3) == 0 { 2 } else { 2 + below(random, 7) as u32 };
        let transport = ["shm", "tcp"][below(random, 2) as usize];
        let fault = fault(random);
        let seconds = match fault {
            // Where no rank may fail, a busy machine must not make one fail.
            Fault::None | Fault::Pause | Fault::Nap => 10,
            // A quarter of it is the time that the others have to answer.
            Fault::Stop | Fault::Away => 2,
            // Only a communicator that was half made waits for it.
            _ => 4 + below(random, 2),
        };
        let first = below(random, u64::from(size)) as u32;
        let mut victims = vec![first];
        let twice = matches!(fault, Fault::Kill | Fault::Stop | Fault::Abort | Fault::Revoke);
        if twice && size > 2 && below(random, 4) == 0 {
            victims.push((first + 1 + below(random, u64::from(size) - 1) as u32) % size);
        }
        let splits = below(random, 2) == 0;
        let mut at = below(random, 60);
        let length = at + 1 + below(random, 30);
        let ends = match fault {
            Fault::None | Fault::Nap => Ends::After(length),
            Fault::Pause => Ends::Line,
            // At the very end, when some ranks may be through already.
            Fault::Kill | Fault::Exit { by_thread: false, .. } if below(random, 5) == 0 => {
                at = length - below(random, 2);
                Ends::After(length)
            }
            _ => Ends::Failure,
        };
        // See `operation`.
        if fault == Fault::Revoke {
            at = at.max(1);
        }
        let longest = if below(random, 2) == 0 { 1 } else { 20 };
        let delay = random.duration(Duration::from_millis(longest));
        let lasts = match fault {
            Fault::Pause | Fault::Nap => Duration::from_millis(50 + below(random, 251)),
            _ => random.duration(Duration::from_millis(10)),
        };
        // More threads would only wait for cores.
        let beside = if size > 4 { 0 } else { below(random, 3) as u32 };
        let timeout = Duration::from_secs(seconds + u64::from(beside != 0));
        let pauses = match fault {
            Fault::Pause => vec![Pause { rank: first, lasts, delay }],
            _ => Vec::new(),
        };
        let (traffic, after) = (Traffic::Any, 0);
        Plan {
            seed,
            traffic,
            size,
            transport,
            timeout,
            fault,
            victims,
            at,
            delay,
            lasts,
            splits,
            beside,
            pauses,
            ends,
            after,
        }
    }

    /// The plan of a seed, with slots that migrate, and one of the faults that a signal causes.
    pub fn pooled(traffic: Traffic, fault: Fault, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let random = &mut random;
        let size = match traffic {
            Traffic::Letters => 2 + below(random, 2) as u32,
            Traffic::Plans => 3 + below(random, 2) as u32,
            _ => 2,
        };
        let (seconds, ends, after) = match fault {
            Fault::Pause => (60, Ends::Line, if traffic == Traffic::Plans { 150 } else { 300 }),
            // A quarter of it is the time that the others have to answer.
            Fault::Stop => (6, Ends::Failure, 0),
            _ => (30, Ends::Failure, 0),
        };
        let mut pause = || {
            // Shorter than a call, and longer than some.
            let most = [2, 150][below(random, 2) as usize];
            let lasts = random.duration(Duration::from_millis(most));
            let delay = random.duration(Duration::from_millis(10));
            Pause { rank: below(random, size.into()) as u32, lasts, delay }
        };
        let pauses = if fault == Fault::Pause { (0..PAUSES).map(|_| pause()).collect() } else { Vec::new() };
        Plan {
            seed,
            traffic,
            size,
            transport: "shm",
            timeout: Duration::from_secs(seconds),
            fault,
            victims: vec![below(random, size.into()) as u32],
            at: below(random, 40),
            delay: random.duration(Duration::from_millis(20)),
            lasts: Duration::ZERO,
            splits: false,
            beside: 0,
            pauses,
            ends,
            after,
        }
    }

    /// The plan of a run that a test has named by its traffic and its fault.
    pub fn named(traffic: &str, fault: &str, seed: u64) -> Self {
        let found = Traffic::POOLED.into_iter().find(|known| format!("{known:?}") == traffic);
        let faults = [Fault::Kill, Fault::Stop, Fault::Pause];
        match (found, faults.into_iter().find(|known| format!("{known:?}") == fault)) {
            (Some(traffic), Some(fault)) => Plan::pooled(traffic, fault, seed),
            _ => Plan::new(seed),
        }
    }

    /// An operation with slots that migrate: of a buffer that not all ranks have mapped.
    fn pooled_operation(&self, number: u64, random: &mut Random) -> Operation {
        let shape = below(random, SHAPES as u64);
        let key = random.draw() & !(3 << 40) | [0, 3][below(random, 2) as usize] << 40;
        let random = &mut Random::new(self.seed ^ !shape);
        // From a length to just below the next power of two above the last one.
        let mut long = |from: u32, to: u32| {
            let least = 1 << (u64::from(from) + below(random, u64::from(to - from)));
            least + below(random, least)
        };
        let plan = below(&mut Random::new(self.seed ^ shape), 4) != 0;
        let bytes = match self.traffic {
            Traffic::Letters => long(14, 24),
            Traffic::Plans if plan => 1 << 20,
            Traffic::Plans => long(14, 16),
            _ => long(14, 22),
        };
        let kind = match self.traffic {
            _ if self.ends == Ends::Line && number % AGREE_EVERY == AGREE_EVERY - 1 => Kind::Agree,
            Traffic::Letters => [Kind::Ring, Kind::Pairs][below(random, 2) as usize],
            Traffic::Plans if plan => [Kind::AllReduce, Kind::AllReduceInto][below(random, 2) as usize],
            // One of them twice: it goes in two hops.
            _ => [
                Kind::AllReduce,
                Kind::AllReduceInto,
                Kind::AllGather,
                Kind::AllToAll,
                Kind::Broadcast,
                Kind::ReduceScatter,
            ][below(random, 6) as usize],
        };
        let data_type = DataType::ALL[below(random, 12) as usize];
        let op = ReduceOp::ALL[below(random, 5) as usize];
        let op = if is_exact(data_type, op) { op } else { ReduceOp::Sum };
        Operation { on_child: false, kind, data_type, op, count: bytes as usize / data_type.size(), key }
    }

    /// The operation with this number, from 0.
    pub fn operation(&self, number: u64) -> Operation {
        let mut random = Random::new(self.seed ^ (number + 1).wrapping_mul(0xa076_1d64_78bd_642f));
        let random = &mut random;
        if self.traffic != Traffic::Any {
            return self.pooled_operation(number, random);
        }
        let mut kind = KINDS[below(random, KINDS.len() as u64) as usize];
        let mut on_child = self.splits && below(random, 3) == 0;
        let forced = if self.ends == Ends::Line && number % AGREE_EVERY == AGREE_EVERY - 1 {
            Some(Kind::Agree)
        } else if self.fault == (Fault::Panic { within: true }) && number == self.at {
            Some(Kind::Scope)
        } else if self.splits && self.splits_at(number, random) {
            Some(Kind::Split)
        } else {
            None
        };
        if let Some(forced) = forced {
            (kind, on_child) = (forced, false);
        }
        let data_type = DataType::ALL[below(random, 12) as usize];
        let op = ReduceOp::ALL[below(random, 5) as usize];
        let op = if is_exact(data_type, op) { op } else { ReduceOp::Sum };
        let bytes = match below(random, 100) {
            0..70 => below(random, 2000),
            70..95 => below(random, 64 << 10),
            _ => (1 << 20) + below(random, 7 << 20),
        };
        let parts = match kind {
            Kind::AllGather | Kind::ReduceScatter | Kind::AllToAll | Kind::Gather | Kind::Scatter => {
                self.size as usize
            }
            _ => 1,
        };
        let count = bytes as usize / data_type.size() / parts;
        Operation { on_child, kind, data_type, op, count, key: random.draw() }
    }

    /// The operation with this number on a communicator beside the world.
    pub fn operation_beside(&self, which: u32, number: u64) -> Operation {
        let number = (u64::from(which) + 1) << 32 | number;
        let operation = self.operation(number);
        let moves = matches!(operation.kind, Kind::Split | Kind::Agree);
        let kind = if moves { Kind::AllReduce } else { operation.kind };
        Operation { on_child: false, kind, ..operation }
    }

    /// Communicators are split at the beginning and now and then. A revoked communicator is split on purpose, and a
    /// rank that does not know of the revocation yet must not be in another split.
    fn splits_at(&self, number: u64, random: &mut Random) -> bool {
        number == 0 || (self.fault != Fault::Revoke && below(random, 12) == 0)
    }

    /// Whether this rank has the fault before this operation; a rank that is stopped now and then comes here again and again.
    pub fn strikes(&self, rank: u32, number: u64) -> bool {
        let comes_again = self.fault == Fault::Pause && number > self.at;
        let is_here = number == self.at || comes_again && (number - self.at).is_multiple_of(AGREE_EVERY);
        is_here && self.fault != Fault::None && self.victims.contains(&rank)
    }
}
