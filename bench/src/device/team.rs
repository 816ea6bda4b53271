//! Ranks that one thread drives: nccl-tests' `-g`.
//!
//! Invariant: one thread at a time makes a team's calls, those of all its ranks in one group. Every rank of a team asks
//! for the same work, and the same number of times. Each rank has a thread for all else. The rank of a team of one makes
//! its calls at once. Absent: what is called.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use consort::Error;
use consort::device::{DeviceCommunicator, Stream, group};

use super::order::Order;

/// A rank's place on a device.
pub(crate) struct Seat {
    pub(super) comm: DeviceCommunicator,
    pub(super) stream: Stream,
}

/// Why a call has no result.
#[derive(Clone)]
pub(super) enum Ended {
    Refused(Error),
    /// Another rank of the team will not come.
    Gone,
}

/// Ranks that are driven together.
pub(crate) struct Team {
    seats: Vec<OnceLock<Seat>>,
    meeting: Mutex<Meeting>,
    changed: Condvar,
}

/// Which ranks have come for the next calls, and how the last calls ended.
#[derive(Default)]
struct Meeting {
    taken: usize,
    orders: Vec<Option<Order>>,
    /// The number of meetings that are over.
    over: u64,
    last: Option<Result<(), Ended>>,
    gone: bool,
}

/// A team for every `per_thread` of `ranks` ranks.
pub(crate) fn teams(ranks: u32, per_thread: u32) -> Vec<Arc<Team>> {
    (0..ranks.div_ceil(per_thread)).map(|_| Team::new(per_thread as usize)).collect()
}

impl Team {
    /// A team of `size` ranks.
    pub(crate) fn new(size: usize) -> Arc<Self> {
        let meeting = Meeting { orders: vec![None; size], ..Meeting::default() };
        Arc::new(Team {
            seats: (0..size).map(|_| OnceLock::new()).collect(),
            meeting: Mutex::new(meeting),
            changed: Condvar::new(),
        })
    }

    fn meeting(&self) -> MutexGuard<'_, Meeting> {
        self.meeting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next seat; its number. No more ranks come than there are seats.
    pub(super) fn take(&self, seat: Seat) -> usize {
        let mut meeting = self.meeting();
        let number = meeting.taken;
        meeting.taken += 1;
        drop(self.seats[number].set(seat));
        number
    }

    /// Says that a rank will not come again.
    pub(super) fn leave(&self) {
        self.meeting().gone = true;
        self.changed.notify_all();
    }

    /// Makes the calls of all ranks of the team `times` times, and returns when the streams of all ranks are empty.
    pub(super) fn repeat(&self, seat: usize, order: &Order, times: u64) -> Result<(), Ended> {
        if self.seats.len() == 1 {
            return self.call(&[Some(order.clone())], times);
        }
        let mut meeting = self.meeting();
        let number = meeting.over;
        meeting.orders[seat] = Some(order.clone());
        if meeting.orders.iter().all(Option::is_some) {
            let size = self.seats.len();
            let orders = std::mem::replace(&mut meeting.orders, vec![None; size]);
            drop(meeting);
            let result = self.call(&orders, times);
            let mut meeting = self.meeting();
            meeting.over += 1;
            meeting.last = Some(result.clone());
            self.changed.notify_all();
            return result;
        }
        let waits = |meeting: &mut Meeting| meeting.over == number && !meeting.gone;
        let meeting = self.changed.wait_while(meeting, waits).unwrap_or_else(PoisonError::into_inner);
        // `last` is this meeting's: the next one needs this rank too.
        match &meeting.last {
            Some(result) if meeting.over != number => result.clone(),
            _ => Err(Ended::Gone),
        }
    }

    fn call(&self, orders: &[Option<Order>], times: u64) -> Result<(), Ended> {
        let seats = self.seats.iter().filter_map(OnceLock::get);
        let all: Vec<(&Seat, &Order)> = seats.zip(orders.iter().flatten()).collect();
        let rounds = all.iter().map(|(_, order)| order.rounds()).max().unwrap_or(0);
        let make = || {
            for round in (0..times).flat_map(|_| 0..rounds) {
                group(|group| all.iter().try_for_each(|(seat, order)| order.call(round, seat, group)))?;
            }
            all.iter().try_for_each(|(seat, _)| seat.stream.synchronize())?;
            // A stream does not know how an operation ended.
            all.iter().try_for_each(|(seat, _)| seat.comm.communicator().status())
        };
        make().map_err(Ended::Refused)
    }
}
