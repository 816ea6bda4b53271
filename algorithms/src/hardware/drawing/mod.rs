//! A machine as a picture: hosts with what is in them, what joins GPUs, and the network between hosts.
//!
//! Invariant: the picture depends on the arguments alone. Its size is bounded whatever the machine: equal hosts are drawn
//! once, and what has no room is counted. No text lies on another. Absent: scripts, external fonts.

mod alike;
mod bars;
mod cluster;
mod host;
mod mesh;
mod painter;
mod routes;
mod tree;
mod wires;

use super::{Hardware, Node, NodeId, NodeKind, Rates, Warning, counted};
use crate::export::text_width;
use painter::Painter;

/// The most kinds of hosts that are drawn in detail, and the most warnings in the list.
const KINDS_MAX: usize = 4;
const WARNINGS_MAX: usize = 24;
/// The edge of the sheet.
const EDGE: f64 = 16.0;
/// From a line of the legend to the next.
const LEGEND_LINE: f64 = 19.0;

/// A ring or a tree that was found, to be drawn beside a machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    /// What it is: `ring 0`.
    pub name: String,
    /// From which GPU or port to which other it goes, in order.
    pub hops: Vec<(NodeId, NodeId)>,
}

impl Route {
    /// A ring through these, and from the last to the first.
    pub fn ring(name: impl Into<String>, nodes: &[NodeId]) -> Route {
        let next = nodes.iter().cycle().skip(1);
        let hops = nodes.iter().zip(next).map(|(from, to)| (*from, *to)).collect();
        Route { name: name.into(), hops }
    }

    /// A tree over these, each hop from a parent to its child; each has the place of its parent among them, and the root has none.
    ///
    /// # Panics
    ///
    /// When a parent is not among them.
    pub fn tree(name: impl Into<String>, nodes: &[NodeId], parents: &[Option<usize>]) -> Route {
        let hop = |(node, parent): (&NodeId, &Option<usize>)| parent.map(|parent| (nodes[parent], *node));
        Route { name: name.into(), hops: nodes.iter().zip(parents).filter_map(hop).collect() }
    }
}

impl Hardware {
    /// The machine as an SVG file, with the rates of its links and the warnings; `routes` are rings and trees to be drawn with
    /// it.
    ///
    /// # Panics
    ///
    /// When a route names a node that does not exist.
    pub fn svg(&self, rates: Rates, routes: &[Route]) -> String {
        let warnings = self.located_warnings();
        let mut painter = Painter::new(self, rates, &warnings);
        let kinds = alike::kinds(self);
        let title = if self.name.is_empty() { "a machine" } else { &self.name };
        let mut sheet = Sheet { y: 34.0, width: 480.0 };
        sheet.head(&mut painter, title, rates);
        let cluster = cluster::Cluster::of(&painter, &kinds);
        let has_switches = cluster.as_ref().is_some_and(cluster::Cluster::joins_gpus);
        if let Some(cluster) = cluster {
            let size = cluster.draw(&mut painter, [EDGE, sheet.y], "Boxes and the network between them");
            sheet.took(size);
        }
        for hosts in kinds.iter().take(KINDS_MAX) {
            let host = self.hosts()[hosts[0]];
            let size =
                host::draw(&mut painter, Some(host), [EDGE, sheet.y], &self.host_title(hosts), !has_switches);
            sheet.took(size);
        }
        if self.nodes().is_empty() {
            painter.remark([EDGE, sheet.y + 8.0], 11.0, 440.0, "Nothing is known of this machine.");
            sheet.y += 24.0;
        }
        let is_apart =
            |node: &Node| node.host.is_none() && matches!(node.kind, NodeKind::Gpu(_) | NodeKind::Nic(_));
        if self.nodes().iter().any(is_apart) {
            let size = host::draw(&mut painter, None, [EDGE, sheet.y], "Devices of no host", true);
            sheet.took(size);
        }
        if kinds.len() > KINDS_MAX {
            let text = format!("{} more kinds of boxes are not drawn in detail.", kinds.len() - KINDS_MAX);
            painter.remark([EDGE, sheet.y + 4.0], 11.0, 600.0, &text);
            sheet.y += 20.0;
        }
        sheet.took(routes::draw(&mut painter, routes, [EDGE, sheet.y]));
        sheet.legend(&mut painter);
        sheet.warnings(&mut painter, &warnings);
        painter.canvas.finish(title, sheet.width, sheet.y + 4.0)
    }

    /// The title of hosts that are alike: `box 0 (h0.host0); boxes 1–3 are alike`.
    fn host_title(&self, hosts: &[usize]) -> String {
        let host = self.hosts()[hosts[0]];
        let name = &self.node(host).name;
        let model = match &self.node(host).kind {
            NodeKind::Host(host) => host.model.clone(),
            _ => None,
        };
        let model = model.map(|model| format!(", {model}")).unwrap_or_default();
        match hosts.len() {
            _ if self.hosts().len() == 1 => format!("{name}{model}"),
            1 => format!("Box {} ({name}{model})", hosts[0]),
            2 => format!("Box {} ({name}{model}); box {} is alike", hosts[0], hosts[1]),
            _ => {
                format!("Box {} ({name}{model}); boxes {} are alike", hosts[0], alike::stretches(&hosts[1..]))
            }
        }
    }
}

/// What is taken of the sheet so far.
struct Sheet {
    y: f64,
    width: f64,
}

impl Sheet {
    fn took(&mut self, [width, height]: [f64; 2]) {
        if height > 0.0 {
            self.y += height + 14.0;
            self.width = self.width.max(width + 2.0 * EDGE);
        }
    }

    fn head(&mut self, painter: &mut Painter<'_>, title: &str, rates: Rates) {
        let summary = painter.hardware.summary(rates);
        let mut words = vec![counted(summary.gpus, "GPU"), counted(summary.nics, "network port")];
        words.push(counted(summary.numa, "NUMA domain"));
        if summary.nvswitches > 0 {
            words.push(counted(summary.nvswitches, "NVSwitch"));
        }
        let hosts = painter.hardware.hosts().len();
        if hosts > 1 {
            words.insert(0, format!("{hosts} boxes"));
        }
        let rates = match rates {
            Rates::DataSheet => "rates of data sheets",
            Rates::Nccl => "rates that NCCL expects",
        };
        let text = format!("{}; {rates}", words.join(", "));
        painter.heading([EDGE, self.y - 4.0], 15.0, 900.0, title);
        painter.remark([EDGE, self.y + 14.0], 11.5, 1200.0, &text);
        self.width = self.width.max(text_width(&text, 11.5) + 2.0 * EDGE);
        self.width = self.width.max((text_width(title, 15.0) * 1.12).min(900.0) + 2.0 * EDGE);
        self.y += 28.0;
    }

    /// Classes of links that were drawn, in columns.
    fn legend(&mut self, painter: &mut Painter<'_>) {
        let classes = painter.drawn();
        if classes.is_empty() {
            return;
        }
        painter.heading([EDGE, self.y + 8.0], 12.0, 600.0, "Links, with GB/s in one direction");
        self.y += 28.0;
        let texts: Vec<String> = classes.iter().map(|(class, _)| class.legend()).collect();
        let column = texts.iter().map(|text| text_width(text, 11.0)).fold(0.0, f64::max) + 60.0;
        let columns = (((self.width - 2.0 * EDGE) / column) as usize).clamp(1, 4);
        let rows = texts.len().div_ceil(columns);
        for (at, ((_, style), text)) in classes.iter().zip(&texts).enumerate() {
            let x = EDGE + (at / rows) as f64 * column;
            let y = self.y + (at % rows) as f64 * LEGEND_LINE;
            painter.canvas.line([x, y - 4.0], [x + 28.0, y - 4.0], &style.stroke());
            painter.write([x + 36.0, y], 11.0, column, text);
        }
        self.y += rows as f64 * LEGEND_LINE + 4.0;
        self.width = self.width.max(column + 2.0 * EDGE);
    }

    /// The list of warnings, with the numbers that devices have.
    fn warnings(&mut self, painter: &mut Painter<'_>, warnings: &[Warning]) {
        if warnings.is_empty() {
            return;
        }
        painter.heading([EDGE, self.y + 8.0], 12.0, 600.0, "What to look at");
        self.y += 28.0;
        let room = self.width - 2.0 * EDGE - 26.0;
        for (warning, number) in warnings.iter().zip(1..).take(WARNINGS_MAX) {
            // A number stands in the drawing as well, where the warning is about a device.
            let sign = if warning.nodes.is_empty() { "!".into() } else { number.to_string() };
            painter.mark([EDGE + 9.0, self.y - 4.0], &sign);
            for line in broken(&warning.text, 11.0, room) {
                painter.write([EDGE + 26.0, self.y], 11.0, room, &line);
                self.y += 16.0;
            }
            self.y += 3.0;
        }
        if warnings.len() > WARNINGS_MAX {
            let text = format!("and {} more", warnings.len() - WARNINGS_MAX);
            painter.remark([EDGE + 26.0, self.y], 11.0, room, &text);
            self.y += LEGEND_LINE;
        }
    }
}

/// A text in lines of at most `width`, broken between words; at most six.
fn broken(text: &str, size: f64, width: f64) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let is_last = lines.len() == 6;
        let last = lines.last_mut().expect("there is one line at least");
        let longer = if last.is_empty() { word.to_owned() } else { format!("{last} {word}") };
        if text_width(&longer, size) <= width || last.is_empty() {
            *last = longer;
        } else if is_last {
            last.push('…');
            break;
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}
