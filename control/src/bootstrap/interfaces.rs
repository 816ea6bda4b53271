//! Which addresses of this host are given to others, and from which others are called.
//!
//! Invariant: at most four, loopback first, no address that only means something with an interface's name beside it.
//! Absent: rails, topology.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

use super::unique_id::ADDRESSES_MAX;
use consort_settings::environment::{Environment, Interfaces};
use consort_types::error::{Error, Result};

/// Further interfaces that data travels over: a transport takes four listeners.
const FURTHER_MAX: usize = 3;
/// Interfaces of bridges and tunnels inside the host: given to others only if nothing better is there.
const INNER: [&str; 9] = ["docker", "br-", "veth", "virbr", "cni", "flannel", "cali", "lxc", "tun"];

/// Up to four addresses to listen at, of the interfaces that `NCCL_SOCKET_IFNAME` and `NCCL_SOCKET_FAMILY` ask for.
///
/// # Errors
/// [`Error::InvalidArgument`] if there are none of those.
pub fn usable() -> Result<Vec<IpAddr>> {
    Ok(choose(&among(found(), Interfaces::asked(&Environment::of_process()).as_ref())?))
}

/// Addresses of the interfaces that were asked for, to be given to other hosts; none if all will do.
///
/// # Errors
/// [`Error::InvalidArgument`] if there are none of those.
pub fn asked() -> Result<Vec<IpAddr>> {
    let Some(asked) = Interfaces::asked(&Environment::of_process()) else { return Ok(Vec::new()) };
    let mut chosen = choose(&among(found(), Some(&asked))?);
    // The loopback means something else on every host; alone, it says that there is only one.
    if chosen.iter().any(|ip| !ip.is_loopback()) {
        chosen.retain(|ip| !ip.is_loopback());
    }
    Ok(chosen)
}

/// An address of each further interface that `NCCL_SOCKET_IFNAME` names, beside the one that has `first`: of the same family, in the
/// order that the system gives, three at most. None where interfaces are left out or not named, and for the loopback.
pub fn further(first: IpAddr) -> Vec<IpAddr> {
    match Interfaces::asked(&Environment::of_process()) {
        Some(asked) if asked.names_them() => further_among(&found(), &asked, first.to_canonical()),
        _ => Vec::new(),
    }
}

/// The same among these addresses of this host.
fn further_among(found: &[(String, IpAddr)], asked: &Interfaces, first: IpAddr) -> Vec<IpAddr> {
    let name_of = |ip: IpAddr| found.iter().find(|(_, own)| *own == ip).map(|(name, _)| name.as_str());
    let Some(name) = name_of(first).filter(|_| leads_outward(&first)) else { return Vec::new() };
    let mut names = vec![name];
    let mut further = Vec::new();
    for (name, ip) in found {
        let is_alike = leads_outward(ip) && ip.is_ipv4() == first.is_ipv4() && asked.has(name, ip);
        if is_alike && !names.contains(&name.as_str()) {
            names.push(name);
            further.push(*ip);
        }
    }
    further.truncate(FURTHER_MAX);
    further
}

/// The address of this host from which `to` is to be called, where interfaces were asked for; `None` where the routing's
/// choice will do. It will do where it is an address of those interfaces, and for this host itself.
///
/// # Errors
/// [`ErrorKind::AddrNotAvailable`] if those interfaces have no address from which `to` can be called.
pub(super) fn source(to: IpAddr) -> io::Result<Option<IpAddr>> {
    let Some(asked) = Interfaces::asked(&Environment::of_process()) else { return Ok(None) };
    source_among(&found(), &asked, to, routed)
}

/// The same among these addresses of this host, where `routed` says which one the routing would choose.
fn source_among(
    found: &[(String, IpAddr)],
    asked: &Interfaces,
    to: IpAddr,
    routed: impl FnOnce(IpAddr) -> Option<IpAddr>,
) -> io::Result<Option<IpAddr>> {
    let to = to.to_canonical();
    if to.is_loopback() || to.is_unspecified() || found.iter().any(|(_, ip)| *ip == to) {
        return Ok(None);
    }
    let allowed: Vec<IpAddr> =
        found.iter().filter(|(name, ip)| asked.has(name, ip)).map(|(_, ip)| *ip).collect();
    if routed(to).is_some_and(|ip| allowed.contains(&ip)) {
        return Ok(None);
    }
    let outward = allowed.iter().filter(|ip| ip.is_ipv4() == to.is_ipv4() && leads_outward(ip));
    // The address most like the one to be called is likely to be of the same network.
    match outward.max_by_key(|ip| common_bits(**ip, to)) {
        Some(ip) => Ok(Some(*ip)),
        None => Err(io::Error::new(
            ErrorKind::AddrNotAvailable,
            format!(
                "{} leaves no IPv{} address of this host from which to call; let it name an interface that reaches there",
                asked.text(),
                if to.is_ipv4() { 4 } else { 6 }
            ),
        )),
    }
}

/// The address that the routing would choose. A datagram socket sends nothing when it is connected.
fn routed(to: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    // The port does not matter.
    socket.connect((to, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Whether others can be called from it without an interface's name beside it.
fn leads_outward(ip: &IpAddr) -> bool {
    match ip {
        _ if ip.is_loopback() || ip.is_unspecified() => false,
        IpAddr::V4(ip) => !ip.is_link_local(),
        IpAddr::V6(ip) => !ip.is_unicast_link_local(),
    }
}

/// Leading bits that two addresses of one family have in common.
pub(crate) fn common_bits(one: IpAddr, other: IpAddr) -> u32 {
    match (one.to_canonical(), other.to_canonical()) {
        (IpAddr::V4(one), IpAddr::V4(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        _ => 0,
    }
}

/// Megabits a second of the fastest adapter to other hosts among the interfaces that were asked for, as the system says; 0
/// where it says none, as on most virtual machines. What is no device, such as one end of a virtual pair, says any number.
pub fn wire_mbits() -> u32 {
    let Ok(found) = among(found(), Interfaces::asked(&Environment::of_process()).as_ref()) else { return 0 };
    let is_device = |place: &std::path::Path| place.join("device").exists() || place.join("bonding").exists();
    fastest(&found, |name| {
        let place = std::path::Path::new("/sys/class/net").join(name);
        is_device(&place).then(|| std::fs::read_to_string(place.join("speed")).ok()).flatten()
    })
}

/// The same of interfaces whose `speed` says this. Inner ones count where there are no others.
fn fastest(found: &[(String, IpAddr)], speed: impl Fn(&str) -> Option<String>) -> u32 {
    let is_inner = |name: &str| INNER.iter().any(|prefix| name.starts_with(prefix));
    let outward = || found.iter().filter(|(_, ip)| !ip.is_loopback()).map(|(name, _)| name.as_str());
    let of = |inner: bool| {
        let says = |name: &str| speed(name)?.trim().parse::<u32>().ok().filter(|speed| *speed < u32::MAX);
        outward().filter(|name| is_inner(name) == inner).filter_map(says).max()
    };
    if outward().any(|name| !is_inner(name)) { of(false) } else { of(true) }.unwrap_or(0)
}

/// Those of the addresses that were asked for.
fn among(found: Vec<(String, IpAddr)>, asked: Option<&Interfaces>) -> Result<Vec<(String, IpAddr)>> {
    let Some(asked) = asked else { return Ok(found) };
    let mut names: Vec<String> = found.iter().map(|(name, ip)| format!("{name} ({ip})")).collect();
    let left: Vec<_> = found.into_iter().filter(|(name, ip)| asked.has(name, ip)).collect();
    if choose(&left).is_empty() {
        names.dedup();
        return Err(Error::invalid(
            format!("{} leaves no interface of this host to meet at", asked.text()),
            format!("there are: {}", names.join(", ")),
        ));
    }
    Ok(left)
}

/// All that are up, with their names.
fn found() -> Vec<(String, IpAddr)> {
    let mut found = Vec::new();
    match getifaddrs() {
        Ok(interfaces) => {
            for interface in interfaces {
                let up = interface.flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING);
                let ip = interface.address.as_ref().and_then(|address| {
                    let v4 = address.as_sockaddr_in().map(|a| IpAddr::from(a.ip()));
                    v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::from(a.ip())))
                });
                if let (true, Some(ip)) = (up, ip) {
                    found.push((interface.interface_name, ip));
                }
            }
        }
        Err(error) => {
            tracing::warn!(%error, "the host's interfaces cannot be listed; only its loopback addresses are used");
            found.push(("lo".into(), Ipv4Addr::LOCALHOST.into()));
            found.push(("lo".into(), Ipv6Addr::LOCALHOST.into()));
        }
    }
    found
}

/// One loopback address (IPv4 if there is one), then addresses of real interfaces, then of inner ones; IPv4 first.
fn choose(found: &[(String, IpAddr)]) -> Vec<IpAddr> {
    let rank = |name: &str, ip: &IpAddr| {
        leads_outward(ip).then(|| (INNER.iter().any(|p| name.starts_with(p)), ip.is_ipv6()))
    };
    let loopback =
        |v6: bool| found.iter().map(|(_, ip)| *ip).find(|ip| ip.is_loopback() && ip.is_ipv6() == v6);
    let mut chosen: Vec<IpAddr> = loopback(false).or_else(|| loopback(true)).into_iter().collect();
    let mut others: Vec<_> = found.iter().filter_map(|(name, ip)| Some((rank(name, ip)?, *ip))).collect();
    others.sort_by_key(|(rank, _)| *rank);
    // A host with several IPv4 addresses must not crowd out its only IPv6 address: some peers may have nothing else.
    let best_v6 = others.iter().find(|((inner, v6), _)| *v6 && !inner).map(|(_, ip)| *ip);
    chosen.extend(others.iter().map(|(_, ip)| *ip).take(ADDRESSES_MAX - 1));
    if let Some(v6) = best_v6
        && !chosen.contains(&v6)
    {
        chosen.pop();
        chosen.push(v6);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(found: &[(&str, &str)]) -> Vec<String> {
        let found: Vec<_> =
            found.iter().map(|(name, ip)| ((*name).to_owned(), ip.parse().unwrap())).collect();
        choose(&found).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn loopback_comes_first_and_inner_bridges_last() {
        let found = [
            ("docker0", "172.17.0.1"),
            ("lo", "127.0.0.1"),
            ("eth0", "fe80::1"),
            ("eth0", "fd00::2"),
            ("eth0", "10.0.0.2"),
            ("lo", "::1"),
        ];
        assert_eq!(chosen(&found), ["127.0.0.1", "10.0.0.2", "fd00::2", "172.17.0.1"]);
    }

    #[test]
    fn each_interface_that_is_named_gives_one_address_more() {
        let found: Vec<(String, IpAddr)> = [
            ("lo", "127.0.0.1"),
            ("eth0", "10.0.0.2"),
            ("eth0", "10.9.0.2"),
            ("eth0", "fd00::2"),
            ("eth1", "fe80::1"),
            ("eth1", "10.1.0.2"),
            ("eth1", "10.1.0.3"),
            ("ib0", "10.2.0.2"),
            ("ib0", "fd02::2"),
        ]
        .map(|(name, ip)| (name.to_owned(), ip.parse().expect("an address")))
        .to_vec();
        let further = |names: &str, first: &str| -> Vec<String> {
            let lookup = |name: &str| (name == "NCCL_SOCKET_IFNAME").then(|| names.to_owned());
            let asked = Interfaces::asked(&Environment::from_lookup(lookup)).expect("named");
            let first = first.parse().expect("an address");
            further_among(&found, &asked, first).iter().map(ToString::to_string).collect()
        };
        assert_eq!(further("eth0,eth1,ib0", "10.0.0.2"), ["10.1.0.2", "10.2.0.2"]);
        assert_eq!(further("eth0,eth1,ib0", "10.1.0.3"), ["10.0.0.2", "10.2.0.2"]);
        assert_eq!(further("eth,ib", "fd00::2"), ["fd02::2"]);
        assert_eq!(further("=eth0", "10.0.0.2"), [""; 0]);
        // The loopback, and an address that is gone.
        assert_eq!(further("eth,ib,lo", "127.0.0.1"), [""; 0]);
        assert_eq!(further("eth,ib", "10.7.0.1"), [""; 0]);
    }

    #[test]
    fn the_fastest_way_to_other_hosts_is_as_fast_as_the_system_says() {
        let found = |names: &[&str]| -> Vec<(String, IpAddr)> {
            let ip = |name: &str| if name == "lo" { Ipv4Addr::LOCALHOST } else { Ipv4Addr::new(10, 0, 0, 2) };
            names.iter().map(|name| ((*name).to_owned(), ip(name).into())).collect()
        };
        let speed = |name: &str| {
            let text = match name {
                "lo" => "400000\n",
                "eth0" => "25000\n",
                "eth1" => "100000\n",
                "docker0" | "veth1" => "200000\n",
                "ens3" => "-1\n",
                "ens4" => "4294967295\n",
                _ => return None,
            };
            Some(text.to_owned())
        };
        let fastest = |names: &[&str]| fastest(&found(names), speed);
        assert_eq!(fastest(&["lo", "eth0"]), 25_000);
        assert_eq!(fastest(&["lo", "eth0", "eth1", "docker0"]), 100_000);
        assert_eq!(fastest(&["veth1"]), 200_000);
        // What is not said is not known, whatever the bridges within say.
        assert_eq!(fastest(&["ens3", "docker0"]), 0);
        assert_eq!((fastest(&["wlan0"]), fastest(&["ens4"])), (0, 0));
        assert_eq!(fastest(&["lo"]), 0);
    }

    #[test]
    fn only_what_was_asked_for_or_what_there_is() {
        let found: Vec<(String, IpAddr)> = [("lo", "127.0.0.1"), ("eth0", "10.0.0.2"), ("ib0", "10.1.0.2")]
            .map(|(name, ip)| (name.to_owned(), ip.parse().unwrap()))
            .into();
        let asked = |text: &str| {
            let lookup = |name: &str| (name == "NCCL_SOCKET_IFNAME").then(|| text.to_owned());
            Interfaces::asked(&Environment::from_lookup(lookup))
        };
        let chosen = |text: &str| choose(&among(found.clone(), asked(text).as_ref()).unwrap());
        assert_eq!(chosen("ib"), ["10.1.0.2".parse::<IpAddr>().unwrap()]);
        assert_eq!(chosen("").len(), 3);
        let error = among(found.clone(), asked("wlan").as_ref()).unwrap_err().to_string();
        assert!(error.contains("NCCL_SOCKET_IFNAME=wlan") && error.contains("eth0 (10.0.0.2)"), "{error}");
    }

    #[test]
    fn calls_come_from_what_was_asked_for() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let found: Vec<(String, IpAddr)> = [
            ("lo", "127.0.0.1"),
            ("eth0", "10.0.0.2"),
            ("ib0", "10.1.0.2"),
            ("ib1", "10.2.0.2"),
            ("ib1", "fe80::2"),
        ]
        .map(|(name, text)| (name.to_owned(), ip(text)))
        .into();
        let source = |names: &str, to: &str, routed: &str| {
            let lookup = |name: &str| (name == "NCCL_SOCKET_IFNAME").then(|| names.to_owned());
            let asked = Interfaces::asked(&Environment::from_lookup(lookup)).unwrap();
            source_among(&found, &asked, ip(to), |_| Some(ip(routed)))
        };
        // The routing would take an interface that was not asked for: the address most like the called one is taken.
        assert_eq!(source("ib", "10.2.0.9", "10.0.0.2").unwrap(), Some(ip("10.2.0.2")));
        assert_eq!(source("ib", "10.1.0.9", "10.0.0.2").unwrap(), Some(ip("10.1.0.2")));
        assert_eq!(
            source("^eth0", "192.168.0.1", "10.0.0.2").unwrap().map(|ip| ip.is_loopback()),
            Some(false)
        );
        assert_eq!(source("ib", "::ffff:10.2.0.9", "10.0.0.2").unwrap(), Some(ip("10.2.0.2")));
        // The routing's choice holds where it was asked for, and this host itself is called as ever.
        assert_eq!(source("ib", "10.2.0.9", "10.1.0.2").unwrap(), None);
        for own in ["127.0.0.1", "::1", "0.0.0.0", "10.0.0.2"] {
            assert_eq!(source("ib", own, "10.0.0.2").unwrap(), None);
        }
        // The loopback and addresses of one link lead to no other host.
        for (names, to) in [("lo", "10.0.0.9"), ("ib1", "fd00::9")] {
            let error = source(names, to, "10.0.0.2").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
            let named =
                format!("NCCL_SOCKET_IFNAME={names} leaves no IPv{}", if to.contains(':') { 6 } else { 4 });
            assert!(error.to_string().starts_with(&named), "{error}");
        }
    }

    #[test]
    fn the_routing_reaches_this_host_from_itself() {
        assert_eq!(routed(Ipv4Addr::LOCALHOST.into()), Some(Ipv4Addr::LOCALHOST.into()));
    }

    #[test]
    fn many_addresses_leave_room_for_one_of_the_other_family() {
        let found = [
            ("lo", "127.0.0.1"),
            ("a", "10.0.0.1"),
            ("b", "10.0.0.2"),
            ("c", "10.0.0.3"),
            ("d", "10.0.0.4"),
            ("d", "fd00::4"),
        ];
        assert_eq!(chosen(&found), ["127.0.0.1", "10.0.0.1", "10.0.0.2", "fd00::4"]);
        assert_eq!(chosen(&[("lo", "::1")]), ["::1"]);
        assert!(chosen(&[]).is_empty());
    }
}
