//! A machine as lines of text, out and in: the repository's own form.
//!
//! The first line is `hardware NAME`. A node is `KIND NAME on=HOST key=value…`, a link `link FROM TO KIND key=value…`, after
//! both its ends. Keys of other formats stand behind a `+`. In values, whitespace, `%`, `#` and control characters are written
//! as `%` and two hexadecimal digits. Blank lines and everything after `#` are skipped.
//!
//! Invariant: reading what was written gives the machine again, whatever it came from.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fmt::Write;
use std::str::FromStr;

use super::error::{Format, Place, ReadError};
use crate::hardware::check::{LINKS_MAX, NODES_MAX};
use crate::hardware::{
    Bridge, BusId, Cores, CpuSet, Gpu, GpuDirect, Hardware, Host, Iommu, Lanes, Link, LinkKind, LinkLayer,
    Nic, Node, NodeId, NodeKind, Numa, Pci, Port, PortState, Processor,
};
use crate::topology::Fields;

/// A line under construction.
struct Line(String);

impl Line {
    /// Adds `key=value`.
    fn put(&mut self, key: &str, value: Option<impl fmt::Display>) {
        if let Some(value) = value {
            self.0 += " ";
            self.0 += key;
            self.0 += "=";
            escape(&value.to_string(), &mut self.0);
        }
    }

    fn put_pci(&mut self, pci: &Pci) {
        let number = |value: Option<u16>| value.map(|value| format!("0x{value:04x}"));
        self.put("bus", pci.bus);
        self.put("class", pci.class.map(|class| format!("0x{class:06x}")));
        self.put("vendor", number(pci.vendor));
        self.put("device", number(pci.device));
        self.put("subsystem_vendor", number(pci.subsystem_vendor));
        self.put("subsystem_device", number(pci.subsystem_device));
    }
}

fn escape(value: &str, into: &mut String) {
    for letter in value.chars() {
        if letter.is_whitespace() || letter.is_control() || "%#".contains(letter) {
            let mut bytes = [0; 4];
            for byte in letter.encode_utf8(&mut bytes).bytes() {
                // Writing to a String cannot fail.
                let _ = write!(into, "%{byte:02x}");
            }
        } else {
            into.push(letter);
        }
    }
}

fn unescape(value: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.bytes();
    while let Some(byte) = rest.next() {
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16).map(|digit| digit as u8);
        let byte = if byte == b'%' { digit(rest.next())? << 4 | digit(rest.next())? } else { byte };
        bytes.push(byte);
    }
    String::from_utf8(bytes).ok()
}

/// The text form.
pub(super) fn write(hardware: &Hardware) -> String {
    let mut header = Line("hardware".into());
    if !hardware.name.is_empty() {
        header.0 += " ";
        escape(&hardware.name, &mut header.0);
    }
    let mut text = header.0 + "\n";
    for node in hardware.nodes() {
        let mut line = Line(format!("{} {}", node.kind.word(), node.name));
        line.put("on", node.host.map(|host| &hardware.node(host).name));
        put_kind(&mut line, &node.kind);
        for (key, value) in &node.extra {
            let mut escaped = String::from("+");
            escape(key, &mut escaped);
            line.put(&escaped.replace('=', "%3d"), Some(value));
        }
        text += &line.0;
        text += "\n";
    }
    for link in hardware.links() {
        let (from, to) = (&hardware.node(link.from).name, &hardware.node(link.to).name);
        let mut line = Line(format!("link {from} {to} {}", link.kind.word()));
        match link.kind {
            LinkKind::NvLink { generation, count } => {
                line.put("generation", generation);
                line.put("count", Some(count));
            }
            LinkKind::Xgmi { count } | LinkKind::C2c { count } => line.put("count", Some(count)),
            LinkKind::Pcie { now, best } => {
                line.put("generation", now.generation);
                line.put("width", now.width);
                line.put("best_generation", best.generation);
                line.put("best_width", best.width);
            }
            LinkKind::Socket { distance } => line.put("distance", distance),
            LinkKind::Local | LinkKind::Network => {}
        }
        line.put("bytes_s", link.bytes_s);
        line.put("latency_ns", link.latency_ns);
        text += &line.0;
        text += "\n";
    }
    text
}

fn put_kind(line: &mut Line, kind: &NodeKind) {
    let yes = |value: bool| value.then_some("yes");
    match kind {
        NodeKind::Host(host) => {
            line.put("hash", host.hash.as_ref());
            line.put("model", host.model.as_ref());
            line.put("virtual", host.is_virtual.map(|is| if is { "yes" } else { "no" }));
            line.put("iommu", host.iommu.map(|iommu| word(&Iommu::WORDS, iommu)));
            line.put("gpudirect", host.gpudirect.map(|way| word(&GpuDirect::WORDS, way)));
        }
        NodeKind::Numa(Numa { number, cpus, processor, memory_bytes }) => {
            line.put("number", *number);
            line.put("cpus", cpus.as_ref());
            line.put("arch", processor.arch.as_ref());
            line.put("vendor", processor.vendor.as_ref());
            line.put("family", processor.family);
            line.put("model", processor.model);
            line.put("memory_bytes", *memory_bytes);
        }
        NodeKind::Cores(Cores { cpus, cache_level, cache_bytes }) => {
            line.put("cpus", Some(cpus));
            line.put("cache_level", *cache_level);
            line.put("cache_bytes", *cache_bytes);
        }
        NodeKind::Root(bus) => line.put("bus", *bus),
        NodeKind::Bridge(Bridge { pci, acs }) => {
            line.put_pci(pci);
            line.put("acs", acs.map(|acs| if acs { "yes" } else { "no" }));
        }
        NodeKind::Gpu(gpu) => {
            line.put_pci(&gpu.pci);
            line.put("index", gpu.index);
            line.put("rank", gpu.rank);
            line.put("sm", gpu.sm);
            line.put("gcn", gpu.gcn.as_ref());
            line.put("uuid", gpu.uuid.as_ref());
            line.put("model", gpu.model.as_ref());
            line.put("described", yes(gpu.described));
            line.put("links_known", yes(gpu.links_known));
        }
        NodeKind::NvSwitch(pci) => line.put_pci(pci),
        NodeKind::Nic(Nic { pci }) => {
            line.put("pci", yes(pci.is_some()));
            if let Some(pci) = pci {
                line.put_pci(pci);
            }
        }
        NodeKind::Port(port) => put_port(line, port),
        NodeKind::Switch { .. } => {}
    }
}

fn put_port(line: &mut Line, port: &Port) {
    line.put("device", port.device.as_ref());
    line.put("index", port.index);
    line.put("number", port.number);
    line.put("speed_mbit_s", port.speed_mbit_s);
    line.put("latency_ns", port.latency_ns);
    line.put("guid", port.guid.map(|guid| format!("0x{guid:x}")));
    line.put(
        "state",
        match port.state {
            PortState::Unknown => None,
            PortState::Up => Some("up"),
            PortState::Down => Some("down"),
        },
    );
    line.put(
        "layer",
        match port.layer {
            LinkLayer::Unknown => None,
            LinkLayer::Ethernet => Some("ethernet"),
            LinkLayer::InfiniBand => Some("infiniband"),
            LinkLayer::Wireless => Some("wireless"),
        },
    );
    line.put("virtual", port.virtual_device.then_some("yes"));
}

/// Reads the text form.
///
/// # Errors
///
/// The first line that is not understood, and what makes no sense (see [`Hardware::check`]).
pub(super) fn read(text: &str) -> Result<Hardware, ReadError> {
    let place = Place::new(Format::Hardware, text);
    let mut reader =
        Reader { hardware: Hardware::default(), names: HashMap::new(), lines: Vec::new(), begun: false };
    for (line, number) in text.lines().zip(1u32..) {
        let words: Vec<&str> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
        if !words.is_empty() {
            let remedy = "correct the line; the form is described in docs/adr/0019-hardware-model.md";
            reader.line(&words, number).map_err(|reason| place.error(number, reason, remedy))?;
        }
    }
    if let Err(fault) = reader.hardware.check() {
        let line = fault.nodes.last().map_or(1, |id| reader.lines[id.index()]);
        return Err(place.error(line, fault.reason, &fault.remedy));
    }
    Ok(reader.hardware)
}

struct Reader {
    hardware: Hardware,
    names: HashMap<String, NodeId>,
    lines: Vec<u32>,
    begun: bool,
}

impl Reader {
    fn line(&mut self, words: &[&str], number: u32) -> Result<(), String> {
        match (words, self.begun) {
            (["hardware", name @ ..], false) if name.len() < 2 => {
                let name = name.first().copied().unwrap_or_default();
                self.hardware.name = unescape(name).ok_or_else(|| format!("{name:?} is no name"))?;
                self.begun = true;
                Ok(())
            }
            (_, false) => Err("the first line is not `hardware NAME`".into()),
            (["link", from, to, kind, fields @ ..], true) => self.link(from, to, kind, Fields::new(fields)?),
            ([kind, name, fields @ ..], true) => self.node(kind, name, Fields::new(fields)?, number),
            _ => Err(format!("not understood: {}", words.join(" "))),
        }
    }

    fn find(&self, name: &str) -> Result<NodeId, String> {
        self.names.get(name).copied().ok_or_else(|| format!("there is no node {name:?} above this line"))
    }

    fn node(&mut self, word: &str, name: &str, mut fields: Fields<'_>, line: u32) -> Result<(), String> {
        let host = value::<String>(&mut fields, "on")?.map(|host| self.find(&host)).transpose()?;
        let mut extra = BTreeMap::new();
        for (key, value) in fields.beginning_with("+") {
            let plain = |text: &str| unescape(text).ok_or_else(|| format!("{text:?} is badly escaped"));
            if extra.insert(plain(key)?, plain(value)?).is_some() {
                return Err(format!("+{key} is given twice"));
            }
        }
        let kind = kind(word, &mut fields)?;
        fields.end()?;
        if self.hardware.nodes().len() == NODES_MAX {
            return Err(format!("there are more than {NODES_MAX} nodes"));
        }
        let id = self.hardware.add_node(name, host, kind);
        if self.names.insert(name.to_owned(), id).is_some() {
            return Err(format!("there are two nodes {name:?}"));
        }
        let node: &mut Node = self.hardware.node_mut(id);
        node.extra = extra;
        self.lines.push(line);
        Ok(())
    }

    fn link(&mut self, from: &str, to: &str, word: &str, mut fields: Fields<'_>) -> Result<(), String> {
        let (from, to) = (self.find(from)?, self.find(to)?);
        let count = |fields: &mut Fields<'_>| value(fields, "count")?.ok_or("count= is missing".to_owned());
        let kind = match word {
            "local" => LinkKind::Local,
            "nvlink" => {
                LinkKind::NvLink { generation: value(&mut fields, "generation")?, count: count(&mut fields)? }
            }
            "xgmi" => LinkKind::Xgmi { count: count(&mut fields)? },
            "c2c" => LinkKind::C2c { count: count(&mut fields)? },
            "pcie" => LinkKind::Pcie {
                now: Lanes {
                    generation: value(&mut fields, "generation")?,
                    width: value(&mut fields, "width")?,
                },
                best: Lanes {
                    generation: value(&mut fields, "best_generation")?,
                    width: value(&mut fields, "best_width")?,
                },
            },
            "socket" => LinkKind::Socket { distance: value(&mut fields, "distance")? },
            "network" => LinkKind::Network,
            _ => return Err(format!("{word:?} is no kind of link")),
        };
        let link = Link {
            from,
            to,
            kind,
            bytes_s: value(&mut fields, "bytes_s")?,
            latency_ns: value::<u32>(&mut fields, "latency_ns")?.map(u64::from),
        };
        fields.end()?;
        if !kind.is_of_tree() && to < from {
            return Err("of this kind of link the first end is the one that stands first".into());
        }
        if self.hardware.links().len() == LINKS_MAX {
            return Err(format!("there are more than {LINKS_MAX} links"));
        }
        self.hardware.add_link(link);
        Ok(())
    }
}

/// The value of a key.
fn value<T: FromStr>(fields: &mut Fields<'_>, key: &str) -> Result<Option<T>, String> {
    let Some(text) = fields.optional::<String>(key)? else { return Ok(None) };
    let parsed = unescape(&text).and_then(|text| text.parse().ok());
    parsed.map(Some).ok_or_else(|| format!("{key}={text:?} is nothing that fits"))
}

/// A number that is written in hexadecimal digits after `0x`.
fn hexadecimal<T: TryFrom<u64>>(fields: &mut Fields<'_>, key: &str) -> Result<Option<T>, String> {
    let Some(text) = fields.optional::<String>(key)? else { return Ok(None) };
    let digits = text.strip_prefix("0x").filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let number = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    let fits = number.and_then(|number| T::try_from(number).ok());
    fits.map(Some).ok_or_else(|| format!("{key}={text:?} is no hexadecimal number that fits"))
}

/// One of some words, or the first where the key is missing.
fn choice<T: Copy>(fields: &mut Fields<'_>, key: &str, missing: T, words: &[(&str, T)]) -> Result<T, String> {
    let Some(text) = fields.optional::<String>(key)? else { return Ok(missing) };
    let found = words.iter().find(|(word, _)| *word == text);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        format!("{key}={text:?} is none of {}", known.join(", "))
    })
}

/// The word of a value that is in the table.
fn word<T: PartialEq>(words: &[(&'static str, T)], value: T) -> &'static str {
    words.iter().find(|(_, known)| *known == value).map_or("", |(word, _)| word)
}

fn yes(fields: &mut Fields<'_>, key: &str) -> Result<bool, String> {
    choice(fields, key, false, &[("yes", true), ("no", false)])
}

fn pci(fields: &mut Fields<'_>) -> Result<Pci, String> {
    Ok(Pci {
        bus: bus(fields)?,
        class: hexadecimal(fields, "class")?,
        vendor: hexadecimal(fields, "vendor")?,
        device: hexadecimal(fields, "device")?,
        subsystem_vendor: hexadecimal(fields, "subsystem_vendor")?,
        subsystem_device: hexadecimal(fields, "subsystem_device")?,
    })
}

fn bus(fields: &mut Fields<'_>) -> Result<Option<BusId>, String> {
    value(fields, "bus")
}

fn kind(word: &str, fields: &mut Fields<'_>) -> Result<NodeKind, String> {
    Ok(match word {
        "host" => NodeKind::Host(Host {
            hash: value(fields, "hash")?,
            model: value(fields, "model")?,
            is_virtual: choice(fields, "virtual", None, &[("yes", Some(true)), ("no", Some(false))])?,
            iommu: choice(fields, "iommu", None, &Iommu::WORDS.map(|(word, iommu)| (word, Some(iommu))))?,
            gpudirect: choice(
                fields,
                "gpudirect",
                None,
                &GpuDirect::WORDS.map(|(word, way)| (word, Some(way))),
            )?,
        }),
        "numa" => NodeKind::Numa(Numa {
            number: value(fields, "number")?,
            cpus: value::<CpuSet>(fields, "cpus")?,
            processor: Processor {
                arch: value(fields, "arch")?,
                vendor: value(fields, "vendor")?,
                family: value(fields, "family")?,
                model: value(fields, "model")?,
            },
            memory_bytes: value(fields, "memory_bytes")?,
        }),
        "cores" => NodeKind::Cores(Cores {
            cpus: value::<CpuSet>(fields, "cpus")?.ok_or("cpus= is missing")?,
            cache_level: value(fields, "cache_level")?,
            cache_bytes: value(fields, "cache_bytes")?,
        }),
        "root" => NodeKind::Root(bus(fields)?),
        "bridge" => NodeKind::Bridge(Bridge {
            pci: pci(fields)?,
            acs: choice(fields, "acs", None, &[("yes", Some(true)), ("no", Some(false))])?,
        }),
        "gpu" => NodeKind::Gpu(Gpu {
            pci: pci(fields)?,
            index: value(fields, "index")?,
            rank: value(fields, "rank")?,
            sm: value(fields, "sm")?,
            gcn: value(fields, "gcn")?,
            uuid: value(fields, "uuid")?,
            model: value(fields, "model")?,
            described: yes(fields, "described")?,
            links_known: yes(fields, "links_known")?,
        }),
        "nvswitch" => NodeKind::NvSwitch(pci(fields)?),
        "nic" => {
            let has_pci = yes(fields, "pci")?;
            let pci = pci(fields)?;
            NodeKind::Nic(Nic { pci: (has_pci || pci != Pci::default()).then_some(pci) })
        }
        "port" => NodeKind::Port(Port {
            device: value(fields, "device")?,
            index: value(fields, "index")?,
            number: value(fields, "number")?,
            speed_mbit_s: value(fields, "speed_mbit_s")?,
            latency_ns: value::<u32>(fields, "latency_ns")?.map(u64::from),
            guid: hexadecimal(fields, "guid")?,
            state: choice(
                fields,
                "state",
                PortState::Unknown,
                &[("up", PortState::Up), ("down", PortState::Down)],
            )?,
            layer: choice(
                fields,
                "layer",
                LinkLayer::Unknown,
                &[
                    ("ethernet", LinkLayer::Ethernet),
                    ("infiniband", LinkLayer::InfiniBand),
                    ("wireless", LinkLayer::Wireless),
                ],
            )?,
            virtual_device: yes(fields, "virtual")?,
        }),
        "switch" => NodeKind::Switch { aggregates: false },
        "aggregator" => NodeKind::Switch { aggregates: true },
        _ => return Err(format!("{word:?} is no kind of node")),
    })
}
