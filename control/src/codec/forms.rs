//! The forms of what lower crates define: errors, calls, addresses, places.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{Malformed, Reader, Taken, Wire, wire_enum, wire_struct};
use consort_topology::{Claim, Place};
use consort_transports::Address;
use consort_types::Rank;
use consort_types::call::Descriptor;
use consort_types::error::{Error, Operation};

wire_struct!(Operation { name, sequence });
wire_struct!(Claim { digest, bits, cores, quota });
wire_struct!(Place { cache, node, claim });

// Number 1 keeps its form for ever: it tells another version that it is another one.
wire_enum!(Error {
    1 => Settings { difference },
    2 => PeerLost { rank, place, operation, cause },
    3 => PeerLeft { rank, place, operation },
    4 => Timeout { operation, waited, verdict },
    5 => Aborted { rank, reason },
    6 => OutOfMemory { rank, needed_bytes, what, cause },
    7 => Link { from, to, transport, cause },
    8 => System { call, source },
    9 => Internal { what },
    10 => Revoked { rank, reason },
    11 => MissingRanks { missing: Ranges, size: Size, waited, address },
    12 => Device { rank, what, cause },
    13 => Mismatch { sequence, difference },
    14 => Join { rank, cause, hint },
} else other => Error::internal(other.to_string()));

/// An error of the system by its number, any other by its text.
impl Wire for io::Error {
    fn put(&self, out: &mut Vec<u8>) {
        (self.raw_os_error().unwrap_or(0) as u32, self.to_string()).put(out);
    }

    fn take(reader: &mut Reader<'_>) -> Taken<Self> {
        let (code, text): (u32, String) = reader.take()?;
        Ok(match i32::try_from(code) {
            Ok(code) if code != 0 => io::Error::from_raw_os_error(code),
            _ => io::Error::other(text),
        })
    }
}

/// The most ranks of a job.
pub(crate) const SIZE_MAX: u32 = 1 << 16;

/// How many ranks there are.
struct Size;

impl Size {
    fn put(size: &u32, out: &mut Vec<u8>) {
        size.put(out);
    }

    fn take(reader: &mut Reader<'_>) -> Taken<u32> {
        let size = reader.take()?;
        if size <= SIZE_MAX { Ok(size) } else { Err(Malformed("a number of ranks is out of bounds")) }
    }
}

/// Ascending ranks as ranges, the first [`Ranges::MAX`] of them: an error that names very many fits into a frame.
struct Ranges;

impl Ranges {
    const MAX: usize = 2048;

    fn put(ranks: &[Rank], out: &mut Vec<u8>) {
        let mut ranges: Vec<(Rank, Rank)> = Vec::new();
        for &rank in ranks {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == rank => *last = rank,
                _ => ranges.push((rank, rank)),
            }
        }
        ranges.truncate(Self::MAX);
        ranges.put(out);
    }

    fn take(reader: &mut Reader<'_>) -> Taken<Vec<Rank>> {
        let mut ranks: Vec<Rank> = Vec::new();
        for (first, last) in reader.take::<Vec<(Rank, Rank)>>()? {
            if first > last || last >= SIZE_MAX || ranks.last().is_some_and(|before| *before >= first) {
                return Err(Malformed("a range of ranks is out of bounds"));
            }
            ranks.extend(first..=last);
        }
        Ok(ranks)
    }
}

impl Wire for Descriptor {
    fn put(&self, out: &mut Vec<u8>) {
        (self.packed(), self.count).put(out);
    }

    fn take(reader: &mut Reader<'_>) -> Taken<Self> {
        let (packed, count) = reader.take()?;
        Descriptor::unpack(packed, count).ok_or(Malformed("it is no call"))
    }
}

/// The longest name of a transport, in bytes.
const TRANSPORT_BYTES_MAX: usize = 32;

impl Wire for Address {
    fn put(&self, out: &mut Vec<u8>) {
        self.transport.put(out);
        self.bytes.put(out);
    }

    fn take(reader: &mut Reader<'_>) -> Taken<Self> {
        let (transport, bytes): (String, Vec<u8>) = reader.take()?;
        if transport.len() > TRANSPORT_BYTES_MAX || bytes.len() > Address::BYTES_MAX {
            return Err(Malformed("an address of a transport is too long"));
        }
        Ok(Address { transport, bytes })
    }
}

/// The bytes of an address of the network.
pub(crate) const SOCKET_BYTES: usize = 19;

/// `SOCKET_BYTES`: family, ip, port.
impl Wire for SocketAddr {
    fn put(&self, out: &mut Vec<u8>) {
        let mut octets = [0; 16];
        let family = match self.ip() {
            IpAddr::V4(ip) => {
                octets[..4].copy_from_slice(&ip.octets());
                4u8
            }
            IpAddr::V6(ip) => {
                octets = ip.octets();
                6
            }
        };
        (family, octets, self.port()).put(out);
    }

    fn take(reader: &mut Reader<'_>) -> Taken<Self> {
        let (family, octets, port): (u8, [u8; 16], u16) = reader.take()?;
        match (family, octets) {
            (4, [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]) => {
                Ok((Ipv4Addr::new(a, b, c, d), port).into())
            }
            (6, octets) => Ok((Ipv6Addr::from(octets), port).into()),
            _ => Err(Malformed("an address is of no known family")),
        }
    }
}
