//! Text as tokens, and which tokens each sequence of a step has.
//!
//! Invariant: the last tenth of a text is held out: training never sees it. Sequence `index` of a step is
//! a function of the seed, the step and the index, so ranks share a batch by its indices.

use std::path::Path;

use crate::error::{Error, Result};
use crate::random::Random;
pub use crate::vocabulary::VOCABULARY;
use crate::vocabulary::{Tokens, Vocabulary};

/// The text that comes with the trainer.
const BUNDLED: &str = include_str!("../text/training.txt");

/// A text, as tokens.
#[derive(Hash)]
pub struct Text {
    training: Tokens<'static>,
    held_out: Tokens<'static>,
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
    fn push(&mut self, window: &[u32]) {
        self.tokens.extend(&window[..window.len() - 1]);
        self.targets.extend(&window[1..]);
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

    /// The text of a file, or the one that comes with the trainer, in the tokens of a vocabulary.
    ///
    /// # Errors
    /// [`Error::File`] where it cannot be read, [`Error::Configuration`] where it is no text, [`Error::ShortText`].
    pub fn open(path: Option<&Path>, vocabulary: &Vocabulary, sequence: usize) -> Result<Self> {
        let Some(path) = path else { return Self::of(vocabulary.encode(BUNDLED.as_bytes()), sequence) };
        let bytes = std::fs::read(path).map_err(|error| Error::file(path, "read", error))?;
        // No text in UTF-8 or in an older code has such a byte, and nearly every other file has one.
        if let Some(at) = bytes.iter().position(|byte| *byte == 0) {
            return Err(Error::configuration(
                format!("{} is no text: its byte {at} is 0", path.display()),
                "name a file of text; one in UTF-16 or UTF-32 has to be put into UTF-8",
            ));
        }
        Self::of(vocabulary.encode(&bytes), sequence)
    }

    /// A text whose tokens are bytes.
    ///
    /// # Errors
    /// As [`Text::of`].
    pub fn new(bytes: &[u8], sequence: usize) -> Result<Self> {
        Self::of(Vocabulary::Bytes.encode(bytes), sequence)
    }

    /// A text of tokens.
    ///
    /// # Errors
    /// [`Error::ShortText`] if its last tenth has no whole sequence with the token behind it.
    pub fn of(tokens: Tokens<'_>, sequence: usize) -> Result<Self> {
        let (len, held_out) = (tokens.len(), tokens.len() / 10);
        if held_out <= sequence {
            return Err(Error::ShortText {
                tokens: len,
                sequence,
                needed: sequence.saturating_add(1).saturating_mul(10),
            });
        }
        let [training, held_out] = tokens.split(len - held_out);
        Ok(Text { training, held_out })
    }

    /// A number that another text hardly has, and every machine has for this one.
    pub fn checksum(&self) -> u32 {
        let mut sum = adler2::Adler32::new();
        [&self.training, &self.held_out].into_iter().for_each(|part| part.sum(&mut sum));
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
            batch.push(&self.training.of(begin..begin + sequence + 1));
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
        batch.push(&self.held_out.of(index * sequence..(index + 1) * sequence + 1));
        batch
    }
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
