//! Short all-reduces among ranks that each have a device: one kernel a rank, in packets that are their own flags.
//!
//! Invariant: calls take turns with two sets of packets, so that a rank may be one call ahead of another: a peer's packet
//! of call k + 1 proves that it has read those of call k. The fold is in the order of ranks, as that of the plan
//! `direct` (`algorithms/src/builders/direct.rs`), with the same bits. Absent: longer calls.

use std::any::Any;
use std::sync::Arc;

use consort_kernels::Reducer;
use consort_kernels::cuda::layout::{Factors, MAX_RANKS, OneShot};

use super::super::fused::reducer;
use super::super::gpu::Gpu;
use super::super::placement::{Entry, Last};
use super::super::slots::{Health, Slot};
use super::super::trouble::failed;
use super::{Announced, PACKET_BYTES, Shared};
use crate::Rank;
use crate::call::{Call, Kind};
use crate::engine::watched::{Fault, Standing, State, Watched};
use crate::engine::{Memory, Source};
use crate::error::{Error, Result};

/// A call that is in its stream.
pub(in super::super) struct OneShotCall {
    shared: Arc<Shared>,
    over: Slot,
    health: Health,
    announced: Announced,
}

impl OneShotCall {
    /// Whether a call is one that this runs, the same on all ranks.
    pub(in super::super) fn takes(call: &Call, ranks: u32) -> bool {
        let bytes = call.count * call.data_type.size();
        call.kind == Kind::AllReduce
            && call.algorithm.is_none()
            && bytes <= PACKET_BYTES
            && ranks as usize <= MAX_RANKS
    }

    /// Puts a call into its stream. The caller has entered the context, and is alone.
    pub(in super::super) fn make(
        shared: &Arc<Shared>,
        gpu: &Arc<Gpu>,
        last: &Arc<Last>,
        entry: &Entry<'_>,
        blocks_max: u32,
        number: u64,
        kept: Vec<Arc<dyn Any + Send + Sync>>,
    ) -> Result<(Self, Memory)> {
        let (call, rank, ranks) = (&entry.call, shared.rank, entry.communicator.size());
        let cuda = |error| failed(rank, call.kind.name(), error);
        let Some(reducer) = reducer(call, ranks) else {
            return Err(Error::internal("an all-reduce that does not reduce"));
        };
        let announced = shared.announce(call, number);
        let flag = shared.next_flag();
        let over = gpu.slots().take().map_err(cuda)?;
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
        let stream = gpu.context().stream_ref(entry.stream);
        gpu.kernels().one_shot(&stream, &reducer, &parameters, blocks_max).map_err(cuda)?;
        let after = Arc::new(gpu.event().map_err(cuda)?);
        stream.record(&after).map_err(cuda)?;
        let health = Health::new(gpu, rank, &after);
        last.set(after);
        let made = OneShotCall { shared: shared.clone(), over, health, announced };
        Ok((made, Memory { input: Source::Elsewhere, output: None, _kept: kept }))
    }
}

impl Watched for OneShotCall {
    fn poll(&mut self) -> std::result::Result<State, Fault> {
        if self.over.is_done() {
            // All that this rank needs was called by then.
            let differs = self.shared.differs(&self.announced);
            return differs.map_or(Ok(State::Done), |peer| Err(Fault::Mismatch { peer }));
        }
        self.health.check()?;
        Ok(State::Enqueued)
    }

    fn moved(&mut self) -> Result<()> {
        Err(Error::internal("the host moved what a device moves"))
    }

    fn peers(&self) -> Vec<Rank> {
        let all = 0..self.shared.peers.len() as u32;
        all.filter(|peer| *peer != self.shared.rank).collect()
    }

    fn standing(&self) -> Option<Standing> {
        None
    }

    fn give_up(&mut self) {
        if !self.over.is_done() {
            self.shared.release();
        }
    }

    fn is_over(&self) -> bool {
        self.over.is_done()
    }

    fn algorithm(&self) -> &str {
        "one-shot"
    }
}

impl Drop for OneShotCall {
    fn drop(&mut self) {
        self.give_up();
    }
}
