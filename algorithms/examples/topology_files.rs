//! Reads topology files and prints, for each, its format, the counts of its summary, and whether it survives round trips.
//!
//! `cargo run -p consort-algorithms --example topology_files -- [--links] FILE...`

use consort_algorithms::hardware::exchange::{self, Content};
use consort_algorithms::hardware::{Hardware, Rates, Wires};

fn main() {
    let mut links = false;
    for path in std::env::args().skip(1) {
        if path == "--links" {
            links = true;
            continue;
        }
        let name = std::path::Path::new(&path)
            .file_name()
            .map_or(path.clone(), |name| name.to_string_lossy().into_owned());
        match std::fs::read(&path) {
            Ok(bytes) => println!("{name}: {}", describe(&bytes, links)),
            Err(error) => println!("{name}: {error}"),
        }
    }
}

fn describe(bytes: &[u8], links: bool) -> String {
    let begun = std::time::Instant::now();
    let read = match exchange::read(bytes) {
        Ok(read) => read,
        Err(error) => return format!("refused: {error}"),
    };
    let micros = begun.elapsed().as_micros();
    let Content::Hardware(hardware) = read.content else { return format!("{}", read.format) };
    let summary = hardware.summary(Rates::DataSheet);
    let mut kinds: std::collections::BTreeMap<String, usize> = std::collections::BTreeMap::new();
    for link in &summary.links {
        let gb_s = link.bytes_s.map_or("unknown".into(), |bytes| format!("{} GB/s", bytes as f64 / 1e9));
        *kinds.entry(format!("{} {gb_s}", link.kind)).or_default() += 1;
    }
    let text = exchange::read_hardware(hardware.to_string().as_bytes()).map(|(again, _)| again);
    let xml = exchange::nccl_topology_xml(&hardware).map_err(|error| error.to_string()).and_then(|xml| {
        exchange::read_hardware(xml.as_bytes()).map(|(again, _)| again).map_err(|error| error.to_string())
    });
    let same = |again: Result<Hardware, String>| match again {
        Ok(again) if again == hardware => "equal".to_owned(),
        Ok(_) => "different".to_owned(),
        Err(error) => error,
    };
    let graph = match hardware.rank_graph(&hardware.gpus(), Rates::DataSheet, Wires::Fastest) {
        Ok(graph) => {
            format!("{} nodes, {} links", graph.topology.nodes().len(), graph.topology.links().len())
        }
        Err(error) => error.to_string(),
    };
    let mut lines = vec![
        format!("{} ({micros} us)", read.format),
        format!(
            "  gpus {} nics {} numa {} nvswitches {} links {}",
            summary.gpus,
            summary.nics,
            summary.numa,
            summary.nvswitches,
            summary.links.len()
        ),
        format!("  {kinds:?}"),
        format!("  round trips: text {}, NCCL {}", same(text.map_err(|error| error.to_string())), same(xml)),
        format!("  ranks: {graph}"),
    ];
    lines.extend(read.notes.iter().take(5).map(|note| format!("  note: {note}")));
    lines.extend(summary.warnings.iter().map(|warning| format!("  warning: {warning}")));
    if links {
        lines.push(summary.json());
    }
    lines.join("\n")
}
