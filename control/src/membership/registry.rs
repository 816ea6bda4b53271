//! All open communicators of a process, so that it can say what it does on any of them.

use std::sync::{Arc, Mutex, Weak};

use super::group::Group;
use super::lock;
use crate::report::evidence::Position;

/// Positions on other communicators in one answer, at most.
pub(super) const POSITIONS_MAX: usize = 256;

#[derive(Default)]
pub struct Registry {
    groups: Mutex<Vec<Weak<Group>>>,
}

impl Registry {
    pub fn register(&self, group: &Arc<Group>) {
        let mut groups = lock(&self.groups);
        groups.retain(|group| group.strong_count() > 0);
        groups.push(Arc::downgrade(group));
    }

    /// What every rank of this process does on every communicator: on the one that is asked about all, then up to
    /// `POSITIONS_MAX`, those in a call first.
    pub fn positions(&self, asked: u64) -> Vec<Position> {
        let groups: Vec<Arc<Group>> = {
            let groups = lock(&self.groups);
            groups.iter().filter_map(Weak::upgrade).collect()
        };
        let mut positions: Vec<Position> = groups.iter().map(|group| group.position()).collect();
        let others = |position: &Position| position.communicator != asked;
        positions.sort_by_key(|position| {
            (others(position), position.open.is_none(), position.communicator, position.rank)
        });
        let asked = positions.iter().take_while(|position| !others(position)).count();
        positions.truncate(asked.max(POSITIONS_MAX));
        positions
    }
}
