//! Reading a checkpoint, on any mesh.
//!
//! Invariant: of each file only those blocks are read that have an element which is wanted, each is checked before it is used, and
//! every wanted element is found once. Absent: what would go on with less than that.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::format::{BLOCK, Chunk, INDEX, Index, VERSION, directory, sum};
use crate::error::{Error, Result};
use crate::number::Number;
use crate::parameters::Parameter;

/// A checkpoint that is read.
pub(super) struct Reader {
    directory: PathBuf,
    index: Index,
}

/// The version alone, which stands in every index.
#[derive(serde::Deserialize)]
struct Version {
    version: u32,
}

fn damaged(path: &Path, why: impl Into<String>) -> Error {
    Error::Checkpoint {
        path: path.display().to_string(),
        why: why.into(),
        hint: "remove its directory to go on from the checkpoint before it",
    }
}

/// Elements that lie side by side in a chunk and in what is wanted of its tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    /// The first one in the chunk.
    from: usize,
    /// The first one in what is wanted.
    to: usize,
    elements: usize,
}

/// What of `elements` of `wanted`, a rectangle of the tensor, a chunk has, in the chunk's order.
fn common(chunk: &Chunk, wanted: &[Range<usize>; 2], elements: &Range<usize>) -> Vec<Run> {
    let [rows, columns] =
        [0, 1].map(|at| chunk.part[at].start.max(wanted[at].start)..chunk.part[at].end.min(wanted[at].end));
    let mut runs = Vec::<Run>::new();
    if columns.is_empty() {
        return runs;
    }
    for row in rows {
        let number = |of: &[Range<usize>; 2]| (row - of[0].start) * of[1].len() + columns.start - of[1].start;
        let (begin, target) = (number(&chunk.part), number(wanted));
        // Counted in the chunk's rectangle, whose row begins at `begin`, and at `target` in what is wanted.
        let first = begin.max(chunk.elements.start).max(begin + elements.start.saturating_sub(target));
        let end = (begin + columns.len()).min(chunk.elements.end);
        let end = end.min((begin + elements.end).saturating_sub(target));
        if first >= end {
            continue;
        }
        let run = Run {
            from: first - chunk.elements.start,
            to: target + first - begin - elements.start,
            elements: end - first,
        };
        match runs.last_mut() {
            Some(last) if (last.from + last.elements, last.to + last.elements) == (run.from, run.to) => {
                last.elements += run.elements;
            }
            _ => runs.push(run),
        }
    }
    runs
}

impl Reader {
    /// The checkpoint of `of` after `step` steps, for a run with these settings.
    ///
    /// # Errors
    /// [`Error::File`]; [`Error::Checkpoint`] for another version, another run, and what is no index.
    pub(super) fn open(of: &Path, step: usize, settings: &BTreeMap<String, String>) -> Result<Self> {
        let directory = directory(of, step);
        let path = directory.join(INDEX);
        let text = std::fs::read(&path).map_err(|error| Error::file(&path, "read", error))?;
        let malformed = |error: serde_json::Error| damaged(&path, format!("it is no index: {error}"));
        let Version { version } = serde_json::from_slice(&text).map_err(malformed)?;
        let refuse =
            |why: String, hint| Err(Error::Checkpoint { path: path.display().to_string(), why, hint });
        if version != VERSION {
            return refuse(
                format!("it has version {version}, and this program reads version {VERSION}"),
                "read it with the program that wrote it",
            );
        }
        let index: Index = serde_json::from_slice(&text).map_err(malformed)?;
        for (what, own) in settings {
            let there = index.settings.get(what).map_or("none", String::as_str);
            if there != own {
                return refuse(
                    format!("its {what} is {there}, and this run's is {own}"),
                    "go on with the options and the text that it was made with, or name another directory",
                );
            }
        }
        if index.step != step {
            return Err(damaged(&path, format!("it is of step {}", index.step)));
        }
        Ok(Reader { directory, index })
    }

    /// Some of the elements that this rank has of a parameter, of the state `state`.
    ///
    /// # Errors
    /// [`Error::File`]; [`Error::Checkpoint`] with the file that is damaged, and where elements are missing.
    pub(super) fn read<T: Number>(
        &self,
        state: &str,
        parameter: &Parameter,
        elements: &Range<usize>,
        to: &mut [T],
    ) -> Result<()> {
        let name = format!("{state}.{}", parameter.name);
        let index = || self.directory.join(INDEX);
        let tensor =
            self.index.tensors.get(&name).ok_or_else(|| damaged(&index(), format!("it has no {name}")))?;
        if tensor.shape != parameter.whole {
            let why = format!("its {name} is {:?}, and the model's is {:?}", tensor.shape, parameter.whole);
            return Err(damaged(&index(), why));
        }
        let mut found = 0;
        for chunk in &tensor.chunks {
            self.check::<T>(&name, chunk)?;
            let runs = common(chunk, &parameter.part, elements);
            if !runs.is_empty() {
                self.copy(&name, chunk, &runs, to)?;
                found += runs.iter().map(|run| run.elements).sum::<usize>();
            }
        }
        if found != to.len() {
            return Err(damaged(&index(), format!("it has {found} of {} elements of {name}", to.len())));
        }
        Ok(())
    }

    /// Whether what the index says of a chunk is possible: an index can be of anything.
    fn check<T: Number>(&self, name: &str, chunk: &Chunk) -> Result<()> {
        let [rows, columns] = &chunk.part;
        let whole = self.index.tensors[name].shape;
        let is_part = rows.start <= rows.end
            && columns.start <= columns.end
            && rows.end <= whole[0]
            && columns.end <= whole[1];
        let elements = &chunk.elements;
        let is_run = elements.start <= elements.end && is_part && elements.end <= rows.len() * columns.len();
        let is_file = Path::new(&chunk.file).file_name().is_some_and(|name| name == chunk.file.as_str());
        if !(is_run && is_file && chunk.sums.len() == (elements.len() * size_of::<T>()).div_ceil(BLOCK)) {
            return Err(damaged(&self.directory.join(INDEX), format!("a chunk of {name} cannot be")));
        }
        Ok(())
    }

    /// Copies runs of a chunk, in its order, block by block.
    fn copy<T: Number>(&self, name: &str, chunk: &Chunk, runs: &[Run], to: &mut [T]) -> Result<()> {
        let path = self.directory.join(&chunk.file);
        let failed = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => damaged(&path, format!("it ends before the end of {name}")),
            _ => Error::file(&path, "read", error),
        };
        let file = File::open(&path).map_err(failed)?;
        let of_block = BLOCK / size_of::<T>();
        let mut room = Vec::new();
        let mut read = None;
        for run in runs {
            let mut done = 0;
            while done < run.elements {
                let (block, within) = ((run.from + done) / of_block, (run.from + done) % of_block);
                if read != Some(block) {
                    let elements = of_block.min(chunk.elements.len() - block * of_block);
                    room.resize(elements * size_of::<T>(), 0);
                    file.read_exact_at(&mut room, chunk.at + (block * BLOCK) as u64).map_err(failed)?;
                    if sum(&room) != chunk.sums[block] {
                        return Err(damaged(
                            &path,
                            format!("block {block} of {name} is not what was written"),
                        ));
                    }
                    read = Some(block);
                }
                let count = (of_block - within).min(run.elements - done);
                let target = &mut to[run.to + done..][..count];
                let bytes = room[within * size_of::<T>()..].chunks_exact(size_of::<T>());
                target.iter_mut().zip(bytes).for_each(|(value, bytes)| *value = T::get(bytes));
                done += count;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rectangles_and_runs_are_cut_as_elements_are() {
        let whole = [0..6, 0..8];
        let parts = [[0..6, 0..8], [0..3, 0..8], [3..6, 0..8], [0..6, 2..5], [1..4, 6..8], [2..3, 3..4]];
        for part in &parts {
            let elements = part[0].len() * part[1].len();
            for run in [0..elements, 0..elements / 2, elements / 2..elements, elements / 3..elements / 2 + 1]
            {
                let chunk = Chunk {
                    part: part.clone(),
                    elements: run.clone(),
                    file: String::new(),
                    at: 0,
                    sums: Vec::new(),
                };
                for wanted in parts.iter().chain([&whole]) {
                    let numbers = |part: &[Range<usize>; 2]| {
                        let columns = part[1].clone();
                        let of = |row| columns.clone().map(move |column| row * 8 + column);
                        part[0].clone().flat_map(of).collect::<Vec<usize>>()
                    };
                    let (there, want) = (numbers(part)[run.clone()].to_vec(), numbers(wanted));
                    let count = want.len();
                    for some in [0..count, 0..count / 2, count / 2..count, count / 3..count / 2 + 1] {
                        let mut found = vec![None; some.len()];
                        for run in common(&chunk, wanted, &some) {
                            for at in 0..run.elements {
                                assert!(found[run.to + at].replace(there[run.from + at]).is_none());
                            }
                        }
                        let of = |number: &usize| there.contains(number).then_some(*number);
                        let expected: Vec<_> = want[some.clone()].iter().map(of).collect();
                        assert_eq!(found, expected, "{part:?} {run:?} {wanted:?} {some:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn whole_rows_are_one_run() {
        let chunk = |part| Chunk { part, elements: 0..24, file: String::new(), at: 0, sums: Vec::new() };
        assert_eq!(
            common(&chunk([2..5, 0..8]), &[0..6, 0..8], &(0..48)),
            [Run { from: 0, to: 16, elements: 24 }]
        );
        assert_eq!(common(&chunk([0..6, 4..8]), &[0..6, 0..8], &(0..48)).len(), 6);
    }
}
