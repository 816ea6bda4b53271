//! Trees of machines that tests do not have: the files of sysfs and procfs that a probe reads, and what NVML says there, made from
//! short descriptions (`*.txt` beside this file).
//!
//! Invariant: the same description gives the same tree. The descriptions are our own, from data sheets and user guides; serial
//! numbers and addresses are made up where no public source has them. Absent: files that no probe of this library reads.

mod describe;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Where NVML's recorded answers are in a tree.
pub const ANSWERS: &str = "nvml.script";

/// What is at a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// A file.
    File(Vec<u8>),
    /// A link, relative to its directory.
    Link(String),
}

/// A tree of files, by their paths below the root.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tree {
    /// All files and links.
    pub entries: BTreeMap<String, Entry>,
}

const MACHINES: [(&str, &str); 13] = [
    ("dgx-1", include_str!("dgx-1.txt")),
    ("dgx-a100", include_str!("dgx-a100.txt")),
    ("dgx-h100", include_str!("dgx-h100.txt")),
    ("hgx-b200", include_str!("hgx-b200.txt")),
    ("gb200-nvl72", include_str!("gb200-nvl72.txt")),
    ("mi300x", include_str!("mi300x.txt")),
    ("mi250x", include_str!("mi250x.txt")),
    ("pcie-dual-root", include_str!("pcie-dual-root.txt")),
    ("cloud-flat", include_str!("cloud-flat.txt")),
    ("laptop", include_str!("laptop.txt")),
    ("no-gpu", include_str!("no-gpu.txt")),
    ("container", include_str!("container.txt")),
    ("troubled", include_str!("troubled.txt")),
];

/// The names of all machines.
pub fn names() -> Vec<&'static str> {
    MACHINES.iter().map(|(name, _)| *name).collect()
}

/// The tree of a machine.
///
/// # Panics
/// When there is none of this name, or its description is wrong: both are errors of a test.
pub fn tree(name: &str) -> Tree {
    let found = MACHINES.iter().find(|(known, _)| *known == name);
    let (_, text) = found.unwrap_or_else(|| panic!("no machine {name}; there are {:?}", names()));
    describe::tree(text).unwrap_or_else(|reason| panic!("{name}: {reason}"))
}

impl Tree {
    /// Puts a text, with a line's end as the kernel writes it.
    pub fn put(&mut self, path: impl Into<String>, text: impl AsRef<str>) {
        let text = text.as_ref();
        let text = if text.is_empty() { String::new() } else { format!("{text}\n") };
        self.entries.insert(path.into(), Entry::File(text.into_bytes()));
    }

    /// Puts a link.
    pub fn link(&mut self, path: impl Into<String>, target: impl Into<String>) {
        self.entries.insert(path.into(), Entry::Link(target.into()));
    }

    /// What a file says; none of links and of files that are no text.
    pub fn text(&self, path: &str) -> Option<&str> {
        match self.entries.get(path)? {
            Entry::File(bytes) => std::str::from_utf8(bytes).ok(),
            Entry::Link(_) => None,
        }
    }

    /// Writes all of it below a directory.
    ///
    /// # Errors
    /// The system's.
    pub fn write_below(&self, root: &Path) -> io::Result<()> {
        let mut made = None;
        for (path, entry) in &self.entries {
            let place = root.join(path);
            if let Some(directory) = place.parent().filter(|directory| made.as_deref() != Some(*directory)) {
                fs::create_dir_all(directory)?;
                made = Some(directory.to_owned());
            }
            match entry {
                Entry::File(bytes) => fs::write(&place, bytes)?,
                Entry::Link(target) => symlink(target, &place)?,
            }
        }
        Ok(())
    }
}
