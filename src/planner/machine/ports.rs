//! The ports of RDMA by which the ranks of a communicator send and receive.
//!
//! Invariant: a pure function of the table that all ranks have, so it is the same on all of them, whatever their ports are. A rank takes what
//! its transport takes: the best port in its turn, and several where there are more ports than ranks. Absent: which ports there are.

use std::collections::HashMap;

use consort_algorithms::topology::PortOf;
use consort_control::bootstrap::{Member, turn};
use consort_transports::Verbs;

/// Bytes a second of a megabit a second, less 3 % for headers.
const BYTES_S: u64 = 121_250;

/// The port of each of these ranks of the table; empty where none of them says any. One that says none has one of its own.
pub(super) fn taken(table: &[Member], ranks: &[u32]) -> Vec<PortOf> {
    if ranks.iter().all(|rank| table[*rank as usize].ports.is_empty()) {
        return Vec::new();
    }
    let mut numbers: HashMap<([u8; 16], Option<u32>, u32), u32> = HashMap::new();
    let port = |rank: &u32| {
        let member = &table[*rank as usize];
        // Ports that are left are dealt out among the ranks, each to one.
        let mut count = 1;
        let port = match member.ports.len() {
            0 => None,
            // Only who has a choice needs its turn, which is counted.
            1 => Some(member.ports[0]),
            several => {
                let (turn, ranks) = turn(table, *rank as usize);
                count = (several / ranks).clamp(1, Verbs::PORTS_MAX);
                Some(member.ports[turn % several])
            }
        };
        let own = if port.is_none() { *rank } else { 0 };
        let next = numbers.len() as u32;
        let number = *numbers.entry((member.host_key, port.map(|port| port.mark), own)).or_insert(next);
        let bytes_s =
            port.filter(|port| port.mbits > 0).map(|port| u64::from(port.mbits) * BYTES_S * count as u64);
        PortOf { number, bytes_s }
    };
    ranks.iter().map(port).collect()
}
