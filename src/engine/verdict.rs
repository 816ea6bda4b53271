//! Who is to blame when an operation does not go on: asks everybody what they are doing and compares.
//!
//! Invariant: runs only when a task has been blocked for a while, never on the fast path.

use std::time::{Duration, Instant};

use super::Engine;
use super::task::{Request, Task};
use crate::Rank;
use crate::call::Kind;
use crate::error::{Error, Result, list, seconds};
use crate::recorder::{Descriptor, Snapshot};

/// How long a task is blocked before it asks the others the first time.
const FIRST_LOOK: Duration = Duration::from_millis(20);
/// How often it asks after that.
const INTERVAL: Duration = Duration::from_millis(100);
/// After how long an operation that does not finish is reported, before it fails.
const REPORT_AFTER: Duration = Duration::from_secs(60);
/// How long a found mismatch waits for everybody's answer.
const ANSWERS: Duration = Duration::from_millis(500);

/// When an operation started and when it was last looked at.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Watch {
    started: Option<Instant>,
    next: Option<Instant>,
    asked: bool,
    /// Whether it was reported that this takes long.
    reported: bool,
    /// A peer that had left when the task was looked at the last time.
    left: Option<Rank>,
}

impl Watch {
    pub(crate) fn reset(&mut self) {
        *self = Watch::default();
    }

    /// Whether it is time to look. The clock starts with the first call, when a task is first blocked.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        self.started.get_or_insert(now);
        now >= *self.next.get_or_insert(now + FIRST_LOOK)
    }

    fn waited(&self, now: Instant) -> Duration {
        self.started.map_or(Duration::ZERO, |started| now - started)
    }
}

/// Looks at the clock and at the others.
pub(crate) fn look(task: &mut Task, engine: &mut Engine, now: Instant) -> Result<()> {
    engine.group.failure()?;
    let operation = task.operation();
    if let Some(blocked) = task.blocked(&engine.links)
        && blocked.drained
        && engine.group.has_left(blocked.peer)
    {
        if task.watch.left == Some(blocked.peer) {
            return Err(Error::PeerLeft { rank: blocked.peer, operation });
        }
        // Everything that it sent before it left is there now, and may have come since the task was blocked.
        task.watch.left = Some(blocked.peer);
        task.watch.next = Some(now);
        return Ok(());
    }
    if task.watch.asked {
        for request in task.requests() {
            if let Some(error) = difference(request, engine, &engine.group.answers()) {
                return Err(settle(request, engine).unwrap_or(error));
            }
        }
    }
    let waited = task.watch.waited(now);
    let timeout = engine.settings.timeout;
    if waited >= timeout {
        let verdict = blame(task, engine);
        return Err(Error::Timeout { operation, waited, verdict });
    }
    if waited >= REPORT_AFTER && !task.watch.reported {
        task.watch.reported = true;
        tracing::warn!(
            rank = engine.group.rank,
            "{operation} has not finished for {}: {}",
            seconds(waited),
            blame(task, engine)
        );
    }
    engine.group.ask();
    task.watch.asked = true;
    // The last look before the deadline leaves time for the answers.
    let next = (now + INTERVAL).min(now + (timeout - waited).max(Duration::from_millis(1)));
    task.watch.next = Some(next);
    Ok(())
}

/// A peer's bytes carried the tag of another operation: finds out which.
pub(crate) fn mismatch(engine: &Engine, request: &Request, peer: Rank) -> Error {
    settle(request, engine).unwrap_or_else(|| Error::Mismatch {
        sequence: request.sequence,
        difference: format!(
            "rank {} is in {}, and rank {peer} sent data of another operation",
            engine.group.rank,
            request.call.descriptor()
        ),
    })
}

/// Waits a bounded time until everybody has answered (or one of them reported the failure), then says who
/// differs.
fn settle(request: &Request, engine: &Engine) -> Option<Error> {
    let until = Instant::now() + ANSWERS;
    engine.group.ask();
    loop {
        if let Err(error) = engine.group.failure() {
            return Some(error);
        }
        let answers = engine.group.answers();
        let complete = answers.iter().all(Option::is_some);
        let found = difference(request, engine, &answers);
        if (complete && found.is_some()) || Instant::now() >= until {
            return found;
        }
        engine.shared.pause(Duration::from_millis(2));
        if complete {
            engine.group.ask();
        }
    }
}

/// The first mismatch that the answers show, if they show one: in this operation, or in one before it that
/// every rank could finish alone.
fn difference(request: &Request, engine: &Engine, answers: &[Option<Snapshot>]) -> Option<Error> {
    let mine = request.call.descriptor();
    let me = engine.group.rank;
    if matches!(request.call.kind, Kind::Send | Kind::Receive) {
        let peer = mine.root;
        let opposite = if request.call.kind == Kind::Send { Kind::Receive } else { Kind::Send };
        let theirs = answers[peer as usize].as_ref()?.pairs.iter();
        let (sequence, theirs) = theirs.copied().find(|(sequence, theirs)| {
            theirs.kind == opposite && theirs.root == me && *sequence == request.sequence
        })?;
        let differs = (theirs.count, theirs.data_type) != (mine.count, mine.data_type);
        let difference = format!("rank {me}: {mine}; rank {peer}: {theirs}");
        return differs.then_some(Error::Mismatch { sequence, difference });
    }
    let own = answers[me as usize].as_ref()?.recent.iter();
    own.filter(|(sequence, _)| *sequence <= request.sequence)
        .find_map(|(sequence, mine)| difference_in(*sequence, mine, answers))
        // An operation started long before others is no longer among the last ones here.
        .or_else(|| difference_in(request.sequence, &mine, answers))
}

/// The mismatch in one collective.
fn difference_in(sequence: u64, mine: &Descriptor, answers: &[Option<Snapshot>]) -> Option<Error> {
    let calls: Vec<(Rank, Descriptor)> = answers
        .iter()
        .enumerate()
        .filter_map(|(rank, answer)| Some((rank as Rank, answer.as_ref()?.find(sequence)?)))
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

/// Who is waited for, in one sentence.
fn blame(task: &Task, engine: &Engine) -> String {
    let answers = engine.group.answers();
    let blocked = task.blocked(&engine.links).map(|blocked| blocked.peer);
    let Some(request) = task.requests().next() else { return "nothing is known".into() };
    let silent = engine.group.silent();
    let last = |rank: Rank| {
        let answer = answers[rank as usize].as_ref();
        let collective = answer.and_then(|answer| answer.recent.last());
        let call = match collective {
            Some((sequence, descriptor)) => {
                format!("its last call was {} #{sequence}", descriptor.kind.name())
            }
            None => "it has made no collective call yet".into(),
        };
        let messages = answer.into_iter().flat_map(|answer| &answer.pairs);
        messages.fold(call, |text, (sequence, message)| {
            format!("{text}, its last message {message} (#{sequence})")
        })
    };
    if matches!(request.call.kind, Kind::Send | Kind::Receive) {
        let peer = request.call.root;
        return if silent.contains(&peer) {
            format!("rank {peer} does not answer: it is stopped, or its host is overloaded")
        } else {
            format!("rank {peer} has not made the matching call; {}", last(peer))
        };
    }
    let entered = |rank: Rank| answers[rank as usize].as_ref().map(|answer| answer.entered);
    let mut absent: Vec<Rank> = (0..engine.group.size())
        .filter(|rank| !silent.contains(rank))
        .filter(|rank| entered(*rank).is_some_and(|entered| entered < request.sequence))
        .collect();
    // Whoever is furthest behind keeps the others who are behind.
    let last_entered = absent.iter().filter_map(|rank| entered(*rank)).min();
    absent.retain(|rank| entered(*rank) == last_entered);
    let mut sentences = Vec::new();
    if !silent.is_empty() {
        let (ranks, verb) = if silent.len() == 1 { ("rank", "does") } else { ("ranks", "do") };
        sentences
            .push(format!("{ranks} {} {verb} not answer: stopped, or on an overloaded host", list(&silent)));
    }
    if let Some(first) = absent.first() {
        let (ranks, verb) = if absent.len() == 1 { ("rank", "has") } else { ("ranks", "have") };
        let operation = request.operation();
        let who = format!("{ranks} {} {verb}", list(&absent));
        sentences.push(format!("{who} not entered {operation}; {}", last(*first)));
    }
    if sentences.is_empty() {
        sentences.push(match blocked {
            Some(peer) => {
                format!("all ranks are in it and rank {} waits for data from rank {peer}", engine.group.rank)
            }
            None => "all ranks are in it and it moves, but too slowly for this deadline".into(),
        });
    }
    sentences.join("; ")
}

/// Gives the control plane a moment to say what became of a peer: that it died, or left.
pub(crate) fn wait_for_failure(engine: &Engine, peer: Rank, patience: Duration) -> Result<()> {
    let until = Instant::now() + patience;
    loop {
        engine.group.failure()?;
        if engine.group.has_left(peer) || Instant::now() >= until {
            return Ok(());
        }
        engine.shared.pause(Duration::from_millis(2));
    }
}
