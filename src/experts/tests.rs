//! Experts on ranks that are threads, some of whom take themselves for ranks of several hosts, beside a reference that one thread computes.

mod refused;

use consort_control::bootstrap::Member;
use consort_kernels::rows::Real;
use consort_settings::options::{Options, Settings};
use consort_testing::Random;

use super::{Exchange, ExpertOptions, Experts, Payload, Route};
use crate::{Communicator, bf16};

/// Ranks on these hosts.
fn world(host_of: &[u32]) -> Vec<Communicator> {
    let settings = Settings::resolve(&Options::default()).expect("settings");
    let on = |rank, of| Member { host_key: [host_of[rank as usize] as u8; 16], ..of };
    Communicator::local_as(host_of.len() as u32, settings, &on).expect("ranks")
}

/// Ends the communicator where its rank panics, so that no other waits for it.
struct Ends<'a>(&'a Communicator);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abort("a check of this rank failed");
        }
    }
}

/// What each rank makes of it.
fn on_all<R: Send>(world: &[Communicator], run: impl Fn(&Communicator) -> R + Sync) -> Vec<R> {
    std::thread::scope(|threads| {
        let run = &run;
        let one = |comm| {
            let _ends = Ends(comm);
            run(comm)
        };
        let all: Vec<_> = world.iter().map(|comm| threads.spawn(move || one(comm))).collect();
        all.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// Tokens of all ranks with their choices.
#[derive(Debug)]
struct Batch<T: Real> {
    options: ExpertOptions,
    tokens: Vec<Vec<T>>,
    indices: Vec<Vec<i32>>,
    weights: Vec<Vec<T::Sum>>,
}

impl<T: Real> Batch<T> {
    /// Whole numbers, and weights in eighths: sums of them are exact in any order.
    fn whole(random: &mut Random, options: ExpertOptions, counts: &[usize]) -> Self {
        Self::of(random, options, counts, &|random| random.below(17) as f32 - 8.0, &|random| {
            random.below(17) as f32 / 8.0
        })
    }

    /// Numbers whose sums depend on the order.
    fn real(random: &mut Random, options: ExpertOptions, counts: &[usize]) -> Self {
        let real = |random: &mut Random| (random.below(1 << 20) as f32 / (1 << 19) as f32 - 1.0) * 3.3;
        Self::of(random, options, counts, &real, &real)
    }

    fn of(
        random: &mut Random,
        options: ExpertOptions,
        counts: &[usize],
        value: &dyn Fn(&mut Random) -> f32,
        weight: &dyn Fn(&mut Random) -> f32,
    ) -> Self {
        let mut batch = Batch { options, tokens: Vec::new(), indices: Vec::new(), weights: Vec::new() };
        for count in counts {
            batch.tokens.push((0..count * options.hidden).map(|_| T::of_single(value(random))).collect());
            let mut index =
                || if random.one_in(6) { -1 } else { random.below(options.experts as usize) as i32 };
            batch.indices.push((0..count * options.top_k).map(|_| index()).collect());
            let weights = (0..count * options.top_k).map(|_| T::Sum::of_single(weight(random)));
            batch.weights.push(weights.collect());
        }
        batch
    }

    /// Each rank's rows of these, grouped: by expert, source, token, choice. With source and choice of each.
    fn grouped(&self, rank: u32, rows: &[Vec<T>]) -> (Vec<T>, Vec<(usize, usize)>) {
        let (hidden, per_rank) = (self.options.hidden, self.options.experts / self.tokens.len() as u32);
        let (mut grouped, mut from) = (Vec::new(), Vec::new());
        for expert in rank * per_rank..(rank + 1) * per_rank {
            for (source, indices) in self.indices.iter().enumerate() {
                for (slot, _) in indices.iter().enumerate().filter(|(_, index)| **index == expert as i32) {
                    grouped.extend_from_slice(&rows[source][slot / self.options.top_k * hidden..][..hidden]);
                    from.push((source, slot));
                }
            }
        }
        (grouped, from)
    }
}

/// What an expert makes of a value.
fn expert<T: Real>(number: i32, value: T) -> T {
    T::of_single(value.to_single() * (number % 3 + 1) as f32 + (number % 5) as f32)
}

/// The sums that a rank must get, computed from all that there is.
fn dense<T: Real>(batch: &Batch<T>, rank: usize) -> Vec<f64> {
    let ExpertOptions { hidden, top_k, .. } = batch.options;
    let (tokens, indices, weights) = (&batch.tokens[rank], &batch.indices[rank], &batch.weights[rank]);
    let mut sums = vec![0.0; tokens.len()];
    for (slot, index) in indices.iter().enumerate().filter(|(_, index)| **index >= 0) {
        let place = slot / top_k * hidden..(slot / top_k + 1) * hidden;
        for (sum, token) in sums[place.clone()].iter_mut().zip(&tokens[place]) {
            *sum += f64::from(weights[slot].to_single()) * f64::from(expert(*index, *token).to_single());
        }
    }
    sums
}

fn of_singles<T: Real>(values: &[f64]) -> Vec<T> {
    values.iter().map(|value| T::of_single(*value as f32)).collect()
}

const WAYS: [(Option<Route>, Option<Exchange>); 5] = [
    (None, None),
    (Some(Route::Direct), Some(Exchange::Counted)),
    (Some(Route::Direct), Some(Exchange::Slots)),
    (Some(Route::Hierarchical), Some(Exchange::Counted)),
    (Some(Route::Hierarchical), Some(Exchange::Slots)),
];

/// The same options with a route and an exchange.
fn along(options: ExpertOptions, (route, exchange): (Option<Route>, Option<Exchange>)) -> ExpertOptions {
    ExpertOptions { route, exchange, ..options }
}

/// All four calls and both gradients of one rank, beside the reference.
fn check<T: Real>(comm: &Communicator, batch: &Batch<T>, options: ExpertOptions) {
    let (rank, what) =
        (comm.rank() as usize, format!("rank {} of {}, {options:?}", comm.rank(), comm.size()));
    let mut experts = Experts::<T>::new(comm, options).expect("all ranks agree");
    let (tokens, indices, weights) = (&batch.tokens[rank], &batch.indices[rank], &batch.weights[rank]);
    let mut rows = vec![T::default(); 3];
    let handle = experts.dispatch(tokens, indices, weights, &mut rows).expect("dispatched");
    let (expected, from) = batch.grouped(comm.rank(), &batch.tokens);
    assert!(rows == expected, "{what}: other rows than those chosen");
    assert_eq!((handle.counts().iter().sum(), handle.tokens()), (from.len(), tokens.len() / options.hidden));
    let hidden = options.hidden;
    let mut outputs = rows.clone();
    for (row, (source, slot)) in outputs.chunks_exact_mut(hidden).zip(&from) {
        row.iter_mut().for_each(|value| *value = expert(batch.indices[*source][*slot], *value));
    }
    let mut sums = vec![T::of_single(9.0); tokens.len()];
    experts.combine(&handle, &outputs, &mut sums).expect("combined");
    assert!(sums == of_singles(&dense(batch, rank)), "{what}: other sums");

    // Another dispatch in between changes nothing.
    experts.dispatch(&[], &[], &[], &mut Vec::new()).expect("dispatched");
    // The gradient of each rank's sums: what its tokens were, in another order.
    let gradients: Vec<Vec<T>> =
        batch.tokens.iter().map(|rows| rows.iter().rev().copied().collect()).collect();
    let mut again = Vec::new();
    experts.dispatch_again(&handle, &gradients[rank], &mut again).expect("dispatched again");
    let (expected, _) = batch.grouped(comm.rank(), &gradients);
    assert!(again == expected, "{what}: other rows the second time");
    let mut of_weights = vec![T::Sum::of_single(5.0); indices.len()];
    let mut of_outputs = Vec::new();
    let result =
        experts.combine_gradient(&handle, &outputs, &gradients[rank], &mut of_outputs, &mut of_weights);
    result.expect("gradients");
    for ((row, of_output), (source, slot)) in
        expected.chunks_exact(hidden).zip(of_outputs.chunks_exact(hidden)).zip(&from)
    {
        let weight = batch.weights[*source][*slot].to_single();
        assert!(
            row.iter().zip(of_output).all(|(row, of)| row.to_single() * weight == of.to_single()),
            "{what}"
        );
    }
    for (slot, of_weight) in of_weights.iter().enumerate() {
        let place = slot / options.top_k * hidden..(slot / options.top_k + 1) * hidden;
        let products = tokens[place.clone()].iter().zip(&gradients[rank][place]).map(|(token, gradient)| {
            f64::from(expert(indices[slot], *token).to_single()) * f64::from(gradient.to_single())
        });
        let expected = if indices[slot] < 0 { 0.0 } else { products.sum::<f64>() };
        assert_eq!(f64::from(of_weight.to_single()), expected, "{what}: the gradient of weight {slot}");
    }
    experts.dispatch_gradient(&handle, &again, &mut sums).expect("gradients");
    let choices =
        |token: usize| indices[token * options.top_k..][..options.top_k].iter().filter(|i| **i >= 0).count();
    for (at, sum) in sums.iter().enumerate() {
        let expected = gradients[rank][at].to_single() * choices(at / hidden) as f32;
        assert_eq!(sum.to_single(), expected, "{what}: the gradient of a token");
    }
}

const HOSTS: [&[u32]; 7] = [
    &[0],
    &[0, 1],
    &[0, 0, 0],
    &[0, 0, 1, 1],
    &[0, 1, 0, 1, 1],
    &[0, 0, 0, 1, 2, 2],
    &[0, 0, 0, 0, 1, 1, 1, 1],
];

fn every_way<T: Real>(random: &mut Random, host_of: &[u32], options: ExpertOptions, counts: &[usize]) {
    let batch = Batch::<T>::whole(random, options, counts);
    let world = world(host_of);
    on_all(&world, |comm| WAYS.iter().for_each(|way| check(comm, &batch, along(options, *way))));
}

#[test]
fn every_route_and_exchange_is_the_dense_reference() {
    let mut random = Random::announced("every_route_and_exchange_is_the_dense_reference");
    for host_of in HOSTS {
        let ranks = host_of.len();
        let experts = ranks * (1 + random.below(3));
        let options = || ExpertOptions::new(experts as u32, 1, 1, 9);
        for (hidden, top_k) in [(1, 1), (130, 3)] {
            let options = ExpertOptions { hidden, top_k: top_k.min(experts), ..options() };
            // Some ranks have no token.
            let counts: Vec<usize> = host_of.iter().map(|_| random.below(12).saturating_sub(2)).collect();
            every_way::<f32>(&mut random, host_of, options, &counts);
        }
        let options = ExpertOptions { hidden: 3, top_k: experts.min(4), ..options() };
        every_way::<f64>(&mut random, host_of, options, &vec![4; ranks]);
        every_way::<f64>(&mut random, host_of, options, &vec![0; ranks]);
    }
}

#[test]
fn all_tokens_may_choose_one_expert() {
    let mut random = Random::announced("all_tokens_may_choose_one_expert");
    let options = ExpertOptions::new(8, 6, 2, 7);
    let mut batch = Batch::<f32>::whole(&mut random, options, &[7, 7, 7, 7]);
    batch.indices.iter_mut().flatten().for_each(|index| *index = 5);
    let world = world(&[0, 0, 1, 1]);
    on_all(&world, |comm| WAYS.iter().for_each(|way| check(comm, &batch, along(options, *way))));
}

/// The sums of a rank in every way, twice, as single numbers.
fn sums_in_every_way<T: Real>(comm: &Communicator, batch: &Batch<T>) -> Vec<Vec<u32>> {
    let rank = comm.rank() as usize;
    let sums = WAYS.iter().chain(&WAYS).map(|way| {
        let mut experts = Experts::<T>::new(comm, along(batch.options, *way)).expect("all ranks agree");
        let (mut rows, mut sums) = (Vec::new(), vec![T::default(); batch.tokens[rank].len()]);
        let (indices, weights) = (&batch.indices[rank], &batch.weights[rank]);
        let handle = experts.dispatch(&batch.tokens[rank], indices, weights, &mut rows).expect("dispatched");
        experts.combine(&handle, &rows, &mut sums).expect("combined");
        sums.into_iter().map(|sum| sum.to_single().to_bits()).collect::<Vec<u32>>()
    });
    sums.collect()
}

#[test]
fn bits_depend_on_neither_route_nor_exchange_nor_run() {
    let mut random = Random::announced("bits_depend_on_neither_route_nor_exchange_nor_run");
    for host_of in [&[0, 0, 1, 1, 1][..], &[0, 1, 1, 0], &[0, 0, 0, 0]] {
        let options = ExpertOptions::new(2 * host_of.len() as u32, 9, 6, 16);
        let counts = vec![16; host_of.len()];
        let (single, half) = (
            Batch::<f32>::real(&mut random, options, &counts),
            Batch::<bf16>::real(&mut random, options, &counts),
        );
        let world = world(host_of);
        let bits = on_all(&world, |comm| [sums_in_every_way(comm, &single), sums_in_every_way(comm, &half)]);
        for (rank, ways) in bits.iter().flatten().enumerate() {
            assert!(ways.iter().all(|way| *way == ways[0]), "rank {} of {host_of:?}", rank / 2);
        }
    }
}

#[test]
fn experts_that_change_nothing_give_tokens_back() {
    let mut random = Random::announced("experts_that_change_nothing_give_tokens_back");
    let options = ExpertOptions::new(8, 300, 4, 10);
    let mut batch = Batch::<f32>::real(&mut random, options, &[10, 3, 0, 10]);
    for (indices, weights) in batch.indices.iter_mut().zip(&mut batch.weights) {
        indices.iter_mut().for_each(|index| *index = index.abs() % 8);
        for weights in weights.chunks_exact_mut(4) {
            let total: f32 = weights.iter().map(|weight| weight.abs() + 0.1).sum();
            weights.iter_mut().for_each(|weight| *weight = (weight.abs() + 0.1) / total);
        }
    }
    let world = world(&[0, 0, 1, 1]);
    on_all(&world, |comm| {
        for way in WAYS {
            for (payload, most) in [(Payload::Element, 1e-5), (Payload::EightBit, 3.3 / 14.0)] {
                let options = along(options, way).payload(payload);
                let mut experts = Experts::<f32>::new(comm, options).expect("all ranks agree");
                let rank = comm.rank() as usize;
                let (mut rows, mut sums) = (Vec::new(), vec![0.0; batch.tokens[rank].len()]);
                let (tokens, indices) = (&batch.tokens[rank], &batch.indices[rank]);
                let handle =
                    experts.dispatch(tokens, indices, &batch.weights[rank], &mut rows).expect("dispatched");
                experts.combine(&handle, &rows, &mut sums).expect("combined");
                let errors = tokens.iter().zip(&sums).map(|(token, sum)| (token - sum).abs());
                let error = errors.fold(0f32, f32::max);
                assert!(error <= most, "{error} off with {options:?}");
                assert!(
                    payload == Payload::Element || tokens.is_empty() || error > 1e-4,
                    "eight bits are few"
                );
                // What goes again is not in eight bits.
                experts.dispatch_again(&handle, tokens, &mut rows).expect("dispatched again");
                assert!(rows == batch.grouped(comm.rank(), &batch.tokens).0);
            }
        }
    });
}

#[test]
fn a_row_crosses_to_a_host_once() {
    let mut random = Random::announced("a_row_crosses_to_a_host_once");
    let host_of = [0, 0, 0, 1, 1, 1, 2, 2];
    let options = ExpertOptions::new(24, 64, 8, 32).route(Route::Hierarchical).exchange(Exchange::Counted);
    let batch = Batch::<f32>::whole(&mut random, options, &[32, 7, 0, 19, 32, 1, 30, 30]);
    let all_hosts = |rank: usize, tokens: usize| -> u64 {
        let hosts = batch.indices[rank].chunks_exact(8).take(tokens).map(|indices| {
            let mut hosts: Vec<u32> = indices
                .iter()
                .filter(|index| **index >= 0)
                .map(|index| host_of[*index as usize / 3])
                .collect();
            hosts.sort_unstable();
            hosts.dedup();
            hosts.retain(|host| *host != host_of[rank]);
            hosts.len() as u64
        });
        hosts.sum()
    };
    let world = world(&host_of);
    let found = on_all(&world, |comm| {
        let rank = comm.rank() as usize;
        let mut experts = Experts::<f32>::new(comm, options).expect("all ranks agree");
        let (mut rows, mut sums) = (Vec::new(), vec![0.0; batch.tokens[rank].len()]);
        let (indices, weights) = (&batch.indices[rank], &batch.weights[rank]);
        let handle = experts.dispatch(&batch.tokens[rank], indices, weights, &mut rows).expect("dispatched");
        let back = experts.combine(&handle, &rows, &mut sums).expect("combined");
        [handle.traffic(), back]
    });
    let row_bytes = 64 * 4;
    let (mut crossed, mut returned) = (0, 0);
    for (rank, [forward, back]) in found.iter().enumerate() {
        let rows = all_hosts(rank, 32);
        // At most two rails with a header and a length each, and for a row three words and two for each choice.
        let least = rows * row_bytes;
        let most = least + 2 * (16 + 8) + rows * (12 + 8 * 8);
        let bytes = forward.bytes_between_hosts;
        assert!((least..=most).contains(&bytes), "rank {rank}: {bytes} bytes, not {least} to {most}");
        assert!(forward.bytes >= bytes && back.bytes >= back.bytes_between_hosts);
        crossed += rows;
        returned += back.bytes_between_hosts;
    }
    // One partial sum for each copy, and a number before those of each pair that met.
    assert!((crossed * row_bytes..=crossed * row_bytes + 8 * 8 * 2).contains(&returned), "{returned} bytes");
}

#[test]
fn the_load_of_all_ranks_is_counted() {
    let options = ExpertOptions::new(4, 2, 2, 8);
    let world = world(&[0, 0]);
    let loads = on_all(&world, |comm| {
        let mut experts = Experts::<f32>::new(comm, options).expect("all ranks agree");
        // Rank 1 has one token, and its choices are absent.
        let indices = if comm.rank() == 0 { vec![0, 1, 0, 3, 0, -1] } else { vec![-1, -7] };
        let tokens = vec![1.0; indices.len()];
        let handle = experts.dispatch(&tokens, &indices, &tokens, &mut Vec::new()).expect("dispatched");
        assert_eq!(handle.absent(), 1 + comm.rank() as usize);
        experts.load(&handle).expect("all ranks ask")
    });
    assert_eq!(loads[0], loads[1]);
    let load = &loads[0];
    assert_eq!((&load.rows[..], load.absent, load.dropped_tokens), (&[3, 1, 0, 1][..], 3, 1));
    assert_eq!(load.largest_over_mean, 3.0 * 4.0 / 5.0);
}
