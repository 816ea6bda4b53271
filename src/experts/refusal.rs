//! The refusal of a rank's arguments, as a word in the place of a count.
//!
//! Invariant: no count has the word's highest bit. The least word is that of the lowest rank, so ranks that have heard of the same
//! refusals name the same one. Absent: which arguments are wrong.

use super::ExpertOptions;
use crate::Rank;
use consort_types::error::{Error, Result};

/// The bit that no count has.
const MARK: u64 = 1 << 63;
const RANK_SHIFT: u32 = 35;
const CAUSE_SHIFT: u32 = 32;

/// What is wrong with arguments, as other ranks hear it with one number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cause {
    /// The length of the tokens.
    Tokens,
    /// The number of tokens.
    Count,
    /// The length of the indices.
    Indices,
    /// The length of the weights.
    Weights,
    /// An expert.
    Expert,
    /// No number: the handle is of other experts.
    Handle,
}

/// That a rank refused its arguments.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Refusal(u64);

/// A refusal with the error of the rank that refuses.
pub(super) struct Refused {
    pub(super) refusal: Refusal,
    pub(super) error: Error,
}

impl Refusal {
    pub(super) fn new(rank: Rank, cause: Cause, number: usize) -> Self {
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        Refusal(MARK | u64::from(rank) << RANK_SHIFT | (cause as u64) << CAUSE_SHIFT | u64::from(number))
    }

    pub(super) fn word(self) -> u64 {
        self.0
    }

    /// The refusal that stands where a count could.
    pub(super) fn of(word: u64) -> Option<Self> {
        (word & MARK != 0).then_some(Refusal(word))
    }

    /// The word in halves, the mark in the first.
    pub(super) fn halves(self) -> [u32; 2] {
        [(self.0 >> 32) as u32, self.0 as u32]
    }

    /// The inverse of [`Refusal::halves`].
    pub(super) fn of_halves([high, low]: [u32; 2]) -> Option<Self> {
        Self::of(u64::from(high) << 32 | u64::from(low))
    }

    /// What the other ranks of a call make of it.
    pub(super) fn error(self, call: &str, options: &ExpertOptions) -> Error {
        let (rank, number) = (self.0 << 1 >> (RANK_SHIFT + 1), self.0 as u32);
        let what = match (self.0 >> CAUSE_SHIFT & 0b111) as u32 {
            cause if cause == Cause::Tokens as u32 => {
                format!("tokens has {number} elements, which are no whole rows of {}", options.hidden)
            }
            cause if cause == Cause::Count as u32 => {
                format!("{number} tokens, and at most {} were agreed on", options.tokens_max)
            }
            cause if cause == Cause::Indices as u32 => {
                format!("indices has {number} elements, which are not {} for each token", options.top_k)
            }
            cause if cause == Cause::Weights as u32 => {
                format!("weights has {number} elements, which are not {} for each token", options.top_k)
            }
            cause if cause == Cause::Expert as u32 => {
                format!("a token chooses expert {number}, and there are {}", options.experts)
            }
            _ => "the handle is of a dispatch of other experts".into(),
        };
        Error::invalid(
            format!("{call}: rank {rank} refused its arguments: {what}"),
            "correct that rank's call; no rows were dispatched, and the communicator goes on",
        )
    }
}

/// The end of a call in which a rank refused: this one, which has its own error, or another.
///
/// # Errors
/// That of the refusal, if there is one.
pub(super) fn end(
    own: Option<Refused>,
    heard: Option<Refusal>,
    call: &str,
    options: &ExpertOptions,
) -> Result<()> {
    match (own, heard) {
        (Some(own), _) => Err(own.error),
        (None, Some(refusal)) => Err(refusal.error(call, options)),
        (None, None) => Ok(()),
    }
}

/// The refusal of the lower rank.
pub(super) fn first(one: Option<Refusal>, other: Option<Refusal>) -> Option<Refusal> {
    one.into_iter().chain(other).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_read_as_it_was_written_and_the_lowest_rank_is_first() {
        let options = ExpertOptions::new(8, 4, 2, 16);
        let said = |refusal: Refusal| refusal.error("dispatch", &options).to_string();
        for (cause, number, text) in [
            (
                Cause::Tokens,
                7,
                "rank 9 refused its arguments: tokens has 7 elements, which are no whole rows of 4",
            ),
            (Cause::Count, 17, "17 tokens, and at most 16"),
            (Cause::Indices, 3, "indices has 3 elements"),
            (Cause::Weights, usize::MAX, "weights has 4294967295 elements"),
            (Cause::Expert, 8, "chooses expert 8, and there are 8"),
            (Cause::Handle, 0, "of other experts"),
        ] {
            let refusal = Refusal::new(9, cause, number);
            assert!(said(refusal).contains(text), "{}", said(refusal));
            assert_eq!(Refusal::of(refusal.word()), Some(refusal));
            assert_eq!(Refusal::of_halves(refusal.halves()), Some(refusal));
        }
        let last = Refusal::new((1 << 28) - 1, Cause::Tokens, 0);
        assert!(said(last).contains("rank 268435455 refused"), "{}", said(last));
        let lower = Refusal::new(2, Cause::Handle, usize::MAX);
        assert_eq!(first(Some(last), Some(lower)), Some(lower));
        assert_eq!(first(None, Some(last)), Some(last));
        assert_eq!((Refusal::of(u64::MAX >> 1), Refusal::of_halves([u32::MAX / 2, u32::MAX])), (None, None));
    }
}
