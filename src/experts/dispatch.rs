//! Tokens to experts, for the first time and again.

use std::sync::Arc;

use consort_kernels::rows::{Real, eight_bit_bytes, from_eight_bits, to_eight_bits};
use consort_memory::{Span, SpanMut};

use super::layout::Layout;
use super::leg::{Leg, Places, Way};
use super::refusal::{self, Cause, Refusal, Refused};
use super::stage::{Row, Stage, starts_of};
use super::{Experts, Payload, Traffic};
use consort_types::error::{Error, Result};

/// What a dispatch leaves behind: how many rows each of this rank's experts got, and the way of each row, for what follows.
/// It holds no rows, and stays good for as long as its [`Experts`], whatever is dispatched after it.
#[derive(Clone, Debug)]
pub struct Dispatched<T: Real> {
    pub(super) layout: Arc<Layout>,
    pub(super) number: u64,
    pub(super) tokens: usize,
    pub(super) legs: Vec<Leg>,
    pub(super) last: Last<T::Sum>,
    /// By choice of this rank's tokens that is not absent: its place among all of them.
    pub(super) slots: Vec<u32>,
    dropped_tokens: usize,
    traffic: Traffic,
}

/// The rows at their experts' rank.
#[derive(Clone, Debug)]
pub(super) struct Last<W> {
    /// The places of rows as they came.
    at: Vec<u32>,
    /// Where the choices of each end.
    ends: Vec<u32>,
    /// By choice: its row among those that are grouped by expert.
    pub(super) grouped: Vec<u32>,
    pub(super) weights: Vec<W>,
    /// Rows of each of this rank's experts.
    counts: Vec<usize>,
}

impl<W: Real> Last<W> {
    /// Gives rows their places: by expert, source, token, choice.
    fn of(layout: &Layout, stage: Stage<W>) -> Self {
        let first = layout.rank * layout.experts_per_rank;
        let mut counts = vec![0usize; layout.experts_per_rank as usize];
        stage.experts.iter().for_each(|expert| counts[(expert - first) as usize] += 1);
        let mut next = starts_of(&counts);
        let mut order: Vec<u32> = (0..stage.rows.len() as u32).collect();
        order.sort_by_key(|row| {
            let Row { source, token, .. } = stage.rows[*row as usize];
            (source, token)
        });
        let mut grouped = vec![0u32; stage.experts.len()];
        for row in order {
            for choice in stage.choices(row as usize) {
                let place = &mut next[(stage.experts[choice] - first) as usize];
                grouped[choice] = *place as u32;
                *place += 1;
            }
        }
        let at = stage.rows.iter().map(|row| row.at).collect();
        let ends = stage.rows.iter().map(|row| row.end).collect();
        Last { at, ends, grouped, weights: stage.weights, counts }
    }

    /// The choices of a row as it came.
    pub(super) fn choices(&self, row: usize) -> std::ops::Range<usize> {
        let begin = row.checked_sub(1).map_or(0, |before| self.ends[before]);
        begin as usize..self.ends[row] as usize
    }
}

impl<T: Real> Dispatched<T> {
    /// Rows of each of this rank's experts, in the order in which they are grouped.
    pub fn counts(&self) -> &[usize] {
        &self.last.counts
    }

    /// Rows of all of this rank's experts.
    pub fn rows(&self) -> usize {
        self.last.grouped.len()
    }

    /// Tokens of this rank.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Choices of this rank's tokens that were absent.
    pub fn absent(&self) -> usize {
        self.tokens * self.layout.options.top_k - self.slots.len()
    }

    /// Tokens of this rank that no expert got.
    pub fn dropped_tokens(&self) -> usize {
        self.dropped_tokens
    }

    /// What this rank sent, headers and counts included.
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }
}

impl<T: Real> Experts<T> {
    /// Sends tokens to the experts that were chosen for them. All ranks call it, with any number of tokens.
    ///
    /// `tokens` are rows of `hidden` elements. `indices` are `top_k` experts for each of them, from 0 on over all ranks; a negative
    /// one is absent, so that a token may have fewer, or none. `weights` are as many, in `f32` (`f64` of `f64`); those of absent
    /// experts do not matter. `grouped` becomes the rows of this rank's experts: by expert, then by the rank that the token is from,
    /// then by token, then by choice ([`Dispatched::counts`] rows of each expert).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] on all ranks where those of one do not fit (lengths, more tokens than agreed, an expert that does not
    /// exist), with its rank and what is wrong there: nothing is moved, and the communicator goes on. Otherwise as every collective.
    pub fn dispatch(
        &mut self,
        tokens: &[T],
        indices: &[i32],
        weights: &[T::Sum],
        grouped: &mut Vec<T>,
    ) -> Result<Dispatched<T>> {
        let layout = self.layout.clone();
        // A rank that refuses takes part without tokens, and says so where others say how many they have.
        let (refused, count) = match self.check_tokens(tokens, indices, weights) {
            Ok(count) => (None, count),
            Err(refused) => (Some(refused), 0),
        };
        let mut refusal = refused.as_ref().map(|refused| refused.refusal);
        let tokens = &tokens[..count * layout.options.hidden];
        let choices = ..count * layout.options.top_k;
        let (stage, slots, dropped_tokens) = chosen(&layout, &indices[choices], &weights[choices]);
        self.number += 1;
        let way = Way { comm: &self.comm, layout: &layout, number: self.number };
        let mut places = match layout.options.payload {
            Payload::Element => Places::new(Span::of(tokens), layout.row_bytes),
            Payload::EightBit => {
                let bytes = eight_bit_bytes(layout.options.hidden);
                self.eight_bit.resize(count * bytes, 0);
                let rows = tokens.chunks_exact(layout.options.hidden);
                rows.zip(self.eight_bit.chunks_exact_mut(bytes))
                    .for_each(|(row, out)| to_eight_bits(row, out));
                Places::new(Span::of(&self.eight_bit), bytes)
            }
        };
        let (mut legs, mut traffic, mut stage) = (Vec::new(), Traffic::default(), stage);
        for (stretch, buffers) in layout.stretches().iter().zip(&mut self.buffers) {
            let gone = Leg::first(way, *stretch, &stage, &places, refusal, buffers)?;
            places.add(&buffers.received, gone.starts);
            legs.push(gone.leg);
            traffic = traffic.and(gone.traffic);
            refusal = refusal::first(refusal, gone.refusal);
            // Rows of a dispatch that is refused are not handed on.
            stage = if refusal.is_none() { gone.stage } else { Stage::new() };
        }
        refusal::end(refused, refusal, "dispatch", &layout.options)?;
        let last = Last::of(&layout, stage);
        spread(&last, &places, layout.options.payload, layout.options.hidden, grouped);
        let (tokens, number) = (count, self.number);
        Ok(Dispatched { layout: layout.clone(), number, tokens, legs, last, slots, dropped_tokens, traffic })
    }

    /// Sends other rows of as many tokens the way of a dispatch, in the element type: `grouped` has the rows of `tokens` where
    /// [`Experts::dispatch`] had those of its tokens. Nothing but rows is exchanged.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for lengths that do not fit or the handle of other experts: the other ranks get
    /// [`Error::Aborted`] with the rank and what is wrong there. Otherwise as every collective.
    pub fn dispatch_again(
        &mut self,
        handle: &Dispatched<T>,
        tokens: &[T],
        grouped: &mut Vec<T>,
    ) -> Result<Traffic> {
        let hidden = self.layout.options.hidden;
        self.check_along("dispatch_again", handle, &[("tokens", tokens.len(), handle.tokens * hidden)])?;
        let way = Way { comm: &self.comm, layout: &handle.layout, number: handle.number };
        let mut places = Places::new(Span::of(tokens), hidden * size_of::<T>());
        let mut traffic = Traffic::default();
        for (leg, buffers) in handle.legs.iter().zip(&mut self.buffers) {
            let (starts, of_leg) = leg.again(way, &places, buffers)?;
            places.add(&buffers.received, starts);
            traffic = traffic.and(of_leg);
        }
        spread(&handle.last, &places, Payload::Element, hidden, grouped);
        Ok(traffic)
    }

    /// That a handle is of these experts.
    pub(super) fn check_handle(&self, handle: &Dispatched<T>) -> Result<()> {
        if Arc::ptr_eq(&self.layout, &handle.layout) {
            return Ok(());
        }
        Err(Error::invalid(
            "the handle is of a dispatch of other experts",
            "pass the handle to the experts that made it",
        ))
    }

    /// That the arguments of a call along a handle fit: the handle, and of each buffer what it is, how long it is and has to be. No counts
    /// are exchanged in which the other ranks could hear that they do not, so the communicator ends with the reason.
    pub(super) fn check_along(
        &self,
        call: &str,
        handle: &Dispatched<T>,
        lengths: &[(&str, usize, usize)],
    ) -> Result<()> {
        let mut checks =
            lengths.iter().map(|(what, length, needed)| check_length(call, what, *length, *needed));
        let Err(error) = self.check_handle(handle).and_then(|()| checks.try_for_each(|check| check)) else {
            return Ok(());
        };
        if self.comm.size() > 1 {
            self.comm.abort(&format!("{call} refused its arguments: {error}"));
        }
        Err(error)
    }

    /// How many tokens there are.
    fn check_tokens(
        &self,
        tokens: &[T],
        indices: &[i32],
        weights: &[T::Sum],
    ) -> std::result::Result<usize, Refused> {
        let options = &self.layout.options;
        let count = tokens.len() / options.hidden;
        let rank = self.layout.rank;
        let refused = |cause: Cause, number: usize| {
            move |error: Error| Refused { refusal: Refusal::new(rank, cause, number), error }
        };
        let check = |what: &str, cause: Cause, length: usize, needed: usize| {
            check_length("dispatch", what, length, needed).map_err(refused(cause, length))
        };
        check("tokens", Cause::Tokens, tokens.len(), count * options.hidden)?;
        if count > options.tokens_max {
            return Err(refused(Cause::Count, count)(Error::invalid(
                format!("dispatch: {count} tokens, and at most {} were agreed on", options.tokens_max),
                "dispatch them in several calls, or make experts for more tokens",
            )));
        }
        check("indices", Cause::Indices, indices.len(), count * options.top_k)?;
        check("weights", Cause::Weights, weights.len(), count * options.top_k)?;
        let wrong = indices.iter().position(|index| *index >= 0 && index.cast_unsigned() >= options.experts);
        if let Some(at) = wrong {
            let (token, expert) = (at / options.top_k, indices[at].cast_unsigned());
            return Err(refused(Cause::Expert, expert as usize)(Error::invalid(
                format!("dispatch: token {token} chooses expert {expert}, and there are {}", options.experts),
                "experts count from 0 over all ranks; a negative index is an absent choice",
            )));
        }
        Ok(count)
    }
}

/// That a buffer is as long as it must be.
pub(super) fn check_length(call: &str, what: &str, length: usize, needed: usize) -> Result<()> {
    if length == needed {
        return Ok(());
    }
    Err(Error::invalid(
        format!("{call}: {what} has {length} elements and must have {needed}"),
        "pass whole rows of `hidden` elements, and `top_k` choices for each token",
    ))
}

/// The tokens of this rank with their choices: with the place of each choice, and how many tokens have none.
fn chosen<W: Real>(layout: &Layout, indices: &[i32], weights: &[W]) -> (Stage<W>, Vec<u32>, usize) {
    let (mut stage, mut slots, mut dropped) = (Stage::new(), Vec::new(), 0);
    let top_k = layout.options.top_k;
    let tokens = indices.chunks_exact(top_k).zip(weights.chunks_exact(top_k));
    for (token, (indices, weights)) in tokens.enumerate() {
        let before = slots.len();
        for (choice, (index, weight)) in indices.iter().zip(weights).enumerate() {
            if let Ok(expert) = u32::try_from(*index) {
                stage.experts.push(expert);
                stage.weights.push(*weight);
                slots.push((token * top_k + choice) as u32);
            }
        }
        dropped += usize::from(slots.len() == before);
        let token = token as u32;
        stage.rows.push(Row { at: token, source: layout.rank, token, end: slots.len() as u32 });
    }
    (stage, slots, dropped)
}

/// Copies rows to the places of their choices.
fn spread<T: Real>(
    last: &Last<T::Sum>,
    places: &Places<'_>,
    payload: Payload,
    hidden: usize,
    grouped: &mut Vec<T>,
) {
    grouped.resize(last.grouped.len() * hidden, T::default());
    let mut codes = vec![0u8; if payload == Payload::EightBit { eight_bit_bytes(hidden) } else { 0 }];
    for (row, at) in last.at.iter().enumerate() {
        let values = places.row(*at);
        if payload == Payload::EightBit {
            SpanMut::of(&mut codes).copy_from(values);
        }
        for choice in last.choices(row) {
            let place = &mut grouped[last.grouped[choice] as usize * hidden..][..hidden];
            match payload {
                Payload::Element => SpanMut::of(place).copy_from(values),
                Payload::EightBit => from_eight_bits(&codes, place),
            }
        }
    }
}
