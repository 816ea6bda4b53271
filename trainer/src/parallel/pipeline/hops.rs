//! Rows of tokens that go from one stage of a pipeline to the next.
//!
//! Invariant: rows are named by the action that needs them. What [`Hops::send`] is given is a copy, and what comes is kept until
//! [`Hops::receive`] asks for it, so when rows travel is a matter of this file alone: all messages between two actions
//! side by side ([`Hops::meet`]), in the order of [`program`](super::order::program), in which no rank waits for ever whether or not
//! a send returns before the other side receives. Started messages would begin in `send`, and end in `receive`.

use std::collections::VecDeque;

use consort::Communicator;

use super::order::{Action, Doing, Plan};
use crate::error::Result;
use crate::number::Number;

/// Rows on their way.
pub(super) struct Hops<T> {
    plan: Plan,
    /// Elements of a message.
    elements: usize,
    /// Rows that are to be sent, or have come, by the action that needs them.
    rows: VecDeque<(Action, Vec<T>)>,
    /// Rooms without rows.
    free: Vec<Vec<T>>,
    sent_bytes: usize,
}

impl<T: Number> Hops<T> {
    /// Of a pipeline whose messages have `elements` elements each.
    pub(super) fn new(plan: Plan, elements: usize) -> Self {
        Hops { plan, elements, rows: VecDeque::new(), free: Vec::new(), sent_bytes: 0 }
    }

    /// Begins a step: forgets rows that one which failed has left.
    pub(super) fn begin(&mut self) {
        self.free.extend(self.rows.drain(..).map(|(_, rows)| rows));
        self.sent_bytes = 0;
    }

    /// The bytes that this rank sent since [`Hops::begin`].
    pub(super) fn sent_bytes(&self) -> usize {
        self.sent_bytes
    }

    /// Takes rows along for `action`, which another rank does.
    pub(super) fn send(&mut self, action: Action, rows: &[T]) {
        let mut room = self.room();
        room.copy_from_slice(rows);
        self.rows.push_back((action, room));
    }

    /// The rows for `action`, which this rank does.
    ///
    /// # Panics
    /// If they have not come.
    pub(super) fn receive(&mut self, action: Action, rows: &mut [T]) {
        let room = self.take(action);
        rows.copy_from_slice(&room);
        self.free.push(room);
    }

    /// Sends and receives `messages`, all of them together.
    ///
    /// # Errors
    /// What the first message that fails ends with: a neighbour that is lost is named.
    ///
    /// # Panics
    /// If there are no rows for one to be sent.
    pub(super) fn meet(&mut self, comm: &Communicator, messages: &[Doing]) -> Result<()> {
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        for message in messages {
            match *message {
                Doing::Send(action) => sent.push((action, self.take(action))),
                Doing::Receive(action) => received.push((action, self.room())),
                Doing::Compute(_) => {}
            }
        }
        let rank = |stage: usize| self.plan.rank(stage) as u32;
        consort::group(|group| {
            for (action, rows) in &sent {
                group.send(comm, rows, rank(action.stage))?;
            }
            for (action, rows) in &mut received {
                let from = self.plan.source(*action).expect("an action without a source receives nothing");
                group.receive(comm, rows, from as u32)?;
            }
            Ok(())
        })?;
        self.sent_bytes += sent.len() * self.elements * size_of::<T>();
        self.free.extend(sent.into_iter().map(|(_, rows)| rows));
        self.rows.extend(received);
        Ok(())
    }

    fn room(&mut self) -> Vec<T> {
        self.free.pop().unwrap_or_else(|| vec![T::ZERO; self.elements])
    }

    fn take(&mut self, action: Action) -> Vec<T> {
        let place = self.rows.iter().position(|(other, _)| *other == action);
        let rows = place.and_then(|place| self.rows.remove(place));
        rows.expect("a message is made before it is sent, and received before it is needed").1
    }
}
