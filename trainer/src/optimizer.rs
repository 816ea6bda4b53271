//! AdamW, the schedule of its rate, and the bound on the gradient's norm.
//!
//! Invariant: each element's update depends on that element's gradient, moments and value, the step and the factor of
//! clipping; so any part of the parameters may be updated by any rank. Sums of squares are in f64, parameter by
//! parameter in the order of the layout.

use std::ops::Range;

use crate::error::Result;
use crate::number::{Number, with_vectors};
use crate::parameters::{Group, Layout, ParameterId, Values};

/// The numbers of AdamW (Loshchilov and Hutter, 2019).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AdamW {
    /// How slowly the mean of gradients changes.
    pub beta1: f64,
    /// How slowly the mean of their squares changes.
    pub beta2: f64,
    /// What is added to the root of the latter.
    pub epsilon: f64,
    /// The share of a matrix that a step takes away, times the rate.
    pub weight_decay: f64,
}

impl Default for AdamW {
    fn default() -> Self {
        AdamW { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 }
    }
}

/// A rate that rises in a line and falls as half a cosine.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Schedule {
    /// The highest rate.
    pub rate: f64,
    /// The rate towards which it falls: the step after the last would have it.
    pub least: f64,
    /// Steps in which the rate rises.
    pub warmup: usize,
    /// All steps.
    pub steps: usize,
}

impl Schedule {
    /// The rate of a step, counted from 0.
    pub fn at(&self, step: usize) -> f64 {
        if step < self.warmup {
            return self.rate * (step + 1) as f64 / self.warmup as f64;
        }
        let falling = self.steps.saturating_sub(self.warmup).max(1) as f64;
        let share = ((step - self.warmup) as f64 / falling).min(1.0);
        self.least + (self.rate - self.least) * 0.5 * (1.0 + (std::f64::consts::PI * share).cos())
    }
}

/// Some of the elements of each bucket: those of one rank, where several share each bucket evenly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// The rank.
    pub rank: usize,
    /// How many ranks.
    pub ranks: usize,
}

impl Share {
    /// All elements.
    pub const WHOLE: Share = Share { rank: 0, ranks: 1 };

    /// The elements of a bucket that has `elements`, a multiple of the ranks.
    pub fn of(&self, elements: usize) -> Range<usize> {
        let length = elements / self.ranks;
        self.rank * length..(self.rank + 1) * length
    }

    /// The elements of a parameter that are in the share, counted from the first of the bucket's share.
    pub fn within(&self, layout: &Layout, id: ParameterId) -> Range<usize> {
        let (place, share) = (layout.range(id), self.of(layout.bucket_elements(layout.bucket(id))));
        let clip = |at: usize| at.clamp(share.start, share.end) - share.start;
        clip(place.start)..clip(place.end)
    }

    /// The same elements, counted from the first of the parameter.
    pub fn elements(&self, layout: &Layout, id: ParameterId) -> Range<usize> {
        let (place, share) = (layout.range(id), self.of(layout.bucket_elements(layout.bucket(id))));
        let clip = |at: usize| at.clamp(place.start, place.end) - place.start;
        clip(share.start)..clip(share.end)
    }
}

/// A rank's shares of buckets: the ranks that have the same share them, and experts are on fewer ranks than the rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Portion {
    /// Of the buckets of [`Group::All`].
    pub all: Share,
    /// Of those of [`Group::Experts`].
    pub experts: Share,
}

impl Portion {
    /// All elements of all buckets.
    pub const WHOLE: Portion = Portion { all: Share::WHOLE, experts: Share::WHOLE };

    /// The share of a bucket.
    pub fn of(&self, layout: &Layout, bucket: usize) -> Share {
        match layout.group(bucket) {
            Group::All => self.all,
            Group::Experts => self.experts,
        }
    }

    /// The shares of all buckets.
    pub fn shares(&self, layout: &Layout) -> Vec<Share> {
        (0..layout.buckets()).map(|bucket| self.of(layout, bucket)).collect()
    }
}

/// The square of the norm of a rank's portion of the gradient; `of` gives the elements of its share of a bucket. The sum over all shares, and over
/// the ranks that share layers, is that of the whole: what several of them have is counted by one.
pub fn square_norm<'a, T: Number>(
    layout: &Layout,
    portion: Portion,
    tensor: usize,
    of: impl Fn(usize) -> &'a [T],
) -> f64 {
    let squares = |id| {
        // In f64: eight partial sums make the loop a vector, in one order.
        let mut lanes = [0f64; 8];
        let bucket = layout.bucket(id);
        for chunk in of(bucket)[portion.of(layout, bucket).within(layout, id)].chunks(8) {
            for (lane, value) in lanes.iter_mut().zip(chunk) {
                *lane += value.wide() * value.wide();
            }
        }
        lanes.iter().sum::<f64>()
    };
    let counted = layout.parameters().filter(|(_, parameter)| parameter.is_counted(tensor));
    counted.map(|(id, _)| squares(id)).sum()
}

/// What gradients are multiplied by so that their norm is at most `bound`; 0 is no bound.
pub fn clipping(norm: f64, bound: f64) -> f64 {
    if bound > 0.0 { (bound / (norm + 1e-6)).min(1.0) } else { 1.0 }
}

/// The moments of a rank's portion of the parameters.
pub struct Moments<T: Number> {
    portion: Portion,
    mean: Values<T>,
    square: Values<T>,
    steps: i32,
}

/// The factors of one step.
#[derive(Clone, Copy)]
struct Factors<T> {
    clipping: T,
    beta1: T,
    beta2: T,
    kept: T,
    rate: T,
    root: T,
    epsilon: T,
}

impl<T: Number> Moments<T> {
    /// Before the first step.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::error::Error::Memory) where there are no pages.
    pub fn new(layout: &Layout, portion: Portion) -> Result<Self> {
        let zeros = || Values::shares(layout, |bucket| portion.of(layout, bucket).ranks);
        Ok(Moments { portion, mean: zeros()?, square: zeros()?, steps: 0 })
    }

    /// The means of gradients and of their squares.
    pub fn values(&self) -> [&Values<T>; 2] {
        [&self.mean, &self.square]
    }

    /// Both, after `steps` steps that another run has taken, to be filled with its values.
    pub fn resume(&mut self, steps: usize) -> [&mut Values<T>; 2] {
        self.steps = i32::try_from(steps).unwrap_or(i32::MAX);
        [&mut self.mean, &mut self.square]
    }

    /// The memory of both.
    pub fn bytes(&self) -> usize {
        self.mean.bytes() + self.square.bytes()
    }

    /// Begins a step, in which gradients count times `clipping`.
    pub fn step(&mut self, adamw: &AdamW, rate: f64, clipping: f64) -> Update<'_, T> {
        self.steps += 1;
        let of = |decay: f64| Factors {
            clipping: T::of(clipping),
            beta1: T::of(adamw.beta1),
            beta2: T::of(adamw.beta2),
            kept: T::of(1.0 - rate * decay),
            rate: T::of(rate / (1.0 - adamw.beta1.powi(self.steps))),
            root: T::of(1.0 / (1.0 - adamw.beta2.powi(self.steps)).sqrt()),
            epsilon: T::of(adamw.epsilon),
        };
        let (plain, decaying) = (of(0.0), of(adamw.weight_decay));
        Update { moments: self, plain, decaying }
    }
}

/// A step under way.
pub struct Update<'a, T: Number> {
    moments: &'a mut Moments<T>,
    plain: Factors<T>,
    decaying: Factors<T>,
}

impl<T: Number> Update<'_, T> {
    /// The step of a bucket, once: `weights` move against `gradients`. Both are the share's elements.
    pub fn bucket(&mut self, layout: &Layout, bucket: usize, weights: &mut [T], gradients: &[T]) {
        let Moments { portion, mean, square, .. } = &mut *self.moments;
        let share = portion.of(layout, bucket);
        let (mean, square) = (mean.bucket_mut(bucket), square.bucket_mut(bucket));
        for (id, parameter) in layout.parameters().filter(|(id, _)| layout.bucket(*id) == bucket) {
            let factors = if parameter.decays() { self.decaying } else { self.plain };
            let at = share.within(layout, id);
            let (weights, gradients) = (&mut weights[at.clone()], &gradients[at.clone()]);
            let (mean, square) = (&mut mean[at.clone()], &mut square[at]);
            with_vectors(|| update(factors, weights, gradients, mean, square));
        }
    }
}

#[inline(always)]
fn update<T: Number>(f: Factors<T>, weights: &mut [T], gradients: &[T], mean: &mut [T], square: &mut [T]) {
    let moments = mean.iter_mut().zip(square);
    for ((weight, gradient), (mean, square)) in weights.iter_mut().zip(gradients).zip(moments) {
        let gradient = *gradient * f.clipping;
        *mean = *mean * f.beta1 + gradient * (T::ONE - f.beta1);
        *square = *square * f.beta2 + gradient * gradient * (T::ONE - f.beta2);
        *weight = *weight * f.kept - f.rate * *mean / (square.sqrt() * f.root + f.epsilon);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::{Begin, Parameter};

    #[test]
    fn the_rate_rises_and_falls() {
        let schedule = Schedule { rate: 1.0, least: 0.1, warmup: 4, steps: 104 };
        let close = |step, rate: f64| {
            assert!((schedule.at(step) - rate).abs() < 1e-12, "{step}: {}", schedule.at(step))
        };
        close(0, 0.25);
        close(3, 1.0);
        close(4, 1.0);
        close(54, 0.55);
        close(104, 0.1);
        close(1000, 0.1);
        assert_eq!(Schedule { warmup: 0, ..schedule }.at(0), 1.0);
    }

    #[test]
    fn the_norm_is_bounded() {
        assert_eq!(clipping(0.5, 1.0), 1.0);
        assert!((clipping(4.0, 1.0) * 4.0 - 1.0).abs() < 1e-6);
        assert_eq!(clipping(4.0, 0.0), 1.0);
    }

    #[test]
    fn shares_of_the_norm_add_up_and_what_all_have_is_counted_once() {
        let split = Parameter::new("split", [6, 30], Begin::Ones).split(0, 1, 2);
        let layout = Layout::new(vec![Parameter::new("same", [2, 50], Begin::Ones), split], 1000, 3);
        let gradients = Values::<f64>::begin(&layout, 0).unwrap();
        let sum = |tensor| {
            let of_rank = |rank| {
                let share = Share { rank, ranks: 3 };
                let of = |bucket| &gradients.bucket(bucket)[share.of(layout.bucket_elements(bucket))];
                square_norm(&layout, Portion { all: share, ..Portion::WHOLE }, tensor, of)
            };
            (0..3).map(of_rank).sum::<f64>()
        };
        assert_eq!((sum(0), sum(1)), (190.0, 90.0));
    }

    #[test]
    fn first_steps_are_the_rate_and_decay_is_of_matrices_alone() {
        let parameter = |rows| Parameter::new(format!("{rows}"), [rows, 4], Begin::Ones);
        let layout = Layout::new(vec![parameter(2), parameter(1)], 1, 1);
        let mut weights = Values::<f64>::begin(&layout, 0).unwrap();
        let mut gradients = Values::zeros(&layout).unwrap();
        let ids: Vec<_> = layout.parameters().map(|(id, _)| id).collect();
        ids.iter().for_each(|id| gradients.of_mut(&layout, *id).fill(-3.0));
        let norm = square_norm(&layout, Portion::WHOLE, 0, |bucket| gradients.bucket(bucket));
        assert!((norm - 12.0 * 9.0).abs() < 1e-12);
        let adamw = AdamW { weight_decay: 0.5, ..AdamW::default() };
        let mut moments = Moments::new(&layout, Portion::WHOLE).unwrap();
        let mut update = moments.step(&adamw, 0.1, 1.0);
        for bucket in 0..layout.buckets() {
            update.bucket(&layout, bucket, weights.bucket_mut(bucket), gradients.bucket(bucket));
        }
        // Mean and root of the squares are equal, so the step is the rate, against the gradient.
        for (id, expected) in ids.into_iter().zip([0.95 + 0.1, 1.1]) {
            assert!(weights.of(&layout, id).iter().all(|weight| (weight - expected).abs() < 1e-8));
        }
    }
}
