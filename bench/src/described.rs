//! Machines that files describe, in any format that the library reads, for the subcommands that look at machines.
//!
//! Invariant: what a file is silent about stays unknown unless a flag says what to assume. Absent: probing.

use std::fmt::Display;
use std::io::Read;
use std::path::Path;

use consort::planning::hardware::exchange::{self, BYTES_MAX, Content, Note};
use consort::planning::hardware::{Hardware, Network, Rates, Wires};
use consort::planning::{Topology, read_topology};

use crate::failure::Failure;
use crate::planned::refused;

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

fn rates(name: &str) -> Result<Rates, String> {
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

impl Reading {
    /// The machine of a file, with what was left out or put right.
    pub(crate) fn hardware(&self, path: &Path) -> Result<(Hardware, Vec<Note>), Failure> {
        let named = |error: exchange::ReadError| Failure::usage(format!("{}: {error}", path.display()));
        let (hardware, notes) = exchange::read_hardware(&bytes(path)?).map_err(named)?;
        Ok((self.completed(hardware)?, notes))
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

    /// The graph of all GPUs of a machine.
    pub(crate) fn graph(&self, hardware: &Hardware) -> Result<Topology, Failure> {
        let graph = hardware.rank_graph(&hardware.gpus(), self.rates, self.wires).map_err(usage)?;
        Ok(graph.topology)
    }

    /// The graph of ranks of a profile, or of a file of any format.
    pub(crate) fn topology(&self, name: &str) -> Result<Topology, Failure> {
        let path = Path::new(name);
        if !path.is_file() {
            return read_topology(name).map_err(refused);
        }
        let named = |error: exchange::ReadError| Failure::usage(format!("{name}: {error}"));
        match exchange::read(&bytes(path)?).map_err(named)?.content {
            Content::RankGraph(topology) => Ok(topology),
            Content::Hardware(hardware) => self.graph(&self.completed(hardware)?),
            Content::Graphs(_) => Err(usage(format!(
                "{name} has rings and trees, and no machine; give the topology that it is of"
            ))),
        }
    }
}
