//! Which calls need no plan between ranks that share memory.

use consort_algorithms::Collective;
use consort_algorithms::catalogue::Algorithm;

use super::Planning;
use crate::eager;

impl Planning {
    /// Whether blocks of `block_bytes` bytes travel in messages that carry their own flag.
    pub(super) fn takes_packets(
        &self,
        algorithm: Algorithm,
        collective: Collective,
        block_bytes: u64,
    ) -> bool {
        let most = eager::longest(collective, algorithm.is_two_shot(), self.machine.ranks) as u64;
        (algorithm.is_direct() || algorithm.is_two_shot())
            && collective != Collective::SendReceive
            && self.on_own_cores
            && (2..=eager::RANKS_MAX).contains(&self.machine.ranks)
            && block_bytes <= most
    }

    /// Whether blocks of `block_bytes` bytes are worth a look at where the callers' buffers are; or, where the algorithm is given
    /// anyway, at how they cross fastest.
    pub(super) fn meets(&self, collective: Collective, block_bytes: u64) -> bool {
        let unasked = if self.is_free() { eager::UNASKED_BYTES_MAX } else { eager::MESSAGE_BYTES_MAX };
        collective != Collective::SendReceive
            && self.on_own_cores
            && (2..=eager::RANKS_MAX).contains(&self.machine.ranks)
            && block_bytes > unasked as u64
    }

    /// In how many slices a piece travels at least. Four, so that a rank works on one while the next is on its way; two
    /// between two ranks of a host that both send as much as they receive: no core has to wait for a slice there.
    pub(super) fn slices(&self, collective: Collective) -> u64 {
        use Collective::{AllGather, AllReduce, AllToAll, ReduceScatter};
        let is_even = matches!(collective, AllReduce | ReduceScatter | AllGather | AllToAll);
        if self.on_own_cores && is_even && self.machine.ranks == 2 { 2 } else { 4 }
    }
}
