//! How far away the other end of a stream is, by what the kernel has measured on it.
//!
//! Invariant: asks the kernel alone and sends nothing. Absent: what follows from a distance.

use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// The shortest round trip of a TCP connection so far; none where the system does not say, or has measured none.
pub fn round_trip(stream: &impl AsFd) -> Option<Duration> {
    // SAFETY: all its fields are numbers, for which zero is a value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    let descriptor = stream.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `length` bytes into `info`, and says how many.
    let outcome = unsafe {
        libc::getsockopt(
            descriptor,
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    // An older kernel writes less. The field is all ones before the first measurement.
    let needed = offset_of!(libc::tcp_info, tcpi_min_rtt) + size_of::<u32>();
    let is_known = outcome == 0 && length as usize >= needed && info.tcpi_min_rtt < u32::MAX;
    is_known.then(|| Duration::from_micros(info.tcpi_min_rtt.into()))
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
