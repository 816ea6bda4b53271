//! The outcome of a simulation.

use crate::topology::LinkId;
use crate::{Channel, Rank};

/// One message of the timeline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The sender.
    pub from: Rank,
    /// The receiver.
    pub to: Rank,
    /// The channel.
    pub channel: Channel,
    /// Its length.
    pub bytes: u64,
    /// When its first byte left.
    pub start_ps: u64,
    /// When its last byte arrived.
    pub end_ps: u64,
}

/// The time of a collective and its parts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// From the start of all ranks to the end of the last one.
    pub time_ps: u64,
    /// Messages of all slices.
    pub messages: u64,
    /// The number of slices into which the longest chunk is cut.
    pub slices: u64,
    /// The number of slices that were run; when it is less than `slices`, time and busy times are continued in a
    /// straight line.
    pub slices_run: u64,
    /// Bytes over each link of the topology, by its number.
    pub link_bytes: Vec<u64>,
    /// The time for which at least one message was on each link, by the link's number.
    pub link_busy_ps: Vec<u64>,
    /// The link that needs the most time for its bytes; `None` when nothing travels.
    pub busiest_link: Option<LinkId>,
    /// Bytes sent by the rank that sends most.
    pub port_out_bytes: u64,
    /// Bytes received by the rank that receives most.
    pub port_in_bytes: u64,
    /// The messages that were run, in the order of their ends; empty unless
    /// [`Options::timeline`](super::Options::timeline) is set.
    pub timeline: Vec<Span>,
}

impl Outcome {
    /// The time in seconds.
    pub fn seconds(&self) -> f64 {
        self.time_ps as f64 / 1e12
    }
}
