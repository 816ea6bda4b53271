//! A port's table of addresses (GIDs), which of them others are to use, and whether two ports can reach each other.
//!
//! Invariant: an address that this network namespace has not is only taken where it is asked for. Absent: which port is used.

use std::net::IpAddr;

use super::library::Functions;
use super::options::Addresses;
use super::port::{Port, Reach};
use super::sys::{Context, GID_ROCE_V2, Gid, GidEntry};
use super::sysfs::{Reachable, Sysfs};
use crate::AdapterTrouble;

/// Entries that an error names.
const SHOWN_MAX: usize = 12;

/// An entry of a port's table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub(super) index: u8,
    pub(super) gid: Gid,
    /// The version of RoCE; none where that is unknown, and on InfiniBand.
    pub(super) version: Option<u8>,
    pub(super) interface: Option<String>,
    pub(super) reachable: Reachable,
}

impl Gid {
    /// The address of the internet that it is.
    pub(super) fn ip(&self) -> IpAddr {
        std::net::Ipv6Addr::from(self.0).to_canonical()
    }

    /// Whether it is of one link, and made of the adapter's own number.
    pub(super) fn is_link_local(&self) -> bool {
        matches!(self.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local())
    }

    /// Leading bits that two have in common.
    pub(super) fn in_common(&self, other: &Gid) -> u32 {
        (u128::from_be_bytes(self.0) ^ u128::from_be_bytes(other.0)).leading_zeros()
    }

    /// The subnet of InfiniBand.
    pub(super) fn subnet(&self) -> [u8; 8] {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        [a, b, c, d, e, f, g, h]
    }
}

impl std::fmt::Display for Gid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.ip().fmt(f)
    }
}

impl std::fmt::Display for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.index, self.gid)?;
        if let Some(version) = self.version {
            write!(f, ", RoCE version {version}")?;
        }
        match (&self.reachable, &self.interface) {
            (Reachable::No(why), _) => write!(f, ", {why}"),
            (_, Some(interface)) => write!(f, ", of {interface}"),
            _ => Ok(()),
        }
    }
}

/// The entries of a port's table that are in use.
pub(super) fn entries(
    functions: Functions,
    context: *mut Context,
    sysfs: &Sysfs,
    (device, port): (&str, u8),
    (entries, is_ethernet): (i32, bool),
) -> Vec<Entry> {
    let mut found: Vec<Entry> = Vec::new();
    for index in 0..u8::try_from(entries).unwrap_or(u8::MAX) {
        let mut of = GidEntry::default();
        let known = match functions.query_gid_ex {
            // SAFETY: an open context, and a structure of the length that is said.
            Some(query) => unsafe {
                query(context, port.into(), index.into(), &raw mut of, 0, size_of::<GidEntry>())
            },
            // SAFETY: an open context.
            None => unsafe { (functions.query_gid)(context, port, index.into(), &raw mut of.gid) },
        };
        if known != 0 || of.gid == Gid::default() {
            continue;
        }
        if !is_ethernet {
            found.push(Entry {
                index,
                gid: of.gid,
                version: None,
                interface: None,
                reachable: Reachable::Yes,
            });
            continue;
        }
        let version = match functions.query_gid_ex {
            Some(_) => Some(if of.gid_type == GID_ROCE_V2 { 2 } else { 1 }),
            None => sysfs.version(device, port, index),
        };
        let interface = sysfs.interface(device, port, index);
        let reachable = sysfs.reachable(&of.gid, interface.as_deref());
        found.push(Entry { index, gid: of.gid, version, interface, reachable });
    }
    found
}

/// Whether an address has the first bits of another, as the range says how many.
fn is_within(ip: IpAddr, range: (IpAddr, u8)) -> bool {
    let differing = match (ip, range.0) {
        (IpAddr::V4(one), IpAddr::V4(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        _ => return false,
    };
    differing >= u32::from(range.1)
}

/// What is against an entry of a port on Ethernet.
fn against(entry: &Entry, asked: &Addresses) -> Option<&'static str> {
    let ip = entry.gid.ip();
    if entry.version.is_some_and(|version| version != asked.version) {
        return Some("another version of RoCE than NCCL_IB_ROCE_VERSION_NUM, or 2, says");
    }
    if asked.is_ipv6.is_some_and(|is_ipv6| is_ipv6 != ip.is_ipv6()) {
        return Some("not of NCCL_IB_ADDR_FAMILY");
    }
    if asked.range.is_some_and(|range| !is_within(ip, range)) {
        return Some("not in NCCL_IB_ADDR_RANGE");
    }
    None
}

/// How little an address is preferred: that of an IPv4 address before another, and one that routers know before a link's own.
fn rank(gid: &Gid) -> u8 {
    match gid.ip() {
        IpAddr::V4(ip) if !ip.is_link_local() => 0,
        IpAddr::V4(_) => 2,
        IpAddr::V6(_) if gid.is_link_local() => 3,
        IpAddr::V6(_) => 1,
    }
}

/// The entry by which a port is to be reached. On InfiniBand, where any will do, none may be there.
///
/// # Errors
/// The entries, with what is against each.
pub(super) fn choose<'e>(
    entries: &'e [Entry],
    is_ethernet: bool,
    asked: &Addresses,
) -> Result<Option<&'e Entry>, String> {
    let listed = |why: &dyn Fn(&Entry) -> Option<String>| {
        let mut shown: Vec<String> = entries
            .iter()
            .take(SHOWN_MAX)
            .map(|entry| why(entry).map_or_else(|| entry.to_string(), |why| format!("{entry}, {why}")))
            .collect();
        if entries.len() > SHOWN_MAX {
            shown.push(format!("and {} more", entries.len() - SHOWN_MAX));
        }
        if shown.is_empty() { "its table is empty".into() } else { shown.join("; ") }
    };
    if let Some(index) = asked.index {
        let entry = entries.iter().find(|entry| entry.index == index);
        return entry
            .map(Some)
            .ok_or_else(|| format!("NCCL_IB_GID_INDEX={index} names no entry; {}", listed(&|_| None)));
    }
    if !is_ethernet {
        return Ok(entries.first());
    }
    let usable = entries
        .iter()
        .filter(|entry| against(entry, asked).is_none() && !matches!(entry.reachable, Reachable::No(_)));
    // Where an older library says no versions, the second of two entries with one address is of version 2.
    let place = |entry: &Entry| if entry.version.is_some() { entry.index } else { u8::MAX - entry.index };
    let chosen = usable.min_by_key(|entry| (rank(&entry.gid), place(entry)));
    chosen.map(Some).ok_or_else(|| listed(&|entry| against(entry, asked).map(str::to_owned)))
}

/// The prefix of a subnet as the tools of InfiniBand write it.
fn prefix(subnet: [u8; 8]) -> String {
    let words: Vec<String> = subnet.chunks(2).map(|word| format!("{:02x}{:02x}", word[0], word[1])).collect();
    words.join(":")
}

/// Where a peer's port is, for people.
fn peer_port(peer: &Reach) -> String {
    if peer.is_ethernet { peer.gid.to_string() } else { format!("local id {}", peer.lid) }
}

/// Why a port cannot reach that of a peer, where that is known.
pub(super) fn no_way(port: &Port, peer: &Reach) -> Option<AdapterTrouble> {
    let (own, here) = (port.name(), &port.reach);
    let layer = |is_ethernet| if is_ethernet { "Ethernet" } else { "InfiniBand" };
    if here.reaches(peer) {
        return None;
    }
    Some(if here.is_ethernet != peer.is_ethernet {
        AdapterTrouble::LinkLayers {
            port: own,
            own: layer(here.is_ethernet),
            peer: peer_port(peer),
            other: layer(peer.is_ethernet),
        }
    } else if here.is_ethernet {
        AdapterTrouble::Families { port: own, own: here.gid.to_string(), peer: peer.gid.to_string() }
    } else {
        AdapterTrouble::Subnets {
            port: own,
            own: prefix(here.gid.subnet()),
            peer: peer_port(peer),
            other: prefix(peer.gid.subnet()),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u8, address: &str, version: u8) -> Entry {
        let ip: IpAddr = address.parse().expect("an address");
        let gid = match ip {
            IpAddr::V4(ip) => Gid(ip.to_ipv6_mapped().octets()),
            IpAddr::V6(ip) => Gid(ip.octets()),
        };
        Entry { index, gid, version: Some(version), interface: None, reachable: Reachable::Unknown }
    }

    /// As an adapter has it: each address with both versions.
    fn table() -> Vec<Entry> {
        vec![
            entry(0, "fe80::200:ff:fe00:1", 1),
            entry(1, "fe80::200:ff:fe00:1", 2),
            entry(2, "10.0.0.1", 1),
            entry(3, "10.0.0.1", 2),
            entry(4, "fd00::1", 1),
            entry(5, "fd00::1", 2),
            entry(6, "10.1.0.1", 2),
        ]
    }

    fn chosen(entries: &[Entry], asked: &Addresses) -> Option<u8> {
        choose(entries, true, asked).ok().flatten().map(|entry| entry.index)
    }

    #[test]
    fn a_port_is_reached_by_the_address_that_goes_farthest() {
        let all = table();
        let any = Addresses::default();
        assert_eq!(chosen(&all[..6], &any), Some(3));
        assert_eq!(chosen(&[all[1].clone(), all[5].clone()], &any), Some(5));
        assert_eq!(chosen(&[all[1].clone(), entry(7, "169.254.0.1", 2)], &any), Some(7));
        assert_eq!(chosen(&all[..2], &any), Some(1));
        assert_eq!(chosen(&all[..1], &any), None, "version 1 alone");
        assert_eq!(choose(&all, false, &any).map(|entry| entry.map(|entry| entry.index)), Ok(Some(0)));
        assert_eq!(choose(&[], false, &any), Ok(None));
        // An older library says no versions.
        let unsaid: Vec<Entry> = all[..4].iter().map(|of| Entry { version: None, ..of.clone() }).collect();
        assert_eq!(chosen(&unsaid, &any), Some(3));
    }

    #[test]
    fn addresses_are_asked_for_by_index_family_range_and_version() {
        let all = table();
        let asked = |change: &dyn Fn(&mut Addresses)| {
            let mut asked = Addresses::default();
            change(&mut asked);
            chosen(&all, &asked)
        };
        assert_eq!(asked(&|of| of.index = Some(1)), Some(1));
        assert_eq!(asked(&|of| of.index = Some(9)), None);
        assert_eq!(asked(&|of| of.is_ipv6 = Some(true)), Some(5));
        assert_eq!(asked(&|of| of.version = 1), Some(2));
        let range = |text: &str, bits| Some((text.parse().expect("an address"), bits));
        assert_eq!(asked(&|of| of.range = range("10.1.0.0", 16)), Some(6));
        assert_eq!(asked(&|of| of.range = range("10.0.0.0", 8)), Some(3), "of equals the first");
        assert_eq!(asked(&|of| of.range = range("10.1.0.0", 15)), Some(3));
        assert_eq!(asked(&|of| of.range = range("10.0.0.0", 16)), Some(3));
        assert_eq!(asked(&|of| of.range = range("fd00::", 8)), Some(5));
        assert_eq!(asked(&|of| of.range = range("192.168.0.0", 16)), None);
        assert_eq!(asked(&|of| of.range = range("::", 0)), Some(5), "none of IPv4");
        let why = choose(&all, true, &Addresses { index: Some(9), ..Addresses::default() });
        let why = why.expect_err("no entry");
        assert!(
            why.starts_with("NCCL_IB_GID_INDEX=9 names no entry; 0: fe80::200:ff:fe00:1, RoCE version 1;"),
            "{why}"
        );
    }

    #[test]
    fn an_address_of_another_namespace_is_not_taken_and_the_error_says_so() {
        let mut all = table();
        for entry in &mut all {
            entry.reachable = Reachable::No("its interface eth5 is not in this network namespace".into());
        }
        let why = choose(&all, true, &Addresses::default()).expect_err("none is here");
        assert!(
            why.contains("3: 10.0.0.1, RoCE version 2, its interface eth5 is not in this network namespace"),
            "{why}"
        );
        assert!(
            why.contains("2: 10.0.0.1, RoCE version 1, its interface") && why.contains("another version"),
            "{why}"
        );
        all[5].reachable = Reachable::Yes;
        assert_eq!(chosen(&all, &Addresses::default()), Some(5));
        // One that is asked for is taken.
        assert_eq!(chosen(&all, &Addresses { index: Some(3), ..Addresses::default() }), Some(3));
    }
}
