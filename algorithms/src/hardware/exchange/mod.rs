//! Formats in which others, and this repository, write machines down.
//!
//! Invariant: a text is read within bounds that do not depend on what it says, and an error names the line, the reason and
//! what to do. Absent: files. A caller that opens one compares its length with [`BYTES_MAX`] before it reads.

mod draft;
mod error;
mod graphs;
mod hwloc;
mod hwloc_devices;
mod hwloc_matrices;
mod nccl;
mod nccl_links;
mod nccl_write;
mod smi;
mod text;
mod xml;

use std::fmt;

pub(crate) use error::Place;
pub use error::{Format, Note, ReadError};
pub use graphs::{Channel, ChannelGpu, Graph, Graphs, Pattern, nccl_graph_xml};
pub use nccl::pcie_generation;
pub use nccl_write::{NotWritable, nccl_topology_xml};
pub(crate) use xml::{line, number, parse as parse_xml, quoted};

use super::Hardware;
use crate::topology::{self, Topology};

/// The longest text that is read: 16 MiB, some hundred times the largest dump of a host.
pub const BYTES_MAX: usize = 16 << 20;

/// What a text was.
#[derive(Clone, PartialEq, Debug)]
pub enum Content {
    /// A machine.
    Hardware(Hardware),
    /// Rings and trees that NCCL found.
    Graphs(Graphs),
    /// A graph of ranks.
    RankGraph(Topology),
}

/// A text that was read.
#[derive(Clone, PartialEq, Debug)]
pub struct Read {
    /// Its format.
    pub format: Format,
    /// What it was.
    pub content: Content,
    /// What was left out or put right, by line.
    pub notes: Vec<Note>,
}

/// Finds the format of a text and reads it.
///
/// # Errors
///
/// [`ReadError`] with the line where there is one, the reason and what to do: texts that are too long, of no known format,
/// damaged, or that say what cannot be.
pub fn read(bytes: &[u8]) -> Result<Read, ReadError> {
    let text = decode(bytes)?;
    let format = detect(text)?;
    let text = &*xml::without_late_declaration(text);
    let machine = |(hardware, notes)| (Content::Hardware(hardware), notes);
    let (content, notes) = match format {
        Format::NcclTopology => nccl::read(text).map(machine)?,
        Format::NcclGraph => graphs::read(text).map(|(graphs, notes)| (Content::Graphs(graphs), notes))?,
        Format::Hwloc => hwloc::read(text).map(machine)?,
        Format::NvidiaSmi => smi::read(text).map(machine)?,
        Format::Hardware => machine((text::read(text)?, Vec::new())),
        Format::RankGraph => {
            let parsed = topology::parse(text).map_err(|error| ReadError {
                format: Some(format),
                line: u32::try_from(error.line).ok(),
                reason: error.fault,
                remedy: "correct the line".into(),
            })?;
            (Content::RankGraph(parsed), Vec::new())
        }
    };
    Ok(Read { format, content, notes })
}

/// As [`read`], where only a machine will do.
///
/// # Errors
///
/// As [`read`], and where the text is something else.
pub fn read_hardware(bytes: &[u8]) -> Result<(Hardware, Vec<Note>), ReadError> {
    let read = read(bytes)?;
    match read.content {
        Content::Hardware(hardware) => Ok((hardware, read.notes)),
        _ => Err(ReadError {
            format: Some(read.format),
            line: None,
            reason: "it says nothing of devices".into(),
            remedy:
                "give a topology of NCCL or hwloc, the output of nvidia-smi topo -m, or a machine as text"
                    .into(),
        }),
    }
}

impl fmt::Display for Hardware {
    /// The text form.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text::write(self))
    }
}

/// The machine in the text form, where [`read`] would take it.
///
/// # Errors
///
/// [`NotWritable`] where the text is longer than [`BYTES_MAX`].
pub fn hardware_text(hardware: &Hardware) -> Result<String, NotWritable> {
    let text = hardware.to_string();
    if text.len() > BYTES_MAX {
        let (nodes, links) = (hardware.nodes().len(), hardware.links().len());
        return Err(NotWritable {
            reason: format!(
                "the text of {nodes} nodes and {links} links has {} bytes, and a reader takes {BYTES_MAX}",
                text.len()
            ),
            remedy: "describe fewer hosts".into(),
        });
    }
    Ok(text)
}

fn foreign(reason: String, remedy: &str) -> ReadError {
    ReadError { format: None, line: None, reason, remedy: remedy.to_owned() }
}

/// What to do about a text of no known format.
const KNOWN: &str = "known are topologies and graphs of NCCL and RCCL (XML), topologies of hwloc (lstopo FILE.xml), the \
                     output of nvidia-smi topo -m, and texts that begin with `hardware` or `topology`";

fn decode(bytes: &[u8]) -> Result<&str, ReadError> {
    if bytes.len() > BYTES_MAX {
        let reason = format!("{} bytes are more than any topology has", bytes.len());
        return Err(foreign(reason, "topologies have some hundred KiB; give one of at most 16 MiB"));
    }
    match bytes {
        [0x1f, 0x8b, ..] => {
            return Err(foreign("it is compressed with gzip".into(), "unpack it first: gunzip FILE"));
        }
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => {
            return Err(foreign("it is UTF-16".into(), "convert it: iconv -f UTF-16 -t UTF-8 FILE"));
        }
        _ => {}
    }
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let line = bytes[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count() as u32 + 1;
        ReadError { line: Some(line), ..foreign("it is no text in UTF-8".into(), KNOWN) }
    })?;
    if text.trim().is_empty() {
        return Err(foreign("it is empty".into(), KNOWN));
    }
    Ok(text)
}

fn detect(text: &str) -> Result<Format, ReadError> {
    if text.trim_start().starts_with('<') {
        return match xml::root_name(text) {
            Some("system") => Ok(Format::NcclTopology),
            Some("graphs") => Ok(Format::NcclGraph),
            Some("topology") => Ok(Format::Hwloc),
            Some(name) => {
                let name: String = name.chars().take(40).collect();
                Err(foreign(format!("it is XML of another kind, with the element <{name}>"), KNOWN))
            }
            None => Err(foreign("it is XML without an element; it may be cut off".into(), KNOWN)),
        };
    }
    let code = |line: &str| line.split('#').next().unwrap_or_default().trim().to_owned();
    let first = text.lines().map(code).find(|line| !line.is_empty()).unwrap_or_default();
    match first.split_whitespace().next() {
        Some("hardware") => Ok(Format::Hardware),
        Some("topology" | "costs" | "relay" | "measured" | "rank") => Ok(Format::RankGraph),
        _ if smi::is_matrix(text) => Ok(Format::NvidiaSmi),
        Some(word) if word.starts_with(['{', '[']) => Err(foreign("it looks like JSON".into(), KNOWN)),
        _ => {
            let first: String = first.chars().take(40).collect();
            Err(foreign(format!("it begins with {first:?}, as no known format does"), KNOWN))
        }
    }
}
