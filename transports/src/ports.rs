//! Listening at a port of a range.
//!
//! Invariant: a search ends at the first port that is free, and at the first error that another port would not mend.
//! Absent: the setting that names the range, and addresses that a user names with their port.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, TcpListener};
use std::ops::RangeInclusive;

/// Listens at `ip`: at a port of the range, or without one at a port that the system picks.
///
/// # Errors
/// With a range [`ErrorKind::AddrInUse`] where each of its ports is in use; else the system's.
pub fn listen_within(ip: IpAddr, ports: Option<RangeInclusive<u16>>) -> io::Result<TcpListener> {
    let Some(ports) = ports else { return TcpListener::bind((ip, 0)) };
    for port in order(ports, std::process::id()) {
        // Two sockets may be bound to one port before either listens; the second one's `listen` then says that it is in
        // use. `bind` of the standard library makes both calls.
        match TcpListener::bind((ip, port)) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                let text = format!("port {port} is refused to this user ({error}); take ports above 1023");
                return Err(io::Error::new(ErrorKind::PermissionDenied, text));
            }
            result => return result,
        }
    }
    Err(ErrorKind::AddrInUse.into())
}

/// Every port once, in order from a place that depends on the process, and round the end. A process takes two ports as a
/// rule, so processes with neighbouring numbers begin two ports apart.
fn order(ports: RangeInclusive<u16>, process: u32) -> impl Iterator<Item = u16> {
    let count = ports.len();
    let start = (process as usize).wrapping_mul(2).checked_rem(count).unwrap_or(0);
    ports.clone().skip(start).chain(ports.take(start))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// An address of this host that no other test listens at, and ports that the system does not pick.
    fn own(number: u8) -> (IpAddr, RangeInclusive<u16>) {
        let [.., high, low] = std::process::id().to_be_bytes();
        (Ipv4Addr::new(127, high.clamp(1, 254), low, number).into(), 17_000..=17_003)
    }

    #[test]
    fn every_port_once_from_a_place_of_the_process() {
        let order = |ports, process| order(ports, process).collect::<Vec<_>>();
        assert_eq!(order(10..=14, 0), [10, 11, 12, 13, 14]);
        assert_eq!(order(10..=14, 1), [12, 13, 14, 10, 11]);
        assert_eq!(order(10..=14, 2), [14, 10, 11, 12, 13]);
        assert_eq!(order(7..=7, u32::MAX), [7]);
        assert_eq!(order(1..=u16::MAX, u32::MAX).len(), 65_535);
    }

    #[test]
    fn ports_that_are_taken_are_passed_over_until_none_is_left() {
        let (ip, ports) = own(1);
        let mut held = Vec::new();
        let mut found: Vec<u16> = Vec::new();
        for _ in ports.clone() {
            let listener = listen_within(ip, Some(ports.clone())).expect("one is free");
            found.push(listener.local_addr().expect("an address").port());
            held.push(listener);
        }
        assert_eq!(found, order(ports.clone(), std::process::id()).collect::<Vec<_>>());
        let full = listen_within(ip, Some(ports.clone())).expect_err("none is free");
        assert_eq!(full.kind(), ErrorKind::AddrInUse);
        // One that is given back is found, wherever the search begins.
        held.remove(1);
        let again = listen_within(ip, Some(ports)).expect("one is free");
        assert_eq!(again.local_addr().expect("an address").port(), found[1]);
    }

    #[test]
    fn an_error_that_no_other_port_mends_ends_the_search() {
        // An address for documentation (RFC 5737), which no host has.
        let error =
            listen_within(Ipv4Addr::new(192, 0, 2, 1).into(), Some(17_000..=17_003)).expect_err("not here");
        assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
    }

    #[test]
    fn without_a_range_the_system_picks() {
        let (ip, _) = own(2);
        let one = listen_within(ip, None).expect("a port");
        assert_ne!(one.local_addr().expect("an address").port(), 0);
    }
}
