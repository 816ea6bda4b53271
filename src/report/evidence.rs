//! What ranks say of themselves, as it travels and as it is compared.
//!
//! Invariant: plain data, without a clock: every time is an age at the moment when its rank answered. Absent:
//! judgement (see `analysis`) and how it is collected (see `control::inquiry`).

use std::collections::BTreeMap;
use std::time::Duration;

use crate::Rank;
use crate::call::Descriptor;

/// One process of a job: the nonce that it drew when it made its first communicator.
pub(crate) type ProcessId = [u8; 16];

/// What a stuck operation waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Want {
    /// The peer's half of a connection: the peer makes it when it enters the operation.
    Link,
    /// An answer of the peer's transport while a connection is made.
    Connection,
    /// Bytes that the peer sends.
    Data,
    /// Room in the peer's mailbox.
    Room,
}

impl Want {
    pub(crate) const ALL: [Want; 4] = [Want::Link, Want::Connection, Want::Data, Want::Room];
}

/// Where an operation that does not go on stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Stuck {
    pub(crate) want: Want,
    /// Whom it waits for, within the communicator.
    pub(crate) peer: Rank,
    pub(crate) peer_process: ProcessId,
    /// Its step in the plan, from 0, and how many there are; 0 of 0 before a plan is bound.
    pub(crate) step: u32,
    pub(crate) steps: u32,
    /// The slice of the data that it moves, from 0, and how many there are.
    pub(crate) slice: u32,
    pub(crate) slices: u32,
    /// The program's name, for example `ring`; empty before one is chosen.
    pub(crate) algorithm: String,
    /// How long it has stood at this step.
    pub(crate) age: Duration,
}

/// An operation under way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Open {
    pub(crate) sequence: u64,
    pub(crate) descriptor: Descriptor,
    /// How long ago it was entered.
    pub(crate) age: Duration,
    /// None while it moves, or when it was entered a moment ago.
    pub(crate) stuck: Option<Stuck>,
}

/// How much has travelled between a rank and one of its peers, in signals. Given while an operation is stuck.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Traffic {
    pub(crate) peer: Rank,
    pub(crate) channel: u16,
    /// Slots that this rank has filled at the peer, and that it has seen filled by the peer.
    pub(crate) filled: u64,
    pub(crate) arrived: u64,
    /// Slots that this rank has given back to the peer, and that it has seen given back.
    pub(crate) returned: u64,
    pub(crate) credited: u64,
}

/// One rank of one communicator: how far it is and what it does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Position {
    pub(crate) communicator: u64,
    /// How many ranks the communicator has, and which of them this is.
    pub(crate) size: u32,
    pub(crate) rank: Rank,
    /// The job and the rank's number in it: the same on all communicators split from one.
    pub(crate) job: [u8; 16],
    pub(crate) job_rank: Rank,
    /// A number of the thread that made the last call on it, within its process; 0 before the first.
    pub(crate) caller: u64,
    /// The last collective entered and the last one finished; 0 before the first.
    pub(crate) entered: u64,
    pub(crate) finished: u64,
    /// The last operation finished, collective or message, with its number and how long ago that was.
    pub(crate) last: Option<(u64, Descriptor, Duration)>,
    pub(crate) open: Option<Open>,
    /// All messages under way: an exchange has two.
    pub(crate) messages: Vec<(u64, Descriptor)>,
    /// Per peer the number of the last message sent to it and received from it, of those that are still known.
    pub(crate) passed: Vec<(Rank, u64, u64)>,
    pub(crate) traffic: Vec<Traffic>,
}

impl Position {
    /// The same as it is some time later, if nothing has happened.
    pub(crate) fn aged(&self, time: Duration) -> Self {
        let mut position = self.clone();
        if let Some((.., age)) = &mut position.last {
            *age = age.saturating_add(time);
        }
        if let Some(open) = &mut position.open {
            open.age = open.age.saturating_add(time);
            if let Some(stuck) = &mut open.stuck {
                stuck.age = stuck.age.saturating_add(time);
            }
        }
        position
    }
}

/// Whether a rank could be asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    Answered,
    /// It was asked and did not answer in time.
    Silent,
    /// It is known to be gone, for this reason.
    Lost(String),
    /// It closed the communicator in good order.
    Left,
}

/// One rank of the communicator that is asked about.
#[derive(Clone, Debug)]
pub(crate) struct Witness {
    pub(crate) host: String,
    pub(crate) pid: u32,
    pub(crate) process: ProcessId,
    pub(crate) job: [u8; 16],
    pub(crate) job_rank: Rank,
    pub(crate) reach: Reach,
    /// What it says of this communicator; none if it did not answer, or has not made it yet.
    pub(crate) position: Option<Position>,
}

/// Everything that one rank could find out.
#[derive(Clone, Debug)]
pub(crate) struct Evidence {
    pub(crate) communicator: u64,
    /// Who asked, and about which of its operations; none when nothing was under way.
    pub(crate) by: Rank,
    pub(crate) operation: Option<(u64, Descriptor)>,
    pub(crate) waited: Duration,
    /// By rank of the communicator.
    pub(crate) ranks: Vec<Witness>,
    /// Of every process that answered: all its ranks on all its communicators, this one included.
    pub(crate) processes: BTreeMap<ProcessId, Vec<Position>>,
    /// Where the job's other processes are, for people.
    pub(crate) places: BTreeMap<ProcessId, String>,
}
