//! Completions that say what went wrong, in words.
//!
//! Source: InfiniBand Architecture Specification, volume 1, section 11.6.2 (completion return status), as `verbs.h` numbers them.

use std::ffi::CStr;

use super::NAME;
use super::queue::{Peer, Queue};
use super::sys::Wc;
use crate::{FailedCompletion, TransportError};

/// The peer's system has not answered, however often a packet was sent again.
pub(super) const RETRY_EXCEEDED: u32 = 12;
/// It had no receive posted.
pub(super) const RECEIVER_NOT_READY: u32 = 13;
/// The peer's adapter has refused what the key does not allow.
pub(super) const REFUSED: u32 = 10;
/// The queue pair had failed before this was carried out.
pub(super) const FLUSHED: u32 = 5;

/// Likely causes of a status, and what to look at.
fn causes(status: u32) -> &'static str {
    match status {
        4 | 8 => "this side's memory is not registered for that any more",
        FLUSHED => {
            "the queue pair had failed before, or was closed, or the peer used a key that this side does not have: look for the first \
             error, here and at the peer"
        }
        9 => "the peer's adapter refused the request: do all processes run the same version?",
        REFUSED => {
            "the peer's memory has another key or is not there any more: its process ended or closed the connection, or it is another \
             version"
        }
        11 => "the peer's adapter could not do it: look at its system's log",
        RETRY_EXCEEDED => {
            "the peer's adapter has not answered: its process or host is gone, its port or a switch is down, or packets of this size or \
             priority do not get through (MTU, priority flow control, NCCL_IB_GID_INDEX, NCCL_IB_TC)"
        }
        RECEIVER_NOT_READY => "the peer had no receive posted: it stopped, or is another version",
        _ => "look at the system's log for the adapter",
    }
}

/// The error of a queue pair by which the peer was to be reached.
pub(super) fn failure(queue: &Queue, peer: &Peer, wc: &Wc) -> TransportError {
    let port = queue.port();
    // SAFETY: gives a text of its own for any number, or null.
    let text = unsafe { (port.functions.wc_status_str)(wc.status as i32) };
    let said = if text.is_null() {
        "unknown".into()
    } else {
        // SAFETY: not null, ends with a zero, and stays.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    };
    let reach = peer.reach;
    let there = if reach.is_ethernet { reach.gid.to_string() } else { format!("local id {}", reach.lid) };
    let failed = FailedCompletion {
        device: port.device.clone(),
        port: port.number,
        queue_pair: queue.number(),
        peer: format!("{there}, queue pair {}", peer.number),
        status: format!("{said} ({}, vendor's {:#x})", wc.status, wc.vendor_err),
        causes: causes(wc.status),
    };
    TransportError::Completion { transport: NAME, failed: Box::new(failed) }
}
