//! The dynamic part of a 64-bit little-endian ELF file: what a loader reads of a shared library.
//!
//! Invariant: reads what the linker on this machine wrote; a file that is cut short is a panic.
//! Absent: everything that a test of names does not need.

use std::collections::BTreeSet;
use std::path::Path;

const DYNAMIC: u32 = 6;
const SYMBOLS: u32 = 11;
const VERSIONS_NEEDED: u32 = 0x6fff_fffe;

const TAG_NEEDED: u64 = 1;
const TAG_SONAME: u64 = 14;
const TAG_FLAGS_1: u64 = 0x6fff_fffb;
const TAG_VERSIONS_DEFINED: u64 = 0x6fff_fffc;

/// The dynamic part of a shared library.
#[derive(Debug, Default)]
pub struct Dynamic {
    /// Its name to the loader.
    pub soname: Option<String>,
    /// The libraries that it needs.
    pub needed: BTreeSet<String>,
    /// `DT_FLAGS_1`.
    pub flags: u64,
    /// Whether it gives versions to its own symbols.
    pub defines_versions: bool,
    /// The names that others can use.
    pub exported: BTreeSet<String>,
    /// The versions of others' symbols that it needs, as `GLIBC_2.34`.
    pub versions: BTreeSet<String>,
}

struct File(Vec<u8>);

impl File {
    fn number(&self, at: usize, bytes: usize) -> u64 {
        self.0[at..at + bytes].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    fn place(&self, at: usize, bytes: usize) -> usize {
        usize::try_from(self.number(at, bytes)).expect("a place in memory")
    }

    fn text(&self, at: usize) -> String {
        let end = self.0[at..].iter().position(|byte| *byte == 0).expect("the end of a text");
        String::from_utf8(self.0[at..at + end].to_vec()).expect("a name")
    }

    /// The start of the section of this type, its end, and the start of the texts it refers to.
    fn section(&self, kind: u32) -> Option<(usize, usize, usize)> {
        let (table, size, count) = (self.place(0x28, 8), self.place(0x3a, 2), self.place(0x3c, 2));
        let header = |index: usize| table + index * size;
        let found = (0..count).map(header).find(|at| self.number(at + 4, 4) == u64::from(kind))?;
        let start = self.place(found + 0x18, 8);
        let texts = self.place(header(self.place(found + 0x28, 4)) + 0x18, 8);
        Some((start, start + self.place(found + 0x20, 8), texts))
    }
}

impl Dynamic {
    /// Reads a shared library.
    ///
    /// # Panics
    /// If it is none.
    pub fn of(path: &Path) -> Self {
        let file = File(std::fs::read(path).expect("a shared library"));
        assert_eq!(&file.0[..6], b"\x7fELF\x02\x01", "{}", path.display());
        let mut dynamic = Self::default();

        let (start, end, texts) = file.section(DYNAMIC).expect("a dynamic section");
        for at in (start..end).step_by(16) {
            let (tag, value) = (file.number(at, 8), file.place(at + 8, 8));
            match tag {
                TAG_NEEDED => drop(dynamic.needed.insert(file.text(texts + value))),
                TAG_SONAME => dynamic.soname = Some(file.text(texts + value)),
                TAG_FLAGS_1 => dynamic.flags = value as u64,
                TAG_VERSIONS_DEFINED => dynamic.defines_versions = true,
                _ => {}
            }
        }

        let (start, end, texts) = file.section(SYMBOLS).expect("dynamic symbols");
        for at in (start..end).step_by(24) {
            let (binding, defined_in) = (file.number(at + 4, 1) >> 4, file.number(at + 6, 2));
            // Not local, and defined here.
            if binding != 0 && defined_in != 0 {
                dynamic.exported.insert(file.text(texts + file.place(at, 4)));
            }
        }

        if let Some((mut library, _, texts)) = file.section(VERSIONS_NEEDED) {
            loop {
                let mut version = library + file.place(library + 8, 4);
                for _ in 0..file.number(library + 2, 2) {
                    dynamic.versions.insert(file.text(texts + file.place(version + 8, 4)));
                    version += file.place(version + 12, 4);
                }
                match file.place(library + 12, 4) {
                    0 => break,
                    next => library += next,
                }
            }
        }
        dynamic
    }
}
