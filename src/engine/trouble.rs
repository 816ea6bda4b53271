//! The end of an operation that does not go on: which ranks are asked, when it ends, with which error.
//!
//! Invariant: runs only when a task has been blocked for a while or when something went wrong, never on the
//! fast path; it reads a clock but never waits: the thread that drives the task comes again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use consort_transports::TransportError;

use super::Engine;
use super::links::link_error;
use super::real_io::Broken;
use super::task::{Request, Task, operation_of};
use crate::Rank;
use consort_control::membership::inquiry::Inquiry;
use consort_control::recorder::Snapshot;
use consort_control::report::analyse;
use consort_control::report::evidence::{Evidence, Stuck};
use consort_types::call::Descriptor;
use consort_types::call::Kind;
use consort_types::error::{Error, Operation, list, seconds};

/// The time that a task is blocked before the first look at it.
const FIRST_LOOK: Duration = Duration::from_millis(20);
/// The pause between two looks after that.
const INTERVAL: Duration = Duration::from_millis(100);
/// The longest pause between two questions to peers that are waited for: pauses double up to it.
const ASK_MAX: Duration = Duration::from_secs(2);
/// The most peers that are asked at a time.
const ASKED_MAX: usize = 8;
/// The time that peers have to answer before a deadline, or when ranks are found to disagree.
const ANSWERS: Duration = Duration::from_millis(500);
/// The pause after a question that brought nothing.
const ASK_AGAIN: Duration = Duration::from_millis(20);
/// The time in which the news that a broken link's peer died or left may come.
const NEWS: Duration = Duration::from_millis(300);

/// Why an operation cannot go on.
#[derive(Debug)]
pub(crate) enum Fault {
    /// A peer sent bytes of another operation, or said that it is in another.
    Mismatch { peer: Rank },
    /// A link broke, or a peer withdrew what it had offered.
    Broken(Broken),
    /// Anything else.
    Failed(Error),
}

/// The fault of a rank that sent a message of another operation.
impl From<Rank> for Fault {
    fn from(peer: Rank) -> Self {
        Fault::Mismatch { peer }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Fault::Failed(error)
    }
}

impl From<Broken> for Fault {
    fn from(broken: Broken) -> Self {
        Fault::Broken(broken)
    }
}

/// A fault, with the request that met it where that matters.
pub(crate) enum Trouble {
    Failed(Error),
    Mismatch {
        request: Request,
        peer: Rank,
    },
    Broken {
        /// Boxed, as every step of an operation returns what may be this.
        request: Option<Box<Request>>,
        broken: Broken,
    },
}

impl Trouble {
    pub(super) fn of(request: &Request, fault: Fault) -> Self {
        match fault {
            Fault::Mismatch { peer } => Trouble::Mismatch { request: *request, peer },
            Fault::Broken(broken) => Trouble::Broken { request: Some(Box::new(*request)), broken },
            Fault::Failed(error) => Trouble::Failed(error),
        }
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Trouble::Failed(error)
    }
}

/// How far an operation is on its way to its error.
#[derive(Default)]
pub(crate) enum Ending {
    #[default]
    None,
    /// The communicator has failed; the reason is being settled.
    Settling,
    /// All ranks are asked which operations they are in.
    Comparing { inquiry: Inquiry, again: Instant, until: Instant, request: Request, peer: Rank },
    /// The control plane may hear that the peer died or left.
    Listening { until: Instant, request: Option<Request>, broken: Broken },
}

/// When an operation started and when it was last looked at.
#[derive(Default)]
pub(crate) struct Watch {
    pub(super) timeout: Duration,
    started: Option<Instant>,
    next: Option<Instant>,
    ask: Option<(Instant, Duration)>,
    /// The number of peers that have been asked.
    asked: usize,
    /// The number of answers at the last comparison of the calls.
    news: u64,
    /// Record, peer, step and slice at the last look, and since when they are the same: an operation whose four do not change
    /// is stuck.
    standing: Option<((u64, Rank, u32, u32), Instant)>,
    /// The question whose answers will explain that the deadline passed.
    expiry: Option<Inquiry>,
    /// The question for the early report; none before it is due and after it was made.
    early: Option<Inquiry>,
    pub(super) reported: bool,
    /// Peers that had left when the task was looked at before, and when that was first seen.
    left: BTreeMap<Rank, Instant>,
}

impl Watch {
    pub(crate) fn reset(&mut self, timeout: Duration) {
        *self = Watch { timeout, ..Watch::default() };
    }

    /// The operation was started now, whether it goes on yet or is behind another.
    pub(super) fn begin(&mut self, now: Instant) {
        self.started = Some(now);
    }

    /// The same, unless it is known when it was started.
    pub(super) fn begin_by(&mut self, now: Instant) {
        self.started.get_or_insert(now);
    }

    /// When it must have ended, where it is known when it was started.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.started.map(|started| started + self.timeout)
    }

    /// The operation must end within `timeout` from now on, if that is sooner than it must anyway.
    pub(crate) fn hurry(&mut self, timeout: Duration, now: Instant) {
        self.timeout = self.timeout.min(self.waited(now) + timeout);
        self.next = self.next.map(|next| next.min(now + FIRST_LOOK));
    }

    /// Whether it is time to look. The clock starts with the first call, when a task is first blocked, if it has not begun.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        self.started.get_or_insert(now);
        let first = FIRST_LOOK.min(self.timeout / 8);
        now >= *self.next.get_or_insert(now + first)
    }

    fn waited(&self, now: Instant) -> Duration {
        self.started.map_or(Duration::ZERO, |started| now.saturating_duration_since(started))
    }

    /// The time before the deadline at which the other ranks are asked.
    fn lead(&self) -> Duration {
        ANSWERS.min(self.timeout / 4)
    }

    /// The time for which an operation has stood where it stands.
    fn stand(&mut self, record: u64, stuck: &Stuck, now: Instant) -> Instant {
        let standing = (record, stuck.peer, stuck.step, stuck.slice);
        match self.standing {
            Some((known, since)) if known == standing => since,
            _ => {
                self.standing = Some((standing, now));
                now
            }
        }
    }
}

/// Looks at the clock and at the other ranks.
pub(crate) fn look(task: &mut Task, engine: &mut Engine, now: Instant) -> Result<(), Trouble> {
    let operation = task.operation();
    let blocked = task.blocked(&engine.links);
    let gone = blocked.iter().filter(|blocked| blocked.drained && engine.group.has_left(blocked.peer));
    let gone: Vec<Rank> = gone.map(|blocked| blocked.peer).collect();
    let news = engine.group.news();
    let heard = task.watch.ask.is_some() || !gone.is_empty();
    if heard && std::mem::replace(&mut task.watch.news, news) != news {
        let said = engine.group.last_words();
        let differs = |request: &&Request| difference(request, engine.group.rank, &said).is_some();
        if let Some(request) = task.requests().find(differs) {
            let peer = blocked.first().map_or(engine.group.rank, |blocked| blocked.peer);
            return Err(Trouble::Mismatch { request: *request, peer });
        }
    }
    let known = task.watch.left.len();
    gone.iter().for_each(|peer| _ = task.watch.left.entry(*peer).or_insert(now));
    if task.watch.left.len() > known {
        // All that the peer sent before it left is there now, and may have come since the task was blocked.
        task.watch.next = Some(now);
        return Ok(());
    }
    for peer in gone {
        let mut waits = task.waits_for(&engine.links, peer).peekable();
        let first = waits.peek().copied();
        if waits.any(|request| !left_after(engine, peer, request)) {
            return Err(left(engine, peer, operation).into());
        }
        // The peer made these calls too: its part is on its way, or is lost. An earlier deadline brings a report.
        let limit = engine.settings.connect_timeout;
        if task.watch.left.get(&peer).is_some_and(|since| now.saturating_duration_since(*since) >= limit) {
            let (limit, operation) = (seconds(limit), operation_of(first));
            let cause =
                format!("rank {peer} left after {operation}, and {limit} later its part has not arrived");
            return Err(lost_on_the_way(engine, peer, cause).into());
        }
    }
    let Engine { links, packets, settings, .. } = engine;
    if let Some(overdue) = task.connecting_for(links, packets, now, settings.connect_timeout) {
        let limit = seconds(engine.settings.connect_timeout);
        let waits_for = overdue.waits_for.map_or_else(String::new, |what| format!(": {what}"));
        let cause =
            format!("both sides began to connect, and after {limit} the connection is not there{waits_for}");
        return Err(lost_on_the_way(engine, overdue.peer, cause).into());
    }
    // Most peers wait for a collective, where one is under way too; a message stands there before its deadline.
    let is_shown = !engine.queue.has_collectives()
        || !task.is_of_messages()
        || task.watch.waited(now) + task.watch.lead() >= task.watch.timeout;
    if is_shown && let Some((record, stuck, traffic)) = task.standing(engine) {
        let since = task.watch.stand(record, &stuck, now);
        engine.group.stand(record, since, stuck, traffic);
    }
    let (timeout, waited, lead) = (task.watch.timeout, task.watch.waited(now), task.watch.lead());
    if waited + lead >= timeout {
        let (asked_about, group) = (asked_about(task), &engine.group);
        let inquiry = task.watch.expiry.get_or_insert_with(|| Inquiry::start(group, now + lead));
        // The look comes before the deadline too: chains of waits are followed through other processes then.
        if inquiry.is_over(group, now) && waited >= timeout {
            let evidence = inquiry.evidence(group, asked_about, waited);
            return Err(expired(task, engine, &evidence, waited).into());
        }
    }
    early_report(task, engine, now, waited);
    if !blocked.is_empty() {
        let (due, pause) = *task.watch.ask.get_or_insert((now, INTERVAL));
        if now >= due {
            // All peers in turn, however many a group waits for.
            let turn = blocked.iter().cycle().skip(task.watch.asked % blocked.len());
            turn.take(ASKED_MAX.min(blocked.len())).for_each(|blocked| engine.group.ask(blocked.peer));
            task.watch.asked += ASKED_MAX;
            task.watch.ask = Some((now + pause, (pause * 2).min(ASK_MAX)));
        }
    }
    // The question before the deadline and the deadline itself are not missed.
    let marks = [timeout.saturating_sub(lead), timeout];
    let mark = marks.into_iter().filter(|mark| *mark > waited).min().map_or(INTERVAL, |mark| mark - waited);
    let pause = if task.watch.expiry.is_some() { INTERVAL / 10 } else { INTERVAL };
    task.watch.next = Some(now + pause.min(mark));
    Ok(())
}

fn lost_on_the_way(engine: &Engine, peer: Rank, cause: String) -> Error {
    Error::Link { from: engine.group.rank, to: peer, transport: "data".into(), cause }
}

/// Whether a rank that has left had finished its part of a call of this rank.
fn left_after(engine: &Engine, peer: Rank, request: &Request) -> bool {
    engine.group.left_after(peer, request.call.kind, request.sequence)
}

fn left(engine: &Engine, rank: Rank, operation: Operation) -> Error {
    let group = &engine.group;
    Error::PeerLeft { rank, place: group.member.place(group.members[rank as usize]), operation }
}

/// Long before it fails, an operation that does not end is reported once.
fn early_report(task: &mut Task, engine: &mut Engine, now: Instant, waited: Duration) {
    if task.watch.reported || waited < engine.settings.report_after {
        return;
    }
    // A report has all that a rank has under way: one since this operation began is of this one too.
    if engine.reported.is_some_and(|at| now.saturating_duration_since(at) <= waited) {
        task.watch.reported = true;
        task.watch.early = None;
        return;
    }
    let group = &engine.group.clone();
    let operation = asked_about(task);
    let inquiry = task.watch.early.get_or_insert_with(|| Inquiry::start(group, now + ANSWERS));
    if !inquiry.is_over(group, now) {
        return;
    }
    let report = group.located(analyse(&inquiry.evidence(group, operation, waited)));
    task.watch.reported = true;
    task.watch.early = None;
    engine.reported = Some(now);
    // All ranks that wait find the same; one of them says it aloud.
    let first = report.ranks.iter().find(|rank| rank.waiting.is_some()).map(|rank| rank.rank);
    if first.is_none_or(|first| first == group.rank) {
        consort_settings::notice::aloud(Some(group.rank), &report.to_string());
    } else {
        tracing::debug!(rank = group.rank, "{report}");
    }
    group.set_report(Arc::new(report));
}

fn asked_about(task: &Task) -> Option<(u64, Descriptor)> {
    task.requests().next().map(|request| (request.sequence, request.call.descriptor()))
}

/// The deadline has passed: the report, and the error that carries its verdict to all ranks.
fn expired(task: &Task, engine: &Engine, evidence: &Evidence, waited: Duration) -> Error {
    let group = &engine.group;
    let said = group.last_words();
    if let Some(error) = task.requests().find_map(|request| difference(request, group.rank, &said)) {
        return error;
    }
    let report = group.located(analyse(evidence));
    let error = Error::Timeout { operation: task.operation(), waited, verdict: report.verdict.clone() };
    group.fail_with(error.clone(), Some(Arc::new(report)));
    error
}

/// The first step from a trouble towards its error.
pub(crate) fn begin(engine: &Engine, trouble: Trouble, watch: &Watch, now: Instant) -> Ending {
    let group = &engine.group;
    if group.has_failed() {
        return Ending::Settling;
    }
    match trouble {
        Trouble::Failed(error) => {
            group.fail(error);
            Ending::Settling
        }
        Trouble::Mismatch { request, peer } => {
            // Before this operation's deadline passes on others.
            let until = now + watch.lead();
            let again = now + ASK_AGAIN;
            Ending::Comparing { inquiry: Inquiry::start(group, until), again, until, request, peer }
        }
        Trouble::Broken {
            broken: Broken { peer, error: error @ TransportError::OutOfMemory { .. } },
            ..
        } => {
            group.fail(link_error(group.rank, peer, error));
            Ending::Settling
        }
        Trouble::Broken { request, broken } => {
            Ending::Listening { until: now + NEWS, request: request.map(|request| *request), broken }
        }
    }
}

/// The next step: the error, once it is what all ranks say.
pub(crate) fn step(engine: &Engine, ending: &mut Ending, now: Instant) -> Option<Error> {
    let group = &engine.group;
    if group.has_failed() {
        *ending = Ending::Settling;
    }
    match ending {
        Ending::None => {}
        Ending::Settling => return group.settled(now),
        Ending::Comparing { inquiry, again, until, request, peer } => {
            let complete = inquiry.is_complete(group);
            if !complete && now < *until {
                return None;
            }
            let found = difference(request, group.rank, &group.last_words());
            // A peer that has closed its communicator can no longer say what it called.
            if found.is_none() && now < *until && !group.has_left(*peer) {
                // The other side has not entered yet what it sent for, or said so before it did.
                if now >= *again {
                    *inquiry = Inquiry::start(group, *until);
                    *again = now + ASK_AGAIN;
                }
            } else {
                let (me, mine) = (group.rank, request.call.descriptor());
                let unknown =
                    || format!("rank {me} is in {mine}, and rank {peer} sent data of another operation");
                let sequence = request.sequence;
                group.fail(found.unwrap_or_else(|| Error::Mismatch { sequence, difference: unknown() }));
            }
        }
        Ending::Listening { until, request, broken } => {
            let has_left = group.has_left(broken.peer);
            let finished = request.as_ref().is_some_and(|request| left_after(engine, broken.peer, request));
            // A peer that finished another call and left has closed links that it did not need; its last words tell.
            let differs = |mine: &Request| difference(mine, group.rank, &group.last_words());
            if let Some(error) = request.as_ref().filter(|_| has_left).and_then(differs) {
                group.fail(error);
            } else if has_left && !finished {
                group.fail(left(engine, broken.peer, operation_of(request.as_ref())));
            } else if has_left || now >= *until {
                let (transport, cause) = (broken.error.transport().into(), broken.error.to_string());
                group.fail(Error::Link { from: group.rank, to: broken.peer, transport, cause });
            }
        }
    }
    None
}

/// The first mismatch that the answers show, if they show one: in this operation, or in one before it that
/// every rank could finish alone.
fn difference(request: &Request, me: Rank, said: &[Option<Snapshot>]) -> Option<Error> {
    let mine = request.call.descriptor();
    if request.call.kind.is_message() {
        return difference_in_messages(request, me, said);
    }
    let own = said.get(me as usize)?.as_ref()?.collectives();
    own.filter(|call| call.sequence <= request.sequence)
        .find_map(|call| difference_in(call.sequence, &call.descriptor, said))
        // An operation started long before others is no longer among the last ones here.
        .or_else(|| difference_in(request.sequence, &mine, said))
}

/// The first message between two ranks that they called differently, up to this one: a message of nothing that was sent
/// is over at once, whatever the other side expects.
fn difference_in_messages(request: &Request, me: Rank, said: &[Option<Snapshot>]) -> Option<Error> {
    let (kind, peer) = (request.call.kind, request.call.root);
    let messages = |rank: Rank, kind: Kind, with: Rank| {
        let recent = said.get(rank as usize).and_then(Option::as_ref).map(|snapshot| &snapshot.recent);
        let calls = recent.into_iter().flatten();
        calls.filter(move |call| call.descriptor.kind == kind && call.descriptor.root == with)
    };
    let mine = messages(me, kind, peer).filter(|call| call.sequence <= request.sequence);
    let mut pairs = mine.filter_map(|mine| {
        let theirs = messages(peer, kind.opposite(), me).find(|theirs| theirs.sequence == mine.sequence)?;
        Some((mine.sequence, mine.descriptor, theirs.descriptor))
    });
    let (sequence, mine, theirs) =
        pairs.find(|(_, mine, theirs)| (theirs.count, theirs.data_type) != (mine.count, mine.data_type))?;
    // The same words on both sides.
    let (first, second) = if me < peer { ((me, mine), (peer, theirs)) } else { ((peer, theirs), (me, mine)) };
    let difference = format!("rank {}: {}; rank {}: {}", first.0, first.1, second.0, second.1);
    Some(Error::Mismatch { sequence, difference })
}

/// The mismatch in one collective.
fn difference_in(sequence: u64, mine: &Descriptor, said: &[Option<Snapshot>]) -> Option<Error> {
    let calls: Vec<(Rank, Descriptor)> = said
        .iter()
        .enumerate()
        .filter_map(|(rank, snapshot)| Some((rank as Rank, snapshot.as_ref()?.find(sequence)?)))
        .collect();
    if calls.iter().all(|(_, descriptor)| descriptor == mine) {
        return None;
    }
    let mut kinds: Vec<(Descriptor, Vec<Rank>)> = Vec::new();
    for (rank, descriptor) in calls {
        match kinds.iter_mut().find(|(known, _)| *known == descriptor) {
            Some((_, ranks)) => ranks.push(rank),
            None => kinds.push((descriptor, vec![rank])),
        }
    }
    kinds.sort_by_key(|(_, ranks)| ranks.len());
    let side = |(descriptor, ranks): &(Descriptor, Vec<Rank>)| {
        format!("rank{} {}: {descriptor}", if ranks.len() == 1 { "" } else { "s" }, list(ranks))
    };
    let difference = kinds.iter().map(side).collect::<Vec<_>>().join("; ");
    Some(Error::Mismatch { sequence, difference })
}

#[cfg(test)]
mod tests {
    use consort_kernels::DataType;

    use super::*;
    use crate::communicator::routes::ProcessRoutes;
    use crate::planner::Planner;
    use crate::{Communicator, Options};
    use consort_control::membership::process::Process;
    use consort_control::membership::wire::Message;
    use consort_control::recorder::AgedEntry;
    use consort_settings::options::Settings;
    use consort_types::call::Call;

    /// Of two messages that never come, the second started while the first waited.
    #[test]
    fn one_report_is_made_for_all_that_is_under_way() {
        let limit = Duration::from_millis(600);
        let options = Options::default().timeout(Duration::from_secs(60)).report_after(limit);
        let ranks = Communicator::local_with(3, &options).expect("ranks");
        let core = ranks[0].core();
        let first = ranks[0].start_receive(vec![0u8; 10], 1).expect("started");
        std::thread::sleep(limit / 2);
        let second = ranks[0].start_receive(vec![0u8; 10], 2).expect("started");
        let reported = || core.idle_engine().reports_of_queued();
        let until = |ready: &dyn Fn(&[bool]) -> bool| {
            let began = Instant::now();
            while !ready(&reported()) {
                assert!(began.elapsed() < Duration::from_secs(50), "no report is made");
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        until(&|reported| reported.contains(&true));
        let report = core.group.report().expect("a report");
        until(&|reported| *reported == [true, true]);
        assert!(Arc::ptr_eq(&report, &core.group.report().expect("a report")), "another one was made");
        ranks[0].abort("enough");
        assert!(first.wait().is_err() && second.wait().is_err());
    }

    #[test]
    fn a_link_that_breaks_blames_only_those_who_left_too_early() {
        let process = Process::acquire(None).expect("a process");
        let other = Call::new(Kind::Barrier, DataType::Int8, None, 1, 0).descriptor();
        let (entered, ended) = (Duration::ZERO, Some(Duration::ZERO));
        let other = AgedEntry { sequence: 1, descriptor: other, entered, ended, failed: false };
        // Having made less, the same and something else.
        for (finished, recent) in [(0, vec![]), (1, vec![]), (1, vec![other])] {
            let ranks = Communicator::local(2).expect("two ranks");
            let group = ranks[0].core().group.clone();
            let settings = Settings::resolve(&Options::default()).expect("settings");
            let routes = ProcessRoutes::new(process.shared.clone(), &settings);
            let planner = Planner::of_process();
            let mut engine = Engine::new(group.clone(), Box::new(routes), settings, planner);
            let request = Some(engine.enter(Call::new(Kind::Barrier, DataType::Int8, None, 0, 0), 1));
            let broken = || Broken { peer: 1, error: TransportError::PeerClosed { transport: "tcp" } };
            let now = Instant::now();
            let trouble = Trouble::Broken { request: request.map(Box::new), broken: broken() };
            let mut ending = begin(&engine, trouble, &Watch::default(), now);
            assert!(step(&engine, &mut ending, now).is_none() && !group.has_failed(), "no news yet");
            let same = recent.is_empty();
            let snapshot = Snapshot { entered: finished, finished, recent };
            group.receive(1, Message::Leave { snapshot });
            step(&engine, &mut ending, now);
            match group.failure().expect_err("there is no other way") {
                Error::Mismatch { sequence: 1, .. } if !same => {}
                Error::PeerLeft { rank: 1, operation, .. } if finished == 0 => {
                    assert_eq!((operation.name.as_str(), operation.sequence), ("barrier", 1));
                }
                Error::Link { from: 0, to: 1, transport, .. } if finished == 1 && same => {
                    assert_eq!(transport, "tcp")
                }
                error => panic!("finished {finished}: {error}"),
            }
        }
    }
}
