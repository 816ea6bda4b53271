//! What is wrong with a file, and what is worth knowing of one that is right.
//!
//! Invariant: an error says where, why, and what to do.

use std::error::Error;
use std::fmt;

/// The formats of topologies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Format {
    /// What NCCL and RCCL read by `NCCL_TOPO_FILE` and write by `NCCL_TOPO_DUMP_FILE`.
    NcclTopology,
    /// What NCCL reads by `NCCL_GRAPH_FILE` and writes by `NCCL_GRAPH_DUMP_FILE`.
    NcclGraph,
    /// What `lstopo` of hwloc writes as XML.
    Hwloc,
    /// What `nvidia-smi topo -m` prints.
    NvidiaSmi,
    /// The text form of [`Hardware`](crate::hardware::Hardware).
    Hardware,
    /// The text form of [`Topology`](crate::Topology).
    RankGraph,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::NcclTopology => "an NCCL topology",
            Format::NcclGraph => "an NCCL graph file",
            Format::Hwloc => "an hwloc topology",
            Format::NvidiaSmi => "the output of nvidia-smi topo -m",
            Format::Hardware => "a machine as text",
            Format::RankGraph => "a graph of ranks as text",
        })
    }
}

/// A text that cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReadError {
    /// What the text seems to be.
    pub format: Option<Format>,
    /// The line, from 1, where there is one.
    pub line: Option<u32>,
    /// What is wrong.
    pub reason: String,
    /// What to do.
    pub remedy: String,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.line, self.format) {
            (Some(line), Some(format)) => write!(f, "line {line} of {format}: ")?,
            (Some(line), None) => write!(f, "line {line}: ")?,
            (None, Some(format)) => write!(f, "{format}: ")?,
            (None, None) => {}
        }
        write!(f, "{}; {}", self.reason, self.remedy)
    }
}

impl Error for ReadError {}

/// Something that a reader left out or put right.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Note {
    /// The line, from 1.
    pub line: u32,
    /// What it was.
    pub text: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.text)
    }
}

/// Places in a text, by line.
#[derive(Debug)]
pub(crate) struct Place {
    pub(super) format: Option<Format>,
    /// Where lines begin.
    starts: Vec<usize>,
}

impl Place {
    pub(super) fn new(format: Format, text: &str) -> Place {
        Place { format: Some(format), ..Place::plain(text) }
    }

    /// Places in a text of no topology.
    pub(crate) fn plain(text: &str) -> Place {
        let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Place { format: None, starts }
    }

    /// The line of a byte, from 1.
    pub(crate) fn line(&self, at: usize) -> u32 {
        self.starts.partition_point(|start| *start <= at) as u32
    }

    pub(crate) fn error(&self, line: u32, reason: impl Into<String>, remedy: &str) -> ReadError {
        let (format, line) = (self.format, Some(line));
        ReadError { format, line, reason: reason.into(), remedy: remedy.to_owned() }
    }
}
