//! What the control plane knows of one communicator on one rank: who its members are, where their halves of
//! the data connections are, whether it has failed, what everybody was last seen doing.
//!
//! Invariant: everything here may be touched from any thread at any time; nothing here blocks on a peer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use consort_memory::sync::{AtomicBool, AtomicU64, Ordering};
use consort_transports::Address;

use super::member::Member;
use super::wire::Message;
use crate::Rank;
use crate::error::{Error, Operation, Result};
use crate::recorder::{Recorder, Snapshot};

pub(crate) struct Group {
    pub(crate) uid: u64,
    /// This rank within the communicator.
    pub(crate) rank: Rank,
    /// For each rank of the communicator its rank in the job.
    pub(crate) members: Vec<Rank>,
    pub(crate) member: Arc<Member>,
    pub(crate) recorder: Recorder,
    failed: AtomicBool,
    state: Mutex<State>,
    token: AtomicU64,
}

#[derive(Default)]
struct State {
    failure: Option<Error>,
    addresses: HashMap<(Rank, u16), Address>,
    left: Vec<Rank>,
    /// The latest answer of each rank, with the number of the question.
    answers: Vec<Option<(u64, Snapshot)>>,
}

impl Group {
    pub(crate) fn new(member: Arc<Member>, uid: u64, members: Vec<Rank>) -> Arc<Self> {
        let rank =
            members.iter().position(|job_rank| *job_rank == member.rank).expect("a member of its own group")
                as Rank;
        let group = Arc::new(Group {
            uid,
            rank,
            member: member.clone(),
            recorder: Recorder::default(),
            failed: AtomicBool::new(false),
            state: Mutex::new(State { answers: vec![None; members.len()], ..State::default() }),
            token: AtomicU64::new(0),
            members,
        });
        member.register(&group);
        group
    }

    pub(crate) fn size(&self) -> u32 {
        self.members.len() as u32
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the communicator has failed; one load.
    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        // Acquire: pairs with the Release in `fail_here`; the reason is there when the flag is.
        self.failed.load(Ordering::Acquire)
    }

    /// The reason of the failure.
    pub(crate) fn failure(&self) -> Result<()> {
        if !self.has_failed() {
            return Ok(());
        }
        Err(self
            .state()
            .failure
            .clone()
            .unwrap_or_else(|| Error::internal("a communicator failed without a reason")))
    }

    /// Fails the communicator on all ranks; the first reason stays. Returns the reason that stays.
    pub(crate) fn fail(&self, error: Error) -> Error {
        if self.fail_here(error.clone()) {
            tracing::warn!(rank = self.rank, "communicator failed: {error}");
            for (rank, job_rank) in self.members.iter().enumerate() {
                if rank as Rank != self.rank {
                    self.member.send(*job_rank, self.uid, Message::Poison(error.clone()));
                }
            }
        }
        self.state().failure.clone().unwrap_or(error)
    }

    fn fail_here(&self, error: Error) -> bool {
        let mut state = self.state();
        if state.failure.is_some() {
            return false;
        }
        state.failure = Some(error);
        // Release: pairs with the Acquire in `has_failed`.
        self.failed.store(true, Ordering::Release);
        true
    }

    /// The communicator's rank of a job's rank.
    fn rank_of(&self, job_rank: Rank) -> Option<Rank> {
        self.members.iter().position(|member| *member == job_rank).map(|rank| rank as Rank)
    }

    /// A message from another rank of the job. Called by the control thread, or by the peer's own thread when
    /// it lives in this process.
    pub(crate) fn receive(&self, from: Rank, message: Message) {
        let Some(rank) = self.rank_of(from) else { return };
        match message {
            Message::Address { channel, address } => {
                self.state().addresses.insert((rank, channel), address);
            }
            Message::Poison(error) => {
                self.fail_here(error);
            }
            Message::Query { token } => {
                let snapshot = self.recorder.snapshot();
                self.member.send(from, self.uid, Message::State { token, snapshot });
            }
            Message::State { token, snapshot } => {
                let mut state = self.state();
                let answer = &mut state.answers[rank as usize];
                if answer.as_ref().is_none_or(|(known, _)| *known <= token) {
                    *answer = Some((token, snapshot));
                }
            }
            Message::Leave => {
                let mut state = self.state();
                if !state.left.contains(&rank) {
                    state.left.push(rank);
                }
            }
        }
    }

    /// A rank of the job is gone without having left.
    pub(crate) fn lost(&self, job_rank: Rank, cause: &str) {
        let Some(rank) = self.rank_of(job_rank) else { return };
        if self.has_left(rank) {
            return;
        }
        let operation = self.operation_under_way();
        let place = self.member.place(job_rank);
        self.fail(Error::PeerLost { rank, place, operation, cause: cause.to_owned() });
    }

    fn operation_under_way(&self) -> Option<Operation> {
        let snapshot = self.recorder.snapshot();
        let (sequence, descriptor) = *snapshot.recent.last()?;
        (snapshot.entered > snapshot.finished)
            .then(|| Operation { name: descriptor.kind.name().into(), sequence })
    }

    pub(crate) fn has_left(&self, rank: Rank) -> bool {
        self.state().left.contains(&rank)
    }

    /// Takes the address of `rank`'s half of the connection on `channel`, if it has arrived.
    pub(crate) fn take_address(&self, rank: Rank, channel: u16) -> Option<Address> {
        self.state().addresses.remove(&(rank, channel))
    }

    pub(crate) fn send(&self, rank: Rank, message: Message) {
        self.member.send(self.members[rank as usize], self.uid, message);
    }

    /// Asks everybody what they are doing; the answers come in by and by.
    pub(crate) fn ask(&self) {
        let token = self.token.fetch_add(1, Ordering::Relaxed) + 1;
        for rank in 0..self.size() {
            if rank != self.rank {
                self.send(rank, Message::Query { token });
            }
        }
        // An answer from before is still a fact; it is replaced when the new one comes.
    }

    /// The latest answers, with this rank's own state.
    pub(crate) fn answers(&self) -> Vec<Option<Snapshot>> {
        let known = |answer: &Option<(u64, Snapshot)>| answer.as_ref().map(|(_, snapshot)| snapshot.clone());
        let mut answers: Vec<Option<Snapshot>> = self.state().answers.iter().map(known).collect();
        answers[self.rank as usize] = Some(self.recorder.snapshot());
        answers
    }

    /// The ranks that have not answered the last two questions. Ranks that left need not answer.
    pub(crate) fn silent(&self) -> Vec<Rank> {
        let asked = self.token.load(Ordering::Relaxed);
        let silent = |answer: &Option<(u64, Snapshot)>| match answer {
            Some((token, _)) => token + 2 <= asked,
            None => asked >= 2,
        };
        let state = self.state();
        (0..self.size())
            .filter(|rank| *rank != self.rank && !state.left.contains(rank))
            .filter(|rank| silent(&state.answers[*rank as usize]))
            .collect()
    }

    /// Tells the others that this rank closes its communicator.
    pub(crate) fn leave(&self) {
        for rank in 0..self.size() {
            if rank != self.rank {
                self.send(rank, Message::Leave);
            }
        }
        let open_elsewhere = self.members.len() - 1 - self.state().left.len();
        self.member.unregister(self.uid, open_elsewhere);
    }
}
