//! Whole runs: the same bits every time, the same model on any number of ranks, and PyTorch's losses.

use std::time::Instant;

use crate::common::{bits, check_parity, data_parallel, losses, run, trained};
use consort::Communicator;
use consort_trainer::mesh::Degrees;
use consort_trainer::model::{Experts, Shape};
use consort_trainer::parallel::data::{Exchange, Replicas, exchange};
use consort_trainer::parameters::{Begin, Layout, Parameter, ParameterId, Values};
use consort_trainer::products::Products;
use consort_trainer::ranks::Tensor;
use consort_trainer::text::Text;
use consort_trainer::train::{Run, Trainer};

#[test]
fn a_run_gives_the_same_bits_each_time() {
    let [first, second] = [0, 1].map(|_| trained::<f32>(run(), 8).remove(0));
    assert_eq!(bits(&losses(&first.steps)), bits(&losses(&second.steps)));
    assert_eq!(bits(&first.own), bits(&second.own));
    let other = trained::<f32>(Run { seed: 8, ..run() }, 8).remove(0);
    assert_ne!(losses(&first.steps), losses(&other.steps));
}

#[test]
fn ranks_train_the_model_of_one() {
    let alone = trained::<f64>(run(), 20).remove(0);
    assert!(alone.steps[19].loss < alone.steps[0].loss - 1.0, "{:?}", losses(&alone.steps));
    let tensor = |tensor, shares_tokens| Degrees { tensor, shares_tokens, ..Degrees::default() };
    for degrees in [
        Degrees::data(2),
        Degrees::data(3),
        tensor(2, false),
        tensor(2, true),
        Degrees { data: 2, ..tensor(2, false) },
        Degrees { data: 2, ..tensor(2, true) },
        Degrees { context: 2, ..Degrees::default() },
        Degrees { context: 2, ..Degrees::data(2) },
        Degrees { context: 2, ..tensor(2, true) },
    ] {
        check_parity(&Run { degrees, ..run() }, &alone);
    }
    check_parity(&Run { bucket_bytes: 64, ..data_parallel(2) }, &alone);
    check_parity(&Run { micro_batches: 2, ..data_parallel(2) }, &alone);
    check_parity(&Run { micro_batches: 4, ..run() }, &alone);
}

#[test]
fn ranks_with_some_of_the_experts_train_the_model_of_one() {
    let shape = Shape { experts: Some(Experts { count: 4, top_k: 2 }), hidden: 32, ..run().shape };
    let given = Run { shape, ..run() };
    let alone = trained::<f64>(given, 20).remove(0);
    assert!(alone.steps[19].loss < alone.steps[0].loss - 1.0, "{:?}", losses(&alone.steps));
    let expert = |data, expert| Degrees { expert, ..Degrees::data(data) };
    for (degrees, micro_batches) in [
        (expert(2, 1), 1),
        (expert(2, 2), 1),
        (expert(4, 2), 1),
        (expert(4, 4), 1),
        (expert(2, 2), 2),
        (Degrees { context: 2, ..expert(2, 2) }, 1),
        (Degrees { context: 2, ..expert(1, 1) }, 1),
        (Degrees { pipeline: 2, ..expert(2, 2) }, 2),
    ] {
        check_parity(&Run { degrees, micro_batches, ..given }, &alone);
    }
    // Three sequences on two ranks: one has twice as many tokens.
    let given = Run { batch: 3, ..given };
    let alone = trained::<f64>(given, 5).remove(0);
    check_parity(&Run { degrees: expert(2, 2), ..given }, &alone);
}

#[test]
fn rounded_products_learn_what_exact_ones_do() {
    let [exact, rounded] =
        [Products::Exact, Products::Bf16].map(|products| trained::<f32>(Run { products, ..run() }, 20));
    let [exact, rounded] = [exact, rounded].map(|mut ranks| losses(&ranks.remove(0).steps));
    // Different at once, and close in the end: the whole way is a nat and more.
    assert_ne!(exact[0], rounded[0]);
    let worst = exact.iter().zip(&rounded).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(worst < 0.05, "{exact:?} {rounded:?}");
}

#[test]
fn tied_ranks_train_the_model_of_one() {
    let shape = Shape { tied: true, ..run().shape };
    let alone = trained::<f64>(Run { shape, ..run() }, 5).remove(0);
    for shares_tokens in [false, true] {
        let degrees = Degrees { tensor: 2, shares_tokens, ..Degrees::default() };
        check_parity(&Run { shape, degrees, ..run() }, &alone);
    }
}

#[test]
fn ranks_with_the_same_parameters_have_the_same_bits() {
    for run in [data_parallel(2), data_parallel(3)] {
        let all = trained::<f32>(run, 8);
        all.iter().for_each(|rank| assert_eq!(bits(&rank.own), bits(&all[0].own)));
    }
}

#[test]
fn ranks_give_the_same_bits_each_time() {
    let degrees = Degrees { data: 2, tensor: 2, shares_tokens: true, ..Degrees::default() };
    for run in [data_parallel(2), Run { degrees, ..run() }] {
        let [first, second] = [0, 1].map(|_| trained::<f32>(run, 8));
        for ((first, second), rank) in first.iter().zip(&second).zip(0..) {
            assert_eq!(bits(&first.own), bits(&second.own), "rank {rank}");
            assert_eq!(bits(&losses(&first.steps)), bits(&losses(&second.steps)), "rank {rank}");
        }
    }
}

#[test]
fn a_rank_that_is_alone_exchanges_nothing() {
    let steps = trained::<f32>(run(), 2).remove(0).steps;
    assert!(steps.iter().all(|step| step.exchange == Exchange::default()));
}

#[test]
fn a_sum_begins_when_its_bucket_is_complete() {
    let parameter = |name: &str| Parameter::new(name, [8, 8], Begin::Ones);
    // A bucket for each.
    let layout = Layout::new(["first", "second"].map(parameter).into(), 1, 1);
    let ids: Vec<ParameterId> = layout.parameters().map(|(id, _)| id).collect();
    let rank = |comm: &Communicator| {
        let mut values = Values::<f64>::zeros(&layout).expect("memory");
        let step = Instant::now();
        let mut between = step;
        let replicas = Replicas { all: Some(comm), ..Replicas::default() };
        let exchange = exchange((replicas, Tensor::default()), &layout, &mut values, step, |gradients| {
            gradients.place(ids[0]).fill(1.0);
            gradients.finished(ids[0])?;
            between = Instant::now();
            gradients.place(ids[1]).fill(2.0);
            gradients.finished(ids[1])
        });
        let sums: Vec<f64> = ids.iter().map(|id| values.of(&layout, *id)[63]).collect();
        assert_eq!(sums, [2.0, 4.0]);
        (exchange.expect("both ranks exchange").spans, (between - step).as_secs_f64())
    };
    let comms = Communicator::local(2).expect("ranks");
    std::thread::scope(|threads| {
        let threads: Vec<_> = comms.iter().map(|comm| threads.spawn(|| rank(comm))).collect();
        for thread in threads {
            let (spans, between_s) = thread.join().expect("a rank");
            assert_eq!(spans.len(), 3, "two sums and the wait: {spans:?}");
            let begins = [spans[0].begin_s, between_s, spans[1].begin_s, spans[2].begin_s];
            assert!(begins.is_sorted(), "{begins:?}");
        }
    });
}

#[test]
fn ranks_with_other_options_or_another_text_are_named() {
    let of_rank = |rank: u32| {
        (Run { seed: 7 + u64::from(rank / 2), ..data_parallel(3) }, "a text of some words. ".repeat(100))
    };
    let other_text = |rank: u32| {
        let last = if rank == 1 { "!" } else { "." };
        (data_parallel(3), "a text of some words. ".repeat(100) + last)
    };
    for (given, named) in
        [(&of_rank as &(dyn Fn(u32) -> (Run, String) + Sync), "rank 2"), (&other_text, "rank 1")]
    {
        let comms = Communicator::local(3).expect("ranks");
        std::thread::scope(|threads| {
            for comm in &comms {
                threads.spawn(move || {
                    let (run, text) = given(comm.rank());
                    let text = Text::new(text.as_bytes(), run.shape.sequence).expect("text");
                    let error = Trainer::<f32>::new(run, &text, Some(comm)).err().expect("ranks that differ");
                    assert!(error.to_string().contains(named), "{error}");
                });
            }
        });
    }
}
