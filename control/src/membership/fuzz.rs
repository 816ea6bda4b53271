//! What a peer that proved the key can do with well-formed messages, and what strangers can do before.

mod greeting;
mod messages;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use crate::bootstrap;
use consort_topology::Place;
use consort_types::Rank;

const JOB: [u8; 16] = [5; 16];
const KEY: [u8; 32] = [6; 32];

/// A job of `size` ranks on as many hosts.
fn table(size: u32) -> Vec<bootstrap::Member> {
    let member = |rank: Rank| bootstrap::Member {
        host: format!("host{rank}"),
        pid: 100 + rank,
        process: [rank as u8; 16],
        machine: [rank as u8; 16],
        host_key: [rank as u8; 16],
        wire_mbits: 0,
        ports: Vec::new(),
        round_trip: Default::default(),
        cores: 2,
        place: Place::default(),
        devices: false,
        device: None,
        graphs: 0,
        hardware: Default::default(),
        unix: Vec::new(),
        tcp: vec![SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9)],
    };
    (0..size).map(member).collect()
}

/// Calls `f` with every number that a repetition varies.
fn times(count: u8) -> std::ops::Range<u64> {
    0..1 << (count % 13)
}

type Shared = Arc<super::process::Shared>;
