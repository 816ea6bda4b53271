//! Writing a checkpoint, while training goes on.
//!
//! Invariant: each element is written once: what several ranks have is shared among them as they would share a bucket. All ranks
//! write their files, and only when all have seen at the end of a step that all of these are on the disk does rank 0 write the
//! index and give the directory its name. So a crash at any point leaves the checkpoints that there were. The threads that
//! write call nothing of the library.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::ops::Range;
use std::path::Path;

use safetensors::tensor::{Dtype, Metadata, TensorInfo};

use super::format::{
    BLOCK, CHUNKS, Chunk, Described, INDEX, Index, Tensor, VERSION, directory, file, list, sum, unfinished,
};
use crate::error::{Error, Result};
use crate::number::Number;
use crate::train::Trainer;

/// The largest header of a file that is read: the bound of the format's own library.
const HEADER: u64 = 100_000_000;

/// A copy of what a rank saves of one tensor.
pub(super) struct Piece<T> {
    name: String,
    whole: [usize; 2],
    part: [Range<usize>; 2],
    elements: Range<usize>,
    values: Vec<T>,
}

/// A copy of what a rank saves: of each bucket its share among those that have the same, and of what tensor ranks all
/// have nothing but on the first of them.
pub(super) fn copy<T: Number>(trainer: &mut Trainer<'_, T>) -> Result<Vec<Piece<T>>> {
    let mut pieces = Vec::new();
    trainer.state(|state, parameter, elements, values| {
        pieces.push(Piece {
            name: format!("{state}.{}", parameter.name),
            whole: parameter.whole,
            part: parameter.part.clone(),
            elements,
            values: values.to_vec(),
        });
    })?;
    Ok(pieces)
}

/// Calls `each` with the bytes of every block of `values`.
fn blocks<T: Number>(
    values: &[T],
    room: &mut Vec<u8>,
    mut each: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    for block in values.chunks(BLOCK / size_of::<T>()) {
        room.resize(size_of_val(block), 0);
        block.iter().zip(room.chunks_exact_mut(size_of::<T>())).for_each(|(value, bytes)| value.put(bytes));
        each(room)?;
    }
    Ok(())
}

/// The header of a file with these pieces, which says how long it is and where each lies.
fn header<T: Number>(pieces: &[Piece<T>], room: &mut Vec<u8>) -> Result<Vec<u8>> {
    let (mut chunks, mut tensors, mut end) = (BTreeMap::new(), Vec::new(), 0);
    for piece in pieces {
        let mut sums = Vec::new();
        blocks(&piece.values, room, |block| {
            sums.push(sum(block));
            Ok(())
        })?;
        let (begin, lengths) = (end, piece.part.each_ref().map(|range| range.len()));
        end += size_of_val(&piece.values[..]);
        let is_whole = piece.values.len() == lengths[0] * lengths[1];
        tensors.push((
            piece.name.clone(),
            TensorInfo {
                dtype: if size_of::<T>() == 8 { Dtype::F64 } else { Dtype::F32 },
                shape: if is_whole { lengths.to_vec() } else { vec![piece.values.len()] },
                data_offsets: (begin, end),
            },
        ));
        let Piece { whole: shape, part, elements, .. } = piece;
        let described = Described { shape: *shape, part: part.clone(), elements: elements.clone(), sums };
        chunks.insert(&piece.name, described);
    }
    let chunks = serde_json::to_string(&chunks).expect("names and numbers are JSON");
    let own = [(CHUNKS.to_owned(), chunks)].into_iter().collect();
    let metadata = Metadata::new(Some(own), tensors).expect("pieces lie one behind the other");
    let mut text = serde_json::to_vec(&metadata).expect("names and numbers are JSON");
    // Numbers begin at a multiple of their size.
    text.resize(text.len().next_multiple_of(size_of::<u64>()), b' ');
    Ok([&(text.len() as u64).to_le_bytes()[..], &text].concat())
}

/// Writes a file that was not there, and waits until it is on the disk. What could not be written whole is removed.
fn write(path: &Path, contents: impl FnOnce(&mut File) -> Result<()>) -> Result<()> {
    let failed = |error| Error::file(path, "written", error);
    let mut file = OpenOptions::new().write(true).create_new(true).open(path).map_err(failed)?;
    let written = contents(&mut file).and_then(|()| file.sync_all().map_err(failed));
    if written.is_err() {
        drop(std::fs::remove_file(path));
    }
    written
}

/// Writes the file of rank `rank` in the `directory` of a checkpoint that is not whole.
pub(super) fn write_part<T: Number>(directory: &Path, rank: u32, pieces: &[Piece<T>]) -> Result<()> {
    // Whichever rank comes first makes it.
    std::fs::create_dir_all(directory).map_err(|error| Error::file(directory, "made", error))?;
    let path = directory.join(file(rank));
    write(&path, |file| {
        let failed = |error| Error::file(&path, "written", error);
        let mut room = Vec::with_capacity(BLOCK);
        file.write_all(&header(pieces, &mut room)?).map_err(failed)?;
        for piece in pieces {
            blocks(&piece.values, &mut room, |block| file.write_all(block).map_err(failed))?;
        }
        Ok(())
    })
}

fn damaged(path: &Path, why: impl Into<String>) -> Error {
    Error::Checkpoint {
        path: path.display().to_string(),
        why: why.into(),
        hint: "all ranks must write to one directory, and nothing else may change it",
    }
}

/// The chunks of a rank's file, as it says itself, with the shapes of their tensors.
fn chunks(directory: &Path, rank: u32) -> Result<Vec<(String, [usize; 2], Chunk)>> {
    let name = file(rank);
    let path = directory.join(&name);
    let failed = |error| Error::file(&path, "read", error);
    let mut open = File::open(&path).map_err(failed)?;
    let length = open.metadata().map_err(failed)?.len();
    let mut word = [0; size_of::<u64>()];
    open.read_exact(&mut word).map_err(failed)?;
    let size = u64::from_le_bytes(word);
    if size > HEADER.min(length) {
        return Err(damaged(&path, format!("its header is said to have {size} bytes, of {length}")));
    }
    let mut text = vec![0; size as usize];
    open.read_exact(&mut text).map_err(failed)?;
    let metadata: Metadata =
        serde_json::from_slice(&text).map_err(|error| damaged(&path, error.to_string()))?;
    let begin = size + word.len() as u64;
    let expected = begin + metadata.data_len() as u64;
    if expected != length {
        return Err(damaged(&path, format!("it has {length} bytes, and its header says {expected}")));
    }
    let own = metadata.metadata().as_ref().and_then(|own| own.get(CHUNKS));
    let own = own.ok_or_else(|| damaged(&path, "its header has no chunks"))?;
    let described: BTreeMap<String, Described> =
        serde_json::from_str(own).map_err(|error| damaged(&path, error.to_string()))?;
    let chunk = |(tensor, of): (String, Described)| -> Result<_> {
        let info = metadata.info(&tensor).ok_or_else(|| damaged(&path, format!("it has no {tensor}")))?;
        let at = begin + info.data_offsets.0 as u64;
        let Described { shape, part, elements, sums } = of;
        Ok((tensor, shape, Chunk { part, elements, file: name.clone(), at, sums }))
    };
    described.into_iter().map(chunk).collect()
}

/// Waits until the names of a directory's files are on the disk.
fn settle(directory: &Path) -> Result<()> {
    File::open(directory)
        .and_then(|open| open.sync_all())
        .map_err(|error| Error::file(directory, "written", error))
}

/// Makes a checkpoint whole when `ranks` ranks have written their files in an `attempt`, and removes all but the newest `keep`.
pub(super) fn commit(
    (of, attempt): (&Path, u64),
    ranks: u32,
    keep: usize,
    (step, settings): (usize, BTreeMap<String, String>),
) -> Result<()> {
    let making = unfinished(of, step, attempt);
    let mut tensors = BTreeMap::<String, Tensor>::new();
    for rank in 0..ranks {
        for (name, shape, chunk) in chunks(&making, rank)? {
            tensors.entry(name).or_insert(Tensor { shape, chunks: Vec::new() }).chunks.push(chunk);
        }
    }
    for (name, tensor) in &tensors {
        let (found, all): (usize, _) =
            (tensor.chunks.iter().map(|chunk| chunk.elements.len()).sum(), tensor.shape[0] * tensor.shape[1]);
        if found != all {
            return Err(damaged(&making, format!("its files have {found} of {all} elements of {name}")));
        }
    }
    let index = Index { version: VERSION, step, settings, tensors };
    let path = making.join(INDEX);
    write(&path, |file| {
        let text = serde_json::to_vec(&index).expect("names and numbers are JSON");
        file.write_all(&text).map_err(|error| Error::file(&path, "written", error))
    })?;
    settle(&making)?;
    let whole = directory(of, step);
    std::fs::rename(&making, &whole).map_err(|error| Error::file(&whole, "written", error))?;
    settle(of)?;
    let (steps, _) = list(of)?;
    steps[..steps.len().saturating_sub(keep)].iter().try_for_each(|step| remove(of, *step, attempt))
}

/// Removes a checkpoint: first its name, so that no part of it is taken for a whole one.
fn remove(of: &Path, step: usize, attempt: u64) -> Result<()> {
    let (old, going) = (directory(of, step), unfinished(of, step, attempt));
    match std::fs::rename(&old, &going).and_then(|()| std::fs::remove_dir_all(&going)) {
        // A rank that was stopped has removed it just now.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(|error| Error::file(&old, "removed", error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_holes_is_not_declared_whole() {
        let of = std::env::temp_dir().join(format!("consort-holes-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&of));
        let piece = |elements: Range<usize>| Piece {
            name: "weights.a".into(),
            whole: [2, 4],
            part: [0..2, 0..4],
            values: vec![1f32; elements.len()],
            elements,
        };
        for (step, second) in [(1, 4..7), (2, 4..8)] {
            write_part(&unfinished(&of, step, 3), 0, &[piece(0..4)]).unwrap();
            write_part(&unfinished(&of, step, 3), 1, &[piece(second)]).unwrap();
        }
        let error = commit((&of, 3), 2, 1, (1, BTreeMap::new())).unwrap_err().to_string();
        assert!(error.contains("7 of 8 elements of weights.a"), "{error}");
        commit((&of, 3), 2, 1, (2, BTreeMap::new())).unwrap();
        assert_eq!(list(&of).unwrap().0, [2]);
        drop(std::fs::remove_dir_all(&of));
    }
}
