//! One rank of one job in this process, with its control links to all others.
//!
//! Invariant: links are made once, when the job is joined; every rank has one to every other, so the loss of
//! any rank, rank 0 too, leaves the others connected. Messages to a rank of the same process are plain calls.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use consort_memory::sync::{AtomicU64, Ordering};

use super::group::{Failure, Group};
use super::link::{RemoteLink, part_from};
use super::lock;
use super::patience::Patience;
use super::process::Shared;
use super::registry::{POSITIONS_MAX, Registry};
use super::wire::{self, Message};
use crate::bootstrap;
use crate::clock::{Clock, Reading};
use crate::recorder::Snapshot;
use crate::report::evidence::{Position, ProcessId};
use consort_types::Rank;
use consort_types::error::Error;

/// Bytes of one rank's messages for communicators that this rank has not made yet, at most; another such message is lost.
const EARLY_BYTES_MAX: usize = 2 * wire::FRAME_BYTES_MAX;

pub struct Member {
    shared: Weak<Shared>,
    pub job: [u8; 16],
    pub rank: Rank,
    pub key: [u8; 32],
    pub table: Vec<bootstrap::Member>,
    pub clock: Clock,
    links: Mutex<Vec<Link>>,
    changed: Condvar,
    groups: Mutex<Groups>,
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
    /// Communicators that this rank has closed, with how many of their ranks have not.
    closed: BTreeMap<u64, usize>,
    /// Messages for communicators that this rank has not made, by sender, as they travel: so they take what they took there.
    early: BTreeMap<Rank, Vec<u8>>,
    /// Who is gone, why, and whether it ended (otherwise the link to it broke).
    lost: Vec<(Rank, String, bool)>,
}

/// A message to a rank of this process.
struct Letter {
    to: Weak<Member>,
    from: Rank,
    communicator: u64,
    message: Message,
}

/// Hands a letter over on this thread: after those that are being handed over, not in the middle of one. A rank that
/// answers, or passes a failure on, would otherwise nest as deep as there are ranks.
fn deliver(letter: Letter) {
    thread_local! {
        static LETTERS: RefCell<Option<VecDeque<Letter>>> = const { RefCell::new(None) };
    }
    let mut next = Some(letter);
    let queued = LETTERS.try_with(|letters| match &mut *letters.borrow_mut() {
        Some(letters) => letters.extend(next.take()),
        letters => *letters = Some(VecDeque::new()),
    });
    // A thread that ends, in its last destructors or in the process's, has no queue any more.
    debug_assert!(queued.is_ok() || next.is_some());
    while let Some(Letter { to, from, communicator, message }) = next {
        if let Some(to) = to.upgrade() {
            to.receive(from, communicator, message);
        }
        next = LETTERS
            .try_with(|letters| {
                let mut letters = letters.borrow_mut();
                let letter = letters.as_mut().and_then(VecDeque::pop_front);
                if letter.is_none() {
                    *letters = None;
                }
                letter
            })
            .unwrap_or_default();
    }
}

/// How a rank of the job is reached.
#[derive(Clone)]
pub enum Link {
    /// Not yet.
    Missing,
    /// It is this rank itself.
    Own,
    /// A rank of this process.
    Local(Weak<Member>),
    /// A rank of another process.
    Remote(Arc<RemoteLink>),
}

/// Where two ranks are relative to each other, as proved by the control link between them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Distance {
    /// The same process.
    Process,
    /// The same host: an abstract Unix socket joins them.
    Host,
    /// Joined by TCP; the local address of that link is given.
    Network(IpAddr),
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
        table: Vec<bootstrap::Member>,
    ) -> Arc<Self> {
        let (clock, registry) = (Clock::default(), shared.registry.clone());
        Self::within(Arc::downgrade(shared), clock, registry, job, key, rank, table)
    }

    /// As [`Member::new`], in a process that may be a simulated one.
    pub fn within(
        shared: Weak<Shared>,
        clock: Clock,
        registry: Arc<Registry>,
        job: [u8; 16],
        key: [u8; 32],
        rank: Rank,
        table: Vec<bootstrap::Member>,
    ) -> Arc<Self> {
        let mut links = vec![Link::Missing; table.len()];
        links[rank as usize] = Link::Own;
        Arc::new(Member {
            shared,
            job,
            rank,
            key,
            table,
            clock,
            links: Mutex::new(links),
            changed: Condvar::new(),
            groups: Mutex::new(Groups::default()),
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
        self.groups().lost.iter().any(|(lost, ..)| *lost == rank)
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

    fn links(&self) -> std::sync::MutexGuard<'_, Vec<Link>> {
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

    /// Sets the link to `rank`; a second one for the same rank is refused.
    pub fn set_link(&self, rank: Rank, link: Link) -> bool {
        let mut links = self.links();
        let Some(slot @ Link::Missing) = links.get_mut(rank as usize) else { return false };
        *slot = link;
        self.changed.notify_all();
        true
    }

    /// Whether `rank` is linked.
    pub fn is_linked(&self, rank: Rank) -> bool {
        !matches!(self.links().get(rank as usize), None | Some(Link::Missing))
    }

    /// Waits until every rank is linked; otherwise the ranks that are not.
    pub fn wait_for_links(&self, patience: Patience<'_>) -> Result<(), Vec<Rank>> {
        let mut links = self.links();
        loop {
            let missing: Vec<Rank> = (0..links.len())
                .filter(|rank| matches!(links[*rank], Link::Missing))
                .map(|rank| rank as Rank)
                .collect();
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

    /// The name of the communicator of all ranks of the job.
    pub fn world(&self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|byte| self.job[byte]))
    }

    /// This rank cannot join after all: those it is linked to already, which may be in calls, hear why.
    pub fn give_up_joining(&self, error: &Error) {
        let failure = Failure { origin: self.rank, error: error.clone(), report: None };
        for rank in 0..self.table.len() as Rank {
            self.send(rank, self.world(), Message::Poison { failure: failure.clone() });
        }
    }

    /// Where `rank` is, seen from here.
    pub fn distance(&self, rank: Rank) -> Distance {
        match &self.links()[rank as usize] {
            Link::Own | Link::Local(_) => Distance::Process,
            Link::Remote(link) => link.distance,
            Link::Missing => Distance::Network(IpAddr::from([127, 0, 0, 1])),
        }
    }

    /// Host and process of a rank, for people.
    pub fn place(&self, rank: Rank) -> String {
        self.table[rank as usize].place()
    }

    /// Sends to one rank of the job; a link that is gone swallows it, since its loss is reported elsewhere.
    pub fn send(&self, to: Rank, communicator: u64, message: Message) {
        let link = self.links()[to as usize].clone();
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
        let mut groups = self.groups();
        if let Some(group) = groups.open.get(&communicator).and_then(Weak::upgrade) {
            drop(groups);
            group.receive(from, message);
            return;
        }
        if let Some(open_elsewhere) = groups.closed.get_mut(&communicator) {
            if matches!(message, Message::Leave { .. }) {
                *open_elsewhere -= 1;
                if *open_elsewhere == 0 {
                    groups.closed.remove(&communicator);
                }
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
            Message::State { .. } => {}
            message => {
                let early = groups.early.entry(from).or_default();
                let before = early.len();
                if before > EARLY_BYTES_MAX {
                    return;
                }
                wire::encode(communicator, &message, early);
                if early.len() > EARLY_BYTES_MAX {
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
        for (rank, cause, ended) in lost {
            group.lost(rank, &cause, ended);
        }
    }

    /// A communicator is closed; `open_elsewhere` of its ranks have not closed it yet.
    pub fn unregister(&self, communicator: u64, open_elsewhere: usize) {
        let mut groups = self.groups();
        groups.open.remove(&communicator);
        if open_elsewhere > 0 {
            groups.closed.insert(communicator, open_elsewhere);
        }
    }

    /// `rank` is gone: every communicator that it has not left fails. It `ended`, or else the link to it broke.
    pub fn lost(&self, rank: Rank, cause: &str, ended: bool) {
        let mut groups = self.groups();
        if groups.lost.iter().any(|(known, ..)| *known == rank) {
            return;
        }
        groups.lost.push((rank, cause.to_owned(), ended));
        let open: Vec<Arc<Group>> = groups.open.values().filter_map(Weak::upgrade).collect();
        drop(groups);
        for group in open {
            group.lost(rank, cause, ended);
        }
    }

    /// All links to other processes, to be closed when the member goes.
    pub fn remote_links(&self) -> Vec<Arc<RemoteLink>> {
        let remote = |link: &Link| match link {
            Link::Remote(link) => Some(link.clone()),
            _ => None,
        };
        self.links().iter().filter_map(remote).collect()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade()
            && !shared.fork.is_forked_child()
        {
            shared.dismiss(self);
            part_from(&self.remote_links());
        }
    }
}
