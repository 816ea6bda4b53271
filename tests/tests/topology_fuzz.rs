//! Hostile topology files: every format, mutated; what is read is written and read again.
//!
//! An input's pieces are joined to one text. Invariant under test: a text is read or refused with a reason and a remedy, what is read
//! makes sense and survives its own text form, and memory stays within a bound that follows from the text's length.

use consort_algorithms::hardware::exchange::{self, Content, Format};
use consort_algorithms::hardware::{Rates, Wires};
use consort_transports::fuzzing::{Counting, Input, Seen, Target, fuzz};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The target of a format. An input has at most 32 KiB; an element of six bytes becomes a node of some 400, with its links and
/// names, twice, and every two of 256 NUMA domains are a link.
const fn target(name: &'static str, command: &'static str) -> Target {
    Target { name, command, bytes_max: 64 << 20, inputs: 400 }
}

/// The longest picture of any machine: what has no room is counted.
const PICTURE_MAX: usize = 2 << 20;

fn handle(input: &Input, seen: &mut Seen) {
    let bytes = input.concat();
    let read = match exchange::read(&bytes) {
        Ok(read) => read,
        Err(error) => {
            assert!(!error.reason.is_empty() && !error.remedy.is_empty());
            seen.note(error.format.map(|format| format as u8));
            seen.note_text(&error.reason);
            return;
        }
    };
    seen.note((read.format as u8, read.notes.len().min(4)));
    match read.content {
        Content::Hardware(hardware) => {
            hardware.check().expect("what was read makes sense");
            let again = exchange::read_hardware(hardware.to_string().as_bytes());
            assert_eq!(again.map(|(again, _)| again).as_ref(), Ok(&hardware), "the text form");
            let picture = hardware.svg(Rates::DataSheet, &[]);
            assert!(picture.len() < PICTURE_MAX && picture.ends_with("</svg>\n"), "{} bytes", picture.len());
            let is_no_number = ["\"NaN", "\"inf", "\"-inf", "MNaN"].iter().any(|word| picture.contains(word));
            assert!(!is_no_number, "a coordinate that is no number");
            seen.note(picture.len().ilog2());
            let summary = hardware.summary(Rates::DataSheet);
            seen.note((
                summary.gpus.min(4),
                summary.nics.min(4),
                summary.nvswitches.min(4),
                summary.warnings.len().min(8),
            ));
            if read.format == Format::NcclTopology {
                let xml = exchange::nccl_topology_xml(&hardware);
                seen.note(xml.is_ok());
                if let Ok(xml) = xml {
                    let again = exchange::read_hardware(xml.as_bytes());
                    assert_eq!(again.map(|(again, _)| again).as_ref(), Ok(&hardware), "NCCL's form");
                }
            }
            let graph = hardware.rank_graph(&hardware.gpus(), Rates::Nccl, Wires::Fastest);
            seen.note(graph.map(|graph| graph.left_out.len().min(4)).map_err(|error| error.remedy));
        }
        Content::Graphs(graphs) => {
            let again = exchange::read(exchange::nccl_graph_xml(&graphs).as_bytes());
            assert_eq!(again.map(|read| read.content).as_ref(), Ok(&Content::Graphs(graphs.clone())));
            seen.note(graphs.graphs.len().min(4));
        }
        Content::RankGraph(topology) => {
            let again = exchange::read(topology.to_string().as_bytes());
            assert_eq!(again.map(|read| read.content), Ok(Content::RankGraph(topology)));
        }
    }
}

/// Files of a format, a line a piece.
fn originals(texts: &[&str]) -> Vec<Input> {
    let pieces = |text: &&str| text.split_inclusive('\n').map(|line| line.as_bytes().to_vec()).collect();
    texts.iter().map(pieces).collect()
}

const NCCL: &str = "<!-- a licence -->\n<system version=\"1\" name=\"x\">\n<cpu host_hash=\"0x1\" numaid=\"0\" affinity=\"ff,00000000\" arch=\"x86_64\" vendor=\"GenuineIntel\" familyid=\"6\" modelid=\"143\">\n\
        <pci busid=\"0000:03:00.0\" class=\"0x060400\" link_speed=\"8 GT/s\" link_width=\"16\">\n\
        <pci busid=\"0000:06:00.0\" class=\"0x030200\" vendor=\"0x10de\" device=\"0x2330\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\">\n\
        <gpu dev=\"0\" sm=\"90\" rank=\"0\" gdr=\"1\">\n<nvlink target=\"0000:07:00.0\" count=\"2\" tclass=\"0x030200\"/>\n\
        <nvlink target=\"fffffff:ffff:ff\" count=\"9\" tclass=\"0x068000\"/>\n<c2c bw=\"44712\" count=\"10\"/>\n</gpu></pci>\n\
        <pci busid=\"0000:07:00.0\" class=\"0x030200\" link_speed=\"\" link_width=\"\">\n<gpu dev=\"1\" sm=\"90\" rank=\"1\" gdr=\"1\">\n\
        <nvlink target=\"0000:06:00.0\" count=\"2\" tclass=\"0x030200\"/>\n</gpu></pci>\n<pcilink target=\"0000:04:00.0\"/>\n\
        <pci busid=\"0000:08:00.0\" class=\"0x020700\">\n<nic>\n<net name=\"mlx5_0\" dev=\"0\" latency=\"1.5\" speed=\"400000\" port=\"1\" guid=\"0xbeef\" maxconn=\"7\"/>\n</nic></pci>\n\
        </pci>\n<nic><net name=\"eth0\" dev=\"1\" speed=\"-1\"/></nic>\n</cpu>\n</system>\n";

const AMD: &str = "<system version=\"2\">\n<cpu numaid=\"-1\">\n<pci>\n<pci busid=\"0000:0c:00.0\" class=\"0x120000\" vendor=\"0x1002\">\n<gpu dev=\"0\" gcn=\"gfx942\">\n\
        <xgmi target=\"0000:15:00.0\" count=\"1\" tclass=\"0x120000\"/>\n</gpu></pci></pci>\n<pci busid=\"0000:15:00.0\" class=\"0x120000\"><gpu dev=\"1\" gcn=\"gfx942\"/></pci>\n</cpu></system>\n";

const HWLOC: &str = "<?xml version=\"1.0\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology version=\"3.0\">\n<object type=\"Machine\" cpuset=\"0xf\" nodeset=\"0x3\" gp_index=\"1\">\n\
        <object type=\"NUMANode\" os_index=\"0\" cpuset=\"0x3\" gp_index=\"2\"/>\n<object type=\"NUMANode\" os_index=\"1\" cpuset=\"0xc\" gp_index=\"3\"/>\n\
        <object type=\"L3Cache\" cpuset=\"0x3\" depth=\"3\" cache_size=\"64\"/>\n<object type=\"Bridge\" bridge_type=\"0-1\" bridge_pci=\"0000:[2b-3b]\">\n\
        <object type=\"Bridge\" bridge_type=\"1-1\" pci_busid=\"0000:2b:00.0\" pci_type=\"0604 [8086:2030] [8086:0000] 04 00\">\n\
        <object type=\"PCIDev\" gp_index=\"4\" pci_busid=\"0000:34:00.0\" pci_type=\"0302 [10de:1db8] [10de:131d] a1 00\" pci_link_speed=\"15.75\">\n\
        <object type=\"OSDev\" gp_index=\"5\" name=\"nvml0\" osdev_type=\"12\"/></object>\n\
        <object type=\"PCIDev\" gp_index=\"6\" subtype=\"NVSwitch\" pci_busid=\"0000:35:00.0\" pci_type=\"0680 [10de:1ac2] [0000:0000] a1 00\"/>\n\
        <object type=\"PCIDev\" gp_index=\"7\" pci_busid=\"0000:36:00.0\" pci_type=\"0207 [15b3:1017] [15b3:0006] 00\"><object type=\"OSDev\" name=\"mlx5_0\" osdev_type=\"32\"><info name=\"Port1State\" value=\"4\"/></object></object>\n\
        </object></object></object>\n<distances2 type=\"NUMANode\" name=\"NUMALatency\" indexing=\"os\"><indexes>0 1</indexes><u64values>10 21 21 10</u64values></distances2>\n\
        <distances2hetero name=\"NVLinkBandwidth\"><indexes>OSDev:5 PCIDev:6</indexes><u64values>0 150000 150000 0</u64values></distances2hetero>\n</topology>\n";

const SMI: &str = "\t\u{1b}[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\u{1b}[0m\nGPU0\t X \tNV12\tSYS\tPIX\t0-19\t0\n\
        GPU1\tNV12\t X \tNODE\tPXB\t0-19\t0\nGPU2\tSYS\tNODE\t X \tSYS\t20-39\t1\nNIC0\tPIX\tPXB\tSYS\t X \n\nNIC Legend:\n\n  NIC0: mlx5_0\n";

/// One that a tree has.
const TREE: &str = "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV12\tPIX\t0-19\t0\nGPU1\tNV12\t X \tSYS\t20-39\t1\nNIC0\tPIX\tSYS\t X \n\nNIC Legend:\n\n  NIC0: mlx5_0\n";

const GRAPH: &str = "<graphs version=\"1\">\n<graph id=\"0\" pattern=\"4\" crossnic=\"0\" nchannels=\"1\" speedintra=\"20.6\" speedinter=\"12\" latencyinter=\"1.5\" typeintra=\"NVL\" typeinter=\"PIX\" samechannels=\"1\">\n\
        <channel>\n<net dev=\"0x0\"/>\n<gpu dev=\"0x0\" rank=\"0\"/>\n<gpu dev=\"0x1\" rank=\"1\"/>\n<net dev=\"0x1\"/>\n</channel>\n</graph>\n</graphs>\n";

const OURS: &str = "hardware box%20of%20tests\nhost h hash=0x1\nnuma n on=h number=0 cpus=0-3 arch=x86_64 vendor=AuthenticAMD family=25 model=1\ncores c on=h cpus=0-1 cache_level=3\n\
        root r on=h bus=0000:00:00.0\nbridge b on=h bus=0000:01:00.0 acs=yes\ngpu g on=h bus=0000:02:00.0 index=0 sm=80 described=yes links_known=yes +numa=0\n\
        nvswitch s on=h bus=0000:03:00.0\nnic i on=h pci=yes\nport p on=h device=mlx5_0 speed_mbit_s=200000 state=down\nswitch w\nlink h n local\nlink n c local\nlink n r local\n\
        link r b pcie generation=4 width=16 best_generation=5 best_width=16\nlink b g pcie\nlink b i pcie\nlink i p local\nlink g s nvlink generation=3 count=12\nlink p w network bytes_s=25000000000\n";

const RANKS: &str = "topology t\ncosts send_ns=1 receive_ns=1 reduce_ns_per_byte=0.5 copy_ns_per_byte=0\nrank a box=0\nrank b box=0 inject_bytes_s=5\nswitch s\nlink a s latency_ns=5 bandwidth_bytes_s=7\nlink s b latency_ns=5 bandwidth_bytes_s=7\n";

/// Originals have to be right, so that mutants get far.
fn checked(target: &Target, texts: &[&str]) {
    for text in texts {
        let read = exchange::read(text.as_bytes());
        assert!(read.is_ok(), "{read:?}");
    }
    fuzz(target, originals(texts), handle);
}

#[test]
fn topologies_of_nccl_are_read_and_written_again_or_refused() {
    let command = "-p consort-tests --test topology_fuzz topologies_of_nccl";
    checked(&target("topologies-of-nccl", command), &[NCCL, AMD]);
}

#[test]
fn graphs_of_nccl_are_read_and_written_again_or_refused() {
    let command = "-p consort-tests --test topology_fuzz graphs_of_nccl";
    checked(&target("graphs-of-nccl", command), &[GRAPH]);
}

#[test]
fn topologies_of_hwloc_are_read_or_refused() {
    let command = "-p consort-tests --test topology_fuzz topologies_of_hwloc";
    checked(&target("topologies-of-hwloc", command), &[HWLOC]);
}

#[test]
fn matrices_of_nvidia_smi_are_read_or_refused() {
    let command = "-p consort-tests --test topology_fuzz matrices_of_nvidia_smi";
    let read = exchange::read(SMI.as_bytes());
    assert!(
        matches!(&read, Err(error) if error.format == Some(Format::NvidiaSmi)),
        "no tree has it: {read:?}"
    );
    fuzz(&target("matrices-of-nvidia-smi", command), originals(&[SMI, TREE]), handle);
}

#[test]
fn machines_as_text_are_read_and_written_again_or_refused() {
    let command = "-p consort-tests --test topology_fuzz machines_as_text";
    checked(&target("machines-as-text", command), &[OURS]);
}

#[test]
fn graphs_of_ranks_are_read_and_written_again_or_refused() {
    let command = "-p consort-tests --test topology_fuzz graphs_of_ranks";
    checked(&target("graphs-of-ranks", command), &[RANKS]);
}

/// Formats are found by the content, so mutants of one become those of another.
#[test]
fn files_of_all_formats_are_read_or_refused() {
    let command = "-p consort-tests --test topology_fuzz files_of_all_formats";
    let all = [NCCL, AMD, HWLOC, SMI, GRAPH, OURS, RANKS];
    fuzz(&target("topology-files", command), originals(&all), handle);
}
