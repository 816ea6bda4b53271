//! Switches as bars: what is on a switch has a line to its bar, and a dot there.
//!
//! Invariant: a dot is a link; lines that cross a bar without a dot have nothing to do with it. Switches with equal links
//! share a bar where there are too many for one each.

use std::collections::BTreeMap;

use super::painter::{Look, Painter, width_of};
use crate::export::{Anchor, FAINT, GROUND};
use crate::hardware::{LinkId, NodeId, NodeKind};

/// The most bars, and the most where equal switches have one each.
const BARS_MAX: usize = 24;
const APART_MAX: usize = 12;
/// From bar to bar, and the height of one.
const STEP: f64 = 24.0;
const BAR: f64 = 14.0;
/// The room left of bars for their names.
pub(super) const LABEL: f64 = 104.0;
/// From one line between bars to the next.
const LANE: f64 = 16.0;
/// The most lines between bars.
const LANES_MAX: usize = 12;

/// One switch, or several with equal links.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Bar {
    pub(super) nodes: Vec<NodeId>,
    pub(super) label: String,
    /// What is on it, by which link.
    pub(super) dots: Vec<(NodeId, LinkId)>,
}

/// A switch with its label, and what is on it by which link.
pub(super) type Named = (NodeId, String, Vec<(NodeId, LinkId)>);

/// Switches of one kind.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Bars {
    pub(super) bars: Vec<Bar>,
    /// Links from bar to bar; of one lane those that leave the same bar.
    pub(super) lanes: Vec<Vec<(usize, usize, LinkId)>>,
    /// Switches that have no bar.
    pub(super) left_out: usize,
    pub(super) are_below: bool,
}

impl Bars {
    pub(super) fn is_empty(&self) -> bool {
        self.bars.is_empty()
    }

    pub(super) fn height(&self) -> f64 {
        let note = if self.left_out > 0 { 18.0 } else { 0.0 };
        if self.is_empty() { 0.0 } else { self.bars.len() as f64 * STEP + 20.0 + note }
    }

    /// The room right of bars for what joins them.
    pub(super) fn gutter(&self) -> f64 {
        if self.lanes.is_empty() { 0.0 } else { self.lanes.len() as f64 * LANE + 16.0 }
    }

    /// The NVSwitches on which GPUs of this list are.
    pub(super) fn of_nvswitches(painter: &Painter<'_>, gpus: &[NodeId]) -> Bars {
        let hardware = painter.hardware;
        let mut dots: BTreeMap<NodeId, Vec<(NodeId, LinkId)>> = BTreeMap::new();
        for &gpu in gpus {
            for &link in hardware.touching(gpu) {
                let other = hardware.link(link).other(gpu);
                if matches!(hardware.node(other).kind, NodeKind::NvSwitch(_)) {
                    dots.entry(other).or_default().push((gpu, link));
                }
            }
        }
        let mut bars = Bars { are_below: true, ..Bars::default() };
        let label = |id: NodeId| match &hardware.node(id).kind {
            NodeKind::NvSwitch(pci) if pci.bus.is_none() => "NVSwitches".to_owned(),
            _ => painter.title(id),
        };
        bars.fill(painter, dots.into_iter().map(|(id, dots)| (id, label(id), dots)).collect(), "NVSwitches");
        bars
    }

    /// A bar for each switch, or for those with equal links.
    pub(super) fn fill(&mut self, painter: &Painter<'_>, switches: Vec<Named>, plural: &str) {
        let share = switches.len() > APART_MAX;
        let mut place: BTreeMap<Vec<(NodeId, super::wires::Class)>, usize> = BTreeMap::new();
        for (id, label, dots) in switches {
            let key = dots.iter().map(|(node, link)| (*node, painter.class(*link))).collect();
            match place.get(&key).filter(|_| share) {
                Some(at) => self.bars[*at].nodes.push(id),
                None if self.bars.len() == BARS_MAX => self.left_out += 1,
                None => {
                    place.insert(key, self.bars.len());
                    self.bars.push(Bar { nodes: vec![id], label, dots });
                }
            }
        }
        for bar in self.bars.iter_mut().filter(|bar| bar.nodes.len() > 1) {
            bar.label = format!("{} {plural}", bar.nodes.len());
        }
        self.join(painter);
    }

    /// Links between bars: those of a bar to ones before it share a lane.
    fn join(&mut self, painter: &Painter<'_>) {
        let hardware = painter.hardware;
        let mut place: BTreeMap<NodeId, usize> = BTreeMap::new();
        for (at, bar) in self.bars.iter().enumerate() {
            place.extend(bar.nodes.iter().map(|node| (*node, at)));
        }
        for (at, bar) in self.bars.iter().enumerate() {
            let touching =
                bar.nodes.iter().flat_map(|node| hardware.touching(*node).iter().map(|link| (*node, *link)));
            let mut lane: BTreeMap<usize, LinkId> = BTreeMap::new();
            for (node, link) in touching {
                if let Some(other) = place.get(&hardware.link(link).other(node)).filter(|other| **other < at)
                {
                    lane.entry(*other).or_insert(link);
                }
            }
            if !lane.is_empty() && self.lanes.len() < LANES_MAX {
                self.lanes.push(lane.into_iter().map(|(other, link)| (at, other, link)).collect());
            }
        }
    }

    /// Draws bars from `left` on, as wide as `width`, the first nearest to what is on them. `spots` are the places where the
    /// lines of nodes begin; `top` is the upper edge of the room.
    pub(super) fn draw(
        &self,
        painter: &mut Painter<'_>,
        spots: &[(NodeId, [f64; 2])],
        [left, top]: [f64; 2],
        width: f64,
        look: Look,
    ) {
        let count = self.bars.len();
        let note = if self.left_out > 0 && !self.are_below { 18.0 } else { 0.0 };
        let y = |at: usize| {
            let place = if self.are_below { at } else { count - 1 - at };
            top + note + 10.0 + place as f64 * STEP + BAR / 2.0
        };
        let right = left + width;
        // Lines to the farthest bar, under all bars.
        for (node, from) in spots {
            let on = |bar: &&Bar| bar.dots.iter().any(|(other, _)| other == node);
            let Some(last) = self.bars.iter().rposition(|bar| on(&bar)) else { continue };
            let link = self.bars[last].dots.iter().find(|(other, _)| other == node).map(|(_, link)| *link);
            if let Some(link) = link {
                let stroke = painter.style(link).stroke();
                painter.canvas.line(*from, [from[0], y(last)], &stroke);
            }
        }
        for (at, bar) in self.bars.iter().enumerate() {
            let [start, end] = self.reach(bar, spots, [left, right]);
            let title = bar.nodes.iter().take(20).map(|id| painter.hardware.node(*id).name.clone());
            let title = title.collect::<Vec<_>>().join(", ");
            let corner = [start, y(at) - BAR / 2.0];
            if start > left {
                let style = format!("stroke=\"{FAINT}\" stroke-width=\"1\"");
                painter.canvas.line([left, y(at)], [start, y(at)], &style);
            }
            painter.boxed(corner, [end - start, BAR], look, &title, &[]);
            let text = super::painter::fitted(&bar.label, 10.0, false, LABEL - 10.0);
            painter.canvas.text([left - 6.0, y(at) + 3.5], 10.0, Anchor::End, "", &text);
            painter.marks(&bar.nodes, [start + 2.0, y(at)]);
        }
        self.draw_lanes(painter, right, y);
        for (at, bar) in self.bars.iter().enumerate() {
            for (node, link) in &bar.dots {
                if let Some((_, [x, _])) = spots.iter().find(|(other, _)| other == node) {
                    dot(painter, [*x, y(at)], *link);
                }
            }
        }
        if self.left_out > 0 {
            let are = if self.left_out == 1 { "switch is" } else { "switches are" };
            let text = format!("{} more {are} not drawn", self.left_out);
            let y = if self.are_below { top + self.height() - 6.0 } else { top + 10.0 };
            painter.remark([left, y], 10.0, width, &text);
        }
    }

    /// From where to where a bar goes: over all, or, below GPUs, from its first to its last.
    fn reach(&self, bar: &Bar, spots: &[(NodeId, [f64; 2])], [left, right]: [f64; 2]) -> [f64; 2] {
        let end = right + self.gutter();
        let on = spots.iter().filter(|(node, _)| bar.dots.iter().any(|(other, _)| other == node));
        let xs: Vec<f64> = on.map(|(_, [x, _])| *x).collect();
        if !self.are_below || xs.is_empty() {
            return [left, end];
        }
        let first = xs.iter().copied().fold(f64::MAX, f64::min) - 34.0;
        let last = xs.iter().copied().fold(f64::MIN, f64::max) + 34.0;
        [first.max(left), if self.lanes.is_empty() { last.min(right) } else { end }]
    }

    fn draw_lanes(&self, painter: &mut Painter<'_>, right: f64, y: impl Fn(usize) -> f64) {
        for (at, lane) in self.lanes.iter().enumerate() {
            let x = right + 12.0 + at as f64 * LANE;
            let Some((own, _, link)) = lane.first() else { continue };
            let ends = lane.iter().map(|(_, other, _)| y(*other)).chain([y(*own)]);
            let (low, high) = ends.fold((f64::MAX, f64::MIN), |(low, high), y| (low.min(y), high.max(y)));
            let stroke = painter.style(*link).stroke();
            painter.canvas.line([x, low], [x, high], &stroke);
            for (_, other, link) in lane {
                dot(painter, [x, y(*other)], *link);
            }
            dot(painter, [x, y(*own)], *link);
        }
    }
}

/// The end of a link, with the number of wires where there is one.
fn dot(painter: &mut Painter<'_>, [x, y]: [f64; 2], link: LinkId) {
    let class = painter.class(link);
    let color = painter.style(link).color;
    if !class.is_fast() {
        return painter.canvas.circle([x, y], 4.0, &format!("fill=\"{color}\""));
    }
    let text = class.count().to_string();
    let width = (width_of(&text, 9.0, true) + 4.0).max(BAR);
    let style = format!("rx=\"6\" fill=\"{color}\"");
    painter.canvas.rectangle([x - width / 2.0, y - 6.5], [width, 13.0], &style);
    let style = format!("fill=\"{GROUND}\" font-weight=\"bold\"");
    painter.canvas.text([x, y + 3.2], 9.0, Anchor::Middle, &style, &text);
}
