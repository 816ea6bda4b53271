//! Machines that settings name: profiles, and files of every format that [`exchange`] reads.
//!
//! Invariant: what a file says is kept as text in one of this repository's two forms, a graph of ranks (`topology`) or a machine
//! (`hardware`), so that ranks can compare and send it; which graph a machine is follows from the job's ranks alone, so it is the same on
//! all of them. A file of `CONSORT_TOPOLOGY` that cannot be read is an error; one of NCCL's variables is a warning, and the job goes on
//! with what it sees itself, as NCCL's users expect. Absent: probing.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use consort_algorithms::hardware::exchange::{self, BYTES_MAX, Content, Graphs};
use consort_algorithms::hardware::{Hardware, NodeId, NodeKind, Rates, Wires, counted};
use consort_algorithms::topology::{self, Topology};

use super::digest;
use crate::environment::Environment;
use crate::notice::{inform, warn};
use consort_types::error::{Error, Result};

/// The longest text of a host's machine that a rank sends to the others when it joins.
pub const MACHINE_BYTES_MAX: usize = 48 << 10;

/// A machine that is no graph of a job's ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Misfit {
    /// Why.
    pub reason: String,
    /// What to do.
    pub remedy: String,
}

impl Misfit {
    fn new(reason: impl Into<String>, remedy: &str) -> Self {
        Misfit { reason: reason.into(), remedy: remedy.to_owned() }
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.reason, self.remedy)
    }
}

/// A machine or a graph of ranks, by a profile's name (`dgx-h100:2`) or from a file.
enum Named {
    Graph(Topology),
    Machine(Box<Hardware>),
}

impl Named {
    /// The text in one of the repository's own forms.
    fn text(&self) -> String {
        match self {
            Named::Graph(topology) => topology.to_string(),
            Named::Machine(hardware) => hardware.to_string(),
        }
    }
}

/// The bytes of a file, of one that is too long only as many as show it.
///
/// # Errors
/// The system's, and one for what is no file: to open a pipe may take for ever.
fn bytes(path: &Path) -> std::io::Result<Vec<u8>> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn named(name: &str) -> Result<Named> {
    let profile = match topology::profile(name) {
        Ok(profile) => return Ok(Named::Graph(profile)),
        Err(error) => error,
    };
    let path = Path::new(name);
    if !path.exists() {
        return Err(Error::invalid(
            format!("the topology {name:?} is neither a file nor a profile"),
            profile.to_string(),
        ));
    }
    let bytes = bytes(path).map_err(|error| {
        Error::invalid(
            format!("the topology {name} cannot be read: {error}"),
            "name a readable file, the same on every host, or none",
        )
    })?;
    let fault = |line: Option<u32>, reason: String, remedy: String| {
        let line = line.map_or(String::new(), |line| format!("line {line}: "));
        Error::invalid(format!("the topology file {name} cannot be read: {line}{reason}"), remedy)
    };
    let read = exchange::read(&bytes).map_err(|error| fault(error.line, error.reason, error.remedy))?;
    for note in read.notes {
        inform(&format!("the topology file {name}: {note}"));
    }
    match read.content {
        Content::RankGraph(topology) => Ok(Named::Graph(topology)),
        Content::Hardware(hardware) => Ok(Named::Machine(Box::new(called_by(hardware, path)))),
        Content::Graphs(_) => Err(fault(
            None,
            "it has rings and trees, and no machine".into(),
            "name the topology that they are of; rings and trees go into NCCL_GRAPH_FILE".into(),
        )),
    }
}

/// The machine, by the name of its file where it has none of its own.
fn called_by(mut hardware: Hardware, path: &Path) -> Hardware {
    if hardware.name.is_empty() {
        let stem = path.file_stem().map(|stem| stem.to_string_lossy()).unwrap_or_default();
        let kept = |letter: &char| letter.is_ascii_alphanumeric() || "-_.".contains(*letter);
        hardware.name = stem.chars().filter(kept).take(64).collect();
    }
    hardware
}

/// The text of a profile or of a file, in one of the repository's own forms.
///
/// # Errors
/// [`Error::InvalidArgument`] where it is neither, with the line of the file that cannot be read.
pub(super) fn text_of(name: &str) -> Result<Arc<str>> {
    named(name).map(|named| named.text().into())
}

/// A topology by name (`dgx-h100:2`) or from a file of any format that [`exchange`] reads. A file of devices is the graph of all of its
/// GPUs, or of one rank on each CPU where it has no GPU.
///
/// # Errors
/// [`Error::InvalidArgument`] where it is neither, with the line of the file that cannot be read, and where a machine has no graph.
pub fn read_topology(name: &str) -> Result<Topology> {
    let hardware = match named(name)? {
        Named::Graph(topology) => return Ok(topology),
        Named::Machine(hardware) => hardware,
    };
    let graph = match hardware.gpus().len() as u32 {
        0 => cpu_graph(&hardware, cpus(&hardware).len() as u32),
        _ => gpu_graph(&hardware),
    };
    graph.map_err(|misfit| {
        Error::invalid(format!("the topology file {name}: {}", misfit.reason), misfit.remedy)
    })
}

/// As [`read_topology`], for this number of ranks: of a machine whose GPUs are others, the graph of ranks on its CPUs.
///
/// # Errors
/// As [`read_topology`], and where the machine is not that of this number of ranks.
pub fn read_topology_for(name: &str, ranks: u32) -> Result<Topology> {
    let graph = graph_for(&text_of(name)?, ranks, false);
    graph.map_err(|misfit| Error::invalid(format!("the topology {name}: {}", misfit.reason), misfit.remedy))
}

/// The graph of a job's ranks in a text of a named machine: a graph of ranks as it is; of a machine, that of its GPUs where there are as many as
/// ranks, and otherwise that of ranks on the CPUs of its one host, unless the ranks use devices.
///
/// # Errors
/// [`Misfit`] where the machine is not that of this number of ranks.
pub fn graph_for(text: &str, ranks: u32, devices: bool) -> std::result::Result<Topology, Misfit> {
    if !is_machine(text) {
        let topology =
            topology::parse(text).map_err(|error| Misfit::new(error.to_string(), "correct the line"))?;
        let has = topology.ranks();
        if has == ranks {
            return Ok(topology);
        }
        return Err(Misfit::new(
            format!("it has {}, and the job has {ranks}", counted(has as usize, "rank")),
            "name a topology of as many ranks, or none",
        ));
    }
    let hardware = machine(text.as_bytes())?;
    let gpus = hardware.gpus().len() as u32;
    if gpus == ranks {
        return gpu_graph(&hardware);
    }
    if gpus > 0 && (devices || hardware.hosts().len() > 1 || cpus(&hardware).is_empty()) {
        return Err(Misfit::new(
            format!(
                "it has {}, and the job has {}",
                counted(gpus as usize, "GPU"),
                counted(ranks as usize, "rank")
            ),
            "name the machine that has the job's GPUs and no others, or none",
        ));
    }
    cpu_graph(&hardware, ranks)
}

/// Whether a text is that of a machine, and not of a graph of ranks.
fn is_machine(text: &str) -> bool {
    text.starts_with("hardware")
}

/// The machine of a text that this library wrote.
///
/// # Errors
/// [`Misfit`] with the line that is wrong.
pub fn machine(text: &[u8]) -> std::result::Result<Hardware, Misfit> {
    let read = exchange::read_hardware(text);
    read.map(|(hardware, _)| hardware).map_err(|error| Misfit::new(error.to_string(), "correct it"))
}

/// The graph of all GPUs of a machine, rank by rank in their order.
///
/// # Errors
/// [`Misfit`] where what joins them is not known.
pub fn gpu_graph(hardware: &Hardware) -> std::result::Result<Topology, Misfit> {
    let graph = hardware.rank_graph(&hardware.gpus(), Rates::DataSheet, Wires::All);
    graph.map(|graph| graph.topology).map_err(|error| Misfit {
        reason: error.reason,
        // A variable takes a file, and no flag.
        remedy: format!(
            "{} (collbench topo --file FILE with such flags and -o MACHINE writes a file that can be named)",
            error.remedy
        ),
    })
}

/// The graph of ranks that are spread evenly over the CPUs of a machine of one host.
///
/// # Errors
/// [`Misfit`] where there are several hosts, or no CPU is known.
pub fn cpu_graph(hardware: &Hardware, ranks: u32) -> std::result::Result<Topology, Misfit> {
    let cpus = cpus(hardware);
    let hosts = hardware.hosts();
    let [host] = hosts[..] else {
        return Err(Misfit::new(
            format!("it has {} hosts and no graph of ranks on their CPUs", hosts.len()),
            "name a graph of ranks (collbench probe writes one)",
        ));
    };
    if cpus.is_empty() {
        return Err(Misfit::new(
            "it has no GPU, and says of no CPU where it is",
            "name a machine that has CPUs",
        ));
    }
    let of =
        |rank: u32| (host, cpus[(u64::from(rank) * cpus.len() as u64 / u64::from(ranks.max(1))) as usize]);
    let places: Vec<(NodeId, u32)> = (0..ranks).map(of).collect();
    hardware
        .cpu_graph(&places, Rates::DataSheet)
        .map_err(|error| Misfit { reason: error.reason, remedy: error.remedy })
}

/// The CPUs of all NUMA domains, in ascending order.
fn cpus(hardware: &Hardware) -> Vec<u32> {
    let of = |(_, node): (NodeId, &consort_algorithms::hardware::Node)| match &node.kind {
        NodeKind::Numa(numa) => numa.cpus.as_ref().map(|cpus| cpus.iter().collect::<Vec<u32>>()),
        NodeKind::Cores(cores) => Some(cores.cpus.iter().collect()),
        _ => None,
    };
    let mut all: Vec<u32> = hardware.iter().filter_map(of).flatten().collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// What NCCL's variables name for a rank's host, and where they want it written.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Exchanged {
    /// This host's machine as text (`NCCL_TOPO_FILE`), where a file says it.
    pub machine: Option<Arc<String>>,
    /// Rings and trees (`NCCL_GRAPH_FILE`), where a file says them.
    pub graphs: Option<Arc<Graphs>>,
    /// Where one rank writes its host's machine (`NCCL_TOPO_DUMP_FILE`), and which.
    pub machine_dump: Option<(PathBuf, i64)>,
    /// Where one rank writes rings and trees (`NCCL_GRAPH_DUMP_FILE`), and which.
    pub graphs_dump: Option<(PathBuf, i64)>,
}

impl Exchanged {
    /// What the variables say now. A file that cannot be read is a warning.
    pub(super) fn of(environment: &Environment<'_>) -> Self {
        let path = |name: &'static str| {
            let (text, _) = environment.text(name)?;
            Some(text.trim()).filter(|text| !text.is_empty()).map(PathBuf::from)
        };
        let dump = |name, rank| Some((path(name)?, environment.integer(rank).unwrap_or(0)));
        Exchanged {
            machine: path("NCCL_TOPO_FILE").and_then(|path| machine_in(&path)),
            graphs: path("NCCL_GRAPH_FILE").and_then(|path| graphs_in(&path)).map(Arc::new),
            machine_dump: dump("NCCL_TOPO_DUMP_FILE", "NCCL_TOPO_DUMP_FILE_RANK"),
            graphs_dump: dump("NCCL_GRAPH_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE_RANK"),
        }
    }

    /// What is the same where files have the same rings and trees; 0 where none has.
    pub fn graphs_mark(&self) -> u64 {
        self.graphs.as_ref().map_or(0, |graphs| digest(&exchange::nccl_graph_xml(graphs)).max(1))
    }
}

/// The rings and trees of the file, where it can be read; a warning where not.
fn graphs_in(path: &Path) -> Option<Graphs> {
    let refused = |why: String| {
        warn(&format!("NCCL_GRAPH_FILE {}: {why}; the job goes on without it", path.display()));
        None
    };
    let bytes = match bytes(path) {
        Ok(bytes) => bytes,
        Err(error) => return refused(format!("it cannot be opened: {error}")),
    };
    match exchange::read(&bytes) {
        Ok(exchange::Read { content: Content::Graphs(graphs), .. }) => Some(graphs),
        Ok(read) => refused(format!("it is {}, and has no rings and trees", read.format)),
        Err(error) => refused(error.to_string()),
    }
}

/// The machine of one host that a file of NCCL's variable describes, where it can be read.
fn machine_in(path: &Path) -> Option<Arc<String>> {
    let shown = path.display();
    let refused = |why: String| {
        warn(&format!("NCCL_TOPO_FILE {shown}: {why}; the job goes on with what it sees itself"));
        None
    };
    let bytes = match bytes(path) {
        Ok(bytes) => bytes,
        Err(error) => return refused(format!("it cannot be opened: {error}")),
    };
    let (hardware, notes) = match exchange::read_hardware(&bytes) {
        Ok(read) => read,
        Err(error) => return refused(error.to_string()),
    };
    if hardware.hosts().len() > 1 {
        return refused(format!("it has {} hosts; name the file of this host", hardware.hosts().len()));
    }
    let text = called_by(hardware.into_file(), path).to_string();
    if text.len() > MACHINE_BYTES_MAX {
        return refused(format!(
            "its {} bytes as text are more than ranks send when they join ({MACHINE_BYTES_MAX})",
            text.len()
        ));
    }
    for note in notes {
        inform(&format!("NCCL_TOPO_FILE {shown}: {note}"));
    }
    Some(Arc::new(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: &str = "hardware m\nhost h0\nnuma n0 on=h0 number=0 cpus=0-3\nnuma n1 on=h0 number=1 cpus=4-7\n\
                           link n0 n1 socket bytes_s=20000000000\n";

    /// A file that is gone when the test ends.
    struct Text(PathBuf);

    impl Text {
        fn of(name: &str, text: &[u8]) -> Text {
            let path = std::env::temp_dir().join(format!("consort-named-{}-{name}", std::process::id()));
            std::fs::write(&path, text).expect("a file");
            Text(path)
        }

        fn name(&self) -> String {
            self.0.display().to_string()
        }
    }

    impl Drop for Text {
        fn drop(&mut self) {
            drop(std::fs::remove_file(&self.0));
        }
    }

    #[test]
    fn a_machine_without_gpus_is_the_graph_of_ranks_on_its_cpus() {
        let file = Text::of("cpus", MACHINE.as_bytes());
        let text = text_of(&file.name()).expect("a machine");
        let graph = graph_for(&text, 4, false).expect("a graph");
        assert_eq!(graph.ranks(), 4);
        // Two on each domain.
        let near = |rank: u32| graph.links().iter().find(|link| link.from.0 == rank).expect("a link").to;
        assert!(near(0) == near(1) && near(2) == near(3) && near(0) != near(2), "{graph}");
        assert_eq!(read_topology(&file.name()).expect("a graph").ranks(), 8);
        assert_eq!(graph_for("topology t\nrank a box=0\n", 1, false).expect("a graph").ranks(), 1);
        let misfit = graph_for("topology t\nrank a box=0\n", 2, false).expect_err("another number");
        assert!(misfit.to_string().contains("it has 1 rank, and the job has 2"), "{misfit}");
    }

    #[test]
    fn files_that_cannot_be_read_are_named_with_line_and_remedy() {
        for (name, text, says) in [
            ("line", &b"topology t\nrank a box=0\nlink a b\n"[..], "line 3: "),
            ("cut", b"<system version=\"1\">\n<cpu numaid=\"0\">\n", "line "),
            ("cyclic", b"hardware m\nhost h0\nbridge a on=b\nbridge b on=a\n", "line 3: "),
            ("gzip", &[0x1f, 0x8b, 1, 2], "gunzip"),
            ("graph", b"<graphs version=\"1\">\n</graphs>\n", "NCCL_GRAPH_FILE"),
            ("empty", b"", "it is empty"),
        ] {
            let file = Text::of(name, text);
            let error = text_of(&file.name()).expect_err(name).to_string();
            assert!(error.contains(says) && error.contains(&file.name()), "{name}: {error}");
        }
        let error = text_of("/nonexistent/machine").expect_err("no file").to_string();
        assert!(error.contains("neither a file nor a profile"), "{error}");
    }

    #[test]
    fn a_file_of_a_gigabyte_is_refused_by_its_length() {
        let file = Text::of("long", b"hardware m\n");
        // A hole: no memory and no disk is used.
        File::options()
            .write(true)
            .open(&file.0)
            .and_then(|open| open.set_len(1 << 30))
            .expect("a long file");
        let error = text_of(&file.name()).expect_err("too long").to_string();
        assert!(error.contains("at most 16 MiB"), "{error}");
        // A pipe that nothing is written to would be waited for for ever; a device stands for all that is no file.
        let error = text_of("/dev/zero").expect_err("no file").to_string();
        assert!(error.contains("no regular file"), "{error}");
    }

    #[test]
    fn what_nccls_variables_name_wrongly_is_left_out() {
        let exchanged = |set: &[(&str, &str)]| {
            let set: Vec<(String, String)> =
                set.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
            Exchanged::of(&Environment::from_lookup(move |name| {
                set.iter().find(|(known, _)| known == name).map(|(_, text)| text.clone())
            }))
        };
        let (machine, cut) = (Text::of("good", MACHINE.as_bytes()), Text::of("bad", b"<system"));
        assert_eq!(exchanged(&[]), Exchanged::default());
        let known = exchanged(&[("NCCL_TOPO_FILE", &machine.name())]).machine.expect("a machine");
        assert!(super::machine(known.as_bytes()).is_ok_and(|machine| machine.hosts().len() == 1));
        for name in [cut.name(), "/nonexistent/machine".into()] {
            assert_eq!(exchanged(&[("NCCL_TOPO_FILE", &name)]).machine, None);
            assert_eq!(exchanged(&[("NCCL_GRAPH_FILE", &name)]).graphs, None);
        }
        assert_eq!(exchanged(&[("NCCL_GRAPH_FILE", &machine.name())]).graphs, None);
        let rings = |speed: u32| {
            let xml = format!(
                "<graphs version=\"1\">\n<graph id=\"0\" pattern=\"4\" nchannels=\"1\" speedintra=\"{speed}\">\n<channel>\n\
                 <gpu dev=\"0x0\"/>\n<gpu dev=\"0x1\"/>\n</channel>\n</graph></graphs>"
            );
            let file = Text::of(&format!("rings{speed}"), xml.as_bytes());
            exchanged(&[("NCCL_GRAPH_FILE", &file.name())])
        };
        assert!(rings(20).graphs.is_some_and(|graphs| graphs.graphs.len() == 1));
        assert_eq!(rings(20).graphs_mark(), rings(20).graphs_mark());
        assert_ne!(rings(20).graphs_mark(), rings(21).graphs_mark());
        assert_eq!(exchanged(&[]).graphs_mark(), 0);
        let dumps = exchanged(&[("NCCL_TOPO_DUMP_FILE", "/t/x"), ("NCCL_GRAPH_DUMP_FILE_RANK", "3")]);
        assert_eq!((dumps.machine_dump, dumps.graphs_dump), (Some((PathBuf::from("/t/x"), 0)), None));
    }
}
