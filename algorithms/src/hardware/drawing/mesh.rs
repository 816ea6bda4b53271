//! GPUs that links join directly, in a circle: those with most links stand beside each other.
//!
//! Invariant: links that run side by side are as many lines, up to four; classes of links differ in colour.

use std::collections::BTreeMap;

use super::painter::{Line, Look, Painter, line_height};
use super::wires::{Class, rounded};
use crate::hardware::{LinkId, NodeId};

/// The most GPUs of a circle.
const GPUS_MAX: usize = 32;
/// The most GPUs whose order is sought.
const SOUGHT_MAX: usize = 24;
/// The most lines for links side by side.
const LINES_MAX: u32 = 4;
const GPU: [f64; 2] = [62.0, 26.0];
/// The room of the list beside the circle.
const LIST: f64 = 330.0;

/// GPUs and the links between them.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Mesh {
    /// In the order of the circle.
    gpus: Vec<NodeId>,
    /// Links by the places of their ends.
    links: Vec<(usize, usize, LinkId)>,
    /// GPUs that have no room.
    left_out: usize,
    /// Classes with the number of pairs that have one.
    classes: Vec<(Class, LinkId, usize)>,
    /// Links of a GPU, and how many GPUs have as many.
    sums: Vec<(String, usize)>,
}

impl Mesh {
    /// The direct links between these GPUs; `None` where there are none.
    pub(super) fn of(painter: &Painter<'_>, gpus: &[NodeId]) -> Option<Mesh> {
        let hardware = painter.hardware;
        let mut place: BTreeMap<NodeId, usize> = gpus.iter().copied().zip(0..).collect();
        let ids = (0..hardware.links().len() as u32).map(LinkId).filter(|id| painter.class(*id).is_fast());
        let between: Vec<(NodeId, NodeId, LinkId)> =
            ids.map(|id| (hardware.link(id).from, hardware.link(id).to, id)).collect();
        let ends = |place: &BTreeMap<NodeId, usize>| -> Vec<(usize, usize, LinkId)> {
            let both =
                |(from, to, id): &(NodeId, NodeId, LinkId)| Some((*place.get(from)?, *place.get(to)?, *id));
            between.iter().filter_map(both).collect()
        };
        let all = ends(&place);
        if all.is_empty() {
            return None;
        }
        let mut classes: BTreeMap<Class, (LinkId, usize)> = BTreeMap::new();
        let mut sums: BTreeMap<usize, (u64, Option<u64>)> =
            (0..gpus.len()).map(|at| (at, (0, Some(0)))).collect();
        for (from, to, id) in &all {
            let class = painter.class(*id);
            classes.entry(class).or_insert((*id, 0)).1 += 1;
            for end in [from, to] {
                let (count, bytes_s) = sums.entry(*end).or_default();
                *count += u64::from(class.count());
                *bytes_s = bytes_s.zip(class.bytes_s()).map(|(one, other)| one.saturating_add(other));
            }
        }
        let order = order(gpus.len().min(GPUS_MAX), &all, &|id| u64::from(painter.class(id).count()));
        let shown: Vec<NodeId> = order.iter().map(|at| gpus[*at]).collect();
        place = shown.iter().copied().zip(0..).collect();
        let left_out = gpus.len() - shown.len();
        let links = ends(&place);
        let classes = classes.into_iter().map(|(class, (id, pairs))| (class, id, pairs)).collect();
        Some(Mesh { gpus: shown, links, left_out, classes, sums: words(sums) })
    }

    fn radius(&self) -> f64 {
        (self.gpus.len() as f64 * 15.0).max(90.0)
    }

    pub(super) fn size(&self) -> [f64; 2] {
        let side = 2.0 * self.radius();
        [side + GPU[0] + 40.0 + LIST, (side + GPU[1] + 40.0).max(self.lines() as f64 * 18.0 + 60.0)]
    }

    fn lines(&self) -> usize {
        self.classes.len() + self.sums.len() + usize::from(self.left_out > 0)
    }

    /// Draws the circle with its upper left corner at `at`, and a list of its links beside it.
    pub(super) fn draw(&self, painter: &mut Painter<'_>, at: [f64; 2]) {
        let radius = self.radius();
        let center = [at[0] + radius + GPU[0] / 2.0 + 8.0, at[1] + radius + GPU[1] / 2.0 + 20.0];
        let count = self.gpus.len() as f64;
        let spot = |place: usize| {
            // Half a step, so that the first two stand at the top side by side.
            let turn = (place as f64 + 0.5) / count * std::f64::consts::TAU;
            [center[0] + radius * turn.sin(), center[1] - radius * turn.cos()]
        };
        for (from, to, id) in &self.links {
            self.draw_link(painter, [spot(*from), spot(*to)], center, *id);
        }
        for (place, gpu) in self.gpus.iter().enumerate() {
            let [x, y] = spot(place);
            let lines = [Line::title(painter.title(*gpu))];
            let corner = [x - GPU[0] / 2.0, y - GPU[1] / 2.0];
            let title = painter.hardware.node(*gpu).name.clone();
            painter.boxed(corner, GPU, Look::Gpu, &title, &lines);
            painter.marks(&[*gpu], [corner[0] + GPU[0] - 4.0, corner[1]]);
        }
        self.draw_list(painter, [center[0] + radius + GPU[0] / 2.0 + 24.0, at[1] + 44.0]);
    }

    fn draw_link(&self, painter: &mut Painter<'_>, [from, to]: [[f64; 2]; 2], center: [f64; 2], id: LinkId) {
        let style = painter.style(id);
        let lines = painter.class(id).count().clamp(1, LINES_MAX);
        let [dx, dy] = [to[0] - from[0], to[1] - from[1]];
        let length = (dx * dx + dy * dy).sqrt().max(1.0);
        let normal = [-dy / length, dx / length];
        // Neighbours are joined by flatter curves than those across.
        let pull = 0.04 + 0.12 * length / self.radius();
        let pulled =
            |end: [f64; 2]| [end[0] + (center[0] - end[0]) * pull, end[1] + (center[1] - end[1]) * pull];
        for line in 0..lines {
            let aside = (f64::from(line) - f64::from(lines - 1) / 2.0) * 3.6;
            let moved = |point: [f64; 2]| [point[0] + normal[0] * aside, point[1] + normal[1] * aside];
            let curve = [from, pulled(from), pulled(to), to].map(moved);
            painter.canvas.curve(curve, &style.stroke());
        }
    }

    fn draw_list(&self, painter: &mut Painter<'_>, [x, mut y]: [f64; 2]) {
        painter.heading([x, y], 11.0, LIST, "Links between GPUs, in one direction");
        y += 20.0;
        for (class, id, pairs) in &self.classes {
            let stroke = painter.style(*id).stroke();
            let lines = class.count().clamp(1, LINES_MAX);
            for line in 0..lines {
                let aside = (f64::from(line) - f64::from(lines - 1) / 2.0) * 3.6;
                painter.canvas.line([x, y - 4.0 + aside], [x + 26.0, y - 4.0 + aside], &stroke);
            }
            let are = if *pairs == 1 { "one pair".into() } else { format!("{pairs} pairs") };
            painter.write([x + 34.0, y], 11.0, LIST - 34.0, &format!("{}, {are}", class.legend()));
            y += line_height(15.0);
        }
        for (text, gpus) in &self.sums {
            let all =
                if *gpus == self.gpus.len() { "each GPU".into() } else { format!("{gpus} of the GPUs") };
            painter.remark([x, y], 11.0, LIST, &format!("{all}: {text}"));
            y += line_height(15.0);
        }
        if self.left_out > 0 {
            painter.remark([x, y], 11.0, LIST, &format!("{} more GPUs are not drawn", self.left_out));
        }
    }
}

/// What GPUs have in links, and how many have as much.
fn words(sums: BTreeMap<usize, (u64, Option<u64>)>) -> Vec<(String, usize)> {
    let mut alike: BTreeMap<(u64, Option<u64>), usize> = BTreeMap::new();
    for sum in sums.into_values() {
        *alike.entry(sum).or_default() += 1;
    }
    let text = |(count, bytes_s): (u64, Option<u64>)| {
        let rate = bytes_s.map(|bytes_s| format!(", {} GB/s", rounded(bytes_s, 10_000_000)));
        format!("{count} links{}", rate.unwrap_or_default())
    };
    alike.into_iter().rev().take(6).map(|(sum, gpus)| (text(sum), gpus)).collect()
}

/// An order of the first `count` GPUs in which those with most links are near each other: exchanges of two, as long as one
/// makes it better.
fn order(count: usize, links: &[(usize, usize, LinkId)], weight: &dyn Fn(LinkId) -> u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    let links: Vec<(usize, usize, u64)> = links
        .iter()
        .filter(|(from, to, _)| from.max(to) < &count)
        .map(|(from, to, id)| (*from, *to, weight(*id)))
        .collect();
    if count > SOUGHT_MAX {
        return order;
    }
    let cost = |order: &[usize]| -> u64 {
        let mut place = vec![0; count];
        for (at, gpu) in order.iter().enumerate() {
            place[*gpu] = at;
        }
        let length = |&(from, to, weight): &(usize, usize, u64)| {
            let apart = place[from].abs_diff(place[to]);
            weight * weight * apart.min(count - apart) as u64
        };
        links.iter().map(length).sum()
    };
    let mut best = cost(&order);
    // The cost falls with each round, so there are few.
    loop {
        let before = best;
        for one in 0..count {
            for other in one + 1..count {
                for turn in [false, true] {
                    let mut next = order.clone();
                    // Either two change places, or all between them are turned round.
                    if turn {
                        next[one..=other].reverse()
                    } else {
                        next.swap(one, other)
                    }
                    let cost = cost(&next);
                    if cost < best {
                        (order, best) = (next, cost);
                    }
                }
            }
        }
        if best == before {
            return order;
        }
    }
}
