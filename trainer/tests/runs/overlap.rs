//! Exchanges beside what is computed, and apart from it: the same bits, and sums that begin when backward is over.

use consort_trainer::mesh::Degrees;
use consort_trainer::model::{Experts, Shape};
use consort_trainer::parallel::pipeline::Order;
use consort_trainer::parallel::zero::Zero;
use consort_trainer::ranks::Overlap;
use consort_trainer::timeline::{Activity, Span};
use consort_trainer::train::Run;

use crate::common::{bits, data_parallel, losses, run, trained, with_experts};

/// Runs that exchange along each axis, and along several.
fn runs() -> Vec<Run> {
    let mesh = |degrees| Run { degrees, ..run() };
    let tensor = |data, shares_tokens| Degrees { tensor: 2, shares_tokens, ..Degrees::data(data) };
    let experts = Shape { experts: Some(Experts { count: 4, top_k: 2 }), hidden: 32, ..run().shape };
    let stages = [Zero::Moments, Zero::Gradients, Zero::Weights];
    let pipeline = Degrees { pipeline: 2, ..Degrees::data(2) };
    let order = Order::OneForwardOneBackward;
    [data_parallel(3), Run { micro_batches: 2, ..data_parallel(2) }]
        .into_iter()
        .chain([
            mesh(tensor(1, false)),
            mesh(tensor(1, true)),
            mesh(Degrees { context: 2, ..Degrees::data(1) }),
        ])
        .chain(stages.map(|zero| Run { zero, micro_batches: 2, ..data_parallel(2) }))
        .chain([Run { zero: Zero::Weights, ..mesh(tensor(2, true)) }])
        .chain([Run { shape: experts, ..mesh(Degrees { expert: 2, ..Degrees::data(2) }) }])
        .chain([Run { order, micro_batches: 2, zero: Zero::Moments, ..mesh(pipeline) }])
        .collect()
}

#[test]
fn exchanges_that_hide_nothing_have_the_same_bits() {
    for run in runs() {
        let [beside, apart] =
            [Overlap::Beside, Overlap::Apart].map(|overlap| trained::<f32>(Run { overlap, ..run }, 4));
        for (rank, (beside, apart)) in beside.iter().zip(&apart).enumerate() {
            let what = format!("{:?}, {:?}, rank {rank}", run.degrees, run.zero);
            assert_eq!(bits(&losses(&beside.steps)), bits(&losses(&apart.steps)), "losses, {what}");
            assert_eq!(bits(&beside.own), bits(&apart.own), "parameters, {what}");
        }
    }
}

#[test]
fn sums_that_hide_nothing_begin_when_backward_is_over() {
    let stages = [Zero::Nothing, Zero::Moments];
    let given = stages.map(|zero| Run { zero, ..data_parallel(2) }).into_iter();
    for run in given.chain(stages.map(|zero| Run { zero, ..with_experts(4, 2) })) {
        let of_run = (run.zero, run.degrees);
        for overlap in [Overlap::Beside, Overlap::Apart] {
            for rank in trained::<f32>(Run { overlap, ..run }, 3) {
                let spans = rank.steps[2].spans();
                let of = |activity| spans.iter().filter(move |span: &&Span| span.activity == activity);
                let end_s = of(Activity::Backward).map(|span| span.end_s).fold(0.0, f64::max);
                let begin_s = of(Activity::Sum).map(|span| span.begin_s).fold(f64::INFINITY, f64::min);
                assert!(begin_s.is_finite() && end_s > 0.0, "{spans:?}");
                assert_eq!(begin_s >= end_s, overlap == Overlap::Apart, "{of_run:?}: {begin_s} {end_s}");
            }
        }
    }
}

#[test]
fn weights_that_hide_nothing_are_waited_for_where_they_are_needed() {
    // In stages 1 and 2 each step brings them once more than all others have, and nothing is under way at its end.
    for zero in [Zero::Moments, Zero::Gradients] {
        for rank in trained::<f32>(Run { overlap: Overlap::Apart, zero, ..data_parallel(2) }, 1) {
            let spans = rank.steps[0].spans();
            assert!(spans.iter().any(|span| span.activity == Activity::Gather), "{zero:?}: {spans:?}");
        }
    }
}
