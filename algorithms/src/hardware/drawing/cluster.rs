//! Hosts as boxes, and the network between them as bars above them.
//!
//! Invariant: boxes stand in the order of the hosts; of a row of equal ones the first are drawn, and the rest is a number.

use std::collections::{BTreeMap, BTreeSet};

use super::bars::{self, Bars, Named};
use super::painter::{Line, Look, Painter, box_height, line_height};
use crate::hardware::{LinkId, LinkKind, NodeId, NodeKind, counted};

/// As many boxes are drawn whatever they are.
const ALL_MAX: usize = 8;
/// The most boxes that are drawn, and those of a row of equal ones.
const BOXES_MAX: usize = 12;
const FIRST: usize = 4;
/// Ports and GPUs of a box with a line of their own.
const ENDS_MAX: usize = 18;
const PIN: f64 = 18.0;
const EDGE: f64 = 16.0;
const APART: f64 = 18.0;
/// The most bars between boxes that are drawn for direct cables.
const CABLES_MAX: usize = 8;

/// A box of the row.
#[derive(Clone, PartialEq, Debug)]
enum Spot {
    Host(usize),
    /// As many more like the box before it.
    More {
        count: usize,
        like: usize,
    },
    /// As many more of other kinds.
    Rest(usize),
}

/// The row of boxes with what joins them.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Cluster {
    spots: Vec<Spot>,
    hosts: Vec<NodeId>,
    ports: Vec<Vec<NodeId>>,
    gpus: Vec<Vec<NodeId>>,
    /// Whether NVLinks join GPUs of different boxes, so that the boxes have lines to NVSwitches.
    joins_gpus: bool,
    network: Bars,
    switches: Bars,
}

/// Which boxes of a row are drawn. `kind` gives the kind of a host.
fn spots(kind: &[usize]) -> Vec<Spot> {
    if kind.len() <= ALL_MAX {
        return (0..kind.len()).map(Spot::Host).collect();
    }
    let mut rows: Vec<(usize, usize)> = Vec::new();
    for at in 0..kind.len() {
        match rows.last_mut() {
            Some((first, count)) if kind[*first] == kind[at] => *count += 1,
            _ => rows.push((at, 1)),
        }
    }
    let first = if rows.len() == 1 { FIRST } else { 1 };
    let mut spots = Vec::new();
    let mut seen = 0;
    for (start, count) in rows {
        let shown = if count <= first + 1 { count } else { first };
        if spots.len() + shown + 1 > BOXES_MAX {
            spots.push(Spot::Rest(kind.len() - seen));
            break;
        }
        spots.extend((start..start + shown).map(Spot::Host));
        if count > shown {
            spots.push(Spot::More { count: count - shown, like: start + shown - 1 });
        }
        seen += count;
    }
    spots
}

impl Cluster {
    /// Hosts and the network of a machine; `None` where there is one host without a network.
    pub(super) fn of(painter: &Painter<'_>, kinds: &[Vec<usize>]) -> Option<Cluster> {
        let hardware = painter.hardware;
        let hosts = hardware.hosts();
        let has_network = hardware.links().iter().any(|link| link.kind == LinkKind::Network);
        if hosts.len() < 2 && !has_network {
            return None;
        }
        let mut kind = vec![0; hosts.len()];
        for (number, members) in kinds.iter().enumerate() {
            for member in members {
                kind[*member] = number;
            }
        }
        let of_host = |all: Vec<NodeId>| -> Vec<Vec<NodeId>> {
            let mut lists: BTreeMap<Option<NodeId>, Vec<NodeId>> = BTreeMap::new();
            for id in all {
                lists.entry(hardware.node(id).host).or_default().push(id);
            }
            hosts.iter().map(|host| lists.remove(&Some(*host)).unwrap_or_default()).collect()
        };
        let is_plugged = |id: NodeId| {
            hardware.touching(id).iter().any(|link| hardware.link(*link).kind == LinkKind::Network)
        };
        let mut ends = hardware.network_ends();
        let known: BTreeSet<NodeId> = ends.iter().copied().collect();
        let others = hardware.iter().filter(|(id, node)| {
            matches!(node.kind, NodeKind::Port(_) | NodeKind::Nic(_))
                && is_plugged(*id)
                && !known.contains(id)
        });
        ends.extend(others.map(|(id, _)| id));
        let (ports, gpus) = (of_host(ends), of_host(hardware.gpus()));
        let joins_gpus = hardware.links().iter().any(|link| {
            let [from, to] = [link.from, link.to].map(|end| hardware.node(end).host);
            link.kind.joins_gpus() && from != to
        });
        let mut cluster = Cluster {
            spots: spots(&kind),
            hosts,
            ports,
            gpus,
            joins_gpus,
            network: Bars::default(),
            switches: Bars::default(),
        };
        let shown: Vec<NodeId> =
            cluster.shown().into_iter().flat_map(|host| cluster.ports[host].clone()).collect();
        cluster.network = network(painter, &shown);
        if joins_gpus {
            let shown: Vec<NodeId> =
                cluster.shown().into_iter().flat_map(|host| cluster.gpus[host].clone()).collect();
            cluster.switches = Bars::of_nvswitches(painter, &shown);
        }
        Some(cluster)
    }

    /// Whether it has NVSwitches on which GPUs of several boxes are.
    pub(super) fn joins_gpus(&self) -> bool {
        self.joins_gpus
    }

    /// The hosts with a box of their own.
    fn shown(&self) -> Vec<usize> {
        let host = |spot: &Spot| if let Spot::Host(host) = spot { Some(*host) } else { None };
        self.spots.iter().filter_map(host).collect()
    }

    fn lines(&self, painter: &Painter<'_>, spot: &Spot) -> Vec<Line> {
        let line = |text: String| Line { size: 10.0, ..Line::plain(text) };
        match spot {
            Spot::Host(host) => {
                let id = self.hosts[*host];
                let counts = format!(
                    "{}, {}",
                    counted(self.gpus[*host].len(), "GPU"),
                    counted(self.ports[*host].len(), "port")
                );
                vec![
                    Line::title(format!("box {host}")),
                    line(painter.hardware.node(id).name.clone()),
                    line(counts),
                ]
            }
            Spot::More { count, like } => {
                vec![Line::title(format!("× {count} more")), line(format!("like box {like}"))]
            }
            Spot::Rest(count) => {
                vec![Line::title(format!("× {count} more")), line("of several kinds".into())]
            }
        }
    }

    fn width(&self, spot: &Spot) -> f64 {
        let ends = match spot {
            Spot::Host(host) if self.joins_gpus => self.ports[*host].len().max(self.gpus[*host].len()),
            Spot::Host(host) => self.ports[*host].len(),
            _ => 0,
        };
        (ends.min(ENDS_MAX) as f64 * PIN + 12.0).max(128.0)
    }

    /// Draws all with the upper left corner at `at`; gives the size.
    pub(super) fn draw(&self, painter: &mut Painter<'_>, at: [f64; 2], title: &str) -> [f64; 2] {
        let has_bars = !self.network.is_empty() || !self.switches.is_empty();
        let left = at[0] + EDGE + if has_bars { bars::LABEL } else { 0.0 };
        let row = self.spots.iter().map(|spot| self.width(spot) + APART).sum::<f64>() - APART;
        let gutter = self.network.gutter().max(self.switches.gutter());
        let height = box_height(&[Line::title(""), Line::plain(""), Line::plain("")]) + 4.0 + PIN * 2.0;
        let bars_top = at[1] + 36.0;
        let top = bars_top + self.network.height() + if self.network.is_empty() { 4.0 } else { 8.0 };
        let below = top + height;
        let notes = self.notes();
        let bottom = below + self.switches.height() + 12.0 + notes.len() as f64 * line_height(12.0);
        let size = [(left - at[0] + row + gutter + EDGE).max(420.0), bottom - at[1] + 4.0];
        painter.frame(at, size, title);
        let (mut from_ports, mut from_gpus) = (Vec::new(), Vec::new());
        let mut x = left;
        let mut corners = Vec::new();
        for spot in &self.spots {
            let width = self.width(spot);
            corners.push(x);
            if let Spot::Host(host) = spot {
                from_ports.extend(pins(&self.ports[*host], x, width, top));
                from_gpus.extend(pins(&self.gpus[*host], x, width, below));
            }
            x += width + APART;
        }
        self.network.draw(painter, &from_ports, [left, bars_top], row, Look::Network);
        self.switches.draw(painter, &from_gpus, [left, below + 2.0], row, Look::NvSwitch);
        for (spot, corner) in self.spots.iter().zip(corners) {
            self.draw_box(painter, spot, [corner, top], height);
        }
        for (line, note) in (0..).zip(&notes) {
            let y = bottom - 4.0 - (notes.len() - 1 - line) as f64 * line_height(12.0);
            painter.remark([at[0] + EDGE, y], 11.0, size[0] - 2.0 * EDGE, note);
        }
        size
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.network.is_empty() && self.hosts.len() > 1 {
            notes.push("Nothing is known of a network between these boxes.".to_owned());
        }
        if self.shown().iter().any(|host| self.ports[*host].len() > ENDS_MAX) {
            notes.push(format!("Of each box {ENDS_MAX} ports are drawn."));
        }
        notes
    }

    fn draw_box(&self, painter: &mut Painter<'_>, spot: &Spot, corner: [f64; 2], height: f64) {
        let width = self.width(spot);
        let lines = self.lines(painter, spot);
        let Spot::Host(host) = spot else {
            let down = (height - box_height(&lines)) / 2.0;
            painter.boxed(corner, [width, height], Look::Quiet, "", &[]);
            let place = [corner[0] + 2.0, corner[1] + down];
            return painter.plain_lines(place, width - 4.0, &lines);
        };
        let title = painter.hardware.node(self.hosts[*host]).name.clone();
        painter.boxed(corner, [width, height], Look::Host, &title, &[]);
        painter.plain_lines([corner[0], corner[1] + PIN], width, &lines);
        for (id, [x, y]) in pins(&self.ports[*host], corner[0], width, corner[1]) {
            let title = format!("{} {}", painter.title(id), super::host::port_speed(painter.hardware, id));
            let place = [x - PIN / 2.0 + 1.0, y];
            painter.boxed(place, [PIN - 2.0, PIN - 4.0], Look::Network, &title, &[]);
        }
        for (id, [x, y]) in pins(&self.gpus[*host], corner[0], width, corner[1] + height) {
            let title = painter.title(id);
            let place = [x - PIN / 2.0 + 1.0, y - PIN + 4.0];
            painter.boxed(place, [PIN - 2.0, PIN - 4.0], Look::Gpu, &title, &[]);
        }
        let all: Vec<NodeId> = painter
            .marked()
            .filter(|id| painter.hardware.node(*id).host == Some(self.hosts[*host]))
            .collect();
        painter.marks(&all, [corner[0] + width - 8.0, corner[1] + PIN + 8.0]);
    }
}

/// The places of ends along an edge.
fn pins(ends: &[NodeId], left: f64, width: f64, y: f64) -> Vec<(NodeId, [f64; 2])> {
    let count = ends.len().min(ENDS_MAX);
    let start = left + (width - count as f64 * PIN) / 2.0 + PIN / 2.0;
    ends.iter().take(count).enumerate().map(|(at, id)| (*id, [start + at as f64 * PIN, y])).collect()
}

/// The switches of a network as bars: those that ports are on first, then those above them.
fn network(painter: &Painter<'_>, ports: &[NodeId]) -> Bars {
    let hardware = painter.hardware;
    let mut dots: BTreeMap<NodeId, Vec<(NodeId, LinkId)>> = BTreeMap::new();
    let mut cables: Vec<Named> = Vec::new();
    for &port in ports {
        for &link in hardware.touching(port) {
            let other = hardware.link(link).other(port);
            match &hardware.node(other).kind {
                NodeKind::Switch { .. } => dots.entry(other).or_default().push((port, link)),
                // A cable without a switch, seen from its first end.
                NodeKind::Port(_) | NodeKind::Nic(_)
                    if hardware.link(link).kind == LinkKind::Network && port < other =>
                {
                    cables.push((port, "a cable".into(), vec![(port, link), (other, link)]));
                }
                _ => {}
            }
        }
    }
    cables.truncate(CABLES_MAX);
    let mut known: Vec<NodeId> = dots.keys().copied().collect();
    let mut at = 0;
    while at < known.len() {
        for &link in hardware.touching(known[at]) {
            let other = hardware.link(link).other(known[at]);
            if matches!(hardware.node(other).kind, NodeKind::Switch { .. }) && !dots.contains_key(&other) {
                dots.insert(other, Vec::new());
                known.push(other);
            }
        }
        at += 1;
    }
    let mut bars = Bars::default();
    let name = |id: NodeId| match &hardware.node(id).kind {
        NodeKind::Switch { aggregates: true } => format!("{} (folds)", hardware.node(id).name),
        _ => hardware.node(id).name.clone(),
    };
    // A switch of boxes that are not drawn is only counted.
    let is_of_others = |id: &NodeId| {
        let has_end = |link: &LinkId| {
            !matches!(hardware.node(hardware.link(*link).other(*id)).kind, NodeKind::Switch { .. })
        };
        dots[id].is_empty() && hardware.touching(*id).iter().any(has_end)
    };
    let (others, known): (Vec<NodeId>, Vec<NodeId>) = known.into_iter().partition(is_of_others);
    bars.left_out = others.len();
    let switches = known.into_iter().map(|id| (id, name(id), dots.remove(&id).unwrap_or_default()));
    bars.fill(painter, switches.chain(cables).collect(), "switches");
    bars
}
