//! A tree on disk, and a probe of it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use consort_algorithms::hardware::{Hardware, LinkKind, NodeId, NodeKind, Port};
use consort_probing::{Management, Probe, Probed, Recorded};
use consort_testing::machines::{ANSWERS, Tree, tree};

/// A directory that is removed at the end.
pub(crate) struct Place(pub(crate) PathBuf);

impl Place {
    pub(crate) fn of(tree: &Tree) -> Place {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("consort-probing-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        // Trees have thousands of files, which memory takes faster than a disk.
        let memory = PathBuf::from("/dev/shm");
        let room = if memory.is_dir() { memory } else { std::env::temp_dir() };
        let place = Place(room.join(name));
        std::fs::create_dir(&place.0).expect("a directory");
        tree.write_below(&place.0).expect("a tree");
        place
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A directory that cannot be removed is left.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A probe of a tree, with the answers that are recorded in it.
pub(crate) fn probe(tree: &Tree) -> Probed {
    let place = Place::of(tree);
    let recorded = tree.text(ANSWERS).and_then(|text| Recorded::read(text).ok());
    let library = recorded.as_ref().map(|recorded| recorded as &dyn Management);
    library.into_iter().fold(Probe::below(&place.0), Probe::with).run()
}

/// A probe of a machine as it is described.
pub(crate) fn machine(name: &str) -> Probed {
    probe(&tree(name))
}

/// What joins two nodes directly.
pub(crate) fn joined(hardware: &Hardware, one: NodeId, other: NodeId) -> Vec<LinkKind> {
    let links = hardware.touching(one).iter().map(|id| hardware.link(*id));
    links.filter(|link| link.other(one) == other).map(|link| link.kind).collect()
}

/// The port of a name.
pub(crate) fn port<'a>(hardware: &'a Hardware, name: &str) -> (NodeId, &'a Port) {
    let ports = hardware.iter().filter_map(|(id, node)| match &node.kind {
        NodeKind::Port(port) if port.device.as_deref() == Some(name) => Some((id, port)),
        _ => None,
    });
    ports.last().unwrap_or_else(|| panic!("no port {name}:\n{hardware}"))
}

/// The words above a node up to its host.
pub(crate) fn way_up(hardware: &Hardware, mut at: NodeId) -> Vec<&'static str> {
    let mut words = Vec::new();
    while let Some((_, above)) = hardware.above(at) {
        words.push(hardware.node(above).kind.word());
        at = above;
    }
    words
}

/// All notes as text.
pub(crate) fn notes(probed: &Probed) -> Vec<String> {
    probed.notes.iter().map(ToString::to_string).collect()
}
