//! NUMA domains with their memory and distances, and groups of cores that share a last-level cache.
//!
//! Invariant: a CPU is in one domain and in one group; what contradicts that is left out with a note. Absent: which CPUs this
//! process may use (`host.rs`).

use std::collections::{BTreeMap, BTreeSet};

use consort_algorithms::hardware::{Cores, CpuSet, Hardware, LinkKind, NodeId, NodeKind, Numa, Processor};

use super::note::Trouble;
use super::tree::Tree;

/// More domains than a host has.
const NUMAS_MAX: usize = 256;
/// Caches of a CPU that are looked at: there are four or five.
const CACHES_MAX: usize = 16;
/// The firmware's distances are bytes.
const DISTANCE_MAX: u16 = 255;

const NODES: &str = "sys/devices/system/node";
const CPUS: &str = "sys/devices/system/cpu";

/// The domains of a host by their numbers.
pub(crate) type Numas = BTreeMap<u32, NodeId>;

/// Adds NUMA domains, their links and the groups of cores.
pub(crate) fn add(tree: &Tree, hardware: &mut Hardware, host: NodeId, processor: &Processor) -> Numas {
    let domains = domains(tree);
    let mut numas = Numas::new();
    for (number, domain) in &domains {
        let numa = Numa {
            number: Some(*number),
            cpus: Some(domain.cpus.clone()),
            processor: processor.clone(),
            memory_bytes: domain.memory_bytes,
        };
        let id = hardware.add_node("", Some(host), NodeKind::Numa(numa));
        hardware.connect(host, id, LinkKind::Local);
        numas.insert(*number, id);
    }
    let all: BTreeMap<u32, NodeId> = domains
        .iter()
        .flat_map(|(number, domain)| domain.cpus.iter().map(|cpu| (cpu, numas[number])))
        .collect();
    for (above, cores) in groups(tree, &all) {
        let id = hardware.add_node("", Some(host), NodeKind::Cores(cores));
        hardware.connect(above, id, LinkKind::Local);
    }
    join(tree, hardware, &domains, &numas);
    numas
}

struct Domain {
    cpus: CpuSet,
    memory_bytes: Option<u64>,
    /// To the domains that are online, in their order.
    distances: Vec<u16>,
}

fn set(tree: &Tree, path: &str) -> Option<CpuSet> {
    let text = tree.text(path)?;
    let set = text.parse().ok();
    if set.is_none() {
        tree.nonsense(path, &text);
    }
    set
}

/// Domains with CPUs, each CPU in the first that has it.
fn domains(tree: &Tree) -> BTreeMap<u32, Domain> {
    let mut domains = BTreeMap::new();
    let mut taken: BTreeSet<u32> = BTreeSet::new();
    for name in tree.names(NODES) {
        let Some(number) = name.strip_prefix("node").and_then(|digits| digits.parse::<u32>().ok()) else {
            continue;
        };
        let place = format!("{NODES}/{name}");
        let cpus = set(tree, &format!("{place}/cpulist")).unwrap_or_default();
        let memory_bytes = memory(tree, &format!("{place}/meminfo"));
        if cpus.is_empty() {
            // Memory of GPUs on coherent links, and of expanders.
            if memory_bytes.is_some_and(|bytes| bytes > 0) {
                tree.note(place, Trouble::LeftOut { why: "it is memory without CPUs".into() });
            }
            continue;
        }
        let own = CpuSet::of(cpus.iter().filter(|cpu| !taken.contains(cpu)));
        if own.len() < cpus.len() {
            let how = "CPUs of it are in another domain as well, and stay there".to_owned();
            tree.note(place.as_str(), Trouble::Contradiction { how });
        }
        if own.is_empty() {
            continue;
        }
        if domains.len() == NUMAS_MAX {
            tree.note(NODES, Trouble::TooMany { most: NUMAS_MAX });
            break;
        }
        taken.extend(own.iter());
        let distances = distances(tree, &format!("{place}/distance"));
        domains.insert(number, Domain { cpus: own, memory_bytes, distances });
    }
    if domains.is_empty()
        && let Some(cpus) = set(tree, &format!("{CPUS}/online")).filter(|cpus| !cpus.is_empty())
    {
        // A kernel without NUMA: all memory is one domain.
        let memory_bytes = memory(tree, "proc/meminfo");
        domains.insert(0, Domain { cpus, memory_bytes, distances: Vec::new() });
    }
    domains
}

/// Bytes of a `MemTotal` line.
fn memory(tree: &Tree, path: &str) -> Option<u64> {
    let text = tree.text(path)?;
    let line = text.lines().find(|line| line.contains("MemTotal:"))?;
    let number = line.split("MemTotal:").nth(1)?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok();
    let bytes = number.and_then(|kib| kib.checked_mul(1024));
    if bytes.is_none() {
        tree.nonsense(path, line);
    }
    bytes
}

fn distances(tree: &Tree, path: &str) -> Vec<u16> {
    let Some(text) = tree.text(path) else { return Vec::new() };
    let numbers: Option<Vec<u16>> = text
        .split_whitespace()
        .map(|word| word.parse().ok().filter(|distance| (10..=DISTANCE_MAX).contains(distance)))
        .collect();
    if numbers.is_none() {
        tree.nonsense(path, &text);
    }
    numbers.unwrap_or_default()
}

/// Links between all domains, with the distances of the firmware.
fn join(tree: &Tree, hardware: &mut Hardware, domains: &BTreeMap<u32, Domain>, numas: &Numas) {
    // Distances are listed for the domains that are online, those without CPUs as well.
    let online = set(tree, &format!("{NODES}/online")).unwrap_or_default();
    let columns: BTreeMap<u32, usize> = online.iter().zip(0..).collect();
    let distance = |from: u32, to: u32| domains[&from].distances.get(*columns.get(&to)?).copied();
    let numbers: Vec<u32> = domains.keys().copied().collect();
    for (at, &from) in numbers.iter().enumerate() {
        for &to in &numbers[at + 1..] {
            let (there, back) = (distance(from, to), distance(to, from));
            if there.zip(back).is_some_and(|(there, back)| there != back) {
                let how = format!(
                    "the distance from node {from} to {to} differs from the way back; the larger is taken"
                );
                tree.note(NODES, Trouble::Contradiction { how });
            }
            hardware.connect(numas[&from], numas[&to], LinkKind::Socket { distance: there.max(back) });
        }
    }
}

/// Groups of CPUs that share a last-level cache, in the order of their lowest CPUs, each below its domain.
fn groups(tree: &Tree, domains: &BTreeMap<u32, NodeId>) -> Vec<(NodeId, Cores)> {
    let mut groups: Vec<(NodeId, Cores)> = Vec::new();
    let mut seen: BTreeSet<u32> = BTreeSet::new();
    for (&cpu, &domain) in domains {
        if seen.contains(&cpu) {
            continue;
        }
        let place = format!("{CPUS}/cpu{cpu}/cache");
        let Some(mut cores) = last_level(tree, &place) else { continue };
        // CPUs that are off are in no domain.
        cores.cpus = CpuSet::of(cores.cpus.iter().filter(|cpu| domains.contains_key(cpu)));
        let is_whole = cores.cpus.contains(cpu)
            && cores.cpus.iter().all(|cpu| !seen.contains(&cpu) && domains.get(&cpu) == Some(&domain));
        if is_whole {
            seen.extend(cores.cpus.iter());
            groups.push((domain, cores));
            continue;
        }
        // A cache over several domains (Intel's sub-NUMA clusters have some): each domain has its part of the CPUs.
        let own = CpuSet::of(
            cores.cpus.iter().filter(|cpu| !seen.contains(cpu) && domains.get(cpu) == Some(&domain)),
        );
        if own.contains(cpu) {
            seen.extend(own.iter());
            groups.push((domain, Cores { cpus: own, ..cores }));
        } else {
            let how = "it is shared by CPUs that say otherwise, or without this one".to_owned();
            tree.note(place, Trouble::Contradiction { how });
            seen.insert(cpu);
        }
    }
    groups
}

/// The last-level cache of a CPU: the highest level that holds data.
fn last_level(tree: &Tree, place: &str) -> Option<Cores> {
    let mut last: Option<(u8, String)> = None;
    for index in 0..CACHES_MAX {
        let place = format!("{place}/index{index}");
        if !tree.exists(&place) {
            break;
        }
        let Some(level) =
            tree.number::<u8>(&format!("{place}/level")).filter(|level| (1..=8).contains(level))
        else {
            continue;
        };
        let of_data = tree.text(&format!("{place}/type")).is_none_or(|kind| kind != "Instruction");
        if of_data && last.as_ref().is_none_or(|(known, _)| level >= *known) {
            last = Some((level, place));
        }
    }
    let (level, place) = last?;
    let cpus = set(tree, &format!("{place}/shared_cpu_list")).filter(|cpus| !cpus.is_empty())?;
    let path = format!("{place}/size");
    let bytes = tree.text(&path).and_then(|text| {
        let bytes = size(&text);
        if bytes.is_none() {
            tree.nonsense(&path, &text);
        }
        bytes
    });
    Some(Cores { cpus, cache_level: Some(level), cache_bytes: bytes })
}

/// Bytes of a size with a letter: `32768K`.
fn size(text: &str) -> Option<u64> {
    let (digits, unit) = match text.strip_suffix(['K', 'M', 'G']) {
        Some(digits) => (digits, text.chars().last()?),
        None => (text, ' '),
    };
    let shift = match unit {
        'K' => 10,
        'M' => 20,
        'G' => 30,
        _ => 0,
    };
    let number: u64 = digits.parse().ok()?;
    number.checked_mul(1 << shift).filter(|bytes| *bytes > 0)
}
