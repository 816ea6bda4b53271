//! Stream capture: work put into a captured stream is dropped, and the graph of a capture cannot be launched.

use crate::boundary::{Out, exports};
use crate::capture::Mode;
use crate::code::{Answer, Code};
use crate::context::stream;
use crate::driver;

/// `CUstreamCaptureStatus`.
const NONE: u32 = 0;
const ACTIVE: u32 = 1;
const INVALIDATED: u32 = 2;

fn begin(handle: u64, mode: Mode) -> Answer {
    let (context, key) = stream(handle)?;
    driver::get()?.captures.begin(&context, key, mode)
}

fn info(handle: u64, status: Out<u32>, id: Out<u64>) -> Answer {
    let (context, key) = stream(handle)?;
    match driver::get()?.captures.asked(&context, key)? {
        None => status.put(NONE),
        Some((_, false)) => status.put(INVALIDATED),
        Some((number, true)) => {
            id.put_if_wanted(number);
            status.put(ACTIVE)
        }
    }
}

exports! {
    /// Whether a stream is captured.
    fn cuStreamIsCapturing(handle: u64, status: Out<u32>) {
        info(handle, status, Out::none())
    }

    /// The status of a stream with the number of its capture. The graph and its nodes are left out.
    fn cuStreamGetCaptureInfo_v2(handle: u64, status: Out<u32>, id: Out<u64>, _graph: Out<u64>, _nodes: Out<u64>, _count: Out<usize>) {
        info(handle, status, id)
    }

    /// The status of a stream with the number of its capture. The graph and its nodes are left out.
    fn cuStreamGetCaptureInfo_v3(handle: u64, status: Out<u32>, id: Out<u64>, _graph: Out<u64>, _nodes: Out<u64>, _edges: Out<u64>, _count: Out<usize>) {
        info(handle, status, id)
    }

    /// Begins a capture in a `CUstreamCaptureMode`.
    fn cuStreamBeginCapture_v2(handle: u64, mode: u32) {
        begin(handle, Mode::of_number(mode)?)
    }

    /// Begins a capture. This form of CUDA 10.0 has no mode.
    fn cuStreamBeginCapture(handle: u64) {
        begin(handle, Mode::Global)
    }

    /// Ends a capture. Its graph can only be destroyed.
    fn cuStreamEndCapture(handle: u64, graph: Out<u64>) {
        let key = stream(handle)?.1;
        graph.check()?;
        let ended = driver::get()?.captures.end(key);
        graph.put(ended.unwrap_or(0))?;
        ended.map(drop)
    }

    /// Swaps this thread's `CUstreamCaptureMode`.
    fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) {
        driver::get()?;
        let wanted = Mode::of_number(mode.get()?)?;
        mode.put(wanted.exchange() as u32)
    }

    /// Forgets a graph. No launch of it can exist.
    fn cuGraphDestroy(graph: u64) {
        driver::get()?.captures.destroy(graph)
    }

    /// Refused.
    fn cuGraphInstantiateWithFlags(_place: Out<u64>, _graph: u64, _flags: u64) {
        driver::get()?;
        Err(Code::NOT_SUPPORTED)
    }
}
