//! Short all-reduces among ranks that share no device with another rank of their process: one kernel a rank, in packets that
//! are their own flags.
//!
//! Invariant: calls take turns with two sets of packets, so that a rank may be one call ahead of another: a peer's packet
//! of call k + 1 proves that it has read those of call k. The fold is in the order of ranks, as that of the plan
//! `direct` (`algorithms/src/builders/direct.rs`), with the same bits. Absent: longer calls.

use consort_cuda::StreamRef;
use consort_kernels::Reducer;
use consort_kernels::cuda::layout::{Factors, MAX_RANKS, OneShot};
use consort_kernels::cuda::one_shot_blocks;

use super::super::fused::reducer;
use super::super::gpu::Gpu;
use super::super::submission::Work;
use super::Shared;
use super::in_stream::{InMailboxes, Order};
use crate::Rank;
use crate::engine::Memory;
use crate::engine::watched::Watched;
use crate::planner::PACKET_BYTES;
use consort_types::error::{Error, Result};

/// What such a call is named in records.
const PACKETS: &str = "one-shot, in packets";

/// A call on its way to a device.
pub(in super::super) struct OneShotCall;

/// Its launch.
pub(in super::super) struct OneShotLaunch {
    parameters: OneShot,
    reducer: Reducer,
    pub(in super::super) blocks: u32,
}

impl OneShotLaunch {
    /// Puts it into a stream.
    ///
    /// # Errors
    /// The driver's; nothing was launched then.
    pub(in super::super) fn launch(&self, gpu: &Gpu, stream: &StreamRef) -> consort_cuda::Result<()> {
        gpu.kernels.one_shot(stream, &self.reducer, &self.parameters, self.blocks)
    }
}

impl OneShotCall {
    /// Makes a call ready for its launch.
    pub(in super::super) fn make(order: Order<'_>) -> Result<(Box<dyn Watched>, Memory, Work)> {
        let (shared, entry) = (order.shared, order.entry);
        let (rank, ranks) = (shared.rank, entry.communicator.size());
        let Some(reducer) = reducer(&entry.call, ranks) else {
            return Err(Error::internal("an all-reduce that does not reduce"));
        };
        tracing::debug!(rank, algorithm = PACKETS, "packets for its device");
        let announced = order.announce();
        let flag = shared.next_flag();
        let over = order.slot()?;
        let end = over.end();
        let mut peers = [0; MAX_RANKS];
        for (peer, place) in (0..ranks).zip(&mut peers) {
            *place = shared.packets_of(peer, flag).map_or(0, |span| span.address());
        }
        let parameters = OneShot {
            input: entry.input.address(),
            output: entry.output.address(),
            bytes: entry.input.len() as u64,
            abort: shared.abort.device_address(),
            done: end.done.address(),
            left: end.left.address(),
            sequence: end.sequence,
            ranks,
            rank,
            flag,
            raw: if reducer.scales() { 1 << rank } else { 0 },
            finish: u32::from(Reducer::divides(&reducer)),
            reserved: 0,
            packets: peers[rank as usize],
            packet_stride: 2 * PACKET_BYTES as u64,
            peers,
            factors: Factors::of(&reducer),
        };
        let blocks = one_shot_blocks(entry.input.len()).min(entry.placement.blocks_max);
        let launch = OneShotLaunch { parameters, reducer, blocks };
        Ok(order.made(announced, over, OneShotCall, Work::OneShot(Box::new(launch))))
    }
}

impl InMailboxes for OneShotCall {
    fn peers(&self, shared: &Shared) -> Vec<Rank> {
        (0..shared.peers.len() as u32).filter(|peer| *peer != shared.rank).collect()
    }

    fn algorithm(&self) -> &str {
        PACKETS
    }
}
