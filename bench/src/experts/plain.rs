//! The same tokens by an all-to-all of blocks that differ in length: a row for each choice, there and back.
//!
//! Invariant: rows are packed, counts and rows exchanged, and what comes back is weighed and added, all within the time; between
//! the two, a pass over the rows stands for experts and is outside of it. Absent: rows by expert. What comes stays as it came, so that
//! the time there is less than a whole dispatch would take.

use std::time::Instant;

use consort::Real;
use consort::experts::Traffic;

use super::routing::Routing;
use crate::backend::Member;
use crate::failure::Failure;
use crate::group::Group;

/// A rank's choices, sorted by the ranks of their experts.
pub(super) struct Plain<'a, T: Real> {
    routing: &'a Routing,
    tokens: &'a [T],
    indices: &'a [i32],
    weights: &'a [T::Sum],
    /// The token of each row that is sent.
    order: Vec<usize>,
    /// Rows for each rank.
    counts: Vec<u64>,
    /// By token: where its rows are among those that are sent.
    places: Vec<usize>,
}

/// What was found.
pub(super) struct Found {
    /// The time of each iteration in each direction, in seconds.
    pub(super) there: Vec<f64>,
    pub(super) back: Vec<f64>,
    /// What this rank sent there and back.
    pub(super) traffic: [Traffic; 2],
    /// How many elements of the sums are wrong.
    pub(super) wrong: usize,
}

impl<'a, T: Real> Plain<'a, T> {
    pub(super) fn new(
        routing: &'a Routing,
        tokens: &'a [T],
        (indices, weights): (&'a [i32], &'a [T::Sum]),
    ) -> Self {
        let owners: Vec<usize> = indices.iter().map(|expert| routing.owner(*expert)).collect();
        let mut slots: Vec<usize> = (0..owners.len()).collect();
        slots.sort_by_key(|slot| owners[*slot]);
        let mut counts = vec![0u64; routing.host_of.len()];
        owners.iter().for_each(|owner| counts[*owner] += 1);
        let mut places = vec![0; slots.len()];
        slots.iter().enumerate().for_each(|(place, slot)| places[*slot] = place);
        let order = slots.into_iter().map(|slot| slot / routing.top_k).collect();
        Plain { routing, tokens, indices, weights, order, counts, places }
    }

    /// Sends all rows there and back.
    pub(super) fn measure(&self, member: &Member, iterations: usize) -> Result<Found, Failure> {
        let failed = |error| member.failure(error);
        let (comm, hidden) = (member.communicator(), self.routing.hidden);
        let mut packed = vec![T::default(); self.order.len() * hidden];
        let (mut received, mut sums) = (Vec::new(), vec![T::default(); self.tokens.len()]);
        let (mut there, mut back) = (Vec::new(), Vec::new());
        let mut heard = vec![0u64; self.counts.len()];
        let elements =
            |counts: &[u64]| -> Vec<usize> { counts.iter().map(|count| *count as usize * hidden).collect() };
        let sent = elements(&self.counts);
        for _ in 0..iterations {
            comm.barrier().map_err(failed)?;
            let begun = Instant::now();
            for (row, token) in packed.chunks_exact_mut(hidden).zip(&self.order) {
                row.copy_from_slice(&self.tokens[token * hidden..(token + 1) * hidden]);
            }
            comm.all_to_all(&self.counts, &mut heard).map_err(failed)?;
            let expected = elements(&heard);
            received.resize(expected.iter().sum(), T::default());
            comm.all_to_all_v(&packed, &sent, &mut received, &expected).map_err(failed)?;
            there.push(begun.elapsed().as_secs_f64());
            pass(&mut received);
            comm.barrier().map_err(failed)?;
            let begun = Instant::now();
            comm.all_to_all_v(&received, &expected, &mut packed, &sent).map_err(failed)?;
            self.add_up(&packed, &mut sums);
            back.push(begun.elapsed().as_secs_f64());
        }
        let wrong = self.routing.wrong_sums(self.indices, self.tokens, &sums, false);
        let traffic = [self.traffic(member.rank(), &self.counts), self.traffic(member.rank(), &heard)];
        Ok(Found { there, back, traffic, wrong })
    }

    /// The weighted sums of what came back.
    fn add_up(&self, rows: &[T], sums: &mut [T]) {
        let (hidden, top_k) = (self.routing.hidden, self.routing.top_k);
        let mut wide = vec![T::default().to_sum(); hidden];
        let choices = self.places.chunks_exact(top_k).zip(self.weights.chunks_exact(top_k));
        for (sum, (places, weights)) in sums.chunks_exact_mut(hidden).zip(choices) {
            wide.fill(T::default().to_sum());
            for (place, weight) in places.iter().zip(weights) {
                for (wide, value) in wide.iter_mut().zip(&rows[place * hidden..(place + 1) * hidden]) {
                    *wide = *wide + value.to_sum() * *weight;
                }
            }
            sum.iter_mut().zip(&wide).for_each(|(sum, wide)| *sum = T::of_sum(*wide));
        }
    }

    /// Bytes of rows for other ranks.
    fn traffic(&self, rank: u32, counts: &[u64]) -> Traffic {
        let (own, hosts) = (rank as usize, &self.routing.host_of);
        let row_bytes = (self.routing.hidden * size_of::<T>()) as u64;
        let mut traffic = Traffic::default();
        for (to, rows) in counts.iter().enumerate().filter(|(to, _)| *to != own) {
            traffic.bytes += rows * row_bytes;
            traffic.bytes_between_hosts += if hosts[to] == hosts[own] { 0 } else { rows * row_bytes };
        }
        traffic
    }
}

/// What stands for experts: each element is read and written, as the rows of a dispatch are before they are combined. So neither way
/// finds in the caches what it left there.
fn pass<T: Real>(rows: &mut [T]) {
    let factor = std::hint::black_box(T::ONE);
    rows.iter_mut().for_each(|value| *value = T::of_sum(value.to_sum() * factor));
}
