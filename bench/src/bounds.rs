//! How many ranks a host carries: cores, affinity, control-group quota, memory.
//!
//! Invariant: every file is read below a root that the caller names, so that tests use trees of their own;
//! a file that is missing or not understood is no bound, never an error. Control groups are read at the
//! process's group and at every group above it, in both versions of the interface.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::sizes::human;

/// Part of the memory that the ranks may take together, in percent.
const MEMORY_PERCENT: u64 = 60;
/// What a rank needs besides the measured buffers: the library's fixed memory.
const LIBRARY_BYTES: u64 = 16 << 20;

/// What one rank needs, given its buffers.
pub(crate) fn rank_bytes(buffer_bytes: u64) -> u64 {
    buffer_bytes.saturating_add(LIBRARY_BYTES)
}

/// What was read of the host.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Limits {
    /// Physical cores of the machine.
    pub(crate) cores: Option<u32>,
    /// Physical cores that this process may run on.
    pub(crate) affinity: Option<u32>,
    /// Processors' worth of time.
    pub(crate) quota: Option<f64>,
    /// Bytes that can still be had.
    pub(crate) memory: Option<u64>,
}

impl Limits {
    /// Reads them below `root`, for a process that may run on the processors `allowed`.
    pub(crate) fn read(root: &Path, allowed: &[usize]) -> Self {
        let cores = physical_cores(root, None);
        Self {
            cores,
            affinity: match physical_cores(root, Some(allowed)) {
                None if !allowed.is_empty() => Some(allowed.len() as u32),
                found => found,
            },
            quota: quota(root),
            memory: memory(root),
        }
    }

    /// Reads those of this process.
    pub(crate) fn of_this_process() -> Self {
        Self::read(Path::new("/"), &affinity())
    }

    fn memory_text(&self) -> String {
        self.memory.map_or("unknown".into(), human)
    }

    /// Fails if `ranks` ranks that need `rank_bytes` each do not fit.
    pub(crate) fn check_memory(&self, ranks: u32, rank_bytes: u64) -> Result<(), Failure> {
        let needed = rank_bytes.saturating_mul(u64::from(ranks));
        if self.memory.is_none_or(|memory| needed <= memory) {
            return Ok(());
        }
        Err(Failure::usage(format!(
            "not enough memory: {ranks} ranks of {} each need {} ({needed} bytes), and {} can be had; use a smaller size{}, \
             or raise the memory limit",
            human(rank_bytes),
            human(needed),
            self.memory_text(),
            if ranks > 2 { " or fewer ranks" } else { "" },
        )))
    }

    /// The number of ranks for this host, and the line that says why.
    pub(crate) fn choose(&self, rank_bytes: u64) -> Result<(u32, String), Failure> {
        let fit = self.memory.map(|memory| {
            u32::try_from(memory / 100 * MEMORY_PERCENT / rank_bytes.max(1)).unwrap_or(u32::MAX)
        });
        let quota = self.quota.map(|quota| (quota.floor() as u32).max(1));
        let bounds = [
            ("physical cores", self.cores),
            ("affinity", self.affinity),
            ("cgroup cpu", quota),
            ("memory", fit),
        ];
        let smallest =
            bounds.iter().filter_map(|(name, bound)| Some((bound.as_ref()?, *name))).min_by_key(|b| b.0);
        let (ranks, why) = match smallest {
            Some((bound, name)) if *bound >= 2 => (*bound, format!("bound by {name} ({bound})")),
            Some((bound, name)) => (2, format!("the least that makes sense, although {name} is {bound}")),
            None => (2, "nothing is known of this host".to_owned()),
        };
        self.check_memory(ranks, rank_bytes)?;
        let of = |name: &str, bound: Option<u32>| {
            format!("{name} {}", bound.map_or("unknown".into(), |bound| bound.to_string()))
        };
        let quota = self.quota.map_or("none".into(), |quota| format!("{quota:.2}"));
        let memory = format!(
            "memory {MEMORY_PERCENT} % of {} / {} per rank{}",
            self.memory_text(),
            human(rank_bytes),
            fit.map_or(String::new(), |fit| format!(" = {fit}")),
        );
        let others = [
            of("physical cores", self.cores),
            of("affinity", self.affinity),
            format!("cgroup cpu {quota}"),
            memory,
        ];
        let others: Vec<String> = others
            .into_iter()
            .filter(|other| {
                !(why.starts_with("bound by")
                    && !other.starts_with("memory")
                    && smallest.is_some_and(|(_, name)| other.starts_with(name)))
            })
            .collect();
        Ok((ranks, format!("{ranks} ranks: {why}; {}", others.join(", "))))
    }
}

/// The processors that this process may run on.
fn affinity() -> Vec<usize> {
    use nix::sched::{CpuSet, sched_getaffinity};
    let Ok(set) = sched_getaffinity(nix::unistd::Pid::from_raw(0)) else { return Vec::new() };
    (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).collect()
}

fn read(path: PathBuf) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// Distinct (package, core) pairs of the processors in `only`, or of all that are online.
fn physical_cores(root: &Path, only: Option<&[usize]>) -> Option<u32> {
    let cpus = root.join("sys/devices/system/cpu");
    let mut cores = HashSet::new();
    for entry in fs::read_dir(&cpus).ok()?.flatten() {
        let name = entry.file_name();
        let Some(number) = name.to_str().and_then(|name| name.strip_prefix("cpu")?.parse::<usize>().ok())
        else {
            continue;
        };
        if only.is_some_and(|only| !only.contains(&number)) {
            continue;
        }
        // A processor that is offline has no topology directory.
        let topology = entry.path().join("topology");
        let core = match (read(topology.join("physical_package_id")), read(topology.join("core_id"))) {
            (Some(package), Some(core)) => format!("{package}/{core}"),
            _ => match read(topology.join("thread_siblings")) {
                Some(siblings) => siblings,
                None => continue,
            },
        };
        cores.insert(core);
    }
    (!cores.is_empty()).then_some(cores.len() as u32)
}

/// The directories of this process's control group for a controller of version 1 or, with `None`, of
/// version 2: from the group itself up to the root.
fn groups(root: &Path, controller: Option<&str>) -> Vec<PathBuf> {
    let lines = read(root.join("proc/self/cgroup")).unwrap_or_default();
    let own = lines.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let ours = match controller {
            None => controllers.is_empty(),
            Some(controller) => controllers.split(',').any(|name| name == controller),
        };
        ours.then(|| path.to_owned())
    });
    let own = own.unwrap_or_default();
    let mounts: &[&str] = match controller {
        None => &["", "unified"],
        Some("cpu") => &["cpu", "cpu,cpuacct", "cpuacct,cpu"],
        Some(controller) => &[controller],
    };
    let mut all = Vec::new();
    for mount in mounts {
        let mut directory = root.join("sys/fs/cgroup").join(mount);
        all.push(directory.clone());
        // Where the group lies outside of what this container sees, only the parts that exist count.
        for part in own.split('/').filter(|part| !part.is_empty() && *part != "..") {
            directory.push(part);
            all.push(directory.clone());
        }
    }
    all
}

fn quota(root: &Path) -> Option<f64> {
    let ratio = |quota: &str, period: &str| {
        let (quota, period) = (quota.parse::<f64>().ok()?, period.parse::<f64>().ok()?);
        (quota > 0.0 && period > 0.0).then_some(quota / period)
    };
    let second = groups(root, None).into_iter().filter_map(|group| {
        let line = read(group.join("cpu.max"))?;
        let (quota, period) = line.split_once(' ')?;
        ratio(quota, period)
    });
    let first = groups(root, Some("cpu")).into_iter().filter_map(|group| {
        ratio(&read(group.join("cpu.cfs_quota_us"))?, &read(group.join("cpu.cfs_period_us"))?)
    });
    second.chain(first).min_by(f64::total_cmp)
}

/// What the machine has free, or what a control group leaves, whichever is less.
fn memory(root: &Path) -> Option<u64> {
    let info = read(root.join("proc/meminfo")).unwrap_or_default();
    let kilobytes = |key: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    let machine = kilobytes("MemAvailable").or(kilobytes("MemTotal")).map(|kilobytes| kilobytes << 10);
    // Cached file pages count as usage and are given back under pressure.
    let left = |group: &Path, limit: &str, usage: &str, cache: &str| {
        let limit = read(group.join(limit))?.parse::<u64>().ok()?;
        let usage = read(group.join(usage)).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        let stat = read(group.join("memory.stat")).unwrap_or_default();
        let cached =
            stat.lines().find_map(|line| line.strip_prefix(cache)?.trim().parse::<u64>().ok()).unwrap_or(0);
        Some(limit.saturating_sub(usage.saturating_sub(cached)))
    };
    let second = groups(root, None)
        .into_iter()
        .filter_map(|group| left(&group, "memory.max", "memory.current", "inactive_file "));
    let first = groups(root, Some("memory")).into_iter().filter_map(|group| {
        left(&group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ")
    });
    machine.into_iter().chain(second).chain(first).min()
}

#[cfg(test)]
mod tests;
