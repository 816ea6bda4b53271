//! What all parts of a drawing share: the sheet, the looks of links and boxes, and the numbers of warnings.
//!
//! Invariant: no text is wider than the room that it is given; the legend has the classes of links that were drawn, and no
//! others.

use std::collections::{BTreeMap, BTreeSet};

use super::wires::{Class, Style};
use crate::export::{Anchor, Canvas, FAINT, GROUND, QUIET, hue, text_width};
use crate::hardware::{Hardware, LinkId, NodeId, Rates, Titles, Warning};

/// The ground of marks, which white digits are legible on.
const ALERT: &str = "#b3261e";

/// The look of a box: its ground and its edge.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Look {
    Frame,
    Host,
    Numa,
    Pcie,
    Gpu,
    Network,
    NvSwitch,
    /// Something that no plan uses, or that stands for others.
    Quiet,
    /// Something that does not work.
    Down,
}

impl Look {
    fn style(self) -> String {
        let (fill, stroke, more) = match self {
            Look::Frame => ("#f6f7f4", FAINT, ""),
            Look::Host => ("#ffffff", "#9aa3ad", ""),
            Look::Numa => ("#faf3df", hue(4), ""),
            Look::Pcie => ("#eceef0", "#7c858f", ""),
            Look::Gpu => ("#e2eef9", hue(0), ""),
            Look::Network => ("#e1f3ec", hue(2), ""),
            Look::NvSwitch => ("#fdebdf", hue(1), ""),
            Look::Quiet => (GROUND, QUIET, " stroke-dasharray=\"3 3\""),
            Look::Down => ("#fbe6e4", ALERT, " stroke-dasharray=\"3 3\""),
        };
        format!("fill=\"{fill}\" stroke=\"{stroke}\"{more}")
    }
}

/// A line of text in a box.
pub(super) struct Line {
    pub(super) text: String,
    pub(super) size: f64,
    pub(super) is_bold: bool,
}

impl Line {
    pub(super) fn plain(text: impl Into<String>) -> Line {
        Line { text: text.into(), size: 9.0, is_bold: false }
    }

    pub(super) fn title(text: impl Into<String>) -> Line {
        Line { text: text.into(), size: 12.0, is_bold: true }
    }
}

/// The height that a line of text of this size takes.
pub(super) fn line_height(size: f64) -> f64 {
    size + 3.0
}

/// The height of a box with these lines.
pub(super) fn box_height(lines: &[Line]) -> f64 {
    lines.iter().map(|line| line_height(line.size)).sum::<f64>() + 8.0
}

/// The width of a text, where bold letters are wider.
pub(super) fn width_of(text: &str, size: f64, is_bold: bool) -> f64 {
    text_width(text, size) * if is_bold { 1.12 } else { 1.0 }
}

/// The text, or as much of it as `width` has room for with an ellipsis.
pub(super) fn fitted(text: &str, size: f64, is_bold: bool, width: f64) -> String {
    if width_of(text, size, is_bold) <= width {
        return text.to_owned();
    }
    let room = (width / width_of("m", size, is_bold)) as usize;
    let mut short: String = text.chars().take(room.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// A sheet under way.
pub(super) struct Painter<'a> {
    pub(super) hardware: &'a Hardware,
    pub(super) canvas: Canvas,
    titles: Titles,
    /// Ports that a plan may use.
    used: BTreeSet<NodeId>,
    /// The numbers of hosts, where there are several.
    boxes: BTreeMap<NodeId, usize>,
    classes: Vec<Class>,
    styles: BTreeMap<Class, Style>,
    drawn: BTreeSet<Class>,
    /// The numbers of the warnings of a node, as the list has them.
    marks: BTreeMap<NodeId, Vec<usize>>,
}

impl<'a> Painter<'a> {
    pub(super) fn new(hardware: &'a Hardware, rates: Rates, warnings: &[Warning]) -> Painter<'a> {
        let ids = (0..hardware.links().len() as u32).map(LinkId);
        let classes: Vec<Class> = ids.map(|id| Class::of(hardware, id, rates)).collect();
        let mut fast: Vec<Class> = classes.iter().copied().filter(|class| class.is_fast()).collect();
        // The fastest has the first colour.
        fast.sort_by_key(|class| (std::cmp::Reverse((class.bytes_s(), class.count())), *class));
        fast.dedup();
        let place = |class: &Class| fast.iter().position(|other| other == class).unwrap_or(0);
        let styles = classes.iter().map(|class| (*class, Style::of(*class, place(class)))).collect();
        let mut marks: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
        for (warning, number) in warnings.iter().zip(1..) {
            for node in &warning.nodes {
                marks.entry(*node).or_default().push(number);
            }
        }
        let hosts = hardware.hosts();
        let boxes = if hosts.len() > 1 { hosts.into_iter().zip(0..).collect() } else { BTreeMap::new() };
        let canvas = Canvas::default();
        Painter {
            hardware,
            canvas,
            titles: hardware.titles(),
            used: hardware.usable_ports().into_iter().collect(),
            boxes,
            classes,
            styles,
            drawn: BTreeSet::new(),
            marks,
        }
    }

    pub(super) fn class(&self, link: LinkId) -> Class {
        self.classes[link.index()]
    }

    /// The look of a link that is drawn now, so that the legend has it.
    pub(super) fn style(&mut self, link: LinkId) -> Style {
        let class = self.class(link);
        if class.has_line() {
            self.drawn.insert(class);
        }
        self.styles[&class]
    }

    /// Classes of links that were drawn.
    pub(super) fn drawn(&self) -> Vec<(Class, Style)> {
        self.drawn.iter().map(|class| (*class, self.styles[class])).collect()
    }

    /// What users call a node.
    pub(super) fn title(&self, id: NodeId) -> String {
        self.titles.of(self.hardware, id)
    }

    /// The number of a host, where there are several.
    pub(super) fn box_of(&self, host: NodeId) -> Option<usize> {
        self.boxes.get(&host).copied()
    }

    /// Whether a plan may use this port.
    pub(super) fn is_used(&self, port: NodeId) -> bool {
        self.used.contains(&port)
    }

    /// Text in black, from `at` on, in as much room as `width`.
    pub(super) fn write(&mut self, at: [f64; 2], size: f64, width: f64, text: &str) {
        self.canvas.text(at, size, Anchor::Start, "", &fitted(text, size, false, width));
    }

    /// A text that explains, in as much room as `width`.
    pub(super) fn remark(&mut self, at: [f64; 2], size: f64, width: f64, text: &str) {
        let style = format!("fill=\"{QUIET}\"");
        self.canvas.text(at, size, Anchor::Start, &style, &fitted(text, size, false, width));
    }

    pub(super) fn heading(&mut self, at: [f64; 2], size: f64, width: f64, text: &str) {
        let text = fitted(text, size, true, width);
        self.canvas.text(at, size, Anchor::Start, "font-weight=\"bold\"", &text);
    }

    /// The frame of a part, with its title.
    pub(super) fn frame(&mut self, at: [f64; 2], size: [f64; 2], title: &str) {
        self.canvas.rectangle(at, size, &format!("{} rx=\"6\"", Look::Frame.style()));
        self.heading([at[0] + 12.0, at[1] + 21.0], 12.5, size[0] - 24.0, title);
    }

    /// A box with lines of text in its middle; viewers show `title` where the pointer is on it.
    pub(super) fn boxed(&mut self, at: [f64; 2], size: [f64; 2], look: Look, title: &str, lines: &[Line]) {
        self.canvas.open(title, "");
        self.canvas.rectangle(at, size, &format!("{} rx=\"4\"", look.style()));
        self.plain_lines(at, size[0], lines);
        self.canvas.close();
    }

    /// Lines of text in the middle of `width`.
    pub(super) fn plain_lines(&mut self, at: [f64; 2], width: f64, lines: &[Line]) {
        let mut y = at[1] + 4.0;
        for line in lines {
            y += line_height(line.size);
            let text = fitted(&line.text, line.size, line.is_bold, width - 4.0);
            let style = if line.is_bold { "font-weight=\"bold\"" } else { "" };
            self.canvas.text([at[0] + width / 2.0, y - 2.0], line.size, Anchor::Middle, style, &text);
        }
    }

    /// Nodes that a warning is about.
    pub(super) fn marked(&self) -> impl Iterator<Item = NodeId> {
        self.marks.keys().copied()
    }

    /// The numbers of the warnings of these nodes, from the corner `at` leftwards; of more than two the first, and how many
    /// more there are.
    pub(super) fn marks(&mut self, nodes: &[NodeId], at: [f64; 2]) {
        let mut numbers: Vec<usize> =
            nodes.iter().filter_map(|node| self.marks.get(node)).flatten().copied().collect();
        numbers.sort_unstable();
        numbers.dedup();
        if let Some(first) = numbers.first() {
            self.mark(at, &first.to_string());
        }
        match numbers.len() {
            0 | 1 => {}
            2 => self.mark([at[0] - 18.0, at[1]], &numbers[1].to_string()),
            more => self.mark([at[0] - 18.0, at[1]], &format!("+{}", more - 1)),
        }
    }

    /// The sign of a warning.
    pub(super) fn mark(&mut self, [x, y]: [f64; 2], text: &str) {
        let width = (text_width(text, 9.0) + 6.0).max(14.0);
        self.canvas.rectangle(
            [x - width / 2.0, y - 7.0],
            [width, 14.0],
            &format!("rx=\"7\" fill=\"{ALERT}\" stroke=\"{GROUND}\""),
        );
        let style = format!("fill=\"{GROUND}\" font-weight=\"bold\"");
        self.canvas.text([x, y + 3.3], 9.0, Anchor::Middle, &style, text);
    }
}
