//! The ports of RDMA that a rank may use, as all ranks know them.
//!
//! Invariant: few a rank, whatever a peer sends; a rank's turn follows from the table alone. Absent: which ports there are (`transports`), and
//! what they mean to a plan.

use super::wire::Member;
use crate::codec::wire_struct;

/// Ports that a rank says at most; it takes the first ones then, as all are alike.
pub(super) const PORTS_MAX: usize = 8;

/// A port of an adapter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct AdapterPort {
    /// What tells it from other ports of its host.
    pub mark: u32,
    /// Megabits a second in each direction; 0 where they are unknown.
    pub mbits: u32,
}

wire_struct!(AdapterPort { mark, mbits });

impl AdapterPort {
    /// As many of these as a rank may say.
    pub fn said(ports: impl IntoIterator<Item = AdapterPort>) -> Vec<AdapterPort> {
        ports.into_iter().take(PORTS_MAX).collect()
    }
}

/// How many ranks of the table that are on the host and memory node of `rank` come before it, and how many there are with it: ranks that are as
/// near to some ports take turns among them.
///
/// # Panics
/// Where the table has no such rank.
pub fn turn(table: &[Member], rank: usize) -> (usize, usize) {
    let own = &table[rank];
    let is_beside = |other: &&Member| other.host_key == own.host_key && other.place.node == own.place.node;
    (table[..rank].iter().filter(is_beside).count(), table.iter().filter(is_beside).count())
}
