//! What a communicator did: the flight record of this rank, and who keeps the others waiting.

use std::time::{Duration, Instant};

use super::Communicator;
use consort_control::membership::group::Group;
use consort_control::membership::wire::Message;
use consort_control::recorder::Snapshot;
use consort_control::trace::{self, FlightRecord, Stragglers, Told};
use consort_types::error::Result;

/// How long the others' answers are waited for.
const ANSWERS: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_micros(50);
/// How often all ranks are asked, at most: of several answers the one that came fastest is the most exact.
const ROUNDS: usize = 5;
/// Exact enough.
const EXACT: Duration = Duration::from_micros(20);

impl Communicator {
    /// The last operations of this rank: which, when, how they ended. Any thread may ask at any time, also while
    /// another waits in a call. How many are kept says [`Options::trace_events`](crate::Options::trace_events).
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

    /// Which ranks keep the others waiting: how late each came to the last collectives, 128 at most, that all
    /// ranks that answer have entered. Asks all ranks; any thread may do it at any time, also while another waits
    /// in a call, and it takes half a second when ranks do not answer. A rank that has not come yet to the
    /// operation under way is what [`Communicator::report`] names.
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
        let told: Vec<Told> = heard(group).into_iter().flatten().collect();
        Ok(trace::analyse(group.name(), group.size(), group.rank, &told))
    }
}

/// What each rank that answers says of when it entered collectives, by this rank's clock.
fn heard(group: &Group) -> Vec<Option<Told>> {
    let clock = group.clock();
    let start = clock.now();
    let mut best: Vec<Option<Told>> = vec![None; group.size() as usize];
    for _ in 0..ROUNDS {
        let first = group.member.next_token();
        let mut asked = vec![None; group.size() as usize];
        for rank in group.silent_since(u64::MAX) {
            // A later question than this one was asked later too.
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
                keep(&mut best[rank], told(group, rank, start, [before, answer.at], &answer.snapshot));
            }
        }
        let before = clock.now();
        let snapshot = group.recorder.snapshot();
        let own = told(group, group.rank as usize, start, [before, clock.now()], &snapshot);
        keep(&mut best[group.rank as usize], own);
        let exact = best.iter().all(|told| told.as_ref().is_some_and(|told| told.error <= EXACT));
        if exact || clock.now() >= start + ANSWERS {
            break;
        }
    }
    best
}

fn keep(best: &mut Option<Told>, told: Told) {
    if best.as_ref().is_none_or(|best| told.error < best.error) {
        *best = Some(told);
    }
}

/// A rank's ages as times since `start`. They were told somewhere between `asked` and `came`.
fn told(
    group: &Group,
    rank: usize,
    start: Instant,
    [asked, came]: [Instant; 2],
    snapshot: &Snapshot,
) -> Told {
    let error = came.saturating_duration_since(asked) / 2;
    let at = (asked + error).saturating_duration_since(start).as_nanos() as i64;
    let member = &group.member.table[group.members[rank] as usize];
    Told {
        rank: rank as u32,
        host: member.host.clone(),
        pid: member.pid,
        error,
        entered: snapshot.collectives().map(|c| (c.sequence, at - c.entered.as_nanos() as i64)).collect(),
    }
}
