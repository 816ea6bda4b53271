//! Operations that run elsewhere, in a stream of a device, as the engine sees them.
//!
//! Invariant: the thread that has the engine polls them like any other operation; polling is a load or two. Absent: devices.

pub(crate) use super::trouble::Fault;
use crate::Rank;
use consort_types::error::Result;

/// An operation in a stream.
pub(crate) trait Watched: Send {
    /// How far it is. Called again and again until it is [`State::Done`].
    ///
    /// # Errors
    /// Why it cannot go on.
    fn poll(&mut self) -> std::result::Result<State, Fault>;

    /// How far it is before it is polled; at least [`State::Enqueued`] if the call may return at once.
    fn begins(&self) -> State {
        State::Entered
    }

    /// Whether the host's links move its data, so that it comes after what uses the same ones.
    fn uses_links(&self) -> bool {
        false
    }

    /// After [`State::Ready`]: the host has moved the data.
    ///
    /// # Errors
    /// Why it cannot go on.
    fn moved(&mut self) -> Result<()>;

    /// Whom it waits for, if it waits; all others where that is not known.
    fn peers(&self) -> Vec<Rank>;

    /// Where it stands, as far as the device has said.
    fn standing(&self) -> Option<Standing>;

    /// The communicator has failed: whatever of it waits on a device must go on to its end. May be called again.
    fn give_up(&mut self);

    /// Whether no device touches memory for it any more.
    fn is_over(&self) -> bool;

    /// The program's name.
    fn algorithm(&self) -> &str;
}

/// How far an operation in a stream is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum State {
    /// Not in its stream yet: the call must not return.
    Entered,
    /// The host is to move the data now.
    Ready,
    /// In its stream.
    Enqueued,
    /// Over.
    Done,
}

/// Where an operation stands on its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Standing {
    /// Whom it waits for.
    pub(crate) peer: Rank,
    pub(crate) step: u32,
    pub(crate) steps: u32,
    pub(crate) slice: u32,
    pub(crate) slices: u32,
}
