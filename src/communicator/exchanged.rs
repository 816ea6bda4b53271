//! The files in which a job's ranks leave what they know of their machine, in NCCL's forms, and what is said of files that were not of use.
//!
//! Invariant: a file is written by the rank that the environment names, when a job has been joined; one that cannot be written is a warning, and so is
//! a machine that is not the job's. Absent: reading (`settings`), and what the planner makes of a machine.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use consort_algorithms::hardware::exchange::{Graphs, nccl_graph_xml, nccl_topology_xml};
use consort_algorithms::hardware::{Hardware, Rates, Wires};
use consort_algorithms::search;
use consort_probing::{Live, Management, Probe};

use crate::planner::Planning;
use consort_control::bootstrap::Member;
use consort_settings::notice::{inform, warn};
use consort_settings::options::{self, Exchanged, Settings};

/// This host as this process sees it: looked at once, as all ranks of a process see the same.
fn machine() -> Arc<Hardware> {
    static SEEN: OnceLock<Arc<Hardware>> = OnceLock::new();
    let look = || {
        let live = Live::open(None).ok();
        let library = live.as_ref().map(|live| live as &dyn Management);
        Arc::new(library.into_iter().fold(Probe::below(Path::new("/")), Probe::with).run().hardware)
    };
    SEEN.get_or_init(look).clone()
}

/// The same as text for the other ranks of the host; empty where it has no GPU.
fn view() -> Arc<Vec<u8>> {
    static SAID: OnceLock<Arc<Vec<u8>>> = OnceLock::new();
    let text = || {
        let seen = Some(machine()).filter(|seen| !seen.gpus().is_empty());
        seen.map(|seen| Hardware::clone(&seen).into_view().to_string().into_bytes())
    };
    SAID.get_or_init(|| Arc::new(text().unwrap_or_default())).clone()
}

/// The rings through all GPUs of a host that carry most.
fn graphs(known: &Hardware) -> Result<Graphs, String> {
    let (gpus, rates) = (known.gpus(), Rates::DataSheet);
    let graph = known.rank_graph(&gpus, rates, Wires::All).map_err(|why| why.to_string())?;
    let rings = search::rings(&graph.topology, &search::Options::default());
    let found = search::graphs(&rings, known, &gpus, rates).filter(|found| !found.graphs.is_empty());
    found.ok_or_else(|| {
        "no rings are found: the machine has fewer than two GPUs, several hosts, or GPUs without numbers"
            .into()
    })
}

/// What a rank says of its host when it joins: the machine of its file, or that of a probe for ranks that use devices.
pub(super) fn hardware(settings: &Settings) -> Arc<Vec<u8>> {
    let of_file = settings.exchanged.machine.as_ref().map(|text| Arc::new(text.as_bytes().to_vec()));
    let known = of_file.or_else(|| settings.devices.then(view)).unwrap_or_default();
    if known.len() > options::MACHINE_BYTES_MAX {
        // What ranks cannot send, none of them plans by.
        inform(&format!(
            "what this rank sees of its host, {} bytes as text, is too long to be sent; it is not used",
            known.len()
        ));
        return Arc::default();
    }
    known
}

/// When a rank has joined: says what of the files was not of use, once for the job, and writes those that are wanted of this rank.
pub(super) fn joined(rank: u32, member: &Member, settings: &Settings, planning: &Planning) {
    if rank == 0
        && let Some((why, is_by_user)) = planning.misfit()
    {
        let text = format!("{why}; the job goes on with what its table of ranks says");
        // A job on some of the GPUs that its ranks see is no mistake of a user.
        if is_by_user { warn(&text) } else { inform(&text) }
    }
    if rank == 0
        && let Some(why) = planning.channels_misfit()
    {
        warn(&format!("NCCL_GRAPH_FILE: {why}; the job goes on without it"));
    }
    let exchanged = &settings.exchanged;
    if *exchanged == Exchanged::default() {
        return;
    }
    let is_mine = |dump: &Option<(PathBuf, i64)>| match dump {
        Some((path, of)) if i64::from(rank) == *of => Some(path.clone()),
        _ => None,
    };
    let (machine_dump, graphs_dump) = (is_mine(&exchanged.machine_dump), is_mine(&exchanged.graphs_dump));
    if machine_dump.is_none() && graphs_dump.is_none() {
        return;
    }
    // Of very many hosts none is in the table.
    let of_file =
        exchanged.machine.as_ref().map(|text| text.as_bytes()).filter(|_| member.hardware.is_empty());
    let known = match of_file.unwrap_or(&member.hardware) {
        [] => Some(machine()),
        text => options::machine(text).ok().map(Arc::new),
    };
    if let Some(path) = machine_dump {
        let text = known.as_ref().ok_or_else(|| "what its rank said of its host cannot be read".to_owned());
        write(
            "NCCL_TOPO_DUMP_FILE",
            &path,
            text.and_then(|known| nccl_topology_xml(known).map_err(|why| why.to_string())),
        );
    }
    if let Some(path) = graphs_dump {
        let searched = || {
            known.as_ref().map_or_else(|| Err("nothing is known of this host".into()), |known| graphs(known))
        };
        let graphs = exchanged.graphs.as_deref().cloned().map_or_else(searched, Ok);
        write("NCCL_GRAPH_DUMP_FILE", &path, graphs.map(|graphs| nccl_graph_xml(&graphs)));
    }
}

/// Writes a text, or says why there is no file.
fn write(variable: &str, path: &Path, text: Result<String, String>) {
    let written = text.and_then(|text| std::fs::write(path, text).map_err(|error| error.to_string()));
    match written {
        Ok(()) => inform(&format!("{variable}: {} is written", path.display())),
        Err(why) => warn(&format!("{variable} {}: it is not written: {why}", path.display())),
    }
}
