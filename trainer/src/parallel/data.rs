//! Data parallel: each rank has all parameters and some of the sequences, and gradients are summed over the ranks.
//!
//! Invariant: a bucket's all-reduce starts when its last gradient is finished, while backward goes on with the next
//! one; where ranks are [apart](Overlap::Apart), all start when backward is over. A sum is over the ranks that have the same, which for
//! experts may be fewer. All ranks have layouts of the same lengths, so they start the same buckets in the same order. What is summed are gradients of the
//! loss divided by the tokens of all ranks, so the sum is the gradient of the mean, also where ranks have different
//! numbers of tokens. Every rank gets the same bits.

use std::time::{Duration, Instant};

use consort::{Communicator, ReduceOp, ScopedWork};

use crate::error::{Error, Result};
use crate::mesh::Mesh;
use crate::number::Number;
use crate::parameters::{Gradients, Group, Layout, Local, ParameterId, Values};
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

/// The ranks that have the same parameters; `None` where a rank is alone.
#[derive(Clone, Copy, Default)]
pub struct Replicas<'a> {
    /// The same but for experts: with other tokens.
    pub all: Option<&'a Communicator>,
    /// Those of them that have the same experts.
    pub experts: Option<&'a Communicator>,
}

impl<'a> Replicas<'a> {
    /// Those of a mesh.
    pub fn new(mesh: &'a Mesh<'_>) -> Self {
        Replicas { all: mesh.replicas(), experts: mesh.replicas_of_experts() }
    }

    /// The ranks that have the same of what a group has.
    pub fn of(&self, group: Group) -> Option<&'a Communicator> {
        match group {
            Group::All => self.all,
            Group::Experts => self.experts,
        }
    }
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
struct Overlapped<'a, 'env, T: Number> {
    layout: &'a Layout,
    ranks: Tensor<'a>,
    /// Starts the sum of a bucket over the ranks of its group.
    start: &'a dyn Fn(Group, &'env mut [T]) -> consort::Result<ScopedWork<'a>>,
    /// Whether a group has several ranks.
    is_summed: &'a dyn Fn(Group) -> bool,
    /// Those that are not lent.
    buckets: Vec<Option<&'env mut [T]>>,
    /// For each bucket the gradients that are not finished.
    unfinished: Vec<usize>,
    /// Those that are complete, and not started.
    complete: Vec<usize>,
    started: Vec<Sum<'a>>,
}

impl<T: Number> Overlapped<'_, '_, T> {
    /// Starts the sums of all buckets that are complete.
    fn start(&mut self) -> consort::Result<()> {
        for bucket in self.complete.drain(..) {
            let complete = self.buckets[bucket].take().expect("a bucket is complete once");
            let flight = Flight::now();
            let work = (self.start)(self.layout.group(bucket), complete)?;
            self.started.push(Sum { work, flight });
        }
        Ok(())
    }
}

impl<T: Number> Gradients<T> for Overlapped<'_, '_, T> {
    fn place(&mut self, id: ParameterId) -> &mut [T] {
        let bucket = self.buckets[self.layout.bucket(id)].as_mut().expect("the gradient is not finished");
        &mut bucket[self.layout.range(id)]
    }

    fn finished(&mut self, id: ParameterId) -> Result<()> {
        let (ranks, layout) = (self.ranks, self.layout);
        layout.parameter(id).complete(self.place(id), &ranks)?;
        let bucket = layout.bucket(id);
        self.unfinished[bucket] -= 1;
        if self.unfinished[bucket] == 0 && (self.is_summed)(layout.group(bucket)) {
            self.complete.push(bucket);
            if ranks.overlap() == Overlap::Beside {
                self.start()?;
            }
        }
        self.started.iter_mut().for_each(Sum::look);
        Ok(())
    }
}

/// Runs `backward`, which adds gradients to `values`, and sums them over the ranks of `replicas`; those of `ranks` share each
/// layer. The step began at `step`.
///
/// # Errors
/// What `backward` or an all-reduce ends with.
///
/// # Panics
/// If `backward` leaves a gradient unfinished.
pub fn exchange<T: Number>(
    (replicas, ranks): (Replicas<'_>, Tensor<'_>),
    layout: &Layout,
    values: &mut Values<T>,
    step: Instant,
    backward: impl FnOnce(&mut dyn Gradients<T>) -> Result<()>,
) -> Result<Exchange> {
    let Some(all) = replicas.all else {
        backward(&mut Local::new(layout, values, ranks))?;
        return Ok(Exchange::default());
    };
    let size = |group| replicas.of(group).map_or(1, Communicator::size);
    let is_summed = |group| size(group) > 1;
    let buckets: Vec<Option<&mut [T]>> = values.buckets_mut().map(Some).collect();
    let (unfinished, is_summed) = (layout.members(), &is_summed);
    let (complete, started) = (Vec::new(), Vec::with_capacity(layout.buckets()));
    let mut exchange = all
        .scope(|scope| match replicas.experts {
            None => {
                let start = &|_, bucket| scope.all_reduce(bucket, ReduceOp::Sum);
                Ok(sums(
                    Overlapped { layout, ranks, start, is_summed, buckets, unfinished, complete, started },
                    step,
                    backward,
                ))
            }
            Some(experts) => experts.scope(|of_experts| {
                let start = &|group, bucket| match group {
                    Group::All => scope.all_reduce(bucket, ReduceOp::Sum),
                    Group::Experts => of_experts.all_reduce(bucket, ReduceOp::Sum),
                };
                Ok(sums(
                    Overlapped { layout, ranks, start, is_summed, buckets, unfinished, complete, started },
                    step,
                    backward,
                ))
            }),
        })
        .map_err(Error::from)
        .flatten()?;
    let sent = |bucket| 2 * ring::<T>(layout.bucket_elements(bucket), size(layout.group(bucket)));
    exchange.sent = (0..layout.buckets()).map(sent).sum();
    Ok(exchange)
}

/// Runs `backward` and waits for the sums that it starts.
fn sums<T: Number>(
    mut gradients: Overlapped<'_, '_, T>,
    step: Instant,
    backward: impl FnOnce(&mut dyn Gradients<T>) -> Result<()>,
) -> Result<Exchange> {
    backward(&mut gradients)?;
    assert!(gradients.unfinished.iter().all(|left| *left == 0), "every gradient is finished");
    gradients.started.iter_mut().for_each(Sum::look);
    let begun = Instant::now();
    gradients.start()?;
    let mut spans = Vec::with_capacity(gradients.started.len() + 1);
    for sum in &mut gradients.started {
        sum.work.wait()?;
        sum.look();
        spans.push(sum.flight.span(Activity::Sum, step));
    }
    let end = Instant::now();
    spans.push(Span::new(Activity::Wait, step, begun, end));
    Ok(Exchange { exposed: end - begun, sent: 0, spans })
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
