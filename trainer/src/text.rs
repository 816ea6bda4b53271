//! Text as tokens, and which tokens each sequence of a step has.
//!
//! Invariant: a token is a byte. The last tenth of a text is held out: training never sees it. Sequence `index` of a step is
//! a function of the seed, the step and the index, so ranks share a batch by its indices.

use std::path::Path;

use crate::error::{Error, Result};
use crate::random::Random;

/// Tokens that there are: bytes.
pub const VOCABULARY: usize = 256;

/// The text that comes with the trainer.
const BUNDLED: &str = include_str!("../text/training.txt");

/// A text, as tokens.
#[derive(Hash)]
pub struct Text {
    training: Vec<u8>,
    held_out: Vec<u8>,
}

/// Sequences and what follows each of their tokens.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Batch {
    /// The tokens, sequence by sequence.
    pub tokens: Vec<u32>,
    /// For each token the next one.
    pub targets: Vec<u32>,
}

impl Batch {
    fn push(&mut self, window: &[u8]) {
        self.tokens.extend(window[..window.len() - 1].iter().copied().map(u32::from));
        self.targets.extend(window[1..].iter().copied().map(u32::from));
    }
}

impl Batch {
    /// The tokens at these positions of each sequence of `sequence` tokens.
    pub fn at(&self, sequence: usize, positions: &[usize]) -> Batch {
        let of = |tokens: &[u32]| {
            let sequences = tokens.chunks_exact(sequence);
            sequences.flat_map(|tokens| positions.iter().map(|position| tokens[*position])).collect()
        };
        Batch { tokens: of(&self.tokens), targets: of(&self.targets) }
    }
}

impl Text {
    /// The text that comes with the trainer, for sequences of `sequence` tokens.
    ///
    /// # Errors
    /// [`Error::ShortText`] if it has too few.
    pub fn bundled(sequence: usize) -> Result<Self> {
        Self::new(BUNDLED.as_bytes(), sequence)
    }

    /// The text of a file.
    ///
    /// # Errors
    /// [`Error::File`] where it cannot be read, [`Error::ShortText`].
    pub fn read(path: &Path, sequence: usize) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|error| Error::File {
            path: path.display().to_string(),
            verb: "read",
            error,
        })?;
        Self::new(&bytes, sequence)
    }

    /// A text of bytes.
    ///
    /// # Errors
    /// [`Error::ShortText`] if its last tenth has no whole sequence with the token behind it.
    pub fn new(bytes: &[u8], sequence: usize) -> Result<Self> {
        let held_out = bytes.len() / 10;
        if held_out <= sequence {
            return Err(Error::ShortText { bytes: bytes.len(), sequence, needed: 10 * (sequence + 1) });
        }
        let (training, held_out) = bytes.split_at(bytes.len() - held_out);
        Ok(Text { training: training.to_vec(), held_out: held_out.to_vec() })
    }

    /// A number that another text hardly has, and every machine has for this one.
    pub fn checksum(&self) -> u32 {
        let mut sum = adler2::Adler32::new();
        let all = self.training.iter().chain(&self.held_out);
        all.for_each(|token| sum.write_slice(&token.to_le_bytes()));
        sum.checksum()
    }

    /// Tokens to train on.
    pub fn training_tokens(&self) -> usize {
        self.training.len()
    }

    /// The sequences of a step that have the indices.
    pub fn batch(&self, seed: u64, step: usize, indices: std::ops::Range<usize>, sequence: usize) -> Batch {
        let random = Random::new(seed, &format!("step {step}"));
        let mut batch = Batch::default();
        for index in indices {
            let begin = random.below(index as u64, self.training.len() - sequence);
            batch.push(&self.training[begin..=begin + sequence]);
        }
        batch
    }

    /// How many sequences the part that is held out has, side by side.
    pub fn held_out_sequences(&self, sequence: usize) -> usize {
        (self.held_out.len() - 1) / sequence
    }

    /// Sequence `index` of the part that is held out.
    pub fn held_out(&self, index: usize, sequence: usize) -> Batch {
        let mut batch = Batch::default();
        batch.push(&self.held_out[index * sequence..=(index + 1) * sequence]);
        batch
    }
}

/// Bytes for people: what is no UTF-8 becomes a replacement character.
pub fn shown(tokens: &[u32]) -> String {
    let bytes: Vec<u8> = tokens.iter().map(|token| u8::try_from(*token).unwrap_or(b'?')).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_share_a_batch_by_indices() {
        let text = Text::bundled(32).unwrap();
        let whole = text.batch(1, 7, 0..6, 32);
        let (first, second) = (text.batch(1, 7, 0..2, 32), text.batch(1, 7, 2..6, 32));
        assert_eq!(whole.tokens, [first.tokens, second.tokens].concat());
        assert_eq!(whole.targets, [first.targets, second.targets].concat());
        assert_eq!(whole.tokens[1..32], whole.targets[..31]);
        assert_ne!(whole, text.batch(1, 8, 0..6, 32));
    }

    #[test]
    fn the_last_tenth_is_held_out() {
        let bytes: Vec<u8> = (0..=249).collect();
        let text = Text::new(&bytes, 12).unwrap();
        assert_eq!((text.training_tokens(), text.held_out_sequences(12)), (225, 2));
        assert_eq!(text.held_out(1, 12).targets.last(), Some(&249));
        assert!((0..200).all(|step| text.batch(3, step, 0..4, 12).targets.iter().all(|token| *token < 225)));
        assert!(matches!(Text::new(&bytes, 25), Err(Error::ShortText { needed: 260, .. })));
    }
}
