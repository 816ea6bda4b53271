//! How far away the other end of a stream is, by what the kernel has measured on it.
//!
//! Invariant: asks the kernel alone and sends nothing. Absent: what follows from a distance.

use std::os::fd::AsFd;
use std::time::Duration;

use crate::info::Info;

/// The shortest round trip of a TCP connection so far; none where the system does not say, or has measured none.
pub fn round_trip(stream: &impl AsFd) -> Option<Duration> {
    Info::of(stream)?.shortest
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};

    use super::*;

    #[test]
    fn a_connection_has_a_round_trip_once_it_is_made_and_other_descriptors_have_none() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let mut caller = TcpStream::connect(listener.local_addr().expect("an address")).expect("a call");
        let (mut callee, _) = listener.accept().expect("the call");
        caller.write_all(&[1]).expect("a byte sent");
        callee.read_exact(&mut [0]).expect("a byte received");
        let known = round_trip(&caller).expect("it is known");
        assert!(known < Duration::from_secs(5), "{known:?}");
        assert_eq!(round_trip(&UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port")), None);
        let unconnected = nix::sys::socket::socket(
            nix::sys::socket::AddressFamily::Inet,
            nix::sys::socket::SockType::Stream,
            nix::sys::socket::SockFlag::empty(),
            None,
        );
        assert_eq!(round_trip(&unconnected.expect("a socket")), None);
    }
}
