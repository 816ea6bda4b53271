//! What a communicator did: the flight record of this rank, and the stragglers.

use std::time::{Duration, Instant};

use super::Communicator;
use crate::engine::wires::WireRecord;
use consort_control::membership::group::Group;
use consort_control::membership::wire::Message;
use consort_control::recorder::Snapshot;
use consort_control::trace::{self, Arrivals, FlightRecord, Stragglers};
use consort_types::error::Result;

/// The longest wait for the answers of the other ranks.
const ANSWERS: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_micros(50);
/// The most questions to all ranks: of several answers the one that came fastest is the most exact.
const ROUNDS: usize = 5;
/// An answer with at most this error needs no further question.
const EXACT: Duration = Duration::from_micros(20);

impl Communicator {
    /// The last operations of this rank: which, when, how they ended. Any thread may ask at any time, also while
    /// another waits in a call. [`Options::trace_events`](crate::Options::trace_events) says how many are kept.
    ///
    /// ```
    /// let comm = consort::Communicator::local(1)?.remove(0);
    /// comm.barrier()?;
    /// let record = comm.flight_record()?;
    /// assert_eq!(record.operations[0].call.name, "barrier");
    /// println!("{record}");
    /// # consort::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked).
    pub fn flight_record(&self) -> Result<FlightRecord> {
        self.core.check_process()?;
        Ok(FlightRecord::of(&self.core.group, usize::MAX))
    }

    /// What the wires from this rank to ranks on other hosts have carried, where the system counts it: over TCP. How fast, with
    /// what round trips, and whether one has become slow. A wire at much less than its usual rate in calls of the same kind is
    /// also warned of, and is in the [report](Communicator::report) and the trace of every rank.
    ///
    /// ```
    /// let comm = consort::Communicator::local(1)?.remove(0);
    /// assert!(comm.wires()?.is_empty(), "it has no other host");
    /// # consort::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ConcurrentUse`](crate::Error::ConcurrentUse) while another thread is in a data call; what
    /// [`Communicator::status`] says.
    pub fn wires(&self) -> Result<Vec<WireRecord>> {
        self.core.check()?;
        self.core.wires()
    }

    /// The ranks that keep the others waiting: how late each came to the last collectives, 128 at most, that all ranks
    /// that answer have entered. Asks all ranks, and takes half a second when ranks do not answer. Any thread may ask at
    /// any time, also while another waits in a call. [`Communicator::report`] names a rank that has not come yet to the
    /// operation under way.
    ///
    /// ```
    /// let comm = consort::Communicator::local(1)?.remove(0);
    /// comm.barrier()?;
    /// let stragglers = comm.stragglers()?;
    /// assert_eq!((stragglers.collectives, stragglers.latest), (1, None));
    /// println!("{stragglers}");
    /// # consort::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked).
    pub fn stragglers(&self) -> Result<Stragglers> {
        self.core.check_process()?;
        let group = &self.core.group;
        let arrivals: Vec<Arrivals> = heard(group).into_iter().flatten().collect();
        Ok(trace::analyse(group.name(), group.size(), group.rank, &arrivals))
    }
}

/// The times at which each rank that answers entered collectives, by this rank's clock.
fn heard(group: &Group) -> Vec<Option<Arrivals>> {
    let clock = group.clock();
    let start = clock.now();
    let mut best: Vec<Option<Arrivals>> = vec![None; group.size() as usize];
    for _ in 0..ROUNDS {
        let first = group.member.next_token();
        let mut asked = vec![None; group.size() as usize];
        for rank in group.silent_since(u64::MAX) {
            // A question with a larger token was asked later.
            let before = clock.now();
            let token = group.member.next_token();
            asked[rank as usize] = Some((before, token));
            group.send(rank, Message::Query { token });
        }
        while !group.silent_since(first).is_empty() && clock.now() < start + ANSWERS {
            std::thread::sleep(PAUSE);
        }
        for (rank, answer) in (0..).zip(group.answers()) {
            if let (Some(answer), Some((before, token))) = (answer, asked[rank])
                && answer.token >= token
            {
                keep(&mut best[rank], arrivals(group, rank, start, [before, answer.at], &answer.snapshot));
            }
        }
        let before = clock.now();
        let snapshot = group.recorder.snapshot();
        let own = arrivals(group, group.rank as usize, start, [before, clock.now()], &snapshot);
        keep(&mut best[group.rank as usize], own);
        let exact =
            best.iter().all(|arrivals| arrivals.as_ref().is_some_and(|arrivals| arrivals.error <= EXACT));
        if exact || clock.now() >= start + ANSWERS {
            break;
        }
    }
    best
}

fn keep(best: &mut Option<Arrivals>, arrivals: Arrivals) {
    if best.as_ref().is_none_or(|best| arrivals.error < best.error) {
        *best = Some(arrivals);
    }
}

/// A rank's ages as times since `start`. The rank took the snapshot at some time between `asked` and `came`.
fn arrivals(
    group: &Group,
    rank: usize,
    start: Instant,
    [asked, came]: [Instant; 2],
    snapshot: &Snapshot,
) -> Arrivals {
    let error = came.saturating_duration_since(asked) / 2;
    let at = (asked + error).saturating_duration_since(start).as_nanos() as i64;
    let member = &group.member.table[group.members[rank] as usize];
    Arrivals {
        rank: rank as u32,
        host: member.host.clone(),
        pid: member.pid,
        error,
        entered: snapshot.collectives().map(|c| (c.sequence, at - c.entered.as_nanos() as i64)).collect(),
    }
}
