//! The matrix of `nvidia-smi topo -m`, in.
//!
//! A cell says what the path between two devices passes at worst: `PIX` one PCIe switch, `PXB` several, `PHB` the root complex, `NODE` several
//! of one NUMA domain, `SYS` the link between sockets, and `NV#` that many NVLinks, which hides the rest. The tree is what
//! follows: devices within a kind of path of each other are one group, and groups of a worse kind contain those of better kinds.
//! Source: the legend that the program prints, and NVIDIA's documentation of `nvmlGpuTopologyLevel_t`. Absent: speeds,
//! generations and addresses, which the matrix does not have.
//!
//! Invariant: a matrix that says two things of a pair, or of three devices what no tree has, is refused.

use super::draft::Draft;
use super::error::{Format, Note, Place, ReadError};
use crate::hardware::{
    Bridge, CpuSet, Gpu, Hardware, Host, Lanes, LinkKind, Nic, NodeId, NodeKind, Numa, Pci, Port,
};

/// More devices than a host has.
const DEVICES_MAX: usize = 512;
/// No GPU has more NVLinks; a matrix with more of them in a row has switches between its GPUs.
const NVLINKS_MAX: u32 = 18;

/// What a cell says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cell {
    Own,
    /// The place in [`LEVELS`].
    Level(usize),
    NvLink(u32),
    /// The program could not say.
    Unknown,
}

/// Kinds of paths, the nearest first, with the words for them.
const LEVELS: [&[&str]; 5] = [&["PIX"], &["PXB"], &["PHB"], &["NODE"], &["SYS", "SOC", "QPI"]];
const PHB: usize = 2;
const NODE: usize = 3;
const SYS: usize = 4;

struct Row {
    name: String,
    line: u32,
    cells: Vec<Cell>,
    cpus: Option<CpuSet>,
    numa: Option<u32>,
}

/// The text without the sequences that make a terminal underline it.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        if letter == '\u{1b}' {
            // Up to the letter that ends the sequence.
            letters.by_ref().find(|letter| letter.is_ascii_alphabetic());
        } else {
            plain.push(letter);
        }
    }
    plain
}

/// Whether this is the name of a device of the matrix.
fn is_device(word: &str) -> bool {
    let numbered = |start: &str| {
        word.strip_prefix(start)
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    numbered("GPU")
        || numbered("NIC")
        || word.starts_with("mlx")
        || word.starts_with("hfi")
        || word.starts_with("bnxt")
}

/// The devices of the header, if the line is one.
fn header(line: &str) -> Option<Vec<String>> {
    let words: Vec<&str> = line.split_whitespace().take_while(|word| is_device(word)).collect();
    let rest = line.split_whitespace().nth(words.len());
    let is_header = words.first() == Some(&"GPU0") && matches!(rest, None | Some("CPU" | "NUMA"));
    is_header.then(|| words.into_iter().map(str::to_owned).collect())
}

/// Whether the text has the header of such a matrix.
pub(super) fn is_matrix(text: &str) -> bool {
    text.lines().take(200).any(|line| header(&plain(line)).is_some())
}

/// Reads the matrix.
///
/// # Errors
///
/// The line, the reason and what to do.
pub(super) fn read(text: &str) -> Result<(Hardware, Vec<Note>), ReadError> {
    let place = Place::new(Format::NvidiaSmi, text);
    let (rows, names) = rows(text, &place)?;
    let mut draft = Draft::new(&place);
    let groups = groups(&rows, &place)?;
    build(&mut draft, &rows, &groups, &names);
    nvlinks(&mut draft, &rows, &place)?;
    draft.join_sockets()?;
    draft.finish()
}

/// A name of the matrix and the name of the device.
type Names = Vec<(String, String)>;

fn rows(text: &str, place: &Place) -> Result<(Vec<Row>, Names), ReadError> {
    let again = "copy the whole output of nvidia-smi topo -m";
    let mut devices: Vec<String> = Vec::new();
    let (mut rows, mut names) = (Vec::new(), Vec::new());
    for (line, number) in text.lines().zip(1u32..) {
        let line = plain(line);
        let words: Vec<&str> = line.split_whitespace().collect();
        if devices.is_empty() {
            devices = header(&line).unwrap_or_default();
            if devices.len() > DEVICES_MAX {
                return Err(place.error(number, "more than 512 devices", again));
            }
        } else if let [name, device] = words[..] {
            if let Some(name) = name.strip_suffix(':').filter(|name| is_device(name)) {
                names.push((name.to_owned(), device.to_owned()));
            }
        } else if words.first().is_some_and(|word| is_device(word)) {
            rows.push(row(&words, devices.len(), number, place)?);
        }
    }
    for (at, row) in rows.iter().enumerate() {
        if devices.get(at) != Some(&row.name) || row.cells[at] != Cell::Own {
            let reason = format!("the row of {} is not in the place of its column", row.name);
            return Err(place.error(row.line, reason, again));
        }
    }
    if rows.len() != devices.len() {
        let reason = format!("there are {} columns of devices and {} rows", devices.len(), rows.len());
        return Err(place.error(rows.last().map_or(1, |row: &Row| row.line), reason, again));
    }
    for (at, row) in rows.iter().enumerate() {
        for (other, cell) in rows.iter().zip(&row.cells).take(at) {
            if other.cells[at] != *cell {
                let reason = format!("{} and {} say different things of their path", other.name, row.name);
                return Err(place.error(row.line, reason, again));
            }
        }
    }
    Ok((rows, names))
}

fn row(words: &[&str], devices: usize, line: u32, place: &Place) -> Result<Row, ReadError> {
    let cells = words.iter().skip(1).take(devices).map(|word| {
        let level = LEVELS.iter().position(|words| words.contains(word));
        match (*word, level, word.strip_prefix("NV").map(str::parse::<u32>)) {
            ("X", ..) => Ok(Cell::Own),
            (_, Some(level), _) => Ok(Cell::Level(level)),
            (_, _, Some(Ok(count @ 1..=1024))) => Ok(Cell::NvLink(count)),
            ("N/A" | "UNK" | "?", ..) => Ok(Cell::Unknown),
            _ => {
                let remedy =
                    "a cell is X, PIX, PXB, PHB, NODE, SYS or NV and a number; columns may have run together";
                Err(place.error(line, format!("{word:?} is no path"), remedy))
            }
        }
    });
    let cells = cells.collect::<Result<Vec<Cell>, ReadError>>()?;
    if cells.len() < devices {
        let reason = format!("the row of {} has {} cells of {devices}", words[0], cells.len());
        return Err(place.error(line, reason, "copy the whole output of nvidia-smi topo -m"));
    }
    let rest = &words[devices + 1..];
    let cpus = rest.first().and_then(|list| list.parse::<CpuSet>().ok());
    // Where a GPU has several, as "0-1", it is not known which is nearest.
    let numa = rest.get(1).and_then(|number| number.parse().ok());
    Ok(Row { name: words[0].to_owned(), line, cells, cpus: cpus.filter(|cpus| !cpus.is_empty()), numa })
}

/// Per level, and device, the first device of its group.
fn groups(rows: &[Row], place: &Place) -> Result<Vec<Vec<usize>>, ReadError> {
    let mut group: Vec<usize> = (0..rows.len()).collect();
    let mut groups = Vec::new();
    for level in 0..SYS {
        let join = |group: &mut Vec<usize>, one: usize, other: usize| {
            let (from, to) = (group[one].max(group[other]), group[one].min(group[other]));
            group.iter_mut().filter(|at| **at == from).for_each(|at| *at = to);
        };
        for (at, row) in rows.iter().enumerate() {
            for (other, cell) in row.cells.iter().enumerate().take(at) {
                let near = matches!(cell, Cell::Level(known) if *known <= level);
                let same_numa = level == NODE && row.numa.is_some() && row.numa == rows[other].numa;
                if (near || same_numa) && group[at] != group[other] {
                    join(&mut group, at, other);
                }
            }
        }
        for (at, row) in rows.iter().enumerate() {
            for (other, cell) in row.cells.iter().enumerate().take(at) {
                let far = matches!(cell, Cell::Level(known) if *known > level);
                let numas = [row.numa, rows[other].numa];
                let apart = level == NODE && numas[0] != numas[1] && numas.iter().all(Option::is_some);
                if (far || apart) && group[at] == group[other] {
                    let reason = format!(
                        "{} and {} are farther from each other than both are from a third device",
                        rows[other].name, row.name
                    );
                    return Err(place.error(
                        row.line,
                        reason,
                        "no tree is like that; copy the whole output again",
                    ));
                }
            }
        }
        groups.push(group.clone());
    }
    Ok(groups)
}

/// The tree: NUMA domains, root complexes, switches, devices. A group of one device is not drawn.
fn build(draft: &mut Draft<'_>, rows: &[Row], groups: &[Vec<usize>], names: &Names) {
    let unknown = LinkKind::Pcie { now: Lanes::default(), best: Lanes::default() };
    let first = rows.first().map_or(1, |row| row.line);
    let host = draft.add(first, None, NodeKind::Host(Host::default()));
    let mut made: Vec<Vec<Option<NodeId>>> = vec![vec![None; rows.len()]; SYS];
    let size =
        |level: usize, at: usize| groups[level].iter().filter(|group| **group == groups[level][at]).count();
    for (at, row) in rows.iter().enumerate() {
        let leader = groups[NODE][at];
        let members =
            || rows.iter().zip(&groups[NODE]).filter(|(_, group)| **group == leader).map(|(row, _)| row);
        let numa = *made[NODE][leader].get_or_insert_with(|| {
            let numa = Numa {
                number: members().find_map(|row| row.numa),
                cpus: members().find_map(|row| row.cpus.clone()),
                ..Numa::default()
            };
            draft.add(row.line, Some((host, LinkKind::Local)), NodeKind::Numa(numa))
        });
        let mut above = numa;
        for level in (0..NODE).rev() {
            let leader = groups[level][at];
            let own = size(level, at);
            // Where several switches are on a path, each device has one of its own below the one that they share.
            let is_needed = match level {
                0 => own > 1 || size(1, at) > 1,
                _ => own > size(level - 1, at),
            };
            if !is_needed {
                continue;
            }
            above = *made[level][leader].get_or_insert_with(|| {
                if level == PHB {
                    draft.add(row.line, Some((above, LinkKind::Local)), NodeKind::Root(None))
                } else {
                    draft.add(row.line, Some((above, unknown)), NodeKind::Bridge(Bridge::default()))
                }
            });
        }
        if let Some(index) = row.name.strip_prefix("GPU") {
            let index = index.parse().ok();
            let gpu = Gpu { index, described: true, links_known: true, ..Gpu::default() };
            draft.add(row.line, Some((above, unknown)), NodeKind::Gpu(gpu));
        } else {
            let named = names.iter().find(|(name, _)| *name == row.name);
            let device = named.map_or(row.name.clone(), |(_, device)| device.clone());
            let nic =
                draft.add(row.line, Some((above, unknown)), NodeKind::Nic(Nic { pci: Some(Pci::default()) }));
            let port = Port { device: Some(device), ..Port::default() };
            draft.add(row.line, Some((nic, LinkKind::Local)), NodeKind::Port(port));
        }
    }
}

/// The NVLinks: between two GPUs, or, where a GPU would have more than any has, to switches between all of them.
fn nvlinks(draft: &mut Draft<'_>, rows: &[Row], place: &Place) -> Result<(), ReadError> {
    let gpus: Vec<(usize, NodeId)> = {
        let hardware = &draft.hardware;
        let find = |row: &Row| {
            let index = row.name.strip_prefix("GPU")?.parse::<u32>().ok();
            hardware
                .iter()
                .map(|(id, _)| id)
                .find(|id| hardware.gpu(*id).is_some_and(|gpu| gpu.index == index))
        };
        rows.iter().enumerate().filter_map(|(at, row)| Some((at, find(row)?))).collect()
    };
    let count = |one: usize, other: usize| match rows[one].cells[other] {
        Cell::NvLink(count) => count,
        _ => 0,
    };
    let sum = |at: usize| gpus.iter().fold(0u32, |sum, (other, _)| sum.saturating_add(count(at, *other)));
    let mut switched: Vec<(usize, Option<NodeId>)> = Vec::new();
    for &(at, id) in &gpus {
        if sum(at) <= NVLINKS_MAX {
            for &(other, other_id) in gpus.iter().filter(|(other, _)| *other < at) {
                if count(at, other) > 0 && sum(other) <= NVLINKS_MAX {
                    draft.hardware.connect(
                        other_id,
                        id,
                        LinkKind::NvLink { generation: None, count: count(at, other) },
                    );
                }
            }
            continue;
        }
        let peers: Vec<usize> =
            gpus.iter().map(|(other, _)| *other).filter(|other| count(at, *other) > 0).collect();
        let links = count(at, peers[0]);
        let alike = peers.iter().all(|other| {
            let of_other = gpus.iter().filter(|(third, _)| count(*other, *third) > 0);
            count(at, *other) == links && of_other.count() == peers.len()
        });
        if !alike {
            let reason = format!("{} has {} NVLinks, not alike to all of its peers", rows[at].name, sum(at));
            return Err(place.error(
                rows[at].line,
                reason,
                "no GPU has more than 18; copy the whole output again",
            ));
        }
        let group = peers.iter().copied().min().unwrap_or(at).min(at);
        let known = switched.iter().find(|(leader, _)| *leader == group).and_then(|(_, id)| *id);
        let switch = known.unwrap_or_else(|| {
            let host = draft.hardware.node(id).host;
            let switch = draft.add(rows[at].line, None, NodeKind::NvSwitch(Pci::default()));
            draft.hardware.node_mut(switch).host = host;
            switched.push((group, Some(switch)));
            switch
        });
        draft.hardware.connect(id, switch, LinkKind::NvLink { generation: None, count: links });
    }
    Ok(())
}
