//! NCCL's protocols on the wires of a topology: what they send besides the bytes, what a message costs, how long it is.
//!
//! Invariant: figures are NCCL's, each with its source; a protocol takes its share of the
//! topology's wires and of the work of ranks. Absent: what a GPU's threads can copy, which costs every protocol some bandwidth.

use crate::Collective;
use crate::simulate::nccl_model::{Algorithm, Protocol};
use crate::topology::{Costs, Link, Topology};

/// Bytes on the wire for these bytes of the caller.
///
/// Source: NCCL at commit 5067397c, `src/include/device.h`: LL has a flag of 4 bytes with every 4 (`ncclLLFifoLine`),
/// LL128 one of 8 with every 120 (`NCCL_LL128_LINEELEMS`, `NCCL_LL128_DATAELEMS`).
const fn wire(protocol: Protocol) -> (u64, u64) {
    match protocol {
        Protocol::LowLatency => (2, 1),
        Protocol::LowLatency128 => (16, 15),
        Protocol::Simple => (1, 1),
    }
}

/// Thousandths of the work of a message at its ends. A flag within the data saves the fence and the second store.
///
/// Source: NCCL at commit 5067397c, `src/graph/tuning.cc` (`hwLatencies`, ring over NVLink: 0.6, 1.9 and 3.4 µs a hop),
/// as shares of Simple, whose hop is what the profiles of [`topology`](crate::topology) stand for.
const fn work_permille(protocol: Protocol) -> u64 {
    match protocol {
        Protocol::LowLatency => 176,
        Protocol::LowLatency128 => 559,
        Protocol::Simple => 1000,
    }
}

/// The machine as a protocol has it: links carry the bytes and flags besides, and messages cost less.
pub fn under(topology: &Topology, protocol: Protocol) -> Topology {
    let (sent, of) = wire(protocol);
    let permille = work_permille(protocol);
    let mut made = topology.map_links(|_, link| Link {
        bandwidth_bytes_s: (u128::from(link.bandwidth_bytes_s) * u128::from(of) / u128::from(sent)) as u64,
        ..link
    });
    let Costs { send_ns, receive_ns, .. } = topology.costs;
    made.costs.send_ns = send_ns * permille / 1000;
    made.costs.receive_ns = receive_ns * permille / 1000;
    made
}

/// The shape of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Slots {
    /// Bytes of the caller in each.
    pub bytes: usize,
    /// How many there are.
    pub count: u32,
}

/// The call for which a connection is shaped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    /// The collective.
    pub collective: Collective,
    /// The larger of a rank's buffers.
    pub bytes: u64,
    /// Ranks of a box.
    pub per_box: u32,
    /// Boxes.
    pub boxes: u32,
}

/// Steps of a buffer (`NCCL_STEPS`).
const STEPS: u32 = 8;

/// The slots of each channel.
///
/// Source: NCCL at commit 5067397c, `src/init.cc` (`computeBuffSizes`: 512 KiB for LL, 4,915,200 bytes for LL128, 4 MiB
/// for Simple), `src/include/device.h` (`NCCL_STEPS`), `src/include/collectives.h` (`ALLREDUCE_SLICESTEPS` and its
/// like: a message of rings by Simple is 2 of 8 steps, but 1 for broadcast and reduce) and `src/enqueue.cc`
/// (`calcCollChunking`).
pub fn slots(call: &Call, algorithm: Algorithm, protocol: Protocol, channels: u32) -> Slots {
    let splits = !matches!(call.collective, Collective::Broadcast | Collective::Reduce);
    match (algorithm, protocol) {
        (Algorithm::Nvls, _) => Slots { bytes: switch_chunk(call, channels), count: STEPS },
        (Algorithm::NvlsTree, _) => Slots { bytes: switch_tree_chunk(call, channels), count: STEPS },
        (_, Protocol::LowLatency) => Slots { bytes: 32 << 10, count: STEPS },
        (Algorithm::Tree, Protocol::LowLatency128) => {
            Slots { bytes: tree_ll128_chunk(call, channels), count: STEPS }
        }
        (_, Protocol::LowLatency128) => Slots { bytes: LL128_STEP, count: STEPS },
        (Algorithm::Ring, Protocol::Simple) if splits => Slots { bytes: 1 << 20, count: STEPS / 2 },
        _ => Slots { bytes: 512 << 10, count: STEPS },
    }
}

/// An eighth of LL128's buffer without its flags.
const LL128_STEP: usize = 4_915_200 / 8 / 16 * 15;

/// `calcCollChunking`, NVLS: shorter chunks for shorter calls.
fn switch_chunk(call: &Call, channels: u32) -> usize {
    let at_once = u64::from(channels * call.per_box);
    let mut chunk = 128 << 10;
    for (times, shorter) in [(64, 65_536), (8, 32_768), (2, 16_384)] {
        if call.bytes < times * at_once * chunk && chunk > shorter {
            chunk = shorter;
        }
    }
    chunk as usize
}

/// `calcCollChunking`, NVLSTree, with `ncclNvlsTuning`: 64 KiB at most from 4 boxes on, else 128.
fn switch_tree_chunk(call: &Call, channels: u32) -> usize {
    let at_once = u64::from(channels * call.per_box);
    let mut chunk = if call.boxes >= 4 { 65_536 } else { 131_072 };
    for (times, shorter) in [(4, 65_536), (1, 32_768)] {
        if call.bytes < times * at_once * chunk && chunk > shorter {
            chunk = shorter;
        }
    }
    chunk as usize
}

/// `calcCollChunking`, Tree with LL128.
fn tree_ll128_chunk(call: &Call, channels: u32) -> usize {
    let per_box = f64::from(call.per_box);
    let steps = 1.0 + f64::from(call.boxes.ilog2()) + 0.1 * per_box;
    let mut chunk = LL128_STEP as u64;
    for (times, least) in [(64.0, 131_072), (16.0, 32_768)] {
        while ((call.bytes / (u64::from(channels) * chunk)) as f64) < steps * times / per_box && chunk > least
        {
            chunk /= 2;
        }
    }
    chunk as usize
}

/// The channels of those that a machine has which a call takes: a channel has work for all threads of its block.
///
/// Source: NCCL at commit 5067397c, `src/enqueue.cc` (`topoGetAlgoInfo`), `src/graph/tuning.cc` (`threadThresholds`;
/// that of rings by LL is times the ranks) and `src/include/comm.h` (`NCCL_LL_THREAD_THRESHOLD` and its like), with
/// the most threads of each protocol (`src/include/device.h`): 512, 640 and 512.
pub fn channels(call: &Call, algorithm: Algorithm, protocol: Protocol, most: u32) -> u32 {
    let ranks = u64::from(call.per_box * call.boxes);
    let least = match (algorithm, protocol) {
        // All channels, for every size.
        (Algorithm::Nvls | Algorithm::NvlsTree, _) => return most,
        (Algorithm::Ring, Protocol::LowLatency) => 512 * 8 * ranks,
        (_, Protocol::LowLatency) => 512 * 8,
        (_, Protocol::LowLatency128) => 640 * 8,
        (_, Protocol::Simple) => 512 * 64,
    };
    u32::try_from(call.bytes / least).unwrap_or(most).clamp(1, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(boxes: u32, bytes: u64) -> Call {
        Call { collective: Collective::AllReduce, bytes, per_box: 8, boxes }
    }

    #[test]
    fn chunks_are_those_of_calc_coll_chunking() {
        let nvls = |bytes| slots(&call(1, bytes), Algorithm::Nvls, Protocol::Simple, 16).bytes >> 10;
        assert_eq!([1 << 30, 1 << 26, 1 << 23, 1 << 20].map(nvls), [128, 64, 32, 16]);
        let tree =
            |boxes, bytes| slots(&call(boxes, bytes), Algorithm::NvlsTree, Protocol::Simple, 16).bytes >> 10;
        assert_eq!(
            [tree(2, 1 << 30), tree(2, 1 << 23), tree(4, 1 << 30), tree(4, 1 << 20)],
            [128, 64, 64, 32]
        );
        let of = |algorithm, protocol| slots(&call(2, 1 << 30), algorithm, protocol, 16);
        assert_eq!(of(Algorithm::Ring, Protocol::Simple), Slots { bytes: 1 << 20, count: 4 });
        assert_eq!(of(Algorithm::Tree, Protocol::Simple), Slots { bytes: 512 << 10, count: 8 });
        assert_eq!(of(Algorithm::Ring, Protocol::LowLatency128).bytes, 576_000);
        let ll128 = |bytes| slots(&call(2, bytes), Algorithm::Tree, Protocol::LowLatency128, 16).bytes;
        assert_eq!([1 << 30, 1 << 24].map(ll128), [576_000, 72_000]);
    }

    #[test]
    fn short_calls_take_few_channels() {
        let of = |bytes, algorithm, protocol| channels(&call(1, bytes), algorithm, protocol, 24);
        assert_eq!(of(64 << 10, Algorithm::Ring, Protocol::Simple), 2);
        assert_eq!(of(64 << 10, Algorithm::Ring, Protocol::LowLatency), 2);
        assert_eq!(of(64 << 10, Algorithm::Tree, Protocol::LowLatency), 16);
        assert_eq!(of(8, Algorithm::Ring, Protocol::Simple), 1);
        assert_eq!(of(1 << 30, Algorithm::Ring, Protocol::LowLatency128), 24);
        assert_eq!(of(8, Algorithm::Nvls, Protocol::Simple), 24);
    }

    #[test]
    fn flags_take_wire_and_save_work() {
        let machine = crate::topology::dgx_h100(1);
        let made = under(&machine, Protocol::LowLatency);
        assert_eq!(made.links()[0].bandwidth_bytes_s * 2, machine.links()[0].bandwidth_bytes_s);
        assert_eq!((made.costs.send_ns, made.links()[0].latency_ns), (176, machine.links()[0].latency_ns));
        assert_eq!(under(&machine, Protocol::Simple), machine);
    }
}
