//! The connections that a call makes, and what they keep in memory.
//!
//! Invariant: counted from the schedule that runs and from the layout of its mailboxes, as links are made by plan alone. Absent: making
//! them, and what short messages between ranks of one host take.

use std::collections::BTreeSet;

use consort_algorithms::catalogue::{self, Algorithm};
use consort_algorithms::{Collective, Rank, Transfer};
use consort_transports::Verbs;

use super::super::choice::channel_base;
use super::super::{Slots, machine::Between};
use super::{Chosen, Planning, size_class};
use consort_settings::options::TransportChoice;
use consort_types::error::Result;

/// The most transfers of a schedule that are looked at one by one.
const TRANSFERS_MAX: f64 = 1e8;

/// The connections of one rank for calls of one shape, of the rank that has most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connections {
    /// The algorithm of these calls.
    pub algorithm: Algorithm,
    /// Ranks to which it has connections that are no memory of both.
    pub peers: u32,
    /// Connections to them; of RDMA each has one queue pair, or several where ranks have several ports or ask for more.
    pub connections: u32,
    /// Bytes of each connection's mailbox, at each side.
    pub mailbox_bytes: u64,
    /// Bytes that are registered and pinned for all of them together, with one queue pair each; 0 where nothing is.
    pub registered_bytes: u64,
}

impl Planning {
    /// The connections that a rank makes for calls with blocks of `block_bytes` bytes, rooted ones at rank 0; none where the schedule is too
    /// long to be counted.
    ///
    /// # Errors
    /// As [`Planning::explain`].
    pub fn connections(&self, collective: Collective, block_bytes: u64) -> Result<Option<Connections>> {
        let Chosen { algorithm, slot_bytes, short, .. } = self.choose(collective, size_class(block_bytes))?;
        let Some((peers, connections)) = self.counted(algorithm, collective) else { return Ok(None) };
        let slots = Slots::of(channel_base(self, algorithm, slot_bytes, short), false);
        let mailbox_bytes = (slots.count * slots.bytes) as u64;
        let registered = match self.machine.between {
            Between::Rdma => Verbs::registered_bytes(mailbox_bytes),
            Between::Memory | Between::Sockets => 0,
        };
        let registered_bytes = registered * u64::from(connections);
        Ok(Some(Connections { algorithm, peers, connections, mailbox_bytes, registered_bytes }))
    }

    /// The peers and the connections of the rank that has most.
    fn counted(&self, algorithm: Algorithm, collective: Collective) -> Option<(u32, u32)> {
        let ranks = self.ranks_of(collective);
        let is_apart = |transfer: &Transfer| transfer.from != transfer.to && !self.shares_memory(*transfer);
        let mut links: Vec<BTreeSet<(Rank, u16)>> = vec![BTreeSet::new(); ranks as usize];
        let mut take = |rank: Rank, Transfer { from, to, channel, .. }: Transfer| {
            let peer = if from == rank { to } else { from };
            links[rank.index()].insert((peer, channel.0));
        };
        match algorithm.regular(collective, ranks) {
            // All ranks do what rank 0 does; who has memory in common with neighbours is not the same for all.
            Some(regular) if self.transport.is_by_messages() => regular.own(Rank(0), &mut |own| {
                if is_apart(&own.transfer) {
                    take(Rank(0), own.transfer);
                }
            }),
            _ => {
                let steps = catalogue::formula(algorithm, collective, ranks).map_or(1.0, |of| of.steps());
                let most = if algorithm.starts_all_at_once() { f64::from(ranks) } else { steps };
                if most * f64::from(ranks) > TRANSFERS_MAX {
                    return None;
                }
                let schedule = algorithm.schedule(collective, ranks);
                let all = schedule.rounds.iter().flat_map(|round| &round.transfers).filter(|of| is_apart(of));
                for transfer in all {
                    for end in [transfer.from, transfer.to] {
                        take(end, *transfer);
                    }
                }
            }
        }
        let peers =
            |of: &BTreeSet<(Rank, u16)>| of.iter().map(|(peer, _)| *peer).collect::<BTreeSet<_>>().len();
        let of_rank = links.iter().map(|of| (of.len() as u32, peers(of) as u32));
        of_rank.max().map(|(connections, peers)| (peers, connections))
    }

    /// Whether both ends of a transfer have mapped one memory.
    fn shares_memory(&self, Transfer { from, to, .. }: Transfer) -> bool {
        let host = |rank: Rank| match &self.machine.host_of[..] {
            [] => {
                rank.0
                    / if self.machine.hosts <= 1 { self.machine.ranks } else { self.machine.per_box.max(1) }
            }
            known => known[rank.index()],
        };
        let by_memory = matches!(self.transport, TransportChoice::Auto | TransportChoice::SharedMemory);
        by_memory && host(from) == host(to)
    }
}
