//! What ranks say of themselves, as it travels and as it is compared.
//!
//! Invariant: plain data, without a clock: every time is an age at the moment when its rank answered. Absent:
//! judgement (see `analysis`) and how it is collected (see `membership::inquiry`).

use std::collections::BTreeMap;
use std::time::Duration;

use consort_types::Rank;
use consort_types::call::Descriptor;

/// One process of a job: the nonce that it drew when it made its first communicator.
pub type ProcessId = [u8; 16];

/// What a stuck operation waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    /// The peer's half of a connection: the peer makes it when it enters the operation.
    Link,
    /// An answer of the peer's transport while a connection is made.
    Connection,
    /// Bytes that the peer sends.
    Data,
    /// Room in the peer's mailbox.
    Room,
}

/// Where an operation that does not go on stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stuck {
    pub want: Want,
    /// Whom it waits for, within the communicator.
    pub peer: Rank,
    pub peer_process: ProcessId,
    /// Its step in the plan, from 0, and how many there are; 0 of 0 before a plan is bound.
    pub step: u32,
    pub steps: u32,
    /// The slice of the data that it moves, from 0, and how many there are.
    pub slice: u32,
    pub slices: u32,
    /// The program's name, for example `ring`; empty before one is chosen.
    pub algorithm: String,
    /// How long it has stood at this step.
    pub age: Duration,
}

/// An operation under way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Open {
    pub sequence: u64,
    pub descriptor: Descriptor,
    /// How long ago it was entered.
    pub age: Duration,
    /// None while it moves, or when it was entered a moment ago.
    pub stuck: Option<Stuck>,
}

/// How much has travelled between a rank and one of its peers, in signals. Given while an operation is stuck.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Traffic {
    pub peer: Rank,
    pub channel: u16,
    /// Slots that this rank has filled at the peer, and that it has seen filled by the peer.
    pub filled: u64,
    pub arrived: u64,
    /// Slots that this rank has given back to the peer, and that it has seen given back.
    pub returned: u64,
    pub credited: u64,
}

/// A wire that carries what a rank sends more slowly than usual.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SlowWire {
    /// To whom, within the communicator.
    pub peer: Rank,
    /// The addresses of its ends: this rank's and the peer's.
    pub from: String,
    pub to: String,
    /// Bytes a second while it is at work: usually, and now.
    pub usual: u64,
    pub now: u64,
    /// For how long it has been slow.
    pub age: Duration,
}

/// One rank of one communicator: how far it is and what it does.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Position {
    pub communicator: u64,
    /// How many ranks the communicator has, and which of them this is.
    pub size: u32,
    pub rank: Rank,
    /// The job and the rank's number in it: the same on all communicators split from one.
    pub job: [u8; 16],
    pub job_rank: Rank,
    /// A number of the thread that made the last call on it, within its process; 0 before the first.
    pub caller: u64,
    /// The last collective entered and the last one finished; 0 before the first.
    pub entered: u64,
    pub finished: u64,
    /// The last operation finished, collective or message, with its number and how long ago that was.
    pub last: Option<(u64, Descriptor, Duration)>,
    pub open: Option<Open>,
    /// All messages under way: an exchange has two.
    pub messages: Vec<(u64, Descriptor)>,
    /// Per peer the number of the last message sent to it and received from it, of those that are still known.
    pub passed: Vec<(Rank, u64, u64)>,
    pub traffic: Vec<Traffic>,
    pub slow: Vec<SlowWire>,
}

impl Position {
    /// The same as it is some time later, if nothing has happened.
    pub fn aged(&self, time: Duration) -> Self {
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
        position.slow.iter_mut().for_each(|wire| wire.age = wire.age.saturating_add(time));
        position
    }
}

/// Whether a rank could be asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reach {
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
pub struct Witness {
    pub host: String,
    pub pid: u32,
    pub process: ProcessId,
    pub job: [u8; 16],
    pub job_rank: Rank,
    pub reach: Reach,
    /// What it says of this communicator; none if it did not answer, or has not made it yet.
    pub position: Option<Position>,
}

/// Everything that one rank could find out.
#[derive(Clone, Debug)]
pub struct Evidence {
    pub communicator: u64,
    /// Who asked, and about which of its operations; none when nothing was under way.
    pub by: Rank,
    pub operation: Option<(u64, Descriptor)>,
    pub waited: Duration,
    /// By rank of the communicator.
    pub ranks: Vec<Witness>,
    /// Of every process that answered: all its ranks on all its communicators, this one included.
    pub processes: BTreeMap<ProcessId, Vec<Position>>,
    /// Where the job's other processes are, for people.
    pub places: BTreeMap<ProcessId, String>,
}
