//! Where ranks are relative to each other.
//!
//! Invariant: both ends of a pair see the same distance. Where all are linked to all, it is what the link between them proved; in
//! a sparse job, where it must be known before there is a link, what both say of themselves, and links that prove otherwise are
//! refused.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use super::{Link, Member};
use crate::bootstrap::asked_interfaces;
use crate::membership::process::see_each_other;
use consort_types::Rank;

/// Where two ranks are relative to each other, as proved by the control link between them; in a sparse job, as they say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Distance {
    /// The same process.
    Process,
    /// The same host: an abstract Unix socket joins them.
    Host,
    /// Joined by TCP; the local address of that link is given.
    Network(IpAddr),
}

impl Member {
    /// Whether `rank` is of this process, or of this host and shares its memory.
    pub fn is_near(&self, rank: Rank) -> bool {
        match self.links().get(rank) {
            Some(Link::Own | Link::Local(_)) => true,
            _ if self.is_sparse => self.is_of_this_host(rank),
            Some(Link::Remote(link)) => link.distance == Distance::Host,
            Some(Link::Missing) | None => false,
        }
    }

    /// Whether both say that they are on one host where control sockets lead from one to the other.
    pub(in crate::membership) fn is_of_this_host(&self, rank: Rank) -> bool {
        let (here, there) = (&self.table[self.rank as usize], &self.table[rank as usize]);
        here.host_key == there.host_key && see_each_other(&here.unix, &there.unix)
    }

    /// Where `rank` is, seen from here.
    pub fn distance(&self, rank: Rank) -> Distance {
        let links = self.links();
        match links.get(rank) {
            Some(Link::Own | Link::Local(_)) => Distance::Process,
            _ if self.is_sparse && self.is_of_this_host(rank) => Distance::Host,
            Some(Link::Remote(link)) => link.distance,
            Some(Link::Missing) | None => {
                let table = &self.table;
                let of_its_host =
                    |other: Rank| table[other as usize].host_key == table[rank as usize].host_key;
                let by_network = |link: &Link| match link {
                    Link::Remote(link) => match link.distance {
                        Distance::Network(ip) => Some(ip),
                        Distance::Process | Distance::Host => None,
                    },
                    _ => None,
                };
                let mut others = links.all().filter(|(other, _)| of_its_host(*other));
                let known = others.find_map(|(_, link)| by_network(link));
                let asked = asked_interfaces().unwrap_or_default();
                let is_asked = |ip: &IpAddr| asked.is_empty() || asked.contains(ip);
                let by_route = |there: &SocketAddr| route_to(*there).filter(is_asked);
                let ip = known.or_else(|| self.table[rank as usize].tcp.iter().find_map(by_route));
                let ip = ip.or_else(|| links.all().find_map(|(_, link)| by_network(link)));
                Distance::Network(ip.unwrap_or(Ipv4Addr::LOCALHOST.into()))
            }
        }
    }
}

/// The address of this host from which the system would call there. Nothing is sent.
fn route_to(there: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr =
        if there.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(there).ok()?;
    let ip = socket.local_addr().ok()?.ip().to_canonical();
    (!ip.is_unspecified()).then_some(ip)
}
