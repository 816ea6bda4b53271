//! Which links a plan uses: what two ranks that share memory send each other goes over one.
//!
//! Invariant: both ranks count the channels between them alike. Absent: links.

use std::collections::BTreeSet;

use consort_algorithms::plan::{CounterId, CounterRole, CounterUse, Plan};
use consort_algorithms::{Channel, Rank as Relative};

use super::bound::Bearings;
use super::links::Key;
use crate::Rank;

/// Which links a plan uses.
///
/// The slots of a link migrate between its two sides, so what goes to a rank whose memory is reached shares a link with what
/// comes from there: the first channel to it with the first channel from it, and so on. Both ranks count alike, as the one's
/// channels from the other are the other's channels to the one. Other links carry the channel of their number.
pub(crate) struct Pairing<'a> {
    plan: &'a Plan,
    pub(super) bearings: Bearings,
    channel_base: u16,
    is_mapped: &'a dyn Fn(Rank) -> bool,
    /// What goes to each relative rank and what comes from there, by rank, direction and channel.
    ways: BTreeSet<(u32, bool, u16)>,
}

impl<'a> Pairing<'a> {
    pub(crate) fn new(
        plan: &'a Plan,
        bearings: Bearings,
        channel_base: u16,
        is_mapped: &'a dyn Fn(Rank) -> bool,
    ) -> Self {
        let way = |counter: &CounterUse| {
            let CounterId { owner, writer, channel, role } = counter.id;
            // A counter of what is ready is its reader's; one of credit is its writer's.
            let (filler, reader) =
                if role == CounterRole::Credit { (owner, writer) } else { (writer, owner) };
            let goes = filler == plan.rank;
            (if goes { reader.0 } else { filler.0 }, goes, channel.0)
        };
        Pairing { plan, bearings, channel_base, is_mapped, ways: plan.counters.iter().map(way).collect() }
    }

    /// The link of what one rank, `filler`, sends another, `reader`, on a channel; one of the two is the plan's.
    pub(super) fn key(&self, filler: Relative, reader: Relative, channel: Channel) -> Key {
        let goes = filler == self.plan.rank;
        let relative = if goes { reader } else { filler };
        let peer = self.bearings.rank(relative);
        let number = if (self.is_mapped)(peer) {
            let before = self.ways.range((relative.0, goes, 0)..(relative.0, goes, channel.0));
            before.count() as u16
        } else {
            channel.0
        };
        (peer, self.channel_base + number)
    }

    pub(super) fn key_of(&self, CounterId { owner, writer, channel, role }: CounterId) -> Key {
        match role {
            CounterRole::Credit => self.key(owner, writer, channel),
            _ => self.key(writer, owner, channel),
        }
    }

    /// The links that the plan needs, as peers and channels.
    pub(crate) fn keys(&self) -> Vec<Key> {
        let mut keys: Vec<Key> = Vec::new();
        for key in self.plan.counters.iter().map(|counter| self.key_of(counter.id)) {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys
    }
}
