//! Topology files of known machines, written from their data sheets.

use std::fmt::Write;

/// A link of a GPU: element, target, count, class of the target.
type Wire = (&'static str, String, u32, &'static str);

/// A machine for [`Machine::xml`]: switches with the same devices below each.
pub(crate) struct Machine {
    /// The version of the format: 2 for RCCL.
    pub(crate) version: u32,
    /// The attributes of a processor.
    pub(crate) cpu: &'static str,
    /// How many NUMA domains there are, and how many switches in each.
    pub(crate) numas: usize,
    pub(crate) switches: usize,
    /// How many GPUs are below a switch, and the attributes of their devices and elements.
    pub(crate) gpus: usize,
    pub(crate) device: &'static str,
    pub(crate) gpu: &'static str,
    /// Speeds as sysfs writes them, of switches and GPUs.
    pub(crate) speed: &'static str,
    /// Megabits a second of the port below each switch, if there is one.
    pub(crate) port: Option<u32>,
}

/// The address of a GPU.
pub(crate) fn bus(index: usize) -> String {
    format!("0000:{:02x}:00.0", 0x10 + index)
}

impl Machine {
    /// NCCL's XML; `wires` gives the links of each GPU.
    pub(crate) fn xml(&self, wires: impl Fn(usize) -> Vec<Wire>) -> String {
        let mut text = format!("<system version=\"{}\">\n", self.version);
        let lanes = format!("link_speed=\"{}\" link_width=\"16\"", self.speed);
        for numa in 0..self.numas {
            let _ = writeln!(text, "  <cpu numaid=\"{numa}\" {}>", self.cpu);
            for switch in 0..self.switches {
                let at = numa * self.switches + switch;
                let _ = writeln!(
                    text,
                    "    <pci busid=\"0000:{:02x}:00.0\" class=\"0x060400\" {lanes}>",
                    0x80 + at
                );
                for index in at * self.gpus..(at + 1) * self.gpus {
                    let _ = writeln!(text, "      <pci busid=\"{}\" {} {lanes}>", bus(index), self.device);
                    let _ = writeln!(
                        text,
                        "        <gpu dev=\"{index}\" rank=\"{index}\" {} gdr=\"1\">",
                        self.gpu
                    );
                    for (element, target, count, class) in wires(index) {
                        let _ = writeln!(
                            text,
                            "          <{element} target=\"{target}\" count=\"{count}\" tclass=\"{class}\"/>"
                        );
                    }
                    text += "        </gpu>\n      </pci>\n";
                }
                if let Some(speed) = self.port {
                    let _ = writeln!(
                        text,
                        "      <pci busid=\"0000:{:02x}:00.0\" class=\"0x020700\" {lanes}>\n        <nic>\n          \
                         <net name=\"mlx5_{at}\" dev=\"{at}\" speed=\"{speed}\" port=\"1\" guid=\"0x{:x}\" \
                         maxconn=\"131072\" gdr=\"1\"/>\n        </nic>\n      </pci>",
                        0xa0 + at,
                        0xbeef00 + at
                    );
                }
                text += "    </pci>\n";
            }
            text += "  </cpu>\n";
        }
        text + "</system>\n"
    }
}

const INTEL: &str =
    "affinity=\"00000000,ffffffff\" arch=\"x86_64\" vendor=\"GenuineIntel\" familyid=\"6\" modelid=\"143\"";
const EPYC: &str =
    "affinity=\"ffffffff\" arch=\"x86_64\" vendor=\"AuthenticAMD\" familyid=\"143\" modelid=\"49\"";

/// The links of a GPU of a list of pairs.
fn of_pairs(
    element: &'static str,
    class: &'static str,
    pairs: &[(usize, usize, u32)],
    index: usize,
) -> Vec<Wire> {
    let other = |&(one, other, count): &(usize, usize, u32)| match index {
        _ if index == one => Some((element, bus(other), count, class)),
        _ if index == other => Some((element, bus(one), count, class)),
        _ => None,
    };
    pairs.iter().filter_map(other).collect()
}

/// Links of DGX-1 with V100: eight pairs have two, eight have one.
const CUBE_MESH: [(usize, usize, u32); 16] = [
    (0, 1, 2),
    (0, 4, 2),
    (1, 3, 2),
    (2, 3, 2),
    (2, 6, 2),
    (4, 5, 2),
    (5, 7, 2),
    (6, 7, 2),
    (0, 2, 1),
    (0, 3, 1),
    (1, 2, 1),
    (1, 5, 1),
    (3, 7, 1),
    (4, 6, 1),
    (4, 7, 1),
    (5, 6, 1),
];

/// DGX-1 with V100: two sockets, four switches, a port of 100 Gb/s each.
pub(crate) fn dgx_1() -> String {
    let machine = Machine {
        version: 1,
        cpu: "arch=\"x86_64\" vendor=\"GenuineIntel\" familyid=\"6\" modelid=\"79\"",
        numas: 2,
        switches: 2,
        gpus: 2,
        device: "class=\"0x030200\" vendor=\"0x10de\" device=\"0x1db5\"",
        gpu: "sm=\"70\"",
        speed: "8 GT/s",
        port: Some(100_000),
    };
    machine.xml(|index| of_pairs("nvlink", "0x030200", &CUBE_MESH, index))
}

/// Switches at `0000:c0` and after, with `counts` links from each GPU.
fn switched(counts: &'static [u32]) -> impl Fn(usize) -> Vec<Wire> {
    let wire =
        |(at, count): (usize, &u32)| ("nvlink", format!("0000:{:02x}:00.0", 0xc0 + at), *count, "0x068000");
    move |_| counts.iter().enumerate().map(wire).collect()
}

const A100: Machine = Machine {
    version: 1,
    cpu: EPYC,
    numas: 4,
    switches: 1,
    gpus: 2,
    device: "class=\"0x030200\" vendor=\"0x10de\" device=\"0x20b0\"",
    gpu: "sm=\"80\"",
    speed: "16.0 GT/s PCIe",
    port: Some(200_000),
};

/// DGX A100: four domains with two GPUs each, six NVSwitches, two links to each.
pub(crate) fn dgx_a100() -> String {
    A100.xml(switched(&[2, 2, 2, 2, 2, 2]))
}

/// DGX H100: 18 links of the fourth generation over four NVSwitches, a port of 400 Gb/s for each GPU.
pub(crate) fn dgx_h100() -> String {
    let machine = Machine {
        cpu: INTEL,
        numas: 2,
        switches: 4,
        gpus: 1,
        device: "class=\"0x030200\" vendor=\"0x10de\" device=\"0x2330\"",
        gpu: "sm=\"90\"",
        speed: "32.0 GT/s PCIe",
        port: Some(400_000),
        ..A100
    };
    machine.xml(switched(&[5, 4, 4, 5]))
}

/// HGX B200 in a virtual machine that does not see the NVSwitches.
pub(crate) fn hgx_b200() -> String {
    let machine = Machine {
        cpu: INTEL,
        numas: 2,
        switches: 2,
        device: "class=\"0x030200\" vendor=\"0x10de\" device=\"0x2901\"",
        gpu: "sm=\"100\"",
        speed: "32 GT/s PCIe/s",
        port: None,
        ..A100
    };
    machine.xml(|_| vec![("nvlink", "fffffff:ff:ff.0".into(), 18, "0x068000")])
}

/// Eight MI300X: every two joined by one xGMI link.
pub(crate) fn mi300x() -> String {
    let machine = Machine {
        version: 2,
        numas: 2,
        switches: 4,
        gpus: 1,
        device: "class=\"0x120000\" vendor=\"0x1002\" device=\"0x74a1\"",
        gpu: "sm=\"304\" gcn=\"gfx942\" arch=\"38911\"",
        speed: "32.0 GT/s PCIe",
        port: Some(400_000),
        ..A100
    };
    let others = |index| (0..8).filter(move |other| *other != index);
    machine.xml(|index| others(index).map(|other| ("xgmi", bus(other), 1, "0x120000")).collect())
}

/// Dies of MI250X, with the links: four within a package, two and one between.
const DIES: [(usize, usize, u32); 28] = [
    (0, 1, 4),
    (2, 3, 4),
    (4, 5, 4),
    (6, 7, 4),
    (8, 9, 4),
    (10, 11, 4),
    (12, 13, 4),
    (14, 15, 4),
    (0, 4, 2),
    (3, 7, 2),
    (8, 12, 2),
    (11, 15, 2),
    (1, 5, 1),
    (2, 6, 1),
    (4, 6, 1),
    (5, 6, 1),
    (5, 7, 1),
    (0, 8, 1),
    (1, 9, 1),
    (2, 9, 1),
    (1, 10, 1),
    (2, 10, 1),
    (3, 11, 1),
    (9, 13, 1),
    (10, 14, 1),
    (12, 14, 1),
    (13, 14, 1),
    (13, 15, 1),
];

/// Eight MI250X: sixteen dies, eight ports of 200 Gb/s.
pub(crate) fn mi250x() -> String {
    let machine = Machine {
        version: 2,
        numas: 4,
        switches: 2,
        device: "class=\"0x038000\" vendor=\"0x1002\" device=\"0x740c\"",
        gpu: "sm=\"104\" gcn=\"910\" arch=\"38911\"",
        ..A100
    };
    machine.xml(|index| of_pairs("xgmi", "0x038000", &DIES, index))
}

/// Eight GPUs without NVLink: two sockets with two switches each, one port at the first switch.
pub(crate) fn pcie() -> String {
    let machine = Machine {
        cpu: INTEL,
        numas: 2,
        switches: 2,
        device: "class=\"0x030200\" vendor=\"0x10de\" device=\"0x20b5\"",
        port: None,
        ..A100
    };
    let text = machine.xml(|_| Vec::new());
    let nic =
        "    <nic>\n      <net name=\"eth0\" dev=\"0\" speed=\"25000\" port=\"0\"/>\n    </nic>\n  </cpu>\n";
    text.replacen("  </cpu>\n", nic, 1)
}
