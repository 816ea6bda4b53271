//! Rows of tokens that go from one stage of a pipeline to the next, beside computation.
//!
//! Invariant: rows are named by the action that needs them. A send begins where rows are made, on a copy, and a receive some
//! messages before its rows are needed, in the order of [`program`](super::order::program): so messages of two ranks have one order,
//! which is that of their receives too. A rank waits for rows that it needs, which were asked for with all before them, and at the
//! end for its sends: so no rank waits for ever, as long as each action can begin.

use std::collections::VecDeque;

use consort::{Communicator, Work};

use super::order::{Action, Doing, Plan};
use crate::error::Result;
use crate::number::Number;

/// How many receives are started that the order has behind the next action: one for each neighbour.
const AHEAD: usize = 2;

/// Rows on their way.
pub(super) struct Hops<T: Number> {
    plan: Plan,
    /// Elements of a message.
    elements: usize,
    /// What rows this rank receives, by the actions that need them.
    expected: Vec<Action>,
    /// How many of these have been asked for in this step.
    asked: usize,
    coming: Vec<(Action, Work<Vec<T>>)>,
    going: VecDeque<Work<Vec<T>>>,
    /// The rows of the action that is next.
    here: Option<(Action, Vec<T>)>,
    /// Rooms without rows.
    free: Vec<Vec<T>>,
    sent_bytes: usize,
}

impl<T: Number> Hops<T> {
    /// Of a rank that does `doings`, with messages of `elements` elements each.
    pub(super) fn new(plan: Plan, doings: &[Doing], elements: usize) -> Self {
        let received = |doing: &Doing| match doing {
            Doing::Receive(action) => Some(*action),
            _ => None,
        };
        Hops {
            plan,
            elements,
            expected: doings.iter().filter_map(received).collect(),
            asked: 0,
            coming: Vec::new(),
            going: VecDeque::new(),
            here: None,
            free: Vec::new(),
            sent_bytes: 0,
        }
    }

    /// Begins a step: forgets rows that one which failed has left.
    pub(super) fn begin(&mut self) {
        (self.asked, self.sent_bytes) = (0, 0);
        (self.coming, self.going, self.here) = (Vec::new(), VecDeque::new(), None);
    }

    /// The bytes that this rank sent since [`Hops::begin`].
    pub(super) fn sent_bytes(&self) -> usize {
        self.sent_bytes
    }

    /// Starts to receive: the first `reached` messages, and some behind them.
    ///
    /// # Errors
    /// What can be seen at once.
    pub(super) fn ask(&mut self, comm: &Communicator, reached: usize) -> Result<()> {
        while self.asked < self.expected.len().min(reached + AHEAD) {
            let action = self.expected[self.asked];
            let from = self.plan.source(action).expect("an action without a source receives nothing");
            let room = self.room()?;
            self.coming.push((action, comm.start_receive(room, from as u32)?));
            self.asked += 1;
        }
        Ok(())
    }

    /// Waits for the rows for `action`, which this rank does next.
    ///
    /// # Errors
    /// What the message ends with: a neighbour that is lost is named.
    ///
    /// # Panics
    /// If they have not been asked for.
    pub(super) fn wait(&mut self, action: Action) -> Result<()> {
        let place = self.coming.iter().position(|(other, _)| *other == action);
        let (_, work) = self.coming.remove(place.expect("rows are asked for before they are needed"));
        self.here = Some((action, work.wait()?));
        Ok(())
    }

    /// Takes the rows for `action`, which have been waited for.
    ///
    /// # Panics
    /// If they have not.
    pub(super) fn receive(&mut self, action: Action, rows: &mut [T]) {
        let here = self.here.take().filter(|(of, _)| *of == action);
        let (_, room) = here.expect("rows are waited for before they are used");
        rows.copy_from_slice(&room);
        self.free.push(room);
    }

    /// Starts to send a copy of rows for `action`, which another rank does.
    ///
    /// # Errors
    /// What can be seen at once, or what an earlier send has ended with.
    pub(super) fn send(&mut self, comm: &Communicator, action: Action, rows: &[T]) -> Result<()> {
        let mut room = self.room()?;
        room.copy_from_slice(rows);
        self.going.push_back(comm.start_send(room, self.plan.rank(action.stage) as u32)?);
        self.sent_bytes += self.elements * size_of::<T>();
        Ok(())
    }

    /// Ends a step: waits until what was sent has been taken.
    ///
    /// # Errors
    /// As [`Hops::wait`].
    pub(super) fn end(&mut self) -> Result<()> {
        self.going.drain(..).try_for_each(|work| {
            self.free.push(work.wait()?);
            Ok(())
        })
    }

    /// A room for rows: of a send that is over, if there is one.
    fn room(&mut self) -> Result<Vec<T>> {
        if self.going.front().is_some_and(Work::is_done)
            && let Some(work) = self.going.pop_front()
        {
            self.free.push(work.wait()?);
        }
        Ok(self.free.pop().unwrap_or_else(|| vec![T::ZERO; self.elements]))
    }
}
