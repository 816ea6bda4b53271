//! Where the devices of a host stand: NUMA domains in a row, and below each its root complexes, switches and devices.
//!
//! Invariant: cells of one level share a row and have columns of their own, so nothing lies below a device but what is part
//! of it; what is left out is counted. Absent: how a cell looks.

use std::collections::BTreeSet;

use super::painter::{Line, box_height, line_height};
use crate::hardware::{Hardware, LinkId, NodeId, NodeKind};

/// The most devices of a host, roughly as many as are drawn of one that has more, and the most below one switch.
const DEVICES_MAX: usize = 64;
const DEVICES_MANY: usize = 40;
/// The most cells, whatever they are.
const CELLS_MAX: usize = 300;
const BELOW_MAX: usize = 24;
/// The most levels below a NUMA domain.
const LEVELS_MAX: usize = 9;
/// Ports and interfaces that a box names.
pub(super) const PORTS_MAX: usize = 4;
pub(super) const INTERFACES_MAX: usize = 6;
/// Between columns, and between rows: the marks of links stand there.
const ACROSS: f64 = 8.0;
/// Between NUMA domains, where a link between them is seen.
const APART: f64 = 34.0;
const DOWN: f64 = 34.0;
/// The sides of cells.
const DEVICE: f64 = 76.0;
const SWITCH: f64 = 92.0;
pub(super) const NUMA: f64 = 232.0;

/// What a cell is.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum What {
    Node(NodeId),
    /// Interfaces that no plan uses, and that are no PCI devices.
    Interfaces(Vec<NodeId>),
    /// Groups of cores of a host whose NUMA domains are not known.
    Cores(Vec<NodeId>),
    /// As many more devices.
    Rest(usize),
}

/// A place for something.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Cell {
    pub(super) what: What,
    pub(super) above: Option<usize>,
    /// The link to what is above.
    pub(super) link: Option<LinkId>,
    pub(super) level: usize,
    pub(super) size: [f64; 2],
    /// The middle of its upper edge.
    pub(super) at: [f64; 2],
    span: f64,
}

impl Cell {
    pub(super) fn corner(&self) -> [f64; 2] {
        [self.at[0] - self.size[0] / 2.0, self.at[1]]
    }

    pub(super) fn bottom(&self) -> f64 {
        self.at[1] + self.size[1]
    }

    pub(super) fn node(&self) -> Option<NodeId> {
        match self.what {
            What::Node(id) => Some(id),
            _ => None,
        }
    }
}

/// The cells of a host, each behind the one above it.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Tree {
    pub(super) cells: Vec<Cell>,
    pub(super) width: f64,
    pub(super) height: f64,
    /// Devices that are not drawn.
    pub(super) left_out: usize,
}

/// The groups of cores of a NUMA domain or host.
pub(super) fn cores_of(hardware: &Hardware, id: NodeId) -> Vec<NodeId> {
    let below = hardware.below(id).map(|(_, node)| node);
    below.filter(|node| matches!(hardware.node(*node).kind, NodeKind::Cores(_))).collect()
}

/// The ports of an adapter.
pub(super) fn ports_of(hardware: &Hardware, nic: NodeId) -> Vec<NodeId> {
    let below = hardware.below(nic).map(|(_, node)| node);
    below.filter(|node| matches!(hardware.node(*node).kind, NodeKind::Port(_))).collect()
}

struct Maker<'a> {
    hardware: &'a Hardware,
    /// Whether there is a device at or below a node.
    is_wanted: BTreeSet<NodeId>,
    /// The most cells below one.
    most: usize,
    tree: Tree,
    devices: usize,
}

impl Tree {
    /// The tree of a host, or of the nodes that belong to none, with its upper left corner at the origin.
    pub(super) fn of(hardware: &Hardware, host: Option<NodeId>) -> Tree {
        let mut maker = Maker {
            hardware,
            is_wanted: BTreeSet::new(),
            most: BELOW_MAX,
            tree: Tree::default(),
            devices: 0,
        };
        let inside = |id: NodeId| hardware.node(id).host == host && Some(id) != host;
        let nodes = || hardware.iter().map(|(id, _)| id).filter(|id| inside(*id));
        let (mut devices, mut parents) = (0, BTreeSet::new());
        for id in nodes() {
            let is_device = matches!(hardware.node(id).kind, NodeKind::Gpu(_) | NodeKind::Nic(_));
            if is_device {
                devices += 1;
                parents.insert(hardware.above(id).map(|(_, above)| above));
            }
            let mut at = is_device.then_some(id);
            while let Some(id) = at.filter(|id| maker.is_wanted.insert(*id)) {
                at = hardware.above(id).map(|(_, above)| above);
            }
        }
        if devices > DEVICES_MAX {
            // Each switch has some of its devices then, and not the first switch all.
            maker.most = (DEVICES_MANY / parents.len()).clamp(2, BELOW_MAX);
        }
        let is_top = |id: &NodeId| hardware.above(*id).is_none_or(|(_, above)| Some(above) == host);
        let mut tops: Vec<(Option<LinkId>, NodeId)> = nodes().filter(is_top).map(|id| (None, id)).collect();
        // NUMA domains by their numbers, then what belongs to none.
        tops.sort_by_key(|(_, id)| match &hardware.node(*id).kind {
            NodeKind::Numa(numa) => (0, numa.number.unwrap_or(u32::MAX)),
            _ => (1, 0),
        });
        maker.fill(host, tops);
        maker.tree.place();
        maker.tree
    }
}

impl Maker<'_> {
    /// Cells for these and for all below them.
    fn fill(&mut self, host: Option<NodeId>, tops: Vec<(Option<LinkId>, NodeId)>) {
        let mut waiting: Vec<(What, Option<usize>, Option<LinkId>, usize)> = Vec::new();
        self.expect(&mut waiting, tops, None, 0);
        let cores = host.map(|host| cores_of(self.hardware, host)).unwrap_or_default();
        if !cores.is_empty() {
            waiting.push((What::Cores(cores), None, None, 0));
        }
        while let Some((what, above, link, level)) = waiting.pop() {
            let node = if let What::Node(id) = what { Some(id) } else { None };
            let is_device = node
                .is_some_and(|id| matches!(self.hardware.node(id).kind, NodeKind::Gpu(_) | NodeKind::Nic(_)));
            self.devices += usize::from(is_device);
            if is_device && self.devices > DEVICES_MAX || self.tree.cells.len() == CELLS_MAX {
                self.tree.left_out += 1;
                continue;
            }
            let size = self.size(&what);
            let own = self.tree.cells.len();
            self.tree.cells.push(Cell { what, above, link, level, size, at: [0.0; 2], span: 0.0 });
            if let Some(id) = node {
                let below: Vec<(Option<LinkId>, NodeId)> =
                    self.hardware.below(id).map(|(link, id)| (Some(link), id)).collect();
                self.expect(&mut waiting, below, Some(own), level + 1);
            }
        }
    }

    /// Puts what is to be drawn of `nodes` on the stack, the first on top.
    fn expect(
        &mut self,
        waiting: &mut Vec<(What, Option<usize>, Option<LinkId>, usize)>,
        nodes: Vec<(Option<LinkId>, NodeId)>,
        above: Option<usize>,
        level: usize,
    ) {
        let hardware = self.hardware;
        let (mut wanted, mut interfaces) = (Vec::new(), Vec::new());
        for (link, id) in nodes {
            match &hardware.node(id).kind {
                NodeKind::Nic(nic) if nic.pci.is_none() && self.is_useless(id) => {
                    interfaces.extend(ports_of(hardware, id));
                }
                NodeKind::Numa(_) | NodeKind::Gpu(_) | NodeKind::Nic(_) => wanted.push((link, id)),
                NodeKind::Root(_) | NodeKind::Bridge(_) if self.is_wanted.contains(&id) => {
                    wanted.push((link, id));
                }
                _ => {}
            }
        }
        let all = wanted.len();
        let is_device = |id: NodeId| matches!(hardware.node(id).kind, NodeKind::Gpu(_) | NodeKind::Nic(_));
        // One more takes no more room than the count of it.
        let most = |most: usize, all: usize| if all == most + 1 { all } else { most };
        let devices = wanted.iter().filter(|(_, id)| is_device(*id)).count();
        let mut room = [most(BELOW_MAX, all - devices), most(self.most, devices)];
        if level > LEVELS_MAX {
            room = [0, 0];
        }
        wanted.retain(|(_, id)| {
            let room = &mut room[usize::from(is_device(*id))];
            let fits = *room > 0;
            *room -= usize::from(fits);
            fits
        });
        if all > wanted.len() {
            waiting.push((What::Rest(all - wanted.len()), above, None, level));
        }
        if !interfaces.is_empty() && level <= LEVELS_MAX {
            waiting.push((What::Interfaces(interfaces), above, None, level));
        }
        for (link, id) in wanted.into_iter().rev() {
            waiting.push((What::Node(id), above, link, level));
        }
    }

    /// Whether an adapter has no port that a plan may use.
    fn is_useless(&self, nic: NodeId) -> bool {
        ports_of(self.hardware, nic).iter().all(|id| match &self.hardware.node(*id).kind {
            NodeKind::Port(port) => !Hardware::is_usable(port),
            _ => true,
        })
    }

    fn size(&self, what: &What) -> [f64; 2] {
        let lines = |count: usize| count as f64 * line_height(9.0) + 8.0;
        match what {
            What::Node(id) => match &self.hardware.node(*id).kind {
                NodeKind::Numa(_) => [NUMA, super::host::numa_height(self.hardware, *id)],
                NodeKind::Root(_) => [SWITCH, lines(1) + 2.0],
                NodeKind::Gpu(_) => {
                    [DEVICE, box_height(&[Line::title(""), Line::plain(""), Line::plain("")])]
                }
                NodeKind::Nic(_) => {
                    let ports = ports_of(self.hardware, *id).len();
                    let shown = ports.min(PORTS_MAX);
                    let more = usize::from(ports > PORTS_MAX);
                    let head = box_height(&[Line::title(""), Line::plain("")]);
                    [DEVICE, head + shown as f64 * PORT + more as f64 * line_height(9.0)]
                }
                _ => [SWITCH, lines(2)],
            },
            What::Interfaces(ports) => [SWITCH, lines(ports.len().min(INTERFACES_MAX + 1) + 1)],
            What::Cores(cores) => [NUMA, super::host::cores_height(cores.len()) + 30.0],
            What::Rest(_) => [DEVICE, lines(1)],
        }
    }
}

/// The height of a port's box.
pub(super) const PORT: f64 = 32.0;

impl Tree {
    /// Gives each cell its place.
    fn place(&mut self) {
        let count = self.cells.len();
        let mut sums = vec![0.0; count];
        for at in (0..count).rev() {
            let apart = if self.cells[at].size[0] == NUMA { APART } else { ACROSS };
            let span = f64::max(self.cells[at].size[0], sums[at] - ACROSS) + apart;
            self.cells[at].span = span;
            if let Some(above) = self.cells[at].above {
                sums[above] += span;
            }
        }
        let levels = self.cells.iter().map(|cell| cell.level + 1).max().unwrap_or(0);
        let mut heights = vec![0.0; levels];
        for cell in &self.cells {
            heights[cell.level] = f64::max(heights[cell.level], cell.size[1]);
        }
        let top = |level: usize| heights[..level].iter().sum::<f64>() + DOWN * level as f64;
        // Where the next cell below each one begins; the last is for those at the top.
        let mut next = vec![0.0; count + 1];
        for at in 0..count {
            let Cell { above, span, level, .. } = self.cells[at];
            let place = above.unwrap_or(count);
            let left = next[place];
            next[place] += span;
            self.cells[at].at = [left + span / 2.0, top(level)];
            next[at] = left + (span - sums[at]) / 2.0;
            self.width = f64::max(self.width, left + span);
        }
        self.height = self.cells.iter().map(Cell::bottom).fold(0.0, f64::max);
    }
}
