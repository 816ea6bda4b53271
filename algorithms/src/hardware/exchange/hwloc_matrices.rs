//! The matrices of hwloc's XML: latencies between NUMA domains, bandwidths of links between GPUs.
//!
//! Invariant: a matrix is square and says the same both ways.

use roxmltree::Node as Element;

use super::error::ReadError;
use super::hwloc::Reader;
use super::xml;
use crate::hardware::{Link, LinkKind, NodeId, NodeKind, Rates, known_gpu, nvlink_generation};

/// More objects than any matrix of a host has.
const OBJECTS_MAX: usize = 4096;

/// Adds what the matrices say.
pub(super) fn read(reader: &mut Reader<'_, '_, '_>, root: Element<'_, '_>) -> Result<(), ReadError> {
    for element in root.children().filter(Element::is_element) {
        match (element.tag_name().name(), element.attribute("name").unwrap_or_default()) {
            ("distances2" | "distances2hetero", "NVLinkBandwidth") => links(reader, element, false)?,
            ("distances2" | "distances2hetero", "XGMIBandwidth") => links(reader, element, true)?,
            // Version 2.0 has no names.
            ("distances2", "NUMALatency" | "") if element.attribute("type") == Some("NUMANode") => {
                latencies(reader, element)?;
            }
            _ => {}
        }
    }
    first_version(reader);
    Ok(())
}

/// The objects and the values, row by row, of a matrix.
struct Matrix {
    line: u32,
    objects: Vec<String>,
    values: Vec<u64>,
}

impl Matrix {
    fn value(&self, row: usize, column: usize) -> u64 {
        self.values[row * self.objects.len() + column]
    }
}

fn matrix(reader: &Reader<'_, '_, '_>, element: Element<'_, '_>) -> Result<Matrix, ReadError> {
    let line = xml::line(reader.draft.place, element);
    let words = |name: &str| -> Vec<String> {
        let parts = element.children().filter(|child| child.has_tag_name(name));
        parts.flat_map(|part| part.text().unwrap_or_default().split_whitespace().map(str::to_owned)).collect()
    };
    let objects = words("indexes");
    let values: Option<Vec<u64>> = words("u64values").iter().map(|word| word.parse().ok()).collect();
    let square =
        |values: &Vec<u64>| objects.len() <= OBJECTS_MAX && values.len() == objects.len() * objects.len();
    let Some(values) = values.filter(square) else {
        let reason = format!("a matrix of {} objects has no square of numbers", objects.len());
        return Err(reader.draft.error(
            line,
            reason,
            "the file is cut off or edited; write it again with lstopo",
        ));
    };
    Ok(Matrix { line, objects, values })
}

/// The node of an object of a matrix: `PCIDev:703`, or `703`.
fn node(reader: &Reader<'_, '_, '_>, object: &str) -> Option<NodeId> {
    let index: u64 = object.rsplit(':').next()?.parse().ok()?;
    reader.by_index.get(&index).copied()
}

fn links(reader: &mut Reader<'_, '_, '_>, element: Element<'_, '_>, is_xgmi: bool) -> Result<(), ReadError> {
    let matrix = matrix(reader, element)?;
    let nodes: Vec<Option<NodeId>> = matrix.objects.iter().map(|object| node(reader, object)).collect();
    for (object, _) in matrix.objects.iter().zip(&nodes).filter(|(_, node)| node.is_none()) {
        reader.draft.note(
            matrix.line,
            format!("a matrix names {object}, which is no device that counts; it is left out"),
        );
    }
    for row in 0..nodes.len() {
        for column in row + 1..nodes.len() {
            let (there, back) = (matrix.value(row, column), matrix.value(column, row));
            let (Some(from), Some(to)) = (nodes[row], nodes[column]) else { continue };
            if there.max(back) == 0 || from == to {
                continue;
            }
            if there != back && there.min(back) > 0 {
                let (from, to) = (&matrix.objects[row], &matrix.objects[column]);
                let reason = format!("from {from} to {to} the matrix has {there}, and back {back}");
                let remedy = "both directions of a link carry the same; write the file again with lstopo";
                return Err(reader.draft.error(matrix.line, reason, remedy));
            }
            connect(reader, from.min(to), from.max(to), there.max(back), is_xgmi);
        }
    }
    Ok(())
}

/// Adds a link of `mb_s` megabytes a second. A multiple of what one link carries is a number of links.
fn connect(reader: &mut Reader<'_, '_, '_>, from: NodeId, to: NodeId, mb_s: u64, is_xgmi: bool) {
    let hardware = &reader.draft.hardware;
    let gpu = [from, to].into_iter().find_map(|end| hardware.gpu(end));
    let known = gpu.and_then(|gpu| known_gpu(&gpu.pci));
    let generation = known.and_then(|known| known.sm).and_then(nvlink_generation);
    let one = if is_xgmi {
        known.and_then(|known| known.gcn).and_then(|gcn| Rates::DataSheet.xgmi_bytes_s(gcn))
    } else {
        generation.and_then(|generation| Rates::DataSheet.nvlink_bytes_s(generation, None))
    };
    let bytes_s = mb_s.saturating_mul(1_000_000);
    let count = one
        .filter(|one| bytes_s.is_multiple_of(*one) && bytes_s / one <= 1024)
        .map(|one| (bytes_s / one) as u32);
    let stated = if count.is_some() { None } else { Some(bytes_s) };
    let count = count.unwrap_or(1);
    let kind = if is_xgmi { LinkKind::Xgmi { count } } else { LinkKind::NvLink { generation, count } };
    reader.draft.hardware.add_link(Link { from, to, kind, bytes_s: stated, latency_ns: None });
}

fn latencies(reader: &mut Reader<'_, '_, '_>, element: Element<'_, '_>) -> Result<(), ReadError> {
    let matrix = matrix(reader, element)?;
    let by_os = element.attribute("indexing") != Some("gp");
    let find = |object: &String| -> Option<NodeId> {
        if !by_os {
            return node(reader, object);
        }
        let number: u32 = object.parse().ok()?;
        let is_it = |id: &&NodeId| matches!(&reader.draft.hardware.node(**id).kind, NodeKind::Numa(numa) if numa.number == Some(number));
        reader.numas.iter().find(is_it).copied()
    };
    let nodes: Vec<Option<NodeId>> = matrix.objects.iter().map(find).collect();
    for row in 0..nodes.len() {
        for column in row + 1..nodes.len() {
            if let (Some(from), Some(to)) = (nodes[row], nodes[column]) {
                socket(reader, from, to, u16::try_from(matrix.value(row, column)).ok());
            }
        }
    }
    Ok(())
}

fn socket(reader: &mut Reader<'_, '_, '_>, from: NodeId, to: NodeId, distance: Option<u16>) {
    let hardware = &mut reader.draft.hardware;
    let is_joined = hardware.touching(from).iter().any(|link| {
        let link = hardware.link(*link);
        matches!(link.kind, LinkKind::Socket { .. }) && link.other(from) == to
    });
    if from != to && !is_joined {
        hardware.connect(from, to, LinkKind::Socket { distance });
    }
}

/// Version 1: values relative to a base, in an element of the machine.
fn first_version(reader: &mut Reader<'_, '_, '_>) {
    let machine = reader.objects[0].element;
    let count = reader.numas.len();
    for element in machine.children().filter(|child| child.has_tag_name("distances")) {
        let number = |key: &str| element.attribute(key).and_then(|text| text.parse::<f64>().ok());
        let base = number("latency_base").unwrap_or(10.0);
        let values: Vec<f64> = element
            .children()
            .filter(|child| child.has_tag_name("latency"))
            .filter_map(|child| child.attribute("value")?.parse().ok())
            .collect();
        if number("nbobjs") != Some(count as f64) || values.len() != count * count {
            continue;
        }
        for row in 0..count {
            for column in row + 1..count {
                let value = (values[row * count + column] * base).round();
                let distance = (0.0..65536.0).contains(&value).then_some(value as u16);
                let (from, to) = (reader.numas[row], reader.numas[column]);
                socket(reader, from, to, distance);
            }
        }
    }
}
