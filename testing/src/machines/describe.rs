//! The short descriptions: one thing a line, `#` begins a comment.
//!
//! ```text
//! host NAME [vendor=V] [product=P] [hypervisor] [boot=DIGITS]
//! cpu x86_64|arm64 VENDOR FAMILY MODEL NAME_WITH_UNDERSCORES
//! numa N cpus=LIST memory_gib=G [distances=10,21]
//! caches LEVEL KIB of CPUS,STRIDE...       groups of CPUS in a row, with their threads STRIDE further
//! root DDDD:BB [numa=N]
//!   port|up|down BUS VENDOR:DEVICE SPEEDxWIDTH [max=SPEEDxWIDTH] [acs=on|off]
//!   gpu|nic|nvswitch|device BUS VENDOR:DEVICE SPEEDxWIDTH [max=...] [class=...] [numa=N]
//!       of a nic: [ib=NAME rate=WORDS] [net=NAME speed=MBIT] [state=down] [mtu=N]
//! virtual NAME [members=A,B]
//! file PATH = TEXT
//! link PATH -> TARGET
//! nvml LINE                                a line of recorded answers
//! nvlink N A B COUNT                       links of the next numbers of GPUs A and B, at addresses of `nvml` lines
//! nvswitched GPUS ADDRESS:COUNT...         links of all GPUs to switches; the address `hidden` for those that are not seen
//! xgmi A B COUNT                           of the GPUs in the order of the description
//! kfd VERSION MIN_MB_S                     lists the GPUs for AMD's driver
//! ```
//!
//! Devices are indented; what is deeper lies below.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{ANSWERS, Tree};

/// A device on the way down to the current line.
struct Above {
    indent: usize,
    path: String,
    numa: i64,
}

#[derive(Default)]
struct Machine {
    tree: Tree,
    numas: Vec<(u32, String, Vec<u32>)>,
    above: Vec<Above>,
    gpus: Vec<(String, i64)>,
    nics: u64,
    xgmi: Vec<(usize, usize, u64)>,
    kfd: Option<(u64, u64)>,
    answers: String,
    /// Per GPU the number of its next link.
    links: BTreeMap<usize, usize>,
    caches: Vec<(u32, u32, u32, u32)>,
}

pub(super) fn tree(text: &str) -> Result<Tree, String> {
    let mut machine = Machine::default();
    for (line, number) in text.lines().zip(1..) {
        let code = line.split('#').next().unwrap_or_default();
        if !code.trim().is_empty() {
            machine.line(code).ok_or_else(|| format!("line {number}: {code}"))?;
        }
    }
    machine.finish().ok_or_else(|| "it does not fit together".to_owned())
}

/// The value of `key=value` among words.
fn value<'a>(words: &[&'a str], key: &str) -> Option<&'a str> {
    words.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

/// CPUs of a list as the kernel writes it.
fn cpus(list: &str) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        all.extend(first.parse::<u32>().ok()?..=last.parse().ok()?);
    }
    Some(all)
}

fn speed(generation: &str) -> Option<&'static str> {
    Some(match generation {
        "1" => "2.5 GT/s PCIe",
        "2" => "5.0 GT/s PCIe",
        "3" => "8.0 GT/s PCIe",
        "4" => "16.0 GT/s PCIe",
        "5" => "32.0 GT/s PCIe",
        "6" => "64.0 GT/s PCIe",
        "?" => "Unknown",
        _ => return None,
    })
}

impl Machine {
    fn line(&mut self, code: &str) -> Option<()> {
        let indent = code.len() - code.trim_start().len();
        let words: Vec<&str> = code.split_whitespace().collect();
        match words[..] {
            ["host", name, ref rest @ ..] => self.host(name, rest),
            ["cpu", arch, vendor, family, model, name] => self.cpu(arch, vendor, family, model, name),
            ["numa", number, ref rest @ ..] => self.numa(number.parse().ok()?, rest)?,
            ["caches", level, kib, "of", rest] => {
                let (count, stride) = rest.split_once(',')?;
                self.caches.push((
                    level.parse().ok()?,
                    kib.parse().ok()?,
                    count.parse().ok()?,
                    stride.parse().ok()?,
                ));
            }
            ["root", bus, ref rest @ ..] => {
                let numa = value(rest, "numa").map_or(Some(-1), |numa| numa.parse().ok())?;
                self.above = vec![Above { indent, path: format!("sys/devices/pci{bus}"), numa }];
            }
            [
                kind @ ("port" | "up" | "down" | "gpu" | "nic" | "nvswitch" | "device"),
                bus,
                ids,
                lanes,
                ref rest @ ..,
            ] => {
                self.device(indent, kind, bus, ids, lanes, rest)?;
            }
            ["virtual", name, ref rest @ ..] => self.virtual_interface(name, rest),
            ["file", path, "=", ..] => self.tree.put(path, code.split_once(" =")?.1.trim()),
            ["link", path, "->", target] => self.tree.link(path, target),
            ["nvml", ..] => {
                self.answers += code.trim().strip_prefix("nvml")?.trim();
                self.answers += "\n";
            }
            ["nvlink", one, other, count] => {
                let (one, other, count) = (one.parse().ok()?, other.parse().ok()?, count.parse().ok()?);
                self.nvlink(one, other, count)?;
            }
            ["nvswitched", gpus, ref switches @ ..] => self.nvswitched(gpus.parse().ok()?, switches)?,
            ["xgmi", one, other, count] => {
                self.xgmi.push((one.parse().ok()?, other.parse().ok()?, count.parse().ok()?));
            }
            ["kfd", version, least] => self.kfd = Some((version.parse().ok()?, least.parse().ok()?)),
            _ => return None,
        }
        Some(())
    }

    fn host(&mut self, name: &str, rest: &[&str]) {
        let tree = &mut self.tree;
        tree.put("proc/sys/kernel/hostname", name);
        for (key, file) in [("vendor", "sys_vendor"), ("product", "product_name")] {
            if let Some(text) = value(rest, key) {
                tree.put(format!("sys/class/dmi/id/{file}"), text.replace('_', " "));
            }
        }
        if rest.contains(&"hypervisor") {
            tree.put("sys/hypervisor/type", "kvm");
        }
        if let Some(boot) = value(rest, "boot") {
            tree.put("proc/sys/kernel/random/boot_id", boot);
        }
    }

    fn cpu(&mut self, arch: &str, vendor: &str, family: &str, model: &str, name: &str) {
        let name = name.replace('_', " ");
        let text = match arch {
            "arm64" => format!(
                "processor\t: 0\nCPU implementer\t: {vendor}\nCPU architecture: 8\nCPU part\t: {model}"
            ),
            _ => format!(
                "processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: {name}\nflags\t\t: fpu vme"
            ),
        };
        self.tree.put("proc/cpuinfo", text);
    }

    fn numa(&mut self, number: u32, rest: &[&str]) -> Option<()> {
        let place = format!("sys/devices/system/node/node{number}");
        let list = value(rest, "cpus")?;
        let gib: u64 = value(rest, "memory_gib")?.parse().ok()?;
        self.tree.put(format!("{place}/cpulist"), list);
        let kib = gib << 20;
        self.tree.put(
            format!("{place}/meminfo"),
            format!("Node {number} MemTotal:       {kib} kB\nNode {number} MemFree: 1 kB"),
        );
        if let Some(distances) = value(rest, "distances") {
            self.tree.put(format!("{place}/distance"), distances.replace(',', " "));
        }
        let cpus = if list.is_empty() { Vec::new() } else { cpus(list)? };
        self.numas.push((number, list.to_owned(), cpus));
        Some(())
    }

    /// The NUMA domain and its CPUs as files of a device have them.
    fn place(&mut self, path: &str, numa: i64) {
        self.tree.put(format!("{path}/numa_node"), numa.to_string());
        let list = self
            .numas
            .iter()
            .find(|(number, ..)| i64::from(*number) == numa)
            .map(|(_, list, _)| list.clone());
        self.tree.put(format!("{path}/local_cpulist"), list.unwrap_or_default());
    }

    fn lanes(&mut self, path: &str, which: &str, lanes: &str) -> Option<()> {
        let (generation, width) = lanes.split_once('x')?;
        self.tree.put(format!("{path}/{which}_link_speed"), speed(generation)?);
        let width = if width == "?" { "255" } else { width };
        self.tree.put(format!("{path}/{which}_link_width"), width);
        Some(())
    }

    fn device(
        &mut self,
        indent: usize,
        kind: &str,
        bus: &str,
        ids: &str,
        lanes: &str,
        rest: &[&str],
    ) -> Option<()> {
        self.above.retain(|above| above.indent < indent);
        let above = self.above.last()?;
        let numa = value(rest, "numa").map_or(Some(above.numa), |numa| numa.parse().ok())?;
        let path = format!("{}/{bus}", above.path);
        let (vendor, device) = ids.split_once(':')?;
        let class = value(rest, "class").unwrap_or(match kind {
            "gpu" => "0x030200",
            "nic" => "0x020000",
            "nvswitch" => "0x068000",
            "device" => "0x010802",
            _ => "0x060400",
        });
        self.tree.put(format!("{path}/class"), class);
        self.tree.put(format!("{path}/vendor"), format!("0x{vendor}"));
        self.tree.put(format!("{path}/device"), format!("0x{device}"));
        self.tree.put(format!("{path}/subsystem_vendor"), format!("0x{vendor}"));
        self.tree.put(format!("{path}/subsystem_device"), "0x0001");
        self.place(&path, numa);
        if lanes != "-" {
            self.lanes(&path, "current", lanes)?;
            self.lanes(&path, "max", value(rest, "max").unwrap_or(lanes))?;
        }
        if let Some(acs) = value(rest, "acs") {
            let entry = super::Entry::File(config(kind, acs == "on"));
            self.tree.entries.insert(format!("{path}/config"), entry);
        }
        let below = path.strip_prefix("sys/")?;
        self.tree.link(format!("sys/bus/pci/devices/{bus}"), format!("../../../{below}"));
        match kind {
            "gpu" => self.gpus.push((bus.to_owned(), numa)),
            "nic" => self.nic(&path, bus, rest)?,
            _ => {}
        }
        self.above.push(Above { indent, path, numa });
        Some(())
    }

    fn nic(&mut self, path: &str, bus: &str, rest: &[&str]) -> Option<()> {
        self.nics += 1;
        let is_down = value(rest, "state") == Some("down");
        let below = path.strip_prefix("sys/")?;
        if let Some(name) = value(rest, "ib") {
            let place = format!("{path}/infiniband/{name}");
            let guid = format!("b8ce:f603:00{:02x}:{:04x}", self.nics, self.nics * 16);
            self.tree.put(format!("{place}/node_guid"), guid);
            self.tree.link(format!("{place}/device"), format!("../../../{bus}"));
            let port = format!("{place}/ports/1");
            self.tree.put(format!("{port}/state"), if is_down { "1: DOWN" } else { "4: ACTIVE" });
            self.tree.put(format!("{port}/rate"), value(rest, "rate")?.replace('_', " "));
            let is_ethernet = value(rest, "net").is_some();
            self.tree.put(format!("{port}/link_layer"), if is_ethernet { "Ethernet" } else { "InfiniBand" });
            if is_ethernet {
                self.tree.put(format!("{port}/gid_attrs/types/0"), "IB/RoCE v1");
                self.tree.put(format!("{port}/gid_attrs/types/1"), "RoCE v2");
            }
            self.tree
                .link(format!("sys/class/infiniband/{name}"), format!("../../{below}/infiniband/{name}"));
        }
        if let Some(name) = value(rest, "net") {
            let place = format!("{path}/net/{name}");
            self.interface(&place, name, rest);
            self.tree.put(format!("{place}/dev_port"), "0");
            self.tree.link(format!("{place}/device"), format!("../../../{bus}"));
            if let Some(bond) = value(rest, "bond") {
                self.tree.link(
                    format!("{place}/master"),
                    format!("{}virtual/net/{bond}", "../".repeat(path.matches('/').count() + 1)),
                );
            }
            self.tree.link(format!("sys/class/net/{name}"), format!("../../{below}/net/{name}"));
        }
        Some(())
    }

    fn interface(&mut self, place: &str, name: &str, rest: &[&str]) {
        let is_down = value(rest, "state") == Some("down");
        let numbers = name.bytes().fold(7u32, |sum, byte| (sum * 31 + u32::from(byte)) & 0xffff);
        self.tree.put(
            format!("{place}/address"),
            format!("02:00:00:00:{:02x}:{:02x}", numbers >> 8, numbers & 0xff),
        );
        self.tree.put(format!("{place}/operstate"), if is_down { "down" } else { "up" });
        self.tree.put(format!("{place}/carrier"), if is_down { "0" } else { "1" });
        self.tree.put(format!("{place}/mtu"), value(rest, "mtu").unwrap_or("1500"));
        self.tree.put(format!("{place}/type"), "1");
        self.tree.put(format!("{place}/speed"), value(rest, "speed").unwrap_or("-1"));
    }

    fn virtual_interface(&mut self, name: &str, rest: &[&str]) {
        let place = format!("sys/devices/virtual/net/{name}");
        self.interface(&place, name, rest);
        if let Some(members) = value(rest, "members") {
            self.tree.put(format!("{place}/bonding/slaves"), members.replace(',', " "));
        }
        self.tree.link(format!("sys/class/net/{name}"), format!("../../devices/virtual/net/{name}"));
    }

    /// One end of some links.
    fn end(&mut self, gpu: usize, remote: &str, kind: u32, count: usize) {
        let next = self.links.entry(gpu).or_default();
        for link in *next..*next + count {
            // Writing to a String cannot fail.
            let _ = writeln!(self.answers, "nvmlDeviceGetNvLinkRemotePciInfo_v2 {gpu} {link} = {remote}");
            let _ = writeln!(self.answers, "nvmlDeviceGetNvLinkRemoteDeviceType {gpu} {link} = {kind}");
            let _ = writeln!(self.answers, "nvmlDeviceGetNvLinkState {gpu} {link} = 1");
        }
        *next += count;
    }

    fn nvlink(&mut self, one: usize, other: usize, count: usize) -> Option<()> {
        let (first, second) = (self.gpus.get(one)?.0.clone(), self.gpus.get(other)?.0.clone());
        self.end(one, &format!("0000{second}"), 0, count);
        self.end(other, &format!("0000{first}"), 0, count);
        Some(())
    }

    fn nvswitched(&mut self, gpus: usize, switches: &[&str]) -> Option<()> {
        for gpu in 0..gpus {
            for switch in switches {
                let (address, count) = switch.rsplit_once(':')?;
                let remote =
                    if address == "hidden" { "ffffffff:ff:ff.0".into() } else { format!("0000{address}") };
                self.end(gpu, &remote, 2, count.parse().ok()?);
            }
        }
        Some(())
    }

    fn finish(mut self) -> Option<Tree> {
        let online: Vec<String> = self.numas.iter().map(|(number, ..)| number.to_string()).collect();
        if !online.is_empty() {
            self.tree.put("sys/devices/system/node/online", online.join(","));
        }
        self.cores();
        if let Some((version, least)) = self.kfd {
            self.amd(version, least)?;
        }
        if !self.answers.is_empty() {
            let (count, mut text) = (self.gpus.len(), String::new());
            // Writing to a String cannot fail.
            let _ = writeln!(text, "nvmlDeviceGetCount_v2 = {count}");
            for ((bus, _), gpu) in self.gpus.iter().zip(0..) {
                let _ = writeln!(text, "nvmlDeviceGetPciInfo_v3 {gpu} = 0000{bus}");
                let _ = writeln!(
                    text,
                    "nvmlDeviceGetUUID {gpu} = GPU-{:08x}-0000-4000-8000-{:012x}",
                    gpu + 1,
                    gpu + 1
                );
            }
            self.tree.put(ANSWERS, text + self.answers.trim_end());
        }
        Some(self.tree)
    }

    fn cores(&mut self) {
        let numas = std::mem::take(&mut self.numas);
        for (_, _, all) in &numas {
            for &cpu in all {
                let place = format!("sys/devices/system/cpu/cpu{cpu}/cache");
                for ((level, kib, count, stride), index) in self.caches.clone().into_iter().zip(0..) {
                    let place = format!("{place}/index{index}");
                    let first = cpu % stride / count * count;
                    let last = first + count - 1;
                    let has_threads = all.contains(&(first + stride));
                    let threads = if has_threads {
                        format!(",{}-{}", first + stride, last + stride)
                    } else {
                        String::new()
                    };
                    self.tree.put(format!("{place}/level"), level.to_string());
                    self.tree.put(format!("{place}/type"), "Unified");
                    self.tree.put(format!("{place}/size"), format!("{kib}K"));
                    self.tree.put(format!("{place}/shared_cpu_list"), format!("{first}-{last}{threads}"));
                }
            }
        }
        self.numas = numas;
    }

    /// Nodes of AMD's driver: a processor for each NUMA domain, then the GPUs.
    fn amd(&mut self, version: u64, least: u64) -> Option<()> {
        let nodes = "sys/class/kfd/kfd/topology/nodes";
        let processors = self.numas.len();
        for (number, (_, _, all)) in self.numas.iter().enumerate() {
            self.tree.put(
                format!("{nodes}/{number}/properties"),
                format!("cpu_cores_count {}\nsimd_count 0", all.len()),
            );
        }
        for (gpu, (bus, numa)) in self.gpus.clone().iter().enumerate() {
            let place = format!("{nodes}/{}", processors + gpu);
            let parts: Vec<&str> = bus.split([':', '.']).collect();
            let byte = |at: usize| u64::from_str_radix(parts.get(at)?, 16).ok();
            let location = byte(1)? << 8 | byte(2)? << 3 | byte(3)?;
            let unique = 0x1122_3344_5566_7700u64 + gpu as u64;
            self.tree.put(
                format!("{place}/properties"),
                format!(
                    "cpu_cores_count 0\nsimd_count 1216\ngfx_target_version {version}\nlocation_id {location}\ndomain {}\nunique_id {unique}",
                    byte(0)?
                ),
            );
            let node = processors + gpu;
            let mut put = |link: usize, kind: u32, to: usize, most: u64| {
                self.tree.put(
                    format!("{place}/io_links/{link}/properties"),
                    format!("type {kind}\nnode_from {node}\nnode_to {to}\nweight 15\nmin_bandwidth {least}\nmax_bandwidth {most}"),
                );
            };
            put(0, 2, usize::try_from(*numa).unwrap_or(0), 64_000);
            let own = self.xgmi.iter().filter_map(|(one, other, count)| {
                let to = if *one == gpu { *other } else { (*other == gpu).then_some(*one)? };
                Some((to, *count))
            });
            for ((to, count), link) in own.zip(1..) {
                put(link, 11, processors + to, count * least);
            }
        }
        Some(())
    }
}

/// A configuration space with the capability of PCI Express and access control.
fn config(kind: &str, redirects: bool) -> Vec<u8> {
    let mut bytes = vec![0; 0x110];
    bytes[0x34] = 0x40;
    bytes[0x40] = 0x10;
    bytes[0x42] = match kind {
        "port" => 0x42,
        "up" => 0x52,
        "down" => 0x62,
        _ => 0x02,
    };
    // Access control, the first version; its capabilities, then what is on: source validation, redirection, forwarding.
    bytes[0x100..0x104].copy_from_slice(&[0x0d, 0x00, 0x01, 0x00]);
    bytes[0x104] = 0x1f;
    bytes[0x106] = if redirects { 0x1d } else { 0x00 };
    bytes
}
