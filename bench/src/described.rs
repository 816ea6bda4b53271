//! Machines for the subcommands that look at them: this one, those of captured trees, and those that files describe in any format that
//! the library reads.
//!
//! Invariant: what a source is silent about stays unknown unless a flag says what to assume. Absent: measuring.

use std::fmt::Display;
use std::io::Read;
use std::path::{Path, PathBuf};

use consort::planning::hardware::exchange::{self, BYTES_MAX, Content, Note};
use consort::planning::hardware::{Hardware, LinkKind, NVIDIA, Network, NodeKind, Rates, Wires};
use consort::planning::probing::{Live, Management, Probe, Recorded};
use consort::planning::{Topology, read_topology};

use crate::failure::Failure;
use crate::planned::{self, refused};

/// Answers of NVML that belong to a captured tree.
const ANSWERS: &str = "nvml.script";

/// Which machine.
#[derive(clap::Args, Debug)]
pub(crate) struct Source {
    /// The file that describes the machine
    #[arg(long, value_name = "FILE", conflicts_with = "root")]
    file: Option<PathBuf>,

    /// A captured tree: a directory with sys and proc of the machine, and nvml.script with what NVML says there
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

impl Source {
    /// What a machine without a name is called: the file or the tree that it is of.
    pub(crate) fn stem(&self) -> String {
        let path = self.file.as_deref().and_then(Path::file_stem);
        let path = path.or_else(|| self.root.as_deref().and_then(Path::file_name));
        path.map_or("machine".into(), |name| name.to_string_lossy().into_owned())
    }
}

/// How a file's machine is understood.
#[derive(clap::Args, Debug)]
pub(crate) struct Reading {
    /// Fills in what a file does not say of its GPUs as it is in this machine: dgx-1, dgx-a100, dgx-h100, dgx-h200, dgx-b200, mi300x
    /// or pcie
    #[arg(long, value_name = "NAME")]
    assume: Option<String>,

    /// What links carry: sheet, as data sheets say, or nccl, what NCCL expects to be left
    #[arg(long, value_name = "SET", value_parser = rates, default_value = "sheet")]
    pub(crate) rates: Rates,

    /// Which wires the graph of GPUs has: all that are known, or fastest, as NCCL searches: without PCIe where NVLink or xGMI joins GPUs
    #[arg(long, value_name = "WHICH", value_parser = wires, default_value = "all")]
    wires: Wires,

    /// Number of boxes that are each the machine of the file, joined by --network
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    boxes: u32,

    /// The network between boxes: rail or flat
    #[arg(long, value_name = "KIND", value_parser = network, default_value = "rail")]
    network: Network,
}

pub(crate) fn rates(name: &str) -> Result<Rates, String> {
    Rates::named(name).ok_or_else(|| "known: sheet, nccl".into())
}

fn wires(name: &str) -> Result<Wires, String> {
    match name {
        "all" => Ok(Wires::All),
        "fastest" => Ok(Wires::Fastest),
        _ => Err("known: all, fastest".into()),
    }
}

fn network(name: &str) -> Result<Network, String> {
    Network::named(name).ok_or_else(|| "known: rail, flat".into())
}

fn usage(error: impl Display) -> Failure {
    Failure::usage(error.to_string())
}

/// What a file says, but for files that are longer than any machine's.
fn bytes(path: &Path) -> Result<Vec<u8>, Failure> {
    let fault = |error| Failure::usage(format!("cannot read {}: {error}", path.display()));
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(fault)?;
    file.take(BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(fault)?;
    Ok(bytes)
}

/// Recorded answers of NVML.
fn recorded(path: &Path) -> Result<Recorded, Failure> {
    let named = |reason: String| Failure::usage(format!("{}: {reason}", path.display()));
    let text = String::from_utf8(bytes(path)?).map_err(|error| named(error.to_string()))?;
    Recorded::read(&text).map_err(|error| named(error.to_string()))
}

/// What to say where NVML does not open: a machine without GPUs of NVIDIA has no such library, which is nothing to mention.
fn unanswered(hardware: &Hardware, why: &str) -> Option<String> {
    let of_nvidia = |kind: &NodeKind| matches!(kind, NodeKind::Gpu(gpu) if gpu.pci.vendor == Some(NVIDIA));
    let has_gpu = hardware.nodes().iter().any(|node| of_nvidia(&node.kind));
    has_gpu.then(|| format!("NVML does not open, so that NVLinks are not known: {why}"))
}

/// A graph of ranks.
pub(crate) struct Graph {
    pub(crate) topology: Topology,
    /// In which ways the machine may have more than the graph: what is provable of the graph is then not provable of the machine.
    pub(crate) lacks: Vec<String>,
}

/// Whether a path between sockets has its bandwidth from the processor's kind.
fn is_socket_priced(hardware: &Hardware) -> bool {
    hardware.links().iter().any(|link| matches!(link.kind, LinkKind::Socket { .. }) && link.bytes_s.is_none())
}

impl Reading {
    /// The machine of a file, with what was left out or put right.
    pub(crate) fn hardware(&self, path: &Path) -> Result<(Hardware, Vec<Note>), Failure> {
        let named = |error: exchange::ReadError| Failure::usage(format!("{}: {error}", path.display()));
        let (hardware, notes) = exchange::read_hardware(&bytes(path)?).map_err(named)?;
        Ok((self.completed(hardware)?, notes))
    }

    /// The machine of a source, with what was left out or put right.
    pub(crate) fn machine(&self, source: &Source) -> Result<(Hardware, Vec<String>), Failure> {
        if let Some(path) = &source.file {
            let (hardware, notes) = self.hardware(path)?;
            return Ok((hardware, notes.iter().map(Note::to_string).collect()));
        }
        if source.root.is_none()
            && let Some(path) = planned::named("NCCL_TOPO_FILE")
        {
            let (hardware, notes) = self.hardware(Path::new(path.trim()))?;
            let of_file = format!(
                "the machine is that of NCCL_TOPO_FILE ({path}), as the library takes it; unset it to look at this one"
            );
            let notes = std::iter::once(of_file).chain(notes.iter().map(Note::to_string));
            return Ok((hardware, notes.collect()));
        }
        let mut no_library = None;
        let probed = match &source.root {
            Some(root) => {
                let answers = root.join(ANSWERS);
                let recorded = answers.exists().then(|| recorded(&answers)).transpose()?;
                if !root.is_dir() {
                    return Err(Failure::usage(format!(
                        "--root {}: there is no such directory",
                        root.display()
                    )));
                }
                let library = recorded.as_ref().map(|recorded| recorded as &dyn Management);
                library.into_iter().fold(Probe::below(root), Probe::with).run()
            }
            None => {
                let live = Live::open(None).map_err(|error| no_library = Some(error.to_string())).ok();
                let library = live.as_ref().map(|live| live as &dyn Management);
                library.into_iter().fold(Probe::below(Path::new("/")), Probe::with).run()
            }
        };
        let mut notes: Vec<String> = probed.notes.iter().map(ToString::to_string).collect();
        notes.extend(no_library.and_then(|why| unanswered(&probed.hardware, &why)));
        Ok((self.completed(probed.hardware)?, notes))
    }

    /// A machine with what is assumed of it, and as often as there are boxes.
    pub(crate) fn completed(&self, mut hardware: Hardware) -> Result<Hardware, Failure> {
        if let Some(name) = &self.assume {
            hardware.assume(name).map_err(|error| usage(format!("--assume: {error}")))?;
        }
        if self.boxes > 1 {
            let boxes = vec![&hardware; self.boxes as usize];
            hardware = Hardware::compose(&boxes, self.network)
                .map_err(|error| usage(format!("--boxes: {error}")))?;
        }
        Ok(hardware)
    }

    /// The graph of all GPUs of a machine, and how it may be less than the machine.
    pub(crate) fn graph(&self, hardware: &Hardware) -> Result<Graph, Failure> {
        let graph = hardware.rank_graph(&hardware.gpus(), self.rates, self.wires).map_err(usage)?;
        let mut lacks = Vec::new();
        if !graph.left_out.is_empty() {
            let link = hardware.link(graph.left_out[0]);
            let (from, to) = (&hardware.node(link.from).name, &hardware.node(link.to).name);
            let count = graph.left_out.len();
            lacks.push(format!("the bandwidth of {count} links is not known, the first from {from} to {to}"));
        }
        if self.wires == Wires::Fastest {
            lacks.push("--wires fastest leaves slower links out".into());
        }
        if self.rates == Rates::Nccl {
            lacks.push(
                "--rates nccl is what NCCL expects to be left of a link, and not what it carries".into(),
            );
        }
        if self.rates == Rates::DataSheet && is_socket_priced(hardware) {
            lacks.push("links between sockets count as one, as no source says how many there are".into());
        }
        Ok(Graph { topology: graph.topology, lacks })
    }

    /// Whether some flag changes the machine of a file.
    fn is_default(&self) -> bool {
        let Reading { assume, rates, wires, boxes, network } = self;
        (assume, *rates, *wires, *boxes, *network)
            == (&None, Rates::default(), Wires::default(), 1, Network::Rail)
    }

    /// The graph of ranks of a profile, or of a file of any format.
    pub(crate) fn topology(&self, name: &str) -> Result<Graph, Failure> {
        let path = Path::new(name);
        let whole = |topology| {
            if self.is_default() {
                return Ok(Graph { topology, lacks: Vec::new() });
            }
            Err(usage(format!(
                "--assume, --rates, --wires, --boxes and --network are for files of devices, and {name} is a graph of ranks: leave them out"
            )))
        };
        if !path.is_file() {
            return whole(read_topology(name).map_err(refused)?);
        }
        let named = |error: exchange::ReadError| Failure::usage(format!("{name}: {error}"));
        match exchange::read(&bytes(path)?).map_err(named)?.content {
            Content::RankGraph(topology) => whole(topology),
            Content::Hardware(hardware) => self.graph(&self.completed(hardware)?),
            Content::Graphs(_) => Err(usage(format!(
                "{name} has rings and trees, and no machine; give the topology that it is of"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_does_not_open_is_mentioned_where_it_would_have_something_to_say() {
        let machine = |vendor: &str| {
            let text = format!(
                "hardware\nhost h\nnuma n on=h number=0\ngpu g on=h bus=0000:17:00.0 class=0x030200 vendor={vendor}\nlink h n local\n\
                 link n g pcie\n"
            );
            exchange::read_hardware(text.as_bytes()).expect("a machine").0
        };
        let note = unanswered(&machine("0x10de"), "driver and library differ").expect("a note");
        assert!(note.contains("driver and library differ"), "{note}");
        assert_eq!(unanswered(&machine("0x1002"), "no such file"), None);
    }
}
