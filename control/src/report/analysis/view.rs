//! The evidence, made easy to ask: who is in which state, and what else the same rank does elsewhere.
//!
//! Invariant: every answer is total. The evidence comes from the network, so ranks may be out of range,
//! numbers may contradict each other, and nothing here indexes by them. Absent: judgement.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use crate::report::evidence::{Evidence, Open, Position, ProcessId, Reach, Stuck, Traffic, Want, Witness};
use consort_types::Rank;
use consort_types::call::Descriptor;
use consort_types::call::Kind;

/// What was sent longer ago than this and has not arrived is missing.
const LOST_AFTER: Duration = Duration::from_millis(50);

/// A rank of a communicator.
pub(super) type Node = (u64, Rank);

/// What is known of a rank of some communicator.
#[derive(Clone, Copy, Debug)]
pub(super) enum State<'a> {
    Known(&'a Position),
    /// It closed the communicator; what it said of it before, if that is known.
    Left(Option<&'a Position>),
    /// It answered and has not made the communicator.
    Unmade,
    Silent,
    Lost,
    /// Of another communicator, and no process that answered is this rank of it.
    Unknown,
    /// No rank of the communicator that is asked about.
    Missing,
}

/// What a rank does on another communicator.
#[derive(Clone, Copy, Debug)]
pub(super) struct Abroad<'a> {
    pub(super) node: Node,
    pub(super) open: &'a Open,
}

#[derive(Debug)]
pub(super) struct View<'a> {
    pub(super) evidence: &'a Evidence,
    positions: BTreeMap<Node, (ProcessId, &'a Position)>,
    callers: BTreeMap<(ProcessId, u64), Vec<Node>>,
    jobs: BTreeMap<([u8; 16], Rank), Vec<Node>>,
    members: BTreeMap<([u8; 16], Rank), Rank>,
}

/// Whether `descriptor` is the other end of a message: `kind`, with `peer`.
pub(super) fn matches_end(descriptor: &Descriptor, message: &Descriptor, peer: Rank) -> bool {
    let opposite = if message.kind == Kind::Send { Kind::Receive } else { Kind::Send };
    message.kind.is_message() && descriptor.kind == opposite && descriptor.root == peer
}

impl<'a> View<'a> {
    pub(super) fn new(evidence: &'a Evidence) -> Self {
        let mut positions = BTreeMap::new();
        let mut members = BTreeMap::new();
        for (rank, witness) in (0..).zip(&evidence.ranks) {
            members.entry((witness.job, witness.job_rank)).or_insert(rank);
            let own = |position: &&Position| {
                position.communicator == evidence.communicator && position.rank == rank
            };
            if let Some(position) = witness.position.as_ref().filter(own) {
                positions.insert((evidence.communicator, rank), (witness.process, position));
            }
        }
        for (process, said) in &evidence.processes {
            for position in said {
                let node = (position.communicator, position.rank);
                // Of this communicator only what its witnesses say of themselves.
                if position.communicator != evidence.communicator {
                    positions.entry(node).or_insert((*process, position));
                }
            }
        }
        let mut callers: BTreeMap<_, Vec<Node>> = BTreeMap::new();
        let mut jobs: BTreeMap<_, Vec<Node>> = BTreeMap::new();
        for (node, (process, position)) in &positions {
            if position.caller != 0 {
                callers.entry((*process, position.caller)).or_default().push(*node);
            }
            jobs.entry((position.job, position.job_rank)).or_default().push(*node);
        }
        View { evidence, positions, callers, jobs, members }
    }

    /// Whether it is the communicator that is asked about.
    pub(super) fn is_home(&self, communicator: u64) -> bool {
        communicator == self.evidence.communicator
    }

    pub(super) fn witness(&self, rank: Rank) -> Option<&'a Witness> {
        self.evidence.ranks.get(rank as usize)
    }

    pub(super) fn size(&self) -> Rank {
        Rank::try_from(self.evidence.ranks.len()).unwrap_or(Rank::MAX)
    }

    pub(super) fn position(&self, node: Node) -> Option<&'a Position> {
        self.positions.get(&node).map(|(_, position)| *position)
    }

    /// Every rank of a communicator that said something of it.
    pub(super) fn known(&self, communicator: u64) -> impl Iterator<Item = (Rank, &'a Position)> + '_ {
        let range = (Bound::Included((communicator, 0)), Bound::Included((communicator, Rank::MAX)));
        self.positions.range(range).map(|(node, (_, position))| (node.1, *position))
    }

    pub(super) fn state(&self, node: Node) -> State<'a> {
        let position = self.position(node);
        if !self.is_home(node.0) {
            return position.map_or(State::Unknown, State::Known);
        }
        let Some(witness) = self.witness(node.1) else { return State::Missing };
        match (&witness.reach, position) {
            (Reach::Answered, Some(position)) => State::Known(position),
            (Reach::Answered, None) => State::Unmade,
            (Reach::Silent, _) => State::Silent,
            (Reach::Lost(_), _) => State::Lost,
            (Reach::Left, position) => State::Left(position),
        }
    }

    /// The operation that a rank is in and that does not go on.
    pub(super) fn stuck(&self, node: Node) -> Option<(&'a Open, &'a Stuck)> {
        let State::Known(position) = self.state(node) else { return None };
        let open = position.open.as_ref()?;
        Some((open, open.stuck.as_ref()?))
    }

    /// What a rank does on other communicators: first what the thread does that called here last, then what
    /// waits under the same rank of the job.
    pub(super) fn abroad(&self, node: Node) -> Option<Abroad<'a>> {
        let position = self.positions.get(&node);
        let of_thread = position
            .filter(|(_, position)| position.caller != 0)
            .and_then(|(process, position)| self.callers.get(&(*process, position.caller)));
        let job = match position {
            Some((_, position)) => Some((position.job, position.job_rank)),
            None if self.is_home(node.0) => self.witness(node.1).map(|who| (who.job, who.job_rank)),
            None => None,
        };
        // A rank may have many threads: what another one waits in says nothing of a thread that is known.
        let is_known = position.is_some_and(|(_, position)| position.caller != 0);
        let of_job = job.filter(|_| !is_known).and_then(|job| self.jobs.get(&job));
        let open = |nodes: Option<&Vec<Node>>, stuck: bool| {
            nodes
                .into_iter()
                .flatten()
                .filter(|other| other.0 != node.0)
                .filter_map(|other| {
                    Some(Abroad { node: *other, open: self.position(*other)?.open.as_ref()? })
                })
                .filter(|abroad| abroad.open.stuck.is_some() == stuck)
                .max_by_key(|abroad| abroad.open.age)
        };
        open(of_thread, true).or_else(|| open(of_job, true)).or_else(|| open(of_thread, false))
    }

    /// Which rank of the communicator that is asked about a rank of another one is.
    pub(super) fn member(&self, node: Node) -> Option<Rank> {
        if self.is_home(node.0) {
            return self.witness(node.1).map(|_| node.1);
        }
        let (process, position) = self.positions.get(&node)?;
        if let Some(rank) = self.members.get(&(position.job, position.job_rank)) {
            return Some(*rank);
        }
        let same = self.callers.get(&(*process, position.caller))?;
        same.iter().find(|other| self.is_home(other.0)).map(|other| other.1)
    }

    /// The ranks that this process is here.
    pub(super) fn of_process(&self, process: &ProcessId) -> Vec<Rank> {
        let ranks = (0..).zip(&self.evidence.ranks);
        ranks.filter(|(_, witness)| witness.process == *process).map(|(rank, _)| rank).collect()
    }

    pub(super) fn process(&self, node: Node) -> Option<ProcessId> {
        self.positions.get(&node).map(|(process, _)| *process)
    }

    /// Who has not entered collective `sequence`, as far as one knows, with the last one entered.
    pub(super) fn absent(&self, communicator: u64, sequence: u64) -> Vec<(u64, Rank)> {
        let behind = |entered: u64, rank: Rank| (entered < sequence).then_some((entered, rank));
        if !self.is_home(communicator) {
            return self.known(communicator).filter_map(|(rank, at)| behind(at.entered, rank)).collect();
        }
        let look = |rank: Rank| match self.state((communicator, rank)) {
            State::Known(position) | State::Left(Some(position)) => behind(position.entered, rank),
            State::Unmade => behind(0, rank),
            _ => None,
        };
        (0..self.size()).filter_map(look).collect()
    }

    /// What `from` says it did for `to` and `to` has not seen.
    pub(super) fn loss(&self, communicator: u64, from: Rank, to: Rank) -> Option<String> {
        let (sender, receiver) = (self.position((communicator, from))?, self.position((communicator, to))?);
        // What is on its way is not lost: the receiver must have stood there for a while.
        let stuck = receiver.open.as_ref().and_then(|open| open.stuck.as_ref());
        if stuck.is_some_and(|stuck| stuck.age < LOST_AFTER) {
            return None;
        }
        for here in sender.traffic.iter().filter(|traffic| traffic.peer == to) {
            let same = |there: &&Traffic| (there.peer, there.channel) == (from, here.channel);
            let Some(there) = receiver.traffic.iter().find(same) else { continue };
            if here.filled > there.arrived {
                let (filled, arrived) = (here.filled, there.arrived);
                return Some(format!("rank {from} sent {filled} slots and {arrived} arrived at rank {to}"));
            }
            if here.returned > there.credited {
                let (gave, saw) = (here.returned, there.credited);
                return Some(format!("rank {from} gave back {gave} slots and rank {to} has seen {saw}"));
            }
        }
        self.untaken(sender, to)
    }

    /// That the wire takes no more of what a rank sends: it waits for room at `to`, and every slot there was given back.
    fn untaken(&self, sender: &Position, to: Rank) -> Option<String> {
        let stuck = sender.open.as_ref()?.stuck.as_ref()?;
        let waits = stuck.want == Want::Room && stuck.peer == to && stuck.age >= LOST_AFTER;
        let mut slots = sender.traffic.iter().filter(|traffic| traffic.peer == to).peekable();
        let is_untaken = waits && slots.peek().is_some() && slots.all(|slots| slots.filled <= slots.credited);
        is_untaken.then(|| {
            let from = sender.rank;
            format!("rank {from} waits for room at rank {to}, where no slot is full: the way takes no more of what it sends")
        })
    }
}
