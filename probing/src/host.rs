//! The host itself: its identity, its processor, whether it is a virtual machine, and what this process may use of it.
//!
//! Invariant: files alone are asked, so that a captured tree answers as its machine did. Absent: memory and devices.

use consort_algorithms::hardware::{CpuSet, Host, Processor};

use super::tree::Tree;

/// The most levels of control groups that are looked at.
const GROUPS_MAX: usize = 32;

/// What this process may use of its host.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// The CPUs on which it may run: those of its affinity that its control group allows.
    pub cpus: Option<CpuSet>,
    /// The NUMA domains from which it may take memory.
    pub numas: Option<CpuSet>,
    /// CPU time for each second, in thousandths of a CPU (`cpu.max`); `None` without a limit.
    pub quota_milli: Option<u64>,
}

/// The processor, and whether its flags say that a hypervisor is below.
pub(crate) struct Cpu {
    pub(crate) processor: Processor,
    pub(crate) name: Option<String>,
    pub(crate) hypervisor: bool,
}

/// The processor by `/proc/cpuinfo`.
pub(crate) fn cpu(tree: &Tree) -> Cpu {
    const PLACE: &str = "proc/cpuinfo";
    let text = tree.head(PLACE).unwrap_or_default();
    let value = |key: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        let found = lines.find(|(name, _)| name.trim() == key);
        found.map(|(_, value)| value.trim().to_owned()).filter(|value| !value.is_empty())
    };
    let number = |key: &str| {
        let text = value(key)?;
        let parsed = match text.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        };
        let number = parsed.filter(|number| *number <= 0xffff);
        if number.is_none() {
            tree.nonsense(&format!("{PLACE}: {key}"), &text);
        }
        number
    };
    let vendor = value("vendor_id");
    let arm = value("CPU implementer");
    let power = value("cpu").filter(|name| name.starts_with("POWER"));
    let kernel = tree.text("proc/sys/kernel/arch").map(|arch| match arch.as_str() {
        "aarch64" => "arm64".to_owned(),
        "ppc64le" => "ppc64".to_owned(),
        _ => arch,
    });
    let arch = kernel.filter(|arch| is_word(arch)).or_else(|| {
        let known = [(vendor.is_some(), "x86_64"), (arm.is_some(), "arm64"), (power.is_some(), "ppc64")];
        known.into_iter().find(|(is_it, _)| *is_it).map(|(_, arch)| arch.to_owned())
    });
    // NCCL's names of vendors: those of ARM processors are one.
    let vendor = vendor.filter(|vendor| is_word(vendor)).or_else(|| arm.is_some().then(|| "ARM".to_owned()));
    let (family, model) = (number("cpu family"), number("model"));
    let flags = value("flags").unwrap_or_default();
    Cpu {
        processor: Processor { arch, vendor, family, model },
        name: value("model name").or(power).filter(|name| is_line(name)),
        hypervisor: flags.split_whitespace().any(|flag| flag == "hypervisor"),
    }
}

/// Whether a text is a short word, as names of vendors are.
fn is_word(text: &str) -> bool {
    (1..=32).contains(&text.len()) && text.chars().all(|c| c.is_ascii_graphic())
}

/// Whether a text is a short line, as names of products are.
pub(crate) fn is_line(text: &str) -> bool {
    (1..=128).contains(&text.len()) && text.chars().all(|c| c.is_ascii_graphic() || c == ' ')
}

/// The host's name for users.
pub(crate) fn name(tree: &Tree) -> String {
    tree.text("proc/sys/kernel/hostname").filter(|name| is_word(name)).unwrap_or_default()
}

/// The host by its firmware and its kernel.
pub(crate) fn host(tree: &Tree, cpu: &Cpu) -> Host {
    let dmi = |name: &str| tree.text(&format!("sys/class/dmi/id/{name}")).filter(|text| is_line(text));
    let vendor = dmi("sys_vendor").unwrap_or_default();
    // A boot has one identity in all containers of a host, but for those that hide it.
    let boot = tree.text("proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = boot.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    let product = dmi("product_name").unwrap_or_default();
    // `m7i.metal-24xl`: the whole machine, of the vendor of its virtual ones.
    let is_metal = product.split('.').nth(1).is_some_and(|size| size.starts_with("metal"));
    let by_vendor = ["QEMU", "Amazon EC2", "Google", "Xen", "VMware", "KVM", "OpenStack"];
    let is_virtual = cpu.hypervisor
        || tree.exists("sys/hypervisor/type")
        || !is_metal && by_vendor.iter().any(|known| vendor.contains(known))
        // Hyper-V, whose guests on ARM say it nowhere else: the vendor makes laptops as well.
        || dmi("product_name").as_deref() == Some("Virtual Machine");
    Host {
        hash: (digits.len() == 16).then(|| format!("0x{digits}")),
        model: dmi("product_name").or_else(|| {
            // The firmware of machines without DMI (device tree).
            let text = tree.text("proc/device-tree/model")?;
            Some(text.trim_end_matches('\0').to_owned()).filter(|text| is_line(text))
        }),
        is_virtual: (is_virtual || !cpu.processor.arch.as_deref().unwrap_or_default().is_empty())
            .then_some(is_virtual),
        ..Host::default()
    }
}

/// What this process may use, by its status and its control groups.
pub(crate) fn limits(tree: &Tree) -> Limits {
    let status = tree.text("proc/self/status").unwrap_or_default();
    let list = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        let set = line.trim_start_matches(':').parse::<CpuSet>().ok();
        if set.is_none() {
            tree.nonsense(&format!("proc/self/status: {key}"), line);
        }
        set.filter(|set| !set.is_empty())
    };
    let groups = tree.text("proc/self/cgroup").unwrap_or_default();
    let mut limits =
        Limits { cpus: list("Cpus_allowed_list"), numas: list("Mems_allowed_list"), quota_milli: None };
    for line in groups.lines().take(GROUPS_MAX) {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            tree.nonsense("proc/self/cgroup", line);
            continue;
        };
        let has = |name: &str| controllers.split(',').any(|controller| controller == name);
        if controllers.is_empty() {
            for place in above("sys/fs/cgroup", path) {
                restrict(tree, &mut limits, &place, "cpuset.cpus.effective");
                keep_least(&mut limits.quota_milli, quota(tree, &format!("{place}/cpu.max")));
            }
        } else if has("cpuset") {
            for place in above("sys/fs/cgroup/cpuset", path) {
                restrict(tree, &mut limits, &place, "cpuset.effective_cpus");
            }
        } else if has("cpu") {
            // The directory has the name of the controllers that are mounted together.
            let mounted = ["cpu", "cpu,cpuacct", controllers].map(|name| format!("sys/fs/cgroup/{name}"));
            if let Some(mount) = mounted.iter().find(|mount| tree.exists(mount)) {
                for place in above(mount, path) {
                    keep_least(&mut limits.quota_milli, old_quota(tree, &place));
                }
            }
        }
    }
    limits
}

/// The control group and those above it. In a container the path may be that of the host, and the group is the mount itself.
fn above(mount: &str, path: &str) -> Vec<String> {
    let parts: Vec<&str> =
        path.split('/').filter(|part| !part.is_empty() && *part != "..").take(GROUPS_MAX).collect();
    (0..=parts.len()).rev().map(|length| format!("{mount}/{}", parts[..length].join("/"))).collect()
}

fn restrict(tree: &Tree, limits: &mut Limits, place: &str, file: &str) {
    let path = format!("{}/{file}", place.trim_end_matches('/'));
    let Some(text) = tree.text(&path).filter(|text| !text.is_empty()) else { return };
    let Ok(set) = text.parse::<CpuSet>() else { return tree.nonsense(&path, &text) };
    let both = match &limits.cpus {
        Some(cpus) => CpuSet::of(cpus.iter().filter(|cpu| set.contains(*cpu))),
        None => set,
    };
    if !both.is_empty() {
        limits.cpus = Some(both);
    }
}

fn keep_least(least: &mut Option<u64>, other: Option<u64>) {
    *least = match (*least, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    };
}

/// Thousandths of a CPU of `QUOTA PERIOD` in microseconds; `max` is no limit.
fn quota(tree: &Tree, path: &str) -> Option<u64> {
    let text = tree.text(path)?;
    let (quota, period) = text.split_once(' ')?;
    if quota == "max" {
        return None;
    }
    milli(tree, path, &text, quota.parse().ok(), period.trim().parse().ok())
}

fn old_quota(tree: &Tree, place: &str) -> Option<u64> {
    let path = format!("{}/cpu.cfs_quota_us", place.trim_end_matches('/'));
    let quota: i64 = tree.number(&path)?;
    let period: u64 = tree.number(&format!("{}/cpu.cfs_period_us", place.trim_end_matches('/')))?;
    // -1 is no limit.
    if quota < 0 {
        None
    } else {
        milli(tree, &path, &quota.to_string(), u64::try_from(quota).ok(), Some(period))
    }
}

fn milli(tree: &Tree, path: &str, text: &str, quota: Option<u64>, period: Option<u64>) -> Option<u64> {
    let found = quota.zip(period).and_then(|(quota, period)| quota.checked_mul(1000)?.checked_div(period));
    let found = found.filter(|milli| (1..=65_536_000).contains(milli));
    if found.is_none() {
        tree.nonsense(path, text);
    }
    found
}
