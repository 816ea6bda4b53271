//! A host: its tree of devices, what joins NUMA domains, and what joins GPUs.
//!
//! Invariant: lines lie under boxes; a device is in the tree once.

use super::bars::{self, Bars};
use super::mesh;
use super::painter::{Line, Look, Painter, box_height, fitted, line_height};
use super::tree::{Cell, INTERFACES_MAX, NUMA, PORT, PORTS_MAX, Tree, What, cores_of, ports_of};
use crate::export::{Anchor, FAINT, QUIET};
use crate::hardware::{
    Hardware, LinkId, LinkKind, LinkLayer, NodeId, NodeKind, Numa, PortState, Processor, known_gpu,
};

/// The most groups of cores with a cell of their own, and those of a row.
const CORES_MAX: usize = 32;
const CORES_ROW: usize = 8;
const CORES_CELL: [f64; 2] = [27.0, 15.0];

/// `512 GiB`, `1.5 TiB`.
pub(super) fn binary(bytes: u64) -> String {
    const PREFIXES: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut at = 0;
    while at + 1 < PREFIXES.len() && bytes >> (10 * (at + 1)) > 0 {
        at += 1;
    }
    let unit = 1u64 << (10 * at);
    let (whole, tenths) = (bytes / unit, bytes % unit * 10 / unit);
    if tenths == 0 {
        format!("{whole} {}", PREFIXES[at])
    } else {
        format!("{whole}.{tenths} {}", PREFIXES[at])
    }
}

/// What a person knows a processor by.
fn processor(processor: &Processor) -> Option<String> {
    let vendor = match processor.vendor.as_deref() {
        Some("GenuineIntel") => Some("Intel"),
        Some("AuthenticAMD") => Some("AMD"),
        other => other,
    };
    let words = [vendor.map(str::to_owned), processor.arch.clone()];
    let mut text = words.into_iter().flatten().collect::<Vec<_>>().join(" ");
    if let (Some(family), Some(model)) = (processor.family, processor.model) {
        text += &format!(", family {family} model {model}");
    }
    (!text.is_empty()).then_some(text)
}

/// The lines of a NUMA domain.
fn numa_lines(numa: &Numa) -> Vec<Line> {
    let mut lines = vec![Line::title(match numa.number {
        Some(number) => format!("NUMA domain {number}"),
        None => "NUMA domain not known".into(),
    })];
    lines.extend(processor(&numa.processor).map(Line::plain));
    if let Some(cpus) = &numa.cpus {
        lines.push(Line::plain(format!("{} CPUs: {cpus}", cpus.len())));
    }
    lines.extend(numa.memory_bytes.map(|bytes| match bytes {
        0 => Line::plain("no memory"),
        _ => Line::plain(format!("{} of memory", binary(bytes))),
    }));
    lines
}

/// The height of the groups of cores, with what they are.
pub(super) fn cores_height(cores: usize) -> f64 {
    if cores == 0 {
        return 0.0;
    }
    let rows = cores.min(CORES_MAX).div_ceil(CORES_ROW);
    line_height(9.0) + 4.0 + rows as f64 * (CORES_CELL[1] + 3.0)
}

/// The height of a NUMA domain's box.
pub(super) fn numa_height(hardware: &Hardware, id: NodeId) -> f64 {
    let NodeKind::Numa(numa) = &hardware.node(id).kind else { return 0.0 };
    box_height(&numa_lines(numa)) + cores_height(cores_of(hardware, id).len())
}

/// Draws a host whose corner is `at`, with its NVSwitches or without; gives the size of its frame.
pub(super) fn draw(
    painter: &mut Painter<'_>,
    host: Option<NodeId>,
    at: [f64; 2],
    title: &str,
    has_switches: bool,
) -> [f64; 2] {
    const EDGE: f64 = 16.0;
    let hardware = painter.hardware;
    let mut tree = Tree::of(hardware, host);
    let mut gpus = hardware.gpus();
    gpus.retain(|gpu| hardware.node(*gpu).host == host);
    let bars = if has_switches { Bars::of_nvswitches(painter, &gpus) } else { Bars::default() };
    let left = at[0] + EDGE + if bars.is_empty() { 0.0 } else { bars::LABEL };
    let top = at[1] + 40.0 + socket_room(hardware, &tree);
    for cell in &mut tree.cells {
        cell.at = [cell.at[0] + left, cell.at[1] + top];
    }
    let spots: Vec<(NodeId, [f64; 2])> =
        tree.cells.iter().filter_map(|cell| Some((cell.node()?, [cell.at[0], cell.bottom()]))).collect();
    let mut bottom = top + tree.height + EDGE;
    let bars_top = bottom;
    bottom += bars.height();
    let mesh = mesh::Mesh::of(painter, &gpus);
    let mesh_top = bottom;
    let mesh_size = mesh.as_ref().map_or([0.0; 2], mesh::Mesh::size);
    bottom += mesh_size[1];
    let notes = usize::from(tree.left_out > 0);
    bottom += 16.0 * notes as f64;
    let width = (left - at[0] + tree.width + EDGE + bars.gutter()).max(mesh_size[0] + 2.0 * EDGE).max(420.0);
    let size = [width, bottom - at[1] + 4.0];
    painter.frame(at, size, title);
    sockets(painter, &tree, top);
    side_lanes(painter, &tree);
    connectors(painter, &tree);
    bars.draw(painter, &spots, [left, bars_top], tree.width, Look::NvSwitch);
    for cell in &tree.cells {
        draw_cell(painter, cell);
    }
    if let Some(mesh) = mesh {
        mesh.draw(painter, [at[0] + EDGE, mesh_top]);
    }
    if tree.left_out > 0 {
        let text = format!("{} more devices of this host are not drawn", tree.left_out);
        painter.remark([at[0] + EDGE, bottom - 4.0], 11.0, width, &text);
    }
    size
}

/// Links between NUMA domains that are drawn, by their cells.
fn socket_links(hardware: &Hardware, tree: &Tree) -> Vec<(LinkId, usize, usize)> {
    let cell = |id: NodeId| tree.cells.iter().position(|cell| cell.node() == Some(id));
    let ids = (0..hardware.links().len() as u32).map(LinkId);
    ids.filter_map(|id| {
        let link = hardware.link(id);
        let is_socket = matches!(link.kind, LinkKind::Socket { .. });
        is_socket.then_some(())?;
        Some((id, cell(link.from)?, cell(link.to)?))
    })
    .collect()
}

/// The room above NUMA domains for what joins more than two.
fn socket_room(hardware: &Hardware, tree: &Tree) -> f64 {
    if socket_links(hardware, tree).len() > 1 { 34.0 } else { 0.0 }
}

/// Links between NUMA domains: a line between two of them, a bar above more.
fn sockets(painter: &mut Painter<'_>, tree: &Tree, top: f64) {
    let links = socket_links(painter.hardware, tree);
    let cells = &tree.cells;
    if let [(link, one, other)] = links[..] {
        let style = painter.style(link);
        let y = top + 20.0;
        let (left, right) =
            (cells[one].at[0].min(cells[other].at[0]), cells[one].at[0].max(cells[other].at[0]));
        painter.canvas.line([left, y], [right, y], &style.stroke());
        return;
    }
    if links.is_empty() {
        return;
    }
    let mut joined: Vec<usize> = links.iter().flat_map(|(_, one, other)| [*one, *other]).collect();
    joined.sort_unstable();
    joined.dedup();
    let first = links[0].0;
    let mut rates: Vec<Option<u64>> = Vec::new();
    for (link, _, _) in &links {
        painter.style(*link);
        rates.push(painter.class(*link).bytes_s());
    }
    rates.sort_unstable();
    rates.dedup();
    let style = painter.style(first);
    let y = top - 12.0;
    let xs: Vec<f64> = joined.iter().map(|at| cells[*at].at[0]).collect();
    let (left, right) = (xs[0], xs[xs.len() - 1]);
    painter.canvas.line([left, y], [right, y], &style.stroke());
    for x in xs {
        painter.canvas.line([x, y], [x, top], &style.stroke());
    }
    let pairs = joined.len() * (joined.len() - 1) / 2;
    let each = if pairs == links.len() {
        "each with each".into()
    } else {
        format!("{} pairs of {pairs}", links.len())
    };
    let text = format!("between NUMA domains, {each}");
    painter.remark([left + 6.0, y - 5.0], 10.0, right - left, &text);
}

/// Links of GPUs to the memory of processors, beside the tree.
fn side_lanes(painter: &mut Painter<'_>, tree: &Tree) {
    for cell in &tree.cells {
        let Some(gpu) = cell.node().filter(|id| painter.hardware.gpu(*id).is_some()) else { continue };
        for link in painter.hardware.touching(gpu).to_vec() {
            let other = painter.hardware.link(link).other(gpu);
            let is_fast = painter.class(link).is_fast();
            let Some(numa) = tree.cells.iter().find(|cell| cell.node() == Some(other)).filter(|_| is_fast)
            else {
                continue;
            };
            if !matches!(painter.hardware.node(other).kind, NodeKind::Numa(_)) {
                continue;
            }
            let stroke = painter.style(link).stroke();
            let x = cell.at[0] + cell.size[0] / 2.0 - 4.0;
            let y = numa.bottom() + 6.0;
            let down = [numa.at[0] + 8.0, numa.bottom()];
            painter.canvas.path(&[down, [down[0], y], [x, y], [x, cell.at[1]]], &stroke);
        }
    }
}

/// The lines of the tree, each with the mark of its link.
fn connectors(painter: &mut Painter<'_>, tree: &Tree) {
    for cell in &tree.cells {
        let Some(above) = cell.above.map(|above| &tree.cells[above]) else { continue };
        let stroke = match cell.link {
            Some(link) if painter.class(link).has_line() => painter.style(link).stroke(),
            _ => format!("stroke=\"{FAINT}\" stroke-width=\"1.4\" fill=\"none\""),
        };
        let bend = cell.at[1] - 20.0;
        let [x, y] = [above.at[0], above.bottom()];
        painter.canvas.path(&[[x, y], [x, bend], [cell.at[0], bend], cell.at], &stroke);
        let Some(class) = cell.link.map(|link| painter.class(link)).filter(|class| class.has_line()) else {
            continue;
        };
        let room = cell.size[0] / 2.0 - 8.0;
        let text = fitted(&class.mark(), 9.0, false, room);
        let style = format!("fill=\"{QUIET}\"");
        // Marks of warnings are on the right.
        painter.canvas.text([cell.at[0] - 4.0, cell.at[1] - 5.0], 9.0, Anchor::End, &style, &text);
    }
}

fn draw_cell(painter: &mut Painter<'_>, cell: &Cell) {
    let hardware = painter.hardware;
    let (corner, size) = (cell.corner(), cell.size);
    let id = match &cell.what {
        What::Node(id) => *id,
        What::Interfaces(ports) => return draw_interfaces(painter, ports, corner, size),
        What::Cores(cores) => {
            let lines = [Line::title("processors")];
            painter.boxed(corner, size, Look::Numa, "processors of a NUMA domain that is not known", &lines);
            return draw_cores(painter, cores, [corner[0], corner[1] + 26.0]);
        }
        What::Rest(count) => {
            let lines = [Line::plain(format!("and {count} more"))];
            return painter.boxed(corner, size, Look::Quiet, "not drawn", &lines);
        }
    };
    let name = hardware.node(id).name.clone();
    let address = hardware.node(id).kind.pci().and_then(|pci| pci.bus).map(|bus| bus.to_string());
    let title = format!("{name} {}", address.clone().unwrap_or_default());
    let plain = |text: Option<String>| Line::plain(text.unwrap_or_default());
    match &hardware.node(id).kind {
        NodeKind::Numa(numa) => {
            let lines = numa_lines(numa);
            let title = match &numa.cpus {
                Some(cpus) => format!("{name}: CPUs {cpus}"),
                None => name,
            };
            painter.boxed(corner, size, Look::Numa, &title, &lines);
            let cores = cores_of(hardware, id);
            draw_cores(painter, &cores, [corner[0], corner[1] + box_height(&lines)]);
        }
        NodeKind::Root(bus) => {
            let bus = bus.map(|bus| format!(" {:04x}:{:02x}", bus.domain, bus.bus)).unwrap_or_default();
            let lines = [Line::plain(format!("root{bus}"))];
            painter.boxed(corner, size, Look::Pcie, &name, &lines);
        }
        NodeKind::Gpu(gpu) => {
            let gcn = gpu
                .gcn
                .as_ref()
                .map(|gcn| if gcn.starts_with("gfx") { gcn.clone() } else { format!("gcn {gcn}") });
            let model =
                known_gpu(&gpu.pci).map(|known| known.model.split('-').next().unwrap_or_default().to_owned());
            let kind = gcn.or_else(|| gpu.sm.map(|sm| format!("sm {sm}"))).or(model);
            let lines = [Line::title(painter.title(id)), plain(address), plain(kind)];
            painter.boxed(corner, size, Look::Gpu, &title, &lines);
        }
        NodeKind::Nic(_) => draw_nic(painter, id, &title, address, cell),
        _ => {
            let lines = [Line::plain("PCIe switch"), plain(address)];
            painter.boxed(corner, size, Look::Pcie, &title, &lines);
        }
    }
    painter.marks(&[id], [corner[0] + size[0] - 4.0, corner[1]]);
}

/// Groups of cores that share a cache: how many CPUs each has, and what the cache is.
fn draw_cores(painter: &mut Painter<'_>, all: &[NodeId], [left, top]: [f64; 2]) {
    if all.is_empty() {
        return;
    }
    let hardware = painter.hardware;
    let group = |id: &NodeId| match &hardware.node(*id).kind {
        NodeKind::Cores(cores) => Some(cores),
        _ => None,
    };
    let mut caches: Vec<(Option<u8>, Option<u64>)> =
        all.iter().filter_map(group).map(|cores| (cores.cache_level, cores.cache_bytes)).collect();
    caches.sort_unstable();
    caches.dedup();
    let what = match caches[..] {
        [(Some(level), Some(bytes))] => format!("L{level} of {}", binary(bytes)),
        [(Some(level), None)] => format!("L{level}"),
        _ => "last-level cache".into(),
    };
    let text = format!("{} × {what}; CPUs of each:", all.len());
    painter.remark([left + 8.0, top + 9.0], 9.0, NUMA - 12.0, &text);
    for (at, id) in all.iter().take(CORES_MAX).enumerate() {
        let place = [
            left + 8.0 + (at % CORES_ROW) as f64 * (CORES_CELL[0] + 1.0),
            top + 14.0 + (at / CORES_ROW) as f64 * (CORES_CELL[1] + 3.0),
        ];
        let Some(cores) = group(id) else { continue };
        // The last cell stands for all that have none.
        let more = if at + 1 == CORES_MAX { all.len() - at } else { 1 };
        let count = if more > 1 { format!("+{more}") } else { cores.cpus.len().to_string() };
        let title = format!("{}: CPUs {}", hardware.node(*id).name, cores.cpus);
        painter.canvas.open(&title, "");
        painter.canvas.rectangle(
            place,
            CORES_CELL,
            &format!("rx=\"2\" fill=\"#ffffff\" stroke=\"{QUIET}\" stroke-width=\"0.6\""),
        );
        let middle = [place[0] + CORES_CELL[0] / 2.0, place[1] + 11.0];
        painter.canvas.text(middle, 9.0, Anchor::Middle, "", &fitted(&count, 9.0, false, CORES_CELL[0]));
        painter.canvas.close();
    }
}

/// What no plan uses: bridges, tunnels, ports of 1 Gb/s.
fn draw_interfaces(painter: &mut Painter<'_>, ports: &[NodeId], corner: [f64; 2], size: [f64; 2]) {
    let hardware = painter.hardware;
    let name = |id: &NodeId| match &hardware.node(*id).kind {
        NodeKind::Port(port) => port.device.clone().unwrap_or_else(|| hardware.node(*id).name.clone()),
        _ => String::new(),
    };
    let mut lines = vec![Line::plain("not for data:")];
    lines.extend(ports.iter().take(INTERFACES_MAX).map(|id| Line::plain(name(id))));
    if ports.len() > INTERFACES_MAX {
        lines.push(Line::plain(format!("and {} more", ports.len() - INTERFACES_MAX)));
    }
    let all: Vec<String> = ports.iter().take(100).map(name).collect();
    let title = format!("virtual, of 1 Gb/s or down: {}", all.join(", "));
    painter.boxed(corner, size, Look::Quiet, &title, &lines);
    painter.marks(ports, [corner[0] + size[0] - 4.0, corner[1]]);
}

/// `200 Gb/s IB`.
pub(super) fn port_speed(hardware: &Hardware, id: NodeId) -> String {
    let NodeKind::Port(port) = &hardware.node(id).kind else { return String::new() };
    let layer = match port.layer {
        LinkLayer::InfiniBand => " IB",
        LinkLayer::Wireless => " Wi-Fi",
        LinkLayer::Ethernet | LinkLayer::Unknown => "",
    };
    match (port.state, port.speed_mbit_s) {
        (PortState::Down, _) => "down".into(),
        (_, Some(speed)) if speed % 1000 == 0 => format!("{} Gb/s{layer}", speed / 1000),
        (_, Some(speed)) => format!("{}.{} Gb/s{layer}", speed / 1000, speed % 1000 / 100),
        (_, None) => layer.trim().to_owned(),
    }
}

fn draw_nic(painter: &mut Painter<'_>, id: NodeId, title: &str, address: Option<String>, cell: &Cell) {
    let hardware = painter.hardware;
    let (corner, size) = (cell.corner(), cell.size);
    let lines = [Line::title(painter.title(id)), Line::plain(address.unwrap_or_default())];
    painter.boxed(corner, size, Look::Network, title, &lines);
    let ports = ports_of(hardware, id);
    let mut y = corner[1] + box_height(&lines) - 2.0;
    // A port's number tells it from others of the same device.
    let is_shared = |name: &str| {
        let named = ports.iter().filter(|id| match &hardware.node(**id).kind {
            NodeKind::Port(port) => port.device.as_deref() == Some(name),
            _ => false,
        });
        named.count() > 1
    };
    for port_id in ports.iter().take(PORTS_MAX) {
        let NodeKind::Port(port) = &hardware.node(*port_id).kind else { continue };
        let look = match port.state {
            PortState::Down => Look::Down,
            _ if !painter.is_used(*port_id) => Look::Quiet,
            _ => Look::Frame,
        };
        let device = port.device.clone().unwrap_or_else(|| hardware.node(*port_id).name.clone());
        let device = match port.number {
            Some(number) if is_shared(&device) => format!("{device}:{number}"),
            _ => device,
        };
        // The same port may be listed below several processors.
        let is_again = Hardware::is_usable(port) && !painter.is_used(*port_id);
        let speed = if is_again { "repeated".into() } else { port_speed(hardware, *port_id) };
        let lines = [Line::plain(device.clone()), Line::plain(speed)];
        let place = [corner[0] + 3.0, y];
        painter.boxed(place, [size[0] - 6.0, PORT - 3.0], look, &device, &lines);
        painter.marks(&[*port_id], [corner[0] + size[0] - 1.0, y + 4.0]);
        y += PORT;
    }
    if ports.len() > PORTS_MAX {
        let text = format!("and {} more", ports.len() - PORTS_MAX);
        painter.remark([corner[0] + 5.0, y + 8.0], 9.0, size[0], &text);
    }
}
