use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// A tree of files that goes away with the test.
struct Tree(PathBuf);

impl Tree {
    fn new(files: &[(&str, &str)]) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("collbench-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let tree = Tree(std::env::temp_dir().join(name));
        fs::create_dir_all(&tree.0).unwrap();
        files.iter().for_each(|(path, text)| tree.add(path, text));
        tree
    }

    fn add(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// `cores` cores of two threads each.
    fn cpus(self, cores: usize) -> Self {
        for cpu in 0..2 * cores {
            let topology = format!("sys/devices/system/cpu/cpu{cpu}/topology");
            self.add(&format!("{topology}/physical_package_id"), "0\n");
            self.add(&format!("{topology}/core_id"), &format!("{}\n", cpu % cores));
        }
        self.add("sys/devices/system/cpu/cpufreq/boost", "1");
        self.add("sys/devices/system/cpu/cpu99/online", "0");
        self
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const MEMINFO: (&str, &str) =
    ("proc/meminfo", "MemTotal:       25165824 kB\nMemFree:  1 kB\nMemAvailable:   24536678 kB\n");

fn unlimited() -> Limits {
    Limits { cores: Some(8), affinity: Some(8), quota: None, memory: Some(64 << 30) }
}

#[test]
fn threads_of_a_core_count_once_and_affinity_is_counted_in_cores() {
    let tree = Tree::new(&[]).cpus(4);
    let limits = Limits::read(&tree.0, &[0, 1, 4]);
    assert_eq!((limits.cores, limits.affinity), (Some(4), Some(2)));
    assert_eq!((limits.quota, limits.memory), (None, None));
}

#[test]
fn two_packages_and_siblings_only() {
    let tree = Tree::new(&[]);
    for (cpu, package) in [(0, "0"), (1, "1")] {
        tree.add(&format!("sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"), package);
        tree.add(&format!("sys/devices/system/cpu/cpu{cpu}/topology/core_id"), "0");
    }
    for cpu in [2, 3] {
        tree.add(&format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings"), "c");
    }
    assert_eq!(Limits::read(&tree.0, &[]).cores, Some(3));
}

#[test]
fn a_host_without_sysfs_has_only_its_affinity() {
    let tree = Tree::new(&[]);
    let limits = Limits::read(&tree.0, &[3, 5]);
    assert_eq!((limits.cores, limits.affinity), (None, Some(2)));
}

#[test]
fn quota_of_version_2_is_the_smallest_up_the_tree() {
    let tree = Tree::new(&[
        ("proc/self/cgroup", "0::/jobs/job7\n"),
        ("sys/fs/cgroup/jobs/job7/cpu.max", "max 100000\n"),
        ("sys/fs/cgroup/jobs/cpu.max", "250000 100000\n"),
    ]);
    assert_eq!(quota(&tree.0), Some(2.5));
    tree.add("sys/fs/cgroup/jobs/job7/cpu.max", "150000 100000");
    assert_eq!(quota(&tree.0), Some(1.5));
}

#[test]
fn quota_in_a_container_that_sees_its_own_group_as_root() {
    let tree =
        Tree::new(&[("proc/self/cgroup", "0::/../outside\n"), ("sys/fs/cgroup/cpu.max", "400000 100000\n")]);
    assert_eq!(quota(&tree.0), Some(4.0));
}

#[test]
fn quota_of_version_1() {
    let tree = Tree::new(&[
        ("proc/self/cgroup", "4:memory:/box\n1:cpu,cpuacct:/box\n0::/\n"),
        ("sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "300000"),
        ("sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000"),
        ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1"),
        ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000"),
    ]);
    assert_eq!(quota(&tree.0), Some(3.0));
}

#[test]
fn memory_is_what_is_left_of_the_tightest_limit() {
    let tree = Tree::new(&[MEMINFO]);
    assert_eq!(memory(&tree.0), Some(24_536_678 << 10));
    tree.add("proc/self/cgroup", "0::/a\n");
    tree.add("sys/fs/cgroup/memory.max", "8000000000");
    tree.add("sys/fs/cgroup/a/memory.max", "max");
    assert_eq!(memory(&tree.0), Some(8_000_000_000));
    tree.add("sys/fs/cgroup/memory.current", "3000000000");
    tree.add("sys/fs/cgroup/memory.stat", "anon 5\ninactive_file 1000000000\n");
    assert_eq!(memory(&tree.0), Some(6_000_000_000));
}

#[test]
fn memory_of_version_1_and_old_kernels() {
    let tree = Tree::new(&[
        ("proc/meminfo", "MemTotal: 4096 kB\n"),
        ("proc/self/cgroup", "4:memory:/box\n"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"),
    ]);
    assert_eq!(memory(&tree.0), Some(4 << 20));
    tree.add("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "1048576");
    tree.add("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "48576");
    assert_eq!(memory(&tree.0), Some(1_000_000));
}

#[test]
fn the_smallest_bound_is_named() {
    let choose = |limits: Limits, bytes| limits.choose(bytes).map_err(|failure| failure.message);
    let host = Limits { cores: Some(2), affinity: Some(2), quota: None, memory: Some(25_125_558_272) };
    assert_eq!(
        choose(host, 2_254_857_830),
        Ok((2, "2 ranks: bound by physical cores (2); affinity 2, cgroup cpu none, memory 60 % of 23.4 GiB / 2.1 GiB per rank = 6".into()))
    );
    let (ranks, line) = choose(Limits { affinity: Some(3), ..unlimited() }, 1 << 30).unwrap();
    assert!(ranks == 3 && line.contains("bound by affinity (3); physical cores 8"), "{line}");
    let (ranks, line) = choose(Limits { quota: Some(4.5), ..unlimited() }, 1 << 30).unwrap();
    assert!(ranks == 4 && line.contains("bound by cgroup cpu (4)"), "{line}");
    let (ranks, line) = choose(unlimited(), 8 << 30).unwrap();
    assert!(ranks == 4 && line.contains("bound by memory (4)"), "{line}");
}

#[test]
fn at_least_two_if_they_fit() {
    let (ranks, line) = Limits { cores: Some(1), ..unlimited() }.choose(1 << 20).unwrap();
    assert!(
        ranks == 2 && line.contains("the least that makes sense, although physical cores is 1"),
        "{line}"
    );
    let (ranks, line) = Limits { quota: Some(0.5), ..unlimited() }.choose(1 << 20).unwrap();
    assert!(ranks == 2 && line.contains("although cgroup cpu is 1"), "{line}");
    let tight = Limits { memory: Some(3 << 30), ..unlimited() };
    assert_eq!(tight.choose(3 << 29).unwrap().0, 2);
    let failure = tight.choose(2 << 30).unwrap_err();
    assert_eq!(failure.exit, crate::failure::Exit::Usage);
    assert!(
        failure.message.contains("2 ranks of 2 GiB each need 4 GiB (4294967296 bytes), and 3 GiB can be had"),
        "{failure}"
    );
}

#[test]
fn a_host_of_which_nothing_is_known() {
    let limits = Limits { cores: None, affinity: None, quota: None, memory: None };
    let (ranks, line) = limits.choose(1 << 20).unwrap();
    assert!(ranks == 2 && line.contains("nothing is known"), "{line}");
    assert!(limits.check_memory(1000, 1 << 40).is_ok());
}
