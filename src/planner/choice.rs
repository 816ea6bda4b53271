//! Which program runs a call, how long its slots are, and which links it uses.
//!
//! Invariant: a choice is the same on all ranks because [`Planning`] is. Absent: prices, and the memory of choices
//! (`engine::compiled`).

use consort_algorithms::Collective;
use consort_algorithms::catalogue::Algorithm;

use super::Program;
use super::planning::{
    Chosen, FAR_SLOT_BYTES_MAX, FAR_WIDE_SLOT_BYTES_MAX, HOST_SLOT_BYTES_MAX, MESSAGE_SLICE_BYTES, Planning,
    WIDE_SLOT_BYTES_MAX, size_class,
};
use crate::eager::{MESSAGE_BYTES_MAX, Moves};
use consort_settings::options::{SLOT_BYTES_MAX, SLOT_BYTES_MIN, SLOTS};
use consort_types::call::Call;
use consort_types::error::Result;

/// Channels of links with few peers and long slots; those of the others follow. Programs that are used side by
/// side on short and long messages have links of their own, so that neither waits for the other's slots to
/// empty, and a link to each of many ranks is small.
const LONG_CHANNELS: u16 = 0;
const WIDE_CHANNELS: u16 = 0x4000;
/// The same between hosts that are far apart, where mailboxes are longer.
const FAR_CHANNELS: u16 = 0x1000;
const FAR_WIDE_CHANNELS: u16 = 0x5000;
/// The same among ranks of one host, whose slots migrate: few and shorter ones suffice, but for the longest calls.
const HOST_CHANNELS: u16 = 0x2000;
const HOST_WIDE_CHANNELS: u16 = 0x6000;
const SHORT_CHANNELS: u16 = 0x8000;
/// Short ones where every message goes through the kernel: a longer slot costs nothing there.
const MESSAGE_CHANNELS: u16 = 0xa000;
/// Point-to-point messages.
const PAIR_CHANNELS: u16 = 0xc000;
const FAR_PAIR_CHANNELS: u16 = 0xe000;

/// The bytes that a pool among ranks of one host has for each slot, more than the longest slot so that the beginnings of its
/// slots lie in different sets of a cache.
const HOST_POOL_SLOT_BYTES: usize = HOST_SLOT_BYTES_MAX + (16 << 10) - 64;

/// Plans write outputs of at least this many bytes past the caches: from 4 to 8 MiB on that took up to 1.7 times as long
/// (`docs/measurements/host.md`).
const STREAMING_BYTES_MIN: u64 = 16 << 20;

/// Whether plans write outputs past the caches.
pub(crate) fn is_streamed(collective: Collective, ranks: u32, block_bytes: u64) -> bool {
    let blocks = collective.output_blocks(ranks).max(collective.input_blocks(ranks));
    block_bytes.saturating_mul(blocks.into()) >= STREAMING_BYTES_MIN
}

/// The choice for a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Choice {
    pub(crate) program: Program,
    pub(crate) slot_bytes: usize,
    /// Whether outputs are written past the caches.
    pub(crate) streaming: bool,
    /// The first of the channels that its links use.
    pub(crate) channel_base: u16,
    /// Whether the call goes in eager messages, where all ranks can store to each other's mailboxes.
    pub(crate) packets: bool,
    /// Whether ranks that share memory meet before the call, and agree how its bytes cross.
    pub(crate) meets: bool,
    /// Whether the call is zero-copy then, where all ranks can map the callers' buffers.
    pub(crate) mapped: bool,
}

impl Choice {
    /// The size class of a call, on which its choice depends, and whether its outputs are written past the caches.
    #[inline]
    pub(crate) fn class_of(call: &Call, ranks: u32) -> (u32, bool) {
        // Calls that are too long for any memory are looked up too, before they are refused.
        let block_bytes = call.count.saturating_mul(call.data_type.size());
        let collective = call.collective();
        let streaming = is_streamed(collective, ranks, block_bytes as u64);
        (size_class(block_bytes as u64).trailing_zeros(), streaming)
    }

    /// The choice for a call. Made once for each shape of call, as prices are dear.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) that lists what is possible, when the restriction leaves
    /// nothing.
    pub(crate) fn of(planning: &Planning, call: &Call) -> Result<Self> {
        let collective = call.collective();
        let ranks = if collective == Collective::SendReceive { 2 } else { planning.ranks() };
        let (class, streaming) = Self::class_of(call, ranks);
        let bytes = 1u64 << class;
        let chosen = match call.algorithm {
            None if call.kind.is_own() => planning.choose_freely(collective, bytes),
            None => {
                planning.expect_table_of_host();
                planning.choose(collective, bytes)?
            }
            Some(algorithm) => planning.demand(algorithm, collective, bytes)?,
        };
        let Chosen { algorithm, slot_bytes, short, packets, meets, mapped, .. } = chosen;
        let packets = packets && Moves::are_defined(call.kind);
        // A call that names its algorithm takes no mapped buffers: one that runs by a plan meets only to agree how its bytes
        // cross.
        let mapped = mapped && call.algorithm.is_none();
        let is_worth_it = mapped || !packets && bytes > MESSAGE_BYTES_MAX as u64;
        let channel_base = channel_base(planning, algorithm, slot_bytes, short);
        let algorithm =
            planning.turned(algorithm, collective, call.root).beginning_at(call.first_folded(ranks));
        Ok(Choice {
            program: Program { collective, ranks, algorithm },
            slot_bytes,
            streaming,
            channel_base,
            packets,
            meets: meets && Moves::are_defined(call.kind) && is_worth_it,
            mapped,
        })
    }
}

/// The first of the channels that the links of an algorithm use, for slots of this length; `short` where every message fits one short
/// slot.
pub(super) fn channel_base(planning: &Planning, algorithm: Algorithm, slot_bytes: usize, short: bool) -> u16 {
    match algorithm {
        _ if algorithm.is_pair() && slot_bytes > SLOT_BYTES_MAX => FAR_PAIR_CHANNELS,
        _ if algorithm.is_pair() => PAIR_CHANNELS,
        _ if short && planning.by_messages() => MESSAGE_CHANNELS,
        _ if short => SHORT_CHANNELS,
        _ => {
            let is_wide = planning.is_wide(algorithm);
            let is_far = slot_bytes > if is_wide { WIDE_SLOT_BYTES_MAX } else { SLOT_BYTES_MAX };
            match (slot_bytes <= HOST_SLOT_BYTES_MAX && planning.is_on_own_cores(), is_wide) {
                (true, false) => HOST_CHANNELS,
                (true, true) => HOST_WIDE_CHANNELS,
                (false, false) if is_far => FAR_CHANNELS,
                (false, true) if is_far => FAR_WIDE_CHANNELS,
                (false, false) => LONG_CHANNELS,
                (false, true) => WIDE_CHANNELS,
            }
        }
    }
}

/// Whether slots on a channel always have the same length.
pub(crate) fn has_one_length(channel: u16) -> bool {
    (SHORT_CHANNELS..PAIR_CHANNELS).contains(&channel)
}

/// The slots of a mailbox.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slots {
    pub(crate) count: usize,
    /// The bytes of each.
    pub(crate) bytes: usize,
}

impl Slots {
    /// Of each side's mailbox on a channel of plans; a `mapped` one is a half of a pool.
    pub(crate) fn of(channel: u16, mapped: bool) -> Self {
        let bytes = match channel {
            HOST_CHANNELS..WIDE_CHANNELS | HOST_WIDE_CHANNELS..SHORT_CHANNELS => HOST_POOL_SLOT_BYTES,
            SHORT_CHANNELS..MESSAGE_CHANNELS => SLOT_BYTES_MIN,
            MESSAGE_CHANNELS..PAIR_CHANNELS => MESSAGE_SLICE_BYTES,
            FAR_CHANNELS..HOST_CHANNELS | FAR_PAIR_CHANNELS.. => FAR_SLOT_BYTES_MAX,
            WIDE_CHANNELS..FAR_WIDE_CHANNELS => WIDE_SLOT_BYTES_MAX,
            FAR_WIDE_CHANNELS..HOST_WIDE_CHANNELS => FAR_WIDE_SLOT_BYTES_MAX,
            _ => SLOT_BYTES_MAX,
        };
        let count = match channel {
            HOST_CHANNELS..WIDE_CHANNELS => 4 * SLOTS,
            HOST_WIDE_CHANNELS..SHORT_CHANNELS => 2 * SLOTS,
            ..MESSAGE_CHANNELS if mapped => 2 * SLOTS,
            _ => SLOTS,
        };
        Slots { count: count as usize, bytes }
    }
}
