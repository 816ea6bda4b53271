//! Ranks that keep shares of moments, gradients and weights: the model of one rank, the bits of data parallelism, the bytes that they send
//! and the memory that they need.

use consort::{Communicator, Determinism, Options};
use consort_trainer::error::Error;
use consort_trainer::mesh::Degrees;
use consort_trainer::model::{Cut, Experts, Model, Shape};
use consort_trainer::parallel::replica::Memory;
use consort_trainer::parallel::zero::Zero;
use consort_trainer::parameters::Unit;
use consort_trainer::text::Text;
use consort_trainer::train::{Run, Step, Trainer};

use crate::common::{
    bits, check_parity, data_parallel, losses, on_ranks, recorded, run, trained, trained_with,
};

const STAGES: [Zero; 3] = [Zero::Moments, Zero::Gradients, Zero::Weights];

#[test]
fn ranks_with_shares_train_the_model_of_one() {
    let alone = trained::<f64>(run(), 20).remove(0);
    for zero in STAGES {
        for ranks in [2, 3] {
            check_parity(&Run { zero, ..data_parallel(ranks) }, &alone);
        }
        check_parity(&Run { zero, micro_batches: 2, bucket_bytes: 64, ..data_parallel(2) }, &alone);
    }
}

#[test]
fn shares_go_with_ranks_that_share_layers_or_sequences() {
    let alone = trained::<f64>(run(), 20).remove(0);
    let of = |zero, micro_batches, shares_tokens| {
        let degrees = Degrees { data: 2, tensor: 2, shares_tokens, ..Degrees::default() };
        Run { zero, micro_batches, degrees, ..run() }
    };
    check_parity(&of(Zero::Weights, 1, false), &alone);
    // The gradients of norms are summed over the ranks of a layer, in each pass.
    check_parity(&of(Zero::Gradients, 2, true), &alone);
    check_parity(&of(Zero::Weights, 2, true), &alone);
    for (zero, shares_tokens) in [(Zero::Moments, false), (Zero::Moments, true), (Zero::Gradients, false)] {
        check_parity(&of(zero, 1, shares_tokens), &alone);
    }
    let context = |data| Degrees { context: 2, ..Degrees::data(data) };
    check_parity(&Run { zero: Zero::Weights, degrees: context(1), ..run() }, &alone);
    for zero in STAGES {
        check_parity(&Run { zero, degrees: context(2), ..run() }, &alone);
    }
}

#[test]
fn shares_of_a_tied_model_train_the_model_of_one() {
    let shape = Shape { tied: true, ..run().shape };
    let alone = trained::<f64>(Run { shape, ..run() }, 5).remove(0);
    for zero in STAGES {
        check_parity(&Run { shape, zero, ..data_parallel(2) }, &alone);
    }
}

/// A run of `data` ranks, of which `expert` share the experts.
fn with_experts(data: usize, expert: usize) -> Run {
    let shape = Shape { experts: Some(Experts { count: 4, top_k: 2 }), hidden: 32, ..run().shape };
    Run { shape, degrees: Degrees { expert, ..Degrees::data(data) }, ..run() }
}

#[test]
fn shares_of_experts_train_the_model_of_one() {
    let alone = trained::<f64>(with_experts(1, 1), 10).remove(0);
    for zero in STAGES {
        // Experts of one rank each, and of two; then over two stages, and two parts of a sequence.
        check_parity(&Run { zero, ..with_experts(2, 2) }, &alone);
        check_parity(&Run { zero, ..with_experts(4, 2) }, &alone);
        check_parity(&Run { zero, micro_batches: 2, bucket_bytes: 64, ..with_experts(2, 2) }, &alone);
    }
    let given = with_experts(2, 2);
    let [stages, contexts] =
        [Degrees { pipeline: 2, ..given.degrees }, Degrees { context: 2, ..given.degrees }];
    check_parity(&Run { zero: Zero::Weights, micro_batches: 2, degrees: stages, ..given }, &alone);
    check_parity(&Run { zero: Zero::Weights, degrees: contexts, ..given }, &alone);
}

#[test]
fn a_rank_that_is_alone_keeps_all() {
    let [all, zero] =
        [Zero::Nothing, Zero::Weights].map(|zero| trained::<f32>(Run { zero, ..run() }, 3).remove(0));
    assert_eq!((bits(&losses(&all.steps)), bits(&all.own)), (bits(&losses(&zero.steps)), bits(&zero.own)));
}

/// What all stages give: losses, norms and parameters.
fn check_bits(run: Run, options: &Options) {
    let all = trained_with::<f32>(run, 5, options);
    let norms = |steps: &[Step]| steps.iter().map(|step| step.norm).collect::<Vec<_>>();
    for zero in STAGES {
        for (rank, (found, expected)) in
            trained_with::<f32>(Run { zero, ..run }, 5, options).iter().zip(&all).enumerate()
        {
            let what = format!("{zero:?}, rank {rank} of {}", run.degrees.ranks());
            assert_eq!(bits(&losses(&found.steps)), bits(&losses(&expected.steps)), "losses, {what}");
            assert_eq!(bits(&norms(&found.steps)), bits(&norms(&expected.steps)), "norms, {what}");
            assert_eq!(bits(&found.own), bits(&expected.own), "parameters, {what}");
        }
    }
}

#[test]
fn all_stages_have_the_bits_of_data_parallelism() {
    // A sum of two numbers has one order; of three it has where bits are invariant.
    check_bits(data_parallel(2), &Options::default());
    check_bits(with_experts(2, 2), &Options::default());
    let options = Options::default().determinism(Determinism::Invariant);
    check_bits(data_parallel(3), &options);
}

/// The elements of some units' buckets, and of all.
fn elements(model: &Model<f32>, units: &[Unit]) -> usize {
    let of = |unit: &Unit| {
        model.layout().unit(*unit).map(|bucket| model.layout().bucket_elements(bucket)).sum::<usize>()
    };
    units.iter().map(of).sum()
}

/// The bytes that each rank sends in a step whose order is known.
fn sent(run: Run) -> usize {
    let replicas = |trainer: &Trainer<'_, f32>| recorded(trainer.mesh().replicas().expect("replicas"));
    let sent = on_ranks(run, |trainer, _| {
        (0..3).for_each(|_| drop(trainer.step().expect("a step")));
        let before = replicas(trainer);
        let step = trainer.step().expect("a step");
        assert_eq!(replicas(trainer) - before, step.exchange.sent, "{:?}", run.zero);
        step.exchange.sent
    });
    assert!(sent.iter().all(|bytes| *bytes == sent[0]), "{sent:?}");
    sent[0]
}

#[test]
fn stage_three_sends_half_as_much_again_and_the_others_no_more() {
    for (ranks, tied, micro_batches) in [(2, false, 1), (3, true, 1), (2, false, 2)] {
        let shape = Shape { tied, ..run().shape };
        let base = Run { shape, micro_batches, ..data_parallel(ranks) };
        // A rank's layout is that of all replicas.
        let cut = Cut { replicas: ranks, ..Cut::whole(&shape) };
        let model = Model::<f32>::cut(shape, base.bucket_bytes / 4, cut).expect("a model");
        let layout = model.layout();
        let all: usize = (0..layout.buckets()).map(|bucket| layout.bucket_elements(bucket)).sum();
        let sent = |zero| sent(Run { zero, ..base });
        // One pass of all parameters around the ring.
        let once = all / ranks * (ranks - 1) * 4;
        assert_eq!(sent(Zero::Nothing), 2 * once);
        assert_eq!(sent(Zero::Moments), 2 * once);
        // Sums over the ranks in each backward pass.
        assert_eq!(sent(Zero::Gradients), (micro_batches + 1) * once);
        // Backward needs no embedding, and keeps the end that forward leaves last; a tied embedding comes once more for the end.
        let spared =
            if tied { 0 } else { elements(&model, &[Unit::Embedding, Unit::End]) } / ranks * (ranks - 1) * 4;
        assert_eq!(sent(Zero::Weights), micro_batches * (3 * once - spared), "tied {tied}");
    }
}

/// The memory of each rank after two steps.
fn memory(run: Run) -> Vec<Memory> {
    on_ranks(run, |trainer, _| {
        (0..2).for_each(|_| drop(trainer.step().expect("a step")));
        trainer.memory()
    })
}

#[test]
fn each_stage_divides_more_of_the_memory() {
    let shape = Shape { layers: 6, ..run().shape };
    let ranks = 4;
    let base = Run { shape, bucket_bytes: 4 << 10, ..data_parallel(ranks) };
    let model = Model::<f32>::new(shape, base.bucket_bytes / 4).expect("a model");
    let layout = model.layout();
    let all = 4 * layout.elements();
    let largest =
        4 * (0..layout.buckets()).map(|bucket| layout.bucket_elements(bucket)).max().expect("a bucket");
    // Each bucket begins a page.
    let padding = 4096 * layout.buckets();
    // The buckets of two units: the largest is the embedding's, and a block has several.
    let units = [Unit::End, Unit::Embedding, Unit::Block(0)].map(|unit| layout.unit(unit).len());
    let pool = 2 * largest * units.iter().max().expect("units");
    for (zero, shares, pools) in [
        (Zero::Nothing, [1, 1, 1], [0, 0]),
        (Zero::Moments, [1, 1, ranks], [0, 0]),
        (Zero::Gradients, [1, ranks, ranks], [0, 3 * largest]),
        (Zero::Weights, [ranks, ranks, ranks], [pool, 3 * largest]),
    ] {
        for Memory { weights, gradients, moments } in memory(Run { zero, ..base }) {
            let [of_weights, of_gradients] = pools;
            for (what, found, expected, room) in [
                ("weights", weights, all / shares[0], padding + of_weights),
                ("gradients", gradients, all / shares[1], padding + of_gradients),
                ("moments", moments, 2 * all / shares[2], 2 * padding),
            ] {
                assert!(
                    (expected..=expected + room).contains(&found),
                    "{zero:?}: {found} bytes of {what}, expected {expected} and {room} more at most"
                );
            }
        }
    }
}

#[test]
fn a_rank_that_leaves_is_an_error_of_the_others() {
    for zero in STAGES {
        let run = Run { zero, ..data_parallel(3) };
        let text = Text::bundled(run.shape.sequence).expect("text");
        let rank = |comm: Communicator| {
            let mut trainer = Trainer::<f32>::new(run, &text, Some(&comm)).expect("a trainer");
            if comm.rank() == 1 {
                (0..2).for_each(|_| drop(trainer.step()));
                return;
            }
            let error = (0..4).find_map(|_| trainer.step().err()).expect("rank 1 has left");
            assert!(
                matches!(error, Error::Library(_)) && error.to_string().contains("rank 1"),
                "{zero:?}: {error}"
            );
        };
        let comms = Communicator::local(3).expect("ranks");
        let rank = &rank;
        std::thread::scope(|threads| {
            comms.into_iter().for_each(|comm| drop(threads.spawn(move || rank(comm))))
        });
    }
}
