//! How a checkpoint lies on the disk.
//!
//! `DIR/step-00000120/` has a safetensors file of each rank, with the chunks that the rank saved, and `index.json`, with the
//! chunks of each tensor of the whole model. A chunk is a run of the elements, row by row, of a rectangle of its tensor; each
//! element of a tensor is in one chunk. For every [`BLOCK`] bytes of a chunk there is an Adler-32 sum, so that what reads a
//! part of it checks what it reads. A file's own header has its chunks without the index, too.
//!
//! Invariant: a directory has the name `step-N` only since all of its files are whole and on the disk; until then, and while it is
//! removed, it ends in `.tmp`. Absent: compression, and what would repair a file.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The version that is written, and the one that is read.
pub const VERSION: u32 = 1;
/// The file with the chunks of all tensors.
pub const INDEX: &str = "index.json";
/// Bytes that have a checksum of their own: a multiple of the size of each number.
pub const BLOCK: usize = 256 << 10;
/// The key of a file's chunks in its own header.
pub const CHUNKS: &str = "chunks";

/// A checkpoint: all but the numbers.
#[derive(Serialize, Deserialize, Debug)]
pub struct Index {
    /// The [`VERSION`] that wrote it.
    pub version: u32,
    /// The steps that were taken.
    pub step: usize,
    /// What a run must have alike to go on from here, in words.
    pub settings: BTreeMap<String, String>,
    /// The tensors by name.
    pub tensors: BTreeMap<String, Tensor>,
}

/// A tensor of the whole model.
#[derive(Serialize, Deserialize, Debug)]
pub struct Tensor {
    /// Its rows and columns.
    pub shape: [usize; 2],
    /// Where its elements are.
    pub chunks: Vec<Chunk>,
}

/// Some elements of a tensor, in a file.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Chunk {
    /// The rows and columns of the rectangle.
    pub part: [Range<usize>; 2],
    /// Which of the rectangle's elements, counted row by row.
    pub elements: Range<usize>,
    /// The file, in the checkpoint's directory.
    pub file: String,
    /// The byte of the file at which they begin.
    pub at: u64,
    /// The checksum of each block.
    pub sums: Vec<u32>,
}

/// What a file says of one of its tensors.
#[derive(Serialize, Deserialize, Debug)]
pub struct Described {
    /// The rows and columns of the whole tensor.
    pub shape: [usize; 2],
    /// As in [`Chunk`].
    pub part: [Range<usize>; 2],
    /// As in [`Chunk`].
    pub elements: Range<usize>,
    /// As in [`Chunk`].
    pub sums: Vec<u32>,
}

/// The directory of the checkpoint after `step` steps.
pub fn directory(of: &Path, step: usize) -> PathBuf {
    of.join(format!("step-{step:08}"))
}

/// The directory that it is until it is whole: one for each `attempt` of ranks to write it, as a rank that was stopped, and without
/// which the others have gone on, may still write to theirs.
pub fn unfinished(of: &Path, step: usize, attempt: u64) -> PathBuf {
    directory(of, step).with_extension(format!("{attempt:016x}.tmp"))
}

/// The file of a rank.
pub fn file(rank: u32) -> String {
    format!("rank-{rank:05}.safetensors")
}

/// The steps of the whole checkpoints of a directory, and what else in it has the name of an unfinished one.
///
/// # Errors
/// [`Error::File`] where it cannot be read.
pub fn list(of: &Path) -> Result<(Vec<usize>, Vec<PathBuf>)> {
    let failed = |error| Error::file(of, "read", error);
    let (mut whole, mut rest) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(of).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let Some(number) = name.to_str().and_then(|name| name.strip_prefix("step-")) else { continue };
        match number.strip_suffix(".tmp") {
            Some(_) => rest.push(entry.path()),
            None => whole.extend(number.parse::<usize>()),
        }
    }
    whole.sort_unstable();
    Ok((whole, rest))
}

/// The checksum of a block.
pub fn sum(block: &[u8]) -> u32 {
    adler2::adler32_slice(block)
}
