//! Stream-ordered operations of a device, as the engine sees them.
//!
//! Invariant: the thread that has the engine polls them like any other operation; polling is a load or two. Absent: devices.

pub(crate) use super::trouble::Fault;
use crate::Rank;
use consort_types::error::Result;

/// An operation in a stream.
pub(crate) trait Watched: Send {
    /// The operation's state. Called again and again until it is [`State::Done`].
    ///
    /// # Errors
    /// The operation cannot go on, for the reason that the fault says.
    fn poll(&mut self) -> std::result::Result<State, Fault>;

    /// The state before the first poll; at least [`State::Enqueued`] if the call may return at once.
    fn begins(&self) -> State {
        State::Entered
    }

    /// The number of its device in this process: freeing what it holds may wait for all operations there.
    fn device(&self) -> usize;

    /// Whether the host's links move its data. The operation then comes after other operations on the same links.
    fn uses_links(&self) -> bool {
        false
    }

    /// After [`State::Ready`]: the host has moved the data.
    ///
    /// # Errors
    /// The operation cannot go on, for the reason that the error says.
    fn moved(&mut self) -> Result<()>;

    /// The ranks that the operation waits for, if it waits; all peers where that is not known.
    fn peers(&self) -> Vec<Rank>;

    /// Where the operation stands, as far as the device has said.
    fn standing(&self) -> Option<Standing>;

    /// The communicator has failed: kernels and streams that wait for the operation must go on to their ends. May be called
    /// again.
    fn give_up(&mut self);

    /// Whether no device touches memory for the operation any more.
    fn is_over(&self) -> bool;

    /// The program's name.
    fn algorithm(&self) -> &str;
}

/// The state of an operation in a stream.
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
    /// The rank that the device waits for.
    pub(crate) peer: Rank,
    pub(crate) step: u32,
    pub(crate) steps: u32,
    pub(crate) slice: u32,
    pub(crate) slices: u32,
}
