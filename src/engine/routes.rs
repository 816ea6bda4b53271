//! Which transport leads to which rank.
//!
//! Invariant: both ends of a link choose the same transport, because they see the same distance.

use std::sync::Arc;

use consort_transports::{MemoryLender, Transport};

use crate::Rank;
use consort_control::membership::group::Group;
use consort_types::error::Result;

/// The ways out of a process.
pub trait Routes: Send {
    /// Whether the link to `rank` can be stored to, once it is there: known beforehand, so that plans can be made
    /// for it.
    fn is_mapped(&self, group: &Group, rank: Rank) -> bool;

    /// What carries the link to `rank`.
    fn transport(&mut self, group: &Group, rank: Rank) -> Result<Arc<dyn Transport>>;

    /// Where memory is lent to the other processes of this host and fetched from them, if that is possible.
    fn memory(&self) -> Option<&dyn MemoryLender> {
        None
    }

    /// Forgets everything without closing what a parent process still uses.
    fn abandon(&mut self);
}
