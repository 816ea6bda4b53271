//! What the control plane knows of one communicator on one rank: who its members are, where their halves of
//! the data connections are, whether it has failed, what each rank was last seen doing.
//!
//! Invariant: everything here may be touched from any thread at any time; nothing here blocks on a peer. How a
//! failure becomes the same on all ranks is in `failure`.

mod audience;
mod changes;
mod failure;
mod pace;
mod rounds;
mod standing;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Instant;

use consort_memory::Waker;
use consort_memory::sync::{AtomicBool, AtomicU64, Ordering};
use consort_transports::Address;

use changes::Changes;
pub use changes::{Change, LostPaths, Sight};
pub use failure::Failure;
use failure::{Failing, News};
use pace::Pace;
pub use pace::Wire;
use rounds::Rounds;
pub use rounds::{Agreement, Disagreement, GRACE};
use standing::Standing;

use super::lock;
use super::member::Member;
use super::process::Unattended;
use super::wire::Message;
use crate::bootstrap;
use crate::clock::Clock;
use crate::recorder::{AgedEntry, Outcome, RECORDS, Recorder, Snapshot};
use crate::report::Report;
use crate::report::machine::Wires;
use consort_types::Rank;
use consort_types::call::Kind;
use consort_types::error::{Error, Operation, Result};

/// Addresses of one rank that were not taken yet, at most: of all the channels there are.
const ADDRESSES_MAX: usize = 256;
/// Operations that a rank which leaves names to another. It can be ahead of one that is not in the same operations
/// by no more than fits into mailboxes.
const LAST_WORDS: usize = 16;

pub struct Group {
    pub uid: u64,
    /// This rank within the communicator.
    pub rank: Rank,
    /// For each rank of the communicator its rank in the job.
    pub members: Vec<Rank>,
    pub member: Arc<Member>,
    /// What the communicator is for, in words for people that are the same on all its ranks; empty if that is not known.
    pub label: String,
    pub recorder: Recorder,
    /// Whether it has failed, for one load on the fast path.
    failing: AtomicBool,
    state: Mutex<GroupState>,
    /// Answers that have come, and ranks that have left.
    news: AtomicU64,
    /// The name of the waker of a rank that sleeps; 0 before its first sleep.
    waker: AtomicU64,
    stuck: Mutex<Option<Standing>>,
    wires: Mutex<Option<Arc<dyn Wires>>>,
    /// Whether a change of the machine is to be taken up, for one load on the path of calls.
    changing: AtomicBool,
    attendant: OnceLock<Weak<dyn Unattended>>,
    /// Held by the thread of rank 0 that says something of changes.
    leading: Mutex<()>,
    pace: Mutex<Pace>,
    /// The ranks to which this one passes on what all are to know.
    neighbours: Vec<Rank>,
}

/// Up to this many ranks a report comes to every rank from every other, not only from its author.
const REPEATED_SIZE_MAX: u32 = 32;
/// The same where it reaches some ranks through others only.
const PASSED_SIZE_MAX: u32 = 1024;

/// What a rank said when it was asked.
#[derive(Clone)]
pub struct Answer {
    pub token: u64,
    /// When it arrived.
    pub at: Instant,
    pub snapshot: Snapshot,
}

#[derive(Default)]
struct GroupState {
    failing: Failing,
    addresses: HashMap<(Rank, u16), Address>,
    /// Who has left, and what it said of itself then.
    left: BTreeMap<Rank, Snapshot>,
    /// Why, and whether it ended: otherwise the link to it broke.
    lost: BTreeMap<Rank, (String, bool)>,
    answers: Vec<Option<Answer>>,
    /// Words that ranks sent outside of the data connections.
    rounds: Rounds,
    changes: Changes,
    /// The last report that was made without a failure.
    report: Option<Arc<Report>>,
}

impl Group {
    pub fn new(member: Arc<Member>, uid: u64, members: Vec<Rank>, records: usize) -> Arc<Self> {
        Group::labelled(member, uid, members, records, String::new())
    }

    /// As [`Group::new`], with a label.
    pub fn labelled(
        member: Arc<Member>,
        uid: u64,
        members: Vec<Rank>,
        records: usize,
        label: String,
    ) -> Arc<Self> {
        let rank =
            members.iter().position(|job_rank| *job_rank == member.rank).expect("a member of its own group")
                as Rank;
        let recorder = Recorder::new(member.clock.clone(), records.max(RECORDS));
        let neighbours = member.neighbours(rank, members.len() as u32);
        let group = Arc::new(Group {
            neighbours,
            uid,
            rank,
            member: member.clone(),
            label,
            recorder,
            failing: AtomicBool::new(false),
            state: Mutex::new(GroupState { answers: vec![None; members.len()], ..GroupState::default() }),
            news: AtomicU64::new(0),
            waker: AtomicU64::new(0),
            stuck: Mutex::new(None),
            wires: Mutex::new(None),
            changing: AtomicBool::new(false),
            attendant: OnceLock::new(),
            leading: Mutex::new(()),
            pace: Mutex::default(),
            members,
        });
        member.register(&group);
        group
    }

    /// Says what is known of its machine from now on.
    pub fn know(&self, wires: Arc<dyn Wires>) {
        *lock(&self.wires) = Some(wires);
    }

    /// A report with what is known of the machine.
    pub fn located(&self, mut report: Report) -> Report {
        if let Some(place) = self.label_in_texts() {
            report.verdict += &format!(" ({place})");
        }
        let wires = lock(&self.wires).clone();
        match wires {
            Some(wires) => report.on(&*wires, &self.infos().collect::<Vec<_>>()),
            None => report,
        }
    }

    /// What its ranks, in their order, say of themselves.
    pub fn infos(&self) -> impl Iterator<Item = &bootstrap::Member> + Clone {
        self.members.iter().map(|rank| &self.member.table[*rank as usize])
    }

    pub fn size(&self) -> u32 {
        self.members.len() as u32
    }

    /// The communicator's name for people.
    pub fn name(&self) -> String {
        format!("{:016x}", self.uid)
    }

    /// What errors and reports say of its label.
    fn label_in_texts(&self) -> Option<String> {
        (!self.label.is_empty()).then(|| format!("in {}", self.label))
    }

    pub fn clock(&self) -> &Clock {
        &self.member.clock
    }

    fn state(&self) -> std::sync::MutexGuard<'_, GroupState> {
        lock(&self.state)
    }

    /// Rings this waker from now on when another rank has said something, or the communicator has failed. Whether it
    /// did so before; if not, what came before is still to be looked at.
    pub fn ring_at(&self, waker: &Waker) -> bool {
        // SeqCst: with the look that follows; what is looked at is behind a lock.
        self.waker.swap(waker.name(), Ordering::SeqCst) == waker.name()
    }

    /// Rings no waker from now on, until the next [`Group::ring_at`].
    pub fn ring_nowhere(&self) {
        self.waker.store(0, Ordering::SeqCst);
    }

    fn ring(&self) {
        match self.waker.load(Ordering::SeqCst) {
            0 => {}
            name => Waker::ring(name),
        }
    }

    /// Whether the communicator has failed; one load.
    #[inline]
    pub fn has_failed(&self) -> bool {
        // Acquire: pairs with the Release where it is set; the reason is there when the flag is.
        self.failing.load(Ordering::Acquire)
    }

    /// The reason of the failure as far as it is known. Until the failure is settled another may replace it.
    pub fn failure(&self) -> Result<()> {
        if !self.has_failed() {
            return Ok(());
        }
        Err(self.known_failure())
    }

    fn known_failure(&self) -> Error {
        let failure = self.state().failing.failure().map(|failure| failure.error.clone());
        failure.unwrap_or_else(|| Error::internal("a communicator failed without a reason"))
    }

    /// The reason of the failure once it is the same on all ranks that can be reached, or once it is no use to
    /// wait longer for that.
    pub fn settled(&self, now: Instant) -> Option<Error> {
        let settled = {
            let mut state = self.state();
            let GroupState { failing, left, lost, .. } = &mut *state;
            let awaited = (0..self.size())
                .filter(|rank| *rank != self.rank && !left.contains_key(rank) && !lost.contains_key(rank));
            let place = |rank: Rank| self.member.place(self.members[rank as usize]);
            failing.settle(now, awaited, self.is_passed_on(), place)
        };
        settled.then(|| self.known_failure())
    }

    /// The report that came with the failure, or the last one made before.
    pub fn report(&self) -> Option<Arc<Report>> {
        let state = self.state();
        state.failing.failure().and_then(|failure| failure.report.clone()).or_else(|| state.report.clone())
    }

    pub fn set_report(&self, report: Arc<Report>) {
        self.state().report = Some(report);
    }

    /// Fails the communicator on all ranks. See [`Group::settled`] for the reason that stays.
    pub fn fail(&self, error: Error) {
        self.fail_with(error, None);
    }

    /// As [`Group::fail`], with the report that explains it.
    pub fn fail_with(&self, mut error: Error, report: Option<Arc<Report>>) {
        let host = self.member.place(self.member.rank);
        let place = format!("rank {}, {host}", self.rank);
        // These do not say whose they are, and travel.
        match &mut error {
            Error::System { call: what, .. } | Error::Internal { what } => *what += &format!(" (on {place})"),
            Error::Device { what, .. } | Error::OutOfMemory { what, .. } => *what += &format!(" ({host})"),
            Error::Link { to, cause, .. } => {
                let there = self.members.get(*to as usize).map(|rank| self.member.place(*rank));
                *cause += &format!(" ({place}; rank {to}, {})", there.unwrap_or_default());
            }
            _ => {}
        }
        if let Some(place) = self.label_in_texts() {
            error = error.found(&place);
        }
        self.take_up(Failure { origin: self.rank, error, report }, self.rank);
    }

    /// A failure is known here: found on this rank, or heard from another. The first one is passed on to all; what
    /// this rank finds after that is not said any more. Where not all hear each other, all is passed on that changes what is
    /// known.
    fn take_up(&self, failure: Failure, by: Rank) {
        let now = self.clock().now();
        let news = {
            let mut state = self.state();
            let overrules = state.failing.overrule(&failure);
            // Once this rank has said its word, no other rank would hear of what it finds.
            if !overrules && by == self.rank && state.failing.failure().is_some() {
                return;
            }
            // Together with what it said: a rank that has heard from all chooses.
            let is_new = state.failing.heard(by);
            if self.is_passed_on() {
                state.failing.heard(failure.origin);
            }
            if !is_new && !overrules && by != self.rank && !self.is_passed_on() {
                return;
            }
            let news = state.failing.take_up(failure.clone(), now);
            // Release: pairs with the Acquire in `has_failed`.
            self.failing.store(true, Ordering::Release);
            if overrules { News::First } else { news }
        };
        self.ring();
        if !news.is_to_be_said(self.is_passed_on()) {
            return;
        }
        if news == News::First {
            let Failure { error, origin, .. } = &failure;
            consort_settings::notice::warn_of(
                Some(self.rank),
                &format!("communicator failed at rank {origin}: {error}"),
            );
        }
        // Who only passes it on repeats the report where that is little, or some rank may not hear its origin.
        let most = if self.is_passed_on() { PASSED_SIZE_MAX } else { REPEATED_SIZE_MAX };
        let repeats = failure.origin == self.rank || self.size() <= most;
        let report = failure.report.clone().filter(|_| repeats);
        let failure = Failure { report, ..failure };
        for rank in self.audience().into_iter().filter(|rank| *rank != by) {
            self.send(rank, Message::Poison { failure: failure.clone() });
        }
    }

    /// The communicator's rank of a job's rank.
    fn rank_of(&self, job_rank: Rank) -> Option<Rank> {
        if self.members.get(job_rank as usize) == Some(&job_rank) {
            return Some(job_rank);
        }
        self.members.iter().position(|member| *member == job_rank).map(|rank| rank as Rank)
    }

    /// A message from another rank of the job. Called by the control thread, or by the peer's own thread when
    /// it lives in this process.
    pub fn receive(&self, from: Rank, message: Message) {
        let Some(rank) = self.rank_of(from) else { return };
        match message {
            Message::Address { channel, address } => {
                let addresses = &mut self.state().addresses;
                if addresses.keys().filter(|(of, _)| *of == rank).count() < ADDRESSES_MAX {
                    addresses.insert((rank, channel), address);
                }
            }
            Message::Poison { mut failure } => {
                // A report has a line for each rank.
                failure.report = failure.report.filter(|report| report.ranks.len() == self.members.len());
                let ends = match failure.error {
                    Error::Link { from, to, .. } => from.max(to),
                    _ => 0,
                };
                if failure.origin.max(ends) < self.size() {
                    self.take_up(failure, rank);
                }
            }
            Message::Query { token } => self.member.answer(from, self.uid, token, self.recorder.snapshot()),
            Message::State { token, mut snapshot, .. } => {
                snapshot.recent.truncate(RECORDS);
                let answer = Answer { token, at: self.clock().now(), snapshot };
                let known = &mut self.state().answers[rank as usize];
                if known.as_ref().is_none_or(|known| known.token <= token) {
                    *known = Some(answer);
                    self.news.fetch_add(1, Ordering::Relaxed);
                }
            }
            Message::Leave { mut snapshot } => {
                snapshot.recent.truncate(RECORDS);
                let mut state = self.state();
                state.left.entry(rank).or_insert(snapshot);
                // Before any rank can see that it has left: what it says is compared before that counts.
                self.news.fetch_add(1, Ordering::Relaxed);
                drop(state);
                self.go_on_changing();
            }
            Message::Gather { round, words } => self.state().rounds.hear(rank, round, words),
            Message::Passed { of, number, round, words } if of < self.size() && of != self.rank => {
                if !self.state().rounds.hear_passed(of, number, round, &words) {
                    return;
                }
                for other in self.neighbours().into_iter().filter(|other| ![of, rank].contains(other)) {
                    self.send(other, Message::Passed { of, number, round, words: words.clone() });
                }
            }
            // Of no rank, or of the member.
            Message::Passed { .. } | Message::Gone { .. } => {}
            message @ (Message::Paths { .. }
            | Message::Propose { .. }
            | Message::Promise { .. }
            | Message::Change { .. }) => self.hear_of_change(rank, message),
            Message::Here | Message::Parted | Message::Bye => {}
        }
        self.ring();
    }

    /// A rank of the job is gone without having left: it ended, or (not `ended`) the link to it broke.
    pub fn lost(&self, job_rank: Rank, cause: &str, ended: bool) {
        let Some(rank) = self.rank_of(job_rank) else { return };
        {
            let mut state = self.state();
            if let Some((_, has_ended)) = state.lost.get_mut(&rank) {
                *has_ended |= ended;
                return;
            }
            if state.left.contains_key(&rank) {
                return;
            }
            state.lost.insert(rank, (cause.to_owned(), ended));
        }
        self.fail(if ended {
            self.peer_lost(rank, cause.to_owned(), self.operation_under_way())
        } else {
            Error::Link { from: self.rank, to: rank, transport: "control".into(), cause: cause.to_owned() }
        });
    }

    /// A rank has left, and has not said here how far it came.
    pub fn left_unheard(&self, job_rank: Rank) {
        let Some(rank) = self.rank_of(job_rank) else { return };
        self.state().left.entry(rank).or_default();
        self.news.fetch_add(1, Ordering::Relaxed);
        self.go_on_changing();
        self.ring();
    }

    /// What one says of a rank that is gone.
    pub fn peer_lost(&self, rank: Rank, cause: String, operation: Option<Operation>) -> Error {
        Error::PeerLost { rank, place: self.place(rank), operation, cause }
    }

    /// Where a rank of the communicator runs, for people. Where ranks are numbered anew, with its number in the job.
    pub fn place(&self, rank: Rank) -> String {
        let job_rank = self.members[rank as usize];
        let place = self.member.place(job_rank);
        if job_rank == rank { place } else { format!("{place}, rank {job_rank} of the job") }
    }

    fn operation_under_way(&self) -> Option<Operation> {
        let open = self.recorder.last(RECORDS).into_iter().find(|entry| entry.outcome == Outcome::Open)?;
        Some(Operation { name: open.descriptor.kind.name().into(), sequence: open.sequence })
    }

    pub fn has_left(&self, rank: Rank) -> bool {
        self.state().left.contains_key(&rank)
    }

    /// Whether a rank that has left had finished its part of a call of this rank: a collective, or the other end of a
    /// message with it.
    pub fn left_after(&self, rank: Rank, kind: Kind, sequence: u64) -> bool {
        self.state().left.get(&rank).is_some_and(|snapshot| {
            let (sent, received) = snapshot.passed(self.rank);
            let reached = match kind {
                Kind::Send => received,
                Kind::Receive => sent,
                _ => snapshot.finished,
            };
            reached >= sequence
        })
    }

    /// Why a rank counts as lost, if it does.
    pub fn loss(&self, rank: Rank) -> Option<String> {
        self.state().lost.get(&rank).map(|(cause, _)| cause.clone())
    }

    /// Why a rank that was called will not answer, if that is known.
    pub(super) fn refusal(&self, rank: Rank) -> Option<&'static str> {
        self.member.refusal(self.members[rank as usize])
    }

    /// Whether a rank does nothing on this communicator any more: its process ended, or it has left.
    pub fn is_gone(&self, rank: Rank) -> bool {
        let state = self.state();
        state.left.contains_key(&rank) || state.lost.get(&rank).is_some_and(|(_, ended)| *ended)
    }

    /// Takes the address of `rank`'s half of the connection on `channel`, if it has arrived.
    pub fn take_address(&self, rank: Rank, channel: u16) -> Option<Address> {
        self.state().addresses.remove(&(rank, channel))
    }

    pub fn send(&self, rank: Rank, message: Message) {
        self.member.send(self.members[rank as usize], self.uid, message);
    }

    /// Asks one rank what it is doing.
    pub fn ask(&self, rank: Rank) {
        if rank != self.rank && !self.has_left(rank) {
            let token = self.member.next_token();
            self.send(rank, Message::Query { token });
        }
    }

    /// Changes with every answer, and with every rank that leaves.
    pub fn news(&self) -> u64 {
        self.news.load(Ordering::Relaxed)
    }

    /// The latest answers, with this rank's own state.
    pub fn answers(&self) -> Vec<Option<Answer>> {
        let mut answers = self.state().answers.clone();
        let own = Answer { token: u64::MAX, at: self.clock().now(), snapshot: self.recorder.snapshot() };
        answers[self.rank as usize] = Some(own);
        answers
    }

    /// What every rank said last of what it did: in an answer, or when it left; of this rank what it does now.
    pub fn last_words(&self) -> Vec<Option<Snapshot>> {
        let own = self.recorder.snapshot();
        let state = self.state();
        let said = (0..).zip(&state.answers).map(|(rank, answer)| {
            state.left.get(&rank).or(answer.as_ref().map(|answer| &answer.snapshot)).cloned()
        });
        let mut said: Vec<Option<Snapshot>> = said.collect();
        said[self.rank as usize] = Some(own);
        said
    }

    /// The ranks that have not answered a question as late as `token`, and could.
    pub fn silent_since(&self, token: u64) -> Vec<Rank> {
        let state = self.state();
        let answered =
            |rank: &Rank| state.answers[*rank as usize].as_ref().is_some_and(|answer| answer.token >= token);
        (0..self.size())
            .filter(|rank| *rank != self.rank)
            .filter(|rank| !state.left.contains_key(rank) && !state.lost.contains_key(rank))
            .filter(|rank| !answered(rank))
            .collect()
    }

    /// Tells the others that this rank closes its communicator, and what it did last.
    pub fn leave(&self) {
        let whole = self.recorder.snapshot();
        // Who is not linked would have to be called for it, and hears of it when it asks.
        let open = self.member.all_open();
        let is_open = |rank: &Rank| open.binary_search(&self.members[*rank as usize]).is_ok();
        let hears = |rank: &Rank| !self.member.is_sparse() || is_open(rank);
        let last_said = self.state().rounds.last_said();
        for rank in (0..self.size()).filter(|rank| *rank != self.rank).filter(hears) {
            if let Some(words) = &last_said {
                self.send(rank, words.clone());
            }
            let concerns =
                |entry: &&AgedEntry| !entry.descriptor.kind.is_message() || entry.descriptor.root == rank;
            let last = whole.recent.iter().rev().filter(concerns).take(LAST_WORDS);
            let mut recent: Vec<AgedEntry> = last.cloned().collect();
            recent.reverse();
            let Snapshot { entered, finished, .. } = whole;
            self.send(rank, Message::Leave { snapshot: Snapshot { entered, finished, recent } });
        }
        let open_elsewhere = self.members.len() - 1 - self.state().left.len();
        if self.member.is_sparse() {
            self.member.leaves(self.uid, &self.members);
        }
        self.member.unregister(self.uid, open_elsewhere, &whole);
        if self.member.is_sparse() {
            // Those that were linked meanwhile have not heard of it.
            self.member.leaves(self.uid, &open);
        }
    }
}
