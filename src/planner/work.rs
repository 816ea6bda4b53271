//! The work of a host's cores for a plan that they run themselves, in memory or through sockets.
//!
//! Invariant: counted from the fused plans, the ones that run: every step has a price, and every byte that a step
//! reads and writes, for the rank that does most, times the ranks that take turns on its core. The simulator
//! knows when bytes arrive, but not that a rank that waits on one lane works on another, nor what fusion saves.
//! Absent: caches, and plans of many ranks, which take too long to make.

use consort_algorithms::plan::Action;
use consort_algorithms::{LowerOptions, Place, Plan, Rank, Schedule, Transfer, lower_all, passes};

use consort_settings::options::SLOTS;

/// Above this number of ranks nothing is counted.
const RANKS_MAX: u32 = 16;
/// Seconds of a step: a look at a counter, a store to one, or the beginning of a copy.
const STEP_S: f64 = 60e-9;
/// Seconds of a byte that passes through a core once.
const BYTE_S: f64 = 0.08e-9;

/// Seconds of a core, for blocks of `block_bytes` in slots of `slot_bytes` where `turns` ranks share it.
///
/// Source of the figures: `docs/measurements/schedules.md`.
pub(super) fn of_cores(schedule: &Schedule, block_bytes: u64, slot_bytes: usize, turns: u32) -> f64 {
    if schedule.ranks > RANKS_MAX {
        return 0.0;
    }
    let Ok(plans) = lower_all(schedule, &LowerOptions { slots: SLOTS }) else { return 0.0 };
    let bytes = usize::try_from(block_bytes).unwrap_or(usize::MAX / 2);
    let extents = schedule.partition.extents(bytes, 1);
    let iterations = extents.longest().div_ceil(slot_bytes.max(1)).max(1) as f64;
    let of_rank = |plan: &Plan| {
        let fused = passes::fuse(plan, &|_| true);
        let moved = fused.steps.iter().filter(|step| !matches!(step.action, Action::Wait | Action::Signal));
        let moved = moved.filter_map(|step| step.extent.as_chunk());
        let passed: f64 = moved.map(|chunk| extents.length(chunk) as f64).sum();
        fused.steps.len() as f64 * iterations * STEP_S + passed * BYTE_S
    };
    let busiest = plans.iter().map(of_rank).fold(0.0, f64::max);
    busiest * f64::from(turns)
}

/// What a message between hosts takes of a core at each of its ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    /// Seconds of the message.
    message_s: f64,
    /// Seconds of each of its bytes.
    byte_s: f64,
}

/// Through the kernel, which copies each byte, and the receiver folds or copies it again.
///
/// Source: `docs/measurements/hosts.md`.
pub(super) const SOCKETS: Ends = Ends { message_s: 2.5e-6, byte_s: 0.25e-9 };

/// By an adapter: a work request, a doorbell and a completion, and no call of the system. The sender copies each byte once to
/// registered memory, unless the program has registered the call's, which plans do not know, and the receiver folds it or copies it once from there.
///
/// Source: `docs/measurements/benches.md`, posts and received messages over an adapter that does nothing; of the bytes as [`of_cores`].
pub(super) const RDMA: Ends = Ends { message_s: 0.25e-6, byte_s: BYTE_S };

/// Seconds of the busiest rank's core for messages to and from other hosts, in slots of `slot_bytes`.
pub(super) fn between_hosts(
    schedule: &Schedule,
    block_bytes: u64,
    slot_bytes: usize,
    host_of: &[u32],
    ends: Ends,
) -> f64 {
    let bytes = usize::try_from(block_bytes).unwrap_or(usize::MAX / 2);
    let extents = schedule.partition.extents(bytes, 1);
    let iterations = extents.longest().div_ceil(slot_bytes.max(1)).max(1) as u64;
    // In whole numbers: plans that move the same must cost the same, in whatever order it is summed.
    let mut moved = vec![(0u64, 0u64); schedule.ranks as usize];
    let crosses = |transfer: &&Transfer| {
        let host = |rank: Rank| host_of.get(rank.0 as usize);
        host(transfer.from) != host(transfer.to)
    };
    for transfer in schedule.rounds.iter().flat_map(|round| &round.transfers).filter(crosses) {
        let (Place::Input(chunk) | Place::Output(chunk) | Place::Scratch(chunk)) = transfer.source;
        let length = extents.length(chunk) as u64;
        for end in [transfer.from, transfer.to] {
            if let Some((messages, bytes)) = moved.get_mut(end.0 as usize) {
                *messages += iterations;
                *bytes += length;
            }
        }
    }
    let seconds = moved.into_iter().map(|(messages, bytes)| ends.of(messages as f64, bytes as f64));
    seconds.fold(0.0, f64::max)
}

impl Ends {
    /// Seconds of a rank's core for `messages` messages with `bytes` bytes together, if the rank receives as much as it sends.
    pub(super) fn of_messages(self, messages: f64, bytes: f64) -> f64 {
        self.of(2.0 * messages, 2.0 * bytes)
    }

    fn of(self, messages: f64, bytes: f64) -> f64 {
        messages * self.message_s + bytes * self.byte_s
    }
}

/// Seconds from a send until the rank finds the messages that its peers send at the same time.
const PACKET_S: f64 = 120e-9;
/// Seconds of a message to and from one more rank.
const PACKET_PEER_S: f64 = 40e-9;

/// Seconds that the second hop adds: from some 16 KiB on both ways take as long.
const HOPS_S: f64 = 500e-9;

/// Seconds that a line from another domain takes longer.
const FAR_LINE_S: f64 = 180e-9;
/// Seconds of a byte that leaves a domain or enters it, on the way that its ranks share.
const FAR_BYTE_S: f64 = 0.04e-9;

/// Seconds of a direct exchange of blocks of `block_bytes` bytes between `ranks` ranks, in eager messages. `turns` ranks
/// share a core. A domain has `per_domain` ranks; 1 says that there are no domains.
///
/// Source of the figures: `docs/measurements/host.md`; of the figures between domains, the source of
/// [`host_of_domains`](consort_algorithms::topology::host_of_domains).
pub(super) fn of_packets(ranks: u32, per_domain: u32, block_bytes: u64, turns: u32) -> f64 {
    let others = f64::from(ranks - 1);
    // Each block goes into a slot, and a block comes out of another slot.
    let bytes = 2.0 * block_bytes as f64 * BYTE_S;
    let inside = f64::from(turns) * (PACKET_S + others * (PACKET_PEER_S + bytes));
    if per_domain <= 1 || per_domain >= ranks {
        return inside;
    }
    // Every rank of a domain sends to every rank outside it, side by side; lines come at the same time.
    let crossing = f64::from(per_domain) * f64::from(ranks - per_domain) * block_bytes as f64;
    FAR_LINE_S + inside.max(crossing * FAR_BYTE_S)
}

/// Seconds of an all-reduce of two ranks in two hops: as many bytes cross, and each rank folds half of them.
pub(super) fn of_two_hops(block_bytes: u64, turns: u32) -> f64 {
    f64::from(turns) * (2.0 * (PACKET_S + PACKET_PEER_S) + HOPS_S + 1.5 * block_bytes as f64 * BYTE_S)
}
