//! Data parallel: each rank has all parameters and some of the sequences, and gradients are summed over the ranks.
//!
//! Invariant: a bucket's all-reduce starts when its last gradient is finished, while backward goes on with the next
//! one; where ranks are [apart](Overlap::Apart), all start when backward is over. All ranks have the same layout, so they start the same buckets in the same order. What is summed are gradients of the
//! loss divided by the tokens of all ranks, so the sum is the gradient of the mean, also where ranks have different
//! numbers of tokens. Every rank gets the same bits.

use std::time::{Duration, Instant};

use consort::{Communicator, ReduceOp, Scope, ScopedWork};

use crate::error::{Error, Result};
use crate::number::Number;
use crate::parameters::{Gradients, Group, Layout, ParameterId, Values};
use crate::ranks::{Overlap, Tensor, ring};
use crate::timeline::{Activity, Flight, Span};

/// How an exchange of gradients went.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Exchange {
    /// Exposed communication, and waiting for slower ranks: the time in which this rank did nothing but wait for sums, weights, keys
    /// or the other ranks of a layer.
    pub exposed: Duration,
    /// The bytes that this rank sends where all ranks are in a ring.
    pub sent: usize,
    /// The sums, and the wait for the last of them.
    pub spans: Vec<Span>,
}

/// A sum that was started.
struct Sum<'a> {
    work: ScopedWork<'a>,
    flight: Flight,
}

impl Sum<'_> {
    fn look(&mut self) {
        self.flight.look(self.work.is_done());
    }
}

/// Gradients whose buckets are lent to all-reduces as they become complete.
struct Overlapped<'a, 'scope, 'env, T: Number> {
    layout: &'a Layout,
    ranks: Tensor<'a>,
    scope: &'a Scope<'a, 'scope, 'env>,
    /// Those that are not lent.
    buckets: Vec<Option<&'env mut [T]>>,
    /// For each bucket the gradients that are not finished.
    unfinished: Vec<usize>,
    /// Those that are complete, and not started.
    complete: Vec<usize>,
    started: Vec<Sum<'a>>,
}

impl<T: Number> Overlapped<'_, '_, '_, T> {
    /// Starts the sums of all buckets that are complete.
    fn start(&mut self) -> consort::Result<()> {
        for bucket in self.complete.drain(..) {
            let complete = self.buckets[bucket].take().expect("a bucket is complete once");
            let flight = Flight::now();
            let work = self.scope.all_reduce(complete, ReduceOp::Sum)?;
            self.started.push(Sum { work, flight });
        }
        Ok(())
    }
}

impl<T: Number> Gradients<T> for Overlapped<'_, '_, '_, T> {
    fn place(&mut self, id: ParameterId) -> &mut [T] {
        let bucket = self.buckets[self.layout.bucket(id)].as_mut().expect("the gradient is not finished");
        &mut bucket[self.layout.range(id)]
    }

    fn finished(&mut self, id: ParameterId) -> Result<()> {
        let (ranks, layout) = (self.ranks, self.layout);
        layout.parameter(id).complete(self.place(id), &ranks)?;
        let bucket = layout.bucket(id);
        self.unfinished[bucket] -= 1;
        if self.unfinished[bucket] == 0 && layout.group(bucket) == Group::All {
            self.complete.push(bucket);
            if ranks.overlap() == Overlap::Beside {
                self.start()?;
            }
        }
        self.started.iter_mut().for_each(Sum::look);
        Ok(())
    }
}

/// Runs `backward`, which adds gradients to `values`, and sums them over the ranks of `comm`, which have the same parameters;
/// those of `ranks` share each layer. Gradients of experts that not all of these have are left for [`sum_experts`]. The step
/// began at `step`.
///
/// # Errors
/// What `backward` or an all-reduce ends with.
///
/// # Panics
/// If `backward` leaves a gradient unfinished.
pub fn exchange<T: Number>(
    (comm, ranks): (&Communicator, Tensor<'_>),
    layout: &Layout,
    values: &mut Values<T>,
    step: Instant,
    backward: impl FnOnce(&mut dyn Gradients<T>) -> Result<()>,
) -> Result<Exchange> {
    let buckets: Vec<Option<&mut [T]>> = values.buckets_mut().map(Some).collect();
    let (unfinished, count) = (layout.members(), layout.buckets());
    comm.scope(|scope| {
        let (complete, started) = (Vec::new(), Vec::with_capacity(count));
        let mut gradients = Overlapped { layout, ranks, scope, buckets, unfinished, complete, started };
        if let Err(error) = backward(&mut gradients) {
            return Ok(Err(error));
        }
        assert!(gradients.unfinished.iter().all(|left| *left == 0), "every gradient is finished");
        gradients.started.iter_mut().for_each(Sum::look);
        let begun = Instant::now();
        gradients.start()?;
        let mut spans = Vec::with_capacity(count + 1);
        for sum in &mut gradients.started {
            sum.work.wait()?;
            sum.look();
            spans.push(sum.flight.span(Activity::Sum, step));
        }
        let end = Instant::now();
        spans.push(Span::new(Activity::Wait, step, begun, end));
        let summed = (0..count).filter(|bucket| layout.group(*bucket) == Group::All);
        let sent = summed.map(|bucket| 2 * ring::<T>(layout.bucket_elements(bucket), comm.size())).sum();
        Ok(Ok(Exchange { exposed: end - begun, sent, spans }))
    })
    .map_err(Error::from)
    .flatten()
}

/// After [`exchange`], sums the gradients of experts over the ranks of `comm`, which have the same ones.
///
/// # Errors
/// What an all-reduce ends with.
pub fn sum_experts<T: Number>(
    comm: &Communicator,
    layout: &Layout,
    values: &mut Values<T>,
    (step, exchange): (Instant, &mut Exchange),
) -> Result<()> {
    let begun = Instant::now();
    for bucket in (0..layout.buckets()).filter(|bucket| layout.group(*bucket) == Group::Experts) {
        comm.all_reduce(values.bucket_mut(bucket), ReduceOp::Sum)?;
        exchange.sent += 2 * ring::<T>(layout.bucket_elements(bucket), comm.size());
    }
    let end = Instant::now();
    exchange.exposed += end - begun;
    exchange.spans.push(Span::new(Activity::Wait, step, begun, end));
    Ok(())
}

/// The sequences of rank `rank` of `size` in a batch: as equal shares as there are.
pub fn share(batch: usize, rank: usize, size: usize) -> std::ops::Range<usize> {
    batch * rank / size..batch * (rank + 1) / size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_a_partition() {
        for (batch, size) in [(8, 2), (7, 3), (3, 3)] {
            let shares: Vec<_> = (0..size).map(|rank| share(batch, rank, size)).collect();
            assert_eq!((shares[0].start, shares[size - 1].end), (0, batch));
            assert!(shares.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert!(shares.iter().all(|share| !share.is_empty()));
        }
    }
}
