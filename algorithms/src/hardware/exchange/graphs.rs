//! NCCL's graph XML, in and out: the rings and trees that its search found.
//!
//! Source: NCCL at commit 5067397c, `src/graph/search.cc` (`ncclTopoGetGraphFromXmlSub`, `ncclTopoGetXmlFromGraph`) and
//! `src/include/graph.h` (patterns). Invariant: reading what was written gives the graphs again.

use std::collections::BTreeSet;
use std::fmt::Write;

use roxmltree::Node as Element;

use super::error::{Format, Note, Place, ReadError};
use super::xml;
use crate::hardware::{Hardware, PathKind};

/// What a graph's channels are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// Trees whose two NICs belong to two GPUs that share the work of the root.
    BalancedTree,
    /// Trees whose two NICs belong to two GPUs.
    SplitTree,
    /// Trees whose NICs belong to one GPU.
    Tree,
    /// Rings.
    Ring,
    /// Through NVSwitches that fold.
    Nvls,
    /// Through switches of the network that fold.
    CollnetDirect,
}

const PATTERNS: [Pattern; 6] = [
    Pattern::BalancedTree,
    Pattern::SplitTree,
    Pattern::Tree,
    Pattern::Ring,
    Pattern::Nvls,
    Pattern::CollnetDirect,
];

/// A GPU of a channel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ChannelGpu {
    /// The management library's number of it; the host's number, where there are several, in the upper eight bits.
    pub index: u64,
    /// Its rank.
    pub rank: Option<u32>,
}

/// A channel: for a ring the GPUs in their order, for a tree the order of its chain, the first at the NIC. Channels that
/// differ in their lines alone are equal.
#[derive(Clone, Eq, Debug, Default)]
pub struct Channel {
    /// Where it is in its file.
    pub line: Option<u32>,
    /// The ports by which data come and go: none, or two.
    pub nets: Vec<u64>,
    /// The GPUs.
    pub gpus: Vec<ChannelGpu>,
}

impl PartialEq for Channel {
    fn eq(&self, other: &Channel) -> bool {
        (&self.nets, &self.gpus) == (&other.nets, &other.gpus)
    }
}

/// A graph: channels that are used together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Graph {
    /// Its number: 0 is the ring, 1 the tree, 2 and more those for switches that fold.
    pub id: u32,
    /// What its channels are.
    pub pattern: Pattern,
    /// Whether a channel may leave by another port than it enters: 0, 1, or 2 for "if that is better".
    pub cross_nic: u32,
    /// Bytes a second of a channel inside a host.
    pub intra_bytes_s: u64,
    /// Bytes a second of a channel between hosts.
    pub inter_bytes_s: u64,
    /// Nanoseconds that the network adds.
    pub inter_latency_ns: u64,
    /// The worst path between GPUs.
    pub intra: PathKind,
    /// The worst path to a port.
    pub inter: PathKind,
    /// Whether all channels are the same.
    pub same_channels: u32,
    /// The channels.
    pub channels: Vec<Channel>,
}

/// All graphs of a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Graphs {
    /// In the order of the file.
    pub graphs: Vec<Graph>,
}

impl Graphs {
    /// Whether a machine has all GPUs that the channels name, by their indices; the machine has one host.
    ///
    /// # Errors
    ///
    /// What is missing, as a sentence.
    pub fn check(&self, hardware: &Hardware) -> Result<(), String> {
        let known: BTreeSet<u64> = hardware
            .gpus()
            .into_iter()
            .filter_map(|id| hardware.gpu(id).and_then(|gpu| gpu.index))
            .map(u64::from)
            .collect();
        for graph in &self.graphs {
            for (channel, number) in graph.channels.iter().zip(0..) {
                if let Some(gpu) = channel.gpus.iter().find(|gpu| !known.contains(&gpu.index)) {
                    let (id, index) = (graph.id, gpu.index);
                    return Err(format!(
                        "channel {number} of graph {id} names GPU {index}, which the machine does not have; \
                         use a graph file that was written for these GPUs"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Reads the XML.
///
/// # Errors
///
/// The line, the reason and what to do.
pub(super) fn read(text: &str) -> Result<(Graphs, Vec<Note>), ReadError> {
    let place = Place::new(Format::NcclGraph, text);
    let document = xml::parse(text, &place)?;
    let root = document.root_element();
    let reader = Reader { place: &place };
    let version = reader.number::<i64>(root, "version")?;
    if !matches!(version, None | Some(1)) {
        let reason = format!("version {} of the format is not known", version.unwrap_or_default());
        return Err(place.error(xml::line(&place, root), reason, "NCCL writes version 1"));
    }
    let mut notes = Vec::new();
    let (mut graphs, mut ids) = (Graphs::default(), BTreeSet::new());
    for element in root.children().filter(Element::is_element) {
        let line = xml::line(&place, element);
        if !element.has_tag_name("graph") {
            let text = format!("<{}> has no meaning here and is ignored", element.tag_name().name());
            notes.push(Note { line, text });
            continue;
        }
        let graph = reader.graph(element)?;
        if !ids.insert(graph.id) {
            let reason = format!("there are two graphs with the id {}", graph.id);
            return Err(place.error(line, reason, "keep one of them"));
        }
        graphs.graphs.push(graph);
    }
    Ok((graphs, notes))
}

struct Reader<'a> {
    place: &'a Place,
}

impl Reader<'_> {
    fn error(&self, element: Element<'_, '_>, reason: String, remedy: &str) -> ReadError {
        self.place.error(xml::line(self.place, element), reason, remedy)
    }

    fn number<T: TryFrom<i64>>(&self, element: Element<'_, '_>, key: &str) -> Result<Option<T>, ReadError> {
        xml::number(self.place, xml::line(self.place, element), key, element.attribute(key))
    }

    fn needed<T: TryFrom<i64>>(&self, element: Element<'_, '_>, key: &str) -> Result<T, ReadError> {
        let missing = || self.error(element, format!("{key} is missing"), "write the file again with NCCL");
        self.number(element, key)?.ok_or_else(missing)
    }

    fn graph(&self, element: Element<'_, '_>) -> Result<Graph, ReadError> {
        let pattern = self.needed::<usize>(element, "pattern")?;
        let pattern = *PATTERNS.get(pattern.wrapping_sub(1)).ok_or_else(|| {
            self.error(element, format!("there is no pattern {pattern}"), "patterns are 1 to 6; 4 is a ring")
        })?;
        let path = |key: &str| {
            let text = element.attribute(key).unwrap_or("LOC");
            let remedy =
                "a kind of path is one of LOC, NVL, NVB, C2C, PIX, PXB, P2C, PXN, PHB, SYS, NET, DIS";
            PathKind::named(text)
                .ok_or_else(|| self.error(element, format!("{key}={text:?} is no path"), remedy))
        };
        let id = self.needed(element, "id")?;
        let mut channels = Vec::new();
        for child in element.children().filter(|child| child.has_tag_name("channel")) {
            channels.push(self.channel(child, id)?);
        }
        let count = self.number::<usize>(element, "nchannels")?;
        if let Some(count) = count.filter(|count| *count != channels.len()) {
            let reason = format!("nchannels is {count}, and there are {} channels", channels.len());
            return Err(self.error(
                element,
                reason,
                "the file is cut off or edited; write it again with NCCL",
            ));
        }
        Ok(Graph {
            id,
            pattern,
            cross_nic: self.number(element, "crossnic")?.unwrap_or(0),
            intra_bytes_s: self.decimal(element, "speedintra", 9)?,
            inter_bytes_s: self.decimal(element, "speedinter", 9)?,
            inter_latency_ns: self.decimal(element, "latencyinter", 3)?,
            intra: path("typeintra")?,
            inter: path("typeinter")?,
            same_channels: self.number(element, "samechannels")?.unwrap_or(0),
            channels,
        })
    }

    /// A decimal number, times ten to the power of `digits`; 0 where it is missing.
    fn decimal(&self, element: Element<'_, '_>, key: &str, digits: i32) -> Result<u64, ReadError> {
        let Some(text) = element.attribute(key).filter(|text| !text.trim().is_empty()) else { return Ok(0) };
        let number = text.trim().parse::<f64>().ok().map(|number| number * 10f64.powi(digits));
        let fits = number.filter(|number| (0.0..1e15).contains(number));
        let wrong = || self.error(element, format!("{key}={text:?} is no number that fits"), "correct it");
        fits.map(|number| number.round() as u64).ok_or_else(wrong)
    }

    fn channel(&self, element: Element<'_, '_>, id: u32) -> Result<Channel, ReadError> {
        let mut channel = Channel { line: Some(xml::line(self.place, element)), ..Channel::default() };
        let mut seen = BTreeSet::new();
        for child in element.children().filter(Element::is_element) {
            let name = child.tag_name().name();
            if name != "gpu" && name != "net" {
                continue;
            }
            let text = child.attribute("dev").unwrap_or_default();
            let digits = text.trim().trim_start_matches("0x");
            let index = u64::from_str_radix(digits, 16).map_err(|_| {
                self.error(child, format!("dev={text:?} is no hexadecimal number"), "NCCL writes dev=\"0x3\"")
            })?;
            if name == "net" {
                channel.nets.push(index);
                continue;
            }
            let gpu = ChannelGpu { index, rank: self.number(child, "rank")? };
            if !seen.insert(index) {
                let reason = format!("GPU {index} is in one channel twice");
                return Err(self.error(child, reason, "a channel visits each GPU once"));
            }
            channel.gpus.push(gpu);
        }
        if !matches!(channel.nets.len(), 0 | 2) && id < 2 {
            let reason = format!("a channel has {} ports", channel.nets.len());
            return Err(self.error(element, reason, "it has none inside a host, and two between hosts"));
        }
        Ok(channel)
    }
}

/// The graphs as NCCL reads them by `NCCL_GRAPH_FILE`.
pub fn nccl_graph_xml(graphs: &Graphs) -> String {
    // Writing to a String cannot fail.
    let mut text = String::from("<graphs version=\"1\">\n");
    for graph in &graphs.graphs {
        let pattern = PATTERNS.iter().position(|pattern| *pattern == graph.pattern).unwrap_or_default() + 1;
        let _ = writeln!(
            text,
            "  <graph id=\"{}\" pattern=\"{pattern}\" crossnic=\"{}\" nchannels=\"{}\" speedintra=\"{}\" \
             speedinter=\"{}\" latencyinter=\"{}\" typeintra=\"{}\" typeinter=\"{}\" samechannels=\"{}\">",
            graph.id,
            graph.cross_nic,
            graph.channels.len(),
            scaled(graph.intra_bytes_s, 9),
            scaled(graph.inter_bytes_s, 9),
            scaled(graph.inter_latency_ns, 3),
            graph.intra,
            graph.inter,
            graph.same_channels
        );
        for channel in &graph.channels {
            text += "    <channel>\n";
            let net = |net: &u64| format!("      <net dev=\"{net:#x}\"/>\n");
            let (first, rest) = channel.nets.split_at(channel.nets.len().min(1));
            text.extend(first.iter().map(net));
            for gpu in &channel.gpus {
                let rank = gpu.rank.map_or(String::new(), |rank| format!(" rank=\"{rank}\""));
                let _ = writeln!(text, "      <gpu dev=\"{:#x}\"{rank}/>", gpu.index);
            }
            text.extend(rest.iter().map(net));
            text += "    </channel>\n";
        }
        text += "  </graph>\n";
    }
    text + "</graphs>\n"
}

/// The number divided by ten to the power of `digits`, without zeros at the end.
fn scaled(number: u64, digits: usize) -> String {
    let text = format!("{number:0width$}", width = digits + 1);
    let (whole, rest) = text.split_at(text.len() - digits);
    let rest = rest.trim_end_matches('0');
    if rest.is_empty() { whole.to_owned() } else { format!("{whole}.{rest}") }
}
