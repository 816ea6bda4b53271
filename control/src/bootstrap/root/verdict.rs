//! Who has arrived, and whether they can form a job.
//!
//! Invariant: pure: the same arrivals give the same words. Absent: sockets, clocks.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use super::super::wire::Member;
use super::views;
use consort_types::Rank;
use consort_types::error::{Error, list};

/// How many differing settings an error spells out.
const SHOWN: usize = 4;
/// How many different values of each.
const VALUES_SHOWN: usize = 6;
/// How many letters of each.
const VALUE_SHOWN: usize = 100;

/// What a hello says that must be the same on all ranks.
pub(super) type Settings = Arc<Vec<(String, String)>>;

/// One rank that is here.
pub(super) struct Arrival {
    pub(super) settings: Settings,
    pub(super) member: Member,
}

fn ranks_say(ranks: &[Rank], value: &str) -> String {
    match ranks {
        [rank] => format!("rank {rank} says {value}"),
        _ => format!("ranks {} say {value}", list(ranks)),
    }
}

/// Two processes claim one rank.
pub(super) fn duplicate(rank: Rank, first: &Member, second: &Member) -> Error {
    Error::Join {
        rank,
        cause: format!("two claim to be rank {rank}: {} and {}", first.place(), second.place()),
        hint: "give every process a rank of its own; look at how the launcher numbers them (CONSORT_RANK)"
            .into(),
    }
}

/// A rank expects another number of ranks than those that came before it.
pub(super) fn sizes(size: u32, arrived: &BTreeMap<Rank, Arrival>, rank: Rank, other: u32) -> Error {
    let before: Vec<Rank> = arrived.keys().copied().filter(|r| *r != rank).collect();
    let before = if before.is_empty() { vec![rank] } else { before };
    // The lower rank first, whichever came first.
    let mut said = [(before, size), (vec![rank], other)];
    said.sort_by_key(|(ranks, _)| ranks.iter().min().copied());
    let [first, second] = said.map(|(ranks, size)| ranks_say(&ranks, &size.to_string()));
    Error::Settings { difference: format!("number of ranks: {first}; {second}") }
}

/// A rank speaks another version.
pub(super) fn versions(rank: Rank, theirs: u16, ours: u16) -> Error {
    Error::Settings {
        difference: format!(
            "wire version: rank {rank} says {theirs}; the process that created the unique id (rank 0) says {ours}"
        ),
    }
}

/// What the ranks that are here disagree about, if anything: their settings, or what is in a host that they share.
pub(super) fn difference(arrived: &BTreeMap<Rank, Arrival>) -> Option<String> {
    of_settings(arrived).or_else(|| of_hosts(arrived))
}

/// The first two ranks of one host whose files describe other machines, and the first line in which those differ. A rank without a file
/// differs from none: what it sees by itself may be a part, and gives way to a file.
fn of_hosts(arrived: &BTreeMap<Rank, Arrival>) -> Option<String> {
    let mut known: BTreeMap<[u8; 16], (Rank, &Member)> = BTreeMap::new();
    let with_file = |member: &Member| !member.hardware.is_empty() && !views::is_view(&member.hardware);
    for (rank, Arrival { member, .. }) in arrived.iter().filter(|(_, of)| with_file(&of.member)) {
        let (first, before) = *known.entry(member.host_key).or_insert((*rank, member));
        if before.hardware != member.hardware {
            let line = |text: &str, at: usize| {
                text.lines().nth(at).map_or("nothing".into(), |line| format!("{:?}", shortened(line)))
            };
            let [one, other] = [before, member].map(|of| String::from_utf8_lossy(&of.hardware));
            let at = one.lines().zip(other.lines()).take_while(|(one, other)| one == other).count();
            return Some(format!(
                "what is in host {}: rank {first} says {} in line {} of {} lines, rank {rank} says {} of {} (NCCL_TOPO_FILE must name \
                 the same machine for all ranks of a host)",
                member.host,
                line(&one, at),
                at + 1,
                one.lines().count(),
                line(&other, at),
                other.lines().count(),
            ));
        }
    }
    None
}

fn of_settings(arrived: &BTreeMap<Rank, Arrival>) -> Option<String> {
    let mut all = arrived.values();
    let first = &all.next()?.settings;
    // Equal settings are shared when they arrive, so this is a comparison of pointers, however many ranks there are.
    if all.all(|arrival| Arc::ptr_eq(first, &arrival.settings)) {
        return None;
    }
    let mut names: Vec<&str> = Vec::new();
    let mut lists: Vec<&Settings> = Vec::new();
    for arrival in arrived.values() {
        if !lists.iter().any(|known| Arc::ptr_eq(known, &arrival.settings)) {
            lists.push(&arrival.settings);
            for (name, _) in arrival.settings.iter() {
                if !names.contains(&name.as_str()) {
                    names.push(name);
                }
            }
        }
    }
    let mut differences = Vec::new();
    for name in names {
        let mut groups: Vec<(Option<&str>, Vec<Rank>)> = Vec::new();
        for (rank, arrival) in arrived {
            let value = arrival.settings.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str());
            match groups.iter_mut().find(|(known, _)| *known == value) {
                Some((_, ranks)) => ranks.push(*rank),
                None => groups.push((value, vec![*rank])),
            }
        }
        if groups.len() > 1 {
            let mut parts: Vec<String> = groups
                .iter()
                .take(VALUES_SHOWN)
                .map(|(value, ranks)| ranks_say(ranks, &value.map_or("nothing".into(), shortened)))
                .collect();
            if groups.len() > VALUES_SHOWN {
                parts.push(format!("and {} other values", groups.len() - VALUES_SHOWN));
            }
            differences.push(format!("{}: {}", shortened(name), parts.join("; ")));
        }
    }
    if differences.is_empty() {
        // The same names and values in another order, or a name given twice.
        return Some("their settings are listed in a different order".into());
    }
    let more = differences.len().saturating_sub(SHOWN);
    differences.truncate(SHOWN);
    let mut text = differences.join(". ");
    if more > 0 {
        text.push_str(&format!(". And {more} more settings"));
    }
    Some(text)
}

fn shortened(value: &str) -> String {
    match value.char_indices().nth(VALUE_SHOWN) {
        Some((end, _)) => format!("{}…", &value[..end]),
        None => value.to_owned(),
    }
}

/// Replaces an unspecified ip among a member's addresses by those at which others can reach it.
///
/// That is the address the root saw it at; if that is the loopback, the rank is on the root's host, and so reachable
/// at the addresses of that host (`hosts`).
pub(super) fn settle(member: &mut Member, seen: IpAddr, hosts: &[IpAddr]) {
    let mut reachable: Vec<IpAddr> = Vec::new();
    if seen.is_loopback() {
        reachable.extend_from_slice(hosts);
    }
    reachable.push(seen);
    let mut settled: Vec<SocketAddr> = Vec::new();
    for address in &member.tcp {
        if address.ip().is_unspecified() {
            let both = address.ip() == IpAddr::from(Ipv6Addr::UNSPECIFIED);
            let same = reachable.iter().filter(|ip| both || ip.is_ipv4());
            settled.extend(same.map(|ip| SocketAddr::new(*ip, address.port())));
        } else {
            settled.push(*address);
        }
    }
    let mut distinct: Vec<SocketAddr> = Vec::new();
    for address in settled {
        if !distinct.contains(&address) && distinct.len() < 8 {
            distinct.push(address);
        }
    }
    member.tcp = distinct;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(settings: &[(&str, &str)]) -> Arrival {
        let settings = settings.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        Arrival { settings: Arc::new(settings), member: Member::unknown() }
    }

    #[test]
    fn differences_name_settings_ranks_and_values() {
        let mut arrived = BTreeMap::new();
        arrived.insert(0, arrival(&[("slot_bytes", "262144"), ("planner", "3")]));
        arrived.insert(1, arrival(&[("slot_bytes", "131072"), ("planner", "3")]));
        arrived.insert(2, arrival(&[("slot_bytes", "262144"), ("planner", "3"), ("extra", "1")]));
        assert_eq!(
            difference(&arrived).unwrap(),
            "slot_bytes: ranks 0, 2 say 262144; rank 1 says 131072. extra: ranks 0, 1 say nothing; rank 2 says 1"
        );
        arrived.insert(3, arrival(&[("planner", "3"), ("slot_bytes", "262144")]));
        arrived.remove(&1);
        arrived.remove(&2);
        assert_eq!(difference(&arrived).unwrap(), "their settings are listed in a different order");
    }

    #[test]
    fn ranks_of_one_host_that_see_other_machines_are_named_with_the_first_difference() {
        let on = |host: u8, hardware: &str| {
            let mut arrival = arrival(&[("a", "1")]);
            (arrival.member.host_key, arrival.member.hardware) =
                ([host; 16], Arc::new(hardware.as_bytes().to_vec()));
            arrival
        };
        let first = on(0, "hardware m\nhost h\ngpu g0 on=h\n");
        let settings = first.settings.clone();
        let mut arrived = BTreeMap::from([(0, first), (1, on(1, "hardware other\n")), (2, on(0, ""))]);
        arrived.values_mut().for_each(|arrival| arrival.settings = settings.clone());
        assert_eq!(difference(&arrived), None);
        let other = Arrival { settings, ..on(0, "hardware m\nhost h\ngpu g1 on=h\nnic n on=h\n") };
        arrived.insert(3, other);
        let said = difference(&arrived).expect("another GPU");
        let expected = "rank 0 says \"gpu g0 on=h\" in line 3 of 3 lines, rank 3 says \"gpu g1 on=h\" of 4";
        assert!(said.contains(expected), "{said}");
    }

    #[test]
    fn equal_settings_are_no_difference_and_long_values_are_shortened() {
        let shared = arrival(&[("a", "1")]);
        let mut arrived = BTreeMap::new();
        arrived.insert(1, Arrival { settings: shared.settings.clone(), member: shared.member.clone() });
        arrived.insert(0, shared);
        assert_eq!(difference(&arrived), None);
        let long = "é".repeat(4000);
        arrived.insert(2, arrival(&[("a", &long)]));
        assert!(difference(&arrived).unwrap().chars().count() < 200);
    }

    #[test]
    fn an_unspecified_ip_becomes_the_ones_that_others_can_reach() {
        let settled = |tcp: &[&str], seen: &str, hosts: &[&str]| {
            let mut member = arrival(&[]).member;
            member.tcp = tcp.iter().map(|a| a.parse().unwrap()).collect();
            let hosts: Vec<IpAddr> = hosts.iter().map(|a| a.parse().unwrap()).collect();
            settle(&mut member, seen.parse().unwrap(), &hosts);
            member.tcp.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(settled(&["0.0.0.0:5"], "10.0.0.7", &["10.0.0.1"]), ["10.0.0.7:5"]);
        assert_eq!(
            settled(&["0.0.0.0:5"], "127.0.0.1", &["10.0.0.1", "fd00::1"]),
            ["10.0.0.1:5", "127.0.0.1:5"]
        );
        assert_eq!(
            settled(&["[::]:5"], "127.0.0.1", &["10.0.0.1", "fd00::1"]),
            ["10.0.0.1:5", "[fd00::1]:5", "127.0.0.1:5"]
        );
        assert_eq!(settled(&["192.168.0.9:5"], "10.0.0.7", &[]), ["192.168.0.9:5"]);
    }
}
