//! Where in its host a rank runs: which last-level cache and which memory node its cores belong to, and pinning.
//!
//! Invariant: what cannot be read, or contradicts itself, is unknown and never an error; a host of unknown caches and
//! nodes counts as flat. Nothing in the process changes unless [`pin`] was asked for. Absent: distances, which are
//! the planner's prices, and devices.

mod claim;
mod host;
pub mod pin;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::Path;

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

pub use claim::Claim;
use host::Host;

/// Numbers of cores, as the kernel has them.
pub type Cores = BTreeSet<u32>;

/// Where in its host a rank runs, as it sends it to the others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Place {
    /// The last-level cache in which all cores lie that the rank may run on, by its lowest core. Unknown where there
    /// is none, or where there are several.
    pub cache: Option<u32>,
    /// The memory node in which all of these cores lie, on a host that has several nodes.
    pub node: Option<u32>,
    /// The cores that the rank may run on.
    pub claim: Claim,
}

impl Place {
    /// Where the calling thread may run.
    pub fn of_thread() -> Self {
        let allowed = allowed();
        if allowed.is_empty() {
            Place::default()
        } else {
            let quota = std::thread::available_parallelism().map_or(1, usize::from);
            let claim = Claim::of(&allowed, quota);
            Place { claim, ..Host::read(Path::new(SYSTEM), &allowed).place(&allowed) }
        }
    }
}

/// Where the kernel describes its cores and nodes.
const SYSTEM: &str = "/sys/devices/system";

/// The cores on which the calling thread may run; none where the kernel does not say.
pub fn allowed() -> Cores {
    let set = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
    (0..CpuSet::count()).filter(|core| set.is_set(*core).unwrap_or(false)).map(|core| core as u32).collect()
}

/// How many ranks share each domain, by the places of all ranks in the order of ranks. The domains are last-level
/// caches, or else memory nodes. The ranks must come domain by domain, equally many in each, at least two of at least
/// two; otherwise the answer is 1.
pub fn per_domain(places: &[Place]) -> u32 {
    let kinds: [fn(&Place) -> Option<u32>; 2] = [|place| place.cache, |place| place.node];
    let even = kinds.iter().find_map(|kind| {
        let numbers: Vec<u32> = places.iter().map(kind).collect::<Option<_>>()?;
        let domains = numbers.iter().collect::<BTreeSet<_>>().len();
        let ranks = numbers.len() / domains.max(1);
        let each = numbers.chunks(ranks.max(1));
        let even = each.len() == domains && each.into_iter().all(|one| one.iter().all(|at| *at == one[0]));
        (even && domains > 1 && ranks > 1).then_some(ranks as u32)
    });
    even.unwrap_or(1)
}
