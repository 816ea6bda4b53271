//! One rank of one job in this process, with its control links to the others.
//!
//! Up to [`overlay::FULL_MAX`] ranks, and within one process, all are linked to all when the job is joined. In a larger job
//! (a sparse one) a rank is linked to its neighbours of [`overlay`] then, and to another one when the first of the two says
//! something to the other; see `links`.
//!
//! Invariant: the loss of any rank, rank 0 too, leaves the others connected, and is known to all of them. Messages to a rank of
//! the same process are plain calls.

mod departures;
mod distance;
mod letters;
mod links;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use consort_memory::sync::{AtomicU64, Ordering};

use self::departures::Departures;
pub use self::distance::Distance;
use self::letters::{Letter, deliver};
pub use self::links::{Begun, Link};
use self::links::{Links, REFUSED, Said, Uncalled};
use super::group::{Failure, Group};
use super::link::{ENDED, RemoteLink, part_from};
use super::patience::Patience;
use super::process::Shared;
use super::registry::{POSITIONS_MAX, Registry};
use super::wire::{self, Message};
use super::{lock, overlay};
use crate::bootstrap;
use crate::clock::{Clock, Reading};
use crate::recorder::Snapshot;
use crate::report::evidence::{Position, ProcessId};
use consort_types::Rank;
use consort_types::error::Error;

/// Bytes of one rank's messages for communicators that this rank has not made yet, at most; another such message is lost.
const EARLY_BYTES_MAX: usize = 2 * wire::FRAME_BYTES_MAX;
/// The same in a sparse job, where a neighbour passes on what all ranks say.
const EARLY_PASSED_MAX: usize = 16 * wire::FRAME_BYTES_MAX;
/// Communicators of a sparse job that this rank has closed and that are remembered, at most: the last ones.
const CLOSED_MAX: usize = 1024;
/// Names no communicator.
pub const NO_COMMUNICATOR: u64 = 0;

pub struct Member {
    shared: Weak<Shared>,
    pub job: [u8; 16],
    pub rank: Rank,
    pub key: [u8; 32],
    /// By rank of the job; the same for all ranks of a process.
    pub table: Arc<[bootstrap::Member]>,
    pub clock: Clock,
    /// Up to how many ranks all are linked to all.
    full: u32,
    /// Whether some ranks of the job are linked only when they have something to say.
    is_sparse: bool,
    links: Mutex<Links>,
    changed: Condvar,
    groups: Mutex<Groups>,
    departures: Mutex<Departures>,
    /// All communicators of this process, of other jobs too.
    registry: Arc<Registry>,
    token: AtomicU64,
    answers: Mutex<BTreeMap<Rank, Answer>>,
    /// Rank 0's clock when the job was joined; asked for by those who trace.
    pub first_reading: OnceLock<Reading>,
}

/// What a rank said that its whole process does.
struct Answer {
    token: u64,
    /// Its clock when it answered.
    clock: u64,
    /// When the answer arrived here, by this side's clock.
    at: u64,
    positions: Vec<Position>,
}

#[derive(Default)]
struct Groups {
    open: BTreeMap<u64, Weak<Group>>,
    /// Communicators that this rank has closed, with what it said of itself then.
    closed: BTreeMap<u64, Closed>,
    /// The order in which it closed those of a sparse job.
    closed_first: VecDeque<u64>,
    /// Messages for communicators that this rank has not made, by sender, as they travel: so they take what they took there.
    early: BTreeMap<Rank, Vec<u8>>,
    /// Who is gone, why, and whether it ended (otherwise the link to it broke).
    lost: Vec<(Rank, String, bool)>,
}

/// A communicator that this rank has closed.
struct Closed {
    /// How many of its ranks have not; in a sparse job not all of them say it.
    open_elsewhere: usize,
    entered: u64,
    finished: u64,
}

impl Member {
    /// The memory node in which this rank runs, where it keeps to one of several.
    pub fn node(&self) -> Option<u32> {
        self.table[self.rank as usize].place.node
    }

    pub fn new(
        shared: &Arc<Shared>,
        job: [u8; 16],
        key: [u8; 32],
        rank: Rank,
        table: impl Into<Arc<[bootstrap::Member]>>,
    ) -> Arc<Self> {
        let (clock, registry) = (Clock::default(), shared.registry.clone());
        Self::within(Arc::downgrade(shared), clock, registry, job, key, rank, table, overlay::FULL_MAX)
    }

    /// As [`Member::new`], in a process that may be a simulated one; of more than `full` ranks not all are linked to all.
    #[expect(clippy::too_many_arguments, reason = "what a process says of itself, and the job of its rank")]
    pub fn within(
        shared: Weak<Shared>,
        clock: Clock,
        registry: Arc<Registry>,
        job: [u8; 16],
        key: [u8; 32],
        rank: Rank,
        table: impl Into<Arc<[bootstrap::Member]>>,
        full: u32,
    ) -> Arc<Self> {
        let table = table.into();
        let own = table[rank as usize].process;
        let is_sparse = table.len() > full as usize && table.iter().any(|other| other.process != own);
        let links = Links::new(rank, table.len());
        Arc::new(Member {
            shared,
            job,
            rank,
            key,
            table,
            clock,
            full,
            is_sparse,
            links: Mutex::new(links),
            changed: Condvar::new(),
            groups: Mutex::new(Groups::default()),
            departures: Mutex::default(),
            registry,
            token: AtomicU64::new(0),
            answers: Mutex::default(),
            first_reading: OnceLock::new(),
        })
    }

    /// A number for the next question; later ones are higher.
    pub fn next_token(&self) -> u64 {
        self.token.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn answers(&self) -> std::sync::MutexGuard<'_, BTreeMap<Rank, Answer>> {
        lock(&self.answers)
    }

    /// Answers a question of rank `to` of the job.
    pub fn answer(&self, to: Rank, communicator: u64, token: u64, snapshot: Snapshot) {
        let positions = self.registry.positions(communicator);
        let clock = self.clock.monotonic_ns();
        self.send(to, communicator, Message::State { token, clock, snapshot, positions });
    }

    /// Whether a rank of the job has answered a question as late as `token`.
    pub fn has_answered(&self, rank: Rank, token: u64) -> bool {
        self.answers().get(&rank).is_some_and(|answer| answer.token >= token)
    }

    /// A rank's last answer: (which question's, that side's clock when it answered, this side's when it came).
    pub fn heard_clock(&self, rank: Rank) -> Option<(u64, u64, u64)> {
        self.answers().get(&rank).map(|answer| (answer.token, answer.clock, answer.at))
    }

    /// Whether a rank of the job is known to be gone, in good order or not.
    pub fn is_lost(&self, rank: Rank) -> bool {
        self.departures().has_parted(rank) || self.groups().lost.iter().any(|(lost, ..)| *lost == rank)
    }

    fn departures(&self) -> std::sync::MutexGuard<'_, Departures> {
        lock(&self.departures)
    }

    /// What every process that has answered does, this one included.
    pub fn processes(&self, asked: u64) -> BTreeMap<ProcessId, Vec<Position>> {
        let mut processes = BTreeMap::new();
        let now = self.clock.monotonic_ns();
        for (rank, answer) in self.answers().iter() {
            // Ages as of now, so that all ranks of a report are seen at one moment.
            let since = Duration::from_nanos(now.saturating_sub(answer.at));
            let positions = answer.positions.iter().map(|position| position.aged(since)).collect();
            processes.insert(self.table[*rank as usize].process, positions);
        }
        processes.insert(self.table[self.rank as usize].process, self.registry.positions(asked));
        processes
    }

    /// The same without the names.
    pub fn positions(&self, asked: u64) -> Vec<Position> {
        self.processes(asked).into_values().flatten().collect()
    }

    fn links(&self) -> std::sync::MutexGuard<'_, Links> {
        lock(&self.links)
    }

    fn groups(&self) -> std::sync::MutexGuard<'_, Groups> {
        lock(&self.groups)
    }

    /// How many messages came before their groups, and how many closed groups are remembered.
    #[cfg(feature = "testing")]
    pub fn remembered(&self) -> (usize, usize) {
        let groups = self.groups();
        (groups.early.len(), groups.closed.len())
    }

    /// Whether some ranks of the job are linked only when they have something to say.
    pub fn is_sparse(&self) -> bool {
        self.is_sparse
    }

    /// The ranks to which rank `rank` of a communicator of `size` passes on what all are to know; in a sparse job these are not
    /// all others where there are more than a few.
    pub fn neighbours(&self, rank: Rank, size: u32) -> Vec<Rank> {
        overlay::neighbours(rank, size, if self.is_sparse { self.full } else { u32::MAX })
    }

    /// As [`Member::neighbours`], of those of its ranks that are still there.
    pub fn neighbours_among(&self, rank: Rank, alive: &[Rank]) -> Vec<Rank> {
        overlay::neighbours_among(rank, alive, if self.is_sparse { self.full } else { u32::MAX })
    }

    /// The ranks to which this one is linked when the job is joined.
    pub fn first_linked(&self) -> Vec<Rank> {
        self.neighbours(self.rank, self.table.len() as u32)
    }

    /// Sets the link to `rank`; a second one for the same rank is refused.
    pub fn set_link(&self, rank: Rank, link: Link) -> bool {
        let is_set = self.links().set(rank, link);
        if is_set && self.is_sparse {
            self.say_departures(rank);
        }
        self.changed.notify_all();
        is_set
    }

    /// Whether `rank` is linked.
    pub fn is_linked(&self, rank: Rank) -> bool {
        !self.links().is_missing(rank)
    }

    /// The other ranks that hear what is said without being called for it, in ascending order.
    pub fn all_open(&self) -> Vec<Rank> {
        let links = self.links();
        let hears = |rank: &Rank| *rank != self.rank && links.is_open(*rank);
        links.all().map(|(rank, _)| rank).filter(hears).collect()
    }

    /// Whether the call of another rank is to be answered: not when it is linked, gone, or called itself. From then on it is not
    /// called, until it is linked or [given up](Member::give_up_answering).
    pub fn is_to_answer(&self, from: Rank) -> bool {
        !self.is_lost(from) && self.links().answer(from, self.rank, self.clock.now())
    }

    /// The call that was to be answered came to nothing.
    pub fn give_up_answering(&self, from: Rank) {
        let calls = self.links().give_up_answering(from, self.clock.now());
        let has_ended = self.departures().has_ended(from);
        if has_ended {
            self.lost(from, ENDED, true);
        } else if calls {
            self.call_out();
        }
    }

    /// The calling thread calls `rank`, if it is to; [`Member::end_call`] follows where that comes to nothing.
    pub(super) fn begin_call(&self, rank: Rank) -> Begun {
        self.links().begin_call(rank, self.clock.now())
    }

    /// The calling thread's call came to nothing.
    pub(super) fn end_call(&self, rank: Rank) {
        let calls = self.links().end_call(rank, self.clock.now());
        if calls {
            self.call_out();
        }
    }

    /// The next rank to be called now, or else the time of the next call.
    pub fn next_call(&self, now: Instant) -> Result<Rank, Option<Instant>> {
        self.links().next_call(now)
    }

    /// A call failed; `refused` if the rank's host says that nothing listens there. Communicators whose calls need the rank fail
    /// when no more calls follow; whether it ended or left is for those to say that were linked to it.
    pub fn call_failed(&self, rank: Rank, refused: bool, error: &str) {
        let end = self.links().call_failed(rank, refused, self.clock.now());
        let Some(Uncalled { refused, needed_by }) = end else { return };
        let cause = match refused {
            true => format!("{REFUSED} ({error})"),
            false => format!("no control connection to it could be made: {error}"),
        };
        let open: Vec<Arc<Group>> = {
            let groups = self.groups();
            needed_by.iter().filter_map(|uid| groups.open.get(uid)).filter_map(Weak::upgrade).collect()
        };
        for group in open {
            group.lost(rank, &cause, refused);
        }
    }

    /// Why a rank that was called will not answer, if that is known.
    pub fn refusal(&self, rank: Rank) -> Option<&'static str> {
        self.links().is_refused(rank).then_some(REFUSED)
    }

    fn call_out(&self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.call_out();
        }
    }

    /// Waits until every rank is linked that is [linked first](Member::first_linked); otherwise the ranks that are not.
    pub fn wait_for_links(&self, patience: Patience<'_>) -> Result<(), Vec<Rank>> {
        let mut missing = self.first_linked();
        let mut links = self.links();
        loop {
            missing.retain(|rank| links.is_missing(*rank));
            if missing.is_empty() {
                return Ok(());
            }
            let turn = patience.turn();
            if turn.is_zero() {
                return Err(missing);
            }
            let wait = turn.min(Duration::from_millis(100));
            links = self.changed.wait_timeout(links, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Its process, unless that is gone or a simulated one.
    pub(super) fn process(&self) -> Option<Arc<Shared>> {
        self.shared.upgrade()
    }

    /// The name of the communicator of all ranks of the job.
    pub fn world(&self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|byte| self.job[byte]))
    }

    /// This rank cannot join after all: those it is linked to already, which may be in calls, hear why.
    pub fn give_up_joining(&self, error: &Error) {
        let failure = Failure { origin: self.rank, error: error.clone(), report: None };
        for rank in self.all_open() {
            self.send(rank, self.world(), Message::Poison { failure: failure.clone() });
        }
    }

    /// Host and process of a rank, for people.
    pub fn place(&self, rank: Rank) -> String {
        self.table[rank as usize].place()
    }

    /// Sends to one rank of the job, which is called for it where it is not linked; a link that is gone swallows it, since its
    /// loss is reported elsewhere.
    pub fn send(&self, to: Rank, communicator: u64, message: Message) {
        let mut link = self.links().get(to).cloned().unwrap_or(Link::Missing);
        if matches!(link, Link::Missing) && self.is_sparse && !self.is_lost(to) {
            let said = self.links().say(to, communicator, &message, self.clock.now());
            match said {
                Said::By(there) => link = there,
                Said::Waits { calls } => {
                    // Also where a thread could not be started before.
                    if calls || self.shared.upgrade().is_some_and(|shared| !shared.has_callers()) {
                        self.call_out();
                    }
                    return;
                }
            }
        }
        match link {
            Link::Own | Link::Missing => {}
            Link::Local(peer) => deliver(Letter { to: peer, from: self.rank, communicator, message }),
            Link::Remote(link) => link.send(communicator, &message),
        }
    }

    /// A message from rank `from` of the job.
    pub fn receive(&self, from: Rank, communicator: u64, message: Message) {
        if let Message::State { token, clock, positions, .. } = &message {
            let at = self.clock.monotonic_ns();
            let positions = positions[..positions.len().min(POSITIONS_MAX)].to_vec();
            let answer = Answer { token: *token, clock: *clock, at, positions };
            let mut known = self.answers();
            if (from as usize) < self.table.len() && known.get(&from).is_none_or(|old| old.token <= *token) {
                known.insert(from, answer);
            }
        }
        let message = match message {
            // Where all are linked to all, each finds out by itself.
            Message::Here | Message::Parted | Message::Bye | Message::Gone { .. } if !self.is_sparse => {
                return;
            }
            Message::Here => return,
            Message::Parted => {
                self.departures().leaves(from, communicator);
                let open = self.groups().open.get(&communicator).and_then(Weak::upgrade);
                return open.into_iter().for_each(|group| group.left_unheard(from));
            }
            Message::Bye => return self.parts(from),
            Message::Gone { rank, cause, left } => {
                if (rank as usize) < self.table.len() {
                    self.take_loss(rank, &cause, true, &left, Some(from));
                }
                return;
            }
            message => message,
        };
        if self.is_sparse && matches!(message, Message::Leave { .. }) {
            self.departures().leaves(from, communicator);
        }
        let mut groups = self.groups();
        if let Some(group) = groups.open.get(&communicator).and_then(Weak::upgrade) {
            drop(groups);
            group.receive(from, message);
            return;
        }
        if let Some(closed) = groups.closed.get_mut(&communicator) {
            let said = Snapshot { entered: closed.entered, finished: closed.finished, recent: Vec::new() };
            if matches!(message, Message::Leave { .. }) && !self.is_sparse {
                closed.open_elsewhere -= 1;
                if closed.open_elsewhere == 0 {
                    groups.closed.remove(&communicator);
                }
            }
            // Who was not linked has not heard that this rank has left.
            let asks = matches!(message, Message::Query { .. } | Message::Address { .. });
            if asks && self.is_sparse {
                drop(groups);
                self.send(from, communicator, Message::Leave { snapshot: said });
                groups = self.groups();
            }
            if !matches!(message, Message::Query { .. }) {
                return;
            }
        }
        match message {
            Message::Query { token } => {
                drop(groups);
                self.answer(from, communicator, token, Snapshot::default());
            }
            Message::State { .. } | Message::Gone { .. } => {}
            Message::Here | Message::Parted | Message::Bye => {}
            message => {
                let most = if self.is_sparse { EARLY_PASSED_MAX } else { EARLY_BYTES_MAX };
                let early = groups.early.entry(from).or_default();
                let before = early.len();
                if before > most {
                    return;
                }
                wire::encode(communicator, &message, early);
                if early.len() > most {
                    tracing::error!(
                        rank = self.rank,
                        from,
                        "too many messages for communicators that this rank has not made; later ones are lost"
                    );
                }
            }
        }
    }

    /// A communicator is open: what came early reaches it now.
    pub fn register(&self, group: &Arc<Group>) {
        let mut groups = self.groups();
        groups.open.insert(group.uid, Arc::downgrade(group));
        self.registry.register(group);
        let mut mine: Vec<(Rank, Message)> = Vec::new();
        groups.early.retain(|from, bytes| {
            let (mut others, mut left) = (Vec::new(), bytes.as_slice());
            // They were written here, so they can be read.
            while let Ok(Some((uid, message))) = wire::decode(&mut left) {
                if uid == group.uid {
                    mine.push((*from, message));
                } else {
                    wire::encode(uid, &message, &mut others);
                }
            }
            *bytes = others;
            !bytes.is_empty()
        });
        let lost = groups.lost.clone();
        drop(groups);
        for (from, message) in mine {
            group.receive(from, message);
        }
        let gone: Vec<Rank> = {
            let departures = self.departures();
            let has_left =
                |rank: &Rank| departures.has_parted(*rank) || departures.left(*rank).contains(&group.uid);
            group.members.iter().copied().filter(has_left).collect()
        };
        gone.into_iter().for_each(|rank| group.left_unheard(rank));
        for (rank, cause, ended) in lost {
            group.lost(rank, &cause, ended);
        }
    }

    /// A communicator is closed, as `said`; `open_elsewhere` of its ranks have not closed it yet.
    pub fn unregister(&self, communicator: u64, open_elsewhere: usize, said: &Snapshot) {
        let mut groups = self.groups();
        groups.open.remove(&communicator);
        if open_elsewhere > 0 {
            let closed = Closed { open_elsewhere, entered: said.entered, finished: said.finished };
            groups.closed.insert(communicator, closed);
            if self.is_sparse {
                groups.closed_first.push_back(communicator);
                if groups.closed_first.len() > CLOSED_MAX
                    && let Some(first) = groups.closed_first.pop_front()
                {
                    groups.closed.remove(&first);
                }
            }
        }
    }

    /// All links to other processes, to be closed when the member goes.
    pub fn remote_links(&self) -> Vec<Arc<RemoteLink>> {
        let remote = |link: &Link| match link {
            Link::Remote(link) => Some(link.clone()),
            _ => None,
        };
        self.links().all().filter_map(|(_, link)| remote(link)).collect()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade()
            && !shared.fork.is_forked_child()
        {
            self.say_good_bye();
            let mut links = self.remote_links();
            // Those who call count on the answer, and would take the end of the link for this rank's.
            let is_linked = |link: &Arc<RemoteLink>| links.iter().any(|other| Arc::ptr_eq(link, other));
            let answered: Vec<_> =
                shared.links_of(self).into_iter().filter(|link| !is_linked(link)).collect();
            for link in answered {
                link.send_framed(self.links().take_words(link.peer));
                link.send(NO_COMMUNICATOR, &Message::Bye);
                links.push(link);
            }
            shared.dismiss(self);
            part_from(&links);
        }
    }
}
