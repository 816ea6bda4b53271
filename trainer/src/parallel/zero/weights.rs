//! Weights where a rank changes its share.
//!
//! Invariant: a bucket is here, coming, or away. In stages 1 and 2 all are here, but for those whose all-gather a step has started, which is
//! waited for when a unit of the bucket is entered. In stage 3 a rank keeps its share of each bucket, and a bucket is here from when
//! its unit is entered until it is left. What is entered next is fetched meanwhile: the first step shows the order. All ranks
//! enter in the same order, so they start the same calls. A bucket that is on this rank alone is read where it is kept. Where ranks are
//! [apart](Overlap::Apart), all-gathers are waited for as soon as they are started, and nothing is fetched before it is entered.

use std::time::{Duration, Instant};

use consort::{Communicator, Work};

use super::pool::Pool;
use crate::error::Result;
use crate::number::Number;
use crate::optimizer::{Portion, Share};
use crate::parallel::data::Replicas;
use crate::parameters::{Layout, ParameterId, Pass, Unit, Values, Weights};
use crate::ranks::{Overlap, ring};
use crate::timeline::Flight;

/// A bucket's weights.
enum Bucket<T: Number> {
    Here(Vec<T>),
    Coming(Work<Vec<T>>, Flight),
    Away,
}

/// The order in which a step enters units.
#[derive(Default)]
struct Order {
    units: Vec<Unit>,
    at: usize,
    is_known: bool,
}

impl Order {
    fn enter(&mut self, unit: Unit) {
        if !self.is_known {
            self.units.push(unit);
            self.at += 1;
        } else if self.next() == Some(unit) {
            self.at += 1;
        }
    }

    fn next(&self) -> Option<Unit> {
        self.units.get(self.at).copied()
    }

    fn begin(&mut self) {
        (self.at, self.is_known) = (0, true);
    }
}

/// The weights of a rank that changes its share.
pub(super) struct Changed<T: Number> {
    /// Of each bucket.
    shares: Vec<Share>,
    /// In stage 3, this rank's share.
    kept: Option<Values<T>>,
    buckets: Vec<Bucket<T>>,
    pool: Pool<T>,
    order: Order,
    overlap: Overlap,
    /// Of the all-gathers that came in this step.
    pub(super) flights: Vec<Flight>,
    /// The time that this rank waited for them, and the bytes that it sent.
    pub(super) waited: Duration,
    pub(super) sent: usize,
}

impl<T: Number> Changed<T> {
    /// What training begins with. `keeps_all` is stage 1 or 2.
    pub(super) fn new(
        layout: &Layout,
        seed: u64,
        portion: Portion,
        (keeps_all, overlap): (bool, Overlap),
    ) -> Result<Self> {
        let largest = (0..layout.buckets()).map(|bucket| layout.bucket_elements(bucket)).max();
        let shares = portion.shares(layout);
        let own = || Values::shares(layout, |bucket| shares[bucket].ranks);
        let mut weights = Changed {
            kept: if keeps_all { None } else { Some(own()?) },
            shares,
            buckets: Vec::new(),
            pool: Pool::new(if keeps_all { 0 } else { largest.unwrap_or_default() }),
            order: Order::default(),
            overlap,
            flights: Vec::new(),
            waited: Duration::ZERO,
            sent: 0,
        };
        for bucket in 0..layout.buckets() {
            let mut all = weights.pool.take(layout.bucket_elements(bucket));
            all.fill(T::ZERO);
            layout.begin(bucket, seed, &mut all);
            let begun = match &mut weights.kept {
                None => Bucket::Here(all),
                Some(kept) => {
                    kept.bucket_mut(bucket).copy_from_slice(&all[weights.shares[bucket].of(all.len())]);
                    weights.pool.give(all);
                    Bucket::Away
                }
            };
            weights.buckets.push(begun);
        }
        Ok(weights)
    }

    /// Begins the account of a step.
    pub(super) fn begin(&mut self) {
        (self.waited, self.sent) = (Duration::ZERO, 0);
        self.flights.clear();
    }

    /// Starts the all-gather of a bucket; `all` has this rank's share in its place.
    fn gather(&mut self, comm: &Communicator, bucket: usize, all: Vec<T>) -> Result<()> {
        self.sent += ring::<T>(all.len(), comm.size());
        let flight = Flight::now();
        self.buckets[bucket] = Bucket::Coming(comm.start_all_gather(all)?, flight);
        Ok(())
    }

    /// Starts to bring the buckets of a unit that are away.
    fn fetch(
        &mut self,
        replicas: Replicas<'_>,
        layout: &Layout,
        buckets: std::ops::Range<usize>,
    ) -> Result<()> {
        for bucket in buckets {
            let (Some(kept), Bucket::Away) = (&self.kept, &self.buckets[bucket]) else { continue };
            let Some(comm) = replicas.of(layout.group(bucket)) else { continue };
            let elements = layout.bucket_elements(bucket);
            let mut all = self.pool.take(elements);
            all[self.shares[bucket].of(elements)].copy_from_slice(kept.bucket(bucket));
            self.gather(comm, bucket, all)?;
        }
        Ok(())
    }

    /// Takes a bucket, after it has come; `None` if it is away.
    fn take(&mut self, bucket: usize) -> Result<Option<Vec<T>>> {
        match std::mem::replace(&mut self.buckets[bucket], Bucket::Away) {
            Bucket::Here(all) => Ok(Some(all)),
            Bucket::Away => Ok(None),
            Bucket::Coming(work, mut flight) => {
                flight.look(work.is_done());
                let begun = Instant::now();
                let all = work.wait()?;
                flight.look(true);
                self.waited += begun.elapsed();
                self.flights.push(flight);
                Ok(Some(all))
            }
        }
    }

    /// Changes this rank's share of each bucket by `change`, and has the other ranks' come; the end of a step.
    pub(super) fn update(
        &mut self,
        replicas: Replicas<'_>,
        layout: &Layout,
        mut change: impl FnMut(usize, &mut [T]),
    ) -> Result<()> {
        // What the next forward needs first comes first.
        for bucket in (0..layout.buckets()).rev() {
            let all = self.take(bucket)?;
            match (&mut self.kept, all) {
                (None, Some(mut all)) => {
                    let own = self.shares[bucket].of(all.len());
                    change(bucket, &mut all[own]);
                    match replicas.of(layout.group(bucket)).filter(|_| self.overlap == Overlap::Beside) {
                        Some(comm) => self.gather(comm, bucket, all)?,
                        None => self.buckets[bucket] = Bucket::Here(all),
                    }
                }
                (Some(kept), before) => {
                    change(bucket, kept.bucket_mut(bucket));
                    before.into_iter().for_each(|before| self.pool.give(before));
                }
                (None, None) => {}
            }
        }
        self.order.begin();
        if self.overlap == Overlap::Apart {
            return if self.kept.is_none() { self.gather_all(replicas, layout) } else { Ok(()) };
        }
        self.order.next().map_or(Ok(()), |first| self.fetch(replicas, layout, layout.unit(first)))
    }

    /// Has all buckets come, in the order of [`Changed::update`], and waits for them.
    fn gather_all(&mut self, replicas: Replicas<'_>, layout: &Layout) -> Result<()> {
        for bucket in (0..self.buckets.len()).rev() {
            let Some(comm) = replicas.of(layout.group(bucket)) else { continue };
            if let Some(all) = self.take(bucket)? {
                self.gather(comm, bucket, all)?;
            }
        }
        (0..self.buckets.len()).rev().try_for_each(|bucket| self.arrive(bucket))
    }

    /// Waits until a bucket that is coming is here.
    fn arrive(&mut self, bucket: usize) -> Result<()> {
        if let Some(all) = self.take(bucket)? {
            self.buckets[bucket] = Bucket::Here(all);
        }
        Ok(())
    }

    /// This rank's share of a bucket.
    pub(super) fn own(&mut self, bucket: usize) -> Result<&[T]> {
        if self.kept.is_none() {
            self.arrive(bucket)?;
        }
        match (&self.kept, &self.buckets[bucket]) {
            (Some(kept), _) => Ok(kept.bucket(bucket)),
            (None, Bucket::Here(all)) => Ok(&all[self.shares[bucket].of(all.len())]),
            (None, _) => unreachable!("a rank that keeps all has a bucket, or waits for it"),
        }
    }

    /// Has `fill` write what this rank keeps of a bucket, and tells it whether that is all.
    pub(super) fn put(
        &mut self,
        bucket: usize,
        fill: impl FnOnce(&mut [T], bool) -> Result<()>,
    ) -> Result<()> {
        let all = self.take(bucket)?;
        match (&mut self.kept, all) {
            (Some(kept), before) => {
                // What was fetched is no longer what it was.
                before.into_iter().for_each(|before| self.pool.give(before));
                fill(kept.bucket_mut(bucket), false)
            }
            (None, Some(mut all)) => {
                let filled = fill(&mut all, true);
                self.buckets[bucket] = Bucket::Here(all);
                filled
            }
            (None, None) => unreachable!("a rank that keeps all has a bucket, or waits for it"),
        }
    }

    /// All weights, on each rank. All ranks call it.
    pub(super) fn whole(&mut self, replicas: Replicas<'_>, layout: &Layout) -> Result<Values<T>> {
        let mut values = Values::zeros(layout)?;
        for bucket in 0..layout.buckets() {
            let is_away = matches!(self.buckets[bucket], Bucket::Away);
            self.fetch(replicas, layout, bucket..bucket + 1)?;
            let Some(all) = self.take(bucket)? else {
                let kept = self.alone(bucket).expect("what is kept and not fetched is this rank's alone");
                values.bucket_mut(bucket).copy_from_slice(kept);
                continue;
            };
            values.bucket_mut(bucket).copy_from_slice(&all);
            if is_away {
                self.pool.give(all);
            } else {
                self.buckets[bucket] = Bucket::Here(all);
            }
        }
        Ok(values)
    }

    /// In stage 3, a bucket that no other rank has.
    fn alone(&self, bucket: usize) -> Option<&[T]> {
        self.kept.as_ref().filter(|_| self.shares[bucket] == Share::WHOLE).map(|kept| kept.bucket(bucket))
    }

    /// The memory of the weights.
    pub(super) fn bytes(&self) -> usize {
        self.kept.as_ref().map_or(0, Values::bytes) + self.pool.bytes()
    }
}

/// Where a pass finds weights.
pub(super) struct Found<'a, T: Number> {
    pub(super) weights: &'a mut Changed<T>,
    pub(super) replicas: Replicas<'a>,
    pub(super) layout: &'a Layout,
}

impl<T: Number> Weights<T> for Found<'_, T> {
    fn enter(&mut self, unit: Unit, _: Pass) -> Result<()> {
        let Found { weights, replicas, layout } = self;
        weights.order.enter(unit);
        weights.fetch(*replicas, layout, layout.unit(unit))?;
        if let Some(next) = weights.order.next().filter(|_| weights.overlap == Overlap::Beside) {
            weights.fetch(*replicas, layout, layout.unit(next))?;
        }
        layout.unit(unit).try_for_each(|bucket| weights.arrive(bucket))
    }

    fn of(&self, id: ParameterId) -> &[T] {
        let (bucket, range) = (self.layout.bucket(id), self.layout.range(id));
        let all = match &self.weights.buckets[bucket] {
            Bucket::Here(all) => Some(&all[..]),
            _ => self.weights.alone(bucket),
        };
        match all {
            Some(all) => &all[range],
            None => panic!("{} is read before its unit is entered", self.layout.parameter(id).name),
        }
    }

    fn leave(&mut self, unit: Unit) -> Result<()> {
        let Found { weights, layout, .. } = self;
        if weights.kept.is_some() && weights.order.next() != Some(unit) {
            for bucket in layout.unit(unit) {
                let all = weights.take(bucket)?;
                all.into_iter().for_each(|all| weights.pool.give(all));
            }
        }
        Ok(())
    }
}
