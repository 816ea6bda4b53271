//! Rings and trees that were found, each in a small circle.
//!
//! Invariant: a route's nodes stand at the same places in all circles, so that routes can be compared.

use std::collections::{BTreeMap, BTreeSet};

use super::Route;
use super::painter::{Line, Painter, fitted};
use crate::export::{Anchor, GROUND, INK, QUIET, hue};
use crate::hardware::NodeId;

/// The most routes, and the most nodes of one with a circle.
const ROUTES_MAX: usize = 12;
const NODES_MAX: usize = 40;
/// Circles of a row.
const ROW: usize = 4;
const CARD: [f64; 2] = [216.0, 236.0];
const RADIUS: f64 = 72.0;

/// Draws routes below each other from `at` on; gives the size.
pub(super) fn draw(painter: &mut Painter<'_>, routes: &[Route], at: [f64; 2]) -> [f64; 2] {
    if routes.is_empty() {
        return [0.0; 2];
    }
    let shown = routes.len().min(ROUTES_MAX);
    let mut nodes: Vec<NodeId> = routes.iter().flat_map(ends).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let nodes: BTreeMap<NodeId, usize> = nodes.into_iter().take(NODES_MAX).zip(0..).collect();
    let columns = shown.min(ROW);
    let more = if routes.len() > shown { 20.0 } else { 0.0 };
    let size =
        [(columns as f64 * CARD[0] + 16.0).max(420.0), shown.div_ceil(ROW) as f64 * CARD[1] + 40.0 + more];
    painter.frame(at, size, "Rings and trees that were found");
    for (place, route) in routes.iter().take(shown).enumerate() {
        let corner =
            [at[0] + 8.0 + (place % ROW) as f64 * CARD[0], at[1] + 34.0 + (place / ROW) as f64 * CARD[1]];
        card(painter, route, place, &nodes, corner);
    }
    if routes.len() > shown {
        let text = format!("and {} more", routes.len() - shown);
        painter.remark([at[0] + 16.0, at[1] + size[1] - 10.0], 11.0, size[0], &text);
    }
    size
}

fn card(
    painter: &mut Painter<'_>,
    route: &Route,
    number: usize,
    nodes: &BTreeMap<NodeId, usize>,
    corner: [f64; 2],
) {
    let center = [corner[0] + CARD[0] / 2.0, corner[1] + 118.0];
    let spot = |place: usize, radius: f64| {
        let turn = (place as f64 + 0.5) / nodes.len() as f64 * std::f64::consts::TAU;
        [center[0] + radius * turn.sin(), center[1] - radius * turn.cos()]
    };
    painter.heading([corner[0] + 8.0, corner[1] + 12.0], 11.0, CARD[0] - 16.0, &route.name);
    let color = hue(number);
    for (from, to) in &route.hops {
        if let Some((from, to)) = nodes.get(from).zip(nodes.get(to)) {
            arrow(painter, spot(*from, RADIUS), spot(*to, RADIUS), color);
        }
    }
    let on: BTreeSet<NodeId> = ends(route).collect();
    for (node, place) in nodes {
        let [x, y] = spot(*place, RADIUS);
        let is_on = on.contains(node);
        let fill = if is_on { color } else { GROUND };
        painter.canvas.circle([x, y], 4.0, &format!("fill=\"{fill}\" stroke=\"{QUIET}\""));
        if nodes.len() > 20 {
            continue;
        }
        let [x, y] = spot(*place, RADIUS + 18.0);
        let text = label(painter, *node);
        let style = format!("fill=\"{}\"", if is_on { INK } else { QUIET });
        painter.canvas.text([x, y + 3.5], 9.0, Anchor::Middle, &style, &fitted(&text, 9.0, false, 34.0));
    }
    let line = Line::plain(words(painter, route));
    painter.remark([corner[0] + 8.0, corner[1] + CARD[1] - 10.0], line.size, CARD[0] - 16.0, &line.text);
}

/// All nodes that a route names.
fn ends(route: &Route) -> impl Iterator<Item = NodeId> {
    route.hops.iter().flat_map(|(from, to)| [*from, *to])
}

/// The number of a GPU, behind that of its box where there are several, or the title of another device.
fn label(painter: &Painter<'_>, node: NodeId) -> String {
    let title = painter.title(node);
    let text = title.strip_prefix("GPU ").unwrap_or(&title);
    let host = painter.hardware.node(node).host;
    match host.and_then(|host| painter.box_of(host)) {
        Some(number) => format!("{number}:{text}"),
        None => text.to_owned(),
    }
}

/// The node to which no hop leads, whatever the order of the hops.
fn root(route: &Route) -> Option<NodeId> {
    let reached: BTreeSet<NodeId> = route.hops.iter().map(|(_, to)| *to).collect();
    ends(route).find(|node| !reached.contains(node))
}

/// The order of a route where each hop begins at the end of the one before it; otherwise its root.
fn words(painter: &Painter<'_>, route: &Route) -> String {
    let Some((first, _)) = route.hops.first() else { return String::new() };
    let is_chain = route.hops.windows(2).all(|pair| pair[0].1 == pair[1].0);
    if !is_chain {
        return format!("from {}", label(painter, root(route).unwrap_or(*first)));
    }
    let rest = route.hops.iter().map(|(_, to)| *to).filter(|to| to != first);
    let nodes = [*first].into_iter().chain(rest).take(NODES_MAX);
    nodes.map(|node| label(painter, node)).collect::<Vec<_>>().join(" ")
}

/// A line with a head in its middle, so that heads at one node do not cover each other.
fn arrow(painter: &mut Painter<'_>, from: [f64; 2], to: [f64; 2], color: &str) {
    let [dx, dy] = [to[0] - from[0], to[1] - from[1]];
    let length = (dx * dx + dy * dy).sqrt().max(1.0);
    let [ux, uy] = [dx / length, dy / length];
    painter.canvas.line(from, to, &format!("stroke=\"{color}\" stroke-width=\"1.6\""));
    let tip = [from[0] + dx * 0.56 + ux * 3.0, from[1] + dy * 0.56 + uy * 3.0];
    let back = |side: f64| [tip[0] - ux * 8.0 - uy * side, tip[1] - uy * 8.0 + ux * side];
    painter.canvas.path(&[back(3.6), tip, back(-3.6)], &format!("fill=\"{color}\""));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_of_a_tree_is_where_no_hop_leads_to() {
        let nodes: Vec<NodeId> = (0..4).map(NodeId).collect();
        // From 2 to 3 to 0 to 1: the first hop is that to 0.
        let tree = Route::tree("tree", &nodes, &[Some(3), Some(0), None, Some(2)]);
        assert_eq!(tree.hops[0].0, NodeId(3));
        assert_eq!(root(&tree), Some(NodeId(2)));
        assert_eq!(root(&Route::ring("ring", &nodes)), None);
    }
}
