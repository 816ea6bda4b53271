//! The images that consort ships, as its manifest lists them: which machine code is taken, and what runs in its place.
//!
//! Invariant: machine code is taken only if it is, byte for byte, an image of the manifest for the pretend devices. What
//! runs is the text of the same type, which the interpreter can read. Nothing of the library is linked: the manifest and
//! the texts are read where they lie. Absent: machine code of others, and any run of machine code.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use miniz_oxide::inflate::decompress_to_vec_zlib;
use sha2::{Digest, Sha256};

use crate::boundary::In;
use crate::code::{Answer, Code};
use crate::engine::Program;

const MANIFEST: &str = include_str!("../../../kernels/cuda/images/manifest.txt");
/// The architecture of the pretend devices, as the manifest names it.
const ARCHITECTURE: &str = "sm_80";

macro_rules! texts {
    ($($name:literal)*) => {
        [$(($name, include_bytes!(concat!("../../../kernels/cuda/images/", $name, ".z")))),*]
    };
}

/// The texts, compressed as they are committed.
static TEXTS: [(&str, &[u8]); 13] = texts![
    "i8.ptx" "u8.ptx" "i32.ptx" "u32.ptx" "i64.ptx" "u64.ptx" "f16.ptx" "f32.ptx" "f64.ptx" "bf16.ptx" "f8e4m3.ptx"
    "f8e5m2.ptx" "copy.ptx"
];

/// A shipped text, and its program once one has been made.
struct Text {
    compressed: &'static [u8],
    program: Mutex<Option<Arc<Program>>>,
}

/// What the manifest says.
struct Manifest {
    /// By their SHA-256, the names of the texts that run: of texts, and of machine code for the pretend devices.
    images: HashMap<String, &'static str>,
    /// Lengths in bytes of the machine code.
    lengths: Vec<usize>,
    /// Registers of a thread, by kernel.
    registers: HashMap<&'static str, u32>,
    texts: HashMap<&'static str, Text>,
}

fn manifest() -> &'static Manifest {
    static READ: OnceLock<Manifest> = OnceLock::new();
    READ.get_or_init(|| {
        let mut read = Manifest {
            images: HashMap::new(),
            lengths: Vec::new(),
            registers: HashMap::new(),
            texts: HashMap::new(),
        };
        for (name, compressed) in TEXTS {
            read.texts.insert(name, Text { compressed, program: Mutex::default() });
        }
        for line in MANIFEST.lines() {
            let words: Vec<&'static str> = line.split(' ').collect();
            match words[..] {
                ["image", name, hash, bytes, ..] => {
                    let stem = name.split('.').next().unwrap_or_default();
                    let text = TEXTS
                        .iter()
                        .map(|(text, _)| *text)
                        .find(|text| text.strip_suffix(".ptx") == Some(stem));
                    let is_binary = name == format!("{stem}.{ARCHITECTURE}.cubin");
                    if let (true, Some(text)) = (is_binary || Some(name) == text, text) {
                        read.images.insert(hash.to_owned(), text);
                        read.lengths.extend(is_binary.then(|| bytes.parse::<usize>().ok()).flatten());
                    }
                }
                ["kernel", name, ARCHITECTURE, "registers", count, ..] => {
                    read.registers.extend(count.parse().ok().map(|count| (name, count)));
                }
                _ => {}
            }
        }
        read
    })
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The program of a shipped image with these bytes; none of others. Made once a process.
pub(crate) fn program(bytes: &[u8]) -> Option<Arc<Program>> {
    let manifest = manifest();
    let text = manifest.texts.get(*manifest.images.get(&hash(bytes))?)?;
    let mut known = text.program.lock().unwrap_or_else(PoisonError::into_inner);
    if known.is_none() {
        let text = String::from_utf8(decompress_to_vec_zlib(text.compressed).ok()?).ok()?;
        *known = Program::parse(&text).ok().map(Arc::new);
    }
    known.clone()
}

/// Registers of a thread of a shipped kernel on the pretend devices.
pub(crate) fn registers(kernel: &str) -> Option<u32> {
    manifest().registers.get(kernel).copied()
}

/// All bytes of machine code at an address that begins as an ELF file; that it is not for these devices, unless the
/// manifest has machine code of that length. No more is read than the file's own tables speak of.
pub(crate) fn binary(image: In<u8>) -> Answer<Vec<u8>> {
    /// Bytes of the header of a 64-bit ELF file.
    const HEADER: usize = 64;
    // A 64-bit file in the order of this host.
    if (image.at(4)?, image.at(5)?) != (2, 1) {
        return Err(Code::NO_BINARY_FOR_GPU);
    }
    let header = (0..HEADER).map(|at| image.at(at)).collect::<Answer<Vec<u8>>>()?;
    let number = |at: usize, bytes: usize| {
        header[at..at + bytes].iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte))
    };
    let end = |start: usize, entry: usize, count: usize| {
        number(start, 8).checked_add(number(entry, 2) * number(count, 2))
    };
    let ends = [end(32, 54, 56), end(40, 58, 60)].map(|end| end.unwrap_or(u64::MAX));
    let bytes = usize::try_from(ends[0].max(ends[1])).map_err(|_| Code::NO_BINARY_FOR_GPU)?;
    if !manifest().lengths.contains(&bytes) {
        return Err(Code::NO_BINARY_FOR_GPU);
    }
    (0..bytes).map(|at| image.at(at)).collect()
}
