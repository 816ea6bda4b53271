//! What is known of ports without a connection over them: for prices, and for people.
//!
//! Invariant: devices are looked at, and given back. Absent: which ports a rank takes in its turn, and what passes over them.

use std::sync::Arc;

use super::choice::Near;
use super::message::{LANE_BYTES, PORTS_MAX};
use super::port::Port;
use super::search::Search;
use super::sysfs::Sysfs;
use super::{NAME, RdmaOptions, Verbs, library};
use crate::TransportError;

/// A port that can be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RatedPort {
    /// Its device, as `mlx5_0`.
    pub device: String,
    /// Its number on the device, from 1 on.
    pub number: u8,
    /// Megabits a second in each direction as its link says; 0 where it does not.
    pub speed_mbit_s: u64,
    /// Where its address is in the port's table.
    pub gid_index: u8,
    /// The address by which it sends.
    pub gid: String,
    /// Whether its link is Ethernet: RoCE.
    pub is_ethernet: bool,
    /// Whether it is as near and as fast as the first: ranks in one place take turns among these.
    pub is_best: bool,
}

impl RatedPort {
    /// Ports in the order in which a rank takes them.
    fn of(ports: &[Arc<Port>]) -> Vec<Self> {
        let rank = |port: &Port| (port.standing.distance, port.standing.speed_mbit_s);
        let rated = |port: &Arc<Port>| RatedPort {
            device: port.device.clone(),
            number: port.number,
            speed_mbit_s: port.standing.speed_mbit_s,
            gid_index: port.reach.gid_index,
            gid: port.reach.gid.to_string(),
            is_ethernet: port.reach.is_ethernet,
            is_best: rank(port) == rank(&ports[0]),
        };
        ports.iter().map(rated).collect()
    }
}

impl Verbs {
    /// Ports that a rank takes at most.
    pub const PORTS_MAX: usize = PORTS_MAX;

    /// Bytes that each side of a connection registers, and so pins, for mailboxes of this length: the mailbox that the peer writes to, and the
    /// picture of the peer's from which it is written, each behind a tray. Each further
    /// queue pair of the connection has two more trays.
    pub const fn registered_bytes(mailbox_bytes: u64) -> u64 {
        2 * (mailbox_bytes + LANE_BYTES as u64)
    }

    /// The ports of this system that a rank in this place may use, in the order in which it takes them; at least one.
    ///
    /// # Errors
    /// As of [`Verbs::near`].
    pub fn rated(options: &RdmaOptions, near: &Near) -> Result<Vec<RatedPort>, TransportError> {
        let functions = library::functions().map_err(|trouble| TransportError::adapter(NAME, trouble))?;
        let sysfs = &Sysfs::system();
        Ok(RatedPort::of(&Search { functions, sysfs, options, near }.ports()?))
    }
}

#[cfg(test)]
mod tests {
    use super::super::standin::{self, Adapter, AdapterPort, set};
    use super::*;
    use crate::{Layout, Transport};
    use std::time::Duration;

    #[test]
    fn what_a_connection_registers_is_its_mailbox_and_what_it_keeps_beside_it() {
        let (options, near) = (RdmaOptions::default(), Near::default());
        let sysfs = Sysfs::below("/nowhere", None);
        let search =
            Search { functions: standin::functions(), sysfs: &sysfs, options: &options, near: &near };
        let verbs = Verbs::over(&search.ports().expect("ports"), 1, 1, None).expect("a transport");
        let ends = [true, false].map(|calls| verbs.endpoint(Layout::new(5000).calling(calls)).expect("one"));
        let connection = &super::super::tests::meet(ends, Duration::ZERO)[0];
        let kept = connection.mailbox().len() + connection.kept_bytes();
        assert_eq!(Verbs::registered_bytes(5000), kept as u64);
    }

    #[test]
    fn ports_as_fast_as_the_first_are_best_and_slower_ones_are_not() {
        let at = |last| AdapterPort::ethernet([10, 0, 0, last]);
        let mut slow = at(4);
        slow.attr.active_speed = 4;
        set(vec![Adapter::new("mlx5_0", vec![slow, at(2)]), Adapter::new("mlx5_1", vec![at(3)])]);
        let rated = |turn| {
            let (options, near) = (RdmaOptions::default(), Near { turn, ..Near::default() });
            let sysfs = Sysfs::below("/nowhere", None);
            let search =
                Search { functions: standin::functions(), sysfs: &sysfs, options: &options, near: &near };
            RatedPort::of(&search.ports().expect("ports"))
        };
        let first = rated(0);
        let said: Vec<(String, u8, bool)> =
            first.iter().map(|port| (port.device.clone(), port.number, port.is_best)).collect();
        let expected = [("mlx5_0", 2, true), ("mlx5_1", 1, true), ("mlx5_0", 1, false)];
        assert_eq!(said, expected.map(|(device, number, is_best)| (device.to_owned(), number, is_best)));
        assert!(first[0].speed_mbit_s > first[2].speed_mbit_s && first[0].is_ethernet);
        assert!(first[0].gid.contains("10.0.0.2"), "{}", first[0].gid);
        // What a rank in its second turn takes first is the second of those that the first one has.
        assert_eq!(rated(1)[0], first[1]);
    }
}
