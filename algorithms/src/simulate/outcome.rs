//! What a simulation found.

use crate::topology::LinkId;
use crate::{Channel, Rank};

/// One message of the timeline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// Who sent it.
    pub from: Rank,
    /// Who got it.
    pub to: Rank,
    /// On which channel.
    pub channel: Channel,
    /// Its length.
    pub bytes: u64,
    /// When its first byte left.
    pub start_ps: u64,
    /// When its last byte arrived.
    pub end_ps: u64,
}

/// The time of a collective and where it went.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// From the start of all ranks to the end of the last.
    pub time_ps: u64,
    /// Messages of all slices.
    pub messages: u64,
    /// Into how many slices the longest chunk is cut.
    pub slices: u64,
    /// How many of them were run; when it is fewer, time and busy times are continued in a straight line.
    pub slices_run: u64,
    /// Bytes over each link of the topology, by its number.
    pub link_bytes: Vec<u64>,
    /// How long at least one message was on each link, by its number.
    pub link_busy_ps: Vec<u64>,
    /// The link that needs the most time for its bytes; none when nothing travels.
    pub busiest_link: Option<LinkId>,
    /// Bytes that leave the rank that sends most.
    pub port_out_bytes: u64,
    /// Bytes that enter the rank that receives most.
    pub port_in_bytes: u64,
    /// The messages that were run, in the order of their ends; empty unless it was asked for.
    pub timeline: Vec<Span>,
}

impl Outcome {
    /// The time in seconds.
    pub fn seconds(&self) -> f64 {
        self.time_ps as f64 / 1e12
    }
}
