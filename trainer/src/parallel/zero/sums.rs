//! Gradients where a rank keeps the sums of its share.
//!
//! Invariant: a bucket is open from the first gradient that is added to it until its last is complete, and its buffer belongs to a
//! reduce-scatter then. In stage 1 a bucket has its buffer for good, and is complete once in a step. From stage 2 on buffers
//! go around: a bucket is complete once in each backward pass, its share is added to the sums, and the next bucket takes the buffer.
//! At most [`UNDER_WAY`] reduce-scatters have buffers, so a rank that is ahead waits. Where ranks are [apart](Overlap::Apart), those
//! of stage 1 start when backward is over, and others are waited for as soon as they are started.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use consort::{ReduceOp, Work};

use super::pool::Pool;
use crate::error::Result;
use crate::number::Number;
use crate::optimizer::{Portion, Share};
use crate::parallel::data::Replicas;
use crate::parameters::{Gradients, Layout, ParameterId, Values};
use crate::ranks::{Overlap, Tensor, ring};
use crate::timeline::Flight;

/// Reduce-scatters that have buffers, where these go around.
const UNDER_WAY: usize = 2;

/// A bucket that is being summed.
struct Sum<T: Number> {
    bucket: usize,
    work: Work<Vec<T>>,
    flight: Flight,
}

/// The gradients of a rank that keeps its share.
pub(super) struct Sums<T: Number> {
    /// Of each bucket.
    shares: Vec<Share>,
    /// Of the buckets that are not being summed. In stage 1 all have one at the end of a step.
    open: Vec<Option<Vec<T>>>,
    /// For each bucket the gradients that are not complete.
    missing: Vec<usize>,
    /// Those that are complete, and not started.
    complete: VecDeque<usize>,
    started: VecDeque<Sum<T>>,
    /// From stage 2 on, the sums of this rank's share.
    kept: Option<Values<T>>,
    pool: Pool<T>,
    /// Of the sums of this step that are over.
    pub(super) flights: Vec<Flight>,
    /// The time that this rank waited for them, and the bytes that it sent.
    pub(super) waited: Duration,
    pub(super) sent: usize,
}

impl<T: Number> Sums<T> {
    /// Before the first step. `keeps_all` is stage 1.
    pub(super) fn new(layout: &Layout, portion: Portion, keeps_all: bool) -> Result<Self> {
        let largest = (0..layout.buckets()).map(|bucket| layout.bucket_elements(bucket)).max();
        let shares = portion.shares(layout);
        let of_sums = || Values::shares(layout, |bucket| shares[bucket].ranks);
        Ok(Sums {
            open: (0..layout.buckets()).map(|_| None).collect(),
            missing: layout.members(),
            complete: VecDeque::new(),
            started: VecDeque::new(),
            kept: if keeps_all { None } else { Some(of_sums()?) },
            shares,
            pool: Pool::new(if keeps_all { 0 } else { largest.unwrap_or_default() }),
            flights: Vec::new(),
            waited: Duration::ZERO,
            sent: 0,
        })
    }

    /// Begins a step: all gradients are zero.
    pub(super) fn begin(&mut self) {
        self.open.iter_mut().flatten().for_each(|buffer| buffer.fill(T::ZERO));
        if let Some(kept) = &mut self.kept {
            kept.buckets_mut().for_each(|share| share.fill(T::ZERO));
        }
        (self.waited, self.sent) = (Duration::ZERO, 0);
        self.flights.clear();
    }

    /// Takes note of sums that are over.
    pub(super) fn look(&mut self) {
        self.started.iter_mut().for_each(|sum| sum.flight.look(sum.work.is_done()));
    }

    /// Starts the sums of all buckets that are complete.
    fn start(&mut self, replicas: Replicas<'_>, layout: &Layout) -> Result<()> {
        while let Some(bucket) = self.complete.pop_front() {
            let buffer = self.open[bucket].take().expect("the bucket was opened by its gradients");
            let Some(comm) = replicas.of(layout.group(bucket)) else {
                self.keep(bucket, buffer);
                continue;
            };
            self.sent += ring::<T>(buffer.len(), comm.size());
            let flight = Flight::now();
            let work = comm.start_reduce_scatter_in_place(buffer, ReduceOp::Sum)?;
            self.started.push_back(Sum { bucket, work, flight });
        }
        Ok(())
    }

    /// Waits until at most `left` sums are under way.
    fn settle(&mut self, left: usize) -> Result<()> {
        let begun = Instant::now();
        while self.started.len() > left {
            let Some(Sum { bucket, work, mut flight }) = self.started.pop_front() else { break };
            let buffer = work.wait()?;
            flight.look(true);
            self.flights.push(flight);
            self.keep(bucket, buffer);
        }
        self.waited += begun.elapsed();
        Ok(())
    }

    /// Keeps of a bucket that is summed what this rank needs.
    fn keep(&mut self, bucket: usize, buffer: Vec<T>) {
        let Some(kept) = &mut self.kept else {
            self.open[bucket] = Some(buffer);
            return;
        };
        let sums = &buffer[self.shares[bucket].of(buffer.len())];
        kept.bucket_mut(bucket).iter_mut().zip(sums).for_each(|(kept, sum)| *kept += *sum);
        self.pool.give(buffer);
    }

    /// Waits until all sums are over, and starts those that are not.
    ///
    /// # Panics
    /// If a gradient was left unfinished.
    pub(super) fn end(&mut self, replicas: Replicas<'_>, layout: &Layout) -> Result<()> {
        self.start(replicas, layout)?;
        self.settle(0)?;
        let is_closed = |open: &Option<Vec<T>>| open.is_some() == self.kept.is_none();
        assert!(self.open.iter().all(is_closed), "every gradient is finished");
        Ok(())
    }

    /// This rank's share of a bucket, after the sums.
    ///
    /// # Panics
    /// If the bucket is not summed.
    pub(super) fn bucket(&self, bucket: usize) -> &[T] {
        match (&self.kept, &self.open[bucket]) {
            (Some(kept), _) => kept.bucket(bucket),
            (None, Some(all)) => &all[self.shares[bucket].of(all.len())],
            (None, None) => panic!("bucket {bucket} is summed before its sums are read"),
        }
    }

    /// The memory of the gradients.
    pub(super) fn bytes(&self) -> usize {
        self.kept.as_ref().map_or(0, Values::bytes) + self.pool.bytes()
    }
}

/// Where a backward pass leaves gradients whose sums are shared.
pub(super) struct Summed<'a, T: Number> {
    pub(super) sums: &'a mut Sums<T>,
    pub(super) replicas: Replicas<'a>,
    pub(super) layout: &'a Layout,
    pub(super) ranks: Tensor<'a>,
}

impl<T: Number> Summed<'_, T> {
    /// A parameter's gradient, of one pass or all, is complete: starts its bucket's sum if it was the last.
    fn complete(&mut self, id: ParameterId) -> Result<()> {
        let (ranks, layout, bucket) = (self.ranks, self.layout, self.layout.bucket(id));
        layout.parameter(id).complete(self.place(id), &ranks)?;
        let Summed { sums, replicas, .. } = self;
        sums.missing[bucket] -= 1;
        if sums.missing[bucket] == 0 {
            sums.missing[bucket] = layout.parameters().filter(|(id, _)| layout.bucket(*id) == bucket).count();
            sums.complete.push_back(bucket);
            match (ranks.overlap(), sums.kept.is_some()) {
                (Overlap::Beside, true) => {
                    sums.settle(UNDER_WAY - 1)?;
                    sums.start(*replicas, layout)?;
                }
                (Overlap::Beside, false) => sums.start(*replicas, layout)?,
                (Overlap::Apart, true) => {
                    sums.start(*replicas, layout)?;
                    sums.settle(0)?;
                }
                (Overlap::Apart, false) => {}
            }
        }
        sums.look();
        Ok(())
    }
}

impl<T: Number> Gradients<T> for Summed<'_, T> {
    fn place(&mut self, id: ParameterId) -> &mut [T] {
        let bucket = self.layout.bucket(id);
        let Sums { open, pool, .. } = &mut *self.sums;
        let buffer = open[bucket].get_or_insert_with(|| {
            let mut buffer = pool.take(self.layout.bucket_elements(bucket));
            buffer.fill(T::ZERO);
            buffer
        });
        &mut buffer[self.layout.range(id)]
    }

    fn finished(&mut self, id: ParameterId) -> Result<()> {
        self.complete(id)
    }

    fn added(&mut self, id: ParameterId) -> Result<()> {
        if self.sums.kept.is_some() { self.complete(id) } else { Ok(()) }
    }
}
