//! The images that consort ships, as its manifest lists them: which machine code is taken, and which text runs in its
//! place.
//!
//! Invariant: machine code is taken only if it is, byte for byte, an image of the manifest for the pretend devices.
//! The text of the same type runs in its place, as the interpreter can read it. No part of the library is linked: the
//! manifest and the texts are read where they lie. Absent: machine code of others, and any run of machine code.

use std::collections::HashMap;
use std::sync::OnceLock;

use miniz_oxide::inflate::decompress_to_vec_zlib;
use sha2::{Digest, Sha256};

use crate::boundary::In;
use crate::code::{Answer, Code};
use crate::engine::Program;

const MANIFEST: &str = include_str!("../../../kernels/cuda/images/manifest.txt");
/// The architecture of the pretend devices, as the manifest names it.
const ARCHITECTURE: &str = "sm_80";
/// The end of the names of machine code for it.
const BINARY: &str = "sm_80.cubin";

macro_rules! texts {
    ($($name:literal)*) => {
        [$(($name, include_bytes!(concat!("../../../kernels/cuda/images/", $name, ".ptx.z")))),*]
    };
}

/// The texts by their types, compressed as they are committed.
static TEXTS: [(&str, &[u8]); 13] =
    texts!["i8" "u8" "i32" "u32" "i64" "u64" "f16" "f32" "f64" "bf16" "f8e4m3" "f8e5m2" "copy"];

/// A shipped text, its program after the first request, and the manifest's entries for its kernels.
#[derive(Debug)]
pub(crate) struct Text {
    compressed: &'static [u8],
    program: OnceLock<Answer<Program>>,
    /// Registers of a thread on the pretend devices, by kernel.
    registers: HashMap<&'static str, u32>,
}

impl Text {
    /// Its program, made once a process.
    pub(crate) fn program(&self) -> Answer<&Program> {
        let make = || {
            let text = decompress_to_vec_zlib(self.compressed).map_err(|_| Code::INVALID_IMAGE)?;
            let text = String::from_utf8(text).map_err(|_| Code::INVALID_IMAGE)?;
            Program::parse(&text).map_err(|_| Code::INVALID_PTX)
        };
        self.program.get_or_init(make).as_ref().map_err(|code| *code)
    }

    /// Registers of a thread of a kernel in the text. `None` for other kernels.
    pub(crate) fn registers(&self, kernel: &str) -> Option<u32> {
        self.registers.get(kernel).copied()
    }
}

/// What the manifest says.
struct Manifest {
    /// By the name of their type.
    texts: HashMap<&'static str, Text>,
    /// By their SHA-256, the types of texts and of machine code for the pretend devices.
    images: HashMap<&'static str, &'static str>,
    /// Lengths in bytes of the machine code.
    lengths: Vec<usize>,
}

fn manifest() -> &'static Manifest {
    static READ: OnceLock<Manifest> = OnceLock::new();
    READ.get_or_init(|| {
        let (mut images, mut lengths) = (HashMap::new(), Vec::new());
        let text = |(name, compressed)| {
            (name, Text { compressed, program: OnceLock::new(), registers: HashMap::new() })
        };
        let mut texts: HashMap<_, _> = TEXTS.into_iter().map(text).collect();
        for line in MANIFEST.lines() {
            let words: Vec<&'static str> = line.split(' ').collect();
            match words[..] {
                ["image", name, hash, bytes, ..] => {
                    let (of, form) = name.split_once('.').unwrap_or_default();
                    if form == "ptx" || form == BINARY {
                        images.insert(hash, of);
                    }
                    if let (BINARY, Ok(bytes)) = (form, bytes.parse()) {
                        lengths.push(bytes);
                    }
                }
                ["kernel", name, ARCHITECTURE, "registers", count, ..] => {
                    // As `consort_fold_f32_sum` or `consort_run_copy`.
                    let of = name.split('_').nth(2).and_then(|of| texts.get_mut(of));
                    if let (Some(text), Ok(count)) = (of, count.parse()) {
                        text.registers.insert(name, count);
                    }
                }
                _ => {}
            }
        }
        Manifest { texts, images, lengths }
    })
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The text that runs in the place of the image `image`. `None` for an image that consort does not ship.
pub(crate) fn text(image: &[u8]) -> Option<&'static Text> {
    let manifest = manifest();
    manifest.texts.get(manifest.images.get(&*hash(image))?)
}

/// All bytes of machine code at an address that begins as an ELF file. Without machine code of that length in the
/// manifest, the image counts as not for these devices. No more is read than the file's own tables name.
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
