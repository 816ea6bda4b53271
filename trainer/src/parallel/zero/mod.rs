//! ZeRO: ranks with the same parameters keep shares of what belongs to these (Rajbhandari and others, 2020, arXiv 1910.02054).
//!
//! Invariant: a rank has the same share of each bucket that the same ranks have, and what is shared is summed and changed by one rank alone.
//! Experts are shared by those that have them, and where that is one rank it has the whole bucket, and exchanges nothing. A bucket's gradients
//! go into a reduce-scatter when they are complete, and its weights come by an all-gather when its share is changed (stages
//! 1 and 2) or its unit is entered (stage 3). Bits are those of data parallelism where the library folds an all-reduce and a
//! reduce-scatter in the same order: with two ranks, or where its bits are invariant. With several backward passes in a step,
//! stages 2 and 3 sum over the ranks in each, and data parallelism and stage 1 once, so they agree within rounding.

mod pool;
mod sums;
mod weights;

use std::time::Instant;

use clap::ValueEnum;

use crate::error::Result;
use crate::number::Number;
use crate::optimizer::{Portion, Update};
use crate::parallel::data::{Exchange, Replicas};
use crate::parameters::{Gradients, Layout, Values, Weights};
use crate::ranks::{Overlap, Tensor};
use crate::timeline::{Activity, Span};
use sums::{Summed, Sums};
use weights::{Changed, Found};

/// Of what a rank keeps its share alone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, ValueEnum)]
pub enum Zero {
    /// Of nothing: each rank has all
    #[default]
    #[value(name = "0")]
    Nothing,
    /// Of the moments
    #[value(name = "1")]
    Moments,
    /// Of moments and gradients
    #[value(name = "2")]
    Gradients,
    /// Of moments, gradients and weights
    #[value(name = "3")]
    Weights,
}

/// The weights and gradients of a rank that changes its share.
pub(super) struct Shares<T: Number> {
    weights: Changed<T>,
    sums: Sums<T>,
}

impl<T: Number> Shares<T> {
    /// Before the first step.
    pub(super) fn new(
        layout: &Layout,
        seed: u64,
        portion: Portion,
        (zero, overlap): (Zero, Overlap),
    ) -> Result<Self> {
        Ok(Shares {
            weights: Changed::new(layout, seed, portion, (zero < Zero::Weights, overlap))?,
            sums: Sums::new(layout, portion, zero < Zero::Gradients)?,
        })
    }

    /// As [`Replica::exchange`](super::replica::Replica::exchange).
    pub(super) fn exchange(
        &mut self,
        replicas: Replicas<'_>,
        (layout, ranks): (&Layout, Tensor<'_>),
        step: Instant,
        pass: impl FnOnce(&mut dyn Weights<T>, &mut dyn Gradients<T>) -> Result<()>,
    ) -> Result<Exchange> {
        let Shares { weights, sums } = self;
        sums.begin();
        let mut summed = Summed { sums: &mut *sums, replicas, layout, ranks };
        pass(&mut Found { weights: &mut *weights, replicas, layout }, &mut summed)?;
        sums.look();
        let begun = Instant::now();
        sums.end(replicas, layout)?;
        let end = Instant::now();
        let of_sums = sums.flights.iter().map(|flight| flight.span(Activity::Sum, step));
        let of_weights = weights.flights.iter().map(|flight| flight.span(Activity::Gather, step));
        let mut spans: Vec<Span> = of_sums.chain(of_weights).collect();
        spans.push(Span::new(Activity::Wait, step, begun, end));
        let exchange =
            Exchange { exposed: sums.waited + weights.waited, sent: sums.sent + weights.sent, spans };
        weights.begin();
        Ok(exchange)
    }

    /// This rank's share of the gradients of a bucket.
    pub(super) fn gradients(&self, bucket: usize) -> &[T] {
        self.sums.bucket(bucket)
    }

    /// Changes the weights of all buckets, and adds to the step's exchange what was waited for meanwhile.
    pub(super) fn update(
        &mut self,
        replicas: Replicas<'_>,
        layout: &Layout,
        mut update: Update<'_, T>,
        (step, exchange): (Instant, &mut Exchange),
    ) -> Result<()> {
        let Shares { weights, sums } = self;
        weights.update(replicas, layout, |bucket, own| {
            update.bucket(layout, bucket, own, sums.bucket(bucket));
        })?;
        exchange.exposed += std::mem::take(&mut weights.waited);
        exchange.spans.extend(weights.flights.drain(..).map(|flight| flight.span(Activity::Gather, step)));
        Ok(())
    }

    /// All weights, on each rank. All ranks call it.
    pub(super) fn whole(&mut self, replicas: Replicas<'_>, layout: &Layout) -> Result<Values<T>> {
        self.weights.whole(replicas, layout)
    }

    /// This rank's share of the weights of a bucket.
    pub(super) fn weights(&mut self, bucket: usize) -> Result<&[T]> {
        self.weights.own(bucket)
    }

    /// Puts weights into the place of a bucket's: `fill` is given those that this rank keeps, and whether these are all.
    pub(super) fn put(
        &mut self,
        bucket: usize,
        fill: impl FnOnce(&mut [T], bool) -> Result<()>,
    ) -> Result<()> {
        self.weights.put(bucket, fill)
    }

    /// The memory of weights and of gradients.
    pub(super) fn bytes(&self) -> (usize, usize) {
        (self.weights.bytes(), self.sums.bytes())
    }
}
