//! Whole runs: the same bits every time, the same model on any number of ranks, and PyTorch's losses.

use std::time::Instant;

use consort::Communicator;
use consort_trainer::model::Shape;
use consort_trainer::number::Number;
use consort_trainer::optimizer::{AdamW, Schedule};
use consort_trainer::parallel::data::{Exchange, exchange};
use consort_trainer::parameters::{Begin, Layout, Parameter, ParameterId, Values};
use consort_trainer::text::{Text, VOCABULARY};
use consort_trainer::train::{Run, Step, Trainer};

fn run() -> Run {
    let shape = Shape {
        vocabulary: VOCABULARY,
        width: 32,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        hidden: 64,
        sequence: 32,
        tied: false,
        rope_base: 10_000.0,
        norm_epsilon: 1e-5,
    };
    Run {
        shape,
        batch: 4,
        bucket_bytes: 16 << 10,
        adamw: AdamW::default(),
        schedule: Schedule { rate: 3e-3, least: 3e-4, warmup: 5, steps: 20 },
        clip: 1.0,
        seed: 7,
    }
}

/// The steps of each rank, and its parameters at the end.
fn trained<T: Number>(run: Run, steps: usize, ranks: u32) -> Vec<(Vec<Step>, Vec<T>)> {
    let text = Text::bundled(run.shape.sequence).expect("text");
    let rank = |comm: Option<&Communicator>| {
        let mut trainer = Trainer::<T>::new(run, &text, comm).expect("a trainer");
        let steps = (0..steps).map(|_| trainer.step().expect("a step")).collect();
        (steps, trainer.weights().buckets().flatten().copied().collect())
    };
    if ranks == 1 {
        return vec![rank(None)];
    }
    let comms = Communicator::local(ranks).expect("ranks");
    std::thread::scope(|threads| {
        let threads: Vec<_> = comms.iter().map(|comm| threads.spawn(|| rank(Some(comm)))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank")).collect()
    })
}

fn losses(steps: &[Step]) -> Vec<f64> {
    steps.iter().map(|step| step.loss).collect()
}

fn bits<T: Number>(values: &[T]) -> Vec<u64> {
    values.iter().map(|value| value.wide().to_bits()).collect()
}

#[test]
fn a_run_gives_the_same_bits_each_time() {
    let [first, second] = [0, 1].map(|_| trained::<f32>(run(), 8, 1).remove(0));
    assert_eq!(bits(&losses(&first.0)), bits(&losses(&second.0)));
    assert_eq!(bits(&first.1), bits(&second.1));
    let other = trained::<f32>(Run { seed: 8, ..run() }, 8, 1).remove(0);
    assert_ne!(losses(&first.0), losses(&other.0));
}

#[test]
fn ranks_train_the_model_of_one() {
    let alone = trained::<f64>(run(), 20, 1).remove(0);
    assert!(alone.0[19].loss < alone.0[0].loss - 1.0, "{:?}", losses(&alone.0));
    for (ranks, bucket_bytes) in [(2, 16 << 10), (2, 64), (3, 16 << 10)] {
        let all = trained::<f64>(Run { bucket_bytes, ..run() }, 20, ranks);
        for (rank, (steps, weights)) in all.iter().enumerate() {
            for (number, (step, expected)) in steps.iter().zip(&alone.0).enumerate() {
                let error = (step.loss / expected.loss - 1.0).abs();
                assert!(
                    error < 1e-12,
                    "rank {rank} of {ranks}, step {number}: {} {}",
                    step.loss,
                    expected.loss
                );
            }
            assert_eq!(
                bits(weights),
                bits(&all[0].1),
                "rank {rank} of {ranks} has other parameters than rank 0"
            );
        }
    }
}

#[test]
fn ranks_give_the_same_bits_each_time() {
    let [first, second] = [0, 1].map(|_| trained::<f32>(run(), 8, 2));
    for ((first, second), rank) in first.iter().zip(&second).zip(0..) {
        assert_eq!(bits(&first.1), bits(&second.1), "rank {rank}");
        assert_eq!(bits(&losses(&first.0)), bits(&losses(&second.0)), "rank {rank}");
    }
}

#[test]
fn a_rank_that_is_alone_exchanges_nothing() {
    let steps = trained::<f32>(run(), 2, 1).remove(0).0;
    assert!(steps.iter().all(|step| step.exchange == Exchange::default()));
}

#[test]
fn a_sum_begins_when_its_bucket_is_complete() {
    let parameter = |name: &str| Parameter { name: name.into(), shape: [8, 8], begin: Begin::Ones };
    // A bucket for each.
    let layout = Layout::new(["first", "second"].map(parameter).into(), 1);
    let ids: Vec<ParameterId> = layout.parameters().map(|(id, _)| id).collect();
    let rank = |comm: &Communicator| {
        let mut values = Values::<f64>::zeros(&layout).expect("memory");
        let step = Instant::now();
        let mut between = step;
        let exchange = exchange(comm, &layout, &mut values, step, |gradients| {
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
    let of_rank =
        |rank: u32| (Run { seed: 7 + u64::from(rank / 2), ..run() }, "a text of some words. ".repeat(100));
    let other_text = |rank: u32| {
        let last = if rank == 1 { "!" } else { "." };
        (run(), "a text of some words. ".repeat(100) + last)
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
