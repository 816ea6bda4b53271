//! What the kernel says of the cores of a host, below a given root: `/sys/devices/system` or a test's.
//!
//! Invariant: pure but for reading; the same files give the same host. A core has no cache or no node where its files
//! are missing, malformed or contradict each other. Absent: which ranks may run where.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::{Cores, Place};

/// A number of a core above this one is taken for an error of the file.
const CORE_MAX: u32 = 1 << 16;
/// Caches of a core that are looked at; there are four or five.
const CACHES_MAX: usize = 16;
/// The level of the cache that cores of a complex share.
const LAST_LEVEL: &str = "3";

/// Caches, memory nodes and threads of cores.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Host {
    /// By core, the lowest one of those that share its last-level cache.
    caches: BTreeMap<u32, u32>,
    /// By core, its memory node; none where two claim it.
    nodes: BTreeMap<u32, Option<u32>>,
    /// By core, the lowest one of those that are threads of the same physical core.
    threads: BTreeMap<u32, u32>,
}

impl Host {
    /// The caches and nodes of `cores` below `root`, without threads.
    pub(crate) fn read(root: &Path, cores: &Cores) -> Self {
        let mut host = Host { nodes: nodes(&root.join("node")), ..Host::default() };
        for &core in cores {
            // What the files of one core of a group say holds for the whole group.
            let place = root.join(format!("cpu/cpu{core}/cache"));
            note(&mut host.caches, core, || shared_cache(&place));
        }
        host
    }

    /// The same host with threads.
    pub(super) fn with_threads(mut self, root: &Path, cores: &Cores) -> Self {
        for &core in cores {
            let place = root.join(format!("cpu/cpu{core}/topology/thread_siblings_list"));
            note(&mut self.threads, core, || list(&place));
        }
        self
    }

    /// The memory node of a core, on a host with several.
    pub(super) fn node(&self, core: u32) -> Option<u32> {
        let mut all = self.nodes.values().flatten();
        let first = all.next()?;
        if all.all(|node| node == first) { None } else { self.nodes.get(&core).copied().flatten() }
    }

    /// The last-level cache of a core, by its lowest core.
    pub(super) fn cache(&self, core: u32) -> Option<u32> {
        self.caches.get(&core).copied()
    }

    /// The lowest core that is a thread of the same physical core.
    pub(super) fn first_thread(&self, core: u32) -> u32 {
        self.threads.get(&core).copied().unwrap_or(core)
    }

    /// The place of a rank that may run on these cores alone.
    pub(crate) fn place(&self, allowed: &Cores) -> Place {
        let common = |of: &dyn Fn(u32) -> Option<u32>| {
            let mut all = allowed.iter().map(|core| of(*core));
            let first = all.next()??;
            all.all(|other| other == Some(first)).then_some(first)
        };
        Place {
            cache: common(&|core| self.cache(core)),
            node: common(&|core| self.node(core)),
            ..Place::default()
        }
    }
}

/// From now on the lowest core of the group that `group` finds for `core` stands for every core of it.
fn note(known: &mut BTreeMap<u32, u32>, core: u32, group: impl FnOnce() -> Option<Cores>) {
    if known.contains_key(&core) {
        return;
    }
    let Some(cores) = group().filter(|cores| cores.contains(&core)) else { return };
    let Some(&lowest) = cores.first() else { return };
    // Overlapping groups contradict each other.
    if cores.iter().any(|core| known.contains_key(core)) {
        return;
    }
    known.extend(cores.into_iter().map(|core| (core, lowest)));
}

/// The cores that share the last-level cache that `place` describes.
fn shared_cache(place: &Path) -> Option<Cores> {
    let word = |at: &Path, name: &str| {
        Some(fs::read_to_string(at.join(name)).ok()?.trim().to_owned()).filter(|text| !text.is_empty())
    };
    (0..CACHES_MAX).find_map(|index| {
        let place = place.join(format!("index{index}"));
        let is_last = word(&place, "level")? == LAST_LEVEL;
        let of_data = word(&place, "type").is_none_or(|kind| kind != "Instruction");
        // The cache's `id` would do as well, but not every kernel and machine has it.
        if is_last && of_data { list(&place.join("shared_cpu_list")) } else { None }
    })
}

/// The memory node of every core.
fn nodes(place: &Path) -> BTreeMap<u32, Option<u32>> {
    let mut nodes = BTreeMap::new();
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("node")?.parse::<u32>().ok());
        let Some(number) = number else { continue };
        for core in list(&entry.path().join("cpulist")).unwrap_or_default() {
            nodes.entry(core).and_modify(|node| *node = None).or_insert(Some(number));
        }
    }
    nodes
}

fn list(file: &Path) -> Option<Cores> {
    parse_list(&fs::read_to_string(file).ok()?)
}

/// A list of cores as the kernel writes it: `0-3,8,10-11`.
pub(super) fn parse_list(text: &str) -> Option<Cores> {
    let mut cores = Cores::new();
    let text = text.trim();
    if text.is_empty() {
        return Some(cores);
    }
    let number = |text: &str| text.parse::<u32>().ok().filter(|core| *core <= CORE_MAX);
    for range in text.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return None;
        }
        cores.extend(first..=last);
    }
    Some(cores)
}
