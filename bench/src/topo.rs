//! `collbench topo`: what is in this machine, or in one that a file or a captured tree describes, how its devices are joined, and what
//! that allows.
//!
//! Invariant: nothing here runs on a device, and what a source does not say is printed as unknown. Absent: measuring.

use std::ffi::OsString;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::Parser;
use consort::planning::hardware::{Hardware, NodeId, Route, counted, exchange};
use consort::planning::{Collective, bounds, search};

use crate::described::{Graph, Reading, Source};
use crate::failure::{Exit, Failure};
use crate::inventory;
use crate::matrix::Devices;
use crate::planned;

/// The most GPUs for which bounds are worked out, and rings and trees are drawn: those of larger machines take minutes where boxes
/// differ, and a drawing has no room for them.
const BOUND_RANKS_MAX: u32 = 64;

/// As many rings stand before the trees of a drawing, which shows a dozen of both.
const RINGS_FIRST: usize = 6;

/// Says what is in a machine: its GPUs, network ports, NUMA domains and NVSwitches, the kinds of the paths between them in NCCL's words
/// with their narrowest link, the algorithm bandwidth that no schedule can exceed, and what a person should look at.
///
/// Without --file and --root it looks at this machine, or at that of NCCL_TOPO_FILE. Files are NCCL's topology (NCCL_TOPO_DUMP_FILE), hwloc's XML, the output of nvidia-smi topo -m, or a machine as text.
#[derive(Parser, Debug)]
#[command(name = "collbench topo", bin_name = "collbench topo", max_term_width = 110)]
struct Arguments {
    #[command(flatten)]
    source: Source,

    #[command(flatten)]
    reading: Reading,

    /// Writes the summary as JSON: name, gpus, nics, numa, nvswitches, links and warnings. - for standard output, where nothing else is then
    /// printed
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Writes a drawing of the machine where FILE ends in .svg, else the machine in the form of text that this program reads,
    /// whatever form it had. - for standard output, where nothing else is then printed
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Runs the subcommand; its name is the first word.
pub(crate) fn run(words: &[OsString]) -> Result<Exit, Failure> {
    let Some(arguments) = planned::parse::<Arguments>(words)? else { return Ok(Exit::Done) };
    let (hardware, notes) = arguments.reading.machine(&arguments.source)?;
    let is_standard = |path: &Option<PathBuf>| path.as_deref() == Some(Path::new("-"));
    if is_standard(&arguments.json) && is_standard(&arguments.output) {
        return Err(Failure::usage("--json - and -o -: standard output takes one of them"));
    }
    let place = |path: &Path| (path != Path::new("-")).then(|| path.to_owned());
    if !is_standard(&arguments.json) && !is_standard(&arguments.output) {
        let mut text = arguments.text(&hardware);
        for note in notes {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "note: {note}");
        }
        planned::write(&text, None)?;
    }
    if let Some(path) = &arguments.json {
        let json = arguments.named(&hardware).summary(arguments.reading.rates).json();
        planned::write(&json, place(path).as_deref())?;
    }
    if let Some(path) = &arguments.output {
        let is_picture = path.extension().is_some_and(|suffix| suffix.eq_ignore_ascii_case("svg"));
        let text = if is_picture {
            arguments.named(&hardware).svg(arguments.reading.rates, &arguments.routes(&hardware))
        } else {
            exchange::hardware_text(&hardware).map_err(|error| Failure::usage(format!("-o: {error}")))?
        };
        planned::write(&text, place(path).as_deref())?;
    }
    Ok(Exit::Done)
}

impl Arguments {
    /// The machine with a name: that of the file where the file gives none.
    fn named(&self, hardware: &Hardware) -> Hardware {
        let mut named = hardware.clone();
        // Composed boxes are named after the first, with their number.
        if named.name.is_empty() || named.name.starts_with(':') {
            let stem = self.source.stem();
            named.name.insert_str(0, &stem);
        }
        named
    }

    /// The rings and trees between a machine's GPUs, for a drawing.
    fn routes(&self, hardware: &Hardware) -> Vec<Route> {
        let gpus = hardware.gpus();
        if gpus.len() > BOUND_RANKS_MAX as usize {
            return Vec::new();
        }
        let Ok(Graph { topology, .. }) = self.reading.graph(hardware) else { return Vec::new() };
        let options = search::Options::default();
        // Rings that differ in what they carry alone are one.
        let mut alike: Vec<(Vec<NodeId>, Vec<String>)> = Vec::new();
        for (ring, number) in search::rings(&topology, &options).rings.iter().zip(0..) {
            let nodes: Vec<NodeId> = ring.order.iter().map(|rank| gpus[rank.index()]).collect();
            match alike.iter_mut().find(|(known, _)| *known == nodes) {
                Some((_, numbers)) => numbers.push(number.to_string()),
                None => alike.push((nodes, vec![number.to_string()])),
            }
        }
        let rings = alike.iter().map(|(nodes, numbers)| {
            let word = if numbers.len() == 1 { "ring" } else { "rings" };
            Route::ring(format!("{word} {}", numbers.join(", ")), nodes)
        });
        let trees = search::trees(&topology, &options).trees;
        let trees = trees.iter().enumerate().map(|(index, tree)| {
            let parents: Vec<Option<usize>> =
                tree.parents.iter().map(|of| of.map(|rank| rank.index())).collect();
            Route::tree(format!("tree {index}"), &gpus, &parents)
        });
        // A drawing shows the first: some of both.
        let mut rings: Vec<Route> = rings.collect();
        let rest = rings.split_off(rings.len().min(RINGS_FIRST));
        rings.into_iter().chain(trees).chain(rest).collect()
    }

    fn text(&self, hardware: &Hardware) -> String {
        let summary = self.named(hardware).summary(self.reading.rates);
        let name = &summary.name;
        let mut text = format!(
            "{name}: {}, {}, {}, {}\n",
            counted(summary.gpus, "GPU"),
            counted(summary.nics, "network port"),
            counted(summary.numa, "NUMA domain"),
            counted(summary.nvswitches, "NVSwitch")
        );
        text += &inventory::text(hardware);
        let devices = Devices::of(hardware, self.reading.rates);
        text += &devices.list();
        text += &devices.table();
        text += &self.bounds(hardware);
        for warning in &summary.warnings {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "warning: {warning}");
        }
        text
    }

    /// What no schedule of the GPUs can exceed.
    fn bounds(&self, hardware: &Hardware) -> String {
        if hardware.gpus().len() < 2 {
            return String::new();
        }
        let Graph { topology, lacks } = match self.reading.graph(hardware) {
            Ok(graph) => graph,
            Err(failure) => return format!("bounds: none, as {}\n", failure.message),
        };
        if topology.ranks() > BOUND_RANKS_MAX {
            return format!("bounds: not worked out for {} GPUs; collbench bound does\n", topology.ranks());
        }
        let mut text = "at most, in GB/s of algorithm bandwidth:\n".to_owned();
        for lack in lacks {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  of the graph alone: {lack}");
        }
        let collectives =
            [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter, Collective::AllToAll];
        for collective in collectives {
            // Writing to a String cannot fail.
            let _ = match bounds::bound(&topology, collective, &bounds::Options::default()) {
                Ok(bound) => {
                    let about = if bound.exact { "" } else { ", perhaps less" };
                    writeln!(text, "  {collective}: {:.2}{about} ({})", bound.gb_s(), bound.cut.words)
                }
                Err(error) => writeln!(text, "  {collective}: {error}"),
            };
        }
        let options = search::Options::default();
        text + &search::words(
            &topology,
            &search::rings(&topology, &options),
            &search::trees(&topology, &options),
            true,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two GPUs that two NVLinks of the third generation join, and one port; GPU 1 has half of its PCIe lanes.
    const FILE: &str = r#"<system version="1">
  <cpu numaid="0" affinity="00000000,0000ffff" arch="x86_64" vendor="AuthenticAMD" familyid="23" modelid="49">
    <pci busid="0000:07:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="0" sm="80" rank="0" gdr="1">
        <nvlink target="0000:0a:00.0" count="2" tclass="0x030200"/>
      </gpu>
    </pci>
    <pci busid="0000:0a:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="8">
      <gpu dev="1" sm="80" rank="1" gdr="1">
        <nvlink target="0000:07:00.0" count="2" tclass="0x030200"/>
      </gpu>
    </pci>
    <pci busid="0000:0c:00.0" class="0x020700" link_speed="16.0 GT/s PCIe" link_width="16">
      <nic>
        <net name="mlx5_0" dev="0" speed="200000" port="1" guid="0x1" maxconn="262144" gdr="1"/>
      </nic>
    </pci>
  </cpu>
</system>
"#;

    fn run(line: &str) -> Result<(Arguments, Hardware), Failure> {
        let words = format!("topo --file machine.xml {line}");
        let words: Vec<OsString> = words.split_whitespace().map(OsString::from).collect();
        let arguments = planned::parse::<Arguments>(&words)?.expect("no help");
        let (hardware, _) = exchange::read_hardware(FILE.as_bytes()).expect("a machine");
        let hardware = arguments.reading.completed(hardware)?;
        Ok((arguments, hardware))
    }

    #[test]
    fn a_machine_is_shown_with_paths_bounds_and_what_to_look_at() {
        let (arguments, hardware) = run("--wires fastest").expect("a machine");
        let text = arguments.text(&hardware);
        for part in [
            "2 GPUs, 1 network port, 1 NUMA domain, 0 NVSwitches",
            "NVL 50",
            "PHB 31.5",
            "all_gather: 100.00 ",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(text.contains("warning: ") && text.contains("x8"), "{text}");
        assert!(text.contains("of the graph alone: --wires fastest"), "{text}");
        assert!(
            text.contains("1 ring of 50.00 GB/s together, at most 50.00, and no rings are faster"),
            "{text}"
        );
        assert!(text.contains("all_gather: 50.00 by rings, provable 50.00"), "{text}");
        let (arguments, hardware) = run("").expect("a machine");
        let text = arguments.text(&hardware);
        assert!(!text.contains("of the graph alone"), "{text}");
        let (arguments, hardware) = run("--rates nccl").expect("a machine");
        assert!(arguments.text(&hardware).contains("of the graph alone: --rates nccl"));
        assert!(text.contains("all_gather: 131.50 "), "PCIe carries bytes besides: {text}");
    }

    #[test]
    fn boxes_are_joined_and_what_is_wrong_is_said() {
        let (arguments, hardware) = run("--boxes 2 --network flat --wires fastest").expect("two boxes");
        assert_eq!((hardware.gpus().len(), hardware.hosts().len()), (4, 2));
        // Two ranks of the other box come in over one port of 25 GB/s: 4 / 2 of it.
        assert!(arguments.text(&hardware).contains("all_gather: 50.00 "), "{}", arguments.text(&hardware));
        let message = run("--assume toaster").expect_err("there is none").message;
        assert!(message.contains("toaster") && message.contains("dgx-a100"), "{message}");
        let routes = arguments.routes(&hardware);
        let is_drawn = |word: &str| routes.iter().filter(|route| route.name.starts_with(word)).count() > 0;
        assert!(is_drawn("ring") && is_drawn("tree"), "{routes:?}");
        let rings: Vec<_> = routes.iter().filter(|route| route.name.starts_with("ring")).collect();
        let mut hops: Vec<_> = rings.iter().map(|ring| &ring.hops).collect();
        hops.sort();
        hops.dedup();
        assert_eq!(hops.len(), rings.len(), "a ring is drawn twice: {routes:?}");
        // There is no room for rings of 66 GPUs, and those of thousands take minutes.
        let (arguments, hardware) = run("--boxes 33 --network flat --wires fastest").expect("boxes");
        assert_eq!((hardware.gpus().len(), arguments.routes(&hardware)), (66, Vec::new()));
        assert!(run("--rates fast").is_err() && run("--network star").is_err() && run("--boxes 0").is_err());
    }
}
