//! Evidence in a few words: a communicator whose ranks one puts into states.

use std::collections::BTreeMap;
use std::time::Duration;

use consort_kernels::{DataType, ReduceOp};

use crate::report::evidence::{Evidence, Open, Position, ProcessId, Reach, Stuck, Traffic, Want, Witness};
use crate::report::{Report, analyse};
use consort_types::Rank;
use consort_types::call::{Descriptor, Named};
use consort_types::call::{Kind, Operator};

pub(super) const HOME: u64 = 0x1a2b_3c4d_0000_0001;
pub(super) const OTHER: u64 = 0x9f00_1122_0000_0002;
pub(super) const THIRD: u64 = 0x7e00_3344_0000_0003;
const JOB: [u8; 16] = [7; 16];

pub(super) fn call(kind: Kind, root: Rank) -> Descriptor {
    let op = matches!(kind, Kind::AllReduce | Kind::Reduce).then_some(Operator::Plain(ReduceOp::Sum));
    Descriptor { kind, data_type: DataType::Float32, op, root, count: 1 << 20, named: Named::NONE }
}

pub(super) fn process(rank: Rank) -> ProcessId {
    [(rank as u8).wrapping_add(1); 16]
}

/// An operation that waits for a peer's data.
pub(super) fn waiting(sequence: u64, descriptor: Descriptor, peer: Rank) -> Open {
    let stuck = Stuck {
        want: Want::Data,
        peer,
        peer_process: process(peer),
        step: 2,
        steps: 14,
        slice: 1,
        slices: 8,
        algorithm: "ring".into(),
        age: Duration::from_millis(11_900),
    };
    Open { sequence, descriptor, age: Duration::from_secs(12), stuck: Some(stuck) }
}

pub(super) fn moving(sequence: u64, descriptor: Descriptor) -> Open {
    Open { sequence, descriptor, age: Duration::from_millis(300), stuck: None }
}

/// A rank that has finished broadcast #41 and is in no call.
pub(super) fn position(communicator: u64, size: u32, rank: Rank, job_rank: Rank) -> Position {
    Position {
        communicator,
        size,
        rank,
        job: JOB,
        job_rank,
        caller: 5,
        entered: 41,
        finished: 41,
        last: Some((41, call(Kind::Broadcast, 0), Duration::from_millis(14_200))),
        open: None,
        messages: Vec::new(),
        passed: Vec::new(),
        traffic: Vec::new(),
        slow: Vec::new(),
    }
}

/// A communicator whose ranks are processes of their own, four on each host.
pub(super) struct World(pub(super) Evidence);

impl World {
    /// Rank 0 asks about all_reduce #42, which no rank has entered yet.
    pub(super) fn new(size: u32) -> Self {
        let witness = |rank: Rank| Witness {
            host: char::from(b'a' + (rank / 4 % 26) as u8).to_string(),
            pid: 70 + rank,
            process: process(rank),
            job: JOB,
            job_rank: rank,
            reach: Reach::Answered,
            position: Some(position(HOME, size, rank, rank)),
        };
        World(Evidence {
            communicator: HOME,
            by: 0,
            operation: Some((42, call(Kind::AllReduce, 0))),
            waited: Duration::from_secs(12),
            ranks: (0..size).map(witness).collect(),
            processes: BTreeMap::new(),
            places: BTreeMap::new(),
        })
    }

    pub(super) fn at(&mut self, rank: Rank) -> &mut Position {
        self.0.ranks[rank as usize].position.as_mut().expect("a rank that answered")
    }

    pub(super) fn reach(mut self, ranks: std::ops::Range<Rank>, reach: Reach) -> Self {
        for rank in ranks {
            let witness = &mut self.0.ranks[rank as usize];
            if reach != Reach::Left {
                witness.position = None;
            }
            witness.reach = reach.clone();
        }
        self
    }

    pub(super) fn open(mut self, rank: Rank, open: Open) -> Self {
        if !matches!(open.descriptor.kind, Kind::Send | Kind::Receive) {
            self.at(rank).entered = open.sequence;
            self.at(rank).finished = open.sequence.saturating_sub(1);
        } else {
            self.at(rank).messages = vec![(open.sequence, open.descriptor)];
        }
        self.at(rank).open = Some(open);
        self
    }

    /// These ranks wait in all_reduce #42, each for the one before it.
    pub(super) fn ring(mut self, ranks: impl IntoIterator<Item = Rank>) -> Self {
        let size = self.0.ranks.len() as u32;
        for rank in ranks {
            self = self.open(rank, waiting(42, call(Kind::AllReduce, 0), (rank + size - 1) % size));
        }
        self
    }

    pub(super) fn ask(mut self, by: Rank, sequence: u64, descriptor: Descriptor) -> Self {
        (self.0.by, self.0.operation) = (by, Some((sequence, descriptor)));
        self
    }

    /// A rank of this job says something of another communicator.
    pub(super) fn also(mut self, process: ProcessId, position: Position) -> Self {
        self.0.processes.entry(process).or_default().push(position);
        self
    }

    pub(super) fn traffic(
        mut self,
        rank: Rank,
        peer: Rank,
        [filled, arrived, returned, credited]: [u64; 4],
    ) -> Self {
        let traffic = Traffic { peer, channel: 0, filled, arrived, returned, credited };
        self.at(rank).traffic.push(traffic);
        self
    }

    pub(super) fn report(mut self) -> Report {
        for witness in &self.0.ranks {
            let said = self.0.processes.entry(witness.process).or_default();
            said.extend(witness.position.clone());
        }
        analyse(&self.0)
    }
}

/// A position on another communicator, in a collective of it.
pub(super) fn there(communicator: u64, rank: Rank, job_rank: Rank, open: Option<Open>) -> Position {
    let entered = open.as_ref().map_or(2, |open| open.sequence);
    let finished = if open.is_some() { entered - 1 } else { entered };
    Position { entered, finished, open, ..position(communicator, 2, rank, job_rank) }
}
