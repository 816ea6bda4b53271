//! What a rank has of weights, gradients and moments, and what it exchanges with the ranks that have the same parameters.
//!
//! Invariant: after an exchange each rank has the sums of its share of the gradients at least, and the norm is taken of the shares, so
//! that it is the same bits whichever rank has the others. Absent: how the share is kept, which is a module of its own.

use std::ops::{Deref, Range};
use std::time::Instant;

use consort::Communicator;

use crate::error::Result;
use crate::number::Number;
use crate::optimizer::{AdamW, Moments, Portion, Share, square_norm};
use crate::parallel::data::{self, Exchange, Replicas};
use crate::parallel::zero::{Shares, Zero};
use crate::parameters::{Gradients, Layout, Parameter, Present, Twin, Values, Weights};
use crate::ranks::{Overlap, Tensor};

/// The memory of a rank in bytes, with what lies between buckets and the largest buffers that there were.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// Of the weights.
    pub weights: usize,
    /// Of the gradients.
    pub gradients: usize,
    /// Of both moments.
    pub moments: usize,
}

/// What a rank has between two steps, by name: with the number of steps, all that the next one depends on.
pub const STATE: [&str; 3] = ["weights", "mean", "square"];

/// Weights and gradients.
enum Kept<T: Number> {
    All { weights: Values<T>, gradients: Values<T> },
    Shares(Box<Shares<T>>),
}

/// What a rank has of weights, gradients and moments.
pub struct Replica<T: Number> {
    kept: Kept<T>,
    moments: Moments<T>,
    portion: Portion,
    /// Room for a gradient of another rank.
    theirs: Vec<T>,
}

/// Weights that are all here: the rank's own, or a copy.
pub enum Gathered<'a, T: Number> {
    /// Those that it computes with.
    Own(&'a Values<T>),
    /// Those of shares.
    Copy(Values<T>),
}

impl<T: Number> Deref for Gathered<'_, T> {
    type Target = Values<T>;

    fn deref(&self) -> &Values<T> {
        match self {
            Gathered::Own(values) => values,
            Gathered::Copy(values) => values,
        }
    }
}

impl<T: Number> Replica<T> {
    /// Before the first step. `portion` is this rank's; one that has nothing in common with others keeps all.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::error::Error::Memory).
    pub fn new(
        layout: &Layout,
        seed: u64,
        (zero, overlap): (Zero, Overlap),
        portion: Portion,
    ) -> Result<Self> {
        if zero == Zero::Nothing || portion.all.ranks == 1 {
            let kept = Kept::All { weights: Values::begin(layout, seed)?, gradients: Values::zeros(layout)? };
            let moments = Moments::new(layout, Portion::WHOLE)?;
            return Ok(Replica { kept, moments, portion, theirs: Vec::new() });
        }
        let kept = Kept::Shares(Box::new(Shares::new(layout, seed, portion, (zero, overlap))?));
        Ok(Replica { kept, moments: Moments::new(layout, portion)?, portion, theirs: Vec::new() })
    }

    /// Runs `pass`, forward and backward of a step, with the weights and a place for gradients, and sums these over the ranks that have
    /// the same parameters; those of `ranks` share each layer. The step began at `step`.
    ///
    /// # Errors
    /// What `pass` or an exchange ends with.
    ///
    /// # Panics
    /// If `pass` leaves a gradient unfinished.
    pub fn exchange(
        &mut self,
        replicas: Replicas<'_>,
        (layout, ranks): (&Layout, Tensor<'_>),
        step: Instant,
        pass: impl FnOnce(&mut dyn Weights<T>, &mut dyn Gradients<T>) -> Result<()>,
    ) -> Result<Exchange> {
        let (weights, gradients) = match &mut self.kept {
            Kept::Shares(shares) => return shares.exchange(replicas, (layout, ranks), step, pass),
            Kept::All { weights, gradients } => (weights, gradients),
        };
        gradients.buckets_mut().for_each(|bucket| bucket.fill(T::ZERO));
        let mut present = Present::new(layout, weights);
        data::exchange((replicas, ranks), layout, gradients, step, |sums| pass(&mut present, sums))
    }

    /// After an exchange, adds up the gradients of what the first and the last of the ranks of a pipeline both have, if there is
    /// such: both get the same bits. The bytes that this rank sent.
    ///
    /// # Errors
    /// What the message ends with.
    pub fn join_twins(&mut self, neighbours: &Communicator, layout: &Layout) -> Result<usize> {
        let (Kept::All { gradients, .. }, theirs) = (&mut self.kept, &mut self.theirs) else { return Ok(0) };
        let mut sent = 0;
        for (id, parameter) in layout.parameters() {
            let Some(twin) = parameter.twin else { continue };
            let other = if twin == Twin::First { neighbours.size() - 1 } else { 0 };
            let own = gradients.of_mut(layout, id);
            theirs.resize(own.len(), T::ZERO);
            neighbours.exchange_into(own, other, theirs, other)?;
            own.iter_mut().zip(&*theirs).for_each(|(own, other)| *own += *other);
            sent += size_of_val(own);
        }
        Ok(sent)
    }

    /// The square of the norm of this rank's share of the gradients; it is number `tensor` of those that share each layer.
    pub fn square_norm(&self, layout: &Layout, tensor: usize) -> f64 {
        square_norm(layout, self.portion, tensor, |bucket| match &self.kept {
            Kept::All { gradients, .. } => {
                let all = gradients.bucket(bucket);
                &all[self.portion.of(layout, bucket).of(all.len())]
            }
            Kept::Shares(shares) => shares.gradients(bucket),
        })
    }

    /// Changes the weights. Those of other ranks' shares may come until they are entered; what is waited for here is added to
    /// `exchange`, of the step that began at `step`.
    ///
    /// # Errors
    /// What an all-gather ends with.
    pub fn update(
        &mut self,
        replicas: Replicas<'_>,
        layout: &Layout,
        adamw: &AdamW,
        (rate, clipping): (f64, f64),
        of_step: (Instant, &mut Exchange),
    ) -> Result<()> {
        let mut update = self.moments.step(adamw, rate, clipping);
        match &mut self.kept {
            Kept::Shares(shares) => shares.update(replicas, layout, update, of_step),
            Kept::All { weights, gradients } => {
                for bucket in 0..layout.buckets() {
                    update.bucket(layout, bucket, weights.bucket_mut(bucket), gradients.bucket(bucket));
                }
                Ok(())
            }
        }
    }

    /// All weights, on each rank. All ranks of `replicas` call it.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::error::Error::Memory); what an all-gather ends with.
    pub fn weights(&mut self, replicas: Replicas<'_>, layout: &Layout) -> Result<Gathered<'_, T>> {
        match &mut self.kept {
            Kept::All { weights, .. } => Ok(Gathered::Own(weights)),
            Kept::Shares(shares) => Ok(Gathered::Copy(shares.whole(replicas, layout)?)),
        }
    }

    /// Shows `each` this rank's share of each parameter's [`STATE`]: the state's name, the parameter, which of the elements that
    /// ranks with the same parameters have, and these. It is the same share whether or not the rank has the others.
    ///
    /// # Errors
    /// What an all-gather that was under way ends with.
    pub fn state(
        &mut self,
        layout: &Layout,
        mut each: impl FnMut(&'static str, &Parameter, Range<usize>, &[T]),
    ) -> Result<()> {
        let (portion, [mean, square]) = (self.portion, self.moments.values());
        for bucket in 0..layout.buckets() {
            let share = portion.of(layout, bucket);
            let (weights, moments) = match &mut self.kept {
                Kept::All { weights, .. } => {
                    let own = share.of(layout.bucket_elements(bucket));
                    let of_moments = [mean, square].map(|of| &of.bucket(bucket)[own.clone()]);
                    (&weights.bucket(bucket)[own], of_moments)
                }
                Kept::Shares(shares) => (shares.weights(bucket)?, [mean, square].map(|of| of.bucket(bucket))),
            };
            for (id, parameter) in layout.parameters().filter(|(id, _)| layout.bucket(*id) == bucket) {
                let (elements, within) = (share.elements(layout, id), share.within(layout, id));
                for (name, values) in STATE.into_iter().zip([weights, moments[0], moments[1]]) {
                    if !elements.is_empty() {
                        each(name, parameter, elements.clone(), &values[within.clone()]);
                    }
                }
            }
        }
        Ok(())
    }

    /// Goes on after `steps` steps, with what `fill` writes of each parameter's [`STATE`]: it is given the state's name, the
    /// parameter, which of its elements this rank keeps, and their place.
    ///
    /// # Errors
    /// What `fill` ends with, or an all-gather that was under way: the state is of no use then.
    pub fn resume(
        &mut self,
        layout: &Layout,
        steps: usize,
        mut fill: impl FnMut(&'static str, &Parameter, Range<usize>, &mut [T]) -> Result<()>,
    ) -> Result<()> {
        let portion = self.portion;
        let mut put = |name, bucket, share: Share, values: &mut [T]| -> Result<()> {
            for (id, parameter) in layout.parameters().filter(|(id, _)| layout.bucket(*id) == bucket) {
                let (elements, within) = (share.elements(layout, id), share.within(layout, id));
                if !elements.is_empty() {
                    fill(name, parameter, elements, &mut values[within])?;
                }
            }
            Ok(())
        };
        for bucket in 0..layout.buckets() {
            let own = portion.of(layout, bucket);
            let of_moments = if matches!(self.kept, Kept::All { .. }) { Share::WHOLE } else { own };
            match &mut self.kept {
                Kept::All { weights, .. } => {
                    put(STATE[0], bucket, Share::WHOLE, weights.bucket_mut(bucket))?;
                }
                Kept::Shares(shares) => shares.put(bucket, |weights, are_all| {
                    put(STATE[0], bucket, if are_all { Share::WHOLE } else { own }, weights)
                })?,
            }
            for (name, values) in STATE[1..].iter().zip(self.moments.resume(steps)) {
                put(name, bucket, of_moments, values.bucket_mut(bucket))?;
            }
        }
        Ok(())
    }

    /// Weights and moments where a rank has all.
    pub fn into_all(self) -> Option<(Values<T>, Moments<T>)> {
        match self.kept {
            Kept::All { weights, .. } => Some((weights, self.moments)),
            Kept::Shares(_) => None,
        }
    }

    /// All weights, to be changed before the first step, and all gradients of the last; `None` where a rank has its share alone.
    pub fn all_mut(&mut self) -> Option<(&mut Values<T>, &Values<T>)> {
        match &mut self.kept {
            Kept::All { weights, gradients } => Some((weights, gradients)),
            Kept::Shares(_) => None,
        }
    }

    /// The memory that this rank uses.
    pub fn memory(&self) -> Memory {
        let (weights, gradients) = match &self.kept {
            Kept::All { weights, gradients } => (weights.bytes(), gradients.bytes()),
            Kept::Shares(shares) => shares.bytes(),
        };
        Memory { weights, gradients, moments: self.moments.bytes() }
    }
}
