//! What the planner's subcommands share: its collectives and sizes in nccl-tests' words, and its machine.
//!
//! Invariant: nothing here depends on data or ranks that run; what the environment says to communicators it
//! says here too, and what the command line says goes before it.

use std::io::Write;
use std::path::{Path, PathBuf};

use consort::Options;
use consort::planning::{Collective, Planning, Schedule, read_topology, read_topology_for};

use crate::collective;
use crate::failure::Failure;
use crate::schedule;

/// The bytes to which nccl-tests rounds a rank's part of a split vector down.
const PART_BYTES: u64 = 16;

/// Letters alone: `all_reduce_perf` and `AllReduce` are the same.
fn plain(name: &str) -> String {
    let lower = name.to_ascii_lowercase();
    let plain = lower.strip_suffix("_perf").unwrap_or(&lower).replace(['_', '-'], "");
    if plain == "sendrecv" { "sendreceive".into() } else { plain }
}

/// The planner's collective of a name in either's words.
pub(crate) fn collective(name: &str) -> Result<Collective, String> {
    Collective::ALL.into_iter().find(|known| plain(known.name()) == plain(name)).ok_or_else(|| {
        let known = Collective::ALL.map(Collective::name).join(", ");
        format!("'{name}' is no collective that is planned; known: {known}")
    })
}

/// The planner's collective of one that is measured; none where several calls are measured together.
pub(crate) fn of(measured: collective::Collective) -> Option<Collective> {
    collective(measured.name()).ok()
}

/// Blocks of the larger of a rank's buffers, which is what sizes count.
pub(crate) fn blocks(collective: Collective, ranks: u32) -> u64 {
    collective.input_blocks(ranks).max(collective.output_blocks(ranks)).into()
}

/// Bytes of a block for a size as nccl-tests counts it: of the larger buffer.
pub(crate) fn block_bytes(collective: Collective, size: u64, ranks: u32) -> u64 {
    match blocks(collective, ranks) {
        1 => size,
        blocks => size / blocks / PART_BYTES * PART_BYTES,
    }
}

/// The machine that is planned for.
#[derive(clap::Args, Debug)]
pub(crate) struct Machine {
    /// Number of ranks, on one host unless there is a topology
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    ranks: Option<u32>,

    /// The machine: a profile such as dgx-h100:2, host:8x2, tcp:4x2 or torus:4x4, a network such as fat-tree:k=8 or
    /// rail:boxes=16,box=dgx-h100, or a file: what probe wrote, or what topo reads; also CONSORT_TOPOLOGY
    #[arg(long, value_name = "NAME|FILE")]
    topology: Option<String>,

    /// Cores of the host [default: those of this one]
    #[arg(long, value_name = "N", conflicts_with = "topology", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    cores: Option<u32>,

    /// A schedule of your own as a candidate: a file as `collbench plan --format json` writes it, with a name of its own. It is
    /// proved first. May be given several times
    #[arg(long = "schedule", value_name = "FILE")]
    schedules: Vec<PathBuf>,
}

impl Machine {
    /// The schedules of its files.
    pub(crate) fn schedules(&self) -> Result<Vec<Schedule>, Failure> {
        self.schedules.iter().map(|path| schedule::read(path)).collect()
    }

    /// What a communicator on this machine would choose by.
    pub(crate) fn planning(&self) -> Result<Planning, Failure> {
        let variable = || named("CONSORT_TOPOLOGY");
        // A named number of ranks may be a part of what the variable describes.
        let name = match (&self.topology, self.ranks) {
            (Some(name), _) => Some(name.clone()),
            (None, None) => variable(),
            (None, Some(_)) => None,
        };
        let with = |options: Options, schedule| options.schedule(schedule).map_err(refused);
        let options = self.schedules()?.into_iter().try_fold(Options::default(), with)?;
        let Some(name) = name else {
            let ranks = match (self.ranks, named("NCCL_TOPO_FILE")) {
                (Some(ranks), _) => ranks,
                // As many as the host of the file has GPUs, or CPUs.
                (None, Some(file)) => read_topology(file.trim()).map_err(refused)?.ranks(),
                (None, None) => return Err(Failure::usage("--ranks or --topology is missing")),
            };
            let cores = self.cores.unwrap_or_else(cores);
            return Planning::for_host(ranks, cores, &options).map_err(refused);
        };
        let topology = match self.ranks {
            Some(ranks) => read_topology_for(name.trim(), ranks),
            None => read_topology(name.trim()),
        };
        let topology = topology.map_err(refused)?;
        Planning::for_topology(&topology, &options.topology(name)).map_err(refused)
    }
}

/// What a variable names, if it names something.
pub(crate) fn named(variable: &str) -> Option<String> {
    std::env::var(variable).ok().filter(|text| !text.trim().is_empty())
}

/// Cores of this host, as a communicator counts them.
fn cores() -> u32 {
    let online = nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_ONLN).ok().flatten();
    online.and_then(|cores| u32::try_from(cores).ok()).unwrap_or(1).max(1)
}

/// What the planner refuses was asked for wrongly.
pub(crate) fn refused(error: consort::Error) -> Failure {
    Failure::usage(error.to_string())
}

/// To the file, or to standard output without one.
pub(crate) fn write(text: &str, file: Option<&Path>) -> Result<(), Failure> {
    match file {
        Some(path) => std::fs::write(path, text)
            .map_err(|error| Failure::usage(format!("cannot write {}: {error}", path.display()))),
        None => {
            let mut out = std::io::stdout().lock();
            let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
            written.map_err(|error| Failure::internal(format!("cannot write the results: {error}")))
        }
    }
}

/// Reads the words of a subcommand. `None` when they only asked for help, which has been given then.
pub(crate) fn parse<P: clap::Parser>(words: &[std::ffi::OsString]) -> Result<Option<P>, Failure> {
    match P::try_parse_from(words) {
        Ok(arguments) => Ok(Some(arguments)),
        Err(error) if error.use_stderr() => {
            let text = error.render().to_string();
            Err(Failure::usage(text.trim_start_matches("error: ").trim_end()))
        }
        Err(error) => write(&error.render().to_string(), None).map(|()| None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_either_side_mean_the_same() {
        for (name, known) in [
            ("allreduce", Collective::AllReduce),
            ("all_to_all_perf", Collective::AllToAll),
            ("AllToAll", Collective::AllToAll),
            ("sendrecv", Collective::SendReceive),
            ("reduce-scatter", Collective::ReduceScatter),
        ] {
            assert_eq!(collective(name), Ok(known), "{name}");
        }
        assert!(collective("hypercube").unwrap_err().contains("reduce_scatter, send_receive"));
        assert_eq!(of(collective::Collective::SendRecv), Some(Collective::SendReceive));
    }

    #[test]
    fn sizes_are_of_the_larger_buffer() {
        let of = |collective, size, ranks| block_bytes(collective, size, ranks);
        assert_eq!(of(Collective::AllReduce, 1027, 8), 1027);
        assert_eq!(of(Collective::Broadcast, 1 << 20, 8), 1 << 20);
        assert_eq!(of(Collective::Gather, 1 << 20, 8), 1 << 17);
        assert_eq!(of(Collective::AllToAll, 1000, 3), 320);
        assert_eq!(of(Collective::ReduceScatter, 8, 2), 0);
        // The same as what is measured.
        let shape = collective::Collective::AllGather.shape(1000, 4, 3);
        assert_eq!(of(Collective::AllGather, 1000, 3), 4 * shape.count as u64);
    }
}
